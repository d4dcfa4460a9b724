r"""PRIME: private and robust mean estimation. Algorithms 9, 10, 11 (12, 13 interactive) and 3, 15, 16 (heavy tails).

One loop in four variants. ``as_printed``: constants and noises of the document. ``tuned``: a step that filters, all
noise Normal with its μ² adding up to the budget, sensitivities as they are, noisy points kept in the region. ``ball``
(the default): also clips to a ball about a refined centre, whose squared diameter is some 20 times less at d = 100.
``as_released`` (:mod:`privrob.robust.released`): what the authors' script does. **Not private.**

An analyst sees the trace; the records stay with :class:`privrob.robust.curator.Curator`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from privrob import checks
from privrob.mechanisms.ranges import HeavyTailedRange, Located, PrivateRange
from privrob.robust import mmw, noiseplan
from privrob.robust.curator import Curator, Step
from privrob.robust.filtering import Outcome, check_data, check_location, refused, stop_level
from privrob.robust.rows import Ball, Cube, Rows, factor_of

VARIANTS = ("as_printed", "as_released", "tuned", "ball")
RANGE_SHARE = 0.01  # of the printed budgets


@dataclass(frozen=True)
class Settings:
    """What a variant does. Build with :func:`settings_for`.

    Fields: variant;  heavy_tailed — bounded covariance in place of sub-Gaussian;  clip — ``cube`` or ``ball``;
    centre — of the range, see :class:`.PrivateRange`;  centre_error — bound on \\|x̄_j − μ_j\\| that the region allows
    for;  stop_constant — C;  stop — ``spectral`` or ``top``;  kappa — step α^(s)·λ, None as printed;
    num_epochs, num_iterations — T₁, T₂, None as printed;  sound — Normal noise by the true sensitivities;
    lowest_draw — Z ~ U[this, 1];  margin — of the threshold, in standard deviations;  failure_prob — ζ;
    noiseless — no noise at all, for study: not private.
    """

    variant: str
    heavy_tailed: bool = False
    clip: str = "ball"
    centre: str = "refined"
    centre_error: float = 0.5
    stop_constant: float = 2.0
    stop: str = "top"
    kappa: float | None = 4.0
    num_epochs: int | None = 4
    num_iterations: int | None = 2
    sound: bool = True
    lowest_draw: float = 0.0
    margin: float = 2.0
    failure_prob: float = 0.1
    noiseless: bool = False

    def __post_init__(self):
        checks.choice("clip", self.clip, ["cube", "ball"])
        checks.choice("stop", self.stop, ["spectral", "top"])
        checks.positive("stop_constant", self.stop_constant)
        checks.nonnegative("centre_error", self.centre_error)
        checks.probability("lowest_draw", self.lowest_draw)
        checks.probability("failure_prob", self.failure_prob, allow_zero=False, allow_one=False)
        for name in ("num_epochs", "num_iterations"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), low=1)
        if self.kappa is not None:
            checks.nonnegative("kappa", self.kappa)
        checks.real("margin", self.margin)
        if self.noiseless and not self.sound:
            raise ValueError(
                "noiseless must be False where the printed noises are asked for, got noiseless=True; "
                "pass variant='tuned' or 'ball', or noise_records for less noise"
            )


_PRESETS = {
    "as_printed": Settings(
        "as_printed", clip="cube", centre="middle", centre_error=0.0, stop_constant=1.0, stop="spectral", kappa=None,
        num_epochs=None, num_iterations=None, sound=False, margin=0.0,
    ),
    "tuned": Settings("tuned", clip="cube", centre="middle", centre_error=3.0),
    "ball": Settings("ball", lowest_draw=0.5),
}  # fmt: skip


def settings_for(variant="ball", *, heavy_tailed=False, **changes):
    """The settings of a variant, some of them changed by name.

    Args: variant — one of :data:`VARIANTS` but ``as_released``;  changes — fields of :class:`Settings`.
    """
    if checks.choice("variant", variant, VARIANTS) == "as_released":
        raise ValueError(
            "variant='as_released' has an algorithm of its own; call privrob.robust.released.released_prime"
        )
    preset = _PRESETS[variant]
    if heavy_tailed:
        preset = replace(preset, heavy_tailed=True, clip="ball", stop_constant=3.0)  # ‖M‖ is 1 without an adversary
        if preset.sound:  # bins of 4 standard deviations: the fullest is within 4 of the mean
            preset = replace(preset, centre="middle", centre_error=4.0)
    checks.options(
        "changes", changes, [f for f in Settings.__dataclass_fields__ if f not in ("variant", "heavy_tailed")]
    )
    return replace(preset, **changes)


def printed_box_side(num_records, dimension, *, failure_prob, spread=1.0):
    """B = 8σ√log(dn/ζ), the *width*. Paper: prime, Algorithm 5.

    Args: spread — σ.
    """
    failure_prob = checks.probability("failure_prob", failure_prob, allow_zero=False)
    return 8 * spread * math.sqrt(math.log(dimension * num_records / failure_prob))


def region_for(settings, centre, *, num_records, corruption_rate):
    """The region that records are clipped to, about a private centre."""
    n, d, zeta = num_records, len(centre), settings.failure_prob
    error = settings.centre_error
    if settings.heavy_tailed:
        rate = max(corruption_rate, 1.0 / n)
        radius = math.sqrt(d) * ((error + 1 / math.sqrt(rate)) if settings.sound else 25 / math.sqrt(rate))
        return Ball(centre, radius)
    if not settings.sound and settings.clip == "cube":
        return Cube(centre, printed_box_side(n, d, failure_prob=zeta))
    if settings.clip == "cube":
        return Cube(centre, 2 * (error + math.sqrt(2 * math.log(2 * n * d / zeta))))
    return Ball(centre, math.sqrt(d * (1 + error**2)) + math.sqrt(2 * math.log(n / zeta)))


def rounds(settings, region, dimension):
    """(T₁, T₂): as set, or ⌈log(B√d)⌉ and ⌈log d⌉, at least 1."""
    first, second = settings.num_epochs, settings.num_iterations
    side = getattr(region, "box_side", None) or region.diameter / math.sqrt(dimension)
    first = max(1, math.ceil(math.log(side * math.sqrt(dimension)))) if first is None else first
    return first, max(1, math.ceil(math.log(dimension))) if second is None else second


def make_plan(settings, *, num_records, dimension, corruption_rate, epsilon, delta):
    """The :class:`privrob.robust.noiseplan.NoisePlan` of a run: it needs no records."""
    n, d = num_records, dimension
    noiseplan.check_budget(epsilon, delta)
    region = region_for(settings, np.zeros(d), num_records=n, corruption_rate=corruption_rate)
    first, second = rounds(settings, region, d)
    how = {"num_records": n, "diameter": region.diameter, "dimension": d}
    how |= {"num_epochs": first, "num_iterations": second}
    if not settings.sound:
        location = _printed_range(settings, RANGE_SHARE * epsilon, RANGE_SHARE * delta, d)
        rest = {"delta": (1 - RANGE_SHARE) * delta, "location": location, "heavy_tailed": settings.heavy_tailed}
        return noiseplan.printed_prime_plan((1 - RANGE_SHARE) * epsilon, **rest, **how)
    gdp_mu, lost = noiseplan.gdp_budget(epsilon, delta=delta)
    part = noiseplan.range_mu(gdp_mu, num_iterations=second)
    spread = 2.0 if settings.heavy_tailed else 1.0
    location = PrivateRange.gaussian(part, lost_prob=lost, dimension=d, spread=spread, centre=settings.centre)
    return noiseplan.sound_prime_plan(gdp_mu, location=location, noiseless=settings.noiseless, **how)


def _printed_range(settings, epsilon, delta, dimension):
    if settings.heavy_tailed:
        return HeavyTailedRange.as_printed(
            epsilon, delta=delta, dimension=dimension, failure_prob=settings.failure_prob, centre=settings.centre
        )
    return PrivateRange.as_printed(epsilon, delta=delta, dimension=dimension, centre=settings.centre)


def prime(
    data, *, corruption_rate, epsilon, delta, rng, variant="ball", heavy_tailed=False, interactive=False, location=None,
    noise_records=None, keep_exact=False, block=2**15, keep=None, curator_type=None, **changes,
):  # fmt: skip
    r"""A private mean of records of which a fraction α is the adversary's, or a refusal with its reason.

    Paper: prime, Algorithms 9, 10 and 11; 12 and 13 with ``interactive``; 3, 15 and 16 (Theorems 9 and 13) with
        ``heavy_tailed``.
    Printed: noises and constants as :mod:`privrob.robust.noiseplan` and :mod:`privrob.robust.mmw` list them; after T₁
        epochs "Output: μ^(T₁)" was never computed.   Used: the mean of the last set, status ``exhausted``.
    Assumes: covariance I (at most I with ``heavy_tailed``), for accuracy; nothing, for privacy.
    Args: data — (n, d), array, memory map or torch tensor;  corruption_rate — α in [0, 1/2);  epsilon, delta — of the
        whole run, neighbours replace one record, n is public;  variant — ``as_printed``, ``tuned``, ``ball``;
        location — x̄ if it is public, else None: found at a cost;  noise_records — the n that noise is made for, where
        it isn't the data's own ("virtual sample size", of all but the range: for study, and then not private);
        keep_exact — keep what no analyst may see;  block, keep — of :class:`~privrob.robust.rows.Rows`;  curator_type —
        the class that answers, :class:`privrob.robust.curator.Curator` if None;  changes — fields of :class:`Settings`.
    Returns: :class:`privrob.robust.filtering.Outcome`; its ``noise`` is the plan, whose ledger is the guarantee.
    """
    checks.generator("rng", rng)
    heavy_tailed, interactive, keep_exact = (
        checks.boolean(name, value)
        for name, value in (("heavy_tailed", heavy_tailed), ("interactive", interactive), ("keep_exact", keep_exact))
    )
    settings = settings_for(variant, heavy_tailed=heavy_tailed, **changes)
    n, d, rate = check_data(data, corruption_rate)
    virtual = n if noise_records is None else checks.integer("noise_records", noise_records, low=1)
    range_rng, noise_rng, draw_rng = rng.spawn(3)
    if n < 2:
        return refused(f"too few records: {n}")
    how = {"num_records": virtual, "dimension": d, "corruption_rate": rate, "epsilon": epsilon, "delta": delta}
    plan = make_plan(settings, **how)
    plan = plan if virtual <= n else replace(plan, private=False)  # noise for more records than there are
    if location is None:
        found = _locate(plan.location, data, range_rng)
    else:
        found = Located(check_location(location, d))
    if found.centre is None:
        return replace(refused(found.reason), noise=plan)
    if not settings.sound and (short := _too_few(epsilon, delta, virtual, settings, found.centre, rate)):
        return replace(refused(short), noise=plan)
    region = region_for(settings, found.centre, num_records=virtual, corruption_rate=rate)
    curator = (curator_type or Curator)(
        Rows(data, region, block=block, keep=keep), plan=plan, rng=noise_rng, corruption_rate=rate,
        interactive=interactive, stop=settings.stop, layout="isotropic" if settings.sound else "mirror",
        identity=not heavy_tailed, copies=virtual / n,
    )  # fmt: skip
    run = _Run(curator, settings, rate, draw_rng, keep_exact)
    outcome = run.epochs(*rounds(settings, region, d))
    return replace(outcome, noise=plan)


def _locate(location, data, rng):
    if type(data).__module__.partition(".")[0] == "torch":
        data = data.detach().cpu().numpy()
    return location.release(data, rng=rng)


def _too_few(epsilon, delta, n, settings, centre, rate):
    """Line 2 of Algorithm 10: n < (4/ε₁) log(1/(2δ₁))."""
    region = region_for(settings, centre, num_records=n, corruption_rate=rate)
    first, second = rounds(settings, region, len(centre))
    left = 1 - RANGE_SHARE
    b = noiseplan.printed_prime_budget(left * epsilon, delta=left * delta, num_epochs=first, num_iterations=second)
    least = 4 / b.epsilon_epoch * math.log(1 / (2 * b.delta_epoch))
    return f"too few records: n = {n} is below (4/ε₁) log(1/(2δ₁)) = {least:.4g}" if n < least else ""


class _Run:
    """The loop of Algorithm 10, over a curator's answers."""

    def __init__(self, curator, settings, rate, draw_rng, keep_exact):
        self.curator, self.settings, self.rate, self.draws = curator, settings, rate, draw_rng
        self.region, self.n = curator.rows.region, curator.rows.n
        self.keep_exact, self.trace, self.exact = keep_exact, [], []
        self.identity = not settings.heavy_tailed

    def level(self, what):
        """The λ at which an epoch may stop: C α log(1/α) (C for heavy tails); where sound, with what sampling brings to
        it, and one standard deviation of the query's noise, but no more than as much again: a noise that hides the
        signal must not pass as a filtered set."""
        s = self.settings
        base = s.stop_constant if s.heavy_tailed else s.stop_constant * stop_level(self.rate)
        if not s.sound:
            return base
        ratio = self.curator.rows.d / self.n
        base += 0.0 if s.heavy_tailed else 2 * math.sqrt(ratio) + ratio
        return base + min(self.curator.plan[what].noise_std, base)

    def weak(self, what):
        """Words for a test whose noise is as large as its limit."""
        mechanism = self.curator.plan[what]
        noise = getattr(mechanism, "noise_std", None) or getattr(mechanism, "laplace_scale", 0.0)
        if noise <= self.level(what):
            return ""
        return f"the stop test says little: its noise {noise:.3g} exceeds its limit {self.level(what):.3g}"

    def mean(self, size, what):
        """μ(S) about the centre, with noise: asked directly, or a noisy total over a noisy size."""
        if not self.settings.sound:
            return self.curator.mean(what)
        return self.curator.total(what) / size

    def epochs(self, first, second):
        """All epochs: an :class:`~privrob.robust.filtering.Outcome`."""
        for epoch in range(first):
            norm = self.curator.norm("epoch_norm")
            size = self.curator.size()
            self.note(epoch=epoch, norm=norm, size=size)
            if size < 0.75 * self.n:
                return refused(f"set too small: about {size:.0f} of {self.n} records remain", self.trace, self.exact)
            if norm <= self.level("epoch_norm"):
                return self.answer(size, "converged", self.weak("epoch_norm"))
            self.iterations(epoch, second, norm, size)
        size = self.curator.size() if self.settings.sound else self.n
        if self.settings.sound and size < 0.5 * self.n:
            return refused(f"set too small: about {size:.0f} of {self.n} records remain", self.trace, self.exact)
        return self.answer(size, "exhausted", "the norm did not fall below its limit in the epochs allowed")

    def answer(self, size, status, reason):
        """The final mean."""
        if self.settings.sound:
            size = min(max(size, self.n / 2), self.n)
        estimate = self.region.centre + self.mean(size, "mean")
        return Outcome(estimate, status, reason, tuple(self.trace), tuple(self.exact))

    def iterations(self, epoch, second, epoch_norm, size):
        """One epoch's filter steps."""
        s, d = self.settings, self.curator.rows.d
        step = s.kappa / max(epoch_norm, 1e-300) if s.kappa is not None else mmw.printed_step(
            max(epoch_norm, 1e-300), stop_constant=s.stop_constant, heavy_tailed=s.heavy_tailed
        )  # fmt: skip
        early = 2 / 3 if s.heavy_tailed else 0.5
        total = np.zeros((d, d))
        for t in range(second):
            norm = epoch_norm if s.sound and t == 0 else self.curator.norm("norm")
            if norm < early * epoch_norm:
                self.note(epoch=epoch, iteration=t, norm=norm, ended="the norm fell enough")
                return
            matrix = self.curator.second_moment()
            total += matrix - np.eye(d) * self.identity
            weights = mmw.weights(total, step=step)
            score = float((matrix * weights).sum()) - self.identity if s.sound else self.curator.score(weights)
            self.note(epoch=epoch, iteration=t, norm=norm, score=score)
            if score <= norm / 5.5:
                continue
            self.filter(weights, score, size)

    def filter(self, weights, score, size):
        """Lines 20–23: a private point, a private threshold, a step for all records."""
        s, curator = self.settings, self.curator
        point = self.mean(min(max(size, self.n / 2), self.n), "centre")
        if s.sound:
            point = self.region.clip(point)
        ask = {"num_bins": mmw.num_bins(self.region.diameter), "ask_score": not s.sound}
        factor = factor_of(weights)
        again, shares = curator.threshold_queries(point, factor, **ask)
        noise = curator.plan["histogram"].noise_std
        least = mmw.pick_threshold(shares, score if again is None else again, noise_std=noise, margin=s.margin)
        draw = s.lowest_draw + (1 - s.lowest_draw) * self.draws.random()
        self.trace[-1] |= {"threshold": least, "draw": draw}
        if least is None:
            return
        before = curator.state().alive.copy() if self.keep_exact else None
        curator.filter(Step(point, factor, least * draw))
        if self.keep_exact:
            self.exact[-1]["removed"] = np.flatnonzero(before & ~curator.state().alive)

    def note(self, **what):
        """A line of the trace; beside it the exact state, where it was asked for."""
        self.trace.append(what)
        if self.keep_exact:
            state = self.curator.state()
            self.exact.append({"size": state.size, "mean": self.region.centre + state.mean})
