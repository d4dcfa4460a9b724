"""What the notebooks measure of PRIME's lemmas, and records that hide: each against its definition."""

import itertools
import math

import numpy as np
import pytest

from privrob.robust import hiding, prime_lemmas
from privrob.robust.corruption import corrupted_normal


def rng(seed=0):
    return np.random.default_rng(seed)


# ------------------------------------------------------------------------------------------------------------ threshold


@pytest.mark.paper("prime", "Equation (1)")
def test_the_exact_threshold_is_the_largest_that_takes_its_share():
    generator = rng(1)
    for _ in range(100):
        tau = generator.exponential(size=30) * generator.choice([1.0, 40.0], 30)
        target = 0.31 * (tau - 1).sum()
        found = prime_lemmas.exact_threshold(tau)
        if target <= 0:
            assert found is None
            continue
        assert np.maximum(tau - found, 0).sum() == pytest.approx(target)
        assert np.maximum(tau - found * (1 + 1e-6), 0).sum() < target
    assert prime_lemmas.exact_threshold(np.full(4, 0.5)) is None


@pytest.mark.paper("prime", "Algorithm 11")
@pytest.mark.paper("prime", "Section 2.3.2")
def test_the_binned_threshold_is_the_largest_by_its_definition_and_the_sketch_eight_times_too_high():
    generator = rng(2)
    for _ in range(50):
        tau = generator.exponential(size=200) + 30 * (generator.random(200) < 0.1)
        lows = 2.0 ** np.floor(np.log2(np.maximum(tau, 1e-9)))  # of each score's bin
        tops = 2.0 ** (np.arange(1, 15) - 3)
        need = 0.31 * (tau - 1).mean()
        fits = [t for t in tops if np.maximum(lows[tau >= 0.25] - t, 0).sum() / 200 >= need]
        assert prime_lemmas.binned_threshold(tau) == (max(fits) if fits else None)
        eights = [t for t in tops if 8 * np.maximum(lows[tau >= 0.25] - t, 0).sum() / 200 >= need]
        assert prime_lemmas.binned_threshold(tau, sketch=True) == (8 * max(eights) if eights else None)


@pytest.mark.paper("prime", "Lemma E.1")
@pytest.mark.paper("prime", "Lemma F.3")
def test_expected_removal_is_the_mean_over_draws_and_lemma_e1_holds_under_its_hypotheses():
    generator = rng(3)
    for _ in range(30):
        tau, bad = prime_lemmas.random_scores(generator, num_records=1000)
        assert max(prime_lemmas.conditions(tau, bad, size=100)) <= 1e-3
        rho = prime_lemmas.binned_threshold(tau)
        assert prime_lemmas.left_below(tau, rho) <= 0.75
        clean, corrupted = prime_lemmas.expected_removal(tau, bad, rho, size=100)
        assert 2 * clean <= corrupted
    tail = np.argsort(tau)[-100:]
    draws = (np.arange(4000) + 0.5) / 4000
    gone = (tau[tail][:, None] > rho * draws).mean(axis=1)
    assert corrupted == pytest.approx(gone[bad[tail]].sum(), abs=0.1)
    assert clean == pytest.approx(gone[~bad[tail]].sum(), abs=0.1)


# ---------------------------------------------------------------------------------------------------------------- drift


@pytest.mark.paper("prime", "Lemma F.1")
@pytest.mark.paper("prime", "Lemma 2.2")
def test_filtering_by_matrix_scores_contracts_and_thresholds_of_their_own_do_not():
    assert prime_lemmas.enumerated_drift(num_points=3, thresholds=(0.0, 0.5), sizes=(1, 2)) == (1, 5040)
    assert prime_lemmas.worst_drift(rng(4), num_sets=300, num_steps=3) == (1, 300)
    assert prime_lemmas.worst_drift(rng(5), num_sets=1500, num_steps=3, own=True)[0] > 1


def test_the_distance_counts_what_is_not_shared():
    a = [(0.0, 1.0), (0.0, 1.0), (2.0, 0.0)]
    assert prime_lemmas.distance(a, a[::-1]) == 0
    assert prime_lemmas.distance(a, a[:1]) == 2
    assert prime_lemmas.distance(a, [(0.0, 1.0), (5.0, 5.0), (6.0, 6.0)]) == 2


def test_a_threshold_of_its_own_at_one_is_the_common_threshold():
    points = rng(6).integers(-2, 3, (9, 2)).astype(float)
    steps = [(np.zeros(2), np.eye(2), 1.5), (np.ones(2), np.ones((2, 1)), 0.5)]
    one = prime_lemmas.survivors(points, steps, size=2)
    two = prime_lemmas.survivors(points, steps, size=2, own=np.ones((2, 9)))
    assert prime_lemmas.distance(one, two) == 0
    assert len(one) < 9


# --------------------------------------------------------------------------------------------------------------- hiding


@pytest.mark.paper("prime", "Section 1")
def test_shell_records_have_clean_norms_and_move_the_mean():
    n, d, rate, reach = 40_000, 64, 0.1, 0.6
    data, bad = hiding.shell(n, d, corruption_rate=rate, rng=rng(7), reach=reach)
    norms = np.linalg.norm(data, axis=1)
    assert hiding.distinguishability(norms[~bad], norms[bad]) == pytest.approx(0.5, abs=0.06)
    assert np.linalg.norm(data.mean(axis=0)) == pytest.approx(rate * reach * 8, rel=0.05)
    cluster, bad = corrupted_normal(n, d, corruption_rate=rate, adversary="rotated", rng=rng(7))
    norms = np.linalg.norm(cluster, axis=1)
    assert hiding.distinguishability(norms[~bad], norms[bad]) > 0.99, "the document's own cluster is found by its norms"


def test_distinguishability_counts_pairs():
    clean, bad = rng(8).integers(0, 5, 30), rng(9).integers(1, 7, 20)
    pairs = [(b > c) + 0.5 * (b == c) for b, c in itertools.product(bad, clean)]
    assert hiding.distinguishability(clean, bad) == pytest.approx(np.mean(pairs))


@pytest.mark.paper("prime", "Section 2.3")
def test_a_staircase_has_more_records_on_each_axis_than_on_the_one_before():
    data, bad = hiding.staircase(10_000, 5, corruption_rate=0.2, rng=rng(10), distance=40.0)
    found = (data[bad] > 20).sum(axis=0)
    assert found.sum() == bad.sum() == 2000
    assert (np.diff(found) > 0).all()
    assert found[-1] == pytest.approx(2 * found[0], rel=0.02)
    assert (data[~bad] < 20).all()


@pytest.mark.paper("prime", "Algorithm 5")
@pytest.mark.parametrize("offset", [0.0, 0.3, 1.0, 1.7])
def test_no_less_corruption_moves_the_range_and_this_much_does(offset):
    """The attack, carried out on shares: just above the least α it wins, just below no split of it does."""
    least = hiding.least_corruption_of_range(offset=offset)
    edges = 2.0 * np.arange(-12, 13) - offset
    cdf = np.array([0.5 * math.erfc(-e / math.sqrt(2)) for e in edges])
    shares, middles = np.diff(cdf), (edges[:-1] + edges[1:]) / 2
    near = np.abs(middles) <= 3.0
    target = int(np.argmax(np.where(near, 0.0, shares)))
    for alpha, wins in ((least + 1e-3, True), (least - 1e-3, False)):
        left, budget = shares[near].copy(), alpha
        for _ in range(20_000):  # take from the fullest near bin, little by little
            k, grain = int(np.argmax(left)), alpha / 20_000
            left[k] -= grain
            budget -= grain
        assert abs(budget) < 1e-9
        assert (shares[target] + alpha > left.max()) == wins
    assert 0.25 < least < 0.4
