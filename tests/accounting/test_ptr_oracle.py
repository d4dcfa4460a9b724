"""Privacy of Propose-Test-Release against nested mpmath quadrature (tests/reference/make_ptr.py), and laws."""

import json
import math
import random
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from privrob.accounting import ptr, ptr_bounds

REFERENCE = Path(__file__).parents[1] / "reference"
CASES = ["test_fails", "bounded"]
DIRECTIONS = ["remove", "add"]
SCALES = ("noise_multiplier", "robust_noise_multiplier", "scale_ratio", "test_failure")
RTOL = 1e-8  # what the library promises; the references have 15 digits
SLACK = 1 + 3e-8  # two numbers that each are right to RTOL
ORDERS = [1.01, 1.5, 2.0, 3.7, 8.0, 33.3, 256.0]


def load(name):
    return json.loads((REFERENCE / name).read_text(encoding="utf-8"))


RENYI, DELTA, THEOREM = (load(f"ptr_{name}.json") for name in ("renyi", "delta", "theorem_4_4"))


def settings_of(row):
    return ptr.Settings(**{name: row[name] for name in SCALES})


def renyi_of(row, orders=None, **change):
    row = row | change
    return ptr.renyi(
        [row["order"]] if orders is None else orders,
        settings=settings_of(row),
        sample_rate=row["sample_rate"],
        case=row["case"],
        neighbouring=row["neighbouring"],
    )


def delta_of(row, **change):
    row = row | change
    return ptr.delta(
        row["epsilon"],
        settings=settings_of(row),
        sample_rate=row["sample_rate"],
        case=row["case"],
        neighbouring=row["neighbouring"],
    )


def selected(content, case, direction):
    return [row for row in content["rows"] if (row["case"], row["neighbouring"]) == (case, direction)]


def drawn(count, seed):
    """Settings spread over the range in logarithms; what each law test changes, it changes from here."""
    source = random.Random(seed)

    def between(low, high):
        return low * (high / low) ** source.random()

    for _ in range(count):
        s1 = between(0.5, 50)
        yield {
            "noise_multiplier": s1,
            "robust_noise_multiplier": s1 * between(0.3, 1),
            "scale_ratio": between(0.2, 20),
            "test_failure": between(1e-10, 0.3),
            "sample_rate": between(1e-4, 0.9),
        }


# ------------------------------------------------------------------------------------------------- the stored numbers


@pytest.mark.paper("ptr", "Theorem 4.3")
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_each_renyi_divergence_is_the_nested_integral(case, direction):
    rows = selected(RENYI, case, direction)
    assert len(rows) >= 60
    for row in rows:
        assert renyi_of(row) == pytest.approx([float(row["value"])], rel=RTOL, abs=0), row


@pytest.mark.paper("ptr", "Theorem 4.3")
def test_the_curve_of_both_cases_and_both_directions_is_the_largest():
    binding = set()
    for rows in grouped(RENYI["rows"], (*SCALES, "sample_rate", "order")):
        values = {(row["case"], row["neighbouring"]): float(row["value"]) for row in rows}
        binding.add(max(values, key=values.get))
        for direction in DIRECTIONS:
            want = max(values[case, direction] for case in CASES)
            assert renyi_of(rows[0], case="both", neighbouring=direction)[0] == pytest.approx(want, rel=RTOL, abs=0)
        for case in CASES:
            want = max(values[case, direction] for direction in DIRECTIONS)
            assert renyi_of(rows[0], case=case, neighbouring="add_remove")[0] == pytest.approx(want, rel=RTOL, abs=0)
        got = renyi_of(rows[0], case="both", neighbouring="add_remove")[0]
        assert got == pytest.approx(max(values.values()), rel=RTOL, abs=0)
    assert {case for case, _ in binding} == set(CASES)  # or the maximum over the cases would go untested


def grouped(rows, names):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups.values()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_each_profile_is_the_integral_of_the_hockey_stick(case, direction):
    rows = selected(DELTA, case, direction)
    assert len(rows) >= 100
    for row in rows:
        got, want = delta_of(row), float(row["value"])
        assert got == (pytest.approx(want, rel=RTOL, abs=0) if want else 0.0), row


def test_the_profile_of_both_is_the_largest_at_each_epsilon():
    for rows in grouped(DELTA["rows"], (*SCALES, "sample_rate", "epsilon")):
        if rows[0]["epsilon"] == 0.0:  # the ε that all four share
            values = {(row["case"], row["neighbouring"]): float(row["value"]) for row in rows}
            assert len(values) == 4
            # without a level the two directions are one total variation
            assert values["bounded", "add"] == pytest.approx(values["bounded", "remove"], rel=1e-13)
            for direction in [*DIRECTIONS, "add_remove"]:
                got = delta_of(rows[0], case="both", neighbouring=direction)
                assert got == pytest.approx(max(values.values()), rel=RTOL, abs=0)


def test_the_unsampled_profile_meets_the_number_of_the_notes():
    """S6: ε = 1.41220 at δ = 1e-5 for s₁ = 8, b = 1, s₂ = 4 and every small d₀; all five digits."""
    for d0 in [1e-8, 9e-6]:
        settings = ptr.Settings(noise_multiplier=8.0, robust_noise_multiplier=4.0, scale_ratio=1.0, test_failure=d0)
        above, below = (
            ptr.delta(epsilon, settings=settings, sample_rate=1.0, case="both", neighbouring="add_remove")
            for epsilon in (1.412195, 1.412205)
        )
        assert below < 1e-5 < above


@pytest.mark.paper("ptr", "Theorem 4.4")
def test_theorem_4_4_is_the_largest_of_its_three_bounds():
    assert len(THEOREM["rows"]) >= 20
    for row in THEOREM["rows"]:
        got = ptr_bounds.theorem_4_4([row["order"]], settings=settings_of(row), sample_rate=row["sample_rate"])
        assert got == pytest.approx([float(row["value"])], rel=RTOL, abs=0), row


@pytest.mark.paper("ptr", "Theorem 4.4")
def test_the_largest_order_of_theorem_4_4_is_where_its_conditions_end():
    allowed = 0
    for row in THEOREM["largest_orders"]:
        s2, q = row["robust_noise_multiplier"], row["sample_rate"]
        settings = ptr.Settings(
            noise_multiplier=2 * s2,
            robust_noise_multiplier=s2,
            scale_ratio=row["scale_ratio"],
            test_failure=1e-8,
        )
        if row["value"] is None:  # s₂ < 4, or q > e^(−1/b)/(4 + e^(−1/b)): the theorem says nothing
            assert np.isposinf(ptr_bounds.theorem_4_4([1.001, 2.0, 64.0], settings=settings, sample_rate=q)).all(), row
            continue
        allowed += 1
        top = float(row["value"])
        assert ptr_bounds.theorem_4_4_largest_order(settings=settings, sample_rate=q) == pytest.approx(top, rel=RTOL), (
            row
        )
        around = [1 + 1e-3 * (top - 1), top * (1 - 1e-6), top * (1 + 1e-6), 100 * top]
        got = ptr_bounds.theorem_4_4(around, settings=settings, sample_rate=q)
        assert np.isfinite(got).tolist() == [True, True, False, False], row
        assert np.isposinf(got[2:]).all(), row
    assert allowed >= 15


# --------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.paper("ptr", "Theorem 4.4")
def test_theorem_4_4_bounds_the_exact_curve_inside_its_conditions():
    """Four times the exact curve is the notes' largest slack (3.84, S3); equality would mean one calls the other."""
    for row in THEOREM["rows"]:
        top = float(row["largest_order"])
        orders = [1 + share * (top - 1) for share in (0.001, 0.1, 0.5, 0.9, 1 - 1e-9)]
        bound = ptr_bounds.theorem_4_4(orders, settings=settings_of(row), sample_rate=row["sample_rate"])
        exact = renyi_of(row, orders, case="both", neighbouring="add_remove")
        assert (exact <= bound * SLACK).all(), row
        assert (bound <= 4.01 * exact).all(), row
        assert (bound > exact * (1 + 1e-6)).all(), row


@pytest.mark.parametrize("direction", [*DIRECTIONS, "add_remove"])
@pytest.mark.parametrize("case", [*CASES, "both"])
def test_more_noise_never_costs_more(case, direction):
    """Wider Gaussian and Laplace noise is the narrower with noise added: a post-processing."""
    for row in drawn(6, seed=1):
        row |= {"case": case, "neighbouring": direction, "epsilon": 0.02}
        base, base_delta = renyi_of(row, ORDERS), delta_of(row)
        for name in ["noise_multiplier", "robust_noise_multiplier", "scale_ratio"]:
            if name == "robust_noise_multiplier":
                more = {name: math.sqrt(row[name] * row["noise_multiplier"])}  # stays at most s₁
            else:
                more = {name: 1.3 * row[name]}
            assert (renyi_of(row, ORDERS, **more) <= base * SLACK).all(), (name, row)
            assert delta_of(row, **more) <= base_delta * SLACK, (name, row)


@pytest.mark.parametrize("direction", [*DIRECTIONS, "add_remove"])
@pytest.mark.parametrize("case", [*CASES, "both"])
def test_a_larger_sample_rate_never_costs_less(case, direction):
    """Both divergences are convex in q and zero at q = 0: they grow at least in proportion."""
    for row in drawn(6, seed=2):
        row |= {"case": case, "neighbouring": direction, "epsilon": 0.02}
        rates = sorted([row["sample_rate"], 1e-6, 1e-3, 0.3, 1.0])
        curves = [renyi_of(row, ORDERS, sample_rate=q) for q in rates]
        deltas = [delta_of(row, sample_rate=q) for q in rates]
        for i in range(len(rates) - 1):
            assert (curves[i] <= curves[i + 1] * SLACK).all(), (rates[i : i + 2], row)
            assert deltas[i] <= deltas[i + 1] * SLACK, (rates[i : i + 2], row)
        assert (curves[0] > 0).all()  # nothing that small is rounded away


def test_adding_costs_at_most_removing():
    """Mironov, Talwar and Zhang 2019, Theorem 5, with the involution (s, t) → (1 − s, 1 − t) where one local
    sensitivity is bounded, and for each Gaussian of the other case. Strict when sampled."""
    for row in drawn(10, seed=3):
        for case in [*CASES, "both"]:
            remove, add = (renyi_of(row, ORDERS, case=case, neighbouring=direction) for direction in DIRECTIONS)
            assert (add <= remove * SLACK).all(), (case, row)
            assert renyi_of(row, ORDERS, case=case, neighbouring="add_remove") == pytest.approx(remove, rel=SLACK - 1)
            if case == "bounded":
                assert add[-1] < remove[-1] * (1 - 1e-6), row


@pytest.mark.paper("ptr", "Theorem 4.3")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_without_sampling_the_curve_is_the_closed_form_of_theorem_4_3(direction):
    """With a/(2a−1) before the first exponential, not the printed (a−1)/(2a−1)."""
    for row in drawn(10, seed=4):
        row |= {"neighbouring": direction, "sample_rate": 1.0}
        with mpmath.workdps(60):
            s1, s2, b, d0 = (mpmath.mpf(row[name]) for name in SCALES)
            for order in ORDERS:
                a = mpmath.mpf(order)
                gauss, robust = (mpmath.exp(a * (a - 1) / (2 * s * s)) for s in (s1, s2))
                laplace = (a * mpmath.exp((a - 1) / b) + (a - 1) * mpmath.exp(-a / b)) / (2 * a - 1)
                moments = {"bounded": gauss * laplace, "test_fails": (1 - d0) * gauss + d0 * robust}
                moments["both"] = max(moments.values())
                for case, moment in moments.items():
                    want = float(mpmath.log(moment) / (a - 1))
                    assert renyi_of(row, [order], case=case)[0] == pytest.approx(want, rel=RTOL, abs=0), (case, row)


def test_with_a_useless_margin_the_curve_is_the_sampled_gaussian():
    """b → ∞: what the margin adds is (s₁/b)² of the whole, below 1e-11 here. Whole orders, where dp_accounting is
    exact up to the digits its log of a moment near one loses."""
    orders = [2, 3, 8, 33, 100]
    for row in drawn(6, seed=5):
        q, s1 = 0.01 + row["sample_rate"] / 2, min(row["noise_multiplier"], 20.0)
        accountant = RdpAccountant(orders)
        accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(s1)))
        got = renyi_of(
            row,
            orders,
            case="bounded",
            neighbouring="remove",
            noise_multiplier=s1,
            robust_noise_multiplier=s1,
            scale_ratio=1e7,
            sample_rate=q,
        )
        assert got == pytest.approx(np.array(accountant._rdp), rel=RTOL, abs=1e-13)


def test_a_test_that_fails_alike_is_the_sampled_gaussian():
    """Case 1 with s₂ = s₁ does not depend on d₀ or b, and d₀ weighs the two moments linearly."""
    for row in drawn(6, seed=6):
        row |= {"case": "test_fails", "neighbouring": "remove"}
        alike = row | {"robust_noise_multiplier": row["noise_multiplier"]}
        want = renyi_of(alike, ORDERS)
        for change in [{"test_failure": 0.4}, {"test_failure": 1e-12}, {"scale_ratio": 0.1}, {"scale_ratio": 50.0}]:
            assert renyi_of(alike, ORDERS, **change) == pytest.approx(want, rel=RTOL), (change, row)
        robust = renyi_of(row | {"noise_multiplier": row["robust_noise_multiplier"]}, ORDERS)  # s₂ alone
        # order 2 and below, where a relative error of the curve is about one of the moment
        parts = [np.expm1((np.array(ORDERS[:3]) - 1) * curve[:3]) for curve in (renyi_of(row, ORDERS), want, robust)]
        d0 = row["test_failure"]
        assert parts[0] == pytest.approx((1 - d0) * parts[1] + d0 * parts[2], rel=1e-6), row
