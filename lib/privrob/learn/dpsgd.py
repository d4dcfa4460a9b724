r"""Differentially private SGD (Abadi et al. 2016), and plain SGD in the same loop.

A step takes each record with probability q (a Poisson sample; it may be empty), clips each record's gradient to norm C,
adds the gradients and one Gaussian draw, and divides by the expected batch:

.. math:: \theta \leftarrow \theta - \eta\, \frac{1}{qn} \Big( \sum_{i \in L_t} \bar g_i + N(0, \sigma^2 C^2 I) \Big)

The drawn size appears nowhere: dividing by it would tell it. An empty batch is a step of pure noise.

Randomness comes from three named streams: ``init`` (weights), ``batches`` (who is drawn), ``noise``.
"""

from __future__ import annotations

import hashlib
import io
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from privrob import atomic, checks
from privrob.learn import datasets, models
from privrob.learn.batches import as_labels, channels_last, poisson_batch
from privrob.learn.clip import PerExample, check_model, clip_weights

_EVALUATED_AT_ONCE = 2500
_CHECKPOINT = 1


class BadCheckpoint(ValueError):
    """A checkpoint that can't be read, or is another training's."""


@dataclass(frozen=True)
class DPSGDSettings:
    """One training, checked before it starts.

    Paper: dplearn, Training a machine learning model with DP-SGD (the algorithm's inputs and parameters).
    Args: model, activation, hidden — see :func:`privrob.learn.models.build` (``hidden``: widths, for ``mlp`` only);
        sample_rate — q, probability of each record at each step, in [0, 1];
        num_steps — T;  learning_rate — η;  momentum — of the noisy gradient, 0 as on the slide;
        max_grad_norm — C, infinity for no clipping;  noise_multiplier — σ, the noise has standard deviation σC;
        evaluate_every — steps between evaluations (the last step is always one), None: only the last;
        physical_batch_size — at most so many records at once in memory: changes rounding only;
        device — "cpu", "cuda" or "cuda:<number>".
    """

    model: str
    sample_rate: float
    num_steps: int
    learning_rate: float
    max_grad_norm: float
    noise_multiplier: float
    momentum: float = 0.0
    activation: str = "relu"
    hidden: tuple | None = None
    evaluate_every: int | None = None
    physical_batch_size: int = 1024
    device: str = "cpu"

    def __post_init__(self):
        checks.choice("model", self.model, models.MODELS)
        checks.choice("activation", self.activation, models.ACTIVATIONS)
        checks.probability("sample_rate", self.sample_rate, hint="pass batch_size / num_records")
        checks.integer("num_steps", self.num_steps, low=0)
        checks.nonnegative("learning_rate", self.learning_rate, finite=True)
        checks.probability("momentum", self.momentum, allow_one=False)
        checks.positive("max_grad_norm", self.max_grad_norm)
        checks.nonnegative("noise_multiplier", self.noise_multiplier, finite=True)
        if self.noise_multiplier > 0 and math.isinf(self.max_grad_norm):
            raise ValueError(
                f"max_grad_norm must be finite when there is noise, got max_grad_norm={self.max_grad_norm!r} with "
                f"noise_multiplier={self.noise_multiplier!r}; pass noise_multiplier=0 for plain SGD"
            )
        if self.hidden is not None:
            if self.model != "mlp":
                raise ValueError(
                    f"hidden must be None for model {self.model!r}, got hidden={self.hidden!r}; it is for 'mlp'"
                )
            object.__setattr__(self, "hidden", tuple(checks.integer("hidden", h, low=1) for h in self.hidden))
        if self.evaluate_every is not None:
            checks.integer("evaluate_every", self.evaluate_every, low=1)
        checks.integer("physical_batch_size", self.physical_batch_size, low=1)
        resolve_device(self.device)

    @property
    def clips(self):
        """Whether per-example gradients are needed at all; without, the loop is plain SGD."""
        return math.isfinite(self.max_grad_norm)


def resolve_device(name):
    """The torch device of that name, if it is here. Nothing falls back to another device by itself."""
    kind, _, number = str(name).partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdigit())):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:<number>', got device={name!r}")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device must be one of this machine's {torch.cuda.device_count()} CUDA device(s), got device={name!r}; "
            "pass device='cpu' to run without"
        )
    return torch.device(str(name))


def train(
    settings,
    train_images,
    train_labels,
    test_images,
    test_labels,
    *,
    num_classes,
    streams,
    progress=None,
    checkpoint=None,
):
    """Train one model; yields one row at each evaluation, the last with the sha256 of the final weights.

    Paper: dplearn, Training a machine learning model with DP-SGD (the algorithm, line by line in ``_step``).
    Args: settings — :class:`DPSGDSettings`;  train_images, test_images — float tensors (n, channels, height, width);
        train_labels, test_labels — integers (n,);  num_classes — outputs of the model;
        streams — :class:`privrob.kinds.Streams`, of which ``init``, ``batches`` and ``noise`` are used;
        progress — called with (step, num_steps) after every step;
        checkpoint — a file: written at each evaluation, and read first if it is there, so that a training that was
        killed goes on from it, to the same bits.
    Yields: dicts. ``step``, ``epoch`` (= step · q), ``test_accuracy`` (None without test records), and of the steps
        since the row before: ``train_loss`` (mean over the drawn records, before their steps; None if none was drawn),
        ``clipped_fraction``, ``median_grad_norm`` (None where norms aren't taken), ``batch_mean``, ``batch_min``,
        ``batch_max``, ``empty_steps``; ``weights_sha256`` (None but in the last). All but the weights and what follows
        from them is about private records and has no guarantee: for the study, not for release.
    """
    run = Training(
        settings, train_images, train_labels, test_images, test_labels, num_classes, streams, progress, checkpoint
    )
    return run.rows()


class Training:
    """The state of one training: weights (``model``), momentum, two generators, the step. :func:`train` runs it."""

    def __init__(
        self, settings, images, labels, test_images, test_labels, num_classes, streams, progress=None, checkpoint=None
    ):
        self.settings, self.progress = settings, progress
        self.device = resolve_device(settings.device)
        num_classes = checks.integer("num_classes", num_classes, low=2)
        self.images, self.labels = _part("train", images, labels, num_classes, self.device)
        self.test_images, self.test_labels = _part("test", test_images, test_labels, num_classes, self.device)
        if len(self.images) == 0:
            raise ValueError("train_images must hold at least 1 record, got 0")
        options = {} if settings.hidden is None else {"hidden": settings.hidden}
        self.model = models.build(
            settings.model,
            in_shape=tuple(self.images.shape[1:]),
            num_classes=num_classes,
            generator=streams.torch("init"),
            activation=settings.activation,
            **options,
        ).to(device=self.device, dtype=self.images.dtype)
        check_model(self.model)
        self.parameters = list(self.model.parameters())
        self.per_example = PerExample(self.model) if settings.clips else None
        self.batches, self.noise = streams.numpy("batches"), streams.torch("noise", self.device)
        self.velocity = [torch.zeros_like(p) for p in self.parameters] if settings.momentum else None
        self.step, self.done = 0, []
        self.file = None if checkpoint is None else Path(checkpoint)
        self.identity = self._identity(streams) if self.file else None
        if self.file and self.file.exists():
            self._restore()

    # ------------------------------------------------------------------------------------------------ the algorithm

    def _step(self, indices):
        """One step on the drawn records; what was seen of them: (losses, norms or None), on the CPU."""
        settings = self.settings
        total = [torch.zeros_like(p) for p in self.parameters]
        losses, norms = [], []
        for chosen in torch.as_tensor(indices, device=self.device).split(settings.physical_batch_size):
            if len(chosen) == 0:  # an empty batch: pure noise
                continue
            images, labels = _take(self.images, chosen), self.labels[chosen]
            if settings.clips:
                batch = self.per_example(images, labels)
                parts = batch.weighted_sum(clip_weights(batch.norms, settings.max_grad_norm))
                losses.append(batch.losses)
                norms.append(batch.norms)
            else:
                each = functional.cross_entropy(self.model(images), labels, reduction="none")
                parts = torch.autograd.grad(each.sum(), self.parameters)
                losses.append(each.detach())
            seen = norms[-1] if settings.clips else losses[-1]
            if not torch.isfinite(seen).all():
                raise FloatingPointError(
                    f"the gradient of a record is not finite at step {self.step + 1}; lower learning_rate "
                    f"(now {settings.learning_rate!r})"
                )
            for sum_, part in zip(total, parts):
                sum_ += part
        self._descend(total)
        return torch.cat(losses).cpu() if losses else None, torch.cat(norms).cpu() if norms else None

    @torch.no_grad()
    def _descend(self, total):
        settings = self.settings
        if settings.noise_multiplier:
            std = settings.noise_multiplier * settings.max_grad_norm
            size = sum(p.numel() for p in self.parameters)
            noise = torch.randn(size, generator=self.noise, device=self.device, dtype=total[0].dtype) * std
            for sum_, part in zip(total, noise.split([p.numel() for p in self.parameters])):
                sum_ += part.view_as(sum_)
        expected = settings.sample_rate * len(self.images)  # never the drawn size
        scale = 1 / expected if expected else 0.0
        for i, (parameter, gradient) in enumerate(zip(self.parameters, total)):
            gradient *= scale
            if self.velocity:
                gradient = self.velocity[i].mul_(settings.momentum).add_(gradient)
            parameter.sub_(gradient, alpha=settings.learning_rate)

    # ------------------------------------------------------------------------------------------------------- rows

    def rows(self):
        yield from self.done
        settings, seen = self.settings, _Seen()
        every = settings.evaluate_every or max(settings.num_steps, 1)
        if self.done and self.done[-1]["weights_sha256"]:
            return
        while self.step < settings.num_steps:
            indices = poisson_batch(self.batches, num_records=len(self.images), sample_rate=settings.sample_rate)
            seen.add(len(indices), *self._step(indices))
            self.step += 1
            if self.progress:
                self.progress(self.step, settings.num_steps)
            if self.step % every == 0 and self.step < settings.num_steps:
                yield self._row(seen)
                seen = _Seen()
        yield self._row(seen)

    def _row(self, seen):
        last = self.step == self.settings.num_steps
        row = {
            "step": self.step,
            "epoch": self.step * self.settings.sample_rate,
            "test_accuracy": self.accuracy(),
            **seen.summary(self.settings.max_grad_norm),
            "weights_sha256": self.weights_sha256() if last else None,
        }
        self.done.append(row)
        if self.file:
            self._save()
        return row

    @torch.no_grad()
    def accuracy(self):
        """Share of test records that are classified right; None if there are none."""
        if len(self.test_images) == 0:
            return None
        right = 0
        for images, labels in zip(
            self.test_images.split(_EVALUATED_AT_ONCE), self.test_labels.split(_EVALUATED_AT_ONCE), strict=True
        ):
            right += int((self.model(images).argmax(1) == labels).sum())
        return right / len(self.test_images)

    def weights_sha256(self):
        """Hash of all parameters, in order, in the layout of their shapes."""
        digest = hashlib.sha256()
        for parameter in self.parameters:
            digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _identity(self, streams):
        """What a checkpoint must agree with: settings (not where or in what portions), streams, data."""
        digest = hashlib.sha256()
        for tensor in (self.images, self.labels, self.test_images, self.test_labels):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        kept = {k: v for k, v in asdict(self.settings).items() if k not in ("device", "physical_batch_size")}
        kept["hidden"] = list(kept["hidden"]) if kept["hidden"] else None
        return {"format": _CHECKPOINT, **kept, "streams": repr(streams), "data_sha256": digest.hexdigest()}

    def _save(self):
        state = {
            "identity": self.identity,
            "step": self.step,
            "rows": self.done,
            "parameters": [p.detach().cpu() for p in self.parameters],
            "velocity": [v.cpu() for v in self.velocity] if self.velocity else None,
            "batches": self.batches.bit_generator.state,
            "noise": self.noise.get_state(),
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        body = buffer.getvalue()
        atomic.write_bytes(self.file, hashlib.sha256(body).digest() + body)

    def _restore(self):
        try:
            content = self.file.read_bytes()
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                raise ValueError("its checksum is another")
            state = torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
            found = state["identity"]
        except Exception as error:
            raise BadCheckpoint(f"checkpoint {self.file} can't be read ({error}); delete it to start again") from error
        other = [k for k in {*self.identity, *found} if found.get(k) != self.identity.get(k)]
        if other:
            raise BadCheckpoint(
                f"checkpoint {self.file} belongs to another training, it differs in {', '.join(sorted(other))}; "
                "delete it or name another file"
            )
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(saved)
            for velocity, saved in zip(self.velocity or [], state["velocity"] or [], strict=True):
                velocity.copy_(saved)
        self.batches.bit_generator.state = state["batches"]
        self.noise.set_state(state["noise"])
        self.step, self.done = state["step"], state["rows"]


class _Seen:
    """What was seen of the batches since the last evaluation."""

    def __init__(self):
        self.sizes, self.losses, self.norms = [], [], []

    def add(self, size, losses, norms):
        self.sizes.append(size)
        if losses is not None:
            self.losses.append(losses)
        if norms is not None:
            self.norms.append(norms)

    def summary(self, max_grad_norm):
        sizes = self.sizes or [0]
        losses = torch.cat(self.losses).double() if self.losses else None
        norms = torch.cat(self.norms) if self.norms else None
        return {
            "train_loss": None if losses is None else float(losses.mean()),
            "clipped_fraction": None if norms is None else float((norms > max_grad_norm).double().mean()),
            "median_grad_norm": None if norms is None else float(np.median(norms.numpy())),
            "batch_mean": sum(sizes) / len(sizes),
            "batch_min": min(sizes),
            "batch_max": max(sizes),
            "empty_steps": self.sizes.count(0),
        }


def _take(images, chosen):
    """Some of the images, still in channels_last order."""
    return channels_last(images[chosen])


def _part(name, images, labels, num_classes, device):
    if not isinstance(images, torch.Tensor) or images.dtype not in (torch.float32, torch.float64) or images.ndim != 4:
        kind = (
            f"{images.dtype}, shape {tuple(images.shape)}"
            if isinstance(images, torch.Tensor)
            else type(images).__name__
        )
        raise TypeError(f"{name}_images must be a float tensor (n, channels, height, width), got {kind}")
    labels = as_labels(f"{name}_labels", labels, num_classes=num_classes, device=device)
    if len(images) != len(labels):
        raise ValueError(f"{name}_labels must be as many as {name}_images, got {len(labels)} for {len(images)}")
    return channels_last(images.to(device)), labels


# ----------------------------------------------------------------------------------------------------------- a cell

_DATA = ("num_records", "num_test", "allow_stand_in", "shape")
_OWN = ("dataset", "normalise", "batch_size", "seed")


def train_cell(settings, *, streams, scratch=None):
    """One training as a cell of a sweep.

    Args: settings — a dict: ``dataset`` (a name for :func:`privrob.learn.datasets.load`) and of its arguments
        ``num_records``, ``num_test``, ``allow_stand_in``, ``shape``; ``normalise``; either ``sample_rate`` or
        ``batch_size`` (the expected one: q = batch_size / n); ``seed`` (tells repetitions apart, the streams see it);
        the rest as in :class:`DPSGDSettings`;
        scratch — a folder of this cell alone, for the checkpoint; None: a killed training begins again.
    Returns: the rows of :func:`train`, each with what was trained on (``data``, ``num_records``, ``sample_rate``).
    """
    settings = dict(settings)
    allowed = [*_DATA, *_OWN, *(f.name for f in fields(DPSGDSettings))]
    for name in settings:
        checks.choice("settings", name, allowed)
    if ("batch_size" in settings) == ("sample_rate" in settings):
        raise ValueError("settings must have either batch_size or sample_rate, got both or none")
    batch_size = settings.pop("batch_size", None)
    own = {name: value for name, value in settings.items() if name not in (*_DATA, *_OWN)}
    DPSGDSettings(**{"sample_rate": 1.0, **own})  # everything else is checked before the data is loaded
    data = datasets.load(settings["dataset"], **_data_arguments(settings))
    num_records = len(data.train_labels)
    if batch_size is not None:
        checks.real("batch_size", batch_size, low=0, high=num_records, hint=f"there are {num_records} records")
        own["sample_rate"] = batch_size / num_records
    ready = DPSGDSettings(**own)
    tensors = data.tensors(normalise=settings.get("normalise", "unit"), device=ready.device)
    arguments = {"num_classes": data.num_classes, "streams": streams}
    checkpoint = scratch and Path(scratch) / "training.pt"
    try:
        rows = list(train(ready, *tensors, **arguments, checkpoint=checkpoint))
    except BadCheckpoint:  # nobody else writes there: it is not worth a question
        checkpoint.unlink()
        rows = list(train(ready, *tensors, **arguments, checkpoint=checkpoint))
    seen = {"data": data.provenance.label, "num_records": num_records, "sample_rate": ready.sample_rate}
    return [{**row, **seen} for row in rows]


def _data_arguments(settings):
    return {name: settings[name] for name in _DATA if settings.get(name) is not None}


def _fingerprint(settings):
    name = settings["dataset"]
    return {name: datasets.fingerprint(name, **_data_arguments(settings))}


train_cell.data = _fingerprint
train_cell.resumes = True
