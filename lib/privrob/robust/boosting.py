r"""From an estimate that is good with probability 0.9 to one that is good with probability 1 − ζ."""

from __future__ import annotations

import math

import numpy as np

from privrob import checks
from privrob.robust.filtering import Outcome, check_data, refused


def central(estimates):
    """The estimate whose median distance to the others is least: if more than half lie within r of μ, it is within 3r.

    Paper: prime, Remark 1 ("mean-of-means" of Lugosi and Mendelson: all pairwise distances).
    Args: estimates — (k, d).
    Returns: (d,).
    """
    estimates = checks.array("estimates", estimates, ndim=2)
    checks.integer("number of estimates", len(estimates), low=1)
    gaps = np.array([np.linalg.norm(estimates - one, axis=1) for one in estimates])
    middle = np.sort(gaps, axis=1)[:, len(estimates) // 2]  # of itself too: more than half lie this near
    return estimates[int(np.argmin(middle))]


def mean_of_means(data, estimator, *, num_parts, rng):
    """The central one of the estimates of disjoint parts of the records, drawn without looking at them.

    A record is in one part only, so that (ε, δ) of ``estimator`` is (ε, δ) of the whole (parallel composition). A part
    has 1/k of the records, so k times the noise: where most parts don't converge, neither does the whole.

    Paper: prime, Remark 1.
    Args: estimator — function of (records, rng) → :class:`~privrob.robust.filtering.Outcome`;  num_parts — log(1/ζ) up
        to a constant.
    """
    checks.generator("rng", rng)
    n, _, _ = check_data(data, 0.0)
    parts = checks.integer("num_parts", num_parts, low=1)
    if n < parts:
        return refused(f"too few records: {n} for {parts} parts")
    order = rng.permutation(n)
    found = [estimator(data[np.sort(p)], r) for p, r in zip(np.array_split(order, parts), rng.spawn(parts))]
    good = [o for o in found if o.estimate is not None]
    trace = tuple({"part": k, "status": o.status, "reason": o.reason} for k, o in enumerate(found))
    if 2 * len(good) <= parts:
        return refused(f"{parts - len(good)} of {parts} parts gave no estimate", trace)
    passed = sum(o.status == "converged" for o in good)
    status, reason = ("converged", "") if 2 * passed > parts else ("exhausted", f"{passed} of {parts} parts converged")
    return Outcome(central([o.estimate for o in good]), status, reason, trace, noise=good[0].noise)


def repeated(data, estimator, *, epsilon, delta, num_runs, rng):
    r"""The central one of the converged runs of several on *all* records: the budget is shared by the runs.

    Paper: prime, Section 3 ("run PRIME log(1/ζ) times and choose the output of a run that satisfies n^(s) > n(1 − 10α)
        and λ^(s) ≤ Cα log(1/α) at termination").
    Printed: at the same (ε, δ): k runs cost (kε, kδ).   Used: (ε/k, δ/k) each; the choice reads released numbers only.
    Args: estimator — function of (records, rng, epsilon=, delta=) → :class:`~privrob.robust.filtering.Outcome`;
        num_runs — k.
    """
    checks.generator("rng", rng)
    runs = checks.integer("num_runs", num_runs, low=1)
    found = [estimator(data, r, epsilon=epsilon / runs, delta=delta / runs) for r in rng.spawn(runs)]
    good = [o for o in found if o.status == "converged"] or [o for o in found if o.estimate is not None]
    trace = tuple({"run": k, "status": o.status, "reason": o.reason} for k, o in enumerate(found))
    if not good:
        return refused(f"none of {runs} runs gave an estimate", trace)
    return Outcome(central([o.estimate for o in good]), good[0].status, "", trace, noise=[o.noise for o in found])


def runs_for(failure_prob, *, single=0.1):
    """Runs k after which half fail with probability at most ζ, each failing with this probability: exact, odd.

    Args: single — that probability, below 1/2.
    """
    from scipy.stats import binom

    zeta = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False)
    single = checks.real("single", single, low=0.0, high=0.5, open_high=True)
    k = 1
    while binom.sf(math.ceil(k / 2) - 1, k, single) > zeta:
        k += 2
    return k
