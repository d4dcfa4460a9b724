r"""The Gaussian mechanism, exactly: Gaussian differential privacy with one parameter μ.

``gdp_mu`` = l2 sensitivity / noise standard deviation = 1 / noise multiplier. T compositions of mechanisms with
μ₁ … μ_T have :math:`\mu = \sqrt{\mu_1^2 + \dots + \mu_T^2}`. Both neighbours of a pair play the same role here, so
the numbers hold for any neighbouring relation that the sensitivity was taken over.

Source: Dong, Roth and Su 2019; Balle and Wang 2018 (δ at ε).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import elementwise
from scipy.special import log_ndtr, ndtr, ndtri

from privrob import checks
from privrob.accounting.logspace import LOG_SQRT_2PI, log1mexp, mills, mills_slope

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2

# Relative error allowed for in log δ when a root is moved to its safe side (the tests hold it below a tenth of this).
_SLACK = 1e-11


def _log_delta(epsilon, mu):
    """log δ(ε; μ) for arrays with ε in [0, inf) and μ in (0, inf)."""
    with np.errstate(over="ignore"):  # far out every square is infinite, and δ is 0 or 1
        return _log_delta_at(epsilon / mu - mu / 2, mu)


def _log_delta_at(t, mu):
    # δ = φ(t) [R(t) − R(t + μ)] with Mills' ratio R. Below t = −1 the two terms of the textbook form don't cancel …
    low = np.minimum(t, -1.0)
    log_second = -0.5 * low**2 - LOG_SQRT_2PI + np.log(mills(low + mu))
    log_first = log_ndtr(-low)
    far_left = log_first + log1mexp(np.minimum(log_second - log_first, -1e-300))
    # … above it the difference is taken directly for a wide step, and as an integral of −R' > 0 for a narrow one.
    high = np.maximum(t, -1.0)
    narrow = np.minimum(mu, 1.0)
    integral = narrow * np.sum(_WEIGHTS * mills_slope(high[..., None] + narrow[..., None] * _NODES), axis=-1)
    difference = np.where(mu < 1.0, integral, mills(high) - mills(high + mu))
    with np.errstate(divide="ignore"):
        right = -0.5 * high**2 - LOG_SQRT_2PI + np.log(np.maximum(difference, 0.0))
    return np.where(t < -1.0, far_left, right)


def log_delta_of(epsilon, *, gdp_mu):
    r"""Natural logarithm of the smallest δ at which the Gaussian mechanism is (ε, δ)-DP.

    .. math:: \delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^{\varepsilon}\,\Phi(-\mu/2 - \varepsilon/\mu)

    Paper: dplearn, Gaussian Mechanism (exact, where the slide has a sufficient condition; Balle and Wang 2018).
    Args: epsilon — at least 0, any shape;  gdp_mu — at least 0, infinity allowed, broadcasts with epsilon.
    Returns: log δ, relative error of δ below 1e-10 for μ in [1e-6, 1e3] down to δ = 1e-300 (and log δ far below).
    """
    epsilon, mu = np.broadcast_arrays(_nonnegative("epsilon", epsilon), _nonnegative("gdp_mu", gdp_mu))
    inside = (mu > 0) & np.isfinite(mu) & np.isfinite(epsilon)
    result = np.where(mu == np.inf, 0.0, -np.inf)  # no noise: δ = 1, whatever ε; no loss: δ = 0
    if inside.any():
        result[inside] = _log_delta(epsilon[inside], mu[inside])
    return np.minimum(result, 0.0)[()]


def delta_of(epsilon, *, gdp_mu):
    """Smallest δ at which the Gaussian mechanism is (ε, δ)-DP; see :func:`log_delta_of`. Rounds to 0 below 1e-308."""
    return np.exp(log_delta_of(epsilon, gdp_mu=gdp_mu))


def epsilon_of(delta, *, gdp_mu):
    """Smallest ε at which the Gaussian mechanism is (ε, δ)-DP, rounded to the safe (upper) side by about 1e-11.

    Paper: dplearn, An Approximate Notion of Differential Privacy.
    Args: delta — in [0, 1), any shape;  gdp_mu — at least 0, infinity allowed, broadcasts with delta.
    Returns: ε; exactly 0 where δ is at least the total variation distance, infinity where δ = 0 < μ or μ is infinite.
    """
    delta, mu = np.broadcast_arrays(_delta(delta), _nonnegative("gdp_mu", gdp_mu))
    shape, delta, mu = mu.shape, delta.ravel(), mu.ravel()
    result = np.zeros(mu.shape)
    result[(mu == np.inf) | ((delta == 0) & (mu > 0))] = np.inf
    open_ = np.isfinite(mu) & (mu > 0) & (delta > 0)
    open_[open_] = delta_of(0.0, gdp_mu=mu[open_]) > delta[open_]
    if open_.any():
        log_target, mu = np.log(delta[open_]) - _SLACK, mu[open_]
        with np.errstate(over="ignore"):
            # there δ is at most Φ(−t) ≤ exp(−t²/2) = target
            high = (mu * np.sqrt(-2 * log_target) + mu**2 / 2) * (1 + 1e-9)
        within, found = high < np.inf, high.copy()  # above the largest double: infinity
        found[within] = _root(
            lambda e, m, goal: goal - _log_delta(e, m),
            np.zeros(within.sum()),
            high[within],
            mu[within],
            log_target[within],
            safe=1,
        )
        result[open_] = found
    return result.reshape(shape)[()]


def tradeoff(type1, *, gdp_mu):
    r"""Smallest type-II error of any test at a type-I error, between two Normals μ apart.

    .. math:: G_\mu(\alpha) = \Phi(\Phi^{-1}(1 - \alpha) - \mu)

    Args: type1 — in [0, 1], any shape.
    Returns: of the same shape, exact.
    """
    type1 = checks.array("type1", type1)
    if ((type1 < 0) | (type1 > 1)).any():
        raise ValueError(f"type1 must lie in [0, 1], got type1={type1}; it is the probability of a false alarm")
    mu = _nonnegative("gdp_mu", gdp_mu)
    with np.errstate(invalid="ignore"):
        inside = ndtr(-ndtri(type1) - mu)
    return np.where(type1 >= 1, 0.0, np.where(type1 <= 0, 1.0, inside))[()]


def noise_multiplier_of(epsilon, *, delta):
    """Smallest noise standard deviation / l2 sensitivity that makes the Gaussian mechanism (ε, δ)-DP; any ε.

    Solves δ(ε; μ) = δ for μ, rounded to the safe (upper) side by about 1e-11.

    Paper: dplearn, Gaussian Mechanism (its formula holds for ε below 1 and is never the smallest; Balle and Wang 2018).
    Args: epsilon — at least 0;  delta — in (0, 1);  both broadcast.
    """
    epsilon, delta = np.broadcast_arrays(_nonnegative("epsilon", epsilon), _delta(delta, zero=False))
    if not np.isfinite(epsilon).all():
        raise ValueError(f"epsilon must be finite, got epsilon={epsilon}; without noise it is infinite")
    shape, epsilon, log_target = epsilon.shape, epsilon.ravel(), np.log(delta).ravel() - _SLACK
    low, high = np.full(epsilon.shape, 1e-3), np.full(epsilon.shape, 1.0)
    while (short := _log_delta(epsilon, high) < log_target).any():
        high[short] *= 2
    while (far := _log_delta(epsilon, low) > log_target).any():
        low[far] /= 8
    mu = _root(lambda m, e, goal: goal - _log_delta(e, m), low, high, epsilon, log_target, safe=-1)
    return (1 / mu).reshape(shape)[()]


def textbook_noise_multiplier(epsilon, *, delta):
    r"""The lecture's noise standard deviation / l2 sensitivity, a sufficient condition for (ε, δ)-DP.

    .. math:: \sqrt{2 \log(5 / (4\delta))} / \varepsilon

    Paper: dplearn, Gaussian Mechanism.
    Printed: for ε in (0, 1); the comparison with the Laplace mechanism then uses it at ε = 1.   Used: ε in (0, 1], and
    refused above, where it can be far too small (at ε = 50 it leaves δ = 0.59 for 1e-5).
    """
    epsilon = checks.real(
        "epsilon",
        epsilon,
        low=0.0,
        high=1.0,
        open_low=True,
        hint="the textbook formula fails above 1: use the analytic noise_multiplier_of, which holds for any epsilon",
    )
    return _textbook(epsilon, checks.probability("delta", delta, allow_zero=False, allow_one=False))


def textbook_delta(epsilon, *, delta):
    """The δ that the textbook noise for (ε, δ) really has at ε, for any ε > 0: below δ where the formula holds.

    Args: epsilon — positive, any shape;  delta — in (0, 1).
    Returns: exact, of epsilon's shape.
    """
    epsilon = checks.array("epsilon", epsilon)
    if not (epsilon > 0).all():
        raise ValueError(f"epsilon must be positive, got epsilon={epsilon}")
    delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
    return delta_of(epsilon, gdp_mu=1 / _textbook(epsilon, delta))


def _root(function, low, high, *arguments, safe):
    """A root of a monotone function, moved towards larger (safe = 1) or smaller (-1) values until it isn't negative."""
    root = elementwise.find_root(function, (low, high), args=arguments, tolerances={"xrtol": 1e-15, "xatol": 0.0}).x
    step = np.finfo(np.float64).eps
    while (short := function(root, *arguments) < 0).any():
        root, step = np.where(short, root * (1 + safe * step), root), 2 * step
    return root


def _textbook(epsilon, delta):
    return math.sqrt(2 * math.log(5 / (4 * delta))) / epsilon


def _nonnegative(name, value):
    value = checks.array(name, value, finite=False)
    if not (value >= 0).all():  # also catches NaN
        raise ValueError(f"{name} must be at least 0, got {name}={value}")
    return value


def _delta(delta, zero=True):
    delta = checks.array("delta", delta)
    if not (((delta >= 0) if zero else (delta > 0)) & (delta < 1)).all():
        raise ValueError(f"delta must lie in {'[' if zero else '('}0, 1), got delta={delta}")
    return delta
