r"""Leave out the longest gradients of a batch; with Propose-Test-Release, pay less noise for it where that is safe.

What is trimmed is decided by the gradients' lengths *before* they are clipped (after, the long ones are all equal),
ties by the records' places in the data set: an order that adding or removing a record doesn't change. F, its step and
the divisor come from the expected batch qn, never from the drawn one. Each is a matter of privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from privrob import checks
from privrob.accounting import ptr
from privrob.learn.clip import clip_weights
from privrob.learn.releases.clipping import Clipping
from privrob.mechanisms.ptr import adjust_num_trimmed
from privrob.mechanisms.sampled import PoissonSampled

RULES = ("remark_5_3", "as_printed")


def shortest_first(norms, indices):
    """Positions in the order that trimming takes, as an array: by length, ties by the records' places.

    Args: norms — lengths, a tensor (m,);  indices — the records' places.
    """
    return np.lexsort((np.asarray(indices), norms.cpu().numpy()))


@dataclass
class Trimmed(Clipping):
    r"""TSGD: the sum of the clipped gradients but for the F longest.

    Adding or removing a record moves it by at most C, as it moves the whole sum: TSGD+Gaussian is as private as DP-SGD
    at the same σ. Without clipping and noise it is robust SGD.

    A gradient that isn't finite counts as the longest and contributes nothing.

    Paper: ptr, Section 5 (TSGD+Gaussian), B.1.3 (F is a quarter of the batch).
    Args: trim_rate — F as a share of the expected batch; 0 is DP-SGD.
    """

    by_norm: ClassVar[bool] = True

    trim_rate: float = 0.25

    def __post_init__(self):
        checks.probability("trim_rate", self.trim_rate)

    def begin(self, training):
        super().begin(training)
        self.num_trimmed = round(self.trim_rate * self.expected)

    def noisy_mean(self, indices):
        norms, losses, weighted = self._taken(indices)
        kept = self._kept(norms, indices)
        total = weighted(kept * self._clipped(norms))
        self._add_noise(total, self.sigma * self.clip_norm if self.sigma else 0.0)
        return self._told(total, norms, losses, kept)

    def _told(self, total, norms, losses, kept, **more):
        """The step, and what was seen on the way."""
        finite = norms < math.inf
        bad = len(norms) - int(finite.sum())
        step = self._step(total, ([losses], [norms[finite] if bad else norms]) if len(losses) else ([], []))
        counts = {"num_trimmed": self.num_trimmed, "num_kept": int(kept.sum()), "num_not_finite": bad}
        return step._replace(seen=more | counts)

    def _taken(self, indices):
        """Norms and losses of the drawn, and what sums their gradients by weights. Many are taken twice."""
        batches, source = list(self._batches(indices)), self._noise_of_gradients()
        norms, losses, last = [torch.zeros(0, dtype=torch.float64, device=self.device)], [torch.zeros(0)], None
        before = []  # states of what adds noise to gradients: the second time they must be the same gradients
        for drawn in batches:
            before.append(source and source.get_state())
            last = self.per_example(*drawn)
            norms.append(last.norms)
            losses.append(last.losses.cpu())
        norms = torch.cat(norms)
        finite = norms < math.inf  # NaN isn't
        all_finite = bool(finite.all())

        def weighted(weights):
            if len(batches) == 1 and (self.per_example.formed or all_finite):
                return last.weighted_sum(weights)
            total = [torch.zeros_like(p) for p in self.per_example.parameters]
            sizes = [len(drawn[1]) for drawn in batches]
            for drawn, own, good, state in zip(batches, weights.split(sizes), finite.split(sizes), before):
                if not good.any():
                    continue
                if source and good.all():
                    parts = self._again(drawn, source, state).weighted_sum(own)
                elif source:  # 0 · NaN is NaN: those that aren't finite must not be in the sum
                    rows = self._again(drawn, source, state).gradients()[good]
                    parts = (own[good].to(rows.dtype) @ rows).split([sum_.numel() for sum_ in total])
                else:
                    parts = self.per_example(*(part[good] for part in drawn)).weighted_sum(own[good])
                for sum_, part in zip(total, parts):
                    sum_ += part.view(sum_.shape)
            return total

        return norms if all_finite else torch.where(finite, norms, math.inf), torch.cat(losses[1:] or losses), weighted

    def _noise_of_gradients(self):
        """The generator that adds noise to corrupted gradients as they are taken; None: they are always the same."""
        source = self.training.faults and self.training.faults[1]
        return source if isinstance(source, torch.Generator) else None

    def _again(self, drawn, source, state):
        """The same gradients once more, with the same noise on the corrupted ones; draws that follow are as before."""
        after = source.get_state()
        source.set_state(state)
        batch = self.per_example(*drawn)
        source.set_state(after)
        return batch

    def _kept(self, norms, indices):
        """1 for those that stay, 0 for the F longest."""
        kept = np.ones(len(norms))
        if self.num_trimmed:
            kept[shortest_first(norms, indices)[max(len(norms) - self.num_trimmed, 0) :]] = 0.0
        return torch.from_numpy(kept).to(norms)

    def _clipped(self, norms):
        """Clip factors; 0 for what isn't finite."""
        return torch.where(norms < math.inf, clip_weights(norms, self.clip_norm), 0.0)


@dataclass
class ProposeTestRelease(Trimmed):
    r"""TSGD+PTR: propose that one record more or less moves the trimmed sum by at most τ; test it; release.

    The safety margin, :math:`\Delta = \max(0, F - \#\{i : \min(n_i, C) > \tau\})`, gets Laplace noise of scale b. Above
    the threshold :math:`b \log(1/(2\delta_0))` the trimmed sum is released with noise στ, else the whole sum with σC,
    and F moves: more after a failed test, less after a passed one.

    Paper: ptr, Algorithms 2 and 3; Theorem 5.1 (the margin); Remark 5.3 (F).
    Printed: B.1.3 moves F the other way round (``rule="as_printed"``): it runs away.   Used: ``rule="remark_5_3"``.
    Args: trim_rate — F at the start, as a share of the expected batch;  sensitivity_bound — τ as a share of C;
        laplace_scale — b, in records;  test_failure — δ₀;  trim_step — what F moves by, and  most_trimmed — what it
        stays at or below, as shares of the expected batch;  rule — one of :data:`RULES`.
    """

    needs_bound: ClassVar[bool] = True

    sensitivity_bound: float = 0.5
    laplace_scale: float = 1.0
    test_failure: float = 1e-8
    trim_step: float = 0.02
    most_trimmed: float = 0.9
    rule: str = "remark_5_3"

    def __post_init__(self):
        super().__post_init__()
        self.of_step(1.0)  # its checks
        checks.probability("trim_step", self.trim_step)
        checks.probability("most_trimmed", self.most_trimmed)
        checks.choice("rule", self.rule, RULES)
        if self.trim_rate > self.most_trimmed:
            raise ValueError(
                f"trim_rate must be at most most_trimmed={self.most_trimmed!r}, got trim_rate={self.trim_rate!r}"
            )

    def of_step(self, noise_multiplier):
        """What a step is to the accountant. Args: noise_multiplier — σ."""
        return ptr.Settings.of(
            noise_multiplier=noise_multiplier,
            sensitivity_bound=self.sensitivity_bound,
            scale_ratio=self.laplace_scale,
            test_failure=self.test_failure,
        )

    def history(self, settings):
        if not settings.noise_multiplier:
            return super().history(settings)  # without noise no test helps
        rate = settings.sample_rate
        return tuple((PoissonSampled(self.of_step(sigma), rate), count) for sigma, count in settings.stages())

    @property
    def threshold(self):
        """b log(1/(2δ₀)), in records."""
        return -self.laplace_scale * math.log(2 * self.test_failure)

    def safety_margin(self, norms):
        """Records to add or remove before the trimmed sum could move by more than τ.

        Args: norms — of the gradients, (m,).
        """
        longer = torch.clamp(norms, max=self.clip_norm) > self.sensitivity_bound * self.clip_norm
        return max(0, self.num_trimmed - int(longer.sum()))

    def noisy_mean(self, indices):
        norms, losses, weighted = self._taken(indices)
        margin = self.safety_margin(norms) + self._laplace()
        passed = margin > self.threshold
        kept = self._kept(norms, indices) if passed else torch.ones_like(norms)
        total = weighted(kept * self._clipped(norms))
        self._add_noise(total, self.sigma * self.clip_norm * (self.sensitivity_bound if passed else 1.0))
        step = self._told(total, norms, losses, kept, passed=float(passed))
        step_size, high = round(self.trim_step * self.expected), math.floor(self.most_trimmed * self.expected)
        self.num_trimmed = adjust_num_trimmed(
            self.num_trimmed, passed=passed, step=step_size, low=0, high=high, rule=self.rule
        )
        return step

    def _laplace(self):
        """One draw of the margin's noise."""
        one, two = torch.empty(2, dtype=torch.float64, device=self.device).exponential_(generator=self.training.noise)
        return self.laplace_scale * float(one - two)

    def state(self):
        return {"num_trimmed": self.num_trimmed}

    def restore(self, state):
        self.num_trimmed = state["num_trimmed"]
