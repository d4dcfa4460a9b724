"""The studies of filter and range, and what they found in the library."""

import itertools
import math

import numpy as np
import pytest

from privrob.kinds import Streams
from privrob.mechanisms.histogram import StableHistogram
from privrob.robust import filter_study
from privrob.robust.corruption import corrupted_normal
from privrob.robust.dpfilter import printed_steps, private_filter
from privrob.robust.filter_study import filter_cell, range_cell, shift_and_norm, stated_error
from privrob.robust.filtering import FilteredSet, filter_mean
from privrob.robust.prime import make_plan, prime, settings_for
from privrob.robust.rows import Everywhere, Rows


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.paper("prime", "Algorithm 4")
@pytest.mark.parametrize("far", [1e20, 1e200, 1e308])
def test_one_record_far_out_does_not_undo_the_filter(far):
    """Squares overflow, and what was summed with them is lost to rounding: both once gave a mean of 1e197, or none."""
    data = rng(1).standard_normal((400, 2))
    data[3] = far
    found = filter_mean(data, corruption_rate=0.1, rng=rng(2))
    assert found.status == "converged"
    assert found.error(np.zeros(2)) < 0.3
    single = filter_mean(np.minimum(data, 1e30).astype(np.float32), corruption_rate=0.1, rng=rng(2))
    assert single.error(np.zeros(2)) < 0.3


def test_moments_are_summed_anew_where_little_of_a_sum_is_left():
    data = rng(3).standard_normal((50, 2))
    data[7] = 1e12
    state = FilteredSet(Rows(data, Everywhere(np.zeros(2))))
    state.drop(np.array([7]))
    kept = np.delete(data, 7, axis=0)
    centred = kept - kept.mean(axis=0)
    np.testing.assert_allclose(state.second_moment, centred.T @ centred / 50, atol=1e-12)


@pytest.mark.paper("prime", "Algorithm 8")
def test_without_corruption_dpfilter_stops_at_once_and_arguments_are_named():
    data = rng(4).standard_normal((200, 2))
    how = {"epsilon": 1.0, "delta": 1e-3, "location": np.zeros(2), "form": "noiseless", "box_side": 8.0}
    found = private_filter(data, corruption_rate=0.0, rng=rng(5), **how)
    assert (found.status, len(found.trace)) == ("exhausted", 1)
    assert "nothing to remove" in found.reason
    assert printed_steps(3, 10.0, 0.0) == 1
    for change, name in (
        ({"epsilon": -1.0}, "epsilon"), ({"delta": 2.0}, "delta"), ({"box_side": -2.0}, "box_side"),
        ({"location": np.zeros(3)}, "location"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} must"):
            private_filter(data, corruption_rate=0.1, rng=rng(5), **{**how, **change})
    with pytest.raises(ValueError, match="location must"):
        prime(data, corruption_rate=0.1, rng=rng(5), epsilon=1.0, delta=1e-3, location=np.zeros(3))


@pytest.mark.parametrize("variant", ["ball", "as_printed"])
def test_a_virtual_sample_size_has_the_noise_of_so_many_records(variant):
    """Sizes and totals too: their noise doesn't know n, so each record has to count so many times."""
    data, times = rng(6).standard_normal((500, 2)), 10**6
    how = {"corruption_rate": 0.05, "location": np.zeros(2), "epsilon": 1.0, "delta": 1e-6, "variant": variant}
    found = prime(data, rng=rng(7), noise_records=500 * times, **how)
    assert abs(found.trace[0]["size"] - 500) < 0.1
    np.testing.assert_allclose(found.estimate, data.mean(axis=0), atol=1e-3)
    assert not found.noise.private
    assert found.noise.epsilon(1e-6).upper == math.inf
    filtered = private_filter(
        data, rng=rng(8), noise_records=500 * times, num_steps=5, form="sound", corruption_rate=0.05,
        location=np.zeros(2), epsilon=1.0, delta=1e-6,
    )  # fmt: skip
    assert abs(filtered.trace[0]["size"] - 500) < 0.1
    assert not filtered.noise.private


def test_a_plan_that_is_not_private_states_no_epsilon():
    how = {"num_records": 1000, "dimension": 2, "corruption_rate": 0.1, "epsilon": 1.0, "delta": 1e-6}
    from dataclasses import replace

    plan = make_plan(settings_for("ball"), **how)
    assert plan.epsilon(1e-6).upper <= 1.0
    assert replace(plan, private=False).epsilon(1e-6).upper == math.inf


@pytest.mark.paper("prime", "Section 2.1")
def test_a_shift_shows_in_an_eigenvalue():
    data, bad = corrupted_normal(500, 3, corruption_rate=0.1, adversary="cluster", rng=rng(9), shift=4.0)
    shift, top, least = shift_and_norm(data, bad)
    assert shift == pytest.approx(0.1 * 4 * math.sqrt(3), rel=0.1)
    assert 0.9 * top < least <= top
    data[bad] = data[bad][0]  # all in one place: attained along the shift
    shift, top, least = shift_and_norm(data, bad)
    move = data.mean(axis=0) - data[~bad].mean(axis=0)
    assert least == pytest.approx(float((data @ (move / shift)).var()))
    line, bad = corrupted_normal(200, 1, corruption_rate=0.1, adversary="corner", rng=rng(9))
    assert shift_and_norm(line, bad)[1] == pytest.approx(line.var())
    found = filter_study.shifts_of_adversaries(40, rng=rng(10))
    assert all(row["least"] <= row["top"] * (1 + 1e-9) for row in found)


@pytest.mark.paper("prime", "Proposition 2.1")
@pytest.mark.paper("prime", "Theorem 10")
@pytest.mark.paper("prime", "Lemma D.3")
def test_cells_tell_errors_steps_and_who_is_left():
    how = {"num_records": 3000, "dimension": 3, "corruption_rate": 0.1, "num_runs": 3, "adversary": "corner"}
    rows = filter_cell({**how, "estimator": "filter"}, streams=Streams(0, "a"))
    assert all(row["error"] <= 3 * stated_error(0.1) < row["unfiltered"] for row in rows)
    options = {"form": "noiseless", "box_side": 10.0, "num_steps": 4000}
    rows = filter_cell({**how, "estimator": "dpfilter", "options": options}, streams=Streams(0, "b"))
    bound = 15 * 3 * 100 / (3 * math.log(10))  # 15dB²/(C log(1/α))
    for row in rows:
        assert row["status"] == "converged"
        assert row["error"] <= 3 * stated_error(0.1)
        assert row["clean_left"] >= 0.5
        assert row["bad_left"] < 0.02
        assert row["steps"] <= bound
    assert stated_error(0.0) == 0.0
    with pytest.raises(ValueError, match="did you mean 'filter'"):
        filter_cell({**how, "estimator": "filtr"}, streams=Streams(0, "c"))


@pytest.mark.paper("prime", "Lemma D.2")
@pytest.mark.paper("prime", "Assumption 1")
def test_the_range_covers_the_clean_records_wherever_the_mean_is():
    how = {"num_records": 15_000, "dimension": 3, "corruption_rate": 0.09, "epsilon": 0.9, "delta": 1e-6}
    how |= {"failure_prob": 0.1, "num_runs": 3}
    for mean, place in itertools.product((0.0, 1.0, 1e9 + 0.4), (1, 300)):
        for row in range_cell({**how, "mean": mean, "bin": place}, streams=Streams(0, f"{mean}")):
            assert row["off"] <= 3.0
            assert row["in_half"]
            assert row["in_wide"]
    few = range_cell({**how, "num_records": 200, "mean": 0.0, "bin": 1}, streams=Streams(0, "few"))
    assert all(row["off"] == math.inf and not row["in_wide"] for row in few)


@pytest.mark.paper("prime", "Lemma D.1")
def test_the_chance_of_a_wrong_count_is_exact():
    generator, tries = rng(11), 40_000
    for histogram in (
        StableHistogram.karwa_vadhan(0.7, delta=1e-3, width=1.0),
        StableHistogram.gaussian(3.0, lost_prob=1e-3, width=1.0),
    ):  # fmt: skip
        for count, tolerance in itertools.product((1, 9, 20, 40), (3.0, 10.0)):
            noisy = histogram.noise.release(np.full(tries, float(count)), rng=generator)
            shown = np.where(noisy >= histogram.cutoff, noisy, 0.0)
            p = histogram.miss_prob(count, tolerance)
            got = float((np.abs(shown - count) > tolerance).mean())
            assert abs(got - p) <= 5 * math.sqrt(p * (1 - p) / tries) + 1e-3 * (p < 1e-3)
    assert StableHistogram.karwa_vadhan(0.7, delta=1e-3, width=1.0).miss_prob(0, 1.0) == 0.0
    rows = filter_study.histogram_misses(
        epsilons=(0.5,), deltas=(1e-6,), widths=(0.1,), failures=(0.05,), bins=(3, 10**9)
    )
    assert [row["cut-off"] for row in rows] == [False, True]
    assert all(row["missed"] <= row["stated"] for row in rows)


def test_odd_data_has_stated_outcomes():
    rows = filter_study.corner_cases(rng=rng(12))
    assert len(rows) == 9
    told = {(row["records"], row["corruption_rate"]): row for row in rows}
    assert told["as drawn", 0.05]["Algorithm 4"] == "converged"
    assert told["one row at 1e200", 0.05]["Algorithm 4"] == "converged"
    assert told["one NaN row", 0.05]["DPFILTER, no noise"] == "converged"
    assert told["as drawn", 0.5]["Algorithm 4"].startswith("error: corruption_rate must lie in")
    assert "too few records" in told["n = 1", 0.05]["DPFILTER, no noise"]
    assert not any("NOT FINITE" in str(v) for row in rows for v in row.values())
