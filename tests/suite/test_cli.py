"""Calls that are refused before anything runs, and verbs that run nothing."""

import errno
import json
import os
import subprocess
import time

import nbformat
import pytest

from fault_kit import mounted
from house import notebook
from privrob.suite import catalogue, cli, guard, inputs


def refused(call, *arguments):
    """The call is refused quickly, and nothing was run or left behind; returns what was said."""
    began = time.monotonic()
    status, out, err = call(*arguments)
    assert status == 2, (status, out, err)
    assert time.monotonic() - began < 10
    assert "Traceback" not in out + err
    assert not (call.house.results / ".staging").exists()
    return err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "smok"], "--preset must be one of laptop, paper, smoke, got 'smok'"),
        (["-p", "scale", "3", "-p", "scale", "4"], "-p scale was given twice"),
        (["stats"], "refused: did you mean the verb ./run_all.sh status? notebooks: no notebook 'stats'; There is"),
        (["--out", "results", "-p", "scale", "3", "--dry-run"], "changed parameters do not go to results/"),
        (["sec1_tyo"], "no notebook 'sec1_tyo'; did you mean 'sec1_toy'? There is: dplearn/sec1_toy"),
        (["dplearn/sec3*"], "no notebook 'dplearn/sec3*'"),
        (["-p", "seed", "1.5"], "-p seed must be a whole number, got 1.5"),
        (["-p", "seed", "None"], "-p seed must be a whole number, got None"),
        (["-p", "seed", "'7'"], "-p seed must be a whole number, got '7'"),
        (["--engine", "ray"], "--engine must be local, dask or dask://host:port, got 'ray'"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--time-limit", "0"], "--time-limit must be above 0 minutes, got 0"),
        (["--time-limit", "nan"], "--time-limit must be above 0 minutes"),
        (["--out", "results", "-p", "scale", "3"], "changed parameters do not go to results/"),
        (["--out", "results/mine", "-p", "scale", "3"], "changed parameters do not go to results/"),
        (["--jobs", "two"], "invalid int value"),
        (["--prest", "smoke"], "unrecognized arguments: --prest"),
        (["--fresh", "--redraw"], "not allowed with"),
        (["-p", "scale"], "expected 2 arguments"),
        (["--sweep", "scale"], "--sweep must be NAME=VALUE,VALUE,…, got 'scale'"),
        (["--sweep", "scale=1,,2"], "--sweep scale must have a value on each side of a comma"),
        (["--sweep", "scale=1,1"], "--sweep scale must name each value once"),
        (["--sweep", "scale=1,much"], "-p scale must be a number, got 'much'"),
        (["--sweep", "sclae=1,2"], "no parameter 'sclae'; did you mean 'scale'?"),
        (["--sweep", "scale=1,2", "--sweep", "scale=3"], "--sweep scale was given twice"),
        (["--sweep", "scale=1,2", "-p", "scale", "3"], "must name different parameters, got both for scale"),
        (["--sweep", "seed=" + ",".join(map(str, range(65)))], "at most 64 combinations, got 65"),
        (["--sweep", "scale=1,2", "--out", "results"], "changed parameters do not go to results/"),
        (["--study", "nowhere.yaml"], "--study must be a study's YAML file"),
        (["--study", ""], "--study must be a study's YAML file"),
        (["--study", "a file"], "--study must hold entries of title, notebooks, preset, parameters, sweep"),
        (["--study", "nowhere.yaml", "sec1_toy"], "--study holds its own notebooks and values, got names beside it"),
    ],
)
def test_a_wrong_call_is_refused_in_seconds_with_the_way_out(call, arguments, words):
    (call.house.root / "a file").write_text("")
    assert words in refused(call, *arguments)


@pytest.mark.parametrize(
    ("presets", "words"),
    [
        (
            "smoke: {dplearn/sec1_toi: {num_cells: 3}}",
            "no notebook 'dplearn/sec1_toi'; did you mean 'dplearn/sec1_toy'?",
        ),
        ("smoke: {dplearn/sec1_toy: 3}", "dplearn/sec1_toy must hold 'parameter: value' pairs, got 3"),
        ("smoke: {_minutes: -1}", "_minutes must lie in (0"),
        ("smoke: [1]", "presets.yaml must map each preset"),
        ("", "presets.yaml must map each preset"),
        ("smoke: {", "presets.yaml cannot be read"),
        (None, "presets.yaml cannot be read"),
    ],
)
def test_a_wrong_presets_file_is_refused_by_entry(call, presets, words):
    path = call.house.root / "notebooks" / "presets.yaml"
    path.write_text(presets) if presets is not None else path.unlink()
    assert words in refused(call, "--preset", "smoke")


def test_a_notebook_that_hides_failures_is_refused_by_the_driver(call):
    call.house.write("dplearn/sec2_toy", notebook("dplearn/sec2_toy", extra=["!false"]))
    assert "dplearn/sec2_toy: code cell 5 is not plain Python" in refused(call, "--preset", "smoke")


def test_claims_that_cannot_be_judged_are_refused(call):
    (call.house.root / "data" / "claims.yaml").write_text("- {id: dplearn/x}")
    assert "claims.yaml, dplearn/x" in refused(call, "--preset", "smoke")


def test_list_names_notebooks_their_parameters_and_what_they_mean(call):
    status, out, _ = call("--list", "--preset", "smoke")
    assert status == 0
    assert "dplearn/sec1_toy  —  Toy sec1_toy\n    smoke: never run here; missing" in out
    assert "Parameters: ./run_all.sh --list NOTEBOOK" in out
    status, out, _ = call("--list", "dplearn/*", "--preset", "smoke")
    assert "    -p num_cells 3  # how many cells" in out, "the preset's value"
    assert "    -p num_cells 4  # how many cells" in out
    assert not call.house.results.exists()


def test_list_adds_up_what_notebooks_took(call, monkeypatch):
    monkeypatch.setattr(catalogue.Plan, "last_run", lambda plan: {"seconds": 90.0, "stored_seconds": 3600.0})
    out = call("--list", "--preset", "smoke")[1]
    assert "2 of 2 together: 3 min and 120 min of stored cells (one core)" in out
    assert "together" not in call("--list", "sec1_toy", "--preset", "smoke")[1]


def test_dry_run_says_what_would_run_with_which_changes(call):
    status, out, _ = call("--dry-run", "--preset", "smoke", "-p", "scale", "-1e-5")
    assert status == 0
    assert "run   dplearn/sec1_toy  (missing: never run)\n        num_cells = 3  (paper: 4)" in out
    assert out.count("scale = -1e-05  (paper: 2.0)") == 2
    assert not call.house.results.exists()
    assert not (call.house.root / "studies").exists()


def test_names_globs_folders_and_file_paths_choose_notebooks(call):
    def chosen(*patterns):
        return [line.split()[1] for line in call("--dry-run", *patterns)[1].splitlines() if line.startswith("run ")]

    both = ["dplearn/sec1_toy", "dplearn/sec2_toy"]
    assert chosen() == chosen("dplearn") == chosen("dplearn/*") == chosen("*toy") == both
    assert chosen("sec2_toy") == chosen("notebooks/dplearn/sec2_toy.ipynb") == chosen("dplearn/sec2*") == both[1:]


def test_notebooks_stand_in_the_order_of_their_numbers(call):
    for name in ("dplearn/sec10_toy", "fdp/sec1_toy", "ptr/sec1_toy"):
        call.house.add(name, notebook(name), claims=())
    out = call("--dry-run")[1]
    order = [line.split()[1] for line in out.splitlines()]
    assert order == ["ptr/sec1_toy", "fdp/sec1_toy", "dplearn/sec1_toy", "dplearn/sec2_toy", "dplearn/sec10_toy"]


def test_status_says_missing_and_exits_with_1(call):
    status, out, _ = call("status", "--preset", "smoke")
    assert status == 1
    assert out.splitlines() == [f"missing   {n}  never run" for n in call.house.names]


def test_help_shows_examples_and_presets(call):
    status, out, _ = call("--help")
    assert status == 0
    assert "./run_all.sh 'dplearn/*' --preset smoke" in out
    for word in ("presets:", "--engine", "-p NAME VALUE", "status, test, lab, site, export, bench, diff, clean"):
        assert word in out
    for verb in ("status", "test", "site", "export", "bench", "diff", "clean", "plan"):
        assert call(verb, "--help")[0] == 0


def test_help_needs_no_package_so_that_it_comes_before_the_environment(house):
    import sys

    code = (
        "import sys\nfrom privrob.suite import cli\n"
        "for verb in ([], ['status'], ['plan'], ['site'], ['bench']):\n"
        "    try:\n        cli.main([*verb, '--help'])\n    except SystemExit:\n        pass\n"
        "print({'numpy', 'yaml', 'torch', 'nbformat'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=house.env(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("/a b/.venv/bin/privrob", "privrob"),
        (r"privrob.exe", "privrob"),
        ("/lib/privrob/suite/__main__.py", "./run_all.sh"),
        ("/lib/privrob/__main__.py", "python -m privrob"),
    ],
)
def test_help_calls_the_program_by_the_name_it_was_called_with(call, monkeypatch, called, name):
    monkeypatch.setattr("sys.argv", [called, "--help"])
    for verb in ("", "status", "plan"):
        out = call(*([verb] if verb else []), "--help")[1]
        assert f"usage: {name} {verb}".strip() in out
        assert ("./run_all.sh" in out) == (name == "./run_all.sh"), "examples, too"
    assert f"the verb {name} status?" in call("statsu")[2]


def test_of_many_notebooks_a_message_says_how_many_and_the_nearest():
    names = [f"ptr/sec{n}_a" for n in range(9)] + [f"fdp/sec{n}_b" for n in range(5)]
    said = guard.unknown("sec3_c", names, where="notebooks", what="notebook")
    assert said.startswith("notebooks: no notebook 'sec3_c'; did you mean 'sec3_")
    assert said.endswith("There are 14 (5 in fdp/, 9 in ptr/): ./run_all.sh --list names them")
    mine = [f"ptr/item_{n}" for n in range(14)]
    assert "ptr/item_13" in guard.unknown("ptr/x", mine, where="ptr/sec1", what="claim"), "of one folder all are told"


def test_clean_removes_only_what_runs_left_and_only_when_told(call):
    out = call.house.root / "out"
    smoke = "dplearn/sec1_toy/smoke"
    for name in (".cells/ab/cell.json", ".failed/x/log.txt", "site/index.html", f"{smoke}/rows.csv"):
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("x" * 2**20)
    for name in ("site/built.js", f"{smoke}/result.json"):  # the marks of what the suite made
        (out / name).write_text("")
    for name in ("tests/unit/smoke/mine.py", "dplearn/notes/smoke/mine.txt"):
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
    (out / "dplearn/sec1_toy/paper").mkdir()
    (out / "dplearn/sec1_toy/paper/rows.csv").write_text("kept")
    status, text, _ = call("clean", "--out", out)
    assert (status, text.splitlines()[-1].split()) == (
        0,
        ["4.0", "MB", "in", "all,", "nothing", "removed", "yet:", "add", "--yes"],
    )
    assert (out / ".cells").exists()
    assert call("clean", "--out", out, "--yes")[0] == 0
    left = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file() and p.name != ".lock")
    assert left == ["dplearn/notes/smoke/mine.txt", "dplearn/sec1_toy/paper/rows.csv", "tests/unit/smoke/mine.py"]


def test_clean_leaves_pages_that_are_not_the_suites_and_does_not_follow_links(call):
    out, elsewhere = call.house.root / "out", call.house.root / "big disk"
    for name in ("site/mine.html", ".failed/log.txt"):
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
    elsewhere.mkdir()
    (elsewhere / "cell.json").write_text("kept")
    (out / ".cells").symlink_to(elsewhere)
    assert call("clean", "--out", out, "--yes")[0] == 0
    assert sorted(p.name for p in out.iterdir()) == [".lock", "site"]
    assert (elsewhere / "cell.json").exists()
    assert "is not there" in refused(call, "clean", "--out", call.house.root / "nowhere")
    assert not (call.house.root / "nowhere").exists()


def test_clean_keeps_a_study_in_which_somebody_works(call):
    from privrob.suite import files

    study = call.house.root / "studies" / "scale=3"
    study.mkdir(parents=True)
    (study / "rows.csv").write_text("mine")
    call.house.results.mkdir()
    with files.lock(study, purpose="a run"):
        status, text, _ = call("clean", "--yes", "--studies")
    assert status == 0
    assert "in use by a run" in text
    assert (study / "rows.csv").exists()


def test_clean_keeps_studies_unless_they_are_asked_for(call):
    study = call.house.root / "studies" / "scale=3"
    study.mkdir(parents=True)
    (study / "rows.csv").write_text("mine")
    call.house.results.mkdir()
    status, text, _ = call("clean", "--yes")
    assert status == 0
    assert "kept: 1 of your studies" in text
    assert study.exists()
    assert call("clean", "--yes", "--studies")[0] == 0
    assert not study.exists()


def test_clean_refuses_a_folder_that_runs_did_not_make(call):
    (call.house.root / "home" / "site").mkdir(parents=True)
    (call.house.root / "home" / "site" / "mine.html").write_text("")
    assert "holds none of their files" in refused(call, "clean", "--out", call.house.root / "home", "--yes")
    assert (call.house.root / "home" / "site" / "mine.html").exists()


def test_diff_refuses_what_is_no_folder(call):
    assert "diff needs two results folders" in refused(call, "diff", "results", "nowhere")
    for name in ("one", "two"):
        (call.house.root / name).mkdir()
    assert "one holds no results" in refused(call, "diff", "one", "two")


def test_a_notebook_whose_metadata_are_bare_is_listed_under_its_name(call):
    node = notebook("dplearn/sec1_toy")
    node.metadata.clear()
    call.house.write("dplearn/sec1_toy", nbformat.from_dict(json.loads(json.dumps(node))))
    assert call("--list", "sec1_toy")[0] == 0


def test_a_failed_check_does_not_keep_the_others_from_running_and_is_counted(monkeypatch, capsys):
    from privrob.suite import selftest

    tried = []

    def step(command, *_):
        tried.append(command[3] if command[2] == "ruff" else command[2])
        return command[3] != "format"

    monkeypatch.setattr(selftest, "_call", step)
    monkeypatch.setattr(selftest, "_index", lambda: True)
    assert selftest.main() == 1
    num_studies = len(list((selftest.repository() / "notebooks" / "studies").glob("*.yaml")))
    assert tried == ["check", "format", "pytest", "privrob.suite"] + num_studies * ["privrob.suite"]
    assert f"{len(selftest.STEPS) - 1} passed, 1 failed" in capsys.readouterr().out
    assert selftest.main(["index"]) == 0


@pytest.mark.parametrize(
    ("arguments", "passed_on"), [([], []), (["--all"], ["--all"]), (["--all", "--", "-x"], ["--all", "-x"])]
)
def test_all_moments_are_asked_of_pytest(monkeypatch, arguments, passed_on):
    from privrob.suite import selftest

    asked = []
    monkeypatch.setattr(selftest, "main", lambda only, options: asked.append(options) or 0)
    assert cli.main(["test", *arguments]) == 0
    assert asked == [passed_on]


def test_a_call_that_is_refused_leaves_no_study_in_a_folder_that_was_there(call, tmp_path, monkeypatch):
    def unknown(plans):
        raise ValueError("dataset must be one of mnist, got 'mnits'")

    monkeypatch.setattr(inputs, "fetch", unknown)
    err = refused(call, "sec1_toy", "--preset", "smoke", "-p", "scale", "3", "--out", tmp_path)
    assert "mnits" in err
    assert not (tmp_path / "study.yaml").exists()


def test_a_file_system_made_read_only_is_told_in_words(call, tmp_path):
    with mounted(tmp_path, "size=1m"):
        (tmp_path / ".cells").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        status, _, err = call("clean", "--yes", "--out", tmp_path)
    assert (status, err) == (1, f"stopped: Read-only file system: {tmp_path / '.lock'}\n")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR])
def test_a_place_that_cannot_be_used_stops_any_verb_in_words(capsys, monkeypatch, number):
    def fails(argv):
        raise OSError(number, os.strerror(number), "/a/place")

    monkeypatch.setattr(cli, "status", fails)
    assert cli.main(["status"]) == 1
    assert capsys.readouterr().err == f"stopped: {os.strerror(number)}: /a/place\n"


def test_how_long_a_run_may_take_is_told_by_the_last_runs(call, monkeypatch):
    call.house.write("dplearn/sec2_toy", notebook("dplearn/sec2_toy"))
    call.house.write("dplearn/sec3_toy", notebook("dplearn/sec3_toy"))
    stored = {
        ("results", "dplearn/sec1_toy"): {"seconds": 100.0, "stored_seconds": 320.0},
        ("results", "dplearn/sec2_toy"): {"seconds": 60.0},
        ("mine", "dplearn/sec2_toy"): {"seconds": 180.0},
    }
    monkeypatch.setattr(catalogue.Plan, "last_run", lambda plan: stored.get((plan.out.name, plan.name)))

    def told(pattern, out="results", jobs=1, **kwargs):
        found, _ = catalogue.plans([pattern], preset="smoke", out=call.house.root / out, **kwargs)
        return catalogue.expected(found, jobs=jobs)

    assert told("dplearn/sec1*") == "expected: up to 7 min by the last runs"
    assert told("dplearn/sec1*", jobs=2) == "expected: up to 4 min by the last runs"
    assert told("*") == "expected: up to 8 min by the last runs, without 1 that never ran"
    assert told("dplearn/sec2*", out="mine") == "expected: up to 3 min by the last runs"
    changed = told("dplearn/sec1*", out="mine", overrides=[("scale", "3")])
    assert changed == "expected: up to 7 min by the last runs, less or more with your changes"
    again = told("dplearn/sec2*", out="mine", overrides=[("scale", "3")])
    assert again == "expected: up to 3 min by the last runs", "the changes were in that run"
    assert told("dplearn/sec3*") == "", "it never ran"
    assert told("dplearn/sec2*", jobs=2) == "", "under a minute"
