r"""Heavy tails: records of bounded covariance, an adversary for them, and the quantities of the proof of PRIME-HT.

Tails, each with mean 0 and covariance I, coordinates independent: ``normal``; ``student`` (2.5 degrees of freedom, no
third moment); ``pareto`` (index 2.5, skewed: the mean is not where most records are); ``two_point`` (a rare value of
probability 1/100 nearly 10 standard deviations away).

Adversaries: ``root`` puts α of the records at v/√α, which moves the mean by √α and no second moment by more than 1;
``far`` at 10v/√α; ``cut`` takes the top α tail along v away and brings it back at −v/√α; ``nan`` is not finite.

``points`` are records (n, d); ``scores`` (n,); ``bad`` marks the adversary's, (n,).
"""

from __future__ import annotations

import math

import numpy as np

from privrob import checks
from privrob.mechanisms.ranges import PrivateRange
from privrob.robust.filtering import check_data, check_location, refused
from privrob.robust.noiseplan import gdp_budget
from privrob.robust.private_means import mean_in_range
from privrob.robust.rows import Ball

TAILS = ("normal", "student", "pareto", "two_point")
ADVERSARIES = ("none", "root", "far", "cut", "nan")
_INDEX, _RARE = 2.5, 0.01


def clean(tail, num_records, dimension, *, rng):
    """Records (n, d) of mean 0 and covariance I.

    Paper: prime, Assumption 2.
    """
    size = (checks.integer("num_records", num_records, low=0), checks.integer("dimension", dimension, low=1))
    if checks.choice("tail", tail, TAILS) == "normal":
        return rng.standard_normal(size)
    if tail == "student":
        return rng.standard_t(_INDEX, size) / math.sqrt(_INDEX / (_INDEX - 2))
    if tail == "pareto":
        std = math.sqrt(_INDEX / ((_INDEX - 1) ** 2 * (_INDEX - 2)))
        return (1 + rng.pareto(_INDEX, size) - _INDEX / (_INDEX - 1)) / std
    rare = rng.random(size) < _RARE
    return np.where(rare, math.sqrt((1 - _RARE) / _RARE), -math.sqrt(_RARE / (1 - _RARE)))


def corrupted(tail, num_records, dimension, *, corruption_rate, adversary, rng, mean=0.0):
    """Records (n, d) about ``mean`` and which of them are the adversary's (n,), ⌊αn⌋ of them, along (+1, −1, …)/√d.

    Paper: prime, Assumption 2.
    """
    rows = clean(tail, num_records, dimension, rng=rng)
    n, d = rows.shape
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5)
    kind = checks.choice("adversary", adversary, ADVERSARIES)
    m = 0 if kind == "none" else int(rate * n + 1e-9)
    bad = np.zeros(n, dtype=bool)
    if m:
        v = (-1.0) ** np.arange(d) / math.sqrt(d)
        if kind == "cut":
            bad[np.argpartition(rows @ v, n - m)[n - m :]] = True
        else:
            bad[:m] = True
        reach = {"root": 1.0, "far": 10.0, "cut": -1.0, "nan": math.nan}[kind]
        rows[bad] = reach * v / math.sqrt(rate)
    return rows + np.asarray(mean, dtype=np.float64), bad


def truncated_mean(data, *, corruption_rate, epsilon, delta, rng, range_share=0.15, location=None, noise_records=None):
    """PRIME-HT without its filter: clip to the ball of radius √d(4 + 1/√α), and the mean with Normal noise.

    Paper: prime, Algorithm 3 (its first two lines).
    Args: location — x̄ if public;  noise_records — as of :func:`privrob.robust.private_means.dp_mean`.
    """
    checks.generator("rng", rng)
    n, d, rate = check_data(data, corruption_rate)
    if n < 1:
        return refused("no records")
    real, n = n, n if noise_records is None else checks.integer("noise_records", noise_records, low=1)
    mu, lost = gdp_budget(epsilon, delta=delta)
    checks.real("range_share", range_share, low=0.0, high=1.0, open_low=True, open_high=True)
    location = None if location is None else check_location(location, d)
    where = PrivateRange.gaussian(mu * math.sqrt(range_share), lost_prob=lost, dimension=d, spread=2.0)
    radius = math.sqrt(d) * (4 + 1 / math.sqrt(max(rate, 1 / n)))
    return mean_in_range(
        data,
        region=lambda centre: Ball(centre, radius),
        where=where,
        noise_std=2 * radius / n / (mu * math.sqrt(1 - range_share)),
        num_records=n,
        private=n <= real,
        rng=rng,
        location=location,
    )


# ------------------------------------------------------------------------------------------- quantities of Appendix K.2


def goodness_of(points, *, mean, corruption_rate):
    """(‖μ(S) − μ‖/√α, ‖(1/#S) Σ (x − μ(S))(x − μ(S))ᵀ‖): S is α-good where both are O(1).

    Paper: prime, Definition K.9.
    """
    points = checks.array("points", points, ndim=2)
    middle = points.mean(axis=0)
    covariance = (points - middle).T @ (points - middle) / len(points)
    shift = np.linalg.norm(middle - np.asarray(mean)) / math.sqrt(corruption_rate)
    return float(shift), float(np.linalg.eigvalsh(covariance)[-1])


def good_part(points, *, mean, corruption_rate):
    """All records but the ⌊αn⌋ farthest from μ.

    Paper: prime, Lemma K.10 (says that a good part exists; this is one).
    """
    points = checks.array("points", points, ndim=2)
    out = math.floor(corruption_rate * len(points) * (1 + 1e-12))
    far = np.linalg.norm(points - np.asarray(mean), axis=1)
    return points[np.argsort(far, kind="stable")[: len(points) - out]]


def mean_bound(corruption_rate, norm, *, form="sound"):
    r"""‖μ(T) − μ‖ is at most (√(α‖M(T)‖) + 2√α)/(1 − α) for T ⊂ S that keeps (1 − α)n records of an α-good S_good.

    *Proof.* With g kept clean records and b ≤ αn bad ones, (b/n)‖μ_b − μ(T)‖² ≤ ‖M(T)‖ along each direction, so
    g‖μ_g − μ(T)‖ = b‖μ_b − μ(T)‖ ≤ n√(α‖M(T)‖). A share a ≤ α of S_good is lost; its mean is within 1/√a of
    μ(S_good), whose own is within √α of μ: losing it moves the mean by √a/(1 − a) ≤ √α/(1 − α). ∎

    Paper: prime, Lemma K.11.
    Printed: (2√(α‖M(T)‖) + 3√α)/(1 − α), up to a constant.   Used: the above, below it.
    Args: norm — ‖M(T)‖, M normalised by n.
    """
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=1.0, open_high=True)
    checks.choice("form", form, ["sound", "as_printed"])
    first, second = (2, 3) if form == "as_printed" else (1, 2)
    return (first * math.sqrt(rate * norm) + second * math.sqrt(rate)) / (1 - rate)


def removal_probs(scores, threshold):
    """P(removed) of each record: τ > ρZ with Z ~ U[0, 1], so min(1, τ/ρ).

    Paper: prime, Lemmas K.3, K.5 and K.7 (Equation 21); K.8 caps scores instead, min(τ, C).
    Args: threshold — ρ, above 0.
    """
    return np.minimum(1.0, checks.array("scores", scores, ndim=1) / checks.positive("threshold", threshold))


def shares_of_bins(scores, *, num_bins, num_records=None):
    """h_j without noise: the share of records with a score in [2^(j−3), 2^(j−2)); above the last bin counts in it.

    Paper: prime, Algorithm 16.
    Args: num_bins — K;  num_records — what counts are divided by, None: the number of scores.
    """
    scores = checks.array("scores", scores, ndim=1)
    _, exponent = np.frexp(scores[scores >= 0.25])
    found = np.bincount(np.minimum(exponent + 2, num_bins), minlength=num_bins + 1)[1 : num_bins + 1]
    return found / (len(scores) if num_records is None else num_records)


def clean_share(scores, bad):
    """The clean records' share of the total score.

    Paper: prime, Lemma K.4 (Equation 20 asks for 1/1000).
    """
    scores = checks.array("scores", scores, ndim=1)
    total = float(scores.sum())
    return float(scores[~np.asarray(bad)].sum()) / total if total else 0.0
