r"""How far one record moves each query, found by search over small neighbouring sets, to set beside what is stated.

The sets hold a few distinct points, ends of the region's longest lines for the most part, in any multiplicity; the
neighbour has one record replaced, or one less: what filtering may leave of neighbours. All sums are over n, the number
of records at the start, of which at least half are left.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from privrob import checks
from privrob.robust.filtering import excess
from privrob.robust.rows import Cube

QUERIES = ("size", "mean", "mean, one coordinate", "mean, l1", "total", "second moment", "moment about", "norm")
QUERIES = (*QUERIES, "norm about", "score", "histogram")


def answers(points, *, num_records, about, weights):
    """Each query of a set (m, d) that is left of n records: a vector, so that the norm of a difference is its change.

    Paper: prime, Algorithms 6, 11 and 12.
    Args: about — c, a public point;  weights — U of the scores (x − c)ᵀU(x − c);  points — (m, d).
    """
    n, m = num_records, len(points)
    mean = points.mean(axis=0)
    centred, off = points - mean, points - about
    matrix, moment = centred.T @ centred / n, off.T @ off / n
    scores = np.einsum("ij,jk,ik->i", off, weights, off)
    bins = np.frexp(np.maximum(scores, 0.0))[1]
    return {
        "size": float(m),
        "mean": mean,
        "total": points.sum(axis=0),
        "second moment": matrix,
        "moment about": moment,
        "norm": excess(matrix),
        "norm about": excess(moment),
        "score": float((scores - 1).sum() / n),
        "histogram": np.bincount(np.where(scores < 0.25, 0, bins + 3), minlength=40)[1:] / n,
    }


def ends(region):
    """Points between which the region's diameter is attained: a cube's corners, a ball's poles."""
    d = len(region.centre)
    if isinstance(region, Cube):
        return np.array(list(itertools.product([-1.0, 1.0], repeat=d))) * region.box_side / 2
    return np.concatenate([np.eye(d), -np.eye(d)]) * region.radius


def search(region, *, num_records, num_trials, rng, about=None):
    """The largest change of each query over so many neighbours: {query: change}, matrices in the Frobenius norm.

    Args: region — of :mod:`privrob.robust.rows`, d ≤ 4;  about — c; None: any point of the region.
    """
    n = checks.integer("num_records", num_records, low=4)
    d, least = len(region.centre), math.ceil(num_records / 2)
    corners, worst = ends(region), dict.fromkeys(QUERIES, 0.0)
    for _ in range(checks.integer("num_trials", num_trials, low=1)):
        inner = region.clip(region.diameter * rng.standard_normal((2, d)))
        first = corners[rng.integers(len(corners))]
        pool = np.concatenate([[first, -first], corners[rng.integers(len(corners), size=1)], inner])
        pool = pool[: int(rng.integers(2, 6))]
        removed = rng.random() < 0.3
        m = int(rng.integers(least + removed, n + 1))
        one = pool[rng.integers(len(pool), size=m)] if rng.random() < 0.7 else np.tile(first, (m, 1))
        other = one[1:] if removed else np.vstack([one[1:], pool[rng.integers(len(pool))]])
        place = pool[rng.integers(len(pool))] if about is None else np.asarray(about, dtype=float)
        far = max(pool, key=lambda x: float(np.linalg.norm(x - place))) - place
        size = float(np.linalg.norm(far))
        weights = np.outer(far, far) / size**2 if size else np.eye(d) / d
        a, b = (answers(x, num_records=n, about=place, weights=weights) for x in (one, other))
        for what in a:
            worst[what] = max(worst[what], float(np.linalg.norm(np.subtract(a[what], b[what]))))
        gap = np.abs(a["mean"] - b["mean"])
        worst["mean, one coordinate"] = max(worst["mean, one coordinate"], float(gap.max()))
        worst["mean, l1"] = max(worst["mean, l1"], float(gap.sum()))
    return worst


def goodness_change(score, *, num_records, corruption_rate):
    """The largest change of R(S) (or of its bound by windows) over neighbouring lattices of the line within [0, 1].

    Paper: prime, Lemma H.5.
    Args: score — points → R(S) or its bound.
    """
    n, worst = num_records, 0.0
    for ones in range(n + 1):
        for middles in range(0, n + 1 - ones, 1 if n < 10 else 9):
            base = np.array([1.0] * ones + [0.5] * middles + [0.0] * (n - ones - middles))
            here = score(base[:, None], corruption_rate=corruption_rate)
            for place, new in itertools.product({0, min(ones, n - 1), n - 1}, (0.0, 0.5, 1.0)):
                other = base.copy()
                other[place] = new
                worst = max(worst, abs(here - score(other[:, None], corruption_rate=corruption_rate)))
    return worst


def distance_change(*, num_records, corruption_rate):
    r"""The largest change of d(μ, S) over R(S), in units where 1 is 12√log(1/α)/n at R = 3α√log(1/α): two clusters of
    the line, all sizes, one record thrown across.

    Paper: prime, Lemmas H.7 and H.12 (the constants' ratio is the same in both).
    """
    from privrob.robust import resilience

    n, rate, worst = num_records, corruption_rate, 0.0
    candidates, how = np.array([[-1.0], [0.0], [2.0]]), {"corruption_rate": corruption_rate}
    for share in range(n + 1):
        base = np.where(np.arange(n) < share, 1.0, 0.0)[:, None]
        good = resilience.window_goodness(base, **how)
        if good < 1e-9:
            continue
        for place, new in itertools.product({0, n - 1}, (-100.0, 100.0)):
            other = base.copy()
            other[place] = new
            moved = resilience.distance(candidates, base, **how) - resilience.distance(candidates, other, **how)
            worst = max(worst, float(np.abs(moved).max()) / good * 3 * rate * n / 12)
    return worst
