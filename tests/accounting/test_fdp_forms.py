"""The closed forms of document fdp: against enumeration over tests and inputs; what is wrong as printed is refuted."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from privrob.accounting import fdp_forms as forms
from privrob.accounting import gdp, tradeoff_least, tradeoff_oracle
from privrob.accounting.tradeoff import Tradeoff
from privrob.mechanisms.binomial import BinomialNoise

ALPHA = np.concatenate([[0.0, 1e-9], np.linspace(0.001, 0.999, 300), [1 - 1e-9, 1.0]])


def best_test(p, q, alpha=ALPHA):
    return Tradeoff.of(p, q)(alpha)


def noise_masses(trials, prob, shift, size):
    masses = np.zeros(size)
    masses[shift : shift + trials + 1] = stats.binom.pmf(np.arange(trials + 1), trials, prob)
    return masses


# --------------------------------------------------------------------------------------------------------- Theorem 1


@pytest.mark.paper("fdp", "Theorem 1")
def test_the_closed_form_is_the_best_test_on_any_monotone_ratio():
    rng = np.random.default_rng(3)
    for trial in range(200):
        size, cut = int(rng.integers(2, 9)), int(rng.integers(0, 3))
        p = rng.dirichlet(np.ones(size))
        ratio = np.sort(rng.exponential(size=size))[::-1]
        p = np.concatenate([np.zeros(cut), p, np.full(int(rng.integers(0, 3)), 0.1)])
        q = np.zeros(p.size)
        q[cut : cut + size] = p[cut : cut + size] * ratio
        q[:cut] = 0.2
        p, q = p / p.sum(), q / q.sum()
        if trial % 2:
            p, q = p[::-1], q[::-1]  # a rising ratio: part (2)
        alpha = np.unique(np.concatenate([ALPHA, np.cumsum(p).clip(0, 1), np.cumsum(p[::-1]).clip(0, 1)]))
        assert forms.theorem_1(alpha, p, q) == pytest.approx(best_test(p, q, alpha), abs=1e-12)


@pytest.mark.paper("fdp", "Theorem 1")
def test_ends_of_the_closed_form():
    assert forms.theorem_1(0.0, [0.0, 0.5, 0.5], [0.3, 0.4, 0.3]) == pytest.approx(0.7, abs=1e-15)  # P(Y >= 1)
    assert forms.theorem_1(0.5000001, [0.0, 0.5, 0.5], [0.3, 0.7, 0.0]) == 0.0
    assert forms.theorem_1([0.0, 0.5], [1.0, 0.0], [0.0, 1.0]) == pytest.approx([0, 0], abs=0)
    with pytest.raises(ValueError, match="monotone"):
        forms.theorem_1(0.3, [0.2, 0.5, 0.3], [0.3, 0.1, 0.6])


@pytest.mark.paper("fdp", "Theorem 1")
def test_the_ranges_say_which_part_it_is_where_the_ratio_is_level():
    p, q = np.array([0.0, 0.25, 0.25, 0.5]), np.array([0.5, 0.25, 0.25, 0.0])
    for null, other in ((p, q), (p[::-1], q[::-1]), (q, p)):  # parts (1), (2) and (2)
        assert forms.theorem_1(ALPHA, null, other) == pytest.approx(best_test(null, other), abs=1e-13)
    with pytest.raises(ValueError, match="monotone"):  # the ratio falls, and the null alone stands left of it
        forms.theorem_1(0.3, [0.2, 0.5, 0.3], [0.0, 0.8, 0.2])


@pytest.mark.paper("fdp", "Theorem 1")
def test_drawn_pairs_agree_with_exact_arithmetic_at_breakpoints():
    rng = np.random.default_rng(8)
    for trial in range(80):
        p, q = tradeoff_oracle.monotone_pair(rng, largest=8)
        p, q = (p[::-1], q[::-1]) if trial % 2 else (p, q)
        knots = np.concatenate([np.cumsum(p), np.cumsum(p[::-1])]).clip(0, 1)
        alpha = np.unique(np.concatenate([ALPHA[::20], knots, np.nextafter(knots, 0)]))
        want = tradeoff_oracle.type2(alpha, tradeoff_oracle.law(p), tradeoff_oracle.law(q))
        assert forms.theorem_1(alpha, p, q) == pytest.approx(want, abs=1e-12)
        assert best_test(p, q, alpha) == pytest.approx(want, abs=1e-12)


@pytest.mark.paper("fdp", "Theorem 1")
@pytest.mark.paper("fdp", "Figure 6")
def test_the_interval_of_8_as_printed_leaves_a_gap_and_the_one_of_29_does_not():
    """(P(X > k), P(X <= k)] is empty wherever P(X > k) >= P(X <= k); (P(X > k), P(X >= k)] tiles [0, 1]."""
    p = np.array([0.6, 0.3, 0.1])
    beyond, at_most, at_least = 1 - np.cumsum(p), np.cumsum(p), np.cumsum(p[::-1])[::-1]
    assert at_least - beyond == pytest.approx(p, abs=1e-15)
    assert (at_most - beyond)[-1] > p[-1] + 0.5  # the printed piece for k = 2 covers (0, 1]: more than one β at an α
    q = np.array([0.1, 0.3, 0.6])
    assert forms.equation_8_values(0.5, p, q) == pytest.approx([0.1 - 0.1 / 6, 0.0, -2.0], abs=1e-12)
    assert forms.equation_8_values(0.95, p, q) == pytest.approx([1 - 0.95 * 6], abs=1e-12)
    assert forms.theorem_1(0.05, p, q) == pytest.approx(1 - 6 * 0.05, abs=1e-12)
    assert forms.theorem_1(0.5, p, q) == pytest.approx(0.1 + 0.1 / 0.6 * (0.4 - 0.5), abs=1e-12)


# --------------------------------------------------------------------------------------------------- Theorems 2 to 4


@pytest.mark.paper("fdp", "Theorem 2")
@pytest.mark.paper("fdp", "Corollary 1")
@pytest.mark.parametrize("prob", [1e-6, 0.1, 0.35, 0.5, 0.8, 1 - 1e-6])
def test_binomial_noise_is_the_infimum_over_all_inputs(prob):
    for trials in (1, 2, 5, 12, 50):
        for top in {1, 2, trials - 1, trials, trials + 1} - {0}:
            size = top + trials + 1
            masses = [noise_masses(trials, prob, x, size) for x in range(top + 1)]
            inputs = range(top + 1) if top < 13 else (0, 1, top // 2, top - 1, top)
            curves = [best_test(masses[x], masses[y]) for x in inputs for y in inputs if x != y]
            got = forms.theorem_2(ALPHA, num_trials=trials, success_prob=prob, max_value=top)
            assert got == pytest.approx(np.min(curves, axis=0), abs=1e-12)
            if top > trials:
                assert (got == 0).all()
    for end in (0.0, 1.0):
        assert (forms.theorem_2(ALPHA, num_trials=4, success_prob=end, max_value=2) == 0).all()


@pytest.mark.paper("fdp", "Remark 4")
def test_printed_claims_about_a_half_are_refuted_where_they_fail():
    def both(trials, prob, top, alpha):
        curve = Tradeoff.of(noise_masses(trials, prob, top, 99), noise_masses(trials, prob, 0, 99))
        return curve(alpha), curve.inverse()(alpha)

    # "β⁺ and β⁻ are maximised at p = 1/2": neither is, and nor is their minimum
    ends = [max(both(20, p, 8, 0.0)) for p in (0.98, 0.5)]
    assert ends[0] - ends[1] == pytest.approx(0.1316, abs=5e-5)
    at_half, elsewhere = (forms.theorem_2(0.25, num_trials=2, success_prob=p, max_value=1) for p in (0.5, 0.35))
    assert [at_half, elsewhere] == pytest.approx([0.25, 1703 / 5600], abs=1e-12)
    # β⁺ = β⁻ at p = 1/2 is right
    plus, minus = both(20, 0.5, 8, ALPHA)
    assert plus == pytest.approx(minus, abs=1e-12)
    # "some (ε, δ) as long as M > l": M = l has one too
    assert forms.theorem_2(0.0, num_trials=8, success_prob=0.5, max_value=8) == pytest.approx(2**-8, abs=1e-15)


@pytest.mark.paper("fdp", "Figure 2")
def test_more_trials_of_noise_are_more_private():
    """l = 8, p = 1/2; the values that the curves of Fig. 2 pass through."""
    alpha = [0.05, 0.1, 0.3]
    want = {
        16: (0.00914901, 0.00273876, 0.00015765),
        64: (0.361572, 0.240435, 0.0717557),
        256: (0.740727, 0.611278, 0.317847),
        500: (0.823585, 0.714377, 0.424504),
    }
    last = 0.0
    for trials, values in want.items():
        got = forms.theorem_2(alpha, num_trials=trials, success_prob=0.5, max_value=8)
        assert got == pytest.approx(values, rel=5e-6)
        assert (got > last).all()
        last = got


@pytest.mark.paper("fdp", "Theorem 3")
@pytest.mark.paper("fdp", "Remark 5")
@pytest.mark.parametrize(("low", "high"), [(0.45, 0.55), (0.1, 0.3), (0.0, 0.4), (0.2, 1.0), (0.0, 1.0), (1e-6, 0.999)])
def test_the_binomial_mechanism_is_the_infimum_over_all_success_probabilities(low, high):
    probs = np.linspace(low, high, 6)
    for trials in (1, 3, 16, 60):
        logs = [stats.binom.logpmf(np.arange(trials + 1), trials, p) for p in probs]  # (1e-6)^60 is no float
        curves = [Tradeoff.of_logs(a, b)(ALPHA) for i, a in enumerate(logs) for j, b in enumerate(logs) if i != j]
        got = forms.theorem_3(ALPHA, num_trials=trials, p_min=low, p_max=high)
        assert got == pytest.approx(np.min(curves, axis=0), abs=1e-12)
    assert forms.theorem_3(0.3, num_trials=5, p_min=0.4, p_max=0.4) == pytest.approx(0.7, abs=1e-15)


@pytest.mark.paper("fdp", "Theorem 2")
@pytest.mark.paper("fdp", "Theorem 3")
def test_masses_below_the_smallest_float_still_count_at_zero():
    """Inputs so far apart that no common output has a mass that float64 can hold: f(0) is not 0 for all that."""
    noise = forms.theorem_2([0.0, 1e-9], num_trials=10**4, success_prob=0.5, max_value=6000)
    assert noise == pytest.approx([stats.binom.cdf(4000, 10**4, 0.5), 0.0], rel=1e-10)
    assert forms.theorem_2([0.0, 0.3], num_trials=40, success_prob=1e-300, max_value=3) == pytest.approx([0, 0], abs=0)
    how = {"num_trials": 10**4, "p_min": 1e-4, "p_max": 1 - 1e-4}
    assert list(forms.theorem_3([0.0, 1e-9], **how)) == [1.0, 0.0]
    assert forms.theorem_3(0.0, num_trials=3, p_min=0.2, p_max=1.0) == pytest.approx(0.008, rel=1e-13)


@pytest.mark.paper("fdp", "Theorem 4")
def test_ternary_curves_are_the_infimum_where_the_hypothesis_holds_and_below_it_elsewhere():
    for zero, low in [(0.5, 0.15), (0.5, 0.0), (0.0, 0.2), (0.3, 0.05), (0.1, 0.45)]:
        high = 1 - zero - low
        probs = np.linspace(low, high, 7)
        curves = [
            best_test([1 - zero - x, zero, x], [1 - zero - y, zero, y]) for x in probs for y in probs if x != y
        ] or [1 - ALPHA]
        got = forms.theorem_4(ALPHA, zero_prob=zero, p_min=low, p_max=high)
        assert got == pytest.approx(np.min(curves, axis=0), abs=1e-12)
    # p₁ in [.1, .3], p₋₁ in [.2, .4], p₀ = .5: the enclosing interval [.1, .4] obeys the condition; nobody attains it
    got = forms.theorem_4(0.15, zero_prob=0.5, p_min=0.1, p_max=0.4)
    exact = min(best_test([0.4, 0.5, 0.1], [0.2, 0.5, 0.3], 0.15), best_test([0.2, 0.5, 0.3], [0.4, 0.5, 0.1], 0.15))
    assert exact - got == pytest.approx(0.1, abs=1e-12)
    with pytest.raises(ValueError, match="zero_prob"):
        forms.theorem_4(0.3, zero_prob=0.4, p_min=0.1, p_max=0.4)


@pytest.mark.paper("fdp", "Theorem 9")
def test_the_poisson_binomial_bound_is_theorem_3_with_one_trial():
    for low, high in [(0.3, 0.7), (0.1, 0.5), (0.05, 0.2)]:
        got = forms.theorem_9(ALPHA, p_min=low, p_max=high)
        assert got == pytest.approx(forms.theorem_3(ALPHA, num_trials=1, p_min=low, p_max=high), abs=1e-12)
        more = forms.theorem_9(ALPHA, p_min=low, p_max=high, num_trials=4)  # valid for M > 1, and loose
        exact = forms.theorem_3(ALPHA, num_trials=4, p_min=low, p_max=high)
        assert (more <= exact + 1e-12).all()
        assert (more < exact - 0.01).any()
    # and it isn't convex: [.1, .5] at α = .2 has .444444, its hull .4
    assert forms.theorem_9(0.2, p_min=0.1, p_max=0.5) == pytest.approx(0.444444, abs=5e-7)
    curve = Tradeoff.of([0.5, 0.5], [0.9, 0.1])
    assert tradeoff_least.symmetrised(curve)(0.2) == pytest.approx(0.4, abs=1e-12)


# ------------------------------------------------------------------------------------------------ special compressors


@pytest.mark.paper("fdp", "Example 1")
def test_the_printed_knee_of_sto_sign_is_refuted():
    right = forms.sto_sign(ALPHA, clip=0.1, scale_a=0.25)
    exact = best_test([0.3, 0.7], [0.7, 0.3])
    assert right == pytest.approx(exact, abs=1e-13)
    printed = forms.sto_sign([0.5, 0.65], clip=0.1, scale_a=0.25, form="as_printed")
    assert printed == pytest.approx([-1 / 6, -0.516667], abs=5e-7)  # a negative error rate
    assert forms.sto_sign([0.5, 0.65], clip=0.1, scale_a=0.25) == pytest.approx([0.214286, 0.15], abs=5e-7)
    low, high = 0.3, 0.7  # they agree outside the two knees only
    agree = (low >= ALPHA) | (high < ALPHA)
    printed = forms.sto_sign(ALPHA, clip=0.1, scale_a=0.25, form="as_printed")
    assert printed[agree] == pytest.approx(right[agree], abs=1e-14)
    assert (printed[~agree & (low + 1e-3 < ALPHA)] < right[~agree & (low + 1e-3 < ALPHA)]).all()


@pytest.mark.paper("fdp", "Example 2")
def test_cldp_is_epsilon_dp_and_the_printed_knee_is_refuted():
    for epsilon in (0.2, math.log(7 / 3), 3.0):
        p = 1 / (1 + math.exp(epsilon))
        assert forms.cldp(ALPHA, epsilon=epsilon) == pytest.approx(best_test([p, 1 - p], [1 - p, p]), abs=1e-12)
        between = (p + 0.01 < ALPHA) & (1 - p > ALPHA)
        printed = forms.cldp(ALPHA, epsilon=epsilon, form="as_printed")[between]
        assert (printed < forms.cldp(ALPHA, epsilon=epsilon)[between] - 1e-4).all()
    assert forms.cldp(0.94, epsilon=3.0, form="as_printed") < -10  # a negative error rate
    a = 0.1 / math.tanh(0.6)  # it is sto-sign
    assert forms.sto_sign(ALPHA, clip=0.1, scale_a=a) == pytest.approx(forms.cldp(ALPHA, epsilon=1.2), abs=1e-12)


@pytest.mark.paper("fdp", "Figure 4")
@pytest.mark.paper("fdp", "Section 4.5")
def test_figure_4_holds_for_the_corrected_curve_and_fails_for_the_printed_one():
    gaussian = gdp.tradeoff(ALPHA, gdp_mu=1.0)
    right = forms.noisy_sign(ALPHA, noise_ratio=1.0)
    printed = forms.noisy_sign(ALPHA, noise_ratio=1.0, form="as_printed")
    assert (right >= gaussian - 1e-15).all()
    knee = float(ndtr(-0.5))
    assert forms.noisy_sign(knee, noise_ratio=1.0) == pytest.approx(gdp.tradeoff(knee, gdp_mu=1.0), abs=1e-14)
    assert float(forms.noisy_sign(0.16, noise_ratio=1.0, form="as_printed")) == pytest.approx(
        float(gdp.tradeoff(0.16, gdp_mu=1.0)) - 0.339387, abs=1e-5
    )
    assert (printed < gaussian - 0.05).any()
    for alpha, corrected, as_printed in [(0.01, 0.977589, 0.946970), (0.5, 0.223105, 0.0942867)]:
        assert forms.noisy_sign(alpha, noise_ratio=1.0) == pytest.approx(corrected, abs=5e-7)
        assert forms.noisy_sign(alpha, noise_ratio=1.0, form="as_printed") == pytest.approx(as_printed, abs=5e-7)
    # the printed one fits noise of standard deviation σ, which is μ = 2
    assert (printed >= gdp.tradeoff(ALPHA, gdp_mu=2.0) - 1e-12).all()


@pytest.mark.paper("fdp", "Example 3")
@pytest.mark.paper("fdp", "Figure 3")
@pytest.mark.paper("fdp", "Remark 7")
def test_sparsification_improves_privacy_between_two_knees():
    settings = {"clip": 0.1, "scale_a": 0.25, "scale_b": 0.5}
    exact = best_test([0.35, 0.5, 0.15], [0.15, 0.5, 0.35])
    got = forms.ternary(ALPHA, **settings)
    assert got == pytest.approx(exact, abs=1e-12)
    assert got == pytest.approx(forms.theorem_4(ALPHA, zero_prob=0.5, p_min=0.15, p_max=0.35), abs=1e-12)
    values = forms.ternary([0.05, 0.15, 0.3, 0.4, 0.65, 0.8], **settings)
    assert values == pytest.approx([0.883333, 0.65, 0.5, 0.4, 0.15, 0.0857143], abs=5e-7)
    plain = forms.sto_sign(ALPHA, clip=0.1, scale_a=0.25)
    inside = (ALPHA > 0.15) & (ALPHA < 0.65)
    assert (got[inside] > plain[inside] + 1e-6).all()
    assert got[~inside] == pytest.approx(plain[~inside], abs=1e-13)  # "on the closed interval": equal at both ends
    grid = np.linspace(0.15, 0.65, 100_001)
    area = forms.ternary(grid, **settings) - forms.sto_sign(grid, clip=0.1, scale_a=0.25)
    assert np.trapezoid(area, grid) == pytest.approx(0.05, abs=1e-9)
    assert forms.ternary(ALPHA, clip=0.1, scale_a=0.25, scale_b=0.25) == pytest.approx(plain, abs=1e-13)
    with pytest.raises(ValueError, match="scale_b"):  # the printed order, A > B > c
        forms.ternary(0.3, clip=0.1, scale_a=0.5, scale_b=0.25)


@pytest.mark.paper("fdp", "Example 4")
def test_ternarize_is_the_infimum_at_opposite_ends():
    probs = {x: [max(-x, 0) / 2, 1 - abs(x) / 2, max(x, 0) / 2] for x in np.linspace(-1, 1, 11)}
    curves = [best_test(a, b) for x, a in probs.items() for y, b in probs.items() if x != y]
    assert forms.ternarize(ALPHA, clip=1.0, scale_b=2.0) == pytest.approx(np.min(curves, axis=0), abs=1e-12)


# --------------------------------------------------------------------------------------------------- Remark 4's numbers


@pytest.mark.paper("fdp", "Remark 4")
def test_cpsgd_gives_380_where_the_document_says_318():
    sensitivity = {"l1_sensitivity": 8, "l2_sensitivity": 8, "linf_sensitivity": 8}
    how = {"num_trials": 500, "success_prob": 0.5}
    delta = 10 * math.exp(-125 / 23)
    assert delta == pytest.approx(0.0436218, abs=5e-8)  # "requires δ > 0.044"
    assert forms.cpsgd_epsilon(0.044, **how, **sensitivity) == pytest.approx(3.802749, abs=5e-7)
    assert forms.cpsgd_epsilon(0.0436, **how, **sensitivity) == math.inf
    found = [
        forms.cpsgd_epsilon(0.044, **how, l1_sensitivity=n, l2_sensitivity=n, linf_sensitivity=n) for n in range(1, 33)
    ]
    assert min(abs(e - 3.18) for e in found) > 0.14  # 2.852 at 6, 3.327 at 7
    assert math.ceil(4 * 23 * math.log(10)) == 212
    exact = BinomialNoise(8, 500, 0.5).curve
    assert exact.epsilon(0.044).upper == pytest.approx(0.978889, abs=5e-7)  # printed (1.67, .039)
    assert exact.epsilon(0.0390877).upper == pytest.approx(1.0234, abs=5e-5)
    assert exact.delta(1.67) == pytest.approx(0.005258, abs=5e-7)


def test_parameters_outside_their_domain_are_refused_by_name():
    for ask, name in [
        (lambda: forms.sto_sign(0.3, clip=0.1, scale_a=0.1), "scale_a"),
        (lambda: forms.ternarize(0.3, clip=0.1, scale_b=0.1), "scale_b"),
        (lambda: forms.sto_sign(0.3, clip=0.0, scale_a=0.1), "clip"),
        (lambda: forms.sto_sign(0.3, clip=0.1, scale_a=0.2, form="printed"), "form"),
        (lambda: forms.cldp(0.3, epsilon=0.0), "epsilon"),
        (lambda: forms.theorem_3(0.3, num_trials=2, p_min=0.5, p_max=0.4), "p_max"),
        (lambda: forms.theorem_9(0.3, p_min=0.0, p_max=0.4), "p_min"),
        (lambda: forms.theorem_2(1.3, num_trials=2, success_prob=0.5, max_value=1), "type1"),
    ]:
        with pytest.raises(ValueError, match=name):
            ask()


def test_ratios_beyond_float64_are_no_overflow_and_never_nan():
    """e^800, (7/3)^(10^6), Φ(-50): the ratio is a logarithm."""
    alpha = np.array([0.0, 0.5, 1.0])
    np.testing.assert_array_equal(forms.cldp(alpha, epsilon=800.0), [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(forms.theorem_9(alpha, p_min=0.3, p_max=0.7, num_trials=10**6), [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(forms.theorem_9(alpha, p_min=5e-324, p_max=0.5), [1.0, 5e-324, 0.0])
    np.testing.assert_array_equal(forms.noisy_sign(alpha, noise_ratio=0.01), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(forms.sto_sign(alpha, clip=1e308, scale_a=1.5e308), [1.0, 0.1, 0.0], rtol=1e-12)
