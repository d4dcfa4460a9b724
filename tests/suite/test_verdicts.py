"""The stored verdicts are whole: no hole, nothing judged twice, no link that leads nowhere, little that was not tried.

These tests read what is stored in ``results/``; a result that is missing or out of step makes them red.
"""

import importlib.util
import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

from privrob.suite import backing, claims, index, record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
MOST_NOT_TRIED = 0.10  # of a document's items


def _reference():
    spec = importlib.util.spec_from_file_location("make_items", ROOT / "tests" / "reference" / "make_items.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_items = _reference()
COUNTED = make_items.load()
ITEMS = [(key, item) for key, entry in COUNTED.items() for item in make_items.named(entry)]


@pytest.fixture(scope="module", autouse=True)
def here():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVROB_ROOT", str(ROOT))
        yield


@pytest.fixture(scope="module")
def known(here):
    return claims.load()


@pytest.fixture(scope="module")
def counted(here):
    return index.counted(RESULTS)


@pytest.fixture(scope="module")
def judged(here):
    return index.judged(RESULTS)


# ------------------------------------------------------------------------------------------------- the texts' own count


def test_the_count_covers_five_documents_and_is_large():
    assert set(COUNTED) == set(claims.DOCUMENTS)
    assert len(ITEMS) == len(set(ITEMS)) >= 250


def test_every_numbered_item_of_the_texts_has_a_claim(known):
    """A claim names the item in its place, or items.yaml says which claims judge it, and why."""
    named = {key: set() for key in COUNTED}
    for claim in known.values():
        named[claim.document] |= backing.references(claim.where)
    holes = []
    for key, item in ITEMS:
        elsewhere = COUNTED[key].get("elsewhere", {}).get(item)
        if elsewhere:
            assert elsewhere["why"]
            holes += [f"{key} {item}: {i}" for i in elsewhere["claims"] if i not in known]
        elif item not in named[key]:
            holes.append(f"{key} {item}")
    assert not holes


def test_every_slide_with_a_statement_has_a_claim(known):
    held = "\n".join(c.where for c in known.values() if c.document == "dplearn")
    assert not [slide for slide in COUNTED["dplearn"]["slides"] if f'slide "{slide}"' not in held]


def test_every_printed_comparison_of_the_tables_has_a_claim(known):
    for table, cells in COUNTED["ptr"]["cells"].items():
        number = table.split()[1]
        mine = [i for i, c in known.items() if re.match(rf"ptr/table_{number}_", i) and c.kind == "number"]
        assert len(mine) == cells, table


# ------------------------------------------------------------------------------------------------- verdicts and results


def test_no_item_is_judged_twice(counted):
    seen = Counter(item["id"] for _, result in counted.values() for item in result["claims"])
    assert not [i for i, n in seen.items() if n > 1]


def test_each_result_judges_the_claims_of_its_notebook_and_no_others(known, counted):
    for name, (_, result) in counted.items():
        assert {i["id"] for i in result["claims"]} == set(claims.of_notebook(known, name)), name


def test_stored_verdicts_are_of_todays_claims(known, counted):
    """What the document says, and the value it prints, are the same in claims.yaml and in the stored verdict."""
    late = []
    for name, (_, result) in counted.items():
        for item in result["claims"]:
            claim = known.get(item["id"])
            if claim and (item["kind"], item["paper"], item["text"]) != (claim.kind, claim.paper, claim.text):
                late.append(f"{name}: {item['id']}")
    assert not late


@pytest.mark.parametrize("key", claims.DOCUMENTS)
def test_no_item_is_without_a_verdict(judged, key):
    holes = [i["id"] for i in judged if i["id"].startswith(f"{key}/") and i["verdict"] == "open"]
    assert not holes, f"{len(holes)} items of {key} have no stored verdict"


@pytest.mark.parametrize("key", claims.DOCUMENTS)
def test_few_items_of_a_document_are_not_tried(judged, key):
    mine = [i for i in judged if i["id"].startswith(f"{key}/")]
    left = [i for i in mine if i["verdict"] in ("not tried", "open")]
    most = MOST_NOT_TRIED * len(mine)
    assert len(left) <= most, (
        f"{len(left)} of {len(mine)} items of {key} ({100 * len(left) / len(mine):.1f} %) are not tried or open: "
        f"{dict(Counter(i.get('reason') or 'open' for i in left))}"
    )


def test_what_is_not_tried_says_why(judged):
    """The closed list gives the kind of reason; where the text lacks something, the note says what."""
    left = [i for i in judged if i["verdict"] == "not tried"]
    assert not [i["id"] for i in left if i["reason"] not in claims.REASONS]
    assert not [i["id"] for i in left if i["reason"] in ("not in the text", "needs hardware") and not i["note"]]


def test_every_number_that_differs_or_is_corrected_says_what_was_got(judged):
    bare = [i["id"] for i in judged if i["verdict"] in ("corrected", "differs", "fails") and not i["note"]]
    assert not bare


# ---------------------------------------------------------------------------------------------------------------- links


def test_what_a_result_names_is_there(counted):
    for name, (folder, result) in counted.items():
        record.read(folder, check_files=True)
        assert (folder / "notebook.ipynb").is_file(), name
        assert (ROOT / "notebooks" / f"{name}.ipynb").is_file(), name
        for figure in result["figures"]:
            assert (folder / f"{figure['name']}.png").is_file(), f"{name}: {figure['name']}"
        if result["sweeps"]:
            assert (folder / "rows.csv").is_file(), name


def dead(text, folder):
    """Links of a Markdown text to files that are not there."""
    links = re.findall(r"\]\(([^()\s#]+)(?:#[^()\s]*)?\)", text)
    return [t for t in links if "://" not in t and not t.startswith("mailto:") and not (folder / unquote(t)).exists()]


def test_a_dead_link_would_be_seen(tmp_path):
    (tmp_path / "a b.md").write_text("")
    assert dead("[x](a%20b.md) [y](no.md#part) [z](https://example.org)", tmp_path) == ["no.md"]


def test_links_in_rendered_notebooks_lead_somewhere(counted):
    """Notebooks link one another by their place below ``notebooks/``, so that is where links are looked up."""
    found = []
    for name, (folder, _) in counted.items():
        node = nbformat.read(folder / "notebook.ipynb", as_version=4)
        text = "\n".join(c.source for c in node.cells if c.cell_type == "markdown")
        found += [f"{name}: {t}" for t in dead(text, (ROOT / "notebooks" / name).parent)]
    assert not found


def test_links_of_the_generated_pages_lead_somewhere(here):
    made = index.pages(RESULTS)
    for path, text in made.items():
        late = [t for t in dead(text, path.parent) if RESULTS / t not in made]
        assert not late, path.name


def test_every_item_is_backed_by_tests(known):
    """By a test that names it, its section, or the code that its notebook computes with; most by the first."""
    how = {i: b.how for i, b in backing.of(known).items()}
    assert not [i for i, h in how.items() if not h]
    assert sum(h == "item" for h in how.values()) >= 0.6 * len(how)
