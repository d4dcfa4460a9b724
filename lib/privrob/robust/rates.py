r"""What the theorems promise, in numbers: resilience of distributions, depths of a Normal, records and errors.

Constants that a theorem leaves open are taken as 1, so that "times the rate" is a number to look at.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

from privrob import checks

THEOREMS = ("Theorem 7", "Theorem 8", "Theorem 9", "Theorem 12")


def _rate(value, high=0.5):
    return checks.real("corruption_rate", value, low=0.0, high=high, open_low=True, open_high=True)


# ----------------------------------------------------------------------------------------------------------- resilience


def normal_resilience(corruption_rate):
    r"""max ‖E[x | A] − μ‖ over events A of probability 1 − α, x Normal: φ(z_α)/(1 − α). Exact.

    Paper: prime, Lemma H.2.
    Printed: α√log(1/α), less than this at every α.   Used: :func:`sub_gaussian_resilience`.
    """
    rate = _rate(corruption_rate)
    return math.exp(-(float(ndtri(rate)) ** 2) / 2) / math.sqrt(2 * math.pi) / (1 - rate)


def sub_gaussian_resilience(corruption_rate, *, form="sound"):
    r"""The same for any 1-sub-Gaussian x, an upper bound: √2 α√log(1/α)/(1 − α).

    *Proof.* For U of probability α, λE[vᵀx | U] ≤ log E[e^{λvᵀx} | U] ≤ λ²/2 + log(1/α); take λ = √(2 log(1/α)).
    Leaving U out moves the mean by α/(1 − α) times that. ∎

    Paper: prime, Lemma H.2.
    Printed: α√log(1/α) (``form="as_printed"``).   Used: the above, √2/(1 − α) times as much.
    """
    rate = _rate(corruption_rate, 1.0)
    checks.choice("form", form, ["sound", "as_printed"])
    printed = rate * math.sqrt(math.log(1 / rate))
    return printed if form == "as_printed" else math.sqrt(2) * printed / (1 - rate)


def bounded_covariance_resilience(corruption_rate):
    r"""The same for any x of covariance at most I: √(α/(1 − α)), attained by two points.

    *Proof.* With U of probability α, E[vᵀx | U]² α + E[vᵀx | Uᶜ]² (1 − α) ≤ 1 and the two add up to 0. ∎

    Paper: prime, Lemma H.3 (c_ζ√α: c_ζ covers this and the sample).
    """
    rate = _rate(corruption_rate, 1.0)
    return math.sqrt(rate / (1 - rate))


def goodness_upper(corruption_rate, *, covariance_norm=1.0, bad_share=None):
    r"""R(S) is at most √(αV/((1 − α)(1 − b))), where V bounds the covariance of the clean records about their mean and
    b of them are missing from S.

    *Proof.* S' ⊂ the clean records that are left, so its covariance is at most V/(1 − b); the T's are parts of 1 − α. ∎
    Resilience of the clean records by itself gives twice the resilience only (triangle inequality), and 7/4 of it is
    attained by 20 records (the tests have them).

    Paper: prime, Lemma H.4.
    Printed: c_ζ√(3α), "immediately" from (c_ζ√(3α), 3α)-resilience: short of the factor 2.   Used: the above, which is
        within c√(3α) for α < 0.29.
    Args: covariance_norm — V;  bad_share — b, 2α if None.
    """
    rate = _rate(corruption_rate)
    missing = checks.real("bad_share", 2 * rate if bad_share is None else bad_share, low=0.0, high=1.0, open_high=True)
    return math.sqrt(rate * checks.positive("covariance_norm", covariance_norm) / ((1 - rate) * (1 - missing)))


# ---------------------------------------------------------------------------------------------------------------- depth


def normal_depth(distance, *, corruption_rate=0.0):
    r"""(lowest, highest) Tukey depth of a point at this distance from the mean of N(μ, I), a fraction α moved at will.

    Φ(−t) − α and Φ(−t) + α: a half space through the point holds Φ(−t) of the records at least, and the adversary moves
    α of them.

    Paper: prime, Lemma J.2 (whose proof bounds both); Lemma J.1 compares a sample's depths with these at α = 0.
    """
    depth = ndtr(-np.asarray(checks.nonnegative("distance", distance) if np.ndim(distance) == 0 else distance))
    return np.maximum(depth - corruption_rate, 0.0)[()], np.minimum(depth + corruption_rate, 1.0)[()]


def distance_of_depth(depth, *, corruption_rate=0.0):
    r"""The distance from which on no point has more than this depth, whatever the adversary does: Φ⁻¹(1 − depth + α).

    Paper: prime, Lemma J.2, part 2; Corollary I.1 (the deepest point has at least 1/2 − α, so it is within
        Φ⁻¹(1/2 + 2α)).
    Printed: depth 1/2 − 5α from 10α on, where it can be 1/2 − 2.98α.   Used: 1/2 − 5α from 15.1α on (α < 0.01; with as
        much as α for sampling 17.6α); the proof's own 20α will do.
    """
    value = 1 - checks.probability("depth", depth) + corruption_rate
    return float(ndtri(min(value, 1.0)))


# -------------------------------------------------------------------------------------------------- records and errors


def error_rate(theorem, *, corruption_rate):
    """α√log(1/α) (Theorem 7), √α (8, 9) or α (12).

    Paper: prime, Theorems 7, 8, 9 and 12.
    Args: theorem — one of :data:`THEOREMS`.
    """
    rate = _rate(corruption_rate)
    checks.choice("theorem", theorem, THEOREMS)
    if theorem == "Theorem 7":
        return rate * math.sqrt(math.log(1 / rate))
    return rate if theorem == "Theorem 12" else math.sqrt(rate)


def stated_records(
    theorem, *, dimension, corruption_rate, epsilon, delta=1e-6, failure_prob=0.1, half_range=1.0, ranged=True
):
    r"""The number of records that a theorem asks for, every constant taken as 1.

    Paper: prime, Theorems 7 (with Lemma H.14), 8 (with Lemma H.8), 9 and 12.
    Args: half_range — R of Theorem 12;  ranged — with the last term, which is the range's: False where x̄ is public.
    """
    d, rate, zeta = dimension, _rate(corruption_rate), failure_prob
    eps = checks.positive("epsilon", epsilon)
    spread = d + math.log(1 / zeta)
    checks.choice("theorem", theorem, THEOREMS)
    if theorem == "Theorem 12":
        return spread / rate**2 + d * math.log(d * half_range / (zeta * rate)) / (rate * eps)
    if theorem == "Theorem 9":
        return d**1.5 * math.log(1 / delta) / (eps * rate)
    root = math.sqrt(d)
    if theorem == "Theorem 8":
        n = d / (zeta * rate)
        n += (d * math.log(d / rate**1.5) + math.log(1 / zeta) + root * math.log(1 / delta)) / (rate * eps)
        return n + (root * math.log(1 / delta) ** 1.5 * math.log(d / delta) / eps if ranged else 0.0)
    n = spread / (rate**2 * math.log(1 / rate))
    for _ in range(3):  # n stands under a logarithm on the right
        inner = d * math.log(d * math.sqrt(math.log(d * n / zeta)) / rate) + math.log(1 / zeta)
        rest = (inner + root * math.log(1 / delta)) / (rate * eps)
        total = spread / (rate**2 * math.log(1 / rate)) + rest
        if ranged:
            total += math.sqrt(d * math.log(1 / delta)) * math.log(d / (zeta * delta)) / eps
        n = total
    return n
