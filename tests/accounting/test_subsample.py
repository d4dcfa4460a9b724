"""The sampled Gaussian's Rényi curve against 50 digits and other accountants; amplification of any mechanism."""

import itertools
import math
import warnings

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privrob.accounting import pld, quadrature, rdp, subsample
from privrob.kinds import NotAvailable

LAWS = settings(derandomize=True, deadline=None, max_examples=40)
Q = 256 / 60000
G0 = np.concatenate([np.arange(11, 110) / 10, np.arange(12.0, 64.0)])  # the orders most libraries ship


def curve(orders, q, sigma, neighbouring="add_remove"):
    got = subsample.sampled_gaussian(orders, sample_rate=q, noise_multiplier=sigma, neighbouring=neighbouring)
    assert got.shape == np.shape(orders)
    assert (got >= 0).all()  # not NaN either
    return got


def kl(q, sigma, neighbouring):
    return subsample.kl_sampled_gaussian(sample_rate=q, noise_multiplier=sigma, neighbouring=neighbouring)


def epsilon(q, sigma, steps, delta, conversion="balle2020", orders=None):
    orders = rdp.default_orders() if orders is None else orders
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return rdp.epsilon_of(delta, orders=orders, rdp=steps * curve(orders, q, sigma), conversion=conversion).epsilon


# ---------------------------------------------------------------------------------------------------- against 50 digits

# order, q, σ, remove, add: mpmath 1.3.0 with 60 digits (40 from order 1e5 on), adaptive quadrature of
# φ(z) (L^p − 1 − p(L − 1)), p = order or 1 − order, between breakpoints at the peaks and around the bend of log L
HARD = [
    (2.0, 0.3, 0.5, 1.76195872239902, 0.203653069241533),
    (200.0, 0.01, 1.0, 95.3716882552884, 0.00450938719686657),
    (1.5, 1e-06, 1, 1.28870963002321e-12, 1.28870266484568e-12),
    (1.00000001, 0.00105, 1.0, 9.4454801368493e-7, 9.41924977565936e-7),
    (2.5, 1e-12, 0.01, 12453.9482981401, 1.0000000000005e-12),
    (1.0001, 1e-12, 0.01, 6.44154184110123e-9, 1.0000000000005e-12),
    (1000000.5, 0.01, 1.0, 499995.644825209, 0.0100193712111278),
    (1234.5, 0.5, 0.01, 6172499.30629088, 0.693147180559945),
    (300.5, 0.001, 10.0, 1.51459659274541e-6, 1.50546983269562e-6),
    (4001.5, 0.3, 30.0, 1.04760384659591, 0.10907972885912),
    (2.5, 0.5, 10000.0, 3.125000015625e-9, 3.124999984375e-9),
    (1.001, 0.999999, 0.1, 50.0499371318746, 13.8150402819358),
    (1.0001, 0.999999999999, 0.12, 34.7256944443825, 26.6619114215278),
    (100000.5, 0.999999999999, 0.12, 3472239.58333333, 27.631030391171),
    (1000000.5, 6.914400106940203e-13, 133.0, 0.266140240135651, 1.35141342478778e-23),
    (1000000.5, 0.1, 499.5, 0.0357765421457311, 0.0150347468493024),
    (64.5, 0.00427, 1.1, 21.1108276228129, 0.000537064048484754),
    (1.37, 0.3, 0.3, 3.65641017581096, 0.297333159653299),
    (50.5, 0.01, 2.0, 1.6147237520751, 0.000624010524237903),
]


@pytest.mark.paper("dplearn", "Amplification by Sub-sampling for moments")
@pytest.mark.parametrize(("order", "q", "sigma", "remove", "add"), HARD)
def test_the_hardest_corners_have_thirteen_digits(order, q, sigma, remove, add):
    # the promise is 1e-10; seen is 1e-14, of which half is the table's last digit
    assert curve([order], q, sigma, "remove")[0] == pytest.approx(remove, rel=5e-14, abs=0)
    assert curve([order], q, sigma, "add")[0] == pytest.approx(add, rel=5e-14, abs=0)


def trapezoid(order, q, sigma, direction):
    """The divergence by the trapezoidal rule in 40 digits, which converges geometrically here."""
    with mpmath.workdps(40):
        a, q, mu = mpmath.mpf(order), mpmath.mpf(q), 1 / mpmath.mpf(sigma)
        power = a if direction == "remove" else 1 - a
        step = min(mpmath.mpf(1) / 4, mpmath.mpf(sigma) / 5)
        reach = [-12, 12 + max(power, 1) * mu] if power > 0 else [-12 + power * mu, 12 + mu]
        total = mpmath.mpf(0)
        for i in range(int(reach[0] / step), int(reach[1] / step) + 1):
            z = i * step
            ratio = 1 + q * mpmath.expm1(mu * z - mu * mu / 2)
            total += mpmath.exp(-z * z / 2) * (ratio**power - 1 - power * (ratio - 1))
        return float(mpmath.log1p(total * step / mpmath.sqrt(2 * mpmath.pi)) / (a - 1))


@settings(derandomize=True, deadline=None, max_examples=12)
@given(st.floats(-3, 1.3), st.floats(-10, -0.01), st.floats(-0.4, 2), st.sampled_from(["remove", "add"]))
def test_any_order_agrees_with_a_second_quadrature(log_excess, log_q, log_sigma, direction):
    order, q, sigma = 1 + 10.0**log_excess, 10.0**log_q, 10.0**log_sigma
    want = trapezoid(order, q, sigma, direction)
    assert curve([order], q, sigma, direction)[0] == pytest.approx(want, rel=1e-11, abs=0)


@pytest.mark.parametrize(
    ("order", "q", "sigma"), [(2, 1e-12, 0.01), (17, 0.3, 2.0), (195, 1.5e-10, 88.0), (1474, 0.9, 40.0)]
)
def test_whole_orders_are_the_binomial_sum(order, q, sigma):
    with mpmath.workdps(50):
        rate, mu = mpmath.mpf(q), 1 / mpmath.mpf(sigma)
        terms = (
            mpmath.binomial(order, k) * rate**k * (1 - rate) ** (order - k) * mpmath.expm1(k * (k - 1) * mu**2 / 2)
            for k in range(2, order + 1)
        )
        want = float(mpmath.log1p(mpmath.fsum(terms)) / (order - 1))
    assert curve([order], q, sigma, "remove")[0] == pytest.approx(
        want, rel=2e-12, abs=0
    )  # log-gamma costs 4e-13 at 128


def test_the_sum_and_the_integral_are_one_curve(monkeypatch):
    whole = np.arange(2.0, 129)
    for q, sigma in [(1e-9, 0.7), (Q, 1.1), (0.3, 50.0), (0.999, 0.05), (1e-3, 1e3)]:
        sums = curve(whole, q, sigma, "remove")
        monkeypatch.setattr(subsample, "_TERMS_GAUSSIAN", 0)
        assert curve(whole, q, sigma, "remove") == pytest.approx(sums, rel=2e-12, abs=0)
        monkeypatch.undo()


def test_known_moments():
    assert curve([8], 0.01, 1)[0] == pytest.approx(8.93643907606e-4, rel=1e-11, abs=0)
    assert curve([8], 0.02, 2)[0] == pytest.approx(4.71820443328e-4, rel=1e-11, abs=0)
    mixed = rdp.compose([curve([8], 0.01, 1), curve([8], 0.02, 2)], [100, 50])
    assert mixed[0] == pytest.approx(0.112955412927, rel=1e-11, abs=0)
    assert curve([1e4, 1e6], Q, 1.1) == pytest.approx([4126.8, 413218.1], rel=1e-5)  # NaN in a peer
    assert curve([2], 1e-10, 1)[0] == pytest.approx(1e-20 * math.expm1(1), rel=1e-12, abs=0)  # negative in a peer
    assert curve([2], 1e-18, 1)[0] == pytest.approx(1e-36 * math.expm1(1), rel=1e-12, abs=0)  # negative in another
    assert curve([1.0001], Q, 1.1)[0] == pytest.approx(1.161e-5, rel=1e-4, abs=0)  # 1.192e-5 in a peer


# ---------------------------------------------------------------------------------------------------------- exact cases


def test_a_rate_of_one_is_the_plain_gaussian_bit_for_bit():
    orders = rdp.default_orders()
    for neighbouring in ("add", "remove", "add_remove"):
        assert (curve(orders, 1, 2.0, neighbouring) == rdp.gaussian(orders, noise_multiplier=2.0)).all()
        assert kl(1, 2.0, neighbouring) == 0.125
    assert curve([10.0], 1, 2)[0] == 1.25


def test_no_sample_or_all_noise_loses_nothing_and_no_noise_everything():
    orders = np.array([1.5, 2.0, 1e5])
    for neighbouring in ("add", "remove", "add_remove"):
        assert (curve(orders, 0, 1.0, neighbouring) == 0).all()
        assert (curve(orders, 0, 0.0, neighbouring) == 0).all()
        assert (curve(orders, 0.5, math.inf, neighbouring) == 0).all()
        assert kl(0, 0, neighbouring) == kl(0.5, math.inf, neighbouring) == 0
    assert (curve(orders, 0.5, 0, "remove") == math.inf).all()
    assert kl(0.5, 0, "remove") == math.inf
    assert curve(orders, 0.5, 0, "add") == pytest.approx(math.log(2))  # the output says that the record is not there
    assert kl(0.5, 0, "add") == pytest.approx(math.log(2))
    assert (curve(orders, 1, 0, "add") == math.inf).all()


def test_a_whole_order_is_the_same_however_it_is_written():
    assert curve([2], 0.01, 1)[0] == curve([2.0], 0.01, 1)[0] == curve(np.array([3.0, 2.0]), 0.01, 1)[1]


def test_order_one_has_its_anchors_and_is_the_limit():
    for q, want in [(0.01, (8.381220765e-5, 8.188976914e-5)), (0.1, (7.257730486e-3, 6.386136339e-3))]:
        for direction, value in zip(("remove", "add"), want):
            assert kl(q, 1, direction) == pytest.approx(value, rel=1e-9, abs=0)  # as printed
            assert curve([1 + 1e-10], q, 1, direction)[0] == pytest.approx(kl(q, 1, direction), rel=1e-9, abs=0)
        assert kl(q, 1, "add_remove") == kl(q, 1, "remove")
    with pytest.raises(ValueError, match="order 1 is the KL divergence"):
        curve([1, 2], 0.1, 1)


def test_extremes_are_finite_or_infinite_but_never_nan_and_rise_with_the_order():
    orders = np.array([1 + 2.3e-16, 1 + 1e-9, 1.5, 2, 64, 127.5, 128, 129, 1e6, 1e9, 1e15, 1e100, 1e300])
    rates, noises = [5e-324, 1e-300, 1e-16, 0.3, 1 - 1e-16], [5e-324, 1e-150, 1e-5, 0.01, 1, 1e4, 1e150, 1e308]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for q, sigma, direction in itertools.product(rates, noises, ("remove", "add")):
            got = curve(orders, q, sigma, direction)
            got = got[np.isfinite(got)]
            assert (np.diff(got) >= -1e-9 * got[1:]).all()
            assert 0 <= kl(q, sigma, direction) <= curve(orders[:1], q, sigma, direction)[0] * (1 + 1e-9)


@LAWS
@given(st.floats(-12, 0), st.booleans(), st.floats(-2, 4), st.lists(st.floats(-8, 6), min_size=3, max_size=6))
def test_the_curve_obeys_its_laws(log_q, near_one, log_sigma, log_orders):
    q, sigma, orders = 10.0**log_q, 10.0**log_sigma, 1 + 10.0 ** np.sort(log_orders)
    q = 1 - q if near_one else q
    slack = 1 + 1e-10  # the promise
    remove, add = curve(orders, q, sigma, "remove"), curve(orders, q, sigma, "add")
    assert (np.diff(remove) >= -1e-10 * remove[1:]).all()
    assert (np.diff(add) >= -1e-10 * add[1:]).all()
    assert (add <= remove * slack).all()  # Mironov, Talwar and Zhang 2019, Theorem 5
    assert (curve(orders, q, sigma) == np.maximum(remove, add)).all() or (add > remove).any()
    assert (remove <= rdp.gaussian(orders, noise_multiplier=sigma)).all()
    for direction, here in (("remove", remove), ("add", add)):
        assert (curve(orders, q, sigma * 1.3, direction) <= here * slack).all()
        assert (curve(orders, q * 0.7, sigma, direction) <= here * slack).all()
        assert kl(q, sigma, direction) <= here[0] * slack


def test_the_lectures_amplification_of_moments_is_refuted_for_small_rates():
    # printed: ln E[L_q^λ] ≤ q²/(1 − q) ln E[L^λ] + O(q³); at σ = 1, λ = 2 the right-hand side is q² to leading order
    for q in (1e-3, 1e-5):
        moment = curve([2], q, 1, "remove")[0]
        assert moment > 1.7 * q**2 / (1 - q)
        assert moment < 2 * q**2 / (1 - q)  # twice the printed term is enough here (Abadi et al. 2016, Lemma 3)


# ---------------------------------------------------------------------------------------------------- other accountants


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [(Q, 1.1, 1000, 1e-5), (0.01, 4, 10000, 1e-5), (0.2, 1, 10, 1e-9), (0.9, 3, 5, 1e-3)],
)
def test_epsilon_agrees_with_a_second_library_on_whole_orders(q, sigma, steps, delta):
    orders = list(range(2, 80))
    event = PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
    want = RdpAccountant(orders).compose(event, steps).get_epsilon(delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best of these orders may be the first
        got = rdp.epsilon_of(delta, orders=orders, rdp=steps * curve(orders, q, sigma), conversion="balle2020").epsilon
    assert got == pytest.approx(want, rel=1e-9, abs=0)
    fractions = [1.0001, 1.1, 1.5, 2.5]
    loose = RdpAccountant(fractions).compose(event)
    assert (curve(fractions, q, sigma) <= np.array(loose._rdp) * (1 + 1e-9)).all()  # an upper bound there


KNOWN = [  # q, σ, T: classic, improved and a privacy-loss distribution at δ = 1e-5, as known from other libraries
    (0.01, 4, 10_000, 1.2586, 1.0355, 0.947),
    (0.01, 4, 40_000, 2.5737, 2.2097, 2.033),
    (1 / 60, 1.3, 900, 2.4610, 2.0847, 1.892),
    (0.004, 1.3, 3_750, 1.1597, 0.9220, 0.834),
    (0.004, 0.7, 11_250, 6.8596, 6.0937, 5.431),
    (0.004, 1.1, 15_000, 2.9050, 2.5029, 2.296),
    (0.02048, 1.54, 1_464, 3.0267, 2.6083, 2.386),
    (0.2, 1, 10, 6.574, 5.756, 4.984),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "classic", "improved", "exact"), KNOWN)
def test_known_epsilons_come_out_again(q, sigma, steps, classic, improved, exact):
    got = [epsilon(q, sigma, steps, 1e-5, conversion) for conversion in ("classic", "balle2020", "optimal")]
    assert got[0] == pytest.approx(classic, rel=3e-3, abs=0)  # G0 and the default grid differ by so much
    assert got[1] == pytest.approx(improved, rel=3e-3, abs=0)
    assert got[0] >= got[1] >= got[2] >= exact - 5e-4  # printed to three decimals
    for conversion, printed in (("classic", classic), ("balle2020", improved)):
        same_orders = epsilon(q, sigma, steps, 1e-5, conversion, G0)
        assert printed * (1 - 5e-4) <= same_orders <= printed + 1e-4  # fractional orders elsewhere are a little loose


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "worst"),
    [
        (Q, 0.05, 1_000, 1e-5, 1.13),  # peers: 53 times
        (Q, 0.3, 10_000, 1e-5, 1.10),  # 1.09 and 60 times
        (0.5, 0.5, 1_000, 1e-5, 1.04),  # 1.03, 2.2 and 3.0 times
        (1, 4, 10_000, 1e-10, 1.03),
        (Q, 50, 10_000, 1e-5, 1.15),  # 4.6 times
        (Q, 1000, 10_000, 1e-5, 1.26),  # 150 and 5 times
        (0.2, 1, 500, 1e-5, 1.08),
        (0.00033, 4, 10_000, 1e-9, 1.61),
        (0.00033, 4, 10_000, 1.1e-18, 2.21),
    ],
)
def test_epsilon_is_above_the_exact_one_and_not_far(q, sigma, steps, delta, worst):
    exact = pld.sampled_gaussian(
        sample_rate=q,
        noise_multiplier=sigma,
        num_steps=steps,
        delta=delta,
        neighbouring="add_remove",
        points=2**17,
    )
    for conversion in ("balle2020", "optimal"):
        assert exact.lower <= epsilon(q, sigma, steps, delta, conversion) <= worst * exact.upper


def test_epsilon_never_falls_while_delta_does():
    orders, deltas = rdp.default_orders(), 10.0 ** -np.arange(9, 18.01, 0.25)
    steps = 10_000 * curve(orders, 0.00033, 4)
    for conversion in rdp.CONVERSIONS:
        got = [rdp.epsilon_of(d, orders=orders, rdp=steps, conversion=conversion).epsilon for d in deltas]
        assert (np.diff(got) > 0).all()


def test_orders_that_stop_at_63_cost_much_and_say_so():
    orders = G0[G0 <= 63]
    with pytest.warns(rdp.OrderEdgeWarning, match="63"):
        got = rdp.epsilon_of(
            1.1e-18, orders=orders, rdp=10_000 * curve(orders, 0.00033, 4), conversion="balle2020"
        ).epsilon
    assert got == pytest.approx(0.586, abs=1e-3)


@pytest.mark.parametrize(("delta", "exact"), [(1e-3, 0.0), (1e-4, 0.0024043), (1e-5, 0.0097762)])
def test_an_order_barely_above_1_hides_no_loss(delta, exact):
    for conversion in rdp.CONVERSIONS:
        plain = epsilon(0.00105, 1, 1, delta, conversion, G0)
        wide = epsilon(0.00105, 1, 1, delta, conversion, np.append(1 + 1e-8, G0))
        assert exact <= wide <= plain
        assert (wide == 0) == (exact == 0)


def test_the_optimal_conversion_is_what_a_tiny_loss_needs():
    # a million steps at a rate of 1e-6: certified 0.00268, and 0.0273 against 0.291 from the same curve
    assert 0.00268 <= epsilon(1e-6, 1, 10**6, 1e-5, "optimal") <= 0.0274
    assert epsilon(1e-6, 1, 10**6, 1e-5, "balle2020") == pytest.approx(0.291, abs=1e-3)


def test_tiny_losses_give_zero_and_not_less():
    for conversion in rdp.CONVERSIONS:
        for q, sigma in [(0.001, 1000), (1e-10, 1)]:
            got = epsilon(q, sigma, 1, 1e-5, conversion)
            assert got == 0
            assert math.copysign(1, got) == 1


# -------------------------------------------------------------------------------------------------------- any mechanism


def amplified(orders, q, rdp_at, neighbouring):
    return subsample.poisson_amplified(orders, sample_rate=q, rdp_at=rdp_at, neighbouring=neighbouring)


def test_the_general_bound_is_exact_for_a_gaussian_without_its_record():
    orders = np.arange(2.0, 100)
    for q, sigma in [(0.01, 1.0), (0.3, 4.0), (1e-6, 0.5)]:
        got = amplified(orders, q, lambda k, s=sigma: k / (2 * s**2), "remove")
        assert got == pytest.approx(curve(orders, q, sigma, "remove"), rel=1e-12, abs=0)


def divergence(p, q, orders):
    moments = np.sum(p[:, None] ** orders * q[:, None] ** (1 - orders), axis=0)
    return np.log(moments) / (orders - 1)


@pytest.mark.paper("ptr", "Figure 2")
def test_the_general_bound_holds_for_random_pairs_in_both_directions():
    rng, orders = np.random.default_rng(3), np.array([1.2, 2.0, 2.6, 3.0, 7.5, 20.0])
    for _ in range(60):
        with_, without = rng.dirichlet(np.full(5, rng.choice([0.3, 1, 5])), size=2) * 0.999 + 0.0002
        rate = rng.choice([1e-3, 0.05, 0.5, 0.95])
        mixed = (1 - rate) * without + rate * with_

        def either(k, p=with_, q=without):
            return float(max(divergence(p, q, np.array([k])), divergence(q, p, np.array([k])))[0])

        def removed(k, p=with_, q=without):
            return float(divergence(p, q, np.array([k]))[0])

        exact = divergence(mixed, without, orders)
        bound = amplified(orders, rate, removed, "remove")
        assert (exact <= bound * (1 + 1e-10) + 1e-13).all()  # the plain sums above cancel
        assert bound[[1, 3, 5]] == pytest.approx(exact[[1, 3, 5]], rel=1e-8, abs=1e-12)
        both = amplified(orders, rate, either, "add_remove")
        assert (np.maximum(exact, divergence(without, mixed, orders)) <= both * (1 + 1e-10) + 1e-13).all()
        assert (amplified(orders, rate, either, "add") == both).all()
        whole = np.array([2.0, 3.0, 20.0])
        assert (amplified(whole, rate, either, "add_remove") <= [either(k) * (1 + 1e-12) for k in whole]).all()


def test_the_general_bound_is_the_published_one_where_that_is_the_smaller():
    q, a = 0.01, 5

    def rho(k):
        return k / 50

    terms = [math.comb(a, k) * (1 - q) ** (a - k) * q**k * math.exp((k - 1) * rho(k)) for k in range(2, a + 1)]
    printed = math.log((1 - q) ** (a - 1) * (a * q - q + 1) + terms[0] + 3 * sum(terms[1:])) / (a - 1)
    assert amplified([a], q, rho, "add_remove")[0] == pytest.approx(printed, rel=1e-10, abs=0)  # its 1 + x cancels


def test_the_general_bound_has_its_limits():
    def rho(k):
        assert type(k) is int
        return math.inf if k > 8 else k / 8

    orders = np.array([1.5, 2.0, 3.25, 8.0, 8.5, 9.0, 5000.0])
    assert (amplified(orders, 0, rho, "add_remove") == 0).all()
    for neighbouring in ("remove", "add_remove"):
        plain = amplified(orders, 1, rho, neighbouring)
        assert plain[[1, 3]] == pytest.approx([0.25, 1.0], rel=1e-15, abs=0)
        assert (plain[4:] == math.inf).all()
        half = amplified(orders, 0.5, rho, neighbouring)
        assert (half[:4] < plain[:4]).all()
        assert (half[4:] == math.inf).all()
        assert (amplified([2.0, 50.0, 2000.0], 0.5, lambda k: 0.0, neighbouring) == 0).all()
    far = amplified([1024.0, 1024.5, 1025.0, 1e6], 0.01, lambda k: k * 1e-3, "remove")
    assert (far <= np.array([1024.0, 1025.0, 1025.0, 1e6]) * 1e-3).all()
    assert (far >= curve([1024.0, 1024.5, 1025.0, 1e6], 0.01, math.sqrt(500), "remove") * (1 - 1e-10)).all()


def test_a_curve_below_zero_is_named():
    with pytest.raises(ValueError, match=r"rdp_at\(2\)"):
        amplified([2.0], 0.1, lambda k: -1.0, "remove")
    with pytest.raises(ValueError, match=r"rdp_at\(3\)"):
        amplified([2.5], 0.1, lambda k: math.nan if k == 3 else 1.0, "remove")


def test_amplified_dp_is_its_formula_and_randomised_response_meets_it():
    assert subsample.amplified_dp(1.0, 1e-5, sample_rate=0.1) == pytest.approx((0.158565, 1e-6), abs=5e-7)
    for epsilon_, q in itertools.product([0.0, 1e-9, 0.3, 1.0, 5.0, 800.0, 1e300], [1e-12, 0.01, 0.5, 1 - 1e-12]):
        with mpmath.workdps(600):
            want = float(mpmath.log1p(q * mpmath.expm1(min(epsilon_, 800)))) + max(0.0, epsilon_ - 800)
        got, _ = subsample.amplified_dp(epsilon_, 0.0, sample_rate=q)
        assert got == pytest.approx(want, rel=1e-14, abs=0)
        assert got <= epsilon_
    truth = math.exp(2) / (1 + math.exp(2))
    mixed = 0.3 * truth + 0.7 * (1 - truth)  # x in the sample with 0.3, else the other answer is the likely one
    assert math.log(mixed / (1 - truth)) == pytest.approx(
        subsample.amplified_dp(2.0, 0, sample_rate=0.3)[0], rel=1e-14, abs=0
    )
    assert subsample.amplified_dp(0.5, 0.2, sample_rate=0.1)[1] == pytest.approx(0.02, rel=1e-15, abs=0)
    assert subsample.amplified_dp(3.0, 0.5, sample_rate=1) == (3.0, 0.5)
    assert subsample.amplified_dp(math.inf, 0.5, sample_rate=0) == (0.0, 0.0)
    assert subsample.amplified_dp(math.inf, 0.5, sample_rate=0.1)[0] == math.inf


# ------------------------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize("rate", [1.5, -0.1, math.nan, 128 / 100])
def test_a_rate_outside_is_named_with_the_way_out(rate):
    for call in (
        lambda: curve([2], rate, 1),
        lambda: kl(rate, 1, "add"),
        lambda: amplified([2], rate, lambda k: 1.0, "add"),
        lambda: subsample.amplified_dp(1.0, 0.1, sample_rate=rate),
    ):
        with pytest.raises(ValueError, match=r"sample_rate must lie in \[0, 1\], got .*batch_size / num_records"):
            call()


def test_other_arguments_outside_are_named():
    with pytest.raises(ValueError, match="noise_multiplier"):
        curve([2], 0.1, -1)
    with pytest.raises(ValueError, match="neighbouring must be one of"):
        curve([2], 0.1, 1, "either")
    with pytest.raises(TypeError, match="neighbouring"):
        subsample.sampled_gaussian([2], sample_rate=0.1, noise_multiplier=1)
    for call in (
        lambda: curve([2], 0.1, 1, "replace"),
        lambda: kl(0.1, 1, "replace"),
        lambda: amplified([2], 0.1, lambda k: 1.0, "replace"),
    ):
        with pytest.raises(NotAvailable, match="'add', 'remove' and 'add_remove'"):
            call()


def test_an_integral_that_does_not_settle_falls_back_to_the_curve_without_sampling(monkeypatch):
    monkeypatch.setattr(quadrature, "_HALVINGS", 2)
    monkeypatch.setattr(subsample, "AGREE", -1.0)
    with pytest.warns(UserWarning, match="did not settle"):
        assert curve([2.5], 0.5, 0.1, "remove")[0] == rdp.gaussian([2.5], noise_multiplier=0.1)[0]
