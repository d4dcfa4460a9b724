"""``./run_all.sh plan``: notebooks are counted and not run, what is not known is said, and the recipes are sound."""

import ast
import csv
import re
import subprocess
from types import SimpleNamespace

import pytest
import yaml

from house import notebook
from privrob.suite import cli, counting, files, plan_arguments, planning, probing

PLANS = """\
plans = run.sweep([("toy_cells:plan_cell", {"epsilon": e}) for e in (1, 2)], label="plans")"""
LOOP = """\
trained = []
for steps in plans["steps"]:
    work = [
        ("toy_cells:train_cell", {"num_steps": int(steps), "batch_size": 5, "seed": s, "device": run.device})
        for s in range(num_cells)
    ]
    found = run.sweep(work, label=f"{steps} steps")
    trained.append(found.assign(steps=steps))"""
USE = """\
import pandas as pd

trained = pd.concat(trained)
best = int(trained["value"].max())"""
AFTER = """\
again = []
for one in [best]:
    again.append(("toy_cells:train_cell", {"num_steps": one}))
run.sweep(again, label="dependent")"""
ALONE = """\
more = run.sweep([("toy_cells:train_cell", {"num_steps": 70, "batch_size": 1})], label="independent")
assert len(more)"""
NAME = "dplearn/sec1_toy"


def with_cells(house, cells, name=NAME):
    """A notebook of the house with these code cells in place of its sweep and figure."""
    node = notebook(name, extra=cells)
    node.cells = node.cells[:3] + node.cells[5:]
    node.cells[2]["source"] += "\nprint(scale, num_cells, sleep)"
    for index, cell in enumerate(node.cells):
        cell["id"] = f"c{index}"
    house.write(name, node)


@pytest.fixture
def counted(make_house, monkeypatch):
    """count(cells) → the :class:`planning.Count` of a toy notebook with these cells; nothing else may change."""
    house = make_house("counted", names=(NAME,))
    for name, value in house.env().items():
        monkeypatch.setenv(name, value)

    def count(cells, **options):
        from privrob.suite import catalogue

        with_cells(house, cells)
        plans, _ = catalogue.plans([NAME], preset="paper", out=planning.folder())
        (found,) = planning.count_all(
            plans, planning.Options(measured=(house.results,), **options), say=lambda line: None
        )
        assert not house.results.exists()
        assert not list(planning.folder().glob(".staging/*"))
        return found

    return count


def labels(found):
    return [(s["label"], sum(map(len, s["groups"]))) for s in found.sweeps]


def test_planning_cells_are_computed_and_trainings_only_counted_to_the_last_sweep_that_can_be(counted):
    found = counted([PLANS, LOOP, USE, AFTER, ALONE, "raise SystemExit('no cell after the last sweep is run')"])
    assert labels(found) == [("plans", 2), ("10 steps", 4), ("20 steps", 4), ("independent", 1)]
    assert not found.whole
    (note,) = found.notes
    assert re.fullmatch(
        r"the sweep in code cell 6, line 4 depends on rows of an earlier sweep, and is not counted", note
    )
    first = found.sweeps[1]["groups"][0][0]
    assert first["settings"] == {"num_steps": 10, "batch_size": 5, "seed": 0, "device": "cpu"}
    assert first["stored"] is None
    assert all(c["stored"]["seconds"] >= 0 for g in found.sweeps[0]["groups"] for c in g)


def test_a_loop_that_looks_into_rows_says_that_it_was_cut(counted):
    found = counted(
        ["for i in range(3):\n    rows = run.sweep([('toy_cells:train_cell', {'i': i})], label=str(i))\n    len(rows)"]
    )
    assert labels(found) == [("0", 1)]
    assert not found.whole
    assert "code cell 3: counted up to Waiting: the rows of the sweep '0' are not there yet" in found.notes


def test_what_fails_for_another_reason_is_told_with_its_error(counted):
    found = counted(["work = undefined_name", "run.sweep(work)"])
    assert labels(found) == []
    assert found.notes == [
        "the sweep in code cell 4, line 1 was not counted: code cell 3: NameError: name 'undefined_name' is not defined"
    ]


def test_a_note_names_what_is_missing_not_every_way_to_get_it():
    long = "DataUnavailable: EMNIST is not on this machine. ways to get it: - download https://example.org/a.zip"
    assert planning._short(long) == "DataUnavailable: EMNIST is not on this machine"
    tried = "DataUnavailable: MNIST is not on this machine (download: a.gz from example.org: ConnectionError)"
    assert planning._short(tried) == "DataUnavailable: MNIST is not on this machine"
    assert planning._short("URLError: no answer from https://example.org/a.zip\nmore") == "URLError: no answer from"
    assert planning._short("ValueError: x must be 1.5, got 2.") == "ValueError: x must be 1.5, got 2"


def test_a_count_that_lacked_something_is_counted_again(counted, monkeypatch):
    needs = "import os\n\nn = int(os.environ['HAVE_IT'])"
    cells = [needs, "run.sweep([('toy_cells:train_cell', {'i': i}) for i in range(n)], label='later')"]
    found = counted(cells)
    assert (labels(found), found.whole) == ([], False)
    assert found.notes[0].endswith("was not counted: code cell 3: KeyError: 'HAVE_IT'")
    monkeypatch.setenv("HAVE_IT", "2")
    assert labels(counted(cells)) == [("later", 2)]


def test_times_are_kept_by_what_cells_share(tmp_path):
    cells = [{**cell(2.0, seed=i), "identity": str(i), "seconds": 2.0 + i} for i in range(3)]
    cells.append({"function": "toy:other", "settings": {}, "identity": "o", "seconds": 1.5})
    text = planning.costs.pack([*cells, {**cells[0], "seconds": None}])
    assert len(text.splitlines()) == 2 + 4
    keep = ("function", "settings", "identity", "seconds")
    path = tmp_path / planning.costs.TIMES
    assert planning.costs.unpack(path) == []
    path.write_text(text)
    assert planning.costs.unpack(path) == [{k: c[k] for k in keep} for c in cells]
    path.write_text(text[:-9])
    assert planning.costs.unpack(path) == [], "half a file is none"


def test_a_count_whose_process_dies_keeps_what_was_counted_and_says_so(counted):
    found = counted([ALONE, "import os\n\nos._exit(9)", AFTER])
    assert labels(found) == [("independent", 1)]
    assert not found.whole
    assert "code cell 5, line 4 was not counted: the notebook's process ended by exit status 9" in found.notes[0]


def test_a_sweep_in_a_branch_that_is_not_taken_is_no_gap(counted):
    found = counted([ALONE, "if loud:\n    run.sweep([('toy_cells:train_cell', {'i': 1})], label='loud')"])
    assert (labels(found), found.notes[1:], found.whole) == ([("independent", 1)], [], True)


def test_a_notebook_that_cannot_be_counted_does_not_stop_the_others(make_house, tmp_path):
    house = make_house("several")
    house.presets({"smoke": None, "laptop": None, "paper": None})
    with_cells(house, ["raise OSError('no data here')", "run.sweep([])"])
    table, page = tmp_path / "plan.csv", tmp_path / "plan.md"
    status, out = house.run("plan", "--workers", "1,3", "--start-up", 0, "--csv", table, "--page", page)
    assert status == 0, out
    assert "? dplearn/sec1_toy  0 cells in 1 sweep\n" in out
    assert "+ dplearn/sec2_toy  4 cells in 1 sweep\n" in out
    assert "code cell 3: OSError: no data here" in out
    assert "4 cells of toy_cells:draw (dplearn/sec2_toy), without a measured relative" in out
    assert "GPUs were not measured" in out
    assert not house.results.exists()
    with open(table, encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["cells"], row["unknown"], row["mid_seconds"]) == ("4", "4", "")
    assert re.search(r"dplearn/sec2_toy, rows .* 4 +unknown +unknown\n", out), "no time at all is not a time of 0"
    assert "0 s (0 s to 0 s)" not in out
    assert "How long workers take is unknown: no cell has an estimate." in out
    with open(tmp_path / "plan.workers.csv", encoding="utf-8") as file:
        assert [r["workers"] for r in csv.DictReader(file)] == ["1", "3"]
    said = page.read_text(encoding="utf-8")
    assert said.startswith("# What the preset paper costs\n")
    assert "GPUs were not measured" in said


def test_wrong_arguments_are_refused_before_anything_is_counted(capsys):
    for arguments, words in {
        ("--workers", "1,x"): "--workers must be whole numbers of at least 1, such as 1,8,64, got '1,x'",
        ("--speed-up", "0"): "--speed-up must be above 0, got 0",
        ("--start-up", "-1"): "--start-up must be at least 0 seconds",
        ("--jobs", "0"): "--jobs must be at least 1",
        ("--measured", "/nowhere"): "--measured must be a results folder, /nowhere is not there",
    }.items():
        assert cli.main(["plan", *arguments]) == 2
        assert words in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------- estimates


def cell(seconds=None, stale=False, **settings):
    settings = {"num_steps": 10, "batch_size": 2, **settings}
    stored = seconds and {"seconds": seconds, "stale": stale}
    return {"function": "toy:train_cell", "settings": settings, "identity": files.digest(settings), "stored": stored}


def counted_as(*groups, **more):
    return planning.Count("d/n", [{"label": "rows", "groups": [list(g) for g in groups]}], **more)


def test_cells_that_are_computed_together_are_one_task_and_unknown_ones_take_no_time():
    counts = [counted_as([cell(2.0, seed=0), cell(3.0, seed=1)], [cell(model="new")]), planning.Count("d/m", own=7.0)]
    rows, chains, unknown = planning.estimate(counts, planning.costs.Measured([]))
    assert chains["mid"] == [[[5.0]], [[7.0]]]
    assert [(r["cells"], r["stored"], r["unknown"], r["mid_seconds"]) for r in rows] == [(3, 2, 1, 5.0), (1, 1, 0, 7.0)]
    ((name, settings),) = unknown["toy:train_cell"]
    assert (name, settings["model"]) == ("d/n", "new")
    text = "\n".join(
        planning.report(counts, rows, [], unknown, planning.costs.Measured([]), speed_up=1.0, start_up=0.0)
    )
    assert "1 cell of toy:train_cell (d/n), without a measured relative: model new" in text
    assert re.search(r"d/n, rows +3 +2 .* 1 +over 5 s \(5 s to 5 s\)", text), "two tasks, and one cell has no time"


def test_two_functions_of_one_sweep_have_rows_of_their_own_names():
    other = {**cell(2.0, seed=1), "function": "toy:plain_cell"}
    counts = [counted_as([cell(model="new")], [other]), planning.Count("d/m", own=7.0)]
    known = planning.costs.Measured([])
    rows, _, unknown = planning.estimate(counts, known)
    text = "\n".join(planning.report(counts, rows, [], unknown, known, speed_up=1.0, start_up=0.0))
    assert re.search(r"d/n, rows \(train_cell\) +1 +2 +0 .* unknown +2 s\n", text)
    assert re.search(r"d/n, rows \(plain_cell\) +1 +2 +1 .* 2 s \(2 s to 2 s\)", text)
    assert re.search(r"d/m, own cells +1 ", text)


def test_functions_of_one_name_in_one_sweep_are_told_apart_by_their_modules():
    other = {**cell(2.0, seed=1), "function": "privrob.toys:train_cell"}
    third = {**cell(2.0, seed=2), "function": "privrob.toys:plain_cell"}
    known = planning.costs.Measured([])
    rows, _, _ = planning.estimate([counted_as([cell(1.0)], [other], [third])], known)
    names = planning._names(rows)
    assert names == ["d/n, rows (toy:train_cell)", "d/n, rows (toys:train_cell)", "d/n, rows (plain_cell)"]


def test_the_speed_up_is_for_cells_on_a_device_alone():
    counts = [counted_as([cell(8.0, device="cpu")], [cell(8.0)])]
    _, chains, _ = planning.estimate(counts, planning.costs.Measured([]), speed_up=4.0)
    assert sorted(chains["high"][0][0]) == [2.0, 8.0]


def test_what_is_stored_and_up_to_date_can_be_left_out():
    counts = [counted_as([cell(8.0, seed=0)], [cell(5.0, stale=True)])]
    _, chains, _ = planning.estimate(counts, planning.costs.Measured([]), missing_only=True)
    assert chains["mid"][0][0] == [5.0]


def test_trainings_without_a_relative_are_timed_on_a_few_steps_when_asked_for():
    settings = {"training": {"num_steps": 1000, "batch_size": 3, "attack_steps": 1}, "model": "new"}
    said = []
    unknown = {"toy_cells:slow_steps": [("d/n", settings)], "toy_cells:train_cell": [("d/n", settings)]}
    unknown["toy_cells:draw"] = [("d/n", {"scale": 2.0})]
    (record,) = probing.probe(unknown, minutes=1, say=said.append)
    known = planning.costs.Measured([record])
    twice = {**settings, "training": {**settings["training"], "num_steps": 2000}}
    found = known.estimate({"function": "toy_cells:slow_steps", "settings": twice, "identity": "new"})
    assert found.how == "probe"
    assert 0.9 * 40.0 < found.mid < 400.0  # 20 ms a step at least; how busy the machine is says the rest
    assert (found.low, found.high) == (pytest.approx(found.mid / 2), pytest.approx(found.mid * 2))
    assert "a step" in said[0]
    assert "failed: AssertionError: this was to be counted, not computed" in said[1]
    assert len(said) == 2, "what has no steps is no training"


def test_a_probe_cuts_steps_and_evaluations_and_nothing_else():
    settings = {"a": {"num_steps": 900, "attack_steps": 200, "attack_test_steps": [100, 500]}, "num_test": 50, "b": 7}
    cut = probing.short(settings, 6)
    assert cut == {"a": {"num_steps": 6, "attack_steps": 3, "attack_test_steps": [1]}, "num_test": 50, "b": 7}


def test_pending_rows_can_be_carried_about_but_not_looked_into():
    rows = counting.Pending("rows")
    carried = rows.assign(a=1).groupby("a")["b"].mean()
    carried["c"] = 1
    for look in (bool, len, list, float, int, lambda r: r == 1, lambda r: 1 in r, lambda r: r > 0):
        with pytest.raises(counting.Waiting, match="the rows of the sweep 'rows' are not there yet"):
            look(carried)
    with pytest.raises(TypeError):
        files.dump_json({"num_steps": carried})


@pytest.mark.parametrize(
    ("statement", "sets", "changes"),
    [
        ("a = b", {"a"}, set()),
        ("for i in x:\n    y.append(f(i))\n    z[0].w = 1", {"i"}, {"y", "z"}),
        ("import numpy as np, os.path", {"np", "os"}, set()),
        ("a, (b, *c) = d.e", {"a", "b", "c"}, {"d"}),
        ("x += 1", {"x"}, set()),
    ],
)
def test_what_a_failed_statement_takes_with_it(statement, sets, changes):
    assert counting.touched(ast.parse(statement).body[0]) == (sets, changes)


# ----------------------------------------------------------------------------------------------------------- recipes


def options_of_run_all(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    return set(re.findall(r"--?[a-z][a-z-]*", capsys.readouterr().out))


@pytest.mark.parametrize("name", plan_arguments.RECIPES)
def test_a_recipe_names_only_options_that_exist(name, capsys):
    assert cli.main(["plan", "--recipe", name]) == 0
    text = capsys.readouterr().out
    assert text == plan_arguments.recipe(name)
    calls = re.findall(
        r"^\s*(?:\./run_all\.sh --no|command: \[\./run_all\.sh)[^\n]*(?:\n[^\n]*--device[^\n]*)?", text, re.M
    )
    used = {o for call in calls for o in re.findall(r"--[a-z-]+", call)}
    assert {"--engine", "--preset", "--device", "--jobs", "--no-env"} <= used
    assert used <= options_of_run_all(capsys)
    for said in ("PRIVROB_DATA", "results/.cells", "share", "missing cell", "--nthreads"):
        assert said in text


def test_the_slurm_recipe_is_sound_bash(tmp_path):
    script = tmp_path / "slurm.sh"
    script.write_text(plan_arguments.recipe("slurm"), encoding="utf-8")
    subprocess.run(["bash", "-n", script], check=True)


def test_the_kubernetes_recipe_is_yaml_whose_parts_find_each_other():
    parts = {(p["kind"], p["metadata"]["name"]): p for p in yaml.safe_load_all(plan_arguments.recipe("kubernetes"))}
    service = parts["Service", "privrob-scheduler"]
    address = f"privrob-scheduler:{service['spec']['ports'][0]['port']}"
    pods = [p["spec"]["template"] for p in parts.values() if "template" in p.get("spec", {})]
    assert any(p["metadata"].get("labels") == service["spec"]["selector"] for p in pods if "metadata" in p)
    containers = {c["name"]: c for p in pods for c in p["spec"]["containers"]}
    assert f"tcp://{address}" in containers["worker"]["command"]
    assert f"dask://{address}" in containers["driver"]["command"]
    environment = parts["ConfigMap", "privrob"]["data"]
    assert all(isinstance(v, str) for v in environment.values())
    for one in containers.values():
        assert all(isinstance(word, str) for word in one["command"])
        assert one["envFrom"] == [{"configMapRef": {"name": "privrob"}}]
    for pod in pods:
        for volume in pod["spec"].get("volumes", []):
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in parts


@pytest.mark.parametrize("name", plan_arguments.RECIPES)
def test_workers_of_a_recipe_start_with_options_that_dask_has(name):
    from distributed.cli import dask_scheduler, dask_worker

    text = plan_arguments.recipe(name).replace("\\\n", " ").replace(",", " ")
    for words, command in (("scheduler", dask_scheduler.main), ("worker", dask_worker.main)):
        (line,) = re.findall(rf"m +dask +{words} +([^&\]\n]*)", text)
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        assert set(re.findall(r"--[a-z-]+", line)) <= known


def test_the_pages_show_both_recipes(tmp_path):
    from privrob.suite.site_parts import pages

    page = pages.cluster(SimpleNamespace(results=tmp_path))
    assert all(plan_arguments.recipe(name) in page for name in plan_arguments.RECIPES)
    assert "plan.md" not in page


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--page", "."], "--page must be a file to write, got a folder"),
        (["--csv", "plan_arguments.py/x.csv"], "the folder of --csv must be"),
        (["--measured", ""], "--measured: must name a folder or file, got ''"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_anything_is_counted(
    given, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan_arguments.py").write_text("a file, not a folder", encoding="utf-8")
    monkeypatch.setattr(planning, "count_all", lambda *a, **k: pytest.fail("something was counted"))
    try:
        status = cli.main(["plan", *given])
    except SystemExit as stop:  # of argparse
        status = stop.code
    assert status == 2
    assert words in capsys.readouterr().err
