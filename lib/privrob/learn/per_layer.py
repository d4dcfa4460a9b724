"""The per-example gradients of one layer: their squares, sums and rows, each by the cheapest way. For
:mod:`~privrob.learn.clip`.

Source: Goodfellow 2015 (norms of linear layers); else ours.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

_PATCHES = 2**18  # entries of a convolution's patches taken at once: 1 MB
_ROUNDED = 8  # ulps of ‖a‖‖∂z‖
_TINY, _HUGE = 1e-30, 1e30  # squares outside are taken again in float64


def _squares(tensor):
    """Squared norm of each example, float64: entries whose float32 squares leave the range are taken again."""
    flat = tensor.flatten(1)
    if flat.dtype == torch.float64:
        return (flat * flat).sum(1)
    return _squared(torch.linalg.vector_norm(flat, dim=1), flat)


def _squared(norms, flat):
    """Squares of these float32 norms of the rows of ``flat``, those out of range taken again from the rows."""
    total = norms.double().square_()
    good = (total > _TINY) & (total < _HUGE)
    if not good.all():
        bad = ~good
        rest = flat[bad].double()
        total[bad] = (rest * rest).sum(1)
    return total


class Space:
    """One layer's large arrays. Fresh ones at each step would cost more in page faults than the arithmetic on them."""

    def __init__(self):
        self.kept = {}

    def array(self, name, shape, like):
        """An array of this ``shape``, of the type and device of ``like``, its content not set; kept under ``name``."""
        size = math.prod(shape)
        kept = self.kept.get(name)
        if kept is None or kept.numel() < size or kept.dtype != like.dtype or kept.device != like.device:
            kept = self.kept[name] = like.new_empty(size + size // 4)  # room for a larger Poisson batch
        return kept[:size].view(shape)


def layer_of(module, uses, own, space):
    """The layer's part in per-example gradients, by its kind.

    Args: module — a layer with parameters;  uses — what entered, the derivatives by what left, and its sign, of each
        use; own — (position, name) of its trainable parameters;  space — :class:`Space`.
    """
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

        In float64: where positions cancel, rounding must not make a norm come out too small. The weighted sum is taken
        in the tensors' own precision and keeps what rounds away there, so as much is added.
        """
        self.entered, self.grad, self.each = entered, grad, None
        left, right = entered.double(), grad.double()
        gram = torch.bmm(left, left.transpose(1, 2)) * torch.bmm(right, right.transpose(1, 2))
        lost = _ROUNDED * torch.finfo(grad.dtype).eps * left.flatten(1).norm(dim=1) * right.flatten(1).norm(dim=1)
        return (gram.sum((1, 2)).clamp_(min=0.0).sqrt() + lost).square()

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
        exact = grad.dtype == torch.float64
        norms = grad.new_empty(batch)
        for rows in (slice(i, min(i + at_once, batch)) for i in range(0, batch, at_once)):
            each = self.each[rows]
            for use, (windows, grad) in enumerate(self.uses):
                patches = self.space.array("patches", windows[rows].shape, grad).copy_(windows[rows])
                left, right = grad[rows].transpose(1, 2), patches.flatten(3).flatten(1, 2)
                if use:
                    each.baddbmm_(left, right)
                else:  # not baddbmm with beta 0, which fills the array with zeros first
                    torch.bmm(left, right, out=each)
            if not exact:  # while they are in the cache
                torch.linalg.vector_norm(each.flatten(1), dim=1, out=norms[rows])
        return _squares(self.each) if exact else _squared(norms, self.each.flatten(1))

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
        each = {name: sum(f[name] for f in found) for name in self.own}
        self.each = {name: e.reshape(len(e), -1) for name, e in each.items()}  # a single number has no shape of its own
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
            yield self.own[name], each

    def add(self, sums, weights):
        for name, each in self.each.items():
            sums[self.own[name]] += (weights @ each).view_as(sums[self.own[name]])
