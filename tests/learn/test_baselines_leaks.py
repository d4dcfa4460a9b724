"""Canaries: what is not private tells them, what is clipped doesn't move further than it may."""

import pytest

from privrob.kinds import Streams
from privrob.learn.baselines import leaks

STREAMS = Streams(5, "leaks")


@pytest.mark.paper("stobatch", "Section 2 (PixelDP does not preserve DP)")
@pytest.mark.parametrize("name", leaks.TRAININGS)
def test_one_query_tells_the_label_of_a_record(name):
    found = leaks.canary(name, num_trials=5, num_steps=40, streams=STREAMS, failure_prob=0.2)
    assert found["told_0"] >= 4
    assert found["told_1"] <= 1
    assert found["epsilon_lower"] > 0


def test_an_untrained_model_tells_nothing():
    found = leaks.canary("PixelDP", num_trials=12, num_steps=0, streams=STREAMS)
    assert found["epsilon_lower"] == 0
    assert found["delta_lower"] == 0


def test_the_data_sets_differ_in_the_canarys_label_alone():
    one, two = (leaks.data(label, num_records=10, generator=STREAMS.torch("data")) for label in (0, 1))
    assert (one[0] == two[0]).all()
    assert (one[1] != two[1]).nonzero().flatten().tolist() == [9]
    assert one[0].abs().max() <= 1


@pytest.mark.paper("stobatch", "Section 1 (simply combining existing mechanisms)")
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_record_moves_the_clipped_sum_by_at_most_the_norm(rate):
    moved = leaks.influence(adversarial_rate=rate, streams=STREAMS, num_trials=4, max_grad_norm=0.05)
    assert 0.5 < moved <= 1 + 1e-5  # float32
