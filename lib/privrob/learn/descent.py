r"""What is done with a noisy gradient: step sizes, momentum, Adam, AdaGrad. It costs no privacy: it sees nothing else.

With g the noisy mean gradient of step t and η the step size there:

* ``sgd``: :math:`v \leftarrow m v + g,\ \theta \leftarrow \theta - \eta v` (m: momentum)
* ``adam`` (Kingma & Ba 2015; private in Papernot et al. 2019): exponential means of g and g², corrected for
  their start, :math:`\theta \leftarrow \theta - \eta\, \hat m / (\sqrt{\hat v} + 10^{-8})`
* ``adagrad``: :math:`A \leftarrow A + g^2,\ \theta \leftarrow \theta - \eta\, g / (\sqrt A + 10^{-8})`
"""

from __future__ import annotations

import contextlib
import math

import torch

OPTIMIZERS = ("sgd", "adam", "adagrad")
SCHEDULES = ("linear", "cosine")
_MEAN, _SQUARE, _TINY = 0.9, 0.999, 1e-8
LOOK_EVERY = 50  # steps between looks at whether the parameters are finite
_DIVERGED = 1e12  # where single precision runs out in a layer or two


def step_size(step, *, learning_rate, final_learning_rate=None, decay_steps, schedule="linear"):
    """η at a step (from 0): from the first to the final value over ``decay_steps``, then the final value.

    Paper: dplearn, Advanced topic (step sizes).  Args: final_learning_rate — None: constant;  schedule — ``linear`` or
        ``cosine``.
    """
    if final_learning_rate is None:
        return learning_rate
    share = min(step / decay_steps, 1.0) if decay_steps else 1.0
    if schedule == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return learning_rate + (final_learning_rate - learning_rate) * share


@torch.no_grad()
def check_finite(parameters, *, step, about, most=math.inf):
    """End a training that has diverged: its parameters never become finite again, and its accuracies mean nothing.

    Args: parameters — tensors;  step — steps done;  about — the settings that it hangs on, name to value, the one to
        lower first;  most — a parameter of that size or above is as bad.
    Raises: FloatingPointError — a parameter is NaN, infinite or too large.
    """
    if not all(torch.stack([(p.abs() < most).all() for p in parameters]).tolist()):
        told = ", ".join(f"{name}={value!r}" for name, value in about.items())
        found = "NaN or infinity" if most == math.inf else f"NaN or sizes above {most:g}"
        raise FloatingPointError(
            f"parameters must stay finite, got {found} by step {step} with {told}; pass a smaller {' or '.join(about)}"
        )


@contextlib.contextmanager
def said_if_diverged(parameters, *, step, about):
    """Where a step fails because the training has diverged before it, the error says that, and not what came of it.

    Args: as of :func:`check_finite`.
    """
    try:
        yield
    except (ValueError, RuntimeError):  # logits that are refused, a decomposition that doesn't end
        check_finite(parameters, step=step, about=about, most=_DIVERGED)
        raise


class Descent:
    """One optimizer's state over a list of parameters.

    Args: parameters — tensors, changed in place;  optimizer — one of ``OPTIMIZERS``;  momentum — of ``sgd``.
    """

    def __init__(self, parameters, *, optimizer="sgd", momentum=0.0):
        self.parameters, self.optimizer, self.momentum, self.count = parameters, optimizer, momentum, 0
        kept = {"sgd": int(momentum > 0), "adam": 2, "adagrad": 1}[optimizer]
        self.kept = [[torch.zeros_like(p) for p in parameters] for _ in range(kept)]

    @torch.no_grad()
    def step(self, gradients, size):
        """Move the parameters by one step of this size.

        Args: gradients — one tensor a parameter;  size — η.
        """
        self.count += 1
        for i, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            own = [kept[i] for kept in self.kept]
            parameter.sub_(getattr(self, f"_{self.optimizer}")(gradient, own), alpha=size)

    def _sgd(self, gradient, own):
        return own[0].mul_(self.momentum).add_(gradient) if own else gradient

    def _adam(self, gradient, own):
        mean = own[0].mul_(_MEAN).add_(gradient, alpha=1 - _MEAN)
        square = own[1].mul_(_SQUARE).addcmul_(gradient, gradient, value=1 - _SQUARE)
        root = (square / (1 - _SQUARE**self.count)).sqrt_().add_(_TINY)
        return mean / (1 - _MEAN**self.count) / root

    def _adagrad(self, gradient, own):
        return gradient / own[0].addcmul_(gradient, gradient).sqrt().add_(_TINY)

    def state(self):
        """What :meth:`restore` needs to go on to the same bits."""
        return {"count": self.count, "kept": [[t.cpu() for t in kept] for kept in self.kept]}

    def restore(self, state):
        """Go on from a ``state`` that :meth:`state` gave."""
        self.count = state["count"]
        for kept, saved in zip(self.kept, state["kept"], strict=True):
            for mine, theirs in zip(kept, saved, strict=True):
                mine.copy_(theirs)
