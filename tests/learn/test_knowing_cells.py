"""Whose gradients are trimmed, counted; the training is the same as without counting."""

import numpy as np
import pytest
import torch

from privrob.kinds import Streams
from privrob.learn import cells, knowing_cells
from privrob.learn.knowing_cells import kept_by_length

BASE = {"dataset": "synthetic:mnist", "num_records": 60, "num_test": 20, "model": "mlp", "hidden": (5,), "seed": 0}
BASE |= {"batch_size": 20, "num_steps": 6, "learning_rate": 0.1, "max_grad_norm": 1.0, "noise_multiplier": 0.6}
BASE |= {"evaluate_every": 3, "release": "trimmed", "corruption": "gradient", "corruption_rate": 0.3}
SHARES = {f"{who}_kept{how}" for who in ("attackers", "honest") for how in ("", "_clipped", "_passed")}


@pytest.mark.paper("ptr", "Section 5")
def test_the_longest_go_and_ties_by_place():
    norms = torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0], dtype=torch.float64)
    assert kept_by_length(norms, [9, 2, 4, 7, 6], num_trimmed=1).tolist() == [False, True, True, True, True]
    assert kept_by_length(norms, [9, 2, 4, 7, 6], num_trimmed=2).tolist() == [False, True, True, True, False]
    assert kept_by_length(norms, [1, 2, 4, 7, 6], num_trimmed=1).tolist() == [True, True, True, True, False]
    assert not kept_by_length(norms, range(5), num_trimmed=7).any()
    assert kept_by_length(norms, range(5), num_trimmed=0).all()


@pytest.mark.parametrize("release", ["trimmed", "propose_test_release", "clipping"])
def test_counting_changes_nothing(release):
    settings = {**BASE, "release": release}
    if release == "propose_test_release":
        settings["release_options"] = {"trim_rate": 0.8, "laplace_scale": 0.1, "trim_step": 0.3}
    plain, watched = (f(settings, streams=Streams(3)) for f in (cells.train_cell, knowing_cells.train_cell))
    for one, two in zip(plain, watched, strict=True):
        assert {n: v for n, v in two.items() if n not in SHARES | {"diverged"}} == one
        assert bool(SHARES & two.keys()) == (release != "clipping")


def test_the_shares_add_up_to_what_the_release_says():
    (row,) = knowing_cells.train_cell({**BASE, "num_steps": 1, "batch_size": 60}, streams=Streams(0))
    assert row["batch_mean"] == 60  # all are drawn: 18 attackers
    got = 18 * row["attackers_kept"] + 42 * row["honest_kept"]
    assert got == pytest.approx(row["num_kept"])
    assert row["attackers_kept"] < row["attackers_kept_clipped"]  # noise of length 10 √d is trimmed first


def test_cells_together_give_the_rows_of_cells_alone():
    many = [{**BASE, "seed": s, "corruption": k} for s in (0, 1) for k in ("loud", "wrong_label")]
    streams = [Streams(7, str(i)) for i in range(len(many))]
    alone = [knowing_cells.train_cell(one, streams=own) for one, own in zip(many, streams, strict=True)]
    together = knowing_cells.train_cells(many, streams=streams)
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.keys() == b.keys()
            np.testing.assert_allclose(a["honest_kept"], b["honest_kept"], atol=0.03)  # a near tie, in float32


def test_a_training_that_diverges_ends_with_a_row():
    how = {"release": "clipping", "noise_multiplier": 0.0, "max_grad_norm": float("inf"), "corruption_std": 1e38}
    rows = knowing_cells.train_cell({**BASE, **how, "num_steps": 30}, streams=Streams(0))
    assert rows[-1]["diverged"]
    assert rows[-1]["step"] < 30
    assert 0 <= rows[-1]["test_accuracy"] <= 1
    assert not any(row["diverged"] for row in rows[:-1])


def test_a_last_step_that_ruins_the_weights_is_told():
    how = {"release": "clipping", "noise_multiplier": 0.0, "max_grad_norm": float("inf"), "corruption_std": 1e20}
    (row,) = knowing_cells.train_cell({**BASE, **how, "learning_rate": 1e30, "num_steps": 1}, streams=Streams(0))
    assert row["step"] == 1
    assert row["diverged"]


def test_weights_that_are_ruined_are_told_of_cells_together_too():
    how = {"release": "clipping", "noise_multiplier": 0.0, "max_grad_norm": 1e12, "corruption_std": 1e20}
    ruined, sound = {**BASE, **how, "learning_rate": 1e30, "num_steps": 1}, {**BASE, "num_steps": 1}
    rows = knowing_cells.train_cells([ruined, sound], streams=[Streams(0), Streams(1)])
    assert [row[-1]["diverged"] for row in rows] == [True, False]


def test_a_cell_that_was_cut_goes_on(tmp_path):
    whole = knowing_cells.train_cell(BASE, streams=Streams(1))
    assert knowing_cells.train_cell(BASE, streams=Streams(1), scratch=tmp_path) == whole
    assert knowing_cells.train_cell(BASE, streams=Streams(1), scratch=tmp_path) == whole
    (tmp_path / "training.pt").write_bytes(b"no checkpoint")
    assert knowing_cells.train_cell(BASE, streams=Streams(1), scratch=tmp_path) == whole
