"""Which code a result depends on: the modules a function imports, followed through the package, as one hash.

A changed comment counts as a change; a module that is not imported does not. Imports inside functions count, so that
late imports (torch, say) are seen too. Only the package's own modules are followed: versions of other packages are
recorded beside every result.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from pathlib import Path

PACKAGE = "privrob"


def package_root():
    """The folder that holds the package (``lib`` in a checkout)."""
    return Path(__file__).resolve().parents[2]


def repository():
    """The checkout: the folder with ``notebooks/`` and ``data/``; ``PRIVROB_ROOT`` overrides it."""
    return Path(os.environ.get("PRIVROB_ROOT") or package_root().parent)


def module_file(name, *, root=None):
    """The source file of a module of the package, or None."""
    base = (root or package_root()).joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@functools.lru_cache(maxsize=4096)
def _imports_of(path, mtime_ns, size):  # the stat values are only part of the cache's key
    tree = ast.parse(Path(path).read_text(encoding="utf-8"), filename=str(path))
    return frozenset(imported_names(tree))


def imported_names(tree, *, package=PACKAGE):
    """Dotted names of the package that a syntax tree imports; ``from a import b`` gives both a and a.b."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{package}."):
            names.add(node.value.split(":")[0])  # import paths given as text, as sweeps do
    return {n for n in names if n == package or n.startswith(f"{package}.")}


def closure(names, *, root=None):
    """All modules of the package that these modules import, directly or not: {module: file}, themselves included."""
    found, todo = {}, sorted(names)
    while todo:
        name = todo.pop()
        path = module_file(name, root=root)
        if path is None or name in found:
            continue
        found[name] = path
        stat = path.stat()
        todo += [n for n in _imports_of(path, stat.st_mtime_ns, stat.st_size) if n not in found]
        parent = name.rpartition(".")[0]
        if parent and parent not in found:
            todo.append(parent)  # importing a.b runs a/__init__.py
    return found


def code_hash(names, *, root=None, leave_out=(f"{PACKAGE}.suite",)):
    """One sha256 over the sources of these modules and all that they import.

    The suite's own modules are left out: they move rows about and do not make them.
    """
    hasher = hashlib.sha256()
    for name, path in sorted(closure(names, root=root).items()):
        if any(name == skip or name.startswith(f"{skip}.") for skip in leave_out):
            continue
        hasher.update(f"{name}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()
