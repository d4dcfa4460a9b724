"""The driver on toy notebooks: what a run leaves, which faults it tells, and that equal runs leave equal bytes."""

import json
import os
import re
import sys

import nbformat
import pytest

from house import ROOT, notebook, small
from privrob.suite import catalogue, compare, files, planning, record

SMOKE = ("--preset", "smoke")
ONE, TWO = "dplearn/sec1_toy", "dplearn/sec2_toy"
WARN = "import warnings\n\nwarnings.warn('mind the step')\nprint('a line')"
FAULTS = {
    "dplearn/sec0_sleeps": (
        "import time\ntime.sleep(120)",
        "failed",
        "time limit of 0.5 minutes reached; raise it with --time-limit",
    ),
    "dplearn/sec1_raises": (
        "print('so far')\nraise KeyError('no such thing')",
        "failed",
        "cell 3: KeyError: 'no such thing'",
    ),
    "dplearn/sec2_leaves": ("import sys\nsys.exit(0)", "failed", "SystemExit: 0"),
    "dplearn/sec3_killed": (
        "import os\nos.kill(os.getpid(), 9)",
        "failed",
        "the kernel died (killed, or out of memory)",
    ),
    "dplearn/sec4_surprises": ("print(1)", "surprise", "verdict not as expected: dplearn/sec4_surprises_false"),
    "dplearn/sec5_forgets": ("print(1)", "failed", "nothing handed in for dplearn/sec5_forgets_false"),
    "dplearn/sec6_declares": ("print(1)", "failed", "not accepted: declared figures ['never'], drawn []"),
    "dplearn/sec7_lies": (
        "scale = 3.0\nrun.parameters['scale'] = 3.0",
        "failed",
        "not accepted: result.json holds other parameters",
    ),
    "dplearn/sec9_fine": ("print('fine')", "ran", "1/1 reproduced"),
}
FALSE = {"kind": "statement", "id": "false", "expected": "corrected", "text": "It is not so."}
TRUE = {"kind": "statement", "id": "true", "expected": "holds", "text": "It is so."}


def line_of(out, name):
    """The notebook's line in the closing table."""
    lines = [line for line in out.split("\n\n", 1)[-1].splitlines() if line.startswith(f"{name} ")]
    assert len(lines) == 1, out
    return lines[0]


# ------------------------------------------------------------------------------------------- one house, run in sequence


@pytest.fixture(scope="module")
def done(make_house):
    """A house after its first run, with that run's exit status and output."""
    house = make_house()
    node = notebook(ONE, extra=[WARN])
    house.write(ONE, node)
    status, out = house.run(*SMOKE)
    assert status == 0, out
    return house, out


def test_a_run_leaves_the_executed_notebook_rows_figures_and_verdicts(done):
    house, _ = done
    assert sorted(house.kept(ONE)) == [
        "draws.csv",
        "draws.png",
        "draws.svg",
        "notebook.ipynb",
        "result.json",
        "rows.csv",
    ]
    result = record.read(house.results / ONE / "smoke", check_files=True)
    assert (result["preset"], result["seed"], result["notebook"]) == ("smoke", 0, ONE)
    assert result["parameters"]["num_cells"] == 3
    assert result["changed_parameters"] == {"num_cells": 3}
    assert [c["verdict"] for c in result["claims"]] == ["holds", "trend"]
    assert result["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    rows = files.csv_to_rows(files.read_text(house.results / ONE / "smoke" / "rows.csv"))
    assert [(r["sweep"], r["index"], r["scale"], r["big"]) for r in rows] == [
        ("rows", i, 2.0, float("inf")) for i in range(3)
    ]
    assert record.read(house.results / TWO / "smoke")["claims"][1]["verdict"] == "matches", "its scale is untouched"


def test_what_cells_took_is_kept_beside_the_result_and_read_by_a_plan_where_no_cells_are(done, tmp_path):
    import shutil

    house, _ = done
    stored = [files.load_json(files.read_text(p)) for p in house.results.glob(".cells/*/*.json")]
    took = {c["identity"]: c["seconds"] for c in stored}
    shutil.copytree(house.results, clone := tmp_path / "clone", ignore=shutil.ignore_patterns(".cells"))
    found = planning.measured([clone])
    assert {r["identity"] for r in found} == set(took)
    assert all(abs(r["seconds"] - took[r["identity"]]) < 1e-3 for r in found)
    assert {files.dump_json(r["settings"]) for r in found} == {files.dump_json(c["settings"]) for c in stored}
    (clone / ONE / "smoke" / "times.jsonl").write_text("changed by hand")
    assert len(planning.measured([clone])) < len(found)


def test_sections_stand_in_their_order_and_appendices_behind_them():
    names = catalogue.names()
    assert (
        names.index("ptr/sec7_1_attackers") < names.index("ptr/appendix_b2_table_2") < names.index("fdp/sec6_1_vectors")
    )
    found = list(record.find(ROOT / "results"))
    assert [name for name, preset in found if preset == "laptop"] == names


def test_the_closing_words_name_every_notebook_and_where_to_read_on(done):
    house, out = done
    assert "1 of 2 judged in full: 1 reproduced; 1 tried only as a trend: it agrees" in line_of(out, ONE)
    assert "2/2 reproduced" in line_of(out, TWO)
    assert "2 of 2 notebooks done." in out
    both = ", ".join(f"{house.results}/{name}/smoke/notebook.ipynb" for name in (ONE, TWO))
    assert f"Read on: {both}; preset smoke is in" in out
    assert "preset smoke is in neither INDEX.md nor the pages" in out, "so it is not sent there"


def test_the_executed_notebook_is_whole_and_names_no_machine_process_or_time(done):
    house, _ = done
    text = files.read_text(house.results / ONE / "smoke" / "notebook.ipynb")
    node = nbformat.reads(text, as_version=4)
    nbformat.validate(node)
    code = [c for c in node.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    assert "notebook cell:3: UserWarning: mind the step" in text
    assert "authors-env" not in text
    for word in (str(house.root), str(ROOT), "/tmp/", os.path.expanduser("~"), sys.prefix, "papermill", "ipykernel_"):
        assert word not in text, word
    for path in (house.results / ONE / "smoke").iterdir():
        assert str(house.root).encode() not in path.read_bytes()


def test_every_machine_readable_result_is_strict(done):
    def refuse(token):
        raise AssertionError(token)

    house, _ = done
    for path in house.results.rglob("*.json"):
        json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_a_second_run_keeps_what_is_up_to_date_and_status_agrees(done):
    house, _ = done
    before = {p: p.stat().st_mtime_ns for p in (house.results / "dplearn").rglob("*")}
    status, out = house.run(*SMOKE)
    assert status == 0, out
    assert out.count("up to date") == 4
    assert {p: p.stat().st_mtime_ns for p in (house.results / "dplearn").rglob("*")} == before
    status, out = house.run("status", *SMOKE)
    assert (status, out.count("done ")) == (0, 2)


def test_smoke_never_counts_in_the_index(done):
    house, _ = done
    index = files.read_text(house.results / "INDEX.md")
    assert "## Not judged yet" in index
    assert "(dplearn/sec1_toy/" not in index


def test_another_preset_stands_beside_the_first_and_counts_in_the_index(done):
    house, _ = done
    before = house.kept(TWO)
    status, out = house.run(TWO)
    assert status == 0, out
    assert "preset laptop" in out
    assert house.kept(TWO) == before
    assert house.result(TWO, "laptop")["preset"] == "laptop"
    assert house.kept(TWO, "laptop")["rows.csv"] == before["rows.csv"], "the same values give the same rows"
    assert "](dplearn/sec2_toy/laptop/notebook.ipynb)" in files.read_text(house.results / "INDEX.md")


def test_a_fresh_run_elsewhere_from_another_folder_and_backend_leaves_the_same_bytes(done, tmp_path):
    house, _ = done
    env = house.env(MPLBACKEND="TkAgg", LC_ALL="C")
    for name in ("PYTHONUTF8", "DISPLAY", "HOME", "LANG"):
        env.pop(name, None)
    where = tmp_path / "ein Ort (mit 'Ö' & $HOME)"
    status, out = house.run(ONE, *SMOKE, "--fresh", "--out", where, env=env, cwd="/")
    assert status == 0, out
    assert house.kept(ONE, out=where) == house.kept(ONE)


def test_another_seed_gives_other_rows_in_studies_and_diff_tells_them_apart(done):
    house, _ = done
    status, out = house.run(ONE, *SMOKE, "-p", "seed", 1)
    assert status == 0, out
    study = house.root / "studies" / "sec1_toy_seed=1"
    one, two = (files.csv_to_rows(files.read_text(f / ONE / "smoke/rows.csv")) for f in (house.results, study))
    assert all(a["value"] != b["value"] for a, b in zip(one, two, strict=True))
    status, out = house.run("diff", house.results, study)
    assert status == 1
    assert "parameter seed: 0 / 1" in out
    assert not re.search(r"\d\.\d{9}", re.sub("rows?: .*|.*values differ.*", "", out)), "verdicts are told in short"
    assert "3 values differ, first in row 1, value: " in out
    assert "only in" in out
    assert compare.main(house.results, house.results) == 0


def test_a_run_keeps_what_others_left_in_its_folder(house):
    """A folder that was there before, with files that the suite has names for."""
    out = house.root / "mine"
    (out / "a/b").mkdir(parents=True)
    for name in (".movie.part", "a/b/.former.x", ".runtime"):
        (out / name).write_text("mine")
    (out / ".staging/mine.of.old").mkdir(parents=True)
    for name in (".staging/keep", ".staging/mine.of.old/keep"):
        (out / name).write_text("mine")
    status, text = house.run(ONE, *SMOKE, "--out", out)  # .runtime is in the way
    assert status == 1, text
    for name in (".movie.part", "a/b/.former.x", ".runtime", ".staging/keep", ".staging/mine.of.old/keep"):
        assert (out / name).read_text() == "mine", name


def test_a_damaged_result_of_another_preset_does_not_count_and_stops_nothing(house):
    (house.results / TWO / "paper").mkdir(parents=True)
    (house.results / TWO / "paper" / "result.json").write_text("{")
    status, text = house.run(ONE, *SMOKE)
    assert status == 0, text
    assert "1 of 1 notebook done." in text
    assert "does not count" in text


def test_a_parameter_that_a_notebook_lacks_leaves_it_out(done):
    house, _ = done
    before = house.kept(TWO)
    status, out = house.run("--dry-run", "-p", "only_here", 2)
    assert status == 2, "a parameter of none"
    assert "only_here" in out
    assert house.kept(TWO) == before


def test_redraw_computes_nothing_and_works_from_the_rows_alone(done):
    import shutil

    house, _ = done
    kept, times = house.kept(TWO), (house.results / TWO / "smoke" / "times.jsonl").read_bytes()
    shutil.move(house.results / ".cells", house.root / "cells put away")
    try:
        status, out = house.run(TWO, *SMOKE, "--redraw")
        assert status == 0, out
        assert not list((house.results / ".cells").glob("*/*.json"))
        result = house.result(TWO)
        assert (result["sweeps"][0]["stale"], result["sweeps"][0]["commits"]) == (4, ["as committed"])
        redrawn = house.kept(TWO)
        assert {n: redrawn[n] for n in ("rows.csv", "draws.csv", "draws.png")} == {
            n: kept[n] for n in ("rows.csv", "draws.csv", "draws.png")
        }
        assert "4 of 4 cells were computed by other code" in redrawn["notebook.ipynb"].decode()
        assert (house.results / TWO / "smoke" / "times.jsonl").read_bytes() == times
    finally:
        shutil.rmtree(house.results / ".cells", ignore_errors=True)
        shutil.move(house.root / "cells put away", house.results / ".cells")


def test_changed_inputs_are_told_by_status(done, monkeypatch):
    house, _ = done
    monkeypatch.setenv("PRIVROB_ROOT", str(house.root))

    def state(name):
        (plan,), _ = catalogue.plans([name], preset="smoke", out=house.results)
        return plan.state()

    presets = house.root / "notebooks" / "presets.yaml"
    text = presets.read_text()
    presets.write_text(text.replace("num_cells: 3", "num_cells: 2"))
    assert state(ONE) == ("stale", "parameters, claims or images changed")
    presets.write_text(text)
    house.write(ONE, notebook(ONE, extra=[WARN + "  # changed"]))
    assert state(ONE) == ("stale", "the notebook changed")
    house.write(ONE, notebook(ONE, extra=[WARN]))
    assert state(ONE)[0] == "done"


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.fixture(scope="module")
def faults(make_house):
    """A house of faults after one piped run of two notebooks at once."""
    house = make_house(names=())
    for name, (body, *_) in FAULTS.items():
        handed = ("true", "false") if name.endswith("surprises") else ("true",)
        asked = [TRUE, FALSE] if name.endswith(("surprises", "forgets")) else [TRUE]
        node = small(name, body, figures=["never"] if name.endswith("declares") else (), claims=handed)
        house.add(name, node, claims=asked)
    house.presets({"smoke": None})
    status, out = house.run(*SMOKE, "--jobs", 2, "--time-limit", 0.5, timeout=400)
    return house, status, out


@pytest.mark.slow
def test_one_failure_does_not_stop_the_others_and_the_exit_status_is_1(faults):
    _, status, out = faults
    assert status == 1
    bad = [n for n, (_, state, _) in FAULTS.items() if state != "ran"]
    assert f"1 of 9 notebooks done; NOT done: {', '.join(bad)}" in out


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_told_in_the_closing_table(faults, name):
    house, _, out = faults
    _, state, words = FAULTS[name]
    line = line_of(out, name)
    assert line.split()[1] == state, line
    assert words in line
    assert (house.results / name / "smoke" / "result.json").exists() == (state != "failed")


@pytest.mark.slow
def test_a_failed_notebook_leaves_its_log_and_the_notebook_as_far_as_it_came(faults):
    house, _, out = faults
    (log,) = re.findall(r"x dplearn/sec1_raises .*\(log: (.*)\)", out)
    assert log.endswith(".failed/dplearn/sec1_raises/smoke/log.txt")
    folder = house.results / ".failed" / "dplearn/sec1_raises" / "smoke"
    assert "so far" in files.read_text(folder / "executed.ipynb")
    assert "raise KeyError('no such thing')" in re.sub(r"\x1b\[[\d;]*m", "", files.read_text(folder / "log.txt"))
    assert not (house.results / ".staging").exists() or not any((house.results / ".staging").iterdir())


@pytest.mark.slow
def test_faults_leave_no_process_behind(faults):
    faults[0].assert_no_orphans()


@pytest.mark.slow
def test_a_surprise_is_kept_for_reading_and_stays_a_failure_until_it_is_gone(faults):
    house, _, _ = faults
    assert record.read(house.results / "dplearn/sec4_surprises" / "smoke")["claims"][1]["verdict"] == "holds"
    status, out = house.run("status", *SMOKE, "sec4_surprises")
    assert (status, out.split()[0]) == (1, "surprise")
