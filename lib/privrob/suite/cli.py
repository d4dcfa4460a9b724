"""The command line: ``./run_all.sh [NOTEBOOK ...] [options]`` and a few verbs; ``--help`` needs no manual."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import sys
from pathlib import Path

from privrob.suite.files import Locked, NoSpace, digest
from privrob.suite.sources import repository

RUN_HELP = """\
Runs notebooks of the suite headlessly and leaves executed notebooks, figures, rows and verdicts.

  ./run_all.sh                                  everything, preset laptop; what is up to date is not run again
  ./run_all.sh 'dplearn/*' --preset smoke       some notebooks (quoted globs), the preset that takes seconds
  ./run_all.sh sec3_1_dpsgd_mnist -p delta 1e-6  one notebook with a changed parameter: a study, kept out of results/
  ./run_all.sh --list                           notebooks, their parameters and how long they took

Other verbs (each has --help): status, test, lab, site, bench, diff, clean.
The accountant has verbs of its own in the environment: privrob epsilon --help, privrob calibrate --help."""

PRESET_HELP = """\
presets:
  smoke    seconds; synthetic data, no downloads: does everything still work?
  laptop   minutes on two cores; real data, reduced where it must be (default)
  paper    the notebooks' defaults: the documents' settings where they print them; hours, some ask for a GPU"""


class Refused(Exception):
    """Something about the call is wrong; nothing was run."""


def main(argv=None):
    """Entry point; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)
    verbs = {"status": status, "test": test, "lab": lab, "site": site, "bench": bench, "diff": diff, "clean": clean}
    try:
        if argv and argv[0] in verbs:
            return verbs[argv[0]](argv[1:]) or 0
        return run(argv, verbs)
    except (Refused, Locked, ValueError) as error:  # ParameterError, ClaimError and argument checks are ValueErrors
        print(f"refused: {error}", file=sys.stderr)
        return 2
    except NoSpace as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser(name, description, **kwargs):
    parser = argparse.ArgumentParser(
        prog=f"./run_all.sh {name}".strip(),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **kwargs,
    )
    parser._negative_number_matcher = re.compile(r"-\.?\d|-inf$")  # so that -p shift -1e-5 is a value, not an option
    return parser


def _selection(parser):
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="names or quoted globs; none means all")
    parser.add_argument("--preset", default="laptop", help="smoke, laptop (default) or paper")
    parser.add_argument("--out", metavar="DIR", help="where results go (default results/, or studies/… with -p)")
    parser.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        dest="overrides",
        help="change a parameter; repeatable",
    )


def _out(arguments):
    if arguments.out:
        return Path(arguments.out).expanduser().resolve()
    if arguments.overrides:
        words = "_".join(f"{n}={v}" for n, v in sorted(arguments.overrides))
        safe = "".join(c if c.isalnum() or c in "._=+-" else "-" for c in words)
        safe = safe if safe == words and len(safe) <= 80 else f"{safe[:70]}.{digest(words)[:8]}"
        return repository() / "studies" / safe
    return (repository() / "results").resolve()


def run(argv, verbs=()):
    """The main verb: run notebooks. A first word that is nearly one of the other verbs is asked about."""
    parser = _parser("", RUN_HELP, epilog=PRESET_HELP)
    _selection(parser)
    parser.add_argument("--list", action="store_true", help="list notebooks, parameters and times; run nothing")
    parser.add_argument("--dry-run", action="store_true", help="say what would run and why; run nothing")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="notebooks at once (default 1; cells use the other cores)"
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--engine", default="local", help="local (default), dask, or dask://host:port of a running scheduler"
    )
    parser.add_argument("--time-limit", type=float, metavar="MINUTES", help="for each notebook (default: the preset's)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--fresh", action="store_true", help="run even what is up to date, and compute every cell again")
    how.add_argument("--redraw", action="store_true", help="draw figures and tables from stored rows; compute nothing")
    parser.add_argument("--no-env", action="store_true", help="use the python at hand, make no environment")
    a = parser.parse_args(argv)
    from privrob.suite import catalogue

    out = _out(a)
    home = (repository() / "results").resolve()
    if a.overrides and out.is_relative_to(home):
        raise Refused(
            "changed parameters do not go to results/, which holds the reference results; "
            "leave --out away, or give another"
        )
    try:
        plans, notices = catalogue.plans(a.notebooks, preset=a.preset, out=out, overrides=a.overrides)
    except catalogue.NoSuchNotebook as error:
        near = difflib.get_close_matches(a.notebooks[0], verbs, n=1)
        raise Refused(f"{error}" + (f"; or the verb: ./run_all.sh {near[0]}" if near else "")) from None
    if a.list or a.dry_run:
        for line in notices:
            print(f"note: {line}")
        return _list(plans) if a.list else _dry_run(plans, a)
    return _run(plans, notices, a, out)


def _run(plans, notices, a, out):
    from privrob.suite import engine, files, index, session
    from privrob.suite import run as driver

    if a.jobs < 1:
        raise Refused(f"--jobs must be at least 1, got {a.jobs}")
    if a.time_limit is not None and not a.time_limit > 0:
        raise Refused(f"--time-limit must be above 0 minutes, got {a.time_limit:g}")
    engine.check_spec(a.engine)
    if a.device != "auto" or any(p.needs_gpu for p in plans):
        device = session.choose_device(a.device)
        waiting = [p.name for p in plans if p.needs_gpu]
        if waiting and device == "cpu" and a.device != "cpu":
            raise Refused(
                f"preset {a.preset} of {', '.join(waiting)} wants a GPU and none is here; "
                "--device cpu runs it anyway, slowly"
            )
    made = not out.exists()
    files.check_writable(out)
    reference = out == (repository() / "results").resolve()
    options = driver.Options(a.jobs, a.engine, a.device, a.redraw, a.fresh, a.time_limit)
    with files.lock(out, purpose=f"./run_all.sh {' '.join(a.notebooks)}".strip()):
        driver.mend(out)
        for line in notices:
            print(f"note: {line}")
        print(f"privrob: {len(plans)} notebook(s), preset {a.preset}, results in {driver._relative(out)}")
        if sys.version_info[:2] != (3, 11):
            print(f"note: Python {sys.version_info[0]}.{sys.version_info[1]}; the suite is tested on 3.11")
        try:
            _fetch(plans)
            ended = driver.run_all(plans, options)
        except driver.Interrupted as stop:
            print("stopped; what was done is kept, and the same command goes on from here")
            return stop.code
        finally:  # also after a stop: what was put in place is in the index
            if made:
                files.remove_if_unused(out)
            if reference and out.is_dir():
                index.refresh(out, readme=repository() / "README.md" if os.access(repository(), os.W_OK) else None)
    print(f"\n{driver.table(ended)}")
    bad = [e for e in ended if e.bad]
    print(
        f"\n{len(ended) - len(bad)} of {len(ended)} notebooks done"
        + (f"; NOT done: {', '.join(e.name for e in bad)}" if bad else ".")
    )
    if not bad and reference:
        print("Read on: results/INDEX.md, or ./run_all.sh site for the pages.")
    return 1 if bad else 0


def _fetch(plans):
    """Bring the data sets that the plans read, before any notebook's clock starts.

    An unknown name ends the run here; what cannot be had is told in full, and its notebooks fail while others go on.
    """
    chosen = [{**p.source.defaults, **p.changes} for p in plans]
    values = [v for parameters in chosen for name, v in parameters.items() if name.endswith("dataset")]
    names = sorted({v for v in values if isinstance(v, str) and v and not v.startswith(("synthetic", "folder:"))})
    if not names:
        return
    from privrob.learn import datasets

    for name in names:
        try:
            datasets.fetch(name)
        except (datasets.DataUnavailable, datasets.DataCorrupt) as error:
            print(f"note: {error}")


def _list(plans):
    from privrob.suite.tables import took

    for plan in plans:
        last = plan.last_run()
        gpu = ", wants a GPU" if plan.needs_gpu else ""
        print(f"{plan.name}  —  {plan.source.about.get('title', '')}")
        print(f"    {plan.preset}: {'took ' + took(last) if last else 'never run here'}{gpu}; {plan.state()[0]}")
        for name, value in plan.source.defaults.items():
            value = plan.changes.get(name, value)
            comment = f"  # {plan.source.comments[name]}" if name in plan.source.comments else ""
            print(f"    -p {name} {value!r}{comment}")
    return 0


def _dry_run(plans, a):
    for plan in plans:
        state, why = plan.state()
        idle = state == "done" and not a.fresh and not a.redraw
        print(f"{'keep' if idle else 'run '}  {plan.name}  ({state}: {why})")
        for name, value in plan.changes.items():
            print(f"        {name} = {value!r}  (paper: {plan.source.defaults[name]!r})")
    return 0


def status(argv):
    """What is done, stale, missing or damaged."""
    parser = _parser("status", "What is up to date, and why what is not is not. Exit status 0 when everything is done.")
    _selection(parser)
    a = parser.parse_args(argv)
    from privrob.suite import catalogue

    plans, _ = catalogue.plans(a.notebooks, preset=a.preset, out=_out(a), overrides=a.overrides)
    states = [(p.name, *p.state()) for p in plans]
    for name, state, why in states:
        print(f"{state:<9} {name}  {why}")
    return 0 if all(s == "done" for _, s, _ in states) else 1


def test(argv):
    """All checks."""
    from privrob.suite import selftest

    parser = _parser(
        "test", "Every check: lint, format, unit and oracle tests, all notebooks in smoke, generated files."
    )
    parser.add_argument("--only", choices=selftest.STEPS, action="append", help="one step (repeatable)")
    parser.add_argument("pytest_options", nargs="*", metavar="-- PYTEST OPTION", help="passed on to pytest")
    a = parser.parse_args(argv)
    return selftest.main(a.only, a.pytest_options)


def lab(argv):
    """JupyterLab in this environment."""
    if shutil.which("jupyter-lab", path=Path(sys.executable).parent) is None:
        raise Refused("lab needs jupyterlab in this environment; install privrob[lab]")
    from privrob.suite import execute
    from privrob.suite.sources import package_root

    runtime = repository() / "studies" / ".runtime"
    execute.kernel_spec(runtime)
    os.environ["JUPYTER_PATH"] = str(runtime)
    os.environ["PYTHONPATH"] = str(package_root())
    os.environ.pop("MPLBACKEND", None)
    root = ["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []  # usual in containers
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", f"--notebook-dir={repository()}", *root, *argv])


def site(argv):
    """Build the pages."""
    parser = _parser("site", "Builds the pages over the executed notebooks (nothing is executed); opens from disk.")
    parser.add_argument("--out", metavar="DIR", help="results to show (default results/)")
    a = parser.parse_args(argv)
    try:
        from privrob.suite import site as pages
    except ImportError as error:
        raise Refused(f"site needs {error.name}; install privrob[site]") from None
    out = Path(a.out).resolve() if a.out else repository() / "results"
    page = pages.build(out)
    print(f"open {page}")
    return 0


def bench(argv):
    """Benchmarks."""
    parser = _parser("bench", "Benchmarks against peers, in one run, as ratios.")
    parser.add_argument("pytest_options", nargs="*", metavar="-- PYTEST OPTION")
    a = parser.parse_args(argv)
    from privrob.suite import selftest

    return selftest.bench(a.pytest_options)


def diff(argv):
    """Compare two result folders."""
    parser = _parser(
        "diff",
        "Compares two results folders: parameters, verdicts and rows of the notebooks that both have.\n"
        "Exit status 0: no differences, 1: some, 2: a folder is no results folder.",
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    a = parser.parse_args(argv)
    from privrob.suite import compare

    return compare.main(a.first, a.second)


def clean(argv):
    """Remove what can be made again."""
    parser = _parser("clean", "Shows what runs left that can be made again, with sizes; --yes removes it.")
    parser.add_argument("--yes", action="store_true", help="remove what is shown")
    parser.add_argument("--studies", action="store_true", help="also your studies, which are kept otherwise")
    parser.add_argument("--out", metavar="DIR", help="results folder (default results/)")
    a = parser.parse_args(argv)
    from privrob.suite import housekeeping

    out = Path(a.out).resolve() if a.out else repository() / "results"
    return housekeeping.clean(out, yes=a.yes, studies=a.studies)
