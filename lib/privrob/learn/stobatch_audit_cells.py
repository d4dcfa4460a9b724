"""The audit of StoBatch as cells of a sweep: one attack on what a lemma speaks of, or a share of an attack's trainings.

Paper: stobatch, Theorems 1, 3, 4, Lemmas 3 and 4, Algorithm 1; see :data:`privrob.learn.stobatch_audit.ABOUT`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from privrob import checks
from privrob.learn import stobatch_audit as audit
from privrob.learn import stobatch_audit_inputs as inputs
from privrob.learn import stobatch_audit_labels as labels
from privrob.learn import stobatch_audit_repairs as repairs
from privrob.learn.stobatch_audit_model import Toy, Trainings, draw

RELEASES = {
    "A": (inputs.PerturbedBatch, {}),
    "B": (inputs.OneRecord, {}),
    "S1": (inputs.BatchSum, {}),
    "S2": (inputs.BatchSum, {"batches": 2}),
    "S3": (inputs.BatchSum, {"batches": 2, "noise": "independent"}),
    "S4": (inputs.BatchSum, {"noise_known": True}),
    "C": (inputs.FeatureGradient, {}),
    "D": (labels.LabelCoefficients, {"draw": "shared_by_classes"}),
    "D2": (labels.LabelCoefficients, {}),
    "T": (labels.LabelCoefficients, {"steps": "two_with_one_draw"}),
    "T2": (labels.LabelCoefficients, {"steps": "two_with_fresh_draws"}),
    "E": (labels.LowerGradient, {}),
    "R1": (repairs.RandomisedLabels, {}),
    "R2": (repairs.CalibratedRecord, {}),
    "R3": (repairs.NoisyGradients, {}),
}
# trainings: settings of the toy; what D′ has in the canary's place, and how; (attack, query) pairs on the same models
OTHER_LABEL, ABSENT = {"neighbour": "other_label", "level": 0.0}, {"neighbour": "absent", "level": -1.0}
ALGORITHM_1 = {"adversarial": True, "num_batches": 2, "feature_rate": 1e-4}
MODELS = {
    "F1": ({"noise": "shared"}, OTHER_LABEL, [("F1", "stored")]),
    "F1m": ({"noise": "shared"}, ABSENT, [("F1m", "stored")]),
    "F2": ({"noise": "independent"}, OTHER_LABEL, [("F2", "fresh"), ("F2c", "own_copy")]),
    "F3": ({"noise": "shared"} | ALGORITHM_1, OTHER_LABEL, [("F3", "stored")]),
}
NEIGHBOURS = ("other_label", "absent")


def release_of(name, settings):
    """The attack of that name on a release, with the settings that it knows."""
    cls, fixed = RELEASES[checks.choice("attack", name, RELEASES)]
    return audit.of_settings(cls, settings | fixed)


def audit_cell(settings, *, streams):
    """Measure one attack.

    Args: settings — ``attack`` (a key of :data:`RELEASES`), ``num_trials`` (each arm), ``failure_prob``, perhaps
    ``delta`` and fields of the attack's class.
    Returns: one row, see :func:`privrob.learn.stobatch_audit.row`.
    """
    attack = release_of(settings["attack"], settings)
    limits = {name: settings[name] for name in ("num_trials", "failure_prob", "delta") if name in settings}
    return [audit.measured(settings["attack"], attack, streams=streams, **limits)]


def worst_case(toy, *, present, neighbour, level):
    """A data set with a canary as its first record, or its neighbour; every other record is one of two points.

    The two classes lie at (−1, …, −1, −1) and (1, …, 1, −1), half and half. The canary's last input is 1, which is
    nobody else's, its others are ``level``: 0, between the classes, or −1, where class 0 is; its label is 1. In the
    neighbour its label is 0 (``other_label``), or a record of class 0 stands in its place (``absent``).

    Args: toy — :class:`privrob.learn.stobatch_audit_model.Toy`;  present — whether the canary is there;  neighbour —
        one of :data:`NEIGHBOURS`.
    Returns: images (N, d), labels (N,), torch; the first image of the data set with the canary.
    """
    checks.choice("neighbour", neighbour, NEIGHBOURS)
    classes = torch.arange(toy.num_records) % 2  # record 0 is of class 0
    images = (2.0 * classes[:, None] - 1).expand(-1, toy.num_inputs).clone()
    images[:, -1] = -1
    canary = torch.full_like(images[0], level)
    canary[-1] = 1
    if present or neighbour == "other_label":
        images[0] = canary
    classes[0] = 1 if present else 0
    return images, classes, canary[None]


def train_cell(settings, *, streams):
    """Train both arms of one attack on final models, and ask each model for one label.

    Args: settings — ``attack`` (a key of :data:`MODELS`), ``num_trials`` (each arm), ``repeat`` (names the streams),
    and fields of :class:`privrob.learn.stobatch_audit_model.Toy`.
    Returns: a row for each query and arm: how often the canary was given label 1.
    """
    fixed, pair, queries = MODELS[checks.choice("attack", settings["attack"], MODELS)]
    toy, rows = audit.of_settings(Toy, settings | fixed), []
    for present in (True, False):
        images, classes, canary = worst_case(toy, present=present, **pair)
        arm = streams.child("D" if present else "D'")
        trained = Trainings(toy, images, classes, draw(toy, num_trials=settings["num_trials"], streams=arm)).run()
        right = trained.logits().argmax(dim=2) == classes
        for name, query in queries:
            logits = trained.logits(canary, query=query, record=0, generator=arm.torch("query"))
            hits = int((logits[:, 0].argmax(dim=1) == 1).sum())
            row = {"attack": name, "present": present, "trials": settings["num_trials"], "hits": hits}
            row |= {"accuracy": float(right[:, 1:].double().mean())}
            rows.append(row | {"claimed_epsilon": float(trained.claimed_epsilon.max())})
    return rows


def rows_of_models(rows, *, failure_prob, delta=0.0):
    """The audit's rows of attacks on final models from those of :func:`train_cell`, counts added up.

    No finite ε is proved for any of them: noise is shared, or labels reach the lower layers without any.
    """
    found = []
    for name in dict.fromkeys(r["attack"] for r in rows):
        mine = [r for r in rows if r["attack"] == name]
        arms = [[r for r in mine if bool(r["present"]) == present] for present in (True, False)]
        hits, trials = ([sum(r[key] for r in arm) for arm in arms] for key in ("hits", "trials"))
        outcome = audit.Outcome(hits[0], trials[0], hits[1], trials[1])
        more = {"accuracy": float(np.mean([r["accuracy"] for r in mine]))}
        epsilons = {"claimed_epsilon": max(r["claimed_epsilon"] for r in mine), "honest_epsilon": math.inf}
        found.append(audit.row(name, outcome, **epsilons, delta=delta, failure_prob=failure_prob, **more))
    return found
