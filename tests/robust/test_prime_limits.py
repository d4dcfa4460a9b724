"""Where PRIME's promises end: small sets within an epoch, capped budgets, the difference of two exponents."""

import math

import numpy as np
import pandas as pd
import pytest

from privrob.robust import prime_limits, rates, sample_sizes
from privrob.robust.prime import make_plan, prime, settings_for


@pytest.mark.paper("prime", "Theorem 2")
@pytest.mark.paper("prime", "Theorem 6")
@pytest.mark.parametrize(("rate", "d", "steps", "least"), [(0.09, 10, 4, 1.7), (0.05, 20, 8, 2.3)])
def test_below_a_tenth_an_epoch_asks_for_the_mean_of_far_fewer_than_half(rate, d, steps, least):
    left, move = prime_limits.mean_excess(2000, d, corruption_rate=rate, num_steps=steps)
    assert left == pytest.approx(1 - 2 * rate * steps)
    assert least < move <= 0.5 / left  # a record that goes from corner to corner moves the mean by B√d/(n·left)


def test_one_step_at_small_alpha_keeps_within_the_stated_sensitivity():
    left, move = prime_limits.mean_excess(2000, 10, corruption_rate=0.09, num_steps=1)
    assert left > 0.5
    assert 0.4 < move <= 1


@pytest.mark.paper("prime", "Algorithm 10")
@pytest.mark.paper("prime", "Theorem 4")
def test_the_library_run_asks_for_the_same_sets_whatever_z():
    points, other = prime_limits.shrinking_pair(2000, 10, corruption_rate=0.09, num_steps=4)
    assert np.abs(points).max() <= 18.0  # in the cube
    assert (points != other).any(axis=1).sum() == 1  # neighbours
    sizes, steps = prime_limits.exact_epoch(points, corruption_rate=0.09, num_iterations=5)
    assert sizes == [2000, 1640, 1280, 920, 560]
    low = prime_limits.exact_epoch(points, corruption_rate=0.09, num_iterations=5, draw=0.01)[0]
    assert low == sizes
    how = {"corruption_rate": 0.09, "epsilon": 0.9, "delta": 1e-6, "location": np.zeros(10), "noise_records": 10**16}
    how |= {"variant": "as_printed", "num_epochs": 1, "num_iterations": 5, "keep_exact": True}
    found = prime(points, rng=np.random.default_rng(1), **how)  # noise of so many records is next to none
    assert [e["size"] for e in found.exact if "removed" in e] == sizes
    assert len(steps) == 5


def test_a_run_that_ends_by_a_test_is_refused():
    with pytest.raises(ValueError, match="num_steps"):
        prime_limits.mean_excess(2000, 6, corruption_rate=0.09, num_steps=4)
    with pytest.raises(ValueError, match="dimension must be even"):
        prime_limits.shrinking_pair(2000, 11, corruption_rate=0.09, num_steps=4)
    with pytest.raises(ValueError, match="take fewer steps"):
        prime_limits.shrinking_pair(2000, 10, corruption_rate=0.09, num_steps=5)


def test_larger_moves_change_one_query_and_cost_more():
    plan = make_plan(
        settings_for("as_printed"), num_records=10**6, dimension=10, corruption_rate=0.09, epsilon=0.9, delta=1e-6
    )
    wide = prime_limits.with_larger_moves(plan, "centre", 40.0)
    assert wide["centre"].l2_sensitivity == 40 * plan["centre"].l2_sensitivity
    assert wide["centre"].noise_std == plan["centre"].noise_std
    assert [e for e in wide.entries if e.what != "centre"] == [e for e in plan.entries if e.what != "centre"]
    assert wide.gdp_mu > 2 * plan.gdp_mu


@pytest.mark.paper("prime", "Theorem 6")
@pytest.mark.paper("prime", "Theorem 9")
@pytest.mark.parametrize("heavy", [False, True])
def test_the_printed_matrix_noise_stops_falling_at_a_budget_of_one(heavy):
    how = {"delta": 1e-6, "corruption_rate": 0.05, "heavy_tailed": heavy}
    at = {e: prime_limits.matrix_records(32, epsilon=e, **how) for e in (0.09, 0.9, 1.0, 100.0)}
    assert at[100.0] == pytest.approx(at[1.0], rel=1e-5)  # 0.99 ε is above 0.9 at both
    assert 9 < at[0.09] / at[0.9] < 13  # 1/ε, and the logarithms of B and T₁
    plan = make_plan(
        settings_for("as_printed", heavy_tailed=heavy), num_records=round(at[0.9]), dimension=32,
        corruption_rate=0.05, epsilon=0.9, delta=1e-6,
    )  # fmt: skip
    limit = 0.2 if heavy else 0.2 * 0.05 * math.log(20)
    assert 2 * math.sqrt(32) * plan["second_moment"].noise_std == pytest.approx(limit, rel=1e-4)


@pytest.mark.paper("prime", "Table 1")
def test_logarithms_lift_the_exponent_of_the_printed_matrix_noise():
    d = [8, 16, 32, 64, 128]
    n = [prime_limits.matrix_records(k, epsilon=1.0, delta=1e-6, corruption_rate=0.05) for k in d]
    assert 1.6 < np.polyfit(np.log(d), np.log(n), 1)[0] < 1.9  # 3/2 and B², √(T₁T₂)


@pytest.mark.paper("prime", "Theorem 8")
def test_theorem_8_states_less_than_its_own_lemma_by_d_over_alpha():
    how = {"dimension": 10, "corruption_rate": 0.05, "epsilon": 2.0, "delta": 0.01}
    ours = rates.stated_records("Theorem 8", failure_prob=0.1, **how)
    rest = 10 / (0.1 * 0.05) + math.log(10) / (0.05 * 2.0)  # d/(ζα) and log(1/ζ)/(αε) of Lemma H.8
    assert prime_limits.printed_theorem_8(**how) == pytest.approx(ours - rest)
    assert prime_limits.printed_theorem_8(**how | {"epsilon": 100.0}) == pytest.approx(18.7, abs=0.1)


def runs(power, spread, rng, num=40):
    """Rows of a power law with noise."""
    return pd.DataFrame(
        [{"d": d, "n": d**power * math.exp(spread * rng.standard_normal())} for d in (8, 16, 32) for _ in range(num)]
    )


def test_the_difference_of_two_exponents_and_its_interval():
    rng = np.random.default_rng(3)
    exact = prime_limits.slope_difference(runs(1.5, 0.0, rng), runs(1.0, 0.0, rng), "d", rng=rng)
    assert exact == pytest.approx((0.5, 0.5, 0.5))
    one, two = runs(1.4, 0.3, rng), runs(1.1, 0.5, rng)
    middle, low, high = prime_limits.slope_difference(one, two, "d", rng=rng)
    slopes = [sample_sizes.slope(x, "d", rng=rng) for x in (one, two)]
    assert middle == pytest.approx(slopes[0][0] - slopes[1][0])
    assert low < middle < high
    assert high - low == pytest.approx(math.hypot(*(s[2] - s[1] for s in slopes)), rel=0.2)  # independent errors add


def test_one_query_breaks_its_budget_at_small_alpha_and_the_total_does_not():
    row = prime_limits.epoch_ledger(10, corruption_rate=0.09, num_steps=4, epsilon=0.9, delta=1e-6)
    assert row["δ / δ₂"] > 5
    assert row["ε in all / ε, stated"] < row["true"] < 0.6  # the other noises are larger than they need be


@pytest.mark.paper("prime", "Theorem 7")
@pytest.mark.paper("prime", "Theorem 9")
def test_numbers_of_records_fall_below_what_range_and_sampling_need():
    tenth, large = prime_limits.exponential_limits((0.9, 1e4))
    assert large["sampling / √α"] > 10 > 1 > tenth["sampling / √α"]
    assert large["range / Theorem 7, δ = 1e-100"] > 5 * tenth["range / Theorem 7, δ = 1e-100"]
    heavy = prime_limits.heavy_limits((0.9, 100.0))
    assert heavy[0]["sampling / √α"] < 1 < 2 < heavy[1]["sampling / √α"] == pytest.approx(2.62, abs=0.02)
    assert heavy[1]["n by the noise"] > 0.9 * heavy[0]["n by the noise"]
