"""Theorem 5.2 of the PTR document: its recursions, what refutes them, what holds; and the limitation of section 6."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize

from privrob.robust.byzantine import hidden_in_the_tail, simulate
from privrob.robust.convergence import (
    convergence_bound,
    corrupted_quantile,
    largest_learning_rate,
    smallest_sensitivity_bound,
)
from privrob.robust.median import mean_sensitivity, median_sensitivity

THEOREM = pytest.mark.paper("ptr", "Theorem 5.2")
LIMITATION = pytest.mark.paper("ptr", "Section 6, limitation")

SETTING = {
    "num_records": 40,
    "num_corrupted": 4,
    "strong_convexity": 0.5,
    "smoothness": 1.0,
    "gradient_std": 0.5,
    "max_norm": 2.5,
    "dimension": 3,
    "noise_std": 1.0,
    "robust_noise_std": 0.7,
    "learning_rate": 0.01,
}
RUN = {
    "attack": "hidden",
    "sensitivity_bound": 2.4,
    "laplace_scale": 0.1,
    "test_failure": 1e-6,
    "start_distance": 1.5,
    "num_steps": 50,
    "num_replicas": 200,
    "radius": 2.0,
}


def rng(seed=0):
    return np.random.default_rng(seed)


def needed_noise(setting):
    """The least σ₂ of hypothesis (151), as printed."""
    n, F, d = setting["num_records"], setting["num_corrupted"], setting["dimension"]
    sums = (n - F) * setting["gradient_std"] ** 2 + F * setting["max_norm"]
    return math.sqrt((n - F) * (n + 1) / n**2 * (sums / d + setting["noise_std"] ** 2))


def bound_settings(setting):
    """What a bound depends on: the rest of a simulated setting describes the attack."""
    return {name: setting[name] for name in SETTING}


TAIL = {
    "num_records": 256,
    "num_corrupted": 32,
    "strong_convexity": 0.05,
    "max_norm": 1.0,
    "sensitivity_bound": 0.985,
    "rare_prob": 0.2,
}


@THEOREM
def test_printed_recursions_are_those_of_exact_arithmetic():
    n, F, d = 40, 4, 3
    alpha, beta, sigma, R, s1, s2, eta_b = map(Fraction, ("1/2", "1", "1/2", "5/2", "1", "7/10", "1/100"))
    eta_a = eta_b * (n - F) / n
    rho_a = 1 - 2 * eta_a * alpha * (n - F) + eta_a**2 * (n**2 + (n + 1) * (n - F) * beta**2)
    m_a = eta_a**2 * (n + 1) * ((n - F) * sigma**2 + F * R + d * s1**2) + Fraction(F, n) ** 2 * R**2
    rho_b = 1 - 2 * eta_b * alpha * (n - 2 * F) + eta_b**2 * (n**2 + (n - F + 1) * (n - F) * beta**2)
    m_b = eta_b**2 * (n - F + 1) * ((n - F) * sigma**2 + d * s2**2) + Fraction(F, n) ** 2 * R**2
    got = convergence_bound(**SETTING, form="as_printed")
    want = [float(x) for x in (rho_a, m_a, rho_b, m_b, m_b / (1 - rho_b), (R / alpha) ** 2)]
    have = [got.rho_a, got.m_a, got.rho_b, got.m_b, got.limit, got.trivial_limit]
    assert have == pytest.approx(want, rel=1e-13)  # float64 against fractions


@THEOREM
@pytest.mark.parametrize("independent", [False, True])
def test_the_sound_recursion_touches_the_one_that_was_proved_at_its_fixed_point(independent):
    got = convergence_bound(**SETTING, independent=independent)
    n, F, eta, R, d = 40, 4, 0.01, 2.5, 3
    k = n - F

    def step(x, eta, push, noise):
        contraction = max(abs(1 - eta * k * 0.5), abs(1 - eta * k * 1.0))
        spread = (k if independent else k**2) * 0.5**2
        return (math.sqrt(contraction**2 * x + eta**2 * spread) + eta * push) ** 2 + eta**2 * noise

    routines = [
        (got.rho_b, got.m_b, (eta, 2 * F * R, d * max(0.7, k / n) ** 2)),
        (got.rho_a, got.m_a, (eta * k / n, F * R, d * 1.0**2)),
    ]
    for rho, m, how in routines:
        fixed = optimize.brentq(lambda x, how=how: step(x, *how) - x, 1e-9, 1e4, xtol=1e-13, rtol=1e-14)
        assert m / (1 - rho) == pytest.approx(fixed, rel=1e-10)
        for x in fixed * np.array([0.0, 0.1, 0.9, 1.0, 1.1, 4.0, 100.0]):
            assert step(x, *how) <= (rho * x + m) * (1 + 1e-12)
    assert got.limit == pytest.approx(got.m_b / (1 - got.rho_b), rel=1e-10)


@THEOREM
@pytest.mark.parametrize("form", ["sound", "as_printed"])
@pytest.mark.parametrize("rate", [0.01, 0.06])  # contracting, and not
def test_the_bound_after_some_steps_is_the_recursion_run(form, rate):
    got = convergence_bound(**{**SETTING, "learning_rate": rate}, form=form)
    assert (got.limit < math.inf) == (rate == 0.01) == got.conditions["learning_rate"]
    x = 2.25
    for t in range(25):
        assert got.after(t, start=2.25) == pytest.approx(x, rel=1e-10)
        x = got.rho_b * x + got.m_b


@THEOREM
def test_the_printed_conditions_are_strict_where_they_must_be():
    keys = ("num_records", "num_corrupted", "strong_convexity", "smoothness")
    highest = largest_learning_rate(**{k: SETTING[k] for k in keys}, form="as_printed")
    assert highest == pytest.approx(2 * 0.5 * 32 / (1600 + 37 * 36), rel=1e-14)
    at = convergence_bound(**{**SETTING, "learning_rate": highest}, form="as_printed")
    assert at.rho_b == pytest.approx(1, abs=1e-14)  # (94) as printed allows it: no contraction
    assert not at.conditions["learning_rate"]
    below = {**SETTING, "learning_rate": highest * 0.999}
    least = needed_noise(SETTING)
    for factor, enough in ((0.999, False), (1.001, True)):
        got = convergence_bound(**{**below, "robust_noise_std": factor * least}, form="as_printed")
        assert got.conditions == {"learning_rate": True, "minority": True, "robust_noise": enough}
        assert got.holds == enough
    half = convergence_bound(**{**SETTING, "num_corrupted": 20}, form="as_printed")
    assert not half.conditions["minority"]
    assert half.limit == math.inf
    assert largest_learning_rate(**{**{k: SETTING[k] for k in keys}, "num_corrupted": 20}, form="as_printed") == 0.0
    highest = largest_learning_rate(**{k: SETTING[k] for k in keys})
    assert highest == pytest.approx(2 / 36, rel=1e-15)  # 2/(β(n − F)), and there the sound bound stops too
    assert convergence_bound(**{**SETTING, "learning_rate": highest}).limit == math.inf
    assert convergence_bound(**{**SETTING, "learning_rate": highest * 0.999}).limit < math.inf


@THEOREM
def test_hypothesis_151_puts_the_worse_recursion_on_routine_b_not_on_a():
    # the text after (144) says M_B < M_A; so it is at one rate for both routines, not at the theorem's two
    for F, R, sigma in itertools.product([0, 1, 4, 19], [0.01, 2.5, 300.0], [0.0, 0.5]):
        setting = {**SETTING, "num_corrupted": F, "max_norm": R, "gradient_std": sigma}
        setting["robust_noise_std"] = needed_noise(setting) * (1 + 1e-12)
        got = convergence_bound(**setting, form="as_printed")
        assert got.conditions["robust_noise"]
        assert got.m_a <= got.m_b
        assert got.rho_a <= got.rho_b


@THEOREM
def test_no_sensitivity_bound_of_the_experiments_meets_hypothesis_151():
    assert smallest_sensitivity_bound(num_records=256, num_trimmed=64) == pytest.approx(0.868, abs=5e-4)
    for batch, tau in ((256, 0.5), (1024, 0.667), (2048, 0.6)):
        least = smallest_sensitivity_bound(num_records=batch, num_trimmed=batch // 4)
        assert 0.866 < least < 0.868
        for noise_std, sigma in itertools.product([1e-3, 1.1, 1e4], [0.0, 1.0]):
            setting = {**SETTING, "num_records": batch, "num_corrupted": batch // 4, "gradient_std": sigma}
            setting |= {"max_norm": 1e-9, "dimension": 10_000, "noise_std": noise_std}
            how = [convergence_bound(**setting | {"robust_noise_std": t * noise_std}, form="as_printed")
                   for t in (tau, least * 0.9999)]  # fmt: skip
            assert not any(got.conditions["robust_noise"] for got in how)
    # and it is the least: without gradient noise, and R → 0, a little more is enough
    setting = {**SETTING, "num_records": 256, "num_corrupted": 64, "gradient_std": 0.0, "max_norm": 1e-9}
    setting |= {"robust_noise_std": 1.0001 * smallest_sensitivity_bound(num_records=256, num_trimmed=64)}
    assert convergence_bound(**setting, form="as_printed").conditions["robust_noise"]


@THEOREM
def test_the_printed_limit_is_exceeded_although_its_conditions_hold():
    # honest gradients are trimmed for their norm, so those that stay don't have mean grad L, as (112) has it
    setting = hidden_in_the_tail(**TAIL)
    known = bound_settings(setting)
    printed, sound = convergence_bound(**known, form="as_printed"), convergence_bound(**known, independent=True)
    assert printed.holds
    assert sound.holds
    how = {"attack": "hidden", "laplace_scale": 1.0, "test_failure": 1e-8, "start_distance": math.sqrt(printed.limit)}
    got = simulate(**setting, **how, num_steps=3000, num_replicas=10, rng=rng())
    assert got.largest_norm <= setting["max_norm"]
    assert got.pass_rate.min() > 0.5
    assert got.pass_rate.mean() > 0.99  # routine B
    last, error = got.squared_distance[-1], got.standard_error[-1]
    assert last - 5 * error > 2.2 * printed.limit  # starting at the limit itself
    assert 0.9 * sound.limit < last + 5 * error
    assert last - 5 * error <= sound.limit


@THEOREM
@pytest.mark.parametrize("num_corrupted", [8, 12, 16])
def test_the_printed_limit_is_exceeded_for_many_shares_of_corrupted_gradients(num_corrupted):
    tail = {**TAIL, "num_records": 60, "num_corrupted": num_corrupted, "strong_convexity": 0.2}
    setting = hidden_in_the_tail(
        **{**tail, "rare_prob": 0.1 + 1.3 * num_corrupted / (60 - num_corrupted)}, noise_std=0.1
    )
    known = bound_settings(setting)
    printed, sound = convergence_bound(**known, form="as_printed"), convergence_bound(**known, independent=True)
    assert printed.holds
    how = {"attack": "hidden", "laplace_scale": 0.05, "test_failure": 1e-8, "num_steps": 800, "num_replicas": 20}
    got = simulate(**setting, **how, start_distance=0.9 * setting["radius"], rng=rng(1))
    last, error = got.squared_distance[-1], got.standard_error[-1]
    assert last - 5 * error > 1.2 * printed.limit
    assert 0.85 * sound.limit - 5 * error < last < sound.limit + 5 * error


@THEOREM
def test_the_hidden_setting_meets_the_printed_conditions_with_little_to_spare():
    draw = rng(11)
    for _ in range(200):
        n = int(draw.integers(3, 400))
        R, alpha = 10 ** draw.uniform(-2, 2), 10 ** draw.uniform(-2, 2)
        tail = {"num_records": n, "num_corrupted": int(draw.integers(0, (n - 1) // 2 + 1)), "strong_convexity": alpha}
        tail |= {"max_norm": R, "sensitivity_bound": draw.uniform(0.2, 0.99) * R, "rare_prob": draw.uniform(0.05, 0.9)}
        setting = hidden_in_the_tail(**tail, noise_std=R * 10 ** draw.uniform(-2, 1))
        known = bound_settings(setting)
        assert convergence_bound(**known, form="as_printed").holds
        assert setting["robust_noise_std"] == pytest.approx(1.001 * needed_noise(known), rel=1e-12)
        far = R - setting["radius"] * alpha
        assert far <= setting["sensitivity_bound"]
    setting = hidden_in_the_tail(**TAIL)
    assert setting["robust_noise_std"] == 0.985 * setting["noise_std"]
    assert 1.0 < setting["robust_noise_std"] / needed_noise(bound_settings(setting)) < 1.001
    with pytest.raises(ValueError, match=r"^sensitivity_bound must be above 0\.9372"):
        hidden_in_the_tail(**{**TAIL, "sensitivity_bound": 0.9})
    for name, value in (("num_corrupted", 128), ("rare_prob", 1.0), ("sensitivity_bound", 1.0), ("max_norm", 0.0)):
        with pytest.raises(ValueError, match=rf"^{name} must"):
            hidden_in_the_tail(**{**TAIL, name: value})


@THEOREM
def test_from_a_third_on_the_printed_limit_says_less_than_bounded_gradients():
    draw = rng(3)
    for _ in range(300):
        n = int(draw.integers(3, 300))
        F = int(draw.integers(-(-n // 3), (n - 1) // 2 + 1))
        alpha = 10 ** draw.uniform(-3, 3)
        shared = {"num_records": n, "num_corrupted": F, "strong_convexity": alpha, "smoothness": alpha}
        highest = largest_learning_rate(**shared, form="as_printed")
        rest = {"max_norm": 10 ** draw.uniform(-2, 3), "gradient_std": 0.0, "noise_std": 0.0, "robust_noise_std": 0.0}
        rate = max(highest * draw.uniform(0.001, 0.999), 1e-300)
        for form in ("as_printed", "sound"):
            got = convergence_bound(**shared, **rest, dimension=2, learning_rate=rate, form=form)
            assert got.limit >= got.trivial_limit * (1 - 1e-9)  # equal at F = n/3, up to rounding
    assert convergence_bound(**SETTING).informative
    assert convergence_bound(**{**SETTING, "learning_rate": 0.005}, form="as_printed").informative


@THEOREM
def test_between_a_third_and_a_half_corrupted_gradients_drive_the_run_away():
    # exact gradients, F = 4 of 10: every kept corrupted one cancels an honest one, 2 − 4 < 0 are left
    setting = {**SETTING, "num_records": 10, "gradient_std": 0.0, "noise_std": 0.0, "robust_noise_std": 0.0}
    assert setting["learning_rate"] < largest_learning_rate(
        num_records=10, num_corrupted=4, strong_convexity=0.5, smoothness=1.0, form="as_printed"
    )
    assert convergence_bound(**setting).holds
    how = {**RUN, "start_distance": 0.1, "radius": 1.0, "num_steps": 300, "num_replicas": 2, "laplace_scale": 0.01}
    away = simulate(**setting, **how, rng=rng())
    assert (away.pass_rate == 1).all()
    assert (np.diff(away.squared_distance) >= -1e-15).all()
    assert away.squared_distance[-1] == pytest.approx(1.0, rel=1e-12)  # the end of the ball
    fewer = simulate(**{**setting, "num_corrupted": 3}, **how, rng=rng())
    assert (np.diff(fewer.squared_distance) < 0).all()


@THEOREM
@pytest.mark.parametrize("attack", ["none", "zero", "away", "hidden"])
@pytest.mark.parametrize("tau", [1e-6, 0.6, 2.4])  # fails; depends on the gradients; passes
@pytest.mark.parametrize("rare_prob", [None, 0.15])
def test_simulated_runs_stay_below_the_sound_bound(attack, tau, rare_prob):
    setting = SETTING if rare_prob is None else {**SETTING, "gradient_std": 0.2}
    bound = convergence_bound(**setting, independent=True)
    assert bound.holds
    assert bound.informative
    how = {**RUN, "attack": attack, "sensitivity_bound": tau, "rare_prob": rare_prob}
    got = simulate(**setting, **how, rng=rng(5))
    want = np.array([bound.after(t, start=2.25) for t in range(51)])
    assert (got.squared_distance - 5 * got.standard_error <= want * (1 + 1e-12)).all()
    assert (np.array([convergence_bound(**setting).after(t, start=2.25) for t in range(51)]) >= want * (1 - 1e-9)).all()
    if tau == 1e-6:  # routine A throughout: its own pair holds too
        assert got.pass_rate.max() <= 0.01
        x = 2.25
        for mean, error in zip(got.squared_distance, got.standard_error, strict=True):
            assert mean - 5 * error <= x * (1 + 1e-12)
            x = bound.rho_a * x + bound.m_a


@THEOREM
def test_the_printed_second_moment_of_routine_a_is_refuted():
    # (139) without noise, at w*: E‖g̃‖² ≤ (n + 1) F R; four gradients of norm R in one direction have F²R²
    setting = {**SETTING, "num_records": 10, "gradient_std": 0.0, "noise_std": 0.0, "max_norm": 10.0}
    how = {**RUN, "attack": "away", "start_distance": 0.0, "num_steps": 1, "sensitivity_bound": 0.1, "radius": None}
    got = simulate(**setting, **how, rng=rng())
    assert got.pass_rate == [0.0]
    n, F, R, eta_a = 10, 4, 10.0, 0.01 * 6 / 10
    second_moment = got.squared_distance[1] / eta_a**2
    assert second_moment == pytest.approx(F**2 * R**2, rel=1e-12)
    assert second_moment > (n + 1) * F * R  # printed
    assert second_moment <= (n + 1) * F * R**2  # with the square
    # what (123) gives away covers the slip: (144) holds here
    assert got.squared_distance[1] <= convergence_bound(**setting, form="as_printed").m_a


@THEOREM
def test_the_slip_in_m_a_never_shows_in_the_limit():
    # a run of routine A alone stays below the printed limit: its sound limit does
    draw = rng(4)
    for _ in range(400):
        n = int(draw.integers(3, 300))
        F = int(draw.integers(1, (n - 1) // 2 + 1))
        alpha = 10 ** draw.uniform(-3, 3)
        setting = {"num_records": n, "num_corrupted": F, "strong_convexity": alpha}
        setting |= {"smoothness": alpha * 10 ** draw.uniform(0, 2)}
        rate = largest_learning_rate(**setting, form="as_printed") * 10 ** draw.uniform(-3, -0.01)
        R = 10 ** draw.uniform(-3, 4)
        setting |= {
            "max_norm": R,
            "gradient_std": R * 10 ** draw.uniform(-4, 0),
            "dimension": int(draw.integers(1, 99)),
        }
        setting |= {"noise_std": R * 10 ** draw.uniform(-3, 2), "learning_rate": rate}
        setting |= {"robust_noise_std": needed_noise(setting) * (1 + 1e-9)}
        printed, sound = convergence_bound(**setting, form="as_printed"), convergence_bound(**setting)
        assert printed.holds
        assert sound.m_a / (1 - sound.rho_a) < printed.limit * (1 + 1e-9)


@THEOREM
def test_a_step_without_any_noise_is_the_update_of_eq_92():
    setting = {**SETTING, "gradient_std": 0.0, "noise_std": 0.0, "robust_noise_std": 0.0}
    # start on the axis of curvature α = 0.5: 36 gradients of 0.75, four of what the attack sends
    after = {
        ("none", 2.4): 1.5 - 0.01 * 36 * 0.75,
        ("none", 0.4): 1.5 - 0.009 * 40 * 0.75,
        ("zero", 2.4): 1.5 - 0.01 * 32 * 0.75,
        ("zero", 0.4): 1.5 - 0.009 * 36 * 0.75,
        ("away", 2.4): 1.5 - 0.01 * 36 * 0.75,  # trimmed
        ("away", 0.4): 1.5 - 0.009 * (36 * 0.75 - 4 * 2.5),
        ("hidden", 2.4): 1.5 - 0.01 * (32 - 4) * 0.75,
        ("hidden", 0.4): 1.5 - 0.009 * (36 - 4) * 0.75,
    }
    for (attack, tau), want in after.items():
        # "away" exceeds τ = 2.4 four times: the margin is 0, and with δ₀ = 1/2 half of the runs take routine B
        how = {**RUN, "attack": attack, "sensitivity_bound": tau, "num_steps": 1}
        if (attack, tau) == ("away", 2.4):
            how |= {"test_failure": 0.5}
            got = simulate(**setting, **how, rng=rng())
            share, other = got.pass_rate[0], after["away", 0.4]
            assert 0.3 < share < 0.7
            assert got.squared_distance[1] == pytest.approx(share * want**2 + (1 - share) * other**2, rel=1e-9)
        else:
            assert simulate(**setting, **how, rng=rng()).squared_distance[1] == pytest.approx(want**2, rel=1e-8)


@THEOREM
def test_the_test_passes_as_often_as_the_laplace_tail_says():
    # margin F − 2 = 2: two of the gradients exceed τ
    how = {**RUN, "num_steps": 40, "num_replicas": 500, "laplace_scale": 1.3, "test_failure": 0.05}
    threshold = 1.3 * math.log(1 / 0.1)
    cases = [("none", 2.4, 1 - 0.5 * math.exp(-(4 - threshold) / 1.3)), ("away", 2.4, 0.05)]
    for attack, tau, want in cases:
        got = simulate(**SETTING, **{**how, "attack": attack, "sensitivity_bound": tau}, rng=rng(8))
        assert abs(got.pass_rate.mean() - want) < 5 * math.sqrt(want * (1 - want) / 20_000)
        assert want != pytest.approx(0.5, abs=0.05)


@THEOREM
def test_a_routine_can_be_had_by_itself():
    # the test never passes at τ = 1e-6, and always at 2.4: the routine says otherwise
    for tau, routine, same_as in ((1e-6, "B", 2.4), (2.4, "A", 1e-6)):
        how = {**RUN, "num_steps": 5}
        forced = simulate(**SETTING, **{**how, "sensitivity_bound": tau}, routine=routine, rng=rng(4))
        free = simulate(**SETTING, **{**how, "sensitivity_bound": same_as}, rng=rng(4))
        assert set(forced.pass_rate) == {float(routine == "B")}
        assert (forced.squared_distance == free.squared_distance).all()
    with pytest.raises(ValueError, match=r"^routine must"):
        simulate(**SETTING, **RUN, routine="C", rng=rng())


@THEOREM
def test_honest_noise_has_the_stated_mean_and_size_and_runs_repeat():
    # one step from w* without corruption, in routine A: w₁ = −η_A (sum of the noise)
    setting = {**SETTING, "num_corrupted": 0, "noise_std": 0.0, "robust_noise_std": 0.0, "num_records": 5}
    for rare_prob in (None, 0.15):
        how = {**RUN, "start_distance": 0.0, "num_steps": 1, "num_replicas": 20_000, "rare_prob": rare_prob}
        got = simulate(**setting, **how, rng=rng(9))
        want = 0.01**2 * 5 * 0.5**2
        assert abs(got.squared_distance[1] - want) < 5 * got.standard_error[1]
        assert got.standard_error[1] < 0.02 * want
        again = simulate(**setting, **how, rng=rng(9))
        assert (again.squared_distance == got.squared_distance).all()
        longest = 0.5 if rare_prob is None else 0.5 * math.sqrt(0.85 / 0.15)
        assert got.largest_norm == pytest.approx(longest, rel=1e-12)


@THEOREM
@pytest.mark.parametrize(("tau", "rate", "std"), [(2.4, 0.01, 0.7), (1e-6, 0.01 * 36 / 40, 1.3)])
def test_each_routine_adds_its_own_noise(tau, rate, std):
    # honest gradients are 1e-3 long at the start, so that the first test fails for the small τ
    setting = {**SETTING, "gradient_std": 1e-3, "noise_std": 1.3}
    how = {**RUN, "attack": "none", "sensitivity_bound": tau, "start_distance": 0.0, "num_steps": 1, "radius": None}
    got = simulate(**setting, **{**how, "num_replicas": 20_000}, rng=rng(2))
    want = 3 * (rate * std) ** 2 + rate**2 * 40 * 1e-6  # routine B sums 36 of the 40, a hundred-thousandth less
    assert abs(got.squared_distance[1] - want) < 5 * got.standard_error[1]
    assert got.standard_error[1] < 0.01 * want


@THEOREM
def test_hidden_gradients_are_all_kept_and_hurt_most_where_long_ones_are_trimmed():
    runs = {
        attack: simulate(**SETTING, **{**RUN, "attack": attack}, rng=rng(5)) for attack in ("none", "zero", "hidden")
    }
    assert all((got.pass_rate == 1).all() for got in runs.values())  # routine B
    ends = {attack: got.squared_distance[-1] for attack, got in runs.items()}
    assert ends["hidden"] > 4 * ends["zero"] > 4 * 1.05 * ends["none"]


@pytest.mark.paper("ptr", "Remark A.2")
def test_corrupted_quantile_is_that_of_the_enumerated_sample():
    for corrupted, rate in itertools.product([0, 1, 5, 12], ["3/10", "1/64", "1"]):
        q = Fraction(rate)
        weights = [math.comb(corrupted, k) * q**k * (1 - q) ** (corrupted - k) for k in range(corrupted + 1)]
        assert sum(weights) == 1
        for p, steps in itertools.product([1e-9, 0.003, 0.2, 0.9], [1, 7]):
            want = next(k for k in range(corrupted + 1) if sum(weights[k + 1 :]) <= Fraction(p) / steps)
            got = corrupted_quantile(
                num_records=12, sample_rate=float(q), corruption_rate=corrupted / 12, failure_prob=p, num_steps=steps
            )
            assert got == want


@pytest.mark.paper("ptr", "Remark A.2")
def test_corrupted_quantile_of_the_experiments_is_above_their_first_f():
    mnist = {"num_records": 60_000, "sample_rate": 256 / 60_000}
    # one step in 100 already has more than the first F, 64, at a fifth corrupted; the run needs far more
    assert corrupted_quantile(**mnist, corruption_rate=0.2, failure_prob=0.01) > 64
    run = corrupted_quantile(**mnist, corruption_rate=0.2, failure_prob=1e-3, num_steps=8068)
    assert run > 256 / 3  # more than the third of a batch from which no bound says anything
    assert run > corrupted_quantile(**mnist, corruption_rate=0.1, failure_prob=1e-3, num_steps=8068)
    # 0.07 · 100 is 7, though float64 makes it 7.000000000000001
    assert corrupted_quantile(num_records=100, sample_rate=1.0, corruption_rate=0.07, failure_prob=0.1) == 7


def largest_change(points, size, statistic, replace):
    """Over all multisets of a size from a list of points, and all neighbours within the list."""
    largest = 0.0
    for chosen in itertools.combinations_with_replacement(range(len(points)), size):
        data = points[list(chosen)]
        here = statistic(data)
        kept = [np.delete(data, i, 0) for i in range(size)] if replace else [data]
        there = np.array([statistic(np.vstack([rest, y])) for rest in kept for y in points])
        largest = max(largest, np.linalg.norm(there - here, axis=1).max())
    return largest


def median(data):
    ordered = np.sort(data, axis=0)
    m = len(data)
    return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2


def mean(data):
    return data.mean(0)


@LIMITATION
def test_median_and_mean_sensitivities_are_those_of_all_small_data_sets():
    R = 1.5
    plane = R * np.array([[math.cos(a), math.sin(a)] for a in np.arange(8) * math.pi / 4] + [[0.0, 0.0], [0.4, -0.2]])
    line = R * np.array([[-1.0], [-0.5], [0.0], [0.3], [1.0]])
    for points in (line, plane):
        d = points.shape[1]
        add = median_sensitivity(d, max_norm=R, neighbouring="add_remove")
        replace = median_sensitivity(d, max_norm=R, neighbouring="replace")
        for size in (1, 2, 3):
            assert largest_change(points, size, median, False) == pytest.approx(add, rel=1e-12)
            want = replace if size % 2 else add  # an even number of records moves half as far
            assert largest_change(points, size, median, True) == pytest.approx(want, rel=1e-12)
            want = mean_sensitivity(d, num_records=size + 1, max_norm=R, neighbouring="add_remove")
            assert largest_change(points, size, mean, False) == pytest.approx(want, rel=1e-12)
            want = mean_sensitivity(d, num_records=size, max_norm=R, neighbouring="replace")
            assert largest_change(points, size, mean, True) == pytest.approx(want, rel=1e-12)


@LIMITATION
@pytest.mark.parametrize("d", [1, 3, 20])
def test_no_climb_takes_the_median_further_in_any_dimension(d):
    # random restarts, then a climb with random steps, over data sets of 2 to 7 records and one more
    draw = rng(d)
    R = 0.7

    def clipped(x):
        return x * np.minimum(1, R / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300))

    def change(data):
        return float(np.linalg.norm(median(data) - median(data[:-1])))

    largest = median_sensitivity(d, max_norm=R, neighbouring="add_remove")
    for size in range(2, 8):
        data = clipped(draw.standard_normal((size + 1, d)))
        here = change(data)
        for _ in range(400):
            tried = clipped(data + draw.standard_normal(data.shape) * draw.choice([0.03, 0.3, 1.0]) * R / math.sqrt(d))
            if change(tried) >= here:
                data, here = tried, change(tried)
        assert here <= largest * (1 + 1e-12)
        half = (size + 1) // 2
        u = R * draw.standard_normal(d)
        u = u * (R / np.linalg.norm(u))
        attaining = np.vstack([np.tile(u, (half, 1)), np.tile(-u, (half, 1))])
        assert np.linalg.norm(median(attaining) - median(attaining[:-1])) == pytest.approx(largest, rel=1e-12)


@LIMITATION
def test_far_greater_than_the_mean_counts_records_not_dimensions():
    for d, m in itertools.product([1, 10, 10_000], [2, 256]):
        for clipping, widening in (("l2", 1.0), ("coordinate", math.sqrt(d))):
            how = {"max_norm": 2.0, "neighbouring": "add_remove", "clipping": clipping}
            assert median_sensitivity(d, **how) == pytest.approx(2.0 * widening, rel=1e-14)
            assert median_sensitivity(d, **how) / mean_sensitivity(d, num_records=m, **how) == pytest.approx(m / 2)
            how["neighbouring"] = "replace"
            assert median_sensitivity(d, **how) / mean_sensitivity(d, num_records=m, **how) == pytest.approx(m)
    # each coordinate clipped on its own: corners ±R in all of them
    corner = np.full((1, 5), 2.0)
    change = median(np.vstack([corner, -corner])) - median(corner)
    got = median_sensitivity(5, max_norm=2.0, neighbouring="add_remove", clipping="coordinate")
    assert np.linalg.norm(change) == pytest.approx(got, rel=1e-14)


QUANTILE = {"num_records": 10, "sample_rate": 0.5, "corruption_rate": 0.1, "failure_prob": 0.1}
RATES = {"num_records": 10, "num_corrupted": 1, "strong_convexity": 1.0, "smoothness": 2.0}


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        *((convergence_bound, name, value) for name, value in [
            ("num_records", 0), ("num_corrupted", 40), ("num_corrupted", 1.0), ("strong_convexity", 0.0),
            ("smoothness", 0.4), ("smoothness", math.inf), ("gradient_std", -1.0), ("max_norm", 0.0), ("dimension", 0),
            ("noise_std", math.nan), ("robust_noise_std", -0.1), ("learning_rate", 0.0), ("form", "printed"),
            ("independent", "yes"),
        ]),
        *((simulate, name, value) for name, value in [
            ("num_corrupted", 40), ("attack", "hide"), ("sensitivity_bound", 2.5), ("sensitivity_bound", 0.0),
            ("laplace_scale", 0.0), ("test_failure", 0.6), ("start_distance", -1.0), ("num_steps", -1),
            ("num_replicas", 1), ("rng", 0), ("rare_prob", 0.0), ("radius", 1.4), ("smoothness", 0.4),
        ]),
        *((corrupted_quantile, name, value) for name, value in [
            ("num_records", 0), ("sample_rate", 0.0), ("corruption_rate", 1.1), ("failure_prob", 0.0), ("num_steps", 0),
        ]),
        *((largest_learning_rate, name, value) for name, value in [("num_corrupted", 10), ("form", "")]),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, name, value):
    usual = {
        convergence_bound: SETTING,
        simulate: {**SETTING, **RUN, "rng": rng()},
        corrupted_quantile: QUANTILE,
        largest_learning_rate: RATES,
    }
    with pytest.raises((ValueError, TypeError), match=rf"^{name} must"):
        call(**{**usual[call], name: value})


def test_other_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"^max_norm must"):  # honest gradients too long: not the theorem's setting
        simulate(**{**SETTING, "max_norm": 1.0}, **{**RUN, "sensitivity_bound": 0.9}, rng=rng())
    with pytest.raises(ValueError, match=r"^independent must"):
        convergence_bound(**SETTING, form="as_printed", independent=True)
    with pytest.raises(ValueError, match=r"^num_trimmed must"):
        smallest_sensitivity_bound(num_records=5, num_trimmed=5)
    with pytest.raises(ValueError, match=r"^num_records must"):
        mean_sensitivity(1, num_records=1, max_norm=1.0, neighbouring="add_remove")
    with pytest.raises(ValueError, match=r"^neighbouring must"):
        median_sensitivity(1, max_norm=1.0, neighbouring="both")
    with pytest.raises(ValueError, match=r"^clipping must"):
        median_sensitivity(1, max_norm=1.0, neighbouring="replace", clipping="l1")
    with pytest.raises(ValueError, match=r"^dimension must"):
        median_sensitivity(0, max_norm=1.0, neighbouring="replace")
    for bad in ({"num_steps": -1, "start": 1.0}, {"num_steps": 1, "start": -1.0}):
        with pytest.raises(ValueError, match=r"^(num_steps|start) must"):
            convergence_bound(**SETTING).after(bad["num_steps"], start=bad["start"])
