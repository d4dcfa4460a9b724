"""Boosting, and the planner: what more runs cost, and what public numbers say beforehand."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from privrob.robust import planner
from privrob.robust.boosting import central, mean_of_means, repeated, runs_for
from privrob.robust.corruption import ADVERSARIES, corrupted_normal
from privrob.robust.filtering import Outcome, refused
from privrob.robust.prime import prime

BUDGET = {"epsilon": 20.0, "delta": 0.01}
REMARK = pytest.mark.paper("prime", "Remark 1")


def rng(seed=0):
    return np.random.default_rng(seed)


@REMARK
def test_the_central_estimate_is_near_wherever_the_minority_lies():
    for seed in range(50):
        generator = rng(seed)
        k, d = 11, 3
        good = generator.standard_normal((k, d))
        good /= np.maximum(1.0, np.linalg.norm(good, axis=1, keepdims=True))  # within 1 of 0
        good[:5] = generator.standard_normal((5, d)) * 10.0 ** generator.integers(-1, 6)
        assert np.linalg.norm(central(good[generator.permutation(k)])) <= 3.0
    three = np.array([[0.0], [0.1], [9.0]])
    assert central(three)[0] in (0.0, 0.1)


@REMARK
def test_parts_are_disjoint_complete_and_of_equal_size():
    seen = []

    def estimator(rows, generator):
        seen.append(rows[:, 0])
        return Outcome(rows.mean(axis=0), "converged")

    data = np.arange(103.0)[:, None]
    mean_of_means(data, estimator, num_parts=7, rng=rng(1))
    assert sorted(np.concatenate(seen)) == list(range(103))
    assert {len(s) for s in seen} == {14, 15}


@REMARK
def test_boosting_turns_nine_in_ten_into_nearly_always():
    def shaky(rows, generator, **_):
        if generator.random() < 0.2:
            return Outcome(np.full(2, 1e6), "converged")
        return Outcome(rows.mean(axis=0), "converged")

    data = rng(2).standard_normal((2000, 2))
    alone = np.mean([shaky(data, rng(s)).error(np.zeros(2)) > 1 for s in range(200)])
    boosted = np.mean([mean_of_means(data, shaky, num_parts=15, rng=rng(s)).error(np.zeros(2)) > 1 for s in range(200)])
    assert alone > 0.1
    assert boosted < 0.02
    k = runs_for(0.01, single=0.2)
    assert binom.sf(math.ceil(k / 2) - 1, k, 0.2) <= 0.01 < binom.sf(math.ceil((k - 2) / 2) - 1, k - 2, 0.2)
    assert runs_for(0.2, single=0.1) == 1


@REMARK
def test_boosting_refuses_where_most_parts_do():
    def never(rows, generator, **_):
        return refused("no")

    data = np.zeros((10, 2))
    assert "3 of 3 parts" in mean_of_means(data, never, num_parts=3, rng=rng(0)).reason
    assert "too few" in mean_of_means(data, never, num_parts=11, rng=rng(0)).reason
    assert "none of 4 runs" in repeated(data, never, num_runs=4, rng=rng(0), **BUDGET).reason


@REMARK
def test_boosting_converges_where_most_parts_do():
    def estimator(status):
        return lambda rows, generator: Outcome(rows.mean(axis=0), status)

    data = np.repeat(np.arange(10.0), 20)[:, None]
    assert mean_of_means(data, estimator("converged"), num_parts=5, rng=rng(0)).status == "converged"
    weak = mean_of_means(data, estimator("exhausted"), num_parts=5, rng=rng(0))
    assert weak.status == "exhausted"
    assert "0 of 5 parts" in weak.reason


@pytest.mark.paper("prime", "Section 3, boosting")
def test_repeated_runs_share_the_budget():
    spent = []

    def estimator(rows, generator, *, epsilon, delta):
        spent.append((epsilon, delta))
        return prime(rows, corruption_rate=0.05, epsilon=epsilon, delta=delta, rng=generator)

    data, _ = corrupted_normal(20_000, 4, corruption_rate=0.05, adversary="rotated", rng=rng(3))
    found = repeated(data, estimator, num_runs=5, rng=rng(4), **BUDGET)
    assert sum(e for e, _ in spent) == pytest.approx(20.0)
    assert sum(d for _, d in spent) == pytest.approx(0.01)
    assert found.error(np.zeros(4)) < 0.2
    assert sum(plan.epsilon(0.002).upper for plan in found.noise) <= 20.0


# -------------------------------------------------------------------------------------------------------------- planner


def test_the_plan_says_what_a_run_then_does():
    """Where it advises filtering, filtering pays against a rotated cluster; where it doesn't, it does not."""
    how = {"dimension": 20, "corruption_rate": 0.1, "epsilon": 1.0, "delta": 1e-6}
    advice = {n: planner.plan(num_records=n, **how) for n in (500, 3000, 60_000)}
    assert [advice[n].advice for n in advice] == ["more records", "mean only", "filter"]
    assert advice[500].needed_records == advice[60_000].needed_records
    need = advice[3000].needed_records
    there, before = (planner.plan(num_records=n, **how) for n in (need, int(0.98 * need)))
    assert there.matrix_noise <= there.norm_limit
    assert before.matrix_noise > before.norm_limit
    errors = {}
    for n in (500, 60_000):
        errors[n] = []
        for seed in range(3):
            data, _ = corrupted_normal(n, 20, corruption_rate=0.1, adversary="rotated", rng=rng(seed))
            errors[n].append(
                prime(data, rng=rng(seed), **{k: v for k, v in how.items() if k != "dimension"}).error(np.zeros(20))
            )
    assert all(e == math.inf for e in errors[500])
    assert max(errors[60_000]) < advice[60_000].error_filtered < 1.5 * 0.1 * math.sqrt(20)
    assert str(advice[3000]).startswith("mean only: ")


def test_the_plan_has_the_noise_that_a_run_gets():
    how = {"corruption_rate": 0.05, **BUDGET}
    data = rng(5).standard_normal((4000, 6))
    for variant in ("ball", "tuned", "as_printed"):
        said = planner.plan(num_records=4000, dimension=6, variant=variant, **how)
        assert prime(data, rng=rng(6), variant=variant, **how).noise == said.noise


def test_as_printed_asks_for_thousands_of_times_more_records_than_ball():
    how = {"num_records": 10**6, "dimension": 100, "corruption_rate": 0.05, **BUDGET}
    needs = {v: planner.plan(variant=v, **how).needed_records for v in ("ball", "tuned", "as_printed")}
    assert needs["ball"] < needs["tuned"] < needs["as_printed"]
    assert needs["as_printed"] > 1000 * needs["ball"]


def test_without_corruption_there_is_nothing_to_filter():
    found = planner.plan(num_records=10**5, dimension=5, corruption_rate=0.0, epsilon=1.0, delta=1e-6)
    assert found.advice == "mean only"
    assert found.needed_records is None
    assert "no n would do" in str(found)


# ----------------------------------------------------------------------------------------------------------- corruption


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_every_adversary_replaces_its_share_and_moves_the_mean_as_it_says(adversary):
    n, d, rate = 20_000, 4, 0.1
    data, bad = corrupted_normal(n, d, corruption_rate=rate, adversary=adversary, rng=rng(7), mean=3.0)
    assert bad.sum() == (0 if adversary == "none" else 2000)
    if adversary == "nan":
        assert np.isnan(data[bad]).all()
        assert np.isfinite(data[~bad]).all()
        return
    moved = np.linalg.norm(data.mean(axis=0) - 3.0)
    want = {
        "none": 0.0, "cluster": 0.3, "rotated": 0.3, "random": 0.3, "hide": rate * math.sqrt(math.log(10)),
        "corner": 5.0, "range": 0.6, "scatter": 0.3 / 2, "tail_swap": None, "decoy": None,
    }[adversary]  # fmt: skip
    if want is not None:
        assert abs(moved - want) < 5 * math.sqrt(d / n)
    single, _ = corrupted_normal(50, d, corruption_rate=rate, adversary=adversary, rng=rng(7), dtype=np.float32)
    assert single.dtype == np.float32
