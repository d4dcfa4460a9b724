"""A mechanism applied to a Poisson sample of the records: what a step of DP-SGD is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.accounting import pairs, subsample, tradeoff
from privrob.kinds import Guarantee, Neighbouring, NotAvailable, Sampling
from privrob.mechanisms.noise import Gaussian

_BOTH = ("remove", "add")


def _directions(neighbouring, sampling):
    """The directions that a relation asks for."""
    neighbouring = Neighbouring.of(neighbouring)
    if Sampling.of(sampling) is not Sampling.POISSON:
        raise NotAvailable("a Poisson-sampled mechanism states its guarantee with sampling='poisson'")
    if neighbouring is Neighbouring.REPLACE:
        raise NotAvailable("a Poisson-sampled mechanism states its guarantee for 'add', 'remove' and 'add_remove' only")
    return _BOTH if neighbouring is Neighbouring.ADD_REMOVE else (neighbouring.value,)


@dataclass(frozen=True)
class PoissonSampled:
    """Each record is drawn with probability q, by itself; the mechanism answers the sum over those drawn.

    A mechanism that ``takes_records``, such as Propose-Test-Release, gets the drawn rows themselves.

    Paper: dplearn, Amplification by Sub-sampling.
    Assumes: a record's contribution to the sum is within the mechanism's sensitivity, and 0 when it isn't drawn.
    Args: mechanism — answers without sampling, such as :class:`.Gaussian`;  sample_rate — q in [0, 1].
    """

    mechanism: Guarantee
    sample_rate: float

    def __post_init__(self):
        if not isinstance(self.mechanism, Guarantee) or isinstance(self.mechanism, PoissonSampled):
            raise TypeError(f"mechanism must be one without sampling, got {type(self.mechanism).__name__}")
        checks.probability("sample_rate", self.sample_rate, hint="pass batch_size / num_records")

    def release(self, data, *, rng):
        """The mechanism's answer on a sample of the rows of ``data`` (one record each, shape (n, …)): on their sum, or
        on the rows where it takes records."""
        if not hasattr(self.mechanism, "release"):
            raise NotAvailable(
                f"{type(self.mechanism).__name__} states guarantees only; sample a mechanism that releases"
            )
        data = checks.array("data", data)
        if data.ndim == 0:
            raise ValueError("data must have one row a record, got a single number")
        drawn = data[rng.random(len(data)) < self.sample_rate]
        takes_records = getattr(self.mechanism, "takes_records", False)
        return self.mechanism.release(drawn if takes_records else drawn.sum(axis=0), rng=rng)

    def rdp(self, orders, *, neighbouring, sampling):
        """Rényi curve in nats, shape (k,): exact where the mechanism states it on samples, else an upper bound."""
        _directions(neighbouring, sampling)
        if hasattr(self.mechanism, "sampled_rdp"):
            return self.mechanism.sampled_rdp(orders, sample_rate=self.sample_rate, neighbouring=neighbouring)

        def at(order):
            return float(self.mechanism.rdp([float(order)], neighbouring=neighbouring, sampling="none")[0])

        return subsample.poisson_amplified(orders, sample_rate=self.sample_rate, rdp_at=at, neighbouring=neighbouring)

    def pairs(self, *, neighbouring, sampling):
        """Dominating pairs, one for each direction."""
        directions = _directions(neighbouring, sampling)
        whole = self.mechanism.pairs(neighbouring=neighbouring, sampling="none")
        whole = whole if isinstance(whole, tuple) else (whole,) * len(directions)
        return tuple(pair.sampled(self.sample_rate, neighbouring=d) for pair, d in zip(whole, directions, strict=True))

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error, the data set itself being the null: of both directions the
        smaller one, tight for the dominating pairs but for rounding."""
        curves = [tradeoff.at(pair, type1) for pair in self.pairs(neighbouring=neighbouring, sampling=sampling)]
        return np.minimum.reduce(curves)[()]

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε of one step at this δ, between certified ends."""
        return pairs.compose([(self.pairs(neighbouring=neighbouring, sampling=sampling), 1)], delta=delta)

    def composed_epsilon(self, count, delta, *, neighbouring, sampling):
        """The smallest ε of so many steps, where the mechanism has an accountant of its own for them.

        Args: count — of steps.
        """
        _directions(neighbouring, sampling)
        if not hasattr(self.mechanism, "sampled_epsilon"):
            raise NotAvailable(
                f"{type(self.mechanism).__name__} has no accountant of its own for samples; compose pairs"
            )
        how = {"sample_rate": self.sample_rate, "neighbouring": neighbouring}
        return self.mechanism.sampled_epsilon(count, delta, **how)


def gaussian_step(*, sample_rate, noise_multiplier):
    """One step of DP-SGD in units of the clipping norm: the Poisson-sampled Gaussian."""
    noise = checks.nonnegative("noise_multiplier", noise_multiplier, finite=True)
    return PoissonSampled(Gaussian(noise_std=noise, l2_sensitivity=1.0), sample_rate)
