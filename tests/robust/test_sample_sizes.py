"""How many records are needed: bisection, fitted exponents, virtual sizes, and the cost of a run."""

import math

import numpy as np
import pandas as pd
import pytest

from privrob.kinds import Streams
from privrob.robust import heavy_tails, sample_sizes
from privrob.robust.private_means import dp_mean


def settings(estimator, **changes):
    s = {"estimator": estimator, "sweep": "d", "dimension": 4, "corruption_rate": 0.05, "epsilon": 1.0, "delta": 1e-6}
    return s | {"target": 0.2, "runs": 3, "num_records": 3000, "start": 1000} | changes


def medians(estimator, **changes):
    rows = sample_sizes.needed_cell(settings(estimator, **changes), streams=Streams(0, "x"))
    return float(np.median([row["n"] for row in rows]))


def test_bisection_finds_the_step_from_either_side_and_gives_up_at_the_end():
    for start, at in ((3, 1000), (10**6, 1000), (999, 1000), (5, 3), (100, 2000)):
        got = sample_sizes.least_records(lambda n, at=at: n >= at, start=start, most=10**7)
        assert at <= got <= 1.13 * at
    assert sample_sizes.least_records(lambda n: False, start=10, most=1000) == math.inf


@pytest.mark.paper("prime", "Table 1")
@pytest.mark.paper("prime", "Theorem 2")
def test_a_tenth_of_epsilon_asks_for_ten_times_the_records():
    for name in ("DP mean", "PRIME, ball", "PRIME, tuned"):
        ratio = medians(name, epsilon=0.1, target=0.25) / medians(name, epsilon=1.0, target=0.25)
        assert 5 < ratio < 20, name


@pytest.mark.paper("prime", "Table 2")
@pytest.mark.paper("prime", "Theorem 4")
def test_prime_ht_needs_more_records_in_more_dimensions_and_fewer_for_more_epsilon():
    low = medians("PRIME-HT", target=0.8)
    assert medians("PRIME-HT", target=0.8, dimension=16) > 1.2 * low
    assert medians("PRIME-HT", target=0.8, epsilon=0.1) > 4 * low
    assert medians("filter, heavy tails", target=0.2) < 3000


@pytest.mark.paper("prime", "Theorem 1")
@pytest.mark.paper("prime", "Theorem 3")
def test_algorithm_2_finds_the_mean_of_a_line_with_some_thousand_records():
    for name, target in (("Algorithm 2", 0.1), ("Algorithm 2, heavy tails", 0.5)):
        assert 50 < medians(name, dimension=1, target=target) < 50_000


def test_a_fit_recovers_its_exponent_and_the_interval_holds_it():
    rng = np.random.default_rng(0)
    rows = [{"d": d, "n": 100 * d**1.5 * math.exp(0.1 * rng.standard_normal())} for d in (8, 16, 32) for _ in range(20)]
    got, low, high = sample_sizes.slope(pd.DataFrame(rows), "d", rng=rng)
    assert low < 1.5 < high
    assert abs(got - 1.5) < 0.1
    assert high - low < 0.3


def test_a_virtual_size_scales_the_noise_and_is_not_private_beyond_the_records():
    data = np.zeros((500, 3))
    for estimate, more in ((dp_mean, {}), (heavy_tails.truncated_mean, {"corruption_rate": 0.1})):
        how = {"epsilon": 1.0, "delta": 1e-6, "location": np.zeros(3), **more}
        own = estimate(data, rng=np.random.default_rng(1), **how)
        same = estimate(data, rng=np.random.default_rng(1), noise_records=500, **how)
        far = estimate(data, rng=np.random.default_rng(1), noise_records=50_000, **how)
        assert np.array_equal(own.estimate, same.estimate)
        assert np.linalg.norm(far.estimate) < 0.02 * np.linalg.norm(own.estimate)
        assert own.noise.private
        assert not far.noise.private


def test_a_run_from_a_file_takes_less_memory_and_finds_the_same_kind_of_mean():
    s = {"num_records": 40_000, "dimension": 10, "sweep": "n"}
    rows = [sample_sizes.scaling_cell(s | {"disk": disk}, streams=Streams(0, "t"))[0] for disk in (False, True)]
    assert rows[1]["peak"] < rows[0]["peak"]
    assert all(row["error"] < 0.5 and row["seconds"] > row["exponential"] > 0 for row in rows)


def test_one_direction_a_step_needs_about_as_many_steps_as_directions():
    s = {"num_records": 8000, "corruption_rate": 0.1}
    rows = [sample_sizes.accesses_cell(s | {"dimension": d}, streams=Streams(0, "a"))[0] for d in (5, 20)]
    assert 4 <= rows[0]["classical"] <= 7
    assert rows[1]["classical"] >= 16
    assert max(row["PRIME"] for row in rows) <= 12
