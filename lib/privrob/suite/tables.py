"""Verdicts as Markdown: the same table in the notebooks, in INDEX.md and on the pages."""

from __future__ import annotations

HEAD = ("item", "the document says", "printed", "we got", "verdict")


def row(cells):
    """One row; what would end a cell or be read as HTML is escaped."""
    escaped = [str(c).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ") for c in cells]
    return "| " + " | ".join(escaped) + " |"


def table(head, rows):
    """A Markdown table."""
    return "\n".join([row(head), "|" + "---|" * len(head), *map(row, rows)])


def verdicts(judged):
    """The verdicts on some items, as a table that can be copied."""
    rows = [[i["where"], i["text"], show(i["paper"]), show(i["got"]), words(i)] for i in judged]
    return table(HEAD, rows) if judged else "This notebook judges no numbered item."


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


def show(value):
    """A value in a table: six digits, infinity in words, nothing for nothing."""
    if value is None:
        return ""
    if isinstance(value, dict) and set(value) == {"$float"}:
        value = float(value["$float"])
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
