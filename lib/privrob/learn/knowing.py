r"""Attackers that know the rule: they send gradients made to pass it, and point them against progress.

An attacker knows what is public: the rule and its numbers (C, τ, F where the rule tells it), the weights and noisy
means released so far, the number of colluders; besides, its own record. So each record's gradient is still a function
of what was released before and of that record alone; adding or removing a record changes one gradient, and the
accountant's numbers stay valid. An attacker that sees the honest gradients *of the batch* is another matter: one record
more would move all that colluders send, and per-example clipping bounds that no longer.

The direction is common and public: minus the running mean of the released noisy means, without what the attackers
expect to have put in. (Before the first release there is none; they send zeros.) The kinds differ in length:

* ``below_bound``: just below τ, so that the sensitivity test does not count them
* ``below_trim``: just below the length at which trimming starts, guessed from public records and F; C without trimming
* ``own_length``: as long as the record's true gradient, so that lengths tell nothing
* ``wrong_label``: not the common direction: the gradient for a wrong label, brought to just below τ
* ``flood``: just above τ: each is counted by the test, so that it fails or F runs up
* ``loud``: C, all that clipping lets in
* ``pulse``: ``loud`` and ``below_bound`` in turns, to keep F where it doesn't fit

Paper: ptr, Section 5 ("arbitrarily skewed"); none of these is tried there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from privrob import checks
from privrob.learn.clip import PerExample

KINDS = ("below_bound", "below_trim", "own_length", "wrong_label", "flood", "loud", "pulse")
_SHADOWS = 256


@dataclass(frozen=True)
class Knowledge:
    """What attackers take the rule's numbers for, and how they use them.

    Args: max_norm — C;  sensitivity_bound — τ as a share of C;  margin — how close they keep to a bound, a share below
        1;  memory — weight of the past in the running mean of what was released;  period — steps of each half of
        ``pulse``;  refresh — steps between guesses of the length at which trimming starts.
    """

    max_norm: float = 1.0
    sensitivity_bound: float = 0.5
    margin: float = 0.99
    memory: float = 0.9
    period: int = 10
    refresh: int = 10

    def __post_init__(self):
        checks.positive("max_norm", self.max_norm, finite=True)
        checks.probability("sensitivity_bound", self.sensitivity_bound, allow_zero=False)
        checks.probability("margin", self.margin, allow_zero=False, allow_one=False)
        checks.probability("memory", self.memory, allow_one=False)
        checks.integer("period", self.period, low=1)
        checks.integer("refresh", self.refresh, low=1)

    @classmethod
    def of(cls, options):
        """From the options given for it."""
        return cls(**checks.options("corruption_options", options, [f.name for f in fields(cls)]))


class Attackers:
    """The corrupted records of one training, acting together on what is public.

    Args: training — :class:`privrob.learn.dpsgd.Training`;  kind — of :data:`KINDS`;  rate — their share of the
        records;  options — of :class:`Knowledge`.
    """

    def __init__(self, training, kind, rate, options):
        self.training, self.kind, self.rate, self.known = training, kind, rate, Knowledge.of(options)
        if kind == "below_trim" and training.public_images is None:
            raise ValueError(
                "corruption 'below_trim' guesses from public records, got none; pass num_public=256, or public=..."
            )
        self.mean = self.shadows = None  # of the released means; lengths of public records' gradients
        self._now = self._public = None
        self._against = None, None  # the mean that the last direction is of, and it

    # -------------------------------------------------------------------------------------------------- what they send

    def faulty(self, batch, bad):
        """The batch with the gradients that the attackers send.

        Args: batch — as of :mod:`privrob.learn.clip`;  bad — marks the attackers' records, (m,).
        """
        if self.kind == "wrong_label":
            return Scaled(batch, bad, self.length() / torch.where(bad & (batch.norms > 0), batch.norms, 1.0))
        lengths = batch.norms if self.kind == "own_length" else torch.full_like(batch.norms, self.length())
        return _Sent(batch, bad, lengths, self.direction())

    def direction(self):
        """Against progress, of length 1: one tensor a parameter, all zero before anything was released."""
        if self.mean is None:
            return [torch.zeros_like(p) for p in self.training.parameters]
        if self._against[0] is not self.mean:
            length = float(torch.cat([m.flatten() for m in self.mean]).double().norm())
            self._against = self.mean, [m / -(length or 1.0) for m in self.mean]
        return self._against[1]

    def length(self):
        """What all of them send at this step."""
        if self._now is None or self._now[0] != self.training.step:
            self._now = self.training.step, self._length()
        return self._now[1]

    def _length(self):
        known = self.known
        bound = known.sensitivity_bound * known.max_norm
        if self.kind == "loud" or (self.kind == "pulse" and self._bursts()):
            return known.max_norm
        if self.kind == "flood":
            return bound / known.margin
        return known.margin * (self._cut() if self.kind == "below_trim" else bound)

    def _bursts(self):
        return self.training.step // self.known.period % 2 == 0

    def _cut(self):
        """About the length above which honest gradients are trimmed, if all attackers stay below it."""
        trimmed = getattr(self.training.release, "num_trimmed", 0)
        honest = (1 - self.rate) * self.training.release.expected
        if not trimmed or not honest:
            return self.known.max_norm
        if self.shadows is None or self.training.step % self.known.refresh == 0:
            images, labels = (part[:_SHADOWS] for part in (self.training.public_images, self.training.public_labels))
            self._public = self._public or PerExample(self.training.model)
            self.shadows = self._public(images, labels).norms
        cut = float(torch.quantile(self.shadows, max(0.0, 1 - trimmed / honest)))
        return min(cut, self.known.max_norm) if self.training.settings.clips else cut

    # --------------------------------------------------------------------------------------------------- what they see

    def watch(self, step):
        """Take note of a release: its noisy mean, whether its test was passed (not what was seen of the records).

        Args: step — :class:`privrob.learn.releases.clipping.Step`.
        """
        told = step.seen or {}
        in_sum = self.kind.startswith("below") or (self.kind == "pulse" and not self._bursts())
        in_sum = in_sum or "num_trimmed" not in told or told.get("passed") == 0.0
        new = step.gradient
        if in_sum and self.kind not in ("own_length", "wrong_label"):
            own = self.rate * min(self.length(), self.training.settings.max_grad_norm)
            new = [g - own * d for g, d in zip(new, self.direction(), strict=True)]
        keep = 0.0 if self.mean is None else self.known.memory
        old = self.mean or new
        self.mean = [(keep * m).add_((1 - keep) * g) for m, g in zip(old, new, strict=True)]

    # As of a generator, whose place they take:

    def get_state(self):
        """What :meth:`set_state` needs."""
        parts = self.mean and [m.cpu() for m in self.mean]
        return {"mean": parts, "shadows": None if self.shadows is None else self.shadows.cpu()}

    def set_state(self, state):
        """Go on from a state."""
        device = self.training.device
        self.mean = state["mean"] and [m.to(device) for m in state["mean"]]
        self.shadows = None if state["shadows"] is None else state["shadows"].to(device)


class Scaled:
    """A batch in which some gradients are multiplied by a number each.

    Args: batch — as of :class:`privrob.learn.clip.Batch`;  bad — which, (m,);  factors — those numbers, (m,).
    """

    def __init__(self, batch, bad, factors):
        self.losses, self._batch = batch.losses, batch
        self._factors = torch.where(bad, factors, torch.ones_like(batch.norms))
        self.norms = batch.norms * self._factors.abs()

    def weighted_sum(self, weights):
        """As of :class:`privrob.learn.clip.Batch`, of the multiplied gradients; ``weights`` (m,)."""
        return self._batch.weighted_sum(weights * self._factors)

    def gradients(self):
        """Every record's multiplied gradient, (m, d)."""
        rows = self._batch.gradients()
        return rows * self._factors[:, None].to(rows.dtype)


class _Sent:
    """A batch in which some gradients are multiples of one vector of length 1 or 0."""

    def __init__(self, batch, bad, lengths, direction):
        self.losses, self._batch, self._direction = batch.losses, batch, direction
        self._sent = bad & (batch.norms < math.inf)
        self._lengths = torch.where(self._sent, lengths, torch.zeros_like(lengths))
        if not any(bool(d.any()) for d in direction):
            self._lengths = torch.zeros_like(lengths)
        self.norms = torch.where(self._sent, self._lengths, batch.norms)

    def weighted_sum(self, weights):
        sums = self._batch.weighted_sum(torch.where(self._sent, torch.zeros_like(weights), weights))
        share = (weights * self._lengths).sum()
        for sum_, part in zip(sums, self._direction, strict=True):
            sum_ += share.to(sum_.dtype) * part
        return sums

    def gradients(self):
        rows = self._batch.gradients()
        vector = torch.cat([d.flatten() for d in self._direction])
        return torch.where(self._sent[:, None], self._lengths[:, None].to(rows.dtype) * vector, rows)
