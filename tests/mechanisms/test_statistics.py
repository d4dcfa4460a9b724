"""Robust statistics: local sensitivities and safety margins against a search over all data sets nearby."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrob.mechanisms.statistics import InterquartileRange, Median, RobustStatistic, Statistic, Sum, TrimmedSum

LAWS = settings(derandomize=True, deadline=None, max_examples=150)
LOW, HIGH = -1.0, 9.0
# pads, a tie among the gaps, and numbers that are not on a grid
NUMBERS = ((-1.0, 0.0, 1.5, 3.0, 9.0), tuple(np.r_[LOW, np.sort(np.random.default_rng(3).uniform(LOW, HIGH, 3)), HIGH]))
# the zero vector, two pairs of equal norm, three vectors of clipped norm R = 2 (one of them clipped)
VECTORS = ((0.0, 0.0), (0.5, 0.0), (0.0, -0.5), (0.6, 0.8), (0.0, 2.0), (3.0, 4.0), (-2.0, 0.0))
RANKED = [Median(LOW, HIGH), *(InterquartileRange(k, LOW, HIGH) for k in (1, 2, 3))]


def search(statistic, universe, size, edits):
    """{data set: [LS, LS^(1), …, LS^(edits)]} of all multisets of the universe, by its definition alone."""
    columns = np.shape(universe)[1:]
    levels = [list(itertools.combinations_with_replacement(range(len(universe)), n)) for n in range(size + 1)]
    points = np.array(universe)
    value = {s: statistic.value(points[list(s)].reshape(-1, *columns)) for level in levels for s in level}

    def neighbours(s):
        yield from {s[:i] + s[i + 1 :] for i in range(len(s))}
        yield from (tuple(sorted((*s, v))) for v in range(len(universe)))

    near = {s: list(neighbours(s)) for level in levels[:-1] for s in level}
    reach = [{s: max(np.linalg.norm(value[s] - value[t]) for t in near[s]) for s in near}]
    for r in range(1, edits + 1):  # a data set at most r edits away is at most r − 1 from a neighbour, or from S
        inner = [s for s in near if len(s) < size - r]
        reach.append({s: max(reach[-1][s], *(reach[-1][t] for t in near[s])) for s in inner})
    return {points[list(s)].reshape(-1, *columns).tobytes(): (s, [level[s] for level in reach]) for s in reach[-1]}


def compare(statistic, universe, size, edits, bounds):
    points = np.array(universe)
    found = search(statistic, universe, size, edits)
    for s, reach in found.values():
        data = points[list(s)].reshape(-1, *points.shape[1:])
        data = np.random.default_rng(len(s)).permutation(data)
        for r, want in enumerate(reach):
            assert statistic.local_sensitivity(data, edits=r) == pytest.approx(want, abs=1e-12), (s, r)  # rounding
        for bound in bounds:
            want = next((r for r, level in enumerate(reach) if level > bound + 1e-9), None)
            got = statistic.safety_margin(data, bound=bound)
            assert got == want if want is not None else got > edits, (s, bound)
    return len(found)


@pytest.mark.paper("ptr", "Theorem 5.1")
@pytest.mark.parametrize("num_trimmed", [0, 1, 2, 3, 4])
def test_trimmed_sum_moves_by_the_norm_that_theorem_5_1_names(num_trimmed):
    bounds = (0.0, 0.3, 0.5, 0.9, 1.5, 2.0)
    assert compare(TrimmedSum(num_trimmed, 2.0), VECTORS, 7, 3, bounds) == 120  # all of up to three vectors
    few = VECTORS[:1] + VECTORS[3:6]
    assert compare(TrimmedSum(num_trimmed, 2.0), few, 9, 4, bounds) == 70  # all of up to four


@pytest.mark.paper("ptr", "Section 4.1")
@pytest.mark.parametrize("universe", NUMBERS)
@pytest.mark.parametrize("statistic", RANKED)
def test_ranked_statistics_know_their_local_sensitivity_and_margin(statistic, universe):
    bounds = (0.0, 1.0, 1.5, 2.0, 3.0, 6.0, 9.9, 10.0)
    assert compare(statistic, universe, 10, 4, bounds) == 252  # all of up to five numbers


@pytest.mark.parametrize("statistic", RANKED)
def test_margins_of_larger_data_are_the_least_cost_over_pairs_of_end_points(statistic):
    rng = np.random.default_rng(5)
    for n in (11, 40, 41):
        data = rng.normal(3.0, 1.0, n) if n > 11 else rng.exponential(0.3, n)
        padded = np.concatenate([[LOW], np.sort(np.clip(data, LOW, HIGH)), [HIGH]])
        i, j = np.triu_indices(n + 2, 1)
        left, right = i, n - j + 1
        if isinstance(statistic, Median):
            ahead = right - left
            balance = np.maximum(0, np.maximum(ahead - 1, -ahead))
        else:
            k = statistic.num_trimmed
            rays = [np.abs(a - c) + np.maximum(0, k - b) for a, b in ((left, right), (right, left)) for c in (k - 1, k)]
            balance = np.min(rays, axis=0)
        cost, gap = j - i - 1 + balance, padded[j] - padded[i]
        for edits in (0, 1, 5, 30):
            assert statistic.local_sensitivity(data, edits=edits) == gap[cost <= edits].max(initial=0)
        for bound in (0.01, 0.3, 1.0, 4.0, 9.0):
            assert statistic.safety_margin(data, bound=bound) == cost[gap > bound].min()
        assert statistic.safety_margin(data, bound=HIGH - LOW) == math.inf


def a_statistic(draw):
    """A statistic and a strategy for its records."""
    number = st.one_of(st.floats(LOW - 2, HIGH + 2), st.sampled_from(NUMBERS[0]))
    kind = draw(st.integers(0, 2))
    if kind == 0:
        vector = st.one_of(st.sampled_from(VECTORS), st.tuples(st.floats(-3, 3), st.floats(-3, 3)))
        return TrimmedSum(draw(st.integers(0, 6)), 2.0), vector
    if kind == 1:
        return Median(LOW, HIGH), number
    return InterquartileRange(draw(st.integers(1, 4)), LOW, HIGH), number


@LAWS
@given(st.data())
@pytest.mark.paper("ptr", "Remark 4.1")
def test_the_margin_changes_by_at_most_one_between_neighbours(data):
    statistic, record = data.draw(st.composite(a_statistic)())
    records = data.draw(st.lists(record, min_size=1, max_size=15))
    out = data.draw(st.integers(0, len(records) - 1))
    shape = (-1, *np.shape(records)[1:])
    more, less = np.array(records), np.array(records[:out] + records[out + 1 :]).reshape(shape)
    bound = data.draw(st.floats(0, 11))
    margins = [statistic.safety_margin(s, bound=bound) for s in (more, less)]
    assert margins[0] == margins[1] or abs(margins[0] - margins[1]) == 1
    assert (margins[0] == math.inf) == (bound >= statistic.sensitivity)
    # and the value itself keeps within what either side says
    change = np.linalg.norm(statistic.value(more) - statistic.value(less))
    reach = min(statistic.local_sensitivity(s) for s in (more, less))
    assert change <= reach + 1e-12 <= statistic.sensitivity + 2e-12  # rounding


def test_values_are_those_of_their_definitions():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(9, 3))
    norms = np.linalg.norm(rows, axis=1)
    clipped = rows * np.minimum(1, 1.2 / norms)[:, None]
    assert Sum(1.2).value(rows) == pytest.approx(clipped.sum(axis=0), rel=1e-13)
    kept = np.argsort(norms)[:7]
    assert TrimmedSum(2, 1.2).value(rows) == pytest.approx(clipped[kept].sum(axis=0), rel=1e-13)
    for few in range(3):
        assert (TrimmedSum(2, 1.2).value(rows[:few]) == np.zeros(3)).all()
    assert (Sum(1.2).value(np.empty((0, 3))) == np.zeros(3)).all()
    assert [Median(0, 9).value(d) for d in ([], [20], [4, 2], [5, 1, 3])] == [0, 9, 2, 3]
    spread = InterquartileRange(2, 0, 9)
    assert [spread.value(d) for d in ([], [1, 2, 8], [1, 2, 5, 8], [7, 1, 20, 5, -4, 2])] == [0, 0, 3, 6]


def test_records_of_great_or_tiny_size_are_clipped_and_ordered_all_the_same():
    rows = np.array([[3e200, 4e200], [1.7e308, 1.7e308], [3e-200, 4e-200]])
    assert Sum(1.0).value(rows) == pytest.approx([0.6 + math.sqrt(0.5), 0.8 + math.sqrt(0.5)], rel=1e-15)
    assert TrimmedSum(1, 1.0).value(rows) == pytest.approx([0.6, 0.8], rel=1e-15)
    assert TrimmedSum(2, 1.0).value(rows) == pytest.approx([3e-200, 4e-200], rel=1e-15)
    assert TrimmedSum(2, 1.0).local_sensitivity(rows) == 1.0


def test_a_corrupted_record_is_found_by_its_norm_before_clipping():
    # after clipping, all six norms are R: the corrupted one could stay, and a good one go
    good = np.array([[2.0, 0.1 * i] for i in range(5)])
    data = np.concatenate([[[-50.0, 0.0]], good])
    assert TrimmedSum(1, 1.0).value(data) == pytest.approx(Sum(1.0).value(good), rel=1e-13)


def test_order_by_position_among_equal_norms_breaks_privacy():
    up, down = np.tile([1.0, 0.0], (4, 1)), np.tile([-1.0, 0.0], (4, 1))

    def by_position(rows):
        return rows[np.argsort(np.linalg.norm(rows, axis=1), kind="stable")[:4]].sum(axis=0)

    one, other = np.concatenate([up, down]), np.concatenate([down, up])  # the same data set, listed differently
    assert np.linalg.norm(by_position(one) - by_position(other)) == 8  # R = 1, so neighbours can be 7 R apart
    assert (TrimmedSum(4, 1.0).value(one) == TrimmedSum(4, 1.0).value(other)).all()
    rng = np.random.default_rng(0)
    for _ in range(50):
        less = np.delete(one, rng.integers(8), axis=0)
        values = [TrimmedSum(4, 1.0).value(rng.permutation(s)) for s in (one, less)]
        assert np.linalg.norm(values[0] - values[1]) <= 1


def test_the_norm_of_a_row_does_not_depend_on_the_other_rows():
    # to the last bit, whatever the memory order and company: else a neighbour could order two near-ties otherwise
    rng = np.random.default_rng(2)
    for columns in (1, 2, 3, 8, 9, 130, 1000):
        rows = rng.normal(size=(6, columns))
        alone = [TrimmedSum(1, 1e9).local_sensitivity(row[None]) for row in rows]  # F = m = 1: the norm of the only row
        for layout in (rows, np.asfortranarray(rows), rows[::-1][::-1]):
            together = [TrimmedSum(k, 1e9).local_sensitivity(layout) for k in range(1, 7)]
            assert together == sorted(alone, reverse=True)


@pytest.mark.parametrize("quarter", [lambda m: math.ceil(0.25 * m), lambda m: round(0.25 * m + 0.25)])
def test_a_trimmed_number_that_follows_the_batch_has_nearly_twice_the_sensitivity(quarter):
    # from 4 to 5 records F goes from 1 to 2: one long row leaves as the short one comes in
    assert (quarter(4), quarter(5)) == (1, 2)
    four = np.tile([1.0, 0.0], (4, 1))
    five = np.concatenate([four, [[-0.999, 0.0]]])
    change = TrimmedSum(quarter(5), 1.0).value(five) - TrimmedSum(quarter(4), 1.0).value(four)
    assert np.linalg.norm(change) == pytest.approx(1.999)
    fixed = TrimmedSum(1, 1.0).value(five) - TrimmedSum(1, 1.0).value(four)
    assert np.linalg.norm(fixed) <= 1


def test_a_rank_that_follows_the_drawn_number_moves_both_ends_at_once():
    # k = ⌈n/4⌉ goes from 1 to 2: both ends move inwards by their gaps, 4 and 4.4, where the margin knows of one
    four = [0.0, 4.0, 4.6, 9.0]
    five = [*four, 4.3]
    change = InterquartileRange(1, LOW, HIGH).value(four) - InterquartileRange(2, LOW, HIGH).value(five)
    assert change == pytest.approx(8.4)
    for k in (1, 2):
        for data in (four, five):
            assert InterquartileRange(k, LOW, HIGH).local_sensitivity(data) <= 5.0


def test_margins_of_gradients_are_quick():
    rows = np.random.default_rng(0).normal(size=(20_000, 10))
    long = int((np.linalg.norm(rows, axis=1) > 4.0).sum())
    assert TrimmedSum(5000, 5.0).safety_margin(rows, bound=4.0) == 5000 - long > 0
    numbers = rows[:, 0]
    assert 6_000 < Median(-5, 5).safety_margin(numbers, bound=1.0) < 10_000  # a third lies within ±0.43


def test_the_statistics_are_what_the_protocols_say():
    assert all(isinstance(s, RobustStatistic) for s in (*RANKED, TrimmedSum(1, 1.0)))
    assert isinstance(Sum(1.0), Statistic)
    assert not isinstance(Sum(1.0), RobustStatistic)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Sum(0.0), "max_norm"),
        (lambda: Sum(math.inf), "max_norm"),
        (lambda: TrimmedSum(-1, 1.0), "num_trimmed"),
        (lambda: TrimmedSum(2.0, 1.0), "num_trimmed"),
        (lambda: Median(1.0, 1.0), "low must be below high"),
        (lambda: Median(0.0, math.inf), "high"),
        (lambda: Median(math.nan, 1.0), "low"),
        (lambda: InterquartileRange(0, 0.0, 1.0), "num_trimmed"),
        (lambda: InterquartileRange(1, 2.0, 1.0), "low must be below high"),
        (lambda: Sum(1.0).value([1.0, 2.0]), "data must have 2 dimension"),
        (lambda: Sum(1.0).value([]), r"no records of d numbers have shape \(0, d\)"),
        (lambda: Sum(1.0).value(np.empty((3, 0))), "data must have at least one column"),
        (lambda: TrimmedSum(1, 1.0).value([[math.nan]]), "data must be finite"),
        (lambda: TrimmedSum(1, 1.0).safety_margin([[math.inf]], bound=0.5), "data must be finite"),
        (lambda: TrimmedSum(1, 1.0).safety_margin([[1.0]], bound=-0.5), "bound"),
        (lambda: TrimmedSum(1, 1.0).local_sensitivity([[1.0]], edits=-1), "edits"),
        (lambda: Median(0, 1).value([[1.0]]), "data must have 1 dimension"),
        (lambda: Median(0, 1).local_sensitivity([math.inf]), "data must be finite"),
        (lambda: Median(0, 1).local_sensitivity([0.5], edits=0.5), "edits"),
        (lambda: Median(0, 1).safety_margin([0.5], bound=math.nan), "bound"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises((ValueError, TypeError), match=name):
        call()
