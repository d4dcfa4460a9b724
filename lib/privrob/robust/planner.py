r"""Before any record is touched: can filtering help here, what noise would each step get, how many records would do?

planner.plan(num_records=100_000, dimension=50, corruption_rate=0.1, epsilon=1.0, delta=1e-6)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from privrob import checks
from privrob.robust import prime
from privrob.robust.filtering import check_data, stop_level
from privrob.robust.noiseplan import NoisePlan

_MOST = 10**13


@dataclass(frozen=True)
class Plan:
    """What to expect of n records. Fields:

    advice — ``filter``, ``mean only`` (without filtering as good or better) or ``more records`` (no private range);
    reason — in words;  range_shows — whether a bin of the range will pass its cut-off;  norm_limit — the λ that passes;
    matrix_noise — spectral norm of the noise of Σ;  visible_norm — the λ from which a filter sees something;
    error_filtered, error_unfiltered — against the worst adversary of each, a rule of thumb;  needed_records — the
    least n at which the range shows and the matrix's noise is below the limit, so that a filter sees all it should;
    None where there is none below 1e13;  noise — the :class:`.NoisePlan`.
    """

    num_records: int
    dimension: int
    corruption_rate: float
    advice: str
    reason: str
    range_shows: bool
    norm_limit: float
    matrix_noise: float
    visible_norm: float
    error_filtered: float
    error_unfiltered: float
    needed_records: int | None
    noise: NoisePlan = field(repr=False)

    def __str__(self):
        need = "no n would do" if self.needed_records is None else f"n ≥ {self.needed_records:,} for full accuracy"
        return f"{self.advice}: {self.reason}; {need}"


def plan(*, num_records, dimension, corruption_rate, epsilon, delta, variant="ball", heavy_tailed=False, **changes):
    r"""Whether PRIME can help, from public numbers only.

    An adversary who moves the mean by b raises λ by about b²/α. What a filter doesn't see, λ up to the stop level plus
    the matrix's noise (2√(d/2)·σ, its spectral norm), costs √(αλ); unfiltered, α mass may sit on the region's edge.

    Paper: prime, Section 3 ("this threshold, which can be easily determined based on the known parameters") and
        Appendix L ("we can check whether there are enough number of samples").
    Args: variant — ``as_printed``, ``tuned`` or ``ball``;  changes — fields of :class:`privrob.robust.prime.Settings`.
    """
    n, d = checks.integer("num_records", num_records, low=2), checks.integer("dimension", dimension, low=1)
    _, _, rate = check_data(np.empty((0, d)), corruption_rate)
    settings = prime.settings_for(variant, heavy_tailed=heavy_tailed, **changes)
    how = {"dimension": d, "corruption_rate": rate, "epsilon": epsilon, "delta": delta}

    def found(size):
        return _judge(settings, size, **how)

    here = found(n)
    need = None

    def enough(size):
        there = found(size)
        return there["range_shows"] and there["matrix_noise"] <= there["norm_limit"]

    if rate and enough(_MOST):
        low, high = 1, _MOST
        while high - low > max(1, low // 200):
            middle = (low + high) // 2 if high < 4 * low else int(math.sqrt(low * high))
            low, high = (low, middle) if enough(middle) else (middle, high)
        need = high
    return Plan(num_records=n, dimension=d, corruption_rate=rate, needed_records=need, **here)


def least_epsilon_of_range(*, top_share, num_records, dimension, corruption_rate, delta, variant="as_printed"):
    """The ε from which the fullest bin of a coordinate is above the range query's cut-off, its noise apart.

    Paper: prime, Figure 1, right (the "threshold around ε = 0.05").
    Side: of no guarantee: below this ε the query fails.
    Args: top_share — of the records, in the fullest bin;  variant — as for :func:`plan`.
    Returns: ε to 1e-6 of it, from above; infinite where 1e6 isn't enough.
    """
    settings = prime.settings_for(variant)
    share = checks.probability("top_share", top_share, allow_zero=False)
    how = {"num_records": num_records, "dimension": dimension, "corruption_rate": corruption_rate, "delta": delta}

    def shows(epsilon):
        return prime.make_plan(settings, epsilon=epsilon, **how).location.histogram.cutoff <= share * num_records

    low, high = 1e-6, 1e6
    if not shows(high):
        return math.inf
    while high > (1 + 1e-6) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _judge(settings, n, *, dimension, corruption_rate, epsilon, delta):
    d, rate, n = dimension, corruption_rate, max(n, 2)
    how = {"dimension": d, "corruption_rate": rate, "epsilon": epsilon, "delta": delta}
    noise = prime.make_plan(settings, num_records=n, **how)
    region = prime.region_for(settings, np.zeros(d), num_records=n, corruption_rate=rate)
    blocks = getattr(noise.location, "num_blocks", 1)
    one = getattr(noise.location, "one", noise.location)
    shows = (1 - rate) * n / blocks >= one.needed()
    limit = settings.stop_constant * (1.0 if settings.heavy_tailed else stop_level(rate))
    limit += 0.0 if settings.heavy_tailed else 2 * math.sqrt(d / n) + d / n
    wigner = math.sqrt(2 * d) if settings.sound else 2 * math.sqrt(d)
    matrix = wigner * noise["second_moment"].noise_std
    visible = limit + matrix
    last = noise["mean"].noise_std / (n if settings.sound else 1)
    floor = math.sqrt(d) * last + math.sqrt(d / n)
    filtered = math.sqrt(rate * visible) + floor
    unfiltered = rate * region.diameter / 2 + floor
    if not shows:
        advice, reason = "more records", "no bin of the range would pass its cut-off"
    elif not rate:
        advice, reason = "mean only", "nothing is corrupted"
    elif filtered >= unfiltered:
        advice, reason = (
            "mean only",
            (f"a filter sees no λ below {visible:.3g} and would leave {filtered:.3g}, clipping alone {unfiltered:.3g}"),
        )
    else:
        advice, reason = "filter", f"what stays unseen costs about {filtered:.3g}, against {unfiltered:.3g} unfiltered"
    return {
        "advice": advice,
        "reason": reason,
        "range_shows": bool(shows),
        "norm_limit": limit,
        "matrix_noise": matrix,
        "visible_norm": visible,
        "error_filtered": filtered,
        "error_unfiltered": unfiltered,
        "noise": noise,
    }
