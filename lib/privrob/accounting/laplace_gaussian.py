r"""A Laplace and a Gaussian answer released together, each moved by its whole sensitivity: the loss and its laws.

.. math:: P = \mathrm{Lap}(1, b) \times N(1, \sigma^2), \quad Q = \mathrm{Lap}(0, b) \times N(0, \sigma^2), \qquad
    \beta = 1/b,\ \mu = 1/\sigma

The loss has a density in closed form, :math:`e^{t/2} g(t)` under P and :math:`e^{-t/2} g(t)` under Q with g even,

.. math:: g(t) = e^{-\beta/2 - \mu^2/8} \Big[\tfrac{1}{2\mu}\varphi\big(\tfrac{t-\beta}{\mu}\big)
    + \tfrac{1}{2\mu}\varphi\big(\tfrac{t+\beta}{\mu}\big)
    + \tfrac14\Big(\Phi\big(\tfrac{t+\beta}{\mu}\big) - \Phi\big(\tfrac{t-\beta}{\mu}\big)\Big)\Big]:

the Laplace loss is β with probability ½ and −β with probability ½e^{-β} under P, has the density ¼e^{(x−β)/2} between,
and the Gaussian loss N(μ²/2, μ²) is added to it. So every divergence is one integral over t. The pair is its own
reversal. (The document integrates twice: over the noisy margin, and over the Gaussian answer given it.)

``scale_ratio`` is b and ``noise_multiplier`` is σ.

Source: ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privrob import checks
from privrob.accounting.dominating import Pair
from privrob.accounting.logspace import (
    LOG_SQRT_2PI,
    log_diff_exp,
    log_normal_interval,
    log_power_excess_over_ratio,
    log_sampled_ratio,
)
from privrob.accounting.quadrature import AGREE, log_integral
from privrob.accounting.subsample import peaks

_EPS = np.finfo(np.float64).eps
_REACH = np.array([0.0, 2.0, 5.0, 11.0, 40.0])  # panel edges on either side of a peak, in its widths
_TAIL = 46.0  # deviations beyond which a Normal density is left out: e^{−1058}
_PANEL = 0.125  # of a deviation: the widest panel of a mass
_RULES = [(1 / 4096, 2), (1 / 512, 3), (1 / 64, 4), (math.inf, 12)]  # widest panel in deviations, nodes for it
_AT_ONCE = 2**17  # panels


def log_density(loss, *, scale_ratio, noise_multiplier):
    """log g at some losses; the density of the loss is e^{t/2} g under P and e^{−t/2} g under Q.

    Args: loss — t, any shape.
    """
    beta, mu = 1 / scale_ratio, 1 / noise_multiplier
    near, far = (np.abs(loss) - beta) / mu, (np.abs(loss) + beta) / mu
    # where neither peak is seen, what lies between is far off 0 too, or is all there is
    between = math.log(0.25) + log_normal_interval(near, far)
    normal = math.log(0.5) - math.log(mu) - LOG_SQRT_2PI
    ends = normal - near * near / 2 + np.log1p(np.exp((near - far) * (near + far) / 2))
    return np.logaddexp(ends, between) - beta / 2 - mu * mu / 8


def sampled_log_excess(s, *, sample_rate, scale_ratio, noise_multiplier, direction):
    """log of (moment − 1)/s on a Poisson sample at each s = order − 1 > 0, shape (k,); the rate q inside (0, 1].

    Args: s — positive, shape (k,);  direction — ``"remove"`` or ``"add"``.
    Returns: shape (k,), exact but for the quadrature.
    """
    q, beta, mu = sample_rate, 1 / scale_ratio, 1 / noise_multiplier
    log_odds = math.log(q) - math.log1p(-q) if q < 1 else math.inf
    edges, farthest = [], np.zeros(s.size)
    for centre in (-beta, beta):  # around a Laplace loss of ±β, the Gaussian loss as in a sampled Gaussian
        odds = min(max(log_odds + centre, -700.0), 700.0)
        z, widths = peaks(s, odds, mu, direction)
        reach = np.append(_REACH, max(200.0, 10 / math.sqrt(mu)))
        reach = np.concatenate([-reach[:0:-1], reach])
        around = (z[..., None] + widths[..., None] * reach).reshape(s.size, -1)
        edges.append(centre - mu * mu / 2 + mu * around)
        farthest = np.maximum(farthest, np.max(np.abs(z), axis=1))
    # Between them the density is e^{±t/2}/4, and the integrand turns at the ends and where sampling bends the loss.
    finest = np.minimum(min(mu, 1.0), 1 / (1 + s)) / 4
    steps = finest[:, None] * 2.0 ** np.arange(0, 40)
    steps = np.where(steps < 2 * beta + 2, steps, 0.0)
    for corner in {-beta, beta, min(max(-log_odds, -beta), beta)}:
        edges += [corner - steps, corner + steps]
    edges = np.sort(np.concatenate(edges, axis=1), axis=1)

    def integrand(which, loss):
        order = s[which][:, None]
        log_q = log_density(loss, scale_ratio=scale_ratio, noise_multiplier=noise_multiplier) - loss / 2
        ratio = log_sampled_ratio(loss, q) if q < 1 else loss
        if direction == "remove":
            return log_q + ratio + log_power_excess_over_ratio(ratio, order)
        # e^{ratio} of P's density and 1/e^{ratio} of the excess cancel
        return log_q + log_power_excess_over_ratio(-ratio, order)

    tolerance = AGREE + 64 * _EPS * farthest**2
    return log_integral(integrand, edges, tolerance=tolerance, stands_in="the curve without sampling")


def log_delta(epsilon, *, scale_ratio, noise_multiplier):
    r"""log of δ at ε ≥ 0: :math:`\int_\varepsilon^\infty (1 - e^{\varepsilon - t})\, e^{t/2} g(t)\, dt`.

    Args: epsilon — a number.
    Returns: exact but for the quadrature; 0, that is δ = 1, where there is too little noise for its digits.
    """
    checks.positive("scale_ratio", scale_ratio, finite=True)
    checks.positive("noise_multiplier", noise_multiplier, finite=True)
    if noise_multiplier < 1e-6 or scale_ratio < 1e-100:
        return 0.0
    beta, mu = 1 / scale_ratio, 1 / noise_multiplier
    peak = mu * mu / 2 + mu * np.concatenate([-_REACH[:0:-1], _REACH])
    steps = min(mu, 1.0) / 4 * 2.0 ** np.arange(-10, 40)
    points = np.concatenate([[epsilon], epsilon + steps, beta + peak, -beta + peak, beta - steps, beta + steps])
    end = max(beta + mu * mu / 2, epsilon) + _TAIL * mu
    edges = np.unique(np.clip(points, epsilon, end))[None, :]

    def integrand(_, loss):
        with np.errstate(divide="ignore"):
            gain = np.log(-np.expm1(np.minimum(epsilon - loss, 0.0)))
        return gain + loss / 2 + log_density(loss, scale_ratio=scale_ratio, noise_multiplier=noise_multiplier)

    tolerance = AGREE + 64 * _EPS * (mu * mu + abs(epsilon))
    return min(0.0, float(log_integral(integrand, edges, tolerance=tolerance, stands_in="a δ of 1")[0]))


@dataclass(frozen=True)
class LaplaceGaussianPair(Pair):
    """The dominating pair of both answers. Args: scale_ratio — b;  noise_multiplier — σ; each above 0 and finite."""

    scale_ratio: float
    noise_multiplier: float

    def __post_init__(self):
        checks.positive("scale_ratio", self.scale_ratio, finite=True)
        checks.positive("noise_multiplier", self.noise_multiplier, finite=True)

    @cached_property
    def _ends(self):
        """Ends of panels, in rising order, and of each piece what it is: −1 nothing, 0 a panel, 1 all of the middle."""
        beta, mu = 1 / self.scale_ratio, 1 / self.noise_multiplier
        around = mu * np.arange(-_TAIL, _TAIL + _PANEL / 2, _PANEL)
        windows = sorted(c + s * mu * mu / 2 for c in (-beta, beta) for s in (-1, 1))
        points = np.unique(np.concatenate([window + around for window in windows]))
        middles = (points[:-1] + points[1:]) / 2
        inside = np.min(np.abs(middles[:, None] - np.array(windows)), axis=1) < _TAIL * mu
        kind = np.where(inside, 0, -1)
        kind[~inside & (np.abs(middles) < beta - _TAIL * mu)] = 1
        return points, kind

    def _pieces(self, left, right, kind):
        """Log masses of pieces under P and under Q, each of one kind."""
        mu = 1 / self.noise_multiplier
        results = [np.full(left.size, -np.inf) for _ in range(2)]
        middle = kind == 1
        if middle.any():  # g is constant there
            constant = math.log(0.5) - 0.5 / self.scale_ratio - mu * mu / 8
            a, b = left[middle] / 2, right[middle] / 2
            results[0][middle] = constant + log_diff_exp(b, a)
            results[1][middle] = constant + log_diff_exp(-a, -b)
        widths, narrower = (right - left) / mu, 0.0
        for widest, count in _RULES:
            nodes, weights = np.polynomial.legendre.leggauss(count)
            chosen = np.flatnonzero((kind == 0) & (widths > narrower) & (widths <= widest))
            narrower = widest
            for some in np.array_split(chosen, -(-chosen.size // _AT_ONCE)) if chosen.size else []:
                half = (right[some] - left[some]) / 2
                points = ((left[some] + right[some]) / 2)[:, None] + half[:, None] * nodes
                logs = log_density(points, scale_ratio=self.scale_ratio, noise_multiplier=self.noise_multiplier)
                for i, sign in enumerate((0.5, -0.5)):
                    tilted = logs + sign * points
                    top = tilted.max(axis=1)
                    results[i][some] = top + np.log(np.exp(tilted - top[:, None]) @ weights) + np.log(half)
        return results

    def cells(self, edges):
        ends, kind = self._ends
        edges = np.clip(np.asarray(edges, dtype=np.float64), ends[0], ends[-1])
        points = np.unique(np.concatenate([ends, edges]))
        left, right = points[:-1], points[1:]
        pieces = self._pieces(left, right, kind[np.searchsorted(ends, left, side="right") - 1])
        if not all(abs(np.logaddexp.reduce(logs)) < 1e-7 for logs in pieces):
            given = f"scale_ratio={self.scale_ratio} and noise_multiplier={self.noise_multiplier}"
            raise ValueError(f"{given} leave losses that doubles do not resolve; pass pairs.laplace and pairs.gaussian")
        starts = np.concatenate([[0], np.searchsorted(points, edges), [left.size]])
        filled, results = np.diff(starts) > 0, []
        for logs in pieces:
            cell = np.full(filled.size, -np.inf)
            cell[filled] = np.logaddexp.reduceat(logs, starts[:-1][filled])
            results.append(cell)
        return results

    def reversed(self):
        return self

    @cached_property
    def extent(self):
        return -math.inf, math.inf

    @cached_property
    def infinite(self):
        return 0.0, 0.0
