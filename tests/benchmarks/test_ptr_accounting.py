"""Propose-Test-Release, accounted: 10⁵ sampled steps by each way, beside a plain sampled Gaussian's."""

import pytest

from privrob.accounting import pld, ptr, ptr_bounds, rdp

SETTINGS = ptr.Settings(16.0, 8.0, 4.0, 1e-8)
HOW = {"sample_rate": 0.01, "neighbouring": "add_remove"}
GROUP = "ε of 100,000 steps, q = 0.01"


@pytest.mark.benchmark(group=GROUP)
def test_ptr_by_its_exact_renyi_curve(benchmark):
    def spent():
        orders = rdp.default_orders()
        curve = ptr.renyi(orders, settings=SETTINGS, **HOW)
        return rdp.epsilon_of(1e-5, orders=orders, rdp=100_000 * curve, conversion="balle2020").epsilon

    assert 3.6 < benchmark.pedantic(spent, rounds=3) < 3.63


@pytest.mark.benchmark(group=GROUP)
def test_ptr_by_privacy_loss_distributions(benchmark):
    found = benchmark.pedantic(ptr.composed_epsilon, (100_000, 1e-5), {"settings": SETTINGS, **HOW}, rounds=3)
    assert 3.33 < found.lower <= found.upper < 3.35


@pytest.mark.benchmark(group=GROUP)
def test_ptr_by_the_white_box_bound(benchmark):
    def spent():
        orders = rdp.default_orders()
        curve = ptr_bounds.theorem_4_4(orders, settings=SETTINGS, sample_rate=0.01)
        return rdp.epsilon_of(1e-5, orders=orders, rdp=100_000 * curve, conversion="balle2020").epsilon

    assert 3.9 < benchmark.pedantic(spent, rounds=3) < 4.1


@pytest.mark.benchmark(group=GROUP)
def test_plain_gaussian_by_privacy_loss_distributions(benchmark):
    how = {"noise_multiplier": 16.0, "num_steps": 100_000, "delta": 1e-5}
    assert benchmark.pedantic(pld.sampled_gaussian, (), how | HOW, rounds=3).upper < 3.3
