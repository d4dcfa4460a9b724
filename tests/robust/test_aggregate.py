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
