"""Propose-Test-Release integrated as its proofs write it: slow, and independent of the closed forms that it checks.

Everything here is a Rényi divergence in nats at one order, by quadrature over what the mechanism releases.

``order`` is a number above 1, and answers are Rényi divergences in nats of :class:`privrob.accounting.ptr.Settings`.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy import integrate, stats

from privrob import checks

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(60)


def of_mechanism(order, *, settings, case):
    """One run: over the noisy margin, with the branch that it takes at the threshold.

    Paper: ptr, Equations 9 to 32.
    Args: case — ``"test_fails"`` (the margin stays, the target moves) or ``"bounded"`` (it moves by 1).
    """
    checks.choice("case", case, ["test_fails", "bounded"])
    moved, reach = {"test_fails": (0.0, 1.0), "bounded": (1.0, settings.sensitivity_bound)}[case]
    return of_neighbours(order, settings=settings, margins=(0.0, moved), reach=reach)


def of_neighbours(order, *, settings, margins, reach):
    """One run on neighbours with these margins, whose target moves by 1 and whose robust statistic by ``reach``.

    The margin is integrated piece by piece between its kinks; the answer given it is a Gaussian's closed form.
    Args: reach — what the robust statistic moves by;  margins — of the data set in the denominator, and of its
        neighbour;  settings — with global sensitivities 1.
    """
    scale, threshold = settings.scale_ratio, settings.threshold
    moves = (1 / settings.noise_multiplier, reach / settings.robust_noise_multiplier)
    ends, total = {*margins, threshold}, -math.inf
    for low, high in itertools.pairwise(sorted(ends | {min(ends) - 50 * scale, max(ends) + 50 * scale})):
        for left, right in itertools.pairwise(np.linspace(low, high, 9)):
            s, w = left + (right - left) * (_NODES + 1) / 2, (right - left) / 2 * _WEIGHTS
            logs = (1 - order) * stats.laplace.logpdf(s, margins[0], scale) + np.log(w)
            logs += order * stats.laplace.logpdf(s, margins[1], scale)
            gain = (order - 1) * order * moves[low >= threshold] ** 2 / 2
            total = np.logaddexp(total, np.logaddexp.reduce(logs) + gain)
    return float(total) / (order - 1)


def hidden(order, *, settings, margin, offset, sign):
    """The variant that hides its margin: margins k and k + 1 (``sign`` > 0) or k + 1 and k, both statistics moved.

    Paper: ptr, Equation 33.
    Args: margin — k;  offset — where the robust statistic lies, seen from the target.
    """
    s1, s2, tau = settings.noise_multiplier, settings.robust_noise_multiplier, settings.sensitivity_bound
    z = np.linspace(-14 * s1, 14 * s1 + order, 6001)
    logs = []
    margins = (margin, margin + 1) if sign > 0 else (margin + 1, margin)
    for k, (first, second) in zip(margins, ((0.0, offset), (1.0, offset + tau)), strict=True):
        level = settings.threshold - k
        passes, fails = (law(level, scale=settings.scale_ratio) for law in (stats.laplace.logsf, stats.laplace.logcdf))
        logs.append(np.logaddexp(fails + stats.norm.logpdf(z, first, s1), passes + stats.norm.logpdf(z, second, s2)))
    moment = np.logaddexp.reduce(order * logs[1] + (1 - order) * logs[0]) + math.log(z[1] - z[0])
    return float(moment) / (order - 1)


def nested(order, *, settings, sample_rate):
    """One step on a Poisson sample, case 2, the record in the first argument: over the margin s, the moment of the
    Gaussian sampled with probability A(s).

    Paper: ptr, Equations 49 to 62.
    """
    q, b, noise = checks.probability("sample_rate", sample_rate), settings.scale_ratio, settings.noise_multiplier
    z = np.linspace(-12, 12 + order / noise, 4001)
    base, ratio = stats.norm.pdf(z), np.exp(z / noise - 0.5 / noise**2)

    def inner(s):
        up = math.exp((abs(s) - abs(s - 1)) / b)  # μ₁/μ₀
        mixed = 1 - q + q * up
        share = q * up / mixed
        return (
            stats.laplace.pdf(s, scale=b) * mixed**order * np.trapezoid(base * (1 - share + share * ratio) ** order, z)
        )

    ends = [(-40 * b, 0.0), (0.0, 1.0), (1.0, 1 + 40 * b)]
    return math.log(sum(integrate.quad(inner, *e, epsabs=0, limit=100)[0] for e in ends)) / (order - 1)
