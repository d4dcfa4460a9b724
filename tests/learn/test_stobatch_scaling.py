"""Algorithm 4 in real processes with one killed; who computes what; what a training costs, counted in two ways."""

import math

import pytest
import torch
from stobatch_toys import STUDY, data, settings

from privrob.kinds import Streams
from privrob.learn.stobatch import cost, networks, scaling
from privrob.learn.stobatch.training import Training


def trainer(num_workers, *, dtype=torch.float64, **changes):
    """The only trainer of 48 records, shared by so many workers."""
    made = settings(pairing="pairs", batch_size=24, attacks=("ifgsm",), attack_steps=3, **changes)
    more = {"num_trainers": 1, "num_workers": num_workers}
    return Training(made, *data(n=48, dtype=dtype), num_classes=3, streams=Streams(3, "toy"), **more)


# ---------------------------------------------------------------------------------------------------------- processes


@pytest.mark.paper("stobatch", "Algorithm 4")
def test_processes_end_where_one_does_also_after_one_was_killed(tmp_path):
    clock = {"study": STUDY, "layouts": [[2, 1, 1, 1]], "num_steps": 1}
    both = {"agreement": {"study": STUDY, "num_processes": [2], "kill_after": 2}, "clock": clock}
    rows = scaling.scaling_cell(both, streams=None, scratch=tmp_path)
    assert [row["row"] for row in rows] == ["agreement", "agreement", "clock"]
    assert rows.pop()["num_trainers"] == 2
    assert [row["killed"] for row in rows] == [False, True]
    for row in rows:
        assert row["largest_difference"] <= 1e-10 * row["largest_weight"]  # float64, six steps
        assert row["statuses"] == "[0, 0]"
    killed = rows[1]
    assert killed["lost_statuses"] == "[3, -9]"  # the server says so; the trainer was killed
    assert 2 <= killed["completed"] < 6
    assert killed["said"].startswith("lost rank 1")


def test_a_clock_has_a_row_for_each_layout(tmp_path):
    layouts = [[1, 1, 1, 1], [2, 1, 1, 2]]
    rows = scaling.timing_cell({"study": STUDY, "layouts": layouts, "num_steps": 2}, streams=None, scratch=tmp_path)
    names = ("num_trainers", "num_workers", "num_processes", "attack_steps")
    assert [[row[name] for name in names] for row in rows] == layouts
    assert all(0 < row["quickest"] <= row["seconds"] <= row["slowest"] for row in rows)


def test_killing_needs_somebody_to_be_left():
    with pytest.raises(ValueError, match="num_processes"):
        scaling.together(STUDY, "nowhere", num_processes=1, kill_after=2)


# ------------------------------------------------------------------------------------------------------------ workers


@pytest.mark.paper("stobatch", "Section 3.5")
@pytest.mark.parametrize("num_workers", [2, 4])
def test_workers_average_to_their_trainer_without_batch_norm_and_not_with_it(num_workers):
    assert scaling.workers_difference(trainer, num_workers, batch_norm=False) < 1e-12  # float64
    assert scaling.workers_difference(trainer, num_workers, batch_norm=True) > 1e-3


@pytest.mark.paper("stobatch", "Section 3.5")
def test_workers_share_the_work_and_trainers_add_to_it():
    passes = {m: scaling.passes_of_step(trainer(m)) for m in (1, 2, 4)}
    assert len(set(passes.values())) == 1
    more = trainer(1, adversarial_weight=0.0)
    assert scaling.passes_of_step(more) == 24  # the benign batch, once
    assert passes[1] >= 24 * (3 + 2)  # three attack steps, both batches


# --------------------------------------------------------------------------------------------------------------- cost


def test_multiplications_are_those_of_the_layers_written_out():
    found = cost.multiply_adds("cifar10", in_shape=(3, 28, 28), num_classes=10)
    first, second, third = 14 * 14 * 16 * 3 * 128, 14 * 14 * 25 * 128 * 128, 14 * 14 * 25 * 256 * 256
    assert list(found.values()) == [first, second, third, 7 * 7 * 256 * 256, 256 * 10]


def test_counted_passes_agree_with_the_model():
    counted = scaling.passes_of_step(trainer(1))
    extra = counted - 24 * (3 + 2)  # the labels that the attack starts from: at most one more pass
    assert 0 <= extra <= 24
    assert cost.units_of_step(batch_size=24, attack_steps=3) == 24 * (2 * 3 + 6)


@pytest.mark.paper("stobatch", "Algorithm 4")
@pytest.mark.parametrize(
    ("num_records", "batch_size", "want"),
    [(50_000, 1851, (27, 13, 1874)), (60_000, 2499, (24, 12, 24)), (45_000, 4500, (10, 5, 0))],
)
def test_batches_and_trainers_of_the_documents_sets(num_records, batch_size, want):
    assert tuple(cost.batches(num_records, batch_size).values()) == want


@pytest.mark.paper("stobatch", "Section 4")
def test_four_devices_at_the_same_use_make_a_quarter_of_the_days():
    work = cost.operations(forward=406e6, num_steps=16_200, batch_size=1851, attack_steps=200)
    alone = cost.utilisation(work, days=30, num_devices=1, peak=12.15e12)
    assert cost.utilisation(work, days=7.5, num_devices=4, peak=12.15e12) == pytest.approx(alone, rel=1e-12)
    assert cost.utilisation(work, days=3, num_devices=4, peak=12.15e12) == pytest.approx(2.5 * alone, rel=1e-12)
    by_hand = 2 * 406e6 * 16_200 * 1851 * 406 / (30 * 86_400 * 12.15e12)
    assert math.isclose(alone, by_hand, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: cost.batches(100, 60), "num_records"),
        (lambda: cost.units_of_step(batch_size=0, attack_steps=1), "batch_size"),
        (lambda: cost.utilisation(1.0, days=0.0, num_devices=1, peak=1.0), "days"),
        (lambda: cost.multiply_adds("vgg", in_shape=(3, 28, 28), num_classes=10), "network"),
    ],
)
def test_bad_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_batch_norm_is_taken_out_everywhere():
    training = scaling.without_batch_norm(trainer(1))
    assert not any(isinstance(m, networks.BatchNorm) for m in training.network.modules())
    assert training.buffers == []
