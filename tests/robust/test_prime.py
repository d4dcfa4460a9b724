"""PRIME: scores and threshold exactly, its forms against each other, errors, variants, attacks, corner cases."""

import itertools
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from scipy.linalg import expm

from privrob.accounting import audit, gdp
from privrob.robust import mmw
from privrob.robust.corruption import corrupted_normal
from privrob.robust.curator import Curator, Step
from privrob.robust.dpfilter import printed_plan, printed_steps, private_filter
from privrob.robust.filtering import FilteredSet, tail_size
from privrob.robust.prime import make_plan, prime, region_for, settings_for
from privrob.robust.private_means import dp_mean, shrinking_mean
from privrob.robust.released import released_mean, released_plan, released_prime, released_rounds
from privrob.robust.rows import Ball, Cube, Rows

SCORES = pytest.mark.paper("prime", "Section 2.3.1")
THRESHOLD = pytest.mark.paper("prime", "Algorithm 11")
PRIME = pytest.mark.paper("prime", "Algorithm 9")
BUDGET = {"epsilon": 20.0, "delta": 0.01}


def rng(seed=0):
    return np.random.default_rng(seed)


def run(adversary="rotated", n=30_000, d=20, rate=0.05, seed=0, estimator=prime, shift=1.5, **more):
    data, _ = corrupted_normal(n, d, corruption_rate=rate, adversary=adversary, rng=rng(seed), shift=shift)
    return estimator(data, corruption_rate=rate, rng=rng(100 + seed), **{**BUDGET, **more})


# --------------------------------------------------------------------------------------------------------------- scores


@SCORES
def test_weights_are_the_matrix_exponential_over_its_trace():
    a = rng(1).standard_normal((6, 6))
    a = a + a.T
    for step in (0.0, 0.1, 1.0, 5.0):
        want = expm(step * a)
        np.testing.assert_allclose(mmw.weights(a, step=step), want / np.trace(want), rtol=1e-9, atol=1e-12)
    big = mmw.weights(a, step=1e5)
    assert np.isfinite(big).all()
    assert np.trace(big) == pytest.approx(1.0)


@SCORES
def test_the_limits_are_the_norm_score_and_the_top_direction():
    a = np.diag([1.0, 3.0, 2.0])
    np.testing.assert_allclose(mmw.weights(a, step=0.0), np.eye(3) / 3)
    np.testing.assert_allclose(mmw.weights(a, step=math.inf), np.diag([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(mmw.weights(a, step=60.0), np.diag([0.0, 1.0, 0.0]), atol=1e-20)
    np.testing.assert_allclose(mmw.weights(np.diag([2.0, 2.0, 1.0]), step=math.inf), np.diag([0.5, 0.5, 0.0]))


@SCORES
def test_weights_turn_with_the_matrix_and_ignore_multiples_of_the_identity():
    a = rng(2).standard_normal((5, 5))
    a = a + a.T
    q = np.linalg.qr(rng(3).standard_normal((5, 5)))[0]
    np.testing.assert_allclose(mmw.weights(q @ a @ q.T, step=0.7), q @ mmw.weights(a, step=0.7) @ q.T, atol=1e-12)
    np.testing.assert_allclose(mmw.weights(a + 9 * np.eye(5), step=0.7), mmw.weights(a, step=0.7), atol=1e-12)


@SCORES
def test_exp_of_each_entry_is_the_ones_direction_whatever_the_data():
    d = 30
    for v in (np.ones(d) / math.sqrt(d), np.resize([1.0, -1.0], d) / math.sqrt(d)):
        cov = 0.01 * np.outer(v, v)
        seen = mmw.weights(cov, step=1.0, exponential="elementwise")
        assert np.ones(d) @ seen @ np.ones(d) / d == pytest.approx(1.0, abs=0.01)  # all weight on 1/√d
        truth = mmw.weights(cov, step=1.0)
        assert np.ones(d) @ truth @ np.ones(d) / d < 0.05


@THRESHOLD
def test_the_threshold_is_the_largest_that_takes_its_share_of_the_score():
    generator = rng(4)
    for _ in range(200):
        shares = generator.random(7) * (generator.random(7) < 0.6)
        score = generator.random() * 40 + 0.01
        want = None
        for ell in range(1, 8):
            total = sum((2.0 ** (j - 3) - 2.0 ** (ell - 3)) * shares[j - 1] for j in range(ell, 8))
            if total >= 0.31 * score:
                want = 2.0 ** (ell - 3)
        assert mmw.pick_threshold(shares, score) == want


@THRESHOLD
def test_noise_alone_picks_the_highest_bins_unless_a_margin_is_asked_for():
    generator, bins = rng(5), 14
    plain, guarded = [], []
    for _ in range(300):
        shares = generator.normal(0.0, 0.01, bins)
        shares[5] += 0.05  # the signal: scores near 8
        plain.append(mmw.pick_threshold(shares, 0.5))
        guarded.append(mmw.pick_threshold(shares, 0.5, noise_std=0.01, margin=2.0))
    assert np.mean([p is not None and p > 8 for p in plain]) > 0.5
    assert np.mean([p is not None and p > 8 for p in guarded]) < 0.1


@THRESHOLD
@pytest.mark.paper("prime", "Algorithm 12")
def test_bins_are_the_printed_ones_and_hold_what_lies_above_the_last():
    region = Cube(np.zeros(1), 8.0)
    data = np.sqrt(np.array([0.2, 0.25, 0.49, 0.5, 0.99, 1.0, 3.99, 4.0, 15.9]))[:, None]
    plan = make_plan(settings_for("ball", noiseless=True), num_records=9, dimension=1, corruption_rate=0.1, **BUDGET)
    curator = Curator(Rows(data, region), plan=plan, rng=rng(6), corruption_rate=0.1)
    _, shares = curator.threshold_queries(np.zeros(1), np.eye(1), num_bins=5, ask_score=False)
    np.testing.assert_allclose(9 * shares, [2, 2, 1, 1, 2])  # [1/4, 1/2), [1/2, 1), [1, 2), [2, 4), [4, …)
    assert mmw.num_bins(region.diameter) == 2 + 6  # log₂ 64


@pytest.mark.paper("prime", "Eq. (1)")
@pytest.mark.paper("prime", "Lemma E.1")
def test_the_threshold_removes_a_third_of_the_score_and_more_bad_than_good_records():
    """Lemma E.1 on clean-plus-cluster data, without noise: the two things that (12) and (13) promise."""
    falls, ratios = [], []
    for seed in range(20):
        data, bad = corrupted_normal(4000, 10, corruption_rate=0.05, adversary="rotated", rng=rng(seed))
        state = FilteredSet(Rows(data, Ball(np.zeros(10), 12.0)))
        weights = mmw.weights(state.second_moment - np.eye(10), step=4.0)
        values, vectors = np.linalg.eigh(weights)
        factor = vectors * np.sqrt(np.maximum(values, 0))
        scores = state.scores(state.mean, factor)
        psi = float((scores - 1).sum()) / 4000
        shares = np.bincount(np.clip(np.frexp(scores)[1] + 2, 0, 12), minlength=13)[1:] / 4000
        least = mmw.pick_threshold(shares, psi)
        draw = rng(seed + 50).random()
        gone = state.remove(scores, draw * least, size=tail_size(4000, 0.05))
        falls.append(float((scores[state.alive] - 1).sum()) / 4000 / psi)
        ratios.append((bad[gone].sum(), (~bad[gone]).sum()))
    assert np.mean(falls) < 0.75
    good, evil = np.sum([r[1] for r in ratios]), np.sum([r[0] for r in ratios])
    assert evil > good


@pytest.mark.paper("prime", "Algorithm 10")
def test_the_printed_step_needs_hundreds_of_iterations_not_log_d():
    """Noise off: ψ passes the gate λ/5.5 from T₂ ≥ 111 log((d − 1)/4.5) on."""
    d, seen = 10, []
    data, _ = corrupted_normal(6000, d, corruption_rate=0.05, adversary="rotated", rng=rng(7))
    matrix = FilteredSet(Rows(data, Ball(np.zeros(d), 20.0))).second_moment
    norm = np.linalg.norm(matrix - np.eye(d), 2)
    step = mmw.printed_step(norm)
    for iterations in range(1, 200):
        weights = mmw.weights(iterations * (matrix - np.eye(d)), step=step)
        if ((matrix - np.eye(d)) * weights).sum() > norm / 5.5:
            seen.append(iterations)
            break
    assert seen[0] == pytest.approx(111 * math.log((d - 1) / 4.5), rel=0.1)
    assert seen[0] > 20 * math.ceil(math.log(d))


# --------------------------------------------------------------------------------------------- one algorithm, two forms


@PRIME
@pytest.mark.paper("prime", "Algorithm 12")
@pytest.mark.paper("prime", "Algorithm 13")
@pytest.mark.parametrize("variant", ["ball", "tuned", "as_printed"])
@pytest.mark.parametrize("heavy_tailed", [False, True])
def test_interactive_and_centralised_forms_give_the_same(variant, heavy_tailed):
    data, _ = corrupted_normal(6000, 5, corruption_rate=0.1, adversary="rotated", rng=rng(8), shift=3.0)
    how = {"corruption_rate": 0.1, "variant": variant, "heavy_tailed": heavy_tailed, "location": np.zeros(5), **BUDGET}
    if variant == "as_printed":  # so that it filters at all
        how |= {"kappa": 4.0, "num_iterations": 3, "noise_records": 10**9}
    one, two = (prime(data, interactive=i, rng=rng(9), **how) for i in (False, True))
    assert one.status == two.status
    assert [set(t) for t in one.trace] == [set(t) for t in two.trace]
    np.testing.assert_allclose(two.estimate, one.estimate, atol=1e-9)  # downdates against sums anew
    if not heavy_tailed:
        assert any("threshold" in t for t in one.trace), "nothing was filtered: the test says nothing"


@pytest.mark.paper("prime", "Algorithm 1")
@pytest.mark.paper("prime", "Algorithm 7")
@pytest.mark.parametrize("form", ["noiseless", "sound", "as_printed"])
def test_both_forms_of_the_private_filter_give_the_same(form):
    data, _ = corrupted_normal(2000, 3, corruption_rate=0.1, adversary="corner", rng=rng(10))
    how = {"corruption_rate": 0.1, "form": form, "num_steps": 12, "location": np.zeros(3), "box_side": 12.0}
    how |= {"epsilon": 300.0, "delta": 0.01} if form == "sound" else BUDGET
    data = np.repeat(data, 60, axis=0) if form == "as_printed" else data
    one, two = (private_filter(data, interactive=i, rng=rng(11), **how) for i in (False, True))
    assert (one.status, len(one.trace)) == (two.status, len(two.trace))
    assert one.estimate is not None
    np.testing.assert_allclose(two.estimate, one.estimate, atol=1e-9)


@PRIME
def test_a_run_asks_no_more_than_its_plan(monkeypatch):
    class Counting(Curator):
        asked: ClassVar[dict] = {}

        def _noisy(self, what, value):
            self.asked[what] = self.asked.get(what, 0) + 1
            return super()._noisy(what, value)

        def second_moment(self, about=None):
            self.asked["second_moment"] = self.asked.get("second_moment", 0) + 1
            return super().second_moment(about)

    monkeypatch.setattr("privrob.robust.prime.Curator", Counting)
    full = {"ball": {"kappa": 0.0}, "tuned": {"kappa": 0.0}, "as_printed": {}}  # no score passes: every round is run
    for variant, more in itertools.product(full, (False, True)):
        Counting.asked = {}
        how = full[variant] if more else {}
        out = run(n=5000, variant=variant, noise_records=10**8, location=np.zeros(20), **how)
        allowed = {e.what: e.asked for e in out.noise.entries}
        assert Counting.asked, variant
        for what, times in Counting.asked.items():
            assert times <= allowed[what], (variant, what)
        if more:
            assert Counting.asked["norm"] == allowed["norm"]


@PRIME
def test_a_noisy_point_is_kept_in_the_region(monkeypatch):
    """Scores are at most the squared diameter then; the printed algorithm lets μ_t leave."""
    seen = []

    class Watching(Curator):
        def threshold_queries(self, point, factor, **more):
            seen.append(np.linalg.norm(point) / self.rows.region.radius)
            return super().threshold_queries(point, factor, **more)

    monkeypatch.setattr("privrob.robust.prime.Curator", Watching)
    for seed in range(5):
        run(n=60, d=40, seed=seed, location=np.zeros(40), epsilon=1.0)
    assert max(seen) == pytest.approx(1.0)  # the noise alone is several radii


@PRIME
def test_the_plan_and_its_noise_do_not_look_at_the_records():
    one, two = (run(adversary=a, n=4000, d=4) for a in ("none", "corner"))
    assert one.noise == two.noise


# --------------------------------------------------------------------------------------------------------------- errors


@PRIME
@pytest.mark.paper("prime", "Theorem 6")
@pytest.mark.parametrize(
    "adversary", ["none", "cluster", "rotated", "random", "corner", "decoy", "scatter", "hide", "nan"]
)
def test_the_error_is_a_small_multiple_of_the_rate_for_every_adversary(adversary):
    rate = 0.05
    stated = rate * math.sqrt(math.log(1 / rate))
    errors = [run(adversary, seed=s).error(np.zeros(20)) for s in range(3)]
    assert max(errors) < 1.5 * stated + 3 * math.sqrt(20 / 30_000)


@PRIME
@pytest.mark.paper("prime", "Figure 1")
@pytest.mark.parametrize("adversary", ["cluster", "rotated"])
def test_the_error_stays_flat_in_d_while_the_private_mean_grows_as_its_root(adversary):
    ours, theirs = {}, {}
    for d in (10, 40):
        ours[d], theirs[d] = [], []
        for seed in range(3):
            data, _ = corrupted_normal(40_000, d, corruption_rate=0.05, adversary=adversary, rng=rng(seed))
            found = prime(data, corruption_rate=0.05, rng=rng(seed), **BUDGET)
            ours[d].append(found.error(np.zeros(d)))
            theirs[d].append(dp_mean(data, rng=rng(seed), **BUDGET).error(np.zeros(d)))
        assert np.mean(theirs[d]) == pytest.approx(1.5 * 0.05 * math.sqrt(d), rel=0.05)  # 5 sd of sampling at n = 4e4
    assert np.mean(ours[40]) < np.mean(ours[10]) + 0.02
    assert np.mean(ours[40]) < 0.25 * np.mean(theirs[40])


@PRIME
@pytest.mark.paper("prime", "Figure 1")
def test_as_printed_filters_nothing_at_the_figures_settings():
    data, _ = corrupted_normal(40_000, 20, corruption_rate=0.05, adversary="cluster", rng=rng(12))
    loud = prime(data, corruption_rate=0.05, rng=rng(13), variant="as_printed", noise_records=10**6, **BUDGET)
    assert loud.status == "exhausted"
    assert not loud.noise.private, "the noise is that of a million records"
    assert loud.error(np.zeros(20)) == pytest.approx(1.5 * 0.05 * math.sqrt(20), rel=0.1)
    silent = prime(
        data, corruption_rate=0.05, rng=rng(13), variant="as_printed", noise_records=10**14, keep_exact=True, **BUDGET
    )
    assert not any("threshold" in t for t in silent.trace), "with all but no noise the gate stays shut too"
    assert silent.error(np.zeros(20)) == pytest.approx(1.5 * 0.05 * math.sqrt(20), rel=0.05)
    assert all(e["size"] == 40_000 for e in silent.exact)


@PRIME
def test_rotating_the_records_rotates_the_answer():
    data, _ = corrupted_normal(5000, 4, corruption_rate=0.1, adversary="corner", rng=rng(14))
    turn = np.linalg.qr(rng(15).standard_normal((4, 4)))[0]
    how = {"corruption_rate": 0.1, "noiseless": True, "location": np.zeros(4), **BUDGET}
    one, two = (prime(x, rng=rng(16), **how) for x in (data, data @ turn))
    assert any("threshold" in t for t in one.trace)
    np.testing.assert_allclose(two.estimate, one.estimate @ turn, atol=1e-9)


@PRIME
def test_moving_or_permuting_the_records_moves_the_answer():
    data, _ = corrupted_normal(8000, 4, corruption_rate=0.1, adversary="corner", rng=rng(17))
    shift = np.array([200.0, -36.0, 2.0, 0.0])  # whole bins of the range
    one = prime(data, corruption_rate=0.1, rng=rng(18), **BUDGET)
    moved = prime(data + shift, corruption_rate=0.1, rng=rng(18), **BUDGET)
    np.testing.assert_allclose(moved.estimate, one.estimate + shift, atol=1e-9)
    mixed = prime(data[rng(19).permutation(8000)], corruption_rate=0.1, rng=rng(18), **BUDGET)
    np.testing.assert_allclose(mixed.estimate, one.estimate, atol=1e-9)


@PRIME
def test_blocks_single_precision_and_memory_maps_change_the_answer_by_rounding_only(tmp_path):
    data, _ = corrupted_normal(5000, 5, corruption_rate=0.1, adversary="rotated", rng=rng(20))
    one = prime(data, corruption_rate=0.1, rng=rng(21), **BUDGET)
    np.save(tmp_path / "x.npy", data)
    for other in (
        prime(data, corruption_rate=0.1, rng=rng(21), block=333, **BUDGET),
        prime(np.load(tmp_path / "x.npy", mmap_mode="r"), corruption_rate=0.1, rng=rng(21), keep=False, **BUDGET),
    ):
        np.testing.assert_allclose(other.estimate, one.estimate, atol=1e-9)
    single = prime(data.astype(np.float32), corruption_rate=0.1, rng=rng(21), **BUDGET)
    np.testing.assert_allclose(single.estimate, one.estimate, atol=2e-3)  # a record at the threshold may go or stay


def test_a_tensor_gives_the_same_as_an_array():
    torch = pytest.importorskip("torch")
    data, _ = corrupted_normal(5000, 5, corruption_rate=0.1, adversary="rotated", rng=rng(20))
    one = prime(data, corruption_rate=0.1, rng=rng(21), **BUDGET)
    two = prime(torch.from_numpy(data), corruption_rate=0.1, rng=rng(21), **BUDGET)
    np.testing.assert_allclose(two.estimate, one.estimate, atol=1e-9)


@pytest.mark.paper("prime", "Theorem 6")
def test_the_final_noise_is_what_the_plan_says():
    """No corruption, the same records again and again: the spread of the answers is the mean's noise."""
    n, d, tries = 2000, 3, 60
    data = rng(22).standard_normal((n, d))
    how = {"corruption_rate": 0.02, "location": np.zeros(d), "epsilon": 30.0, "delta": 0.01}
    found = [prime(data, rng=rng(s), **how) for s in range(tries)]
    found = [f for f in found if len(f.trace) == 1]  # stopped at once: nothing else is random
    got = np.array([f.estimate for f in found])
    want = found[0].noise["mean"].noise_std / n
    assert len(found) > 40
    assert abs(got.std(axis=0, ddof=1).mean() / want - 1) < 5 / math.sqrt(2 * d * len(found))


# --------------------------------------------------------------------------------------------------- the other variants


@pytest.mark.paper("prime", "Figure 1")
def test_the_released_script_filters_its_own_cluster_and_not_a_rotated_one():
    rate, d = 0.05, 20
    errors = {}
    for adversary in ("cluster", "rotated"):
        data, _ = corrupted_normal(100_000, d, corruption_rate=rate, adversary=adversary, rng=rng(23))
        errors[adversary] = released_prime(data, corruption_rate=rate, rng=rng(24), **BUDGET)
        errors[adversary, "expm"] = released_prime(
            data, corruption_rate=rate, rng=rng(24), exponential="matrix", **BUDGET
        )
    plain = 1.5 * rate * math.sqrt(d)
    assert errors["cluster"].error(np.zeros(d)) == pytest.approx(0.026, abs=0.02)  # its own figure, at n = 1e6
    for other in ("rotated", ("cluster", "expm"), ("rotated", "expm")):
        assert errors[other].error(np.zeros(d)) == pytest.approx(plain, rel=0.05), other
        assert errors[other].status == "exhausted"
    assert not errors["cluster"].noise.private
    with pytest.raises(ValueError, match="released_prime"):
        prime(np.zeros((5, 2)), corruption_rate=0.1, rng=rng(0), variant="as_released", **BUDGET)


def test_the_released_noises_are_short_and_its_size_has_none():
    plan = released_plan(10**6, 100, epsilon=10.0, delta=0.01)
    assert plan.epsilon(0.5).upper == math.inf
    first, second = released_rounds(10**6, 100)
    assert (first, second) == (5, 4)
    each = 0.99 * 10.0 / (4 * first * second)
    assert plan["norm"].pure_epsilon == pytest.approx(2 * each)  # stated: ε of one answer
    assert plan["score_again"].pure_epsilon == pytest.approx(4 * each)
    delta = 0.99 * 0.01 / (4 * first * second)
    assert gdp.delta_of(each, gdp_mu=plan["second_moment"].gdp_mu) > 2 * delta
    assert gdp.delta_of(2 * each, gdp_mu=plan["mean"].gdp_mu) < 1.0
    assert not plan.private
    assert len(plan.caveats) == 2


@PRIME
@pytest.mark.parametrize("kappa", [0.0, math.inf])
def test_both_limits_of_the_step_run(kappa):
    """The norm score sees a cluster of norm 1.5√d in every direction at once; the top direction sees it best."""
    found = run("rotated", n=20_000, d=6, kappa=kappa, num_iterations=1, shift=3.0)
    assert np.isfinite(found.estimate).all()
    assert any(t.get("score") for t in found.trace)
    if kappa == math.inf:
        assert found.error(np.zeros(6)) < 0.15


def test_the_released_range_is_twice_the_mean_and_its_mean_has_no_noise():
    data = rng(25).standard_normal((50_000, 3))
    found = [released_mean(data, rng=rng(s), **BUDGET) for s in range(2)]
    assert found[0].error(np.zeros(3)) < 0.03
    assert (found[0].estimate == found[1].estimate).all(), "the same to the last bit: two neighbours are told apart"
    assert released_mean(data + 6.0, rng=rng(0), **BUDGET).error(np.full(3, 6.0)) < 0.03  # 12 − 13.9 < 6 − 4
    far = released_mean(data + 25.0, rng=rng(0), known_range=30.0, **BUDGET)
    assert far.refused, "50 − 13.9 > 25: no record lies in the box"


@pytest.mark.paper("prime", "Algorithm 3")
@pytest.mark.paper("prime", "Algorithm 15")
@pytest.mark.paper("prime", "Theorem 9")
def test_heavy_tails_are_estimated_to_the_root_of_the_rate():
    rate, d, n = 0.02, 8, 60_000
    errors, plain = [], []
    for seed in range(3):
        data = rng(seed).standard_t(3, (n, d)) / math.sqrt(3)  # covariance I
        data[: int(rate * n)] += 12.0
        found = prime(data, corruption_rate=rate, rng=rng(seed + 9), heavy_tailed=True, **BUDGET)
        errors.append(found.error(np.zeros(d)))
        plain.append(float(np.linalg.norm(data.mean(axis=0))))
    assert max(errors) < math.sqrt(rate) + 0.05
    assert np.mean(errors) < 0.3 * np.mean(plain)
    printed = prime(data, corruption_rate=rate, rng=rng(1), heavy_tailed=True, variant="as_printed", **BUDGET)
    assert printed.refused
    assert "blocks" in printed.reason


@pytest.mark.paper("prime", "Algorithm 8")
@pytest.mark.paper("prime", "Theorem 5")
def test_the_one_direction_filter_works_without_noise_and_needs_many_steps():
    data, _ = corrupted_normal(4000, 4, corruption_rate=0.05, adversary="corner", rng=rng(26))
    how = {"corruption_rate": 0.05, "location": np.zeros(4), "box_side": 12.0, **BUDGET}
    found = private_filter(data, rng=rng(27), form="noiseless", num_steps=2000, **how)
    assert found.status == "converged"
    assert found.error(np.zeros(4)) < 3 * 0.05 * math.sqrt(math.log(20))
    cluster, _ = corrupted_normal(4000, 4, corruption_rate=0.05, adversary="rotated", rng=rng(26))
    slow = private_filter(cluster, rng=rng(27), form="noiseless", num_steps=2000, stop_constant=2.0, **how)
    assert len(slow.trace) > 10
    assert printed_steps(10, 30.0, 0.05) > 90_000
    plan = printed_plan(1.0, delta=1e-5, num_records=10**6, dimension=10, box_side=33.0, num_steps=90_000)
    assert plan["second_moment"].noise_std > 100
    small = private_filter(data, rng=rng(1), form="as_printed", num_steps=100, **{**how, "epsilon": 0.1})
    assert small.refused
    assert "too few records" in small.reason


def test_private_means_without_a_filter_have_their_noise():
    n, d = 5000, 6
    data = rng(28).standard_normal((n, d)) + 2.0
    for clip in ("cube", "ball"):
        found = [
            dp_mean(data, rng=rng(s), clip=clip, epsilon=1.0, delta=1e-5, location=np.full(d, 2.0)) for s in range(80)
        ]
        got = np.array([f.estimate for f in found])
        std = found[0].noise["mean"].noise_std
        assert abs(got.std(axis=0, ddof=1).mean() / std - 1) < 5 / math.sqrt(2 * d * 80)
        assert 0.999 < found[0].noise.epsilon(1e-5).upper <= 1.0
        np.testing.assert_allclose(got.mean(axis=0), data.mean(axis=0), atol=5 * std / math.sqrt(80))
    near = shrinking_mean(data, rng=rng(1), epsilon=1.0, delta=1e-5, radius=500.0)
    assert near.error(data.mean(axis=0)) < 0.2
    assert near.trace[-1]["radius"] < 0.01 * near.trace[0]["radius"]
    assert 0.999 < near.noise.epsilon(1e-5).upper <= 1.0
    bad, _ = corrupted_normal(n, d, corruption_rate=0.1, adversary="corner", rng=rng(1))
    assert shrinking_mean(bad, rng=rng(1), epsilon=1.0, delta=1e-5, radius=500.0).error(np.zeros(d)) > 0.5


# -------------------------------------------------------------------------------------------------------------- attacks


@PRIME
def test_an_attack_on_neighbours_stays_below_the_promise():
    """One record at either end of the ball, in sets of 60: many runs; the score is the answer along that line."""
    n, d, epsilon, delta = 60, 1, 3.0, 0.05
    base = rng(29).standard_normal((n, d))
    scores = []
    for end in (-50.0, 50.0):
        data = base.copy()
        data[0] = end
        found = [
            prime(data, corruption_rate=0.1, rng=rng(s), location=np.zeros(d), epsilon=epsilon, delta=delta, keep=True)
            for s in range(1500)
        ]
        scores.append(np.array([-30.0 if f.refused else f.estimate[0] for f in found]))
    attacked = audit.two_samples(scores[1], scores[0], delta=delta)
    assert 0.0 < attacked.epsilon_lower <= epsilon


@pytest.mark.paper("prime", "Algorithm 8")
def test_an_attack_shows_that_the_printed_mean_costs_d_times_what_it_states():
    """ε₁ on each of d = 200 coordinates, a record at one corner or the other; |S| = n, half of the sensitivity."""
    d, tries = 200, 20_000
    plan = printed_plan(0.9, delta=1e-3, num_records=1000, dimension=d, box_side=10.0, num_steps=2)
    epsilon = 1 / plan["size"].laplace_scale
    scale = plan["mean"].laplace_scale
    generator, sums = rng(30), []
    for corner in (-0.5, 0.5):
        answer = np.full(d, corner * 10.0 / 1000)
        seen = plan["mean"].release(np.broadcast_to(answer, (tries, d)), rng=generator)
        a, b = 0.005, -0.005
        sums.append(((np.abs(seen - b) - np.abs(seen - a)) / scale).sum(axis=1))
    attacked = audit.two_samples(sums[1], sums[0], delta=0.0)
    assert attacked.epsilon_lower > 2 * epsilon


# --------------------------------------------------------------------------------------------------------- corner cases


@PRIME
@pytest.mark.parametrize("variant", ["ball", "tuned", "as_printed"])
def test_corner_cases_have_stated_outcomes_and_no_nan(variant):
    how = {"rng": rng(31), "variant": variant, **BUDGET}
    n = 30_000
    equal = prime(np.full((n, 2), 0.3), corruption_rate=0.05, **how)
    assert equal.error(np.full(2, 0.3)) < (0.2 if variant != "as_printed" else 1.0)
    flat = rng(32).standard_normal((n, 3))
    flat[:, 1] = 5.0
    constant = prime(flat, corruption_rate=0.05, **how)
    assert constant.estimate is not None
    assert np.isfinite(constant.estimate).all()
    line = prime(flat[:, :1], corruption_rate=0.05, **how)
    assert line.error(np.zeros(1)) < 0.3
    clean = prime(flat[:, [0, 2]], corruption_rate=0.0, **how)
    assert clean.error(np.zeros(2)) < 0.3
    flat[5] = np.nan
    assert np.isfinite(prime(flat, corruption_rate=0.05, **how).estimate).all()
    for few in (0, 1):
        assert "too few" in prime(np.zeros((few, 2)), corruption_rate=0.1, **how).reason
    tiny = prime(np.zeros((10, 2)), corruption_rate=0.1, rng=rng(1), variant=variant, epsilon=0.5, delta=1e-6)
    assert tiny.refused
    assert "cut-off" in tiny.reason
    with pytest.raises(ValueError, match="corruption_rate must lie in"):
        prime(flat, corruption_rate=0.5, **how)
    with pytest.raises(ValueError, match="one row a record"):
        prime(flat[:, 0], corruption_rate=0.1, **how)
    with pytest.raises(ValueError, match="did you mean 'kappa'"):
        prime(flat, corruption_rate=0.1, kapa=2.0, **how)


@PRIME
def test_a_set_that_falls_below_three_quarters_is_refused():
    data = rng(33).standard_normal((20_000, 3))
    data[:9000] += 8.0  # the adversary has 45 %, the caller says 24 %
    found = prime(data, corruption_rate=0.24, rng=rng(3), stop_constant=0.05, lowest_draw=0.0, **BUDGET)
    assert found.refused
    assert "set too small" in found.reason
    assert 0.5 * 20_000 < found.trace[-1]["size"] < 0.75 * 20_000
    assert "iteration" not in found.trace[-1]


@PRIME
@pytest.mark.parametrize("variant", ["ball", "tuned"])
def test_a_centre_off_the_mean_changes_nothing_without_noise(variant):
    data = rng(36).standard_normal((3000, 3)) + 2.0
    how = {"corruption_rate": 0.1, "noiseless": True, "variant": variant, "location": np.array([2.6, 1.5, 2.0])}
    found = prime(data, rng=rng(37), **how, **BUDGET)
    assert len(found.trace) == 1, "clean records stop at once"
    np.testing.assert_allclose(found.estimate, data.mean(axis=0), atol=1e-12)


def test_a_noise_that_hides_the_signal_is_said():
    data = rng(34).standard_normal((3000, 20))
    found = [prime(data, corruption_rate=0.1, rng=rng(s), epsilon=0.5, delta=1e-6, variant="tuned",
                   location=np.zeros(20)) for s in range(8)]  # fmt: skip
    passed = [f for f in found if f.status == "converged"]
    assert passed
    assert all("says little" in f.reason for f in passed)


def test_settings_are_checked_by_name():
    with pytest.raises(ValueError, match="did you mean 'ball'"):
        settings_for("bal")
    with pytest.raises(ValueError, match="clip must be one of"):
        settings_for("ball", clip="disk")
    with pytest.raises(ValueError, match="num_epochs must be an integer in"):
        settings_for("ball", num_epochs=0)
    assert settings_for("tuned").clip == "cube"
    heavy = settings_for("ball", heavy_tailed=True)
    assert region_for(heavy, np.zeros(4), num_records=100, corruption_rate=0.04).radius == pytest.approx(2 * (4 + 5))
    assert replace(heavy, kappa=math.inf).kappa == math.inf


def test_steps_of_a_curator_are_public_and_replayed():
    data = rng(35).standard_normal((100, 2))
    plan = make_plan(settings_for("ball", noiseless=True), num_records=100, dimension=2, corruption_rate=0.1, **BUDGET)
    curators = [
        Curator(Rows(data, Ball(np.zeros(2), 3.0)), plan=plan, rng=rng(1), corruption_rate=0.1, interactive=i)
        for i in (False, True)
    ]
    for curator in curators:
        for step in range(3):
            curator.filter(Step(np.zeros(2), np.eye(2)[:, [step % 2]], 0.5))
    kept = curators[0].rows.take(np.flatnonzero(curators[0].state().alive)) - [0.5, -1.0]
    for curator in curators:  # moments about a public point: what Algorithm 8 asks for
        np.testing.assert_allclose(curator.second_moment(about=np.array([0.5, -1.0])), kept.T @ kept / 100)
        norm = np.linalg.norm(kept.T @ kept / 100 - np.eye(2), 2)
        assert curator.norm_about(np.array([0.5, -1.0])) == pytest.approx(norm)
    sizes = [c.size() for c in curators]
    assert sizes[0] == sizes[1] < 50
    assert (curators[0].state().alive == curators[1].state().alive).all()
