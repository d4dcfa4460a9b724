r"""PixelDP (Lecuyer et al. 2018): noise behind the first layer, in training and prediction, and a certificate from it.

The privacy in question is that of an *image's pixels* at prediction. The training data has none: ε = ∞.

The first layer is kept at a stretch of at most 1 (l2 → l2 for Gaussian, l1 → l1 for Laplace noise): after each step its
kernels are divided by an upper bound of their norm. With the construction bound L, the largest attack that the noise
is built for, and the budget (ε_r, δ_r),

.. math:: \sigma = L \cdot s(\varepsilon_r, \delta_r), \qquad b = L / \varepsilon_r.

Paper: stobatch, Section 2 (Lemma 1, Eq. 4) and Section 4, Baseline Approaches (PixelDP).
Printed (Lecuyer et al.): s = √(2 ln(1.25/δ_r)) / ε_r.   Used: the exact s of the Gaussian mechanism, any ε_r;
    ``as_printed`` keeps the formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privrob import checks
from privrob.accounting import gdp
from privrob.learn.baselines import operator_norms
from privrob.learn.baselines.certificates import Certified
from privrob.learn.baselines.deployed import NOISES, HiddenNoise
from privrob.learn.baselines.training import NON_PRIVATE, Settings, Training, cross_entropy_sum

NORMS = {"gaussian": "l2", "laplace": "l1"}


@dataclass(frozen=True, kw_only=True)
class PixelDPSettings(Settings):
    """PixelDP's inputs. The noise is per example and drawn anew at every step.

    Args: mechanism — ``gaussian`` or ``laplace``;  attack_bound — L, in the noise's norm and the images' units;
        epsilon_robust, delta_robust — ε_r, δ_r;  num_predict — draws of a deployed prediction.
    """

    variants: ClassVar = ("sound", "as_printed")

    mechanism: str = "gaussian"
    attack_bound: float = 0.1
    epsilon_robust: float = 1.0
    delta_robust: float = 0.05
    num_predict: int = 20

    def __post_init__(self):
        super().__post_init__()
        checks.choice("mechanism", self.mechanism, NOISES)
        checks.nonnegative("attack_bound", self.attack_bound, finite=True)
        checks.positive("epsilon_robust", self.epsilon_robust, finite=True)
        checks.probability("delta_robust", self.delta_robust, allow_zero=False, allow_one=False)
        checks.integer("num_predict", self.num_predict, low=1)
        noise_scale(self)


def noise_scale(settings):
    """The noise's standard deviation or Laplace scale, for a first layer of stretch 1."""
    if settings.mechanism == "laplace":
        return settings.attack_bound / settings.epsilon_robust
    exact = settings.variant == "sound"
    multiplier = gdp.noise_multiplier_of if exact else gdp.textbook_noise_multiplier
    return settings.attack_bound * float(multiplier(settings.epsilon_robust, delta=settings.delta_robust))


class PixelDP(Training):
    """Training under noise: cross entropy of one noisy pass, then the first layer is brought back to stretch 1."""

    def begin(self):
        self.norm = NORMS[self.settings.mechanism]
        self.hidden_noise = HiddenNoise(self.settings.mechanism, noise_scale(self.settings))
        operator_norms.project(self.network.first, norm=self.norm)

    def advance(self):
        images, labels = self.random_batch(self.settings.batch_size)
        shape = (len(images), *self.network.geometry.hidden_shape)
        noise = self.hidden_noise.draw(shape, generator=self.noise, dtype=images.dtype)
        loss = self.descend(cross_entropy_sum(self.network(images, hidden_noise=noise), labels) / len(labels))
        operator_norms.project(self.network.first, norm=self.norm)
        return loss

    def deployed(self):
        return Certified(self.network, self.hidden_noise, streams=self.streams, num_predict=self.settings.num_predict)

    def privacy(self, *, delta):
        return NON_PRIVATE | {"protects": "pixels at prediction; nothing of the training data"}
