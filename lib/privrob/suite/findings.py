"""Where we differ from the documents, and why: findings in plain words, each with the verdicts that it stands on.

``data/findings.yaml`` holds the texts; the pages here are made from it and from the stored results, so that the
evidence shown beside a finding is always that of the last run. A test keeps texts and evidence together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from privrob.suite import claims as claims_
from privrob.suite import tables
from privrob.suite.files import read_text
from privrob.suite.sources import repository

TITLE, PAGE, LETTERS = "Where we differ, and why", "FINDINGS.md", "LETTERS.md"
KINDS = {
    "stated privacy not reached": "A stated privacy that the mechanism does not have",
    "figure from a slip in a program": "A figure that a mistake in a program brings about",
    "comparison not alike": "A comparison of unlike things, or one whose terms are not said",
    "broken formula": "A formula or statement that does not hold as printed",
    "printed numbers": "Numbers that cannot be, or that contradict one another",
    "holds better": "What holds, and often holds better than stated",
}
INTRODUCTION = (
    "The documents are careful work; the table in the README counts for each what holds as printed and what does not. "
    "Here is what a reader should know before building on them: what does not hold as printed, what a figure or a "
    "comparison rests on, and what holds better than stated, in this order: privacy, figures, comparisons, formulas, "
    "printed numbers, and what holds. Each finding names what mends it, and its evidence is one "
    "click away."
)
ERRORS = ("corrected", "differs", "fails")
_HEAD = ("item", "the document says", "printed", "we got", "verdict", "evidence")


class FindingError(ValueError):
    """An entry of findings.yaml that cannot be shown."""


@dataclass(frozen=True)
class Finding:
    """One finding: what it is about, in plain words, and the ids of the claims that it stands on."""

    id: str
    document: str
    kind: str
    title: str
    text: str
    repair: str
    claims: tuple

    @property
    def says_error(self):
        """True where the finding says that something in the document is not right."""
        return self.kind != "holds better"


def load(path=None):
    """All findings by kind, then as in the file; none without one. Refuses what cannot be shown."""
    path = Path(path or repository() / "data" / "findings.yaml")
    if not path.is_file():
        return []
    known, found = claims_.load(), []
    for entry in yaml.safe_load(read_text(path)) or []:
        name = entry.get("id") if isinstance(entry, dict) else entry
        if not isinstance(entry, dict) or set(entry) != set(Finding.__dataclass_fields__):
            fields = ", ".join(Finding.__dataclass_fields__)
            raise FindingError(f"findings.yaml, {name}: an entry has exactly the fields {fields}")
        finding = Finding(**{**entry, "claims": tuple(entry["claims"])})
        if finding.kind not in KINDS:
            raise FindingError(f"findings.yaml, {name}: kind must be one of {', '.join(KINDS)}, got {finding.kind!r}")
        if finding.document not in claims_.DOCUMENTS:
            documents = ", ".join(claims_.DOCUMENTS)
            raise FindingError(f"findings.yaml, {name}: document must be one of {documents}, got {finding.document!r}")
        if unknown := [i for i in finding.claims if i not in known]:
            raise FindingError(f"findings.yaml, {name}: no such claim: {', '.join(unknown)}; ids are in claims.yaml")
        if strange := [i for i in finding.claims if known[i].document != finding.document]:
            raise FindingError(f"findings.yaml, {name}: claims of another document: {', '.join(strange)}")
        if not finding.claims or finding.id in {f.id for f in found}:
            raise FindingError(f"findings.yaml, {name}: needs claims, and an id of its own")
        found.append(finding)
    return sorted(found, key=lambda f: list(KINDS).index(f.kind))


def unfounded(finding, judged):
    """Why a finding has no ground to stand on in the judged items ({id: item}), or an empty text.

    An error must rest on at least one item that is judged corrected, differs or fails, and none may be unjudged.
    """
    verdicts = {i: judged[i]["verdict"] for i in finding.claims}
    if waiting := [i for i, v in verdicts.items() if v in ("open", "not tried")]:
        return f"{finding.id} cites what is not judged: {', '.join(waiting)}"
    if finding.says_error and not any(v in ERRORS for v in verdicts.values()):
        return f"{finding.id} speaks of an error, and no item that it cites is judged {', '.join(ERRORS)}"
    if not finding.says_error and all(v in ("differs", "fails") for v in verdicts.values()):
        return f"{finding.id} says that something holds, and all that it cites differs or fails"
    return ""


def page(judged, results):
    """``FINDINGS.md``: every finding with its evidence."""
    found = load()
    parts = [
        f"# {TITLE}",
        "",
        "Generated from `data/findings.yaml` and the stored results. " + INTRODUCTION,
        "",
        "[INDEX.md](INDEX.md) has every item. Where we may be wrong, the notebook shows how we got there.",
        f"[Notes to the authors]({LETTERS}) say the same by document.",
        "",
    ]
    parts += [f"{n}. [{f.document}: {plain(f.title)}](#{anchor(n, f)}) ({f.kind})" for n, f in enumerate(found, 1)]
    digits = {i: c.printed_digits for i, c in claims_.load().items()}
    for number, finding in enumerate(found, 1):
        parts += [
            "",
            f"## {heading(number, finding)}",
            "",
            f"*{claims_.DOCUMENTS[finding.document]}. {KINDS[finding.kind]}.*",
            "",
            finding.text.strip(),
            "",
            f"**What mends it.** {finding.repair.strip()}" if finding.says_error else finding.repair.strip(),
            "",
            evidence(finding, judged, results, digits),
        ]
    return "\n".join(parts) + "\n"


def heading(number, finding):
    """The heading of a finding."""
    return f"{number}. {finding.document}: {finding.title}"


def anchor(number, finding):
    """Where that heading stands, as Markdown readers make it from its words."""
    return slug(heading(number, finding))


def slug(text):
    """The anchor that Markdown readers give to a heading of these words."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def plain(title):
    """A title inside a link."""
    return title.replace("[", "(").replace("]", ")")


def evidence(finding, judged, results, digits):
    """The items that a finding stands on, with a link to the notebook that judged each."""
    rows = []
    for i in finding.claims:
        item = judged[i]
        folder = item.get("folder")
        link = f"[notebook]({Path(folder).relative_to(results).as_posix()}/notebook.ipynb)" if folder else "to come"
        printed = tables.value(item["paper"], digits=digits.get(i))
        rows.append(
            [tables.place(item), item["text"], printed, tables.got(item, digits.get(i)), tables.words(item), link]
        )
    return tables.table(_HEAD, rows)


# ---------------------------------------------------------------------------------------------------------- letters

_BIB = re.compile(r"@\w+\{(?P<key>\w+),(?P<body>.*?)\n\}", re.S)


def bibliography(path=None):
    """{key: {field: value}} of ``data/documents.bib``, with TeX's marks taken out."""
    path = Path(path or repository() / "data" / "documents.bib")
    found = {}
    for entry in _BIB.finditer(read_text(path)) if path.is_file() else ():
        fields = re.findall(r"^\s*(\w+) = \{?(.*?)\}?,$", entry["body"], re.M)
        found[entry["key"]] = {n: re.sub(r"[{}$]", "", v.replace(r"{\'e}", "é")) for n, v in fields}
    return found


def authors(entry):
    """Names as one addresses them: ``Jane Doe and Jack Roe``, an empty text where none are known."""
    names = [" ".join(reversed(n.split(", "))) for n in entry.get("author", "").split(" and ") if n]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def letters(judged, results):
    """``LETTERS.md``: a courteous note to the authors of each document, with all corrections."""
    known, books = claims_.load(), bibliography()
    digits = {i: c.printed_digits for i, c in known.items()}
    parts = [
        "# Notes to the authors",
        "",
        "Generated from `data/findings.yaml` and the stored results: one note for each document, to be sent with the",
        "address of a public copy before its links, and answered: a reply that shows us wrong changes the verdict.",
        f"[{TITLE}]({PAGE}) has the evidence.",
    ]
    for key in claims_.DOCUMENTS:
        mine = [f for f in load() if f.document == key]
        if mine:
            items = [i for i in judged.values() if known[i["id"]].document == key]
            parts += ["", *_letter(key, mine, items, books.get(key, {}), results, digits)]
    return "\n".join(parts) + "\n"


def _outcome(count):
    """In words how what was judged in full came out; the numbers add up."""
    parts = [f"{count['holds'] + count['matches']} hold or match as printed"]
    parts += [f"{n} hold with a change that we can name"] if (n := count["corrected"]) else []
    parts += [f"{n} differ{'s' * (n == 1)}"] if (n := count["differs"]) else []
    parts += [f"{n} fail{'s' * (n == 1)}, without a repair that we know"] if (n := count["fails"]) else []
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _yours(text):
    """A text on a document, as one says it to its authors."""
    return re.sub(r"\b([Tt])he authors' ", lambda m: "Your " if m[1] == "T" else "your ", text)


def _values(item, digits):
    """A verdict with the values that it compares."""
    found = [item["verdict"]]
    found += [f"printed {tables.value(item['paper'], digits=digits)}"] if item["paper"] is not None else []
    found += [f"we got {tables.got(item, digits)}"] if item["got"] is not None else []
    return f"{found[0]}; {', '.join(found[1:])}" if found[1:] else found[0]


def _letter(key, mine, items, book, results, digits):
    count = {v: sum(i["verdict"] == v for i in items) for v in (*claims_.VERDICTS, "open")}
    good, left, some = count["holds"] + count["matches"], count["not tried"] + count["open"], count["trend"] > 0
    title = book.get("title", claims_.DOCUMENTS[key])
    to = authors(book) or f"authors of “{title}”"
    trends = claims_.directions(items) if some else ""
    order = {f.id: n for n, f in enumerate(load(), 1)}
    lines = [
        f"## {key}: {title}",
        "",
        f"Dear {to},",
        "",
        f"we have read “{title}” closely, and tried to reproduce it. Of its {len(items)} numbered or factual items",
        f"{good + sum(count[v] for v in ERRORS)} are judged in full, each by a computation that could have come out",
        f"otherwise: {_outcome(count)}.",
        *([f"{count['trend']} more could only be compared in direction, as data or scale differ: {trends}."] * some),
        *([f"{left} {'is' if left == 1 else 'are'} not judged so far."] if left else []),
        "In the course of that we came across some points that you may wish to know of, and perhaps to correct. We",
        "state them as we find them, with what would mend them. We may have misread you; the notebooks show each step:",
        "do tell us where we are wrong.",
        "",
    ]
    errors = [f for f in mine if f.says_error]
    for number, finding in enumerate(errors, 1):
        link = f"{PAGE}#{anchor(order[finding.id], finding)}"
        lines += [f"{number}. **{finding.title}.** {finding.text.strip()} *Suggested:* {finding.repair.strip()}"]
        lines[-1] = _yours(lines[-1])
        lines += [f"   ([evidence]({link}))", ""]
    better = [f for f in mine if not f.says_error]
    if better:
        lines += ["What we were glad to find:", ""]
        lines += [_yours(f"* **{f.title}.** {f.text.strip()}") for f in better] + [""]
    wrong = [i for i in items if i["verdict"] in ERRORS]
    if wrong:
        good, bad = count["corrected"], count["differs"] + count["fails"]
        both = [f"{good} that hold{'s' * (good == 1)} with a change"] * (good > 0)
        both += [f"{bad} that differs or fails" if bad == 1 else f"{bad} that differ or fail"] * (bad > 0)
        every = f"All {len(wrong)} items that are" if len(wrong) > 1 else "The one item that is"
        lines += [f"{every} not as printed, {' and '.join(both)}, in the order of our list:", ""]
        for item in wrong:
            folder = item.get("folder")
            where = f"{Path(folder).relative_to(results).as_posix()}/notebook.ipynb" if folder else ""
            place = f"[{item['where']}]({where})" if where else item["where"]
            note = _yours(f" — {item['note']}") if item["note"] else ""
            lines.append(f"* {place} ({_values(item, digits[item['id']])}): {item['text']}{note}".replace("\n", " "))
        lines.append("")
    lines += [
        f"Everything can be run again with `./run_all.sh '{key}/*'`. Thank you for a document that was worth the work.",
        "",
        "With kind regards, the privrob authors",
    ]
    return lines
