"""Sources as plain pages with numbered lines: entries of the reference lead to their code, items to their tests."""

from __future__ import annotations

import ast
import functools
import html

from privrob.suite.files import digest, read_text
from privrob.suite.sources import module_file, repository

LIGHT = "a11y-high-contrast-light"
PAGE = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} — source</title>
<link rel="icon" href="{up}_static/icon.svg"><link rel="stylesheet" href="{up}source/listing.css"></head>
<body><nav>{back}</nav>
<main><h1>{title}, source</h1>
{body}
</main></body></html>
"""
FRAME = """\
:root { color-scheme: light dark; }
body { margin: 1rem auto; padding: 0 1rem; max-width: 68rem; font: 1rem/1.5 system-ui, sans-serif; }
h1 { margin: .4rem 0 .8rem; font-size: 1.25rem; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; border-radius: .4rem; }
pre { font-size: .86rem; line-height: 1.5; }
.linenos { padding-right: 1rem; opacity: .65; user-select: none; }
pre a { color: inherit; text-decoration: none; }
pre a:target + .linenos { background: #fd06; opacity: 1; }
"""


def pages(modules, *, old=None, step=lambda: None):
    """{file name: text} of one page a module, and their style; what has not changed is taken from the pages ``old``.

    Args: step — called after each page.
    """
    from pygments.formatters import HtmlFormatter

    found = {}
    for name in modules:
        back = f'<a href="../api/{html.escape(name)}.html">Reference: {html.escape(name)}</a>'
        page = f"source/{name}.html"
        found[page] = _page(module_file(name), name, back, "../", old and old / page)
        step()
    plain, dark = HtmlFormatter(style=LIGHT), HtmlFormatter(style="a11y-high-contrast-dark")
    css = f"{FRAME}{plain.get_style_defs('.highlight')}\n@media (prefers-color-scheme: dark) {{\n"
    found["source/listing.css"] = f"{css}{dark.get_style_defs('.highlight')}\n}}\n"
    return found


def tests(paths, *, old, step):
    """{file name: text} of one page a test file; the paths are relative to the checkout. The rest as in ``pages``."""
    found = {}
    for path in paths:
        up = "../" * (path.count("/"))
        back = f'<a href="{up}claims.html">All items</a>'
        page = test_page(path)
        found[page] = _page(repository() / path, path, back, up, old and old / page)
        step()
    return found


def test_page(path):
    """Where the page of a test file stands, from the front page."""
    return path.removesuffix(".py") + ".html"


def _page(file, title, back, up, former):
    """The page of a source file, or the former one if that was made from the same text in the same way."""
    from pygments import __version__, highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    text = read_text(file)
    mark = f"<!-- {digest([text, title, back, up, PAGE, LIGHT, __version__])} -->\n"
    if former and former.is_file() and (page := read_text(former)).endswith(mark):
        return page
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", style=LIGHT)
    body = highlight(text, PythonLexer(stripnl=False), formatter)
    return PAGE.format(title=html.escape(title), back=back, up=up, body=body) + mark


@functools.lru_cache(maxsize=512)
def _lines(module):
    """{name, or Class.method: first line} of a module."""
    found = {}
    path = module_file(module)
    for node in ast.parse(read_text(path)).body if path else ():
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            found[node.name] = node.lineno
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{n.name}": n.lineno for n in node.body if isinstance(n, ast.FunctionDef)}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.id: node.lineno for t in targets if isinstance(t, ast.Name)}
    return found


def link(domain, about):
    """Where the source of an entry of the reference stands, or None (the form that sphinx.ext.linkcode asks for)."""
    line = _lines(about["module"]).get(about["fullname"]) if domain == "py" and about.get("module") else None
    return line and f"../source/{about['module']}.html#L-{line}"
