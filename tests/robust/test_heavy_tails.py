"""Records of heavy tails, and the quantities of the proof of PRIME-HT."""

import math

import numpy as np
import pytest
from scipy import stats

from privrob.kinds import Streams
from privrob.robust import heavy_tails, mmw, rate_cells
from privrob.robust.prime import prime, settings_for


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.paper("prime", "Assumption 2")
@pytest.mark.parametrize("name", heavy_tails.TAILS)
def test_clean_records_have_mean_zero_and_variance_one(name):
    """Fourth moments are infinite for two of them, so that a sample's variance says little: the whole law is compared
    with SciPy's, brought to mean 0 and variance 1 by SciPy's own moments."""
    values = heavy_tails.clean(name, 40_000, 1, rng=rng(1))[:, 0]
    if name == "two_point":
        rare, rest = values.max(), values.min()
        p = 0.01
        assert {rare, rest} == set(values)
        assert (p * rare + (1 - p) * rest, p * rare**2 + (1 - p) * rest**2) == pytest.approx((0.0, 1.0), abs=1e-12)
        assert abs((values == rare).mean() - p) < 5 * math.sqrt(p / 40_000)
        return
    law = {"normal": stats.norm(), "student": stats.t(2.5), "pareto": stats.pareto(2.5)}[name]
    assert stats.kstest(values * law.std() + law.mean(), law.cdf).pvalue > 1e-3


@pytest.mark.paper("prime", "Assumption 2")
@pytest.mark.parametrize("kind", heavy_tails.ADVERSARIES)
def test_an_adversary_replaces_its_share_and_moves_the_mean_as_it_says(kind):
    rate, n = 0.04, 50_000
    data, bad = heavy_tails.corrupted("two_point", n, 4, corruption_rate=rate, adversary=kind, rng=rng(2), mean=5.0)
    clean, _ = heavy_tails.corrupted("two_point", n, 4, corruption_rate=rate, adversary="none", rng=rng(2), mean=5.0)
    assert bad.sum() == (0 if kind == "none" else 2000)
    assert (data[~bad] == clean[~bad]).all()
    if kind == "nan":
        assert np.isnan(data[bad]).all()
        return
    moved = np.linalg.norm(data.mean(axis=0) - 5.0) / math.sqrt(rate)
    want = {"none": (0, 0.1), "root": (0.9, 1.1), "far": (9.9, 10.1), "cut": (1.1, 2.1)}[kind]
    assert want[0] <= moved <= want[1]


@pytest.mark.paper("prime", "Algorithm 3")
def test_clipping_without_a_filter_bounds_what_far_records_do_and_filtering_removes_it():
    settings = {"dimension": 6, "num_records": 40_000, "corruption_rate": 0.05, "adversary": "far", "tail": "pareto"}
    settings |= {"repetitions": 2, "epsilon": 3.0, "delta": 1e-6, "virtual_records": 10**10}
    rows = rate_cells.heavy_cell(settings | {"estimators": list(rate_cells.ESTIMATORS)}, streams=Streams(0, "x"))
    worst = dict.fromkeys(rate_cells.ESTIMATORS, 0.0)
    for row in rows:
        worst[row["estimator"]] = max(worst[row["estimator"]], row["error"] / math.sqrt(0.05))
    assert worst["mean"] > 9
    assert 3 < worst["truncation"] < 8
    assert worst["PRIME-HT"] < 1
    assert worst["filter"] < 0.5
    how = {"corruption_rate": 0.1, "epsilon": 1.0, "delta": 1e-6, "rng": rng(0)}
    assert heavy_tails.truncated_mean(np.zeros((9, 2)), **how).noise.epsilon(1e-6).upper <= 1.0
    assert heavy_tails.truncated_mean(np.zeros((0, 2)), **how).refused
    with pytest.raises(ValueError, match="estimators must be"):
        rate_cells.heavy_cell(settings | {"estimators": ["median"]}, streams=Streams(0, "x"))


@pytest.mark.paper("prime", "Definition K.9")
@pytest.mark.paper("prime", "Lemma K.10")
def test_goodness_of_three_records_and_the_good_part():
    three = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
    assert heavy_tails.goodness_of(three, mean=[0.0, 1.0], corruption_rate=0.25) == pytest.approx((4.0, 2.0))
    far = np.vstack([three, [[90.0, 0.0]]])
    kept = heavy_tails.good_part(far, mean=[2.0, 1.0], corruption_rate=0.25)
    assert sorted(map(tuple, kept)) == sorted(map(tuple, three))
    data = heavy_tails.clean("pareto", 3000, 2, rng=rng(3))
    shift, norm = heavy_tails.goodness_of(
        heavy_tails.good_part(data, mean=[0, 0], corruption_rate=0.02), mean=[0, 0], corruption_rate=0.02
    )
    assert shift < 2
    assert norm < 1.5


@pytest.mark.paper("prime", "Lemma K.11")
def test_filtered_means_stay_within_the_bound_and_nearly_attain_it():
    worst, n = 0.0, 1000
    for rate in (0.02, 0.1):
        m = int(rate * n)
        clean = np.concatenate([np.full(m, -math.sqrt((n - m) / m)), np.full(n - m, math.sqrt(m / (n - m)))])
        clean += math.sqrt(rate)  # variance 1, mean within √α
        for reach in (0.0, 1.0, 3.0, 30.0):
            kept = np.concatenate([clean[m:], np.full(m, reach / math.sqrt(rate))])
            norm = ((kept - kept.mean()) ** 2).sum() / n
            bound = heavy_tails.mean_bound(rate, norm)
            assert abs(kept.mean()) <= bound <= heavy_tails.mean_bound(rate, norm, form="as_printed")
            worst = max(worst, abs(kept.mean()) / bound)
    assert worst > 0.85


@pytest.mark.paper("prime", "Lemma K.3")
@pytest.mark.paper("prime", "Lemma K.5")
@pytest.mark.paper("prime", "Lemma K.7")
@pytest.mark.paper("prime", "Lemma K.8")
def test_a_threshold_removes_corrupted_records_and_leaves_little_of_the_score():
    generator = rng(4)
    for _ in range(200):
        m = int(generator.integers(1, 100))
        scores = np.exp(generator.normal(0, 2, 300))
        bad = np.arange(300) < m
        scores[bad] /= scores[bad].sum()
        scores[~bad] *= 1e-3 / scores[~bad].sum()
        scores *= 300 * 20
        shares = heavy_tails.shares_of_bins(scores, num_bins=40)
        assert shares.sum() == pytest.approx((scores >= 0.25).mean())
        rho = mmw.pick_threshold(shares, scores.mean())
        assert scores[scores <= rho].sum() <= 0.75 * scores.sum()
        chance = heavy_tails.removal_probs(scores, rho)
        drawn = (scores[:, None] > rho * generator.random(400)).mean(axis=1)
        assert np.abs(drawn - chance).max() < 5 * 0.5 / 20
        assert chance[~bad].sum() <= 0.5 * chance[bad].sum()
        capped = np.minimum(scores, generator.choice(scores))
        if capped.mean() >= scores.mean() / 3:
            assert capped[bad].sum() >= 10 * capped[~bad].sum()


@pytest.mark.paper("prime", "Lemma K.4")
def test_clean_records_have_a_share_of_the_score_of_at_least_the_rate():
    for rate in (5e-4, 0.05):
        n = 20_000
        data = heavy_tails.clean("student", n, 1, rng=rng(5))[:, 0]
        bad = np.arange(n) < rate * n
        data[bad] = 100 / math.sqrt(rate)
        share = heavy_tails.clean_share((data - data.mean()) ** 2, bad)
        assert share == pytest.approx(rate + 1e-4, rel=0.35)
        assert (share <= 1e-3) == (rate < 1e-3)
    assert heavy_tails.clean_share(np.zeros(3), [True, False, False]) == 0.0


@pytest.mark.paper("prime", "Theorem 13")
@pytest.mark.paper("prime", "Lemma K.6")
def test_the_printed_step_filters_far_records_after_many_iterations_not_after_log_d():
    data, _ = heavy_tails.corrupted("student", 3000, 8, corruption_rate=0.05, adversary="far", rng=rng(6))
    how = {"corruption_rate": 0.05, "epsilon": 1.0, "delta": 1e-6, "heavy_tailed": True, "noise_records": 10**16}
    how |= {"variant": "as_printed", "location": np.zeros(8)}
    short = prime(data, rng=rng(7), **how)
    assert short.status == "exhausted"
    assert short.error(np.zeros(8)) > 9 * math.sqrt(0.05)
    long = prime(data, rng=rng(7), num_iterations=1000, num_epochs=30, **how)
    assert long.error(np.zeros(8)) < math.sqrt(0.05)
    norms = [t["norm"] for t in long.trace if "iteration" not in t]
    assert norms[1] < 0.98 * norms[0]
    assert settings_for("as_printed", heavy_tailed=True).stop_constant > 1  # ‖M‖ is 1 without an adversary
