"""Descent by signs that may be wrong: Theorem 8's parts, each against a computation of its own."""

import itertools
import math

import numpy as np
import pytest

from privrob.kinds import Streams
from privrob.robust import sign_descent, voting

STREAMS = Streams(2, "sign descent")


@pytest.mark.paper("fdp", "Equation 104")
def test_a_step_of_smooth_descent_obeys_its_bound_and_nearly_attains_it():
    excess = sign_descent.one_step_excess(300, rng=STREAMS.numpy("losses"))
    assert excess.shape == (600,)
    assert excess.max() < 1e-12
    assert excess.max() > -1e-3  # the bound is attained: one coordinate, a quadratic loss


def test_the_chain_settles_below_the_bound_and_not_from_one_half_on():
    for p in (0.0, 0.2, 0.4, 0.45):
        got = sign_descent.settled(p, num_rounds=6000)
        assert got <= 1 / (2 * (1 - 2 * p)) * (1 + 1e-9)
        ratio = p / (1 - p)  # of neighbouring masses, in equilibrium
        weights = ratio ** np.arange(2000)
        assert got == pytest.approx(weights @ (np.arange(2000) + 0.5) / weights.sum(), rel=1e-6)
    assert sign_descent.settled(0.5, num_rounds=6000) > 100
    assert sign_descent.settled(0.3, num_rounds=2, start=5) == pytest.approx(5.5 - 2 * 0.4)


@pytest.mark.paper("fdp", "Theorem 8")
def test_every_run_is_listed_with_its_probability():
    path, chance = sign_descent.all_runs(0.2, wrong_prob=0.25, num_rounds=4)
    assert path.shape == (5, 16)
    assert chance.sum() == pytest.approx(1.0, abs=1e-14)
    for run, (got, probability) in enumerate(zip(path.T, chance)):
        votes = [run >> t & 1 for t in range(4)]
        w, want = 0.2, [0.2]
        for bad in votes:
            w -= math.copysign(0.5, w) * (-1 if bad else 1)
            want.append(abs(w))
        assert got == pytest.approx(want)
        assert probability == pytest.approx(0.25 ** sum(votes) * 0.75 ** (4 - sum(votes)))


@pytest.mark.paper("fdp", "Theorem 8")
def test_the_rate_needs_the_expectation_the_dimension_and_the_first_rounds():
    def right(start, rounds, dimension=1, form="sound"):
        gap = dimension * start**2 / 2
        return voting.theorem_8(start_gap=gap, smoothness=1.0, num_rounds=rounds, dimension=dimension, form=form)

    left = sign_descent.bouncing(10, num_rounds=10_000)
    assert left == pytest.approx(0.05, rel=1e-9)
    assert right(0.005, 10_000, 10, "as_printed") < left <= right(0.005, 10_000, 10)
    path, chance = sign_descent.all_runs(0.1, wrong_prob=0.4, num_rounds=12)
    assert chance[0.2 * path[:-1].mean(axis=0) > right(0.1, 12)].sum() > 0.01  # a run by itself exceeds it
    path, _ = sign_descent.all_runs(0.01, wrong_prob=0.0, num_rounds=1)
    assert path[1, 0] > 1.9 * right(0.01, 1)  # summed from t = 1 on
    for start, p, rounds in itertools.product((0.01, 0.3, 2.0), (0.0, 0.2, 0.45), (1, 3, 10)):
        path, chance = sign_descent.all_runs(start, wrong_prob=p, num_rounds=rounds)
        assert (1 - 2 * p) * (path[:-1] @ chance).mean() <= right(start, rounds) * (1 + 1e-12)


@pytest.mark.paper("fdp", "Theorem 8")
def test_the_product_of_the_errors_fails_for_skewed_and_symmetric_noise_and_their_union_never():
    z = np.linspace(-4, 4, 4001)
    bell = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    skewed = sign_descent.two_errors([-1.0, 0.83], [0.45, 0.55])
    assert skewed["true"] == pytest.approx(0.0065)
    assert skewed["product"] == pytest.approx(0.038646, abs=5e-7)
    symmetric = sign_descent.two_errors(0.01 + np.array([-0.98, 0.0, 0.98]), [0.4, 0.2, 0.4])
    assert symmetric["rho_1"] < 0.5 > symmetric["rho_2"]
    assert symmetric["product"] > 5 * symmetric["true"]
    for mean, spread in ((0.02, 0.2), (0.1, 0.2), (0.5, 0.1), (0.9, 0.02)):
        got = sign_descent.two_errors(mean + spread * z, bell)
        assert got["product"] <= got["true"]
    rng = STREAMS.numpy("noise")
    for _ in range(500):
        g, p = rng.uniform(-1, 1, 4), rng.dirichlet(np.ones(4))
        g = g if p @ g > 0 else -g
        got = sign_descent.two_errors(g, p)
        votes = [voting.wrong_prob([(voting.binomial_vote(float(x), num_trials=1), 1)]) for x in g]
        assert got["true"] == pytest.approx(1 - 2 * float(p @ votes), abs=1e-12)
        assert got["union"] <= got["true"] + 1e-12


def test_impossible_noise_is_refused():
    for g, p in (([0.5, -0.6], [0.5, 0.5]), ([1.1, 0.0], [0.5, 0.5]), ([0.5], [0.9]), ([0.5, 0.2], [1.0])):
        with pytest.raises(ValueError, match="gradients must lie"):
            sign_descent.two_errors(g, p)
