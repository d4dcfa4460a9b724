"""What clipping and noise do to a gradient: measured on records at hand, for a study. Nothing here is private."""

from __future__ import annotations

import math

import torch

from privrob import checks
from privrob.learn.batches import as_labels, channels_last
from privrob.learn.clip import PerExample, clip_weights

_AT_ONCE = 1000


def gradient_errors(model, images, labels, *, bounds, num_classes, noise_multiplier, expected_batch):
    r"""The two errors of a private mean gradient, for each clipping norm C.

    With the mean gradient g and the mean of the clipped ones :math:`\bar g_C`: the clipping error
    :math:`\lVert \bar g_C - g \rVert`, and the root mean square of the noise, :math:`\sigma C \sqrt d / m`.

    Paper: dplearn, Advanced topic ("gradient computation incurs error due to clipping and additive noise").
    Args: model — a module;  images, labels — records;  bounds — the C's;  noise_multiplier — σ;  expected_batch — m.
    Returns: one dict a bound: ``clip_norm``, ``gradient_norm`` (of g), ``clipping_error``, ``noise_error``, ``cosine``
        (of g and the clipped mean), ``clipped_fraction``.
    """
    bounds = [checks.positive("bounds", bound, finite=True) for bound in bounds]
    checks.nonnegative("noise_multiplier", noise_multiplier, finite=True)
    checks.positive("expected_batch", expected_batch)
    labels = as_labels("labels", labels, num_classes=num_classes, device=images.device)
    grads = PerExample(model)
    size = sum(p.numel() for p in grads.parameters)
    sums, clipped = torch.zeros(1 + len(bounds), size, dtype=torch.float64), [0] * len(bounds)
    for part, targets in zip(channels_last(images).split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        batch = grads(part, targets)
        rules = [torch.ones_like(batch.norms), *(clip_weights(batch.norms, bound) for bound in bounds)]
        for row, weights in zip(sums, rules, strict=True):
            row += torch.cat([p.flatten() for p in batch.weighted_sum(weights)]).cpu()
        clipped = [n + int((batch.norms > bound).sum()) for n, bound in zip(clipped, bounds, strict=True)]
    whole, *means = sums / len(images)
    return [
        {
            "clip_norm": bound,
            "gradient_norm": float(whole.norm()),
            "clipping_error": float((mean - whole).norm()),
            "noise_error": noise_multiplier * bound * math.sqrt(size) / expected_batch,
            "cosine": float(torch.nn.functional.cosine_similarity(mean, whole, 0)),
            "clipped_fraction": count / len(images),
        }
        for bound, mean, count in zip(bounds, means, clipped, strict=True)
    ]
