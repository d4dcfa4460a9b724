r"""Private means that do not filter: the baseline of the figures, and one that closes in on the data (COINPRESS)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from privrob import checks
from privrob.mechanisms.noise import Gaussian
from privrob.mechanisms.ranges import PrivateRange
from privrob.robust.filtering import FilteredSet, Outcome, check_data, check_location, refused
from privrob.robust.noiseplan import Entry, NoisePlan, gdp_budget
from privrob.robust.rows import Ball, Cube, Rows


def dp_mean(data, *, epsilon, delta, rng, clip="cube", range_share=0.15, failure_prob=0.1, location=None,
            noise_records=None):  # fmt: skip
    r"""The mean of clipped records with Normal noise: the "DP mean" of the figures, with its noise.

    Paper: prime, Figures 1 and 2 (DP mean of Kamath et al. 2019; the authors' script adds no noise to it).
    Used: the exact Gaussian mechanism, as ε = 20 and 100 are beyond the classic formula: at ε = 20 that one has 48
        times the δ of 0.01 that it states.
    Args: clip — ``cube`` (half width 3 + √(2 log(2nd/ζ))) or ``ball``;  range_share — of μ²;  location — x̄ if public;
        noise_records — the n that noise and region are made for, where it isn't the data's own: a virtual sample size,
        for study, and not private beyond n.
    """
    checks.choice("clip", clip, ["cube", "ball"])
    checks.generator("rng", rng)
    n, d, _ = check_data(data, 0.0)
    if n < 1:
        return refused("no records")
    real, n = n, n if noise_records is None else checks.integer("noise_records", noise_records, low=1)
    mu, lost = gdp_budget(epsilon, delta=delta)
    checks.real("range_share", range_share, low=0.0, high=1.0, open_low=True, open_high=True)
    checks.probability("failure_prob", failure_prob, allow_zero=False)
    location = None if location is None else check_location(location, d)
    error = 3.0 if clip == "cube" else 1.0
    where = PrivateRange.gaussian(mu * math.sqrt(range_share), lost_prob=lost, dimension=d)
    tail = math.sqrt(2 * math.log((2 * d if clip == "cube" else 1) * n / failure_prob))

    def region(centre):
        if clip == "cube":
            return Cube(centre, 2 * (error + tail))
        return Ball(centre, math.sqrt(d * (1 + error**2)) + tail)

    std = region(np.zeros(d)).diameter / n / (mu * math.sqrt(1 - range_share))
    return mean_in_range(
        data, region=region, where=where, noise_std=std, num_records=n, private=n <= real, rng=rng, location=location
    )


def mean_in_range(data, *, region, where, noise_std, num_records, private, rng, location):
    """Find the range, clip to the region about its centre, and release the mean with Normal noise.

    Args: region — centre (d,) to :class:`.Cube` or :class:`.Ball`;  where — :class:`.PrivateRange`;  num_records — n
        that the sensitivity, diameter / n, is of;  private — whether that n is at most the data's;  location — a public
        centre instead of the range's, or None.
    Returns: :class:`~privrob.robust.filtering.Outcome`, its plan with an entry for each release.
    """
    checks.generator("rng", rng)
    d = np.shape(data)[1]
    noise = Gaussian(noise_std, region(np.zeros(d)).diameter / num_records)
    entries = [Entry(f"range {i}", g, c) for i, (g, c) in enumerate(where.entries(d))]
    plan = NoisePlan((*entries, Entry("mean", noise)), private=private, location=where)
    range_rng, noise_rng = rng.spawn(2)
    if location is None:
        found = where.release(data, rng=range_rng)
        if found.centre is None:
            return replace(refused(found.reason), noise=plan)
        location = found.centre
    box = region(location)
    mean = FilteredSet(Rows(data, box)).mean
    return Outcome(box.centre + noise.release(mean, rng=noise_rng), "converged", "", noise=plan)


def shrinking_mean(data, *, epsilon, delta, rng, radius, num_steps=4, failure_prob=0.1):
    r"""A mean in a ball that shrinks from step to step, written after COINPRESS (Biswas et al. 2020): not robust.

    Each step clips to the ball about the last estimate, of radius r_t + √d + √(2 log(n/ζ)), and asks for the mean; the
    next r is what its noise and the sampling leave, with probability 1 − ζ. Half of μ² goes to the last step.

    Paper: prime, Section 5 ("a robust version of COINPRESS" is left open).
    Args: radius — R with ‖μ‖ ≤ R, public;  num_steps — t.
    """
    checks.generator("rng", rng)
    n, d, _ = check_data(data, 0.0)
    radius = checks.positive("radius", radius, finite=True)
    steps = checks.integer("num_steps", num_steps, low=1)
    checks.probability("failure_prob", failure_prob, allow_zero=False)
    if n < 1:
        return refused("no records")
    mu = gdp_budget(epsilon, delta=delta, lost_share=0.0)[0]
    shares = [0.5 / (steps - 1)] * (steps - 1) + [0.5] if steps > 1 else [1.0]
    centre, entries, trace = np.zeros(d), [], []
    reach = math.sqrt(d) + math.sqrt(2 * math.log(n / failure_prob))
    for step, share in enumerate(shares):
        box = Ball(centre, radius + reach)
        noise = Gaussian(box.diameter / n / (mu * math.sqrt(share)), box.diameter / n)
        entries.append(Entry(f"mean {step}", noise))
        mean = FilteredSet(Rows(data, box)).mean
        centre = box.centre + noise.release(mean, rng=rng)
        trace.append({"step": step, "radius": radius, "noise_std": noise.noise_std})
        both = noise.noise_std**2 + 1 / n
        radius = min(radius, math.sqrt(both) * (math.sqrt(d) + math.sqrt(2 * math.log(steps / failure_prob))))
    return Outcome(centre, "converged", "", tuple(trace), noise=NoisePlan(tuple(entries)))
