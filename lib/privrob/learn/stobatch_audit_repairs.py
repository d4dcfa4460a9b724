r"""Repairs at the budget that StoBatch claims: private by proofs that are short, and attacked all the same.

* Labels: K-ary randomised response, each label kept with probability e^ε/(e^ε + K − 1); exactly ε-DP for each record.
* Inputs: independent Laplace noise of scale 2D/ε on every entry: a record moves by 2D in l1.
* Training: DP-SGD on the whole batch, sums of clipped gradients plus N(0, σ²C²) over T steps, which is Gaussian DP with
  μ = 2√T/σ when a record is replaced.

``present`` says whether the data set is D (True) or D′; ``claimed_epsilon`` and ``honest_epsilon`` are the same in a
repair that works, one record replaced.

Paper: stobatch, Section 3.2 and Appendix J, what Theorem 4 claims; DP-SGD as in Section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.accounting import gdp
from privrob.accounting.functional_budget import split
from privrob.learn.stobatch_audit import in_pieces


def keep_prob(epsilon, *, num_classes):
    """Probability with which K-ary randomised response keeps a label: e^ε/(e^ε + K − 1)."""
    num_classes = checks.integer("num_classes", num_classes, low=2)
    return 1 / (1 + (num_classes - 1) * math.exp(-checks.nonnegative("epsilon", epsilon)))


def randomised_response(labels, *, epsilon, num_classes, rng):
    """Labels through K-ary randomised response. Args: labels — whole numbers in [0, K)."""
    labels = np.asarray(labels)
    kept = rng.random(labels.shape) < keep_prob(epsilon, num_classes=num_classes)
    others = (labels + rng.integers(1, num_classes, size=labels.shape)) % num_classes
    return np.where(kept, labels, others)


@dataclass(frozen=True)
class RandomisedLabels:
    """R1: one noisy label. Args: epsilon_labels — ε₂;  num_classes — K."""

    epsilon_labels: float = 0.1
    num_classes: int = 10

    @property
    def claimed_epsilon(self):
        """The claim ε₂, exact for randomised response."""
        return self.epsilon_labels

    @property
    def honest_epsilon(self):
        """log(keep / flip to one class), exact."""
        keep = keep_prob(self.epsilon_labels, num_classes=self.num_classes)
        return math.log(keep) - math.log((1 - keep) / (self.num_classes - 1))

    def says(self, present, *, num_trials, rng):
        """How often the label is reported as D has it."""
        labels = np.full(num_trials, 0 if present else 1)
        how = {"epsilon": self.epsilon_labels, "num_classes": self.num_classes, "rng": rng}
        return int((randomised_response(labels, **how) == 0).sum())


@dataclass(frozen=True)
class CalibratedRecord:
    """R2: one perturbed record whose noise is made for a whole record, at the ε that Lemma 3 claims for ``dataset`` and
    ``epsilon``.
    """

    dataset: str = "mnist"
    epsilon: float = 0.2

    @property
    def claimed_epsilon(self):
        """The claim ε₁/γx of Lemma 3."""
        return split(self.dataset, self.epsilon).claimed_epsilon_inputs

    @property
    def honest_epsilon(self):
        """Exact: the claim, which the noise is made for."""
        return self.claimed_epsilon

    @property
    def scale(self):
        """2D/ε."""
        return 2 * split(self.dataset, self.epsilon).num_inputs / self.claimed_epsilon

    def scores(self, present, *, num_trials, rng):
        """Log likelihood ratio of all −1 to all +1.

        Returns: shape (num_trials,).
        """
        size, centre = split(self.dataset, self.epsilon).num_inputs, -1.0 if present else 1.0
        found = []
        for n in in_pieces(num_trials, max(1, 2_000_000 // size)):
            seen = centre + rng.laplace(scale=self.scale, size=(n, size))
            found.append((np.abs(seen - 1) - np.abs(seen + 1)).sum(axis=1) / self.scale)
        return np.concatenate(found)


@dataclass(frozen=True)
class NoisyGradients:
    """R3: DP-SGD's noisy sums of gradients over T steps, full batches, calibrated to (ε, δ) under replacement.

    Args: epsilon, delta — of the whole training;  num_steps — T. The clipping norm is 1.
    """

    epsilon: float = 0.2
    delta: float = 1e-5
    num_steps: int = 50

    @property
    def claimed_epsilon(self):
        """The claim at δ, an upper bound: the noise is calibrated to it."""
        return self.epsilon

    @property
    def noise_multiplier(self):
        """σ: noise over clipping norm, each step; sensitivity 2 for a replaced record, √T for the steps."""
        return 2 * math.sqrt(self.num_steps) * float(gdp.noise_multiplier_of(self.epsilon, delta=self.delta))

    @property
    def honest_epsilon(self):
        """Exact at δ, from the noise that is added."""
        return float(gdp.epsilon_of(self.delta, gdp_mu=2 * math.sqrt(self.num_steps) / self.noise_multiplier))

    def scores(self, present, *, num_trials, rng):
        """Sum over steps along the canary's gradient, ±1 in the two data sets: all that tells them apart.

        Returns: shape (num_trials,).
        """
        found = []
        for n in in_pieces(num_trials, max(1, 2_000_000 // self.num_steps)):
            steps = (1.0 if present else -1.0) + self.noise_multiplier * rng.normal(size=(n, self.num_steps))
            found.append(steps.sum(axis=1))
        return np.concatenate(found)
