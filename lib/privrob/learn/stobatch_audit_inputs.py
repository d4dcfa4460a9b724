r"""Attacks on perturbed inputs: the batch of perturbed records, its sums, and the gradient that is made of them.

Algorithm 1 draws one χ₁ for all records: x̄_i − x̄_j = x_i − x_j, exactly. :func:`opened` is all that is needed to see
the data: one known record. The gradient of the auto-encoder (Equation 19) is

.. math:: G = \sum_i (\tfrac12 - \bar x_i)\bar h_i^T, \quad \bar h_i = \theta_1^T \bar x_i + 2\chi_2/m,

and with one noise c = χ₁/m for all it is the same sum of the clean records, plus a matrix of rank two:
:math:`(s - mc)u^T - c v^T` with s = Σ(1/2 − x_i), v = Σθ₁ᵀx_i, u = θ₁ᵀc + 2χ₂/m. An adversary who subtracts the right
clean sum finds rank two, with the wrong one more.

In every attack ``budget`` is the document's split of the claim, ``present`` says whether the data set is D (True) or
D′, one record replaced; ``claimed_epsilon`` is what the document claims for the item, and ``honest_epsilon`` the exact
cost for this pair, infinite where nothing hides it.

Paper: stobatch, Algorithm 1 (line 2), Lemma 3, Theorem 1, Equations 16 and 19, Appendix N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.accounting.functional_budget import split
from privrob.learn.stobatch_audit import NOISES, dense_budget, exactly, in_pieces

PIECE = 2_000_000  # numbers drawn at once


def blank(num_inputs):
    """An image of background, −1 everywhere.

    Args: num_inputs — d.
    Returns: shape (num_inputs,).
    """
    return np.full(num_inputs, -1.0)


def flipped(image, num_pixels):
    """The image with its first pixels at the other end of [−1, 1].

    Args: image — (d,);  num_pixels — how many.
    Returns: shape (d,).
    """
    return np.where(np.arange(image.size) < num_pixels, -image, image)


def perturbed(images, *, scale, noise, rng):
    """Line 2: x + χ₁/m, one draw for all records or one for each. Args: noise — ``shared`` or ``independent``;  images
    — (n, D);  scale — b.
    """
    checks.choice("noise", noise, NOISES)
    rows = 1 if noise == "shared" else len(images)
    return images + rng.laplace(scale=scale, size=(rows, images.shape[1]))


def opened(batch, *, index, record):
    """All records of a batch from one that is known: x̄_i − x̄_index + x_index, the data where noise is shared.

    Args: batch — perturbed, (n, d);  index — of the known record;  record — as it is, (d,).
    """
    return batch - batch[index] + record


def _check_differing(num_differing, num_inputs):
    if num_differing is not None:
        checks.integer("num_differing", num_differing, low=1, high=num_inputs, hint="None: all")


@dataclass(frozen=True)
class PerturbedBatch:
    """Attack A: does x̄ − (x̄ of a known record) equal what it must be under D, wherever nothing was clipped?

    Args: dataset, epsilon — of the claim;  noise — shared as printed, or independent;  num_differing — pixels in which
        the two candidates differ (None: all);  clip — the authors' release clips perturbed inputs to ±10.
    """

    dataset: str = "mnist"
    epsilon: float = 0.2
    noise: str = "shared"
    num_differing: int | None = 120
    clip: float = 10.0

    def __post_init__(self):
        checks.choice("noise", self.noise, NOISES)
        checks.positive("clip", self.clip)
        _check_differing(self.num_differing, self.budget.num_inputs)

    @property
    def budget(self):
        """The document's split of ε for this data set."""
        return split(self.dataset, self.epsilon)

    @property
    def claimed_epsilon(self):
        """The claim ε₁/γx (Lemma 3)."""
        return self.budget.claimed_epsilon_inputs

    @property
    def honest_epsilon(self):
        """Of this pair: infinite where noise is shared, else (l1 distance)/b. Clipping is post-processing.

        Side: upper for this pair, exact where nothing is clipped.
        """
        distance = 2 * (self.budget.num_inputs if self.num_differing is None else self.num_differing)
        return math.inf if self.noise == "shared" else distance / self.budget.input_scale

    def _pair(self):
        """The two candidates for one record."""
        image = blank(self.budget.num_inputs)
        return image, flipped(image, image.size if self.num_differing is None else self.num_differing)

    def says(self, present, *, num_trials, rng):
        """In how many trials the adversary says D."""
        budget = self.budget
        candidates = self._pair()
        known = flipped(blank(budget.num_inputs), budget.num_inputs // 3)
        count = 0
        for n in in_pieces(num_trials, max(1, PIECE // (2 * budget.num_inputs))):
            pair = np.stack([candidates[0 if present else 1], known])
            rows = 1 if self.noise == "shared" else 2
            noise = rng.laplace(scale=budget.input_scale, size=(n, rows, budget.num_inputs))
            seen = np.clip(pair + noise, -self.clip, self.clip)
            whole = (np.abs(seen) < self.clip).all(axis=1)
            telling = whole & (candidates[0] != candidates[1])
            right = np.abs(seen[:, 0] - seen[:, 1] - (candidates[0] - known)) < 1e-9
            count += int((telling.any(axis=1) & (right | ~whole).all(axis=1)).sum())
        return count


@dataclass(frozen=True)
class OneRecord:
    """Attack B: likelihood ratio of one perturbed record whose noise is its own.

    Args: as :class:`PerturbedBatch`;  scale — of the noise, if not that of the claim.
    """

    dataset: str = "mnist"
    epsilon: float = 0.2
    num_differing: int | None = None
    scale: float | None = None

    def __post_init__(self):
        _check_differing(self.num_differing, self.budget.num_inputs)
        if self.scale is not None:
            checks.positive("scale", self.scale, finite=True)

    @property
    def budget(self):
        """The document's split of ε for this data set."""
        return split(self.dataset, self.epsilon)

    @property
    def _num_differing(self):
        return self.budget.num_inputs if self.num_differing is None else self.num_differing

    @property
    def _scale(self):
        return self.budget.input_scale if self.scale is None else self.scale

    @property
    def claimed_epsilon(self):
        """The claim ε₁/γx (Lemma 3), for one record as for a batch."""
        return self.budget.claimed_epsilon_inputs

    @property
    def honest_epsilon(self):
        """(l1 distance)/b, exact: every pixel's loss is attained."""
        return 2 * self._num_differing / self._scale

    def scores(self, present, *, num_trials, rng):
        """Log likelihood ratio of D to D′; pixels in which they agree say nothing.

        Returns: shape (num_trials,).
        """
        centre = -1.0 if present else 1.0
        found = []
        for n in in_pieces(num_trials, max(1, PIECE // self._num_differing)):
            seen = centre + rng.laplace(scale=self._scale, size=(n, self._num_differing))
            found.append((np.abs(seen - 1) - np.abs(seen + 1)).sum(axis=1) / self._scale)
        return np.concatenate(found)


@dataclass(frozen=True)
class BatchSum:
    """Attacks S1–S4: sums of perturbed batches, Σx + χ₁.

    Args: dataset, epsilon — of the claim;  noise — shared or independent;  batches — 1, or 2 with ``noise`` shared by
        both or drawn for each (independent);  noise_known — the adversary holds a model that carries χ₁.
    """

    dataset: str = "mnist"
    epsilon: float = 0.2
    batches: int = 1
    noise: str = "shared"
    noise_known: bool = False

    def __post_init__(self):
        checks.integer("batches", self.batches, low=1, high=2)
        checks.choice("noise", self.noise, NOISES)

    @property
    def budget(self):
        """The document's split of ε for this data set."""
        return split(self.dataset, self.epsilon)

    @property
    def claimed_epsilon(self):
        """The claim ε₁/γx (Result 3)."""
        return self.budget.claimed_epsilon_inputs

    @property
    def honest_epsilon(self):
        """2Dε₁/Δ_R for a sum; infinite for two sums under one noise, or where the noise is known.

        Side: exact.
        """
        exact = self.noise_known or (self.batches == 2 and self.noise == "shared")
        return math.inf if exact else self.budget.honest_epsilon_sum

    def scores(self, present, *, num_trials, rng):
        """Log likelihood ratio of D to D′, the other records known; or ±∞ where sums tell all.

        Returns: shape (num_trials,).
        """
        size, scale = self.budget.num_inputs, self.budget.reconstruction_sensitivity / self.budget.epsilon_features
        centre = -1.0 if present else 1.0  # all other records are known and subtracted
        found = []
        for n in in_pieces(num_trials, max(1, PIECE // (2 * size))):
            noise = rng.laplace(scale=scale, size=(n, size))
            first, second = (
                centre + noise,
                noise if self.noise == "shared" else rng.laplace(scale=scale, size=(n, size)),
            )
            if math.isinf(self.honest_epsilon):
                left = first - (noise if self.noise_known else second)
                found.append(np.where(exactly(left, -1.0, axis=1), 1.0, -1.0))
            else:
                found.append((np.abs(first - 1) - np.abs(first + 1)).sum(axis=1) / scale)
        return np.concatenate(found)


@dataclass(frozen=True)
class FeatureGradient:
    """Attack C: subtract the clean gradient of D from the one that is seen; under D, rank two is left.

    Args: epsilon, epsilon_labels — claimed in all, and its ε₂;  batch_size, num_inputs, num_features — m, d, β of a
        fully connected first layer;  noise — shared or independent.
    """

    epsilon: float = 0.2
    epsilon_labels: float = 0.1
    batch_size: int = 2499
    num_inputs: int = 64
    num_features: int = 16
    noise: str = "shared"

    def __post_init__(self):
        checks.choice("noise", self.noise, NOISES)
        for name in ("batch_size", "num_inputs", "num_features"):
            checks.integer(name, getattr(self, name), low=1)

    @property
    def budget(self):
        """The split of ε on a dense first layer, :func:`privrob.learn.stobatch_audit.dense_budget`."""
        sizes = {"batch_size": self.batch_size, "num_inputs": self.num_inputs, "num_features": self.num_features}
        return dense_budget(self.epsilon, epsilon_labels=self.epsilon_labels, **sizes)

    @property
    def claimed_epsilon(self):
        """The claim ε₁ + ε₁/γx (Theorem 1)."""
        return self.budget.epsilon_features + self.budget.claimed_epsilon_inputs

    @property
    def honest_epsilon(self):
        """Infinite with shared noise, else an upper bound: 2D/b of the inputs, the rest is post-processing."""
        return math.inf if self.noise == "shared" else self.budget.honest_epsilon_independent

    def gradient(self, images, theta, *, at_inputs=0.0, at_hidden=0.0):
        """Equation 19: Σ (1/2 − x̄_i) h̄_iᵀ, shape (d, β).

        Args: images — (n, d);  theta — θ₁, (d, β);  at_inputs, at_hidden — noise, broadcasts to (n, d) and (n, β).
        """
        seen = images + at_inputs
        return (0.5 - seen).T @ (seen @ theta + at_hidden)

    def data(self, rng):
        """A batch and a neighbour, whose first records are opposites; and θ₁ with operator norm 1."""
        images = np.where(rng.random((self.batch_size, self.num_inputs)) < 0.2, 1.0, -1.0)
        neighbour = images.copy()
        neighbour[0] = -images[0]
        theta = rng.normal(size=(self.num_inputs, self.num_features))
        return images, neighbour, theta / np.abs(theta).sum(axis=1).max()

    def says(self, present, *, num_trials, rng):
        """In how many trials the adversary, who knows θ₁ and both candidates, says D."""
        images, neighbour, theta = self.data(np.random.Generator(np.random.PCG64(0)))  # public: the same in both arms
        clean = self.gradient(images, theta)
        real = images if present else neighbour
        rows = 1 if self.noise == "shared" else self.batch_size
        count = 0
        for _ in range(num_trials):
            at_inputs = rng.laplace(scale=self.budget.input_scale, size=(rows, self.num_inputs))
            at_hidden = rng.laplace(scale=self.budget.hidden_scale, size=(rows, self.num_features))
            seen = self.gradient(real, theta, at_inputs=at_inputs, at_hidden=at_hidden)
            count += int(rank_after(seen - clean) <= 2)
        return count


def rank_after(matrix, *, tolerance=1e-11):
    """Numerical rank: singular values above so small a share of the largest.

    Args: matrix — (a, b);  tolerance — that share.
    """
    values = np.linalg.svd(matrix, compute_uv=False)
    return int((values > tolerance * values[0]).sum()) if values[0] else 0
