"""Encoding a million numbers beside the draws that it needs, and finding the best compressor for a budget."""

import numpy as np
import pytest

from privrob.kinds import Streams
from privrob.mechanisms.binomial import BinomialMechanism, BinomialNoise, PoissonBinomial, QuantisedBinomial
from privrob.mechanisms.lattice import DiscreteGaussian, Skellam
from privrob.mechanisms.signs import CLDP, NoisySign, StoSign
from privrob.mechanisms.ternary import Ternarize, Ternary
from privrob.robust import bit_budget

N = 10**6
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


@pytest.mark.parametrize("name", ENCODERS)
def test_encode(compare, name, rng):
    mechanism, kind, draws = ENCODERS[name]
    values = rng.uniform(-0.1, 0.1, N) if kind == REALS else rng.integers(0, 9, N)
    floor = ("its draws by numpy", lambda: draws(rng))
    peers = {"numpy's Binomial(16, p)": lambda: binomials(16)(rng)}
    found = compare(
        f"10⁶ numbers encoded: {name}", lambda: mechanism.release(values, rng=rng), peers=peers, floor=floor
    )
    assert found["ours"].shape == (N,)


def test_encode_a_sum_of_ten_users(compare, rng):
    server, probs = PoissonBinomial(10, 16, 0.4, 0.6), rng.uniform(0.4, 0.6, (10, N // 10))
    peers = {"each user's draws": lambda: sum(rng.binomial(16, own) for own in probs)}
    found = compare("10⁵ sums over ten users", lambda: server.release(probs, rng=rng), peers=peers)
    assert found["ours"].shape == found["each user's draws"].shape


@pytest.mark.parametrize("rounds", [1, 100])
def test_plan(compare, rounds):
    how = {"epsilon": 2.0, "delta": 1e-5, "bits": 4.0, "num_rounds": rounds}
    path = f"the best compressor for 4 bits and ε = 2 over {rounds} round{'s' * (rounds > 1)}"
    assert compare(path, lambda: bit_budget.binomial(**how))["ours"].epsilon.upper <= 2.0
