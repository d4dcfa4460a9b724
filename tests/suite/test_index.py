"""The generated index and the README's table say what the results say, and nothing else."""

import math

import pytest

from privrob.suite import claims, files, index

SHA = "0" * 64


@pytest.fixture
def results(house, monkeypatch):
    """A function that leaves a result without running anything: ``leave(name, preset, got=…)``."""

    def leave(name, preset, got=2.0, holds=True):
        mine = claims.of_notebook(claims.load(), name)
        evidence = {"statement": {"holds": holds}, "number": {"got": got, "agrees": True}}
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


def test_infinity_stands_in_words_and_bars_do_not_break_the_table(results):
    results.house.claims[0]["text"] = "a | b\nc"
    import yaml

    (results.house.root / "data" / "claims.yaml").write_text(yaml.safe_dump(results.house.claims))
    results("dplearn/sec1_toy", "paper", got=math.inf)
    text = index.index_text(results.folder)
    assert "| Toy | a \\| b c |" in text
    assert "| 2 | infinite | **differs** — expected: matches |" in text


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


def test_the_claims_table_is_plain_data_without_paths(results):
    results("dplearn/sec1_toy", "paper")
    table = index.claims_table(results.folder)
    assert [t["rendered"] for t in table] == [True, True, False, False]
    assert [t["verdict"] for t in table] == ["holds", "matches", "open", "open"]
    assert str(results.folder) not in files.dump_json(table)


def test_a_notebooks_name_says_its_section():
    names = ["dplearn/sec2_1_mechanisms", "ptr/appendix_b2_table_2", "own/study"]
    assert [index.section(name) for name in names] == ["§2.1", "B.2", "own/study"]
