"""``./run_all.sh diff A B``: which verdicts and which rows of two results folders differ."""

from __future__ import annotations

from privrob.suite import record
from privrob.suite.files import csv_to_rows, read_text


def main(first, second):
    """Print the differences; exit status 0 when there are none, 1 otherwise."""
    for folder in (first, second):
        if not folder.is_dir():
            raise ValueError(f"diff needs two results folders, {folder} is none")
    a, b = record.find(first), record.find(second)
    for folder, found in ((first, a), (second, b)):
        if not found:
            raise ValueError(f"diff needs two results folders, {folder} holds no results")
    shared = sorted(set(a) & set(b))
    lines = [f"only in {first if k in a else second}: {' '.join(k)}" for k in sorted(set(a) ^ set(b))]
    if not shared:
        lines.append("nothing to compare: no notebook and preset has results in both")
    for key in shared:
        lines += [f"{' '.join(key)}: {line}" for line in _differences(a[key], b[key])]
    print("\n".join(lines) if lines else f"no differences in {len(shared)} results")
    return 1 if lines else 0


def _same(x, y):
    """Equal, or both not a number."""
    return x == y or (isinstance(x, float) and isinstance(y, float) and x != x and y != y)


def _shown(claim):
    """A claim's verdict and what was got, short."""
    if claim is None:
        return "not there"
    got = claim["got"]
    return claim["verdict"] if got is None else f"{claim['verdict']}, {f'{got:.6g}' if isinstance(got, float) else got}"


def _differences(first, second):
    one, two = record.read(first), record.read(second)
    for name in sorted(set(one["parameters"]) | set(two["parameters"])):
        x, y = one["parameters"].get(name), two["parameters"].get(name)
        if x != y:
            yield f"parameter {name}: {x!r} / {y!r}"
    judged = [{c["id"]: c for c in r["claims"]} for r in (one, two)]
    for item in sorted(set(judged[0]) | set(judged[1])):
        x, y = (v.get(item) for v in judged)
        if x is None or y is None or (x["verdict"], x["got"]) != (y["verdict"], y["got"]):
            yield f"{item}: {_shown(x)} / {_shown(y)}"
    rows = [csv_to_rows(read_text(f / "rows.csv")) if (f / "rows.csv").is_file() else [] for f in (first, second)]
    if len(rows[0]) != len(rows[1]):
        yield f"rows: {len(rows[0])} / {len(rows[1])}"
    changed = [(i, k) for i, (x, y) in enumerate(zip(*rows)) for k in {*x, *y} if not _same(x.get(k), y.get(k))]
    if changed:
        i, k = changed[0]
        yield f"{len(changed)} values differ, first in row {i + 1}, {k}: {rows[0][i].get(k)!r} / {rows[1][i].get(k)!r}"
