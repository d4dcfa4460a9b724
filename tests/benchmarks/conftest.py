"""Hot paths beside their peers, in the same run, as one table: ``./run_all.sh bench`` measures and writes it.

A test says what is compared; nobody asserts a time::

    def test_something(compare):
        found = compare("something", ours, peers={"a plain loop": loop, "library": compare.library("library", make)})
        assert found["a plain loop"] == found["ours"]

In the ordinary tests every function runs once, to see that it still works.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from comparing import Compare, aligned, page

from privrob.suite import files

_ROWS = pytest.StashKey()
_LOAD = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption("--comparison-table", metavar="FILE", help="write the table of all comparisons, if all passed")


def pytest_configure(config):
    config.stash[_ROWS] = []
    config.stash[_LOAD] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """As in a cell of a sweep."""


@pytest.fixture
def compare(benchmark, request):
    """Measures a hot path beside its peers; see :class:`Compare`."""
    return Compare(benchmark, request.config.stash[_ROWS])


def pytest_terminal_summary(terminalreporter, config):
    if not (rows := config.stash[_ROWS]):
        return
    terminalreporter.section("hot paths beside their peers")
    terminalreporter.write("\n".join(aligned(rows)) + "\n")
    if target := config.getoption("comparison_table", None):
        if any(terminalreporter.stats.get(how) for how in ("failed", "error")):
            terminalreporter.write_line(f"{Path(target).name} is left as it was: some comparisons failed")
            return
        files.write_text(Path(target), page(rows, config.stash[_LOAD]))
        terminalreporter.write_line(f"written: {Path(target).name}")
