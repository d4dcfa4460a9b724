r"""Estimators that take exponential time in d, run for d ≤ 3: Algorithm 2, and the private Tukey median.

``constant`` is c_ζ of the heavy-tailed branch.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from privrob import checks
from privrob.mechanisms.exponential import Exponential
from privrob.mechanisms.histogram import Lost
from privrob.mechanisms.noise import Laplace
from privrob.mechanisms.ranges import HeavyTailedRange, PrivateRange
from privrob.robust import resilience
from privrob.robust.filtering import Outcome, check_data, check_location, refused
from privrob.robust.noiseplan import Entry, NoisePlan, check_budget
from privrob.robust.prime import printed_box_side
from privrob.robust.rows import Ball, Rows
from privrob.robust.tukey import depth, on_lattice

_MOST_CANDIDATES = 4_000_000


def grid(centre, *, half_width, spacing, radius=math.inf):
    """Points of a square grid about a centre, those within a radius: shape (k, d). It depends on nothing else.

    Args: half_width — how far it reaches on each axis;  spacing — of neighbouring points.
    """
    centre = checks.array("centre", centre, ndim=1)
    steps = math.floor(
        checks.positive("half_width", half_width, finite=True) / checks.positive("spacing", spacing, finite=True)
    )
    if (2 * steps + 1) ** len(centre) > _MOST_CANDIDATES:
        raise ValueError(
            f"spacing must leave at most {_MOST_CANDIDATES} candidates, got {(2 * steps + 1) ** len(centre)} of them; "
            "take a wider one, or a smaller region"
        )
    axis = spacing * np.arange(-steps, steps + 1)
    points = np.stack(np.meshgrid(*[axis] * len(centre), indexing="ij"), axis=-1).reshape(-1, len(centre))
    return centre + points[np.linalg.norm(points, axis=1) <= radius * (1 + 1e-12)]


def goodness_limit(corruption_rate, *, heavy_tailed=False, constant=1.0):
    """The R(S) that passes: 2α√log(1/α), or 2c√α for heavy tails. Paper: prime, Algorithm 2 (line 5)."""
    rate = corruption_rate
    return 2 * constant * math.sqrt(rate) if heavy_tailed else 2 * rate * math.sqrt(math.log(1 / rate))


def printed_least_records(epsilon, *, delta, corruption_rate, diameter, heavy_tailed=False, constant=1.0):
    r"""Line 1 of Algorithm 2 with the constant that its proof asks for: below it, it outputs ∅.

    3D log(3/δ)/(εα√log(1/α)); 6D log(3/δ)/(cε√α) for heavy tails: from there on the noise of R(S) makes up for its
    distance to the limit with probability δ/3 at most.

    Paper: prime, Lemmas H.6 and H.11 (Algorithm 2, line 1, leaves the constant open).
    """
    limit = goodness_limit(corruption_rate, heavy_tailed=heavy_tailed, constant=constant)
    return (12 if heavy_tailed else 6) * diameter * math.log(3 / delta) / (epsilon * limit)


def exponential_plan(
    epsilon, *, delta, num_records, dimension, corruption_rate, diameter, heavy_tailed=False, constant=1.0,
    form="sound", failure_prob=0.1,
):  # fmt: skip
    r"""The three queries of Algorithm 2, a third of ε each.

    Paper: prime, Algorithm 2, Lemmas H.5–H.7, H.11 and H.12.
    Printed: a density exp(−εnd/(24√log(1/α))), which is the exponential mechanism at all of ε: 5ε/3 in all; sensitivity
        D/n of R (short by 1 − 2α) and 12√log(1/α)/n of d (short from α = 1/11 on); a range for heavy tails that
        spends its third m times too thinly; the guard's δ/3 from :func:`printed_least_records` on only.
    Used: ε/3 for it; the sensitivities of :mod:`privrob.robust.resilience`, d's for the R₀ that R can exceed with
        probability δ/3 only where the test passes, whatever n is.
    """
    n, rate = num_records, corruption_rate
    true_r = resilience.goodness_sensitivity(n, corruption_rate=rate, diameter=diameter)
    limit = goodness_limit(rate, heavy_tailed=heavy_tailed, constant=constant)
    if heavy_tailed:
        how = {"dimension": dimension, "failure_prob": failure_prob, "split": form == "as_printed"}
        location = HeavyTailedRange.as_printed(epsilon / 3, delta=delta / 3, **how)
    else:
        location = PrivateRange.as_printed(epsilon / 3, delta=delta / 3, dimension=dimension)
    entries = [Entry(f"range {i}", g, c) for i, (g, c) in enumerate(location.entries(dimension))]
    lost = delta / 3
    if form == "as_printed":
        scale = 3 * diameter / (n * epsilon)
        bound = 1.5 * limit
        lost = 0.5 * math.exp(-(bound - limit) / scale)
        stated = (12 * constant / math.sqrt(rate) if heavy_tailed else 12 * math.sqrt(math.log(1 / rate))) / n
        true_d = resilience.distance_sensitivity(n, corruption_rate=rate, goodness_bound=bound)
        spent = epsilon * max(1.0, true_d / stated)
        choose = Exponential(epsilon, stated)
        entries.append(Entry("goodness", Laplace(scale, true_r), note="scale is for D/n"))
        entries.append(Entry("choice", Exponential(spent, true_d), note=f"ε, not ε/3, and {true_d / stated:.3g} of 12"))
    else:
        scale = 3 * true_r / epsilon
        bound = limit + scale * math.log(1.5 / delta)  # P(noise < −that) ≤ δ/3
        true_d = resilience.distance_sensitivity(n, corruption_rate=rate, goodness_bound=bound)
        choose = Exponential(epsilon / 3, true_d)
        entries += [Entry("goodness", Laplace(scale, true_r)), Entry("choice", choose)]
    entries.append(Entry("goodness guard", Lost(lost), note="R exceeds its bound and the test passes"))
    return NoisePlan(tuple(entries), location=location), choose, limit


def exponential_time_mean(
    data, *, corruption_rate, epsilon, delta, rng, form="sound", heavy_tailed=False, constant=1.0, spacing=None,
    location=None, half_width=None, failure_prob=0.1, known_goodness=None,
):  # fmt: skip
    r"""A private mean at the optimal sample size, in exponential time: d ≤ 3, and for d = 2, 3 only a dozen records or
    so, as R(S) is enumerated (on the line, any number: a bound on R over windows takes its place, equally sensitive).

    Paper: prime, Algorithm 2 (both branches), Theorems 7 and 8.
    Args: data — (n, d);  form — ``sound`` or ``as_printed``;  constant — c_ζ of the heavy-tailed branch;  spacing — of
        the candidates, α if None;  location — x̄ if public;  half_width — r of the region, √d B/2 as printed if None;
        known_goodness — a bound on R(S) from elsewhere, in place of the enumeration (for study, and then not private:
        nothing says how it moves with a record).
    """
    checks.choice("form", form, ["sound", "as_printed"])
    checks.generator("rng", rng)
    heavy_tailed = checks.boolean("heavy_tailed", heavy_tailed)
    n, d, rate = check_data(data, corruption_rate)
    rate = checks.real("corruption_rate", rate, low=0.0, high=1 / 6, open_low=True, open_high=True, hint="6α < 1")
    epsilon, delta = check_budget(epsilon, delta)
    constant = checks.positive("constant", constant, finite=True)
    location = None if location is None else check_location(location, d)
    s, _, trimmed = resilience.sizes(max(n, 1), rate)
    if n <= 2 * trimmed or s < 2:
        return refused(f"too few records: {n} leave no middle without {trimmed} at each end")
    side = 50 / math.sqrt(rate) if heavy_tailed else printed_box_side(n, d, failure_prob=failure_prob)
    radius = math.sqrt(d) * side / 2 if half_width is None else checks.positive("half_width", half_width)
    plan, choose, limit = exponential_plan(
        epsilon, delta=delta, num_records=n, dimension=d, corruption_rate=rate, diameter=2 * radius,
        heavy_tailed=heavy_tailed, constant=constant, form=form, failure_prob=failure_prob,
    )  # fmt: skip
    if known_goodness is not None:
        known_goodness = checks.nonnegative("known_goodness", known_goodness)
        plan = replace(plan, private=False)
    if form == "as_printed":
        least = printed_least_records(
            epsilon, delta=delta, corruption_rate=rate, diameter=2 * radius, heavy_tailed=heavy_tailed,
            constant=constant,
        )  # fmt: skip
        if n < least:
            return replace(refused(f"too few records: n = {n} is below line 1's {least:.4g}"), noise=plan)
    if location is None:
        found = plan.location.release(data, rng=rng)
        if found.centre is None:
            return replace(refused(found.reason), noise=plan)
        location = found.centre
    region = Ball(location, radius)
    rows = Rows(np.asarray(data, dtype=np.float64), region).take(np.arange(n))
    score = resilience.window_goodness if d == 1 else resilience.goodness
    good = score(rows, corruption_rate=rate) if known_goodness is None else known_goodness
    seen = float(plan["goodness"].release(good, rng=rng))
    trace = ({"goodness": seen, "limit": limit},)
    if seen > limit:
        return replace(refused(f"resilience too large: about {seen:.3g} against {limit:.3g}", trace), noise=plan)
    points = grid(np.zeros(d), half_width=radius, spacing=rate if spacing is None else spacing, radius=radius)
    worst = resilience.distance(points, rows, corruption_rate=rate)
    place = choose.release(-worst, rng=rng)
    return Outcome(region.centre + points[place], "converged", "", trace, noise=plan)


def private_tukey_median(data, *, epsilon, rng, half_range, spacing):
    r"""A point drawn with density exp(εn·depth/2) from a grid of [−2R, 2R]^d: ε-DP.

    Paper: prime, Algorithm I.1 (Appendix I), Theorem 12 and Lemma J.3.
    Printed: exp(−εn·depth/2) in Lemma J.3, which draws far from the mean.   Used: Appendix I's sign.
    Assumes: the mean lies in [−R, R]^d, R public. A record that isn't finite counts as 0; off the line, records are
        moved to a fine lattice first (:func:`privrob.robust.tukey.on_lattice`), for else rounding breaks the bound.
    Args: data — (n, d), d ≤ 3;  half_range — R;  spacing — of the grid.
    """
    checks.generator("rng", rng)
    n, d, _ = check_data(data, 0.0)
    checks.integer("dimension", d, low=1, high=3, hint="a depth is hard to find in more")
    half_range = checks.positive("half_range", half_range, finite=True)
    points = grid(np.zeros(d), half_width=2 * half_range, spacing=spacing)
    if n == 0:
        return refused("no records")
    rows = np.array(data, dtype=np.float64)
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    if d > 1:
        rows = on_lattice(rows, half_range=half_range, spacing=spacing)
    choose = Exponential(epsilon, 1 / n)
    plan = NoisePlan((Entry("choice", choose),))
    place = choose.release(depth(points, rows), rng=rng)
    return Outcome(points[place], "converged", "", noise=plan)
