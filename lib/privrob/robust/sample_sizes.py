r"""How many records does an estimator need, how does that grow, and how long does it take? Tables 1 and 2, measured.

The *virtual sample size*: a fixed number of real records, the noise of n of them. It separates the error of privacy
from that of sampling and lets n reach 10¹²; such a run isn't private. Each run has an n of its own, the least at which
its error is within the target, by bisection; runs are what the bootstrap draws from.
"""

from __future__ import annotations

import math
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

from privrob import checks
from privrob.robust import exponential_time, heavy_tails, mmw
from privrob.robust.corruption import corrupted_records
from privrob.robust.filtering import filter_mean, stop_level
from privrob.robust.prime import prime
from privrob.robust.private_means import dp_mean

REACH = 6.0  # distance of the adversary's records from the mean, the same at all d
_MOST_VIRTUAL, _MOST_NUMBERS = 10**14, 10**7


def _sub_gaussian(n, s, rng, adversary="rotated"):
    d = s["dimension"]
    how = {"corruption_rate": s["corruption_rate"], "adversary": adversary, "rng": rng, "dtype": np.float32}
    return corrupted_records(n, d, shift=REACH / math.sqrt(d), **how)[0]


def _heavy(n, s, rng, adversary="far"):
    how = {"corruption_rate": s["corruption_rate"], "adversary": adversary, "rng": rng}
    return heavy_tails.corrupted("student", n, s["dimension"], **how)[0]


def _prime(variant, **more):
    def run(data, n, s, rng):
        how = {"corruption_rate": s["corruption_rate"], "epsilon": s["epsilon"], "delta": s["delta"], **more}
        return prime(data, variant=variant, noise_records=n, location=np.zeros(s["dimension"]), rng=rng, **how)

    return run


def _mean(estimate, *names):
    def run(data, n, s, rng):
        how = {name: s[name] for name in ("epsilon", "delta", *names)}
        return estimate(data, noise_records=n, location=np.zeros(s["dimension"]), rng=rng, **how)

    return run


def _filter(stop_constant=None):
    def run(data, n, s, rng):
        rate = s["corruption_rate"]
        constant = 2.0 / stop_level(rate) if stop_constant is None else stop_constant
        return filter_mean(data, corruption_rate=rate, rng=rng, stop_constant=constant, stop="top")

    return run


def _exponential(heavy_tailed):
    def run(data, n, s, rng):
        rate = s["corruption_rate"]
        spacing = (math.sqrt(rate) if heavy_tailed else rate) / 5
        how = {"epsilon": s["epsilon"], "delta": s["delta"], "corruption_rate": rate, "location": np.full(1, 0.3)}
        return exponential_time.exponential_time_mean(data, heavy_tailed=heavy_tailed, spacing=spacing, rng=rng, **how)

    return run


# name: (records, estimator, whether n is virtual)
ESTIMATORS = {
    "PRIME, ball": (_sub_gaussian, _prime("ball"), True),
    "PRIME, tuned": (_sub_gaussian, _prime("tuned"), True),
    "PRIME, printed noise": (_sub_gaussian, _prime("as_printed", kappa=4.0, stop_constant=3.0), True),
    "DP mean": (lambda n, s, rng: _sub_gaussian(n, s, rng, "none"), _mean(dp_mean), True),
    "filter": (_sub_gaussian, _filter(3.0), False),
    "Algorithm 2": (_sub_gaussian, _exponential(False), False),
    "PRIME-HT": (_heavy, _prime("ball", heavy_tailed=True), True),
    "DP mean, heavy tails": (
        lambda n, s, rng: _heavy(n, s, rng, "none"),
        _mean(heavy_tails.truncated_mean, "corruption_rate"),
        True,
    ),
    "filter, heavy tails": (_heavy, _filter(), False),
    "Algorithm 2, heavy tails": (_heavy, _exponential(True), False),
}


def least_records(succeeds, *, start, most, resolution=1.12):
    """The least n at which ``succeeds(n)``, to a factor, by bisection from a first guess; infinite if none up to
    ``most``. It takes success to be monotone in n.

    Args: succeeds — n → whether it does;  start — that guess;  most — largest n tried;  resolution — the factor.
    """
    low, high = 2, max(3, min(int(start), most))
    if succeeds(high):
        while high > 8 and succeeds(high // 4):
            high //= 4
        low = max(high // 4, 2)
    else:
        while True:
            low, high = high, min(4 * high, most)
            if low >= most:
                return math.inf
            if succeeds(high):
                break
    while high > resolution * low and high - low > 1:
        middle = min(max(int(math.sqrt(low * high)), low + 1), high - 1)
        low, high = (low, middle) if succeeds(middle) else (middle, high)
    return high


def needed_cell(settings, *, streams):
    """The least n of each of several runs. Settings: ``estimator`` (of :data:`ESTIMATORS`), ``dimension``,
    ``corruption_rate``, ``epsilon``, ``delta``, ``target`` (error), ``runs``, ``num_records`` (real ones, where n is
    virtual), ``start`` (a first guess), ``sweep`` (which axis this is a point of).

    Paper: prime, Tables 1 and 2, Theorems 1 to 4.
    Returns: a row a run: ``n``.
    """
    s = dict(settings)
    draw, estimate, virtual = ESTIMATORS[checks.choice("estimator", s["estimator"], ESTIMATORS)]
    d, rows, start = s["dimension"], [], s["start"]
    for k in range(checks.integer("runs", s["runs"], low=1)):
        data = draw(s["num_records"], s, streams.numpy(f"data {k}")) if virtual else None

        def succeeds(n, k=k, data=data):
            real = data if virtual else draw(n, s, streams.numpy(f"data {k}"))
            found = estimate(real, n, s, streams.numpy(f"noise {k}"))
            return found.error(np.zeros(d)) <= s["target"]

        n = least_records(succeeds, start=start, most=_MOST_VIRTUAL if virtual else _MOST_NUMBERS // d)
        start = n if n < math.inf else start
        kept = ("estimator", "sweep", "dimension", "corruption_rate", "epsilon", "target")
        rows.append({name: s[name] for name in kept} | {"run": k, "n": float(n)})
    return rows


def slope(rows, axis, *, rng=None, num_boot=1000, value="n"):
    """(slope, low, high) of the median of log ``value`` against log ``axis``; a 95 % bootstrap interval over runs.

    Args: rows — a DataFrame of :func:`needed_cell`, with a few values of the axis;  rng — None: no interval;
        axis, value — columns;  num_boot — bootstrap draws.
    """
    groups = [(math.log(x), np.log(part[value].to_numpy())) for x, part in rows.groupby(axis)]
    x = np.array([g[0] for g in groups])
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()  # of least squares

    middle = float(weights @ [np.median(g[1]) for g in groups])
    if rng is None:
        return middle, math.nan, math.nan
    drawn = weights @ [np.median(rng.choice(g[1], (num_boot, len(g[1]))), axis=1) for g in groups]
    return middle, *(float(q) for q in np.quantile(drawn, [0.025, 0.975]))


# ------------------------------------------------------------------------------------------ time, memory, accesses


def _written(folder, n, d, rng, rate):
    """A float32 file of n records (n, d), block by block, mapped into memory for reading."""
    path = Path(folder) / "records.f32"
    rows = np.memmap(path, dtype=np.float32, mode="w+", shape=(n, d))
    v = ((-1.0) ** np.arange(d)).astype(np.float32)
    for a in range(0, n, 2**18):
        part = rng.standard_normal((min(2**18, n - a), d), dtype=np.float32)
        part[: int(rate * len(part))] += 1.5 * v
        rows[a : a + len(part)] = part
    rows.flush()
    return np.memmap(path, dtype=np.float32, mode="r", shape=(n, d))


def scaling_cell(settings, *, streams):
    """CPU time and peak memory of a run of PRIME (``ball``). Settings: ``num_records``, ``dimension``, ``disk`` —
    records in a file, clipped anew at each pass;  ``sweep``;  ``known`` — x̄ is public.

    Paper: prime, Sections 1 and 5 (d³ + nd² operations; the matrix exponential).
    Returns: a row: ``seconds`` (CPU), ``exponential`` — seconds of the matrix exponentials in it, ``peak`` — bytes
        allocated at most, the records in memory included.
    """
    s = dict(settings)
    n, d, rate, spent = s["num_records"], s["dimension"], 0.05, [0.0, 0]
    inner = mmw.weights

    def timed(*args, **how):
        began = time.process_time()
        found = inner(*args, **how)
        spent[0] += time.process_time() - began
        spent[1] += 1
        return found

    with tempfile.TemporaryDirectory() as folder:
        if s["disk"]:
            data = _written(folder, n, d, streams.numpy("data"), rate)
        else:
            how = {"corruption_rate": rate, "adversary": "rotated", "rng": streams.numpy("data"), "dtype": np.float32}
            data = corrupted_records(n, d, **how)[0]
        how = {"corruption_rate": rate, "epsilon": 10.0, "delta": 1e-6, "keep": not s["disk"]}
        how["location"] = np.zeros(d) if s.get("known") else None
        tracemalloc.start()
        mmw.weights = timed
        try:
            began = time.process_time()
            found = prime(data, rng=streams.numpy("noise"), **how)
            seconds = time.process_time() - began
        finally:
            mmw.weights = inner
            peak = tracemalloc.get_traced_memory()[1] + (0 if s["disk"] else data.nbytes)
            tracemalloc.stop()
        del data
    row = {"sweep": s["sweep"], "n": n, "d": d, "disk": s["disk"], "seconds": seconds, "exponential": spent[0]}
    return [row | {"calls": spent[1], "peak": peak, "error": found.error(np.zeros(d)), "status": found.status}]


def scattered(num_records, dimension, *, corruption_rate, rng):
    """Records, α of which lie on the d axes, an equal share each, at distances that give M's eigenvalues an excess
    from 1.5 to 15: d directions, each to be found by itself by a method that takes the top one.

    Paper: prime, Sections 1.1 and 2.3 ("scattered in Ω(d) orthogonal directions").
    """
    n, d = num_records, dimension
    points = rng.standard_normal((n, d))
    m = int(corruption_rate * n)
    axis = np.arange(m) % d
    points[:m] = 0.0
    points[np.arange(m), axis] = np.sqrt(np.geomspace(1.5, 15.0, d) * d / corruption_rate)[axis]
    return points


def accesses_cell(settings, *, streams):
    """Filter steps of Algorithm 4 and of PRIME (``tuned``, no noise, the clipping wide enough to touch nothing) on
    :func:`scattered` records.

    Settings: ``dimension``, ``num_records``, ``corruption_rate``. Paper: prime, Section 1.1.
    """
    s = dict(settings)
    d, rate = s["dimension"], s["corruption_rate"]
    data = scattered(s["num_records"], d, corruption_rate=rate, rng=streams.numpy("data"))
    one = filter_mean(data, corruption_rate=rate, rng=streams.numpy("filter"), stop="top", max_steps=20 * d + 100)
    how = {"noiseless": True, "location": np.zeros(d), "epsilon": 1.0, "delta": 1e-6, "corruption_rate": rate}
    how |= {"stop_constant": 3.0, "centre_error": float(np.abs(data).max()), "num_epochs": 40}
    many = prime(data, variant="tuned", rng=streams.numpy("prime"), **how)
    row = {"d": d, "classical": sum(bool(t.get("removed")) for t in one.trace)}
    row |= {"PRIME": sum(t.get("threshold") is not None for t in many.trace)}
    row["epochs"] = sum("iteration" not in t for t in many.trace)
    return [row | {"classical ends": one.status, "PRIME ends": many.status}]
