"""Data sets on this machine: in the folder that PRIVROB_DATA names, in the user's cache, in an installed package.

The order is fixed, and a file that is there and wrong is an error, never a reason to look further in silence.

``key`` is a set's name in the manifest and ``spec`` its entry, ``known`` the hashes of
:func:`privrob.learn.datasets.manifest.owners`, ``found`` a :class:`Found`.

Source: ours.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from privrob import atomic
from privrob.learn.datasets import decode, images
from privrob.learn.datasets.decode import Arrays, Source, identity_of, per_class
from privrob.learn.datasets.files import (
    DataCorrupt,
    diagnose_file,
    glob_names,
    gunzip,
    hash_bytes,
    hash_file,
    matches,
    notice,
)
from privrob.learn.datasets.manifest import cache_folder, data_folder, is_self_verifying
from privrob.learn.datasets.views import FolderView, open_view

DECODING = 1  # raise it when the same files would give other arrays: older decodings are then made again

# ------------------------------------------------------------------------------------------------------- the search


@dataclass(frozen=True)
class Place:
    """Somewhere to look: its name for people (``label``), its ``root``, how its files are called in messages
    (``shown``); ``ours`` is true of the cache.
    """

    label: str
    root: Path
    shown: str
    ours: bool = False  # the cache: a bad file there is replaced, not complained about


@dataclass(frozen=True)
class Found:
    """One form of a set, there: in a folder or an archive (``path``), or decoded earlier (``decoded``).

    ``place`` is where, ``shown`` its name in messages, ``form`` its entry in the manifest.
    """

    form: dict
    place: Place
    path: Path
    shown: str
    archive: dict | None = None
    decoded: Path | None = None


class Loaded(NamedTuple):
    """What was read: ``arrays``, the ``variant`` in words, whether it is ``exact`` (the official data bit for bit),
    ``source``, ``identity``.
    """

    arrays: Arrays
    variant: str
    exact: bool
    source: str
    identity: str


def cache_place(key):
    """Where the files of a set lie in the cache."""
    return Place("cache", cache_folder() / key, f"cache/{key}", ours=True)


def identity_for(spec, form, num_classes, content=None):
    """What a form holds, in one sha256: hashes of its content, and how that is split and labelled.

    Args: form — of ``spec``;  num_classes — that are read, None: all;  content — hashes of what was read; None takes
        the manifest's, so that the answer is known beforehand.
    Returns: 64 hex digits, or None where the manifest has no hash of it.
    """
    content = content or form.get("content")
    if not content:
        return None
    reading = {
        name: form[name] for name in ("test_per_class", "test_fold", "first_label", "transposed") if name in form
    }
    reading |= {"classes": spec["classes"], "num_classes": num_classes, "version": DECODING}
    return identity_of({**content, "reading": json.dumps(reading, sort_keys=True)})


def is_settled(found):
    """Whether reading this form either gives what the manifest's hashes say or fails: no third outcome."""
    form = found.form
    if is_self_verifying(form) and not form.get("counts_suffice"):
        return True
    return bool(found.archive) and found.path.is_file() and matches(found.path, found.archive.get("hashes", []))


def decoded_path(key, identity):
    """Where the arrays of a set are kept once decoded.

    Args: identity — a sha256.
    """
    return cache_folder() / "decoded" / f"{key}-{identity[:24]}.npz"


def _belongs_elsewhere(view, form, key, known):
    """Whether the label files here are another set's: MNIST and Fashion-MNIST use the same file names."""
    for role, base in form["files"].items():
        if "labels" not in role:
            continue
        for name in (base, base + ".gz"):
            path = view.path / name
            if path.is_file():
                raw = path.read_bytes()
                found = hash_bytes(raw)
                if name.endswith(".gz") and found not in known:
                    try:
                        found = hash_bytes(gunzip(raw, name))
                    except DataCorrupt:
                        continue
                return known.get(found, (key, ""))[0] != key
    return False


def _holds(view, form, key, known, *, shared):
    """What of a form lies in a folder: 0 nothing, 1 something, 2 every file."""
    reader = form["reader"]
    if reader == "tree":
        return 2 if (view.path / "train").is_dir() else 0
    names = list(form["files"].values()) if reader != "cifar" else list(form["content"])
    there = [view.has(n) or (reader == "idx" and view.has(n + ".gz")) for n in names]
    if not any(there) or (shared and reader == "idx" and _belongs_elsewhere(view, form, key, known)):
        return 0
    return 2 if all(there) else 1


def _search(place, key, spec, form, known):
    for pattern in form.get("loose", []) if not place.ours else [""]:
        for name in glob_names(place.root, pattern) if pattern else [""]:
            path = place.root / name
            shown = f"{place.shown}/{name}" if name else place.shown
            if not path.is_dir():
                continue
            held = _holds(FolderView(path, shown), form, key, known, shared=not pattern)
            if held == 2 or (held == 1 and not place.ours):
                yield Found(form, place, path, shown)
    for archive in form.get("archives", []):
        for name in glob_names(place.root, archive["name"]):
            yield Found(form, place, place.root / name, f"{place.shown}/{name}", archive)


def candidates(key, spec, known, *, variant=None, num_classes=None, places=None):
    """Every form of a set on this machine, best first. Looks at names (and at label files, to tell sets apart).

    Args: variant — a form by name, None: any;  num_classes — that must be there;  places — where to look, None: all.
    """
    forms = [f for f in spec["forms"] if variant in (None, f["variant"])]
    forms = [f for f in forms if num_classes is None or num_classes <= f.get("max_classes", len(spec["classes"]))]
    if places is None:
        root = data_folder()
        places = [Place("PRIVROB_DATA folder", root, "PRIVROB_DATA")] if root else []
        places.append(cache_place(key))
    for place in places:
        for form in forms:
            yield from _search(place, key, spec, form, known)
        if place.ours:
            for form in forms:
                identity = identity_for(spec, form, num_classes)
                if identity and decoded_path(key, identity).is_file():
                    yield Found(form, place, place.root, place.shown, decoded=decoded_path(key, identity))
    for form in forms:
        if "installed" in form:
            module, inside = form["installed"]["module"], form["installed"]["inside"]
            try:
                package = importlib.util.find_spec(module)
            except (ImportError, ValueError):
                package = None
            for folder in (package.submodule_search_locations or []) if package else []:
                view = FolderView(Path(folder) / inside, f"{module} package")
                if view.path.is_dir() and _holds(view, form, key, known, shared=False) == 2:
                    yield Found(form, Place(f"{module} package", view.path, view.shown), view.path, view.shown)


# ---------------------------------------------------------------------------------------------------------- reading


def read(found, key, spec, known, *, num_classes=None):
    """Verify and decode one form; decoded arrays of slow forms are kept in the cache.

    Raises: DataCorrupt — anything that is not what the manifest says.
    """
    form, archive, trusted = found.form, found.archive, False
    expected = identity_for(spec, form, num_classes)
    if found.decoded:
        loaded = Loaded(
            read_decoded(found.decoded), form["variant"], form.get("exact", True), found.place.label, expected
        )
        return _checked(loaded, found, spec)
    if archive and found.path.is_file():
        trusted = matches(found.path, archive.get("hashes", []))
        if not trusted and not is_self_verifying(form):
            got = hash_file(found.path, archive["hashes"][0].partition(":")[0])
            what = diagnose_file(found.path) or f"{found.path.stat().st_size:,} bytes"
            raise DataCorrupt(f"{found.shown} must have {archive['hashes'][0]}, got {got}: {what}")
    arrays, content = try_decoded(decoded_path(key, expected)) if trusted else None, form.get("content")
    if arrays is None:
        inside = (archive or {}).get("inside", "")
        source = Source(spec, form, inside, trusted, num_classes, {h: text for h, (_, text) in known.items()})
        with open_view(found.path, found.shown) as view:
            arrays, content = READERS[form["reader"]](view, source, key)
    identity = identity_for(spec, form, num_classes, content)
    exact, variant = form.get("exact", True), form["variant"]
    if identity != expected or not (trusted or is_self_verifying(form)):
        exact, variant = False, f"{variant}, checked by counts only"
    loaded = _checked(Loaded(arrays, variant, exact, found.place.label, identity), found, spec)
    if (archive or form["reader"] in ("tree", "table")) and not decoded_path(key, identity).is_file():
        write_decoded(decoded_path(key, identity), arrays)
    return loaded


def _checked(loaded, found, spec):
    counts = {
        name: per_class(spec[name], len(loaded.arrays.classes)) if name in spec else None
        for name in ("train_counts", "test_counts")
    }
    decode.check_arrays(loaded.arrays, found.shown, shape=spec["shape"], **counts)
    return loaded


def _read_tree(view, source, key):
    """A known tree: its classes in the manifest's order (beyond those, in the order of its own wnids.txt)."""
    spec, form, num_classes = source.spec, source.form, source.num_classes
    classes, content = list(spec["classes"]), form["content"]
    if num_classes is not None:
        names = [n for n in view.names() if n.rpartition("/")[2] == "wnids.txt"]
        listed = view.read(names[0]).decode().split() if names else []
        if listed[: len(classes)] != classes or len(listed) < num_classes:
            raise DataCorrupt(
                f"{view.shown} must list {num_classes} classes in wnids.txt, the manifest's first, got {len(listed)}"
            )
        classes = listed[:num_classes]
    classes, tree = images.list_tree(view, classes=classes)
    total = len(tree["train"]) + len(tree["test"])
    if not source.trusted:
        digest = images.tree_digest(view, tree)
        if digest != content["tree"] and not form.get("counts_suffice"):
            raise DataCorrupt(f"{view.shown} must have tree hash {content['tree']}, got {digest} of {total:,} images")
        content = {"tree": digest}
    arrays = try_decoded(decoded_path(key, identity_for(spec, form, num_classes, content)))
    if arrays is None:
        notice(f"decoding {total:,} images of {spec['title']} once (about {1 + total // 4000} s)")
        arrays = images.decode_tree(view, classes, tree, channels=spec["shape"][0])
    return arrays, content


# every reader: (view, source, key of the set) -> (Arrays, hashes of the content)
READERS = {
    "idx": lambda view, source, key: decode.read_idx_set(view, source),
    "cifar": lambda view, source, key: decode.read_cifar_batches(view, source),
    "table": lambda view, source, key: decode.read_digit_table(view, source),
    "tree": _read_tree,
}


# ------------------------------------------------------------------------------------------------ the decoded cache


def write_decoded(path, arrays):
    """Keep decoded arrays, whole or not at all; a cache that cannot be written costs time, not the run."""

    def write(file):
        fields = {n: getattr(arrays, n) for n in Arrays._fields if n != "classes"}
        classes = np.frombuffer(json.dumps(list(arrays.classes)).encode(), np.uint8)
        np.savez(file, **fields, classes=classes)

    try:
        atomic.remove_unfinished(path)
        atomic.write(path, write)
    except OSError as error:
        notice(
            f"the cache cannot be written ({error.strerror}): going on without; set PRIVROB_CACHE to a folder that can"
        )


def read_decoded(path):
    """The arrays of an earlier decoding. Each was written whole, and its CRC-32 is checked as it is read.

    Raises: DataCorrupt — truncated or changed.
    """
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as file:
            out = {name: file[name] for name in Arrays._fields}
        arrays = Arrays(**(out | {"classes": tuple(json.loads(out["classes"].tobytes()))}))
        decode.check_arrays(arrays, path.name)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataCorrupt(f"cache/decoded/{path.name} must be what was written, got {error}; delete it") from None
    return arrays


def try_decoded(path):
    """The arrays of an earlier decoding, or None: there is none, or it is damaged (said, and to be made again)."""
    if not path.is_file():
        return None
    try:
        return read_decoded(path)
    except DataCorrupt as error:
        notice(f"{error}: decoding again")
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def with_place(found, label):
    """The same find under another name (a download that now lies in the cache).

    Args: label — that name.
    """
    return replace(found, place=replace(found.place, label=label))
