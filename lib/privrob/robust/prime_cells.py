"""One corrupted data set and the estimators that are tried on it, as a cell of a sweep: settings in, rows out.

Source: ours.
"""

from __future__ import annotations

import copy
import time

import numpy as np

from privrob import checks
from privrob.mechanisms.ranges import counted_once
from privrob.robust import classic_means
from privrob.robust.corruption import clean_records, replaced
from privrob.robust.filtering import Outcome, filter_mean
from privrob.robust.prime import prime
from privrob.robust.private_means import dp_mean, shrinking_mean
from privrob.robust.released import released_prime


def _prime(variant):
    def estimate(data, *, corruption_rate, epsilon, delta, rng, **changes):
        how = {"epsilon": epsilon, "delta": delta, "rng": rng, "keep_exact": True}
        return prime(data, corruption_rate=corruption_rate, variant=variant, **how, **changes)

    return estimate


def _dp_mean(data, *, corruption_rate, **how):
    return dp_mean(data, **how)


def _shrinking(data, *, corruption_rate, **how):
    return shrinking_mean(data, **{"radius": 100.0, **how})


def _plain(answer):
    def estimate(data, *, corruption_rate, epsilon, delta, rng, **changes):
        found = answer(data, corruption_rate, rng, **changes)
        return found if isinstance(found, Outcome) else Outcome(found, "converged")

    return estimate


METHODS = {
    "as_printed": _prime("as_printed"),
    "tuned": _prime("tuned"),
    "ball": _prime("ball"),
    "as_released": released_prime,
    "DP mean": _dp_mean,
    "shrinking mean": _shrinking,
    "mean": _plain(lambda data, rate, rng: data[np.isfinite(data).all(axis=1)].mean(axis=0, dtype=np.float64)),
    "filter": _plain(lambda data, rate, rng, **more: filter_mean(data, corruption_rate=rate, rng=rng, **more)),
    "coordinate median": _plain(lambda data, rate, rng: classic_means.coordinate_median(data)),
    "geometric median": _plain(lambda data, rate, rng: classic_means.geometric_median(data)),
    "trimmed mean": _plain(lambda data, rate, rng: classic_means.trimmed_mean(data, corruption_rate=rate)),
}
_OWN = ("num_records", "dimension", "corruption_rate", "adversaries", "runs", "delta", "repeat", "shift", "law")
_OWN += ("panel",)
_MORE = ("location", "label")


def mean_cell(settings, *, streams):
    """Estimate the mean of corrupted records by several methods.

    The clean records are the same for all adversaries of a cell; each run has noise of its own.

    Args: settings — a dict: ``num_records``, ``dimension``, ``corruption_rate``, ``delta``;  ``adversaries`` — names of
        :data:`privrob.robust.corruption.ADVERSARIES`;  ``runs`` — a list of dicts: ``method`` (of :data:`METHODS`),
        ``epsilon``, and as needed ``label``, ``location`` ("known": the range is public, x̄ = 0) and what the method
        takes by name;  ``repeat`` — tells repetitions apart, ``panel`` uses;  ``shift``, ``law`` — of the records.
    Returns: a row for each adversary and run: ``error`` ‖μ̂ − μ‖ (infinite where refused), ``status``, ``reason``,
        ``tests`` (stop tests taken: epochs begun), ``steps`` (filter steps), ``removed_good``, ``removed_bad`` (None
        where the method doesn't say), ``seconds`` (as if alone: bins that were counted for another run are counted in).
    """
    for name in settings:
        checks.choice("settings", name, _OWN)
    n, d, rate = settings["num_records"], settings["dimension"], settings["corruption_rate"]
    rng, rows = streams.numpy("records"), []
    clean = clean_records(n, d, law=settings.get("law", "normal"), rng=rng, dtype=np.float32)
    for adversary in settings["adversaries"]:
        how = {"corruption_rate": rate, "shift": settings.get("shift", 1.5), "rng": copy.deepcopy(rng)}
        data, bad = replaced(clean.copy(), adversary=adversary, **how)
        with counted_once(data) as kept:
            for place, run in enumerate(settings["runs"]):
                row = {"adversary": adversary, "method": run["method"], "epsilon": run["epsilon"]}
                row["label"] = run.get("label", run["method"])
                how = {"delta": settings["delta"], "corruption_rate": rate}
                how["rng"] = streams.numpy(f"noise {adversary} {place}")
                began = time.perf_counter() + kept.saved
                found = _estimate(data, run, how)
                seconds = time.perf_counter() - began + kept.saved
                rows.append(row | _told(found, bad, np.zeros(d)) | {"seconds": seconds})
    return rows


def _estimate(data, run, how):
    """One run of :func:`mean_cell`. Args: how — what its method takes, beside what the run itself says."""
    how = how | {k: v for k, v in run.items() if k not in ("method", *_MORE)}
    if run.get("location") == "known":
        how["location"] = np.zeros(data.shape[1])
    return METHODS[checks.choice("method", run["method"], METHODS)](data, **how)


def _told(found, bad, mean):
    """What a row says of an outcome."""
    removed = [e["removed"] for e in found.exact if "removed" in e]
    gone = np.concatenate(removed) if removed else np.zeros(0, dtype=int)
    said = bool(found.exact)
    return {
        "error": found.error(mean),
        "status": found.status,
        "reason": found.reason,
        "tests": sum("iteration" not in t for t in found.trace),
        "steps": sum(t.get("threshold") is not None or bool(t.get("removed")) for t in found.trace),
        "removed_good": int((~bad[gone]).sum()) if said else None,
        "removed_bad": int(bad[gone].sum()) if said else None,
    }
