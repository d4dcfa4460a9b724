"""The models of the studies, small enough for a laptop. Weights come from one torch Generator and nothing else.

No layer mixes the examples of a batch, so that every model has per-example gradients.

``activation`` makes a layer's nonlinearity, ``nn.Tanh`` say.

Source: the network of the usual DP-SGD tutorials; Abadi et al. 2016.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from privrob import checks

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def tutorial_cnn(in_shape, num_classes, activation):
    """Two convolutions, two dense layers: the network of the usual DP-SGD tutorials, 26,010 parameters on digits."""
    channels, height, width = in_shape

    def size(n):  # conv 8, stride 2, padding 3; pool 2, stride 1; conv 4, stride 2; pool 2, stride 1
        return ((n - 2) // 2 + 1 - 1 - 4) // 2 + 1 - 1

    if min(size(height), size(width)) < 1:
        raise ValueError(f"in_shape must be at least (c, 14, 14) for tutorial_cnn, got in_shape={tuple(in_shape)}")
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        activation(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * size(height) * size(width), 32),
        activation(),
        nn.Linear(32, num_classes),
    )


def mlp(in_shape, num_classes, activation, hidden=(1000,)):
    """Dense layers only; one hidden layer of 1,000 units is the network of Abadi et al. (2016), less its PCA."""
    widths = [math.prod(in_shape), *(checks.integer("hidden", h, low=1) for h in hidden)]
    layers = [nn.Flatten()]
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Linear(inner, outer), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def logistic(in_shape, num_classes, activation):
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(in_shape), num_classes))


MODELS = {"tutorial_cnn": tutorial_cnn, "mlp": mlp, "logistic": logistic}


def with_room(model, device):
    """A module that was made on torch's ``meta`` device, with tensors whose values are not set.

    ``to_empty`` would be the same, but takes a second to import what it doesn't need.

    Args: model — the module, without buffers;  device — where the tensors are made.
    Returns: the module.
    """
    for module in model.modules():
        for name, given in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(given.shape, dtype=given.dtype, device=device)))
    return model


def build(name, *, in_shape, num_classes, generator, activation="relu", **options):
    """A model with fresh weights.

    Args: name — one of ``MODELS``;  in_shape — (channels, height, width);  num_classes — outputs;
        generator — torch Generator that every weight is drawn from (the global one is neither read nor moved);
        activation — one of ``ACTIVATIONS``;  options — the model's own, such as ``hidden=(256,)`` for ``mlp``.
    Returns: a module in channels_last memory format, on the generator's device. Weights and biases are uniform within
        1/√(number of inputs), as torch's own layers have it.
    """
    factory = MODELS[checks.choice("model", name, MODELS)]
    layer = ACTIVATIONS[checks.choice("activation", activation, ACTIVATIONS)]
    if len(in_shape) != 3:
        raise ValueError(f"in_shape must be (channels, height, width), got in_shape={tuple(in_shape)}")
    num_classes = checks.integer("num_classes", num_classes, low=2)
    with torch.device("meta"):  # shapes only: nothing is drawn from the global generator
        model = factory(tuple(int(n) for n in in_shape), num_classes, layer, **options)
    model = with_room(model, generator.device)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                bound = 1 / math.sqrt(module.weight[0].numel())
                module.weight.uniform_(-bound, bound, generator=generator)
                module.bias.uniform_(-bound, bound, generator=generator)
    return model.to(memory_format=torch.channels_last)
