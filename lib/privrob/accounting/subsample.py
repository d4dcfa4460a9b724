r"""Privacy amplification by Poisson sampling, in Rényi terms: the Gaussian exactly, any mechanism by a bound.

One step of the sampled Gaussian has, in units of the noise,

.. math:: P = (1-q)\,N(0, 1) + q\,N(\mu, 1), \quad Q = N(0, 1), \quad L = P/Q, \quad \mu = 1/\text{noise multiplier}

``remove`` asks for D(P‖Q), ``add`` for D(Q‖P). With s = order − 1, the moments are taken without their tangents, whose
mean is known: :math:`E_Q[L^{s+1}] - 1 = E_Q[L^{s+1} - 1 - (s+1)(L-1)]` and
:math:`E_Q[L^{-s}] - 1 = E_Q[L^{-s} - 1 + s(L-1)]`. Both integrands are nowhere negative, so that the smallest
divergences keep their digits. The integral is taken in log space by Gauss–Legendre panels that start at the peaks and
are halved until two halves agree with their whole.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit, gammaln, logsumexp, xlog1py

from privrob import checks
from privrob.accounting import rdp
from privrob.accounting.logspace import (
    LOG_SQRT_2PI,
    log1mexp,
    log_power_excess,
    log_power_excess_over_ratio,
    log_sampled_ratio,
)
from privrob.accounting.quadrature import AGREE, log_integral
from privrob.kinds import Neighbouring, NotAvailable

_REACH = np.array([0.0, 2.0, 5.0, 11.0, 40.0])  # panel edges on either side of a peak, in its widths
_HALVINGS = 60
_FARTHEST = 1e12  # a peak farther out than this, in noise standard deviations, is not looked for
_TERMS_GAUSSIAN, _TERMS_GENERAL = 128, 1024  # largest orders whose moment is a sum
_ORDERS_AT_ONCE = 512
_EPS = np.finfo(np.float64).eps


def sampled_gaussian(orders, *, sample_rate, noise_multiplier, neighbouring):
    r"""Rényi curve of one step of the Poisson-sampled Gaussian mechanism.

    Whole orders up to 128 in the direction ``remove`` are the sum

    .. math:: \tfrac{1}{a-1}\log\Big(1 + \sum_{k=2}^{a} \tbinom{a}{k} (1-q)^{a-k} q^k (e^{k(k-1)\mu^2/2} - 1)\Big)

    and all others an integral. ``add_remove`` equals ``remove``, never below ``add`` (Mironov, Talwar and Zhang 2019,
    Theorem 5).

    Paper: dplearn, Amplification by Sub-sampling for moments (exact, where the slide has a leading term).
    Printed: log moment at most q²/(1-q) times the one without sampling, up to O(q³); at σ = 1, λ = 2 it is 1.72 q² for
    small q.   Used: the exact moment (Abadi et al. 2016, Lemma 3, has twice the printed term).
    Assumes: one record moves a step's sum by at most 1/noise_multiplier noise standard deviations (l2).
    Args: orders — each > 1, shape (k,);  sample_rate — q in [0, 1];  noise_multiplier — at least 0;
        neighbouring — ``add``, ``remove`` or ``add_remove``.
    Returns: divergence in nats, shape (k,). Exact at q = 0 and q = 1; else good to 1e-10 of itself for orders up to
        1e4 (to what the digits of the noise multiplier decide above).
    """
    orders = checks.orders(orders)
    q, sigma, direction = _step(sample_rate, noise_multiplier, neighbouring)
    plain = rdp.gaussian(orders, noise_multiplier=sigma)  # the divergence is convex in q: never above this
    if q == 0 or q == 1:
        return plain if q else np.zeros_like(orders)
    most = plain if direction == "remove" else np.minimum(plain, -math.log1p(-q))
    result = most.copy()
    summed = np.zeros(orders.shape, bool)
    if direction == "remove":
        summed = (orders <= _TERMS_GAUSSIAN) & (orders == np.floor(orders)) & np.isfinite(plain)
    if summed.any():
        whole = np.arange(2.0, orders[summed].max() + 1)
        gain = (whole - 1) * rdp.gaussian(whole, noise_multiplier=sigma)
        log_sum = _log_binomial(orders[summed], q, gain + log1mexp(-gain))
        result[summed] = np.logaddexp(0.0, log_sum) / (orders[summed] - 1)
    # Where not even the place of the peak fits into float64, the limits above stay.
    for chunk in _chunks(np.flatnonzero(~summed & (plain > 0) & (orders < _FARTHEST * sigma))):
        result[chunk] = rdp.curve_of(_log_excess(orders[chunk] - 1, q, 1 / sigma, direction), orders[chunk] - 1)
    return np.minimum(result, most)


def kl_sampled_gaussian(*, sample_rate, noise_multiplier, neighbouring):
    """The limit of :func:`sampled_gaussian` at order 1: the Kullback–Leibler divergence of one step, in nats.

    Side: exact but for the quadrature.
    """
    q, sigma, direction = _step(sample_rate, noise_multiplier, neighbouring)
    plain = rdp.kl_gaussian(noise_multiplier=sigma)
    if q == 0 or q == 1:
        return plain if q else 0.0
    most = plain if direction == "remove" else min(plain, -math.log1p(-q))
    if plain == 0 or _FARTHEST * sigma <= 1:
        return most
    return min(float(np.exp(_log_excess(np.zeros(1), q, 1 / sigma, direction)[0])), most)


def poisson_amplified(orders, *, sample_rate, rdp_at, neighbouring):
    r"""Rényi curve of any mechanism on a Poisson sample, from its curve ρ without sampling.

    At a whole order a, with c = 1 for ``remove`` (exact for the worst pair of outputs) and c = 3 otherwise,

    .. math:: \tfrac{1}{a-1}\log\Big((1-q)^{a-1}(1 + (a-1) q) + \tbinom{a}{2}(1-q)^{a-2}q^2 e^{\rho(2)}
        + c \sum_{k=3}^{a} \tbinom{a}{k} (1-q)^{a-k} q^k e^{(k-1)\rho(k)}\Big),

    or what joint convexity gives, :math:`\tfrac{1}{a-1}\log(1 + q (e^{(a-1)\rho(a)} - 1))`, where that is smaller; it
    stands alone above order 1024. Between whole orders, (a − 1)·divergence lies below its chord.

    Paper: ptr, Figure 2 (its black-box bound is ``add_remove``, its lower bound ``remove``; Zhu and Wang 2019).
    Assumes: ρ bounds the divergence for the same neighbouring relation.
    Args: orders — each > 1, shape (k,);  sample_rate — q in [0, 1];  rdp_at — function of a whole order (an int), in
        nats, infinity allowed;  neighbouring — ``add``, ``remove`` or ``add_remove``.
    Returns: an upper bound in nats, shape (k,).
    """
    orders = checks.orders(orders)
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    remove = _relation(neighbouring) is Neighbouring.REMOVE
    if q == 0:
        return np.zeros_like(orders)
    floor, ceiling = np.floor(orders), np.ceil(orders)
    whole = np.unique(np.concatenate([floor, ceiling]))
    whole = whole[whole >= 2]
    summed = whole[whole <= _TERMS_GENERAL] if q < 1 else whole[:0]
    terms = np.arange(2.0, (summed.max() if summed.size else 1.0) + 1)
    known = {int(k): _nats(rdp_at(int(k)), k) for k in np.unique(np.concatenate([terms, whole]))}
    plain = (whole - 1) * np.array([known[int(k)] for k in whole])
    log_moment = np.minimum(np.logaddexp(0.0, math.log(q) + plain + log1mexp(-plain)), plain)
    if summed.size:
        gain = (terms - 1) * np.array([known[int(k)] for k in terms])
        log_three = np.where((terms > 2) & (not remove), math.log(3), 0.0)
        log_sum = _log_binomial(summed, q, gain + log_three + log1mexp(-gain - log_three))
        log_moment[: summed.size] = np.minimum(log_moment[: summed.size], np.logaddexp(0.0, log_sum))
    at = dict(zip(whole, log_moment)) | {1.0: 0.0}
    below, above = np.array([at[k] for k in floor]), np.array([at[k] for k in ceiling])
    share = orders - floor
    with np.errstate(invalid="ignore"):
        chord = np.where(share > 0, (1 - share) * below + share * above, below)
    return chord / (orders - 1)


def amplified_dp(epsilon, delta, *, sample_rate):
    r"""What an (ε, δ)-DP mechanism guarantees on a Poisson sample: :math:`(\log(1 + q(e^\varepsilon - 1)), q\delta)`.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 8.
    Assumes: neighbours differ by one record added or removed.
    Args: epsilon — at least 0, infinity allowed;  delta — in [0, 1];  sample_rate — q in [0, 1].
    Returns: (ε, δ), floats.
    """
    epsilon, delta = checks.nonnegative("epsilon", epsilon), checks.probability("delta", delta)
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    if q == 0 or q == 1:
        return (epsilon, delta) if q else (0.0, 0.0)
    if epsilon < 1:
        return math.log1p(q * math.expm1(epsilon)), q * delta
    return min(epsilon, float(np.logaddexp(math.log1p(-q), math.log(q) + epsilon))), q * delta


# ------------------------------------------------------------------------------------------------------------ arguments


def _relation(neighbouring):
    neighbouring = Neighbouring.of(neighbouring)
    if neighbouring is Neighbouring.REPLACE:
        raise NotAvailable("Rényi bounds under Poisson sampling are known here for 'add', 'remove' and 'add_remove'")
    return neighbouring


def _step(sample_rate, noise_multiplier, neighbouring):
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    sigma = checks.nonnegative("noise_multiplier", noise_multiplier)
    return q, sigma, "add" if _relation(neighbouring) is Neighbouring.ADD else "remove"


def _nats(value, order):
    return checks.nonnegative(f"rdp_at({int(order)})", float(value))


def _chunks(indices):
    return [indices[i : i + _ORDERS_AT_ONCE] for i in range(0, indices.size, _ORDERS_AT_ONCE)]


# ----------------------------------------------------------------------------------------------------------------- sums


def _log_binomial(orders, q, log_gain):
    """log Σ_k C(a, k)(1−q)^{a−k} q^k g_k over k = 2 … a at each whole order a; q inside (0, 1)."""
    a, k = orders[:, None], np.arange(2.0, log_gain.size + 2)
    inside = k <= a
    left = np.where(inside, a - k, 0.0)
    log_weight = gammaln(a + 1) - gammaln(k + 1) - gammaln(left + 1) + k * math.log(q) + xlog1py(left, -q)
    return logsumexp(np.where(inside, log_weight + log_gain, -np.inf), axis=1)


# ------------------------------------------------------------------------------------------------------------ integrals


def _log_excess(s, q, mu, direction):
    """log of (moment − 1)/s at each s ≥ 0 (at 0, of the KL divergence), q inside (0, 1)."""
    centres, widths = peaks(s, math.log(q) - math.log1p(-q), mu, direction)
    reach = np.append(_REACH, max(200.0, 10 / math.sqrt(mu)))  # a flat top of two merging peaks may be so wide
    reach = np.concatenate([-reach[:0:-1], reach])
    edges = np.sort((centres[..., None] + widths[..., None] * reach).reshape(s.size, -1), axis=1)

    # Means under P, of both integrands over L: so that 1/L and the density don't cancel.
    def integrand(which, z):
        ratio, log_p = _log_densities(q, mu, z)
        order = s[which][:, None]
        excess = log_power_excess_over_ratio(ratio, order) if direction == "remove" else log_power_excess(-ratio, order)
        return log_p + excess

    # Rounding in the sum of the two logarithms is that of the larger.
    tolerance = AGREE + 64 * _EPS * np.max(np.abs(centres), axis=1) ** 2
    found = log_integral(integrand, edges, tolerance=tolerance, stands_in="the curve without sampling")
    return found - LOG_SQRT_2PI


def _log_densities(q, mu, z):
    """log L at z, and log of P's density · √(2π)."""
    u = mu * (z - mu / 2)
    rise = np.maximum(u, 0.0)
    over = np.logaddexp(math.log1p(-q) - rise, math.log(q) + (u - rise))
    return log_sampled_ratio(u, q), over - np.where(u > 0, z - mu, z) ** 2 / 2


def peaks(s, log_odds, mu, direction):
    """Where the integrand may have a peak, and how wide it is there; shapes (k, m).

    L's logarithm bends at one place, from flat to a slope of μ; its slope is μ·expit. A peak of z ↦ p log L − z²/2 is a
    fixed point of z ↦ p·μ·expit. For p > 1 there may be two, none narrower than a Normal; for p < 0 one, and narrower.

    Args: s — order − 1, shape (k,);  log_odds — log q/(1 − q);  mu — μ;  direction — ``"remove"`` or ``"add"``.
    """

    def climb(z):
        return expit(mu * (z - mu / 2) + log_odds)

    zero, one = np.zeros_like(s), np.ones_like(s)
    if direction == "add":
        low, high = -s * mu, zero
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            rising = -s * mu * climb(middle) > middle
            low, high = np.where(rising, middle, low), np.where(rising, high, middle)
        share = climb(high)
        width = 1 / np.sqrt(1 + s * mu**2 * share * (1 - share))
        centres, widths = np.stack([zero, zero + mu, high], 1), np.stack([one, one, width], 1)
    else:
        top = (1 + s) * mu
        bend = np.clip(mu / 2 - log_odds / mu, 0.0, top)
        # Newton from both ends: the map is convex below the bend and concave above, so that neither root is passed.
        low, high = zero, top
        for _ in range(_HALVINGS // 2):
            share = climb(low)
            slope = 1 - top * mu * share * (1 - share)
            step = np.where(slope > 0, (top * share - low) / np.where(slope > 0, slope, 1.0), np.inf)
            low = np.minimum(np.maximum(low, low + step), bend)
            share = climb(high)
            slope = np.maximum(1 - top * mu * share * (1 - share), 1e-3)
            high = np.maximum(np.minimum(high, high + (top * share - high) / slope), bend)
        centres, widths = np.stack([zero, zero + mu, low, high], 1), np.ones((s.size, 4))
    order = np.argsort(centres, axis=1)
    centres, widths = np.take_along_axis(centres, order, 1), np.take_along_axis(widths, order, 1)
    for j in range(1, centres.shape[1]):  # peaks that are one: their panels fall together, and the empty ones go
        narrower = np.minimum(widths[:, j], widths[:, j - 1])
        same = centres[:, j] - centres[:, j - 1] < 2 * narrower
        centres[:, j] = np.where(same, centres[:, j - 1], centres[:, j])
        widths[:, j] = np.where(same, widths[:, j - 1], widths[:, j])
    return centres, widths
