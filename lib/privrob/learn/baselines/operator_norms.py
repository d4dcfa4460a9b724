r"""How much a first layer can stretch a perturbation: bounds that hold, and the exact number to measure them by.

A convolution without borders is a multiplication in the frequency domain. With stride s the input is split into s²
phases a channel, each with its own sub-kernel, and

.. math:: \lVert W \rVert_{2\to 2} = \sup_\omega \lVert \hat H(\omega) \rVert, \qquad
    \hat H(\omega)_{o,(c,\phi)} = \sum_a w_{o,c,sa+\phi}\, e^{i\langle a, \omega\rangle}.

Zero padding and borders cut that operator down, so its norm is an upper bound. The supremum is taken on M frequencies a
direction; between them a trigonometric polynomial of degree n exceeds its largest value there by no more than a factor
:math:`1/\cos(\pi n / M)`.

Source: Sedghi, Gupta and Long 2019 (singular values of circular convolutions); Ehlich and Zeller 1964 (between the
    frequencies).
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from privrob import checks
from privrob.accounting import functional_budget

_FREQUENCIES = 32


def l2_norm_upper(layer, *, frequencies=_FREQUENCIES):
    """An upper bound of the l2 → l2 norm of a layer (its bias apart), for any size of image: about 2 % above the norm
    of the convolution without borders; exact for ``Linear``.

    Args: layer — ``Conv2d`` (one group, no dilation, zero padding) or ``Linear``;  frequencies — M, per direction.
    """
    weight = layer.weight.detach().double()
    if isinstance(layer, nn.Linear):
        return float(torch.linalg.matrix_norm(weight, 2)) * (1 + 1e-12)
    _plain(layer)
    parts = [_phases(weight, layer.stride)]
    degrees = [size // 2 for size in parts[0].shape[-2:]]
    frequencies = checks.integer("frequencies", frequencies, low=2 * max(degrees) + 2)
    response = torch.fft.rfft2(parts[0], s=(frequencies, frequencies)).permute(2, 3, 0, 1)
    largest = torch.linalg.eigvalsh(response.mH @ response)[..., -1].max().clamp(min=0.0).sqrt()
    between = math.prod(math.cos(math.pi * n / frequencies) for n in degrees)
    return float(largest) / between * (1 + 1e-9)


def l1_norm(layer):
    """The l1 → l1 norm of a layer without borders: the largest sum of absolute weights that one input meets.

    Attained by an input far enough from the border, if the image has one.
    """
    weight = layer.weight.detach().double().cpu().numpy()
    if isinstance(layer, nn.Linear):
        return functional_budget.affine_norm(weight.T)
    _plain(layer)
    if layer.stride[0] != layer.stride[1]:
        raise ValueError(f"layer must have one stride in both directions, got stride={layer.stride}")
    return functional_budget.convolution_norm(weight, stride=layer.stride[0])


def matrix(layer, in_shape):
    """The layer as a matrix (outputs, inputs), float64, for images of that shape: to measure by, not to train by."""
    size, weight = math.prod(in_shape), layer.weight.detach().double()
    if isinstance(layer, nn.Linear):
        return weight
    unit = torch.eye(size, dtype=torch.float64, device=weight.device).view(size, *in_shape)
    return functional.conv2d(unit, weight, stride=layer.stride, padding=layer.padding).flatten(1).t()


def l2_norm(layer, in_shape, *, scale=None):
    """The exact l2 → l2 norm for images of that shape, of W or of diag(1/s) W. Takes seconds above 2,000 inputs.

    Args: layer — ``Conv2d`` or ``Linear``;  scale — s, one positive number an output (a tensor of the output's shape);
        None: all 1.
    """
    rows = matrix(layer, in_shape)
    if scale is not None:
        rows = rows / scale.detach().double().reshape(-1, 1)
    gram = rows.t() @ rows if rows.shape[0] > rows.shape[1] else rows @ rows.t()
    return float(torch.linalg.eigvalsh(gram)[-1].clamp(min=0.0).sqrt())


@torch.no_grad()
def project(layer, *, norm, bound=1.0):
    """Divide the weights in place so that the norm is at most the bound; shorter ones are left alone.

    Args: norm — ``l2`` (by :func:`l2_norm_upper`) or ``l1``.  Returns: the norm that was found before.
    """
    found = {"l1": l1_norm, "l2": l2_norm_upper}[checks.choice("norm", norm, ("l1", "l2"))](layer)
    if found > bound:
        layer.weight.mul_(bound / (found * (1 + 1e-6)))  # float32 rounding stays below
    return found


def _phases(weight, stride):
    """Sub-kernels of the phases: (outputs, channels · phases, height, width), zeros where kernels end early."""
    rows, columns = stride
    height, width = (-(-n // s) * s for n, s in zip(weight.shape[2:], stride))
    padded = functional.pad(weight, (0, width - weight.shape[3], 0, height - weight.shape[2]))
    split = [padded[:, :, i::rows, j::columns] for i in range(rows) for j in range(columns)]
    return torch.stack(split, 2).flatten(1, 2)


def _plain(layer):
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1 or set(layer.dilation) != {1}:
        raise TypeError(f"layer must be Linear, or Conv2d with one group and no dilation, got {type(layer).__name__}")
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise ValueError(f"layer must have a padding in numbers, of zeros, got {layer.padding!r}, {layer.padding_mode}")
