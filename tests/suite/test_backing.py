"""Which tests back an item is read from their marks: the same item first, then its section, then the code."""

import pytest

from privrob.suite import backing, claims

MARKS = """
import pytest
from privrob.accounting import gdp

PAIR = ("dplearn", "Equations 8 to 10")
TOPIC = "Section 2.1"
pytestmark = [pytest.mark.slow, pytest.mark.paper("dplearn", 'slide "Comparison": two noises')]


@pytest.mark.paper("dplearn", "Lemmas 2 and 3")
@pytest.mark.paper(*PAIR)
def test_one():
    pass


class TestMore:
    @pytest.mark.paper("dplearn", TOPIC)
    def test_two(self):
        pass
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Theorem 4.2 (restated)", {"Theorem 4.2"}),
        ("Figures 8 and 9; Lemma G.8", {"Figure 8", "Figure 9", "Lemma G.8"}),
        ("Equations 82 to 85", {f"Equation {n}" for n in range(82, 86)}),
        ("Eq. (1), Definition C.1", {"Equation 1", "Definition C.1"}),
        ("Lemmas 2/4 of Section 3", {"Lemma 2", "Lemma 4"}),
        ("nothing numbered, in 2 parts", set()),
    ],
)
def test_numbered_items_are_found_in_a_text(text, found):
    assert backing.references(text) == found


def test_sections_are_found_and_are_no_items():
    assert backing.sections("B.1.3 and Section 4.2; Appendix N") == {"B.1.3", "4.2", "N"}
    assert backing.sections("Lemma G.8, Theorem 4.2") == frozenset()


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("Lemma 3", "item"),
        ("A.2, Equation 9", "item"),
        ('slide "Comparison"', "item"),
        ("Section 2.1, last words", "section"),
        ("Section 2, last words", ""),
        ("Lemma 4", ""),
    ],
)
def test_a_test_is_found_by_item_then_by_section(house, where, how):
    folder = house.root / "tests" / "toys"
    folder.mkdir(parents=True)
    (folder / "test_toy.py").write_text(MARKS)
    (folder / "test_other.py").write_text("def test_it():\n    pass\n")
    entry = {"id": "dplearn/x", "kind": "statement", "where": where, "text": "t", "notebook": "n", "expected": "holds"}
    found = backing.of({"dplearn/x": claims.Claim(**entry)}, root=house.root)["dplearn/x"]
    assert found.how == how
    assert found.files() == (["tests/toys/test_toy.py"] if how else [])
    names = {t.name for t in backing.marked(house.root)}
    assert names == {"test_one", "test_two"}
