"""Robust rules without privacy: references for what robustness alone can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from privrob import checks
from privrob.learn.clip import clip_weights
from privrob.learn.releases.clipping import Clipping
from privrob.robust import aggregate

RULES = ("Average", "Median", "TrMean", "GeometricMedian", "Krum", "MultiKrum")
_MOST = {"TrMean": lambda m: (m - 1) // 2, "Krum": lambda m: (m - 3) // 2, "MultiKrum": lambda m: (m - 3) // 2}


@dataclass
class Robust(Clipping):
    """A rule of :mod:`privrob.robust.aggregate` on the drawn records' gradients, in place of their mean.

    Not private: the noise that its sensitivity asks for is unknown or useless (a median's coordinates may each move by
    2C), so that noise is refused, and the ledger gets a release without noise: ε is infinite.

    Every gradient of the batch is held at once, (drawn, parameters) in double precision: 256 of a model with 26,010
    parameters are 53 MB. The backward passes keep to ``physical_batch_size``.

    Paper: ptr, Section 5 (Attack Model: trimmed mean, coordinate-wise median, geometric median).
    Args: rule — one of :data:`RULES`;  attacker_rate — the share of attackers that ``TrMean``, ``Krum`` and
        ``MultiKrum`` reckon with, of the drawn batch (as many as the rule can bear, if that is less; in a batch too
        small for any, the mean);  rule_options — the rule's others.
    """

    by_norm: ClassVar[bool] = True
    private: ClassVar[bool] = False

    rule: str = "Median"
    attacker_rate: float = 0.2
    rule_options: dict | None = None

    def __post_init__(self):
        checks.choice("rule", self.rule, RULES)
        checks.probability("attacker_rate", self.attacker_rate)
        self._rule(100)  # its checks

    def _rule(self, count):
        """The rule for so many gradients."""
        most = _MOST.get(self.rule)
        if most is None:
            return aggregate.make(self.rule, self.rule_options)
        if most(count) < 0:
            return aggregate.Average()
        tolerated = min(round(self.attacker_rate * count), most(count))
        return aggregate.make(self.rule, {"f": tolerated, **(self.rule_options or {})})

    def noisy_mean(self, indices):
        parameters, seen, rows = self.per_example.parameters, ([], []), []
        for drawn in self._batches(indices):
            batch = self.per_example(*drawn)
            self._finite(batch.norms)
            gradients = batch.gradients()
            if self.settings.clips:
                gradients = gradients * clip_weights(batch.norms, self.clip_norm)[:, None].to(gradients.dtype)
            rows.append(gradients)
            seen[0].append(batch.losses)
            seen[1].append(batch.norms)
        if not rows:
            return self._step([torch.zeros_like(p) for p in parameters], seen)
        rows = torch.cat(rows)
        found = self.expected * torch.from_numpy(self._rule(len(rows))(rows.cpu().numpy())).to(rows)
        total = [part.view_as(p) for part, p in zip(found.split([p.numel() for p in parameters]), parameters)]
        return self._step(total, seen)
