"""Data sets that were just read: shared by cells, and read again where somebody changed them or asks for another."""

import torch

from privrob.learn import cells, datasets, features
from privrob.learn.datasets import recent

ASKED = {"num_records": 60, "num_test": 20}


def ask(name="synthetic:mnist", **more):
    return recent.recent(name, {**ASKED, **more}, normalise="unit")


def test_the_same_set_is_read_once_and_few_are_kept(monkeypatch):
    read = []
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda name, **more: read.append(name) or load(name, **more))
    monkeypatch.setattr(recent, "_kept", {})
    first = ask()
    assert ask()[1].train_images is first[1].train_images
    assert len(read) == 1
    ask(seed=1), ask(seed=2), ask()
    assert len(read) == 4  # only the last two are kept
    assert torch.equal(ask()[1].train_images, first[1].train_images)
    assert len(recent._kept) == 2


def test_tensors_that_somebody_changed_are_read_again(monkeypatch):
    monkeypatch.setattr(recent, "_kept", {})
    before = ask()[1].train_images
    kept = before.clone()
    before[:5].zero_()  # a view of them: seen all the same
    assert torch.equal(ask()[1].train_images, kept)


def test_what_is_made_of_them_is_part_of_what_is_asked_for(monkeypatch):
    monkeypatch.setattr(recent, "_kept", {})

    def darker(tensors, factor):
        return tensors._replace(train_images=tensors.train_images * factor)

    plain = ask()[1].train_images
    for factor in (0.5, 0.25, 0.5):
        changed = recent.recent("synthetic:mnist", ASKED, change=(darker, factor), normalise="unit")
        assert torch.equal(changed[1].train_images, plain * factor)


def test_features_of_the_last_set_are_at_hand_and_follow_its_images(monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVROB_CACHE", str(tmp_path))
    tensors, made = ask()[1], []
    take = features.ScatteringFeatures.both
    monkeypatch.setattr(features.ScatteringFeatures, "both", lambda *a, **k: made.append(len(a[1])) or take(*a, **k))
    monkeypatch.setattr(features.features_kept, "read", lambda path: None)
    monkeypatch.setattr(features, "_last", [])

    def take_features(of):
        return features.apply("scattering", None, of, streams=None).train_images

    first = take_features(tensors)
    assert torch.equal(take_features(tensors), first)
    assert made == [60]
    other = tensors._replace(train_images=tensors.train_images.flip(0))
    torch.testing.assert_close(take_features(other), first.flip(0), atol=0.01, rtol=0.01)  # half precision
    tensors.train_images[0] = 0.0
    assert not torch.equal(take_features(tensors)[0], first[0])
    assert made == [60, 60, 60]


def test_cells_of_one_set_give_the_rows_of_cells_alone(monkeypatch):
    settings = {"dataset": "synthetic:mnist", "model": "logistic", "sample_rate": 0.2, "num_steps": 3, **ASKED}
    settings |= {"learning_rate": 0.5, "max_grad_norm": 1.0, "noise_multiplier": 1.0, "evaluate_every": 3}

    def rows(**more):
        from privrob.kinds import Streams

        return cells.train_cell(settings | more, streams=Streams(0, "t"))

    alone = []
    for kind in ("feature", "label", "none"):
        monkeypatch.setattr(recent, "_kept", {})
        alone.append(rows(corruption=kind, corruption_rate=0.0 if kind == "none" else 0.5))
    monkeypatch.setattr(recent, "_kept", {})
    for kind, expected in zip(("feature", "label", "none"), alone, strict=True):
        assert rows(corruption=kind, corruption_rate=0.0 if kind == "none" else 0.5) == expected
