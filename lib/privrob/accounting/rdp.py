r"""Rényi differential privacy: curves of basic mechanisms, their sum, and the way back to (ε, δ).

A curve holds a bound on the Rényi divergence, in nats, at each of some orders a > 1,

.. math:: D_a(P \| Q) = \frac{1}{a-1} \log E_Q\big[(P/Q)^a\big],

over all neighbours; at order 1 it is the Kullback–Leibler divergence, asked for by name (``kl_…``). The curves here
are those of the unsampled mechanisms and hold for every neighbouring relation that the sensitivity was taken over.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import elementwise
from scipy.special import expit

from privrob import checks
from privrob.accounting.logspace import (
    expm1_minus,
    log1mexp,
    log_expm1_minus,
    log_power_excess,
    log_power_excess_over_ratio,
)

CONVERSIONS = ("classic", "balle2020", "optimal")
_BISECTIONS = 50
_SLACK = 1e-11  # added to a root, relative (to log δ absolute): the tests hold its error below a tenth of this


class OrderEdgeWarning(UserWarning):
    """The best order is the first or the last of the grid, so that one beyond it may give a smaller guarantee."""


@dataclass(frozen=True)
class Converted:
    """An (ε, δ) guarantee read off a Rényi curve, an upper bound in both numbers, and how it was found.

    ``conversion`` is one of :data:`CONVERSIONS`.

    ``order`` is the one that gave it. ``at_edge``: that is an end of the grid, and an order beyond may give less.
    """

    epsilon: float
    delta: float
    order: float
    conversion: str
    at_edge: bool


def default_orders():
    """Rényi orders from 1.0001 to 1000001, close together where most answers are found.

    Order − 1 grows by 10 % a step from 0.01 to 100, and by 17 % outside. Orders from 13 on are whole, and 2 … 12 are
    among the smaller ones. Small orders serve a large ε, large orders a small one.
    """
    excess = np.concatenate([np.geomspace(1e-4, 1e-2, 31), np.geomspace(1e-2, 100, 101), np.geomspace(100, 1e6, 61)])
    return np.unique(np.concatenate([1 + excess[excess < 12], np.arange(2.0, 13.0), np.rint(1 + excess[excess >= 12])]))


# ----------------------------------------------------------------------------------------------------------- mechanisms


def curve_of(log_excess, excess_order):
    """The divergence from the logarithm of (moment − 1)/(order − 1), the mean of ``log_power_excess``.

    Args: log_excess — that logarithm, shape (k,);  excess_order — order − 1, shape (k,).
    Returns: nats, shape (k,).
    """
    log_gain = np.log(excess_order) + log_excess
    with np.errstate(over="ignore"):  # a tiny gain is not carried as its logarithm's logarithm
        return np.where(log_gain < -40, np.exp(log_excess), np.logaddexp(0.0, log_gain) / excess_order)


def gaussian(orders, *, noise_multiplier):
    r"""Rényi curve of the Gaussian mechanism.

    .. math:: a / (2 \sigma^2)

    Paper: ptr, Section 4 (unnumbered).
    Args: orders — each > 1, shape (k,);  noise_multiplier — noise standard deviation / l2 sensitivity, at least 0.
    Returns: divergence in nats, exact, shape (k,); infinite without noise.
    """
    orders, sigma = checks.orders(orders), checks.nonnegative("noise_multiplier", noise_multiplier)
    with np.errstate(divide="ignore", over="ignore"):
        return orders / np.float64(2 * sigma * sigma)


def kl_gaussian(*, noise_multiplier):
    """The limit of :func:`gaussian` at order 1.

    Side: exact.
    """
    sigma = checks.nonnegative("noise_multiplier", noise_multiplier)
    square = 2 * sigma * sigma
    return 1 / square if square else math.inf


def laplace(orders, *, scale_ratio):
    r"""Rényi curve of the Laplace mechanism.

    .. math:: \tfrac{1}{a-1}\log\big(\tfrac{a}{2a-1}e^{(a-1)/b} + \tfrac{a-1}{2a-1}e^{-a/b}\big)

    Paper: ptr, Section 4 (unnumbered).
    Printed: first coefficient (a-1)/(2a-1), negative divergence at a = 2, b = 1.   Used: a/(2a-1) (Mironov 2017).
    Args: orders — each > 1, shape (k,);  scale_ratio — Laplace scale / l1 sensitivity, at least 0.
    Returns: divergence in nats, exact, shape (k,); infinite without noise.
    """
    a, b = checks.orders(orders), checks.nonnegative("scale_ratio", scale_ratio)
    loss = 1 / b if b else math.inf
    if math.isinf(loss):
        return np.full_like(a, math.inf)
    s, log_all = a - 1, math.log(2) + np.log(a - 0.5)
    # Each exponential beyond its tangent: the tangents cancel.
    with np.errstate(over="ignore"):
        up = np.log(a) - log_all + log_expm1_minus(s * loss)
        down = np.log(s) - log_all + log_expm1_minus(-a * loss)
    return np.minimum(curve_of(np.logaddexp(up, down) - np.log(s), s), loss)


def kl_laplace(*, scale_ratio):
    r"""The limit of :func:`laplace` at order 1: :math:`e^{-1/b} - 1 + 1/b`.

    Side: exact.
    """
    b = checks.nonnegative("scale_ratio", scale_ratio)
    return float(expm1_minus(-1 / b)) if b and math.isfinite(1 / b) else math.inf


def randomized_response(orders, *, epsilon):
    r"""Rényi curve of randomised response on one bit, true with probability :math:`e^\varepsilon/(1+e^\varepsilon)`.

    .. math:: \tfrac{1}{a-1}\log \frac{e^{a\varepsilon} + e^{(1-a)\varepsilon}}{e^{\varepsilon} + 1}

    Args: orders — each > 1, shape (k,);  epsilon — of pure DP, at least 0.
    Returns: divergence in nats, exact, shape (k,).
    """
    a, epsilon = checks.orders(orders), checks.nonnegative("epsilon", epsilon)
    if math.isinf(epsilon):
        return np.full_like(a, math.inf)
    # The mean under the truth's distribution: e^{-ε} times as often, the loss is −ε.
    sums = np.logaddexp(log_power_excess_over_ratio(epsilon, a - 1), log_power_excess(-epsilon, a - 1))
    return np.minimum(curve_of(sums - np.logaddexp(0.0, -epsilon), a - 1), epsilon)


def kl_randomized_response(*, epsilon):
    r"""The limit of :func:`randomized_response` at order 1: :math:`\varepsilon \tanh(\varepsilon/2)`.

    Side: exact.
    """
    epsilon = checks.nonnegative("epsilon", epsilon)
    return epsilon * math.tanh(epsilon / 2)


def pure(orders, *, epsilon):
    r"""Rényi curve that bounds every ε-DP mechanism: randomised response attains it, so none below it does.

    .. math:: \tfrac{1}{a-1}\log \frac{\sinh(a\varepsilon) - \sinh((a-1)\varepsilon)}{\sinh \varepsilon}
        \le \min(a \varepsilon^2/2,\ \varepsilon)

    Source: Bun and Steinke 2016, Proposition 3.3 (its proof; the statement keeps the right-hand side only).
    Args and Returns: as :func:`randomized_response`, an upper bound.
    """
    return randomized_response(orders, epsilon=epsilon)


def kl_pure(*, epsilon):
    """The limit of :func:`pure` at order 1.

    Side: upper.
    """
    return kl_randomized_response(epsilon=epsilon)


def compose(curves, counts):
    """Rényi curve of a sequence of adaptive releases: the sum of their curves, each taken so many times.

    Args: curves — one or more of shape (k,), at the same orders, infinity allowed;  counts — whole numbers, at least 0.
    Returns: shape (k,); a curve that is used 0 times adds 0, also where it is infinite.
    """
    curves = checks.array("curves", curves, ndim=2, finite=False, hint="pass a list of curves at the same orders")
    counts = [checks.integer("counts", count, low=0) for count in counts]
    if not len(curves) or len(curves) != len(counts):
        raise ValueError(f"counts must hold one number a curve, got {len(counts)} counts for {len(curves)} curves")
    _nonnegative("curves", curves)
    total = np.zeros(curves.shape[1])
    for curve, count in zip(curves, counts):
        if count:
            total += count * curve
    return total


# ---------------------------------------------------------------------------------------------------------- conversions


def epsilon_of(delta, *, orders, rdp, conversion):
    r"""Smallest ε that a Rényi curve ρ gives at δ, over its orders a.

    ``classic`` (Mironov 2017):  :math:`\rho + \log(1/\delta)/(a-1)`.
    ``balle2020`` (Balle et al. 2020, Theorem 21; Canonne, Kamath and Steinke 2020, Proposition 12): never larger,
    :math:`\rho + \log\frac{a-1}{a} - \frac{\log \delta + \log a}{a-1}`.
    ``optimal`` (Asoodeh et al. 2021): never larger than that, the best a single order can give: the least ε with
    :math:`\min_p\, p^a q^{1-a} + (1-p)^a (1-q)^{1-a} \ge e^{(a-1)\rho}`, :math:`q = (p - \delta) e^{-\varepsilon}`.

    All give 0 where δ is at least what the curve leaves of the total variation distance.

    Paper: ptr, Definition 3.2 (what it calls the tightest is ``optimal``; its Figure 1 uses ``balle2020``).
    Args: delta — in [0, 1);  orders — each > 1, shape (k,);  rdp — the curve there, at least 0, infinity allowed;
        conversion — one of :data:`CONVERSIONS`.
    Returns: :class:`Converted`; with :class:`OrderEdgeWarning` where the grid of orders is too short.
    """
    delta = checks.real("delta", delta, low=0.0, high=1.0, open_high=True)
    conversion = checks.choice("conversion", conversion, CONVERSIONS)
    orders, rdp = _sorted_curve(orders, rdp)
    if delta >= _total_variation(rdp.min()):
        return Converted(0.0, delta, float(orders[rdp.argmin()]), conversion, False)
    if delta == 0 or np.isinf(rdp).all():
        return Converted(math.inf, delta, float(orders[0]), conversion, False)
    log_delta, s = math.log(delta), orders - 1
    if conversion == "classic":
        values = rdp - log_delta / s
    else:
        values = _balle_epsilon(log_delta, orders, rdp)
        if conversion == "optimal":
            values = _optimal_epsilon(delta, orders, rdp, values)
    best = int(values.argmin())
    epsilon = max(0.0, float(values[best]))
    # What orders beyond could still take away: at the low end about ρ there, at the high end all but ρ.
    spare = max(rdp[best] if best == 0 else 0.0, abs(epsilon - rdp[best]) if best == orders.size - 1 else 0.0)
    at_edge = bool(epsilon > 0 and spare > 1e-3 * epsilon)
    return _warned(Converted(epsilon, delta, float(orders[best]), conversion, at_edge), best, "epsilon")


def delta_of(epsilon, *, orders, rdp, conversion):
    """Smallest δ that a Rényi curve gives at ε, by the same conversions as :func:`epsilon_of`.

    Args: epsilon — at least 0;  the others as in :func:`epsilon_of`.
    Returns: :class:`Converted`; δ is at most 1, and at least 5e-324 unless it is 0.
    """
    epsilon = checks.nonnegative("epsilon", epsilon)
    conversion = checks.choice("conversion", conversion, CONVERSIONS)
    orders, rdp = _sorted_curve(orders, rdp)
    most = _total_variation(rdp.min())
    if most == 0 or math.isinf(epsilon):
        return Converted(epsilon, 0.0, float(orders[rdp.argmin()]), conversion, False)
    with np.errstate(over="ignore"):
        if conversion == "classic":
            values = (orders - 1) * (rdp - epsilon)
        else:
            values = _balle_log_delta(epsilon, orders, rdp)
            if conversion == "optimal":
                values = _optimal_log_delta(epsilon, orders, rdp, values)
    best = int(values.argmin())
    if values[best] >= math.log(most):
        return Converted(epsilon, most, float(orders[rdp.argmin()]), conversion, False)
    delta = max(math.exp(values[best]), 5e-324)
    at_edge = best in (0, orders.size - 1) and delta > 5e-324
    return _warned(Converted(epsilon, delta, float(orders[best]), conversion, at_edge), best, "delta")


def _total_variation(divergence):
    """Bound on the total variation distance, given a bound on the KL divergence (a Rényi divergence of any order is):
    Kullback 1967 for KL ≥ 2V² + 4V⁴/9, and Bretagnolle and Huber 1978."""
    if divergence > 1e3:
        return 1.0
    return min(math.sqrt(divergence / (1 + math.sqrt(1 + 4 * divergence / 9))), math.sqrt(-math.expm1(-divergence)))


def _balle_epsilon(log_delta, orders, rdp):
    s = orders - 1
    return rdp + _log_shrink(orders) - (log_delta + np.log(orders)) / s


def _balle_log_delta(epsilon, orders, rdp):
    s = orders - 1
    return s * (rdp - epsilon + _log_shrink(orders)) - np.log(orders)


def _log_shrink(orders):
    """log((a − 1)/a), with its digits at both ends."""
    return np.where(orders < 2, np.log(orders - 1) - np.log(orders), np.log1p(-1 / orders))


def _optimal_epsilon(delta, orders, rdp, upper):
    """The optimal ε at the orders where it can be the smallest of all, and the given upper bounds elsewhere."""
    s, values = orders - 1, upper.copy()
    # The second term of the moment is at most 1: without it, ``upper``; with 1 in its place, a lower bound.
    with np.errstate(divide="ignore", over="ignore"):
        short = _balle_epsilon(math.log(delta), orders, rdp + log1mexp(-s * rdp) / s)
    lower = np.where(orders * delta < 1, short, rdp + math.log1p(-delta))
    chosen = (lower <= upper.min()) & np.isfinite(upper)
    s, upper = s[chosen], np.maximum(upper[chosen], 0.0)
    values[chosen] = _root(
        lambda epsilon, s, goal: _log_least_excess(delta, epsilon, s) - goal,
        *(np.zeros(s.size), upper, s, _log_goal(s, rdp[chosen])),
    )
    values[chosen] = np.minimum(values[chosen] * (1 + _SLACK), upper)
    return values


def _optimal_log_delta(epsilon, orders, rdp, upper):
    """The optimal log δ at the orders where it can be the smallest of all, and the given upper bounds elsewhere."""
    s, values = orders - 1, upper.copy()
    with np.errstate(divide="ignore", over="ignore"):
        short = _balle_log_delta(epsilon, orders, rdp + log1mexp(-s * rdp) / s)
        at_one = log1mexp(np.minimum(epsilon - rdp, 0.0))
    chosen = (np.minimum(short, at_one) <= min(upper.min(), 0.0)) & np.isfinite(rdp) & (upper > -700)
    s, high = s[chosen], np.minimum(upper[chosen], -1e-15)
    found = _root(
        lambda log_delta, s, goal: _log_least_excess(np.exp(log_delta), epsilon, s) - goal,
        *(np.full(s.size, -700.0), high, s, _log_goal(s, rdp[chosen])),
    )
    values[chosen] = np.where(found < high, np.minimum(found + _SLACK, high), upper[chosen])
    return values


def _root(function, low, high, *arguments):
    """Where a rising function is 0; ``low`` where it is above 0 throughout, ``high`` where rounding keeps it below."""
    found = elementwise.find_root(function, (low, high), args=arguments, tolerances={"xrtol": 1e-13, "xatol": 1e-300})
    return np.where(function(low, *arguments) >= 0, low, np.where(found.success, found.x, high))


def _log_goal(s, rdp):
    """log((e^{sρ} − 1)/s)."""
    with np.errstate(divide="ignore", over="ignore"):
        return s * rdp + log1mexp(-s * rdp) - np.log(s)


def _log_least_excess(delta, epsilon, s):
    """log min over p of (moment − 1)/s, for two points with p − e^ε q = δ.

    The moment is convex in p, and its slope has the sign of r^s (p − aδ)/(p − δ) − r̄^s (a − s e^{-ε} r̄), with
    r = p/q and r̄ = (1 − p)/(1 − q): so p lies in (aδ, 1), and is 1 where there is no such p.
    """
    shape = np.broadcast_shapes(np.shape(delta), np.shape(epsilon), np.shape(s))
    # log of (p − aδ)/(1 − p): from what is nothing beside aδ, to what leaves nothing of 1 − p
    low, high = (
        np.broadcast_to(np.minimum(np.log(np.maximum(s * delta, 5e-324)), 0.0) - 45.0, shape),
        np.full(shape, 45.0),
    )
    room, ahead = np.maximum(1 - (1 + s) * delta, 0.0), np.minimum(s * delta, 1 - delta)
    shrink = np.exp(-epsilon)

    def point(x):
        step, rest = room * expit(x), room * expit(-x)  # p − aδ, 1 − p
        beyond = ahead + step  # p − δ
        gap = delta * shrink - (beyond + delta) * np.expm1(-epsilon)  # p − q
        log_up, log_down = epsilon + np.log1p(delta / beyond), -np.log1p(gap / rest)  # log r, log r̄
        return step, rest + gap, beyond, log_up, log_down

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            step, _, beyond, log_up, log_down = point(middle)
            slope = s * (log_up - log_down) + np.log(step / beyond) - np.log(1 + s - s * shrink * np.exp(log_down))
            low, high = np.where(slope > 0, low, middle), np.where(slope > 0, middle, high)
        _, not_q, beyond, log_up, log_down = point(high)
        up = np.log(beyond) - epsilon + log_power_excess(log_up, s)
        return np.logaddexp(up, np.log(not_q) + log_power_excess(log_down, s))


def _warned(result, best, what):
    if result.at_edge:
        end, way = ("first", "smaller") if best == 0 else ("last", "larger")
        warnings.warn(
            f"the best order, {result.order:g}, is the {end} of the grid: a {way} order may give a smaller {what}; "
            "pass orders beyond it, or those of default_orders()",
            OrderEdgeWarning,
            stacklevel=3,
        )
    return result


def _sorted_curve(orders, rdp):
    orders = checks.orders(orders)
    rdp = np.atleast_1d(checks.array("rdp", rdp, finite=False))
    if rdp.shape != orders.shape:
        raise ValueError(f"rdp must hold one number an order, got shape {rdp.shape} for {orders.size} orders")
    _nonnegative("rdp", rdp)
    arranged = orders.argsort(kind="stable")
    return orders[arranged], rdp[arranged]


def _nonnegative(name, values):
    if not (values >= 0).all():  # also catches NaN
        raise ValueError(f"{name} must be at least 0 everywhere, got {name} with {float(np.min(values))!r}")
