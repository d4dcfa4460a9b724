r"""Certified robustness by noise: bounds from Monte Carlo draws, the certified ε, radii, verified inference.

A network with noise on its input or on a hidden layer is a randomised mechanism of its *input*: if an l∞ change of
size r costs at most ε, then every expected score E f_k moves by at most a factor e^ε, and a gap of e^{2ε} between the
winner's lower and the others' upper bound survives it. Three kinds of certificates, never mixed:

* ``sound`` — r = ε/(Δ_x/s_x + Δ_h/s_h) with the scales s that inference really draws, and Δ the l1 change of the input
  and of the hidden layer per unit of l∞;
* ``as_printed`` — Equation 13, which takes the scales of training and counts its sizes in multiples of the radius on
  one side of the comparison only;
* ``as_released`` — what the authors' code compared, ``release="2020-06"`` (when the document appeared) or "2020-09".

All of NumPy; scores are arrays (n examples, num_draws, K) in [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from privrob import checks
from privrob.accounting import audit

BOUNDS = ("hoeffding", "clopper_pearson")
SPLITS = ("joint", "separate", "as_released")
KINDS = ("sound", "as_printed", "as_released")
RELEASES = ("2020-06", "2020-09")
RELEASED_EPSILON = 0.005  # [release] 2020-09: a divisor that does not cancel


# ---------------------------------------------------------------------------------------------------- from draws to ε


@dataclass(frozen=True, eq=False)
class ClassBounds:
    """Bounds that hold together, for each example alone, except with probability ``failure_prob``.

    ``label`` the winner, ``runner_up`` the class that ``upper`` was measured on, ``lower`` of the winner's expected
    score, ``upper`` the largest of all others', each of shape (n,); ``guaranteed`` False where the split has no proof.
    """

    label: np.ndarray
    runner_up: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    failure_prob: float
    guaranteed: bool = True


def product(*scores):
    """Scores of a composition: the product of each mechanism's own ``scores``, drawn independently (Equation 11)."""
    arrays = [_scores(s) for s in scores]
    if len({a.shape for a in arrays}) != 1:
        raise ValueError(f"scores of a product must have one shape, got {[a.shape for a in arrays]}")
    return np.prod(arrays, axis=0)


def class_bounds(scores, *, bound="hoeffding", failure_prob=0.05, split="joint", num_selection=None, exclusive=True):
    r"""Lower bound of the winning class's expected score, upper bound of every other's.

    ``hoeffding`` bounds the mean score, :math:`\bar f \pm \sqrt{\ln(1/a)/(2n)}`; ``clopper_pearson`` the probability
    that a class has the highest score, from counts. Each bound may fail with probability a: under ``joint`` 2K bounds
    hold together, a = α/(2K), so that the winner may be picked from the same draws; under ``separate`` the first
    ``num_selection`` draws pick it, and the others are left to one lower bound (a = α/2) and K − 1 upper bounds (the
    other half); ``as_released`` takes a = α/K and picks from the same draws: not proved. Scores that sum to at most 1
    give E f_i ≤ 1 − E f_k besides.

    Paper: stobatch, Section 2 (Equation 4), Section 3.4, Theorem 5 ("η-confidence").
    Printed: one confidence η, without its split over classes.   Used: see above.
    Args: scores — (n, num_draws, K), K at least 2;  failure_prob — α = 1 − η, of each example;
        num_selection — None: a tenth of the draws;  exclusive — whether scores sum to at most 1, always.
    Returns: :class:`ClassBounds`.
    """
    checks.choice("bound", bound, BOUNDS)
    checks.choice("split", split, SPLITS)
    failure = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False)
    scores = _scores(scores)
    if exclusive and (scores.sum(-1) > 1 + 1e-5).any():  # float32 probabilities are off by a few units of 1e-7
        raise ValueError("scores must sum to at most 1 over classes; for others pass exclusive=False")
    chosen = measured = scores
    if split == "separate":
        num_selection = max(1, scores.shape[1] // 10) if num_selection is None else num_selection
        hint = "the other draws measure"
        num_selection = checks.integer("num_selection", num_selection, low=1, high=scores.shape[1] - 1, hint=hint)
        chosen, measured = scores[:, :num_selection], scores[:, num_selection:]
    if bound == "clopper_pearson":
        chosen, measured = _votes(chosen), _votes(measured)
    num_classes, rows = scores.shape[2], np.arange(len(scores))
    label = chosen.mean(1).argmax(1)
    shares = {"joint": 2 * num_classes, "as_released": num_classes, "separate": 2}[split]
    others = 2 * (num_classes - 1) if split == "separate" else shares
    lower = _one_side(measured, failure / shares, bound)[0][rows, label]
    uppers = _one_side(measured, failure / others, bound)[1]
    uppers[rows, label] = -1.0
    if split == "as_released":  # the runner-up's alone
        means = measured.mean(1)
        means[rows, label] = -1.0
        runner_up = means.argmax(1)
    else:
        runner_up = uppers.argmax(1)
    upper = uppers[rows, runner_up]
    if exclusive and split != "as_released":
        upper = np.minimum(upper, 1 - lower)
    return ClassBounds(label, runner_up, lower, upper, failure, split != "as_released")


def _scores(scores):
    scores = checks.array("scores", scores, ndim=3, hint="(examples, num_draws, classes)")
    if scores.shape[1] < 1 or scores.shape[2] < 2:
        raise ValueError(f"scores need at least 1 draw of at least 2 classes, got shape {scores.shape}")
    if scores.size and (scores.min() < -1e-6 or scores.max() > 1 + 1e-6):
        found = f"values in [{scores.min():g}, {scores.max():g}]"
        raise ValueError(f"scores must lie in [0, 1], got {found}; pass probabilities, not logits")
    return scores.clip(0, 1)


def _votes(scores):
    """1 for the class with the highest score, 0 for all others; a tie is no vote."""
    highest = scores == scores.max(2, keepdims=True)
    return (highest & (highest.sum(2, keepdims=True) == 1)).astype(np.float64)


def _one_side(scores, share, bound):
    """Lower and upper bounds of the expectations (n, K), each wrong with probability at most ``share``."""
    num_draws = scores.shape[1]
    if bound == "clopper_pearson":
        lower, upper = audit.clopper_pearson(scores.sum(1).round(), num_draws, failure_prob=min(2 * share, 1 - 1e-12))
        return np.array(lower), np.array(upper)
    half = math.sqrt(math.log(1 / share) / (2 * num_draws))
    mean = scores.mean(1)
    return (mean - half).clip(0, 1), (mean + half).clip(0, 1)


def largest_epsilon(lower, upper, *, delta=0.0):
    r"""The largest ε with E_lb ≥ e^{2ε} E_ub + (1 + e^ε)δ; 0 where there is none (abstain), infinite if E_ub = δ = 0.

    With y = e^ε this is a quadratic: :math:`y = 2(L - \delta)/(\delta + \sqrt{\delta^2 + 4U(L - \delta)})`.

    Paper: stobatch, Equation 4; Equation 13 (δ = 0: ½ ln(E_lb/E_ub)).
    Side: exact for these bounds; it holds for each example with the probability that they do. Neighbours are inputs,
        not data sets.
    Args: lower, upper — bounds of the winner's and of the other classes' expected scores, any shapes that broadcast.
    """
    lower, upper = np.broadcast_arrays(checks.array("lower", lower), checks.array("upper", upper))
    delta = checks.probability("delta", delta, allow_one=False)
    if lower.size and (min(lower.min(), upper.min()) < 0 or max(lower.max(), upper.max()) > 1):
        raise ValueError("lower and upper must lie in [0, 1]")
    gap = np.maximum(lower - delta, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 2 * gap / (delta + np.sqrt(delta**2 + 4 * upper * gap))
        found = np.log(np.where(gap > 0, ratio, 1.0))
    if delta == 0:
        with np.errstate(divide="ignore"):
            found = np.where(gap > 0, 0.5 * (np.log(np.where(gap > 0, lower, 1.0)) - np.log(upper)), 0.0)
    return np.maximum(found, 0.0)[()]


# ---------------------------------------------------------------------------------------------------- from ε to radii


@dataclass(frozen=True)
class Layers:
    """Where noise is, and how far an l∞ change of size 1 moves that place in l1.

    Args: input_scale, hidden_scale — Laplace scales b and 2b of training;  input_sensitivity — D, the number of input
        entries;  hidden_sensitivity — sum of all absolute weights into the noisy layer (:func:`hidden_sensitivity`), 0
        if the hidden layer has no part in the certificate;  psi — ψ: inference draws scales b/ψ and 2b/ψ.
    """

    input_scale: float
    hidden_scale: float
    input_sensitivity: float
    hidden_sensitivity: float
    psi: float = 1.0

    def __post_init__(self):
        for name in ("input_scale", "hidden_scale", "psi"):
            checks.positive(name, getattr(self, name), finite=True)
        for name in ("input_sensitivity", "hidden_sensitivity"):
            checks.nonnegative(name, getattr(self, name), finite=True)
        if not self.input_sensitivity + self.hidden_sensitivity > 0:
            raise ValueError("input_sensitivity and hidden_sensitivity must not both be 0: nothing would be noisy")

    @classmethod
    def of(cls, budget, *, hidden_sensitivity, psi=1.0, **changes):
        """The layers of a :class:`~privrob.accounting.functional_budget.Budget`.

        Args: budget — of training;  changes — fields that differ.
        """
        scales = {"input_scale": budget.input_scale, "hidden_scale": budget.hidden_scale}
        fields = scales | {"input_sensitivity": budget.num_inputs, "hidden_sensitivity": hidden_sensitivity}
        return cls(**fields | {"psi": psi} | changes)

    def only(self, place):
        """The same with noise credited at one place, ``input`` or ``hidden``."""
        other = {"input": "hidden", "hidden": "input"}[checks.choice("place", place, ("input", "hidden"))]
        return replace(self, **{f"{other}_sensitivity": 0.0})

    def rate(self, *, psi=None):
        """ε per unit of l∞ radius, Δ_x/s_x + Δ_h/s_h, under the scales drawn at inference."""
        psi = self.psi if psi is None else psi
        terms = self.input_sensitivity / self.input_scale, self.hidden_sensitivity / self.hidden_scale
        return psi * sum(terms)


def hidden_sensitivity(weights, *, positions=1, form="sound"):
    r"""Δ_h, the l1 change of h = Wx (all neurons) per unit of l∞ change of x: the sum of all |weights|.

    Paper: stobatch, Section 3.4: "Δ_r^h = β‖θ₁‖_∞ where ‖θ₁‖_∞ is the maximum 1-norm of θ₁'s rows".
    Printed: β times the largest 1-norm, of one feature map's neurons.   Used: every map is fed on, so all are counted;
        the norm is that of the weights *into* one neuron (rows of θ₁ᵀ).
    Args: weights — shape (neurons or feature maps, …), the weights into each;  positions — of a feature map, 1 if
        dense;
        form — ``sound`` or ``as_printed`` (β = the positions of a map; for a dense layer, all neurons).
    """
    weights = np.abs(checks.array("weights", weights))
    if weights.ndim < 2:
        raise ValueError(f"weights must have shape (neurons, ...), got {weights.shape}")
    positions = checks.integer("positions", positions, low=1)
    each = weights.reshape(len(weights), -1).sum(1)
    if checks.choice("form", form, ("sound", "as_printed")) == "sound":
        return float(positions * each.sum())
    return float((positions if weights.ndim > 2 else len(weights)) * each.max())


def multiples(epsilon_robust, *, layers, attack_radius):
    """κ, φ and κφ/(κ + φ) as Section 3.3 and Equation 13 have them: Δ_r^x = μD carries the radius μ, Δ_r^h does not.

    Args: epsilon_robust — ε_r, any shape;  layers — :class:`Layers`;  attack_radius — μ, l∞, broadcasts.
    """
    epsilon = checks.array("epsilon_robust", epsilon_robust)
    mu = checks.array("attack_radius", attack_radius)
    with np.errstate(divide="ignore", invalid="ignore"):
        kappa = layers.input_scale * epsilon / (mu * layers.input_sensitivity)
        phi = layers.hidden_scale * epsilon / layers.hidden_sensitivity if layers.hidden_sensitivity else np.inf
        both = epsilon / (
            mu * layers.input_sensitivity / layers.input_scale + layers.hidden_sensitivity / layers.hidden_scale
        )
    return kappa, phi, np.where(epsilon > 0, both, 0.0)[()]


def robustness_size(epsilon_robust, *, layers, attack_radii, kind="sound", release=None):
    r"""The size that Algorithm 3 compares with each attack radius.

    ``sound``: ε_r/(Δ_x/s_x + Δ_h/s_h), the same at every attack radius. ``as_printed``: Equation 13,
    :math:`\kappa\varphi/(\kappa+\varphi) = \varepsilon_r/(\mu D/b + \Delta_h/2b)`. ``as_released``, "2020-06":
    :math:`\mu\varepsilon_r/(\kappa' + \varphi')` with κ' = b/(μD), φ' = 2b/Δ_h, so that more noise makes it *smaller*;
    "2020-09": Equation 13 times 1/0.005 (CIFAR-10 and Tiny ImageNet files).

    Paper: stobatch, Equation 13, Corollary 1, Algorithm 3.
    Args: epsilon_robust — (n,);  attack_radii — (r,), l∞ in the images' units;  kind, release — see the module;
        layers — :class:`Layers`.
    Returns: sizes, (n, r); 0 where ε_r is 0.
    """
    _kind(kind, release)
    epsilon = np.atleast_1d(checks.array("epsilon_robust", epsilon_robust, finite=False))[:, None]
    radii = _radii(attack_radii)[None, :]
    if np.isnan(epsilon).any() or (epsilon < 0).any():
        raise ValueError("epsilon_robust must be at least 0 everywhere")
    by_input = radii * layers.input_sensitivity / layers.input_scale
    by_hidden = np.float64(layers.hidden_sensitivity / layers.hidden_scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "sound":
            sizes = epsilon / layers.rate() + 0 * radii
        elif release == "2020-06":
            sizes = radii * epsilon / (1 / by_input + 1 / by_hidden)
        else:
            sizes = epsilon / (by_input + by_hidden) / (1.0 if kind == "as_printed" else RELEASED_EPSILON)
    return np.where(epsilon > 0, sizes, 0.0)


def _kind(kind, release):
    checks.choice("kind", kind, KINDS)
    if kind == "as_released":
        checks.choice("release", release, RELEASES, hint=f"the criterion has changed: pass release={RELEASES[0]!r}")
    elif release is not None:
        raise ValueError(f"release must be left out unless kind='as_released', got kind={kind!r}, release={release!r}")


def _radii(attack_radii):
    radii = np.atleast_1d(checks.array("attack_radii", attack_radii))
    if radii.ndim != 1 or (radii < 0).any():
        raise ValueError(f"attack_radii must be numbers of at least 0, got {attack_radii!r}")
    return radii


def certified_radii(epsilon_robust, *, layers, kind="sound", release=None):
    r"""The attack radii at which Algorithm 3 says "robust": from the first to the second of the answer.

    ``sound`` and ``as_printed``: from 0 up to the largest; Equation 13 compares with μ a size that falls in μ, so that
    the largest solves :math:`\mu^2 D/b + \mu\Delta_h/2b = \varepsilon_r`. "2020-06": all radii *from* one on.
    Args: epsilon_robust — ε_r, any shape;  layers — :class:`Layers`;  kind, release — see the module.
    Returns: (smallest, largest), each of epsilon_robust's shape; (inf, 0) where no radius at all is accepted.
    """
    _kind(kind, release)
    epsilon = checks.array("epsilon_robust", epsilon_robust, finite=False)
    first, zero = layers.hidden_sensitivity / layers.hidden_scale, np.zeros_like(epsilon)
    second = layers.input_sensitivity / layers.input_scale
    if kind == "sound":
        smallest, largest = zero, epsilon / layers.rate()
    elif release == "2020-06":
        with np.errstate(divide="ignore"):
            left = epsilon - 1 / np.float64(first)  # what κ' may be
            smallest = np.where(left > 0, 1 / np.where(left > 0, left, 1.0) / second, np.inf)
        largest = np.where(left > 0, np.inf, 0.0)
    else:
        known = epsilon if kind == "as_printed" else epsilon / RELEASED_EPSILON
        with np.errstate(invalid="ignore"):
            root = 2 * known / (first + np.sqrt(first**2 + 4 * second * known)) if second else known / first
        smallest, largest = zero, np.where(np.isinf(known), np.inf, root)
    return np.where(epsilon > 0, smallest, np.inf)[()], np.where(epsilon > 0, largest, 0.0)[()]


def cap(num_draws, *, num_classes, bound="clopper_pearson", failure_prob=0.05, split="joint", num_selection=None):
    """The largest ε_r that so many draws can certify: all of them for one class, with score 1.

    Args: num_draws — for one example;  bound, split, num_selection — as in :func:`class_bounds`.
    """
    num_draws = checks.integer("num_draws", num_draws, low=1)
    scores = np.zeros((1, num_draws, checks.integer("num_classes", num_classes, low=2)))
    scores[:, :, 0] = 1
    how = {"bound": bound, "failure_prob": failure_prob, "split": split, "num_selection": num_selection}
    found = class_bounds(scores, **how)
    return float(largest_epsilon(found.lower, found.upper)[0])


# --------------------------------------------------------------------------------------------------- verified inference


@dataclass(frozen=True, eq=False)
class Certificates:
    """What verified inference returns: label, abstained, epsilon_robust, each (n,); size, is_robust, each (n, r).

    ``attack_radii`` are the r radii that were asked about.

    ``guaranteed`` is True only for ``sound`` certificates with bounds that hold together: then, for each example alone,
    the answer is wrong with probability at most ``failure_prob``.
    """

    label: np.ndarray
    abstained: np.ndarray
    epsilon_robust: np.ndarray
    size: np.ndarray
    is_robust: np.ndarray
    attack_radii: np.ndarray
    failure_prob: float
    guaranteed: bool

    def correct(self, labels):
        """Which predictions are right; an abstention is not."""
        labels = np.asarray(labels)
        if labels.shape != self.label.shape:
            raise ValueError(f"labels must have shape {self.label.shape}, got {labels.shape}")
        return (self.label == labels) & ~self.abstained

    def conventional_accuracy(self, labels):
        """Share of right predictions (Section 4)."""
        return float(self.correct(labels).mean())

    def certified_accuracy(self, labels):
        """Share of predictions that are right and robust, at each attack radius (Section 4)."""
        return (self.correct(labels)[:, None] & self.is_robust).mean(0)


def verify(scores, *, layers, attack_radii, kind="sound", release=None, **bounds):
    """Verified inference of n examples from the scores of their draws.

    Paper: stobatch, Algorithm 3, Section 3.4, Section 4 (metrics).
    Printed: robust if size > μ.   Used: the same; ``as_released`` size ≥ μ, as in the authors' code.
    Args: scores — (n, num_draws, K), for a composition their :func:`product`;  attack_radii — (r,);
        kind, release — see the module;  bounds — of :func:`class_bounds`;
        layers — :class:`Layers`.
    Returns: :class:`Certificates`.
    """
    found = class_bounds(scores, **bounds)
    epsilon = np.asarray(largest_epsilon(found.lower, found.upper))
    radii = _radii(attack_radii)
    size = robustness_size(epsilon, layers=layers, attack_radii=radii, kind=kind, release=release)
    robust = (size >= radii) if kind == "as_released" else (size > radii)
    abstained = epsilon <= 0
    guaranteed = found.guaranteed and kind == "sound"
    robust &= ~abstained[:, None]
    return Certificates(found.label, abstained, epsilon, size, robust, radii, found.failure_prob, guaranteed)


def redraw(stored, *, scale, psi, num_draws, rng):
    """Noise of inference: Laplace draws of scale/ψ about the stored draw.

    Paper: stobatch, Appendix N. The scale that counts for a certificate is scale/ψ (:attr:`Layers.psi`).
    Args: stored — the noise kept from training, any shape;  scale — of training's Laplace noise, per entry.
    Returns: (num_draws, *stored.shape).
    """
    stored = checks.array("stored", stored)
    scale = checks.positive("scale", scale, finite=True) / checks.positive("psi", psi, finite=True)
    num_draws = checks.integer("num_draws", num_draws, low=1)
    return stored + rng.laplace(scale=scale, size=(num_draws, *stored.shape))


# -------------------------------------------------------------------------------------------------------------- PixelDP


def pixeldp_radius(lower, upper, *, noise, noise_scale, sensitivity=1.0, method="textbook"):
    r"""Radius within which PixelDP's noise keeps the label: in l1 for ``laplace``, in l2 for ``gaussian``.

    Laplace of scale s: s·ε/Δ with ε from Equation 4, δ = 0. Gaussian of standard deviation σ, ``textbook``: the largest
    :math:`\sigma\varepsilon/(\Delta\sqrt{2\ln(1.25/\delta)})` over ε ≤ 1 and the δ that Equation 4 leaves; ``exact``:
    :math:`\sigma(\Phi^{-1}(L) - \Phi^{-1}(U))/2\Delta`, the largest that any argument from L and U can give (Cohen et
    al. 2019).

    Paper: stobatch, Lemma 1, Equation 4 (Lecuyer et al. 2019).
    Args: lower, upper — of :class:`ClassBounds`;  sensitivity — Δ, l1 → l1 or l2 → l2 norm of what precedes the noise;
        noise — ``laplace`` or ``gaussian``;  noise_scale — s or σ;  method — ``textbook`` or ``exact``.
    """
    lower, upper = np.broadcast_arrays(checks.array("lower", lower), checks.array("upper", upper))
    if lower.size and (min(lower.min(), upper.min()) < 0 or max(lower.max(), upper.max()) > 1):
        raise ValueError("lower and upper must lie in [0, 1]")
    checks.choice("noise", noise, ("laplace", "gaussian"))
    checks.choice("method", method, ("textbook", "exact"))
    ratio = checks.positive("noise_scale", noise_scale) / checks.positive("sensitivity", sensitivity)
    if noise == "laplace":
        return ratio * largest_epsilon(lower, upper)
    if method == "exact":
        with np.errstate(invalid="ignore"):
            return np.where(lower > upper, ratio / 2 * (ndtri(lower) - ndtri(upper)), 0.0)[()]
    epsilon = np.linspace(0.001, 1, 1000)
    delta = (lower[..., None] - np.exp(2 * epsilon) * upper[..., None]) / (1 + np.exp(epsilon))
    with np.errstate(divide="ignore"):
        radius = np.where(delta > 0, epsilon / np.sqrt(2 * np.log(1.25 / np.where(delta > 0, delta, 1.0))), 0.0)
    return (ratio * radius.max(-1))[()]


def to_linf(radius, *, norm, dimension):
    """The l∞ radius whose ball lies in the l1 or l2 ball of that radius, in so many dimensions.

    Args: radius — any shape;  norm — ``l1`` or ``l2``.
    """
    dimension = checks.integer("dimension", dimension, low=1)
    return (
        checks.array("radius", radius)[()]
        / {"l1": dimension, "l2": math.sqrt(dimension)}[checks.choice("norm", norm, ("l1", "l2"))]
    )
