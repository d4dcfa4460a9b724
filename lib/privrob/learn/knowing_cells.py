"""Trainings under attack as cells of a sweep, with a count of whose gradients are trimmed."""

from __future__ import annotations

import numpy as np
import torch

from privrob.learn import cells, dpsgd
from privrob.learn.releases.trimming import shortest_first


def kept_by_length(norms, indices, *, num_trimmed):
    """Which gradients stay when the longest are left out, ties by the records' places; a Boolean tensor.

    Paper: ptr, Section 5 (TSUM_F).
    Args: num_trimmed — F;  norms — lengths to sort by, before clipping or after it, shape (m,);  indices — the records'
        places.
    """
    kept = torch.ones(len(norms), dtype=torch.bool)
    kept[shortest_first(norms, indices)[max(len(norms) - num_trimmed, 0) :]] = False
    return kept


class Watched(dpsgd.Training):
    """A training that also says, where its release trims, which share of whom stays.

    More columns of its rows, means over the steps: ``attackers_kept``, ``honest_kept``; the same if lengths were
    compared after clipping, ties by the records' places (``attackers_kept_clipped``, ``honest_kept_clipped``); and the
    first two over those steps alone whose test was passed (``attackers_kept_passed``, ``honest_kept_passed``);
    ``diverged``: whether a weight isn't finite.
    """

    def _step(self, indices):
        step = super()._step(indices)
        told = step.seen or {}
        if "num_trimmed" not in told or step.norms is None or len(step.norms) != len(indices):
            return step
        nobody = np.zeros(len(indices), dtype=bool)
        bad = nobody if self.corrupted is None else self.corrupted.cpu().numpy()[indices]
        passed = bool(told.get("passed", 1.0))
        shares = {}
        for name, lengths in (("", step.norms), ("_clipped", step.norms.clamp(max=self.release.clip_norm))):
            trimmed = kept_by_length(lengths, indices, num_trimmed=told["num_trimmed"]).numpy()
            kept = trimmed if passed else np.ones_like(trimmed)
            for group, mask in (("attackers", bad), ("honest", ~bad)):
                if count := np.count_nonzero(mask):
                    shares[f"{group}_kept{name}"] = np.count_nonzero(kept & mask) / count
                    if passed and not name:
                        shares[f"{group}_kept_passed"] = shares[f"{group}_kept"]
        return step._replace(seen=told | shares)

    def row(self):
        """That of any training, and ``diverged``."""
        file, self.file = self.file, None  # saved once, with it
        row = super().row()
        row["diverged"] = not all(bool(p.isfinite().all()) for p in self.parameters)
        self.file = file
        if file:
            self._save()
        return row


def train_cell(settings, *, streams, scratch=None):
    """As :func:`privrob.learn.cells.train_cell`, with the columns of :class:`Watched`.

    A training whose gradients stop being finite ends there, without an error: its last row, at the weights before,
    has ``diverged`` True, and so has a row whose weights are not finite.
    """
    return cells.trained(settings, streams=streams, scratch=scratch, training=Watched, read=_rows)


def _rows(training):
    rows = []
    try:
        for row in training.rows():
            rows.append(row)
    except FloatingPointError:
        training.file = None
        rows.append({**training.row(), "diverged": True})
    return rows


def train_cells(settings, *, streams):
    """Many trainings in one program; the rows are those of :func:`train_cell`, but for rounding."""
    return cells.train_cells(settings, streams=streams, training=Watched)


train_cell.data = cells.train_cell.data
train_cell.batch = train_cells
train_cell.batch_key = cells.together_key
train_cell.resumes = True
