"""Planning for bits and ε: against brute force over scales, privacy-loss distributions and the exact vote."""

import math

import numpy as np
import pytest

from privrob.accounting import pairs
from privrob.mechanisms.binomial import BinomialMechanism
from privrob.mechanisms.ternary import Ternary
from privrob.robust import bit_budget, voting

HOW = {"neighbouring": "replace", "sampling": "none"}


@pytest.mark.paper("fdp", "Remark 13")
@pytest.mark.parametrize("rounds", [1, 7, 40])
def test_sums_of_rounds_lose_nothing(rounds):
    for mechanism in (
        Ternary(1.0, 2.5, 4.0),
        Ternary(1.0, 3.0, 3.0),
        BinomialMechanism.scaled(clip=1.0, scale_b=4.0, num_trials=3),
    ):
        exact = bit_budget.epsilon_after(mechanism, rounds, delta=1e-4)
        composed = pairs.compose([(mechanism.pairs(**HOW), rounds)], delta=1e-4)
        assert composed.lower - 1e-9 <= exact.lower <= exact.upper <= composed.upper + 1e-9
        assert composed.upper - composed.lower < 2e-3
    skewed = BinomialMechanism(1.0, 3, 0.3, 0.6)  # no reflection: composed
    assert bit_budget.epsilon_after(skewed, 3, delta=1e-4).upper > skewed.epsilon(1e-4, **HOW).upper


def test_many_rounds_of_a_rare_vote_have_an_epsilon():
    mechanism = Ternary(1.0, 20.0, 2000.0)
    exact = bit_budget.epsilon_after(mechanism, 3000, delta=1e-6)
    composed = pairs.compose([(mechanism.pairs(**HOW), 3000)], delta=1e-6)
    assert composed.lower - 1e-9 <= exact.upper <= composed.upper + 1e-9


@pytest.mark.paper("fdp", "Remark 9")
@pytest.mark.parametrize(("rounds", "epsilon"), [(1, 1.0), (1, 6.0), (25, 2.0)])
def test_no_other_parameters_within_the_budget_do_better(rounds, epsilon):
    best = bit_budget.binomial(epsilon=epsilon, delta=1e-4, bits=3.0, num_rounds=rounds)
    assert best.epsilon.upper <= epsilon
    assert best.bits <= 3.0
    assert best.error == pytest.approx(bit_budget.mean_square_error(best.mechanism), rel=1e-12)
    rng = np.random.default_rng(1)
    tried = 0
    for _ in range(400):
        trials, scale = int(rng.integers(1, 24)), float(1 + rng.exponential(3.0 * math.sqrt(rounds)))
        mechanism = BinomialMechanism.scaled(clip=1.0, scale_b=scale, num_trials=trials)
        if mechanism.bits_entropy(0.0) > 3.0 or scale**2 / trials >= best.error * (1 - 1e-6):
            continue
        tried += 1
        assert bit_budget.epsilon_after(mechanism, rounds, delta=1e-4).upper > epsilon
    assert tried > 10


@pytest.mark.paper("fdp", "Theorem 6")
@pytest.mark.parametrize(("bits", "rounds"), [(0.4, 1), (0.4, 25), (1.2, 25)])
def test_no_other_ternary_compressor_within_the_budget_does_better(bits, rounds):
    best = bit_budget.ternary(epsilon=2.0, delta=1e-4, bits=bits, num_rounds=rounds)
    assert best.bits <= bits + 1e-9
    assert best.epsilon.upper <= 2.0
    a, b = best.mechanism.scale_a, best.mechanism.scale_b
    assert best.error == pytest.approx(a * b, rel=1e-12)
    assert best.bits == pytest.approx(bit_budget.share_bits(a / b), rel=1e-9)
    rng = np.random.default_rng(2)
    tried = 0
    for _ in range(600):
        share = float(rng.uniform(0.005, 1.0))
        scale = float(1 + rng.exponential(2.0 * math.sqrt(share * rounds)))
        mechanism = Ternary(1.0, scale, scale / share)
        if mechanism.bits_entropy(0.0) > bits or scale**2 / share >= best.error * 0.98:  # shares between those tried
            continue
        tried += 1
        assert bit_budget.epsilon_after(mechanism, rounds, delta=1e-4).upper > 2.0
    assert tried > 5


def test_known_answers():
    pure = bit_budget.binomial(epsilon=math.log(3), delta=1e-150, bits=1.0)  # a single vote: B = c (e^ε + 1)/(e^ε − 1)
    assert pure.error == pytest.approx(4.0, rel=1e-8)
    assert pure.mechanism.num_trials == 1
    same = bit_budget.ternary(epsilon=math.log(3), delta=1e-150, bits=1.0, num_shares=5)
    assert same.error == pytest.approx(4.0, rel=1e-8)
    scaled = bit_budget.binomial(epsilon=math.log(3), delta=1e-150, bits=1.0, clip=0.1)
    assert scaled.error == pytest.approx(0.04, rel=1e-8)
    assert bit_budget.binomial(epsilon=8.0, delta=1e-5, bits=2.0, code="fixed").mechanism.num_trials <= 3
    assert bit_budget.gaussian_error(epsilon=1.0, delta=1e-5) == pytest.approx((2 * 3.7306) ** 2, rel=1e-3)
    assert "bits a round" in str(pure)


@pytest.mark.paper("fdp", "Theorem 5")
def test_votes_are_the_exact_ones_and_may_be_the_objective():
    mechanism = BinomialMechanism.scaled(clip=1.0, scale_b=3.0, num_trials=4)
    got = bit_budget.wrong_vote(mechanism, mean=0.4, num_users=9, num_attackers=2)
    groups = [(voting.binomial_vote(s * 0.4 / 3, num_trials=4), n) for s, n in ((1, 9), (-1, 2))]
    assert got == pytest.approx(voting.wrong_prob(groups), rel=1e-12)
    sparse = Ternary(1.0, 2.0, 5.0)
    got = bit_budget.wrong_vote(sparse, mean=0.4, num_users=9, num_attackers=2)
    groups = [(voting.ternary_vote(s * 0.4 / 5, vote_prob=0.4), n) for s, n in ((1, 9), (-1, 2))]
    assert got == pytest.approx(voting.wrong_prob(groups), rel=1e-12)
    objective = bit_budget.vote_error(mean=0.5, num_users=30)
    one = bit_budget.ternary(epsilon=1.0, delta=1e-5, bits=0.5, objective=objective, num_shares=8)
    assert one.error == pytest.approx(objective(one.mechanism), rel=1e-12)
    more = bit_budget.ternary(epsilon=1.0, delta=1e-5, bits=1.0, objective=objective, num_shares=8)
    assert more.error < one.error


def test_budgets_are_checked():
    with pytest.raises(ValueError, match="ternary"):
        bit_budget.binomial(epsilon=1.0, delta=1e-5, bits=0.9)
    with pytest.raises(ValueError, match="entropy"):
        bit_budget.ternary(epsilon=1.0, delta=1e-5, bits=1.0, code="fixed")
    with pytest.raises(ValueError, match="delta"):
        bit_budget.binomial(epsilon=1.0, delta=0.0, bits=1.0)
    with pytest.raises(ValueError, match="epsilon"):
        bit_budget.binomial(epsilon=0.0, delta=1e-5, bits=1.0)
    with pytest.raises(ValueError, match="code"):
        bit_budget.ternary(epsilon=1.0, delta=1e-5, bits=1.0, code="huffman")


def test_a_huge_budget_is_met_by_a_scale_just_above_the_clip():
    plan = bit_budget.binomial(epsilon=700.0, delta=1e-5, bits=1.5, most=2)
    assert plan.epsilon.upper <= 700.0
    assert plan.mechanism.p_max > 1 - 1e-8


def test_shares_use_all_bits_just_below_the_turn_of_the_entropy():
    plans = bit_budget.ternary_plans(
        epsilon=1.0, delta=1e-5, bits=1.58, num_rounds=1, clip=1.0, objective=lambda m: 0.0, num_shares=2
    )
    assert max(plan.bits for plan in plans) == pytest.approx(1.58, abs=1e-9)


def test_the_gaussian_error_refuses_rounds_and_clips_out_of_range():
    for bad in ({"num_rounds": -1}, {"clip": math.nan}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            bit_budget.gaussian_error(epsilon=1.0, delta=1e-5, **bad)


def test_bits_of_any_kind_of_number_are_taken_and_too_few_are_refused():
    how = {"epsilon": 4.0, "delta": 1e-5}
    assert bit_budget.ternary(bits=np.float32(0.5), **how) == bit_budget.ternary(bits=0.5, **how)
    assert bit_budget.ternary(bits=1e-27, **how).bits <= 1e-27
    for bits in (9e-28, 1e-300, 5e-324, 0.0):
        with pytest.raises(ValueError, match=rf"bits must lie in \[1e-27, inf\), got bits={bits}"):
            bit_budget.ternary(bits=bits, **how)
