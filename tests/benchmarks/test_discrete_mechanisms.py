"""Encoding a million numbers beside numpy's own binomial draw, and trade-off functions of a million atoms.

``extra_info`` of an encoding says GB/s of input (8 bytes a number), and its time beside that of the draws it needs and
of numpy's Binomial(16, p), all taken in the same run.
"""

import time
import tracemalloc

import numpy as np
import pytest

from privrob.accounting.logspace import log_binomial
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import Streams
from privrob.mechanisms.binomial import BinomialMechanism, BinomialNoise, PoissonBinomial, QuantisedBinomial
from privrob.mechanisms.lattice import DiscreteGaussian, Skellam
from privrob.mechanisms.signs import CLDP, NoisySign, StoSign
from privrob.mechanisms.ternary import Ternarize, Ternary
from privrob.robust import bit_budget

N = 10**6
GROUP = "10⁶ numbers encoded, beside numpy's draw of as many binomials"
REALS, WHOLE = "reals in ±0.1", "integers in 0 … 8"


def uniform(rng):
    return rng.random(N)


def binomials(trials):
    """numpy's own: one p for each number, as an encoder needs them."""
    return lambda rng: rng.binomial(trials, np.linspace(0.4, 0.6, N))


def noise(trials):
    return lambda rng: rng.binomial(trials, 0.5, N)


ENCODERS = {
    "sto-sign": (StoSign(0.1, 0.25), REALS, uniform),
    "cldp": (CLDP(0.1, 1.3), REALS, uniform),
    "noisy-sign": (NoisySign(0.1, 0.8), REALS, uniform),
    "ternary": (Ternary(0.1, 0.25, 0.5), REALS, uniform),
    "ternarize": (Ternarize(0.1, 0.3), REALS, uniform),
    "binomial-4": (BinomialMechanism.scaled(clip=0.1, scale_b=0.5, num_trials=4), REALS, binomials(4)),
    "binomial-16": (BinomialMechanism.scaled(clip=0.1, scale_b=0.5, num_trials=16), REALS, binomials(16)),
    "binomial-64": (BinomialMechanism.scaled(clip=0.1, scale_b=0.5, num_trials=64), REALS, binomials(64)),
    "cpsgd-500": (QuantisedBinomial(0.1, 9, 500, 0.5), REALS, noise(500)),
    "binomial-noise-500": (BinomialNoise(8, 500, 0.5), WHOLE, noise(500)),
    "skellam": (Skellam(8, 125.0), WHOLE, lambda rng: rng.poisson(62.5, N) - rng.poisson(62.5, N)),
    "discrete-gaussian": (DiscreteGaussian(8, 11.18), WHOLE, lambda rng: (rng.normal(size=N), rng.random(N))),
}


@pytest.fixture
def rng():
    return Streams(0, "bench").numpy("draws")


def once(*actions):
    """The best of five of each, in turn."""
    times = []
    for _ in range(5):
        for action in actions:
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
    return [min(times[i :: len(actions)]) for i in range(len(actions))]


@pytest.mark.benchmark(group=GROUP)
@pytest.mark.parametrize("name", ENCODERS)
def test_encode(benchmark, name, rng):
    mechanism, kind, draws = ENCODERS[name]
    values = rng.uniform(-0.1, 0.1, N) if kind == REALS else rng.integers(0, 9, N)
    out = benchmark.pedantic(mechanism.release, (values,), {"rng": rng}, rounds=5)
    assert out.shape == (N,)
    ours, own, binomial = once(
        lambda: mechanism.release(values, rng=rng), lambda: draws(rng), lambda: binomials(16)(rng)
    )
    ratios = {"× its draws": round(ours / own, 2), "× numpy's Binomial(16, p)": round(ours / binomial, 2)}
    benchmark.extra_info |= {"GB/s": round(0.008 / ours, 3), **ratios}
    print(f"{name:20s}", benchmark.extra_info)


@pytest.mark.benchmark(group=GROUP)
def test_encode_a_sum_of_ten_users(benchmark, rng):
    server, probs = PoissonBinomial(10, 16, 0.4, 0.6), rng.uniform(0.4, 0.6, (10, N // 10))
    assert benchmark.pedantic(server.release, (probs,), {"rng": rng}, rounds=5).shape == (N // 10,)


@pytest.mark.benchmark(group=GROUP)
@pytest.mark.parametrize("trials", [1, 16])
def test_draws_by_numpy(benchmark, trials, rng):
    probs = rng.uniform(0.4, 0.6, N)
    assert benchmark.pedantic(rng.binomial, (trials, probs), rounds=5).shape == (N,)


@pytest.mark.benchmark(group="trade-off function of 10⁶ atoms at 1,000 points (goal: below 1 s)")
@pytest.mark.parametrize("kind", ["drawn at random", "binomial"])
def test_tradeoff(benchmark, kind, rng):
    masses = np.log(rng.dirichlet(np.ones(N), 2)) if kind != "binomial" else [log_binomial(N, p) for p in (0.5, 0.5003)]
    alpha = np.linspace(0, 1, 1000)
    beta = benchmark.pedantic(lambda: Tradeoff.of_logs(*masses)(alpha), rounds=3)
    assert np.isfinite(beta).all()
    tracemalloc.start()
    Tradeoff.of_logs(*masses)(alpha)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    benchmark.extra_info["peak MiB"] = round(peak)
    print(f"{kind}: at most {peak:.0f} MiB beside the masses")


@pytest.mark.benchmark(group="the best compressor for 4 bits and ε = 2")
@pytest.mark.parametrize("rounds", [1, 100])
def test_plan(benchmark, rounds):
    how = {"epsilon": 2.0, "delta": 1e-5, "bits": 4.0, "num_rounds": rounds}
    assert benchmark.pedantic(lambda: bit_budget.binomial(**how), rounds=3).epsilon.upper <= 2.0
