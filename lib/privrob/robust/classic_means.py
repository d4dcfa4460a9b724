r"""Means that resist corruption without privacy: what a private one is measured against.

On each coordinate alone (median, trimmed mean) an adversary shifts the answer by about α, and a cluster does so on all
of them at once: the error grows as α√d, slower than that of the mean but in the same way. So does the geometric
median's.

Source: Weiszfeld's iteration for the geometric median; else ours.
"""

from __future__ import annotations

import math

import numpy as np

from privrob import checks
from privrob.robust.filtering import check_data

_BLOCK = 2**15


def _finite(data):
    data = np.asarray(data)
    check_data(data, 0.0)
    data = data if data.dtype in (np.float32, np.float64) else data.astype(np.float64)  # no step in whole numbers
    data = data[np.isfinite(data).all(axis=1)]
    if not len(data):
        raise ValueError("data must hold a row of finite numbers, got none")
    return data


def coordinate_median(data):
    """The median of each coordinate, rows that aren't finite left out: shape (d,)."""
    return np.array([float(np.median(column)) for column in _finite(data).T])


def trimmed_mean(data, *, corruption_rate):
    """The mean of each coordinate without its ⌈αn⌉ smallest and largest values: shape (d,)."""
    data = _finite(data)
    n, _, rate = check_data(data, corruption_rate)
    cut = math.ceil(rate * n * (1 - 1e-12))
    if n <= 2 * cut:
        raise ValueError(f"corruption_rate must leave a record on each coordinate, got {rate} of {n}")
    means = []
    for column in data.T:
        ordered = np.partition(column, (cut, n - cut - 1))
        means.append(float(ordered[cut : n - cut].mean(dtype=np.float64)))
    return np.array(means)


def geometric_median(data, *, tolerance=1e-6, max_steps=200):
    """The point of least mean distance to the records, by Weiszfeld's iteration: shape (d,).

    Args: tolerance — length of the last step;  max_steps — an error beyond it.
    """
    data = _finite(data)
    checks.positive("tolerance", tolerance)
    point = coordinate_median(data)
    for _ in range(checks.integer("max_steps", max_steps, low=1)):
        total, weight = np.zeros(data.shape[1]), 0.0
        for start in range(0, len(data), _BLOCK):
            rows = data[start : start + _BLOCK]
            far = np.linalg.norm(rows - point.astype(rows.dtype), axis=1).astype(np.float64)
            each = 1.0 / np.maximum(far, 1e-12)
            total += each.astype(rows.dtype) @ rows
            weight += each.sum()
        step = total / weight - point
        point = point + step
        if np.linalg.norm(step) <= tolerance:
            return point
    raise RuntimeError(f"no geometric median to {tolerance} within {max_steps} steps; raise tolerance or max_steps")
