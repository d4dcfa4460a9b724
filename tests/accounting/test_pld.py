"""The sampled Gaussian: certified ends around closed forms, other accountants, and published trouble spots."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, stats

from privrob.accounting import gdp, lossgrid, pld
from privrob.kinds import NotAvailable

Q = 256 / 60000


def epsilon(sample_rate, noise_multiplier, num_steps, delta, neighbouring="add_remove", **options):
    got = pld.sampled_gaussian(
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        delta=delta,
        neighbouring=neighbouring,
        **options,
    )
    assert all(type(x) is float and x >= 0 for x in (got.lower, got.estimate, got.upper))
    return got


# (q, σ, T, δ): the value from dp_accounting at 1e-4 spacing, or from mpmath
KNOWN = [
    (Q, 1.1, 1_000, 1e-5, 0.5987),
    (Q, 1.1, 10_000, 1e-5, 1.9780),
    (Q, 1.1, 100_000, 1e-5, 7.2711),
    (0.01, 4, 10_000, 1e-5, 0.947),
    (0.01, 4, 40_000, 1e-5, 2.033),
    (1 / 60, 1.3, 900, 1e-5, 1.892),
    (0.004, 0.7, 11_250, 1e-5, 5.431),
    (0.02048, 1.54, 1_464, 1e-5, 2.386),
    (0.2, 1, 10, 1e-5, 4.984),
    (0.2, 1, 500, 1e-5, 38.17),
    (0.00033, 4, 10_000, 1e-9, 0.041),
    (0.00033, 4, 10_000, 1e-12, 0.051),
]


@pytest.mark.paper("dplearn", "How private is the DP-SGD algorithm?")
@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "want"), KNOWN)
def test_known_values_are_met_within_half_a_percent(q, sigma, steps, delta, want):
    got = epsilon(q, sigma, steps, delta, points=2**18)
    assert got.lower <= got.estimate <= got.upper
    assert got.upper == pytest.approx(want, rel=0.005, abs=6e-4)  # values above are printed to 3 or 4 decimals
    assert got.width < 0.02 * want


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "low", "high"),
    [
        (Q, 0.05, 1_000, 1e-5, 3030, 3041),
        (Q, 0.3, 10_000, 1e-5, 132.2, 132.4),
        (0.5, 0.5, 1_000, 1e-5, 877, 878.7),
        (Q, 50, 10_000, 1e-5, 0.0227, 0.0257),
        (Q, 1_000, 10_000, 1e-5, 2.6e-5, 0.00085),
        (1e-6, 1, 1_000_000, 1e-5, 0.0025, 0.0028),
        (0.1 / 24, 0.1, 480, 1e-5, 478, 480),
        (Q, 1.1, 1_000_000, 1e-5, 31.4, 31.598),
        (1e-10, 0.1, 1, 1e-12, 40, 60),
        (0.5, 1e-3, 1_000, 1e-5, 2.6e8, 2.9e8),
        (0.5, 1e-7, 1_000, 1e-5, 1e14, math.inf),
        (1e-3, 1e6, 1_000_000, 1e-12, 4e-6, 5e-6),
        (0.999, 50, 1_000, 1e-5, 2.58, 2.60),
    ],
)
def test_corners_that_stop_other_accountants_give_a_finite_honest_interval(q, sigma, steps, delta, low, high):
    # the ranges are what the accountants that do answer there allow
    got = epsilon(q, sigma, steps, delta)
    assert low <= got.estimate <= high
    assert got.lower > 0.99 * got.estimate or got.estimate == math.inf


def test_no_loss_gives_exactly_0():
    for q, sigma, steps, delta in [(0, 1, 100, 1e-5), (0.1, 1, 0, 1e-5), (0, 0, 5, 0.0), (0.1, math.inf, 5, 1e-5)]:
        got = epsilon(q, sigma, steps, delta)
        assert (got.lower, got.upper) == (0.0, 0.0)
        assert math.copysign(1, got.upper) == 1
    assert epsilon(0.00105, 1, 1, 1e-3).upper == 0  # δ(0) is 4.0207e-4
    assert epsilon(0.001, 1000, 1, 1e-5).upper == 0
    assert epsilon(1, 1, 1, 0.9).upper == 0


def test_without_noise_a_drawn_record_gives_itself_away():
    assert epsilon(0.01, 0, 10, 1e-5, "remove").lower == math.inf
    assert epsilon(0.01, 0, 10, 0.2, "remove").upper == 0  # δ above 1 − 0.99¹⁰ = 0.0956: it may just not be drawn
    assert epsilon(0.01, 0, 10, 1e-5, "add").upper == pytest.approx(
        -10 * math.log(0.99) + math.log(1 - 1e-5), rel=1e-12
    )
    assert epsilon(1, 0, 1, 1e-5).upper == math.inf


def test_a_loss_that_is_all_but_constant_is_kept_to_its_digits():
    # without noise to speak of, adding a record has a loss of log 2 in every step: δ = 1 − e^{ε − T log 2}
    for steps, delta in [(1000, 1e-9), (100, 1e-12), (10**6, 1e-9)]:
        got, want = epsilon(0.5, 1e-3, steps, delta, "add"), steps * math.log(2) + math.log1p(-delta)
        assert got.lower <= want * (1 + 1e-15)
        assert want * (1 - 1e-15) <= got.upper
        assert got.width < 1e-6


def test_delta_0_is_infinite_one_way_and_bounded_the_other():
    assert epsilon(0.1, 2, 7, 0.0, "remove").upper == math.inf
    assert epsilon(0.1, 2, 7, 0.0, "add").upper == pytest.approx(-7 * math.log(0.9), rel=1e-12)


def test_sampling_everything_is_the_gaussian_mechanism():
    assert epsilon(1, 2, 100, 1e-5).upper == gdp.epsilon_of(1e-5, gdp_mu=5.0)
    # the grid's own answer, at a rate that is all but 1, against the closed form: checks the whole numeric road
    for steps, delta in [(1, 1e-5), (100, 1e-5), (100, 1e-60), (10_000, 1e-9), (10_000, 1e-150), (1_000_000, 1e-6)]:
        sigma = 2 * math.sqrt(steps)
        got, want = epsilon(1 - 1e-15, sigma, steps, delta, points=2**18), gdp.epsilon_of(delta, gdp_mu=0.5)
        assert got.lower <= want <= got.upper * (1 + 1e-9), (steps, delta)
        assert got.upper < want * 1.001, (steps, delta)


@pytest.mark.parametrize(("q", "sigma"), [(0.00105, 1.0), (0.3, 0.8), (0.02, 5.0)])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_step_is_bracketed_by_quadrature(q, sigma, direction):
    # δ(ε) of one step by quadrature of the definition; the interval must hold the true ε
    mu, delta = 1 / sigma, 1e-4
    got = epsilon(q, sigma, 1, delta, direction)
    z = np.linspace(-10, 10 + mu, 200_001)
    base, mixed = stats.norm.pdf(z), (1 - q) * stats.norm.pdf(z) + q * stats.norm.pdf(z - mu)
    p, r = (mixed, base) if direction == "remove" else (base, mixed)

    def true_delta(e):
        return integrate.trapezoid(np.maximum(p - math.exp(e) * r, 0), z)

    assert true_delta(got.upper) <= delta * (1 + 1e-6)  # a kink, spacing 1e-4
    if got.lower > 0:
        assert true_delta(got.lower * (1 - 1e-9)) >= delta * (1 - 1e-6)
    assert got.width <= 1e-3 * got.upper


def test_the_anchor_of_one_step_at_delta_1e_5():
    got = epsilon(0.00105, 1, 1, 1e-5)
    assert got.lower <= 0.0097762 <= got.upper + 5e-8  # printed to 7 decimals
    assert epsilon(0.00105, 1, 1, 1e-4).estimate == pytest.approx(0.0024043, abs=1e-7)


@pytest.mark.paper("dplearn", "How to compose privacy bound for multiple iterations?")
def test_two_steps_are_bracketed_by_a_double_quadrature():
    q, sigma, delta = 0.2, 1.0, 1e-3
    got = epsilon(q, sigma, 2, delta, "remove")
    z = np.linspace(-8, 9, 3001)
    base = stats.norm.pdf(z)
    mixed = (1 - q) * base + q * stats.norm.pdf(z - 1 / sigma)
    weight = z[1] - z[0]
    pp, qq = np.multiply.outer(mixed, mixed), np.multiply.outer(base, base)

    def true_delta(e):
        return np.maximum(pp - math.exp(e) * qq, 0).sum() * weight**2

    assert true_delta(got.upper) <= delta * (1 + 5e-5)  # sums over a kinked integrand, spacing 6e-3
    assert true_delta(got.lower) >= delta * (1 - 5e-5)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 500), (0.1, 2.0, 50), (Q, 0.7, 200)])
def test_dp_accounting_agrees(q, sigma, steps):
    other = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=1e-3, use_connect_dots=True
    ).self_compose(steps)
    got = epsilon(q, sigma, steps, 1e-6)
    # theirs is an upper bound on a grid of 1e-3: never below our lower end, above our upper end by little
    theirs = other.get_epsilon_for_delta(1e-6)
    assert got.lower <= theirs
    assert theirs == pytest.approx(got.upper, rel=0.02)


def test_the_interval_shrinks_around_the_same_value_on_finer_grids():
    coarse, fine = (epsilon(Q, 1.1, 3_000, 1e-5, points=p) for p in (2**14, 2**19))
    assert coarse.lower <= fine.lower <= fine.upper <= coarse.upper
    assert fine.width < coarse.width / 50
    assert fine.record.grid < coarse.record.grid
    assert fine.record.points > coarse.record.points


def test_epsilon_only_grows_as_delta_falls_to_1e_18_and_below():
    values = [epsilon(0.00033, 4, 10_000, d, points=2**15) for d in np.geomspace(1e-11, 1e-19, 17)]
    assert all(a.upper < b.upper and a.lower < b.lower for a, b in itertools.pairwise(values))
    at = epsilon(0.00033, 4, 10_000, 1.1e-18, points=2**16)
    assert 0.05 < at.lower <= at.upper < 0.146  # 0.146: Rényi orders up to 256


@pytest.mark.parametrize("delta", [1e-120, 1e-140, 1e-170, 1e-199])
def test_a_delta_that_rounding_drowns_still_has_a_finite_upper_end(delta):
    got = epsilon(0.00033, 4, 10_000, delta)
    assert 0.19 < got.lower <= got.estimate <= got.upper < 0.6  # orders without end give 1.08 at 1e-120, 1.81 at 1e-199


def test_a_delta_below_the_floor_is_refused_with_the_floor():
    with pytest.raises(ValueError, match="delta must be at least 1e-200"):
        epsilon(0.01, 1, 10, 1e-250)


def test_removal_and_addition_are_both_covered():
    both, remove, add = (epsilon(0.2, 1, 10, 1e-5, n) for n in ("add_remove", "remove", "add"))
    assert both.upper == max(remove.upper, add.upper)
    assert both.lower == max(remove.lower, add.lower)
    assert remove.lower > add.upper  # they differ, so that a mix-up shows
    with pytest.raises(NotAvailable, match="add_remove"):
        epsilon(0.2, 1, 10, 1e-5, "replace")


def test_more_noise_fewer_steps_and_a_lower_rate_leak_less():
    base = epsilon(0.01, 1.0, 1000, 1e-5, points=2**16)
    for q, sigma, steps in [(0.01, 1.1, 1000), (0.01, 1.0, 900), (0.009, 1.0, 1000)]:
        assert epsilon(q, sigma, steps, 1e-5, points=2**16).upper < base.lower


@pytest.mark.paper("dplearn", "Moment accountant for composition of DP mechanisms")
def test_the_slides_square_root_of_t_is_an_order_of_magnitude_not_a_bound():
    # steps that are (0.005, 1e-5)-DP each, 1000 of them: about 0.005·√1000 = 0.158 (printed as 0.15), and less in truth
    sigma = gdp.noise_multiplier_of(0.005, delta=1e-5)
    assert 0.005 * math.sqrt(1000) == pytest.approx(0.158, abs=5e-4)
    total = gdp.epsilon_of(1e-5, gdp_mu=math.sqrt(1000) / sigma)
    assert 0.158 < total < 1  # the composition of these very steps exceeds the rule of thumb


def test_one_discretised_step_serves_a_curve_of_step_counts():
    steps = [0, 1, 100, 1000, 3000, 100]
    curve = pld.epsilon_curve(sample_rate=Q, noise_multiplier=1.1, steps=steps, delta=1e-5, neighbouring="add_remove")
    assert curve[0].upper == 0
    assert curve[2] == curve[5]
    for count, got in zip(steps[1:], curve[1:]):
        alone = epsilon(Q, 1.1, count, 1e-5)
        assert got.lower <= alone.upper
        assert alone.lower <= got.upper
    assert [c.upper for c in curve[:5]] == sorted(c.upper for c in curve[:5])


def test_the_record_says_how():
    record = epsilon(0.1, 1, 10, 1e-5).record
    assert record.accountant == "pld, connect the dots"
    assert record.grid > 0
    assert record.points > 0
    assert (record.neighbouring, record.sampling, record.delta) == ("add_remove", "poisson", 1e-5)
    assert epsilon(1, 1, 10, 1e-5).record.accountant == "closed form"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"sample_rate": -0.1}, "sample_rate"),
        ({"sample_rate": math.nan}, "sample_rate"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"num_steps": 10.0}, "num_steps"),
        ({"num_steps": -1}, "num_steps"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-9}, "delta"),
        ({"neighbouring": "addremove"}, "neighbouring"),
    ],
)
def test_bad_arguments_are_named(change, name):
    good = {"sample_rate": 0.1, "noise_multiplier": 1.0, "num_steps": 10, "delta": 1e-5, "neighbouring": "add_remove"}
    with pytest.raises((ValueError, TypeError), match=name):
        pld.sampled_gaussian(**{**good, **change})


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("grid", [0.3, 0.01])
def test_connecting_the_dots_keeps_both_masses_on_a_coarse_grid(direction, grid):
    step = pld._Step(0.3, 0.8, direction, grid, 1e-12)
    losses = (step.start + np.arange(step.probs.size)) * grid
    assert step.probs.sum() + step.infinite == pytest.approx(1, abs=1e-12)
    assert (step.probs * np.exp(-losses)).sum() == pytest.approx(1, abs=1e-9)  # cut tails of 1e-12, times e^{-loss}


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.3, 0.8, 3), (0.01, 1.0, 300)])
def test_a_grid_far_too_coarse_is_still_on_the_right_side(q, sigma, steps):
    for direction in ("remove", "add"):
        fine = epsilon(q, sigma, steps, 1e-5, direction)
        coarse = pld._Step(q, sigma, direction, 0.2, 1e-12).compose(steps, 0.0, 1e-9).epsilon(1e-5)
        assert coarse > fine.lower * 1.001


def test_largest_mean_move_is_the_maximum_it_says():
    for h in (1e-3, 0.1, 2.0, 50.0):
        x = np.linspace(0, h, 200_001)
        moves = -np.expm1(-x) / -math.expm1(-h) * h - x
        assert lossgrid.largest_mean_move(h) * h == pytest.approx(moves.max(), rel=1e-6, abs=1e-15)  # grid of 200,001


def test_the_kink_bound_of_the_lower_end_covers_a_sum_of_moves():
    # the extreme case, all mass at the kink and moves of half a grid each way, in exact binomial arithmetic
    h, steps = 0.01, 400
    up = mpmath.mpf(1 - math.exp(-h / 2)) / mpmath.mpf(1 - math.exp(-h))
    k = np.arange(steps + 1)
    probs = stats.binom.pmf(k, steps, float(up))
    moved = k * h - steps * h / 2
    gain = float(np.sum(probs * np.maximum(-np.expm1(-moved), 0)))
    spread = h * math.sqrt(steps) / 2
    assert gain <= math.exp(spread**2 / 2) * spread * math.sqrt(2 * math.pi) / 2 + spread**2


# ------------------------------------------------------------------------------------------ a tilt that went astray

# q, noise multiplier, δ: a tail far above the bulk of the loss, so that Chernoff's exponent has two valleys
RARE = [
    (5.549754503772142e-05, 0.5005854579201278, 2.2824612370395963e-10),
    (1e-4, 0.5, 1e-9),
    (1e-5, 0.3, 1e-9),
    (1.544e-5, 0.3153, 2.699e-10),
]


@pytest.mark.parametrize(("q", "sigma", "delta"), RARE)
def test_more_steps_never_cost_less_where_one_rare_draw_is_all_the_loss(q, sigma, delta):
    how = {"sample_rate": q, "noise_multiplier": sigma, "delta": delta, "neighbouring": "add_remove", "points": 2**18}
    spent = [pld.sampled_gaussian(num_steps=t, **how) for t in (1, 2, 3, 10)]
    for fewer, more in itertools.pairwise(spent):
        assert more.upper >= fewer.lower
        assert more.lower > 0.99 * fewer.lower
        assert more.width < 0.01 * more.upper


def test_two_steps_of_the_rare_draw_agree_with_a_second_library():
    q, sigma, delta = RARE[0]
    from dp_accounting.pld import privacy_loss_distribution as library

    one = library.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4)
    theirs = one.self_compose(2).get_epsilon_for_delta(delta)
    ours = pld.sampled_gaussian(
        sample_rate=q, noise_multiplier=sigma, num_steps=2, delta=delta, neighbouring="add_remove"
    )
    assert ours.lower <= theirs * (1 + 1e-6)
    assert theirs <= ours.upper * 1.001  # their grid


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "neighbouring"),
    [
        (1e-8, 0.14194803720557816, 6064, 1.0220988879785203e-09, "add"),
        (0.1609, 0.1176, 4116, 8.4e-12, "add_remove"),
        (0.1297, 0.0732, 2231, 7.0e-8, "add_remove"),
    ],
)
def test_the_number_of_points_bounds_the_work(q, sigma, steps, delta, neighbouring):
    spent = pld.sampled_gaussian(
        sample_rate=q, noise_multiplier=sigma, num_steps=steps, delta=delta, neighbouring=neighbouring
    )
    assert spent.record.points <= 2**20 * 1.1  # the next size that is fast to transform
    assert spent.lower <= spent.estimate <= spent.upper < math.inf
