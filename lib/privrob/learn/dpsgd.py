r"""Differentially private SGD (Abadi et al. 2016), and plain SGD in the same loop.

A step takes each record with probability q (a Poisson sample; it may be empty), clips each record's gradient to norm C,
adds the gradients and one Gaussian draw, and divides by the expected batch:

.. math:: \theta \leftarrow \theta - \eta\, \frac{1}{qn} \Big( \sum_{i \in L_t} \bar g_i + N(0, \sigma^2 C^2 I) \Big)

The drawn size appears nowhere: dividing by it would tell it. An empty batch is a step of pure noise.

Everything that is tried to do better is a switch of this one loop: how the gradients are released
(:mod:`privrob.learn.releases`), and what is done with the noisy mean (:mod:`privrob.learn.descent`).

Randomness comes from three named streams: ``init`` (weights), ``batches`` (who is drawn), ``noise``.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from privrob import checks
from privrob.learn import checkpoints, descent, knowing, models, releases
from privrob.learn.batches import as_records, poisson_batch
from privrob.learn.checkpoints import BadCheckpoint  # noqa: F401  (raised by training)
from privrob.learn.clip import check_model
from privrob.learn.corruption import Corruption
from privrob.learn.seen import Seen

_EVALUATED_AT_ONCE = 2500
_CHECKPOINT = 4


@dataclass(frozen=True)
class DPSGDSettings:
    """One training, checked before it starts.

    Paper: dplearn, Training a machine learning model with DP-SGD (the algorithm's inputs and parameters).
    Args: model, activation, hidden — see :func:`privrob.learn.models.build` (``hidden``: widths, for ``mlp`` only);
        sample_rate — q, probability of each record at each step, in [0, 1];
        num_steps — T;  learning_rate — η at the start;
        max_grad_norm — C, infinity for no clipping;  noise_multiplier — σ, the noise has standard deviation σC;
        noise_stages — factors on σ for equal parts of the training, in order: (1.5, 1.0, 0.5) has three;
        optimizer, momentum — of :class:`privrob.learn.descent.Descent`; as on the slide: ``sgd`` and 0;
        final_learning_rate, decay_steps, schedule — of :func:`privrob.learn.descent.step_size`; None, None: constant,
        over all steps;
        corruption, corruption_rate, corruption_std, corruption_options — of the training records:
        :mod:`privrob.learn.corruption`;
        release, release_options — one of :data:`privrob.learn.releases.RELEASES` and what it lets choose;
        evaluate_every — steps between evaluations (the last step is always one), None: only the last;
        evaluate_at — more of them: the number of steps that each of several budgets pays for, say;
        physical_batch_size — at most so many records at once in memory: changes rounding only;
        device — "cpu", "cuda" or "cuda:<number>".
    """

    model: str
    sample_rate: float
    num_steps: int
    learning_rate: float
    max_grad_norm: float
    noise_multiplier: float
    noise_stages: tuple = (1.0,)
    optimizer: str = "sgd"
    momentum: float = 0.0
    final_learning_rate: float | None = None
    decay_steps: int | None = None
    schedule: str = "linear"
    release: str = "clipping"
    release_options: dict | None = None
    activation: str = "relu"
    hidden: tuple | None = None
    evaluate_every: int | None = None
    evaluate_at: tuple = ()
    corruption: str = "none"
    corruption_rate: float = 0.0
    corruption_std: float = 10.0
    corruption_options: dict | None = None
    physical_batch_size: int = 1024
    device: str = "cpu"

    def __post_init__(self):
        checks.choice("model", self.model, models.MODELS)
        checks.choice("activation", self.activation, models.ACTIVATIONS)
        checks.probability("sample_rate", self.sample_rate, hint="pass batch_size / num_records")
        checks.integer("num_steps", self.num_steps, low=0)
        checks.real("learning_rate", self.learning_rate, low=0.0, high=1e30)
        checks.probability("momentum", self.momentum, allow_one=False)
        least, most = releases.clipping.CLIP_NORMS
        if self.max_grad_norm != math.inf:
            checks.real("max_grad_norm", self.max_grad_norm, low=least, high=most, hint="or math.inf: no clipping")
        checks.nonnegative("noise_multiplier", self.noise_multiplier, finite=True)
        if self.noise_multiplier > 0 and math.isinf(self.max_grad_norm):
            raise ValueError(
                f"max_grad_norm must be finite when there is noise, got max_grad_norm={self.max_grad_norm!r} with "
                f"noise_multiplier={self.noise_multiplier!r}; pass noise_multiplier=0 for plain SGD"
            )
        checks.choice("optimizer", self.optimizer, descent.OPTIMIZERS)
        checks.choice("schedule", self.schedule, descent.SCHEDULES)
        if self.final_learning_rate is not None:
            checks.real("final_learning_rate", self.final_learning_rate, low=0.0, high=1e30)
        if self.decay_steps is not None:
            checks.integer("decay_steps", self.decay_steps, low=1)
        if not isinstance(self.noise_stages, (tuple, list)) or not self.noise_stages:
            raise ValueError(f"noise_stages must be a list of at least one factor, got {self.noise_stages!r}")
        stages = tuple(checks.positive("noise_stages", f, finite=True) for f in self.noise_stages)
        object.__setattr__(self, "noise_stages", stages)
        release = releases.make(self.release, self.release_options)
        if self.noise_multiplier > 0 and not release.private:
            raise ValueError(
                f"noise_multiplier must be 0 for release {self.release!r}, which has no private form, got "
                f"noise_multiplier={self.noise_multiplier!r}"
            )
        if release.needs_bound and not self.clips:
            raise ValueError(f"max_grad_norm must be finite for release {self.release!r}, got {self.max_grad_norm!r}")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum must be 0 for optimizer {self.optimizer!r}, got momentum={self.momentum!r}")
        if self.hidden is not None:
            if self.model != "mlp":
                raise ValueError(
                    f"hidden must be None for model {self.model!r}, got hidden={self.hidden!r}; it is for 'mlp'"
                )
            if not isinstance(self.hidden, (tuple, list)):
                raise TypeError(f"hidden must be a list of widths, got hidden={self.hidden!r}")
            object.__setattr__(self, "hidden", tuple(checks.integer("hidden", h, low=1) for h in self.hidden))
        if self.evaluate_every is not None:
            checks.integer("evaluate_every", self.evaluate_every, low=1)
        if not isinstance(self.evaluate_at, (tuple, list)):
            raise TypeError(f"evaluate_at must be a list of steps, got evaluate_at={self.evaluate_at!r}")
        object.__setattr__(
            self, "evaluate_at", tuple(checks.integer("evaluate_at", t, low=1) for t in self.evaluate_at)
        )
        if self.corrupted.of_gradients and not release.bears_faults:
            able = [name for name, kind in releases.RELEASES.items() if kind.bears_faults]
            raise ValueError(f"release must be one of {able} with corruption {self.corruption!r}, got {self.release!r}")
        checks.integer("physical_batch_size", self.physical_batch_size, low=1, high=2**31)
        resolve_device(self.device)

    @property
    def corrupted(self):
        """What is wrong with the training records."""
        return Corruption(self.corruption, self.corruption_rate, self.corruption_std, self.corruption_options)

    @property
    def clips(self):
        """Whether per-example gradients are needed at all; without, the loop is plain SGD."""
        return math.isfinite(self.max_grad_norm)

    def noise_multiplier_at(self, step):
        """σ of a step (from 0)."""
        return self.noise_multiplier * self.noise_stages[step * len(self.noise_stages) // max(self.num_steps, 1)]

    def stages(self):
        """((σ, number of steps), …) in order."""
        count, ends = len(self.noise_stages), []
        for stage in range(1, count + 1):
            ends.append(-(-stage * self.num_steps // count))
        lengths = np.diff([0, *ends]).tolist()
        return tuple((self.noise_multiplier * f, n) for f, n in zip(self.noise_stages, lengths, strict=True) if n)

    def history(self):
        """((guarantee, number of releases), …) of the whole training, for a ledger (``add_remove``, ``poisson``)."""
        return releases.make(self.release, self.release_options).history(self)


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
    public=None,
):
    """Train one model; yields one row at each evaluation, the last with the sha256 of the final weights.

    Paper: dplearn, Training a machine learning model with DP-SGD (the algorithm, line by line in
        :class:`.clipping.Clipping`).
    Args: settings — :class:`DPSGDSettings`;  train_images, test_images — float tensors (n, channels, height, width);
        train_labels, test_labels — integers (n,);  num_classes — outputs of the model;
        streams — :class:`privrob.kinds.Streams`, of which ``init``, ``batches`` and ``noise`` are used;
        progress — called with (step, num_steps) after every step;
        checkpoint — a file: written at each evaluation, and read first if it is there, so that a training that was
        killed goes on from it, to the same bits;
        public — (images, labels) of records without privacy, for the releases that need some.
    Raises: FloatingPointError — the training has diverged: the gradient of a record, or a parameter, isn't finite. With
        ``corruption`` parameters may be anything: that is what is studied.
    Yields: dicts. ``step``, ``epoch`` (= step · q), ``test_accuracy`` (None without test records), and of the steps
        since the row before: ``train_loss`` (mean over the drawn records, before their steps; None if none was drawn),
        ``clipped_fraction``, ``median_grad_norm``, ``grad_norm_10``, ``grad_norm_90`` (deciles), ``largest_grad_norm``
        (all None where norms aren't taken), ``clip_norm`` (C, of the last step), ``batch_mean``, ``batch_min``,
        ``batch_max``, ``empty_steps``, and means over the steps of what else the release has to tell (``passed``,
        ``num_trimmed``, ``num_kept``, ``num_not_finite``); ``weights_sha256`` (None but in the last). All but the
        weights and what follows from them is about private records and has no guarantee: for the study, not for
        release.
    """
    run = Training(
        settings,
        train_images,
        train_labels,
        test_images,
        test_labels,
        num_classes,
        streams,
        progress,
        checkpoint,
        public,
    )
    return run.rows()


class Training:
    """The state of one training: weights (``model``), release, descent, generators, the step. :func:`train` runs it."""

    def __init__(
        self,
        settings,
        images,
        labels,
        test_images,
        test_labels,
        num_classes,
        streams,
        progress=None,
        checkpoint=None,
        public=None,
    ):
        self.settings, self.progress = settings, progress
        self.device = resolve_device(settings.device)
        num_classes = self.num_classes = checks.integer("num_classes", num_classes, low=2)
        self.images, self.labels = as_records("train", images, labels, num_classes, self.device)
        self.test_images, self.test_labels = self._like(
            "test", as_records("test", test_images, test_labels, num_classes, self.device)
        )
        self.public_images, self.public_labels = (None, None) if public is None else self._public(public, num_classes)
        if len(self.images) == 0:
            raise ValueError("train_images must hold at least 1 record, got 0")
        self._corrupt(settings.corrupted, streams)
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
        self.batches, self.noise = streams.numpy("batches"), streams.torch("noise", self.device)
        self.descent = descent.Descent(self.parameters, optimizer=settings.optimizer, momentum=settings.momentum)
        self.step, self.done, self.seen = 0, [], Seen()
        self.release = releases.make(settings.release, settings.release_options)
        self.release.begin(self)
        self.file = None if checkpoint is None else Path(checkpoint)
        self.identity = self._identity(streams) if self.file else None
        if self.file and self.file.exists():
            self._restore()

    def _corrupt(self, corruption, streams):
        """Labels and images now; gradients when they are taken."""
        self.faults = self.corrupted = self.attackers = None
        if corruption.rate:
            self.images, self.labels, self.corrupted = corruption.records(
                self.images, self.labels, num_classes=self.num_classes, streams=streams
            )
            if corruption.kind in knowing.KINDS:
                self.attackers = knowing.Attackers(self, corruption.kind, corruption.rate, corruption.options)
            if corruption.of_gradients:
                self.faults = corruption, self.attackers or streams.torch("corrupted gradients", self.device)

    def _public(self, public, num_classes):
        if not isinstance(public, (tuple, list)) or len(public) != 2:
            raise TypeError(f"public must be (images, labels) or None, got {type(public).__name__}")
        return self._like("public", as_records("public", *public, num_classes, self.device))

    def _like(self, name, part):
        """The part, if its images are of the training images' kind."""
        for what in ("shape", "dtype"):
            theirs, ours = (getattr(v[:1], what) for v in (part[0], self.images))
            if theirs[1:] != ours[1:] if what == "shape" else theirs != ours:
                raise ValueError(f"{name}_images must have the {what} of train_images, got {theirs} for {ours}")
        return part

    def _step(self, indices):
        """One step on the drawn records; what was seen of them."""
        settings = self.settings
        step = self.release.noisy_mean(indices)
        if self.attackers:
            self.attackers.watch(step)
        size = descent.step_size(
            self.step,
            learning_rate=settings.learning_rate,
            final_learning_rate=settings.final_learning_rate,
            decay_steps=settings.decay_steps or settings.num_steps,
            schedule=settings.schedule,
        )
        self.descent.step(step.gradient, size)
        return step

    # ------------------------------------------------------------------------------------------------------- rows

    def rows(self):
        """All steps that are left; yields the rows as they come, those of before first."""
        yield from self.done
        if self.done and self.done[-1]["weights_sha256"]:
            return
        while self.step < self.settings.num_steps:
            row = self.advance(self.draw())
            if row:
                yield row
        yield self.row()

    def draw(self):
        """The records of the next step, as indices."""
        return poisson_batch(self.batches, num_records=len(self.images), sample_rate=self.settings.sample_rate)

    def advance(self, indices):
        """One step on the records at ``indices``; a row where one is due before the last."""
        settings = self.settings
        self.seen.add(len(indices), self._step(indices))
        self.step += 1
        if self.progress:
            self.progress(self.step, settings.num_steps)
        every = settings.evaluate_every or max(settings.num_steps, 1)
        due, last = self.step % every == 0 or self.step in settings.evaluate_at, self.step == settings.num_steps
        if due or last or self.step % descent.LOOK_EVERY == 0:
            self._check_finite()
        return self.row() if due and not last else None

    def _check_finite(self):
        """Ends a training that has diverged, unless records are corrupted: there it is an outcome, with its row."""
        settings = self.settings
        if not settings.corruption_rate:
            about = {"learning_rate": settings.learning_rate}
            about |= {"max_grad_norm": settings.max_grad_norm} if settings.clips else {}
            descent.check_finite(self.parameters, step=self.step, about=about)

    def row(self):
        """What was seen since the row before, and where training stands."""
        last, seen = self.step == self.settings.num_steps, self.seen
        row = {
            "step": self.step,
            "epoch": self.step * self.settings.sample_rate,
            "test_accuracy": self.accuracy(),
            **seen.summary(),
            "clip_norm": self.release.clip_norm if self.settings.clips else None,
            "weights_sha256": self.weights_sha256() if last else None,
        }
        self.done.append(row)
        self.seen = Seen()
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
        public = () if self.public_images is None else (self.public_images, self.public_labels)
        for tensor in (self.images, self.labels, self.test_images, self.test_labels, *public):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            stored = tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor  # as it lies in memory: no copy
            digest.update(stored.cpu().contiguous().numpy())
        kept = {k: v for k, v in asdict(self.settings).items() if k != "physical_batch_size"}
        kept["device"] = self.device.type  # the noise's state is that of its generator
        kept = json.loads(json.dumps({**kept, "num_classes": self.num_classes}, default=_plain))
        return {"format": _CHECKPOINT, **kept, "streams": repr(streams), "data_sha256": digest.hexdigest()}

    def _save(self):
        checkpoints.write(
            self.file,
            self.identity,
            {
                "step": self.step,
                "rows": self.done,
                "parameters": [p.detach().cpu() for p in self.parameters],
                "descent": self.descent.state(),
                "release": self.release.state(),
                "batches": self.batches.bit_generator.state,
                "noise": self.noise.get_state(),
                "faults": self.faults and self.faults[1].get_state(),
            },
        )

    def _restore(self):
        state = checkpoints.read(self.file, self.identity)
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
                parameter.copy_(saved)
        self.descent.restore(state["descent"])
        self.release.restore(state["release"])
        self.batches.bit_generator.state = state["batches"]
        self.noise.set_state(state["noise"])
        if self.faults:
            self.faults[1].set_state(state["faults"])
        self.step, self.done = state["step"], state["rows"]


def _plain(value):
    """A numpy or other number as Python's own."""
    return value.item() if hasattr(value, "item") else float(value)
