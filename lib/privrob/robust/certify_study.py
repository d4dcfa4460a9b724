"""Tables about StoBatch's certificates: what its settings can certify, and what certificates say of exact toys.

``dataset`` is one of :data:`privrob.accounting.functional_budget.CONFIGURATIONS`, ``epsilon`` the ε claimed in all, and
``hidden`` whether the hidden layer has a part in the certificate.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from privrob import checks
from privrob.accounting import functional_budget
from privrob.robust import adversarial, certify, certify_toy

KINDS = {
    "sound": ("sound", None),
    "Equation 13": ("as_printed", None),
    "as released, 2020-06": ("as_released", "2020-06"),
    "as released, 2020-09": ("as_released", "2020-09"),
}


def layers_of(dataset, epsilon, *, theta_norm=None, hidden=True):
    """The noise of a data set's printed setting, with Δ_h = β times the released norm of θ₁, or 0.

    Paper: stobatch, Appendix P, Appendix N (ψ).
    Args: dataset — of :data:`~privrob.accounting.functional_budget.CONFIGURATIONS`;  epsilon — claimed total;
        theta_norm — in γ, None: the authors' release's.
    """
    found = functional_budget.configuration(dataset)
    budget = functional_budget.split(dataset, epsilon, theta_norm=theta_norm)
    sensitivity = found.released_norm * found.map_neurons if hidden else 0.0
    return certify.Layers.of(budget, hidden_sensitivity=sensitivity, psi=found.redraw_divisor)


def toy_of(dataset, epsilon, *, hidden=True):
    """The linear toy with the noise of a data set's printed setting."""
    neurons = functional_budget.configuration(dataset).map_neurons
    return certify_toy.Mean(layers_of(dataset, epsilon, hidden=hidden), num_hidden=neurons)


def caps(dataset, epsilon, *, theta_norms, failure_prob):
    """Largest radius that any network could be certified at, for each bound, norm, with and without the hidden layer.

    Paper: stobatch, Section 3.4, Figures 6 to 9.
    Args: theta_norms — values of ‖θ₁‖.
    Returns: rows.
    """
    found, rows = functional_budget.configuration(dataset), []
    how = {"num_classes": found.num_classes, "failure_prob": failure_prob}
    for bound, split in (("hoeffding", "joint"), ("clopper_pearson", "joint"), ("clopper_pearson", "separate")):
        most = certify.cap(found.num_draws, bound=bound, split=split, **how)
        for norm in theta_norms:
            for hidden in (True, False):
                layers = layers_of(dataset, epsilon, theta_norm=norm, hidden=hidden)
                row = {"data": dataset, "bound": f"{bound}, {split}", "‖θ₁‖": norm or found.released_norm}
                row |= {"hidden layer": hidden, "ε_r": most, "b": layers.input_scale}
                row["Equation 13"] = float(certify.certified_radii(most, layers=layers, kind="as_printed")[1])
                rows.append(row | {"sound": float(certify.certified_radii(most, layers=layers)[1])})
    return rows


def norm_needed(dataset, epsilon, *, attack_radius, failure_prob):
    """The ‖θ₁‖ in γ from which Equation 13 can certify that radius, with the input's noise alone: b must be μ²D/ε_r.

    The larger the norm, the smaller ε₁ of a given total, and b is linear in the norm. Negative: any norm will do.

    Args: attack_radius — μ.
    """
    found = functional_budget.configuration(dataset)
    how = {"num_classes": found.num_classes, "failure_prob": failure_prob}
    most = certify.cap(found.num_draws, split="separate", **how)
    first, second = (layers_of(dataset, epsilon, theta_norm=norm).input_scale for norm in (1.0, 2.0))
    wanted = attack_radius**2 * math.prod(found.in_shape) / most
    return 1 + (wanted - first) / (second - first)


def true_and_certified(dataset, epsilon, *, means, failure_prob, psi=None):
    """Certified radii of toy images from exact expectations, below the cap that the printed number of draws sets.

    Args: means — mean pixels, shape (n,);  psi — None: the printed one; 1 leaves the mistake in the units alone.
    Returns: rows; the true radius of an image is its mean pixel.
    """
    toy, rows = toy_of(dataset, epsilon), []
    if psi is not None:
        toy = replace(toy, layers=replace(toy.layers, psi=psi))
    found = functional_budget.configuration(dataset)
    most = certify.cap(found.num_draws, num_classes=2, failure_prob=failure_prob)
    scores = {place: toy.layer_scores(means, place=place) for place in ("input", "hidden")}
    scores = {"input only": scores["input"], "both layers": scores["input"] * scores["hidden"]}
    for place, each in scores.items():
        layers = toy.layers if place == "both layers" else toy.layers.only("input")
        robust = np.minimum(certify.largest_epsilon(each[:, 0], each[:, 1]), most)
        for kind in ("as_printed", "sound"):
            radii = certify.certified_radii(robust, layers=layers, kind=kind)[1]
            common = {"data": dataset, "noise": place, "kind": kind}
            rows += [common | {"true radius": float(v), "certified": float(r)} for v, r in zip(means, radii)]
    return rows


def two_images(toy, *, mean, attack_radius, num_draws, failure_prob, rng):
    """An image of the toy and one at a distance between its true radius and the attack radius: labels, certificates.

    Args: toy — a :class:`privrob.robust.certify_toy.Mean`;  mean — the first image's mean pixel, below
        ``attack_radius``; num_draws — for each image.
    Returns: rows, for both images and the kinds ``as_printed`` and ``sound``.
    """
    checks.real("mean", mean, low=0, high=attack_radius, open_low=True, open_high=True)
    image = rng.uniform(-0.8, 0.8, size=toy.num_inputs)
    image += mean - image.mean()
    attacked, rows = image - (mean + attack_radius) / 2, []
    how = {"layers": toy.layers, "attack_radii": [attack_radius], "bound": "clopper_pearson"}
    for name, pixels in (("image", image), ("attacked", attacked)):
        scores = toy.draws(pixels, num_draws=num_draws, rng=rng, place="both")
        for kind in ("as_printed", "sound"):
            found = certify.verify(scores, kind=kind, failure_prob=failure_prob, **how)
            row = {"what": name, "distance": float(np.abs(pixels - image).max()), "kind": kind}
            row |= {"label": int(found.label[0]), "ε_r": float(found.epsilon_robust[0])}
            rows.append(row | {"size": float(found.size[0, 0]), "robust": bool(found.is_robust[0, 0])})
    return rows


def data_set(toy, *, num_images, num_draws, rng, spread=0.3, wrong=0.05):
    """Images with mean pixels uniform in ±spread, their labels (some wrong), and scores of draws of both layers.

    Args: toy — a :class:`privrob.robust.certify_toy.Mean`;  num_images — n;  num_draws — for each;  spread — largest
        mean pixel;  wrong — share of wrong labels.
    Returns: means (n,), labels (n,), scores (n, num_draws, 2): the product of two votes, 0 for both if they differ.
    """
    means = rng.uniform(-spread, spread, size=num_images)
    labels = (means < 0).astype(int) ^ (rng.random(num_images) < wrong)
    votes = [toy.layer_scores(means, place=place)[:, :1] for place in ("input", "hidden")]
    first, second = (rng.random((num_images, num_draws)) < p for p in votes)
    return means, labels, np.stack([first & second, ~first & ~second], axis=-1).astype(np.float64)


def corner_costs(layers, *, epsilon, neurons=9):
    """Exact costs, over ε, at the radii that Section 3.3 gives, on scores that meet Lemma 1 with equality.

    Args: layers — a :class:`privrob.robust.certify.Layers`;  neurons — hidden ones, which share its sensitivity.
    Returns: dict — PixelDP's noise on either layer at radius 1; κ and φ for their own balls, a κ-th at radius 1; the
    composition at κφ/(κ + φ).
    """
    pixels = int(layers.input_sensitivity)
    weight = layers.hidden_sensitivity / neurons  # how far each hidden neuron moves per unit of radius
    places = {
        "input": (np.full(pixels, -2.0), 1.0, layers.input_scale, layers.input_sensitivity),
        "hidden": (np.full(neurons, -20.0), weight, layers.hidden_scale, layers.hidden_sensitivity),
    }

    def cost(place, radius, scale=None):
        start, per_radius, given, _ = places[place]
        how = {"threshold": 0.0, "scale": scale or given}
        return certify_toy.corner(start + radius * per_radius, **how) - certify_toy.corner(start, **how)

    kappa, phi, both = (float(v) for v in certify.multiples(epsilon, layers=layers, attack_radius=1.0))
    costs = {f"PixelDP, {place}": cost(place, 1.0, scale=values[3] / epsilon) for place, values in places.items()}
    costs |= {"κ": cost("input", kappa), "φ": cost("hidden", phi), "κ, per unit": kappa * cost("input", 1.0)}
    costs["κφ/(κ + φ)"] = cost("input", both) + cost("hidden", both)
    return {name: value / epsilon for name, value in costs.items()}


def attacks(model, images, *, radius, num_steps, generator, restarts=3):
    """What one step and several do to a network: shares of labels changed, and of losses that several steps raise.

    Paper: stobatch, Equations 7 and 8, Appendix C.
    Args: model — images → logits (n, K);  radius — l∞;  restarts — of PGD.
    Returns: dict — ``corner``, the most that a corner of the ball gains over the single step on the linearised loss;
    ``one step``, ``one label``, ``relabelled``: shares of labels changed; ``higher``: share of images where PGD finds
    a higher loss than the single step.
    """
    import torch

    labels = model(images).argmax(1)

    def losses(x):
        return torch.nn.functional.cross_entropy(model(x), labels, reduction="none")

    def changed(x):
        return float((model(x).argmax(1) != labels).double().mean())

    point = images.clone().requires_grad_()
    gradient = torch.autograd.grad(losses(point).sum(), point)[0]
    how = {"radius": radius, "num_steps": num_steps}
    single = adversarial.attack(model, images, kind="fgsm", **how)
    corners = torch.tensor(list(np.ndindex(*[2] * images.shape[1])), dtype=images.dtype) * 2 - 1
    gained = (gradient @ corners.T).amax(1) - (gradient * (single - images)).sum(1) / radius
    pgd = {"kind": "pgd", "step_size": 2.5 * radius / num_steps, "generator": generator} | how
    best = torch.stack([losses(adversarial.attack(model, images, **pgd)) for _ in range(restarts)]).amax(0)
    found = {"corner": float(gained.max()), "higher": float((best > losses(single) + 1e-9).double().mean())}
    found["one step"] = changed(single)
    for name, relabel in (("one label", False), ("relabelled", True)):
        found[name] = changed(adversarial.attack(model, images, kind="ifgsm", relabel=relabel, **how))
    return found
