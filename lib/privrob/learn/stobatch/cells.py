"""One StoBatch training as a cell of a sweep, read in many ways: clean, attacked, certified; and what it claims."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from privrob import checks
from privrob.learn import datasets
from privrob.learn.checkpoints import BadCheckpoint
from privrob.learn.stobatch import networks
from privrob.learn.stobatch import settings as choices
from privrob.learn.stobatch.training import Training
from privrob.robust import adversarial, certify

_DATA = ("num_records", "num_test", "allow_stand_in", "shape", "num_classes")
_EVALUATION = {
    "attack_kinds": (),
    "attack_radii": (),
    "attack_models": ("surrogate",),
    "attack_test_steps": (10,),
    "eot_draws": 10,
    "surrogate_statistics": None,
    "num_attacked": None,
    "certificates": (),
    "certificate_bounds": ("clopper_pearson",),
    "certificate_radii": (),
    "certificate_inputs": ("clean",),
    "certificate_release": "2020-06",
    "num_draws": 200,
    "num_certified": 200,
    "failure_prob": 0.05,
}
_OWN = ("dataset", "crop", "seed", "name", "timed", "num_trainers", "num_workers", "save_every", *_DATA, *_EVALUATION)
_CERTIFIED_AT_ONCE, _SAVED_EVERY = 500, 50
_AT_ONCE = 250  # attacked images; with batch statistics these are what a batch is
_last = {}  # cells of a sweep share their data: the last set is kept


def loaded(name, arguments, *, crop=None, double=False):
    """A data set, and its tensors with pixels in [−1, 1], the middle ``crop`` × ``crop`` of each image."""
    key = repr((name, sorted(arguments.items()), crop, double))
    if key not in _last:
        _last.clear()
        data = datasets.load(name, **arguments)
        tensors = data.tensors(normalise="unit", dtype=torch.float64 if double else None)
        images = [_middle(getattr(tensors, part).mul(2).sub(1), crop) for part in ("train_images", "test_images")]
        _last[key] = data, tensors._replace(train_images=images[0], test_images=images[1])
    return _last[key]


def _middle(images, size):
    if size is None:
        return images
    height, width = images.shape[2:]
    checks.integer("crop", size, low=1, high=min(height, width))
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, :, top : top + size, left : left + size]


def train_cell(settings, *, streams, scratch=None):
    """One training, and all that is read off it.

    Paper: stobatch, Algorithm 1, Algorithm 3, Algorithm 4, Section 4 (the accuracies).
    Args: settings — a dict: ``dataset`` and of :func:`privrob.learn.datasets.load`'s arguments ``num_records``,
        ``num_test``, ``num_classes``, ``allow_stand_in``, ``shape``;  ``crop`` — of :func:`loaded`;  ``seed``, ``name``
        — tell cells apart;  ``num_trainers``, ``num_workers`` — of Algorithm 4;  ``save_every`` — steps between
        checkpoints (50);  ``timed`` — training rows have ``seconds``;
        ``attack_kinds``, ``attack_radii``, ``attack_models``, ``attack_test_steps`` — a row for each combination, over
        the first ``num_attacked`` test images (None: all);  ``eot_draws`` — calls whose mean gradient ``eot`` takes;
        ``surrogate_statistics`` — ``initial``: of a surrogate whose batch norm was never trained, as released;
        ``certificates`` (kinds), ``certificate_bounds``, ``certificate_radii``, ``num_draws``, ``failure_prob`` — of
        :mod:`privrob.robust.certify`, over the first ``num_certified`` test images;  ``certificate_release`` — of kind
        ``as_released``;  ``certificate_inputs`` — ``clean``, ``attacked`` (the document's: at each attacked image, for
        the radius of its own attack) or both;
        the rest as in :class:`privrob.learn.stobatch.settings.StoBatchSettings`.
        scratch — a folder of this cell alone, for the checkpoint.
    Returns: rows, with ``row`` one of ``training``, ``attack``, ``certificate``. Every row has the switches, the ε
        columns, and ``data``; ``accuracy`` is the share right of what is served, at the attacked images or at clean
        ones (``kind`` None).
    """
    own, evaluation, more = _checked(settings)
    data, tensors = loaded(settings["dataset"], _data_arguments(settings), crop=settings.get("crop"))
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

    Args: evaluation — a dict of the names that :func:`train_cell` lists, ``attack_kinds`` to ``failure_prob``.
    """
    evaluation = {**_EVALUATION, **evaluation}
    rows = attack_rows(training, evaluation, streams=streams)
    return rows + certificate_rows(training, evaluation, streams=streams)


def _attacks(evaluation):
    """The combinations, each once: ``fgsm`` has one step whatever is asked."""
    found = {}
    for model in evaluation["attack_models"]:
        for kind in evaluation["attack_kinds"]:
            for num_steps in evaluation["attack_test_steps"]:
                for radius in evaluation["attack_radii"]:
                    steps = 1 if kind == "fgsm" else num_steps
                    found[model, kind, steps, radius] = None
    return list(found)


def _attacked(training, images, labels, attack, evaluation, streams):
    """Attacked images, pushed away from their true labels."""
    model, kind, num_steps, radius = attack
    deployed = training.deployed(surrogate_statistics=evaluation["surrogate_statistics"])
    generator = streams.child("attack", *attack).torch("noise", training.device)
    target = adversarial.target(deployed, attack_model=model, generator=generator)
    draws = evaluation["eot_draws"] if model == "eot" else 1
    how = {"kind": kind, "radius": radius, "num_steps": num_steps, "num_draws": draws}
    parts = [
        adversarial.attack(target, part, truth, **how, generator=generator)
        for part, truth in zip(images.split(_AT_ONCE), labels.split(_AT_ONCE))
    ]
    return torch.cat(parts) if parts else images


def attack_rows(training, evaluation, *, streams):
    """Accuracy of what is served: at clean images, then under each attack.

    Attacks know the true label here (in training they use the prediction): one on a wrong prediction would often
    repair it.

    Paper: stobatch, Section 4 ("conventional accuracy").
    """
    images, labels = (t[: evaluation["num_attacked"]] for t in (training.test_images, training.test_labels))
    shared = {"row": "attack", "num_images": len(labels)}
    plain = training.deployed(at_once=_AT_ONCE).accuracy(images, labels)
    rows = [{**shared, "kind": None, "radius": 0.0, "attack_model": None, "attack_test_steps": 0, "accuracy": plain}]
    for attack in _attacks(evaluation):
        found = _attacked(training, images, labels, attack, evaluation, streams)
        accuracy = training.deployed(at_once=_AT_ONCE).accuracy(found, labels)
        model, kind, num_steps, radius = attack
        about = {"kind": kind, "radius": radius, "attack_model": model, "attack_test_steps": num_steps}
        more = {"eot": ("eot_draws",), "surrogate": ("surrogate_statistics",)}.get(model, ())
        draws = {name: evaluation[name] for name in more}
        rows.append({**shared, **about, **draws, "accuracy": accuracy})
    return rows


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


def certificate_rows(training, evaluation, *, streams):
    """Certified accuracy at each radius, by kind and bound; at clean images, and at attacked ones."""
    if not evaluation["certificates"] or training.noise.kind == "none":
        return []
    count = evaluation["num_certified"]
    images, labels = training.test_images[:count], training.test_labels[:count]
    rows = []
    if "clean" in evaluation["certificate_inputs"]:
        about = {"kind": None, "attack_model": None, "attack_test_steps": 0}
        for row in _certified(training, images, labels, evaluation["certificate_radii"], evaluation, streams):
            rows.append({**row, **about})
    if "attacked" in evaluation["certificate_inputs"]:
        for attack in _attacks(evaluation):
            found = _attacked(training, images, labels, attack, evaluation, streams.child("certified"))
            own = streams.child("certified", *attack)
            about = {"kind": attack[1], "attack_model": attack[0], "attack_test_steps": attack[2]}
            for row in _certified(training, found, labels, [attack[3]], evaluation, own):
                rows.append({**row, **about})
    return rows


def _certified(training, images, labels, radii, evaluation, streams):
    """Rows of one set of images: all that a certificate needs is in this one function."""
    generator, deployed, settings = streams.torch("draws", training.device), training.deployed(), training.settings
    mixes = settings.batch_norm_evaluation == "batch"  # an answer that depends on the other images
    colours = settings.colour_noise == "same" and training.network.in_shape[0] > 1
    asked = [(kind, bound) for kind in evaluation["certificates"] for bound in evaluation["certificate_bounds"]]
    ready = {kind: layers(training, kind) for kind in evaluation["certificates"]}
    answers = {one: [] for one in asked}
    for part, truth in zip(images.split(_CERTIFIED_AT_ONCE), labels.cpu().split(_CERTIFIED_AT_ONCE)):
        scores = deployed.draws(part, num_draws=evaluation["num_draws"], generator=generator)
        for kind, bound in asked:
            found = certify.verify(
                scores,
                layers=ready[kind],
                attack_radii=radii,
                kind=kind,
                release=_release(kind, evaluation),
                bound=bound,
                failure_prob=evaluation["failure_prob"],
                split="as_released" if kind == "as_released" else "joint",
            )
            answers[kind, bound].append((found.correct(truth), found.is_robust, found.epsilon_robust, found.size))
    rows = []
    for (kind, bound), parts in answers.items():
        correct, robust, epsilon, size = (np.concatenate(values) for values in zip(*parts))
        about = {
            "row": "certificate",
            "certificate": kind,
            "certificate_release": _release(kind, evaluation),
            "bound": bound,
            "accuracy": float(correct.mean()),
            "median_epsilon_robust": float(np.median(epsilon)),
            "guaranteed": kind == "sound" and not mixes and not colours,
            "num_draws": evaluation["num_draws"],
            "num_images": len(correct),
        }
        for i, radius in enumerate(radii):
            certified = float((correct & robust[:, i]).mean())
            sizes = {"median_size": float(np.median(size[:, i])), "largest_size": float(size[:, i].max())}
            rows.append({**about, "radius": float(radius), "certified_accuracy": certified, **sizes})
    return rows


def _release(kind, evaluation):
    return evaluation["certificate_release"] if kind == "as_released" else None


# -------------------------------------------------------------------------------------------------------------- checks


def _checked(settings):
    """The training's own settings, the evaluations, and the arguments of Algorithm 4; all checked before any data."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a dict of names and values, got {type(settings).__name__}")
    if "dataset" not in settings:
        raise ValueError(f"settings must name a dataset, got {sorted(settings)}")
    for name in settings:
        checks.choice("settings", name, [*_OWN, *choices.NAMES])
    evaluation = {name: settings.get(name, default) for name, default in _EVALUATION.items()}
    _lists = {
        "attack_kinds": adversarial.KINDS,
        "attack_models": adversarial.ATTACK_MODELS,
        "certificates": certify.KINDS,
        "certificate_bounds": certify.BOUNDS,
        "certificate_inputs": ("clean", "attacked"),
    }
    for name, allowed in _lists.items():
        for value in _listed(name, evaluation[name]):
            checks.choice(name, value, allowed)
    for name in ("attack_radii", "certificate_radii"):
        for value in _listed(name, evaluation[name]):
            checks.nonnegative(name, value, finite=True)
    for value in _listed("attack_test_steps", evaluation["attack_test_steps"]):
        checks.integer("attack_test_steps", value, low=1)
    for name in ("eot_draws", "num_draws", "num_certified"):
        checks.integer(name, evaluation[name], low=1)
    if evaluation["num_attacked"] is not None:
        checks.integer("num_attacked", evaluation["num_attacked"], low=1)
    checks.probability("failure_prob", evaluation["failure_prob"], allow_zero=False, allow_one=False)
    if evaluation["surrogate_statistics"] is not None:
        checks.choice("surrogate_statistics", evaluation["surrogate_statistics"], networks.STATISTICS)
    checks.choice("certificate_release", evaluation["certificate_release"], certify.RELEASES)
    if (
        evaluation["certificates"]
        and "clean" in evaluation["certificate_inputs"]
        and not evaluation["certificate_radii"]
    ):
        raise ValueError("certificate_radii must hold at least one radius with certificates at clean images, got none")
    own = choices.StoBatchSettings(**{name: settings[name] for name in choices.NAMES if name in settings})
    more = {name: settings[name] for name in ("num_trainers", "num_workers") if name in settings}
    more["save_every"] = settings.get("save_every", _SAVED_EVERY)
    return own, evaluation, more


def _listed(name, value):
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{name} must be a list, got {name}={value!r}")
    return value


def _data_arguments(settings):
    return {name: settings[name] for name in _DATA if settings.get(name) is not None}


def _fingerprint(settings):
    name = settings["dataset"]
    return {name: datasets.fingerprint(name, **_data_arguments(settings))}


train_cell.data = _fingerprint
train_cell.resumes = True
