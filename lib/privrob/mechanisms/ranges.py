r"""Where the data lies, privately: a histogram on each coordinate, its fullest bin, and a region around it.

Every record is then clipped to that region, so that its diameter bounds what one record can do.
"""

from __future__ import annotations

import contextlib
import math
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np

from privrob import checks
from privrob.mechanisms.histogram import StableHistogram, counts, merged

CENTRES = ("middle", "left_edge", "refined")
_BLOCK = 2**10  # rows at a time: they fit a cache
_MOST_CELLS = 2**16  # bins of all columns that are counted at once
_MOST_COLUMNS = 2**53  # above, not every count is a double
_MOST_BLOCKS = 10**6
_KEPT = ContextVar("counts that are kept", default=None)


@dataclass(frozen=True)
class Located:
    """Fields: centre — x̄, shape (d,), or None;  reason — why there is none, in words;  shown — bins that showed, a
    coordinate each."""

    centre: np.ndarray | None
    reason: str = ""
    shown: tuple = ()


@dataclass(frozen=True)
class PrivateRange:
    r"""x̄: on each coordinate, the place of the fullest bin of width 2σ. Alg. 5.

    Paper: prime, Algorithm 5.
    Printed: x̄_j = 2σ·argmax, the left edge of the bin, at most 4σ from the mean ("choose the bin from k − 1, k, k + 1",
        then \|x̄ − μ\| ≤ 4σ); Section 2.2 says "the center of the largest bin"; no cut-off.
    Used: the middle, at most 3σ away; the cut-off of :class:`.StableHistogram`. ``centre="refined"`` takes the mean of
        the bins that show within one of the fullest, by their noisy counts: nothing is asked of the data for it.
        On N(μ, 1) it is within 0.25σ, corruption apart.
    Args: histogram — of one coordinate;  centre — one of :data:`CENTRES`.
    """

    histogram: StableHistogram
    centre: str = "middle"

    def __post_init__(self):
        checks.choice("centre", self.centre, CENTRES)
        if not isinstance(self.histogram, StableHistogram):
            raise TypeError(f"histogram must be a StableHistogram, got {type(self.histogram).__name__}")

    @classmethod
    def as_printed(cls, epsilon, *, delta, dimension, spread=1.0, centre="middle"):
        r"""(ε, δ)-DP in all: each coordinate at min(ε, 0.9)/(2√(2d log(2/δ))) and δ/(2d).

        Args: spread — σ, half the width of a bin.
        """
        epsilon = checks.positive("epsilon", epsilon, finite=True)
        delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
        dimension = checks.integer("dimension", dimension, low=1, high=_MOST_COLUMNS)
        spread = checks.positive("spread", spread, finite=True)
        if delta < 1e-300:
            raise ValueError(f"delta must be at least 1e-300 here, as log(2/delta) is taken, got delta={delta!r}")
        each = min(epsilon, 0.9) / (2 * math.sqrt(2 * dimension * math.log(2 / delta)))
        how = {"delta": delta / (2 * dimension), "width": 2 * spread}
        return cls(StableHistogram.karwa_vadhan(each, **how), centre)

    @classmethod
    def gaussian(cls, gdp_mu, *, lost_prob, dimension, spread=1.0, centre="middle"):
        """Normal noise of μ in all, and at most this mass lost in all, for replaced records.

        Args: lost_prob — that mass;  spread — half a bin's width;  centre — which point of the fullest bin is x̄.
        """
        dimension = checks.integer("dimension", dimension, low=1, high=_MOST_COLUMNS)
        lost_prob = checks.probability("lost_prob", lost_prob, allow_zero=False, allow_one=False)
        spread = checks.positive("spread", spread, finite=True)
        std = math.sqrt(2 * dimension) / checks.positive("gdp_mu", gdp_mu, finite=True)
        return cls(StableHistogram.gaussian(std, lost_prob=lost_prob / (2 * dimension), width=2 * spread), centre)

    def entries(self, dimension, neighbouring="replace"):
        """Ledger entries of all coordinates."""
        dimension = checks.integer("dimension", dimension, low=1)
        return tuple((guarantee, count * dimension) for guarantee, count in self.histogram.entries(neighbouring))

    def needed(self, *, top_share=0.3, tail=4.0):
        """Records at which a bin with this share of them shows, but for noise of so many of its own scales.

        Args: top_share — that share;  tail — that number.
        """
        top_share = checks.probability("top_share", top_share, allow_zero=False)
        tail = checks.nonnegative("tail", tail, finite=True)
        noise = self.histogram.noise
        scale = getattr(noise, "laplace_scale", None) or getattr(noise, "noise_std", 0.0)
        needed = (max(self.histogram.cutoff, 0.0) + tail * scale) / top_share
        if needed == math.inf:
            raise ValueError(
                f"cutoff must be finite, or no bin ever shows, got {self.histogram!r} at {top_share=}, {tail=}"
            )
        return math.ceil(needed)

    def place(self, bins, noisy):
        """A coordinate's x̄ from what shows.

        Args: bins — numbers of the bins that show, (k,);  noisy — their counts, (k,).
        """
        best = int(np.argmax(noisy))
        width, origin = self.histogram.width, self.histogram.origin
        if self.centre == "left_edge":
            return origin + width * bins[best]
        if self.centre == "refined":
            near = np.abs(bins - bins[best]) <= 1
            weights = np.maximum(noisy[near], 0.0)
            if not weights.any():  # a cut-off below 0 lets them show
                return origin + width * (bins[best] + 0.5)
            shift = np.average((bins[near] - bins[best]).astype(float), weights=weights)
            return origin + width * (bins[best] + 0.5 + shift)
        return origin + width * (bins[best] + 0.5)

    def release(self, data, *, rng):
        """x̄ of ``data`` (n, d), in blocks, so that a memory map will do: a :class:`Located`.

        A record with a number that isn't finite is left out. Refused where a coordinate shows no bin.
        """
        found = column_counts(data, width=self.histogram.width, origin=self.histogram.origin)
        centre, shown = np.zeros(len(found)), []
        for j, (bins, number) in enumerate(found):
            bins, noisy = self.histogram.show(bins, number, rng=rng)
            shown.append(len(bins))
            if not len(bins):
                return Located(None, f"range: no bin of coordinate {j} is above the cut-off (too few records)")
            centre[j] = self.place(bins, noisy)
        return Located(centre, "", tuple(shown))


@dataclass
class Kept:
    """Counts of one array that nobody changes meanwhile. Fields: data;  found — by width, origin and block, with the
    seconds they took;  saved — seconds that were not spent again."""

    data: np.ndarray
    found: dict = field(default_factory=dict)
    saved: float = 0.0


@contextlib.contextmanager
def counted_once(data):
    """Within, the columns of this very array are counted once for each width, not at each release: for studies that
    try many estimators on it. The array must not be changed meanwhile.

    Gives a :class:`Kept`, whose ``saved`` tells how much longer the releases would have taken.
    """
    token = _KEPT.set(Kept(data))
    try:
        yield _KEPT.get()
    finally:
        _KEPT.reset(token)


def _check_columns(data):
    if getattr(data, "ndim", None) != 2 or data.shape[1] == 0 or data.dtype.kind not in "biuf":
        shape = getattr(data, "shape", type(data).__name__)
        raise TypeError(f"data must be an array of real numbers of shape (n, d), d at least 1, got {shape}")


def column_counts(data, *, width, origin=0.0, block=_BLOCK):
    """:func:`privrob.mechanisms.histogram.counts` of each column, rows that aren't finite left out; by blocks.

    Args: data — (n, d), a memory map too;  width, origin — of the bins;  block — rows at a time.
    """
    _check_columns(data)
    block = checks.integer("block", block, low=1)
    kept = _KEPT.get()
    if kept is None or kept.data is not data:
        return _column_counts(data, width, origin, block)
    key = float(width), float(origin), block
    if key in kept.found:
        kept.saved += kept.found[key][1]
    else:
        began = time.perf_counter()
        kept.found[key] = _column_counts(data, width, origin, block), time.perf_counter() - began
    return kept.found[key][0]


def _column_counts(data, width, origin, block):
    width = checks.positive("width", width, finite=True)
    checks.real("origin", origin, open_low=True, open_high=True)
    parts, tables = [[] for _ in range(data.shape[1])], {}
    for start in range(0, len(data), block):
        rows = np.asarray(data[start : start + block])
        if rows.dtype == np.float16:  # a record's bin must not hang on the least one: bins − least is rounded there
            rows = rows.astype(np.float32)
        finite = np.isfinite(rows)
        rows = rows if finite.all() else rows[finite.all(axis=1)]
        if not len(rows):
            continue
        if table := _table(rows, width, origin):
            low, found = table
            key = low, found.shape[1]
            tables[key] = tables.get(key, 0) + found
        else:
            for part, column in zip(parts, np.ascontiguousarray(rows.T)):
                part.append(counts(column, width=width, origin=origin))
    for (low, _), found in tables.items():
        for part, row in zip(parts, found):
            occupied = np.flatnonzero(row)
            part.append((occupied + low, row[occupied]))
    return [merged(part) for part in parts]


def _table(rows, width, origin):
    """(least bin, counts of the bins from there on, (d, k)) of finite rows; None where their bins are many."""
    with np.errstate(over="ignore"):
        bins = (rows - origin) / width
    np.floor(bins, out=bins)
    low, high, d = float(bins.min()), float(bins.max()), rows.shape[1]
    if not (abs(low) < 2.0**52 and (high - low + 1) * d <= _MOST_CELLS):
        return None
    span = int(high - low) + 1
    bins -= low
    bins += (span * np.arange(d)).astype(bins.dtype)  # exact: below _MOST_CELLS
    found = np.bincount(bins.astype(np.intp).ravel(), minlength=span * d)
    return int(low), found.reshape(d, span)


@dataclass(frozen=True)
class HeavyTailedRange:
    r"""x̄ as the median, on each coordinate, of the places that m blocks of the records find. Alg. 14.

    Paper: prime, Algorithm 14; Lemmas K.1 and K.2.
    Printed: each block at (ε/m, δ/m), m = 200 log(2/ζ): the blocks are disjoint, so a record moves one of them, and
        the budget is spent once, not m times. At d = 10, ε = 20 the printed split needs n ≥ 6e9 for a bin to show at
        all, 5e6 without it (the tests recompute the ratio).
    Used: each block at the full budget (parallel composition: the blocks are drawn without looking at the data, by
        position). A block without an answer counts as none; at least half of them must answer.
    Args: one — a block's range, with σ = 40 times the standard deviation as printed;  num_blocks — m.
    """

    one: PrivateRange
    num_blocks: int

    def __post_init__(self):
        checks.integer("num_blocks", self.num_blocks, low=1, high=_MOST_BLOCKS)
        if not isinstance(self.one, PrivateRange):
            raise TypeError(f"one must be a PrivateRange, got {type(self.one).__name__}")

    @classmethod
    def as_printed(cls, epsilon, *, delta, dimension, failure_prob=0.1, spread=40.0, centre="middle", split=True):
        """σ = 40 and m = ⌈200 log(2/ζ)⌉; ``split=False`` leaves each block the full budget.

        Args: spread, centre — as for :class:`PrivateRange`.
        """
        epsilon = checks.positive("epsilon", epsilon, finite=True)
        delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
        m = math.ceil(200 * math.log(2 / checks.real("failure_prob", failure_prob, low=1e-300, high=1.0)))
        share = m if split else 1
        how = {"delta": delta / share, "dimension": dimension, "spread": spread, "centre": centre}
        return cls(PrivateRange.as_printed(epsilon / share, **how), m)

    def entries(self, dimension, neighbouring="replace"):
        """Ledger entries. A replaced record stays in its block, so one block's are all."""
        return self.one.entries(dimension, neighbouring)

    def release(self, data, *, rng):
        """x̄ of ``data`` (n, d): a :class:`Located`."""
        _check_columns(data)
        order = rng.permutation(len(data))
        found = [
            self.one.release(np.asarray(data[np.sort(part)]), rng=rng)
            for part in np.array_split(order, self.num_blocks)
        ]
        centres = [f.centre for f in found if f.centre is not None]
        if 2 * len(centres) <= self.num_blocks:
            return Located(
                None, f"range: only {len(centres)} of {self.num_blocks} blocks show a bin on every coordinate"
            )
        return Located(np.median(centres, axis=0), "", (len(centres),))
