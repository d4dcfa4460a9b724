"""``./run_all.sh test``: every check of the project, in order, with one closing line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from privrob.suite.sources import repository

STEPS = ("lint", "format", "pytest", "smoke", "studies", "index")


def main(only=None, pytest_options=()):
    """Run the steps (all, or some); a failed step does not keep the others from running."""
    root, python = str(repository()), sys.executable
    env = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "PRIVROB_JOB")}
    outcomes = {}
    for step in only or STEPS:
        print(f"\n── {step} " + "─" * 60, flush=True)
        began = time.monotonic()
        if step == "lint":
            ok = _call([python, "-m", "ruff", "check", "--no-cache", "."], root, env)
        elif step == "format":
            ok = _call([python, "-m", "ruff", "format", "--no-cache", "--check", "."], root, env)
        elif step == "pytest":
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=8", *pytest_options]
            ok = _call(command, root, env)
        elif step == "smoke":
            with tempfile.TemporaryDirectory(prefix="privrob smoke ") as out:
                ok = _call(
                    [python, "-m", "privrob.suite", "--preset", "smoke", "--out", out, "--device", "cpu"], root, env
                )
        elif step == "studies":
            ok = _studies(python, root, env)
        else:
            ok = _index()
        outcomes[step] = (ok, time.monotonic() - began)
    print("\n" + "\n".join(f"{s:<8} {'passed' if ok else 'FAILED'}  {sec:6.1f} s" for s, (ok, sec) in outcomes.items()))
    failed = sum(not ok for ok, _ in outcomes.values())
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


def bench(out, pytest_options=()):
    """The benchmarks alone, as one table of ratios; all of them, without options: also as ``<out>/BENCHMARKS.md``."""
    from privrob.suite import index

    root = repository()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/benchmarks"]
    command += ["--benchmark-enable", "--benchmark-quiet", *pytest_options]
    if not pytest_options:  # a part of them must not take the place of all
        out.mkdir(parents=True, exist_ok=True)
        command.append(f"--comparison-table={out / index.BENCHMARKS}")
    status = subprocess.run(command, cwd=root).returncode
    if not pytest_options and status == 0 and (out / "INDEX.md").is_file():
        index.refresh(out)  # it links to the table
    return status


def _studies(python, root, env):
    """Each worked study, in preset smoke."""
    found = []
    for file in sorted((repository() / "notebooks" / "studies").glob("*.yaml")):
        with tempfile.TemporaryDirectory(prefix="privrob study ") as out:
            command = [python, "-m", "privrob.suite", "--study", str(file), "--preset", "smoke", "--device", "cpu"]
            found.append(_call([*command, "--out", out], root, env))
    return bool(found) and all(found)


def _call(command, root, env):
    return subprocess.run(command, cwd=root, env=env, stdin=subprocess.DEVNULL).returncode == 0


def _index():
    from privrob.suite import index

    late = index.outdated(repository() / "results")
    for name in late:
        print(f"{name} is not what the results say; ./run_all.sh writes it anew")
    return not late
