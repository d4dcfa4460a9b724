"""Steps of the document's proofs: each against curves from enumeration, and the misprinted ones are refuted."""

import numpy as np
import pytest
from scipy import stats

from privrob.accounting import fdp_proofs as proofs
from privrob.accounting.tradeoff import Tradeoff
from privrob.mechanisms.binomial import PoissonBinomial

ALPHA = np.linspace(0.013, 0.987, 40)


def curve(trials, p, q):
    counts = np.arange(trials + 1)
    return Tradeoff.of(stats.binom.pmf(counts, trials, p), stats.binom.pmf(counts, trials, q))


@pytest.mark.paper("fdp", "Theorem 3")
@pytest.mark.parametrize(("trials", "p", "q"), [(1, 0.7, 0.2), (6, 0.6, 0.55), (30, 0.9, 0.4)])
def test_the_curve_rises_with_the_smaller_probability_as_equation_65_says(trials, p, q):
    step = 1e-6
    slope = (curve(trials, p, q + step)(ALPHA) - curve(trials, p, q - step)(ALPHA)) / (2 * step)
    got = proofs.theorem_3_derivative(ALPHA, num_trials=trials, p=p, q=q)
    assert got == pytest.approx(slope, abs=1e-8)  # third derivatives of order M³ times step²
    assert (got >= 0).all()
    assert (got > 0).any()


@pytest.mark.paper("fdp", "Theorem 3")
def test_a_larger_probability_has_the_lower_curve_in_all_four_cases_and_case_4_is_misprinted():
    seen = set()
    for trials, p, p_hat, q in [(1, 0.7, 0.5, 0.2), (5, 0.6, 0.55, 0.5), (20, 0.8, 0.5, 0.1)]:
        found = proofs.theorem_3_cases(num_trials=trials, p=p, p_hat=p_hat, q=q)
        exact = curve(trials, p, q)(found["type1"]) - curve(trials, p_hat, q)(found["type1"])
        assert found["difference"] == pytest.approx(exact, abs=1e-13)
        assert (found["difference"] <= found["bound"] + 1e-14).all()
        assert (found["bound"] <= 1e-15).all()
        assert (found["k"] >= found["k_hat"]).all()
        fourth = found["case"] == 4
        assert (found["difference"] > found["bound_printed"])[fourth].all()
        assert (found["k"] > found["k_hat"])[fourth].all()
        counts = np.arange(trials)
        assert (stats.binom.cdf(counts, trials, p) < stats.binom.cdf(counts, trials, p_hat)).all()  # printed: >
        seen |= set(found["case"])
    assert seen == {1, 2, 3, 4}


@pytest.mark.paper("fdp", "Theorem 9")
def test_equation_120_is_the_curve_with_its_bracket_put_right_only():
    others, own, other = [0.3, 0.45, 0.6], 0.6, 0.35
    server = PoissonBinomial(4, 1, 0.3, 0.6)
    exact = Tradeoff.of_logs(*(server.log_masses([*others, p]) for p in (own, other)))(ALPHA)
    how = {"others": PoissonBinomial(3, 1, 0.3, 0.6).log_masses(others), "own_prob": own, "other_prob": other}
    assert proofs.equation_120(ALPHA, **how) == pytest.approx(exact, abs=1e-14)
    printed = proofs.equation_120(ALPHA, form="as_printed", **how)
    assert np.abs(printed - exact).max() > 0.1


@pytest.mark.paper("fdp", "Theorem 9")
def test_equation_114_holds_and_makes_the_ratio_fall():
    others, own, other = [0.3, 0.45, 0.6], 0.6, 0.35
    z = PoissonBinomial(3, 1, 0.3, 0.6).log_masses(others)
    left, right = proofs.equation_114(others=z, own_prob=own, other_prob=other)
    x, y = (np.exp(PoissonBinomial(4, 1, 0.3, 0.6).log_masses([*others, p])) for p in (own, other))
    assert left == pytest.approx(y[1:] * x[:-1] - y[:-1] * x[1:], abs=1e-16)
    assert right == pytest.approx(left, abs=1e-16)
    assert (right < 0).all()


@pytest.mark.paper("fdp", "Definition 2")
def test_no_randomised_test_beats_the_curve():
    p, q = np.array([0.1, 0.4, 0.2, 0.3]), np.array([0.3, 0.1, 0.25, 0.35])
    for alpha in (0.0, 0.05, 0.3, 0.7):
        assert proofs.by_linear_program(alpha, p, q) == pytest.approx(float(Tradeoff.of(p, q)(alpha)), abs=1e-8)


def test_probabilities_in_the_wrong_order_are_refused_by_name():
    with pytest.raises(ValueError, match="q must"):
        proofs.theorem_3_derivative(0.5, num_trials=3, p=0.4, q=0.6)
    with pytest.raises(ValueError, match="p_hat must"):
        proofs.theorem_3_cases(num_trials=3, p=0.4, p_hat=0.5, q=0.1)
    with pytest.raises(ValueError, match="other_prob must"):
        proofs.equation_120(0.5, others=[0.0], own_prob=0.3, other_prob=0.4)
