r"""PixelDP's robustness certificate: noise behind a first layer of known stretch.

A layer that stretches a perturbation by at most Δ before its noise makes the model (ε, δ)-PixelDP for every
perturbation of a size that the noise covers, so that Lemma 1 holds and the label k is safe while

.. math:: E_{lb} f_k > e^{2\varepsilon} \max_{i \ne k} E_{ub} f_i + (1 + e^\varepsilon)\,\delta.

Bounds and radii are those of :mod:`privrob.robust.certify`, in the norm of the noise (l2 Gaussian, l1 Laplace). Here
they are given the stretch that the trained layer has and the noise that prediction draws, and turned into l∞.

Source: Lecuyer et al. 2019 and Cohen et al. 2019.
"""

from __future__ import annotations

import numpy as np
import torch

from privrob.learn.baselines import operator_norms
from privrob.learn.baselines.deployed import Noisy
from privrob.robust import certify as robustness

_EXACT_INPUTS = 1024  # up to here the stretch under uneven noise is computed exactly


def stretch(network, noise):
    """Δ of the first layer, such that Δ times a perturbation's size over ``noise.smallest`` is all that it can do: an
    upper bound (l2 → l2 or l1 → l1); under uneven noise of diag(smallest / s) W. Infinity where some s is 0.

    Args: network — see :mod:`privrob.learn.baselines.plain`;  noise —
        :class:`privrob.learn.baselines.deployed.HiddenNoise`.
    """
    if not noise.smallest:
        return np.inf
    if noise.kind == "laplace":
        return operator_norms.l1_norm(network.first)
    if isinstance(noise.scale, torch.Tensor) and int(np.prod(network.in_shape)) <= _EXACT_INPUTS:
        scale = noise.scale / noise.smallest
        return operator_norms.l2_norm(network.first, network.in_shape, scale=scale) * (1 + 1e-9)
    return operator_norms.l2_norm_upper(network.first)


class Certified(Noisy):
    """A noisy model with certificates of l∞ radii:

    * ``sound`` — the largest that the bounds allow (for Gaussian noise by its trade-off function), measured stretch;
    * ``epsilon_delta`` — sound too, by one (ε, δ) as PixelDP has it; the same as ``sound`` for Laplace noise;
    * ``as_printed`` — stretch 1 and the printed scale taken for granted, and the l2 or l1 radius compared with an l∞
      attack as it is: nothing in the document converts it.

    Args: network, noise, more — of :class:`.Noisy`;  printed_scale — the noise scale that ``as_printed`` believes in
        (None: what is drawn).
    """

    certificates = ("sound", "epsilon_delta", "as_printed")

    def __init__(self, network, noise, *, printed_scale=None, **more):
        super().__init__(network, noise, **more)
        self.printed_scale = noise.smallest if printed_scale is None else printed_scale
        self.norm = "l2" if noise.kind == "gaussian" else "l1"
        self.sensitivity = stretch(self.network, noise)

    def certify(self, scores, *, failure_prob=0.05, bound="clopper_pearson"):
        """Bounds of the class scores, and every certificate's radii.

        Args: scores — of :meth:`.Noisy.draws`;  failure_prob, bound — of :func:`privrob.robust.certify.class_bounds`:
            each example's answer fails with probability at most ``failure_prob``.
        Returns: :class:`privrob.robust.certify.ClassBounds`, {name: radii (n,)}.
        """
        found = robustness.class_bounds(scores.transpose(1, 0, 2), bound=bound, failure_prob=failure_prob)
        return found, self.radii(found.lower, found.upper)

    def radii(self, lower, upper):
        """Every certificate's radius from bounds of the scores, {name: (n,)}; l∞ but for ``as_printed``.

        Args: lower, upper — of the winner's and of the others' scores, (n,).
        """
        how, fits = {"noise": self.noise.kind}, {"norm": self.norm, "dimension": int(np.prod(self.network.in_shape))}
        found = {name: np.zeros(np.shape(lower)) for name in self.certificates}
        if self.printed_scale:
            found["as_printed"] = robustness.pixeldp_radius(lower, upper, noise_scale=self.printed_scale, **how)
        if self.noise.smallest > 0 and self.sensitivity > 0:
            how |= {"noise_scale": self.noise.smallest, "sensitivity": self.sensitivity}
            for name, method in (("sound", "exact"), ("epsilon_delta", "textbook")):
                own = robustness.pixeldp_radius(lower, upper, method=method, **how)
                found[name] = robustness.to_linf(own, **fits)
        return found
