"""Extreme but valid inputs: a limit on the safe side, or an error that names the argument."""

import math
import warnings

import numpy as np
import pytest

from privrob.accounting import audit, fdp_forms, fdp_vectors, gdp, pairs, pld, ptr, ptr_bounds
from privrob.accounting import laplace_gaussian as lg

SETTINGS = {"noise_multiplier": 1.0, "robust_noise_multiplier": 1.0, "scale_ratio": 1.0, "test_failure": 1e-3}


@pytest.mark.parametrize("gdp_mu", [1e153, 1e155, 1e200, 1.7e308])
def test_the_gaussian_epsilon_grows_to_infinity(gdp_mu):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gdp.epsilon_of(1e-5, gdp_mu=gdp_mu) >= min(gdp_mu, 1e153) ** 2 / 2
        assert gdp.delta_of(1.0, gdp_mu=gdp_mu) == 1
        assert gdp.delta_of(gdp_mu, gdp_mu=1e-300) == 0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: pairs.gaussian(noise_multiplier=1e-20), "noise_multiplier"),
        (lambda: pairs.gaussian(noise_multiplier=1e-300), "noise_multiplier"),
        (lambda: pairs.laplace(scale_ratio=1e-20), "scale_ratio"),
        (lambda: pairs.discrete_gaussian(noise_std=1e200), "noise_std"),
        (lambda: pairs.discrete_gaussian(noise_std=1e-300), "noise_std"),
        (lambda: pairs.binomial(trials=10**15, success_prob=0.5), "trials"),
        (lambda: pairs.compose([(pairs.gaussian(noise_multiplier=1.0), 10**200)], delta=1e-5), "count"),
        (lambda: pairs.compose([(lg.LaplaceGaussianPair(1.0, 1e-20), 2)], delta=1e-5), "noise_multiplier"),
        (lambda: pairs.compose([(lg.LaplaceGaussianPair(1e-6, 1e-4), 2)], delta=1e-5), "scale_ratio"),
        (lambda: fdp_forms.theorem_2(0.1, num_trials=10, success_prob=0.5, max_value=10**15), "max_value"),
        (lambda: ptr_bounds.outcome_only([2.0], settings=ptr.Settings(**{**SETTINGS, "scale_ratio": 1e200})), "scale"),
    ],
)
def test_what_doubles_cannot_hold_is_refused_by_name(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_a_delta_of_one_is_found_after_very_many_steps():
    assert pairs.delta([(pairs.gaussian(noise_multiplier=1.0), 10**9)], epsilon=1.0).upper == 1


def test_a_flat_gaussian_beside_a_laplace_is_refused_not_underrated():
    with pytest.raises(ValueError, match="leave losses that doubles do not resolve"):
        pairs.compose([(lg.LaplaceGaussianPair(1.0, 1e15), 2)], delta=1e-5)


@pytest.mark.parametrize("noise_multiplier", [1e20, 1e160, 1.7e308])
def test_a_little_loss_is_not_none_at_delta_zero(noise_multiplier):
    how = {"sample_rate": 0.01, "noise_multiplier": noise_multiplier, "num_steps": 10}
    assert pld.sampled_gaussian(**how, delta=0.0, neighbouring="remove").upper == math.inf
    assert pld.sampled_gaussian(**how, delta=1e-5, neighbouring="remove").upper == 0


def test_delta_at_a_huge_epsilon_is_small_and_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epsilon in (1e160, 1.7e308):
            found = pairs.delta([(pairs.gaussian(noise_multiplier=1.0), 3)], epsilon=epsilon)
            assert 0 <= found.lower <= found.upper < 1e-7


def test_too_little_noise_costs_all_of_delta_or_an_infinite_mu():
    assert lg.log_delta(1.0, scale_ratio=1.0, noise_multiplier=1e-20) == 0
    assert lg.log_delta(1.0, scale_ratio=1e-300, noise_multiplier=1.0) == 0
    assert fdp_vectors.ternary_l2_mu(clip=1.0, scale_a=2.0, scale_b=1.7e308) == math.inf


@pytest.mark.parametrize("noise_multiplier", [1e-300, 1e160, 1.7e308])
def test_lemma_a1_takes_any_noise(noise_multiplier):
    found = ptr_bounds.lemma_a1([2.0], sample_rate=0.01, noise_multiplier=noise_multiplier)
    assert (found == np.inf) == (noise_multiplier < 1)


@pytest.mark.parametrize(
    ("num_wrong", "num_guesses", "epsilon", "want"),
    # by mpmath, 50 digits: sums of masses; at ε = 0 Euler and Maclaurin's formula
    [
        (6692000, 1000000000, 5.0, 0.37078621685017843),
        (1500, 1000000000000, 20.0, 7.9170661448431593e-39),
        (18563000, 9007199254740992, 20.0, 0.30313775331774358),
        (4503599426043904, 9007199254740992, 0.0, 1.1045249018050743e-5),
    ],
)
def test_the_law_of_very_many_guesses_is_never_underrated(num_wrong, num_guesses, epsilon, want):
    right, how = num_guesses - num_wrong, {"num_guesses": num_guesses, "num_canaries": num_guesses, "epsilon": epsilon}
    got = audit.guesses_failure_prob(right, delta=0.0, **how)
    assert want <= got <= want * (1 + 5e-6)  # rounded up by 1e-6, and by ε's last digit
    more = audit.guesses_failure_prob(right, delta=1e-3 / num_guesses, **how)
    assert got < more <= got + 2e-3


def test_guesses_beyond_the_doubles_are_refused():
    with pytest.raises(ValueError, match="num_canaries must "):
        audit.guesses_failure_prob(2, num_guesses=3, num_canaries=2**53 + 1, epsilon=1.0, delta=0.1)
