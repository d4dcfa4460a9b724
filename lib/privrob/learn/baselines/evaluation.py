"""One evaluation, clean, attacked and certified, of all that is :class:`privrob.learn.stobatch.deployed.Deployed`."""

from __future__ import annotations

import numpy as np
import torch

from privrob import checks
from privrob.robust import adversarial

_AT_ONCE = 500


def evaluate(
    deployed,
    images,
    labels,
    *,
    streams,
    attack_radii,
    attacks=("fgsm", "ifgsm", "mim", "pgd"),
    attack_models=("surrogate",),
    attack_steps=10,
    num_gradient_draws=10,
    num_certified=0,
    num_draws=200,
    failure_prob=0.05,
    low=-1.0,
    high=1.0,
):
    """Accuracies of a deployed model: rows, one a clean radius, then one an attack, attacked model and radius.

    Paper: stobatch, Section 4 (conventional and certified accuracy).
    Args: deployed — with the five methods of ``Deployed``, and ``certify(images, *, attack_radii, num_draws, generator,
        failure_prob)`` → (labels, {certificate: bool (n, r)}) if it has certificates;
        images, labels — the test records that are attacked;  streams — every row draws from its own;
        attack_radii — μ_a, l∞;  attacks, attack_steps — kinds and T of :func:`privrob.robust.adversarial.attack`;
        attack_models — whose gradients the adversary has: ``surrogate``, ``fixed``, ``eot`` (mean of
        ``num_gradient_draws`` fresh ones);  num_certified — of the first so many images also certificates, clean and
        attacked;  num_draws, failure_prob — of those;  low, high — the images' range.
    Returns: dicts. ``attack`` (``none``: clean), ``attack_model``, ``attack_radius``, ``attack_steps``,
        ``conventional_accuracy`` (of what is deployed), ``num_attacked``, and of the certified ones ``num_certified``
        and ``certified_accuracy_<name>``: right and certified beyond the attack's radius (None without certificates).
    """
    radii = [checks.nonnegative("attack_radii", radius, finite=True) for radius in attack_radii]
    attacks = [checks.choice("attacks", attack, adversarial.KINDS) for attack in attacks]
    models = [checks.choice("attack_models", model, adversarial.ATTACK_MODELS) for model in attack_models]
    count = checks.integer("num_certified", num_certified, low=0, high=len(labels))
    if not radii or not len(labels):
        raise ValueError(f"attack_radii and images must not be empty, got {len(radii)} and {len(labels)}")
    certify = getattr(deployed, "certify", None) if count else None

    def certified(points, radii, name):
        """{column: accuracies (r,)} of the first images."""
        if certify is None:
            return {}
        how = {"num_draws": num_draws, "failure_prob": failure_prob}
        generator = streams.torch(f"certificate {name}", images.device)
        found, held = certify(points[:count], attack_radii=radii, generator=generator, **how)
        right = (np.asarray(found) == labels[:count].cpu().numpy())[:, None]
        return {f"certified_accuracy_{name}": (right & robust).mean(0) for name, robust in held.items()}

    def row(attack, model, radius, points, accuracy, columns):
        return {
            "attack": attack,
            "attack_model": model,
            "attack_radius": radius,
            "attack_steps": None if attack == "none" else 1 if attack == "fgsm" else attack_steps,
            "conventional_accuracy": accuracy,
            "num_attacked": len(points),
            "num_certified": count if certify else 0,
            **columns,
        }

    columns, clean = certified(images, radii, "clean"), accuracy_of(deployed, images, labels)
    rows = [
        row("none", None, radius, images, clean, {name: float(v[i]) for name, v in columns.items()})
        for i, radius in enumerate(radii)
    ]
    for kind in attacks:
        for model in models:
            for radius in radii:
                name = f"{kind} {model} {radius!r}"
                how = {"kind": kind, "radius": radius, "num_steps": attack_steps, "low": low, "high": high}
                points = _attacked(deployed, images, model, num_gradient_draws, streams.child(name), how)
                columns = {k: float(v[0]) for k, v in certified(points, [radius], name).items()}
                rows.append(row(kind, model, radius, points, accuracy_of(deployed, points, labels), columns))
    return rows


@torch.no_grad()
def accuracy_of(deployed, images, labels):
    """Share of images whose label the deployed model gives."""
    right = 0
    for part, targets in zip(images.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        right += int((deployed.predict_logits(part).argmax(1) == targets).sum())
    return right / len(labels)


def _attacked(deployed, images, model, num_gradient_draws, streams, how):
    """Attacked images; the label attacked is the attacked model's own prediction."""
    noise, start = (streams.torch(name, images.device) for name in ("noise", "start"))
    target = adversarial.target(deployed, attack_model=model, generator=noise)
    draws = num_gradient_draws if model == "eot" else 1
    parts = images.split(_AT_ONCE)
    return torch.cat([adversarial.attack(target, part, num_draws=draws, generator=start, **how) for part in parts])
