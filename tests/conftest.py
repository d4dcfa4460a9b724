"""Shared fixtures. The toy house lets the driver be tried on notebooks of a second each, faults included."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "suite"))

from house import House  # noqa: E402


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
