"""Accountants: Rényi curves, privacy loss distributions, calibration, Propose-Test-Release, composition."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from privrob.accounting import compose, pairs, pld, ptr, ptr_bounds, rdp, subsample, tradeoff_composed
from privrob.accounting.calibrate import noise_multiplier_for
from privrob.accounting.dominating import DiscretePair

RATE, SIGMA, DELTA = 256 / 60_000, 1.1, 1e-5
HOW = {"sample_rate": RATE, "noise_multiplier": SIGMA, "neighbouring": "add_remove"}
GOOGLE = "dp_accounting"


def event(steps, sigma=SIGMA):
    step = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(step, steps)


# ---------------------------------------------------------------------------------------------------------------- RDP


def test_renyi_curve(compare):
    orders = list(range(2, 129))

    def opacus():
        from opacus.accountants.analysis import rdp as peer

        return lambda: peer.compute_rdp(q=RATE, noise_multiplier=SIGMA, steps=1, orders=orders)

    def autodp():
        from autodp import rdp_acct, rdp_bank

        def curve():
            accountant = rdp_acct.anaRDPacct(m=128)
            accountant.compose_poisson_subsampled_mechanisms(lambda a: rdp_bank.RDP_gaussian({"sigma": SIGMA}, a), RATE)
            return accountant.RDPs_int

        return curve

    peers = {
        GOOGLE: lambda: RdpAccountant(orders).compose(event(1))._rdp,
        "Opacus": compare.library("opacus", opacus),
        "autodp": compare.library("autodp", autodp),
    }
    path = "Rényi curve of the sampled Gaussian, whole orders 2 to 128"
    found = compare(path, lambda: subsample.sampled_gaussian(orders, **HOW), peers=peers, at_most={GOOGLE: 1.0})
    np.testing.assert_allclose(found["ours"], found[GOOGLE], rtol=1e-7)


def test_epsilon_by_renyi(compare):
    def ours():
        orders = rdp.default_orders()
        curve = subsample.sampled_gaussian(orders, **HOW)
        return rdp.epsilon_of(DELTA, orders=orders, rdp=10_000 * curve, conversion="optimal").epsilon

    peers = {GOOGLE: lambda: RdpAccountant().compose(event(10_000)).get_epsilon(DELTA)}
    path = f"ε of 10,000 steps by a Rényi curve, {len(rdp.default_orders())} orders (peer: 156)"
    found = compare(path, ours, peers=peers)
    assert 0.99 * found[GOOGLE] < found["ours"] < 1.001 * found[GOOGLE]  # the orders of the two grids differ


# ---------------------------------------------------------------------------------------------------------------- PLD


@pytest.mark.parametrize("steps", [1_000, 100_000])
def test_epsilon_by_loss_distributions(compare, steps):
    def google(width):
        def epsilon():
            one = privacy_loss_distribution.from_gaussian_mechanism(
                SIGMA, sampling_prob=RATE, value_discretization_interval=width
            )
            return one.self_compose(steps).get_epsilon_for_delta(DELTA)

        return epsilon

    def prv():
        from prv_accountant import PRVAccountant
        from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

        def epsilon():
            step = PoissonSubsampledGaussianMechanism(noise_multiplier=SIGMA, sampling_probability=RATE)
            made = PRVAccountant(step, max_self_compositions=steps, eps_error=0.01, delta_error=1e-10)
            return made.compute_epsilon(delta=DELTA, num_self_compositions=[steps])

        return epsilon

    peers = {
        f"{GOOGLE}, grid 1e-4": google(1e-4),
        f"{GOOGLE}, grid 1e-3": google(1e-3),
    }
    if steps <= 1_000:  # takes ten seconds at 100,000
        peers["prv_accountant"] = compare.library("prv_accountant", prv)
    path = f"ε of {steps:,} sampled Gaussian steps as an interval (peers: one end)"
    found = compare(path, lambda: pld.sampled_gaussian(num_steps=steps, delta=DELTA, **HOW), peers=peers)
    assert found["ours"].lower <= found[f"{GOOGLE}, grid 1e-4"] * (1 + 1e-4)
    assert found["ours"].width < 0.01


def test_epsilon_of_any_pair(compare):
    """Binomial noise, 100,000 releases: the peer's entry for a list of probabilities rounds every loss up."""
    pair = pairs.binomial(trials=1000, success_prob=0.5)
    p = np.exp(pair.log_p)
    q = np.exp(pair.log_q)

    def google():
        lower, upper = ({i: float(np.log(m)) for i, m in enumerate(side) if m > 0} for side in (q, p))
        one = privacy_loss_distribution.from_two_probability_mass_functions(
            lower, upper, value_discretization_interval=1e-3
        )
        return one.self_compose(100_000).get_epsilon_for_delta(DELTA)

    path = "ε of 100,000 binomial releases within 1e-3 (peer: one end, 17 % too high)"
    ours = lambda: pairs.compose([(pair, 100_000)], delta=DELTA)  # noqa: E731
    found = compare(path, ours, peers={f"{GOOGLE}, grid 1e-3": google}, within=1.0)
    assert found["ours"].width <= 1.1e-3 * max(1.0, found["ours"].upper / 1000)
    assert found["ours"].upper < found[f"{GOOGLE}, grid 1e-3"]


# -------------------------------------------------------------------------------------------------------- calibration


def test_calibration(compare):
    how = {"delta": DELTA, "sample_rate": RATE, "num_steps": 10_000, "neighbouring": "add_remove"}

    def google():
        bracket = dp_accounting.ExplicitBracketInterval(0.5, 2.0)
        make = lambda sigma: event(10_000, sigma)  # noqa: E731
        return dp_accounting.calibrate_dp_mechanism(PLDAccountant, make, 2.0, DELTA, bracket, tol=1e-3)

    def opacus():
        from opacus.accountants.utils import get_noise_multiplier

        how = {"target_epsilon": 2.0, "target_delta": DELTA, "sample_rate": RATE, "steps": 10_000}
        return lambda: get_noise_multiplier(**how, accountant="prv")

    def riskcal():
        from riskcal.accountants import CTDAccountant
        from riskcal.calibration import find_noise_multiplier_for_epsilon_delta as find

        return lambda: find(CTDAccountant, epsilon=2.0, delta=DELTA, sample_rate=RATE, num_steps=10_000)

    peers = {
        GOOGLE: google,
        "Opacus": compare.library("opacus", opacus),
        "riskcal": compare.library("riskcal", riskcal),
    }
    path = "noise for ε = 2 after 10,000 steps, to 1e-3"
    found = compare(path, lambda: noise_multiplier_for(2.0, **how), peers=peers, at_most={GOOGLE: 0.5}, within=1.2)
    assert 1.98 <= found["ours"].epsilon.upper <= 2.0
    assert abs(found["ours"].noise_multiplier - found[GOOGLE]) < 0.01


# ------------------------------------------------------------------------------------------------ propose-test-release


def test_propose_test_release(compare):
    """No peer accounts for it: its own ways, and a plain sampled Gaussian by the same machinery."""
    settings, steps = ptr.Settings(16.0, 8.0, 4.0, 1e-8), 100_000
    how = {"sample_rate": 0.01, "neighbouring": "add_remove"}

    def spent(curve_of):
        orders = rdp.default_orders()
        curve = steps * curve_of(orders)
        return rdp.epsilon_of(DELTA, orders=orders, rdp=curve, conversion="balle2020").epsilon

    def white_box():
        return spent(lambda orders: ptr_bounds.theorem_4_4(orders, settings=settings, sample_rate=0.01))

    plain = {"noise_multiplier": 16.0, "num_steps": steps, "delta": DELTA, **how}
    peers = {
        "its exact Rényi curve": lambda: spent(lambda orders: ptr.renyi(orders, settings=settings, **how)),
        "the document's bound": white_box,
        "a plain Gaussian's ε": lambda: pld.sampled_gaussian(**plain),
    }
    ours = lambda: ptr.composed_epsilon(steps, DELTA, settings=settings, **how)  # noqa: E731
    found = compare("ε of 100,000 sampled Propose-Test-Release steps, as an interval", ours, peers=peers)
    assert found["a plain Gaussian's ε"].upper < found["ours"].upper < found["its exact Rényi curve"]
    assert found["its exact Rényi curve"] < found["the document's bound"]


# -------------------------------------------------------------------------------------------------------- composition


def brute_delta(epsilons, total):
    """δ of randomised responses together, each of the 2^k outcomes by itself."""
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(epsilons))))
    log_p = signs @ (epsilons / 2) - np.logaddexp(epsilons / 2, -epsilons / 2).sum()
    log_q = -signs @ (epsilons / 2) - np.logaddexp(epsilons / 2, -epsilons / 2).sum()
    return float(np.maximum(np.exp(log_p) - math.exp(total) * np.exp(log_q), 0).sum())


def test_optimal_composition_of_different_mechanisms(compare):
    epsilons = np.linspace(0.05, 0.2, 16)
    ours = lambda: compose.optimal_heterogeneous_delta(epsilons, 0.0, total_epsilon=0.5)  # noqa: E731
    peers = {"all 2¹⁶ outcomes": lambda: brute_delta(epsilons, 0.5)}
    found = compare("optimal composition of 16 different mechanisms: δ at ε = 0.5", ours, peers=peers)
    np.testing.assert_allclose(found["ours"].estimate, found["all 2¹⁶ outcomes"], rtol=1e-9)


def test_composed_tradeoff_function(compare):
    """Eight releases of five symbols: outcomes with the same counts are one, 495 of 390,625."""
    p, q = np.array([0.1, 0.2, 0.3, 0.25, 0.15]), np.array([0.2, 0.25, 0.25, 0.2, 0.1])
    alpha = np.linspace(0, 1, 101)

    def brute():
        left, right = np.ones(1), np.ones(1)
        for _ in range(8):
            left, right = np.outer(left, p).ravel(), np.outer(right, q).ravel()
        order = np.argsort(-right / left)
        size, power = np.append(0, np.cumsum(left[order])), np.append(0, np.cumsum(right[order]))
        return 1 - np.interp(alpha, size, power)

    ours = lambda: tradeoff_composed.exact([(DiscretePair.of(p, q), 8)])(alpha)  # noqa: E731
    found = compare("trade-off function of 8 releases of 5 symbols", ours, peers={"all 5⁸ outcomes": brute})
    np.testing.assert_allclose(found["ours"], found["all 5⁸ outcomes"], atol=1e-11)
