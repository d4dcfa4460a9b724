"""Runs of the filters on data with an adversary in it, as cells: errors, steps, and who is left."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from privrob import checks
from privrob.mechanisms.histogram import StableHistogram
from privrob.mechanisms.ranges import PrivateRange
from privrob.robust.corruption import ADVERSARIES, corrupted_normal
from privrob.robust.curator import Curator
from privrob.robust.dpfilter import private_filter
from privrob.robust.filtering import filter_mean
from privrob.robust.prime import printed_box_side

ESTIMATORS = ("filter", "dpfilter")


def stated_error(corruption_rate):
    """α√log(1/α), what all of the document's theorems for sub-Gaussian records state, without its constant."""
    return corruption_rate * math.sqrt(math.log(1 / corruption_rate)) if corruption_rate else 0.0


def filter_cell(settings, *, streams):
    """Repeated runs of one estimator at one setting: a row each.

    Settings: study — its name, if any;  estimator — ``filter`` (Algorithm 4) or ``dpfilter`` (7 and 8);  adversary,
    shift — see :func:`privrob.robust.corruption.corrupted_normal`;  num_records, dimension, corruption_rate, num_runs;
    options — more arguments of the estimator.
    Returns: rows with error, unfiltered, status, steps, clean_left and bad_left (shares of n).
    """
    kind = checks.choice("estimator", settings["estimator"], ESTIMATORS)
    n, d, rate = settings["num_records"], settings["dimension"], settings["corruption_rate"]
    rows = []
    for k in range(checks.integer("num_runs", settings["num_runs"], low=1)):
        how = {
            "adversary": settings["adversary"],
            "shift": settings.get("shift", 1.5),
            "rng": streams.numpy(f"data {k}"),
        }
        data, bad = corrupted_normal(n, d, corruption_rate=rate, **how)
        more = {"corruption_rate": rate, "rng": streams.numpy(f"filter {k}"), **settings.get("options", {})}
        row = {name: settings[name] for name in ("estimator", "adversary", "num_records", "dimension")}
        row |= {"study": settings.get("study", ""), "form": settings.get("options", {}).get("form", "")}
        row |= {"corruption_rate": rate, "run": k, "unfiltered": float(np.linalg.norm(data.mean(axis=0)))}
        if kind == "filter":
            found = filter_mean(data, **more)
            row |= {"clean_left": math.nan, "bad_left": math.nan}
        else:
            found, alive = _private(data, more)
            row |= {"clean_left": float((alive & ~bad).sum() / n), "bad_left": float((alive & bad).sum() / n)}
        rows.append(row | {"error": found.error(np.zeros(d)), "status": found.status, "steps": len(found.trace)})
    return rows


def _private(data, more):
    """The outcome, and which records were left: not for an analyst."""
    kept = []

    def keep(rows, **how):
        kept.append(Curator(rows, **how))
        return kept[-1]

    found = private_filter(data, **{"location": np.zeros(data.shape[1]), "epsilon": 1.0, "delta": 1e-6, **more},
                           curator_type=keep)  # fmt: skip
    return found, kept[0].state().alive if kept else np.ones(len(data), dtype=bool)


def shift_and_norm(data, bad):
    r"""How far bad records move the mean, the top eigenvalue of the covariance, and its least value given that shift.

    With γ the share of bad records, s the shift from the good ones' mean, v its direction and Σ_G the covariance of
    the good; equal where all bad ones coincide:

    .. math:: v^T \Sigma v \ge (1-\gamma) v^T\Sigma_G v + s^2 (1-\gamma)/\gamma

    Paper: prime, Section 2.1 ("without introducing large eigenvalues").
    Returns: (s, top eigenvalue, the bound).
    """
    good, share = data[~bad], float(np.mean(bad))
    move = data.mean(axis=0) - good.mean(axis=0)
    shift = float(np.linalg.norm(move))
    along = move / max(shift, 1e-300)
    top = float(np.linalg.eigvalsh(np.cov(data, rowvar=False, bias=True).reshape(data.shape[1], -1))[-1])
    return shift, top, (1 - share) * float((good @ along).var()) + shift**2 * (1 - share) / share


def range_cell(settings, *, streams):
    """Repeated ranges of Algorithm 5, N(μ, I) with a share of the records put into one bin: a row each.

    Settings: num_records, dimension, corruption_rate, epsilon, delta, failure_prob, num_runs;  mean — of each
    coordinate;  bin — where the adversary's records lie, in bins from the mean's;  centre — of :class:`.PrivateRange`.
    Returns: rows with off (largest distance of x̄ from the mean on a coordinate) and whether all clean records lie in
    the cube of half width B (``in_wide``) and B/2 (``in_half``).
    """
    n, d, rate = settings["num_records"], settings["dimension"], settings["corruption_rate"]
    half = printed_box_side(n, d, failure_prob=settings["failure_prob"]) / 2
    where = PrivateRange.as_printed(
        settings["epsilon"], delta=settings["delta"], dimension=d, centre=settings.get("centre", "middle")
    )
    rows = []
    for k in range(settings["num_runs"]):
        rng = streams.numpy(f"run {k}")
        clean = rng.standard_normal((n, d)) + settings["mean"]
        data = clean.copy()
        data[: int(rate * n)] = 2 * math.floor(settings["mean"] / 2) + 2 * settings["bin"] + 1.0
        found = where.release(data, rng=rng)
        row = {name: settings[name] for name in ("mean", "bin", "num_records", "dimension")} | {"run": k}
        row |= {"study": settings.get("study", ""), "centre": where.centre}
        if found.centre is None:
            rows.append(row | {"off": math.inf, "in_wide": False, "in_half": False})
            continue
        reach = float(np.abs(clean - found.centre).max())
        off = float(np.abs(found.centre - settings["mean"]).max())
        rows.append(row | {"off": off, "in_wide": reach <= 2 * half, "in_half": reach <= half})
    return rows


def shifts_of_adversaries(num_sets, *, rng, num_records=400):
    """:func:`shift_and_norm` of so many data sets: all adversaries in turn, every other one at random places.

    Args: num_sets — how many.
    """
    kinds, rows = [a for a in ADVERSARIES if a not in ("none", "nan")], []
    for k in range(num_sets):
        d, rate = int(rng.integers(1, 12)), float(rng.uniform(0.01, 0.2))
        how = {"corruption_rate": rate, "adversary": kinds[k % len(kinds)], "shift": float(rng.exponential(1.5))}
        data, bad = corrupted_normal(num_records, d, rng=rng, **how)
        if k % 2:
            centre = rng.standard_normal(d) * rng.exponential(3.0)
            data[bad] = centre + rng.standard_normal((int(bad.sum()), d)) * rng.exponential(1.0)
        shift, top, least = shift_and_norm(data, bad)
        rows.append({"share": float(bad.mean()), "shift": shift, "top": top, "least": least})
    return rows


def corner_cases(*, rng, corruption_rate=0.05, num_records=400, num_steps=20):
    """What both filters say of odd data: a row each. Their estimates are finite or None."""
    base = rng.standard_normal((num_records, 2))
    flat, hole, far = base.copy(), base.copy(), base.copy()
    flat[:, 1], hole[7], far[7] = 5.0, np.nan, 1e200
    sets = {"as drawn": base, "one NaN row": hole, "one row at 1e200": far, "constant coordinate": flat}
    sets |= {"equal points": np.full((num_records, 2), 0.3), "d = 1": base[:, :1], "n = 1": base[:1]}
    asked = [(name, corruption_rate) for name in sets] + [("as drawn", 0.0), ("as drawn", 0.5)]
    rows = []
    for name, rate in asked:
        data, row = sets[name], {"records": name, "corruption_rate": rate}
        where = {"location": np.zeros(data.shape[1]), "form": "noiseless", "num_steps": num_steps}
        for title, estimator, more in (
            ("Algorithm 4", filter_mean, {}),
            ("DPFILTER, no noise", private_filter, {**where, "epsilon": 1.0, "delta": 1e-6}),
        ):
            try:
                found = estimator(data, corruption_rate=rate, rng=rng, **more)
            except ValueError as error:
                row[title] = f"error: {str(error).partition(',')[0]}, …"
                continue
            finite = found.estimate is None or bool(np.isfinite(found.estimate).all())
            text = found.status if finite else "NOT FINITE"
            row[title] = f"{text}: {found.reason}" if found.reason else text
        rows.append(row)
    return rows


def histogram_misses(*, epsilons, deltas, widths, failures, bins):
    r"""Lemma D.1 at its own n: the exact probability that some bin's share is off by β, beside the stated one.

    The least n of the two is that of a histogram over K known bins with Laplace noise on each, or that of the cut-off.

    Paper: prime, Lemma D.1.
    Printed: ε ∈ (0, 1/n), at which no n is large enough.   Used: ε > 0, δ < 1/n.
    Args: epsilons, deltas, widths, failures, bins — values of ε, δ, β, ζ and K, each tried with each.
    """
    rows = []
    for eps, delta, width, fail, many in itertools.product(epsilons, deltas, widths, failures, bins):
        few = math.log(2 * many / fail) <= math.log(4 / (fail * delta))
        n = math.ceil(8 / (eps * width) * min(math.log(2 * many / fail), math.log(4 / (fail * delta))))
        histogram = StableHistogram.karwa_vadhan(eps, delta=delta, width=1.0)
        histogram = replace(histogram, cutoff=-math.inf) if few else histogram
        near = histogram.cutoff + np.linspace(-5, 5, 11) / eps if not few else [1.0]
        counts = np.unique(np.concatenate([np.geomspace(1, n, 60), near]).round())
        each = max(histogram.miss_prob(int(c), width * n) for c in counts[(counts >= 1) & (counts <= n)])
        missed = -math.expm1(min(many, math.inf if few else n) * math.log1p(-min(each, 0.5)))
        row = {"epsilon": eps, "delta": delta, "width": width, "bins": many, "records": n}
        rows.append(row | {"cut-off": not few, "stated": fail, "missed": missed})
    return rows
