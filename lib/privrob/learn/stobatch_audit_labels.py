r"""Attacks on labels: the perturbed coefficients Σ h y_k + χ₃, and the gradients below the last layer, which have none.

ε₂ pays for one release of the coefficients with a χ₃ for each class (D2). It does not pay for a χ₃ that all classes
share, as line 1 has it (D), for the same χ₃ at a second step, where h has changed and y has not (T), nor for

.. math:: \frac{\partial\bar L}{\partial h_i} = \sum_k W_k\big(\tfrac12 + \tfrac14 W_k^T h_i - y_{ik}\big),

which every layer below W_π is trained with: χ₃ multiplies W alone, so its derivative by h is zero (E).

``present`` says whether the data set is D (True) or D′, one record's label replaced; ``claimed_epsilon`` is what the
document claims, ``honest_epsilon`` what this pair costs exactly.

Paper: stobatch, Algorithm 1 (line 1), Lemma 4, Theorem 3, Section 3.2 "DP at the Dataset Level", Appendix I.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.learn.stobatch_audit import exactly, in_pieces

PIECE = 2_000_000
CHI_3 = ("shared_by_classes", "per_class")
STEPS = ("one", "two_with_one_draw", "two_with_fresh_draws")


@dataclass(frozen=True)
class LabelCoefficients:
    """Attacks D, D2, T, T2: Σ_i h_i y_ik + χ₃ for all classes k, once or at two steps.

    D and D′ differ in one label, 0 or 1. The adversary knows the other records and sees the hidden batches. Of the K
    classes only these two and a third one are drawn: the others have noise of their own, or the same as the third.

    Args: epsilon_labels — ε₂;  num_hidden, num_classes — |h_π|, K;  draw — of χ₃ over classes;  steps — how often the
        coefficients are seen, and with which noise.
    """

    epsilon_labels: float = 0.1
    num_hidden: int = 256
    num_classes: int = 10
    draw: str = "per_class"
    steps: str = "one"

    def __post_init__(self):
        checks.choice("draw", self.draw, CHI_3)
        checks.choice("steps", self.steps, STEPS)
        checks.integer("num_classes", self.num_classes, low=3, hint="a third class is what leaves D's χ₃ visible")

    @property
    def claimed_epsilon(self):
        """The claim ε₂, for any number of steps."""
        return self.epsilon_labels

    @property
    def honest_epsilon(self):
        """Infinite where a difference has no noise; ε₂ once; 2ε₂ for two steps with fresh noise.

        Side: exact.
        """
        exact = self.draw == "shared_by_classes" or self.steps == "two_with_one_draw"
        return math.inf if exact else self.epsilon_labels * (2 if self.steps == "two_with_fresh_draws" else 1)

    @property
    def scale(self):
        """Δ_L2/ε₂ of χ₃."""
        return 2 * self.num_hidden / self.epsilon_labels

    def coefficients(self, present, *, num_trials, rng):
        """What the changed record leaves of the coefficients, less all known records: (steps, trials, |h_π|, 3)."""
        label = 0 if present else 1
        num_steps = 1 if self.steps == "one" else 2
        size = (num_trials, self.num_hidden, 1 if self.draw == "shared_by_classes" else 3)
        seen = np.zeros((num_steps, num_trials, self.num_hidden, 3))
        for step in range(num_steps):
            if step == 0 or self.steps == "two_with_fresh_draws":
                noise = rng.laplace(scale=self.scale, size=size)
            seen[step] += noise
            seen[step, :, :, label] += self.hidden(step)[:, None].T
        return seen

    def hidden(self, step):
        """h_π of the changed record at a step, ±1 in all units: the worst case. It turns round from step to step."""
        signs = np.where(np.arange(self.num_hidden) % 2, 1.0, -1.0)
        return signs if step == 0 else -signs

    def scores(self, present, *, num_trials, rng):
        """Log likelihood ratio of label 0 to label 1, or ±1 where a difference without noise tells.

        Returns: shape (num_trials,).
        """
        found = []
        per_trial = 3 * self.num_hidden * (1 if self.steps == "one" else 2)
        for n in in_pieces(num_trials, max(1, PIECE // per_trial)):
            seen = self.coefficients(present, num_trials=n, rng=rng)
            if self.draw == "shared_by_classes":
                left = seen[0, :, :, 0] - seen[0, :, :, 2]  # class 2 has the noise alone
                found.append(np.where(exactly(left, self.hidden(0), axis=1), 1.0, -1.0))
            elif self.steps == "two_with_one_draw":
                left = seen[0, :, :, 0] - seen[1, :, :, 0]
                found.append(np.where(exactly(left, self.hidden(0) - self.hidden(1), axis=1), 1.0, -1.0))
            else:
                total = 0.0
                for step, values in enumerate(seen):
                    h = self.hidden(step)
                    far = np.abs(values[:, :, 0]) + np.abs(values[:, :, 1] - h)
                    near = np.abs(values[:, :, 0] - h) + np.abs(values[:, :, 1])
                    total = total + (far - near).sum(axis=1) / self.scale
                found.append(total)
        return np.concatenate(found)


@dataclass(frozen=True)
class LowerGradient:
    """Attack E: the gradient of L̄ by the weights just below h_π, which reads labels without noise.

    Args: epsilon_labels — ε₂;  batch_size — m;  num_inputs — units below h_π, whose batch is seen;  num_hidden — |h_π|;
        num_classes — K.
    """

    epsilon_labels: float = 0.1
    batch_size: int = 250
    num_inputs: int = 32
    num_hidden: int = 64
    num_classes: int = 10

    @property
    def claimed_epsilon(self):
        """The claim ε₂ (Theorem 3; the hidden batch is paid for by ε₁/γ)."""
        return self.epsilon_labels

    @property
    def honest_epsilon(self):
        """Infinite: the gradient is a function of the labels.

        Side: exact.
        """
        return math.inf

    def gradient(self, below, weights, last, labels):
        """∂L̄/∂V for h_π = clip(below @ V, −1, 1) and one-hot labels; χ₃ has no part in it.

        Args: below — features, (n, d);  weights — V, (d, |h_π|);  last — W, (|h_π|, K);  labels — one-hot, (n, K).
        """
        values = below @ weights
        hidden = np.clip(values, -1, 1)
        by_hidden = (0.5 + hidden @ last / 4 - labels) @ last.T
        return below.T @ (by_hidden * (np.abs(values) < 1)) / len(below)

    def says(self, present, *, num_trials, rng):
        """In how many trials the adversary, who sees the hidden batch and the weights, says D."""
        count, eye = 0, np.eye(self.num_classes)
        below = rng.uniform(-1, 1, size=(self.batch_size, self.num_inputs))
        for _ in range(num_trials):
            weights = rng.normal(size=(self.num_inputs, self.num_hidden)) / self.num_inputs
            last = rng.normal(size=(self.num_hidden, self.num_classes))
            labels = rng.integers(0, self.num_classes, size=self.batch_size)
            labels[0] = 0
            wanted = self.gradient(below, weights, last, eye[labels])
            labels[0] = 0 if present else 1
            seen = self.gradient(below, weights, last, eye[labels])
            count += bool(exactly(seen, wanted, axis=(0, 1)))
        return count
