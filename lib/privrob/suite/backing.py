"""Which tests back an item: read from the ``paper(key, item)`` marks of the test files, without running anything.

A test backs an item when its mark names the same numbered item (or slide); failing that, the same section; failing that
it is a test of the library code that the item's notebook computes with. What was found says which of the three it is.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections import Counter
from dataclasses import dataclass

from privrob.suite.files import read_text
from privrob.suite.sources import imported_names, repository

KINDS = (
    "Theorem|Lemma|Corollary|Proposition|Definition|Remark|Algorithm|Figure|Table|Example|Assumption|Equation|Result"
)
_NUMBER = r"(?:[A-Z]\.?)?\d+(?:\.\d+)*"
_NAMED = re.compile(
    rf"\b({KINDS}|Eq\.|Lemmata|Corollaries)s?\s+\(?({_NUMBER})\)?((?:\s*(?:,|and|or|to|–|/)\s*\(?{_NUMBER}\)?)*)"
)
_SECTION = re.compile(r"\b(?:Section |Appendix |§)?([A-Z](?:\.\d+)+|(?<=Appendix )[A-Z]\b|(?<=Section )\d+(?:\.\d+)*)")
_SLIDE = re.compile(r'slide "([^"]+)"')


@dataclass(frozen=True)
class Test:
    """One marked test function (or the first of a file)."""

    __test__ = False  # not a test class of pytest

    path: str  # "tests/accounting/test_ptr.py"
    name: str
    line: int
    key: str
    item: str


@dataclass(frozen=True)
class Backing:
    """The tests behind one item, and how they were found (by "item", "section" or "code", the best first, or an empty
    text for none)."""

    how: str
    tests: tuple = ()

    def files(self, most=2):
        """Paths of the test files, those with most of the tests first."""
        count = Counter(t.path for t in self.tests)
        return sorted(count, key=lambda path: (-count[path], path))[:most]


def references(text):
    """The numbered items that a text names: ``"Theorem 4.2"``, ``"Figures 8 and 9"``, ``"Equations 82 to 85"``."""
    found = set()
    for match in _NAMED.finditer(text):
        kind = {"Eq.": "Equation", "Lemmata": "Lemma", "Corollaries": "Corollary"}.get(match[1], match[1])
        numbers, last = [match[2]], match[2]
        for joint, number in re.findall(rf"(,|and|or|to|–|/)\s*\(?({_NUMBER})", match[3]):
            if joint in ("to", "–") and last.isdigit() and number.isdigit() and int(number) - int(last) < 40:
                numbers += [str(n) for n in range(int(last) + 1, int(number))]
            numbers.append(number)
            last = number
        found |= {f"{kind} {n}" for n in numbers}
    return frozenset(found)


def sections(text):
    """The sections and appendices that a text names: ``"4.2"``, ``"B.1.3"``, ``"N"``."""
    return frozenset(_SECTION.findall(_NAMED.sub(" ", text)))


def marked(root=None):
    """All tests with a ``paper`` mark below ``tests/``, in order; marks on a whole file stand for its first test."""
    return _scan(root)[0]


def _scan(root=None):
    """(the marked tests, {test file: what it imports of the package})."""
    folder = (root or repository()) / "tests"
    return _read(str(folder.parent), tuple((str(p), p.stat().st_mtime_ns) for p in sorted(folder.rglob("test_*.py"))))


@functools.lru_cache(maxsize=4)
def _read(root, stats):  # the stat values are only part of the cache's key
    found, imports = [], {}
    for path, _ in stats:
        text = read_text(path)
        if "mark.paper(" not in text:
            continue
        tree, short = ast.parse(text), path[len(root) + 1 :].replace("\\", "/")
        names = {
            t.id: n.value for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
        }
        bodies = [tree.body, *(n.body for n in tree.body if isinstance(n, ast.ClassDef))]
        functions = [
            n for body in bodies for n in body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")
        ]
        pairs = [(f, m) for f in functions for d in f.decorator_list for m in _marks(d, names)]
        if functions and "pytestmark" in names:
            pairs += [(functions[0], m) for m in _marks(names["pytestmark"], names)]
        found += [Test(short, f.name, f.lineno, *mark) for f, mark in sorted(pairs, key=lambda pair: pair[0].lineno)]
        top = ast.Module([n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))], [])
        imports[short] = imported_names(top)
    return tuple(found), imports


def _marks(node, names):
    """The (key, item) pairs of ``pytest.mark.paper`` in a decorator or a list of marks; constants are looked up."""
    if isinstance(node, ast.Name):
        node = names.get(node.id, node)
    if isinstance(node, (ast.List, ast.Tuple)):
        for part in node.elts:
            yield from _marks(part, names)
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.paper"):
        return
    values = []
    for argument in node.args:
        starred = isinstance(argument, ast.Starred)
        value = argument.value if starred else argument
        value = names.get(value.id, value) if isinstance(value, ast.Name) else value
        try:
            value = ast.literal_eval(value)
        except ValueError:
            continue
        values += list(value) if starred else [value]
    if len(values) == 2:
        yield tuple(values)


def of(claims, root=None):
    """{claim id: :class:`Backing`} for some claims ({id: Claim})."""
    root = root or repository()
    (every, imports), by_key = _scan(root), {}
    for test in every:
        by_key.setdefault(test.key, []).append((test, references(test.item), sections(test.item), _words(test.item)))
    by_code = {book: _by_code(book, every, imports, root) for book in {c.notebook for c in claims.values()}}
    return {i: _backing(claim, by_key.get(claim.document, []), by_code) for i, claim in claims.items()}


def _backing(claim, marked, by_code):
    named, where = references(claim.where), sections(claim.where)
    slides = [_words(s) for s in _SLIDE.findall(claim.where)]
    same = [t for t, refs, _, words in marked if named & refs or any(_alike(s, words) for s in slides)]
    if same:
        return Backing("item", tuple(same))
    where = {place for place in where if not place.isdigit()}  # a whole chapter says too little
    same = [t for t, refs, places, _ in marked if where & places]
    if same:
        return Backing("section", tuple(same))
    same = by_code[claim.notebook]
    return Backing("code", same) if same else Backing("")


def _words(text):
    return re.sub(r"[^a-z0-9]+", " ", text.removeprefix("slide ").lower()).strip()


def _alike(slide, words):
    return bool(slide) and (slide.startswith(words) or words.startswith(slide))


def _by_code(notebook, every, imports, root):
    """Marked tests in the two files that import most of what a notebook imports."""
    path = root / "notebooks" / f"{notebook}.ipynb"
    if not path.is_file():
        return ()
    cells = json.loads(read_text(path))["cells"]
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    wanted = {n for n in imported_names(ast.parse(code)) if not n.startswith("privrob.suite")}
    score = {file: sum(name.count(".") for name in wanted & names) for file, names in imports.items()}
    best = [file for file, n in sorted(score.items(), key=lambda pair: (-pair[1], pair[0])) if n][:2]
    return tuple(t for t in every if t.path in best)
