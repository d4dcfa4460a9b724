r"""Data sets on which the bounds of Section 4 are attained, and searches for worse ones."""

from __future__ import annotations

import itertools
import math

import numpy as np

from privrob import checks
from privrob.robust import exponential_time, resilience


def twenty_records():
    """(clean, corrupted), each (20, 1): the first are (1, 0.3)-resilient about 0, R of the second at α = 0.1 is 7/4.

    Nineteen records at 1 and one at −27; the adversary takes four of the ones away. What is left of the clean is
    the best S', and leaving −27 out of it moves its mean from −3/4 to 1.

    Paper: prime, Lemma H.4 (whose proof takes R for the resilience itself).
    """
    clean = np.array([[1.0]] * 19 + [[-27.0]])
    return clean, np.where(np.arange(20)[:, None] < 4, -1000.0, clean)


def tail_gap(points, *, corruption_rate, along=None):
    """The largest distance, over v, between the good records of both tails of S along v, in units of 4R(S)/α.

    Good records are those of the best S'; the tails are the k highest and the k lowest, as in d(μ, S).

    Paper: prime, Equation 18 (with R ≤ 3c√α: 12c/√α, that is 1 in these units; (1 − α)/2 is sharp).
    Args: points — (n, d);  along — directions v, (k, d), None: a net.
    """
    points = checks.array("points", points, ndim=2)
    n, along = len(points), resilience.directions(points.shape[1]) if along is None else along
    s, r, k = resilience.sizes(n, corruption_rate)
    parts = [list(some) for some in itertools.combinations(range(n), s)]
    worst = [resilience.deviation(points[part], num_out=r) for part in parts]
    least, good = min(worst), np.isin(np.arange(n), parts[int(np.argmin(worst))])
    if least <= 1e-12 * np.abs(points).max(initial=1.0):
        return 0.0
    found = 0.0
    for v in along:
        seen = points @ v
        order = np.argsort(seen, kind="stable")
        low, top = order[:k], order[n - k :]
        found = max(found, float(seen[top[good[top]]].min() - seen[low[good[low]]].max()))
    return found * corruption_rate / (4 * least)


def clusters(corruption_rate, *, num_records=600):
    """(how far d moves, R(S), how many records are at 1): two clusters, at 0 and 1, and one record thrown out of the
    second, with as many there as makes the move largest for its R. Attains the sound sensitivity of d.

    Paper: prime, Lemmas H.7 and H.12.
    """
    n, centre, best = checks.integer("num_records", num_records, low=20), np.zeros((1, 1)), (0.0, 1.0, 0)
    away = np.arange(n)[:, None] == 0
    for share in range(n // 2, min(n, int((1 - 2 * corruption_rate) * n) + 10)):
        base = np.repeat([1.0, 0.0], [share, n - share])[:, None]
        good = resilience.window_goodness(base, corruption_rate=corruption_rate)
        pair = (base, np.where(away, -9.0, base))
        here, there = (resilience.distance(centre, x, corruption_rate=corruption_rate)[0] for x in pair)
        if good > 1e-9:
            best = max(best, (abs(here - there), good, share), key=lambda found: found[0] / found[1])
    return best


def last_step_loss(corruption_rate, *, epsilon, delta, form, diameter=26.0):
    """The largest log ratio of the probabilities of a candidate in the last step of Algorithm 2, for two neighbours.

    They are those of :func:`clusters`, so far apart that R(S) is just at the limit of the check, as many as line 1 asks
    for. What the output is told of the check and of the range comes on top.

    Paper: prime, Algorithm 2 (last line).
    Args: form — ``sound`` or ``as_printed``;  diameter — D of the region.
    """
    rate = corruption_rate
    how = {"delta": delta, "corruption_rate": rate, "diameter": diameter}
    n = 1000 * math.ceil(exponential_time.printed_least_records(epsilon, **how) / 1000)
    _, choose, limit = exponential_time.exponential_plan(epsilon, num_records=n, dimension=1, form=form, **how)
    at_one = clusters(rate, num_records=500)[2] * n // 500
    base = np.repeat([1.0, 0.0], [at_one, n - at_one])[:, None]
    base *= limit / resilience.window_goodness(base, corruption_rate=rate)
    away = np.where(np.arange(n)[:, None] == 0, -diameter / 2, base)
    points = exponential_time.grid([0.0], half_width=diameter / 2, spacing=rate)
    here, there = (choose.log_probs(-resilience.distance(points, x, corruption_rate=rate)) for x in (base, away))
    return float(np.abs(here - there).max())


def farthest_from_the_mean(values, *, corruption_rate, bad_share):
    """The largest d(μ*, S) on the line over where the adversary puts a share of the records, clean ones of mean 0.

    The records that go are the lowest, the highest, or any; they come back in one place. That bounds
    \\|d(μ, S) − ‖μ − μ*‖\\| for every μ, by the triangle inequality, and is attained at μ*.

    Paper: prime, Lemmas H.9 and H.13.
    Args: values — (n,), of mean 0;  bad_share — of the records, the adversary's.
    """
    values = checks.array("values", values, ndim=1)
    n, order, found = len(values), np.argsort(values), 0.0
    m = int(bad_share * n + 1e-9)
    places = np.concatenate([[-1e3, 1e3], np.linspace(-3, 3, 13) / math.sqrt(corruption_rate)])
    for gone, place in itertools.product((order[:m], order[n - m :], np.arange(m)), places):
        moved = values.copy()
        moved[gone] = place
        reached = resilience.distance(np.zeros((1, 1)), moved[:, None], corruption_rate=corruption_rate)[0]
        found = max(found, float(reached))
    return found


def depth_by_directions(candidate, data, *, rng, num=20_000):
    """The least share of records in a closed half space through a point, over many random half spaces: a second method.

    It can only be too large. In space thin cells are missed by directions drawn at large; all meet at normals of
    planes through two records, so that 120 directions are drawn beside each of those.

    Paper: prime, Appendix I (the definition of the Tukey depth).
    Args: candidate — (d,);  data — (n, d);  num — of the half spaces.
    """
    vectors = checks.array("data", data, ndim=2) - checks.array("candidate", candidate, ndim=1)
    normals = rng.standard_normal((num, vectors.shape[1]))
    if vectors.shape[1] == 3 and len(vectors) > 1:
        i, j = np.triu_indices(len(vectors), 1)
        rays = np.cross(vectors[i], vectors[j])
        size = np.linalg.norm(rays, axis=1)
        rays = rays[size > 0] / size[size > 0, None]
        rays = np.concatenate([rays, -rays])
        beside = (rays + s * rng.standard_normal(rays.shape) for s in (1e-2, 1e-4) for _ in range(60))
        normals = np.concatenate([normals, *beside])
    return float((vectors @ normals.T >= -1e-12).sum(axis=0).min() / len(vectors))
