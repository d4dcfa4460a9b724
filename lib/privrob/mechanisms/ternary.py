"""Compressors to −1, 0 and 1: signs that are mostly not sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privrob import checks
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import NotAvailable
from privrob.mechanisms.discrete import MOST, Finite, clip_alone, clip_below


class _Ternary(Finite):
    """Subclasses give the probability of +1 and that of any sign at all."""

    symbols = (-1, 0, 1)

    @property
    def worst_inputs(self):
        return ((-self.clip, self.clip),)

    def probs(self, values):
        """Probabilities of +1, an array, and of ±1, an array or one for all values.

        Args: values — inputs, any shape; outside ±c they are clipped.
        """
        raise NotImplementedError

    def log_masses(self, value):
        plus, some = (float(p) for p in self.probs(float(value)))
        with np.errstate(divide="ignore"):
            return np.log([some - plus, 1 - some, plus])

    def release(self, data, *, rng):
        """−1, 0 or 1, int8."""

        def encode(values):
            plus, some = self.probs(values)
            draws = rng.random(values.size)
            return 2 * (draws < plus).view(np.int8) - (draws < some).view(np.int8)

        return self._encode(data, encode, np.int8)


@dataclass(frozen=True)
class Ternary(_Ternary):
    """±1 with probability (A ± x)/2B, 0 with 1 − A/B.

    Paper: fdp, Example 3.
    Printed: A > B > c.   Used: B ≥ A > c: the printed order makes P(0) negative, and the figures use A = 0.25, B = 0.5.
    Args: clip — c;  scale_a — A;  scale_b — B.
    """

    clip: float
    scale_a: float
    scale_b: float

    def __post_init__(self):
        clip_below(self.clip, "scale_a", self.scale_a)
        a = float(self.scale_a)
        checks.real("scale_b", self.scale_b, low=a, high=MOST, hint=f"it must be at least scale_a={a:g}")

    def probs(self, values):
        some = self.scale_a / self.scale_b
        plus = (self.scale_a + self._inputs(values)) / (2 * self.scale_b)
        return plus, some

    def log_masses(self, value):
        x = float(self._inputs(float(value)))
        with np.errstate(divide="ignore"):
            return np.log(
                [
                    (self.scale_a - x) / (2 * self.scale_b),
                    (self.scale_b - self.scale_a) / self.scale_b,
                    (self.scale_a + x) / (2 * self.scale_b),
                ]
            )

    def decode(self, symbols):
        """B times the symbol: unbiased."""
        return self.scale_b * checks.array("symbols", symbols)


@dataclass(frozen=True)
class GeneralTernary(_Ternary):
    """0 with a fixed probability, +1 with one that rises linearly from ``plus_min`` at −c to ``plus_max`` at c.

    Paper: fdp, Definition 6 and Theorem 4, whose condition p_max + p_min = 1 − p₀ means plus_min + plus_max = 1 − p₀
    here; elsewhere Theorem 4 on the enclosing interval is a lower bound.
    Args: clip — c;  zero_prob — p₀;  plus_min, plus_max — within [0, 1 − p₀].
    """

    clip: float
    zero_prob: float
    plus_min: float
    plus_max: float

    def __post_init__(self):
        clip_alone(self.clip)
        some = 1 - checks.probability("zero_prob", self.zero_prob, allow_one=False)
        low = checks.real("plus_min", self.plus_min, low=0.0, high=some, hint=f"zero_prob={self.zero_prob:g} is fixed")
        checks.real(
            "plus_max", self.plus_max, low=low, high=some, open_low=True, hint=f"zero_prob={self.zero_prob:g} is fixed"
        )

    def probs(self, values):
        share = (self._inputs(values) + self.clip) / (2 * self.clip)
        plus = (1 - share) * self.plus_min + share * self.plus_max  # exact at both ends
        return plus, 1 - self.zero_prob

    def decode(self, symbols):
        """The symbol, shifted and scaled: unbiased."""
        mean = self.plus_min + self.plus_max - (1 - self.zero_prob)  # of the symbol at x = 0
        return (checks.array("symbols", symbols) - mean) * self.clip / (self.plus_max - self.plus_min)


@dataclass(frozen=True)
class Ternarize(_Ternary):
    """sign(x) with probability |x|/B, else 0: TernGrad without its scaling factor, which would tell the magnitude.

    Paper: fdp, Definition 7, Example 4 and Remark 8: (0, c/B)-DP.
    Printed: an output of 0 is perfectly private.   Used: P(0 | 0)/P(0 | c) = 1/(1 − c/B); δ = c/B comes from ±1.
    Args: clip — c;  scale_b — B > c.
    """

    clip: float
    scale_b: float

    def __post_init__(self):
        clip_below(self.clip, "scale_b", self.scale_b)

    def probs(self, values):
        values = self._inputs(values)
        return np.maximum(values, 0.0) / self.scale_b, np.abs(values) / self.scale_b

    def decode(self, symbols):
        """B times the symbol: unbiased."""
        return self.scale_b * checks.array("symbols", symbols)


@dataclass(frozen=True)
class TernGrad(Finite):
    """Ternarize with B = s, the largest magnitude in the vector itself, and the result times s: no privacy at all.

    Vectors with different s have no output in common. Not to send s does not help: where a magnitude is s, an output
    of 0 is impossible, and elsewhere it isn't. So the curve is f = 0, with or without s.

    Paper: fdp, Remark 8 (of Wen et al. 2017).
    Printed: the factor s reveals the magnitude.   Used: so it does, and the probabilities |x|/s do without it.
    Args: send_scale — whether the signs and zeros are multiplied by s;  clip_stds — magnitudes are clipped first, at so
        many standard deviations of the vector's entries (Wen et al. take 2.5).
    """

    send_scale: bool = True
    clip_stds: float = math.inf

    def __post_init__(self):
        checks.choice("send_scale", self.send_scale, (True, False))
        checks.positive("clip_stds", self.clip_stds)

    @property
    def symbols(self):
        if self.send_scale:
            raise NotAvailable("TernGrad's alphabet depends on its input; so does what it reveals")
        return (-1, 0, 1)

    @cached_property
    def curves(self):
        """One output rules the other input out for certain: the plain sign of one number is a special case."""
        return (Tradeoff.of([1.0, 0.0], [0.0, 1.0]),)

    def scaled(self, data):
        """x/s within ±1 and s, for vectors along the last axis; 0 and 0 for a vector of zeros."""
        values = checks.array("data", data)
        if values.ndim == 0:
            raise ValueError("data must be a vector, or vectors along the last axis, got a single number")
        if math.isfinite(self.clip_stds):
            size = np.abs(values).max(axis=-1, keepdims=True, initial=0.0)
            unit = np.where(
                (size > 1e150) | ((size > 0) & (size < 1e-150)), size, 1.0
            )  # squares of these aren't doubles
            with np.errstate(over="ignore"):
                reach = self.clip_stds * (values / unit).std(axis=-1, keepdims=True) * unit
            values = np.clip(values, -reach, reach)
        scale = np.abs(values).max(axis=-1, keepdims=True, initial=0.0)
        return values / np.where(scale > 0, scale, 1.0), scale

    def log_masses(self, value):
        """Log probabilities of −1, 0 and 1 in each coordinate of a vector, shape (d, 3): independent of each other."""
        shares, _ = self.scaled(value)
        with np.errstate(divide="ignore"):
            return np.log(np.stack([np.maximum(-shares, 0), 1 - np.abs(shares), np.maximum(shares, 0)], axis=-1))

    def release(self, data, *, rng):
        """Signs and zeros times s, float64; or int8 without s."""
        shares, scale = self.scaled(data)
        symbols = np.sign(shares) * (rng.random(shares.shape) < np.abs(shares))
        return symbols * scale if self.send_scale else symbols.astype(np.int8)

    def decode(self, symbols):
        """The output itself: unbiased where s was sent and nothing was clipped."""
        if not self.send_scale or math.isfinite(self.clip_stds):
            raise NotAvailable("TernGrad is unbiased with send_scale=True and clip_stds=inf only")
        return checks.array("symbols", symbols)
