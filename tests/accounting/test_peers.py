"""Settings at which accountants in use fail, hang, run out of memory or understate: all of them answered, in order.

The intervals were compared with distributions of dp_accounting at fine spacings where those end, and with closed forms
at q = 1; what other libraries say there is in the comments.
"""

import itertools
import math

import numpy as np
import pytest

from privrob.accounting import gdp, pld, rdp, subsample

Q = 256 / 60_000

SETTINGS = [
    # q, noise multiplier, T, δ, about ε (a second library, or the closed form)
    (Q, 0.05, 1_000, 1e-5, 3040.0),  # 24 GiB, > 60 s; by Rényi 160,086
    (Q, 0.3, 10_000, 1e-5, 132.3),  # > 60 s; by Rényi 7976
    (0.5, 0.5, 1_000, 1e-5, 878.0),  # > 60 s; by Rényi 1960 and 2677
    (1.0, 4.0, 10_000, 1e-10, 470.6),  # > 60 s
    (Q, 50.0, 10_000, 1e-5, 0.0228),  # .105 where orders stop at 63; .0256 on a grid of 1e-4
    (Q, 1.1, 10_000, 1e-5, 1.978),  # a central limit: 1.9207, too low
    (Q, 1.1, 10_000, 1e-12, 3.512),  # 3.6207, outside another library's certified ends
    (1e-6, 1.0, 1_000_000, 1e-5, 0.00268),  # a certified lower end below 0; .0235 on the default grid
]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "about"), SETTINGS)
def test_where_others_fail_there_is_a_narrow_interval_and_a_finite_curve(q, sigma, steps, delta, about):
    how = {"sample_rate": q, "noise_multiplier": sigma}
    spent = pld.sampled_gaussian(**how, num_steps=steps, delta=delta, neighbouring="add_remove")
    assert 0 <= spent.lower <= spent.upper < math.inf
    assert spent.width <= max(2e-3 * spent.upper, 2e-5)
    assert spent.upper == pytest.approx(about, rel=6e-3, abs=0)
    orders = rdp.default_orders()
    curve = subsample.sampled_gaussian(orders, **how, neighbouring="add_remove")
    assert np.isfinite(curve).all()
    assert (curve >= 0).all()
    bound = rdp.epsilon_of(delta, orders=orders, rdp=steps * curve, conversion="balle2020").epsilon
    assert bound >= spent.lower


def test_at_rate_one_the_interval_holds_the_closed_form():
    spent = pld.sampled_gaussian(
        sample_rate=1.0, noise_multiplier=4.0, num_steps=10_000, delta=1e-10, neighbouring="add"
    )
    assert spent.upper == pytest.approx(float(gdp.epsilon_of(1e-10, gdp_mu=25.0)), rel=1e-9)


@pytest.mark.parametrize("sigma", [0.3, 0.1, 0.05])
def test_little_noise_is_an_answer_not_an_error(sigma):
    """A central-limit accountant stops at 0.3 with a message about signs."""
    spent = pld.sampled_gaussian(
        sample_rate=Q, noise_multiplier=sigma, num_steps=100, delta=1e-5, neighbouring="add_remove", points=2**18
    )
    assert 1.0 < spent.lower <= spent.upper < math.inf


@pytest.mark.parametrize("order", [1e4, 1e6])
def test_very_large_orders_are_finite(order):
    """NaN in one library; 4126.8 and 413,218 in another."""
    curve = subsample.sampled_gaussian([order], sample_rate=Q, noise_multiplier=1.1, neighbouring="remove")
    assert curve[0] == pytest.approx({1e4: 4126.8, 1e6: 413_218}[order], rel=1e-5, abs=0)


@pytest.mark.parametrize("q", [1e-6, 1e-10, 1e-18])
def test_tiny_rates_stay_positive_and_keep_their_digits(q):
    """Negative in two libraries. At order 2: log(1 + q² (e^{1/σ²} − 1)), whose argument rounds to 1."""
    curve = subsample.sampled_gaussian([2.0], sample_rate=q, noise_multiplier=1.0, neighbouring="remove")
    assert curve[0] == pytest.approx(q**2 * math.expm1(1.0), rel=1e-9, abs=0)


def test_fractional_orders_between_one_and_two_are_not_loose():
    """One library's are up to 2.7 % above quadrature."""
    orders = np.array([1.1, 1.5, 1.9])
    curve = subsample.sampled_gaussian(orders, sample_rate=Q, noise_multiplier=1.1, neighbouring="remove")
    z = np.linspace(-40, 60, 400_001)
    log_q = -(z**2) / 2 - math.log(2 * math.pi) / 2
    ratio = 1 - Q + Q * np.exp(np.minimum(z / 1.1 - 0.5 / 1.1**2, 700))
    exact = [math.log(np.trapezoid(np.exp(log_q + a * np.log(ratio)), z)) / (a - 1) for a in orders]
    assert curve == pytest.approx(exact, rel=1e-8, abs=0)  # the trapezoid rule, of a moment of about 1 + 1e-5


def test_smaller_deltas_never_cost_less_down_to_the_smallest():
    deltas = [10.0**-k for k in (9, 12, 14, 16, 18, 24, 40, 100)]
    how = {"sample_rate": 0.00033, "noise_multiplier": 4.0, "num_steps": 10_000, "neighbouring": "add_remove"}
    spent = [pld.sampled_gaussian(delta=d, **how, points=2**18) for d in deltas]
    assert all(b.upper >= a.lower for a, b in itertools.pairwise(spent))
    assert spent[0].upper == pytest.approx(0.041, abs=2e-3)
    assert 0.05 <= spent[1].lower <= spent[1].upper <= 0.057
    assert 0.05 <= spent[4].upper <= 0.146
