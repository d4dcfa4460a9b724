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


def _vectors(vectors):
    vectors = checks.array("vectors", vectors, ndim=2)
    if len(vectors) == 0:
        raise ValueError("vectors must hold at least 1 row, got 0; a round without replies is no step")
    return vectors


def _few(f, count, *, most, rule):
    """The number of attackers that a rule is told, refused where it can't bear so many."""
    if f > most:
        raise ValueError(f"f must be at most {most} for {rule} of {count} vectors, got f={f}")


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
        vectors = _vectors(vectors)
        point, many = np.zeros(vectors.shape[1]), max(1, _BLOCK // max(1, vectors.shape[1]))
        blocks = [vectors[i : i + many] for i in range(0, len(vectors), many)]
        for _ in range(self.T):
            distances = np.concatenate([np.linalg.norm(block - point, axis=1) for block in blocks])
            weights = 1 / np.maximum(distances, self.nu)
            point = weights @ vectors / weights.sum()
        return point


def _scores(vectors, f):
    """Mean squared distance of each vector to the n − f − 1 nearest others."""
    squares = (vectors**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * vectors @ vectors.T, 0.0)
    np.fill_diagonal(distances, 0.0)
    return np.sort(distances, axis=1)[:, 1 : len(vectors) - f].mean(axis=1)


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
        return vectors[chosen].mean(axis=0)


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
