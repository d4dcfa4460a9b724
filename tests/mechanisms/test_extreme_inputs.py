"""Extreme inputs of samplers: an output on the safe side, or an error that names the argument."""

import math

import numpy as np
import pytest

from privrob.accounting import audit
from privrob.mechanisms import binomial, discrete, lattice, ranges, signs, ternary
from privrob.mechanisms.histogram import StableHistogram, counts
from privrob.mechanisms.noise import Gaussian, Laplace

HOW = {"neighbouring": "replace", "sampling": "none"}
RANGE = ranges.PrivateRange.gaussian(1.0, lost_prob=0.1, dimension=1)
BLOCKS = ranges.HeavyTailedRange.as_printed
PRINTED = {"delta": 1e-5, "dimension": 1}
UNDERFLOW = 5e-324


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: signs.StoSign(1.0, 1.7e308), "scale_a"),  # was: always -1
        (lambda: signs.StoSign(1.0, 10**400), "scale_a"),
        (lambda: signs.CLDP(1.0, UNDERFLOW), "target_epsilon"),
        (lambda: signs.CLDP(9e307, 1.0), "clip"),  # was: a fair coin
        (lambda: signs.NoisySign(9e307, 0.1), "clip"),
        (lambda: signs.NoisySign(1e-310, 1e-200), "noise_ratio"),
        (lambda: signs.NoisySign(1e200, 1e200), "noise_ratio"),
        (lambda: signs.word_law([0.5], odds=math.nan), "odds"),
        (lambda: ternary.Ternary(1.0, 2.0, 1.7e308), "scale_b"),
        (lambda: ternary.GeneralTernary(9e307, 0.3, 0.1, 0.5), "clip"),
        (lambda: lattice.DiscreteGaussian(1, 1e-300), "noise_std"),  # was: an endless loop
        (lambda: lattice.DiscreteGaussian(1, 1e200), "noise_std"),
        (lambda: lattice.DiscreteGaussian(2**63, 1.0), "max_value"),  # was: int64 wrapped round
        (lambda: lattice.DiscreteGaussian.of_variance(1e300, max_value=1), "variance"),
        (lambda: lattice.Skellam(1, UNDERFLOW), "variance"),
        (lambda: lattice.Skellam(1, 1e200), "variance"),
        (lambda: binomial.BinomialNoise(2**63, 10, 0.5), "max_value"),
        (lambda: discrete.infimum(signs.Sign(), 0.1, inputs=[]), "inputs"),
        (lambda: discrete.sampled_test(signs.Sign(), 0, 1, 0.1, num_runs=0, rng=rng()), "num_runs"),
        (lambda: StableHistogram(Laplace(1.0, 1.0), 1.0, 1.0, math.inf), "origin"),
        (lambda: StableHistogram(Laplace(1.0, 1.0), 10**400, 1.0), "cutoff"),
        (lambda: counts([1.0], width=1.0, origin=math.nan), "origin"),
        (lambda: counts([10**400], width=1.0), "values"),
        (lambda: counts(["a"], width=1.0), "values"),
        (lambda: ranges.PrivateRange.as_printed(1.0, delta=1e-5, dimension=0), "dimension"),
        (lambda: ranges.PrivateRange.as_printed(1.0, delta=1e-5, dimension=2.5), "dimension"),
        (lambda: ranges.PrivateRange.gaussian(1.0, lost_prob=1.5, dimension=2), "lost_prob"),
        (lambda: ranges.PrivateRange(None), "histogram"),
        (lambda: RANGE.entries(-1), "dimension"),
        (lambda: RANGE.needed(top_share=0.0), "top_share"),
        (lambda: ranges.PrivateRange(StableHistogram(Laplace(1.0, 1.0), math.inf, 1.0)).needed(), "cutoff"),
        (lambda: RANGE.release(np.ones(3), rng=rng()), "data"),
        (lambda: RANGE.release(np.ones((3, 0)), rng=rng()), "data"),
        (lambda: ranges.HeavyTailedRange(RANGE, 3).release([[1.0]], rng=rng()), "data"),
        (lambda: BLOCKS(1.0, failure_prob=UNDERFLOW, **PRINTED), "failure_prob"),
        (lambda: BLOCKS("a", **PRINTED), "epsilon"),
        (lambda: ranges.HeavyTailedRange(RANGE, 10**30), "num_blocks"),
        (lambda: audit.two_samples([1.0] * 8, [2.0] * 8, delta=0.0, num_thresholds=0), "num_thresholds"),
        (lambda: audit.clopper_pearson(10**400, 10**400, failure_prob=0.1), "hits"),
    ],
)
def test_what_doubles_cannot_hold_is_refused_by_name(call, name):
    with pytest.raises((ValueError, TypeError), match=f"{name}.* must "):
        call()


def test_a_single_precision_clip_does_not_make_the_noise_vanish():
    assert signs.NoisySign(np.float32(1), 1e-200).plus_prob(0.0) == 0.5


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_terngrad_clips_at_its_deviations_whatever_the_size(size):
    shape = np.array([1.0, 0.5, -0.25, 0.0])
    shares, scale = ternary.TernGrad(True, 1.0).scaled(size * shape)
    want, unit = ternary.TernGrad(True, 1.0).scaled(shape)
    assert shares == pytest.approx(want)
    assert scale / size == pytest.approx(unit)


@pytest.mark.parametrize("noise", [Laplace(1.0, 1.0), Gaussian(1.0, 1.0)])
def test_a_lost_mass_below_the_doubles_is_not_none(noise):
    histogram = StableHistogram(noise, 1e6, 1.0)
    assert histogram.lost_prob > 0
    assert histogram.epsilon(0.0, **HOW).upper == math.inf


@pytest.mark.parametrize("noise_std", [0.0, 1e-20, 1e-15])
def test_a_cutoff_above_little_noise_loses_what_it_says(noise_std):
    assert StableHistogram.gaussian(noise_std, lost_prob=1e-9, width=1.0).lost_prob <= 1e-9
    assert StableHistogram.karwa_vadhan(1e20, delta=1e-5, width=1.0).lost_prob <= 1e-5


@pytest.mark.parametrize(("count", "cutoff", "want"), [(3, 5.0, 1.0), (3, 2.0, 0.0), (1, 5.0, 0.0)])
def test_without_noise_a_bin_is_missed_for_certain_or_never(count, cutoff, want):
    for noise in (Laplace(0.0, 1.0), Gaussian(0.0, 1.0)):
        assert StableHistogram(noise, cutoff, 1.0).miss_prob(count, 1) == want


def test_a_refined_place_of_counts_below_zero_is_the_middle():
    where = ranges.PrivateRange(StableHistogram(Laplace(1.0, 1.0), -math.inf, 1.0), "refined")
    assert where.place(np.array([1, 2]), np.array([-1.0, -2.0])) == 1.5


def test_skellam_on_inputs_without_a_window_takes_the_bound():
    noise = lattice.Skellam(2**53, 1.0)
    bound = noise.vector_rdp_upper([2.0], l1_sensitivity=2.0**53, l2_sensitivity=2.0**53)
    assert noise.rdp([2.0], **HOW) == bound
