"""Attacks on images and certified inference: beside other libraries and plain loops."""

import numpy as np
import pytest
import torch

from privrob.kinds import Streams
from privrob.learn.batches import channels_last
from privrob.learn.models import build
from privrob.learn.stobatch.settings import StoBatchSettings
from privrob.learn.stobatch.training import Training
from privrob.robust import adversarial, certify

RADIUS, STEPS, DRAWS = 0.1, 20, 100


def plain_pgd(model, images, labels):
    """PGD as tutorials write it, from the images themselves."""
    point = images.clone()
    for _ in range(STEPS):
        point.requires_grad_()
        loss = torch.nn.functional.cross_entropy(model(point), labels)
        (slope,) = torch.autograd.grad(loss, point)
        point = point.detach() + RADIUS / STEPS * slope.sign()
        point = torch.min(torch.max(point, images - RADIUS), images + RADIUS).clamp(0, 1)
    return point


def test_attack(compare):
    streams = Streams(0, "bench")
    model = build("tutorial_cnn", in_shape=(1, 28, 28), num_classes=10, generator=streams.torch("init"))
    images = channels_last(torch.rand(128, 1, 28, 28, generator=streams.torch("images")))
    labels = torch.randint(10, (len(images),), generator=streams.torch("labels"))

    def torchattacks():
        import torchattacks

        own = torchattacks.PGD(model, eps=RADIUS, alpha=RADIUS / STEPS, steps=STEPS, random_start=False)
        return lambda: own(images, labels)

    def foolbox():
        import foolbox

        own = foolbox.attacks.LinfPGD(abs_stepsize=RADIUS / STEPS, steps=STEPS, random_start=False)
        net = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
        return lambda: own(net, images, labels, epsilons=RADIUS)[1]

    peers = {
        "a plain loop, without checks": lambda: plain_pgd(model, images, labels),
        "torchattacks": compare.library("torchattacks", torchattacks),
        "foolbox": compare.library("foolbox", foolbox),
    }
    how = {"kind": "pgd", "radius": RADIUS, "num_steps": STEPS, "low": 0.0, "high": 1.0, "start": images}
    path = f"PGD of {STEPS} steps on {len(images)} images, checked to the last bit"
    ours = lambda: adversarial.attack(model, images, labels, **how)  # noqa: E731
    found = compare(path, ours, peers=peers, at_most={"a plain loop, without checks": 1.2})
    torch.testing.assert_close(found["ours"], found["a plain loop, without checks"], rtol=0, atol=2 * RADIUS / STEPS)


@pytest.fixture
def served():
    """A small StoBatch network with its noise, and eight images."""
    streams = Streams(0, "bench")
    images = torch.rand(80, 1, 12, 12, generator=streams.torch("images")) * 2 - 1
    labels = torch.randint(10, (len(images),), generator=streams.torch("labels"))
    settings = StoBatchSettings(
        network="mnist",
        network_options={"num_hidden": 32},
        num_steps=1,
        batch_size=12,
        epsilon_features=60.0,
        epsilon_labels=5.0,
        attack_steps=1,
        learning_rate=1e-3,
    )
    run = Training(settings, images[8:], labels[8:], images[:8], labels[:8], num_classes=10, streams=streams)
    list(run.rows())
    return run.deployed(), images[:8]


def test_certified_inference(compare, served):
    deployed, images = served

    def loop():
        generator = torch.Generator().manual_seed(0)
        each = [deployed.draws(images, num_draws=1, generator=generator) for _ in range(DRAWS)]
        return np.concatenate(each, axis=1)

    ours = lambda: deployed.draws(images, num_draws=DRAWS, generator=torch.Generator().manual_seed(0))  # noqa: E731
    path = f"scores of certified inference: {len(images)} images, {DRAWS} draws of noise"
    found = compare(path, ours, peers={"a call for each draw": loop})
    np.testing.assert_allclose(found["ours"].mean(1), found["a call for each draw"].mean(1), atol=0.2)


def test_certificates(compare):
    scores = Streams(0, "bench").numpy("scores").dirichlet(np.r_[9.0, np.ones(9)], (200, DRAWS))
    layers = certify.Layers(input_scale=40.0, hidden_scale=80.0, input_sensitivity=144.0, hidden_sensitivity=30.0)
    how = {"layers": layers, "attack_radii": [0.01, 0.02, 0.05], "bound": "clopper_pearson"}

    def loop():
        return np.concatenate([certify.verify(one[None], **how).is_robust for one in scores])

    path = f"certificates of {len(scores)} images from {DRAWS} draws each"
    found = compare(path, lambda: certify.verify(scores, **how).is_robust, peers={"a call for each image": loop})
    np.testing.assert_array_equal(found["ours"], found["a call for each image"])
