"""Notebooks and cells on dask: a cluster made on the spot, one that is joined, a lost worker, a wrong address."""

import contextlib
import socket
import subprocess
import sys
import time

import psutil
import pytest

from house import kill
from privrob.suite import files, sweep
from privrob.suite.sweep import Store

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SMOKE = ("--preset", "smoke")
ONE = "dplearn/sec1_toy"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def joined(house):
    """A scheduler and two workers that join it over TCP, each started as somebody would by hand."""
    port = free_port()
    house.address = f"dask://127.0.0.1:{port}"
    here = {
        "env": house.env(PRIVROB_ROOT=""),
        "cwd": house.root,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.STDOUT,
    }
    dask = [sys.executable, "-m", "dask"]
    scheduler = [*dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker = [*dask, "worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-dashboard"]
    house.parts = [subprocess.Popen(scheduler, **here)]
    house.parts += [subprocess.Popen([*worker, "--name", name], **here) for name in ("one", "two")]
    try:
        yield house
    finally:
        for part in reversed(house.parts):
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*psutil.Process(part.pid).children(recursive=True), part]:
                    process.kill()
            part.wait()


@pytest.fixture(scope="module")
def cluster(make_house):
    """A house with a cluster of its own."""
    with joined(make_house("joined")) as house:
        yield house


def same_rows(house, other):
    def rows(one):
        return (one.results / ONE / "smoke" / "rows.csv").read_bytes()

    return rows(house) == rows(other)


@pytest.fixture(scope="module")
def local(make_house):
    house = make_house("local", names=(ONE,))
    status, out = house.run(*SMOKE)
    assert status == 0, out
    return house


def test_notebooks_and_their_cells_run_on_a_cluster_made_on_the_spot(make_house, local):
    house = make_house("on the spot")
    status, out = house.run(*SMOKE, "--engine", "dask", "--jobs", 2)
    assert status == 0, out
    assert "2 of 2 notebooks done." in out
    assert house.kept(ONE) == local.kept(ONE), "the engine leaves no trace in what is kept"
    house.assert_no_orphans()


def test_a_cluster_that_runs_already_is_joined_and_left_running(cluster, local):
    status, out = cluster.run(ONE, *SMOKE, "--engine", cluster.address)
    assert status == 0, out
    assert same_rows(cluster, local)
    assert all(part.poll() is None for part in cluster.parts)


def test_a_stopped_driver_takes_its_notebooks_back_from_the_cluster(cluster):
    import signal

    cluster.presets({"smoke": {"_minutes": 5, ONE: {"num_cells": 400, "sleep": 0.2}}})
    before = len(list(cluster.results.glob(".cells/*/*.json")))
    driver = cluster.start(ONE, *SMOKE, "--engine", cluster.address)
    cluster.wait_for(lambda: len(list(cluster.results.glob(".cells/*/*.json"))) > before + 2)
    began = time.monotonic()
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=15)
    assert (driver.returncode, time.monotonic() - began < 10) == (130, True), out
    assert "dplearn/sec1_toy  stopped" in out
    cluster.wait_for(lambda: not [p for p in cluster.processes() if "ipykernel_launcher" in " ".join(p.cmdline())], 10)


def test_a_worker_of_a_cluster_killed_in_mid_sweep_loses_nothing(cluster, tmp_path):
    work = [("toy_cells:draw", {"index": i, "scale": 2.0, "sleep": 0.25}) for i in range(16)]
    cells = sweep.make_cells(work, seed=0)
    killed = []

    def strike(done, total, taken_over, left):
        if done == 3 and not killed:
            (worker,) = psutil.Process(cluster.parts[1].pid).children()[-1:]
            kill(worker.pid)
            killed.append(worker.pid)

    outcome = sweep.run(cells, Store(tmp_path / "dask"), engine=cluster.address, progress=strike)
    assert killed
    calm = [("toy_cells:draw", {**settings, "sleep": 0.25}) for _, settings in work[:2]]
    expected = sweep.run(sweep.make_cells(calm, seed=0), Store(tmp_path / "local"), num_workers=1)
    assert (outcome.computed, len(outcome.rows())) == (16, 16)
    assert outcome.rows()[:2] == expected.rows()


@pytest.mark.fault("worker lost")
@pytest.mark.parametrize("with_notebook", [True, False], ids=["with the notebook", "with a cell"])
def test_of_two_workers_joined_over_tcp_one_is_lost_for_good_and_nothing_else(make_house, tmp_path, with_notebook):
    """The worker and the nanny that would start it anew are killed, as when their machine is gone."""
    house = make_house("lost", names=(ONE,))
    house.presets({"smoke": {"_minutes": 5, ONE: {"num_cells": 24, "sleep": 0.3}}, "laptop": None, "paper": None})

    def stored():
        return len(list(house.results.glob(".cells/*/*.json")))

    def holds_the_notebook(part):
        below = psutil.Process(part.pid).children(recursive=True)
        return any("privrob.suite.execute" in " ".join(p.cmdline()) for p in below)

    with joined(house):
        driver = house.start(ONE, *SMOKE, "--engine", house.address)
        house.wait_for(lambda: stored() > 3, 240)
        (part,) = (p for p in house.parts[1:] if holds_the_notebook(p) == with_notebook)
        workers = psutil.Process(part.pid).children()
        for process in (part, *workers):
            kill(process.pid)
        assert stored() < 24, "killed in the middle"
        out, _ = driver.communicate(timeout=300)
        assert driver.returncode == 0, out
        assert "1 of 1 notebook done." in out
        assert stored() == 24
        assert [p.poll() is None for p in house.parts if p is not part] == [True, True]
    status, out = house.run(ONE, *SMOKE, "--fresh", "--out", tmp_path / "calm")
    assert status == 0, out
    calm = (tmp_path / "calm" / ONE / "smoke" / "rows.csv").read_bytes()
    assert (house.results / ONE / "smoke" / "rows.csv").read_bytes() == calm


def test_a_cell_may_start_processes_on_a_worker_of_a_cluster(cluster, tmp_path):
    cells = sweep.make_cells([("toy_cells:starts_a_process", {"index": 0})], seed=0)
    assert sweep.run(cells, Store(tmp_path), engine=cluster.address).rows()[0]["status"] == 0


def test_an_option_for_gpus_is_for_the_workers_to_check(cluster):
    """The driver of a cluster may have none; where the notebook runs, a device that is not there is refused."""
    status, out = cluster.run(ONE, *SMOKE, "--engine", cluster.address, "--device", "tpu")
    assert (status, "--device must be auto, cpu, cuda or cuda:N, got 'tpu'" in out) == (2, True)


def test_an_address_where_no_scheduler_answers_is_refused_quickly(local):
    began = time.monotonic()
    status, out = local.run(*SMOKE, "--fresh", "--engine", f"dask://127.0.0.1:{free_port()}")
    assert status == 2
    assert time.monotonic() - began < 20
    assert "no scheduler answers there" in out
    assert "start one with 'dask scheduler'" in out
    assert "Traceback" not in out
    with files.lock(local.results):
        pass
