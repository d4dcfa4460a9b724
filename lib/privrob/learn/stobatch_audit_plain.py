r"""The small StoBatch written down once more, one training at a time and line by line, to hold the fast one against.

Plain torch: a module's forward pass, ``torch.optim.Adam``, one loop over steps. The numbers agree with
:class:`privrob.learn.stobatch_audit_model.Trainings` from the same draws up to rounding.

Paper: stobatch, Algorithm 1.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from privrob.learn.stobatch_audit_model import BETAS, NORM_EPS


def label_loss(logits, targets):
    """max(z, 0) − zy + log 2 − |z|/2 + z²/8, summed over classes and records: the Taylor form of the sigmoid loss.

    Args: logits, targets — (n, K).
    """
    each = logits.clamp(min=0) - logits * targets - logits.abs() / 2 + logits**2 / 8
    return (each + torch.log(torch.tensor(2.0))).sum()


def train_alone(toy, images, labels, draws):
    """Algorithm 1 for one trial.

    Args: toy — settings;  images — (N, d);  labels — (N,);  draws — of one trial (``Draws.of_trial``).
    Returns: {"theta", "hidden", "last"}, the weights at the end.
    """
    m = toy.batch_size
    theta, hidden, last = (w.clone().requires_grad_(True) for w in (draws.theta, draws.hidden, draws.last))
    perturbed = images.to(theta.dtype) + draws.input_noise  # line 2: B̄, once and for all
    hidden_noise = draws.hidden_noise.expand(len(images), -1)
    targets = functional.one_hot(labels, toy.num_classes).to(theta.dtype)
    descent = [torch.optim.Adam([hidden, last], lr=toy.learning_rate, betas=BETAS)]
    if toy.feature_rate:
        descent.append(torch.optim.Adam([theta], lr=toy.feature_rate, betas=BETAS))

    def network(batch, noise):  # line 3
        affine = batch @ theta + noise
        normal = functional.batch_norm(affine.detach() @ hidden, None, None, training=True, eps=NORM_EPS)
        return affine, functional.hardtanh(normal) @ last

    def attacked(batch, noise, radius):  # lines 6–11, FGSM
        batch = batch.clone().requires_grad_(True)
        affine = batch @ theta.detach() + noise
        normal = functional.batch_norm(affine @ hidden.detach(), None, None, training=True, eps=NORM_EPS)
        logits = functional.hardtanh(normal) @ last.detach()
        functional.cross_entropy(logits, logits.argmax(dim=1), reduction="sum").backward()
        return batch.detach() + radius * batch.grad.sign()

    for t in range(toy.num_steps):  # line 4
        i = t % toy.num_batches
        benign = slice(i * m, (i + 1) * m)  # line 5
        batches = [(perturbed[benign], benign, 1.0)]
        if toy.adversarial:
            j = (t + 1) % toy.num_batches
            source = slice(j * m, (j + 1) * m)
            crafted = attacked(perturbed[source], hidden_noise[source], draws.radii[t])
            batches.append((crafted, source, toy.adversarial_weight))
        reconstruction, label = 0.0, 0.0
        for batch, records, weight in batches:  # line 12
            affine, logits = network(batch, hidden_noise[records])
            products = affine.detach().T @ (
                0.5 - batch
            )  # R̄ is linear in θ₁ once h̄ is held: Σ_j θ_j·Σ_i h̄_i(1/2 − x̄_ij)
            reconstruction = reconstruction + (theta * products.T).sum()
            label = label + weight * (label_loss(logits, targets[records]) - (draws.label_noise * m * last).sum()) / m
        if toy.adversarial:
            label = label / (1 + toy.adversarial_weight)
        for optimizer in descent:
            optimizer.zero_grad()
        label.backward()
        if toy.feature_rate:
            theta.grad = None
            reconstruction.backward()
        for optimizer in descent:
            optimizer.step()
    return {"theta": theta.detach(), "hidden": hidden.detach(), "last": last.detach()}
