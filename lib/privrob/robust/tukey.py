r"""Tukey depth, exactly, for d ≤ 3: the least share of records on one side of a hyperplane through a point."""

from __future__ import annotations

import numpy as np

from privrob import checks

_FLAT = 1e-10  # of a record's and the candidate's size: a record nearer to the candidate counts as on it
_SAME = 1e-9  # a unit vector nearer to a plane counts as in it


def depth(candidates, data):
    """D(S, μ) = min_v P[vᵀ(x − μ) ≥ 0] of each candidate: shape (k,). O(n log n) in the plane, O(n³) in space, each.

    Exact on lattices (see :func:`on_lattice`), repeated points included: a half space whose edge holds records can be
    turned so that all but the fewest of those on its edge fall outside, which is the same question one dimension lower.
    Directions that differ by less than rounding are taken for one; only on a lattice does a record then move the depth
    by 1/n at most.

    Paper: prime, Appendix I.
    Args: candidates — (k, d);  data — (n, d), n ≥ 1, d ≤ 3.
    """
    candidates, data = checks.array("candidates", candidates, ndim=2), checks.array("data", data, ndim=2)
    n, d = data.shape
    if n == 0 or candidates.shape[1] != d:
        raise ValueError(f"data must have records of the candidates' dimension, got {data.shape}, {candidates.shape}")
    if d > 3:
        raise ValueError(f"data must have 1, 2 or 3 columns, got {d}: the depth is hard to find in more")
    if d == 1:
        ordered = np.sort(data[:, 0])
        below = np.searchsorted(ordered, candidates[:, 0], side="right")
        above = n - np.searchsorted(ordered, candidates[:, 0], side="left")
        return np.minimum(below, above) / n
    one, size = _plane if d == 2 else _space, np.abs(data).max(axis=1)
    # each record's own size, not the largest: or else one far record could put all others "on" a candidate
    return np.array([one(data - c, _FLAT * np.maximum(size, np.abs(c).max())) for c in candidates]) / n


def on_lattice(data, *, half_range, spacing):
    r"""Records moved to [−4R, 4R]^d and to a lattice on which :func:`depth` is exact: with any others, records that lie
    nearly in a plane (in the plane: on a line) with the candidate may be taken to lie in it, and one record then moves
    a depth by several. Each record moves by itself, on a coordinate by R/90 at most while within.

    Of whole numbers up to 540 about a candidate, two directions differ by 1e-6 or not at all, and a record is 1e-9 off
    a plane through two others or in it: that is what :func:`depth` tells apart.

    Args: data — (n, d), d ≤ 3, finite;  half_range — R;  spacing — of the candidates, which lie on the lattice.
    """
    step = spacing / max(1, int(90 * spacing / half_range))
    return step * np.round(np.clip(data, -4 * half_range, 4 * half_range) / step)


def _split(vectors, flat):
    """(how many are 0, the others)."""
    zero = np.abs(vectors).max(axis=1) <= flat
    return int(zero.sum()), vectors[~zero]


def _plane(vectors, flat=0.0):
    """Least count of a closed half plane through 0, by the angles in order."""
    at, vectors = _split(vectors, flat)
    m = len(vectors)
    if m == 0:
        return at
    angle = np.sort(np.mod(np.arctan2(vectors[:, 1], vectors[:, 0]), 2 * np.pi))
    twice = np.concatenate([angle, angle + 2 * np.pi])
    # open half planes that start just after an angle, or just after its opposite: between them nothing changes
    starts = np.concatenate([angle, np.mod(angle + np.pi, 2 * np.pi)])
    inside = np.searchsorted(twice, starts + np.pi + 1e-12, side="right") - np.searchsorted(
        twice, starts + 1e-12, side="right"
    )
    return at + int(min(inside.min(), m - inside.max()))


def _space(vectors, flat=0.0):
    """Least count of a closed half space through 0: over the planes through two records, and the plane's own depth."""
    at, vectors = _split(vectors, flat)
    m = len(vectors)
    if m == 0:
        return at
    units = vectors / np.abs(vectors).max(axis=1, keepdims=True)  # whose squares neither overflow nor vanish
    units = units / np.linalg.norm(units, axis=1, keepdims=True)
    best = m
    for i in range(m):
        normals = np.cross(units[i], units[i + 1 :])
        size = np.linalg.norm(normals, axis=1)
        apart = size > 1e-6  # or else rounding turns the plane by more than _SAME, off its own two records
        normals = normals[apart] / size[apart, None]
        if not len(normals):
            continue
        side = normals @ units.T
        on = np.abs(side) <= _SAME
        up, down = (side > _SAME).sum(axis=1), (side < -_SAME).sum(axis=1)
        for j in np.flatnonzero(np.minimum(up, down) < best):
            best = min(best, min(up[j], down[j]) + _within(units[on[j]], normals[j]))
    if best == m:  # all on one line, or none can be left out
        best = min(best, _line(units))
    return at + int(best)


def _within(units, normal):
    """The depth of 0 among the records of a plane through it."""
    first = units[0]
    return _plane(np.stack([units @ first, units @ np.cross(normal, first)], axis=1))


def _line(units):
    """Records on one line: the fewer of the two sides."""
    along = units @ units[0]
    return min(int((along > 0).sum()), int((along < 0).sum())) if np.allclose(np.abs(along), 1.0) else len(units)
