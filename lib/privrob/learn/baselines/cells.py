"""One baseline, trained and evaluated, as a cell of a sweep.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np

from privrob import checks
from privrob.accounting import calibrate
from privrob.learn import attacked
from privrob.learn.baselines import adlm, dpsgd, kurakin, pixeldp, securesgd
from privrob.learn.baselines.training import BadCheckpoint

METHODS = {
    "kurakin": (kurakin.Kurakin, kurakin.KurakinSettings),
    "dpsgd": (dpsgd.DPSGD, dpsgd.PrivateSettings),
    "adlm": (adlm.AdLM, adlm.AdLMSettings),
    "pixeldp": (pixeldp.PixelDP, pixeldp.PixelDPSettings),
    "securesgd": (securesgd.SecureSGD, securesgd.SecureSettings),
    "securesgd_agm": (securesgd.SecureSGD, securesgd.SecureSettings),
}
_OWN = ("method", "dataset", "crop", "seed", "name", "delta")


def train_cell(settings, *, streams, scratch=None):
    """One baseline, trained, attacked and certified.

    Args: settings — a dict: ``method``, one of ``METHODS``;  ``dataset`` and of its arguments ``num_records``,
        ``num_test``, ``num_classes``, ``allow_stand_in``, ``shape``;  ``crop`` — the middle so many pixels a side;
        ``seed`` (tells repetitions apart), ``name``;  ``delta`` — of the privacy columns (1e-5);
        those of :func:`privrob.learn.attacked.checked`;
        ``epsilon`` — of the private methods: claimed total for ``adlm``; for ``dpsgd`` and ``securesgd`` it takes the
        place of ``noise_multiplier``: the least one that claims so much (``add_remove``, ``poisson``);
        the rest as in the method's settings;
        scratch — a folder of this cell alone, for the checkpoint.
    Returns: rows, with ``row`` one of ``training``, ``attack``, ``certificate`` (see
        :func:`privrob.learn.attacked.evaluate`); each has ``method``, ``variant``, ``network``,
        ``batch_size``, ``num_steps``, ``noise_multiplier``, ``data``, ``num_records``, and the columns of the method's
        ``privacy``. The training's row also has ``test_accuracy``, ``train_loss``, ``weights_sha256`` and,
        where there is noise behind the first layer, ``stretch`` and ``robustness_noise`` (its smallest scale).
    """
    kind, ready, evaluation = _prepared(settings)
    where = {"crop": settings.get("crop"), "device": ready.device}
    data, tensors = attacked.loaded(settings["dataset"], attacked.data_arguments(settings), **where)
    ready = _calibrated(ready, settings, len(tensors.train_labels))
    file = scratch and Path(scratch) / "training.pt"
    arguments = {"num_classes": data.num_classes, "streams": streams, "checkpoint": file}
    try:
        training = kind(ready, tensors.train_images, tensors.train_labels, **arguments)
    except BadCheckpoint:  # nobody else writes there: it is not worth a question
        file.unlink()
        training = kind(ready, tensors.train_images, tensors.train_labels, **arguments)
    deployed = training.run().deployed()
    test = tensors.test_images, tensors.test_labels
    trained = {
        "row": "training",
        "step": training.step,
        "test_accuracy": attacked.accuracy_of(deployed, *test),
        "num_images": len(test[1]),
        "train_loss": training.train_loss,
        "weights_sha256": training.weights_sha256(),
        "stretch": getattr(deployed, "sensitivity", None),
        "robustness_noise": deployed.noise.smallest if hasattr(deployed, "noise") else None,
    }
    rows = [trained, *evaluate(deployed, *test, evaluation=evaluation, streams=streams.child("evaluate"))]
    names = ("variant", "network", "batch_size", "num_steps", "learning_rate")
    shared = {"method": settings["method"], **{name: getattr(ready, name) for name in names}}
    shared |= {"noise_multiplier": getattr(ready, "noise_multiplier", None)}
    shared |= training.privacy(delta=settings.get("delta", 1e-5))
    shared |= {"data": data.provenance.label, "num_records": len(tensors.train_labels)}
    return [{**row, **shared} for row in rows]


def evaluate(deployed, images, labels, *, evaluation, streams):
    """Rows of a trained baseline, see :func:`privrob.learn.attacked.evaluate`; ``evaluation`` may leave names out.

    Args: deployed — what is served, see :mod:`privrob.learn.baselines.deployed`.
    """
    answers = partial(_answers, deployed) if deployed.certificates else None
    how = {"evaluation": attacked.checked(evaluation), "streams": streams, "answers": answers}
    return attacked.evaluate(lambda: deployed, images, labels, **how)


def _answers(deployed, images, labels, radii, *, evaluation, generator):
    scores = deployed.draws(images, num_draws=evaluation["num_draws"], generator=generator)
    answers = []
    for bound in evaluation["certificate_bounds"]:
        found, every = deployed.certify(scores, bound=bound, failure_prob=evaluation["failure_prob"])
        right = (found.label == labels) & (found.lower > found.upper)
        for name, size in every.items():
            about = {"certificate": name, "bound": bound, "guaranteed": found.guaranteed and name != "as_printed"}
            answers.append(attacked.Answer(about, right, size[:, None] > np.asarray(radii), size, {}))
    return answers


def _prepared(settings):
    """The training's class, its settings, and the evaluation; all checked before any data is loaded."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a dict of names and values, got {type(settings).__name__}")
    for name in ("method", "dataset"):
        if name not in settings:
            raise ValueError(f"settings must name a {name}, got {sorted(settings)}")
    kind, of = METHODS[checks.choice("method", settings["method"], METHODS)]
    own, by_epsilon = [f.name for f in fields(of)], issubclass(kind, dpsgd.DPSGD)
    for name in settings:
        checks.choice("settings", name, [*_OWN, *attacked.DATA, *attacked.DEFAULTS, *own, *["epsilon"] * by_epsilon])
    if by_epsilon:
        if ("epsilon" in settings) == ("noise_multiplier" in settings):
            raise ValueError("settings must have either epsilon or noise_multiplier, got both or none")
        checks.positive("epsilon", settings.get("epsilon", 1.0), finite=True)
    chosen = {name: value for name, value in settings.items() if name in own}
    if settings["method"].startswith("securesgd"):
        mechanism = "agm" if settings["method"] == "securesgd_agm" else "hgm"
        if chosen.setdefault("mechanism", mechanism) != mechanism:
            raise ValueError(f"mechanism must be {mechanism!r} for method {settings['method']!r}; leave it out")
    checks.probability("delta", settings.get("delta", 1e-5), allow_zero=False, allow_one=False)
    asked = {name: settings[name] for name in attacked.DEFAULTS if name in settings}
    return kind, of(**chosen), attacked.checked(asked)


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


train_cell.data = attacked.fingerprint
train_cell.resumes = True
