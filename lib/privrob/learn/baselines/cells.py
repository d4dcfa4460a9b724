"""One baseline, trained and evaluated, as a cell of a sweep."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from privrob import checks
from privrob.accounting import calibrate
from privrob.learn import datasets
from privrob.learn.baselines import adlm, dpsgd, kurakin, pixeldp, securesgd
from privrob.learn.baselines.evaluation import evaluate
from privrob.learn.baselines.training import BadCheckpoint

METHODS = {
    "kurakin": (kurakin.Kurakin, kurakin.KurakinSettings),
    "dpsgd": (dpsgd.DPSGD, dpsgd.PrivateSettings),
    "adlm": (adlm.AdLM, adlm.AdLMSettings),
    "pixeldp": (pixeldp.PixelDP, pixeldp.PixelDPSettings),
    "securesgd": (securesgd.SecureSGD, securesgd.SecureSettings),
    "securesgd_agm": (securesgd.SecureSGD, securesgd.SecureSettings),
}
_DATA = ("num_records", "num_test", "allow_stand_in", "shape")
_EVALUATION = tuple(
    name
    for name, argument in inspect.signature(evaluate).parameters.items()
    if argument.kind is inspect.Parameter.KEYWORD_ONLY and name not in ("streams", "low", "high")
)
_OWN = ("method", "dataset", "seed", "name", "delta", "num_attacked")


def train_cell(settings, *, streams, scratch=None):
    """One baseline, trained, attacked and certified.

    Args: settings — a dict: ``method``, one of ``METHODS``;  ``dataset`` and of its arguments ``num_records``,
        ``num_test``, ``allow_stand_in``, ``shape``;  ``seed`` (tells repetitions apart), ``name``;
        ``delta`` — of the privacy columns (1e-5);  ``num_attacked`` — the first so many test images are attacked
        (None: all);  those of :func:`privrob.learn.baselines.evaluation.evaluate`;
        ``epsilon`` — of the private methods: claimed total for ``adlm``; for ``dpsgd`` and ``securesgd`` it takes the
        place of ``noise_multiplier``: the least one that claims so much (``add_remove``, ``poisson``);
        the rest as in the method's settings;
        scratch — a folder of this cell alone, for the checkpoint.
    Returns: the rows of ``evaluate``, each with ``method``, ``variant``, ``data``, ``num_records``, ``clean_accuracy``,
        ``train_loss``, ``weights_sha256``, the columns of the method's ``privacy`` and, where there is noise behind the
        first layer, ``stretch`` and ``robustness_noise`` (its smallest scale).
    """
    kind, ready, about = _prepared(settings)
    data = datasets.load(settings["dataset"], **_data_arguments(settings))
    tensors = data.tensors(normalise="unit", device=ready.device)
    images, test_images = (2 * part - 1 for part in (tensors.train_images, tensors.test_images))
    ready = _calibrated(ready, settings, len(images))
    file = scratch and Path(scratch) / "training.pt"
    arguments = {"num_classes": data.num_classes, "streams": streams, "checkpoint": file}
    try:
        training = kind(ready, images, tensors.train_labels, **arguments)
    except BadCheckpoint:  # nobody else writes there: it is not worth a question
        file.unlink()
        training = kind(ready, images, tensors.train_labels, **arguments)
    deployed = training.run().deployed()
    count = settings.get("num_attacked") or len(test_images)
    rows = evaluate(
        deployed, test_images[:count], tensors.test_labels[:count], streams=streams.child("evaluation"), **about
    )
    seen = {
        "method": settings["method"],
        "variant": ready.variant,
        "data": data.provenance.label,
        "num_records": len(images),
        "clean_accuracy": rows[0]["conventional_accuracy"],
        "train_loss": training.train_loss,
        "weights_sha256": training.weights_sha256(),
        "noise_multiplier": getattr(ready, "noise_multiplier", None),
        "stretch": getattr(deployed, "sensitivity", None),
        "robustness_noise": deployed.noise.smallest if hasattr(deployed, "noise") else None,
        **training.privacy(delta=settings.get("delta", 1e-5)),
    }
    return [{**row, **seen} for row in rows]


def _prepared(settings):
    """The training's class, its settings, and the evaluation's; all checked before any data is loaded."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a dict of names and values, got {type(settings).__name__}")
    for name in ("method", "dataset"):
        if name not in settings:
            raise ValueError(f"settings must name a {name}, got {sorted(settings)}")
    kind, of = METHODS[checks.choice("method", settings["method"], METHODS)]
    own = [f.name for f in fields(of)]
    epsilon = ["epsilon"] if issubclass(kind, dpsgd.DPSGD) else []
    for name in settings:
        checks.choice("settings", name, [*_OWN, *_DATA, *_EVALUATION, *own, *epsilon])
    if "attack_radii" not in settings:
        raise ValueError("settings must have attack_radii, got none; pass [0.1, 0.3]")
    if epsilon and ("epsilon" in settings) == ("noise_multiplier" in settings):
        raise ValueError("settings must have either epsilon or noise_multiplier, got both or none")
    chosen = {name: value for name, value in settings.items() if name in own and name not in _EVALUATION}
    if settings["method"].startswith("securesgd"):
        mechanism = "agm" if settings["method"] == "securesgd_agm" else "hgm"
        if chosen.setdefault("mechanism", mechanism) != mechanism:
            raise ValueError(f"mechanism must be {mechanism!r} for method {settings['method']!r}; leave it out")
    if settings["method"] == "kurakin":  # one number of steps for the attacks of training and of evaluation
        chosen |= {name: settings[name] for name in ("attack_steps",) if name in settings}
    if epsilon and "epsilon" in settings:
        checks.positive("epsilon", settings["epsilon"], finite=True)
    checks.probability("delta", settings.get("delta", 1e-5), allow_zero=False, allow_one=False)
    if settings.get("num_attacked") is not None:
        checks.integer("num_attacked", settings["num_attacked"], low=1)
    about = {name: settings[name] for name in _EVALUATION if name in settings}
    return kind, of(**chosen), about


def _calibrated(ready, settings, num_records):
    if not isinstance(ready, dpsgd.PrivateSettings) or "epsilon" not in settings:
        return ready
    found = calibrate.noise_multiplier_for(
        settings["epsilon"],
        delta=settings.get("delta", 1e-5),
        sample_rate=min(1.0, ready.batch_size / num_records),
        num_steps=ready.num_steps,
        neighbouring="add_remove",
    )
    return type(ready)(
        **{f.name: getattr(ready, f.name) for f in fields(ready)} | {"noise_multiplier": found.noise_multiplier}
    )


def _data_arguments(settings):
    return {name: settings[name] for name in _DATA if settings.get(name) is not None}


def _fingerprint(settings):
    name = settings["dataset"]
    return {name: datasets.fingerprint(name, **_data_arguments(settings))}


train_cell.data = _fingerprint
train_cell.resumes = True
