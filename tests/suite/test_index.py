"""The generated index and the README's table say what the results say, and nothing else."""

import math
import re

import pytest

from house import ROOT
from privrob.suite import claims, files, findings, index, record, tables

SHA = "0" * 64


@pytest.fixture
def results(house, monkeypatch):
    """A function that leaves a result without running anything: ``leave(name, preset, got=…)``."""

    def leave(name, preset, got=2.0, holds=True, spread=None):
        mine = claims.of_notebook(claims.load(), name)
        evidence = {"statement": {"holds": holds}, "number": {"got": got, "spread": spread, "agrees": True}}
        judged = [claims.judge(c, evidence[c.kind], parameters={"num_cells": 4}, data=[]) for c in mine.values()]
        result = {
            "format": 1,
            "notebook": name,
            "title": f"Toy {name}",
            "preset": preset,
            "parameters": {"num_cells": 4},
            "changed_parameters": {},
            "seed": 0,
            "device": {"type": "cpu", "name": "CPU"},
            "versions": {"python": "3.11", "privrob": "0", "numpy": "2"},
            "commit": "abc",
            "sources": {"notebook": SHA, "library": SHA},
            "inputs": SHA,
            "data": [],
            "sweeps": [],
            "figures": [],
            "files": {},
            "claims": judged,
            "summary": claims.tally(judged),
            "run": {"started": "now", "seconds": 130.0, "token": ""},
        }
        files.write_text(house.results / name / preset / "result.json", files.dump_json(result))
        return judged

    leave.folder, leave.house = house.results, house
    return leave


def test_without_results_every_item_is_open(results):
    text = index.index_text(results.folder)
    assert "| 4 | 0 | 0 | 0 | 0 | 4 |" in text
    assert text.count("It is so.") == 2


def test_the_paper_run_counts_before_the_laptop_run_and_smoke_never(results):
    one = "dplearn/sec1_toy"
    results(one, "smoke", got=1.0)
    assert "| 4 | 0 | 0 | 0 | 0 | 4 |" in index.index_text(results.folder)
    results(one, "laptop", got=3.0)
    assert "| 4 | 1 | 0 | 1 | 0 | 2 |" in index.index_text(results.folder)
    results(one, "paper", got=2.0)
    text = index.index_text(results.folder)
    assert "| 4 | 2 | 0 | 0 | 0 | 2 |" in text
    assert "[§1](dplearn/sec1_toy/paper/notebook.ipynb)" in text
    assert f"`{one}`, preset `paper`: 2/2 reproduced. Commit abc, CPU, 2 min. Data: none needed." in text


def test_a_result_that_was_changed_by_hand_does_not_count(results):
    one = "dplearn/sec1_toy"
    results(one, "laptop", got=2.0)
    path = results.folder / one / "laptop" / "result.json"
    result = files.load_json(files.read_text(path))
    files.write_text(path, files.dump_json({**result, "sha256": record.checksum(result)}))
    assert one in index.counted(results.folder)
    result["claims"][1]["got"] = 7.0
    files.write_text(path, files.dump_json({**result, "sha256": record.checksum({**result, "claims": []})}))
    with pytest.warns(UserWarning, match="laptop does not count: result.json was changed by hand; run it again"):
        assert one not in index.counted(results.folder)


def test_infinity_stands_in_words_and_bars_do_not_break_the_table(results):
    results.house.claims[0]["text"] = "a | b\nc"
    import yaml

    (results.house.root / "data" / "claims.yaml").write_text(yaml.safe_dump(results.house.claims))
    results("dplearn/sec1_toy", "paper", got=math.inf)
    text = index.index_text(results.folder)
    assert "| Toy: sec1 toy true | a \\| b c |" in text
    assert "| 2.0 | infinite | **differs** — expected: matches |" in text


def test_the_readmes_table_is_written_between_its_marks_and_a_late_file_is_named(results):
    readme = results.house.root / "README.md"
    readme.write_text(f"# Title\n\n{index.MARKERS[0]}\nwritten by hand\n{index.MARKERS[1]}\n\nThe end.\n")
    results("dplearn/sec1_toy", "paper")
    assert index.outdated(results.folder) == ["results/INDEX.md", "README.md"]
    assert index.refresh(results.folder, readme=readme) == ["INDEX.md", "README.md"]
    text = readme.read_text()
    assert text.startswith("# Title\n\n<!--")
    assert text.endswith("\n\nThe end.\n")
    assert "by hand" not in text
    assert "(results/dplearn/sec1_toy/paper/notebook.ipynb)" in text
    assert index.outdated(results.folder) == []
    assert index.refresh(results.folder, readme=readme) == []
    results("dplearn/sec2_toy", "laptop", holds=False)
    assert index.outdated(results.folder) == ["results/INDEX.md", "README.md"]


def test_results_are_read_and_checked_once_for_all_pages(results, monkeypatch):
    results("dplearn/sec1_toy", "paper")
    readme, found, asked = results.house.root / "README.md", index.counted, []
    readme.write_text("\n".join(index.MARKERS))
    monkeypatch.setattr(index, "counted", lambda folder: asked.append(folder) or found(folder))
    index.refresh(results.folder, readme=readme)
    assert index.outdated(results.folder) == []
    assert asked == [results.folder] * 2


def test_benchmarks_are_linked_to_once_they_are_there(results):
    results("dplearn/sec1_toy", "paper")
    assert index.BENCHMARKS not in index.index_text(results.folder)
    (results.folder / index.BENCHMARKS).write_text("# Benchmarks\n")
    assert f"[{index.BENCHMARKS}]({index.BENCHMARKS})." in index.index_text(results.folder)


def test_links_at_the_top_jump_to_the_parts_of_the_page(results):
    results("dplearn/sec1_toy", "paper")
    text = index.index_text(results.folder)
    top, _, below = text.partition("How to read a verdict")
    assert "[dplearn](#items-of-dplearn) · [not judged yet](#not-judged-yet). Links in the table below lead to" in top
    for part in ("## Items of dplearn\n", "### [Toy dplearn/sec1_toy](dplearn/sec1_toy/paper/notebook.ipynb)\n"):
        assert f"\n{part}" in below
    assert "\n## Not judged yet\n" in below
    assert f"{claims.DOCUMENTS['dplearn']}: [§1](#toy-dplearnsec1_toy)." in below
    results("dplearn/sec2_toy", "paper")
    assert "not-judged-yet" not in index.index_text(results.folder), "no link to a part that is not there"


def test_every_link_within_the_real_index_leads_to_a_heading(monkeypatch):
    monkeypatch.setenv("PRIVROB_ROOT", str(ROOT))
    text = index.index_text(ROOT / "results")
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    anchors = {findings.slug(re.sub(r"^\[(.*)\]\(\S*\)$", r"\1", h)) for h in headings}
    linked = re.findall(r"\]\(#([^)]+)\)", text)
    assert len(linked) > 40
    assert [a for a in linked if a not in anchors] == []


def test_a_notebook_beyond_its_document_reproduces_no_items(results):
    results.house.add("dplearn/sec3_more", {}, claims=[])
    results("dplearn/sec3_more", "paper")
    assert "preset `paper`: beyond the document: no items. Commit" in index.index_text(results.folder)


def test_a_notebooks_name_says_its_section():
    names = ["dplearn/sec2_1_mechanisms", "ptr/appendix_b2_table_2", "own/study"]
    assert [index.section(name) for name in names] == ["§2.1", "B.2", "own/study"]


def test_two_links_of_one_section_have_texts_of_their_own():
    names = ["ptr/sec5_1_table_1", "ptr/sec5_1_what_trimming_does", "ptr/appendix_b2_table_2", "ptr/sec5_2_convergence"]
    assert list(index.link_texts(names).values()) == ["§5.1 table 1", "§5.1 what trimming does", "B.2", "§5.2"]


def test_no_document_has_two_links_of_one_text():
    for document in claims.DOCUMENTS:
        names = [p.stem for p in sorted((ROOT / "notebooks" / document).glob("*.ipynb"))]
        texts = list(index.link_texts(f"{document}/{name}" for name in names).values())
        assert len(set(texts)) == len(texts) == len(names) > 0


def test_every_verdict_and_short_word_is_explained_before_it_stands_in_a_table(results):
    results("dplearn/sec1_toy", "paper")
    head = index.index_text(results.folder).partition("\n|")[0]
    for verdict in (*claims.VERDICTS, "open"):
        assert f"* **{verdict}**: " in head
    for short in ("PTR", "TSGD", "RDP", "± b", "`laptop`", "reproduced"):
        assert short in head


def test_a_row_shows_value_spread_preset_and_the_tests_behind_it(results):
    folder = results.house.root / "tests" / "toys"
    folder.mkdir(parents=True)
    (folder / "test_toy.py").write_text('@pytest.mark.paper("dplearn", "Figure 3")\ndef test_it():\n    pass\n')
    import yaml

    results.house.claims[1]["where"] = "Figures 1 to 4"
    (results.house.root / "data" / "claims.yaml").write_text(yaml.safe_dump(results.house.claims))
    results("dplearn/sec1_toy", "paper", got=2.04, spread=0.0312)
    text = index.index_text(results.folder)
    assert "| Figures 1 to 4 | Two. | 2.0 | 2.040 ± 0.031 | **matches** |" in text
    assert "[notebook](dplearn/sec1_toy/paper/notebook.ipynb), paper; [test_toy](../tests/toys/test_toy.py) |" in text
    assert "| Toy: sec1 toy true | It is so. |" in text  # named by its place only: its short name stands beside it


@pytest.mark.parametrize(
    ("item", "digits", "shown"),
    [
        ({"got": -1.6833333, "spread": 0.4969}, 1, "-1.68 ± 0.50"),
        ({"got": 38.3119, "spread": 0.8928}, 2, "38.31 ± 0.89"),
        ({"got": 0.15811, "paper": 0.15, "verdict": "differs"}, 2, "0.16"),
        ({"got": 98.352, "paper": 98.3, "verdict": "differs"}, 2, "98.35"),
        ({"got": 2.0001, "paper": 2.0, "verdict": "differs"}, 2, "2.0001"),
        ({"got": 4.60497e-136, "paper": 4.61e-136, "verdict": "differs"}, 138, "4.605e-136"),
        ({"got": 2.0, "paper": 2.0, "verdict": "matches"}, 2, "2.00"),
        ({"got": -0.050024937}, None, "-0.05002"),
        ({"got": 43512.58}, None, "43513"),
        ({"got": 3.46601855e-13}, None, "3.466e-13"),
        ({"got": 0.0}, None, "0"),
        ({"got": {"$float": "inf"}}, None, "infinite"),
        ({"got": math.inf, "spread": 0.1}, 1, "infinite"),
        ({"got": None}, 2, ""),
        ({"got": 7}, None, "7"),
        ({"got": True}, None, "True"),
    ],
)
def test_values_are_shown_with_digits_that_mean_something(item, digits, shown):
    assert tables.got({"verdict": "holds", "paper": None, "spread": None, **item}, digits) == shown
