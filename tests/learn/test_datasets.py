"""Data sets: what load returns, whatever the source; the synthetic set; smaller sets; fingerprints."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from test_datasets_kit import digits, make_kit

from privrob.learn import datasets
from privrob.learn.datasets import DataUnavailable
from privrob.learn.datasets.request import spread_order

ARGUMENTS = [
    {},
    {"num_records": 7},
    {"num_records": 7, "seed": 1},
    {"num_test": 0},
    {"num_classes": 2},
    {"split": "train"},
    {"split": "test", "num_test": 3},
]


@pytest.fixture
def kit(tmp_path, monkeypatch):
    return make_kit(tmp_path, monkeypatch)


def test_importing_brings_in_neither_torch_nor_pillow_nor_pooch():
    code = "import sys, privrob.learn.datasets; print([m for m in ('torch', 'PIL', 'pooch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------------------- synthetic


def test_synthetic_is_decided_by_its_arguments_and_needs_no_files(monkeypatch):
    monkeypatch.setenv("PRIVROB_DATA", "/nowhere/at all")
    one, two = (datasets.load("synthetic", num_records=30, num_test=10, seed=5) for _ in range(2))
    assert torch.equal(one.train_images, two.train_images)
    assert torch.equal(one.test_labels, two.test_labels)
    other = datasets.load("synthetic", num_records=30, num_test=10, seed=6)
    assert not torch.equal(one.train_images, other.train_images)
    assert one.provenance.sha256 != other.provenance.sha256
    assert (one.provenance.kind, one.provenance.stand_in, one.provenance.source) == ("synthetic", False, "arguments")


@pytest.mark.parametrize("num_records", [1, 2, 3, 29404])
def test_synthetic_of_any_size_has_balanced_labels_and_the_promised_types(num_records):
    data = datasets.load("synthetic", shape=(2, 3, 5), num_classes=4, num_records=num_records, num_test=0)
    assert data.train_images.shape == (num_records, 2, 3, 5)
    assert (data.train_images.dtype, data.train_labels.dtype) == (torch.uint8, torch.int64)
    assert data.test_images.shape == (0, 2, 3, 5)
    counts = torch.bincount(data.train_labels, minlength=4)
    assert counts.max() - counts.min() <= 1
    assert data.tensors().test_images.shape == (0, 2, 3, 5)


def test_synthetic_changes_with_the_shape_but_not_its_test_part_with_the_number_of_training_records():
    small, large = (datasets.load("synthetic", num_records=n, num_test=20) for n in (50, 60))
    assert torch.equal(small.test_images, large.test_images)


def test_a_linear_model_learns_the_synthetic_set_within_seconds():
    tensors = datasets.load("synthetic", num_records=1000, num_test=300).tensors()
    x, y = tensors.train_images.flatten(1) - 0.5, tensors.train_labels
    weight = torch.zeros(10, x.shape[1], requires_grad=True)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(x @ weight.T, y)
        (grad,) = torch.autograd.grad(loss, weight)
        weight = (weight - 0.5 * grad).detach().requires_grad_()
    hits = ((tensors.test_images.flatten(1) - 0.5) @ weight.T).argmax(1) == tensors.test_labels
    assert hits.float().mean() > 0.8  # chance is 0.1; 0.95 was seen
    assert hits.float().mean() < 1.0  # and it is not trivial


def test_synthetic_can_take_the_shape_and_the_classes_of_a_known_set():
    data = datasets.load("synthetic:cifar10", num_records=20, num_test=0)
    assert (data.shape, data.num_classes) == ((3, 32, 32), 10)
    assert datasets.load("synthetic:ocr_letters", num_records=30).shape == (1, 16, 8)


# ------------------------------------------------------------------------------------------------- tensors, records


def test_tensors_scale_and_standardise_on_the_device_asked_for(kit):
    kit.add("tiny", kit.idx_form(digits(0)), mean=[0.25], std=[0.5])
    kit.put(digits(0))
    data = datasets.load("tiny")
    raw = data.train_images.double() / 255
    assert torch.allclose(data.tensors().train_images.double(), raw, atol=1e-7)  # float32 rounding
    standard = data.tensors(normalise="standard", dtype=torch.float64)
    assert torch.allclose(standard.train_images, (raw - 0.25) / 0.5, atol=1e-15)
    assert data.tensors(normalise="raw").train_images.dtype == torch.uint8
    assert data.tensors(device="meta").train_labels.device.type == "meta"
    assert data.train_images.dtype == torch.uint8  # the set itself stays as it was


def test_standardising_needs_published_numbers():
    data = datasets.load("synthetic", shape=(3, 4, 4), num_records=5, num_test=2)
    with pytest.raises(ValueError, match="mean and std must be given"):
        data.tensors(normalise="standard")
    with pytest.raises(ValueError, match="must have 3 numbers, got 2 and 1"):
        data.tensors(normalise="standard", mean=[0.5, 0.5], std=[1.0])
    assert data.tensors(normalise="standard", mean=[0.5], std=[0.5]).train_images.min() >= -1
    with pytest.raises(ValueError, match=r"normalise must be one of .* did you mean 'unit'"):
        data.tensors(normalise="units")


def test_padding_centres_and_says_so():
    data = datasets.load("synthetic", shape=(1, 4, 3), num_records=5, num_test=2)
    wide = data.padded(8, 8)
    assert wide.shape == wide.provenance.shape == (1, 8, 8)
    assert torch.equal(wide.train_images[:, :, 2:6, 2:5], data.train_images)
    assert int(wide.train_images.sum()) == int(data.train_images.sum())
    assert wide.provenance.sha256 != data.provenance.sha256
    assert "padded to 8x8" in wide.provenance.label
    with pytest.raises(ValueError, match="height must be an integer in"):
        data.padded(3, 8)


def test_provenance_is_plain_and_strict_json_and_cannot_be_changed():
    seen = datasets.load("synthetic", num_records=5, num_test=2).provenance
    again = json.loads(json.dumps(seen.as_dict(), allow_nan=False))
    assert again["shape"] == [1, 28, 28]
    assert again["num_train"] == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.name = "other"


# --------------------------------------------------------------------------------------------------- smaller sets


def test_a_smaller_set_keeps_proportions_and_lies_inside_the_larger_one(kit):
    payloads = digits(3, num_train=90, num_test=30)
    kit.add("tiny", kit.idx_form(payloads), train_counts=30, test_counts=10)
    kit.put(payloads)
    whole = datasets.load("tiny")
    rows = {tuple(image.flatten().tolist()): i for i, image in enumerate(whole.train_images)}
    kept = {}
    for count in (1, 9, 30, 90):
        part = datasets.load("tiny", num_records=count)
        kept[count] = [rows[tuple(image.flatten().tolist())] for image in part.train_images]
        assert kept[count] == sorted(kept[count])  # in the old order
        assert torch.equal(part.train_labels, whole.train_labels[kept[count]])
        counts = torch.bincount(part.train_labels, minlength=3)
        assert counts.max() - counts.min() <= 1
    assert set(kept[1]) < set(kept[9]) < set(kept[30]) < set(kept[90])
    assert (
        datasets.load("tiny", num_records=9, seed=1).train_images.tolist()
        != datasets.load("tiny", num_records=9).train_images.tolist()
    )
    assert datasets.load("tiny", num_records=9).provenance.label == "TINY (9 of 90 training records)"


def test_spread_order_is_a_permutation_with_every_class_in_proportion():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    order = spread_order(labels, np.random.default_rng(0))
    assert sorted(order) == list(range(100))
    for count in (10, 20, 50):
        assert np.abs(np.bincount(labels[order[:count]], minlength=3) - count * np.array([0.6, 0.3, 0.1])).max() <= 1


def test_the_first_classes_alone_can_be_asked_for(kit):
    kit.add("tiny", kit.idx_form(digits(0)))
    kit.put(digits(0))
    data = datasets.load("tiny", num_classes=2)
    assert data.classes == ("a", "b")
    assert data.train_labels.unique().tolist() == [0, 1]
    assert (data.provenance.num_train, data.provenance.num_test) == (8, 4)
    assert "first 2 of 3 classes" in data.provenance.label


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_the_fingerprint_without_loading_is_the_one_with_loading(kit, arguments):
    kit.add("tiny", kit.idx_form(digits(0)))
    kit.put(digits(0))
    for name in ("tiny", "synthetic"):
        assert datasets.fingerprint(name, **arguments) == datasets.load(name, **arguments).provenance.sha256


def test_every_argument_that_changes_the_records_changes_the_fingerprint(kit):
    kit.add("tiny", kit.idx_form(digits(0)))
    kit.put(digits(0))
    for name in ("tiny", "synthetic"):
        prints = [datasets.fingerprint(name, **arguments) for arguments in ARGUMENTS]
        assert len(set(prints)) == len(prints)
    assert datasets.fingerprint("tiny", seed=3) == datasets.fingerprint("tiny")  # nothing is drawn


def test_the_fingerprint_of_a_set_that_is_not_here_says_how_to_get_it(kit):
    kit.add("tiny", kit.idx_form(digits(0)))
    with pytest.raises(DataUnavailable, match="TINY is not on this machine"):
        datasets.fingerprint("tiny")


# ------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"name": "minst"}, ValueError, "did you mean 'mnist'"),
        ({"name": "mnist", "num_records": 0}, ValueError, "num_records must be an integer in"),
        ({"name": "mnist", "num_records": 10.0}, TypeError, "num_records must be an integer"),
        ({"name": "mnist", "num_test": -1}, ValueError, "num_test must be an integer in"),
        ({"name": "mnist", "num_classes": 11}, ValueError, r"num_classes must be an integer in \[2, 10\]"),
        ({"name": "tiny_imagenet", "num_classes": 201}, ValueError, r"num_classes must be an integer in \[2, 200\]"),
        ({"name": "mnist", "split": "val"}, ValueError, "split must be one of"),
        ({"name": "mnist", "seed": None}, TypeError, "seed must be an integer"),
        ({"name": "mnist", "variant": "jpeg"}, ValueError, "variant must be one of"),
        ({"name": "mnist", "shape": (1, 2, 2)}, ValueError, "shape must be left out for 'mnist'"),
        ({"name": "mnist", "image_size": (8, 8)}, ValueError, "image_size must be left out"),
        ({"name": "synthetic", "channels": 3}, ValueError, "channels must be left out"),
        ({"name": "synthetic", "shape": (28, 28)}, ValueError, "shape must be"),
        ({"name": "synthetic", "noise": -0.1}, ValueError, "noise must lie in"),
        ({"name": "synthetic:minst"}, ValueError, "did you mean 'mnist'"),
        ({"name": None}, ValueError, "name must be one of"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments, error, words, monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVROB_OFFLINE", "1")
    monkeypatch.setenv("PRIVROB_CACHE", str(tmp_path))
    with pytest.raises(error, match=words):
        datasets.load(**arguments)


def test_more_records_than_there_are_is_refused(kit):
    kit.add("tiny", kit.idx_form(digits(0)))
    kit.put(digits(0))
    with pytest.raises(
        ValueError, match=r"num_records must be an integer in \[0, 12\], got num_records=13; the train part"
    ):
        datasets.load("tiny", num_records=13)


def test_offline_must_be_said_in_words_that_are_known(kit, monkeypatch):
    kit.add("tiny", kit.idx_form(digits(0)))
    monkeypatch.setenv("PRIVROB_OFFLINE", "maybe")
    with pytest.raises(ValueError, match="PRIVROB_OFFLINE must be one of"):
        datasets.load("tiny")
