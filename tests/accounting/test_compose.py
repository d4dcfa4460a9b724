"""Composition rules against enumeration of randomised response with its δ atoms, 50 digits, and a second library."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from privrob.accounting import compose, gdp

TRUE_LAWS = settings(derandomize=True, deadline=None, max_examples=50)
MOMENTS = "Moment accountant for composition of DP mechanisms"


def worst_pair(epsilon, delta):
    """The four answers of the worst (ε, δ)-DP mechanism, (P, Q) each: shown, told right, told wrong, never under P."""
    with mpmath.workdps(60):
        e, d = mpmath.mpf(epsilon), mpmath.mpf(delta)
        right, wrong = mpmath.e**e / (1 + mpmath.e**e), 1 / (1 + mpmath.e**e)
        return [(d, mpmath.mpf(0)), ((1 - d) * right, (1 - d) * wrong), ((1 - d) * wrong, (1 - d) * right), (0 * d, d)]


def enumerated(epsilons, deltas):
    """(P, Q) of every joint answer, one by one."""
    with mpmath.workdps(60):
        pairs = [worst_pair(e, d) if d else worst_pair(e, d)[1:3] for e, d in zip(epsilons, deltas)]
        return [
            (mpmath.fprod(p for p, _ in joint), mpmath.fprod(q for _, q in joint))
            for joint in itertools.product(*pairs)
        ]


def hockey_stick(joint, epsilon):
    with mpmath.workdps(60):
        factor = mpmath.e ** mpmath.mpf(epsilon)
        return mpmath.fsum(max(p - factor * q, 0) for p, q in joint)


def big_log_delta(epsilon, count, total_epsilon):
    """log δ of k randomised responses, 50 digits, from the largest term down."""
    with mpmath.workdps(50):
        e, g = mpmath.mpf(epsilon), mpmath.mpf(total_epsilon)
        wrong, right = 1 / (1 + mpmath.e**e), 1 / (1 + mpmath.e**-e)
        n = int(mpmath.ceil((count - g / e) / 2)) - 1  # the last with (k − 2l)ε > ε_g
        mass = mpmath.binomial(count, n) * wrong**n * right ** (count - n)
        total = mpmath.mpf(0)
        while n >= 0:
            total += mass * -mpmath.expm1(g - (count - 2 * n) * e)
            if n < count * wrong and mass < total * mpmath.mpf(10) ** -25:
                break
            mass *= n * right / ((count - n + 1) * wrong)
            n -= 1
        return mpmath.log(total)


# -------------------------------------------------------------------------------------------- equal mechanisms, exactly


@pytest.mark.parametrize("delta", [0.0, 1e-9, 0.01, 0.4])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 3.0])
def test_optimal_is_the_hockey_stick_of_every_joint_answer(epsilon, delta):
    for count in (1, 2, 3, 5) if delta else (1, 4, 12):
        joint = enumerated([epsilon] * count, [delta] * count)
        for share in (0.0, 0.17, 0.81, 0.999):
            total = share * count * epsilon
            want = hockey_stick(joint, total)
            got = compose.optimal_delta(epsilon, delta, count=count, total_epsilon=total)
            assert got.lower <= want <= got.upper
            assert got.width <= 1e-11 * got.upper
            back = compose.optimal(epsilon, delta, count=count, total_delta=float(want))
            # safe, and no more than 1e-11 of δ is given away (more of ε, where δ(ε) is flat)
            assert want * (1 - 1e-11) <= hockey_stick(joint, back.upper) <= float(want) or back.upper == 0
            assert want * (1 + 1e-11) >= hockey_stick(joint, back.lower) >= float(want) or back.lower == 0


@pytest.mark.parametrize(
    ("epsilon", "count", "total_epsilon"),
    [
        (0.005, 1000, 0.56),
        (1e-3, 10**5, 2.0),
        (1e-3, 10**6, 4.9),
        (1e-3, 10**6, 30.0),  # δ of 2e-185
        (0.1, 10**6, 5300.0),
        (1.0, 10**5, 60000.0),  # log δ of −1e4 would be below float range: δ rounds to 0
        (1.0, 10**6, 490000.0),
        (5.0, 10**6, 4938000.0),
        (1e-7, 10**6, 4e-4),
    ],
)
def test_a_million_mechanisms_keep_nine_digits(epsilon, count, total_epsilon):
    want = big_log_delta(epsilon, count, total_epsilon)
    got = compose.optimal_delta(epsilon, 0.0, count=count, total_epsilon=total_epsilon)
    if want < -740:
        assert got.upper <= 1e-300
        return
    assert got.lower <= mpmath.e**want <= got.upper
    # the masses: 1e-11 at 25 standard deviations; a loss is a product, right to its last digit, and ε_g is as large
    assert float(abs(mpmath.log(got.estimate) - want)) <= 1e-11 + 4e-16 * total_epsilon
    assert got.width <= 3e-8 * got.upper
    back = compose.optimal(epsilon, 0.0, count=count, total_delta=got.estimate)
    assert back.lower * (1 - 1e-11) <= total_epsilon <= back.upper * (1 + 1e-11)  # δ itself was rounded
    assert back.width <= 1e-9 * back.upper


def test_the_published_grid_of_values():
    # Kairouz, Oh and Viswanath (2015), Theorem 3.3, at ε(k − 2i), its sum taken literally
    k, epsilon, delta = 9, 0.3, 1e-4
    with mpmath.workdps(50):
        e, d = mpmath.mpf(epsilon), mpmath.mpf(delta)
        for i in range(1, k // 2 + 1):
            terms = [
                mpmath.binomial(k, n) * (mpmath.e ** ((k - n) * e) - mpmath.e ** ((k - 2 * i + n) * e))
                for n in range(i)
            ]
            total = 1 - (1 - d) ** k * (1 - mpmath.fsum(terms) / (1 + mpmath.e**e) ** k)
            got = compose.optimal(epsilon, delta, count=k, total_delta=float(total))
            assert got.estimate == pytest.approx((k - 2 * i) * epsilon, rel=1e-11)


@TRUE_LAWS
@given(st.floats(-5, 1.5), st.integers(1, 3000), st.floats(-300, -0.1), st.sampled_from([0.0, 1e-12, 1e-6]))
def test_epsilon_is_safe_tight_and_never_above_the_rules(log_epsilon, count, log_total, delta):
    epsilon, total = 10.0**log_epsilon, 10.0**log_total
    got = compose.optimal(epsilon, delta, count=count, total_delta=total)
    if math.isinf(got.upper):
        assert total < -math.expm1(count * math.log1p(-delta)) * (1 + 1e-9)
        return
    back = compose.optimal_delta(epsilon, delta, count=count, total_epsilon=got.upper)
    assert back.lower <= total
    assert back.estimate <= total * (1 + 1e-9)
    # relative width where δ is small, and absolute where ε hangs on the last digits of δ near δ(0)
    assert got.width <= 1e-9 * got.upper + 1e-10
    if count * delta <= total:
        assert got.lower <= compose.basic([epsilon] * count, delta).epsilon_upper
    for form in compose.FORMS:
        slack = (total - count * delta) / 2
        if slack > 0:
            rule = compose.advanced(epsilon, delta, count=count, slack=slack, form=form)
            best = compose.optimal(epsilon, delta, count=count, total_delta=rule.delta_upper)
            assert best.lower <= rule.epsilon_upper


@pytest.mark.parametrize(
    ("epsilon", "delta", "count", "total"), [(0.1, 0.0, 100, 1e-6), (0.5, 1e-8, 30, 1e-5), (1.0, 1e-4, 10, 0.01)]
)
def test_a_second_library_agrees(epsilon, delta, count, total):
    pair = common.DifferentialPrivacyParameters(epsilon, delta)
    step = 1e-4
    pld = privacy_loss_distribution.from_privacy_parameters(pair, value_discretization_interval=step)
    peer = pld.self_compose(count).get_epsilon_for_delta(total)
    got = compose.optimal(epsilon, delta, count=count, total_delta=total)
    assert got.lower - 1e-6 <= peer <= got.upper + count * step  # it rounds losses up to its grid; tails cut at 1e-15


# ------------------------------------------------------------------------------------------------ unequal mechanisms


@TRUE_LAWS
@given(
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from([0.0, 0.0, 1e-5, 0.03])), min_size=1, max_size=5),
    st.floats(0, 1),
)
def test_unequal_mechanisms_match_enumeration(parameters, share):
    epsilons, deltas = (np.array(v) for v in zip(*parameters))
    joint = enumerated(epsilons, deltas)
    total = share * float(epsilons.sum())
    want = hockey_stick(joint, total)
    got = compose.optimal_heterogeneous_delta(epsilons, deltas, total_epsilon=total)
    assert got.lower <= want * (1 + mpmath.mpf(10) ** -30) + mpmath.mpf(10) ** -30
    assert want <= got.upper + 1e-16  # total is a rounded sum: right at the end δ̃ is 1e-17 and not 0
    if 0 < want < 1:
        back = compose.optimal_heterogeneous(epsilons, deltas, total_delta=float(want) * (1 + 1e-13))
        assert hockey_stick(joint, back.upper) <= float(want) * (1 + 1e-13)
        assert back.lower <= total * (1 + 1e-9) + 1e-9


def test_equal_parameters_give_the_equal_answer_by_another_road():
    for k, epsilon in [(7, 0.4), (200, 0.02), (2000, 0.01)]:
        one = compose.optimal(epsilon, 1e-9, count=k, total_delta=1e-5)
        other = compose.optimal_heterogeneous([epsilon] * k, 1e-9, total_delta=1e-5)
        assert other.estimate == pytest.approx(one.estimate, rel=1e-11)


@pytest.mark.parametrize("total", [1e-5, 1e-3, 0.1])
def test_the_grid_encloses_the_listed_value_in_second_order(monkeypatch, total):
    rng = np.random.default_rng(1)
    epsilons = rng.uniform(0.01, 0.3, 18)
    exact = compose.optimal_heterogeneous(epsilons, 0.0, total_delta=total)
    at = compose.optimal_heterogeneous_delta(epsilons, 0.0, total_epsilon=exact.estimate)
    monkeypatch.setattr(compose, "_POINTS_EXACT", 1)
    widths = []
    for work in (10**5, 10**6):
        monkeypatch.setattr(compose, "_GRID_WORK", work)
        got = compose.optimal_heterogeneous(epsilons, 0.0, total_delta=total)
        assert got.lower <= exact.upper
        assert exact.lower <= got.upper
        delta = compose.optimal_heterogeneous_delta(epsilons, 0.0, total_epsilon=exact.estimate)
        assert delta.lower <= at.upper
        assert at.lower <= delta.upper
        widths.append(got.width)
    assert widths[0] < 1e-4
    assert widths[1] < widths[0] / 15  # second order: a grid ten times finer, up to a hundred times closer


def test_many_unequal_mechanisms_are_certified_by_the_rules(monkeypatch):
    epsilons = np.random.default_rng(2).uniform(0.01, 0.02, 600)
    monkeypatch.setattr(compose, "_GRID_WORK", 2 * 10**7)
    true = compose.optimal_heterogeneous(epsilons, 1e-9, total_delta=1e-4)
    assert true.width < 1e-3 * true.upper
    monkeypatch.setattr(compose, "_GRID_MOST", 500)
    got = compose.optimal_heterogeneous(epsilons, 1e-9, total_delta=1e-4)
    smallest = compose.optimal(0.01, 1e-9, count=600, total_delta=1e-4)
    largest = compose.advanced(0.02, 1e-9, count=600, slack=9e-5, form="kairouz_oh_viswanath")
    assert smallest.lower <= got.lower <= true.lower < true.upper <= got.upper <= largest.epsilon_upper
    delta = compose.optimal_heterogeneous_delta(epsilons, 1e-9, total_epsilon=0.5)
    assert 0 < delta.lower <= delta.upper <= 1


# ------------------------------------------------------------------------------------------------------------ the rules


@pytest.mark.paper("dplearn", MOMENTS)
def test_the_lectures_example_holds_for_no_black_box():
    # each step (0.005, 1e-5)-DP, 1000 steps, "approximately (0.15, 1e-5)": ε√T = 0.158
    example = {"epsilon": 0.005, "delta": 1e-5}
    plain = compose.basic([0.005] * 1000, 1e-5)
    assert plain.epsilon_upper == pytest.approx(5.0, rel=1e-14)
    assert plain.delta_upper == pytest.approx(0.01, rel=1e-14)
    # at the printed δ there is no guarantee at all: a secret may be shown outright, with probability 0.00995
    assert compose.optimal(**example, count=1000, total_delta=1e-5).lower == math.inf
    for epsilon, want in [(0.15, 0.0253926), (0.005 * math.sqrt(1000), 0.0240365)]:
        got = compose.optimal_delta(**example, count=1000, total_epsilon=epsilon)
        assert got.estimate == pytest.approx(want, abs=5e-8)  # as printed
    # with the total δ that 1000 steps need, and a slack of 1e-5
    rules = [compose.advanced(**example, count=1000, slack=1e-5, form=form) for form in compose.FORMS]
    assert [r.epsilon_upper for r in rules] == pytest.approx([0.783776, 0.707793], abs=5e-7)
    assert [r.rule for r in rules] == list(compose.FORMS)
    best = compose.optimal(**example, count=1000, total_delta=0.01 + 1e-5)
    assert best.estimate == pytest.approx(0.484723, abs=5e-7)
    # even steps of pure 0.005-DP need 0.56 at 1e-5
    assert compose.optimal(0.005, 0.0, count=1000, total_delta=1e-5).estimate == pytest.approx(0.560547, abs=5e-7)
    # Gaussian steps that are (0.005, 1e-5)-DP: 0.234, half as much again as the lecture's rule of thumb
    steps = 1 / gdp.noise_multiplier_of(0.005, delta=1e-5)
    assert gdp.epsilon_of(1e-5, gdp_mu=steps * math.sqrt(1000)) == pytest.approx(0.233956, abs=5e-7)


def test_the_smaller_of_advanced_and_basic_is_returned_and_named():
    few = compose.advanced(1.0, 1e-6, count=5, slack=1e-5)
    assert few == compose.Composed(5.0, compose.basic([1.0] * 5, 1e-6).delta_upper, "basic")
    many = compose.advanced(0.01, 1e-9, count=10**4, slack=1e-5)
    want = 0.01 * math.sqrt(2e4 * math.log(1e5)) + 100 * math.expm1(0.01)
    assert many.epsilon_upper == pytest.approx(want, rel=1e-13)
    assert many.delta_upper == pytest.approx(1e-5 + 1e-5, rel=1e-13)
    assert many.rule == "dwork_rothblum_vadhan"
    tighter = compose.advanced(0.01, 1e-9, count=10**4, slack=1e-5, form="kairouz_oh_viswanath")
    root = math.sqrt(2e4 * min(math.log(1e5), math.log(math.e + 100 * 0.01 / 1e-5)))
    assert tighter.epsilon_upper == pytest.approx(0.01 * root + 100 * math.tanh(0.005), rel=1e-13)
    assert tighter.delta_upper == pytest.approx(-math.expm1(1e4 * math.log1p(-1e-9) + math.log1p(-1e-5)), rel=1e-13)
    assert tighter.epsilon_upper < many.epsilon_upper
    wide = compose.advanced(0.01, 0.0, count=100, slack=0.9, form="kairouz_oh_viswanath")
    assert wide.epsilon_upper == pytest.approx(0.01 * math.sqrt(200 * math.log(1 / 0.9)) + math.tanh(0.005), rel=1e-13)


@TRUE_LAWS
@given(st.lists(st.floats(0, 1e6), max_size=30), st.floats(0, 1))
def test_basic_rounds_up_and_not_further(epsilons, delta):
    got = compose.basic(epsilons, [delta] * len(epsilons))
    exact = sum(map(Fraction, epsilons), Fraction(0))
    assert Fraction(got.epsilon_upper) >= exact
    assert Fraction(math.nextafter(got.epsilon_upper, -math.inf)) < exact or exact == 0
    assert Fraction(got.delta_upper) >= min(Fraction(delta) * len(epsilons), 1)


def test_parallel_composition_counts_the_worst_part_or_it_twice():
    parts = {"epsilons": [0.1, 0.7, 0.3], "deltas": [1e-5, 0.0, 1e-6]}
    for relation, partition in itertools.product(["add", "remove", "add_remove"], ["by_index", "by_value"]):
        got = compose.parallel(**parts, neighbouring=relation, partition=partition)
        assert (got.epsilon_upper, got.delta_upper) == (0.7, 1e-5)
    fixed = compose.parallel(**parts, neighbouring="replace", partition="by_index")
    assert (fixed.epsilon_upper, fixed.rule) == (0.7, "parallel, by_index")
    moved = compose.parallel(**parts, neighbouring="replace", partition="by_value")
    assert moved.epsilon_upper == 1.4
    assert moved.delta_upper == pytest.approx(1e-5 * (1 + math.exp(0.7)), rel=1e-13)
    # two parts, one record less and one more: two worst pairs side by side stay within it
    joint = enumerated([0.7, 0.3], [0.0, 1e-6])
    assert hockey_stick(joint, moved.epsilon_upper) <= moved.delta_upper


@pytest.mark.parametrize("epsilon", [1e-9, 0.2, 3.0])
def test_group_privacy_is_the_chain_of_its_steps(epsilon):
    for size in (1, 2, 3, 40):
        got = compose.group(epsilon, 1e-40, size=size)
        with mpmath.workdps(50):
            chain = mpmath.fsum(mpmath.mpf(1e-40) * mpmath.e ** (i * mpmath.mpf(epsilon)) for i in range(size))
            want = min(chain, mpmath.mpf(1))
        assert got.delta_upper >= want
        assert got.delta_upper == pytest.approx(float(want), rel=1e-11)
        assert Fraction(got.epsilon_upper) >= size * Fraction(epsilon)
    assert compose.group(epsilon, 0.5, size=1000).delta_upper == 1.0
    assert compose.group(0.0, 0.125, size=3) == compose.Composed(0.0, 0.375, "group")
    assert compose.group(1.0, 1e-300, size=10**6).delta_upper == 1.0
    assert compose.group(1.0, 0.0, size=10**6) == compose.Composed(1e6, 0.0, "group")


# -------------------------------------------------------------------------------------------------------------- corners


def test_the_ends_are_exact():
    for k in (1, 5, 10**6):
        assert compose.optimal(0.0, 0.0, count=k, total_delta=0.0).upper == 0.0
        assert compose.optimal(0.3, 0.0, count=k, total_delta=1.0).upper == 0.0
        assert compose.optimal(math.inf, 0.0, count=k, total_delta=0.5).lower == math.inf
        assert compose.optimal(0.3, 0.0, count=k, total_delta=0.0).estimate == pytest.approx(0.3 * k, rel=1e-15)
        assert compose.optimal(0.3, 0.0, count=k, total_delta=0.0).upper >= 0.3 * k
        assert compose.optimal_delta(0.3, 0.0, count=k, total_epsilon=0.3 * k).upper == 0.0
        assert compose.optimal_delta(0.3, 1.0, count=k, total_epsilon=1.0).lower == pytest.approx(1.0, rel=1e-14)
    assert compose.optimal(0.3, 1e-5, count=0, total_delta=0.0).upper == 0.0
    assert compose.optimal(0.3, 1e-5, count=1, total_delta=1e-5).estimate == 0.3
    assert compose.optimal(0.3, 1e-300, count=2, total_delta=1.5e-300).lower == math.inf  # 1 − 1e-300 is not 1
    assert compose.optimal(0.3, 1e-300, count=2, total_delta=2.5e-300).upper == pytest.approx(0.6, rel=1e-11)
    assert compose.optimal_heterogeneous([], [], total_delta=0.0).upper == 0.0
    assert compose.optimal_heterogeneous([0.0, 0.3, 0.3], 0.0, total_delta=0.0).upper == pytest.approx(0.6, rel=1e-14)
    assert compose.optimal_heterogeneous([0.3, math.inf], 0.0, total_delta=0.1).lower == math.inf
    assert compose.optimal_heterogeneous_delta([0.3, math.inf], 0.0, total_epsilon=9.0).lower == 1.0
    assert compose.basic([], []).epsilon_upper == 0.0
    assert compose.advanced(0.0, 0.1, count=3, slack=0.1).rule == "basic"
    assert compose.advanced(math.inf, 0.1, count=3, slack=0.1).epsilon_upper == math.inf
    assert compose.advanced(900.0, 1.0, count=3, slack=0.1).delta_upper == 1.0


@pytest.mark.parametrize("epsilon", [5e-324, 1e-200, 1e-12, 40.0, 700.0, 1e5, 1e300])
def test_extreme_parameters_give_ordered_numbers(epsilon):
    for count, total in itertools.product((1, 2, 999), (5e-324, 1e-100, 1e-9, 0.5, 1 - 1e-16)):
        got = compose.optimal(epsilon, 0.0, count=count, total_delta=total)
        assert 0 <= got.lower <= got.upper <= compose.basic([epsilon] * count, 0.0).epsilon_upper * (1 + 1e-14)
        delta = compose.optimal_delta(epsilon, 0.0, count=count, total_epsilon=0.0)
        assert 0 <= delta.lower <= delta.upper <= 1


def test_arguments_outside_are_named():
    with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\], got delta=1.5"):
        compose.optimal(0.1, 1.5, count=3, total_delta=0.1)
    with pytest.raises(ValueError, match="epsilon"):
        compose.optimal(-0.1, 0.0, count=3, total_delta=0.1)
    with pytest.raises(ValueError, match=r"count must be an integer in \[0, 10000000\]"):
        compose.optimal(0.1, 0.0, count=10**8, total_delta=0.1)
    with pytest.raises(TypeError, match="count"):
        compose.optimal(0.1, 0.0, count=3.0, total_delta=0.1)
    with pytest.raises(ValueError, match=r"slack must lie in \(0, 1\), got slack=0.0; basic\(\)"):
        compose.advanced(0.1, 0.0, count=3, slack=0.0)
    with pytest.raises(ValueError, match="form must be one of"):
        compose.advanced(0.1, 0.0, count=3, slack=0.1, form="drv")
    with pytest.raises(ValueError, match="lists of one length"):
        compose.basic([0.1, 0.2], [0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="epsilons must all be at least 0"):
        compose.basic([0.1, math.nan], 0.0)
    with pytest.raises(ValueError, match=r"deltas must all lie in \[0, 1\]"):
        compose.optimal_heterogeneous([0.1], [-0.1], total_delta=0.1)
    with pytest.raises(ValueError, match="neighbouring"):
        compose.parallel([0.1], 0.0, neighbouring="either", partition="by_index")
    with pytest.raises(ValueError, match="partition must be one of"):
        compose.parallel([0.1], 0.0, neighbouring="add", partition="random")
