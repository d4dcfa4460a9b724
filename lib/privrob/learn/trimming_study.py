r"""A training that keeps a record of what its trimming does: whose gradients are the longest, how the tests come out.

Trimming by norm looks at no label and no accuracy. Here, every few steps, the drawn records are told apart before the
step: trimmed or kept (the F longest gradients, or not), corrupted or clean, classified right or wrong by the model as
it is. And a training can be *branched*: from its state at some step, the same draws go on under other settings, to see
what trimming, noise or the step size does from there on.

Paper: ptr, Remark 5.3, Section 5.1 (both observations), A.5.1, B.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from privrob import checks
from privrob.learn import cells, dpsgd
from privrob.learn.batches import channels_last, poisson_batch
from privrob.learn.releases import ProposeTestRelease, Trimmed
from privrob.mechanisms.statistics import TrimmedSum

EDGES = np.linspace(-6.0, 6.0, 121)  # of the histograms: log10 of norms, ten bins a decade
_OWN = (
    "probe_every",
    "trace_steps",
    "histogram_at",
    "gradients_at",
    "num_batches",
    "branches",
    "variant",
    "long_above",
)


@dataclass
class TrimsAtFailure(ProposeTestRelease):
    """TSGD+PTR with f₁ = TSUM: also after a failed test the F longest are left out, with noise σC.

    Paper: ptr, Remark 5.3 (2), the choice it decides against.
    """

    def noisy_mean(self, indices):
        self._drawn = indices
        return super().noisy_mean(indices)

    def _clipped(self, norms):
        return super()._clipped(norms) * self._kept(norms, self._drawn)

    def _told(self, total, norms, losses, kept, **more):
        return super()._told(total, norms, losses, kept * self._kept(norms, self._drawn), **more)


@dataclass
class TrimsAtRandom(Trimmed):
    """As many left out as by TSGD, but any: what is lost by their number alone."""

    def begin(self, training):
        super().begin(training)
        self._chance = training.streams.torch("left out", self.device)

    def _kept(self, norms, indices):
        drawn = torch.rand(len(norms), generator=self._chance, dtype=torch.float64, device=norms.device)
        return super()._kept(drawn, indices)


VARIANTS = {"": None, "trims_at_failure": TrimsAtFailure, "trims_at_random": TrimsAtRandom}


class Probed(dpsgd.Training):
    """A training that looks at its own steps. Call :meth:`run` once.

    Args: settings, tensors — as :class:`privrob.learn.dpsgd.Training`;  num_classes, streams — likewise;
        probe_every — steps between two looks at the records drawn (F, the long ones and the test are seen at every
        step);  long_above — τ as a share of C, where the release has none of its own;
        trace_steps — so many first steps get a row each;  histogram_at — evaluations that give a histogram;
        variant — one of :data:`VARIANTS`.
    """

    def __init__(
        self,
        settings,
        tensors,
        *,
        num_classes,
        streams,
        probe_every,
        long_above=0.5,
        trace_steps=0,
        histogram_at=(),
        variant="",
    ):
        self.streams = streams
        super().__init__(settings, *tensors, num_classes, streams)
        if VARIANTS[variant] is not None:
            self.release = VARIANTS[variant](**(settings.release_options or {}))
            self.release.begin(self)
        self.probe_every = checks.integer("probe_every", probe_every, low=1)
        share = checks.real("long_above", getattr(self.release, "sensitivity_bound", long_above), low=0.0)
        self.bound = share * settings.max_grad_norm  # τ
        self.trace_steps, self.histogram_at = trace_steps, histogram_at
        self.looks, self.trace = [], []
        self.first = 0  # step at which this training began, or was branched off

    def _step(self, indices):
        trimmed = self.release.num_trimmed
        looking = self.step % self.probe_every == 0
        right = self._right(indices) if looking else None
        step = super()._step(indices)
        norms = step.norms if step.norms is not None else torch.zeros(0, dtype=torch.float64)
        long = int((norms > self.bound).sum())
        seen = {**step.seen, "num_long": long, "low_sensitivity": float(long < trimmed)}
        if self.step < self.first + self.trace_steps:
            passed = step.seen.get("passed")
            self.trace.append({"step": self.step + 1, "num_trimmed": trimmed, "num_long": long, "passed": passed})
        if looking and len(norms) == len(indices):  # none that isn't finite
            self.looks.append(self._look(indices, norms.numpy(), right, trimmed))
        return step._replace(seen=seen)

    @torch.no_grad()
    def _right(self, indices):
        """Which of the drawn the model classifies as their (given) label says."""
        if not len(indices):
            return np.zeros(0, dtype=bool)
        chosen = torch.as_tensor(indices, device=self.device)
        return (self.model(channels_last(self.images[chosen])).argmax(1) == self.labels[chosen]).cpu().numpy()

    def _look(self, indices, norms, right, num_trimmed):
        """(norms, trimmed, corrupted, right) of one batch, trimmed as by TSUM with the F of this step."""
        longest = np.zeros(len(norms), dtype=bool)
        order = np.lexsort((indices, norms))
        longest[order[max(len(norms) - num_trimmed, 0) :]] = True
        bad = np.zeros(len(norms), dtype=bool)
        if self.corrupted is not None:
            bad = self.corrupted.cpu().numpy()[indices]
        return norms, longest, bad, right

    @torch.no_grad()
    def accuracy(self):
        """As in training; keeps the accuracy of each class for the row."""
        predicted = [self.model(part).argmax(1) for part in self.test_images.split(2500)]
        hit = torch.cat(predicted or [self.test_labels]) == self.test_labels
        self.of_classes = [_share(hit[self.test_labels == k]) for k in range(self.num_classes)]
        return _share(hit)

    def run(self, *, until=None):
        """Go on to step ``until`` (the last); rows, each with ``what`` it is: ``trace``, ``window`` or
        ``histogram``.
        """
        until = self.settings.num_steps if until is None else until
        while self.step < until:
            row = self.advance(self.draw())
            if row is None and self.step == until:
                row = self.row()
            if row:
                yield from self._rows(row)

    def _rows(self, row):
        yield from ({"what": "trace", **one} for one in self.trace)
        row = {name: value for name, value in row.items() if name not in ("weights_sha256", "clip_norm")}
        classes = {f"accuracy_of_{k}": value for k, value in enumerate(self.of_classes)}
        yield {"what": "window", **row, **classes, **_counted(self.looks)}
        if self.step in self.histogram_at:
            yield from ({"what": "histogram", "step": self.step, **one} for one in _histogram(self.looks))
        self.trace, self.looks = [], []

    def branch(self, changes, make):
        """A training in this one's state that goes on with other settings.

        F is kept, unless the release or where F begins is changed.

        Args: changes — fields of the settings;  make — settings → a training.
        """
        other = make(replace(self.settings, **changes))
        begins = [(s.release, (s.release_options or {}).get("trim_rate")) for s in (self.settings, other.settings)]
        with torch.no_grad():
            for theirs, own in zip(other.parameters, self.parameters, strict=True):
                theirs.copy_(own)
        if begins[0] == begins[1]:
            other.release.restore(self.release.state())
        other.batches.bit_generator.state = self.batches.bit_generator.state
        other.noise.set_state(self.noise.get_state())
        if self.faults:
            other.faults[1].set_state(self.faults[1].get_state())
        other.step = other.first = self.step
        return other


def _share(hit):
    return float(hit.double().mean()) if len(hit) else None


def _counted(looks):
    """Of the records looked at: how many of each kind, ``clean_trimmed_wrong`` and so on."""
    counts = {}
    _, trimmed, bad, right = _joined(looks)
    for group, of_group in (("clean", ~bad), ("corrupted", bad)):
        for place, at_place in (("trimmed", trimmed), ("kept", ~trimmed)):
            for outcome, so in (("right", right), ("wrong", ~right)):
                counts[f"{group}_{place}_{outcome}"] = int((of_group & at_place & so).sum())
    return {"num_looks": len(looks), **counts}


def shares(rows):
    """Rows of kind ``window`` with what their counts say of the records looked at.

    Args: rows — a DataFrame.
    Returns: a DataFrame, the rows and: ``wrong_of_trimmed``, ``wrong_of_kept`` — share of the clean ones there that the
        model misclassifies;  ``trimmed_of_wrong`` — share of the misclassified clean ones that are trimmed;
        ``trimmed_of_clean``, ``trimmed_of_corrupted``;  ``clean_trimmed`` — so many clean ones trimmed a batch. NaN
        where there is none.
    """
    rows, n = rows.copy(), {}
    for place in ("trimmed", "kept"):
        for group in ("clean", "corrupted"):
            n[group, place] = rows[f"{group}_{place}_right"] + rows[f"{group}_{place}_wrong"]
        rows[f"wrong_of_{place}"] = rows[f"clean_{place}_wrong"] / n["clean", place].where(n["clean", place] > 0)
    wrong = rows["clean_trimmed_wrong"] + rows["clean_kept_wrong"]
    rows["trimmed_of_wrong"] = rows["clean_trimmed_wrong"] / wrong.where(wrong > 0)
    for group in ("clean", "corrupted"):
        total = n[group, "trimmed"] + n[group, "kept"]
        rows[f"trimmed_of_{group}"] = n[group, "trimmed"] / total.where(total > 0)
    rows["clean_trimmed"] = n["clean", "trimmed"] / rows["num_looks"].where(rows["num_looks"] > 0)
    return rows


def _joined(looks):
    if not looks:
        return np.zeros(0), *(np.zeros(0, dtype=bool) for _ in range(3))
    return tuple(np.concatenate(part) for part in zip(*looks, strict=True))


def _histogram(looks):
    """Counts of log10 norms in the bins of :data:`EDGES`, by kind; empty bins are left out."""
    norms, trimmed, bad, right = _joined(looks)
    logs = np.clip(np.log10(np.maximum(norms, 1e-300)), EDGES[0], EDGES[-1])
    for kind in sorted({(bool(t), bool(b), bool(r)) for t, b, r in zip(trimmed, bad, right, strict=True)}):
        chosen = (trimmed == kind[0]) & (bad == kind[1]) & (right == kind[2])
        for low, count in zip(EDGES[:-1], np.histogram(logs[chosen], EDGES)[0], strict=True):
            if count:
                yield {
                    "log10_norm": float(low),
                    "trimmed": kind[0],
                    "corrupted": kind[1],
                    "right": kind[2],
                    "count": int(count),
                }


# --------------------------------------------------------------------------------------------- what one record can move


def largest_moves(rows, others, *, num_trimmed, max_norm, bound):
    """By how much SUM and TSUM_F move when one record is taken away, or one of others is added: every one is tried.

    Paper: ptr, A.5.1 and Theorem 5.1 (which bounds TSUM's).
    Args: rows, others — gradients before clipping, one a row, (m, d) and (k, d);  num_trimmed — F;
        max_norm — R;  bound — τ.
    Returns: dict: ``sum_moved``, ``trimmed_moved`` (the largest l2 changes); ``trimmed_bound`` (its local sensitivity,
        Theorem 5.1);  ``margin`` (Δ of TSUM at τ).
    """
    max_norm = checks.positive("max_norm", max_norm, finite=True)
    statistic = TrimmedSum(num_trimmed, max_norm)
    each = np.concatenate([checks.array("rows", rows, ndim=2), checks.array("others", others, ndim=2)])
    count, norms = len(rows), np.sqrt((each * each).sum(axis=1))
    clipped = each * np.minimum(1.0, max_norm / np.maximum(norms, 1e-300))[:, None]
    order = np.argsort(norms, kind="stable")

    def weights(members, trimmed):
        """1 for what a sum over these members holds."""
        chosen = np.zeros(len(each))
        inside = order[members[order]]
        chosen[inside[: max(len(inside) - trimmed, 0)]] = 1.0
        return chosen

    moved = {}
    for name, trimmed in (("sum", 0), ("trimmed", num_trimmed)):
        base, differences = weights(np.arange(len(each)) < count, trimmed), []
        for record in range(len(each)):
            members = np.arange(len(each)) < count
            members[record] = record >= count
            differences.append(weights(members, trimmed) - base)
        sums = np.array(differences).reshape(-1, len(each)) @ clipped
        moved[f"{name}_moved"] = float(np.sqrt((sums * sums).sum(axis=1)).max(initial=0.0))
    return {
        **moved,
        "trimmed_bound": statistic.local_sensitivity(rows),
        "margin": statistic.safety_margin(rows, bound=bound),
    }


def _moves(training, generator, num_batches):
    """:func:`largest_moves` on so many fresh batches, each against a few other records."""
    settings, count = training.settings, len(training.images)
    for batch in range(num_batches):
        drawn = poisson_batch(generator, num_records=count, sample_rate=settings.sample_rate)
        more = generator.choice(count, min(64, count), replace=False)
        rows, others = (_gradients(training, chosen) for chosen in (drawn, more))
        for trimmed in sorted({round(0.25 * training.release.expected), training.release.num_trimmed}):
            found = largest_moves(
                rows, others, num_trimmed=trimmed, max_norm=settings.max_grad_norm, bound=training.bound
            )
            yield {"what": "moves", "step": training.step, "batch": batch, "num_trimmed": trimmed, **found}


def _gradients(training, indices):
    """Per-example gradients (m, d), corrupted ones as they arrive without what noise would be drawn for them."""
    if not len(indices):
        return np.zeros((0, sum(p.numel() for p in training.parameters)))
    chosen = torch.as_tensor(indices, device=training.device)
    source = getattr(training.release.per_example, "per_example", training.release.per_example)
    batch = source(channels_last(training.images[chosen]), training.labels[chosen])
    return batch.gradients().double().cpu().numpy()


# ------------------------------------------------------------------------------------------------------------ as a cell


def study_cell(settings, *, streams):
    """One training with its branches, as a cell of a sweep.

    Args: settings — as of :func:`privrob.learn.cells.train_cell`, for the releases ``trimmed`` and
        ``propose_test_release``, and: ``probe_every``, ``long_above``, ``trace_steps``, ``histogram_at``,
        ``variant`` — of :class:`Probed`;  ``gradients_at``, ``num_batches`` — at these steps :func:`largest_moves`
        on so many batches;  ``branches`` — name to ``{"at": step, …settings that change}``; a branch ends at its own
        ``num_steps``.
    Returns: rows, each with ``what``, ``branch`` ("" for the trunk), ``step`` and ``data``.
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a dict of names and values, got {type(settings).__name__}")
    own = {name: settings[name] for name in _OWN if name in settings}
    ready, tensors, arguments, seen = cells._prepared(
        {name: value for name, value in settings.items() if name not in _OWN}, streams
    )
    checks.choice("release", ready.release, ["trimmed", "propose_test_release"])
    variant = checks.choice("variant", own.get("variant", ""), VARIANTS)
    branches = own.get("branches", {})
    for name, changes in branches.items():
        checks.integer(f"branches[{name!r}]['at']", changes.get("at"), low=0, high=ready.num_steps)
    how = {"num_classes": arguments["num_classes"], "streams": streams, "variant": variant}
    how |= {name: own[name] for name in ("probe_every", "long_above", "trace_steps", "histogram_at") if name in own}

    def make(changed):
        return Probed(changed, tensors, **how)

    return [{**row, "data": seen["data"]} for row in _study(make(ready), make, own, branches, streams)]


def _study(trunk, make, own, branches, streams):
    looks_at, generator = set(own.get("gradients_at", ())), streams.numpy("batches of gradients")
    stops = {trunk.settings.num_steps, *looks_at, *(c["at"] for c in branches.values())}
    for stop in sorted(s for s in stops if s <= trunk.settings.num_steps):
        for row in trunk.run(until=stop):
            yield {"branch": "", **row}
        if stop in looks_at:
            yield from ({"branch": "", **row} for row in _moves(trunk, generator, own.get("num_batches", 1)))
        for name, changes in branches.items():
            if changes["at"] == stop:
                others = {k: v for k, v in changes.items() if k != "at"}
                yield from ({"branch": name, **row} for row in trunk.branch(others, make).run())


study_cell.data = cells.train_cell.data


# -------------------------------------------------------------------------------------------------------- by the letter


def algorithm_2(model, images, labels, *, batches, noise, settings):
    """Algorithms 2 and 3 line by line on the given batches: one record at a time, NumPy, no part of the library's loop.

    Paper: ptr, Algorithms 2 and 3.
    Printed: line 12 takes ω from the descent, and line 10 throws it away; sorted after clipping.   Used: PTR-TMEAN
        returns (g̃, ω); sorted before clipping; θ is divided by the expected batch as well.
    Args: model — a module, left alone;  images, labels — the records;  batches — indices of each step;  noise —
        ``noise(step)`` gives one draw of Lap(0, 1) and d of N(0, 1);
        settings — dict: ``learning_rate``, ``max_norm``, ``sensitivity_bound`` (τ), ``noise_multiplier``,
        ``laplace_scale``, ``test_failure``, ``expected``, ``num_trimmed``, ``step``, ``most``.
    Returns: weights (d,) after the last step, and (F, passed) of each step.
    """
    s, passed_at = settings, []
    weights = np.concatenate([p.detach().double().numpy().ravel() for p in model.parameters()])
    trimmed, bound = s["num_trimmed"], s["max_norm"]
    for step, drawn in enumerate(batches):
        _load(model, weights)
        rows = [_gradient(model, images[i : i + 1], labels[i : i + 1]) for i in drawn]
        lengths = [math.sqrt(float(g @ g)) for g in rows]
        shortened = [g * min(1.0, bound / n) if n else g for g, n in zip(rows, lengths, strict=True)]
        kept = sorted(range(len(rows)), key=lambda i: (lengths[i], drawn[i]))[: max(len(rows) - trimmed, 0)]
        # line 1 of Algorithm 3: the least r with LS^(r) > τ, by Theorem 5.1, one r after another
        in_order = sorted(min(n, bound) for n in lengths)
        margin = 0
        while margin < trimmed:
            rank = len(in_order) - trimmed + 1 + margin
            if rank > 0 and in_order[rank - 1] > s["sensitivity_bound"]:
                break
            margin += 1
        laplace, gaussian = noise(step)
        passed = margin + s["laplace_scale"] * laplace > s["laplace_scale"] * math.log(1 / (2 * s["test_failure"]))
        total = np.zeros_like(weights)
        for i in kept if passed else range(len(rows)):
            total += shortened[i]
        total += s["noise_multiplier"] * (s["sensitivity_bound"] if passed else bound) * gaussian
        weights = weights - s["learning_rate"] * total / s["expected"]
        passed_at.append((trimmed, passed))
        trimmed = max(trimmed - s["step"], 0) if passed else min(trimmed + s["step"], s["most"])
    _load(model, weights)
    return weights, passed_at


def _load(model, weights):
    place = 0
    with torch.no_grad():
        for p in model.parameters():
            part = weights[place : place + p.numel()]
            p.copy_(torch.from_numpy(part).view(p.shape))
            place += p.numel()


def _gradient(model, image, label):
    loss = torch.nn.functional.cross_entropy(model(image), label)
    return np.concatenate([g.double().numpy().ravel() for g in torch.autograd.grad(loss, list(model.parameters()))])
