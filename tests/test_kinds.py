"""The shared vocabulary: names are exact, intervals are ordered, streams are independent and repeatable."""

import math

import numpy as np
import pytest
import torch

from privrob.kinds import Guarantee, Interval, Neighbouring, Sampling, Streams, nats
from privrob.mechanisms.noise import Gaussian


def test_names_are_taken_exactly_and_others_refused():
    assert Neighbouring.of("add_remove") is Neighbouring.ADD_REMOVE
    assert Neighbouring.of(Neighbouring.REPLACE) is Neighbouring.REPLACE
    assert Sampling.of("poisson") is Sampling.POISSON
    with pytest.raises(ValueError, match="did you mean 'replace'"):
        Neighbouring.of("replaced")
    with pytest.raises(ValueError, match="sampling must be one of"):
        Sampling.of(None)


def test_an_interval_is_ordered_and_holds_no_nan():
    interval = Interval(1.0, 2.0, 4.0)
    assert interval.width == 3.0
    assert 1.5 in interval
    assert 4.1 not in interval
    assert Interval.exact(math.inf).width == 0.0
    for bad in [(2.0, 1.0, 3.0), (0.0, 4.0, 3.0), (0.0, math.nan, 1.0), (math.nan, 1.0, 2.0)]:
        with pytest.raises(ValueError, match="lower <= estimate <= upper"):
            Interval(*bad)


def test_a_mechanism_is_a_guarantee():
    assert isinstance(Gaussian(1.0, 1.0), Guarantee)
    assert not isinstance(object(), Guarantee)


def test_a_stream_is_the_same_whatever_else_was_drawn():
    streams = Streams(7, "cell")
    want = streams.numpy("noise").random(5)
    streams.numpy("batches").random(1000)
    streams.torch("init")
    assert (Streams(7, "cell").numpy("noise").random(5) == want).all()
    assert (Streams(7).child("cell").numpy("noise").random(5) == want).all()


def test_seeds_names_and_paths_all_tell_streams_apart():
    draws = [
        Streams(s, *names).numpy(stream).integers(2**63)
        for s in (0, 1, 2**63)
        for names in ((), ("a",), ("a", "b"), ("ab",))
        for stream in ("noise", "batches", "init")
    ]
    assert len(set(draws)) == len(draws)
    assert Streams(0, "a", "b").sequence("c").entropy != Streams(0, "a").sequence("bc").entropy


def test_a_hundred_thousand_streams_have_no_twin():
    # 32 bits of state each would make one likely: 1e10 / 2 pairs over 4e9
    streams = Streams(0)
    first = {streams.child(i).sequence("noise").generate_state(2, np.uint64).tobytes() for i in range(100_000)}
    assert len(first) == 100_000


def test_torch_streams_differ_repeat_and_look_uniform():
    draws = {name: torch.rand(200_000, generator=Streams(0).torch(name)) for name in ("init", "noise")}
    assert torch.equal(torch.rand(200_000, generator=Streams(0).torch("noise")), draws["noise"])
    assert not torch.equal(draws["init"], draws["noise"])
    for values in draws.values():
        assert abs(float(values.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / 200_000)  # standard errors
    together = torch.corrcoef(torch.stack(list(draws.values())))[0, 1]
    assert abs(float(together)) < 5 / math.sqrt(200_000)


def test_the_torch_state_is_the_whole_twister_not_32_bits():
    a, b = (Streams(0).torch(n).get_state() for n in ("init", "noise"))
    words = a[24 : 24 + 8 * 624].numpy().view(np.uint64)
    assert len(set(words.tolist())) > 620
    assert words.max() < 2**32
    assert (a[24 : 24 + 8 * 624] != b[24 : 24 + 8 * 624]).float().mean() > 0.4  # half of the bytes are zero


def test_streams_need_a_root_seed():
    for bad in (None, -1, 1.0, "0"):
        with pytest.raises((ValueError, TypeError), match="seed"):
            Streams(bad)


@pytest.mark.parametrize(
    ("value", "digits", "want"),
    [
        (1.23456701, 6, "1.23457"),
        (1.234560000001, 6, "1.23457"),
        (2.0, 6, "2"),
        (0.0, 6, "0"),
        (math.inf, 6, "infinite"),
        (2.0**-30, 3, "9.32e-10"),
        (99.991, 3, "100"),
    ],
)
def test_a_privacy_loss_is_never_rounded_down(value, digits, want):
    assert nats(value, digits) == want
    assert value == math.inf or float(nats(value, digits)) >= value
