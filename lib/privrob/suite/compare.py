"""``./run_all.sh diff A B``: which verdicts and which rows of two results folders differ, the verdicts first."""

from __future__ import annotations

from privrob.suite import record, tables
from privrob.suite.files import csv_to_rows, read_text

NAMED = 3  # results that only one folder holds, by name


def main(first, second):
    """Print the differences; exit status 0 when there are none, 1 otherwise."""
    for folder in (first, second):
        if not folder.is_dir():
            raise ValueError(f"diff needs two results folders, {folder} is none")
    a, b = record.find(first), record.find(second)
    for folder, found in ((first, a), (second, b)):
        if not found:
            raise ValueError(f"diff needs two results folders, {folder} holds no results")
    shared = [key for key in a if key in b]
    flips, rest = [], []
    for key in shared:
        one, two = _differences(a[key], b[key])
        flips += [f"{' '.join(key)}: {line}" for line in one]
        rest += [f"{' '.join(key)}: {line}" for line in two]
    lines = [f"verdicts that differ: {len(flips)}", *flips] if flips else []
    lines += ["verdicts agree; what else differs:" if not flips else "what else differs:", *rest] if rest else []
    if not shared:
        lines.append("nothing to compare: no notebook and preset has results in both")
    elif not lines:
        lines.append(f"no differences in {tables.count(len(shared), 'result')}")
    alone = [_alone(first, [k for k in a if k not in b]), _alone(second, [k for k in b if k not in a])]
    print("\n".join(lines + [line for line in alone if line]))
    return 1 if flips or rest or any(alone) else 0


def _alone(folder, keys):
    """One line on the results that only one folder holds, with the first names; empty where there are none."""
    if not keys:
        return ""
    more = ", …" if len(keys) > NAMED else ""
    shown = ", ".join(" ".join(key) for key in keys[:NAMED])
    return f"only in {folder}: {tables.count(len(keys), 'notebook')} ({shown}{more})"


def _same(x, y):
    """Equal, or both not a number."""
    return x == y or (isinstance(x, float) and isinstance(y, float) and x != x and y != y)


def _shown(claim):
    """A claim's verdict and what was got, short."""
    if claim is None:
        return "not there"
    got = tables.show(claim["got"])
    return f"{tables.verdict(claim)}, {got}" if got else tables.verdict(claim)


def _read(folder):
    try:
        return record.read(folder, check_files=True)
    except record.BadResult as error:
        raise record.BadResult(f"{folder}: {error}") from None


def _differences(first, second):
    """(lines on verdicts that differ, lines on all else) of two results of one notebook."""
    one, two = _read(first), _read(second)
    flips, rest, rounded = [], [], []
    for name in sorted(set(one["parameters"]) | set(two["parameters"])):
        x, y = one["parameters"].get(name), two["parameters"].get(name)
        if x != y:
            rest.append(f"parameter {name}: {x!r} / {y!r}")
    judged = [{c["id"]: c for c in r["claims"]} for r in (one, two)]
    for item in dict.fromkeys([*judged[0], *judged[1]]):
        x, y = (v.get(item) for v in judged)
        if x is None or y is None or tables.verdict(x) != tables.verdict(y):
            flips.append(f"{item}: {_shown(x)} / {_shown(y)}")
        elif not tables.alike(x["got"], y["got"], x["paper"]):
            rest.append(f"{item}: {_shown(x)} / {_shown(y)}")
        elif not _same(x["got"], y["got"]):
            rounded.append(item)
    if rounded:
        rest.append(f"{tables.count(len(rounded), 'item')} with the same verdict, and a value that differs by rounding")
    rows = [csv_to_rows(read_text(f / "rows.csv")) if (f / "rows.csv").is_file() else [] for f in (first, second)]
    if len(rows[0]) != len(rows[1]):
        rest.append(f"rows: {len(rows[0])} / {len(rows[1])}")
    changed = [(i, k) for i, (x, y) in enumerate(zip(*rows)) for k in {**x, **y} if not _same(x.get(k), y.get(k))]
    if changed:
        i, k = changed[0]
        values = f"{tables.count(len(changed), 'value')} {'differs' if len(changed) == 1 else 'differ'}"
        rest.append(f"{values}, first in row {i + 1}, {k}: {rows[0][i].get(k)!r} / {rows[1][i].get(k)!r}")
    return flips, rest
