"""Laplace and Gaussian noise: every guarantee against quadrature of the densities, and the laws all must obey."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from privrob.accounting import gdp, pairs
from privrob.kinds import NotAvailable
from privrob.mechanisms.noise import Gaussian, Laplace

ALONE = {"neighbouring": "replace", "sampling": "none"}
LAPLACE = Laplace(laplace_scale=1.7, l1_sensitivity=2.1)
GAUSSIAN = Gaussian(noise_std=1.7, l2_sensitivity=2.1)
LAWS = settings(derandomize=True, deadline=None, max_examples=50)


def grid(mechanism, shift):
    """Points and both log densities, dense enough for sums of kinked integrands."""
    z = np.linspace(-60, 60, 1_200_001)
    return z, mechanism.log_density(z - shift), mechanism.log_density(z)


@pytest.mark.paper("dplearn", "Laplace Mechanism")
@pytest.mark.paper("dplearn", "Gaussian Mechanism")
@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSSIAN])
def test_densities_integrate_to_one_and_to_their_mean_size_and_tail(mechanism):
    half = [integrate.quad(f, 0, 80, limit=200)[0] for f in (mechanism.density, lambda z: z * mechanism.density(z))]
    assert 2 * half[0] == pytest.approx(1, abs=1e-10)
    assert 2 * half[1] == pytest.approx(mechanism.mean_absolute_error(), rel=1e-9)
    tail = 2 * integrate.quad(mechanism.density, 2.3, 80)[0]
    assert mechanism.log_tail(2.3) == pytest.approx(math.log(tail), rel=1e-8)
    assert mechanism.log_tail(0.0) == 0.0
    assert mechanism.density(-1.3) == mechanism.density(1.3) > mechanism.density(1.4)


@pytest.mark.paper("dplearn", "Comparison: Laplace mechanism and Gaussian mechanism")
def test_laplace_has_the_longer_tail_and_the_smaller_error_in_one_dimension():
    # the slide's pair at ε = 1, δ = 1e-5: its tails compare as printed, its verdict on the error does not
    laplace = Laplace.for_epsilon(1.0, l1_sensitivity=1.0)
    gaussian = Gaussian(noise_std=gdp.textbook_noise_multiplier(1.0, delta=1e-5), l2_sensitivity=1.0)
    assert gaussian.noise_std == pytest.approx(math.sqrt(2 * math.log(5 / 4e-5)), rel=1e-15)
    assert laplace.log_tail(60.0) > gaussian.log_tail(60.0) + 10
    assert laplace.log_tail(5.0) < gaussian.log_tail(5.0)
    assert laplace.mean_absolute_error() == 1.0
    assert gaussian.mean_absolute_error() == pytest.approx(3.87, abs=0.005)


@pytest.mark.paper("dplearn", "Laplace Mechanism is Differentially Private")
def test_the_laplace_likelihood_ratio_stays_within_epsilon_and_reaches_it():
    mechanism = Laplace.for_epsilon(0.8, l1_sensitivity=3.0)
    assert (mechanism.laplace_scale, mechanism.pure_epsilon) == (3.0 / 0.8, pytest.approx(0.8, rel=1e-15))
    _, here, there = grid(mechanism, 3.0)
    ratio = np.abs(here - there)
    assert ratio.max() == pytest.approx(0.8, rel=1e-12)
    _, here, there = grid(mechanism, 2.0)
    assert np.abs(here - there).max() == pytest.approx(0.8 * 2 / 3, rel=1e-12)


@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSSIAN, Laplace(10.0, 0.3), Gaussian(10.0, 0.3)])
@pytest.mark.parametrize("order", [1.0001, 1.5, 2.0, 3.7, 16.0])
def test_renyi_curves_are_the_integral_they_stand_for(mechanism, order):
    shift = mechanism.l1_sensitivity if isinstance(mechanism, Laplace) else mechanism.l2_sensitivity
    reach = 40 * max(1.0, mechanism.mean_absolute_error()) + order * shift
    z = np.linspace(-reach, reach, 1_600_001)
    p, q = mechanism.log_density(z - shift), mechanism.log_density(z)
    # order 1.0001 divides what is left of the sum by 1e-4: compare the moments less 1, by expm1
    power = (order - 1) * (p - q)
    small = np.exp(p) * np.expm1(np.minimum(power, 1))
    moment = integrate.trapezoid(np.where(power > 1, np.exp(p + power) - np.exp(p), small), z)
    want = math.log1p(moment) / (order - 1)
    assert mechanism.rdp([order], **ALONE)[0] == pytest.approx(want, rel=2e-6)  # trapezoids at the kinks


def test_printed_laplace_formula_is_refuted():
    # first coefficient (a − 1)/(2a − 1), as printed, gives a negative divergence at a = 2, b = 1
    a, b = 2.0, 1.0
    second = (a - 1) / (2 * a - 1) * math.exp(-a / b)
    printed = math.log((a - 1) / (2 * a - 1) * math.exp((a - 1) / b) + second) / (a - 1)
    used = math.log(a / (2 * a - 1) * math.exp((a - 1) / b) + second) / (a - 1)
    assert printed < 0 < used
    assert Laplace(1.0, 1.0).rdp([a], **ALONE)[0] == pytest.approx(used, rel=1e-14)


def test_laplace_anchors_at_and_near_order_1():
    mechanism = Laplace(1.0, 1.0)
    assert mechanism.kl(**ALONE) == pytest.approx(0.367879441171, abs=5e-13)
    assert mechanism.rdp([1.0001], **ALONE)[0] == pytest.approx(0.367912309862, abs=5e-13)
    assert mechanism.rdp([1 + 1e-9], **ALONE)[0] == pytest.approx(mechanism.kl(**ALONE), rel=2e-8)  # slope · 1e-9
    assert mechanism.rdp([2], **ALONE) == mechanism.rdp([2.0], **ALONE)
    with pytest.raises(ValueError, match="kl"):
        mechanism.rdp([1.0], **ALONE)


def test_a_tiny_laplace_loss_keeps_its_digits():
    # second order: a ε²/2 · (1 − …ε): at ε = 1e-9 the next term is 1e-9 of it
    got = Laplace(1e9, 1.0).rdp([1.5, 2.0, 30.0], **ALONE)
    assert got == pytest.approx(np.array([1.5, 2.0, 30.0]) * 1e-18 / 2, rel=1e-7)


def test_the_two_laplace_formulas_meet():
    # one is used below a·ε = 1, the other above
    order = 5.0
    left, right = (Laplace(order / x, 1.0).rdp([order], **ALONE)[0] for x in (1 - 1e-12, 1 + 1e-12))
    assert left == pytest.approx(right, rel=1e-11)


@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSSIAN, Laplace(0.4, 1.0)])
@pytest.mark.parametrize("delta", [1e-3, 0.1, 0.3])
@pytest.mark.paper("dplearn", "An Approximate Notion of Differential Privacy")
def test_epsilon_at_delta_is_the_root_of_the_integral(mechanism, delta):
    shift = mechanism.l1_sensitivity if isinstance(mechanism, Laplace) else mechanism.l2_sensitivity
    z, p, q = grid(mechanism, shift)
    epsilon = mechanism.epsilon(delta, **ALONE)
    got = integrate.trapezoid(np.maximum(np.exp(p) - math.exp(epsilon.upper) * np.exp(q), 0), z)
    assert got == pytest.approx(delta, rel=1e-6)  # trapezoids, spacing 1e-4
    assert epsilon.lower <= epsilon.upper
    assert epsilon.width <= 1e-8


@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSSIAN, Laplace(0.4, 1.0)])
def test_tradeoff_curves_are_met_by_the_likelihood_ratio_test(mechanism):
    shift = mechanism.l1_sensitivity if isinstance(mechanism, Laplace) else mechanism.l2_sensitivity
    z = np.linspace(-60, 60, 1_200_001)
    # reject above a threshold: type I under the unshifted noise, type II under the shifted
    cdf = integrate.cumulative_trapezoid(mechanism.density(z), z, initial=0)
    type1, type2 = 1 - cdf, np.interp(z - shift, z, cdf)
    inside = np.searchsorted(z, [-1.0, -0.2, 0.0, 0.4, 1.0, 2.0, 2.6, 4.0])
    got = mechanism.tradeoff(type1[inside], **ALONE)
    assert got == pytest.approx(type2[inside], abs=1e-7)  # trapezoids at the kink


def test_laplace_shifts_in_two_coordinates_lose_no_more_than_in_one():
    # the claim behind "one coordinate is the worst", by a double sum
    mechanism = Laplace(1.0, 1.0)
    z = np.linspace(-14, 15, 1801)
    step = z[1] - z[0]
    base = mechanism.density(z)
    for split in (0.1, 0.3, 0.5):
        p = np.multiply.outer(mechanism.density(z - split), mechanism.density(z - (1 - split)))
        q = np.multiply.outer(base, base)
        for epsilon in (0.0, 0.4, 0.9):
            delta = np.maximum(p - math.exp(epsilon) * q, 0).sum() * step**2
            assert delta < -math.expm1((epsilon - 1) / 2) + 1e-4  # sums, spacing 0.016
    orders = np.array([1.5, 4.0, 32.0])
    parts = Laplace(1.0, 0.3).rdp(orders, **ALONE) + Laplace(1.0, 0.7).rdp(orders, **ALONE)
    assert (parts < mechanism.rdp(orders, **ALONE)).all()


@LAWS
@given(st.floats(0.05, 20), st.floats(1.05, 5), st.sampled_from([Laplace, Gaussian]))
def test_more_noise_leaks_less_and_orders_and_errors_are_monotone(scale, factor, kind):
    orders = np.array([1.1, 2.0, 8.0, 64.0])
    loud, quiet = kind(scale * factor, 1.0), kind(scale, 1.0)
    assert (loud.rdp(orders, **ALONE) < quiet.rdp(orders, **ALONE) * (1 + 1e-12)).all()
    assert (np.diff(quiet.rdp(orders, **ALONE)) >= 0).all()
    assert loud.epsilon(0.01, **ALONE).upper <= quiet.epsilon(0.01, **ALONE).upper
    type1 = np.linspace(0, 1, 41)
    curve = quiet.tradeoff(type1, **ALONE)
    assert (loud.tradeoff(type1, **ALONE) >= curve - 1e-12).all()
    assert (np.diff(curve) <= 1e-12).all()
    assert (np.diff(curve, 2) >= -1e-9).all()
    inside = (curve > 0) & (curve < 1)
    assert quiet.tradeoff(curve[inside], **ALONE) == pytest.approx(type1[inside], abs=1e-6)  # symmetric


@LAWS
@given(st.floats(0.01, 30), st.sampled_from(["add", "remove", "replace"]))
def test_the_constructors_meet_their_epsilon(epsilon, neighbouring):
    how = {"neighbouring": neighbouring, "sampling": "none"}
    assert Laplace.for_epsilon(epsilon, l1_sensitivity=0.7).epsilon(0.0, **how).upper == pytest.approx(
        epsilon, rel=1e-12
    )
    gaussian = Gaussian.for_epsilon(epsilon, delta=1e-6, l2_sensitivity=0.7)
    assert gaussian.epsilon(1e-6, **how).upper == pytest.approx(epsilon, rel=1e-8)


def test_scaling_query_and_noise_together_changes_nothing():
    a, b = Gaussian(2.0, 0.5), Gaussian(2000.0, 500.0)
    assert a.epsilon(1e-5, **ALONE) == b.epsilon(1e-5, **ALONE)
    assert Laplace(2.0, 0.5).rdp([3.0], **ALONE) == Laplace(2000.0, 500.0).rdp([3.0], **ALONE)


@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSSIAN])
def test_released_answers_are_shifted_noise_of_the_right_size(mechanism):
    answers = np.array([[3.0, -1.0]] * 100_000)
    noise = mechanism.release(answers, rng=np.random.default_rng(3)) - answers
    assert noise.shape == answers.shape
    size, count = np.abs(noise), noise.size
    assert abs(size.mean() - mechanism.mean_absolute_error()) < 5 * size.std() / math.sqrt(count)  # standard errors
    assert np.abs(noise.mean(0)).max() < 5 * noise.std() / math.sqrt(count / 2)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 5 / math.sqrt(count / 2)
    again = mechanism.release(answers, rng=np.random.default_rng(3)) - answers
    assert (again == noise).all()
    assert not (mechanism.release(answers, rng=np.random.default_rng(4)) - answers == noise).any()


def test_no_noise_is_no_privacy_and_no_sensitivity_no_loss():
    for kind in (Laplace, Gaussian):
        open_, shut = kind(0.0, 1.0), kind(1.0, 0.0)
        assert open_.epsilon(1e-5, **ALONE).lower == math.inf
        assert (open_.rdp([2.0], **ALONE) == math.inf).all()
        assert open_.tradeoff(0.3, **ALONE) == 0.0
        assert (open_.release(np.array([1.5]), rng=np.random.default_rng(0)) == 1.5).all()
        assert shut.epsilon(0.0, **ALONE).upper == 0
        assert (shut.rdp([2.0], **ALONE) == 0).all()
        assert shut.tradeoff(0.3, **ALONE) == pytest.approx(0.7)


def test_the_dominating_pair_has_the_exact_epsilon():
    for mechanism in (LAPLACE, GAUSSIAN):
        for delta in (1e-10, 1e-5, 1e-2):
            exact = mechanism.epsilon(delta, **ALONE)
            found = pairs.compose([(mechanism.pairs(**ALONE), 1)], delta=delta)
            assert found.lower <= exact.upper
            assert exact.lower <= found.upper <= exact.upper + 1e-3


def test_what_a_noise_mechanism_cannot_state_is_not_made_up():
    for mechanism in (LAPLACE, GAUSSIAN):
        for ask in (lambda how, m=mechanism: m.rdp([2.0], **how), lambda how, m=mechanism: m.pairs(**how)):
            with pytest.raises(NotAvailable):
                ask({"neighbouring": "replace", "sampling": "poisson"})
        with pytest.raises(ValueError, match="neighbouring"):
            mechanism.epsilon(1e-5, neighbouring="both", sampling="none")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Laplace(-1.0, 1.0), "laplace_scale"),
        (lambda: Laplace(1.0, math.nan), "l1_sensitivity"),
        (lambda: Gaussian(math.inf, 1.0), "noise_std"),
        (lambda: Laplace.for_epsilon(0.0, l1_sensitivity=1.0), "epsilon"),
        (lambda: Gaussian.for_epsilon(1.0, delta=0.0, l2_sensitivity=1.0), "delta"),
        (lambda: Gaussian.textbook(2.0, delta=1e-5, l2_sensitivity=1.0), "epsilon"),
        (lambda: GAUSSIAN.epsilon(1.0, **ALONE), "delta"),
        (lambda: LAPLACE.epsilon(1.0, **ALONE), "delta"),
        (lambda: LAPLACE.tradeoff(1.5, **ALONE), "type1"),
        (lambda: LAPLACE.log_tail(-1.0), "threshold"),
        (lambda: LAPLACE.release([math.nan], rng=np.random.default_rng(0)), "data"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises((ValueError, TypeError), match=name):
        call()
