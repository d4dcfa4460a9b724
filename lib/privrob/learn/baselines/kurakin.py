r"""Adversarial training as in Kurakin et al. (2016): benign and adversarial examples in every step, no privacy.

.. math:: L(\theta) = \frac{1}{m_1 + \xi m_2} \Big( \sum_{x_i \in B_t} \mathcal L(f(x_i, \theta), y_i)
    + \xi \sum_{x_j^{adv} \in B_t^{adv}} \Upsilon(f(x_j^{adv}, \theta), y_j) \Big)

Paper: stobatch, Algorithm 2 and Eq. 15 (Appendix C). 𝓛 and Υ are both the softmax cross entropy here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privrob import checks
from privrob.learn.baselines.deployed import Quiet
from privrob.learn.baselines.training import HIGH, LOW, NON_PRIVATE, Settings, Training, cross_entropy_sum
from privrob.robust import adversarial


@dataclass(frozen=True, kw_only=True)
class KurakinSettings(Settings):
    """Algorithm 2's inputs.

    Args: batch_size — m₁;  adversarial_batch_size — m₂ (0: plain training);  adversarial_weight — ξ;
        attack, attack_steps — kind of :func:`privrob.robust.adversarial.attack` and T_μ;
        attack_radius — μ, the largest; each step draws its own, uniform in [0, μ], if ``random_radius``;
        predicted_labels — attack the model's own prediction (no label leaks into the example) and not the true label.
    """

    adversarial_batch_size: int = 250
    adversarial_weight: float = 1.0
    attack: str = "fgsm"
    attack_steps: int = 1
    attack_radius: float = 0.3
    random_radius: bool = True
    predicted_labels: bool = True

    def __post_init__(self):
        super().__post_init__()
        checks.integer("adversarial_batch_size", self.adversarial_batch_size, low=0)
        checks.nonnegative("adversarial_weight", self.adversarial_weight, finite=True)
        checks.choice("attack", self.attack, ("fgsm", "ifgsm", "mim", "pgd"))
        checks.integer("attack_steps", self.attack_steps, low=1)
        checks.nonnegative("attack_radius", self.attack_radius, finite=True)


def loss(benign_logits, benign_labels, adversarial_logits, adversarial_labels, *, adversarial_weight):
    """Eq. 15 from logits and labels of both batches.

    Paper: stobatch, Eq. 15.
    Args: benign_logits, adversarial_logits — (n, K) and (m, K);  benign_labels, adversarial_labels — (n,) and (m,);
        adversarial_weight — of an adversarial example.
    """
    benign = cross_entropy_sum(benign_logits, benign_labels)
    crafted = cross_entropy_sum(adversarial_logits, adversarial_labels)
    weight = adversarial_weight
    return (benign + weight * crafted) / (len(benign_labels) + weight * len(adversarial_labels))


class Kurakin(Training):
    """Algorithm 2, a line of it a line of :meth:`advance`."""

    def advance(self):
        settings = self.settings
        benign, labels = self.random_batch(settings.batch_size)  # line 3
        if not settings.adversarial_batch_size:
            return self.descend(cross_entropy_sum(self.network(benign), labels) / len(labels))
        sources, true = self.random_batch(min(settings.adversarial_batch_size, len(self.images)))
        crafted = self._crafted(sources, true)  # line 4
        logits = self.network(torch.cat([benign, crafted]))
        parts = logits[: len(benign)], labels, logits[len(benign) :], true
        return self.descend(loss(*parts, adversarial_weight=settings.adversarial_weight))  # line 5

    def _crafted(self, sources, labels):
        settings, radius = self.settings, self.settings.attack_radius
        if settings.random_radius:
            radius *= float(torch.rand((), generator=self.attack, device=self.device))
        return adversarial.attack(
            self.network,
            sources,
            None if settings.predicted_labels else labels,
            kind=settings.attack,
            radius=radius,
            num_steps=settings.attack_steps,
            low=LOW,
            high=HIGH,
            generator=self.attack,
        )

    def deployed(self):
        return Quiet(self.network)

    def privacy(self, *, delta):
        return dict(NON_PRIVATE)
