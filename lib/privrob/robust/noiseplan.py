r"""Every private query of an algorithm, before it runs: what is asked, how often at most, its sensitivity, its noise.

The plan does not depend on the records, so its ledger is the guarantee of a run, however early the run stops.

Neighbours differ in one replaced record, and n is public; after filtering, the remaining sets differ in one record
replaced, added or removed. With D the diameter of the region, over all three (the tests search for more):

=================  =====================================  ==================================================
query              answer                                 sensitivity
=================  =====================================  ==================================================
size               \|S\|                                  1
norm               ‖M(S) − I‖₂, or its top eigenvalue     D²/n
second moment      M(S)                                   D²/n in the Frobenius norm
mean               μ(S), given \|S\| ≥ n/2                2D/n in l2;  for a cube 2B/n on each coordinate
total              Σ (x − x̄) over S                       D in l2, whatever \|S\| is
histogram          counts of the scores in bins           √2 in l2
score              (1/n) Σ (τ − 1), 0 ≤ τ ≤ D²            D²/n, given that μ_t lies in the region (D ≥ 1)
=================  =====================================  ==================================================

``num_epochs`` and ``num_iterations`` are T₁ and T₂; ``location`` is the range's query, ``shares`` the parts of μ² by
query (None: :data:`SHARES`), ``noiseless`` takes all noise away (for study: not private).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from privrob import checks
from privrob.accounting import gdp
from privrob.accounting.ledger import Ledger
from privrob.kinds import Interval
from privrob.mechanisms.exponential import Exponential
from privrob.mechanisms.histogram import Lost
from privrob.mechanisms.noise import Gaussian, Laplace

# Shares of μ² of the sound plans: the matrix has the most noise to bear, one number of it the least.
SHARES = {
    "range": 0.15,
    "size": 0.02,
    "epoch_norm": 0.05,
    "norm": 0.03,
    "second_moment": 0.40,
    "centre": 0.05,
    "histogram": 0.15,
    "mean": 0.15,
}


@dataclass(frozen=True)
class Entry:
    """Fields: what — the query;  mechanism — its noise, with the *true* sensitivity;  asked — how often at most;
    each — releases of the mechanism a time (coordinates);  note — where the printed noise is too small, by how much."""

    what: str
    mechanism: object
    asked: int = 1
    each: int = 1
    note: str = ""

    def as_row(self):
        """The entry as a row of a table; ``scale`` of the exponential mechanism is its ε, of a lost mass that mass."""
        kind, m = type(self.mechanism).__name__, self.mechanism
        row = {"what": self.what, "asked": self.asked, "each": self.each, "noise": kind, "note": self.note}
        if isinstance(m, Laplace):
            return row | {"sensitivity": m.l1_sensitivity, "scale": m.laplace_scale}
        if isinstance(m, Gaussian):
            return row | {"sensitivity": m.l2_sensitivity, "scale": m.noise_std}
        if isinstance(m, Exponential):
            return row | {"sensitivity": m.sensitivity, "scale": m.pure_epsilon}
        return row | {"sensitivity": math.nan, "scale": m.prob}


@dataclass(frozen=True)
class NoisePlan:
    """Fields: entries;  caveats — what the guarantee rests on that an algorithm as printed doesn't secure;
    private — False where no guarantee is claimed at all;  location — the range query."""

    entries: tuple
    caveats: tuple = ()
    private: bool = True
    location: object = None

    def __getitem__(self, what):
        """The mechanism of a query."""
        for entry in self.entries:
            if entry.what == what:
                return entry.mechanism
        raise KeyError(f"no query {what!r} in this plan; it has {[e.what for e in self.entries]}")

    def ledger(self, num_records=None):
        """All entries, each on its own."""
        ledger = Ledger(neighbouring="replace", sampling="none", num_records=num_records)
        for entry in self.entries:
            ledger.add(entry.mechanism, entry.asked * entry.each)
        return ledger

    @property
    def gdp_mu(self):
        """√Σμ² of the Normal entries.

        Side: exact for them; other entries are not in it.
        """
        squares = [e.mechanism.gdp_mu**2 * e.asked * e.each for e in self.entries if isinstance(e.mechanism, Gaussian)]
        return math.sqrt(sum(squares))

    def epsilon(self, delta):
        """ε of the whole plan at δ, for replaced records: an interval. Infinite where nothing is promised (``private``
        is False); what the entries alone would spend is the ledger's answer.

        All Normal entries are taken as one, which is exact, and so is lost mass beside it; others go on the
        accountant's grid.
        """
        if not self.private:
            return Interval.exact(math.inf)
        others = [e for e in self.entries if not isinstance(e.mechanism, Gaussian)]
        if all(isinstance(e.mechanism, Lost) for e in others):
            delta = checks.probability("delta", delta, allow_one=False)
            probs = [(e.mechanism.prob, e.asked * e.each) for e in others]
            if self.gdp_mu == math.inf or any(p == 1 for p, _ in probs):
                return Interval.exact(math.inf)
            log_kept = sum(count * math.log1p(-p) for p, count in probs)
            rest = (delta + math.expm1(log_kept)) / math.exp(log_kept)
            if rest < 0:
                return Interval.exact(math.inf)
            return Gaussian(1.0, self.gdp_mu).epsilon(rest, neighbouring="replace", sampling="none")
        ledger = Ledger(neighbouring="replace", sampling="none")
        if self.gdp_mu:
            ledger.add(Gaussian(1.0, self.gdp_mu) if self.gdp_mu < math.inf else Gaussian(0.0, 1.0))
        for entry in self.entries:
            if not isinstance(entry.mechanism, Gaussian):
                ledger.add(entry.mechanism, entry.asked * entry.each)
        return ledger.epsilon(delta)

    def rows(self):
        """The table: what, how often, noise, sensitivity, scale, and ε, δ of one answer."""
        return [entry.as_row() for entry in self.entries]


def symmetric_noise(dimension, *, noise_std, rng, layout="isotropic"):
    """Noise for a symmetric matrix.

    ``mirror``: σ on and above the diagonal, mirrored. ``isotropic``: the mean of an independent d × d matrix and its
    transpose, private for the same Frobenius sensitivity, with 1/√2 of the spectral norm.

    Paper: prime, Algorithm 10 (Σ), Lemma F.2.
    Printed: N(0, (…)² I_{d²×d²}), d² independent entries: not symmetric, so that exp(Σ) isn't positive.
    Args: layout — ``isotropic`` or ``mirror``.
    """
    checks.choice("layout", layout, ["isotropic", "mirror"])
    noise = rng.normal(0.0, noise_std, (dimension, dimension))
    if layout == "isotropic":
        return (noise + noise.T) / 2
    upper = np.triu(noise)
    return upper + np.triu(noise, 1).T


def classic_std(epsilon, *, delta, l2_sensitivity):
    r"""Δ √(2 log(1.25/δ))/ε at any ε, as the document has it: short above ε ≈ 8 (Dwork and Roth ask for ε < 1)."""
    return l2_sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@dataclass(frozen=True)
class PrintedBudget:
    """``epsilon_epoch`` ε₁, ``delta_epoch`` δ₁ of an epoch's queries; ``epsilon_step`` ε₂, ``delta_step`` δ₂ of an
    iteration's.

    Paper: prime, Algorithm 10 (first line).
    """

    epsilon_epoch: float
    delta_epoch: float
    epsilon_step: float
    delta_step: float


def printed_prime_budget(epsilon, *, delta, num_epochs, num_iterations):
    r"""ε₁ = ε/(4T₁), δ₁ = δ/(4T₁), ε₂ = min(0.9, ε)/(4√(10T₁T₂ log(4/δ))), δ₂ = δ/(20T₁T₂)."""
    both = num_epochs * num_iterations
    step = min(0.9, epsilon) / (4 * math.sqrt(10 * both * math.log(4 / delta)))
    return PrintedBudget(epsilon / (4 * num_epochs), delta / (4 * num_epochs), step, delta / (20 * both))


def printed_prime_plan(
    epsilon, *, delta, num_records, diameter, dimension, num_epochs, num_iterations, location, heavy_tailed=False
):
    """The noises of Algorithms 9–11 (or 3, 15, 16) as printed, beside the true sensitivities.

    ε, δ are what is left after the range's 1 %. Σ's noise is 4 times, the scores' twice what is needed; μ_t's rests on
    a size that is checked at the start of an epoch only.
    """
    b = printed_prime_budget(epsilon, delta=delta, num_epochs=num_epochs, num_iterations=num_iterations)
    n, square, both = num_records, diameter**2, num_epochs * num_iterations
    bins = classic_std(b.epsilon_step, delta=b.delta_step, l2_sensitivity=4 / n)
    bins *= math.sqrt(dimension) if heavy_tailed else 1.0
    step_std = classic_std(b.epsilon_step, delta=b.delta_step, l2_sensitivity=4 * square / n)
    epoch_mean = classic_std(b.epsilon_epoch, delta=b.delta_epoch, l2_sensitivity=2 * diameter / n)
    step_mean = classic_std(b.epsilon_step, delta=b.delta_step, l2_sensitivity=2 * diameter / n)
    step_scale = 2 * square / (n * b.epsilon_step)
    guard = 0.5 * math.exp(-n * b.epsilon_epoch / 4)
    twice = "scale is twice what is needed"
    entries = (
        *(Entry(f"range {i}", g, c) for i, (g, c) in enumerate(location.entries(dimension))),
        Entry("epoch_norm", Laplace(2 * square / (n * b.epsilon_epoch), square / n), num_epochs, note=twice),
        Entry("size", Laplace(1 / b.epsilon_epoch, 1.0), num_epochs),
        Entry("size guard", Lost(min(1.0, guard)), num_epochs, note="the size is below n/2 and passes as 3n/4"),
        Entry("mean", Gaussian(epoch_mean, 2 * diameter / n)),
        Entry("norm", Laplace(step_scale, square / n), both, note=twice),
        Entry("second_moment", Gaussian(step_std, square / n), both, note="std is 4 times what is needed"),
        Entry("score", Laplace(step_scale, square / n), both, note=twice),
        Entry("centre", Gaussian(step_mean, 2 * diameter / n), both, note="assumes |S| ≥ n/2: checked once an epoch"),
        Entry("score_again", Laplace(step_scale, square / n), both, note="at ε beside the histogram's ε: 2ε in all"),
        Entry("histogram", Gaussian(bins, math.sqrt(2) / n), both),
    )
    caveats = (
        "an iteration may remove 2αn records: the size may fall below n/2 within an epoch, unseen",
        "the noisy μ_t may leave the region: then scores exceed the diameter squared",
    )
    return NoisePlan(entries, caveats, location=location)


def check_budget(epsilon, delta):
    """ε in (0, ∞) and δ in (0, 1), as given: a share of a δ above 1 may look like one."""
    epsilon = checks.positive("epsilon", epsilon, finite=True)
    return epsilon, checks.probability("delta", delta, allow_zero=False, allow_one=False)


def gdp_budget(epsilon, *, delta, lost_share=0.1):
    """(μ, lost mass) that together spend at most (ε, δ): δ = lost + (1 − lost) δ(ε; μ).

    Side: upper; one record replaced.
    Args: lost_share — lost mass over δ.
    """
    return _gdp_budget(*check_budget(epsilon, delta), lost_share)


@lru_cache(maxsize=256)
def _gdp_budget(epsilon, delta, lost_share):
    lost = lost_share * delta
    rest = (delta - lost) / (1 - lost)
    multiplier = float(gdp.noise_multiplier_of(epsilon, delta=rest))
    return (1 - 1e-9) / multiplier, lost  # so that ε read back isn't above the target in its last digit


def sound_prime_plan(
    gdp_mu, *, num_records, diameter, dimension, num_epochs, num_iterations, location, shares=None, noiseless=False
):
    """Normal noise only, whose μ² adds up to the budget's exactly: no slack, no failure of a size check.

    The total Σ(x − x̄) is asked for in place of the mean, so that \\|S\\| may be anything; the score ⟨M − I, U⟩ is read
    off the noisy matrix; λ_t of an epoch's first iteration is λ of the epoch.
    """
    shares = dict(SHARES if shares is None else shares)
    n, both = num_records, num_epochs * num_iterations
    asked = {
        "size": num_epochs + 1,
        "epoch_norm": num_epochs,
        "norm": num_epochs * max(num_iterations - 1, 0),
        "second_moment": both,
        "centre": both,
        "histogram": both,
        "mean": 1,
    }
    sensitivity = {
        "size": 1.0,
        "epoch_norm": diameter**2 / n,
        "norm": diameter**2 / n,
        "second_moment": diameter**2 / n,
        "centre": diameter,
        "histogram": math.sqrt(2) / n,
        "mean": diameter,
    }
    used = sum(share for what, share in shares.items() if what == "range" or asked[what])
    entries = [Entry(f"range {i}", g, c) for i, (g, c) in enumerate(location.entries(dimension))] if location else []
    for what, times in asked.items():
        if not times:
            continue
        std = 0.0 if noiseless else sensitivity[what] / (gdp_mu * math.sqrt(shares[what] / used / times))
        entries.append(Entry(what, Gaussian(std, sensitivity[what]), times))
    return NoisePlan(tuple(entries), private=not noiseless, location=location)


def range_mu(gdp_mu, *, num_iterations, shares=None):
    """The part of μ that :func:`sound_prime_plan` leaves to the range.

    Side: exact.
    """
    shares = dict(SHARES if shares is None else shares)
    used = sum(share for what, share in shares.items() if what != "norm" or num_iterations > 1)
    return gdp_mu * math.sqrt(shares["range"] / used)
