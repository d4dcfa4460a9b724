r"""The networks of the StoBatch document: a noisy first layer, the rest, a last hidden layer in [−1, 1].

.. math:: f(x) = W_\pi^T\, h_\pi, \quad h_\pi = \mathrm{hidden}(\theta_1^T (x + \text{input noise}) + \text{its noise})

``first`` (θ₁) and ``rest`` (θ₂) hold all weights. Batch norm is a part of three of the networks, though the document
never names it: it is what the authors' release does, and what takes a constant shift of its inputs away.

Paper: stobatch, Section 3 (f = g(a(x, θ₁), θ₂)) and Appendix P (layers and widths); the rest is as released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from privrob import checks
from privrob.learn.stobatch import subpixel

STATISTICS = ("batch", "running", "initial")


class BatchNorm(nn.Module):
    """Batch norm over all but the channels, with a say in what evaluation uses.

    In training mode: the statistics of the batch, of which running averages are kept. In evaluation mode, by
    ``statistics``: ``batch`` (again the batch's own, and nothing is kept), ``running`` (the averages), ``initial``
    (mean 0, variance 1: averages that no training has touched, as in one released attack).

    Args: width — channels.
    """

    momentum, tiny = 0.1, 1e-5

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.register_buffer("running_mean", torch.empty(width))
        self.register_buffer("running_var", torch.empty(width))
        self.statistics = "running"

    def forward(self, x):
        """``x`` normed, of its shape: (n, channels) or (n, channels, height, width)."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            return functional.batch_norm(x, mean, var, self.weight, self.bias, True, self.momentum, self.tiny)
        if self.statistics == "batch":
            return functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.tiny)
        if self.statistics == "initial":
            mean, var = torch.zeros_like(mean), torch.ones_like(var)
        return functional.batch_norm(x, mean, var, self.weight, self.bias, False, 0.0, self.tiny)


@dataclass(frozen=True)
class Geometry:
    """What the document's sensitivities ask of the first layer, and of the last hidden one.

    ``kernel_area`` d (channels apart), ``map_neurons`` β (of ONE feature map), ``num_maps``, ``hidden_shape`` (of
    the first layer's output), ``num_hidden`` |h_π|.
    """

    kernel_area: int
    map_neurons: int
    num_maps: int
    hidden_shape: tuple
    num_hidden: int


class Network(nn.Module):
    """A network in two parts.

    ``input_noise`` and ``hidden_noise`` are of one record's shape, (1, …), or one a record, (n, …); ``h`` is the first
    layer's output, (n, …).

    Args: in_shape — (channels, height, width);  first — its noisy layer, ``Conv2d`` or ``Linear`` (θ₁);  norm — of its
        output; body — from the first layer's output to the last hidden layer, before the clip;  num_hidden — its width;
        input_range — images are clipped to ±input_range after their noise; infinity for no clip.
    """

    def __init__(self, in_shape, first, norm, body, num_hidden, num_classes, input_range=math.inf):
        super().__init__()
        self.in_shape, self.num_classes, self.input_range = tuple(in_shape), num_classes, input_range
        self.first = first
        self.rest = nn.ModuleDict({"body": body, "last": nn.Linear(num_hidden, num_classes)})
        if norm is not None:
            self.rest["norm"] = norm
        self.geometry = _geometry(first, self.in_shape, num_hidden)

    @property
    def last(self):
        """The layer of W_π; its ``weight`` is W_πᵀ, (K, |h_π|)."""
        return self.rest["last"]

    def noisy(self, images, input_noise=None):
        """x̄: images with their noise, as the first layer sees them (clipped to ±``input_range``)."""
        images = images if input_noise is None else images + input_noise
        return images.clamp(-self.input_range, self.input_range) if math.isfinite(self.input_range) else images

    def affine(self, images, *, input_noise=None):
        """h = θ₁ᵀ x̄ of noisy images, without noise of its own."""
        images = self.noisy(images, input_noise)
        if not isinstance(self.first, nn.Conv2d):
            return self.first(images.flatten(1))
        attacked = images.requires_grad and subpixel.pays(self.first, images)
        return subpixel.convolution(images, self.first) if attacked else self.first(images)

    def features(self, h):
        """The first layer's nonlinear output: rectified (convolutions) and normed."""
        if isinstance(self.first, nn.Conv2d):
            h = functional.relu(h)
        return self.rest["norm"](h) if "norm" in self.rest else h

    def hidden(self, h):
        """The last hidden layer, in [−1, 1], from the first layer's (noisy) output."""
        return self.rest["body"](self.features(h)).clamp(-1.0, 1.0)

    def decode(self, h):
        """θ₁ h: the tied decoder, the transpose of the first layer without its bias; of the shape of the images."""
        weight = self.first.weight
        if not isinstance(self.first, nn.Conv2d):
            return (h @ weight).reshape(len(h), *self.in_shape)
        if subpixel.pays(self.first, h):
            stride, padding = self.first.stride[0], self.first.padding[0]
            return subpixel.transpose(h, weight, stride=stride, padding=padding, size=self.in_shape[1:])
        stride, padding, kernel = self.first.stride, self.first.padding, self.first.kernel_size
        missing = [
            size - ((out - 1) * s - 2 * p + k)
            for size, out, s, p, k in zip(self.in_shape[1:], h.shape[2:], stride, padding, kernel)
        ]
        return functional.conv_transpose2d(h, weight, stride=stride, padding=padding, output_padding=missing)

    def forward(self, images, *, input_noise=None, hidden_noise=None):
        """Logits (n, K). Noise is added as it comes: of one record's shape, (1, …), or one per record, (n, …)."""
        h = self.affine(images, input_noise=input_noise)
        return self.last(self.hidden(h if hidden_noise is None else h + hidden_noise))

    def set_statistics(self, statistics):
        """What batch norm uses in evaluation mode, ``statistics``, one of ``STATISTICS``. Returns the network."""
        checks.choice("statistics", statistics, STATISTICS)
        for module in self.modules():
            if isinstance(module, BatchNorm):
                module.statistics = statistics
        return self


def _geometry(first, in_shape, num_hidden):
    if isinstance(first, nn.Linear):
        return Geometry(first.in_features, first.out_features, 1, (first.out_features,), num_hidden)
    size = [
        (n + 2 * p - k) // s + 1 for n, p, k, s in zip(in_shape[1:], first.padding, first.kernel_size, first.stride)
    ]
    return Geometry(
        math.prod(first.kernel_size), math.prod(size), first.out_channels, (first.out_channels, *size), num_hidden
    )


def _halved(n, times):
    for _ in range(times):
        n = (n + 1) // 2
    return n


def mnist(in_shape, num_classes, *, num_hidden=256):
    """5×5/2 to 32 maps, pool, 5×5/2 to 64 maps, a dense layer; its input is clipped to ±10 after noise.

    Args: num_hidden — units of the dense layer.
    """
    channels, height, width = in_shape
    first = nn.Conv2d(channels, 32, 5, stride=2, padding=2)
    flat = 64 * math.prod(_halved(_halved(n, 1) // 2, 1) for n in (height, width))
    body = nn.Sequential(
        nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, num_hidden),
        BatchNorm(num_hidden),
    )
    return Network(in_shape, first, BatchNorm(32), body, num_hidden, num_classes, input_range=10.0)


class _Beside(nn.Module):
    """What a branch makes of an input, and the input, side by side."""

    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, x):
        return torch.cat([self.branch(x), x], 1)


def cifar10(in_shape, num_classes, *, num_hidden=256):
    """4×4/2 to 128 maps, two 5×5 convolutions (the first with its input beside it), pool, a dense layer.

    Args: num_hidden — units of the dense layer.
    """
    channels, height, width = in_shape
    first = nn.Conv2d(channels, 128, 4, stride=2, padding=1)
    flat = 256 * (height // 4) * (width // 4)
    body = nn.Sequential(
        _Beside(nn.Sequential(nn.Conv2d(128, 128, 5, padding=2), nn.ReLU())),
        BatchNorm(256),
        nn.Conv2d(256, 256, 5, padding=2),
        nn.ReLU(),
        BatchNorm(256),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, num_hidden),
        BatchNorm(num_hidden),
    )
    return Network(in_shape, first, BatchNorm(128), body, num_hidden, num_classes)


class _Block(nn.Module):
    """Two 3×3 convolutions, each after a norm and a rectifier (He et al. 2016, "v2")."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.norm1, self.conv1 = BatchNorm(inner), nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False)
        self.norm2, self.conv2 = BatchNorm(outer), nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.short = nn.Conv2d(inner, outer, 1, stride=stride, bias=False) if (inner, stride) != (outer, 1) else None

    def forward(self, x):
        y = functional.relu(self.norm1(x))
        short = x if self.short is None else self.short(y)
        return short + self.conv2(functional.relu(self.norm2(self.conv1(y))))


class _Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def resnet18(in_shape, num_classes, *, num_hidden=256, width=64):
    """ResNet-18 v2 from scratch: the first layer is 7×7/2 with its noise, then eight blocks, a dense layer.

    Not as released: no weights from ImageNet (which holds the images of Tiny ImageNet), no dropout.

    Args: num_hidden — units of the dense layer;  width — maps of the first layer.
    """
    first = nn.Conv2d(in_shape[0], width, 7, stride=2, padding=3)
    blocks, inner = [nn.MaxPool2d(3, stride=2, padding=1)], width
    for stage in range(4):
        outer = width * 2**stage
        blocks += [_Block(inner, outer, 1 if stage == 0 else 2), _Block(outer, outer, 1)]
        inner = outer
    body = nn.Sequential(*blocks, BatchNorm(inner), nn.ReLU(), _Mean(), nn.Linear(inner, num_hidden))
    return Network(in_shape, first, None, body, num_hidden, num_classes)


def dense(in_shape, num_classes, *, num_hidden=16, width=None):
    """The audit's toy: a square affine layer (or ``width`` units), one hidden layer, a norm before and after it.

    Args: num_hidden — units of the hidden layer.
    """
    num_inputs = math.prod(in_shape)
    width = num_inputs if width is None else checks.integer("width", width, low=1)
    body = nn.Sequential(nn.Linear(width, num_hidden), BatchNorm(num_hidden))
    return Network(in_shape, nn.Linear(num_inputs, width), BatchNorm(width), body, num_hidden, num_classes)


NETWORKS = {"mnist": mnist, "cifar10": cifar10, "resnet18": resnet18, "dense": dense}
_SMALLEST = {"mnist": 4, "cifar10": 4, "resnet18": 2, "dense": 1}


def build(name, *, in_shape, num_classes, generator, **options):
    """A network with fresh weights, in channels_last order and training mode.

    Paper: stobatch, Appendix P (the first two layers' kernels, maps and the 256 hidden units).
    Args: name — one of ``NETWORKS``;  in_shape — (channels, height, width);  num_classes — K;
        generator — torch Generator that every weight is drawn from (the global one is neither read nor moved);
        options — ``num_hidden`` |h_π|; ``width`` of ``dense`` (units) and ``resnet18`` (first maps).
    Returns: a :class:`Network` on the generator's device, float32. Weights are uniform within √(6 / fan in) (He), the
        last layer's within √(3 / fan in); biases 0.
    """
    factory = NETWORKS[checks.choice("network", name, NETWORKS)]
    if len(in_shape) != 3:
        raise ValueError(f"in_shape must be (channels, height, width), got in_shape={tuple(in_shape)}")
    in_shape = tuple(checks.integer("in_shape", int(n), low=1) for n in in_shape)
    if min(in_shape[1:]) < _SMALLEST[name]:
        least = _SMALLEST[name]
        raise ValueError(f"in_shape must be at least (c, {least}, {least}) for {name!r}, got in_shape={in_shape}")
    num_classes = checks.integer("num_classes", num_classes, low=2)
    allowed = ("num_hidden", "width") if name in ("dense", "resnet18") else ("num_hidden",)
    for option, value in options.items():
        checks.choice("network_options", option, allowed)
        if value is not None:
            checks.integer(option, value, low=1)
    with torch.device("meta"):  # shapes only: nothing is drawn from the global generator
        network = factory(in_shape, num_classes, **options)
    network = network.to_empty(device=generator.device)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, BatchNorm):
                for value, tensor in ((1.0, module.weight), (0.0, module.bias)):
                    tensor.fill_(value)
                module.running_mean.zero_()
                module.running_var.fill_(1.0)
            elif isinstance(module, (nn.Conv2d, nn.Linear)):
                bound = math.sqrt((3 if module is network.last else 6) / module.weight[0].numel())
                module.weight.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
    return network.to(memory_format=torch.channels_last)
