"""The parameters cell of a notebook, read without running it, and the check of every value that would change it.

papermill injects whatever it is given: an unknown name, or a notebook without a parameters cell, only earns a log line
and exit status 0. Here a mistyped name, a changed type, text for a number and a parameter that nobody reads are refused
before anything runs.
"""

from __future__ import annotations

import ast
import difflib
import io
import math
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import nbformat

from privrob import checks
from privrob.suite import given
from privrob.suite.files import plain, read_text

SHOWN = 12  # names of notebooks that a message lists; of more it says how many there are
HIDES_ERRORS = ("raises-exception", "skip-execution")  # tags of cells that may fail, or not run, and pass


class ParameterError(ValueError):
    """A parameter that cannot be used as given."""


@dataclass(frozen=True)
class Source:
    """A notebook as committed: its identity, its cells, and what its parameters cell says."""

    name: str  # "dplearn/sec2_1_mechanisms"
    path: Path
    node: nbformat.NotebookNode
    defaults: dict
    comments: dict

    @property
    def about(self):
        """What the notebook says of itself: title, figures, needs (the ``privrob`` entry of its metadata)."""
        return self.node.metadata.get("privrob", {})

    @property
    def code(self):
        """The code cells' sources, in order."""
        return [c.source for c in self.node.cells if c.cell_type == "code"]


def read(path, name):
    """Read a notebook and its parameters cell; everything that would go wrong later is refused now."""
    try:
        node = nbformat.reads(read_text(path), as_version=4)
        nbformat.validate(node)
    except Exception as error:  # nbformat has many ways to fail on what is no notebook
        words = " ".join(str(error).split())[:200]
        raise ParameterError(f"{name}: not a notebook that can be read ({words})") from error
    _refuse_hidden_failures(node, name)
    tagged = [c for c in node.cells if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != 1 or tagged[0].cell_type != "code":
        raise ParameterError(f"{name}: needs exactly one code cell tagged 'parameters', has {len(tagged)}")
    defaults, comments = literals(tagged[0].source, where=name)
    unread = set(defaults) - _names_read(node, tagged[0]) - {"seed"}  # start() reads the seed
    if unread:
        raise ParameterError(f"{name}: no cell reads the parameter(s) {', '.join(sorted(unread))}; use or delete them")
    return Source(name, Path(path), node, defaults, comments)


def _refuse_hidden_failures(node, name):
    """Refuse a cell that is not plain Python (shell escapes, magics swallow failures), or whose tag allows an error."""
    code = [c for c in node.cells if c.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        if tags := sorted(set(cell.metadata.get("tags", [])) & set(HIDES_ERRORS)):
            raise ParameterError(
                f"{name}: code cell {number} is tagged {', '.join(tags)}, which lets a failure pass; take it off"
            )
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            line = cell.source.splitlines()[(error.lineno or 1) - 1].strip() if cell.source else ""
            raise ParameterError(
                f"{name}: code cell {number} is not plain Python ({error.msg}: {line!r}); "
                "magics and shell escapes hide failures"
            ) from None
        if any(isinstance(n, ast.Name) and n.id == "get_ipython" for n in ast.walk(tree)):
            raise ParameterError(
                f"{name}: code cell {number} calls get_ipython(); magics and shell escapes hide failures"
            )


def literals(source, *, where="parameters cell"):
    """{name: value} and {name: comment} of a parameters cell; anything but ``name = literal`` is refused."""
    values = {}
    place = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            name, value = statement.target.id, statement.value
        elif isinstance(statement, ast.Assign) and [type(t) for t in statement.targets] == [ast.Name]:
            name, value = statement.targets[0].id, statement.value
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a line of text
        else:
            raise ParameterError(
                f"{where}: the parameters cell holds only 'name = literal', found {ast.unparse(statement)!r}"
            )
        if name in values:
            raise ParameterError(f"{where}: {name} stands twice in the parameters cell")
        place[name] = statement.lineno
        try:
            values[name] = ast.literal_eval(value)
        except ValueError:
            raise ParameterError(
                f"{where}: {name} must be a literal, found {ast.unparse(value)!r}; derive values in the next cell"
            ) from None
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("#").strip() for t in tokens if t.type == tokenize.COMMENT}
    return values, {n: comments[line] for n, line in place.items() if line in comments}


def _names_read(node, parameters):
    """Names that some code cell reads."""
    names = set()
    for cell in node.cells:
        if cell.cell_type == "code" and cell is not parameters:
            names |= {
                n.id
                for n in ast.walk(ast.parse(cell.source))
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
            }
    return names


def check(source, given, *, ignore_unknown=False):
    """The given values, converted to the types of the defaults; refused where that would lose or guess something."""
    checked = {}
    for name, value in given.items():
        if name not in source.defaults:
            if ignore_unknown:
                continue
            raise ParameterError(unknown(name, source.defaults, where=source.name))
        checked[name] = _as(value, source.defaults[name], f"{source.name}: {name}")
        if name.endswith(("seed", "seeds")):
            _check_seeds(f"{source.name}: {name}", checked[name])
    return checked


def _check_seeds(where, value):
    """Seeds are whole numbers from 0, and a repetition with the seed of another would count twice."""
    seeds = value if isinstance(value, list) else [value]
    for one in seeds:
        checks.seed(where, one)
    if twice := sorted({one for one in seeds if seeds.count(one) > 1}):
        raise ParameterError(f"{where} must hold each seed once, got {twice[0]} twice or more")


def unknown(name, known, *, where, what="parameter"):
    """The message for a name that is not known, with the nearest one."""
    shorts = [k.partition("/")[2] for k in known if "/" in k]
    close = difflib.get_close_matches(name, [*known, *shorts], n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{where}: no {what} {name!r}; {hint}{_known(sorted(known))}"


def _known(names):
    """The names that there are; of many notebooks only how many each folder holds."""
    folders = Counter(n.partition("/")[0] for n in names)
    if len(names) <= SHOWN or len(folders) in (1, len(names)):
        return f"There is: {', '.join(names) or 'none'}"
    held = ", ".join(f"{n} in {folder}/" for folder, n in folders.items())
    return f"There are {len(names)} ({held}): ./run_all.sh --list names them"


def _as(value, like, where):
    """The value in the type of the default ``like``. An int serves as a float; items follow the default's items."""
    want = "any" if like is None else type(like).__name__

    def refuse(why=""):
        got = f"{given.shown(value)} ({type(value).__name__})"
        raise ParameterError(f"{where} must be {_kind(like)}, got {got}{why}")

    if like is None:
        try:
            plain(value)
        except TypeError:
            raise ParameterError(
                f"{where} must be a number, text, list or dict, got {type(value).__name__} {value!r}"
            ) from None
        return value
    if isinstance(like, bool):
        return value if isinstance(value, bool) else refuse("; write true or false")
    if isinstance(like, int):
        if isinstance(value, bool) or not isinstance(value, int):
            refuse("; write a whole number without a point")
        return value
    if isinstance(like, float):
        if isinstance(value, str):
            refuse("; numbers stand without quotes, such as 0.5 or (in YAML with a point) 1.0e-5")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            refuse()
        try:
            number = float(value)
        except OverflowError:
            refuse("; it is too large for a number with a point")
        return number if not math.isnan(number) else refuse("; NaN is no value to run with")
    if isinstance(like, str):
        return value if isinstance(value, str) else refuse("; put it in quotes")
    if isinstance(like, (list, tuple)):
        if not isinstance(value, (list, tuple)):
            refuse(f"; write a list such as {list(like)!r}")
        item = _pattern(like)
        return [_as(v, item, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(like, dict):
        if not isinstance(value, dict):
            refuse("; write a dict such as {'name': 1}")
        item = _pattern([*like.values()]) if like else None
        for name, one in value.items():
            _as(one, item, f"{where}[{name!r}]")  # checked, and left as it is
        return value
    return refuse(f"; parameters of type {want} are not supported")


def _pattern(items):
    """What the items of a list look like; a float among ints makes them floats, a mixture allows anything."""
    kinds = {type(i) for i in items}
    if kinds <= {int, float} and float in kinds:
        return 0.0
    return items[0] if len(kinds) == 1 else None


def _kind(like):
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a dict"}.get(
        type(like), "a list"
    )


def parse_text(text, like, *, where):
    """A value given on the command line, as the type of the default: plain words are text, the rest is read as YAML."""
    if isinstance(like, str):
        return text[1:-1] if len(text) > 1 and text[0] in "'\"" and text[0] == text[-1] else text
    number = isinstance(like, (int, float)) and not isinstance(like, bool)  # YAML has octal and sexagesimal ones
    try:
        try:
            value = given.literal(text)
        except given.Twice:
            raise
        except given.Unreadable:
            value = float(text) if number else given.load(text)  # inf; true; [a, b]
    except given.Twice as error:
        raise ParameterError(f"{where} must hold each name once, {error}") from None
    except ValueError:
        value = text
    if found := given.unfit(value):
        raise ParameterError(f"{where}{found[0]} must be {given.ALLOWED}, got {found[1]!r} ({found[1].why})")
    if given.infinite(value) and "inf" not in text.lower():
        raise ParameterError(f"{where} must be a number that can be held, got {given.shown(text)}; infinity is inf")
    return _as(value, like, where)
