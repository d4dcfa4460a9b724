r"""Corrupted training: a share of the records has wrong labels, noisy images, or gradients that arrive wrong.

Which records are corrupted is drawn once, before training; so are their labels and images. Gradients are corrupted
each time their record is drawn, before they are clipped. Each record's corruption depends on nothing else, so that
adding or removing a record still changes one gradient.

* ``label``: another class, uniformly;  ``targeted_label``: class y of k becomes k − 1 − y
* ``feature``: N(0, s²) on each pixel, in the images' units (pixels in [0, 1])
* ``gradient``: N(0, s²) on each coordinate;  ``gradient_sign``: the gradient's negative
* those of :mod:`privrob.learn.knowing`: attackers that know the rule

Paper: ptr, B.1.1 and B.3. Left open there, and chosen here: N(0, 100) has variance 100 (s = 10); labels and images are
corrupted once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privrob import checks
from privrob.learn import knowing

KINDS = ("none", "label", "targeted_label", "feature", "gradient", "gradient_sign", *knowing.KINDS)
_GRADIENTS = ("gradient", "gradient_sign", *knowing.KINDS)


@dataclass(frozen=True)
class Corruption:
    """What is wrong with how many records.

    Args: kind — one of :data:`KINDS`;  rate — share of the training records, in [0, 1];  noise_std — s;  options —
        of :class:`privrob.learn.knowing.Knowledge`, for its kinds.
    """

    kind: str = "none"
    rate: float = 0.0
    noise_std: float = 10.0
    options: dict | None = None

    def __post_init__(self):
        checks.choice("corruption", self.kind, KINDS)
        checks.probability("corruption_rate", self.rate)
        checks.nonnegative("corruption_std", self.noise_std, finite=True)
        if self.options is not None and self.kind not in knowing.KINDS:
            raise ValueError(f"corruption_options must be None with corruption {self.kind!r}, got {self.options!r}")
        knowing.Knowledge.of(self.options)
        if self.kind == "none" and self.rate:
            raise ValueError(f"corruption_rate must be 0 with corruption 'none', got corruption_rate={self.rate!r}")

    @property
    def of_gradients(self):
        """Whether there is something to do at each step."""
        return self.kind in _GRADIENTS and self.rate > 0

    def chosen(self, num_records, *, streams):
        """Which records are corrupted: round(rate · n) of them, at random; a Boolean tensor (n,)."""
        bad = torch.zeros(num_records, dtype=torch.bool)
        count = round(self.rate * num_records)
        bad[torch.from_numpy(streams.numpy("corrupted").permutation(num_records)[:count])] = True
        return bad

    def records(self, images, labels, *, num_classes, streams):
        """Images, labels and which of them are corrupted; the tensors that were given stay as they are."""
        bad = self.chosen(len(labels), streams=streams).to(labels.device)
        count = int(bad.sum())
        if self.kind in ("label", "wrong_label"):
            away = streams.numpy("corrupted labels").integers(1, num_classes, count)
            labels = labels.clone()
            labels[bad] = (labels[bad] + torch.from_numpy(away).to(labels)) % num_classes
        elif self.kind == "targeted_label":
            labels = torch.where(bad, num_classes - 1 - labels, labels)
        elif self.kind == "feature" and count:
            images = images.clone()
            shape = (count, *images.shape[1:])
            noise = torch.randn(shape, generator=streams.torch("corrupted images"), dtype=images.dtype)
            images[bad] += self.noise_std * noise.to(images.device)
        return images, labels, bad


class FaultyGradients:
    """Per-example gradients of which some arrive wrong: called with (images, labels, which of them are corrupted).

    Args: per_example — :class:`privrob.learn.clip.PerExample`;  corruption — of gradients;  source — a generator on
        the device of the gradients, that draws for the corrupted ones among those of a call, in order; or
        :class:`privrob.learn.knowing.Attackers`.
    """

    def __init__(self, per_example, corruption, source):
        self.per_example, self.corruption, self.source = per_example, corruption, source
        self.parameters = per_example.parameters

    @property
    def formed(self):
        """Whether all gradients are formed one by one anyway."""
        return self.per_example.formed

    def __call__(self, images, labels, bad):
        if self.corruption.kind in knowing.KINDS:
            return self.source.faulty(self.per_example(images, labels), bad)
        if self.corruption.kind == "gradient_sign":
            batch = self.per_example(images, labels)
            return knowing.Scaled(batch, bad, torch.full_like(batch.norms, -1.0))
        if not self.per_example.formed:
            return _Noisy(self, images, labels, bad)
        batch = self.per_example(images, labels)
        return batch.plus(bad, self.noise(batch.gradients()[bad]))

    def noise(self, like):
        """What is added to gradients, one a row.

        Args: like — the gradients, (m, d).
        Returns: shape (m, d).
        """
        drawn = torch.randn(like.shape, generator=self.source, dtype=like.dtype, device=like.device)
        return self.corruption.noise_std * drawn


class _Noisy:
    """The corrupted ones are formed one by one and get their noise; the others keep to the cheap way."""

    def __init__(self, source, images, labels, bad):
        self._parameters, self._bad = source.parameters, bad
        self.losses = torch.empty(len(labels), dtype=images.dtype, device=images.device)
        self.norms = torch.empty(len(labels), dtype=torch.float64, device=images.device)
        self._rows = self._good = None
        if bad.any():
            batch = source.per_example(images[bad], labels[bad])
            rows = batch.gradients()
            self._rows = rows + source.noise(rows)
            self.losses[bad], self.norms[bad] = batch.losses, torch.linalg.vector_norm(self._rows.double(), dim=1)
        if not bad.all():
            self._good = source.per_example(images[~bad], labels[~bad])
            self.losses[~bad], self.norms[~bad] = self._good.losses, self._good.norms

    def weighted_sum(self, weights):
        sums = [torch.zeros_like(p) for p in self._parameters]
        if self._good is not None:
            sums = self._good.weighted_sum(weights[~self._bad])
        if self._rows is not None:
            flat = weights[self._bad].to(self._rows.dtype) @ self._rows
            for sum_, part in zip(sums, flat.split([p.numel() for p in self._parameters]), strict=True):
                sum_ += part.view(sum_.shape)
        return sums

    def gradients(self):
        width = sum(p.numel() for p in self._parameters)
        rows = torch.empty(len(self.losses), width, dtype=self.losses.dtype, device=self.losses.device)
        if self._rows is not None:
            rows[self._bad] = self._rows
        if self._good is not None:
            rows[~self._bad] = self._good.gradients()
        return rows
