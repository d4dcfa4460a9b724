r"""Resilience: how far the mean of a large part of a set lies from the mean of the whole. Definitions 4.1–4.3.

Exact by enumeration, for a dozen points. On the line, any n: :func:`window_goodness`, the least over windows of
neighbours in order, is never below R(S) (the best S' may leave out points within) and moves by as little.

``points`` are (n, d), ``about`` is p, (d,), the mean if left out; ``along`` directions v, (k, d).
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from privrob import checks

_MOST_SETS = 2_000_000


def sizes(num_records, corruption_rate):
    """(s, r, k): \\|S'\\| = n − ⌊2αn⌋, how many of them T leaves out, and the trimmed number of each end of d(μ, S).

    Paper: prime, Definitions 4.2 and 4.3.
    Printed: sizes (1 − 2α)n, (1 − α)\\|S'\\| and 3α\\|S\\|, not rounded.
    Used: r = max(1, ⌊αs⌋), k = max(⌈3αn⌉, ⌊2αn⌋ + r), so that the sensitivity of d rests on R.
    """
    n = checks.integer("num_records", num_records, low=1)
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5, open_high=True)
    out = math.floor(2 * rate * n * (1 + 1e-12))
    s = n - out
    r = max(1, math.floor(rate * s * (1 + 1e-12)))
    return s, r, max(math.ceil(3 * rate * n * (1 - 1e-12)), out + r)


def deviation(points, *, num_out, about=None):
    """max over T of ‖μ(T) − p‖, T all of ``points`` (m, d) but ``num_out``; p their mean unless given. Exact.

    Paper: prime, Definition 4.1 (the left side of resilience).
    """
    points = checks.array("points", points, ndim=2)
    m = checks.integer("number of points", len(points), low=1)
    r = checks.integer("num_out", num_out, low=0, high=m - 1)
    centre = points.mean(axis=0) if about is None else checks.array("about", about, ndim=1)
    if points.shape[1] == 1:
        ordered = np.sort(points[:, 0])
        ends = ordered[: m - r].mean(), ordered[r:].mean()
        return float(max(abs(end - centre[0]) for end in ends))
    if math.comb(m, r) > _MOST_SETS:
        raise ValueError(f"points must be few enough to enumerate, got {math.comb(m, r)} subsets; d = 1 takes any n")
    total, best = points.sum(axis=0), 0.0
    for some in _blocks(itertools.combinations(range(m), r), r):
        means = (total - points[some].sum(axis=1)) / (m - r)
        best = max(best, float(np.linalg.norm(means - centre, axis=1).max()))
    return best


def deviation_along(points, *, num_out, about=None, along=None):
    """:func:`deviation` for any number of points, over a net of directions: exact on the line, else from below.

    The T farthest from p along v leaves out the ``num_out`` lowest along v, so that the largest ‖μ(T) − p‖ is the
    largest over v of one sort's answer. A net of angle a misses a factor 1 − cos a at most.

    Paper: prime, Definition 4.1; Lemmas H.2 and H.3 are stated of it.
    Args: along — directions (k, d), of each pair ±v one is enough.
    """
    points = checks.array("points", points, ndim=2)
    m = checks.integer("number of points", len(points), low=1)
    r = checks.integer("num_out", num_out, low=0, high=m - 1)
    centre = points.mean(axis=0) if about is None else checks.array("about", about, ndim=1)
    along = directions(points.shape[1]) if along is None else checks.array("along", along, ndim=2)
    best = 0.0
    for v in along:
        seen = np.sort((points - centre) @ v)
        best = max(best, abs(seen[: m - r].mean()), abs(seen[r:].mean()))
    return float(best)


def _blocks(combinations, width, size=20_000):
    while block := list(itertools.islice(combinations, size)):
        yield np.array(block, dtype=int).reshape(len(block), width)


def is_resilient(points, *, sigma, corruption_rate, about=None):
    """Whether a set is (σ, α)-resilient about a point: ‖(1/\\|T\\|) Σ_T (x − p)‖ ≤ σ for all T of size ⌈(1 − α)m⌉.

    A part of α or more then has a mean within (2 − α)σ/α of the point.

    Paper: prime, Definition 4.1; Lemma H.1.
    Args: sigma — σ.
    """
    out = math.floor(corruption_rate * len(points) * (1 + 1e-12))
    return deviation(points, num_out=out, about=about) <= sigma


def goodness(points, *, corruption_rate):
    """R(S): the smallest, over the S' of size s, largest ‖μ(T) − μ(S')‖. Exact, by enumeration.

    Paper: prime, Definition 4.2.
    """
    points = checks.array("points", points, ndim=2)
    n = len(points)
    s, r, _ = sizes(n, corruption_rate)
    if s < 2:
        return 0.0
    if math.comb(n, s) * (math.comb(s, r) if points.shape[1] > 1 else 1) > 50 * _MOST_SETS:
        raise ValueError(
            f"points must be few enough to enumerate, got {math.comb(n, s)} subsets of {s} of {n}; "
            "on the line window_goodness takes any n"
        )
    return min(deviation(points[list(some)], num_out=r) for some in itertools.combinations(range(n), s))


def window_goodness(values, *, corruption_rate):
    """The smallest over the S' that are s neighbours in order: at least R(S), in O(n log n).

    A bound on it bounds R, and so the sensitivity of d. Its own is D/s as well: for a replaced record, each window has
    one of the other set that differs in one point (put the next neighbour in the lost point's place, or an end out for
    a new one within), and a replaced point of S' moves its deviation by D/s at most.

    Paper: prime, Definition 4.2, on the line.
    Args: values — (n,) or (n, 1).
    """
    values = np.ravel(checks.array("values", values))
    n = len(values)
    s, r, _ = sizes(n, corruption_rate)
    if s < 2:
        return 0.0
    ordered = np.sort(values - np.median(values))
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    start = np.arange(n - s + 1)
    mean = (sums[start + s] - sums[start]) / s
    low, high = (sums[start + r] - sums[start]) / r, (sums[start + s] - sums[start + s - r]) / r
    return float(np.maximum(mean - low, high - mean).min() * r / (s - r))


def directions(dimension, *, num=400):
    """Unit vectors, one of each pair ±v: 1 on the line, ``num`` even ones in the plane, a spiral on the sphere; others
    are refused. A net of angle about π/(2 num) in the plane and √(2π/num) in space."""
    if dimension == 1:
        return np.ones((1, 1))
    if dimension == 2:
        angle = np.pi * np.arange(num) / num
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if dimension == 3:
        z = (np.arange(num) + 0.5) / num
        angle = np.pi * (3 - math.sqrt(5)) * np.arange(num)
        ring = np.sqrt(1 - z**2)
        return np.stack([ring * np.cos(angle), ring * np.sin(angle), z], axis=1)
    raise ValueError(f"dimension must be 1, 2 or 3 for a net of directions, got dimension={dimension!r}")


def trimmed_means(points, *, num_trimmed, along):
    """vᵀμ(M^v) of each direction, M^v without the k largest and k smallest vᵀx: shape (m,).

    Paper: prime, Definition 4.3.
    Args: num_trimmed — k.
    """
    points = checks.array("points", points, ndim=2)
    k = num_trimmed
    if 2 * k >= len(points):
        raise ValueError(f"num_trimmed must leave records, got num_trimmed={k} of each end of {len(points)}; 6α < 1")
    ordered = np.sort(points @ np.asarray(along).T, axis=0)
    return ordered[k : len(points) - k].mean(axis=0)


def distance(candidates, points, *, corruption_rate, along=None):
    r"""d(μ, S) = max_v \|vᵀ(μ(M^v) − μ)\| over a net of directions, for each candidate: shape (k,).

    Paper: prime, Definition 4.3 (its run-time remark also takes a covering of the directions).
    Args: candidates — (k, d);  points — (n, d), d ≤ 3;  along — directions (m, d), one of each pair ±v.
    """
    candidates, points = checks.array("candidates", candidates, ndim=2), checks.array("points", points, ndim=2)
    along = directions(points.shape[1]) if along is None else checks.array("along", along, ndim=2)
    middle = trimmed_means(points, num_trimmed=sizes(len(points), corruption_rate)[2], along=along)
    best = np.zeros(len(candidates))
    for v, m in zip(along, middle):
        np.maximum(best, np.abs(m - candidates @ v), out=best)
    return best


def goodness_sensitivity(num_records, *, corruption_rate, diameter):
    """Of R(S), for a replaced record: D/s.

    Paper: prime, Lemma H.5 and Algorithm 2.
    Printed: B√d/n, that is D/n.   Used: D/s, s = (1 − 2α)n; it is attained, 1.25 times more at α = 0.1.
    """
    return diameter / sizes(num_records, corruption_rate)[0]


def distance_sensitivity(num_records, *, corruption_rate, goodness_bound):
    r"""Of d(μ, S), for a replaced record, given R(S) ≤ R₀: 2R₀(s − r)/(r (n − 2k)).

    *Proof.* Along v, S' has r points whose mean is at most R₀(s − r)/r below its own, so that its r-th lowest is no
    lower; at most n − s points of S lie outside S', hence x_(k) with k ≥ n − s + r isn't lower either, and as much on
    the other side. A replaced record moves the sum of the middle order statistics by x_(n−k+1) − x_(k) at most. ∎

    Paper: prime, Lemmas H.7 and H.12.
    Printed: 12√log(1/α)/n given R ≤ 3α√log(1/α) (12c/(n√α) for heavy tails).   Used: the above, 6(1 − α)/(1 − 6α) in
        place of 12: more from α = 1/11 on, 4.25 times 12's need at α = 0.15 is attained.
    Args: goodness_bound — R₀.
    """
    s, r, k = sizes(num_records, corruption_rate)
    middle = num_records - 2 * k
    if middle < 1:
        raise ValueError(f"corruption_rate must leave a middle (6α < 1), got corruption_rate={corruption_rate!r}")
    return 2 * goodness_bound * (s - r) / (r * middle)
