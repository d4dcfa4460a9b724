"""The table of comparisons: its numbers, its words, and who may write it."""

import subprocess

import pytest
from comparing import Compare, Missing, Row, aligned, page, table

from privrob.suite import index, selftest

ROWS = [
    Row(
        "a step",
        [0.010, 0.011, 0.030],
        {"slow": [0.050, 0.055, 0.100], "absent": Missing("not installed")},
        ("the draws", [0.005, 0.005, 0.005]),
        {"slow": 0.05, "absent": 0.5},
        1.0,
    ),
    Row("a curve", [0.5], within=0.4),
]


def test_a_ratio_is_the_median_within_rounds():
    assert ROWS[0].ratio("slow") == pytest.approx(0.2)  # of 0.2, 0.2 and 0.3


def test_a_line_says_times_ratio_floor_and_goals():
    first, second = ROWS[0].lines()
    assert first == ("a step", "11.00", "slow", "55.00", "0.200", "5.00 the draws", "≤ 1,000 ms: pass; ≤ 0.05: miss")
    assert second == ("", "", "absent", "not installed", "", "", "")
    assert ROWS[1].lines() == [("a curve", "500", "", "", "", "", "≤ 400 ms: miss")]


def test_the_page_says_machine_how_and_goals():
    text = page(ROWS, 0.25)
    assert table(ROWS) in text
    for words in ("# Benchmarks", "cores; load 0.2 at the start.", "numpy", "ratios: 1 met, 2 missed.", "commit"):
        assert words in text
    assert len({len(row.split(" | ")) for row in table(ROWS).splitlines()}) == 1
    assert len(aligned(ROWS)) == 4


def test_a_library_that_is_absent_or_broken_is_told():
    assert Compare.library("no_such_library", lambda: None) == "not installed"
    assert Compare.library("numpy", lambda: 1 / 0).startswith("numpy ")
    assert isinstance(Compare.library("numpy", lambda: 1 / 0), Missing)


@pytest.mark.parametrize("options", [[], ["-k", "federated"]])
def test_only_all_of_them_are_written(monkeypatch, tmp_path, options):
    commands = []

    def run(command, cwd):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(selftest.subprocess, "run", run)
    assert selftest.bench(tmp_path / "out", options) == 0
    wanted = f"--comparison-table={tmp_path / 'out' / index.BENCHMARKS}"
    assert (wanted in commands[0]) == (not options)
    assert commands[0][-len(options) :] == options or not options
