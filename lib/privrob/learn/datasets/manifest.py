"""The manifest of data sets, and the settings that say where data may come from.

Source: ours.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from privrob import checks
from privrob.learn.datasets.files import DataUnavailable


def data_folder():
    """The folder that ``PRIVROB_DATA`` names, or None when it is unset.

    Raises: DataUnavailable — it names no folder.
    """
    value = os.environ.get("PRIVROB_DATA", "")
    if not value:
        return None
    if not os.path.isdir(value):
        raise DataUnavailable(
            f"PRIVROB_DATA must name a folder that exists, got PRIVROB_DATA={value!r}; correct it or unset it"
        )
    return Path(value)


def cache_folder():
    """The user's cache: ``PRIVROB_CACHE``, else the usual place of this system. It need not exist, nor be writable."""
    value = os.environ.get("PRIVROB_CACHE", "")
    if value:
        return Path(os.path.expanduser(value))
    import platformdirs

    return Path(platformdirs.user_cache_dir("privrob"))


def is_offline(offline=None):
    """Whether the network is out of bounds: ``offline`` if given, else ``PRIVROB_OFFLINE`` (1 or 0)."""
    if offline is not None:
        return bool(offline)
    value = os.environ.get("PRIVROB_OFFLINE", "").strip().lower()
    yes, no = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
    return checks.choice("PRIVROB_OFFLINE", value, [*yes, *no], hint="set it to 1 or 0") in yes


def manifest_path(path=None):
    """The manifest: the argument, else ``PRIVROB_MANIFEST``, else ``data/manifest.toml`` beside ``lib``."""
    given = path or os.environ.get("PRIVROB_MANIFEST")
    return Path(given) if given else Path(__file__).resolve().parents[4] / "data" / "manifest.toml"


def read_manifest(path=None):
    """The table of data sets, by name.

    Raises: DataUnavailable — no such file, or not a manifest.
    """
    found = manifest_path(path)
    try:
        info = os.stat(found)
        return _parse_manifest(str(found), info.st_mtime_ns, info.st_size)
    except OSError:
        raise DataUnavailable(
            f"the manifest of data sets must be a file, got none at {found.parent.name}/{found.name}; "
            "set PRIVROB_MANIFEST to the data/manifest.toml of a checkout"
        ) from None


@functools.lru_cache(maxsize=8)
def _parse_manifest(path, _mtime, _size):
    import tomllib

    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataUnavailable(f"{os.path.basename(path)} must be TOML, got an error: {error}") from None
    if table.get("schema") != 1 or not isinstance(table.get("sets"), dict):
        raise DataUnavailable(
            f"{os.path.basename(path)} must say schema = 1 and hold [sets.<name>], got neither or another schema"
        )
    return table["sets"]


def owners(manifest):
    """Every hash of a file that the ``manifest`` knows: hash → (set, what it is in words)."""
    out = {}
    for key, spec in manifest.items():
        for form in spec["forms"]:
            rows = [(role, value) for role, value in form.get("content", {}).items()]
            rows += [(role, value) for role, values in form.get("packed", {}).items() for value in values]
            for role, value in rows:
                out[value] = (key, f"it is the file of {spec['title']}'s {role.replace('_', ' ')}")
    return out


def is_self_verifying(form):
    """Whether the manifest knows the hash of each thing inside, and not only of the archive around it."""
    content = form.get("content", {})
    return {"idx": lambda: set(form["files"]) <= set(content), "tree": lambda: "tree" in content}.get(
        form["reader"], lambda: True
    )()


def how_to_get(key, table):
    """Every way to a data set, in words: the address, the commands, where to put the files, their hashes.

    Args: key — the set's name;  table — the manifest's.
    """
    spec = table[key]
    lines = [f"ways to get {spec['title']} ({key}), any one of them:"]
    for form in spec["forms"]:
        for item in form.get("downloads", []):
            lines.append(f"  - download {item['urls'][0]} ({item['hash']}) into PRIVROB_DATA")
        for text in form.get("by_hand", []):
            lines.append(f"  - {text}")
        for archive in form.get("archives", [])[:1]:
            for value in archive.get("hashes", [])[:1]:
                lines.append(f"  - put {archive['name']} ({form['variant']}, {value}) into PRIVROB_DATA")
        if form["reader"] == "idx" and is_self_verifying(form):
            files = [f"{form['files'][role]} {value}" for role, value in form["content"].items()]
            lines.append("    the files, unpacked: " + ", ".join(files))
    lines.append("  PRIVROB_DATA is the folder that holds them; a download needs PRIVROB_OFFLINE unset or 0")
    if spec.get("stand_in"):
        other = table.get(spec["stand_in"], {}).get("title", spec["stand_in"])
        lines.append(f"  or pass allow_stand_in=True to go on with {other} where that is there; results then say so")
    return "\n".join(lines)
