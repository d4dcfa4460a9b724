"""Corrections to a noisy snapshot of the whole gradient."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from privrob import checks
from privrob.learn.batches import poisson_batch
from privrob.learn.clip import PerExample
from privrob.learn.releases.clipping import Clipping
from privrob.mechanisms.sampled import gaussian_step


@dataclass
class VarianceReduced(Clipping):
    r"""Noisy snapshots of the whole gradient, and steps that correct them (after DP-SVRG, Wang et al. 2017).

    Every so many steps the clipped gradients of all records at the weights :math:`\tilde\theta` of that moment are
    released as a noisy mean; a step then clips the *differences*
    :math:`\nabla\ell_i(\theta) - \nabla\ell_i(\tilde\theta)` to a smaller norm D, with noise σD, and adds the snapshot.
    Snapshots are entered in the ledger too.

    Paper: dplearn, Advanced topic (history of noisy gradients for variance reduction).
    Args: every — steps between snapshots;  difference_norm — D as a share of C;  snapshot_noise — noise multiplier of a
        snapshot, in units of σ;  snapshot_rate — its Poisson sample, 1 for all records.
    """

    needs_bound: ClassVar[bool] = True
    bears_faults: ClassVar[bool] = False

    every: int = 50
    difference_norm: float = 0.5
    snapshot_noise: float = 10.0
    snapshot_rate: float = 1.0

    def __post_init__(self):
        checks.integer("every", self.every, low=1)
        checks.real("difference_norm", self.difference_norm, low=1e-9, high=1e9)
        checks.positive("snapshot_noise", self.snapshot_noise, finite=True)
        checks.real("snapshot_rate", self.snapshot_rate, low=1e-6, high=1.0)

    def history(self, settings):
        at = {"sample_rate": self.snapshot_rate}
        counts = {}
        for step in range(0, settings.num_steps, self.every):
            sigma = settings.noise_multiplier_at(step)
            counts[sigma] = counts.get(sigma, 0) + 1
        snapshots = ((gaussian_step(noise_multiplier=self.snapshot_noise * s, **at), n) for s, n in counts.items())
        return (*super().history(settings), *snapshots)

    def begin(self, training):
        super().begin(training)
        self.model = copy.deepcopy(training.model)
        self.before, self.mean = PerExample(self.model), None

    def noisy_mean(self, indices):
        if self.training.step % self.every == 0:
            self._snapshot()
        bound = self.difference_norm * self.clip_norm
        total, seen = self._sum(
            indices, take=lambda *drawn: self.per_example.difference(self.before, *drawn), bound=bound
        )
        self._add_noise(total, self.sigma * bound)
        step = self._step(total, seen, bound)
        for part, mean in zip(step.gradient, self.mean, strict=True):
            part += mean
        return step

    def _snapshot(self):
        self.model.load_state_dict(self.training.model.state_dict())
        records = len(self.training.images)
        indices = poisson_batch(self.training.batches, num_records=records, sample_rate=self.snapshot_rate)
        total, _ = self._sum(indices)
        self._add_noise(total, self.snapshot_noise * self.sigma * self.clip_norm)
        self.mean = [part / (self.snapshot_rate * records) for part in total]

    def state(self):
        kept = {name: value.cpu() for name, value in self.model.state_dict().items()}
        return {"model": kept, "mean": self.mean and [m.cpu() for m in self.mean]}

    def restore(self, state):
        self.model.load_state_dict(state["model"])
        self.mean = state["mean"] and [m.to(self.device) for m in state["mean"]]
