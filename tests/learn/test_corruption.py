"""Corrupted training: who is corrupted and how, and that the cheap way agrees with the records one by one."""

import functools
import math

import numpy as np
import pytest
import torch
from releasing import DRAWN, clipped, each_gradient, flat, records, rows_until, started

from privrob.kinds import Streams
from privrob.learn import corruption
from privrob.learn.corruption import Corruption

B1_1, B3 = ("ptr", "B.1.1"), ("ptr", "B.3")


def applied(kind, rate=0.2, n=400, std=10.0):
    images, labels = records(n, classes=5)
    return images, labels, *Corruption(kind, rate, std).records(images, labels, num_classes=5, streams=Streams(3))


@pytest.mark.paper(*B1_1)
@pytest.mark.parametrize("kind", ["label", "targeted_label", "feature"])
def test_only_the_chosen_records_change(kind):
    images, labels, new_images, new_labels, bad = applied(kind)
    assert int(bad.sum()) == 80
    assert torch.equal(images[~bad], new_images[~bad])
    assert torch.equal(labels[~bad], new_labels[~bad])
    again = applied(kind)
    assert torch.equal(again[4], bad)
    assert torch.equal(again[2], new_images)
    assert torch.equal(again[3], new_labels)
    assert torch.equal(images, records(400, classes=5)[0])  # what was given stays


@pytest.mark.paper(*B1_1)
def test_flipped_labels_are_uniform_over_the_other_classes():
    _, labels, _, new, bad = applied("label", rate=0.9, n=4000)
    away = ((new - labels) % 5)[bad].numpy()
    assert (away > 0).all()
    counts = np.bincount(away, minlength=5)[1:]
    assert np.abs(counts - 900).max() < 5 * math.sqrt(3600 * 0.25 * 0.75)


@pytest.mark.paper(*B3)
def test_targeted_labels_are_mirrored():
    _, labels, _, new, bad = applied("targeted_label")
    assert torch.equal(new[bad], 4 - labels[bad])


@pytest.mark.paper(*B1_1)
def test_the_images_noise_has_the_variance_that_is_said():
    images, _, new, _, bad = applied("feature", std=7.0)
    noise = (new - images)[bad]
    assert float(noise.std()) == pytest.approx(7.0, rel=5 / math.sqrt(2 * noise.numel()))


@pytest.mark.paper(*B3)
@pytest.mark.parametrize("release", ["clipping", "trimmed"])
@pytest.mark.parametrize("physical", [1024, 3])
def test_turned_gradients_against_the_records_one_by_one(release, physical):
    how = {"corruption": "gradient_sign", "corruption_rate": 0.5, "noise_multiplier": 0.0}
    state = started(release, physical_batch_size=physical, options={} if release == "clipping" else None, **how)
    rows = each_gradient(state.model, state.images[DRAWN], state.labels[DRAWN])
    rows[state.corrupted[DRAWN]] *= -1
    assert 0 < int(state.corrupted[DRAWN].sum()) < 7
    kept = rows[rows.norm(dim=1).argsort()][: 7 - (2 if release == "trimmed" else 0)]
    got = state.release.noisy_mean(DRAWN).gradient
    torch.testing.assert_close(flat(got), clipped(kept, 0.7).sum(0) / 12, rtol=1e-9, atol=1e-12)


@pytest.mark.paper(*B1_1)
@pytest.mark.parametrize("bound", [0.7, math.inf])
def test_noisy_gradients_against_the_records_one_by_one(bound):
    how = {"corruption": "gradient", "corruption_rate": 0.5, "corruption_std": 0.2, "noise_multiplier": 0.0}
    state = started("clipping", options={}, max_grad_norm=bound, **how)
    rows, bad = each_gradient(state.model, state.images[DRAWN], state.labels[DRAWN]), state.corrupted[DRAWN]
    _, generator = state.faults
    twin = torch.Generator()
    twin.set_state(generator.get_state())
    rows[bad] += 0.2 * torch.randn((int(bad.sum()), rows.shape[1]), generator=twin, dtype=rows.dtype)
    step = state.release.noisy_mean(DRAWN)
    torch.testing.assert_close(step.norms, rows.norm(dim=1), rtol=1e-9, atol=0)
    torch.testing.assert_close(flat(step.gradient), clipped(rows, bound).sum(0) / 12, rtol=1e-9, atol=1e-12)
    again = state.release.noisy_mean(DRAWN)
    assert float((flat(again.gradient) - flat(step.gradient)).norm()) > 0  # drawn anew each time


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_all_or_none_may_be_corrupted(rate):
    how = {"corruption": "gradient", "corruption_rate": rate, "noise_multiplier": 0.0}
    state = started("trimmed", **how)
    assert bool(torch.isfinite(flat(state.release.noisy_mean(DRAWN).gradient)).all())
    assert (state.faults is None) == (rate == 0)


def test_corruption_leaves_the_other_streams_alone():
    whole = started("clipping", options={})
    hurt = started("clipping", options={}, corruption="label", corruption_rate=0.1, learning_rate=0.0)
    still = started("clipping", options={}, learning_rate=0.0)
    assert hurt.weights_sha256() == still.weights_sha256() != whole.weights_sha256()
    assert torch.equal(hurt.noise.get_state(), still.noise.get_state())


def test_a_corrupted_training_that_was_cut_goes_on_to_the_same_bits(tmp_path):
    how = {"corruption": "gradient", "corruption_rate": 0.3, "evaluate_at": (5, 9)}
    rows = functools.partial(rows_until, release="propose_test_release", **how)
    whole = rows()
    assert [row["step"] for row in whole] == [5, 9, 12]
    assert rows(tmp_path / "training.pt", stop=5) == whole[:1]
    assert rows(tmp_path / "training.pt") == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corruption": "labels"}, "corruption must be one of"),
        ({"corruption": "label", "corruption_rate": 1.2}, "corruption_rate"),
        ({"corruption_rate": 0.1}, "corruption_rate must be 0 with corruption 'none'"),
        ({"corruption": "feature", "corruption_std": -1.0}, "corruption_std"),
        ({"corruption": "gradient", "corruption_rate": 0.1, "release": "projected"}, "release must be one of"),
        ({"evaluate_at": (0,)}, "evaluate_at"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        started(**{"release": "clipping", "options": {}, "steps": 0, **changes})


def test_every_kind_is_tried():
    for kind in corruption.KINDS:
        state = started("propose_test_release", corruption=kind, corruption_rate=0.2 if kind != "none" else 0.0)
        assert bool(torch.isfinite(flat(state.parameters)).all())


@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("physical", [1024, 3, 1])
def test_noisy_gradients_taken_twice_are_the_same_and_keep_to_the_bound(physical, spoilt):
    how = {"corruption": "gradient", "corruption_rate": 0.9, "physical_batch_size": physical, "steps": 0}
    state = started("trimmed", options={"trim_rate": 0.0}, **how)
    if spoilt:
        state.images[DRAWN[2], 0, 0, 0] = math.nan
    norms, _, weighted = state.release._taken(DRAWN)
    after = state.faults[1].get_state()
    for place in range(len(DRAWN)):
        one = torch.zeros_like(norms)
        one[place] = 1.0
        length = float(flat(weighted(one * state.release._clipped(norms))).norm())
        want = 0.0 if spoilt and place == 2 else min(float(norms[place]), state.release.clip_norm)
        assert length == pytest.approx(want, rel=1e-9)
    assert torch.equal(state.faults[1].get_state(), after)  # the next step's noise is what it would have been
