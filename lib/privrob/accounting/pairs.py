r"""Composition of any dominating pairs: ε at a δ, and δ at an ε, between two certified ends.

A mechanism states one pair for each direction, in the order (remove, add), or a single pair where one covers both::

    step = pairs.laplace(scale_ratio=5.0)
    both = tuple(step.sampled(0.01, neighbouring=n) for n in ("remove", "add"))
    pairs.compose([(both, 1000), (pairs.gaussian(noise_multiplier=20.0), 1)], delta=1e-5)

All losses are put on one common grid, coarse first, finer until the interval is narrow enough; the sum is one FFT
(:mod:`privrob.accounting.lossgrid` says why both ends hold). A finite pair with few outcomes in all is counted out
instead: the multinomial sums over its distinct losses, exact but for rounding.
"""

from __future__ import annotations

import math

import numpy as np

from privrob import checks
from privrob.accounting import lossgrid
from privrob.accounting.counted import Counted
from privrob.accounting.dominating import DensityPair, DiscretePair, Pair, ProductPair
from privrob.accounting.logspace import log1mexp, log_binomial, log_normal_interval
from privrob.accounting.lossgrid import SMALLEST_DELTA
from privrob.kinds import Interval

__all__ = [
    "DensityPair",
    "DiscretePair",
    "Pair",
    "ProductPair",
    "approximate_dp",
    "binomial",
    "compose",
    "delta",
    "discrete_gaussian",
    "gaussian",
    "gaussian_mixture",
    "laplace",
    "randomized_response",
]

_MOST_COUNTS = 2**53  # above, not every count is a double
_MOST_ATOMS = 2**28
_LOUDEST = 1e30  # a loss above it counts as unbounded, see privrob.accounting.dominating
_POINTS = 2**22


def compose(entries, *, delta, tolerance=1e-3, points=_POINTS):
    """ε of a composition of mechanisms at δ: the larger of its directions.

    Paper: dplearn, How to compose privacy bound for multiple iterations? (as exact as float64 allows).
    Args: entries — list of (pair, count): ``pair`` a :class:`.dominating.Pair`, or one for each direction;
        delta — in [0, 1), at least 1e-200 unless the answer is a closed form;
        tolerance — width at which refinement stops: absolute for ε from 1 to 1000, relative below, and relative to
        ε/1000 above;  points — most points of a grid: bounds the time (2²²: some seconds) and the width.
    Returns: :class:`.Interval`, ``upper`` is the guarantee; infinity where so much mass has an infinite loss.
    """
    delta = checks.real("delta", delta, low=0.0, high=1.0, open_high=True)
    tolerance = checks.positive("tolerance", tolerance)
    points = checks.integer("points", points, low=2**12)
    return _largest([_epsilon(parts, delta, tolerance, points) for parts in _directions(entries)])


def delta(entries, *, epsilon, tolerance=1e-3, points=_POINTS):
    """δ of a composition of mechanisms at ε: the larger of its directions.

    Args: epsilon — at least 0, infinity allowed;  tolerance — relative width at which refinement stops;  the others
        as in :func:`compose`.
    Returns: :class:`.Interval`, ``upper`` is the guarantee (1e-200 at least, where it rests on a grid).
    """
    epsilon = checks.nonnegative("epsilon", epsilon)
    tolerance = checks.positive("tolerance", tolerance)
    points = checks.integer("points", points, low=2**12)
    return _largest([_delta(parts, epsilon, tolerance, points) for parts in _directions(entries)])


def _largest(answers):
    return Interval(*(float(max(getattr(a, end) for a in answers)) for end in ("lower", "estimate", "upper")))


def _directions(entries):
    """For each direction, its list of (pair, count), equal pairs taken together."""
    rows = []
    for entry in entries:
        try:
            pair, count = entry
        except (TypeError, ValueError):
            raise TypeError(f"entries must be a list of (pair, count), got an entry {entry!r}") from None
        given = tuple(pair) if isinstance(pair, (tuple, list)) else (pair,)
        if not given or not all(isinstance(p, Pair) for p in given):
            raise TypeError(f"entries must hold a Pair or one for each direction, got {pair!r}; see pairs.DiscretePair")
        rows.append((given, checks.integer("count", count, low=0, high=_MOST_COUNTS)))
    sizes = {len(given) for given, _ in rows} - {1}
    if len(sizes) > 1:
        raise ValueError(f"entries must all state as many directions, got {sorted(sizes)}; order them (remove, add)")
    results = []
    for d in range(max(sizes, default=1)):
        counts = {}
        for given, count in rows:
            for factor in given[d % len(given)].factors():
                counts[factor] = counts.get(factor, 0) + count
        results.append([(pair, count) for pair, count in counts.items() if count and not _nothing(pair)])
    return results


def _nothing(pair):
    """Whether P is Q."""
    return pair.extent == (0.0, 0.0) and pair.infinite[0] == 0


def _infinite(parts):
    """Mass of a sum at infinity."""
    if any(pair.infinite[0] >= 1 for pair, _ in parts):
        return 1.0
    return abs(math.expm1(sum(count * math.log1p(-pair.infinite[0]) for pair, count in parts)))


def _epsilon(parts, delta, tolerance, points):
    if not parts or delta >= sum(count * pair.total_variation for pair, count in parts) * (1 + 1e-12):
        return Interval.exact(0.0)
    infinite, highest = _infinite(parts), sum(count * pair.extent[1] for pair, count in parts)
    alone = len(parts) == 1 and parts[0][1] == 1
    slack = -1e-14 if alone else 1e-12  # of a step alone, no more than what exp(log δ) may be off by
    if infinite * (1 - abs(slack)) > delta:
        return Interval.exact(math.inf)
    most = max(0.0, highest) * (1 + 1e-12) if infinite * (1 + slack) <= delta else math.inf
    if delta == 0:
        return Interval(most * (1 - 4e-12), most, most) if 0 < most < math.inf else Interval.exact(most)
    counted = Counted.of(parts)
    if counted is not None:
        return _within(counted.epsilon(delta, infinite), 0.0, most)
    if delta < SMALLEST_DELTA:
        raise ValueError(
            f"delta must be at least {SMALLEST_DELTA:g} for a composition on a grid, got delta={delta!r}; "
            "a Rényi accountant serves smaller ones"
        )
    grid = _Ladder(parts, delta)
    bound = min(most, grid.chernoff_epsilon(delta, infinite))
    best = Interval(0.0, bound, bound)
    for over, under in grid.rungs(points):
        best = _within(_read_epsilon(over, under, delta), best.lower, best.upper)
        grid.narrow(best.width, tolerance * max(min(1.0, best.upper), 1e-3 * best.upper))
    if best.lower == 0 < best.upper and delta < 1e-6:  # rounding drowns so small a δ: a larger one has a smaller ε
        best = _within(best, _epsilon(parts, math.sqrt(delta), tolerance, points).lower, best.upper)
    return best


def _read_epsilon(over, under, delta):
    estimate = over.composed.epsilon(delta)
    noise = over.composed.noise(estimate)
    if noise >= delta:
        return Interval(0.0, math.inf, math.inf)
    upper = over.composed.epsilon(delta - noise) + over.rounding
    if estimate == 0 and over.composed.delta(0.0) + noise + over.rounding <= delta:
        return Interval.exact(0.0)
    start = estimate if under is over else under.composed.epsilon(delta)
    lower = lossgrid.Moved(under.composed, under.num_steps).lower_epsilon(start, delta, under.cut) - under.rounding
    return Interval(max(0.0, min(lower, estimate)), estimate, max(upper, estimate))


def _delta(parts, epsilon, tolerance, points):
    infinite, highest = _infinite(parts), sum(count * pair.extent[1] for pair, count in parts)
    if not parts or epsilon >= max(0.0, highest) * (1 + 1e-12):
        return Interval(infinite * (1 - 1e-12), infinite, min(1.0, infinite * (1 + 1e-12)))
    most = min(1.0, sum(count * pair.total_variation for pair, count in parts) * (1 + 1e-12))
    counted = Counted.of(parts)
    if counted is not None:
        return _within(counted.delta(epsilon, infinite), 0.0, most)
    if epsilon > _LOUDEST:  # δ falls: at most what it is there
        upper = _delta(parts, _LOUDEST, tolerance, points).upper
        return Interval(infinite * (1 - 1e-12), upper, upper)
    grid = _Ladder(parts, SMALLEST_DELTA)
    guess = grid.chernoff_delta(epsilon)
    best = Interval(infinite * (1 - 1e-12), min(most, infinite + guess), min(most, infinite + guess))
    grid = _Ladder(parts, max(1e-3 * (infinite + guess), SMALLEST_DELTA))
    for over, under in grid.rungs(points):
        grid.delta = max(over.composed.delta(epsilon), SMALLEST_DELTA)
        best = _within(_read_delta(over, under, epsilon), best.lower, best.upper)
        grid.narrow(best.width, tolerance * best.upper)
    return best


def _read_delta(over, under, epsilon):
    estimate = min(1.0, over.composed.delta(epsilon))
    upper = estimate + over.composed.noise(epsilon) + over.rounding * over.composed.above_of(epsilon) + SMALLEST_DELTA
    cut = under.cut + under.rounding * under.composed.above_of(epsilon)
    lower = lossgrid.Moved(under.composed, under.num_steps).lower_delta(epsilon, cut)
    return Interval(min(lower, estimate), estimate, min(1.0, upper))


def _within(interval, lower, upper):
    """Two certified intervals in one; rounding alone may have set them apart."""
    upper = min(interval.upper, upper)
    lower = min(max(interval.lower, lower), upper)
    return Interval(lower, min(max(interval.estimate, lower), upper), upper)


class _Sum:
    """A composition on one grid, and what may have been lost on the way."""

    def __init__(self, parts, ranges, grid, delta):
        self.num_steps = sum(count for _, count in parts)
        self.rounding = 1e-14 * sum(
            count * max(1.0, 1e-2 * (high - low)) for (_, count), (low, high) in zip(parts, ranges)
        )
        self.cut, self.steps = 0.0, []
        for (pair, count), (low, high) in zip(parts, ranges):
            step, cut = _on_grid(pair, low, high, grid)
            self.steps.append((step, count))
            self.cut += count * cut
        order, outside = lossgrid.tilt(self.steps, delta)
        self.composed = lossgrid.compose(self.steps, order, outside)
        self.rounding += self.composed.rounding


def _on_grid(pair, low, high, grid):
    """A step on the grid, and the mass that the ends of the grid cut off on either side."""
    points = np.arange(math.floor(low / grid), math.ceil(high / grid) + 1)
    edges = points * grid
    log_p, log_q = pair.cells(edges)
    stay, up = lossgrid.connect_the_dots(log_p[1:-1], log_q[1:-1], edges[:-1], grid)
    probs = np.zeros(points.size)
    probs[:-1] = stay
    probs[1:] += up
    probs[0] += math.exp(log_p[0])  # rounded up
    beyond = math.exp(log_p[-1])
    cut = math.exp(log_p[0]) + max(0.0, beyond - pair.infinite[0])
    return lossgrid.Step(probs, points[0], grid, min(beyond, 1.0)), cut


class _Ladder:
    """Grids from coarse to fine, the next one as fine as the width of the answer asks for."""

    def __init__(self, parts, delta):
        self.delta, self.num_steps = delta, sum(count for _, count in parts)
        tail = 1e-5 * delta / self.num_steps  # mass of one step's loss that may be cut off on either side
        brackets = [(*pair.bracket(tail), count) for pair, count in parts]
        self.sides = [[(over, count) for over, _, count in brackets]]
        if any(over is not under for over, under, _ in brackets):
            self.sides.append([(under, count) for _, under, count in brackets])
        self.ranges = [[pair.loss_range(tail) for pair, _ in side] for side in self.sides]
        ends = [end for side in self.ranges for end in side]
        if max(abs(x) for end in ends for x in end) >= _LOUDEST:
            raise ValueError(
                f"losses must stay below {_LOUDEST:g} on a grid; the noise_multiplier or scale is too small"
            )
        self.width = max(high - low for low, high in ends)
        self.finest = 1e-12 * max(1e-3 * self.width, *(abs(x) for end in ends for x in end))
        coarse = max(self.width / lossgrid.POINTS_COARSE, self.finest)
        self.coarse = [
            (_on_grid(pair, low, high, coarse)[0], count)
            for (pair, count), (low, high) in zip(self.sides[0], self.ranges[0])
        ]
        self.moments = lossgrid.Moments(self.coarse)
        self.size, self.done, self.last = lossgrid.POINTS_COARSE, False, math.inf

    def chernoff_epsilon(self, delta, infinite):
        """A bound on ε that needs no FFT."""
        infinite = max(infinite, -math.expm1(sum(count * math.log1p(-step.infinite) for step, count in self.coarse)))
        return self.moments.epsilon_upper(delta - infinite) if infinite < delta else math.inf

    def chernoff_delta(self, epsilon):
        """A bound on δ, the mass at infinity apart, that needs no FFT."""
        if epsilon <= self.moments.mean:
            return 1.0
        order = self.moments.order_for_epsilon(epsilon)
        gap = epsilon - self.moments.mean - 1e-14 * self.num_steps - 1e-15 * epsilon  # what rounding may take
        bound = self.moments.log_delta(order, gap)
        return math.exp(min(0.0, bound + 1e-9 * (1 + abs(bound))))

    def rungs(self, points):
        """One (dominating, dominated) pair of sums after the other; :meth:`narrow` says which is next."""
        order, outside = lossgrid.tilt(self.coarse, self.delta)
        first, last = lossgrid.window([(step.tilted(order)[0], count) for step, count in self.coarse], outside)
        nats = (last - first) * self.coarse[0][0].grid
        while not self.done:
            self.size = points if self.size > points / 1.5 else self.size
            grid = lossgrid.spacing(max(self.width / self.size, nats / self.size, self.finest))
            sums = [_Sum(side, ranges, grid, self.delta) for side, ranges in zip(self.sides, self.ranges)]
            self.done = self.size >= points or grid <= self.finest
            nats = min(nats, sums[0].composed.size * grid)
            yield sums[0], sums[-1]

    def narrow(self, width, goal):
        """Choose the next grid: the width falls as the square of the spacing, unless something else holds it up."""
        known = self.size > lossgrid.POINTS_COARSE  # the first grid may be too coarse to tell
        self.done = self.done or width <= max(goal, 0.0) or (known and width > 0.9 * self.last)
        self.last = width
        ratio = math.sqrt(width / goal) if 0 < width < math.inf and goal > 0 else 4.0
        self.size = int(self.size * max(1.5, min(1.15 * ratio, math.inf if known else 64.0)))


# ------------------------------------------------------------------------------------------------------- common pairs


def gaussian(*, noise_multiplier):
    """N(μ, 1) and N(0, 1), μ = 1/noise multiplier; below 1e-14 the losses are too large for a grid."""
    hint = "gdp.epsilon_of takes any μ"
    mu = 1 / checks.real("noise_multiplier", noise_multiplier, low=1e-14, open_high=True, hint=hint)
    return DensityPair(
        lambda x: mu * x - mu**2 / 2,
        lambda low, high: log_normal_interval(low - mu, high - mu),
        log_normal_interval,
        inverse=lambda losses: losses / mu + mu / 2,
    )


def gaussian_mixture(weights_p, means_p, weights_q, means_q):
    """Mixtures of unit Normals. Args: weights_p, weights_q — of sum 1, shapes (n,) and (m,);  means_p, means_q — of the
    same shapes, all of P's at least all of Q's (the loss rises).
    """
    sides = []
    for name, weights, means in (("p", weights_p, means_p), ("q", weights_q, means_q)):
        weights = checks.array(f"weights_{name}", weights, ndim=1)
        means = checks.array(f"means_{name}", means, ndim=1)
        if weights.size != means.size or not (weights > 0).all() or abs(weights.sum() - 1) > 1e-9:
            raise ValueError(f"weights_{name} must be positive, of sum 1, and one for each of means_{name}")
        sides.append((np.log(weights / weights.sum())[:, None], means[:, None]))
    if sides[0][1].min() < sides[1][1].max():
        raise ValueError("means_p must all be at least means_q; pass other mixtures as a DensityPair with breaks")

    def mass(side):
        logs, means = sides[side]
        return lambda low, high: np.logaddexp.reduce(logs + log_normal_interval(low - means, high - means), axis=0)

    def loss(x):
        p, q = (np.logaddexp.reduce(logs + means * x - means**2 / 2, axis=0) for logs, means in sides)
        return p - q

    return DensityPair(loss, mass(0), mass(1))


def laplace(*, scale_ratio):
    """Laplace noise of scale 1 around 1/scale_ratio, and around 0. Args: scale_ratio — Laplace scale / sensitivity, at
    least 1e-18: below, the losses in between have no doubles left."""
    hint = "its pure ε is 1 / scale_ratio"
    shift = 1 / checks.real("scale_ratio", scale_ratio, low=1e-18, open_high=True, hint=hint)

    def mass(low, high):
        flip = low > 0
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)  # low is at most 0
        with np.errstate(all="ignore"):
            one_side = high + log1mexp(np.minimum(low - high, -1e-300))
            both = np.log(-np.expm1(low) - np.expm1(-high))
        return np.where(low == high, -np.inf, np.where(high <= 0, one_side, both) - math.log(2))

    def inverse(losses):
        return np.where(losses < -shift, -np.inf, np.where(losses >= shift, np.inf, (losses + shift) / 2))

    return DensityPair(
        lambda x: np.clip(2 * x - shift, -shift, shift),
        lambda low, high: mass(low - shift, high - shift),
        mass,
        inverse=inverse,
    )


def randomized_response(*, epsilon):
    """A bit kept with probability e^ε/(1 + e^ε)."""
    log_keep = -float(np.logaddexp(0.0, -checks.nonnegative("epsilon", epsilon, finite=True)))
    log_flip = log_keep - epsilon
    return DiscretePair([log_keep, log_flip], [log_flip, log_keep])


def approximate_dp(*, epsilon, delta):
    """The pair that dominates every (ε, δ)-DP mechanism, in both directions (Kairouz, Oh and Viswanath 2015)."""
    delta = checks.probability("delta", delta, allow_one=False)
    with np.errstate(divide="ignore"):
        lost, kept = float(np.log(delta)), math.log1p(-delta) + randomized_response(epsilon=epsilon).log_p
    return DiscretePair([lost, *kept, -np.inf], [-np.inf, *kept[::-1], lost])


def binomial(*, trials, success_prob, shift=1):
    """Binomial noise on a count: ``shift`` + Binomial(n, p) and Binomial(n, p).

    Args: trials — n;  success_prob — p in (0, 1);  shift — a whole number.
    """
    trials = checks.integer("trials", trials, low=1)
    prob = checks.probability("success_prob", success_prob, allow_zero=False, allow_one=False)
    shift = checks.integer("shift", shift, low=0, high=_MOST_ATOMS)
    logs, nothing = log_binomial(trials, prob), np.full(shift, -np.inf)
    return DiscretePair(np.concatenate([nothing, logs]), np.concatenate([logs, nothing]))


def discrete_gaussian(*, noise_std, shift=1):
    r"""Discrete Gaussian noise on a count: ``shift`` + V and V, V = v with a probability ∝ :math:`e^{-v^2/2\sigma^2}`.

    Tails with a mass below 1e-340 are left out, the same outputs on both sides.

    Paper: fdp, Remark 3.
    """
    std = checks.real("noise_std", noise_std, low=1e-150, high=1e6, hint="a wider one is nearly pairs.gaussian")
    shift = checks.integer("shift", shift, low=0, high=_MOST_ATOMS)
    reach = math.ceil(40 * std)
    v = np.arange(-reach, reach + shift + 1)
    logs = [-((v - centre) ** 2) / (2 * std**2) for centre in (shift, 0)]
    return DiscretePair(*(log - np.logaddexp.reduce(log) for log in logs))
