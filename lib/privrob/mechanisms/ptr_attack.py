"""Propose-Test-Release under attack: data sets that attain its two cases, and the privacy losses of runs on them."""

from __future__ import annotations

import numpy as np

from privrob import checks
from privrob.accounting import audit, ptr
from privrob.mechanisms.ptr import ProposeTestRelease
from privrob.mechanisms.statistics import Sum, TrimmedSum


def worst_inputs(case, *, settings):
    """(mechanism, records with one more, records without), where a case of the proof is attained.

    Algorithm 1 on SUM and TSUM, one-dimensional gradients, R = 1, all in one direction. ``test_fails``: both margins
    are 0, and SUM and TSUM move by 1. ``bounded``: the margins are 0 and 1, SUM moves by 1 and TSUM by τ.

    Paper: ptr, A.1 (its cases 1 and 2, attained).
    Args: case — one of :data:`privrob.accounting.ptr.CASES`;  settings —
        :class:`privrob.accounting.ptr.Settings` with a finite b.
    """
    checks.choice("case", case, ptr.CASES)
    bound = settings.sensitivity_bound
    trimmed, without = (1, [[1.0], [1.0]]) if case == "test_fails" else (2, [[bound], [1.0]])
    mechanism = ProposeTestRelease(
        target=Sum(1.0),
        robust=TrimmedSum(trimmed, 1.0),
        sensitivity_bound=bound,
        noise_std=settings.noise_multiplier,
        robust_noise_std=settings.robust_noise_multiplier,
        laplace_scale=checks.positive("scale_ratio", settings.scale_ratio, finite=True, hint="a free test is a limit"),
        test_failure=settings.test_failure,
    )
    return mechanism, np.array([*without, [1.0]]), np.array(without)


def losses(case, *, settings, sample_rate, num_steps, num_runs, rng):
    """Privacy losses of runs of the mechanism on the worst inputs: scores for an attack.

    Each of ``num_steps`` steps draws the record with probability q and releases from what was drawn; the losses of its
    steps add up.

    Args: case — one of :data:`privrob.accounting.ptr.CASES`;  num_runs — with the record, and as many without it.
    Returns: losses with the record in the data, and without it, shape (num_runs,) each, in random order.
    """
    q = checks.probability("sample_rate", sample_rate)
    num_steps, num_runs = checks.integer("num_steps", num_steps, low=1), checks.integer("num_runs", num_runs, low=1)
    mechanism, with_it, without = worst_inputs(case, settings=settings)
    results = []
    for rate in (q, 0.0):
        total = np.zeros(num_runs)
        for _ in range(num_steps):
            drawn = int(rng.binomial(num_runs, rate))
            found = []
            for data, count in ((with_it, drawn), (without, num_runs - drawn)):
                values, margins, _ = mechanism.release_many(data, count, rng=rng)
                found.append(_sampled_loss(mechanism, values, margins, with_it, without, q))
            total += rng.permutation(np.concatenate(found))
        results.append(total)
    return tuple(results)


def _sampled_loss(mechanism, values, margins, with_it, without, rate):
    """log((1 − q) + q e^x) of the unsampled loss x."""
    loss = mechanism.log_density(values, margins, with_it) - mechanism.log_density(values, margins, without)
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-rate), np.log(rate) + loss) if rate < 1 else loss


def epsilon_lower(*, settings, sample_rate, num_steps, num_runs, delta, failure_prob, rng):
    """What attacks on both cases, in both directions, prove of ε: a claim below it is refuted.

    One record is added or removed.

    Args: num_runs — of each case, with the record and without it.
    Returns: float; each of the four attacks is wrong with probability at most ``failure_prob``.
    """
    best = 0.0
    how = {"settings": settings, "sample_rate": sample_rate, "num_steps": num_steps, "num_runs": num_runs, "rng": rng}
    for case in ptr.CASES:
        inside, outside = losses(case, **how)
        for scores in ((inside, outside), (-outside, -inside)):
            found = audit.two_samples(*scores, delta=delta, failure_prob=failure_prob)
            best = max(best, found.epsilon_lower)
    return best
