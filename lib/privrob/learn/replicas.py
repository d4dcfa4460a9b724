r"""Many trainings of one shape in one program: on a GPU a small model alone leaves most of it idle.

Each training keeps what makes it itself: its Poisson samples, noise, corruption, release (with its own F) and records.
Shared is the pass over the records: the weights are stacked, the drawn records padded to one length, and
:mod:`torch.func` gives each record's gradient in each training at once. Rows are those of the trainings alone but
for rounding in the order of sums; noise and samples are the same to the bit.

The gradients are formed one by one, (trainings, records, parameters): ``memory`` bounds how many at once.

Source: ours.
"""

from __future__ import annotations

import copy

import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

_ROUND = 32  # padded lengths are multiples of it, so that few shapes occur


class Together:
    """Trainings that advance in step.

    Args: trainings — fresh :class:`privrob.learn.dpsgd.Training`, all with per-example gradients, models and records of
        the same shapes, on one device;  memory — bytes of gradients at once.
    """

    def __init__(self, trainings, *, memory=2**32):
        self.trainings = list(trainings)
        if not self.trainings:
            raise ValueError("trainings must be at least 1, got none")
        shapes = {shape_of(t) for t in self.trainings}
        if len(shapes) > 1:
            raise ValueError(f"trainings must be of one shape to run together, got {sorted(map(str, shapes))}")
        for t in self.trainings:
            if t.release.per_example is None:
                raise ValueError("trainings must take per-example gradients to run together, got plain SGD")
        names = [name for name, _ in self.trainings[0].model.named_parameters()]
        own = [dict(t.model.named_parameters()) for t in self.trainings]
        self.weights = {name: torch.stack([p[name].detach() for p in own]) for name in names}
        for i, parameters in enumerate(own):
            for name in names:
                parameters[name].data = self.weights[name][i]  # a view: a training's step moves the stack
        model = copy.deepcopy(self.trainings[0].model)

        def loss(weights, image, label):
            return functional.cross_entropy(functional_call(model, weights, (image[None],)), label[None])

        self._gradients = vmap(vmap(grad_and_value(loss), in_dims=(None, 0, 0)))
        self._memory, self._width = memory, sum(w[0].numel() for w in self.weights.values())
        self.given = [Given(t.parameters) for t in self.trainings]
        for t, given in zip(self.trainings, self.given, strict=True):
            t.release.take_gradients_of(given)

    def rows(self):
        """Lists of rows, one a training, when all are done."""
        rows = [[] for _ in self.trainings]
        going = list(range(len(self.trainings)))
        while going := [i for i in going if self.trainings[i].step < self.trainings[i].settings.num_steps]:
            drawn = [self.trainings[i].draw() for i in going]
            for part in self._parts(going, drawn):
                for i, indices, batch in part:
                    self.given[i].batch = batch
                    row = self.trainings[i].advance(indices)
                    if row:
                        rows[i].append(row)
        for i, t in enumerate(self.trainings):
            rows[i].append(t.row())
        return rows

    def _parts(self, going, drawn):
        """(training, its indices, its :class:`Rows`) in portions that fit the memory."""
        length = max(1, max(map(len, drawn)))
        length += -length % _ROUND
        itemsize = next(iter(self.weights.values())).element_size()
        at_once = max(1, int(self._memory // (length * self._width * itemsize)))
        for start in range(0, len(going), at_once):
            members, chosen = going[start : start + at_once], drawn[start : start + at_once]
            yield list(zip(members, chosen, self._taken(members, chosen, length), strict=True))

    def _taken(self, members, chosen, length):
        images, labels = [], []
        for i, indices in zip(members, chosen, strict=True):
            t = self.trainings[i]
            padded = torch.zeros(length, dtype=torch.int64, device=t.device)
            padded[: len(indices)] = torch.as_tensor(indices, device=t.device)
            images.append(t.images[padded])
            labels.append(t.labels[padded])
        whole = len(members) == len(self.trainings)
        weights = self.weights if whole else {n: w[members] for n, w in self.weights.items()}
        gradients, losses = self._gradients(weights, torch.stack(images), torch.stack(labels))
        flat = torch.cat([g.detach().flatten(2) for g in gradients.values()], 2)
        return [Rows(flat[k, : len(own)], losses[k, : len(own)].detach()) for k, own in enumerate(chosen)]


class Given:
    """In place of :class:`privrob.learn.clip.PerExample`: hands out gradients that were formed elsewhere."""

    formed = True

    def __init__(self, parameters):
        self.parameters, self.batch = [p for p in parameters if p.requires_grad], None

    def __call__(self, images, labels):
        if len(labels) != len(self.batch.losses):
            raise ValueError(
                f"physical_batch_size must be at least the batch of trainings that run together, "
                f"{len(self.batch.losses)} records; got portions of {len(labels)}"
            )
        self.batch.shapes = [p.shape for p in self.parameters]
        return self.batch


class Rows:
    """One batch's gradients, formed one by one; as :class:`privrob.learn.clip.Batch`.

    Args: rows — gradients, (B, d);  losses — (B,);  shapes — of the parameters, None: one flat one.
    """

    def __init__(self, rows, losses, shapes=None):
        self.rows, self.losses, self.shapes = rows, losses, shapes
        self.norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)

    def gradients(self):
        """Every record's gradient, (B, d)."""
        return self.rows

    def plus(self, which, noise):
        """The same with something added to some of the rows.

        Args: which — rows, as an index;  noise — what is added, of their shape.
        """
        rows = self.rows.clone()
        rows[which] += noise
        return Rows(rows, self.losses, self.shapes)

    def weighted_sum(self, weights):
        """As of :class:`privrob.learn.clip.Batch`: Σ wᵢ gᵢ, a tensor a parameter; ``weights`` (B,), 0 leaves out NaN
        too.
        """
        used = weights != 0  # 0 · NaN is NaN
        rows = torch.where(used[:, None], self.rows, 0.0)
        flat = weights.to(rows.dtype) @ rows
        return [part.view(shape) for part, shape in zip(flat.split([s.numel() for s in self.shapes]), self.shapes)]


def shape_of(training):
    """What trainings must have in common.

    Args: training — :class:`privrob.learn.dpsgd.Training`.
    """
    names = tuple((n, tuple(p.shape), str(p.dtype)) for n, p in training.model.named_parameters())
    settings = training.settings
    kinds = (settings.model, settings.activation, settings.hidden, str(training.device))
    return (*kinds, tuple(training.images.shape[1:]), training.num_classes, names)


def together(trainings, *, memory=2**32):
    """Rows of all trainings, a list each."""
    return Together(trainings, memory=memory).rows()
