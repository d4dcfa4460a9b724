r"""Trade-off functions: the smallest type-II error of any test at each type-I error, exactly, for any finite pair.

The null hypothesis is P, so that :math:`T(P, Q)(\alpha) = \inf\{1 - E_Q\phi : E_P\phi \le \alpha\}`. By Neyman and
Pearson the best test rejects where Q/P is largest, and randomises at the edge: sorted by likelihood ratio, the atoms
are the pieces of a convex, piecewise linear curve. Atoms of equal ratio are one piece; those without mass under P make
:math:`f(0) < 1`, those without mass under Q end the curve before 1. So a curve *is* a finite pair, and back.

Masses are logarithms, and each sum is taken from its own end: α, 1 − α, β and 1 − β all keep their digits, also where
they are far below 1e-308. Least curves of several are in :mod:`privrob.accounting.tradeoff_least`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtri_exp

from privrob import checks
from privrob.accounting.dominating import DiscretePair
from privrob.accounting.logspace import log_cumsum, log_diff_exp, log_power_excess
from privrob.accounting.pairs import Pair
from privrob.kinds import Interval

_ROUNDING = 1e-14  # relative, of a sum of masses


class Knots(NamedTuple):
    """Where the pieces meet, as logarithms, from α = 0 to α = 1: of α, 1 − α, β and 1 − β.

    The fields ``log_type1``, ``log_accept``, ``log_type2`` and ``log_power`` hold these, shape (n,).
    """

    log_type1: np.ndarray
    log_accept: np.ndarray
    log_type2: np.ndarray
    log_power: np.ndarray


def type1_errors(type1):
    """The argument as an array of numbers in [0, 1]."""
    alpha = checks.array("type1", type1)
    if not ((alpha >= 0) & (alpha <= 1)).all():
        raise ValueError(f"type1 must lie in [0, 1], got type1={type1!r}; it is the probability of a false alarm")
    return alpha


def approximate_dp(type1, *, epsilon, delta):
    r"""The trade-off function of (ε, δ)-DP.

    .. math:: f_{\varepsilon,\delta}(\alpha)
        = \max\{0,\ 1 - \delta - e^\varepsilon \alpha,\ e^{-\varepsilon}(1 - \delta - \alpha)\}

    Paper: fdp, Lemma 1 (6).
    Printed: a mechanism is f-DP if and only if it is (ε, δ)-DP.   Used: so for this f only; for another one, f-DP
    implies (ε, δ)-DP if and only if f is at least this, both lines: :meth:`Tradeoff.delta`.
    """
    alpha = type1_errors(type1)
    epsilon = checks.nonnegative("epsilon", epsilon)
    kept = 1 - checks.probability("delta", delta) - alpha
    with np.errstate(invalid="ignore", over="ignore"):
        steep = np.where(alpha > 0, kept + alpha - np.exp(epsilon) * alpha, kept)
    return np.maximum(0.0, np.maximum(steep, math.exp(-epsilon) * kept))[()]


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """The trade-off function T(P, Q) of a finite pair, P the null hypothesis.

    Paper: fdp, Definition 2 and Theorem 1 (whose closed form wants a ratio that is monotone in the output; this one
    takes any).
    Args: pair — of two pmfs on one alphabet.
    """

    pair: DiscretePair

    def __post_init__(self):
        if not isinstance(self.pair, DiscretePair):
            raise TypeError(f"pair must be a DiscretePair, got {type(self.pair).__name__}; see tradeoff.at for others")

    @classmethod
    def of(cls, p, q):
        """T(P, Q) of two arrays of probabilities ``p`` and ``q``, shape (n,)."""
        return cls(DiscretePair.of(p, q))

    @classmethod
    def of_logs(cls, log_p, log_q):
        """T(P, Q) of two arrays of log masses ``log_p`` and ``log_q``, shape (n,)."""
        return cls(DiscretePair(log_p, log_q))

    @cached_property
    def log_knots(self):
        """:class:`Knots`, one more than there are pieces; equal ones where a piece is steep or level throughout."""
        _, log_p, log_q = self.pair.atoms
        ends = []
        for log_mass in (log_p, log_q):
            before = np.concatenate([[-np.inf], np.minimum(log_cumsum(log_mass), 0.0)])
            after = np.concatenate([np.minimum(log_cumsum(log_mass[::-1])[::-1], 0.0), [-np.inf]])
            before[-1] = after[0] = 0.0
            ends += [before, after]
        log_type1, log_accept, log_power, log_type2 = ends
        return Knots(log_type1, log_accept, log_type2, log_power)

    @property
    def knots(self):
        """(α, β) where the pieces meet, two arrays."""
        return np.exp(self.log_knots.log_type1), np.exp(self.log_knots.log_type2)

    def __call__(self, type1):
        """β at α: exact, the shape of ``type1``; at 0 from the right, which is what a test without false alarms gets.

        Paper: fdp, Definition 2 (4).
        """
        alpha = type1_errors(type1)
        with np.errstate(divide="ignore"):
            return np.exp(self._log_type2(np.log(alpha), np.log1p(-alpha)))[()]

    def log_type2(self, log_type1):
        """log β at log α, for type-I errors below 1e-308 too.

        Side: exact; a lower bound for what the pair dominates.
        Args: log_type1 — log α, at most 0, any shape.
        """
        logs = checks.array("log_type1", log_type1, finite=False)
        if not (logs <= 0).all():
            raise ValueError(f"log_type1 must be at most 0, got log_type1={log_type1!r}")
        return self._log_type2(logs, np.where(logs < -1.0, 0.0, np.log1p(-np.exp(np.maximum(logs, -1.0)))))[()]

    def _log_type2(self, log_alpha, log_rest):
        """The same, at log α and log(1 − α); of the two the smaller one is looked up."""
        _, log_p, log_q = self.pair.atoms
        at, count = self.log_knots, log_p.size
        small = log_alpha < math.log(0.5)
        piece = np.searchsorted(at.log_type1[1:], np.where(small, log_alpha, -1.0), side="left")  # α_i < α <= α_{i+1}
        upward = at.log_accept[::-1]
        from_end = count - 1 - (np.searchsorted(upward, np.where(small, -1.0, log_rest), side="right") - 1)
        piece = np.clip(np.where(small, piece, from_end), 0, count - 1)
        log_end = np.where(small, at.log_type1[piece + 1], log_rest)
        log_here = np.where(small, log_alpha, at.log_accept[piece + 1])
        left = log_diff_exp(log_end, np.minimum(log_here, log_end))  # of the piece, beyond α
        with np.errstate(invalid="ignore"):
            share = np.where(log_p[piece] > -np.inf, np.minimum(left - log_p[piece], 0.0), -np.inf)
            share = np.where(small & (log_alpha == -np.inf), np.where(log_p[piece] > -np.inf, 0.0, -np.inf), share)
        return np.minimum(np.logaddexp(at.log_type2[piece + 1], share + log_q[piece]), 0.0)

    def inverse(self):
        """T(Q, P): α at β."""
        return Tradeoff(self.pair.reversed())

    # ------------------------------------------------------------------------------------------- other kinds of privacy

    def _log_gain(self, epsilon):
        """log of the largest Q(S) − e^ε P(S)."""
        losses = self.pair.atoms[0]  # log P/Q, rising: Q/P exceeds e^ε before −ε
        i = np.maximum(np.searchsorted(losses, -epsilon, side="left"), int(losses[0] == -np.inf))
        power, free = self.log_knots.log_power[i], self.log_knots.log_type1[i]
        cost = np.where(free > -np.inf, np.where(free > -np.inf, free, 0.0) + epsilon, -np.inf)
        return log_diff_exp(power, np.minimum(cost, power))

    def delta(self, epsilon):
        """The smallest δ at ε, of both directions: exact but for rounding, the shape of ``epsilon``.

        Paper: fdp, Lemma 1 and Remark 2 (read for both lines, as f may be asymmetric).
        """
        epsilon = checks.array("epsilon", epsilon, finite=False)
        if not (epsilon >= 0).all():
            raise ValueError(f"epsilon must be at least 0, got epsilon={epsilon}")
        return np.exp(np.maximum(self._log_gain(epsilon), self.inverse_cached._log_gain(epsilon)))[()]

    def epsilon(self, delta):
        """The smallest ε at δ, of both directions, as an :class:`.Interval` as wide as rounding.

        Every knot asks for :math:`e^\\varepsilon \\ge (1 - \\beta - \\delta)/\\alpha`.

        Paper: fdp, Lemma 1 and Remark 2.
        Args: delta — in [0, 1); within 1e-14 of the mass of an unbounded loss it counts as that mass.
        """
        delta = checks.probability("delta", delta, allow_one=False)
        ends = [self._epsilons(delta), self.inverse_cached._epsilons(delta)]
        return Interval(*(float(max(pair)) for pair in zip(*ends)))

    def _epsilons(self, delta):
        power, alpha = self.log_knots.log_power, self.log_knots.log_type1
        free = alpha == -np.inf
        log_delta = math.log(delta) if delta else -math.inf
        if (power[free] + math.log1p(-_ROUNDING) > log_delta).any():
            return (math.inf,) * 3
        found = []
        for slack in (-_ROUNDING, 0.0, _ROUNDING):
            with np.errstate(invalid="ignore"):
                asked = log_diff_exp(power[~free] + slack, np.minimum(log_delta, power[~free] + slack))
                asked = asked - alpha[~free] + slack * (1 + np.abs(alpha[~free]))
            found.append(max(0.0, float(np.max(asked, initial=0.0))))
        return found

    @cached_property
    def inverse_cached(self):
        """:meth:`inverse`, kept."""
        return self.inverse()

    def rdp(self, orders):
        r"""Rényi curve in nats, the larger of both directions, shape (k,); exact, without cancellation near 0.

        .. math:: \tfrac{1}{a-1} \log \textstyle\sum P^a Q^{1-a}
        """
        orders = checks.orders(orders)
        return np.maximum(_renyi(self.pair, orders), _renyi(self.pair.reversed(), orders))

    @cached_property
    def gdp_mu_upper(self):
        r"""The smallest μ with :math:`f \ge G_\mu`, rounded up by about 1e-13: f-DP implies μ-GDP. Infinite where
        :math:`f(0) < 1` or f reaches 0 before 1.

        :math:`G_\mu` is convex and f is linear between knots, so that the knots decide.
        """
        at, losses = self.log_knots, self.pair.atoms[0]
        if np.isinf(losses[[0, -1]]).any():
            return math.inf
        inner = slice(1, -1)
        null = _normal_quantile(at.log_accept[inner], at.log_type1[inner])
        other = _normal_quantile(at.log_type2[inner], at.log_power[inner])
        return float(np.max(null - other, initial=0.0)) * (1 + 1e-13)


def _normal_quantile(log_lower, log_upper):
    """Φ⁻¹ of a probability, from its logarithm or that of its complement, whichever has the digits."""
    return np.where(log_lower < log_upper, ndtri_exp(log_lower), -ndtri_exp(log_upper))


def _renyi(pair, orders):
    """D_a(P ‖ Q) at each order."""
    losses, _, log_q = pair.atoms
    if losses[-1] == np.inf:
        return np.full(orders.size, np.inf)
    result = np.empty(orders.size)
    for i, order in enumerate(orders):
        log_excess = float(logsumexp(log_q + log_power_excess(losses, order - 1)))
        result[i] = np.logaddexp(0.0, math.log(order - 1) + log_excess) / (order - 1)
        if math.log(order - 1) + log_excess < -1:
            result[i] = math.log1p((order - 1) * math.exp(log_excess)) / (order - 1)
    return result


def at(pair, type1):
    r"""T(P, Q) at each type-I error, for any pair: continuous ones, mixtures, samples. A lower bound, tight but for
    rounding and what :meth:`.dominating.Pair.cells` leaves out.

    A test that rejects all losses :math:`\log P/Q \le \tau` touches the curve, with slope :math:`-e^{-\tau}` there;
    the curve lies above each such line, so that a τ found by bisection can only cost tightness. Where the loss has an
    atom, the line is the piece itself.

    Paper: fdp, Remark 3 (Gaussian, Laplace and discrete Gaussian noise).
    Args: pair — any :class:`.dominating.Pair`;  type1 — any shape.
    """
    if isinstance(pair, DiscretePair):
        return Tradeoff(pair)(type1)
    if not isinstance(pair, Pair):
        raise TypeError(f"pair must be a Pair, got {type(pair).__name__}")
    alpha = type1_errors(type1)
    order = np.argsort(alpha.ravel(), kind="stable")  # a larger type-I error, a higher threshold on the loss
    with np.errstate(divide="ignore"):
        goal = np.log(alpha.ravel()[order])
    reach = [max(-1e4, min(1e4, end)) for end in pair.extent]
    low, high = np.full(goal.size, reach[0] - 1.0), np.full(goal.size, reach[1] + 1.0)
    for _ in range(70):
        middle = (low + high) / 2
        below, _ = _sides(pair, middle)
        high, low = np.where(below >= goal, middle, high), np.where(below >= goal, low, middle)
    best = np.zeros(goal.size)
    for tau in (low, high):
        type1_here, type2_here = (np.exp(side) for side in _sides(pair, tau))
        with np.errstate(over="ignore", invalid="ignore"):
            line = type2_here + np.nan_to_num(np.exp(-tau) * (type1_here - alpha.ravel()[order]), nan=0.0)
        best = np.maximum(best, line)
    result = np.empty_like(best)
    result[order] = np.minimum(best, 1 - alpha.ravel()[order])
    return result.reshape(alpha.shape)[()]


def _sides(pair, thresholds):
    """log P(loss ≤ τ) and log Q(loss > τ) at each τ of a rising array."""
    log_p, log_q = pair.cells(np.maximum.accumulate(thresholds))
    return log_cumsum(log_p[:-1]), log_cumsum(log_q[:0:-1])[::-1]
