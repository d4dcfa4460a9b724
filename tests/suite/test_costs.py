"""The law of times and the simulated workers: bounds that every schedule keeps, estimates that can be worked out."""

import math
import random

import pytest

from privrob.suite import costs

TRAIN = {"dataset": "toy", "model": "mlp", "device": "cpu", "release": "clipping", "num_steps": 100, "batch_size": 10}


def measured(seconds, *, identity="", function="m:train_cell", **settings):
    settings = TRAIN | settings
    return {"function": function, "settings": settings, "seconds": seconds, "identity": identity or repr(settings)}


def estimate(known, *, function="m:train_cell", **settings):
    settings = TRAIN | settings
    return costs.Measured(known).estimate({"function": function, "settings": settings, "identity": "new"})


# -------------------------------------------------------------------------------------------------------- the schedule


def chains_at_random(seed):
    rng = random.Random(seed)
    return [
        [[rng.expovariate(0.1) for _ in range(rng.randint(1, 9))] for _ in range(rng.randint(1, 3))] for _ in range(5)
    ]


@pytest.mark.parametrize("workers", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_beats_its_bounds_and_none_is_worse_than_any_order_can_be(seed, workers):
    chains = chains_at_random(seed)
    tasks = [t for chain in chains for stage in chain for t in stage]
    found = costs.schedule(chains, workers)
    assert found.total == pytest.approx(sum(tasks), rel=1e-12)  # sums in another order
    assert found.longest == max(tasks)
    assert found.longest <= found.chain
    assert found.makespan >= max(found.total / workers, found.chain) * (1 - 1e-12)
    assert found.makespan <= (found.total / workers + found.chain) * (1 + 1e-12)  # Graham's bound for list scheduling
    assert found.efficiency <= 1 + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_one_worker_takes_the_sum_and_its_start_up(seed):
    chains = chains_at_random(seed)
    assert costs.schedule(chains, 1, start_up=7.0).makespan == pytest.approx(
        7.0 + costs.schedule(chains, 1).total, rel=1e-12
    )


def test_more_workers_than_tasks_leave_the_longest_chain():
    found = costs.schedule([[[3.0, 5.0], [2.0]], [[6.0]], []], 64)
    assert (found.makespan, found.chain, found.longest) == (7.0, 7.0, 6.0)
    assert found.efficiency == 16.0 / (64 * 7.0)


def test_the_longest_task_is_begun_first():
    assert costs.schedule([[[1.0, 1.0, 1.0, 1.0, 4.0]]], 2).makespan == 4.0, "in their order: 6"


def test_each_worker_starts_up_once():
    assert costs.schedule([[[1.0] * 4]], 2, start_up=10.0).makespan == 12.0


def test_nothing_to_do_takes_no_time_and_no_workers_are_refused():
    found = costs.schedule([[], [[]]], 8, start_up=10.0)
    assert (found.makespan, found.efficiency) == (0.0, 1.0)
    with pytest.raises(ValueError, match="at least 1, got workers=0"):
        costs.schedule([[[1.0]]], 0)


# ------------------------------------------------------------------------------------------------------------- the law


@pytest.mark.parametrize(
    ("settings", "amount"),
    [
        ({"num_steps": 100, "batch_size": 10}, 1000),
        ({"num_steps": 100, "sample_rate": 0.5, "num_records": 300}, 15_000),
        ({"num_rounds": 7, "num_users": 3, "batch_size": 2, "options": {"num_trials": 16}}, 42),
        ({"num_steps": 10, "batch_size": 2, "attack_steps": 3}, 80),
        ({"training": {"num_steps": 10, "batch_size": 2}, "other": {"deep": {"num_steps": 5}}}, 20),
        ({"num_records": 50, "dimension": 4, "runs": [{"a": 1}, {"a": 2}, {"a": 3}]}, 600),
        ({"epsilon": 1.0}, 1),
    ],
)
def test_the_amount_of_a_cell_is_the_product_of_its_sizes(settings, amount):
    assert costs.amount(settings)[1] == amount


def test_attacks_on_test_images_count_by_their_gradients():
    attack = {"attack_test_steps": [10, 20], "attack_radii": [0.1, 0.2, 0.3], "attack_kinds": ["a", "b"]}
    base = {"num_steps": 10, "batch_size": 2}
    assert costs.amount(base | attack | {"num_attacked": 5})[1] == 20 + 5 * 30 * 3 * 2
    assert costs.amount(base | attack)[1] == 20 + 10_000 * 30 * 3 * 2


def test_time_grows_with_steps_times_batch():
    known = [measured(4.0), measured(6.0, seed=1), measured(5.0, seed=2)]
    found = estimate(known, num_steps=1000, batch_size=20, seed=3)
    assert (found.how, found.mid) == ("alike", pytest.approx(100.0))
    assert found.low == pytest.approx(50.0)
    assert found.high == pytest.approx(200.0), "too few to compare at another amount: a factor 2"


def test_the_nearest_amount_says_the_rate():
    known = [measured(10.0, num_steps=10), measured(100.0, num_steps=1000)]
    assert estimate(known, num_steps=2000).mid == pytest.approx(200.0)
    assert estimate(known, num_steps=20).mid == pytest.approx(20.0)


def test_cells_that_agree_in_all_words_come_before_other_relatives():
    known = [measured(4.0), measured(40.0, release="trimmed", num_steps=99)]
    assert estimate(known, seed=1).mid == pytest.approx(4.0)
    assert estimate(known, release="median").how == "kin"


@pytest.mark.parametrize(
    "other", [{"dataset": "x"}, {"model": "cnn"}, {"device": "cuda"}, {"function": "m:other"}, {"hidden": [3]}]
)
def test_a_cell_without_a_relative_is_unknown_not_guessed(other):
    assert estimate([measured(4.0)], **other) == costs.Estimate("unknown")


def test_sizes_given_by_other_names_are_no_relatives():
    known = [measured(4.0)]
    settings = {k: v for k, v in TRAIN.items() if k != "batch_size"} | {"sample_rate": 0.1}
    cell = {"function": "m:train_cell", "settings": settings, "identity": "new"}
    assert costs.Measured(known).estimate(cell).how == "unknown"


def test_a_cell_that_was_run_takes_what_it_took():
    known = costs.Measured([measured(4.0, identity="a"), measured(5.0, identity="a"), measured(0.0, identity="b")])
    cell = {"function": "m:train_cell", "settings": TRAIN, "identity": "a"}
    assert known.estimate(cell) == costs.Estimate("stored", 4.0, 4.0, 4.0)
    assert len(known) == 1
    told = cell | {"identity": "c", "stored": {"seconds": 9.0, "stale": True}}
    assert known.estimate(told).mid == 9.0


def test_the_range_is_what_the_law_missed_by_at_other_amounts():
    """Rates 1 at even sizes, 3 at odd ones, a factor 4 apart: each is predicted by neighbours of the other rate."""
    known = [
        measured((1.0 if i % 2 else 3.0) * 10 * 4**i, num_steps=4**i, identity=str(i)) for i in range(8)
    ]  # amounts 10 · 4^i
    of = costs.Measured(known)
    low, high = of.spread("m:train_cell", far=True)
    assert low < 0.6
    assert high > 1.4
    assert of.spread("m:train_cell", far=False) == (low, high)
    found = of.estimate({"function": "m:train_cell", "settings": TRAIN | {"num_steps": 4**9}, "identity": "new"})
    assert found.mid == pytest.approx(10 * 4**9)
    assert (found.low, found.high) == (pytest.approx(found.mid * low), pytest.approx(found.mid * high))


def test_infinite_and_nested_settings_are_read_too():
    known = [measured(4.0, options={"rate": math.inf, "deep": {"dataset": "other"}})]
    assert estimate(known, options={"rate": 0.1, "deep": {"dataset": "third"}}).how == "alike"
