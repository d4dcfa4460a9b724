"""Gradients in the span of public gradients: projected after the noise, or embedded before it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from privrob import checks
from privrob.learn.batches import channels_last
from privrob.learn.clip import clip_weights
from privrob.learn.releases.clipping import Clipping

_NEGLIGIBLE = 1e-6  # of the largest eigenvalue: directions below are rounding


@dataclass
class Projected(Clipping):
    """The noisy mean is projected on the span of public gradients (PDP-SGD, Zhou et al. 2021).

    Clipping and noise are the slide's; most of the noise falls outside the span and is thrown away, and with it what of
    the gradient lies there. Needs public records (``public_images`` of the training).

    Paper: dplearn, Advanced topic (Project noisy gradient to a lower-dimensional space).
    Args: rank — of the span;  refresh — steps between new spans.
    """

    needs_bound: ClassVar[bool] = True
    bears_faults: ClassVar[bool] = False

    rank: int = 50
    refresh: int = 10

    def __post_init__(self):
        checks.integer("rank", self.rank, low=1)
        checks.integer("refresh", self.refresh, low=1)

    def begin(self, training):
        super().begin(training)
        if training.public_images is None or len(training.public_images) == 0:
            raise ValueError(
                "public_images must be given for the releases 'projected' and 'embedded', got none; pass num_public "
                "or public_dataset"
            )
        self.basis = None

    def _refresh(self):
        if self.basis is None or self.training.step % self.refresh == 0:
            images, labels = channels_last(self.training.public_images), self.training.public_labels
            self.basis = principal_rows(self.per_example(images, labels).gradients(), self.rank)

    def noisy_mean(self, indices):
        self._refresh()
        step = super().noisy_mean(indices)
        flat = torch.cat([g.flatten() for g in step.gradient])
        return step._replace(gradient=cut((flat @ self.basis.t()) @ self.basis, step.gradient))

    def state(self):
        return {"basis": None if self.basis is None else self.basis.cpu()}

    def restore(self, state):
        self.basis = None if state["basis"] is None else state["basis"].to(self.device)


@dataclass
class Embedded(Projected):
    r"""Gradients are split into an embedding and a residual, each clipped and noised (GEP, Yu et al. 2021).

    With V orthonormal from public gradients, :math:`w_i = V g_i` is clipped to C, :math:`g_i - V^T w_i` to the smaller
    R, and the noises have standard deviations √2·σC and √2·σR: together as private as one release at σ. The embedding
    has few coordinates, so its noise is small in total.

    Paper: dplearn, Advanced topic (add smaller amount of noise in a lower-dimensional space).
    Args: residual_norm — R as a share of C; 0 drops the residual, and with it half of the privacy that it would spend.
    """

    residual_norm: float = 0.2

    def __post_init__(self):
        super().__post_init__()
        checks.nonnegative("residual_norm", self.residual_norm, finite=True)

    def noisy_mean(self, indices):
        self._refresh()
        directions = cut_rows(self.basis, self.per_example.parameters)
        bound = self.residual_norm * self.clip_norm
        embedding = torch.zeros(len(self.basis), dtype=self.basis.dtype, device=self.device)
        within, residual, seen = embedding.clone(), [torch.zeros_like(p) for p in self.per_example.parameters], ([], [])
        for images, labels in self._batches(indices):
            batch = self.per_example(images, labels)
            self._finite(batch.norms)
            inner = batch.inner_products(directions)
            norms = inner.double().norm(dim=1)
            embedding += clip_weights(norms, self.clip_norm).to(inner.dtype) @ inner
            if bound:  # what rounding may hide of the residual is added: its norm never comes out too small
                rest = (batch.norms.square() * (1 + 1e-5) - norms.square()).clamp(min=0).sqrt()
                weights = clip_weights(rest, bound)
                within += weights.to(inner.dtype) @ inner
                for sum_, part in zip(residual, batch.weighted_sum(weights)):
                    sum_ += part
            seen[0].append(batch.losses)
            seen[1].append(norms)
        share = math.sqrt(2) if bound else 1.0
        self._add_noise([embedding], share * self.sigma * self.clip_norm)
        total = cut(embedding @ self.basis, residual)
        if bound:
            for part, outside in zip(residual, cut(within @ self.basis, residual)):
                part -= outside
            self._add_noise(residual, share * self.sigma * bound)
            total = [a + b for a, b in zip(total, residual)]
        return self._step(total, seen)


def principal_rows(gradients, rank):
    """The top principal directions of gradients (m, d), not centred; at most ``rank`` of them, as orthonormal rows.

    From the m × m Gram matrix, in float64: m is small, d large.
    """
    wide = gradients.double()
    values, vectors = torch.linalg.eigh(wide @ wide.t())
    kept = (values > _NEGLIGIBLE * values[-1].clamp(min=torch.finfo(torch.float64).tiny)).nonzero().flatten()[-rank:]
    spanned = vectors[:, kept].t() @ wide
    return torch.linalg.qr(spanned.t()).Q.t().to(gradients.dtype).contiguous()


def cut(flat, like):
    """A flat vector as tensors of the shapes of ``like``, in order."""
    return [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in like]), like, strict=True)]


def cut_rows(rows, like):
    """Rows (k, d) as one tensor (k, *shape) for each parameter.

    Args: rows — (k, d);  like — the parameters.
    """
    parts = rows.split([p.numel() for p in like], dim=1)
    return [part.reshape(len(rows), *p.shape) for part, p in zip(parts, like, strict=True)]
