"""Making the environment, with stand-ins for conda, venv and pip that only write down what they are asked."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from house import ROOT
from privrob.suite import bootstrap, preflight

FAKE = """#!/bin/sh
echo "$0 $@" >> "{log}"
prefix=
while [ $# -gt 0 ]; do [ "$1" = --prefix ] && prefix=$2; shift; done
mkdir -p "$prefix/bin"
ln -sf "{python}" "$prefix/bin/python"
[ -e "{log}.fail" ] && exit 7
exit 0
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of what the script needs, with a fake conda on the path; ``checkout(program)`` runs the real bootstrap."""
    root = tmp_path / "a 'checkout'"
    (root / "lib" / "privrob" / "suite").mkdir(parents=True)
    for name in (*bootstrap.PINS, "run_all.sh"):
        shutil.copy(ROOT / name, root / name)
    for name in ("__init__.py", "bootstrap.py"):
        shutil.copy(ROOT / "lib/privrob/suite" / name, root / "lib/privrob/suite" / name)
    log, tools = tmp_path / "asked", tmp_path / "bin"
    tools.mkdir()
    base = getattr(sys, "_base_executable", sys.executable)

    def run(program="conda", **changes):
        for path in tools.iterdir():
            path.unlink()
        fake = tools / program
        fake.write_text(FAKE.format(log=log, python=tools / "python"))
        fake.chmod(0o755)
        # its python: the real one, with a site folder of its own, so that nothing is written into ours
        (tools / "python").write_text(
            f'#!/bin/sh\ncase "$*" in *purelib*) echo "{tmp_path}";; *) exec "{base}" "$@";; esac\n'
        )
        (tools / "python").chmod(0o755)
        env = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path), **changes}
        script = root / "lib/privrob/suite/bootstrap.py"
        return subprocess.run([base, "-B", str(script)], env=env, capture_output=True, text=True, timeout=60)

    def asked():
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.partition(" ")[2] for line in lines]

    run.root, run.asked, run.fail, run.site = root, asked, Path(f"{log}.fail"), tmp_path
    return run


def test_conda_makes_the_environment_once_from_the_pins_and_prints_its_python_alone(checkout):
    first, second = checkout(), checkout()
    python = checkout.root / ".conda-env" / "bin" / "python"
    assert (first.returncode, first.stdout) == (0, f"{python}\n"), first.stderr
    assert (second.returncode, second.stdout, second.stderr) == (0, f"{python}\n", "")
    assert "making the environment in .conda-env (conda; a few minutes" in first.stderr
    prefix, file = checkout.root / ".conda-env", checkout.root / "environment.yml"
    assert checkout.asked() == [f"env create --prefix {prefix} --file {file}"]
    assert (checkout.site / "privrob.pth").read_text() == f"{checkout.root / 'lib'}\n"
    assert os.access(python.parent / "privrob", os.X_OK)


def test_an_installation_that_was_cut_short_is_taken_up_again(checkout):
    checkout.fail.touch()
    failed = checkout()
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "failed (exit status 7): " in failed.stderr
    assert "the same command takes the installation up again" in failed.stderr
    checkout.fail.unlink()
    assert checkout().returncode == 0
    assert [a.split(" --prefix")[0] for a in checkout.asked()] == ["env create", "env update --prune"]


@pytest.mark.parametrize("name", bootstrap.PINS)
def test_a_changed_pin_installs_again(checkout, name):
    assert checkout().returncode == 0
    with open(checkout.root / name, "a") as stream:
        stream.write("\n# changed\n")
    assert checkout().returncode == 0
    assert len(checkout.asked()) == 2


def test_micromamba_has_verbs_of_its_own(checkout):
    assert checkout("micromamba").returncode == 0
    assert checkout.asked()[0].startswith("create --yes --prefix ")


def test_another_place_can_be_named(checkout, tmp_path):
    done = checkout(PRIVROB_ENV=str(tmp_path / "elsewhere"))
    assert done.stdout == f"{tmp_path / 'elsewhere' / 'bin' / 'python'}\n"
    assert not (checkout.root / ".conda-env").exists()


def test_a_checkout_that_cannot_be_written_has_its_environment_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path / "nowhere")
    monkeypatch.delenv("PRIVROB_ENV", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    name = f"privrob-{hashlib.sha256(str(tmp_path / 'nowhere').encode()).hexdigest()[:8]}"
    assert bootstrap.place("venv") == tmp_path / ".cache" / name / ".venv"
    monkeypatch.setenv("HOME", "/proc/nowhere")
    assert bootstrap.place("conda") == Path("/tmp/.cache") / name / ".conda-env"


def test_without_conda_a_venv_gets_the_same_pins(monkeypatch, tmp_path):
    asked = []

    def call(command, **kwargs):
        asked.append(list(map(str, command)))
        if "venv" in command:
            (tmp_path / "env" / "bin").mkdir(parents=True)
            (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(bootstrap, "call", call)
    bootstrap.make_venv(tmp_path / "env")
    bootstrap.make_venv(tmp_path / "env")
    pip = ["-m", "pip", "--disable-pip-version-check"]
    assert [a[1:4] for a in asked] == [["-m", "venv", str(tmp_path / "env")], pip, pip], "the venv is made once"
    pins = bootstrap.requirements(ROOT / "pyproject.toml")
    assert asked[1][-len(pins) :] == pins
    assert asked[1][-len(pins) - 2 : -len(pins)] == ["-c", str(ROOT / ".constraints.txt")]


def test_a_venv_that_was_cut_off_before_it_had_pip_is_made_again(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(bootstrap, "call", lambda command, **kwargs: asked.append(list(map(str, command))))
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] && exit 1\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    bootstrap.make_venv(tmp_path / "env")
    assert [a[1:3] for a in asked] == [["-m", "venv"], ["-m", "pip"]]
    assert not python.exists(), "what was left of the old one is gone"


def test_a_python_that_is_too_old_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 10, 9))
    monkeypatch.setattr(bootstrap.sys, "version", "3.10.9 (main)")
    assert bootstrap.main() == 1
    assert "privrob needs Python 3.11 or newer, this is 3.10.9; install one, or conda" in capsys.readouterr().err
    assert preflight.main() == 1
    assert "privrob needs Python 3.11 or newer, this is 3.10.9" in capsys.readouterr().err


def test_a_second_installation_waits_for_the_first(tmp_path, capsys):
    told = []
    with bootstrap.only_one(tmp_path / ".venv"):

        def second():
            with bootstrap.only_one(tmp_path / ".venv"):
                told.append("second")

        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        told.append("first")
    thread.join(timeout=10)
    assert told == ["first", "second"]
    assert "another installation is running; waiting for it" in capsys.readouterr().err


def test_a_long_step_is_told_to_be_alive_and_a_failed_one_ends_in_words(monkeypatch, capfd):
    monkeypatch.setattr(bootstrap, "ALIVE", 0.2)
    bootstrap.call([sys.executable, "-c", "import time; time.sleep(0.7)"])
    assert "still installing, " in capfd.readouterr().err
    with pytest.raises(SystemExit):
        bootstrap.call([sys.executable, "-c", "raise SystemExit(3)"])
    assert "failed (exit status 3)" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://name:secret@mirror.example:8443/token-secret/simple?key=secret", "https://mirror.example:8443"),
        ("https://secret@mirror.example/simple", "https://mirror.example"),
        ("file:///opt/wheels", "the folder /opt/wheels"),
        ("/opt/wheels", "the folder /opt/wheels"),
        ("https://[broken", "an address that cannot be read"),
        ("https://mirror.example:secret/", "an address that cannot be read"),
    ],
)
def test_an_index_is_shown_without_what_may_be_a_password(address, shown):
    assert bootstrap.host(address) == shown


def test_the_indexes_are_told_before_pip_starts_and_the_way_on_after_it_failed(monkeypatch, tmp_path, capfd):
    for name in bootstrap.INDEXES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://me:secret@one.example/whl/cpu https://two.example/simple")
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$3" = --version ] && exit 0\necho pip starts >&2\nexit 1\n')
    python.chmod(0o755)
    with pytest.raises(SystemExit):
        bootstrap.make_venv(tmp_path / "env")
    told = capfd.readouterr().err
    first = "pip looks at https://one.example, https://two.example (PIP_EXTRA_INDEX_URL)"
    assert told.startswith(first)
    assert told.index(first) < told.index("pip starts") < told.index("without a network: ./run_all.sh --no-env")
    assert "(PIP_INDEX_URL)" not in told, "nobody set it"
    assert "secret" not in told


def test_nothing_is_said_of_indexes_that_nobody_set(monkeypatch, capsys):
    for name in bootstrap.INDEXES:
        monkeypatch.delenv(name, raising=False)
    bootstrap.say_indexes()
    assert capsys.readouterr().err == ""


def test_the_way_on_is_told_once_while_a_step_is_long(monkeypatch, capfd):
    monkeypatch.setattr(bootstrap, "ALIVE", 0.2)
    bootstrap.call([sys.executable, "-c", "import time; time.sleep(0.9)"], instead="go another way")
    told = capfd.readouterr().err
    assert told.count("still installing") >= 2
    assert told.count("go another way") == 1


@pytest.mark.parametrize("more", [["--no-env"], [], ["--help"]])
def test_the_script_shows_what_a_python_says_that_does_not_start(tmp_path, more):
    for name, text in {"python": "exit 1", "python3": "echo Fatal: no codec >&2; echo at line 7; exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    shutil.copy(ROOT / "run_all.sh", tmp_path / "run_all.sh")  # beside it is no environment
    env = {"PATH": f"{tmp_path}:{tools(tmp_path)}"}
    done = subprocess.run(["/bin/bash", tmp_path / "run_all.sh", *more], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"privrob needs Python 3.11 or newer; {tmp_path}/python3 does not start, and says:\nFatal: no codec\n"
        "at line 7\nmend that, or name another one in PRIVROB_PYTHON\n"
    )
    (tmp_path / "python3").unlink()  # left is one that is too old, which says nothing
    done = subprocess.run(["/bin/bash", tmp_path / "run_all.sh", *more], env=env, capture_output=True, text=True)
    assert "found none; install one (or conda), or name it in PRIVROB_PYTHON" in done.stderr


def tools(folder):
    """A folder with the one program that the script calls before it has found a Python."""
    (folder / "tools").mkdir()
    (folder / "tools" / "dirname").symlink_to(shutil.which("dirname"))
    return folder / "tools"
