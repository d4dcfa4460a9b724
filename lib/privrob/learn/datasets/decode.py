"""From bytes to arrays: idx files, CIFAR batches, a table of digits; and the check that all must pass.

Every reader is ``read(view, source) -> (Arrays, content)``. It verifies the bytes before it decodes them; ``content``
holds the hashes that it verified, the same whatever the files were packed in.

Source: ours; the formats are those of MNIST (idx) and of CIFAR-10's Python batches.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from privrob.learn.datasets.files import DataCorrupt, diagnose, gunzip, hash_bytes


class Arrays(NamedTuple):
    """A decoded data set: images uint8 (n, channels, height, width), labels int64 (n,), class names in label order.

    The fields are ``train_images``, ``train_labels``, ``test_images``, ``test_labels`` and ``classes``.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple


@dataclass(frozen=True)
class Source:
    """What a reader has to know.

    ``spec``: the set's table in the manifest;  ``form``: one of its forms;  ``inside``: folder within the view;
    ``trusted``: the whole archive's hash was right;  ``num_classes``: how many classes to decode, if more than listed;
    ``known``: hash → which file has it, in words.
    """

    spec: dict
    form: dict
    inside: str = ""
    trusted: bool = False
    num_classes: int | None = None
    known: dict | None = None

    def at(self, name):
        """The name of a file within the view."""
        return f"{self.inside}/{name}" if self.inside else name


def identity_of(content):
    """One sha256 of a table of hashes, whatever its order. Returns: 64 hex digits."""
    lines = sorted(f"{role} {value}\n" for role, value in content.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def per_class(value, num_classes):
    """How many records each class has: ``value`` is one number for all, or a list."""
    return [value] * num_classes if isinstance(value, int) else list(value)[:num_classes]


def read_idx(data, shown):
    """An idx array: two zero bytes, a type (8: uint8, 12: big-endian int32), how many axes, their sizes, the values.

    Args: data — the file's bytes;  shown — its name in errors.
    Returns: array of that shape, read-only.
    Raises: DataCorrupt — other bytes, another type, or more or fewer values than the sizes say.
    """
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in (8, 12) or len(data) < 4 + 4 * data[3]:
        what = diagnose(data, len(data)) or f"{len(data):,} bytes that begin {data[:4].hex()}"
        raise DataCorrupt(f"{shown} must be an idx file (uint8 or int32), got {what}")
    kind = {8: np.dtype(np.uint8), 12: np.dtype(">i4")}[data[2]]
    sizes = tuple(int(n) for n in np.frombuffer(data, ">u4", data[3], offset=4))
    start = 4 + 4 * data[3]
    want = int(np.prod(sizes, dtype=np.int64)) * kind.itemsize
    if len(data) - start != want:
        word = "is truncated" if len(data) - start < want else "goes on too long"
        raise DataCorrupt(
            f"{shown} must hold {want:,} bytes of values for its sizes {sizes}, got {len(data) - start:,}: it {word}"
        )
    return np.frombuffer(data, kind, offset=start).reshape(sizes)


def _verified(name, raw, role, source, shown):
    """The payload of one file and its hash, after comparing it with the manifest."""
    wanted, accepted = source.form.get("content", {}).get(role), source.form.get("packed", {}).get(role, [])
    packed_hash = hash_bytes(raw)
    payload = gunzip(raw, shown) if name.endswith(".gz") else raw
    found = hash_bytes(payload, wanted.partition(":")[0] if wanted else "sha256")
    if wanted and found != wanted and packed_hash not in accepted and not source.trusted:
        known = source.known or {}
        what = known.get(found) or known.get(packed_hash) or diagnose(raw, len(raw))
        # the sizes in the file's head often say more than a hash
        if not what and payload[:2] == b"\0\0" and len(payload) >= 4:
            read_idx(payload, shown)
        size = f"{len(payload):,} bytes" + (" unpacked" if name.endswith(".gz") else "")
        raise DataCorrupt(f"{shown} must have {wanted}, got {found} ({size})" + (f": {what}" if what else ""))
    return payload, (wanted or found)


def read_idx_set(view, source):
    """Images and labels in idx files, plain or ``.gz``: two for each split, or one pair and a file of folds."""
    roles = source.form["files"]
    names = {}
    for role, base in roles.items():
        both = [source.at(base), source.at(base + ".gz")]
        names[role] = next((n for n in both if view.has(n)), None)
    missing = [roles[role] for role, name in names.items() if name is None]
    if missing:
        have = [n for n in names.values() if n]
        shown, lost = view.name_of(source.inside), ", ".join(missing)
        raise DataCorrupt(f"{shown} must hold {len(roles)} files, got {len(have)}; missing: {lost} (or .gz)")
    raw = view.read_many(list(names.values()))
    arrays, content = {}, {}
    for role, name in names.items():
        shown = view.name_of(name)
        payload, content[role] = _verified(name, raw[name], role, source, shown)
        arrays[role] = read_idx(payload, shown)
        want = 3 if role.endswith("images") else 1
        if arrays[role].ndim != want:
            raise DataCorrupt(f"{shown} must have {want} axes, got shape {arrays[role].shape}")
        if arrays[role].dtype != np.uint8:
            raise DataCorrupt(f"{shown} must hold uint8 values, got {arrays[role].dtype}")
    if "folds" in arrays:
        sizes = {role: len(array) for role, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            raise DataCorrupt(f"{view.shown} must hold as many images as labels and folds, got {sizes}")
        test = arrays["folds"] == source.form["test_fold"]
        for part, keep in (("train", ~test), ("test", test)):
            arrays[f"{part}_images"], arrays[f"{part}_labels"] = arrays["images"][keep], arrays["labels"][keep]
    out = []
    for part in ("train", "test"):
        images = arrays[f"{part}_images"]
        if source.form.get("transposed"):
            images = images.transpose(0, 2, 1)
        out.append(np.ascontiguousarray(images[:, None]))
        out.append(arrays[f"{part}_labels"].astype(np.int64) - source.form.get("first_label", 0))
    whole = source.form.get("content", {})
    return Arrays(*out, tuple(source.spec["classes"])), (whole if source.trusted and whole else content)


class _BatchUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain values, and nothing else."""

    def find_class(self, module, name):
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np._core.multiarray._reconstruct
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            import codecs

            return codecs.encode
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a data file")


def read_cifar_batches(view, source):
    """CIFAR's official Python batches: pickles of (n, 3072) uint8 rows, unpickled only after their hash was right."""
    content = source.form["content"]
    names = {base: source.at(base) for base in content}
    raw = view.read_many(list(names.values()))
    parts = {"train": ([], []), "test": ([], [])}
    for base, wanted in content.items():
        shown = view.name_of(names[base])
        if names[base] not in raw:
            raise DataCorrupt(f"{view.shown} must hold {len(content)} batches, got none named {names[base]}")
        data = raw[names[base]]
        found = hash_bytes(data, wanted.partition(":")[0])
        if found != wanted:
            what = (source.known or {}).get(found) or diagnose(data, len(data))
            raise DataCorrupt(
                f"{shown} must have {wanted}, got {found} ({len(data):,} bytes)" + (f": {what}" if what else "")
            )
        batch = _BatchUnpickler(io.BytesIO(data), encoding="bytes").load()
        images, labels = parts["test" if base.startswith("test") else "train"]
        images.append(np.asarray(batch[b"data"], np.uint8).reshape(-1, *source.spec["shape"]))
        labels.append(np.asarray(batch[b"labels"], np.int64))
    flat = [np.concatenate(one) for split in ("train", "test") for one in parts[split]]
    return Arrays(*flat, tuple(source.spec["classes"])), content


def read_digit_table(view, source):
    """A table of one digit a row, pixels first, label last; the last few rows of each class are the test part."""
    name = source.form["files"]["table"]
    shown = view.name_of(source.at(name))
    payload, _ = _verified(name, view.read(source.at(name)), "table", source, shown)
    table = np.loadtxt(io.BytesIO(payload), delimiter=",", dtype=np.uint8, ndmin=2)
    images, labels = table[:, :-1].reshape(-1, *source.spec["shape"]), table[:, -1].astype(np.int64)
    test = np.zeros(len(labels), bool)
    for label in range(len(source.spec["classes"])):
        test[np.flatnonzero(labels == label)[-source.form["test_per_class"] :]] = True
    arrays = Arrays(
        images[~test].copy(), labels[~test], images[test].copy(), labels[test], tuple(source.spec["classes"])
    )
    return arrays, source.form["content"]


def check_arrays(arrays, shown, *, shape=None, train_counts=None, test_counts=None):
    """The loader's own check, on the whole set, before anything is made of it.

    Args: arrays — :class:`Arrays`;  shown — the set's name;  shape — (channels, height, width), if known;
        train_counts, test_counts — records of each class in label order, if known.
    Raises: DataCorrupt — images and labels differ in number, wrong sizes, labels outside the classes or all alike,
        wrong counts.
    """
    num_classes = len(arrays.classes)
    for part, images, labels, counts in (
        ("training", arrays.train_images, arrays.train_labels, train_counts),
        ("test", arrays.test_images, arrays.test_labels, test_counts),
    ):
        if len(images) != len(labels):
            raise DataCorrupt(
                f"{shown}: the {part} part must have as many images as labels, got {len(images)} and {len(labels)}"
            )
        if shape is not None and images.shape[1:] != tuple(shape):
            raise DataCorrupt(f"{shown}: {part} images must have shape {tuple(shape)}, got {images.shape[1:]}")
        if not len(labels):
            if counts is not None and sum(counts):
                raise DataCorrupt(f"{shown}: the {part} part must have {sum(counts):,} records, got none")
            if part == "training":
                raise DataCorrupt(f"{shown}: the training part must have at least one record, got none")
            continue
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            raise DataCorrupt(f"{shown}: {part} labels must lie in [0, {num_classes - 1}], got {low} to {high}")
        found = np.bincount(labels, minlength=num_classes).tolist()
        if num_classes > 1 and len(labels) > 1 and max(found) == len(labels):
            raise DataCorrupt(
                f"{shown}: {part} labels must name at least 2 classes, got only {arrays.classes[labels[0]]!r}"
            )
        if counts is not None and found != list(counts):
            wrong = next(i for i in range(num_classes) if found[i] != counts[i])
            raise DataCorrupt(
                f"{shown}: the {part} part must have {sum(counts):,} records, {counts[wrong]} of them in class "
                f"{arrays.classes[wrong]!r}, got {len(labels):,} and {found[wrong]}"
            )
