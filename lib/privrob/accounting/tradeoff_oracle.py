r"""Trade-off functions by the Neyman–Pearson lemma in exact arithmetic: an independent check of everything in float64.

A law is a dict from outcomes to weights, all :class:`~fractions.Fraction` or all :class:`~decimal.Decimal`, of any
positive sum. Nothing of :mod:`privrob.accounting.tradeoff` or of the closed forms is used here: no logarithms, no
order of the outcomes, no formula for a tail. It is slow, and takes a curve one α at a time.
"""

from __future__ import annotations

import decimal
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate

import numpy as np

from privrob import checks

_DIGITS = 60  # of decimals
_MANY = 5000  # trials; of more than these, weights below a share of the largest are left out
_LEFT_OUT = decimal.Decimal("1e-50")


def law(masses):
    """Probabilities as they stand in float64, exactly, as fractions by position."""
    return {k: Fraction(float(mass)) for k, mass in enumerate(masses)}


def binomial(trials, success_prob):
    """Binomial(n, p) in 60 digits, by ratios of neighbours from the mode; beyond 5,000 trials without outcomes below
    1e-50 of the mode."""
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
    """The law of an outcome plus an integer."""
    return {k + shift: weight for k, weight in outcomes.items()}


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
        size, power = (list(accumulate(pair[side] for pair in order)) for side in (0, 1))
        found = []
        for alpha in np.ravel(checks.array("type1", type1)):
            goal = type(zero)(float(alpha)) * size[-1]
            count = bisect_right(size, goal)  # outcomes that are rejected whenever they come
            rejected, spent = (power[count - 1], size[count - 1]) if count else (zero, zero)
            if count < len(order):
                p, q = order[count]
                rejected += q * (goal - spent) / p
            found.append(float((power[-1] - rejected) / power[-1]))
    return np.array(found)


def noise(type1, *, num_trials, success_prob, max_value):
    """Binomial noise on 0 … l at the two ends, in both orders: (β⁺, β⁻), each (n,).

    Paper: fdp, Corollary 1 and Theorem 2.
    Args: type1 — beyond 5,000 trials 0 or at least 1e-40, as the tails have been left out.
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
