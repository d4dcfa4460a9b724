r"""Integer noise without an end, on an integer in 0 … l: the discrete Gaussian and Skellam noise.

Beside :class:`privrob.mechanisms.binomial.BinomialNoise` these two have an infinite alphabet: no fixed number of bits
holds their output, and no output rules an input out.

What is stated of them is on the safe side. A curve lists the outputs of a window that leaves out a mass of at most
1e-300 of the noise on each side, and charges that mass as if such outputs gave the input away: it is part of δ. Rényi
curves and variances have no window.

Sensitivity: l is any whole number, and for one number the l1, l2 and l∞ sensitivities are all l. A vector of whole
numbers is d releases, or one :meth:`vector_rdp_upper` at its own l1 and l2 sensitivities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ive, logsumexp

from privrob import checks
from privrob.accounting.logspace import log_normal_interval
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import NotAvailable
from privrob.mechanisms.discrete import Finite, check_local, whole_numbers

LOG_TAIL = math.log(1e-300)  # charged to δ for the outputs beyond the window, on each side
_DEPTH = 40  # of the continued fraction, beyond s²: each step gains a factor of 5 or more
_MOST_VALUE = 2**53  # of inputs: above, not every integer is a double
_STD = (1e-150, 1e7)  # of the discrete Gaussian: its square is a double, and a window of its noise fits memory
_VARIANCE = (1e-320, 9e13)  # the same, of a variance
_WIDEST = 2**27  # l from which it is bounded too: a window that wide hardly fits memory
_HIGH = 10**4  # order from which Skellam's Rényi curve is bounded
_LOG_INNER = math.log(1e-200)  # the mass up to which the smallest μ is looked for


class IntegerNoise(Finite):
    """Subclasses are frozen dataclasses with ``max_value`` (l: inputs are 0 … l); they give :attr:`reach`,
    :meth:`log_noise` and
    :attr:`variance`. The noise is symmetric, so that one curve covers both orders of the inputs.

    ``reach``: the noise lies beyond ±reach with a probability of at most 1e-300 on each side. ``variance`` is the
    noise's.
    """

    reach: int  # the noise lies beyond ±reach with a probability of at most 1e-300 on each side
    variance: float  # of the noise

    def log_noise(self, reach):
        """Log masses of the noise at 0 … reach."""
        raise NotImplementedError

    def _noise(self, rng, size):
        raise NotImplementedError

    def vector_rdp_upper(self, orders, *, l1_sensitivity, l2_sensitivity):
        """Upper bound on the Rényi curve of whole vectors, with noise on every coordinate, shape (k,)."""
        raise NotImplementedError

    @property
    def symbols(self):
        """The outputs of the window; others have a probability of at most 2e-300."""
        return range(-self.reach, self.max_value + self.reach + 1)

    @property
    def worst_inputs(self):
        return ((0, self.max_value),)

    def _inputs(self, data):
        return whole_numbers(data, self.max_value)

    def log_masses(self, value):
        centre, half = int(self._inputs(value)), self.log_noise(self.reach + self.max_value)
        return half[np.abs(np.array(self.symbols) - centre)]

    def release(self, data, *, rng):
        """The noisy integers, int64; exact but for the rounding of float64 draws."""
        return self._encode(data, lambda values: self._inputs(values) + self._noise(rng, values.size), np.int64)

    def decode(self, symbols):
        """The output itself: unbiased."""
        return checks.array("symbols", symbols)

    @cached_property
    def curves(self):
        """The trade-off function at the ends, with what lies beyond the window charged to δ."""
        masses = [self.log_masses(value) for value in self.worst_inputs[0]]
        lost = [np.array(ends) for ends in ((LOG_TAIL, -np.inf), (-np.inf, LOG_TAIL))]
        return (Tradeoff.of_logs(*(np.append(log, tail) for log, tail in zip(masses, lost, strict=True))),)

    def gdp_mu_upper(self, *, neighbouring, sampling):
        """The smallest μ of a release, but for outputs with a mass below 1e-200: those count as δ."""
        check_local(neighbouring, sampling)
        low, high = (self.log_masses(value) for value in self.worst_inputs[0])
        seen = (low > _LOG_INNER) & (high > _LOG_INNER)
        if not seen.any():  # the two ends have hardly an output in common
            return math.inf
        return Tradeoff.of_logs(*(_merged(log, seen) for log in (low, high))).gdp_mu_upper

    @property
    def bits_fixed(self):
        raise NotAvailable(f"{type(self).__name__} has an infinite alphabet: no fixed-length code; see bits_entropy")


def _merged(log_masses, seen):
    """The outputs below the seen ones taken with the first of them, those above with the last."""
    first, last = np.flatnonzero(seen)[[0, -1]]
    inner = log_masses[first : last + 1].copy()
    inner[0], inner[-1] = logsumexp(log_masses[: first + 1]), logsumexp(log_masses[last:])
    return inner


@dataclass(frozen=True)
class DiscreteGaussian(IntegerNoise):
    r"""An integer in 0 … l plus V, :math:`P(V = v) \propto e^{-v^2/2\sigma^2}` over all integers.

    Paper: fdp, Sections 1 and 2, Remark 3 (Canonne, Kamath and Steinke 2020).
    Args: max_value — l;  noise_std — σ; from σ = 1.5 on it is the standard deviation up to 1e-17.
    """

    max_value: int
    noise_std: float

    def __post_init__(self):
        checks.integer("max_value", self.max_value, low=1, high=_MOST_VALUE)
        checks.real("noise_std", self.noise_std, low=_STD[0], high=_STD[1])

    @classmethod
    def of_variance(cls, variance, *, max_value):
        """The one whose noise has this variance."""
        variance = checks.real("variance", variance, low=_VARIANCE[0], high=_VARIANCE[1])

        def excess(noise_std):
            return cls(max_value, noise_std).variance - variance

        return cls(
            max_value, brentq(excess, max(0.5 * math.sqrt(variance), _STD[0]), math.sqrt(variance) + 1, xtol=1e-14)
        )

    @property
    def reach(self):
        """σ√(2 log 1e300), as P(V ≥ k) is at most :math:`e^{-k^2/2\\sigma^2}`."""
        return math.ceil(self.noise_std * math.sqrt(-2 * LOG_TAIL))

    @cached_property
    def _log_total(self):
        """log of the sum that scales the masses to 1."""
        return _log_theta(0.0, self.noise_std)

    def log_noise(self, reach):
        return -(np.arange(reach + 1.0) ** 2) / (2 * self.noise_std**2) - self._log_total

    @cached_property
    def variance(self):
        half = self.log_noise(self.reach)[1:]
        return float(2 * np.exp(half + 2 * np.log(np.arange(1, half.size + 1))).sum())

    @cached_property
    def _kept(self):
        """Probability that a rounded Normal number is kept, at 0, 1, …: largest at 0, near 1 from σ = 1 on."""
        v = np.arange(self.reach + 1.0)
        rounded = log_normal_interval((v - 0.5) / self.noise_std, (v + 0.5) / self.noise_std)
        ratio = self.log_noise(self.reach) - rounded
        return np.exp(ratio - ratio[0])

    def _noise(self, rng, size):
        """Rounded Normal numbers, rejected down to the masses."""
        noise, kept = self._tried(rng, size)
        left = np.flatnonzero(~kept)
        while left.size:
            noise[left], kept = self._tried(rng, left.size)
            left = left[~kept]
        return noise

    def _tried(self, rng, size):
        tried = np.rint(rng.normal(0.0, self.noise_std, size)).astype(np.int64)
        return tried, rng.random(size) < self._kept.take(np.abs(tried))

    def rdp(self, orders, *, neighbouring, sampling):
        r"""Rényi curve in nats, exact, shape (k,).

        .. math:: \frac{a l^2}{2\sigma^2} + \frac{1}{a-1} \log \frac{\theta(al)}{\theta(0)}, \qquad
            \theta(t) = \sum_k e^{-(k-t)^2/2\sigma^2} \le \theta(0)
        """
        check_local(neighbouring, sampling)
        orders = checks.orders(orders)
        ratio = np.array([_log_theta(a * self.max_value, self.noise_std) for a in orders]) - self._log_total
        return orders * self.max_value**2 / (2 * self.noise_std**2) + np.minimum(ratio, 0.0) / (orders - 1)

    def vector_rdp_upper(self, orders, *, l1_sensitivity, l2_sensitivity):
        r"""Upper bound for vectors: :math:`a\Delta_2^2/2\sigma^2` (Canonne, Kamath and Steinke 2020); no l1 needed."""
        checks.nonnegative("l1_sensitivity", l1_sensitivity, finite=True)
        change = checks.nonnegative("l2_sensitivity", l2_sensitivity, finite=True)
        return checks.orders(orders) * change**2 / (2 * self.noise_std**2)


def _log_theta(shift, std):
    """log of Σ exp(−(k − t)²/2σ²) over all integers k."""
    off = shift - round(shift)
    reach = math.ceil(40 * std) + 1
    return float(logsumexp(-((np.arange(-reach, reach + 1) - off) ** 2) / (2 * std**2)))


@dataclass(frozen=True)
class Skellam(IntegerNoise):
    r"""An integer in 0 … l plus the difference of two Poisson numbers of mean s²/2 each:

    .. math:: P(V = v) = e^{-s^2} I_{|v|}(s^2)

    The sum of several users' Skellam noise is Skellam noise.

    Paper: fdp, Sections 1 and 2 (Agarwal, Kairouz and Liu 2021).
    Args: max_value — l;  variance — s².
    """

    max_value: int
    variance: float

    def __post_init__(self):
        checks.integer("max_value", self.max_value, low=1, high=_MOST_VALUE)
        checks.real("variance", self.variance, low=_VARIANCE[0], high=_VARIANCE[1])

    @cached_property
    def reach(self):
        """Chernoff's bound: :math:`\\log P(V \\ge k) \\le \\sqrt{s^4 + k^2} - s^2 - k\\,\\mathrm{arsinh}(k/s^2)`."""

        def above(k):
            s = self.variance
            return math.hypot(s, k) - s - k * math.asinh(k / s) - LOG_TAIL

        return math.ceil(brentq(above, 0.0, 40 * math.sqrt(self.variance) + 800))

    def log_noise(self, reach):
        """By the ratios of neighbouring Bessel functions, a continued fraction taken from far outside."""
        return _log_skellam(float(self.variance), reach)

    def _noise(self, rng, size):
        return rng.poisson(self.variance / 2, size) - rng.poisson(self.variance / 2, size)

    def rdp(self, orders, *, neighbouring, sampling):
        """Rényi curve in nats, shape (k,): an upper bound, exact up to order 10⁴ but for the terms of the sum beyond
        its window, a bound of which is added (about 1e-17 of the sum: their ratio falls, as arsinh is concave).

        Beyond order 10⁴ or l = 2²⁷, where the window is too wide, :meth:`vector_rdp_upper` of the next whole order.
        """
        check_local(neighbouring, sampling)
        orders, change = checks.orders(orders), float(self.max_value)
        upper = self.vector_rdp_upper(np.ceil(orders), l1_sensitivity=change, l2_sensitivity=change)
        far = _HIGH if self.max_value <= _WIDEST else 0
        return np.array([self._renyi(float(a)) if a <= far else most for a, most in zip(orders, upper, strict=True)])

    def _renyi(self, order):
        shift, reach = self.max_value, self.reach
        while True:
            half = self.log_noise(reach + shift)
            k = np.arange(-reach, reach + 1)
            terms = order * half[np.abs(k - shift)] + (1 - order) * half[np.abs(k)]
            step = terms[-1] - terms[-2]
            total = float(logsumexp(terms))
            if step < -math.log(2) and max(terms[-1], terms[0]) < total - 40:
                return max(0.0, float(np.logaddexp(total, terms[-1])) / (order - 1))
            reach = 2 * reach

    def vector_rdp_upper(self, orders, *, l1_sensitivity, l2_sensitivity):
        r"""Upper bound for vectors (Agarwal, Kairouz and Liu 2021, Theorem 3.5, stated there for whole orders).

        .. math:: \frac{a\Delta_2^2}{2s^2}
            + \min\Big(\frac{(2a - 1)\Delta_2^2 + 6\Delta_1}{4s^4}, \frac{3\Delta_1}{2s^2}\Big)
        """
        orders, s = checks.orders(orders), self.variance
        if not (orders == np.rint(orders)).all():
            raise ValueError(f"orders must be whole numbers for this bound, got orders={orders}")
        l1 = checks.nonnegative("l1_sensitivity", l1_sensitivity, finite=True)
        square = checks.nonnegative("l2_sensitivity", l2_sensitivity, finite=True) ** 2
        more = np.minimum(((2 * orders - 1) * square + 6 * l1) / (4 * s**2), 3 * l1 / (2 * s))
        return orders * square / (2 * s) + more


@lru_cache(maxsize=16)
def _log_skellam(variance, reach):
    """Far out, where the fraction converges at once, all ratios together; within s² one from the other, inwards."""
    s, steps = variance, np.empty(reach + 1)
    far = np.arange(min(reach, math.ceil(s)) + 1, reach + 1)
    steps[far] = _ratio(far + _DEPTH, s)
    for depth in range(_DEPTH - 1, -1, -1):
        steps[far] = s / (2 * (far + depth) + s * steps[far])
    near = far[0] - 1 if far.size else reach
    start = near if far.size else reach + reach // 2 + 60
    ratio = steps[near + 1] if far.size else _ratio(start + 1, s)
    for k in range(start, 0, -1):
        ratio = s / (2 * k + s * ratio)
        if k <= near:
            steps[k] = ratio
    steps[0] = ive(0, s)
    logs = np.cumsum(np.log(steps))
    logs.flags.writeable = False
    return logs


def _ratio(k, s):
    """I_k(s)/I_{k−1}(s), roughly."""
    return s / (k + np.hypot(k, s))
