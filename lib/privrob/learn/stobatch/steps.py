"""What one trainer does in one step: craft the adversarial batch, take the gradients of both objectives."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass

import torch

from privrob.learn.stobatch import objectives
from privrob.robust import adversarial

LOSSES = ("benign_loss", "adversarial_loss", "reconstruction_loss", "training_radius")


@dataclass(frozen=True)
class Part:
    """Records of a fixed batch: clean ``images``, ``labels``, and their stored ``input_noise`` and ``hidden_noise``
    ((1, …), (n, …) or None).
    """

    images: torch.Tensor
    labels: torch.Tensor
    input_noise: torch.Tensor | None
    hidden_noise: torch.Tensor | None

    def __len__(self):
        return len(self.labels)

    def split(self, count):
        """``count`` portions, in order, as equal as can be."""
        ends = [len(self) * i // count for i in range(count + 1)]
        return [self.of(slice(a, b)) for a, b in itertools.pairwise(ends)]

    def of(self, rows):
        """The records at ``rows``."""
        noises = (n if n is None or len(n) == 1 else n[rows] for n in (self.input_noise, self.hidden_noise))
        return Part(self.images[rows], self.labels[rows], *noises)

    def portions(self, at_once):
        """Portions of at most ``at_once`` records (None: all), none with a single record: batch norm needs two."""
        count = 1 if at_once is None else -(-len(self) // at_once)
        return self.split(max(1, min(count, len(self) // 2)))


@contextlib.contextmanager
def evaluating(network, statistics):
    """The network in evaluation mode with these batch-norm statistics; as it was before, afterwards."""
    before = [(m, m.training, getattr(m, "statistics", None)) for m in network.modules()]
    network.eval().set_statistics(statistics)
    try:
        yield
    finally:
        for module, training, was in before:
            module.training = training
            if was is not None:
                module.statistics = was


def craft(network, settings, part, *, radius, generator):
    """The adversarial batch: each attack of the ensemble takes its share of the records, in order.

    ``perturbed``: from x̄, and x̄'s own range (that of the first layer) is all that bounds it: nothing but x̄ and the
    parameters is read. ``clean``: from x in [−1, 1], through the stored noise; the result has no input noise.
    Batch norm uses the statistics of the portion, as in training.

    Paper: stobatch, Algorithm 1 (lines 6–11), Equation 7, Equation 8; the label is the network's prediction.
    Args: part — :class:`Part`;  radius — μ, l∞.
    Returns: a :class:`Part` with the true labels and no input noise.
    """
    perturbed, crafted = settings.adversarial_source == "perturbed", []
    limit = network.input_range if perturbed else 1.0
    with evaluating(network, "batch"):
        for kind, share in zip(settings.attacks, part.split(len(settings.attacks))):
            for one in share.portions(settings.micro_batch_size):
                images = network.noisy(one.images, one.input_noise) if perturbed else one.images
                noise = {"hidden_noise": one.hidden_noise} | ({} if perturbed else {"input_noise": one.input_noise})
                found = adversarial.attack(
                    lambda x, noise=noise: network(x, **noise),
                    images,
                    kind=kind,
                    radius=radius,
                    num_steps=settings.attack_steps,
                    low=-limit,
                    high=limit,
                    generator=generator,
                )
                crafted.append(found)
    return Part(torch.cat(crafted), part.labels, None, part.hidden_noise)


def gradients(network, settings, benign, attacked, *, labels_noise, generator, radius=None):
    """One trainer's gradients of R̄ (for θ₁) and L̄ (for θ₂), of means over its records.

    Paper: stobatch, Algorithm 1 (line 12) and Algorithm 4 (lines 8–14).
    Args: benign — a :class:`Part`;  attacked — the :class:`Part` that adversarial examples are crafted from, or None;
        labels_noise — χ₃/m;  generator — of attacks that start at random;  radius — μ_t.
    Returns: (gradients, of ``network.first``'s parameters then ``network.rest``'s; losses, by the names of ``LOSSES``:
        means over records). Running averages of batch norm move.
    """
    parts = [(benign, "benign_loss")]
    if attacked is not None and settings.adversarial:
        crafted = craft(network, settings, attacked, radius=radius, generator=generator)
        parts.append((crafted, "adversarial_loss"))
    first, rest = list(network.first.parameters()), list(network.rest.parameters())
    found = [torch.zeros_like(p) for p in (*first, *rest)]
    losses = dict.fromkeys(LOSSES, 0.0)
    losses["training_radius"] = radius or 0.0
    total = sum(len(part) for part, _ in parts)
    network.train()
    for part, name in parts:
        for one in part.portions(settings.micro_batch_size):
            images = network.noisy(one.images, one.input_noise)
            if settings.reconstruction != "none":
                value = _reconstruction(network, settings, images, one).sum() / total
                _add(found, torch.autograd.grad(value, first, allow_unused=True))
                losses["reconstruction_loss"] += value.item()
            each = _loss(network, settings, images, one)
            sides = (each, each[:0]) if name == "benign_loss" else (each[:0], each)
            weight = settings.adversarial_weight
            loss = objectives.adversarial_objective(*sides, batch_size=len(part), adversarial_weight=weight)
            _add(found[len(first) :], torch.autograd.grad(loss, rest))
            losses[name] += each.sum().item() / len(part)
    extra = _extra(network, settings, labels_noise)
    if extra is not None:
        _add(found[len(first) :], torch.autograd.grad(extra, rest, allow_unused=True))
    return found, losses


def _reconstruction(network, settings, images, part):
    with evaluating(network, "batch"):  # the auto-encoder's own pass must not move running averages twice
        return objectives.RECONSTRUCTION[settings.reconstruction](network, images, hidden_noise=part.hidden_noise)


def _loss(network, settings, images, part):
    with torch.no_grad():  # θ₁ learns from the reconstruction alone
        h = network.affine(images)
        h = h if part.hidden_noise is None else h + part.hidden_noise
    return objectives.taylor_cross_entropy(network.last(network.hidden(h)), part.labels, form=settings.loss)


def _extra(network, settings, labels_noise):
    """The label noise, and the weight decay of dense layers; None if there is neither."""
    terms = []
    if labels_noise is not None:
        variant = settings.label_noise
        weight = network.last.weight
        terms.append(objectives.label_noise_term(weight, labels_noise, variant=variant, released=settings.network))
    if settings.weight_decay:
        layers = [m.weight for m in network.rest.modules() if isinstance(m, torch.nn.Linear)]
        terms.append(settings.weight_decay / 2 * sum(w.square().sum() for w in layers))
    return sum(terms) if terms else None


@torch.no_grad()
def _add(totals, more):
    for total, one in zip(totals, more, strict=False):
        if one is not None:
            total.add_(one)
