"""One training as a cell of a sweep: data, features and settings in, rows out.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch

from privrob import checks
from privrob.accounting import calibrate
from privrob.learn import datasets, dpsgd, features, releases, replicas
from privrob.learn.checkpoints import BadCheckpoint
from privrob.learn.datasets.recent import recent

_DATA = ("num_records", "num_test", "allow_stand_in", "shape")
_OWN = (
    "dataset",
    "normalise",
    "batch_size",
    "seed",
    "name",
    "features",
    "feature_options",
    "num_validation",
    "num_public",
    "public_dataset",
)


def train_cell(settings, *, streams, scratch=None):
    """One training as a cell of a sweep.

    Args: settings — a dict: ``dataset`` (a name for :func:`privrob.learn.datasets.load`) and of its arguments
        ``num_records``, ``num_test``, ``allow_stand_in``, ``shape``; ``normalise``; either ``sample_rate`` or
        ``batch_size`` (the expected one: q = batch_size / n); ``seed`` (tells repetitions apart, the streams see it);
        ``name`` — of the method, for the rows;
        ``features``, ``feature_options`` — of :mod:`privrob.learn.features`: ``corruption`` "feature" is then of the
        images, before their features are taken;
        ``num_validation`` — the last so many training records are set aside and take the place of the test records:
        for choosing settings;  ``num_public`` — so many more are set aside as public, or, with ``public_dataset``, the
        first of that set are (their labels modulo the number of classes);
        the rest as in :class:`privrob.learn.dpsgd.DPSGDSettings`;
        scratch — a folder of this cell alone, for the checkpoint; None: a killed training begins again.
    Returns: the rows of :func:`privrob.learn.dpsgd.train`, each with what was trained on (``data``, ``num_records``,
        ``sample_rate``).
    """
    return trained(settings, streams=streams, scratch=scratch)


def trained(settings, *, streams, scratch=None, training=dpsgd.Training, read=None):
    """As :func:`train_cell`, with another kind of training.

    Args: training — a subclass of :class:`privrob.learn.dpsgd.Training`;  read — takes it to the rows (None: all).
    """
    ready, tensors, arguments, seen = _prepared(_as_dict(settings), streams)
    checkpoint = scratch and Path(scratch) / "training.pt"

    def rows():
        run = training(ready, *tensors, **arguments, checkpoint=checkpoint)
        return list(run.rows()) if read is None else read(run)

    try:
        found = rows()
    except BadCheckpoint:  # nobody else writes there: it is not worth a question
        checkpoint.unlink()
        found = rows()
    return [{**row, **seen} for row in found]


def _prepared(settings, streams):
    """Training settings, data, the other arguments, and what every row says of the data."""
    own = _checked(settings)
    how = {"normalise": settings.get("normalise", "unit"), "device": own.get("device", "cpu")}
    data, tensors = recent(settings["dataset"], _data_arguments(settings), **how)
    corruption, changed = dpsgd.DPSGDSettings(**{"sample_rate": 1.0, **own}).corrupted, None
    if settings.get("features", "none") != "none" and corruption.kind == "feature":
        changed = _corrupted_images(corruption, tensors, data, settings, streams)
        own |= {"corruption": "none", "corruption_rate": 0.0}  # it is done: the training sees features only
    tensors = features.apply(
        settings.get("features", "none"), settings.get("feature_options"), tensors, streams=streams, changed=changed
    )
    tensors, public = _set_aside(tensors, data, settings)
    num_records = len(tensors.train_labels)
    if "batch_size" in settings:
        batch = settings["batch_size"]
        checks.real("batch_size", batch, low=0, high=num_records, hint=f"there are {num_records} records")
        own["sample_rate"] = batch / num_records
    ready = dpsgd.DPSGDSettings(**own)
    arguments = {"num_classes": data.num_classes, "streams": streams, "public": public}
    seen = {"data": data.provenance.label, "num_records": num_records}
    seen |= {"sampling": "poisson", "sample_rate": ready.sample_rate}
    return ready, tensors, arguments, seen


def _corrupted_images(corruption, tensors, data, settings, streams):
    """The set's training images and which of them are corrupted: those that a training on the images would corrupt.

    Those set aside are left as they are.
    """
    kept = len(_set_aside(tensors, data, settings)[0].train_labels)
    images, spare = tensors.train_images[:kept], tensors.train_images[kept:]
    labels = tensors.train_labels[:kept]
    images, _, bad = corruption.records(images, labels, num_classes=data.num_classes, streams=streams)
    return torch.cat([images, spare]), torch.cat([bad, bad.new_zeros(len(spare))])


def train_cells(settings, *, streams, training=dpsgd.Training):
    """Many trainings of one model in one program; the rows are those of :func:`train_cell`, but for rounding.

    Args: settings — a list, as of :func:`train_cell`;  streams — one of each;  training — as of :func:`trained`.
    """
    trainings, told = [], []
    for one, own in zip(settings, streams, strict=True):
        ready, tensors, arguments, seen = _prepared(_as_dict(one), own)
        trainings.append(training(ready, *tensors, **arguments))
        told.append(seen)
    every = replicas.together(trainings)
    return [[{**row, **seen} for row in rows] for rows, seen in zip(every, told, strict=True)]


def together_key(settings):
    """What cells must share to run in one program; None: they don't. Only on a GPU does it pay."""
    if not str(settings.get("device", "cpu")).startswith("cuda"):
        return None
    ready = dpsgd.DPSGDSettings(**{"sample_rate": 1.0, **_checked(settings)})
    release = releases.make(ready.release, ready.release_options)
    if not release.bears_faults or not (ready.clips or release.by_norm):
        return None
    shared = ("model", "activation", "hidden", "device", "dataset", "normalise", "features", "feature_options", *_DATA)
    return {name: settings.get(name) for name in shared}


def history(settings):
    """What a cell with these settings releases: ((guarantee, count), …) for a ledger (``add_remove``, ``poisson``).

    Args: settings — as of :func:`train_cell`, with ``sample_rate``.
    """
    settings = _as_dict(settings)
    if "sample_rate" not in settings:
        raise ValueError("settings must have sample_rate for the ledger, got none; pass batch_size / num_records")
    own = _checked(settings)
    recipe = features.make(settings.get("features", "none"), settings.get("feature_options"))
    return (*(recipe.history() if recipe else ()), *dpsgd.DPSGDSettings(**own).history())


def _family(name):
    """Sets of the same images have the same one."""
    return {"mnist5k": "mnist", "tiny_imagenet": "imagenet"}.get(name, name)


_calibrated = {}


def calibrated(settings, *, epsilon, delta):
    """The least noise multiplier with which a cell's whole history spends at most ε (``add_remove``, ``poisson``).

    Args: settings — as of :func:`train_cell`, without ``noise_multiplier``, with ``sample_rate``.
    Returns: :class:`privrob.accounting.calibrate.Calibrated`; equal histories are searched once a process.
    """

    def of(noise_multiplier):
        return history({**settings, "noise_multiplier": noise_multiplier})

    key = (repr(of(1.0)), repr(of(2.0)), epsilon, delta)  # at two: what scales with σ differs from what doesn't
    if key not in _calibrated:
        _calibrated[key] = calibrate.noise_multiplier_for_history(
            epsilon, delta=delta, history=of, neighbouring="add_remove"
        )
    return _calibrated[key]


def _as_dict(settings):
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a dict of names and values, got {type(settings).__name__}")
    return dict(settings)


def _checked(settings):
    """The training's own settings; everything is checked before any data is loaded."""
    for name in ("dataset", "model"):
        if name not in settings:
            raise ValueError(f"settings must name a {name}, got {sorted(settings)}")
    allowed = [*_DATA, *_OWN, *(f.name for f in fields(dpsgd.DPSGDSettings))]
    for name in settings:
        checks.choice("settings", name, allowed)
    if ("batch_size" in settings) == ("sample_rate" in settings):
        raise ValueError("settings must have either batch_size or sample_rate, got both or none")
    checks.choice("normalise", settings.get("normalise", "unit"), ("unit", "standard"))
    for name in ("num_validation", "num_public"):
        checks.integer(name, settings.get(name, 0), low=0)
    if settings.get("public_dataset") and not settings.get("num_public"):
        raise ValueError("num_public must be at least 1 with public_dataset, got none")
    recipe = features.make(settings.get("features", "none"), settings.get("feature_options"))
    for name, public in (
        ("public_dataset", settings.get("public_dataset")),
        ("feature_options", recipe and recipe.public),
    ):
        if public and _family(public) == _family(settings["dataset"]) and not _family(public).startswith("synthetic"):
            raise ValueError(f"{name} must name another set than the private {settings['dataset']!r}, got {public!r}")
    own = {name: value for name, value in settings.items() if name not in (*_DATA, *_OWN)}
    dpsgd.DPSGDSettings(**{"sample_rate": 1.0, **own})
    return own


def _set_aside(tensors, data, settings):
    """Training and test tensors without what is set aside, and the public records or None."""
    images, labels, test_images, test_labels = tensors
    validation, public = settings.get("num_validation", 0), settings.get("num_public", 0)
    outside = settings.get("public_dataset")
    kept = len(labels) - validation - (0 if outside else public)
    if kept < 1:
        raise ValueError(
            f"num_validation and num_public must leave a training record, got {validation} and {public} of "
            f"{len(labels)}"
        )
    if validation:
        test_images, test_labels = images[-validation:], labels[-validation:]
    spare = None
    if outside:
        if settings.get("features", "none") != "none":
            raise ValueError("public_dataset must be None with features, got both; set records aside with num_public")
        spare = _other_set(outside, public, data, images)
    elif public:
        spare = images[kept : kept + public], labels[kept : kept + public]
    return tensors._replace(
        train_images=images[:kept], train_labels=labels[:kept], test_images=test_images, test_labels=test_labels
    ), spare


def _other_set(name, count, data, images):
    other, tensors = recent(name, {"num_records": count}, device=str(images.device))
    if data.provenance.stand_in and data.provenance.variant.endswith(other.provenance.label.partition(" (")[0]):
        raise ValueError(f"public_dataset must be another set than the stand-in for the private one, got {name!r}")
    if other.shape != data.shape:
        raise ValueError(f"public_dataset must have images of shape {data.shape}, got {name!r} with {other.shape}")
    return tensors.train_images, tensors.train_labels % data.num_classes


def _data_arguments(settings):
    return {name: settings[name] for name in _DATA if settings.get(name) is not None}


def _fingerprint(settings):
    """The data that a cell's rows depend on: name to sha256."""
    name = settings["dataset"]
    found = {name: datasets.fingerprint(name, **_data_arguments(settings))}
    recipe = features.make(settings.get("features", "none"), settings.get("feature_options"))
    if recipe:
        found |= recipe.fingerprint()
    if settings.get("public_dataset"):
        outside = settings["public_dataset"]
        found[f"{outside} (public)"] = datasets.fingerprint(outside, num_records=settings["num_public"])
    return found


train_cell.data = _fingerprint
train_cell.batch = train_cells
train_cell.batch_key = together_key
train_cell.resumes = True
