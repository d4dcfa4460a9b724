r"""The Poisson-sampled Gaussian, composed T times: ε between two certified ends, from its privacy-loss distribution.

One step releases a sum over a Poisson sample (rate q) with Gaussian noise. Its dominating pair, in units of the noise:

.. math:: P = (1-q)\,N(0, 1) + q\,N(\mu, 1), \quad Q = N(0, 1), \quad \mu = 1/\text{noise multiplier}

for ``remove`` (:math:`x \sim P`), and (Q, P) for ``add``. The loss log P/Q is put on a grid, T steps are one FFT, and
both ends are certified: :mod:`privrob.accounting.lossgrid` says how. :mod:`privrob.accounting.pairs` does the same for
any pair; here one discretised step serves many T.

``dp_accounting`` builds the same distribution from differences of δ, which lose log10(1/h) digits; here the masses
are Normal probabilities, so that fine grids stay usable, and there is a lower end. The tests compare the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, ndtr, ndtri

from privrob import checks
from privrob.accounting import gdp, lossgrid
from privrob.accounting.logspace import log1mexp, log_normal_interval
from privrob.accounting.lossgrid import SMALLEST_DELTA
from privrob.kinds import Interval, Neighbouring, NotAvailable

_MOST_STEPS = 10**300  # a closed form takes the square root
_POINTS_ONE, _POINTS_CURVE = 2**20, 2**18
_NOISELESS = 1e-6  # noise multipliers below it are bounded by their neighbours 1e-6 and 0


@dataclass(frozen=True)
class Record:
    """What an ε was computed with. ``grid`` is the spacing of privacy losses in nats (0 for a closed form).

    ``points`` is the grid's size, ``accountant`` the function's name.
    """

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
        steps=[checks.integer("num_steps", num_steps, low=0, high=_MOST_STEPS)],
        delta=delta,
        neighbouring=neighbouring,
        points=points,
    )[0]


def epsilon_curve(*, sample_rate, noise_multiplier, steps, delta, neighbouring, points=_POINTS_CURVE):
    """ε after each of several step counts of one run: the step is discretised once, for the longest of them.

    Side: both ends, as in :func:`sampled_gaussian`.
    Args: steps — a list of step counts;  the others as in :func:`sampled_gaussian`.
    Returns: list of :class:`Epsilon`, non-decreasing in the step count at each end that is a guarantee.
    """
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    sigma = checks.nonnegative("noise_multiplier", noise_multiplier)
    delta = checks.real("delta", delta, low=0.0, high=1.0, open_high=True)
    neighbouring = Neighbouring.of(neighbouring)
    if neighbouring is Neighbouring.REPLACE:
        raise NotAvailable("the Poisson-sampled Gaussian has an accountant for 'add', 'remove' and 'add_remove' only")
    steps = [checks.integer("steps", t, low=0, high=_MOST_STEPS) for t in steps]
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
        checks.integer("num_steps", max(open_), high=2**53, hint="a composition on a grid has no more")
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
    one = q * (2 * ndtr(0.5 / sigma) - 1 if sigma < 1e6 else erf(0.5 / sigma / math.sqrt(2)))
    chi_square = q**2 * math.expm1(1 / sigma**2) if 0.05 < sigma < 1e100 else math.inf
    if delta > 0 and delta >= min(num_steps * one, math.sqrt(num_steps * chi_square / 2)) * (1 + 1e-12):
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
    tail = 1e-5 * delta / longest  # mass of one step's loss that may be cut off on either side
    low, high = _loss_range(q, sigma, direction, tail)
    width, scale = high - low, _loss_scale(q, sigma, direction)
    coarse = _Step(q, sigma, direction, max(width / lossgrid.POINTS_COARSE, 1e-12 * abs(low)), tail)
    order, outside = lossgrid.tilt([(coarse, longest)], delta)
    first, last = lossgrid.window([(coarse.tilted(order)[0], longest)], outside)
    finest = 1e-12 * max(abs(low), abs(high))  # the loss itself has no more digits
    grid = max(width / points, (last - first) * coarse.grid / points, scale / lossgrid.GRID_PER_SCALE, finest)
    step = _Step(q, sigma, direction, lossgrid.spacing(grid), tail)
    results = {}
    for num_steps in sorted(set(steps)):
        composed = step.compose(num_steps, *lossgrid.tilt([(step, num_steps)], delta))
        estimate = composed.epsilon(delta)
        noise = composed.noise(estimate)
        rounding = 1e-14 * num_steps * max(1.0, 1e-2 * width) + composed.rounding
        upper = composed.epsilon(delta - noise) + rounding if noise < delta else math.inf
        if upper == math.inf:  # rounding drowns so small a δ: Chernoff's bound has none
            lost = -math.expm1(num_steps * math.log1p(-coarse.infinite))
            upper = lossgrid.Moments([(coarse, num_steps)]).epsilon_upper(delta - lost) if lost < delta else math.inf
            estimate = min(estimate, upper)
        lower = lossgrid.Moved(composed, num_steps).lower_epsilon(estimate, delta, 2 * num_steps * tail) - rounding
        most = math.inf if direction == "remove" else -num_steps * math.log1p(-q)  # what no noise at all gives away
        estimate, upper = min(estimate, most), min(max(upper, estimate), most)
        results[num_steps] = Interval(min(max(lower, 0.0), estimate), estimate, upper), step.grid, composed.size
    return results


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


class _Step(lossgrid.Step):
    """One step's privacy loss on the grid."""

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
        stay, up = lossgrid.connect_the_dots(log_p, log_q, left, grid)
        probs = np.zeros(edges.size)
        probs[:-1] = stay
        probs[1:] += up
        probs[0] += lump  # rounded up
        super().__init__(probs, start, grid, beyond)

    @staticmethod
    def _inverse(q, mu, losses):
        """The points z with these losses; minus infinity where no point has so low a loss."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            small = np.log1p(np.maximum(np.expm1(np.minimum(losses, 30.0)) / q, -1.0))
            large = losses - math.log(q) + log1mexp(np.minimum(math.log1p(-q) - losses, -1e-300))
        return np.where(losses > 30, large, small) / mu + mu / 2
