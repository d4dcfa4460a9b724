r"""The Poisson-sampled Gaussian, composed T times: ε between two certified ends, from its privacy-loss distribution.

One step releases a sum over a Poisson sample (rate q) with Gaussian noise. Its dominating pair, in units of the noise:

.. math:: P = (1-q)\,N(0, 1) + q\,N(\mu, 1), \quad Q = N(0, 1), \quad \mu = 1/\text{noise multiplier}

for ``remove`` (:math:`x \sim P`), and (Q, P) for ``add``. The loss log P/Q is put on a grid of spacing h by the
connect-the-dots rule (Doroshenko et al. 2022): the mass between two grid points is shared between these two so that
both its P and its Q probability stay what they were. The result dominates the true pair, so it bounds ε from above,
and its error is of second order in h. T steps are one FFT (of the exponentially tilted step, when δ is tiny).

The lower end couples both sums, :math:`S_{\text{grid}} = S + \Xi`. Given the losses, Ξ is a sum of independent moves,
each of range h and mean between 0 and m ≈ h²/8, with :math:`E[e^{-\Xi}] = 1`: sub-Gaussian, :math:`s = h\sqrt{T}/2`.
The hockey-stick function has its only kink at ε, so δ grows by no more than E[B(|S − ε|)], where

.. math:: B(d) = e^{s^2/2} s \sqrt{2\pi}\, \Phi(-(d - w)/s) + w\,1[d < w], \quad w = \max(Tm, s^2),

and S is within r of ε only if the grid's sum is within r + a, or Ξ exceeds a. That is an error of second order, too.

``dp_accounting`` builds the same distribution from differences of δ, which lose log10(1/h) digits; here the masses
are Normal probabilities, so that fine grids stay usable, one step serves many T, and there is a lower end. The tests
compare the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft
from scipy.optimize import minimize_scalar
from scipy.signal import lfilter
from scipy.special import logsumexp, ndtr, ndtri

from privrob import checks
from privrob.accounting import gdp
from privrob.accounting.logspace import log1mexp, log_normal_interval
from privrob.kinds import Interval, Neighbouring, NotAvailable

SMALLEST_DELTA = 1e-200  # the cut tails stay above the smallest float64
_POINTS_ONE, _POINTS_CURVE, _POINTS_COARSE = 2**20, 2**18, 2**14
_GRID_PER_SCALE = 1000  # grid points in one standard deviation of a step's loss: finer doesn't help
_NOISELESS = 1e-6  # noise multipliers below it are bounded by their neighbours 1e-6 and 0


@dataclass(frozen=True)
class Record:
    """What an ε was computed with. ``grid`` is the spacing of privacy losses in nats (0 for a closed form)."""

    accountant: str
    neighbouring: str
    sampling: str
    delta: float
    grid: float = 0.0
    points: int = 0


@dataclass(frozen=True)
class Epsilon(Interval):
    """An ε with certified ends, and the record of how it was found."""

    record: Record


def sampled_gaussian(*, sample_rate, noise_multiplier, num_steps, delta, neighbouring, points=_POINTS_ONE):
    """ε of T steps of the Poisson-sampled Gaussian mechanism.

    Paper: dplearn, How private is the DP-SGD algorithm? (the exact numbers behind its orders of magnitude).
    Assumes: one record moves a step's sum by at most 1/noise_multiplier noise standard deviations (l2).
    Args: sample_rate — q in [0, 1];  noise_multiplier — at least 0;  num_steps — T, at least 0;
        delta — in [0, 1), at least 1e-200 unless the answer is a closed form;
        neighbouring — ``add``, ``remove`` or ``add_remove`` (both ways);
        points — most grid points a convolution may take: bounds the time (2²⁰: about a second) and the width.
    Returns: :class:`Epsilon`, ``upper`` is the guarantee.
    """
    return epsilon_curve(
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        steps=[checks.integer("num_steps", num_steps, low=0)],
        delta=delta,
        neighbouring=neighbouring,
        points=points,
    )[0]


def epsilon_curve(*, sample_rate, noise_multiplier, steps, delta, neighbouring, points=_POINTS_CURVE):
    """ε after each of several step counts of one run: the step is discretised once, for the longest of them.

    Args: steps — a list of step counts;  the others as in :func:`sampled_gaussian`.
    Returns: list of :class:`Epsilon`, non-decreasing in the step count at each end that is a guarantee.
    """
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    sigma = checks.nonnegative("noise_multiplier", noise_multiplier)
    delta = checks.real("delta", delta, low=0.0, high=1.0, open_high=True)
    neighbouring = Neighbouring.of(neighbouring)
    if neighbouring is Neighbouring.REPLACE:
        raise NotAvailable("the Poisson-sampled Gaussian has an accountant for 'add', 'remove' and 'add_remove' only")
    steps = [checks.integer("steps", t, low=0) for t in steps]
    points = checks.integer("points", points, low=2**12)
    directions = ["remove", "add"] if neighbouring is Neighbouring.ADD_REMOVE else [neighbouring.value]
    per_direction = [_curve(q, sigma, steps, delta, direction, points) for direction in directions]
    results = []
    for answers in zip(*per_direction):
        lower, estimate, upper = (max(getattr(a, end) for a, _, _ in answers) for end in ("lower", "estimate", "upper"))
        grid, size = max((h, n) for _, h, n in answers)
        record = Record(
            "pld, connect the dots" if grid else "closed form", neighbouring.value, "poisson", delta, grid, size
        )
        results.append(Epsilon(lower, estimate, upper, record))
    return results


def _curve(q, sigma, steps, delta, direction, points):
    """(Interval, grid, points) for each step count, in one direction."""
    answers = [_closed_form(q, sigma, t, delta, direction) for t in steps]
    open_ = [t for t, answer in zip(steps, answers) if answer is None]
    if open_:
        if delta < SMALLEST_DELTA:
            raise ValueError(
                f"delta must be at least {SMALLEST_DELTA:g} for the privacy-loss distribution, got delta={delta!r}; "
                "a Rényi accountant serves smaller ones"
            )
        ladder = _numeric(q, max(sigma, _NOISELESS), open_, delta, direction, points)
    results = []
    for t, answer in zip(steps, answers):
        if answer is not None:
            results.append((Interval.exact(answer), 0.0, 0))
            continue
        interval, grid, size = ladder[t]
        if sigma < _NOISELESS:  # more noise leaks less: between the two neighbours
            limit = _noiseless(q, t, delta, direction)
            interval = Interval(min(interval.lower, limit), limit, limit)
        results.append((interval, grid, size))
    return results


def _closed_form(q, sigma, num_steps, delta, direction):
    """ε where it needs no grid, else None."""
    if q == 0 or num_steps == 0 or sigma == math.inf:
        return 0.0
    if sigma == 0:
        return _noiseless(q, num_steps, delta, direction)
    if q == 1:
        return float(gdp.epsilon_of(delta, gdp_mu=math.sqrt(num_steps) / sigma))
    # Total variation of T steps: at most T times that of one, and (Pinsker) at most sqrt(KL/2), KL at most χ².
    one = q * (2 * ndtr(0.5 / sigma) - 1)
    chi_square = q**2 * math.expm1(1 / sigma**2) if sigma > 0.05 else math.inf
    if delta >= min(num_steps * one, math.sqrt(num_steps * chi_square / 2)) * (1 + 1e-12):
        return 0.0
    if delta == 0:  # the loss is bounded in one direction only: by what a step without noise gives away
        return math.inf if direction == "remove" else -num_steps * math.log1p(-q)
    return None


def _noiseless(q, num_steps, delta, direction):
    """ε of steps that release the sum as it is."""
    log_never = num_steps * math.log1p(-q) if q < 1 else -math.inf  # the record is never drawn
    if direction == "remove":  # drawn once, the record gives itself away
        return 0.0 if delta >= -math.expm1(log_never) else math.inf
    return max(0.0, math.log1p(-delta) - log_never)


def _numeric(q, sigma, steps, delta, direction, points):
    """{num_steps: (Interval, grid, points)} from one discretised step."""
    longest = max(steps)
    tail = 1e-4 * delta / longest  # mass of one step's loss that may be cut off on either side
    low, high = _loss_range(q, sigma, direction, tail)
    width, scale = high - low, _loss_scale(q, sigma, direction)
    coarse = _Step(q, sigma, direction, max(width / _POINTS_COARSE, 1e-12 * abs(low)), tail)
    order, outside = coarse.tilt(longest, delta)
    first, last = coarse.window(coarse.tilted(order)[0], longest, outside)
    finest = 1e-12 * max(abs(low), abs(high))  # the loss itself has no more digits
    grid = max(width / points, (last - first) * coarse.grid / points, scale / _GRID_PER_SCALE, finest)
    step = _Step(q, sigma, direction, grid, tail)
    move = grid * max(0.0, _largest_mean_move(grid))
    results = {}
    for num_steps in sorted(set(steps)):
        composed = step.compose(num_steps, *coarse.tilt(num_steps, delta))
        estimate = composed.epsilon(delta)
        noise = composed.noise(estimate)
        rounding = 1e-14 * num_steps * max(1.0, 1e-2 * width)
        upper = composed.epsilon(delta - noise) + rounding if noise < delta else math.inf
        lower = _lower_end(composed, estimate, delta, noise + 2 * num_steps * tail, num_steps, move) - rounding
        most = math.inf if direction == "remove" else -num_steps * math.log1p(-q)  # what no noise at all gives away
        estimate, upper = min(estimate, most), min(max(upper, estimate), most)
        results[num_steps] = Interval(min(max(lower, 0.0), estimate), estimate, upper), grid, composed.size
    return results


def _lower_end(composed, start, delta, lost, num_steps, move):
    """A lower bound on the true ε: some ε at which the true δ, at least that of the grid less what it may add, exceeds
    delta. ``lost`` is what cut tails and rounding may have added besides."""
    if start == math.inf:
        return 0.0 if composed.infinite >= delta else start
    spread = composed.grid * math.sqrt(num_steps) / 2
    rare = 1e-3 * delta
    reach = num_steps * move + spread * math.sqrt(2 * math.log(1 / rare))
    # First order, without the kink: the sum moves by more than ``reach`` with a probability of ``rare`` at most.
    simple = composed.epsilon(delta + lost + rare) - reach if delta + lost + rare < 1 else 0.0
    if spread > 0.5:  # a coarse grid, for huge losses
        return simple
    wide = max(num_steps * move, spread**2)
    reach += wide
    peak = math.exp(spread**2 / 2) * spread * math.sqrt(2 * math.pi)

    def added(epsilon):
        return (peak + wide) * (composed.near(epsilon, 2 * reach) + 2 * rare) + peak * rare

    candidate = start
    for factor in (1.02, 1.1, 1.5, 3.0):
        more = lost + factor * added(candidate)
        if delta + more >= 1:
            break
        epsilon = composed.epsilon(delta + more) * (1 - 1e-12)
        if added(epsilon) + lost <= more:
            return max(epsilon, simple)
        candidate = epsilon
    return simple


def _largest_mean_move(h):
    """Largest mean change of a loss by the connect-the-dots rule, in units of the spacing h: about h/8.

    A loss x above its left grid point goes up with probability w = (1 − e^{-x})/(1 − e^{-h}), a mean move of w·h − x;
    that is largest at e^{x} = h/(1 − e^{-h}).
    """
    share = -math.expm1(-h)
    x = math.log(h / share)
    return -math.expm1(-x) / share - x / h


def _loss(q, mu, z):
    """log(1 − q + q e^{μz − μ²/2}), the loss of ``remove`` at z."""
    loss = mu * z - mu**2 / 2
    with np.errstate(over="ignore"):
        return np.where(loss > 30, np.logaddexp(math.log1p(-q), math.log(q) + loss), np.log1p(q * np.expm1(loss)))


def _loss_range(q, sigma, direction, tail):
    """Losses of ``remove`` at the points that leave at most ``tail`` of a step's outputs outside on either side."""
    mu, quantile = 1 / sigma, -ndtri(tail)
    return float(_loss(q, mu, -quantile)), float(_loss(q, mu, quantile + (mu if direction == "remove" else 0.0)))


def _loss_scale(q, sigma, direction):
    """Standard deviation of a step's loss, roughly: it sets the grid, no guarantee rests on it."""
    mu = 1 / sigma
    base = np.linspace(-9, 9, 2001)
    density = np.exp(-(base**2) / 2)
    density /= density.sum()
    losses, masses = _loss(q, mu, base), density * ((1 - q) if direction == "remove" else 1.0)
    if direction == "remove":
        losses = np.concatenate([losses, _loss(q, mu, base + mu)])
        masses = np.concatenate([masses, q * density])
    mean = np.dot(masses, losses)
    return math.sqrt(np.dot(masses, (losses - mean) ** 2))


class _Step:
    """One step's privacy loss on the grid: ``probs[i]`` at loss ``(start + i) · grid``, and a mass at infinity."""

    def __init__(self, q, sigma, direction, grid, tail):
        mu = 1 / sigma
        low, high = _loss_range(q, sigma, direction, tail)
        edges = np.arange(math.floor(low / grid), math.ceil(high / grid) + 1)  # loss of remove, in grids
        losses = edges * grid
        z = self._inverse(q, mu, losses)
        log_q = log_normal_interval(z[:-1], z[1:])
        log_p = np.logaddexp(math.log1p(-q) + log_q, math.log(q) + log_normal_interval(z[:-1] - mu, z[1:] - mu))
        below_p = (1 - q) * ndtr(z[0]) + q * ndtr(z[0] - mu)
        above_p = (1 - q) * ndtr(-z[-1]) + q * ndtr(mu - z[-1])
        below_q, above_q = ndtr(z[0]), ndtr(-z[-1])
        if direction == "remove":
            lump, beyond = below_p, above_p
            start, left = edges[0], losses[:-1]
        else:  # the pair swapped: losses change sign and order
            lump, beyond = above_q, below_q
            start, left = -edges[-1], -losses[:0:-1]
            log_p, log_q = log_q[::-1], log_p[::-1]
        # What goes to an interval's right end keeps its Q mass: p = l + u, q = l e^{-a} + u e^{-b}.
        with np.errstate(invalid="ignore", over="ignore"):
            share = np.expm1(left + log_q - log_p) / math.expm1(-grid)
        share = np.clip(np.where(np.isnan(share), 1.0, share), 0.0, 1.0)  # an empty interval has no share
        mass = np.exp(log_p)
        self.grid, self.start, self.infinite = grid, int(start), float(beyond)
        self.probs = np.zeros(edges.size)
        self.probs[:-1] = mass * (1 - share)
        self.probs[1:] += mass * share
        self.probs[0] += lump  # rounded up

    @staticmethod
    def _inverse(q, mu, losses):
        """The points z with these losses; minus infinity where no point has so low a loss."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            small = np.log1p(np.maximum(np.expm1(np.minimum(losses, 30.0)) / q, -1.0))
            large = losses - math.log(q) + log1mexp(np.minimum(math.log1p(-q) - losses, -1e-300))
        return np.where(losses > 30, large, small) / mu + mu / 2

    def tilt(self, num_steps, delta):
        """Order λ (per nat) whose Chernoff bound on the T-fold sum's upper tail is the best at δ, and the share of mass
        that may be left out. No tilt (λ = 0) where rounding is small against δ as it is: the window is then shorter."""
        if delta > 1e5 * _fft_error(num_steps):
            return 0.0, 1e-4 * delta
        losses = (self.start + np.arange(self.probs.size)) * self.grid
        kept = self.probs > 0
        losses, log_probs = losses[kept], np.log(self.probs[kept])
        mean = np.dot(np.exp(log_probs), losses)
        deviation = max(math.sqrt(np.dot(np.exp(log_probs), (losses - mean) ** 2)), self.grid)
        goal = -math.log(delta)

        def bound(log_order):
            order = math.exp(log_order)
            return (num_steps * logsumexp(order * (losses - mean) + log_probs) + goal) / order

        guess = math.log(math.sqrt(2 * goal / num_steps) / deviation)
        return math.exp(minimize_scalar(bound, bounds=(guess - 6, guess + 3), method="bounded").x), 1e-10

    def tilted(self, order):
        """The step's distribution with weights e^{λ · loss}, and the logarithm of their sum."""
        with np.errstate(divide="ignore"):
            weights = np.log(self.probs)
        weights += order * (self.grid * self.start + self.grid * np.arange(self.probs.size))
        peak = weights.max()
        probs = np.exp(weights - peak)
        total = probs.sum()
        return probs / total, peak + math.log(total)

    @staticmethod
    def window(probs, num_steps, outside):
        """First and last index of the T-fold sum outside which at most a mass ``outside`` lies: Chernoff."""
        last = probs.size - 1
        low, high = 0.0, float(last) * num_steps
        kept = np.flatnonzero(probs > 1e-280)
        probs = probs[kept]
        mean = np.dot(probs, kept)
        offset = kept - mean
        deviation = max(math.sqrt(np.dot(probs, offset**2)), 1e-3)
        goal = math.log(2 / outside)
        for order in math.sqrt(2 * goal / num_steps) / deviation * 2.0 ** np.arange(-4, 3):
            down = order * -offset[0]  # the largest exponents: taken out, so that nothing overflows
            moment = down + math.log(np.dot(np.exp(-order * offset - down), probs))
            low = max(low, num_steps * mean - (num_steps * moment + goal) / order)
            up = order * offset[-1]
            moment = up + math.log(np.dot(np.exp(order * offset - up), probs))
            high = min(high, num_steps * mean + (num_steps * moment + goal) / order)
        return math.floor(low), math.ceil(high)

    def compose(self, num_steps, order, outside):
        """The T-fold sum, by one FFT of the tilted step: its rounding errors are then small against the tail at δ."""
        infinite = -math.expm1(num_steps * math.log1p(-self.infinite))
        if num_steps == 1:
            return _Composed(self.probs, self.start, self.grid, infinite)
        probs, log_moment = self.tilted(order)
        first, last = self.window(probs, num_steps, outside)
        size = fft.next_fast_len(max(last - first + 1, probs.size), real=True)
        # Centred at the mean, so that the phases stay small and their T-th powers exact.
        centre = round(float(np.dot(probs, np.arange(probs.size))))
        padded = np.zeros(size)
        padded[: probs.size] = probs
        summed = fft.irfft(fft.rfft(np.roll(padded, -centre)) ** num_steps, size)
        summed = np.maximum(np.roll(summed, num_steps * centre - first), 0.0)
        start = num_steps * self.start + first
        log_weights = num_steps * log_moment - order * (self.grid * start + self.grid * np.arange(size))
        return _Composed(
            summed * np.exp(np.minimum(log_weights, 700.0)),
            start,
            self.grid,
            infinite,
            # mass outside the window wraps around into it, and the FFT rounds: both in units of the tilted total
            error=outside + _fft_error(num_steps),
            log_weight=(num_steps * log_moment, order),
        )


def _fft_error(num_steps):
    """Bound on what rounding in the FFT and its T-th power moves, of a total mass of 1."""
    return 1e-14 + 1e-15 * num_steps


class _Composed:
    """A sum of losses on the grid, one empty point put below the lowest."""

    def __init__(self, probs, start, grid, infinite, *, error=0.0, log_weight=(0.0, 0.0)):
        self.size, self.grid, self.start, self.infinite = probs.size, grid, start - 1, infinite
        self.error, self.log_weight = error, log_weight
        self.above = np.cumsum(probs[::-1])[::-1] + infinite  # mass above each point
        # Σ_{j > i} p_j e^{g_{i+1} − g_j}, as a recursion from the top: no exponential of a large number.
        self.weighted = lfilter([1.0], [1.0, -math.exp(-grid)], probs[::-1])[::-1]

    def noise(self, epsilon):
        """Bound on the numerical error of δ at ε."""
        if not self.error or epsilon == math.inf:
            return 0.0
        share = -math.expm1(min(0.0, epsilon - (self.start + self.size) * self.grid))  # 1 − e^{ε − loss} at the top
        return share * self.error * math.exp(min(0.0, self.log_weight[0] - self.log_weight[1] * epsilon))

    def near(self, epsilon, reach):
        """Mass within ``reach`` of ε, or a little more."""
        first = math.floor((epsilon - reach) / self.grid) - self.start - 1
        last = math.ceil((epsilon + reach) / self.grid) - self.start
        above = self.above[min(max(first, 0), self.size - 1)]
        return float(above - (self.above[min(last, self.size - 1)] if last >= 0 else above))

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
