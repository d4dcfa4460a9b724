r"""Dominating pairs (P, Q) of a mechanism, as what an accountant needs of them: the masses of privacy losses.

A mechanism is dominated by (P, Q) when every pair of its output distributions on neighbouring inputs has hockey-stick
divergences at most those of (P, Q); its loss is log P/Q under P. A pair answers one question, :meth:`Pair.cells`: how
much of P and of Q has a loss in each of some intervals. Sampling, reversal and products need no more than that.

``remove`` reads P as the output with the record and Q as that without it, ``add`` the other way round. A mechanism
whose neighbours play different roles states both, in the order (remove, add).

Source: Zhu, Dong and Wang 2022 (dominating pairs); Doroshenko et al. 2022 (discretising them).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from scipy.special import logsumexp

from privrob import checks
from privrob.accounting.logspace import log1mexp
from privrob.accounting.lossgrid import connect_the_dots

_HUGE = np.finfo(np.float64).max
_UNBOUNDED = 1e30  # a loss above it counts as unbounded
_ATOMS = 2**9  # of one factor of a product that is sampled as a whole
_MAGNITUDES = np.geomspace(1e-30, _UNBOUNDED, 241)
_LADDER = np.concatenate([-_MAGNITUDES[::-1], [0.0], _MAGNITUDES])


class Pair:
    """Two distributions P, Q by the masses of their losses. Subclasses give :meth:`cells`."""

    def cells(self, edges):
        """Log masses under P and under Q of the losses in (−∞, e₀], (e₀, e₁], …, (e_k, ∞], two arrays of k + 2.

        Args: edges — e₀ < e₁ < …, shape (k + 1,).
        """
        raise NotImplementedError

    def reversed(self):
        """(Q, P)."""
        return _Reversed(self)

    def sampled(self, sample_rate, *, neighbouring):
        """The pair of the mechanism on a Poisson sample, each record in it with probability q.

        .. math:: \\text{remove: } ((1-q)Q + qP,\\ Q) \\qquad \\text{add: } (P,\\ (1-q)P + qQ)

        Assumes: this pair dominates the mechanism in that same direction (Zhu, Dong and Wang 2022, Theorem 11).
        Args: sample_rate — q in [0, 1];  neighbouring — ``remove`` or ``add``.
        """
        rate = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
        neighbouring = checks.choice("neighbouring", getattr(neighbouring, "value", neighbouring), ["remove", "add"])
        if neighbouring == "add":
            return self.reversed().sampled(rate, neighbouring="remove").reversed()
        if rate in (0.0, 1.0):
            return self if rate else DiscretePair([0.0], [0.0])
        return self._sampled(rate)

    def _sampled(self, rate):
        return _Sampled(self, rate)

    def factors(self):
        """Independent pairs whose losses add up to this one's."""
        return [self]

    def bracket(self, tail):
        """(dominating, dominated) pairs that have :meth:`cells`; themselves, where the pair has them exactly. ``tail``
        is how much mass beyond the last losses may be moved."""
        return self, self

    @cached_property
    def total_variation(self):
        """Largest difference of the two probabilities of an event."""
        log_p, log_q = self.cells(np.zeros(1))
        return min(1.0, max(0.0, math.exp(log_p[1]) - math.exp(log_q[1])) + 1e-15)

    @cached_property
    def extent(self):
        """Lowest and highest finite loss, rounded outwards; infinite where there is no end."""
        return -_highest(self.reversed()), _highest(self)

    @cached_property
    def infinite(self):
        """Mass of P where Q has none, and of Q where P has none."""
        return tuple(math.exp(pair.cells(np.array([_HUGE]))[0][1]) for pair in (self, self.reversed()))

    def loss_range(self, tail):
        """Losses that leave at most ``tail`` of P below the first, and as much above the second (at infinity apart)."""
        goal, ends = math.log(tail), []
        for sign in (-1, 1):
            edges, step = _LADDER, 0
            while True:
                log_p, _ = self.cells(np.append(edges, _HUGE))
                if sign > 0:  # the first edge with little above it
                    outside = np.logaddexp.accumulate(log_p[-2:0:-1])[::-1]
                    i = int(np.argmax(outside <= goal)) if (outside <= goal).any() else edges.size - 1
                    inner = max(i - 1, 0)
                else:  # the last with little below it
                    outside = np.logaddexp.accumulate(log_p[:-2])
                    i = int(edges.size - 1 - np.argmax(outside[::-1] <= goal)) if (outside <= goal).any() else 0
                    inner = min(i + 1, edges.size - 1)
                if step == 3:
                    break
                edges, step = np.linspace(*sorted((edges[i], edges[inner])), 129), step + 1
            ends.append(float(edges[i]))
        return ends[0], ends[1]

    def discretised(self, tail, atoms=_ATOMS):
        """(dominating, dominated): the dots connected between so many losses, and outputs merged between them.

        Args: tail — mass beyond either end of them;  atoms — losses kept.
        """
        low, high = -self.reversed().loss_range(tail)[1], self.loss_range(tail)[1]
        edges = np.linspace(low, high, atoms) if low < high else np.array([low])
        log_p, log_q = self.cells(edges)
        stay, up = connect_the_dots(log_p[1:-1], log_q[1:-1], edges[:-1], np.diff(edges))
        at_edge = np.append(stay, 0.0) + np.append(0.0, up)
        at_edge[0] += math.exp(log_p[0])  # what Q has more of, below, goes to −∞: the same rule, with that left end
        top = min(math.exp(log_p[-1]), math.exp(min(log_q[-1] + edges[-1], 700.0)))  # … and with a right end of ∞
        at_edge[-1] += top
        with np.errstate(divide="ignore"):
            over_p = np.concatenate([[-np.inf], np.log(at_edge), [np.log(max(math.exp(log_p[-1]) - top, 0.0))]])
            over_q = np.concatenate([[0.0], over_p[1:-1] - edges, [-np.inf]])
            over_q[0] = np.log(max(-np.expm1(min(logsumexp(over_q[1:]), 0.0)), 0.0))
        return DiscretePair(over_p, over_q), DiscretePair(log_p, log_q)


def _highest(pair):
    """The highest finite loss with mass, rounded up; infinite above 1e30."""

    def mass_above(loss):
        return pair.cells(np.array([loss, _HUGE]))[0][1] > -math.inf

    low, high = -_UNBOUNDED, _UNBOUNDED
    if mass_above(high):
        return math.inf
    if not mass_above(low):
        return -math.inf
    low, high = (int(_ordered(end)) for end in (low, high))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if mass_above(float(_from_ordered(middle))) else (low, middle)
    return float(_from_ordered(high))


def _ordered(x):
    """Floats as integers in the same order."""
    bits = np.asarray(x, dtype=np.float64).view(np.int64)
    return np.where(bits >= 0, bits, np.iinfo(np.int64).min - np.minimum(bits, 0))


def _from_ordered(integers):
    integers = np.asarray(integers, dtype=np.int64)
    bits = np.where(integers >= 0, integers, np.iinfo(np.int64).min - np.minimum(integers, 0))
    return bits.view(np.float64)


@dataclass(frozen=True, eq=False)
class DiscretePair(Pair):
    """Two pmfs on one finite alphabet. Args: log_p, log_q — log masses, −inf allowed; each sums to 1 up to 1e-9, and is
    scaled to sum to 1 exactly."""

    log_p: np.ndarray
    log_q: np.ndarray

    def __post_init__(self):
        for name in ("log_p", "log_q"):
            logs = checks.array(name, getattr(self, name), ndim=1, finite=False)
            if logs.size == 0 or np.isnan(logs).any() or (logs > 1e-9).any():
                raise ValueError(f"{name} must hold at least one log probability, each at most 0 and not NaN")
            total = float(logsumexp(logs))
            if abs(total) > 1e-9:
                raise ValueError(
                    f"{name} must sum to 1 as probabilities, got a sum of {math.exp(total):.12g}; scale it"
                )
            object.__setattr__(self, name, np.minimum(logs - total, 0.0))
        if self.log_p.size != self.log_q.size:
            raise ValueError(f"log_p and log_q must have one length, got {self.log_p.size} and {self.log_q.size}")

    @classmethod
    def of(cls, p, q):
        """The pair of two arrays of probabilities ``p`` and ``q``, shape (n,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(np.log(checks.array("p", p)), np.log(checks.array("q", q)))

    @cached_property
    def atoms(self):
        """Distinct losses in rising order, and the log masses under P and Q."""
        some = (self.log_p > -np.inf) | (self.log_q > -np.inf)
        log_p, log_q = self.log_p[some], self.log_q[some]
        losses = log_p - log_q
        order = np.argsort(losses, kind="stable")
        losses = losses[order]
        starts = np.flatnonzero(np.append(True, losses[1:] != losses[:-1]))
        logs = (log_p[order], log_q[order])
        if starts.size < losses.size:
            logs = (np.logaddexp.reduceat(log_mass, starts) for log_mass in logs)
        return losses[starts], *logs

    @cached_property
    def _many(self):
        """The masses themselves, where there are many of them: faster to add, and exact from 1e-300 on."""
        return None if self.atoms[0].size < 2**12 else [np.exp(log_mass) for log_mass in self.atoms[1:]]

    def cells(self, edges):
        losses, *logs = self.atoms
        ends = np.concatenate([[0], np.searchsorted(losses, edges, side="right"), [losses.size]])
        filled = np.diff(ends) > 0
        results = []
        for i in range(2):
            cell = np.full(filled.size, -np.inf)
            if self._many is None:
                cell[filled] = np.logaddexp.reduceat(logs[i], ends[:-1][filled])
            else:
                with np.errstate(divide="ignore"):
                    cell[filled] = np.log(np.add.reduceat(self._many[i], ends[:-1][filled]))
            results.append(cell)
        return results

    @cached_property
    def extent(self):
        losses = self.atoms[0][np.isfinite(self.atoms[0])]
        return (float(losses[0]), float(losses[-1])) if losses.size else (math.inf, -math.inf)

    def reversed(self):
        return DiscretePair(self.log_q, self.log_p)

    def _sampled(self, rate):
        return DiscretePair(np.logaddexp(math.log1p(-rate) + self.log_q, math.log(rate) + self.log_p), self.log_q)


@dataclass(frozen=True, eq=False)
class DensityPair(Pair):
    """Two distributions on the real line with a loss that is monotone (or constant) between breaks.

    Args: loss — log p/q at an array of points, ±inf where one density is 0;  log_mass_p, log_mass_q — log probability
        of the interval between two arrays of points, accurate in the tails;  breaks — ends of the pieces in rising
        order, infinite or not;  inverse — for one rising piece: the largest point with a loss at most x, at an array
        of x (by bisection, if it is left out).
    """

    loss: Callable
    log_mass_p: Callable
    log_mass_q: Callable
    breaks: tuple = (-math.inf, math.inf)
    inverse: Callable | None = None

    def __post_init__(self):
        breaks = checks.array("breaks", self.breaks, ndim=1, finite=False)
        if breaks.size < 2 or not (np.diff(breaks) > 0).all():
            raise ValueError(f"breaks must be at least two points in rising order, got breaks={self.breaks}")
        if self.inverse is not None and breaks.size > 2:
            raise ValueError("inverse must be left out where breaks make several pieces")
        pieces = [(float(a), float(b), *self._slope(float(a), float(b))) for a, b in itertools.pairwise(breaks)]
        object.__setattr__(self, "_pieces", pieces)
        edges = np.concatenate([-np.geomspace(1e-6, 100, 60)[::-1], np.geomspace(1e-6, 100, 60)])
        log_p, log_q = self.cells(edges)
        if abs(logsumexp(log_p)) > 1e-9 or abs(logsumexp(log_q)) > 1e-9:
            raise ValueError("log_mass_p and log_mass_q must each give 1 in all between the first and the last break")
        seen = (log_p[1:-1] > -300) & (log_q[1:-1] > -300)
        inside = log_p[1:-1][seen] - log_q[1:-1][seen]
        if ((inside < edges[:-1][seen] - 1e-6) | (inside > edges[1:][seen] + 1e-6)).any():
            raise ValueError("loss must be the log ratio of the densities whose masses log_mass_p and log_mass_q give")

    def _slope(self, left, right):
        """1 for a rising piece and −1 for a falling one; and the loss, where it is constant."""
        points = np.sort(np.concatenate([[0.0], *(s * np.geomspace(1e-3, 1e3, 60) for s in (-1, 1))]))
        if math.isfinite(left) and math.isfinite(right):
            points = np.linspace(left, right, 123)[1:-1]
        elif math.isfinite(left) or math.isfinite(right):
            points = np.sort(left + points[61:] if math.isfinite(left) else right - points[61:])
        losses = self._loss(points)
        if (losses == losses[0]).all():
            return 1, float(losses[0])
        with np.errstate(invalid="ignore"):
            steps = np.nan_to_num(np.diff(losses))
        slack = 1e-12 * np.max(np.abs(losses[np.isfinite(losses)]), initial=1.0)
        if (steps >= -slack).all():
            return 1, None
        if (steps <= slack).all():
            return -1, None
        raise ValueError(f"loss must be monotone between breaks, it is not on ({left:g}, {right:g}); add breaks there")

    def _loss(self, points):
        with np.errstate(all="ignore"):
            losses = np.broadcast_to(np.asarray(self.loss(points), dtype=np.float64), points.shape)
        if np.isnan(losses).any():
            raise ValueError(f"loss must not be NaN, got NaN at {float(points[np.isnan(losses)][0])!r}")
        return losses

    def _last_at_most(self, losses, left, right, slope):
        """Where the loss, rising from left to right (or falling), passes each of some losses: by bisection."""
        if self.inverse is not None:
            with np.errstate(all="ignore"):
                return np.clip(self.inverse(losses), left, right)
        low = np.full(losses.shape, _ordered(max(left, -_HUGE)))
        high = np.full(losses.shape, _ordered(min(right, _HUGE)))
        below, above = low.copy(), high.copy()
        while (above - 1 > below).any():
            middle = (below >> 1) + (above >> 1) + (below & above & 1)
            at_most = (self._loss(_from_ordered(middle)) <= losses) == (slope > 0)
            below, above = np.where(at_most, middle, below), np.where(at_most, above, middle)
        found = np.where(above == high, right, np.where(below == low, left, _from_ordered(below)))
        return np.maximum.accumulate(found) if slope > 0 else np.minimum.accumulate(found)

    def cells(self, edges):
        edges = np.asarray(edges, dtype=np.float64)
        logs = [np.full(edges.size + 1, -np.inf) for _ in range(2)]
        for left, right, slope, constant in self._pieces:
            if constant is None:
                points = self._last_at_most(edges, left, right, slope)
            else:
                points = np.where(constant <= edges, right, left)
            points = np.concatenate([[left], points, [right]] if slope > 0 else [[right], points, [left]])
            low, high = (points[:-1], points[1:]) if slope > 0 else (points[1:], points[:-1])
            some = low < high
            for i, log_mass in enumerate((self.log_mass_p, self.log_mass_q)):
                with np.errstate(all="ignore"):
                    logs[i][some] = np.logaddexp(logs[i][some], log_mass(low[some], high[some]))
        return logs


@dataclass(frozen=True, eq=False)
class _Reversed(Pair):
    pair: Pair

    def cells(self, edges):
        log_p, log_q = self.pair.cells(-np.asarray(edges)[::-1])
        return log_q[::-1], log_p[::-1]

    def reversed(self):
        return self.pair

    def bracket(self, tail):
        over, under = self.pair.bracket(tail)
        return (self, self) if over is self.pair else (over.reversed(), under.reversed())

    @cached_property
    def total_variation(self):
        return self.pair.total_variation

    @cached_property
    def extent(self):
        low, high = self.pair.extent
        return -high, -low

    @cached_property
    def infinite(self):
        return self.pair.infinite[::-1]


@dataclass(frozen=True, eq=False)
class _Sampled(Pair):
    pair: Pair
    rate: float

    def cells(self, edges):
        edges = np.asarray(edges, dtype=np.float64)
        never = int(np.searchsorted(edges, math.log1p(-self.rate), side="left"))  # losses that sampling leaves none of
        log_p, log_q = self.pair.cells(unsampled_loss(edges[never:], self.rate))
        log_p = np.logaddexp(math.log1p(-self.rate) + log_q, math.log(self.rate) + log_p)
        nothing = np.full(never, -np.inf)
        return np.concatenate([nothing, log_p]), np.concatenate([nothing, log_q])

    def bracket(self, tail):
        over, under = self.pair.bracket(tail)
        return (self, self) if over is self.pair else (over._sampled(self.rate), under._sampled(self.rate))

    @cached_property
    def total_variation(self):
        return self.rate * self.pair.total_variation

    @cached_property
    def extent(self):
        low, high = self.pair.extent
        low = -math.inf if self.pair.infinite[1] else low
        ends = [float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + end)) for end in (low, high)]
        return ends[0] - 1e-15, ends[1] * (1 + 1e-15) + 1e-15

    @cached_property
    def infinite(self):
        return self.rate * self.pair.infinite[0], 0.0


def unsampled_loss(losses, sample_rate):
    r"""The loss x whose sampled loss :math:`\log(1 - q + q e^{x})` is given; −inf where there is none so low.

    Args: losses — any shape.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.log1p(np.maximum(np.expm1(np.minimum(losses, 30.0)) / sample_rate, -1.0))
        large = losses - math.log(sample_rate) + log1mexp(np.minimum(math.log1p(-sample_rate) - losses, -1e-300))
    return np.where(losses > 30, large, small)


@dataclass(frozen=True, eq=False)
class ProductPair(Pair):
    """Independent outputs released together, P = P₁ × P₂ × …: one step, which can be sampled as a whole; ``parts`` are
    the pairs.
    """

    parts: tuple

    def __post_init__(self):
        if not self.parts or not all(isinstance(part, Pair) for part in self.parts):
            raise ValueError("parts must be at least one Pair, and nothing else")

    def factors(self):
        return [factor for part in self.parts for factor in part.factors()]

    def reversed(self):
        return ProductPair(tuple(part.reversed() for part in self.parts))

    def bracket(self, tail):
        factors = self.factors()
        brackets = [factor.bracket(tail / len(factors)) for factor in factors]
        sides = []
        for side in (0, 1):

            def small(pair, side=side):
                few = isinstance(pair, DiscretePair) and pair.log_p.size <= _ATOMS
                return pair if few else pair.discretised(tail / len(factors))[side]

            sides.append(reduce(lambda a, b: _outer(small(a), small(b)), [bracket[side] for bracket in brackets]))
        return sides[0], sides[1]

    @cached_property
    def total_variation(self):
        return min(1.0, sum(part.total_variation for part in self.parts))

    @cached_property
    def extent(self):
        return sum(part.extent[0] for part in self.parts), sum(part.extent[1] for part in self.parts)

    @cached_property
    def infinite(self):
        return tuple(1 - math.prod(1 - part.infinite[side] for part in self.parts) for side in (0, 1))


def _outer(first, second):
    return DiscretePair(*(np.add.outer(getattr(first, n), getattr(second, n)).ravel() for n in ("log_p", "log_q")))
