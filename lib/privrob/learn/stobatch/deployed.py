"""What is served, attacked and certified: one protocol for StoBatch and its baselines, and StoBatch's form of it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from privrob import checks
from privrob.learn.stobatch.steps import evaluating

_AT_ONCE = 2000
_DRAWN_AT_ONCE = 500  # images times draws of a certificate


@runtime_checkable
class Deployed(Protocol):
    """A trained classifier that draws noise. Images are float tensors (n, channels, height, width)."""

    def surrogate(self, images):
        """Logits without any noise; differentiable. The model that the document's attacks differentiate."""

    def fixed(self, images):
        """Logits through the stored noise; those of ``surrogate`` where none is stored. Differentiable."""

    def fresh(self, images, *, generator):
        """Logits through noise that is drawn anew at each call. Differentiable."""

    def predict_logits(self, images):
        """Logits of what answers queries. Not differentiable."""

    def draws(self, images, *, num_draws, generator):
        """Scores for :mod:`privrob.robust.certify`, NumPy float64, (n, num_draws, K), each in [0, 1]: means over axis 1
        for bounds on averages, arg-maxima of each draw for bounds on counts."""


class StoBatch:
    """A trained network with its noise.

    What answers a query: with shared noise the network through the stored draw; with independent noise, which is stored
    with training records only, a new draw of full scale (``query_noise="fresh"``) or none.

    Args: network — a :class:`privrob.learn.stobatch.networks.Network`;  noise — its
        :class:`privrob.learn.stobatch.noise.Noise`;  generator — of the noise on queries;
        psi, batch_norm_evaluation, query_noise — see :class:`privrob.learn.stobatch.settings.StoBatchSettings`;
        surrogate_statistics — of batch norm in ``surrogate`` (None: as evaluated; ``initial``: averages that were never
        trained, as in the released MNIST attack);  at_once — records of one pass; with ``batch`` statistics these are
        what a batch is.
    """

    def __init__(
        self,
        network,
        noise,
        *,
        generator,
        psi=2.0,
        batch_norm_evaluation="running",
        query_noise="fresh",
        surrogate_statistics=None,
        at_once=_AT_ONCE,
    ):
        self.network, self.noise, self.generator = network, noise, generator
        self.psi, self.query_noise = checks.positive("psi", psi, finite=True), query_noise
        self.statistics, self.surrogate_statistics = batch_norm_evaluation, surrogate_statistics
        self.at_once = checks.integer("at_once", at_once, low=1)

    def _run(self, images, *, statistics=None, **noise):
        with evaluating(self.network, statistics or self.statistics):
            return self.network(images, **noise)

    def _stored(self):
        return {"input_noise": self.noise.stored_inputs, "hidden_noise": self.noise.stored_hidden}

    def _redrawn(self, layer, count, generator):
        return self.noise.redrawn(layer, count, generator=generator, psi=self.psi)

    def surrogate(self, images):
        """Logits without χ₁, χ₂."""
        return self._run(images, statistics=self.surrogate_statistics)

    def fixed(self, images):
        """Logits through the stored χ₁/m and 2χ₂/m (shared noise; else there is none)."""
        return self._run(images, **self._stored())

    def fresh(self, images, *, generator):
        """Logits through noise redrawn for each image, as :meth:`privrob.learn.stobatch.noise.Noise.redrawn` has it."""
        names = (("input_noise", "inputs"), ("hidden_noise", "hidden"))
        return self._run(images, **{name: self._redrawn(layer, len(images), generator) for name, layer in names})

    @torch.no_grad()
    def predict_logits(self, images):
        """Logits of what answers queries."""
        if self.noise.kind == "independent" and self.query_noise == "fresh":
            parts = [self.fresh(part, generator=self.generator) for part in images.split(self.at_once)]
        else:
            parts = [self.fixed(part) for part in images.split(self.at_once)]
        return torch.cat(parts) if parts else images.new_zeros((0, self.network.num_classes))

    def accuracy(self, images, labels):
        """Share of images whose label is predicted; None without images."""
        if not len(labels):
            return None
        return (self.predict_logits(images).argmax(1) == labels).double().mean().item()

    @torch.no_grad()
    def draws(self, images, *, num_draws, generator):
        r"""Scores of verified inference: :math:`p_x[k]\, p_h[k]` of each draw, a product of two independent mechanisms.

        p_x: χ₁ redrawn, the hidden noise as stored; p_h: χ₂ redrawn, the input noise as stored (none is stored with
        independent noise: the other layer then has none).

        Paper: stobatch, Algorithm 3 and Section 3.3 ("when M_h is applied by invoking f with independent draws in χ₂,
        the noise χ₁ injected into x is fixed; and vice-versa").
        Returns: float64, (n, num_draws, K), each in [0, 1]; over the classes they add up to at most 1.
        """
        num_draws = checks.integer("num_draws", num_draws, low=1)
        scores = np.empty((len(images), num_draws, self.network.num_classes))
        if self.noise.kind == "none":
            scores[:] = self.fixed(images).double().softmax(1).square().cpu().numpy()[:, None]
            return scores
        stored, at_once = self._stored(), max(1, min(self.at_once, _DRAWN_AT_ONCE) // max(len(images), 1))
        if self.statistics == "batch":
            at_once = 1  # a batch is the images, each once
        with evaluating(self.network, self.statistics):
            h = self.network.affine(images, input_noise=stored["input_noise"])
            for start in range(0, num_draws, at_once):
                count = min(at_once, num_draws - start)
                noise = self._redrawn("inputs", count * len(images), generator)
                p = self.network(_on_each(images, noise), hidden_noise=stored["hidden_noise"])
                noise = self._redrawn("hidden", count * len(images), generator)
                q = self.network.last(self.network.hidden(_on_each(h, noise)))
                product = p.double().softmax(1) * q.double().softmax(1)
                scores[:, start : start + count] = product.reshape(count, len(images), -1).transpose(0, 1).cpu()
        return scores


def _on_each(values, noise):
    """Values with noise, as many times as there is noise for: all of them, all of them again, …"""
    return (values + noise.unflatten(0, (-1, len(values)))).flatten(0, 1)
