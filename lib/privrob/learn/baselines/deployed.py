"""Trained baselines as attacks and certificates see them: without noise, or with noise on the first layer's output.

Source: ours.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch

from privrob import checks

NOISES = ("gaussian", "laplace")
_AT_ONCE = 500  # images of a certificate's pass


@dataclass(frozen=True)
class HiddenNoise:
    """Noise on the first layer's output, drawn anew for each example.

    Args: kind — ``gaussian`` or ``laplace``;  scale — standard deviation or Laplace scale: a number, or a tensor of the
        shape of one example's output (heterogeneous).
    """

    kind: str
    scale: float | torch.Tensor

    def __post_init__(self):
        checks.choice("kind", self.kind, NOISES)
        if isinstance(self.scale, torch.Tensor):
            if not (torch.isfinite(self.scale).all() and (self.scale >= 0).all()):
                raise ValueError("scale must hold finite numbers of at least 0, got others among them")
        else:
            checks.nonnegative("scale", self.scale, finite=True)

    def draw(self, shape, *, generator, dtype=torch.float32):
        """Independent noise of shape (n, *one example's). In float32 Laplace noise ends at 16.6 scales (in float64 at
        36.7): enough behind a first layer; what protects records is drawn in float64."""
        empty = torch.empty(shape, dtype=dtype, device=generator.device)
        if self.kind == "gaussian":
            return empty.normal_(generator=generator) * self.scale
        side = empty.uniform_(-1, 1, generator=generator)  # its size is uniform, and −1 may be drawn
        most = 1 - torch.finfo(dtype).eps / 2
        return torch.copysign(side.abs().clamp_(max=most).neg_().log1p_(), side) * self.scale

    @property
    def smallest(self):
        """The least scale of a coordinate."""
        return float(self.scale.min()) if isinstance(self.scale, torch.Tensor) else float(self.scale)


class Quiet:
    """A trained network that predicts without noise: all five views of it are one. It has no certificate.

    Args: network — of :mod:`privrob.learn.baselines.plain`; a frozen copy is kept, so that training may go on.
    """

    certificates = ()  # names of the radii that `certify` gives

    def __init__(self, network):
        self.network = copy.deepcopy(network).eval().requires_grad_(False)

    def surrogate(self, images):
        """Logits without noise: the model that the authors attack."""
        return self.network(images)

    def fixed(self, images):
        """Logits through stored noise, where some is stored."""
        return self.surrogate(images)

    def fresh(self, images, *, generator):
        """Logits with noise drawn at this call."""
        return self.surrogate(images)

    def predict_logits(self, images):
        """What is deployed."""
        return self.surrogate(images)

    @torch.no_grad()
    def draws(self, images, *, num_draws, generator):
        """Class scores in [0, 1] (softmax) of so many draws, float64, shape (num_draws, n, K): all the same here."""
        num_draws = checks.integer("num_draws", num_draws, low=1)
        scores = torch.softmax(self.surrogate(images).double(), 1).cpu().numpy()
        return np.broadcast_to(scores, (num_draws, *scores.shape))


class Noisy(Quiet):
    """A trained network that predicts by its mean class scores under noise on the first layer's output.

    Args: network;  noise — :class:`HiddenNoise` of a prediction;  streams — of which ``prediction`` is used: the
        deployed model draws the same noise at each call, so that its answers can be repeated;
        num_predict — draws of a prediction;  stored — noise of a training that was drawn once, (1, *shape), or None.
    """

    def __init__(self, network, noise, *, streams, num_predict=20, stored=None):
        super().__init__(network)
        self.noise, self.stored, self.streams = noise, stored, streams
        self.num_predict = checks.integer("num_predict", num_predict, low=1)

    def fixed(self, images):
        return self.network(images, hidden_noise=self.stored)

    def fresh(self, images, *, generator):
        return self._head(self.network.affine(images), generator)

    def predict_logits(self, images):
        """Logarithms of the mean class scores of ``num_predict`` draws."""
        generator = self.streams.torch("prediction", images.device)
        h, total = self.network.affine(images), 0.0
        for _ in range(self.num_predict):
            total = total + torch.softmax(self._head(h, generator), 1)
        return (total / self.num_predict).clamp(min=torch.finfo(h.dtype).tiny).log()

    @torch.no_grad()
    def draws(self, images, *, num_draws, generator):
        """Class scores in [0, 1] (softmax), each draw with its own noise: float64, shape (num_draws, n, K)."""
        num_draws = checks.integer("num_draws", num_draws, low=1)
        found = np.empty((num_draws, len(images), self.network.num_classes))
        for start in range(0, len(images), _AT_ONCE):
            h = self.network.affine(images[start : start + _AT_ONCE])
            for draw in range(num_draws):
                scores = torch.softmax(self._head(h, generator), 1)
                found[draw, start : start + _AT_ONCE] = scores.double().cpu().numpy()
        return found

    def _head(self, h, generator):
        h = h + self.noise.draw(h.shape, generator=generator, dtype=h.dtype)
        h = h if self.stored is None else h + self.stored
        return self.network.last(self.network.hidden(h))
