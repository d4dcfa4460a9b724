"""Gradients on records that share their noise: gradients against differences, what is left against exact ranks."""

import itertools

import numpy as np
import pytest
from scipy import optimize

from privrob.mechanisms import functional as fm
from privrob.mechanisms import functional_gradients as fg

LABELS = np.eye(2)


def toy(seed, *, shared=True, grid=None):
    rng = np.random.default_rng(seed)
    made = [rng.normal(0, 0.3, (5, 4)), rng.normal(size=(3, 4)), rng.normal(size=(3, 2)), rng.uniform(-1, 1, (4, 5))]
    if grid:
        made = [np.round(part * grid) / grid for part in made]
    theta, weights, output, images = made
    return fg.FirstStep(theta, weights, output, 3.0, shared), images, rng


@pytest.mark.paper("stobatch", "Equation 19")
@pytest.mark.paper("stobatch", "Equation 6")
def test_equation_19_is_the_gradient_only_if_hidden_units_are_held_fixed():
    step, images, rng = toy(0)
    inputs, noise = step.perturbed(images, rng=rng)

    def objective(flat, hidden=None):
        theta = flat.reshape(step.theta.shape)
        if hidden is None:
            return fg.reconstruction_objective(inputs, noise, theta)
        return float((((0.5 - inputs) @ theta) * hidden).sum())

    hidden = step.hidden(inputs, noise)
    printed, full = step.reconstruction(inputs, noise), fg.tied_gradient(inputs, hidden, step.theta)
    flat, how = step.theta.ravel(), {"method": "3-point"}
    fixed = optimize.approx_fprime(flat, lambda t: objective(t, hidden), 1e-6)
    assert printed.ravel() == pytest.approx(fixed, rel=1e-6, abs=1e-5)
    moving = optimize._numdiff.approx_derivative(objective, flat, **how)
    assert full.ravel() == pytest.approx(moving, rel=1e-5, abs=1e-5)
    assert np.abs(printed - full).max() > 1


@pytest.mark.paper("stobatch", "Equation 20")
@pytest.mark.paper("stobatch", "Equation 21")
def test_equation_21_takes_the_gradient_apart():
    step, images, rng = toy(7)
    inputs, noise = step.perturbed(images, rng=rng)
    clean = fg.reconstruction_gradient(inputs, step.hidden(inputs, 0.0))
    chi, total = len(inputs) * noise[0] / 2, inputs.sum(axis=0)  # χ₂
    parts = clean + chi - 2 * np.outer(total, chi) / len(inputs)
    assert parts == pytest.approx(step.reconstruction(inputs, noise), rel=1e-12)


@pytest.mark.paper("stobatch", "Equation 22")
def test_three_beta_is_for_clean_values_only():
    def term(record):  # of one input j: h(1/2 − x_j), two neurons
        return fg.reconstruction_gradient(record[None, :1], record[None, 1:])

    clean = [np.array(p) for p in itertools.product((-1.0, 1.0), repeat=3)]
    assert fm.widest_change(term, clean) == 3 * 2
    assert fm.widest_change(term, [np.add(p, (5.0, 0.0, 0.0)) for p in clean]) > 3 * 2


@pytest.mark.paper("stobatch", "Equation 31")
def test_equation_31_parts_the_signs_from_the_records():
    step, images, rng = toy(8)
    inputs, noise = step.perturbed(images, rng=rng)
    attacked, _ = step.fgsm(inputs, noise, radius=0.4)
    shown = step.hidden(attacked, noise) @ step.theta.T
    whole = fg.reconstruction_objective(attacked, noise, step.theta)
    assert whole == pytest.approx(((0.5 - inputs) * shown).sum() - ((attacked - inputs) * shown).sum(), rel=1e-10)


@pytest.mark.paper("stobatch", "Theorem 3")
def test_the_label_gradient_is_that_of_the_truncated_loss():
    step, images, _ = toy(1)
    hidden, labels = images @ step.theta, LABELS[[0, 1, 1, 0]]

    def loss(flat):
        scores = hidden @ flat.reshape(step.weights.shape).T @ step.output
        return float(fm.classification_taylor(scores, labels).sum() / len(labels))

    want = optimize._numdiff.approx_derivative(loss, step.weights.ravel(), method="3-point")
    found = fg.label_gradient(hidden, labels, step.weights, step.output)
    assert found.ravel() == pytest.approx(want, rel=1e-6, abs=1e-8)


@pytest.mark.paper("stobatch", "Theorem 1")
def test_shared_noise_leaves_a_matrix_of_rank_one_exactly():
    # dyadic numbers: float64 computes these sums and products without rounding, and the ranks are exact
    for seed in range(20):
        step, images, rng = toy(seed, grid=16)
        inputs, noise = (np.round(part * 256) / 256 for part in step.perturbed(images, rng=rng))
        other = images.copy()
        other[-1] = np.round(rng.uniform(-1, 1, 5) * 16) / 16
        gradient = step.reconstruction(inputs, noise)
        assert fg.exact_rank(gradient - step.without_noise(images)) == 1
        assert fg.exact_rank(gradient - step.without_noise(other)) == 3


def test_independent_noise_hides_the_rank():
    step, images, rng = toy(3, shared=False)
    inputs, noise = step.perturbed(images, rng=rng)
    assert fg.beyond_rank(step.reconstruction(inputs, noise) - step.without_noise(images), 1) > 1e-3


@pytest.mark.paper("stobatch", "Theorem 2")
def test_adversarial_examples_with_one_prediction_leave_it_as_it_is():
    step, images, rng = toy(4)
    while True:
        inputs, noise = step.perturbed(images, rng=rng)
        attacked, predicted = step.fgsm(inputs, noise, radius=0.37)
        if len(set(predicted)) == 1:
            break
    assert np.abs(attacked - inputs) == pytest.approx(0.37)
    assert fg.beyond_rank(step.reconstruction(attacked, noise) - step.without_noise(images), 1) < 1e-12


@pytest.mark.paper("stobatch", "Equation 7")
def test_fgsm_moves_against_the_prediction():
    step, images, rng = toy(5)
    inputs, noise = step.perturbed(images, rng=rng)
    attacked, predicted = step.fgsm(inputs, noise, radius=0.01)
    margins = [
        step.hidden(part, noise) @ step.weights.T @ (step.output[:, 1] - step.output[:, 0])
        for part in (inputs, attacked)
    ]
    assert (np.sign(margins[0]) == 2 * predicted - 1).all()
    assert ((margins[1] - margins[0]) * (2 * predicted - 1) < 0).all()


@pytest.mark.paper("stobatch", "Theorem 3")
def test_the_label_gradient_tells_the_labels_for_any_shared_noise():
    step, images, rng = toy(6)
    labels = np.array([0, 1, 1, 0])
    inputs, noise = step.perturbed(images, rng=rng)
    hidden = step.hidden(inputs, noise)
    gradient = fg.label_gradient(hidden, LABELS[labels], step.weights, step.output)

    def rest(guess):
        clean = images @ step.theta
        slopes = 0.5 - LABELS[guess] + clean @ step.weights.T @ step.output / 4
        return gradient - fg.centred(slopes @ step.output.T, clean) / len(labels)

    assert fg.beyond_rank(rest(labels), 1) < 1e-12
    assert fg.beyond_rank(rest(np.array([0, 1, 1, 1])), 1) > 1e-4


def test_exact_rank_counts():
    assert fg.exact_rank(np.zeros((3, 3))) == 0
    assert fg.exact_rank(np.outer([1.0, 2.0, 3.0], [0.1, 0.7, 0.3]) * 0 + np.diag([0.0, 1e-300, 2.0])) == 2
    assert fg.exact_rank([[1.0, 2.0], [2.0, 4.0]]) == 1


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="inputs"):
        fg.reconstruction_gradient(np.ones(3), np.ones((3, 2)))
    with pytest.raises(ValueError, match="rank"):
        fg.beyond_rank(np.ones((2, 2)), 2)
