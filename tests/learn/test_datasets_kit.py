"""Tiny data sets for the tests of the data layer: files in every accepted form, and a manifest of their hashes."""

import gzip
import hashlib
import io
import json
import pickle
import tarfile
import zipfile

import numpy as np
from PIL import Image

from privrob.learn.datasets import download as data_fetch
from privrob.learn.datasets import files as data_files
from privrob.learn.datasets import images as data_images
from privrob.learn.datasets import views as data_views

ROLES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
SHAPE = (1, 5, 4)  # not square: a transposed image is told apart


def idx_bytes(array):
    """An array as the bytes of an idx file."""
    kind = {"uint8": 8, "int32": 12}[array.dtype.name]
    sizes = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, kind, array.ndim]) + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def sha(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def md5(data):
    return "md5:" + hashlib.md5(data).hexdigest()


def digits(seed, num_train=12, num_test=6, num_classes=3):
    """Payloads by role of a small idx set with the same number of records in each class."""
    rng = np.random.default_rng(seed)
    parts = {}
    for part, count in (("train", num_train), ("test", num_test)):
        parts[f"{part}_images"] = rng.integers(0, 256, (count, *SHAPE[1:]), dtype=np.uint8)
        parts[f"{part}_labels"] = rng.permutation(np.arange(count) % num_classes).astype(np.uint8)
    return {role: idx_bytes(parts[role]) for role in ROLES}


def toml(value):
    """A value as TOML (inline tables; enough for a manifest)."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


class Kit:
    """One test's own world: a folder for PRIVROB_DATA, a cache, a manifest that grows by :meth:`add`."""

    def __init__(self, root):
        self.data, self.cache, self.path = root / "my data", root / "cache", root / "manifest.toml"
        self.data.mkdir()
        self.sets = {}

    def add(self, name, *forms, **spec):
        defaults = {"title": name.upper(), "kind": "real", "shape": SHAPE, "classes": ["a", "b", "c"]}
        self.sets[name] = {**defaults, "train_counts": 4, "test_counts": 2, **spec, "forms": forms}
        lines = "\n".join(f"{key} = {toml(one)}" for key, one in self.sets.items())
        self.path.write_text(f"schema = 1\n[sets]\n{lines}\n", encoding="utf-8")

    def idx_form(self, payloads, **more):
        content = {role: sha(data) for role, data in payloads.items()}
        return {
            "variant": "original",
            "reader": "idx",
            "loose": ["", "digits"],
            "files": ROLES,
            "content": content,
            **more,
        }

    def put(self, payloads, folder="", *, packed=False, where=None):
        """Write idx files below PRIVROB_DATA. Returns: their folder."""
        folder = (where or self.data) / folder
        folder.mkdir(parents=True, exist_ok=True)
        for role, data in payloads.items():
            name = ROLES[role] + (".gz" if packed else "")
            (folder / name).write_bytes(gzip.compress(data) if packed else data)
        return folder


def tar_bytes(files, mode="w:gz"):
    """A tar of {name: bytes}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_bytes(files):
    """A zip of {name: bytes}."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, data in files.items():
            file.writestr(name, data)
    return out.getvalue()


def deb_bytes(files):
    """A Debian package of {name: bytes}: an ar archive with an odd-sized member before the data."""

    def member(name, data):
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        return head + data + b"\n" * (len(data) % 2)

    data = tar_bytes({f"./{name}": one for name, one in files.items()}, "w:xz")
    return b"!<arch>\n" + member("debian-binary", b"2.0\n!") + member("data.tar.xz", data)


def image_bytes(colour, size=(4, 5), mode="RGB", kind="PNG"):
    """A picture of one colour; size is (width, height)."""
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, kind)
    return out.getvalue()


def batch_bytes(images, labels):
    """A CIFAR batch as Python 2 wrote it: byte keys, rows of pixels."""
    return pickle.dumps({b"data": images.reshape(len(images), -1), b"labels": list(map(int, labels))}, protocol=2)


def make_kit(tmp_path, monkeypatch):
    """A :class:`Kit` with the environment pointing at it, offline."""
    made = Kit(tmp_path)
    monkeypatch.setenv("PRIVROB_DATA", str(made.data))
    monkeypatch.setenv("PRIVROB_CACHE", str(made.cache))
    monkeypatch.setenv("PRIVROB_MANIFEST", str(made.path))
    monkeypatch.setenv("PRIVROB_OFFLINE", "1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    data_files._noticed.clear()
    data_fetch._unreachable.clear()
    return made


def make_tiny(kit):
    """The kit with a set of idx files, which may also come as a tgz or a deb; none of them is put anywhere."""
    payloads = digits(0)
    names = {f"package/data/{ROLES[role]}": data for role, data in payloads.items()}
    tgz = tar_bytes(names)
    archives = [
        {"name": "digits-*.tgz", "inside": "package/data", "hashes": [sha(tgz)]},
        {"name": "digits_*.deb", "inside": "package/data", "hashes": []},
    ]
    kit.add("tiny", kit.idx_form(payloads, archives=archives, by_hand=["type this"]))
    kit.payloads, kit.tgz, kit.names = payloads, tgz, names
    return kit


def make_pictures(kit):
    """The kit with a colour set in two forms: official batches, and copies as a zip of images, which is there."""
    rng = np.random.default_rng(0)
    shape, classes = (3, 5, 4), ["a", "b", "c"]
    batches, kit.pixels = {}, {}
    for base, count in (("data_batch_1", 6), ("data_batch_2", 6), ("test_batch", 6)):
        pixels = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        batches[base], kit.pixels[base] = batch_bytes(pixels, np.arange(count) % 3), pixels
    files = {}
    for split, count in (("train", 4), ("test", 2)):
        for i, name in enumerate(classes):
            for k in range(count):
                files[f"{split}/{name}/{k}.png"] = image_bytes((10 * i, k, 7))
    archive = zip_bytes(files)
    view = data_views.ZipView(kit.data / "copies.zip", "copies.zip")
    (kit.data / "copies.zip").write_bytes(archive)
    with view:
        digest = data_images.tree_digest(view, data_images.list_tree(view)[1])
    kit.add(
        "colour",
        {
            "variant": "original",
            "reader": "cifar",
            "loose": ["", "batches"],
            "archives": [{"name": "batches.tar.gz", "inside": "batches", "hashes": []}],
            "content": {base: md5(data) for base, data in batches.items()},
        },
        {
            "variant": "JPEG copies",
            "exact": False,
            "reader": "tree",
            "loose": ["copies"],
            "archives": [{"name": "copies.zip", "hashes": [sha(archive)]}],
            "content": {"tree": digest},
        },
        shape=shape,
    )
    kit.batches, kit.files, kit.archive = batches, files, archive
    return kit


def flip_bit(path):
    """One bit of the first image changes."""
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(bytes(data))
