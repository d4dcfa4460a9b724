"""Models: their sizes, weights from one generator only, and per-example gradients for all of them."""

import pytest
import torch

from privrob.kinds import Streams
from privrob.learn import models
from privrob.learn.clip import check_model

SHAPES = [(1, 28, 28), (3, 32, 32)]


def build(name, in_shape=(1, 28, 28), seed=0, **options):
    return models.build(name, in_shape=in_shape, num_classes=10, generator=Streams(seed).torch("init"), **options)


def test_the_tutorial_network_has_26010_parameters():
    assert sum(p.numel() for p in build("tutorial_cnn").parameters()) == 26_010


@pytest.mark.parametrize("in_shape", SHAPES)
@pytest.mark.parametrize(("name", "options"), [("tutorial_cnn", {}), ("mlp", {"hidden": (20, 7)}), ("logistic", {})])
def test_every_model_maps_images_to_class_scores(name, options, in_shape):
    for activation in models.ACTIVATIONS:
        model = check_model(build(name, in_shape, activation=activation, **options))
        assert model(torch.zeros(3, *in_shape)).shape == (3, 10)


@pytest.mark.parametrize("name", models.MODELS)
def test_weights_come_from_the_generator_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name)
    assert torch.equal(torch.get_rng_state(), before)  # the global generator isn't moved …
    torch.manual_seed(2)
    again, other = build(name), build(name, seed=1)
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_weights_are_uniform_within_one_over_the_root_of_the_inputs():
    model = build("mlp")
    weight, bound = model[1].weight.detach(), 784**-0.5
    assert bound * 0.999 < weight.abs().max() <= bound
    assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.01)  # 784,000 draws: 0.1 % is one standard error
    assert model[1].bias.abs().max() <= bound


def test_the_network_of_the_dp_sgd_paper_is_the_default_mlp():
    assert [tuple(p.shape) for p in build("mlp").parameters()] == [(1000, 784), (1000,), (10, 1000), (10,)]


def test_what_cannot_be_built_is_named():
    with pytest.raises(ValueError, match=r"model must be one of .*did you mean 'logistic'"):
        build("logistics")
    with pytest.raises(ValueError, match="activation must be one of"):
        build("mlp", activation="gelu")
    with pytest.raises(ValueError, match=r"in_shape must be at least \(c, 14, 14\)"):
        build("tutorial_cnn", (1, 13, 28))
    assert build("tutorial_cnn", (1, 14, 14))(torch.zeros(1, 1, 14, 14)).shape == (1, 10)
    with pytest.raises(ValueError, match="in_shape must be"):
        build("mlp", (784,))
    with pytest.raises(ValueError, match="num_classes"):
        models.build("mlp", in_shape=(1, 2, 2), num_classes=1, generator=torch.Generator())
    with pytest.raises(ValueError, match="hidden"):
        build("mlp", hidden=(0,))
