"""Every way in which a file can be wrong: each is named, with what was expected and found, and the way out."""

import gzip

import numpy as np
import pytest
from test_datasets_kit import ROLES, deb_bytes, digits, flip_bit, idx_bytes, make_kit, make_pictures, make_tiny

from privrob.learn import datasets
from privrob.learn.datasets import DataCorrupt


@pytest.fixture
def kit(tmp_path, monkeypatch):
    return make_kit(tmp_path, monkeypatch)


@pytest.fixture
def tiny(kit):
    return make_tiny(kit)


@pytest.fixture
def pictures(kit):
    return make_pictures(kit)


def harm_html(tiny, path):
    path.write_bytes(b"\n<!DOCTYPE html><html>404</html>")


def harm_truncated(tiny, path):
    path.write_bytes(path.read_bytes()[:-7])


def harm_empty(tiny, path):
    path.write_bytes(b"")


def harm_swapped(tiny, path):
    path.write_bytes(tiny.payloads["test_images"])


def harm_bit(tiny, path):
    flip_bit(path)


def harm_dangling(tiny, path):
    path.unlink()
    path.symlink_to("gone-away")


def harm_pointer(tiny, path):
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def harm_missing(tiny, path):
    path.unlink()


def harm_unpacked_name(tiny, path):
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (harm_html, r"must have sha256:\w+, got sha256:\w+ \(32 bytes\): it is a web page"),
        (harm_truncated, "must hold 240 bytes of values for its sizes \\(12, 5, 4\\), got 233: it is truncated"),
        (harm_empty, "it is empty"),
        (harm_swapped, "it is the file of TINY's test images"),
        (harm_bit, "must have sha256:.*, got sha256:"),
        (harm_dangling, "must be a file, got a link to gone-away, which does not exist"),
        (harm_pointer, "it is a Git LFS pointer"),
        (harm_missing, "must hold 4 files, got 3; missing: train-images-idx3-ubyte"),
        (harm_unpacked_name, "must have sha256:.*, got sha256:"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected_found_and_the_way_out(tiny, harm, words):
    folder = tiny.put(tiny.payloads, "digits")
    harm(tiny, folder / ROLES["train_images"])
    tiny.put(tiny.payloads, where=tiny.cache / "tiny")  # a good copy elsewhere does not hide it
    with pytest.raises(DataCorrupt, match=words) as caught:
        datasets.load("tiny")
    text = str(caught.value)
    assert "PRIVROB_DATA/digits" in text
    assert "ways to get TINY" in text
    assert "type this" in text
    assert str(tiny.data) not in text


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda data: data[:-9], "must be a whole gzip file, got one that is truncated"),
        (lambda data: b"<html>busy</html>", "must be a gzip file, got something else: it is a web page"),
        (lambda data: data[:40] + bytes([data[40] ^ 255]) + data[41:], "must be a gzip file"),
    ],
)
def test_a_damaged_gzip_is_named(tiny, harm, words):
    folder = tiny.put(tiny.payloads, packed=True)
    path = folder / (ROLES["train_images"] + ".gz")
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(DataCorrupt, match=words):
        datasets.load("tiny")


@pytest.mark.parametrize("name", ["digits-1.tgz", "digits_1.deb"])
@pytest.mark.parametrize("harm", [lambda data: data[: len(data) // 2], lambda data: b"<html></html>", lambda data: b""])
def test_a_damaged_archive_is_named(tiny, name, harm):
    (tiny.data / name).write_bytes(harm(tiny.tgz if name.endswith("tgz") else deb_bytes(tiny.names)))
    with pytest.raises(DataCorrupt, match=rf"PRIVROB_DATA/{name} must be a whole archive|PRIVROB_DATA/{name}"):
        datasets.load("tiny")


def test_a_dangling_archive_is_named(tiny):
    (tiny.data / "digits-1.tgz").symlink_to("gone")
    with pytest.raises(DataCorrupt, match=r"PRIVROB_DATA/digits-1.tgz must be a file, got a link"):
        datasets.load("tiny")


@pytest.mark.parametrize("harm", [lambda data: data[:-30], lambda data: b"<html></html>"])
def test_a_damaged_zip_is_named(pictures, harm):
    (pictures.data / "copies.zip").write_bytes(harm(pictures.archive))
    with pytest.raises(DataCorrupt, match=r"PRIVROB_DATA/copies.zip must be a whole zip file"):
        datasets.load("colour")


@pytest.mark.parametrize(
    ("role", "array", "words"),
    [
        (
            "train_images",
            np.zeros((12, 4, 5), np.uint8),
            r"training images must have shape \(1, 5, 4\), got \(1, 4, 5\)",
        ),
        ("train_images", np.zeros((12, 20), np.uint8), "must have 3 axes, got shape"),
        ("train_images", np.zeros((12, 5, 4), np.int32), "must hold uint8 values"),
        ("train_images", np.zeros((11, 5, 4), np.uint8), "as many images as labels, got 11 and 12"),
        ("train_labels", np.zeros(12, np.uint8), "must name at least 2 classes, got only 'a'"),
        ("train_labels", np.full(12, 3, np.uint8), r"training labels must lie in \[0, 2\], got 3 to 3"),
        ("test_labels", np.array([0, 0, 0, 1, 1, 2], np.uint8), "2 of them in class 'a', got 6 and 3"),
    ],
)
def test_arrays_that_do_not_fit_the_set_are_refused_even_with_the_right_hash(kit, role, array, words):
    payloads = digits(0) | {role: idx_bytes(array)}
    kit.add("tiny", kit.idx_form(payloads))
    kit.put(payloads)
    with pytest.raises(DataCorrupt, match=words):
        datasets.load("tiny")
