"""Corruption, robust aggregation and certified robustness.

Source: ours; the modules name theirs.
"""
