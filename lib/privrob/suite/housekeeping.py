"""``./run_all.sh clean``: what runs left that can be made again, with sizes, before anything is removed."""

from __future__ import annotations

import shutil
from pathlib import Path

from privrob.suite import record
from privrob.suite.files import Locked, lock
from privrob.suite.sources import repository

WHAT = {
    ".cells": "computed cells (a rerun computes them again; results/*/rows.csv stay)",
    ".staging": "half-done runs",
    ".failed": "logs of failed runs",
    ".runtime": "caches of the notebooks' processes",
    "site": "the built pages",
    ".site": "half-built pages",
}
BUILT = "built.js"  # the mark of pages that the suite built
MARKS = (".cells", ".staging", ".failed", ".runtime")  # what no other program's folder holds


def size(path):
    """Bytes below a folder, or of a file."""
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def clean(out, *, yes, studies=False):
    """Show (and with ``yes`` remove) what can be made again below ``out``, and with ``studies`` these too."""
    if not out.is_dir():
        raise ValueError(f"--out must be a folder that runs left, {out} is not there")
    others = [p for p in out.iterdir() if p.name != ".lock"]
    if others and not (record.find(out) or any((out / name).is_dir() for name in MARKS)):
        raise ValueError(f"--out must be a folder that runs left, {out} holds none of their files")
    with lock(out, purpose="./run_all.sh clean", below=[out / ".site"]):  # in which a running site has its pages
        targets = [(out / name, why) for name, why in WHAT.items() if name != "site" or (out / name / BUILT).is_file()]
        smoke = [folder for (_, preset), folder in record.find(out).items() if preset == "smoke"]
        found = [(p, why) for p, why in targets if p.exists()] + [(p, "results of the smoke preset") for p in smoke]
        total = sum(_remove(path, why, out, yes) for path, why in found)
        if out == repository() / "results" and (plans := repository() / "studies" / ".plan").is_dir():
            total += _remove_held(plans, "what ./run_all.sh plan counted", out, yes)
        mine = sorted((repository() / "studies").glob("[!.]*")) if out == repository() / "results" else []
        for study in mine if studies else ():
            total += _remove_held(study, "a study of yours", out, yes)
        print(f"{total / 2**20:9.1f} MB in all, {'removed' if yes else 'nothing removed yet: add --yes'}")
        if mine and not studies:
            amount = sum(map(size, mine)) / 2**20
            print(f"kept: {len(mine)} of your studies, {amount:.1f} MB in studies/ (--studies shows them too)")
    return 0


def _remove(path, why, out, yes):
    """Show a path, remove it if told to (a link, not what it leads to); its size in bytes."""
    count = size(path)
    print(f"{count / 2**20:9.1f} MB  {_shown(path, out)}  {why}")
    if yes:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return count


def _remove_held(study, why, out, yes):
    """As :func:`_remove`; a folder in which somebody works stays."""
    if not study.is_dir() or study.is_symlink():
        return _remove(study, why, out, yes)
    try:
        held = [p.parent for p in study.rglob(".lock")]  # a run may have one combination of a sweep alone
        with lock(study, purpose="./run_all.sh clean", below=held):
            return _remove(study, why, out, yes)
    except Locked as busy:
        print(f"     kept  {_shown(study, out)}  {busy}")
        return 0


def _shown(path, out):
    for base in (repository(), Path(out).parent):
        if path.is_relative_to(base):
            return path.relative_to(base)
    return path
