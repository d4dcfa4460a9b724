"""Sensitivities by search: never above the bounds that plans use, and close to them."""

import math

import numpy as np
import pytest

from privrob.robust import resilience, sensitivity
from privrob.robust.filtering import FilteredSet, excess
from privrob.robust.rows import Ball, Cube, Rows

N = 16


@pytest.mark.paper("prime", "Appendix F.1")
@pytest.mark.paper("prime", "Definition 1.2")
@pytest.mark.parametrize("region", [Cube(np.zeros(2), 6.0), Cube(np.zeros(3), 4.0), Ball(np.zeros(3), 3.0)])
def test_no_change_is_above_its_bound_and_most_bounds_are_attained(region):
    worst = sensitivity.search(region, num_records=N, num_trials=1500, rng=np.random.default_rng(1))
    diameter, d = region.diameter, len(region.centre)
    square = diameter**2 / N
    bounds = {"size": 1.0, "mean": 2 * diameter / N, "total": diameter, "second moment": square, "moment about": square}
    bounds |= {"norm": square, "norm about": square, "score": square, "histogram": math.sqrt(2) / N}
    for what, bound in bounds.items():
        assert worst[what] <= bound * (1 + 1e-9), what
        assert worst[what] >= bound * (0.7 if what == "norm" else 0.93), what
    if isinstance(region, Cube):
        assert worst["mean, l1"] == pytest.approx(d * worst["mean, one coordinate"])  # d times what is stated
        assert worst["mean, one coordinate"] == pytest.approx(2 * region.box_side / N)


def test_answers_are_those_of_a_filtered_set():
    points = np.random.default_rng(2).standard_normal((N, 3))
    region = Ball(np.zeros(3), 50.0)
    state = FilteredSet(Rows(points, region))
    about, weights = np.array([0.5, 0.0, -1.0]), np.diag([0.5, 0.3, 0.2])
    got = sensitivity.answers(points, num_records=N, about=about, weights=weights)
    np.testing.assert_allclose(got["mean"], state.mean)
    np.testing.assert_allclose(got["total"], state.total)
    np.testing.assert_allclose(got["second moment"], state.second_moment)
    assert got["norm"] == pytest.approx(excess(state.second_moment))
    scores = state.scores(about, np.diag(np.sqrt([0.5, 0.3, 0.2])))
    assert got["score"] == pytest.approx((scores - 1).sum() / N)
    assert got["histogram"].sum() == pytest.approx((scores >= 0.25).mean())


@pytest.mark.paper("prime", "Lemma H.5")
def test_the_goodness_moves_by_more_than_printed_and_no_more_than_ours():
    found = sensitivity.goodness_change(resilience.window_goodness, num_records=30, corruption_rate=0.1)
    assert found == pytest.approx(resilience.goodness_sensitivity(30, corruption_rate=0.1, diameter=1.0))
    assert found > 1.2 / 30


@pytest.mark.paper("prime", "Lemma H.7")
@pytest.mark.paper("prime", "Lemma H.12")
def test_the_distance_moves_by_more_than_printed_from_a_tenth_on():
    found = {a: sensitivity.distance_change(num_records=100, corruption_rate=a) for a in (0.05, 0.15)}
    assert found[0.05] < 1 < 4 < found[0.15]
    for a, value in found.items():
        bound = resilience.distance_sensitivity(100, corruption_rate=a, goodness_bound=1.0)
        assert value <= bound * 3 * a * 100 / 12 * (1 + 1e-9)
