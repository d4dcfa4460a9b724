"""Studies: sweeps, their files, their folders, and the page that compares."""

import pytest
import yaml

from house import ROOT, kill
from privrob.suite import cli, files, guard, studies, tables
from privrob.suite.studies import Study

ONE, TWO = "dplearn/sec1_toy", "dplearn/sec2_toy"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("sigma=0.8,1.1", ("sigma", ["0.8", "1.1"])),
        ("rates=[0, 0.3],[0.1]", ("rates", ["[0, 0.3]", "[0.1]"])),
        ("kinds={'a': [1, 2]},{}", ("kinds", ["{'a': [1, 2]}", "{}"])),
        ("name='x, y',z", ("name", ["'x, y'", "z"])),
        ("name=a=b", ("name", ["a=b"])),
    ],
)
def test_values_are_parted_at_commas_outside_of_brackets_and_quotes(text, want):
    assert studies.swept(text) == want


def test_a_study_is_every_combination_each_with_a_folder_of_its_own(tmp_path):
    study = Study((ONE,), "smoke", {"names": "['x y', 'z']"}, {"scale": ["1.0", "3.0"], "seed": ["0", "1"]})
    assert study.settings() == [{"scale": s, "seed": n} for s in ("1.0", "3.0") for n in ("0", "1")]
    names = [folder.name for _, folder in study.folders(tmp_path)]
    assert names == ["scale=1.0_seed=0", "scale=1.0_seed=1", "scale=3.0_seed=0", "scale=3.0_seed=1"]
    assert Study((ONE,)).folders(tmp_path) == [({}, tmp_path)]


def test_a_value_that_is_no_plain_word_gives_a_short_name_and_another_value_another():
    name, other = studies.words({"names": "['x y', 'z']"}), studies.words({"names": "['x-y', 'z']"})
    assert name.startswith("names.")
    assert len(name) == len("names.") + 6
    assert name != other
    assert studies.words({"delta": "1e-6", "scale": "2"}) == "delta=1e-6_scale=2"
    assert "/" not in studies.words({"name": "../../x"})


def test_a_study_reads_back_from_its_file_as_it_was(tmp_path):
    study = Study((ONE, TWO), "smoke", {"delta": "1e-6", "loud": "true", "names": '["a, b"]'}, {"scale": ["1", "2.5"]})
    (tmp_path / "mine.yaml").write_text(study.text(), encoding="utf-8")
    assert studies.read(tmp_path / "mine.yaml") == study
    plain = {"notebooks": ONE, "parameters": {"loud": True, "names": ["a", "b"]}, "sweep": {"scale": [1, 2.5]}}
    (tmp_path / "by_hand.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    read = studies.read(tmp_path / "by_hand.yaml")
    assert read.notebooks == (ONE,)
    assert read.preset == "laptop"
    assert read.parameters == {"loud": "True", "names": "['a', 'b']"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"notebook": ONE}, "no entry 'notebook'; did you mean 'notebooks'?"),
        ({"notebooks": [1]}, "notebooks must be a list of names"),
        ({"parameters": [1]}, "parameters must hold 'parameter: value' pairs"),
        ({"sweep": {"scale": 1}}, "sweep of scale must be a list of at least one value, got 1"),
        ({"sweep": {"scale": []}}, "sweep of scale must be a list of at least one value"),
        ([1], "--study must hold entries of"),
        ({"sweep": {"scale": [1.0, 1.0]}}, "--sweep scale must name each value once"),
    ],
)
def test_a_wrong_file_is_refused_naming_the_entry(tmp_path, content, words):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(guard.ParameterError, match="(?s)" + words.replace("?", "[?]")):
        studies.read(tmp_path / "study.yaml")


@pytest.mark.parametrize("text", ["preset: smoke\npreset: paper\n", "parameters: {scale: 1.0, scale: 2.0}\n"])
def test_a_name_that_stands_twice_in_a_file_is_refused(tmp_path, text):
    (tmp_path / "study.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(guard.ParameterError, match=r"'(preset|scale)' stands twice"):
        studies.read(tmp_path / "study.yaml")


def test_empty_entries_are_as_left_out_and_an_infinity_in_a_list_stays_one(tmp_path):
    (tmp_path / "study.yaml").write_text("title:\npreset:\nparameters: {rates: [.inf, 1.0]}\n", encoding="utf-8")
    read = studies.read(tmp_path / "study.yaml")
    assert (read.title, read.preset) == ("", "laptop")
    assert guard.parse_text(read.parameters["rates"], [1.0], where="-p rates") == [float("inf"), 1.0]
    (tmp_path / "again.yaml").write_text(read.text(), encoding="utf-8")
    assert studies.read(tmp_path / "again.yaml") == read


def test_two_spellings_of_one_value_are_refused_before_anything_runs(house, capsys):
    assert cli.main(["--dry-run", "sec1_toy", "--sweep", "scale=2,2.0"]) == 2
    assert "scale=2 and scale=2.0 are the same" in capsys.readouterr().err


def test_rows_that_have_a_column_of_the_swept_name_keep_both(tmp_path):
    study = Study((ONE,), "smoke", {}, {"seed": ["4", "5"], "scale": ["1.0"]})
    for _, folder in study.folders(tmp_path):
        files.write_text(
            folder / ONE / "smoke" / "rows.csv", files.rows_to_csv([{"seed": 0, "scale": 1.0, "got": 2.5}])
        )
    studies._together(study, tmp_path, ONE)
    rows = files.csv_to_rows((tmp_path / "dplearn.sec1_toy.rows.csv").read_text(encoding="utf-8"))
    assert [(r["swept_seed"], r["seed"], r["scale"]) for r in rows] == [(4, 0, 1.0), (5, 0, 1.0)]


def test_two_files_of_one_name_do_not_share_a_folder(house, monkeypatch, tmp_path):
    for folder, scale in (("a", 2.0), ("b", 3.0)):
        files.write_text(
            tmp_path / folder / "noise.yaml",
            yaml.safe_dump({"notebooks": [ONE], "preset": "smoke", "parameters": {"scale": scale}}),
        )
    status, told = house.run("--study", tmp_path / "a" / "noise.yaml")
    assert status == 0, told
    kept = house.root / "studies" / "noise" / "study.yaml"
    assert kept.read_text().startswith("# kept in ")
    status, told = house.run("--study", tmp_path / "b" / "noise.yaml")
    assert status == 2
    assert "--out must not hold another study" in told
    assert "a/noise.yaml" in told
    study = Study((TWO,), "smoke", {"scale": "2.0"})
    assert studies.joined(study, kept.parent).file == studies.read(kept).file != "", "another notebook hides no file"
    for again in (kept, tmp_path / "a" / "noise.yaml"):  # its own copy, and the file after a change
        files.write_text(again, again.read_text().replace("2.0", "4.0"))
        status, told = house.run("--study", again, "--dry-run")
        assert status == 0, told


def test_a_study_that_is_killed_has_left_its_file(house):
    out = house.root / "studies" / "killed"
    driver = house.start("sec1_toy", "--preset", "smoke", "-p", "sleep", 60, "--out", out)
    house.wait_for((out / "study.yaml").is_file)
    kill(driver.pid)
    driver.wait(timeout=30)
    assert studies.read(out / "study.yaml").parameters == {"sleep": "60"}


def test_a_sweep_runs_each_value_compares_them_and_its_file_runs_it_again(house, capsys, monkeypatch):
    monkeypatch.chdir(house.root)
    status, told = house.run("sec1_toy", "--preset", "smoke", "--sweep", "scale=2.0,3.0", "--sweep", "seed=0")
    assert status == 0, told
    out = house.root / "studies" / "sec1_toy_scale=2.0,3.0_seed=0"
    assert f"Read on: {out.relative_to(house.root)}/COMPARISON.md" in told
    page = (out / "COMPARISON.md").read_text(encoding="utf-8")
    assert "| item | scale = 2.0, seed = 0 | scale = 3.0, seed = 0 |" in page
    assert "| sec1 toy two (Toy) | 2: trend (agrees) | 3: trend (agrees) |" in page
    assert "The verdict of 2 of 2 items is the same in all; the value of 1 of these is not." in page
    for folder in ("scale=2.0_seed=0", "scale=3.0_seed=0"):
        assert f"{folder}/{ONE}/smoke/draws.png" in page
        assert (out / folder / ONE / "smoke" / "draws.png").is_file()
        assert not (out / folder / ".cells").exists(), "cells are shared between the combinations"
    rows = files.csv_to_rows((out / "dplearn.sec1_toy.rows.csv").read_text(encoding="utf-8"))
    assert {r["scale"] for r in rows} == {2.0, 3.0}
    assert len(rows) == 6  # three cells each
    assert len(files.csv_to_rows((out / "verdicts.csv").read_text(encoding="utf-8"))) == 4
    assert not (house.results / ONE).exists(), "a study leaves the reference results alone"

    kept = (out / "scale=3.0_seed=0" / ONE / "smoke" / "notebook.ipynb").read_text(encoding="utf-8")
    assert "Another run than the text describes.** Preset `smoke`; changed: `scale = 3.0`, `num_cells = 3`" in kept

    status, told = house.run("--study", out / "study.yaml")
    assert status == 0
    assert told.count("up to date") == 4  # each notebook twice: as it comes, and in the closing table
    changed = (out / "study.yaml").read_text(encoding="utf-8").replace("[2.0, 3.0]", "[2.0, 3.0, 4.0]")
    (out / "mine.yaml").write_text(changed, encoding="utf-8")
    assert cli.main(["--dry-run", "--study", str(out / "mine.yaml"), "--out", str(out)]) == 0, (
        "a changed file is its study"
    )
    assert capsys.readouterr().out.count("keep") == 2
    assert cli.main(["status", "--no-env", "--study", str(out / "study.yaml")]) == 0
    told = capsys.readouterr().out
    assert told.count("done") == 2
    assert "scale = 3.0" in told


def test_another_notebook_joins_a_study_and_another_study_is_refused_its_folder(tmp_path):
    one, two = (Study((name,), "smoke", {"scale": "3.0"}) for name in (ONE, TWO))
    studies.write(one, tmp_path)
    both = studies.joined(two, tmp_path)
    assert both.notebooks == (ONE, TWO)
    assert studies.joined(Study((), "smoke", {"scale": "3.0"}), tmp_path).notebooks == ()
    assert one.label() != two.label()
    assert studies.joined(Study((ONE,), "laptop", {"scale": "3.0"}), tmp_path).preset == "laptop", (
        "tried in smoke first"
    )
    with pytest.raises(guard.ParameterError, match="--out must not hold another study"):
        studies.joined(Study((ONE,), "smoke", {"scale": "4.0"}), tmp_path)


def test_a_trend_that_leads_elsewhere_is_a_finding_of_a_study_and_no_fault(house):
    from privrob.suite import catalogue

    result = {
        "claims": [{"id": "a", "surprise": True, "verdict": "trend"}, {"id": "b", "surprise": True, "verdict": "fails"}]
    }
    (reference,), _ = catalogue.plans([ONE], preset="smoke", out=house.root / "out")
    (study,), _ = catalogue.plans([ONE], preset="smoke", out=house.root / "out", overrides=[("scale", "3.0")])
    assert reference.surprises(result) == ["a", "b"]
    assert study.surprises(result) == ["b"]


def test_a_notebook_without_the_swept_parameter_is_left_out(house, monkeypatch, capsys):
    from house import small

    house.add("dplearn/sec3_other", small("dplearn/sec3_other", "print(scale)"), claims=[])
    monkeypatch.chdir(house.root)
    assert cli.main(["--dry-run", "--sweep", "num_cells=2,3"]) == 0
    told = capsys.readouterr().out
    assert "dplearn/sec3_other is left out" in told
    assert told.count("dplearn/sec1_toy") == 2


@pytest.mark.parametrize("file", sorted((ROOT / "notebooks" / "studies").glob("*.yaml")), ids=lambda f: f.stem)
def test_a_worked_study_can_be_run_as_it_stands(file, capsys, monkeypatch):
    monkeypatch.setenv("PRIVROB_ROOT", str(ROOT))
    assert studies.read(file).title
    assert cli.main(["--study", str(file), "--dry-run"]) == 0
    assert "run   " in capsys.readouterr().out


SHA = "0" * 64
SWEEP = Study((ONE,), "smoke", {}, {"scale": ["1.0", "3.0"]})


def leave(folder, name=ONE, *, claims=(), pictures=(), table=False):
    """A result as a run leaves it, without running anything."""
    place = folder / name / "smoke"
    result = {"format": 1, "notebook": name, "title": "Toy", "preset": "smoke", "parameters": {"scale": 1.0}}
    result |= {"changed_parameters": {}, "seed": 0, "device": {"type": "cpu", "name": "CPU"}, "commit": "abc"}
    result |= {"versions": {"python": "3.11", "privrob": "0", "numpy": "2"}, "inputs": SHA, "data": [], "sweeps": []}
    result |= {"sources": {"notebook": SHA, "library": SHA}, "figures": [], "claims": list(claims), "summary": "0/0"}
    for name in pictures:
        files.write_text(place / name, "a picture")
    result |= {
        "files": {name: files.file_digest(place / name) for name in pictures},
        "run": {"started": "now", "seconds": 1.0, "token": ""},
    }
    files.write_text(place / "result.json", files.dump_json(result))
    if table:
        files.write_text(place / "rows.csv", files.rows_to_csv([{"scale": 1.0, "got": 2.5}]))
    return place


def page_of(out, planned=(ONE,)):
    studies.write(SWEEP, out, planned)
    return (out / "COMPARISON.md").read_text(encoding="utf-8")


def test_a_comparison_of_nothing_says_that_there_are_no_results(tmp_path):
    page = page_of(tmp_path, (ONE, TWO))
    assert f"No results in any of 2 settings: {ONE}, {TWO}." in page
    assert "##" not in page
    assert "verdicts.csv" not in page, "no link to what is not there"
    assert not (tmp_path / "verdicts.csv").exists()
    assert "No results in any of 2 settings; the same command makes them." in page_of(tmp_path, ())


@pytest.mark.parametrize(
    ("pictures", "table", "said"),
    [
        (["a.png"], False, "It judges no numbered item and keeps no table; the notebooks have the rest."),
        ([], True, "It judges no numbered item and draws no figure; the notebooks have the rest."),
        ([], False, "It judges no numbered item, keeps no table and draws no figure; the notebooks have the rest."),
    ],
)
def test_a_section_says_what_it_does_not_have_and_links_to_the_notebooks(tmp_path, pictures, table, said):
    for _, folder in SWEEP.folders(tmp_path):
        leave(folder, pictures=pictures, table=table)
    page = page_of(tmp_path)
    assert page.count(f"## {ONE}\n\n") == 1
    assert said in page
    assert f"Notebooks: [scale = 1.0](scale=1.0/{ONE}/smoke/notebook.ipynb), [scale = 3.0](" in page
    assert "\n\n\n" not in page


def test_what_is_missing_or_damaged_in_one_setting_is_named(tmp_path):
    (_, first), (_, second) = SWEEP.folders(tmp_path)
    leave(first, pictures=["a.png"])
    assert "No results of scale = 3.0." in page_of(tmp_path)
    files.write_text(leave(second) / "result.json", "{")
    page = page_of(tmp_path)
    assert "Damaged results of scale = 3.0: the same command makes them again." in page
    assert "No results" not in page
    assert "is the same in all" not in page, "there is nothing to compare with"


def test_two_results_folders_without_a_common_notebook_are_told_so(tmp_path, capsys):
    leave(tmp_path / "a", ONE)
    leave(tmp_path / "b", TWO)
    assert cli.main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert "nothing to compare: no notebook and preset has results in both" in out
    assert f"only in {tmp_path / 'a'}: 1 notebook ({ONE} smoke)" in out


def item(name, verdict="holds", got=None, paper=None, **more):
    """A judged item as it stands in a result."""
    base = {"id": f"dplearn/{name}", "kind": "statement", "where": "Toy", "text": "It is so.", "paper": paper}
    base |= {"got": got, "spread": None, "note": "", "verdict": verdict, "agrees": None, "reason": None}
    return {**base, "changed": {}, "expected": "holds", "surprise": False, **more}


SAME = item("zero", got=2.98e-8), item("zero", got=1.49e-8)
VALUE = item("ratio", got=1.25), item("ratio", got=1.26)
FLIP = item("zz_led", "trend", got=0.5, agrees=True), item("zz_led", "trend", got=0.5, agrees=False)


def test_a_trend_that_turns_round_is_another_verdict_in_a_comparison(tmp_path):
    for (_, folder), claims in zip(SWEEP.folders(tmp_path), zip(SAME, VALUE, FLIP)):
        leave(folder, claims=claims)
    page = page_of(tmp_path)
    assert "The verdict of 2 of 3 items is the same in all; the value of 1 of these is not." in page
    head = "| item | scale = 1.0 | scale = 3.0 |\n|---|---|---|\n"
    flip = f"Verdicts that differ:\n\n{head}| zz led (Toy) | 0.5: trend (agrees) | 0.5: trend (does not) |\n\n"
    assert f"{flip}The same verdict, another value:\n\n{head}| ratio (Toy) | 1.25: holds | 1.26: holds |\n\n" in page
    assert "| zero" not in page, "that is rounding"
    rows = files.csv_to_rows((tmp_path / "verdicts.csv").read_text(encoding="utf-8"))
    assert [r["agrees"] for r in rows if r["verdict"] == "trend"] == [True, False]


def test_a_comparison_in_which_all_is_the_same_says_so(tmp_path):
    for (_, folder), claim in zip(SWEEP.folders(tmp_path), SAME):
        leave(folder, claims=[claim])
    assert "The verdict of 1 of 1 item is the same in all; so is every value, to rounding." in page_of(tmp_path)


def test_diff_tells_turned_verdicts_first_and_rounding_in_one_line(tmp_path, capsys):
    for folder, claims in zip(("a", "b"), zip(SAME, VALUE, FLIP)):
        leave(tmp_path / folder, TWO, claims=claims)
        leave(tmp_path / folder, ONE, claims=[VALUE[folder == "b"]])
    for n in range(5):
        leave(tmp_path / "a", f"dplearn/sec{n}_more")
    assert cli.main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "verdicts that differ: 1",
        f"{TWO} smoke: dplearn/zz_led: trend (agrees), 0.5 / trend (does not), 0.5",
        "what else differs:",
        f"{ONE} smoke: dplearn/ratio: holds, 1.25 / holds, 1.26",
        f"{TWO} smoke: dplearn/ratio: holds, 1.25 / holds, 1.26",
        f"{TWO} smoke: 1 item with the same verdict, and a value that differs by rounding",
        f"only in {tmp_path / 'a'}: 5 notebooks (dplearn/sec0_more smoke, dplearn/sec1_more smoke, "
        "dplearn/sec2_more smoke, …)",
    ]


@pytest.mark.parametrize(
    ("first", "second", "paper", "same"),
    [
        (2.98e-8, 1.49e-8, None, True),  # an error that should be 0
        (2.98e-8, 1.49e-8, 3e-8, False),  # a number that is printed as small
        (1.0, 1.0 + 1e-9, 1.0, True),
        (1.0, 1.0001, 1.0, False),
        (0.0, 1e-3, None, False),
        (float("nan"), float("nan"), None, True),
        (float("inf"), 1.0, None, False),
        ("a", "b", None, False),
        (None, 1.0, None, False),
        (True, False, None, False),
    ],
)
def test_rounding_is_measured_by_the_value_or_by_what_is_printed(first, second, paper, same):
    assert tables.alike(first, second, paper) == same
