"""Stable names are there, documented, and take the arguments that they took."""

import json
import re
from pathlib import Path

import pytest

from house import ROOT
from privrob.suite import stable

REFERENCE = Path(ROOT) / "tests" / "reference" / "stable_api.json"


def test_every_stable_name_is_there_public_and_documented():
    found = list(stable.entries())
    assert len(found) == sum(map(len, stable.NAMES.values())) >= 50
    for module, name, _, about in found:
        assert not name.startswith("_")
        assert len(about) > 10, f"{module}.{name} needs a first line that says what it is"


def test_no_call_that_worked_stops_working():
    """To take up a new name: ``python tests/suite/test_stable.py``, which never drops or changes an old one."""
    kept, now = json.loads(REFERENCE.read_text(encoding="utf-8")), stable.signatures()
    assert not set(kept) - set(now), "a stable name is gone"
    assert not set(now) - set(kept), "a new stable name is not in the reference yet"
    assert not {n: why for n, old in kept.items() if (why := stable.broken(old, now[n]))}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("a, *, b=1", "a, *, b=2, c=None", ""),
        ("a, *, b=1", "a, *, b=1, c", "c must be given now"),
        ("a, *, b=1", "a, *, b", "b has no default any more"),
        ("a, b", "a", "b is gone"),
        ("a, b", "b, a", "the order changed"),
        ("a, b", "a, *, b", "b is given in another way"),
        ("a", "a, **more", ""),
        ("*args", "*args, x=1", ""),
    ],
)
def test_what_breaks_a_call_is_noticed(old, new, why):
    assert stable.broken(old, new) == why


def test_the_readme_builds_on_stable_names_only():
    text = (Path(ROOT) / "README.md").read_text(encoding="utf-8")
    used = set()
    for module, names in re.findall(r"^from privrob\.([\w.]+) import (.+)$", text, re.M):
        for name in names.split(", "):
            if f"{module}.{name}" in stable.NAMES:  # a module; its functions are used with its name
                used |= {(f"{module}.{name}", f) for f in re.findall(rf"\b{name}\.([A-Za-z_]+)\(", text)}
            else:
                used.add((module, name))
    used = {(m, n) for m, n in used if n not in ("of",)}
    assert len(used) >= 8
    assert not {(m, n) for m, n in used if n not in stable.NAMES.get(m, ())}


def test_the_page_names_all_of_them():
    text = stable.page()
    for names in stable.NAMES.values():
        assert all(f"``{name}(" in text for name in names)


if __name__ == "__main__":
    held = json.loads(REFERENCE.read_text(encoding="utf-8")) if REFERENCE.is_file() else {}
    made = {**stable.signatures(), **held}
    REFERENCE.write_text(json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
