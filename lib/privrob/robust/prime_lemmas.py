r"""The lemmas behind PRIME, made measurable: the threshold of Equation 1, what it removes, how far sets drift.

Everything here is exact: expectations over Z ~ U[0, 1] are summed, not drawn, and histograms have no noise.

``scores`` are τ, (n,); ``bad`` marks the adversary's, (n,); ``size`` is how many records the tail holds; ``points`` are
rows (n, d); ``num_bins`` is K.
"""

from __future__ import annotations

import itertools

import numpy as np

from privrob import checks
from privrob.robust import mmw
from privrob.robust.filtering import FilteredSet
from privrob.robust.rows import Everywhere, Rows

NEED = 0.31  # of Equation 1


def exact_threshold(scores):
    """The largest ρ with Σ_{τ > ρ} (τ − ρ) ≥ 0.31 Σ (τ − 1); None where there is none.

    Paper: prime, Equation (1).
    """
    tau = np.sort(checks.array("scores", scores, ndim=1))[::-1]
    target = NEED * float((tau - 1).sum())
    if target <= 0:
        return None
    sums, counts = np.cumsum(tau), np.arange(1, len(tau) + 1)
    reach = sums - counts * np.append(tau[1:], 0.0)  # Σ (τ − ρ) over the k largest, at ρ = the next one
    k = int(np.argmax(reach >= target)) if (reach >= target).any() else len(tau) - 1
    return float((sums[k] - target) / counts[k])


def binned_threshold(scores, *, num_bins=40, sketch=False):
    """ρ by the histogram of Algorithm 11, without noise; ``sketch`` as Section 2.3.2 has it: 2^ℓ for bin ℓ.

    Paper: prime, Algorithm 11 and Section 2.3.2.
    """
    tau = checks.array("scores", scores, ndim=1)
    psi = float((tau - 1).mean())
    _, exponent = np.frexp(tau[tau >= 0.25])
    shares = np.bincount(np.minimum(exponent + 2, num_bins), minlength=num_bins + 1)[1:] / len(tau)
    if not sketch:
        return mmw.pick_threshold(shares, psi)
    least = mmw.pick_threshold(shares, psi, need=NEED / 8)  # 2^j − 2^ℓ is 8 (τ_j − τ_ℓ)
    return None if least is None else 8 * least


def left_below(scores, threshold):
    """Share of the total score ψ that records below a threshold have: what (12) bounds by 0.75.

    Args: threshold — ρ.
    """
    tau = np.asarray(scores)
    return float((tau[tau <= threshold] - 1).sum() / (tau - 1).sum())


def expected_removal(scores, bad, threshold, *, size):
    """(clean, corrupted) records removed in expectation over Z: of the ``size`` largest, τ/ρ below ρ and 1 above.

    Paper: prime, Equation (13), proof of Lemma F.4.
    Args: threshold — ρ.
    """
    tau = np.asarray(scores)
    tail = np.argpartition(tau, len(tau) - size)[len(tau) - size :]
    chance = np.minimum(tau[tail] / threshold, 1.0)
    return float(chance[~bad[tail]].sum()), float(chance[bad[tail]].sum())


def conditions(scores, bad, *, size):
    """(clean score in the tail, clean excess) over ψ: the hypotheses of Lemma E.1 ask for 1/1000 of each."""
    tau = np.asarray(scores)
    tail = np.argpartition(tau, len(tau) - size)[len(tau) - size :]
    total = float((tau - 1).sum())
    return float(tau[tail][~bad[tail]].sum()) / total, float((tau[~bad] - 1).sum()) / total


def random_scores(rng, *, num_records=4000, corruption_rate=0.05, scale=1e6):
    """Scores of clean records that meet the hypotheses of Lemma E.1 beside corrupted ones of one or several sizes.

    Args: scale — the largest score of corrupted records, about.
    """
    n, m = num_records, int(corruption_rate * num_records)
    clean = np.clip(1 + 0.3 * rng.standard_normal(n - m), 0.0, 2.0)
    clean += 1 - clean.mean()
    groups = rng.integers(1, 30)
    centres = scale * 10.0 ** rng.uniform(-2.5, 0, groups)
    bad = rng.choice(centres, m) * (1 + rng.uniform(0, 1) * rng.uniform(-0.5, 1, m))
    return np.concatenate([bad, clean]), np.arange(n) < m


# ------------------------------------------------------------------------------------------------- sets and their drift


def distance(a, b):
    """d_Δ of two multisets of rows: max(\\|A∖B\\|, \\|B∖A\\|). Paper: prime, Definition 1.1.

    Args: a, b — the two sets, (n, d) and (m, d).
    """
    a, b = [tuple(r) for r in a], [tuple(r) for r in b]
    both = sum(min(a.count(r), b.count(r)) for r in set(a))
    return max(len(a) - both, len(b) - both)


def survivors(points, steps, *, size, own=None):
    """What public filter steps (centre, factor, threshold) leave of some rows.

    Args: own — None: one threshold for all, as in the library; or draws (steps, n), a Z of its own for each record, by
    position: the rule of the works that the document improves on.
    """
    points = np.asarray(points, dtype=float)
    state = FilteredSet(Rows(points, Everywhere(np.zeros(points.shape[1]))))
    for t, (centre, factor, threshold) in enumerate(steps):
        scores = state.scores(np.asarray(centre, dtype=float), np.asarray(factor, dtype=float))
        if own is None:
            state.remove(scores, threshold, size=size)
            continue
        alive = np.flatnonzero(state.alive)
        tail = alive[np.lexsort((*-points[alive].T[::-1], -scores[alive]))[:size]]
        state.drop(tail[scores[tail] > threshold * own[t, tail]])
    return points[state.alive]


def worst_drift(rng, *, num_sets, num_steps, own=False, num_points=8, size=2):
    """The largest distance of two filtered sets that began as neighbours, over random lattice sets, weights and
    thresholds; and how many pairs were tried.

    Paper: prime, Lemmas 2.2 and F.1; with ``own``, Section 2.3.2 ("prohibitively large sensitivity").
    Args: num_sets — pairs that are tried;  num_points — n.
    """
    worst = 0
    for _ in range(checks.integer("num_sets", num_sets, low=1)):
        points = rng.integers(-2, 3, (num_points, 2)).astype(float)
        other = points.copy()
        other[rng.integers(num_points)] = rng.integers(-3, 4, 2)
        factors = rng.integers(-1, 2, (num_steps, 2, 2))  # U = LLᵀ of rank 1 or 2
        steps = [(rng.integers(-1, 2, 2), factor, 6 * rng.random() * (rng.random() < 0.7)) for factor in factors]
        draws = rng.random((num_steps, num_points)) if own else None
        kept = [survivors(p, steps, size=size, own=draws) for p in (points, other)]
        worst = max(worst, distance(*kept))
    return worst, num_sets


def enumerated_drift(*, values=(-1.0, 0.0, 1.0), num_points=4, thresholds=(0.0, 0.3, 0.8), sizes=(1, 2, 3)):
    """As :func:`worst_drift`, over *all* sets of so many points of a 3 × 2 lattice and a grid of single steps.

    Args: values — first coordinates;  num_points — n;  thresholds, sizes — of the steps.
    """
    lattice = list(itertools.product(values, (0.0, 1.0)))
    factors = (np.eye(2)[:, :1], np.ones((2, 1)), np.array([[1.0, 0.5], [0.5, 1.0]]))
    worst = tried = 0
    for factor, threshold, size in itertools.product(factors, thresholds, sizes):
        steps = [(np.zeros(2), factor, threshold)]
        sets = itertools.combinations_with_replacement(lattice, num_points)
        kept = {c: survivors(c, steps, size=size) for c in sets}
        for c, left in kept.items():
            for out, new in itertools.product(range(num_points), lattice):
                other = tuple(sorted((*c[:out], *c[out + 1 :], new)))
                if c < other:
                    worst, tried = max(worst, distance(left, kept[other])), tried + 1
    return worst, tried
