"""Fixtures of the suite's own tests."""

import shutil
from pathlib import Path

import pytest

import fault_kit as kit
from fault_kit import ODD, ONE, SHORT, SMOKE, mounted
from house import House
from privrob.suite import cli


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of one megabyte; skipped where none can be mounted."""
    folder = tmp_path / "tiny disk"
    folder.mkdir()
    with mounted(folder, "size=1m"):
        yield folder


@pytest.fixture(scope="module")
def make_house(tmp_path_factory):
    """A maker of houses that a whole module shares: ``make_house()`` or ``make_house(name, names)``."""

    def make(name="a house", **kwargs):
        return House(tmp_path_factory.mktemp("houses") / name, **kwargs)

    return make


@pytest.fixture(scope="session")
def calm(tmp_path_factory):
    """A house whose run nobody disturbed: what faults are compared with. Only looked at, never changed."""
    house = House(tmp_path_factory.mktemp("calm") / "a house", names=(ONE,))
    house.presets(SHORT)
    status, out = house.run(*SMOKE)
    assert status == 0, out
    return house


@pytest.fixture
def copied(calm, tmp_path, monkeypatch):
    """A copy of the calm house, with its results, to be harmed; it is the repository of this process."""
    house = House.__new__(House)
    house.root, house.names = Path(shutil.copytree(calm.root, tmp_path / "copied")), calm.names
    monkeypatch.setenv("PRIVROB_ROOT", str(house.root))
    return house


@pytest.fixture
def call(house, capsys, monkeypatch):
    """``call(*arguments)`` in this process, on a machine without a GPU: (exit status, standard output and error)."""
    monkeypatch.chdir(house.root)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*arguments):
        try:
            status = cli.main([str(a) for a in arguments])
        except SystemExit as end:  # argparse
            status = end.code
        return status, *capsys.readouterr()

    run.house = house
    return run


@pytest.fixture
def command(call):
    """``command(*arguments)``: as ``call``, with all output in one text."""

    def run(*arguments):
        status, *told = call(*arguments)
        return status, "".join(told)

    run.house = call.house
    return run


@pytest.fixture(scope="session")
def odd(tmp_path_factory):
    """The real script in a place of all odd names at once: C locale, far time zone, no home, no temporary folder, a
    proxy that hears whatever is asked of a network, and results in a folder whose name has a dash first and a colon.
    """
    listener = kit.Listener()
    house = kit.checkout(tmp_path_factory.mktemp("odd").joinpath(*ODD))
    house.presets(kit.SHORT)
    env = kit.bare(LC_ALL="C", TZ="Pacific/Kiritimati", MPLBACKEND="TkAgg", TMPDIR="/nowhere", **listener.environment())
    del env["PRIVROB_OFFLINE"]
    status, said = kit.run_all(house, *SMOKE, "--out=-rf *: x", env=env, cwd=house.root / "notebooks")
    assert status == 0, said
    house.out, house.listener = house.root / "notebooks" / "-rf *: x", listener
    return house
