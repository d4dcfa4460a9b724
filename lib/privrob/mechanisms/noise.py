r"""Additive noise on the answer of a query: the Laplace and the Gaussian mechanism.

Sensitivities are part of a mechanism, so that the noise itself stays in the units of the query. Both guarantees hold
for every neighbouring relation that the sensitivity was taken over; the relation is asked for all the same, and a
mechanism that is applied to a sample states its guarantees through the accountants of sampling, not here.

The noise is drawn in float64. That is right for studies; a service that answers strangers also needs noise whose last
bits give nothing away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from privrob import checks
from privrob.accounting import gdp, pairs, pld, rdp, subsample
from privrob.kinds import Interval, Neighbouring, NotAvailable, Sampling


def _thresholds(threshold):
    threshold = checks.array("threshold", threshold)
    if (threshold < 0).any():
        raise ValueError(f"threshold must be at least 0, got threshold={threshold}; it is compared with |noise|")
    return threshold


def _unsampled(neighbouring, sampling):
    Neighbouring.of(neighbouring)
    if Sampling.of(sampling) is not Sampling.NONE:
        raise NotAvailable("a noise mechanism states its guarantee without sampling; pass sampling='none'")


def _pair(kind, ratio):
    """The dominating pair at a noise ratio: without noise the answer tells all, without sensitivity nothing."""
    if ratio == 0:
        return pairs.DiscretePair.of([1.0, 0.0], [0.0, 1.0])
    return kind(ratio) if ratio < math.inf else pairs.DiscretePair.of([1.0], [1.0])


@dataclass(frozen=True)
class Laplace:
    """Independent Laplace noise of scale b on each coordinate of a query's answer.

    Paper: dplearn, Laplace Mechanism.
    Args: laplace_scale — b, in the query's units, at least 0;  l1_sensitivity — Δ in l1, at least 0.
    """

    laplace_scale: float
    l1_sensitivity: float

    def __post_init__(self):
        checks.nonnegative("laplace_scale", self.laplace_scale, finite=True)
        checks.nonnegative("l1_sensitivity", self.l1_sensitivity, finite=True)

    @classmethod
    def for_epsilon(cls, epsilon, *, l1_sensitivity):
        """The mechanism of the slide: b = Δ/ε is the least scale for ε-DP."""
        epsilon = checks.positive("epsilon", epsilon, finite=True)
        return cls(checks.nonnegative("l1_sensitivity", l1_sensitivity, finite=True) / epsilon, float(l1_sensitivity))

    @property
    def pure_epsilon(self):
        """Δ/b: 0 without sensitivity, infinite without noise.

        Side: exact for data sets that differ by the whole sensitivity.
        """
        if self.l1_sensitivity == 0:
            return 0.0
        return self.l1_sensitivity / self.laplace_scale if self.laplace_scale else math.inf

    @property
    def scale_ratio(self):
        """b/Δ."""
        return self.laplace_scale / self.l1_sensitivity if self.l1_sensitivity else math.inf

    def release(self, data, *, rng):
        """The answers in ``data`` (any shape), each with its own noise: float64, the same shape."""
        answers = checks.array("data", data)
        return answers + rng.laplace(0.0, self.laplace_scale, answers.shape)

    def log_density(self, noise):
        """Log density of the noise of one coordinate."""
        return -np.abs(noise) / self.laplace_scale - math.log(2 * self.laplace_scale)

    def density(self, noise):
        """Density of the noise of one coordinate. ``noise``: any shape."""
        return np.exp(self.log_density(noise))

    def log_tail(self, threshold):
        """Log probability that the noise of one coordinate exceeds a threshold in size: −t/b."""
        return -_thresholds(threshold) / self.laplace_scale

    def mean_absolute_error(self):
        """E|noise| of one coordinate: b."""
        return self.laplace_scale

    def rdp(self, orders, *, neighbouring, sampling):
        r"""Rényi curve of the worst case: one coordinate moves by all of Δ.

        A coordinate's curve is convex in its shift and 0 at 0, so shifts that add up to Δ lose no more than one by Δ.

        .. math:: \tfrac{1}{a-1}\log\big(\tfrac{a}{2a-1}e^{(a-1)\epsilon} + \tfrac{a-1}{2a-1}e^{-a\epsilon}\big),
            \quad \epsilon = \Delta/b

        Paper: ptr, Section 4 (unnumbered).
        Printed: first coefficient (a-1)/(2a-1), negative divergence at a = 2.   Used: a/(2a-1) (Mironov 2017).
        Side: exact for data sets that differ by the whole sensitivity, else upper.
        Returns: nats, shape (k,).
        """
        _unsampled(neighbouring, sampling)
        return rdp.laplace(orders, scale_ratio=self.scale_ratio)

    def kl(self, *, neighbouring, sampling):
        r"""Kullback–Leibler divergence, the Rényi curve's limit at order 1: :math:`e^{-\epsilon} - 1 + \epsilon`.

        Side: exact for data sets that differ by the whole sensitivity.
        """
        _unsampled(neighbouring, sampling)
        return rdp.kl_laplace(scale_ratio=self.scale_ratio)

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error. Exact; of all shifts with l1 norm Δ, one coordinate by Δ is the
        worst: δ(ε) is Schur-convex in the shifts.

        With shifts c ≥ d, the derivatives of δ by c and by d differ by half of what a loss of max(c + d − 2y, c − d)
        passes ε more often than one of max(c + d − 2y, d − c), y exponential: never less.
        """
        _unsampled(neighbouring, sampling)
        alpha = checks.array("type1", type1)
        if not ((alpha >= 0) & (alpha <= 1)).all():
            raise ValueError(f"type1 must lie in [0, 1], got type1={type1!r}")
        eps = self.pure_epsilon
        if math.isinf(eps):
            return np.zeros_like(alpha)[()]
        small = math.exp(-eps)
        with np.errstate(divide="ignore"):
            middle = small / (4 * np.maximum(alpha, small / 4))
        low, high = 1 - alpha / small if small else np.zeros_like(alpha), small * (1 - alpha)
        return np.where(alpha < small / 2, low, np.where(alpha <= 0.5, middle, high))[()]

    def epsilon(self, delta, *, neighbouring, sampling):
        r"""The smallest ε at this δ, exact: :math:`\epsilon_0 + 2\log(1 - \delta)`, not below 0, with ε₀ = Δ/b."""
        _unsampled(neighbouring, sampling)
        delta = checks.probability("delta", delta, allow_one=False)
        return Interval.exact(max(0.0, self.pure_epsilon + 2 * math.log1p(-delta)))

    def pairs(self, *, neighbouring, sampling):
        """The pair of one coordinate that moves by all of Δ; it covers both directions."""
        _unsampled(neighbouring, sampling)
        return _pair(lambda ratio: pairs.laplace(scale_ratio=ratio), self.scale_ratio)


@dataclass(frozen=True)
class Gaussian:
    """Independent Gaussian noise of standard deviation σ on each coordinate of a query's answer.

    Paper: dplearn, Gaussian Mechanism.
    Args: noise_std — σ, in the query's units, at least 0;  l2_sensitivity — Δ in l2, at least 0.
    """

    noise_std: float
    l2_sensitivity: float

    def __post_init__(self):
        checks.nonnegative("noise_std", self.noise_std, finite=True)
        checks.nonnegative("l2_sensitivity", self.l2_sensitivity, finite=True)

    @classmethod
    def for_epsilon(cls, epsilon, *, delta, l2_sensitivity):
        """The least noise for (ε, δ)-DP, any ε (Balle and Wang 2018); the slide's formula is ``textbook``."""
        multiplier = float(gdp.noise_multiplier_of(checks.nonnegative("epsilon", epsilon, finite=True), delta=delta))
        return cls(
            multiplier * checks.nonnegative("l2_sensitivity", l2_sensitivity, finite=True), float(l2_sensitivity)
        )

    @classmethod
    def textbook(cls, epsilon, *, delta, l2_sensitivity):
        """The slide's noise, refused above ε = 1: see :func:`privrob.accounting.gdp.textbook_noise_multiplier`."""
        multiplier = gdp.textbook_noise_multiplier(epsilon, delta=delta)
        return cls(
            multiplier * checks.nonnegative("l2_sensitivity", l2_sensitivity, finite=True), float(l2_sensitivity)
        )

    @property
    def gdp_mu(self):
        """Δ/σ: 0 without sensitivity, infinite without noise.

        Side: exact for data sets that differ by the whole sensitivity.
        """
        if self.l2_sensitivity == 0:
            return 0.0
        return self.l2_sensitivity / self.noise_std if self.noise_std else math.inf

    @property
    def noise_multiplier(self):
        """σ/Δ."""
        return self.noise_std / self.l2_sensitivity if self.l2_sensitivity else math.inf

    def release(self, data, *, rng):
        """The answers in ``data`` (any shape), each with its own noise: float64, the same shape."""
        answers = checks.array("data", data)
        return answers + rng.normal(0.0, self.noise_std, answers.shape)

    def log_density(self, noise):
        """Log density of the noise of one coordinate. ``noise``: any shape."""
        return -0.5 * (np.asarray(noise) / self.noise_std) ** 2 - math.log(self.noise_std * math.sqrt(2 * math.pi))

    def density(self, noise):
        """Density of the noise of one coordinate. ``noise``: any shape."""
        return np.exp(self.log_density(noise))

    def log_tail(self, threshold):
        """Log probability that the noise of one coordinate exceeds a threshold in size: log 2Φ(−t/σ)."""
        return math.log(2) + log_ndtr(-_thresholds(threshold) / self.noise_std)

    def mean_absolute_error(self):
        """E|noise| of one coordinate: σ √(2/π)."""
        return self.noise_std * math.sqrt(2 / math.pi)

    def rdp(self, orders, *, neighbouring, sampling):
        """Rényi curve α μ²/2 in nats, exact, shape (k,)."""
        _unsampled(neighbouring, sampling)
        orders = checks.orders(orders)
        return orders * (self.gdp_mu**2 / 2) if self.gdp_mu else np.zeros_like(orders)

    def kl(self, *, neighbouring, sampling):
        """Kullback–Leibler divergence, the Rényi curve's limit at order 1: μ²/2.

        Side: exact for data sets that differ by the whole sensitivity.
        """
        _unsampled(neighbouring, sampling)
        return self.gdp_mu**2 / 2

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error: exact."""
        _unsampled(neighbouring, sampling)
        return gdp.tradeoff(type1, gdp_mu=self.gdp_mu)

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε at this δ; ``upper`` on the safe side by about 1e-11 of δ."""
        _unsampled(neighbouring, sampling)
        delta = checks.probability("delta", delta, allow_one=False)
        upper = float(gdp.epsilon_of(delta, gdp_mu=self.gdp_mu))
        if upper in (0.0, math.inf):
            return Interval.exact(upper)
        lower = float(gdp.epsilon_of(min(delta * (1 + 1e-10), math.nextafter(1, 0)), gdp_mu=self.gdp_mu))
        return Interval(lower, upper, upper)

    def pairs(self, *, neighbouring, sampling):
        """N(μ, 1) and N(0, 1), μ = Δ/σ; it covers both directions."""
        _unsampled(neighbouring, sampling)
        return _pair(lambda ratio: pairs.gaussian(noise_multiplier=ratio), self.noise_multiplier)

    def sampled_rdp(self, orders, *, sample_rate, neighbouring):
        """Rényi curve on a Poisson sample, exact: :func:`privrob.accounting.subsample.sampled_gaussian`."""
        how = {"sample_rate": sample_rate, "neighbouring": neighbouring}
        return subsample.sampled_gaussian(orders, noise_multiplier=self.noise_multiplier, **how)

    def sampled_epsilon(self, count, delta, *, sample_rate, neighbouring):
        """ε of so many steps on Poisson samples: :func:`privrob.accounting.pld.sampled_gaussian`.

        Side: both ends.
        Args: count — of steps.
        """
        how = {"sample_rate": sample_rate, "num_steps": count, "delta": delta, "neighbouring": neighbouring}
        return pld.sampled_gaussian(noise_multiplier=self.noise_multiplier, **how)
