"""StoBatch's networks without batch norm: no example's output or gradient depends on another example."""

from __future__ import annotations

from torch import nn

from privrob.learn.clip import check_model
from privrob.learn.stobatch import networks


def build(name, *, in_shape, num_classes, generator, **options):
    """A network of :func:`privrob.learn.stobatch.networks.build`, each batch norm replaced by the identity.

    Per-example clipping, and so DP-SGD, needs examples that do not mix; all baselines share this variant, so that they
    differ in their algorithm only.

    Paper: stobatch, Section 4 ("The baseline models share the same design in our experiment").
    Printed: nothing of batch norm; the authors' release has it in all models.   Used: none.
    """
    network = networks.build(name, in_shape=in_shape, num_classes=num_classes, generator=generator, **options)
    for module in list(network.modules()):
        for child, inner in module.named_children():
            if isinstance(inner, networks.BatchNorm):
                setattr(module, child, nn.Identity())
    return check_model(network)
