r"""One label query to a StoBatch whose last layer is trained to the end, in closed form: what each noise does to it.

The Taylor loss of the last layer, with Algorithm 1's noise on its label coefficients, is a quadratic in each class's
weights; its minimum is

.. math:: W_k = 4\Big(\sum_i h_ih_i^T\Big)^{-1}\Big(\sum_i h_i(y_{ik} - \tfrac12) + \chi_3\Big).

A label is decided by differences of classes. If all classes share one χ₃, as line 1 of Algorithm 1 prints it, it drops
out of these; one χ₁ and χ₂ for all records drop out where features are normalised. Nothing random is left.

Paper: stobatch, Algorithm 1 (line 1), Section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.accounting import functional_budget
from privrob.learn.stobatch_audit_labels import CHI_3

RECORDS = {True: (-1.0, -1.0, 1.0, 1.0), False: (-1.0, -1.0, 1.0, -1.0)}  # D, D′: the last one's pixel
LABELS = (0, 0, 1, 1)
QUERY = -0.25


@dataclass(frozen=True)
class LastLayer:
    """Four records of one pixel, one first-layer weight, features (1, normalised h) in [−1, 1], two classes.

    Args: epsilon — claimed in all, split as for MNIST;  draw — of χ₃ over classes.
    """

    epsilon: float = 0.2
    draw: str = "shared_by_classes"

    def __post_init__(self):
        checks.choice("draw", self.draw, CHI_3)

    @property
    def budget(self):
        """MNIST's split; the first layer's weight is the norm that it is made for."""
        return functional_budget.split("mnist", self.epsilon)

    def weights(self, hidden, *, rng):
        """W at the minimum, (trials, 2 features, 2 classes), for features ``hidden`` (trials, records, 2)."""
        targets = np.eye(2)[list(LABELS)] - 0.5
        shared = self.draw == "shared_by_classes"
        scale = 2 * hidden.shape[2] / self.budget.epsilon_labels  # Δ_L2/ε₂
        chi = rng.laplace(scale=scale, size=(len(hidden), hidden.shape[2], 1 if shared else 2))
        right = np.swapaxes(hidden, 1, 2) @ targets + chi
        return 4 * np.linalg.solve(np.swapaxes(hidden, 1, 2) @ hidden, right)

    def answers(self, present, *, num_trials, rng):
        """In how many of the trainings the model answers label 1 at the query.

        Args: present — D (True) or D′.
        """
        num_trials = checks.integer("num_trials", num_trials, low=1)
        budget, weight = self.budget, functional_budget.configuration("mnist").released_norm
        at_input = rng.laplace(scale=budget.input_scale, size=(num_trials, 1))  # χ₁/m: one for all records
        at_hidden = rng.laplace(scale=budget.hidden_scale, size=(num_trials, 1))  # 2χ₂/m
        pixels = np.append(RECORDS[bool(present)], QUERY) + at_input
        values = weight * pixels + at_hidden
        values = values - values[:, :-1].mean(axis=1, keepdims=True)  # by the batch's statistics
        values = values / np.abs(values[:, :-1]).max(axis=1, keepdims=True)
        features = np.stack([np.ones_like(values), values], axis=-1)
        scores = features[:, -1:] @ self.weights(features[:, :-1], rng=rng)
        return int((scores[:, 0, 1] > scores[:, 0, 0]).sum())
