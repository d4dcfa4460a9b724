"""The document's proof steps in fractions, and the readings of cpSGD's ε."""

import itertools
from fractions import Fraction

import pytest

from privrob.accounting import fdp_exact, fdp_forms

HALF = Fraction(1, 2)


@pytest.mark.paper("fdp", "Corollary 1")
def test_ratios_are_those_of_49_with_m_for_n_and_fall():
    for trials, prob, upper, lower in [(7, Fraction(3, 10), 4, 1), (5, HALF, 3, 0), (1, Fraction(9, 10), 1, 0)]:
        z = fdp_exact.masses(trials, prob)
        assert sum(z) == 1
        how = {"upper": upper, "lower": lower, "prob": prob}
        ks = range(upper, lower + trials + 1)
        ratio = [z[k - lower] / z[k - upper] for k in ks]
        assert ratio == [fdp_exact.ratio_formula(k, trials=trials, **how) for k in ks]
        assert ratio != [fdp_exact.ratio_formula(k, trials=trials + 3, **how) for k in ks]  # N users
        assert all(a > b for a, b in itertools.pairwise(ratio))


@pytest.mark.paper("fdp", "Theorem 2")
def test_the_strict_inequality_of_54_is_an_equality_at_the_ends_and_never_turns():
    for trials, prob in [(1, HALF), (4, Fraction(3, 10)), (9, Fraction(19, 20))]:
        steps = list(fdp_exact.steps(trials, prob))
        assert all(step <= bound <= 0 for step, bound in steps)
        equal = sum(step == bound for step, bound in steps)
        assert len(steps) // 3 <= equal < len(steps)
    z = fdp_exact.masses(4, Fraction(3, 10))
    alpha = [0.0, float(sum(z[:2])), 0.5]  # J is β⁺ on its interval
    want = fdp_forms.theorem_1(alpha[1], [0.0, 0.0, *map(float, z)], [*map(float, z), 0.0, 0.0])
    assert float(fdp_exact.piece(2, 2, Fraction(alpha[1]), z)) == pytest.approx(float(want), abs=1e-15)


@pytest.mark.paper("fdp", "Remark 4")
def test_no_reading_of_cpsgd_with_two_changes_gives_318():
    found = fdp_exact.cpsgd_readings(variance=125.0)
    how = {"num_trials": 500, "success_prob": 0.5, "l1_sensitivity": 8, "l2_sensitivity": 8, "linf_sensitivity": 8}
    assert found[()] == pytest.approx(fdp_forms.cpsgd_epsilon(0.044, **how), rel=1e-13)
    assert found[(("l", 7),)] == pytest.approx(found[()] * 7 / 8, rel=1e-13)
    assert found[(("terms", (1, 1, 0)),)] == pytest.approx(1.851224 + 0.392018, abs=1e-6)
    assert len(found) > 250
    assert not any(abs(epsilon - 3.18) <= 0.005 for epsilon in found.values())
