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

_MIXING = (nn.modules.batchnorm._BatchNorm,)
_PATCHES = 2**18  # entries of a convolution's patches taken at once: 1 MB
_TINY, _HUGE = 1e-30, 1e30  # squares outside are taken again in float64


def clip_weights(norms, max_grad_norm):
    r"""The weight that brings each gradient down to the bound, and leaves shorter ones alone.

    .. math:: w_i = 1 / \max(1, n_i / C)

    Paper: dplearn, Training a machine learning model with DP-SGD ("Clip gradient").
    """
    bound = checks.positive("max_grad_norm", max_grad_norm)
    return 1.0 / torch.clamp(norms / bound, min=1.0)


class PerExample:
    """Per-example gradients of one model: checked once, then called for each batch.

    Args: model — any module whose first dimension of input and output counts examples, and whose examples don't mix.
        loss — ``loss(outputs, targets)``, one value an example; cross entropy if left out.
    Raises: ValueError — BatchNorm and other layers that mix examples, parameters shared by layers, half precision:
        named, with the replacement.

    ``grads = PerExample(model)``, then ``batch = grads(inputs, targets)`` gives ``batch.losses``, ``batch.norms``
    (float64) and ``batch.weighted_sum(weights)``. Parameters that don't require a gradient are left out. The large
    arrays are kept and used again, so a batch can be summed until the next one is taken.
    """

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
        self._space = {module: _Space() for module in self._owners}
        self._taken = 0
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
            layers = [_layer(m, pairs, self._owners[m], self._space[m]) for m, pairs in uses.items()]
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
            grads = torch.autograd.grad(losses.sum(), [left for *_, left, _ in calls], allow_unused=True)
        uses = {}
        for (module, entered, _, _, _), grad in zip(calls, grads):
            if grad is not None:  # None: the output plays no part in the loss
                uses.setdefault(module, []).append((entered, grad.detach(), module))
        return losses.detach(), uses


class Batch:
    """One batch's gradients: ``losses`` and ``norms`` (float64), each of shape (B,)."""

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
        sums = [torch.zeros_like(p) for p in self._source.parameters]
        for layer in self._layers:
            layer.add(sums, weights.to(self.losses.dtype))
        return sums

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


def _squares(tensor):
    """Squared norm of each example, float64: entries whose float32 squares leave the range are taken again."""
    flat = tensor.flatten(1)
    if flat.dtype == torch.float64:
        return (flat * flat).sum(1)
    total = torch.linalg.vector_norm(flat, dim=1).double().square()
    bad = ~((total > _TINY) & (total < _HUGE))
    if bad.any():
        rest = flat[bad].double()
        total[bad] = (rest * rest).sum(1)
    return total


class _Space:
    """One layer's large arrays. Fresh ones at each step would cost more in page faults than the arithmetic on them."""

    def __init__(self):
        self.kept = {}

    def array(self, name, shape, like):
        size = math.prod(shape)
        kept = self.kept.get(name)
        if kept is None or kept.numel() < size or kept.dtype != like.dtype or kept.device != like.device:
            kept = self.kept[name] = like.new_empty(size + size // 4)  # room for a larger Poisson batch
        return kept[:size].view(shape)


def _layer(module, uses, own, space):
    if type(module) is nn.Linear:
        return _Linear(module, uses, own, space)
    plain = type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros"
    return (_Conv2d if plain else _Other)(module, uses, own, space)


class _Layer:
    """One layer's gradients. ``squares()`` or ``scaled_squares()`` is called once, before all else.

    ``gradients()`` are (position, per-example gradient (B, its size)) in the parameters' own layout.
    """

    def __init__(self, module, uses, own, space):
        self.module, self.own, self.space = module, {name: position for position, name in own}, space

    def scaled_squares(self, scales):
        """Squares of g / s, from each example's own gradient."""
        self.squares()
        return sum(_squares(each / scales[position].flatten()) for position, each in self.gradients())

    def _gram(self, entered, grad):
        """Squares from products over positions, entered (B, T, D) and grad (B, T, O): T²(D + O) operations, not T·D·O.

        In float64: where positions cancel, rounding must not make a norm come out too small.
        """
        self.entered, self.grad, self.each = entered, grad, None
        left, right = entered.double(), grad.double()
        gram = torch.bmm(left, left.transpose(1, 2)) * torch.bmm(right, right.transpose(1, 2))
        return gram.sum((1, 2)).clamp_(min=0.0)

    def _weighted(self, weights):
        """Σ wᵢ Gᵢ, shape (O, D)."""
        if self.each is not None:
            return (weights @ self.each.flatten(1)).view(self.each.shape[1:])
        scaled = self.grad * weights.view(-1, 1, 1)
        return scaled.flatten(0, 1).t() @ self.entered.flatten(0, 1)


def _gram_pays(positions, inner, outer):
    return 4 * positions * (inner + outer) < inner * outer  # 4: float64, and two more passes


class _Linear(_Layer):
    def __init__(self, module, uses, own, space):
        super().__init__(module, uses, own, space)
        # A layer used twice is one that saw twice the positions.
        entered = [a.reshape(len(a), -1, module.in_features) for a, _, _ in uses]
        grads = [g.reshape(len(g), -1, module.out_features) for _, g, _ in uses]
        self.entered, self.grad = (torch.cat(entered, 1), torch.cat(grads, 1)) if uses[1:] else (entered[0], grads[0])
        self.each = None

    def squares(self):
        entered, grad = self.entered, self.grad
        if entered.shape[1] == 1:
            self.bias = grad[:, 0]
            return _squares(grad) * ((_squares(entered) if "weight" in self.own else 0.0) + ("bias" in self.own))
        total = 0.0
        if "weight" in self.own and _gram_pays(entered.shape[1], entered.shape[2], grad.shape[2]):
            total = self._gram(entered, grad)
        elif "weight" in self.own:
            each = self.space.array("each", (len(grad), grad.shape[2], entered.shape[2]), grad)
            self.each = torch.bmm(grad.transpose(1, 2), entered, out=each)
            total = _squares(self.each)
        self.bias = grad.sum(1)
        return total + _squares(self.bias) if "bias" in self.own else total

    def scaled_squares(self, scales):
        if self.entered.shape[1] > 1:
            return super().scaled_squares(scales)
        self.bias, total = self.grad[:, 0], 0.0
        if "weight" in self.own:  # g_o² (1/s_oi²) a_i², without any example's gradient
            left, right = self.bias.double().square(), self.entered[:, 0].double().square()
            total = total + ((left @ scales[self.own["weight"]].double().square().reciprocal()) * right).sum(1)
        return total + _squares(self.bias / scales[self.own["bias"]]) if "bias" in self.own else total

    def gradients(self):
        if "weight" in self.own:
            each = self.each if self.each is not None else torch.bmm(self.grad.transpose(1, 2), self.entered)
            yield self.own["weight"], each.flatten(1)
        if "bias" in self.own:
            yield self.own["bias"], self.bias

    def add(self, sums, weights):
        if "weight" in self.own:
            sums[self.own["weight"]] += self._weighted(weights)
        if "bias" in self.own:
            sums[self.own["bias"]] += weights @ self.bias


class _Conv2d(_Layer):
    def __init__(self, module, uses, own, space):
        super().__init__(module, uses, own, space)
        self.uses = [(self._windows(a), g.permute(0, 2, 3, 1).flatten(1, 2)) for a, g, _ in uses]

    def _windows(self, entered):
        """Every window as a view, (B, rows, columns, kernel row, kernel column, channel): no copy of channels_last."""
        module = self.module
        if any(module._reversed_padding_repeated_twice):
            entered = functional.pad(entered, module._reversed_padding_repeated_twice)
        entered = entered.permute(0, 2, 3, 1).contiguous()
        batch, height, width, channels = entered.shape
        rows, columns = module.kernel_size
        (down, right), (apart, aside) = module.stride, module.dilation
        high = (height - apart * (rows - 1) - 1) // down + 1
        wide = (width - aside * (columns - 1) - 1) // right + 1
        b, h, w, c = entered.stride()
        return entered.as_strided(
            (batch, high, wide, rows, columns, channels),
            (b, h * down, w * right, h * apart, w * aside, c),
            entered.storage_offset(),
        )

    def _direct(self):
        """Gᵢ = ∂zᵢᵀ Aᵢ, some examples at a time, so that the patches A stay in the cache; and their squares."""
        windows, grad = self.uses[0]
        batch, positions, outer = grad.shape
        inner = windows[0, 0, 0].numel()
        self.each = self.space.array("each", (batch, outer, inner), grad)
        at_once = max(1, _PATCHES // (positions * inner)) if grad.device.type == "cpu" else batch
        squares = []
        for rows in (slice(i, min(i + at_once, batch)) for i in range(0, batch, at_once)):
            each = self.each[rows]
            for use, (windows, grad) in enumerate(self.uses):
                patches = self.space.array("patches", windows[rows].shape, grad).copy_(windows[rows])
                torch.baddbmm(each, grad[rows].transpose(1, 2), patches.flatten(3).flatten(1, 2), beta=min(use, 1), out=each)
            squares.append(_squares(each))
        return torch.cat(squares)

    def squares(self):
        total = 0.0
        if "weight" in self.own:
            windows, grad = self.uses[0]
            inner = windows[0, 0, 0].numel()
            if len(self.uses) == 1 and _gram_pays(grad.shape[1], inner, grad.shape[2]):
                total = self._gram(windows.reshape(*grad.shape[:2], inner), grad)
            else:
                total = self._direct()
        if "bias" in self.own:
            self.bias = sum(g.sum(1) for _, g in self.uses)
            total = total + _squares(self.bias)
        del self.uses
        return total

    def gradients(self):
        if "weight" in self.own:
            module = self.module
            each = self.each if self.each is not None else torch.bmm(self.grad.transpose(1, 2), self.entered)
            windows = each.view(len(each), module.out_channels, *module.kernel_size, module.in_channels)
            yield self.own["weight"], windows.permute(0, 1, 4, 2, 3).flatten(1)
        if "bias" in self.own:
            yield self.own["bias"], self.bias

    def add(self, sums, weights):
        if "weight" in self.own:
            module = self.module
            shape = (module.out_channels, *module.kernel_size, module.in_channels)
            sums[self.own["weight"]] += self._weighted(weights).view(shape).permute(0, 3, 1, 2)
        if "bias" in self.own:
            sums[self.own["bias"]] += weights @ self.bias


class _Other(_Layer):
    """Any layer: the vector-Jacobian product of each example with its own output gradient."""

    def __init__(self, module, uses, own, space):
        super().__init__(module, uses, own, space)
        self.uses = uses

    def squares(self):
        with torch.enable_grad():
            found = [self._pulled(*use) for use in self.uses]
        self.each = {name: sum(f[name] for f in found) for name in self.own}
        del self.uses
        return sum(_squares(each) for each in self.each.values())

    def _pulled(self, entered, grad, module):
        values = {name: getattr(module, name).detach() for name in self.own}

        def one(entered, grad):
            def run(parameters):
                return torch.func.functional_call(module, parameters, (entered.unsqueeze(0),))

            _, pull = torch.func.vjp(run, values)
            return pull(grad.unsqueeze(0))[0]

        return torch.func.vmap(one)(entered, grad)

    def gradients(self):
        for name, each in self.each.items():
            yield self.own[name], each.flatten(1)

    def add(self, sums, weights):
        for name, each in self.each.items():
            sums[self.own[name]] += (weights @ each.flatten(1)).view(each.shape[1:])
