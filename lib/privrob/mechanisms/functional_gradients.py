r"""What one gradient tells if a single noise vector is added to all records: everything but a matrix of rank one.

StoBatch trains on x̄ᵢ = xᵢ + c and h̄ᵢ = aᵢ + u with the *same* c and u for every record i. Its gradients are sums over
records of products of both, and for any vectors p, q and any shared u, w

.. math:: \sum_i (p_i + u)(q_i + w)^\top = m\,(\bar p + u)(\bar q + w)^\top + \sum_i (p_i - \bar p)(q_i - \bar q)^\top .

The last term has no noise. The noise can only move the first, which has rank one; so whoever knows θ₀ and a candidate
data set subtracts the candidate's last term and looks at the rank of what is left. It is at most one for the true data
set, always, and higher for another, with probability one where the difference of the last terms has rank two (or one
that does not line up). No amount of noise changes that.

``inputs`` are perturbed records x̄, (m, d); ``hidden`` is h̄, (m, β); ``hidden_noise`` is what was added to it, of that
shape or (β,); ``theta`` is θ₁, (d, β); ``weights`` V and ``output`` W as in :class:`FirstStep`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from privrob import checks


def reconstruction_gradient(inputs, hidden):
    """Σ (1/2 − x̄ᵢ)h̄ᵢᵀ, (d, β): the document's gradient by θ₁, h̄ held fixed. Paper: stobatch, Equation 19."""
    return (0.5 - checks.array("inputs", inputs, ndim=2)).T @ checks.array("hidden", hidden, ndim=2)


def tied_gradient(inputs, hidden, theta):
    """The gradient of the same objective when h̄ = θᵀx̄ + noise moves with θ: Σ (1/2 − x̄)h̄ᵀ + x̄ (1/2 − x̄)ᵀθ.

    Returns: (d, β).
    """
    inputs = checks.array("inputs", inputs, ndim=2)
    return reconstruction_gradient(inputs, hidden) + inputs.T @ ((0.5 - inputs) @ checks.array("theta", theta, ndim=2))


def reconstruction_objective(inputs, hidden_noise, theta):
    """Σᵢ Σⱼ θ_j(1/2 − x̄ᵢⱼ)h̄ᵢ with h̄ = θᵀx̄ + noise. Paper: stobatch, Equation 6.

    Returns: a number; the arguments have the shapes above.
    """
    inputs = checks.array("inputs", inputs, ndim=2)
    return float((((0.5 - inputs) @ theta) * (inputs @ theta + hidden_noise)).sum())


def label_slopes(hidden, labels, weights, output):
    """g = Σ_k (1/2 − y_k + h_π·W_k/4)W_k of every record, (m, |h_π|): slopes of the truncated loss by h_π = V h̄.

    Args: hidden — (m, β);  labels — one-hot, (m, K).
    """
    hidden, labels = checks.array("hidden", hidden, ndim=2), checks.array("labels", labels, ndim=2)
    return (0.5 - labels + (hidden @ weights.T) @ output / 4) @ output.T


def label_gradient(hidden, labels, weights, output):
    """Σ gᵢh̄ᵢᵀ/m, (|h_π|, β): the gradient of the truncated loss by the layer *below* the last, which the noise χ₃ on
    labels doesn't reach; g is :func:`label_slopes`.

    Paper: stobatch, Section 3.2 and Theorem 3.
    Args: hidden — h̄, (m, β);  labels — one-hot, (m, K);  weights — V, (|h_π|, β);  output — W, (|h_π|, K).
    """
    return label_slopes(hidden, labels, weights, output).T @ checks.array("hidden", hidden, ndim=2) / len(hidden)


def centred(left, right):
    """Σ (pᵢ − p̄)(qᵢ − q̄)ᵀ: the part of Σ pᵢqᵢᵀ that no shared noise touches.

    Args: left, right — p and q, (m, a) and (m, b).
    Returns: (a, b).
    """
    left, right = checks.array("left", left, ndim=2), checks.array("right", right, ndim=2)
    return (left - left.mean(axis=0)).T @ (right - right.mean(axis=0))


def beyond_rank(matrix, rank):
    """The first singular value that a matrix of this rank would not have, over its largest: 0 up to rounding if it has
    at most that rank."""
    values = np.linalg.svd(checks.array("matrix", matrix, ndim=2), compute_uv=False)
    checks.integer("rank", rank, low=0, high=len(values) - 1)
    return float(values[rank] / values[0]) if values[0] else 0.0


def exact_rank(matrix):
    """The rank in exact arithmetic: float64 entries are rational numbers, and so are sums and products of them.

    Args: matrix — (a, b), finite.
    """
    rows, rank = [[Fraction(entry) for entry in row] for row in matrix], 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] / rows[rank][column]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[rank], strict=True)]
        rank += 1
    return rank


@dataclass(frozen=True)
class FirstStep:
    """One step of Algorithm 1 from a public θ₀, on two classes and linear layers: small enough to be judged exactly.

    Paper: stobatch, Algorithm 1, lines 4–12.
    Args: theta — θ₁, (d, β);  weights — V, (|h_π|, β);  output — W, (|h_π|, 2);  scale — b of the input's noise;
        shared — one noise vector for all records (as printed), or one for each.
    """

    theta: np.ndarray
    weights: np.ndarray
    output: np.ndarray
    scale: float
    shared: bool = True

    def perturbed(self, images, *, rng):
        """(x̄, h̄'s own noise): of the shapes of the batch, equal rows if the noise is shared."""
        images = checks.array("images", images, ndim=2)
        rows = 1 if self.shared else len(images)
        noise = rng.laplace(0.0, self.scale, (rows, images.shape[1]))
        hidden_noise = rng.laplace(0.0, 2 * self.scale, (rows, self.theta.shape[1]))
        return images + noise, np.broadcast_to(hidden_noise, (len(images), self.theta.shape[1]))

    def hidden(self, inputs, hidden_noise):
        """h̄ = θ₁ᵀx̄ + 2χ₂/m."""
        return inputs @ self.theta + hidden_noise

    def fgsm(self, inputs, hidden_noise, *, radius):
        """(x̄ + μ sign(∇), predicted labels). Paper: stobatch, Equation 7: the label is the model's own.

        Args: radius — μ.
        """
        scores = self.hidden(inputs, hidden_noise) @ self.weights.T @ self.output
        predicted = scores.argmax(axis=1)
        slope = self.theta @ self.weights.T @ (self.output[:, 1] - self.output[:, 0])  # of the margin of class 1
        return inputs + radius * np.sign(np.where(predicted[:, None] == 1, -slope, slope)), predicted

    def reconstruction(self, inputs, hidden_noise):
        """The gradient of Equation 19 on perturbed inputs, (d, β)."""
        return reconstruction_gradient(inputs, self.hidden(inputs, hidden_noise))

    def without_noise(self, images):
        """What that gradient holds of a batch apart from a matrix of rank one: −Σ(x − x̄)(x − x̄)ᵀθ₁."""
        return -centred(images, images) @ self.theta
