"""Where we differ: a finding stands on stored verdicts, says numbers that are in them, and links to its evidence."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from house import ROOT as HERE
from privrob.suite import backing, claims, findings, index

ROOT = Path(HERE)
RESULTS = ROOT / "results"
ENTRIES = yaml.safe_load((ROOT / "data" / "findings.yaml").read_text(encoding="utf-8"))
NUMBER = re.compile(r"(?<![\w.^/])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\d^])")
ENTRY = {
    "id": "one",
    "document": "dplearn",
    "kind": "broken formula",
    "title": "T",
    "text": "x",
    "repair": "y",
    "claims": ["dplearn/sec1_toy_true"],
}

ITEM = {"text": "It is so.", "paper": None, "got": None, "note": "", "agrees": None}


@pytest.fixture
def real(monkeypatch):
    monkeypatch.setenv("PRIVROB_ROOT", str(ROOT))
    return {item["id"]: item for item in index.judged(RESULTS)}


@pytest.fixture
def written(house):
    """A function that writes findings.yaml of a toy house and loads it."""

    def write(**changes):
        path = house.root / "data" / "findings.yaml"
        path.write_text(yaml.safe_dump([{**ENTRY, **changes}]), encoding="utf-8")
        return findings.load()

    return write


# ------------------------------------------------------------------------------------------------------------- the file


def test_there_are_findings_on_every_document_and_of_every_kind():
    assert {e["document"] for e in ENTRIES} == set(claims.DOCUMENTS)
    assert {e["kind"] for e in ENTRIES} == set(findings.KINDS)
    assert len(ENTRIES) >= 25


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e["id"])
def test_a_finding_is_a_few_plain_sentences(entry):
    sentences = re.findall(r"[.!?](?= |$)", re.sub(r"(?<=\d)\.(?=\d)|α\.", "", entry["text"].strip()))
    assert 2 <= len(sentences) <= 6
    assert entry["repair"].strip()


def test_a_finding_must_name_claims_of_its_document(written):
    assert written()[0].claims == ("dplearn/sec1_toy_true",)
    for change, said in {
        "claims": (["dplearn/none"], "no such claim: dplearn/none"),
        "kind": ("rumour", "kind must be one of stated privacy"),
        "document": ("ptr", "claims of another document"),
        "title": (None, None),
    }.items():
        value, words = said
        if words:
            with pytest.raises(findings.FindingError, match=words):
                written(**{change: value})
    with pytest.raises(findings.FindingError, match="exactly the fields"):
        written(more="x")


def test_an_error_needs_a_verdict_that_says_so_and_nothing_may_be_unjudged(written):
    one = written()[0]
    for verdict in ("corrected", "differs", "fails"):
        assert not findings.unfounded(one, {"dplearn/sec1_toy_true": {"verdict": verdict}})
    assert "speaks of an error" in findings.unfounded(one, {"dplearn/sec1_toy_true": {"verdict": "holds"}})
    assert "not judged" in findings.unfounded(one, {"dplearn/sec1_toy_true": {"verdict": "open"}})
    good = written(kind="holds better")[0]
    assert not findings.unfounded(good, {"dplearn/sec1_toy_true": {"verdict": "holds"}})
    assert "says that something holds" in findings.unfounded(good, {"dplearn/sec1_toy_true": {"verdict": "fails"}})


# ----------------------------------------------------------------------------------------------------- and its evidence


def test_every_finding_stands_on_stored_verdicts(real):
    assert not [why for f in findings.load() if (why := findings.unfounded(f, real))]


def numbers(text):
    """{number as written: value} of a text, without the numbers of items, sections and exponents."""
    text = backing._NAMED.sub(" ", text)
    text = re.sub(r"\b(?:Section |[A-Z]\.)\d+(?:\.\d+)*|\(\d+\)|[A-Z]+-?\d+|\d+-digit", " ", text)
    return {n: float(n.replace(",", "")) for n in NUMBER.findall(text)}


def held(written, value, pool):
    """Whether a number of the pool is this one to its last digit (rounded either way), or as a percentage."""
    digits = len(written.partition(".")[2].partition("e")[0])
    unit = 10.0**-digits if "e" not in written else 0.01 * value
    return any(abs(scale * x - value) < unit for x in pool for scale in (1, 100))


def test_numbers_are_found_and_compared_to_their_last_digit():
    assert numbers("Theorem 4.2 has 1,970 of 0.25 in B.1.3 at 1e-5, see (25)") == {
        "1,970": 1970.0,
        "0.25": 0.25,
        "1e-5": 1e-5,
    }
    assert held("3.96", 3.96, [3.9659])
    assert held("98.6", 98.6, [0.98594])
    assert not held("3.96", 3.96, [3.98])


@pytest.mark.parametrize("number", range(len(ENTRIES)), ids=lambda n: ENTRIES[n]["id"])
def test_numbers_of_a_finding_stand_in_its_evidence(real, number):
    entry = ENTRIES[number]
    pool = []
    for item in (real[i] for i in entry["claims"]):
        pool += [x for x in (item["got"], item.get("spread"), item["paper"]) if isinstance(x, (int, float))]
        said = " ".join(str(item[n] or "") for n in ("text", "note", "where", "paper"))
        pool += [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", said)]
    stray = [
        n
        for n, value in numbers(" ".join((entry["title"], entry["text"]))).items()
        if (value >= 10 or value != int(value)) and not held(n, value, pool)
    ]
    assert not stray


def test_pages_hold_every_finding_with_its_evidence(real):
    text = findings.page(real, RESULTS)
    for number, finding in enumerate(findings.load(), 1):
        part = text.partition(f"## {findings.heading(number, finding)}\n")[2].partition("\n## ")[0]
        assert f"(#{findings.anchor(number, finding)})" in text
        assert part.count("/notebook.ipynb)") == len(finding.claims), finding.id
        assert finding.text.strip() in part


def test_each_letter_is_addressed_and_lists_every_correction(real):
    text = findings.letters(real, RESULTS)
    for key in claims.DOCUMENTS:
        letter = text.partition(f"\n## {key}: ")[2].partition("\n## ")[0]
        assert "Dear " in letter
        assert "Thank you" in letter
        wrong = [i for i in real.values() if i["id"].startswith(f"{key}/") and i["verdict"] in findings.ERRORS]
        assert letter.count("\n* [") == len(wrong)
        counts = Counter(i["verdict"] for i in real.values() if i["id"].startswith(f"{key}/"))
        full = sum(n for verdict, n in counts.items() if verdict not in ("trend", "not tried", "open"))
        said = re.search(r"\n(\d+) are judged in full[^:]*\notherwise: (.*)\.\n", letter)
        assert int(said[1]) == full == sum(map(int, re.findall(r"(?:^|, | and )(\d+) ", said[2])))
        total, parts = re.search(r"All (\d+) items that are not as printed, (.*), in the order", letter).groups()
        told = [counts["corrected"], counts["differs"] + counts["fails"]]
        assert int(total) == len(wrong) == sum(told)
        assert list(map(int, re.findall(r"\d+", parts))) == [n for n in told if n]
        assert f"{counts['trend']} more could only" in letter or not counts["trend"]
        assert not re.search(rf"\* \[[^\]]*: {key} ", letter), "an item is named by its place, not by our short name"


def test_a_letter_words_its_counts_and_names_the_document_where_authors_are_unknown(written, monkeypatch):
    one = written()
    item = {**ITEM, "id": one[0].claims[0], "where": "Lemma 1, by its place", "verdict": "differs"}
    text = findings.letters({item["id"]: item}, RESULTS)
    title = claims.DOCUMENTS["dplearn"]
    assert f"\nDear authors of “{title}”,\n" in text
    assert "\notherwise: 0 hold or match as printed and 1 differs.\n" in text
    assert "The one item that is not as printed, 1 that differs or fails, in the order of our list:" in text
    assert "\n* Lemma 1, by its place (differs): It is so." in text
    trend = {**item, "verdict": "trend", "agrees": False}
    assert "1 more could only be compared in direction, as data or scale differ: it does not." in findings.letters(
        {item["id"]: trend}, RESULTS
    )


def test_names_in_a_letter_are_those_of_the_bibliography():
    books = findings.bibliography(ROOT / "data" / "documents.bib")
    assert set(books) == set(claims.DOCUMENTS)
    assert findings.authors(books["ptr"]).startswith("Jiachen T. Wang, Saeed Mahloujifar")
    assert findings.authors(books["dplearn"]) == "Reza Shokri"
    assert findings.authors(books["prime"]).endswith("Sham Kakade and Sewoong Oh")
    assert "Rényi" in books["ptr"]["title"]
    assert books["fdp"]["title"].startswith("On the f-Differential Privacy"), "without TeX's marks"


def test_the_citation_file_names_the_same_documents():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    books = findings.bibliography(ROOT / "data" / "documents.bib")
    names = [[f"{a['given-names']} {a['family-names']}" for a in c["authors"] if "family-names" in a] for c in cited]
    wanted = [findings.authors(b).replace(" and ", ", ").split(", ") for b in books.values() if findings.authors(b)]
    assert [n for n in names if n] == wanted
