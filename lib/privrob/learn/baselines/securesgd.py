r"""SecureSGD (Phan et al. 2019): DP-SGD for the training data, noise behind the first layer for robustness.

The noise is calibrated to (ε_r, δ_r) for the construction bound L and a first layer of stretch 1, either by

* ``hgm``: the extended Gaussian bound, for any ε_r,
  :math:`\sigma = \tfrac{\sqrt 2}{2 \varepsilon_r} (\sqrt s + \sqrt{s + \varepsilon_r})` with
  :math:`s = \ln(\sqrt{2/\pi}/\delta_r)`, spread unevenly: hidden unit k has its share of vulnerability r_k (mean 1),
  the size of the mean sign of the loss's gradient there; or
* ``agm``: the analytic Gaussian mechanism (Balle and Wang 2018), the same everywhere: SecureSGD-AGM.

A perturbation may move the layer in any direction, so that uneven noise protects by its *smallest* part: standard
deviations s give :math:`\mu = \lVert \mathrm{diag}(1/s)\, W \rVert` per unit of l2. With s_k = Lσ r_k alone, one
r_k = 0 leaves no certificate at all.

``sound``: fresh noise for each example, :math:`s_k = L\sigma\sqrt{(1 + r_k^2)/(1 + \overline{r^2})}` (the mean variance
stays (Lσ)²; no s_k is 0), r from random images, kernels kept at stretch 1, clipping per example, certificates from that
μ.
``as_released``: r from training images; one draw L(E + r∘H)/2 kept for all of training, a fresh L(E' + r∘H')/4 on top
at prediction; kernels of any stretch; the clipped batch mean of :mod:`privrob.learn.baselines.dpsgd`; certificates that
believe in Lσ.

Paper: stobatch, Section 4, Baseline Approaches (SecureSGD, SecureSGD-AGM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from privrob import checks
from privrob.accounting import gdp
from privrob.learn.baselines import operator_norms
from privrob.learn.baselines.certificates import Certified
from privrob.learn.baselines.deployed import HiddenNoise
from privrob.learn.baselines.dpsgd import DPSGD, PrivateSettings
from privrob.learn.baselines.training import HIGH, LOW, cross_entropy_sum

MECHANISMS = ("hgm", "agm")
_IMAGES = 256  # that vulnerabilities are read from


@dataclass(frozen=True, kw_only=True)
class SecureSettings(PrivateSettings):
    """DP-SGD's inputs, and the noise's.

    Args: mechanism — ``hgm`` or ``agm``;  attack_bound — L, in l2 and the images' units;
        epsilon_robust, delta_robust — ε_r, δ_r;  num_predict — draws of a deployed prediction.
    """

    mechanism: str = "hgm"
    attack_bound: float = 0.2
    epsilon_robust: float = 4.0
    delta_robust: float = 1e-5
    num_predict: int = 20

    def __post_init__(self):
        super().__post_init__()
        checks.choice("mechanism", self.mechanism, MECHANISMS)
        checks.nonnegative("attack_bound", self.attack_bound, finite=True)
        checks.integer("num_predict", self.num_predict, low=1)
        noise_multiplier(self.mechanism, self.epsilon_robust, delta=self.delta_robust)


def extended_noise_multiplier(epsilon, *, delta):
    """σ of the extended Gaussian bound, for sensitivity 1 and any ε; see the module.

    It rests on a tail bound that holds from one standard deviation on, s ≥ 1/2: refused for larger δ.
    """
    epsilon = checks.positive("epsilon", epsilon, finite=True)
    most = math.sqrt(2 / math.pi) * math.exp(-0.5)
    delta = checks.real("delta", delta, low=0.0, high=most, open_low=True, hint="the analytic mechanism takes any")
    s = math.log(math.sqrt(2 / math.pi) / delta)
    return math.sqrt(2) / (2 * epsilon) * (math.sqrt(s) + math.sqrt(s + epsilon))


def noise_multiplier(mechanism, epsilon, *, delta):
    """σ of either mechanism, for sensitivity 1."""
    if checks.choice("mechanism", mechanism, MECHANISMS) == "hgm":
        return extended_noise_multiplier(epsilon, delta=delta)
    return float(gdp.noise_multiplier_of(checks.positive("epsilon", epsilon, finite=True), delta=delta))


def vulnerability(network, images, labels):
    """r: the size of the mean sign of the loss's gradient at each hidden unit, scaled to mean 1; the layer's shape.

    It is a function of the images, without noise: of private ones it is not private.

    Args: network — see :mod:`privrob.learn.baselines.plain`.
    """
    h = network.affine(images).detach().requires_grad_()
    loss = cross_entropy_sum(network.last(network.hidden(h)), labels)
    size = torch.autograd.grad(loss, h)[0].sign().mean(0).abs()
    return size / size.mean() if size.sum() > 0 else torch.ones_like(size)


def uneven(base, r):
    """The ``sound`` standard deviations: of mean square base², none of them 0, larger where r is.

    Args: base — a number;  r — of :func:`vulnerability`.
    """
    weights = 1 + r.square()
    return base * (weights / weights.mean()).sqrt()


def gdp_mu(layer, in_shape, std):
    """μ of the noisy layer per unit of l2 of the input, exact: the norm of diag(1/s) W; infinity where an s is 0.

    Args: std — s, a number or a tensor of the output's shape.
    """
    std = torch.as_tensor(std, dtype=torch.float64)
    if not (std > 0).all():
        return math.inf
    scale = std if std.ndim else std.expand(operator_norms.matrix(layer, in_shape).shape[0])
    return operator_norms.l2_norm(layer, in_shape, scale=scale)


class _Through(nn.Module):
    """A network behind its noisy first layer, as per-example gradients want it: one input, one output."""

    def __init__(self, network, noise_of):
        super().__init__()
        self.network, self._noise_of = network, noise_of

    def forward(self, images):
        return self.network(images, hidden_noise=self._noise_of(images))


class SecureSGD(DPSGD):
    """DP-SGD of a noisy network."""

    def begin(self):
        settings, network = self.settings, self.network
        self._bring_back()
        self.base = settings.attack_bound * noise_multiplier(
            settings.mechanism, settings.epsilon_robust, delta=settings.delta_robust
        )
        self.r = self._vulnerability() if settings.mechanism == "hgm" else None
        self.stored = None
        if settings.variant == "as_released":
            half = self._released_noise(2)
            self.stored = half.draw((1, *network.geometry.hidden_shape), generator=self.noise, dtype=self.images.dtype)
            self.prediction_noise = self._released_noise(4)
        else:
            self.prediction_noise = HiddenNoise("gaussian", self.base if self.r is None else uneven(self.base, self.r))
        super().begin()

    def _released_noise(self, divisor):
        """(E + r∘H) / divisor, or E / divisor of both mechanisms' release without r."""
        if self.r is None:
            return HiddenNoise("gaussian", self.base * 2 / divisor)
        largest = torch.linalg.matrix_norm(self.r.reshape(len(self.r), -1).double(), 2)
        uneven_part = self.r * float(1 / largest.sqrt())  # Δ_H of a layer of stretch 1
        return HiddenNoise("gaussian", self.base * (1 + uneven_part.square()).sqrt() / divisor)

    def _vulnerability(self):
        """From random images and the network's own answers; as released, from training images and labels."""
        count = min(_IMAGES, len(self.images))
        if self.settings.variant == "as_released":
            return vulnerability(self.network, self.images[:count], self.labels[:count])
        generator = self.streams.torch("random images", self.device)
        images = torch.rand(_IMAGES, *self.images.shape[1:], generator=generator, device=self.device)
        images = (LOW + (HIGH - LOW) * images).to(self.images.dtype)
        return vulnerability(self.network, images, self.network(images).argmax(1))

    def forward_model(self):
        shape = self.network.geometry.hidden_shape

        def noise_of(images):
            if self.stored is not None:
                return self.stored
            drawn = (len(images), *shape)
            return self.prediction_noise.draw(drawn, generator=self.noise, dtype=images.dtype)

        return _Through(self.network, noise_of)

    def advance(self):
        loss = super().advance()
        self._bring_back()
        return loss

    def _bring_back(self):
        """Kernels to a stretch of at most 1: a function of private weights alone. The release doesn't."""
        if self.settings.variant == "sound":
            operator_norms.project(self.network.first, norm="l2")

    def deployed(self):
        released = self.settings.variant == "as_released"
        return Certified(
            self.network,
            self.prediction_noise,
            streams=self.streams,
            num_predict=self.settings.num_predict,
            stored=self.stored,
            printed_scale=self.base if released or self.r is not None else None,
        )

    def privacy(self, *, delta):
        """As DP-SGD's; as released with ``hgm``, r is read from training records without noise: ε = ∞, and
        ``gradient_epsilon`` is what the gradients alone are worth."""
        row = super().privacy(delta=delta)
        if self.settings.variant == "as_released" and self.r is not None:
            return row | {
                "gradient_epsilon": row["honest_epsilon"],
                "honest_epsilon": math.inf,
                "protects": "nothing: r is read bare",
            }
        return row
