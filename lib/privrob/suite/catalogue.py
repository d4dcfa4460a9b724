"""Which notebooks there are, what each preset changes, and whether a result is still that of today's inputs."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from privrob import checks
from privrob.suite import claims as claims_
from privrob.suite import guard, inputs, record, tables
from privrob.suite.files import digest, read_text
from privrob.suite.session import library_hash, notebook_hash
from privrob.suite.sources import repository

LIMIT = "_minutes"  # entry of a preset: the time limit for one notebook
TOLD = "laptop"  # the preset whose results a notebook's sentences are about


def names():
    """All notebooks, ``"dplearn/sec2_1_mechanisms"``: by document, sections in their order, appendices behind them."""
    found = {p.name: p for p in (repository() / "notebooks").glob("*") if p.is_dir()}
    order = [k for k in claims_.DOCUMENTS if k in found] + sorted(set(found) - set(claims_.DOCUMENTS))
    return [f"{key}/{p.stem}" for key in order for p in sorted(found[key].glob("*.ipynb"), key=record.place)]


class NoSuchNotebook(guard.ParameterError):
    """A name or glob that fits no notebook."""


def select(patterns):
    """The notebooks that the globs name; a glob that names none is refused with the nearest name."""
    every = names()
    if not patterns:
        return every
    chosen = set()
    for pattern in patterns:
        bare = pattern.removeprefix("notebooks/").removesuffix(".ipynb").rstrip("/")
        hits = [
            n
            for n in every
            if fnmatch.fnmatchcase(n, bare) or n.partition("/")[0] == bare or n.partition("/")[2] == bare
        ]
        if not hits:
            raise NoSuchNotebook(guard.unknown(bare, every, where="notebooks", what="notebook"))
        chosen |= set(hits)
    return [n for n in every if n in chosen]


def presets():
    """{preset: {notebook: {parameter: value}}} of notebooks/presets.yaml, checked against the notebooks that exist."""
    try:
        table = yaml.safe_load(read_text(repository() / "notebooks" / "presets.yaml"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise guard.ParameterError(f"presets.yaml cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(table, dict) or not all(isinstance(e, (dict, type(None))) for e in table.values()):
        raise guard.ParameterError(
            "presets.yaml must map each preset to its notebooks, and each notebook to its changes"
        )
    every = names()
    for preset, entries in table.items():
        for name, changes in (entries or {}).items():
            where = f"presets.yaml, {preset}"
            if name == LIMIT:
                checks.positive(f"{where}: {LIMIT}", changes)
            elif name not in every:
                raise guard.ParameterError(guard.unknown(name, every, where=where, what="notebook"))
            elif not isinstance(changes, (dict, type(None))):
                raise guard.ParameterError(f"{where}: {name} must hold 'parameter: value' pairs, got {changes!r}")
    return table


@dataclass(frozen=True)
class Plan:
    """One notebook, as it is to run: its source, the values it gets, where its results go."""

    source: guard.Source
    preset: str
    changes: dict  # what differs from the paper preset, checked
    out: Path
    minutes: float
    cells: Path | None = None  # where its cells are kept, when not in out
    unlike: dict | None = None  # what differs from the run that the notebook's sentences are about
    study: bool = False  # whether somebody changed parameters

    @property
    def name(self):
        """The notebook's name."""
        return self.source.name

    @property
    def folder(self):
        """Where its results are put."""
        return self.out / self.name / self.preset

    @property
    def needs_gpu(self):
        """True when the notebook says that this preset wants a GPU."""
        return self.preset in self.source.about.get("gpu_presets", [])

    def inputs(self):
        """sha256 over all that this run's results are made from: notebook, library code, values, claims."""
        mine = claims_.of_notebook(claims_.load(), self.name)
        parts = [notebook_hash(self.source), library_hash(self.source), self.changes]
        images = inputs.images_of({**self.source.defaults, **self.changes})
        return digest([*parts, [c.as_dict() for c in mine.values()], *([images] if images else [])])

    def surprises(self, result):
        """Claims whose verdict is not the expected one. In a study, where a trend leads is a finding, no fault."""
        return [c["id"] for c in result["claims"] if c["surprise"] and not (self.study and c["verdict"] == "trend")]

    def surprised(self, result):
        """What is to be said of verdicts that are not the expected ones; empty where all are."""
        if not (found := self.surprises(result)):
            return ""
        why = "; expected is what comes out with the notebook's own parameters" if self.study else ""
        return f"verdict not as expected: {', '.join(found)}{why}"

    def state(self):
        """("done" | "stale" | "missing" | "damaged", why) of the results that are there."""
        try:
            result = record.read(self.folder, check_files=True)
        except record.BadResult as error:
            return "damaged", str(error)
        if result is None:
            return "missing", "never run"
        if "notebook.ipynb" not in result["files"] or "sha256" not in result:
            return "stale", "made before results had checksums"
        if result["inputs"] == self.inputs():
            if words := inputs.better(result["data"]):
                return "stale", words
            words = self.surprised(result)
            return ("surprise", words) if words else ("done", claims_.tally(result["claims"]))
        if result["sources"]["notebook"] != notebook_hash(self.source):
            return "stale", "the notebook changed"
        if result["sources"]["library"] != library_hash(self.source):
            return "stale", "library code changed"
        return "stale", "parameters, claims or images changed"

    def last_run(self):
        """How long the last run took (the ``run`` part of its result), or None."""
        try:
            result = record.read(self.folder)
        except record.BadResult:
            return None
        return result and result["run"]


def expected(plans, *, jobs=1):
    """How long these runs take by the last run of each notebook, in words; "" for less than a minute.

    The last run is that of the same folder, otherwise the reference result of this preset, on whatever machine. Cells
    that it found stored count in full, so that it is an upper bound where they are stored still.
    """
    own = [p.last_run() for p in plans]
    runs = [run or replace(p, out=repository() / "results").last_run() for p, run in zip(plans, own)]
    known = [run for run in runs if run]
    total = sum(run["seconds"] + run.get("stored_seconds", 0.0) for run in known) / jobs
    if total < 60:
        return ""
    never, changed = len(runs) - len(known), any(p.study and not run for p, run in zip(plans, own))
    notes = [f"without {never} that never ran"] * (never > 0) + ["less or more with your changes"] * changed
    return ", ".join([f"expected: up to {tables.seconds(total)} by the last runs", *notes])


def plans(patterns, *, preset, out, overrides=(), cells=None):
    """Plans of the chosen notebooks. Every value is checked here, before anything runs.

    Args: overrides — (name, text) pairs of the command line; each must be a parameter of at least one of the notebooks;
        cells — a folder for computed cells that several folders of results share.
    Returns: (plans, notices).
    """
    table = presets()
    if preset not in table:
        known = ", ".join(table)
        raise guard.ParameterError(f"--preset must be one of {known}, got {preset!r}")
    claims_.load()  # wrong entries are told before anything runs
    sources = [guard.read(repository() / "notebooks" / f"{n}.ipynb", n) for n in select(patterns)]
    known = {name for s in sources for name in s.defaults}
    for number, (name, _) in enumerate(overrides):
        if name in [n for n, _ in overrides[:number]]:
            raise guard.ParameterError(f"-p {name} was given twice; give each parameter once")
        if name not in known:
            raise guard.ParameterError(guard.unknown(name, known, where="-p"))
    notices, result = [], []
    for source in sources:
        if overrides and not any(name in source.defaults for name, _ in overrides):
            notices.append(f"{source.name} is left out: it has no parameter {', '.join(n for n, _ in overrides)}.")
            continue
        values = guard.check(source, (table[preset] or {}).get(source.name) or {})
        for name, text in overrides:
            if name in source.defaults:
                value = guard.parse_text(text, source.defaults[name], where=f"-p {name}")
                values |= guard.check(source, {name: value})
            else:
                notices.append(f"{source.name} has no parameter {name!r}; it runs without that change.")
        changes = {k: v for k, v in values.items() if digest(v) != digest(source.defaults[k])}
        told = guard.check(source, (table.get(TOLD) or {}).get(source.name) or {})
        here, there = source.defaults | values, source.defaults | told
        unlike = {k: v for k, v in here.items() if digest(v) != digest(there[k])}
        minutes = float((table[preset] or {}).get(LIMIT, 24 * 60))
        result.append(Plan(source, preset, changes, Path(out), minutes, cells, unlike, bool(overrides)))
    return result, notices
