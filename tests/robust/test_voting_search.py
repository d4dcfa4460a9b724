"""Votes of unlike users and random settings: the search finds what is false, and nothing in what is true."""

import math

import numpy as np
import pytest

from privrob.kinds import Streams
from privrob.robust import voting
from privrob.robust import voting_search as search


@pytest.mark.paper("fdp", "Section 5")
def test_characteristic_functions_and_convolutions_give_one_probability():
    rng = np.random.default_rng(3)
    for trials in (1, 4):
        leans = rng.uniform(-0.5, 1.0, 7)
        want = voting.wrong_prob([(voting.binomial_vote(x, num_trials=trials), 1) for x in leans])
        got = search.wrong_prob_of((1 + leans) / 2, (1 - leans) / 2, num_trials=trials)
        assert got == pytest.approx(want, abs=1e-13)
    leans = rng.uniform(-0.2, 0.3, 9)
    want = voting.wrong_prob([(voting.ternary_vote(x, vote_prob=0.3), 1) for x in leans])
    assert search.wrong_prob_of((0.3 + leans) / 2, (0.3 - leans) / 2) == pytest.approx(want, abs=1e-13)
    assert search.wrong_prob_of(np.zeros(0), np.zeros(0)) == 1.0  # nobody: a tie
    with pytest.raises(ValueError, match="right and wrong"):
        search.wrong_prob_of([0.7], [0.6])


def test_inputs_have_the_mean_that_was_asked_for_and_stay_within_the_limit():
    rng, kinds = np.random.default_rng(4), set()
    for mean in (-0.7, 0.0, 0.31, 0.7):
        for count in (0, 1, 2, 9):
            for _ in range(20):
                got = search.inputs_of_mean(mean, count, limit=0.7, rng=rng)
                assert got.shape == (count,)
                assert np.abs(got).max(initial=0.0) <= 0.7
                assert count == 0 or got.mean() == pytest.approx(mean, abs=1e-14)
                kinds.add(count > 2 and float(np.ptp(got)) > 0.1)
    assert kinds == {True, False}
    with pytest.raises(ValueError, match="mean must"):
        search.inputs_of_mean(0.8, 3, limit=0.7, rng=rng)


@pytest.mark.paper("fdp", "Theorem 5")
@pytest.mark.paper("fdp", "Theorem 6")
@pytest.mark.paper("fdp", "Theorem 10")
@pytest.mark.paper("fdp", "Theorem 11")
@pytest.mark.paper("fdp", "Equation 85")
@pytest.mark.paper("fdp", "Equation 93")
@pytest.mark.paper("fdp", "Equation 130")
@pytest.mark.paper("fdp", "Equation 141")
def test_the_search_finds_no_exception_to_the_sound_forms_and_many_to_the_printed_ones():
    for theorem in search.THEOREMS:
        rng = Streams(2, "search", theorem).numpy("draws")
        rows = [search.trial(theorem, rng=rng) for _ in range(600)]
        sound, printed, excess = (
            np.array([row[key] for row in rows]) for key in ("sound_wrong", "printed_wrong", "excess")
        )
        assert np.isfinite(sound).mean() > 0.5
        assert np.nanmax(sound) < 0.5
        assert np.nanmax(excess) < 1e-12  # rounding of the characteristic function
        assert (np.nansum(printed >= 0.5) > 20) == (theorem != "5")
        rare = [row for row in rows if row["vote_prob"] < -math.expm1(-math.log(2) / row["num_users"])]
        if theorem in ("6", "11"):  # all exceptions to the printed form are where votes are rare
            assert sum(row["printed_wrong"] >= 0.5 for row in rare) == np.nansum(printed >= 0.5)
            assert all(math.isnan(row["sound_wrong"]) for row in rare)
    with pytest.raises(ValueError, match="theorem must"):
        search.trial("7", rng=rng)


@pytest.mark.paper("fdp", "Section 5")
def test_the_majority_of_signs_can_be_wrong_for_certain_and_is_not_where_signs_are_likely_right():
    assert search.majority_disagrees([5.0, 1.0, 1.0], [1.0, 0.0, 0.0]) == 1.0
    rng = np.random.default_rng(6)
    for _ in range(200):
        sizes, probs = rng.pareto(0.7, 7) + 0.01, rng.uniform(0.5, 1.0, 7)
        assert search.majority_disagrees(sizes, probs) < 0.5
    even = search.majority_disagrees([1.0, 2.0], [0.5, 0.5])  # half of the majorities are ties
    assert even == pytest.approx(0.5, abs=1e-15)
    draws = Streams(1, "signs").numpy("draws")
    sizes, probs = np.array([3.0, 1.0, 0.8, 0.7, 0.2]), np.array([0.6, 0.9, 0.5, 0.7, 0.55])
    signs = np.where(draws.random((200_000, 5)) < probs, 1, -1)
    rate = (np.sign(signs.sum(axis=1)) != np.sign(signs @ sizes)).mean()
    want = search.majority_disagrees(sizes, probs)
    assert abs(rate - want) < 5 * math.sqrt(want * (1 - want) / 200_000)
    with pytest.raises(ValueError, match="magnitudes"):
        search.majority_disagrees([1.0], [0.5, 0.5])


@pytest.mark.paper("fdp", "Remark 9")
@pytest.mark.paper("fdp", "Remark 10")
def test_pairs_of_settings_move_as_the_remarks_say_but_for_ternary_bounds_in_b():
    moves = {}
    for change in search.CHANGES:
        rng = Streams(3, "pairs", change).numpy("draws")
        rows = [search.pair_of_settings(change, rng=rng) for _ in range(500)]
        columns = ("privacy_rise", "privacy_fall", "sound_rise", "printed_rise")
        moves[change] = {c: np.array([row[c] for row in rows]) for c in columns}
    for change, sign in (("binomial B", 1), ("binomial M", -1), ("ternary A", 1), ("ternary B", 1)):
        wrong_way = moves[change]["privacy_fall" if sign > 0 else "privacy_rise"]
        assert wrong_way.max() < 1e-13
        assert max(moves[change]["privacy_rise"].max(), moves[change]["privacy_fall"].max()) > 0.1
        rise = moves[change]["sound_rise"] * sign
        assert (np.isfinite(rise) | np.isinf(rise)).sum() > 100
        assert np.nanmax(rise) <= 1e-9
    assert (moves["ternary B"]["printed_rise"] > 1e-3).any()  # the printed bound, where votes are rare
    with pytest.raises(ValueError, match="change must"):
        search.pair_of_settings("B", rng=rng)


@pytest.mark.paper("fdp", "Remark 14")
@pytest.mark.paper("fdp", "Remark 15")
def test_stronger_attackers_lower_the_bound_and_raise_the_probability_of_a_wrong_vote():
    for theorem in ("10", "11"):
        rng = Streams(5, "strengths", theorem).numpy("draws")
        rows = [search.two_strengths(theorem, rng=rng) for _ in range(300)]
        assert max(row["bound_rise"] for row in rows) <= 1e-9
        assert sum(row["bound_rise"] < -0.1 for row in rows) > 30
        assert max(row["prob_fall"] for row in rows) < 1e-12
        assert max(row["gain"] for row in rows) > 0.1
