"""The same work by libraries in use, where they are installed: ``pip install opacus`` beside this environment."""

import pytest
import torch

from privrob.accounting.calibrate import noise_multiplier_for
from privrob.kinds import Streams
from privrob.learn.models import build

BATCH, RATE = 256, 256 / 60_000
STEP = "one step, batch 256, 26,010 parameters, one thread"


@pytest.mark.benchmark(group=STEP)
def test_private_step_by_opacus_as_users_get_it(benchmark):
    pytest.importorskip("opacus")
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.set_num_threads(1)
    streams = Streams(0, "bench")
    plain = build("tutorial_cnn", in_shape=(1, 28, 28), num_classes=10, generator=streams.torch("init"))
    model = GradSampleModule(plain.to(memory_format=torch.contiguous_format))
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH
    )
    images = torch.rand(BATCH, 1, 28, 28, generator=streams.torch("images"))
    labels = torch.randint(10, (BATCH,), generator=streams.torch("labels"))

    def step():
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()

    benchmark(step)


@pytest.mark.benchmark(group="noise for ε = 2 after 10,000 steps, to 1e-3")
def test_calibrate_here(benchmark):
    how = {"delta": 1e-5, "sample_rate": RATE, "num_steps": 10_000, "neighbouring": "add_remove"}
    found = benchmark.pedantic(noise_multiplier_for, (2.0,), how, rounds=3)
    assert 1.98 <= found.epsilon.upper <= 2.0


@pytest.mark.benchmark(group="noise for ε = 2 after 10,000 steps, to 1e-3")
def test_calibrate_by_dp_accounting(benchmark):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def event(sigma):
        step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, 10_000)

    def calibrate():
        bracket = dp_accounting.ExplicitBracketInterval(0.5, 2.0)
        return dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, 2.0, 1e-5, bracket, tol=1e-3)

    assert 1.0 < benchmark.pedantic(calibrate, rounds=1) < 1.2
