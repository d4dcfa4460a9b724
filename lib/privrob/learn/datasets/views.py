"""Folders, zips, tars and Debian packages, read alike: a *view* lists and reads the files of one of them.

Nothing is ever extracted to a path that an archive names.

Source: ours.
"""

from __future__ import annotations

import io
import os
import zlib
from pathlib import Path

from privrob.learn.datasets.files import DataCorrupt, diagnose_file

MAX_DEPTH = 6  # how deep a folder is listed: <set>/<split>/<class>/images/<file> is 5


class View:
    """The files of one container. ``shown`` is its name in messages; never an absolute path."""

    def __init__(self, path, shown):
        self.path, self.shown = Path(path), shown

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def name_of(self, name):
        """How a file of this view is called in a message.

        Args: name — of the file, below the view's root.
        """
        return f"{self.shown}/{name}" if name else self.shown

    def names(self):
        """Every file below the root, as ``a/b/c``, sorted."""
        raise NotImplementedError

    def read(self, name):
        """The bytes of one file.

        Args: name — as listed.
        """
        return self.read_many([name])[name]

    def read_many(self, names):
        """The bytes of several files, by name (``names``); missing ones are left out."""
        raise NotImplementedError

    def has(self, name):
        """Whether the file ``name`` is listed."""
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
        import zipfile

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
        import zipfile

        listed = set(self._zip.namelist())
        try:
            return {name: self._zip.read(name) for name in names if name in listed}
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise DataCorrupt(f"{self.shown} must be a whole zip file, got {error}; get it again") from None


class TarView(View):
    """A tar, packed or not. Several files are read in one pass, because a packed tar cannot be read backwards."""

    _names = None

    def _open(self):
        import tarfile

        return tarfile.open(self.path, "r:*")

    def _members(self):
        import tarfile

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
        if self._names is None:
            self._names = sorted(name for _, _, name in self._members())
        return self._names

    def read_many(self, names):
        wanted, found = set(names), {}
        for tar, member, name in self._members():
            if name in wanted:
                found[name] = tar.extractfile(member).read()
        return found


class DebView(TarView):
    """A Debian package: an ``ar`` archive whose ``data.tar.*`` holds the files. Needs no dpkg."""

    def _open(self):
        import tarfile

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

    Args: shown — its name in errors.
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
