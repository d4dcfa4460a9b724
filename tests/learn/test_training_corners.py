"""Trainings at the edges: nobody drawn, tiny data, odd labels, pure noise, and many of them in one process."""

import gc
import math
import re

import numpy as np
import psutil
import pytest
import torch
from trainings import data, settings

from privrob.kinds import Streams
from privrob.learn import descent
from privrob.learn.batches import as_labels
from privrob.learn.cells import train_cell
from privrob.learn.checkpoints import BadCheckpoint
from privrob.learn.dpsgd import Training, train

pytestmark = pytest.mark.usefixtures("one_thread")  # tensors this small only wait for a second one


def run(chosen, tensors):
    return list(train(chosen, *tensors, num_classes=3, streams=Streams(0, "edges")))


def parameters(training):
    return [p.detach().clone() for p in training.model.parameters()]


# ----------------------------------------------------------------------------------------------------- nobody drawn


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("portion", [1, 1024])
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_empty_draws_keep_the_weights_finite_and_their_kind(rate, private, portion, dtype):
    kind = {"max_grad_norm": 1.0, "noise_multiplier": 0.8} if private else {"max_grad_norm": math.inf}
    kind = {"noise_multiplier": 0.0, **kind}
    chosen = settings(sample_rate=rate, num_steps=100, physical_batch_size=portion, evaluate_every=1, **kind)
    training = Training(chosen, *data(n=20, dtype=dtype), 3, Streams(0, "edges"))
    before = parameters(training)
    rows = list(training.rows())
    after = parameters(training)
    assert [(p.dtype, p.shape) for p in after] == [(p.dtype, p.shape) for p in before]
    assert after[0].dtype == dtype
    assert all(torch.isfinite(p).all() for p in after)
    empty = [row for row in rows if row["empty_steps"]]
    assert len(empty) > 10
    assert all(row["train_loss"] is None and row["batch_max"] == 0 for row in empty)
    assert all(math.isfinite(row["train_loss"]) for row in rows if not row["empty_steps"])
    if rate == 0.0:
        assert len(empty) == 100


# -------------------------------------------------------------------------------------------------------- pure noise


@pytest.mark.parametrize("bound", [1.0, 10.0])
def test_where_gradients_are_zero_the_move_is_noise_over_the_expected_batch_whatever_was_drawn(bound):
    _, labels, _, _ = data(n=640)
    blank = torch.zeros(640, 1, 12, 12)  # the weights' gradient is zero, that of the bias is not
    chosen = settings(
        sample_rate=0.1, num_steps=120, evaluate_every=1, learning_rate=1.0, max_grad_norm=bound, noise_multiplier=1.0
    )
    training = Training(chosen, blank, labels, blank[:0], labels[:0], 3, Streams(0, "edges"))
    weights, sizes, moves = parameters(training)[0], [], []
    for row in training.rows():
        now = parameters(training)[0]
        moves.append((now - weights).flatten())
        weights = now
        sizes.append(row["batch_mean"])
    moves, sizes = torch.stack(moves).double(), np.array(sizes)
    assert sizes.max() - sizes.min() > 20
    small = sizes < np.median(sizes)
    for part in (moves[small], moves[~small], moves):  # a denominator that is drawn differs by some 15 % between these
        assert float(part.std()) == pytest.approx(bound / 64, rel=5 / math.sqrt(2 * part.numel()))  # 5 standard errors


# ---------------------------------------------------------------------------------------------------------- data sizes

CELL = {
    "dataset": "synthetic",
    "num_test": 0,
    "shape": [1, 4, 4],
    "model": "logistic",
    "batch_size": 32,
    "num_steps": 12,
    "learning_rate": 0.1,
    "max_grad_norm": 1.0,
    "noise_multiplier": 1.0,
}


@pytest.mark.parametrize("portion", [16, 1000])
@pytest.mark.parametrize("n", [33, 29404])
def test_an_odd_number_of_records_keeps_its_steps_and_rate(n, portion):
    last = train_cell({**CELL, "num_records": n, "physical_batch_size": portion}, streams=Streams(0, "edges"))[-1]
    assert (last["step"], last["num_records"], last["sample_rate"]) == (12, n, 32 / n)
    assert last["epoch"] == pytest.approx(12 * 32 / n, rel=1e-12)
    assert last["batch_max"] > 16  # more than fit into one portion of 16
    assert last["test_accuracy"] is None


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_batch_larger_than_the_data_is_refused_before_the_first_step(n):
    with pytest.raises(ValueError, match=rf"batch_size must lie in \[0, {n}\], got batch_size=32; there are {n} rec"):
        train_cell({**CELL, "num_records": n}, streams=Streams(0, "edges"))


def test_only_poisson_samples_are_trained_on():
    for name in ("shuffle", "sampling", "loader"):
        with pytest.raises(ValueError, match=f"settings must be one of .*'{name}'"):
            train_cell({**CELL, "num_records": 64, name: "shuffled"}, streams=Streams(0, "edges"))


# -------------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    "labels",
    [
        np.array([2, 0, 1], dtype=np.uint8),
        np.array([2, 0, 1], dtype=np.uint16),
        np.array([2, 0, 1], dtype=">i4"),
        np.array([1, 0, 2])[::-1],
        np.array([2, 9, 0, 9, 1])[::2],
        (2, 0, 1),
        [np.int8(2), 0, True + 0],
        torch.tensor([2, 0, 1], dtype=torch.int16),
    ],
)
def test_every_form_of_whole_numbers_is_the_same_labels(labels):
    got = as_labels("train_labels", labels, num_classes=3)
    assert got.dtype == torch.int64
    assert got.tolist() == [2, 0, 1]
    if isinstance(labels, np.ndarray):
        got += 1
        assert labels.tolist() == [2, 0, 1], "a copy"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b"], "test_labels must be whole numbers of an integer type, got dtype <U1"),
        ([None, 1], "test_labels must be whole numbers of an integer type, got dtype object"),
        (None, "test_labels must be whole numbers of an integer type, got dtype object"),
        ([2**70], "test_labels must be whole numbers of an integer type, got dtype object"),
        ([3.0], "test_labels must be whole numbers of an integer type, got dtype .*float64"),
        ([1, [2]], "test_labels must have 1 dimension"),
        (1, "test_labels must have 1 dimension"),
        ([0, 3], r"test_labels must lie in \[0, 2\], got 3"),
        ([-1, 0], r"test_labels must lie in \[0, 2\], got -1"),
    ],
)
def test_what_is_no_label_is_refused_by_name(labels, message):
    with pytest.raises((TypeError, ValueError), match=message):
        as_labels("test_labels", labels, num_classes=3)


# -------------------------------------------------------------------------------------------------------------- memory


def test_memory_does_not_grow_over_evaluations_and_trainings():
    process, tensors = psutil.Process(), data(n=64, test=256, shape=(1, 16, 16))
    chosen = settings(model="tutorial_cnn", num_steps=3)
    training = Training(chosen, *tensors, 3, Streams(0, "edges"))

    def after(action):
        resident, alive = [], []
        for i in range(50):
            action()
            resident.append(process.memory_info().rss)
            if i in (4, 49):
                gc.collect()
                alive.append(sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects()))
        return resident, alive

    for action in (training.accuracy, lambda: run(chosen, tensors)):
        resident, alive = after(action)
        assert resident[-1] <= 1.05 * resident[4]
        assert alive[-1] <= alive[0]  # no graph, hook or array outlives its run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_grad_norm": 1e-300}, "max_grad_norm"),
        ({"learning_rate": 1e308}, "learning_rate"),
        ({"noise_stages": 2.0}, "noise_stages must be a list"),
        ({"hidden": 10, "model": "mlp"}, "hidden must be a list"),
        ({"release_options": ["rank"]}, "release_options must be a dict"),
        ({"release_options": 3}, "release_options must be a dict"),
        ({"physical_batch_size": 10**30}, "physical_batch_size"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        settings(**change)


@pytest.mark.parametrize(
    ("place", "image", "message"),
    [
        (0, lambda x: x * math.nan, "train_images must be finite"),
        (0, lambda x: x[:, :, :, :0], "train_images must have channels and pixels"),
        (2, lambda x: x[:, :, :3], "test_images must have the shape of train_images"),
        (2, lambda x: x.double(), "test_images must have the dtype of train_images"),
    ],
)
def test_images_of_another_kind_are_refused_before_the_first_step(place, image, message):
    parts = list(data())
    parts[place] = image(parts[place])
    with pytest.raises(ValueError, match=message):
        Training(settings(), *parts, 3, Streams(0))


def test_public_records_are_a_pair():
    with pytest.raises(TypeError, match="public must be"):
        Training(settings(), *data(), 3, Streams(0), public=data()[0])


def test_numbers_of_numpy_are_settings_and_checkpoints_like_pythons(tmp_path):
    chosen = settings(learning_rate=np.float64(0.5), num_steps=np.int64(4), evaluate_every=2)
    whole = list(train(chosen, *data(), num_classes=3, streams=Streams(0)))
    file = tmp_path / "training.pt"
    part = Training(chosen, *data(), 3, Streams(0), checkpoint=file).rows()
    next(part)
    plain = settings(learning_rate=0.5, num_steps=4, evaluate_every=2)
    assert list(train(plain, *data(), num_classes=3, streams=Streams(0), checkpoint=file)) == whole


def test_a_checkpoint_of_another_number_of_classes_is_refused(tmp_path):
    file = tmp_path / "training.pt"
    list(train(settings(num_steps=1), *data(), num_classes=3, streams=Streams(0), checkpoint=file))
    with pytest.raises(BadCheckpoint, match="num_classes"):
        Training(settings(num_steps=1), *data(), 4, Streams(0), checkpoint=file)


def test_a_clipping_norm_that_runs_away_stops_at_its_range():
    options = {"clip_learning_rate": 1e6, "count_noise": 0.3}
    state = Training(settings(release="adaptive_clipping", release_options=options), *data(), 3, Streams(0))
    list(state.rows())
    assert 1e-12 <= state.release.clip_norm <= 1e12


# --------------------------------------------------------------------------------------------------------- diverging

HUGE = 1e30  # finite, but not what becomes of it


@pytest.mark.parametrize("steps", [1, 300])
@pytest.mark.parametrize("release", ["clipping", "trimmed"])
def test_a_diverged_training_ends_with_the_step_and_the_learning_rate(release, steps):
    how = {"release": release, "max_grad_norm": math.inf, "noise_multiplier": 0.0, "sample_rate": 1.0}
    images, *rest = data()
    chosen = settings(learning_rate=HUGE, num_steps=steps, **how)
    with pytest.raises(FloatingPointError, match=r"step \d+.*learning_rate( \(now |=)?.*1e\+30") as caught:
        run(chosen, (images * 1e10, *rest))  # the first step is already beyond single precision
    assert int(re.search(r"step (\d+)", str(caught.value))[1]) <= 50  # not at the end of 300


def test_a_training_of_noise_alone_that_overflows_ends_too():
    chosen = settings(sample_rate=1e-12, learning_rate=1e30, noise_multiplier=1.0, num_steps=60)
    with pytest.raises(
        FloatingPointError, match=r"by step 50 with learning_rate=1e\+30, max_grad_norm=1\.0; pass a smaller"
    ):
        run(chosen, data())


def test_under_corruption_a_diverged_training_has_its_row():
    how = {"release": "trimmed", "max_grad_norm": math.inf, "noise_multiplier": 0.0, "sample_rate": 1.0}
    images, *rest = data()
    chosen = settings(learning_rate=HUGE, num_steps=60, corruption="label", corruption_rate=0.25, **how)
    row = run(chosen, (images * 1e10, *rest))[-1]
    assert row["step"] == 60
    assert row["num_not_finite"] > 0  # gradients that aren't finite count as the longest


def test_the_look_at_the_parameters_changes_no_number(monkeypatch):
    chosen = settings(num_steps=120, evaluate_every=40)
    looked = run(chosen, data())
    monkeypatch.setattr(descent, "check_finite", lambda *_, **__: None)
    assert run(chosen, data()) == looked
