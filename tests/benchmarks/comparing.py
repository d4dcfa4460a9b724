"""Comparisons of hot paths with their peers, and the table of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

ROUNDS = (3, 40)  # of a comparison
BUDGET = 3.0  # seconds of a comparison: fewest rounds may take three times as long, else there is one
OURS = "ours"
HEAD = ("hot path", "ours (ms)", "peer", "peer (ms)", "ours / peer", "floor (ms)", "goal")


class Missing(str):
    """Why a peer was not measured."""


@dataclass
class Row:
    """One hot path: seconds of each round, and what they should be."""

    path: str
    ours: list = field(default_factory=list)
    peers: dict = field(default_factory=dict)  # name: seconds of each round, or why there are none
    floor: tuple = ()  # (words, seconds of each round)
    at_most: dict = field(default_factory=dict)  # peer: largest ours / peer
    within: float | None = None  # seconds

    def ratio(self, name):
        """Ours over a peer: the median of what the rounds say, each for itself."""
        return statistics.median(a / b for a, b in zip(self.ours, self.peers[name], strict=True))

    def lines(self):
        """Its lines of the table, one a peer, as tuples of text."""
        ours, floor = _ms(self.ours), f"{_ms(self.floor[1])} {self.floor[0]}" if self.floor else ""
        goal = ""
        if self.within:
            goal = _goal(f"{_plain(self.within * 1e3)} ms", statistics.median(self.ours) <= self.within)
        lines = [] if self.peers else [(self.path, ours, "", "", "", floor, goal)]
        for name, seen in self.peers.items():
            first = (self.path, ours, floor, goal) if not lines else ("", "", "", "")
            if isinstance(seen, Missing):
                lines.append((*first[:2], name, str(seen), "", *first[2:]))
                continue
            ratio, said = self.ratio(name), first[3]
            if name in self.at_most:
                most = self.at_most[name]
                said = "; ".join(filter(None, (said, _goal(f"{most:g}", ratio <= most))))
            lines.append((*first[:2], name, _ms(seen), _digits(ratio), first[2], said))
        return lines


def _goal(words, met):
    return f"≤ {words}: {'pass' if met else 'miss'}"


def _ms(seconds):
    return _plain(statistics.median(seconds) * 1e3)


def _plain(number):
    return f"{number:,.0f}" if number >= 100 else _digits(number)


def _digits(number):
    """Three digits, without an exponent."""
    if number <= 0 or number >= 100:
        return f"{number:,.0f}"
    places = 2 if number >= 1 else 3 if number >= 0.1 else 4
    return f"{number:.{places}f}"


class Compare:
    """What the fixture gives: call it once in a test."""

    def __init__(self, benchmark, rows):
        self.benchmark, self.rows = benchmark, rows

    @staticmethod
    def library(package, make):
        """A peer that may not be installed. Args: make — imports and prepares; returns what is measured."""
        if importlib.util.find_spec(package) is None:
            return Missing("not installed")
        try:
            return make()
        except ModuleNotFoundError as error:
            return Missing(f"{package} {_version(package)} needs {error.name}, not installed")
        except Exception as error:  # another version of it: told in the table
            said = str(error).partition("\n")[0][:80]
            return Missing(f"{package} {_version(package)} failed: {type(error).__name__}: {said}")

    def __call__(self, path, ours, *, peers=None, floor=None, at_most=None, within=None):
        """Measure in turn, or run each once.

        Args: path — the hot path, in words;  ours — a function without arguments;  peers — name to a function, or to
            what :meth:`library` returned;  floor — (words, function): a library's plain call for a part of the work;
            at_most — peer to the largest ours / peer that is a goal;  within — seconds that are a goal.
        Returns: what each returned: {"ours": …, peer: …}.
        """
        others = {name: run for name, run in (peers or {}).items() if not isinstance(run, Missing)}
        if floor:
            others[floor] = floor[1]
        found, first = {}, 0.0
        for name, run in {OURS: ours, **others}.items():
            if name == OURS and not self.benchmark.enabled:
                found[name] = self.benchmark(ours)
                continue
            seconds, found[name] = _timed(run)
            first += seconds
        if self.benchmark.enabled:
            self._measure(path, ours, others, peers or {}, floor, at_most or {}, within, first)
        return {name: value for name, value in found.items() if name != floor}

    def _measure(self, path, ours, others, peers, floor, at_most, within, first):
        rounds = min(max(ROUNDS[0] if first <= BUDGET else 1, int(BUDGET / max(first, 1e-9))), ROUNDS[1])
        taken = {name: [] for name in others}

        def each_other():  # before each round of ours: the pairs are interleaved
            for name, run in others.items():
                taken[name].append(_timed(run)[0])

        self.benchmark.pedantic(ours, setup=each_other, rounds=rounds, iterations=1)
        seen = {name: taken.get(name, run) for name, run in peers.items()}
        row = Row(path, list(self.benchmark.stats.stats.data), seen, (), at_most, within)
        row.floor = (floor[0], taken[floor]) if floor else ()
        measured = [name for name, run in seen.items() if not isinstance(run, Missing)]
        self.benchmark.extra_info |= {f"ours / {name}": round(row.ratio(name), 4) for name in measured}
        self.rows.append(row)


def _timed(run):
    began = time.perf_counter()
    value = run()
    return time.perf_counter() - began, value


# ------------------------------------------------------------------------------------------------------------- table


def table(rows):
    """All comparisons as Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *(line for row in rows for line in row.lines())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def aligned(rows):
    """All comparisons for a terminal."""
    lines = [HEAD, *(line for row in rows for line in row.lines())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return [("  ".join(cell.ljust(w) for cell, w in zip(line, widths))).rstrip() for line in lines]


PAGE = """\
# Benchmarks

Written by `./run_all.sh bench`: hot paths beside their peers, in the same run. Ratios count; times are this machine's.

* Machine: {machine}.
* {day}, commit {commit}; {versions}.
* How: each function once to warm up; then ours, its peers and its floor in turn, on one thread, {least} to {most}
  rounds as they fit into {budget:g} s (one, where a round takes longer). Times are medians; *ours / peer* is the median
  of the ratios within a round: below 1, ours is faster. The floor is a library's plain call for a part of the work.
* Goals are times or ratios: {met} met, {missed} missed. Where a peer answers less, the path's words say so.

{table}
"""


def page(rows, load):
    """BENCHMARKS.md. Args: load — of the machine when it began, None where that isn't known."""
    from privrob.suite import record

    goals = [word for row in rows for line in row.lines() for word in line[-1].split("; ")]
    return PAGE.format(
        machine=f"{processor()}, {os.cpu_count()} cores" + ("" if load is None else f"; load {load:.1f} at the start"),
        day=f"{date.today():%Y-%m-%d}",
        commit=record.commit(),
        versions=", ".join(f"{name} {number}" for name, number in record.versions().items()),
        least=ROUNDS[0],
        most=ROUNDS[1],
        budget=BUDGET,
        met=sum(word.endswith(": pass") for word in goals),
        missed=sum(word.endswith(": miss") for word in goals),
        table=table(rows),
    )


def processor():
    """The processor's name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package):
    try:
        return importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
