r"""DP-SGD (Abadi et al. 2016) on the baselines' network: the library's own release, accounted for by its own ledger.

``sound``: each record's gradient is clipped to norm C, the sum over a Poisson sample gets noise of standard deviation
σC and is divided by the expected batch B.

``as_released``: the *mean* gradient of the batch is clipped to C and gets noise σC/B. One record turns a clipped mean
by up to 2C, whatever B: the noise is σ/(2B) sensitivities, and not σ, and that is what the honest ε counts. (Published
code of SecureSGD for MNIST goes further: it clips the weights of each of four layers by themselves, and biases not at
all, for which no ε can be stated. Ours is the kinder reading.)

Adversarial training fits in without a new proof: an adversarial example that is crafted from one record and the current
weights takes that record's place, its gradient is clipped like any other, and the record moves the sum by C as before.

Paper: stobatch, Section 4, Baseline Approaches (DP-SGD).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.stats import binom
from torch.nn import functional

from privrob import checks
from privrob.accounting import gdp
from privrob.accounting.ledger import Ledger, WeakGuarantee
from privrob.learn import dpsgd, releases
from privrob.learn.baselines.deployed import Quiet
from privrob.learn.baselines.training import HIGH, LOW, Settings, Training
from privrob.learn.batches import channels_last, poisson_batch
from privrob.mechanisms.sampled import gaussian_step
from privrob.robust import adversarial

_COUNTED = 0.1


@dataclass(frozen=True, kw_only=True)
class PrivateSettings(Settings):
    """DP-SGD's inputs.

    Args: batch_size — B, the expected batch: q = B / n;  max_grad_norm — C;  noise_multiplier — σ;
        physical_batch_size — at most so many records at once in memory: changes rounding only;
        adversarial_rate — the probability with which a drawn record is replaced by an adversarial example of its own;
        attack, attack_steps, attack_radius — of :func:`privrob.robust.adversarial.attack` on the model's prediction;
        the radius of each example is uniform in [0, attack_radius] if ``random_radius``.
    """

    variants: ClassVar = ("sound", "as_released")

    max_grad_norm: float = 1.0
    noise_multiplier: float = 1.0
    physical_batch_size: int = 256
    adversarial_rate: float = 0.0
    attack: str = "fgsm"
    attack_steps: int = 1
    attack_radius: float = 0.3
    random_radius: bool = True

    def __post_init__(self):
        super().__post_init__()
        self.inner(1.0)
        checks.probability("adversarial_rate", self.adversarial_rate)
        checks.choice("attack", self.attack, adversarial.KINDS)
        checks.integer("attack_steps", self.attack_steps, low=1)
        checks.nonnegative("attack_radius", self.attack_radius, finite=True)

    def inner(self, sample_rate):
        """The same as settings of :mod:`privrob.learn.dpsgd`, which checks them. Its model's name is not used: the
        network is ours."""
        return dpsgd.DPSGDSettings(
            model="logistic",
            sample_rate=sample_rate,
            num_steps=self.num_steps,
            learning_rate=self.learning_rate,
            max_grad_norm=checks.positive("max_grad_norm", self.max_grad_norm, finite=True),
            noise_multiplier=self.noise_multiplier,
            physical_batch_size=self.physical_batch_size,
        )


@torch.no_grad()
def clip_of_mean(gradients, max_grad_norm):
    """A mean gradient, scaled down to norm C. Between two batches that differ in one record it moves by up to 2C, and
    by as much as that.

    Args: max_grad_norm — C;  gradients — a list of tensors, one gradient together.  Returns: a new list.
    """
    norm = torch.stack([part.double().norm() for part in gradients]).norm()
    weight = 1.0 / torch.clamp(norm / checks.positive("max_grad_norm", max_grad_norm, finite=True), min=1.0)
    return [part * weight.to(part.dtype) for part in gradients]


def spent(*, sample_rate, noise_multiplier, num_steps, delta):
    r"""ε of so many Poisson-sampled Gaussian steps, an upper bound (``add_remove``).

    By the ledger. Below a noise multiplier of 0.1, where its grid serves nobody, by counting: a record is in k ~
    Binomial(T, q) steps, and whoever knows which sees a Gaussian mechanism with :math:`\mu = \sqrt{k}/\sigma`; half of
    δ goes to a k beyond what is counted.
    """
    if noise_multiplier >= _COUNTED:
        ledger = Ledger(neighbouring="add_remove", sampling="poisson")
        ledger.add(gaussian_step(sample_rate=sample_rate, noise_multiplier=noise_multiplier), count=num_steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeakGuarantee)  # columns stand beside each other: the numbers speak
            return ledger.epsilon(delta).upper
    used = min(num_steps, int(binom.isf(delta / 2, num_steps, sample_rate)))
    if not used:
        return 0.0
    return float(gdp.epsilon_of(delta / 2, gdp_mu=math.sqrt(used) / noise_multiplier)) if noise_multiplier else math.inf


class _Crafted:
    """Training images, some of those taken replaced by adversarial examples of their own.

    Each depends on its record, the weights and its own draws alone: no record has a part in another's.
    """

    def __init__(self, training):
        self._training = training

    def __len__(self):
        return len(self._training.images)

    def __getitem__(self, chosen):
        training, settings = self._training, self._training.settings
        images, drawn = training.images[chosen], {"generator": training.attack, "device": training.device}
        radius = torch.full((len(images),), float(settings.attack_radius), device=training.device)
        if settings.random_radius:
            radius *= torch.rand(len(images), **drawn)
        radius[torch.rand(len(images), **drawn) >= settings.adversarial_rate] = 0.0
        how = {"kind": settings.attack, "num_steps": settings.attack_steps, "generator": training.attack}
        return adversarial.attack(training.network, images, radius=radius, low=LOW, high=HIGH, **how)


class _Asked:
    """A training as :mod:`privrob.learn.releases` asks for it."""

    faults = None

    def __init__(self, training, model):
        self._training, self.model = training, model
        self.settings = training.settings.inner(training.sample_rate)
        self.images, self.labels, self.device = training.taken, training.labels, training.device
        self.parameters, self.noise = training.parameters, training.noise

    @property
    def step(self):
        return self._training.step


class DPSGD(Training):
    """Poisson samples, one release a step, one descent on it."""

    def begin(self):
        self.sample_rate = self.settings.batch_size / len(self.images)
        self.model = self.forward_model()
        self.taken = _Crafted(self) if self.settings.adversarial_rate else self.images
        self.release = releases.make("clipping", None)
        self.release.begin(_Asked(self, self.model))

    def forward_model(self):
        """The module whose loss is descended: of ``self.network``'s parameters."""
        return self.network

    def advance(self):
        drawn = poisson_batch(self.batches, num_records=len(self.images), sample_rate=self.sample_rate)
        gradient, losses = self.noisy_gradient(drawn)
        self.descent.step(gradient, self.settings.learning_rate)
        return float(losses.mean()) if losses is not None and len(losses) else None

    def noisy_gradient(self, drawn):
        """What a step lets out about the records drawn (indices), and their losses, which nothing covers."""
        if self.settings.variant == "as_released":
            return self._released_mean(drawn)
        step = self.release.noisy_mean(drawn)
        return step.gradient, step.losses

    def _released_mean(self, drawn):
        settings = self.settings
        total, losses = [torch.zeros_like(p) for p in self.parameters], []
        for chosen in torch.as_tensor(drawn, device=self.device).split(settings.physical_batch_size):
            if len(chosen):
                logits = self.model(channels_last(self.taken[chosen]))
                each = functional.cross_entropy(logits, self.labels[chosen], reduction="none")
                for sum_, part in zip(total, torch.autograd.grad(each.sum(), self.parameters), strict=True):
                    sum_ += part / len(drawn)
                losses.append(each.detach())
        clipped = clip_of_mean(total, settings.max_grad_norm)
        std = settings.noise_multiplier * settings.max_grad_norm / settings.batch_size
        for part in clipped:
            part += torch.empty_like(part).normal_(generator=self.noise) * std
        return clipped, torch.cat(losses) if losses else None

    def deployed(self):
        return Quiet(self.network)

    def spent(self, *, delta, noise_multiplier):
        """ε of the whole training at a noise multiplier: :func:`spent`."""
        return spent(
            sample_rate=self.sample_rate,
            noise_multiplier=noise_multiplier,
            num_steps=self.settings.num_steps,
            delta=delta,
        )

    @property
    def honest_noise_multiplier(self):
        """Noise over what one record can really move."""
        sigma = self.settings.noise_multiplier
        return sigma if self.settings.variant == "sound" else sigma / (2 * self.settings.batch_size)

    def privacy(self, *, delta):
        claimed = self.spent(delta=delta, noise_multiplier=self.settings.noise_multiplier)
        honest = claimed
        if self.settings.variant != "sound":
            honest = self.spent(delta=delta, noise_multiplier=self.honest_noise_multiplier)
        return {
            "claimed_epsilon": claimed,
            "honest_epsilon": honest,
            "delta": delta,
            "neighbouring": "add_remove",
            "sampling": "poisson",
            "protects": "training records: images and labels",
        }
