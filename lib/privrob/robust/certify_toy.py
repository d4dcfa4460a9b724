r"""Scoring functions whose expectations under noise are known exactly, to try certificates on.

Three families, none of which needs a sample:

* :class:`Steps` — any number of classes, scores that are constant on intervals of one noisy number: expectations are
  differences of distribution functions. With two noisy numbers and scores constant on cells, any function of two
  mechanisms (Lemma 5's f) is a matrix between two probability vectors.
* :class:`Mean` — D pixels, two classes: "is the mean of the noisy pixels above 0?", on the input and on a linear hidden
  layer. Its label changes exactly at mean 0, so the true robustness radius of an image is its mean pixel.
* :func:`corner` — "are all noisy pixels above the threshold?": an image below it meets Lemma 1 with equality in any
  dimension.

Source: ours; exact laws of sums of Laplace variables by partial fractions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincc, gammaln, ndtr
from scipy.stats import binom

from privrob import checks
from privrob.accounting import audit, gdp
from privrob.robust import certify


def laplace_cdf(value, scale):
    """P(Lap(scale) ≤ value)."""
    value = np.asarray(value, dtype=np.float64) / scale
    half = 0.5 * np.exp(-np.abs(value))
    return np.where(value < 0, half, 1 - half)


def gaussian_cdf(value, scale):
    """P(N(0, scale²) ≤ value)."""
    return ndtr(np.asarray(value, dtype=np.float64) / scale)


CDFS = {"laplace": laplace_cdf, "gaussian": gaussian_cdf}


def laplace_sum_tail(value, *, num_terms):
    r"""P(X₁ + … + X_n > value) for independent Laplace variables of scale 1, exact.

    .. math:: P(S > s) = \sum_{k=0}^{n-1} \binom{n-1+k}{k} 2^{-(n+k)} Q(n-k, s), \quad s \ge 0

    with Q the regularised upper incomplete gamma function (the difference of two Gamma(n) variables, in partial
    fractions); all terms are positive, so that nothing cancels.

    Args: value — s, any shape;  num_terms — n.
    """
    n = checks.integer("num_terms", num_terms, low=1)
    value = np.asarray(value, dtype=np.float64)
    k = np.arange(n)
    weights = np.exp(gammaln(n + k) - gammaln(k + 1) - gammaln(n) - (n + k) * math.log(2))
    tail = (weights * gammaincc(n - k, np.abs(value)[..., None])).sum(-1)
    return np.where(value >= 0, tail, 1 - tail)[()]


# ------------------------------------------------------------------------------------------- any scores of one number


@dataclass(frozen=True, eq=False)
class Steps:
    """Scores constant on intervals. Args: edges — inner ends of the intervals, rising (m − 1,);  noise, scale — of the
    number that is scored;  weight — it is weight · x (1 for the input, else a hidden unit)."""

    edges: np.ndarray
    noise: str
    scale: float
    weight: float = 1.0

    def probabilities(self, x):
        """Of each interval, for each x: (..., m).

        Args: x — any shape.
        """
        x = np.asarray(x, dtype=np.float64)[..., None] * self.weight
        inner = CDFS[self.noise](self.edges - x, self.scale)
        ends = np.zeros_like(inner[..., :1])
        return np.diff(np.concatenate([ends, inner, 1 + ends], axis=-1), axis=-1).clip(0, 1)

    def epsilon(self, radius):
        """What a change of x by at most ``radius`` costs under Laplace noise.

        Side: exact.
        """
        return abs(self.weight) * radius / self.scale

    def delta(self, radius, epsilon):
        """The δ that goes with an ε: 0 or 1 for Laplace noise, exact for Gaussian noise.

        Args: radius — of the change of x.
        """
        if self.noise == "laplace":
            return 0.0 if epsilon >= self.epsilon(radius) * (1 - 1e-12) else 1.0
        return float(gdp.delta_of(epsilon, gdp_mu=self.epsilon(radius)))

    @classmethod
    def random(cls, *, noise, scale, rng, num_cells=6, weight=1.0):
        """Edges within three scales of 0.

        Args: num_cells — m.
        """
        return cls(np.sort(rng.normal(scale=3 * scale, size=num_cells - 1)), noise, scale, weight)


def random_scores(shape, *, num_classes, rng):
    """Scores that sum to 1 over the last axis: some are 0 or 1, some between.

    Args: shape — of all axes but the last.
    """
    raw = rng.dirichlet(np.full(num_classes, 0.3), size=shape)
    hard = np.eye(num_classes)[rng.integers(num_classes, size=shape)]
    return np.where(rng.random(shape)[..., None] < 0.5, hard, raw)


def expected_scores(mechanisms, values, x):
    """E f_k at each x (any shape): (..., K). Args: mechanisms — one or two :class:`Steps`;  values — (m, K) or (m₁, m₂,
    K).
    """
    first = mechanisms[0].probabilities(x)
    if len(mechanisms) == 1:
        return first @ values
    return np.einsum("...i,...j,ijk->...k", first, mechanisms[1].probabilities(x), values)


def worst_case(mechanisms, values, *, x, radius, epsilon, delta=0.0, num_points=81):
    """One scoring function under all changes of x by at most ``radius`` (a grid with both ends).

    Args: mechanisms, values — as for :func:`expected_scores`;  num_points — of the grid.
    Returns: dict — ``excess`` of E f_k(x) over e^ε E f_k(x + a) + δ, and the same from x + a to x, at most 0 if Lemma 1
    (Lemma 5) holds; ``ratio`` the largest E f_k(x)/E f_k(x + a) over e^ε; ``certified`` whether Equation 4 (12) holds
    at x with exact expectations; ``margin`` the smallest lead of x's class (Equation 2); ``kept`` whether its label
    stays.
    """
    shifts, factor = radius * np.linspace(-1, 1, num_points), math.exp(epsilon)
    here = expected_scores(mechanisms, values, np.asarray(x))
    there = expected_scores(mechanisms, values, x + shifts)
    label = int(here.argmax())
    others = np.delete(here, label).max()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nanmax(np.where(there > 0, here / there, np.where(here > 0, np.inf, np.nan)))
    return {
        "excess": float(max((here - factor * there).max(), (there - factor * here).max()) - delta),
        "ratio": float(ratio / factor),
        "certified": bool(here[label] > factor**2 * others + (1 + factor) * delta),
        "margin": float((there[:, label] - np.delete(there, label, axis=1).max(1)).min()),
        "kept": bool((there.argmax(-1) == label).all()),
    }


def search(*, noise, num_mechanisms, num_trials, num_classes, rng, epsilons=(0.02, 0.8)):
    """:func:`worst_case` of random scoring functions, scales, weights, points and radii; one row a trial.

    The ε of a trial is what its noise costs at its radius (Laplace), or drawn, with the exact δ (Gaussian, one
    mechanism).

    Args: num_mechanisms — 1 or 2;  epsilons — range of the drawn ε.
    """
    rows = []
    for _ in range(num_trials):
        scales = rng.uniform(0.5, 3, size=num_mechanisms)
        weights = np.append(1.0, rng.uniform(-2, 2, size=num_mechanisms - 1))
        parts = [Steps.random(noise=noise, scale=s, weight=w, rng=rng) for s, w in zip(scales, weights, strict=True)]
        values = random_scores((6,) * num_mechanisms, num_classes=num_classes, rng=rng)
        wanted = math.exp(rng.uniform(*np.log(epsilons)))
        radius = wanted / sum(part.epsilon(1.0) for part in parts)
        delta = 0.0
        if noise == "gaussian":
            radius *= rng.uniform(0.1, 1.0)
            delta = parts[0].delta(radius, wanted)
        x = rng.normal(scale=2)
        found = worst_case(parts, values, x=x, radius=radius, epsilon=wanted, delta=delta)
        rows.append({"epsilon": wanted, "radius": radius, "delta": delta, **found})
    return rows


def corner(x, *, threshold, scale):
    """P(all x_j + Lap(scale) > threshold), its logarithm. For x below: −D log 2 − Σ(threshold − x_j)/scale.

    Args: x — (D,).
    """
    gap = (threshold - np.asarray(x, dtype=np.float64)) / scale
    return float(np.where(gap > 0, -math.log(2) - gap, np.log1p(-0.5 * np.exp(np.minimum(gap, 0)))).sum())


# ------------------------------------------------------------------------------------------------ D pixels, two classes


@dataclass(frozen=True)
class Mean:
    """A linear network: class 0 iff the noisy pixels have a positive mean; hidden neurons h_k = w Σ_j x_j likewise.

    Args: layers — scales, D = ``input_sensitivity`` and Δ_h = ``hidden_sensitivity`` (= neurons · w · D), ψ;
        num_hidden — neurons of the hidden layer.
    """

    layers: certify.Layers
    num_hidden: int = 1

    @property
    def num_inputs(self):
        """D."""
        return int(self.layers.input_sensitivity)

    def layer_scores(self, mean, *, place):
        """E of "the sum is positive" and of its opposite at one noisy layer, (..., 2), exact in both tails.

        Args: mean — mean pixel of the image, any shape;  place — ``input``, whose sum is D · mean, or ``hidden``, whose
        sum is Δ_h · mean.
        """
        layers, psi = self.layers, self.layers.psi
        if checks.choice("place", place, ("input", "hidden")) == "input":
            shift, terms = layers.input_sensitivity * psi / layers.input_scale, self.num_inputs
        else:
            shift, terms = layers.hidden_sensitivity * psi / layers.hidden_scale, self.num_hidden
        moved = np.asarray(mean, dtype=np.float64) * shift
        tail = laplace_sum_tail(np.abs(moved), num_terms=terms)  # of the less likely class
        pair = np.stack([1 - tail, tail], axis=-1)
        return np.where(moved[..., None] >= 0, pair, pair[..., ::-1])

    def scores(self, mean, *, place="both"):
        """E f of class 0 and of class 1, (..., 2): of one layer, or of the product of both.

        Args: mean — any shape;  place — ``input``, ``hidden`` or ``both``.
        """
        places = (
            ("input", "hidden") if checks.choice("place", place, ("input", "hidden", "both")) == "both" else (place,)
        )
        return np.prod([self.layer_scores(mean, place=each) for each in places], axis=0)

    def radii(self, mean, *, place="both", kind="sound", release=None, epsilon_cap=math.inf):
        """Largest radius certified from exact expectations; the true one is ``mean``, where the label changes.

        Args: mean, place — as for :meth:`scores`;  kind, release — see :mod:`privrob.robust.certify`; epsilon_cap —
            largest ε_r that a number of draws can show (:func:`~privrob.robust.certify.cap`).
        """
        scores = self.scores(mean, place=place)
        epsilon = np.minimum(certify.largest_epsilon(scores[..., 0], scores[..., 1]), epsilon_cap)
        layers = self.layers if place == "both" else self.layers.only(place)
        return certify.certified_radii(epsilon, layers=layers, kind=kind, release=release)[1]

    def draws(self, image, *, num_draws, rng, place="input"):
        """Scores of actual draws of the noise, (1, num_draws, 2): 0 or 1; for both layers their product.

        Args: image — (D,);  place — as for :meth:`scores`.
        """
        image, layers = checks.array("image", image, ndim=1), self.layers
        if image.size != self.num_inputs:
            raise ValueError(f"image must hold {self.num_inputs} pixels, got {image.size}")
        found = []
        if checks.choice("place", place, ("input", "hidden", "both")) != "hidden":
            noise = rng.laplace(scale=layers.input_scale / layers.psi, size=(num_draws, image.size))
            found.append((image + noise).sum(1))
        if place != "input":
            noise = rng.laplace(scale=layers.hidden_scale / layers.psi, size=(num_draws, self.num_hidden))
            found.append(layers.hidden_sensitivity * image.mean() + noise.sum(1))
        scores = [np.stack([one > 0, one <= 0], axis=-1)[None].astype(np.float64) for one in found]
        return certify.product(*scores)


def issue_prob(score, *, num_draws, attack_radius, layers, kind, release=None, failure_prob=0.05):
    """Exact probability that n draws of a two-class 0/1 score certify class 0 at a radius (counts are binomial).

    Args: score — E f of class 0;  num_draws — n;  attack_radius — μ;  layers, kind, release — as for
        :func:`privrob.robust.certify.robustness_size`.
    """
    counts = np.arange(num_draws + 1)
    lower, _ = audit.clopper_pearson(counts, num_draws, failure_prob=failure_prob / 2)  # α/(2K) a side, K = 2
    epsilon = certify.largest_epsilon(lower, 1 - lower)
    radii = np.atleast_1d(attack_radius)
    size = certify.robustness_size(epsilon, layers=layers, attack_radii=radii, kind=kind, release=release)
    first = int(np.argmax((size > radii)[:, 0])) if (size > radii).any() else num_draws + 1
    return float(binom.sf(first - 1, num_draws, score))


def failure_prob_of_bounds(score, *, num_draws, bound, failure_prob, split="joint"):
    """Exact probability that :func:`~privrob.robust.certify.class_bounds` of two-class 0/1 scores is wrong, summed over
    all counts.

    Args: score — E f of class 0;  num_draws — at most 3000;  bound, split — as for the bounds.
    """
    n = checks.integer("num_draws", num_draws, low=1, high=3000)
    first = (np.arange(n) < np.arange(n + 1)[:, None]).astype(np.float64)
    found = certify.class_bounds(np.stack([first, 1 - first], -1), bound=bound, failure_prob=failure_prob, split=split)
    won = np.where(found.label == 0, score, 1 - score)
    wrong = (found.lower > won) | (found.upper < 1 - won)
    return float(binom.pmf(np.arange(n + 1), n, score)[wrong].sum())


def composition_gain(input_scores, hidden_scores, *, input_rate, hidden_rate):
    """Radius of the composed certificate over the better single layer's, from expected scores (n, K).

    Args: input_scores, hidden_scores — (n, K);  input_rate, hidden_rate — ε per unit of radius, Δ/s of each layer.
    Returns: (gain, same_runner_up): inf where no single layer certifies anything.
    """
    both = input_scores * hidden_scores
    found = []
    for scores, rate in ((input_scores, input_rate), (hidden_scores, hidden_rate), (both, input_rate + hidden_rate)):
        order = np.argsort(scores, axis=1)
        best, second = (np.take_along_axis(scores, order[:, [i]], 1)[:, 0] for i in (-1, -2))
        found.append((certify.largest_epsilon(best, second) / rate, order[:, -1], order[:, -2]))
    (by_input, win, second), (by_hidden, win_hidden, second_hidden), (composed, _, _) = found
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = composed / np.maximum(by_input, by_hidden)
    return gain, (win == win_hidden) & (second == second_hidden)
