"""F under Remark 5.3: half of the tests fail, whatever an attacker does, as long as F keeps away from its end."""

import math

import numpy as np
import pytest

from privrob.mechanisms.ptr_walk import walk

REMARK = ("ptr", "Remark 5.3")
MNIST = {"start": 64, "step": 5, "high": 230, "laplace_scale": 1.0, "test_failure": 1e-8}
PLANS = {
    "none": 20,
    "all at once": 46,
    "in turns": lambda t, f: 46 if t // 10 % 2 else 20,
    "where it hurts": lambda t, f: 46 if f > 55 else 20,
    "where it would pass": lambda t, f: 20 + max(0, min(26, f - 35)),
}


def run(plan, steps=4000, **changes):
    return walk(plan, steps, **{**MNIST, **changes}, rng=np.random.default_rng(5))


@pytest.mark.paper(*REMARK)
@pytest.mark.parametrize("name", PLANS)
def test_no_plan_makes_more_than_half_of_the_tests_fail(name):
    got = run(PLANS[name])
    assert got.num_trimmed.max() < 230
    assert abs(got.failed_rate - 0.5) < 40 / 4000
    assert got.failed_rate <= got.failed_rate_upper


@pytest.mark.paper(*REMARK)
def test_f_settles_above_the_long_ones_by_the_threshold():
    for long in (20, 46, 120):
        settled = run(long).num_trimmed[1000:].mean()
        assert settled == pytest.approx(long + math.log(0.5e8), abs=2.5)  # half a step


@pytest.mark.paper(*REMARK)
@pytest.mark.parametrize("long", [205, 220, 240])
def test_too_many_long_ones_keep_f_at_its_end_and_every_test_fails(long):
    got = run(long)
    assert (got.failed_rate > 0.99) == (long >= 230 - 17.7 + 1)
    assert got.failed_rate <= got.failed_rate_upper


def test_the_start_counts_as_much_as_it_may():
    got = run(300, steps=40, start=0, high=1000)
    assert got.passed.sum() == 0
    assert got.failed_rate_upper == 1.0
    late = run(20, steps=4000, start=230)
    assert late.failed_rate < 0.5 <= late.failed_rate_upper


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 231}, "start"),
        ({"step": 0}, "step"),
        ({"laplace_scale": 0.0}, "laplace_scale"),
        ({"high": -1}, "high"),
    ],
)
def test_bad_arguments_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        run(20, **changes)
