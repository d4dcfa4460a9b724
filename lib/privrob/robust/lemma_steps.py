r"""One filter step, an epoch and the noise around them, measured: Lemmas D.4 to D.6 and F.4 to F.7, Equation 16.

Answers are exact where a lemma conditions on small noise; removal is in expectation over Z ~ U[0, 1], summed.

``points`` are records (n, d), ``bad`` marks the adversary's and ``left`` those that are left, (n,) each; ``weights`` is
U, (d, d).
"""

from __future__ import annotations

import math

import numpy as np

from privrob import checks
from privrob.mechanisms.ranges import PrivateRange
from privrob.robust import mmw, noiseplan, prime_lemmas
from privrob.robust.filtering import excess, stop_level, tail_size
from privrob.robust.prime import prime, printed_box_side

BEFORE = ("nothing", "middle", "one end")
PLACES = ("one", "two", "spread")


def hidden_cluster(num_records, dimension, *, corruption_rate, excess_norm, places, before, rng):
    """Records, which are bad, and which are left: α of them at a distance at which λ is about ``excess_norm``.

    Args: places — ``one`` point, ``two`` opposite ones, 2 to 1, or ``spread`` over the axes;  before — which 4α clean
        records went earlier: none, those nearest the mean, or one end along the cluster.
    """
    n, d = num_records, dimension
    m = int(corruption_rate * n)
    checks.choice("places", places, PLACES)
    checks.choice("before", before, BEFORE)
    points = rng.standard_normal((n, d))
    many = {"one": 1, "two": 1, "spread": d}[places]
    reach = math.sqrt(excess_norm * many / corruption_rate)
    axis = np.arange(m) % d if places == "spread" else np.zeros(m, dtype=int)
    points[:m] = 0.0
    points[np.arange(m), axis] = np.where((places == "two") & (np.arange(m) % 3 == 0), -reach, reach)
    bad, left = np.arange(n) < m, np.ones(n, dtype=bool)
    if before != "nothing":
        key = (points**2).sum(axis=1) if before == "middle" else points[:, 0]
        order = m + np.argsort(key[m:], kind="stable")
        left[order[: 4 * m]] = False
    return points, bad, left


def _moments(points, num_records):
    mean = points.mean(axis=0)
    centred = points - mean
    return mean, centred.T @ centred / num_records


def filter_step(points, bad, left, *, corruption_rate, weights):
    """What a step with these weights does, exact answers: a dict of the lemmas' quantities.

    λ of what is left;  ψ — (1/n)Σ(τ − 1);  ``clean tail``, ``outside`` (α times the largest score outside T),
    ``clean excess`` (summed over what is left, n in front);  ``clean``, ``bad`` — removed in expectation with ρ of
    Algorithm 11, ``decrease`` — ⟨M − I, U⟩ after it over before, at Z = 1, the least removal;  ``fixed clean``,
    ``fixed bad`` — with a threshold beyond all scores (Algorithm 8's dB²Z), for scores 1.

    Paper: prime, Lemmas D.4, D.5, F.4, F.6.
    """
    n = len(points)
    kept, was_bad = points[left], bad[left]
    mean, matrix = _moments(kept, n)
    tau = (((kept - mean) @ weights) * (kept - mean)).sum(axis=1)
    size = min(tail_size(n, corruption_rate), len(tau))
    tail = np.zeros(len(tau), dtype=bool)
    tail[np.argpartition(tau, len(tau) - size)[len(tau) - size :]] = True
    d = points.shape[1]
    row = {"λ": excess(matrix), "ψ": float((tau - 1).sum() / n), "gate": float((matrix * weights).sum()) - 1}
    row["clean tail"] = float(tau[tail & ~was_bad].sum() / n)
    row["outside"] = corruption_rate * float(tau[~tail].max(initial=0.0))
    row["clean excess"] = float((tau[~was_bad] - 1).sum() / n)
    row |= {"fixed clean": row["clean tail"], "fixed bad": float(tau[tail & was_bad].sum() / n)}
    threshold = prime_lemmas.binned_threshold(tau)
    if threshold is None:
        return row | {"clean": 0.0, "bad": 0.0, "decrease": 1.0}
    row["clean"], row["bad"] = prime_lemmas.expected_removal(tau, was_bad, threshold, size=size)
    after = kept[~(tail & (tau > threshold))]
    row["decrease"] = float(((_moments(after, n)[1] - np.eye(d)) * weights).sum()) / row["gate"]
    return row


def steps_cell(settings, *, streams):
    """Filter steps over a grid of adversaries. Settings: ``corruption_rate``, ``num_records``, ``dimension``,
    ``constants`` (λ over αlog(1/α)), ``kappas`` (the step times λ: infinite for the top eigenvector's score).
    """
    s = dict(settings)
    rate, d, rows = s["corruption_rate"], s["dimension"], []
    unit = stop_level(rate)
    for constant in s["constants"]:
        for places in PLACES:
            for before in BEFORE:
                rng = streams.numpy(f"records {constant} {places} {before}")
                how = {"corruption_rate": rate, "excess_norm": constant * unit, "places": places, "before": before}
                points, bad, left = hidden_cluster(s["num_records"], d, rng=rng, **how)
                matrix = _moments(points[left], len(points))[1]
                for kappa in s["kappas"]:
                    step = math.inf if kappa == "top" else kappa / excess(matrix)
                    weights = mmw.weights(matrix - np.eye(d), step=step)
                    row = filter_step(points, bad, left, corruption_rate=rate, weights=weights)
                    rows.append({"α": rate, "C": constant, "places": places, "before": before, "κ": str(kappa), **row})
    return rows


def epoch_cell(settings, *, streams):
    """‖M − I‖ after one epoch of the printed step over before, exact answers. Settings: ``corruption_rate``,
    ``num_records``, ``dimension``, ``norm`` (λ at the start), ``per_log`` (T₂ over log d), ``places``.

    Paper: prime, Lemma F.5.
    """
    s = dict(settings)
    rate, d = s["corruption_rate"], s["dimension"]
    how = {"corruption_rate": rate, "excess_norm": s["norm"], "places": s["places"], "before": "nothing"}
    points, bad, left = hidden_cluster(s["num_records"], d, rng=streams.numpy("records"), **how)
    most = math.ceil(s["per_log"] * math.log(d))
    how = {"noiseless": True, "location": np.zeros(d), "keep_exact": True, "num_epochs": 1, "stop_constant": 1.0}
    how |= {"num_iterations": most, "epsilon": 1.0, "delta": 1e-6, "corruption_rate": rate, "clip": "ball"}
    how |= {"centre_error": math.sqrt(s["norm"] * d / rate)}
    found = prime(points, variant="tuned", kappa=None, rng=streams.numpy("run"), **how)
    for state in found.exact:
        if "removed" in state:
            left[state["removed"]] = False
    norms = [excess(_moments(points[kept], len(points))[1]) for kept in (np.ones_like(left), left)]
    used = sum("iteration" in t for t in found.trace)
    row = {"d": d, "α": rate, "places": s["places"], "norm": s["norm"], "T₂": most, "iterations": used}
    return [row | {"ratio": norms[1] / norms[0], "clean": int((~left & ~bad).sum()), "bad": int((~left & bad).sum())}]


# ---------------------------------------------------------------------------------------------------------------- noise


def stated_step_size(dimension, *, corruption_rate, epsilon, delta, box_side):
    """B²√(log B) d^1.5 log(1/δ)/(αε), the constant taken as 1. Paper: prime, Lemma F.7."""
    top = box_side**2 * math.sqrt(math.log(box_side)) * dimension**1.5 * math.log(1 / delta)
    return top / (corruption_rate * epsilon)


def needed_step_size(dimension, *, corruption_rate, epsilon, delta, rng, num_draws, quantile=0.9, failure_prob=0.1):
    """(n, share of it by each noise): the n from which the six noises of a step of Algorithm 10, as printed, are all
    within 0.001αlog(1/α) in a share ``quantile`` of draws. All noises are 1/n times one draw, so that each draw has
    its own least n.

    Paper: prime, Lemma F.7.
    Args: num_draws — of the noises.
    """
    d, limit = dimension, 1e-3 * stop_level(corruption_rate)
    location = PrivateRange.as_printed(0.01 * epsilon, delta=0.01 * delta, dimension=d, centre="middle")
    draws = []
    for _ in range(num_draws):
        unit = [np.linalg.norm(rng.standard_normal(d)) ** 2 for _ in range(2)] + list(np.abs(rng.laplace(size=3)))
        mirrored = noiseplan.symmetric_noise(d, noise_std=1.0, rng=rng, layout="mirror")
        draws.append([*unit, float(np.abs(np.linalg.eigvalsh(mirrored)).max())])
    draws, n = np.array(draws), 1e9
    for _ in range(8):  # B grows with log n
        side = printed_box_side(n, d, failure_prob=failure_prob)
        rounds = max(1, math.ceil(math.log(side * math.sqrt(d)))), max(1, math.ceil(math.log(d)))
        how = {"num_epochs": rounds[0], "num_iterations": rounds[1], "dimension": d, "diameter": side * math.sqrt(d)}
        plan = noiseplan.printed_prime_plan(epsilon, delta=delta, num_records=1, location=location, **how)
        stds = [plan["centre"].noise_std, plan["mean"].noise_std]
        each = [np.sqrt(draws[:, i] / limit) * std for i, std in enumerate(stds)]
        scales = [plan[what].laplace_scale for what in ("score", "norm", "epoch_norm")]
        each += [draws[:, 2 + i] * scale / limit for i, scale in enumerate(scales)]
        each.append(draws[:, 5] * plan["second_moment"].noise_std / limit)
        n = float(np.quantile(np.max(each, axis=0), quantile))
    names = ("mean of a step", "mean", "score", "norm", "epoch's norm", "matrix")
    return n, side, {name: float(np.quantile(e, quantile)) / n for name, e in zip(names, each, strict=True)}


def score_gap(points, left, *, weights, centre_noise, form="sound"):
    """The sum about a noisy mean, (1/n)Σ_S (τ − 1), less ⟨M(S) − I, U⟩, all exact but the mean.

    Paper: prime, Equation 16.
    Printed: within 0.002αlog(1/α), from (1/n)Σ_S (τ − 1) = ⟨(1/n)Σ(x − μ_t)(x − μ_t)ᵀ − I, U⟩, which takes #S/n as 1:
        off by 1 − #S/n, the share of records that are gone (``form="as_printed"``).   Used: (1/n)Σ_S τ − 1.
    Args: centre_noise — of the mean, (d,).
    """
    kept = points[left]
    mean, matrix = _moments(kept, len(points))
    away = kept - (mean + centre_noise)
    tau = ((away @ weights) * away).sum(axis=1)
    checks.choice("form", form, ["sound", "as_printed"])
    one = len(kept) / len(points) if form == "as_printed" else 1.0
    return float(tau.sum() / len(points) - one) - (float((matrix * weights).sum()) - 1)


def stated_direction_size(dimension, *, corruption_rate, epsilon, delta, box_side):
    """d^1.5 B² log(1/δ)/(αε₁), the constant taken as 1. Paper: prime, Lemma D.6."""
    return dimension**1.5 * box_side**2 * math.log(1 / delta) / (corruption_rate * epsilon)


def direction_slack(points, *, num_records, corruption_rate, epsilon, delta, box_side, rng):
    """vᵀ(M − I)v − (‖M − I‖ − 2α − 2(#S/n)‖μ_t − μ(S)‖²) for v the top eigenvector of the noisy matrix about the noisy
    mean (Algorithm 6's noises at ε₁, δ₁ for ``num_records``): at least 0 where the lemma holds.

    Paper: prime, Lemma D.6.
    """
    n, d = num_records, points.shape[1]
    _, matrix = _moments(points, len(points))
    std = noiseplan.classic_std(epsilon, delta=delta, l2_sensitivity=box_side**2 * d / n)
    shift = rng.laplace(0.0, 2 * box_side / (n * epsilon), d)
    noisy = matrix + np.outer(shift, shift)
    noisy = noisy + noiseplan.symmetric_noise(d, noise_std=std, rng=rng, layout="mirror")
    v = np.linalg.eigh(noisy)[1][:, -1]
    got = float(v @ matrix @ v) - 1
    return got - (excess(matrix) - 2 * corruption_rate - 2 * float(shift @ shift))
