"""A user's study: which notebooks, what is changed, what is swept; a file that can be kept and run again.

``./run_all.sh NOTEBOOK -p NAME VALUE --sweep NAME=V1,V2`` and ``./run_all.sh --study FILE`` are the same thing said
twice. A study's file holds differences only::

    title: How much noise
    notebooks: [ptr/sec6_1_planning]
    preset: laptop
    parameters: {planned_steps: 1000}
    sweep: {planned_epsilon: [1.0, 2.0, 4.0]}

Several swept parameters give every combination. Each combination has a results folder of its own, and one page beside
them compares verdicts and figures.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from privrob.suite import catalogue, given, guard, record, tables
from privrob.suite.files import csv_to_rows, digest, read_text, rows_to_csv, write_text
from privrob.suite.sources import repository

FILE, PAGE, VERDICTS, ROWS = "study.yaml", "COMPARISON.md", "verdicts.csv", "rows.csv"
_KEYS = ("title", "notebooks", "preset", "parameters", "sweep")
_SIMPLE = re.compile(r"[A-Za-z0-9.+-]{1,16}$")
_MOST = 64  # combinations
_FROM = "# kept in "  # begins the copy of a study that is kept in another file


@dataclass(frozen=True)
class Study:
    """What is run and what differs from the preset. Values are texts, as on the command line.

    Args: notebooks — names or globs, none means all;  parameters — {name: text};  sweep — {name: [text, …]};
        file — where somebody keeps it, if so.
    """

    notebooks: tuple = ()
    preset: str = "laptop"
    parameters: dict = field(default_factory=dict)
    sweep: dict = field(default_factory=dict)
    title: str = ""
    file: str = ""

    def __post_init__(self):
        if twice := sorted(set(self.parameters) & set(self.sweep)):
            raise guard.ParameterError(f"--sweep and -p must name different parameters, got both for {twice[0]}")
        for name, values in self.sweep.items():
            if len(set(values)) < len(values):
                raise guard.ParameterError(f"--sweep {name} must name each value once, got {', '.join(values)}")
        if (count := math.prod(map(len, self.sweep.values()))) > _MOST:
            raise guard.ParameterError(
                f"--sweep must give at most {_MOST} combinations, got {count}; split it into several studies"
            )

    @property
    def changes(self):
        """True when it is no plain run of the suite."""
        return bool(self.parameters or self.sweep)

    def settings(self):
        """[{name: text}] of the swept parameters, one for each combination; [{}] without a sweep."""
        return [dict(zip(self.sweep, values)) for values in itertools.product(*self.sweep.values())]

    def label(self):
        """A name for its folder: what is run (``all``, or the globs' words), then what is changed."""
        notebooks = "+".join(n.rpartition("/")[2].removesuffix(".ipynb") or n for n in self.notebooks) or "all"
        notebooks = re.sub(r"[^A-Za-z0-9_+-]+", "", notebooks)[:60] or "some"
        return f"{notebooks}_{words({**self.parameters, **{n: ','.join(v) for n, v in self.sweep.items()}})}"

    def folders(self, out):
        """[(swept values, folder)], the folder ``out`` itself without a sweep."""
        if not self.sweep:
            return [({}, Path(out))]
        return [(values, Path(out) / words(values)) for values in self.settings()]

    def plans(self, out):
        """[(swept values, plans, notices)]: every value of every combination is checked before anything runs."""
        found = []
        for values, folder in self.folders(out):
            overrides = [*self.parameters.items(), *values.items()]
            how = {"preset": self.preset, "out": folder, "overrides": overrides}
            plans, notices = catalogue.plans(self.notebooks, **how, cells=Path(out) / ".cells" if values else None)
            if values:
                able = [p for p in plans if any(n in p.source.defaults for n in values)]
                notices += [f"{p.name} is left out: it has no swept parameter." for p in plans if p not in able]
                plans = able
            found.append((values, plans, notices))
        for (values, plans, _), (others, theirs, _) in itertools.combinations(found, 2):
            alike = {p.name: digest(p.changes) for p in plans} == {p.name: digest(p.changes) for p in theirs}
            if plans and alike:
                one, other = (", ".join(f"{n}={v}" for n, v in w.items()) for w in (values, others))
                raise guard.ParameterError(f"--sweep must name each value once, {one} and {other} are the same")
        return found

    def text(self):
        """The file that runs it again."""
        content = {"title": self.title, "notebooks": list(self.notebooks), "preset": self.preset}
        content |= {"parameters": {n: _value(t) for n, t in self.parameters.items()}}
        content |= {"sweep": {n: [_value(t) for t in v] for n, v in self.sweep.items()}}
        kept = {k: v for k, v in content.items() if v}
        return (f"{_FROM}{self.file}\n" if self.file else "") + yaml.safe_dump(
            kept, sort_keys=False, allow_unicode=True, default_flow_style=None
        )


def words(values):
    """A folder's name for some values: plain ones as they are, others by a few digits of their hash."""
    plain = {n: v if _SIMPLE.match(v.replace(",", "+")) else "" for n, v in values.items()}
    name = "_".join(f"{n}={v}" if v else n for n, v in sorted(plain.items()))
    exact = all(plain.values()) and len(name) <= 80
    return name if exact else f"{name[:70]}.{digest(sorted(values.items()))[:6]}"


def _value(text):
    """A text as the value that a file would hold for it."""
    try:
        value = given.load(text)
    except given.Unreadable:
        return text
    return value if given.unfit(value) is None and _text(value) == text else text


def _text(value):
    """A value of a file as it would be given on the command line."""
    if isinstance(value, str):
        return value
    text = repr(value)
    if isinstance(value, (list, dict)):
        try:
            ast.literal_eval(text)
        except (ValueError, SyntaxError):  # an infinity in a list: YAML has a word for it
            return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=math.inf).strip()
    return text


def swept(text):
    """(name, texts) of ``NAME=V1,V2``; commas in brackets and quotes do not part values."""
    name, given, rest = text.partition("=")
    if not given or not name.strip():
        raise guard.ParameterError(f"--sweep must be NAME=VALUE,VALUE,…, got {text!r}")
    parts, depth, quote = [""], 0, ""
    for letter in rest:
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
        else:
            depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    values = [p.strip() for p in parts]
    if "" in values:
        raise guard.ParameterError(f"--sweep {name} must have a value on each side of a comma, got {rest!r}")
    return name.strip(), values


def read(path):
    """The study in a file; an unknown entry, or one of another type, is refused with what may stand there."""
    try:
        text = read_text(Path(path))
        content, first = given.load(text), text.partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError, given.Unreadable) as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise guard.ParameterError(f"--study must be a study's YAML file, got {str(path)!r}: {why}") from None
    if not isinstance(content, dict):
        raise guard.ParameterError(f"--study must hold entries of {', '.join(_KEYS)}, {path} holds none")
    for key in content:
        if key not in _KEYS:
            raise guard.ParameterError(guard.unknown(str(key), _KEYS, where=str(path), what="entry"))
    content = {key: value for key, value in content.items() if value is not None}  # an empty entry is as left out

    def refuse(what, allowed, got, why=""):
        why = f" ({why})" if why else ""
        raise guard.ParameterError(f"{path}: {what} must {allowed}, got {given.shown(got)}{why}")

    for key in ("title", "preset"):
        if not isinstance(got := content.get(key, ""), str):
            refuse(key, "be text; put it in quotes", got)
    notebooks = content.get("notebooks", [])
    notebooks = [notebooks] if isinstance(notebooks, str) else notebooks
    if not isinstance(notebooks, list) or not all(isinstance(n, str) for n in notebooks):
        refuse("notebooks", "be a list of names", notebooks)
    parameters, sweep = content.get("parameters", {}), content.get("sweep", {})
    for name, table in (("parameters", parameters), ("sweep", sweep)):
        if not isinstance(table, dict) or not all(isinstance(n, str) for n in table):
            refuse(name, "hold 'parameter: value' pairs", table)
    for name, values in sweep.items():
        if not isinstance(values, list) or not values:
            refuse(f"sweep of {name}", "be a list of at least one value", values)
    values = [(n, v) for n, v in parameters.items()] + [(f"sweep of {n}", v) for n, vs in sweep.items() for v in vs]
    for name, value in values:
        if value is None:
            refuse(name, f"be {given.ALLOWED}", value, "nothing")
        if found := given.unfit(value):
            refuse(f"{name}{found[0]}", f"be {given.ALLOWED}", found[1], found[1].why)
    return Study(
        notebooks=tuple(notebooks),
        preset=content.get("preset", "laptop"),
        parameters={n: _text(v) for n, v in parameters.items()},
        sweep={n: [_text(v) for v in values] for n, values in sweep.items()},
        title=" ".join(content.get("title", "").split()),
        file=first.removeprefix(_FROM) if first.startswith(_FROM) else "",
    )


def joined(study, out, *, file=None):
    """The study with the notebooks of the one that ``out`` holds already, which must make the same changes.

    Another preset is no other study: its results lie beside those of the first. A file says all of its study, also
    after it was changed: then ``out`` must not hold that of another file.
    """
    path = Path(out).expanduser() / FILE
    if file is not None:
        if Path(file).expanduser().resolve() == path.resolve():
            return study
        study = replace(study, file=str(_from_here(Path(file).expanduser().resolve())))
    if not path.is_file():
        return study
    there = read(path)
    if file is not None:
        if there.file and there.file != study.file:
            raise guard.ParameterError(
                f"--out must not hold another study, {path} is that of {there.file}; give another folder as --out"
            )
        return study
    if (there.parameters, there.sweep) != (study.parameters, study.sweep):
        raise guard.ParameterError(f"--out must not hold another study, {path} is one; give another folder")
    both = tuple(dict.fromkeys([*there.notebooks, *study.notebooks])) if there.notebooks and study.notebooks else ()
    return replace(study, notebooks=both, title=study.title or there.title, file=there.file)


def leave(study, out):
    """Put the study's own file into its folder, from which it is run again, also where this run is killed."""
    write_text(Path(out) / FILE, study.text())


def write(study, out, planned=()):
    """Leave the study's own file in its folder, and the page that compares its combinations; returns the page or None.

    What has no results (yet) is named in the page, of the notebooks that are there and of those ``planned``.
    """
    leave(study, out)
    if not study.sweep:
        return None
    results, read_, rows, sections = {}, {}, [], []
    for values, folder in study.folders(out):
        shown = ", ".join(f"{n} = {v}" for n, v in values.items())
        found = {name: f for (name, preset), f in record.find(folder).items() if preset == study.preset}
        results[shown], read_[shown] = found, {name: read for name, f in found.items() if (read := _readable(f))}
    names = sorted({name for found in read_.values() for name in found})
    for name in names:
        here = {shown: found[name] for shown, found in read_.items() if name in found}
        judged = _verdicts(name, here, rows)
        tables_, pictures = _together(study, Path(out), name), _pictures(out, name, results, here)
        sections += [f"## {name}", "", *([judged, ""] if judged else []), *tables_, *pictures]
        sections += _lacking(judged=judged, tables_=tables_, figures=any(map(_figures, here.values())))
        missing = [shown for shown in results if shown not in here]
        damaged = [shown for shown in missing if name in results[shown]]
        if missing := [shown for shown in missing if shown not in damaged]:
            sections += [f"No results of {'; '.join(missing)}.", ""]
        if damaged:
            sections += [f"Damaged results of {'; '.join(damaged)}: the same command makes them again.", ""]
    again = f"`./run_all.sh --study {_from_here(Path(out) / FILE)}`"
    verdicts = f" All verdicts: [{VERDICTS}]({VERDICTS})." if rows else ""
    text = [f"# {study.title or 'Comparison: ' + ', '.join(study.sweep)}", ""]
    text += [f"Preset {study.preset}. To run it again: {again}.{verdicts}", ""]
    if waiting := sorted({*planned, *(n for found in results.values() for n in found)} - set(names)):
        text += [f"No results in any of {tables.count(len(results), 'setting')}: {', '.join(waiting)}.", ""]
    elif not names:
        text += [f"No results in any of {tables.count(len(results), 'setting')}; the same command makes them.", ""]
    write_text(Path(out) / PAGE, "\n".join(text + sections))
    head = ("notebook", "setting", "item", "got", "spread", "verdict", "agrees", "note")
    if rows:
        write_text(Path(out) / VERDICTS, rows_to_csv([dict(zip(head, row)) for row in rows]))
    return Path(out) / PAGE


def _readable(folder):
    """The result in a folder; None where it is damaged."""
    try:
        return record.read(folder, check_files=True)
    except record.BadResult:
        return None


def _lacking(*, judged, tables_, figures):
    """In words what a notebook's section does not have, and where to look instead; nothing where all is there."""
    lacks = [
        words_
        for words_, there in (
            ("judges no numbered item", judged),
            ("keeps no table", tables_),
            ("draws no figure", figures),
        )
        if not there
    ]
    if not lacks:
        return []
    last = " and ".join([", ".join(lacks[:-1]), lacks[-1]]) if len(lacks) > 1 else lacks[0]
    return [f"It {last}; the notebooks have the rest.", ""]


def _figures(result):
    """Names of the pictures of a result, in order."""
    return [f for f in sorted(result["files"]) if f.endswith(".png")]


def _together(study, out, name):
    """Write each table of a notebook (its rows, and those of its figures) for all combinations into one, the swept
    values first; a line that names them.

    Where a table's own column of that name says something else (``seed`` of a repetition), it is ``swept_…``.
    """
    folders = [({n: _value(v) for n, v in values.items()}, f / name / study.preset) for values, f in study.folders(out)]
    targets = []
    for table in sorted({p.name for _, folder in folders for p in folder.glob("*.csv")}, key=lambda t: (t != ROWS, t)):
        found = [(v, csv_to_rows(read_text(f / table))) for v, f in folders if (f / table).is_file()]
        other = {n for values, own in found for n, v in values.items() if any(row.get(n, v) != v for row in own)}
        named = [({f"swept_{n}" if n in other else n: v for n, v in values.items()}, own) for values, own in found]
        target = f"{name.replace('/', '.')}.{table}"
        write_text(out / target, rows_to_csv([{**values, **row} for values, own in named for row in own]))
        targets.append(f"[{table.removesuffix('.csv').replace('_', ' ')}]({target})")
    return [f"Tables of all combinations: {', '.join(targets)}.", ""] if targets else []


def _from_here(path):
    """The path as it would be typed in the checkout."""
    return path.relative_to(repository()) if path.is_relative_to(repository()) else path


def _verdicts(name, results, rows):
    """What each setting got for each item, as a table, empty where nothing is judged; ``rows`` gets the same, longer.
    Verdicts that differ stand first, then values that do, rounding aside; the rest is only counted."""
    judged = {shown: {c["id"]: c for c in result["claims"]} for shown, result in results.items()}
    items = list(dict.fromkeys(i for found in judged.values() for i in found))
    flips, others = [], []
    for item in items:
        claims = [found.get(item) for found in judged.values()]
        there = [c for c in claims if c]
        for shown, c in zip(judged, claims):
            if c:
                agrees = c.get("agrees")
                rows.append([name, shown, item, c["got"], c.get("spread"), c["verdict"], agrees, c["note"]])
        line = [f"{item.partition('/')[2].replace('_', ' ')} ({there[0]['where']})", *map(_came_out, claims)]
        if len(judged) == 1 or len({c and tables.verdict(c) for c in claims}) > 1:
            flips.append(line)
        elif not all(tables.alike(there[0]["got"], c["got"], c["paper"]) for c in there):
            others.append(line)
    if len(judged) == 1 or not items:
        return tables.table(["item", *judged], flips) if flips else ""
    parts = [_counted(len(flips), len(others), len(items))]
    if flips:
        parts += ["Verdicts that differ:", tables.table(["item", *judged], flips)]
    if others:
        parts += ["The same verdict, another value:", tables.table(["item", *judged], others)]
    return "\n\n".join(parts)


def _came_out(claim):
    """A value and its verdict in a cell, empty where there is none."""
    if claim is None:
        return ""
    got = tables.show(claim["got"])
    return f"{got}: {tables.verdict(claim)}" if got else tables.verdict(claim)


def _counted(flips, others, items):
    """How many of the items have one verdict in all settings, and how many of those another value."""
    same = items - flips
    text = f"The verdict of {same} of {tables.count(items, 'item')} is the same in all"
    if others:
        return f"{text}; the value of {others} of {'these' if same > 1 else 'this'} is not."
    return text + ("; so is every value, to rounding." if same else ".")


def _pictures(out, name, results, read_):
    """Each figure of a notebook, once for each setting, and links to the notebooks."""
    folders = {shown: results[shown][name].relative_to(out).as_posix() for shown in read_}
    links = [f"[{shown}]({folder}/notebook.ipynb)" for shown, folder in folders.items()]
    figures = list(dict.fromkeys(f for result in read_.values() for f in _figures(result)))
    text, equal = [f"Notebooks: {', '.join(links)}.", ""], []
    for figure in figures:
        held = {shown: folder for shown, folder in folders.items() if figure in read_[shown]["files"]}
        title = figure.removesuffix(".png").replace("_", " ")
        if len(held) > 1 and len({read_[shown]["files"][figure] for shown in held}) == 1:
            equal.append(f"[{title}]({next(iter(held.values()))}/{figure})")
            continue
        text += [f"### {title}", ""]
        text += [tables.table(list(held), [[f"![{shown}]({folder}/{figure})" for shown, folder in held.items()]]), ""]
    return text + ([f"The same in all: {', '.join(equal)}.", ""] if equal else [])
