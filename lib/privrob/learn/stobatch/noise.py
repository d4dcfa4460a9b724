r"""The Laplace noise of StoBatch: stored draws for training, fresh ones for certificates.

.. math:: \bar x = x + \chi_1/m, \quad \bar h = h + 2\chi_2/m, \quad \chi_{1,2} \sim \mathrm{Lap}(\Delta_R/\epsilon_1)

and χ₃/m with entries of scale Δ_L2/(mε₂) on the coefficients of the labels; m is the *nominal* batch size.

What the document leaves open, and what is done here. χ₂ ∈ R^β, β the neurons of *one* feature map: every neuron of
every map gets its own entry (with one vector for all maps, differences between maps would carry no noise).
χ₃ ∈ R^{|h|} in line 1, but the proof multiplies over the classes: one vector a class, unless ``as_printed``.

``budget`` is a :class:`privrob.accounting.functional_budget.Budget`, ``network`` a
:class:`privrob.learn.stobatch.networks.Network`.

Paper: stobatch, Algorithm 1 (lines 1–2), Section 3.2, Appendix N.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch

from privrob import checks
from privrob.accounting import functional_budget

_IN_CACHE = 1 << 16  # draws that are worked on before the next: they stay near the processor
_KEPT_BYTES = {"cpu": 1 << 29, "cuda": 1 << 34}  # of independent draws; what does not fit is drawn again, the same


def laplace(shape, *, scale, generator, dtype=torch.float32):
    """Laplace noise on the generator's device, from one uniform number each: a sign, and −log(1 − u) of the rest.

    For studies: in single precision no draw exceeds 16 scales (probability 1e-7), and floats are no vault.

    Args: shape — of the answer;  scale — b, a number or a tensor.
    """
    drawn = torch.empty(tuple(shape), dtype=dtype, device=generator.device)
    for part in drawn.flatten().split(_IN_CACHE if drawn.device.type == "cpu" else max(1, drawn.numel())):
        side = 1.0 - part.uniform_(0.0, 2.0, generator=generator)
        part.frac_().neg_().log1p_().copysign_(side)
    return drawn.mul_(scale)


class Noise:
    """All noise of one training. Nothing here depends on what else was drawn, or on where it runs.

    Args: kind — ``shared``, ``independent``, ``none``;  budget — of the scales;  network — of the shapes;
        label_noise, colour_noise — see :class:`privrob.learn.stobatch.settings.StoBatchSettings`;
        like — a tensor of the type and device that draws get, None: the network's;  streams — of the stored draws; they
        are made on the CPU whatever the device.
    """

    def __init__(self, kind, *, budget, network, streams, label_noise="sound", colour_noise="each", like=None):
        self.kind, self.streams, self.colour_noise = kind, streams, colour_noise
        like = network.last.weight if like is None else like
        self.dtype, self.device = like.dtype, like.device
        self.in_shape, self.hidden_shape = network.in_shape, network.geometry.hidden_shape
        self.input_scale, self.hidden_scale = budget.input_scale, budget.hidden_scale
        self.kept, self.room = OrderedDict(), _KEPT_BYTES[self.device.type]
        self.stored_inputs = self.stored_hidden = self.labels = None
        if kind == "shared":
            self.stored_inputs = self._stored("inputs", 1, streams)
            self.stored_hidden = self._stored("hidden", 1, streams)
        if label_noise != "none":
            rows = 1 if label_noise == "as_printed" else network.num_classes
            shape = (rows, network.geometry.num_hidden)
            drawn = laplace(shape, scale=budget.label_scale, generator=streams.torch("labels"), dtype=self.dtype)
            self.labels = drawn.expand(network.num_classes, -1).to(self.device)

    def _shape(self, layer, count):
        if layer == "hidden":
            return count, *self.hidden_shape
        channels = 1 if self.colour_noise == "same" else self.in_shape[0]
        return count, channels, *self.in_shape[1:]

    def _draw(self, layer, count, generator, divisor=1.0):
        scale = {"inputs": self.input_scale, "hidden": self.hidden_scale}[layer] / divisor
        shape = self._shape(layer, count)
        last = (0, 2, 3, 1) if len(shape) == 4 else (0, 1)  # channels_last in memory, whatever is drawn
        shape = tuple(shape[i] for i in last)
        drawn = laplace(shape, scale=scale, generator=generator, dtype=self.dtype)
        drawn = drawn.permute(0, 3, 1, 2) if drawn.ndim == 4 else drawn
        return drawn.expand(count, *(self.hidden_shape if layer == "hidden" else self.in_shape))

    def _stored(self, layer, count, streams):
        return self._draw(layer, count, streams.torch(layer)).to(self.device)

    def of_batch(self, layer, batch, count):
        """The stored noise of a fixed batch: (1, …) if all records share it, (count, …) if not, or None.

        Args: layer — ``inputs`` or ``hidden``;  batch — its number;  count — its records.
        """
        if self.kind == "none":
            return None
        if self.kind == "shared":
            return self.stored_inputs if layer == "inputs" else self.stored_hidden
        key = layer, batch
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        drawn = self._stored(layer, count, self.streams.child("batch", batch))
        self.kept[key] = drawn
        self.room -= drawn.numel() * drawn.element_size()
        while self.room < 0:
            _, old = self.kept.popitem(last=False)
            self.room += old.numel() * old.element_size()
        return drawn

    def redrawn(self, layer, count, *, generator, psi):
        """Noise of so many queries, drawn anew for each: with 1/ψ of its scale around the stored draw.

        With independent noise there is no draw to stay near: it is of the full scale around 0. Without noise: None.

        Paper: stobatch, Appendix N (χ₁/m + Lap(Δ_R/ε₁)/(mψ), and twice that on the hidden layer).
        Printed: 2χ₂ beside Lap(…)/m.   Used: 2χ₂/m, as in Algorithm 1.
        Args: layer — ``inputs`` or ``hidden``;  count — of the queries;  psi — ψ.
        """
        checks.choice("layer", layer, ("inputs", "hidden"))
        if self.kind == "none":
            return None
        if self.kind == "independent":
            return self._draw(layer, count, generator)
        stored = self.stored_inputs if layer == "inputs" else self.stored_hidden
        return stored + self._draw(layer, count, generator, divisor=psi)

    def query_scales(self, psi):
        """Scales (inputs, hidden) of what :meth:`redrawn` draws: those that a certificate may use."""
        if self.kind == "none":
            return 0.0, 0.0
        divisor = psi if self.kind == "shared" else 1.0
        return self.input_scale / divisor, self.hidden_scale / divisor


def epsilon_columns(settings, budget, network, *, first_weight_at_start):
    """What a row says about privacy: the document's claim beside what can be proved.

    ``claimed_epsilon`` — the document's sum, with ‖θ₁‖ as its authors took it (where ``budget_rule`` says whose) or as
    drawn;  ``claimed_epsilon_now`` — the same with the true norm of θ₁ as it is now;
    ``honest_epsilon_inputs`` — of the images alone, one replaced by another: 2D/b where each record has noise of its
    own and nothing else of it is read; infinite with shared noise (differences carry none), without noise, with one
    value for all colours, and where adversarial examples are crafted from clean images;
    ``honest_epsilon`` — of a whole record: infinite, because labels reach all layers below the last without noise.

    Args: first_weight_at_start — θ₁ before the first step.
    """
    start, now = theta_norm(network, first_weight_at_start), theta_norm(network, network.first.weight)
    noisy = settings.noise != "none"
    claimed = budget.claimed_epsilon(start) if settings.budget_rule is None else settings.epsilon
    bare = settings.colour_noise == "same" and network.in_shape[0] > 1
    bare |= settings.adversarial and settings.adversarial_source == "clean"
    own = settings.noise == "independent" and not bare
    return {
        "claimed_epsilon": claimed if noisy else math.inf,
        "claimed_epsilon_now": budget.claimed_epsilon(now) if noisy else math.inf,
        "honest_epsilon_inputs": budget.honest_epsilon_independent if own else budget.honest_epsilon_shared,
        "honest_epsilon": math.inf,
        "theta_norm": now,
        "input_scale": budget.input_scale if noisy else 0.0,
        "nominal_batch_size": settings.noise_batch_size,
    }


def theta_norm(network, weight):
    """‖θ₁‖ as :mod:`privrob.accounting.functional_budget` has it; a dense layer's weight is stored transposed."""
    values = weight.detach().cpu().double().numpy()
    if values.ndim == 2:
        return functional_budget.affine_norm(values.T)
    return functional_budget.convolution_norm(values, stride=network.first.stride[0])
