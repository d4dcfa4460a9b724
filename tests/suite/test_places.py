"""The real script in awkward places: odd paths and locales, no home, a read-only checkout, a bare python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from house import ROOT, House, notebook

ONE = "dplearn/sec1_toy"
SCRIPT = ROOT / "run_all.sh"


def checkout(folder):
    """A checkout below ``folder``: the real script and library, toy notebooks, the toy cells beside the library."""
    house = House(folder, names=(ONE,))
    shutil.copy(SCRIPT, house.root / "run_all.sh")
    shutil.copytree(ROOT / "lib", house.root / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "tests" / "suite" / "toy_cells.py", house.root / "lib" / "toy_cells.py")
    return house


def bare(**changes):
    """An environment with nothing of ours in it: the python of these tests first on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return {"PATH": path, "PRIVROB_OFFLINE": "1", **changes}


def run_all(house, *arguments, env, timeout=180, **kwargs):
    command = ["bash", str(house.root / "run_all.sh"), "--no-env", *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL, **kwargs)
    return done.returncode, (done.stdout + done.stderr).decode("utf-8")


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
def test_an_odd_path_a_c_locale_no_home_and_another_folder_give_the_same_bytes(plain, tmp_path):
    house = checkout(tmp_path / "Zoë's (new) réplique" / "a b")
    status, out = run_all(
        house, "--preset", "smoke", env=bare(LC_ALL="C", MPLBACKEND="TkAgg"), cwd=house.root / "notebooks"
    )
    assert status == 0, out
    assert house.kept(ONE) == plain.kept(ONE)
    assert "Zoë's (new) réplique" in out or "results in" in out


def listing(folder):
    """All that is below a folder, with times and sizes."""
    return {p: (p.lstat().st_mtime_ns, p.lstat().st_size) for p in sorted(folder.rglob("*"))}


def can_run(env, who):
    """Whether this python, packages included, works for that user."""
    try:
        return (
            subprocess.run(
                [sys.executable, "-c", "import numpy"], env=env, cwd="/", capture_output=True, **who
            ).returncode
            == 0
        )
    except PermissionError:
        return False


@pytest.mark.slow
def test_a_read_only_checkout_and_home_are_left_alone_with_results_elsewhere(plain, tmp_path_factory):
    """As an ordinary user, who cannot write there (or as root, who could, and does not); the same bytes come out."""
    import tempfile

    base = Path(tempfile.mkdtemp(prefix="privrob read-only "))
    try:
        house = checkout(base / "checkout")
        home, out = base / "home", base / "out"
        for folder in (home, out):
            folder.mkdir()
        subprocess.run(["chmod", "-R", "a+rX,a-w", str(house.root), str(home)], check=True)
        base.chmod(0o755)
        out.chmod(0o777)
        who = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        env = bare(HOME=str(home))
        if not can_run(env, who):  # this python lies in a place that only root may read
            who, env = {}, bare(HOME=str(home), PYTHONDONTWRITEBYTECODE="1")
        before = listing(house.root) | listing(home)
        status, said = run_all(house, "--preset", "smoke", "--out", out, env=env, cwd="/", **who)
        assert status == 0, said
        assert listing(house.root) | listing(home) == before
        assert house.kept(ONE, out=out) == plain.kept(ONE)
        if os.geteuid() or who:
            status, said = run_all(house, "--preset", "smoke", env=env, cwd="/", **who)
            assert status == 2
            assert "--out must be writable" in said
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(base)], check=True)
        shutil.rmtree(base)


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
