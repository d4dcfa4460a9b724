"""The exact oracle of trade-off functions: by hand, by every test there is, and against float64 at the extremes."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from privrob.accounting import fdp_forms, tradeoff_oracle
from privrob.accounting.tradeoff import Tradeoff
from privrob.mechanisms.binomial import BinomialNoise

HOW = {"neighbouring": "replace", "sampling": "none"}


@pytest.mark.paper("fdp", "Lemma 3")
@pytest.mark.paper("fdp", "Definition 2")
def test_the_oracle_is_the_best_of_all_tests():
    rng = np.random.default_rng(1)
    for _ in range(60):
        p, q = (rng.multinomial(16, np.ones(5) / 5) / 16 for _ in range(2))  # zeros and ties
        alpha = np.array([0.0, 0.1, 0.25, 0.5, 0.8, 1.0])
        got = tradeoff_oracle.type2(alpha, tradeoff_oracle.law(p), tradeoff_oracle.law(q))
        assert got == pytest.approx(
            [tradeoff_oracle.best_of_all_tests(p, q, a)[0] for a in alpha], abs=1e-9
        )  # of the solver


def test_values_by_hand():
    p, q = {0: Fraction(1, 2), 1: Fraction(1, 2)}, {1: Fraction(1, 4), 2: Fraction(3, 4)}
    assert list(tradeoff_oracle.type2([0.0, 0.25, 0.5, 1.0], p, q)) == [0.25, 0.125, 0.0, 0.0]
    assert list(tradeoff_oracle.type2([0.0, 0.3, 1.0], p, {5: Fraction(1)})) == [0.0, 0.0, 0.0]
    assert list(tradeoff_oracle.type2([0.0, 0.25, 1.0], p, p)) == [1.0, 0.75, 0.0]
    masses = tradeoff_oracle.binomial(3, 0.25)
    total = sum(masses.values())
    assert [float(masses[k] / total) for k in range(4)] == pytest.approx([27 / 64, 27 / 64, 9 / 64, 1 / 64], abs=1e-16)
    assert tradeoff_oracle.binomial(3, 1.0) == {3: 1}
    with pytest.raises(ValueError, match="type1"):
        tradeoff_oracle.noise(1e-60, num_trials=10**4, success_prob=0.5, max_value=1)
    with pytest.raises(ValueError, match="success_prob"):
        tradeoff_oracle.binomial(3, 1.5)


@pytest.mark.paper("fdp", "Theorem 2")
@pytest.mark.paper("fdp", "Corollary 1")
@pytest.mark.parametrize(
    ("trials", "prob", "top"),
    [
        (1, 0.5, 1),
        (1, 0.3, 2),
        (7, 0.0, 2),
        (7, 1.0, 2),
        (40, 1e-300, 3),
        (40, 1 - 1e-16, 3),
        (6, 0.3, 9),
        (6, 0.3, 6),
        (500, 0.5, 8),
        (10**6, 0.5, 8),
        (10**6, 1e-6, 1),
        (10**6, 0.999, 700),
        (10**6, 0.999, 3000),
    ],
)
def test_noise_at_the_extremes_is_that_of_sixty_digits(trials, prob, top):
    how = {"num_trials": trials, "success_prob": prob, "max_value": top}
    noise = BinomialNoise(top, trials, prob)
    knots = np.concatenate([curve.knots[0] for curve in noise.curves]).clip(0, 1)
    knots = knots[:: max(1, knots.size // 200)]
    alpha = np.unique(np.concatenate([[0, 1e-300, 1e-9, 0.3, 0.5, 1], knots, np.nextafter(knots, 0)]))
    if trials > 5000:
        alpha = alpha[(alpha == 0) | (alpha > 1e-40)]
    want = np.minimum(*tradeoff_oracle.noise(alpha, **how))
    assert noise.tradeoff(alpha, **HOW) == pytest.approx(want, abs=1e-12)
    assert fdp_forms.theorem_2(alpha, **how) == pytest.approx(want, abs=1e-12)


def test_what_hardly_ever_happens_is_not_lost_in_sixty_digits():
    found = tradeoff_oracle.noise([0.0, 0.5], num_trials=59, success_prob=8.2e-8, max_value=11)[0]
    assert found == pytest.approx([stats.binom.sf(10, 59, 8.2e-8)] * 2, rel=1e-9)
    assert 0 < found[0] < 1e-66


def test_inf_at_a_breakpoint_counts_the_whole_atom():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.125, 0.375, 0.5])
    knots = Tradeoff.of(p, q).knots
    got = tradeoff_oracle.type2(knots[0], tradeoff_oracle.law(p), tradeoff_oracle.law(q))
    assert got == pytest.approx(knots[1], abs=1e-16)
    assert math.fsum(q) == 1
    regions = np.array(list(itertools.product([0, 1], repeat=3)))
    assert min(1 - (regions @ q)[(regions @ p) <= 0.25]) == got[1]


@pytest.mark.paper("fdp", "Lemma 3")
def test_the_printed_lemma_is_refuted_in_both_directions_at_its_edges():
    p, q = np.array([0.0, 0.5, 0.5]), np.array([0.4, 0.4, 0.2])
    for threshold, share, beta in [(math.inf, 1.0, 0.6), (math.inf, 0.5, 0.8), (0.8, 0.5, 0.4), (0.4, 1.0, 0.0)]:
        test = tradeoff_oracle.threshold_test(p, q, threshold=threshold, at_threshold=share)
        assert 1 - test @ q == pytest.approx(beta, abs=1e-15)
        best = tradeoff_oracle.best_of_all_tests(p, q, test @ p)[0]
        assert (abs(beta - best) < 1e-9) == (share == 1 or threshold < math.inf)  # h = ∞, γ < 1: not the best
    # "only if": rejecting one of two outcomes of the same ratio is as good as a coin at both
    p, q, test = np.array([0.5, 0.25, 0.25]), np.array([0.2, 0.4, 0.4]), np.array([0, 1, 0])
    assert 1 - test @ q == pytest.approx(tradeoff_oracle.best_of_all_tests(p, q, 0.25)[0], abs=1e-9)
    coin = tradeoff_oracle.threshold_test(p, q, threshold=1.6, at_threshold=0.5)
    assert list(coin) == [0.0, 0.5, 0.5]
    # and all of the power may cost less than α
    assert tradeoff_oracle.best_of_all_tests(np.array([0.5, 0.5]), np.array([0.0, 1.0]), 0.8)[0] == pytest.approx(0)


@pytest.mark.paper("fdp", "Definition 1")
def test_the_worst_set_is_the_one_where_the_ratio_exceeds_the_factor():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    assert tradeoff_oracle.delta_by_sets(p, q, math.log(2)) == pytest.approx(0.1, abs=1e-15)
    assert tradeoff_oracle.delta_by_sets(p, np.array([0.0, 0.5, 0.5]), 9.0) == pytest.approx(0.5, abs=1e-15)
    assert Tradeoff.of(p, q).delta(0.3) == pytest.approx(tradeoff_oracle.delta_by_sets(p, q, 0.3), abs=1e-15)


@pytest.mark.paper("fdp", "Figure 1")
@pytest.mark.paper("fdp", "Figure 5")
@pytest.mark.paper("fdp", "Figure 6")
def test_each_outcome_of_the_null_has_its_segment_of_type_1_errors():
    """Thresholds at each ratio, γ from 0 to 1, tile [0, 1]; part (2) has as many segments as X has outcomes, not Y."""
    x, y = np.array([0.2, 0.25, 0.3, 0.25, 0.0]), np.array([0.0, 0.0, 0.3, 0.5, 0.2])  # a ratio that rises
    ends = [0.0]
    for k in (3, 2):
        tests = [tradeoff_oracle.threshold_test(x, y, threshold=y[k] / x[k], at_threshold=g) for g in (0.0, 0.4, 1.0)]
        left, middle, right = (float(test @ x) for test in tests)
        assert left == pytest.approx(ends[-1], abs=1e-15)
        assert middle == pytest.approx(left + 0.4 * x[k], abs=1e-15)
        assert 1 - tests[1] @ y == pytest.approx(Tradeoff.of(x, y)(middle), abs=1e-15)
        ends.append(right)
    assert ends[-1] == pytest.approx(0.55, abs=1e-15)  # h = 0 takes the rest: Z_R^I − Z_L^U + 1 = 4 segments, not 3
    rest = tradeoff_oracle.threshold_test(x, y, threshold=0.0, at_threshold=1.0)
    assert (float(rest @ x), float(1 - rest @ y)) == pytest.approx((1.0, 0.0), abs=1e-15)


@pytest.mark.paper("fdp", "Remark 1")
def test_any_pair_sorted_by_its_ratio_obeys_theorem_1():
    p, q = np.array([0.2, 0.0, 0.5, 0.3]), np.array([0.3, 0.2, 0.1, 0.4])
    alpha = np.linspace(0, 1, 51)
    with pytest.raises(ValueError, match="monotone"):
        fdp_forms.theorem_1(alpha, p, q)
    order = [1, 0, 3, 2]  # ∞, 1.5, 1.33, 0.2
    want = tradeoff_oracle.type2(alpha, tradeoff_oracle.law(p), tradeoff_oracle.law(q))
    assert fdp_forms.theorem_1(alpha, p[order], q[order]) == pytest.approx(want, abs=1e-14)
    assert Tradeoff.of(p, q)(alpha) == pytest.approx(want, abs=1e-14)
