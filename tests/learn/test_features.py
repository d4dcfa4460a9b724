"""Features of single images: the scattering transform against its definition, the cache, the one that is released."""

import math

import numpy as np
import pytest
import torch
from scipy import fft as dft

from privrob.accounting.ledger import Ledger
from privrob.kinds import Streams
from privrob.learn import cells, datasets, features
from privrob.learn.corruption import Corruption
from privrob.learn.datasets import Tensors
from privrob.learn.scattering import Scattering

BETTER = ("dplearn", "Advanced topic: how to improve the trade-off")


def images(n, size=(12, 10), channels=1, seed=0):
    return torch.rand(n, channels, *size, generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------------------------------------- scattering


def gabor(size, width, frequency, angle, slant):
    """On the pixels, periodic: a Gaussian of integral 1 with axes along and across the angle, times its wave."""
    total = np.zeros(size, dtype=complex)
    for a in range(-4, 5):
        for b in range(-4, 5):
            y, x = np.mgrid[: size[0], : size[1]].astype(float)
            y, x = y + a * size[0], x + b * size[1]
            along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
            shape = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2)) * slant / (2 * math.pi * width**2)
            total += shape * np.exp(1j * frequency * along)
    return total


def convolved(image, kernel):
    return dft.ifft2(dft.fft2(image) * dft.fft2(kernel))


def scattered(image, *, scales, angles):
    """The definition, convolution by convolution; a modulus at scale j is kept every 2^j pixels, as it is used on."""
    step = 2**scales
    high, wide = (-(-(n + 2 * step) // step) * step for n in image.shape)
    rows, columns = (step, high - step - image.shape[0]), (step, wide - step - image.shape[1])
    padded = np.pad(image, (rows, columns), mode="reflect")

    def morlet(j, k, density):
        angle = math.pi * k / angles
        options = (0.8 * 2**j / 2**density, angle, 4 / angles)
        size = (high >> density, wide >> density)
        wave = gabor(size, options[0], 0.75 * math.pi / 2**j * 2**density, *options[1:])
        envelope = gabor(size, options[0], 0.0, *options[1:])
        return wave - envelope * wave.sum() / envelope.sum()

    def smooth(signal, density):
        width = 0.8 * 2 ** (scales - 1) / 2**density
        low = convolved(signal, gabor(signal.shape, width, 0.0, 0.0, 1.0)).real
        every = step >> density
        return low[::every, ::every][1 : 1 + -(-image.shape[0] // step), 1 : 1 + -(-image.shape[1] // step)]

    first, second = [], []
    for j in range(scales):
        moduli = [np.abs(convolved(padded, morlet(j, k, 0)))[:: 2**j, :: 2**j] for k in range(angles)]
        first += [smooth(u, j) for u in moduli]
        for later in range(j + 1, scales):
            hop = 2 ** (later - j)
            for u in moduli:
                deeper = [np.abs(convolved(u, morlet(later, k, j)))[::hop, ::hop] for k in range(angles)]
                second += [smooth(v, later) for v in deeper]
    return np.stack([smooth(padded, 0), *first, *second])


@pytest.mark.paper(*BETTER)
@pytest.mark.parametrize(("scales", "angles", "size"), [(1, 4, (7, 9)), (2, 3, (12, 10)), (3, 2, (16, 24))])
def test_scattering_is_its_definition(scales, angles, size):
    transform = Scattering(size, scales=scales, angles=angles)
    batch = images(3, size)
    got = transform(batch)
    assert got.shape == (3, 1, transform.paths, *(-(-n // 2**scales) for n in size))
    assert transform.paths == 1 + angles * scales + angles**2 * scales * (scales - 1) // 2
    for image, paths in zip(batch[:, 0].double().numpy(), got[:, 0].double().numpy(), strict=True):
        # float32 throughout: 1e-5 of the largest coefficient; wide filters also fold at the edges of their spectrum
        np.testing.assert_allclose(paths, scattered(image, scales=scales, angles=angles), atol=3e-5)


def test_scattering_of_a_flat_image_is_its_grey_and_nothing_else():
    got = Scattering((12, 12))(torch.full((1, 1, 12, 12), 0.25))[0, 0]
    torch.testing.assert_close(got[0], torch.full((3, 3), 0.25), rtol=1e-5, atol=0)
    assert float(got[1:].abs().max()) < 1e-6


def test_scattering_takes_each_image_and_channel_by_itself():
    batch, transform = images(40, (8, 8), channels=3), Scattering((8, 8), angles=4)
    whole = transform(batch)
    torch.testing.assert_close(whole[[37]], transform(batch[[37]]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole[:, [1]], transform(batch[:, [1]]), rtol=1e-5, atol=1e-6)
    assert Scattering((8, 8), angles=4, order=1).paths == 9
    assert transform.paths == 25


@pytest.mark.parametrize("change", [{"scales": 0}, {"angles": 0}, {"order": 3}, {"scales": 4}])
def test_scattering_refuses_what_it_cannot_do(change):
    with pytest.raises(ValueError, match=r"scales|angles|order|size must be at least"):
        Scattering((12, 12), **change)


# -------------------------------------------------------------------------------------------------- recipes and cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVROB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "_last", [])  # of tests before
    return tmp_path / "cache" / "features"


def tensors(n=20):
    batch = images(n, (16, 16))
    return Tensors(batch, torch.arange(n) % 3, batch[:5] * 0.5, torch.arange(5) % 3)


def applied(name, options=None, data=None):
    return features.apply(name, options, data or tensors(), streams=Streams(0))


def test_none_changes_nothing(cache):
    data = tensors()
    assert applied("none", data=data) is data
    assert not cache.exists()


@pytest.mark.paper(*BETTER)
def test_scattering_features_have_mean_0_and_variance_1_in_each_image(cache):
    got = applied("scattering", {"angles": 4, "groups": 5, "least_variance": 1e-12})
    assert got.train_images.shape == (20, 25, 4, 4)
    assert got.train_images.dtype == torch.float32
    groups = got.train_images.unflatten(1, (5, 5)).flatten(2)
    torch.testing.assert_close(groups.mean(2), torch.zeros(20, 5), rtol=0, atol=1e-3)  # half precision
    torch.testing.assert_close(groups.std(2, correction=0), torch.ones(20, 5), rtol=0, atol=2e-2)


def test_kept_features_are_used_again_and_damaged_ones_are_not(cache, monkeypatch):
    first = applied("scattering", {"angles": 2})
    (file,) = cache.iterdir()
    calls = []
    made = features.ScatteringFeatures.both
    monkeypatch.setattr(features.ScatteringFeatures, "both", lambda *a, **o: calls.append(1) or made(*a, **o))
    again = applied("scattering", {"angles": 2})
    assert not calls
    assert torch.equal(first.train_images, again.train_images)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert torch.equal(applied("scattering", {"angles": 2}).test_images, first.test_images)
    assert calls == [1]
    other = tensors()
    applied("scattering", {"angles": 2}, other._replace(test_images=other.test_images + 0.1))  # other data
    applied("scattering", {"angles": 3})  # another recipe
    assert len(list(cache.iterdir())) == 3


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PRIVROB_CACHE", str(tmp_path / "file"))
    assert applied("scattering", {"angles": 2}).train_images.shape[1] == 9
    assert "features cannot be kept" in capsys.readouterr().err


@pytest.mark.paper(*BETTER)
def test_pretrained_features_come_from_a_network_that_never_saw_the_records(cache):
    options = {"dataset": "synthetic", "num_records": 100, "num_steps": 3}
    small = datasets.load("synthetic", num_records=30, seed=5)
    one = features.apply("pretrained", options, small.tensors(), streams=Streams(0))
    assert one.train_images.shape[0] == 30
    assert one.train_images.shape[2:] == (1, 1)
    torch.testing.assert_close(one.train_images.mean(1), torch.zeros(30, 1, 1), rtol=0, atol=1e-3)
    fewer = small.tensors()
    fewer = fewer._replace(train_images=fewer.train_images[:10], train_labels=fewer.train_labels[:10])
    two = features.apply("pretrained", options, fewer, streams=Streams(1))
    torch.testing.assert_close(one.train_images[:10], two.train_images, rtol=0, atol=2e-3)
    other = features.apply("pretrained", {**options, "num_steps": 9}, fewer, streams=Streams(1))
    assert not torch.allclose(other.train_images, two.train_images, atol=1e-2)


def test_pretraining_asks_for_images_of_the_same_shape(cache):
    with pytest.raises(ValueError, match="must have images of shape"):
        applied("pretrained", {"dataset": "synthetic", "num_steps": 1})


@pytest.mark.paper("dplearn", "Training a NN on MNIST dataset")
def test_principal_components_without_noise_are_those_of_the_singular_vectors():
    data = tensors(60)
    got = applied("pca", {"components": 4, "noise_multiplier": 0.0}, data)
    flat = data.train_images.flatten(1).double().numpy()
    _, _, rows = np.linalg.svd(flat / np.linalg.norm(flat, axis=1, keepdims=True), full_matrices=False)
    np.testing.assert_allclose(np.abs(got.train_images[:, :, 0, 0].numpy()), np.abs(flat @ rows[:4].T), atol=1e-4)
    test = data.test_images.flatten(1).double().numpy()
    np.testing.assert_allclose(np.abs(got.test_images[:, :, 0, 0].numpy()), np.abs(test @ rows[:4].T), atol=1e-4)


@pytest.mark.paper("dplearn", "Training a NN on MNIST dataset")
def test_the_principal_components_noise_is_that_of_the_ledger(monkeypatch):
    seen = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: seen.append(matrix) or eigh(matrix))
    data = tensors(30)
    quiet, loud = ({"components": 3, "noise_multiplier": s} for s in (0.0, 2.0))
    applied("pca", quiet, data), applied("pca", loud, data)
    shorter = data._replace(train_images=data.train_images[1:], train_labels=data.train_labels[1:])
    applied("pca", quiet, shorter)
    noise = (seen[1] - seen[0]).triu()
    torch.testing.assert_close(seen[1], seen[1].t(), rtol=0, atol=1e-12)
    entries = noise[torch.ones_like(noise, dtype=bool).triu()]
    assert float(entries.std()) == pytest.approx(2.0, abs=5 * 2.0 / math.sqrt(2 * len(entries)))
    moved = (seen[0] - seen[2]).triu()  # one record less: at most 1 in l2 norm over the upper triangle
    assert 0.7 < float(moved.norm()) <= 1 + 1e-9
    ((guarantee, count),) = features.make("pca", loud).history()
    assert (guarantee.sample_rate, guarantee.mechanism.noise_multiplier, count) == (1.0, 2.0, 1)


# --------------------------------------------------------------------------------------------------------------- cells


CELL = {"dataset": "synthetic", "num_records": 80, "num_test": 20, "shape": (1, 16, 16), "model": "logistic"}
CELL |= {"sample_rate": 0.2, "num_steps": 4, "learning_rate": 0.1, "max_grad_norm": 1.0, "noise_multiplier": 1.0}


def test_a_cell_trains_on_features(cache):
    row = cells.train_cell({**CELL, "features": "scattering", "feature_options": {"angles": 2}}, streams=Streams(0))[-1]
    assert 0 <= row["test_accuracy"] <= 1


NOISY = {"corruption": "feature", "corruption_rate": 0.25, "corruption_std": 2.0}
ON_FEATURES = {"features": "scattering", "feature_options": {"angles": 2}}


@pytest.mark.paper("ptr", "B.1.1")
@pytest.mark.parametrize("name", ["scattering", "pca"])
@pytest.mark.parametrize("aside", [0, 20])
def test_images_are_corrupted_before_their_features_are_taken(name, aside, cache):
    options = {"scattering": {"angles": 2}, "pca": {"components": 7, "noise_multiplier": 0.0}}[name]
    cell = {**CELL, "features": name, "feature_options": options, "num_validation": aside}
    ready, got, _, _ = cells._prepared({**cell, **NOISY}, Streams(3))
    assert ready.corruption == "none"  # nothing more is added to the features
    clean, kept = datasets.load("synthetic", num_records=80, num_test=20, shape=(1, 16, 16)).tensors(), 80 - aside
    images, _, bad = Corruption("feature", 0.25, 2.0).records(
        clean.train_images[:kept], clean.train_labels[:kept], num_classes=10, streams=Streams(3)
    )
    assert int(bad.sum()) == kept // 4
    every = torch.cat([images, clean.train_images[kept:]])
    want = features.make(name, options).both(every, clean.test_images, streams=Streams(3))[0][:kept].float()
    torch.testing.assert_close(got.train_images, want, rtol=0, atol=1e-5)
    without = cells._prepared(cell, Streams(3))[1].train_images
    assert (got.train_images[bad] != without[bad]).flatten(1).any(1).all()
    if name == "scattering":  # a function of each image: the others keep theirs
        assert torch.equal(got.train_images[~bad], without[~bad])


@pytest.mark.paper("ptr", "B.1.1")
def test_only_the_corrupted_images_are_seen_again_and_both_are_kept(cache, monkeypatch):
    made, seen = features.ScatteringFeatures.both, []

    def both(self, train, test, *, streams):
        seen.append((len(train), len(test)))
        return made(self, train, test, streams=streams)

    monkeypatch.setattr(features.ScatteringFeatures, "both", both)
    first = cells.train_cell({**CELL, **ON_FEATURES, **NOISY}, streams=Streams(3))[-1]
    assert seen == [(80, 20), (20, 0)]
    again = cells.train_cell({**CELL, **ON_FEATURES, **NOISY}, streams=Streams(3))[-1]
    assert seen == [(80, 20), (20, 0)]
    assert again == first
    cells.train_cell({**CELL, **ON_FEATURES, **NOISY}, streams=Streams(4))  # others are corrupted
    cells.train_cell({**CELL, **ON_FEATURES, **NOISY, "corruption_std": 3.0}, streams=Streams(3))
    assert seen[2:] == [(20, 0), (20, 0)]
    clean = cells.train_cell({**CELL, **ON_FEATURES}, streams=Streams(3))[-1]
    assert len(seen) == 4
    assert clean["weights_sha256"] != first["weights_sha256"]


@pytest.mark.paper("ptr", "B.1.1")
@pytest.mark.parametrize("kind", ["label", "gradient"])
def test_labels_and_gradients_of_features_are_corrupted_in_training(kind, cache):
    ready, tensors, _, _ = cells._prepared({**CELL, **ON_FEATURES, **NOISY, "corruption": kind}, Streams(3))
    assert (ready.corruption, ready.corruption_rate) == (kind, 0.25)
    clean = cells._prepared({**CELL, **ON_FEATURES}, Streams(3))[1]
    assert torch.equal(tensors.train_images, clean.train_images)


def test_records_set_aside_are_neither_trained_on_nor_tested():
    base = cells.train_cell(CELL, streams=Streams(0))[-1]
    for change, left in (({"num_validation": 10}, 70), ({"num_public": 15}, 65)):
        row = cells.train_cell({**CELL, **change}, streams=Streams(0))[-1]
        assert row["num_records"] == left
        assert row["weights_sha256"] != base["weights_sha256"]
    data = datasets.load("synthetic", num_records=80, num_test=20, shape=(1, 16, 16))
    kept, public = cells._set_aside(data.tensors(), data, {"num_validation": 10, "num_public": 15})
    assert torch.equal(kept.test_labels, data.train_labels[-10:])
    assert torch.equal(public[1], data.train_labels[55:70])
    assert torch.equal(kept.train_labels, data.train_labels[:55])


def test_a_public_set_takes_nothing_from_the_private_one():
    change = {"release": "projected", "release_options": {"rank": 3}, "num_public": 12, "public_dataset": "synthetic"}
    chosen = {**CELL, **change, "shape": None}
    row = cells.train_cell(chosen, streams=Streams(0))[-1]
    assert row["num_records"] == 80
    assert len(cells.train_cell.data(chosen)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": "hog"}, "features"),
        ({"features": "scattering", "feature_options": {"octaves": 2}}, "feature_options"),
        ({"feature_options": {"scales": 2}}, "feature_options"),
        ({"num_validation": 80}, "must leave a training record"),
        ({"public_dataset": "synthetic"}, "num_public must be at least 1"),
        ({"public_dataset": "synthetic", "num_public": 3, "features": "scattering"}, "public_dataset must be None"),
    ],
)
def test_bad_cells_are_refused_by_name(change, message, cache):
    with pytest.raises(ValueError, match=message):
        cells.train_cell({**CELL, **change}, streams=Streams(0))


def test_a_cells_history_has_its_features_too():
    entries = cells.history({**CELL, "features": "pca", "feature_options": {"noise_multiplier": 7.0}})
    assert [(g.sample_rate, g.mechanism.noise_multiplier, n) for g, n in entries] == [(1.0, 7.0, 1), (0.2, 1.0, 4)]
    with pytest.raises(ValueError, match="settings must have sample_rate"):
        cells.history({k: v for k, v in CELL.items() if k != "sample_rate"} | {"batch_size": 10})


def test_what_scales_with_sigma_and_what_does_not_are_calibrated_apart():
    scaling = {**CELL, "release": "variance_reduced", "release_options": {"every": 4, "snapshot_noise": 1.0}}
    fixed = {**CELL, "features": "pca", "feature_options": {"noise_multiplier": 1.0}}
    for settings in (scaling, fixed):
        settings.pop("noise_multiplier")
        found = cells.calibrated(settings, epsilon=8.0, delta=1e-5)
        ledger = Ledger(neighbouring="add_remove", sampling="poisson")
        for guarantee, count in cells.history({**settings, "noise_multiplier": found.noise_multiplier}):
            ledger.add(guarantee, count)
        assert 7.9 < ledger.epsilon(1e-5).upper <= 8.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature_options": {"noise_multiplier": -4.0}}, "noise_multiplier"),
        ({"feature_options": {"noise_multiplier": math.nan}}, "noise_multiplier"),
        ({"feature_options": {"components": 0}}, "components"),
        ({"feature_options": ["components"]}, "feature_options must be a dict"),
        ({"features": "scattering", "feature_options": {"groups": 0}}, "groups"),
        ({"features": "scattering", "feature_options": {"least_variance": -1.0}}, "least_variance"),
        ({"features": "pretrained", "feature_options": {"num_steps": -1}}, "num_steps"),
        ({"normalise": "raw"}, "normalise"),
        ({"model": None}, "model"),
    ],
)
def test_options_are_checked_before_any_data_is_loaded(change, message, monkeypatch):
    monkeypatch.setattr(datasets, "load", lambda *a, **o: pytest.fail("data was loaded"))
    with pytest.raises((ValueError, TypeError), match=message):
        cells.train_cell({**CELL, "features": "pca", **change}, streams=Streams(0))
    with pytest.raises((ValueError, TypeError), match=message):
        cells.history({**CELL, "features": "pca", **change})


def test_settings_must_be_a_dict_with_a_data_set_and_a_model():
    with pytest.raises(TypeError, match="settings must be a dict"):
        cells.train_cell(["dataset"], streams=Streams(0))
    for name in ("dataset", "model"):
        with pytest.raises(ValueError, match=f"settings must name a {name}"):
            cells.train_cell({k: v for k, v in CELL.items() if k != name}, streams=Streams(0))


def test_a_private_set_is_no_public_one():
    private = {**CELL, "dataset": "mnist", "shape": None}
    subspace = {"release": "projected", "num_public": 20}
    for change in (
        {**subspace, "public_dataset": "mnist"},
        {**subspace, "public_dataset": "mnist5k"},
        {"features": "pretrained", "feature_options": {"dataset": "mnist"}},
    ):
        with pytest.raises(ValueError, match="must name another set than the private 'mnist'"):
            cells.history({**private, **change})


def test_images_are_resized():
    images = torch.arange(32.0).view(1, 1, 4, 8) / 32
    tensors = Tensors(images, torch.zeros(1, dtype=torch.int64), images[:0], torch.zeros(0, dtype=torch.int64))
    found = features.apply("resized", {"height": 8, "width": 8}, tensors, streams=Streams(0, "t"))
    assert found.train_images.shape == (1, 1, 8, 8)
    assert found.test_images.shape == (0, 1, 8, 8)
    assert torch.allclose(found.train_images.mean(), images.mean())
    assert torch.allclose(found.train_images[0, 0, 0], images[0, 0, 0])  # edges stay where they are
