r"""Local sensitivities and safety margins from their definition alone, on all small data sets over a few records.

LS(S) is the largest change of the value from S to a neighbour. A data set at most r edits from S is S itself, or at
most r − 1 edits from a neighbour of S, so that

.. math:: \mathrm{LS}^{(r)}(S) = \max\big(\mathrm{LS}^{(r-1)}(S),\ \max_{T \sim S} \mathrm{LS}^{(r-1)}(T)\big).

Data sets are multisets of positions in a universe of records; neighbours differ by adding or removing one of them. What
is found is exact for that universe, and a lower bound for a larger one. The cost grows fast: use it to check formulas.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from privrob import checks

_TOLERANCE = 1e-12  # of the records' size: rounding of sums in another order


def _universe(universe):
    records = np.asarray(universe, dtype=np.float64)
    if records.ndim not in (1, 2) or len(records) == 0:
        raise ValueError(f"universe must hold numbers or rows, at least one, got shape {records.shape}")
    return records


def data_set(positions, universe):
    """The records at these positions: shape (m,) for numbers, (m, d) for rows.

    Args: positions — of the m records;  universe — all that a record can be, (k,) or (k, d).
    """
    records = _universe(universe)
    return records[list(positions)].reshape(len(positions), *records.shape[1:])


def local_sensitivities(statistic, universe, *, num_records, edits):
    """{data set: [LS, LS^(1), …, LS^(edits)]} of all data sets of at most so many records.

    Paper: ptr, Section 5 (the definition of L^(r)).
    Printed: exactly r edits.   Used: at most r; the same for the trimmed sum, as the largest is reached by r additions.
    Args: statistic — has ``value(data)``;  universe — records, shape (k,) or (k, d);  num_records — of the largest data
        set;  edits — r at most.
    Returns: keys are sorted tuples of positions in the universe.
    """
    records = _universe(universe)
    size = checks.integer("num_records", num_records, low=0) + checks.integer("edits", edits, low=0) + 1
    sets, near = _edits(len(records), size)
    values = np.array([np.ravel(statistic.value(data_set(s, records))) for s in sets])
    level = np.array([np.linalg.norm(values[t] - values[i], axis=1).max() for i, t in enumerate(near)])
    kept = [i for i, s in enumerate(sets) if len(s) <= num_records]
    found = {sets[i]: [float(level[i])] for i in kept}
    for r in range(1, edits + 1):
        inner = [i for i in range(len(level)) if len(sets[i]) < size - r]
        level = np.array([max(level[i], level[near[i]].max()) for i in inner])
        for i in kept:
            found[sets[i]].append(float(level[i]))
    return found


@functools.lru_cache(maxsize=4)
def _edits(num_kinds, size):
    """All multisets up to a size, the small ones first; and for all but the largest the places of their neighbours."""
    kinds = range(num_kinds)
    sets = [s for n in range(size + 1) for s in itertools.combinations_with_replacement(kinds, n)]
    place = {s: i for i, s in enumerate(sets)}
    near = []
    for s in sets:
        if len(s) < size:
            around = [s[:i] + s[i + 1 :] for i in range(len(s))] + [tuple(sorted((*s, v))) for v in kinds]
            near.append(np.array([place[t] for t in around]))
    return sets, near


def compare(statistic, universe, *, num_records, edits, bounds):
    """How often a robust statistic's own local sensitivity and safety margin differ from the search.

    Args: statistic — has ``value``, ``local_sensitivity`` and ``safety_margin``;  bounds — of the margins, no
        attainable local sensitivity within 1e-9 of one but equal to it;  the rest as in :func:`local_sensitivities`.
    Returns: counts by name.
    """
    names = ("data sets", "sensitivities", "sensitivities that differ", "margins", "margins that differ")
    count = dict.fromkeys(names, 0)
    scale = max(1.0, float(np.abs(_universe(universe)).max()))
    found = local_sensitivities(statistic, universe, num_records=num_records, edits=edits)
    for s, reach in found.items():
        data = data_set(s, universe)
        ours = [statistic.local_sensitivity(data, edits=r) for r in range(edits + 1)]
        count["data sets"] += 1
        count["sensitivities"] += len(ours)
        count["sensitivities that differ"] += int((np.abs(np.subtract(ours, reach)) > _TOLERANCE * scale).sum())
        for bound in bounds:
            want = next((r for r, x in enumerate(reach) if x > bound + 1e-9), None)
            got = statistic.safety_margin(data, bound=bound)
            count["margins"] += 1
            count["margins that differ"] += bool(got != want if want is not None else got <= edits)
    return count
