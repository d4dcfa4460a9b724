"""Audits: never above the truth (beyond the stated failures), near it with many samples, and able to catch a lie."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from privrob.accounting import audit


def test_clopper_pearson_covers_what_it_promises():
    # exact coverage by enumeration at awkward probabilities, where a normal interval would fail
    for trials, prob in [(20, 0.01), (50, 0.5), (200, 0.99)]:
        hits = np.arange(trials + 1)
        lower, upper = audit.clopper_pearson(hits, trials, failure_prob=0.05)
        inside = (lower <= prob) & (prob <= upper)
        assert binom.pmf(hits, trials, prob)[inside].sum() >= 0.95


def test_no_hits_and_all_hits_have_the_closed_form():
    lower, upper = audit.clopper_pearson([0, 10], 10, failure_prob=0.1)
    assert (lower[0], upper[1]) == (0.0, 1.0)
    assert upper[0] == pytest.approx(1 - 0.05**0.1, rel=1e-12)  # (1 - p)^10 = 0.05
    assert lower[1] == pytest.approx(0.05**0.1, rel=1e-12)


@pytest.mark.paper("dplearn", "slide Laplace Mechanism is Differentially Private")
def test_a_laplace_mechanism_is_audited_close_to_its_epsilon_and_never_above():
    rng = np.random.default_rng(5)
    found = [
        audit.two_samples(rng.laplace(1, 1, 200_000), rng.laplace(0, 1, 200_000), delta=0.0, failure_prob=1e-3)
        for _ in range(10)
    ]
    bounds = [a.epsilon_lower for a in found]
    assert max(bounds) <= 1.0  # one excess in 1,000 audits is allowed, none in these ten
    assert min(bounds) > 0.9


def test_a_mechanism_with_too_little_noise_is_caught():
    rng = np.random.default_rng(6)
    claimed, scale = 1.0, 0.5  # scale 1/2 is epsilon 2
    found = audit.two_samples(rng.laplace(0, scale, 50_000), rng.laplace(1, scale, 50_000), delta=0.0)
    assert found.epsilon_lower > 1.5 * claimed


def test_equal_samples_prove_nothing():
    rng = np.random.default_rng(7)
    found = audit.two_samples(rng.normal(size=5_000), rng.normal(size=5_000), delta=1e-5)
    assert found.epsilon_lower == 0.0


def test_delta_is_taken_off_before_the_ratio():
    with_delta = audit.epsilon_from_counts(500, 1000, 10, 1000, delta=0.3, failure_prob=0.01)
    without = audit.epsilon_from_counts(500, 1000, 10, 1000, delta=0.0, failure_prob=0.01)
    lower_p, _ = audit.clopper_pearson(500, 1000, failure_prob=0.01)
    _, upper_q = audit.clopper_pearson(10, 1000, failure_prob=0.01)
    assert with_delta == pytest.approx(math.log((lower_p - 0.3) / upper_q), rel=1e-12)
    assert without > with_delta > 0


def test_too_few_samples_are_refused_by_name():
    with pytest.raises(ValueError, match="scores_p and scores_q need at least 4"):
        audit.two_samples([1.0, 2.0], [1.0, 2.0], delta=0.0)
