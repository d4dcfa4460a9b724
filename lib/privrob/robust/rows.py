r"""Records clipped to a region of bounded diameter, and the sums over them that filtering needs, block by block.

One GEMM a filter step: scores are ‖Lᵀ(x − c)‖² with U = LLᵀ; everything else follows from (m, Σx, Σxxᵀ). Data may be
float32 (sums are taken in float64, about the region's centre: in float32 one record could move them by many times what
it weighs), a memory map (any n), or a torch tensor on any device.

A ``block`` is some of the rows, (b, d), about the centre.

Source: ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks

_BLOCK = 2**15
_CACHED = 2**16  # numbers at a time that stay in a cache
_KEEP_BELOW = 2**31  # bytes: larger data is clipped anew at each pass, not copied


@dataclass(frozen=True, eq=False)
class Cube:
    """x̄ + [−B/2, B/2]^d. Args: centre — shape (d,);  box_side — B, the *width*: the printed sensitivities B²d/n hold
    for this reading only (with ±B they are 4 times too small)."""

    centre: np.ndarray
    box_side: float

    @property
    def diameter(self):
        """B√d."""
        return self.box_side * math.sqrt(len(self.centre))

    def clip(self, block):
        """Rows about the centre, clipped coordinate by coordinate (the projection onto a cube)."""
        half = self.box_side / 2
        return block.clip(-half, half)

    def nearest(self, point):
        """The projection of a point (d,)."""
        return self.centre + self.clip(np.asarray(point, dtype=np.float64) - self.centre)


@dataclass(frozen=True, eq=False)
class Ball:
    """{x : ‖x − x̄‖ ≤ r}. Args: centre — shape (d,);  radius — r."""

    centre: np.ndarray
    radius: float

    @property
    def diameter(self):
        """2r."""
        return 2 * self.radius

    def clip(self, block):
        """Rows about the centre, the long ones shortened."""
        norms = ((block * block).sum(-1) ** 0.5).clip(self.radius, None)
        return block * (self.radius / norms)[..., None]

    def nearest(self, point):
        """The projection of a point (d,)."""
        return self.centre + self.clip(np.asarray(point, dtype=np.float64) - self.centre)


@dataclass(frozen=True, eq=False)
class Everywhere:
    """No clipping but at 1e60 (1e15 in float32), where squares overflow: for estimators without privacy.

    Args: centre — shape (d,)."""

    centre: np.ndarray

    @property
    def diameter(self):
        """Infinite."""
        return math.inf

    def clip(self, block):
        """Rows about the centre."""
        limit = 1e15 if "32" in str(block.dtype) else 1e60
        return block.clip(-limit, limit)

    def nearest(self, point):
        """The point itself."""
        return np.asarray(point, dtype=np.float64)


def _parts(num_rows, block):
    return [slice(a, min(a + block, num_rows)) for a in range(0, num_rows, block)]


def is_torch(data):
    """Whether data is a torch tensor, torch itself not imported."""
    return type(data).__module__.partition(".")[0] == "torch"


class Rows:
    """The records of ``data`` (n, d) in a region, about its centre; a row that isn't finite counts as the centre.

    A row's clipped value depends on that row alone. Args: data — array, memory map or torch tensor, float32 or float64;
    region — :class:`Cube` or :class:`Ball`;  block — rows at a time;  keep — hold the clipped rows (data's own size
    once more) or clip at every pass; None: hold them below 2 GB.
    """

    def __init__(self, data, region, *, block=_BLOCK, keep=None):
        self.data, self.region, self.block = data, region, checks.integer("block", block, low=1)
        self.torch = is_torch(data)
        self.n, self.d = data.shape
        self._few = self.block if self.torch else min(self.block, max(2**10, _CACHED // max(1, self.d)))
        size = self.n * self.d * 8
        keep = size <= _KEEP_BELOW if keep is None else keep
        self._kept, self._centre = None, self._like(region.centre)
        if keep:
            self._kept = self._empty()
            for part in _parts(self.n, self._few):
                self._kept[part] = self._clipped(part)

    def _like(self, array):
        """An array as the data is: its device and precision."""
        if self.torch:
            import torch

            return torch.as_tensor(np.asarray(array), dtype=self.data.dtype, device=self.data.device)
        kind = self.data.dtype if self.data.dtype in (np.float32, np.float64) else np.float64
        return np.asarray(array, dtype=kind)

    def _empty(self):
        if self.torch:
            return self.data.new_empty(self.data.shape)
        return np.empty((self.n, self.d), dtype=self._centre.dtype)

    def _clipped(self, part):
        block = self.data[part] if self.torch else np.asarray(self.data[part], dtype=self._centre.dtype)
        block = block - self._centre
        with np.errstate(invalid="ignore", over="ignore"):
            total = block.sum()
            if not bool(total - total == 0):  # a NaN, an infinity, or an overflow: look closer
                finite = (block - block == 0).all(-1)
                block[~finite] = 0.0
        return self.region.clip(block)

    def _rows(self, part):
        return self._kept[part] if self._kept is not None else self._clipped(part)

    @staticmethod
    def _numpy(array):
        return array.detach().cpu().numpy() if hasattr(array, "detach") else array

    def take(self, places):
        """The clipped rows at these places, about the centre: float64, shape (k, d)."""
        index = self._index(np.asarray(places))
        rows = self._kept[index] if self._kept is not None else self._clipped(index)
        return np.asarray(self._numpy(rows), dtype=np.float64)

    def moments(self, chosen=None):
        """(m, Σx, Σxxᵀ) about the centre, of all rows or of those with ``chosen`` (n,) true: float64."""
        count, total, gram = 0, np.zeros(self.d), np.zeros((self.d, self.d))
        for part in _parts(self.n, self._few):
            if chosen is not None and not chosen[part].any():
                continue
            rows = self._rows(part)
            if chosen is not None and not chosen[part].all():
                pick = np.flatnonzero(chosen[part])
                rows = rows[self._index(pick)]
            rows = rows.double() if self.torch else np.asarray(rows, dtype=np.float64)  # before it is summed
            count += len(rows)
            total += self._numpy(rows.sum(0))
            gram += self._numpy(rows.T @ rows)
        return count, total, (gram + gram.T) / 2

    def _index(self, places):
        if not self.torch:
            return places
        import torch

        return torch.as_tensor(places, device=self.data.device)

    def scores(self, point, factor):
        """‖Lᵀ(x − c)‖² of every row: shape (n,), in the data's precision, which ties are rounded by.

        Args: point — c, about the centre, shape (d,);  factor — L, shape (d, k).
        """
        factor, shift = self._like(factor), self._like(np.asarray(point) @ np.asarray(factor))
        result = np.empty(self.n, dtype=np.float32 if "32" in str(self.data.dtype) else np.float64)
        for part in _parts(self.n, self.block):
            seen, found = self._rows(part) @ factor, result[part]
            for some in _parts(len(seen), self._few):
                piece = seen[some]
                piece -= shift
                piece *= piece
                found[some] = self._numpy(piece.sum(-1))
        return result


def factor_of(weights):
    """L with U = LLᵀ, of a symmetric matrix without negative eigenvalues; columns of no weight are left out.

    Args: weights — U, (d, d).
    Returns: (d, k).
    """
    values, vectors = np.linalg.eigh(weights)
    some = values > 1e-14 * max(float(values.max()), 0.0)
    return vectors[:, some] * np.sqrt(values[some])
