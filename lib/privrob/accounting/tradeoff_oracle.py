r"""Trade-off functions by other means: Neyman–Pearson in exact arithmetic, a linear programme, all sets of outputs.

They check what is computed in float64. Nothing of :mod:`privrob.accounting.tradeoff` or of the closed forms is used
here: no logarithms, no order of the outcomes, no formula for a tail. It is slow, and takes a curve one α at a time.
A law is a dict from outcomes to weights, all :class:`~fractions.Fraction` or all :class:`~decimal.Decimal`, of any
positive sum.
"""

from __future__ import annotations

import decimal
import itertools
import math
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate

import numpy as np
from scipy import optimize

from privrob import checks

_DIGITS = 60  # of decimals
_MANY = 5000  # trials; of more than these, weights below a share of the largest are left out
_LEFT_OUT = decimal.Decimal("1e-50")


def law(masses):
    """Probabilities as they stand in float64, exactly, as fractions by position. ``masses`` has shape (n,)."""
    return {k: Fraction(float(mass)) for k, mass in enumerate(masses)}


def binomial(trials, success_prob):
    """Binomial(n, p) in 60 digits, by ratios of neighbours from the mode; beyond 5,000 trials without outcomes below
    1e-50 of the mode.

    Args: trials — n;  success_prob — p.
    """
    trials = checks.integer("trials", trials, low=1)
    prob = checks.probability("success_prob", success_prob)
    if prob in (0.0, 1.0):
        return {trials if prob else 0: decimal.Decimal(1)}
    with decimal.localcontext() as context:
        context.prec = _DIGITS
        prob = decimal.Decimal(prob)
        odds = prob / (1 - prob)
        mode = min(int((trials + 1) * prob), trials)
        least = _LEFT_OUT if trials > _MANY else 0
        found = {mode: decimal.Decimal(1)}
        for k in range(mode, trials):
            found[k + 1] = found[k] * odds * (trials - k) / (k + 1)
            if found[k + 1] < least:
                break
        for k in range(mode, 0, -1):
            found[k - 1] = found[k] / odds * k / (trials - k + 1)
            if found[k - 1] < least:
                break
    return found


def shifted(outcomes, shift):
    """The law of an outcome plus an integer. ``outcomes`` is {outcome: weight}, ``shift`` what is added."""
    return {k + shift: weight for k, weight in outcomes.items()}


def monotone_pair(rng, *, largest):
    """Two drawn pmfs (p, q) on 0, 1, … whose ratio q/p falls, with the ranges that part (1) of Theorem 1 allows:
    outcomes of q alone to the left and of p alone to the right; ratios all equal, ordinary, or from e^-90 to e^90.

    Args: largest — number of outcomes that both have, at most.
    """
    left, right, size = *rng.integers(0, 3, 2), int(rng.integers(1, largest + 1))
    common = rng.dirichlet(np.ones(size))
    ratio = np.exp(np.sort(rng.normal(0, rng.choice([0.0, 1.0, 30.0]), size))[::-1])
    p = np.concatenate([np.zeros(left), common, rng.uniform(0, 0.5, right)])
    q = np.concatenate([rng.uniform(0, 0.5, left), common * ratio / (common @ ratio), np.zeros(right)])
    return p / p.sum(), q / q.sum()


def type2(type1, null, other):
    """The smallest type-II error of any test at each type-I error, (n,): outcomes are rejected by falling ratio.

    Paper: fdp, Lemma 3 (Neyman–Pearson), Definition 2.
    Args: type1 — in [0, 1], each taken as the binary fraction that it is;  null, other — the laws P and Q.
    """
    with decimal.localcontext() as context:
        context.prec = _DIGITS
        outcomes = sorted({*null, *other})
        zero = next(iter(null.values())) * 0
        pairs = [(null.get(k, zero), other.get(k, zero)) for k in outcomes]
        free = [(p, q) for p, q in pairs if p == 0]
        paid = sorted(((p, q) for p, q in pairs if p > 0), key=lambda pair: pair[1] / pair[0], reverse=True)
        order = free + paid
        size = list(accumulate(p for p, _ in order))
        # what is not rejected, summed by itself: the whole less what is rejected would lose what is below 1e-60
        kept = list(accumulate(q for _, q in reversed(order)))[::-1]
        found = []
        for alpha in np.ravel(checks.array("type1", type1)):
            goal = type(zero)(float(alpha)) * size[-1]
            count = bisect_right(size, goal)  # outcomes that are rejected whenever they come
            if count == len(order):
                found.append(0.0)
                continue
            p, q = order[count]
            spent = size[count - 1] if count else zero
            found.append(float((kept[count] - q * (goal - spent) / p) / kept[0]))
    return np.array(found)


def noise(type1, *, num_trials, success_prob, max_value):
    """Binomial noise on 0 … l at the two ends, in both orders: (β⁺, β⁻), each (n,).

    Paper: fdp, Corollary 1 and Theorem 2.
    Args: type1 — beyond 5,000 trials 0 or at least 1e-40, as the tails have been left out;
        success_prob — p;  max_value — l.
    """
    alpha, shift = np.ravel(checks.array("type1", type1)), checks.integer("max_value", max_value, low=0)
    low = binomial(num_trials, success_prob)
    high = shifted(low, shift)
    found = [type2(alpha, high, low), type2(alpha, low, high)]
    if num_trials > _MANY and 0 < success_prob < 1:
        if ((alpha > 0) & (alpha < 1e-40)).any():
            raise ValueError(f"type1 must be 0 or at least 1e-40 for num_trials={num_trials}, got {alpha.min():g}")
        total = sum(low.values())  # at 0 the test rejects what the null can't give, which the left-out tails can
        for beta, kept in zip(found, (range(shift, num_trials + 1), range(num_trials - shift + 1))):
            beta[alpha == 0] = float(sum(weight for k, weight in low.items() if k in kept) / total)
    return tuple(found)


def best_of_all_tests(p, q, alpha):
    """(β, φ): a linear programme over all tests φ in [0, 1]ⁿ with E_P φ ≤ α, which knows of no threshold.

    Paper: fdp, Definition 2.
    Args: p, q — probabilities under P and Q, shape (n,);  alpha — α.
    """
    found = optimize.linprog(-np.asarray(q), A_ub=[p], b_ub=[alpha], bounds=(0, 1))
    return 1 + found.fun, found.x


def threshold_test(p, q, *, threshold, at_threshold):
    """The test φ of Lemma 3: 1 where q/p is above a threshold h, γ where it equals h (to 1e-12), 0 below and where
    neither has mass.

    Paper: fdp, Lemma 3 (30); Figures 1, 5 and 6 (γ from 0 to 1 at the ratio of each outcome of P).
    Printed: most powerful at its level, for every h and γ.   Used: γ = 1 at h = ∞, where rejecting costs nothing.
    Args: p, q — probabilities, shape (n,);  at_threshold — γ.
    """
    p, q = (checks.array(name, law, ndim=1) for name, law in (("p", p), ("q", q)))
    ratio = np.divide(q, p, out=np.full(p.size, np.inf), where=p > 0)
    same = (ratio == threshold) | np.isclose(ratio, threshold, rtol=1e-12, atol=0.0)
    test = np.where(same, checks.probability("at_threshold", at_threshold), ratio > threshold)
    return np.where((p > 0) | (q > 0), test, 0.0)


def delta_by_sets(p, q, epsilon):
    """The largest P(O) − e^ε Q(O) or Q(O) − e^ε P(O) over all 2ⁿ sets O of outputs.

    Paper: fdp, Definition 1 (1).
    Args: p, q — probabilities, shape (n,).
    """
    p, q = (checks.array(name, law, ndim=1) for name, law in (("p", p), ("q", q)))
    sets = np.array(list(itertools.product([0, 1], repeat=p.size)))
    first, second, factor = sets @ p, sets @ q, math.exp(checks.nonnegative("epsilon", epsilon))
    return float(max(np.max(first - factor * second), np.max(second - factor * first)))
