r"""Statistics that Propose-Test-Release can release: the sum, and robust statistics with their exact safety margins.

Neighbours differ by adding or removing one record, everywhere in this module. The local sensitivity LS(S) is the
largest change of the value when one record is added to or removed from S; LS^(r)(S) is the largest local sensitivity
of a data set at most r edits away from S; the safety margin at a bound τ is

.. math:: \Delta(S) = \min\{r : \mathrm{LS}^{(r)}(S) > \tau\},

infinite where no data set has a local sensitivity above τ. That depends on the statistic only, never on the data.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from privrob import checks


@runtime_checkable
class Statistic(Protocol):
    """A query with a known global l2 sensitivity, over adding or removing one record."""

    @property
    def sensitivity(self):
        """The largest l2 change of the value between neighbours."""

    def value(self, data):
        """The answer on a data set: a number or an array."""


@runtime_checkable
class RobustStatistic(Statistic, Protocol):
    """A statistic that knows how far a data set is from the nearest one where its value could jump."""

    def safety_margin(self, data, *, bound):
        """The least number of edits to a data set with local sensitivity above ``bound``."""


def _rows(data):
    rows = checks.array("data", data, ndim=2, hint="pass one row a record; no records of d numbers have shape (0, d)")
    if rows.shape[1] == 0:
        raise ValueError(f"data must have at least one column, got shape {rows.shape}")
    return np.ascontiguousarray(rows)  # so that a row's norm is added up alike, whatever the other rows


def _norms(rows):
    """(rows scaled by powers of 2 to near 1, their norms, the norms of the rows): no overflow on the way."""
    _, exponent = np.frexp(np.abs(rows).max(axis=1))
    units = np.ldexp(rows, -exponent[:, None])
    unit_norms = np.sqrt((units * units).sum(axis=1))
    with np.errstate(over="ignore"):  # a norm beyond float64 counts as infinite
        return units, unit_norms, np.ldexp(unit_norms, exponent)


def _clipped_sum(rows, max_norm):
    units, unit_norms, norms = _norms(rows)
    long = norms > max_norm
    rows = rows.copy()
    rows[long] = units[long] * (max_norm / unit_norms[long])[:, None]
    return rows.sum(axis=0)


def _smallest(rows, count):
    """Positions of the rows with the smallest norms; where norms tie, those first in lexicographic order."""
    if count == 0:
        return np.arange(0)
    norms = _norms(rows)[2]
    cut = np.partition(norms, count - 1)[count - 1]
    below, tied = np.flatnonzero(norms < cut), np.flatnonzero(norms == cut)
    tied = tied[np.lexsort(rows[tied].T[::-1])]
    return np.concatenate([below, tied[: count - len(below)]])


@dataclass(frozen=True)
class Sum:
    """SUM: the sum of the rows, each clipped to l2 norm R.

    Paper: ptr, Algorithm 2 (clipping) and Section 5 (SUM).
    Args: max_norm — R > 0, in the data's units.
    """

    max_norm: float

    def __post_init__(self):
        checks.positive("max_norm", self.max_norm, finite=True)

    @property
    def sensitivity(self):
        """R."""
        return float(self.max_norm)

    def value(self, data):
        """The clipped sum of the rows of ``data`` (m, d): shape (d,), zeros where m = 0."""
        return _clipped_sum(_rows(data), self.max_norm)


@dataclass(frozen=True)
class TrimmedSum:
    r"""TSUM_F: without the F rows of largest norm, the sum of the others, each clipped to l2 norm R; 0 where m ≤ F.

    Rows are ordered by the norm *before* clipping: after it, a corrupted row ties with every other clipped one. Equal
    norms are ordered by content, never by position: an order that may differ between neighbours has a sensitivity
    that grows with m.

    Paper: ptr, Section 5 (TSUM).
    Assumes: F is fixed without looking at the rows, their number included. F = ⌈m/4⌉ of a drawn batch of m has a
        sensitivity near 2R: a new record can push one row out while it comes in itself. Use a quarter of the
        *expected* batch size.
    Args: num_trimmed — F ≥ 0;  max_norm — R > 0, in the data's units.
    """

    num_trimmed: int
    max_norm: float

    def __post_init__(self):
        checks.integer("num_trimmed", self.num_trimmed, low=0)
        checks.positive("max_norm", self.max_norm, finite=True)

    @property
    def sensitivity(self):
        """R."""
        return float(self.max_norm)

    def value(self, data):
        """The trimmed sum of the rows of ``data`` (m, d): shape (d,)."""
        rows = _rows(data)
        kept = _smallest(rows, max(0, len(rows) - self.num_trimmed))
        return _clipped_sum(rows[kept], self.max_norm)

    def local_sensitivity(self, data, *, edits=0):
        r"""LS^(r), exact: the clipped norm of :math:`x_{(m-F+1+r)}` for r ≤ F − 1, else R.

        Paper: ptr, Theorem 5.1.
        Printed: the sort order and what :math:`x_{(k)}` means for k ≤ 0 are left open.
        Used: norms before clipping, :math:`x_{(k)} = 0` for k ≤ 0, and R at once for F = 0.
        Args: data — (m, d), or (m,) for numbers;  edits — r.
        """
        edits = checks.integer("edits", edits, low=0)
        norms = _norms(_rows(data))[2]
        if edits >= self.num_trimmed:
            return self.sensitivity
        rank = len(norms) - self.num_trimmed + 1 + edits
        return min(float(np.partition(norms, rank - 1)[rank - 1]), self.sensitivity) if rank > 0 else 0.0

    def safety_margin(self, data, *, bound):
        r"""Δ: F less the number of rows longer than τ, not below 0. Exact, in one pass; infinite for τ ≥ R.

        The first r ≤ F − 1 with :math:`\|x_{(m-F+1+r)}\| > \tau` is F − #{i : ‖x_i‖ > τ}; if no row is, r = F.

        Paper: ptr, Section 5 and Theorem 5.1.
        Args: data — (m, d), or (m,) for numbers;  bound — τ.
        """
        bound = checks.nonnegative("bound", bound)
        norms = _norms(_rows(data))[2]
        if bound >= self.max_norm:
            return math.inf
        return max(0, self.num_trimmed - int(np.count_nonzero(norms > bound)))


class _Ranked:
    """What the statistics of ordered numbers share: values clipped to [low, high], both ends as pads."""

    def __post_init__(self):
        low = checks.real("low", self.low, low=-math.inf, open_low=True, open_high=True)
        high = checks.real("high", self.high, low=-math.inf, open_low=True, open_high=True)
        if not 0 < high - low < math.inf:
            raise ValueError(f"low must be below high, got low={low!r}, high={high!r}; the data is clipped to both")

    @property
    def sensitivity(self):
        """high − low: a value can jump from one end to the other."""
        return float(self.high) - float(self.low)

    def _padded(self, data):
        """x_0 = low, the clipped data in order, x_{n+1} = high."""
        values = np.sort(np.clip(checks.array("data", data, ndim=1), self.low, self.high))
        return np.concatenate([[self.low], values, [self.high]])

    def local_sensitivity(self, data, *, edits=0):
        """The largest local sensitivity of a data set at most so many edits away: exact, O(n log n)."""
        padded = self._padded(data)
        edits = min(checks.integer("edits", edits, low=0), 2**40)  # many more than any data set needs
        return self._reach(padded, edits)

    def safety_margin(self, data, *, bound):
        """The least number of edits to a local sensitivity above ``bound``: exact, O(n log n), by bisection."""
        padded = self._padded(data)
        if checks.nonnegative("bound", bound) >= self.sensitivity:
            return math.inf
        return bisect.bisect_right(range(self._most(len(padded) - 2)), bound, key=lambda r: self._reach(padded, r))


@dataclass(frozen=True)
class Median(_Ranked):
    r"""The lower median: :math:`x_{(\lceil n/2\rceil)}` of values clipped to [low, high]; ``low`` without data.

    With pads :math:`x_{(0)}` = low and :math:`x_{(n+1)}` = high, one edit moves it across one gap: that above
    :math:`x_{(\lfloor n/2\rfloor)}`, with as many points right of it as left, or one more.

    Paper: ptr, Section 4.1 (its first example of a robust statistic).
    Args: low, high — the range of the data, fixed beforehand.
    """

    low: float
    high: float

    def value(self, data):
        """The median of ``data`` (n,): a float."""
        padded = self._padded(data)
        return float(padded[(len(padded) - 1) // 2])

    def _reach(self, padded, edits):
        """LS^(r): the largest :math:`x_{(j)} - x_{(i)}` that r edits turn into the central gap.

        That takes j−i−1 removals, which leave i points left and n−j+1 right, and then as many edits as the right is
        ahead by more than one, or behind: max(n−2i−1, 2j−n−2) edits in all. So i and j are bounded one by one.
        """
        n = len(padded) - 2
        return float(padded[min(n + 1, (n + 2 + edits) // 2)] - padded[max(0, (n - edits) // 2)])

    def _most(self, n):
        """Edits that suffice for every local sensitivity: remove all."""
        return n


@dataclass(frozen=True)
class InterquartileRange(_Ranked):
    r"""max(0, k-th largest − k-th smallest) of values clipped to [low, high]; 0 for n < 2k.

    The rank k is a quarter of the *nominal* number of records, fixed beforehand. A rank that follows the drawn n moves
    both ends at one edit: the change is then a sum of two gaps, and neither the local sensitivity nor the margin here
    holds.

    Paper: ptr, Section 4.1 (the "Inter-Quantile Range" among its robust statistics).
    Args: num_trimmed — k ≥ 1, records up to the lower end, and from the upper end on;  low, high — the range of the
        data, fixed beforehand.
    """

    num_trimmed: int
    low: float
    high: float

    def __post_init__(self):
        super().__post_init__()
        checks.integer("num_trimmed", self.num_trimmed, low=1)

    def value(self, data):
        """The range of ``data`` (n,) between its k-th smallest and k-th largest: a float."""
        padded, k = self._padded(data), self.num_trimmed
        return float(padded[-1 - k] - padded[k]) if len(padded) - 2 >= 2 * k else 0.0

    def _reach(self, padded, edits):
        """LS^(r): one edit moves one end across a gap beside it, and the upper end is the lower of the mirror image."""
        return max(self._reach_below(padded, edits), self._reach_below(-padded[::-1], edits))

    def _reach_below(self, padded, edits):
        r"""The largest :math:`x_{(j)} - x_{(i)}` that r edits turn into a gap beside the lower end.

        Such a gap has k−1 or k points left of it and at least k right. Here j−i−1 removals leave i left and n−j+1
        right, so that it takes j−i−1 + \|i − left\| + max(0, j − (n+1−k)) edits. Each i has its largest j.
        """
        n, best = len(padded) - 2, 0.0
        start, enough = np.arange(n + 1), n + 1 - self.num_trimmed
        for left in (self.num_trimmed - 1, self.num_trimmed):
            end = edits + 1 + start - np.abs(start - left)
            end = np.minimum(np.where(end <= enough, end, (end + enough) // 2), n + 1)
            i, j = start[end > start], end[end > start]
            best = max(best, float((padded[j] - padded[i]).max(initial=0.0)))
        return best

    def _most(self, n):
        """Edits that suffice for every local sensitivity: remove all, then add k at each end, less one."""
        return n + 2 * self.num_trimmed - 1
