"""One federated training as a cell of a sweep: data, pixels pooled or features, and settings in, rows out.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from torch.nn import functional

from privrob import checks
from privrob.learn import datasets, features
from privrob.learn.datasets.recent import recent
from privrob.learn.federated import FederatedSettings, build_model, train

_DATA = ("num_records", "num_test", "allow_stand_in", "shape")


def _prepared(settings):
    """A data set and its tensors, pixels pooled."""
    change = _pooled, settings.get("pool", 1)
    return recent(settings["dataset"], _data_arguments(settings), change=change, normalise="unit")


def _pooled(tensors, size):
    return tensors._replace(
        train_images=pooled(tensors.train_images, size), test_images=pooled(tensors.test_images, size)
    )


def pooled(images, size):
    """Images averaged over squares of ``size`` × ``size`` pixels: each from its own record alone, so that it costs no
    privacy.
    """
    return functional.avg_pool2d(images, size) if size > 1 else images


def train_cell(settings, *, streams):
    """One federated training as a cell of a sweep.

    Args: settings — a dict: ``dataset`` (a name for :func:`privrob.learn.datasets.load`) and of its arguments
        ``num_records``, ``num_test``, ``allow_stand_in``, ``shape``;  ``pool`` — of :func:`pooled`;  ``features``,
        ``feature_options`` — of :mod:`privrob.learn.features`;  ``seed``, ``name`` — tell cells apart;  the rest as in
        :class:`.FederatedSettings`.
    Returns: the rows of :func:`~privrob.learn.federated.train` without ``seconds`` (a sweep keeps its own, and rows are
        compared), each with ``data``, ``dimension`` and ``records_per_user``.
    """
    own = _checked(settings)
    data, tensors = _prepared(settings)
    tensors = features.apply(
        settings.get("features", "none"), settings.get("feature_options"), tensors, streams=streams
    )
    ready = FederatedSettings(**own)
    rows = list(train(ready, *tensors, num_classes=data.num_classes, streams=streams))
    in_shape = tuple(tensors.train_images.shape[1:])
    model = build_model(ready, in_shape=in_shape, num_classes=data.num_classes, streams=streams)
    seen = {"data": data.provenance.label, "dimension": sum(p.numel() for p in model.parameters())}
    seen["records_per_user"] = len(tensors.train_labels) // (ready.num_users + ready.num_attackers)
    return [{name: value for name, value in row.items() if name != "seconds"} | seen for row in rows]


def _checked(settings):
    """The training's own settings; everything is checked before any data is loaded."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a dict of names and values, got {type(settings).__name__}")
    if "dataset" not in settings:
        raise ValueError(f"settings must name a dataset, got {sorted(settings)}")
    other = ("dataset", "pool", "features", "feature_options", "seed", "name", *_DATA)
    for name in settings:
        checks.choice("settings", name, [*other, *(f.name for f in fields(FederatedSettings))])
    checks.integer("pool", settings.get("pool", 1), low=1)
    features.make(settings.get("features", "none"), settings.get("feature_options"))
    own = {name: value for name, value in settings.items() if name not in other}
    FederatedSettings(**own)
    return own


def _data_arguments(settings):
    return {name: settings[name] for name in _DATA if settings.get(name) is not None}


def _fingerprint(settings):
    name = settings["dataset"]
    found = {name: datasets.fingerprint(name, **_data_arguments(settings))}
    recipe = features.make(settings.get("features", "none"), settings.get("feature_options"))
    return found | (recipe.fingerprint() if recipe else {})


train_cell.data = _fingerprint
