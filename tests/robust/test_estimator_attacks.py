"""Attacks: a transcript's likelihood is right, sound claims stand, broken ones fall."""

import math

import numpy as np
import pandas as pd
import pytest

from privrob.kinds import Streams
from privrob.robust import attacks, small_sets
from privrob.robust.attacks import Transcript, attack_cell, poles, transcript_loss
from privrob.robust.dpfilter import private_filter, sound_plan
from privrob.robust.filtering import FilteredSet
from privrob.robust.prime import prime
from privrob.robust.rows import Ball, Cube, Rows

COMMON = {"failure_prob": 1e-3, "sound": True, "num_records": 40, "epsilon": 8.0, "delta": 1e-3}


def attacked(name="x", **settings):
    return attack_cell({**COMMON, "name": name, **settings}, streams=Streams(0, name))[0]


def test_a_transcript_of_the_same_data_has_no_loss_and_of_a_neighbour_a_mean_of_one():
    """E over S of P′/P is 1 exactly: the likelihoods are those of the code's own noise."""
    region = Ball(np.zeros(2), 3.0)
    data, other = poles(region, 30)
    how = {"corruption_rate": 0.1, "epsilon": 1.0, "delta": 0.01, "num_epochs": 1, "num_iterations": 1}
    how |= {"location": np.zeros(2), "variant": "ball"}

    def run(x, **more):
        return prime(x, **how, **more)

    assert transcript_loss(run, data, data, sequence=5) == 0.0
    losses = np.array([transcript_loss(run, data, other, sequence=k) for k in range(250)])
    ratios = np.exp(-losses)
    assert abs(ratios.mean() - 1) < 5 * ratios.std() / math.sqrt(len(ratios))
    assert losses.mean() > 0  # a Kullback–Leibler divergence


@pytest.mark.parametrize("form", ["sound", "as_printed"])
def test_the_likelihood_of_laplace_and_mirrored_answers_is_their_density(form):
    region = Cube(np.zeros(2), 6.0)
    data, other = poles(region, 1500)

    def run(x, **more):
        how = {"corruption_rate": 0.1, "epsilon": 0.9, "delta": 0.01, "box_side": 6.0, "num_steps": 2, "form": form}
        return private_filter(x, location=np.zeros(2), **how, **more)

    ratios = np.exp([-transcript_loss(run, data, other, sequence=k) for k in range(250)])
    assert abs(ratios.mean() - 1) < 5 * ratios.std() / math.sqrt(len(ratios))
    assert ratios.std() > 0.01


def test_a_replay_repeats_the_answers_and_sees_its_own_truth():
    plan = sound_plan(1.0, delta=0.01, num_records=10, dimension=2, diameter=4.0, num_steps=1)
    region = Ball(np.zeros(2), 2.0)
    how = {"plan": plan, "rng": np.random.default_rng(1), "corruption_rate": 0.1}
    one = Transcript(Rows(np.ones((10, 2)), region), **how)
    first = [one.size(), one.total(), one.second_moment(about=np.zeros(2))]
    two = Transcript(Rows(np.zeros((10, 2)), region), given=one.answers, **how)
    again = [two.size(), two.total(), two.second_moment(about=np.zeros(2))]
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    assert two.truth[1][1].tolist() == [0.0, 0.0]
    assert one.truth[1][1].tolist() == [10.0, 10.0]
    gap = [(np.sum((a - t) ** 2) - np.sum((a - u) ** 2)) for a, (_, t), (_, u) in zip(first, two.truth, one.truth)]
    stds = [plan[w].noise_std for w in ("size", "mean", "second_moment")]
    want = sum(g / (2 * s**2) for g, s in zip(gap, stds))
    assert one.log_likelihood() - two.log_likelihood() == pytest.approx(want)


@pytest.mark.paper("prime", "Theorem 6")
@pytest.mark.parametrize("d", [2, 3])
def test_sound_prime_stands_and_the_noise_of_sixty_would_not_keep_a_claim_of_one(d):
    once = {"num_epochs": 1, "num_iterations": 1}
    how = {"attack": "prime", "variant": "ball", "dimension": d, "options": once, "num_runs": 250}
    row = attacked(**how)
    assert 0.1 < row["epsilon_lower"] <= 8.0
    cheat = attacked(**{**how, "epsilon": 60.0, "num_runs": 100})
    assert cheat["epsilon_lower"] > 1.0, "the noise of ε = 60 does not keep a claim of 1"


@pytest.mark.paper("prime", "Lemma D.3")
def test_the_printed_mean_of_dpfilter_is_exposed_with_half_of_the_records_left():
    row = attacked(attack="mean query", dimension=100, num_records=20, num_runs=4000)
    assert row["delta"] == 0.0
    assert row["epsilon_lower"] > 1.3 * row["claimed"]


def test_the_script_s_size_check_is_exposed_and_prime_s_is_not():
    pair = {"attack": "size pair", "dimension": 1, "num_records": 60_000, "epsilon": 1.0, "delta": 0.01}
    assert attacked(**pair, num_runs=300, variant="as_released")["epsilon_lower"] > 1.5
    assert attacked(**pair, num_runs=20, variant="ball")["epsilon_lower"] <= 1.0


@pytest.mark.paper("prime", "Lemma D.2")
def test_a_range_without_a_cutoff_is_exposed():
    how = {"attack": "histogram", "dimension": 1, "num_records": 20, "num_runs": 1000, "epsilon": 1.0, "delta": 0.01}
    assert attacked(**how, cutoff=False)["epsilon_lower"] > 3.0
    assert attacked(**how, cutoff=True)["epsilon_lower"] <= 1.0
    assert 0.05 < attacked(**{**how, "epsilon": 4.0, "delta": 1e-3}, cutoff=True)["epsilon_lower"] <= 4.0


@pytest.mark.paper("prime", "Theorem 7")
@pytest.mark.paper("prime", "Theorem 8")
@pytest.mark.paper("prime", "Lemma H.11")
@pytest.mark.paper("prime", "Lemma H.6")
@pytest.mark.parametrize("heavy_tailed", [False, True])
def test_algorithm_2_as_printed_passes_its_delta_by_far_and_ours_does_not(heavy_tailed):
    how = {"corruption_rate": 0.15, "num_records": 200, "heavy_tailed": heavy_tailed}
    assert attacks.algorithm_2_delta(0.9, **how) > 0.1
    assert attacks.algorithm_2_delta(0.9, form="sound", **how) <= 1e-4
    assert attacks.algorithm_2_delta(0.05, form="sound", **how) <= 1e-4


@pytest.mark.paper("prime", "Theorem 6")
def test_a_step_of_prime_may_leave_one_record():
    """The data of the attack: M is a multiple of I, and the step at a low threshold leaves the one near the centre."""
    for heavy_tailed, square in ((False, 2.9), (True, 100.0)):
        small = small_sets.SmallSet.of(heavy_tailed=heavy_tailed)
        n = small.num_records
        assert math.ceil(2 * small.corruption_rate * n) == n - 1
        for data, want in zip(small.data(), (0.0, small.place)):
            state = FilteredSet(Rows(data, Cube(np.zeros(3), 30.0)))
            np.testing.assert_allclose(state.second_moment, square * np.eye(3), atol=0.01)
            scores = state.scores(np.zeros(3), np.eye(3) / math.sqrt(3))
            state.remove(scores, 8192 * small.highest_draw / 10, size=n - 1)
            np.testing.assert_allclose(state.mean, want)
            assert state.size == 1


@pytest.mark.parametrize("heavy_tailed", [False, True])
def test_the_neighbours_answer_rarely_lands_at_the_record(heavy_tailed):
    """Against Normal noise about the nearest point that may be left in the neighbour; and the bound's own edges."""
    small = small_sets.SmallSet.of(heavy_tailed=heavy_tailed)
    std = small.place * math.sqrt(3) / 3
    drawn = np.random.default_rng(0).normal(small.place, std, (200_000, 3))
    share = float((np.linalg.norm(drawn, axis=1) < small.near).mean())
    assert share == pytest.approx(small.wrong_prob(std), rel=0.05)
    rows = pd.DataFrame({"near": [True] * 30 + [False] * 70, "noise_std": small.place / 5})
    least = small.least_delta(rows, 0.9, failure_prob=1e-3)
    assert 0 < least < 0.3 * small.highest_draw
    assert small.least_delta(rows.assign(near=False), 0.9, failure_prob=1e-3) == 0.0


@pytest.mark.paper("prime", "Theorem 9")
def test_prime_ht_as_printed_asks_for_the_mean_of_one_record():
    (_, how), *rest = small_sets.work(12, heavy_tailed=True, epsilon=0.9, delta=1e-6, parts=1)
    rows = small_sets.cell(how, streams=Streams(0, "small set"))
    assert not rest
    assert len(rows) == 12
    assert {"asked", "near", "noise_std", "heavy_tailed", "record"} == set(rows[0])
    assert all(row["asked"] or not row["near"] for row in rows)


def test_every_target_is_named_once_and_has_what_it_needs():
    how = {"answer_runs": 8, "script_runs": 4, "script_records": 20_000, "failure_prob": 0.01}
    targets = attacks.standard_targets(num_runs=4, epsilon=8.0, delta=1e-3, **how)
    names = [t["name"] for t in targets]
    assert len(set(names)) == len(names) == 16
    for target in targets:
        row = attack_cell(target, streams=Streams(0, target["name"]))[0]
        assert row["epsilon_lower"] >= 0.0
        assert row["claimed"] > 0
