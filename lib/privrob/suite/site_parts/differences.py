"""The pages "Where we differ, and why" and "Notes to the authors", from the same findings as the Markdown files."""

from __future__ import annotations

import html

from privrob.suite import findings
from privrob.suite.site_parts import gather


def every(shown):
    """{file name: text} of the pages; none where there are no findings."""
    found = findings.load()
    return {"findings.md": _page(shown, found), "letters.md": _letters(shown)} if found else {}


def entries():
    """Lines for the navigation."""
    return [f"{findings.TITLE} <findings>", "Notes to the authors <letters>"] if findings.load() else []


def teaser():
    """Parts of the front page that lead here."""
    found = findings.load()
    if not found:
        return []
    lines = [f"- **{f.document}**: [{_flat(f.title)}](findings.md#{f.id.replace('_', '-')})" for f in found[:6]]
    return [
        f"## {findings.TITLE}",
        "\n".join(lines),
        f"[All {len(found)} findings](findings.md), each with its evidence.",
    ]


def _page(shown, found):
    parts = [
        f"# {findings.TITLE}",
        f"{findings.INTRODUCTION} [Notes to the authors](letters.md) say the same by document.",
    ]
    judged = {item["id"]: item for item in shown.items}
    for finding in found:
        mends = f"**What mends it.** {finding.repair.strip()}" if finding.says_error else finding.repair.strip()
        parts += [
            f"({finding.id.replace('_', '-')})=\n## {finding.document}: {_flat(finding.title)}",
            gather.raw(f'<p class="quiet">{html.escape(findings.KINDS[finding.kind])}.</p>'),
            _safe(finding.text),
            _safe(mends),
            gather.raw(f'<ul class="evidence">{" ".join(_item(judged[i], shown) for i in finding.claims)}</ul>'),
        ]
    return "\n\n".join(parts) + "\n"


def _item(item, shown):
    book = item["notebook"]
    link = f'<a href="{html.escape(book)}.html">notebook</a>' if book in shown.books else "notebook to come"
    got = f" — we got {gather.inline(item['shown'])}" if item["shown"] else ""
    return (
        f'<li>{gather.chip(item["verdict"])}{gather.direction(item)} <a href="claims.html#{html.escape(item["id"])}">'
        f"{gather.inline(item['where'])}</a>: {gather.inline(item['text'])}{got} ({link})</li>"
    )


def _letters(shown):
    """The letters as they stand in LETTERS.md, with links to pages in place of links to files."""
    judged = {i["id"]: i for i in shown.items}
    text = findings.letters(judged, shown.results)
    order = {f"{findings.PAGE}#{findings.anchor(n, f)}": f for n, f in enumerate(findings.load(), 1)}
    for target, finding in order.items():
        text = text.replace(f"({target})", f"(findings.md#{finding.id.replace('_', '-')})")
    text = text.replace(f"({findings.PAGE})", "(findings.md)")
    for book in shown.books.values():
        folder = book.folder.relative_to(shown.results).as_posix()
        text = text.replace(f"({folder}/notebook.ipynb)", f"({book.name}.ipynb)")
    return _safe(text)


def _safe(text):
    """Our plain text as Markdown: signs that would be read as formulas or HTML are escaped."""
    return text.strip().replace("<", "&lt;").replace("$", r"\$")


def _flat(title):
    return _safe(title.replace("[", "(").replace("]", ")"))
