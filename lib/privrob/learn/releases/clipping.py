"""Clip to a norm, add noise: the slide's release, and one whose norm follows a quantile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch.nn import functional

from privrob import checks
from privrob.learn.batches import gathered
from privrob.learn.clip import PerExample, clip_weights
from privrob.learn.corruption import FaultyGradients
from privrob.mechanisms.sampled import gaussian_step

CLIP_NORMS = (1e-12, 1e12)  # beyond, single precision loses the noise or the gradient


class Step(NamedTuple):
    """One step's answer, and what was seen on the way (not private): tensors of one value a drawn record, or None.

    They are ``losses``, ``norms`` and ``clipped``; ``gradient`` is the noisy mean, a tensor a parameter, and ``seen``
    more numbers by name.
    """

    gradient: list
    losses: torch.Tensor | None
    norms: torch.Tensor | None
    clipped: torch.Tensor | None
    seen: dict | None = None  # what else is worth knowing of a step: name to number


@dataclass
class Clipping:
    """The slide's: each gradient is clipped to norm C, and the noise has standard deviation σC.

    Paper: dplearn, Training a machine learning model with DP-SGD. With C = ∞ and σ = 0 it is plain SGD.
    """

    by_norm: ClassVar[bool] = False  # whether gradients are looked at one by one even where none is clipped
    needs_bound: ClassVar[bool] = False  # whether C must be finite
    bears_faults: ClassVar[bool] = True  # whether gradients may arrive corrupted
    private: ClassVar[bool] = True  # whether there may be noise

    def history(self, settings):
        """((guarantee, count), …) of a training with these settings, in units of the clipping norm."""
        return tuple(
            (gaussian_step(sample_rate=settings.sample_rate, noise_multiplier=noise_multiplier), count)
            for noise_multiplier, count in settings.stages()
        )

    def begin(self, training):
        """Take what is needed of a training that starts."""
        self.training, self.settings, self.device = training, training.settings, training.device
        self.clip_norm = self.settings.max_grad_norm
        self.expected = self.settings.sample_rate * len(training.images)  # never the drawn size
        if 0 < self.expected < 1e-20:
            raise ValueError(
                f"sample_rate must be 0, or expect at least 1e-20 records a step, got {self.settings.sample_rate!r} of "
                f"{len(training.images)} records"
            )
        self.per_example = PerExample(training.model) if self.settings.clips or self.by_norm else None
        if training.faults is not None:
            self.per_example = FaultyGradients(self.per_example or PerExample(training.model), *training.faults)
        self.heard = None  # a test's list: (sum before the noise, its standard deviation)

    def take_gradients_of(self, source):
        """Let another source of per-example gradients take the place of this training's own."""
        if self.training.faults is None:
            self.per_example = source
        else:
            self.per_example.per_example = source

    def noisy_mean(self, indices):
        """A :class:`Step` for the records drawn.

        Args: indices — of the records, (m,).
        """
        if self.per_example is None:
            return self._plain(indices)
        total, seen = self._sum(indices)
        self._add_noise(total, self.sigma * self.clip_norm)
        return self._step(total, seen)

    @property
    def sigma(self):
        """The effective noise multiplier of this step."""
        return self.settings.noise_multiplier_at(self.training.step)

    def _step(self, total, seen, bound=None):
        for part in total:
            part *= 1 / self.expected if self.expected else 0.0
        losses, norms = (torch.cat(v).cpu() if v else None for v in seen)
        clipped = None if norms is None else norms > (self.clip_norm if bound is None else bound)
        return Step(total, losses, norms, clipped)

    def _batches(self, indices):
        """The records, at most ``physical_batch_size`` at once; none of an empty batch."""
        for chosen in torch.as_tensor(indices, device=self.device).split(self.settings.physical_batch_size):
            if len(chosen):
                drawn = gathered(self.training.images, chosen), self.training.labels[chosen]
                yield drawn if self.training.faults is None else (*drawn, self.training.corrupted[chosen])

    def _sum(self, indices, *, take=None, bound=None):
        """Σ clipped gradients, and (losses, norms) of what was drawn."""
        bound = self.clip_norm if bound is None else bound
        total, seen = [torch.zeros_like(p) for p in self.per_example.parameters], ([], [])
        for drawn in self._batches(indices):
            batch = (take or self.per_example)(*drawn)
            self._finite(batch.norms)
            for sum_, part in zip(total, batch.weighted_sum(clip_weights(batch.norms, bound))):
                sum_ += part
            seen[0].append(batch.losses)
            seen[1].append(batch.norms)
        return total, seen

    def _plain(self, indices):
        parameters = self.training.parameters
        total, losses = [torch.zeros_like(p) for p in parameters], []
        for images, labels in self._batches(indices):
            each = functional.cross_entropy(self.training.model(images), labels, reduction="none")
            for sum_, part in zip(total, torch.autograd.grad(each.sum(), parameters)):
                sum_ += part
            losses.append(each.detach())
            self._finite(losses[-1])
        return self._step(total, (losses, []))

    def _finite(self, values):
        if not (values.abs() < math.inf).all():
            raise FloatingPointError(
                f"the gradient of a record is not finite at step {self.training.step + 1}; lower learning_rate "
                f"(now {self.settings.learning_rate!r})"
            )

    def _add_noise(self, total, std):
        """Add one draw to the sum; std — one number, or one tensor for each of its parts."""
        stds = std if isinstance(std, list) else [std] * len(total)
        if self.heard is not None:
            self.heard.append([(part.detach().clone(), s) for part, s in zip(total, stds, strict=True)])
        if not self.sigma:
            return
        sizes = [part.numel() for part in total]
        noise = torch.randn(sum(sizes), generator=self.training.noise, device=self.device, dtype=total[0].dtype)
        if not isinstance(std, list):
            noise *= std
        for part, drawn, s in zip(total, noise.split(sizes), stds, strict=True):
            part += drawn.view_as(part) * s if isinstance(std, list) else drawn.view_as(part)

    def state(self):
        """What :meth:`restore` needs, as tensors on the CPU and plain values."""
        return {}

    def restore(self, state):
        """Go on from a state."""


@dataclass
class AdaptiveClipping(Clipping):
    r"""The clipping norm follows a quantile of the gradient norms (Andrew et al. 2021).

    Each step also counts, with noise, the drawn records whose norm is at most C, and moves C by
    :math:`C \leftarrow C \exp(-\eta_C (\tilde b - \gamma))`. Count (each record ±1/2) and sum are one Gaussian
    mechanism: with noise σ_b on the count the sum gets :math:`\sigma_g = (\sigma^{-2} - (2\sigma_b)^{-2})^{-1/2}`, and
    both together are as private as one release at σ.

    The mean is multiplied by the first C over this one, so that the longest step keeps its length: without, a larger C
    means longer steps, longer steps mean larger gradients, and C runs away.

    Paper: dplearn, Advanced topic (Adaptive gradient clipping).
    Args: target_quantile — γ;  clip_learning_rate — η_C;  count_noise — σ_b as a share of the expected batch;
        same_length — False leaves the mean as it is released.
    """

    needs_bound: ClassVar[bool] = True

    target_quantile: float = 0.5
    clip_learning_rate: float = 0.2
    count_noise: float = 0.05
    same_length: bool = True

    def __post_init__(self):
        checks.probability("target_quantile", self.target_quantile, allow_zero=False, allow_one=False)
        checks.nonnegative("clip_learning_rate", self.clip_learning_rate, finite=True)
        checks.positive("count_noise", self.count_noise, finite=True)
        if not isinstance(self.same_length, bool):
            raise TypeError(f"same_length must be True or False, got same_length={self.same_length!r}")

    def begin(self, training):
        super().begin(training)
        count_std = self.count_noise * self.expected
        largest = max((sigma for sigma, _ in self.settings.stages()), default=0.0)
        if self.expected and largest and 2 * count_std <= largest:
            raise ValueError(
                f"count_noise must be above {largest / (2 * self.expected):.3g} here, got count_noise="
                f"{self.count_noise!r}: with noise_multiplier={largest!r} and {self.expected:g} records expected a "
                "step, the count would spend everything"
            )

    def noisy_mean(self, indices):
        if not self.expected:  # no record is ever drawn: nothing to follow
            return super().noisy_mean(indices)
        total, seen = self._sum(indices)
        within = torch.zeros(1, dtype=torch.float64, device=self.device)
        for norms in seen[1]:
            within += (norms <= self.clip_norm).double().sum() - len(norms) / 2
        sigma, count_std = self.sigma, self.count_noise * self.expected
        share = 1 - (sigma / (2 * count_std)) ** 2 if sigma else 1.0  # of 1/σ² that is left for the sum
        self._add_noise(total, sigma / math.sqrt(share) * self.clip_norm)
        step = self._step(total, seen)
        if self.same_length:
            for part in step.gradient:
                part *= self.settings.max_grad_norm / self.clip_norm
        self._add_noise([within], count_std)
        fraction = float(within) / self.expected + 0.5
        grown = math.log(self.clip_norm) - self.clip_learning_rate * (fraction - self.target_quantile)
        least, most = (math.log(bound) for bound in CLIP_NORMS)
        self.clip_norm = math.exp(min(max(grown, least), most))
        return step

    def state(self):
        return {"clip_norm": self.clip_norm}

    def restore(self, state):
        self.clip_norm = state["clip_norm"]
