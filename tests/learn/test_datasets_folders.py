"""Anyone's own images: folders and zips of ``<split>/<class>/*.png|jpg``."""

import os

import numpy as np
import pytest
import torch
from test_datasets_kit import image_bytes, make_kit, zip_bytes

from privrob.learn import datasets
from privrob.learn.datasets import DataCorrupt, DataUnavailable
from privrob.learn.datasets import images as data_images


@pytest.fixture
def kit(tmp_path, monkeypatch):
    made = make_kit(tmp_path, monkeypatch)
    made.add("none")
    return made


def pets(num_test=2):
    """Three classes, two with a space or another alphabet in their name; red says the class, green the record."""
    files = {}
    for split, count in (("train", 4), ("test", num_test)):
        for i, name in enumerate(["big cat", "dog", "été"]):
            for k in range(count):
                files[f"{split}/{name}/{k}.png"] = image_bytes((80 * i, k, 3))
    return files


def unpack(files, folder):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_a_folder_a_zip_and_a_zip_around_a_folder_give_the_same_set(kit):
    unpack(pets(), kit.data / "pets")
    (kit.data / "zipped.zip").write_bytes(zip_bytes(pets()))
    (kit.data / "around.zip").write_bytes(
        zip_bytes({f"my pets/{n}": d for n, d in pets().items()} | {"__MACOSX/x.png": b""})
    )
    sets = [datasets.load(f"folder:{name}") for name in ("pets", "zipped", "zipped.zip", "around")]
    for data in sets:
        assert data.classes == ("big cat", "dog", "été")
        assert data.train_images.shape == (12, 3, 5, 4)
        assert torch.equal(data.train_images[:, 0, 0, 0], (80 * data.train_labels).to(torch.uint8))
        assert data.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert len({data.provenance.sha256 for data in sets}) == 1
    seen = sets[0].provenance
    assert (seen.kind, seen.source, seen.label, seen.name) == ("real", "PRIVROB_DATA folder", "pets", "folder:pets")


def test_a_path_that_is_absolute_but_inside_is_accepted_and_one_outside_is_not(kit):
    unpack(pets(), kit.data / "a" / "pets")
    inside = datasets.load(f"folder:{kit.data / 'a' / 'pets'}")
    assert inside.provenance.sha256 == datasets.fingerprint("folder:a/pets")
    assert str(kit.data) not in str(inside)
    for outside in ("../elsewhere", str(kit.data.parent), "", "."):
        with pytest.raises(ValueError, match="name must be folder:<path below PRIVROB_DATA>"):
            datasets.load(f"folder:{outside}")
    with pytest.raises(DataUnavailable, match=r"PRIVROB_DATA must hold gone/ or gone.zip, got neither; put the images"):
        datasets.load("folder:gone")
    assert datasets.available("folder:gone") is None


def test_without_a_data_folder_the_message_says_to_set_one(kit, monkeypatch):
    monkeypatch.delenv("PRIVROB_DATA")
    with pytest.raises(DataUnavailable, match="PRIVROB_DATA must name the folder that holds 'pets'"):
        datasets.load("folder:pets")


def test_the_fingerprint_follows_every_change_but_not_the_decoding(kit):
    unpack(pets(), kit.data / "pets")
    first = datasets.fingerprint("folder:pets")
    assert first == datasets.load("folder:pets").provenance.sha256
    assert datasets.fingerprint("folder:pets", channels=1) != first
    path = kit.data / "pets/train/dog/0.png"
    path.write_bytes(image_bytes((80, 9, 3)))
    os.utime(path, ns=(1, 1))
    second = datasets.load("folder:pets")
    assert second.provenance.sha256 == datasets.fingerprint("folder:pets") != first
    assert (second.train_images[:, 1, 0, 0] == 9).any()
    path.rename(path.with_name("new.png"))
    assert datasets.fingerprint("folder:pets") not in (first, second.provenance.sha256)


def test_images_are_decoded_once(kit, monkeypatch):
    unpack(pets(), kit.data / "pets")
    first = datasets.load("folder:pets")
    monkeypatch.setattr(data_images, "decode_tree", None)
    assert datasets.load("folder:pets").train_images.equal(first.train_images)


def test_numbers_as_class_names_are_ordered_as_numbers(kit):
    files = {f"train/{name}/x.png": image_bytes((name, 0, 0)) for name in (10, 9, 0, 100)}
    unpack(files, kit.data / "numbers")
    data = datasets.load("folder:numbers")
    assert data.classes == ("0", "9", "10", "100")
    assert data.train_images[:, 0, 0, 0].tolist() == [0, 10, 100, 9]  # records stay in the order of their names
    assert data.train_labels.tolist() == [0, 2, 3, 1]


def test_a_class_list_decides_the_order_and_must_fit(kit):
    unpack(pets() | {"classes.txt": "dog\nété\nbig cat\n".encode()}, kit.data / "pets")
    data = datasets.load("folder:pets")
    assert data.classes == ("dog", "été", "big cat")
    assert torch.equal(data.train_images[:, 0, 0, 0].int(), torch.tensor([80, 160, 0])[data.train_labels].int())
    (kit.data / "pets/classes.txt").write_text("dog\nété\n", encoding="utf-8")
    with pytest.raises(DataCorrupt, match=r"classes.txt must name each training class once, differs in big cat"):
        datasets.load("folder:pets")


def test_a_set_without_a_test_split_has_an_empty_one(kit, capsys):
    unpack(pets(num_test=0), kit.data / "pets")
    data = datasets.load("folder:pets")
    assert data.test_images.shape == (0, 3, 5, 4)
    assert data.test_labels.shape == (0,)
    assert data.tensors().test_images.shape == (0, 3, 5, 4)
    assert data.provenance.num_test == 0
    assert "has no test split" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["val", "valid", "validation", "test"])
def test_the_second_split_may_be_called_test_or_validation(kit, split):
    unpack({n.replace("test/", f"{split}/"): d for n, d in pets().items()}, kit.data / "pets")
    assert datasets.load("folder:pets").provenance.num_test == 6


def test_greyscale_stays_one_channel_unless_a_colour_image_is_among_them(kit):
    grey = {f"train/{c}/{k}.jpg": image_bytes(40 * k, mode="L", kind="JPEG") for c in "ab" for k in range(3)}
    unpack(grey, kit.data / "grey")
    assert datasets.load("folder:grey").shape == (1, 5, 4)
    assert datasets.load("folder:grey", channels=3).shape == (3, 5, 4)
    unpack(grey | {"train/b/colour.png": image_bytes((1, 2, 3))}, kit.data / "mixed")
    data = datasets.load("folder:mixed")
    assert data.shape == (3, 5, 4)
    first = data.train_images[1]  # k = 1 in class a, greyscale: the same in every channel
    assert torch.equal(first[0], first[2])
    assert datasets.load("folder:mixed", channels=1).shape == (1, 5, 4)


def test_sizes_must_agree_or_be_asked_for(kit):
    unpack(pets() | {"train/dog/wide.png": image_bytes((80, 0, 0), size=(9, 6))}, kit.data / "pets")
    with pytest.raises(
        DataCorrupt, match=r"dog/wide.png must be 5x4 like the first image, got 6x9; pass image_size=\(5, 4\)"
    ):
        datasets.load("folder:pets")
    data = datasets.load("folder:pets", image_size=(7, 6))
    assert data.shape == (3, 7, 6)
    assert torch.equal(data.train_images[:, 0, 3, 3].int(), (80 * data.train_labels).int())
    assert datasets.fingerprint("folder:pets", image_size=(7, 6)) == data.provenance.sha256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"train/dog/0.png": b"<html>x</html>"},
            r"train/dog/0.png must be a whole PNG, JPEG or BMP image, .* web page",
        ),
        ({"train/dog/0.png": b""}, "it is empty"),
        ({"train/dog/0.png": image_bytes((1, 2, 3), size=(40, 40))[:60]}, "train/dog/0.png must be a whole PNG"),
        ({"test/bird/0.png": image_bytes((1, 2, 3))}, "every test class must be a training class, got 'bird' besides"),
        ({"train/dog.png": image_bytes((1, 2, 3))}, r"images must lie in train/<class>/, got 1 without a class folder"),
        ({"test/images/1.png": image_bytes((1, 2, 3))}, r"images must lie in test/<class>/, got 1 without"),
        (
            {"train/dog/9.gif": b"GIF89a", "train/dog/8.GIF": b"GIF89a", "test/fox/0.webp": b"RIFF"},
            r"must hold images as .png, .jpg, .jpeg, .bmp, got 2 .gif, 1 .webp, such as test/fox/0.webp; convert them",
        ),
        ({"train/fox/0.tif": b"II*"}, r"got 1 .tif, such as train/fox/0.tif"),
        ({"train/fox/0.npy": b"x"}, r"each class folder must hold images \(.png, .*\), got none in train/fox/; put"),
        ({"train/fox/Thumbs.db": b"x"}, r"got none in train/fox/"),
        (
            {"training/dog/0.png": image_bytes((1, 2, 3))},
            r"must hold one training split, got train/ and training/; join",
        ),
        ({"classes.txt": b"big cat\n\xe9t\xe9\ndog"}, r"classes.txt must be UTF-8, got other bytes in line 2; save it"),
        ({"train/dog/deep.png": image_bytes(7, mode="I;16")}, "must have 8 bits a channel, got mode I;16"),
    ],
)
def test_what_does_not_fit_is_named(kit, changes, words):
    unpack(pets() | changes, kit.data / "pets")
    with pytest.raises(DataCorrupt, match=words):
        datasets.load("folder:pets")


@pytest.mark.parametrize("wrapper", ["", "around/"])
def test_a_set_of_images_that_are_not_read_is_refused_by_their_type(kit, wrapper):
    files = {f"{wrapper}train/{name}/{k}.webp": b"RIFF" for name in "ab" for k in range(3)}
    (kit.data / "pets.zip").write_bytes(zip_bytes(files))
    with pytest.raises(DataCorrupt, match=r"got 6 .webp, such as train/a/0.webp; convert them to PNG"):
        datasets.load("folder:pets")


def test_an_empty_class_folder_is_refused(kit):
    unpack(pets(), kit.data / "pets")
    (kit.data / "pets/train/fox").mkdir()
    with pytest.raises(DataCorrupt, match=r"got none in train/fox/; put images there, or move the folder elsewhere"):
        datasets.load("folder:pets")


def test_other_files_and_folders_beside_the_splits_are_told_with_their_number(kit, capsys):
    extra = {"train/dog/a.npy": b"x", "test/dog/b.npy": b"x", "train/dog/mask": b"x"}
    quiet = {"train/dog/notes.txt": b"x", "train/Thumbs.db": b"x", "README": b"x", "train/dog/.DS_Store": b"x"}
    strays = {f"unlabelled/{k}.png": image_bytes((1, 2, 3)) for k in range(3)}
    strays["val/dog/0.png"] = image_bytes((1, 2, 3))
    unpack(pets() | extra | quiet | strays, kit.data / "told")
    assert datasets.load("folder:told").provenance.num_train == 12
    told = capsys.readouterr().err
    assert "told: left out as no images: 2 .npy, 1 without an ending, such as test/dog/b.npy\n" in told
    assert "told: test/ is the test split, and val/ is not read\n" in told
    assert "told: 3 images in no split are left out, such as unlabelled/0.png\n" in told
    assert "txt" not in told


@pytest.mark.parametrize("channels", [None, 1])
def test_an_image_of_too_many_pixels_is_refused(kit, monkeypatch, channels):
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    unpack(pets() | {"train/dog/huge.png": image_bytes(1, size=(9, 6), mode="1")}, kit.data / "pets")
    with pytest.raises(DataCorrupt, match=r"train/dog/huge.png must have at most 40 pixels, got more; make it smaller"):
        datasets.load("folder:pets", channels=channels)


@pytest.mark.parametrize("name", [b"train/dog/\xff.png", b"train/d\xffg/0.png"])
def test_a_name_that_is_not_utf8_is_refused(kit, name):
    unpack(pets(), kit.data / "pets")
    path = os.path.join(os.fsencode(kit.data / "pets"), name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(image_bytes((1, 2, 3)))
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(DataCorrupt, match=r"pets/train/d.*\\xff.*png must have a name in UTF-8; rename it"):
        datasets.load("folder:pets")


def test_a_folder_without_a_training_split_or_with_one_class_is_refused(kit):
    unpack({"dog/0.png": image_bytes((1, 2, 3))}, kit.data / "flat")
    with pytest.raises(DataCorrupt, match=r"must hold images as train/<class>/<file>"):
        datasets.load("folder:flat")
    unpack({f"train/dog/{k}.png": image_bytes((k, 2, 3)) for k in range(3)}, kit.data / "one")
    with pytest.raises(DataCorrupt, match="must hold at least 2 classes, got only 'dog'"):
        datasets.load("folder:one")


def test_a_validation_split_whose_labels_are_lost_is_refused_not_made_one_class(kit):
    files = {n: d for n, d in pets().items() if n.startswith("train")}
    unpack(files | {f"val/images/val_{k}.png": image_bytes((k, 0, 0)) for k in range(3)}, kit.data / "pets")
    with pytest.raises(DataCorrupt, match=r"got 3 without a class folder, such as val/images/val_0.png"):
        datasets.load("folder:pets")
    notes = "".join(f"val_{k}.png\t{name}\t0\n" for k, name in enumerate(["été", "big cat", "dog"]))
    (kit.data / "pets/val/val_annotations.txt").write_text(notes, encoding="utf-8")
    data = datasets.load("folder:pets")
    labels = dict(zip(data.test_images[:, 0, 0, 0].tolist(), data.test_labels.tolist()))
    assert labels == {0: 2, 1: 0, 2: 1}


def test_a_dangling_link_among_the_images_is_named(kit):
    unpack(pets(), kit.data / "pets")
    (kit.data / "pets/train/dog/5.png").symlink_to("gone.png")
    with pytest.raises(DataCorrupt, match=r"train/dog/5.png must be a file, got a link to gone.png"):
        datasets.load("folder:pets")


def test_hidden_files_and_other_files_are_left_out_and_linked_folders_followed(kit):
    unpack(pets(), kit.data / "store")
    (kit.data / "pets").symlink_to("store")
    for extra in ("train/dog/.hidden.png", "train/dog/notes.txt", ".cache/train/x/0.png", "README.md"):
        unpack({extra: b"?"}, kit.data / "store")
    assert datasets.load("folder:pets").provenance.num_train == 12


def test_asking_for_more_classes_than_there_are_is_refused(kit):
    unpack(pets(), kit.data / "pets")
    assert datasets.load("folder:pets", num_classes=2).classes == ("big cat", "dog")
    with pytest.raises(ValueError, match=r"num_classes must be an integer in \[2, 3\], got num_classes=4"):
        datasets.load("folder:pets", num_classes=4)


def test_decoding_gives_the_pixels_that_were_written(kit):
    rng = np.random.default_rng(0)
    from PIL import Image

    pixels = rng.integers(0, 256, (2, 6, 5, 3), dtype=np.uint8)
    for k, name in enumerate("ab"):
        path = kit.data / "exact" / "train" / name / "0.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels[k]).save(path)
    data = datasets.load("folder:exact")
    assert np.array_equal(data.train_images.numpy(), pixels.transpose(0, 3, 1, 2))
