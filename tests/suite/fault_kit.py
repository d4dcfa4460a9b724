"""Tools of the fault tests: whom to strike and when, what to deny a run, and what must hold afterwards."""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from house import ROOT, House
from privrob.suite import engine, files

SMOKE = ("--preset", "smoke")
ONE = "dplearn/sec1_toy"
SCRIPT = ROOT / "run_all.sh"
NUM_CELLS = 24  # with two workers 2.4 s of cells
SHORT = {"smoke": {"_minutes": 5, ONE: {"num_cells": NUM_CELLS, "sleep": 0.2}}}
LONG = {"smoke": {"_minutes": 5, ONE: {"num_cells": 400, "sleep": 0.2}}}  # the same cells and more, over a minute
ACTORS = {
    "driver": "-m privrob.suite --preset",
    "notebook": "privrob.suite.execute",
    "kernel": "ipykernel_launcher",
    "worker": "spawn_main",
}
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
ODD = ["a b", "it's", 'a "b"', "Zoë 日本 🙂", "a [b]*?", "$HOME ~", "100%{x}", "back\\slash", "a\nb", "-rf", "#;&|"]
# whatever a fault does, these must not be among what a person is told
UNHELPFUL = ("Traceback", "KeyboardInterrupt", "[Errno", "exit status 143")

# -------------------------------------------------------------------------------------------------------------- strikes


def cells(house):
    """{path: bytes} of the stored cells of a house."""
    return {path: path.read_bytes() for path in house.results.glob(".cells/*/*.json")}


def named(house, who):
    """The processes of a house that play a part."""
    found = []
    for process in house.processes():
        with contextlib.suppress(psutil.Error):
            if ACTORS[who] in " ".join(process.cmdline()):
                found.append(process)
    return found


def needs_workers(who):
    """A sweep on one core runs in the kernel itself."""
    if who == "worker" and engine.cores() < 2:
        pytest.skip("one core: cells run in the kernel, there is no worker to strike")


@contextlib.contextmanager
def begun(house, *arguments, num_cells=3, **kwargs):
    """A driver in mid-sweep: so many cells were computed since its start. Ended afterwards, however the test went."""
    before = len(cells(house))
    driver = house.start(*SMOKE, *arguments, **kwargs)
    try:
        house.wait_for(lambda: len(cells(house)) >= before + num_cells or driver.poll() is not None, 120)
        assert driver.poll() is None, driver.communicate()[0]
        yield driver
    finally:
        if driver.poll() is None:
            driver.kill()
        driver.communicate()


def strike(process, number):
    """Send a signal; True when the process was still there to get it."""
    try:
        process.send_signal(number)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False
    return True


def end(driver, seconds=60):
    """(exit status, output) of a driver that ends within so many seconds."""
    out, _ = driver.communicate(timeout=seconds)
    return driver.returncode, out


def assert_nothing_lost(house, before):
    """Every cell that was stored is there as it was, each one whole; nothing runs or is locked."""
    house.assert_no_orphans()
    after = cells(house)
    assert before.items() <= after.items()
    for path in after:
        record = files.load_json(files.read_text(path))
        assert record.pop("checksum") == files.digest(record)
    with files.lock(house.results):
        pass


def assert_not_done(house):
    """The struck notebook does not count as done, for a person or for the next run."""
    assert not (house.results / ONE / "smoke").exists()
    status, out = house.run("status", *SMOKE)
    assert (status, out.split()[0]) == (1, "missing")


def assert_like_calm(house, calm, out=None):
    """What is kept is byte for byte that of a run that nobody disturbed, with nothing half-done beside it."""
    assert house.kept(ONE, out=out) == calm.kept(ONE)
    for pattern in ("*.part", ".former.*", ".staging/*"):
        assert not list((out or house.results).rglob(pattern))


def helpful(out, *words):
    """The output says this, and nothing that only a programmer could read."""
    for word in words:
        assert word in out, out
    for word in UNHELPFUL:
        assert word not in out, out


# ------------------------------------------------------------------------------------------------------ what is denied


def limited(**limits):
    """For ``preexec_fn``: limits such as ``FSIZE=20_000`` for the driver and all that it starts."""

    def apply():
        for name, soft in limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))

    return apply


@contextlib.contextmanager
def mounted(folder, options):
    """A file system of its own in a folder, or the test is skipped."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def read_only(folder):
    """A folder that we cannot write to: by its permissions, for root by a file system that nobody can write to."""
    if os.geteuid() == 0:
        with mounted(folder, "ro,size=1m"):
            yield folder
    else:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


class Listener:
    """A port that notes who calls, and hangs up: as a proxy it sees whether a run asks anything of the network."""

    def __init__(self):
        self.calls, self.socket = [], socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                self.calls.append(connection.recv(200))
                connection.close()

    def environment(self):
        """Every common way to say that this is the proxy."""
        names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
        values = {name: "" if name == "no_proxy" else self.address for name in names}
        return {**values, **{name.upper(): value for name, value in values.items()}}


# ------------------------------------------------------------------------------------------------------ the real script


def checkout(folder):
    """A checkout below ``folder``: the real script and library, toy notebooks, the toy cells beside the library."""
    house = House(folder, names=(ONE,))
    shutil.copy(SCRIPT, house.root / "run_all.sh")
    shutil.copytree(ROOT / "lib", house.root / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "tests" / "suite" / "toy_cells.py", house.root / "lib" / "toy_cells.py")
    return house


def bare(**changes):
    """An environment with nothing of ours in it: the python of these tests first on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return {"PATH": path, "PRIVROB_OFFLINE": "1", **changes}


def run_all(house, *arguments, env, timeout=180, **kwargs):
    """The real script of a checkout: (exit status, output)."""
    command = ["bash", str(house.root / "run_all.sh"), "--no-env", *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL, **kwargs)
    return done.returncode, (done.stdout + done.stderr).decode("utf-8")


def listing(folder):
    """All that is below a folder, with times and sizes."""
    return {p: (p.lstat().st_mtime_ns, p.lstat().st_size) for p in sorted(folder.rglob("*"))}


def can_run(env, who):
    """Whether this python, packages included, works for that user."""
    command = [sys.executable, "-c", "import numpy"]
    try:
        return subprocess.run(command, env=env, cwd="/", capture_output=True, **who).returncode == 0
    except PermissionError:
        return False


def appears(house, who, driver, seconds=60):
    """The first process that plays a part, once there is one; None when the driver ended before."""
    began = time.monotonic()
    while driver.poll() is None and time.monotonic() - began < seconds:
        if found := named(house, who):
            return found[0]
        time.sleep(0.02)
    return None


def refused(call, *arguments):
    """The call is refused in words, and nothing was run or left behind; returns the words."""
    status, out = call(*arguments)
    assert status == 2, (status, out)
    helpful(out)
    assert not list(call.house.root.rglob(".staging"))
    return out
