"""Cells to rows: heavy work as a list of (function, settings), each computed once and kept.

A cell is an import path and frozen settings, ``("privrob.learn.dpsgd:train_cell", {"seed": 0, ...})``; the function is
``fn(settings, *, streams) -> list[row]``. Its rows are written once, atomically, under a key of the function, its
settings, the root seed, the data's sha256 and the source of all modules that the function imports. So a killed run
resumes at the first missing cell, a changed setting or line of code is computed anew, and a file that was edited by
hand or cut short is noticed and computed again.

Optional attributes of the function:

``fn.data(settings) -> {name: sha256}``
    the data that the cell reads;
``fn.batch(list of settings, *, streams) -> list of lists of rows`` and ``fn.batch_key(settings)``
    cells with equal keys (None: never) may be computed together, with the same rows as alone.
``fn.resumes = True``
    the function takes ``scratch``, a folder for this cell's checkpoints: it outlives a killed run, and goes when the
    rows are stored.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import shutil
import sys
import time
import traceback
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from privrob.kinds import Streams
from privrob.suite import engine as engines
from privrob.suite import tables, turns
from privrob.suite.files import digest, dump_json, load_json, read_text, write_text
from privrob.suite.sources import PACKAGE, code_hash

FORMAT = 1
BATCH = 32  # cells computed together at most
LONG = 0.5  # seconds of a cell after which its memory is worth a search for what nobody can reach
NOT_IN_STREAMS = ("device",)  # where a cell runs does not change its random numbers


class SweepError(RuntimeError):
    """Some cells failed. The others are stored; a rerun computes only these."""


class NoStoredRows(LookupError):
    """Figures were to be redrawn, and there are no rows to draw them from."""


@dataclass(frozen=True)
class Cell:
    """One unit of work, with its names: ``identity`` (what is computed) and ``code`` (by which source)."""

    function: str
    settings: dict
    seed: int
    streams: tuple  # names of the cell's family of random streams below the root seed
    data: dict
    code: str
    identity: str = field(init=False)

    def __post_init__(self):
        parts = [FORMAT, self.function, self.settings, self.seed, self.streams, self.data]
        object.__setattr__(self, "identity", digest(parts))

    @property
    def file(self):
        """Name of the cell's file below the store."""
        return Path(self.identity[:2]) / f"{self.identity[:32]}.{self.code[:12]}.json"


def resolve(path):
    """The function behind ``package.module:name``."""
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"a cell's function must be 'package.module:name', got {path!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"a cell's function must be importable, {path!r} is not: {error}") from error


def source_hash(path):
    """Hash of the code behind a cell function: its module and all modules of the package that it imports."""
    module = path.partition(":")[0]
    if module == PACKAGE or module.startswith(f"{PACKAGE}."):
        return code_hash([module])
    spec = importlib.util.find_spec(module)
    origin = spec and spec.origin
    return digest([read_text(origin) if origin else "", code_hash(_package_imports(origin) if origin else [])])


def _package_imports(path):
    import ast

    from privrob.suite.sources import imported_names

    return imported_names(ast.parse(read_text(path)))


def make_cells(work, *, seed, common=None):
    """Cells of (function path, settings) pairs.

    Args: seed — root seed;  common — names of the settings that alone choose the random streams, so that cells which
    differ elsewhere draw the same numbers (a paired comparison); None: all settings do.
    """
    cells, functions, hashes = [], {}, {}
    for path, settings in work:
        settings = load_json(dump_json(settings))  # frozen: what is stored is what the cell saw
        if path not in functions:
            functions[path], hashes[path] = resolve(path), source_hash(path)
        function = functions[path]
        data = dict(function.data(settings)) if hasattr(function, "data") else {}
        if common is not None and (lost := sorted(set(common) - set(settings))):
            raise ValueError(f"common must name settings of every cell, {path} has no {', '.join(lost)}")
        chosen = settings if common is None else {k: settings[k] for k in common}
        chosen = {k: v for k, v in chosen.items() if k not in NOT_IN_STREAMS}
        cells.append(Cell(path, settings, seed, ("cell", path, dump_json(chosen)), data, hashes[path]))
    twice = len(cells) - len({c.identity for c in cells})
    if twice:
        raise ValueError(
            f"a sweep must hold each cell once, got {twice} repeated; give repetitions a setting such as seed"
        )
    return cells


# --------------------------------------------------------------------------------------------------------------- store


class Store:
    """The folder of stored cells. A file that does not check out counts as absent, and is named in ``damaged``.

    Args: folder — where cells are kept;  also — folders that are read, never written (a study takes over equal cells
    of the reference results).
    """

    def __init__(self, folder, also=()):
        self.folder = Path(folder)
        self.folders = list(dict.fromkeys([self.folder, *map(Path, also)]))
        self.damaged = []

    def scratch(self, cell):
        """The folder for a cell's checkpoints, those of other code apart."""
        return self.folder / ".scratch" / Path(cell.file).stem

    def get(self, cell, *, any_code=False):
        """The stored record of a cell, or None. With ``any_code``, rows of older code serve, marked ``stale``."""
        for folder in self.folders:
            if (record := self._read(folder / cell.file, cell)) is not None:
                return {**record, "stale": False}
        if not any_code:
            return None
        others = [p for f in self.folders for p in f.joinpath(cell.file.parent).glob(f"{cell.identity[:32]}.*.json")]
        for path in sorted(others, key=lambda p: p.stat().st_mtime, reverse=True):
            if (record := self._read(path, cell)) is not None:
                return {**record, "stale": True}
        return None

    def put(self, cell, rows, **provenance):
        """Store a cell's rows, whole or not at all."""
        body = {
            "format": FORMAT,
            "identity": cell.identity,
            "function": cell.function,
            "settings": cell.settings,
            "seed": cell.seed,
            "streams": list(cell.streams),
            "data": cell.data,
            "code": cell.code,
            "rows": rows,
            **provenance,
        }
        record = load_json(dump_json(body))
        place = self.folder / cell.file
        if place.is_dir() and not place.is_symlink():  # as damaged as a file that does not check out
            shutil.rmtree(place)
        write_text(place, dump_json({**record, "checksum": digest(record)}) + "\n")
        shutil.rmtree(self.scratch(cell), ignore_errors=True)
        return record

    def _read(self, path, cell):
        try:
            record = load_json(read_text(path))
        except FileNotFoundError:
            return None
        except (ValueError, OSError):
            self.damaged.append(path.name)
            return None
        if not isinstance(record, dict) or record.pop("checksum", None) != digest(record):
            self.damaged.append(path.name)
            return None
        return record if record.get("identity") == cell.identity else None


# ----------------------------------------------------------------------------------------------------------------- run


@dataclass
class Outcome:
    """What a sweep gives back: a record a cell, in the order asked for, and how they came about."""

    records: list
    computed: int = 0
    reused: int = 0
    stale: int = 0
    damaged: list = field(default_factory=list)
    stored_seconds: float = 0.0  # what the reused cells took when they were computed

    def rows(self):
        """All rows, each with its cell's scalar settings in front (a row's own entry wins)."""
        result = []
        for record in self.records:
            scalars = {k: v for k, v in record["settings"].items() if not isinstance(v, (list, dict))}
            result += [{**scalars, **row} for row in record["rows"]]
        return result


def run(cells, store, *, engine="local", num_workers=None, redraw=False, fresh=False, progress=None, provenance=None):
    """Compute the cells that the store lacks, on the engine, and return the :class:`Outcome`.

    Args: engine — ``local``, ``dask``, ``dask://host:port``;  redraw — compute nothing, take rows of any code;  fresh —
    compute everything;  progress — called with (done, total, taken over, seconds left or None) after each cell.
    Raises: SweepError after all other cells are done and stored, naming each cell that failed;  NoStoredRows.
    """
    found = {} if fresh else {c.identity: store.get(c, any_code=redraw) for c in cells}
    records = {identity: record for identity, record in found.items() if record}
    missing = [c for c in cells if c.identity not in records]
    if redraw and missing:
        total = tables.count(len(cells), "cell")
        raise NoStoredRows(f"no stored rows for {len(missing)} of {total}; run once without --redraw")
    outcome = Outcome([], computed=len(missing), reused=len(records), damaged=store.damaged)
    outcome.stale = sum(r["stale"] for r in records.values())
    outcome.stored_seconds = sum(r.get("seconds", 0.0) for r in records.values())
    for cell in cells if fresh else ():
        shutil.rmtree(store.scratch(cell), ignore_errors=True)
    errors, began = [], time.monotonic()

    def tick(computed):
        if progress:
            left = (time.monotonic() - began) / computed * (len(missing) - computed) if computed else None
            progress(outcome.reused + computed, len(cells), outcome.reused, left)

    tick(0)
    with closing(_compute(groups(missing), store, engine, num_workers or engines.workers(), fresh)) as results:
        for cell, result in results:
            if "error" in result:
                errors.append((cell, result["error"]))
            elif "record" in result:  # another notebook of this run has computed it meanwhile
                records[cell.identity] = {**result["record"], "stale": False}
                outcome.computed, outcome.reused = outcome.computed - 1, outcome.reused + 1
                outcome.stored_seconds += result["record"].get("seconds", 0.0)
            else:
                stamp = {"seconds": result["seconds"], **(provenance or {})}
                records[cell.identity] = {**store.put(cell, result["rows"], **stamp), "stale": False}
            tick(len(records) + len(errors) - outcome.reused)
    if errors:
        raise SweepError(_explain(errors, len(cells)))
    outcome.records = [records[c.identity] for c in cells]
    return outcome


def _last_line(error):
    return error.strip().splitlines()[-1]


def _explain(errors, total):
    lines = [f"{len(errors)} of {tables.count(total, 'cell')} failed, the first with {_last_line(errors[0][1])}."]
    if len(errors) < total:
        lines.append("The others are stored, and a rerun computes only these:")
    for cell, error in errors[:5]:
        settings = {k: v for k, v in cell.settings.items() if not isinstance(v, (list, dict))}
        lines.append(f"  {_last_line(error)}; {cell.function} {settings}")
    lines += [f"  … and {len(errors) - 5} more"] * (len(errors) > 5)
    return "\n".join([*lines, "", "First failure in full:", errors[0][1]])


def groups(cells):
    """Cells in lists that are computed together: by ``batch_key``, otherwise one by one."""
    found, keyed = [], {}
    for cell in cells:
        function = resolve(cell.function)
        key = function.batch_key(cell.settings) if hasattr(function, "batch") else None
        if key is None:
            found.append([cell])
        else:
            keyed.setdefault((cell.function, digest(key)), []).append(cell)
    for same in keyed.values():
        found += [same[i : i + BATCH] for i in range(0, len(same), BATCH)]
    return found


def _compute(work, store, engine, num_workers, again):
    """Yield (cell, result) as they are done. One local worker means this process: the same rows, no second start-up.

    Args: again — whether cells are computed that were stored meanwhile, too.
    """
    if not work:
        return
    below = Store(store.folder.resolve())  # resolved once: it asks the system about every folder on the way
    with ExitStack() as stack:
        if engine == "local" and min(num_workers, len(work)) == 1:
            executor, room, check_code = turns.Here(), 1, False
        else:
            executor = stack.enter_context(engines.open_executor(engine, min(num_workers, len(work))))
            room, check_code = turns.AHEAD * num_workers if engine == "local" else len(work), True

        def task(group):
            places = [below.scratch(cell) for cell in group]
            claims = [place.with_name(f"{place.name}.claim") for place in places] if engine == "local" else []
            return (functools.partial(compute_group, check_code=check_code), group, list(map(str, places))), claims

        def taken(group):
            return [] if again else [cell for cell in group if below.get(cell)]

        for group, future in turns.in_turn(work, executor, room=room, task=task, taken=taken):
            if future is None:
                yield from ((cell, {"record": below.get(cell)}) for cell in group)
                continue
            try:
                results = future.result()
            except Exception as error:
                results = [{"error": f"{type(error).__name__}: {error}"}] * len(group)
            yield from zip(group, results, strict=True)


def compute_group(group, scratch=None, *, check_code=True):
    """Compute some cells of one function here; an error becomes the text of its traceback. Runs on the worker.

    Args: scratch — a folder for each cell's checkpoints (None: there is none).
    """
    if check_code and source_hash(group[0].function) != group[0].code:
        text = (
            f"the source of {group[0].function} on this worker is not the one that the sweep began with: it was edited "
            "meanwhile (start again), or the worker has another checkout (update it)"
        )
        return [{"error": f"RuntimeError: {text}"}] * len(group)
    engines.let_start_processes()
    function = resolve(group[0].function)
    streams = [Streams(c.seed, *c.streams) for c in group]
    with one_thread():
        return _results(function, group, streams, scratch or [None] * len(group))


def _results(function, group, streams, scratch):
    began = time.monotonic()
    if len(group) > 1:
        try:
            many = function.batch([dict(c.settings) for c in group], streams=streams)
            if len(many) != len(group):
                raise TypeError(f"{group[0].function}.batch must return rows for {len(group)} cells, got {len(many)}")
            seconds = (time.monotonic() - began) / len(group)
            _tidy(began)
            return [{"rows": _checked(rows, group[0]), "seconds": seconds} for rows in many]
        except Exception:
            print(f"batch of {len(group)} failed, one by one instead:\n{traceback.format_exc()}", file=sys.stderr)
    results = []
    for cell, stream, place in zip(group, streams, scratch, strict=True):
        began = time.monotonic()
        more = {"scratch": place} if getattr(function, "resumes", False) else {}
        try:
            rows = _checked(function(dict(cell.settings), streams=stream, **more), cell)
            results.append({"rows": rows, "seconds": time.monotonic() - began})
        except (Exception, SystemExit):
            results.append({"error": traceback.format_exc()})
        _tidy(began)
    return results


def _tidy(began):
    """Free what a long cell left behind now: objects that point at each other (a training and its release) keep their
    copies of the data until Python counts many small ones, not large ones."""
    if time.monotonic() - began > LONG:
        gc.collect()


def _checked(rows, cell):
    """Rows as they will be stored: a list of dicts of plain values."""
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise TypeError(f"{cell.function} must return a list of dicts, got {type(rows).__name__}")
    return load_json(dump_json(rows))


@functools.lru_cache(maxsize=1)
def _thread_pools(_modules):
    """The thread pools that are loaded. Looking for them takes milliseconds, so they are looked for again only after
    an import, which may have brought another one."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_thread():
    """One thread for BLAS and torch while the cell runs, as on a worker, so that sums are taken in the same order."""
    stack = ExitStack()
    stack.enter_context(_thread_pools(len(sys.modules)).limit(limits=1))
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, before)
    return stack
