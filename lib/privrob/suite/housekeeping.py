"""``./run_all.sh clean``: what runs left that can be made again, with sizes, before anything is removed."""

from __future__ import annotations

import shutil
from pathlib import Path

from privrob.suite import record
from privrob.suite.files import lock
from privrob.suite.sources import repository

WHAT = {
    ".cells": "computed cells (a rerun computes them again; results/*/rows.csv stay)",
    ".staging": "half-done runs",
    ".failed": "logs of failed runs",
    ".runtime": "caches of the notebooks' processes",
    "site": "the built pages",
    ".site": "half-built pages",
}
MARKS = (".cells", ".staging", ".failed", ".runtime")  # what no other program's folder holds


def size(path):
    """Bytes below a folder, or of a file."""
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def clean(out, *, yes, studies=False):
    """Show (and with ``yes`` remove) what can be made again below ``out``, and with ``studies`` these too."""
    others = [p for p in out.iterdir() if p.name != ".lock"] if out.is_dir() else []
    if others and not (record.find(out) or any((out / name).is_dir() for name in MARKS)):
        raise ValueError(f"--out must be a folder that runs left, {out} holds none of their files")
    with lock(out, purpose="./run_all.sh clean"):
        targets = [(out / name, why) for name, why in WHAT.items()]
        targets += [(p, "results of the smoke preset") for p in sorted(out.glob("*/*/smoke"))]
        mine = sorted((repository() / "studies").glob("*")) if out == repository() / "results" else []
        targets += [(p, "a study of yours") for p in mine if studies]
        found = [(p, why, size(p)) for p, why in targets if p.exists()]
        for path, why, count in found:
            print(f"{count / 2**20:9.1f} MB  {_shown(path, out)}  {why}")
            if yes:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        total = sum(count for *_, count in found) / 2**20
        print(f"{total:9.1f} MB in all, {'removed' if yes else 'nothing removed yet: add --yes'}")
        if mine and not studies:
            amount = sum(map(size, mine)) / 2**20
            print(f"kept: {len(mine)} of your studies, {amount:.1f} MB in studies/ (--studies shows them too)")
    return 0


def _shown(path, out):
    for base in (repository(), Path(out).parent):
        if path.is_relative_to(base):
            return path.relative_to(base)
    return path
