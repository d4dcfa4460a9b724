r"""The functional mechanism: publish a loss function with Laplace noise on its polynomial coefficients, then minimise.

A loss that is a sum over records of polynomials in θ is known by the sums of its coefficients. Their l1 sensitivity is
a matter of the data alone, so that Laplace noise on the sums makes the whole function private, and what anybody
computes from the noisy function (its minimiser, by whatever method) is post-processing (Zhang et al. 2012).

StoBatch uses it three times: linear regression as an example (Appendix B), an auto-encoder's reconstruction, cut off
after first order (Section 3.1), and a classification loss, cut off after second order (Section 3.2). For z = θ_j h and
*every* target x the reconstruction's cross-entropy is log(1 + eᶻ) − xz, so that its remainder is log cosh(z/2) whatever
the data: the approximation's error depends on how far θ and h let z go, and on nothing else.

``num_inputs`` is d, ``num_neurons`` β, ``num_hidden`` |h_π|, ``order`` that of a Taylor polynomial, 1 or 2; ``scores``
are the z of a loss, ``targets`` the x in [0, 1] that they should give, and ``hidden`` values of hidden units, (n,
units). Sums change by at most the stated sensitivity in l1 when one record is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from privrob import checks
from privrob.mechanisms.noise import Laplace

FORMS = ("sound", "as_printed")


@dataclass(frozen=True)
class Functional:
    """Laplace noise on the coefficients of a loss, summed over the records.

    Paper: stobatch, Appendix B (Functional Mechanism).
    Assumes: ``l1_sensitivity`` bounds the l1 change of the sums in any neighbour; :func:`general_sensitivity` does so
        for all relations.
    Args: coefficients — function of the data: the sums, an array of any shape;  laplace_scale — b;  l1_sensitivity — Δ.
    """

    coefficients: Callable
    laplace_scale: float
    l1_sensitivity: float

    def __post_init__(self):
        if not callable(self.coefficients):
            raise TypeError(f"coefficients must be a function of the data, got {type(self.coefficients).__name__}")
        _ = self.noise  # which checks the numbers

    @classmethod
    def for_epsilon(cls, coefficients, *, epsilon, l1_sensitivity):
        """The mechanism of the document: noise of scale Δ/ε.

        Side: exactly ε-DP, for the relation that the sensitivity was taken over.
        """
        noise = Laplace.for_epsilon(epsilon, l1_sensitivity=l1_sensitivity)
        return cls(coefficients, noise.laplace_scale, noise.l1_sensitivity)

    @property
    def noise(self):
        """The :class:`privrob.mechanisms.noise.Laplace` mechanism that carries the guarantees."""
        return Laplace(self.laplace_scale, self.l1_sensitivity)

    @property
    def pure_epsilon(self):
        """Δ/b. The exact ε of pure DP."""
        return self.noise.pure_epsilon

    def release(self, data, *, rng):
        """The noisy coefficients, float64. Of ``data``, as ``coefficients`` takes it."""
        return self.noise.release(self.coefficients(data), rng=rng)

    def rdp(self, orders, *, neighbouring, sampling):
        """Rényi curve: that of the Laplace mechanism with the whole change on one coefficient.

        Side: upper.
        """
        return self.noise.rdp(orders, neighbouring=neighbouring, sampling=sampling)

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error."""
        return self.noise.tradeoff(type1, neighbouring=neighbouring, sampling=sampling)

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε at this δ."""
        return self.noise.epsilon(delta, neighbouring=neighbouring, sampling=sampling)

    def pairs(self, *, neighbouring, sampling):
        """Dominating pair."""
        return self.noise.pairs(neighbouring=neighbouring, sampling=sampling)


# --------------------------------------------------------------------------------------------------- sensitivities


def general_sensitivity(coefficients, records):
    """2 max Σ|λ|: what the document takes as the sensitivity of any loss, over the records given.

    Paper: stobatch, Appendix B.
    Args: coefficients — function of one record, its coefficients as an array;  records — the records to try.
    """
    return 2 * max(float(np.abs(coefficients(record)).sum()) for record in records)


def widest_change(coefficients, records):
    """The largest l1 distance between the coefficients of any two of the records: exact over those, by trying all."""
    table = np.array([np.ravel(coefficients(record)) for record in records], dtype=np.float64)
    return max(float(np.abs(table - row).sum(axis=1).max()) for row in table)


def reconstruction_sensitivity(*, num_inputs, num_neurons):
    """d(β + 2): of the coefficients {h/2 for each input, x}, for h in [−1, 1]^β and x in [−1, 1]^d. Attained.

    Paper: stobatch, Lemma 2.
    Assumes: θ₁ is fixed and h is kept in [−1, 1]; with h = θ₁ᵀx free, the coefficients are those of
        :func:`quadratic_sensitivity`.
    """
    return checks.integer("num_inputs", num_inputs, low=1) * (checks.integer("num_neurons", num_neurons, low=1) + 2)


def quadratic_sensitivity(*, num_inputs):
    """3d²: twice the largest sum of absolute coefficients of Σ_j θ_j(1/2 − x_j)·θᵀx, a polynomial of the data alone."""
    return 3 * checks.integer("num_inputs", num_inputs, low=1) ** 2


def label_sensitivity(*, num_hidden):
    """2|h_π|: of the coefficients h·y_k of all classes. Attained. Paper: stobatch, Lemma 4, Equation 23."""
    return 2 * checks.integer("num_hidden", num_hidden, low=1)


def adlm_sensitivity(*, num_hidden, num_classes):
    """K(|h| + |h|²/4): of *all* coefficients of the same loss, those without labels too (Phan et al. 2017, AdLM)."""
    hidden = checks.integer("num_hidden", num_hidden, low=1)
    return checks.integer("num_classes", num_classes, low=1) * (hidden + hidden**2 / 4)


def regression_sensitivity(*, num_features):
    """2d(d + 2): 2 max Σ|λ| of linear regression with all ``num_features`` (d) features and the target in [−1, 1].

    Paper: stobatch, Appendix B.
    """
    features = checks.integer("num_features", num_features, low=1)
    return 2 * features * (features + 2)


def epsilon_of_sums(budget, *, num_maps=1):
    """ε that the noisy *sums* of the reconstruction's coefficients are worth: (2D + maps · β)ε₁/Δ_R.

    Every input's sum has noise Δ_R/ε₁ (Equation 16) and moves by 2 at most; so has every half hidden neuron's
    (Equation 17), which moves by 1. Independent noise on each map; h in [−1, 1] and of clean inputs, as Appendix G
    counts it. Where h̄ is computed from x̄, as the algorithms do, it is post-processing with more noise and costs
    nothing: ``budget.honest_epsilon_sum`` is all.

    Paper: stobatch, Appendix G, Result 1, where one map stands for all.
    Args: budget — :class:`privrob.accounting.functional_budget.Budget`;  num_maps — feature maps published together.
    """
    moved = 2 * budget.num_inputs + checks.integer("num_maps", num_maps, low=1) * budget.map_neurons
    return moved * budget.epsilon_features / budget.reconstruction_sensitivity


# ----------------------------------------------------------------------------------- losses and their Taylor series


def reconstruction_loss(scores, targets):
    """x log(1 + e^(−z)) + (1 − x) log(1 + e^z), for any real x. Paper: stobatch, Section 3.1, R_B.

    For targets below 0, which the document's range [−1, 1] has, it falls without end as z → −∞.

    Args: scores, targets — z and x, any shapes that broadcast.
    """
    scores, targets = np.asarray(scores, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    return targets * np.logaddexp(0, -scores) + (1 - targets) * np.logaddexp(0, scores)


def reconstruction_taylor(scores, targets):
    """log 2 + z(1/2 − x): the first order at 0. Paper: stobatch, Section 3.1, Equation 5.

    Args: scores, targets — any shapes that broadcast.
    """
    return math.log(2) + np.asarray(scores) * (0.5 - np.asarray(targets))


def classification_loss(scores, labels):
    """Cross-entropy of one class's sigmoid: log(1 + e^z) − zy.

    Args: scores — any shape;  labels — y, 0 or 1, of the same shape.
    """
    return np.logaddexp(0, np.asarray(scores, dtype=np.float64)) - np.asarray(scores) * np.asarray(labels)


def classification_taylor(scores, labels, *, form="sound"):
    """Second order at 0: log 2 + z/2 − zy + z²/8.

    Paper: stobatch, Section 3.2.
    Printed: z − zy − |z|/2 + z²/8, whose slope is 3/2 − y for negative z, and which lacks log 2.
    Used: max(z, 0) − zy + log 2 − |z|/2 + z²/8, the same as the line above.
    """
    z, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if checks.choice("form", form, FORMS) == "as_printed":
        return z - z * y - np.abs(z) / 2 + z**2 / 8
    return math.log(2) + z / 2 - z * y + z**2 / 8


def taylor_error(scores, *, order):
    """|loss − Taylor| for one term at z, whatever x or y: log cosh(z/2) at first order, z²/8 − log cosh(z/2) at second.

    Paper: stobatch, Appendix O.
    Args: scores — any shape.
    """
    z = np.abs(np.asarray(scores, dtype=np.float64))
    first = np.logaddexp(0, -z) + z / 2 - math.log(2)
    if checks.choice("order", order, (1, 2)) == 1:
        return first
    series = z**4 / 192 - z**6 / 2880 + 17 * z**8 / 645120  # the next terms of log cosh(z/2), where it would cancel
    return np.where(z < 0.1, series, z**2 / 8 - first)


def printed_taylor_bound(*, order):
    """Equation 35 (order 1): 4e/(1 + e)² an input. Equation 36 (order 2): (e² + 2e − 1)/(e(1 + e)²) a class.

    Paper: stobatch, Equations 35, 36 and 43, for |z| ≤ 1, which is not said there and not enforced by the algorithms.
    """
    e = math.e
    first = checks.choice("order", order, (1, 2)) == 1
    return 4 * e / (1 + e) ** 2 if first else (e**2 + 2 * e - 1) / (e * (1 + e) ** 2)


def printed_taylor_reach(*, order):
    """The |z| from which the error exceeds the printed bound."""
    bound = printed_taylor_bound(order=order)
    return float(optimize.brentq(lambda z: float(taylor_error(z, order=order)) - bound, 1e-3, 1e3, xtol=1e-12))


# ----------------------------------------------------------------------------------------------------- coefficients


def reconstruction_coefficients(images, hidden):
    """(Σ h/2, Σ x): the sums that Equations 16 and 17 put noise on, shapes (β,) and (d,)."""
    images, hidden = checks.array("images", images, ndim=2), checks.array("hidden", hidden, ndim=2)
    return hidden.sum(axis=0) / 2, images.sum(axis=0)


def reconstruction_quadratic(images):
    """Σ (1/2 − x)xᵀ, symmetric part, (d, d): the truncated reconstruction as a quadratic form in each neuron's θ.

    Without it being positive definite, the truncated objective has no minimum.
    """
    images = checks.array("images", images, ndim=2)
    form = (0.5 - images).T @ images
    return (form + form.T) / 2


def label_coefficients(hidden, labels):
    """Σ h y_k of every class, (|h|, K), for one-hot labels (n, K). Paper: stobatch, Section 3.2.

    Args: hidden — (n, |h|).
    """
    return checks.array("hidden", hidden, ndim=2).T @ checks.array("labels", labels, ndim=2)


def regression_coefficients(data):
    """Of Σ (y − xᵀθ)²: −2Σyx and Σxxᵀ in one vector, d + d² long (the constant Σy² moves no minimiser).

    Paper: stobatch, Appendix B.
    Args: data — (n, d + 1): features and, last, the target.
    """
    data = checks.array("data", data, ndim=2)
    x, y = data[:, :-1], data[:, -1]
    return np.concatenate([-2 * (y @ x), (x.T @ x).ravel()])


def regression_parts(coefficients):
    """The linear part (d,) and the symmetric quadratic part (d, d) of such a vector.

    Args: coefficients — from :func:`regression_coefficients`, noisy or not.
    """
    coefficients = checks.array("coefficients", coefficients, ndim=1)
    features = round((math.sqrt(1 + 4 * coefficients.size) - 1) / 2)
    if features * (features + 1) != coefficients.size or not features:
        raise ValueError(f"coefficients must have length d + d², got length {coefficients.size}")
    square = coefficients[features:].reshape(features, features)
    return coefficients[:features], (square + square.T) / 2


def regression_value(theta, coefficients):
    """The polynomial's value at each row of θ, (k, d) → (k,).

    Args: theta — (k, d), or (d,);  coefficients — as for :func:`regression_parts`.
    """
    linear, square = regression_parts(coefficients)
    theta = np.atleast_2d(theta)
    return theta @ linear + np.einsum("ki,ij,kj->k", theta, square, theta)


def minimise_on_grid(coefficients, *, radius=1.0, points=41):
    """The best place of a grid in [−radius, radius]^d, ``points`` along each axis: the document's way.

    Paper: stobatch, Appendix B.
    Args: coefficients — as for :func:`regression_parts`.
    """
    linear, _ = regression_parts(coefficients)
    points = checks.integer("points", points, low=2)
    if points**linear.size > 10_000_000:
        raise ValueError(f"points must keep points^d at 1e7 or less, got {points}^{linear.size}; use minimise()")
    axis = np.linspace(-checks.positive("radius", radius, finite=True), radius, points)
    places = np.stack(np.meshgrid(*[axis] * linear.size, indexing="ij"), axis=-1).reshape(-1, linear.size)
    return places[np.argmin(regression_value(places, coefficients))]


def minimise(coefficients, *, least_curvature=0.0):
    """The minimiser in closed form, −Q⁻¹l/2, over the directions in which the noisy form curves upwards.

    Noise can make the form fall without end in some directions; θ stays 0 in those, as in Zhang et al. 2012.

    Args: coefficients — as for :func:`regression_parts`;  least_curvature — directions of no more than this are left
        out.
    """
    linear, square = regression_parts(coefficients)
    curvature, directions = np.linalg.eigh(square)
    kept = curvature > checks.nonnegative("least_curvature", least_curvature, finite=True)
    return -directions[:, kept] @ ((directions[:, kept].T @ linear) / curvature[kept]) / 2
