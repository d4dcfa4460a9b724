"""The proofs' own integrals against the exact values, and a mistake in either that would be seen."""

import math

import pytest

from privrob.accounting import ptr, ptr_bounds, ptr_quadrature
from privrob.accounting.ptr import Settings

SETTINGS = Settings.of(noise_multiplier=1.7, sensitivity_bound=0.4, scale_ratio=1.3, test_failure=0.02)
HOW = {"settings": SETTINGS, "neighbouring": "remove"}


@pytest.mark.paper("ptr", "Theorem 4.3")
@pytest.mark.parametrize("case", ptr.CASES)
@pytest.mark.parametrize("order", [1.2, 3.0, 9.5])
def test_the_mechanism_integrated_has_the_exact_divergence(order, case):
    got = ptr_quadrature.of_mechanism(order, settings=SETTINGS, case=case)
    assert got == pytest.approx(ptr.renyi([order], sample_rate=1.0, case=case, **HOW)[0], rel=1e-9)


def test_neighbours_beyond_the_worst_are_seen_to_exceed_it():
    # a robust statistic that moves by all although a margin is 1: what Algorithm 1 excludes
    found = ptr_quadrature.of_neighbours(3.0, settings=SETTINGS, margins=(6, 7), reach=1.0)
    assert found > ptr.renyi([3.0], sample_rate=1.0, **HOW)[0] * 1.1


@pytest.mark.paper("ptr", "Theorem 4.4")
@pytest.mark.parametrize(("order", "rate"), [(1.5, 0.01), (4.0, 0.3)])
def test_the_nested_integral_is_the_single_one(order, rate):
    got = ptr_quadrature.nested(order, settings=SETTINGS, sample_rate=rate)
    assert got == pytest.approx(ptr.renyi([order], sample_rate=rate, case="bounded", **HOW)[0], rel=1e-8)


@pytest.mark.paper("ptr", "A.1.1, Equation 37")
def test_the_hidden_variant_lies_between_a_plain_gaussian_and_the_outcome():
    top = ptr_bounds.outcome_only([3.0], settings=SETTINGS, case="bounded")[0]
    for margin in (0, 2, 4, 9):
        found = ptr_quadrature.hidden(3.0, settings=SETTINGS, margin=margin, offset=1.0, sign=1)
        assert 0 < found <= top * (1 + 1e-9)
    assert ptr_quadrature.hidden(3.0, settings=SETTINGS, margin=60, offset=1.0, sign=1) == pytest.approx(
        3 / (2 * 1.7**2), rel=1e-6
    )
    assert math.isfinite(top)
