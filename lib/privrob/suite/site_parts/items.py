"""The page of all items: one table, narrowed down by a script on the page; without the script it is all there."""

from __future__ import annotations

import html
import re

from privrob.suite import tables
from privrob.suite.site_parts import gather, listing

HEADS = ("item", "the document says", "printed", "we got", "verdict", "notebook and tests", "note")
HOW = {"section": "of the same section", "code": "of the notebook's code"}


def page(shown, *, tests=True):
    """The page's text, MyST. ``tests`` — whether the test files are among the pages, so that they can be linked."""
    head = "\n".join(f'<th scope="col">{h}</th>' for h in HEADS)
    body = "\n".join(_row(shown, item, tests) for item in shown.items)
    table = (
        f'<div class="items-box"><table class="items" id="items"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
    return f"# All items\n\n{gather.raw(_form(shown) + table)}\n"


def _form(shown):
    """The fields that the script on the page reads; hidden where there is no script."""
    documents = "".join(f' <option value="{k}">{k} — {html.escape(t)}</option>' for k, t in shown.documents.items())
    boxes = " ".join(
        f'<label><input type="checkbox" name="verdict" value="{gather.slug(v)}">{gather.chip(v, n)}</label>'
        for v, n in gather.counts(shown.items).items()
        if n
    )
    return (
        '<form id="items-filter" class="items-filter" role="search" hidden><div class="items-fields">'
        f'<label>Document <select name="doc"><option value="">all</option>{documents}</select></label> '
        '<label>Words <input type="search" name="words" autocomplete="off"'  # not q: Sphinx's search fills every q
        ' placeholder="theorem, notebook, note …"></label>'
        '<button type="reset">Show all</button></div> '
        f'<fieldset><legend>Verdict</legend>{boxes}</fieldset> <p id="items-count" role="status"></p></form> '
    )


def _row(shown, item, tests):
    anchor, notebook = html.escape(item["id"]), html.escape(item["notebook"])
    cells = (
        f'{item["document"]}<br> <a class="item-where" href="#{anchor}">{gather.inline(tables.place(item))}</a> '
        f'<span class="item-id">{_breakable(item["id"])}</span>',
        gather.inline(item["text"]),
        _value(item["printed"]),
        _value(item["shown"]),
        f"{gather.chip(item['verdict'])} {_small(gather.reading(item))}",
        f"{_from(shown, item)} {_tests(item['behind'], tests)}",
        gather.inline(item["note"] or ""),
    )
    pairs = zip(HEADS, cells, strict=True)
    body = "\n".join(f'<td data-head="{h}"{"" if c else " class=empty"}>{c}</td>' for h, c in pairs)
    marks = f'data-doc="{item["document"]}" data-verdict="{gather.slug(item["verdict"])}" data-nb="{notebook}"'
    return f'<tr id="{anchor}" {marks}>{body}</tr>'


def _from(shown, item):
    """The notebook that judged the item, or will."""
    name = _breakable(item["notebook"])
    if item["notebook"] not in shown.books:
        return f"{name} {_small('to come')}"
    preset = _small(f"preset {item['preset']}")
    return f'<a href="{html.escape(item["notebook"])}.html">{name}</a> {preset}'


def _tests(behind, linked):
    """The test files behind an item, each at its first test that names it."""
    parts = []
    for path in behind.files():
        first = next(t for t in behind.tests if t.path == path)
        name = html.escape(path.rpartition("/")[2].removesuffix(".py"))
        title = html.escape(f"{path}: {first.name}")
        link = f'<a href="{listing.test_page(path)}#L-{first.line}" title="{title}">{_breakable(name)}</a>'
        parts.append(link if linked else _breakable(name))
    how = f" ({HOW[behind.how]})" if behind.how in HOW else ""
    return f'<span class="reading">{"tests" if parts[1:] else "test"}{how}: {", ".join(parts)}</span>' if parts else ""


def _value(text):
    """A number stays whole, its standard error stands below it; longer texts may break."""
    shown = gather.inline(text)
    return f'<span class="value">{shown.replace(" ±", " <br>±")}</span>' if 0 < len(text) <= 28 else shown


def _small(text):
    return f'<span class="reading">{gather.inline(text)}</span>' if text else ""


def _breakable(name):
    """A name that may break after a stroke."""
    return re.sub(r"([/_])", r"\1<wbr>", html.escape(name))
