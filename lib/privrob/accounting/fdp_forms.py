r"""The closed forms of document ``fdp``, as printed and as they hold; every test compares them with enumeration.

A curve is a lower bound on the type-II error at each type-I error. :class:`privrob.accounting.tradeoff.Tradeoff` needs
none of these; they are here to be checked, and to be read beside the document. ``form`` is ``sound`` or ``as_printed``.

Throughout, ``clip`` is c (inputs lie in [−c, c]), ``scale_a`` and ``scale_b`` are A and B, ``success_prob`` is p of the
binomial noise and ``max_value`` is l, the largest integer it hides. Curves hold for any two inputs, one record
replaced.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, log_ndtr, ndtr

from privrob import checks
from privrob.accounting.logspace import log_binomial
from privrob.accounting.tradeoff import type1_errors

FORMS = ("sound", "as_printed")


def theorem_1(type1, p, q):
    r"""Trade-off function of two pmfs on one stretch of integers whose ratio Q/P is monotone where both are positive.

    .. math:: \beta^+(\alpha) = P(Y \ge k) + \tfrac{P(Y=k)}{P(X=k)} \big(P(X < k) - \alpha\big),
        \qquad \alpha \in (P(X < k), P(X \le k)]

    for a falling ratio, P(Y ≥ lowest common k) at α = 0, and 0 beyond the last common k; mirrored for a rising one.

    Paper: fdp, Theorem 1 (7), (8); Remark 1 (any pair has such a ratio once its outputs are sorted by it).
    Printed: the interval of (8) ends in P(X ≤ k).   Used: P(X ≥ k), as in (29).
    Args: p, q — probabilities at the same consecutive integers, 0 allowed.
    """
    alpha, p, q = type1_errors(type1), checks.array("p", p, ndim=1), checks.array("q", q, ndim=1)
    both = np.flatnonzero((p > 0) & (q > 0))
    if both.size == 0:
        return np.zeros_like(alpha)[()]
    ratio, first, last = q[both] / p[both], both[0], both[-1]
    tails = [bool(q[:first].any() or p[last + 1 :].any()), bool(p[:first].any() or q[last + 1 :].any())]
    steps, slack = np.diff(ratio), 1e-12 * np.maximum(ratio[1:], ratio[:-1])
    fits = [bool((sign * steps <= slack).all()) and not tails[side] for side, sign in ((1, 1), (0, -1))]
    if not any(fits) or last - first >= both.size:
        raise ValueError("p and q must have a ratio that is monotone on one stretch; Tradeoff takes any two")
    falls = fits[0] and (not fits[1] or ratio[0] >= ratio[-1])
    return (_falling if falls else _rising)(alpha, p, q)


def _falling(alpha, p, q, at_zero=None):
    """β⁺ of Theorem 1. ``at_zero`` — its value at α = 0, for masses that are positive and too small for float64."""
    p, q = np.asarray(p, dtype=np.longdouble), np.asarray(q, dtype=np.longdouble)
    both = np.flatnonzero((p > 0) & (q > 0))
    if both.size == 0:  # what both can give is below 1e-308
        return np.where(alpha > 0, 0.0, at_zero or 0.0)[()]
    at_least_y = np.cumsum(q[::-1])[::-1]
    at_most_x = np.cumsum(p)
    first, last = both[0], both[-1]
    k = np.clip(np.searchsorted(at_most_x, alpha, side="left"), first, last)
    value = at_least_y[k] + q[k] / p[k] * (at_most_x[k] - p[k] - alpha)
    value = np.where(alpha > at_most_x[last], 0.0, np.maximum(value, 0.0)).astype(np.float64)
    return np.where((alpha > 0) | (at_zero is None), value, at_zero or 0.0)[()]


def _rising(alpha, p, q, at_zero=None):
    """β⁻ of Theorem 1."""
    return _falling(alpha, p[::-1], q[::-1], at_zero)


def equation_8_values(alpha, p, q):
    """Values of all pieces of Equation 8 whose interval holds α, with the interval as printed: (P(X > k), P(X ≤ k)].

    Paper: fdp, Theorem 1 (8).
    Printed: these, of which there may be none or several, some negative.   Used: :func:`theorem_1`.
    Args: p, q — as of :func:`theorem_1`, with a ratio that rises;  alpha — one number.
    """
    p, q = checks.array("p", p, ndim=1), checks.array("q", q, ndim=1)
    at_most = np.cumsum(p)
    beyond = np.append(np.cumsum(p[::-1])[::-1][1:], 0.0)
    ks = np.flatnonzero((p > 0) & (q > 0) & (beyond < alpha) & (alpha <= at_most))
    return [float(q[: k + 1].sum() + q[k] / p[k] * (beyond[k] - alpha)) for k in ks]


def theorem_2(type1, *, num_trials, success_prob, max_value):
    r"""Binomial noise on an integer in 0 … l: the infimum over inputs, at :math:`|x - x'| = l`.

    .. math:: \beta^+_{\inf}(\alpha) = P(Z \ge k + l) + \tfrac{P(Z = k+l)}{P(Z=k)} \big(P(Z < k) - \alpha\big), \quad
        \alpha \in [P(Z < k), P(Z \le k)],\ k \le M - l

    and β⁻ mirrored; the smaller of both.

    Paper: fdp, Theorem 2 (9)–(11); Remark 4; Figure 2.
    Printed: f is a trade-off function; p = 1/2 maximises both β; some (ε, δ) exist as long as M > l.   Used: the
    pointwise bound (its hull is :func:`~privrob.accounting.tradeoff_least.minimum`); p = 1/2 makes both equal and
    maximises neither; M = l works too.
    Returns: 0 everywhere for l > M.
    """
    alpha = type1_errors(type1)
    trials, prob = checks.integer("num_trials", num_trials, low=1), checks.probability("success_prob", success_prob)
    shift = checks.integer("max_value", max_value, low=0, high=2**28, hint="each value takes memory")
    masses, nothing = np.exp(log_binomial(trials, prob)), np.zeros(shift)
    if shift > trials or (shift and prob in (0.0, 1.0)):
        return np.zeros_like(alpha)[()]
    low, high = np.concatenate([masses, nothing]), np.concatenate([nothing, masses])
    free = masses[shift:].sum(), masses[: trials - shift + 1].sum()  # P(Z ≥ l), P(Z ≤ M − l)
    return np.minimum(_falling(alpha, high, low, free[0]), _rising(alpha, low, high, free[1]))


def theorem_3(type1, *, num_trials, p_min, p_max):
    """The binomial mechanism Binomial(M, p(x)), p in [p_min, p_max]: the infimum, at the two ends, in either order.

    Paper: fdp, Theorem 3 (12)–(14). Its two branches have different null hypotheses: p_max in (13), p_min in (14).
    """
    alpha, (low, high) = type1_errors(type1), _ends(p_min, p_max)
    trials = checks.integer("num_trials", num_trials, low=1)
    if high == low:
        return (1 - alpha)[()]
    most, least = (np.exp(log_binomial(trials, p)) for p in (high, low))
    if low == 0 and high == 1:
        return np.zeros_like(alpha)[()]
    free = 1.0 if high < 1 else least[-1], 1.0 if low > 0 else most[0]
    return np.minimum(_falling(alpha, most, least, free[0]), _rising(alpha, least, most, free[1]))


def theorem_4(type1, *, zero_prob, p_min, p_max):
    r"""A ternary compressor with a fixed probability of 0 and those of ±1 in [p_min, p_max].

    Paper: fdp, Theorem 4 (20), where :math:`p_{\max} + p_{\min} = 1 - p_0`. If one of the two probabilities of ±1 does
    not fill the interval, this is a lower bound only.
    Args: zero_prob — p₀ = 1 − p_min − p_max.
    """
    alpha, (low, high) = type1_errors(type1), _ends(p_min, p_max)
    if abs(low + high + checks.probability("zero_prob", zero_prob) - 1) > 1e-12:
        raise ValueError(f"zero_prob must be 1 − p_min − p_max, got {zero_prob!r}, {p_min!r}, {p_max!r}")
    with np.errstate(divide="ignore", invalid="ignore"):
        steep = 1 - np.where(alpha > 0, high / np.float64(low) * alpha, 0.0)
    return np.where(
        alpha <= low, steep if low else zero_prob, np.where(alpha <= 1 - high, zero_prob + 2 * low - alpha, 0.0)
    )[()] + np.where(alpha > 1 - high, low / high * (1 - alpha) if high else 0.0, 0.0)


def theorem_9(type1, *, p_min, p_max, num_trials=1):
    r"""Poisson binomial mechanism, one user's :math:`p_i` in [p_min, p_max]: a pure-DP bound, whoever the others are.

    Paper: fdp, Theorem 9 (111) with M = 1; for more, each ratio to the power M.
    Printed: (ε, δ)-DP.   Used: it is ε-DP, and at M = 1 the same as Theorem 3: post-processing alone gives it, and
    aggregation buys nothing in this bound. Tight for one user.
    """
    alpha, (low, high) = type1_errors(type1), _ends(p_min, p_max)
    if low == 0 or high == 1:
        raise ValueError(f"p_min and p_max must lie inside (0, 1), got p_min={p_min!r}, p_max={p_max!r}")
    trials = checks.integer("num_trials", num_trials, low=1)
    failures = trials * (math.log1p(-low) - math.log1p(-high))
    successes = trials * (math.log(high) - math.log(low))
    plus = np.maximum(_from_one(alpha, failures), (1 - alpha) * math.exp(-successes))
    minus = np.maximum(_from_one(alpha, successes), (1 - alpha) * math.exp(-failures))
    return np.minimum(plus, minus)[()]


def _ends(p_min, p_max):
    low = checks.probability("p_min", p_min)
    return low, checks.real("p_max", p_max, low=low, high=1.0)


def _from_one(alpha, log_ratio):
    """1 − rα, at least 0; r may be beyond float64."""
    with np.errstate(divide="ignore"):
        return -np.expm1(np.minimum(log_ratio + np.log(alpha), 0.0))


def _two_points(alpha, log_ratio, knee, *, negative=False):
    """1 − rα up to the knee, (1 − α)/r from there; as printed with a knee where the first is negative."""
    first = _from_one(alpha, log_ratio)
    if negative:
        with np.errstate(divide="ignore", over="ignore"):
            first = 1 - np.exp(log_ratio + np.log(alpha))
    return np.where(alpha <= knee, first, (1 - alpha) * math.exp(-log_ratio))[()]


def sto_sign(type1, *, clip, scale_a, form="sound"):
    """The two-level stochastic sign: :math:`P(+1) = (A + x)/2A`.

    Paper: fdp, Example 1 (16).
    Printed: knee at (A + c)/2A, where the curve is negative (−1/6 at α = 1/2 for A = 0.25, c = 0.1).
    Used: (A − c)/2A.
    """
    alpha, c, a = type1_errors(type1), *_clip_below(clip, "scale_a", scale_a)
    sign = 1 if checks.choice("form", form, FORMS) == "as_printed" else -1
    return _two_points(alpha, 2 * math.atanh(c / a), 0.5 + sign * c / a / 2, negative=sign > 0)


def cldp(type1, *, epsilon, form="sound"):
    """CLDP∞, randomised response on a stochastic sign.

    Paper: fdp, Example 2 (18).
    Printed: knee at (A + c)/2A = e^ε/(1 + e^ε).   Used: 1/(1 + e^ε).
    """
    alpha, epsilon = type1_errors(type1), checks.positive("epsilon", epsilon, finite=True)
    printed = checks.choice("form", form, FORMS) == "as_printed"
    return _two_points(alpha, epsilon, float(expit(epsilon if printed else -epsilon)), negative=printed)


def noisy_sign(type1, *, noise_ratio, clip=1.0, form="sound"):
    """The sign of x plus Gaussian noise of standard deviation 2cσ.

    Paper: fdp, Section 4.5 (25), Fig. 4.
    Printed: p_max = Φ(c/σ), below G_μ at μ = 1/σ where Fig. 4 says it is above.   Used: Φ(c/2cσ) = Φ(1/2σ).
    Args: noise_ratio — σ: Gaussian standard deviation / 2c;  clip — used by the printed form only.
    """
    alpha, sigma = type1_errors(type1), checks.positive("noise_ratio", noise_ratio, finite=True)
    printed = checks.choice("form", form, FORMS) == "as_printed"
    reach = checks.positive("clip", clip, finite=True) / sigma if printed else 1 / (2 * sigma)
    if math.isinf(reach):
        raise ValueError(f"noise_ratio must not be denormal, got noise_ratio={noise_ratio!r}")
    return _two_points(alpha, float(log_ndtr(reach) - log_ndtr(-reach)), float(ndtr(-reach)))


def ternary(type1, *, clip, scale_a, scale_b):
    """Sto-sign with sparsification: P(±1) = (A ± x)/2B, P(0) = 1 − A/B.

    Paper: fdp, Example 3 (22).
    Printed: A > B > c, with which P(0) < 0.   Used: B ≥ A > c. A = B is sto-sign.
    """
    alpha, c, a = type1_errors(type1), *_clip_below(clip, "scale_a", scale_a)
    b = checks.real("scale_b", scale_b, low=a)
    ratio = (a + c) / (a - c)
    middle = np.where(alpha <= 1 - (a + c) / (2 * b), 1 - c / b - alpha, (1 - alpha) / ratio)
    return np.where(alpha <= (a - c) / (2 * b), 1 - ratio * alpha, middle)[()]


def ternarize(type1, *, clip, scale_b):
    """The unscaled ternary compressor of TernGrad: sign(x) with probability |x|/B.

    Paper: fdp, Example 4 (24).
    Printed: as Theorem 4 with A = |x|, which its hypotheses rule out.   Used: (24) itself holds: the infimum over
    inputs is at x = −x′ = c.
    """
    alpha, c, b = type1_errors(type1), *_clip_below(clip, "scale_b", scale_b)
    return np.maximum(0.0, 1 - c / b - alpha)[()]


def _clip_below(clip, name, scale):
    """c and a scale above it."""
    clip = checks.positive("clip", clip, finite=True)
    return clip, checks.real(name, scale, low=clip, open_low=True, open_high=True, hint=f"it must exceed clip={clip:g}")


def cpsgd_epsilon(delta, *, num_trials, success_prob, l1_sensitivity, l2_sensitivity, linf_sensitivity, scale=1.0):
    """ε of binomial noise by the theorem of Agarwal et al. (2018) that the document compares with; infinite where its
    condition on the variance fails.

    Paper: fdp, Remark 4.
    Printed: it gives (3.18, 0.044) at M = 500, p = 1/2.   Used: 3.80 at l = 8; no l from 1 to 32 gives 3.18.
    Side: what that theorem claims, an upper bound where it holds.
    Args: l1_sensitivity, l2_sensitivity, linf_sensitivity — of the integers that the noise is added to;  scale — s, of
        the noise.
    """
    delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
    trials, p = checks.integer("num_trials", num_trials, low=1), checks.probability("success_prob", success_prob)
    variance, q, s = trials * p * (1 - p), 1 - p, checks.positive("scale", scale)
    if variance < max(23 * math.log(10 / delta), 2 * linf_sensitivity / s):
        return math.inf
    b = 2 / 3 * (p**2 + q**2) + 1 - 2 * p
    c = math.sqrt(2) * (3 * p**3 + 3 * q**3 + 2 * p**2 + 2 * q**2)
    d = 4 / 3 * (p**2 + q**2)
    first = l2_sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / (s * math.sqrt(variance))
    second = (l2_sensitivity * c * math.sqrt(math.log(10 / delta)) + l1_sensitivity * b) / (
        s * variance * (1 - delta / 10)
    )
    third = 2 / 3 * linf_sensitivity * math.log(1.25 / delta)
    third += linf_sensitivity * d * math.log(20 / delta) * math.log(10 / delta)
    return first + second + third / (s * variance)
