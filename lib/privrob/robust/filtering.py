r"""Filtering: a set of records, its moments, and the removal of those with the largest scores. Algorithm 4.

The removal rule is a contraction (Lemma 2.2): with the *same* direction, threshold and number of records for two data
sets that differ in one record, what remains differs in one record. It needs one threshold for all records, and ties
broken by content. :func:`tail` does both.

The printed proof says that S(D) = S(D') ∪ {a} where a' joins the tail of D' and is removed. That is not so when a'
displaces the k-th record b: then S(D) = (S(D') ∖ {b}) ∪ {a}, still one replacement. The conclusion holds (the tests
enumerate it), for k from n or from \|S\|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from privrob import checks
from privrob.robust.rows import Everywhere, Rows, is_torch

STOPS = ("spectral", "top")
_DIGITS = {np.dtype(np.float32): 18, np.dtype(np.float64): 40}  # bits of a score that don't depend on its block


@dataclass(frozen=True)
class Outcome:
    """An estimate, or why there is none.

    Fields: estimate — shape (d,), or None;  status — ``converged`` (the stop test passed), ``exhausted`` (out of
    epochs; the last set's mean) or ``refused``;  reason — in words;  trace — what was released on the way, a dict a
    query round;  exact — what an analyst must never see (true sizes, scores), only where it was asked for;  noise —
    the :class:`privrob.robust.noiseplan.NoisePlan` it was made with.
    """

    estimate: np.ndarray | None
    status: str
    reason: str = ""
    trace: tuple = ()
    exact: tuple = field(default=(), repr=False)
    noise: object = field(default=None, repr=False)

    @property
    def refused(self):
        """Whether there is no estimate."""
        return self.estimate is None

    def error(self, mean):
        """‖μ̂ − μ‖, infinite where refused."""
        return math.inf if self.estimate is None else float(np.linalg.norm(self.estimate - np.asarray(mean)))


def refused(reason, trace=(), exact=()):
    """⊥, with its reason, and ``trace`` and ``exact`` of :class:`Outcome` up to there."""
    return Outcome(None, "refused", reason, tuple(trace), tuple(exact))


def in_words(estimator, data, **how):
    """What an estimator says of some data: its status, estimate and reason, or its error, on a line.

    Args: estimator — function of (data, **how) → :class:`Outcome`;  how — passed on.
    """
    try:
        found = estimator(data, **how)
    except ValueError as error:
        return f"error: {error}"
    said = "" if found.refused else f" {np.round(found.estimate, 2)}"
    return f"{found.status}{said}{': ' if found.reason else ''}{found.reason}"


def rounded(scores):
    """Scores to the bits that don't depend on where a row stood in its block: a tie must be one on both sides."""
    mantissa, exponent = np.frexp(scores)
    bits = _DIGITS.get(scores.dtype, 40)
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)


def tail(scores, candidates, *, size, take):
    """Which candidates are among the ``size`` largest scores, ties broken by content. Definition C.1.

    Equal scores are ordered by the first coordinate, the larger first, then by the next one; equal records in any way.

    Paper: prime, Definition C.1.
    Args: scores — of all records, shape (n,);  candidates — places that may be removed: all records of the set above
        some score (an upper part of the order, so that nothing outside comes before them);  size — T_2α's, at least 0;
        take — gives the records at some places, shape (k, d).
    Returns: places, shape (min(size, len(candidates)),).
    """
    if len(candidates) <= size:
        return candidates
    if size == 0:
        return candidates[:0]
    seen = scores[candidates]
    cut = np.partition(seen, len(seen) - size)[len(seen) - size]
    above, tied = candidates[seen > cut], candidates[seen == cut]
    room = size - len(above)
    if room < len(tied):
        rows = take(tied)
        tied = tied[np.lexsort(-rows.T[::-1])[:room]]
    return np.concatenate([above, tied])


class FilteredSet:
    """The records that remain, and their moments, kept up to date as records go.

    Args: rows — :class:`privrob.robust.rows.Rows`. Points are about the region's centre.
    """

    def __init__(self, rows):
        self.rows = rows
        self.alive = np.ones(rows.n, dtype=bool)
        self.size, self._sum, self._gram = rows.moments()

    @property
    def mean(self):
        """μ(S), about the centre; 0 where nothing is left."""
        return self._sum / self.size if self.size else np.zeros(self.rows.d)

    @property
    def total(self):
        """Σx, about the centre."""
        return self._sum.copy()

    @property
    def second_moment(self):
        """M(S) = (1/n) Σ (x − μ(S))(x − μ(S))ᵀ over what remains, n the number at the start.

        Paper: prime, Appendix E (definition of M).
        """
        mean = self.mean
        return (self._gram - self.size * np.outer(mean, mean)) / max(self.rows.n, 1)

    def scores(self, point, factor):
        """Rounded scores of all records, those that are gone included: shape (n,).

        Args: point, factor — c, (d,), and L, (d, k).
        """
        return rounded(self.rows.scores(point, factor))

    def above(self, scores, threshold):
        """Places of the remaining records whose score is above a threshold."""
        return np.flatnonzero(self.alive & (scores > threshold))

    def remove(self, scores, threshold, *, size):
        """Remove T_2α ∩ {τ > threshold}, ``size`` = ⌈2αn⌉; returns the places of what went.

        Paper: prime, Algorithms 4, 8 and 10 (last line of the loop).
        """
        gone = tail(scores, self.above(scores, threshold), size=size, take=self.rows.take)
        self.drop(gone)
        return gone

    def drop(self, places):
        """Remove the records at these places."""
        if not len(places):
            return
        self.alive[places] = False
        before = np.trace(self._gram)
        if 4 * len(places) < self.size:
            rows = self.rows.take(places)
            self.size -= len(rows)
            self._sum -= rows.sum(axis=0)
            self._gram -= rows.T @ rows
            if np.trace(self._gram) > 1e-6 * before:
                return  # else little is left of what was summed, and much of that is rounding
        self.size, self._sum, self._gram = self.rows.moments(self.alive)


def tail_size(num_records, corruption_rate):
    """⌈2αn⌉, n the number of records at the start (not of those that remain). Definition C.1's n is ambiguous; both
    contract."""
    return math.ceil(2 * corruption_rate * num_records * (1 - 1e-12))


def stop_level(corruption_rate):
    """α log(1/α); 0 at α = 0."""
    return -corruption_rate * math.log(corruption_rate) if corruption_rate else 0.0


def excess(second_moment, *, stop="spectral"):
    """λ = ‖M − I‖₂, or with ``stop="top"`` the largest eigenvalue of M − I alone.

    Paper: prime, Algorithms 4, 6, 8 and 10.
    Printed: the spectral norm. It also counts negative eigenvalues, and M is normalised by n: removing a two-sided 2α
    tail of a standard Normal brings one eigenvalue down by 2(α + zφ(z)), 2.9 α log(1/α) at α = 0.05. With C = 1 the
    test then can't pass any more.
    Args: second_moment — M, (d, d).
    """
    values = np.linalg.eigvalsh(second_moment)
    return float(values[-1] - 1) if stop == "top" else float(max(abs(values[-1] - 1), abs(values[0] - 1)))


def check_location(location, dimension):
    """A public x̄: shape (d,).

    Args: location — what was given.
    """
    place = checks.array("location", location, ndim=1)
    if len(place) != dimension:
        raise ValueError(f"location must have one entry a column of data, {dimension}, got {len(place)}")
    return place


def _check_numbers(data):
    """Refuse what would be cut down without a word: complex numbers, and whole numbers in torch, where a centre and
    a mean are of the data's own type; and what has no numbers at all."""
    kind = getattr(data, "dtype", None)
    if isinstance(data, np.ma.MaskedArray):
        raise TypeError("data must be an array without a mask, got a masked one; pass data.compressed() or data.data")
    if is_torch(data):
        if str(kind) not in ("torch.float32", "torch.float64"):
            raise TypeError(f"data must be float32 or float64 as a torch tensor, got {kind}; pass data.double()")
    elif getattr(kind, "kind", "") not in tuple("biuf"):
        got = type(data).__name__ if kind is None else kind
        raise TypeError(f"data must be an array of real numbers, got {got}; pass np.asarray(data, dtype=float)")


def check_data(data, corruption_rate):
    """The number of records and of dimensions; shapes and rates that can't be are refused."""
    if getattr(data, "ndim", 0) != 2 or data.shape[1] == 0:
        raise ValueError(f"data must have one row a record, shape (n, d), got {np.shape(data)}")
    _check_numbers(data)
    rate = checks.real(
        "corruption_rate",
        corruption_rate,
        low=0.0,
        high=0.5,
        open_high=True,
        hint="no estimator tells which half is the good one",
    )
    return data.shape[0], data.shape[1], rate


def filter_mean(data, *, corruption_rate, rng, stop_constant=3.0, stop="spectral", max_steps=None, region=None):
    r"""The mean of what a filter leaves, without privacy. Algorithm 4.

    Each step scores the records along the top eigenvector of their covariance, draws Z ~ U[0, 1] and removes those of
    the 2α tail with a score above Z·max.

    Paper: prime, Algorithm 4.
    Printed: the test line lacks 1/\|S\| and tests λ with μ_{t−1}, unset at first.   Used: M(S) (normalised by n, as
        everywhere else in the document). The largest score is data-dependent, which breaks the contraction.
    Args: data — (n, d);  corruption_rate — α in [0, 1/2);  rng;  stop_constant — C, below about 2.9 the two-sided test
        can fail for ever (see :func:`excess`);  stop — ``spectral`` or ``top``;  max_steps — 4d + 40 if None;
        region — to clip to; None: no clipping.
    Returns: :class:`Outcome`.
    """
    checks.generator("rng", rng)
    n, d, rate = check_data(data, corruption_rate)
    checks.choice("stop", stop, STOPS)
    constant = checks.positive("stop_constant", stop_constant)
    steps = 4 * d + 40 if max_steps is None else checks.integer("max_steps", max_steps, low=1)
    if n == 0:
        return refused("no records")
    if region is None:
        finite = np.asarray(data)[np.isfinite(np.asarray(data)).all(axis=1)]
        centre = np.median(finite, axis=0) if len(finite) else np.zeros(d)
        region = Everywhere(centre)
    state, trace = FilteredSet(Rows(data, region)), []
    for step in range(steps):
        matrix = state.second_moment
        level = excess(matrix, stop=stop)
        trace.append({"step": step, "size": state.size, "norm": level})
        if level <= constant * stop_level(rate) or state.size <= n / 2:
            break
        top = np.linalg.eigh(matrix)[1][:, -1:]
        scores = state.scores(state.mean, top)
        largest = float(scores[state.alive].max())
        gone = state.remove(scores, rng.random() * largest, size=tail_size(n, rate))
        trace[-1]["removed"] = len(gone)
        if not len(gone):  # all scores alike: filtering is at its end
            break
    else:
        return Outcome(region.centre + state.mean, "exhausted", "out of steps", tuple(trace))
    if state.size <= n / 2:
        return refused("filter: half of the records are gone, and the test has not passed", trace)
    passed = level <= constant * stop_level(rate)
    why = "" if passed else "nothing more to remove"
    return Outcome(region.centre + state.mean, "converged" if passed else "exhausted", why, tuple(trace))
