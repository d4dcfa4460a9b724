r"""Regularised logistic regression by noisy gradient descent, under the conditions that hidden-state bounds ask for.

The mean loss over n records with features of norm at most 1 is

.. math:: \frac1n \sum_i \ell(W x_i, y_i) + \frac{\lambda}{2}\|W\|^2

with the softmax cross-entropy ℓ: λ-strongly convex, (1/2 + λ)-smooth (the softmax's Hessian is at most 1/2), and each
record's gradient has norm at most √2 (of p − y). Nothing is clipped, so these hold as they stand.

Source: ours; the conditions are those of :mod:`privrob.accounting.hidden_state`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch.nn import functional

from privrob import checks
from privrob.accounting import hidden_state
from privrob.learn import datasets
from privrob.learn.datasets.recent import recent

LIPSCHITZ = math.sqrt(2)  # of a record's loss: |p − y| is at most √2, |x| at most 1
CURVATURE = 0.5  # of a record's loss: largest eigenvalue of diag(p) − p pᵀ, times |x|²


@dataclass(frozen=True)
class LogisticSettings:
    """One full-batch training.

    Args: strong_convexity — λ, above 0 (or 0 with a finite diameter);  step_size — η, at most 2/(1/2 + λ);
        noise_std — s, of the noise on each coordinate of the mean gradient;  num_steps — K;
        diameter — of the ball around 0 that W is projected on, infinity for none;
        evaluate_every — steps between evaluations (the last step is always one).
    """

    strong_convexity: float
    step_size: float
    noise_std: float
    num_steps: int
    diameter: float = math.inf
    evaluate_every: int = 50

    def __post_init__(self):
        checks.integer("num_steps", self.num_steps, low=0)
        checks.integer("evaluate_every", self.evaluate_every, low=1)
        checks.nonnegative("noise_std", self.noise_std, finite=True)
        checks.positive("diameter", self.diameter, hint="pass math.inf for an unbounded domain")
        checks.nonnegative("strong_convexity", self.strong_convexity, finite=True)
        smoothness = CURVATURE + self.strong_convexity
        checks.real("step_size", self.step_size, low=0.0, open_low=True, high=2 / smoothness, hint="2 / smoothness")

    def descent(self, num_records, *, neighbouring):
        """The same run as the accountant sees it; its conditions are checked there."""
        return hidden_state.NoisyDescent(
            step_size=self.step_size,
            l2_sensitivity=hidden_state.sensitivity(LIPSCHITZ, denominator=num_records, neighbouring=neighbouring),
            noise_std=self.noise_std,
            smoothness=CURVATURE + self.strong_convexity,
            strong_convexity=self.strong_convexity,
            diameter=self.diameter,
            num_batches=1,
            neighbouring=neighbouring,
        )


def features(images):
    """Flat images with a constant entry, scaled down to norm at most 1: each from its own record alone. (n, d + 1)."""
    flat = images.flatten(1)
    flat = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1)
    return flat / flat.norm(dim=1, keepdim=True).clamp(min=1.0)


def mean_gradient(weights, inputs, labels):
    """Gradient of the mean cross-entropy, without the regulariser, shape (d, classes).

    Args: weights — (d, classes);  inputs — (n, d).
    """
    errors = torch.softmax(functional.linear(inputs, weights.T.contiguous()), dim=1)
    errors[torch.arange(len(labels), device=labels.device), labels] -= 1.0
    return (errors.T @ inputs).T / len(inputs)  # this way round: the other takes twenty times as long on a CPU


def train(settings, inputs, labels, test_inputs, test_labels, *, num_classes, streams):
    """Train from W = 0; yields one row at each evaluation.

    Args: settings — :class:`LogisticSettings`;  inputs, test_inputs — (n, d), norms at most 1;  labels, test_labels —
        integers (n,);  streams — :class:`privrob.kinds.Streams`, of which ``noise`` is used.
    Yields: dicts ``step``, ``train_loss`` (with the regulariser), ``test_accuracy``, ``weight_norm``.
    """
    longest = float(inputs.norm(dim=1).max()) if len(inputs) else 0.0
    if not 0 < longest <= 1 + 1e-5:
        raise ValueError(f"inputs must have norms of at most 1, and not all 0, got {longest:g}; use features()")
    weights = torch.zeros(inputs.shape[1], num_classes, dtype=inputs.dtype, device=inputs.device)
    noise = streams.torch("noise", inputs.device)
    for step in range(settings.num_steps + 1):
        if step % settings.evaluate_every == 0 or step == settings.num_steps:
            scores = torch.log_softmax(inputs @ weights, dim=1)
            loss = (
                -scores[torch.arange(len(labels)), labels].mean() + settings.strong_convexity / 2 * weights.norm() ** 2
            )
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the loss must stay finite, got {float(loss)} by step {step} with "
                    f"step_size={settings.step_size!r}, noise_std={settings.noise_std!r}; pass a smaller noise_std or "
                    "step_size"
                )
            right = (test_inputs @ weights).argmax(1) == test_labels
            yield {
                "step": step,
                "train_loss": float(loss),
                "test_accuracy": float(right.double().mean()) if len(right) else None,
                "weight_norm": float(weights.norm()),
            }
        if step == settings.num_steps:
            return
        gradient = mean_gradient(weights, inputs, labels) + settings.strong_convexity * weights
        if settings.noise_std:
            gradient += settings.noise_std * torch.randn(
                weights.shape, generator=noise, dtype=weights.dtype, device=weights.device
            )
        weights = weights - settings.step_size * gradient
        norm = float(weights.norm())
        if norm > settings.diameter / 2:
            weights = weights * (settings.diameter / 2 / norm)


_DATA = ("num_records", "num_test", "allow_stand_in", "shape")


def train_cell(settings, *, streams):
    """One training as a cell of a sweep.

    Args: settings — ``dataset``, and of :func:`privrob.learn.datasets.load` ``num_records``, ``num_test``,
        ``allow_stand_in``, ``shape``; ``seed`` (tells repetitions apart); ``device``; the rest as in
        :class:`LogisticSettings`.
    Returns: the rows of :func:`train`, each with ``data`` and ``num_records``.
    """
    for name in settings:
        allowed = ["dataset", "seed", "device", *_DATA, *(f.name for f in fields(LogisticSettings))]
        checks.choice("settings", name, allowed)
    ready = LogisticSettings(**{f.name: settings[f.name] for f in fields(LogisticSettings) if f.name in settings})
    device = settings.get("device", "cpu")
    data, tensors = recent(settings["dataset"], _arguments(settings), normalise="unit", device=device)
    inputs, test_inputs = features(tensors.train_images), features(tensors.test_images)
    rows = train(
        ready,
        inputs,
        tensors.train_labels,
        test_inputs,
        tensors.test_labels,
        num_classes=data.num_classes,
        streams=streams,
    )
    seen = {"data": data.provenance.label, "num_records": len(inputs)}
    return [{**row, **seen} for row in rows]


def _arguments(settings):
    return {name: settings[name] for name in _DATA if settings.get(name) is not None}


def _fingerprint(settings):
    return {settings["dataset"]: datasets.fingerprint(settings["dataset"], **_arguments(settings))}


train_cell.data = _fingerprint
