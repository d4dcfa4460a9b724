"""Formulas in plain text, ``e^(−ε)`` or ``p_max``, as HTML with lowered and raised letters; names stay as they are.

A subscript needs a single letter (or a bracket) before it, so that ``test_ptr`` and ``num_steps`` are left alone; so
are names with two strokes, file names and addresses.
"""

from __future__ import annotations

import html
import re

_GREEK = "\u0370-\u03ff"
_ROUND = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_LEFT_ALONE = re.compile(r"\S*://\S*|[\w./-]+\.(?:py|ipynb|csv|json|md|yaml|toml|html|png|svg|sh|txt|npz)\b")
_BASE = {
    "_": re.compile(rf"(?:(?<![A-Za-z_])(?<![A-Za-z]\d)[A-Za-z]|[{_GREEK}∇‖)\]}}|])[\u0300-\u036f]?$"),
    "^": re.compile(r"[\w‖|)\]}²³][\u0300-\u036f]?$"),
}
_PAIR = re.compile(r"(?<![A-Za-z_])[A-Za-z]{2}$")  # a product: hW_k
_SHORT = re.compile(r"[a-z](?![A-Za-z0-9_])")
_NAME = r"(?![A-Za-z0-9_])(?!\.[A-Za-z])"
_BODY = {
    "_": re.compile(rf"\{{[^{{}}]+\}}|{_ROUND}|[A-Za-z]{{1,8}}\d?{_NAME}|\d{{1,2}}{_NAME}|[{_GREEK}ℓ∞]"),
    "^": re.compile(
        rf"\{{[^{{}}]+\}}|{_ROUND}|(?:Θ|O|Ω|abs|log|poly)\([^()]*\)|[−+-]?\d+(?:\.\d+)?(?![A-Za-z_])"
        rf"|[−+-]?(?:[A-Za-z{_GREEK}]_[A-Za-z{_GREEK}](?![A-Za-z0-9_])|[A-Za-z]{{1,4}}{_NAME}|[{_GREEK}ℓ∞])"
    ),
}
_TAG = {"_": "sub", "^": "sup"}


def text_to_html(text):
    """Plain text, escaped, with its formulas set."""
    parts, end = [], 0
    for match in _LEFT_ALONE.finditer(text):
        parts += [_set(text[end : match.start()]), html.escape(match[0], quote=False)]
        end = match.end()
    return "".join([*parts, _set(text[end:])])


def _set(text):
    parts, start = [], 0
    for at in (m.start() for m in re.finditer("[_^]", text)):
        body = _body(text, at) if at >= start else None
        if body:
            tag = _TAG[text[at]]
            parts += [html.escape(text[start:at], quote=False), f"<{tag}>{_set(_bare(text, at, body[0]))}</{tag}>"]
            start = body.end()
    return "".join([*parts, html.escape(text[start:], quote=False)])


def _body(text, at):
    """The match of what is lowered or raised by the sign at a place, or None where it is no formula."""
    sign, before = text[at], text[max(at - 4, 0) : at]
    if _BASE[sign].search(before):
        return _BODY[sign].match(text, at + 1)
    return _SHORT.match(text, at + 1) if sign == "_" and _PAIR.search(before) else None


def _bare(text, at, body):
    """Without brackets that only kept the parts together; those of an index, μ^(s) or x_(i), belong to it."""
    if body.startswith("{"):
        return body[1:-1]
    if not body.startswith("("):
        return body
    grouping = text[at - 1] in "eΣ∑" or text[at - 1].isdigit() or (text[at] == "^" and re.search(r"[+−/·-]", body))
    return body[1:-1] if grouping else body
