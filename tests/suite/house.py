"""A toy repository for tests of the driver: real notebooks, real claims, cells of a few milliseconds."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = """\
scale: float = 2.0  # factor of the draw
num_cells: int = 4  # how many cells
sleep: float = 0.0  # seconds a cell takes
names: list = ["a", "b"]  # only printed
loud: bool = False  # print more
dataset: str = "synthetic"  # what the cells would read
seed: int = 0  # root seed"""
SETUP = """\
from privrob.suite import start

run = start("{name}", globals())
print(names, loud, dataset)"""
COMPUTE = """\
work = [("toy_cells:draw", {"index": i, "scale": scale, "sleep": sleep}) for i in range(num_cells)]
rows = run.sweep(work)"""
FIGURE = """\
import matplotlib.pyplot as plt

fig, ax = plt.subplots()
ax.plot(rows["index"], rows["value"], label="draws")
ax.set(xlabel="cell", ylabel="value")
run.figure("draws", fig, caption="Draws of the cells.", table=rows)"""
CLOSE = """\
run.theorem("dplearn/{short}_true", holds=True)
run.number("dplearn/{short}_two", got=scale, agrees=True)
run.save(try_next=["./run_all.sh {name} -p scale 3.0"])"""
CLAIMS = [
    {"kind": "statement", "id": "true", "expected": "holds", "text": "It is so."},
    {
        "kind": "number",
        "id": "two",
        "expected": "matches",
        "text": "Two.",
        "paper": 2.0,
        "printed_digits": 1,
        "scale": {"num_cells": 4},
    },
]


def notebook(name, *, parameters=PARAMETERS, extra=(), close=CLOSE):
    """A toy notebook node with the usual cells, and ``extra`` code cells before the last."""
    short = name.partition("/")[2]
    node = nbformat.v4.new_notebook()
    node.metadata["privrob"] = {"title": f"Toy {short}", "figures": ["draws"]}
    node.metadata["kernelspec"] = {"name": "authors-env", "display_name": "Author's", "language": "python"}
    cells = [nbformat.v4.new_markdown_cell(f"# Toy {short}")]
    cells.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    filled = [
        SETUP.replace("{name}", name),
        COMPUTE,
        FIGURE,
        *extra,
        close.replace("{short}", short).replace("{name}", name),
    ]
    node.cells = cells + [nbformat.v4.new_code_cell(source) for source in filled]
    for index, cell in enumerate(node.cells):
        cell["id"] = f"c{index}"
    return node


def small(name, body, *, figures=(), claims=("true",)):
    """A toy notebook without a sweep or a figure: it starts, runs ``body``, hands in, saves."""
    parameters = "scale: float = 2.0  # factor\nseed: int = 0  # root seed"
    short = name.partition("/")[2]
    close = [f'run.theorem("dplearn/{short}_{c}", holds=True)' for c in claims]
    node = notebook(name, parameters=parameters, close="\n".join([*close, "run.save()"]))
    start = SETUP.replace("{name}", name).replace("print(names, loud, dataset)", "print(scale)")
    node.metadata["privrob"]["figures"] = list(figures)
    for cell, source in zip(node.cells[2:], [start, body]):
        cell["source"] = source
    node.cells = node.cells[:4] + node.cells[-1:]
    return node


class House:
    """A repository below ``root`` with notebooks dplearn/sec1_toy and dplearn/sec2_toy."""

    def __init__(self, root, names=("dplearn/sec1_toy", "dplearn/sec2_toy")):
        self.root, self.names = Path(root), names
        for folder in ("data", "notebooks"):
            (self.root / folder).mkdir(parents=True)
        self.claims = []
        for name in names:
            self.add(name, notebook(name))
        self.presets(
            {"smoke": {"_minutes": 5, **{n: {"num_cells": 3} for n in names[:1]}}, "laptop": None, "paper": None}
        )

    def add(self, name, node, claims=CLAIMS):
        """Write a notebook and its claims."""
        self.write(name, node)
        short = name.partition("/")[2]
        self.claims += [{**c, "id": f"dplearn/{short}_{c['id']}", "where": "Toy", "notebook": name} for c in claims]
        (self.root / "data" / "claims.yaml").write_text(yaml.safe_dump(self.claims), encoding="utf-8")

    def presets(self, table):
        """Write presets.yaml."""
        (self.root / "notebooks" / "presets.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")

    def write(self, name, node):
        """Write a notebook."""
        path = self.root / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(node), encoding="utf-8")

    @property
    def results(self):
        """The results folder."""
        return self.root / "results"

    def env(self, **changes):
        """Environment of a driver on this house."""
        path = os.pathsep.join([str(ROOT / "lib"), str(ROOT / "tests" / "suite")])
        keep = {k: v for k, v in os.environ.items() if not k.startswith("PRIVROB_")}
        return {**keep, "PYTHONPATH": path, "PYTHONUTF8": "1", "PRIVROB_ROOT": str(self.root), **changes}

    def start(self, *arguments, env=None, **kwargs):
        """Start the driver in the background."""
        command = [sys.executable, "-m", "privrob.suite", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        options = {"text": True, "encoding": "utf-8", **pipes, **kwargs}
        return subprocess.Popen(command, env=env or self.env(), **options)

    def run(self, *arguments, timeout=180, **kwargs):
        """Run the driver; returns (exit status, output)."""
        process = self.start(*arguments, **kwargs)
        out, _ = process.communicate(timeout=timeout)
        return process.returncode, out

    def processes(self):
        """Processes that belong to this house: its path stands in their command line or environment."""
        import psutil

        found = []
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.Error):
                named = str(self.root) in " ".join(process.info["cmdline"] or [])
                if process.pid != os.getpid() and (named or process.environ().get("PRIVROB_ROOT") == str(self.root)):
                    found.append(process)
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def assert_no_orphans(self, seconds=10):
        """No process of this house is left after a while."""
        end = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left, [p.cmdline() for p in left]

    def result(self, name, preset="smoke", out=None):
        """A notebook's result.json, without what may differ between two runs."""
        result = json.loads(((out or self.results) / name / preset / "result.json").read_text(encoding="utf-8"))
        del result["run"], result["sha256"]  # the second is of the first, too
        return result

    def kept(self, name, preset="smoke", out=None):
        """{file: bytes} of a notebook's results, without what differs from run to run."""
        folder = (out or self.results) / name / preset
        files = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "times.jsonl"}
        return {**files, "result.json": json.dumps(self.result(name, preset, out), sort_keys=True)}

    def wait_for(self, condition, seconds=60):
        """Wait until ``condition()`` is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.02)
        raise AssertionError("waited in vain")


def kill(pid):
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
