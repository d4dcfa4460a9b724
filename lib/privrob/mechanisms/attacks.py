"""Attacks on compressors: their releases on two inputs, told apart by the best tests, against what they claim.

attacks.attack(StoSign(0.1, 0.25), -0.1, 0.1, num_draws=100_000, delta=0.01, rng=rng)

The tests reject beyond a threshold on the output. For every mechanism of this folder the ratio of the masses at its
worst inputs is monotone in the output, so that these are the best tests there are (Neyman and Pearson). Nothing is
taken from the masses: thresholds come from one half of the releases, counts from the other.

Source: ours; the intervals are Clopper and Pearson's, by :mod:`privrob.accounting.measured`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.accounting import audit, measured
from privrob.accounting.tradeoff import Tradeoff, approximate_dp

_HOW = {"neighbouring": "replace", "sampling": "none"}


@dataclass(frozen=True)
class Attack:
    """What an attack measured, beside what is exact. All of it holds, except with twice ``failure_prob``.

    Fields: mechanism — the attacked one; own — the exact curve of the two attacked inputs;  forward, backward —
    :class:`.Errors` against it
    and its inverse;  epsilon, epsilon_lower — at ``delta``, claimed and proven;  distance, distance_lower — δ at ε = 0,
    claimed and proven.
    """

    mechanism: object
    own: Tradeoff
    forward: measured.Errors
    backward: measured.Errors
    delta: float
    epsilon: float
    epsilon_lower: float
    distance: float
    distance_lower: float

    def guarantee(self, type1):
        """The trade-off function that the mechanism claims."""
        return self.mechanism.tradeoff(type1, **_HOW)

    def refutes(self, claim):
        """Whether the releases prove a trade-off function, claimed for both orders of the inputs, to be too high.

        ``claim``: α → β.
        """
        return bool(self.forward.refuted(claim).any() or self.backward.refuted(claim).any())

    @property
    def guarantee_stands(self):
        """Whether no test got below the mechanism's own claims."""
        inside = self.epsilon_lower <= self.epsilon and self.distance_lower <= self.distance
        return inside and not self.refutes(self.guarantee)

    @property
    def best_tests(self):
        """Whether no test is clearly worse than the exact curve of the attacked inputs."""
        return not (self.forward.missed(self.own).any() or self.backward.missed(self.own.inverse()).any())

    @property
    def half_refuted(self):
        """Whether a claim of half of ε, at the same δ, is proven wrong; of half of δ at ε = 0, where ε is infinite."""
        half = {"epsilon": self.epsilon / 2, "delta": self.delta}
        if math.isinf(self.epsilon):
            half = {"epsilon": 0.0, "delta": self.distance / 2}
        return self.refutes(lambda type1: approximate_dp(type1, **half))


def attack(mechanism, one, other, *, num_draws, delta, rng, failure_prob=1e-3, num_thresholds=20):
    """Release two inputs so many times each, and measure: :class:`Attack`.

    Args: one, other — inputs, ``one`` that of the smaller outputs; for a sum of users everybody's, shape (N,);
        num_draws — of each, at least 4;  delta — at which ε is attacked;
        num_thresholds — tests that are tried, at least 1.
    """
    number = checks.integer("num_draws", num_draws, low=4)
    low, high = (_released(mechanism, value, number, rng) for value in (one, other))
    how = {"failure_prob": failure_prob / 2, "num_thresholds": num_thresholds}
    forward, backward = measured.errors_of(low, high, **how), measured.errors_of(-high, -low, **how)
    found = audit.two_samples(high, low, delta=delta, failure_prob=failure_prob)
    return Attack(
        mechanism=mechanism,
        own=Tradeoff.of_logs(*(mechanism.log_masses(value) for value in (one, other))),
        forward=forward,
        backward=backward,
        delta=delta,
        epsilon=mechanism.epsilon(delta, **_HOW).upper,
        epsilon_lower=found.epsilon_lower,
        distance=float(mechanism.curve.delta(0.0)),
        distance_lower=max(float((1 - e.type1_upper - e.type2_upper).max()) for e in (forward, backward)),
    )


def _released(mechanism, value, number, rng):
    """Many outputs at one input, as numbers."""
    data = np.repeat(np.asarray(value, dtype=np.float64)[..., None], number, axis=-1)
    return mechanism.release(data, rng=rng).astype(np.float64)
