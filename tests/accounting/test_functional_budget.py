"""StoBatch's claimed budget and what its noise is worth, against the document's numbers and brute force."""

import math

import numpy as np
import pytest

from privrob.accounting import functional_budget as fb


@pytest.mark.paper("stobatch", "Appendix P")
@pytest.mark.parametrize(
    ("dataset", "reconstruction", "batch_size"),
    [
        ("mnist", (14**2 + 2) * 25, 2499),
        ("cifar10", 3 * (14**2 + 2) * 16, 1851),
        ("tiny_imagenet", 3 * 1026 * 49, 4500),
    ],
)
def test_sensitivities_are_those_of_appendix_p(dataset, reconstruction, batch_size):
    budget = fb.split(dataset, 5.0)
    assert budget.reconstruction_sensitivity == reconstruction
    assert budget.label_sensitivity == 2 * 256
    assert budget.batch_size == batch_size
    assert budget.gamma_inputs == reconstruction / batch_size


@pytest.mark.paper("stobatch", "Appendix P")
@pytest.mark.parametrize("dataset", list(fb.CONFIGURATIONS))
@pytest.mark.parametrize("theta_norm", [0.2, 1.0, 13.0])
def test_the_split_adds_up_to_the_claim(dataset, theta_norm):
    for epsilon in (2.0, 2.5, 10.0):
        budget = fb.split(dataset, epsilon, theta_norm=theta_norm)
        assert budget.claimed_epsilon(theta_norm) == pytest.approx(epsilon, rel=1e-14)  # a handful of float64 steps


def test_cifar_gives_a_third_of_the_ratio_to_the_labels():
    assert fb.split("cifar10", 2.0).epsilon_labels == 1.0
    assert fb.split("cifar10", 5.0).epsilon_labels == pytest.approx(2.0, rel=1e-15)
    assert fb.split("mnist", 2.0).epsilon_labels == 0.1
    assert fb.split("tiny_imagenet", 5.0).epsilon_labels == 1.0


@pytest.mark.parametrize(
    ("dataset", "epsilon", "features", "scale", "inputs", "honest"),
    [
        ("mnist", 0.2, 0.0614, 32.26, 0.0310, 48.6),
        ("cifar10", 2.0, 0.801, 6.408, 0.156, 734),
        ("tiny_imagenet", 5.0, 3.857, 8.690, 0.115, 2828),
    ],
)
def test_released_settings_give_the_known_scales(dataset, epsilon, features, scale, inputs, honest):
    budget = fb.split(dataset, epsilon)
    assert budget.epsilon_features == pytest.approx(features, rel=2e-3)  # known to three digits
    assert budget.input_scale == pytest.approx(scale, rel=2e-3)
    assert budget.claimed_epsilon_inputs == pytest.approx(inputs, rel=5e-3)
    assert budget.honest_epsilon_independent == pytest.approx(honest, rel=2e-3)


@pytest.mark.paper("stobatch", "Lemma 3")
def test_honest_epsilon_is_the_ratio_of_densities_of_the_worst_pair():
    budget = fb.Budget(
        in_shape=(1, 2, 3), epsilon_features=0.7, epsilon_labels=1.0, batch_size=5, kernel_area=2, map_neurons=4
    )
    low, high, scale = -np.ones(6), np.ones(6), budget.input_scale
    seen = high + 3.0
    loss = np.abs(seen - low).sum() / scale - np.abs(seen - high).sum() / scale
    assert budget.honest_epsilon_independent == pytest.approx(loss, rel=1e-14)
    assert budget.honest_epsilon_independent == pytest.approx(2 * 6 * budget.claimed_epsilon_inputs, rel=1e-14)
    total = np.abs(seen - low).sum() / (5 * scale) - np.abs(seen - high).sum() / (5 * scale)  # the sum's noise is m b
    assert budget.honest_epsilon_sum == pytest.approx(total, rel=1e-14)
    assert math.isinf(budget.honest_epsilon_shared)


def test_scales_are_in_the_printed_proportions():
    budget = fb.split("mnist", 1.0)
    assert budget.hidden_scale == 2 * budget.input_scale
    assert budget.input_scale == pytest.approx(4950 / (2499 * budget.epsilon_features), rel=1e-15)
    assert budget.label_scale == pytest.approx(512 / (2499 * 0.1), rel=1e-15)


@pytest.mark.paper("stobatch", "Lemma 3")
def test_the_norm_is_the_largest_l1_answer_to_a_unit_input():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(3, 7))
    want = max(np.abs(theta.T @ unit).sum() for unit in np.eye(3))
    assert fb.affine_norm(theta) == pytest.approx(want, rel=1e-15)
    assert fb.affine_norm(theta) != pytest.approx(np.abs(theta).sum(axis=0).max())  # the columns of θ₁, as printed


@pytest.mark.parametrize(("stride", "size"), [(1, 3), (2, 5), (3, 4), (4, 3)])
def test_the_norm_of_a_convolution_is_that_of_its_matrix(stride, size):
    rng = np.random.default_rng(stride)
    weights = rng.normal(size=(2, 3, size, size))
    side, outputs = 17, []
    for top in range(0, side - size + 1, stride):
        for left in range(0, side - size + 1, stride):
            for maps in weights:
                row = np.zeros((3, side, side))
                row[:, top : top + size, left : left + size] = maps
                outputs.append(row.ravel())
    assert fb.convolution_norm(weights, stride=stride) == pytest.approx(fb.affine_norm(np.array(outputs).T), rel=1e-13)


def test_gamma_without_weights_is_infinite():
    budget = fb.split("mnist", 1.0)
    assert math.isinf(budget.gamma(0.0))
    assert budget.claimed_epsilon(0.0) < budget.claimed_epsilon(1.0)


def test_changes_replace_fields():
    assert fb.split("mnist", 1.0, batch_size=250).batch_size == 250


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: fb.split("mnits", 1.0), "mnist"),
        (lambda: fb.split("cifar10", 1.9), "epsilon"),
        (lambda: fb.split("mnist", 0.1), "epsilon"),
        (lambda: fb.split("mnist", 1.0, batch_size=0), "batch_size"),
        (lambda: fb.split("mnist", 1.0, theta_norm=-1.0), "theta_norm"),
        (lambda: fb.split("mnist", math.inf), "epsilon"),
        (lambda: fb.Budget((), 1.0, 1.0, 1, 1, 1), "in_shape"),
        (lambda: fb.convolution_norm(np.ones((2, 2))), "weights"),
    ],
)
def test_errors_name_the_argument(call, word):
    with pytest.raises(ValueError, match=word):
        call()
