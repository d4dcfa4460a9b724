"""The exact oracle of trade-off functions: by hand, by every test there is, and against float64 at the extremes."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize

from privrob.accounting import fdp_forms, tradeoff_oracle
from privrob.accounting.tradeoff import Tradeoff
from privrob.mechanisms.binomial import BinomialNoise

HOW = {"neighbouring": "replace", "sampling": "none"}


def linear_program(p, q, alpha):
    """inf β over all tests φ in [0, 1]ⁿ with E_P φ ≤ α."""
    return 1 + optimize.linprog(-q, A_ub=[p], b_ub=[alpha], bounds=(0, 1)).fun


@pytest.mark.paper("fdp", "Lemma 3")
@pytest.mark.paper("fdp", "Definition 2")
def test_the_oracle_is_the_best_of_all_tests():
    rng = np.random.default_rng(1)
    for _ in range(60):
        p, q = (rng.multinomial(16, np.ones(5) / 5) / 16 for _ in range(2))  # zeros and ties
        alpha = np.array([0.0, 0.1, 0.25, 0.5, 0.8, 1.0])
        got = tradeoff_oracle.type2(alpha, tradeoff_oracle.law(p), tradeoff_oracle.law(q))
        assert got == pytest.approx([linear_program(p, q, a) for a in alpha], abs=1e-9)  # of the solver


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
    [(1, 0.5, 1), (1, 0.3, 2), (7, 0.0, 2), (7, 1.0, 2), (40, 1e-300, 3), (40, 1 - 1e-16, 3), (6, 0.3, 9), (6, 0.3, 6)]
    + [(500, 0.5, 8), (10**6, 0.5, 8), (10**6, 1e-6, 1), (10**6, 0.999, 700), (10**6, 0.999, 3000)],
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


def test_inf_at_a_breakpoint_counts_the_whole_atom():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.125, 0.375, 0.5])
    knots = Tradeoff.of(p, q).knots
    got = tradeoff_oracle.type2(knots[0], tradeoff_oracle.law(p), tradeoff_oracle.law(q))
    assert got == pytest.approx(knots[1], abs=1e-16)
    assert math.fsum(q) == 1
    regions = np.array(list(itertools.product([0, 1], repeat=3)))
    assert min(1 - (regions @ q)[(regions @ p) <= 0.25]) == got[1]
