r"""A small StoBatch, many trainings of it at once: what a single label query to the final model gives away.

All trainings of an arm run in one batch: every weight, noise draw and Adam moment has a leading axis of trials, and
gradients are written out by hand. Line numbers are those of Algorithm 1.

* Line 1. χ₁ ~ Lap(Δ_R/ε₁), χ₂ ~ Lap(Δ_R/ε₁), χ₃ ~ Lap(Δ_L2/ε₂), one χ₃ for each class. ``noise="shared"``: one draw of
  χ₁ and χ₂ for all records, as printed; ``"independent"``: one for each record; ``"none"``: zero.
* Lines 2–3. Fixed, disjoint batches of x̄ = x + χ₁/m. The network: h̄ = θ₁ᵀx̄ + 2χ₂/m, then an affine layer, batch
  normalisation and clipping to [−1, 1] (as in the authors' release), which is h_π; the logits are h_πW.
* Lines 5–11. Step t takes the benign batch t mod N/m; with ``adversarial``, the next batch gives FGSM examples
  x̄ + μ·sign(gradient), μ ~ U(0, 1], on the model's own prediction at x̄ (Equation 7).
* Line 12. θ₁ by Equation 19, h̄ a constant; θ₂ by the label loss, its Taylor form, benign and adversarial weighted by
  Equation 9, with χ₃ on the coefficients of the labels. Both by Adam.

``toy`` is a :class:`Toy`; ``features`` are (trials, β, records), the weights of a layer (trials, in, out), and
derivatives by something have its shape (``by_last_hidden``: that of h_π).

Paper: stobatch, Algorithm 1, Equations 7, 9, 19; Theorem 4.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch

from privrob import checks
from privrob.accounting.functional_budget import Budget

NOISES = ("shared", "independent", "none")
QUERIES = ("stored", "own_copy", "fresh", "clean")
BETAS, ADAM_EPS, NORM_EPS = (0.9, 0.999), 1e-8, 1e-5


@dataclass(frozen=True)
class Toy:
    """Settings of the small StoBatch.

    Args: epsilon, epsilon_labels — claimed in all, and its ε₂;  batch_size — m;  num_batches — N/m;  num_inputs — d;
        num_features — β;  num_hidden — |h_π|;  num_classes — K;  num_steps — T;  learning_rate — of θ₂;
        feature_rate — of θ₁ (0: it stays as drawn);  adversarial_weight — ξ.
    """

    noise: str = "shared"
    adversarial: bool = False
    epsilon: float = 0.2
    epsilon_labels: float = 0.1
    batch_size: int = 200
    num_batches: int = 1
    num_inputs: int = 8
    num_features: int = 8
    num_hidden: int = 16
    num_classes: int = 2
    num_steps: int = 800
    learning_rate: float = 0.01
    feature_rate: float = 0.0
    adversarial_weight: float = 1.0

    def __post_init__(self):
        checks.choice("noise", self.noise, NOISES)
        for name in ("batch_size", "num_inputs", "num_classes"):
            checks.integer(name, getattr(self, name), low=2)
        for name in ("num_batches", "num_features", "num_hidden"):
            checks.integer(name, getattr(self, name), low=1)
        checks.integer("num_steps", self.num_steps, low=0)
        for name in ("feature_rate", "adversarial_weight"):
            checks.nonnegative(name, getattr(self, name), finite=True)
        checks.positive("learning_rate", self.learning_rate, finite=True)
        checks.positive("epsilon_labels", self.epsilon_labels, finite=True)
        hint = "epsilon_labels is a part of it"
        checks.real("epsilon", self.epsilon, low=self.epsilon_labels, open_low=True, open_high=True, hint=hint)

    @classmethod
    def of(cls, settings):
        """From a cell's settings, those that are not its own."""
        return cls(**{f.name: settings[f.name] for f in fields(cls) if f.name in settings})

    @property
    def num_records(self):
        """N."""
        return self.batch_size * self.num_batches

    @property
    def budget(self):
        """The claimed budget with ‖θ₁‖ = 1, which is how θ₁ is drawn: ε₁ takes what ε₂ leaves."""
        shape = {"in_shape": (self.num_inputs,), "batch_size": self.batch_size, "num_hidden": self.num_hidden}
        shape |= {"kernel_area": self.num_inputs, "map_neurons": self.num_features}
        unit = Budget(epsilon_features=1.0, epsilon_labels=self.epsilon_labels, **shape)
        parts = 1 + 1 / unit.gamma_inputs + 1 / unit.gamma(1.0)
        rest = (self.epsilon - self.epsilon_labels) / parts
        return Budget(epsilon_features=rest, epsilon_labels=self.epsilon_labels, **shape)


@dataclass
class Draws:
    """All that is random in the trainings, the trials' axis first: weights at the start, noise, radii of attacks.

    ``theta`` θ₁ (trials, d, β), ``hidden`` (trials, β, |h_π|), ``last`` W (trials, |h_π|, K); ``input_noise`` χ₁/m
    (trials, 1 or N, d), ``hidden_noise`` 2χ₂/m (trials, 1 or N, β), ``label_noise`` χ₃/m (trials, |h_π|, K); ``radii``
    μ_t (trials, T).
    """

    theta: torch.Tensor  # θ₁ (trials, d, β)
    hidden: torch.Tensor  # (trials, β, |h_π|)
    last: torch.Tensor  # W (trials, |h_π|, K)
    input_noise: torch.Tensor  # χ₁/m (trials, 1 or N, d)
    hidden_noise: torch.Tensor  # 2χ₂/m (trials, 1 or N, β)
    label_noise: torch.Tensor  # χ₃/m (trials, |h_π|, K)
    radii: torch.Tensor  # μ_t (trials, T)

    def of_trial(self, i):
        """The draws of trial ``i``, without their first axis."""
        return Draws(**{f.name: getattr(self, f.name)[i] for f in fields(self)})


def laplace(shape, *, scale, generator, dtype):
    """Laplace noise of that scale.

    Args: shape — of the answer;  scale — b.
    """
    both = torch.empty((2, *shape), dtype=dtype).exponential_(generator=generator)
    return scale * (both[0] - both[1])


def draw(toy, *, num_trials, streams, dtype=torch.float32):
    """Line 1, and the weights of line 2.

    θ₁ is scaled to operator norm 1, so that the claim is the same for all trials.
    """
    budget, n = toy.budget, checks.integer("num_trials", num_trials, low=1)
    weights, noises = streams.torch("weights"), streams.torch("noise")
    normal = {"generator": weights, "dtype": dtype}
    theta = torch.randn((n, toy.num_inputs, toy.num_features), **normal)
    theta = theta / theta.abs().sum(dim=2).amax(dim=1)[:, None, None]
    hidden = torch.randn((n, toy.num_features, toy.num_hidden), **normal) / toy.num_features**0.5
    last = torch.randn((n, toy.num_hidden, toy.num_classes), **normal) / toy.num_hidden**0.5
    rows = {"shared": 1, "independent": toy.num_records, "none": 1}[toy.noise]
    quiet = 0.0 if toy.noise == "none" else 1.0
    options = {"generator": noises, "dtype": dtype}
    at_inputs = quiet * laplace((n, rows, toy.num_inputs), scale=budget.input_scale, **options)
    at_hidden = quiet * laplace((n, rows, toy.num_features), scale=budget.hidden_scale, **options)
    at_labels = quiet * laplace((n, toy.num_hidden, toy.num_classes), scale=budget.label_scale, **options)
    radii = 1 - torch.rand((n, toy.num_steps), generator=streams.torch("radii"), dtype=dtype)
    return Draws(theta, hidden, last, at_inputs, at_hidden, at_labels, radii)


def taylor_loss(logits, targets):
    r"""Σ_k log 2 + z/2 − zy + z²/8 for each record, classes on axis 1: the sigmoid loss, to second order at 0.

    Paper: stobatch, Section 3.2 (L̃).
    Printed: hW for max(hW, 0), and no log 2, a constant.   Used: the loss that is expanded.
    Args: logits, targets — (trials, K, records).
    """
    return (np.log(2.0) + logits / 2 - logits * targets + logits**2 / 8).sum(dim=1)


class Centred:
    """Features less their means over the batch, and their covariance: all that batch norm needs to know."""

    def __init__(self, features):
        self.features = features  # (trials, β, records)
        self.values = features - features.mean(dim=2, keepdim=True)
        self.covariance = self.values @ self.values.mT / features.shape[2]


class Layer:
    r"""Affine layer V, batch norm over the records, clipping: h_π, and its derivatives.

    Batch norm of Vᵀh has mean Vᵀ·mean(h) and variances diag(VᵀCV): with centred h it is one product with
    V/√(variance + 1e-5), and so are its derivatives, for g the derivative by the normalised values z:

    .. math:: \partial V = r\,(h_c g^T - n C V_r\, s), \quad \partial h = V_r (g - \bar g - s z), \quad
        s = \overline{g z}, \; V_r = rV.

    Args: features — what enters;  weights — V.
    """

    def __init__(self, features, weights):
        self.inputs = features if isinstance(features, Centred) else Centred(features)
        self.features = self.inputs.features
        variance = (weights * (self.inputs.covariance @ weights)).sum(dim=1, keepdim=True)
        self.inverse = (variance + NORM_EPS).rsqrt()
        self.scaled = weights * self.inverse
        self.normal = self.scaled.mT @ self.inputs.values
        self.last_hidden = self.normal.clamp(-1, 1)

    def _inside(self, by_last_hidden):
        """g, its product with the features, and s."""
        by_normal = by_last_hidden * (self.normal == self.last_hidden)
        product = self.inputs.values @ by_normal.mT
        return by_normal, product, (self.scaled * product).sum(dim=1, keepdim=True) / self.normal.shape[2]

    def by_weights(self, by_last_hidden):
        """The loss's derivative by V, from that by h_π."""
        _, product, mean = self._inside(by_last_hidden)
        return self.inverse * (product - self.normal.shape[2] * (self.inputs.covariance @ self.scaled) * mean)

    def by_features(self, by_last_hidden):
        """The loss's derivative by the features."""
        by_normal, _, mean = self._inside(by_last_hidden)
        return self.scaled @ (by_normal - by_normal.mean(dim=2, keepdim=True)) - (self.scaled * mean) @ self.normal


class Trainings:
    """Trainings of the small StoBatch on one data set, all trials at once. Call :meth:`run` once.

    Inside, records are the last axis: (trials, units, records).

    Args: toy — :class:`Toy`;  images — (N, d) in [−1, 1];  labels — (N,);  draws — :class:`Draws`.
    """

    def __init__(self, toy, images, labels, draws):
        if tuple(images.shape) != (toy.num_records, toy.num_inputs) or len(labels) != toy.num_records:
            raise ValueError(f"images must have shape {(toy.num_records, toy.num_inputs)}, got {tuple(images.shape)}")
        self.toy, self.draws, self.step = toy, draws, 0
        dtype = draws.theta.dtype
        self.perturbed = images.to(dtype).T + draws.input_noise.transpose(1, 2)  # line 2
        self.targets = torch.nn.functional.one_hot(labels, toy.num_classes).to(dtype).T
        self.hidden_noise = draws.hidden_noise.transpose(1, 2).expand(-1, -1, toy.num_records)
        self.weights = [draws.theta.clone(), draws.hidden.clone(), draws.last.clone()]
        self.moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self.weights]
        self.kept = {}
        self.claimed_epsilon = self._claimed()

    def _claimed(self):
        """The document's formula at the present θ₁, for each trial."""
        norms = self.weights[0].abs().sum(dim=2).amax(dim=1)
        budget = self.toy.budget
        return np.array([budget.claimed_epsilon(float(norm)) for norm in norms])

    def _records(self, batch):
        m = self.toy.batch_size
        return slice(batch * m, (batch + 1) * m)

    def _affine(self, images, noise):
        return self.weights[0].mT @ images + noise

    def _fgsm(self, records):
        """Lines 6–11: x̄ + μ·sign(gradient of the cross entropy at the model's own prediction)."""
        images = self.perturbed[:, :, records]
        layer = Layer(self._affine(images, self.hidden_noise[:, :, records]), self.weights[1])
        logits = self.weights[2].mT @ layer.last_hidden
        by_logits = logits.softmax(dim=1)
        by_logits.scatter_add_(1, logits.argmax(dim=1, keepdim=True), -torch.ones_like(logits[:, :1]))
        gradient = self.weights[0] @ layer.by_features(self.weights[2] @ by_logits)
        return images + self.draws.radii[:, self.step, None, None] * gradient.sign()

    def _parts(self):
        """What a step reads: (weight in Equation 9, images, their records), benign and adversarial (lines 5–11)."""
        toy = self.toy
        benign = self._records(self.step % toy.num_batches)
        parts = [(1.0, self.perturbed[:, :, benign], benign)]
        if toy.adversarial:
            source = self._records((self.step + 1) % toy.num_batches)
            parts.append((toy.adversarial_weight, self._fgsm(source), source))
        return parts

    @torch.no_grad()
    def _descend(self):
        """Lines 5–12, once."""
        parts = self._parts()
        total = sum(weight for weight, _, _ in parts)
        by_theta, by_hidden, by_last = 0.0, 0.0, -self.draws.label_noise
        for weight, images, records in parts:
            layer = self._layer(images, records)
            if self.toy.feature_rate:
                by_theta = by_theta + (0.5 - images) @ layer.features.mT  # Equation 19
            logits = self.weights[2].mT @ layer.last_hidden
            by_logits = (0.5 + logits / 4 - self.targets[:, records]) * (weight / total / self.toy.batch_size)
            by_last = by_last + layer.last_hidden @ by_logits.mT
            by_hidden = by_hidden + layer.by_weights(self.weights[2] @ by_logits)
        self.step += 1
        self._adam([by_theta, by_hidden, by_last] if self.toy.feature_rate else [by_hidden, by_last])

    def _layer(self, images, records):
        """The layer below W for these images; where θ₁ stays, features of the benign batch are computed once."""
        if self.toy.feature_rate or self.toy.adversarial:
            return Layer(self._affine(images, self.hidden_noise[:, :, records]), self.weights[1])
        if records.start not in self.kept:
            self.kept[records.start] = Centred(self._affine(images, self.hidden_noise[:, :, records]))
        return Layer(self.kept[records.start], self.weights[1])

    def _adam(self, gradients):
        first = 0 if self.toy.feature_rate else 1
        rates = [self.toy.feature_rate, self.toy.learning_rate, self.toy.learning_rate][first:]
        slow, fast = BETAS
        for i, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=first):
            mean, square = self.moments[i]
            mean.mul_(slow).add_(gradient, alpha=1 - slow)
            square.mul_(fast).addcmul_(gradient, gradient, value=1 - fast)
            size = (square / (1 - fast**self.step)).sqrt_().add_(ADAM_EPS)
            self.weights[i].addcdiv_(mean, size, value=-rate / (1 - slow**self.step))

    def run(self):
        """Lines 4–12. Returns: self."""
        for _ in range(self.toy.num_steps):
            self._descend()
            if self.toy.feature_rate:
                self.claimed_epsilon = np.maximum(self.claimed_epsilon, self._claimed())
        return self

    @torch.no_grad()
    def logits(self, images=None, *, query="stored", record=None, generator=None):
        """The deployed model's logits at images, normalised by the training records' statistics.

        Args: images — (k, d), or None for the training records with their stored noise;  query — what the server adds
            to an image: ``stored`` χ₁/m and 2χ₂/m (shared noise: the same for all), ``own_copy``: the noise that record
            ``record`` was trained with, ``fresh`` draws, or nothing (``clean``).
        Returns: (trials, k, K).
        """
        values = self.weights[1].mT @ self._affine(self.perturbed, self.hidden_noise)
        mean, var = values.mean(dim=2, keepdim=True), values.var(dim=2, keepdim=True, unbiased=False)
        if images is not None:
            at_inputs, at_hidden = self._query_noise(len(images), query, record, generator)
            values = self.weights[1].mT @ self._affine(images.to(values.dtype).T + at_inputs, at_hidden)
        last_hidden = ((values - mean) / (var + NORM_EPS).sqrt()).clamp(-1, 1)
        return (self.weights[2].mT @ last_hidden).mT

    def _query_noise(self, num_queries, query, record, generator):
        checks.choice("query", query, QUERIES)
        noises = [n.mT for n in (self.draws.input_noise, self.draws.hidden_noise)]
        own = noises[0].shape[2] > 1
        if query == "stored" and own:
            raise ValueError("query must be 'own_copy', 'fresh' or 'clean' where every record has its own noise")
        if query == "own_copy":
            return [n[:, :, record : record + 1] if own else n for n in noises]
        if query == "fresh":
            scales = self.toy.budget.input_scale, self.toy.budget.hidden_scale
            shapes = [(n.shape[0], n.shape[1], num_queries) for n in noises]
            options = {"generator": generator, "dtype": noises[0].dtype}
            return [laplace(shape, scale=scale, **options) for shape, scale in zip(shapes, scales, strict=True)]
        return [n if query == "stored" else torch.zeros_like(n[:, :, :1]) for n in noises]
