"""Compressors to one bit: the stochastic sign, CLDP∞, the sign of a noisy number, and the plain sign.

The rule for zero: the sign of 0 is +1 or −1 by a fair coin, so that x and −x are treated alike.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from privrob import checks
from privrob.accounting.logspace import log1mexp
from privrob.mechanisms.discrete import MOST, Finite, clip_alone, clip_below


class _Signs(Finite):
    """±1 with a probability of +1 that rises with x and is 1/2 at 0."""

    symbols = (-1, 1)

    @property
    def worst_inputs(self):
        return ((-self.clip, self.clip),)

    def plus_prob(self, values):
        """Probability of +1.

        Args: values — inputs, any shape; outside ±c they are clipped.
        """
        raise NotImplementedError

    def log_masses(self, value):
        with np.errstate(divide="ignore"):
            return np.log([float(self.plus_prob(-float(value))), float(self.plus_prob(float(value)))])

    def release(self, data, *, rng):
        """Signs, int8."""
        return self._encode(data, lambda x: 2 * (rng.random(x.size) < self.plus_prob(x)).view(np.int8) - 1, np.int8)


@dataclass(frozen=True)
class StoSign(_Signs):
    """+1 with probability (A + x)/2A.

    Paper: fdp, Definition 4 and Example 1: (ln((A + c)/(A − c)), 0)-DP.
    Args: clip — c;  scale_a — A > c.
    """

    clip: float
    scale_a: float

    def __post_init__(self):
        clip_below(self.clip, "scale_a", self.scale_a)

    def plus_prob(self, values):
        return (self.scale_a + self._inputs(values)) / (2 * self.scale_a)

    def decode(self, symbols):
        """A times the sign: unbiased."""
        return self.scale_a * checks.array("symbols", symbols)


@dataclass(frozen=True)
class CLDP(_Signs):
    """+1 with probability 1/2 + (x/2c) tanh(ε/2): exactly ε-DP.

    It is :class:`StoSign` with A = c/tanh(ε/2); and a sto-sign with A = c, then randomised response; and the one-bit
    compressor of Chen et al. (2020).

    Paper: fdp, Definition 5 and Example 2.
    Args: clip — c;  target_epsilon — ε.
    """

    clip: float
    target_epsilon: float

    def __post_init__(self):
        clip_alone(self.clip)
        checks.positive("target_epsilon", self.target_epsilon, finite=True)
        if float(self.clip) > math.tanh(self.target_epsilon / 2) * MOST:
            raise ValueError(
                f"target_epsilon must be at least {2 * self.clip / MOST:g} and above 1e-323 at clip={self.clip:g}, "
                f"so that scale_a is a double, got target_epsilon={self.target_epsilon!r}"
            )

    @property
    def scale_a(self):
        """A of the same sto-sign."""
        return self.clip / math.tanh(self.target_epsilon / 2)

    def plus_prob(self, values):
        return 0.5 + self._inputs(values) / (2 * self.clip) * math.tanh(self.target_epsilon / 2)

    def decode(self, symbols):
        """A times the sign: unbiased."""
        return self.scale_a * checks.array("symbols", symbols)


@dataclass(frozen=True)
class NoisySign(_Signs):
    """The sign of x plus Gaussian noise of standard deviation 2cσ; without an unbiased decoder.

    Paper: fdp, Algorithm 3 and (25); printed and used: :func:`privrob.accounting.fdp_forms.noisy_sign`.
    Args: clip — c;  noise_ratio — σ: releasing x plus noise would be 1/σ-GDP.
    """

    clip: float
    noise_ratio: float

    def __post_init__(self):
        clip_alone(self.clip)
        checks.positive("noise_ratio", self.noise_ratio, finite=True)
        if not 1e-300 <= self._spread <= MOST:
            raise ValueError(
                f"noise_ratio must give noise of a standard deviation 2 * clip * noise_ratio in [1e-300, {MOST:g}], "
                f"got noise_ratio={self.noise_ratio!r} at clip={self.clip!r}; scale the data"
            )

    @property
    def _spread(self):
        """2cσ."""
        return 2 * float(self.clip) * float(self.noise_ratio)

    def plus_prob(self, values):
        return ndtr(self._inputs(values) / self._spread)

    def log_masses(self, value):
        reach = float(self._inputs(float(value))) / self._spread
        logs = float(log_ndtr(-abs(reach)))
        return np.array([log1mexp(logs), logs] if reach < 0 else [logs, log1mexp(logs)])


@dataclass(frozen=True)
class Sign(_Signs):
    """The plain sign: no privacy (f = 0), a baseline. The sign of 0 is a fair coin.

    Paper: fdp, Section 4.5.
    Args: clip — c; it changes no output.
    """

    clip: float = 1.0

    def __post_init__(self):
        clip_alone(self.clip)

    def plus_prob(self, values):
        return (np.sign(self._inputs(values)) + 1) / 2


def word_law(plus_probs, *, odds):
    """Law of the b-bit answer of Chen et al. (2020): independent bits, then one of all 2^b words at random.

    The true word is ``odds`` times as likely as each other one. With one bit this is :class:`CLDP`, and randomised
    response on a sto-sign with A = c.

    Paper: fdp, Example 2 (last sentence).
    Args: plus_probs — probabilities that the bits are 1: floats, or fractions, in which case the law is exact;
        odds — e^ε.
    Returns: probability by word, a dict of tuples of 0 and 1.
    """
    checks.positive("odds", odds, finite=True)
    law = {}
    for word in itertools.product((0, 1), repeat=len(plus_probs)):
        law[word] = math.prod(p if bit else 1 - p for p, bit in zip(plus_probs, word, strict=True))
    lie = 1 / (odds + len(law) - 1)
    return {word: lie + (odds - 1) * lie * mass for word, mass in law.items()}
