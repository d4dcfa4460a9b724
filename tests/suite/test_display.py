"""What is said while notebooks run; and nothing that goes wrong in saying it leaves a notebook running."""

import time
from dataclasses import replace

import psutil
import pytest

from house import notebook
from privrob.suite import catalogue, run
from privrob.suite.files import dump_json, write_text


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ({"done": 0, "total": 12, "taken": 0, "left": None}, "rows: 0 of 12 cells"),
        ({"done": 3, "total": 12, "taken": 0, "left": 90.4}, "rows: 3 of 12 cells, about 90 s left"),
        ({"done": 12, "total": 12, "taken": 12, "left": None}, "rows: 12 of 12 cells, 12 of them stored before"),
        (
            {"done": 5, "total": 12, "taken": 4, "left": 7.0},
            "rows: 5 of 12 cells, 4 of them stored before, about 7 s left",
        ),
    ],
)
def test_the_sign_of_life_says_how_far_the_cells_are(tmp_path, monkeypatch, at, words):
    monkeypatch.setattr(run, "HEARTBEAT", 0.0)
    said = []
    display = run._Display(said.append, 1)
    display.begin("dplearn/sec1_toy")
    display.tick([("dplearn/sec1_toy", tmp_path)])
    write_text(tmp_path / "progress.json", dump_json({"label": "rows", **at}))
    display.tick([("dplearn/sec1_toy", tmp_path)])
    assert said == ["> dplearn/sec1_toy  started", "  … dplearn/sec1_toy 0 s", f"  … dplearn/sec1_toy 0 s ({words})"]


def test_a_driver_that_fails_ends_its_notebooks_first(house, monkeypatch):
    monkeypatch.chdir(house.root)
    house.write("dplearn/sec1_toy", notebook("dplearn/sec1_toy", extra=["import time\ntime.sleep(300)"]))
    plans, _ = catalogue.plans(["sec1_toy"], preset="smoke", out=house.results)

    def fails(self, running):
        if running and any((folder / "log.txt").exists() for _, folder in running):
            raise ZeroDivisionError

    monkeypatch.setattr(run._Display, "tick", fails)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        run.run_all(plans, replace(run.Options(), minutes=5), say=lambda text: None)
    assert time.monotonic() - began < 60
    assert not [
        c for c in psutil.Process().children(recursive=True) if "privrob.suite.execute" in " ".join(c.cmdline())
    ]
