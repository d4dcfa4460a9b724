"""What was seen of a training's steps: columns of its rows.

Source: ours.
"""

from __future__ import annotations

import numpy as np
import torch


class Seen:
    """What was seen of the batches since the last evaluation."""

    def __init__(self):
        self.sizes, self.losses, self.norms, self.clipped, self.told = [], [], [], [], {}

    def add(self, size, step):
        """Take note of a batch of ``size`` records and what its ``step``
        (:class:`privrob.learn.releases.clipping.Step`) saw.
        """
        self.sizes.append(size)
        for kept, new in ((self.losses, step.losses), (self.norms, step.norms), (self.clipped, step.clipped)):
            if new is not None:
                kept.append(new)
        for name, value in (step.seen or {}).items():
            self.told.setdefault(name, []).append(value)

    def summary(self):
        """Columns of a row: mean loss, gradient norms, batch sizes, what else was told; None where nothing was."""
        sizes = self.sizes or [0]
        losses = torch.cat(self.losses).double() if self.losses else None
        norms = torch.cat(self.norms) if self.norms else None
        return {
            "train_loss": None if losses is None else float(losses.mean()),
            "clipped_fraction": None if norms is None else float(torch.cat(self.clipped).double().mean()),
            **_norms_seen(norms),
            "batch_mean": sum(sizes) / len(sizes),
            "batch_min": min(sizes),
            "batch_max": max(sizes),
            "empty_steps": self.sizes.count(0),
            **{name: sum(values) / len(values) for name, values in self.told.items()},
        }


def _norms_seen(norms):
    """The middle, the outer deciles and the largest of the gradient norms."""
    names = ("grad_norm_10", "median_grad_norm", "grad_norm_90", "largest_grad_norm")
    values = (
        [None] * 4 if norms is None or not len(norms) else np.quantile(norms.numpy(), [0.1, 0.5, 0.9, 1.0]).tolist()
    )
    return dict(zip(names, values, strict=True))
