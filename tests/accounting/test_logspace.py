"""Log-space helpers against 60 digits."""

import mpmath
import numpy as np
import pytest

from privrob.accounting import logspace

mpmath.mp.dps = 60


@pytest.mark.parametrize("x", [-1e-300, -1e-12, -0.3, -0.6931, -0.6932, -1.0, -50.0, -740.0])
def test_log1mexp_keeps_its_digits_on_both_sides(x):
    with mpmath.workdps(400):  # 1 − e^{-1e-300} needs 300
        want = mpmath.log(1 - mpmath.exp(mpmath.mpf(x)))
    assert logspace.log1mexp(x) == pytest.approx(float(want), rel=4e-16)  # two roundings


def test_log1mexp_has_its_limits():
    assert logspace.log1mexp(0.0) == -np.inf
    assert logspace.log1mexp(-np.inf) == 0.0


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.999999), (-800.0, -801.0), (700.0, -700.0), (3.0, -np.inf)])
def test_a_difference_of_exponentials_stays_in_log_space(a, b):
    want = mpmath.log(mpmath.exp(mpmath.mpf(a)) - (0 if b == -np.inf else mpmath.exp(mpmath.mpf(b))))
    assert logspace.log_diff_exp(a, b) == pytest.approx(float(want), rel=1e-14)  # b − a rounds


def test_equal_exponentials_differ_by_nothing_even_when_infinite():
    values = np.array([-np.inf, 0.0, 5.0, np.inf])
    assert (logspace.log_diff_exp(values, values) == -np.inf).all()


@pytest.mark.parametrize("x", [-700.0, -0.51, -0.49, -1e-3, -1e-9, 1e-160, 1e-9, 0.2, 0.5, 0.51, 3.0, 700.0])
def test_the_exponential_beyond_its_tangent_has_no_cancellation(x):
    want = mpmath.exp(mpmath.mpf(x)) - 1 - mpmath.mpf(x)
    assert logspace.expm1_minus(x) == pytest.approx(float(want), rel=2e-15)  # just above 0.5 it loses 2 bits


@pytest.mark.parametrize(
    ("lower", "upper"), [(-40.0, -39.9), (5.0, 5.001), (-1.0, 2.0), (30.0, np.inf), (-0.001, 0.001)]
)
def test_normal_intervals_are_taken_in_the_small_tail(lower, upper):
    tail = lambda z: mpmath.erfc(z / mpmath.sqrt(2)) / 2  # noqa: E731
    with mpmath.workdps(400):  # near −40 both are 1 up to 1e-350
        want = mpmath.log(tail(mpmath.mpf(lower)) - (0 if upper == np.inf else tail(mpmath.mpf(upper))))
    # log Φ rounds in its 16th digit, and a narrow interval is a small part of it
    assert logspace.log_normal_interval(lower, upper) == pytest.approx(float(want), rel=1e-12, abs=1e-12)


def test_an_empty_normal_interval_has_no_mass():
    assert logspace.log_normal_interval(2.0, 2.0) == -np.inf


def test_neighbouring_floats_are_no_trap_for_a_normal_interval():
    # scipy's log Φ falls by a last digit between this point and the next float above it
    lower = float.fromhex("-0x1.a394a7caf8ee0p-1")
    assert logspace.log_normal_interval(lower, np.nextafter(lower, 0.0)) == -np.inf


@pytest.mark.parametrize("x", [-1.0, -0.2, 0.0, 1.0, 8.0, 29.99, 30.01, 200.0, 1e5])
def test_mills_ratio_and_its_slope(x):
    with mpmath.workdps(40):
        value = mpmath.mpf(x)
        if x < 150:
            ratio = mpmath.erfc(value / mpmath.sqrt(2)) / 2 / mpmath.npdf(value)
        else:  # asymptotic series, far better than double precision from here on
            ratio = sum((-1) ** k * mpmath.fac2(2 * k - 1) / value ** (2 * k + 1) for k in range(8))
        slope = 1 - value * ratio
    assert logspace.mills(x) == pytest.approx(float(ratio), rel=1e-14)
    # 1 − xR(x) cancels up to x = 30: R's last digits count x² times
    assert logspace.mills_slope(x) == pytest.approx(float(slope), rel=1e-12)
