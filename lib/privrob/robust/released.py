r"""What the authors' script does, written anew from its behaviour. **Not private**, and not the document's algorithm.

Where it differs: exp of each entry in place of the matrix exponential; its own Z for each record; a half width used as
the width in every sensitivity; a size that is checked without noise; a step ten times as large; six queries at
ε/(4T₁T₂), 1.8 ε in all by basic composition; a range that is known to be [−R, R], whose x̄ is the *sum* of the ends of
the fullest bin, 2μ in place of μ (harmless while μ is below the half width less 5, as for R = 10), and −2R + 0.1
where no bin passes the cut-off; a DP mean without noise. Its own figure has ε = 10.

``known_range`` is R, and ``data`` (n, d).
"""

from __future__ import annotations

import math

import numpy as np

from privrob import checks
from privrob.mechanisms.noise import Gaussian, Laplace
from privrob.mechanisms.ranges import column_counts
from privrob.robust import mmw
from privrob.robust.filtering import FilteredSet, Outcome, check_data, excess, refused, stop_level
from privrob.robust.noiseplan import Entry, NoisePlan, symmetric_noise
from privrob.robust.rows import Cube, Rows, factor_of

_CAVEATS = (
    "a threshold for each record: filtering does not contract, and neighbours may drift apart",
    "a size that is checked without noise",
)
_FAILURE = 0.9  # its ζ


def released_rounds(num_records, dimension):
    """(T₁, T₂) of the script: ⌊log(b√d)⌋ and ⌊log d⌋; (2, 2) on the line."""
    half = released_box(num_records, dimension)
    return (int(math.log(half * math.sqrt(dimension))), int(math.log(dimension))) if dimension > 1 else (2, 2)


def released_plan(num_records, dimension, *, epsilon, delta):
    """The script's noises beside the true sensitivities: no guarantee, as its size has none and its filter none either.

    It takes half of the region's side for the side: each sensitivity of a second moment is 4 times, that of a mean
    twice what it reckons with; the factor 2 of the document's formulas takes back a half of that.
    """
    n, d = num_records, dimension
    half = released_box(n, d)
    first, second = released_rounds(n, d)
    both = first * max(second, 1)
    left, left_delta = 0.99 * epsilon, 0.99 * delta
    one, each = left / (4 * first), left / (4 * both)
    one_delta, each_delta = left_delta / (4 * first), left_delta / (4 * both)
    square, true = half**2 * d, (2 * half) ** 2 * d
    mean_std = 2 * half * math.sqrt(2 * d * math.log(1.25 / one_delta)) / (n * one)
    step_std = 2 * half * math.sqrt(2 * d * math.log(1 / each_delta)) / (n * each)
    matrix_std = 2 * square * math.sqrt(2 * math.log(1 / each_delta)) / (n * each)
    true_mean = 2 * half * math.sqrt(d) / (0.55 * n)
    width = "the width is 2b, not b"
    entries = (
        Entry("size", Laplace(0.0, 1.0), first, note="no noise"),
        Entry("epoch_norm", Laplace(2 * square / (n * one), true / n), first, note=width),
        Entry("norm", Laplace(2 * square / (n * each), true / n), both, note=width),
        Entry("second_moment", Gaussian(matrix_std, true / n), both, note=width),
        Entry("score", Laplace(2 * square / (n * each), true / n), both, note=width),
        Entry("centre", Gaussian(step_std, true_mean), both, note=width),
        Entry("score_again", Laplace(square / (n * each), true / n), both, note=width),
        Entry("histogram", Laplace(2 / (n * each), 1 / n), both, 2, note="of the tail's scores only"),
        Entry("mean", Gaussian(mean_std, true_mean), note=width),
    )
    return NoisePlan(entries, _CAVEATS, private=False)


def least_epsilon_of_released_range(*, top_share, num_records, dimension, delta):
    """The ε from which a bin with this share of the records is above the script's cut-off, its noise apart: below it,
    x̄ is −2R + 0.1 on every coordinate.

    Side: of no guarantee: below this ε the query fails.
    Args: top_share — of the records, in the fullest bin.
    """
    d, share = dimension, top_share - 1 / num_records
    return 2 * math.log(d / (0.01 * delta)) * d / (0.01 * num_records * share)


def released_range(data, *, epsilon, delta, known_range, rng):
    """Its x̄: on each coordinate the sum of both ends of the fullest of 2R − 1 bins over ±(R + 1/2), after a cut-off."""
    n, d = data.shape
    edges = np.linspace(-known_range - 0.5, known_range + 0.5, 2 * int(known_range))
    number = len(edges) - 1
    scale, cutoff = 2 * d / (n * epsilon), 2 * math.log(d / delta) * d / (epsilon * n) + 1 / n
    centre = np.zeros(d)
    for j, (bins, found) in enumerate(column_counts(data, width=edges[1] - edges[0], origin=edges[0])):
        inside = (bins >= 0) & (bins < number)
        share = np.bincount(bins[inside], weights=found[inside], minlength=number) / n
        share = share + np.where(share != 0, rng.laplace(0.0, scale, share.size), 0.0)
        best = int(np.argmax(np.where(share < cutoff, 0.0, share)))
        centre[j] = edges[best] + edges[best + 1]
    return centre


def released_box(num_records, dimension):
    """Its b = 4√log(dn/0.9): clips to ±b, then takes b for the width."""
    return 4 * math.sqrt(math.log(dimension * num_records / _FAILURE))


def released_mean(data, *, epsilon, delta, rng, known_range=10.0):
    """Its "DP mean": no noise, and records outside the box are dropped. Not private."""
    checks.generator("rng", rng)
    data = np.asarray(data)
    n, d, _ = check_data(data, 0.0)
    centre = released_range(data, epsilon=epsilon, delta=delta, known_range=known_range, rng=rng)
    inside = (np.abs(data - centre) < released_box(n, d)).all(axis=1)
    if not inside.any():
        return refused("no record lies in the box")
    plan = NoisePlan((Entry("mean", Gaussian(0.0, 2 * released_box(n, d) * math.sqrt(d) / n)),), private=False)
    return Outcome(data[inside].mean(axis=0), "converged", "", noise=plan)


def released_prime(
    data, *, corruption_rate, epsilon, delta, rng, known_range=10.0, stop_constant=2.0, exponential="elementwise"
):
    r"""The script's PRIME. Not private: labelled so in the outcome's ``noise``.

    Paper: prime, Figures 1 and 2 (the numbers of its left panel are the script's, not the algorithm's).
    Args: exponential — ``elementwise``, or ``matrix`` to see what that one word changes: nothing is filtered any more;
        stop_constant — C.
    Returns: :class:`~privrob.robust.filtering.Outcome`; ``exhausted``, with the last set's mean, where the script fails
        on an unset variable.
    """
    checks.generator("rng", rng)
    data = np.asarray(data)
    n, d, rate = check_data(data, corruption_rate)
    checks.positive("epsilon", epsilon, finite=True)
    if n < 2:
        return refused(f"too few records: {n}")
    how = {"epsilon": 0.01 * epsilon, "delta": 0.01 * delta, "known_range": known_range, "rng": rng}
    half = released_box(n, d)
    region = Cube(released_range(data, **how), 2 * half)
    state = FilteredSet(Rows(data, region))
    plan, square, trace = released_plan(n, d, epsilon=epsilon, delta=delta), half**2 * d, []
    first, second = released_rounds(n, d)
    both = 4 * first * max(second, 1)
    for _ in range(first):
        norm = excess(state.second_moment) + rng.laplace(0.0, plan["epoch_norm"].laplace_scale)
        trace.append({"norm": norm, "size": state.size})
        if state.size < 0.55 * n:
            return refused("set too small", trace)
        if norm < stop_constant * stop_level(rate):
            estimate = region.centre + state.mean + rng.normal(0.0, plan["mean"].noise_std, d)
            return Outcome(estimate, "converged", "", tuple(trace), noise=plan)
        step, total = 1 / (10 * (0.01 / stop_constant + 1.01) * max(norm, 1e-300)), np.zeros((d, d))
        for _ in range(second):
            inner = excess(state.second_moment) + rng.laplace(0.0, plan["norm"].laplace_scale)
            if inner < 0.5 * norm:
                break
            matrix = state.second_moment
            noise = symmetric_noise(d, noise_std=plan["second_moment"].noise_std, rng=rng, layout="mirror")
            total += matrix + noise - np.eye(d)
            weights = mmw.weights(total, step=step, exponential=exponential)
            score = float((matrix * weights).sum() - np.trace(weights)) + rng.laplace(0.0, plan["score"].laplace_scale)
            if score <= inner / 5.5:
                continue
            point = state.mean + rng.normal(0.0, plan["centre"].noise_std, d)
            _filter(state, point, weights, rate, 0.99 * epsilon / both, 0.99 * delta / both, square, rng, trace)
    why = "the script fails here, on an unset variable; this is the last set's mean"
    return Outcome(region.centre + state.mean, "exhausted", why, tuple(trace), noise=plan)


def _filter(state, point, weights, rate, epsilon, delta, square, rng, trace):
    """Its filter: a histogram of the tail's scores alone, and a threshold ρZ_i with a Z_i for each record."""
    n, tail_size = state.rows.n, 2 * int(rate * state.rows.n)
    weights = (weights + weights.T) / 2
    alive = np.flatnonzero(state.alive)
    values = np.linalg.eigvalsh(weights)
    scores = state.rows.scores(point, factor_of(weights))
    if values[0] < -1e-9 * values[-1]:  # exp of each entry may have negative eigenvalues
        lift = -values[0]
        scores = state.rows.scores(point, factor_of(weights + lift * np.eye(len(weights))))
        scores = scores - lift * state.rows.scores(point, np.eye(len(weights)))
    if not tail_size:
        return
    seen = scores[alive]
    if not len(alive):
        return
    tail_size = min(tail_size, len(alive))
    tail = alive[seen >= np.partition(seen, len(seen) - tail_size)[len(seen) - tail_size]]
    psi = float((scores[tail] - 1).sum()) / n + rng.laplace(0.0, square / (n * epsilon))
    edges = np.geomspace(0.25, square, num=2 + int(math.log(square)))
    share = np.histogram(scores[tail], bins=edges)[0] / n
    share = share + np.where(share != 0, rng.laplace(0.0, 2 / (n * epsilon), share.size), 0.0)
    share[share < 2 * math.log(1 / delta) / (epsilon * n) + 1 / n] = 0.0
    good = [k for k in range(len(edges) - 1) if float(((edges[k + 1 :] - edges[k]) * share[k:]).sum()) >= 0.3 * psi]
    if not good:
        return
    gone = tail[scores[tail] >= rng.random(len(tail)) * edges[good[-1]]]
    trace[-1]["removed"] = trace[-1].get("removed", 0) + len(gone)
    state.drop(gone)
