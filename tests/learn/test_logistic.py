"""Noisy gradient descent on logistic regression: the conditions of hidden-state bounds hold for these losses."""

import itertools
import math

import pytest
import torch
from torch.nn import functional

from privrob.kinds import Streams
from privrob.learn import logistic
from privrob.learn.logistic import CURVATURE, LIPSCHITZ, LogisticSettings, features, mean_gradient, train, train_cell

HIDDEN = ("dplearn", "Advanced Topic: can we prove privacy bound for DP-SGD that is smaller than moment accountant?")


def data(n=50, d=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = features(torch.randn(n, 1, 1, d, generator=generator, dtype=torch.float64))
    return inputs, torch.randint(classes, (n,), generator=generator)


def settings(**changes):
    base = {"strong_convexity": 0.05, "step_size": 1.0, "noise_std": 0.0, "num_steps": 40, "evaluate_every": 10}
    return LogisticSettings(**{**base, **changes})


def run(chosen, tensors=None, seed=0):
    inputs, labels = tensors or data()
    return list(train(chosen, inputs, labels, inputs, labels, num_classes=3, streams=Streams(seed, "test")))


def test_features_have_norm_at_most_one_and_come_from_their_record_alone():
    images = (
        torch.randn(20, 1, 4, 4, generator=torch.Generator().manual_seed(1))
        * torch.logspace(-3, 2, 20)[:, None, None, None]
    )
    whole = features(images)
    assert whole.norm(dim=1).max() <= 1 + 1e-6
    torch.testing.assert_close(whole[3:4], features(images[3:4]))


def test_the_gradient_is_autograds():
    inputs, labels = data()
    weights = torch.randn(inputs.shape[1], 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weights.requires_grad_()
    functional.cross_entropy(inputs @ weights, labels).backward()
    torch.testing.assert_close(mean_gradient(weights.detach(), inputs, labels), weights.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.paper(*HIDDEN)
def test_every_records_gradient_and_curvature_are_within_the_bounds_and_come_near_them():
    generator = torch.Generator().manual_seed(3)
    norms, curvatures = [], []
    for scale in (0.0, 1.0, 10.0, 100.0):
        for _ in range(50):
            x = features(torch.randn(1, 1, 1, 4, generator=generator, dtype=torch.float64) * 10)
            label = torch.randint(3, (1,), generator=generator)
            weights = scale * torch.randn(5, 3, generator=generator, dtype=torch.float64)
            norms.append(mean_gradient(weights, x, label).norm().item())

            def loss(flat, x=x, label=label):
                return functional.cross_entropy(x @ flat.view(5, 3), label)

            hessian = torch.autograd.functional.hessian(loss, weights.flatten())
            curvatures.append(torch.linalg.eigvalsh(hessian).max().item())
    assert max(norms) <= LIPSCHITZ * (1 + 1e-12)
    assert max(norms) > 0.99 * LIPSCHITZ
    assert 0.7 * CURVATURE < max(curvatures) <= CURVATURE * (1 + 1e-9)


def test_without_noise_it_finds_the_minimum():
    inputs, labels = data()
    rows = run(settings(num_steps=400), (inputs, labels))
    losses = [r["train_loss"] for r in rows]
    assert all(after <= before + 1e-14 for before, after in itertools.pairwise(losses))  # rounding at the minimum
    weights = torch.zeros(inputs.shape[1], 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16)

    def closure():
        optimiser.zero_grad()
        loss = functional.cross_entropy(inputs @ weights, labels) + 0.025 * weights.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert losses[-1] == pytest.approx(closure().item(), rel=1e-6)  # 400 steps of contraction 0.95


def test_noise_comes_from_its_stream_and_the_ball_holds():
    assert run(settings(noise_std=0.3)) == run(settings(noise_std=0.3))
    assert run(settings(noise_std=0.3)) != run(settings(noise_std=0.3), seed=1)
    assert max(r["weight_norm"] for r in run(settings(noise_std=3.0, diameter=0.5))) <= 0.25 * (1 + 1e-12)


def test_the_accountant_sees_the_run_that_is_trained():
    seen = settings(noise_std=0.1, diameter=3.0).descent(1000, neighbouring="add_remove")
    assert (seen.smoothness, seen.strong_convexity, seen.diameter, seen.step_size) == (CURVATURE + 0.05, 0.05, 3.0, 1.0)
    assert seen.l2_sensitivity == pytest.approx(math.sqrt(2) / 1000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step_size": 3.7}, "step_size must lie in .*2 / smoothness"),
        ({"strong_convexity": -0.1}, "strong_convexity must lie"),
        ({"diameter": 0.0}, "diameter must lie"),
        ({"num_steps": -1}, "num_steps must be an integer"),
        ({"noise_std": math.nan}, "noise_std must lie"),
    ],
)
def test_what_breaks_a_condition_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        settings(**change)


def test_long_inputs_are_refused():
    with pytest.raises(ValueError, match="norms of at most 1"):
        run(settings(), (data()[0] * 3, data()[1]))


def test_a_cell_says_what_it_trained_on():
    cell = {"dataset": "synthetic", "num_records": 40, "num_test": 10, "shape": [1, 4, 4], "strong_convexity": 0.1}
    cell |= {"step_size": 1.0, "noise_std": 0.01, "num_steps": 6, "evaluate_every": 3, "seed": 0}
    rows = train_cell(cell, streams=Streams(0, "cell"))
    assert [r["step"] for r in rows] == [0, 3, 6]
    assert rows[-1]["num_records"] == 40
    assert set(train_cell.data(cell)) == {"synthetic"}
    with pytest.raises(ValueError, match="settings must be one of"):
        train_cell({**cell, "momentum": 0.9}, streams=Streams(0))
    assert logistic.train_cell is train_cell


def test_noise_that_overflows_ends_the_training_in_words():
    with pytest.raises(
        FloatingPointError, match=r"by step 10 with step_size=1\.0, noise_std=1e\+308; pass a smaller noise_std"
    ):
        run(settings(noise_std=1e308))
