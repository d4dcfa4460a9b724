"""Values that a person wrote: YAML and literals in which nothing is lost, guessed or left to fail later.

A name that stands twice, a date, a number that nothing can hold and a tag that does not fit its text are told, each in
words. So are values nested, or repeated by aliases, beyond what anybody writes.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass

import yaml

DEEPEST = 20  # lists in lists
MOST = 100_000  # values in all, aliases counted each time
WIDEST = 14_000  # bits of a whole number; Python writes down no more than 4,300 digits
MERGE = "tag:yaml.org,2002:merge"
ALLOWED = "a number, text, true or false, a list or a dict"


class Unreadable(ValueError):
    """Text that says no value."""


class Twice(Unreadable):
    """Text in which a name stands twice."""


@dataclass(frozen=True)
class Unfit:
    """A value that cannot be used, as it was written."""

    text: str
    why: str

    def __repr__(self):
        return _cut(self.text)


class _Once(yaml.SafeLoader):
    """YAML in which a name that stands twice is an error (the first value would be lost), and odd values are named."""

    def construct_mapping(self, node, deep=False):
        for key, _ in node.value:
            if key.tag == MERGE:
                raise Unreadable(f"line {key.start_mark.line + 1}: merge keys (<<) are not read; write the entries out")
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, name in zip(node.value, names):
            if names.count(name) > 1:
                raise Twice(f"{name!r} stands twice (first in line {key[0].start_mark.line + 1})")
        return super().construct_mapping(node, deep)


def _guessed(text, number):
    """In words that YAML reads a number in another base than it seems to be written in; "" where it does not."""
    if ":" in text:
        return f"YAML reads it in base 60; write {number} if that is meant, or put it in quotes where text is meant"
    if not isinstance(number, bool) and re.match(r"[-+]?0[0_]*[1-7][0-7_]*$", text):
        written = dict.fromkeys([int(text), number])
        return f"YAML reads a leading zero as base 8; write {' or '.join(map(str, written))}, or text in quotes"
    return ""


def _checked(tag, why):
    """Let the loader name a value of this tag that it cannot make."""
    make = yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{tag}"]

    def construct(loader, node):
        text = loader.construct_scalar(node)
        try:
            value = make(loader, node)
        except (ValueError, KeyError, AttributeError, IndexError):
            return Unfit(text, why)
        if guess := _guessed(text, value):
            return Unfit(text, guess)
        lost = isinstance(value, float) and math.isinf(value) and "inf" not in text.lower()
        return Unfit(text, "too large a number") if lost else value

    _Once.add_constructor(f"tag:yaml.org,2002:{tag}", construct)


def _refused(tag, why):
    """Let the loader name every value of this tag."""

    def construct(loader, node):
        return Unfit(node.value if isinstance(node, yaml.ScalarNode) else f"!!{tag}", why)

    _Once.add_constructor(f"tag:yaml.org,2002:{tag}", construct)


_checked("int", "no whole number, or too large a one")
_checked("float", "no number")
_checked("bool", "neither true nor false")
_refused("timestamp", "a date; put it in quotes where text is meant")
for _tag in ("merge", "value"):
    _refused(_tag, "a sign of YAML's own; put it in quotes where text is meant")
for _tag in ("binary", "set", "omap", "pairs"):
    _refused(_tag, f"YAML's {_tag}")


def load(text):
    """What YAML text says; values that cannot be used are :class:`Unfit` in their places.

    Raises: Unreadable — it is no YAML, or beyond bounds;  Twice.
    """
    try:
        return _bounded(yaml.load(text, Loader=_Once))
    except Unreadable:
        raise
    except yaml.YAMLError as error:
        raise Unreadable(" ".join(str(error).split())[:400]) from None
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # what a YAML library makes of a wrong tag
        raise Unreadable(f"{type(error).__name__}: {error}"[:400]) from None


def _walk(value):
    """(place, value) of all within, in order. A place: ``[0]['name']``. Names of a dict stand beside their values.

    Raises: Unreadable — nested, or repeated, beyond bounds.
    """
    todo, count = [("", value, 0)], 0
    while todo:
        place, one, depth = todo.pop()
        yield place, one
        if not isinstance(one, (list, tuple, dict)):
            continue
        count += len(one)
        if depth == DEEPEST:
            raise Unreadable(f"{place[:60]}… is nested more than {DEEPEST} deep")
        if count > MOST:
            raise Unreadable(f"it holds more than {MOST:,} values")
        items = list(one.items() if isinstance(one, dict) else enumerate(one))
        yield from ((place, key) for key, _ in items if isinstance(key, Unfit))
        todo += [(f"{place}[{key!r}]", inner, depth + 1) for key, inner in reversed(items)]


def _bounded(value):
    for _ in _walk(value):
        pass
    return value


def unfit(value):
    """(place, :class:`Unfit`) of the first value within that cannot be used, or None."""
    for place, one in _walk(value):
        if isinstance(one, Unfit):
            return place, one
        if isinstance(one, int) and one.bit_length() > WIDEST:
            return place, Unfit(shown(one), "too large a number")
    return None


def literal(text):
    """A Python literal.

    Raises: Unreadable — it is none;  Twice.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
        value = _bounded(ast.literal_eval(tree))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = [ast.literal_eval(key) for key in node.keys]
            if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
                raise Twice(f"{twice[0]!r} stands twice")
    return value


def infinite(value):
    """Whether a value is an infinity, or has one among its items."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(infinite, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and math.isinf(value)


def shown(value):
    """A value in a message: its first letters where it is long, or cannot be written down."""
    try:
        return _cut(repr(value))
    except ValueError:  # Python writes no number of more than 4,300 digits
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else "a number too long to show"


def _cut(text):
    return text if len(text) <= 300 else f"{text[:60]}… ({len(text):,} letters)"
