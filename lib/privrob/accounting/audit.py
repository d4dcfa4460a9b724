r"""Empirical lower bounds on ε: what an attack on samples proves, with a stated probability of being wrong.

An attack is a set of outputs S. If a mechanism is (ε, δ)-DP then :math:`P(S) \le e^\varepsilon Q(S) + \delta`, so

.. math:: \varepsilon \ge \log\frac{P(S) - \delta}{Q(S)},

and Clopper–Pearson bounds on both probabilities make that a bound from counts. The set is chosen on one half of the
samples and measured on the other, so that choosing costs no confidence; several sets on the same samples share the
failure probability (Bonferroni).

One run can do as well: m canaries, each in the data with probability 1/2, and a guess for some of them. Under ε-DP the
number of right ones among r guesses is stochastically at most Binomial(r, e^ε/(1 + e^ε)), whatever else the data hold.

A mechanism is anything with ``release(data, *, rng)``: :func:`two_inputs` attacks it on two neighbouring inputs, in
many runs, and :func:`canaries_in_one_run` in one.

Source: Jagielski et al. 2020 and Nasr et al. 2021 (many runs); Steinke, Nasr and Jagielski 2023 (one run).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrc, betainc, betaincc, expit
from scipy.stats import beta

from privrob import checks

MOST_TRIALS = 2**53  # above, not every count is a double
TRUSTED_TRIALS = 10**6  # up to here SciPy's quantiles give their tail back to 2e-6; from 3e7 on some are off by much
TRUSTED_GUESSES = 10**5  # SciPy's binomial tails: 2e-10 too low here, 4e-6 at 1e9, nothing from 2**31 on
TAIL_SLACK = 1e-6  # the beta distribution function itself is good to 4e-8 relative at 1e16 trials, against mpmath


def clopper_pearson(hits, trials, *, failure_prob):
    """Exact two-sided interval of a binomial probability, wrong with probability at most ``failure_prob``.

    Above 10⁶ trials each end is put back into the beta distribution, and searched for anew where it misses its tail.

    Args: hits — successes, whole numbers, any shape;  trials — at least 1, at most 2⁵³, broadcasts.
    Returns: (lower, upper), each the shape of the broadcast.
    """
    hits, trials = np.broadcast_arrays(checks.array("hits", hits), checks.array("trials", trials))
    if not ((trials >= 1) & (hits >= 0) & (hits <= trials)).all():
        raise ValueError("hits must lie in [0, trials] and trials be at least 1")
    for name, counts in (("hits", hits), ("trials", trials)):
        if (broken := counts[counts != np.floor(counts)]).size:
            raise ValueError(f"{name} must be whole numbers, got {name}={float(broken[0])!r}; pass counts, not shares")
    if (trials > MOST_TRIALS).any():
        way_out = "pass fewer trials, with the hits among them"
        raise ValueError(f"trials must lie in [1, 2**53], got trials={float(trials.max())!r}; {way_out}")
    tail = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False) / 2
    with np.errstate(invalid="ignore"):
        lower = np.where(hits == 0, 0.0, beta.ppf(tail, hits, trials - hits + 1))
        upper = np.where(hits == trials, 1.0, beta.isf(tail, hits + 1, trials - hits))
    large = trials > TRUSTED_TRIALS
    if large.any():
        k, n = hits[large], trials[large]
        lower[large] = _checked(betainc, lower[large], k, n - k + 1, tail, safe="below")
        upper[large] = _checked(betaincc, upper[large], k + 1, n - k, tail, safe="above")
    return lower[()], upper[()]


def _checked(tail_prob, quantiles, a, b, tail, *, safe):
    """Beta quantiles, replaced where ``tail_prob`` of them is not the tail: by the nearest double on the safe side.

    Positive doubles are ordered as their bits are, so that bisection on the bits ends at two neighbours.
    """
    inside = (a > 0) & (b > 0)  # else the end is 0 or 1
    off = np.flatnonzero(inside & ~(np.abs(tail_prob(a, b, quantiles) / tail - 1) <= TAIL_SLACK))
    a, b = a[off], b[off]
    low, high = np.zeros(off.size, np.int64), np.full(off.size, np.float64(1.0).view(np.int64))
    while (high - low > 1).any():
        middle = low + (high - low) // 2
        small = tail_prob(a, b, middle.view(np.float64)) <= tail * (1 - TAIL_SLACK)
        up = small if safe == "below" else ~small
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    quantiles[off] = (low if safe == "below" else high).view(np.float64)
    return quantiles


def epsilon_from_counts(hits_p, trials_p, hits_q, trials_q, *, delta, failure_prob):
    """Lower bound on ε from how often an attack's set was hit under P and under Q; 0 when the counts prove nothing.

    Both intervals hold together except with probability ``failure_prob`` (half for each, one side of each used).

    Args: hits_p, hits_q — how many of ``trials_p`` samples of P and of ``trials_q`` samples of Q were in the set, whole
        numbers or arrays of one shape.
    """
    delta = checks.probability("delta", delta, allow_one=False)
    lower_p, _ = clopper_pearson(hits_p, trials_p, failure_prob=failure_prob)  # one side of it: half the failures
    _, upper_q = clopper_pearson(hits_q, trials_q, failure_prob=failure_prob)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.log(np.maximum(lower_p - delta, 0.0)) - np.log(upper_q)
    return np.maximum(np.nan_to_num(bound, nan=0.0, neginf=0.0), 0.0)[()]


def epsilon_from_sets(hits_p, trials_p, hits_q, trials_q, *, delta, failure_prob):
    """The best of several sets' lower bounds on ε, from the same samples: each gets an equal share of the failures.

    Args: hits_p, hits_q — hits of each set under P and under Q, shape (k,), all fixed before the samples were seen;
        trials_p, trials_q — samples of each.
    """
    hits_p, hits_q = np.atleast_1d(checks.array("hits_p", hits_p)), np.atleast_1d(checks.array("hits_q", hits_q))
    if hits_p.shape != hits_q.shape or hits_p.ndim != 1 or hits_p.size == 0:
        raise ValueError(f"hits_p and hits_q need one entry for each set, got shapes {hits_p.shape} and {hits_q.shape}")
    share = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False) / hits_p.size
    return float(epsilon_from_counts(hits_p, trials_p, hits_q, trials_q, delta=delta, failure_prob=share).max())


def guesses_failure_prob(num_correct, *, num_guesses, num_canaries, epsilon, delta):
    r"""Probability, at most, that an (ε, δ)-DP mechanism lets so many guesses be right.

    .. math:: P(B \ge v) + 2 m \delta \max_{1 \le i \le v} \tfrac1i P(v > B \ge v - i),
              \quad B \sim \text{Binomial}\big(r, \tfrac{e^\varepsilon}{1 + e^\varepsilon}\big)

    The right guesses are at most B + F in distribution, with F ≥ 0 whole and of mean at most 2mδ (Steinke, Nasr and
    Jagielski 2023, the bound for approximate DP); the second term is the largest that such an F can add.

    Assumes: each canary in the data with probability 1/2, independently; the number of guesses fixed beforehand;
    guesses made from the output alone.
    Side: upper; of more than 10⁵ guesses, by about 1e-6 (δ = 0) or 1e-3 of itself.
    Args: num_correct — v;  num_guesses — r, abstentions left out;  num_canaries — m.
    """
    m = checks.integer("num_canaries", num_canaries, low=1, high=MOST_TRIALS)
    r = checks.integer("num_guesses", num_guesses, low=0, high=m)
    v = checks.integer("num_correct", num_correct, low=0, high=r)
    epsilon, delta = checks.nonnegative("epsilon", epsilon), checks.probability("delta", delta)
    if v == 0 or epsilon == math.inf:
        return 1.0
    if r > TRUSTED_GUESSES:
        return _many_guesses(v, r, expit(-epsilon), 2 * m * delta)
    right = 1 / (1 + math.exp(-epsilon))
    added = 0.0
    if delta > 0:
        fewer = bdtr(v - 1, r, right) - np.append(bdtr(np.arange(v - 2, -1, -1), r, right), 0.0)
        added = 2 * m * delta * float((fewer / np.arange(1, v + 1)).max())
    return min(1.0, float(bdtrc(v - 1, r, right)) + added)


def _many_guesses(v, r, wrong, mean_added):
    """The same, each term rounded up; the maximum over ranges of i: the largest sum of one over its smallest i.

    No sum exceeds i times the largest mass, which Stirling's formula bounds.
    """
    low, high = wrong * (1 - 1e-15), wrong * (1 + 1e-15)
    least = float(betaincc(r - v + 1.0, v, low)) * (1 + TAIL_SLACK)
    if mean_added == 0 or not least < 1:
        return min(1.0, least) if least >= 0 else 1.0
    ends = np.arange(1.0, min(v, 1000) + 1)
    if v > 1000:
        steps = np.geomspace(1000, v, 2 + math.ceil(1000 * math.log(v / 1000)))
        ends = np.append(ends, np.unique(np.clip(np.rint(steps), 1001, v)))
    starts = np.append(1.0, ends[:-1] + 1)
    below = betainc(r - v + 1.0, v, high) * (1 + TAIL_SLACK)
    left = np.maximum(v - ends, 0.0)  # P(B < left)
    out = np.where(left > 0, betainc(r - left + 1.0, np.maximum(left, 1.0), low), 0.0) * (1 - TAIL_SLACK)
    at = (r + 1) * low - 2  # wrong guesses, not beyond the likeliest number of them
    largest = math.sqrt(r / (2 * math.pi * at * (r - at))) if at >= 1 else 1.0
    sums = np.minimum(np.maximum(below - out, 0.0), np.minimum(ends * largest, 1.0))
    return min(1.0, least + mean_added * float((sums / starts).max()) * (1 + 1e-9))


def epsilon_from_guesses(num_correct, *, num_guesses, num_canaries, delta, failure_prob):
    """Lower bound on ε from the right guesses of one run; 0 when they prove nothing. See :func:`guesses_failure_prob`.

    Any ε refuted at ``failure_prob`` will do: rejections are nested in the number of right guesses, so that the least
    of them bounds the failures of all.
    """
    failure_prob = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False)

    def refuted(epsilon):
        settings = {"num_guesses": num_guesses, "num_canaries": num_canaries, "delta": delta}
        return guesses_failure_prob(num_correct, epsilon=epsilon, **settings) <= failure_prob * (1 - 1e-9)

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Audit:
    """What an attack proved: ``epsilon_lower``, wrong with probability at most ``failure_prob``.

    The set lies on one ``side`` of ``threshold`` ("above", "below"); ``direction`` is "P over Q" or "Q over P";
    ``samples`` counts the outputs that were measured, without those that chose the set.
    """

    epsilon_lower: float
    threshold: float
    side: str
    direction: str
    delta: float
    failure_prob: float
    samples: int


def two_samples(scores_p, scores_q, *, delta, failure_prob=1e-3, num_thresholds=200):
    """Audit by thresholds on a score: outputs of a mechanism on two neighbouring inputs, the more of them the better.

    Args: scores_p, scores_q — real outputs (or attack scores) on the two inputs, shapes (n,) and (m,), at least 4 each;
        delta — of the claim under attack;  num_thresholds — candidates tried on the first half.
    Returns: :class:`Audit`. A correct (ε, δ) claim is exceeded with probability at most ``failure_prob``.
    """
    num_thresholds = checks.integer("num_thresholds", num_thresholds, low=1, high=10**7)
    p, q = checks.array("scores_p", scores_p, ndim=1), checks.array("scores_q", scores_q, ndim=1)
    if min(p.size, q.size) < 4:
        raise ValueError(f"scores_p and scores_q need at least 4 samples each, got {p.size} and {q.size}")
    (p_try, p_test), (q_try, q_test) = np.array_split(p, 2), np.array_split(q, 2)
    thresholds = np.unique(np.quantile(np.concatenate([p_try, q_try]), np.linspace(0, 1, num_thresholds)))
    best = (-math.inf, "", "", 0.0)
    for direction, (a, b) in {"P over Q": (p_try, q_try), "Q over P": (q_try, p_try)}.items():
        for side in ("above", "below"):
            hits = [_hits(v, thresholds, side) for v in (a, b)]
            bounds = epsilon_from_counts(hits[0], a.size, hits[1], b.size, delta=delta, failure_prob=failure_prob)
            i = int(np.argmax(bounds))
            best = max(best, (float(bounds[i]), side, direction, float(thresholds[i])))
    _, side, direction, threshold = best
    a, b = (p_test, q_test) if direction == "P over Q" else (q_test, p_test)
    hits = [int(_hits(v, np.array([threshold]), side)[0]) for v in (a, b)]
    epsilon = float(epsilon_from_counts(hits[0], a.size, hits[1], b.size, delta=delta, failure_prob=failure_prob))
    return Audit(epsilon, threshold, side, direction, delta, failure_prob, a.size + b.size)


def _hits(values, thresholds, side):
    """How many values lie above (strictly), or at most at, each threshold."""
    at_most = np.searchsorted(np.sort(values), thresholds, side="right")
    return values.size - at_most if side == "above" else at_most


@dataclass(frozen=True)
class OneRun:
    """What guesses in one run proved: ``epsilon_lower``, wrong with probability at most ``failure_prob``.

    Of ``num_canaries`` canaries, ``num_guesses`` were guessed, ``num_correct`` of them rightly.
    """

    epsilon_lower: float
    num_correct: int
    num_guesses: int
    num_canaries: int
    delta: float
    failure_prob: float


def one_run(scores, included, *, delta, failure_prob=1e-3, num_guesses=None):
    """Audit by the canaries of one run: those with the highest scores are guessed in, as many of the lowest out.

    Args: scores — of each canary, from the output alone, higher where it seems to be in, shape (m,);
        included — which were in, drawn with probability 1/2 each, independently, shape (m,);
        delta — of the claim under attack;
        num_guesses — how many guesses, even and at most m, or a list of such numbers fixed beforehand, which share
        ``failure_prob``; a short list of fractions of m, if left out.
    Returns: :class:`OneRun`. A correct (ε, δ) claim is exceeded with probability at most ``failure_prob``.
    """
    scores, bits = checks.array("scores", scores, ndim=1), np.asarray(included)
    if bits.shape != scores.shape or not np.isin(bits, (0, 1)).all() or scores.size < 2:
        raise ValueError(f"included must hold a 0 or 1 for each of at least 2 scores, got shape {bits.shape}")
    m, bits = scores.size, bits.astype(bool)
    if num_guesses is None:
        num_guesses = sorted({2 * (m >> k) for k in (1, 3, 5) if m >> k >= 5} or {2 * (m // 2)})
    counts = [checks.integer("num_guesses", r, low=0, high=m) for r in np.atleast_1d(np.asarray(num_guesses, object))]
    if not counts or any(r % 2 for r in counts):
        raise ValueError(f"num_guesses must be even, half in and half out, got num_guesses={counts}")
    ranked = bits[np.argsort(scores, kind="stable")]
    best = None
    for r in counts:
        correct = int((~ranked[: r // 2]).sum() + ranked[m - r // 2 :].sum())
        share = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False) / len(counts)
        epsilon = epsilon_from_guesses(correct, num_guesses=r, num_canaries=m, delta=delta, failure_prob=share)
        if best is None or epsilon > best.epsilon_lower:
            best = OneRun(epsilon, correct, r, m, delta, failure_prob)
    return best


def two_inputs(mechanism, data, neighbour, *, score, num_runs, delta, rng, failure_prob=1e-3):
    """Attack a mechanism on two neighbouring inputs: :func:`two_samples` of a score of its outputs.

    Args: mechanism — with ``release(data, *, rng)``;  score — output → number;  num_runs — on each input, at least 4;
        rng — numpy generator;
        data, neighbour — two inputs that the guarantee calls neighbours.
    """
    num_runs = checks.integer("num_runs", num_runs, low=4)
    scores = [[float(score(mechanism.release(x, rng=rng))) for _ in range(num_runs)] for x in (data, neighbour)]
    return two_samples(*scores, delta=delta, failure_prob=failure_prob)


def canaries_in_one_run(
    mechanism, data, canaries, *, score, delta, rng, failure_prob=1e-3, num_guesses=None, join=None
):
    """Attack a mechanism in one run, each canary in its data with probability 1/2: :func:`one_run` of their scores.

    The relation under attack is ``add_remove``: one canary more or less.

    Args: mechanism, rng — as in :func:`two_inputs`;  canaries — array of m records;  score — (output, canaries) → m
        numbers, high where a canary seems to be in;  join — (data, canaries that are in) → input, one after the other
        if left out.
    """
    canaries = np.asarray(canaries)
    included = rng.random(len(canaries)) < 0.5
    join = join or (lambda records, more: np.concatenate([records, more]))
    output = mechanism.release(join(data, canaries[included]), rng=rng)
    scores = score(output, canaries)
    return one_run(scores, included, delta=delta, failure_prob=failure_prob, num_guesses=num_guesses)
