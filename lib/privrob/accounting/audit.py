r"""Empirical lower bounds on ε: what an attack on samples proves, with a stated probability of being wrong.

An attack is a set of outputs S. If a mechanism is (ε, δ)-DP then :math:`P(S) \le e^\varepsilon Q(S) + \delta`, so

.. math:: \varepsilon \ge \log\frac{P(S) - \delta}{Q(S)},

and Clopper–Pearson bounds on both probabilities make that a bound from counts. The set is chosen on one half of the
samples and measured on the other, so that choosing costs no confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from privrob import checks


def clopper_pearson(hits, trials, *, failure_prob):
    """Exact two-sided interval of a binomial probability, wrong with probability at most ``failure_prob``.

    Args: hits — successes, any shape;  trials — at least 1, broadcasts.
    Returns: (lower, upper), each the shape of the broadcast.
    """
    hits, trials = np.broadcast_arrays(checks.array("hits", hits), checks.array("trials", trials))
    if not ((trials >= 1) & (hits >= 0) & (hits <= trials)).all():
        raise ValueError("hits must lie in [0, trials] and trials be at least 1")
    tail = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False) / 2
    with np.errstate(invalid="ignore"):
        lower = np.where(hits == 0, 0.0, beta.ppf(tail, hits, trials - hits + 1))
        upper = np.where(hits == trials, 1.0, beta.isf(tail, hits + 1, trials - hits))
    return lower[()], upper[()]


def epsilon_from_counts(hits_p, trials_p, hits_q, trials_q, *, delta, failure_prob):
    """Lower bound on ε from how often an attack's set was hit under P and under Q; 0 when the counts prove nothing.

    Both intervals hold together except with probability ``failure_prob`` (half for each, one side of each used).
    """
    delta = checks.probability("delta", delta, allow_one=False)
    lower_p, _ = clopper_pearson(hits_p, trials_p, failure_prob=failure_prob)  # one side of it: half the failures
    _, upper_q = clopper_pearson(hits_q, trials_q, failure_prob=failure_prob)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.log(np.maximum(lower_p - delta, 0.0)) - np.log(upper_q)
    return np.maximum(np.nan_to_num(bound, nan=0.0, neginf=0.0), 0.0)[()]


@dataclass(frozen=True)
class Audit:
    """What an attack proved: ``epsilon_lower``, wrong with probability at most ``failure_prob``."""

    epsilon_lower: float
    threshold: float
    side: str
    direction: str
    delta: float
    failure_prob: float
    samples: int


def two_samples(scores_p, scores_q, *, delta, failure_prob=1e-3, num_thresholds=200):
    """Audit by thresholds on a score: outputs of a mechanism on two neighbouring inputs, the more of them the better.

    Args: scores_p, scores_q — real outputs (or attack scores) on the two inputs, shapes (n,) and (m,), at least 4 each;
        delta — of the claim under attack;  num_thresholds — candidates tried on the first half.
    Returns: :class:`Audit`. A correct (ε, δ) claim is exceeded with probability at most ``failure_prob``.
    """
    p, q = checks.array("scores_p", scores_p, ndim=1), checks.array("scores_q", scores_q, ndim=1)
    if min(p.size, q.size) < 4:
        raise ValueError(f"scores_p and scores_q need at least 4 samples each, got {p.size} and {q.size}")
    (p_try, p_test), (q_try, q_test) = np.array_split(p, 2), np.array_split(q, 2)
    thresholds = np.unique(np.quantile(np.concatenate([p_try, q_try]), np.linspace(0, 1, num_thresholds)))
    best = (-math.inf, "", "", 0.0)
    for direction, (a, b) in {"P over Q": (p_try, q_try), "Q over P": (q_try, p_try)}.items():
        for side in ("above", "below"):
            hits = [_hits(v, thresholds, side) for v in (a, b)]
            bounds = epsilon_from_counts(hits[0], a.size, hits[1], b.size, delta=delta, failure_prob=failure_prob)
            i = int(np.argmax(bounds))
            best = max(best, (float(bounds[i]), side, direction, float(thresholds[i])))
    _, side, direction, threshold = best
    a, b = (p_test, q_test) if direction == "P over Q" else (q_test, p_test)
    hits = [int(_hits(v, np.array([threshold]), side)[0]) for v in (a, b)]
    epsilon = float(epsilon_from_counts(hits[0], a.size, hits[1], b.size, delta=delta, failure_prob=failure_prob))
    return Audit(epsilon, threshold, side, direction, delta, failure_prob, a.size + b.size)


def _hits(values, thresholds, side):
    """How many values lie above (strictly), or at most at, each threshold."""
    at_most = np.searchsorted(np.sort(values), thresholds, side="right")
    return values.size - at_most if side == "above" else at_most
