"""Runs that are stopped: killed at any moment, asked to end, or robbed of workers. Nothing is lost or left."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from house import kill
from privrob.suite import files

SMOKE = ("--preset", "smoke")
ONE = "dplearn/sec1_toy"
SWEEP = {"smoke": {"_minutes": 5, ONE: {"num_cells": 40, "sleep": 0.05}}}
LONG = {"smoke": {"_minutes": 5, ONE: {"num_cells": 400, "sleep": 0.2}}}


@pytest.fixture
def long(make_house):
    """A house whose one notebook sweeps for a minute, with its driver started and some cells computed."""
    house = make_house(names=(ONE,))
    house.presets(LONG)
    house.driver = house.start(*SMOKE)
    house.wait_for(lambda: len(cells(house)) > 3)
    yield house
    if house.driver.poll() is None:
        kill(house.driver.pid)
        house.driver.wait()


def cells(house):
    return list(house.results.glob(".cells/*/*.json"))


def named(house, word):
    """Processes of the house with a word in their command line."""
    return [p for p in house.processes() if word in " ".join(p.cmdline())]


def end(house, seconds=10):
    """Wait for the driver's end: (exit status, output); it comes within so many seconds."""
    out, _ = house.driver.communicate(timeout=seconds)
    return house.driver.returncode, out


@pytest.mark.slow
def test_a_driver_killed_at_20_random_moments_loses_nothing_and_its_end_equals_an_undisturbed_run(make_house):
    house, calm = make_house(names=(ONE,)), make_house(names=(ONE,))
    for one in (house, calm):
        one.presets(SWEEP)
    assert calm.run(*SMOKE)[0] == 0
    moments, kills, kept = random.Random(0), 0, 0
    while kills < 20:
        driver = house.start(*SMOKE)
        time.sleep(moments.uniform(0.2, 3.8))  # start-up, sweep, figure, saving
        if driver.poll() is None:
            kill(driver.pid)
            kills += 1
        driver.communicate()
        assert len(cells(house)) >= kept, "no computed cell is lost"
        for path in cells(house):
            files.load_json(files.read_text(path))
        kept = len(cells(house))
        if (house.results / ONE / "smoke").exists() or (kept == 40 and kills % 5 == 0):  # go back to the sweep's middle
            shutil.rmtree(house.results / ONE, ignore_errors=True)
            for path in cells(house)[::2]:
                path.unlink()
            kept = len(cells(house))
    house.assert_no_orphans()
    status, out = house.run(*SMOKE)
    assert status == 0, out
    assert house.kept(ONE) == calm.kept(ONE)
    assert not list(house.results.rglob("*.part"))
    assert not list(house.results.rglob(".former.*"))


def assert_half_done(house):
    """The notebook counts as not done, nothing runs any more, and the computed cells are there."""
    house.assert_no_orphans(5)
    assert not (house.results / ONE / "smoke").exists()
    status, out = house.run("status", *SMOKE)
    assert (status, out.split()[0]) == (1, "missing")
    assert len(cells(house)) > 3


@pytest.mark.slow
def test_a_terminated_driver_ends_everything_in_seconds_and_the_half_done_notebook_counts_as_not_done(long):
    began = time.monotonic()
    long.driver.send_signal(signal.SIGTERM)
    code, out = end(long)
    assert (code, time.monotonic() - began < 10) == (143, True)
    assert "stopped; what was done is kept, and the same command goes on from here" in out
    assert f"{ONE}  stopped" in out
    assert "Traceback" not in out
    assert_half_done(long)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_the_driver_in_order_though_the_whole_pipe_gets_it(make_house):
    """As typed: every process of the foreground group gets the signal, tee ignores it and ends when the driver does."""
    house = make_house(names=(ONE,))
    house.presets(LONG)
    command = f"{sys.executable} -m privrob.suite --preset smoke 2>&1 | tee -i out.txt; exit ${{PIPESTATUS[0]}}"
    script = f"trap : INT; {command}"
    shell = subprocess.Popen(["bash", "-c", script], env=house.env(), cwd=house.root, start_new_session=True)
    house.wait_for(lambda: len(cells(house)) > 3)
    began = time.monotonic()
    os.killpg(shell.pid, signal.SIGINT)
    assert shell.wait(timeout=15) == 130
    assert time.monotonic() - began < 10
    out = (house.root / "out.txt").read_text(encoding="utf-8")
    assert "stopped; what was done is kept" in out
    assert "Traceback" not in out
    assert_half_done(house)


@pytest.mark.slow
def test_a_kernel_and_a_worker_killed_in_mid_sweep(long):
    """The worker's loss is made good without a word; the kernel's is told, and what was computed stays."""
    before = len(cells(long))
    workers = long.wait_for(lambda: [p for p in named(long, "spawn_main") if p.is_running()])
    workers[0].kill()
    long.wait_for(lambda: len(cells(long)) > before + 10)
    (kernel,) = named(long, "ipykernel_launcher")
    began = time.monotonic()
    kernel.kill()
    code, out = end(long, 60)
    assert code == 1
    assert time.monotonic() - began < 60
    assert "failed" in out
    assert "the kernel died (killed, or out of memory); lower the notebook's sizes, or give it more memory" in out
    long.assert_no_orphans()
    assert len(cells(long)) > before + 10


@pytest.mark.slow
def test_a_notebooks_process_killed_is_told_and_its_kernel_goes_too(long):
    (process,) = named(long, "privrob.suite.execute")
    process.kill()
    code, out = end(long, 60)
    assert code == 1
    assert "ended by signal 9 and left no word (killed, or out of memory?)" in out
    long.assert_no_orphans()


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_no_process_and_no_lock_behind(long):
    kill(long.driver.pid)
    end(long)
    long.assert_no_orphans()
    with files.lock(long.results):
        pass
    assert not (long.results / ONE / "smoke").exists()


def test_a_replacement_that_was_cut_short_is_mended(make_house):
    """Between the two renames of putting results in place there is no folder; the former one is put back."""
    from privrob.suite import run

    house = make_house(names=(ONE,))
    former = house.results / "dplearn" / "sec1_toy" / ".former.smoke"
    former.mkdir(parents=True)
    (former / "result.json").write_text("old")
    (house.results / ".staging" / "x").mkdir(parents=True)
    (house.results / ".cells" / "ab").mkdir(parents=True)
    (house.results / ".cells" / "ab" / ".cell.json.1234.part").write_text("half")
    run.mend(house.results)
    assert (house.results / ONE / "smoke" / "result.json").read_text() == "old"
    assert [p.name for p in house.results.rglob("*") if p.is_file()] == ["result.json"]
    former.mkdir()
    (house.results / ONE / "smoke" / "result.json").write_text("new")
    run.mend(house.results)
    assert (house.results / ONE / "smoke" / "result.json").read_text() == "new"
    assert not former.exists()
