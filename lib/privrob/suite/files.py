"""Files that are either whole or absent: atomic writes, strict JSON, exact CSV, and a lock that names its holder.

Numbers survive the trip: floats are written with ``repr`` and read back to the same bits. Strict JSON has no infinity,
so a float that JSON cannot hold is written ``{"$float": "inf"}``; in CSV the tokens are ``inf``, ``-inf`` and ``nan``,
and an empty field is a missing value.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from privrob import atomic


class NoSpace(OSError):
    """The disk is full. What was there before is untouched."""


def write_bytes(path, data):
    """Put data at path in one step: readers see the old file or the new one, whole. Raises :class:`NoSpace`."""
    try:
        atomic.write_bytes(path, data)
    except OSError as error:
        if why := full(error):
            raise NoSpace(error.errno, f"{why} to write {Path(path).name} ({len(data):,} bytes)") from error
        raise


def most_open_files():
    """How many files this process may have open; infinite where there is no such limit."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return math.inf
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft


def full(error):
    """In words why an error means that no more can be written, or ""."""
    number = getattr(error, "errno", None)
    if number == errno.EFBIG:
        return "no space left below the limit on the size of files (ulimit -f)"
    return "no space left" if number in (errno.ENOSPC, errno.EDQUOT) else ""


def write_text(path, text):
    """Atomic text, UTF-8 whatever the locale, lines end in a newline everywhere."""
    write_bytes(path, text.encode("utf-8"))


def read_text(path):
    """UTF-8 text whatever the locale."""
    return Path(path).read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------- JSON


def plain(value):
    """The value in types that strict JSON knows, from numpy's, tuples, paths and non-finite floats too."""
    if isinstance(value, dict):
        result = {str(k): plain(v) for k, v in value.items()}
        if len(result) < len(value):
            raise TypeError(f"cannot be written as JSON: keys that are the same as text, {list(value)!r}")
        return result
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [plain(v) for v in items]
    if type(value).__module__ == "numpy":  # arrays and scalars, told without importing numpy
        return plain(value.tolist())
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Path):
        return value.as_posix()
    raise TypeError(
        f"cannot be written as JSON: {type(value).__name__} ({value!r}); pass numbers, text, lists or dicts"
    )


def dump_json(value, *, indent=None):
    """Strict JSON with sorted keys: the same value gives the same bytes."""
    return json.dumps(plain(value), allow_nan=False, sort_keys=True, ensure_ascii=False, indent=indent)


def load_json(text, *, unfold=True):
    """Read strict JSON, which has no bare ``NaN`` or ``Infinity``. ``unfold=False`` leaves ``$float`` as it stands."""

    def refuse(token):
        raise ValueError(f"not strict JSON: bare {token}")

    def number(pairs):
        return float(pairs["$float"]) if set(pairs) == {"$float"} and isinstance(pairs["$float"], str) else pairs

    return json.loads(text, parse_constant=refuse, object_hook=number if unfold else None)


def digest(value):
    """sha256 of a value's strict JSON, as 64 hexadecimal digits."""
    return hashlib.sha256(dump_json(value).encode()).hexdigest()


def file_digest(path):
    """sha256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# ----------------------------------------------------------------------------------------------------------------- CSV


def rows_to_csv(rows):
    """Rows (dicts; a missing key is an empty field) as CSV text. Columns stand in the order of first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_field(row.get(c)) for c in columns])
    return out.getvalue()


def _field(value):
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, dict) and set(value) == {"$float"}:
        return value["$float"]
    if isinstance(value, str):
        other = value == "" or _number(value) is not value or value in ("True", "False") or value[:1] in "[{'\""
        if other or any(c < " " for c in value):  # would read back as something else, or span lines
            return json.dumps(value, ensure_ascii=False)
        return value
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return repr(value)


def csv_to_rows(text):
    """The rows that :func:`rows_to_csv` wrote, types and last digits included; empty fields are left out."""
    reader = csv.reader(io.StringIO(text))
    columns = next(reader, [])
    return [{c: _value(f) for c, f in zip(columns, fields, strict=True) if f != ""} for fields in reader]


def _value(field):
    if field in ("True", "False"):
        return field == "True"
    if field[:1] in ("[", "{", '"'):
        return load_json(field)
    return _number(field)


def _number(field):
    """The field as an int or a float if that is what it spells, else the field itself."""
    for kind in (int, float):
        try:
            return kind(field)
        except ValueError:
            continue
    return field


# ---------------------------------------------------------------------------------------------------------------- lock


class Locked(RuntimeError):
    """Somebody else writes here."""


_NO_LOCKS = (errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)  # of a file system without locks
_TRIES = 4  # a look at a lock holds it for a moment
WAY_OUT = "wait for it, stop it, or give another folder with --out"


def holder(folder):
    """Who holds a folder, in words; "" when nobody does, or when that cannot be told."""
    import fcntl

    try:
        with open(Path(folder) / ".lock", encoding="utf-8", errors="replace") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return stream.read().strip() or "another process"
    except OSError:
        pass
    return ""


def refuse_nested(folder, below=(), *, way_out=WAY_OUT):
    """Refuse a folder that lies in one that somebody holds, or that holds one: two runs would share files.

    Args: below — the folders below it that will be written to; each, and those on the way to it, must be free.
    Raises: Locked.
    """
    folder = Path(folder).resolve()
    for parent in folder.parents:
        if who := holder(parent):
            raise Locked(f"{folder.name}/ lies in {parent}, which is in use by {who}; {way_out}")
    way = {p for one in map(Path, below) for p in (one, *one.parents) if p != folder and p.is_relative_to(folder)}
    for one in sorted(way):
        if who := holder(one):
            raise Locked(f"{one.relative_to(folder)}/ in {folder} is in use by {who}; {way_out}")


@contextlib.contextmanager
def lock(folder, *, purpose="a run", below=(), way_out=WAY_OUT):
    """Hold a folder for one writer. The system drops the lock when its holder dies, so none goes stale.

    Args: below — the folders below it that this writer writes to (:func:`refuse_nested`);  way_out — what the error
        advises.
    Raises: Locked — naming the holder's process and host, before anything is touched.
    """
    refuse_nested(folder, below, way_out=way_out)
    with _lock(Path(folder), purpose, way_out) as path:
        refuse_nested(folder, below, way_out=way_out)  # of two that begin at once each sees the other
        yield path


@contextlib.contextmanager
def _lock(folder, purpose, way_out):
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    with open(path, "a+", encoding="utf-8") as stream:
        for tried in range(1, _TRIES + 1):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    yield path
                    return
                if tried == _TRIES:
                    stream.seek(0)
                    who = stream.read().strip() or "another process"
                    raise Locked(f"{folder.name}/ is in use by {who}; {way_out}") from None
            time.sleep(0.05)
        if not os.fstat(stream.fileno()).st_nlink:  # its last holder made the folder, left it empty, and took it away
            raise Locked(f"{folder.name}/ was removed by a run that ended just now; give the same command again")
        stream.seek(0)
        stream.truncate()
        stream.write(f"{purpose}, pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%H:%M:%S')}")
        stream.flush()
        try:
            yield path
        finally:
            stream.seek(0)
            stream.truncate()


def place(text):
    """A folder or file named on the command line; an empty name (of a variable that is not set) is refused."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder or file, got '' (a shell variable that is not set?)")
    return Path(text)


def check_writable(folder, *, name="--out", way_out="give a folder you may write to with --out DIR"):
    """Refuse a folder that cannot be written, before any work. Makes it when it is missing."""
    folder = Path(folder)
    if os.path.exists(folder) and not folder.is_dir():
        raise ValueError(f"{name} must be a folder, got a file of that name: {folder}; {way_out}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:  # has no name: nothing is left if we are killed here
            probe.write(b"\0")
            probe.flush()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(f"{name} must have space left, {folder} has none; {way_out}") from error
        raise ValueError(f"{name} must be writable, {folder} is not ({error.strerror}); {way_out}") from error
    return folder


OURS = (".lock", ".runtime", ".staging")


def remove_if_unused(folder):
    """Remove an output folder that this run made, and in which it left nothing but its lock and caches."""
    folder = Path(folder)
    if folder.is_dir() and not [p for p in folder.iterdir() if p.name not in OURS]:
        shutil.rmtree(folder, ignore_errors=True)
