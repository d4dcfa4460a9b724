r"""The exponential mechanism on a finite list of answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.accounting import pairs, rdp, tradeoff
from privrob.kinds import Interval, Neighbouring, NotAvailable, Sampling


@dataclass(frozen=True)
class Exponential:
    r"""One of the answers, with probability ∝ exp(ε u/(2Δ)); ε-DP.

    Paper: prime, Eq. (19) and Proposition I.2.
    Args: pure_epsilon — ε;  sensitivity — Δ, the largest change of any answer's utility between neighbours.
    """

    pure_epsilon: float
    sensitivity: float

    def __post_init__(self):
        checks.nonnegative("pure_epsilon", self.pure_epsilon, finite=True)
        checks.positive("sensitivity", self.sensitivity, finite=True)

    def log_probs(self, utilities):
        """Log probability of each answer: shape (k,).

        Args: utilities — of the answers, shape (k,).
        """
        utilities = checks.array("utilities", utilities, ndim=1)
        logs = (utilities - utilities.max()) * (self.pure_epsilon / (2 * self.sensitivity))
        if not np.isfinite(logs).all():
            raise ValueError(
                f"utilities must differ by less over 2Δ/ε than doubles hold, got pure_epsilon={self.pure_epsilon!r}"
            )
        return logs - np.log(np.exp(logs).sum())

    def release(self, data, *, rng):
        """The place of the answer drawn. Args: data — the utilities, shape (k,), at least one."""
        return int(np.argmax(self.log_probs(data) + rng.gumbel(size=len(data))))

    def _check(self, neighbouring, sampling):
        Neighbouring.of(neighbouring)
        if Sampling.of(sampling) is not Sampling.NONE:
            raise NotAvailable("the exponential mechanism states its guarantee without sampling; pass sampling='none'")

    def rdp(self, orders, *, neighbouring, sampling):
        """That of randomized response at ε, which no ε-DP mechanism exceeds: shape (k,).

        Side: upper.
        """
        self._check(neighbouring, sampling)
        return rdp.randomized_response(orders, epsilon=self.pure_epsilon)

    def pairs(self, *, neighbouring, sampling):
        """Randomized response at ε."""
        self._check(neighbouring, sampling)
        return pairs.randomized_response(epsilon=self.pure_epsilon)

    def tradeoff(self, type1, *, neighbouring, sampling):
        """max(0, 1 − e^ε α, e^−ε (1 − α)).

        Side: lower.
        Args: type1 — α, any shape.
        """
        self._check(neighbouring, sampling)
        return tradeoff.approximate_dp(type1, epsilon=self.pure_epsilon, delta=0.0)

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε at this δ of randomized response, an upper end."""
        self._check(neighbouring, sampling)
        upper = pairs.compose([(pairs.randomized_response(epsilon=self.pure_epsilon), 1)], delta=delta).upper
        return Interval(0.0, upper, upper)
