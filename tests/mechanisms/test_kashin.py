"""Kashin representations: exact, flat, the same for the same seed, and worth what they cost."""

import math

import numpy as np
import pytest

from privrob.mechanisms.kashin import Kashin

FRAME = Kashin(200, 400, seed=3)


def vectors(dimension):
    rng = np.random.default_rng(1)
    spikes = np.eye(dimension)[:3]
    return np.concatenate(
        [spikes, rng.normal(size=(5, dimension)), rng.normal(size=(2, dimension)) ** 5, spikes[:1] * 0]
    )


@pytest.mark.paper("fdp", "Remark 12")
def test_the_frame_is_tight():
    matrix = FRAME.recover(np.eye(400)).T  # d × D
    assert matrix.shape == (200, 400)
    assert matrix @ matrix.T == pytest.approx(np.eye(200), abs=1e-12)
    assert FRAME.analyse(np.eye(200)) == pytest.approx(matrix, abs=1e-12)  # its transpose, row by row
    assert np.abs(matrix).max() < 5 / math.sqrt(400)  # spread out


@pytest.mark.paper("fdp", "Remark 12")
def test_representations_are_exact_and_flat():
    for frame in (FRAME, Kashin(1000, 2000)):
        x = vectors(frame.dimension)
        y = frame.represent(x)
        assert frame.recover(y) == pytest.approx(x, abs=1e-11 * np.abs(x).max())
        flat, least_squares = frame.level(y, x), frame.level(frame.analyse(x), x)
        assert (flat < 1.4).all()  # γ₀, measured: 1.25 or so at D = 2d, whatever d
        assert (flat[3:8] < 0.65 * least_squares[3:8]).all()  # which grows with log D
        assert flat[-1] == 0.0
    bare = math.sqrt(200) * np.abs(vectors(200)[:3]).max(axis=1)  # of a spike itself: √d
    assert (bare / FRAME.level(FRAME.represent(vectors(200)[:3]), vectors(200)[:3]) > 10).all()


def test_rounds_of_truncation_are_what_makes_them_flat():
    x = vectors(200)[3:8]
    assert FRAME.represent(x, num_rounds=0) == pytest.approx(FRAME.analyse(x), abs=1e-12)
    few, many = (FRAME.level(FRAME.represent(x, num_rounds=n), x) for n in (1, 60))
    assert (many < few).all()


def test_a_seed_names_a_frame():
    x = vectors(200)
    assert (Kashin(200, 400, seed=3).analyse(x) == FRAME.analyse(x)).all()
    assert not np.allclose(Kashin(200, 400, seed=4).analyse(x), FRAME.analyse(x))
    with pytest.raises(ValueError, match="frame_size must"):
        Kashin(200, 200)


@pytest.mark.parametrize("vector", [1.0, [1.0], [1.0, 2.0]])
def test_vectors_of_another_dimension_are_refused_by_name(vector):
    for function in (Kashin(3, 6).analyse, Kashin(3, 6).represent):
        with pytest.raises(ValueError, match="vector must have 3 numbers along the last axis"):
            function(vector)
    with pytest.raises(ValueError, match="spread must have 6 numbers"):
        Kashin(3, 6).recover([1.0])
