"""The exact Gaussian mechanism against 60 digits, its inverses, and the textbook formula's limits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrob.accounting import gdp

TRUE_LAWS = settings(derandomize=True, deadline=None, max_examples=60)


def exact_log_delta(epsilon, mu):
    """log δ with enough digits for the cancellation at hand."""
    t = epsilon / mu - mu / 2
    with mpmath.workdps(60 + int(t * t / 4 + mu * mu / 4) if mu < 50 else 700):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        t = epsilon / mu - mu / 2

        def tail(z):
            return mpmath.erfc(z / mpmath.sqrt(2)) / 2

        return float(mpmath.log(tail(t) - mpmath.exp(epsilon) * tail(t + mu)))


@pytest.mark.parametrize("mu", [1e-6, 1e-4, 0.01, 0.1, 0.5, 0.99, 1.0, 1.01, 2.0, 5.0, 20.0, 100.0, 1000.0])
def test_delta_has_ten_digits_from_one_down_to_1e_300(mu):
    for t in [-mu / 2, -mu / 4, -1.001, -0.999, -0.5, 0.0, 0.3, 1.0, 3.0, 8.0, 20.0, 29.0, 31.0, 36.5]:
        epsilon = (t + mu / 2) * mu
        if epsilon < 0:
            continue
        got = gdp.log_delta_of(epsilon, gdp_mu=mu)
        assert got == pytest.approx(exact_log_delta(epsilon, mu), abs=1e-11)  # a tenth of the promised relative 1e-10


def test_delta_far_below_float_range_stays_a_logarithm():
    got = gdp.log_delta_of(45.0, gdp_mu=1.0)
    assert got == pytest.approx(exact_log_delta(45.0, 1.0), rel=1e-12)
    assert gdp.delta_of(45.0, gdp_mu=1.0) == 0.0


@pytest.mark.paper("dplearn", "Gaussian Mechanism")
@pytest.mark.parametrize(("epsilon", "want"), [(1, 3.730631635), (8, 0.600229), (50, 0.1497606)])
def test_analytic_noise_multipliers_at_delta_1e_5(epsilon, want):
    digits = {1: 5e-10, 8: 5e-7, 50: 5e-8}[epsilon]  # half the last printed digit of values from mpmath
    assert gdp.noise_multiplier_of(epsilon, delta=1e-5) == pytest.approx(want, abs=digits)


@pytest.mark.paper("dplearn", "Gaussian Mechanism")
def test_the_textbook_noise_is_enough_in_its_range_and_never_the_least():
    for epsilon in [0.01, 0.1, 0.5, 0.99, 1.0]:
        for delta in [1e-10, 1e-5, 1e-2, 0.5, 0.99]:
            assert gdp.textbook_delta(epsilon, delta=delta) < delta
            assert gdp.noise_multiplier_of(epsilon, delta=delta) < gdp.textbook_noise_multiplier(epsilon, delta=delta)


@pytest.mark.paper("dplearn", "Gaussian Mechanism")
def test_the_textbook_formula_is_far_off_at_50_and_refused_above_1():
    assert gdp.textbook_delta(50, delta=1e-5) == pytest.approx(0.586, abs=5e-4)
    assert gdp.textbook_noise_multiplier(0.5, delta=1e-5) == pytest.approx(
        2 * math.sqrt(2 * math.log(125000)), rel=1e-15
    )
    with pytest.raises(ValueError, match=r"epsilon must lie in \(0, 1\], got epsilon=50.*noise_multiplier_of"):
        gdp.textbook_noise_multiplier(50, delta=1e-5)


def test_without_loss_or_with_a_large_delta_epsilon_is_exactly_0():
    assert gdp.delta_of(0.0, gdp_mu=1.0) == pytest.approx(0.3829249225, abs=5e-11)
    for value in (gdp.epsilon_of(0.9, gdp_mu=1.0), gdp.epsilon_of(0.5, gdp_mu=1.0), gdp.epsilon_of(0.0, gdp_mu=0.0)):
        assert value == 0
        assert math.copysign(1, value) == 1
    assert gdp.epsilon_of(0.3, gdp_mu=1.0) > 0


def test_without_noise_or_delta_epsilon_is_infinite():
    assert gdp.epsilon_of(1e-5, gdp_mu=math.inf) == math.inf
    assert gdp.epsilon_of(0.0, gdp_mu=0.01) == math.inf
    assert gdp.delta_of(3.0, gdp_mu=math.inf) == 1.0
    assert gdp.delta_of(math.inf, gdp_mu=3.0) == 0.0


@pytest.mark.parametrize(
    ("mu", "delta", "want"), [(math.sqrt(100) / 2, 1e-5, 33.1037), (0.01, 1e-5, 0.0272194), (25.0, 1e-10, 470.6429)]
)
def test_known_epsilons(mu, delta, want):
    assert gdp.epsilon_of(delta, gdp_mu=mu) == pytest.approx(want, abs=5e-5 if want > 1 else 5e-8)  # as printed


@TRUE_LAWS
@given(st.floats(-6, 3), st.floats(-290, -0.5))
def test_epsilon_is_on_the_safe_side_and_tight(log_mu, log_delta):
    mu, delta = 10.0**log_mu, 10.0**log_delta
    epsilon = gdp.epsilon_of(delta, gdp_mu=mu)
    assert gdp.log_delta_of(epsilon, gdp_mu=mu) <= math.log(delta)
    if epsilon > 0:  # not safe by giving away much: 1e-10 of δ
        assert gdp.log_delta_of(epsilon, gdp_mu=mu) > math.log(delta) - 1e-10


@TRUE_LAWS
@given(st.floats(1e-3, 200), st.floats(-100, -0.5))
def test_the_noise_multiplier_is_the_inverse_of_epsilon(epsilon, log_delta):
    delta = 10.0**log_delta
    sigma = gdp.noise_multiplier_of(epsilon, delta=delta)
    # 1e-11 of δ, where a small ε may hang on δ's tenth digit: dδ/dε is at least about δ(0) − δ
    assert gdp.epsilon_of(delta, gdp_mu=1 / sigma) == pytest.approx(epsilon, rel=1e-8, abs=1e-9)
    assert gdp.log_delta_of(epsilon, gdp_mu=1 / sigma) <= math.log(delta)


@TRUE_LAWS
@given(st.floats(0, 50), st.floats(1e-3, 30), st.floats(1.0001, 3))
def test_delta_falls_with_epsilon_and_grows_with_mu(epsilon, mu, factor):
    here = gdp.log_delta_of(epsilon, gdp_mu=mu)
    assert gdp.log_delta_of(epsilon * factor + 1e-6, gdp_mu=mu) <= here + 1e-11
    assert gdp.log_delta_of(epsilon, gdp_mu=mu * factor) >= here - 1e-11


def test_the_tradeoff_curve_is_the_dual_of_delta():
    # f(α) = sup over ε of max(0, 1 − δ(ε) − e^ε α, e^{-ε}(1 − δ(ε) − α)): a second road to the curve
    mu, alphas = 1.3, np.array([0.003, 0.05, 0.2, 0.5, 0.9])
    eps = np.linspace(0, 12, 24001)
    delta = gdp.delta_of(eps, gdp_mu=mu)
    lines = np.maximum(1 - delta - np.exp(eps) * alphas[:, None], np.exp(-eps) * (1 - delta - alphas[:, None]))
    got = gdp.tradeoff(alphas, gdp_mu=mu)
    gap = got - np.maximum(lines.max(1), 0)
    assert (gap > -1e-12).all()
    assert (gap < 1e-6).all()


def test_the_tradeoff_curve_has_its_ends():
    assert list(gdp.tradeoff([0.0, 1.0], gdp_mu=2.0)) == [1.0, 0.0]
    assert gdp.tradeoff(0.3, gdp_mu=0.0) == pytest.approx(0.7, rel=1e-15)
    assert gdp.tradeoff(0.3, gdp_mu=math.inf) == 0.0


def test_arguments_outside_are_named():
    for delta in (-0.1, 1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="delta"):
            gdp.epsilon_of(delta, gdp_mu=1.0)
    with pytest.raises(ValueError, match="gdp_mu must be at least 0"):
        gdp.delta_of(1.0, gdp_mu=-1.0)
    with pytest.raises(ValueError, match="epsilon"):
        gdp.delta_of(math.nan, gdp_mu=1.0)
    with pytest.raises(ValueError, match="type1"):
        gdp.tradeoff(1.2, gdp_mu=1.0)
