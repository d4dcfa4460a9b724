"""Compositions of any pairs: certified ends around enumeration, closed forms, quadrature and other accountants."""

import itertools
import math
from collections import Counter

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privrob.accounting import gdp, lossgrid, pairs, pld

mpmath.mp.dps = 40
FAST = 2**15  # grid points: coarse, so that both ends have something to show


def blocks(p, q):
    """The pair of two pmfs as densities that are constant on [0, 1), [1, 2), …: it has to go through the grid."""
    p, q = np.asarray(p, float), np.asarray(q, float)
    with np.errstate(divide="ignore"):
        losses = np.log(p) - np.log(q)

    def loss(x):
        return losses[np.clip(np.floor(x).astype(int), 0, p.size - 1)]

    def mass(probs):
        below = np.concatenate([[0.0], np.cumsum(probs)])

        def log_mass(low, high):
            inside = np.interp(high, np.arange(p.size + 1), below) - np.interp(low, np.arange(p.size + 1), below)
            with np.errstate(divide="ignore"):
                return np.log(np.maximum(inside, 0.0))

        return log_mass

    return pairs.DensityPair(loss, mass(p), mass(q), breaks=tuple(range(p.size + 1)))


def enumerated_delta(steps, epsilon):
    """δ of a composition of pmf pairs by all outcomes, to 40 digits. Args: steps — one (p, q) for each step."""
    outcomes = Counter({(mpmath.mpf(1), mpmath.mpf(1)): 1})
    for p, q in steps:
        more = Counter()
        for (a, b), times in outcomes.items():
            for x, y in zip(p, q):
                more[(a * mpmath.mpf(float(x)), b * mpmath.mpf(float(y)))] += times
        outcomes = more
    factor = mpmath.exp(mpmath.mpf(float(epsilon)))
    total = [sum(mpmath.mpf(float(x)) for x in side) for side in zip(*[(sum(p), sum(q)) for p, q in steps])]
    assert all(abs(t - len(steps)) < 1e-9 for t in total)
    return sum(times * max(a - factor * b, 0) for (a, b), times in outcomes.items())


def holds(interval, true, slack=1e-12):
    """The interval holds a true value known to a relative ``slack``."""
    return interval.lower <= true * (1 + slack) and true * (1 - slack) <= interval.upper


# -------------------------------------------------------------------------------------------------------- exact oracles

PMFS = [
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([0.6, 0.25, 0.1, 0.05], [0.3, 0.3, 0.25, 0.15]),
    ([0.05, 0.45, 0.5], [0.0, 0.5, 0.5]),  # an infinite loss of mass 0.05
    ([0.7, 0.3, 0.0], [0.5, 0.3, 0.2]),  # and a loss of −∞
]


@pytest.mark.paper("dplearn", "How to compose privacy bound for multiple iterations?")
@pytest.mark.parametrize("through_the_grid", [False, True])
@pytest.mark.parametrize("pmf", PMFS)
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_delta_is_that_of_all_outcomes(pmf, steps, through_the_grid):
    pair = blocks(*pmf) if through_the_grid else pairs.DiscretePair.of(*pmf)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        for points in (2**12, FAST):
            got = pairs.delta([(pair, steps)], epsilon=epsilon, points=points, tolerance=1e-9)
            true = enumerated_delta([pmf] * steps, epsilon)
            assert holds(got, float(true)), (epsilon, points)  # ends are exact but for float64
        assert got.width <= (2e-3 if through_the_grid else 1e-11) * float(true) + 1e-199


@pytest.mark.parametrize("through_the_grid", [False, True])
def test_epsilon_of_unlike_steps_inverts_the_delta_of_all_outcomes(through_the_grid):
    make = blocks if through_the_grid else pairs.DiscretePair.of
    counts = [3, 2, 0, 3]
    entries = [(make(*pmf), count) for pmf, count in zip(PMFS, counts)]
    steps = [pmf for pmf, count in zip(PMFS, counts) for _ in range(count)]
    for epsilon in (0.5, 1.7, 3.0):
        delta = float(enumerated_delta(steps, epsilon))
        for points in (2**12, FAST):
            got = pairs.compose(entries, delta=delta, points=points, tolerance=1e-9)
            assert holds(got, epsilon, 1e-9)  # delta is rounded
        assert got.width < (1e-3 if through_the_grid else 1e-11)


@given(st.data())
@settings(derandomize=True, deadline=None, max_examples=15)
def test_random_pairs_are_bracketed_however_coarse_the_grid(data):
    k, steps = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 5))
    weights = st.lists(st.integers(1, 1000), min_size=k, max_size=k)
    p, q = (np.array(data.draw(weights), float) for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    epsilon = data.draw(st.floats(0, 4))
    true = float(enumerated_delta([(p, q)] * steps, epsilon))
    for pair in (pairs.DiscretePair.of(p, q), blocks(p, q)):
        got = pairs.delta([(pair, steps)], epsilon=epsilon, points=2**12)
        assert got.lower <= true * (1 + 1e-9) + 1e-15  # cancellation in the enumerated differences of float64 pmfs
        assert true * (1 - 1e-9) - 1e-15 <= got.upper


def test_randomized_response_is_its_binomial_sum():
    # exact ε at δ = 1e-5 of 1,000 answers kept with probability 0.52, from the binomial distribution in 40 digits
    step = pairs.randomized_response(epsilon=math.log(0.52 / 0.48))
    got = pairs.compose([(step, 1000)], delta=1e-5)
    assert got.estimate == pytest.approx(13.3775616, abs=5e-8)  # printed to 7 decimals
    assert got.width < 1e-9
    keep, loss = mpmath.mpf(0.52), mpmath.log(mpmath.mpf(0.52) / mpmath.mpf(0.48))

    def delta(epsilon):
        terms = []
        for k in range(1001):
            total = (2 * k - 1000) * loss
            if total > epsilon:
                weight = mpmath.binomial(1000, k) * keep**k * (1 - keep) ** (1000 - k)
                terms.append(weight * (1 - mpmath.exp(epsilon - total)))
        return sum(terms)

    assert delta(mpmath.mpf(got.upper)) <= 1e-5 <= delta(mpmath.mpf(got.lower))


@pytest.mark.parametrize(
    ("steps", "delta"), [(1, 1e-5), (100, 1e-5), (100, 1e-60), (10_000, 1e-9), (10_000, 1e-150), (1_000_000, 1e-6)]
)
def test_gaussian_steps_have_the_closed_form(steps, delta):
    step = pairs.gaussian(noise_multiplier=2 * math.sqrt(steps))
    want = gdp.epsilon_of(delta, gdp_mu=0.5)
    for points in (2**13, 2**18):
        got = pairs.compose([(step, steps)], delta=delta, points=points)
        assert holds(got, want, 1e-10)  # the closed form is rounded up by 1e-11
    assert got.width < 0.02 * want
    back = pairs.delta([(step, steps)], epsilon=want, points=2**18)
    assert holds(back, delta, 1e-9)
    assert back.width < 0.1 * delta


@pytest.mark.parametrize("noise", [1e-3, 0.05, 50.0, 1e4, 1e8])
def test_gaussian_steps_of_any_size_are_held(noise):
    got = pairs.compose([(pairs.gaussian(noise_multiplier=noise), 1000)], delta=1e-6, points=FAST)
    want = gdp.epsilon_of(1e-6, gdp_mu=math.sqrt(1000) / noise)
    assert holds(got, want, 1e-10)
    assert got.lower > 0.9 * want or want == 0
    assert got.upper == 0 or want > 0


def test_unlike_gaussian_steps_add_their_squares():
    entries = [(pairs.gaussian(noise_multiplier=s), n) for s, n in [(1.5, 1), (20.0, 300), (7.0, 12), (40.0, 1000)]]
    mu = math.sqrt(1 / 1.5**2 + 300 / 20.0**2 + 12 / 7.0**2 + 1000 / 40.0**2)
    for delta in (1e-3, 1e-8, 1e-40):
        got = pairs.compose(entries, delta=delta, points=FAST)
        assert holds(got, gdp.epsilon_of(delta, gdp_mu=mu), 1e-10)
        assert got.width < 5e-3 * got.upper


def test_one_laplace_step_has_the_closed_form_and_so_has_a_sampled_one():
    # δ(ε) = 1 − e^{(ε − ε₀)/2}; sampled at rate q, q times that at the ε before sampling
    for scale in (0.3, 2.0):
        step, rate = pairs.laplace(scale_ratio=scale), 0.2
        sampled = step.sampled(rate, neighbouring="remove")
        for share in (0.1, 0.5, 0.9):
            epsilon = share / scale
            want = -mpmath.expm1((mpmath.mpf(epsilon) - 1 / mpmath.mpf(scale)) / 2)
            assert holds(pairs.delta([(step, 1)], epsilon=epsilon, points=FAST), float(want))
            less = math.log1p(rate * math.expm1(epsilon))
            got = pairs.delta([(sampled, 1)], epsilon=less, points=FAST)
            assert holds(got, rate * float(want))
            assert got.width < 2e-3 * got.upper
    assert pairs.compose([(pairs.laplace(scale_ratio=4.0), 10)], delta=0.0).upper == pytest.approx(2.5, rel=1e-11)


def test_a_loss_that_is_not_monotone_is_cut_at_its_breaks():
    # P = ½N(1.5, 1) + ½N(−1.5, 1) against N(0, 1): the loss falls, then rises
    shift, side = 1.5, pairs.gaussian(noise_multiplier=1.0)
    pair = pairs.DensityPair(
        lambda x: np.logaddexp(shift * x, -shift * x) - math.log(2) - shift**2 / 2,
        lambda low, high: (
            np.logaddexp(side.log_mass_q(low - shift, high - shift), side.log_mass_q(low + shift, high + shift))
            - math.log(2)
        ),
        side.log_mass_q,
        breaks=(-math.inf, 0.0, math.inf),
    )
    z = np.linspace(-12, 12, 400_001)
    p = (stats.norm.pdf(z - shift) + stats.norm.pdf(z + shift)) / 2
    for pair_, a, b in [(pair, p, stats.norm.pdf(z)), (pair.reversed(), stats.norm.pdf(z), p)]:
        for epsilon in (0.5,):
            want = np.maximum(a - math.exp(epsilon) * b, 0).sum() * (z[1] - z[0])
            got = pairs.delta([(pair_, 1)], epsilon=epsilon, points=2**14)
            assert holds(got, want, 1e-6)  # a kinked integrand at a spacing of 6e-5
            assert got.width < 2e-3 * got.upper
    with pytest.raises(ValueError, match=r"monotone between breaks.*add breaks"):
        pairs.DensityPair(pair.loss, pair.log_mass_p, pair.log_mass_q)


def test_the_staircase_by_its_pieces_is_the_staircase_by_its_outcomes():
    # noise of density a e^{−kε} on |x| in [k, k + ½) and a e^{−(k+1)ε} on [k + ½, k + 1), shifted by 1
    epsilon, ends = 0.8, np.arange(-12.0, 13.5, 0.5)
    middle = (ends[:-1] + ends[1:]) / 2

    def density(x):
        level = np.floor(np.abs(x)) + (np.abs(x) % 1 >= 0.5)
        return np.exp(-level * epsilon)

    p, q = density(middle - 1), density(middle)
    p, q = p / p.sum(), q / q.sum()
    discrete, pieces = pairs.DiscretePair.of(p, q), blocks(p, q)
    got, want = (pairs.compose([(x, 4)], delta=1e-3, points=FAST) for x in (pieces, discrete))
    assert want.width < 1e-10
    assert holds(got, want.estimate)
    assert got.width < 2e-3


# ---------------------------------------------------------------------------------------------------- other accountants


def both(pair, rate):
    return tuple(pair.sampled(rate, neighbouring=n) for n in ("remove", "add"))


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"), [(0.01, 1.0, 500, 1e-6), (0.2, 0.8, 3, 1e-9), (1e-4, 2.0, 10**5, 1e-12)]
)
def test_the_sampled_gaussian_is_that_of_its_own_accountant(rate, noise, steps, delta):
    step = pairs.gaussian(noise_multiplier=noise)
    for d, direction in enumerate(("remove", "add")):
        got = pairs.compose([(both(step, rate)[d], steps)], delta=delta, points=FAST)
        own = pld.sampled_gaussian(
            sample_rate=rate, noise_multiplier=noise, num_steps=steps, delta=delta, neighbouring=direction, points=FAST
        )
        assert got.lower <= own.upper
        assert own.lower <= got.upper
        assert got.upper == pytest.approx(own.upper, rel=1e-3)


def test_a_mixture_of_normals_inverted_by_bisection_is_the_sampled_gaussian():
    for rate, noise, steps in [(0.2, 0.8, 3)]:
        mixture = pairs.gaussian_mixture([1 - rate, rate], [0, 1 / noise], [1.0], [0.0])
        step = pairs.gaussian(noise_multiplier=noise).sampled(rate, neighbouring="remove")
        got, want = (pairs.compose([(pair, steps)], delta=1e-6, points=2**12) for pair in (mixture, step))
        # the same masses; the grids differ by what the range was found to
        assert (got.lower, got.upper) == pytest.approx((want.lower, want.upper), rel=1e-8)


def test_dp_accounting_agrees_on_laplace_and_on_unlike_sampled_steps():
    other = privacy_loss_distribution.from_laplace_mechanism(100.0, value_discretization_interval=1e-4)
    got = pairs.compose([(pairs.laplace(scale_ratio=100.0), 10_000)], delta=1e-5, points=2**18)
    theirs = other.self_compose(10_000).get_epsilon_for_delta(1e-5)
    assert got.lower <= theirs
    assert theirs == pytest.approx(got.upper, rel=2e-4)  # theirs is an upper bound on a grid of 1e-4
    assert got.width < 2e-3

    parts = [
        privacy_loss_distribution.from_gaussian_mechanism(2.0, sampling_prob=0.01, value_discretization_interval=1e-4),
        privacy_loss_distribution.from_laplace_mechanism(5.0, sampling_prob=0.01, value_discretization_interval=1e-4),
    ]
    theirs = parts[0].self_compose(1000).compose(parts[1].self_compose(1000)).get_epsilon_for_delta(1e-5)
    entries = [
        (both(pairs.gaussian(noise_multiplier=2.0), 0.01), 1000),
        (both(pairs.laplace(scale_ratio=5.0), 0.01), 1000),
    ]
    got = pairs.compose(entries, delta=1e-5)
    assert got.lower <= theirs
    assert theirs == pytest.approx(got.upper, abs=1e-3)
    assert got.upper == pytest.approx(0.6624, abs=1e-3)  # printed to 4 decimals
    assert pairs.compose(entries[::-1], delta=1e-5).upper == pytest.approx(got.upper, rel=1e-9)


def test_dp_accounting_agrees_on_randomized_response():
    other = privacy_loss_distribution.from_randomized_response(0.6, 2, value_discretization_interval=1e-4)
    step = pairs.DiscretePair.of([0.7, 0.3], [0.3, 0.7])  # "noise" 0.6: a fair coin in 6 of 10 cases
    got = pairs.compose([(step, 40)], delta=1e-6)
    assert other.self_compose(40).get_epsilon_for_delta(1e-6) == pytest.approx(got.upper, rel=1e-3)


def test_binomial_noise_as_others_found_it():
    noise = pairs.binomial(trials=1000, success_prob=0.5)
    assert np.exp(noise.log_p).sum() == pytest.approx(1, abs=1e-12)
    assert noise.log_q[:-1] == pytest.approx(stats.binom.logpmf(np.arange(1001), 1000, 0.5), rel=1e-12)
    few = pairs.compose([(noise, 1000)], delta=1e-5)
    assert few.lower <= 9.99734 + 5e-6
    assert few.upper == pytest.approx(9.99734, abs=1e-4)  # an upper bound on a grid of 1e-4
    many = pairs.compose([(noise, 100_000)], delta=1e-5, points=2**19)
    assert many.lower <= 284.394 <= many.upper + 2e-3
    assert many.upper == pytest.approx(284.394, abs=3e-3)
    assert many.width < 0.1


# ------------------------------------------------------------------------------------------------------ joint releases


def test_a_joint_release_is_bracketed_by_a_double_quadrature():
    # one step that releases Laplace and Gaussian answers of the same Poisson sample
    rate, b, noise = 0.1, 2.0, 1.5
    step = pairs.ProductPair((pairs.laplace(scale_ratio=b), pairs.gaussian(noise_multiplier=noise)))
    x, y = np.linspace(-20, 20.5, 2026), np.linspace(-8, 9, 1701)  # breaks of the Laplace densities on grid points
    lap = [np.exp(-np.abs(x - s)) / 2 for s in (0.0, 1 / b)]
    gau = [stats.norm.pdf(y - s) for s in (0.0, 1 / noise)]
    weight = (x[1] - x[0]) * (y[1] - y[0])
    base, with_it = np.multiply.outer(lap[0], gau[0]) * weight, np.multiply.outer(lap[1], gau[1]) * weight
    mixed = (1 - rate) * base + rate * with_it
    for pair, a, c in zip(both(step, rate), (mixed, base), (base, mixed)):
        for epsilon in (0.03,):
            want = np.maximum(a - math.exp(epsilon) * c, 0).sum()
            got = pairs.delta([(pair, 1)], epsilon=epsilon, points=FAST)
            assert holds(got, want, 3e-4)  # the quadrature: spacing 0.02 and 0.01 around kinks
            assert got.width < 2e-3 * got.upper


def test_a_joint_release_leaks_more_than_separate_ones_and_the_same_without_sampling():
    parts = pairs.laplace(scale_ratio=5.0), pairs.gaussian(noise_multiplier=2.0)
    joint = pairs.ProductPair(parts)
    apart = pairs.compose([(both(part, 0.01), 1000) for part in parts], delta=1e-5, points=FAST)
    once = pairs.compose([(both(joint, 0.01), 1000)], delta=1e-5, points=FAST)
    assert once.lower > apart.upper
    assert once.width < 2e-3
    plain = pairs.compose([(joint, 50)], delta=1e-5, points=FAST)
    assert plain == pairs.compose([(part, 50) for part in parts], delta=1e-5, points=FAST)
    two = pairs.ProductPair((pairs.gaussian(noise_multiplier=2.0), pairs.gaussian(noise_multiplier=4.0)))
    one = pairs.gaussian(noise_multiplier=1 / math.hypot(1 / 2, 1 / 4))  # a Gaussian answer in two coordinates
    got, want = (pairs.compose([(both(pair, 0.05), 100)], delta=1e-6, points=FAST) for pair in (two, one))
    assert got.lower <= want.upper
    assert want.lower <= got.upper
    assert got.upper == pytest.approx(want.upper, rel=2e-3)


@pytest.mark.parametrize("tail", [0.05, 1e-9])
def test_a_pair_on_few_losses_dominates_and_one_of_merged_outcomes_is_dominated(tail):
    skewed = pairs.gaussian(noise_multiplier=1.0).sampled(0.3, neighbouring="remove")
    for pair in (skewed, skewed.reversed(), pairs.laplace(scale_ratio=0.5), blocks(*PMFS[2])):
        over, under = pair.discretised(tail, atoms=9)
        for flip in (lambda x: x, lambda x: x.reversed()):
            for epsilon in (0.0, 0.2, 0.7, 1.5):
                exact, high, low = (pairs.delta([(flip(x), 1)], epsilon=epsilon) for x in (pair, over, under))
                assert high.upper >= exact.lower
                assert low.lower <= exact.upper
        gaps = [pairs.delta([(x, 1)], epsilon=0.2).estimate for x in (over, pair, under)]
        assert gaps[0] >= gaps[1] * (1 - 1e-9) >= gaps[2] * (1 - 2e-3)
        assert pair is not skewed or gaps[0] < 2 * gaps[2] + 2 * tail  # nine losses are few


# ----------------------------------------------------------------------------------------------------------------- laws


@given(st.data())
@settings(derandomize=True, deadline=None, max_examples=8)
def test_merging_outcomes_never_raises_delta(data):
    k = data.draw(st.integers(3, 6))
    p, q = (np.array(data.draw(st.lists(st.integers(0, 50), min_size=k, max_size=k)), float) + 1e-3 for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    merged = [np.append(x[2:], x[0] + x[1]) for x in (p, q)]
    epsilon = data.draw(st.floats(0, 3))
    for make, slack in ((pairs.DiscretePair.of, 1e-12), (blocks, 1e-12)):
        coarse, fine = (pairs.delta([(make(*x), 3)], epsilon=epsilon, points=2**12) for x in (merged, (p, q)))
        assert coarse.lower <= fine.upper + slack
    exact = [pairs.delta([(pairs.DiscretePair.of(*x), 3)], epsilon=epsilon).estimate for x in (merged, (p, q))]
    assert exact[0] <= exact[1] + 1e-12


@pytest.mark.parametrize(
    "pair",
    [
        pairs.laplace(scale_ratio=3.0),
        pairs.randomized_response(epsilon=0.4),
        pairs.DiscretePair.of(*PMFS[1]),
        pairs.laplace(scale_ratio=3.0).sampled(0.1, neighbouring="remove"),
        pairs.gaussian(noise_multiplier=3.0).sampled(0.1, neighbouring="add"),
    ],
    ids=["laplace", "response", "discrete", "sampled laplace", "sampled gaussian"],
)
def test_more_steps_and_a_smaller_delta_leak_more(pair):
    values = [pairs.compose([(pair, n)], delta=1e-4, points=2**14) for n in (30, 60, 200)]
    assert all(a.upper < b.lower for a, b in itertools.pairwise(values))
    values = [pairs.compose([(pair, 50)], delta=d, points=2**14) for d in (1e-3, 1e-9, 1e-12)]
    assert all(a.upper < b.lower for a, b in itertools.pairwise(values))
    values = [pairs.delta([(pair, 50)], epsilon=e, points=2**14) for e in (0.0, 0.1, 1.0)]
    assert all(a.lower > b.upper for a, b in itertools.pairwise(values))


def test_a_symmetric_pair_is_its_own_reverse_and_sampling_tells_them_apart():
    for pair in (
        pairs.laplace(scale_ratio=2.0),
        pairs.gaussian(noise_multiplier=2.0),
        pairs.randomized_response(epsilon=1.0),
    ):
        there, back = (pairs.compose([(p, 20)], delta=1e-5, points=FAST) for p in (pair, pair.reversed()))
        assert there.upper == pytest.approx(back.upper, rel=1e-6)
        assert pair.reversed().reversed().total_variation == pair.total_variation
        remove, add = (pairs.compose([(p, 20)], delta=1e-5, points=FAST) for p in both(pair, 0.1))
        assert remove.lower > add.upper
        either = pairs.compose([(both(pair, 0.1), 20)], delta=1e-5, points=FAST)
        assert (either.lower, either.upper) == (remove.lower, remove.upper)


def test_an_asymmetric_pair_sampled_by_adding_mixes_the_other_side():
    p, q, rate = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5]), 0.3
    add = pairs.DiscretePair.of(p, q).sampled(rate, neighbouring="add")
    assert np.exp(add.log_p) == pytest.approx(p, rel=1e-12)
    assert np.exp(add.log_q) == pytest.approx((1 - rate) * p + rate * q, rel=1e-12)
    remove = pairs.DiscretePair.of(p, q).sampled(rate, neighbouring="remove")
    assert np.exp(remove.log_p) == pytest.approx((1 - rate) * q + rate * p, rel=1e-12)
    smooth = blocks(p, q)
    for direction in ("remove", "add"):
        got = pairs.delta([(smooth.sampled(rate, neighbouring=direction), 3)], epsilon=0.2, points=FAST)
        want = pairs.delta([(pairs.DiscretePair.of(p, q).sampled(rate, neighbouring=direction), 3)], epsilon=0.2)
        assert holds(got, want.estimate)


def test_sampling_ends_at_nothing_and_at_everything():
    step = pairs.gaussian(noise_multiplier=1.0)
    assert step.sampled(1.0, neighbouring="remove") is step
    assert pairs.compose([(both(step, 0.0), 100)], delta=0.0).upper == 0.0
    rates = [pairs.compose([(both(step, q), 10)], delta=1e-5, points=FAST) for q in (0.01, 0.1, 0.5, 0.9, 1.0)]
    assert all(a.upper < b.lower for a, b in itertools.pairwise(rates))


def test_a_pair_named_twice_counts_twice():
    step = pairs.laplace(scale_ratio=5.0)
    apart = pairs.compose([(step, 30), (step, 12)], delta=1e-5, points=FAST)
    assert apart == pairs.compose([(step, 42)], delta=1e-5, points=FAST)


def test_finer_grids_close_in_on_the_same_value():
    entries = [(pairs.laplace(scale_ratio=20.0), 500), (pairs.gaussian(noise_multiplier=30.0), 500)]
    coarse, fine, finest = (pairs.compose(entries, delta=1e-5, points=p, tolerance=1e-9) for p in (2**12, 2**15, 2**18))
    assert coarse.lower <= fine.lower <= finest.lower <= finest.upper <= fine.upper <= coarse.upper
    assert finest.width < fine.width / 20 < coarse.width / 400
    assert pairs.compose(entries, delta=1e-5, tolerance=1e-2).width <= 1e-2


# ----------------------------------------------------------------------------------------------- infinities and corners


def test_mass_at_infinity_is_kept_to_the_last_digit():
    step = pairs.approximate_dp(epsilon=0.1, delta=1e-6)
    lost = -math.expm1(1000 * math.log1p(-1e-6))  # of 1,000 steps
    assert pairs.compose([(step, 1000)], delta=lost * (1 - 1e-9)).lower == math.inf
    assert pairs.delta([(step, 1000)], epsilon=math.inf).upper == pytest.approx(lost, rel=1e-11)
    got = pairs.compose([(step, 1000)], delta=lost + 1e-5)
    pure = pairs.compose([(pairs.randomized_response(epsilon=0.1), 1000)], delta=1e-5 / (1 - lost))
    assert holds(got, pure.estimate, 1e-9)
    alone = pairs.compose([(step, 1)], delta=1e-6)
    assert alone.upper == pytest.approx(0.1, rel=1e-9)  # what it is by definition
    smooth = blocks([0.01, 0.55, 0.44], [0.0, 0.45, 0.55])
    assert pairs.delta([(smooth, 30)], epsilon=math.inf).upper == pytest.approx(1 - 0.99**30, rel=1e-9)
    assert pairs.compose([(smooth, 30)], delta=0.25).lower == math.inf
    seldom = pairs.delta([(smooth.sampled(0.2, neighbouring="remove"), 30)], epsilon=math.inf)
    assert seldom.upper == pytest.approx(1 - 0.998**30, rel=1e-9)
    assert math.isfinite(pairs.compose([(smooth, 30)], delta=0.27).upper)


def test_nothing_lost_is_exactly_0_and_everything_lost_infinite():
    same = pairs.DiscretePair.of([0.3, 0.7], [0.3, 0.7])
    step = pairs.laplace(scale_ratio=1.0)
    for entries in ([], [(step, 0)], [(same, 10**6)]):
        assert pairs.compose(entries, delta=0.0).upper == 0.0
        assert math.copysign(1, pairs.delta(entries, epsilon=0.5).upper) == 1
        assert pairs.delta(entries, epsilon=0.0).upper == 0.0
    assert pairs.compose([(step, 3)], delta=0.999).upper == 0.0
    many = pairs.laplace(scale_ratio=10.0)  # 1,000 of them: δ(0) is 0.88, and the sum of total variations 48
    assert pairs.compose([(many, 1000)], delta=0.95, points=FAST).upper == 0.0
    assert pairs.compose([(many, 1000)], delta=0.85, points=FAST).lower > 0.0
    apart = pairs.DiscretePair.of([1.0, 0.0], [0.0, 1.0])
    assert pairs.compose([(apart, 2)], delta=0.9).lower == math.inf
    assert pairs.delta([(apart, 2)], epsilon=100.0).lower == pytest.approx(1.0, rel=1e-9)
    assert pairs.compose([(pairs.gaussian(noise_multiplier=1.0), 2)], delta=0.0).lower == math.inf
    assert pairs.delta([(step, 3)], epsilon=3.0 + 1e-9).upper == 0.0


@pytest.mark.parametrize(
    ("entries", "delta", "low", "high"),
    [
        ([(pairs.laplace(scale_ratio=1e-6), 1000)], 1e-6, 9.99e8, 1e9),
        ([(pairs.laplace(scale_ratio=1e6), 1000)], 1e-6, 4.6e-5, 4.7e-5),
        ([(pairs.laplace(scale_ratio=10.0), 1000)], 1e-150, 79.6, 79.7),
        ([(pairs.laplace(scale_ratio=1.0), 1), (pairs.gaussian(noise_multiplier=1e5), 10**6)], 1e-6, 1.0, 1.15),
        ([(pairs.randomized_response(epsilon=0.1), 10**9)], 1e-6, 4.9e6, 5.1e6),
        ([(pairs.gaussian(noise_multiplier=1e6), 10**12)], 1e-6, 0.0, 1e3),
        ([(pairs.gaussian(noise_multiplier=1e-3).sampled(1e-12, neighbouring="remove"), 1000)], 1e-9, 0.0, 5e5),
        ([(pairs.gaussian(noise_multiplier=1e-3).sampled(0.5, neighbouring="add"), 1000)], 1e-9, 690, 694),
    ],
)
def test_corners_end_soon_with_an_honest_interval(entries, delta, low, high):
    got = pairs.compose(entries, delta=delta, points=2**14)
    assert low <= got.estimate <= high
    back = pairs.delta(entries, epsilon=got.upper, points=2**14)
    assert back.lower <= delta * (1 + 1e-9)


def test_a_rare_large_loss_does_not_widen_the_window():
    probs = np.zeros(250_001)
    probs[[0, -1]] = 1 - 1e-9, 1e-9
    first, last = lossgrid.window([(probs, 480)], 1e-6)  # the tail of one such loss in 480 is less than that
    assert first == 0
    assert last < 4 * 250_000
    step = pairs.gaussian(noise_multiplier=0.1).sampled(1 / 240, neighbouring="add")
    got = pairs.delta([(step, 480)], epsilon=1.0, points=2**20)
    assert got.width < 1e-4
    assert holds(got, 1 - (1 - 1 / 240) ** 480 * math.e, 1e-3)  # next to no noise: 1 − e^{ε + T log(1 − q)}


def test_a_delta_that_rounding_drowns_still_has_two_ends():
    # 50 Laplace steps reach their largest loss with probability 2^−50: at δ = 1e-30 ε is all but that largest loss
    got = pairs.compose([(pairs.laplace(scale_ratio=3.0), 50)], delta=1e-30, points=2**14)
    assert 16.4 < got.lower <= 50 / 3 <= got.upper * (1 + 1e-12)
    # a loss of log 2 in every step, all but exactly: δ = 1 − e^{ε − T log 2}
    step = pairs.gaussian(noise_multiplier=1e-3).sampled(0.5, neighbouring="add")
    for steps, delta in [(1000, 1e-9), (100, 1e-12), (10**6, 1e-9)]:
        got = pairs.compose([(step, steps)], delta=delta, points=2**14)
        assert holds(got, steps * math.log(2) + math.log1p(-delta), 1e-15)
        assert got.width < 1e-6


def test_a_delta_below_the_floor_is_refused_where_it_needs_a_grid():
    with pytest.raises(ValueError, match="delta must be at least 1e-200"):
        pairs.compose([(pairs.gaussian(noise_multiplier=1.0), 3)], delta=1e-250)
    assert 29 < pairs.compose([(pairs.randomized_response(epsilon=1.0), 30)], delta=1e-250).upper <= 30 + 1e-9


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: pairs.DiscretePair.of([0.5, 0.4], [0.5, 0.5]), "log_p must sum to 1"),
        (lambda: pairs.DiscretePair.of([0.5, 0.5], [1.0]), "one length"),
        (lambda: pairs.DiscretePair.of([0.5, 0.6, -0.1], [1.0, 0.0, 0.0]), "log_p"),
        (lambda: pairs.DiscretePair([], []), "log_p"),
        (lambda: pairs.gaussian(noise_multiplier=0.0), "noise_multiplier"),
        (lambda: pairs.laplace(scale_ratio=math.inf), "scale_ratio"),
        (lambda: pairs.binomial(trials=0, success_prob=0.5), "trials"),
        (lambda: pairs.gaussian_mixture([0.5, 0.5], [0, 1], [1.0], [0.5]), "means_p"),
        (lambda: pairs.gaussian(noise_multiplier=1.0).sampled(1.2, neighbouring="add"), "sample_rate"),
        (lambda: pairs.gaussian(noise_multiplier=1.0).sampled(0.2, neighbouring="replace"), "neighbouring"),
        (lambda: pairs.ProductPair(()), "parts"),
        (lambda: pairs.compose([pairs.laplace(scale_ratio=1.0)], delta=1e-5), "entries"),
        (lambda: pairs.compose([("laplace", 3)], delta=1e-5), "entries"),
        (lambda: pairs.compose([(pairs.laplace(scale_ratio=1.0), 2.5)], delta=1e-5), "count"),
        (lambda: pairs.compose([(pairs.laplace(scale_ratio=1.0), 2)], delta=1.0), "delta"),
        (lambda: pairs.delta([(pairs.laplace(scale_ratio=1.0), 2)], epsilon=-0.1), "epsilon"),
        (lambda: pairs.compose([((pairs.laplace(scale_ratio=1.0),) * n, 1) for n in (2, 3)], delta=0.1), "directions"),
    ],
)
def test_bad_arguments_are_named(make, name):
    with pytest.raises((ValueError, TypeError), match=name):
        make()


def test_a_loss_that_does_not_go_with_its_masses_is_refused():
    good = pairs.gaussian(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="log ratio"):
        pairs.DensityPair(lambda x: 2 * x, good.log_mass_p, good.log_mass_q)
    with pytest.raises(ValueError, match="in all"):
        pairs.DensityPair(good.loss, good.log_mass_p, good.log_mass_q, breaks=(0.0, math.inf))
    with pytest.raises(ValueError, match="NaN"):
        pairs.DensityPair(lambda x: x * np.nan, good.log_mass_p, good.log_mass_q)
