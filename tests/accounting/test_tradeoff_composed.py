"""Curves of compositions: every outcome enumerated, certified lines below, and how far approximations are off."""

import itertools
import math

import numpy as np
import pytest

from privrob.accounting import gdp, pairs
from privrob.accounting import tradeoff_composed as composed
from privrob.accounting.logspace import log_binomial
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import NotAvailable

ALPHA = np.linspace(0, 1, 101)
TERNARY = pairs.DiscretePair.of([0.15, 0.5, 0.35], [0.35, 0.5, 0.15])
LOPSIDED = pairs.DiscretePair.of([0.1, 0.4, 0.5], [0.2, 0.5, 0.3])
OPEN = pairs.DiscretePair.of([0.5, 0.5, 0.0], [0.0, 0.4, 0.6])

APART = pairs.DiscretePair.of([0.6, 0.4, 0.0], [0.0, 0.0, 1.0])


def enumerated(entries):
    """The product of all pmfs, outcome by outcome."""
    both = [np.ones(1), np.ones(1)]
    for pair, count in entries:
        for _, side in itertools.product(range(count), (0, 1)):
            both[side] = np.multiply.outer(both[side], np.exp((pair.log_p, pair.log_q)[side])).ravel()
    return Tradeoff.of(*both)


@pytest.mark.paper("fdp", "Remark 13")
@pytest.mark.parametrize(
    "entries",
    [
        [(TERNARY, 5)],
        [(LOPSIDED, 3), (TERNARY, 2), (OPEN, 0)],
        [(OPEN, 3), (LOPSIDED, 1)],
        [(APART, 2), (TERNARY, 1)],
        [],
    ],
)
def test_counted_outcomes_are_all_outcomes(entries):
    got = composed.exact(entries)
    assert got(ALPHA) == pytest.approx(enumerated(entries)(ALPHA), abs=1e-12)
    start = {id(OPEN): 0.4**3, id(APART): 0.0}.get(id(entries[0][0]) if entries else None, 1.0)
    assert got(0.0) == pytest.approx(start, abs=1e-14)


@pytest.mark.paper("fdp", "Remark 13")
def test_equal_coordinates_need_no_approximation():
    step = pairs.DiscretePair(log_binomial(16, 0.55), log_binomial(16, 0.45))
    together = Tradeoff.of_logs(log_binomial(80, 0.55), log_binomial(80, 0.45))
    assert composed.exact([(step, 5)])(ALPHA) == pytest.approx(together(ALPHA), abs=1e-12)
    assert together(0.05) == pytest.approx(0.441499, abs=5e-7)
    counts = np.array([0.15, 0.5, 0.35]), np.array([0.35, 0.5, 0.15])  # of ternary ones the sum is enough
    sums = [np.ones(1), np.ones(1)]
    for _ in range(10):
        sums = [np.convolve(a, b) for a, b in zip(sums, counts)]
    assert composed.exact([(TERNARY, 10)])(ALPHA) == pytest.approx(Tradeoff.of(*sums)(ALPHA), abs=1e-9)
    assert composed.exact([(TERNARY, 10)])(0.05) == pytest.approx(0.416542, abs=5e-7)
    assert composed.exact([(TERNARY, 10)]).delta(1.0) == pytest.approx(0.454430, abs=5e-7)
    assert composed.exact([(TERNARY, 50)])(0.05) == pytest.approx(0.00669444, abs=5e-9)


@pytest.mark.paper("fdp", "Remark 13")
def test_certified_lines_lie_below_the_exact_curve_and_close_to_it():
    exact = composed.exact([(LOPSIDED, 8)])
    hull = np.minimum(exact(ALPHA), exact.inverse()(ALPHA))
    got = composed.lower([(LOPSIDED, 8)], ALPHA, epsilons=np.linspace(0, 3, 12))
    assert (got <= hull + 1e-12).all()
    assert got == pytest.approx(hull, abs=0.03)
    gaussian = composed.lower([(pairs.gaussian(noise_multiplier=4.0), 9)], ALPHA, epsilons=np.linspace(0, 2.5, 7))
    assert (gaussian <= gdp.tradeoff(ALPHA, gdp_mu=0.75) + 1e-12).all()
    assert gaussian == pytest.approx(gdp.tradeoff(ALPHA, gdp_mu=0.75), abs=0.03)


@pytest.mark.paper("fdp", "Remark 13")
def test_limit_theorems_have_the_values_computed_once_and_are_no_guarantee():
    for entries, want in [
        ([(TERNARY, 50)], (0.00577776, 0.00653134, 0.00642685)),
        ([(TERNARY, 10)], (0.412875, 0.417235, 0.418297)),
        ([(pairs.DiscretePair(log_binomial(16, 0.55), log_binomial(16, 0.45)), 5)], (0.439194, 0.440286, 0.440626)),
    ]:
        got = [float(composed.approximate(entries, 0.05, method=method)) for method in composed.METHODS]
        assert got == pytest.approx(want, rel=2e-6)
    assert composed.clt_mu([(TERNARY, 50)]) == pytest.approx(4.170288, abs=5e-7)
    # two votes of ±0.1: the closed form 2r √(n/(1 − r²))
    vote = pairs.DiscretePair.of([0.45, 0.55], [0.55, 0.45])
    assert composed.clt_mu([(vote, 100)]) == pytest.approx(2 * 0.1 * math.sqrt(100 / 0.99), rel=1e-12)
    # no guarantee: the second-order expansion is above the exact curve
    above = composed.approximate([(TERNARY, 10)], 0.05, method="edgeworth_2")
    assert above > composed.exact([(TERNARY, 10)])(0.05) + 1e-3


@pytest.mark.paper("fdp", "Remark 13")
def test_expansions_close_in_on_a_lopsided_composition():
    """A smooth one: Normals with unlike variances have skewed losses, no lattice. 400 fine atoms stand for them."""
    x = np.linspace(-9, 9, 401)
    p, q = np.exp(-(x**2) / 2), np.exp(-((x - 0.3) ** 2) / 2.6)
    pair = pairs.DiscretePair.of(p / p.sum(), q / q.sum())
    rng = np.random.default_rng(4)
    draws = rng.choice(-(pair.log_p - pair.log_q), p=np.exp(pair.log_p), size=(200_000, 20)).sum(axis=1)
    under_q = rng.choice(-(pair.log_p - pair.log_q), p=np.exp(pair.log_q), size=(200_000, 20)).sum(axis=1)
    threshold = np.quantile(draws, 0.9)
    true = (under_q <= threshold).mean()
    off = [abs(float(composed.approximate([(pair, 20)], 0.1, method=m)) - true) for m in composed.METHODS]
    assert off[2] < 0.01  # five standard errors and the quantile's own
    assert off[2] < off[0]
    assert off[1] < off[0]


def test_what_cannot_be_counted_or_approximated_is_refused():
    with pytest.raises(NotAvailable):
        composed.exact([(pairs.gaussian(noise_multiplier=1.0), 2)])
    with pytest.raises(NotAvailable):
        composed.exact([(pairs.DiscretePair.of(*np.random.default_rng(0).dirichlet(np.ones(30), 2)), 20)])
    with pytest.raises(ValueError, match="finite losses"):
        composed.approximate([(OPEN, 5)], 0.1, method="clt")
    with pytest.raises(ValueError, match="method"):
        composed.approximate([(TERNARY, 5)], 0.1, method="edgeworth")


@pytest.mark.parametrize("entries", [[], [(Tradeoff.of([0.5, 0.5], [0.5, 0.5]).pair, 3)]])
def test_a_composition_that_tells_nothing_has_no_nan(entries):
    assert composed.clt_mu(entries) == 0.0
    for method in composed.METHODS:
        np.testing.assert_allclose(composed.approximate(entries, [0.0, 0.3, 1.0], method=method), [1.0, 0.7, 0.0])
