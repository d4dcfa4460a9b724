"""Every argument error says the name, what is allowed, what was given, and the way out."""

import math

import numpy as np
import pytest

from privrob import checks


def test_good_values_come_back_as_plain_numbers():
    assert checks.probability("q", np.float32(0.25)) == 0.25
    assert type(checks.probability("q", 1)) is float
    assert checks.integer("n", np.int64(3), low=1) == 3
    assert type(checks.integer("n", np.int64(3))) is int
    assert checks.nonnegative("x", 0) == 0.0
    assert checks.positive("x", math.inf) == math.inf
    assert checks.real("x", -2.5) == -2.5
    assert checks.choice("c", "b", ("a", "b")) == "b"
    assert checks.array("v", [[1, 2]], ndim=2).dtype == np.float64


@pytest.mark.parametrize("bad", [1.4, -0.1, math.nan, math.inf])
def test_a_probability_outside_is_refused_with_the_way_out(bad):
    with pytest.raises(
        ValueError, match=r"sample_rate must lie in \[0, 1\], got sample_rate=.*; pass batch_size"
    ) as error:
        checks.probability("sample_rate", bad, hint="pass batch_size / num_records")
    assert repr(bad) in str(error.value)


def test_open_ends_are_open_and_shown_open():
    with pytest.raises(ValueError, match=r"\(0, 1\)"):
        checks.probability("q", 0.0, allow_zero=False, allow_one=False)
    with pytest.raises(ValueError, match=r"\(0, 1\)"):
        checks.probability("q", 1.0, allow_zero=False, allow_one=False)
    with pytest.raises(ValueError, match="x must lie in"):
        checks.positive("x", 0.0)
    with pytest.raises(ValueError, match="x must lie in"):
        checks.positive("x", math.inf, finite=True)
    with pytest.raises(ValueError, match="x must lie in"):
        checks.nonnegative("x", -1e-300)


@pytest.mark.parametrize("bad", ["0.5", None, True, np.bool_(True), [0.5], 1 + 0j])
def test_what_is_not_a_number_is_a_type_error(bad):
    with pytest.raises(TypeError, match="q must"):
        checks.probability("q", bad)


def test_a_flag_is_true_or_false_and_a_stream_is_a_generator():
    assert checks.boolean("flag", np.bool_(True)) is True
    assert checks.boolean("flag", False) is False
    for bad in ("False", 0, 1.0, None, [True]):
        with pytest.raises(TypeError, match="flag must be True or False, got flag="):
            checks.boolean("flag", bad)
    stream = np.random.default_rng(0)
    assert checks.generator("rng", stream) is stream
    for bad in (0, None, np.random, np.random.Generator, np.random.RandomState(0), np.random.SeedSequence(0)):
        with pytest.raises(
            TypeError, match=r"(?s)rng must be a NumPy Generator, got rng=.*; pass np\.random\.default_rng"
        ):
            checks.generator("rng", bad)


@pytest.mark.parametrize("bad", [3.0, "3", None, True, np.float64(3)])
def test_a_count_is_written_as_a_count(bad):
    with pytest.raises(TypeError, match=r"num_steps must be an integer in \[0, inf\]"):
        checks.integer("num_steps", bad, low=0)


def test_a_count_outside_is_refused():
    with pytest.raises(ValueError, match=r"n must be an integer in \[2, 5\], got n=6"):
        checks.integer("n", 6, low=2, high=5)
    with pytest.raises(ValueError, match="n must be an integer"):
        checks.integer("n", 1, low=2)


@pytest.mark.parametrize("good", [0, 2**32, 2**63, 2**64 - 1, np.uint64(2**63)])
def test_seeds_of_64_bits_are_taken(good):
    assert checks.seed("seed", good) == int(good)


@pytest.mark.parametrize("bad", [-1, 2**64, 1.0, 1.5, "7", None, True])
def test_other_seeds_are_refused_at_once(bad):
    with pytest.raises((ValueError, TypeError), match="seed must be an integer"):
        checks.seed("seed", bad)


def test_a_close_choice_is_offered():
    with pytest.raises(ValueError, match=r"got neighbouring='ad_remove'; did you mean 'add_remove'\?"):
        checks.choice("neighbouring", "ad_remove", ["add", "remove", "add_remove"])
    with pytest.raises(ValueError, match=r"be one of \['a'\], got c='zzz'$"):
        checks.choice("c", "zzz", ["a"])


def test_arrays_are_finite_and_of_the_asked_dimension():
    with pytest.raises(ValueError, match="v must be finite everywhere, got v='1 non-finite entries'"):
        checks.array("v", [1.0, math.nan])
    assert np.isinf(checks.array("v", [math.inf], finite=False)).all()
    with pytest.raises(ValueError, match="v must have 2 dimension"):
        checks.array("v", [1.0], ndim=2)
    with pytest.raises(TypeError, match="v must be an array of numbers"):
        checks.array("v", "text")


def test_orders_exceed_1_and_point_to_the_limit():
    assert list(checks.orders(2)) == [2.0]
    for bad in ([1.0], [0.5, 2], [], [[2.0]], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="orders must"):
            checks.orders(bad)
    with pytest.raises(ValueError, match="kl"):
        checks.orders([2.0, 1.0])
