"""Trade-off functions measured from samples: errors of threshold tests, with intervals that hold all at once.

Source: ours, from Clopper and Pearson's intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.accounting import audit


@dataclass(frozen=True)
class Errors:
    """Errors of tests that take outputs above a threshold for Q: shares and intervals, arrays of one shape.

    ``type1`` and ``type2`` are the shares that were counted; ``type1_lower``, ``type1_upper``, ``type2_lower`` and
    ``type2_upper`` the ends of their intervals.

    All intervals hold at once, except with probability ``failure_prob``.
    """

    threshold: np.ndarray
    type1: np.ndarray
    type1_lower: np.ndarray
    type1_upper: np.ndarray
    type2: np.ndarray
    type2_lower: np.ndarray
    type2_upper: np.ndarray
    failure_prob: float

    def excess(self, claim):
        """Interval of how far each test lies above a trade-off function α → β; a curve goes straight up at α = 0.

        ``claim`` is that function.
        """
        straight = np.where(self.type1_lower > 0, claim(self.type1_lower), 1.0)
        return self.type2_lower - straight, self.type2_upper - claim(self.type1_upper)

    def refuted(self, claim):
        """Which tests prove that a trade-off function, claimed of T(P, Q), is too high.

        ``claim`` is a function α → β.
        """
        return self.excess(claim)[1] < 0

    def missed(self, claim):
        """Which tests prove that they are worse than a trade-off function allows: many, if it is too low.

        ``claim`` is a function α → β.
        """
        return self.excess(claim)[0] > 0


def errors_of(scores_p, scores_q, *, failure_prob=1e-3, num_thresholds=20):
    """Errors of the tests by thresholds on a score: a trade-off function, measured.

    Thresholds are quantiles of the first half of the scores; the other half is counted. Where the likelihood ratio
    rises with the score these are the best tests (Neyman and Pearson).

    Args: scores_p, scores_q — outputs under P and under Q, shapes (n,) and (m,), at least 4 each;
        num_thresholds — how many are tried, at least 1.
    Returns: :class:`Errors`, in rising order of the threshold; equal thresholds are one.
    """
    p, q = checks.array("scores_p", scores_p, ndim=1), checks.array("scores_q", scores_q, ndim=1)
    if min(p.size, q.size) < 4:
        raise ValueError(f"scores_p and scores_q need at least 4 samples each, got {p.size} and {q.size}")
    number = checks.integer("num_thresholds", num_thresholds, low=1)
    (p_try, p_test), (q_try, q_test) = np.array_split(p, 2), np.array_split(q, 2)
    levels = (np.arange(number) + 0.5) / number
    tried = np.sort(np.concatenate([p_try, q_try]))
    thresholds = np.unique(tried[(levels * tried.size).astype(int)])
    thresholds = thresholds[thresholds < tried[-1]] if thresholds.size > 1 else thresholds
    share = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False) / (2 * thresholds.size)
    found = []
    for values, side in ((p_test, "above"), (q_test, "below")):
        hits = audit._hits(values, thresholds, side)
        found += [hits / values.size, *audit.clopper_pearson(hits, values.size, failure_prob=share)]
    return Errors(thresholds, *found, failure_prob)
