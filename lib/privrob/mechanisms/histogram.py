r"""Histograms over infinitely many bins: counts with noise, and a cut-off so that only bins with enough in them show.

A bin is ⌊(x − origin)/width⌋. Only bins that hold something are looked at, so the noise of an empty one is never
drawn; a bin whose noisy count stays below the cut-off is left out. Without the cut-off the *list* of bins tells who was
there: n points in n bins, one of them moved to a bin of its own, and the largest noisy count is there with probability
1/n, against 0 before.

Privacy. Replacing a record takes one from a bin and adds one to another. For a bin with something in it on both sides
that is noise on a count that moves by 1. A bin that holds 1 on one side and 0 on the other shows with probability
q = P(1 + noise ≥ cut-off); but for that event both sides say "not there". Losses ε ≥ 0 of such a bin have δ ≤ q, those
of the other kind at most that of the noise, so each of the two bins is covered by the noise's pair and a mass q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from scipy.special import log_ndtr, ndtri

from privrob import checks
from privrob.accounting import pairs, rdp, tradeoff
from privrob.accounting.ledger import Ledger
from privrob.kinds import Interval, Neighbouring, NotAvailable, Sampling
from privrob.mechanisms.noise import Gaussian, Laplace

_MOST_DENSE = 2**20  # bins of a dense count; a longer range is counted by sorting


@dataclass(frozen=True)
class Lost:
    """With this probability the answer tells all: what a mechanism's δ costs beside its noise. A ledger entry.

    Args: prob — in [0, 1].
    """

    prob: float

    def __post_init__(self):
        checks.probability("prob", self.prob)

    def _check(self, neighbouring, sampling):
        Neighbouring.of(neighbouring)
        if Sampling.of(sampling) is not Sampling.NONE:
            raise NotAvailable("a lost mass states its guarantee without sampling; pass sampling='none'")

    def rdp(self, orders, *, neighbouring, sampling):
        """Infinite at every order, unless nothing is lost.

        Side: exact.
        Args: orders — each > 1, shape (k,).
        """
        self._check(neighbouring, sampling)
        return np.full(checks.orders(orders).shape, math.inf if self.prob else 0.0)

    def pairs(self, *, neighbouring, sampling):
        """The pair of (0, δ)-DP."""
        self._check(neighbouring, sampling)
        return pairs.approximate_dp(epsilon=0.0, delta=min(self.prob, math.nextafter(1.0, 0.0)))

    def tradeoff(self, type1, *, neighbouring, sampling):
        """1 − δ − α, not below 0.

        Side: exact.
        Args: type1 — α, any shape.
        """
        self._check(neighbouring, sampling)
        return tradeoff.approximate_dp(type1, epsilon=0.0, delta=self.prob)

    def epsilon(self, delta, *, neighbouring, sampling):
        """0 from δ = prob on, infinite below.

        Side: exact.
        """
        self._check(neighbouring, sampling)
        delta = checks.probability("delta", delta, allow_one=False)
        return Interval.exact(0.0 if delta >= self.prob else math.inf)


def counts(values, *, width, origin=0.0):
    """The bins that hold something, and how many values each holds.

    Args: values — shape (n,), those that aren't finite are left out;  width — of a bin, above 0;  origin — a left edge.
    Returns: bins, rising integers shape (k,);  counts, shape (k,).
    """
    width = checks.positive("width", width, finite=True)
    values = np.asarray(values)
    if values.dtype.kind != "f":  # small integers would wrap round
        values = checks.array("values", values, finite=False)
    checks.real("origin", origin, open_low=True, open_high=True)
    with np.errstate(invalid="ignore", over="ignore"):
        bins = np.floor((values - origin) / width)
    bins = bins[np.abs(bins) < 2.0**62].astype(np.int64)  # also leaves out NaN
    if bins.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    low, high = int(bins.min()), int(bins.max())
    if high - low < _MOST_DENSE:
        found = np.bincount(bins - low)
        occupied = np.flatnonzero(found)
        return occupied + low, found[occupied]
    return np.unique(bins, return_counts=True)


def merged(parts):
    """The counts of several parts of the data, as :func:`counts` of all of it."""
    parts = [part for part in parts if part[0].size]
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    bins, place = np.unique(np.concatenate([b for b, _ in parts]), return_inverse=True)
    total = np.bincount(place, weights=np.concatenate([c for _, c in parts]), minlength=bins.size)
    return bins, total.astype(np.int64)


@dataclass(frozen=True)
class StableHistogram:
    r"""Noisy counts of the bins that hold something, those below a cut-off left out.

    Paper: prime, Lemma D.1 (Karwa and Vadhan 2018, Lemma 2.3).
    Printed: "we only need to add noise to those bins that are occupied", without a cut-off.   Used: the cut-off;
        without it (``cutoff=-inf``) no δ below 1/n holds, see the module's head.
    Args: noise — :class:`.Laplace` or :class:`.Gaussian` of sensitivity 1 (a count), in counts;  cutoff — in counts;
        width, origin — of the bins, in the data's units.
    """

    noise: Laplace | Gaussian
    cutoff: float
    width: float
    origin: float = 0.0

    def __post_init__(self):
        if not isinstance(self.noise, (Laplace, Gaussian)):
            raise TypeError(f"noise must be Laplace or Gaussian, got {type(self.noise).__name__}")
        sensitivity = self.noise.l1_sensitivity if isinstance(self.noise, Laplace) else self.noise.l2_sensitivity
        if sensitivity != 1:
            raise ValueError(f"noise must have sensitivity 1, a count, got {sensitivity!r}")
        checks.real("cutoff", self.cutoff)
        checks.positive("width", self.width, finite=True)
        checks.real("origin", self.origin, open_low=True, open_high=True)

    @classmethod
    def karwa_vadhan(cls, epsilon, *, delta, width, origin=0.0):
        r"""Noise Lap(2/ε) and cut-off 1 + 2 log(2/δ)/ε, in counts: (ε, δ)-DP for replaced records.

        A bin of one record shows with probability δ/4 only: of the two bins that move, δ/2 is lost in all.
        """
        epsilon = checks.positive("epsilon", epsilon, finite=True)
        delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
        return cls(Laplace(2 / epsilon, 1.0), 1 + 2 * math.log(2 / delta) / epsilon, width, origin)._lost_at_most(
            delta / 4
        )

    @classmethod
    def gaussian(cls, noise_std, *, lost_prob, width, origin=0.0):
        """Normal noise, and the least cut-off at which a bin of one record shows with at most this probability.

        Args: lost_prob — that probability, in (0, 1);  width, origin — of the bins.
        """
        lost = checks.probability("lost_prob", lost_prob, allow_zero=False, allow_one=False)
        made = cls(Gaussian(noise_std, 1.0), 1 + float(-ndtri(lost)) * noise_std * (1 + 1e-12), width, origin)
        return made._lost_at_most(lost)

    def _lost_at_most(self, lost):
        """Itself; or, where the noise is so little that its cut-off was rounded down by much of it, the next one."""
        if self.lost_prob > max(lost, 5e-324) * (1 + 1e-9):
            return replace(self, cutoff=math.nextafter(self.cutoff, math.inf))
        return self

    @property
    def lost_prob(self):
        """q: that a bin of one record shows; not 0 where it only is less than doubles hold."""
        scale = self.noise.laplace_scale if isinstance(self.noise, Laplace) else self.noise.noise_std
        return max(self._lost_prob, 5e-324) if scale > 0 and self.cutoff < math.inf else self._lost_prob

    @property
    def _lost_prob(self):
        gap = self.cutoff - 1
        if isinstance(self.noise, Laplace):
            scale = self.noise.laplace_scale
            if scale == 0:
                return float(gap <= 0)
            return 0.5 * math.exp(-gap / scale) if gap >= 0 else 1 - 0.5 * math.exp(gap / scale)
        if self.noise.noise_std == 0:
            return float(gap <= 0)
        return math.exp(float(log_ndtr(-gap / self.noise.noise_std)))

    def miss_prob(self, count, tolerance):
        """That the number shown for a bin (0 where it isn't) is off its count by more than this: exact.

        Args: count — the bin's;  tolerance — that difference.
        """
        count, tolerance = checks.nonnegative("count", count, finite=True), checks.nonnegative("tolerance", tolerance)
        if count == 0:
            return 0.0
        noise, gap = self.noise, self.cutoff - count  # it shows where the noise is at least this
        if (noise.laplace_scale if isinstance(noise, Laplace) else noise.noise_std) == 0:
            return float(gap > 0 and count > tolerance)
        law = (
            stats.laplace(0.0, noise.laplace_scale) if isinstance(noise, Laplace) else stats.norm(0.0, noise.noise_std)
        )
        high = law.sf(max(tolerance, gap))
        low = max(float(law.cdf(-tolerance) - law.cdf(gap)), 0.0)
        return float(high + low + (law.cdf(gap) if count > tolerance else 0.0))

    def show(self, bins, found, *, rng):
        """The bins that show, and their noisy counts, of counts that were taken already.

        Args: bins — numbers of the occupied bins, shape (k,);  found — their counts, (k,).
        """
        noisy = self.noise.release(np.asarray(found, dtype=np.float64), rng=rng)
        shown = noisy >= self.cutoff
        return bins[shown], noisy[shown]

    def release(self, data, *, rng):
        """The bins of ``data`` (n,) that show, rising, and their noisy counts."""
        values = checks.array("data", data, ndim=1, finite=False)
        return self.show(*counts(values, width=self.width, origin=self.origin), rng=rng)

    def entries(self, neighbouring):
        """Ledger entries, ((guarantee, count), …), under a neighbouring relation."""
        num_bins = 2 if Neighbouring.of(neighbouring) is Neighbouring.REPLACE else 1
        return ((self.noise, num_bins), (Lost(self.lost_prob), num_bins))

    def _ledger(self, neighbouring, sampling):
        if Sampling.of(sampling) is not Sampling.NONE:
            raise NotAvailable("a histogram states its guarantee without sampling; pass sampling='none'")
        ledger = Ledger(neighbouring=neighbouring, sampling="none")
        for guarantee, count in self.entries(neighbouring):
            ledger.add(guarantee, count)
        return ledger

    def rdp(self, orders, *, neighbouring, sampling):
        """Infinite, as some mass is lost.

        Side: exact.
        """
        return self._ledger(neighbouring, sampling).rdp(orders)

    def pairs(self, *, neighbouring, sampling):
        """One for the noise of each bin that moves, one for each lost mass."""
        self._ledger(neighbouring, sampling)
        how = {"neighbouring": neighbouring, "sampling": sampling}
        return pairs.ProductPair(tuple(g.pairs(**how) for g, count in self.entries(neighbouring) for _ in range(count)))

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Not stated: take ε at the δ you need.

        Side: neither.
        """
        raise NotAvailable("a stable histogram states no trade-off; ask for epsilon(delta, ...)")

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε at this δ that the two bins' pairs show, as an interval."""
        spent = self._ledger(neighbouring, sampling).epsilon(delta)
        return Interval(spent.lower, spent.estimate, spent.upper)


def rdp_of_bins(histogram, orders, *, neighbouring):
    """Rényi curve of the counts' noise alone, the lost mass apart: shape (k,).

    Side: upper, but for the lost mass.
    Args: histogram — a :class:`StableHistogram`.
    """
    (noise, count), _ = histogram.entries(neighbouring)
    how = {"neighbouring": neighbouring, "sampling": "none"}
    return rdp.compose([noise.rdp(orders, **how)], [count])
