"""Trees of images, ``<split>/<class>/*.png|jpg``, on disk or in a zip: anyone's own, and those of the manifest.

A ``view`` is one of :mod:`privrob.learn.datasets.views`, a ``tree`` what :func:`list_tree` returns.

Source: ours.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections import Counter, defaultdict
from pathlib import PurePosixPath

import numpy as np

from privrob.learn.datasets.decode import Arrays, identity_of
from privrob.learn.datasets.files import DataCorrupt, diagnose, notice

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
FORMATS = ("PNG", "JPEG", "BMP")
UNREAD = (".gif", ".tif", ".tiff", ".webp", ".avif", ".heic", ".heif", ".jp2", ".jpe", ".jfif", ".jxl", ".svg", ".ico")
UNREAD += (".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".dds", ".psd", ".raw", ".dng", ".dcm", ".exr")  # images as well
BESIDE = (".txt", ".md", ".csv", ".tsv", ".json", ".xml", ".db", ".ini", ".log")  # what may lie among images
TRAIN_SPLITS = ("train", "training")
TEST_SPLITS = ("test", "val", "valid", "validation", "testing")
SPLITS = (*TRAIN_SPLITS, *TEST_SPLITS)
CLASS_LISTS = ("classes.txt", "wnids.txt")
SHOWN = 6  # types of files that a message counts
_CHUNK = 2000  # images read before they are decoded: bounds the memory that packed bytes take


def _natural(names):
    """Class names in order: by value if all are whole numbers, else as text."""
    return sorted(names, key=int) if all(re.fullmatch(r"\d+", n) for n in names) else sorted(names)


def _root(names, inside):
    """The names below the folder that holds the splits: ``inside``, or one folder around everything."""
    if inside:
        return f"{inside}/"
    tops = {n.split("/")[0] for n in names if n.lower().endswith(SUFFIXES)}
    tops = tops or {n.split("/")[0] for n in names if n.lower().endswith(UNREAD)}
    if len(tops) == 1 and not tops & {*SPLITS}:
        return f"{tops.pop()}/"
    return ""


def _shown(name):
    """A name in a message: bytes that are no UTF-8 as ``\\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _types(names):
    """How many files of which type, in words."""
    counts = Counter(PurePosixPath(n).suffix.lower() or "without an ending" for n in names)
    return ", ".join(f"{count:,} {_shown(kind)}" for kind, count in counts.most_common(SHOWN)) + (
        ", …" if len(counts) > SHOWN else ""
    )


def _folders(view, root):
    """(split, class) of the training folders on disk, empty ones too; an archive lists files alone."""
    found = set()
    for split in TRAIN_SPLITS if view.path.is_dir() else ():
        if (place := view.path / root / split).is_dir():
            kept = (e for e in os.scandir(place) if e.is_dir() and e.name[0] != "." and e.name != "__MACOSX")
            found |= {(split, entry.name) for entry in kept}
    return found


def _check_own(view, root, below, found):
    """Refuse somebody's own folder where images, a class or a split would be left out; tell what else is.

    Args: root — the folder around the splits, or "";  below — all names below it;  found — the images, by split.
    Raises: DataCorrupt.
    """
    train, test = ([f"{s}/" for s in splits if s in found] for splits in (TRAIN_SPLITS, TEST_SPLITS))
    if len(train) > 1:
        raise DataCorrupt(
            f"{view.shown} must hold one training split, got {' and '.join(train)}; join them, or rename or move "
            "what is not to be read"
        )
    if len(test) > 1:
        notice(f"{view.shown}: {test[0]} is the test split, and {', '.join(test[1:])} is not read")
    for name in below:
        if name.lower().endswith(SUFFIXES) and _shown(name) != name:
            raise DataCorrupt(f"{view.name_of(_shown(root + name))} must have a name in UTF-8; rename it")
    parts = [(name, name.split("/")) for name in below if "/" in name]
    others = [(n, p) for n, p in parts if p[0] in SPLITS and not n.lower().endswith(SUFFIXES)]
    if unread := [name for name, _ in others if name.lower().endswith(UNREAD)]:
        raise DataCorrupt(
            f"{view.shown} must hold images as {', '.join(SUFFIXES)}, got {_types(unread)}, such as "
            f"{_shown(unread[0])}; convert them to PNG, or move them elsewhere"
        )
    folders = {(p[0], p[1]) for _, p in others if len(p) > 2} | _folders(view, root)
    classes = {(split, one) for split, rows in found.items() for one, _, _ in rows}
    if bare := sorted(f"{s}/{one}/" for s, one in folders - classes if s in TRAIN_SPLITS and one != "images"):
        raise DataCorrupt(
            f"{view.shown}: each class folder must hold images ({', '.join(SUFFIXES)}), got none in "
            f"{_shown(', '.join(bare[:3]))}; put images there, or move the folder elsewhere"
        )
    if left := [name for name, _ in others if not name.lower().endswith(BESIDE)]:
        notice(f"{view.shown}: left out as no images: {_types(left)}, such as {_shown(left[0])}")
    stray = [n for n in below if n.lower().endswith((*SUFFIXES, *UNREAD)) and n.split("/")[0] not in SPLITS]
    if stray:
        notice(f"{view.shown}: {len(stray):,} images in no split are left out, such as {_shown(stray[0])}")


def list_tree(view, *, inside="", classes=None):
    """The images of a tree, by split and class.

    Understands ``<split>/<class>/<file>``, one more folder ``images`` below the class, and a ``val_annotations.txt``
    beside ``val/images`` (Tiny ImageNet's own layout).
    Args: inside — a folder that all names begin with;  classes — names in label order; None reads ``classes.txt`` or
        sorts the folders of the training split.
    Returns: (classes, {"train" | "test": [(canonical name, name in the view, label)]}), in order of canonical name.
    Raises: DataCorrupt — no training split, images without a class folder, a test class that training does not know.
    """
    names = view.names()
    root = _root(names, inside)
    below = [n[len(root) :] for n in names if n.startswith(root)]
    found, loose = defaultdict(list), defaultdict(list)
    for name in below:
        parts = name.split("/")
        if not parts[-1].lower().endswith(SUFFIXES) or parts[0] not in SPLITS:
            continue
        if len(parts) == 4 and parts[2] == "images":
            found[parts[0]].append((parts[1], parts[3], root + name))
        elif len(parts) == 3 and parts[1] != "images":
            found[parts[0]].append((parts[1], parts[2], root + name))
        else:
            loose[parts[0]].append((parts[-1], root + name))
    for split, files in loose.items():
        notes = f"{root}{split}/{split}_annotations.txt"
        others = {*found, *(s for s in loose if f"{root}{s}/{s}_annotations.txt" in names)} - {split}
        if split in TEST_SPLITS and split not in found and notes not in names and others & {*TEST_SPLITS}:
            notice(f"{view.shown}: {len(files):,} images of {split} have no labels and are left out")
            continue
        if split in found or notes not in names:
            raise DataCorrupt(
                f"{view.shown}: images must lie in {split}/<class>/, got {len(files)} without a class folder, "
                f"such as {files[0][1]}; move each into the folder of its class"
            )
        lines = view.read(notes).decode("utf-8", "replace").splitlines()
        label = dict(line.split("\t")[:2] for line in lines if "\t" in line)
        unknown = [file for file, _ in files if file not in label]
        if unknown:
            raise DataCorrupt(f"{view.shown}: {notes} must name the class of every image, got none for {unknown[0]}")
        found[split] = [(label[file], file, name) for file, name in files]
    if classes is None:
        _check_own(view, root, below, found)
    train = next((s for s in TRAIN_SPLITS if s in found), None)
    if train is None:
        raise DataCorrupt(
            f"{view.shown} must hold images as train/<class>/<file> ({', '.join(SUFFIXES)}), "
            f"got {len(below)} files and no such image in a training split"
        )
    test = next((s for s in TEST_SPLITS if s in found), None)
    here = {one for one, _, _ in found[train]}
    if classes is None:
        listed = next((root + c for c in CLASS_LISTS if root + c in names), None)
        lines = _lines(view, listed) if listed else []
        classes = [line.strip() for line in lines if line.strip()] or _natural(here)
        if set(classes) != here or len(set(classes)) != len(classes):
            odd = sorted(set(classes) ^ here)[:3]
            raise DataCorrupt(
                f"{view.shown}: {listed} must name each training class once, differs in {', '.join(odd) or 'a repeat'}"
            )
        if len(classes) < 2:
            raise DataCorrupt(f"{view.shown} must hold at least 2 classes, got only {classes[0]!r}")
        if test is not None:
            strange = sorted({one for one, _, _ in found[test]} - here)
            if strange:
                raise DataCorrupt(
                    f"{view.shown}: every {test} class must be a training class, got {strange[0]!r} besides"
                )
    index = {name: i for i, name in enumerate(classes)}
    out = {}
    for part, split in (("train", train), ("test", test)):
        rows = [(f"{split}/{one}/{file}", name, index[one]) for one, file, name in found.get(split, []) if one in index]
        out[part] = sorted(rows)
    return tuple(classes), out


def _lines(view, name):
    try:
        return view.read(name).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataCorrupt(f"{view.name_of(name)} must be UTF-8, got other bytes in line {line}; save it so") from None


def _chunks(view, rows):
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        raw = view.read_many([name for _, name, _ in part])
        for canonical, name, label in part:
            if name not in raw:
                raise DataCorrupt(f"{view.name_of(name)} must be a file, got none")
            yield canonical, name, label, raw[name]


def tree_digest(view, tree):
    """One hash of a tree: of the lines ``<split>/<class>/<file> <sha256 of its bytes>``. Returns: ``"sha256:…"``."""
    digest = hashlib.sha256()
    rows = sorted(tree["train"] + tree["test"])
    for canonical, _, _, data in _chunks(view, rows):
        digest.update(f"{canonical} {hashlib.sha256(data).hexdigest()}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def tree_identity(view, tree, classes):
    """What a user's folder is, in one sha256: its images and the order of its classes."""
    names = hashlib.sha256("\n".join(classes).encode()).hexdigest()
    return identity_of({"tree": tree_digest(view, tree), "classes": names})


def _decode(data, shown, mode, image_size):
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.mode.startswith("I") or image.mode == "F":
            raise DataCorrupt(f"{shown} must have 8 bits a channel, got mode {image.mode}; convert it first")
        image = image.convert(mode)
        if image_size is not None and image.size != (image_size[1], image_size[0]):
            image = image.resize((image_size[1], image_size[0]), Image.Resampling.BILINEAR)
        return np.asarray(image)
    except Image.DecompressionBombError:
        raise DataCorrupt(
            f"{shown} must have at most {2 * Image.MAX_IMAGE_PIXELS:,} pixels, got more; make it smaller first"
        ) from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        what = diagnose(data, len(data)) or f"{type(error).__name__} in {len(data):,} bytes"
        raise DataCorrupt(f"{shown} must be a whole PNG, JPEG or BMP image, got something else: {what}") from None


def _greyscale(view, rows):
    """Whether every image is greyscale (looks at the heads only)."""
    from PIL import Image

    for _, _, _, data in _chunks(view, rows):
        try:
            if Image.open(io.BytesIO(data), formats=FORMATS).mode not in ("1", "L", "LA"):
                return False
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return False  # told properly when it is decoded
    return True


def decode_tree(view, classes, tree, *, channels=None, image_size=None):
    """The images of a tree as arrays; labels follow ``classes``.

    Args: channels — 1 or 3; None: 1 if every image is greyscale, else 3.  image_size — (height, width) to resize to;
        None: all must have one size.
    Raises: DataCorrupt — an unreadable image, or sizes that differ.
    """
    if channels is None:
        channels = 1 if _greyscale(view, tree["train"] + tree["test"]) else 3
    mode, size, out = {1: "L", 3: "RGB"}[channels], image_size, []
    for part in ("train", "test"):
        images, labels = None, np.array([label for _, _, label in tree[part]], np.int64)
        for i, (_, name, _, data) in enumerate(_chunks(view, tree[part])):
            pixels = _decode(data, view.name_of(name), mode, image_size)
            size = size or pixels.shape[:2]
            if pixels.shape[:2] != tuple(size):
                got = "x".join(map(str, pixels.shape[:2]))
                raise DataCorrupt(
                    f"{view.name_of(name)} must be {size[0]}x{size[1]} like the first image, got {got}; "
                    f"pass image_size=({size[0]}, {size[1]}) to resize all"
                )
            if images is None:
                images = np.empty((len(labels), *size, channels), np.uint8)
            images[i] = pixels.reshape(*size, channels)
        if images is None:
            images = np.empty((0, *size, channels), np.uint8)
        out += [np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels]
    return Arrays(*out, tuple(classes))
