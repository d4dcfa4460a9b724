"""The local executor: one task a worker, deaths known by name, nobody left behind."""

import os
import sys
import time
from concurrent.futures import CancelledError

import psutil
import pytest

from house import ROOT, kill
from privrob.suite import engine


class TwoArguments(Exception):
    """An error that cannot be unpickled: its constructor wants more than its message."""

    def __init__(self, one, two):
        super().__init__(one)


def fail(error):
    raise error


def raise_odd():
    raise TwoArguments(1, 2)


def lock():
    import threading

    return threading.Lock()


@pytest.fixture(scope="module")
def pool():
    with engine.open_executor("local", 2) as executor:
        yield executor


def test_tasks_run_in_other_processes_and_hand_back_values_and_errors(pool):
    assert pool.submit(os.getpid).result() != os.getpid()
    with pytest.raises(ZeroDivisionError) as error:
        pool.submit(divmod, 1, 0).result()
    assert "Traceback" in error.value.__notes__[0]


def test_what_cannot_be_sent_either_way_is_an_error_and_no_hang(pool):
    with pytest.raises(RuntimeError, match="the task cannot be sent to a worker"):
        pool.submit(lambda: 1).result(timeout=20)
    with pytest.raises(RuntimeError, match="the result could not be sent back"):
        pool.submit(lock).result(timeout=20)
    with pytest.raises(RuntimeError, match="the worker's answer cannot be read"):
        pool.submit(raise_odd).result(timeout=20)
    assert pool.submit(divmod, 7, 2).result(timeout=20) == (3, 1)


def test_a_worker_killed_from_outside_is_replaced_and_its_task_tried_again(pool):
    future = pool.submit(time.sleep, 1.5)
    pids = [p.pid for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())]
    time.sleep(0.5)
    for pid in pids:
        kill(pid)
    assert future.result(timeout=30) is None


def test_a_task_that_kills_every_worker_is_given_up_alone(pool):
    doomed, fine = pool.submit(os._exit, 9), pool.submit(divmod, 7, 2)
    with pytest.raises(engine.WorkerDied, match="died 3 times in this task"):
        doomed.result(timeout=60)
    assert fine.result(timeout=30) == (3, 1)


def test_an_error_in_the_block_drops_what_is_queued_and_ends_the_workers_at_once():
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), engine.open_executor("local", 1) as executor:  # noqa: PT012
        running, queued = executor.submit(time.sleep, 60), executor.submit(os.getpid)
        time.sleep(1.0)
        _ = 1 / 0
    with pytest.raises(RuntimeError, match="stopped"):
        running.result(timeout=10)
    with pytest.raises(CancelledError):
        queued.result(timeout=10)
    assert time.monotonic() - began < 15
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(os.getpid)


MASTER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from privrob.suite import engine
if __name__ == "__main__":
    with engine.open_executor("local", 2) as executor:
        for _ in range(2):
            executor.submit(time.sleep, 60)
        time.sleep(60)
"""


def test_workers_in_the_middle_of_a_long_task_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "master.py"
    script.write_text(MASTER)
    master = psutil.Popen([sys.executable, str(script), str(ROOT / "lib")])

    def workers():
        return [p for p in master.children() if "spawn_main" in " ".join(p.cmdline())]

    end = time.monotonic() + 30
    while len(workers()) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    family = workers()
    time.sleep(1.0)  # they are at their tasks now
    kill(master.pid)
    master.wait()
    assert len(family) == 2
    _, left = psutil.wait_procs(family, timeout=10)
    assert not left


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "Local",
        "dusk",
        "dask:",
        "dask://",
        "dask://host",
        "dask://host:port",
        "dask://a:1:2",
        "dask://:8786",
        "tcp://a:1",
        None,
    ],
)
def test_an_engine_that_does_not_exist_is_refused(spec):
    with pytest.raises(ValueError, match="--engine must be local, dask or dask://host:port, got "):
        engine.check_spec(spec)


@pytest.mark.parametrize("spec", ["local", "dask", "dask://localhost:8786", "dask://10.0.0.1:1", "dask://[::1]:8786"])
def test_engines_that_exist_are_taken(spec):
    assert engine.check_spec(spec) == spec


def settings_of(names):
    return {name: os.environ.get(name) for name in names}


def test_workers_run_one_thread_and_keep_memory_and_our_own_environment_stays():
    names = sorted(engine.WORKER_ENVIRONMENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "7")
        with engine.open_executor("local", 1) as executor:
            assert executor.submit(settings_of, names).result() == engine.WORKER_ENVIRONMENT
        assert os.environ["OMP_NUM_THREADS"] == "7"


def test_small_presets_run_several_notebooks_at_once_where_there_are_cores(monkeypatch):
    for cores, wanted in ((1, [1, 1, 1]), (2, [2, 2, 1]), (16, [4, 2, 1])):
        monkeypatch.setattr(engine, "cores", lambda cores=cores: cores)
        assert [engine.jobs(preset, "local", [43]) for preset in ("smoke", "laptop", "paper")] == wanted
    assert engine.jobs("smoke", "local", [3, 1]) == 1
    assert engine.jobs("smoke", "dask", [43]) == 1
