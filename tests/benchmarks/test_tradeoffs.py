"""Trade-off functions of finite pairs: sorted once, beside a linear programme a point and a sum a threshold."""

import numpy as np
import pytest
from scipy.optimize import linprog

from privrob.accounting.logspace import log_binomial
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import Streams

MILLION = 10**6


def masses(count):
    return Streams(0, "bench").numpy("masses").dirichlet(np.ones(count), 2)


def test_beside_a_linear_programme(compare):
    """The best test is a linear programme in as many unknowns as there are outcomes."""
    (p, q), alpha = masses(200), np.linspace(0.05, 0.95, 20)

    def programmes():
        solved = [linprog(-q, A_ub=[p], b_ub=[a], bounds=(0, 1)) for a in alpha]
        return np.array([1 + one.fun for one in solved])

    path = "trade-off function of 200 outcomes at 20 points"
    found = compare(path, lambda: Tradeoff.of(p, q)(alpha), peers={"scipy's linprog, a point each": programmes})
    np.testing.assert_allclose(found["ours"], found["scipy's linprog, a point each"], atol=1e-8)


def test_beside_all_thresholds(compare):
    (p, q), alpha = masses(2000), np.linspace(0, 1, 1000)

    def thresholds():
        ratio, points = q / p, [(0.0, 1.0)]
        for level in np.unique(ratio)[::-1]:
            taken = ratio >= level
            points.append((p[taken].sum(), 1 - q[taken].sum()))
        return np.interp(alpha, *np.transpose(points))

    path = "trade-off function of 2,000 outcomes at 1,000 points"
    found = compare(path, lambda: Tradeoff.of(p, q)(alpha), peers={"a sum for each threshold": thresholds})
    np.testing.assert_allclose(found["ours"], found["a sum for each threshold"], atol=1e-11)


@pytest.mark.parametrize("kind", ["drawn at random", "binomial"])
def test_a_million_outcomes(compare, kind):
    if kind == "binomial":
        logs = [log_binomial(MILLION, prob) for prob in (0.5, 0.5003)]
    else:
        logs = list(np.log(masses(MILLION)))
    ratio, alpha = logs[1] - logs[0], np.linspace(0, 1, 1000)
    floor = ("numpy's sort of the ratios", lambda: np.argsort(ratio))
    found = compare(
        f"trade-off function of 10⁶ outcomes at 1,000 points, {kind}",
        lambda: Tradeoff.of_logs(*logs)(alpha),
        floor=floor,
        within=1.0,
    )
    assert np.isfinite(found["ours"]).all()
