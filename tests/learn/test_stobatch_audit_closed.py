"""The last layer in closed form: what one label query gives away."""

import numpy as np
import pytest

from privrob.learn import stobatch_audit_closed as closed


@pytest.mark.paper("stobatch", "Algorithm 1")
def test_one_chi_3_for_all_classes_leaves_nothing_random():
    """By hand: least squares of the labels on the pixel; 3/8 of the way from the mean 0 (1/3) at −1 to 1 at 1."""
    model = closed.LastLayer()
    assert model.answers(True, num_trials=3000, rng=np.random.default_rng(1)) == 0
    assert model.answers(False, num_trials=3000, rng=np.random.default_rng(1)) == 3000
    assert 0.375 < 0.5 < 1 / 3 + 0.375 * 2 / 3


def test_a_chi_3_for_each_class_hides_the_record():
    model = closed.LastLayer(draw="per_class")
    shares = [model.answers(p, num_trials=4000, rng=np.random.default_rng(2)) / 4000 for p in (True, False)]
    assert all(abs(share - 0.5) < 0.05 for share in shares)  # 6 standard errors of 0.008


def test_weights_are_where_the_noisy_taylor_loss_is_least():
    """The gradient of Σ_i Σ_k (z/2 − yz + z²/8) − Σ_k χᵀW_k vanishes, with the χ that the same stream draws."""
    model = closed.LastLayer(draw="per_class")
    hidden = np.random.default_rng(3).uniform(-1, 1, size=(1, 4, 2))
    weights = model.weights(hidden, rng=np.random.default_rng(4))[0]
    chi = np.random.default_rng(4).laplace(scale=4 / model.budget.epsilon_labels, size=(1, 2, 2))[0]
    scores = hidden[0] @ weights
    gradient = hidden[0].T @ (0.5 - np.eye(2)[list(closed.LABELS)] + scores / 4) - chi
    assert np.abs(gradient).max() < 1e-10


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="draw"):
        closed.LastLayer(draw="none")
    with pytest.raises(ValueError, match="num_trials"):
        closed.LastLayer().answers(True, num_trials=0, rng=np.random.default_rng(0))
