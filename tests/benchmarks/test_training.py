"""What privacy costs: a private step beside the plain one, a Poisson draw, ε of many steps. Ratios count, not seconds.

``./run_all.sh bench`` measures; in the ordinary tests each runs once, to see that it still works.
"""

import pytest
import torch

from privrob.accounting import pld
from privrob.kinds import Streams
from privrob.learn.batches import channels_last, poisson_batch
from privrob.learn.clip import PerExample, clip_weights
from privrob.learn.dpsgd import DPSGDSettings, Training
from privrob.learn.models import build

BATCH = 256


@pytest.fixture
def setting():
    torch.set_num_threads(1)
    streams = Streams(0, "bench")
    model = build("tutorial_cnn", in_shape=(1, 28, 28), num_classes=10, generator=streams.torch("init"))
    images = channels_last(torch.rand(BATCH, 1, 28, 28, generator=streams.torch("images")))
    labels = torch.randint(10, (BATCH,), generator=streams.torch("labels"))
    return model, images, labels


@pytest.mark.benchmark(group="one step, batch 256, 26,010 parameters, one thread")
def test_plain_step(benchmark, setting):
    model, images, labels = setting
    parameters = list(model.parameters())

    def step():
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter -= 1e-3 * gradient

    benchmark(step)


@pytest.mark.benchmark(group="one step, batch 256, 26,010 parameters, one thread")
def test_private_step(benchmark, setting):
    model, images, labels = setting
    per_example, parameters = PerExample(model), list(model.parameters())
    noise = Streams(0, "bench").torch("noise")
    sizes = [p.numel() for p in parameters]

    def step():
        batch = per_example(images, labels)
        total = batch.weighted_sum(clip_weights(batch.norms, 1.0))
        drawn = torch.randn(sum(sizes), generator=noise).split(sizes)
        with torch.no_grad():
            for parameter, gradient, extra in zip(parameters, total, drawn, strict=True):
                parameter -= 1e-3 / BATCH * (gradient + extra.view_as(gradient))

    benchmark(step)


@pytest.mark.benchmark(group="one step, batch 256, 26,010 parameters, one thread")
@pytest.mark.parametrize("release", ["clipping", "trimmed", "propose_test_release"])
def test_step_of_a_training(benchmark, setting, release):
    """The whole step: clip, trim, test, noise, descent."""
    _, images, labels = setting
    how = {"model": "tutorial_cnn", "sample_rate": 1.0, "num_steps": 10**6, "learning_rate": 1e-3}
    settings = DPSGDSettings(**how, max_grad_norm=1.0, noise_multiplier=1.1, release=release)
    training = Training(settings, images, labels, images[:0], labels[:0], 10, Streams(0, "bench"))
    everyone = torch.arange(BATCH).numpy()
    benchmark(training._step, everyone)


@pytest.mark.benchmark(group="one Poisson batch of 60,000 records")
def test_poisson_batch(benchmark):
    rng = Streams(0, "bench").numpy("batches")
    assert 0 < len(benchmark(poisson_batch, rng, num_records=60_000, sample_rate=BATCH / 60_000)) < 1_000


@pytest.mark.benchmark(group="ε of 100,000 sampled Gaussian steps")
def test_epsilon_here(benchmark):
    arguments = {"sample_rate": BATCH / 60_000, "noise_multiplier": 1.1, "delta": 1e-5, "neighbouring": "add_remove"}
    found = benchmark(pld.sampled_gaussian, num_steps=100_000, **arguments)
    assert found.width < 0.01


@pytest.mark.benchmark(group="ε of 100,000 sampled Gaussian steps")
def test_epsilon_by_dp_accounting(benchmark):
    from dp_accounting.pld import privacy_loss_distribution as peer

    def epsilon():
        one = peer.from_gaussian_mechanism(1.1, sampling_prob=BATCH / 60_000, value_discretization_interval=1e-4)
        return one.self_compose(100_000).get_epsilon_for_delta(1e-5)

    assert benchmark(epsilon) > 7
