"""Propose-Test-Release under attack: its own runs on the data sets that are the worst, against what is claimed."""

import numpy as np
import pytest

from privrob.accounting import audit, ptr, ptr_plan
from privrob.kinds import Streams
from privrob.mechanisms.ptr import ptr_tmean

HOW = {"neighbouring": "add_remove"}
FAILURE = 1e-4  # of each audit: one in ten thousand may exceed a correct claim
SAMPLES = 100_000


def worst_data(case, bound):
    """(F, data, data with one record more) that attain a case: one-dimensional gradients, R = 1, τ = bound."""
    if case == "test_fails":  # both margins 0; SUM and TSUM move by 1
        return 1, np.ones((2, 1)), np.ones((3, 1))
    return 2, np.array([[bound], [1.0]]), np.array([[bound], [1.0], [1.0]])  # margins 1 and 0; 1 and τ


def scores(case, settings, sample_rate, rng, samples=SAMPLES):
    """Log likelihood ratios of outputs with the record (on a sample) and without."""
    trimmed, without, with_it = worst_data(case, settings.sensitivity_bound)
    mechanism = ptr_tmean(
        trimmed,
        max_norm=1.0,
        sensitivity_bound=settings.sensitivity_bound,
        noise_multiplier=settings.noise_multiplier,
        laplace_scale=settings.scale_ratio,
        test_failure=settings.test_failure,
    )
    drawn = rng.binomial(samples, sample_rate)
    found = []
    for data, count in ((with_it, drawn), (without, samples - drawn), (without, samples)):
        values, margins, _ = mechanism.release_many(data, count, rng=rng)
        losses = mechanism.log_density(values, margins, with_it) - mechanism.log_density(values, margins, without)
        found.append(losses)
    return rng.permutation(np.concatenate(found[:2])), found[2]  # an audit halves its samples in order


@pytest.mark.paper("ptr", "Theorem 4.2")
@pytest.mark.parametrize("case", ptr.CASES)
def test_the_worst_data_sets_attain_their_case(case):
    settings = ptr.Settings.of(noise_multiplier=1.1, sensitivity_bound=0.5, scale_ratio=1.0, test_failure=0.2)
    inside, _ = scores(case, settings, 1.0, Streams(3, case).numpy("runs"))
    for epsilon in (0.0, 0.5, 1.5):
        gain = np.maximum(-np.expm1(epsilon - inside), 0.0)
        want = ptr.delta(epsilon, settings=settings, sample_rate=1.0, case=case, **HOW)
        assert abs(gain.mean() - want) < 5 * gain.std() / SAMPLES**0.5


def audited(settings, sample_rate, rng, *, delta, samples):
    """The largest lower bound on ε that attacks on both cases prove, in both directions."""
    lower = 0.0
    for case in ptr.CASES:
        first, second = scores(case, settings, sample_rate, rng, samples=samples)
        for pair in ((first, second), (-second, -first)):
            lower = max(lower, audit.two_samples(*pair, delta=delta, failure_prob=FAILURE).epsilon_lower)
    return lower


@pytest.mark.paper("ptr", "Theorem 4.3")
def test_no_audit_exceeds_a_claim_on_drawn_settings():
    for i, (settings, q, _) in enumerate(ptr_plan.drawn(150, rng=np.random.default_rng(23))):
        bound = ptr.epsilon(0.01, settings=settings, sample_rate=q, **HOW).upper
        assert audited(settings, q, Streams(7, i).numpy("runs"), delta=0.01, samples=5_000) <= bound


@pytest.mark.paper("ptr", "Theorem 4.3")
@pytest.mark.parametrize(
    ("noise", "bound", "scale", "failure", "rate"),
    [
        (1.1, 0.5, 1.0, 1e-8, 1.0),  # MNIST's noise: the second term of the maximum
        (2.0, 0.3, 2.0, 0.05, 1.0),
        (3.0, 0.15, 20.0, 0.2, 1.0),  # rare failures decide: the first term
        (1.0, 0.5, 1.0, 1e-3, 0.3),
    ],
)
def test_a_claim_that_is_half_of_the_truth_is_refuted(noise, bound, scale, failure, rate):
    settings = ptr.Settings.of(noise_multiplier=noise, sensitivity_bound=bound, scale_ratio=scale, test_failure=failure)
    truth = ptr.epsilon(0.01, settings=settings, sample_rate=rate, **HOW).upper
    found = audited(settings, rate, Streams(9, noise).numpy("runs"), delta=0.01, samples=200_000)
    assert truth / 2 < found <= truth
