"""The real script and a notebook opened by hand, with a bare python. Odd and read-only places are in test_faults.py."""

import os
import shutil
import subprocess
import sys

import pytest

from fault_kit import ONE, SCRIPT, bare, checkout, run_all
from house import notebook


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run in a plain place, as one usually runs it."""
    house = checkout(tmp_path_factory.mktemp("plain") / "checkout")
    status, out = run_all(
        house, "--preset", "smoke", env=bare(HOME=os.path.expanduser("~"), LANG="C.UTF-8"), cwd=house.root
    )
    assert status == 0, out
    return house


@pytest.mark.slow
def test_a_notebook_opened_by_hand_runs_in_its_own_folder_and_gives_the_same_rows(plain):
    node = notebook(ONE)
    code = "\n".join(c.source for c in node.cells if c.cell_type == "code")
    env = bare(PYTHONPATH=str(plain.root / "lib"), HOME="/proc/nowhere", MPLBACKEND="agg")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=plain.root / "notebooks" / "dplearn", env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "by hand: results go to studies/lab and are not counted" in done.stdout
    made = plain.root / "studies" / "lab" / ONE / "by hand"
    rows = (made / "rows.csv").read_bytes().splitlines()
    kept = plain.kept(ONE)["rows.csv"].splitlines()
    assert rows[: len(kept)] == kept, "the smoke preset has three cells, the paper's four"
    assert len(rows) == len(kept) + 1


# ----------------------------------------------------------------------------------------------------------- the script


def test_the_script_is_sound_shell():
    done = subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    text = SCRIPT.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert '"$@"' in text
    assert os.access(SCRIPT, os.X_OK)
    unquoted = [line for line in text.splitlines() if " $root" in line or " $python" in line.replace('"$python"', "")]
    assert not unquoted


def fake_python(folder, code):
    """A 'python3' that answers with a shell line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3", "python3.11", "python3.12", "python3.13"):
        (folder / name).write_text(f"#!/bin/sh\n{code}\n")
        (folder / name).chmod(0o755)
    for name in ("bash", "dirname", "env", "sh"):
        (folder / name).symlink_to(shutil.which(name))
    return str(folder)


@pytest.mark.parametrize("option", [["--no-env"], []])
def test_an_old_python_is_refused_in_words(tmp_path, option):
    env = {"PATH": fake_python(tmp_path / "bin", "exit 1"), "HOME": str(tmp_path)}
    done = subprocess.run(["bash", str(SCRIPT), *option], env=env, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert (
        "privrob needs Python 3.11 or newer and found none; install one (or conda), or name it in PRIVROB_PYTHON"
        in done.stderr
    )


def test_a_python_that_lacks_packages_is_refused_with_their_list(tmp_path):
    real = shutil.which("python3.11", path=os.defpath) or getattr(sys, "_base_executable", sys.executable)
    env = {"PATH": fake_python(tmp_path / "bin", f'exec "{real}" -I -S "$@"'), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(SCRIPT), "--no-env", "--list"], env=env, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 2
    assert "--no-env: " in done.stderr
    for package in ("numpy", "torch", "papermill", "pyyaml", "dp-accounting", "pillow"):
        assert package in done.stderr
    assert "install them, or leave --no-env away" in done.stderr
