"""Attacks and certificates of what is served, in rows of the same columns for StoBatch and its baselines.

Conventional accuracy is of what is served; attacks know the true label (in training they use the prediction: one on a
wrong prediction would often repair it). A certificate at a clean image is the usual certified accuracy; the document's
is at attacked images, for the radius of each one's own attack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from privrob import checks
from privrob.learn import datasets
from privrob.learn.datasets.recent import recent
from privrob.robust import adversarial, certify

DATA = ("num_records", "num_test", "allow_stand_in", "shape", "num_classes")  # of a data set, by name in settings
DEFAULTS = {
    "attack_kinds": (),
    "attack_radii": (),
    "attack_models": ("surrogate",),
    "attack_test_steps": (10,),
    "eot_draws": 10,
    "num_attacked": None,
    "certificate_bounds": ("clopper_pearson",),
    "certificate_radii": (),
    "certificate_inputs": ("clean",),
    "certificate_attack_models": None,
    "num_draws": 200,
    "num_certified": 200,
    "failure_prob": 0.05,
}
_CHOICES = {
    "attack_kinds": adversarial.KINDS,
    "attack_models": adversarial.ATTACK_MODELS,
    "certificate_attack_models": adversarial.ATTACK_MODELS,
    "certificate_bounds": certify.BOUNDS,
    "certificate_inputs": ("clean", "attacked"),
}
_CLEAN = {"kind": None, "attack_model": None, "attack_test_steps": 0}
_AT_ONCE = 250  # attacked images; with batch statistics these are what a batch is
_CERTIFIED_AT_ONCE = 500


# ---------------------------------------------------------------------------------------------------------------- data


def loaded(name, arguments, *, crop=None, device=None, double=False):
    """The data set of that ``name``, and its tensors with pixels in [−1, 1], the middle ``crop`` × ``crop`` of each
    image.

    Args: arguments — of :func:`privrob.learn.datasets.load`;  double — float64.
    """
    how = {"normalise": "unit", "dtype": torch.float64 if double else None, "device": device}
    return recent(name, arguments, change=(_centred, crop), **how)


def _centred(tensors, crop):
    images = {part: _middle(2 * getattr(tensors, part) - 1, crop) for part in ("train_images", "test_images")}
    return tensors._replace(**images)


def _middle(images, size):
    if size is None:
        return images
    height, width = images.shape[2:]
    checks.integer("crop", size, low=1, high=min(height, width))
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, :, top : top + size, left : left + size]


def data_arguments(settings):
    """A cell's arguments of :func:`privrob.learn.datasets.load`."""
    return {name: settings[name] for name in DATA if settings.get(name) is not None}


def fingerprint(settings):
    """What a cell reads, for its key."""
    name = settings["dataset"]
    return {name: datasets.fingerprint(name, **data_arguments(settings))}


# ------------------------------------------------------------------------------------------------------------ settings


def checked(evaluation, *, choices=None, defaults=None):
    """All names of ``DEFAULTS`` (and of ``defaults``), those given checked.

    Args: evaluation — a dict: ``attack_kinds``, ``attack_radii`` (l∞), ``attack_models`` (``surrogate``, ``fixed``,
        ``eot``), ``attack_test_steps`` — one row for each combination, over the first ``num_attacked`` images (None:
        all);  ``eot_draws`` — calls whose mean gradient ``eot`` takes;  ``certificate_radii``, ``certificate_bounds``,
        ``certificate_inputs`` (``clean``, ``attacked``), ``num_draws``, ``failure_prob`` — over the first
        ``num_certified`` images, of every certificate that the model has;  ``certificate_attack_models`` — of the
        attacks at whose images (None: as ``attack_models``);
        choices, defaults — of a model's own: names of lists with what they may hold, names with their defaults.
    """
    choices, every = {**_CHOICES, **(choices or {})}, {**DEFAULTS, **(defaults or {})}
    evaluation = {**every, **checks.options("evaluation", evaluation, every)}
    if evaluation["certificate_attack_models"] is None:
        evaluation["certificate_attack_models"] = evaluation["attack_models"]
    for name in (*choices, "attack_radii", "attack_test_steps", "certificate_radii"):
        if not isinstance(evaluation[name], (tuple, list)):
            raise TypeError(f"{name} must be a list, got {name}={evaluation[name]!r}")
        for value in evaluation[name]:
            if name in choices:
                checks.choice(name, value, choices[name])
            elif name == "attack_test_steps":
                checks.integer(name, value, low=1)
            else:
                checks.nonnegative(name, value, finite=True)
    for name in ("eot_draws", "num_draws", "num_certified", "num_attacked"):
        if evaluation[name] is not None or name != "num_attacked":
            checks.integer(name, evaluation[name], low=1)
    checks.probability("failure_prob", evaluation["failure_prob"], allow_zero=False, allow_one=False)
    return evaluation


# ---------------------------------------------------------------------------------------------------------------- rows


class Answer(NamedTuple):
    """One certificate's word on some images. ``about`` — columns that tell it from others, ``certificate``, ``bound``
    and ``guaranteed`` among them;  right (n,), robust (n, radii), size (n,) or (n, radii);  ``medians`` — {column:
    values (n,)} of which rows hold ``median_`` column."""

    about: dict
    right: np.ndarray
    robust: np.ndarray
    size: np.ndarray
    medians: dict


def evaluate(serve, images, labels, *, evaluation, streams, answers=None, notes=None):
    """Rows of attacks, then of certificates.

    Paper: stobatch, Section 4 (conventional and certified accuracy).
    Args: serve — gives what is served (:class:`privrob.learn.stobatch.deployed.Deployed`), its noise at its beginning,
        at each call: no row depends on which others there are;  images, labels — test records;
        evaluation — of :func:`checked`;  streams — each row draws from its own;
        answers — ``f(images, labels, radii, *, evaluation, generator)``, a list of :class:`Answer` in the same order
        for every portion of the images; None: no certificate;
        notes — {attacked model: names of ``evaluation``} that its rows repeat.
    Returns: dicts. ``row`` ("attack" or "certificate"), ``kind`` (of attack; None: clean images), ``attack_model``,
        ``attack_test_steps``, ``radius``, ``accuracy``, ``num_images``; of certificates also ``certificate``,
        ``bound``, ``certified_accuracy``, ``median_size``, ``largest_size`` (radii), ``guaranteed``, ``num_draws``.
    """
    rows = attack_rows(serve, images, labels, evaluation, streams, notes=notes)
    return rows + certificate_rows(serve, images, labels, evaluation, streams, answers=answers)


def attack_rows(serve, images, labels, evaluation, streams, *, notes=None):
    """Accuracy of what is served: at clean images, then under each attack.

    Args: serve, evaluation, notes — as of :func:`evaluate`.
    """
    images, labels = (part[: evaluation["num_attacked"]] for part in (images, labels))
    shared = {"row": "attack", "num_images": len(labels)}
    rows = [{**shared, **_CLEAN, "radius": 0.0, "accuracy": accuracy_of(serve(), images, labels)}]
    notes = {"eot": ("eot_draws",)} | (notes or {})
    for attack in _attacks(evaluation):
        found = _attacked(serve, images, labels, attack, evaluation, streams)
        about = _about(attack) | {name: evaluation[name] for name in notes.get(attack[0], ())}
        rows.append({**shared, **about, "radius": float(attack[3]), "accuracy": accuracy_of(serve(), found, labels)})
    return rows


def certificate_rows(serve, images, labels, evaluation, streams, *, answers):
    """Certified accuracy at each radius, by certificate and bound; at clean images, and at attacked ones.

    Args: serve, evaluation, answers — as of :func:`evaluate`.
    """
    if answers is None or not len(labels):
        return []
    images, labels = (part[: evaluation["num_certified"]] for part in (images, labels))
    streams, rows = streams.child("certified"), []
    if "clean" in evaluation["certificate_inputs"] and evaluation["certificate_radii"]:
        found = _certified(answers, images, labels, evaluation["certificate_radii"], evaluation, streams)
        rows += [{**row, **_CLEAN} for row in found]
    if "attacked" in evaluation["certificate_inputs"]:
        for attack in _attacks(evaluation | {"attack_models": evaluation["certificate_attack_models"]}):
            inputs = _attacked(serve, images, labels, attack, evaluation, streams)
            found = _certified(answers, inputs, labels, [attack[3]], evaluation, streams.child(*attack))
            rows += [{**row, **_about(attack)} for row in found]
    return rows


@torch.no_grad()
def accuracy_of(deployed, images, labels):
    """Share of images whose label is served; None without images.

    Args: deployed — with ``predict_logits``.
    """
    right = 0
    for part, targets in zip(images.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        right += int((deployed.predict_logits(part).argmax(1) == targets).sum())
    return right / len(labels) if len(labels) else None


def _about(attack):
    model, kind, num_steps, _ = attack
    return {"kind": kind, "attack_model": model, "attack_test_steps": num_steps}


def _attacks(evaluation):
    """(attacked model, kind, steps, radius), each combination once: ``fgsm`` has one step whatever is asked."""
    found = {}
    for model in evaluation["attack_models"]:
        for kind in evaluation["attack_kinds"]:
            for num_steps in evaluation["attack_test_steps"]:
                for radius in evaluation["attack_radii"]:
                    found[model, kind, 1 if kind == "fgsm" else num_steps, radius] = None
    return list(found)


def _attacked(serve, images, labels, attack, evaluation, streams):
    """Images pushed away from their true labels."""
    model, kind, num_steps, radius = attack
    generator = streams.child("attack", *attack).torch("noise", images.device)
    target = adversarial.target(serve(), attack_model=model, generator=generator)
    draws = evaluation["eot_draws"] if model == "eot" else 1
    how = {"kind": kind, "radius": radius, "num_steps": num_steps, "num_draws": draws, "generator": generator}
    parts = zip(images.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True)
    return torch.cat([adversarial.attack(target, part, truth, **how) for part, truth in parts])


def _certified(answers, images, labels, radii, evaluation, streams):
    generator = streams.torch("draws", images.device)
    portions = []
    for part, truth in zip(images.split(_CERTIFIED_AT_ONCE), labels.cpu().split(_CERTIFIED_AT_ONCE), strict=True):
        portions.append(answers(part, truth.numpy(), radii, evaluation=evaluation, generator=generator))
    rows = []
    for same in zip(*portions, strict=True):
        right, robust, size = (np.concatenate([getattr(a, name) for a in same]) for name in ("right", "robust", "size"))
        size = size.reshape(len(right), -1)
        about = {"row": "certificate", **same[0].about, "accuracy": float(right.mean())}
        about |= {"num_draws": evaluation["num_draws"], "num_images": len(right)}
        for name in same[0].medians:
            about[f"median_{name}"] = float(np.median(np.concatenate([a.medians[name] for a in same])))
        for i, radius in enumerate(radii):
            own = size[:, min(i, size.shape[1] - 1)]
            sizes = {"median_size": float(np.median(own)), "largest_size": float(own.max())}
            certified = float((right & robust[:, i]).mean())
            rows.append({**about, "radius": float(radius), "certified_accuracy": certified, **sizes})
    return rows
