"""What a notebook would compute, without computing it: ``python -m privrob.suite.counting JOB.json``.

The code cells run in this process, statement by statement, with a ``run`` whose sweeps write down their cells in place
of computing them. Rows that are stored are handed out; so are those of planning functions (``PLANNING``), which are
cheap and say what the trainings after them are. Any other sweep answers :class:`Pending`, which can be carried about
but not looked into. A statement that looks into it fails, and takes with it every name that it would have set or
changed, so that no later sweep is counted from half-made values; the statements after it go on. Besides the rows of
planning functions (and data sets that a statement loads) nothing is written but ``count.jsonl``, a line for each sweep,
and ``status.json``, with the statements that failed.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import threading
from pathlib import Path

from privrob.suite import execute, guard, session, sweep
from privrob.suite.files import dump_json, load_json, read_text, write_text

PLANNING = ("plan_cell", "spent_cell")  # endings of names of functions that say which trainings follow
CELL = "<code cell "
COUNT = "count.jsonl"


class Waiting(RuntimeError):
    """Rows were looked into that only a real run will have."""


class Pending:
    """Rows that are not there yet. Attributes, items and calls give the same again; a look at values is refused."""

    def __init__(self, label):
        self._label = label

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __getitem__(self, key):
        return self

    def __setitem__(self, key, value):
        pass

    def _refuse(self, *args, **kwargs):
        raise Waiting(f"the rows of the sweep {self._label!r} are not there yet")

    __iter__ = __len__ = __bool__ = __contains__ = __array__ = __float__ = __int__ = __index__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None


def is_planning(path):
    """Whether a cell's function only says what to train."""
    return path.partition(":")[2].endswith(PLANNING)


class Counting(session.Run):
    """A run that writes down its cells. What a run shows, claims or saves is dropped."""

    def sweep(self, work, *, label="rows", common=None, data=()):
        """As in a run, but only stored rows, and those of planning functions, are there; otherwise :class:`Pending`."""
        import pandas as pd

        cells = sweep.make_cells(work, seed=self.seed, common=common)
        store = sweep.Store(self.job.store, self.job.more_stores)
        if cells and all(is_planning(c.function) for c in cells):
            rows = super().sweep(work, label=label, common=common, data=data)
        else:
            rows = None
        found = {c.identity: store.get(c, any_code=True) for c in cells}
        groups = [[_described(c, found[c.identity]) for c in group] for group in sweep.groups(cells)]
        cell, line = _place()
        entry = {"label": label, "cell": cell, "line": line, "planning": rows is not None, "groups": groups}
        with open(self.job.count, "a", encoding="utf-8") as file:
            file.write(dump_json(entry) + "\n")
        if rows is None and all(found.values()):
            rows = pd.DataFrame(sweep.run(cells, store, redraw=True).rows())
        return Pending(label) if rows is None else rows

    def figure(self, *args, **kwargs):
        """Nothing."""

    def save(self, **kwargs):
        """Nothing."""

    def _hand_in(self, claim, evidence):
        """Nothing."""


def _described(cell, record):
    """A cell for the file: what, and the seconds that it took where its rows are stored."""
    stored = record and {"seconds": record.get("seconds"), "stale": record["stale"]}
    return {"function": cell.function, "settings": cell.settings, "identity": cell.identity, "stored": stored}


def _place():
    """(code cell, line) of the notebook that called."""
    frame = sys._getframe(2)
    while frame and not frame.f_code.co_filename.startswith(CELL):
        frame = frame.f_back
    return (int(frame.f_code.co_filename[len(CELL) : -1]), frame.f_lineno) if frame else (0, 0)


# ------------------------------------------------------------------------------------------------- a notebook's sweeps


LOOPS = (ast.For, ast.While, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.FunctionDef)


def sites(code):
    """[(code cell, first line, last line, in a loop)] of the calls of ``run.sweep``; cells are numbered from 1."""
    found = []
    for number, source in enumerate(code, start=1):
        tree = ast.parse(source)
        looped = {id(n) for loop in ast.walk(tree) if isinstance(loop, LOOPS) for n in ast.walk(loop)}
        calls = [n for n in ast.walk(tree) if _is_sweep(n)]
        found += [(number, n.lineno, n.end_lineno, id(n) in looped) for n in calls]
    return found


def _is_sweep(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sweep"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "run"
    )


def _last(code):
    """(code cell, statement) after which no sweep is called, by name or by a function of the notebook that does."""
    statements = [(i, j, s) for i, source in enumerate(code) for j, s in enumerate(ast.parse(source).body)]
    calling = {s.name for _, _, s in statements if isinstance(s, ast.FunctionDef) and any(map(_is_sweep, ast.walk(s)))}

    def calls(node):
        return _is_sweep(node) or (isinstance(node, ast.Name) and node.id in calling)

    return max(((i, j) for i, j, s in statements if any(map(calls, ast.walk(s)))), default=(-1, -1))


def touched(statement):
    """Names that a statement sets, and names whose object it may change (``x[0] = …``, ``x += …``, ``x.append(…)``)."""
    sets, changes = set(), set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            sets.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            sets |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            sets.add(node.name)
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            base = node.value
            while isinstance(base, (ast.Attribute, ast.Subscript)):
                base = base.value
            if isinstance(base, ast.Name):
                changes.add(base.id)
    return sets, changes


def _forget(statement, names):
    """Take away what a failed statement would have made, and the collections that it may have changed half way."""
    import numpy as np
    import pandas as pd

    sets, changes = touched(statement)
    collections = (list, dict, set, np.ndarray, pd.DataFrame, pd.Series)
    for name in sets | {n for n in changes if isinstance(names.get(n), collections)}:
        names.pop(name, None)


def count(source, values):
    """Run the notebook's statements up to its last sweep; {"errors": statements that failed}.

    Args: source — the notebook (:class:`guard.Source`);  values — parameters in place of its own.
    """
    names = {"__name__": "__main__"}
    errors, last = [], _last(source.code)
    given = next(i for i, c in enumerate(source.node.cells) if "parameters" in c.metadata.get("tags", []))
    given = sum(c.cell_type == "code" for c in source.node.cells[:given])
    for i, text in enumerate(source.code):
        for j, statement in enumerate(ast.parse(text).body):
            if (i, j) > last:
                break
            program = compile(ast.Module([statement], []), f"{CELL}{i + 1}>", "exec")
            try:
                exec(program, names)
            except (Exception, SystemExit) as error:
                lines = (statement.lineno, statement.end_lineno)
                words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                errors.append({"cell": i + 1, "lines": lines, "waits": isinstance(error, Waiting), "error": words})
                print(f"code cell {i + 1}, line {lines[0]}: {words}", file=sys.stderr)
                _forget(statement, names)
        if i == given:
            names |= values
    return {"errors": errors}


def main(path):
    """Count the job's notebook; ``status.json`` says how far it came."""
    job = load_json(read_text(path))
    folder = Path(path).parent
    os.environ["MPLBACKEND"] = "agg"
    threading.Thread(target=execute.end_with_driver, daemon=True).start()
    status = {"ok": False, "error": ""}
    try:
        source = guard.read(job["source"], job["notebook"])
        status |= {"ok": True, **count(source, job["injected"])}
    except BaseException as error:
        status["error"] = f"{type(error).__name__}: {error}"
        print(status["error"], file=sys.stderr)
    with contextlib.suppress(OSError):
        write_text(folder / "status.json", dump_json(status))
    return 0 if status["ok"] else 1


if __name__ == "__main__":
    from privrob.suite import counting  # the module that sessions import, not a second copy of it

    code = counting.main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # whatever a half-run notebook has open is of no use
