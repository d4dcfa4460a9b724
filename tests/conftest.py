"""Shared fixtures. The toy house lets the driver be tried on notebooks of a second each, faults included."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "suite"))

pytest.register_assert_rewrite("house", "fault_kit")  # so that their asserts show what they compared

from house import House  # noqa: E402

collect_ignore_glob = ["conftest.py", "*/conftest.py"]  # no doctests in them, and two of one name are one module


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A small repository of its own with two toy notebooks; see :class:`house.House`."""
    built = House(tmp_path / "a house")
    monkeypatch.setenv("PRIVROB_ROOT", str(built.root))
    monkeypatch.delenv("PRIVROB_JOB", raising=False)
    return built


@pytest.fixture
def one_thread():
    """More threads add up in another order, and Adam's first steps blow that up."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ------------------------------------------------------------------------------------------------------ faults, counted


def pytest_addoption(parser):
    """``--all``, as in ``./run_all.sh test --all``."""
    parser.addoption("--all", action="store_true", help="also tests marked 'many': the same fault at many moments")


def pytest_collection_modifyitems(config, items):
    """Leave tests marked ``many`` out unless asked for, and note each fault's kind where reports carry it."""
    for item in items:
        if mark := item.get_closest_marker("fault"):
            item.user_properties.append(("fault", mark.args[0]))
    if not config.getoption("--all"):
        many = [item for item in items if item.get_closest_marker("many")]
        config.hook.pytest_deselected(items=many)
        config.stash[LEFT_OUT] = sum(bool(i.get_closest_marker("fault")) for i in many)
        items[:] = [item for item in items if not item.get_closest_marker("many")]


LEFT_OUT = pytest.StashKey()


def pytest_terminal_summary(terminalreporter, config):
    """One line: how many faults were tried, of which kinds, and how many of them the suite did not withstand."""
    outcomes = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, kind in getattr(report, "user_properties", ()):
                if name == "fault":
                    outcomes[report.nodeid] = (kind, outcome)  # an error at the end outweighs the call's success
    kinds = [kind for kind, outcome in outcomes.values() if outcome != "skipped"]
    ended = [outcome for _, outcome in outcomes.values()]
    if outcomes:
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        bad, skipped = ended.count("failed") + ended.count("error"), ended.count("skipped")
        words = [f"faults: {len(kinds)} tried: {counts}", f"{bad} not withstood" if bad else "all withstood"]
        words += [f"{skipped} cannot be tried here"] * (skipped > 0)
        left = config.stash.get(LEFT_OUT, 0)
        words += [f"{left} more with --all"] * (left > 0)
        terminalreporter.write_line("; ".join(words))
