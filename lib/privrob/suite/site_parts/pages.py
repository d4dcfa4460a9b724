"""The pages that are not notebooks: front page, one page a document, all figures. Text in, text out."""

from __future__ import annotations

import html
import re
import struct

from privrob.suite import claims, files, index, plan_arguments, tables
from privrob.suite.site_parts import differences, gather, items
from privrob.suite.sources import repository

RERUN = {
    "./run_all.sh": "everything, in up to two hours; what is up to date is not run again",
    "./run_all.sh '{document}/*' --preset smoke": "some notebooks, in up to a minute each, on synthetic data",
    "./run_all.sh {notebook} -p {name} {value}": "one notebook with a changed parameter: a study of yours",
}
STUDY = ("./run_all.sh --study {study}", "a study that is kept in a file; the README, under Change, tells more of them")
PLAN = "PLAN.md"  # what ./run_all.sh plan said about the preset paper
PREFERRED = ("noise_multiplier", "epsilon", "num_steps", "num_epochs", "epochs", "num_trials", "scale")


def every(shown, *, api=True):
    """{file name: text} of the pages, MyST throughout."""
    found = {"index.md": front(shown, api=api), "claims.md": items.page(shown, tests=api), "cluster.md": cluster(shown)}
    found |= {"figures.md": figures_page(shown), **differences.every(shown)}
    if (speed := shown.results / index.BENCHMARKS).is_file():
        found["benchmarks.md"] = files.read_text(speed)
    if (cost := shown.results / PLAN).is_file():
        found["plan.md"] = files.read_text(cost)
    for key in shown.documents:
        found[f"{key}/index.md"] = document_page(shown, key)
    return found


def toctree(entries, *, caption=""):
    """A hidden table of contents: it only fills the navigation."""
    head = f":caption: {caption}\n" if caption else ""
    return "```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(entries) + "\n```"


# ------------------------------------------------------------------------------------------------------- front page


def front(shown, *, api):
    """What the suite is, what came out, figures to go in by, and how to run it again."""
    found = gather.counts(shown.items)
    groups = {
        "hold or match": ("holds", "matches"),
        "were corrected": ("corrected",),
        "differ or fail": ("differs", "fails"),
        "only a trend": ("trend",),
        "not tried, or open": ("not tried", "open"),
    }
    tiles = f'<a class="tile" href="claims.html"><b>{len(shown.items)}</b> items in all</a>'
    for words, verdicts in groups.items():
        slugs = [gather.slug(v) for v in verdicts]
        count, asked = sum(found[v] for v in verdicts), "+".join(slugs)
        tiles += f' <a class="tile tile-{slugs[0]}" href="claims.html#verdict={asked}"><b>{count}</b> {words}</a>'
    done = {name: (book.folder, book.result) for name, book in shown.books.items()}
    table = index.summary_table(shown.items, done, link="")
    table = re.sub(r"\(([^()\s]+)/(?:paper|laptop)/notebook\.ipynb\)", r"(\1.ipynb)", table)
    missing = [key for key in claims.DOCUMENTS if not shown.books_of(key)]
    to_come = f" Nothing is run yet of {', '.join(missing)}." if missing else ""
    documents = [f"{_short(title, key)} <{key}/index>" for key, title in shown.documents.items()]
    across = [*differences.entries(), "All items <claims>", "All figures <figures>"]
    across += ["On a cluster <cluster>"]
    across += ["What the preset paper costs <plan>"] if (shown.results / PLAN).is_file() else []
    across += ["Benchmarks <benchmarks>"] if (shown.results / index.BENCHMARKS).is_file() else []
    parts = [
        "# privrob",
        gather.raw(
            '<p class="lead">Five documents on private <em>and</em> robust machine learning, reproduced from their '
            "text: theorems are checked by independent computations, printed numbers have a verdict, and each study "
            f'can be run again, or changed, with one command.{to_come}</p><p class="tiles">{tiles}</p>'
        ),
        "## What came out",
        table,
        "[All items](claims.md), with what was printed, what we got, and why.",
        *differences.teaser(),
        "## Figures to start from",
        gather.raw(gallery([next((b, *f) for f in b.figures()) for b in shown.books.values() if b.result["figures"]])),
        "[All figures](figures.md)",
        "## Run it again",
        _rerun(shown),
        "With many GPUs or cores: [on a cluster](cluster.md).",
        "## How a verdict is reached",
        gather.raw(_legend()),
        toctree(documents, caption="Documents"),
        toctree(across, caption="Across documents"),
    ]
    return "\n\n".join([*parts, toctree(["Reference <api/index>"], caption="Library")] if api else parts) + "\n"


def cluster(shown):
    """How workers join, what it costs, and the recipes in full."""
    parts = [
        "# On a cluster",
        "Cells, and notebooks, go to the workers of a dask scheduler with `--engine dask://HOST:PORT`. Driver and "
        "workers see the checkout, the environment, the results and `PRIVROB_DATA` under the same paths of a shared "
        "file system. Rows come back over the network, and are stored as each cell is done: a lost worker costs the "
        "cells that it was computing, and the same command goes on after a stop. Results do not depend on the engine.",
        "```bash\ndask scheduler --port 8786\nPYTHONPATH=lib dask worker tcp://HOST:8786 --nthreads 1\n"
        "./run_all.sh --preset paper --engine dask://HOST:8786 --jobs 8\n"
        "./run_all.sh plan --preset paper --workers 1,8,64 --csv plan.csv\n```",
        "The last command trains nothing: it counts the cells of a preset, takes their times from measured ones, "
        "simulates that many workers, and lists what it cannot know."
        + (" For the preset paper [it said](plan.md)." if (shown.results / PLAN).is_file() else ""),
    ]
    for name, title, language in (("slurm", "Slurm", "bash"), ("kubernetes", "Kubernetes", "yaml")):
        parts += [f"## {title}", f"```{language}\n{plan_arguments.recipe(name)}```"]
    return "\n\n".join(parts) + "\n"


def _rerun(shown):
    """Three commands that can be pasted, made for a notebook that is really here."""
    found = [(b, _change(b.result["parameters"])) for b in shown.books.values()]
    book, (name, value) = min(found, key=lambda pair: PREFERRED.index(pair[1][0]) if pair[1][0] in PREFERRED else 99)
    fill = {"document": book.document, "notebook": book.short, "name": name, "value": value}
    lines = {command.format(**fill): words for command, words in RERUN.items()}
    if kept := sorted((repository() / "notebooks" / "studies").glob("*.yaml")):
        command, words = STUDY
        lines[command.format(study=kept[0].relative_to(repository()).as_posix())] = words
    rows = " ".join(f"<dt><code>{html.escape(c)}</code></dt> <dd>{w}</dd>" for c, w in lines.items())
    return gather.raw(f'<dl class="commands">{rows}</dl>')


def _change(parameters):
    """A parameter and another value for it that stays in range: whole numbers doubled, others halved."""
    numbers = {n: v for n, v in parameters.items() if isinstance(v, (int, float)) and not isinstance(v, bool) and v}
    name = next((n for n in (*PREFERRED, *sorted(numbers)) if n in numbers and n != "seed"), "seed")
    value = numbers.get(name, 1)
    return name, f"{value * 2 if isinstance(value, int) else value / 2:g}"


def _legend():
    rows = " ".join(
        f"<div><dt>{gather.chip(v)}</dt> <dd>{html.escape(m)}</dd></div>" for v, (_, m) in gather.VERDICTS.items()
    )
    return (
        "<p>One rule decides every verdict from what the notebook got and what the document prints; it is the same for "
        f'our successes and for our failures.</p> <dl class="legend">{rows}</dl>'
    )


def _short(title, key):
    return f"{key} — {title.partition(':')[0].replace('<', '').replace('>', '')}"


# -------------------------------------------------------------------------------------------------------- documents


def document_page(shown, key):
    """One document: how its items came out, its notebooks, and what is still to come."""
    mine, books = shown.of(key), shown.books_of(key)
    chips = " ".join(gather.chip(v, n) for v, n in gather.counts(mine).items() if n)
    parts = [
        f"# {key} — {shown.documents[key]}",
        gather.raw(
            f'<p class="document-verdicts"><a href="../claims.html#doc={key}">{chips}</a>{gather.trends(mine)} — '
            f"{tables.count(len(mine), 'item')}</p>"
        ),
    ]
    for book in books:
        parts.append(gather.raw(_notebook_card(book)))
    if not books:
        parts.append("The notebooks of this document are to come; its items are listed and stand as open.")
    left = [n for n in shown.waiting if n.startswith(f"{key}/")]
    if left:
        parts += ["## Not run yet", "\n".join(f"- `./run_all.sh {n}`" for n in left)]
    if books:
        parts.append(toctree([b.short for b in books]))
    return "\n\n".join(parts) + "\n"


def _notebook_card(book):
    result = book.result
    chips = " ".join(gather.chip(v, n) for v, n in gather.counts(result["claims"]).items() if n)
    figure = next(book.figures(), None)
    image = _image(book, *figure, up="../") if figure and "png" in figure[3] else ""
    data = ", ".join(d["label"] for d in result["data"]) or "no data needed"
    about = f"preset {result['preset']}, {result['device']['name']}, {tables.took(result['run'])}, {data}"
    title = f'<a href="{book.short}.html">{gather.inline(result["title"])}</a>'
    return (
        f'<section class="book"><div><p class="book-title">{title}</p> '
        f"<p>{chips}</p> <p>{html.escape(claims.tally(result['claims']))}</p> "
        f'<p class="quiet">{html.escape(about)}</p></div>'
        + (f'<a href="{book.short}.html" tabindex="-1" aria-hidden="true">{image}</a>' if image else "")
        + "</section>"
    )


# ---------------------------------------------------------------------------------------------------------- figures


def figures_page(shown):
    """Every figure of every notebook, by document."""
    parts = ["# All figures"]
    for key, title in shown.documents.items():
        drawn = [(book, *figure) for book in shown.books_of(key) for figure in book.figures()]
        if drawn:
            parts += [f"## {key} — {title}", gather.raw(gallery(drawn))]
    if len(parts) == 1:
        parts.append("No notebook has drawn a figure yet.")
    return "\n\n".join(parts) + "\n"


def gallery(drawn):
    """Figures as a grid; each leads to its place in its notebook."""
    found = []
    for book, number, name, caption, endings in drawn:
        if "png" not in endings:
            continue
        place = f"{book.name}.html#figure-{gather.attribute(name)}"
        kinds = " · ".join(f'<a href="{book.files}/{name}.{e}">{e}</a>' for e in endings)
        found.append(
            f'<figure><a href="{place}">{_image(book, number, name, caption, endings)}</a> <figcaption>'
            f'<a class="figure-from" href="{place}">{gather.inline(book.result["title"])}, Figure {number}</a> '
            f'{gather.inline(caption)} <span class="figure-files">{kinds}</span></figcaption></figure> '
        )
    return f'<div class="gallery">{"".join(found)}</div>' if found else "<p>No figure yet.</p>"


def _image(book, number, name, caption, endings, *, up=""):
    width, height = png_size((book.folder / f"{name}.png").read_bytes())
    return (
        f'<img src="{up}{book.files}/{name}.png" alt="{gather.attribute(caption)}" loading="lazy" '
        f'width="{width}" height="{height}">'
    )


def png_size(data):
    """(width, height) of a PNG, from its header."""
    return struct.unpack(">II", data[16:24])
