"""A made-up image set of any shape, whose classes a small model tells apart in seconds. For smoke runs and tests.

Source: ours.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from privrob.kinds import Streams
from privrob.learn.datasets.decode import Arrays

DEFAULT_SHAPE, DEFAULT_CLASSES, DEFAULT_TRAIN, DEFAULT_TEST, DEFAULT_NOISE = (1, 28, 28), 10, 2000, 500, 0.2
_COARSE = 5  # size of the random grid that a class's picture is stretched from
_STYLES = 3  # directions in which the pictures of one class differ from each other


def _stretch(grid, height, width):
    """Bilinear: (k, coarse, coarse) to (k, height, width)."""

    def weights(size):
        at = np.linspace(0.0, _COARSE - 1.0, size)
        left = np.minimum(at.astype(int), _COARSE - 2)
        matrix = np.zeros((size, _COARSE))
        matrix[np.arange(size), left] = 1.0 - (at - left)
        matrix[np.arange(size), left + 1] = at - left
        return matrix

    return np.einsum("hi,kij,wj->khw", weights(height), grid, weights(width))


def synthetic_arrays(*, shape, num_classes, num_train, num_test, noise, seed):
    """Each class has a smooth random picture; a record is that, bent a little in a few common ways, plus pixel noise.

    Labels are balanced (counts differ by at most 1) and in random order; both parts come from the same distribution.
    Args: num_train, num_test — records;  shape — (channels, height, width);  noise — standard deviation of the pixel
        noise, pixels in [0, 1];
        seed — root seed.
    Returns: Arrays, the same for the same arguments.
    """
    channels, height, width = shape
    streams = Streams(seed, "synthetic", *map(str, shape), num_classes)

    def pictures(name, count):
        grid = streams.numpy(name).standard_normal((count * channels, _COARSE, _COARSE))
        return _stretch(grid, height, width).reshape(count, -1)

    means, styles = pictures("classes", num_classes), pictures("styles", _STYLES)
    out = []
    for part, count in (("train", num_train), ("test", num_test)):
        rng = streams.numpy(part)
        labels = rng.permutation(np.arange(count, dtype=np.int64) % num_classes)
        images = np.empty((count, channels * height * width), np.uint8)
        for start in range(0, count, 1024):
            rows = labels[start : start + 1024]
            bend = rng.standard_normal((len(rows), _STYLES)) @ styles
            pixels = 0.5 + 0.12 * means[rows] + 0.05 * bend + noise * rng.standard_normal((len(rows), images.shape[1]))
            images[start : start + 1024] = np.rint(255 * np.clip(pixels, 0.0, 1.0))
        out += [images.reshape(count, *shape), labels]
    return Arrays(*out, tuple(f"class {i}" for i in range(num_classes)))


def synthetic_identity(**arguments):
    """One sha256 of the arguments of :func:`synthetic_arrays`, which decide every pixel."""
    text = json.dumps(["synthetic", 1, sorted(arguments.items())], default=list)
    return hashlib.sha256(text.encode()).hexdigest()
