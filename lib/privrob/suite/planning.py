"""``./run_all.sh plan``: what a preset costs on so many workers, from what cells took that were measured.

Each notebook is counted in a process of its own (``suite.counting``), its cells get their times by the law of
``suite.costs``, and a simulation places them on workers. What cannot be counted or has no measured relative is listed.
"""

from __future__ import annotations

import math
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from privrob.suite import costs, counting, probing, record, tables
from privrob.suite import run as driver
from privrob.suite.files import check_writable, digest, dump_json, load_json, read_text, rows_to_csv, write_text
from privrob.suite.sources import repository

COUNTS = ".counts"  # below the folder of plans: what was counted, taken again while nothing changed
BOUNDS = ("low", "mid", "high")


@dataclass
class Count:
    """What one notebook would compute: ``sweeps`` as ``counting`` wrote them, and what is not known."""

    name: str
    sweeps: list = field(default_factory=list)
    notes: list = field(default_factory=list)  # in words
    whole: bool = True  # all calls of run.sweep were reached
    own: float | None = None  # seconds of a notebook without sweeps


@dataclass(frozen=True)
class Options:
    """How to count: time limit of one notebook in minutes, notebooks at once, folders with measured results."""

    minutes: float = 30.0
    jobs: int = 1
    fresh: bool = False
    measured: tuple = ()


# ---------------------------------------------------------------------------------------------------------- counting


def count_all(plans, options, *, say=print):
    """Count the plans' notebooks; a list of :class:`Count`. One that cannot be counted says so, the others go on."""
    stop = threading.Event()

    def one(plan):
        try:
            found = _count(plan, options, stop)
        except Exception as error:  # whatever it is, the others are counted
            found = Count(plan.name, notes=[f"not counted: {type(error).__name__}: {error}"], whole=False)
        cells = sum(len(g) for s in found.sweeps for g in s["groups"])
        what = f"{tables.count(cells, 'cell')} in {tables.count(len(found.sweeps), 'sweep')}"
        what = what if found.sweeps or not found.whole else "no sweeps"
        say(f"{'+' if found.whole else '?'} {plan.name}  {what}")
        return found

    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            return list(pool.map(one, plans))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _count(plan, options, stop):
    total = counting.sites(plan.source.code)
    if not total:
        return _without_sweeps(plan, options)
    kept = plan.out / COUNTS / f"{plan.name.replace('/', '.')}.{plan.preset}.json"
    inputs = digest([plan.inputs(), _stored(options)])
    if kept.is_file() and not options.fresh:
        before = load_json(read_text(kept))
        if before["inputs"] == inputs:
            return Count(plan.name, before["sweeps"], before["notes"], before["whole"])
    folder = driver.prepare(plan, driver.Options(jobs=options.jobs, minutes=options.minutes))
    try:
        job = load_json(read_text(folder / "job.json"))
        job |= {"module": "privrob.suite.counting", "count": str(folder / counting.COUNT)}
        job["more_stores"] = [str(Path(p).resolve() / ".cells") for p in options.measured]
        write_text(folder / "job.json", dump_json(job))
        status = driver.run_child(folder, stop)
        lines = folder / counting.COUNT
        sweeps = [load_json(line) for line in read_text(lines).splitlines()] if lines.is_file() else []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    reached = {(s["cell"], first) for s in sweeps for cell, first, last, _ in total if _in(s, cell, first, last)}
    lost = [site for site in total if (site[0], site[1]) not in reached]
    notes = [words for site in lost if (words := _why(site, status))]
    notes += [f"code cell {e['cell']}: counted up to {e['error']}" for e in status.get("errors", []) if _cut(e, total)]
    first = next(iter(status.get("errors", [])), None)
    if first and not _waits(first) and not any(_short(first["error"]) in note for note in notes):
        notes.append(f"code cell {first['cell']}: {_short(first['error'])}; what it was for may be missing")
    found = Count(plan.name, sweeps, list(dict.fromkeys(notes)), status["ok"] and not notes)
    if status["ok"] and all(_waits(e) or e["error"].startswith("NameError") for e in status["errors"]):
        # what failed for want of data or packages may be there next time
        write_text(kept, dump_json({"inputs": inputs, "sweeps": sweeps, "notes": found.notes, "whole": found.whole}))
    return found


def _stored(options):
    """Names of the cells that are stored: which are missing, and what follows from planned ones, hangs on them."""
    return sorted(p.name for folder in options.measured for p in Path(folder).glob(".cells/*/*.json"))


def _in(sweep, cell, first, last):
    return sweep["cell"] == cell and first <= sweep["line"] <= last


def _waits(error):
    """Whether a statement failed because it looked into rows that are not there (pandas words it in its own way)."""
    return error["waits"] or "Pending" in error["error"]


def _cut(error, total):
    """Whether a loop around a sweep failed: it may have called the sweep again."""
    first, last = error["lines"]
    return any(loop and cell == error["cell"] and first <= line <= last for cell, line, _, loop in total)


def _short(error):
    """Its first line up to the first sentence's end: what is missing, not all ways to get it, nor addresses."""
    first = str(error).strip().partition("\n")[0]
    return re.split(r"\.\s|\s+\(download|\s+\S*://", first)[0].rstrip(" .:")


def _why(site, status):
    """Why a call of ``run.sweep`` was not reached, in words; empty: it stands in a branch that was not taken."""
    where = f"the sweep in code cell {site[0]}, line {site[1]}"
    if not status["ok"]:
        return f"{where} was not counted: {_short(status['error'])}"
    errors = [e for e in status["errors"] if (e["cell"], e["lines"][0]) <= site[:2]]
    own = next((e for e in errors if e["cell"] == site[0] and e["lines"][1] >= site[1]), None)
    if own is None:
        return ""
    cause = errors[0] if own["error"].startswith("NameError") else own  # a name that an earlier failure took away
    if not _waits(cause):
        return f"{where} was not counted: code cell {cause['cell']}: {_short(cause['error'])}"
    return f"{where} depends on rows of an earlier sweep, and is not counted"


def _without_sweeps(plan, options):
    """A notebook that computes in its own cells: what its last run took, of this preset or one with equal values."""
    values = {**plan.source.defaults, **plan.changes}
    runs = [r for p in options.measured for preset in (plan.preset, "laptop") if (r := _result(p, plan.name, preset))]
    if same := next((r for r in runs if r["parameters"] == values), None):
        return Count(plan.name, own=same["run"]["seconds"])
    notes = ["computes in its own cells, and was never run with these values"]
    if runs:
        notes = [
            f"computes in its own cells; {runs[0]['run']['seconds']:.0f} s is what preset {runs[0]['preset']} took"
        ]
    return Count(plan.name, notes=notes, own=runs[0]["run"]["seconds"] if runs else None)


def _result(folder, name, preset):
    try:
        return record.read(Path(folder) / name / preset)
    except record.BadResult:
        return None


# ---------------------------------------------------------------------------------------------------------- estimates


def measured(folders):
    """Records of the cells that were measured: all below the folders' ``.cells``, and what results keep of theirs."""
    records = []
    for path in sorted(p for f in folders for p in Path(f).glob(".cells/*/*.json")):
        try:
            found = load_json(read_text(path))
            records.append({k: found[k] for k in ("function", "settings", "seconds", "identity")})
        except (OSError, ValueError, KeyError, TypeError):  # a half-written or foreign file says nothing
            continue
    for path in sorted(p for f in folders for p in Path(f).glob(f"*/*/*/{costs.TIMES}")):
        records += costs.unpack(path)
    return records


def estimate(counts, known, *, speed_up=1.0, missing_only=False):
    """(rows of the table, {bound: chains for the schedule}, settings of unknown cells by function)."""
    rows, chains, unknown = [], {b: [] for b in BOUNDS}, {}
    for one in counts:
        mine = {b: [] for b in BOUNDS}
        for sweep in one.sweeps:
            tasks, together = {b: [] for b in BOUNDS}, 0
            by_function = {}
            for group in sweep["groups"]:
                cells = [c for c in group if not (missing_only and c["stored"] and not c["stored"]["stale"])]
                found = [(c, _faster(known.estimate(c), c, speed_up)) for c in cells]
                together += bool(cells)
                for cell, guess in found:
                    by_function.setdefault(cell["function"], []).append(guess)
                    if guess.how == "unknown":
                        unknown.setdefault(cell["function"], []).append((one.name, cell["settings"]))
                for b in BOUNDS:
                    if seconds := math.fsum(getattr(guess, b) for _, guess in found):
                        tasks[b].append(seconds)
            for b in BOUNDS:
                mine[b].append(tasks[b])
            longest = max(tasks["mid"], default=0.0)
            rows += [_row(one.name, sweep["label"], f, g, together, longest) for f, g in by_function.items()]
        if one.own:
            for b in BOUNDS:
                mine[b].append([one.own])
            rows.append(_row(one.name, "own cells", "", [costs.Estimate("stored", *[one.own] * 3)], 1, one.own))
        for b in BOUNDS:
            chains[b].append(mine[b])
    return rows, chains, unknown


def _faster(guess, cell, speed_up):
    """On a device that is so many times faster; cells without a setting ``device`` run on a core, as measured."""
    if "device" not in costs.flat(cell["settings"]):
        return guess
    return replace(guess, low=guess.low / speed_up, mid=guess.mid / speed_up, high=guess.high / speed_up)


def _row(name, label, function, guesses, tasks, longest):
    row = {"notebook": name, "sweep": label, "function": function, "cells": len(guesses), "tasks": tasks}
    row |= {how: sum(g.how == how for g in guesses) for how in ("stored", "alike", "kin", "probe", "unknown")}
    if row["unknown"] == row["cells"]:  # no time at all is not a time of 0
        return row | {f"{b}_seconds": None for b in BOUNDS} | {"longest_task_seconds": longest or None}
    row |= {f"{b}_seconds": math.fsum(getattr(g, b) for g in guesses) for b in BOUNDS}
    return row | {"longest_task_seconds": longest}


def schedules(chains, workers, *, start_up):
    """A row for each number of workers: makespan, range, efficiency, and the bounds that no number of workers beats."""
    rows = []
    for count in workers:
        found = {b: costs.schedule(chains[b], count, start_up=start_up) for b in BOUNDS}
        mid = found["mid"]
        row = {"workers": count, **{f"{b}_makespan_seconds": found[b].makespan for b in BOUNDS}}
        row |= {"total_seconds": mid.total, "efficiency": mid.efficiency}
        rows.append(row | {"longest_task_seconds": mid.longest, "longest_chain_seconds": mid.chain})
    return rows


# --------------------------------------------------------------------------------------------------------- the verb


def options(a):
    """The checked :class:`Options` of the command line's arguments."""
    for name in ("speed_up", "time_limit"):
        if not 0 < getattr(a, name) < math.inf:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0, got {getattr(a, name):g}")
    if not 0 <= a.start_up < math.inf:
        raise ValueError(f"--start-up must be at least 0 seconds, got {a.start_up:g}")
    if a.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {a.jobs}")
    for place in a.measured:
        if not Path(place).is_dir():
            raise ValueError(f"--measured must be a results folder, {place} is not there")
    for name in ("csv", "page"):
        if (path := getattr(a, name)) is not None:
            if path.is_dir() or not path.name:
                raise ValueError(f"--{name} must be a file to write, got a folder: {path}")
            check_writable(path.parent, name=f"the folder of --{name}", way_out="choose one you may write to")
    if a.measure is not None and not 0 < a.measure < math.inf:
        raise ValueError(f"--measure must be above 0 minutes, got {a.measure:g}")
    numbers_of_workers(a.workers)
    return Options(a.time_limit, a.jobs, a.fresh, (repository() / "results", *map(Path, a.measured)))


def main(plans, options, a, *, say=print):
    """Count, estimate, simulate, and say it; the exit status is 0 also where something could not be counted."""
    say(f"counting {tables.count(len(plans), 'notebook')}, preset {a.preset}; nothing is trained")
    counts = count_all(plans, options, say=say)
    probes = folder() / COUNTS / "probes.json"
    records = measured([*options.measured, folder()])
    records += load_json(read_text(probes)) if probes.is_file() and not options.fresh else []
    known = costs.Measured(records)
    more = {"speed_up": a.speed_up, "missing_only": a.missing}
    rows, chains, unknown = estimate(counts, known, **more)
    if a.measure and unknown:
        records += probing.probe(unknown, minutes=a.measure, say=say)
        write_text(probes, dump_json([r for r in records if r.get("probe")]))
        known = costs.Measured(records)
        rows, chains, unknown = estimate(counts, known, **more)
    table = schedules(chains, numbers_of_workers(a.workers), start_up=a.start_up)
    said = "\n".join(report(counts, rows, table, unknown, known, speed_up=a.speed_up, start_up=a.start_up))
    say(f"\n{said}")
    if a.page:
        head = f"# What the preset {a.preset} costs\n\nWritten by `./run_all.sh plan`, commit {record.commit()}.\n\n"
        write_text(a.page, f"{head}```text\n{said}\n```\n")
        say(f"\nwritten: {a.page}")
    if a.csv:
        by_workers = a.csv.with_name(f"{a.csv.stem}.workers.csv")
        write_text(a.csv, rows_to_csv(rows))
        write_text(by_workers, rows_to_csv(table))
        say(f"\nwritten: {a.csv} (cells) and {by_workers} (workers)")
    return 0


def report(counts, rows, table, unknown, known, *, speed_up, start_up):
    """The plan in words and two tables, as lines."""
    names = _names(rows)
    width = max(map(len, names), default=10)
    cells, lost = (sum(r[n] for r in rows if r["function"]) for n in ("cells", "unknown"))
    measured_ = tables.count(len(known), "measured cell")
    yield f"Times from {measured_}. {tables.count(cells, 'cell')} counted, {lost} without an estimate."
    head = "cells  tasks  measured  alike   kin  probe  unknown        time on one worker  longest task"
    yield f"\n{'sweep'.ljust(width)}  {head}"
    for name, r in zip(names, rows):
        span = _span(r)
        numbers = f"{r['cells']:5}  {r['tasks']:5}  {r['stored']:8}  {r['alike']:5} {r['kin']:5}"
        numbers += f"  {r['probe']:5}  {r['unknown']:7}"
        yield f"{name.ljust(width)}  {numbers}  {span:>24}  {_time(r['longest_task_seconds']):>12}"
    if timeless := bool(lost and table and not table[0]["total_seconds"]):
        yield "\nHow long workers take is unknown: no cell has an estimate."
    else:
        yield "\nworkers    done in        (range)          work   efficiency"
    for r in table if not timeless else ():
        span = f"({_time(r['low_makespan_seconds'])} to {_time(r['high_makespan_seconds'])})"
        done, work = _time(r["mid_makespan_seconds"]), _time(r["total_seconds"])
        yield f"{r['workers']:7}  {done:>9}  {span:>20}  {work:>8}  {r['efficiency']:10.0%}"
    if table and not timeless:
        yield (
            f"No number of workers is done before {_time(table[0]['longest_task_seconds'])} (the longest task), "
            f"nor before {_time(table[0]['longest_chain_seconds'])} (the longest chain of sweeps in one notebook)."
        )
    if lost or not all(c.whole for c in counts):
        yield "\nNot in these times, which are therefore lower bounds:"
        for function, found in unknown.items():
            books = ", ".join(dict.fromkeys(name for name, _ in found))
            kinds = dict.fromkeys(costs.name_of(s) for _, s in found)
            shown = "; ".join(list(kinds)[:4]) + (f"; and {len(kinds) - 4} more" if len(kinds) > 4 else "")
            many = tables.count(len(found), "cell")
            yield f"  {many} of {function} ({books}), without a measured relative: {shown}"
        yield from (f"  {c.name}: {note}" for c in counts if not c.whole for note in c.notes or ["not counted"])
    if said := [f"  {c.name}: {note}" for c in counts if c.whole for note in c.notes]:
        yield "\nNotebooks without sweeps:"
        yield from said
    yield "\nHow to read this:"
    fast = f"{speed_up:g} times as fast as" if speed_up != 1 else "as fast as"
    given = "as --speed-up says" if speed_up != 1 else "pass the factor that you measured as --speed-up"
    yield (
        f"  GPUs were not measured. For cells that train on a device a worker is taken to be {fast} the core\n"
        f"  that the cells were measured on ({given}); other cells take a core's time.\n"
        "  measured: that very cell was run. alike, kin: seconds per (step × expected batch) of measured cells of the\n"
        "  same function, data set and model; alike: all words in the settings agree, too. A range takes every cell\n"
        "  at its lower (upper) end at once. Tasks are cells computed together. The longest is begun first, a sweep\n"
        "  waits for the one before it in its notebook, all notebooks run at once (--jobs), a worker starts up in "
        f"{start_up:g} s.\n"
        "  probe: a few steps of such a training were timed here (--measure), without evaluations in between.\n"
        "  What a notebook computes beside its sweeps is left out."
    )


def _names(rows):
    """What each row is about: notebook and sweep; where a sweep has several functions theirs, with the module for two
    of one name."""
    names = [f"{r['notebook']}, {r['sweep']}" for r in rows]
    functions = [r["function"].removeprefix("privrob.") for r in rows]
    more = [f"{n} ({f.rpartition(':')[2]})" for n, f in zip(names, functions)]
    most = [f"{n} ({f})" if more.count(m) > 1 else m for n, m, f in zip(names, more, functions)]
    return [m if names.count(n) > 1 else n for n, m in zip(names, most)]


def _span(row):
    """The time of a row and its range; "over …" where some of its cells have no estimate, "unknown" where none has."""
    if row["mid_seconds"] is None:
        return "unknown"
    over = "over " if row["unknown"] else ""
    return f"{over}{_time(row['mid_seconds'])} ({_time(row['low_seconds'])} to {_time(row['high_seconds'])})"


def _time(seconds):
    """Seconds, minutes, hours or days, to two digits or so; "unknown" for nothing."""
    if seconds is None:
        return "unknown"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def numbers_of_workers(text):
    """``1,8,64`` as a list."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ValueError(f"--workers must be whole numbers of at least 1, such as 1,8,64, got {text!r}")
    return found


def folder():
    """Where counts and the cells of planning functions are kept."""
    return repository() / "studies" / ".plan"
