"""Data to private answers.

Source: ours; the modules name theirs.
"""
