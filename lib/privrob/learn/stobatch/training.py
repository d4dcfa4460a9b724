r"""Algorithm 1, batch by batch, and Algorithm 4 with all its trainers in one process.

Records are dealt once into disjoint batches of m, which stay. A step takes a benign batch and a batch to craft
adversarial examples from; each gets its stored noise. Then

.. math:: \theta_1 \leftarrow \theta_1 - \eta\, \nabla \bar R_{B \cup B^{adv}}(\theta_1), \qquad
    \theta_2 \leftarrow \theta_2 - \eta\, \nabla \bar L_{B \cup B^{adv}}(\theta_2).

In Algorithm 4 each of N/(2m) trainers owns two batches, one in each role; a step picks some of them at random, and the
server takes the mean of their gradients. M workers share a trainer's two batches. Running averages of batch norm are
averaged as gradients are.

Randomness comes from named streams: ``init`` (weights), ``batches`` (who is in which), ``noise`` (χ₁, χ₂, χ₃), and one
family a step and trainer, so that a step is the same wherever and after whatever interruption it runs.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path

import torch

from privrob import checks
from privrob.learn import checkpoints
from privrob.learn.batches import as_labels, channels_last
from privrob.learn.descent import Descent, check_finite
from privrob.learn.dpsgd import resolve_device
from privrob.learn.stobatch import networks, steps
from privrob.learn.stobatch.deployed import StoBatch
from privrob.learn.stobatch.noise import Noise, epsilon_columns
from privrob.learn.stobatch.settings import STATISTICS

_FORMAT = 1
_SETTLING = 20  # batches


def train(settings, *tensors, num_classes, streams, progress=None, checkpoint=None, **distributed):
    """Train one model; yields one row at each evaluation.

    Paper: stobatch, Algorithm 1; Algorithm 4 with ``num_trainers``.
    Args: ``tensors`` (images, labels, test images, test labels), ``distributed`` (numbers of trainers and workers) and
        the rest as of :class:`Training`.
    Yields: dicts, see :meth:`Training.row`.
    """
    arguments = {"num_classes": num_classes, "streams": streams, "progress": progress, "checkpoint": checkpoint}
    yield from Training(settings, *tensors, **arguments, **distributed).rows()


class Training:
    """The state of one training: network, noise, the two descents, the step.

    Paper: stobatch, Algorithm 1; Algorithm 4 with ``num_trainers``.
    Args: settings — :class:`privrob.learn.stobatch.settings.StoBatchSettings`;
        images, test_images — float tensors (n, channels, height, width) in [−1, 1], of one shape and precision;
        labels, test_labels — integers (n,);  num_classes — K;  streams — :class:`privrob.kinds.Streams`;
        progress — called with (step, num_steps) after every step;
        checkpoint — a file: written at each evaluation and every ``save_every`` steps, and read first if it is there,
        so that a training that was killed goes on from it, to the same bits;
        num_trainers — N of Algorithm 4: trainers picked at a step; None: Algorithm 1;
        num_workers — M of Algorithm 4.
    """

    def __init__(
        self,
        settings,
        images,
        labels,
        test_images,
        test_labels,
        *,
        num_classes,
        streams,
        progress=None,
        checkpoint=None,
        save_every=None,
        num_trainers=None,
        num_workers=1,
    ):
        self.settings, self.streams, self.progress = settings, streams, progress
        self.device = resolve_device(settings.device)
        num_classes = checks.integer("num_classes", num_classes, low=2)
        self.num_records, self.num_batches = len(labels), settings.check_records(len(labels))
        self.num_trainers, self.num_workers = self._check_distributed(num_trainers, num_workers)
        self.save_every = None if save_every is None else checks.integer("save_every", save_every, low=1)
        images, labels = _part("images", images, labels, num_classes, self.device)
        self.test_images, self.test_labels = _part("test_images", test_images, test_labels, num_classes, self.device)
        _check_alike(images, self.test_images)
        self.file = None if checkpoint is None else Path(checkpoint)
        compared = self.file is not None or self.num_trainers is not None  # with a checkpoint, or between processes
        self.identity = self._identity(images, labels, num_classes) if compared else None
        order = streams.numpy("batches").permutation(len(labels))[: self.num_batches * settings.batch_size]
        order = torch.from_numpy(order).to(self.device)
        self.images, self.labels = channels_last(images[order]), labels[order]  # batch i: rows i·m to (i+1)·m
        self.network = settings.network_of(
            in_shape=tuple(images.shape[1:]), num_classes=num_classes, generator=streams.torch("init")
        ).to(device=self.device, dtype=images.dtype)
        self.budget = settings.budget(self.network)
        self.noise = Noise(
            settings.noise,
            budget=self.budget,
            network=self.network,
            streams=streams.child("noise"),
            label_noise=settings.label_noise,
            colour_noise=settings.colour_noise,
        )
        self.first, self.rest = list(self.network.first.parameters()), list(self.network.rest.parameters())
        self.buffers = list(self.network.buffers())
        self.first_at_start = self.network.first.weight.detach().clone()
        (one, momentum, _), (two, other_momentum, _) = settings.descents
        self.descents = (
            Descent(self.first, optimizer=one, momentum=momentum),
            Descent(self.rest, optimizer=two, momentum=other_momentum),
        )
        self.step, self.done, self.seen = 0, [], [0, dict.fromkeys(steps.LOSSES, 0.0)]
        self.settled_at = self.along_the_way = None  # the step of batch norm's averages, if settled; those of before
        if self.file and self.file.exists():
            self._restore()

    def _check_distributed(self, num_trainers, num_workers):
        settings, pairs = self.settings, self.num_batches // 2
        num_workers = checks.integer("num_workers", num_workers, low=1)
        if num_trainers is None:
            if num_workers > 1:
                raise ValueError(f"num_workers must be 1 without num_trainers (Algorithm 1), got {num_workers}")
            return None, 1
        if settings.pairing != "pairs":
            raise ValueError(f"pairing must be 'pairs' with num_trainers (Algorithm 4), got {settings.pairing!r}")
        hint = f"{self.num_records} records make {pairs} trainers of two batches of {settings.batch_size}"
        num_trainers = checks.integer("num_trainers", num_trainers, low=1, high=pairs, hint=hint)
        least = 2 * len(settings.attacks) if settings.adversarial else 2
        if settings.batch_size % num_workers or settings.batch_size // num_workers < least:
            raise ValueError(
                f"num_workers must divide batch_size={settings.batch_size} into equal parts of at least {least} "
                f"records, got num_workers={num_workers}"
            )
        return num_trainers, num_workers

    # ------------------------------------------------------------------------------------------------------ a step

    def tasks(self):
        """The (trainer, worker) of this step, in the order in which the server adds them up."""
        if self.num_trainers is None:
            count = self.num_batches if self.settings.pairing == "next" else self.num_batches // 2
            return [(self.step % count, 0)]
        rng = self.streams.child("picks").numpy(self.step)
        picked = sorted(rng.choice(self.num_batches // 2, self.num_trainers, replace=False).tolist())
        return [(trainer, worker) for trainer in picked for worker in range(self.num_workers)]

    def roles(self, trainer):
        """The numbers of a trainer's two batches: benign, and the one that adversarial examples are crafted from."""
        if self.settings.pairing == "next":
            return trainer, (trainer + 1) % self.num_batches
        return 2 * trainer, 2 * trainer + 1

    def batch(self, number, worker=0):
        """The fixed batch ``number`` with its stored noise, or a worker's part of it."""
        whole = self._whole(number)
        return whole if self.num_workers == 1 else whole.split(self.num_workers)[worker]

    def _whole(self, number):
        size, noise = self.settings.batch_size, self.noise
        rows = slice(number * size, (number + 1) * size)
        noises = [noise.of_batch(layer, number, size) for layer in ("inputs", "hidden")]
        return steps.Part(self.images[rows], self.labels[rows], *noises)

    def contribution(self, trainer, worker):
        """What a worker of a ``trainer`` sends: gradients of θ₁ and θ₂, batch norm's averages, losses; one vector."""
        step = self.streams.child("steps", self.step, "trainer", trainer)
        radius = self.settings.radius_high
        if self.settings.random_radius:
            radius *= 1.0 - step.numpy("radius").random()  # in (0, high]
        benign, attacked = self.roles(trainer)
        before = [b.clone() for b in self.buffers]
        found, losses = steps.gradients(
            self.network,
            self.settings,
            self.batch(benign, worker),
            self.batch(attacked, worker) if self.settings.adversarial else None,
            labels_noise=self.noise.labels,
            generator=step.child("worker", worker).torch("attack"),
            radius=radius if self.settings.adversarial else None,
        )
        told = found[0].new_tensor([losses[name] for name in steps.LOSSES])
        sent = torch.cat([*(v.reshape(-1) for v in found), *(b.reshape(-1) for b in self.buffers), told])
        self._put(self.buffers, before)
        return sent

    def total(self):
        """The sum of this step's contributions, in the order of :meth:`tasks`."""
        total = None
        for task in self.tasks():
            sent = self.contribution(*task)
            total = sent if total is None else total.add_(sent)
        return total

    def apply(self, mean):
        """The server's step on the mean contribution.

        Raises: FloatingPointError — the training has diverged; a step on losses that aren't finite is not applied.
        Paper: stobatch, Algorithm 1 (line 12) and Algorithm 4 (line 16).
        """
        losses = mean[-len(steps.LOSSES) :].tolist()
        self._check_finite(losses)
        values = list(mean[: -len(steps.LOSSES)].split([t.numel() for t in (*self.first, *self.rest, *self.buffers)]))
        values = [v.view(t.shape) for v, t in zip(values, (*self.first, *self.rest, *self.buffers))]
        ends = len(self.first), len(self.first) + len(self.rest)
        for descent, (_, _, rate), part in zip(
            self.descents, self.settings.descents, (values[: ends[0]], values[ends[0] : ends[1]])
        ):
            descent.step(part, rate)
        self._put(self.buffers, values[ends[1] :])
        self.seen[0] += 1
        for name, value in zip(steps.LOSSES, losses):
            self.seen[1][name] += value
        self.step += 1
        check_finite((*self.first, *self.rest), step=self.step, about=self._rates())

    def _rates(self):
        """What a divergence hangs on, by name."""
        own = self.settings.first_learning_rate
        more = {} if own is None else {"first_learning_rate": own}
        return {"learning_rate": self.settings.learning_rate, **more}

    def _check_finite(self, losses):
        if not all(map(math.isfinite, losses)):
            told = ", ".join(f"{name}={value:g}" for name, value in zip(steps.LOSSES, losses))
            rates = ", ".join(f"{name}={value!r}" for name, value in self._rates().items())
            raise FloatingPointError(
                f"losses must stay finite, got {told} in step {self.step + 1} with {rates}; pass a smaller "
                f"{' or '.join(self._rates())}"
            )

    @staticmethod
    @torch.no_grad()
    def _put(tensors, values):
        for tensor, value in zip(tensors, values):
            tensor.copy_(value)

    def advance(self):
        """One step; a row where one is due before the last."""
        count = len(self.tasks())
        self.apply(self.total() / count)
        if self.progress:
            self.progress(self.step, self.settings.num_steps)
        return self.due()

    def due(self):
        """The row of this step, if one is due; saves where that is due."""
        settings, last = self.settings, self.step == self.settings.num_steps
        every = settings.evaluate_every or max(settings.num_steps, 1)
        if (self.step % every == 0 or self.step in settings.evaluate_at) and not last:
            return self.row()
        if self.save_every and self.step % self.save_every == 0 and not last:
            self.save()
        return None

    # -------------------------------------------------------------------------------------------------------- rows

    def rows(self):
        """The rows of the whole training; those of before an interruption first."""
        yield from self.done
        if self.done and self.done[-1]["weights_sha256"]:
            return
        while self.step < self.settings.num_steps:
            row = self.advance()
            if row:
                yield row
        yield self.row()

    @torch.no_grad()
    def settle(self):
        """Give batch norm the mean statistics of the first benign batches (at most 20), as the weights are now.

        It reads what training reads, the perturbed inputs, and no label. Training itself never uses these averages.
        """
        norms = [m for m in self.network.modules() if isinstance(m, networks.BatchNorm)]
        if not norms or self.settled_at == self.step:
            return
        numbers = range(0, self.num_batches, 1 if self.settings.pairing == "next" else 2)[:_SETTLING]
        parts = [p for n in numbers for p in self._whole(n).portions(self.settings.micro_batch_size)]
        self.along_the_way = [b.clone() for b in self.buffers]
        mode = self.network.training
        self.network.train()
        for count, part in enumerate(parts, start=1):
            for norm in norms:
                norm.momentum = 1.0 / count  # running averages become plain means
            self.network(part.images, input_noise=part.input_noise, hidden_noise=part.hidden_noise)
        for norm in norms:
            del norm.momentum
        self.network.train(mode)
        self.settled_at = self.step

    def deployed(self, **changes):
        """What is served now: :class:`privrob.learn.stobatch.deployed.StoBatch`; ``changes`` are its arguments."""
        settings, statistics = self.settings, changes.get("batch_norm_evaluation", self.settings.batch_norm_evaluation)
        if statistics == "settled":
            self.settle()
            statistics = "running"
        elif self.settled_at == self.step:
            self._put(self.buffers, self.along_the_way)
            self.settled_at = None
        arguments = {
            "psi": settings.psi,
            "query_noise": settings.query_noise,
            "generator": self.streams.child("evaluation", self.step).torch("queries", self.device),
        }
        return StoBatch(self.network, self.noise, **{**arguments, **changes, "batch_norm_evaluation": statistics})

    def row(self):
        """Where training stands, and the means since the row before.

        ``step``, ``epoch``, ``test_accuracy`` (of what is served; None without test records),
        ``test_accuracy_settled``, ``…_running``, ``…_batch`` (last row: by batch norm's statistics), ``benign_loss``,
        ``adversarial_loss``, ``reconstruction_loss`` (a record), ``training_radius`` (mean μ_t),
        ``unused_records`` (in no batch), ``num_trainers``, ``num_workers``, the ε columns
        (:func:`privrob.learn.stobatch.noise.epsilon_columns`), ``weights_sha256`` (last row only), and the switches.
        All of it is about private records and has no guarantee.
        """
        settings, (count, sums) = self.settings, self.seen
        used = self.num_trainers or 1
        records = settings.batch_size * (2 if settings.adversarial else 1) * used
        row = {
            "step": self.step,
            "epoch": self.step * records / (self.num_batches * settings.batch_size),
            **self._accuracies(),
            **{name: sums[name] / count if count else None for name in steps.LOSSES},
            "unused_records": self.num_records - self.num_batches * settings.batch_size,
            "num_trainers": self.num_trainers,
            "num_workers": self.num_workers,
            **epsilon_columns(settings, self.budget, self.network, first_weight_at_start=self.first_at_start),
            "weights_sha256": self.weights_sha256() if self.step == settings.num_steps else None,
            **settings.switches(),
        }
        self.done.append(row)
        self.seen = [0, dict.fromkeys(steps.LOSSES, 0.0)]
        self.save()
        return row

    def _accuracies(self):
        """``test_accuracy``; with the last row also what batch norm makes of it, for all it may be served with."""
        of = {"test_accuracy": self.settings.batch_norm_evaluation}
        if self.step == self.settings.num_steps and self.buffers:
            of = {f"test_accuracy_{how}": how for how in STATISTICS} | of  # what is served comes last, and stays
        tests = self.test_images, self.test_labels
        return {name: self.deployed(batch_norm_evaluation=how).accuracy(*tests) for name, how in of.items()}

    def weights_sha256(self):
        """Hash of all parameters and running averages, in order, in the layout of their shapes."""
        digest = hashlib.sha256()
        for tensor in (*self.first, *self.rest, *self.buffers):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    # ------------------------------------------------------------------------------------------------- checkpoints

    def _identity(self, images, labels, num_classes):
        """What a checkpoint must agree with: settings (not where), streams, data, trainers."""
        digest = hashlib.sha256()
        for tensor in (images, labels, self.test_images, self.test_labels):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        kept = json.loads(json.dumps({**asdict(self.settings), "num_classes": num_classes, "device": self.device.type}))
        distributed = {"num_trainers": self.num_trainers, "num_workers": self.num_workers}
        about = {"streams": repr(self.streams), "data_sha256": digest.hexdigest()}
        return {"stobatch": _FORMAT, **kept, **distributed, **about}

    def state(self):
        """All that goes on: step, rows, sums, weights, averages, descents."""
        return {
            "step": self.step,
            "rows": self.done,
            "seen": self.seen,
            "tensors": [t.detach().cpu() for t in (*self.first, *self.rest, *self.buffers)],
            "descents": [d.state() for d in self.descents],
        }

    def save(self):
        """Write the checkpoint, if there is a file for it."""
        if self.file:
            checkpoints.write(self.file, self.identity, self.state())

    def _restore(self):
        self.restore(checkpoints.read(self.file, self.identity))

    def restore(self, state):
        """Go on from a :meth:`state`."""
        self._put((*self.first, *self.rest, *self.buffers), state["tensors"])
        for descent, saved in zip(self.descents, state["descents"]):
            descent.restore(saved)
        self.step, self.done, self.seen = state["step"], state["rows"], state["seen"]


def _part(name, images, labels, num_classes, device):
    """Images and labels, checked, on the device."""
    if not isinstance(images, torch.Tensor) or images.dtype not in (torch.float32, torch.float64) or images.ndim != 4:
        kind = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, torch.Tensor) else type(images).__name__
        raise TypeError(f"{name} must be a float tensor (n, channels, height, width), got {kind}")
    if images.numel() and not torch.isfinite(images).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity among them")
    if images.numel() and (images.min() < -1 or images.max() > 1):  # noise scales, 2D/b and attacks are for this range
        found = f"values in [{images.min().item():g}, {images.max().item():g}]"
        raise ValueError(f"{name} must lie in [-1, 1], got {found}; pass 2 * images - 1 for images in [0, 1]")
    labels = as_labels(f"labels of {name}", labels, num_classes=num_classes, device=device)
    if len(labels) != len(images):
        raise ValueError(f"{name} must be as many as their labels, got {len(images)} for {len(labels)}")
    return images.to(device), labels


def _check_alike(images, test_images):
    """Whether the network of the one takes the other."""
    wanted, found = ((*part.shape[1:], part.dtype) for part in (images, test_images))
    if len(test_images) and wanted != found:
        raise ValueError(f"test_images must have the shape and precision of images, {wanted}, got {found}")
