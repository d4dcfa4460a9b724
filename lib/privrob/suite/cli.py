"""The command line: ``./run_all.sh [NOTEBOOK ...] [options]`` and a few verbs; ``--help`` needs no manual."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from privrob.suite import plan_arguments
from privrob.suite.files import Locked, NoSpace, full, place
from privrob.suite.sources import repository

RUN_HELP = """\
Runs notebooks of the suite headlessly and leaves executed notebooks, figures, rows and verdicts.

  ./run_all.sh                                  everything, preset laptop; what is up to date is not run again
  ./run_all.sh 'dplearn/*' --preset smoke       some notebooks (quoted globs), the quick preset
  ./run_all.sh sec3_1_dpsgd_mnist -p delta 1e-6  one notebook with a changed parameter: a study, kept out of results/
  ./run_all.sh sec6_1_planning --sweep planned_epsilon=1.0,2.0,4.0   one run for each value, and a page that compares
  ./run_all.sh --study my_study.yaml            a study that is kept in a file (every study leaves one: study.yaml)
  ./run_all.sh --list                           notebooks and how long they took; with names also their parameters

Other verbs (each has --help): plan, status, test, lab, site, export, bench, diff, clean.
The accountant has verbs of its own in the environment: privrob epsilon --help, privrob calibrate --help."""

PRESET_HELP = """\
presets:
  smoke    up to a minute a notebook; synthetic data, no downloads: does everything still work?
  laptop   up to two hours on two cores in all; real data, reduced where it must be (default)
  paper    the notebooks' defaults: the documents' settings where they print them; weeks of a core, or GPUs"""

_FOLDER = {"type": place, "metavar": "DIR"}


class Refused(Exception):
    """Something about the call is wrong; nothing was run."""


def main(argv=None):
    """Entry point; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)
    verbs = {"status": status, "test": test, "lab": lab, "site": site, "export": export, "bench": bench}
    verbs |= {"diff": diff, "clean": clean, "plan": plan}
    end = argv.index("--") if "--" in argv else len(argv)
    argv = [a for a in argv[:end] if a != "--no-env"] + argv[end:]  # run_all.sh has read it, wherever it stood
    try:
        if argv and argv[0] in verbs:
            return verbs[argv[0]](argv[1:]) or 0
        return run(argv, verbs)
    except (Refused, Locked, ValueError) as error:  # ParameterError, ClaimError and argument checks are ValueErrors
        print(f"refused: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            print(f"stopped: {error.strerror}: {error.filename}", file=sys.stderr)
            return 1
        if not (why := full(error)):
            raise
        what = str(error) if isinstance(error, NoSpace) else f"{why} for what is printed or written"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it may be what is full
        with contextlib.suppress(OSError):
            print(f"stopped: {what}; make room, and the same command goes on from here", file=sys.stderr)
        return 1


def program():
    """The name with which we were called: ``privrob`` where that was the command, else ``./run_all.sh``."""
    called = Path(sys.argv[0])
    if called.stem == "privrob":
        return "privrob"
    plain = called.name == "__main__.py" and called.parent.name == "privrob"
    return "python -m privrob" if plain else "./run_all.sh"


def _parser(name, description, **kwargs):
    parser = argparse.ArgumentParser(
        prog=f"{program()} {name}".strip(),
        description=description.replace("./run_all.sh", program()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **kwargs,
    )
    parser._negative_number_matcher = re.compile(r"-\.?\d|-inf$")  # so that -p shift -1e-5 is a value, not an option
    return parser


def _selection(parser):
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="names or quoted globs; none means all")
    parser.add_argument("--preset", help="smoke, laptop (default) or paper")
    parser.add_argument("--out", **_FOLDER, help="where results go (default results/, or studies/… with changes)")
    parser.add_argument("-p", **plan_arguments.ARGUMENTS["-p"])
    sweep = "one run for each value, and a page that compares them; repeatable: every combination"
    parser.add_argument("--sweep", action="append", default=[], metavar="NAME=V1,V2", help=sweep)
    parser.add_argument("--study", metavar="FILE", help="a study's YAML file, in place of names, -p and --sweep")
    parser.add_argument("--no-env", action="store_true", help="use the python at hand, make no environment")


def _study(arguments):
    """(the study that was asked for, where its results go)."""
    from privrob.suite import studies

    home = repository()
    if arguments.study is not None:
        for given, name in ((arguments.notebooks, "names"), (arguments.overrides, "-p"), (arguments.sweep, "--sweep")):
            if given:
                raise Refused(f"--study holds its own notebooks and values, got {name} beside it; change the file")
        study = studies.read(arguments.study)
        study = replace(study, preset=study.preset if arguments.preset is None else arguments.preset)
        path = Path(arguments.study).expanduser().resolve()
        default = path.parent if path.name == studies.FILE else home / "studies" / path.stem
    else:
        sweep = [studies.swept(text) for text in arguments.sweep]
        for kind, pairs in (("-p", arguments.overrides), ("--sweep", sweep)):
            names = [name for name, _ in pairs]
            if twice := [n for n in names if names.count(n) > 1]:
                raise Refused(f"{kind} {twice[0]} was given twice; give each parameter once")
        preset = "laptop" if arguments.preset is None else arguments.preset
        study = studies.Study(tuple(arguments.notebooks), preset, dict(arguments.overrides), dict(sweep))
        default = home / "studies" / study.label() if study.changes else home / "results"
    if study.changes:
        study = studies.joined(study, arguments.out or default, file=arguments.study)
    return study, (Path(arguments.out).expanduser() if arguments.out else default).resolve()


def run(argv, verbs=()):
    """The main verb: run notebooks. A first word that is nearly one of the other verbs is asked about."""
    parser = _parser("", RUN_HELP, epilog=PRESET_HELP)
    _selection(parser)
    parser.add_argument("--list", action="store_true", help="list notebooks, parameters and times; run nothing")
    parser.add_argument("--dry-run", action="store_true", help="say what would run and why; run nothing")
    jobs = "notebooks at once, which share the cores (default: 4 in smoke, 2 in laptop, else 1)"
    parser.add_argument("--jobs", type=int, metavar="N", help=jobs)
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--engine", default="local", help="local (default), dask, or dask://host:port of a running scheduler"
    )
    parser.add_argument("--time-limit", type=float, metavar="MINUTES", help="for each notebook (default: the preset's)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--fresh", action="store_true", help="run even what is up to date, and compute every cell again")
    how.add_argument("--redraw", action="store_true", help="draw figures and tables from stored rows; compute nothing")
    a = parser.parse_args(argv)
    from privrob.suite import catalogue, inputs

    study, out = _study(a)
    home = (repository() / "results").resolve()
    if study.changes and out.is_relative_to(home):
        raise Refused(
            "changed parameters do not go to results/, which holds the reference results; "
            "leave --out away, or give another"
        )
    try:
        parts = study.plans(out)
    except catalogue.NoSuchNotebook as error:
        near = difflib.get_close_matches(study.notebooks[0], verbs, n=1)
        verb = f"did you mean the verb {program()} {near[0]}? " if near else ""
        raise Refused(f"{verb}{error}") from None
    if not a.list:
        inputs.check_folders([plan for _, plans, _ in parts for plan in plans])
    if a.list or a.dry_run:
        for line in dict.fromkeys(line for _, _, notices in parts for line in notices):
            print(f"note: {line}")
        plans = [plan for _, plans, _ in parts for plan in plans]
        return _list(plans, parameters=bool(study.notebooks)) if a.list else _dry_run(plans, a)
    return _run(study, parts, a, out)


def _run(study, parts, a, out):
    from privrob.suite import catalogue, engine, files, index, inputs, preflight, session, studies, tables
    from privrob.suite import run as driver

    plans = [plan for _, plans, _ in parts for plan in plans]
    if a.jobs is None:
        a.jobs = engine.jobs(study.preset, a.engine, [len(some) for _, some, _ in parts])
    if a.jobs < 1:
        raise Refused(f"--jobs must be at least 1, got {a.jobs}")
    if a.time_limit is not None and not a.time_limit > 0:
        raise Refused(f"--time-limit must be above 0 minutes, got {a.time_limit:g}")
    engine.check_spec(a.engine)
    session.check_device(a.device)
    elsewhere = a.engine.startswith("dask://")  # its workers run the notebooks, and look for a GPU there
    if not elsewhere:
        preflight.check_loopback()
    waiting = [p.name for p in plans if p.needs_gpu and not a.redraw and _runs(p, a)]
    if not elsewhere and (a.device != "auto" or waiting):
        device = session.choose_device(a.device)
        if waiting and device == "cpu" and a.device != "cpu":
            raise Refused(
                f"preset {study.preset} of {', '.join(dict.fromkeys(waiting))} wants a GPU and none is here; "
                "--device cpu runs it anyway, slowly"
            )
    made = not os.path.exists(out)  # a name that is too long does not exist either, and is refused below
    held = {"below": [*(folder for _, folder in study.folders(out)), *(p.folder for p in plans)]}
    files.refuse_nested(out, **held)
    files.check_writable(out)
    reference = out == (repository() / "results").resolve()
    options = driver.Options(a.jobs, a.engine, a.device, a.redraw, a.fresh, a.time_limit)
    page, ended, begun = None, [], False
    with files.lock(out, purpose=f"./run_all.sh {' '.join(study.notebooks)}".strip(), **held):
        for place in dict.fromkeys([out, *(folder for _, folder in study.folders(out))]):
            driver.mend(place)
        for line in dict.fromkeys(line for _, _, notices in parts for line in notices):
            print(f"note: {line}")
        runs = tables.count(len({p.name for p in plans}), "notebook")
        runs += f", {tables.count(len(parts), 'combination')}" if study.sweep else ""
        print(f"privrob: {runs}, preset {study.preset}, results in {driver._relative(out)}")
        if not a.redraw and (words := catalogue.expected([p for p in plans if _runs(p, a)], jobs=a.jobs)):
            print(words)
        if sys.version_info[:2] != (3, 11):
            print(f"note: Python {sys.version_info[0]}.{sys.version_info[1]}; the suite is tested on 3.11")
        try:
            inputs.fetch([p for p in plans if _runs(p, a)])
            begun = True
            if study.changes:
                studies.leave(study, out)
            for values, some, _ in parts:
                if values:
                    print(f"\n{', '.join(f'{n} = {v}' for n, v in values.items())}")
                ended += driver.run_all(some, options)
        except driver.Interrupted as stop:
            print("stopped; what was done is kept, and the same command goes on from here")
            return stop.code
        finally:  # also after a stop: what was put in place is in the index
            if made:
                files.remove_if_unused(out)
            if begun and study.changes and out.is_dir():  # a refused call leaves no study behind
                page = studies.write(study, out, planned={p.name for p in plans})
            if reference and out.is_dir():
                index.refresh(out, readme=repository() / "README.md" if os.access(repository(), os.W_OK) else None)
    print(f"\n{driver.table(ended)}")
    bad = [e for e in ended if e.bad]
    print(
        f"\n{len(ended) - len(bad)} of {tables.count(len(ended), 'notebook')} done"
        + (f"; NOT done: {', '.join(e.name for e in bad)}" if bad else ".")
    )
    if reference and study.preset in index.COUNTED:
        print(f"Read on: results/INDEX.md, or {program()} site for the pages.")
    elif page:
        print(f"Read on: {driver._relative(page)}, which compares the combinations.")
    else:
        there = {e.name for e in ended if not e.bad}
        written = [driver._relative(p.folder / "notebook.ipynb") for p in plans if p.name in there]
        why = f"; preset {study.preset} is in neither INDEX.md nor the pages" if reference else ""
        if written:
            print(f"Read on: {', '.join(written[:2])}" + (", …" if written[2:] else "") + why)
    return 1 if bad else 0


def _runs(plan, a):
    """Whether a notebook is executed: it is not done, or is to be anyway."""
    return a.fresh or a.redraw or plan.state()[0] != "done"


def _list(plans, *, parameters):
    from privrob.suite.tables import took

    ran = []
    for plan in plans:
        if last := plan.last_run():
            ran.append(last)
        gpu = ", wants a GPU" if plan.needs_gpu else ""
        print(f"{plan.name}  —  {plan.source.about.get('title', '')}")
        print(f"    {plan.preset}: {'took ' + took(last) if last else 'never run here'}{gpu}; {plan.state()[0]}")
        for name, value in plan.source.defaults.items() if parameters else ():
            value = plan.changes.get(name, value)
            comment = f"  # {plan.source.comments[name]}" if name in plan.source.comments else ""
            print(f"    -p {name} {value!r}{comment}")
    if len(ran) > 1:
        both = {name: sum(one.get(name, 0.0) for one in ran) for name in ("seconds", "stored_seconds")}
        print(f"\n{len(ran)} of {len(plans)} together: {took(both)}; a cell that two notebooks read is counted twice")
    if not parameters:
        print("\nParameters: ./run_all.sh --list NOTEBOOK")
    return 0


def _dry_run(plans, a):
    for plan in plans:
        state, why = plan.state()
        print(f"{'run ' if _runs(plan, a) else 'keep'}  {plan.name}  ({state}: {why})")
        for name, value in plan.changes.items():
            print(f"        {name} = {value!r}  (paper: {plan.source.defaults[name]!r})")
    return 0


def status(argv):
    """What is done, stale, missing or damaged."""
    parser = _parser("status", "What is up to date, and why what is not is not. Exit status 0 when everything is done.")
    _selection(parser)
    a = parser.parse_args(argv)
    study, out = _study(a)
    states = [(v, p.name, *p.state()) for v, plans, _ in study.plans(out) for p in plans]
    for values, name, state, why in states:
        print(f"{state:<9} {name}  {''.join(f'{n} = {v}: ' for n, v in values.items())}{why}")
    return 0 if all(state == "done" for _, _, state, _ in states) else 1


def plan(argv):
    """What a preset costs on a cluster, and recipes for one."""
    parser = _parser("plan", plan_arguments.HELP)
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="names or quoted globs; none means all")
    for name, settings in plan_arguments.ARGUMENTS.items():
        parser.add_argument(name, **settings)
    a = parser.parse_args(argv)
    if a.recipe:
        print(plan_arguments.recipe(a.recipe), end="")
        return 0
    from privrob.suite import catalogue, files, planning
    from privrob.suite import run as driver

    options, out = planning.options(a), planning.folder()
    files.check_writable(out, name="the folder of counts", way_out="make it writable, plan keeps them there")
    with files.lock(out, purpose="./run_all.sh plan", way_out="wait for it, or stop it"):
        driver.mend(out)
        plans, notices = catalogue.plans(a.notebooks, preset=a.preset, out=out, overrides=a.overrides)
        for line in notices:
            print(f"note: {line}")
        return planning.main(plans, options, a)


def test(argv):
    """All checks."""
    from privrob.suite import selftest

    parser = _parser(
        "test", "Every check: lint, format, unit and oracle tests, all notebooks in smoke, generated files."
    )
    parser.add_argument("--only", choices=selftest.STEPS, action="append", help="one step (repeatable)")
    parser.add_argument(
        "--all", action="store_true", help="also the faults at many moments (a quarter of an hour more)"
    )
    parser.add_argument("pytest_options", nargs="*", metavar="-- PYTEST OPTION", help="passed on to pytest")
    a = parser.parse_args(argv)
    return selftest.main(a.only, [*["--all"] * a.all, *a.pytest_options])


def lab(argv):
    """JupyterLab in this environment."""
    parser = _parser(
        "lab", "Opens JupyterLab on the notebooks, with the library importable. More options: jupyter lab's."
    )
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return 0
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
    parser.add_argument("--out", **_FOLDER, help="results to show (default results/)")
    a = parser.parse_args(argv)
    try:
        from privrob.suite import site as pages
    except ImportError as error:
        raise Refused(f"site needs {error.name}; install privrob[site]") from None
    out = Path(a.out).resolve() if a.out else repository() / "results"
    print(f"site: pages over {out}; nothing is executed, the old pages stay until the new ones are whole")
    page = pages.build(out, say=print)
    print(f"open {page}")
    return 0


def export(argv):
    """Write every table as LaTeX or CSV."""
    parser = _parser(
        "export",
        "Writes the table behind every figure, and every document's verdicts, as LaTeX (booktabs, longtable) or CSV.",
    )
    parser.add_argument("--latex", **_FOLDER, help="folder for .tex files")
    parser.add_argument("--csv", **_FOLDER, help="folder for .csv files")
    parser.add_argument("--out", **_FOLDER, help="results to read (default results/)")
    a = parser.parse_args(argv)
    if not (a.latex or a.csv):
        raise Refused("export needs a folder to write to: --latex DIR, --csv DIR, or both")
    from privrob.suite import export as tables

    out = Path(a.out).resolve() if a.out else repository() / "results"
    count = tables.write(out, latex_folder=a.latex, csv_folder=a.csv)
    if not count:
        raise Refused(f"{out} holds no results; run ./run_all.sh first")
    print(f"{count} {'table' if count == 1 else 'tables'} in {' and '.join(str(f) for f in (a.latex, a.csv) if f)}")
    return 0


def bench(argv):
    """Benchmarks."""
    parser = _parser(
        "bench",
        "Hot paths beside their peers, in one run, as one table of ratios: minutes, on a quiet machine. All of them\n"
        "are also written to BENCHMARKS.md; with options for pytest (-- -k federated) they are only shown.",
    )
    parser.add_argument("pytest_options", nargs="*", metavar="-- PYTEST OPTION")
    parser.add_argument("--out", **_FOLDER, help="folder of BENCHMARKS.md (default results/)")
    a = parser.parse_args(argv)
    from privrob.suite import selftest

    return selftest.bench(Path(a.out).resolve() if a.out else repository() / "results", a.pytest_options)


def diff(argv):
    """Compare two result folders."""
    parser = _parser(
        "diff",
        "Compares two results folders: parameters, verdicts and rows of the notebooks that both have.\n"
        "Exit status 0: no differences, 1: some, 2: a folder is no results folder.",
    )
    for name in ("first", "second"):
        parser.add_argument(name, type=place, help="a folder of results: results, a study's, another checkout's")
    a = parser.parse_args(argv)
    from privrob.suite import compare

    return compare.main(a.first, a.second)


def clean(argv):
    """Remove what can be made again."""
    parser = _parser("clean", "Shows what runs left that can be made again, with sizes; --yes removes it.")
    parser.add_argument("--yes", action="store_true", help="remove what is shown")
    parser.add_argument("--studies", action="store_true", help="also your studies, which are kept otherwise")
    parser.add_argument("--out", **_FOLDER, help="results folder (default results/)")
    a = parser.parse_args(argv)
    from privrob.suite import housekeeping

    out = Path(a.out).resolve() if a.out else repository() / "results"
    return housekeeping.clean(out, yes=a.yes, studies=a.studies)
