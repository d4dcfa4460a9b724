"""Integrals of positive functions that are only known by their logarithm: Gauss–Legendre panels, halved until settled.

A row is one integral. Its first panels must be fine enough that no peak hides between their nodes: callers start them
at the peaks, and in their widths.

Source: ours.
"""

from __future__ import annotations

import warnings

import numpy as np

NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
AGREE = 1e-10  # panels that agree to this with their halves have halves good to rounding
_HALVINGS, _PANELS = 60, 2**20  # at most, of all rows together


def log_integral(log_integrand, edges, *, tolerance=AGREE, stands_in):
    """Logarithm of the integral of exp(log_integrand) over each row's panels.

    Args: log_integrand — (row numbers of some panels, shape (p,); points, shape (p, 12)) → logarithms, shape (p, 12);
        edges — ends of the panels of each row in rising order, equal ones allowed, shape (k, m);
        tolerance — relative, of a row's integral, shape () or (k,): what a panel may differ from its two halves by;
        stands_in — what takes the place of an integral that doesn't settle, for the warning.
    Returns: shape (k,); +inf where it did not settle.
    """
    rows = edges.shape[0]
    tolerance = np.broadcast_to(np.asarray(tolerance, dtype=np.float64), (rows,))
    which, column = np.nonzero(np.diff(edges) > 0)
    left, right = edges[which, column], edges[which, column + 1]
    if not which.size:
        return np.full(rows, -np.inf)

    def panels(which, left, right):
        return log_integrand(which, (left + right)[:, None] / 2 + ((right - left) / 2)[:, None] * NODES)

    def integrals(logs, which, left, right):
        return (right - left) / 2 * (np.exp(np.minimum(logs - peak[which][:, None], 600.0)) @ WEIGHTS)

    logs = panels(which, left, right)
    peak = np.full(rows, -1e300)
    np.maximum.at(peak, which, logs.max(axis=1))
    whole = integrals(logs, which, left, right)
    done = np.zeros(rows)
    for _ in range(_HALVINGS):
        total = done + np.bincount(which, whole, rows)
        small = whole <= 1e-18 * total[which]
        done += np.bincount(which[small], whole[small], rows)
        which, left, right, whole = which[~small], left[~small], right[~small], whole[~small]
        if not which.size or which.size > _PANELS:
            break
        middle = (left + right) / 2
        twice = np.concatenate([which, which])
        starts, ends = np.concatenate([left, middle]), np.concatenate([middle, right])
        halves = integrals(panels(twice, starts, ends), twice, starts, ends)
        both = halves[: which.size] + halves[which.size :]
        fine = np.abs(both - whole) <= (tolerance * total)[which]
        both = np.where(tolerance[which] > 1e-3, np.maximum(both, whole), both)  # all rounding: take the safe side
        done += np.bincount(which[fine], both[fine], rows)
        again = np.concatenate([~fine, ~fine])
        which, left, right, whole = twice[again], starts[again], ends[again], halves[again]
    if which.size:
        warnings.warn(f"some Rényi divergences did not settle: {stands_in} stands in", stacklevel=4)
        done[np.unique(which)] = np.inf
    with np.errstate(divide="ignore"):
        return peak + np.log(done)
