"""The notebook's side of a run: ``run = start("dplearn/sec2_1_mechanisms", globals())``, sweeps, figures, claims, save.

Under the driver, the environment variable ``PRIVROB_JOB`` names the job (preset, folder, engine); in a notebook opened
by hand the same cells run with the values that stand in them, and leave their results under ``studies/lab``.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from privrob import checks
from privrob.kinds import Streams
from privrob.suite import claims as claims_
from privrob.suite import costs, figures, guard, record, tables
from privrob.suite import sweep as sweeps
from privrob.suite.files import (
    csv_to_rows,
    digest,
    dump_json,
    load_json,
    plain,
    read_text,
    rows_to_csv,
    write_bytes,
    write_text,
)
from privrob.suite.sources import code_hash, repository


def _items(name, value):
    """(name, number) of a value, of each entry of a list, or of each value in a dict, whose name says its key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _items(f"{name}[{key!r}]", inner)
    else:
        yield from ((name, item) for item in (value if isinstance(value, list) else [value]))


@dataclass
class Job:
    """What the driver asks of one notebook. The defaults are those of a notebook opened by hand."""

    notebook: str
    preset: str = "by hand"
    folder: Path | None = None  # where results are put
    store: Path | None = None  # where cells are kept
    more_stores: list = field(default_factory=list)  # where equal cells may be taken from
    stored_rows: Path | None = None  # a rows.csv to redraw from when cells are not there
    parameters: dict | None = None  # what was injected; None: nobody asks
    device: str = "auto"
    engine: str = "local"
    redraw: bool = False
    fresh: bool = False
    token: str = ""
    inputs: str = "0" * 64
    count: str = ""  # a file to write cells into, instead of computing them (suite.counting)

    @classmethod
    def current(cls, notebook):
        """The job named by the environment, or one by hand."""
        if path := os.environ.get("PRIVROB_JOB"):
            fields = load_json(read_text(path))
            known = {k: v for k, v in fields.items() if k in cls.__dataclass_fields__}
            for name in ("folder", "store", "stored_rows"):
                known[name] = known.get(name) and Path(known[name])
            return cls(**known)
        base = repository() / "studies" / "lab"
        more = [repository() / "results" / ".cells"]
        return cls(notebook, folder=base / notebook / "by hand", store=base / ".cells", more_stores=more)


def start(notebook, namespace):
    """Begin a notebook's run.

    Args: notebook — its name, ``"<document>/<file name without ending>"``;  namespace — ``globals()``, from which the
    values of the parameters cell are read.
    Returns: :class:`Run`.
    """
    job = Job.current(notebook)
    if job.notebook != notebook:
        raise RuntimeError(
            f"this notebook calls itself {notebook!r}, its file is {job.notebook!r}; correct the start() cell"
        )
    source = guard.read(repository() / "notebooks" / f"{notebook}.ipynb", notebook)
    missing = [n for n in source.defaults if n not in namespace]
    if missing:
        raise guard.ParameterError(f"{notebook}: run the parameters cell first ({', '.join(missing)} not defined)")
    parameters = guard.check(source, {n: namespace[n] for n in source.defaults})
    if job.parameters is not None and digest(parameters) != digest({**source.defaults, **job.parameters}):
        raise RuntimeError(f"{notebook}: the values in the notebook are not the ones asked for: {parameters}")
    if job.count:
        from privrob.suite.counting import Counting

        return Counting(job, source, parameters)
    figures.use_style()
    return Run(job, source, parameters)


@dataclass
class Run:
    """One run of one notebook: hands out devices and random streams, keeps rows, figures and evidence, saves them."""

    job: Job
    source: guard.Source
    parameters: dict
    evidence: dict = field(default_factory=dict)
    data: list = field(default_factory=list)
    sweeps: list = field(default_factory=list)
    drawn: list = field(default_factory=list)
    rows: dict = field(default_factory=dict)
    cells: dict = field(default_factory=dict)  # what was computed, and how long it took
    files: dict = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    clock: float = field(default_factory=time.monotonic)  # a wall clock may be set back meanwhile
    stored_seconds: float = 0.0

    def __post_init__(self):
        self.claims = claims_.of_notebook(claims_.load(), self.job.notebook)
        self.seed = self.parameters.get("seed", 0)
        self._device = None
        if not os.environ.get("PRIVROB_JOB"):
            print(f"{self.job.notebook}, by hand: results go to studies/lab and are not counted.")

    # ------------------------------------------------------------------------------------------ what a run gives

    def within(self, **limits):
        """Refuse parameters outside of (low, high), both allowed, before any work; each number of a list or dict."""
        for parameter, (low, high) in limits.items():
            value = self.parameters[parameter]
            if value == []:
                raise guard.ParameterError(f"{parameter} must hold at least one value in [{low:g}, {high:g}], got []")
            for name, item in _items(parameter, value):
                checks.real(name, item, low=low, high=high)

    def among(self, **known):
        """Refuse parameters whose keys, or entries, are no known names, or stand twice, before any work."""
        for parameter, names in known.items():
            given = list(self.parameters[parameter])
            if twice := [name for i, name in enumerate(given) if name in given[:i]]:
                raise guard.ParameterError(f"{parameter} must hold each name once, got {twice[0]!r} twice or more")
            if unknown := [name for name in given if name not in names]:
                allowed = ", ".join(map(str, names))
                raise guard.ParameterError(
                    f"{parameter} must name some of {allowed}, got {', '.join(map(repr, unknown))}"
                )

    @property
    def device(self):
        """``"cpu"``, or the GPU where there is one (or that was asked for)."""
        if self._device is None:
            self._device = choose_device(self.job.device)
        return self._device

    def streams(self, *names):
        """Random streams of this notebook outside its sweeps: one name a purpose."""
        return Streams(self.seed, self.job.notebook, *names)

    def use_data(self, provenance):
        """Record a data set that the run reads (its provenance record) and say which one it is."""
        entry = plain(provenance if isinstance(provenance, dict) else vars(provenance))
        if entry not in self.data:
            self.data.append(entry)
            print(f"Data: {entry['label']}")

    def sweep(self, work, *, label="rows", common=None, data=()):
        """Compute (or load) cells and return all their rows as a DataFrame.

        Args: work — (function path, settings) pairs;  label — names the rows in rows.csv;  common — names of the
        settings that alone choose the random streams (None: all);  data — provenance records to note.
        """
        import pandas as pd

        if label in self.rows:
            raise ValueError(f"label must be new for each sweep, got label={label!r} twice")
        for provenance in data:
            self.use_data(provenance)
        cells = sweeps.make_cells(work, seed=self.seed, common=common)
        store = sweeps.Store(self.job.store, self.job.more_stores)
        try:
            provenance = {"commit": record.commit(), "versions": record.versions()}
            outcome = sweeps.run(
                cells,
                store,
                engine=self.job.engine,
                redraw=self.job.redraw,
                fresh=self.job.fresh,
                progress=Progress(self.job.notebook, label),
                provenance=provenance,
            )
        except sweeps.NoStoredRows:
            if not (stored := self._stored(label)):
                raise
            before = costs.unpack(self.job.stored_rows.with_name(costs.TIMES))
            self.cells = {r["identity"]: r for r in before} | self.cells
            self._note_sweep(label, cells, stored, stale=len(cells), commits=["as committed"])
            return pd.DataFrame(stored)
        for name in outcome.damaged:
            warnings.warn(f"a stored cell was damaged and was computed again: {name}", stacklevel=2)
        self.stored_seconds += outcome.stored_seconds
        stale = [r["commit"] for r in outcome.records if r["stale"]]
        rows = outcome.rows()
        self.cells |= {r["identity"]: r for r in outcome.records}
        self._note_sweep(label, cells, rows, stale=len(stale), commits=sorted(set(stale)))
        return pd.DataFrame(rows)

    def _stored(self, label):
        path = self.job.stored_rows
        if not path or not path.is_file():
            return []
        if not record.vouches_for(path):
            raise record.BadResult(
                f"{path.name} is not what the result.json beside it was made with (changed by hand?), so nothing is "
                "drawn from it; restore it, or run once without --redraw"
            )
        rows = csv_to_rows(read_text(path))
        return [{k: v for k, v in row.items() if k != "sweep"} for row in rows if row["sweep"] == label]

    def _note_sweep(self, label, cells, rows, *, stale, commits):
        if stale:
            were = "was" if stale == 1 else "were"
            print(
                f"{stale} of {tables.count(len(cells), 'cell')} {were} computed by other code "
                f"(commit {', '.join(commits)}), kept as they are."
            )
        self.rows[label] = rows
        self.sweeps.append({"label": label, "cells": len(cells), "rows": len(rows), "stale": stale, "commits": commits})

    # ---------------------------------------------------------------------------------------------- what it shows

    def figure(self, name, fig, *, caption, table=None):
        """Show a figure and keep it: PNG, SVG and, with ``table`` (a DataFrame), the points behind it as CSV."""
        import matplotlib.pyplot as plt
        from IPython.display import Image, display

        if any(f["name"] == name for f in self.drawn):
            raise ValueError(f"name must be new for each figure, got name={name!r} twice")
        if hidden := figures.left_out(fig):
            caption += f" ({hidden} point{'s' * (hidden > 1)} at 0 or infinity not drawn; the table has them.)"
        figures.drop_empty_legends(fig)
        width = round(fig.get_size_inches()[0] * 96)
        rendered = figures.render(fig)
        self.files |= {f"{name}.{ending}": data for ending, data in rendered.items()}
        if table is not None:
            self.files[f"{name}.csv"] = rows_to_csv(table.to_dict("records")).encode()
        self.drawn.append({"name": name, "caption": caption})
        display(Image(data=rendered["png"], width=width, alt=caption))
        plt.close(fig)
        print(f"Figure {len(self.drawn)}. {caption}")

    # --------------------------------------------------------------------------------------------- what it claims

    def theorem(self, claim, holds, *, repaired=None, got=None, note=""):
        """Hand in a statement: does its printed form hold, and if not, does the repaired one?"""
        self._hand_in(claim, {"holds": bool(holds), "repaired": repaired, "got": got, "note": note})

    def number(self, claim, *, got, spread=None, agrees=None, note=""):
        """Hand in a printed number: our value, its standard error, whether the direction agrees (changed scales)."""
        spread = None if spread is None else float(spread)
        self._hand_in(claim, {"got": got, "spread": spread, "agrees": agrees, "note": note})

    def not_tried(self, claim, reason, *, note=""):
        """Say that an item was not tried, and why (one of a closed list of reasons)."""
        self._hand_in(claim, {"not_tried": reason, "note": note})

    def _hand_in(self, claim, evidence):
        if claim not in self.claims:
            raise claims_.ClaimError(guard.unknown(claim, self.claims, where=self.job.notebook, what="claim"))
        if claim in self.evidence:
            raise claims_.ClaimError(f"{claim} was handed in twice")
        self.evidence[claim] = evidence

    # ---------------------------------------------------------------------------------------------------- the end

    def save(self, *, try_next=()):
        """Judge the claims, write result.json, rows.csv and figures, and show the verdicts.

        Args: try_next — commands for the reader to go on with.
        """
        from IPython.display import Markdown, display

        if left := sorted(set(self.claims) - set(self.evidence)):
            raise claims_.ClaimError(f"{self.job.notebook}: nothing handed in for {', '.join(left)}")
        judged = [
            claims_.judge(c, self.evidence[i], parameters=self.parameters, data=self.data)
            for i, c in self.claims.items()
        ]
        if self.rows:
            from privrob.suite.evidence import nameless

            all_rows = [{"sweep": label, **row} for label, rows in self.rows.items() for row in rows]
            told = [{k: nameless(v) if isinstance(v, str) else v for k, v in row.items()} for row in all_rows]
            self.files["rows.csv"] = rows_to_csv(told).encode()
            # no evidence, and another time each time: not among the files that the result holds hashes of
            write_text(self.job.folder / costs.TIMES, nameless(costs.pack(self.cells.values())))
        for name, data in self.files.items():
            write_bytes(self.job.folder / name, data)
        summary = claims_.tally(judged)
        result = self._result(judged, summary)
        record.validate(plain(result))
        write_text(self.job.folder / "result.json", dump_json(result, indent=1) + "\n")
        display(Markdown(tables.verdicts(judged, {i: c.printed_digits for i, c in self.claims.items()})))
        print(f"{summary}. Preset {self.job.preset}, made at commit {record.commit()}.")
        if try_next:
            display(Markdown("**Try next**\n\n```bash\n" + "\n".join(try_next) + "\n```"))

    def _result(self, judged, summary):
        import hashlib

        kind = self._device or "cpu"
        changed = {k: v for k, v in self.parameters.items() if digest(v) != digest(self.source.defaults[k])}
        return {
            "format": record.FORMAT,
            "notebook": self.job.notebook,
            "title": self.source.about.get("title", self.job.notebook),
            "preset": self.job.preset,
            "parameters": self.parameters,
            "changed_parameters": changed,
            "seed": self.seed,
            "device": {"type": kind, "name": record.device_name(kind)},
            "versions": record.versions(),
            "commit": record.commit(),
            "sources": {"notebook": notebook_hash(self.source), "library": library_hash(self.source)},
            "inputs": self.job.inputs,
            "data": self.data,
            "sweeps": self.sweeps,
            "figures": self.drawn,
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(self.files.items())},
            "claims": judged,
            "summary": summary,
            "run": {
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began)),
                "seconds": round(time.monotonic() - self.clock, 2),
                "stored_seconds": round(self.stored_seconds, 2),
                "token": self.job.token,
            },
        }


def check_device(wanted):
    """(kind, index or "") of ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; anything else is refused."""
    kind, numbered, index = str(wanted).partition(":")
    if kind not in ("auto", "cpu", "cuda") or (numbered and not (kind == "cuda" and index.isdigit())):
        raise ValueError(f"--device must be auto, cpu, cuda or cuda:N, got {wanted!r}")
    return kind, index


def choose_device(wanted):
    """The device to compute on, checked: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    kind, index = check_device(wanted)
    if kind == "cpu":
        return "cpu"
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "auto":
        return "cuda" if count else "cpu"
    if int(index or 0) >= count:
        found = tables.count(count, "GPU")
        raise ValueError(f"--device {wanted} is not there ({found} found); use --device cpu to run without one")
    return str(wanted)


def notebook_hash(source):
    """Hash of a notebook's cells and of what it says of itself; the order of JSON keys does not matter."""
    cells = [[c.cell_type, c.source, list(c.metadata.get("tags", []))] for c in source.node.cells]
    return digest([cells, dict(source.about)])


def library_hash(source):
    """Hash of the library code that a notebook reaches through its imports and its cells' import paths."""
    import ast

    from privrob.suite.sources import imported_names

    names = set()
    for code in source.code:
        names |= imported_names(ast.parse(code))
    return code_hash(names)


class Progress:
    """Tells how far a sweep is: to the driver through a small file, to a person at a notebook by a bar on stderr."""

    def __init__(self, notebook, label):
        self.label, self.bar, self.told = label, None, float("-inf")
        self.path = os.environ.get("PRIVROB_PROGRESS")

    def __call__(self, done, total, taken_over, left):
        """Called after each cell: how many are done, of which some were stored before; seconds left, or None."""
        if self.path:
            if done < total and time.monotonic() - self.told < 0.3:
                return
            self.told = time.monotonic()
            text = dump_json({"label": self.label, "done": done, "total": total, "taken": taken_over, "left": left})
            try:
                write_text(self.path, text)
            except OSError:  # progress is a courtesy
                return
        elif total > 1:
            from tqdm import tqdm

            if self.bar is None:
                self.bar = tqdm(total=total, initial=taken_over, desc=self.label, file=sys.stderr, unit="cell")
            self.bar.update(done - self.bar.n)
            if done == total:
                self.bar.close()
