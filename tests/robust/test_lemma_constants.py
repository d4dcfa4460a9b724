"""The lemmas behind PRIME: worst cases by linear programs, constants by a second way, printed bounds refuted."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from privrob.robust import lemma_constants, lemma_steps, mmw, prime_lemmas
from privrob.robust.filtering import stop_level


def rng(seed=0):
    return np.random.default_rng(seed)


# --------------------------------------------------------------------------------------------------------------- scores


def drawn_scores(generator, n, m):
    """Scores that meet the hypotheses of Lemma E.2, their labels and the tail."""
    tau = np.concatenate([generator.uniform(0, 1.2, n - m), generator.exponential(3e4, m)])
    bad = np.arange(n) >= n - m
    tail = np.argsort(-tau, kind="stable")[: 2 * m]
    psi = (tau - 1).mean()
    fits = (tau - 1)[~bad].sum() / n <= psi / 1000 and tau[tail][~bad[tail]].sum() / n <= psi / 1000
    return tau, bad, tail, psi, fits


@pytest.mark.paper("prime", "Lemma E.2")
def test_no_drawn_scores_are_worse_than_the_linear_program_and_its_worst_case_is_attained():
    most, least = lemma_constants.tail_conditions(6, 1)
    assert most == pytest.approx(1.0, abs=1e-6)
    assert 0.998 <= least < 0.9991
    generator, seen = rng(1), 0
    for _ in range(300):
        tau, bad, tail, psi, fits = drawn_scores(generator, 6, 1)
        if fits:
            outside = np.delete(tau, tail).max() / 6
            assert 1000 * outside / psi <= most + 1e-9
            assert (tau[tail][bad[tail]] - 1).sum() / 6 >= least * psi - 1e-9
            seen += 1
    assert seen > 50


@pytest.mark.paper("prime", "Lemma E.3")
def test_capped_scores_belong_to_corrupted_records_300_to_1_not_just_10():
    ratio = lemma_constants.capped_ratio(6, 1)
    assert 10 < 331 < ratio < 334  # (1/3 − 2/1000)/(1/1000) by the proof
    generator = rng(2)
    for _ in range(300):
        tau, bad, tail, psi, fits = drawn_scores(generator, 6, 1)
        cap = generator.uniform(1, tau.max())
        low = np.minimum(tau, cap)
        if fits and (low - 1).sum() / 6 >= psi / 3:
            assert low[tail][bad[tail]].sum() >= (ratio - 1e-6) * low[tail][~bad[tail]].sum()


@pytest.mark.paper("prime", "Lemma G.1")
def test_leaving_records_out_never_raises_the_second_moment():
    for seed, d in itertools.product(range(3), (1, 2, 3)):
        points = rng(seed).integers(-3, 4, (5, d)).astype(float)
        assert lemma_constants.largest_rise(points) <= 1e-12


# ------------------------------------------------------------------------------------------------------------ good sets


@pytest.mark.paper("prime", "Definition G.2")
def test_constants_of_a_normal_part_by_integration():
    for rate in (0.01, 0.1, 0.3):
        log = math.log(1 / rate)
        top = stats.norm.isf(2 * rate)
        mean = integrate.quad(lambda z: z * stats.norm.pdf(z), top, 12)[0] / (2 * rate)
        far, near = stats.norm.isf(rate), stats.norm.ppf(0.5 + rate)
        second = integrate.quad(lambda z: z * z * stats.norm.pdf(z), far, 12)[0] / rate - 1
        least = 1 - integrate.quad(lambda z: z * z * stats.norm.pdf(z), 0, near)[0] / rate
        assert lemma_constants.normal_constants(rate)[0] == pytest.approx(mean / math.sqrt(log), rel=1e-7)
        assert lemma_constants.normal_constants(rate)[1] == pytest.approx(max(second, least) / log, rel=1e-7)
    assert lemma_constants.normal_constants(1e-12)[1] < 2


def by_enumeration(points, rate):
    """Constants of Lemmas G.4 to G.6 on the line, from all parts."""
    n, log = len(points), math.log(1 / rate)
    k = math.floor(2 * rate * n + 1e-9)
    found = dict.fromkeys(("small part", "large part", "small part's mean", "large part's mean", "least"), 0.0)
    for size in range(k + 1):
        for chosen in itertools.combinations(range(n), size):
            part, rest = points[list(chosen)], np.delete(points, chosen)
            found["small part"] = max(found["small part"], (part**2).sum() / n / (rate * log))
            found["small part's mean"] = max(found["small part's mean"], abs(part.sum()) / n / rate / math.sqrt(log))
            away = max(abs((rest**2).mean() - 1), abs(rest.var() - 1))
            found["large part"] = max(found["large part"], away / (rate * log))
            found["large part's mean"] = max(found["large part's mean"], abs(rest.mean()) / rate / math.sqrt(log))
            found["least"] = max(found["least"], (1 - (rest - rest.mean()) @ (rest - rest.mean()) / n) / (rate * log))
    return found


@pytest.mark.paper("prime", "Lemma G.4")
@pytest.mark.paper("prime", "Lemma G.5")
@pytest.mark.paper("prime", "Lemma G.6")
def test_constants_of_a_set_are_those_of_all_its_parts_and_follow_from_the_definition():
    for seed, rate in itertools.product(range(6), (0.1, 0.2)):
        points = rng(seed).standard_normal(10) + 0.3
        found = lemma_constants.good_constants(points[:, None], corruption_rate=rate)
        for name, value in by_enumeration(points, rate).items():
            assert found[name] == pytest.approx(value, abs=1e-9), name
        for name, bound in lemma_constants.good_bounds(found, corruption_rate=rate).items():
            assert found[name] <= bound * (1 + 1e-12), name


@pytest.mark.paper("prime", "Lemma G.3")
def test_drawn_sets_of_the_stated_size_are_good_and_heavy_tails_are_not():
    n = lemma_constants.stated_good_size(2, corruption_rate=0.02, failure_prob=0.1)
    assert n == math.ceil((2 + math.log(10)) / (4e-4 * math.log(50)))
    good = [lemma_constants.good_constants(rng(k).standard_normal((n, 2)), corruption_rate=0.02) for k in range(10)]
    assert max(max(g[name] for name in lemma_constants.GOOD) for g in good) < 3
    heavy = rng(0).standard_t(2.1, (n, 2))
    assert max(lemma_constants.good_constants(heavy, corruption_rate=0.02).values()) > 6


@pytest.mark.paper("prime", "Lemma G.7")
def test_no_drawn_adversary_needs_more_than_the_constant_for_means():
    for rate in (0.01, 0.05):
        k, log = lemma_constants.mean_constant(rate), math.log(1 / rate)
        generator = rng(3)
        for _ in range(20):
            clean = np.sort(generator.standard_normal(20_000))[: 20_000 - int(generator.uniform(0, 2 * rate) * 20_000)]
            bad = np.full(int(generator.uniform(0, rate) * 20_000), generator.normal() * 10)
            kept = np.concatenate([clean, bad])
            norm = max(abs(((kept - kept.mean()) ** 2).sum() / 20_000 - 1), 1 - len(clean) / 20_000)
            right = math.sqrt(rate * (norm + k * rate * log)) + k * rate * math.sqrt(log)
            assert (1 - rate) * abs(kept.mean()) <= right + 0.02  # sampling
        assert 1 < k < 5


# ---------------------------------------------------------------------------------------------------------------- noise


@pytest.mark.paper("prime", "Lemma G.10")
def test_printed_norm_of_a_normal_vector_is_refuted_and_the_repaired_one_holds():
    assert lemma_constants.norm_exceeds(1, failure_prob=0.01) == pytest.approx(
        2 * stats.norm.sf(math.sqrt(math.log(100)))
    )
    assert lemma_constants.norm_exceeds(1, failure_prob=0.01) > 0.03
    assert lemma_constants.norm_exceeds(100, failure_prob=0.5) > 0.99
    for zeta in (0.99, 0.3, 1e-6):
        assert lemma_constants.norm_constant(2, failure_prob=zeta) == pytest.approx(1.0)
        for d in (1, 2, 5, 50, 1000):
            assert stats.chi2.sf(lemma_constants.norm_upper(d, failure_prob=zeta) ** 2, d) <= zeta
    assert (
        max(lemma_constants.norm_constant(d, failure_prob=z) for d in range(1, 60) for z in (0.5, 1e-3, 1e-200))
        < 2**0.5
    )


@pytest.mark.paper("prime", "Lemma G.11")
def test_printed_norm_of_a_normal_matrix_is_refuted_and_the_repaired_one_holds():
    draws = rng(4).standard_normal((400, 10, 10))
    upper = np.triu(draws) + np.triu(draws, 1).transpose(0, 2, 1)
    norms = np.abs(np.linalg.eigvalsh(upper)).max(axis=1)
    assert (norms > math.sqrt(10 * math.log(10))).mean() > 0.5  # ζ = 0.1
    for zeta in (0.5, 0.1):
        assert (norms > lemma_constants.symmetric_norm_upper(10, failure_prob=zeta)).mean() <= zeta
    assert lemma_constants.symmetric_norm_upper(1, failure_prob=1e-3) > stats.norm.isf(5e-4)


@pytest.mark.paper("prime", "Lemma G.12")
def test_histogram_noise_against_draws_and_sensitivity_by_enumeration():
    assert lemma_constants.histogram_sensitivity(3, 3) == pytest.approx(math.sqrt(2))
    constant = lemma_constants.histogram_constant(20, failure_prob=0.2, delta=1e-3)
    draws = np.abs(rng(5).standard_normal((4000, 20))).max(axis=1) * 2 * math.sqrt(math.log(1250))
    share = (draws > constant * math.sqrt(math.log(100) * math.log(1000))).mean()
    assert abs(share - 0.2) < 5 * math.sqrt(0.16 / 4000)


@pytest.mark.paper("prime", "Lemma G.14")
def test_regret_of_one_step_by_hand_and_no_sequence_exceeds_its_bound():
    gain = np.diag([1.0, -0.5])
    left, right = lemma_constants.regret(gain[None], step=0.5)
    assert left == pytest.approx(1.0 - 0.25)
    assert right == pytest.approx(0.5 * 1.0 * 0.75 + math.log(2) / 0.5)
    assert 0.1 < lemma_constants.worst_regret(rng(6), num_sequences=4) <= 1


# ---------------------------------------------------------------------------------------------------------------- steps


def step_of(constant, rate=0.005, places="one", before="nothing", kappa=math.inf):
    how = {"corruption_rate": rate, "excess_norm": constant * stop_level(rate), "places": places, "before": before}
    points, bad, left = lemma_steps.hidden_cluster(20_000, 4, rng=rng(7), **how)
    kept = points[left] - points[left].mean(axis=0)
    matrix = kept.T @ kept / len(points)
    weights = mmw.weights(matrix - np.eye(4), step=kappa)
    return lemma_steps.filter_step(points, bad, left, corruption_rate=rate, weights=weights), points, bad


@pytest.mark.paper("prime", "Lemma D.4")
@pytest.mark.paper("prime", "Lemma D.5")
@pytest.mark.paper("prime", "Lemma F.4")
@pytest.mark.paper("prime", "Lemma F.6")
def test_a_filter_step_on_a_far_cluster_has_the_quantities_of_its_closed_form():
    rate, constant = 0.005, 1000.0
    row = step_of(constant)[0]
    norm = constant * stop_level(rate)
    assert row["λ"] == pytest.approx((1 - rate) * norm, rel=0.02)  # αt²(1 − α)
    assert row["clean excess"] == pytest.approx((1 - rate) * rate * norm, rel=0.1)  # (1 − α)(αt)²
    assert 0.9 * rate < row["clean excess"] / row["λ"] < 1.2 * rate
    assert row["fixed clean"] < row["fixed bad"]
    assert row["clean"] < row["bad"]
    assert row["decrease"] < 0.76
    near = step_of(3.0)[0]
    assert near["clean tail"] / near["λ"] > 0.1 > row["clean tail"] / row["λ"]


@pytest.mark.paper("prime", "Lemma F.5")
def test_an_epoch_of_the_printed_step_takes_most_of_the_norm_off():
    from privrob.kinds import Streams

    s = {"corruption_rate": 0.02, "num_records": 4000, "dimension": 6, "norm": 20.0, "per_log": 1000, "places": "two"}
    row = lemma_steps.epoch_cell(s, streams=Streams(0, "epoch"))[0]
    assert row["ratio"] <= 0.98
    assert row["bad"] > 0.9 * 80
    short = lemma_steps.epoch_cell(s | {"per_log": 1}, streams=Streams(0, "epoch"))[0]
    assert short["ratio"] == 1.0  # T₂ = log d is too few for the printed step


@pytest.mark.paper("prime", "Lemma F.7")
def test_the_needed_size_has_its_noises_at_their_limit_and_the_matrix_decides():
    how = {"corruption_rate": 0.05, "epsilon": 0.5, "delta": 1e-6}
    n, side, by = lemma_steps.needed_step_size(10, rng=rng(8), num_draws=20, **how)
    assert max(by, key=by.get) == "matrix"
    assert 1e4 < n / lemma_steps.stated_step_size(10, box_side=side, **how) < 1e6
    half, _, _ = lemma_steps.needed_step_size(10, rng=rng(8), num_draws=20, **(how | {"epsilon": 0.25}))
    assert half == pytest.approx(2 * n, rel=0.05)


@pytest.mark.paper("prime", "Equation (16)")
def test_printed_equation_16_is_off_by_the_share_of_records_that_are_gone():
    points, left = rng(9).standard_normal((1000, 3)), np.arange(1000) >= 150
    weights, noise = np.diag([0.5, 0.3, 0.2]), np.array([0.01, -0.02, 0.0])
    sound = lemma_steps.score_gap(points, left, weights=weights, centre_noise=noise)
    assert sound == pytest.approx(0.85 * noise @ weights @ noise)
    printed = lemma_steps.score_gap(points, left, weights=weights, centre_noise=noise, form="as_printed")
    assert printed == pytest.approx(sound + 0.15)
    assert printed > 0.002 * stop_level(0.05)


@pytest.mark.paper("prime", "Lemma D.6")
def test_the_noisy_top_direction_is_good_enough_at_the_stated_size_only():
    generator = rng(10)
    points, _, _ = lemma_steps.hidden_cluster(
        1000, 5, corruption_rate=0.05, excess_norm=1.0, places="one", before="nothing", rng=generator
    )
    how = {"corruption_rate": 0.05, "epsilon": 0.1, "delta": 1e-6, "box_side": 60.0}
    n = lemma_steps.stated_direction_size(5, **how)
    slack = [
        [lemma_steps.direction_slack(points, num_records=f * n, rng=generator, **how) for _ in range(30)]
        for f in (1, 0.01)
    ]
    assert min(slack[0]) >= 0
    assert np.mean(np.array(slack[1]) >= 0) < 0.5


@pytest.mark.paper("prime", "Lemma E.1")
def test_random_scores_meet_the_hypotheses_that_the_lemmas_share():
    tau, bad = prime_lemmas.random_scores(rng(11))
    assert max(prime_lemmas.conditions(tau, bad, size=400)) <= 1e-3
