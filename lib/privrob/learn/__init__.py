"""Training, on torch."""
