r"""What a StoBatch training costs: gradients of images, floating-point operations, days.

One step has m benign records and m that adversarial examples are crafted from, in T_μ steps each. Count a forward pass
of one image as one unit; a gradient for the image takes about as much again, one for image and weights twice as much:

.. math:: \text{units of a step} = m\,(2 T_\mu + 3 + 3)

Convolutions and dense layers are counted, a multiplication and an addition each; the rest is small beside them. Nothing
here knows of memory, messages or of how well a device is used: it says how much there is to do, which N, M and the
number of processes do not change.

``attack_steps`` is T_μ, ``num_trainers`` how many trainers compute a step.

Paper: stobatch, Section 3.5, Section 4 ("Scalability and Strong Iterative Attacks"), Appendix Q.
"""

from __future__ import annotations

import torch
from torch import nn

from privrob import checks
from privrob.kinds import Streams
from privrob.learn.stobatch import networks

SECONDS_OF_A_DAY = 86_400.0


def multiply_adds(name, *, in_shape, num_classes, **options):
    """Multiplications (as many additions) of one image's forward pass, by layer, in order.

    Args: name, in_shape, num_classes, options — of :func:`privrob.learn.stobatch.networks.build`.
    Returns: dict, name of a layer (``first``, ``rest.body.0`` …) to a count.
    """
    network = networks.build(
        name, in_shape=in_shape, num_classes=num_classes, generator=Streams(0).torch("init"), **options
    )
    counts = {}

    def note(layer):
        def hook(module, inputs, output):
            positions = output[0, 0].numel() if isinstance(module, nn.Conv2d) else 1
            counts[layer] = module.weight.numel() * positions

        return hook

    for layer, module in network.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(note(layer))
    network.eval()
    with torch.no_grad():
        network(torch.zeros(1, *in_shape))
    return counts


def batches(num_records, batch_size):
    """What N records make of batches of m: {"batches", "trainers", "left_out" (records in no trainer's batches)}.

    Paper: stobatch, Algorithm 1 (line 2: N/m batches), Algorithm 4 (line 4: N/(2m) trainers).
    """
    batch_size = checks.integer("batch_size", batch_size, low=1)
    num_records = checks.integer("num_records", num_records, low=2 * batch_size, hint="two batches, for one trainer")
    count = num_records // batch_size
    trainers = count // 2
    return {"batches": count, "trainers": trainers, "left_out": num_records - 2 * trainers * batch_size}


def units_of_step(*, batch_size, attack_steps, num_trainers=1):
    """Forward passes of one image that a step is worth; see the module. M workers share them, they add none."""
    batch_size = checks.integer("batch_size", batch_size, low=1)
    attack_steps = checks.integer("attack_steps", attack_steps, low=0)
    return checks.integer("num_trainers", num_trainers, low=1) * batch_size * (2 * attack_steps + 6)


def operations(*, forward, num_steps, batch_size, attack_steps, num_trainers=1):
    """Floating-point operations of a whole training, two for each of ``forward`` multiplications of an image's pass."""
    units = units_of_step(batch_size=batch_size, attack_steps=attack_steps, num_trainers=num_trainers)
    num_steps = checks.integer("num_steps", num_steps, low=0)
    return 2.0 * checks.positive("forward", forward, finite=True) * num_steps * units


def utilisation(operations, *, days, num_devices, peak):
    """The share of the devices' peak that a training of so many operations needs, to take so many days.

    Args: num_devices — that share the work;  peak — operations a second of one device, at its best.  Returns: above 1
        where it cannot be.
    """
    time = checks.positive("days", days, finite=True) * SECONDS_OF_A_DAY
    devices = checks.integer("num_devices", num_devices, low=1)
    return operations / (time * devices * checks.positive("peak", peak, finite=True))
