"""Propose-Test-Release under attack: its own runs on the data sets that are the worst, against what is claimed."""

import numpy as np
import pytest

from privrob.accounting import ptr, ptr_plan
from privrob.kinds import Streams
from privrob.mechanisms import ptr_attack

HOW = {"neighbouring": "add_remove"}
FAILURE = 1e-4  # of each audit: one in ten thousand may exceed a correct claim


@pytest.mark.paper("ptr", "Theorem 4.2")
@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("case", ptr.CASES)
def test_the_worst_data_sets_attain_their_case(case, rate):
    settings = ptr.Settings.of(noise_multiplier=1.1, sensitivity_bound=0.5, scale_ratio=1.0, test_failure=0.2)
    rng = Streams(3, case).numpy("runs")
    inside, _ = ptr_attack.losses(case, settings=settings, sample_rate=rate, num_steps=1, num_runs=100_000, rng=rng)
    for epsilon in (0.0, 0.3, 0.8):
        gain = np.maximum(-np.expm1(epsilon - inside), 0.0)
        want = ptr.delta(epsilon, settings=settings, sample_rate=rate, case=case, neighbouring="remove")
        assert abs(gain.mean() - want) < 5 * gain.std() / inside.size**0.5


@pytest.mark.paper("ptr", "Theorem 4.3")
def test_no_audit_exceeds_a_claim_on_drawn_settings():
    for i, (settings, q, _) in enumerate(ptr_plan.drawn(120, rng=np.random.default_rng(23))):
        bound = ptr.epsilon(0.01, settings=settings, sample_rate=q, **HOW).upper
        how = {"settings": settings, "sample_rate": q, "rng": Streams(7, i).numpy("runs")}
        found = ptr_attack.epsilon_lower(num_steps=1, num_runs=5_000, delta=0.01, failure_prob=FAILURE, **how)
        assert found <= bound


@pytest.mark.paper("ptr", "Theorem 4.3")
@pytest.mark.parametrize(
    ("noise", "bound", "scale", "failure", "rate", "steps"),
    [
        (1.1, 0.5, 1.0, 1e-8, 1.0, 1),  # MNIST's noise: the second term of the maximum
        (2.0, 0.3, 2.0, 0.05, 1.0, 1),
        (3.0, 0.15, 20.0, 0.2, 1.0, 1),  # rare failures decide: the first term
        (1.0, 0.5, 1.0, 1e-3, 0.3, 1),
        (3.0, 0.5, 3.0, 1e-6, 0.4, 6),  # a composition
    ],
)
def test_a_claim_that_is_half_of_the_truth_is_refuted(noise, bound, scale, failure, rate, steps):
    settings = ptr.Settings.of(noise_multiplier=noise, sensitivity_bound=bound, scale_ratio=scale, test_failure=failure)
    truth = ptr.composed_epsilon(steps, 0.01, settings=settings, sample_rate=rate, **HOW).upper
    how = {"settings": settings, "sample_rate": rate, "rng": Streams(9, noise).numpy("runs")}
    found = ptr_attack.epsilon_lower(num_steps=steps, num_runs=200_000, delta=0.01, failure_prob=FAILURE, **how)
    assert truth / 2 < found <= truth


def test_an_attack_runs_the_mechanism_of_the_settings_also_where_the_theorems_condition_fails():
    settings = ptr.Settings(5.0, 1.0, 30.0, 0.4, passed_noise_multiplier=8.0)
    truth = ptr.epsilon(1e-3, settings=settings, sample_rate=1.0, **HOW).upper
    how = {"settings": settings, "sample_rate": 1.0, "rng": Streams(4).numpy("runs")}
    found = ptr_attack.epsilon_lower(num_steps=1, num_runs=100_000, delta=1e-3, failure_prob=FAILURE, **how)
    assert truth / 2 < found <= truth
