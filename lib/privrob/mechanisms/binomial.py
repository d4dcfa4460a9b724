"""Binomial noise, the binomial mechanism, and the sum of many users' binomials."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privrob import checks
from privrob.accounting.logspace import log_binomial
from privrob.accounting.tradeoff import Tradeoff
from privrob.mechanisms.discrete import Finite, check_local, clip_below, whole_numbers

_COUNTED = 16  # most trials that are drawn one by one


def _convolved(log_a, log_b):
    """Log masses of a sum of two independent counts; exact where exp() of them is."""
    with np.errstate(divide="ignore"):
        return np.log(np.convolve(np.exp(log_a), np.exp(log_b)))


def draw_binomial(num_trials, success_prob, *, size, rng):
    """Binomial numbers, each at its own p (or one p for all). Few trials are drawn one by one: several times quicker
    than numpy's sampler, which starts anew at each p.

    Args: num_trials — M;  success_prob — a number, or of shape ``size``;  size — of the answer.
    """
    if num_trials > _COUNTED:
        return rng.binomial(num_trials, success_prob, size)
    count = np.zeros(size, np.int8)
    for _ in range(num_trials):
        count += rng.random(size) < success_prob
    return count


@dataclass(frozen=True)
class BinomialNoise(Finite):
    """An integer in 0 … l plus Binomial(M, p).

    Paper: fdp, Algorithm 1 and Theorem 2.
    Assumes: integers; those outside 0 … l are clipped.
    Args: max_value — l;  num_trials — M;  success_prob — p in [0, 1]; at the ends, and for l > M, the inputs can be
        told apart for certain.
    """

    max_value: int
    num_trials: int
    success_prob: float

    def __post_init__(self):
        checks.integer("max_value", self.max_value, low=1, high=2**53)
        checks.integer("num_trials", self.num_trials, low=1, high=2**53)
        checks.probability("success_prob", self.success_prob)

    @property
    def symbols(self):
        return range(self.max_value + self.num_trials + 1)

    @property
    def worst_inputs(self):
        return ((0, self.max_value),)

    @cached_property
    def _noise_logs(self):
        """Log masses of the noise alone, which every input shares."""
        return log_binomial(self.num_trials, self.success_prob)

    def log_masses(self, value):
        logs = np.full(len(self.symbols), -np.inf)
        start = int(self._inputs(value))
        logs[start : start + self.num_trials + 1] = self._noise_logs
        return logs

    def _inputs(self, data):
        return whole_numbers(data, self.max_value)

    @property
    def variance(self):
        """Mp(1 − p), of the noise."""
        return self.num_trials * self.success_prob * (1 - self.success_prob)

    def release(self, data, *, rng):
        """The noisy integers, int64."""

        def encode(values):
            noise = draw_binomial(self.num_trials, self.success_prob, size=values.size, rng=rng)
            return self._inputs(values) + noise

        return self._encode(data, encode, np.int64)

    def decode(self, symbols):
        """The input less the noise's mean: unbiased, of variance Mp(1 − p)."""
        return checks.array("symbols", symbols) - self.num_trials * self.success_prob


@dataclass(frozen=True)
class QuantisedBinomial(Finite):
    """cpSGD's mechanism: a number in [−c, c], rounded at random to one of k levels, plus binomial noise.

    The curve is that of binomial noise with l = k − 1, attained at ±c: mixtures of neighbouring levels have monotone
    ratios too.

    Paper: fdp, Algorithm 1 (of Agarwal et al. 2018).
    Args: clip — c;  num_levels — k, at least 2;  num_trials — M;  success_prob — p.
    """

    clip: float
    num_levels: int
    num_trials: int
    success_prob: float

    def __post_init__(self):
        checks.positive("clip", self.clip, finite=True)
        checks.integer("num_levels", self.num_levels, low=2)
        self.noise  # noqa: B018  its checks

    @property
    def noise(self):
        """What is done to a level."""
        return BinomialNoise(self.num_levels - 1, self.num_trials, self.success_prob)

    @property
    def symbols(self):
        return self.noise.symbols

    @property
    def worst_inputs(self):
        return ((-self.clip, self.clip),)

    def _levels(self, values):
        """The level below, and how far above it."""
        place = (values + self.clip) / (2 * self.clip) * (self.num_levels - 1)
        level = np.minimum(np.floor(place), self.num_levels - 2)
        return level, place - level

    def log_masses(self, value):
        level, share = self._levels(self._inputs(float(value)))
        with np.errstate(divide="ignore"):
            below, above = np.log1p(-share), np.log(share)
        return np.logaddexp(below + self.noise.log_masses(level), above + self.noise.log_masses(level + 1))

    def release(self, data, *, rng):
        """Noisy levels, int64."""

        def encode(values):
            level, share = self._levels(self._inputs(values))
            noise = draw_binomial(self.num_trials, self.success_prob, size=values.size, rng=rng)
            return level + (rng.random(values.size) < share) + noise

        return self._encode(data, encode, np.int64)

    def decode(self, symbols):
        """Back on [−c, c]: unbiased."""
        return (self.noise.decode(symbols) / (self.num_levels - 1) * 2 - 1) * self.clip


@dataclass(frozen=True)
class BinomialMechanism(Finite):
    """Binomial(M, p(x)) with p(x) rising linearly from p_min at −c to p_max at c.

    Paper: fdp, Algorithm 2 and Theorem 3.
    Args: clip — c;  num_trials — M;  p_min, p_max — in [0, 1], p_min < p_max; with an end at 0 or 1 some output rules
        an input out.
    """

    clip: float
    num_trials: int
    p_min: float
    p_max: float

    def __post_init__(self):
        checks.positive("clip", self.clip, finite=True)
        checks.integer("num_trials", self.num_trials, low=1, high=2**53)
        low = checks.probability("p_min", self.p_min)
        checks.real("p_max", self.p_max, low=low, high=1.0, open_low=True, hint=f"it must exceed p_min={low:g}")

    @classmethod
    def scaled(cls, *, clip, scale_b, num_trials):
        """p(x) = (B + x)/2B, B > c: the mechanism of Theorem 5.

        Side: μ and ε are exact for one number in [−c, c], replaced.
        Args: clip — c;  scale_b — B.
        """
        clip_below(clip, "scale_b", scale_b)
        return cls(clip, num_trials, (scale_b - clip) / (2 * scale_b), (scale_b + clip) / (2 * scale_b))

    @classmethod
    def poisson_binomial(cls, *, clip, theta, num_trials):
        """p(x) = 1/2 + θx/c, any θ in (0, 1/2) (Chen et al. 2022 ask for at most 1/4).

        Paper: fdp, Remark 6.
        Args: clip — c;  theta — θ.
        """
        theta = checks.real("theta", theta, low=0.0, high=0.5, open_low=True, open_high=True)
        return cls(clip, num_trials, 0.5 - theta, 0.5 + theta)

    @property
    def symbols(self):
        return range(self.num_trials + 1)

    @property
    def worst_inputs(self):
        return ((self.clip, -self.clip),)

    def success_prob(self, values):
        """p(x), exact at both ends.

        Args: values — inputs, any shape; outside ±c they are clipped.
        """
        share = (self._inputs(values) + self.clip) / (2 * self.clip)
        return (1 - share) * self.p_min + share * self.p_max

    def log_masses(self, value):
        return log_binomial(self.num_trials, float(self.success_prob(float(value))))

    def release(self, data, *, rng):
        """Counts of successes, int64."""

        def encode(values):
            return draw_binomial(self.num_trials, self.success_prob(values), size=values.size, rng=rng)

        return self._encode(data, encode, np.int64)

    def decode(self, symbols):
        """The share of successes on the scale of x: unbiased.

        Paper: fdp, Remark 6 (for one user: :math:`\\tfrac{c}{M\\theta}(Z - M/2)`).
        """
        rate = checks.array("symbols", symbols) / self.num_trials
        return (2 * (rate - self.p_min) / (self.p_max - self.p_min) - 1) * self.clip


@dataclass(frozen=True)
class PoissonBinomial(Finite):
    r"""The sum of N users' Binomial(M, p_i): what a server sees after secure aggregation.

    One user's p_i changes. The others' trials are mixtures of trials at p_min and at p_max, the same on both sides; so
    the curve is at least the convex hull of those at the ends, one for each number of the others' trials at p_max.
    That hull is what :meth:`tradeoff` states: a lower bound. The smallest of those curves themselves is none, as others
    in between can do worse: three users in [0.3, 0.7] have 0.5067 at α = 0.3 at the ends, 0.5 for others at 0.3 and
    0.5, and 0.4808 on the hull.

    Paper: fdp, Algorithm 6 and Theorem 9 (a weaker bound: it holds for the user alone).
    Assumes: the server sees the sum only.
    Args: num_users — N;  num_trials — M;  p_min, p_max — as of :class:`BinomialMechanism`.
    """

    num_users: int
    num_trials: int
    p_min: float
    p_max: float

    def __post_init__(self):
        checks.integer("num_users", self.num_users, low=1)
        BinomialMechanism(1.0, self.num_trials, self.p_min, self.p_max)

    @property
    def symbols(self):
        return range(self.num_users * self.num_trials + 1)

    def _inputs(self, data):
        probs = checks.array("data", data)
        if probs.ndim == 0 or probs.shape[0] != self.num_users:
            raise ValueError(f"data must hold p_i of num_users={self.num_users} users first, got shape {probs.shape}")
        return np.clip(probs, self.p_min, self.p_max)

    def log_masses(self, value):
        """Log masses of the sum. Args: value — all users' p_i."""
        logs = np.zeros(1)
        for prob in self._inputs(value):
            logs = _convolved(logs, log_binomial(self.num_trials, float(prob)))
        return logs

    @cached_property
    def curves(self):
        """For each number of the others' trials at p_max, both orders of the user's own p_i."""
        others = (self.num_users - 1) * self.num_trials
        own = [log_binomial(self.num_trials, p) for p in (self.p_min, self.p_max)]
        found = []
        for high in range(others + 1):
            rest = _convolved(log_binomial(high, self.p_max), log_binomial(others - high, self.p_min))
            low_sum, high_sum = (_convolved(rest, logs) for logs in own)
            found += [Tradeoff.of_logs(low_sum, high_sum), Tradeoff.of_logs(high_sum, low_sum)]
        return tuple(found)

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error, whoever the others are: a lower bound, convex."""
        check_local(neighbouring, sampling)
        return self.curve(type1)

    def release(self, data, *, rng):
        """The sum over users, int64. Args: data — p_i, shape (N, …)."""
        probs = self._inputs(data)
        return draw_binomial(self.num_trials, probs, size=probs.shape, rng=rng).sum(axis=0, dtype=np.int64)

    def decode(self, symbols, *, clip=1.0):
        """The mean of the users' numbers, each in [−c, c] and encoded as :class:`BinomialMechanism` does.

        Paper: fdp, Remark 6: :math:`\\tfrac{c}{MN\\theta}\\big(\\sum Z_i - \\tfrac{MN}{2}\\big)`.
        Args: symbols — sums over the users, any shape;  clip — c.
        """
        rate = checks.array("symbols", symbols) / (self.num_users * self.num_trials)
        clip = checks.positive("clip", clip, finite=True)
        return (2 * (rate - self.p_min) / (self.p_max - self.p_min) - 1) * clip


def smallest_delta(noise):
    """The mass of binomial noise that rules an input out: no smaller δ has a finite ε, and the ε at which it does.

    Paper: fdp, Remark 4 (4.61e-136 at M = 500, l = 8, p = 1/2).
    Printed: P(Z < 8), rounded up.   Used: 4.6049700160e-136, at ε = log C(500, 8) = 39.06.
    Side: exact for one integer in 0 … l, replaced.
    Args: noise — a :class:`BinomialNoise`.
    """
    curve = noise.curve
    delta = float(curve.delta(math.inf))
    return delta, curve.epsilon(delta).upper if delta < 1 else math.inf
