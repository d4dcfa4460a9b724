r"""Trade-off functions of compositions: exact, certified from below, and approximate.

:func:`exact` counts every outcome, for a few; :func:`lower` takes δ at some ε from an accountant of any composition,
and is a guarantee; :func:`approximate` is the central limit theorem or an Edgeworth expansion, and is none.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from privrob import checks
from privrob.accounting import gdp, pairs
from privrob.accounting.counted import Counted
from privrob.accounting.dominating import DiscretePair
from privrob.accounting.tradeoff import Tradeoff, approximate_dp, type1_errors
from privrob.kinds import NotAvailable

METHODS = ("clt", "edgeworth_1", "edgeworth_2")


def exact(entries):
    """The trade-off function of a composition of finite pairs, all of its outcomes counted.

    Paper: fdp, Remark 13.
    Printed: it can be approximated.   Used: equal coordinates need no approximation: d binomial pairs are Theorem 3
    with dM trials, and of ternary ones the sum is enough.
    Args: entries — list of (:class:`.dominating.DiscretePair`, count).
    Returns: :class:`.Tradeoff`; NotAvailable for more than 2¹⁷ outcomes, for which :func:`lower` is there.
    """
    parts = [(pair, checks.integer("count", count, low=0)) for pair, count in entries]
    parts = [(pair, count) for pair, count in parts if count]
    if any(pair.infinite[0] >= 1 for pair, _ in parts):  # one step tells all
        return Tradeoff.of([1.0, 0.0], [0.0, 1.0])
    counted = Counted.of(parts)
    if counted is None:
        raise NotAvailable("too many outcomes to count, or a pair that isn't finite; use tradeoff_composed.lower")
    log_p, log_q = counted.logs, counted.logs - counted.losses
    ends = []
    for side in (0, 1):  # mass of an unbounded loss, which no other outcome shares
        kept = sum(count * math.log1p(-pair.infinite[side]) for pair, count in parts)
        ends.append(math.log(-math.expm1(kept)) if kept else -math.inf)
    log_p = np.concatenate([log_p, [ends[0], -np.inf]])
    log_q = np.concatenate([log_q, [-np.inf, ends[1]]])
    return Tradeoff(DiscretePair(log_p, log_q))


def lower(entries, type1, *, epsilons):
    r"""A certified lower bound on the trade-off function of any composition: the best of some (ε, δ) lines.

    Paper: fdp, Remark 13; Lemma 1.
    Args: entries — as of :func:`privrob.accounting.pairs.delta`; asked all one way and all the other;
        epsilons — where to ask for δ, each at least 0; more of them, a tighter bound.
    """
    alpha = type1_errors(type1)
    best, entries = np.zeros_like(alpha), list(entries)
    turned = [(pair.reversed(), count) for pair, count in entries]
    for epsilon in checks.array("epsilons", epsilons, ndim=1):
        delta = max(pairs.delta(side, epsilon=epsilon).upper for side in (entries, turned))
        best = np.maximum(best, approximate_dp(alpha, epsilon=float(epsilon), delta=min(delta, 1.0)))
    return best[()]


def clt_mu(entries):
    r"""μ of the Gaussian that a composition tends to: difference of the mean losses over their standard deviation.

    An approximation, no guarantee. Both hypotheses' standard deviations enter, as their mean.

    Paper: fdp, Remark 13 (Dong et al. 2021, Theorem 3.4).
    Side: neither.
    """
    null, other = (_cumulants(entries, side) for side in (0, 1))
    if null[1] == 0:  # nothing is told
        return 0.0
    return float((other[0] - null[0]) / ((math.sqrt(null[1]) + math.sqrt(other[1])) / 2))


def approximate(entries, type1, *, method):
    r"""Trade-off function of a composition by a limit theorem: an approximation, no guarantee.

    The log likelihood ratio has a distribution :math:`F` of cumulants κ under either hypothesis, in
    :math:`z = (x - \kappa_1)/\sqrt{\kappa_2}`:

    .. math:: F = \Phi(z) - \varphi(z)\Big[\tfrac{\lambda_3}{6}(z^2-1)
        + \tfrac{\lambda_4}{24}(z^3-3z) + \tfrac{\lambda_3^2}{72}(z^5-10z^3+15z)\Big]

    with the first term of the bracket for ``edgeworth_1``, all for ``edgeworth_2``; ``clt`` is a Gaussian curve.

    Paper: fdp, Remark 13 (Zheng et al. 2020).
    Side: neither.
    Args: entries — list of (:class:`.dominating.DiscretePair`, count), of finite losses, T(P, Q) with P the null;
        method — one of :data:`METHODS`.
    """
    alpha = type1_errors(type1)
    if checks.choice("method", method, METHODS) == "clt":
        return gdp.tradeoff(alpha, gdp_mu=clt_mu(entries))
    null, other = (_cumulants(entries, side) for side in (0, 1))
    if null[1] == 0:
        return (1 - alpha)[()]
    order = int(method[-1])
    low = np.full(alpha.shape, null[0] - 40 * math.sqrt(null[1]))
    high = np.full(alpha.shape, null[0] + 40 * math.sqrt(null[1]))
    for _ in range(80):
        middle = (low + high) / 2
        beyond = 1 - _edgeworth(middle, null, order) > alpha
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return np.clip(_edgeworth(high, other, order), 0.0, 1 - alpha)[()]


def _cumulants(entries, side):
    """The first four of Σ log Q/P, under P (0) or under Q (1)."""
    total = np.zeros(4)
    for pair, count in entries:
        losses = -pair.atoms[0]
        if not np.isfinite(losses).all():
            raise ValueError("entries must have finite losses: no limit theorem holds for others")
        mass = np.exp(pair.atoms[1 + side])
        mean = np.dot(mass, losses)
        second, third, fourth = (np.dot(mass, (losses - mean) ** k) for k in (2, 3, 4))
        total += checks.integer("count", count, low=0) * np.array([mean, second, third, fourth - 3 * second**2])
    return total


def _edgeworth(x, cumulants, order):
    mean, variance, third, fourth = cumulants
    z = (x - mean) / math.sqrt(variance)
    skew, excess = third / variance**1.5, fourth / variance**2
    bracket = skew / 6 * (z**2 - 1)
    if order == 2:
        bracket = bracket + excess / 24 * (z**3 - 3 * z) + skew**2 / 72 * (z**5 - 10 * z**3 + 15 * z)
    return np.clip(ndtr(z) - np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * bracket, 0.0, 1.0)
