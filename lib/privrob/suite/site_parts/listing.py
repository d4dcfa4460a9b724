"""The library's source as plain pages with numbered lines, so that every entry of the reference leads to its code."""

from __future__ import annotations

import ast
import functools
import html

from privrob.suite.files import read_text
from privrob.suite.sources import module_file

PAGE = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} — source</title>
<link rel="icon" href="../_static/icon.svg"><link rel="stylesheet" href="listing.css"></head>
<body><p><a href="../api/{title}.html">{title}</a>, source</p>
{body}
</body></html>
"""
FRAME = """\
:root { color-scheme: light dark; }
body { margin: 1rem auto; padding: 0 1rem; max-width: 68rem; font: 1rem/1.5 system-ui, sans-serif; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; border-radius: .4rem; }
pre { font-size: .86rem; line-height: 1.5; }
.linenos { padding-right: 1rem; opacity: .5; user-select: none; }
pre a { color: inherit; text-decoration: none; }
pre span:has(> a:target), pre a:target ~ * { background: #fd06; }
"""


def pages(modules):
    """{file name: text} of one page a module, and their style."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    formatter = HtmlFormatter(linenos="inline", lineanchors="L", style="a11y-high-contrast-light")
    dark = HtmlFormatter(style="a11y-high-contrast-dark")
    found = {}
    for name in modules:
        body = highlight(read_text(module_file(name)), PythonLexer(stripnl=False), formatter)
        found[f"source/{name}.html"] = PAGE.format(title=html.escape(name), body=body)
    css = f"{FRAME}{formatter.get_style_defs('.highlight')}\n@media (prefers-color-scheme: dark) {{\n"
    found["source/listing.css"] = f"{css}{dark.get_style_defs('.highlight')}\n}}\n"
    return found


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
