"""Features of a whole set of images: made in parts, and kept in the user's cache in half precision.

Source: ours.
"""

from __future__ import annotations

import hashlib
import io

import numpy as np
import torch

from privrob import atomic
from privrob.learn import datasets
from privrob.learn.datasets.manifest import cache_folder


@torch.no_grad()
def in_parts(images, one, *, at_once=500):
    """``one`` of all images, ``at_once`` at a time, in half precision."""
    if len(images) == 0:
        return one(images.new_zeros(1, *images.shape[1:])).half()[:0]
    return torch.cat([one(part).half() for part in images.split(at_once)])


def path_of(name, digest, train, test):
    """The file of these features. Args: name — of the recipe;  train, test — images;  digest — a hash object that has
    seen the recipe and its code.
    """
    for images in (train, test):
        digest.update(f"{tuple(images.shape)} {images.dtype}".encode() + images.cpu().contiguous().numpy().tobytes())
    return cache_folder() / "features" / f"{name}-{digest.hexdigest()[:24]}.npz"


def read(path):
    """(train, test), or None if they aren't there whole."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            return None
        with np.load(io.BytesIO(content[32:])) as arrays:
            return tuple(torch.from_numpy(arrays[n]) for n in ("train", "test"))
    except (OSError, ValueError, KeyError):
        return None


def keep(path, both):
    """Write ``both``, (train, test), and return them; where the cache can't be written it is said."""
    halves = tuple(part.cpu() for part in both)
    buffer = io.BytesIO()
    np.savez(buffer, train=halves[0].numpy(), test=halves[1].numpy())
    try:
        atomic.write_bytes(path, hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
    except OSError as error:
        datasets.files.notice(f"features cannot be kept ({error.strerror}): set PRIVROB_CACHE to a folder that can")
    return halves
