"""Records on their way into a step: labels checked, images in the fast order, Poisson samples."""

from __future__ import annotations

import numpy as np
import torch


def as_labels(name, labels, *, num_classes, device="cpu"):
    """Class numbers as int64 (``name`` them in errors), from a tensor, an array or a list of any integer type; anything
    else is refused.
    """
    labels = labels if isinstance(labels, torch.Tensor) else _tensor(name, labels)
    if labels.numel() and (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool):
        raise TypeError(
            f"{name} must be whole numbers of an integer type, got dtype {labels.dtype}; convert with .long()"
        )
    if labels.ndim != 1:
        raise ValueError(f"{name} must have 1 dimension, got shape {tuple(labels.shape)}")
    labels = labels.to(device=device, dtype=torch.int64)
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        wrong = labels[(labels < 0) | (labels >= num_classes)][0]
        raise ValueError(f"{name} must lie in [0, {num_classes - 1}], got {int(wrong)}")
    return labels


def _tensor(name, labels):
    """An array or a list of numbers as a tensor; torch alone takes neither reversed views nor another byte order."""
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise ValueError(f"{name} must have 1 dimension, got {error}") from error
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{name} must be whole numbers of an integer type, got dtype {array.dtype}")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def poisson_batch(rng, *, num_records, sample_rate):
    """Indices of a Poisson sample: a Binomial(n, q) count, then so many records without replacement.

    Paper: dplearn, Amplification by Sub-sampling ("includes each record independently with probability q").
    """
    count = rng.binomial(num_records, sample_rate)
    if count == num_records:
        return np.arange(num_records)
    return rng.choice(num_records, count, replace=False, shuffle=False)


def channels_last(images):
    """Images in channels_last order: several times faster on a CPU, also for one channel, where torch can't tell."""
    images = images.contiguous(memory_format=torch.channels_last)
    n, c, h, w = images.shape
    return images.as_strided((n, c, h, w), (h * w * c, 1, w * c, c)) if c == 1 else images


def gathered(images, chosen):
    """The images at ``chosen``, whole numbers (m,), in channels_last order; row by row of memory where that works."""
    ordered = images.permute(0, 2, 3, 1) if isinstance(images, torch.Tensor) else None  # or made as they are taken
    if ordered is None or not ordered.is_contiguous():
        return channels_last(images[chosen])
    return ordered.flatten(1).index_select(0, chosen).view(-1, *ordered.shape[1:]).permute(0, 3, 1, 2)


def as_records(name, images, labels, num_classes, device):
    """Images and labels of one kind (``train``, say), checked, on the device, images in the fast order.

    Args: name — ``{name}_images`` and ``{name}_labels`` in errors;  images — float (n, channels, height, width).
    """
    if not isinstance(images, torch.Tensor) or images.dtype not in (torch.float32, torch.float64) or images.ndim != 4:
        kind = (
            f"{images.dtype}, shape {tuple(images.shape)}"
            if isinstance(images, torch.Tensor)
            else type(images).__name__
        )
        raise TypeError(f"{name}_images must be a float tensor (n, channels, height, width), got {kind}")
    if 0 in images.shape[1:]:
        raise ValueError(f"{name}_images must have channels and pixels, got shape {tuple(images.shape)}")
    if not (torch.isfinite(images.sum()) or torch.isfinite(images).all()):  # one pass, unless the sum overflows
        raise ValueError(f"{name}_images must be finite, got NaN or infinity among them")
    labels = as_labels(f"{name}_labels", labels, num_classes=num_classes, device=device)
    if len(images) != len(labels):
        raise ValueError(f"{name}_labels must be as many as {name}_images, got {len(labels)} for {len(images)}")
    return channels_last(images.to(device)), labels
