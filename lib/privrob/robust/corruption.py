r"""Data sets with an adversary's records in them: N(0, I), a fraction α of which was replaced.

``cluster``: N(shift·1, I), the document's own; ``rotated``: the same norm along (+1, −1, …); ``random``: along a random
direction; ``tail_swap``: the top α tail along a direction leaves, its mass comes back at −√E[z² \| tail] (nothing that
looks at second moments sees it: the error stays near 2.4 α√log(1/α)); ``hide``: α mass at distance √log(1/α);
``scatter``: d orthogonal directions; ``corner``: far out along (1, …, 1); ``decoy``: half corner, half rotated;
``range``: all at (3, …, 3), in the bin beside the fullest one of a range query; ``nan``: records that aren't finite.

The clean records need not be Normal: ``signs`` (±1 on each coordinate) and ``uniform`` (on ±√3) have covariance I and
are 1-sub-Gaussian as well.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from privrob import checks

ADVERSARIES = ("none", "cluster", "rotated", "random", "tail_swap", "hide", "scatter", "corner", "decoy")
ADVERSARIES += ("range", "nan")
LAWS = ("normal", "signs", "uniform")
FAR = 25.0


def direction(kind, dimension, rng):
    """The unit vector that an adversary pushes along.

    Args: kind — one of :data:`ADVERSARIES`.
    """
    v = np.ones(dimension)
    if kind in ("rotated", "decoy", "tail_swap", "hide"):
        v[1::2] = -1.0
    elif kind == "random":
        v = rng.standard_normal(dimension)
    return v / np.linalg.norm(v)


def corrupted_normal(num_records, dimension, *, corruption_rate, adversary, rng, shift=1.5, dtype=np.float64, mean=0.0):
    """:func:`corrupted_records` of the Normal law."""
    how = {"corruption_rate": corruption_rate, "adversary": adversary, "rng": rng, "shift": shift}
    return corrupted_records(num_records, dimension, law="normal", dtype=dtype, mean=mean, **how)


def corrupted_records(
    num_records, dimension, *, corruption_rate, adversary, rng, law="normal", shift=1.5, dtype=np.float64, mean=0.0
):
    """Records (n, d) about ``mean``, and which of them the adversary put there (n,).

    Paper: prime, Appendix L (``cluster``: μ_bad = (1.5, …, 1.5)).
    Args: adversary — one of :data:`ADVERSARIES`;  law — of the clean records, one of :data:`LAWS`;  shift — of each
        coordinate of a cluster.
    """
    n, d = checks.integer("num_records", num_records, low=0), checks.integer("dimension", dimension, low=1)
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5)
    kind = checks.choice("adversary", adversary, ADVERSARIES)
    rows = clean_records(n, d, law=law, rng=rng, dtype=dtype)
    return replaced(rows, corruption_rate=rate, adversary=kind, rng=rng, shift=shift, mean=mean)


def clean_records(num_records, dimension, *, law, rng, dtype):
    """Records (n, d) about 0, of a ``law`` of :data:`LAWS`, before any is replaced; float32 or float64 (``dtype``)."""
    size, kind = (num_records, dimension), np.float32 if dtype == np.float32 else np.float64
    if checks.choice("law", law, LAWS) == "signs":
        return (2 * rng.integers(0, 2, size, dtype=np.int8) - 1).astype(kind)
    if law == "uniform":
        return ((2 * rng.random(size, dtype=kind) - 1) * math.sqrt(3)).astype(kind)
    return rng.standard_normal(size, dtype=kind)


def replaced(rows, *, corruption_rate, adversary, rng, shift=1.5, mean=0.0):
    """What an adversary makes of clean ``rows`` (n, d), which are changed in place: as :func:`corrupted_records`."""
    (n, d), rate = rows.shape, checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5)
    kind = checks.choice("adversary", adversary, ADVERSARIES)
    m = 0 if kind == "none" else int(rate * n + 1e-9)
    bad = np.zeros(n, dtype=bool)
    v = direction(kind, d, rng).astype(rows.dtype)
    if m and kind == "tail_swap":
        along = rows @ v
        bad[np.argpartition(along, n - m)[n - m :]] = True
    else:
        bad[:m] = True
    if m:
        rows[bad] = _placed(kind, rows[bad], v, rate, shift)
    rows += np.asarray(mean, dtype=rows.dtype)
    return rows, bad


def _placed(kind, rows, v, rate, shift):
    m, d = rows.shape
    if kind in ("cluster", "rotated", "random"):
        return rows + shift * math.sqrt(d) * v
    if kind == "tail_swap":
        z = norm.isf(rate)
        second = 1 + z * norm.pdf(z) / rate  # E[z² | z > its upper α quantile]
        across = rows - np.outer(rows @ v, v)
        return across - math.sqrt(second) * v
    if kind == "hide":
        across = rows - np.outer(rows @ v, v)
        return across + math.sqrt(math.log(1 / rate)) * v
    if kind == "scatter":
        rows = rows.copy()
        rows[np.arange(m), np.arange(m) % d] += shift * math.sqrt(d)
        return rows
    if kind == "range":
        return np.full_like(rows, 3.0)
    if kind == "nan":
        return np.full_like(rows, np.nan)
    far = np.full_like(rows, FAR)
    if kind == "decoy":
        half = m // 2
        far[half:] = rows[half:] + shift * math.sqrt(d) * v
    return far
