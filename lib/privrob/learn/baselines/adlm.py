r"""AdLM, the adaptive Laplace mechanism (Phan et al. 2017): more noise on pixels that matter less.

1. Relevance of each pixel to a record's class, by LRP, scaled to [−1, 1] a record, averaged over all N records, plus
   Lap(2D/(N ε₁)). Shares :math:`\beta_j = D\,|\bar R_j| / \sum_j |\bar R_j|`.
2. Noise on the inputs: :math:`\bar x_j = x_j + \mathrm{Lap}(\Delta_0 / (L\,\beta_j\,\varepsilon_2))`,
   :math:`\Delta_0 = 2 \beta d` a channel (β neurons of one feature map, d inputs of each), L the batch.
3. Cross entropy of each class as a polynomial of the last layer's outputs z, with noise on the coefficients of W:
   :math:`\ell = \log 2 + z/2 - z y + z^2/8` and :math:`\tfrac{1}{L}\mathrm{Lap}(\Delta_3/\varepsilon_3)\cdot W`,
   :math:`\Delta_3 = K(|h| + |h|^2/4)`.

Claimed: ε₁ + ε₂ + ε₃ on fixed, disjoint batches, however many steps. What is true:

* The images alone, each with one draw of its own: pure ε of :math:`\sum_j 2/b_j = 2 L D \varepsilon_2 / \Delta_0`, a
  record replaced. Drawn anew at every visit, as in the release, it is paid at every visit.
* The labels: the gradients of all layers below the last read them without noise, so there is no bound.

``as_printed`` draws once, ``as_released`` at every step; both are ε = ∞ for the labels, and their relevances come from
a network that was trained on the records without privacy. ``sound`` is what can be repaired with the same parts and
budgets: relevances of an untrained network, one draw an image, labels through K-ary randomised response of ε₃ (the loss
is linear in y, so that the mean loss stays right), no noise on the loss. All that training sees has then gone through a
mechanism, and ε is finite.

Paper: stobatch, Section 4, Baseline Approaches (AdLM, "a Functional Mechanism-based approach").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional

from privrob import checks
from privrob.learn import descent
from privrob.learn.baselines.deployed import HiddenNoise, Quiet
from privrob.learn.baselines.training import Settings, Training, cross_entropy_sum
from privrob.learn.batches import channels_last

_LEAST_SHARE = 1e-5  # of a pixel, [release]
_CLIP = 10.0  # noisy inputs are clipped to ±10, [release]; it looks at nothing else
_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class AdLMSettings(Settings):
    """AdLM's inputs. Records beyond the last full batch are left out of training.

    Args: epsilon — the claimed total;  epsilon_parts — of it, ε₁, ε₂, ε₃ (relevance, inputs, loss or labels), as in the
        release;  relevance_steps — of the network that relevances are read from, where it is trained;
        nominal_batch_size — L in the noise scales and in what they are worth (None: ``batch_size``): a smaller study
        with the noise of the release keeps 1,800 here;
        network_options — |h| = 25 as in the release: Δ₃ grows with its square.
    """

    variants: ClassVar = ("sound", "as_printed", "as_released")

    epsilon: float = 1.0
    epsilon_parts: tuple = (0.25, 0.25, 0.5)
    relevance_steps: int = 50
    nominal_batch_size: int | None = None
    network_options: dict | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.positive("epsilon", self.epsilon, finite=True)
        if not isinstance(self.epsilon_parts, (tuple, list)) or len(self.epsilon_parts) != 3:
            raise ValueError(f"epsilon_parts must be three shares, got epsilon_parts={self.epsilon_parts!r}")
        parts = tuple(checks.positive("epsilon_parts", part, finite=True) for part in self.epsilon_parts)
        if abs(sum(parts) - 1) > 1e-9:
            raise ValueError(f"epsilon_parts must add up to 1, got {parts}")
        object.__setattr__(self, "epsilon_parts", parts)
        checks.integer("relevance_steps", self.relevance_steps, low=0)
        if self.nominal_batch_size is not None:
            checks.integer("nominal_batch_size", self.nominal_batch_size, low=1)
        if self.network_options is None:
            object.__setattr__(self, "network_options", {"num_hidden": 25})

    @property
    def noise_batch_size(self):
        """L of the noise scales."""
        return self.batch_size if self.nominal_batch_size is None else self.nominal_batch_size

    @property
    def epsilons(self):
        """(ε₁, ε₂, ε₃)."""
        return tuple(self.epsilon * part for part in self.epsilon_parts)


def relevances(network, images, labels):
    """Each record's relevance of its pixels to its class, the largest of a record 1 in size: shape (n, D).

    Layer-wise relevance propagation without a stabiliser (LRP-0); in a network of piecewise linear layers that is input
    times gradient of the class's output.
    """
    found = []
    for part, targets in zip(images.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        point = part.detach().clone().requires_grad_()
        score = network(point).gather(1, targets[:, None]).sum()
        each = (point * torch.autograd.grad(score, point)[0]).detach().flatten(1)
        largest = each.abs().amax(1, keepdim=True)
        found.append(torch.where(largest > 0, each / torch.where(largest > 0, largest, 1.0), 0.0))
    return torch.cat(found).clamp_(-1.0, 1.0)


def shares(mean_relevances):
    """β of each pixel: proportional to the size of its relevance, mean 1, and at least 1e-5.

    Args: mean_relevances — of each pixel, shape (p,).
    Returns: shape (p,).
    """
    size = np.abs(checks.array("mean_relevances", mean_relevances, ndim=1))
    if not size.sum() > 0:
        return np.ones_like(size)
    return np.maximum(size.size * size / size.sum(), _LEAST_SHARE)


def input_scales(betas, *, geometry, channels, batch_size, epsilon_inputs):
    """The Laplace scale of each pixel, Δ₀ / (L β_j ε₂).

    Args: betas — of :func:`shares`, (p,);  geometry — of the first layer: ``map_neurons``, ``kernel_area``;  channels —
        of an image;  batch_size — L;  epsilon_inputs — ε₂.
    Returns: shape (p,).
    """
    sensitivity = channels * 2 * geometry.map_neurons * geometry.kernel_area
    return sensitivity / (batch_size * np.asarray(betas) * checks.positive("epsilon_inputs", epsilon_inputs))


def input_epsilon(scales):
    """ε of one noisy image, each pixel from [−1, 1]: Σ 2/b_j, exact (a record is replaced).

    Args: scales — b, (p,).
    """
    return float((2 / np.asarray(scales)).sum())


def randomised_labels(labels, *, epsilon, num_classes, generator):
    """K-ary randomised response of each label, as targets whose mean is the one-hot label: shape (n, K).

    The true label is kept with probability p = e^ε / (e^ε + K − 1), any other has q = p e^−ε; the target is
    (one-hot − q) / (p − q), a function of the answer alone.
    """
    epsilon = checks.positive("epsilon", epsilon, finite=True)
    keep = 1 / (1 + (num_classes - 1) * math.exp(-epsilon))
    other = keep * math.exp(-epsilon)
    drawn = {"generator": generator, "device": labels.device}
    kept = torch.rand(len(labels), **drawn) < keep
    moved = (labels + torch.randint(1, num_classes, (len(labels),), **drawn)) % num_classes
    answers = functional.one_hot(torch.where(kept, labels, moved), num_classes)
    return (answers.double() - other) / (keep - other)


def polynomial_loss(logits, targets):
    r"""Second-order expansion at 0 of each class's sigmoid cross entropy, summed over classes, mean over records.

    Args: logits — (n, K);  targets — one-hot, (n, K).
    """
    return (math.log(2) + logits / 2 - logits * targets + logits.square() / 8).sum(1).mean()


class AdLM(Training):
    """Relevance, noise and labels come first; then descent on fixed, disjoint batches."""

    def begin(self):
        settings, size = self.settings, self.settings.batch_size
        order = torch.from_numpy(self.batches.permutation(len(self.images)))
        self.fixed = order[: len(order) // size * size].view(-1, size).to(self.device)
        relevance, inputs, last = settings.epsilons
        self.betas = shares(self._private_relevance(relevance))
        how = {"geometry": self.network.geometry, "channels": self.images.shape[1]}
        how["batch_size"] = settings.noise_batch_size
        self.scales = input_scales(self.betas, epsilon_inputs=inputs, **how)
        scale = torch.from_numpy(self.scales).to(self.device).view(self.images.shape[1:])
        self.input_noise = HiddenNoise("laplace", scale)
        hidden, classes = self.network.geometry.num_hidden, self.num_classes
        shape, std = self.network.last.weight.shape, classes * (hidden + hidden**2 / 4) / last
        self.loss_noise, self.loss_shape = HiddenNoise("laplace", std), shape
        if settings.variant == "sound":
            how = {"num_classes": classes, "generator": self.noise}
            self.targets = randomised_labels(self.labels, epsilon=last, **how).to(self.images.dtype)
        else:
            self.targets = functional.one_hot(self.labels, classes).to(self.images.dtype)
        if settings.variant != "as_released":
            self.stored = self._noisy(self.images)
            self.stored_loss_noise = self._loss_noise()

    def _private_relevance(self, epsilon):
        """Mean relevances plus Laplace noise, float64 (D,). One record moves the mean by at most 2D/N in l1."""
        network = self.fresh_network("relevance init")
        if self.settings.variant != "sound":
            self._train_without_privacy(network)
        mean = relevances(network, self.images, self.labels).double().mean(0)
        scale = 2 * mean.numel() / (len(self.images) * epsilon)
        return (
            (mean + HiddenNoise("laplace", scale).draw(mean.shape, generator=self.noise, dtype=mean.dtype))
            .cpu()
            .numpy()
        )

    def _train_without_privacy(self, network):
        parameters, rng = list(network.parameters()), self.streams.numpy("relevance batches")
        adam = descent.Descent(parameters, optimizer="adam")
        for _ in range(self.settings.relevance_steps):
            chosen = torch.from_numpy(rng.choice(len(self.images), self.settings.batch_size, replace=False))
            loss = cross_entropy_sum(network(self.images[chosen]), self.labels[chosen]) / len(chosen)
            adam.step(torch.autograd.grad(loss, parameters), 1e-3)

    def _noisy(self, images):
        noise = self.input_noise.draw(images.shape, generator=self.noise, dtype=torch.float64)
        return (images + noise).clamp_(-_CLIP, _CLIP).to(images.dtype)

    def _loss_noise(self):
        drawn = self.loss_noise.draw(self.loss_shape, generator=self.noise, dtype=torch.float64)
        return (drawn / self.settings.noise_batch_size).to(self.images.dtype)

    def advance(self):
        chosen = self.fixed[self.step % len(self.fixed)]
        again = self.settings.variant == "as_released"
        images = self._noisy(self.images[chosen]) if again else self.stored[chosen]
        loss = polynomial_loss(self.network(channels_last(images)), self.targets[chosen])
        if self.settings.variant != "sound":
            noise = self._loss_noise() if again else self.stored_loss_noise
            loss = loss - (noise * self.network.last.weight).sum()
        return self.descend(loss)

    def deployed(self):
        return Quiet(self.network)

    @property
    def visits(self):
        """How often a record's batch is visited, at most: what a new draw at every step pays for."""
        return -(-self.settings.num_steps // len(self.fixed))

    def privacy(self, *, delta):
        """Also ``input_epsilon``: of the noisy images alone. ``delta`` plays no part: Laplace noise is pure."""
        variant, own = self.settings.variant, input_epsilon(self.scales)
        relevance, _, labels = self.settings.epsilons
        images = own * (self.visits if variant == "as_released" else 1)
        return {
            "claimed_epsilon": self.settings.epsilon,
            "honest_epsilon": relevance + images + labels if variant == "sound" else math.inf,
            "input_epsilon": images,
            "delta": 0.0,
            "neighbouring": "replace",
            "sampling": "none",
            "protects": "training records: images and labels" if variant == "sound" else "images; no label",
        }
