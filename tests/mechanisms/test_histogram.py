"""The stable histogram and the private range: counts, what a bin of one record tells, and where x̄ lands."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import laplace as laplace_law
from scipy.stats import norm

from privrob.kinds import Guarantee, NotAvailable
from privrob.mechanisms.exponential import Exponential
from privrob.mechanisms.histogram import Lost, StableHistogram, counts, merged, rdp_of_bins
from privrob.mechanisms.noise import Gaussian, Laplace
from privrob.mechanisms.ranges import HeavyTailedRange, PrivateRange, column_counts, counted_once

NONE = {"neighbouring": "replace", "sampling": "none"}
PRINTED = pytest.mark.paper("prime", "Lemma D.1")
ALGORITHM = pytest.mark.paper("prime", "Algorithm 5")


def exact_delta(histogram, before, after, epsilon):
    """H(before ‖ after) of one bin's released number, by its law: a point mass "not there", a density above the cut."""
    law = laplace_law if isinstance(histogram.noise, Laplace) else norm
    scale = getattr(histogram.noise, "laplace_scale", None) or histogram.noise.noise_std
    cut = histogram.cutoff

    def hidden(count):
        return 1.0 if count == 0 else float(law.cdf(cut, count, scale))

    total = max(0.0, hidden(before) - math.exp(epsilon) * hidden(after))
    if before == 0:
        return total
    if after == 0:
        return total + 1 - hidden(before)
    x = np.linspace(cut, max(before, after) + 60 * scale, 400_001)
    gap = np.maximum(0.0, law.pdf(x, before, scale) - math.exp(epsilon) * law.pdf(x, after, scale))
    return total + float(np.trapezoid(gap, x))


@PRINTED
@pytest.mark.parametrize("histogram", [
    StableHistogram.karwa_vadhan(0.8, delta=1e-3, width=1.0),
    StableHistogram.gaussian(2.0, lost_prob=1e-3, width=1.0),
    StableHistogram(Laplace(3.0, 1.0), 0.5, 1.0),  # a cut-off below a count of one
])  # fmt: skip
@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (2, 1), (1, 2), (7, 6), (30, 31)])
def test_one_bin_is_within_its_pair_of_noise_and_lost_mass(histogram, before, after):
    from privrob.accounting import pairs

    entries = [(g.pairs(**NONE), 1) for g, _ in histogram.entries("replace")]
    for epsilon in (0.0, 0.1, 0.3, 0.5, 1.0):
        bound = pairs.delta(entries, epsilon=epsilon).upper
        assert exact_delta(histogram, before, after, epsilon) <= bound * (1 + 1e-5) + 1e-9  # of the quadrature


@PRINTED
def test_the_lost_mass_is_the_chance_that_a_bin_of_one_shows():
    for histogram in (StableHistogram.karwa_vadhan(0.5, delta=0.2, width=1.0), StableHistogram.gaussian(
        2.0, lost_prob=0.05, width=1.0
    )):  # fmt: skip
        rng, n = np.random.default_rng(0), 40_000
        shown = np.mean([len(histogram.show(np.array([3]), np.array([1]), rng=rng)[0]) for _ in range(n)])
        q = histogram.lost_prob
        assert abs(shown - q) < 5 * math.sqrt(q * (1 - q) / n)
    assert StableHistogram.karwa_vadhan(0.5, delta=0.2, width=1.0).lost_prob == pytest.approx(0.05)  # δ/4
    assert StableHistogram(Laplace(2.0, 1.0), 0.0, 1.0).lost_prob == pytest.approx(1 - 0.5 * math.exp(-0.5))


@PRINTED
def test_karwa_vadhan_is_as_private_as_it_says():
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-3), (3.0, 1e-2)):
        histogram = StableHistogram.karwa_vadhan(epsilon, delta=delta, width=1.0)
        assert histogram.epsilon(delta, **NONE).upper <= epsilon * (1 + 1e-9)
        one_record = histogram.epsilon(delta, neighbouring="add_remove", sampling="none")
        assert one_record.upper <= epsilon / 2 * (1 + 1e-9)


@PRINTED
def test_without_a_cutoff_an_own_bin_betrays_its_record():
    """n points in n bins; one moves to a fresh bin. P(the fullest noisy bin is the fresh one) = 1/n against 0."""
    n, rng = 20, np.random.default_rng(1)
    open_ = StableHistogram(Laplace(2.0, 1.0), -math.inf, 1.0)
    data = np.arange(n) + 0.5
    moved = np.append(data[1:], 99.5)
    tries = 4000

    def fullest(values):
        bins, noisy = open_.release(values, rng=rng)
        return bins[np.argmax(noisy)]

    seen = np.mean([fullest(moved) == 99 for _ in range(tries)])
    assert abs(seen - 1 / n) < 5 * math.sqrt((1 / n) * (1 - 1 / n) / tries)
    assert not any(fullest(data) == 99 for _ in range(200))
    assert open_.lost_prob == 1.0
    assert open_.epsilon(0.5, **NONE).upper == math.inf


def test_counts_are_those_of_floor_and_leave_out_what_is_not_finite():
    values = np.array([-3.0, -0.1, 0.0, 0.4, 0.5, 2.49, 2.5, np.nan, np.inf, -np.inf, 1e300])
    bins, found = counts(values, width=0.5, origin=0.0)
    want = {}
    for v in values[:7]:
        want[math.floor(v / 0.5)] = want.get(math.floor(v / 0.5), 0) + 1
    assert dict(zip(bins.tolist(), found.tolist())) == want
    assert list(counts(values, width=0.5, origin=0.25)[0]) == sorted({math.floor((v - 0.25) / 0.5) for v in values[:7]})
    far = counts(np.array([0.0, 1e12, 1e12, -1e12]), width=1.0)  # too long a range for a dense count
    assert far[0].tolist() == [-(10**12), 0, 10**12]
    assert far[1].tolist() == [1, 1, 2]
    assert counts(np.zeros(0), width=1.0)[0].size == 0


def test_counts_of_blocks_add_up_to_counts_of_the_whole():
    rng = np.random.default_rng(2)
    data = rng.standard_normal((1003, 3)) * [1, 5, 100]
    data[17, 1] = np.nan
    whole = column_counts(data, width=0.7, block=5000)
    blocks = column_counts(data, width=0.7, block=64)
    for (b1, c1), (b2, c2) in itertools.zip_longest(whole, blocks):
        assert b1.tolist() == b2.tolist()
        assert c1.tolist() == c2.tolist()
        assert c1.sum() == 1002  # the row with a NaN is left out of every column
    assert merged([])[0].size == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_of_all_columns_at_once_are_the_counts_of_each(dtype):
    data = np.random.default_rng(3).standard_normal((700, 4)).astype(dtype) * [1, 1, 30, 1]
    data[650, 3] = 1e12  # too long a range to be counted at once, in one block of several
    data[651, 0] = -3e17
    found = column_counts(data, width=0.7, origin=0.1, block=100)
    for column, (bins, number) in zip(data.T, found):
        want = counts(column, width=0.7, origin=0.1)
        assert bins.tolist() == want[0].tolist()
        assert number.tolist() == want[1].tolist()


def test_counts_are_taken_once_within_and_only_of_that_array(monkeypatch):
    data, taken = np.random.default_rng(0).normal(size=(5000, 3)), []
    from privrob.mechanisms import ranges

    count = ranges._column_counts
    monkeypatch.setattr(ranges, "_column_counts", lambda data, *how: taken.append(how) or count(data, *how))
    alone = PrivateRange.gaussian(1.0, lost_prob=1e-6, dimension=3).release(data, rng=np.random.default_rng(1))
    with counted_once(data) as kept:
        for _ in range(3):
            where = PrivateRange.gaussian(1.0, lost_prob=1e-6, dimension=3)
            np.testing.assert_array_equal(where.release(data, rng=np.random.default_rng(1)).centre, alone.centre)
        assert kept.saved > 0.0
        assert len(taken) == 2
        column_counts(data, width=0.5)
        column_counts(data.copy(), width=2.0)
        assert len(taken) == 4
    column_counts(data, width=2.0)
    assert len(taken) == 5


def test_it_states_what_it_can_and_refuses_the_rest():
    histogram = StableHistogram.gaussian(3.0, lost_prob=1e-4, width=1.0)
    assert isinstance(histogram, Guarantee)
    assert isinstance(Lost(0.1), Guarantee)
    assert histogram.rdp([2.0], **NONE)[0] == math.inf
    assert rdp_of_bins(histogram, [2.0], neighbouring="replace")[0] == pytest.approx(2 * 2.0 / (2 * 9))  # two bins
    with pytest.raises(NotAvailable):
        histogram.tradeoff(0.5, **NONE)
    with pytest.raises(NotAvailable, match="without sampling"):
        histogram.epsilon(1e-3, neighbouring="replace", sampling="poisson")
    with pytest.raises(ValueError, match="sensitivity 1"):
        StableHistogram(Laplace(1.0, 2.0), 1.0, 1.0)
    with pytest.raises(TypeError, match="Laplace or Gaussian"):
        StableHistogram(3.0, 1.0, 1.0)
    lost = Lost(0.1)
    assert lost.epsilon(0.1, **NONE).upper == 0.0
    assert lost.epsilon(0.09, **NONE).upper == math.inf
    assert lost.tradeoff(0.3, **NONE) == pytest.approx(0.6)
    assert len(histogram.pairs(**NONE).factors()) == 4
    shared = histogram.epsilon(1e-2, **NONE)
    assert shared.lower <= shared.upper < math.inf


@ALGORITHM
def test_the_printed_range_composes_to_its_target():
    from privrob.accounting import pairs

    d, epsilon, delta = 10, 0.5, 1e-4
    where = PrivateRange.as_printed(epsilon, delta=delta, dimension=d)
    assert where.histogram.noise.laplace_scale == pytest.approx(
        2 / (epsilon / (2 * math.sqrt(2 * d * math.log(2 / delta))))
    )
    entries = [(g.pairs(**NONE), c) for g, c in where.entries(d)]
    assert pairs.compose(entries, delta=delta).upper <= epsilon


@ALGORITHM
def test_the_gaussian_range_spends_its_mu_and_its_lost_mass():
    d = 7
    where = PrivateRange.gaussian(0.4, lost_prob=1e-5, dimension=d)
    (noise, bins), (lost, masses) = where.entries(d)
    assert isinstance(noise, Gaussian)
    assert math.sqrt(bins) * noise.gdp_mu == pytest.approx(0.4)
    assert masses * lost.prob <= 1e-5 * (1 + 1e-9)
    assert masses * lost.prob >= 0.999e-5


@ALGORITHM
@pytest.mark.parametrize("place", np.linspace(-1.0, 1.0, 9))  # the mean at an edge of a bin, in the middle, between
def test_the_middle_is_within_three_sigma_and_the_refined_centre_within_a_quarter(place):
    rng = np.random.default_rng(3)
    data = rng.standard_normal((20_000, 2)) + place + np.array([1000.0, -40.0])
    far = 0.0
    for centre, bound in (("middle", 3.0), ("left_edge", 4.0), ("refined", 0.25)):
        where = PrivateRange.gaussian(0.5, lost_prob=1e-6, dimension=2, centre=centre)
        found = where.release(data, rng=np.random.default_rng(4))
        gap = np.abs(found.centre - place - [1000.0, -40.0]).max()
        assert gap <= bound
        far = max(far, gap)
    assert far > 0.4  # the bounds are not idle


@ALGORITHM
def test_the_left_edge_as_printed_is_one_sigma_below_the_middle():
    data = np.random.default_rng(5).standard_normal((5000, 3))
    edge, middle = (
        PrivateRange.gaussian(1.0, lost_prob=1e-6, dimension=3, centre=c).release(data, rng=np.random.default_rng(6))
        for c in ("left_edge", "middle")
    )
    np.testing.assert_allclose(middle.centre - edge.centre, 1.0)
    assert set(np.mod(edge.centre, 2.0)) == {0.0}


@ALGORITHM
def test_a_range_without_enough_records_is_refused_in_words():
    where = PrivateRange.gaussian(0.05, lost_prob=1e-6, dimension=4)
    data = np.random.default_rng(7).standard_normal((where.needed() // 20, 4))
    found = where.release(data, rng=np.random.default_rng(8))
    assert found.centre is None
    assert "cut-off" in found.reason
    enough = np.random.default_rng(7).standard_normal((2 * where.needed(), 4))
    assert where.release(enough, rng=np.random.default_rng(8)).centre is not None


@ALGORITHM
@pytest.mark.parametrize("rate", [0.2, 0.3])
def test_a_minority_cannot_move_the_range_far(rate):
    """The argmax of N(μ, 1)'s bins holds 0.34 to 0.68 of the good records: the adversary needs as many in one bin."""
    rng = np.random.default_rng(9)
    data = rng.standard_normal((20_000, 1))
    data[: int(rate * len(data))] = 501.0
    where = PrivateRange.gaussian(1.0, lost_prob=1e-6, dimension=1)
    assert abs(where.release(data, rng=rng).centre[0]) <= 3.0


@pytest.mark.paper("prime", "Algorithm 14")
def test_blocks_are_disjoint_so_their_budget_is_spent_once():
    data = np.random.default_rng(10).standard_t(3, (200_000, 2)) + 7
    whole = HeavyTailedRange.as_printed(20.0, delta=0.01, dimension=2, split=False)
    assert whole.num_blocks == math.ceil(200 * math.log(20))
    found = whole.release(data, rng=np.random.default_rng(11))
    assert np.abs(found.centre - 7).max() <= 3 * 40.0
    printed = HeavyTailedRange.as_printed(20.0, delta=0.01, dimension=2)
    refused = printed.release(data, rng=np.random.default_rng(11))
    assert refused.centre is None
    assert "blocks" in refused.reason
    assert whole.entries(2) == whole.one.entries(2)


@pytest.mark.paper("prime", "Lemma K.2")
def test_a_block_misses_the_mean_less_often_than_once_in_ten():
    rng = np.random.default_rng(14)
    one = HeavyTailedRange.as_printed(2.0, delta=1e-6, dimension=1, split=False).one
    assert one.histogram.width == 2 * 40.0
    misses = 0
    for _ in range(60):
        mean = rng.uniform(0, 80)
        data = rng.standard_t(2.5, (one.needed(top_share=0.45), 1)) / math.sqrt(5) + mean
        data[: len(data) // 101] = 1e4
        found = one.release(data, rng=rng)
        misses += found.centre is None or abs(found.centre[0] - mean) > 120
    assert misses <= 6


@pytest.mark.paper("prime", "Lemma K.1")
def test_the_printed_split_asks_for_a_thousand_times_more_records():
    """At d = 10 and the range's 1 % of ε = 20, δ = 0.01: 5 million records, against 6 thousand million."""
    how = {"delta": 1e-4, "dimension": 10}
    split, shared = (HeavyTailedRange.as_printed(0.2, **how, split=s) for s in (True, False))
    records = [r.num_blocks * r.one.needed(top_share=0.9, tail=0.0) for r in (split, shared)]
    assert records[0] > 1000 * records[1]
    assert 1e6 < records[1] < 1e7
    assert 1e9 < records[0] < 1e10


@pytest.mark.paper("prime", "Lemma K.1")
def test_one_record_moves_one_block_only():
    one = PrivateRange.gaussian(50.0, lost_prob=1e-3, dimension=1, spread=1.0)
    where = HeavyTailedRange(one, 5)
    data = np.random.default_rng(12).standard_normal((500, 1))
    moved = data.copy()
    moved[3] = 1e6
    rng = (np.random.default_rng(13) for _ in range(2))
    parts = [np.sort(p) for p in np.array_split(np.random.default_rng(13).permutation(500), 5)]
    assert sum(3 in p for p in parts) == 1
    assert where.release(data, rng=next(rng)).centre == pytest.approx(where.release(moved, rng=next(rng)).centre)


def test_a_record_of_half_precision_is_alone_in_choosing_its_bin():
    data = np.full((1000, 1), 3002.0, dtype=np.float16)
    data[0], other = 0.0, data.copy()
    other[0] = -3004.0
    for x, first in ((data, 0), (other, -1502)):
        ((bins, found),) = column_counts(x, width=2.0)
        assert bins.tolist() == [first, 1501]
        assert found.tolist() == [1, 999]


def test_trade_offs_of_a_lost_mass_and_a_choice_are_of_probabilities_and_never_nan():
    how = {"neighbouring": "replace", "sampling": "none"}
    assert Exponential(1000.0, 1.0).tradeoff(0.0, **how) == 1.0
    np.testing.assert_allclose(Exponential(1.0, 1.0).tradeoff([0.0, 0.1, 1.0], **how), [1, 1 - 0.1 * math.e, 0])
    np.testing.assert_allclose(Lost(0.1).tradeoff([0.0, 0.5, 1.0], **how), [0.9, 0.4, 0.0])
    for mechanism in (Exponential(1.0, 1.0), Lost(0.1)):
        with pytest.raises(ValueError, match="type1"):
            mechanism.tradeoff(-1.0, **how)
    with pytest.raises(ValueError, match="utilities"):
        Exponential(1e300, 1e-300).log_probs([0.0, 1.0])
