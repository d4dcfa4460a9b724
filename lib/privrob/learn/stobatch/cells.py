"""One StoBatch training as a cell of a sweep, read in many ways: clean, attacked, certified; and what it claims."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from privrob import checks
from privrob.learn import attacked
from privrob.learn.checkpoints import BadCheckpoint
from privrob.learn.stobatch import networks
from privrob.learn.stobatch import settings as choices
from privrob.learn.stobatch.training import Training
from privrob.robust import certify

_EVALUATION = {
    "certificates": (),
    "certificate_release": "2020-06",
    "surrogate_statistics": None,
}
_OWN = ("dataset", "crop", "seed", "name", "timed", "num_trainers", "num_workers", "save_every", *attacked.DATA)
_SAVED_EVERY = 50


def train_cell(settings, *, streams, scratch=None):
    """One training, and all that is read off it.

    Paper: stobatch, Algorithm 1, Algorithm 3, Algorithm 4, Section 4 (the accuracies).
    Args: settings — a dict: ``dataset`` and of :func:`privrob.learn.datasets.load`'s arguments ``num_records``,
        ``num_test``, ``num_classes``, ``allow_stand_in``, ``shape``;  ``crop`` — the middle so many pixels a side;
        ``seed``, ``name`` — tell cells apart;  ``num_trainers``, ``num_workers`` — of Algorithm 4;
        ``save_every`` — steps between checkpoints (50);  ``timed`` — training rows have ``seconds``;
        those of :func:`privrob.learn.attacked.checked`;  ``surrogate_statistics`` — ``initial``: of a surrogate whose
        batch norm was never trained, as released;  ``certificates`` — kinds of :mod:`privrob.robust.certify`;
        ``certificate_release`` — of kind ``as_released``: a release or a list of them;
        the rest as in :class:`privrob.learn.stobatch.settings.StoBatchSettings`.
        scratch — a folder of this cell alone, for the checkpoint.
    Returns: rows, with ``row`` one of ``training``, ``attack``, ``certificate``. Every row has the switches, the ε
        columns, and ``data``; ``accuracy`` is the share right of what is served, at the attacked images or at clean
        ones (``kind`` None).
    """
    own, evaluation, more = _checked(settings)
    about_data = attacked.data_arguments(settings)
    data, tensors = attacked.loaded(settings["dataset"], about_data, crop=settings.get("crop"))
    arguments = {"num_classes": data.num_classes, "streams": streams, **more}
    began, checkpoint = time.perf_counter(), scratch and Path(scratch) / "training.pt"
    try:
        training = Training(own, *tensors, **arguments, checkpoint=checkpoint)
    except BadCheckpoint:  # nobody else writes there: it is not worth a question
        checkpoint.unlink()
        training = Training(own, *tensors, **arguments, checkpoint=checkpoint)
    rows = []
    for row in training.rows():
        clock = {"seconds": time.perf_counter() - began} if settings.get("timed") else {}
        rows.append({"row": "training", **row, **clock})
    common = _common(rows[-1], own)
    rows += [{**common, **row} for row in evaluate(training, evaluation, streams=streams.child("evaluate"))]
    about = {"data": data.provenance.label, "num_records": training.num_records}
    return [{**row, **about} for row in rows]


def _common(last, own):
    """What the rows of an evaluation share with the last of the training."""
    names = ("step", "epoch", "num_trainers", "num_workers", "nominal_batch_size", "input_scale", "theta_norm")
    epsilons = ("claimed_epsilon", "claimed_epsilon_now", "honest_epsilon_inputs", "honest_epsilon")
    return {name: last[name] for name in (*names, *epsilons)} | own.switches()


# --------------------------------------------------------------------------------------------------------- evaluations


def evaluate(training, evaluation, *, streams):
    """Rows of attacks and certificates of what is served now.

    Paper: stobatch, Section 4 ("conventional accuracy", "certified accuracy").
    Args: evaluation — a dict of the names of :func:`privrob.learn.attacked.checked`, ``surrogate_statistics``,
        ``certificates``, ``certificate_release``;
        training — :class:`privrob.learn.stobatch.training.Training`.
    """
    evaluation = _checked_evaluation(evaluation)
    certified = evaluation["certificates"] and training.noise.kind != "none"
    return attacked.evaluate(
        partial(training.deployed, surrogate_statistics=evaluation["surrogate_statistics"]),
        training.test_images,
        training.test_labels,
        evaluation=evaluation,
        streams=streams,
        answers=partial(_answers, training) if certified else None,
        notes={"surrogate": ("surrogate_statistics",)},
    )


def layers(training, kind):
    """The noisy layers for certificates of a kind: :class:`privrob.robust.certify.Layers`.

    ``sound``: all weights of the trained first layer, and the scales that inference draws. ``as_printed``: β times the
    largest 1-norm. ``as_released``: β times the largest singular value of the kernels at the start of training.
    """
    network, noise = training.network, training.noise
    geometry, weight = network.geometry, network.first.weight.detach().cpu().double()
    if kind == "as_released":
        start = training.first_at_start.detach().cpu().double().flatten(1)
        sensitivity = geometry.map_neurons * torch.linalg.matrix_norm(start, 2).item()
    else:
        conv = weight.ndim == 4
        positions = geometry.map_neurons if conv else 1
        sensitivity = certify.hidden_sensitivity(weight.numpy(), positions=positions, form=kind)
    psi = training.settings.psi if noise.kind == "shared" else 1.0
    return certify.Layers.of(training.budget, hidden_sensitivity=sensitivity, psi=psi)


def _answers(training, images, labels, radii, *, evaluation, generator):
    """All that a certificate needs is in this one function."""
    settings = training.settings
    mixes = settings.batch_norm_evaluation == "batch"  # an answer that depends on the other images
    colours = settings.colour_noise == "same" and training.network.in_shape[0] > 1
    scores = training.deployed().draws(images, num_draws=evaluation["num_draws"], generator=generator)
    answers = []
    every = [(k, r) for k in evaluation["certificates"] for r in _releases(k, evaluation)]
    for kind, release in every:
        for bound in evaluation["certificate_bounds"]:
            found = certify.verify(
                scores,
                layers=layers(training, kind),
                attack_radii=radii,
                kind=kind,
                release=release,
                bound=bound,
                failure_prob=evaluation["failure_prob"],
                split="as_released" if kind == "as_released" else "joint",
            )
            about = {"certificate": kind, "certificate_release": release, "bound": bound}
            about["guaranteed"] = kind == "sound" and not mixes and not colours
            medians = {"epsilon_robust": found.epsilon_robust}
            answers.append(attacked.Answer(about, found.correct(labels), found.is_robust, found.size, medians))
    return answers


def _releases(kind, evaluation):
    found = evaluation["certificate_release"]
    return (None,) if kind != "as_released" else (found,) if isinstance(found, str) else found


# -------------------------------------------------------------------------------------------------------------- checks


def _checked(settings):
    """The training's own settings, the evaluations, and the arguments of Algorithm 4; all checked before any data."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a dict of names and values, got {type(settings).__name__}")
    if "dataset" not in settings:
        raise ValueError(f"settings must name a dataset, got {sorted(settings)}")
    for name in settings:
        checks.choice("settings", name, [*_OWN, *attacked.DEFAULTS, *_EVALUATION, *choices.NAMES])
    evaluation = {name: settings[name] for name in (*attacked.DEFAULTS, *_EVALUATION) if name in settings}
    evaluation = _checked_evaluation(evaluation)
    own = choices.StoBatchSettings(**{name: settings[name] for name in choices.NAMES if name in settings})
    more = {name: settings[name] for name in ("num_trainers", "num_workers") if name in settings}
    more["save_every"] = settings.get("save_every", _SAVED_EVERY)
    return own, evaluation, more


def _checked_evaluation(evaluation):
    evaluation = attacked.checked(evaluation, choices={"certificates": certify.KINDS}, defaults=_EVALUATION)
    if evaluation["surrogate_statistics"] is not None:
        checks.choice("surrogate_statistics", evaluation["surrogate_statistics"], networks.STATISTICS)
    for release in _releases("as_released", evaluation):
        checks.choice("certificate_release", release, certify.RELEASES)
    at_clean = evaluation["certificates"] and "clean" in evaluation["certificate_inputs"]
    if at_clean and not evaluation["certificate_radii"]:
        raise ValueError("certificate_radii must hold at least one radius with certificates at clean images, got none")
    return evaluation


train_cell.data = attacked.fingerprint
train_cell.resumes = True
