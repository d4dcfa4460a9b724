"""Where cells run: an ``Executor`` of spawned processes here, or a dask cluster. Results do not depend on it.

The local executor gives each worker one task at a time over a pipe of its own. So when a worker dies (killed, out of
memory) it is known whose task died with it: that task is tried again on a fresh worker, and given up, alone, after
``TRIES``. Workers run one BLAS thread each, keep freed memory for the next array, and end when their parent does,
however it ended.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import re
import threading
import traceback
from concurrent.futures import Executor, Future
from multiprocessing.connection import wait

TRIES = 3
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# glibc gives arrays above a threshold back to the system at once, and each training step pays for their pages again
_KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}  # bytes
WORKER_ENVIRONMENT = {**dict.fromkeys(_THREADS, "1"), **_KEPT_MEMORY}
_environment = threading.Lock()
_JOBS = {"smoke": 4, "laptop": 2}


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of a task, every time it was tried."""


def cores():
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers():
    """How many cells may run at once: ``PRIVROB_WORKERS`` (the driver's share for this notebook) or all cores."""
    return max(1, int(os.environ.get("PRIVROB_WORKERS") or cores()))


def jobs(preset, spec, counts):
    """How many notebooks run at once if nobody says: what one does beside its cells takes one core, and so leaves the
    others to the next; on a cluster each has its own share already.

    Args: preset — its name;  spec — of the engine;  counts — of notebooks, of each combination that is run.
    """
    most = _JOBS.get(preset, 1) if spec == "local" else 1
    return max(1, min(cores(), most, *counts))


def let_start_processes():
    """Let a cell on this worker start processes, as some do: dask and we mark workers as daemons, which may not."""
    multiprocessing.current_process()._config["daemon"] = False


def check_spec(spec):
    """``local``, ``dask`` or ``dask://host:port``; anything else is refused before any work."""
    text = str(spec)
    if text not in ("local", "dask") and not re.fullmatch(r"dask://([^:/\s]+|\[[0-9a-fA-F:]+\]):\d{1,5}", text):
        raise ValueError(f"--engine must be local, dask or dask://host:port, got {text!r}")
    if text.startswith("dask"):
        try:
            import distributed  # noqa: F401
        except ImportError:
            raise ValueError(
                "--engine dask needs the package distributed; install privrob[cluster] or use --engine local"
            ) from None
    return text


@contextlib.contextmanager
def open_executor(spec="local", num_workers=None):
    """The executor of that name, closed afterwards; an interrupt drops what is still queued."""
    spec, num_workers = check_spec(spec), num_workers or workers()
    if spec == "local":
        executor = LocalExecutor(num_workers)
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
        executor.shutdown()
        return
    from distributed import LocalCluster

    with contextlib.ExitStack() as stack:
        if spec == "dask":
            cluster = LocalCluster(n_workers=num_workers, threads_per_worker=1, processes=True, dashboard_address=None)
            address = stack.enter_context(cluster)
        else:
            address = spec.replace("dask://", "tcp://", 1)
        client = stack.enter_context(connect(address, spec))
        yield client.get_executor(retries=TRIES - 1, pure=False)


def connect(address, spec):
    """A dask client of the scheduler at ``address`` (or of a cluster object); no answer within 5 s is refused."""
    from distributed import Client

    try:
        return Client(address, timeout="5s", set_as_default=False)
    except OSError as error:
        raise ValueError(
            f"--engine {spec}: no scheduler answers there ({error}); start one with 'dask scheduler'"
        ) from error


class LocalExecutor(Executor):
    """Spawned processes on this machine; each a worker with one task at a time.

    Args: num_workers — processes at most, started when there is work for them.
    """

    def __init__(self, num_workers):
        self._queue = queue.SimpleQueue()
        self._stop, self._closed = threading.Event(), False
        self._threads, self._limit, self._lock = [], num_workers, threading.Lock()

    def submit(self, fn, /, *args, **kwargs):
        """Run ``fn(*args, **kwargs)`` on a worker; the usual Future."""
        if self._closed:
            raise RuntimeError("this executor was shut down")
        future = Future()
        self._queue.put((future, fn, args, kwargs))
        with self._lock:
            if len(self._threads) < self._limit:
                thread = threading.Thread(target=self._serve, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait=True, *, cancel_futures=False):
        """End the workers: at once with ``cancel_futures``, otherwise when the queue is empty."""
        self._closed = True
        if cancel_futures:
            self._stop.set()
        for _ in self._threads:
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _serve(self):
        worker = None
        try:
            while (item := self._queue.get()) is not None:
                future, *task = item
                if self._stop.is_set():
                    future.cancel()
                    continue
                if not future.set_running_or_notify_cancel():
                    continue
                for attempt in range(1, TRIES + 1):
                    worker = worker if worker and worker.alive() else _Worker()
                    outcome = worker.run(task, self._stop)
                    if outcome is not None:
                        break
                    worker = None
                    if self._stop.is_set():
                        outcome = (False, RuntimeError("stopped"))
                        break
                    if attempt == TRIES:
                        outcome = (
                            False,
                            WorkerDied(f"the worker process died {TRIES} times in this task (out of memory?)"),
                        )
                ok, value = outcome
                future.set_result(value) if ok else future.set_exception(value)
        finally:
            if worker:
                worker.close()


class _Worker:
    """One spawned process and the pipe to it."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        with _environment:  # spawned children copy the environment as it is at their start
            before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
            os.environ.update(WORKER_ENVIRONMENT)
            try:
                self.process.start()
            finally:
                for name, value in before.items():
                    os.environ.pop(name) if value is None else os.environ.update({name: value})
        theirs.close()

    def alive(self):
        return self.process.is_alive()

    def run(self, task, stop):
        """(ok, value) of the task, or None when the process died (or was told to stop)."""
        try:
            try:
                self.pipe.send(task)
            except OSError:
                raise
            except Exception as error:  # what cannot be pickled
                return False, RuntimeError(f"the task cannot be sent to a worker: {error}")
            while not stop.is_set():
                ready = wait([self.pipe, self.process.sentinel], timeout=0.2)
                if self.pipe in ready:
                    return self._received()
                if ready:
                    break
        except (EOFError, OSError):
            pass
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return None

    def _received(self):
        """The outcome that waits in the pipe, or in words why it cannot be read."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            raise
        except Exception as error:
            return False, RuntimeError(f"the worker's answer cannot be read: {error!r}")

    def close(self):
        with contextlib.suppress(OSError):
            self.pipe.close()
        self.process.join(timeout=1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(pipe):
    """A worker's life: a task in, its outcome out, until the pipe closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            fn, args, kwargs = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            outcome = (True, fn(*args, **kwargs))
        except Exception as error:
            error.add_note(traceback.format_exc())
            outcome = (False, error)
        try:
            pipe.send(outcome)
        except (BrokenPipeError, OSError):
            return
        except Exception as error:  # what cannot be pickled is told in words
            pipe.send((False, RuntimeError(f"the result could not be sent back: {error!r}; {outcome[1]!r}"[:2000])))


def _end_with_parent():
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
