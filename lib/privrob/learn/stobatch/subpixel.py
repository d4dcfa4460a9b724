r"""The transpose of a strided convolution of one-channel images, as a convolution with one output a phase.

With stride s, output pixel :math:`o = sq + r` takes only those kernel entries k with :math:`k \equiv r + p \pmod s`:
s² small kernels, one for each phase (r, r'), whose outputs are put side by side by a pixel shuffle. On a CPU the usual
transposed convolution to one channel is three to five times slower.

Source: Shi et al. 2016 (sub-pixel convolution, the same network layer); the use is ours.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional


def pays(layer, like):
    """Whether this way is the faster one for a ``layer`` (``Conv2d``) on the device of ``like``."""
    square = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    return like.device.type == "cpu" and layer.in_channels == 1 and layer.stride[0] > 1 and square


def convolution(images, layer):
    """``layer(images)``, whose gradient by the images takes the transpose of here."""
    values = layer(images.detach())  # the weights' gradients are the usual ones
    return _ByImages.apply(values, images, layer.weight.detach(), layer.stride[0], layer.padding[0])


def transpose(values, weight, *, stride, padding, size):
    """The transpose of a convolution (without bias) at ``values`` (n, maps, rows, columns).

    Args: weight — of the convolution, (maps, channels, k, k);  stride, padding — its own, the same in both directions;
        size — (height, width) of the images.
    Returns: (n, channels, height, width), differentiable.
    """
    entries, before = _entries(weight.shape[2], stride, padding)
    taps = len(entries[0])
    at = torch.tensor(entries)
    padded = functional.pad(weight, (0, 1, 0, 1))  # entry k: none, 0
    kernel = padded[:, :, at[:, :, None, None], at[None, None]]  # maps, channels, phase, tap, phase, tap
    kernel = kernel.permute(1, 2, 4, 0, 3, 5).reshape(-1, len(weight), taps, taps)
    counts = [-(-n // stride) for n in size]
    after = [n - values.shape[2 + i] - before + taps - 1 for i, n in enumerate(counts)]
    if after == [before, before]:
        phases = functional.conv2d(values, kernel, padding=before)
    else:
        phases = functional.conv2d(functional.pad(values, (before, after[1], before, after[0])), kernel)
    return functional.pixel_shuffle(phases, stride)[:, :, : size[0], : size[1]]


@cache
def _entries(kernel, stride, padding):
    """Of each phase, the kernel entry at each tap (``kernel`` for none), and how many taps lie before the pixel."""
    first = padding // stride - -(-kernel // stride) + 1
    last = (stride - 1 + padding) // stride
    rows = []
    for phase in range(stride):
        whole, rest = divmod(phase + padding, stride)
        entries = [stride * (whole - tap) + rest for tap in range(first, last + 1)]
        rows.append(tuple(e if 0 <= e < kernel else kernel for e in entries))
    return tuple(rows), -first


class _ByImages(torch.autograd.Function):
    """A convolution's values as they are, with a gradient by the images."""

    @staticmethod
    def forward(ctx, values, images, weight, stride, padding):
        ctx.save_for_backward(weight)
        ctx.how = {"stride": stride, "padding": padding, "size": tuple(images.shape[2:])}
        return values.view_as(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        return grad, transpose(grad, weight, **ctx.how), None, None, None
