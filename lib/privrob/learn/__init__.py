"""Training, on torch: private, robust, both or neither.

Source: ours; the modules name theirs.
"""
