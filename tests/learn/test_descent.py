"""What is done with a noisy gradient, against torch's own optimizers in float64."""

import math

import pytest
import torch

from privrob.learn.descent import OPTIMIZERS, Descent, check_finite, said_if_diverged, step_size
from privrob.learn.dpsgd import DPSGDSettings

ADVANCED = ("dplearn", "Advanced topic: how to improve the trade-off")


@pytest.mark.paper(*ADVANCED)
@pytest.mark.parametrize(
    ("optimizer", "momentum", "theirs"),
    [
        ("sgd", 0.0, lambda p: torch.optim.SGD(p, lr=1.0)),
        ("sgd", 0.9, lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)),
        ("adam", 0.0, lambda p: torch.optim.Adam(p, lr=1.0, eps=1e-8)),
        ("adagrad", 0.0, lambda p: torch.optim.Adagrad(p, lr=1.0, eps=1e-8)),
    ],
)
def test_each_optimizer_is_torchs_own(optimizer, momentum, theirs):
    def start():
        return [torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3), torch.ones(2, dtype=torch.float64)]

    ours, other = start(), [p.requires_grad_() for p in start()]
    descent, optim = Descent(ours, optimizer=optimizer, momentum=momentum), theirs(other)
    generator = torch.Generator().manual_seed(0)
    for t in range(25):
        gradients = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in ours]
        size = 0.1 / (1 + t)
        descent.step([g.clone() for g in gradients], size)
        for group in optim.param_groups:
            group["lr"] = size
        for p, g in zip(other, gradients, strict=True):
            p.grad = g
        optim.step()
        for a, b in zip(ours, other, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_are_left_as_they_were(optimizer):
    gradient = [torch.tensor([1.0, -2.0])]
    Descent([torch.zeros(2)], optimizer=optimizer, momentum=0.9 if optimizer == "sgd" else 0.0).step(gradient, 0.1)
    assert gradient[0].tolist() == [1.0, -2.0]


def test_step_sizes_go_from_the_first_to_the_final_one_and_stay():
    linear = [step_size(t, learning_rate=1.0, final_learning_rate=0.2, decay_steps=4) for t in range(7)]
    assert linear == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    cosine = step_size(1, learning_rate=1.0, final_learning_rate=0.0, decay_steps=4, schedule="cosine")
    assert cosine == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert step_size(10**6, learning_rate=0.3, decay_steps=4) == 0.3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "rmsprop"}, "optimizer"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum must be 0 for optimizer 'adam'"),
        ({"schedule": "step"}, "schedule"),
        ({"final_learning_rate": -1.0}, "final_learning_rate"),
        ({"decay_steps": 0}, "decay_steps"),
        ({"noise_stages": ()}, "noise_stages must be a list of at least one factor"),
        ({"noise_stages": (1.0, 0.0)}, "noise_stages"),
        ({"release": "untrimmed"}, "release"),
    ],
)
def test_bad_settings_are_refused_by_name(change, message):
    base = {"model": "logistic", "sample_rate": 0.1, "num_steps": 5, "learning_rate": 0.1}
    with pytest.raises(ValueError, match=message):
        DPSGDSettings(**{**base, "max_grad_norm": 1.0, "noise_multiplier": 1.0, **change})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_parameter_that_is_not_finite_is_named_with_the_way_out(bad):
    parameters = [torch.ones(2, 3), torch.ones(3)]
    check_finite(parameters, step=7, about={"learning_rate": 2.5})
    parameters[1][2] = bad
    with pytest.raises(
        FloatingPointError, match=r"by step 7 with learning_rate=2\.5, .*=1\.0; pass a smaller learning_rate"
    ):
        check_finite(parameters, step=7, about={"learning_rate": 2.5, "max_grad_norm": 1.0})


@pytest.mark.parametrize(
    ("value", "kind"), [(1.0, ValueError), (1e30, FloatingPointError), (math.nan, FloatingPointError)]
)
def test_an_error_of_a_step_is_explained_by_divergence_only_where_there_is_one(value, kind):
    with pytest.raises(kind), said_if_diverged([torch.full((2,), value)], step=3, about={"learning_rate": 0.1}):
        raise ValueError("model must return finite logits")
