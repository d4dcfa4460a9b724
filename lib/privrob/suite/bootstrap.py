"""Make the environment that the suite runs in, and print its interpreter. Standard library only.

Called by ``run_all.sh`` with whatever Python 3.11+ there is. With conda, mamba or micromamba on the path the
environment comes from ``environment.yml``, otherwise it is a venv; both hold the same pins. A stamp keeps the hash of
the pins, so that a second call costs nothing, a changed pin installs again, and an installation that was cut short is
taken up again.

``PRIVROB_ENV`` names another place (or, with ``PRIVROB_ENV_KIND=venv|conda``, another kind).
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

TESTED = (3, 11)
ROOT = Path(__file__).resolve().parents[3]
PINS = ("pyproject.toml", "environment.yml", ".constraints.txt")
EXTRAS = ("backbones", "cluster", "lab", "site", "test")
ALIVE = 30.0  # seconds between signs of life of a long step


def say(text):
    """Tell the person; standard output is for the interpreter's path alone."""
    print(text, file=sys.stderr, flush=True)


def requirements(pyproject):
    """The pinned requirements of pyproject.toml: the library's and those of the extras that the environment holds."""
    import tomllib

    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return project["dependencies"] + [r for extra in EXTRAS for r in project["optional-dependencies"][extra]]


def stamp_of(kind):
    """What an up-to-date environment's stamp says."""
    hasher = hashlib.sha256(f"{kind} {sys.version_info[:2]} ".encode())
    for name in PINS:
        hasher.update((ROOT / name).read_bytes())
    return hasher.hexdigest()


def place(kind):
    """Where the environment is: in the checkout, or below the user's cache when the checkout cannot be written."""
    if told := os.environ.get("PRIVROB_ENV"):
        return Path(told).resolve()
    name = ".venv" if kind == "venv" else ".conda-env"
    if os.access(ROOT, os.W_OK):
        return ROOT / name
    home = os.environ.get("HOME") or ""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(home if os.access(home, os.W_OK) else "/tmp") / ".cache")
    return cache / f"privrob-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}" / name


def conda():
    """The conda-like program at hand, or None."""
    if os.environ.get("PRIVROB_ENV_KIND") == "venv":
        return None
    found = [shutil.which(n) for n in ("mamba", "micromamba", "conda")]
    return next((f for f in found if f), None)


@contextlib.contextmanager
def only_one(folder):
    """One installation at a time; a second one waits for the first."""
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name.lstrip('.')}.lock", "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another installation is running; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
OFFLINE = (
    "without a network: ./run_all.sh --no-env takes a Python that has the packages (it names what is lacking); or set "
    "PIP_INDEX_URL to a mirror, or PIP_NO_INDEX=1 and PIP_FIND_LINKS to a folder of wheels"
)


def host(address):
    """An address as it may be shown: its scheme and host alone, for a path or a name in it may be a password."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address)
        if parts.scheme in ("", "file"):
            return f"the folder {parts.path}"
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}" if parts.hostname else "?"
    except ValueError:
        return "an address that cannot be read"


def say_indexes():
    """Tell where pip will look, before it does: a place that does not answer costs minutes of tries."""
    told = {name: [host(a) for a in os.environ.get(name, "").split()] for name in INDEXES}
    for name, places in told.items():
        if places:
            say(f"pip looks at {', '.join(places)} ({name})")
    if any(told.values()):
        say("  where one of these does not answer, pip tries for minutes; Ctrl-C, then correct or unset it")


def call(command, *, instead="", **kwargs):
    """Run a step of the installation; its output goes to the person, its failure ends everything in words.

    A step that says nothing for long is told to be alive.

    Args: instead — what else there is to do, told at the first sign of life and after a failure.
    """
    told = False
    began, running = time.monotonic(), subprocess.Popen(command, stdout=sys.stderr, **kwargs)
    while True:
        try:
            status = running.wait(ALIVE)
            break
        except subprocess.TimeoutExpired:
            say(
                f"still installing, {time.monotonic() - began:.0f} s" + (f"; {instead}" if instead and not told else "")
            )
            told = True
        except BaseException:
            running.kill()
            running.wait()
            raise
    if status:
        say(f"failed (exit status {status}): {' '.join(map(str, command))[:300]}")
        say("see the lines above; when it is mended, the same command takes the installation up again")
        if instead:
            say(instead)
        raise SystemExit(1)


def make_venv(folder):
    """A venv with the pins."""
    python = folder / "bin" / "python"
    whole = python.exists() and not subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode
    if not whole:  # none, of a Python that is gone, or cut off before it had pip
        shutil.rmtree(folder, ignore_errors=True)
        call([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    say_indexes()
    pins = requirements(ROOT / "pyproject.toml")
    call([*pip, "install", "--quiet", "-c", str(ROOT / ".constraints.txt"), *pins], instead=OFFLINE)
    return python


def make_conda(program, folder):
    """A conda environment from environment.yml."""
    python = folder / "bin" / "python"
    verb = ["env", "update", "--prune"] if python.exists() else ["env", "create"]
    if "micromamba" in Path(program).name:
        verb = ["update" if python.exists() else "create", "--yes"]
    say_indexes()  # conda calls pip
    asked = [program, *verb, "--prefix", str(folder), "--file", str(ROOT / "environment.yml")]
    call(asked, cwd=ROOT, instead=f"{OFFLINE}; PRIVROB_ENV_KIND=venv does without {Path(program).name}")
    return python


def link(python):
    """Make the library importable there from this checkout, ``run_all.sh`` or not (as an editable install does)."""
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    site = Path(where.stdout.strip())
    (site / "privrob.pth").write_text(f"{ROOT / 'lib'}\n", encoding="utf-8")
    script = python.parent / "privrob"
    script.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m privrob "$@"\n', encoding="utf-8")
    script.chmod(0o755)


def main():
    """Print the environment's interpreter, making the environment first where that is needed."""
    if sys.version_info < TESTED:
        say(f"privrob needs Python 3.11 or newer, this is {sys.version.split()[0]}; install one, or conda")
        return 1
    program = conda()
    kind = "conda" if program else "venv"
    folder = place(kind)
    stamp = folder / ".privrob-stamp"
    python = folder / "bin" / "python"
    wanted = stamp_of(kind)

    def ready():
        return python.exists() and stamp.is_file() and stamp.read_text() == wanted

    if not ready():
        with only_one(folder):
            if not ready():
                say(f"making the environment in {folder.name} ({kind}; a few minutes, about 2 GB, once)")
                stamp.unlink(missing_ok=True)
                python = make_conda(program, folder) if program else make_venv(folder)
                link(python)
                stamp.write_text(wanted)
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
