"""``results/INDEX.md``, ``FINDINGS.md`` and the table in the README: generated from results, never written by hand.

For each notebook the ``paper`` run counts before the ``laptop`` run; other presets and studies never do.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from pathlib import Path

from privrob.suite import backing, catalogue, claims, findings, record, tables
from privrob.suite.files import read_text, write_text
from privrob.suite.sources import repository

COUNTED = ("paper", "laptop")
WAITING = "Not judged yet"
BENCHMARKS = "BENCHMARKS.md"  # what ./run_all.sh bench writes beside INDEX.md
MARKERS = ("<!-- verdicts: generated, do not edit -->", "<!-- end of verdicts -->")


def counted(results):
    """The result that counts for each notebook: {notebook: (folder, result)}, in the catalogue's order."""
    found = record.find(results)
    chosen = {}
    for name in catalogue.names():
        for preset in COUNTED:
            if (name, preset) not in found:
                continue
            folder = found[name, preset]
            try:
                chosen[name] = (folder, record.read(folder, check_files=True))
                break
            except record.BadResult as error:
                text = f"{folder.relative_to(results)} does not count: {error}; run it again, or remove it"
                warnings.warn(text, stacklevel=2)
    return chosen


def judged(results, done=None):
    """All claims with their verdicts, in the order of claims.yaml; an item without a result stands as ``open``.

    Args: done — what ``counted`` gave, where it was asked before: reading and checking all results takes seconds.
    """
    have = {}
    for name, (folder, result) in (counted(results) if done is None else done).items():
        for item in result["claims"]:
            have[item["id"]] = {
                **item,
                "notebook": name,
                "preset": result["preset"],
                "commit": result["commit"],
                "folder": folder,
            }
    rows = []
    for claim in claims.load().values():
        missing = {
            "id": claim.id,
            "where": claim.where,
            "text": claim.text,
            "paper": claim.paper,
            "verdict": "open",
            "note": "",
        }
        rows.append(
            have.get(claim.id, {**missing, "notebook": claim.notebook, "preset": "", "commit": "", "got": None})
        )
    return rows


def summary_table(every, done, *, link="results/"):
    """One row a document, as Markdown: how items came out. From what ``judged`` and ``counted`` gave."""
    lines = [
        "| document | items | hold or match | corrected | differ or fail | tried as a trend | not tried or open "
        "| notebooks |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, title in claims.DOCUMENTS.items():
        mine = [c for c in every if c["id"].startswith(f"{key}/")]
        if not mine:
            continue
        n = {v: sum(c["verdict"] == v for c in mine) for v in (*claims.VERDICTS, "open")}
        books = link_texts(b for b in done if b.startswith(f"{key}/"))
        links = ", ".join(f"[{text}]({link}{b}/{done[b][1]['preset']}/notebook.ipynb)" for b, text in books.items())
        cells = [
            n["holds"] + n["matches"],
            n["corrected"],
            n["differs"] + n["fails"],
            f"{n['trend']} ({claims.directions(mine)})" if n["trend"] else 0,
            n["not tried"] + n["open"],
        ]
        lines.append(f"| **{key}**: {title} | {len(mine)} | {' | '.join(map(str, cells))} | {links} |")
    return "\n".join(lines)


def section(notebook):
    """The section that a notebook's name stands for: ``sec2_1_mechanisms`` is §2.1, ``appendix_b2_table_2`` is B.2."""
    name = notebook.partition("/")[2]
    if numbers := re.match(r"sec((?:\d+_)*\d+)", name):
        return f"§{numbers[1].replace('_', '.')}"
    appendix = re.match(r"appendix_([a-z])(\d+)_", name)
    return f"{appendix[1].upper()}.{appendix[2]}" if appendix else notebook


def link_texts(notebooks):
    """{notebook: text of a link to it}: its section, and where several have the same one, the rest of its name."""
    sections = {b: section(b) for b in notebooks}
    count = Counter(sections.values())
    return {b: s if count[s] == 1 else f"{s} {_subject(b)}".rstrip() for b, s in sections.items()}


def _subject(notebook):
    """A notebook's name without its section: ``sec5_1_table_1`` is about ``table 1``."""
    name = notebook.partition("/")[2]
    return re.sub(r"^(sec\d+(_\d+)*|appendix_[a-z]\d*)_?", "", name).replace("_", " ")


MEANINGS = {
    "holds": "a statement that an independent computation confirms",
    "matches": "a printed number that we find again, to half its last digit and two standard errors",
    "corrected": "wrong as printed; what we use instead holds",
    "differs": "a printed number that we do not find",
    "fails": "wrong as printed, and no repair was found",
    "trend": "only the direction was tried, because the preset or the data set changed the scale",
    "not tried": "needs data or hardware that was not there, is not in the text, or was left out by a smaller preset",
    "open": "its notebook has no result yet",
}
SHORTS = {
    "DP": "differential privacy, with its ε and δ",
    "RDP, f-DP, GDP": "the same in Rényi divergences, in trade-off functions, as the noise μ of a Gaussian",
    "PTR": "propose, test, release",
    "SGD, DP-SGD, TSGD": "stochastic gradient descent, plain, private, and with trimmed gradients",
    "(i), (ii), (iii)": "two methods at one ε: the printed noise; equal numbers of steps; each in its best number",
    "`laptop`, `paper`": "presets: what two cores can do, and the notebooks' defaults",
    "§, B.2": "notebooks, numbered after the documents' sections and appendices where they can be",
    "*a ± b*": "a value and its standard error",
    "*x/y reproduced*": "x of the y items that were judged hold or match",
}


def legend():
    """What the verdicts and short words mean, as two lists."""
    verdicts = [f"* **{word}**: {meaning}." for word, meaning in MEANINGS.items()]
    shorts = [f"* {word}: {meaning}." for word, meaning in SHORTS.items()]
    return "\n".join(["How to read a verdict:", "", *verdicts, "", "Short words:", "", *shorts])


def index_text(results, done=None):
    """The whole of INDEX.md. ``done`` as in ``judged``."""
    done, known = counted(results) if done is None else done, claims.load()
    every = judged(results, done)
    parts = [
        "# What was reproduced",
        "",
        "Generated by `./run_all.sh` from the results in this folder. Each verdict is decided by one rule from what",
        "the notebook got and what the document prints: `data/claims.yaml` has the items, `data/README.md` the rules.",
        "",
        jumps(every, done),
        "",
        legend(),
        "",
        summary_table(every, done, link=""),
        "",
        "An item *tried as a trend* counts neither for nor against the document. *Backed by* names the notebook, the",
        "preset and the tests that check the same item; a test in brackets checks the code that the notebook computes",
        "with, or the same section.",
        "",
        f"What matters most, in plain words: [{findings.TITLE}]({findings.PAGE}).",
    ]
    if (Path(results) / BENCHMARKS).is_file():
        parts += ["", f"How fast it is, beside other libraries: [{BENCHMARKS}]({BENCHMARKS})."]
    behind = backing.of(known)
    digits = {i: c.printed_digits for i, c in known.items()}
    begun = set()
    for name, (folder, result) in done.items():
        if (key := name.partition("/")[0]) not in begun:
            begun.add(key)
            parts += ["", f"## {_heading(key)}", "", f"{claims.DOCUMENTS[key]}: {_sections(key, done)}."]
        where = folder.relative_to(results).as_posix()
        made = f"Commit {result['commit']}, {result['device']['name']}, {tables.took(result['run'])}"
        data = ", ".join(d["label"] for d in result["data"]) or "none needed"
        parts += [
            "",
            f"### [{result['title']}]({where}/notebook.ipynb)",
            "",
            f"`{name}`, preset `{result['preset']}`: {claims.tally(result['claims'])}. {made}. Data: {data}.",
            "",
            tables.verdicts(
                [c for c in every if c["notebook"] == name],
                digits,
                more=("backed by", lambda c, where=where: _backed(c, where, behind[c["id"]])),
            ),
        ]
    waiting = [c for c in every if c["verdict"] == "open"]
    if waiting:
        parts += ["", f"## {WAITING}", "", "| item | the document says | notebook |", "|---|---|---|"]
        parts += [f"| {c['where']} | {c['text']} | `{c['notebook']}` |".replace("\n", " ") for c in waiting]
    return "\n".join(parts) + "\n"


def jumps(every, done):
    """A line of links to the page's own parts, and where the links of the table below lead."""
    documents = dict.fromkeys(name.partition("/")[0] for name in done)
    links = [f"[{key}](#{findings.slug(_heading(key))})" for key in documents]
    links += [f"[{WAITING.lower()}](#{findings.slug(WAITING)})"] * any(c["verdict"] == "open" for c in every)
    go = f"**On this page**, every item with its verdict: {' · '.join(links)}. " if links else ""
    return f"{go}Links in the table below lead to the notebooks."


def _heading(key):
    return f"Items of {key}"


def _sections(key, done):
    """Links to the parts of a document on this page, one a notebook."""
    texts = link_texts(name for name in done if name.startswith(f"{key}/"))
    return ", ".join(f"[{text}](#{findings.slug(done[name][1]['title'])})" for name, text in texts.items())


def _backed(item, where, behind):
    """The notebook, the preset and the tests behind a verdict, as links."""
    links = ", ".join(f"[{Path(path).stem}](../{path})" for path in behind.files())
    links = links if behind.how == "item" or not links else f"({links})"
    return "; ".join([f"[notebook]({where}/notebook.ipynb), {item['preset']}", *([links] if links else [])])


def readme_text(text, results, done=None):
    """The README with its generated table brought up to date. ``done`` as in ``judged``."""
    start, end = map(re.escape, MARKERS)
    done = counted(results) if done is None else done
    block = f"{MARKERS[0]}\n{summary_table(judged(results, done), done)}\n{MARKERS[1]}"
    return re.sub(f"{start}.*?{end}", lambda _: block, text, flags=re.S)


def refresh(results, *, readme=None):
    """Write INDEX.md and FINDINGS.md (and the README's table); returns the names of the files that changed."""
    changed = []
    done = counted(results)
    wanted = pages(results, done)
    if readme and Path(readme).is_file():
        wanted[Path(readme)] = readme_text(read_text(readme), results, done)
    for path, text in wanted.items():
        if not path.is_file() or read_text(path) != text:
            write_text(path, text)
            changed.append(path.name)
    return changed


def pages(results, done=None):
    """{path: text} of the generated pages in a folder of results. ``done`` as in ``judged``."""
    done = counted(results) if done is None else done
    found = {Path(results) / "INDEX.md": index_text(results, done)}
    if findings.load():
        every = {c["id"]: c for c in judged(results, done)}
        found[Path(results) / findings.PAGE] = findings.page(every, results)
        found[Path(results) / findings.LETTERS] = findings.letters(every, results)
    return found


def outdated(results):
    """Names of generated files that are not what the results say."""
    readme, done = repository() / "README.md", counted(results)
    late = [f"results/{path.name}" for path, text in pages(results, done).items() if not _is(path, text)]
    text = read_text(readme) if readme.is_file() else ""
    return late + ([] if _is(readme, readme_text(text, results, done)) else ["README.md"])


def _is(path, text):
    return path.is_file() and read_text(path) == text
