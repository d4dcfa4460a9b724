r"""Rules that make one vector of many, some of which may come from attackers.

Names, arguments and definitions follow the library byzfl where it has them, so that results can be compared; each rule
is a frozen object that is called with an array (n, d), as there: ``TrMean(f=10)(vectors)``. NumPy, float64.

``SignOfSum`` and ``MajorityVote`` are the document's: votes are added up, and only the sign of the sum is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from privrob import checks

_BLOCK = 2**15  # numbers that stay in a cache
_LOW, _HIGH = 2.0**-900, 2.0**900  # squares in between have all their digits, and their sums too
_CLOSE = 2.0**-10  # of |a|² + |b|²: a square of a distance below it is taken from the difference itself
_SHRINK = 2.0**-64  # of vectors with huge entries: no difference, nor its norm, overflows then
_NOTHING = -(10**6)  # in place of the exponent of 0


def _vectors(vectors):
    vectors = checks.array("vectors", vectors, ndim=2)
    if len(vectors) == 0:
        raise ValueError("vectors must hold at least 1 row, got 0; a round without replies is no step")
    return vectors


def _few(f, count, *, most, rule):
    """The number of attackers that a rule is told, refused where it can't bear so many."""
    if f > most:
        raise ValueError(f"f must be at most {most} for {rule} of {count} vectors, got f={f}")


def _shrunk(vectors):
    """The vectors and 1, or both times a power of two where entries are so large that a difference may overflow."""
    large = max(vectors.max(initial=0.0), -vectors.min(initial=0.0)) > _HIGH
    return (vectors * _SHRINK, _SHRINK) if large else (vectors, 1.0)


def _exponents(squares, rows):
    """Whole numbers e for squared norms m·4^e: 0 for ordinary ones; any other is taken anew, as m in its place.

    ``rows`` gives the rows at some indices.
    """
    exponents = np.zeros(len(squares), dtype=int)
    off = np.flatnonzero(~((squares > _LOW) & (squares < _HIGH)))
    if off.size:
        extreme = rows(off)
        exponents[off] = np.frexp(np.abs(extreme).max(axis=1, initial=0.0))[1]
        squares[off] = (np.ldexp(extreme, -exponents[off, None]) ** 2).sum(axis=1)
    return exponents


@dataclass(frozen=True)
class _Tolerant:
    """Args: f — so many attackers are reckoned with."""

    f: int

    def __post_init__(self):
        checks.integer("f", self.f, low=0)


@dataclass(frozen=True)
class Average:
    """The mean."""

    def __call__(self, vectors):
        return _vectors(vectors).mean(axis=0)


@dataclass(frozen=True)
class Median:
    """The median of each coordinate; of an even number, the middle of the two in the middle."""

    def __call__(self, vectors):
        vectors = np.sort(_vectors(vectors), axis=0)  # faster than np.median, which selects
        middle = len(vectors) // 2
        return vectors[middle] if len(vectors) % 2 else (vectors[middle - 1] + vectors[middle]) / 2


@dataclass(frozen=True)
class TrMean(_Tolerant):
    """The mean of each coordinate without its f largest and f smallest values; 2f < n."""

    def __call__(self, vectors):
        vectors = _vectors(vectors)
        _few(self.f, len(vectors), most=(len(vectors) - 1) // 2, rule="TrMean")
        if self.f:
            vectors = np.sort(vectors, axis=0)[self.f : len(vectors) - self.f]
        return vectors.mean(axis=0)


@dataclass(frozen=True)
class GeometricMedian:
    """The point of least summed distance, by smoothed Weiszfeld steps from 0: near it only for T large enough.

    Args: nu — distances count as at least this;  T — steps at most.
    """

    nu: float = 0.1
    T: int = 3

    def __post_init__(self):
        checks.positive("nu", self.nu, finite=True)
        checks.integer("T", self.T, low=1)

    def __call__(self, vectors):
        vectors, scale = _shrunk(_vectors(vectors))
        nu, count = max(self.nu * scale, np.finfo(float).smallest_subnormal), len(vectors)
        point, many = np.zeros(vectors.shape[1]), max(1, _BLOCK // max(1, vectors.shape[1]))
        blocks = [vectors[i : i + many] for i in range(0, count, many)]
        with np.errstate(over="ignore", under="ignore"):  # a weight of 0 is that of one all too far
            for _ in range(self.T):
                squares = np.concatenate([((block - point) ** 2).sum(axis=1) for block in blocks])
                exponents = _exponents(squares, lambda off, point=point: vectors[off] - point)
                distances = np.maximum(np.ldexp(np.sqrt(squares), exponents), nu)
                near = np.ldexp(distances, -int(np.frexp(distances.min())[1]))  # powers of two: no digit is lost
                weights = np.ldexp(1 / near, -count.bit_length())  # add up to less than 2
                point = weights @ vectors / weights.sum()
        most = np.finfo(float).max * scale
        return np.clip(point, -most, most) / scale


def _scores(vectors, f):
    """Mean squared distance of each vector to the n − f − 1 nearest others, times a number that all have in common.

    |a|² + |b|² − 2ab where that keeps its digits; else, as for an offset in common, of a − b itself. The unit is that
    of the least score, so that neither a huge vector nor a tiny one takes digits from the others.
    """
    vectors, _ = _shrunk(vectors)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = (vectors**2).sum(axis=1)
        both = squares[:, None] + squares
        distances = both - 2 * vectors @ vectors.T
        sure = (distances > _CLOSE * both) & (distances > _LOW) & (both < _HIGH)
        np.fill_diagonal(distances, 0.0)
        np.fill_diagonal(sure, True)
        exponents, many = np.zeros(distances.shape, dtype=int), max(1, _BLOCK // max(1, vectors.shape[1]))
        for i in np.flatnonzero(~sure.all(axis=1)):
            unsure = np.flatnonzero(~sure[i, :i])
            for block in (unsure[k : k + many] for k in range(0, len(unsure), many)):
                rows = vectors[block] - vectors[i]
                found = (rows**2).sum(axis=1)
                exponents[i, block] = exponents[block, i] = _exponents(found, rows.__getitem__)
                distances[i, block] = distances[block, i] = found
        last = len(vectors) - f
        if exponents.any():
            sizes = np.where(distances > 0, np.frexp(distances)[1] + 2 * exponents, _NOTHING)
            farthest = np.sort(sizes, axis=1)[:, last - 1]
            unit = farthest[farthest > _NOTHING].min(initial=-_NOTHING) // 2
            distances = np.ldexp(distances, np.clip(2 * (exponents - unit), -5000, 5000))  # infinity ranks last
        return np.sort(distances, axis=1)[:, 1:last].mean(axis=1)


@dataclass(frozen=True)
class Krum(_Tolerant):
    """The vector nearest to its n − f − 1 nearest others (Blanchard et al. 2017 count n − f − 2); n ≥ 2f + 3."""

    def __call__(self, vectors):
        vectors = _vectors(vectors)
        _few(self.f, len(vectors), most=(len(vectors) - 3) // 2, rule="Krum")
        return vectors[np.argmin(_scores(vectors, self.f))]


@dataclass(frozen=True)
class MultiKrum(_Tolerant):
    """The mean of the n − f vectors with the smallest of Krum's scores; n ≥ 2f + 3."""

    def __call__(self, vectors):
        vectors = _vectors(vectors)
        _few(self.f, len(vectors), most=(len(vectors) - 3) // 2, rule="MultiKrum")
        chosen = np.argsort(_scores(vectors, self.f), kind="stable")[: len(vectors) - self.f]
        chosen, scale = _shrunk(vectors[chosen])
        return chosen.mean(axis=0) / scale


@dataclass(frozen=True)
class SignOfSum:
    """The sign of each coordinate's sum; a sum of zero is no step.

    Paper: fdp, Section 5 (Agg of Theorems 5 and 6) and Algorithm 5.
    """

    def __call__(self, vectors):
        return np.sign(_vectors(vectors).sum(axis=0))


@dataclass(frozen=True)
class MajorityVote:
    """One vote a user: the sign of the sum of signs, as in signSGD (Bernstein et al. 2019).

    Paper: fdp, Section 5, first paragraph.
    """

    def __call__(self, vectors):
        return np.sign(np.sign(_vectors(vectors)).sum(axis=0))


RULES = {
    rule.__name__: rule for rule in (Average, Median, TrMean, GeometricMedian, Krum, MultiKrum, SignOfSum, MajorityVote)
}


def make(name, options=None):
    """The rule of that name with its options, such as ``make("TrMean", {"f": 10})``."""
    kind = RULES[checks.choice("aggregator", name, RULES)]
    names = [field.name for field in fields(kind)]
    given = checks.options("aggregator_options", options, names)
    if "f" in names and "f" not in given:
        raise ValueError(f"aggregator_options must give f, the number of attackers, for {name}, got none")
    return kind(**given)
