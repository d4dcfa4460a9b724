"""The small cases: what must be recognised is, what must not isn't; joint probabilities in closed form."""

import math

import numpy as np
import pytest

from privrob.accounting import functional_budget as fb
from privrob.mechanisms import functional_cases as fc
from privrob.mechanisms import functional_gradients as fg


@pytest.mark.paper("stobatch", "Theorem 1")
@pytest.mark.paper("stobatch", "Theorem 2")
@pytest.mark.paper("stobatch", "Theorem 4")
@pytest.mark.parametrize("name", list(fc.CASES))
def test_shared_noise_is_recognised_and_never_by_mistake(name):
    counts = fc.recognition(name, num_trials=25, shared=True, rng=np.random.default_rng(1))
    assert counts["mistaken"] == 0
    assert counts["recognised"] >= (25 if name == "theorem_1" else 10)


@pytest.mark.parametrize("name", list(fc.CASES))
def test_noise_of_their_own_hides_records(name):
    counts = fc.recognition(name, num_trials=10, shared=False, rng=np.random.default_rng(2))
    assert counts == {"recognised": 0, "mistaken": 0}


@pytest.mark.paper("stobatch", "Theorem 3")
def test_labels_are_read_below_the_last_layer():
    counts = fc.label_recognition(num_trials=20, rng=np.random.default_rng(3))
    assert counts == {"at_zero": 20, "recognised": 20, "mistaken": 0}


def test_the_cases_are_free_of_rounding():
    rng = np.random.default_rng(4)
    step, here, there = fc.neighbours("theorem_1", shared=True, rng=rng)
    assert (there[0] != here[0]).any(axis=1).tolist() == [True, False, False, False]
    inputs, noise = (fc.dyadic(part, 256) for part in step.perturbed(here[0], rng=rng))
    assert (inputs * 256 % 1 == 0).all()
    for product in (fg.reconstruction_gradient(inputs, step.hidden(inputs, noise)), step.without_noise(here[0])):
        assert (product * 2**24 % 1 == 0).all()  # 24 bits behind the point: float64 has room for 53
        assert np.abs(product).max() < 2**20


@pytest.mark.paper("stobatch", "Equation 24")
def test_joint_probabilities_factorise_only_for_noise_of_their_own():
    scale, span = 1.3, np.arange(-60, 61)
    marginal = [np.exp(fc.log_mass(span - x, scale=scale)) for x in (1, 0)]
    assert marginal[0].sum() == pytest.approx(1, rel=1e-12)
    for shared in (True, False):
        joint = np.exp(fc.two_outputs(1, 0, shared=shared, scale=scale))
        assert joint.sum() == pytest.approx(1, rel=1e-12)
        assert joint.sum(axis=1)[1:-1] == pytest.approx(marginal[0][1:-1], rel=1e-12)
        assert np.allclose(joint, np.outer(*marginal), atol=1e-15) is not shared


@pytest.mark.paper("stobatch", "Definition 1")
def test_the_largest_loss_bounds_every_set_of_outcomes_and_no_less_will_do():
    here, there = (fc.two_outputs(x, 0, shared=False, scale=1.5, reach=3) for x in (1, -1))
    epsilon, rng = fc.largest_loss(here, there), np.random.default_rng(6)
    p, q = np.exp(here).ravel(), np.exp(there).ravel()
    for chosen in rng.random((500, p.size)) < 0.3:
        assert p[chosen].sum() <= math.exp(epsilon) * q[chosen].sum() * (1 + 1e-12)
    best = np.argmax(p / q)
    assert p[best] > math.exp(epsilon - 1e-9) * q[best]


def test_losses_of_records_on_a_lattice():
    scale = 2.0
    pair = {s: [fc.two_outputs(x, 0, shared=s, scale=scale) for x in (1, -1)] for s in (True, False)}
    assert fc.largest_loss(*pair[False]) == pytest.approx(2 / scale)
    assert math.isinf(fc.largest_loss(*pair[True]))
    sums = [fc.overlapping_sums(x, scale=scale) for x in (1, -1)]
    assert 0.99 * 2 / scale < fc.largest_loss(*sums) <= 2 / scale
    assert np.exp(sums[0]).sum() == pytest.approx(1, abs=1e-4)  # what lies beyond the window


def test_initial_kernels_have_the_released_spectral_norm():
    for name, setting in fb.CONFIGURATIONS.items():
        weights = fb.initial_kernels(name, rng=np.random.default_rng(5))
        assert weights.shape[1] == setting.channels
        assert weights[0, 0].size == setting.kernel_area
        found = np.linalg.norm(weights.reshape(len(weights), -1), 2)
        assert found == pytest.approx(setting.released_norm, rel=0.1)  # one draw against another
        assert fb.convolution_norm(weights, stride=2) > 20 * found


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: fc.neighbours("theorem_5", shared=True, rng=None), "name"),
        (lambda: fc.recognition("theorem_1", num_trials=0, shared=True, rng=None), "num_trials"),
        (lambda: fc.log_mass(1, scale=0.0), "scale"),
    ],
)
def test_errors_name_the_argument(call, word):
    with pytest.raises(ValueError, match=word):
        call()
