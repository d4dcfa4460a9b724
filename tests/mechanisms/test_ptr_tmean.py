"""PTR-TMEAN, on samples too, and the two printed rules for its number of trimmed gradients."""

import dataclasses
import math

import numpy as np
import pytest

from privrob.mechanisms.ptr import ProposeTestRelease, Released, adjust_num_trimmed, ptr_tmean
from privrob.mechanisms.sampled import PoissonSampled
from privrob.mechanisms.statistics import Median, Sum, TrimmedSum

VECTOR = ptr_tmean(4, max_norm=2.0, sensitivity_bound=1.0, noise_multiplier=0.7, laplace_scale=0.8, test_failure=0.05)
TMEAN = {
    "max_norm": 1.0,
    "sensitivity_bound": 0.5,
    "noise_multiplier": 1.0,
    "laplace_scale": 1.0,
    "test_failure": 1e-8,
}


def test_a_poisson_sample_is_handed_over_row_by_row():
    rows = np.arange(1.0, 9.0)[:, None] * [0.2, -0.1]
    seen = {"target": [], "robust": []}

    @dataclasses.dataclass(frozen=True)
    class SeenSum(Sum):
        def value(self, data):
            seen["target"].append(data)
            return super().value(data)

    @dataclasses.dataclass(frozen=True)
    class SeenTrimmedSum(TrimmedSum):
        def safety_margin(self, data, *, bound):
            seen["robust"].append(data)
            return super().safety_margin(data, bound=bound)

    step = PoissonSampled(dataclasses.replace(VECTOR, target=SeenSum(2.0), robust=SeenTrimmedSum(4, 2.0)), 0.4)
    rng = np.random.default_rng(6)
    for _ in range(400):
        step.release(rows, rng=rng)
    sizes = np.array([len(drawn) for drawn in seen["target"]])
    assert abs(sizes.mean() - 3.2) < 5 * math.sqrt(8 * 0.24 / 400)  # the mean and variance of a binomial
    for target, robust in zip(seen["target"], seen["robust"], strict=True):
        assert (target == robust).all()
        assert set(map(tuple, target)) <= set(map(tuple, rows))
    # without the noise, the answers are those of the rows drawn
    quiet = dataclasses.replace(VECTOR, noise_std=1e-9, robust_noise_std=1e-9)
    same = np.random.default_rng(7).random(8) < 0.4
    got = PoissonSampled(quiet, 0.4).release(rows, rng=np.random.default_rng(7))
    drawn = rows[same]
    want = (quiet.robust if got.passed else quiet.target).value(drawn)
    assert got.value == pytest.approx(want, abs=1e-7)
    assert step.release(rows[:0], rng=rng).value.shape == (2,)
    median = ProposeTestRelease(Median(0, 10), Median(0, 10), 1.0, 10.0, 1.0, 1.0, 0.1)  # takes numbers, not rows
    assert isinstance(PoissonSampled(median, 0.5).release([3.0, 4.0, 9.0], rng=rng), Released)


@pytest.mark.paper("ptr", "Remark 5.3")
@pytest.mark.parametrize("long", [0, 40, 120])
def test_the_rule_of_remark_5_3_settles_where_half_the_tests_pass(long):
    numbers, passes = run_rule(long, rule="remark_5_3", start=64)
    settled = np.array(numbers[300:])
    threshold = math.log(1 / 2e-8)
    assert abs(settled.mean() - (long + threshold)) < 2.5  # half a step
    assert abs(np.mean(passes[300:]) - 0.5) < 0.02  # every pass but the last few is undone by a failure
    assert settled.std() < 10


@pytest.mark.paper("ptr", "B.1.3")
@pytest.mark.parametrize(("long", "end"), [(0, 256), (40, 256), (120, 0)])
def test_the_rule_as_printed_in_the_experiments_runs_away(long, end):
    numbers, passes = run_rule(long, rule="as_printed", start=64)
    assert set(numbers[300:]) == {end}
    assert set(passes[300:]) == {end == 256}


def run_rule(long, *, rule, start, steps=1200):
    """F and the outcomes over time, with that many of 256 gradients longer than τ."""
    rows = np.full((256, 1), 0.1)
    rows[:long] = 1.0
    rng, num_trimmed, numbers, passes = np.random.default_rng(9), start, [], []
    for _ in range(steps):
        mechanism = ptr_tmean(
            num_trimmed, max_norm=1.0, sensitivity_bound=0.5, noise_multiplier=1.1, laplace_scale=1.0, test_failure=1e-8
        )
        passed = mechanism.release(rows, rng=rng).passed
        num_trimmed = adjust_num_trimmed(num_trimmed, passed=passed, step=5, low=0, high=256, rule=rule)
        numbers.append(num_trimmed)
        passes.append(passed)
    return numbers, passes


def test_the_adjusted_number_stays_in_its_range():
    how = {"step": 5, "low": 2, "high": 12}
    assert adjust_num_trimmed(6, passed=False, **how) == 11
    assert adjust_num_trimmed(11, passed=np.False_, **how) == 12
    assert adjust_num_trimmed(11, passed=np.True_, **how) == 6
    assert adjust_num_trimmed(6, passed=True, **how) == 2
    assert adjust_num_trimmed(6, passed=True, rule="as_printed", **how) == 11


@pytest.mark.paper("ptr", "Algorithm 3")
def test_ptr_tmean_scales_its_noise_by_r_and_by_tau():
    assert (VECTOR.target, VECTOR.robust) == (Sum(2.0), TrimmedSum(4, 2.0))
    assert (VECTOR.noise_std, VECTOR.robust_noise_std) == (0.7 * 2.0, 0.7 * 1.0)
    assert VECTOR.threshold == 0.8 * -math.log(2 * 0.05)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ptr_tmean(1, **TMEAN | {"sensitivity_bound": 1.5}), "sensitivity_bound .* τ ≤ R"),
        (lambda: ptr_tmean(1, **TMEAN | {"noise_multiplier": 0.0}), "noise_multiplier"),
        (lambda: ptr_tmean(-1, **TMEAN), "num_trimmed"),
        (lambda: adjust_num_trimmed(1, passed=True, step=1, low=5, high=4), "high"),
        (lambda: adjust_num_trimmed(1, passed=True, step=0.5, low=0, high=4), "step"),
        (lambda: adjust_num_trimmed(1, passed=True, step=1, low=0, high=4, rule="b_1_3"), "rule"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises((ValueError, TypeError), match=name):
        call()
