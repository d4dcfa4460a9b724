"""Times of trainings that have no measured relative: a few steps here, twice (the first warms up) and once longer.

What a step takes is the difference of a longer and a shorter run, so loading data and the last evaluation do not count.
Attacks and test images are cut to a few; the amount of :func:`costs.amount` counts what is left of them. Evaluations in
between are not in it.
"""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as TooLong

from privrob.suite import costs, engine, sweep
from privrob.suite.files import digest

SHORT, LONG = 2, 6  # steps
CUT = {"attack_steps": 3, "num_attacked": 32, "num_test": 100, "num_certified": 4, "num_draws": 4, "eot_draws": 1}
LISTS = {"attack_test_steps": [1], "evaluate_at": []}


def short(settings, steps):
    """The settings with so many steps and small evaluations, wherever they stand; everything else as it is."""
    found = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found[name] = short(value, steps)
        elif name in costs.STEPS:
            found[name] = steps
        elif name in LISTS and isinstance(value, list):
            found[name] = LISTS[name]
        elif name in CUT and isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = min(value, CUT[name])
        else:
            found[name] = value
    return found


def probe(unknown, *, minutes, say=print):
    """Time one training of each kind; the records, which :class:`costs.Measured` takes, of those that could be timed.

    Args: unknown — {function: [(notebook, settings)]};  minutes — for each kind at most, its three runs together.
    """
    kinds = {}
    for function, found in unknown.items():
        for _, settings in found:
            cell = {"function": function, "settings": settings}
            if any(n in costs.flat(settings) for n in costs.STEPS):
                key = costs.kind(cell)
                kinds[key] = min(kinds.get(key, cell), cell, key=lambda c: costs.amount(c["settings"])[1])
    records = []
    for cell in kinds.values():
        record, words = _time(cell, minutes)
        sizes = " × ".join(costs.amount(cell["settings"])[0])
        say(f"  timed here: {cell['function']} ({costs.name_of(cell['settings'])}; {sizes}): {words}")
        records += [record] if record else []
    return records


def _time(cell, minutes):
    """(record or None, in words) of a few steps of one training, in a process of its own."""
    seconds = []
    executor, deadline = engine.LocalExecutor(1), time.monotonic() + 60 * minutes
    try:
        for steps in (SHORT, SHORT, LONG):
            made = sweep.make_cells([(cell["function"], short(cell["settings"], steps))], seed=0)
            (result,) = executor.submit(sweep.compute_group, made).result(timeout=max(0.0, deadline - time.monotonic()))
            if "error" in result:
                return None, f"failed: {result['error'].strip().splitlines()[-1][:200]}"
            seconds.append(result["seconds"])
    except TooLong:
        return None, f"{minutes:g} minutes were not enough"
    except Exception as error:
        return None, f"failed: {type(error).__name__}: {error}"
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    slope = (seconds[2] - seconds[1]) / (LONG - SHORT)
    if not slope > 0:
        return None, "a step is too quick to be timed"
    settings = cell["settings"]
    steps = next(v for n, v in costs.flat(settings).items() if n in costs.STEPS)
    whole, cut = costs.amount(settings)[1], short(settings, steps)
    one = (costs.amount(short(settings, LONG))[1] - costs.amount(short(settings, SHORT))[1]) / (LONG - SHORT)
    record = {"function": cell["function"], "settings": settings, "identity": digest(["probe", cell["function"], cut])}
    return record | {"seconds": slope * whole / one, "probe": True}, f"{slope:.3g} s a step"
