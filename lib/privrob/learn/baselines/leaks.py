"""Does a training that is not private tell a record? One query to the trained model, under two neighbouring data sets.

The data are Gaussian classes in a few dimensions and one record far from all of them, the canary, whose label is 0 in
one data set and 1 in the other. The attack asks the model for the canary's label.
"""

from __future__ import annotations

import math

import torch

from privrob import checks
from privrob.accounting import audit
from privrob.learn.baselines import dpsgd, kurakin, pixeldp

_SMALL = {"network": "dense", "network_options": {"num_hidden": 16, "width": 16}, "learning_rate": 2e-2}
TRAININGS = {
    "Adversarial training": (kurakin.Kurakin, kurakin.KurakinSettings, {"adversarial_batch_size": 20}),
    "PixelDP": (pixeldp.PixelDP, pixeldp.PixelDPSettings, {"attack_bound": 0.1}),
}


def data(label, *, num_records, generator):
    """Images (n, 1, 2, 2) in [−1, 1] and labels; the canary is the last: alone in its corner, with that label."""
    labels = torch.arange(num_records) % 2
    centres = torch.tensor([[-0.5, -0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    images = centres[labels] + 0.1 * torch.randn(num_records, 4, generator=generator)
    images[-1] = torch.tensor([0.0, 0.0, 1.0, -1.0])
    labels[-1] = label
    return images.clamp(-1, 1).view(-1, 1, 2, 2), labels


def canary(name, *, num_trials, num_steps, streams, num_records=40, failure_prob=0.05):
    """Trainings on both data sets, each with draws of its own, and the ε that their answers prove.

    Paper: stobatch, Section 1 ("robust models … do not offer privacy protections"), Section 2 (PixelDP).
    Args: name — of ``TRAININGS``;  num_trials — trainings an arm.
    Returns: a dict: ``told_0``, ``told_1`` — trainings that answer 0, of those whose canary has label 0 and 1;
        ``epsilon_lower`` — of pure ε (a record is replaced), wrong with probability at most ``failure_prob``;
        ``delta_lower`` — the same of δ at ε = 1.
    """
    kind, of, own = TRAININGS[checks.choice("name", name, TRAININGS)]
    num_trials = checks.integer("num_trials", num_trials, low=1)
    told = []
    for label in (0, 1):
        images, labels = data(label, num_records=num_records, generator=streams.torch("data"))
        settings = of(num_steps=num_steps, batch_size=num_records // 2, **_SMALL, **own)
        answers = 0
        for trial in range(num_trials):
            mine = streams.child("training", label, trial)
            trained = kind(settings, images, labels, num_classes=2, streams=mine).run().deployed()
            answers += int(trained.predict_logits(images[-1:]).argmax() == 0)
        told.append(answers)
    counts = (told[0], num_trials, told[1], num_trials)
    lower_p, _ = audit.clopper_pearson(told[0], num_trials, failure_prob=failure_prob)
    _, upper_q = audit.clopper_pearson(told[1], num_trials, failure_prob=failure_prob)
    return {
        "told_0": told[0],
        "told_1": told[1],
        "num_trials": num_trials,
        "epsilon_lower": audit.epsilon_from_counts(*counts, delta=0.0, failure_prob=failure_prob),
        "delta_lower": max(0.0, float(lower_p - math.e * upper_q)),
    }


def influence(*, adversarial_rate, streams, num_trials=20, max_grad_norm=0.3):
    """How far one record moves the clipped sum of DP-SGD, over C, where records are replaced by adversarial examples
    of their own: the largest of several data sets and weights.

    Paper: stobatch, Section 1 ("Simply combining …").
    Args: adversarial_rate — share of records that are replaced;  max_grad_norm — C.
    """
    settings = dpsgd.PrivateSettings(
        num_steps=1,
        batch_size=8,
        noise_multiplier=0.0,
        max_grad_norm=max_grad_norm,
        adversarial_rate=adversarial_rate,
        attack_radius=0.6,
        random_radius=False,  # or the same record would have another radius in each sum
        **_SMALL,
    )
    most = 0.0
    for trial in range(num_trials):
        mine = streams.child("influence", trial)
        images, labels = data(1, num_records=12, generator=mine.torch("data"))
        order = torch.arange(12).flip(0).numpy()  # the canary first
        sums = []
        for drawn in (order, order[1:]):
            one = dpsgd.DPSGD(settings, images, labels, num_classes=2, streams=mine)
            sums.append(one.noisy_gradient(drawn)[0])
        moved = math.sqrt(sum(float((a - b).double().square().sum()) for a, b in zip(*sums, strict=True)))
        most = max(most, moved * settings.batch_size / max_grad_norm)
    return most
