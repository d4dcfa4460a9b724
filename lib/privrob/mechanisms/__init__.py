"""Data to private answers."""
