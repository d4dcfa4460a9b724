r"""Compositions of finite pairs with few outcomes in all: every outcome counted, exact but for rounding.

T draws of a loss with k distinct values have :math:`\binom{T + k - 1}{k - 1}` outcomes with multinomial probabilities;
unlike steps multiply. δ is then a sum over the outcomes, linear in e^ε between two losses.

Source: ours.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from privrob.accounting.dominating import DiscretePair
from privrob.kinds import Interval

_MOST = 2**17  # outcomes that are counted one by one


class Counted:
    """All outcomes of a composition of finite pairs, one by one.

    Args: parts — a list of (:class:`privrob.accounting.dominating.DiscretePair`, count).
    """

    @classmethod
    def of(cls, parts):
        """The outcomes, or None where they are too many or a pair isn't finite.

        Args: parts — as for the class.
        """
        number = 1
        for pair, count in parts:
            if not isinstance(pair, DiscretePair):
                return None
            kinds = int(np.isfinite(pair.atoms[0]).sum())
            if kinds > 1 and (count + kinds) * math.log(1 + min(count, kinds - 1) / max(count, kinds - 1)) > 40:
                return None
            number *= math.comb(count + max(kinds, 1) - 1, count) if number else 0
            if number > _MOST:
                return None
        return cls(parts)

    def __init__(self, parts):
        losses, logs = np.zeros(1), np.zeros(1)
        self.slack, self.rounding = 1e-13, 1e-15
        for pair, count in parts:
            finite = np.isfinite(pair.atoms[0])
            values, masses = pair.atoms[0][finite], pair.atoms[1][finite]
            more = _multinomial(values, masses, count)
            losses, logs = (np.add.outer(a, b).ravel() for a, b in zip((losses, logs), more))
            largest = np.max(np.abs(masses), initial=0.0)
            self.slack += 1e-15 * (2 * float(gammaln(count + 1)) + count * largest)
            self.rounding += 1e-15 * count * np.max(np.abs(values), initial=0.0)
        order = np.argsort(losses)[::-1]  # from the top
        self.losses, self.logs = losses[order], logs[order]
        self.log_p = np.logaddexp.accumulate(self.logs)  # mass at this loss or above
        self.log_q = np.logaddexp.accumulate(self.logs - self.losses)
        self.slack += 4e-16 * self.losses.size

    def _read_delta(self, epsilon, infinite):
        """δ, and the mass above ε, both up to rounding."""
        i = int(np.searchsorted(-self.losses, -epsilon, side="left")) - 1  # the lowest loss above ε
        if i < 0:
            return infinite, infinite
        above = math.exp(self.log_p[i])
        gain = above * -math.expm1(min(0.0, epsilon + self.log_q[i] - self.log_p[i]))
        return min(1.0, infinite + gain), infinite + above

    def _read_epsilon(self, delta, infinite):
        if infinite > delta:
            return math.inf
        with np.errstate(over="ignore"):
            gain = np.exp(self.log_p) * -np.expm1(np.minimum(0.0, self.losses + self.log_q - self.log_p))
        over = np.flatnonzero(infinite + gain > delta)  # δ at each loss
        # ε lies below the last loss at which δ is small enough, in a piece where δ is linear in e^ε
        i = (over[0] if over.size else self.losses.size) - 1
        rest = math.exp(self.log_p[i]) + infinite - delta
        return max(0.0, math.log(rest) - float(self.log_q[i])) if rest > 0 else 0.0

    def delta(self, epsilon, infinite):
        """δ at ε as an :class:`.Interval`. Args: infinite — mass at infinity."""
        value, _ = self._read_delta(epsilon, infinite)
        most, above = self._read_delta(epsilon - self.rounding, infinite)
        least, _ = self._read_delta(epsilon + self.rounding, infinite)
        spare = self.slack * above
        return Interval(min(value, max(0.0, least - spare)), value, min(1.0, max(value, most + spare)))

    def epsilon(self, delta, infinite):
        """ε at δ as an :class:`.Interval`: both ends are moved outwards until their own δ says so.

        Args: delta — in [0, 1);  infinite — the probability of an infinite loss under P.
        """
        value = self._read_epsilon(delta, infinite)
        if value == math.inf:
            return Interval(0.0, value, value)
        lower, upper, step = value, value, self.rounding
        while lower > 0 and self.delta(lower, infinite).lower < delta:
            lower, step = max(0.0, lower - step), 2 * step
        step = self.rounding
        while self.delta(upper, infinite).upper > delta:
            if upper > self.losses[0] + self.rounding:
                upper = math.inf
                break
            upper, step = upper + step, 2 * step
        return Interval(lower, value, upper)


def _multinomial(values, log_masses, count):
    """Sums of ``count`` draws and their log probabilities, one for each way to share the draws among the values."""
    left, losses, logs = np.array([count]), np.zeros(1), np.full(1, float(gammaln(count + 1)))
    for i, (value, log_mass) in enumerate(zip(values, log_masses)):
        if i < values.size - 1:
            row = np.repeat(np.arange(left.size), left + 1)
            used = np.arange(row.size) - np.repeat(np.cumsum(left + 1) - left - 1, left + 1)
            left, losses, logs = left[row] - used, losses[row], logs[row]
        else:
            used, left = left, np.zeros_like(left)
        with np.errstate(invalid="ignore"):
            mass = np.where(used > 0, used * log_mass, 0.0)
        losses, logs = losses + used * value, logs + mass - gammaln(used + 1)
    return losses, logs
