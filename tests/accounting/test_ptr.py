"""Propose-Test-Release: exact values against other accountants, the document's bounds, and what is wrong as printed."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, stats

from privrob.accounting import gdp, pairs, pld, ptr, ptr_bounds, ptr_plan, rdp, subsample
from privrob.accounting.ledger import Ledger
from privrob.accounting.ptr import Settings
from privrob.kinds import NotAvailable
from privrob.mechanisms.sampled import PoissonSampled

MNIST = Settings.of(noise_multiplier=1.1, sensitivity_bound=0.5, scale_ratio=1.0, test_failure=1e-8)
FIGURE = Settings(8.0, 4.0, 1.0, 1e-8)
RATE = 256 / 60_000
HOW = {"neighbouring": "add_remove"}
DRAWN = ptr_plan.drawn(300, rng=np.random.default_rng(11))


# ---------------------------------------------------------------------------------------------------------- one step


@pytest.mark.paper("ptr", "Theorem 4.2")
@pytest.mark.parametrize("case", ptr.CASES)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_step_has_the_delta_of_its_two_outputs_together(case, direction):
    settings, q, b, s1, s2, d0 = Settings(1.3, 0.7, 0.9, 0.05), 0.3, 0.9, 1.3, 0.7, 0.05
    s, t = np.linspace(-25, 26, 5101)[:, None], np.linspace(-16, 18, 3401)[None, :]
    if case == "bounded":  # on a grid, over the noisy margin and the answer
        p, o = (stats.laplace.pdf(s, x, b) * stats.norm.pdf(t, x, s1) for x in (1, 0))
        cell = 0.01 * 0.01
    else:  # the coin and the answer
        p, o = (np.vstack([w * stats.norm.pdf(t, x, n) for n, w in ((s1, 1 - d0), (s2, d0))]) for x in (1, 0))
        cell = 0.01
    mixed = (1 - q) * o + q * p
    first, second = (mixed, o) if direction == "remove" else (o, mixed)
    for epsilon in (0.0, 0.2, 0.6):
        want = np.maximum(first - math.exp(epsilon) * second, 0).sum() * cell
        got = ptr.delta(epsilon, settings=settings, sample_rate=q, case=case, neighbouring=direction)
        assert got == pytest.approx(want, rel=2e-4, abs=1e-7)  # a sum of kinked functions


@pytest.mark.paper("ptr", "Theorem 4.2")
def test_epsilon_and_delta_of_a_step_are_each_others_inverse_and_that_of_its_pairs():
    for settings, q, _ in DRAWN[:40]:
        for delta in (1e-3, 1e-6):
            found = ptr.epsilon(delta, settings=settings, sample_rate=q, **HOW)
            assert found.lower <= found.estimate <= found.upper
            if 0 < found.estimate < 500:
                back = ptr.delta(found.estimate, settings=settings, sample_rate=q, **HOW)
                assert back == pytest.approx(delta, rel=1e-6)
    for settings, q in ((MNIST, RATE), (Settings(2.0, 0.5, 3.0, 0.01), 0.2), (Settings(5.0, 4.0, 0.5, 1e-4), 1.0)):
        step = PoissonSampled(settings, q)
        exact = ptr.epsilon(1e-5, settings=settings, sample_rate=q, **HOW)
        composed = pairs.compose([(step.pairs(neighbouring="add_remove", sampling="poisson"), 1)], delta=1e-5)
        assert composed.lower <= exact.upper and exact.lower <= composed.upper
        assert composed.upper <= exact.upper * 1.001 + 1e-6


@pytest.mark.paper("ptr", "Theorem 4.3")
def test_without_a_test_a_step_is_a_gaussian_and_without_an_answer_a_laplace():
    orders = np.array([1.01, 1.5, 2.0, 7.0, 60.0])
    free = Settings(1.4, 1.4, math.inf, 1e-9)
    for q in (1e-3, 0.2, 1.0):
        want = subsample.sampled_gaussian(orders, sample_rate=q, noise_multiplier=1.4, **HOW)
        assert ptr.renyi(orders, settings=free, sample_rate=q, **HOW) == pytest.approx(want, rel=1e-10)
        mine = ptr.composed_epsilon(500, 1e-5, settings=free, sample_rate=q, **HOW)
        theirs = pld.sampled_gaussian(sample_rate=q, noise_multiplier=1.4, num_steps=500, delta=1e-5, **HOW)
        assert mine.upper >= theirs.lower and mine.upper <= theirs.upper * 1.001
    silent = Settings(math.inf, 1e7, 2.0, 1e-9, passed_noise_multiplier=1e12)
    assert ptr.renyi(orders, settings=silent, sample_rate=1.0, **HOW) == pytest.approx(
        rdp.laplace(orders, scale_ratio=2.0), rel=1e-9
    )
    assert silent.epsilon(1e-5, sampling="none", **HOW).estimate == pytest.approx(0.5 + 2 * math.log1p(-1e-5), rel=1e-6)


@pytest.mark.paper("ptr", "Remark 4.1")
def test_a_test_that_refuses_to_answer_spends_what_its_passed_branch_does():
    textbook = Settings(math.inf, 0.6, 1.0, 1e-6, passed_noise_multiplier=1.2)
    orders = np.array([1.5, 3.0, 9.0])
    bounded = rdp.gaussian(orders, noise_multiplier=1.2) + rdp.laplace(orders, scale_ratio=1.0)
    bad = np.log1p(1e-6 * np.expm1((orders - 1) * orders / (2 * 0.36))) / (orders - 1)
    assert textbook.rdp(orders, sampling="none", **HOW) == pytest.approx(np.maximum(bounded, bad), rel=1e-10)
    with pytest.raises(ValueError, match="passed_noise_multiplier must be given"):
        Settings(math.inf, 0.6, 1.0, 1e-6)


@pytest.mark.paper("ptr", "Theorem 4.3")
def test_the_tradeoff_of_a_step_is_that_of_its_delta():
    settings = Settings(1.5, 0.6, 1.2, 0.02)
    alpha = np.array([0.0, 1e-4, 0.01, 0.2, 0.5, 0.9, 1.0])
    beta = settings.tradeoff(alpha, sampling="none", **HOW)
    epsilons = np.linspace(0, 12, 2401)
    deltas = np.array([ptr.delta(e, settings=settings, sample_rate=1.0, **HOW) for e in epsilons])
    both = np.concatenate([epsilons, -epsilons])
    lines = np.concatenate([1 - deltas, (1 - deltas) * np.exp(-epsilons)])
    convex = np.maximum(lines[:, None] - np.exp(both)[:, None] * alpha, 0).max(axis=0)
    assert (beta >= convex - 1e-6).all()  # the hull of the smaller of both, which is what δ knows of
    assert beta == pytest.approx(convex, abs=2e-3)
    assert beta[0] == 1.0 and beta[-1] == 0.0


@pytest.mark.paper("ptr", "Theorem 4.3")
def test_more_noise_never_costs_more_and_more_steps_never_less():
    for settings, q, _ in DRAWN[:60]:
        orders = np.array([1.3, 4.0, 20.0])
        here = ptr.renyi(orders, settings=settings, sample_rate=q, **HOW)
        assert (here >= 0).all() and np.isfinite(here).all()
        for name in ("noise_multiplier", "robust_noise_multiplier", "scale_ratio"):
            more = {name: 1.2 * getattr(settings, name)}
            if name == "robust_noise_multiplier":
                more["noise_multiplier"] = settings.noise_multiplier * 1.2
            there = ptr.renyi(orders, settings=dataclasses.replace(settings, **more), sample_rate=q, **HOW)
            assert (there <= here * (1 + 1e-9)).all()
        fewer = ptr.renyi(orders, settings=settings, sample_rate=0.7 * q, **HOW)
        assert (fewer <= here * (1 + 1e-9)).all()
    found = [ptr.composed_epsilon(t, 1e-5, settings=MNIST, sample_rate=RATE, **HOW).upper for t in (1, 10, 100, 1000)]
    assert found == sorted(found)


@pytest.mark.paper("ptr", "Theorem 4.4")
def test_the_direction_add_of_a_bounded_step_never_costs_more_than_remove():
    # the "asymmetry difficulty" of Section 4.3 is absent from Rényi divergences
    orders = np.array([1.001, 1.2, 2.0, 5.5, 30.0, 200.0])
    for settings, q, _ in DRAWN[:60]:
        remove, add = (
            ptr.renyi(orders, settings=settings, sample_rate=q, case="bounded", neighbouring=d) for d in ("remove", "add")
        )
        assert (add <= remove * (1 + 1e-9)).all()


# -------------------------------------------------------------------------------------------------------- composition


@pytest.mark.paper("ptr", "Figure 3")
@pytest.mark.parametrize("settings, q, steps", [(MNIST, RATE, 2000), (Settings(16.0, 8.0, 4.0, 1e-8), 0.01, 5000)])
def test_a_composition_agrees_with_dp_accounting_on_the_same_loss(settings, q, steps):
    pair = settings.case_pairs()["bounded"]
    grid = 1e-4
    for direction in ("remove", "add"):
        sampled = pair.sampled(q, neighbouring=direction)
        edges = np.arange(-6000 if direction == "add" else -200, 60_000) * grid
        log_p, _ = sampled.cells(edges)
        masses = np.exp(log_p)  # rounded up to the upper edge of its cell: pessimistic, first order
        rounded = dict(enumerate(masses[:-1], start=int(round(edges[0] / grid))))
        theirs = privacy_loss_distribution.PrivacyLossDistribution.create_from_pmf(
            privacy_loss_distribution.pld_pmf.SparsePLDPmf(rounded, grid, float(masses[-1]), True)
        ) if False else None
        mine = pairs.compose([(sampled, steps)], delta=1e-5)
        from dp_accounting.pld import pld_pmf

        their = pld_pmf.create_pmf(rounded, grid, float(masses[-1]), True).self_compose(steps)
        assert mine.lower <= their.get_epsilon_for_delta(1e-5)
        assert theirs is None
    whole = ptr.composed_epsilon(steps, 1e-5, settings=settings, sample_rate=q, **HOW)
    assert whole.width <= 2e-3 * whole.upper
