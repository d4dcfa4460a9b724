r"""Does a filter step contract? Neighbouring small data sets, full of ties, filtered alike by several removal rules.

``shared``: one threshold for all and ties broken by content, what :func:`privrob.robust.filtering.tail` does.
``position``: the same, ties broken by place in the data. ``own draw``: a threshold Z_i t for each record, the same Z_i
for the same place. ``largest``: the threshold is a share of the largest score (Algorithm 4).

``rule`` is one of :data:`RULES`, ``points`` are rows (n, d), ``size`` is how many records a tail holds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.robust.filtering import rounded, tail

RULES = ("shared", "position", "own draw", "largest")


@dataclass(frozen=True)
class Direction:
    """A public step: scores (v·(x − c))², removed above the threshold (a share of the largest score for ``largest``);
    draws — Z_i of each place, for ``own draw``.

    ``point`` is c and ``vector`` v, both (d,).
    """

    point: np.ndarray
    vector: np.ndarray
    threshold: float
    draws: np.ndarray


def distance(one, other):
    """d_Δ = max(#(S∖S′), #(S′∖S)) of two sets of rows, repeated rows counted.

    Paper: prime, Definition 1.1.
    Args: one, other — (n, d) and (m, d).
    """
    a, b = Counter(map(tuple, np.asarray(one).tolist())), Counter(map(tuple, np.asarray(other).tolist()))
    return max((a - b).total(), (b - a).total())


def left_by(points, places, step, *, size, rule):
    """What a step leaves of the records at ``places``; places are kept, so that a rule may look at them."""
    scores = rounded((((points - step.point) * step.vector).sum(axis=1)) ** 2)
    seen = scores[places]
    if not len(places):
        return places
    threshold = step.threshold * seen.max() if rule == "largest" else step.threshold
    if rule in ("shared", "largest"):
        gone = tail(scores, places[seen > threshold], size=size, take=lambda i: points[i])
    else:
        top = places[np.argsort(-seen, kind="stable")[:size]]
        above = threshold * (step.draws[top] if rule == "own draw" else 1.0)
        gone = top[scores[top] > above]
    keep = np.zeros(len(points), dtype=bool)
    keep[places] = True
    keep[gone] = False
    return np.flatnonzero(keep)


def filtered(points, steps, *, size, rule="shared"):
    """The rows that are left after all steps."""
    points = np.asarray(points, dtype=np.float64)
    places = np.arange(len(points))
    for step in steps:
        places = left_by(points, places, step, size=size, rule=checks.choice("rule", rule, RULES))
    return points[places]


def drawn_pair(rng, *, num_records, dimension, reach, remove):
    """Records of an integer lattice and a neighbour: one replaced, or with ``remove`` one left out; order kept.

    Args: reach — coordinates are whole numbers from −reach to reach.
    """
    points = rng.integers(-reach, reach + 1, (num_records, dimension)).astype(float)
    place = int(rng.integers(num_records))
    if remove:
        return points, np.delete(points, place, axis=0)
    other = points.copy()
    other[place] = rng.integers(-reach - 1, reach + 2, dimension)
    return points, other


def drawn_steps(rng, *, num_steps, num_records, dimension):
    """Steps along small integer directions, so that scores tie; a third of the thresholds are 0."""
    lattice = rng.integers(-1, 2, (num_steps, 2, dimension)).astype(float)
    chance = rng.random((num_steps, 2 + num_records))
    return [
        Direction(place[0], place[1], float(4 * u[0] * (u[1] < 2 / 3)), u[2:])
        for place, u in zip(lattice, chance, strict=True)
    ]


@dataclass(frozen=True)
class Found:
    """Fields: rule;  trials;  tied — how many had equal scores of different records in the first step;  moved — how
    many lost a record;  counts — how many ended at distance 0, 1, 2, …;  example — the two data sets, the steps and
    the tail's size of the first trial that ended furthest apart."""

    rule: str
    trials: int
    tied: int
    moved: int
    counts: tuple
    example: tuple

    @property
    def worst(self):
        """The largest distance."""
        return len(self.counts) - 1

    @property
    def violations(self):
        """How many ended further apart than 1."""
        return sum(self.counts[2:])


def search(num_trials, *, rule, rng, num_steps=4, largest=8, dimension=2, reach=2, permute=None):
    """Filter neighbours alike, many times: how far apart do they end?

    Paper: prime, Lemma 2.2 and Lemma F.1.
    Args: rule — of :data:`RULES`;  largest — most records;  reach — of the lattice;  permute — shuffle the second set
        first (a set has no order), by default for the rules that break ties by content or by place.
    Returns: :class:`Found`.
    """
    trials = checks.integer("num_trials", num_trials, low=1)
    largest = checks.integer("largest", largest, low=3)
    permute = rule in ("shared", "position") if permute is None else permute
    tied = moved = 0
    counts, example = [0], ()
    for _ in range(trials):
        n = int(rng.integers(3, largest + 1))
        how = {"num_records": n, "dimension": dimension}
        remove = rule in ("shared", "position") and rng.random() < 0.3
        one, other = drawn_pair(rng, reach=reach, remove=remove, **how)
        steps, size = drawn_steps(rng, num_steps=num_steps, **how), int(rng.integers(1, 4))
        if permute:
            other = other[rng.permutation(len(other))]
        left = [filtered(points, steps, size=size, rule=rule) for points in (one, other)]
        gap = distance(*left)
        scores = ((one - steps[0].point) @ steps[0].vector) ** 2
        tied += len(set(scores.tolist())) < len(set(map(tuple, one.tolist())))
        moved += len(left[0]) < len(one)
        if gap >= len(counts):
            counts, example = counts + [0] * (gap + 1 - len(counts)), (one, other, steps, size)
        counts[gap] += 1
    return Found(rule, trials, tied, moved, tuple(counts), example)


def order_dependent(lattice, *, num_records, sizes=(1, 2, 3)):
    """All data sets of so many points of a lattice, in all orders: (cases, those whose tail depends on the order).

    The score is the square of the first coordinate.

    Paper: prime, Definition C.1.
    Args: lattice — its points;  sizes — of the tail.
    """
    cases = differing = 0
    for few in itertools.combinations_with_replacement(lattice, num_records):
        for size in sizes:
            seen = set()
            for order in itertools.permutations(few):
                points = np.array(order, dtype=float)
                gone = tail(points[:, 0] ** 2, np.arange(num_records), size=size, take=lambda i, p=points: p[i])
                seen.add(tuple(sorted(map(tuple, points[gone].tolist()))))
            cases, differing = cases + 1, differing + (len(seen) > 1)
    return cases, differing


def proof_cases(values, *, num_records, threshold, sizes=(1, 2)):
    """The case of the printed proof on all small data sets of the line, with scores x²: a of D lies below the tail, a′
    of D′ in it, and a′ is removed.

    Paper: prime, D.3.2.
    Printed: then S(D) = S(D′) ∪ {a}.
    Args: values — the line's points;  threshold — of the step;  sizes — of the tail.
    Returns: (how often that is so, how often not, the largest distance).
    """
    stated = otherwise = worst = 0
    places = np.arange(num_records)
    step = Direction(np.zeros(1), np.ones(1), threshold, np.zeros(num_records))
    for rest in itertools.combinations_with_replacement(values, num_records - 1):
        for (a, b), size in itertools.product(itertools.permutations(values, 2), sizes):
            one, other = (np.array([*rest, last])[:, None] for last in (a, b))
            tops = [tail(x[:, 0] ** 2, places, size=size, take=lambda i, x=x: x[i]) for x in (one, other)]
            left = [filtered(x, [step], size=size) for x in (one, other)]
            if a in one[tops[0]] or b not in other[tops[1]] or b in left[1]:
                continue
            same = sorted([*left[1][:, 0].tolist(), a]) == sorted(left[0][:, 0].tolist())
            stated, otherwise = stated + same, otherwise + (not same)
            worst = max(worst, distance(*left))
    return stated, otherwise, worst
