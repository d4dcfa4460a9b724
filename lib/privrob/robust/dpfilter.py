r"""Private iterative filtering: one direction and one data-independent threshold a step. Algorithms 1, 6, 7 and 8.

The threshold D²Z (dB²Z on a cube) is far above the scores, so that a step removes little: hundreds of steps without
noise, and a bound T = dB² log(dB²/(α log 1/α)) of 10⁴ to 10⁵ of them to pay for. Feasible with noise off, or from
n ≈ 10⁹ on.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from privrob import checks
from privrob.mechanisms.histogram import Lost
from privrob.mechanisms.noise import Gaussian, Laplace
from privrob.mechanisms.ranges import PrivateRange
from privrob.robust.curator import Curator, Step
from privrob.robust.filtering import STOPS, Outcome, check_data, check_location, refused, stop_level
from privrob.robust.noiseplan import Entry, NoisePlan, check_budget, classic_std, gdp_budget
from privrob.robust.prime import RANGE_SHARE, printed_box_side
from privrob.robust.rows import Cube, Rows

FORMS = ("sound", "as_printed", "noiseless")


def printed_steps(dimension, box_side, corruption_rate):
    """T = ⌈dB² log(dB²/(α log 1/α))⌉, its constant taken as 1; at least 1, and 1 at α = 0, where nothing is removed.

    Paper: prime, Algorithm 8 (Algorithms 1 and 7: O(d)).
    """
    square = dimension * box_side**2
    if not corruption_rate:
        return 1
    return max(1, math.ceil(square * math.log(square / stop_level(corruption_rate))))


def printed_plan(epsilon, *, delta, num_records, dimension, box_side, num_steps, algorithm=8):
    r"""The noises of Algorithms 1, 6 and 8 beside the true sensitivities, ε₁ = min(ε, 0.9)/(4√(2T log(2/δ))).

    Paper: prime, Algorithms 1, 6 and 8.
    Printed: mean + Lap(2B/(nε₁)) on each coordinate, "(ε₁, 0)": it is ε₁ on *each*, dε₁ in all; λ + Lap(2Bd/(nε₁)) in
        Algorithm 8, B/2 times less than the sensitivity asks for (Algorithm 6 has B²d); T is a bound of many orders.
    Args: algorithm — 8, or 6 for its λ.
    """
    checks.choice("algorithm", algorithm, [6, 8])
    n, d, side = num_records, dimension, box_side
    location = PrivateRange.as_printed(RANGE_SHARE * epsilon, delta=RANGE_SHARE * delta, dimension=d)
    left, left_delta = (1 - RANGE_SHARE) * epsilon, (1 - RANGE_SHARE) * delta
    one = min(left, 0.9) / (4 * math.sqrt(2 * num_steps * math.log(2 / left_delta)))
    one_delta = left_delta / (8 * num_steps)
    square = side**2 * d
    norm_scale = 2 * side * d / (n * one) if algorithm == 8 else 2 * square / (n * one)
    short = f"scale is {side / 2:.3g} times less than what is needed" if algorithm == 8 else "scale is twice the need"
    guard = min(1.0, 0.5 * math.exp(-n * one / 4))
    matrix = classic_std(one, delta=one_delta, l2_sensitivity=square / n)
    entries = (
        *(Entry(f"range {i}", g, c) for i, (g, c) in enumerate(location.entries(d))),
        Entry("size", Laplace(1 / one, 1.0), num_steps),
        Entry("size guard", Lost(guard), num_steps),
        Entry("mean", Laplace(2 * side / (n * one), 2 * side / n), num_steps, d, note=f"{d} ε₁, stated as ε₁"),
        Entry("norm", Laplace(norm_scale, square / n), num_steps, note=short),
        Entry("second_moment", Gaussian(matrix, square / n), num_steps),
    )
    caveats = ("the noisy μ_t may leave the cube: then sensitivities exceed B²d/n",)
    return NoisePlan(entries, caveats, location=location)


def records_needed(dimension, *, epsilon, delta, num_steps, box_side, corruption_rate, share=0.2):
    """n at which the printed noise of Σ (its spectral norm, 2√d σ) is this share of α log(1/α): all noises are ∝ 1/n.

    Paper: prime, Theorem 5 (T of order d) and Lemma D.3 (T of order dB²).
    """
    how = {"num_records": 1, "dimension": dimension, "box_side": box_side, "num_steps": num_steps}
    noise = printed_plan(epsilon, delta=delta, **how)["second_moment"].noise_std
    return 2 * math.sqrt(dimension) * noise / (share * stop_level(corruption_rate))


def sound_plan(epsilon, *, delta, num_records, dimension, diameter, num_steps, noiseless=False):
    """Normal noise by the true sensitivities; of μ², range 15 %, matrix 50, mean 20, norm 10, size 5.

    Args: noiseless — no noise at all, for study: not private.
    """
    mu, lost = gdp_budget(epsilon, delta=delta)
    n, square = num_records, diameter**2
    location = PrivateRange.gaussian(mu * math.sqrt(0.15), lost_prob=lost, dimension=dimension)
    entries = [Entry(f"range {i}", g, c) for i, (g, c) in enumerate(location.entries(dimension))]
    queries = (
        ("size", 1.0, 0.05),
        ("mean", diameter, 0.2),
        ("norm", square / n, 0.1),
        ("second_moment", square / n, 0.5),
    )
    for what, sensitivity, share in queries:
        std = 0.0 if noiseless else sensitivity / (mu * math.sqrt(share / num_steps))
        entries.append(Entry(what, Gaussian(std, sensitivity), num_steps))
    return NoisePlan(tuple(entries), private=not noiseless, location=location)


def private_filter(
    data, *, corruption_rate, epsilon, delta, rng, form="sound", num_steps=None, stop_constant=3.0, interactive=False,
    location=None, box_side=None, failure_prob=0.1, algorithm=8, stop="spectral", noise_records=None,
    curator_type=Curator,
):  # fmt: skip
    r"""A private mean by filtering one direction a step: Algorithm 7 with 8, or 1 with 6 (``interactive``).

    Paper: prime, Algorithms 1, 6, 7 and 8.
    Printed: without an answer after T steps.   Used: the last μ_t, status ``exhausted``; ``sound`` also keeps μ_t in
        the cube and asks for a total in place of the mean.
    Args: as :func:`privrob.robust.prime.prime`;  form — ``sound``, ``as_printed`` or ``noiseless`` (for study);
        num_steps — T, as printed if None;  box_side — B, as printed if None;  algorithm — whose noise λ gets;
        noise_records — the n that noise is made for, as there;  curator_type — the class that answers;
        stop_constant — C;  stop — ``spectral`` or ``top``.
    """
    checks.choice("form", form, FORMS)
    checks.choice("stop", stop, STOPS)
    checks.positive("stop_constant", stop_constant)
    checks.generator("rng", rng)
    interactive = checks.boolean("interactive", interactive)
    n, d, rate = check_data(data, corruption_rate)
    epsilon, delta = check_budget(epsilon, delta)
    location = None if location is None else check_location(location, d)
    if n < 2:
        return refused(f"too few records: {n}")
    side = printed_box_side(n, d, failure_prob=failure_prob) if box_side is None else box_side
    side = checks.positive("box_side", side, finite=True)
    steps = printed_steps(d, side, rate) if num_steps is None else checks.integer("num_steps", num_steps, low=1)
    printed = form == "as_printed"
    virtual = n if noise_records is None else checks.integer("noise_records", noise_records, low=1)
    how = {"delta": delta, "num_records": virtual, "dimension": d, "num_steps": steps}
    if printed:
        plan = printed_plan(epsilon, box_side=side, algorithm=algorithm, **how)
        least = 4 * plan["size"].laplace_scale * math.log(4 * steps / ((1 - RANGE_SHARE) * delta))
        if virtual < least:
            short = f"too few records: n = {virtual} is below (4/ε₁) log(1/(2δ₁)) = {least:.4g}"
            return replace(refused(short), noise=plan)
    else:
        plan = sound_plan(epsilon, diameter=side * math.sqrt(d), noiseless=form == "noiseless", **how)
    plan = plan if virtual <= n else replace(plan, private=False)  # noise for more records than there are
    range_rng, noise_rng, draw_rng = rng.spawn(3)
    if location is None:
        found = plan.location.release(data, rng=range_rng)
        if found.centre is None:
            return replace(refused(found.reason), noise=plan)
        location = found.centre
    region = Cube(np.asarray(location), side)
    curator = curator_type(
        Rows(data, region), plan=plan, rng=noise_rng, corruption_rate=rate, interactive=interactive, stop=stop,
        layout="mirror" if printed else "isotropic", copies=virtual / n,
    )  # fmt: skip
    trace, limit = [], (stop_constant - 0.01) * stop_level(rate)
    for step in range(steps):
        size = curator.size()
        trace.append({"step": step, "size": size})
        if size < 0.75 * n:
            reason = f"set too small: about {size:.0f} of {n} records remain"
            return replace(refused(reason, trace), noise=plan)
        point = curator.mean() if printed else region.clip(curator.total() / min(max(size, n / 2), n))
        norm = curator.norm_about(point)
        trace[-1] |= {"norm": norm}
        if norm <= limit:
            noise = getattr(plan["norm"], "noise_std", None) or getattr(plan["norm"], "laplace_scale", 0.0)
            weak = f"the stop test says little: its noise {noise:.3g} exceeds its limit {limit:.3g}"
            return Outcome(region.centre + point, "converged", weak if noise > limit else "", tuple(trace), noise=plan)
        if not curator.tail:
            return Outcome(region.centre + point, "exhausted", "nothing to remove: α = 0", tuple(trace), noise=plan)
        values, vectors = np.linalg.eigh(curator.second_moment(about=point))
        top = vectors[:, [int(np.argmax(np.abs(values)))]]
        curator.filter(Step(point, top, region.diameter**2 * draw_rng.random()))
    return Outcome(region.centre + point, "exhausted", "out of steps", tuple(trace), noise=plan)
