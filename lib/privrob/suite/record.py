"""``result.json``: what one run of one notebook was, made from, and found. Its schema is published and checked."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import jsonschema

from privrob import __version__
from privrob.suite.claims import DOCUMENTS
from privrob.suite.files import digest, file_digest, load_json, read_text
from privrob.suite.sources import repository

FORMAT = 1
SHOWN_VERSIONS = ("numpy", "scipy", "torch", "pandas", "matplotlib", "seaborn", "dp-accounting", "papermill")


class BadResult(ValueError):
    """A result.json that does not follow the schema or does not fit the files beside it."""


@functools.lru_cache(maxsize=1)
def _validator():
    schema = load_json(read_text(Path(__file__).with_name("schema") / "result.schema.json"))
    return jsonschema.Draft202012Validator(schema)


def validate(value):
    """Check a result (plain data) against the schema; the first violation is named with its place."""
    errors = sorted(_validator().iter_errors(value), key=lambda e: list(map(str, e.path)))
    if errors:
        place = "/".join(map(str, errors[0].path)) or "top level"
        raise BadResult(f"result.json, {place}: {errors[0].message[:300]}")
    return value


def read(folder, *, check_files=False):
    """The result in a folder, or None when there is none; a damaged one raises :class:`BadResult`."""
    path = Path(folder) / "result.json"
    if not path.is_file():
        return None
    try:
        text = read_text(path)
        validate(load_json(text, unfold=False))
        result = load_json(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise (
            error if isinstance(error, BadResult) else BadResult(f"{path.name} is not strict JSON: {error}")
        ) from error
    if check_files:
        if "sha256" in result and result["sha256"] != checksum(result):
            raise BadResult("result.json was changed by hand")
        for name, sha256 in result["files"].items():
            file = Path(folder) / name
            if not file.is_file() or file_digest(file) != sha256:
                raise BadResult(f"{name} is {'changed' if file.is_file() else 'missing'} beside result.json")
    return result


def vouches_for(file):
    """Whether the result beside a file is as it was written, and holds the hash of that file as it is."""
    file = Path(file)
    try:
        result = read(file.parent)
    except BadResult:
        return False
    return (
        bool(result)
        and result.get("sha256") == checksum(result)
        and result["files"].get(file.name) == file_digest(file)
    )


def checksum(result):
    """sha256 of a result without the entry that holds it."""
    return digest({k: v for k, v in result.items() if k != "sha256"})


def place(path):
    """Where a notebook stands among those of its document, as a key to sort by: numbers as numbers, appendices last."""
    name = Path(path).stem
    return name.startswith("appendix"), [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", name)]


def find(results):
    """All result folders below: {(notebook, preset): folder}, in order."""
    found = {}
    for key in DOCUMENTS:
        folders = [path.parent for path in Path(results).glob(f"{key}/*/*/result.json")]
        for folder in sorted(folders, key=lambda f: (place(f.parent), f.name)):
            found[f"{key}/{folder.parent.name}", folder.name] = folder
    return found


@functools.lru_cache(maxsize=8)
def commit(root=None):
    """The checkout's commit, "+ changes" behind it when tracked files differ, "unknown" outside a checkout.

    ``PRIVROB_COMMIT`` says it where there is no git, on a machine that got a copy of the tree.
    """
    if told := os.environ.get("PRIVROB_COMMIT"):
        return told
    root = Path(root or repository())

    def git(*args):
        command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *args]
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=30, check=True).stdout

    try:
        head = git("rev-parse", "--short=10", "HEAD").strip()
        # rendered results change while a run writes them; only what results are made from counts
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "lib", "notebooks", "data").strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{head} + changes" if changed else head


def versions():
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version(), "privrob": __version__}
    for name in SHOWN_VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device_name(kind):
    """What computes: the GPU's name, or the processor's architecture."""
    if kind.startswith("cuda") and "torch" in sys.modules:
        return sys.modules["torch"].cuda.get_device_name(kind)
    return f"CPU ({platform.machine()})"
