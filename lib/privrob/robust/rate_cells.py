r"""Estimators on drawn data as cells of a sweep: errors of Algorithm 2, of the private Tukey median and of PRIME-HT.

A cell draws the same data sets for every estimator that it compares, ``repetitions`` of them.
"""

from __future__ import annotations

import numpy as np

from privrob import checks
from privrob.robust import corruption, exponential_time, heavy_tails, resilience
from privrob.robust.filtering import filter_mean, stop_level
from privrob.robust.prime import prime
from privrob.robust.private_means import dp_mean

_OWN = ("dimension", "num_records", "corruption_rate", "adversary", "tail", "repetitions", "multiple")
ESTIMATORS = ("mean", "filter", "DP mean", "truncation", "PRIME-HT", "printed, virtual n")


def _draw(settings, rng):
    """(records, bad): Normal ones of :mod:`~privrob.robust.corruption`, or of :mod:`~privrob.robust.heavy_tails` where
    ``tail`` says so.
    """
    how = {"corruption_rate": settings["corruption_rate"], "adversary": settings["adversary"], "rng": rng}
    size = settings["num_records"], settings["dimension"]
    if settings.get("tail"):
        return heavy_tails.corrupted(settings["tail"], *size, **how)
    return corruption.corrupted_normal(*size, **how)


def _rows(settings, streams, estimate):
    """One row a repetition: its number, and what ``estimate(data, bad, rng)`` gives."""
    repetitions = checks.integer("repetitions", settings["repetitions"], low=1)
    found = []
    for k in range(repetitions):
        data, bad = _draw(settings, streams.numpy(f"data {k}"))
        for row in estimate(data, bad, streams.numpy(f"estimate {k}")):
            found.append({"repetition": k, **row})
    return found


def clean_goodness(data, bad, *, corruption_rate):
    """A bound on R(S) that needs to know the adversary's records: the deviation of the s clean ones nearest to 0.

    Any S' bounds R(S) from above. Paper: prime, Lemmas H.4 and H.10 (whose S' it is).

    Args: bad — marks the adversary's, (n,).
    """
    s = resilience.sizes(len(data), corruption_rate)[0]
    r = resilience.sizes(len(data), corruption_rate)[1]
    kept = data[~bad]
    nearest = kept[np.argsort(np.linalg.norm(kept, axis=1), kind="stable")[:s]]
    return resilience.deviation_along(nearest, num_out=r)


def algorithm_2_cell(settings, *, streams):
    """Errors of Algorithm 2. Settings: :data:`_OWN`, ``epsilon``, ``delta`` and of
    :func:`privrob.robust.exponential_time.exponential_time_mean` ``form``, ``heavy_tailed``, ``spacing``,
    ``half_width``; ``ranged`` — find x̄ privately (else 0.3 off the mean on each coordinate is public).

    In the plane and in space R(S) is not enumerated (it can't be): :func:`clean_goodness` takes its place.
    """
    settings = dict(settings)
    d, rate = settings["dimension"], settings["corruption_rate"]
    how = {k: v for k, v in settings.items() if k not in (*_OWN, "ranged")}
    if not settings.get("ranged"):
        how["location"] = np.full(d, 0.3)

    def estimate(data, bad, rng):
        known = None if d == 1 else clean_goodness(data, bad, corruption_rate=rate)
        found = exponential_time.exponential_time_mean(data, corruption_rate=rate, rng=rng, known_goodness=known, **how)
        yield {"error": found.error(np.zeros(d)), "status": found.status, "reason": found.reason}

    return _rows(settings, streams, estimate)


def tukey_cell(settings, *, streams):
    """Errors of the private Tukey median. Settings: :data:`_OWN`, ``epsilon``, ``half_range``, ``spacing``."""
    settings = dict(settings)
    how = {k: settings[k] for k in ("epsilon", "half_range", "spacing")}

    def estimate(data, bad, rng):
        found = exponential_time.private_tukey_median(data, rng=rng, **how)
        yield {"error": found.error(np.zeros(settings["dimension"])), "status": found.status}

    return _rows(settings, streams, estimate)


def heavy_cell(settings, *, streams):
    """Errors of the estimators of :data:`ESTIMATORS` named in ``estimators``, on the same data. Settings: :data:`_OWN`,
    ``epsilon``, ``delta``, ``virtual_records`` — the n that the printed noise is made for."""
    settings = dict(settings)
    d, rate = settings["dimension"], settings["corruption_rate"]
    budget = {"epsilon": settings["epsilon"], "delta": settings["delta"]}
    for name in settings["estimators"]:
        checks.choice("estimators", name, ESTIMATORS)

    def estimate(data, bad, rng):
        for name in settings["estimators"]:
            yield {"estimator": name, **_one(name, data, bad, rng.spawn(1)[0])}

    def _one(name, data, bad, rng):
        if name == "mean":
            finite = data[np.isfinite(data).all(axis=1)]
            return {"error": float(np.linalg.norm(finite.mean(axis=0))), "status": "converged"}
        if name == "filter":
            level = 2.0 / max(stop_level(rate), 1e-9)  # λ − 1 at most 2: the stop level C = 3 of heavy tails
            found = filter_mean(data, corruption_rate=rate, rng=rng, stop_constant=level, stop="top")
        elif name == "DP mean":
            found = dp_mean(data, rng=rng, **budget)
        elif name == "truncation":
            found = heavy_tails.truncated_mean(data, corruption_rate=rate, rng=rng, **budget)
        else:
            how = {"corruption_rate": rate, "rng": rng, "heavy_tailed": True, **budget}
            if name == "printed, virtual n":
                how |= {"variant": "as_printed", "noise_records": settings["virtual_records"], "location": np.zeros(d)}
            found = prime(data, **how)
        return {"error": found.error(np.zeros(d)), "status": found.status, "rounds": len(found.trace)}

    return _rows(settings, streams, estimate)
