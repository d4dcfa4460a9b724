r"""What Equation 13 of StoBatch certifies under each reading of what the document leaves open.

The document names no failure probability, no norm of θ₁, and two things by the letter d: the inputs of an image
(:math:`x \in [-1, 1]^d`, Section 2, where :math:`\Delta_r^x = \mu d` is the exact l1 change) and those of a patch
(Lemma 2, Appendix P: 25, 16 and 49). The authors' release counts one channel of a colour image only.

``dataset`` is one of :data:`privrob.accounting.functional_budget.CONFIGURATIONS`, and ``epsilon`` the ε claimed in all.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from privrob import checks
from privrob.accounting import functional_budget
from privrob.robust import certify, certify_study, certify_toy


def meanings_of_d(dataset):
    """The numbers that d of Δ_r^x = μd may stand for, {words: number}, the largest first."""
    found = functional_budget.configuration(dataset)
    inputs, channels = math.prod(found.in_shape), found.channels
    if channels == 1:
        return {"inputs": inputs, "patch": found.kernel_area}
    return {
        "inputs": inputs,
        "inputs, one channel": inputs // channels,
        "patch": channels * found.kernel_area,
        "patch, one channel": found.kernel_area,
    }


def largest_radius(dataset, epsilon, *, d, theta_norm, failure_prob, hidden=False, lowest_bound=False):
    """The largest μ that Equation 13 accepts when all draws agree.

    Args: d — of Δ_r^x = μd;  theta_norm — ‖θ₁‖ of γ and of Δ_r^h = β‖θ₁‖;  hidden — whether the hidden layer counts, as
        it does in Equation 13;  lowest_bound — Hoeffding's joint bounds, not Clopper and Pearson's separate ones.
    """
    found = functional_budget.configuration(dataset)
    bound, split = ("hoeffding", "joint") if lowest_bound else ("clopper_pearson", "separate")
    how = {"num_classes": found.num_classes, "failure_prob": failure_prob}
    most = certify.cap(found.num_draws, bound=bound, split=split, **how)
    layers = certify_study.layers_of(dataset, epsilon, theta_norm=theta_norm, hidden=False)
    change = theta_norm * found.map_neurons if hidden else 0.0
    layers = replace(layers, input_sensitivity=float(d), hidden_sensitivity=change)
    return float(certify.certified_radii(most, layers=layers, kind="as_printed")[1])


def caps(dataset, epsilon, *, sizes, large_norm, failure_prob):
    """That radius for each meaning of d, with both layers and, credited alone, with the input's noise.

    Paper: stobatch, Equation 13, Figures 6 to 9, Appendix P.
    Args: sizes — attack sizes of the figure;  large_norm — a generous ‖θ₁‖.
    Returns: rows. ``both`` at the released norm, as Equation 13 has it; ``input`` at the released norm and Hoeffding's
        bounds, at norm 1, at the large norm, and there at a failure probability of 1/2; and how many of the sizes lie
        below ``both`` and below the large norm's.
    """
    norm, rows = functional_budget.configuration(dataset).released_norm, []
    for words, d in meanings_of_d(dataset).items():
        how = {"d": d, "failure_prob": failure_prob}
        row = {"data": dataset, "d is": words, "d": d}
        row["both"] = largest_radius(dataset, epsilon, theta_norm=norm, hidden=True, **how)
        row["input, least"] = largest_radius(dataset, epsilon, theta_norm=norm, lowest_bound=True, **how)
        for value in (1.0, large_norm):
            row[f"norm {value:g}"] = most = largest_radius(dataset, epsilon, theta_norm=value, **how)
        row["α = 0.5"] = largest_radius(dataset, epsilon, theta_norm=large_norm, **how | {"failure_prob": 0.5})
        row |= {"sizes, both": sum(size < row["both"] for size in sizes)}
        rows.append(row | {"sizes, input": sum(size < most for size in sizes)})
    return rows


def norm_allowed(dataset, epsilon, *, d, attack_radius, failure_prob):
    """The ‖θ₁‖ up to which Equation 13 *with both layers* reaches that radius; 0 if it never does.

    Δ_r^h = β‖θ₁‖ grows with the norm, and faster than b does.

    Args: d — of Δ_r^x = μd;  attack_radius — μ.
    """
    wanted = checks.positive("attack_radius", attack_radius, finite=True)

    def spare(norm):
        how = {"d": d, "theta_norm": norm, "failure_prob": failure_prob, "hidden": True}
        return largest_radius(dataset, epsilon, **how) - wanted

    return float(brentq(spare, 1e-9, 100.0, xtol=1e-9)) if spare(1e-9) > 0 else 0.0


def near_the_border(dataset, epsilon, *, means, failure_prob):
    """Equation 13's radius over the true one for toy images near the border, noise on the input alone.

    From exact expectations ε_r falls like v, so that the ratio √(bε_r/D)/v grows like v^(−1/2): without end. With n
    draws bounds abstain near the border, and the ratio has a largest value.

    Args: means — v, shape (n,), mean pixels, which are the true radii.
    Returns: rows: ``exact``; with the printed n, a count of votes at its median, and joint bounds: ``Hoeffding``,
        ``Clopper-Pearson``, 0 where they abstain.
    """
    toy, found = certify_study.toy_of(dataset, epsilon), functional_budget.configuration(dataset)
    layers, means = toy.layers.only("input"), checks.array("means", means, ndim=1)
    scores, rows = toy.layer_scores(means, place="input"), []
    draws = np.arange(found.num_draws)
    for mean, (first, second) in zip(means, scores, strict=True):
        robust = {"exact": float(certify.largest_epsilon(first, second))}
        votes = (draws < round(found.num_draws * float(first)))[None, :, None]
        votes = np.concatenate([votes, ~votes], axis=-1).astype(np.float64)
        for name, bound in (("Hoeffding", "hoeffding"), ("Clopper-Pearson", "clopper_pearson")):
            bounds = certify.class_bounds(votes, bound=bound, failure_prob=failure_prob)
            robust[name] = float(certify.largest_epsilon(bounds.lower, bounds.upper)[0])
        row = {"data": dataset, "v": float(mean)}
        for name, value in robust.items():
            row[name] = float(certify.certified_radii(value, layers=layers, kind="as_printed")[1]) / float(mean)
        rows.append(row)
    return rows


def two_pixels(theta, *, value, scale=1.0):
    """A false certificate of the wrong Δ_r^h alone: two pixels, one hidden neuron h = θ(x₁ + x₂), ψ = 1, μ = 1.

    Layer scores: class 0 if all noisy numbers are positive, class 1 if all are negative, else (input only) class 2; the
    scores of both layers are multiplied (Equation 11). An image (v, v), v > 0, keeps label 0 as long as its pixels are
    positive, and has label 1 beyond (0, 0): its true radius is v. Δ_r^x = μd = 2 is right at μ = 1. Δ_r^h = β‖θ₁‖_∞ is
    θ as printed, since rows of θ₁ hold one weight, where the exact change is 2θ.

    Paper: stobatch, Section 3.4, Equations 11 and 13.
    Args: theta — weight of each pixel;  value — v;  scale — b of the input's noise, 2b of the hidden one's.
    Returns: dict.
    """
    theta, value = (checks.positive(name, x, finite=True) for name, x in (("theta", theta), ("value", value)))
    printed = certify.Layers(scale, 2 * scale, 2.0, theta)
    sound = replace(printed, hidden_sensitivity=2 * theta)

    def scores(pixel):
        """Expected composed scores of classes 0, 1 and 2."""
        above = 1 - certify_toy.laplace_cdf(-pixel, scale), 1 - certify_toy.laplace_cdf(-2 * theta * pixel, 2 * scale)
        below = certify_toy.laplace_cdf(-pixel, scale), certify_toy.laplace_cdf(-2 * theta * pixel, 2 * scale)
        rest = (1 - above[0] ** 2 - below[0] ** 2) * 0.0  # no hidden number votes for class 2
        return np.array([above[0] ** 2 * above[1], below[0] ** 2 * below[1], rest])

    here, there = scores(value), scores(-1e-6 * value)
    robust = float(certify.largest_epsilon(here[0], here[1:].max()))
    sizes = {"printed": printed, "sound": sound}
    sizes = {k: float(certify.robustness_size(robust, layers=v, attack_radii=1.0)[0, 0]) for k, v in sizes.items()}
    found = {"θ": theta, "true radius": value, "label": int(here.argmax()), "label beyond": int(there.argmax())}
    return found | {"ε_r": robust} | sizes | {"printed / true": sizes["printed"] / value}
