"""What privacy costs: a private step beside the plain one and other libraries', and a Poisson batch."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

from privrob.kinds import Streams
from privrob.learn.batches import channels_last, poisson_batch
from privrob.learn.clip import PerExample, clip_weights
from privrob.learn.dpsgd import DPSGDSettings, Training
from privrob.learn.models import build

BATCH, RECORDS, RATE, SIZE = 256, 60_000, 256 / 60_000, 1e-3
PLANES = torch.contiguous_format
PLAIN, OPACUS, LAST = "plain SGD, channels last", "Opacus as users get it", "Opacus, channels last"


def planes(images):
    """A copy in torch's usual order: with one channel torch takes either order for both."""
    return torch.empty(images.shape).copy_(images)


def model():
    return build("tutorial_cnn", in_shape=(1, 28, 28), num_classes=10, generator=Streams(0, "bench").torch("init"))


@pytest.fixture
def batch():
    streams = Streams(0, "bench")
    images = channels_last(torch.rand(BATCH, 1, 28, 28, generator=streams.torch("images")))
    return images, torch.randint(10, (BATCH,), generator=streams.torch("labels"))


def descend(parameters, gradients, noise=None):
    with torch.no_grad():
        drawn = torch.randn(sum(p.numel() for p in parameters), generator=noise) if noise else None
        parts = drawn.split([p.numel() for p in parameters]) if noise else [None] * len(parameters)
        for parameter, gradient, extra in zip(parameters, gradients, parts, strict=True):
            parameter -= SIZE * (gradient if extra is None else (gradient + extra.view_as(gradient)) / BATCH)


def plain_step(images, labels, net):
    parameters = list(net.parameters())

    def step():
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        descend(parameters, torch.autograd.grad(loss, parameters))

    return step


def private_step(images, labels):
    net = model()
    per_example, parameters, noise = PerExample(net), list(net.parameters()), Streams(0, "bench").torch("noise")

    def step():
        found = per_example(images, labels)
        total = found.weighted_sum(clip_weights(found.norms, 1.0))
        descend(parameters, total, noise)
        return total

    return step


def vmap_step(images, labels):
    """One gradient an example by torch's own transforms, clipped and summed."""
    net, noise = model(), Streams(0, "bench").torch("noise")
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(own, image, label):
        return torch.nn.functional.cross_entropy(functional_call(net, own, image[None]), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def step():
        found = each(parameters, images, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
        weights = clip_weights(norms, 1.0)
        total = [torch.einsum("b,b...->...", weights, g) for g in found.values()]
        descend(list(parameters.values()), total, noise)
        return total

    return step


def opacus_step(images, labels, memory):
    def make():
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        net = GradSampleModule(model().to(memory_format=memory))
        sgd = torch.optim.SGD(net.parameters(), lr=SIZE)
        private = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH)
        own = images if memory == torch.channels_last else planes(images)

        def step():
            private.zero_grad()
            torch.nn.functional.cross_entropy(net(own), labels).backward()
            private.step()

        return step

    return make


def test_private_step(compare, batch):
    images, labels = batch
    peers = {
        PLAIN: plain_step(images, labels, model()),
        "plain SGD, as tutorials have it": plain_step(planes(images), labels, model().to(memory_format=PLANES)),
        "vmap(grad) of torch": vmap_step(images, labels),
        OPACUS: compare.library("opacus", opacus_step(images, labels, PLANES)),
        LAST: compare.library("opacus", opacus_step(images, labels, torch.channels_last)),
    }
    path = "private step: clip, sum, noise, descent (batch 256, 26,010 parameters)"
    found = compare(path, private_step(images, labels), peers=peers, at_most={PLAIN: 1.4, OPACUS: 0.4, LAST: 0.67})
    for got, want in zip(found["ours"], found["vmap(grad) of torch"], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)  # float32, summed in another order


@pytest.mark.parametrize("release", ["clipping", "trimmed", "propose_test_release"])
def test_step_of_a_training(compare, batch, release):
    """The whole step of the training engine: clip, trim, test, noise, descent, and what it notes for the rows."""
    images, labels = batch
    how = {"model": "tutorial_cnn", "sample_rate": 1.0, "num_steps": 10**6, "learning_rate": SIZE}
    settings = DPSGDSettings(**how, max_grad_norm=1.0, noise_multiplier=1.1, release=release)
    training = Training(settings, images, labels, images[:0], labels[:0], 10, Streams(0, "bench"))
    peers = {PLAIN: plain_step(images, labels, model())}
    compare(f"a training's step, {release}", lambda: training._step(np.arange(BATCH)), peers=peers)


def test_step_on_features_with_corrupted_gradients(compare):
    """The last layer of a frozen network: where most time of the studies on features goes."""
    streams, how = Streams(0, "bench"), {"model": "logistic", "sample_rate": 0.04, "num_steps": 10**6}
    images = torch.rand(6000, 1280, 1, 1, generator=streams.torch("images"))
    labels = torch.randint(10, (6000,), generator=streams.torch("labels"))
    how |= {"learning_rate": SIZE, "max_grad_norm": 5.0, "noise_multiplier": 1.8, "release": "trimmed"}

    def steps(**more):
        training = Training(DPSGDSettings(**how, **more), images, labels, images[:0], labels[:0], 10, Streams(0, "b"))
        return lambda: [training._step(training.draw()) for _ in range(5)]

    noisy = steps(corruption="gradient", corruption_rate=0.1)
    compare("5 trimmed steps on 1,280 features, a tenth of the gradients corrupted", noisy, peers={"without": steps()})


def test_poisson_batch(compare):
    rng = Streams(0, "bench").numpy("batches")

    def opacus():
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler

        return lambda: next(iter(UniformWithReplacementSampler(num_samples=RECORDS, sample_rate=RATE)))

    peers = {
        "a coin a record": lambda: np.flatnonzero(rng.random(RECORDS) < RATE),
        "Opacus' sampler": compare.library("opacus", opacus),
    }
    ours = lambda: poisson_batch(rng, num_records=RECORDS, sample_rate=RATE)  # noqa: E731
    assert 0 < len(compare("a Poisson batch of 60,000 records", ours, peers=peers)["ours"]) < 1000
