"""Trade-off functions of finite pairs, against every rejection region, fractions, mpmath, other accountants."""

import itertools
import math
import tracemalloc
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri

from privrob.accounting import gdp, pairs, tradeoff
from privrob.accounting.logspace import log_binomial, log_cumsum
from privrob.accounting.tradeoff import Tradeoff
from privrob.mechanisms.noise import Gaussian, Laplace

THEOREM = ("fdp", "Theorem 1")
ALPHA = np.array([0.0, 1e-12, 0.003, 0.1, 0.25, 0.4999, 0.5, 0.7, 0.95, 1 - 1e-9, 1.0])


def drawn(rng):
    """A pair of pmfs with up to six atoms: zeros, ties and disjoint supports among them."""
    size = int(rng.integers(1, 7))
    p, q = rng.integers(0, 8, size).astype(float), rng.integers(0, 8, size).astype(float)
    if rng.random() < 0.2:
        q = p.copy()
    if rng.random() < 0.1 and size > 1:
        p[: size // 2], q[size // 2 :] = 0.0, 0.0
    p, q = (m if m.sum() else np.eye(size)[0] for m in (p, q))
    return p / p.sum(), q / q.sum()


def every_test(p, q, alpha):
    """inf β over all rejection regions and all mixtures of two of them."""
    regions = np.array(list(itertools.product([0, 1], repeat=p.size)))
    errors1, errors2 = regions @ p, 1 - regions @ q
    best = np.ones(alpha.size)
    for i, j in itertools.product(range(len(regions)), repeat=2):
        span = errors1[j] - errors1[i]
        share = np.clip((alpha - errors1[i]) / span, 0, 1) if span > 1e-15 else np.ones(alpha.size)
        value = (1 - share) * errors2[i] + share * errors2[j]
        fits = (1 - share) * errors1[i] + share * errors1[j] <= alpha + 1e-15
        best = np.where(fits, np.minimum(best, value), best)
    return best


PAIRS = [drawn(np.random.default_rng(seed)) for seed in range(100)]
SPECIAL = [
    ([1.0, 0.0], [0.0, 1.0]),  # disjoint
    ([0.5, 0.5], [0.5, 0.5]),  # the same
    ([0.5, 0.25, 0.25, 0.0], [0.0, 0.25, 0.25, 0.5]),  # a tie in the middle, zeros at the ends
    ([0.3, 0.0, 0.7, 0.0], [0.0, 0.4, 0.6, 0.0]),  # an atom that neither has
    ([0.2, 0.5, 0.3], [0.5, 0.2, 0.3]),  # a ratio that is not monotone
]


# ---------------------------------------------------------------------------------------------------------- the curve


@pytest.mark.paper("fdp", "Definition 2")
@pytest.mark.paper(*THEOREM)
def test_the_curve_is_the_best_of_every_test_there_is():
    for p, q in [*PAIRS, *((np.array(p), np.array(q)) for p, q in SPECIAL)]:
        curve = Tradeoff.of(p, q)
        alpha = np.unique(np.concatenate([ALPHA, curve.knots[0].clip(0, 1), [0.1, 0.31, 0.77]]))
        assert curve(alpha) == pytest.approx(every_test(p, q, alpha), abs=1e-12), (
            p,
            q,
        )  # 1e-16 over a mass


@pytest.mark.paper(*THEOREM)
def test_values_at_and_between_breakpoints_are_those_of_fractions():
    p, q = [Fraction(n, 20) for n in (8, 6, 4, 2, 0)], [Fraction(n, 20) for n in (1, 3, 5, 8, 3)]
    order = sorted(range(5), key=lambda k: -(q[k] / p[k] if p[k] else Fraction(10**9)))
    curve = Tradeoff.of([float(x) for x in p], [float(x) for x in q])
    for cut in range(5):
        for share in (Fraction(0), Fraction(1, 3), Fraction(1)):
            alpha = sum((p[k] for k in order[:cut]), Fraction(0)) + share * p[order[cut]]
            beta = 1 - sum((q[k] for k in order[:cut]), Fraction(0)) - share * q[order[cut]]
            if alpha == 0 and cut == 0:
                continue  # not yet the best at 0
            assert float(curve(float(alpha))) == pytest.approx(float(beta), abs=1e-15)
    assert curve(0.0) == pytest.approx(0.85, abs=1e-15)  # what a test gets for nothing
    assert [float(x) for x in curve.knots[1]] == pytest.approx([1, 0.85, 0.45, 0.2, 0.05, 0], abs=1e-15)


def test_scalars_and_arrays_of_any_shape_are_taken():
    curve = Tradeoff.of([0.6, 0.4], [0.1, 0.9])
    assert isinstance(curve(0.3), float)
    assert curve(np.full((2, 0, 3), 0.3)).shape == (2, 0, 3)
    assert curve([[0.0, 0.2], [0.4, 1.0]]) == pytest.approx(np.array([[1.0, 0.55], [0.1, 0.0]]), abs=1e-15)


def test_the_inverse_undoes_the_curve_and_swaps_the_hypotheses():
    for p, q in PAIRS:
        curve = Tradeoff.of(p, q)
        assert curve.inverse()(ALPHA) == pytest.approx(Tradeoff.of(q, p)(ALPHA), abs=1e-14)
        alpha, beta = curve.knots
        inner = (alpha > 0) & (beta > 0)
        assert curve.inverse()(beta[inner]) == pytest.approx(alpha[inner], abs=1e-12)  # a steep piece costs digits


def test_a_curve_is_a_pair_and_back():
    curve = Tradeoff.of([0.5, 0.25, 0.25, 0.0], [0.0, 0.25, 0.25, 0.5])
    again = Tradeoff(pairs.DiscretePair(*curve.pair.atoms[1:]))
    assert again(ALPHA) == pytest.approx(curve(ALPHA), abs=1e-15)
    assert curve.pair.atoms[0].size == 3  # the tie is one piece


# ---------------------------------------------------------------------------------------------- many, and tiny, masses


@pytest.mark.paper(*THEOREM)
def test_a_million_atoms_are_exact_where_masses_underflow():
    """Two binomials of 10⁶ trials against sums of 40 digits; masses go down to e^-700000."""
    n, low, high = 10**6, 0.4995, 0.501
    curve = Tradeoff.of_logs(log_binomial(n, low), log_binomial(n, high))
    with mpmath.workdps(40):

        def upper(p, k):  # P(Z >= k), summed away from the mode
            p, term = mpmath.mpf(p), mpmath.mpf(0)
            term = mpmath.exp(
                mpmath.loggamma(n + 1)
                - mpmath.loggamma(k + 1)
                - mpmath.loggamma(n - k + 1)
                + k * mpmath.log(p)
                + (n - k) * mpmath.log1p(-p)
            )
            total, odds = term, p / (1 - p)
            while term > total * mpmath.mpf(10) ** -36:
                k, term = k + 1, term * (n - k) / (k + 1) * odds
                total += term
            return total

        for k in (501_200, 503_000):  # 3.4 and 7 standard deviations above the null's mean
            alpha, beta = upper(low, k), 1 - upper(high, k)
            assert curve(float(alpha)) == pytest.approx(float(beta), rel=1e-10)  # α's rounding
            got = curve.log_type2(float(mpmath.log(alpha)))
            assert got == pytest.approx(float(mpmath.log(beta)), abs=1e-10)
    alphas = np.linspace(0, 1, 2001)
    betas = curve(alphas)
    assert np.isfinite(betas).all()
    assert (np.diff(betas) <= 0).all()
    assert np.diff(betas, 2).min() > -1e-15
    deep = curve.log_type2(-np.geomspace(1e-12, 6e5, 300))
    assert np.isfinite(deep).all()
    assert (np.diff(deep) >= 0).all()  # a smaller α, a larger β
    assert curve.inverse().log_type2(curve.log_type2([-3.0, -8.0])) == pytest.approx([-3.0, -8.0], abs=1e-10)


def test_a_million_atoms_take_little_memory():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(10**6)), rng.dirichlet(np.ones(10**6))
    tracemalloc.start()
    curve = Tradeoff.of(p, q)
    beta = curve(ALPHA)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250e6  # goal of the project: 500 MB
    order = np.argsort(p / q)
    alpha, power = np.cumsum(p[order]), np.cumsum(q[order])
    assert beta == pytest.approx(1 - np.interp(ALPHA, np.append(0, alpha), np.append(0, power)), abs=1e-9)


def test_running_sums_are_exact_and_go_below_the_smallest_float():
    logs = np.concatenate([np.full(5, -2000.0), np.full(10**5, math.log(1e-5))])
    got = log_cumsum(logs)
    assert got[:5] == pytest.approx(-2000 + np.log(np.arange(1, 6)), rel=1e-15)
    assert got[5:] == pytest.approx(np.log(np.arange(1, 10**5 + 1) * 1e-5), abs=1e-14)  # plain sums, no drift
    assert list(log_cumsum([-np.inf, 0.0])) == [-np.inf, 0.0]


@pytest.mark.parametrize(("n", "p"), [(1, 0.3), (7, 0.0), (7, 1.0), (500, 0.5), (3000, 1e-4), (50, 1 - 1e-6)])
def test_binomial_masses_are_those_of_mpmath(n, p):
    logs = log_binomial(n, p)
    for k in {0, 1, n // 3, n // 2, n}:
        with mpmath.workdps(40):
            want = mpmath.log(mpmath.binomial(n, k)) + (k * mpmath.log(p) if k else 0)
            want += (n - k) * mpmath.log1p(-mpmath.mpf(p)) if k < n else 0
        assert logs[k] == pytest.approx(float(want), rel=2e-15, abs=1e-15)


# --------------------------------------------------------------------------------------------------- (ε, δ) and Rényi


def gap_of_every_set(p, q, epsilon):
    regions = np.array(list(itertools.product([0, 1], repeat=p.size)))
    both = [regions @ a - math.exp(epsilon) * (regions @ b) for a, b in ((p, q), (q, p))]
    return np.max(both)


@pytest.mark.paper("fdp", "Lemma 1")
@pytest.mark.paper("fdp", "Remark 2")
def test_delta_is_the_largest_gap_of_any_set_in_either_direction():
    for p, q in PAIRS:
        curve = Tradeoff.of(p, q)
        for epsilon in (0.0, 0.2, math.log(2), 1.5, 4.0):
            assert curve.delta(epsilon) == pytest.approx(gap_of_every_set(p, q, epsilon), abs=1e-14)
            line = tradeoff.approximate_dp(ALPHA, epsilon=epsilon, delta=float(curve.delta(epsilon)))
            assert (curve(ALPHA) >= line - 1e-12).all()
            less = float(curve.delta(epsilon)) - 1e-6
            if less > 0:  # and no smaller δ will do
                grid = np.unique(np.concatenate([curve.knots[0].clip(0, 1), ALPHA]))
                assert (curve(grid) < tradeoff.approximate_dp(grid, epsilon=epsilon, delta=less) - 1e-9).any()
        assert curve.delta(np.array([0.1, np.inf])).shape == (2,)
        assert curve.delta(math.inf) == pytest.approx(max(q[p == 0].sum(), p[q == 0].sum()), abs=1e-15)


@pytest.mark.paper("fdp", "Lemma 1")
def test_epsilon_undoes_delta_and_agrees_with_compositions_of_one_step():
    for p, q in PAIRS:
        curve, both = Tradeoff.of(p, q), (pairs.DiscretePair.of(p, q), pairs.DiscretePair.of(q, p))
        for delta in (0.0, 1e-9, 0.013, 0.1, 0.37):
            got, want = curve.epsilon(delta), pairs.compose([(both, 1)], delta=delta)
            if math.isinf(want.upper):
                assert got.upper == math.inf
                continue
            assert got.lower <= want.upper
            assert want.lower <= got.upper
            assert got.width < 1e-11
            assert curve.delta(got.upper) <= delta * (1 + 1e-13) + 1e-15
            if got.lower > 1e-9 and delta:
                assert curve.delta(got.lower - 1e-9) > delta


@pytest.mark.paper("fdp", "Lemma 1")
def test_the_printed_equivalence_is_refuted_it_holds_one_way():
    delta = float(gdp.delta_of(1.0, gdp_mu=1.0))
    assert delta == pytest.approx(0.126937, abs=5e-7)
    curve = gdp.tradeoff(ALPHA, gdp_mu=1.0)
    line = tradeoff.approximate_dp(ALPHA, epsilon=1.0, delta=delta)
    assert (curve >= line - 1e-12).all()
    assert curve[0] - line[0] > 0.12  # the Gaussian is (1, δ)-DP, and f is not f_{1,δ}


def test_the_line_of_approximate_dp_is_the_curve_of_its_pair():
    for epsilon, delta in [(0.0, 0.0), (0.0, 0.3), (1.3, 0.0), (0.7, 0.05), (50.0, 0.2)]:
        curve = Tradeoff(pairs.approximate_dp(epsilon=epsilon, delta=delta))
        got = tradeoff.approximate_dp(ALPHA, epsilon=epsilon, delta=delta)
        assert got == pytest.approx(curve(ALPHA), abs=1e-12)
    assert list(tradeoff.approximate_dp([0.0, 0.1], epsilon=math.inf, delta=0.25)) == [0.75, 0.0]


def test_renyi_curves_are_sums_of_forty_digits():
    orders = np.array([1 + 1e-9, 1.5, 2.0, 30.0, 800.0])
    near = (np.array([0.3, 0.3, 0.4]), np.array([0.3 + 1e-7, 0.3 - 1e-7, 0.4]))
    for p, q in [*PAIRS[:40], near]:
        got = Tradeoff.of(p, q).rdp(orders)
        for order, value in zip(orders, got):
            with mpmath.workdps(60):
                sides = []
                for a, b in ((p, q), (q, p)):
                    a, b = [mpmath.mpf(float(x)) for x in a], [mpmath.mpf(float(x)) for x in b]
                    a, b = [x / sum(a) for x in a], [x / sum(b) for x in b]
                    if any(x > 0 and y == 0 for x, y in zip(a, b)):
                        sides.append(mpmath.inf)
                        continue
                    power = mpmath.mpf(float(order))
                    total = sum(x**power * y ** (1 - power) for x, y in zip(a, b) if x > 0)
                    sides.append(mpmath.log(total) / (power - 1))
            want = float(max(sides))
            # masses hold 16 digits; the near pair's divergence, 3e-14, is the square of a difference of 1e-7 of them
            assert value == pytest.approx(want, rel=1e-8 if p is near[0] else 1e-12, abs=1e-25)


# --------------------------------------------------------------------------------------------------------- Gaussian DP


@pytest.mark.paper("fdp", "Theorem 7")
def test_the_smallest_mu_lies_below_and_touches():
    for p, q in [*PAIRS, (np.array([0.9, 0.1]), np.array([0.4, 0.6]))]:
        curve = Tradeoff.of(p, q)
        mu = curve.gdp_mu_upper
        if ((p == 0) != (q == 0)).any():
            assert mu == math.inf  # Binomial noise is one of these: no μ at all
            continue
        grid = np.unique(np.concatenate([curve.knots[0].clip(0, 1), np.linspace(0, 1, 200)]))
        assert (curve(grid) >= gdp.tradeoff(grid, gdp_mu=mu) - 1e-12).all()
        if mu > 1e-9:
            assert (curve(grid) < gdp.tradeoff(grid, gdp_mu=mu * (1 - 1e-6))).any()


def test_mu_of_randomised_response_is_a_closed_form_however_strong():
    for epsilon in (1e-6, 0.5, 3.0, 40.0, 700.0):
        got = Tradeoff(pairs.randomized_response(epsilon=epsilon)).gdp_mu_upper
        with mpmath.workdps(30):  # −2 Φ⁻¹(1/(1 + e^ε)), by the logarithm of the tail
            log_tail = -mpmath.log1p(mpmath.exp(epsilon))
            z = mpmath.findroot(
                lambda z, goal=log_tail: mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2) - goal,
                math.sqrt(2 * epsilon) * 0.97 + 1e-6,
            )
        assert got == pytest.approx(float(2 * z), rel=1e-9)
        assert got >= float(2 * z) * (1 - 1e-12)


def test_mu_of_a_sum_of_votes_needs_both_tails():
    got = Tradeoff.of_logs(log_binomial(100, 0.55), log_binomial(100, 0.45)).gdp_mu_upper
    assert got == pytest.approx(2.0100, abs=5e-5)  # complements taken from the wrong end would give more than 4


# ------------------------------------------------------------------------------------------------------- other pairs


@pytest.mark.paper("fdp", "Remark 3")
def test_continuous_noise_has_its_closed_forms():
    ends = [0.0, 1e-300, 1e-12, 0.01, 0.3, 0.5, 0.9, 1 - 1e-12, 1.0]
    for multiplier in (0.3, 1.0, 20.0):
        got = tradeoff.at(pairs.gaussian(noise_multiplier=multiplier), ends)
        assert got == pytest.approx(gdp.tradeoff(ends, gdp_mu=1 / multiplier), abs=1e-13)
    for scale in (0.5, 2.0):
        laplace = Laplace(laplace_scale=scale, l1_sensitivity=1.0)
        want = laplace.tradeoff(ends, neighbouring="replace", sampling="none")
        assert tradeoff.at(pairs.laplace(scale_ratio=scale), ends) == pytest.approx(want, abs=1e-13)
    finite = pairs.DiscretePair.of([0.2, 0.8], [0.7, 0.3])
    assert list(tradeoff.at(finite, ends)) == list(Tradeoff(finite)(ends))


def test_any_pair_lies_just_above_its_curve_and_never_above_the_best_test():
    p, q = np.array([0.5, 0.2, 0.3]), np.array([0.1, 0.3, 0.6])
    exact = Tradeoff.of(p, q)
    hidden = pairs.DiscretePair.of(p, q).reversed().reversed()
    got = tradeoff.at(_Opaque(hidden), ALPHA)
    assert got == pytest.approx(exact(ALPHA), abs=1e-12)
    assert (got <= exact(ALPHA) + 1e-14).all()
    apart = tradeoff.at(_Opaque(pairs.DiscretePair.of([0.3, 0.7, 0.0], [0.0, 0.5, 0.5])), ALPHA)
    assert apart == pytest.approx(Tradeoff.of([0.3, 0.7, 0.0], [0.0, 0.5, 0.5])(ALPHA), abs=1e-12)


class _Opaque(pairs.Pair):
    """A finite pair that does not say so."""

    def __init__(self, pair):
        self.pair = pair

    def cells(self, edges):
        return self.pair.cells(edges)

    def reversed(self):
        return _Opaque(self.pair.reversed())


@pytest.mark.paper("fdp", "Remark 3")
def test_the_printed_rejection_region_of_discrete_gaussian_noise_is_refuted():
    """x = 0, x' = 2, σ = 2: the ratio rises, so that a test rejects large outputs; small ones do worse than a coin."""
    v = np.arange(-60, 61)
    x, y = (np.exp(-((v - c) ** 2) / 8) for c in (0, 2))
    x, y = x / x.sum(), y / y.sum()
    alpha = float(x[v <= 0].sum())
    printed = 1 - float(y[v <= 0].sum())
    assert (alpha, printed) == pytest.approx((0.599736, 0.775768), abs=5e-7)
    curve = Tradeoff(pairs.discrete_gaussian(noise_std=2.0, shift=2))
    assert curve(alpha) == pytest.approx(0.103246, abs=5e-7)
    assert printed > 1 - alpha > curve(alpha)
    assert curve.inverse()(ALPHA) == pytest.approx(curve(ALPHA), abs=1e-13)  # symmetric


@pytest.mark.paper("fdp", "Remark 3")
def test_discrete_gaussian_noise_has_its_tails_and_is_not_as_private_as_the_continuous_one():
    curve = Tradeoff(pairs.discrete_gaussian(noise_std=1.0, shift=1))
    knot = 0.5 - 0.5 / np.exp(-(np.arange(-40, 41) ** 2) / 2).sum()  # P(V >= 1): the symmetric test
    assert curve(knot) == pytest.approx(knot, abs=1e-14)
    assert (knot, gdp.tradeoff(knot, gdp_mu=1.0)) == pytest.approx(
        (0.3005, 0.3166), abs=5e-5
    )  # below the continuous one
    assert curve.gdp_mu_upper == pytest.approx(1.04576, abs=5e-6)
    assert math.isfinite(curve.log_type2(-600.0))
    for std, shift in [(0.3, 1), (1.0, 1), (30.0, 7)]:
        pair = pairs.discrete_gaussian(noise_std=std, shift=shift)
        rises = np.diff(pair.log_p - pair.log_q)
        assert rises == pytest.approx(shift / std**2, rel=1e-8)  # monotone, as the remark says
        got = Tradeoff(pair).rdp([2.0])
        assert got <= shift**2 / std**2 * (1 + 1e-12)  # α Δ²/2σ² (Canonne et al. 2020), attained for whole shifts
        assert got == pytest.approx(shift**2 / std**2, rel=1e-10)


def test_gaussian_noise_and_its_own_guarantee_agree():
    noise = Gaussian(noise_std=2.0, l2_sensitivity=3.0)
    how = {"neighbouring": "replace", "sampling": "none"}
    assert tradeoff.at(noise.pairs(**how), ALPHA) == pytest.approx(noise.tradeoff(ALPHA, **how), abs=1e-12)
    assert -ndtri(noise.tradeoff(0.5, **how)) == pytest.approx(1.5, rel=1e-12)


# ------------------------------------------------------------------------------------------------------------ refused


def test_what_is_no_curve_or_no_error_rate_is_refused():
    curve = Tradeoff.of([0.6, 0.4], [0.1, 0.9])
    for ask, name in [
        (lambda: curve(1.2), "type1"),
        (lambda: curve(-0.1), "type1"),
        (lambda: curve(float("nan")), "type1"),
        (lambda: curve.log_type2(0.5), "log_type1"),
        (lambda: curve.delta(-1.0), "epsilon"),
        (lambda: curve.epsilon(1.0), "delta"),
        (lambda: curve.rdp([1.0]), "orders"),
        (lambda: Tradeoff.of([0.6, 0.3], [0.1, 0.9]), "log_p"),
        (lambda: Tradeoff.of([0.6, 0.4], [0.1, 0.8, 0.1]), "log_p and log_q"),
        (lambda: tradeoff.at(pairs.gaussian(noise_multiplier=1.0), 1.5), "type1"),
        (lambda: tradeoff.approximate_dp(0.5, epsilon=-1.0, delta=0.1), "epsilon"),
    ]:
        with pytest.raises(ValueError, match=name):
            ask()
    with pytest.raises(TypeError, match=r"tradeoff\.at"):
        Tradeoff(pairs.gaussian(noise_multiplier=1.0))
    with pytest.raises(TypeError, match="pair must be a Pair"):
        tradeoff.at([0.5, 0.5], 0.3)
