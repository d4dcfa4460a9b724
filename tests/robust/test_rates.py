"""Resilience, depths and rates in closed form, and the data sets on which they are attained."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from privrob.kinds import Streams
from privrob.robust import rate_cells, rates, resilience, worst_cases
from privrob.robust.exponential_time import exponential_plan, exponential_time_mean, printed_least_records
from privrob.robust.filtering import Outcome, in_words, refused
from privrob.robust.tukey import depth


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.paper("prime", "Lemma H.2")
def test_a_normal_is_less_resilient_than_printed_at_every_rate():
    for rate in (1e-4, 0.01, 0.05, 0.2, 0.45):
        low = stats.norm.ppf(rate)
        integral = integrate.quad(lambda x: x * stats.norm.pdf(x), low, 12)[0] / (1 - rate)
        exact = rates.normal_resilience(rate)
        assert exact == pytest.approx(integral, rel=1e-8)
        assert exact > 1.2 * rates.sub_gaussian_resilience(rate, form="as_printed")
        assert exact < rates.sub_gaussian_resilience(rate)


@pytest.mark.paper("prime", "Lemma H.2")
def test_no_two_point_distribution_of_unit_proxy_variance_exceeds_the_sub_gaussian_bound():
    for rate in (0.02, 0.1, 0.3):
        for p in (0.5, 0.3, 0.1, rate):
            proxy = (1 - 2 * p) / math.log((1 - p) / p) / 2 if p != 0.5 else 0.25  # of a centred Bernoulli, exact
            low = -(1 - p) / math.sqrt(proxy)  # with probability p
            part = min(rate, p) * low + max(rate - p, 0) * p / math.sqrt(proxy)
            assert -part / (1 - rate) <= rates.sub_gaussian_resilience(rate)


@pytest.mark.paper("prime", "Lemma H.3")
def test_the_resilience_of_bounded_covariance_is_attained_by_two_points():
    for rate in (0.01, 0.1, 0.4):
        far = -math.sqrt((1 - rate) / rate)  # with probability α; variance 1
        assert math.sqrt(rate / (1 - rate)) == pytest.approx(-rate * far / (1 - rate))
        assert rates.bounded_covariance_resilience(rate) == pytest.approx(-rate * far / (1 - rate))
        assert rates.bounded_covariance_resilience(rate) <= math.sqrt(2 * rate)


@pytest.mark.paper("prime", "Lemma H.4")
def test_resilience_alone_gives_no_more_than_nearly_twice_itself():
    clean, moved = worst_cases.twenty_records()
    assert resilience.deviation(clean, num_out=6, about=[0.0]) == 1.0
    assert resilience.goodness(moved, corruption_rate=0.1) == pytest.approx(1.75)


@pytest.mark.paper("prime", "Lemma H.4")
def test_goodness_obeys_the_bound_by_covariance_whoever_is_moved():
    for seed in range(40):
        n, rate = 10, 0.1
        clean = rng(seed).standard_cauchy((n, 1 + seed % 2))
        clean = clean - clean.mean(axis=0)
        clean /= math.sqrt(np.linalg.eigvalsh(clean.T @ clean / n)[-1])
        data = clean.copy()
        data[np.argsort(clean[:, 0])[:: -1 if seed % 3 else 1][:2]] = rng(seed).uniform(-50, 50)
        s, r, _ = resilience.sizes(n, rate)
        bound = rates.goodness_upper(r / s, bad_share=2 / n)  # α is r/s here
        assert resilience.goodness(data, corruption_rate=rate) <= bound * (1 + 1e-12)
    assert rates.goodness_upper(0.05) < math.sqrt(0.15)


@pytest.mark.paper("prime", "Lemma H.10")
def test_goodness_of_a_corrupted_normal_stays_below_the_printed_limit():
    for rate in (0.02, 0.1):
        values, m = stats.norm.ppf((np.arange(4000) + 0.5) / 4000), int(4000 * rate)
        for gone, place in itertools.product((slice(0, m), slice(4000 - m, 4000)), (-9.0, 1.0, 2.0, 9.0)):
            moved = values.copy()
            moved[gone] = place
            found = resilience.window_goodness(moved, corruption_rate=rate)
            assert 0.2 < found / (3 * rate * math.sqrt(math.log(1 / (3 * rate)))) < 1


@pytest.mark.paper("prime", "Definition 4.1")
def test_deviation_along_directions_is_the_enumerated_one():
    for d, tolerance in ((1, 1e-12), (2, 1e-4), (3, 1e-2)):
        points = rng(d).standard_normal((9, d))
        for about in (None, np.full(d, 0.3)):
            exact = resilience.deviation(points, num_out=2, about=about)
            got = resilience.deviation_along(points, num_out=2, about=about)
            assert exact * (1 - tolerance) <= got <= exact * (1 + 1e-12)
    with pytest.raises(ValueError, match="number of points"):
        resilience.deviation_along(np.zeros((0, 1)), num_out=0)


@pytest.mark.paper("prime", "Equation 18")
def test_the_good_tails_are_as_near_as_the_goodness_says():
    found = [worst_cases.tail_gap(rng(s).exponential(size=(9, 1 + s % 3)), corruption_rate=0.12) for s in range(9)]
    assert 0.1 < max(found) <= 1
    assert worst_cases.tail_gap(np.ones((9, 2)), corruption_rate=0.12) == 0.0


@pytest.mark.paper("prime", "Lemma H.7")
@pytest.mark.paper("prime", "Lemma H.12")
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.15])
def test_two_clusters_attain_the_sound_sensitivity(rate):
    gap, good, _ = worst_cases.clusters(rate, num_records=400)
    bound = resilience.distance_sensitivity(400, corruption_rate=rate, goodness_bound=good)
    assert 0.97 * bound <= gap <= bound * (1 + 1e-9)


@pytest.mark.paper("prime", "Algorithm 2")
def test_the_printed_last_step_loses_more_than_epsilon_and_the_sound_one_not_its_third():
    how = {"epsilon": 1.0, "delta": 1e-6}
    assert worst_cases.last_step_loss(0.15, form="as_printed", **how) > 2
    for rate in (0.05, 0.15):
        assert worst_cases.last_step_loss(rate, form="sound", **how) <= 1 / 3


@pytest.mark.paper("prime", "Lemma H.9")
@pytest.mark.paper("prime", "Lemma H.13")
def test_the_search_finds_what_a_moved_tail_does():
    values = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    found = worst_cases.farthest_from_the_mean(values, corruption_rate=0.05, bad_share=0.05)
    moved = values.copy()
    moved[:100] = 100.0
    by_hand = abs(np.sort(moved)[300:-300].mean())
    assert by_hand <= found <= 14 * 0.05 * math.sqrt(math.log(20))
    assert found > 1.2 * 0.05


@pytest.mark.paper("prime", "Lemma J.2")
def test_depths_of_a_corrupted_normal_are_bounded_and_the_bound_is_attained():
    n, rate = 100_001, 0.01
    values = stats.norm.ppf((np.arange(n) + 0.5) / n)
    values[: int(rate * n)] = 3.0
    for distance in (0.01, 0.1, 0.2):
        low, high = rates.normal_depth(distance, corruption_rate=rate)
        got = depth(np.array([[distance]]), values[:, None])[0]
        assert low <= got <= high + 1e-5
        assert got == pytest.approx(high, abs=1e-4) or distance == 0.01
    assert rates.normal_depth(0.1, corruption_rate=rate)[1] > 0.5 - 5 * rate  # 10α: part 2 as printed
    assert rates.normal_depth(0.2, corruption_rate=rate)[1] < 0.5 - 5 * rate  # 20α: its proof
    least = rates.distance_of_depth(0.5 - 5 * rate, corruption_rate=rate)
    assert rates.normal_depth(least, corruption_rate=rate)[1] == pytest.approx(0.5 - 5 * rate)
    assert 15.0 < least / rate < 15.2


@pytest.mark.paper("prime", "Corollary I.1")
def test_a_deepest_point_is_within_its_bound():
    for rate in (0.05, 0.2):
        values = stats.norm.ppf((np.arange(20_001) + 0.5) / 20_001)
        values[: int(rate * 20_001)] = 50.0
        median = float(np.median(values))
        assert median == pytest.approx(stats.norm.ppf(0.5 + rate), abs=1e-3)
        assert median <= rates.distance_of_depth(0.5 - rate, corruption_rate=rate)


@pytest.mark.paper("prime", "Lemma J.1")
def test_all_depths_of_a_sample_are_near_those_of_the_normal():
    gaps = []
    for seed in range(100):
        data = rng(seed).standard_normal((200, 1))
        gaps.append(np.abs(depth(data, data) - rates.normal_depth(np.abs(data[:, 0]))[0]).max())
    assert np.quantile(gaps, 0.9) < math.sqrt((2 + math.log(10)) / 200)


@pytest.mark.paper("prime", "Lemma J.3")
def test_the_printed_sign_draws_away_from_the_mean():
    from privrob.mechanisms.exponential import Exponential

    points = np.linspace(-2, 2, 801)
    profile = rates.normal_depth(np.abs(points), corruption_rate=0.01)[1]
    near = np.abs(points) <= 0.05
    mechanism = Exponential(1.0, 1 / 50_000)
    assert np.exp(mechanism.log_probs(profile))[near].sum() > 0.99
    assert np.exp(mechanism.log_probs(-profile))[near].sum() < 1e-6


@pytest.mark.paper("prime", "Theorem 7")
@pytest.mark.paper("prime", "Lemma H.14")
@pytest.mark.paper("prime", "Lemma H.8")
def test_stated_records_are_the_printed_sums():
    how = {"corruption_rate": 0.1, "epsilon": 0.5, "delta": 1e-6, "failure_prob": 0.2}
    n = rates.stated_records("Theorem 7", dimension=3, **how)
    inner = 3 * math.log(3 * math.sqrt(math.log(3 * n / 0.2)) / 0.1) + math.log(5) + math.sqrt(3) * math.log(1e6)
    want = (3 + math.log(5)) / (0.01 * math.log(10)) + inner / 0.05
    want += math.sqrt(3 * math.log(1e6)) * math.log(3 / (0.2 * 1e-6)) / 0.5
    assert n == pytest.approx(want, rel=1e-4)
    eight = rates.stated_records("Theorem 8", dimension=3, ranged=False, **how)
    want = 3 / 0.02 + (3 * math.log(3 / 0.1**1.5) + math.log(5) + math.sqrt(3) * math.log(1e6)) / 0.05
    assert eight == pytest.approx(want)
    assert rates.stated_records("Theorem 9", dimension=4, **how) == pytest.approx(8 * math.log(1e6) / 0.05)
    assert rates.error_rate("Theorem 12", corruption_rate=0.1) == 0.1
    assert rates.error_rate("Theorem 8", corruption_rate=0.04) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="theorem must be"):
        rates.error_rate("Theorem 3", corruption_rate=0.1)


@pytest.mark.paper("prime", "Lemma H.11")
@pytest.mark.paper("prime", "Lemma H.6")
def test_line_one_makes_the_guard_good_for_a_third_of_delta():
    for heavy in (False, True):
        how = {"delta": 1e-4, "corruption_rate": 0.05, "diameter": 30.0, "heavy_tailed": heavy}
        least = printed_least_records(1.5, **how)
        for n, good in ((math.ceil(least), True), (int(0.3 * least), False)):
            plan = exponential_plan(1.5, num_records=n, dimension=1, form="as_printed", **how)[0]
            assert (plan["goodness guard"].prob <= 1e-4 / 3) == good
    data = rng(0).standard_normal((500, 1))
    found = exponential_time_mean(data, corruption_rate=0.05, epsilon=1.0, delta=1e-6, rng=rng(1), form="as_printed")
    assert "line 1" in found.reason


def test_few_records_are_refused_not_an_error():
    for n in (0, 1, 2, 5):
        found = exponential_time_mean(np.ones((n, 1)), corruption_rate=0.15, epsilon=1.0, delta=1e-6, rng=rng(1))
        assert "too few" in found.reason


def test_a_plan_with_an_exponential_mechanism_has_rows():
    plan = exponential_plan(1.0, delta=1e-6, num_records=5000, dimension=1, corruption_rate=0.05, diameter=9.0)[0]
    row = next(r for r in plan.rows() if r["what"] == "choice")
    assert row["scale"] == pytest.approx(1 / 3)
    assert row["sensitivity"] > 0


@pytest.mark.paper("prime", "Theorem 12")
@pytest.mark.paper("prime", "Theorem 7")
def test_cells_give_a_row_a_data_set_and_the_same_again():
    own = {"dimension": 2, "num_records": 4000, "corruption_rate": 0.05, "adversary": "rotated", "repetitions": 2}
    settings = own | {"epsilon": 5.0, "delta": 1e-6, "half_width": 1.0, "spacing": 0.1, "multiple": 2.0}
    found = rate_cells.algorithm_2_cell(settings, streams=Streams(0, "a"))
    assert found == rate_cells.algorithm_2_cell(settings, streams=Streams(0, "a"))
    assert [r["repetition"] for r in found] == [0, 1]
    assert max(r["error"] for r in found) < 0.5
    settings = own | {"num_records": 300, "epsilon": 5.0, "half_range": 0.3, "spacing": 0.1}
    assert max(r["error"] for r in rate_cells.tukey_cell(settings, streams=Streams(0, "b"))) < 0.5


def test_outcomes_in_words_are_an_estimate_a_refusal_or_an_error():
    def estimator(data, *, kind):
        if kind == "error":
            raise ValueError("no")
        return refused("few") if kind == "refused" else Outcome(data.mean(axis=0), "converged")

    said = [in_words(estimator, np.ones((2, 1)), kind=kind) for kind in ("error", "refused", "good")]
    assert said == ["error: no", "refused: few", "converged [1.]"]


@pytest.mark.paper("prime", "Appendix I")
def test_depths_by_directions_are_the_exact_ones():
    for seed in range(12):
        d = 1 + seed % 3
        data = rng(seed).integers(-2, 3, (9, d)).astype(float) if seed % 2 else rng(seed).exponential(size=(9, d))
        for candidate in (data[0], np.full(d, 0.2)):
            got = worst_cases.depth_by_directions(candidate, data, rng=rng(seed))
            assert got == pytest.approx(depth(candidate[None], data)[0])
