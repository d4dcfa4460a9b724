"""The driver: runs the planned notebooks, each in a process of its own, and tells how each of them ended.

A notebook's results are collected in a hidden folder and put in place in one step once the evidence is complete; until
then the former results stay. The failure of one notebook does not stop the others.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from privrob.suite import engine as engines
from privrob.suite import evidence, execute, record, tables
from privrob.suite.claims import DOCUMENTS
from privrob.suite.files import NoSpace, dump_json, load_json, read_text, write_text
from privrob.suite.sources import package_root, repository

GRACE = 5.0  # seconds between asking a child to end and ending it
HEARTBEAT = 30.0  # seconds between signs of life where there is no terminal
_STAGED = re.compile(
    rf"({'|'.join(DOCUMENTS)})\.[\w.-]+\.[0-9a-f]{{16}}"
)  # a job's folder, as :func:`prepare` names it


class Interrupted(Exception):
    """The run was stopped by a signal."""

    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@dataclass
class Ended:
    """How one notebook ended: state is "ran", "up to date", "surprise", "failed" or "stopped"."""

    name: str
    state: str
    words: str
    seconds: float = 0.0
    log: str = ""

    @property
    def bad(self):
        """True when the run as a whole must not exit with 0."""
        return self.state not in ("ran", "up to date")


@dataclass(frozen=True)
class Options:
    """What all notebooks of a run share."""

    jobs: int = 1
    engine: str = "local"
    device: str = "auto"
    redraw: bool = False
    fresh: bool = False
    minutes: float | None = None


# ------------------------------------------------------------------------------------------------- one notebook's life


def prepare(plan, options):
    """Write the job of one notebook into a fresh hidden folder; returns that folder."""
    token = secrets.token_hex(8)
    folder = plan.out / ".staging" / f"{plan.name.replace('/', '.')}.{plan.preset}.{token}"
    folder.mkdir(parents=True)
    runtime = plan.out / ".runtime"
    execute.kernel_spec(runtime)
    inputs = plan.inputs()
    job = {
        "notebook": plan.name,
        "preset": plan.preset,
        "source": str(plan.source.path.resolve()),
        "injected": plan.changes,
        "parameters": plan.changes,
        "cwd": str(repository()),
        "folder": str(folder / "results"),
        "store": str(plan.cells or plan.out / ".cells"),
        "more_stores": [str(repository() / "results" / ".cells")],
        "stored_rows": str(plan.folder / "rows.csv"),
        "device": options.device,
        "engine": options.engine,
        "redraw": options.redraw,
        "fresh": options.fresh,
        "token": token,
        "inputs": inputs,
        "runtime": str(runtime),
        "seconds": 60 * (options.minutes or plan.minutes),
        "workers": max(1, engines.cores() // options.jobs),
    }
    write_text(folder / "job.json", dump_json(job))
    return folder


def environment(job, folder):
    """The environment of a notebook's process: our interpreter and library, no writing into anybody's home."""
    env = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "PYTHONSTARTUP", "JUPYTER_PLATFORM_DIRS")}
    runtime = Path(job["runtime"])
    path = os.pathsep.join(p for p in (str(package_root()), env.get("PYTHONPATH", "")) if p)
    env |= engines.WORKER_ENVIRONMENT
    env |= {
        "PYTHONPATH": path,
        "PYTHONUTF8": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": env.get("PYTHONWARNINGS", "ignore:IProgress not found"),  # tqdm's, of no use in a kernel here
        "PYTHONUNBUFFERED": "1",
        "JUPYTER_PATH": str(runtime),
        "JUPYTER_CONFIG_DIR": str(runtime / "config"),
        "JUPYTER_DATA_DIR": str(runtime),  # whole, where JUPYTER_PATH is parted at colons
        "JUPYTER_RUNTIME_DIR": str(folder),
        "IPYTHONDIR": str(runtime / "ipython"),
        "MPLCONFIGDIR": str(runtime / "matplotlib"),
        "PRIVROB_ROOT": job["cwd"],
        "PRIVROB_JOB": str(folder / "job.json"),
        "PRIVROB_PROGRESS": str(folder / "progress.json"),
        "PRIVROB_WORKERS": str(job["workers"]),
        "PRIVROB_COMMIT": record.commit(),
    }
    return env


def run_child(folder, stop=None):
    """Run a prepared job to its end in a child process; returns ``{"ok", "error"}``. Also runs on a dask worker."""
    folder = Path(folder)
    job = load_json(read_text(folder / "job.json"))
    stop = stop or threading.Event()
    _leave_worker_slot()
    deadline = time.monotonic() + job["seconds"]
    with open(folder / "log.txt", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", job.get("module", "privrob.suite.execute"), str(folder / "job.json")],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(job, folder),
            cwd=job["cwd"],
            start_new_session=True,  # a terminal's Ctrl-C reaches the driver alone, which ends its children in order
        )
        try:
            while child.poll() is None:
                if stop.is_set() or not (folder / "job.json").exists():  # a driver elsewhere takes the job back
                    return {"ok": False, "error": "stopped"}
                if time.monotonic() > deadline:
                    minutes = job["seconds"] / 60
                    return {
                        "ok": False,
                        "error": f"time limit of {minutes:g} minutes reached; raise it with --time-limit",
                    }
                time.sleep(0.1)
        finally:
            end(child)
    status = folder / "status.json"
    if status.is_file():
        return load_json(read_text(status))
    if child.returncode == 128 + signal.SIGTERM:
        return {"ok": False, "error": "the notebook's process was asked to end from outside (SIGTERM)"}
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit status {child.returncode}"
    return {"ok": False, "error": f"the notebook's process ended by {how} and left no word (killed, or out of memory?)"}


def end(child):
    """End a child, its kernel and the kernel's workers: asked first, then made to."""
    import psutil

    family = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(child.pid).children(recursive=True)
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
        child.kill()
        child.wait()
    with contextlib.suppress(OSError):
        child.stdin.close()
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _leave_worker_slot():
    """On a dask worker, let the notebook's own cells have the place that this task takes."""
    if "distributed" in sys.modules:
        from distributed import secede

        with contextlib.suppress(ValueError):  # not inside a task
            secede()


def put_in_place(node, folder, plan):
    """Replace a notebook's results by those in ``folder`` in one step; one cut short is mended at the next run."""
    fresh = folder / "results"
    evidence.write(node, fresh)
    target = plan.folder
    target.parent.mkdir(parents=True, exist_ok=True)
    former = target.with_name(f".former.{target.name}")
    shutil.rmtree(former, ignore_errors=True)
    if target.exists():
        os.replace(target, former)
    os.replace(fresh, target)
    shutil.rmtree(former, ignore_errors=True)


def mend(out):
    """Undo what a killed run left: put former results back, drop what is half-done. Called under the lock."""
    for former in (f for key in DOCUMENTS for f in Path(out).glob(f"{key}/*/.former.*")):
        target = former.with_name(former.name.removeprefix(".former."))
        shutil.rmtree(former, ignore_errors=True) if target.exists() else os.replace(former, target)
    for folder in Path(out).glob(".staging/*"):  # also one that was killed before it had a job
        if _STAGED.fullmatch(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    for place in (
        ".INDEX.md.*.part",
        ".FINDINGS.md.*.part",
        ".LETTERS.md.*.part",
        ".cells/*/.*.part",
        ".runtime/kernels/*/.*.part",
    ):
        for part in Path(out).glob(place):
            part.unlink(missing_ok=True)


def finish(plan, folder, status, seconds):
    """Judge a job that came to its end: results in place, or the failed notebook and its log kept for reading."""
    error = status["error"]
    if status["ok"]:
        try:
            job = load_json(read_text(folder / "job.json"))
            node, result = evidence.check(
                folder, plan.source, changes=plan.changes, token=job["token"], inputs=job["inputs"]
            )
            put_in_place(evidence.tidy(node, evidence.note(plan)), folder, plan)
            if words := plan.surprised(result):
                return Ended(plan.name, "surprise", words, seconds)
            return Ended(plan.name, "ran", result["summary"], seconds)
        except evidence.NotRun as problem:
            error = f"not accepted: {problem}"
        except NoSpace as problem:
            error = str(problem)
    if error == "stopped":
        return Ended(plan.name, "stopped", "not done; the next run resumes it", seconds)
    if "no space" not in error.lower() and shutil.disk_usage(plan.out).free < 2**17:
        error = f"no space left in {_relative(plan.out)} ({error})"
    kept = plan.out / ".failed" / plan.name / plan.preset
    shutil.rmtree(kept, ignore_errors=True)
    for name in ("log.txt", "executed.ipynb"):
        with contextlib.suppress(OSError):
            kept.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, kept / name)
    return Ended(plan.name, "failed", " ".join(error.split())[:300], seconds, log=_relative(kept / "log.txt"))


def _relative(path):
    with contextlib.suppress(ValueError):
        return str(Path(path).resolve().relative_to(Path.cwd()))
    return str(path)


# -------------------------------------------------------------------------------------------------------- all of them


def run_all(plans, options, *, say=print):
    """Run the plans that are not up to date; returns a list of :class:`Ended` in the plans' order.

    Raises: Interrupted — after the children were ended; what was done until then is kept.
    """
    ended, todo = {}, []
    for plan in plans:
        state, words = plan.state()
        if state == "done" and not options.fresh and not options.redraw:
            ended[plan.name] = Ended(plan.name, "up to date", words)
            say(f"= {plan.name}  up to date: {words}")
        else:
            todo.append(plan)
    if not todo:
        return [ended[p.name] for p in plans]
    stop = threading.Event()
    # Whatever goes wrong in here, the children are told to end before the executor waits for them.
    with _signals(stop) as caught, _executor(options) as (submit, options), _set_on_error(stop):
        waiting, began, slots = {}, {}, options.jobs
        show = _Display(say, len(plans))
        while todo or waiting:
            while todo and len(waiting) < slots and not stop.is_set():
                plan = todo.pop(0)
                try:
                    folder = prepare(plan, options)
                except OSError as error:
                    ended[plan.name] = Ended(plan.name, "failed", f"could not begin: {error}")
                    show.end(ended[plan.name])
                    continue
                began[plan.name] = time.monotonic()
                waiting[submit(folder, stop)] = (plan, folder)
                show.begin(plan.name)
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            show.tick([(p.name, f) for p, f in waiting.values()])
            for future in done:
                plan, folder = waiting.pop(future)
                try:
                    status = future.result()
                except Exception as error:
                    status = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                one = finish(plan, folder, status, time.monotonic() - began[plan.name])
                shutil.rmtree(folder, ignore_errors=True)
                ended[plan.name] = one
                show.end(one)
            if stop.is_set():
                for plan in todo:
                    ended[plan.name] = Ended(plan.name, "stopped", "not begun")
                todo = []
                if options.engine != "local":  # tasks on a cluster end when their job is taken back
                    for plan, folder in waiting.values():
                        shutil.rmtree(folder, ignore_errors=True)
                        ended[plan.name] = Ended(plan.name, "stopped", "not done; the next run resumes it")
                    break
    if caught:
        say(table(list(ended.values())))
        raise Interrupted(caught[0])
    return [ended[p.name] for p in plans]


@contextlib.contextmanager
def _set_on_error(stop):
    try:
        yield
    except BaseException:
        stop.set()
        raise


@contextlib.contextmanager
def _signals(stop):
    """Set ``stop`` on SIGINT and SIGTERM; yields the list that the first one's number goes into."""
    caught = []

    def note(number, _frame):
        caught.append(number)
        stop.set()

    before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _executor(options):
    """(submit(folder, stop), options as the notebooks see them) for the engine: threads here, or tasks on dask."""
    if options.engine == "local":
        with ThreadPoolExecutor(options.jobs) as pool:
            yield (lambda folder, stop: pool.submit(run_child, folder, stop)), options
        return
    from dataclasses import replace

    from distributed import LocalCluster

    with contextlib.ExitStack() as stack:
        address = options.engine.replace("dask://", "tcp://", 1)
        if options.engine == "dask":
            cluster = LocalCluster(
                n_workers=engines.cores(), threads_per_worker=1, processes=True, dashboard_address=None
            )
            address = stack.enter_context(cluster).scheduler_address
        client = stack.enter_context(engines.connect(address, options.engine))
        pool = client.get_executor(retries=0, pure=False)
        shared = replace(options, engine=address.replace("tcp://", "dask://", 1))
        yield (lambda folder, stop: pool.submit(run_child, str(folder))), shared


class _Display:
    """A line for each notebook that begins and ends; on a terminal a line of progress, elsewhere a sign of life."""

    def __init__(self, say, total):
        self.say, self.total, self.done = say, total, 0
        self.live = sys.stdout.isatty()
        self.spoke, self.width, self.began = time.monotonic(), 0, {}

    def begin(self, name):
        """A notebook starts."""
        self.began[name] = time.monotonic()
        if not self.live:
            self.say(f"> {name}  started")

    def end(self, one):
        """A notebook ended."""
        self._clear()
        mark = {"ran": "+", "surprise": "?", "stopped": "-"}.get(one.state, "x")
        log = f" (log: {one.log})" if one.log else ""
        self.say(f"{mark} {one.name}  {one.seconds:.0f} s  {one.words}{log}")
        self.spoke = time.monotonic()

    def tick(self, running):
        """Show what runs, now and then."""
        now = time.monotonic()
        if not running or now - self.spoke < (0.5 if self.live else HEARTBEAT):
            return
        self.spoke = now
        texts = [f"{name} {now - self.began[name]:.0f} s{self._progress(folder)}" for name, folder in running]
        if self.live:
            text = " | ".join(texts)[: shutil.get_terminal_size().columns - 1]
            print("\r" + text.ljust(self.width), end="", flush=True)
            self.width = len(text)
        else:
            for text in texts:
                self.say(f"  … {text}")

    def _progress(self, folder):
        try:
            at = load_json(read_text(folder / "progress.json"))
        except (OSError, ValueError):
            return ""
        words = [f"{at['label']}: {at['done']} of {tables.count(at['total'], 'cell')}"]
        if at["taken"]:
            words.append(f"{at['taken']} of them stored before")
        if at["left"]:
            words.append(f"about {at['left']:.0f} s left")
        return f" ({', '.join(words)})"

    def _clear(self):
        if self.live and self.width:
            print("\r" + " " * self.width + "\r", end="", flush=True)
            self.width = 0


def table(ended):
    """The closing table."""
    if not ended:
        return "nothing to run"
    width = max(len(e.name) for e in ended)
    lines = [f"{e.name.ljust(width)}  {e.state:<10}  {e.seconds:7.1f} s  {e.words}" for e in ended]
    return "\n".join(lines)
