"""Which code a result depends on: the modules a function imports, followed through the package, as one hash.

Comments, docstrings and blank lines do not count, nor does a module that is not imported. Imports inside functions
count, so that late imports (torch, say) are seen too. Only the package's own modules are followed: versions of other
packages are recorded beside every result.
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
def _read(path, mtime_ns, size):  # the stat values are only part of the cache's key
    """What a module imports, and the hash of its code."""
    text = Path(path).read_text(encoding="utf-8")
    tree = ast.parse(text, filename=str(path))
    return frozenset(imported_names(tree)), hashlib.sha256(without_words(text, tree).encode()).digest()


def _read_now(path):
    stat = path.stat()
    return _read(path, stat.st_mtime_ns, stat.st_size)


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
        todo += [n for n in _read_now(path)[0] if n not in found]
        parent = name.rpartition(".")[0]
        if parent and parent not in found:
            todo.append(parent)  # importing a.b runs a/__init__.py
    return found


def without_words(text, tree):
    """Python source without comments, docstrings, blank lines and spaces at the ends of lines: what it does.

    The text is cut, not printed anew, so that the answer is the same under every version of Python. A comment inside
    a string that is written in several pieces stays.
    """
    lines = [line.encode() for line in text.split("\n")]  # as a syntax tree counts: rows by line feeds, then bytes
    words = [node.body[0] for node in ast.walk(tree) if _has_docstring(node)]
    cuts = [_span(node) for node in words]
    no_code = {id(node.value) for node in words}
    taken, whole = {}, set()  # row: the parts of it that are strings; rows that are nothing else up to their end
    for node in ast.walk(tree):
        if id(node) in no_code or not (isinstance(node, ast.JoinedStr) or _is_text(node)):
            continue
        (first, start), (last, end) = _span(node)
        whole |= set(range(first, last))
        for row in range(first, last + 1):
            taken.setdefault(row, []).append((start if row == first else 0, end if row == last else len(lines[row])))
    for row, line in enumerate(lines):
        at = line.find(b"#")
        while at >= 0:
            inside = [end for start, end in taken.get(row, []) if start <= at < end]
            if not inside:
                cuts.append(((row, at), (row, len(line))))
                break
            at = line.find(b"#", max(inside))
    for (first, start), (last, end) in sorted(cuts, reverse=True):
        lines[first] = lines[first][:start] + lines[last][end:]
        lines[first + 1 : last + 1] = [b""] * (last - first)
    ready = ((row, line if row in whole else line.rstrip()) for row, line in enumerate(lines))
    return "".join(f"{line.decode()}\n" for row, line in ready if line or row in whole)


def _span(node):
    return (node.lineno - 1, node.col_offset), (node.end_lineno - 1, node.end_col_offset)


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _has_docstring(node):
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or not node.body:
        return False
    return isinstance(node.body[0], ast.Expr) and _is_text(node.body[0].value)


def code_hash(names, *, root=None, leave_out=(f"{PACKAGE}.suite",)):
    """One sha256 over the code of these modules and all that they import; words about it (above) left out.

    The suite's own modules are left out: they move rows about and do not make them.
    """
    hasher = hashlib.sha256()
    for name, path in sorted(closure(names, root=root).items()):
        if any(name == skip or name.startswith(f"{skip}.") for skip in leave_out):
            continue
        hasher.update(f"{name}\n".encode() + _read_now(path)[1])
    return hasher.hexdigest()
