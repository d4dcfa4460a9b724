"""What a sceptic would give to a run: damaged files, values of every wrong kind, no network, no GPU, little memory.

The other half of test_faults.py, and counted with it: nothing half-trusted, words that help, the right exit status.
"""

import json
import re
import shutil
import socket

import pytest

import fault_kit as kit
from fault_kit import ONE, SMOKE, helpful, refused
from house import ROOT, notebook, small
from privrob.suite import catalogue, guard, preflight, sweep
from privrob.suite import run as driver
from privrob.suite.sweep import Store, SweepError

TRUE = [{"kind": "statement", "id": "true", "expected": "holds", "text": "It is so."}]
WORK = [("toy_cells:draw", {"index": i, "scale": 2.0}) for i in range(4)]
CUT = {
    "empty": lambda data: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "last byte lost": lambda data: data.rstrip()[:-1],
    "other bytes": lambda data: b"\xff\xfe\x00" + data[3:],
}

# -------------------------------------------------------------------------------------------------------- damaged files


@pytest.mark.fault("damaged files")
@pytest.mark.parametrize("harm", [*CUT, "edited by hand", "a list", "another cell's"])
def test_a_harmed_stored_cell_is_noticed_and_computed_again(tmp_path, harm):
    def swept(store):
        return sweep.run(sweep.make_cells(WORK, seed=0), store, num_workers=1)

    rows = swept(Store(tmp_path)).rows()
    path, other = sorted(tmp_path.glob("*/*.json"))[:2]
    if harm == "edited by hand":
        record = json.loads(path.read_text())
        record["rows"][0]["value"] = 1.0
        path.write_text(json.dumps(record))
    elif harm in CUT:
        path.write_bytes(CUT[harm](path.read_bytes()))
    else:
        path.write_text("[]" if harm == "a list" else other.read_text())
    outcome = swept(Store(tmp_path))
    assert (outcome.computed, outcome.rows()) == (1, rows)
    assert outcome.damaged == ([] if harm == "another cell's" else [path.name])
    assert swept(Store(tmp_path)).computed == 0


@pytest.mark.slow
@pytest.mark.fault("damaged files")
def test_a_run_over_harmed_cells_and_results_says_so_and_ends_as_an_undisturbed_one(copied, calm):
    harmed = list(kit.cells(copied))[:3]
    for path, harm in zip(harmed, CUT):
        path.write_bytes(CUT[harm](path.read_bytes()))
    (copied.results / ONE / "smoke" / "rows.csv").write_text("sweep,index\n")
    status, out = copied.run(*SMOKE)
    assert status == 0, out
    helpful(out)
    made = copied.kept(ONE)
    told = made.pop("notebook.ipynb").decode()
    for path in harmed:
        assert f"a stored cell was damaged and was computed again: {path.name}" in told
    kept = calm.kept(ONE)
    for name in ("rows.csv", "draws.csv", "draws.png", "draws.svg"):
        assert made[name] == kept[name]


@pytest.mark.fault("damaged files")
@pytest.mark.parametrize("harm", CUT)
@pytest.mark.parametrize("file", ["notebook.ipynb", "rows.csv", "draws.png", "result.json"])
def test_a_harmed_result_counts_for_nothing(copied, capsys, file, harm):
    path = copied.results / ONE / "smoke" / file
    path.write_bytes(CUT[harm](path.read_bytes()))
    (plan,), _ = catalogue.plans([ONE], preset="smoke", out=copied.results)
    state, why = plan.state()
    assert state == "damaged"
    assert file in why


@pytest.mark.fault("damaged files")
@pytest.mark.parametrize(
    ("file", "printed", "edited", "words"),
    [
        ("notebook.ipynb", "Draws of the cells", "Draws of others", "notebook.ipynb is changed beside result.json"),
        ("result.json", '"trend"', '"matches"', "result.json was changed by hand"),
        ("rows.csv", "rows,0,", "rows,7,", "rows.csv is changed beside result.json"),
    ],
)
def test_a_result_edited_by_hand_is_noticed_and_done_again(copied, file, printed, edited, words):
    path = copied.results / ONE / "smoke" / file
    text = path.read_text(encoding="utf-8")
    assert printed in text
    path.write_text(text.replace(printed, edited), encoding="utf-8")
    (plan,), _ = catalogue.plans([ONE], preset="smoke", out=copied.results)
    assert plan.state() == ("damaged", words)


@pytest.mark.slow
@pytest.mark.fault("damaged files")
@pytest.mark.parametrize("edited", ["rows.csv", "rows.csv and its hash"])
def test_nothing_is_drawn_again_from_rows_edited_by_hand(copied, edited):
    """There are no cells, only the rows as committed: they count as long as the result beside them vouches for them."""
    from privrob.suite.files import file_digest

    shutil.rmtree(copied.results / ".cells")
    folder = copied.results / ONE / "smoke"
    rows, result = folder / "rows.csv", folder / "result.json"
    was = file_digest(rows)
    rows.write_text(re.sub(r"^rows,0,2\.0", "rows,0,3.0", rows.read_text(), flags=re.M))
    assert file_digest(rows) != was
    if edited != "rows.csv":
        result.write_text(result.read_text().replace(was, file_digest(rows)))
    before = kit.listing(folder)
    status, out = copied.run(*SMOKE, "--redraw")
    assert status == 1
    helpful(out, "rows.csv is not what the result.json beside it was made with", "run once without --redraw")
    assert kit.listing(folder) == before


@pytest.mark.fault("damaged files")
@pytest.mark.parametrize("harm", CUT)
@pytest.mark.parametrize("file", ["notebooks/dplearn/sec2_toy.ipynb", "notebooks/presets.yaml", "data/claims.yaml"])
def test_a_harmed_source_is_refused_by_name_before_any_notebook_runs(command, file, harm):
    path = command.house.root / file
    cut = CUT[harm](path.read_bytes())
    if file.endswith(".yaml") and harm == "last byte lost":
        cut = cut[:-1] + b": ["  # without its last byte YAML may be whole, with another value
    path.write_bytes(cut)
    name = file.removeprefix("notebooks/").removeprefix("data/").removesuffix(".ipynb")
    assert name in refused(command, *SMOKE)


# --------------------------------------------------------------------------------------------------------- wrong values

ANYWHERE = {  # what it is: (parameter, value as text, words)
    "text for a number": ("scale", "much", "scale must be a number, got 'much'"),
    "a number in quotes": ("scale", "'2.0'", "scale must be a number, got '2.0'"),
    "yes for a number": ("scale", "true", "scale must be a number, got "),
    "not a number": ("scale", ".nan", "scale must be a number, got "),
    "nothing for a number": ("scale", "null", "scale must be a number, got "),
    "a list for a number": ("scale", "[2.0]", "scale must be a number, got [2.0]"),
    "a dict for a number": ("scale", "{a: 1}", "scale must be a number, got "),
    "a float for an int": ("num_cells", "2.5", "num_cells must be a whole number, got "),
    "a round float for an int": ("num_cells", "2.0", "num_cells must be a whole number, got "),
    "infinity for an int": ("num_cells", ".inf", "num_cells must be a whole number, got "),
    "yes for an int": ("num_cells", "true", "num_cells must be a whole number, got "),
    "text for an int": ("num_cells", "three", "num_cells must be a whole number, got 'three'"),
    "an empty list for an int": ("num_cells", "[]", "num_cells must be a whole number, got []"),
    "a number for yes or no": ("loud", "1", "loud must be true or false, got 1"),
    "text for yes or no": ("loud", "maybe", "loud must be true or false, got 'maybe'"),
    "nothing for yes or no": ("loud", "null", "loud must be true or false, got "),
    "text for a list": ("names", "a", "names must be a list, got 'a'"),
    "a dict for a list": ("names", "{a: 1}", "names must be a list, got {'a': 1}"),
    "nothing for a list": ("names", "null", "names must be a list, got "),
    "a number in a list of text": ("names", "[a, 1]", "names[1] must be text, got 1"),
    "a list in a list of text": ("names", "[[a]]", "names[0] must be text, got ['a']"),
    "a seed below zero": ("seed", "-1", "seed must be an integer in [0, 18446744073709551615], got"),
    "a seed too large": ("seed", str(2**64), "seed must be an integer in [0, 18446744073709551615], got"),
    "a misspelt name": ("sclae", "3.0", "no parameter 'sclae'; did you mean 'scale'?"),
    "a name in capitals": ("Scale", "3.0", "no parameter 'Scale'; did you mean 'scale'?"),
    "an unknown name": ("zzz", "3.0", "no parameter 'zzz'; There is: dataset, loud, names, num_cells"),
}
IN_FILES = {  # on the command line, and in a study, which holds what would stand there, these are text or numbers
    "a number for text": ("dataset", "7", "dataset must be text, got 7 (int); put it in quotes"),
    "yes for text": ("dataset", "yes", "dataset must be text, got True"),
    "a list for text": ("dataset", "[mnist]", "dataset must be text, got ['mnist']"),
    "nothing for text": ("dataset", "null", "dataset must be text, got None"),
    "a number without a point": ("scale", "1e-5", "scale must be a number, got '1e-5' (str); numbers stand without"),
}
WAYS = ["-p", "--sweep", "presets.yaml", "study"]
TRIED = [(k, w) for k in ANYWHERE for w in WAYS if (k, w) != ("a number in quotes", "study")]
TRIED = [(k, w) for k, w in TRIED if (ANYWHERE[k][1], w) != ("null", "study")]  # refused of any kind: test_given.py
TRIED += [(k, "presets.yaml") for k in IN_FILES]


@pytest.mark.fault("wrong values")
@pytest.mark.parametrize(("kind", "way"), TRIED, ids=" ".join)
def test_a_value_of_a_wrong_kind_is_refused_whichever_way_it_comes(command, kind, way):
    name, text, words = {**ANYWHERE, **IN_FILES}[kind]
    if way == "-p":
        said = refused(command, *SMOKE, "-p", name, text)
    elif way == "--sweep":
        said = refused(command, *SMOKE, "--sweep", f"{name}={text}")
    elif way == "presets.yaml":
        (command.house.root / "notebooks" / "presets.yaml").write_text(f"smoke: {{{ONE}: {{'{name}': {text}}}}}")
        said = refused(command, *SMOKE)
    else:
        study = command.house.root / "study.yaml"
        study.write_text(f"notebooks: [{ONE}]\npreset: smoke\nparameters: {{'{name}': {text}}}\n")
        said = refused(command, "--study", study)
    assert words in said


@pytest.mark.fault("wrong values")
def test_every_parameter_of_every_notebook_refuses_another_kind():
    wrong = {bool: 1, int: 2.5, float: "1e-5", str: 7, list: {"a": 1}, dict: [1]}
    paths, tried = sorted((ROOT / "notebooks").glob("*/*.ipynb")), 0
    for path in paths:
        source = guard.read(path, f"{path.parent.name}/{path.stem}")
        for name, default in source.defaults.items():
            for value in [wrong[type(default)], None] if default is not None else [object()]:
                with pytest.raises(guard.ParameterError, match=rf"{source.name}: {name} must be "):
                    guard.check(source, {name: value})
                tried += 1
    assert tried > 5 * len(paths) > 0
    print(f"{tried} values")


# -------------------------------------------------------------------------------------------------------------- network


@pytest.mark.slow
@pytest.mark.fault("network")
def test_a_run_on_made_up_data_asks_nothing_of_a_network(odd):
    assert odd.listener.calls == []


@pytest.mark.fault("network")
def test_the_listener_would_hear_a_question():
    import requests

    listener = kit.Listener()
    with pytest.raises(requests.RequestException):
        requests.get("http://example.org/", proxies={"http": listener.address}, timeout=5)
    assert b"example.org" in listener.calls[0]


@pytest.mark.fault("network")
@pytest.mark.parametrize("network", ["forbidden", "no names", "refuses", "hangs up"])
def test_data_that_cannot_be_had_is_told_with_every_way_to_get_it(command, network, monkeypatch, tmp_path):
    """Before any notebook's clock starts; the notebooks that need no data go on (here: nothing is run)."""
    from privrob.learn.datasets import download

    listener = kit.Listener()
    for name, value in listener.environment().items():
        monkeypatch.setenv(name, value if network in ("hangs up", "forbidden") else "")
    monkeypatch.setenv("PRIVROB_OFFLINE", "1" if network == "forbidden" else "0")
    monkeypatch.setenv("PRIVROB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PRIVROB_DATA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no package tool
    monkeypatch.setattr(download, "_unreachable", {})
    monkeypatch.setattr(driver, "run_all", lambda plans, options: [])
    if network in ("no names", "refuses"):

        def nowhere(*_, **__):
            raise socket.gaierror(-2, "Name or service not known") if network == "no names" else ConnectionRefusedError

        monkeypatch.setattr(socket, "getaddrinfo", nowhere)
        monkeypatch.setattr(socket.socket, "connect", nowhere)
        monkeypatch.setattr(preflight, "check_loopback", lambda: None)  # which is there without a network
    status, out = command(ONE, *SMOKE, "-p", "dataset", "cifar10")
    assert status == 0, out
    helpful(out, "note: ", "cifar10", "PRIVROB_DATA", "sha256:", "PRIVROB_OFFLINE")
    assert bool(listener.calls) == (network == "hangs up")
    assert not list(tmp_path.rglob("*.gz"))


# ------------------------------------------------------------------------------------------------------------------ GPU


@pytest.mark.fault("no GPU")
@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cuda", "--device cuda is not there (0 GPUs found); use --device cpu"),
        ("cuda:7", "--device cuda:7 is not there (0 GPUs found); use --device cpu"),
        ("cuda:x", "--device must be auto, cpu, cuda or cuda:N, got 'cuda:x'"),
        ("cpu:0", "--device must be auto, cpu, cuda or cuda:N, got 'cpu:0'"),
        ("mps", "--device must be auto, cpu, cuda or cuda:N, got 'mps'"),
    ],
)
def test_a_device_that_is_not_there_is_refused(command, device, words):
    assert words in refused(command, *SMOKE, "--device", device)


@pytest.mark.fault("no GPU")
def test_a_preset_that_wants_a_gpu_is_refused_without_one_unless_the_cpu_is_asked_for(command):
    node = notebook(ONE)
    node.metadata["privrob"]["gpu_presets"] = ["laptop"]
    command.house.write(ONE, node)
    words = f"preset laptop of {ONE} wants a GPU and none is here; --device cpu runs it anyway"
    assert words in refused(command)
    assert "wants a GPU" in command("--list", "sec1_toy")[1]
    assert "wants a GPU" not in command("--list", "sec1_toy", *SMOKE)[1]


# --------------------------------------------------------------------------------------------------------------- limits

HOG = "import numpy as np\n\nx = np.ones(2**34)"
SICK = {  # notebook: (body, words in the closing table)
    "dplearn/sec1_hog": (HOG, "cell 3: MemoryError: Unable to allocate 128. GiB"),
    "dplearn/sec2_large": ("run.within(scale=(0, 10))", "cell 4: ValueError: scale must lie in [0, 10], got scale=inf"),
    "dplearn/sec3_fine": ("print(scale)", "1/1 reproduced"),
}


@pytest.fixture(scope="module")
def sick(make_house):
    """One run, with little memory, of notebooks that want too much and of one that is content."""
    house = make_house("sick", names=())
    for name, (body, _) in SICK.items():
        house.add(name, small(name, body), claims=TRUE)
    house.presets({"smoke": {"dplearn/sec2_large": {"scale": float("inf")}}})
    return house, *house.run(*SMOKE, preexec_fn=kit.limited(AS=4 * 2**30))


@pytest.mark.slow
@pytest.mark.fault("limits")
@pytest.mark.parametrize("name", SICK)
def test_what_one_notebook_lacks_is_told_in_its_line_and_the_others_run(sick, name):
    house, status, out = sick
    assert status == 1
    (line,) = [text for text in out.split("\n\n", 1)[-1].splitlines() if text.startswith(f"{name} ")]
    helpful(line, SICK[name][1])
    assert (house.results / name / "smoke").exists() == name.endswith("fine")


@pytest.mark.fault("limits")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_cell_that_wants_too_much_memory_fails_alone(tmp_path, num_workers):
    work = [("toy_cells:hog", {"index": i}) for i in range(4)]
    with pytest.raises(SweepError, match=r"1 of 4 cells failed(?s:.*)Unable to allocate (?s:.*)'index': 2"):
        sweep.run(sweep.make_cells(work, seed=0), Store(tmp_path), num_workers=num_workers)
    assert len(list(tmp_path.glob("*/*.json"))) == 3


@pytest.mark.slow
@pytest.mark.fault("limits")
@pytest.mark.parametrize("num_files", [16, 24])
def test_too_few_open_files_are_told_and_nothing_counts(calm, tmp_path, num_files):
    status, out = calm.run(*SMOKE, "--out", tmp_path, preexec_fn=kit.limited(NOFILE=num_files))
    assert status in (1, 2)
    helpful(out.replace("[Errno 24] ", ""), "ulimit -n" if num_files == 24 else "left no word")
    assert not list(tmp_path.rglob("result.json"))
    calm.assert_no_orphans()
