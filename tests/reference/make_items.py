"""Counts the headings of numbered items in the documents' texts and tells which of them items.yaml lacks.

    python tests/reference/make_items.py FOLDER        # a folder with the five texts, 000_….txt to 004_….txt

The texts are not part of the checkout. Scanned ones have letters misread, so what this prints is read by a person.
"""

import re
import sys
from pathlib import Path

import yaml

ORDER = ("ptr", "fdp", "dplearn", "stobatch", "prime")
KINDS = "Theorem|Lemma|Corollary|Proposition|Definition|Remark|Algorithm|Figure|Table|Example|Assumption"
HEADING = re.compile(rf"^\W*(?:<\|[^|]*\|>)?\W*({KINDS})\s+\[?([A-Z]?\.?\d+(?:\.\d+)*)\]?(?=[\s.:*(]|$)", re.M)


def expanded(numbers):
    """The numbers of a list of items.yaml: ``"G.3-14"`` and ``1-5`` are ranges."""
    found = []
    for number in map(str, numbers):
        if match := re.fullmatch(r"((?:[A-Z]\.)?)(\d+)-(\d+)", number):
            found += [f"{match[1]}{n}" for n in range(int(match[2]), int(match[3]) + 1)]
        else:
            found.append(number)
    return found


def named(entry):
    """All numbered items of one document of items.yaml: ``["Theorem 4.2", …]``."""
    kinds = {**entry.get("numbered", {}), "Equation": entry.get("equations", [])}
    return [f"{kind} {number}" for kind, numbers in kinds.items() for number in expanded(numbers)]


def load():
    """items.yaml as it stands."""
    return yaml.safe_load(Path(__file__).with_name("items.yaml").read_text(encoding="utf-8"))


def main(folder):
    """Print what the texts have and items.yaml lacks."""
    for key, path in zip(ORDER, sorted(Path(folder).glob("00*.txt")), strict=True):
        text = path.read_text(encoding="utf-8")
        headings = {f"{kind} {number}" for kind, number in HEADING.findall(text)}
        print(f"{key}: {len(named(load()[key]))} items here, {len(headings)} headings in the text; not here:")
        print("   ", ", ".join(sorted(headings - set(named(load()[key])))) or "none")


if __name__ == "__main__":
    main(*sys.argv[1:])
