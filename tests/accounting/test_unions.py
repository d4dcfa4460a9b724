"""Pairs made of others: the profile of a labelled pair is the mean of its parts', that of an envelope their largest."""

import math

import numpy as np
import pytest

from privrob.accounting import pairs
from privrob.accounting.laplace_gaussian import LaplaceGaussianPair
from privrob.accounting.unions import Envelope, Labelled

FIRST = pairs.DiscretePair.of([0.5, 0.3, 0.15, 0.05], [0.2, 0.3, 0.4, 0.1])
SECOND = pairs.DiscretePair.of([0.1, 0.6, 0.3, 0.0], [0.08, 0.52, 0.3, 0.1])
THIRD = pairs.gaussian(noise_multiplier=1.7)


def profile(pair, epsilon):
    """δ at any ε, negative too, from the masses above it."""
    log_p, log_q = pair.cells(np.array([epsilon]))
    return math.exp(log_p[1]) - math.exp(epsilon + log_q[1])


EPSILONS = (-1.5, -0.4, 0.0, 0.1, 0.3, 0.5, 0.9, 1.4)


def test_a_public_coin_mixes_the_profiles():
    union = Labelled((0.7, 0.3), (FIRST, THIRD))
    for epsilon in EPSILONS:
        want = 0.7 * profile(FIRST, epsilon) + 0.3 * profile(THIRD, epsilon)
        assert profile(union, epsilon) == pytest.approx(want, rel=1e-12, abs=1e-15)
        back = 0.7 * profile(FIRST.reversed(), epsilon) + 0.3 * profile(THIRD.reversed(), epsilon)
        assert profile(union.reversed(), epsilon) == pytest.approx(back, rel=1e-12, abs=1e-15)
    assert union.total_variation == pytest.approx(profile(union, 0.0), rel=1e-12)
    assert union.infinite == (0.0, 0.0)


@pytest.mark.parametrize("parts", [(FIRST, SECOND), (SECOND, THIRD), (FIRST, SECOND, THIRD)])
def test_an_envelope_has_the_largest_profile_on_any_grid_of_losses(parts):
    envelope = Envelope(parts)
    for size in (1, 7, 200):
        edges = np.linspace(-2.0, 2.2, size)
        log_p, log_q = envelope.cells(edges)
        p, q = np.exp(log_p), np.exp(log_q)
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert q.sum() == pytest.approx(1, abs=1e-12)
        above_p, above_q = np.cumsum(p[::-1])[::-1][1:], np.cumsum(q[::-1])[::-1][1:]
        for edge, mass_p, mass_q in zip(edges, above_p, above_q):
            want = max(profile(part, edge) for part in parts)
            assert mass_p - math.exp(edge) * mass_q == pytest.approx(want, rel=1e-10, abs=1e-14)
            # the losses of a cell lie in it: what the dots are connected by
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.log(p[1:-1] / q[1:-1])
        known = np.isfinite(inside) & (p[1:-1] > 1e-12)
        assert (inside[known] >= edges[:-1][known] - 1e-9).all()
        assert (inside[known] <= edges[1:][known] + 1e-9).all()


def test_sampling_and_reversal_pass_to_the_parts_of_an_envelope():
    envelope = Envelope((FIRST, THIRD))
    for direction in ("remove", "add"):
        sampled = envelope.sampled(0.3, neighbouring=direction)
        for epsilon in (0.0, 0.1, 0.25):
            want = max(profile(part.sampled(0.3, neighbouring=direction), epsilon) for part in (FIRST, THIRD))
            assert profile(sampled, epsilon) == pytest.approx(want, rel=1e-10)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_an_envelope_composes_to_at_least_each_part_and_little_more_than_the_product_of_the_worst(count):
    parts = (THIRD, pairs.laplace(scale_ratio=1.2))
    whole = pairs.compose([(Envelope(parts), count)], delta=1e-4)
    each = [pairs.compose([(part, count)], delta=1e-4) for part in parts]
    mixed = max(pairs.compose([(parts[0], k), (parts[1], count - k)], delta=1e-4).lower for k in range(count + 1))
    assert whole.upper >= max(answer.lower for answer in each)
    assert whole.upper >= mixed  # any history of the parts is dominated
    assert whole.upper <= 1.2 * mixed + 1e-3


def test_the_product_of_laplace_and_gaussian_is_the_product_of_its_factors():
    pair = LaplaceGaussianPair(0.8, 1.3)
    for sampled in (False, True):
        factors = pairs.ProductPair((pairs.laplace(scale_ratio=0.8), pairs.gaussian(noise_multiplier=1.3)))
        one, other = (p.sampled(0.2, neighbouring="remove") if sampled else p for p in (pair, factors))
        for epsilon in (0.0, 0.2, 0.7, 1.5):
            mine, general = (pairs.delta([(p, 1)], epsilon=epsilon, tolerance=1e-4) for p in (one, other))
            assert general.lower <= mine.upper * (1 + 1e-9)
            assert mine.lower <= general.upper * (1 + 1e-9)
            assert mine.width <= 2e-3 * mine.upper


@pytest.mark.parametrize(
    ("scale", "noise"), [(1.0, 1.1), (0.1, 50.0), (1.0, 1000.0), (100.0, 0.3), (5.0, 0.01), (0.02, 3.0)]
)
def test_the_loss_of_laplace_and_gaussian_has_masses_of_one_at_every_scale(scale, noise):
    pair = LaplaceGaussianPair(scale, noise)
    ends = 1 / scale + 1 / (2 * noise**2) + 9 / noise
    log_p, log_q = pair.cells(np.linspace(-ends, ends, 997))
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-12)
    assert np.exp(log_q).sum() == pytest.approx(1, abs=1e-12)
    assert log_q[::-1] == pytest.approx(log_p, rel=1e-9, abs=1e-9)  # its own reversal


def test_bad_parts_and_weights_are_named():
    with pytest.raises(ValueError, match="weights must be at least 0, of sum 1"):
        Labelled((0.7, 0.2), (FIRST, SECOND))
    with pytest.raises(ValueError, match="parts must be at least one Pair"):
        Envelope(())
    with pytest.raises(ValueError, match="scale_ratio must lie in"):
        LaplaceGaussianPair(0.0, 1.0)
