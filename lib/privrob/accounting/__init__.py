"""Numbers to guarantees: Rényi curves, trade-off functions, privacy-loss distributions. NumPy and SciPy, no torch.

Source: ours; the modules name theirs.
"""
