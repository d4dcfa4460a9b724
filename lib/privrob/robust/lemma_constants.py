r"""The constants behind the document's "≲": what each lemma on scores, good sets and noise needs, found exactly.

Where a lemma speaks of finitely many numbers, the worst case is a linear program or an enumeration; where it speaks of
Normal records or Normal noise, a closed form. Directions stand for all v: exact on the line, a net in plane and space.

``num_bad`` is how many of the records are the adversary's, ``points`` are records (n, d), ``num_bins`` is K.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri
from scipy.stats import chi2

from privrob import checks
from privrob.robust import mmw, resilience

SMALL = 1e-3  # the 1/1000 of (14), (15) and Lemma E.2
GOOD = ("mean", "covariance", "part's mean", "part's covariance")


def _pdf(z):
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


# --------------------------------------------------------------------------------------------------------------- scores


def _groups(num_records, num_bad, kept_clean, kept_bad, bad_in):
    """Sizes (bad in T, bad outside, clean in T, clean outside) of S, T its 2αn largest scores; None if it can't be."""
    tail = min(2 * num_bad, kept_clean + kept_bad)
    sizes = bad_in, kept_bad - bad_in, tail - bad_in, kept_clean - tail + bad_in
    return sizes if min(sizes) >= 0 else None


def _all_groups(num_records, num_bad):
    for clean, bad in itertools.product(
        range(max(1, num_records - 3 * num_bad), num_records - num_bad + 1), range(num_bad + 1)
    ):
        for inside in range(bad + 1):
            if sizes := _groups(num_records, num_bad, clean, bad, inside):
                yield sizes


def tail_conditions(num_records, num_bad):
    """(largest 1000ατ/ψ of a record outside the tail, least share of ψ in the corrupted tail), over *all* scores that
    meet the two hypotheses, all sets that are left and all splits of the tail.

    Exact: averaging within a group of records alike in label and place keeps every condition, so that the worst case is
    a linear program in the groups' scores, ψ = 1, with the "1" of τ − 1 a variable, too.

    Paper: prime, Lemma E.2.
    Returns: at most 1, at least 0.998 where the lemma holds.
    """
    rate, most, least = num_bad / num_records, 0.0, math.inf
    for sizes in _all_groups(num_records, num_bad):
        for place in (1, 3):  # the one outside with the largest score: corrupted or clean
            if not sizes[place]:
                continue
            weight = np.array([*sizes, 1.0])
            weight[place] -= 1
            clean = np.array([0, 0, 1, 1, float(place == 3)])
            got = _extremes(weight, clean, num_records, rate)
            if got is not None:
                most, least = max(most, got[0]), min(least, got[1])
    return most, least


def _extremes(weight, clean, n, rate):
    inside = np.array([1, 0, 1, 0, 0.0])
    rows, limits = [], []
    for low, high in itertools.product((1, 3, 4), (0, 2)):
        if weight[low] and weight[high]:
            rows.append(np.eye(6)[low] - np.eye(6)[high])
            limits.append(0.0)
    rows.append(np.append(weight * clean, -(weight * clean).sum()) / n)
    rows.append(np.append(weight * clean * inside, 0.0) / n)
    limits += [SMALL, SMALL]
    total = np.append(weight, -weight.sum()) / n
    how = {"A_ub": np.array(rows), "b_ub": limits, "A_eq": total[None], "b_eq": [1.0], "method": "highs"}
    outside = linprog(-rate / SMALL * np.eye(6)[4], **how)
    bad_in = weight * inside * (1 - clean)
    share = linprog(np.append(bad_in, -bad_in.sum()) / n, **how)
    return None if outside.status or share.status else (-outside.fun, share.fun)


def capped_ratio(num_records, num_bad):
    """The least ratio of corrupted to clean scores of the tail, capped at C, over all scores and all C for which the
    capped scores exceed 1 by ψ/3 in all, under the hypotheses of Lemma E.2. Exact, by linear programs as above.

    Paper: prime, Lemma E.3 (at least 10).
    """
    best = math.inf
    for sizes in _all_groups(num_records, num_bad):
        for above in itertools.product(*(range(s + 1) for s in sizes)):
            low = np.array(sizes) - np.array(above)
            best = min(best, _capped(low, np.array(above), num_records))
    return best


def _capped(low, high, n):
    """Variables: scores of four groups below C, of four above it, C and 1."""
    weight, one = np.concatenate([low, high]).astype(float), np.eye(10)
    inside, clean = np.tile([1, 0, 1, 0], 2), np.tile([0, 0, 1, 1], 2)
    rows = [one[i] - one[8] for i in range(4) if low[i]] + [one[8] - one[4 + i] for i in range(4) if high[i]]
    for out, within in itertools.product(np.flatnonzero(1 - inside), np.flatnonzero(inside)):
        if weight[out] and weight[within]:
            rows.append(one[out] - one[within])
    size = weight.sum()
    psi = np.concatenate([weight, [0, -size]]) / n
    capped = np.concatenate([low, np.zeros(4), [high.sum(), -size]]) / n
    rows += [np.concatenate([weight * clean, [0, -(weight * clean).sum()]]) / n - SMALL * psi]
    rows += [np.concatenate([weight * clean * inside, [0, 0]]) / n - SMALL * psi, psi / 3 - capped]
    part = [np.concatenate([low * k, np.zeros(4), [(high * k).sum(), 0]]) for k in ([0, 0, 1, 0], [1, 0, 0, 0])]
    if not part[0].any():
        return math.inf
    how = {"A_ub": np.array(rows), "b_ub": np.zeros(len(rows)), "A_eq": part[0][None], "b_eq": [1.0]}
    found = linprog(part[1], method="highs", **how)
    return math.inf if found.status else float(found.fun)


def largest_rise(points):
    """The largest eigenvalue of M(S') − M(S) over all S' ⊂ S, M normalised by n: at most 0.

    Paper: prime, Lemma G.1.
    """
    points = checks.array("points", points, ndim=2)
    n, worst = len(points), -math.inf

    def moment(chosen):
        rows = points[chosen]
        return (rows - rows.mean(axis=0)).T @ (rows - rows.mean(axis=0)) / n

    parts = {c: moment(list(c)) for k in range(1, n + 1) for c in itertools.combinations(range(n), k)}
    for whole, part in itertools.product(parts, parts):
        if set(part) < set(whole):
            worst = max(worst, float(np.linalg.eigvalsh(parts[part] - parts[whole])[-1]))
    return worst


# ------------------------------------------------------------------------------------------------------------ good sets


def normal_constants(corruption_rate):
    """(part's mean, part's covariance): the constants of Definition G.2 for infinitely many Normal records. Exact.

    Paper: prime, Definition G.2.
    """
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5, open_low=True, open_high=True)
    log = math.log(1 / rate)
    z, w = float(ndtri(2 * rate)), float(ndtri(rate))
    near = float(ndtri(0.5 + rate))  # the 2α nearest: E[z² | |z| < near] = 1 − near φ(near)/α
    second = max(-w * _pdf(w) / rate, near * _pdf(near) / rate)
    return _pdf(z) / (2 * rate) / math.sqrt(log), second / log


def good_constants(points, *, corruption_rate, along=None):
    """The least constants with which a set of mean 0 meets Definition G.2 and Lemmas G.4 to G.6, over directions v.

    Sums over parts are those of one sort along v. Keys: :data:`GOOD` (the definition's four); ``small part`` — second
    moment of a part of 2αn over αlog(1/α) (G.4);  ``large part`` — distance from I of that of (1 − 2α)n;  ``small
    part's mean``, ``large part's mean`` (G.5);  ``least`` — c₁ of Lemma G.6.

    Paper: prime, Definition G.2, Lemmas G.3, G.4, G.5, G.6.
    Args: along — directions v, (m, d), None: those of the module.
    """
    points = checks.array("points", points, ndim=2)
    n, d = points.shape
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5, open_low=True, open_high=True)
    k = max(1, math.floor(2 * rate * n * (1 + 1e-12)))
    log, mean = math.log(1 / rate), points.mean(axis=0)
    root, level = rate * math.sqrt(log), rate * log
    found = dict.fromkeys((*GOOD, "small part", "large part", "small part's mean", "large part's mean", "least"), 0.0)

    def note(name, value):
        found[name] = max(found[name], float(value))

    note("mean", np.linalg.norm(mean) / root)
    covariance = np.linalg.eigvalsh(np.cov(points.T, bias=True).reshape(d, d))
    note("covariance", max(abs(covariance[-1] - 1), abs(covariance[0] - 1)) / level)
    for v in resilience.directions(d, num=60) if along is None else along:
        z = np.sort(points @ v)
        about, square = np.sort((z - mean @ v) ** 2), np.sort(z**2)
        note("part's mean", max(abs(z[:k].mean()), abs(z[-k:].mean())) / math.sqrt(log))
        note("part's covariance", max(abs(about[-k:].mean() - 1), abs(about[:k].mean() - 1)) / log)
        note("small part", square[-k:].sum() / n / level)
        note("small part's mean", max(z[-k:].clip(0).sum(), -z[:k].clip(None, 0).sum()) / n / root)
        rest = square[: n - k].mean(), square[k:].mean()
        note("large part", max(abs(rest[0] - 1), abs(rest[1] - 1)) / level)
        note("large part's mean", max(abs(z[k:].mean()), abs(z[:-k].mean())) / root)
        sums, squares = np.append(0, np.cumsum(z)), np.append(0, np.cumsum(z**2))
        s = n - k
        window = squares[s:] - squares[:-s] - (sums[s:] - sums[:-s]) ** 2 / s
        note("least", (1 - window.min() / n) / level)
        note("large part", (1 - window.min() / s) / level)
    return found


def good_bounds(constants, *, corruption_rate):
    r"""What Definition G.2's constants c₁ … c₄ alone imply for Lemmas G.4 and G.5: the same keys, upper bounds.

    *Proof.* About μ(S) a part of 2αn has second moment at most 1 + c₄L, L = log(1/α), and about 0 at most twice that
    plus 2c₁²α²L. Leaving it out takes at most 2α times as much from one that is within c₂αL + c₁²α²L of I. A part's
    mean is within c₃√L of 0; leaving it out moves the mean by 2α c₃√L/(1 − 2α) at most, beside c₁α√L. ∎

    Paper: prime, Lemmas G.4 and G.5.
    """
    rate = corruption_rate
    log, (first, second, third, fourth) = math.log(1 / rate), [constants[name] for name in GOOD]
    moved = first**2 * rate**2 * log
    part = 2 * (1 + fourth * log) + 2 * moved
    keep = 1 - 2 * rate
    large = (second * rate * log + moved + 2 * rate * (part + 1)) / keep + (
        (first + 2 * third) * rate * math.sqrt(log) / keep
    ) ** 2
    return {
        "small part": 2 * rate * part / (rate * log),
        "large part": large / (rate * log),
        "small part's mean": 2 * third,
        "large part's mean": (first + 2 * third) / keep,
    }


def stated_good_size(dimension, *, corruption_rate, failure_prob):
    """(d + log(1/δ))/(α² log(1/α)), the constant taken as 1. Paper: prime, Lemma G.3."""
    rate = corruption_rate
    return math.ceil((dimension + math.log(1 / failure_prob)) / (rate**2 * math.log(1 / rate)))


def mean_constant(corruption_rate, *, num=60):
    """The least k with which (1 − α)‖μ(T) − μ‖ ≤ √(α(‖M(T) − I‖ + kα log(1/α))) + kα√log(1/α), for infinitely many
    Normal records: up to 2α of them lost from one end, up to α others at one point, over a grid of both.

    Paper: prime, Lemma G.7 (whose two constants are taken as one).
    Args: num — points of the grid.
    """
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5, open_low=True, open_high=True)
    log, worst = math.log(1 / rate), 0.0
    for lost, bad in itertools.product(2 * rate * np.linspace(0, 1, 9), (0.0, rate / 2, rate)):
        u = float(ndtri(1 - lost)) if lost else math.inf
        first = -_pdf(u) if lost else 0.0
        second = 1 - lost - (u * _pdf(u) if lost else 0.0)
        for t in [0.0, *np.geomspace(0.1, 100, num), *-np.geomspace(0.1, 100, num)]:
            kept = 1 - lost + bad
            mean = (first + bad * t) / kept
            matrix = second + bad * t * t - kept * mean**2
            norm = max(abs(matrix - 1), lost)
            worst = max(worst, _least_k((1 - rate) * abs(mean), rate, norm, log))
    return worst


def _least_k(left, rate, norm, log):
    def short(k):
        return left - math.sqrt(rate * (norm + k * rate * log)) - k * rate * math.sqrt(log)

    if short(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while short(high) > 0:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) > 0 else (low, middle)
    return high


# ---------------------------------------------------------------------------------------------------------------- noise


def norm_exceeds(dimension, *, failure_prob):
    """P(‖X‖ > σ√(d log(1/ζ))), X Normal: exact. Printed as at most ζ, for all ζ.

    Paper: prime, Lemma G.10.
    """
    return float(chi2.sf(dimension * math.log(1 / failure_prob), dimension))


def norm_constant(dimension, *, failure_prob):
    """The least c with P(‖X‖ > cσ√(d log(1/ζ))) ≤ ζ. It is 1 at d = 2; √2 will do for all d where ζ ≤ 1/2; none for
    all ζ.

    Paper: prime, Lemma G.10.
    """
    return math.sqrt(float(chi2.isf(failure_prob, dimension)) / (dimension * math.log(1 / failure_prob)))


def norm_upper(dimension, *, failure_prob):
    """‖X‖/σ is at most this with probability 1 − ζ, any ζ: √d + √(2 log(1/ζ)) (the norm is 1-Lipschitz).

    Paper: prime, Lemma G.10.
    Printed: √(d log(1/ζ)), below the median where ζ > 1/e, and at d = 1 for all small ζ.   Used: the above.
    """
    return math.sqrt(dimension) + math.sqrt(2 * math.log(1 / failure_prob))


def symmetric_norm_upper(dimension, *, failure_prob):
    r"""‖Z‖₂/σ of a symmetric Normal matrix is at most this with probability 1 − ζ: 2√d + 2√log(2/ζ).

    *Proof.* Eλ₁(Z) ≤ 2√d σ (Gaussian comparison; adding to the diagonal only raises it), λ₁ is √2-Lipschitz in the
    entries on and above the diagonal, and both ends of the spectrum are alike. ∎

    Paper: prime, Lemma G.11.
    Printed: √(d log(1/ζ)), for all ζ: below 2√d, where the norm is, for ζ > e⁻⁴.   Used: the above.
    """
    return 2 * math.sqrt(dimension) + 2 * math.sqrt(math.log(2 / failure_prob))


def histogram_constant(num_bins, *, failure_prob, delta):
    """The least c with which Normal noise of std √2·√(2 log(1.25/δ))/(nε) on K bins stays below
    c√(log(K/ζ) log(1/δ))/(nε) with probability 1 − ζ. Exact.

    Paper: prime, Lemma G.12.
    """
    one = -math.expm1(math.log1p(-failure_prob) / num_bins)  # of a bin
    largest = -float(ndtri(one / 2)) * 2 * math.sqrt(math.log(1.25 / delta))
    assert abs((1 - 2 * ndtr(-largest / 2 / math.sqrt(math.log(1.25 / delta)))) ** num_bins - 1 + failure_prob) < 1e-6
    return largest / math.sqrt(math.log(num_bins / failure_prob) * math.log(1 / delta))


def histogram_sensitivity(num_records, num_bins):
    """The largest l2 distance of two histograms of shares that differ in one replaced record, by enumeration, times n.

    Paper: prime, Lemma G.12 (√2).
    """
    worst = 0.0
    for rest in itertools.combinations_with_replacement(range(num_bins), num_records - 1):
        base = np.bincount(rest, minlength=num_bins)
        for a, b in itertools.combinations(range(num_bins), 2):
            worst = max(worst, float(np.linalg.norm((base + np.eye(num_bins)[a]) - (base + np.eye(num_bins)[b]))))
    return worst


# --------------------------------------------------------------------------------------------------------------- regret


def regret(gains, *, step):
    """(left side, right side) of the regret bound, gains G_t = Σ_t − I with αG_t ⪯ I, U the best one afterwards:
    λ₁(ΣG_t) − Σ⟨G_t, U_t⟩, and αΣ‖G_t‖⟨abs(G_t), U_t⟩ + log(d)/α.

    Paper: prime, Lemma G.14.
    Args: gains — symmetric, (T, d, d);  step — α.
    """
    total, earned, right = np.zeros(gains.shape[1:]), 0.0, math.log(gains.shape[1]) / step
    for gain in gains:
        weights = mmw.weights(total, step=step)
        values, vectors = np.linalg.eigh(gain)
        size = np.abs(values)
        earned += float((gain * weights).sum())
        right += step * size.max() * float((((vectors * size) @ vectors.T) * weights).sum())
        total = total + gain
    return float(np.linalg.eigvalsh(total)[-1]) - earned, right


def worst_regret(rng, *, num_sequences, num_steps=12, most=4):
    """The largest left side over right side, over random sequences: of low rank, of one sign, alternating; a third of
    them with the largest step allowed, and each bettered by chance changes.

    Paper: prime, Lemma G.14.
    Args: num_sequences — how many;  most — largest d.
    """
    worst = 0.0
    for _ in range(checks.integer("num_sequences", num_sequences, low=1)):
        d = int(rng.integers(1, most + 1))
        best = -math.inf
        gains = rng.standard_normal((num_steps, d, d)) * rng.exponential(2.0)
        for trial in range(12):
            other = gains + (trial > 0) * 0.5 * rng.standard_normal((num_steps, d, d)) * rng.exponential(1.0)
            other = (other + other.transpose(0, 2, 1)) / 2
            if trial == 0 and rng.random() < 0.5:
                v = rng.standard_normal((num_steps, d, 1))
                other = v @ v.transpose(0, 2, 1) * rng.choice([-1.0, 1.0], (num_steps, 1, 1)) ** rng.integers(2)
            top = max(float(np.linalg.eigvalsh(other)[:, -1].max()), 1e-9)
            left, right = regret(other, step=float(rng.choice([1.0, 1.0, rng.random()])) / top)
            if left / right > best:
                best, gains = left / right, other
        worst = max(worst, best)
    return worst
