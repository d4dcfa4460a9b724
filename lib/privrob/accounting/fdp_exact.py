r"""Steps of document ``fdp``'s reasoning about binomial noise, in whole numbers and by trying readings.

Fractions for the proof of Theorem 2, so that "strictly" can be told from "at most"; and for cpSGD's ε, which the
document prints without its settings, all readings with one or two of its ingredients changed.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

from privrob import checks


def masses(trials, prob):
    """Binomial probabilities at 0 … M as fractions. Args: trials — M;  prob — a :class:`~fractions.Fraction`."""
    return [math.comb(trials, k) * prob**k * (1 - prob) ** (trials - k) for k in range(trials + 1)]


def ratio_formula(k, *, upper, lower, trials, prob):
    r"""P(Y = k)/P(X = k) of X = x + Z and Y = x′ + Z, x > x′; its inverse is that of x < x′.

    .. math:: \frac{(M - k + x' + 1) \cdots (M - k + x)}{(k - x + 1) \cdots (k - x')} \Big(\frac{1-p}{p}\Big)^{x' - x}

    Paper: fdp, Equations 49 and 50.
    Printed: N, the number of users, for M.   Used: M, the number of trials.
    Args: upper, lower — x and x′;  prob — a fraction in (0, 1);  k — an outcome of both;  trials — M.
    """
    top, bottom = range(trials - k + lower + 1, trials - k + upper + 1), range(k - upper + 1, k - lower + 1)
    return Fraction(math.prod(top), math.prod(bottom)) * ((1 - prob) / prob) ** (lower - upper)


def piece(distance, k, alpha, z):
    r"""The piece :math:`J(\Delta, \tilde k)` of β⁺ at α, by the masses z of Z.

    .. math:: P(Z \ge \tilde k + \Delta)
        + \frac{P(Z = \tilde k + \Delta)}{P(Z = \tilde k)} \big(P(Z < \tilde k) - \alpha\big)

    Paper: fdp, A.2, before Equation 54.
    Args: distance — Δ;  k — k̃, an outcome;  alpha — in the piece's interval;  z — masses at 0 … M, fractions.
    """
    at = z[k + distance] if k + distance < len(z) else Fraction(0)
    return sum(z[k + distance :], Fraction(0)) + at / z[k] * (sum(z[:k], Fraction(0)) - alpha)


def steps(trials, prob):
    """(J(Δ + 1, k) − J(Δ, k), its bound) for all Δ and k, at both ends of the interval of α and inside: fractions.

    Paper: fdp, A.2, Equation 54.
    Printed: the step is below its bound, the larger one of −P(Z = k + Δ) and −P(Z = k + Δ + 1).   Used: at most its
    bound; they are equal at one end of the interval.
    Args: trials — M;  prob — a fraction in (0, 1).
    """
    z = [*masses(trials, prob), Fraction(0)]
    for distance in range(trials + 1):
        for k, share in itertools.product(range(trials - distance + 1), (Fraction(0), Fraction(1, 3), Fraction(1))):
            alpha = sum(z[:k], Fraction(0)) + share * z[k]
            bound = -min(z[k + distance], z[k + distance + 1])
            yield piece(distance + 1, k, alpha, z) - piece(distance, k, alpha, z), bound


CPSGD = {
    "l": (8, 7, 9),
    "δ": (0.044, 0.0436218, 0.039),
    "base of logarithms": (math.e, 2, 10),
    "2 in the root": (2, 1),
    "b": (1 / 3, 0, 2 / 3, 1),
    "c": (7 * math.sqrt(2) / 4, 7 / 4, 7 / 2),
    "d": (2 / 3, 0, 1 / 3, 4 / 3),
    "2/3": (2 / 3, 0, 1 / 3),
    "δ/10": (0.1, 0),
    "power of l in Δ₂": (1, 0.5),
    "terms": ((1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0)),
    "last logarithms": ((20, 10), (10, 10), (20, None), (10, None)),
}


def cpsgd_reading(values, *, variance):
    """cpSGD's ε for one value of each entry of :data:`CPSGD`; the first ones are the theorem at p = 1/2.

    Args: values — one of each entry, in their order;  variance — Mp(1 − p).
    """
    size, delta, base, root, b, c, d, third, tenth, power, terms, last = values

    def log(ratio):
        return math.log(ratio / delta, base)

    logs = log(last[0]) * (log(last[1]) if last[1] else 1)
    parts = [
        size**power * math.sqrt(root * log(1.25) / variance),
        (size**power * c * math.sqrt(log(10)) + size * b) / (variance * (1 - tenth * delta)),
        size * (third * log(1.25) + d * logs) / variance,
    ]
    return sum(use * part for use, part in zip(terms, parts))


def cpsgd_readings(*, variance, max_value=8):
    """{(changes): ε} with at most two entries of :data:`CPSGD` changed from the theorem.

    Paper: fdp, Remark 4 (3.18 at M = 500, p = 1/2; its l and s are not printed).
    Args: variance — Mp(1 − p);  max_value — l of the unchanged theorem.
    """
    variance = checks.positive("variance", variance, finite=True)
    options = {**CPSGD, "l": (max_value, max_value - 1, max_value + 1)}
    plain = {name: values[0] for name, values in options.items()}
    found = {(): cpsgd_reading(plain.values(), variance=variance)}
    single = [(name, value) for name, values in options.items() for value in values[1:]]
    for changes in [*((one,) for one in single), *itertools.combinations(single, 2)]:
        if len(dict(changes)) == len(changes):
            found[changes] = cpsgd_reading((plain | dict(changes)).values(), variance=variance)
    return found
