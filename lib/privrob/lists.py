"""Checks of parameters that are lists."""

from __future__ import annotations


def several(name, values, one, **limits):
    """A list with at least one entry, each of which passes ``one`` of :mod:`privrob.checks`: ``integer``, say."""
    if not isinstance(values, (list, tuple)) or not values:
        raise ValueError(f"{name} must be a list of at least one value, got {name}={values!r}")
    return [one(f"{name}[{i}]", value, **limits) for i, value in enumerate(values)]
