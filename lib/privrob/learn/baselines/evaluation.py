"""Attacks and certificates of a deployed baseline, in rows of the same columns as StoBatch's own cells have.

Conventional accuracy is of what is served; attacks know the true label. A certificate at a clean image is the usual
certified accuracy; the document's is at attacked images, for the radius of each one's own attack.
"""

from __future__ import annotations

import numpy as np
import torch

from privrob import checks
from privrob.robust import adversarial
from privrob.robust import certify as robustness

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
    "num_draws": 200,
    "num_certified": 200,
    "failure_prob": 0.05,
}
_CHOICES = {
    "attack_kinds": adversarial.KINDS,
    "attack_models": adversarial.ATTACK_MODELS,
    "certificate_bounds": robustness.BOUNDS,
    "certificate_inputs": ("clean", "attacked"),
}
_AT_ONCE = 250


def checked(evaluation):
    """All names of ``DEFAULTS``, those given checked.

    Args: evaluation — a dict: ``attack_kinds``, ``attack_radii`` (l∞), ``attack_models`` (``surrogate``, ``fixed``,
        ``eot``), ``attack_test_steps`` — one row for each combination, over the first ``num_attacked`` images (None:
        all);  ``eot_draws`` — calls whose mean gradient ``eot`` takes;  ``certificate_radii``, ``certificate_bounds``,
        ``certificate_inputs`` (``clean``, ``attacked``), ``num_draws``, ``failure_prob`` — over the first
        ``num_certified`` images, of every certificate that the model has.
    """
    evaluation = {**DEFAULTS, **checks.options("evaluation", evaluation, DEFAULTS)}
    for name in (*_CHOICES, "attack_radii", "attack_test_steps", "certificate_radii"):
        if not isinstance(evaluation[name], (tuple, list)):
            raise TypeError(f"{name} must be a list, got {name}={evaluation[name]!r}")
        for value in evaluation[name]:
            if name in _CHOICES:
                checks.choice(name, value, _CHOICES[name])
            elif name == "attack_test_steps":
                checks.integer(name, value, low=1)
            else:
                checks.nonnegative(name, value, finite=True)
    for name in ("eot_draws", "num_draws", "num_certified", "num_attacked"):
        if evaluation[name] is not None:
            checks.integer(name, evaluation[name], low=1)
    checks.probability("failure_prob", evaluation["failure_prob"], allow_zero=False, allow_one=False)
    return evaluation


def evaluate(deployed, images, labels, *, evaluation, streams):
    """Rows of attacks, then of certificates.

    Paper: stobatch, Section 4 (conventional and certified accuracy).
    Args: deployed — :class:`privrob.learn.baselines.deployed.Quiet` or one with certificates;
        images, labels — test records;  evaluation — of :func:`checked`;  streams — each row draws from its own.
    Returns: dicts. ``row`` ("attack" or "certificate"), ``kind`` (of attack; None: clean images), ``attack_model``,
        ``attack_test_steps``, ``radius``, ``accuracy``, ``num_images``; of certificates also ``certificate``,
        ``bound``, ``certified_accuracy``, ``median_size``, ``largest_size`` (radii), ``guaranteed``, ``num_draws``.
    """
    evaluation = checked(evaluation)
    if not len(labels):
        raise ValueError("images must hold at least one test record, got none")
    rows = attack_rows(deployed, images, labels, evaluation, streams)
    return rows + certificate_rows(deployed, images, labels, evaluation, streams)


def attack_rows(deployed, images, labels, evaluation, streams):
    """Accuracy of what is served: at clean images, then under each attack."""
    images, labels = (part[: evaluation["num_attacked"]] for part in (images, labels))
    shared = {"row": "attack", "num_images": len(labels)}
    rows = [{**shared, **_CLEAN, "radius": 0.0, "accuracy": accuracy_of(deployed, images, labels)}]
    for attack in _attacks(evaluation):
        found = _attacked(deployed, images, labels, attack, evaluation, streams.child("attack"))
        about = _about(attack) | {"radius": float(attack[3]), "accuracy": accuracy_of(deployed, found, labels)}
        rows.append({**shared, **about})
    return rows


def certificate_rows(deployed, images, labels, evaluation, streams):
    """Certified accuracy at each radius, by certificate and bound; at clean images, and at attacked ones."""
    if not deployed.certificates:
        return []
    images, labels = (part[: evaluation["num_certified"]] for part in (images, labels))
    streams, rows = streams.child("certified"), []
    if "clean" in evaluation["certificate_inputs"] and evaluation["certificate_radii"]:
        for row in _certified(deployed, images, labels, evaluation["certificate_radii"], evaluation, streams):
            rows.append({**row, **_CLEAN})
    if "attacked" in evaluation["certificate_inputs"]:
        for attack in _attacks(evaluation):
            found = _attacked(deployed, images, labels, attack, evaluation, streams)
            own = streams.child(*attack)
            for row in _certified(deployed, found, labels, [attack[3]], evaluation, own):
                rows.append({**row, **_about(attack)})
    return rows


@torch.no_grad()
def accuracy_of(deployed, images, labels):
    """Share of images whose label is served."""
    right = 0
    for part, targets in zip(images.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        right += int((deployed.predict_logits(part).argmax(1) == targets).sum())
    return right / len(labels)


_CLEAN = {"kind": None, "attack_model": None, "attack_test_steps": 0}


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


def _attacked(deployed, images, labels, attack, evaluation, streams):
    """Images pushed away from their true labels."""
    model, kind, num_steps, radius = attack
    generator = streams.child(*attack).torch("noise", images.device)
    target = adversarial.target(deployed, attack_model=model, generator=generator)
    draws = evaluation["eot_draws"] if model == "eot" else 1
    how = {"kind": kind, "radius": radius, "num_steps": num_steps, "num_draws": draws, "generator": generator}
    parts = zip(images.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True)
    return torch.cat([adversarial.attack(target, part, truth, **how) for part, truth in parts])


def _certified(deployed, images, labels, radii, evaluation, streams):
    generator, truth = streams.torch("draws", images.device), labels.cpu().numpy()
    scores = deployed.draws(images, num_draws=evaluation["num_draws"], generator=generator)
    rows = []
    for bound in evaluation["certificate_bounds"]:
        found, every = deployed.certify(scores, bound=bound, failure_prob=evaluation["failure_prob"])
        right = (found.label == truth) & (found.lower > found.upper)
        for name, sizes in every.items():
            for radius in radii:
                rows.append(
                    {
                        "row": "certificate",
                        "certificate": name,
                        "bound": bound,
                        "radius": float(radius),
                        "certified_accuracy": float((right & (sizes > radius)).mean()),
                        "accuracy": float(right.mean()),
                        "median_size": float(np.median(sizes)),
                        "largest_size": float(sizes.max()),
                        "guaranteed": found.guaranteed and name != "as_printed",
                        "num_draws": evaluation["num_draws"],
                        "num_images": len(truth),
                    }
                )
    return rows
