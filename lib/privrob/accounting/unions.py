r"""Dominating pairs made of others: one chosen by a public coin, and one that dominates several at once.

A hockey-stick profile is :math:`H(\gamma) = P(L > \log\gamma) - \gamma\, Q(L > \log\gamma)`, convex in γ, with slope
:math:`-Q(L > \log\gamma)`: masses above a loss and the profile tell the same.

Source: ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privrob import checks
from privrob.accounting.dominating import Pair
from privrob.accounting.logspace import log_diff_exp


def _parts(parts):
    parts = tuple(parts)
    if not parts or not all(isinstance(part, Pair) for part in parts):
        raise ValueError("parts must be at least one Pair, and nothing else")
    return parts


class _Union(Pair):
    """What both unions do part by part."""

    def _like(self, parts):
        raise NotImplementedError

    def reversed(self):
        return self._like(part.reversed() for part in self.parts)

    def _sampled(self, rate):
        return self._like(part.sampled(rate, neighbouring="remove") for part in self.parts)

    def bracket(self, tail):
        brackets = [part.bracket(tail) for part in self.parts]
        if all(over is part for part, (over, _) in zip(self.parts, brackets)):
            return self, self
        return tuple(self._like(side) for side in zip(*brackets))

    @cached_property
    def extent(self):
        return min(part.extent[0] for part in self.parts), max(part.extent[1] for part in self.parts)


@dataclass(frozen=True)
class Labelled(_Union):
    """One of several pairs, chosen by a public coin that is the same on both sides: P = ∪ wᵢ Pᵢ, Q = ∪ wᵢ Qᵢ.

    Args: weights — probabilities of the labels, of sum 1;  parts — a pair for each.
    """

    weights: tuple
    parts: tuple

    def __post_init__(self):
        weights = checks.array("weights", self.weights, ndim=1)
        object.__setattr__(self, "parts", _parts(self.parts))
        if weights.size != len(self.parts) or not (weights >= 0).all() or abs(weights.sum() - 1) > 1e-12:
            raise ValueError(f"weights must be at least 0, of sum 1, one for each part, got weights={self.weights!r}")

    def _like(self, parts):
        return Labelled(self.weights, tuple(parts))

    def cells(self, edges):
        with np.errstate(divide="ignore"):
            logs = np.log(np.asarray(self.weights, dtype=np.float64))
        cells = [part.cells(edges) for part in self.parts]
        return [np.logaddexp.reduce([log + cell[i] for log, cell in zip(logs, cells)], axis=0) for i in range(2)]

    @cached_property
    def total_variation(self):
        return min(1.0, sum(w * part.total_variation for w, part in zip(self.weights, self.parts)))

    @cached_property
    def infinite(self):
        return tuple(min(1.0, sum(w * p.infinite[i] for w, p in zip(self.weights, self.parts))) for i in range(2))


@dataclass(frozen=True)
class Envelope(_Union):
    r"""The least pair that dominates several: :math:`H(\gamma) = \max_i H_i(\gamma)`, convex as each of them is.

    It serves a mechanism whose worst neighbours depend on ε: some have the larger profile here, some there. (A profile
    that is convex and lies between :math:`(1 - \gamma)_+` and 1 belongs to a pair: Zhu, Dong and Wang 2022,
    Proposition 8.) Sampling and reversal map profiles pointwise and in order, so that they pass to the parts. Under
    composition it still dominates, though no single history of neighbours need attain it.

    Cells are differences of masses above their ends, each taken from the part that is the largest there. Where one
    part leads at both ends of a cell, what another may add in between is left out; the connect-the-dots rule, which
    only looks at the ends, still gives an upper end.
    """

    parts: tuple

    def __post_init__(self):
        object.__setattr__(self, "parts", _parts(self.parts))

    def _like(self, parts):
        return Envelope(tuple(parts))

    def cells(self, edges):
        edges = np.asarray(edges, dtype=np.float64)
        cells = [part.cells(edges) for part in self.parts]
        above = [[np.logaddexp.accumulate(logs[:0:-1])[::-1] for logs in cell] for cell in cells]
        below = [[np.logaddexp.accumulate(logs[:-1]) for logs in cell] for cell in cells]
        with np.errstate(invalid="ignore", over="ignore"):
            profiles = [
                # of a loss below 0, H − (1 − γ), which has its digits there
                np.where(edges >= 0, _log_excess(p, edges + q), _log_excess(edges + lower_q, lower_p))
                for (p, q), (lower_p, lower_q) in zip(above, below)
            ]
        leads = np.argmax(profiles, axis=0)
        results = []
        for i in range(2):
            stacked = np.array([cell[i] for cell in cells])
            inner = stacked[leads, np.arange(1, edges.size + 1)]  # the cell above each edge, of the part that leads
            turns = np.flatnonzero(leads[1:] != leads[:-1])
            ends = np.array([masses[i] for masses in above])
            lower, upper = ends[leads[turns], turns], ends[leads[turns + 1], turns + 1]
            inner[turns] = log_diff_exp(lower, np.minimum(upper, lower))
            results.append(np.concatenate([[stacked[leads[0], 0]], inner]))
        return results

    @cached_property
    def total_variation(self):
        return max(part.total_variation for part in self.parts)

    @cached_property
    def infinite(self):
        return tuple(max(part.infinite[i] for part in self.parts) for i in range(2))


def _log_excess(larger, smaller):
    """log(e^a − e^b), −inf where rounding or an infinite end leaves nothing."""
    smaller = np.where(np.isnan(smaller), -math.inf, smaller)
    return log_diff_exp(larger, np.minimum(smaller, larger))
