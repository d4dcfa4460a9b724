r"""Per-example gradient norms and weighted gradient sums, in one backward pass.

One training step of the private algorithms needs, for a weight rule w that looks at the norms only,

.. math:: n_i = \lVert \nabla_\theta \ell_i \rVert_2, \qquad \sum_i w(n)_i \, \nabla_\theta \ell_i .

The forward pass keeps each layer's input a and output z; one ``autograd.grad`` to the outputs gives ∂ℓ/∂z (no weight
gradient is formed there). From a and ∂ℓ/∂z come the norms, layer by layer, and then the weighted sum: a second backward
pass isn't needed, and what the norms computed is used again.

* Linear: :math:`n^2 = \lVert\partial z\rVert^2 (\lVert a\rVert^2 + 1)`; nothing per example is formed.
* Linear on sequences and Conv2d: the per-example gradient :math:`G_i = \partial z_i^T A_i` (A: patches), or the Gram
  form :math:`\langle A_i A_i^T, \partial z_i \partial z_i^T \rangle` where positions are few and that is cheaper.
* Any other layer with parameters of its own: a vector-Jacobian product per example, under ``vmap``.

Three more things that private algorithms ask for come from the same pass: norms of g / s for a positive scale s of each
coordinate (clipping in another geometry), per-example inner products with a few directions (embeddings), and norms and
sums of gradient *differences* between two models on the same examples: a layer's second use, with the sign turned.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from privrob import checks
from privrob.learn.per_layer import Space, layer_of

_MIXING = (nn.modules.batchnorm._BatchNorm,)


def clip_weights(norms, max_grad_norm):
    r"""The weight that brings each gradient down to the bound, and leaves shorter ones alone.

    .. math:: w_i = 1 / \max(1, n_i / C)

    Paper: dplearn, Training a machine learning model with DP-SGD ("Clip gradient").
    Args: norms — n_i, any shape;  max_grad_norm — C.
    """
    bound = checks.positive("max_grad_norm", max_grad_norm)
    return 1.0 / torch.clamp(norms / bound, min=1.0)


class PerExample:
    """Per-example gradients of one model: checked once, then called for each batch.

    Args: model — any module whose first dimension of input and output counts examples, and whose examples don't mix.
        loss — ``loss(outputs, targets)``, one value an example; cross entropy if left out.
    Raises: ValueError — BatchNorm and other layers that mix examples, parameters shared by layers, half precision:
        named, with the replacement. At the first batch: a parameter whose gradient isn't what its layers give.

    ``grads = PerExample(model)``, then ``batch = grads(inputs, targets)`` gives ``batch.losses``, ``batch.norms``
    (float64) and ``batch.weighted_sum(weights)``. Parameters that don't require a gradient are left out. The large
    arrays are kept and used again, so a batch can be summed until the next one is taken.
    """

    formed = False  # whether all gradients are formed one by one

    def __init__(self, model, *, loss=None):
        check_model(model)
        self.model, self.loss = model, loss or _cross_entropy
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._owners = {}  # module: its own trainable parameters, as (position in self.parameters, name)
        position = {id(p): i for i, p in enumerate(self.parameters)}
        for module in model.modules():
            own = [(position[id(p)], n) for n, p in module.named_parameters(recurse=False) if p.requires_grad]
            if own:
                self._owners[module] = own
        self._space = {module: Space() for module in self._owners}
        self._taken, self._compared = 0, False
        self._names = {module: name or type(module).__name__ for name, module in model.named_modules()}

    def __call__(self, inputs, targets, *, scales=None):
        """Norms of one batch, at least one example; see :class:`Batch`.

        Args: scales — one positive tensor a trainable parameter, of its shape: the norms are those of g / s then.
        """
        losses, uses = self._pass(inputs, targets)
        return self._batch(losses, uses, scales)

    def difference(self, other, inputs, targets):
        """The same of the differences ∇ℓᵢ(this model) − ∇ℓᵢ(the other): a model of the same layers.

        Args: other — :class:`PerExample` of that model.  The losses are this model's.
        """
        losses, uses = self._pass(inputs, targets)
        _, others = other._pass(inputs, targets)
        for mine, theirs in zip(self._owners, other._owners, strict=True):
            if mine in uses or theirs in others:
                turned = [(entered, -grad, module) for entered, grad, module in others.get(theirs, [])]
                uses[mine] = uses.get(mine, []) + turned
        return self._batch(losses, uses, None)

    def _batch(self, losses, uses, scales):
        with torch.no_grad():
            self._taken += 1
            layers = [layer_of(m, pairs, self._owners[m], self._space[m]) for m, pairs in uses.items()]
            return Batch(losses, layers, self, scales)

    def _pass(self, inputs, targets):
        """Losses, and for each module its uses: (what went in, gradient at what came out, module)."""
        calls, handles = [], []

        def keep(module, args, kwargs, output):
            if (
                kwargs
                or len(args) != 1
                or not isinstance(args[0], torch.Tensor)
                or not isinstance(output, torch.Tensor)
            ):
                raise ValueError(
                    f"layer {self._names[module]!r} ({type(module).__name__}) must map one tensor to one tensor for "
                    "per-example gradients; wrap it, or freeze its parameters"
                )
            calls.append((module, args[0].detach(), args[0]._version, output, output._version))

        try:
            for module in self._owners:
                handles.append(module.register_forward_hook(keep, with_kwargs=True))
            with torch.enable_grad():
                losses = self.loss(self.model(inputs), targets)
        finally:
            for handle in handles:
                handle.remove()
        if losses.shape != (len(inputs),):
            raise ValueError(
                f"loss must give one value an example, got shape {tuple(losses.shape)}; use reduction='none'"
            )
        for module, entered, version, left, left_version in calls:
            if entered._version != version or left._version != left_version:
                raise ValueError(
                    f"layer {self._names[module]!r} has its input or output changed in place by another layer; "
                    "build that layer with inplace=False"
                )
        with torch.enable_grad():
            total, lefts = losses.sum(), [left for *_, left, _ in calls]
            grads = torch.autograd.grad(total, lefts, allow_unused=True, retain_graph=not self._compared)
        uses = {}
        for (module, entered, _, _, _), grad in zip(calls, grads):
            if grad is not None:  # None: the output plays no part in the loss
                uses.setdefault(module, []).append((entered, grad.detach(), module))
        if not self._compared:
            self._compare(total, losses.detach(), uses)
        return losses.detach(), uses

    def _compare(self, total, losses, uses):
        """Refuse parameters that reach the loss by another way than their layers, at the first batch: the sum of all
        examples' gradients against automatic differentiation's."""
        whole = torch.autograd.grad(total, self.parameters, allow_unused=True, materialize_grads=True)
        batch = self._batch(losses, uses, None)
        room = _close(self.parameters[0]) * float(batch.norms.sum())
        if not math.isfinite(room):
            return  # a later batch may tell
        names = {id(p): name for name, p in self.model.named_parameters()}
        ones = torch.ones_like(losses)
        for parameter, ours, theirs in zip(self.parameters, batch.weighted_sum(ones), whole, strict=True):
            if not float(torch.linalg.vector_norm((ours - theirs).double())) <= room:
                raise ValueError(
                    f"parameter {names[id(parameter)]!r} has a gradient that its layer's input and output don't "
                    "explain: it is used outside its layer (weight_norm, spectral_norm, functional calls), or a hook "
                    "changes what enters or leaves; take that away, or freeze it"
                )
        self._compared = room > 0


class Batch:
    """One batch's gradients: ``losses`` and ``norms`` (float64), each of shape (B,).

    Args: layers — each with its part of the gradients;  source — the :class:`PerExample` that made it;  scales — s of
        each parameter, or None;  losses — (B,).
    """

    def __init__(self, losses, layers, source, scales=None):
        self.losses, self._layers, self._source, self._turn = losses, layers, source, source._taken
        total = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
        for layer in layers:
            total += layer.squares() if scales is None else layer.scaled_squares(scales)
        self.norms = total.sqrt()

    def weighted_sum(self, weights):
        """Σ wᵢ gᵢ as a list of tensors, one for each trainable parameter in the model's order.

        Args: weights — shape (B,), any function of the norms: :func:`clip_weights`, a trimming rule, ones.
        """
        self._still_there()
        sums, weights = [torch.zeros_like(p) for p in self._source.parameters], weights.to(self.losses.dtype)
        # A weight too small for full precision would let its gradient keep up to twice what it was cut to.
        weights = torch.where(weights.abs() < torch.finfo(weights.dtype).tiny, 0.0, weights)
        for layer in self._layers:
            layer.add(sums, weights)
        return sums

    def gradients(self):
        """Every example's gradient, flat, in the parameters' order: shape (B, d). For few examples: it is large."""
        self._still_there()
        like = self.losses
        each = [torch.zeros(len(like), p.numel(), dtype=p.dtype, device=like.device) for p in self._source.parameters]
        for layer in self._layers:
            for position, gradient in layer.gradients():
                each[position] += gradient
        return torch.cat(each, 1)

    def inner_products(self, directions):
        """⟨gᵢ, vⱼ⟩, shape (B, k).

        Args: directions — one tensor a trainable parameter, each (k, *its shape): together k directions.
        """
        self._still_there()
        products = torch.zeros(len(self.losses), len(directions[0]), dtype=self.losses.dtype, device=self.losses.device)
        for layer in self._layers:
            for position, each in layer.gradients():
                products += each @ directions[position].flatten(1).t()
        return products

    def _still_there(self):
        if self._turn != self._source._taken:
            raise RuntimeError(
                "this batch's gradients were overwritten by a later batch: sum each batch before the next"
            )


def _close(like):
    """How far two sums of the same gradients may differ, over the sum of the gradients' norms."""
    if like.dtype == torch.float64:
        return 1e-6
    return 1e-3 if like.device.type == "cpu" else 1e-2  # a GPU may multiply in TF32


def check_model(model):
    """Refuse, by name, what has no per-example gradient. Returns the model."""
    for name, module in model.named_modules():
        running = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
        if isinstance(module, _MIXING) or running:
            channels = module.num_features
            groups = math.gcd(channels, 32)
            raise ValueError(
                f"layer {name!r} ({type(module).__name__}) mixes the examples of a batch, so that no example has a "
                f"gradient of its own; replace it with torch.nn.GroupNorm({groups}, {channels})"
            )
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in names and parameter.requires_grad:
            raise ValueError(
                f"parameters {names[id(parameter)]!r} and {name!r} are one tensor shared by two layers; per-example "
                "norms need it owned by one: use the same module twice, or copy the tensor"
            )
        names.setdefault(id(parameter), name)
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"parameter {name!r} must be float32 or float64, got {parameter.dtype}; call model.float(): squared "
                "gradients leave the range of half precision"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("model must have a parameter that requires a gradient, got none")
    return model


def _cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")
