"""Fixtures of the suite's own tests."""

import os
import subprocess

import pytest

from house import House


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of one megabyte; skipped where none can be mounted."""
    folder = tmp_path / "tiny disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def make_house(tmp_path_factory):
    """A maker of houses that a whole module shares: ``make_house()`` or ``make_house(name, names)``."""

    def make(name="a house", **kwargs):
        return House(tmp_path_factory.mktemp("houses") / name, **kwargs)

    return make
