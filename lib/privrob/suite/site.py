"""``./run_all.sh site``: the pages over the executed notebooks. Nothing is executed here, and the pages open from disk.

Sources are put together in a temporary folder, Sphinx turns them into pages beside the old ones, and the new pages
take their place only when they are whole. Writes nothing but ``<results>/site``, ``<results>/index.html`` when it is
missing, and a working folder ``<results>/.site`` that is gone afterwards.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from privrob.suite import files, tables
from privrob.suite.site_parts import api as api_pages
from privrob.suite.site_parts import config, gather, listing, notebooks, pages, telling

OPENER = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>privrob: results</title>
<style>
  body { font: 1.05rem/1.55 system-ui, sans-serif; max-width: 38rem; margin: 12vh auto; padding: 0 1.25rem; }
  pre { padding: .8rem 1rem; border-radius: .4rem; overflow-x: auto; background: #8882; }
  :root { color-scheme: light dark; }
</style>
<script src="site/built.js" onload="location.replace('site/index.html')"></script>
<h1>Results of privrob</h1>
<p>The pages over these results are not built here yet. In the folder of the checkout, run</p>
<pre>./run_all.sh site</pre>
<p>and open this page again. It goes on to <a href="site/index.html">site/index.html</a>.</p>
<p>Without building anything, <a href="INDEX.md">INDEX.md</a> lists every item with its verdict, and each
<code>notebook.ipynb</code> below this folder can be read as it is.</p>
</html>
"""


for _name in ("sphinx", "myst_nb", "sphinx_book_theme", "mathjax"):  # told at once, not in the middle of a build
    if importlib.util.find_spec(_name) is None:
        raise ImportError(f"the pages need {_name}", name=_name)


class NoResults(ValueError):
    """There is nothing to show yet."""


class SourceWarnings(ValueError):
    """The pages were built, but something in their sources is not as it should be."""


def build(results, *, out=None, api=True, strict=False, say=None):
    """Build the pages over the results in a folder.

    Args: results — the results folder;  out — where the pages go (default ``<results>/site``);  api — False leaves the
    library reference out;  strict — warnings about the sources are errors, and the old pages stay;  say — told, a line
    at a time, what is done and how far it is.
    Returns: path of the front page.
    Raises: NoResults — no notebook has a result that counts.
    """
    results = Path(results)
    site = Path(out) if out else results / "site"
    told = telling.Progress(say or (lambda line: None), live=None if say is print else False)
    told.part("collecting verdicts, and the tests behind them")
    shown = gather.gather(results)
    if not shown.books:
        raise NoResults(_nothing(results))
    with files.lock(site.parent / ".site", purpose="./run_all.sh site") as lock:
        work = lock.parent
        try:
            _restore(work, site)
            new = work / "new"
            shutil.rmtree(new, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix="privrob site ") as folder:
                warnings = _make(shown, Path(folder), new, api=api, told=told, old=site)
            for line in warnings:
                print(f"note: {line}", file=sys.stderr)
            if strict and warnings:
                raise SourceWarnings(f"{len(warnings)} warning(s) about the pages' sources, the first: {warnings[0]}")
            _replace(site, new, work / "old")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    opener = results / "index.html"
    if out is None and not opener.exists():
        files.write_text(opener, OPENER)
    told.end(f"done: {tables.count(len(shown.books), 'notebook')}, {tables.count(len(shown.items), 'item')}")
    return site / "index.html"


def _nothing(results):
    smoke = any(results.glob("*/*/smoke/result.json"))
    seen = "only results of the smoke preset, which are never shown" if smoke else "no results"
    how = "run ./run_all.sh first (preset laptop, hours for all; or name notebooks), then ./run_all.sh site"
    return f"{results} holds {seen}; {how}"


def _make(shown, folder, target, *, api, told, old):
    """Write the sources below ``folder`` and turn them into pages in ``target``; returns the warnings."""
    source, extra, static = (folder / name for name in ("source", "extra", "static"))
    for path in (source, extra, static):
        path.mkdir()
    told.part(f"laying out {tables.count(len(shown.books), 'notebook')} and their figures")
    for book in shown.books.values():
        _put(source / f"{book.name}.ipynb", notebooks.source_text(book, shown))
        notebooks.copy_files(book, extra / book.files)
    for name, text in pages.every(shown, api=api).items():
        _put(source / name, text)
    if api:
        told.part("laying out the library reference")
        for name, text in api_pages.every().items():
            _put(source / name, text)
        behind = sorted({path for item in shown.items for path in item["behind"].files()})
        known = api_pages.modules()
        told.part("colouring sources and tests", len(known) + len(behind))
        how = {"old": old, "step": told.step}
        for name, text in (api_pages.sources(known, **how) | listing.tests(behind, **how)).items():
            _put(extra / name, text)
    _put(extra / "built.js", "// results/index.html looks for this file to know that the pages are there\n")
    config.copy_static(static)
    settings = config.settings(static=static, extra=extra, documents=shown.documents, api=api)
    warnings = _sphinx(source, folder / "doctrees", target, settings, told)
    config.trim(target)
    return warnings


def _put(path, text):
    """Write a source; the folder is thrown away, so nothing has to be safe from a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _sphinx(source, doctrees, target, settings, told):
    """Run Sphinx in this process; returns its warnings, one a line, with places relative to the sources."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    heard = io.StringIO()
    with patch_docutils(), docutils_namespace():
        app = Sphinx(
            source,
            None,
            target,
            doctrees,
            "html",
            confoverrides=settings,
            status=None,
            warning=heard,
            freshenv=True,
            parallel=1,
        )
        told.watch(app)
        app.build(force_all=True)
    lines = [line.replace(f"{source}{os.sep}", "") for line in heard.getvalue().splitlines() if line.strip()]
    return [_plain(line) for line in lines]


def _plain(text):
    """Text without the colours that a terminal would show."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _replace(site, new, old):
    """Put the new pages in the place of the old ones: two renames, with the old ones whole until the first."""
    if site.exists():
        site.rename(old)
    try:
        new.rename(site)
    except OSError:
        if old.exists():
            old.rename(site)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _restore(work, site):
    """Bring back pages that a build killed between its two renames had put aside."""
    old = work / "old"
    if old.exists() and not site.exists():
        old.rename(site)
    shutil.rmtree(old, ignore_errors=True)
