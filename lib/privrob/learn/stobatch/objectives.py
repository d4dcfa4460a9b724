r"""StoBatch's objectives: the auto-encoder's for θ₁, the expanded cross-entropy for θ₂, and their adversarial sum.

With h̄ = θ₁ᵀx̄ + 2χ₂/m and x̃ = θ₁h̄ (tied), and with z = h_π W:

.. math::
    \bar R(\theta_1) = \sum_i \sum_j \big[\log 2 + \theta_{1j} (\tfrac12 - \bar x_{ij})\, \bar h_i\big], \qquad
    l(z, y) = \max(z, 0) - zy + \log 2 - \tfrac{|z|}{2} + \tfrac{z^2}{8}

.. math::
    \bar L = \frac{1}{m(1+\xi)} \Big[\sum_{B,k} l(z_{ik}, y_{ik}) + \xi \sum_{B^{adv},k} l(z_{jk}, y_{jk})\Big]
        - \frac1m \sum_k \chi_{3,k} \cdot W_k

All but the whole of :math:`\bar L` are returned a record, so that portions of a batch add up to the batch.

``network`` is a :class:`privrob.learn.stobatch.networks.Network`, ``logits`` are (n, K).
"""

from __future__ import annotations

import math

import torch

from privrob import checks

_LOG2 = math.log(2.0)


def reconstruction_as_printed(network, images, *, hidden_noise=None):
    r"""R̄ of each noisy record, (n,). It is linear in θ₁, hence has no least value.

    With h̄ taken as a constant, :math:`\partial\bar R/\partial\theta_{1j} = \sum_i \bar h_i(1/2 - \bar x_{ij})`.

    Paper: stobatch, Equation 6 (the objective) and Equation 19 (its gradient).
    Args: images — x̄, as the first layer sees them;  hidden_noise — 2χ₂/m.
    """
    with torch.no_grad():
        h = network.affine(images)
        h = h if hidden_noise is None else h + hidden_noise
    return (_LOG2 + network.decode(h) * (0.5 - images)).flatten(1).sum(1)


def reconstruction_as_released(network, images, *, hidden_noise=None):
    """The released training's form of R̄, a record, (n,): absolute values, which are bounded below by 0.

    The auto-encoder's hidden layer is rectified, normed, clipped to [−1, 1], then gets the noise; its reconstruction is
    rectified; each pixel counts |x̃ (1/2 − x̄) + log 2|. Gradients run through encoder and decoder.

    Not in the document (Equation 6 is :func:`reconstruction_as_printed`).
    """
    h = network.features(network.affine(images)).clamp(-1.0, 1.0)
    h = h if hidden_noise is None else h + hidden_noise
    return (torch.relu(network.decode(h)) * (0.5 - images) + _LOG2).abs().flatten(1).sum(1)


RECONSTRUCTION = {"as_printed": reconstruction_as_printed, "as_released": reconstruction_as_released}


def taylor_cross_entropy(logits, labels, *, form="sound"):
    r"""The expanded cross-entropy of each record, summed over the classes, (n,).

    :math:`\max(z,0) - zy + \log 2 - |z|/2 + z^2/8 = \log 2 + z/2 - zy + z^2/8`, its second-order expansion at z = 0.

    Paper: stobatch, Section 3.2 (the loss before Lemma 4).
    Printed: begins with z instead of max(z, 0), which for z < 0 has slope 3/2 − y, and leaves log 2 out (a constant).
    Used: max(z, 0); ``form="as_printed"`` keeps the other, with the constant.
    """
    checks.choice("form", form, ("sound", "as_printed"))
    rest = logits.square() / 8 + _LOG2
    first = logits / 2 if form == "sound" else logits - logits.abs() / 2
    return (rest + first).sum(1) - logits.gather(1, labels[:, None])[:, 0]


def label_noise_term(weight, noise, *, variant="sound", released="mnist"):
    r"""The noise of the labels' coefficients, as it enters the objective: :math:`-\frac1m \sum_k \chi_{3,k} \cdot W_k`.

    Paper: stobatch, Theorem 3 and Section 3.3 (the perturbation of L₂).
    Args: weight — of the last layer, (K, |h_π|);  noise — χ₃/m, of that shape;
        released — ``mnist`` or another network's name;  variant — ``sound`` and ``as_printed`` (they differ in
        ``noise``); ``as_released``: for ``mnist`` added to each of K logits, so K times too large; for other networks
        the mean over hidden units of absolute values, which is no Laplace noise any more (that it is added, not
        subtracted, is our choice: it keeps the objective bounded).
    """
    if noise is None or variant == "none":
        return weight.new_zeros(())
    if variant == "as_released":
        if released == "mnist":
            return -len(weight) * (noise * weight).sum()
        return (noise * weight).abs().mean(1).sum()
    return -(noise * weight).sum()


def adversarial_objective(benign, adversarial, *, batch_size, adversarial_weight):
    r"""Sums of two batches' losses as one: :math:`\frac{1}{m(1+\xi)} [\sum_B L + \xi \sum_{B^{adv}} \Upsilon]`.

    Paper: stobatch, Equation 9.
    Args: benign, adversarial — losses, of any shape (a portion of each is fine, also none);  batch_size — m, of each
        whole batch;  adversarial_weight — ξ.
    """
    scale = batch_size * (1 + adversarial_weight)
    return (benign.sum() + adversarial_weight * adversarial.sum()) / scale
