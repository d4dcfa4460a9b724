"""The library reference: one page a module, made from the source files; nothing is listed by hand."""

from __future__ import annotations

import ast

from privrob.suite import stable
from privrob.suite.files import read_text
from privrob.suite.site_parts import listing
from privrob.suite.site_parts.docstrings import escape
from privrob.suite.sources import PACKAGE, package_root

ROOMS = {
    "": ("Shared words", "argument checks and the vocabulary that every room uses"),
    "accounting": ("Accounting", "numbers to guarantees: float64, log space, no torch"),
    "mechanisms": ("Mechanisms", "data to private answers"),
    "robust": ("Robustness", "corruption, robust estimation, certificates"),
    "learn": ("Learning", "private training, data sets, models"),
    "suite": ("Suite", "runs notebooks, keeps rows, judges claims, draws these pages"),
}
HIDDEN = ("privrob.suite.site_parts", "privrob.suite.preflight", "privrob.suite.bootstrap")


def modules():
    """{module: first line of its docstring} of the package, in order, without private and internal ones."""
    root = package_root()
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if any(p.startswith("_") for p in name.split(".")) or name.startswith(HIDDEN):
            continue
        found[name] = (ast.get_docstring(ast.parse(read_text(path))) or "").split("\n\n")[0].replace("\n", " ")
    return found


def every():
    """{file name: text} of the reference's pages, reStructuredText."""
    known = modules()
    grouped = {}
    for name in known:
        room = (
            name.split(".")[1] if name.count(".") > 1 or f"{PACKAGE}.{name.split('.')[-1]}" in _packages(known) else ""
        )
        grouped.setdefault(room, []).append(name)
    order = [r for r in ROOMS if r in grouped] + sorted(set(grouped) - set(ROOMS))
    pages = {"api/index.rst": _overview(order, grouped, known), "api/stable.rst": stable.page()}
    for name in known:
        pages[f"api/{name}.rst"] = _module(name)
    return pages


def sources(known, **how):
    """{file name: text} of the pages with the modules' source; ``how`` as in :func:`listing.pages`."""
    return listing.pages(known, **how)


def _packages(known):
    return {n.rpartition(".")[0] for n in known} | {f"{PACKAGE}.{room}" for room in ROOMS if room}


def _overview(order, grouped, known):
    lines = [
        *_title("Library reference"),
        "The science wing turns numbers into guarantees and data into private, robust answers; the suite wing runs",
        "notebooks and knows no maths. Imports run one way: checks and kinds, accounting, mechanisms, robust, learn.",
        "",
        ":doc:`stable` lists what other programs may build on. Arguments that mean the same everywhere are explained",
        "once, in :doc:`privrob.kinds <privrob.kinds>`. ``Paper:`` names an item of the five documents, ``Source:``",
        "the literature.",
        "",
        ".. warning::",
        "",
        "   Samplers of Laplace and Gaussian noise here work in floating point, for research. Their low bits can tell",
        "   what the noise was added to (Mironov 2012): do not deploy them to protect people's data.",
        "",
    ]
    for room in order:
        title, about = ROOMS.get(room, (room, ""))
        lines += [*_title(title, "-"), f"{about[:1].upper()}{about[1:]}." if about else "", ""]
        for name in grouped[room]:
            lines += [f":doc:`{name} <{name}>`", f"   {escape(known[name]) or name}", ""]
    lines += [".. toctree::", "   :hidden:", "", "   Stable names <stable>"]
    lines += [f"   {name.removeprefix(PACKAGE + '.')} <{name}>" for room in order for name in grouped[room]]
    return "\n".join(lines) + "\n"


def _module(name):
    heading = _title(escape(name) if name != PACKAGE else f"{PACKAGE}, the package")
    return "\n".join([*heading, f".. automodule:: {name}", "   :members:", "   :member-order: bysource", ""])


def _title(text, mark="="):
    return [text, mark * (len(text) + 2), ""]
