"""Clipping and noise in a geometry that follows the gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from privrob import checks
from privrob.learn.releases.clipping import Clipping


@dataclass
class Preconditioned(Clipping):
    r"""Clipping and noise in a geometry learned from earlier releases (after Asi et al. 2021).

    A gradient is clipped so that :math:`\lVert g / s \rVert_2 \le C`, and coordinate j gets noise of standard deviation
    σ C s_j. With :math:`r_j^2` the mean square of the releases so far, less the noise's own,
    :math:`s_j \propto r_j^{2/3}` minimises the summed noise at a given clipping of a gradient of that shape (their
    C_j ∝ r_j^{-4/3}), scaled to mean square 1. Squares are averaged over a tensor, a row of it, or not at all: single
    coordinates drown in the noise.

    Paper: dplearn, Advanced topic (Adaptive selection of step-size and noise scale).
    Args: average — ``tensor``, ``row`` or ``entry``;  refresh — steps between new scales;  memory — of the mean square;
        floor — the least r², as a share of the mean one.
    """

    needs_bound: ClassVar[bool] = True
    bears_faults: ClassVar[bool] = False

    average: str = "tensor"
    refresh: int = 10
    memory: float = 0.95
    floor: float = 0.01

    def __post_init__(self):
        checks.choice("average", self.average, ("tensor", "row", "entry"))
        checks.integer("refresh", self.refresh, low=1)
        checks.probability("memory", self.memory, allow_one=False)
        checks.positive("floor", self.floor, finite=True)

    def begin(self, training):
        super().begin(training)
        self.squares = [torch.zeros_like(p) for p in self.per_example.parameters]
        self.scales = [torch.ones_like(p) for p in self.per_example.parameters]

    def noisy_mean(self, indices):
        total, seen = self._sum(indices, take=lambda *drawn: self.per_example(*drawn, scales=self.scales))
        stds = [self.sigma * self.clip_norm * s for s in self.scales]
        self._add_noise(total, stds)
        step = self._step(total, seen)
        if self.expected:
            for square, mean, std in zip(self.squares, step.gradient, stds, strict=True):
                square.mul_(self.memory).add_(mean.square() - (std / self.expected).square(), alpha=1 - self.memory)
        if (self.training.step + 1) % self.refresh == 0:
            self._rescale()
        return step

    def _rescale(self):
        roots = [self._averaged(square) for square in self.squares]
        count = sum(r.numel() for r in roots)
        mean = sum(float(r.clamp(min=0).sum()) for r in roots) / count
        if mean > 0:
            scales = [r.clamp(min=self.floor * mean).pow(1 / 3) for r in roots]
            unit = math.sqrt(sum(float(s.square().sum()) for s in scales) / count)
            self.scales = [s / unit for s in scales]

    def _averaged(self, square):
        if self.average == "entry":
            return square
        axes = tuple(range(0 if self.average == "tensor" else 1, square.ndim))
        return square.mean(axes, keepdim=True).expand_as(square) if axes else square

    def state(self):
        return {"squares": [s.cpu() for s in self.squares], "scales": [s.cpu().clone() for s in self.scales]}

    def restore(self, state):
        self.squares = [s.to(self.device) for s in state["squares"]]
        self.scales = [s.to(self.device) for s in state["scales"]]
