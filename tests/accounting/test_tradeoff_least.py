"""The least of several trade-off functions: against a convex hull of all knots, and by what a hull must keep."""

import numpy as np
import pytest

from privrob.accounting import tradeoff_least
from privrob.accounting.logspace import log_binomial
from privrob.accounting.tradeoff import Tradeoff

ALPHA = np.linspace(0, 1, 401)


def lower_hull(points, alpha):
    """The lower convex hull of points by the monotone chain, read at α."""
    chain = []
    for x, y in sorted(map(tuple, points)):
        if chain and x == chain[-1][0]:
            continue
        while len(chain) > 1:
            (x1, y1), (x2, y2) = chain[-2:]
            if (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1) > 0:
                break
            chain.pop()
        chain.append((x, y))
    x, y = np.array(chain).T
    return np.interp(alpha, x, np.minimum.accumulate(y))


def drawn(rng):
    """One to four curves, some with steep or level ends, some with their inverse."""
    curves = []
    for _ in range(int(rng.integers(1, 4))):
        p, q = (rng.dirichlet(np.full(int(n), 0.7)) for n in [rng.integers(1, 7)] * 2)
        if p.size > 2 and rng.random() < 0.4:
            p[0] = q[1] = 0.0
            p, q = p / p.sum(), q / q.sum()
        curves.append(Tradeoff.of(p, q))
        if rng.random() < 0.5:
            curves.append(curves[-1].inverse())
    return curves


def noise(trials, prob, shift):
    masses, nothing = np.exp(log_binomial(trials, prob)), np.zeros(shift)
    return Tradeoff.of(np.append(masses, nothing), np.append(nothing, masses))


@pytest.mark.paper("fdp", "Theorem 2")
def test_the_minimum_is_the_convex_hull_of_all_knots():
    rng = np.random.default_rng(5)
    for _ in range(200):
        curves = drawn(rng)
        least = tradeoff_least.minimum(curves)
        points = np.concatenate([np.transpose(curve.knots) for curve in curves])
        assert least(ALPHA) == pytest.approx(lower_hull(points, ALPHA), abs=1e-13)
        assert (least(ALPHA) <= tradeoff_least.pointwise(curves, ALPHA) + 1e-14).all()
        assert tradeoff_least.pointwise(curves, 0.3) == min(curve(0.3) for curve in curves)


def test_the_hull_keeps_delta_and_mu():
    rng = np.random.default_rng(6)
    epsilons = np.append(np.linspace(0, 4, 25), np.inf)
    for _ in range(200):
        curves = drawn(rng)
        least = tradeoff_least.minimum(curves)
        deltas = [np.maximum(curve.delta(epsilons), curve.inverse().delta(epsilons)) for curve in curves]
        assert least.delta(epsilons) == pytest.approx(np.max(deltas, axis=0), abs=1e-13)
        want = max(curve.gdp_mu_upper for curve in curves)
        assert least.gdp_mu_upper == pytest.approx(want, rel=1e-8)  # as f is at least G_μ, the hull of a convex G_μ


@pytest.mark.paper("fdp", "Theorem 2")
def test_the_printed_minimum_of_asymmetric_noise_is_not_convex():
    """M = 6, p = 0.3, l = 2: Definition 3 wants a convex f."""
    curve = noise(6, 0.3, 2)
    both = [curve, curve.inverse()]
    alpha = np.array([0.2025 - 0.02, 0.2025, 0.2025 + 0.02])
    printed = tradeoff_least.pointwise(both, np.linspace(0, 1, 2001))
    assert np.diff(printed, 2).min() < -1e-4
    hull = tradeoff_least.symmetrised(curve)
    assert tradeoff_least.pointwise(both, alpha[1]) == pytest.approx(0.203740, abs=5e-7)
    assert hull(alpha[1]) == pytest.approx(0.170839, abs=5e-7)
    assert hull.inverse()(ALPHA) == pytest.approx(hull(ALPHA), abs=1e-13)  # symmetric


def test_a_curve_that_is_nowhere_above_comes_back_as_it_was():
    low, high = Tradeoff.of([0.8, 0.2], [0.2, 0.8]), Tradeoff.of([0.6, 0.4], [0.4, 0.6])
    assert tradeoff_least.minimum([low, high]) is low
    assert tradeoff_least.minimum([high, low]) is low
    assert tradeoff_least.minimum([high]) is high
    one_sided = Tradeoff.of([0.5, 0.5, 0.0], [0.0, 0.7, 0.3])
    assert tradeoff_least.minimum([one_sided, one_sided]) is one_sided


def test_each_curve_can_lead_at_one_end():
    """One rules an input out at the start, its inverse at the end: one has less α, the other less β, neither both."""
    curve = Tradeoff.of([1.0, 0.0], [0.7, 0.3])
    hull = tradeoff_least.symmetrised(curve)
    assert hull([0.0, 0.35, 0.7, 0.8]) == pytest.approx([0.7, 0.35, 0.0, 0.0], abs=1e-14)
    assert tradeoff_least.pointwise([curve, curve.inverse()], 0.35) == pytest.approx(0.455, abs=1e-14)
    assert hull.delta(0.0) == pytest.approx(0.3, abs=1e-14)


def test_long_curves_keep_their_digits_and_add_no_pieces_of_rounding():
    trials = 10**5
    for low, high in [(0.3, 0.3005), (0.499, 0.501)]:
        curve = Tradeoff.of_logs(log_binomial(trials, low), log_binomial(trials, high))
        hull = tradeoff_least.symmetrised(curve)
        assert hull.gdp_mu_upper == pytest.approx(curve.gdp_mu_upper, rel=1e-9)  # a stray piece would make it infinite
        epsilons = np.linspace(0, 3, 20)
        want = np.maximum(curve.delta(epsilons), curve.inverse().delta(epsilons))
        assert hull.delta(epsilons) == pytest.approx(want, rel=1e-9)
        gap = tradeoff_least.pointwise([curve, curve.inverse()], ALPHA) - hull(ALPHA)
        assert (gap > -1e-13).all()
        assert gap.max() < (1e-4 if low == 0.3 else 1e-12)


def test_what_is_no_curve_is_refused():
    with pytest.raises(ValueError, match="curves"):
        tradeoff_least.minimum([])
    with pytest.raises(ValueError, match="curves"):
        tradeoff_least.pointwise([0.3], 0.2)
