"""Encoding a million numbers beside numpy's own binomial draw, and trade-off functions of a million atoms."""

import numpy as np
import pytest

from privrob.accounting.logspace import log_binomial
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import Streams
from privrob.mechanisms.binomial import BinomialMechanism
from privrob.mechanisms.signs import StoSign
from privrob.mechanisms.ternary import Ternary

N = 10**6
ONE, MANY = "10⁶ numbers to one bit or trit (GB/s of input: 0.008 / seconds)", "10⁶ numbers to Binomial(16, p)"
SIXTEEN = BinomialMechanism.scaled(clip=0.1, scale_b=0.5, num_trials=16)


@pytest.fixture
def rng():
    return Streams(0, "bench").numpy("draws")


@pytest.mark.benchmark(group=ONE)
@pytest.mark.parametrize("mechanism", [StoSign(0.1, 0.25), Ternary(0.1, 0.25, 0.5)], ids=["sto-sign", "ternary"])
def test_encode(benchmark, mechanism, rng):
    values = rng.uniform(-0.1, 0.1, N)
    assert benchmark(mechanism.release, values, rng=rng).shape == (N,)


@pytest.mark.benchmark(group=ONE)
def test_one_trial_by_numpy(benchmark, rng):
    probs = rng.uniform(0.3, 0.7, N)
    assert benchmark(rng.binomial, 1, probs).shape == (N,)


@pytest.mark.benchmark(group=MANY)
def test_encode_binomial(benchmark, rng):
    values = rng.uniform(-0.1, 0.1, N)
    assert benchmark(SIXTEEN.release, values, rng=rng).shape == (N,)


@pytest.mark.benchmark(group=MANY)
def test_sixteen_trials_by_numpy(benchmark, rng):
    probs = rng.uniform(0.4, 0.6, N)
    assert benchmark(rng.binomial, 16, probs).shape == (N,)


@pytest.mark.benchmark(group="trade-off function of 10⁶ atoms at 1,000 points (goal: below 1 s)")
@pytest.mark.parametrize("kind", ["drawn at random", "binomial"])
def test_tradeoff(benchmark, kind, rng):
    masses = np.log(rng.dirichlet(np.ones(N), 2)) if kind != "binomial" else [log_binomial(N, p) for p in (0.5, 0.5003)]
    alpha = np.linspace(0, 1, 1000)
    beta = benchmark.pedantic(lambda: Tradeoff.of_logs(*masses)(alpha), rounds=3)
    assert np.isfinite(beta).all()
