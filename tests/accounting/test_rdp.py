"""Rényi curves against 40 digits, and conversions against exact answers, brute force and a second library."""

import inspect
import math
import warnings

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privrob.accounting import gdp, rdp
from privrob.accounting.logspace import log_expm1_minus, log_power_excess, log_power_excess_over_ratio

LAWS = settings(derandomize=True, deadline=None, max_examples=20)
HARD_ORDERS = [1 + 1e-12, 1.0001, 1.5, 2.0, 3.7, 64.0, 1e4, 1e9]


def convert(delta, orders, curve, conversion, edge=False):
    """ε, with the warning expected or forbidden."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if edge else "error")
        got = rdp.epsilon_of(delta, orders=orders, rdp=curve, conversion=conversion)
    assert type(got.epsilon) is float
    assert math.copysign(1, got.epsilon) == 1
    assert (got.delta, got.conversion, got.at_edge) == (delta, conversion, edge)
    return got


# --------------------------------------------------------------------------------------------------------------- pieces


@pytest.mark.parametrize(
    "x", [-1e9, -745.0, -3.0, -0.1001, -0.0999, -1e-9, 1e-160, 1e-5, 0.0999, 0.1001, 39.9, 41.0, 800.0]
)
def test_the_exponential_beyond_its_tangent_keeps_its_digits(x):
    with mpmath.workdps(700):
        want = float(mpmath.log(mpmath.expm1(x) - mpmath.mpf(x)))
    assert log_expm1_minus(x) == pytest.approx(want, rel=2e-14, abs=2e-14)  # x/(eˣ−1−x) at 0.1 costs 20 roundings


@pytest.mark.parametrize("s", [0.0, 1e-9, 0.3, 1.0, 70.0, 1e6])
def test_a_power_beyond_its_tangent_keeps_its_digits(s):
    for ratio in [-650.0, -5.0, -0.05, -1e-8, 1e-300, 1e-3, 0.3, 7.0, 650.0]:
        with mpmath.workdps(1400):
            a, big = 1 + mpmath.mpf(s), mpmath.exp(mpmath.mpf(ratio))
            value = (big**a - 1 - a * (big - 1)) / s if s else big * mpmath.mpf(ratio) - big + 1
            want = float(mpmath.log(value))
        assert log_power_excess(ratio, s) == pytest.approx(want, rel=1e-14, abs=1e-13)
        over = log_power_excess_over_ratio(ratio, s)
        assert over == pytest.approx(want - ratio, rel=1e-14, abs=3e-13)  # want − ratio itself is rounded
    assert log_power_excess(-np.inf, s) == pytest.approx(0.0, abs=1e-12)
    assert log_power_excess(0.0, s) == -np.inf


# --------------------------------------------------------------------------------------------------------------- curves


@pytest.mark.paper("ptr", "Section 4 (unnumbered)")
def test_the_gaussian_curve_is_a_line():
    assert rdp.gaussian([10], noise_multiplier=2)[0] == 1.25
    assert list(rdp.gaussian([1.5, 3], noise_multiplier=0.5)) == [3.0, 6.0]
    assert rdp.kl_gaussian(noise_multiplier=0.5) == 2.0
    assert rdp.gaussian([2], noise_multiplier=0)[0] == rdp.kl_gaussian(noise_multiplier=0) == math.inf
    assert rdp.gaussian([2], noise_multiplier=math.inf)[0] == rdp.kl_gaussian(noise_multiplier=math.inf) == 0


def laplace_integral(order, b):
    """The Rényi divergence of two Laplace densities by their integral, in the three pieces where both are smooth."""
    with mpmath.workdps(40):
        a, b = mpmath.mpf(order), mpmath.mpf(b)

        def integrand(x):
            return mpmath.exp(-a * abs(x) / b - (1 - a) * abs(x - 1) / b) / (2 * b)

        far = 200 * b
        moment = mpmath.quad(integrand, [-far, -b, 0, mpmath.mpf(1) / 2, 1, 1 + b, 1 + far])
        return float(mpmath.log(moment) / (a - 1))


@pytest.mark.paper("ptr", "Section 4 (unnumbered)")
@pytest.mark.parametrize(("order", "b"), [(1.5, 1.0), (2.0, 1.0), (7.3, 0.5), (20.0, 3.0), (1.01, 0.2)])
def test_the_laplace_curve_is_its_integral(order, b):
    assert rdp.laplace([order], scale_ratio=b)[0] == pytest.approx(laplace_integral(order, b), rel=1e-12, abs=0)


@pytest.mark.paper("ptr", "Section 4 (unnumbered)")
def test_printed_laplace_formula_is_refuted():
    printed = math.log(math.exp(1) / 3 + math.exp(-2) / 3)  # order 2, scale 1
    assert printed < 0
    assert rdp.laplace([2], scale_ratio=1)[0] == pytest.approx(0.619124, abs=5e-7)
    assert laplace_integral(2, 1) == pytest.approx(0.619124, abs=5e-7)


@pytest.mark.parametrize("b", [1e-3, 0.1, 1.0, 30.0, 1e6])
def test_laplace_and_randomised_response_have_their_digits_at_hard_orders(b):
    for order in HARD_ORDERS:
        with mpmath.workdps(60):
            a, loss = mpmath.mpf(order), 1 / mpmath.mpf(b)
            both = a / (2 * a - 1) * mpmath.exp((a - 1) * loss) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * loss)
            want = float(mpmath.log(both) / (a - 1))
            loss = mpmath.mpf(1 / b)
            cosh = mpmath.cosh((a - mpmath.mpf(1) / 2) * loss) / mpmath.cosh(loss / 2)
            response = float(mpmath.log(cosh) / (a - 1))
        assert rdp.laplace([order], scale_ratio=b)[0] == pytest.approx(want, rel=1e-13, abs=0)
        assert rdp.randomized_response([order], epsilon=1 / b)[0] == pytest.approx(response, rel=1e-13, abs=0)


def test_order_one_is_asked_for_by_name_and_is_the_limit():
    near = [1 + 1e-9]
    assert rdp.kl_laplace(scale_ratio=1) == pytest.approx(0.367879441171, abs=5e-13)
    assert rdp.laplace([1.0001], scale_ratio=1)[0] == pytest.approx(0.367912309862, abs=5e-13)
    assert rdp.laplace(near, scale_ratio=1)[0] == pytest.approx(rdp.kl_laplace(scale_ratio=1), rel=1e-8, abs=0)
    assert rdp.pure(near, epsilon=0.7)[0] == pytest.approx(rdp.kl_pure(epsilon=0.7), rel=1e-8, abs=0)
    assert rdp.kl_randomized_response(epsilon=0.7) == pytest.approx(0.7 * (math.e**0.7 - 1) / (math.e**0.7 + 1))
    for order in (1, 0.5, math.nan):
        with pytest.raises(ValueError, match="orders"):
            rdp.gaussian([order], noise_multiplier=1)


@LAWS
@given(st.floats(-12, 4), st.lists(st.floats(-9, 9), min_size=2, max_size=5))
def test_curves_rise_with_the_order_and_stay_below_the_pure_loss(log_loss, log_orders):
    loss, orders = 10.0**log_loss, 1 + 10.0 ** np.sort(log_orders)
    for curve in (rdp.laplace(orders, scale_ratio=1 / loss), rdp.pure(orders, epsilon=loss)):
        assert (np.diff(curve) >= -1e-12 * curve[1:]).all()
        assert (curve >= 0).all()
        assert (curve <= loss * (1 + 1e-15)).all()
    assert (rdp.laplace(orders, scale_ratio=1 / loss) <= rdp.pure(orders, epsilon=loss) * (1 + 1e-12)).all()
    assert (rdp.pure(orders, epsilon=loss) <= orders * loss**2 / 2 * (1 + 1e-12)).all()


def test_no_pair_within_epsilon_exceeds_the_pure_curve_and_randomised_response_meets_it():
    rng, orders, epsilon = np.random.default_rng(0), np.array([1.1, 2.0, 5.0, 40.0]), 0.8
    bound = rdp.pure(orders, epsilon=epsilon)
    for _ in range(300):
        q = rng.dirichlet(np.ones(4))
        p = q * np.exp(rng.uniform(-epsilon / 2, epsilon / 2, 4))
        p /= p.sum()
        assert np.abs(np.log(p / q)).max() <= epsilon
        moment = np.sum(p[:, None] ** orders * q[:, None] ** (1 - orders), axis=0)
        assert (np.log(moment) / (orders - 1) <= bound).all()
    p = np.array([math.exp(epsilon), 1]) / (1 + math.exp(epsilon))
    moment = p[0] ** orders * p[1] ** (1 - orders) + p[1] ** orders * p[0] ** (1 - orders)
    assert bound == pytest.approx(np.log(moment) / (orders - 1), rel=1e-12, abs=0)


@pytest.mark.parametrize("curve", [rdp.laplace, rdp.pure, rdp.gaussian, rdp.randomized_response])
def test_extremes_are_zero_or_infinite_and_never_nan(curve):
    (name,) = (k for k in inspect.signature(curve).parameters if k != "orders")
    for value in [0.0, 5e-324, 1e-200, 1e-8, 1.0, 800.0, 1e200, 1e308, math.inf]:
        got = curve(np.array([1 + 2.3e-16, 2.0, 1e15, 1e300]), **{name: value})
        assert not np.isnan(got).any()
        assert (got >= 0).all()
    none, all_ = (math.inf, 0.0) if name != "epsilon" else (0.0, math.inf)
    assert (curve([1.5, 9], **{name: none}) == 0).all()
    assert (curve([1.5, 9], **{name: all_}) == math.inf).all()
    with pytest.raises(ValueError, match=name):
        curve([2], **{name: -1})


# ---------------------------------------------------------------------------------------------------------- composition


def test_composition_adds_and_zero_times_infinity_is_nothing():
    total = rdp.compose([[1.0, math.inf], [0.25, 0.5], [math.inf, math.inf]], [2, 4, 0])
    assert list(total) == [3.0, math.inf]
    assert list(rdp.compose([[1.0, math.inf]], [0])) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("curves", "counts", "match"),
    [
        ([[1.0], [2.0]], [1], "counts must hold one number a curve"),
        ([[1.0]], [-1], "counts"),
        ([[1.0]], [1.5], "counts"),
        ([[-1.0]], [1], "curves must be at least 0"),
        ([[math.nan]], [1], "curves must be at least 0"),
        ([], [], "curves"),
    ],
)
def test_composition_names_what_is_wrong(curves, counts, match):
    with pytest.raises((ValueError, TypeError), match=match):
        rdp.compose(curves, counts)


# ---------------------------------------------------------------------------------------------------------- conversions


def least_divergence(delta, epsilon, order):
    """The least divergence of two points whose hockey-stick divergence at ε is δ, by golden section, 50 digits."""
    with mpmath.workdps(50):
        a, d, shrink = mpmath.mpf(order), mpmath.mpf(delta), mpmath.exp(-mpmath.mpf(epsilon))

        def moment(x):
            p = d + (1 - d) / (1 + mpmath.exp(-x))
            q = (p - d) * shrink
            return p**a * q ** (1 - a) + (1 - p) ** a * (1 - q) ** (1 - a)

        low, high, share = mpmath.log(d) + min(mpmath.log(a - 1), 0) - 60, mpmath.mpf(60), (mpmath.sqrt(5) - 1) / 2
        for _ in range(90):
            left, right = high - share * (high - low), low + share * (high - low)
            low, high = (left, high) if moment(left) > moment(right) else (low, right)
        return mpmath.log(moment((low + high) / 2)) / (a - 1)


HARD_CONVERSIONS = [
    (1e-5, 2.0, 0.5),
    (1e-5, 32.0, 0.01),
    (1e-5, 1.1, 3.0),
    (0.01, 200.0, 0.05),
    (0.3, 1.001, 0.5),
    (1e-8, 5.5, 1e-6),
    (0.2, 3.0, 0.1),
    (1e-22, 11.0, 5.5),
    (1e-80, 30.0, 1e-3),
    (1e-5, 1e4, 1e-4),
    (1e-200, 1.001, 50.0),
    (1e-5, 1.0001, 3000.0),
]


@pytest.mark.paper("ptr", "Definition 3.2")
@pytest.mark.parametrize(("delta", "order", "divergence"), HARD_CONVERSIONS)
def test_the_optimal_conversion_is_the_worst_pair_of_points(delta, order, divergence):
    arguments = {"orders": [order], "rdp": [divergence]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimal, balle, classic = (
            rdp.epsilon_of(delta, conversion=c, **arguments).epsilon for c in ("optimal", "balle2020", "classic")
        )
        back = rdp.delta_of(optimal, conversion="optimal", **arguments).delta
    # Safe: no pair within the divergence does worse. Tight: a hair below, one does (1e-11 is what a root is moved by).
    assert least_divergence(delta, optimal, order) >= divergence
    if optimal > 0:
        assert least_divergence(delta, optimal * (1 - 3e-11), order) < divergence
    assert optimal <= balle <= classic
    if optimal > 0:
        assert back == pytest.approx(delta, rel=1e-8, abs=0)  # 1e-11 of ε, up to 700 times as much of δ


def test_conversions_are_their_formulas():
    got = convert(1e-5, [8.0], [0.3], "classic", edge=True).epsilon
    assert got == pytest.approx(0.3 + math.log(1e5) / 7, rel=1e-15, abs=0)
    got = convert(1e-5, [8.0], [0.3], "balle2020", edge=True).epsilon
    assert got == pytest.approx(0.3 + math.log(7 / 8) - (math.log(1e-5) + math.log(8)) / 7, rel=1e-14, abs=0)
    for order, divergence in [(1e5, 1e-4), (1 + 1e-8, 0.3)]:  # where the two logarithms cancel, or one is huge
        with mpmath.workdps(40):
            a, log_delta = mpmath.mpf(order), mpmath.log(mpmath.mpf(1e-5))
            want = float(divergence + mpmath.log((a - 1) / a) - (log_delta + mpmath.log(a)) / (a - 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = rdp.epsilon_of(1e-5, orders=[order], rdp=[divergence], conversion="balle2020").epsilon
        assert got == pytest.approx(want, rel=1e-13, abs=0)


@LAWS
@given(st.floats(-8, 3), st.floats(-40, -0.3), st.sampled_from(rdp.CONVERSIONS))
def test_epsilon_of_a_gaussian_is_never_below_the_exact_one_and_delta_is_its_inverse(log_mu, log_delta, conversion):
    mu, delta, orders = 10.0**log_mu, 10.0**log_delta, rdp.default_orders()
    curve = rdp.gaussian(orders, noise_multiplier=1 / mu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = rdp.epsilon_of(delta, orders=orders, rdp=curve, conversion=conversion)
        back = rdp.delta_of(got.epsilon, orders=orders, rdp=curve, conversion=conversion)
    assert got.epsilon >= gdp.epsilon_of(delta, gdp_mu=mu) * (1 - 1e-9)
    assert back.delta <= delta * (1 + 1e-6) or got.epsilon == 0
    assert back.delta >= gdp.delta_of(got.epsilon, gdp_mu=mu) * (1 - 1e-9)


@LAWS
@given(st.floats(0, 20), st.floats(-6, 1.5))
def test_delta_of_every_conversion_is_never_below_the_exact_one(epsilon, log_mu):
    mu, orders = 10.0**log_mu, rdp.default_orders()
    curve = rdp.gaussian(orders, noise_multiplier=1 / mu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classic, balle, optimal = (
            rdp.delta_of(epsilon, orders=orders, rdp=curve, conversion=c).delta for c in rdp.CONVERSIONS
        )
    assert gdp.delta_of(epsilon, gdp_mu=mu) * (1 - 1e-9) <= optimal <= balle <= classic <= 1


def test_without_loss_epsilon_is_positive_zero_in_every_conversion():
    orders = rdp.default_orders()
    for conversion in rdp.CONVERSIONS:
        for curve in (np.zeros(orders.size), rdp.gaussian(orders, noise_multiplier=math.inf)):
            assert convert(0.0, orders, curve, conversion).epsilon == 0
            assert convert(1e-5, orders, curve, conversion).epsilon == 0
            assert rdp.delta_of(0.0, orders=orders, rdp=curve, conversion=conversion).delta == 0


def test_a_delta_beyond_the_total_variation_gives_zero_and_one_below_does_not():
    orders = rdp.default_orders()
    curve = rdp.gaussian(orders, noise_multiplier=1)  # exact total variation 0.3829249225
    for conversion in rdp.CONVERSIONS:
        assert convert(0.9, orders, curve, conversion).epsilon == 0
        assert convert(0.5, orders, curve, conversion).epsilon == 0
        assert convert(0.3, orders, curve, conversion).epsilon > gdp.epsilon_of(0.3, gdp_mu=1) > 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            most = rdp.delta_of(0.0, orders=orders, rdp=curve, conversion=conversion).delta
        assert 0.3829249225 <= most <= 0.4874  # Kullback 1967 at a divergence of 1/2


def test_the_total_variation_is_bounded_by_the_divergence_and_nearly_met():
    # two points, mirrored: nearly the least divergent of all pairs at this distance
    for distance in (1e-6, 1e-3, 0.1, 0.3, 0.5, 0.7):
        loss = 2 * math.atanh(distance)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = rdp.delta_of(0.0, orders=[1.0001], rdp=[distance * loss], conversion="balle2020").delta
        assert distance * (1 - 1e-15) <= got <= 1.1 * distance


def test_without_delta_or_noise_epsilon_is_infinite():
    orders = rdp.default_orders()
    for conversion in rdp.CONVERSIONS:
        assert convert(0.0, orders, orders * 1e-3, conversion).epsilon == math.inf
        assert convert(1e-5, orders, np.full(orders.size, np.inf), conversion).epsilon == math.inf
        assert rdp.delta_of(3.0, orders=orders, rdp=np.full(orders.size, np.inf), conversion=conversion).delta == 1
        half = np.where(orders > 3, np.inf, orders)
        assert math.isfinite(convert(0.1, orders, half, conversion).epsilon)


def test_an_order_barely_above_1_does_not_lower_epsilon():
    grid = np.concatenate([np.arange(11, 110) / 10, np.arange(12.0, 64.0)])
    for conversion in rdp.CONVERSIONS:
        for mu in (1e-3, 0.1, 3.0):
            wide = np.append(1 + 1e-8, grid)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plain, more = (
                    rdp.epsilon_of(1e-5, orders=orders, rdp=orders * mu**2 / 2, conversion=conversion).epsilon
                    for orders in (grid, wide)
                )
            assert gdp.epsilon_of(1e-5, gdp_mu=mu) <= more <= plain


def test_the_best_order_at_an_edge_is_named():
    curve = rdp.gaussian(np.arange(2.0, 65.0), noise_multiplier=100)
    with pytest.warns(rdp.OrderEdgeWarning, match="best order, 64, is the last"):
        got = rdp.epsilon_of(1e-5, orders=np.arange(2.0, 65.0), rdp=curve, conversion="balle2020")
    assert got.epsilon == pytest.approx(0.10418, abs=5e-6)
    assert (got.order, got.at_edge) == (64.0, True)
    with pytest.warns(rdp.OrderEdgeWarning, match="best order, 2, is the first"):
        rdp.epsilon_of(1e-5, orders=[2.0, 3.0], rdp=[30.0, 45.0], conversion="classic")
    with pytest.warns(rdp.OrderEdgeWarning, match="smaller delta"):
        rdp.delta_of(2.0, orders=[2.0, 3.0], rdp=[0.01, 0.015], conversion="classic")
    orders = np.arange(2.0, 513.0)
    got = convert(1e-5, orders, rdp.gaussian(orders, noise_multiplier=100), "balle2020")
    assert got.epsilon == pytest.approx(0.030821, abs=5e-7)
    assert got.order == 338


def test_an_edge_that_costs_nothing_is_not_warned_of():
    orders = rdp.default_orders()  # a pure loss: the larger the order the better, up to what is left to gain
    assert convert(1e-5, orders, rdp.pure(orders, epsilon=1.0), "balle2020").epsilon == pytest.approx(
        1.0, rel=2e-3, abs=0
    )


def test_the_order_of_the_orders_does_not_matter():
    orders = np.array([30.0, 2.0, 5.0, 12.0])
    curve = rdp.gaussian(orders, noise_multiplier=2)
    assert convert(1e-5, orders, curve, "balle2020") == convert(1e-5, np.sort(orders), np.sort(curve), "balle2020")


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 10.0, 100.0, 1e4])
def test_default_orders_land_near_the_exact_epsilon(sigma):
    orders = rdp.default_orders()
    assert set(range(2, 13)) <= set(orders)
    got = convert(1e-5, orders, rdp.gaussian(orders, noise_multiplier=sigma), "balle2020").epsilon
    exact = gdp.epsilon_of(1e-5, gdp_mu=1 / sigma)
    assert exact <= got
    assert got <= 1.15 * exact or sigma > 100  # the conversion itself costs 44 % at 1e4
    dense = 1 + np.geomspace(1e-5, 1e7, 20001)
    best = convert(1e-5, dense, rdp.gaussian(dense, noise_multiplier=sigma), "balle2020").epsilon
    assert got <= 1.005 * best  # what the spacing of the grid costs


@pytest.mark.parametrize(("scale", "delta"), [(3.0, 1e-5), (1e-4, 1e-6), (0.02, 1e-12), (40.0, 1e-5)])
def test_epsilon_agrees_with_a_second_library(scale, delta):
    orders = np.concatenate([np.arange(11, 110) / 10, np.arange(12.0, 64.0)])
    curve = orders * scale
    want, _ = rdp_privacy_accountant.compute_epsilon(orders, curve, delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = rdp.epsilon_of(delta, orders=orders, rdp=curve, conversion="balle2020").epsilon
    assert got == pytest.approx(want, rel=1e-12, abs=0)


@pytest.mark.parametrize("delta", [1.0, 1.5, -0.1, math.nan])
def test_delta_outside_is_refused(delta):
    with pytest.raises(ValueError, match="delta must lie in"):
        rdp.epsilon_of(delta, orders=[2], rdp=[1], conversion="classic")


def test_arguments_outside_are_named():
    with pytest.raises(ValueError, match="did you mean 'balle2020'"):
        rdp.epsilon_of(0.1, orders=[2], rdp=[1], conversion="balle20")
    with pytest.raises(ValueError, match="rdp must be at least 0"):
        rdp.epsilon_of(0.1, orders=[2], rdp=[-1e-17], conversion="classic")
    with pytest.raises(ValueError, match="rdp must be at least 0"):
        rdp.delta_of(0.1, orders=[2], rdp=[math.nan], conversion="classic")
    with pytest.raises(ValueError, match="one number an order"):
        rdp.epsilon_of(0.1, orders=[2, 3], rdp=[1], conversion="classic")
    with pytest.raises(ValueError, match="epsilon"):
        rdp.delta_of(-1.0, orders=[2], rdp=[1], conversion="classic")
