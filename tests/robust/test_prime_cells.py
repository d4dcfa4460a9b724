"""Cells of the PRIME notebooks, peers without privacy, other laws of clean records, and where range queries stop."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, stats

from privrob import checks
from privrob.kinds import Streams
from privrob.mechanisms.ranges import column_counts
from privrob.robust import mmw, planner
from privrob.robust.classic_means import coordinate_median, geometric_median, trimmed_mean
from privrob.robust.corruption import LAWS, corrupted_normal, corrupted_records
from privrob.robust.prime_cells import METHODS, mean_cell
from privrob.robust.released import least_epsilon_of_released_range, released_prime, released_range

CELL = {
    "num_records": 3000,
    "dimension": 4,
    "corruption_rate": 0.1,
    "delta": 0.01,
    "adversaries": ["cluster", "rotated"],
}


def rng(seed=0):
    return np.random.default_rng(seed)


# ---------------------------------------------------------------------------------------------------------------- cells


def test_a_cell_has_a_row_for_each_adversary_and_run_and_names_what_was_removed():
    runs = [{"method": m, "epsilon": 20.0} for m in METHODS]
    rows = mean_cell({**CELL, "runs": runs, "repeat": 0}, streams=Streams(0, "cell"))
    assert [(r["adversary"], r["method"]) for r in rows] == [(a, m) for a in CELL["adversaries"] for m in METHODS]
    for row in rows:
        assert row["error"] < 2.0 or row["status"] == "refused"
        assert (row["removed_bad"] is not None) == (
            row["method"] in ("as_printed", "tuned", "ball") and row["tests"] > 0
        )
    errors = {(r["adversary"], r["method"]): r["error"] for r in rows}
    assert errors["cluster", "mean"] == pytest.approx(1.5 * 0.1 * 2, rel=0.2)
    assert errors["rotated", "filter"] < 0.8 * errors["rotated", "mean"]


def test_a_cells_records_do_not_depend_on_its_runs_or_its_other_adversaries():
    one = mean_cell({**CELL, "runs": [{"method": "mean", "epsilon": 1.0}]}, streams=Streams(0, "cell"))
    more = {
        **CELL,
        "adversaries": ["rotated"],
        "runs": [{"method": "DP mean", "epsilon": 1.0}, {"method": "mean", "epsilon": 1.0}],
    }
    two = mean_cell(more, streams=Streams(0, "cell"))
    assert one[1]["error"] == two[1]["error"]
    other = mean_cell({**CELL, "runs": [{"method": "mean", "epsilon": 1.0}]}, streams=Streams(1, "cell"))
    assert one[0]["error"] != other[0]["error"]


def test_a_known_centre_takes_the_place_of_the_range_query():
    small = {**CELL, "num_records": 200, "adversaries": ["none"]}
    runs = [
        {"method": "as_printed", "epsilon": 20.0},
        {"method": "as_printed", "epsilon": 20.0, "location": "known", "label": "known"},
    ]
    without, known = mean_cell({**small, "runs": runs}, streams=Streams(0, "cell"))
    assert without["error"] == math.inf
    assert "cut-off" in without["reason"]
    assert math.isfinite(known["error"]) or "too few" in known["reason"]
    assert known["label"] == "known"


def test_a_cell_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="did you mean 'runs'"):
        mean_cell({**CELL, "run": []}, streams=Streams(0, "cell"))
    with pytest.raises(ValueError, match="method must be one of"):
        mean_cell({**CELL, "runs": [{"method": "prime", "epsilon": 1.0}]}, streams=Streams(0, "cell"))


# ---------------------------------------------------------------------------------------------------------------- peers


def test_the_classic_means_are_what_their_names_say():
    data = rng(1).standard_normal((501, 3)) * [1, 2, 3] + [1, 0, -1]
    np.testing.assert_allclose(coordinate_median(data), np.median(data, axis=0))
    np.testing.assert_allclose(trimmed_mean(data, corruption_rate=0.1), stats.trim_mean(data, 51 / 501 + 1e-9, axis=0))
    best = optimize.minimize(lambda x: np.linalg.norm(data - x, axis=1).sum(), data.mean(axis=0), tol=1e-10)
    np.testing.assert_allclose(geometric_median(data), best.x, atol=1e-4)
    data[3] = np.nan
    for found in (coordinate_median(data), trimmed_mean(data, corruption_rate=0.1), geometric_median(data)):
        assert np.isfinite(found).all()
    with pytest.raises(ValueError, match="finite numbers"):
        coordinate_median(np.full((3, 2), np.nan))
    with pytest.raises(RuntimeError, match="raise tolerance"):
        geometric_median(data, tolerance=1e-15, max_steps=2)


def test_the_classic_means_err_with_the_root_of_the_dimension():
    errors = {}
    for d in (4, 36):
        data, _ = corrupted_normal(20_000, d, corruption_rate=0.05, adversary="rotated", rng=rng(2))
        errors[d] = [np.linalg.norm(f) for f in (coordinate_median(data), trimmed_mean(data, corruption_rate=0.05))]
    assert (np.divide(errors[36], errors[4]) > 2.3).all()  # 3, but for sampling


# ---------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.paper("prime", "Assumption 1")
@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_covariance_one_and_is_one_sub_gaussian(law):
    data, bad = corrupted_records(200_000, 2, corruption_rate=0.1, adversary="none", rng=rng(3), law=law)
    assert not bad.any()
    np.testing.assert_allclose(np.cov(data.T), np.eye(2), atol=0.02)  # 5 standard errors of a Normal
    for scale in (0.3, 1.0, 2.0):  # E exp(⟨v, x⟩) ≤ exp(‖v‖²/2)
        v = scale * np.array([0.6, -0.8])
        seen = np.exp(data @ v)
        assert seen.mean() <= math.exp(scale**2 / 2) + 5 * seen.std() / math.sqrt(len(seen))


def test_a_range_attack_sits_in_the_bin_beside_the_fullest():
    data, bad = corrupted_records(1000, 3, corruption_rate=0.2, adversary="range", rng=rng(4), dtype=np.float32)
    assert bad.sum() == 200
    assert (data[bad] == 3.0).all()
    assert data.dtype == np.float32
    with pytest.raises(ValueError, match="law must be one of"):
        corrupted_records(10, 3, corruption_rate=0.2, adversary="range", rng=rng(4), law="cauchy")


# ------------------------------------------------------------------------------------------ gates and range queries


@pytest.mark.paper("prime", "Lemma F.5")
def test_the_iterations_to_the_gate_are_those_of_the_weights_themselves():
    for d, kappa in ((10, 1 / 111), (50, 1 / 111), (50, 0.3), (3, 0.1), (30, 4.0)):
        excess = np.zeros((d, d))
        excess[0, 0] = 7.0
        t = 1
        while (excess * mmw.weights(t * excess, step=kappa / 7.0)).sum() <= 7.0 / 5.5:
            t += 1
        assert mmw.iterations_to_pass(d, step_times_norm=kappa) == t, (d, kappa)


def test_the_released_range_counts_as_a_histogram_does():
    data = rng(5).standard_normal((4000, 3)) * 2 + [1, -3, 0]
    edges = np.linspace(-10.5, 10.5, 20)
    found = released_range(data, epsilon=1e9, delta=0.1, known_range=10.0, rng=rng(6))  # all but no noise
    for j in range(3):
        best = int(np.argmax(np.histogram(data[:, j], bins=edges)[0]))
        assert found[j] == pytest.approx(edges[best] + edges[best + 1])


@pytest.mark.paper("prime", "Figure 1, right")
def test_range_queries_stop_where_their_cut_offs_say():
    d, n, rate = 10, 50_000, 0.1
    data, _ = corrupted_normal(n, d, corruption_rate=rate, adversary="cluster", rng=rng(7))
    share = max(c.max() for _, c in column_counts(data, width=2.0)) / n
    how = {"num_records": n, "dimension": d, "delta": 0.01}
    cliff = planner.least_epsilon_of_range(top_share=share, corruption_rate=rate, **how)
    for factor, refused in ((0.7, True), (1.5, False)):
        found = METHODS["as_printed"](data, corruption_rate=rate, epsilon=factor * cliff, delta=0.01, rng=rng(8))
        assert found.refused == refused
    assert planner.least_epsilon_of_range(top_share=1e-6, corruption_rate=rate, **how) == math.inf
    width = 21 / 19
    share = np.mean(np.abs(data[:, 0]) < width / 2)
    cliff = least_epsilon_of_released_range(top_share=share, **how)
    for factor, lost in ((0.7, True), (1.5, False)):
        found = released_prime(data, corruption_rate=rate, epsilon=factor * cliff, delta=0.01, rng=rng(9))
        assert (found.error(np.zeros(d)) > 5) == lost


def test_several_values_are_each_checked_by_name():
    assert checks.several("sizes", [3, 4], checks.integer, low=1) == [3, 4]
    with pytest.raises(ValueError, match="sizes must be a list of at least one value"):
        checks.several("sizes", [], checks.integer, low=1)
    with pytest.raises(ValueError, match=r"sizes\[1\] must"):
        checks.several("sizes", [3, 0], checks.integer, low=1)


@pytest.mark.paper("prime", "Figure 2")
def test_below_a_few_thousand_records_the_printed_range_refuses_and_the_sound_one_does_not():
    runs = [{"method": m, "epsilon": 100.0} for m in ("as_printed", "DP mean", "ball")]
    runs.append({"method": "as_printed", "epsilon": 100.0, "location": "known", "label": "known"})
    small = {"num_records": 1000, "dimension": 50, "corruption_rate": 0.1, "delta": 0.01, "adversaries": ["rotated"]}
    found = {r["label"]: r["error"] for r in mean_cell({**small, "runs": runs}, streams=Streams(3, "cell"))}
    assert found["as_printed"] == math.inf
    assert found["known"] > 2 * found["DP mean"]  # the printed noise alone
    assert found["ball"] < 0.5 * found["DP mean"] < 0.6


@pytest.mark.paper("prime", "Theorem 11")
@pytest.mark.paper("prime", "Lemma F.3")
def test_with_exact_answers_and_enough_iterations_the_printed_step_ends_in_few_epochs():
    d, rate = 12, 0.05
    data, bad = corrupted_normal(8000, d, corruption_rate=rate, adversary="rotated", rng=rng(10))
    how = {"noiseless": True, "kappa": None, "num_iterations": 150, "num_epochs": 6, "stop_constant": 3.0}
    found = METHODS["tuned"](data, corruption_rate=rate, epsilon=1.0, delta=1e-6, rng=rng(11), **how)
    tests = [t["norm"] for t in found.trace if "iteration" not in t]
    first = max(t["iteration"] for t in found.trace if "iteration" in t)
    assert found.status == "converged"
    assert all(b <= 0.98 * a for a, b in pairwise(tests))
    assert first == pytest.approx(mmw.iterations_to_pass(d, step_times_norm=1 / 111), rel=0.15)
    gone = np.concatenate([e["removed"] for e in found.exact if "removed" in e])
    assert (~bad[gone]).sum() <= 10 * rate * 8000
    assert found.error(np.zeros(d)) < 2 * rate * math.sqrt(math.log(1 / rate))
