"""Small cases that decide StoBatch's privacy theorems exactly: no threshold, no statistics.

First steps of Algorithm 1 from a public start, in numbers that float64 adds and multiplies without rounding, so that
ranks are exact (:mod:`privrob.mechanisms.functional_gradients` has the identity); and two records on a lattice, whose
joint probabilities can be written down.

``name`` is one of :data:`CASES`; ``scale`` is b of the noise; ``shared``: all records have one noise vector, as
printed, or (False) each its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.mechanisms import functional_gradients as fg

_RECORDS, _HIDDEN = 4, 3  # of a batch; |h_π|
_COARSE, _FINE = 16, 256  # data and weights are multiples of 1/16, noise and radii of 1/256


@dataclass(frozen=True)
class Case:
    """What one observer sees: the gradients of ``num_benign`` benign and ``num_adversarial`` adversarial batches by θ₁,
    added up.

    Records have ``num_inputs`` (d) entries, the first layer ``num_neurons`` (β) units.
    """

    num_benign: int
    num_adversarial: int
    num_inputs: int
    num_neurons: int


CASES = {
    "theorem_1": Case(1, 0, 5, 4),
    "theorem_2": Case(0, 1, 5, 4),
    "theorem_4": Case(1, 1, 6, 5),
    "distributed_guarantee": Case(2, 2, 9, 8),
}


def dyadic(values, parts):
    """Rounded to multiples of 1/parts.

    Args: values — any shape;  parts — a power of 2.
    """
    return np.round(np.asarray(values) * parts) / parts


def neighbours(name, *, shared, rng, scale=3.0):
    """A random network, the batches of a data set, and those of a neighbour: one record of the first batch replaced.

    Args: name — of a case in ``CASES``;  shared — one noise vector for all records;  scale — b.
    Returns: (:class:`privrob.mechanisms.functional_gradients.FirstStep`, batches, batches).
    """
    case = CASES[checks.choice("name", name, CASES)]
    theta = dyadic(rng.normal(0, 0.3, (case.num_inputs, case.num_neurons)), _COARSE)
    weights, output = (dyadic(rng.normal(size=(_HIDDEN, n)), _COARSE) for n in (case.num_neurons, 2))
    shape = (case.num_benign + case.num_adversarial, _RECORDS, case.num_inputs)
    here = dyadic(rng.uniform(-1, 1, shape), _COARSE)
    there = here.copy()
    there[0, 0] = dyadic(rng.uniform(-1, 1, case.num_inputs), _COARSE)
    return fg.FirstStep(theta, weights, output, scale, shared), here, there


def observed(name, step, batches, *, rng):
    """The gradient by θ₁: benign batches as they are, adversarial ones by FGSM with its own μ ~ U(0, 1] each.

    Args: step — the :class:`privrob.mechanisms.functional_gradients.FirstStep`;  batches — a list of (m, d).
    """
    inputs, noise = (dyadic(part, _FINE) for part in step.perturbed(np.concatenate(batches), rng=rng))
    total = 0.0
    for k, (part, own) in enumerate(zip(np.split(inputs, len(batches)), np.split(noise, len(batches)), strict=True)):
        if k >= CASES[name].num_benign:
            part, _ = step.fgsm(part, own, radius=float(rng.integers(1, _FINE + 1)) / _FINE)
        total = total + step.reconstruction(part, own)
    return total


def recognition(name, *, num_trials, shared, rng):
    """How often the rank of what is left says "D", if D is true and if its neighbour is.

    Paper: stobatch, Theorems 1, 2 and 4, Section 3.5.
    The rule: subtract D's part without noise; at most rank one is left for each batch. With shared noise that is so
    whenever D is true and each adversarial batch has one predicted label (its records then move alike), and has
    probability 0 if the neighbour is true.
    """
    counts = {"recognised": 0, "mistaken": 0}
    for _ in range(checks.integer("num_trials", num_trials, low=1)):
        step, here, there = neighbours(name, shared=shared, rng=rng)
        known = sum(step.without_noise(batch) for batch in here)
        for key, truth in (("recognised", here), ("mistaken", there)):
            counts[key] += fg.exact_rank(observed(name, step, truth, rng=rng) - known) <= len(here)
    return counts


def label_recognition(*, num_trials, rng):
    """The same for one changed label, from the gradient below the last layer.

    Paper: stobatch, Theorem 3.
    Returns: counts: ``at_zero``, told apart by equality when that layer starts at 0 and labels are balanced (no noise
        is left in D's gradient); ``recognised`` and ``mistaken`` by rank, from a random start.
    """
    one_hot, before, after = np.eye(2), [0, 1, 1, 0], [0, 1, 1, 1]
    counts = {"at_zero": 0, "recognised": 0, "mistaken": 0}
    for _ in range(checks.integer("num_trials", num_trials, low=1)):
        step, here, _ = neighbours("theorem_1", shared=True, rng=rng)
        inputs, noise = (dyadic(part, _FINE) for part in step.perturbed(here[0], rng=rng))
        hidden, clean = step.hidden(inputs, noise), here[0] @ step.theta
        zero = np.zeros_like(step.weights)
        fixed = fg.label_gradient(clean, one_hot[before], zero, step.output)
        seen = [fg.label_gradient(hidden, one_hot[labels], zero, step.output) for labels in (before, after)]
        counts["at_zero"] += np.array_equal(seen[0], fixed) and not np.array_equal(seen[1], fixed)
        known = fg.centred(fg.label_slopes(clean, one_hot[before], step.weights, step.output), clean)
        for key, labels in (("recognised", before), ("mistaken", after)):
            gradient = _RECORDS * fg.label_gradient(hidden, one_hot[labels], step.weights, step.output)
            counts[key] += fg.exact_rank(gradient - known) <= 1
    return counts


# ------------------------------------------------------------------------------------------- two records on a lattice


def log_mass(noise, *, scale):
    """Log probability of two-sided geometric noise, P(k) ∝ e^(−|k|/scale): Laplace noise on whole numbers."""
    return math.log(math.tanh(0.5 / checks.positive("scale", scale, finite=True))) - np.abs(noise) / scale


def two_outputs(first, second, *, shared, scale, reach=60):
    """Log probabilities of both perturbed records, over (2 reach + 1)² outcomes; −inf where impossible.

    Args: first, second — the records, whole numbers;  reach — outcomes from −reach to reach.
    Returns: shape (2 reach + 1, 2 reach + 1).
    """
    span = np.arange(-reach, reach + 1)
    one, two = span[:, None] - first, span[None, :] - second
    if shared:
        return np.where(one == two, log_mass(one, scale=scale), -np.inf)
    return log_mass(one, scale=scale) + log_mass(two, scale=scale)


def overlapping_sums(middle, *, scale, reach=60):
    """Log probabilities of x̄₁ + x̄₂ and x̄₂ + x̄₃, x₁ = x₃ = 0, each with its own noise: batches that share a record.

    Args: middle — x₂, a whole number;  reach — of the sums.
    """
    sums, span = np.arange(-reach // 2, reach // 2 + 1), np.arange(-2 * reach, 2 * reach + 1)
    outer = np.exp(log_mass(sums[:, None] - span, scale=scale))  # of a sum, given the middle record
    return np.log((outer * np.exp(log_mass(span - middle, scale=scale))) @ outer.T)


def largest_loss(here, there):
    """Largest log ratio over the outcomes that are possible here; infinite if one of them is impossible there."""
    possible = here > -np.inf
    return float(np.max(here[possible] - there[possible]))
