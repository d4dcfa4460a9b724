"""Verdicts as Markdown: the same table in the notebooks, in INDEX.md and on the pages."""

from __future__ import annotations

import math
import re

HEAD = ("item", "the document says", "printed", "we got", "verdict")


def row(cells):
    """One row; what would end a cell or be read as HTML is escaped."""
    escaped = [str(c).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ") for c in cells]
    return "| " + " | ".join(escaped) + " |"


def table(head, rows):
    """A Markdown table."""
    return "\n".join([row(head), "|" + "---|" * len(head), *map(row, rows)])


def verdicts(judged, digits=None, *, more=None):
    """The verdicts on some items, as a table that can be copied.

    Args: digits — {id: digits after the point with which the document prints its value};  more — (heading, function of
        an item) of a further column.
    """
    digits, rows = digits or {}, []
    for item in judged:
        printed = value(item["paper"], digits=digits.get(item["id"]))
        extra = [more[1](item)] if more else []
        rows.append([place(item), item["text"], printed, got(item, digits.get(item["id"])), words(item), *extra])
    head = (*HEAD, more[0]) if more else HEAD
    return table(head, rows) if judged else "This notebook judges no numbered item."


_NAMED = re.compile(
    r"\b(Theorem|Lemma|Corollary|Proposition|Definition|Remark|Algorithm|Example|Assumption|Result|Figure|Table|Equation)"
    r"s? |slide "
)


def place(item):
    """Where an item stands; one that is named by its place in the text only also gets a short name."""
    short = item["id"].partition("/")[2].replace("_", " ")
    return item["where"] if _NAMED.search(item["where"]) else f"{item['where']}: {short}"


def got(item, digits=None):
    """What we got, with its standard error where there is one, and no more digits than mean something."""
    ours, spread = _plain(item["got"]), _plain(item.get("spread"))
    if spread and _finite(ours) and _finite(spread):
        places = min(max(1 - math.floor(math.log10(spread)), 0), 12)
        places = max(places, min(digits or 0, 12)) if digits is not None else places
        return f"{ours:.{places}f} ± {spread:.{places}f}"
    if item["verdict"] == "differs" and digits is not None:  # a difference has to be seen
        paper = value(item["paper"], digits=digits)
        shown = (value(ours, digits=n) for n in range(digits, digits + 8))
        return next((text for text in shown if text.rstrip("0") != paper.rstrip("0")), show(ours))
    return value(ours, digits=digits)


def value(number, *, digits=None):
    """A value as text: with the printed digits where they are known, else four that count; words for infinity."""
    number = _plain(number)
    if not isinstance(number, float):
        return show(number)
    if not math.isfinite(number):
        return show(number)
    if digits is not None and digits < 16 and (number == 0 or abs(number) >= 0.5 * 10.0**-digits):
        return f"{number:.{max(digits, 0)}f}"
    if (number == round(number) or abs(number) >= 1e4) and abs(number) < 1e6:
        return f"{number:.0f}"
    return f"{number:.4g}"


def _finite(number):
    return isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)


def _plain(number):
    """A stored number: infinity is kept as ``{"$float": "inf"}`` in strict JSON."""
    return float(number["$float"]) if isinstance(number, dict) and set(number) == {"$float"} else number


def words(item):
    """A verdict as people read it, with its reason or direction and any surprise."""
    if item["verdict"] == "open":
        return "open"
    text = f"**{item['verdict']}**"
    if item["verdict"] == "trend":
        text += f" ({'agrees' if item['agrees'] else 'does not agree'}; changed here: {', '.join(item['changed'])})"
    if item["verdict"] == "not tried":
        text += f" ({item['reason']})"
    if item["surprise"]:
        text += f" — expected: {item['expected']}"
    return text + (f". {item['note']}" if item["note"] else "")


def verdict(item):
    """A verdict in short; of a trend also whether it agrees: one that turned round is another verdict."""
    if item["verdict"] != "trend":
        return item["verdict"]
    return f"trend ({'agrees' if item.get('agrees') else 'does not'})"


def alike(first, second, paper=None):
    """Whether two values of one item are the same up to rounding: to a millionth of the larger, or of what is printed.

    Where no number is printed the value is mostly an error that should be 0, and changes below 1e-7 are rounding.
    """
    one, other, printed = _plain(first), _plain(second), _plain(paper)
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (one, other)):
        return one == other
    if not (math.isfinite(one) and math.isfinite(other)):
        return one == other or (one != one and other != other)
    size = abs(printed) if isinstance(printed, (int, float)) and _finite(printed) and printed else 0.1
    return abs(one - other) <= 1e-6 * max(abs(one), abs(other), size)


def count(number, word, plural=""):
    """``1 cell``, ``2 cells``: a number with its word."""
    return f"{number} {word if number == 1 else plural or word + 's'}"


def show(value):
    """A value in a table: six digits, infinity in words, nothing for nothing."""
    if value is None:
        return ""
    value = _plain(value)
    if isinstance(value, float):
        return "infinite" if value == float("inf") else f"{value:.6g}"
    return str(value)


def seconds(value):
    """A duration as people read it."""
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def took(run):
    """How long a run took, and what the cells that it found stored had taken on one processor."""
    stored = run.get("stored_seconds", 0.0)
    return seconds(run["seconds"]) + (f" and {seconds(stored)} of stored cells (one core)" if stored >= 1 else "")
