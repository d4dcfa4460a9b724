"""Attacks: in the ball and in the range to the last bit, equal to a second library's, and without side effects."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privrob.kinds import Streams
from privrob.robust import adversarial

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "adversarial.json").read_text(encoding="utf-8"))
KINDS = adversarial.KINDS


def generator(name="start"):
    return Streams(3, "adversarial").torch(name)


def images_of(n=6, shape=(1, 3, 4), dtype=torch.float32, name="images"):
    return (2 * torch.rand((n, *shape), generator=generator(name), dtype=torch.float64) - 1).to(dtype)


def network(dtype=torch.float32, inputs=12, classes=3):
    layers = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(inputs, 9), torch.nn.Tanh(), torch.nn.Linear(9, classes)
    )
    for parameter in layers.parameters():
        values = torch.randn(parameter.shape, generator=generator(str(tuple(parameter.shape))), dtype=torch.float64)
        parameter.data = values.to(dtype)
    return layers.to(dtype)


def attack(model, images, labels=None, **changes):
    how = {"kind": "ifgsm", "radius": 0.3, "num_steps": 5, "generator": generator()} | changes
    return adversarial.attack(model, images, labels, **how)


def losses(model, images, labels):
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(images), labels, reduction="none")


# --------------------------------------------------------------------------------------------------- against foolbox


def of_reference(x):
    w = {name: torch.tensor(value, dtype=torch.float64) for name, value in REFERENCE["network"].items()}
    return torch.tanh(x.flatten(1) @ w["first"].T + w["first_bias"]) @ w["second"].T + w["second_bias"]


@pytest.mark.paper("stobatch", "Equation 7")
@pytest.mark.parametrize("kind", ["fgsm", "ifgsm", "pgd"])
def test_equal_to_foolbox_on_its_own_range(kind):
    tensors = {k: torch.tensor(REFERENCE[k], dtype=torch.float64) for k in ("images", "starts")}
    start = {"start": tensors["starts"]} if kind == "pgd" else {}
    how = {"kind": kind, "radius": REFERENCE["radius"], "num_steps": REFERENCE["num_steps"], **start}
    found = adversarial.attack(of_reference, tensors["images"], torch.tensor(REFERENCE["labels"]), **how)
    np.testing.assert_allclose(found.numpy(), REFERENCE["values"][kind], rtol=0, atol=1e-12)  # rounding of sums only


def test_foolbox_s_momentum_is_another_attack():
    """It adds up bare gradients; normalised ones give other images, on a loss that is at least as high here."""
    x, labels = torch.tensor(REFERENCE["images"], dtype=torch.float64), torch.tensor(REFERENCE["labels"])
    found = attack(of_reference, x, labels, kind="mim", num_steps=REFERENCE["num_steps"])
    bare = torch.tensor(REFERENCE["values"]["momentum_of_bare_gradients"], dtype=torch.float64)
    assert (found - bare).abs().max() > 0.01


# --------------------------------------------------------------------------------------------------------- properties


@pytest.mark.paper("stobatch", "Section 2, adversarial learning (l∞ ball)")
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    radius=st.floats(0, 3),
    ends=st.sampled_from([(-1.0, 1.0), (0.0, 1.0), (-0.1, 0.7), (0.0, 255.0), (-math.inf, math.inf)]),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    steps=st.integers(1, 4),
)
def test_images_stay_in_ball_and_range_to_the_last_bit(radius, ends, kind, dtype, steps):
    low, high = ends
    x = images_of(4, dtype=torch.float64)
    x = x if math.isinf(low) else low + (x + 1) / 2 * (high - low)
    x = x.to(dtype).clamp(min=low, max=high)
    model = network(dtype)
    found = attack(model, x, radius=radius, kind=kind, num_steps=steps, low=low, high=high)
    assert found.dtype == dtype
    assert found.shape == x.shape
    assert ((found.double() - x.double()).abs() <= radius).all()
    assert (found >= torch.tensor(low, dtype=dtype)).all()
    assert (found <= torch.tensor(high, dtype=dtype)).all()
    if radius == 0:
        assert torch.equal(found, x)


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_has_its_own_radius(kind):
    x = images_of()
    radius = torch.tensor([0.0, 0.01, 0.05, 0.1, 0.2, 0.4])
    moved = (attack(network(), x, kind=kind, radius=radius, num_steps=20) - x).abs().flatten(1).amax(1)
    assert moved[0] == 0
    assert (moved <= radius).all()
    assert (moved[1:] > 0.5 * radius[1:]).all()


@pytest.mark.paper("stobatch", "Equation 8")
def test_one_step_of_the_iterative_attack_is_the_single_step():
    x = images_of()
    one = attack(network(), x, kind="fgsm", num_steps=9)
    assert torch.equal(one, attack(network(), x, kind="ifgsm", num_steps=1))
    assert torch.equal(one, attack(network(), x, kind="mim", num_steps=1))
    assert not torch.equal(one, attack(network(), x, kind="ifgsm", num_steps=9))


@pytest.mark.paper("stobatch", "Section 4, attacks (MIM)")
def test_without_decay_momentum_is_the_iterative_attack():
    x, model = images_of(), network(torch.float32)
    plain, free, mim = (attack(model, x, **how) for how in ({}, {"kind": "mim", "decay": 0.0}, {"kind": "mim"}))
    assert torch.equal(plain, free)
    assert not torch.equal(plain, mim)


class Steps(torch.autograd.Function):
    """Logits with gradients given in advance: the attack's own rule is all that is left."""

    @staticmethod
    def forward(ctx, x, gradients):
        ctx.gradients = gradients
        return torch.zeros(len(x), 2, dtype=x.dtype)

    @staticmethod
    def backward(ctx, _):
        return ctx.gradients, None


def scripted(gradients):
    """A model whose gradients are those of the list, one a call."""
    left = iter(gradients)
    return lambda x: Steps.apply(x, torch.as_tensor(next(left), dtype=x.dtype).reshape(x.shape))


@pytest.mark.paper("stobatch", "Section 4, attacks (MIM)")
def test_momentum_by_hand():
    """Gradients (4, 2), (-1, 3), (-9, -1) over their means 3, 2, 5: sums (4/3, 2/3), (5/6, 13/6), (-29/30, 59/30)."""
    x = torch.zeros(1, 2, dtype=torch.float64)
    model = scripted([(4, 2), (-1, 3), (-9, -1)])
    found = attack(model, x, torch.tensor([0]), kind="mim", radius=0.3, num_steps=3)
    np.testing.assert_allclose(found.numpy(), [[0.1, 0.3]], atol=1e-15)  # + + -, and + + +
    bare = attack(scripted([(4, 2), (-1, 3), (-9, -1)]), x, torch.tensor([0]), num_steps=3)
    np.testing.assert_allclose(bare.numpy(), [[-0.1, 0.1]], atol=1e-15)


def test_decay_by_hand():
    """With decay 1/10 the second sum is (0.4/3 - 1/2, 0.2/3 + 3/2), the third (-1.84, -0.04)."""
    model = scripted([(4, 2), (-1, 3), (-9, -1)])
    x = torch.zeros(1, 2, dtype=torch.float64)
    found = attack(model, x, torch.tensor([0]), kind="mim", radius=0.3, num_steps=3, decay=0.1)
    np.testing.assert_allclose(found.numpy(), [[-0.1, 0.1]], atol=1e-15)  # + - -, and + + -


@pytest.mark.parametrize("kind", KINDS)
def test_one_zero_gradient_neither_gives_nan_nor_freezes_an_example(kind):
    gradients = [[(0, 0), (1, 1)], [(1, -1), (1, 1)], [(1, -1), (0, 0)], [(1, -1), (1, 1)]]
    x = torch.zeros(2, 2, dtype=torch.float64)
    found = attack(scripted(gradients), x, torch.tensor([0, 0]), kind=kind, radius=0.4, num_steps=4, start=x)
    assert torch.isfinite(found).all()
    if kind != "fgsm":
        np.testing.assert_allclose(found[0].numpy(), [0.3, -0.3], atol=1e-15)
        np.testing.assert_allclose(found[1].numpy(), [0.4, 0.4] if kind == "mim" else [0.3, 0.3], atol=1e-15)


@pytest.mark.parametrize(("size", "share"), [(1e-44, 0.001), (1e38, 1.0)])
def test_tiny_and_huge_gradients_are_normalised(size, share):
    """In float32 the mean of a few denormal gradients among many is 0, and that of huge ones infinite."""
    first = np.where(np.arange(4000) < 4000 * share, size, 0.0)
    second = np.where(np.arange(4000) % 2, first, -first)
    x = torch.zeros(1, 4000)
    found = attack(scripted([first, second]), x, torch.tensor([0]), kind="mim", radius=0.2, num_steps=2, decay=0.5)
    want = np.where(first == 0, 0.0, np.where(np.arange(4000) % 2, 0.2, 0.0))  # odd: up twice; even: up and down
    np.testing.assert_allclose(found.numpy()[0], want, atol=1e-7)


@pytest.mark.parametrize("kind", ["fgsm", "ifgsm", "mim"])
def test_an_example_does_not_depend_on_its_neighbours(kind):
    x, model = images_of(5, dtype=torch.float64), network(torch.float64)
    together = attack(model, x, kind=kind)
    for i in range(5):
        np.testing.assert_allclose(attack(model, x[i : i + 1], kind=kind)[0], together[i], atol=1e-12)


@pytest.mark.paper("stobatch", "Section 4, attacks (MadryEtAl)")
@pytest.mark.paper("stobatch", "Appendix C (inner maximisation)")
def test_many_steps_with_restarts_find_at_least_what_one_step_finds():
    """The best of one step and of some runs of PGD is no worse by definition; PGD alone is better on average."""
    x, model = images_of(60), network()
    labels = model(x).argmax(1)
    single = losses(model, attack(model, x, kind="fgsm", radius=0.5), labels)
    start = generator("restarts")
    runs = [attack(model, x, kind="pgd", radius=0.5, num_steps=20, step_size=0.1, generator=start) for _ in range(3)]
    best = torch.stack([losses(model, run, labels) for run in runs]).amax(0)
    assert best.mean() > single.mean()
    assert (best >= single - 0.02).float().mean() > 0.95
    assert single.mean() > losses(model, x, labels).mean() + 0.5
    assert not torch.equal(runs[0], runs[1])  # the start is random


@pytest.mark.paper("stobatch", "Equation 7")
def test_the_single_step_is_the_worst_point_for_a_linear_model():
    """No corner of the ball has a higher loss (all 2^6 of them tried)."""
    weights = torch.randn(6, 2, generator=generator("linear"), dtype=torch.float64)
    x = 0.3 * images_of(4, (6,), torch.float64)
    labels = (x @ weights).argmax(1)
    corners = torch.tensor(list(np.ndindex(*[2] * 6)), dtype=torch.float64) * 2 - 1
    found = losses(lambda x: x @ weights, attack(lambda x: x @ weights, x, kind="fgsm", radius=0.2), labels)
    for corner in corners:
        assert (losses(lambda x: x @ weights, x + 0.2 * corner, labels) <= found + 1e-12).all()


@pytest.mark.paper("stobatch", "Equation 8")
def test_printed_relabelling_at_every_step_turns_back():
    """Once the prediction has flipped, the printed rule takes the new label and climbs back."""
    x, model = images_of(200, dtype=torch.float64), network(torch.float64)
    labels = model(x).argmax(1)
    flipped = [
        (model(attack(model, x, radius=0.4, num_steps=20, relabel=relabel)).argmax(1) != labels).double().mean()
        for relabel in (False, True)
    ]
    assert flipped[0] > flipped[1] + 0.2


@pytest.mark.paper("stobatch", "Section 4 (0.3 in [0, 1] is 0.6 in [-1, 1])")
@pytest.mark.parametrize("kind", ["fgsm", "ifgsm", "mim"])
def test_a_radius_has_the_units_of_the_range(kind):
    x, model = images_of(dtype=torch.float64), network(torch.float64)
    wide = attack(model, x, kind=kind, radius=0.6)
    unit = attack(lambda u: model(2 * u - 1), (x + 1) / 2, kind=kind, radius=0.3, low=0.0)
    np.testing.assert_allclose((2 * unit - 1).numpy(), wide.numpy(), atol=1e-12)


def test_logits_of_low_precision_are_widened():
    x, model = images_of(), network()
    found = attack(lambda x: model(x).bfloat16(), x, kind="fgsm")
    agree = (found == attack(model, x, kind="fgsm")).float().mean()
    assert found.dtype == torch.float32
    assert agree > 0.9


# -------------------------------------------------------------------------------------------------------- attack models


class Served:
    """Served with noise on the input; the fixed noise points one way."""

    weights = torch.tensor([[2.0, -1.0], [0.5, 1.0]], dtype=torch.float64)

    def __init__(self):
        self.calls = []

    def surrogate(self, images):
        return images @ self.weights

    def fixed(self, images):
        return torch.tanh(images + torch.tensor([2.0, -2.0])) @ self.weights

    def fresh(self, images, *, generator):
        noise = torch.randn(images.shape, generator=generator, dtype=images.dtype)
        self.calls.append(noise)
        return torch.tanh(images + noise) @ self.weights


def test_the_attacked_model_is_the_one_asked_for():
    served, x = Served(), torch.zeros(3, 2, dtype=torch.float64)
    assert adversarial.target(served, attack_model="surrogate")(x).equal(served.surrogate(x))
    assert adversarial.target(served, attack_model="fixed")(x).equal(served.fixed(x))
    eot = adversarial.target(served, attack_model="eot", generator=generator())
    attack(eot, x, torch.zeros(3, dtype=torch.int64), num_steps=4, num_draws=6)
    assert len(served.calls) == 24
    assert not served.calls[0].equal(served.calls[1])
    with pytest.raises(ValueError, match="generator must be given"):
        adversarial.target(served, attack_model="eot")
    with pytest.raises(ValueError, match="did you mean 'fixed'"):
        adversarial.target(served, attack_model="fixd")


def test_gradients_are_averaged_over_draws():
    """Signs of single draws: +, +, -; of their sum: -."""
    model = scripted([(1, 1), (1, 1), (-5, 1)])
    found = attack(model, torch.zeros(1, 2), torch.tensor([0]), kind="fgsm", num_draws=3)
    np.testing.assert_allclose(found.numpy(), [[-0.3, 0.3]], atol=1e-7)


# --------------------------------------------------------------------------------------------------- nothing is changed


def state(model):
    return {k: v.clone() for k, v in model.state_dict().items()}, [m.training for m in model.modules()]


class Raising(torch.nn.Module):
    def __init__(self, at):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.5))
        self.last, self.at, self.calls = torch.nn.Linear(12, 3), at, 0

    def forward(self, x):
        hidden = self.layers(x)
        self.calls += 1
        if self.calls == self.at:
            self.eval()
            raise ArithmeticError("in the middle")
        return self.last(hidden)

    def served(self, x):
        return self(x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", ["module", "method", "closure"])
@pytest.mark.parametrize("at", [3, 0])
def test_model_and_global_generators_are_left_as_they_were(training, form, at):
    model = Raising(at).train(training)
    model.layers[0].train(not training)
    model.last.weight.requires_grad_(False)
    model.last.bias.grad = torch.ones(3)
    before, states, x = state(model), torch.get_rng_state(), images_of()
    call = {"module": model, "method": model.served, "closure": lambda x: model(x)}[form]
    if at:
        with pytest.raises(ArithmeticError):
            attack(call, x)
    else:
        attack(call, x)
    after = state(model)
    assert all(torch.equal(before[0][k], after[0][k]) for k in before[0])
    assert before[1] == after[1]
    assert torch.equal(states, torch.get_rng_state())
    assert model.last.bias.grad.equal(torch.ones(3))
    assert model.layers[1].weight.grad is None
    assert [p.requires_grad for p in model.last.parameters()] == [False, True]
    assert x.grad is None
    assert not x.requires_grad
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_it_works_where_gradients_are_off():
    x, model = images_of(), network()
    want = attack(model, x)
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert torch.equal(attack(model, x.clone()), want)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kind": "pdg"}, ValueError, "did you mean 'pgd'"),
        ({"radius": -0.1}, ValueError, "radius must be finite and at least 0"),
        ({"radius": math.nan}, ValueError, "radius must be finite"),
        ({"radius": [0.1, 0.2]}, ValueError, "one for each of 6 images"),
        ({"radius": "0.1"}, TypeError, "radius must be a number or hold one"),
        ({"radius": None}, TypeError, "radius must be a number or hold one"),
        ({"num_steps": 0}, ValueError, "radius=0 attacks nothing"),
        ({"num_steps": 2.0}, TypeError, "num_steps must be an integer"),
        ({"num_draws": 0}, ValueError, "num_draws must"),
        ({"low": 1.0}, ValueError, "low must be below high"),
        ({"low": 0.0}, ValueError, "pass the range they have"),
        ({"decay": -1.0}, ValueError, "decay must"),
        ({"kind": "pgd", "generator": None}, ValueError, "generator must be given"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0, 0])}, ValueError, r"labels must lie in \[0, 2\]"),
        ({"labels": torch.zeros(6)}, ValueError, "whole numbers"),
        ({"labels": torch.zeros(6, 3, dtype=torch.int64)}, ValueError, "argmax"),
        ({"labels": ["a"] * 6}, TypeError, "labels must be whole numbers"),
        ({"labels": [[0], [1, 2]]}, TypeError, "labels must be whole numbers"),
        ({"relabel": "no"}, TypeError, "relabel must be True or False"),
        ({"kind": "pgd", "generator": 3}, TypeError, "generator must be a torch.Generator"),
        ({"model": None}, TypeError, "model must be callable"),
        ({"images": np.zeros((6, 12))}, TypeError, "torch.as_tensor"),
        ({"images": torch.zeros(6, 12, dtype=torch.uint8)}, TypeError, "images.float"),
        ({"images": torch.zeros(12)}, ValueError, r"images\[None\]"),
        ({"images": torch.full((6, 12), math.nan)}, ValueError, "NaN"),
        ({"images": torch.full((6, 12), 1.5)}, ValueError, "images with noise"),
        ({"model": lambda x: x.flatten(1).detach()}, ValueError, "differentiable"),
        ({"model": lambda x: torch.zeros(6, 3, requires_grad=True)}, ValueError, "depend on images"),
        ({"model": lambda x: x[:, 0]}, ValueError, "logits of shape"),
        ({"model": lambda x: x.flatten(1) * math.nan}, ValueError, "finite logits"),
        ({"model": lambda x: (x - x).flatten(1).abs().sqrt()}, ValueError, "finite gradients"),
        ({"start": torch.ones(6, 1, 3, 4)}, ValueError, "start must"),
    ],
)
def test_errors_name_what_is_wrong_and_the_way_out(changes, error, message):
    given = {"model": network(), "images": images_of(), "labels": None} | changes
    with pytest.raises(error, match=message):
        attack(given.pop("model"), given.pop("images"), given.pop("labels"), **given)


def test_no_images_are_no_error():
    assert attack(network(), torch.zeros(0, 1, 3, 4)).shape == (0, 1, 3, 4)
