"""Anyone's own images: ``folder:<path below PRIVROB_DATA>``, holding ``<split>/<class>/*.png|jpg``, zipped or not.

``request`` is a :class:`privrob.learn.datasets.request.Request` for a folder.

Source: ours.
"""

from __future__ import annotations

import functools
import os

from privrob.learn.datasets import images
from privrob.learn.datasets.decode import check_arrays, identity_of
from privrob.learn.datasets.files import DataUnavailable, notice, stat_signature
from privrob.learn.datasets.manifest import data_folder
from privrob.learn.datasets.sources import Loaded, decoded_path, try_decoded, write_decoded
from privrob.learn.datasets.views import open_view


def folder_path(request):
    """(path, name in messages) of the folder or zip that was asked for.

    Raises: DataUnavailable — PRIVROB_DATA unset, or nothing of that name; ValueError — a path that leads out of it.
    """
    asked, root = request.name.partition(":")[2], data_folder()
    if root is None:
        raise DataUnavailable(
            f"PRIVROB_DATA must name the folder that holds {asked!r}, got none; "
            f"set it, and put {asked}/ or {asked}.zip there"
        )
    inside = os.path.normpath(asked)
    if os.path.isabs(asked):
        inside = os.path.relpath(os.path.realpath(asked), os.path.realpath(root))
    if not asked or inside in (".", "..") or inside.startswith("../"):
        raise ValueError(
            f"name must be folder:<path below PRIVROB_DATA>, got name={request.name!r}; "
            "copy or link the images below it"
        )
    for end in ("", ".zip"):
        if os.path.lexists(root / (inside + end)):
            return root / (inside + end), f"PRIVROB_DATA/{inside}{end}"
    raise DataUnavailable(
        f"PRIVROB_DATA must hold {inside}/ or {inside}.zip, got neither; put the images there as "
        "<split>/<class>/*.png|jpg, with train and (if any) test as the splits"
    )


@functools.lru_cache(maxsize=16)
def _known_tree(path, shown, _signature):
    with open_view(path, shown) as view:
        classes, tree = images.list_tree(view)
        return classes, tree, images.tree_identity(view, tree, classes)


def folder_tree(request):
    """Listing and identity of a folder, remembered in this process until one of its files changes.

    Returns: (path, name in messages, class names, tree as :func:`~privrob.learn.datasets.images.list_tree` gives it,
        identity).
    """
    path, shown = folder_path(request)
    signature = [stat_signature(path)] if path.is_file() else []
    for folder, _, files in os.walk(path, followlinks=True) if path.is_dir() else ():
        paths = [os.path.join(folder, name) for name in files]
        signature += [stat_signature(p) if os.path.exists(p) else (p,) for p in paths]
    return path, shown, *_known_tree(path, shown, tuple(sorted(signature)))


def load_folder(request):
    """The images of a folder, checked; decoded once and kept in the cache."""
    path, shown, classes, tree, identity = folder_tree(request)
    kept = decoded_path("folder", identity_of({"content": identity, "as": f"{request.image_size} {request.channels}"}))
    arrays = try_decoded(kept)
    if arrays is None:
        with open_view(path, shown) as view:
            arrays = images.decode_tree(view, classes, tree, channels=request.channels, image_size=request.image_size)
        check_arrays(arrays, shown)
        write_decoded(kept, arrays)
    if not len(arrays.test_labels):
        notice(f"{shown} has no test split: the test part is empty")
    return Loaded(arrays, "image folder", True, "PRIVROB_DATA folder", identity)
