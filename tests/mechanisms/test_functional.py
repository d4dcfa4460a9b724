"""The functional mechanism: coefficients against the losses, sensitivities against enumeration, Taylor errors."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import optimize

from privrob.accounting import functional_budget as fb
from privrob.accounting import pairs
from privrob.kinds import Guarantee, NotAvailable
from privrob.mechanisms import functional as fm

ALONE = {"neighbouring": "replace", "sampling": "none"}


def corners(size, values=(-1.0, 1.0)):
    return [np.array(p) for p in itertools.product(values, repeat=size)]


def one(row):
    return fm.regression_coefficients(row[None])


@pytest.mark.paper("stobatch", "Lemma 2")
@pytest.mark.parametrize(("inputs", "neurons"), [(1, 1), (2, 3), (3, 2)])
def test_lemma_2_is_the_widest_change_of_the_coefficients(inputs, neurons):
    # one record: h/2 counts once for each input, as in Appendix E; corners suffice, the change is convex in both
    def coefficients(record):
        half, x = fm.reconstruction_coefficients(record[None, neurons:], record[None, :neurons])
        return np.concatenate([np.tile(half, inputs), x])

    found = fm.widest_change(coefficients, corners(inputs + neurons))
    assert fm.reconstruction_sensitivity(num_inputs=inputs, num_neurons=neurons) == found


@pytest.mark.paper("stobatch", "Appendix E")
def test_the_budget_uses_lemma_2_for_each_channel():
    budget = fb.split("cifar10", 2.0)
    assert budget.reconstruction_sensitivity == 3 * fm.reconstruction_sensitivity(num_inputs=16, num_neurons=196)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_coefficients_of_the_data_alone_need_three_d_squared(size):
    # Σ_j θ_j(1/2 − x_j) Σ_l θ_l x_l, monomials θ_jθ_l with j ≤ l
    def coefficients(x):
        form = fm.reconstruction_quadratic(x[None])
        return (form * (2 - np.eye(size)))[np.triu_indices(size)]

    grid = corners(size, (-1.0, -0.5, 0.0, 0.5, 1.0))
    assert fm.quadratic_sensitivity(num_inputs=size) == pytest.approx(fm.general_sensitivity(coefficients, grid))
    assert fm.widest_change(coefficients, grid) <= fm.quadratic_sensitivity(num_inputs=size)


@pytest.mark.paper("stobatch", "Lemma 4")
@pytest.mark.paper("stobatch", "Equation 23")
@pytest.mark.parametrize(("hidden", "classes"), [(1, 2), (2, 3), (3, 2)])
def test_lemma_4_is_the_widest_change_of_the_label_coefficients(hidden, classes):
    records = [np.concatenate([h, np.eye(classes)[k]]) for h in corners(hidden) for k in range(classes)]
    found = fm.widest_change(lambda r: fm.label_coefficients(r[None, :hidden], r[None, hidden:]), records)
    assert fm.label_sensitivity(num_hidden=hidden) == found


def test_adlm_counts_all_coefficients_of_the_same_loss():
    hidden, classes = 3, 2

    def coefficients(record):
        h, y = record[:hidden], record[hidden:]
        return np.concatenate([np.outer(h, 0.5 - y).ravel(), np.tile(np.outer(h, h).ravel() / 8, classes)])

    records = [np.concatenate([h, np.eye(classes)[k]]) for h in corners(hidden) for k in range(classes)]
    bound = fm.adlm_sensitivity(num_hidden=hidden, num_classes=classes)
    assert bound == fm.general_sensitivity(coefficients, records)
    assert fm.adlm_sensitivity(num_hidden=256, num_classes=10) / fm.label_sensitivity(num_hidden=256) == 325


@pytest.mark.paper("stobatch", "Appendix B")
@pytest.mark.parametrize("features", [1, 2, 3])
def test_the_general_sensitivity_of_regression_covers_the_exact_one(features):
    records = corners(features + 1, (-1.0, 0.0, 1.0))
    bound = fm.regression_sensitivity(num_features=features)
    assert bound == fm.general_sensitivity(one, records)
    assert fm.widest_change(one, records) == (features + 1) ** 2
    assert fm.widest_change(one, records) <= bound


@pytest.mark.paper("stobatch", "Equation 14")
def test_the_polynomial_of_regression_is_the_sum_of_squares():
    rng = np.random.default_rng(1)
    data, theta = rng.uniform(-1, 1, (7, 4)), rng.normal(size=(5, 3))
    want = ((data[:, -1] - theta @ data[:, :-1].T) ** 2).sum(axis=1)
    found = fm.regression_value(theta, fm.regression_coefficients(data)) + (data[:, -1] ** 2).sum()
    assert found == pytest.approx(want, rel=1e-12)


@pytest.mark.paper("stobatch", "Appendix B")
def test_grid_search_and_closed_form_agree():
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (400, 2))
    data = np.column_stack([x, np.clip(x @ [0.6, -0.3] + rng.normal(0, 0.05, 400), -1, 1)])
    coefficients = fm.regression_coefficients(data)
    exact = np.linalg.lstsq(x, data[:, -1], rcond=None)[0]
    assert fm.minimise(coefficients) == pytest.approx(exact, rel=1e-10)
    assert np.abs(fm.minimise_on_grid(coefficients, points=81) - exact).max() <= 1 / 80 + 1e-3  # half a step, tilted
    noisy = fm.Functional.for_epsilon(fm.regression_coefficients, epsilon=4.0, l1_sensitivity=16.0)
    noisy = noisy.release(data, rng=rng)
    inside = fm.minimise(noisy)
    assert np.abs(inside).max() < 1
    assert np.abs(fm.minimise_on_grid(noisy, points=401) - inside).max() < 0.01


def test_downward_directions_are_left_alone():
    coefficients = np.array([2.0, 3.0, 1.0, 0.0, 0.0, -1.0])  # θ₁² + 2θ₁ − θ₂² + 3θ₂
    assert fm.minimise(coefficients) == pytest.approx([-1.0, 0.0])


@pytest.mark.paper("stobatch", "Appendix B")
def test_the_mechanism_states_what_laplace_states_and_no_pair_of_records_exceeds_it():
    mechanism = fm.Functional.for_epsilon(fm.regression_coefficients, epsilon=0.8, l1_sensitivity=16.0)
    assert isinstance(mechanism, Guarantee)
    assert mechanism.pure_epsilon == pytest.approx(0.8)
    assert mechanism.epsilon(0.0, **ALONE).upper == pytest.approx(0.8)
    assert mechanism.rdp([2.0], **ALONE) == mechanism.noise.rdp([2.0], **ALONE)
    assert mechanism.tradeoff(0.1, **ALONE) == mechanism.noise.tradeoff(0.1, **ALONE)
    composed = pairs.compose([(mechanism.pairs(**ALONE), 1)], delta=1e-3)
    assert composed.lower <= mechanism.epsilon(1e-3, **ALONE).upper <= composed.upper
    with pytest.raises(NotAvailable):
        mechanism.epsilon(0.0, neighbouring="replace", sampling="poisson")
    worst = fm.widest_change(one, corners(3)) / mechanism.laplace_scale
    assert 0.3 < worst <= 0.8


def test_release_adds_noise_of_the_stated_scale():
    mechanism = fm.Functional(fm.regression_coefficients, 3.0, 16.0)
    data = np.full((2, 150), 0.5)
    noise = mechanism.release(data, rng=np.random.default_rng(3)) - fm.regression_coefficients(data)
    assert abs(np.abs(noise).mean() - 3.0) < 5 * 3.0 / math.sqrt(noise.size)  # |Laplace| has mean and deviation b


@pytest.mark.paper("stobatch", "Equation 16")
@pytest.mark.paper("stobatch", "Equation 17")
@pytest.mark.paper("stobatch", "Equation 18")
@pytest.mark.parametrize("maps", [1, 32])
def test_epsilon_of_sums_is_the_loss_at_the_worst_pair(maps):
    budget = fb.split("mnist", 1.0)
    low, high = -np.ones((1, 784)), np.ones((1, 784))
    h = np.ones((1, maps * budget.map_neurons))
    gaps = [
        np.abs(a - b).sum()
        for a, b in zip(fm.reconstruction_coefficients(low, -h), fm.reconstruction_coefficients(high, h), strict=True)
    ]
    want = sum(gaps) / (budget.batch_size * budget.input_scale)  # noise Δ_R/ε₁ = m b on every sum
    assert fm.epsilon_of_sums(budget, num_maps=maps) == pytest.approx(want, rel=1e-13)


@pytest.mark.paper("stobatch", "Equation 5")
@pytest.mark.paper("stobatch", "Equation 35")
@pytest.mark.paper("stobatch", "Equation 43")
def test_the_reconstructions_remainder_is_log_cosh_whatever_the_target():
    for z, x in itertools.product((-3.0, -0.4, 0.01, 1.0, 2.5), (-1.0, -0.2, 0.7, 1.0)):
        error = fm.reconstruction_loss(z, x) - fm.reconstruction_taylor(z, x)
        assert error == pytest.approx(float(mpmath.log(mpmath.cosh(z / 2))), abs=1e-14)
        assert fm.taylor_error(z, order=1) == pytest.approx(error, abs=1e-14)


@pytest.mark.paper("stobatch", "Section 3.2")
@pytest.mark.paper("stobatch", "Equation 36")
@pytest.mark.parametrize("z", [1e-9, 1e-3, -0.0999, 0.1, 0.4, -1.0, 3.0, 40.0])
def test_the_classification_remainder_against_fifty_digits(z):
    with mpmath.workdps(50):
        want = float(mpmath.mpf(z) ** 2 / 8 - mpmath.log(mpmath.cosh(mpmath.mpf(z) / 2)))
    assert fm.taylor_error(z, order=2) == pytest.approx(want, rel=1e-9)
    error = fm.classification_taylor(z, 1.0) - fm.classification_loss(z, 1.0)
    assert error == pytest.approx(want, abs=1e-14)


def test_the_printed_second_order_has_the_wrong_slope_below_zero():
    step = 1e-6
    slope = [(fm.classification_taylor(-step, y, form="as_printed") - 0.0) / -step for y in (0.0, 1.0)]
    assert slope == pytest.approx([1.5, 0.5], abs=1e-5)
    true = optimize.approx_fprime(np.array([-1e-9]), lambda z: float(fm.classification_loss(z[0], 0.0)))
    assert true == pytest.approx(0.5, abs=1e-6)
    assert fm.classification_taylor(0.3, 1.0, form="as_printed") + math.log(2) == pytest.approx(
        fm.classification_taylor(0.3, 1.0)
    )


@pytest.mark.paper("stobatch", "Equation 35")
@pytest.mark.paper("stobatch", "Equation 36")
def test_printed_bounds_hold_for_small_scores_only():
    z = np.linspace(-1, 1, 2001)
    for order, supremum, reach in ((1, 0.120115, 2.85), (2, 0.004885, 3.144)):
        bound, errors = fm.printed_taylor_bound(order=order), fm.taylor_error(z, order=order)
        assert errors.max() == pytest.approx(supremum, abs=1e-6)
        assert errors.max() < bound
        edge = fm.printed_taylor_reach(order=order)
        assert edge == pytest.approx(reach, abs=0.005)
        assert fm.taylor_error(edge * 1.001, order=order) > bound > fm.taylor_error(edge * 0.999, order=order)
    assert fm.printed_taylor_bound(order=1) == pytest.approx(0.786448, abs=1e-6)
    assert fm.printed_taylor_bound(order=2) == pytest.approx(0.314662, abs=1e-6)


def test_targets_below_zero_let_the_loss_fall_without_end():
    assert fm.reconstruction_loss(-1000.0, -0.5) < -400
    assert fm.reconstruction_loss(-1000.0, 0.5) > 0


@pytest.mark.parametrize(
    ("call", "word", "error"),
    [
        (lambda: fm.Functional(3, 1.0, 1.0), "coefficients", TypeError),
        (lambda: fm.Functional(one, -1.0, 1.0), "laplace_scale", ValueError),
        (lambda: fm.taylor_error(1.0, order=3), "order", ValueError),
        (lambda: fm.classification_taylor(1.0, 1.0, form="print"), "form", ValueError),
        (lambda: fm.regression_parts(np.ones(5)), "coefficients", ValueError),
        (lambda: fm.minimise_on_grid(np.ones(20), points=101), "points", ValueError),
        (lambda: fm.quadratic_sensitivity(num_inputs=0), "num_inputs", ValueError),
    ],
)
def test_errors_name_the_argument(call, word, error):
    with pytest.raises(error, match=word):
        call()
