"""Clipped rows and the filter: sums by blocks, the tie rule, contraction by brute force, Algorithm 4's error."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from privrob.robust.corruption import corrupted_normal
from privrob.robust.filtering import FilteredSet, excess, filter_mean, rounded, stop_level, tail, tail_size
from privrob.robust.rows import Ball, Cube, Everywhere, Rows, factor_of

CONTRACTION = pytest.mark.paper("prime", "Lemma 2.2")
TIES = pytest.mark.paper("prime", "Definition C.1")
ALGORITHM = pytest.mark.paper("prime", "Algorithm 4")


def distance(a, b):
    """d_Δ of two multisets of rows."""
    a, b = [tuple(r) for r in a], [tuple(r) for r in b]
    both = sum(min(a.count(r), b.count(r)) for r in set(a))
    return max(len(a) - both, len(b) - both)


def survivors(points, steps, size):
    state = FilteredSet(Rows(np.asarray(points, dtype=float), Everywhere(np.zeros(len(points[0])))))
    for centre, direction, threshold in steps:
        state.remove(state.scores(centre, np.asarray(direction, dtype=float)[:, None]), threshold, size=size)
    return np.asarray(points, dtype=float)[state.alive]


# ----------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("region", [Cube(np.array([1.0, -2.0, 0.5]), 2.0), Ball(np.array([1.0, -2.0, 0.5]), 1.3)])
def test_clipping_is_the_projection_onto_the_region(region):
    rng = np.random.default_rng(0)
    data = 3 * rng.standard_normal((300, 3))
    rows = Rows(data, region)
    clipped = rows.take(np.arange(300)) + region.centre
    for x, y in zip(data, clipped):  # the nearest point: no other point of the region is nearer
        others = region.clip(3 * rng.standard_normal((200, 3))) + region.centre
        assert np.linalg.norm(x - y) <= np.linalg.norm(x - others, axis=1).min() + 1e-12
        np.testing.assert_allclose(region.nearest(x), y, atol=1e-12)
    about = data - region.centre
    if isinstance(region, Cube):
        want = np.minimum(np.maximum(about, -1.0), 1.0)
    else:
        length = np.linalg.norm(about, axis=1)
        want = np.where((length <= 1.3)[:, None], about, about * (1.3 / length)[:, None])
    np.testing.assert_allclose(clipped - region.centre, want, atol=1e-12)
    gaps = np.linalg.norm(clipped[:, None] - clipped[None], axis=2)
    assert gaps.max() <= region.diameter * (1 + 1e-12)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_blocks_give_what_the_whole_gives(keep, dtype):
    rng = np.random.default_rng(1)
    data = (5 * rng.standard_normal((1001, 4)) + 3).astype(dtype)
    data[5, 2], data[9] = np.nan, np.inf
    region = Ball(np.full(4, 3.0), 6.0)
    whole, blocks = Rows(data, region, block=5000), Rows(data, region, block=37, keep=keep)
    chosen = rng.random(1001) < 0.6
    tolerance = 1e-12 if dtype == np.float64 else 2e-6  # rounding of sums in blocks
    for one, other in zip(whole.moments(chosen), blocks.moments(chosen)):
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance * 1e4)
    factor = rng.standard_normal((4, 2))
    point = rng.standard_normal(4)
    np.testing.assert_allclose(
        blocks.scores(point, factor), whole.scores(point, factor), rtol=20 * tolerance, atol=20 * tolerance
    )
    kept = whole.take(np.arange(1001))
    np.testing.assert_allclose(
        whole.scores(point, factor), (((kept - point) @ factor) ** 2).sum(axis=1), rtol=1e-4, atol=1e-4
    )
    count, total, gram = whole.moments(chosen)
    assert count == chosen.sum()
    np.testing.assert_allclose(total, kept[chosen].sum(axis=0), atol=1e-2)
    np.testing.assert_allclose(gram, kept[chosen].T @ kept[chosen], rtol=1e-5, atol=1e-2)


def test_a_row_that_is_not_finite_counts_as_the_centre():
    data = np.array([[np.nan, 1.0], [np.inf, 0.0], [1.0, 1.0]])
    for region in (Cube(np.array([5.0, 5.0]), 2.0), Ball(np.array([5.0, 5.0]), 2.0)):
        rows = Rows(data, region).take([0, 1, 2])
        assert rows[:2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
        assert np.isfinite(rows).all()


def test_a_memory_map_and_a_tensor_give_the_same_as_an_array(tmp_path):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    data = rng.standard_normal((500, 3))
    data[7] = np.nan
    np.save(tmp_path / "rows.npy", data)
    region = Ball(np.full(3, 0.1), 1.5)
    want = Rows(data, region)
    keeps = [Rows(np.load(tmp_path / "rows.npy", mmap_mode="r"), region, block=64, keep=False)]
    keeps += [Rows(torch.from_numpy(data), region, block=64, keep=k) for k in (True, False)]
    for other in keeps:
        for a, b in zip(want.moments(), other.moments()):
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-10)
        np.testing.assert_allclose(other.scores(np.ones(3), np.eye(3)), want.scores(np.ones(3), np.eye(3)), rtol=1e-12)
        np.testing.assert_allclose(other.take([3, 7, 9]), want.take([3, 7, 9]), rtol=1e-14)
        state = FilteredSet(other)
        assert len(state.remove(state.scores(np.zeros(3), np.eye(3)), 1.0, size=20)) == 20


def test_factor_of_gives_back_its_matrix():
    a = np.random.default_rng(3).standard_normal((4, 2))
    factor = factor_of(a @ a.T)
    assert factor.shape[1] == 2
    np.testing.assert_allclose(factor @ factor.T, a @ a.T, atol=1e-12)


# ----------------------------------------------------------------------------------------------------------------- tail


@TIES
def test_the_tail_is_the_head_of_the_sorted_list():
    """By sorting tuples (score, x_1, x_2), the larger first: the definition, word for word."""
    rng = np.random.default_rng(4)
    for _ in range(300):
        n = int(rng.integers(1, 12))
        points = rng.integers(-1, 2, (n, 2)).astype(float)
        scores = points[:, 0] ** 2
        threshold, size = rng.choice([-1.0, 0.0, 0.5]), int(rng.integers(0, n + 1))
        order = sorted(range(n), key=lambda i: (scores[i], *points[i]), reverse=True)
        want = sorted(tuple(points[i]) for i in order[:size] if scores[i] > threshold)
        candidates = np.flatnonzero(scores > threshold)
        got = tail(scores, candidates, size=size, take=lambda i, points=points: points[i])
        assert sorted(tuple(points[i]) for i in got) == want


@TIES
def test_tail_size_rounds_up_and_not_by_rounding_errors():
    assert [tail_size(n, a) for n, a in ((10, 0.05), (11, 0.05), (1000, 0.001), (100, 0.07), (10, 0.0))] == [
        1,
        2,
        2,
        14,
        0,
    ]


def test_rounding_keeps_order_and_takes_the_last_bits():
    scores = np.random.default_rng(5).exponential(size=1000)
    scores[1] = np.nextafter(scores[0], 2)
    got = rounded(scores)
    np.testing.assert_allclose(got, scores, rtol=2.0**-39)
    assert (np.diff(got[np.argsort(scores)]) >= 0).all()
    assert got[0] == got[1]


# ---------------------------------------------------------------------------------------------------------- contraction


@CONTRACTION
@pytest.mark.paper("prime", "Lemma F.1")
def test_filtering_contracts_on_every_small_data_set_with_ties():
    """All data sets of four points of a 3 × 2 lattice, all neighbours, a grid of steps: distance 1 at most."""
    lattice = [(float(a), float(b)) for a in (-1, 0, 1) for b in (0, 1)]
    steps = [((0.0, 0.0), (1.0, 0.0), t) for t in (0.0, 0.5)] + [((0.5, 0.0), (1.0, 1.0), 0.3)]
    worst = tried = 0
    for step, size in itertools.product(steps, (1, 2, 3)):
        kept = {c: survivors(list(c), [step], size) for c in itertools.combinations_with_replacement(lattice, 4)}
        for c, left in kept.items():
            for out in range(4):
                rest = c[:out] + c[out + 1 :]
                for new in lattice:
                    other = tuple(sorted((*rest, new)))
                    if c < other:
                        worst, tried = max(worst, distance(left, kept[other])), tried + 1
    assert worst == 1
    assert tried > 5000


@CONTRACTION
@pytest.mark.slow
def test_filtering_contracts_along_random_histories():
    rng = np.random.default_rng(6)
    worst = 0
    for _ in range(5000):
        n = int(rng.integers(3, 9))
        points = rng.integers(-2, 3, (n, 2)).astype(float)
        other = points.copy()
        other[rng.integers(n)] = rng.integers(-3, 4, 2)
        if rng.random() < 0.3:  # one record removed: what an earlier step may leave
            other = np.delete(points, rng.integers(n), axis=0)
        other = other[rng.permutation(len(other))]
        steps = [
            (rng.integers(-1, 2, 2), rng.integers(-1, 2, 2), 4 * rng.random() * (rng.random() < 0.7)) for _ in range(4)
        ]
        size = int(rng.integers(1, 4))
        worst = max(worst, distance(survivors(points, steps, size), survivors(other, steps, size)))
    assert worst == 1


@CONTRACTION
def test_a_displaced_record_comes_back_which_the_printed_proof_leaves_out():
    """a' joins the tail and is removed; b, now displaced from it, stays: S(D) ∖ S(D') isn't {a} alone."""
    step, size = [((0.0,), (1.0,), 0.5)], 1
    before = survivors([(0.1,), (2.0,), (0.2,)], step, size)  # b = 2 goes
    after = survivors([(3.0,), (2.0,), (0.2,)], step, size)  # a' = 3 goes, b stays
    assert sorted(before[:, 0]) == [0.1, 0.2]
    assert sorted(after[:, 0]) == [0.2, 2.0]
    assert distance(before, after) == 1
    assert len(after) == len(before), "the proof says S(D) = S(D') with a beside: one more"


@CONTRACTION
def test_a_threshold_for_each_record_does_not_contract():
    """As the authors' script has it: the tail first, then each of its records against a Z of its own."""
    draws, kept = np.array([45.0, 0.0, 0.0, 0.0]), []
    for rows in (np.array([[0.0], [2.0], [0.1], [0.2]]), np.array([[3.0], [2.0], [0.1], [0.2]])):
        scores = rows[:, 0] ** 2
        top = np.argsort(-scores, kind="stable")[:1]
        kept.append(np.delete(rows, top[scores[top] > draws[top]], axis=0))
    assert distance(*kept) == 2


@CONTRACTION
def test_the_largest_score_as_a_threshold_does_not_contract():
    """Algorithm 4's Z·max moves with one record: a far one saves all the others."""
    points = np.array([[2.0], [-2.0], [2.1], [0.0]])
    other = np.array([[2.0], [-2.0], [2.1], [50.0]])
    kept = []
    for rows in (points, other):
        state = FilteredSet(Rows(rows, Everywhere(np.zeros(1))))
        scores = state.scores(np.zeros(1), np.eye(1))
        state.remove(scores, 0.5 * scores.max(), size=3)
        kept.append(rows[state.alive])
    assert distance(*kept) == 3


@CONTRACTION
def test_ties_by_position_do_not_contract():
    data = np.array([[1.0], [1.0], [1.0], [-1.0], [-1.0], [-1.0]])
    kept = [np.delete(rows, np.argsort(-(rows[:, 0] ** 2), kind="stable")[:3], axis=0) for rows in (data, data[::-1])]
    assert distance(*kept) == 3
    by_content = [survivors([tuple(r) for r in rows], [((0.0,), (1.0,), 0.0)], 3) for rows in (data, data[::-1])]
    assert distance(*by_content) == 0


# -------------------------------------------------------------------------------------------------------------- moments


def test_downdates_agree_with_sums_over_what_is_left():
    rng = np.random.default_rng(7)
    data = rng.standard_normal((400, 5)) + 100.0
    state = FilteredSet(Rows(data, Ball(np.full(5, 100.0), 4.0)))
    for _ in range(12):
        state.remove(state.scores(state.mean, rng.standard_normal((5, 2))), 0.3, size=25)
        kept = state.rows.take(np.flatnonzero(state.alive))
        assert state.size == len(kept)
        np.testing.assert_allclose(state.mean, kept.mean(axis=0), atol=1e-11)
        centred = kept - kept.mean(axis=0)
        np.testing.assert_allclose(state.second_moment, centred.T @ centred / 400, atol=1e-11)
    assert state.size == 100
    state.drop(np.flatnonzero(state.alive))
    assert state.size == 0
    assert not state.mean.any()
    assert not state.second_moment.any()


def test_negative_eigenvalues_block_the_printed_test_and_not_the_one_sided_one():
    """Removing the two-sided 2α tail of a Normal brings one eigenvalue down by 2(a + zφ(z)): 2.9 α log(1/α)."""
    rate = 0.05
    z = norm.isf(rate)
    fall = 2 * (rate + z * norm.pdf(z))
    assert fall / stop_level(rate) == pytest.approx(2.94, abs=0.01)
    matrix = np.diag([1 - fall, 1.0, 1.0])
    assert excess(matrix) == pytest.approx(fall)
    assert excess(matrix, stop="top") == pytest.approx(0.0, abs=1e-15)
    assert excess(np.diag([1.2, 0.9])) == pytest.approx(0.2)


# ---------------------------------------------------------------------------------------------------------- Algorithm 4


@ALGORITHM
@pytest.mark.paper("prime", "Proposition 2.1")
@pytest.mark.parametrize("adversary", ["cluster", "rotated", "random", "corner", "scatter", "decoy"])
def test_the_error_of_the_filter_is_a_small_multiple_of_the_stated_rate(adversary):
    rate, errors, plain = 0.05, [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        data, _ = corrupted_normal(4000, 8, corruption_rate=rate, adversary=adversary, rng=rng)
        found = filter_mean(data, corruption_rate=rate, rng=rng)
        errors.append(found.error(np.zeros(8)))
        plain.append(float(np.linalg.norm(data.mean(axis=0))))
    assert max(errors) < 3 * rate * math.sqrt(math.log(1 / rate))  # a constant of 3; tail_swap attains 2.4
    if adversary in ("cluster", "rotated", "corner", "decoy"):
        assert np.mean(errors) < 0.7 * np.mean(plain)


@ALGORITHM
def test_the_error_falls_with_the_corruption_and_does_not_grow_with_the_dimension():
    def error(rate, d, n=6000):
        found = []
        for seed in range(6):
            rng = np.random.default_rng(seed)
            data, _ = corrupted_normal(n, d, corruption_rate=rate, adversary="rotated", rng=rng)
            found.append(filter_mean(data, corruption_rate=rate, rng=rng).error(np.zeros(d)))
        return np.mean(found)

    assert error(0.02, 8) < error(0.1, 8)
    plain = 1.5 * 0.1
    assert error(0.1, 4) < 1.2 * plain * math.sqrt(4)
    assert error(0.1, 32) < 0.5 * plain * math.sqrt(32)


@ALGORITHM
def test_a_tail_swap_is_seen_by_no_filter():
    rng = np.random.default_rng(8)
    rate, d = 0.05, 6
    data, bad = corrupted_normal(40_000, d, corruption_rate=rate, adversary="tail_swap", rng=rng)
    found = filter_mean(data, corruption_rate=rate, rng=rng)
    z = norm.isf(rate)
    want = norm.pdf(z) + rate * math.sqrt(1 + z * norm.pdf(z) / rate)  # what left, and what came
    assert found.error(np.zeros(d)) == pytest.approx(want, abs=5 * math.sqrt(d / 40_000))
    assert found.error(np.zeros(d)) > 2.3 * rate * math.sqrt(math.log(1 / rate))
    assert bad.sum() == 2000


@ALGORITHM
def test_the_filter_moves_with_the_data_and_turns_with_it():
    rng = np.random.default_rng(9)
    data, _ = corrupted_normal(1500, 4, corruption_rate=0.1, adversary="corner", rng=rng)
    one = filter_mean(data, corruption_rate=0.1, rng=np.random.default_rng(1)).estimate
    shift = np.array([1e3, -5.0, 0.0, 7.0])
    moved = filter_mean(data + shift, corruption_rate=0.1, rng=np.random.default_rng(1)).estimate
    np.testing.assert_allclose(moved, one + shift, atol=1e-8)
    turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    turned = filter_mean(data @ turn, corruption_rate=0.1, rng=np.random.default_rng(1)).estimate
    np.testing.assert_allclose(turned, one @ turn, atol=1e-6)  # started at the median of other axes
    mixed = filter_mean(data[rng.permutation(1500)], corruption_rate=0.1, rng=np.random.default_rng(1)).estimate
    np.testing.assert_allclose(mixed, one, atol=1e-9)


@ALGORITHM
def test_corner_cases_have_stated_outcomes():
    rng = np.random.default_rng(10)
    equal = filter_mean(np.full((50, 3), 2.5), corruption_rate=0.1, rng=rng)
    assert equal.status == "exhausted"  # M = 0 is not the identity, and there is nothing to remove
    np.testing.assert_allclose(equal.estimate, 2.5)
    data = rng.standard_normal((200, 2))
    clean = filter_mean(data, corruption_rate=0.0, rng=rng)
    np.testing.assert_allclose(clean.estimate, data.mean(axis=0), atol=1e-12)
    assert filter_mean(np.zeros((0, 2)), corruption_rate=0.1, rng=rng).refused
    assert filter_mean(np.array([[4.0]]), corruption_rate=0.1, rng=rng).estimate == pytest.approx([4.0])
    data[0] = np.nan
    assert np.isfinite(filter_mean(data, corruption_rate=0.1, rng=rng).estimate).all()
    with pytest.raises(ValueError, match="corruption_rate must lie in"):
        filter_mean(data, corruption_rate=0.5, rng=rng)
    with pytest.raises(ValueError, match="one row a record"):
        filter_mean(np.zeros(5), corruption_rate=0.1, rng=rng)
    twice = filter_mean(rng.standard_normal((300, 2)) * 9, corruption_rate=0.1, rng=rng)
    assert twice.refused
    assert "half of the records" in twice.reason
    assert twice.error(np.zeros(2)) == math.inf
