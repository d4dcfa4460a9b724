"""Files that are whole or absent: written beside their place under another name, then renamed onto it."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
import time
from pathlib import Path

STALE_SECONDS = 3600  # an unfinished file this old belongs to nobody


def write(path, fill):
    """Make a file whole or not at all: ``fill(file)`` writes bytes; readers see the old file or the new one.

    Raises: OSError — no space, no permission; nothing is left behind, and an older file stays as it was.
    """
    path = Path(os.path.realpath(path))  # a link stays, what it leads to is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_bytes(path, data):
    """As :func:`write`, of bytes that are at hand."""
    write(path, lambda file: file.write(data))


def remove_unfinished(path):
    """Remove what writers of this file left that were killed long ago."""
    path = Path(path)
    for left in path.parent.glob(f".{glob.escape(path.name[:40])}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()


def _mode(path):
    """Permissions: those of the file that is replaced, else what the umask leaves."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        return 0o666 & ~_umask()


def _umask():
    """The process's umask, read once (reading it means setting it)."""
    if not hasattr(_umask, "value"):
        _umask.value = os.umask(0o022)
        os.umask(_umask.value)
    return _umask.value
