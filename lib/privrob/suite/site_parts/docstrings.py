"""Docstrings for the reference: the house's labelled lines (Paper, Printed, Used, Args, ...) become fields.

The text is plain with Sphinx roles. What reStructuredText would misread in it (``|x|``, a lone star, a name that ends
in an underscore) is escaped; directives, literal blocks and doctests are left as they stand.
"""

from __future__ import annotations

import re
import unicodedata

LABELS = (
    "Paper",
    "Source",
    "Printed",
    "Used",
    "Assumes",
    "Side",
    "Args",
    "Returns",
    "Yields",
    "Raises",
    "Warns",
    "Note",
    "Cost",
    "See",
)
_LABEL = re.compile(rf"^({'|'.join(LABELS)}):(?: +(?=\S)|$)")
_INLINE_LABEL = re.compile(rf" {{2,}}(?=(?:{'|'.join(LABELS)}): )")
_AFTER_A_SENTENCE = re.compile(r"(?<=[.!?]) (?=(?:Args|Returns|Raises): )")
_KEPT = re.compile(r"``.+?``(?!`)|:[\w:.+-]+:`[^`]+`|`[^`]+`(?:__?)?", re.S)
_BEFORE, _AFTER = "'\"([{<-/:", "'\")]}>-/\\:.,;!?"  # what reStructuredText lets markup touch, with these categories:
_DASHES = ("Ps", "Pe", "Pi", "Pf", "Pd", "Po")
_STARRED = re.compile(r"(?<![\w*\\])(\*{1,2})(?=[^\s*])([^*]*[^\s*])\1(?![\w*])")


def lay_out(lines):
    """A docstring's lines as reStructuredText that says the same."""
    out, verbatim = [], None
    for paragraph in _paragraphs(lines):
        indent = _indent(paragraph[0])
        if verbatim is not None and indent > verbatim:
            out += [*paragraph, ""]
            continue
        verbatim = None
        first = paragraph[0].lstrip()
        if first.startswith((".. ", ">>>")):
            verbatim = indent
            out += [*paragraph, ""]
        elif indent == 0 and _LABEL.match(paragraph[0]):
            out += [*_fields(paragraph), ""]
        elif indent >= 4:  # nobody indents a quotation here: it is code
            verbatim = 0
            out += ["::", "", *paragraph, ""]
        else:
            paragraph = [part for line in paragraph for part in _AFTER_A_SENTENCE.split(line)]
            before = next((i for i, line in enumerate(paragraph) if _LABEL.match(line)), len(paragraph))
            out += [*escape("\n".join(paragraph[:before])).split("\n"), ""]
            if paragraph[before:]:
                out += [*_fields(paragraph[before:]), ""]
        if paragraph[-1].rstrip().endswith("::"):
            verbatim = indent
    return out


def _paragraphs(lines):
    block = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def _indent(line):
    return len(line) - len(line.lstrip())


def _fields(paragraph):
    """Labelled lines as a field list; arguments one a line."""
    fields = []
    for line in paragraph:
        for part in _INLINE_LABEL.split(line):
            if match := _LABEL.match(part.lstrip()):
                fields.append((match[1], [part.lstrip()[match.end() :]]))
            else:
                fields[-1][1].append(part.rstrip())
    out = []
    for label, texts in fields:
        if not texts[0]:
            texts = [_flat(texts[1:])]
        text = re.sub(r"\s*\n\s*", " ", re.sub(r"; *\n\s*", ";;", "\n".join(texts)).replace(";  ", ";;"))
        items = [_argument(t.strip()) for t in text.split(";;")] if label in ("Args", "Raises", "Returns") else []
        if label in ("Args", "Raises") and items and all(items):
            out += [f":{label}:", *(f"    * {item}" for item in items)]
        else:
            out.append(f":{label}: {escape(text.replace(';;', '; '))}")
    return out


def _flat(lines):
    """An indented block of items, each with lines of its own below, as items one after the other."""
    base = min((_indent(line) for line in lines), default=0)
    starts = [line.strip() if _indent(line) > base else f";;{line.strip()}" for line in lines]
    return " ".join(starts).removeprefix(";;").replace(" ;;", ";;")


def _argument(text):
    """``name — what it is`` with the name set apart, or None when the text has another form."""
    match = re.match(r"^(\*{0,2}[\w.*]+(?:, ?\*{0,2}[\w.*]+)*) +[—–-] +(.+)$", text, re.S)
    return f"``{match[1]}`` — {escape(match[2])}" if match else None


def escape(text):
    """Text whose stray signs cannot be taken for markup."""
    out, end = [], 0
    for match in _KEPT.finditer(text):
        out += [_plain(text[end : match.start()]), _joint(text[: match.start()], _BEFORE), match[0]]
        end = match.end()
        out.append(_joint(text[end:][::-1], _AFTER))
    return "".join([*out, _plain(text[end:])])


def _joint(beside, signs):
    """What keeps markup apart from the sign beside it, the last of a text, where markup may not stand there."""
    if not beside or beside[-1].isspace() or beside[-1] in signs or unicodedata.category(beside[-1]) in _DASHES:
        return ""
    return "\\ "


def _plain(text):
    text = re.sub(r"(?<!\\)\|", r"\\|", text)
    text = re.sub(r"(?<=\w)(_{1,2})(?!\w)", lambda m: "".join(rf"\{c}" for c in m[1]), text)
    out, end = [], 0
    for match in _STARRED.finditer(text):
        out += [_stars(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*out, _stars(text[end:])])


def _stars(text):
    return re.sub(r"(?<!\\)\*(?!\s)|(?<=\S)\*", r"\\*", text)
