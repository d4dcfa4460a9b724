"""Executed notebooks as pages: a card that says what was run, figures with real captions, links that lead somewhere."""

from __future__ import annotations

import html
import json
import re
import shutil

import nbformat

from privrob.suite import tables
from privrob.suite.files import read_text
from privrob.suite.site_parts import gather

KEPT = (".png", ".svg", ".csv", ".json", ".ipynb")
_LINK = re.compile(r"(?<!!)\[(?P<label>[^\]]+)\]\((?P<target>[^)\s#]+\.ipynb)(?P<anchor>#[^)]*)?\)")


def copy_files(book, target):
    """Put what the run left beside the pages: result.json, rows, figures and the executed notebook."""
    target.mkdir(parents=True)
    for path in sorted(book.folder.iterdir()):
        if path.is_file() and path.suffix in KEPT and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)


def source_text(book, shown):
    """The notebook that Sphinx reads: the executed one, dressed for the page."""
    node = nbformat.reads(read_text(book.folder / "notebook.ipynb"), as_version=4)
    node = nbformat.from_dict(json.loads(json.dumps(node)))
    _add_card(node, book)
    figures = list(book.figures())
    for cell in node.cells:
        if cell.cell_type == "markdown":
            cell.source = _links(cell.source, book, shown)
        elif cell.cell_type == "code":
            _caption(cell, figures, book)
    return json.dumps(node, sort_keys=True, ensure_ascii=False, indent=1)


def _add_card(node, book):
    """Put the card under the title; a notebook that starts without one gets its title from the result."""
    first = node.cells[0] if node.cells and node.cells[0].cell_type == "markdown" else None
    match = re.match(r"\s*# [^\n]*\n?", first.source) if first else None
    if match:
        head, rest = match[0].strip(), first.source[match.end() :]
        first.source = f"{head}\n\n{gather.raw(card(book))}\n\n{rest}".rstrip()
    else:
        title = f"# {book.result['title']}\n\n{gather.raw(card(book))}"
        node.cells.insert(0, nbformat.v4.new_markdown_cell(title, id="title"))


def card(book):
    """What was run, on what, from what, and how to run it again."""
    result = book.result
    root = "../" + book.files
    found = gather.counts(result["claims"])
    chips = " ".join(gather.chip(v, n) for v, n in found.items() if n)
    verdicts = f'<a href="../claims.html#nb={book.name}">{chips}</a>' if chips else "judges no numbered item"
    verdicts += gather.trends(result["claims"])
    facts = {
        "Preset": f"<code>{html.escape(result['preset'])}</code>",
        "Commit": f"<code>{html.escape(result['commit'])}</code>",
        "Computed on": html.escape(result["device"]["name"]),
        "Took": tables.took(result["run"]),
        "Data": html.escape(", ".join(d["label"] for d in result["data"]) or "none needed"),
        "Seed": str(result["seed"]),
    }
    stale = sum(s["stale"] for s in result["sweeps"])
    if stale:
        cells = sum(s["cells"] for s in result["sweeps"])
        others = ", ".join(sorted({c for s in result["sweeps"] for c in s["commits"]}))
        facts["Kept rows"] = f"{stale} of {tables.count(cells, 'cell')} come from other code ({html.escape(others)})"
    rows = " ".join(f"<div><dt>{name}</dt> <dd>{value}</dd></div>" for name, value in facts.items())
    plain = [n for n in ("rows.csv", "result.json", "notebook.ipynb") if (book.folder / n).is_file()]
    links = [f'<a href="{root}/{n}" download>{n}</a>' for n in plain]
    for count, name, _, endings in book.figures():
        kinds = ", ".join(f'<a href="{root}/{name}.{e}">{e}</a>' for e in endings)
        links.append(f"Figure {count} ({kinds})")
    return (
        f'<div class="run-card"><p class="run-verdicts">{verdicts}</p> <dl>{rows}</dl> '
        f'<p class="run-files"><b>Files</b> {" · ".join(links)}</p> '
        f'<p class="run-again"><b>Run it again</b> <code>{html.escape(book.command)}</code></p> '
        f"{_details(result)}</div>"
    )


def _details(result):
    """Settings and versions, folded away."""
    changed = result["changed_parameters"]
    pairs = [(n, v, n in changed) for n, v in result["parameters"].items()]
    shown = ", ".join(f"<code>{html.escape(f'{n} = {v!r}')}</code>{'*' if new else ''}" for n, v, new in pairs)
    note = " (* not the notebook's default)" if changed else ""
    versions = ", ".join(f"{html.escape(n)} {html.escape(v)}" for n, v in sorted(result["versions"].items()))
    return (
        f"<details><summary>Settings and versions</summary> <p><b>Settings</b> {shown or 'none'}{note}.</p> "
        f"<p><b>Versions</b> {versions}.</p></details>"
    )


def _caption(cell, figures, book):
    """Turn the printed line under a figure into its caption, with links to the files behind it."""
    described, outputs = [], []
    for output in cell.outputs:
        if output.output_type != "stream" or output.name != "stdout":
            outputs.append(output)
            continue
        for count, name, caption, endings in figures:
            line = f"Figure {count}. {caption}\n"
            if line not in output.text:
                continue
            output.text = output.text.replace(line, "", 1)
            kinds = " · ".join(f'<a href="../{book.files}/{name}.{e}">{e}</a>' for e in endings)
            text = (
                f'<p class="figure-caption" id="figure-{gather.attribute(name)}"><b>Figure {count}.</b> '
                f'{gather.inline(caption)} <span class="figure-files">{kinds}</span></p>'
            )
            outputs.append(nbformat.v4.new_output("display_data", {"text/html": text}))
            described.append(caption)
        if output.text.strip():
            outputs.append(output)
    cell.outputs = outputs
    if described:
        cell.metadata["mystnb"] = {"image": {"alt": " ".join(" ".join(described).split())}}


def _links(source, book, shown):
    """Links to notebooks that have no page become plain words."""

    def change(match):
        target = match["target"]
        if "://" in target:
            return match[0]
        parts = [*book.document.split("/")]
        for part in target.split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in (".", ""):
                parts.append(part)
        name = "/".join(parts).removesuffix(".ipynb")
        return match[0] if name in shown.books else f"{match['label']} (not run yet)"

    return _LINK.sub(change, source)
