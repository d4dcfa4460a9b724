"""Discrete Gaussian and Skellam noise: masses against mpmath, curves against dp_accounting and brute force, draws."""

import functools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from privrob.accounting import audit, gdp, pairs, rdp
from privrob.accounting.ledger import Ledger
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import Guarantee, NotAvailable, Streams
from privrob.mechanisms.binomial import BinomialMechanism, BinomialNoise, draw_binomial
from privrob.mechanisms.discrete import infimum
from privrob.mechanisms.lattice import LOG_TAIL, DiscreteGaussian, Skellam

HOW = {"neighbouring": "replace", "sampling": "none"}
ALPHA = np.concatenate([[0.0, 1e-9], np.linspace(0.001, 0.999, 100), [1 - 1e-9, 1.0]])
ALL = [DiscreteGaussian(1, 0.3), DiscreteGaussian(3, 2.0), DiscreteGaussian(8, 11.0)]
ALL += [Skellam(1, 0.09), Skellam(3, 4.0), Skellam(8, 125.0)]
NAMES = [f"{type(m).__name__}-{m.max_value}-{m.variance:.3g}" for m in ALL]


@functools.cache
def total_by_mpmath(std):
    return 1 + 2 * mpmath.fsum(mpmath.exp(-(k**2) / (2 * mpmath.mpf(std) ** 2)) for k in range(1, int(20 * std) + 9))


@functools.cache
def by_mpmath(mechanism, v):
    """log P(V = v) in 40 digits."""
    with mpmath.workdps(40):
        if isinstance(mechanism, Skellam):
            s = mpmath.mpf(mechanism.variance)
            return mpmath.log(mpmath.besseli(abs(v), s)) - s
        return -(v**2) / (2 * mpmath.mpf(mechanism.noise_std) ** 2) - mpmath.log(total_by_mpmath(mechanism.noise_std))


@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_masses_are_those_of_mpmath_into_the_far_tail(mechanism):
    half = mechanism.log_noise(mechanism.reach)
    for v in (0, 1, 2, mechanism.reach // 3, mechanism.reach):
        assert half[v] == pytest.approx(float(by_mpmath(mechanism, v)), rel=1e-12, abs=1e-13)
    assert half[-1] < LOG_TAIL + 10 * math.log(10)  # the window is no wider than it has to be, nearly
    beyond = mechanism.log_noise(mechanism.reach + 200)[mechanism.reach + 1 :]
    assert np.logaddexp.reduce(beyond) <= LOG_TAIL  # what is charged to δ covers what lies outside
    masses = np.exp(mechanism.log_masses(mechanism.max_value))
    values = np.array(mechanism.symbols, dtype=float)
    assert masses.sum() == pytest.approx(1.0, abs=1e-13)
    assert np.dot(masses, mechanism.decode(values)) == pytest.approx(mechanism.max_value, abs=1e-11)
    assert np.dot(masses, (values - mechanism.max_value) ** 2) == pytest.approx(mechanism.variance, rel=1e-11)


@pytest.mark.paper("fdp", "Remark 3")
@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_the_ends_are_the_worst_inputs_and_all_guarantees_are_of_one_curve(mechanism):
    assert isinstance(mechanism, Guarantee)
    got = mechanism.tradeoff(ALPHA, **HOW)
    assert got == pytest.approx(infimum(mechanism, ALPHA, inputs=range(mechanism.max_value + 1)), abs=1e-12)
    assert mechanism.curve.inverse()(ALPHA) == pytest.approx(got, abs=1e-12)
    assert mechanism.epsilon(0.0, **HOW).upper == math.inf  # no pure guarantee: every ratio is exceeded somewhere
    for delta in (1e-12, 1e-5, 0.1):
        own, composed = mechanism.epsilon(delta, **HOW), pairs.compose([(mechanism.pairs(**HOW), 1)], delta=delta)
        assert own.upper == pytest.approx(composed.upper, rel=1e-9, abs=1e-12)
    mu = mechanism.gdp_mu_upper(**HOW)
    inner = ALPHA[(ALPHA > 0) & (ALPHA < 1)]
    slack = got[(ALPHA > 0) & (ALPHA < 1)] - gdp.tradeoff(inner, gdp_mu=mu)
    assert slack.min() > -1e-13
    knots = mechanism.curve.knots
    touching = np.abs(knots[1] - gdp.tradeoff(np.minimum(knots[0], 1.0), gdp_mu=mu))
    assert touching.min() < 1e-9  # the smallest


@pytest.mark.parametrize(("std", "shift"), [(0.8, 1), (2.0, 3), (11.0, 8)])
def test_the_discrete_gaussian_is_that_of_dp_accounting(std, shift):
    theirs = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        std, sensitivity=shift, value_discretization_interval=1e-3
    )
    ours = DiscreteGaussian(shift, std)
    for delta in (1e-9, 1e-5, 0.05):
        exact = ours.epsilon(delta, **HOW)
        assert exact.upper <= theirs.get_epsilon_for_delta(delta) * (1 + 1e-9) + 1e-9  # theirs rounds up to its grid
        assert theirs.get_epsilon_for_delta(delta) <= exact.upper + 2e-3
    ten = pairs.compose([(ours.pairs(**HOW), 10)], delta=1e-6)
    assert ten.lower <= theirs.self_compose(10).get_epsilon_for_delta(1e-6) <= ten.upper + 2e-2


@pytest.mark.parametrize("mechanism", [*ALL[:2], *ALL[3:5]], ids=[*NAMES[:2], *NAMES[3:5]])
def test_renyi_curves_are_those_of_mpmath(mechanism):
    shift, orders = mechanism.max_value, [1.3, 2.0, 7.0, 33.0]
    for order, got in zip(orders, mechanism.rdp(orders, **HOW), strict=True):
        with mpmath.workdps(40):
            reach = int(order * shift) + mechanism.reach // 2
            terms = [
                order * by_mpmath(mechanism, abs(v - shift)) + (1 - order) * by_mpmath(mechanism, abs(v))
                for v in range(-reach, reach)
            ]
            want = float(mpmath.log(mpmath.fsum(map(mpmath.exp, terms))) / (order - 1))
        assert got == pytest.approx(want, rel=1e-11)


def test_known_bounds_lie_above_the_exact_renyi_curves():
    orders = np.array([2.0, 3.0, 8.0, 32.0, 200.0])
    for l1 in (1, 3, 10):
        for variance in (0.5, 4.0, 60.0, 1000.0):
            how = {"l1_sensitivity": l1, "l2_sensitivity": l1}
            for mechanism in (Skellam(l1, variance), DiscreteGaussian.of_variance(variance, max_value=l1)):
                exact = mechanism.rdp(orders, **HOW)
                bound = mechanism.vector_rdp_upper(orders, **how)
                assert (exact <= bound * (1 + 1e-12)).all(), mechanism
                if variance == 1000.0:
                    assert exact[0] == pytest.approx(bound[0], rel=2e-2)  # and they are close where noise is large
            # a vector of l1 ones is l1 releases
            ones = l1 * Skellam(1, variance).rdp(orders, **HOW)
            vector = Skellam(1, variance).vector_rdp_upper(orders, l1_sensitivity=l1, l2_sensitivity=math.sqrt(l1))
            assert (ones <= vector).all()
    with pytest.raises(ValueError, match="whole"):
        Skellam(1, 2.0).vector_rdp_upper([2.5], l1_sensitivity=1, l2_sensitivity=1)


def test_the_discrete_gaussians_renyi_curve_is_attained_at_whole_orders_and_below_between():
    mechanism = DiscreteGaussian(1, 0.5)
    whole, between = mechanism.rdp([2.0, 2.5], **HOW)
    assert whole == pytest.approx(2 / (2 * 0.25), rel=1e-14)
    assert between < 2.5 / (2 * 0.25) * (1 - 3e-3)
    high = Skellam(2, 9.0).rdp([9_999.0, 10_000.5, 1e6], **HOW)
    assert (np.diff(high) > 0).all()
    # a Rényi curve's ε is no smaller than the exact one
    orders = rdp.default_orders()
    for each in ALL:
        by_rdp = rdp.epsilon_of(1e-5, orders=orders, rdp=each.rdp(orders, **HOW), conversion="balle2020").epsilon
        assert each.epsilon(1e-5, **HOW).upper <= by_rdp


@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_releases_follow_their_masses(mechanism):
    rng, number = Streams(3, "lattice").numpy(repr(mechanism)), 300_000
    out = mechanism.release(np.full(number, mechanism.max_value), rng=rng)
    assert out.dtype == np.int64
    masses, symbols = np.exp(mechanism.log_masses(mechanism.max_value)), np.array(mechanism.symbols)
    seen = masses * number > 20
    counts = np.array([(out == s).sum() for s in symbols[seen]])
    error = np.sqrt(number * masses[seen] * (1 - masses[seen]))
    assert (np.abs(counts - number * masses[seen]) < 5 * error).all()
    rest = number - counts.sum()
    assert abs(rest - number * masses[~seen].sum()) < 5 * math.sqrt(number * masses[~seen].sum() + 1)
    assert abs(out.mean() - mechanism.max_value) < 5 * math.sqrt(mechanism.variance / number)


def test_sums_of_skellam_noise_are_skellam_noise():
    one, both = Skellam(1, 3.0), Skellam(1, 7.0)
    other = np.exp(Skellam(1, 4.0).log_noise(60))
    whole = [np.exp(h) for h in (one.log_noise(60),)]
    whole = [np.concatenate([h[:0:-1], h]) for h in (whole[0], other)]
    total = np.convolve(*whole)[120:150]
    assert total == pytest.approx(np.exp(both.log_noise(29)), rel=1e-12)


def test_inputs_and_parameters_are_checked():
    for kind in (lambda size: DiscreteGaussian(size, 1.0), lambda size: Skellam(size, 1.0)):
        assert (kind(3).log_masses(7) == kind(3).log_masses(3)).all()
        with pytest.raises(ValueError, match="integers"):
            kind(3).release([0.5], rng=np.random.default_rng(0))
        with pytest.raises(ValueError, match="max_value"):
            kind(0)
        with pytest.raises(NotAvailable, match="infinite alphabet"):
            kind(1).bits_fixed  # noqa: B018
        with pytest.raises(NotAvailable):
            kind(1).epsilon(1e-5, neighbouring="add_remove", sampling="none")
    with pytest.raises(ValueError, match="noise_std"):
        DiscreteGaussian(1, 0.0)
    with pytest.raises(ValueError, match="variance"):
        Skellam(1, -1.0)
    assert DiscreteGaussian.of_variance(0.09, max_value=1).variance == pytest.approx(0.09, rel=1e-10)
    assert DiscreteGaussian(1, 2.0).bits_entropy(0) == pytest.approx(
        math.log2(2 * math.sqrt(2 * math.pi * math.e)), 1e-6
    )


def test_a_ledger_takes_them(tmp_path):
    ledger = Ledger(neighbouring="replace", sampling="none")
    ledger.add(Skellam(1, 20.0), 5)
    ledger.add(DiscreteGaussian(1, 4.0), 5)
    ledger.add(BinomialNoise(1, 80, 0.5), 5)
    spent = ledger.epsilon(1e-5)
    assert 1.0 < spent.lower <= spent.upper < spent.lower + 2e-3
    ledger.save(tmp_path / "ledger.json")
    assert Ledger.load(tmp_path / "ledger.json").epsilon(1e-5) == spent


@pytest.mark.parametrize("trials", [1, 2, 7, 16, 17])
def test_few_trials_drawn_one_by_one_are_binomial(trials):
    rng, number = Streams(8, "count").numpy(str(trials)), 200_000
    probs = np.where(np.arange(number) % 2 == 0, 0.2, 0.7)
    out = draw_binomial(trials, probs, size=number, rng=rng)
    for first, prob in ((0, 0.2), (1, 0.7)):
        masses = np.exp(BinomialMechanism(1.0, trials, 0.0, 1.0).log_masses(2 * prob - 1))
        counts = np.bincount(out[first::2], minlength=trials + 1)
        assert (np.abs(counts - masses * number / 2) < 5 * np.sqrt(masses * number / 2) + 5).all()
    assert (draw_binomial(trials, 1.0, size=5, rng=rng) == trials).all()
    assert (draw_binomial(trials, 0.0, size=5, rng=rng) == 0).all()


def test_the_curve_without_its_window_is_refuted():
    """Outputs beyond the window do count: without them the curve would claim a pure ε."""
    mechanism = DiscreteGaussian(1, 1.0)
    cut = Tradeoff.of_logs(*(mechanism.log_masses(x) for x in (0, 1)))
    assert cut.epsilon(0.0).upper < math.inf
    assert mechanism.curve.epsilon(0.0).upper == math.inf
    assert mechanism.curve.delta(1e6) == pytest.approx(1e-300, rel=1e-9)


@pytest.mark.parametrize("mechanism", ALL[1:2] + ALL[4:5])
def test_an_attack_meets_the_guarantee_from_below(mechanism):
    rng = Streams(9, "attack").numpy(repr(mechanism))
    low, high = (mechanism.release(np.full(40_000, x), rng=rng) for x in (0, mechanism.max_value))
    found = audit.two_samples(high, low, delta=0.05, failure_prob=1e-5)
    exact = mechanism.epsilon(0.05, **HOW).upper
    assert 0.8 * exact < found.epsilon_lower <= exact


@pytest.mark.parametrize("noise", [DiscreteGaussian(1, 0.01), Skellam(1, 1e-320)])
def test_mu_is_infinite_where_the_ends_have_hardly_an_output_in_common(noise):
    assert noise.gdp_mu_upper(neighbouring="replace", sampling="none") == math.inf
