"""Propose-Test-Release: a robust answer with little noise where the data is far from trouble, else one with much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privrob import checks
from privrob.accounting import ptr as accounting
from privrob.kinds import NotAvailable
from privrob.mechanisms.noise import Gaussian, Laplace
from privrob.mechanisms.statistics import RobustStatistic, Statistic, Sum, TrimmedSum


@dataclass(frozen=True)
class Released:
    """What one run tells: the noisy answer (None where refused), the noisy safety margin, the outcome of the test.

    They are ``value``, ``noisy_margin`` and ``passed``.
    """

    value: float | np.ndarray | None
    noisy_margin: float
    passed: bool


@dataclass(frozen=True)
class ProposeTestRelease:
    r"""Propose a sensitivity bound τ, test it, release.

    The safety margin Δ of the robust statistic f₂ (edits to a local sensitivity above τ) gets Laplace noise of scale
    b. Up to the threshold B = b log(1/(2δ₀)) the test has failed, and f₁ is released with noise σ₁; above it, f₂ with
    noise σ₂. Where the margin is 0 the test passes by mistake with probability δ₀. The noisy margin is part of what
    is released. With σ₁ infinite the failed test refuses to answer: the Propose-Test-Release of the textbooks.

    Paper: ptr, Algorithm 1 and Remark 4.1.
    Printed: σ₁ > σ₂.   Used: σ₁ ≥ σ₂; equal noise is a case to compare with.
    Assumes: adding or removing one record, for the sensitivities and the margin alike.
    Args: target — f₁ (a :class:`.Statistic`);  robust — f₂ (a :class:`.RobustStatistic`), with answers of f₁'s shape;
        sensitivity_bound — τ > 0, in f₂'s units;  noise_std — σ₁, in f₁'s units, infinite to refuse;
        robust_noise_std — σ₂, in f₂'s units;  laplace_scale — b, in records (Δ has sensitivity 1);
        test_failure — δ₀ in (0, 1/2);  noise — law of the release's noise, "gaussian" or "laplace" (coordinates by
        themselves, standard deviations σ₁ and σ₂). Remark 4.1(2) allows it; no guarantee is stated for "laplace".
    """

    takes_records: ClassVar[bool] = True  # a sample is handed over row by row, not as a sum

    target: Statistic
    robust: RobustStatistic
    sensitivity_bound: float
    noise_std: float
    robust_noise_std: float
    laplace_scale: float
    test_failure: float
    noise: str = "gaussian"

    def __post_init__(self):
        for name, kind in (("target", Statistic), ("robust", RobustStatistic)):
            if not isinstance(getattr(self, name), kind):
                needs = "sensitivity and value" + (" and safety_margin" if kind is RobustStatistic else "")
                raise TypeError(f"{name} must have {needs}, got {type(getattr(self, name)).__name__}")
        checks.positive("sensitivity_bound", self.sensitivity_bound, finite=True)
        checks.positive("robust_noise_std", self.robust_noise_std, finite=True)
        checks.real(
            "noise_std",
            self.noise_std,
            low=float(self.robust_noise_std),
            hint="a failed test gets no less noise than a passed one; pass math.inf to refuse",
        )
        checks.positive("laplace_scale", self.laplace_scale, finite=True)
        checks.real(
            "test_failure",
            self.test_failure,
            low=0.0,
            high=0.5,
            open_low=True,
            open_high=True,
            hint="at 1/2 the threshold is 0, at 0 it is infinite and no test passes",
        )
        checks.choice("noise", self.noise, ["gaussian", "laplace"])

    @property
    def threshold(self):
        """B = b log(1/(2δ₀)), in records: Laplace noise of scale b exceeds it with probability δ₀."""
        return -self.laplace_scale * math.log(2 * self.test_failure)

    def _answers(self, data):
        """The margin and both answers, without noise."""
        margin = self.robust.safety_margin(data, bound=self.sensitivity_bound)
        failed, passed = (np.asarray(f.value(data), dtype=np.float64) for f in (self.target, self.robust))
        if failed.shape != passed.shape:
            raise ValueError(
                f"target and robust must answer in one shape, got {failed.shape} and {passed.shape}; else the shape "
                "of the answer would tell the outcome of the test"
            )
        return margin, failed, passed

    def _law(self, std):
        """The noise of one coordinate of an answer."""
        return Gaussian(std, 1.0) if self.noise == "gaussian" else Laplace(std / math.sqrt(2), 1.0)

    def release(self, data, *, rng):
        """One run on ``data``: a :class:`Released`."""
        values, margins, passed = self.release_many(data, 1, rng=rng)
        refused = not passed[0] and math.isinf(self.noise_std)
        return Released(None if refused else values[0], float(margins[0]), bool(passed[0]))

    def release_many(self, data, num_releases, *, rng):
        """That many independent runs on the same data; the margin and both answers are computed once.

        Args: num_releases — k.
        Returns: values, shape (k, …), NaN where refused;  noisy margins, shape (k,);  passed, shape (k,).
        """
        num_releases = checks.integer("num_releases", num_releases, low=0)
        margin, failed_answer, passed_answer = self._answers(data)
        margins = margin + rng.laplace(0.0, self.laplace_scale, num_releases)
        passed = margins > self.threshold
        values = np.full((num_releases, *passed_answer.shape), math.nan)
        branches = ((passed, passed_answer, self.robust_noise_std), (~passed, failed_answer, self.noise_std))
        for chosen, answer, std in branches:
            if std < math.inf:
                answers = np.broadcast_to(answer, (np.count_nonzero(chosen), *answer.shape))
                values[chosen] = self._law(std).release(answers, rng=rng)
        return values, margins, passed

    def log_density(self, values, noisy_margins, data):
        """Log likelihood of outputs given the data, for attacks: that of the margin plus that of the value.

        A refusal (a NaN value, where the test failed and σ₁ is infinite) has the margin's alone. A margin that is
        infinite by construction carries no information: 0.

        Args: values — shape (k, …), noisy_margins — shape (k,): as :meth:`release_many` returns them.
        Returns: shape (k,); −inf for outputs that cannot occur.
        """
        margin, failed_answer, passed_answer = self._answers(data)
        values = checks.array("values", values, finite=False)
        margins = checks.array("noisy_margins", noisy_margins, ndim=1, finite=False)
        if values.shape != margins.shape + passed_answer.shape:
            want = margins.shape + passed_answer.shape
            raise ValueError(f"values must have one answer for each noisy margin, shape {want}, got {values.shape}")
        passed = margins > self.threshold
        refusable = ~passed if math.isinf(self.noise_std) else np.zeros_like(passed)
        coordinates = tuple(range(1, values.ndim))
        refused = np.isnan(values).all(axis=coordinates)
        if np.isnan(margins).any() or np.isnan(values[~(refusable & refused)]).any():
            raise ValueError("noisy_margins and values must not be NaN, except values where the test refused to answer")
        if math.isinf(margin):
            result = np.where(margins == math.inf, 0.0, -math.inf)
        else:
            result = np.asarray(Laplace(self.laplace_scale, 1.0).log_density(margins - margin))
        result[refusable & ~refused] = -math.inf
        for chosen, answer, std in (
            (passed, passed_answer, self.robust_noise_std),
            (~passed & ~refusable, failed_answer, self.noise_std),
        ):
            if chosen.any():
                result[chosen] += self._law(std).log_density(values[chosen] - answer).sum(axis=coordinates)
        return result

    @property
    def settings(self):
        """The accountant's view: noises by sensitivity. The guarantees below are those of these settings."""
        if self.noise != "gaussian":
            raise NotAvailable("Propose-Test-Release states its guarantee for Gaussian noise; pass noise='gaussian'")
        return accounting.Settings(
            noise_multiplier=_ratio(self.noise_std, self.target.sensitivity),
            robust_noise_multiplier=_ratio(self.robust_noise_std, self.robust.sensitivity),
            scale_ratio=float(self.laplace_scale),
            test_failure=float(self.test_failure),
            passed_noise_multiplier=_ratio(self.robust_noise_std, self.sensitivity_bound),
        )

    def rdp(self, orders, *, neighbouring, sampling):
        """Rényi curve in nats, shape (k,): see the accountant of :attr:`settings`.

        Side: upper.
        """
        return self.settings.rdp(orders, neighbouring=neighbouring, sampling=sampling)

    def pairs(self, *, neighbouring, sampling):
        """Dominating pairs: see the accountant of :attr:`settings`."""
        return self.settings.pairs(neighbouring=neighbouring, sampling=sampling)

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error: see the accountant of :attr:`settings`."""
        return self.settings.tradeoff(type1, neighbouring=neighbouring, sampling=sampling)

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε at this δ: see the accountant of :attr:`settings`."""
        return self.settings.epsilon(delta, neighbouring=neighbouring, sampling=sampling)

    def composed_epsilon(self, count, delta, *, neighbouring, sampling):
        """ε of so many runs: see the accountant of :attr:`settings`.

        Side: upper.
        Args: count — of runs.
        """
        return self.settings.composed_epsilon(count, delta, neighbouring=neighbouring, sampling=sampling)

    def sampled_rdp(self, orders, *, sample_rate, neighbouring):
        """Rényi curve on a Poisson sample: see the accountant of :attr:`settings`.

        Side: upper.
        """
        return self.settings.sampled_rdp(orders, sample_rate=sample_rate, neighbouring=neighbouring)

    def sampled_epsilon(self, count, delta, *, sample_rate, neighbouring):
        """ε of so many runs on Poisson samples: see the accountant of :attr:`settings`.

        Side: upper.
        Args: count — of runs.
        """
        return self.settings.sampled_epsilon(count, delta, sample_rate=sample_rate, neighbouring=neighbouring)


def _ratio(std, sensitivity):
    """Noise by sensitivity; endless noise hides any sensitivity."""
    return math.inf if math.isinf(std) else float(std) / float(sensitivity)


def ptr_tmean(num_trimmed, *, max_norm, sensitivity_bound, noise_multiplier, laplace_scale, test_failure):
    """PTR-TMEAN: SUM with noise σR where the test fails, TSUM_F with noise στ where it passes.

    Paper: ptr, Algorithm 3. It sums, in spite of its name; the divisor belongs to the descent.
    Args: num_trimmed — F, not a function of the drawn batch;  max_norm — R;  sensitivity_bound — τ ≤ R, in R's units;
        noise_multiplier — σ, unitless;  laplace_scale — b, in records;  test_failure — δ₀.
    """
    sigma = checks.positive("noise_multiplier", noise_multiplier, finite=True)
    max_norm = checks.positive("max_norm", max_norm, finite=True)
    tau = checks.real("sensitivity_bound", sensitivity_bound, low=0.0, high=max_norm, open_low=True, hint="τ ≤ R")
    return ProposeTestRelease(
        target=Sum(max_norm),
        robust=TrimmedSum(num_trimmed, max_norm),
        sensitivity_bound=tau,
        noise_std=sigma * max_norm,
        robust_noise_std=sigma * tau,
        laplace_scale=laplace_scale,
        test_failure=test_failure,
    )


def adjust_num_trimmed(num_trimmed, *, passed, step, low, high, rule="remark_5_3"):
    """F for the next iteration: more after a failed test, less after a passed one, kept within [low, high].

    It only reads the outcome of the test, which is released, so it costs no privacy. F settles where half the tests
    pass: near c + B, with c the number of gradients longer than τ and B the threshold.

    Paper: ptr, Remark 5.3 and Algorithm 2.
    Printed: B.1.3 has it the other way round (``rule="as_printed"``): F runs away, to all trimmed or to none.
    Args: num_trimmed — F;  passed — the test's outcome;  step — records;  low, high — the range of F, not a function of
        a drawn batch.
    """
    num_trimmed = checks.integer("num_trimmed", num_trimmed, low=0)
    step, low = checks.integer("step", step, low=0), checks.integer("low", low, low=0)
    high = checks.integer("high", high, low=low)
    checks.choice("rule", rule, ["remark_5_3", "as_printed"])
    increase = bool(passed) == (rule == "as_printed")
    return min(max(num_trimmed + (step if increase else -step), low), high)
