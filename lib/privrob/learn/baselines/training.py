"""One training loop for all baselines: what a step does is the baseline's, the rest (draws, resuming, columns) is here.

Randomness comes from named streams: ``init`` (weights), ``batches`` (who is drawn), ``noise`` (of privacy and of
layers), ``attack`` (of adversarial training), ``prediction``.

Source: ours.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch.nn import functional

from privrob import checks
from privrob.learn import checkpoints, descent
from privrob.learn.baselines import plain
from privrob.learn.batches import as_labels, channels_last
from privrob.learn.checkpoints import BadCheckpoint  # noqa: F401  (raised by training)
from privrob.learn.dpsgd import resolve_device
from privrob.learn.stobatch import networks

LOW, HIGH = -1.0, 1.0  # the range of an image: sensitivities and attacks depend on it
_FORMAT, _SAVE_EVERY, _LOSSES = 1, 200, 50


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all baselines share. A subclass adds its own fields.

    Args: network, network_options — of :func:`privrob.learn.baselines.plain.build`;  num_steps — T;
        batch_size — m: of random batches the size, of Poisson samples the expected one;
        learning_rate, optimizer, momentum — of :class:`privrob.learn.descent.Descent`;
        variant — one of the class's ``variants``;  device — as in :mod:`privrob.learn.dpsgd`.
    """

    variants: ClassVar = ("sound",)

    num_steps: int
    batch_size: int = 250
    learning_rate: float = 1e-3
    optimizer: str = "adam"
    momentum: float = 0.0
    network: str = "mnist"
    network_options: dict | None = None
    variant: str = "sound"
    device: str = "cpu"

    def __post_init__(self):
        checks.choice("network", self.network, networks.NETWORKS)
        checks.options("network_options", self.network_options, ("num_hidden", "width"))
        checks.integer("num_steps", self.num_steps, low=0)
        checks.integer("batch_size", self.batch_size, low=1)
        checks.real("learning_rate", self.learning_rate, low=0.0, high=1e30)
        checks.choice("optimizer", self.optimizer, descent.OPTIMIZERS)
        checks.probability("momentum", self.momentum, allow_one=False)
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum must be 0 for optimizer {self.optimizer!r}, got momentum={self.momentum!r}")
        checks.choice("variant", self.variant, self.variants)
        resolve_device(self.device)


class Training:
    """The state of one training. A subclass says what a step is (:meth:`advance`), what comes out (:meth:`deployed`)
    and what it is worth (:meth:`privacy`).

    Args: settings;  images — float (n, channels, height, width) in [−1, 1];  labels — integers (n,);
        num_classes — K;  streams — :class:`privrob.kinds.Streams`;
        checkpoint — a file: written every 200 steps, and read first if it is there, so that a killed training goes on
        to the same bits.
    """

    def __init__(self, settings, images, labels, *, num_classes, streams, checkpoint=None):
        self.settings, self.streams = settings, streams
        self.device = resolve_device(settings.device)
        self.num_classes = checks.integer("num_classes", num_classes, low=2)
        self.images, self.labels = checked_images(images).to(self.device), labels
        self.labels = as_labels("labels", labels, num_classes=num_classes, device=self.device)
        if len(self.images) != len(self.labels) or not len(self.labels):
            raise ValueError(f"labels must be as many as images, at least 1, got {len(labels)} for {len(images)}")
        checks.integer("batch_size", settings.batch_size, high=len(self.images), hint="at most the number of records")
        self.network = self.fresh_network("init")
        self.parameters = list(self.network.parameters())
        self.descent = descent.Descent(self.parameters, optimizer=settings.optimizer, momentum=settings.momentum)
        self.batches = streams.numpy("batches")
        self.noise, self.attack = (streams.torch(name, self.device) for name in ("noise", "attack"))
        self.step, self.losses = 0, deque(maxlen=_LOSSES)
        self.begin()
        self.file = None if checkpoint is None else Path(checkpoint)
        self.identity = self._identity() if self.file else None
        if self.file and self.file.exists():
            self._restore()

    def fresh_network(self, stream):
        """A network of the settings with weights of that stream."""
        return plain.build(
            self.settings.network,
            in_shape=tuple(self.images.shape[1:]),
            num_classes=self.num_classes,
            generator=self.streams.torch(stream, self.device),
            **(self.settings.network_options or {}),
        ).to(self.images.dtype)

    # ------------------------------------------------------------------------------------------ a baseline's own

    def begin(self):
        """What comes before the first step; it is done again when a training goes on from a checkpoint."""

    def advance(self):
        """One step; returns a loss to look at, or None."""
        raise NotImplementedError

    def deployed(self):
        """The trained model; see :mod:`privrob.learn.baselines.deployed`."""
        raise NotImplementedError

    def privacy(self, *, delta):
        """Columns for every row: ``claimed_epsilon`` (what the method's authors say), ``honest_epsilon`` (an upper
        bound that holds; infinity where none does), ``delta``, ``neighbouring``, ``sampling``, ``protects``."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self, progress=None):
        """All steps that are left. Returns this training.

        Args: progress — function of (steps done, of how many), or None.
        Raises: FloatingPointError — the training has diverged.
        """
        about = {"learning_rate": self.settings.learning_rate}
        while self.step < self.settings.num_steps:
            with descent.said_if_diverged(self.parameters, step=self.step, about=about):
                loss = self.advance()
            if loss is not None:
                if not math.isfinite(loss):
                    raise FloatingPointError(
                        f"the loss is not finite at step {self.step + 1}; lower learning_rate "
                        f"(now {self.settings.learning_rate!r})"
                    )
                self.losses.append(loss)
            self.step += 1
            if progress:
                progress(self.step, self.settings.num_steps)
            last = self.step == self.settings.num_steps
            save = self.file and (self.step % _SAVE_EVERY == 0 or last)
            if save or last or self.step % descent.LOOK_EVERY == 0:  # nothing that has diverged is saved
                descent.check_finite(self.parameters, step=self.step, about=about)
            if save:
                self._save()
        return self

    def descend(self, loss):
        """One descent on a loss of all parameters. Returns it as a number."""
        self.descent.step(torch.autograd.grad(loss, self.parameters), self.settings.learning_rate)
        return float(loss.detach())

    def random_batch(self, size):
        """``size`` records, drawn without replacement: (images, labels)."""
        chosen = torch.from_numpy(self.batches.choice(len(self.images), size, replace=False)).to(self.device)
        return channels_last(self.images[chosen]), self.labels[chosen]

    @property
    def train_loss(self):
        """Mean of the last losses; no guarantee covers it."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    def weights_sha256(self):
        """Hash of all parameters, in order."""
        digest = hashlib.sha256()
        for parameter in self.parameters:
            digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _identity(self):
        digest = hashlib.sha256()
        for tensor in (self.images, self.labels):
            digest.update(
                f"{tuple(tensor.shape)} {tensor.dtype}".encode() + tensor.cpu().contiguous().numpy().tobytes()
            )
        kept = asdict(self.settings) | {"device": self.device.type, "num_classes": self.num_classes}
        kept = json.loads(json.dumps(kept))
        return {
            "format": _FORMAT,
            "method": type(self).__name__,
            **kept,
            "streams": repr(self.streams),
            "data_sha256": digest.hexdigest(),
        }

    def _save(self):
        state = {
            "step": self.step,
            "losses": list(self.losses),
            "parameters": [p.detach().cpu() for p in self.parameters],
            "descent": self.descent.state(),
            "batches": self.batches.bit_generator.state,
            "noise": self.noise.get_state(),
            "attack": self.attack.get_state(),
        }
        checkpoints.write(self.file, self.identity, state)

    @torch.no_grad()
    def _restore(self):
        state = checkpoints.read(self.file, self.identity)
        for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
            parameter.copy_(saved)
        self.descent.restore(state["descent"])
        self.batches.bit_generator.state = state["batches"]
        self.noise.set_state(state["noise"])
        self.attack.set_state(state["attack"])
        self.step = state["step"]
        self.losses.extend(state["losses"])


def checked_images(images):
    """Images as all baselines take them: float (n, channels, height, width), finite, in [−1, 1]."""
    if not isinstance(images, torch.Tensor) or not images.is_floating_point() or images.ndim != 4:
        raise TypeError(f"images must be a float tensor (n, channels, height, width), got {type(images).__name__}")
    if len(images) and not (images.min() >= LOW and images.max() <= HIGH):  # also catches NaN
        raise ValueError(
            f"images must lie in [{LOW:g}, {HIGH:g}], got {float(images.min()):g} to {float(images.max()):g}; pass "
            "2 * images - 1 for images in [0, 1]"
        )
    return images


def cross_entropy_sum(logits, labels):
    """Softmax cross entropy, summed over examples.

    Args: logits — (n, K).
    """
    return functional.cross_entropy(logits, labels, reduction="sum")


NON_PRIVATE = {
    "claimed_epsilon": None,
    "honest_epsilon": math.inf,
    "delta": None,
    "neighbouring": None,
    "sampling": None,
    "protects": "nothing of the training data",
}
