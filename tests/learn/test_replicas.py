"""Many trainings in one program: the same rows as alone."""

import math

import numpy as np
import pytest
import torch
from releasing import records

from privrob.kinds import Streams
from privrob.learn import cells, dpsgd, replicas
from privrob.learn.dpsgd import DPSGDSettings

DATA = records(40)
METHODS = {
    "dp_sgd": {"release": "clipping"},
    "trimmed": {"release": "trimmed", "release_options": {"trim_rate": 0.2}},
    "ptr": {"release": "propose_test_release", "release_options": {"trim_rate": 0.6, "trim_step": 0.1}},
    "adaptive": {"release": "adaptive_clipping", "release_options": {"count_noise": 0.3}},
    "noisy gradients": {"release": "trimmed", "corruption": "gradient", "corruption_rate": 0.2, "corruption_std": 0.3},
    "turned gradients": {"release": "propose_test_release", "corruption": "gradient_sign", "corruption_rate": 0.2},
    "hidden below the bound": {"release": "propose_test_release", "corruption": "below_bound", "corruption_rate": 0.2},
    "hidden below the trimming": {"release": "trimmed", "corruption": "below_trim", "corruption_rate": 0.2},
    "pulses": {
        "release": "propose_test_release",
        "corruption": "pulse",
        "corruption_rate": 0.2,
        "corruption_options": {"period": 2},
    },
    "rescaled wrong labels": {"release": "trimmed", "corruption": "wrong_label", "corruption_rate": 0.2},
    "coordinate-wise median": {
        "release": "robust",
        "corruption": "own_length",
        "corruption_rate": 0.2,
        "noise_multiplier": 0.0,
    },
    "wrong labels": {"release": "clipping", "corruption": "label", "corruption_rate": 0.2},
    "robust, not private": {"release": "trimmed", "noise_multiplier": 0.0, "max_grad_norm": math.inf},
    "shorter": {"release": "clipping", "num_steps": 4},
    "never anybody": {"release": "clipping", "sample_rate": 0.0},
}


def training(name, seed, **changes):
    base = {"model": "mlp", "hidden": (7,), "sample_rate": 0.3, "learning_rate": 0.3, "num_steps": 9}
    base |= {"max_grad_norm": 0.6, "noise_multiplier": 0.5, "evaluate_every": 4}
    settings = DPSGDSettings(**{**base, **METHODS[name], **changes})
    images, labels = DATA
    how = {"num_classes": 3, "streams": Streams(seed, name), "public": records(8, seed=1)}
    return dpsgd.Training(settings, images, labels, images[:9], labels[:9], **how)


def close(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"weights_sha256"}:
            assert a[name] == b[name] or a[name] == pytest.approx(b[name], rel=1e-9), name  # order of float64 sums


@pytest.mark.parametrize("memory", [2**30, 1])
def test_rows_are_those_of_the_trainings_alone(memory):
    members = [(name, seed) for name in METHODS for seed in (0, 1)]
    alone = [list(training(*m).rows()) for m in members]
    got = replicas.together([training(*m) for m in members], memory=memory)
    for one, other in zip(alone, got, strict=True):
        close(one, other)


def test_weights_are_those_of_the_trainings_alone():
    alone = [training(name, 3) for name in METHODS]
    shared = [training(name, 3) for name in METHODS]
    for t in alone:
        list(t.rows())
    replicas.together(shared)
    for one, other in zip(alone, shared, strict=True):
        for p, q in zip(one.parameters, other.parameters, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)
        assert torch.equal(one.noise.get_state(), other.noise.get_state())


def test_a_convolutional_model_in_single_precision():
    images, labels = records(40, shape=(1, 14, 14))
    how = {"model": "tutorial_cnn", "sample_rate": 0.3, "learning_rate": 0.2, "num_steps": 3}
    settings = DPSGDSettings(**how, max_grad_norm=0.5, noise_multiplier=0.7, release="propose_test_release")

    def fresh(seed):
        return dpsgd.Training(settings, images.float(), labels, images.float(), labels, 3, Streams(seed))

    alone = [fresh(seed) for seed in range(3)]
    shared = [fresh(seed) for seed in range(3)]
    for t in alone:
        list(t.rows())
    replicas.together(shared)
    for one, other in zip(alone, shared, strict=True):
        for p, q in zip(one.parameters, other.parameters, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)  # float32, three steps


def test_a_record_that_is_not_finite_is_left_out():
    members = [training("trimmed", seed, sample_rate=1.0) for seed in (0, 1)]
    members[0].images = members[0].images.clone()
    members[0].images[5, 0, 0, 0] = math.nan
    rows = replicas.together(members)
    assert [r[-1]["num_not_finite"] for r in rows] == [1.0, 0.0]
    assert all(bool(torch.isfinite(p).all()) for t in members for p in t.parameters)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": (8,)}, "of one shape"),
        ({"noise_multiplier": 0.0, "max_grad_norm": math.inf}, "got plain SGD"),
        ({"physical_batch_size": 2}, "physical_batch_size must be at least"),
    ],
)
def test_what_cannot_run_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replicas.together([training("dp_sgd", 0), training("dp_sgd", 1, **changes)])
    with pytest.raises(ValueError, match="at least 1"):
        replicas.together([])


def test_cells_together_give_the_rows_of_cells_alone():
    base = {"dataset": "synthetic:mnist", "num_records": 60, "num_test": 20, "model": "mlp", "hidden": (5,)}
    base |= {"batch_size": 20, "num_steps": 4, "learning_rate": 0.1, "max_grad_norm": 1.0, "noise_multiplier": 0.6}
    base |= {"num_public": 10, "corruption": "below_trim", "corruption_rate": 0.1}
    many = [{**base, "seed": seed, "release": r} for seed in (0, 1) for r in ("trimmed", "propose_test_release")]
    streams = [Streams(7, str(i)) for i in range(len(many))]
    alone = [cells.train_cell(one, streams=own) for one, own in zip(many, streams, strict=True)]
    got = cells.train_cells(many, streams=streams)
    for one, other in zip(alone, got, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a["test_accuracy"] == pytest.approx(b["test_accuracy"], abs=0.051)  # one record of 20, float32
            np.testing.assert_allclose(a["median_grad_norm"], b["median_grad_norm"], rtol=1e-3)


def test_only_on_a_gpu_do_cells_run_together():
    base = {"dataset": "synthetic:mnist", "model": "mlp", "sample_rate": 0.1, "num_steps": 4, "learning_rate": 0.1}
    base |= {"max_grad_norm": 1.0, "noise_multiplier": 0.6}
    assert cells.together_key(base) is None
