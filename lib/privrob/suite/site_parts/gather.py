"""What the pages show: the notebooks that count, their files, and every item with its verdict, ready for HTML."""

from __future__ import annotations

import functools
import html
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from privrob.suite import backing, catalogue, claims, index, tables
from privrob.suite.site_parts import formulas

# verdict: (sign, what it says). The sign and the word carry the meaning; colour only repeats it.
_SIGNS = {
    "holds": "✓",
    "matches": "✓",
    "corrected": "✎",
    "differs": "≠",
    "fails": "✗",
    "trend": "↗",
    "not tried": "–",
    "open": "○",
}
VERDICTS = {verdict: (sign, index.MEANINGS[verdict]) for verdict, sign in _SIGNS.items()}


@dataclass(frozen=True)
class Book:
    """One notebook with the result that counts for it."""

    name: str  # "dplearn/sec2_1_mechanisms"
    folder: Path
    result: dict

    @property
    def document(self):
        """Key of its document."""
        return self.name.partition("/")[0]

    @property
    def short(self):
        """Its file name without the ending."""
        return self.name.partition("/")[2]

    @property
    def files(self):
        """Where its files stand in the site, from the front page."""
        return f"files/{self.name}"

    @property
    def command(self):
        """What makes this result again."""
        return f"./run_all.sh {self.name} --preset {self.result['preset']} --fresh"

    def figures(self):
        """(number, name, caption, endings of the files that are there) of each figure."""
        for number, drawn in enumerate(self.result["figures"], start=1):
            endings = [e for e in ("png", "svg", "csv") if (self.folder / f"{drawn['name']}.{e}").is_file()]
            yield number, drawn["name"], drawn["caption"], endings


@dataclass(frozen=True)
class Shown:
    """All that the pages are made from."""

    results: Path
    books: dict  # {notebook: Book}, in the catalogue's order
    items: list  # every judged item, in the order of claims.yaml
    waiting: list  # notebooks without a result that counts
    documents: dict = field(default_factory=dict)  # {key: title} of the documents that have items or notebooks

    def of(self, document):
        """The items of one document."""
        return [i for i in self.items if i["id"].startswith(f"{document}/")]

    def books_of(self, document):
        """The notebooks of one document."""
        return [b for b in self.books.values() if b.document == document]


def gather(results):
    """Read what there is to show below a results folder."""
    done = index.counted(results)
    books = {n: Book(n, folder, result) for n, (folder, result) in done.items() if _rendered(folder)}
    known = claims.load()
    behind = backing.of(known)
    items = [_item(item, known[item["id"]], behind[item["id"]]) for item in index.judged(results, done)]
    waiting = [n for n in catalogue.names() if n not in books]
    keys = {i["id"].partition("/")[0] for i in items} | {n.partition("/")[0] for n in books}
    documents = {k: claims.DOCUMENTS.get(k, k) for k in dict.fromkeys([*claims.DOCUMENTS, *sorted(keys)]) if k in keys}
    items.sort(key=lambda item: list(documents).index(item["document"]))
    return Shown(Path(results), books, items, waiting, documents)


def _rendered(folder):
    return (folder / "notebook.ipynb").is_file()


def _item(item, claim, behind):
    """A judged item with all fields, its numbers as they are shown, and the tests behind it."""
    item = {"spread": None, "agrees": None, "reason": None, "changed": {}, "surprise": False, "expected": "", **item}
    printed = number(claim.paper, digits=claim.printed_digits)
    got = tables.got(item, claim.printed_digits).replace(" ± ", " ±\u00a0")
    return {**item, "document": claim.document, "printed": printed, "shown": got, "behind": behind}


def number(value, *, digits=None):
    """A value as text: a printed number with its printed digits, any other with six; nothing for nothing."""
    if isinstance(value, float) and math.isfinite(value) and digits is not None and (value == 0 or abs(value) >= 1e-4):
        return f"{value:.{max(digits, 0)}f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(number, value))
    if isinstance(value, dict):
        return ", ".join(f"{k}: {number(v)}" for k, v in value.items())
    return tables.show(value)


def counts(items):
    """{verdict: how many}, zeros included."""
    return {v: sum(i["verdict"] == v for i in items) for v in VERDICTS}


def reading(item):
    """What stands behind the verdict's word: direction, reason, what was changed, and any surprise."""
    words = []
    if item["verdict"] == "trend":
        changed = ", ".join(f"`{n}`: {number(c['paper'])} → {number(c['here'])}" for n, c in item["changed"].items())
        words.append(f"{'agrees' if item['agrees'] else 'does not agree'}; changed here: {changed}")
    if item["verdict"] == "not tried":
        words.append(str(item["reason"]))
    if item["surprise"]:
        words.append(f"expected: {item['expected']}")
    return "; ".join(words)


def slug(verdict):
    """A verdict as one word, for addresses and classes."""
    return verdict.replace(" ", "-")


def chip(verdict, count=None):
    """A verdict as a worded, signed, coloured chip."""
    sign, meaning = VERDICTS[verdict]
    number_ = "" if count is None else f' <b class="count">{count}</b>'
    return (
        f'<span class="verdict verdict-{slug(verdict)}" title="{html.escape(meaning)}">'
        f'<span aria-hidden="true">{sign}</span> {verdict}{number_}</span>'
    )


def direction(item):
    """Behind a chip: whether a trend agrees; nothing for any other verdict."""
    return tables.verdict(item).removeprefix(item["verdict"])


def trends(items):
    """Behind the chips of several items: how many trends agree; nothing where there is none."""
    return f" trends: {claims.directions(items)}" if any(i["verdict"] == "trend" for i in items) else ""


_MARKS = re.compile(r"``?(?P<code>[^`]+)``?|\$(?P<math>[^$\s](?:[^$]*[^$\s])?)\$(?!\d)|\*\*(?P<strong>[^*]+)\*\*")


@functools.lru_cache(maxsize=4096)
def inline(text):
    """Text of ours as HTML: ``code``, $math$, **strong** and e^(−ε) are set, all else is escaped."""

    def mark(match):
        if match["code"]:
            return f"<code>{html.escape(match['code'], quote=False)}</code>"
        if match["math"]:
            return rf'<span class="math notranslate nohighlight">\({html.escape(match["math"], quote=False)}\)</span>'
        return f"<strong>{formulas.text_to_html(match['strong'])}</strong>"

    parts, end = [], 0
    for match in _MARKS.finditer(text):
        parts += [formulas.text_to_html(text[end : match.start()]), mark(match)]
        end = match.end()
    return re.sub(r"[ \t\n]+", " ", "".join([*parts, formulas.text_to_html(text[end:])])).strip()


def attribute(text):
    """Text for an HTML attribute, on one line."""
    return html.escape(" ".join(str(text).split()))


def raw(text):
    """HTML inside a MyST page."""
    return f"``````{{raw}} html\n{text}\n``````"
