"""Propose-Test-Release: its runs obey the laws that Algorithm 1 states, branch by branch."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from privrob.accounting import ptr as accounting
from privrob.kinds import NotAvailable, Streams
from privrob.mechanisms.ptr import ProposeTestRelease, Released, ptr_tmean
from privrob.mechanisms.statistics import InterquartileRange, Median, Sum

MEDIAN = Median(0.0, 10.0)
SCALAR = ProposeTestRelease(
    target=InterquartileRange(2, 0.0, 10.0),
    robust=MEDIAN,
    sensitivity_bound=1.0,
    noise_std=2.0,
    robust_noise_std=0.3,
    laplace_scale=1.5,
    test_failure=0.1,
)
NUMBERS = np.array([3.0, 3.2, 3.4, 3.6, 9.0])  # the median is 3.4, the range between the second at each end 0.4
VECTOR = ptr_tmean(4, max_norm=2.0, sensitivity_bound=1.0, noise_multiplier=0.7, laplace_scale=0.8, test_failure=0.05)
ROWS = np.array([[0.3, 0.1, -0.2]] * 6 + [[0.0, 5.0, 0.0], [1.0, 1.0, 1.0]])
HOW = {"neighbouring": "add_remove", "sampling": "none"}


def pass_probability(mechanism, margin):
    return stats.laplace.sf(mechanism.threshold, loc=margin, scale=mechanism.laplace_scale)


@pytest.mark.paper("ptr", "Remark 4.1")
def test_the_threshold_is_passed_by_mistake_with_probability_delta_0():
    assert SCALAR.threshold == pytest.approx(1.5 * math.log(5), rel=1e-15)
    data = np.array([0.0, 10.0])  # one gap of 10 in the middle: margin 0
    assert MEDIAN.safety_margin(data, bound=1.0) == 0
    n = 100_000
    _, margins, passed = SCALAR.release_many(data, n, rng=np.random.default_rng(0))
    assert abs(passed.mean() - 0.1) < 5 * math.sqrt(0.09 / n)  # standard errors
    assert abs(margins.mean()) < 5 * 1.5 * math.sqrt(2 / n)
    # without the factor b, as in A.4's eq. 92, it would be e^{-log(5)/1.5}/2 = 0.171
    assert abs((margins > math.log(5)).mean() - math.exp(-math.log(5) / 1.5) / 2) < 5 * math.sqrt(0.15 / n)


@pytest.mark.paper("ptr", "Algorithm 1")
@pytest.mark.parametrize(("first", "margin"), [(0, 3), (1, 2), (2, 1)])
def test_the_pass_rate_is_the_tail_of_the_laplace_noise(first, margin):
    data = NUMBERS[first:]  # 9 is alone at the right, and 4 − first are left of the gap
    assert MEDIAN.safety_margin(data, bound=1.0) == margin
    want, n = pass_probability(SCALAR, margin), 40_000
    _, margins, passed = SCALAR.release_many(data, n, rng=np.random.default_rng(first))
    assert abs(passed.mean() - want) < 5 * math.sqrt(want * (1 - want) / n)
    assert ((margins > SCALAR.threshold) == passed).all()
    assert stats.kstest(margins, stats.laplace(margin, 1.5).cdf).pvalue > 1e-4


@pytest.mark.paper("ptr", "Algorithm 1")
@pytest.mark.paper("ptr", "Algorithm 3")
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_each_branch_releases_its_own_answer_with_its_own_noise(noise):
    clipped = ROWS * np.minimum(1, 2 / np.linalg.norm(ROWS, axis=1))[:, None]
    total, kept = clipped.sum(axis=0), ROWS[:4].sum(axis=0)
    cases = [
        (SCALAR, NUMBERS, 0.4, 3.4, 2.0, 0.3),
        (VECTOR, ROWS, total, kept, 0.7 * 2.0, 0.7 * 1.0),
    ]
    for mechanism, data, failed_answer, passed_answer, failed_std, passed_std in cases:
        mechanism = dataclasses.replace(mechanism, noise=noise)
        values, _, passed = mechanism.release_many(data, 60_000, rng=np.random.default_rng(1))
        assert values.shape == (60_000, *np.shape(total if mechanism.robust != MEDIAN else 0.0))
        for chosen, answer, std in ((passed, passed_answer, passed_std), (~passed, failed_answer, failed_std)):
            n = chosen.sum()
            assert n > 5000
            errors = values[chosen] - answer
            assert np.abs(errors.mean(axis=0)).max() < 5 * std / math.sqrt(n)
            kurtosis = 3 if noise == "gaussian" else 6
            assert np.abs(errors.std(axis=0) / std - 1).max() < 5 * math.sqrt((kurtosis - 1) / (4 * n))
            law = stats.norm(0, std) if noise == "gaussian" else stats.laplace(0, std / math.sqrt(2))
            assert stats.kstest(errors.reshape(n, -1)[:, 0], law.cdf).pvalue > 1e-4
            if errors.ndim > 1:
                assert abs(np.corrcoef(errors.T)[0, 1]) < 5 / math.sqrt(n)


def test_a_statistic_can_be_its_own_target():
    same = ProposeTestRelease(MEDIAN, MEDIAN, 1.0, 5 * MEDIAN.sensitivity, 5 * 1.0, 1.0, 1e-3)
    values, _, passed = same.release_many(np.full(40, 4.0), 4000, rng=np.random.default_rng(2))
    assert passed.mean() > 0.99  # margin 20 + …, threshold 6.2
    assert abs(values[passed].mean() - 4.0) < 5 * 5 / math.sqrt(4000)


@pytest.mark.paper("ptr", "Remark 4.1")
def test_the_textbook_mechanism_refuses_where_the_test_fails():
    textbook = dataclasses.replace(SCALAR, noise_std=math.inf)
    values, margins, passed = textbook.release_many(NUMBERS, 2000, rng=np.random.default_rng(3))
    assert (np.isnan(values) == ~passed).all()
    assert 0.2 < passed.mean() < 0.8
    assert np.isfinite(margins).all()
    runs = [textbook.release(NUMBERS, rng=np.random.default_rng(s)) for s in range(50)]
    assert {r.passed for r in runs} == {True, False}
    assert all((r.value is None) == (not r.passed) for r in runs)
    vectors = dataclasses.replace(VECTOR, noise_std=math.inf).release_many(ROWS, 200, rng=np.random.default_rng(4))
    assert (np.isnan(vectors[0]).all(axis=1) == ~vectors[2]).all()
    assert (np.isnan(vectors[0]).any(axis=1) == ~vectors[2]).all()


def test_one_run_has_the_law_of_many():
    rng = Streams(0, "ptr").numpy("one")
    runs = [SCALAR.release(NUMBERS, rng=rng) for _ in range(4000)]
    assert isinstance(runs[0], Released)
    values, margins, passed = SCALAR.release_many(NUMBERS, 4000, rng=Streams(0, "ptr").numpy("many"))
    for one, many in (
        ([r.noisy_margin for r in runs], margins),
        ([r.value for r in runs if r.passed], values[passed]),
        ([r.value for r in runs if not r.passed], values[~passed]),
    ):
        assert stats.ks_2samp(one, many).pvalue > 1e-4
    assert VECTOR.release(ROWS, rng=rng).value.shape == (3,)
    again = [VECTOR.release(ROWS, rng=np.random.default_rng(7)) for _ in range(2)]
    assert (again[0].value == again[1].value).all()
    assert again[0].noisy_margin == again[1].noisy_margin


def test_a_bound_that_nothing_exceeds_always_passes():
    # τ = R: the trimmed sum cannot move further, whatever the data
    loose = ptr_tmean(2, max_norm=1.0, sensitivity_bound=1.0, noise_multiplier=1.0, laplace_scale=1, test_failure=1e-8)
    run = loose.release(np.empty((0, 3)), rng=np.random.default_rng(0))
    assert (run.noisy_margin, run.passed, run.value.shape) == (math.inf, True, (3,))
    values, margins, passed = loose.release_many(ROWS, 5, rng=np.random.default_rng(0))
    assert passed.all()
    want = stats.norm(loose.robust.value(ROWS), 1.0).logpdf(values).sum(axis=1)
    assert loose.log_density(values, margins, ROWS) == pytest.approx(want, rel=1e-12)
    assert (loose.log_density(values, np.zeros(5), ROWS) == -math.inf).all()


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_density_of_a_run_integrates_to_one(noise):
    for std in (2.0, math.inf):
        mechanism = dataclasses.replace(SCALAR, noise=noise, noise_std=std)
        nodes, weights = np.polynomial.legendre.leggauss(80)

        def panels(edges, nodes=nodes, weights=weights):
            edges = np.array(edges)
            half = np.diff(edges)[:, None] / 2
            return (edges[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()

        margin = float(MEDIAN.safety_margin(NUMBERS, bound=1.0))
        inner = sorted([margin, mechanism.threshold])
        margins, margin_weights = panels([margin - 60, *inner, margin + 60])
        total = 0.0
        for passed in (True, False):
            here = (margins > mechanism.threshold) == passed
            if passed or std < math.inf:
                answer, scale = (3.4, 0.3) if passed else (0.4, 2.0)
                values, value_weights = panels(answer + scale * np.array([-30, -10, 0, 10, 30]))
            else:
                values, value_weights = np.array([math.nan]), np.ones(1)  # a refusal
            v, m = (x.ravel() for x in np.meshgrid(values, margins[here]))
            density = np.exp(mechanism.log_density(v, m, NUMBERS))
            total += density @ np.outer(margin_weights[here], value_weights).ravel()
        assert total == pytest.approx(1, abs=1e-9)  # Gauss–Legendre between the kinks; tails beyond 40 b


@pytest.mark.parametrize(("mechanism", "data"), [(SCALAR, NUMBERS), (VECTOR, ROWS)])
def test_the_likelihood_ratio_of_two_neighbours_has_mean_one(mechanism, data):
    # a run on S, judged by the densities: E[p'/p] = 1 holds only if the runs have the density p
    other = data[1:]
    values, margins, _ = mechanism.release_many(data, 100_000, rng=np.random.default_rng(5))
    log_ratio = mechanism.log_density(values, margins, other) - mechanism.log_density(values, margins, data)
    ratio = np.exp(log_ratio)
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / math.sqrt(len(ratio))
    assert ratio.std() > 0.1
    one = mechanism.log_density(values[:1], margins[:1], data)
    assert one == pytest.approx(mechanism.log_density(values, margins, data)[:1])
    assert mechanism.log_density(values[:0], margins[:0], data).shape == (0,)


def test_outputs_that_cannot_occur_have_no_density():
    textbook = dataclasses.replace(SCALAR, noise_std=math.inf)
    got = textbook.log_density([3.0, math.nan, 3.0], [-1.0, -1.0, 9.0], NUMBERS)
    assert got[0] == -math.inf
    assert got[1] == pytest.approx(stats.laplace(3, 1.5).logpdf(-1.0), rel=1e-14)
    assert got[2] == pytest.approx(stats.laplace(3, 1.5).logpdf(9.0) + stats.norm(3.4, 0.3).logpdf(3.0), rel=1e-14)
    with pytest.raises(ValueError, match="must not be NaN"):
        textbook.log_density([math.nan], [9.0], NUMBERS)
    with pytest.raises(ValueError, match="must not be NaN"):
        SCALAR.log_density([math.nan], [-1.0], NUMBERS)
    with pytest.raises(ValueError, match="one answer for each noisy margin"):
        VECTOR.log_density(np.zeros((2, 2)), np.zeros(2), ROWS)


def test_the_guarantee_is_that_of_the_settings():

    want = accounting.Settings(
        noise_multiplier=0.7,
        robust_noise_multiplier=0.35,
        scale_ratio=0.8,
        test_failure=0.05,
        passed_noise_multiplier=0.7,
    )
    assert VECTOR.settings == want
    assert (VECTOR.rdp([2.0, 3.0], **HOW) == want.rdp([2.0, 3.0], **HOW)).all()
    assert VECTOR.epsilon(1e-2, **HOW) == want.epsilon(1e-2, **HOW)


def test_no_guarantee_is_stated_for_laplace_releases():

    with pytest.raises(NotAvailable, match="gaussian"):
        dataclasses.replace(VECTOR, noise="laplace").epsilon(1e-5, **HOW)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"test_failure": 0.5}, "test_failure .* at 1/2 the threshold is 0"),
        ({"test_failure": 0.0}, "test_failure .* no test passes"),
        ({"sensitivity_bound": 0.0}, "sensitivity_bound"),
        ({"laplace_scale": math.inf}, "laplace_scale"),
        ({"laplace_scale": 0.0}, "laplace_scale"),
        ({"robust_noise_std": 0.0}, "robust_noise_std"),
        ({"robust_noise_std": math.inf}, "robust_noise_std"),
        ({"noise_std": 0.2}, "noise_std .* a failed test gets no less noise"),
        ({"noise_std": math.nan}, "noise_std"),
        ({"target": 3.0}, "target must have sensitivity and value"),
        ({"robust": Sum(1.0)}, "robust must have sensitivity and value and safety_margin"),
        ({"noise": "uniform"}, "noise must be one of"),
    ],
)
def test_bad_settings_are_named(change, name):
    with pytest.raises((ValueError, TypeError), match=name):
        dataclasses.replace(SCALAR, **change)


def test_bad_arguments_are_named():
    for data, count, name in (([math.nan], 1, "data"), (NUMBERS, -1, "num_releases"), (NUMBERS, 1.0, "num_releases")):
        with pytest.raises((ValueError, TypeError), match=name):
            SCALAR.release_many(data, count, rng=np.random.default_rng(0))


def test_answers_of_two_shapes_are_refused():
    mixed = dataclasses.replace(SCALAR, target=Sum(1.0), robust=TallMedian(0.0, 10.0))
    with pytest.raises(ValueError, match="one shape"):
        mixed.release(np.ones((3, 2)), rng=np.random.default_rng(0))


class TallMedian(Median):
    """A median that takes rows, and answers with one number."""

    def _padded(self, data):
        return super()._padded(np.ravel(data))
