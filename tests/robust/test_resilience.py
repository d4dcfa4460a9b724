"""Resilience, Tukey depth and the estimators that rest on them: against enumeration, and their privacy by search."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize

from privrob.accounting import pairs
from privrob.mechanisms.exponential import Exponential
from privrob.robust import resilience
from privrob.robust.exponential_time import exponential_plan, exponential_time_mean, grid, private_tukey_median
from privrob.robust.tukey import depth, on_lattice

NONE = {"neighbouring": "replace", "sampling": "none"}
GOODNESS = pytest.mark.paper("prime", "Definition 4.2")
ALGORITHM = pytest.mark.paper("prime", "Algorithm 2")
TUKEY = pytest.mark.paper("prime", "Theorem 12")


def rng(seed=0):
    return np.random.default_rng(seed)


def goodness_by_definition(points, rate):
    s, r, _ = resilience.sizes(len(points), rate)
    best = math.inf
    for some in itertools.combinations(range(len(points)), s):
        inner = points[list(some)]
        worst = max(
            np.linalg.norm(inner[list(t)].mean(axis=0) - inner.mean(axis=0))
            for t in itertools.combinations(range(s), s - r)
        )
        best = min(best, worst)
    return best


@GOODNESS
@pytest.mark.parametrize("d", [1, 2, 3])
def test_goodness_is_its_definition(d):
    for seed in range(12):
        points = rng(seed).integers(-3, 4, (9, d)).astype(float) if seed % 2 else rng(seed).exponential(size=(8, d))
        for rate in (0.1, 0.15, 0.2):
            got = resilience.goodness(points, corruption_rate=rate)
            assert got == pytest.approx(goodness_by_definition(points, rate), abs=1e-12)


@GOODNESS
def test_windows_on_the_line_bound_the_goodness_from_above():
    for seed in range(60):
        points = rng(seed).standard_cauchy(10) if seed % 2 else rng(seed).integers(-3, 4, 9).astype(float)
        rate = (0.1, 0.15, 0.2)[seed % 3]
        window, exact = (
            f(points[:, None], corruption_rate=rate) for f in (resilience.window_goodness, resilience.goodness)
        )
        assert window >= exact * (1 - 1e-9) - 1e-12
    inner = np.array([0.0, 0, 0, 1, 1, 2, 2, 2, 3])  # the best S' leaves out a 2 and the 3, or a 0 and the 3 …
    assert resilience.window_goodness(inner, corruption_rate=0.15) == pytest.approx(4 / 21)
    assert resilience.goodness(inner[:, None], corruption_rate=0.15) == pytest.approx(1 / 6)  # … but 1/6 takes a gap


@pytest.mark.paper("prime", "Definition 4.1")
@pytest.mark.paper("prime", "Lemma H.1")
def test_resilience_bounds_the_means_of_small_parts():
    points = rng(1).standard_normal((10, 2))
    rate = 0.2
    sigma = resilience.deviation(points, num_out=2)
    assert resilience.is_resilient(points, sigma=sigma, corruption_rate=rate)
    assert not resilience.is_resilient(points, sigma=0.99 * sigma, corruption_rate=rate)
    small = max(
        np.linalg.norm((points[list(t)] - points.mean(axis=0)).mean(axis=0))
        for t in itertools.combinations(range(10), 2)
    )
    assert small <= (2 - rate) / rate * sigma
    line = rng(2).standard_normal((9, 1))
    want = max(abs(line[list(t)].mean() - 0.3) for t in itertools.combinations(range(9), 7))
    assert resilience.deviation(line, num_out=2, about=[0.3]) == pytest.approx(want)
    with pytest.raises(ValueError, match="few enough to enumerate"):
        resilience.deviation(rng(0).standard_normal((60, 2)), num_out=20)


@pytest.mark.paper("prime", "Lemma H.5")
def test_the_goodness_moves_by_d_over_s_which_is_more_than_printed():
    """d = 1, data in [0, 1]: lattices of n = 30 by windows (and of 8 by enumeration); D/s is attained, D/n passed."""
    for score, rate, n in ((resilience.window_goodness, 0.1, 30), (resilience.goodness, 0.2, 8)):
        s, worst = resilience.sizes(n, rate)[0], 0.0
        for ones in range(n + 1):
            for middles in range(0, n + 1 - ones, 1 if n < 10 else 9):
                base = np.array([1.0] * ones + [0.5] * middles + [0.0] * (n - ones - middles))
                here = score(base[:, None], corruption_rate=rate)
                for i, new in itertools.product({0, ones, n - 1} - {n}, (0.0, 0.5, 1.0)):
                    other = base.copy()
                    other[i] = new
                    worst = max(worst, abs(here - score(other[:, None], corruption_rate=rate)))
        bound = resilience.goodness_sensitivity(n, corruption_rate=rate, diameter=1.0)
        assert worst <= bound * (1 + 1e-12)
        assert bound == 1 / s
        if n == 30:
            assert worst == pytest.approx(bound)  # 1.25 / n


@pytest.mark.paper("prime", "Lemma H.7")
@pytest.mark.paper("prime", "Lemma H.12")
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.15])
def test_the_distance_moves_by_no_more_than_its_sound_sensitivity(rate):
    """Two clusters and noise, one record thrown across. From α = 1/11 on the printed 12√log(1/α)/n is passed."""
    n, generator, ratios, printed = 400, rng(3), [], []
    candidates = np.array([[-1.0], [0.0], [2.0]])
    for trial in range(120):
        share = int(generator.integers(0, n + 1))
        base = np.where(np.arange(n) < share, 1.0, 0.0) + 0.05 * generator.standard_normal(n) * (trial % 3 == 0)
        good = resilience.window_goodness(base, corruption_rate=rate)
        bound = resilience.distance_sensitivity(n, corruption_rate=rate, goodness_bound=good)
        for i in (0, n - 1, share % n):
            for new in (-100.0, 100.0):
                other = base.copy()
                other[i] = new
                gap = np.abs(
                    resilience.distance(candidates, base[:, None], corruption_rate=rate)
                    - resilience.distance(candidates, other[:, None], corruption_rate=rate)
                ).max()
                assert gap <= bound * (1 + 1e-9) + 1e-12
                if good > 1e-6:
                    ratios.append(gap / bound)
                    limit = 3 * rate * math.sqrt(math.log(1 / rate))  # scaled so that R is at the limit it is given
                    printed.append(gap * limit / good / (12 * math.sqrt(math.log(1 / rate)) / n))
    assert max(ratios) > 0.3
    assert (max(printed) > 1) == (rate >= 0.1)


@pytest.mark.paper("prime", "Definition 4.3")
@pytest.mark.paper("prime", "Lemma H.9")
def test_the_distance_is_the_largest_over_directions():
    points, generator = rng(4).standard_normal((60, 2)), rng(5)
    candidates = generator.standard_normal((5, 2))
    got = resilience.distance(candidates, points, corruption_rate=0.05, along=resilience.directions(2, num=720))
    for c, value in zip(candidates, got):  # a search over the circle
        best = 0.0
        for angle in np.linspace(0, np.pi, 1500):
            v = np.array([math.cos(angle), math.sin(angle)])
            middle = np.sort(points @ v)[9:-9]
            best = max(best, abs(middle.mean() - c @ v))
        assert value == pytest.approx(best, rel=2e-4)
    far = np.array([[7.0, -2.0]])
    assert resilience.distance(far, points, corruption_rate=0.05)[0] == pytest.approx(np.linalg.norm(far), abs=0.5)
    assert resilience.directions(3, num=500).shape == (500, 3)
    cover = np.abs(resilience.directions(3, num=500) @ generator.standard_normal((3, 200)))
    assert cover.max(axis=0).shape == (200,)
    with pytest.raises(ValueError, match="1, 2 or 3"):
        resilience.directions(4)
    with pytest.raises(ValueError, match="6α < 1"):
        resilience.trimmed_means(points, num_trimmed=30, along=np.eye(2))


def test_directions_in_space_leave_no_gap():
    net, tries = resilience.directions(3, num=500), rng(6).standard_normal((2000, 3))
    tries /= np.linalg.norm(tries, axis=1, keepdims=True)
    nearest = np.abs(tries @ net.T).max(axis=1)
    assert math.acos(nearest.min()) < math.sqrt(2 * math.pi / 500)
    np.testing.assert_allclose(np.linalg.norm(net, axis=1), 1.0)


# ---------------------------------------------------------------------------------------------------------- Algorithm 2


@ALGORITHM
@pytest.mark.paper("prime", "Theorem 7")
def test_the_exponential_time_mean_finds_the_mean_on_the_line():
    errors, plain = [], []
    for seed in range(5):
        data = rng(seed).standard_normal((6000, 1))
        data[:300] += 4.0
        found = exponential_time_mean(data, corruption_rate=0.05, epsilon=2.0, delta=1e-6, rng=rng(seed), spacing=0.01)
        errors.append(found.error([0.0]))
        plain.append(abs(data.mean()))
    assert np.mean(errors) < 0.6 * np.mean(plain)
    assert max(errors) < 2 * 0.05 * math.sqrt(math.log(20))


@ALGORITHM
@pytest.mark.parametrize("d", [2, 3])
def test_it_runs_in_the_plane_and_in_space_on_a_dozen_records(d):
    data = 0.1 * rng(7).standard_normal((12, d)) + 1.0
    how = {"corruption_rate": 0.1, "epsilon": 200.0, "delta": 0.01, "location": np.full(d, 1.0), "half_width": 1.0}
    found = exponential_time_mean(data, rng=rng(8), spacing=0.1, **how)
    assert found.error(np.full(d, 1.0)) < 0.4
    data[0] = 50.0  # one bad record of twelve
    assert exponential_time_mean(data, rng=rng(8), spacing=0.1, **how).error(np.full(d, 1.0)) < 0.4


@ALGORITHM
def test_it_refuses_sets_that_are_not_resilient_and_says_so():
    data = rng(9).standard_normal((20_000, 1)) * 6
    found = exponential_time_mean(data, corruption_rate=0.05, epsilon=2.0, delta=1e-6, rng=rng(1))
    assert found.refused
    assert "resilience too large" in found.reason
    few = exponential_time_mean(data[:50], corruption_rate=0.05, epsilon=1.0, delta=1e-6, rng=rng(1))
    assert "cut-off" in few.reason
    with pytest.raises(ValueError, match="6α < 1"):
        exponential_time_mean(data, corruption_rate=0.2, epsilon=2.0, delta=1e-6, rng=rng(1))


@ALGORITHM
def test_the_sound_plan_spends_epsilon_and_the_printed_one_five_thirds():
    how = {"delta": 1e-4, "num_records": 4000, "dimension": 1, "corruption_rate": 0.05, "diameter": 30.0}
    sound, choose, _ = exponential_plan(1.5, **how)
    assert choose.pure_epsilon == 0.5
    assert sound.epsilon(1e-4).upper <= 1.5
    printed, loud, _ = exponential_plan(1.5, form="as_printed", **how)
    assert loud.pure_epsilon == 1.5
    pure = printed["goodness"].pure_epsilon + printed["choice"].pure_epsilon + 1.5 / 3  # with the range's third
    assert pure > 5 / 3 * 1.5
    assert printed["goodness"].pure_epsilon > 0.5 * 1.05  # D/s, not D/n
    wide = exponential_plan(1.5, form="as_printed", **{**how, "corruption_rate": 0.15})[0]
    assert wide["choice"].pure_epsilon > 3 * 1.5


@ALGORITHM
@pytest.mark.paper("prime", "Theorem 8")
def test_the_heavy_tailed_branch_has_its_own_limits():
    how = {"delta": 1e-4, "num_records": 10_000, "dimension": 1, "corruption_rate": 0.04, "diameter": 250.0}
    plan, _, limit = exponential_plan(1.0, heavy_tailed=True, constant=1.5, **how)
    assert limit == pytest.approx(2 * 1.5 * 0.2)
    assert plan.location.num_blocks > 500
    data = rng(10).standard_t(3, (30_000, 1)) / math.sqrt(3) + 4.0
    data[:1200] += 30.0
    found = exponential_time_mean(data, corruption_rate=0.04, epsilon=30.0, delta=0.01, rng=rng(2), heavy_tailed=True,
                                  location=np.array([3.0]), half_width=60.0, spacing=0.05)  # fmt: skip
    assert found.error([4.0]) < 0.2


@pytest.mark.paper("prime", "Proposition I.2")
def test_the_exponential_mechanism_draws_by_its_weights_and_keeps_its_promise():
    mechanism = Exponential(1.2, 0.5)
    utilities = np.array([0.0, 1.0, 0.3, -2.0])
    want = np.exp(1.2 * utilities / (2 * 0.5))
    want /= want.sum()
    np.testing.assert_allclose(np.exp(mechanism.log_probs(utilities)), want)
    generator = rng(11)
    got = np.bincount([mechanism.release(utilities, rng=generator) for _ in range(20_000)], minlength=4) / 20_000
    assert (np.abs(got - want) < 5 * np.sqrt(want * (1 - want) / 20_000)).all()
    worst = 0.0
    for change in itertools.product([-0.5, 0.5], repeat=4):  # every neighbour at the sensitivity
        worst = max(worst, np.abs(mechanism.log_probs(utilities + change) - mechanism.log_probs(utilities)).max())
    assert 0.5 * 1.2 < worst <= 1.2 + 1e-12
    assert mechanism.epsilon(0.0, **NONE).upper == pytest.approx(1.2)
    assert mechanism.tradeoff(0.1, **NONE) == pytest.approx(max(1 - 0.1 * math.exp(1.2), 0.9 * math.exp(-1.2)))
    assert pairs.compose([(mechanism.pairs(**NONE), 2)], delta=0.0).upper == pytest.approx(2.4)
    assert mechanism.rdp([2.0], **NONE)[0] < 1.2


def test_grids_depend_on_their_centre_only_and_have_a_limit():
    points = grid([1.0, 2.0], half_width=1.0, spacing=0.25, radius=1.0)
    assert np.linalg.norm(points - [1.0, 2.0], axis=1).max() <= 1.0 + 1e-9
    assert len(grid([0.0, 0.0], half_width=1.0, spacing=0.25)) == 81
    with pytest.raises(ValueError, match="candidates"):
        grid([0.0, 0.0, 0.0], half_width=10.0, spacing=0.01)


# ---------------------------------------------------------------------------------------------------------------- depth


def depth_by_directions(candidate, data, normals):
    """Least count over all the half spaces that a fine net of perturbed normals gives."""
    side = (data - candidate) @ normals.T
    return (side >= -1e-12).sum(axis=0).min() / len(data)


@TUKEY
def test_depth_on_the_line_counts_both_sides():
    data = np.array([[0.0], [1.0], [1.0], [2.0], [5.0]])
    got = depth(np.array([[-1.0], [0.0], [1.0], [1.5], [2.0], [5.0], [6.0]]), data)
    np.testing.assert_allclose(5 * got, [0, 1, 3, 2, 2, 1, 0])


@TUKEY
@pytest.mark.parametrize("lattice", [True, False])
def test_depth_in_the_plane_is_the_least_over_all_directions(lattice):
    angles = np.linspace(0, 2 * np.pi, 7211)  # no multiple of a lattice's angles
    normals = np.stack([np.cos(angles + 1e-3), np.sin(angles + 1e-3)], axis=1)
    for seed in range(15):
        data = rng(seed).integers(-2, 3, (12, 2)).astype(float) if lattice else rng(seed).standard_normal((12, 2))
        candidates = np.vstack([data[:3], rng(seed).integers(-2, 3, (3, 2)), 0.3 * rng(seed).standard_normal((3, 2))])
        got = depth(candidates, data)
        want = [depth_by_directions(c, data, normals) for c in candidates]
        np.testing.assert_allclose(got, want)


def excludes(data, candidate, count):
    """Whether some open half space through the candidate misses all but ``count`` records, by linear programs."""
    for keep in itertools.combinations(range(len(data)), count):
        rest = np.delete(data - candidate, keep, axis=0)
        if optimize.linprog(np.zeros(3), A_ub=rest, b_ub=-np.ones(len(rest)), bounds=[(None, None)] * 3).status == 0:
            return True
    return False


@TUKEY
@pytest.mark.parametrize("lattice", [True, False])
def test_depth_in_space_is_the_fewest_records_that_a_half_space_must_hold(lattice):
    for seed in (0, 4):
        data = rng(seed).integers(-1, 2, (9, 3)).astype(float) if lattice else rng(seed).standard_normal((9, 3))
        candidates = np.vstack([data[:1], rng(seed).integers(-1, 2, (1, 3)), 0.2 * rng(seed).standard_normal((2, 3))])
        for c, got in zip(candidates, np.rint(9 * depth(candidates, data)).astype(int)):
            assert excludes(data, c, got)
            assert got == 0 or not excludes(data, c, got - 1)


@TUKEY
def test_depth_of_flat_sets_is_zero_beside_them_and_their_own_within():
    line = np.outer(np.arange(5.0), [1.0, 2.0, -1.0])
    plane = np.hstack([rng(21).standard_normal((8, 2)), np.zeros((8, 1))])
    np.testing.assert_allclose(depth(line[[2]], line), 3 / 5)
    np.testing.assert_allclose(depth(line[[2]] + [0, 0, 1.0], line), 0.0)
    middle = plane.mean(axis=0, keepdims=True)
    assert depth(middle[:, :2], plane[:, :2])[0] >= 2 / 8
    np.testing.assert_allclose(depth(middle, plane), depth(middle[:, :2], plane[:, :2]))
    octahedron = np.vstack([np.eye(3), -np.eye(3)])
    np.testing.assert_allclose(depth(np.array([[0, 0, 0], [0.1, 0, 0], [1, 0, 0]]), octahedron), [3 / 6, 1 / 6, 1 / 6])
    np.testing.assert_allclose(depth(np.zeros((1, 3)), np.zeros((4, 3))), 1.0)
    with pytest.raises(ValueError, match="hard to find"):
        depth(np.zeros((1, 4)), np.zeros((2, 4)))


@TUKEY
@pytest.mark.parametrize("d", [2, 3])
def test_one_record_far_out_moves_no_depth_by_more_than_its_share(d):
    """A tolerance that grew with the farthest record put all others on every candidate: depths of 1."""
    data, candidates = rng(24).standard_normal((20, d)), rng(25).standard_normal((6, d))
    before = depth(candidates, data)
    for far in (1e6, 1e12, 1e100):
        data[0] = far
        assert np.abs(depth(candidates, data) - before).max() <= 1 / 20 + 1e-12
    np.testing.assert_allclose(depth(data[:1], data), 1 / 20)


@TUKEY
def test_depth_moves_by_one_record_in_n():
    data, candidates = rng(22).standard_normal((15, 2)), rng(23).standard_normal((20, 2))
    before, worst = depth(candidates, data), 0.0
    for i in range(15):
        other = data.copy()
        other[i] = 3 * rng(i).standard_normal(2)
        worst = max(worst, np.abs(depth(candidates, other) - before).max())
    assert worst == pytest.approx(1 / 15)


@TUKEY
@pytest.mark.paper("prime", "Algorithm I.1")
def test_the_private_tukey_median_resists_a_cluster():
    errors = []
    for seed in range(8):
        data = rng(seed).standard_normal((300, 2))
        data[:15] += 8.0
        found = private_tukey_median(data, epsilon=2.0, rng=rng(seed), half_range=0.5, spacing=0.1)
        errors.append(found.error(np.zeros(2)))
    assert np.mean(errors) < 0.3 < np.linalg.norm([0.4, 0.4])  # what the cluster does to the mean
    assert found.noise["choice"].pure_epsilon == 2.0
    assert private_tukey_median(np.zeros((0, 2)), epsilon=1.0, rng=rng(0), half_range=1.0, spacing=0.5).refused


@pytest.mark.paper("prime", "Appendix I")
def test_a_huge_or_tiny_record_moves_a_depth_by_one():
    lattice = np.array(list(itertools.product([-1.0, 0.0, 1.0], repeat=3)))
    for size in (1e200, 1e308, 1e-300, 5e-324):
        data = lattice[rng(6).choice(27, 7, replace=False)]
        other = data.copy()
        other[0] = size, 0.0, 0.0
        moved = 7 * (depth(lattice, data) - depth(lattice, other))
        assert np.abs(moved).max() <= 1 + 1e-9
        on_axis = np.vstack([other[1:], [[min(size, 1e3), 0.0, 0.0]]])  # a direction is all that counts
        if size > 1:
            np.testing.assert_allclose(depth(lattice[13:14], other), depth(lattice[13:14], on_axis), atol=1e-12)


@pytest.mark.paper("prime", "Appendix I")
def test_records_nearly_in_a_plane_move_a_depth_by_one_once_on_the_lattice():
    draw, how = rng(7), {"half_range": 1.0, "spacing": 1.0}
    lattice = np.array(list(itertools.product([-1.0, 0.0, 1.0], repeat=3)))
    near = lattice + 1e-9 * draw.standard_normal(lattice.shape)
    pool = np.vstack([lattice, near, 1e9 + draw.standard_normal((9, 3)), np.eye(3) * 1e200])
    snapped = on_lattice(pool, **how)
    np.testing.assert_array_equal(snapped[27:54], lattice)
    assert np.abs(snapped).max() == 4.0
    np.testing.assert_allclose(on_lattice(pool[:60] * 0.37, **how), np.clip(pool[:60] * 0.37, -4, 4), atol=1 / 180)
    for _ in range(15):
        data = pool[draw.integers(len(pool), size=6)]
        other = data.copy()
        other[0] = pool[draw.integers(len(pool))]
        moved = depth(lattice, on_lattice(data, **how)) - depth(lattice, on_lattice(other, **how))
        assert np.abs(6 * moved).max() <= 1 + 1e-9


@pytest.mark.paper("prime", "Appendix I")
def test_records_that_differ_by_less_than_rounding_move_a_depth_in_the_plane_by_one():
    """Two directions 1e-13 apart are told apart by no angle; what the median sees is on a lattice."""
    num, how = 50, {"half_range": 1.0, "spacing": 2.0}
    data = np.vstack([[[1.0, 0.0]] * num, [[-1.0, -5e-13]] * num])
    other = data.copy()
    other[-1] = [1.0, -8e-13]
    points = np.array(list(itertools.product([-2.0, 0.0, 2.0], repeat=2)))
    moved = depth(points, on_lattice(data, **how)) - depth(points, on_lattice(other, **how))
    assert np.abs(2 * num * moved).max() <= 1 + 1e-9
    counts = []
    for records in (data, other):
        draws = [private_tukey_median(records, epsilon=0.1, rng=rng(k), **how).estimate for k in range(400)]
        counts.append(sum(not np.any(d) for d in draws))
    assert max(counts) < 1.6 * min(counts) + 20  # e^0.1, and chance; without the lattice 5.4 times


@pytest.mark.parametrize("scale", [1e9, 1e200, 1e-300])
def test_the_private_tukey_median_answers_whatever_the_records(scale):
    data = scale * (1 + 1e-9 * rng(8).standard_normal((10, 3)))
    found = private_tukey_median(data, epsilon=5.0, rng=rng(9), half_range=2.0, spacing=2.0)
    assert np.isfinite(found.estimate).all()
    assert np.abs(found.estimate).max() <= 4.0
    data[0] = math.nan
    assert not private_tukey_median(data, epsilon=5.0, rng=rng(9), half_range=2.0, spacing=2.0).refused
