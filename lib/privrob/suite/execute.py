"""One notebook in one process of its own: papermill below, a watch on the driver beside it.

``python -m privrob.suite.execute JOB.json``. The driver holds our standard input open; when it closes, the driver is
gone, and the kernel and everything that it started are ended at once. So no run leaves orphans, however it was stopped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from pathlib import Path

from privrob.suite import preflight
from privrob.suite.files import dump_json, full, load_json, most_open_files, read_text, write_text

KERNEL = "privrob"

_ENOUGH_FILES = 64  # below this a lack of open files is named beside whatever came of it


def main(path):
    """Execute the job's notebook, then write ``status.json``: how it ended, in words."""
    job = load_json(read_text(path))
    folder = Path(path).parent
    threading.Thread(target=end_with_driver, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: _end_children_and_exit(143))
    status = {"ok": False, "error": ""}
    try:
        _papermill(job, folder)
        status["ok"] = True
    except BaseException as error:
        status["error"] = _describe(error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # for the log, a cell's traceback included
        if isinstance(error, KeyboardInterrupt):
            _end_children()
    with contextlib.suppress(OSError):  # no space: the driver sees that itself
        write_text(folder / "status.json", dump_json(status))
    return 0 if status["ok"] else 1


def _papermill(job, folder):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import papermill

    preflight.check_loopback()  # here once more: this may be a worker elsewhere
    papermill.execute_notebook(
        _literally(job["source"]),
        _literally(folder / "executed.ipynb"),
        parameters=job["injected"],
        kernel_name=KERNEL,
        language="python",
        progress_bar=False,
        start_timeout=120,
        cwd=job["cwd"],
        autosave_cell_every=0,
        shutdown_kernel="immediate",  # all results are on disk; a kernel that ends in its own time takes half a second
    )


def _literally(path):
    """A path that papermill takes as it is: it would fill in what stands in braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _describe(error):
    name = type(error).__name__
    if name == "DeadKernelError":
        return "the kernel died (killed, or out of memory); lower the notebook's sizes, or give it more memory"
    if name == "PapermillExecutionError":
        cell = f"cell {error.exec_count}" if error.exec_count else "a cell"
        if error.ename == "KeyboardInterrupt":
            return f"{cell}: interrupted from outside (SIGINT to its kernel); the same command goes on from here"
        return f"{cell}: {error.ename}: {error.evalue}"
    if name == "KeyboardInterrupt":
        return "interrupted from outside (SIGINT to the notebook's process); the same command goes on from here"
    if why := full(error):
        return f"{why} to write the executed notebook"
    if getattr(error, "errno", None) == errno.EMFILE:
        return f"too many open files for this process ({error}); raise the limit (ulimit -n)"
    if (most := most_open_files()) < _ENOUGH_FILES:  # whatever came of it: a kernel that died, a module not found
        return f"{name}: {error}; this process may open {most} files only: raise the limit (ulimit -n)"
    return f"{name}: {error}"


def _end_children():
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


def _end_children_and_exit(code):
    _end_children()
    os._exit(code)


def end_with_driver():
    """Wait until the driver is gone (it holds our standard input open), then end all that we started, and us."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    _end_children_and_exit(1)


def kernel_spec(folder):
    """Write a kernel spec for this very interpreter below ``folder`` (a JUPYTER_PATH), under a name of its own."""
    spec = {
        "argv": [
            *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
            "--HistoryManager.enabled=False",  # no database that two kernels would share
            "--log-level=40",
        ],
        "display_name": "Python 3 (privrob)",
        "language": "python",
        "metadata": {"debugger": False},
    }
    write_text(Path(folder) / "kernels" / KERNEL / "kernel.json", dump_json(spec))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
