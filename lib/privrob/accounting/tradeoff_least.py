r"""The least of several trade-off functions, and the largest convex one below them.

A mechanism is f-DP for the infimum f over its neighbouring inputs. A minimum of convex functions need not be convex,
and a trade-off function is: :func:`minimum` is the convex hull, itself the curve of a finite pair. Both give the same
(ε, δ), as δ looks at supporting lines only. What holds under composition is the hull.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from privrob.accounting.logspace import log_diff_exp
from privrob.accounting.tradeoff import Tradeoff

_SAME = 1e-12  # relative: knots as close as this are one


def pointwise(curves, type1):
    """The smallest value of several curves at each type-I error: what is attained, convex or not.

    Paper: fdp, Definition 3 and Remark 2 (the infimum over neighbours).
    """
    return reduce(np.minimum, [curve(type1) for curve in _checked(curves)])


def minimum(curves):
    """The convex hull of the smallest of several trade-off functions, as a :class:`.Tradeoff`.

    Paper: fdp, Theorems 2, 3 and 9.
    Printed: f = min{β⁺, β⁻} is a trade-off function.   Used: its hull, where it isn't convex: M = 6, p = 0.3, l = 2
    have a minimum of 0.2037 at α = 0.2025, and 0.1708 on the hull. Definition 3 wants a convex f.
    Side: lower, for each mechanism that one of them bounds.
    Args: curves — a list of :class:`privrob.accounting.tradeoff.Tradeoff`.
    Returns: exact but for rounding; a curve that is nowhere above the others comes back as it was.
    """
    return reduce(_lower, _checked(curves))


def symmetrised(curve):
    """The hull of a curve and its inverse: what holds for neighbours in either order, and for a mix of them."""
    return minimum([curve, curve.inverse()])


def _checked(curves):
    curves = list(curves)
    if not curves or not all(isinstance(curve, Tradeoff) for curve in curves):
        raise ValueError("curves must be at least one Tradeoff, and nothing else")
    return curves


def _lower(first, second):
    """The hull of two.

    A knot is on the hull if some line of slope −γ touches the curves there first. Between two neighbouring slopes of
    all pieces each curve has one candidate; which of them leads turns at most once, where both lines meet.
    """
    losses = np.unique(np.concatenate([first.pair.atoms[0], second.pair.atoms[0]]))
    candidates = [np.searchsorted(curve.pair.atoms[0], losses, side="right") for curve in (first, second)]
    candidates = [np.concatenate([[0], index]) for index in candidates]  # from (0, 1) to (1, 0), as −log γ rises
    starts, ends = np.concatenate([[-np.inf], losses]), np.concatenate([losses, [np.inf]])
    alpha, power = (
        [getattr(curve.log_knots, name)[index] for curve, index in zip((first, second), candidates)]
        for name in ("log_type1", "log_power")
    )
    ahead = [_beyond(power[0], power[1], first, second, candidates, "log_type2")]
    ahead.append(_beyond(alpha[0], alpha[1], first, second, candidates, "log_accept"))
    stronger, costlier = ahead  # −1, 0, 1: the first has less, the same, more
    with np.errstate(invalid="ignore"):
        gain = log_diff_exp(np.maximum(*power), np.minimum(*power))
        cost = log_diff_exp(np.maximum(*alpha), np.minimum(*alpha))
        meet = np.where((stronger != 0) & (costlier != 0), cost - gain, 0.0)  # −log γ
    # the one with less of both leads while γ is large, which is before they meet
    cheap = np.where(costlier <= 0, 0, 1)
    crossing = (stronger == costlier) & (stronger != 0)
    better = np.where((stronger > 0) | ((stronger == 0) & (costlier <= 0)), 0, 1)
    early = np.where(crossing, np.where(meet > starts, cheap, 1 - cheap), better)
    late = np.where(crossing, np.where(meet < ends, 1 - cheap, cheap), better)
    who = np.stack([early, late], axis=1).ravel()
    index = np.where(who == 0, np.repeat(candidates[0], 2), np.repeat(candidates[1], 2))
    either = np.repeat((stronger == 0) & (costlier == 0), 2)
    if not who.any():
        return first
    if (who | either).all():
        return second
    return _through(first, second, who, index)


def _same(a, b):
    """Whether two logarithms of sums are the same but for rounding, of which large logarithms have more."""
    with np.errstate(invalid="ignore"):
        return (a == b) | (np.abs(a - b) < _SAME + 8e-15 * np.maximum(np.abs(a), np.abs(b)))


def _beyond(a, b, first, second, candidates, complement):
    """Sign of a − b, 0 where they are the same, on their own scale and on that of the complement."""
    rest = [getattr(c.log_knots, complement)[i] for c, i in zip((first, second), candidates)]
    with np.errstate(invalid="ignore"):
        sign = np.where(np.maximum(a, b) < np.log(0.5), np.sign(a - b), np.sign(rest[1] - rest[0]))
    return np.where(_same(a, b) & _same(*rest), 0, sign)


def _through(first, second, who, index):
    """The curve through chosen knots of two others, in order."""
    sides = list(zip(first.log_knots, second.log_knots))
    logs = [np.where(who == 0, *(np.take(knots, index, mode="clip") for knots in pair)) for pair in sides]
    onward = np.ones(who.size, dtype=bool)  # rounding may turn back by a step
    for log, sign in zip(logs, (1, -1, -1, 1)):
        onward &= sign * log >= np.maximum.accumulate(sign * log)
    who, index, logs = who[onward], index[onward], [log[onward] for log in logs]
    keep = np.append(True, ~np.logical_and.reduce([_same(log[1:], log[:-1]) for log in logs]))
    who, index, logs = who[keep], index[keep], [x[keep] for x in logs]
    log_type1, log_accept, log_type2, log_power = logs
    whole = (who[1:] == who[:-1]) & (index[1:] == index[:-1] + 1)  # a piece of one of them, as it was
    masses = []
    for side, rising, falling in ((1, log_type1, log_accept), (2, log_power, log_type2)):
        small = rising[1:] < falling[:-1]
        upper, lower = np.where(small, rising[1:], falling[:-1]), np.where(small, rising[:-1], falling[1:])
        piece = log_diff_exp(upper, np.minimum(lower, upper))
        atoms = [np.take(curve.pair.atoms[side], index[:-1], mode="clip") for curve in (first, second)]
        masses.append(np.where(whole, np.where(who[:-1] == 0, *atoms), piece))
    return Tradeoff.of_logs(*masses)
