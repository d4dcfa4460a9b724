"""Corruption, robust aggregation and certified robustness."""
