"""What counts as agreeing with a printed number, when the run is smaller."""

import math

import numpy as np
import pytest

from privrob.learn import printed


@pytest.mark.parametrize(
    ("got", "value", "agrees"),
    [
        (88.9, 82.7, True),
        (31.7, 78.64, False),
        (0.17, 6.89, False),  # within ten points, and yet no drop at all
        (-2.0, 6.89, False),
        (4.0, 6.89, True),
        (20.5, 11.88, False),
        (-5.0, -6.0, True),
        (25.0, 37.0, False),  # within half of it, not within ten points
        (0.0, 5.26, False),
        (0.0, 0.0, True),
    ],
)
def test_near_needs_the_sign_and_the_size(got, value, agrees):
    assert printed.near(got, value) is agrees


def test_the_standard_error_is_the_binomial_one():
    assert printed.standard_error([80.0], 400) == pytest.approx(2.0, rel=1e-12)
    both = printed.standard_error([80.0, 50.0], 400)
    assert both == pytest.approx(math.hypot(2.0, 2.5), rel=1e-12)  # variances add


def test_guessing_is_told_from_knowing():
    error = printed.standard_error([10.0], 300)
    assert not printed.above_guessing(10 + 2.9 * error, 300, num_classes=10)
    assert printed.above_guessing(10 + 3.1 * error, 300, num_classes=10)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="share"):
        printed.near(1.0, 2.0, share=1.0)
    with pytest.raises(ValueError, match="per_cent"):
        printed.standard_error([101.0], 10)
    with pytest.raises(ValueError, match="num_images"):
        printed.above_guessing(20.0, 0, num_classes=10)


def test_the_spread_is_the_larger_of_runs_and_images():
    one = np.array([80.0])
    assert printed.spread(one, 400, difference=False) == pytest.approx(2.0, rel=1e-12)  # one run: the images alone
    assert printed.spread(one, 400, difference=True) == pytest.approx(100 * math.sqrt(0.5 / 400), rel=1e-12)
    runs = np.array([60.0, 80.0, 100.0])  # deviation 20, over the root of three runs
    assert printed.spread(runs, 400, difference=False) == pytest.approx(20 / math.sqrt(3), rel=1e-12)
    assert printed.spread(np.full(3, 80.0), 400, difference=False) == pytest.approx(2.0, rel=1e-12)
