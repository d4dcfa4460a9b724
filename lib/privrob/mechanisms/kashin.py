r"""Kashin representations: a vector spread over a few more coordinates, none of which is large.

The frame is a tight one: d random rows of an orthonormal cosine transform of length D, with random signs on both sides,
so that :math:`U U^\top = I` and both products take D log D. Of all :math:`y` with :math:`U y = x` the least-squares
one, :math:`U^\top x`, is largest by about :math:`\sqrt{2 \log D / D}\,\|x\|`; Lyubarskii and Vershynin's iteration
truncates, represents what is left, and loses the logarithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.fft import dct, idct

from privrob import checks
from privrob.kinds import Streams


@dataclass(frozen=True)
class Kashin:
    """A tight frame of D vectors in d dimensions.

    Paper: fdp, Remark 12.
    Printed: y in [−γ₀/√d, γ₀/√d].   Used: the same times ‖x‖₂. It serves accuracy; for privacy under an l2 clip it is
    not needed (:func:`privrob.accounting.fdp_vectors.l2_mu`), and it multiplies μ by γ₀ √(D/d).
    Args: dimension — d;  frame_size — D > d;  seed — of rows and signs.
    """

    dimension: int
    frame_size: int
    seed: int = 0

    def __post_init__(self):
        low = checks.integer("dimension", self.dimension, low=1)
        checks.integer("frame_size", self.frame_size, low=low + 1, hint="a frame has more vectors than dimensions")
        checks.seed("seed", self.seed)

    @cached_property
    def _frame(self):
        """The chosen rows, and the signs on either side."""
        rng = Streams(self.seed, "kashin").numpy("frame")
        rows = rng.permutation(self.frame_size)[: self.dimension]
        return rows, rng.choice([-1.0, 1.0], self.dimension), rng.choice([-1.0, 1.0], self.frame_size)

    def recover(self, spread):
        """U y. Args: spread — y, shape (…, D)."""
        rows, outer, inner = self._frame
        return outer * dct(_ending("spread", spread, self.frame_size) * inner, norm="ortho", axis=-1)[..., rows]

    def analyse(self, vector):
        """Uᵀx, the least-squares representation. Args: vector — x, shape (…, d)."""
        rows, outer, inner = self._frame
        x = _ending("vector", vector, self.dimension)
        full = np.zeros((*x.shape[:-1], self.frame_size))
        full[..., rows] = outer * x
        return inner * idct(full, norm="ortho", axis=-1)

    def represent(self, vector, *, truncation=1.0, num_rounds=60):
        """y with U y = x, to rounding, and small coordinates.

        Args: vector — x, shape (…, d);  truncation — of a round, in units of ‖residual‖/√D;  num_rounds — of truncation
        before the rest is represented by least squares.
        """
        checks.positive("truncation", truncation, finite=True)
        rest = _ending("vector", vector, self.dimension).copy()
        spread = np.zeros((*rest.shape[:-1], self.frame_size))
        for _ in range(checks.integer("num_rounds", num_rounds, low=0)):
            level = truncation * np.linalg.norm(rest, axis=-1, keepdims=True) / math.sqrt(self.frame_size)
            step = np.clip(self.analyse(rest), -level, level)
            spread += step
            rest -= self.recover(step)
        return spread + self.analyse(rest)

    def level(self, spread, vector):
        """γ₀ as measured: the largest coordinate in units of ‖x‖/√d, shape (…).

        Args: spread — from :meth:`spread`, (…, D);  vector — what it spreads, (…, d).
        """
        norms = np.linalg.norm(checks.array("vector", vector), axis=-1)
        largest = np.abs(checks.array("spread", spread)).max(axis=-1)
        with np.errstate(invalid="ignore"):
            return np.where(norms > 0, largest * math.sqrt(self.dimension) / np.where(norms > 0, norms, 1.0), 0.0)[()]


def _ending(name, value, size):
    """An array whose last axis has so many numbers: one would spread over all of them."""
    array = checks.array(name, value)
    if array.shape[-1:] != (size,):
        raise ValueError(f"{name} must have {size} numbers along the last axis, got shape {array.shape}")
    return array
