"""Audits: never above the truth (beyond the stated failures), near it with many samples, and able to catch a lie."""

import itertools
import math
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from privrob.accounting import audit
from privrob.mechanisms.noise import Laplace


def test_clopper_pearson_covers_what_it_promises():
    # exact coverage by enumeration at awkward probabilities, where a normal interval would fail
    for trials, prob in [(20, 0.01), (50, 0.5), (200, 0.99)]:
        hits = np.arange(trials + 1)
        lower, upper = audit.clopper_pearson(hits, trials, failure_prob=0.05)
        inside = (lower <= prob) & (prob <= upper)
        assert binom.pmf(hits, trials, prob)[inside].sum() >= 0.95


def test_no_hits_and_all_hits_have_the_closed_form():
    lower, upper = audit.clopper_pearson([0, 10], 10, failure_prob=0.1)
    assert (lower[0], upper[1]) == (0.0, 1.0)
    assert upper[0] == pytest.approx(1 - 0.05**0.1, rel=1e-12)  # (1 - p)^10 = 0.05
    assert lower[1] == pytest.approx(0.05**0.1, rel=1e-12)


@pytest.mark.paper("dplearn", "slide Laplace Mechanism is Differentially Private")
def test_a_laplace_mechanism_is_audited_close_to_its_epsilon_and_never_above():
    rng = np.random.default_rng(5)
    found = [
        audit.two_samples(rng.laplace(1, 1, 200_000), rng.laplace(0, 1, 200_000), delta=0.0, failure_prob=1e-3)
        for _ in range(10)
    ]
    bounds = [a.epsilon_lower for a in found]
    assert max(bounds) <= 1.0  # one excess in 1,000 audits is allowed, none in these ten
    assert min(bounds) > 0.9


def test_a_mechanism_with_too_little_noise_is_caught():
    rng = np.random.default_rng(6)
    claimed, scale = 1.0, 0.5  # scale 1/2 is epsilon 2
    found = audit.two_samples(rng.laplace(0, scale, 50_000), rng.laplace(1, scale, 50_000), delta=0.0)
    assert found.epsilon_lower > 1.5 * claimed


def test_equal_samples_prove_nothing():
    rng = np.random.default_rng(7)
    found = audit.two_samples(rng.normal(size=5_000), rng.normal(size=5_000), delta=1e-5)
    assert found.epsilon_lower == 0.0


def test_delta_is_taken_off_before_the_ratio():
    with_delta = audit.epsilon_from_counts(500, 1000, 10, 1000, delta=0.3, failure_prob=0.01)
    without = audit.epsilon_from_counts(500, 1000, 10, 1000, delta=0.0, failure_prob=0.01)
    lower_p, _ = audit.clopper_pearson(500, 1000, failure_prob=0.01)
    _, upper_q = audit.clopper_pearson(10, 1000, failure_prob=0.01)
    assert with_delta == pytest.approx(math.log((lower_p - 0.3) / upper_q), rel=1e-12)
    assert without > with_delta > 0


def test_too_few_samples_are_refused_by_name():
    with pytest.raises(ValueError, match="scores_p and scores_q need at least 4"):
        audit.two_samples([1.0, 2.0], [1.0, 2.0], delta=0.0)


# --------------------------------------------------------------------------------------------- any mechanism, many runs


@dataclass(frozen=True)
class NoisySum:
    """Sum of records clipped to [0, clip], with Laplace noise of clip / epsilon: epsilon-DP when a record is added."""

    epsilon: float
    clip: float = 1.0
    clips: bool = True
    noise: float = 1.0

    def release(self, data, *, rng):
        total = np.clip(data, 0, self.clip).sum() if self.clips else np.sum(data)
        return total + rng.laplace(0, self.noise * self.clip / self.epsilon)


def attack(mechanism, seed, neighbour=(0.3, 0.9, 1.0), runs=2000, failure_prob=1e-3):
    rng = np.random.default_rng(seed)
    return audit.two_inputs(
        mechanism, [0.3, 0.9], neighbour, score=float, num_runs=runs, delta=0.0, rng=rng, failure_prob=failure_prob
    )


def excess_is_within(excesses, failure_prob):
    """At most the stated failures, 4 binomial standard errors allowed."""
    trials = len(excesses)
    return np.mean(excesses) <= failure_prob + 4 * math.sqrt(failure_prob * (1 - failure_prob) / trials)


def test_two_inputs_exceed_the_exact_epsilon_no_more_often_than_stated():
    # the threshold at the record's whole effect has a ratio of exactly e^1: as hard on the bound as it gets
    bounds = [attack(NoisySum(1.0), seed, runs=300, failure_prob=0.2).epsilon_lower for seed in range(100)]
    assert excess_is_within(np.array(bounds) > 1.0, 0.2)
    assert np.median(bounds) > 0.5  # not for want of power


def test_a_mechanism_of_the_library_is_attacked_through_its_release():
    rng = np.random.default_rng(9)
    found = audit.two_inputs(
        Laplace(1.0, 1.0), [5.0], [6.0], score=lambda out: out[0], num_runs=5_000, delta=0.0, rng=rng
    )
    assert 0.6 < found.epsilon_lower <= 1.0


@pytest.mark.parametrize(
    ("broken", "neighbour"),
    [(NoisySum(1.0, noise=0.5), (0.3, 0.9, 1.0)), (NoisySum(1.0, clips=False), (0.3, 0.9, 3.0))],
    ids=["noise halved", "sensitivity forgotten"],
)
def test_a_broken_mechanism_exceeds_its_claim(broken, neighbour):
    assert attack(broken, 3, neighbour).epsilon_lower > 1.2
    assert attack(NoisySum(1.0), 3, neighbour).epsilon_lower <= 1.0


def test_a_mechanism_that_ignores_its_data_proves_nothing():
    class Constant:
        def release(self, data, *, rng):
            return 1.0

    assert attack(Constant(), 0).epsilon_lower == 0.0
    found = audit.canaries_in_one_run(
        Constant(),
        np.zeros(0),
        np.arange(500),
        score=lambda out, c: np.zeros(c.size),
        delta=0.0,
        rng=np.random.default_rng(0),
    )
    assert found.epsilon_lower == 0.0


def test_several_sets_on_the_same_samples_share_the_failures():
    # true ratio e^0 for every set: 40 sets at once must fail no more often than one may
    rng = np.random.default_rng(1)
    hits_p, hits_q = rng.binomial(200, 0.2, (2, 400, 40))
    together = [audit.epsilon_from_sets(p, 200, q, 200, delta=0.0, failure_prob=0.5) for p, q in zip(hits_p, hits_q)]
    assert excess_is_within(np.array(together) > 0, 0.5)
    each = audit.epsilon_from_counts(hits_p, 200, hits_q, 200, delta=0.0, failure_prob=0.5).max(axis=1)
    assert np.mean(each > 0) > 0.9  # what looking at the best of 40 would do
    assert audit.epsilon_from_sets(90, 100, 5, 100, delta=0.0, failure_prob=0.1) == audit.epsilon_from_counts(
        90, 100, 5, 100, delta=0.0, failure_prob=0.1
    )


# -------------------------------------------------------------------------------------------------------------- one run


@dataclass(frozen=True)
class NoisyBits:
    """Says of each of m records whether it is there, flipped by randomised response; a few are simply given away."""

    epsilon: float
    m: int
    given_away: float = 0.0

    def release(self, data, *, rng):
        bits = np.isin(np.arange(self.m), data)
        flip = rng.random(self.m) < 1 / (1 + math.exp(self.epsilon))
        return np.where(flip & (rng.random(self.m) >= self.given_away), ~bits, bits)


def one_run(mechanism, seed, delta=0.0, failure_prob=1e-3, num_guesses=None):
    return audit.canaries_in_one_run(
        mechanism,
        np.zeros(0, dtype=int),
        np.arange(mechanism.m),
        score=lambda out, canaries: out[canaries],
        delta=delta,
        rng=np.random.default_rng(seed),
        failure_prob=failure_prob,
        num_guesses=num_guesses,
    )


@pytest.mark.parametrize(("num_guesses", "least"), [(500, 0.08), ((30, 120, 500), 0.02)])
def test_one_run_exceeds_the_exact_epsilon_no_more_often_than_stated(num_guesses, least):
    # all guesses of noisy bits: the right ones are Binomial(m, e/(1 + e)), the law that the bound rests on
    found = [one_run(NoisyBits(1.0, 500), seed, 0.0, 0.2, num_guesses).epsilon_lower for seed in range(250)]
    assert excess_is_within(np.array(found) > 1.0, 0.2)
    assert np.mean(np.array(found) > 1.0) > least  # and no rarer than discreteness (or three looks) explain


def test_one_run_with_a_delta_exceeds_the_exact_epsilon_no_more_often_than_stated():
    found = [one_run(NoisyBits(1.0, 500, 0.01), seed, 0.01, 0.2, 500).epsilon_lower for seed in range(120)]
    assert excess_is_within(np.array(found) > 1.0, 0.2)
    without = [one_run(NoisyBits(1.0, 500, 0.1), seed, 0.0, 0.2, 500).epsilon_lower for seed in range(120)]
    assert not excess_is_within(np.array(without) > 1.0, 0.2)  # the δ that is there has to be said


def test_one_run_catches_a_broken_mechanism():
    assert one_run(NoisyBits(2.0, 1000), 4).epsilon_lower > 1.4
    assert one_run(NoisyBits(2.0, 1000), 4).epsilon_lower <= 2.0
    assert one_run(NoisyBits(1.0, 1000), 4).epsilon_lower <= 1.0


def test_the_law_of_right_guesses_bounds_every_mechanism_of_two_canaries():
    # all (ε, δ)-DP pairs for one bit are mixtures of giving it away, with δ, and of noisy bits: enumerate two of them
    epsilon, delta = 0.7, 0.05
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    right = delta + (1 - delta) * keep
    for v, exact in [(1, 1 - (1 - right) ** 2), (2, right**2)]:
        bound = audit.guesses_failure_prob(v, num_guesses=2, num_canaries=2, epsilon=epsilon, delta=delta)
        none = audit.guesses_failure_prob(v, num_guesses=2, num_canaries=2, epsilon=epsilon, delta=0.0)
        assert none == pytest.approx(binom.sf(v - 1, 2, keep), rel=1e-12)
        assert none < exact <= bound


def test_the_delta_term_is_the_most_that_a_shift_of_small_mean_can_add():
    # the same maximum over distributions of the shift F, by brute force over two-point ones
    r, v, epsilon, delta, m = 12, 10, 0.5, 0.004, 15
    law = binom(r, math.exp(epsilon) / (1 + math.exp(epsilon)))
    mean = 2 * m * delta
    brute = max(
        law.sf(v - 1) + sum(share * (law.sf(v - i - 1) - law.sf(v - 1)) for i, share in [(i, mean / i)])
        for i in range(1, m + 1)
        if mean / i <= 1
    )
    got = audit.guesses_failure_prob(v, num_guesses=r, num_canaries=m, epsilon=epsilon, delta=delta)
    assert got == pytest.approx(brute, rel=1e-12)


def test_the_bound_from_guesses_sits_where_the_failure_probability_is_met():
    settings = {"num_guesses": 200, "num_canaries": 300}
    bounds = []
    for delta in (0.0, 1e-6, 1e-4):
        bound = audit.epsilon_from_guesses(170, delta=delta, failure_prob=0.01, **settings)
        assert audit.guesses_failure_prob(170, epsilon=bound, delta=delta, **settings) == pytest.approx(0.01, rel=1e-6)
        bounds.append(bound)
    assert bounds[0] > bounds[1] > bounds[2] > 0
    more = [audit.epsilon_from_guesses(v, delta=0.0, failure_prob=0.01, **settings) for v in (100, 130, 150, 170, 200)]
    assert more[0] == 0.0
    assert all(a < b for a, b in itertools.pairwise(more))
    assert more[-1] == pytest.approx(-math.log(0.01 ** (-1 / 200) - 1), rel=1e-6)  # all right: keep^200 = 0.01


def test_abstaining_helps_where_only_some_canaries_show():
    # 40 of 1,000 canaries leave a trace: guesses on all of them drown it
    rng = np.random.default_rng(2)
    included = rng.random(1000) < 0.5
    scores = rng.normal(size=1000) * 0.1 + np.where(np.arange(1000) < 80, np.where(included, 3.0, -3.0), 0.0)
    few = audit.one_run(scores, included, delta=0.0, num_guesses=60)
    all_ = audit.one_run(scores, included, delta=0.0, num_guesses=1000)
    several = audit.one_run(scores, included, delta=0.0, num_guesses=[60, 250, 1000])
    assert (few.num_correct, few.num_guesses, few.num_canaries) == (60, 60, 1000)
    assert few.epsilon_lower > several.epsilon_lower > all_.epsilon_lower + 1  # looking three times has its price


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"included": [0, 1, 2, 1]}, "included"),
        ({"included": [0, 1]}, "included"),
        ({"num_guesses": 3}, "num_guesses"),
        ({"num_guesses": 6}, "num_guesses"),
        ({"num_guesses": []}, "num_guesses"),
        ({"delta": 1.5}, "delta"),
        ({"failure_prob": 0.0}, "failure_prob"),
    ],
)
def test_bad_arguments_of_one_run_are_named(change, name):
    good = {"scores": [0.1, 0.2, 0.3, 0.4], "included": [0, 1, 1, 0], "delta": 0.0, "num_guesses": 4}
    with pytest.raises((ValueError, TypeError), match=name):
        audit.one_run(**{**good, **change})


def _tail_above(hits, trials, prob):
    """P(Binomial ≥ hits), as an integral of the beta density by mpmath."""
    a, b = mpmath.mpf(hits), mpmath.mpf(trials - hits + 1)
    log_scale = mpmath.loggamma(a + b) - mpmath.loggamma(a) - mpmath.loggamma(b)
    width = mpmath.sqrt(a * b / (a + b) ** 3)
    points = [x for x in (prob - k * width for k in (64, 32, 16, 8, 4, 2, 1, 0.5)) if x > 0]
    return mpmath.quad(
        lambda x: mpmath.exp(log_scale + (a - 1) * mpmath.log(x) + (b - 1) * mpmath.log1p(-x)),
        [*([mpmath.mpf(0)] if len(points) < 8 else []), *points, mpmath.mpf(prob)],
    )


@pytest.mark.parametrize(
    ("hits", "trials"), [(1000, 3 * 10**8), (1000, 10**12), (10**12, 10**13), (10**14, 10**15), (2**52, 2**53)]
)
@pytest.mark.parametrize("failure_prob", [1e-12, 0.5])
def test_clopper_pearson_keeps_its_promise_at_many_trials(hits, trials, failure_prob):
    lower, upper = audit.clopper_pearson(hits, trials, failure_prob=failure_prob)
    assert 0 < lower < hits / trials < upper < 1
    with mpmath.workdps(50):
        share = float(2 * _tail_above(hits, trials, float(lower)) / failure_prob)
    assert 1 - 1e-4 < share < 1 + 2e-6  # one double to the next is 1e-5 of the tail at 2⁵³ trials
    _, mirrored = audit.clopper_pearson(trials - hits, trials, failure_prob=failure_prob)
    assert mirrored == pytest.approx(1 - lower, rel=1e-12)  # the upper end is the lower one of the misses


def test_more_trials_than_doubles_count_are_refused():
    with pytest.raises(ValueError, match=r"trials must lie in \[1, 2\*\*53\], got trials=1e\+17; pass fewer"):
        audit.epsilon_from_counts(10**16, 10**17, 10, 100, delta=0.0, failure_prob=0.1)


@pytest.mark.parametrize(
    ("hits", "trials", "name"), [(5e-324, 10, "hits"), ([3, 2.5], 10, "hits"), (3, 10.5, "trials")]
)
def test_counts_that_are_not_whole_are_refused(hits, trials, name):
    with pytest.raises(ValueError, match=f"{name} must be whole numbers, got {name}=.*; pass counts"):
        audit.clopper_pearson(hits, trials, failure_prob=0.05)
