"""Aggregation rules: closed forms, laws, limits of attackers, and the library byzfl where it is installed."""

import itertools

import numpy as np
import pytest

from privrob.kinds import Streams
from privrob.robust import aggregate


def cloud(n=11, d=5, name="cloud"):
    return Streams(3, "aggregate").numpy(name).normal(0.4, 1.0, (n, d))


def rules(f=3):
    return [
        aggregate.make(name, {"f": f} if name in ("TrMean", "Krum", "MultiKrum") else None) for name in aggregate.RULES
    ]


def test_every_rule_gives_one_vector_whatever_the_order():
    points = cloud()
    shuffled = points[::-1]
    for rule in rules():
        assert rule(points).shape == (5,)
        assert rule(points) == pytest.approx(rule(shuffled), rel=1e-12)
        if not isinstance(rule, (aggregate.GeometricMedian, aggregate.SignOfSum, aggregate.MajorityVote)):
            assert rule(points + 2.5) == pytest.approx(rule(points) + 2.5, rel=1e-9)
        assert rule(-points) == pytest.approx(-rule(points), rel=1e-12)


def test_small_cases_by_hand():
    column = np.array([[1.0], [2.0], [3.0], [4.0]])
    assert aggregate.Median()(column) == 2.5  # of an even number: the middle of both
    assert aggregate.TrMean(1)(np.array([[0.0], [1.0], [5.0], [100.0]])) == 3.0
    assert aggregate.TrMean(0)(column) == aggregate.Average()(column) == 2.5
    assert aggregate.SignOfSum()(np.array([[5.0], [-1.0], [-1.0]])) == 1.0
    assert aggregate.MajorityVote()(np.array([[5.0], [-1.0], [-1.0]])) == -1.0
    assert aggregate.SignOfSum()(np.array([[1.0], [-1.0]])) == 0.0
    square = np.array([[0.0, 0], [1, 0], [0, 1], [1, 1], [9, 9]])
    want = min(range(5), key=lambda i: sum(sorted(((square - square[i]) ** 2).sum(1))[1:4]))
    assert aggregate.Krum(1)(square).tolist() == square[want].tolist()
    assert aggregate.MultiKrum(1)(square) == pytest.approx([0.5, 0.5])


def test_geometric_median_with_many_steps_has_the_least_summed_distance():
    points = cloud(d=2)
    got = aggregate.GeometricMedian(nu=1e-9, T=2000)(points)

    def total(x):
        return np.linalg.norm(points - x, axis=1).sum()

    steps = itertools.product((-1e-4, 0.0, 1e-4), repeat=2)
    assert all(total(got) <= total(got + np.array(step)) + 1e-12 for step in steps)


def test_few_wild_vectors_move_a_robust_rule_by_the_range_of_the_others_at_most():
    good = cloud(9)
    for rule in rules(2):
        if isinstance(rule, (aggregate.Median, aggregate.TrMean, aggregate.Krum, aggregate.MultiKrum)):
            got = rule(np.vstack([good, np.full((2, 5), 1e6)]))
            assert (got >= good.min(axis=0) - 1e-9).all()
            assert (got <= good.max(axis=0) + 1e-9).all()


def test_what_a_rule_cannot_bear_is_refused():
    for name, most in (("TrMean", 5), ("Krum", 4), ("MultiKrum", 4)):
        aggregate.make(name, {"f": most})(cloud())
        with pytest.raises(ValueError, match=f"f must be at most {most}"):
            aggregate.make(name, {"f": most + 1})(cloud())
        with pytest.raises(ValueError, match="aggregator_options must give f"):
            aggregate.make(name)
    for wrong, error in (({"f": -1}, ValueError), ({"f": 1.0}, TypeError), ({"g": 1}, ValueError)):
        with pytest.raises(error):
            aggregate.make("TrMean", wrong)
    with pytest.raises(ValueError, match="did you mean 'Median'"):
        aggregate.make("Medain")
    with pytest.raises(ValueError, match="at least 1 row"):
        aggregate.Average()(np.empty((0, 3)))
    with pytest.raises(ValueError, match="finite"):
        aggregate.Median()(np.array([[np.nan]]))


@pytest.mark.parametrize("name", ["Average", "Median", "TrMean", "GeometricMedian", "Krum", "MultiKrum"])
def test_byzfl_gives_the_same(name):
    byzfl = pytest.importorskip("byzfl", exc_type=ImportError)
    for n, f in ((11, 3), (12, 2)):
        options = {"f": f} if name in ("TrMean", "Krum", "MultiKrum") else {}
        theirs = getattr(byzfl, name)(**options)(cloud(n, name=f"{n}"))
        assert aggregate.make(name, options)(cloud(n, name=f"{n}")) == pytest.approx(np.asarray(theirs), rel=1e-9)


def test_krum_counts_the_n_minus_f_minus_1_nearest_others():
    """With f = 1 of 5, three others count: 0 has 1 + 1 + 16, 1 has 1 + 4 + 9; with two, 0 would win."""
    vectors = np.array([[0.0], [1.0], [-1.0], [4.0], [9.0]])
    distances = np.sort((vectors - vectors.T) ** 2, axis=1)[:, 1:4].mean(axis=1)
    want = vectors[np.argmin(distances)]
    assert want == 1.0
    np.testing.assert_array_equal(aggregate.make("Krum", {"f": 1})(vectors), want)


# ----------------------------------------------------------------------------------------------------- huge, tiny, far


def with_one_far(n=20):
    points = cloud(n, name="far")
    points[0] = 30.0  # in no scale the right answer
    return points


@pytest.mark.parametrize("far", [1e100, 1e154, 5e307, 1.7e308])
@pytest.mark.parametrize("unit", [1.0, 1e-170, 1e-300])
def test_one_huge_finite_vector_is_not_the_answer(far, unit):
    points = unit * with_one_far()
    want = aggregate.Krum(1)(with_one_far())
    assert not (want == 30.0).any()
    for sign in (1, -1):
        points[0] = sign * far
        assert (aggregate.Krum(1)(points) == unit * want).all()
        assert np.abs(aggregate.MultiKrum(1)(points)).max() <= np.abs(points[1:]).max()
        assert np.abs(aggregate.GeometricMedian(nu=0.1 * unit)(points)).max() <= np.abs(points[1:]).max()
    points[1] = -points[0]  # the difference of the two may overflow
    assert np.abs(aggregate.Krum(2)(points)).max() < 10 * unit


@pytest.mark.parametrize("power", [-1000, -560, -300, 300, 531, 1000, 1018])
def test_a_power_of_two_as_a_unit_changes_no_digit(power):
    points, unit = with_one_far(), 2.0**power
    for f in (1, 4):
        assert (aggregate.Krum(f)(points * unit) == aggregate.Krum(f)(points) * unit).all()
        assert (aggregate.MultiKrum(f)(points * unit) == aggregate.MultiKrum(f)(points) * unit).all()
    want = aggregate.GeometricMedian()(points) * unit
    assert (aggregate.GeometricMedian(nu=0.1 * unit)(points * unit) == want).all()


@pytest.mark.parametrize("offset", [1e8, -1e12])
def test_an_offset_in_common_takes_no_digits_from_krum(offset):
    points = np.round(with_one_far() * 64) / 64  # whole multiples stay so beside the offset
    for f in (1, 4):
        assert (aggregate.Krum(f)(points + offset) == aggregate.Krum(f)(points) + offset).all()
        assert aggregate.MultiKrum(f)(points + offset) == pytest.approx(aggregate.MultiKrum(f)(points) + offset)
    many = np.vstack([points] * 60)[:, np.arange(1000) % 5]  # in blocks
    assert (aggregate.Krum(1)(many + offset) == aggregate.Krum(1)(many) + offset).all()


def test_geometric_median_is_finite_wherever_the_data_are():
    points = with_one_far()
    for unit in (1e160, 1e200, 5e306):
        assert aggregate.GeometricMedian()(points * unit) / unit == pytest.approx(
            aggregate.GeometricMedian(nu=1e-200)(points), rel=1e-12
        )
    most = np.finfo(float).max
    assert aggregate.GeometricMedian()(np.full((7, 2), most)) == pytest.approx(most, rel=1e-15)
    for nu in (5e-324, 1e-310, most):
        assert (aggregate.GeometricMedian(nu=nu)(np.zeros((7, 2))) == 0).all()
        assert np.isfinite(aggregate.GeometricMedian(nu=nu)(points)).all()
