r"""Privacy losses on a grid: sums of independent losses by FFT, and two certified ends for what is read off them.

A step of loss log P/Q is put on a grid of spacing h by the connect-the-dots rule (Doroshenko et al. 2022): the mass
between two grid points is shared between these two so that both its P and its Q probability stay what they were. The
result dominates the true pair, so it bounds ε and δ from above, with an error of second order in h. Steps of several
kinds (each with a count) are one product of powers of FFTs, of exponentially tilted steps when δ is tiny.

The lower end couples both sums, :math:`S_{\text{grid}} = S + \Xi`. Given the losses, Ξ is a sum of T independent moves,
each of range h and mean between 0 and m ≈ h²/8, with :math:`E[e^{-\Xi}] = 1`: sub-Gaussian, :math:`s = h\sqrt{T}/2`.
The hockey-stick function has its only kink at ε, so δ grows by no more than E[B(|S − ε|)], where

.. math:: B(d) = e^{s^2/2} s \sqrt{2\pi}\, \Phi(-(d - w)/s) + w\,1[d < w], \quad w = \max(Tm, s^2).

S is not known, its grid is. Jensen's inequality on Ξ, whose variance is at most s², says that

.. math:: E\big[e^{-(S_{\text{grid}} - \varepsilon)^2 / (2\tau^2)} \,\big|\, S\big]
          \ge e^{-((|S - \varepsilon| + Tm)^2 + s^2)/(2\tau^2)} ,

so that E[B(|S − ε|)] is at most a constant times the mean of that Gaussian bump over the grid's own sum. An error of
second order, too. The argument uses nothing but the rule, so it holds for any pair.

Source: Doroshenko et al. 2022 (the upper end); the lower end is ours.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import fft
from scipy.optimize import minimize_scalar
from scipy.signal import lfilter
from scipy.special import logsumexp, ndtr

SMALLEST_DELTA = 1e-200  # the cut tails stay above the smallest float64
POINTS_COARSE = 2**14
GRID_PER_SCALE = 1000  # grid points in one standard deviation of a step's loss: finer doesn't help


def connect_the_dots(log_p, log_q, left, grid):
    """Masses that intervals of losses give to their left and to their right end.

    Args: log_p, log_q — log masses of the intervals under P and Q;  left — their left ends;  grid — their length,
        broadcasts.
    Returns: two arrays whose sum is the mass under P.
    """
    # What goes to an interval's right end keeps its Q mass: p = l + u, q = l e^{-a} + u e^{-b}.
    with np.errstate(invalid="ignore", over="ignore"):
        share = np.expm1(left + log_q - log_p) / np.expm1(-grid)
    share = np.clip(np.where(np.isnan(share), 1.0, share), 0.0, 1.0)  # an empty interval has no share
    mass = np.exp(log_p)
    return mass * (1 - share), mass * share


def largest_mean_move(h):
    """Largest mean change of a loss by the connect-the-dots rule, in units of the spacing ``h``: about h/8.

    A loss x above its left grid point goes up with probability w = (1 − e^{-x})/(1 − e^{-h}), a mean move of w·h − x;
    that is largest at e^{x} = h/(1 − e^{-h}).
    """
    share = -math.expm1(-h)
    x = math.log(h / share)
    return -math.expm1(-x) / share - x / h


def spacing(grid):
    """The spacing next to a given one whose e^{−h} is a float64: its powers then keep their digits.

    ``grid`` is the one that is given.
    """
    return -math.log1p(math.exp(-grid) - 1) if 1e-15 < grid < 1 else grid


def fft_error(num_steps):
    """Bound on what rounding in the FFT and its T-th power moves, of a total mass of 1."""
    return 1e-14 + 1e-15 * num_steps


class Step:
    """One step's privacy loss on the grid: ``probs[i]`` at loss ``(start + i) · grid``, and the mass ``infinite`` at
    infinity.
    """

    def __init__(self, probs, start, grid, infinite):
        self.probs, self.start, self.grid, self.infinite = probs, int(start), grid, float(infinite)

    @property
    def losses(self):
        """Losses at the grid's points, in nats, shape (n,)."""
        return (self.start + np.arange(self.probs.size)) * self.grid

    def tilted(self, order, centre=0):
        """The step's distribution with weights e^{λ · (loss − that of index ``centre``)}, and the log of their sum.

        Args: order — λ, at least 0;  centre — the index whose loss counts as 0.
        """
        if order == 0:
            total = self.probs.sum()
            return self.probs / total, math.log(total)
        with np.errstate(divide="ignore"):
            weights = np.log(self.probs)
        weights += order * self.grid * (np.arange(self.probs.size) - centre)
        peak = weights.max()
        probs = np.exp(weights - peak)
        total = probs.sum()
        return probs / total, peak + math.log(total)

    def compose(self, num_steps, order, outside):
        """The T-fold sum; see :func:`compose`."""
        return compose([(self, num_steps)], order, outside)


class Moments:
    r"""The log moment function :math:`K(λ) = \log E[e^{λ S}; S < ∞]` of a sum of losses, about its mean.

    .. math:: \delta(\varepsilon) \le e^{K(\lambda) - \lambda \varepsilon}
              \max_{x > 0} (1 - e^{-x}) e^{-\lambda x}, \quad
              \max = \lambda^\lambda / (1 + \lambda)^{1 + \lambda}

    Args: steps — a list of (:class:`Step`, count);  points — most losses of a step: beyond,
        neighbours are taken together.
    """

    def __init__(self, steps, points=2**15):
        self.parts, self.num_steps, self.mean, variance = [], sum(count for _, count in steps), 0.0, 0.0
        for step, count in steps:
            kept = step.probs > 0
            losses, probs = step.losses[kept], step.probs[kept]
            if probs.size > points:  # neighbours taken together: no bound any more, but near enough to choose λ by
                first = np.arange(0, probs.size, -(-probs.size // points))
                moment, probs = np.add.reduceat(probs * losses, first), np.add.reduceat(probs, first)
                losses = moment / probs
            mean = np.dot(probs, losses)
            self.mean += count * mean
            variance += count * max(np.dot(probs, (losses - mean) ** 2), step.grid**2)
            self.parts.append((count, losses - mean, np.log(probs)))
        self.deviation = math.sqrt(variance)

    def about_mean(self, order):
        """K(λ) less λ times the mean. ``order`` is λ."""
        return sum(count * float(logsumexp(order * offset + logs)) for count, offset, logs in self.parts)

    def log_delta(self, order, above_mean):
        """The bound on log δ so far above the mean.

        Side: upper.
        Args: order — λ;  above_mean — ε less the mean, in nats.
        """
        gain = -order * math.log1p(1 / order) - math.log1p(order)
        return self.about_mean(order) + gain - order * above_mean

    def order_for_delta(self, delta):
        """The λ whose bound on ε at δ is the smallest."""
        goal = max(-math.log(delta), 1e-9)  # δ = 1 asks for a λ, too
        guess = math.log(math.sqrt(2 * goal) / self.deviation)
        return self._best(lambda order: (self.log_delta(order, 0.0) + goal) / order, guess)

    def order_for_epsilon(self, epsilon):
        """The λ whose bound on δ at ε, above the mean, is the smallest."""
        gap = epsilon - self.mean
        return self._best(lambda order: self.log_delta(order, gap), math.log(gap) - 2 * math.log(self.deviation))

    def epsilon_upper(self, delta):
        """A bound on ε at δ, infinite losses apart, that needs no FFT.

        Side: upper.
        """
        order = self.order_for_delta(delta)
        bound = self.mean + (self.log_delta(order, 0.0) - math.log(delta)) / order
        return max(0.0, float(bound + 1e-9 * abs(bound) + 1e-14 * self.num_steps))

    @staticmethod
    def _best(function, guess):
        found = minimize_scalar(lambda t: function(math.exp(t)), bounds=(guess - 14, guess + 3), method="bounded")
        return math.exp(found.x)


def tilt(steps, delta):
    """Order λ (per nat) whose bound on ε is the best at δ, and the share of mass that may
    be left out. No tilt (λ = 0) where rounding is small against δ as it is: the window is then shorter.

    Args: steps — list of (:class:`Step`, count) on one grid.
    """
    if delta > 1e6 * fft_error(sum(count for _, count in steps)):
        return 0.0, 1e-5 * delta
    return Moments(steps).order_for_delta(delta), 1e-10


def window(parts, outside):
    """First and last index of a sum outside which at most a mass ``outside`` lies: Chernoff.

    Args: parts — list of (probabilities of the indices 0, 1, …, count).
    """
    low, high, mean, variance, kept, rough = 0.0, 0.0, 0.0, 0.0, [], []
    for probs, count in parts:
        high += float(probs.size - 1) * count
        index = np.flatnonzero(probs > 1e-280)
        probs = probs[index]
        centre = np.dot(probs, index)
        mean += count * centre
        variance += count * max(np.dot(probs, (index - centre) ** 2), 1e-6)
        kept.append((probs, index - centre, count))
        few = np.arange(0, probs.size, max(1, probs.size // 2**12))
        rough.append((np.add.reduceat(probs, few), index[few] - centre, count))
    goal = math.log(2 / outside)

    def end(sign, order, sums):
        exponent = sum(count * _log_moment(sign * order * offset, probs) for probs, offset, count in sums)
        return (exponent + goal) / order

    orders = math.sqrt(2 * goal / variance) * 2.0 ** np.arange(-4, 3)

    def best(sign):
        order = min(orders, key=lambda order: end(sign, order, rough))
        while end(sign, order / 2, rough) < end(sign, order, rough):  # a rare large loss asks for much less
            order /= 2
        return order

    down, up = best(-1), best(1)
    return math.floor(max(low, mean - end(-1, down, kept))), math.ceil(min(high, mean + end(1, up, kept)))


def _log_moment(exponents, probs):
    top = max(exponents[0], exponents[-1])  # the largest exponent: taken out, so that nothing overflows
    return top + math.log(np.dot(np.exp(exponents - top), probs))


def compose(steps, order, outside):
    """A sum of independent losses, by one FFT of each tilted step: rounding is then small against the tail at δ.

    Args: steps — list of (:class:`Step`, count at least 1) on one grid;  order, outside — from :func:`tilt`.
    Returns: :class:`Composed`.
    """
    grid, num_steps = steps[0][0].grid, sum(count for _, count in steps)
    certain = any(step.infinite >= 1 for step, _ in steps)
    infinite = 1.0 if certain else -math.expm1(sum(count * math.log1p(-step.infinite) for step, count in steps))
    if num_steps == 1:
        step = steps[0][0]
        return Composed(step.probs, step.start, grid, infinite)
    # Indices are counted from the means, so that λ only meets small differences of losses.
    means = [round(float(np.dot(step.probs, np.arange(step.probs.size)) / step.probs.sum())) for step, _ in steps]
    tilted = [(*step.tilted(order, mean), count) for (step, count), mean in zip(steps, means)]
    mean = sum(count * mean for (_, count), mean in zip(steps, means))
    first, last = window([(probs, count) for probs, _, count in tilted], outside)
    size = fft.next_fast_len(max(last - first + 1, *(probs.size for probs, *_ in tilted)), real=True)
    product, centres = 1.0, 0
    for probs, _, count in tilted:
        # Centred at the mean, so that the phases stay small and their powers exact.
        centre = round(float(np.dot(probs, np.arange(probs.size))))
        padded = np.zeros(size)
        padded[: probs.size] = probs
        product = product * _power(fft.rfft(np.roll(padded, -centre)), count)
        centres += count * centre
    summed = np.maximum(np.roll(fft.irfft(product, size), (centres - first) % size), 0.0)
    start = sum(count * step.start for step, count in steps)
    log_moment = sum(count * moment for _, moment, count in tilted)
    log_weights = log_moment - order * grid * (first - mean + np.arange(size))
    return Composed(
        summed * np.exp(np.minimum(log_weights, 700.0)) if order else summed * math.exp(log_moment),
        start + first,
        grid,
        infinite,
        # mass outside the window wraps around into it, and the FFT rounds: both in units of the tilted total
        error=outside + fft_error(num_steps),
        tilt=(log_moment, order, grid * (start + mean)),
    )


def _power(numbers, count):
    """Complex numbers of size up to 1 to a power; 0 where it is below e^{−100}, as it mostly is in a long sum."""
    size = numbers.real**2 + numbers.imag**2
    seen = size > math.exp(-200 / count)
    powers = np.zeros_like(numbers)
    powers[seen] = numbers[seen] ** count
    return powers


class Composed:
    """A sum of losses on the grid, one empty point put below the lowest.

    Args: probs — from loss ``start · grid`` on, shape (n,);  start — an index, of the lowest;  grid — the spacing;
        infinite — mass at infinity;  error — of window and rounding, as a share of the tilted total;  tilt — log moment
        at λ, λ, and the mean in nats.
    """

    def __init__(self, probs, start, grid, infinite, *, error=0.0, tilt=(0.0, 0.0, 0.0)):
        self.probs, self.size, self.grid, self.start, self.infinite = probs, probs.size, grid, start - 1, infinite
        self.error, self.tilt = error, tilt
        self.rounding = 2.3e-16 * probs.size  # of the sums below, as a change of ε
        self.above = np.cumsum(probs[::-1])[::-1] + infinite  # mass above each point
        # Σ_{j > i} p_j e^{g_{i+1} − g_j}, as a recursion from the top: no exponential of a large number.
        self.weighted = lfilter([1.0], [1.0, -math.exp(-grid)], probs[::-1])[::-1]

    def noise(self, epsilon):
        """Bound on the numerical error of δ at ε."""
        if not self.error or epsilon == math.inf:
            return 0.0
        share = -math.expm1(min(0.0, epsilon - (self.start + self.size) * self.grid))  # 1 − e^{ε − loss} at the top
        log_moment, order, mean = self.tilt
        return min(1.0, share * self.error * math.exp(min(700.0, log_moment - order * (epsilon - mean))))

    def bump(self, epsilon, width, reach):
        """Mean of :math:`e^{-(S - ε)^2 / (2 · width^2)}`, taken within ``reach`` of ε."""
        first = max(math.floor((epsilon - reach) / self.grid) - self.start - 1, 0)
        last = min(math.ceil((epsilon + reach) / self.grid) - self.start, self.size)
        if last <= first:
            return 0.0
        distance = (self.start + 1 + np.arange(first, last)) * self.grid - epsilon
        return float(np.dot(self.probs[first:last], np.exp(-0.5 * (distance / width) ** 2)))

    def above_of(self, epsilon):
        """Mass above ε, or a little more."""
        i = max(math.floor(epsilon / self.grid) - self.start - 1, 0) if epsilon < math.inf else self.size
        return float(self.above[i]) if i < self.size else self.infinite

    def delta(self, epsilon):
        """δ(ε) for any real ε: exact between grid points."""
        if epsilon >= (self.start + self.size) * self.grid:
            return self.infinite
        i = max(math.floor(epsilon / self.grid) - self.start, 0)
        if i >= self.size:
            return self.infinite
        left_out = math.exp(epsilon - (self.start + i + 1) * self.grid) * self.weighted[i]
        return min(1.0, max(self.infinite, float(self.above[i] - left_out)))  # above 1 by rounding of a tilted sum

    def epsilon(self, delta):
        """Smallest ε at least 0 with δ(ε) at most delta: exact between grid points."""
        if delta <= self.infinite:
            return math.inf
        first = max(0, -self.start)  # the point at loss 0, or the lowest
        over = np.flatnonzero(self.above[first:] - math.exp(-self.grid) * self.weighted[first:] > delta)
        if over.size == 0 and self.start <= 0:
            return 0.0
        j = first + (over[-1] if over.size else 0)
        if self.above[j] <= delta:
            return 0.0
        return max(0.0, float((self.start + j + 1) * self.grid + math.log((self.above[j] - delta) / self.weighted[j])))


class Moved:
    """How far a sum on the grid may be from the true one, and what that does to δ: the lower ends.

    Args: composed — :class:`Composed`;  num_steps — T.
    """

    def __init__(self, composed, num_steps):
        self.composed = composed
        self.mean = num_steps * composed.grid * max(0.0, largest_mean_move(composed.grid))  # at most, and at least 0
        self.spread = composed.grid * math.sqrt(num_steps) / 2
        self.wide = max(self.mean, self.spread**2)

    def reach(self, failure):
        """A move exceeded with probability ``failure`` at most."""
        return self.mean + self.spread * math.sqrt(2 * math.log(1 / failure))

    def added(self, epsilon, negligible):
        """Bound on how much the moves add to δ at ε: a bump's mean, and ``negligible`` for what is far from ε."""
        spread, shift = self.spread, self.wide + self.mean
        peak = math.exp(spread**2 / 2) * spread * math.sqrt(2 * math.pi)
        width = 1.1 * spread  # τ, above s
        # B(d) e^{(d + Tm)²/(2τ²)} is at most this: beyond w as Φ(−t) ≤ e^{−t²/2}/2, before it where both are largest
        beyond = 0.5 * peak * math.exp(0.5 * shift**2 / (width**2 - spread**2))
        before = (peak * ndtr(self.wide / spread) + self.wide) * math.exp(0.5 * (shift / width) ** 2)
        constant = max(beyond, before) * math.exp(0.5 * (spread / width) ** 2)
        reach = width * math.sqrt(2 * max(0.0, math.log(constant / negligible)))
        return constant * self.composed.bump(epsilon, width, reach) + negligible

    def lower_delta(self, epsilon, cut):
        """A lower bound on the true δ at ε. ``cut`` is what cut tails and rounding may have added besides."""
        rare = 1e-3 * max(self.composed.delta(epsilon), SMALLEST_DELTA)
        far = epsilon + self.reach(rare)
        bound = self.composed.delta(far) - rare - self.composed.noise(far)
        if self.spread <= 1:
            added = self.added(epsilon, 1e-3 * rare) + self.composed.noise(epsilon)
            bound = max(bound, self.composed.delta(epsilon) - added)
        return max(0.0, bound - cut)

    def lower_epsilon(self, start, delta, cut):
        """A lower bound on the true ε: some ε at which the true δ, at least that of the grid less what it may add,
        exceeds delta. Args: start — the grid's own ε;  cut — as above."""
        rare = 1e-3 * delta
        # First order, without the kink: the sum moves by more than its reach with a probability of ``rare`` at most.
        simple = self._below(start, delta, lambda epsilon: cut + rare + self.composed.noise(epsilon))
        simple = max(0.0, simple - self.reach(rare))
        if start == math.inf or self.spread > 1:  # the latter is a coarse grid, for huge losses
            return simple

        def most(epsilon):
            return cut + self.added(epsilon, 1e-3 * rare) + self.composed.noise(epsilon)

        return max(simple, self._below(start, delta, most))

    def _below(self, start, delta, most):
        """An ε at which δ exceeds the given one, even less what ``most`` says may be too much; 0 if none is found."""
        candidate = start
        for factor in (1.0, 1.02, 1.1, 1.5, 3.0, 10.0):
            more = factor * most(candidate)
            if delta + more >= 1:
                break
            epsilon = self.composed.epsilon(delta + more) * (1 - 1e-12)
            if most(epsilon) <= more:
                return epsilon if epsilon < math.inf else 0.0
            candidate = epsilon
        if start < math.inf:  # where rounding grows fast below ε: look from there down, in doubling steps
            for gap in self.composed.grid * 2.0 ** np.arange(-3, 40):
                if gap < start and self.composed.delta(start - gap) - most(start - gap) >= delta:
                    return float(start - gap) * (1 - 1e-12)
        return 0.0
