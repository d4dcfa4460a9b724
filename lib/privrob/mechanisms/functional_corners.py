r"""How far one record moves the coefficients of StoBatch's truncated reconstruction, written out as a polynomial in θ.

The coefficients are :math:`(\tfrac12 - x_j)x_l` for all pairs of inputs of a patch. Appendix B's own rule, twice the
largest sum of absolute values, gives 3d² (:func:`privrob.mechanisms.functional.quadratic_sensitivity`); the change
between two records is smaller, and that is what is computed here.
"""

from __future__ import annotations

import math

import numpy as np

from privrob import checks


def quadratic_change(*, num_inputs):
    """Largest l1 distance between the coefficients of two patches x, x' in [−1, 1]^d: at least, at most.

    At least: the largest over all pairs of corners, found by counting how many inputs go from each sign to each sign.
    At most: terms with j ≠ l are affine in every input, so that their change is largest at corners, too; those with
    j = l lie in [−3/2, 1/16] and change by 25/16 at most.

    Paper: stobatch, Section 3.1, Equations 5 and 6; Appendix B.
    Args: num_inputs — d.
    Returns: (attained, upper), of one neuron.
    """
    size = checks.integer("num_inputs", num_inputs, low=1, high=60, hint="the count takes d³ steps")
    here, there = np.array([1.0, 1.0, -1.0, -1.0]), np.array([1.0, -1.0, 1.0, -1.0])  # the four kinds of input
    moved = np.abs(np.outer(0.5 - here, here) - np.outer(0.5 - there, there))
    counts = np.indices([size + 1] * 3).reshape(3, -1)
    counts = np.vstack([counts, size - counts.sum(0)])
    counts = counts[:, counts[3] >= 0].astype(np.float64)
    every = (counts * (moved @ counts)).sum(0)
    apart = every - np.diag(moved) @ counts  # without j = l
    return float(every.max()), float(apart.max() + size * 25 / 16)


def periodic_pair(*, side, period=5):
    """Two images, all −1 and one with 16 of every 25 pixels at 1, whose whole 5 × 5 patches all attain the change at
    once: a mask of that period has the same count in every window. Args: side — of the image."""
    side = checks.integer("side", side, low=checks.integer("period", period, low=1))
    tile = np.arange(period**2) < math.ceil(0.6 * period**2) + 1
    mask = np.tile(tile.reshape(period, period), (-(-side // period),) * 2)[:side, :side]
    return np.full((side, side), -1.0), np.where(mask, 1.0, -1.0)
