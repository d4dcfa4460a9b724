"""A mechanism on a Poisson sample: its releases are what its guarantees speak of."""

import numpy as np
import pytest

from privrob.accounting import audit, gdp, pairs, subsample
from privrob.kinds import NotAvailable, Streams
from privrob.mechanisms.noise import Gaussian, Laplace
from privrob.mechanisms.sampled import PoissonSampled, gaussian_step

SAMPLING = ("dplearn", "Amplification by Sub-sampling")
HOW = {"neighbouring": "add_remove", "sampling": "poisson"}


@pytest.mark.paper(*SAMPLING)
def test_a_release_is_the_noisy_sum_of_records_drawn_by_themselves():
    rng = Streams(0, "sampled").numpy("draws")
    data = np.arange(1.0, 9.0)[:, None] * [1.0, -2.0]
    step = PoissonSampled(Gaussian(noise_std=0.5, l2_sensitivity=1.0), 0.3)
    draws = np.array([step.release(data, rng=rng) for _ in range(20_000)])
    mean, variance = 0.3 * data.sum(axis=0), 0.21 * (data**2).sum(axis=0) + 0.25
    assert (abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(variance / len(draws))).all()
    assert (abs(draws.var(axis=0) / variance - 1) < 0.1).all()
    assert np.isfinite(PoissonSampled(Gaussian(noise_std=0.5, l2_sensitivity=1.0), 0.0).release(data, rng=rng)).all()


@pytest.mark.paper(*SAMPLING)
def test_audits_stay_below_the_exact_epsilon_and_exceed_that_of_a_step_that_does_not_sample():
    rate, trials = 0.2, 200_000
    step = PoissonSampled(Laplace(laplace_scale=0.5, l1_sensitivity=1.0), rate)
    streams = Streams(1, "audit")

    def world(name, present, q):
        rng = streams.numpy(name)
        return (rng.random(trials) < q) * present + rng.laplace(0, 0.5, trials)

    exact = step.epsilon(0.0, **HOW)
    found = audit.two_samples(world("with", 1.0, rate), world("without", 0.0, rate), delta=0.0, failure_prob=1e-3)
    assert 0.5 * exact.upper < found.epsilon_lower <= exact.upper
    broken = audit.two_samples(world("always", 1.0, 1.0), world("never", 0.0, 1.0), delta=0.0, failure_prob=1e-3)
    assert broken.epsilon_lower > exact.upper


def test_a_pure_mechanism_on_a_sample_has_the_amplified_epsilon():
    step = PoissonSampled(Laplace(laplace_scale=0.5, l1_sensitivity=1.0), 0.2)
    assert step.epsilon(0.0, **HOW).upper == pytest.approx(
        subsample.amplified_dp(2.0, 0.0, sample_rate=0.2)[0], rel=1e-6
    )


def test_the_curve_of_the_gaussian_is_exact_and_that_of_others_a_bound():
    orders = np.array([1.5, 2.0, 5.0, 20.0])
    step = gaussian_step(sample_rate=0.1, noise_multiplier=1.5)
    exact = subsample.sampled_gaussian(orders, sample_rate=0.1, noise_multiplier=1.5, neighbouring="add_remove")
    assert (step.rdp(orders, **HOW) == exact).all()
    laplace = PoissonSampled(Laplace(laplace_scale=2.0, l1_sensitivity=1.0), 0.1)
    whole = Laplace(laplace_scale=2.0, l1_sensitivity=1.0).rdp(orders, neighbouring="add_remove", sampling="none")
    assert (laplace.rdp(orders, **HOW) < whole).all()


def test_each_direction_has_its_pair():
    step = gaussian_step(sample_rate=0.1, noise_multiplier=1.0)
    both = step.pairs(**HOW)
    assert len(both) == 2
    spent = {n: step.epsilon(1e-6, neighbouring=n, sampling="poisson") for n in ("add", "remove", "add_remove")}
    assert spent["add"].upper < spent["remove"].lower
    assert spent["add_remove"].upper == pytest.approx(spent["remove"].upper, rel=1e-9)
    assert pairs.compose([(both, 1)], delta=1e-6).upper == spent["add_remove"].upper


def test_what_it_cannot_state_is_refused():
    step = gaussian_step(sample_rate=0.1, noise_multiplier=1.0)
    for how in ({**HOW, "sampling": "none"}, {**HOW, "neighbouring": "replace"}, {**HOW, "sampling": "fixed_size"}):
        for ask in (lambda how: step.rdp([2.0], **how), lambda how: step.pairs(**how)):
            with pytest.raises(NotAvailable):
                ask(how)
    with pytest.raises(NotAvailable):
        step.tradeoff([0.5], **{**HOW, "neighbouring": "replace"})
    with pytest.raises(TypeError, match="mechanism must be one without sampling"):
        PoissonSampled(step, 0.5)
    with pytest.raises(ValueError, match="sample_rate must lie"):
        gaussian_step(sample_rate=1.5, noise_multiplier=1.0)


def test_the_tradeoff_of_a_sample_is_the_dual_of_its_delta_in_each_direction():
    step = gaussian_step(sample_rate=0.1, noise_multiplier=1.0)
    alpha = np.array([0.0, 1e-6, 0.003, 0.1, 0.4, 0.9, 1.0])
    each = {n: step.tradeoff(alpha, neighbouring=n, sampling="poisson") for n in ("remove", "add")}
    for name, beta in each.items():  # f(α) = sup 1 − δ(log γ) − γα; P, the null, is the second of δ's two
        whole = Gaussian(noise_std=1.0, l2_sensitivity=1.0).pairs(neighbouring=name, sampling="none")
        pair = whole.sampled(0.1, neighbouring=name).reversed()
        losses = np.linspace(-12, 12, 48_001)
        log_p, log_q = pair.cells(losses)
        above = [np.exp(np.logaddexp.accumulate(log[:0:-1])[::-1]) for log in (log_p, log_q)]
        lines = 1 - above[0][:, None] + np.exp(losses)[:, None] * (above[1][:, None] - alpha)
        assert beta == pytest.approx(np.maximum(lines.max(axis=0), 0), abs=3e-6)  # slopes 0.0005 apart
        assert (beta >= lines.max(axis=0) - 1e-12).all()
    assert step.tradeoff(alpha, **HOW) == pytest.approx(np.minimum(*each.values()), abs=1e-15)
    assert abs(each["add"][3] - each["remove"][3]) > 1e-4  # the directions differ
    # the null is without the record: a test's power is (1 − q) of its false alarms and q of what it had
    beyond = 0.9 * (1 - alpha) + 0.1 * gdp.tradeoff(alpha, gdp_mu=1.0)
    assert each["add"] == pytest.approx(beyond, abs=1e-12)
