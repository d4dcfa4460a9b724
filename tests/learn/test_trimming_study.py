"""The study of trimming: who is trimmed, branches, TSUM after a failed test, what one record moves, Algorithm 2."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from releasing import DRAWN, clipped, each_gradient, flat, records

from privrob.kinds import Streams
from privrob.learn import trimming_study
from privrob.learn.dpsgd import DPSGDSettings
from privrob.mechanisms.statistics import TrimmedSum

SMALL = {"model": "mlp", "hidden": (5,), "activation": "tanh", "sample_rate": 0.4, "learning_rate": 0.3}
SMALL |= {"num_steps": 12, "max_grad_norm": 0.7, "noise_multiplier": 0.8, "evaluate_every": 4}


def probed(release="trimmed", options=None, variant="", *, more=None, **changes):
    """A training on 30 records that looks at every step."""
    settings = DPSGDSettings(**{**SMALL, "release": release, "release_options": options, **changes})
    images, labels = records(30)
    how = {"num_classes": 3, "streams": Streams(5, "study"), "variant": variant, "probe_every": 1, **(more or {})}
    return trimming_study.Probed(settings, (images, labels, images[:9], labels[:9]), **how)


def cell(**changes):
    base = {"dataset": "synthetic", "num_records": 60, "num_test": 12, "shape": (1, 14, 14), "num_classes": 3}
    base |= {"model": "logistic", "batch_size": 20, "learning_rate": 0.3, "max_grad_norm": 1.0, "num_steps": 8}
    base |= {"noise_multiplier": 0.5, "release": "trimmed", "evaluate_every": 4, "probe_every": 1, "seed": 0}
    base.pop("num_classes")
    rows = trimming_study.study_cell({**base, **changes}, streams=Streams(3))
    return pd.DataFrame(rows)


@pytest.mark.paper("ptr", "Section 5.1")
def test_the_records_looked_at_are_told_apart_as_by_hand():
    training = probed(options={"trim_rate": 0.25}, corruption="label", corruption_rate=0.4)
    rows = each_gradient(training.model, training.images[DRAWN], training.labels[DRAWN])
    right = (training.model(training.images[DRAWN]).argmax(1) == training.labels[DRAWN]).numpy()
    training._step(DRAWN)
    norms, trimmed, bad, seen_right = training.looks[0]
    np.testing.assert_allclose(norms, rows.norm(dim=1).numpy(), rtol=1e-9)
    assert set(np.flatnonzero(trimmed)) == set(rows.norm(dim=1).argsort()[-3:].tolist())  # F = 0.25 · 12
    assert bad.tolist() == training.corrupted[DRAWN].tolist()
    assert 0 < bad.sum() < len(bad)
    assert seen_right.tolist() == right.tolist()
    counts = trimming_study._counted(training.looks)
    assert sum(v for k, v in counts.items() if k != "num_looks") == len(DRAWN)
    assert counts["corrupted_trimmed_wrong"] == (bad & trimmed & ~right).sum()


def test_a_probed_training_trains_as_without_probes():
    plain, rarely = probed(), probed(more={"probe_every": 5})
    assert [r["test_accuracy"] for r in plain.run()] == [r["test_accuracy"] for r in rarely.run()]
    assert plain.weights_sha256() == rarely.weights_sha256()


def test_shares_are_those_of_the_counts():
    counts = {"clean_trimmed_wrong": 6, "clean_trimmed_right": 2, "clean_kept_wrong": 4, "clean_kept_right": 36}
    counts |= {"corrupted_trimmed_wrong": 7, "corrupted_trimmed_right": 1, "corrupted_kept_wrong": 2}
    counts |= {"corrupted_kept_right": 0, "num_looks": 2}
    got = trimming_study.shares(pd.DataFrame([counts])).iloc[0]
    want = {"wrong_of_trimmed": 6 / 8, "wrong_of_kept": 4 / 40, "trimmed_of_wrong": 6 / 10, "clean_trimmed": 4.0}
    want |= {"trimmed_of_clean": 8 / 48, "trimmed_of_corrupted": 8 / 10}
    assert {name: got[name] for name in want} == pytest.approx(want)
    none = trimming_study.shares(pd.DataFrame([dict.fromkeys(counts, 0)])).iloc[0]
    assert all(math.isnan(none[name]) for name in want)


def test_a_branch_without_changes_is_the_trunk_to_the_bit():
    for release, options in (("trimmed", None), ("propose_test_release", {"trim_step": 0.2, "trim_rate": 0.6})):
        trunk = probed(release, options)

        def make(settings, release=release, options=options):
            changes = {"noise_multiplier": settings.noise_multiplier, "corruption": settings.corruption}
            return probed(release, options, **changes)

        list(trunk.run(until=5))
        same, quiet = trunk.branch({}, make), trunk.branch({"noise_multiplier": 0.1}, make)
        for training in (trunk, same, quiet):
            list(training.run())
        assert same.weights_sha256() == trunk.weights_sha256() != quiet.weights_sha256()
        assert same.release.num_trimmed == trunk.release.num_trimmed


def test_rows_of_a_cell_with_branches():
    branches = {"sum": {"at": 4, "release_options": {"trim_rate": 0.0}}, "same": {"at": 4, "num_steps": 10}}
    more = {"trace_steps": 2, "histogram_at": [8], "gradients_at": [4], "num_batches": 2}
    rows = cell(branches=branches, **more)
    window = rows[rows["what"] == "window"]
    assert [(b, s) for b, s in zip(window["branch"], window["step"], strict=True)] == [
        ("", 4),
        ("sum", 8),
        ("same", 8),
        ("same", 10),
        ("", 8),
    ]
    at_8 = window[window["step"] == 8].set_index("branch")
    assert at_8.loc["same", "train_loss"] == at_8.loc["", "train_loss"] != at_8.loc["sum", "train_loss"]
    assert at_8.loc["sum", "num_trimmed"] == 0 < at_8.loc["", "num_trimmed"]
    assert len(rows[(rows["what"] == "moves")]) == 2
    assert (rows["what"] == "trace").sum() == 2 * 3
    bars = rows[(rows["what"] == "histogram") & (rows["branch"] == "")]
    assert bars["count"].sum() == at_8.loc[""].filter(regex="^(clean|corrupted)_(trimmed|kept)_").sum()


def test_bad_settings_of_a_cell_are_refused():
    for changes, text in (
        ({"variant": "trims"}, "variant"),
        ({"branches": {"a": {"at": 9}}}, "at"),
        ({"release": "clipping"}, "release"),
        ({"probe_every": 0}, "probe_every"),
    ):
        with pytest.raises(ValueError, match=text):
            cell(**changes)


@pytest.mark.paper("ptr", "Remark 5.3")
@pytest.mark.parametrize("trim_rate", [0.2, 0.75])
def test_tsum_after_a_failed_test_too(trim_rate):
    """Little of it passes (0.2: F below the long ones), or all: the released sum is the trimmed one either way."""
    options = {"trim_rate": trim_rate, "laplace_scale": 1e-9, "sensitivity_bound": 0.6}
    training = probed("propose_test_release", options, "trims_at_failure", noise_multiplier=0.0)
    rows = each_gradient(training.model, training.images[DRAWN], training.labels[DRAWN])
    bound = float(rows.norm(dim=1).median()) * 1.1
    training.release.clip_norm = bound
    count = round(trim_rate * 12)
    step = training.release.noisy_mean(DRAWN)
    assert step.seen["passed"] == float(trim_rate > 0.5)
    assert step.seen["num_kept"] == max(7 - count, 0)
    kept = clipped(rows, bound)[rows.norm(dim=1).argsort()[: max(7 - count, 0)]]
    torch.testing.assert_close(flat(step.gradient), kept.sum(0) / 12, rtol=1e-9, atol=1e-12)


@pytest.mark.paper("ptr", "B.4")
def test_trimmed_at_random_leaves_out_as_many_but_others():
    training = probed("trimmed", {"trim_rate": 0.25}, "trims_at_random", noise_multiplier=0.0)
    norms = torch.arange(7, dtype=torch.float64)
    left = [(training.release._kept(norms, DRAWN) == 0).nonzero().flatten().tolist() for _ in range(200)]
    assert {len(one) for one in left} == {3}
    assert {i for one in left for i in one} == set(range(7))


@pytest.mark.paper("ptr", "A.5.1")
def test_largest_moves_are_those_of_the_statistics():
    rng = np.random.default_rng(1)
    rows, others = rng.normal(size=(9, 4)) * rng.uniform(0.1, 2, (9, 1)), rng.normal(size=(5, 4))
    for trimmed in (0, 2, 9):
        got = trimming_study.largest_moves(rows, others, num_trimmed=trimmed, max_norm=0.8, bound=0.4)
        neighbours = [np.delete(rows, i, axis=0) for i in range(9)] + [np.vstack([rows, o]) for o in others]
        for name, statistic in (("sum_moved", TrimmedSum(0, 0.8)), ("trimmed_moved", TrimmedSum(trimmed, 0.8))):
            want = max(np.linalg.norm(statistic.value(rows) - statistic.value(other)) for other in neighbours)
            assert got[name] == pytest.approx(want, rel=1e-9)
        assert got["trimmed_moved"] <= got["trimmed_bound"] * (1 + 1e-12)
        assert got["margin"] == TrimmedSum(trimmed, 0.8).safety_margin(rows, bound=0.4)


@pytest.mark.paper("ptr", "Footnote 5")
def test_the_trimmed_mean_over_the_kept_is_twice_as_sensitive_as_the_sum_over_a_fixed_number():
    kept, more = np.ones((30, 1)), np.vstack([np.ones((30, 1)), [[-0.999]]])
    sums = [float(TrimmedSum(0, 1.0).value(rows)[0]) for rows in (kept, more)]
    assert abs(sums[0] - sums[1]) <= 1.0
    assert 30 * abs(sums[0] / 30 - sums[1] / 31) == pytest.approx(30 * 1.999 / 31, rel=1e-12)


@pytest.mark.paper("ptr", "Algorithm 2")
@pytest.mark.parametrize("bound", [4.0, 40.0])  # some gradients are longer than τ, or none
def test_algorithm_2_by_the_letter_gives_the_librarys_weights(bound):
    options = {"sensitivity_bound": 0.5, "laplace_scale": 0.3, "test_failure": 1e-2, "trim_rate": 0.5, "trim_step": 0.1}
    training = probed("propose_test_release", options, max_grad_norm=bound)
    model, streams = probed().model, training.streams
    noise, batches = streams.torch("noise"), streams.numpy("batches")
    size = sum(p.numel() for p in model.parameters())

    def of_step(step):
        one, two = torch.empty(2, dtype=torch.float64).exponential_(generator=noise)
        return float(one - two), torch.randn(size, generator=noise, dtype=torch.float64).numpy()

    drawn = [trimming_study.poisson_batch(batches, num_records=30, sample_rate=0.4) for _ in range(12)]
    settings = {"learning_rate": 0.3, "max_norm": bound, "sensitivity_bound": 0.5 * bound, "noise_multiplier": 0.8}
    settings |= {"laplace_scale": 0.3, "test_failure": 1e-2, "expected": 12.0, "num_trimmed": 6, "step": 1, "most": 10}
    weights, path = trimming_study.algorithm_2(
        model, training.images, training.labels, batches=drawn, noise=of_step, settings=settings
    )
    list(training.run())
    ours = np.concatenate([p.detach().numpy().ravel() for p in training.parameters])
    np.testing.assert_allclose(weights, ours, rtol=0, atol=1e-12)  # sums of a dozen terms near 1
    assert len({passed for _, passed in path}) == 2
    assert len({trimmed for trimmed, _ in path}) > 2
