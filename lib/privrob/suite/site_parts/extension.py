"""The little that Sphinx has to be taught: chips for verdicts, math in the tables of ours, docstrings of the house."""

from __future__ import annotations

import re

from docutils import nodes

from privrob.suite.site_parts.docstrings import lay_out
from privrob.suite.site_parts.gather import VERDICTS


def setup(app):
    """Called by Sphinx."""
    app.connect("doctree-read", chips)
    app.connect("html-page-context", page, priority=300)  # before sphinx.ext.mathjax looks
    if "sphinx.ext.autodoc" in app.config.extensions:
        app.connect("autodoc-process-docstring", docstring)
        app.connect("autodoc-process-signature", signature)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def chips(app, doctree):
    """A verdict that opens the last cell of a table's row is shown as on every other page."""
    for row in doctree.findall(nodes.row):
        for strong in row[-1].findall(nodes.strong):
            word = strong.astext()
            if word in VERDICTS:
                strong["classes"] += ["verdict", f"verdict-{word.replace(' ', '-')}"]
                strong.insert(0, nodes.Text(f"{VERDICTS[word][0]} "))
            break


def page(app, pagename, templatename, context, doctree):
    """Pages whose own HTML holds math need MathJax too; the table of items needs its script."""
    body = context.get("body", "")
    if 'class="math' in body:
        context["has_maths_elements"] = True
    if pagename == "claims":
        app.add_js_file("claims.js", defer="defer")


def docstring(app, what, name, obj, options, lines):
    """Lay out one docstring."""
    lines[:] = lay_out(lines)


def signature(app, what, name, obj, options, arguments, returns):
    """Sphinx cannot parse an f-string that stands as a default: its letter is left out."""
    return (re.sub(r"\bf(?=[\"'])", "", arguments) if arguments else arguments), returns
