"""Attacks: every compressor keeps its claim, claims of one half do not stand, and a mechanism that lies is caught."""

import dataclasses

import numpy as np
import pytest

from privrob.kinds import Streams
from privrob.mechanisms import attacks
from privrob.mechanisms.binomial import BinomialMechanism, BinomialNoise, PoissonBinomial, QuantisedBinomial
from privrob.mechanisms.lattice import DiscreteGaussian, Skellam
from privrob.mechanisms.signs import CLDP, NoisySign, StoSign
from privrob.mechanisms.ternary import GeneralTernary, Ternarize, Ternary

ALL = [
    (BinomialNoise(8, 500, 0.5), 0, 8),
    (BinomialNoise(2, 12, 0.3), 0, 2),
    (BinomialMechanism.scaled(clip=0.1, scale_b=0.5, num_trials=16), -0.1, 0.1),
    (PoissonBinomial(3, 1, 0.3, 0.7), (0.3, 0.3, 0.7), (0.7, 0.3, 0.7)),
    (StoSign(0.1, 0.25), -0.1, 0.1),
    (CLDP(0.1, 1.3), -0.1, 0.1),
    (Ternary(0.1, 0.25, 0.5), -0.1, 0.1),
    (GeneralTernary(0.1, 0.4, 0.1, 0.35), -0.1, 0.1),
    (Ternarize(0.1, 0.3), -0.1, 0.1),
    (NoisySign(0.1, 0.8), -0.1, 0.1),
    (QuantisedBinomial(0.1, 9, 300, 0.5), -0.1, 0.1),
    (Skellam(8, 30.0), 0, 8),
    (DiscreteGaussian(8, 7.0), 0, 8),
]


@pytest.mark.parametrize("case", ALL, ids=lambda case: type(case[0]).__name__)
def test_every_compressor_keeps_its_claim_and_half_of_it_does_not_stand(case):
    rng = Streams(21, "attacks").numpy(repr(case[0]))
    found = attacks.attack(*case, num_draws=60_000, delta=0.01, rng=rng, failure_prob=1e-5)
    assert found.guarantee_stands
    assert found.best_tests
    assert found.half_refuted
    assert 0 < found.distance_lower <= found.distance
    if isinstance(case[0], Ternarize):
        assert (found.epsilon, found.epsilon_lower > 1) == (np.inf, True)


@dataclasses.dataclass(frozen=True)
class Careless(StoSign):
    """Says A and uses 0.6 A."""

    def release(self, data, *, rng):
        return StoSign(self.clip, 0.6 * self.scale_a).release(data, rng=rng)


@dataclasses.dataclass(frozen=True)
class Quiet(Skellam):
    """Draws less noise than it says."""

    def _noise(self, rng, size):
        return rng.poisson(self.variance / 4, size) - rng.poisson(self.variance / 4, size)


def test_a_mechanism_that_lies_is_caught():
    rng = Streams(22, "attacks").numpy("lies")
    for case in ((Careless(0.1, 0.25), -0.1, 0.1), (Quiet(8, 30.0), 0, 8)):
        found = attacks.attack(*case, num_draws=60_000, delta=0.01, rng=rng, failure_prob=1e-5)
        assert not found.guarantee_stands


def test_a_poor_test_is_seen_to_be_one():
    rng = Streams(23, "attacks").numpy("poor")
    found = attacks.attack(StoSign(0.1, 0.25), -0.02, 0.02, num_draws=60_000, delta=0.01, rng=rng, failure_prob=1e-5)
    assert found.guarantee_stands
    assert found.best_tests  # for these inputs …
    worst = dataclasses.replace(found, own=StoSign(0.1, 0.25).curves[0])
    assert not worst.best_tests  # … not for the worst ones
    with pytest.raises(ValueError, match="num_draws"):
        attacks.attack(StoSign(0.1, 0.25), -0.1, 0.1, num_draws=3, delta=0.01, rng=rng)
