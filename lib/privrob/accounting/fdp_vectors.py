r"""From one number to a vector: Gaussian DP of d coordinates that are compressed independently.

The document sums pure ε over coordinates (Theorem 7), which costs dM where :math:`\sqrt{dM}` is enough, and takes every
coordinate at ±c, which an l2 clip rules out. Everything here but Lemma 2 is a guarantee: μ rounded up.

A vote with success probability g(x) at x and g(x') at x' is :math:`|\Phi^{-1}g(x) - \Phi^{-1}g(x')|`-GDP, exactly; GDP
parameters add up as squares.

Throughout, ``clip`` is c, and ``scale_a`` and ``scale_b`` are A and B of the compressor. One record replaced.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erf, erfinv, ndtr, ndtri_exp

from privrob import checks

_UP = 1 + 1e-12


def lemma_4(epsilon):
    r"""μ of any ε-DP mechanism, the smallest that serves all of them.

    .. math:: \mu = -2 \Phi^{-1}\big(1/(1 + e^\varepsilon)\big)

    Paper: fdp, Lemma 4 (of Lee et al. 2022; Liu et al. 2022).
    Args: epsilon — at least 0, any shape, any size: the tail is a logarithm, so that ε = 10⁶ is no overflow.
    """
    epsilon = checks.array("epsilon", epsilon)
    if not (epsilon >= 0).all():
        raise ValueError(f"epsilon must be at least 0, got epsilon={epsilon}")
    small = 2 * math.sqrt(2) * erfinv(np.tanh(np.minimum(epsilon, 1.0) / 2))  # keeps the digits of a small ε
    mu = np.where(epsilon < 1, small, -2 * ndtri_exp(-np.logaddexp(0.0, epsilon)))
    return np.where(epsilon > 0, np.maximum(mu * _UP, np.finfo(float).tiny), 0.0)[()]


def theorem_7(*, clip, scale_b, num_trials, dimension):
    r"""μ of the binomial mechanism on each of d coordinates in [−c, c], by way of pure ε.

    .. math:: \mu = -2\Phi^{-1}\Big(\frac{1}{1 + ((B+c)/(B-c))^{dM}}\Big)

    Paper: fdp, Theorem 7. Valid, and loose: μ grows as √(dM) only once ε is large, then as √(2 dM ε₁); :func:`linf_mu`
    is smaller for all d M > 1, under the same hypothesis.
    Side: upper.
    """
    clip, scale, trials, dimension = _settings(clip, scale_b, num_trials, dimension)
    return float(lemma_4(dimension * trials * 2 * math.atanh(clip / scale)))


def linf_mu(*, clip, scale_b, num_trials, dimension):
    r"""μ of the binomial mechanism on each of d coordinates in [−c, c], as dM votes.

    .. math:: \mu = 2 \sqrt{dM}\, \Phi^{-1}\big(\tfrac{B+c}{2B}\big)

    Paper: fdp, Theorem 7 and Remark 13 (the loss there is the sum of pure ε, not the step to GDP).
    Side: upper.
    """
    clip, scale, trials, dimension = _settings(clip, scale_b, num_trials, dimension)
    return math.sqrt(dimension * trials) * 2 * _reach(clip / scale) * _UP


def l2_mu(*, clip, scale_b, num_trials, linf_clip=None):
    r"""μ of the binomial mechanism on each coordinate of a vector with :math:`\|x\|_2 \le c`: any d.

    .. math:: \mu = 2 \sqrt{M}\, \Phi^{-1}\big(\tfrac{B+c}{2B}\big)
        \quad\text{or}\quad 2 \sqrt{M}\, \tfrac{c}{\ell}\, \Phi^{-1}\big(\tfrac{B+\ell}{2B}\big)
        \text{ where all } |x_j| \le \ell \le c

    With :math:`h(x) = \Phi^{-1}((1 + x/B)/2)`, odd and convex on [0, c], |h(x)| ≤ h(c)|x|/c. So
    :math:`\sum (h(x_j) - h(x'_j))^2 \le 2 \sum h(x_j)^2 + h(x'_j)^2 \le 4 h(c)^2`, which x = −x' = (c, 0, …) attains.

    Paper: fdp, Remark 12 and Algorithm 5 (whose clip this is). Kashin's representation adds a bound ℓ on coordinates:
    it helps where B is close to c, and lets B be below c.
    Side: upper, attained where ℓ = c.
    Args: linf_clip — ℓ, if coordinates are clipped too; c if left out.
    """
    clip = checks.positive("clip", clip, finite=True)
    largest = clip if linf_clip is None else min(clip, checks.positive("linf_clip", linf_clip, finite=True))
    largest, scale, trials, _ = _settings(largest, scale_b, num_trials, 1)
    return math.sqrt(trials) * 2 * (clip / largest) * _reach(largest / scale) * _UP


def ternary_l2_mu(*, clip, scale_a, scale_b):
    r"""μ of ternary(A, B) on each coordinate of a vector with :math:`\|x\|_2 \le c`: any d.

    A coordinate's curve has two knots, so that it is GDP with the larger of g(x) − g(x') and g(−x') − g(−x),
    :math:`g(x) = \Phi^{-1}((A + x)/2B)`. As g is concave and then convex, its secants from 0 are steepest at an end,
    and with their slope s, :math:`\sum \mu_j^2 \le 2 s^2 \sum x_j^2 + x_j'^2 \le 4 s^2 c^2`.

    .. math:: \mu = 2 \max\{g(0) - g(-c),\ g(c) - g(0)\}

    Paper: fdp, Section 6.1 ("the ternary compressor can be obtained similarly").
    Side: upper.
    """
    clip = checks.positive("clip", clip, finite=True)
    a = checks.real("scale_a", scale_a, low=clip, open_low=True, open_high=True)
    b = checks.real("scale_b", scale_b, low=a, open_high=True)
    with np.errstate(all="ignore"):
        low, middle, high = ndtri_exp(np.log(np.array([a - clip, a, a + clip]) / (2 * b)))
        lost = 1e-15 * (1 + max(abs(low), abs(high)))  # digits of the difference where c is far below A
        mu = float(2 * (max(middle - low, high - middle) + lost)) * _UP
    return math.inf if math.isnan(mu) else mu  # A/2B is no double above 0


def lemma_2(gdp_mu, *, sampling_ratio):
    r"""Limit of T subsampled steps, each μ-GDP on its batch: an approximation, no guarantee.

    .. math:: \mu_T = \sqrt2\, s \sqrt{e^{\mu^2} \Phi(3\mu/2) + 3 \Phi(-\mu/2) - 2}

    Paper: fdp, Lemma 2 (27).
    Printed: an equality of Algorithm 5.   Used: labelled; it is the limit for fixed μ as b/|D| → 0, of records replaced
    one by one. With μ from Theorem 7 it overflows: that is infinity here.
    Args: gdp_mu — at least 0, any shape;  sampling_ratio — s = b √T / |D|.
    """
    mu = checks.array("gdp_mu", gdp_mu, finite=False)
    s = checks.nonnegative("sampling_ratio", sampling_ratio, finite=True)
    if not (mu >= 0).all():
        raise ValueError(f"gdp_mu must be at least 0, got gdp_mu={mu}")
    with np.errstate(over="ignore"):  # e^{μ²} − 1 apart, what is left are two small terms
        growth = np.expm1(mu**2) * ndtr(1.5 * mu)
    rest = 0.5 * erf(1.5 * mu / math.sqrt(2)) - 1.5 * erf(0.5 * mu / math.sqrt(2))
    return (math.sqrt(2) * s * np.sqrt(np.maximum(growth + rest, 0.0)))[()] if s else np.zeros_like(mu)[()]


def _reach(ratio):
    """Φ⁻¹((1 + r)/2), with the digits of a small r and of one near 1."""
    if ratio < 0.5:
        return math.sqrt(2) * float(erfinv(ratio))
    return -float(ndtri_exp(math.log1p(-ratio) - math.log(2)))


def _settings(clip, scale_b, num_trials, dimension):
    clip = checks.positive("clip", clip, finite=True)
    hint = f"it must exceed clip={clip:g}"
    scale = checks.real("scale_b", scale_b, low=clip, open_low=True, open_high=True, hint=hint)
    trials, dimension = checks.integer("num_trials", num_trials, low=1), checks.integer("dimension", dimension, low=1)
    return clip, scale, trials, dimension
