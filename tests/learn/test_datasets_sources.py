"""Known sets in every form, and the places where they are looked for, in order."""

import errno
import gzip
import os
import pickle
import stat
import subprocess
import sys

import numpy as np
import pytest
from test_datasets_kit import (
    ROLES,
    SHAPE,
    deb_bytes,
    digits,
    flip_bit,
    idx_bytes,
    image_bytes,
    make_kit,
    make_pictures,
    make_tiny,
    md5,
    sha,
    tar_bytes,
    zip_bytes,
)

from privrob.learn import datasets
from privrob.learn.datasets import DataCorrupt, DataUnavailable
from privrob.learn.datasets import images as data_images


def unpacked(payload, axes):
    """The values of an idx payload."""
    sizes = [int.from_bytes(payload[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    return np.frombuffer(payload, np.uint8, offset=4 + 4 * axes).reshape(sizes)


@pytest.fixture
def kit(tmp_path, monkeypatch):
    return make_kit(tmp_path, monkeypatch)


@pytest.fixture
def tiny(kit):
    return make_tiny(kit)


@pytest.fixture
def pictures(kit):
    return make_pictures(kit)


# ------------------------------------------------------------------------------------------------------- idx forms


def test_idx_files_are_read_alike_from_a_folder_a_gzip_a_tgz_and_a_deb(tiny):
    prints = set()
    for form in ("plain", "packed", "folder", "tgz", "tgz of other bytes", "deb"):
        for old in sorted(tiny.data.rglob("*"), reverse=True):
            old.rmdir() if old.is_dir() else old.unlink()
        if form in ("plain", "packed"):
            tiny.put(tiny.payloads, packed=form == "packed")
        elif form == "folder":
            tiny.put(tiny.payloads, "digits")
        elif form == "deb":
            (tiny.data / "digits_1.deb").write_bytes(deb_bytes(tiny.names))
        else:
            other = tar_bytes(dict(reversed(tiny.names.items())), "w:xz")
            (tiny.data / "digits-1.tgz").write_bytes(tiny.tgz if form == "tgz" else other)
        data = datasets.load("tiny")
        assert np.array_equal(data.train_images[:, 0].numpy(), unpacked(tiny.payloads["train_images"], 3))
        assert np.array_equal(data.test_labels.numpy(), unpacked(tiny.payloads["test_labels"], 1))
        assert data.provenance.source == "PRIVROB_DATA folder"
        assert (data.provenance.variant, data.provenance.exact) == ("original", True)
        prints.add(data.provenance.sha256)
    assert len(prints) == 1


def test_the_data_folder_comes_before_the_cache(tiny, monkeypatch):
    tiny.put(tiny.payloads, where=tiny.cache / "tiny")
    assert datasets.load("tiny").provenance.source == "cache"
    tiny.put(tiny.payloads)
    assert datasets.load("tiny").provenance.source == "PRIVROB_DATA folder"
    monkeypatch.delenv("PRIVROB_DATA")
    assert datasets.load("tiny").provenance.source == "cache"


def test_two_sets_with_the_same_file_names_are_told_apart(tiny):
    other = digits(9)
    tiny.add("other", tiny.idx_form(other))
    tiny.put(other)  # straight in PRIVROB_DATA: whose they are is seen from their hashes
    assert datasets.available("other")
    assert datasets.available("tiny") is None
    tiny.put(tiny.payloads, "digits")
    assert datasets.load("tiny").provenance.label == "TINY"
    for base in ROLES.values():
        (tiny.data / base).unlink()
    with pytest.raises(DataCorrupt, match=r"PRIVROB_DATA/digits.*it is the file of TINY's train images"):
        datasets.load("other")  # a folder of that name is taken at its word


def test_letters_counted_from_one_and_stored_transposed_come_out_right(kit):
    payloads = digits(1)
    upright = unpacked(payloads["train_images"], 3)
    stored = dict(payloads)
    for part in ("train", "test"):
        stored[f"{part}_images"] = idx_bytes(
            np.ascontiguousarray(unpacked(payloads[f"{part}_images"], 3).transpose(0, 2, 1))
        )
        stored[f"{part}_labels"] = idx_bytes(unpacked(payloads[f"{part}_labels"], 1) + np.uint8(1))
    archive = zip_bytes({f"gzip/{ROLES[role]}.gz": gzip.compress(data) for role, data in stored.items()})
    form = kit.idx_form({}, first_label=1, transposed=True, content={"archive": md5(archive)})
    form["archives"] = [{"name": "gzip.zip", "inside": "gzip", "hashes": [md5(archive)]}]
    kit.add("letters", form)
    (kit.data / "gzip.zip").write_bytes(archive)
    data = datasets.load("letters")
    assert np.array_equal(data.train_images[:, 0].numpy(), upright)
    assert np.array_equal(data.train_labels.numpy(), unpacked(payloads["train_labels"], 1))
    assert data.provenance.exact
    assert datasets.fingerprint("letters") == data.provenance.sha256

    (kit.data / "gzip.zip").write_bytes(archive[:-40])  # its inside has no hash of its own: nothing of it is used
    with pytest.raises(DataCorrupt, match=r"gzip.zip must have md5:.*, got md5:"):
        datasets.load("letters")
    (kit.data / "gzip.zip").unlink()
    kit.put(stored, packed=True)  # loose files without a known hash: counts are all there is, and it says so
    loose = datasets.load("letters")
    assert (loose.provenance.variant, loose.provenance.exact) == ("original, checked by counts only", False)
    assert "checked by counts only" in loose.provenance.label
    assert datasets.fingerprint("letters") == loose.provenance.sha256 != data.provenance.sha256


def test_one_pair_of_files_is_split_by_its_folds(kit):
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(3, dtype=np.uint8), 6)
    parts = {"images": rng.integers(0, 256, (18, *SHAPE[1:]), dtype=np.uint8), "labels": labels}
    parts["folds"] = np.repeat(np.arange(3, dtype=np.uint8), 6)
    payloads = {role: idx_bytes(array) for role, array in parts.items()}
    form = {
        "variant": "original",
        "reader": "idx",
        "test_fold": 2,
        "loose": [""],
        "files": {r: f"x-{r}" for r in parts},
    }
    kit.add("folded", form | {"content": {role: sha(data) for role, data in payloads.items()}})
    for role, data in payloads.items():
        (kit.data / f"x-{role}.gz").write_bytes(gzip.compress(data))
    data = datasets.load("folded")
    assert np.array_equal(data.train_images[:, 0].numpy(), parts["images"][:12])
    assert np.array_equal(data.test_images[:, 0].numpy(), parts["images"][12:])


def test_a_table_of_digits_gives_its_last_rows_of_each_class_to_the_test(kit):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 256, (18, 20)), np.repeat([0, 1, 2], 6)])
    text = "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
    form = {"variant": "few", "exact": False, "reader": "table", "test_per_class": 2, "loose": [""]}
    kit.add("table", form | {"files": {"table": "t.csv.gz"}, "content": {"table": sha(text)}}, kind="stand_in")
    (kit.data / "t.csv.gz").write_bytes(gzip.compress(text))
    data = datasets.load("table")
    assert np.array_equal(data.test_images.flatten(1).numpy(), rows[[4, 5, 10, 11, 16, 17], :-1])
    assert (data.provenance.kind, data.provenance.stand_in, data.provenance.exact) == ("stand_in", True, False)
    assert data.provenance.label == "TABLE (a stand-in)"


# ------------------------------------------------------------------------------------------------- CIFAR and trees


def test_official_batches_are_read_from_the_archive_and_unpacked(pictures):
    packed = tar_bytes({f"batches/{base}": data for base, data in pictures.batches.items()})
    (pictures.data / "batches.tar.gz").write_bytes(packed)
    one = datasets.load("colour")
    assert one.provenance.label == "COLOUR"
    assert np.array_equal(one.train_images[6:].numpy(), pictures.pixels["data_batch_2"])
    assert np.array_equal(one.test_images.numpy(), pictures.pixels["test_batch"])
    (pictures.data / "batches.tar.gz").unlink()
    (pictures.data / "batches").mkdir()
    for base, data in pictures.batches.items():
        (pictures.data / "batches" / base).write_bytes(data)
    assert datasets.load("colour").provenance.sha256 == one.provenance.sha256


def test_a_batch_is_not_unpickled_before_its_hash_was_right_and_then_only_arrays(pictures, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made by a pickle"),))

    evil = pickle.dumps(Evil(), protocol=2)
    (pictures.data / "batches").mkdir()
    for base, data in pictures.batches.items():
        (pictures.data / "batches" / base).write_bytes(evil if base == "data_batch_2" else data)
    with pytest.raises(DataCorrupt, match=r"batches/data_batch_2 must have md5:.*, got md5:"):
        datasets.load("colour")
    first, second = pictures.sets["colour"]["forms"]
    first["content"]["data_batch_2"] = md5(evil)  # even with the right hash
    pictures.add("colour", first, second, shape=(3, 5, 4))
    with pytest.raises(pickle.UnpicklingError, match="has no place in a data file"):
        datasets.load("colour")
    assert not (tmp_path / "made by a pickle").exists()


def test_copies_are_decoded_once_named_as_copies_and_kept(pictures, monkeypatch):
    data = datasets.load("colour")
    assert data.train_images[5].tolist() == np.broadcast_to(np.array([10, 1, 7])[:, None, None], (3, 5, 4)).tolist()
    assert (data.provenance.variant, data.provenance.exact, data.provenance.stand_in) == ("JPEG copies", False, False)
    assert data.provenance.label == "COLOUR (JPEG copies)"

    def never(*_, **__):
        raise AssertionError("decoded twice")

    monkeypatch.setattr(data_images, "decode_tree", never)
    again = datasets.load("colour")
    assert again.train_images.equal(data.train_images)
    assert again.provenance == data.provenance
    (pictures.data / "copies.zip").unlink()  # the decoded copy alone still serves
    assert datasets.load("colour").provenance.source == "cache"
    assert datasets.fingerprint("colour") == data.provenance.sha256


def test_unpacked_copies_are_the_same_set_and_a_changed_picture_is_noticed(pictures):
    packed = datasets.load("colour").provenance
    (pictures.data / "copies.zip").unlink()
    for name, data in pictures.files.items():
        path = pictures.data / "copies" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert datasets.load("colour").provenance == packed
    (pictures.data / "copies" / "test" / "b" / "1.png").write_bytes(image_bytes((0, 0, 0)))
    with pytest.raises(DataCorrupt, match=r"PRIVROB_DATA/copies must have tree hash sha256:.* of 18 images"):
        datasets.load("colour")


def test_one_form_can_be_asked_for(pictures):
    with pytest.raises(DataUnavailable):
        datasets.load("colour", variant="original")
    assert datasets.available("colour", variant="JPEG copies") == "PRIVROB_DATA folder: COLOUR (JPEG copies)"


@pytest.mark.parametrize("harm", ["cut", "changed"])
def test_a_damaged_decoded_copy_is_made_again(pictures, capsys, harm):
    data = datasets.load("colour")
    (kept,) = (pictures.cache / "decoded").iterdir()
    whole = kept.read_bytes()
    middle = len(whole) // 2
    kept.write_bytes(whole[:middle] if harm == "cut" else whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])
    again = datasets.load("colour")
    assert again.train_images.equal(data.train_images)
    assert "decoding again" in capsys.readouterr().err
    assert kept.stat().st_size == len(whole)


def official_layout(kit, *, num_val=2):
    """Tiny ImageNet's own layout: images/ below each class, annotations for val, test without labels."""
    files, notes, n = {"set-200/wnids.txt": b"n3\nn1\nn2\nn0\n"}, [], 0
    for i, one in enumerate(["n0", "n1", "n2", "n3"]):
        for k in range(4):
            files[f"set-200/train/{one}/images/{one}_{k}.JPEG"] = image_bytes((50 * i, 9 * k, 0), kind="JPEG")
        for _ in range(num_val):
            files[f"set-200/val/images/val_{n}.JPEG"] = image_bytes((50 * i, 9 * n, 250), kind="JPEG")
            notes.append(f"val_{n}.JPEG\t{one}\t0\t0\t1\t1")
            n += 1
    files["set-200/val/val_annotations.txt"] = "\n".join(notes).encode()
    files["set-200/test/images/test_0.JPEG"] = image_bytes((1, 2, 3), kind="JPEG")
    archive = zip_bytes(files)
    form = {"variant": "original", "reader": "tree", "max_classes": 4, "counts_suffice": True, "loose": ["set-200"]}
    form |= {
        "archives": [{"name": "set-200.zip", "hashes": [md5(archive)]}],
        "content": {"tree": "sha256:of the first two"},
    }
    kit.add("net", form, shape=(3, 5, 4), classes=["n3", "n1"], official_classes=4)
    return files, archive


def test_the_official_layout_of_tiny_imagenet_gives_labels_in_the_order_of_the_class_list(kit):
    _, archive = official_layout(kit)
    (kit.data / "set-200.zip").write_bytes(archive)
    data = datasets.load("net")
    assert data.classes == ("n3", "n1")
    red = data.train_images[:, 0].float().mean((1, 2))
    assert (red[data.train_labels == 0] > 120).all()  # n3 was painted with 150
    assert (red[data.train_labels == 1] < 80).all()  # n1 with 50
    red = data.test_images[:, 0].float().mean((1, 2))
    assert (red[data.test_labels == 0] > 120).all()
    assert data.provenance.label == "NET (first 2 of 4 classes)"
    every = datasets.load("net", num_classes=4)
    assert every.classes == ("n3", "n1", "n2", "n0")
    assert every.provenance.label == "NET"
    assert datasets.fingerprint("net", num_classes=4) == every.provenance.sha256 != data.provenance.sha256


def test_the_unpacked_official_layout_is_taken_by_its_counts_and_says_so(kit):
    files, _ = official_layout(kit)
    for name, data in files.items():
        path = kit.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    data = datasets.load("net")
    assert data.provenance.variant == "original, checked by counts only"
    assert datasets.fingerprint("net") == data.provenance.sha256
    (kit.data / "set-200/val/images/val_7.JPEG").unlink()
    with pytest.raises(DataCorrupt, match="the test part must have 4 records, 2 of them in class 'n3', got 3 and 1"):
        datasets.load("net")


# --------------------------------------------------------------------------------------------- places and settings


def test_no_data_and_no_network_is_one_error_with_every_way_out(tiny):
    with pytest.raises(DataUnavailable) as caught:
        datasets.load("tiny")
    text = str(caught.value)
    for part in (
        "TINY is not on this machine",
        "PRIVROB_DATA",
        "type this",
        "digits-*.tgz",
        sha(tiny.tgz),
        "train-images-idx3-ubyte",
    ):
        assert part in text


def test_a_data_folder_that_does_not_exist_is_refused(tiny, monkeypatch):
    monkeypatch.setenv("PRIVROB_DATA", str(tiny.data / "typo"))
    with pytest.raises(DataUnavailable, match="PRIVROB_DATA must name a folder that exists, got"):
        datasets.load("tiny")


def test_a_missing_or_odd_manifest_is_one_clear_error(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVROB_MANIFEST", str(tmp_path / "gone" / "manifest.toml"))
    with pytest.raises(DataUnavailable, match=r"got none at gone/manifest.toml; set PRIVROB_MANIFEST"):
        datasets.load("tiny")
    for text, words in (("schema = [", "must be TOML"), ("schema = 2", "must say schema = 1")):
        (tmp_path / "odd.toml").write_text(text)
        with pytest.raises(DataUnavailable, match=words):
            datasets.load("tiny", manifest=tmp_path / "odd.toml")


def test_a_stand_in_must_be_allowed_and_is_named(tiny):
    other = digits(4)
    tiny.add("other", tiny.idx_form(other))
    tiny.add("wanted", tiny.idx_form(digits(5), loose=["wanted"]), stand_in="other")
    tiny.put(other)
    with pytest.raises(DataUnavailable, match="allow_stand_in=True to go on with OTHER"):
        datasets.load("wanted")
    assert datasets.available("wanted") is None
    data = datasets.load("wanted", allow_stand_in=True)
    seen = data.provenance
    assert (seen.name, seen.kind, seen.stand_in, seen.exact) == ("wanted", "stand_in", True, False)
    assert seen.label == "OTHER (standing in for WANTED)"
    assert (
        seen.sha256 == datasets.fingerprint("wanted", allow_stand_in=True) == datasets.load("other").provenance.sha256
    )
    assert datasets.available("wanted", allow_stand_in=True).endswith("standing in for WANTED")
    tiny.put(digits(5), "wanted")  # the real one comes first
    assert not datasets.load("wanted", allow_stand_in=True).provenance.stand_in


def test_an_unwritable_cache_costs_time_and_a_notice_only(pictures, monkeypatch, capsys):
    blocked = pictures.data.parent / "a file"
    blocked.write_text("")
    monkeypatch.setenv("PRIVROB_CACHE", str(blocked / "below"))
    for _ in range(2):
        assert datasets.load("colour").provenance.num_train == 12
    assert capsys.readouterr().err.count("the cache cannot be written") == 1


def test_a_full_disk_costs_time_and_a_notice_only_and_leaves_nothing(pictures, monkeypatch, capsys):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert datasets.load("colour").provenance.num_train == 12
    assert "No space left on device" in capsys.readouterr().err
    assert list((pictures.cache / "decoded").iterdir()) == []


def test_what_a_killed_run_left_half_written_is_removed_by_a_later_one(pictures):
    datasets.load("colour")
    (kept,) = (pictures.cache / "decoded").iterdir()
    old, young = (kept.with_name(f".{kept.name}.{word}.part") for word in ("old", "young"))
    for left in (old, young):
        left.write_bytes(b"half")
    os.utime(old, (1, 1))
    kept.unlink()
    datasets.load("colour")
    assert not old.exists()
    assert young.exists()  # another run may be writing it now


def test_a_read_only_home_and_a_plain_locale_work(pictures, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(stat.S_IRUSR | stat.S_IXUSR)
    left_out = ("HOME", "PRIVROB_CACHE", "XDG_CACHE_HOME", "LANG", "PYTHONUTF8")
    place = {k: v for k, v in os.environ.items() if k not in left_out} | {"HOME": str(home), "LC_ALL": "C"}
    code = "from privrob.learn import datasets; print(datasets.load('colour'))"
    done = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True, check=False)
    home.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert "COLOUR (JPEG copies): 12 training" in done.stdout


def test_a_bad_file_in_the_cache_is_said_when_offline(tiny, monkeypatch):
    monkeypatch.delenv("PRIVROB_DATA")
    folder = tiny.put(tiny.payloads, where=tiny.cache / "tiny")
    flip_bit(folder / ROLES["train_images"])
    with pytest.raises(DataCorrupt, match="cache/tiny/train-images-idx3-ubyte must have"):
        datasets.load("tiny")
    (folder / ROLES["train_images"]).unlink()  # an unfinished fetch is no error: it is simply not there yet
    with pytest.raises(DataUnavailable):
        datasets.load("tiny")


def test_loading_writes_only_into_the_cache(pictures):
    before = {p: p.stat().st_mtime_ns for p in pictures.data.rglob("*")}
    datasets.load("colour")
    assert {p: p.stat().st_mtime_ns for p in pictures.data.rglob("*")} == before
    assert [p.suffix for p in (pictures.cache / "decoded").iterdir()] == [".npz"]
