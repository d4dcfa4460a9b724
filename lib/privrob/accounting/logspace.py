"""Small numbers kept as logarithms, and differences that would cancel written so that they don't.

Everything takes floats or arrays and works entry by entry in float64.

Source: ours.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx, log_ndtr

from privrob import checks

_LOG_2 = np.log(2.0)
_SQRT_2 = np.sqrt(2.0)
_SQRT_HALF_PI = np.sqrt(np.pi / 2)

LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)


def log1mexp(log_x):
    r"""Logarithm of the complement, for a logarithm that is at most 0.

    .. math:: \log(1 - e^{x})

    Args: log_x — at most 0, any shape.
    """
    log_x = np.asarray(log_x, dtype=np.float64)
    with np.errstate(divide="ignore"):  # log of 0 is -inf, which is the answer at 0
        near_one = np.log(-np.expm1(np.maximum(log_x, -_LOG_2)))
        small = np.log1p(-np.exp(np.minimum(log_x, -_LOG_2)))
    return np.where(log_x > -_LOG_2, near_one, small)[()]


def log_diff_exp(log_a, log_b):
    r"""Logarithm of a difference, for log_a at least log_b; equal arguments give -inf, also where both are infinite.

    .. math:: \log(e^{a} - e^{b})

    Args: log_a, log_b — any shapes that broadcast.
    """
    log_a, log_b = np.broadcast_arrays(np.asarray(log_a, dtype=np.float64), np.asarray(log_b, dtype=np.float64))
    same = log_a == log_b
    gap = np.where(same, -1.0, log_b - np.where(same, 0.0, log_a))
    return np.where(same, -np.inf, log_a + log1mexp(gap))[()]


def log_cumsum(log_x):
    """Logarithms of the running sums of ``exp(log_x)``: as exact as a plain sum, and without underflow.

    Args: log_x — shape (n,).
    Returns: shape (n,).
    """
    log_x = np.asarray(log_x, dtype=np.float64)
    plain = np.cumsum(np.exp(log_x), dtype=np.longdouble).astype(np.float64)
    shown = plain > 1e-270  # what is too small for exp() takes no part above it
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(shown, np.log(plain), np.logaddexp.accumulate(log_x) if not shown.all() else -np.inf)


def log_binomial(trials, success_prob):
    r"""Log masses of a binomial distribution at 0 … n, also where they are far below 1e-308; p may be 0 or 1.

    Ratios of neighbours, summed outwards from the mode: the masses that matter keep all their digits, whatever n.

    .. math:: \log\binom{n}{k} p^k (1-p)^{n-k}

    Args: trials — n;  success_prob — p.
    Returns: shape (n + 1,).
    """
    trials = checks.integer("trials", trials, high=2**28, hint="each outcome takes memory")
    if success_prob in (0.0, 1.0):
        logs = np.full(trials + 1, -np.inf)
        logs[trials if success_prob else 0] = 0.0
        return logs
    prob, k = np.longdouble(success_prob), np.arange(1, trials + 1, dtype=np.longdouble)
    steps = np.log((trials + 1 - k) / k) + (np.log(prob) - np.log1p(-prob))
    mode = min(int((trials + 1) * success_prob), trials)
    below = -np.cumsum(steps[:mode][::-1])[::-1]
    logs = np.concatenate([below, np.zeros(1, np.longdouble), np.cumsum(steps[mode:])])
    return (logs - np.log(np.exp(logs).sum())).astype(np.float64)


def expm1_minus(x):
    r"""What the exponential has beyond its tangent at 0.

    .. math:: e^{x} - 1 - x

    Args: x — any shape.
    """
    x = np.asarray(x, dtype=np.float64)
    tiny = np.clip(x, -0.5, 0.5)
    series = np.zeros_like(tiny)
    for k in range(16, 1, -1):  # Horner; the first term left out is below 0.5^15 · 2/17! of the value
        series = (series + 1.0) * tiny / k
    with np.errstate(over="ignore"):
        direct = np.expm1(x) - x
    return np.where(np.abs(x) <= 0.5, series * tiny, direct)[()]


def log_normal_interval(lower, upper):
    r"""Logarithm of a standard Normal probability, taken in the tail where it is small.

    .. math:: \log(\Phi(u) - \Phi(l)), \qquad l \le u

    Args: lower, upper — l and u, any shapes that broadcast, infinity allowed.
    """
    lower, upper = np.broadcast_arrays(np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64))
    flip = lower > 0
    left, right = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    log_right = log_ndtr(right)
    return log_diff_exp(log_right, np.minimum(log_ndtr(left), log_right))  # neighbouring floats may be out of order


def log_sampled_ratio(loss, sample_rate):
    r"""Loss on a Poisson sample, from the loss x without sampling; keeps its digits near 0 and where it is huge.

    .. math:: \log(1 - q + q e^{x})

    Args: loss — x, any shape;  sample_rate — q in (0, 1].
    """
    rise = np.maximum(loss, 0.0)
    over = np.logaddexp(np.log1p(-sample_rate) - rise, np.log(sample_rate) + (loss - rise))
    shift = sample_rate * np.expm1(np.minimum(loss, 600.0))
    return np.where((shift < -0.5) | (loss > 600.0), over + rise, np.log1p(np.maximum(shift, -0.5)))


def mills(x):
    r"""Mills' ratio of the standard Normal.

    .. math:: R(x) = \Phi(-x) / \varphi(x)

    Args: x — any shape.
    """
    return _SQRT_HALF_PI * erfcx(np.asarray(x, dtype=np.float64) / _SQRT_2)


def mills_slope(x):
    r"""How fast Mills' ratio falls, for x at least -1: positive, and about 1/x² for large x.

    .. math:: -R'(x) = 1 - x R(x)

    Args: x — at least −1, any shape.
    """
    x = np.asarray(x, dtype=np.float64)
    inverse_square = 1.0 / np.maximum(x, 30.0) ** 2
    series = np.zeros_like(x)
    for k in range(10, 0, -1):  # Horner: 1/x² − 3/x⁴ + 15/x⁶ − …; from x = 30 on, term 11 is below 1e-19 of the first
        series = inverse_square * (1.0 - (2 * k + 1) * series)
    return np.where(x < 30.0, 1.0 - np.minimum(x, 30.0) * mills(np.minimum(x, 30.0)), series)[()]


def log_expm1_minus(x):
    r"""Logarithm of what the exponential has beyond its tangent at 0, for any size of x; -inf at 0.

    .. math:: \log(e^{x} - 1 - x)

    Args: x — any shape.
    """
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(divide="ignore"):  # from 40 on, the tangent is below half a unit in the last place
        near = 2.0 * np.log(np.abs(x)) + np.log(_expm1_minus_over_square(np.clip(x, -1e300, 40.0)))
    return np.where(x > 40.0, x, near)[()]


def log_power_excess(log_ratio, excess_order):
    r"""Logarithm of what a likelihood ratio's power has beyond its tangent at 1, per excess order: no cancellation.

    The mean of this under Q, for L = P/Q, is :math:`(E_Q[L^a] - 1)/(a - 1)`: the Rényi moment, and the KL divergence
    at a = 1. No term of the second form is negative.

    .. math:: \frac{L^{a} - 1 - a (L - 1)}{a - 1}
        = L \ell^2 \big(s\,g(s\ell) + g(-\ell)\big), \quad g(x) = \frac{e^x - 1 - x}{x^2},\ \ell = \log L,\ s = a - 1

    Args: log_ratio — ℓ, -inf allowed;  excess_order — s, at least 0, broadcasts with log_ratio.
    """
    return np.maximum(log_ratio, -700.0) + log_power_excess_over_ratio(log_ratio, excess_order)


def log_power_excess_over_ratio(log_ratio, excess_order):
    """:func:`log_power_excess` without the factor L, for a mean under P; not for ℓ below -700.

    Args: log_ratio — ℓ = log L;  excess_order — s = order − 1; any shapes that broadcast.
    """
    s, ratio = np.asarray(excess_order, dtype=np.float64), np.maximum(log_ratio, -700.0)
    with np.errstate(divide="ignore", over="ignore"):
        power = s * ratio
        sums = s * _expm1_minus_over_square(np.minimum(power, 600.0)) + _expm1_minus_over_square(-ratio)
        return np.where(power > 600.0, power - np.log(s), 2.0 * np.log(np.abs(ratio)) + np.log(sums))[()]


def _expm1_minus_over_square(x):
    """(e^x − 1 − x)/x², for x at most 700."""
    tiny = np.clip(x, -0.1, 0.1)
    series = np.zeros_like(tiny)
    for k in range(11, 2, -1):  # Horner; the first term left out is below 0.1^10 · 2/12! of the value
        series = (series + 1.0) * (tiny / k)
    far = np.where(np.abs(x) <= 0.1, 1.0, x)
    return np.where(np.abs(x) <= 0.1, 0.5 + 0.5 * series, (np.expm1(far) - far) / far / far)
