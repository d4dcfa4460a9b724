r"""Better inputs than pixels: functions of one image each, so that they cost no privacy; and one that does.

* ``scattering``: the oriented wavelets of a scattering network (Oyallon & Mallat 2015; private in Tramèr & Boneh 2021),
  :math:`|\,|x * \psi_1| * \psi_2| * \phi`, made by hand from the mathematics, trained on nothing.
* ``pretrained``: what the convolutions of a network see that was trained on a *public* set.
* ``imagenet``: the same of known networks, trained on ImageNet (:mod:`privrob.learn.backbones`).
* ``resized``: the images at another size, for networks of one size of image.
* ``pca``: projection on the principal directions of the private images, which are released with noise and are a step
  of their own in the ledger (Abadi et al. 2016).

Paper: dplearn, Advanced topic (better features).
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import nn

from privrob import checks
from privrob.kinds import Streams
from privrob.learn import datasets, dpsgd, features_kept
from privrob.learn.backbones import ImageNetFeatures
from privrob.learn.features_kept import in_parts
from privrob.learn.scattering import Scattering
from privrob.mechanisms.sampled import gaussian_step


def make(name, options):
    """The features of that name, their options checked; None for "none"."""
    kind = FEATURES[checks.choice("features", name, FEATURES)]
    if kind is None:
        checks.options("feature_options", options, ())
        return None
    return kind(**checks.options("feature_options", options, [f.name for f in fields(kind)]))


@dataclass(frozen=True)
class ScatteringFeatures:
    """Scattering coefficients of each image, each group of channels brought to mean 0 and variance 1 for that image.

    Args: scales — J: the output is 2^J times smaller;  angles — L;  order — 1 or 2;  groups — of channels;
        least_variance — is added to each group's variance: flat groups stay small.
    """

    scales: int = 2
    angles: int = 8
    order: int = 2
    groups: int = 27
    least_variance: float = 1e-5

    def __post_init__(self):
        for name in ("scales", "angles", "order", "groups"):
            checks.integer(name, getattr(self, name), low=1, high=2 if name == "order" else 1000)
        checks.positive("least_variance", self.least_variance, finite=True)

    cached, public = True, None
    sources = ("features.py", "scattering.py")  # all code that has a part in the features

    def fingerprint(self):
        """{data set: its fingerprint} of other data that was used: none."""
        return {}

    def history(self):
        """Releases that these features make: none."""
        return ()

    def of(self, images, *, streams):
        """Images (n, channels, height, width) to (n, channels · paths, height / 2^J, width / 2^J)."""
        transform = Scattering(
            tuple(images.shape[2:]), scales=self.scales, angles=self.angles, order=self.order, device=images.device
        )
        channels = images.shape[1] * transform.paths
        groups = math.gcd(self.groups, channels)

        def one(part):
            return nn.functional.group_norm(transform(part).flatten(1, 2), groups, eps=self.least_variance)

        return in_parts(images, one)

    def both(self, train, test, *, streams):
        """(features of ``train``, of ``test``): each image by itself, as :meth:`of`."""
        return self.of(train, streams=streams), self.of(test, streams=streams)


@dataclass(frozen=True)
class PretrainedFeatures:
    """The last convolutional activations of a small network that was trained, without privacy, on a public set.

    Brought to mean 0 and variance 1 within each image. The images must have the public set's shape.
    Args: dataset — the public set, a name for ``datasets.load``;  num_records — so many of its records, None: all;
        num_steps, learning_rate — of its training (plain SGD with momentum 0.9, batches of 500 expected);
        model, activation — of the network.
    """

    dataset: str = "emnist_letters"
    num_records: int | None = None
    num_steps: int = 600
    learning_rate: float = 0.05
    model: str = "tutorial_cnn"
    activation: str = "relu"

    def __post_init__(self):
        if self.num_records is not None:
            checks.integer("num_records", self.num_records, low=1)
        self._settings(1.0, "cpu")

    cached, sources = True, ()  # no sources: any module may have a part in them

    @property
    def public(self):
        """The set that must not be the private one."""
        return self.dataset

    def fingerprint(self):
        """{data set: its fingerprint} of other data that was used: the public set."""
        return {self.dataset: datasets.fingerprint(self.dataset, **self._reduced())}

    def _reduced(self):
        return {} if self.num_records is None else {"num_records": self.num_records}

    def history(self):
        """Releases that these features make: none of private records."""
        return ()

    def _settings(self, sample_rate, device):
        return dpsgd.DPSGDSettings(
            model=self.model,
            activation=self.activation,
            sample_rate=sample_rate,
            num_steps=self.num_steps,
            learning_rate=self.learning_rate,
            momentum=0.9,
            max_grad_norm=math.inf,
            noise_multiplier=0.0,
            device=device,
        )

    def both(self, train, test, *, streams):
        """(features of ``train``, of ``test``): the network is trained here, on the public set, then frozen."""
        public = datasets.load(self.dataset, **self._reduced())
        if public.shape != tuple(train.shape[1:]):
            raise ValueError(
                f"dataset of the pretrained features must have images of shape {tuple(train.shape[1:])}, got "
                f"{self.dataset!r} with {public.shape}; choose another public set"
            )
        settings = self._settings(min(1.0, 500 / len(public.train_labels)), str(train.device))
        tensors = public.tensors(device=train.device)
        training = dpsgd.Training(settings, *tensors, public.num_classes, Streams(0, "public", self.dataset))
        list(training.rows())
        convolutions = _before_dense(training.model)

        @torch.no_grad()
        def one(part):
            seen = convolutions(part)
            seen = (seen - seen.mean(1, keepdim=True)) / (seen.std(1, keepdim=True) + 1e-5)
            return seen[:, :, None, None]

        return in_parts(train, one), in_parts(test, one)


@dataclass(frozen=True)
class PrincipalComponents:
    """Projections on the first principal directions of the private images, each scaled to norm 1 for the covariance.

    The sum of :math:`x x^T` changes by at most 1 in Frobenius norm with one record; its upper triangle gets Gaussian
    noise.

    Paper: dplearn, Training a NN on MNIST dataset (the network of Abadi et al. 2016, which starts with this).
    Args: components — how many;  noise_multiplier — of that release, 0: without privacy.
    """

    components: int = 60
    noise_multiplier: float = 4.0

    def __post_init__(self):
        checks.integer("components", self.components, low=1)
        checks.nonnegative("noise_multiplier", self.noise_multiplier, finite=True)

    cached, public = False, None

    def fingerprint(self):
        """{data set: its fingerprint} of other data that was used: none."""
        return {}

    def history(self):
        """One release of all records."""
        return ((gaussian_step(sample_rate=1.0, noise_multiplier=self.noise_multiplier), 1),)

    def both(self, train, test, *, streams):
        """(features of ``train``, of ``test``): the directions come from ``train`` with noise, and serve both."""
        flat = train.flatten(1).double()
        size = flat.shape[1]
        checks.integer("components", self.components, low=1, high=size)
        unit = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
        covariance = unit.t() @ unit
        noise = torch.randn(size, size, generator=streams.torch("features"), dtype=torch.float64).triu()
        noise = noise + noise.triu(1).t()
        covariance = covariance + self.noise_multiplier * noise.to(covariance.device)
        directions = torch.linalg.eigh(covariance)[1][:, -self.components :].flip(1).to(train.dtype)
        return tuple((part.flatten(1) @ directions)[:, :, None, None] for part in (train, test))


@dataclass(frozen=True)
class Resized:
    """The images at another size (bilinear).

    Args: height, width — in pixels.
    """

    height: int = 28
    width: int = 28

    def __post_init__(self):
        for name in ("height", "width"):
            checks.integer(name, getattr(self, name), low=1, high=1024)

    cached, public = False, None

    def fingerprint(self):
        """{data set: its fingerprint} of other data that was used: none."""
        return {}

    def history(self):
        """Releases that these features make: none."""
        return ()

    def both(self, train, test, *, streams):
        """(``train``, ``test``) at the new size, bilinear, each image by itself."""
        size = (self.height, self.width)
        return tuple(
            nn.functional.interpolate(part, size=size, mode="bilinear", align_corners=False)
            if len(part)
            else part.new_zeros((0, part.shape[1], *size))
            for part in (train, test)
        )


_last = []  # name and recipe, images, their versions, their features
FEATURES = {
    "none": None,
    "resized": Resized,
    "scattering": ScatteringFeatures,
    "pretrained": PretrainedFeatures,
    "imagenet": ImageNetFeatures,
    "pca": PrincipalComponents,
}


def apply(name, options, tensors, *, streams, changed=None):
    """Training and test images replaced by their features.

    Args: name, options — of :func:`make`;  tensors — ``datasets.Tensors``;  streams — of which ``features`` is used by
        ``pca``;
        changed — (images, which) or None: training images of which some, a Boolean each, aren't the set's own.
    Returns: Tensors. Features that take long are kept in the cache (in half precision, whether they were there or not):
        those of the set once, whichever of its images were changed, and those of the changed images alone.
    """
    recipe = make(name, options)
    if changed and (recipe is None or not recipe.cached):  # not of one image each: all features see the changed ones
        tensors, changed = tensors._replace(train_images=changed[0]), None
    if recipe is None:
        return tensors
    train, test = _of_the_set(name, recipe, tensors, streams)
    if changed and changed[1].any():
        images, which = changed
        train = train.clone()
        train[which.to(train.device)] = _made(name, recipe, images[which], tensors.test_images[:0], streams)[0]
    device, dtype = tensors.train_images.device, tensors.train_images.dtype
    return tensors._replace(train_images=train.to(device, dtype), test_images=test.to(device, dtype))


def _of_the_set(name, recipe, tensors, streams):
    """Features of a set's own images; those of the last one are at hand, as cells of a sweep share their set."""
    images = tensors.train_images, tensors.test_images
    if not recipe.cached:
        return _made(name, recipe, *images, streams)
    seen, versions = [name, recipe], [part._version for part in images]
    if not (_last and _last[0] == seen and _last[2] == versions and all(map(operator.is_, _last[1], images))):
        _last[:] = seen, images, versions, _made(name, recipe, *images, streams)
    return _last[3]


def _made(name, recipe, train, test, streams):
    if not recipe.cached:
        return recipe.both(train, test, streams=streams)
    path = _cache_file(name, recipe, train, test)
    return features_kept.read(path) or features_kept.keep(path, recipe.both(train, test, streams=streams))


def _cache_file(name, recipe, train, test):
    """Named by the recipe, the images, and all code that may have a part in the features."""
    digest = hashlib.sha256(json.dumps([name, asdict(recipe), recipe.fingerprint()], sort_keys=True).encode())
    here = Path(__file__).parent
    every = [*here.glob("*.py"), *here.glob("releases/*.py"), *here.parent.glob("*.py")]
    own = [here / file for file in recipe.sources]
    for module in own or sorted(every):
        digest.update(module.read_bytes())
    return features_kept.path_of(name, digest, train, test)


def _before_dense(model):
    """A Sequential's layers up to its first dense one."""
    layers = list(model)
    first = next(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))
    if first == len(layers) or not any(isinstance(layer, nn.Conv2d) for layer in layers[:first]):
        raise ValueError("model of the pretrained features must have convolutions before its dense layers")
    return nn.Sequential(*layers[:first])
