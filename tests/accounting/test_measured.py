"""Trade-off functions measured from samples."""

import numpy as np
import pytest
from scipy.stats import norm

from privrob.accounting import audit, gdp, measured


def test_measured_errors_bracket_a_known_curve_and_refute_wrong_ones():
    rng, mu = np.random.default_rng(5), 1.2
    found = measured.errors_of(rng.normal(0, 1, 60_000), rng.normal(mu, 1, 60_000), failure_prob=1e-4)
    exact = lambda alpha: gdp.tradeoff(alpha, gdp_mu=mu)  # noqa: E731
    assert found.threshold.size == 20
    assert not found.refuted(exact).any()
    assert not found.missed(exact).any()  # the best tests
    assert found.refuted(lambda alpha: gdp.tradeoff(alpha, gdp_mu=mu / 2)).any()
    poorer = found.missed(lambda alpha: gdp.tradeoff(alpha, gdp_mu=2 * mu))
    assert poorer.sum() >= 18  # all but those with α near 0
    want = norm.sf(found.threshold)
    assert (np.abs(found.type1 - want) < 5 * np.sqrt(want * (1 - want) / 30_000)).all()
    one = measured.errors_of(np.ones(8), np.ones(8))
    assert (one.type1, one.type2) == (0.0, 1.0)  # a test that never rejects
    few = measured.errors_of(rng.integers(0, 3, 1000), rng.integers(0, 3, 1000))
    assert few.threshold.tolist() == [0, 1]
    with pytest.raises(ValueError, match="num_thresholds"):
        measured.errors_of(np.ones(8), np.ones(8), num_thresholds=0)


def test_failure_probability_is_split_over_both_errors_of_all_thresholds():
    scores = np.arange(200.0)
    found = measured.errors_of(scores, scores + 50, failure_prob=0.01, num_thresholds=5)
    share, hits = 0.01 / (2 * found.threshold.size), np.round(found.type1 * 100).astype(int)
    want = audit.clopper_pearson(hits, 100, failure_prob=share)
    np.testing.assert_allclose([found.type1_lower, found.type1_upper], want, rtol=1e-12)
