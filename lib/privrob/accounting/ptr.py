r"""Propose-Test-Release: what a noisy safety margin and the answer chosen by it give away, exactly and step by step.

Algorithm 1 releases :math:`\hat\Delta = \Delta + \mathrm{Lap}(b)` and then, if :math:`\hat\Delta \le B =
b\log(1/(2\delta_0))`, the target with noise σ₁, else the robust statistic with noise σ₂. Neighbours (one record added
or removed) fall into two cases, and in each of them one pair of distributions is the worst and is attained:

``test_fails`` (the document's case 1): both local sensitivities exceed τ, so that both margins are 0 and the margin
tells nothing: a public coin. With probability δ₀ it releases a statistic that may have moved by all of its global
sensitivity, with the small noise σ₂; else the target with σ₁.

``bounded`` (case 2): one of them doesn't, so that the robust statistic moved by at most τ: a Laplace answer that moved
by 1 and a Gaussian one that moved by its sensitivity, together.

A Poisson sample of rate q mixes P with Q in each case (joint convexity over the rest of the sample). Rényi divergences
and hockey-stick profiles of a step are the larger of the cases; a composition is bounded by the pair whose profile is
the larger one everywhere (:class:`privrob.accounting.unions.Envelope`), and from below by the cases themselves, which
TSUM and SUM attain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from privrob import checks
from privrob.accounting import gdp, laplace_gaussian, pairs, rdp, subsample, tradeoff
from privrob.accounting.logspace import log1mexp
from privrob.accounting.unions import Envelope, Labelled
from privrob.kinds import Interval, Neighbouring, NotAvailable, Sampling

CASES = ("test_fails", "bounded")
_BOTH = ("remove", "add")
_POINTS = 2**18
_NOTHING = pairs.DiscretePair([0.0], [0.0])


@dataclass(frozen=True)
class Settings:
    """The noise of Propose-Test-Release in units of sensitivities: all that its privacy depends on.

    Paper: ptr, Algorithm 1.
    Args: noise_multiplier — σ₁ / global sensitivity of the target; infinite: it refuses to answer (Remark 4.1);
        robust_noise_multiplier — σ₂ / global sensitivity of the robust statistic, at most the former;
        scale_ratio — b, as the margin's sensitivity is 1; infinite: a test that costs nothing, the limit;
        test_failure — δ₀, in (0, 1/2);
        passed_noise_multiplier — σ₂/τ; left out, the noise multiplier, which is the theorems' condition σ₁ = σ₂/τ.
    The theorems ask for global sensitivities of 1 and σ₁ = σ₂/τ "to make the presented bound more clean". Here they
    may be anything: ``bounded`` then takes the smaller of σ₁ and σ₂/τ, which is attained if that is the latter.
    """

    noise_multiplier: float
    robust_noise_multiplier: float
    scale_ratio: float
    test_failure: float
    passed_noise_multiplier: float | None = None

    def __post_init__(self):
        checks.positive("noise_multiplier", self.noise_multiplier)
        checks.positive("robust_noise_multiplier", self.robust_noise_multiplier, finite=True)
        checks.positive("scale_ratio", self.scale_ratio)
        hint = "0 never passes the test, and 1/2 puts its threshold at 0: pass a small one, such as 1e-8"
        bounds = {"low": 0.0, "high": 0.5, "open_low": True, "open_high": True}
        checks.real("test_failure", self.test_failure, hint=hint, **bounds)
        if self.passed_noise_multiplier is not None:
            checks.positive("passed_noise_multiplier", self.passed_noise_multiplier, finite=True)
        if self.robust_noise_multiplier > self.noise_multiplier:
            raise ValueError(
                "robust_noise_multiplier must be at most noise_multiplier, got "
                f"robust_noise_multiplier={self.robust_noise_multiplier!r} above {self.noise_multiplier!r}: with more "
                "noise on the robust statistic than on the target, leave out the test"
            )
        if self.passed_noise_multiplier is None and math.isinf(self.noise_multiplier):
            raise ValueError("passed_noise_multiplier must be given where noise_multiplier is infinite: it is σ₂/τ")

    @classmethod
    def of(cls, *, noise_multiplier, sensitivity_bound, scale_ratio, test_failure):
        """The theorems' settings, σ₂ = τσ₁. Args: sensitivity_bound — τ / global sensitivity, in (0, 1]."""
        bound = checks.real("sensitivity_bound", sensitivity_bound, low=0.0, high=1.0, open_low=True)
        noise = checks.positive("noise_multiplier", noise_multiplier, finite=True)
        return cls(noise, bound * noise, scale_ratio, test_failure)

    @property
    def bounded_noise_multiplier(self):
        """Of the answer when the robust statistic moved by at most τ, whichever branch is taken."""
        return min(self.noise_multiplier, self.passed_noise_multiplier or math.inf)

    @property
    def sensitivity_bound(self):
        """τ in units of the robust statistic's global sensitivity."""
        return self.robust_noise_multiplier / (self.passed_noise_multiplier or self.noise_multiplier)

    @property
    def threshold(self):
        """B = b log(1/(2δ₀)): a margin of 0 passes with probability δ₀."""
        return -self.scale_ratio * math.log(2 * self.test_failure)

    # ------------------------------------------------------------------------------------------- guarantees of one step

    def case_pairs(self):
        """The worst pair of each case, by its name. Both are their own reversal."""
        fails = Labelled(
            (1 - self.test_failure, self.test_failure),
            (_gaussian(self.noise_multiplier), _gaussian(self.robust_noise_multiplier)),
        )
        noise, scale = self.bounded_noise_multiplier, self.scale_ratio
        if math.isinf(scale) or math.isinf(noise):
            bounded = _gaussian(noise) if math.isinf(scale) else pairs.laplace(scale_ratio=scale)
        else:
            bounded = laplace_gaussian.LaplaceGaussianPair(scale, noise)
        return {"test_fails": fails, "bounded": bounded}

    def pairs(self, *, neighbouring, sampling):
        """The least pair that dominates both cases; it covers both directions."""
        _unsampled(neighbouring, sampling)
        return Envelope(tuple(self.case_pairs().values()))

    def rdp(self, orders, *, neighbouring, sampling):
        """Rényi curve in nats, exact, shape (k,): Theorem 4.3."""
        _unsampled(neighbouring, sampling)
        return renyi(orders, settings=self, sample_rate=1.0, neighbouring="add_remove")

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε of one step at this δ."""
        _unsampled(neighbouring, sampling)
        return epsilon(delta, settings=self, sample_rate=1.0, neighbouring="add_remove")

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error: the smaller of the cases'."""
        _unsampled(neighbouring, sampling)
        return np.minimum.reduce([tradeoff.at(pair, type1) for pair in self.case_pairs().values()])[()]

    # --------------------------------------------------------------------------------------------- on a Poisson sample

    def sampled_rdp(self, orders, *, sample_rate, neighbouring):
        """Rényi curve on a Poisson sample, exact: :func:`renyi`."""
        return renyi(orders, settings=self, sample_rate=sample_rate, neighbouring=neighbouring)

    def sampled_epsilon(self, count, delta, *, sample_rate, neighbouring):
        """ε of so many steps on Poisson samples: :func:`composed_epsilon`.

        Side: upper.
        Args: count — of steps.
        """
        return composed_epsilon(count, delta, settings=self, sample_rate=sample_rate, neighbouring=neighbouring)

    def composed_epsilon(self, count, delta, *, neighbouring, sampling):
        """ε of so many steps without sampling.

        Side: upper; a record added or removed.
        Args: count — of steps.
        """
        _unsampled(neighbouring, sampling)
        return composed_epsilon(count, delta, settings=self, sample_rate=1.0, neighbouring="add_remove")


def _gaussian(noise_multiplier):
    return pairs.gaussian(noise_multiplier=noise_multiplier) if math.isfinite(noise_multiplier) else _NOTHING


def _unsampled(neighbouring, sampling):
    directions(neighbouring)
    if Sampling.of(sampling) is not Sampling.NONE:
        raise NotAvailable("Propose-Test-Release states its guarantee without sampling; wrap it in PoissonSampled")


def directions(neighbouring):
    """The directions that a relation asks for, ``remove`` first; "replace" is refused."""
    neighbouring = Neighbouring.of(neighbouring)
    if neighbouring is Neighbouring.REPLACE:
        raise NotAvailable(
            "the safety margin counts records added or removed: 'add', 'remove' and 'add_remove' are known"
        )
    return _BOTH if neighbouring is Neighbouring.ADD_REMOVE else (neighbouring.value,)


def _cases(case):
    return CASES if checks.choice("case", case, ["both", *CASES]) == "both" else (case,)


def _rate(sample_rate):
    return checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")


# ------------------------------------------------------------------------------------------------------ Rényi, one step


def renyi(orders, *, settings, sample_rate, neighbouring, case="both"):
    r"""Rényi curve of one step of Propose-Test-Release on a Poisson sample: exact, whatever the noise.

    Without sampling, Theorem 4.3:

    .. math:: \max\Big(\tfrac{1}{a-1}\log\big((1-\delta_0) e^{(a-1)a/(2\sigma_1^2)} +
        \delta_0 e^{(a-1)a/(2\sigma_2^2)}\big),\ \tfrac{a}{2\sigma_1^2} + \varepsilon_{\text{R-Lap}}^{(b)}(a)\Big)

    With it, the moments of both cases of the proof, which Theorem 4.4 bounds within its conditions: ``test_fails`` is
    the same mean of two sampled Gaussians, ``bounded`` one integral over the loss of both answers together
    (:mod:`privrob.accounting.laplace_gaussian`). No condition on q, σ or the order.

    Paper: ptr, Theorem 4.3 and Theorem 4.4 (exact).
    Args: orders — each > 1, shape (k,);  settings — :class:`Settings`;  sample_rate — q in [0, 1];
        neighbouring — ``add``, ``remove`` or ``add_remove``, which is ``remove``: a reflection maps each pair to its
        reversal, so that ``add`` is never larger (Mironov, Talwar and Zhang 2019, Theorem 5);
        case — ``test_fails``, ``bounded`` or ``both``.
    Returns: nats, shape (k,). Of ``both``, the larger case: tight for one step; for a composition an upper bound.
    """
    orders, q, ways = checks.orders(orders), _rate(sample_rate), directions(neighbouring)
    if q == 0:
        return np.zeros_like(orders)
    direction = "remove" if q == 1 else ways[0]
    curves = [
        {"test_fails": _test_fails, "bounded": _bounded}[name](orders, settings, q, direction) for name in _cases(case)
    ]
    return np.maximum.reduce(curves)


def _test_fails(orders, settings, q, direction):
    s, chance = orders - 1, settings.test_failure
    logs = []
    for noise, weight in ((settings.noise_multiplier, 1 - chance), (settings.robust_noise_multiplier, chance)):
        curve = subsample.sampled_gaussian(orders, sample_rate=q, noise_multiplier=noise, neighbouring=direction)
        logs.append(math.log(weight) + _log_excess_of(curve, s))
    return rdp.curve_of(np.logaddexp(*logs), s)


def _log_excess_of(curve, s):
    """log((e^{sρ} − 1)/s)."""
    with np.errstate(divide="ignore"):
        return s * curve + log1mexp(-s * curve) - np.log(s)


def _bounded(orders, settings, q, direction):
    noise, scale = settings.bounded_noise_multiplier, settings.scale_ratio
    whole = rdp.gaussian(orders, noise_multiplier=noise) + rdp.laplace(orders, scale_ratio=scale)
    if q == 1:
        return whole
    most = whole if direction == "remove" else np.minimum(whole, -math.log1p(-q))
    if math.isinf(scale):
        return subsample.sampled_gaussian(orders, sample_rate=q, noise_multiplier=noise, neighbouring=direction)
    noise = min(noise, 1e9)  # beyond it, the Gaussian answer tells less than rounding does; a little more is safe
    s, curve = orders - 1, np.empty_like(orders)
    for some in np.array_split(np.arange(s.size), -(-s.size // 128)):
        log_excess = laplace_gaussian.sampled_log_excess(
            s[some], sample_rate=q, scale_ratio=scale, noise_multiplier=noise, direction=direction
        )
        curve[some] = rdp.curve_of(log_excess, s[some])
    return np.minimum(curve, most)


# ------------------------------------------------------------------------------------------------ (ε, δ) of one step


def delta(epsilon, *, settings, sample_rate, neighbouring, case="both"):
    r"""δ of one step at ε, exact: the larger of the cases' hockey-stick divergences.

    .. math:: \max\big((1-\delta_0) H_{\sigma_1}(\varepsilon) + \delta_0 H_{\sigma_2}(\varepsilon),\
        E_s[H_{\sigma_1}(\varepsilon - L_{\text{Lap}}(s))]\big)

    Paper: ptr, Theorem 4.2 (exact, where it has a union bound).
    Args: epsilon — at least 0;  the others as in :func:`renyi`.
    """
    epsilon, q = checks.nonnegative("epsilon", epsilon), _rate(sample_rate)
    found, ways = [0.0], directions(neighbouring)
    for direction in ways if q < 1 else ways[:1]:  # without sampling, both are the same
        share, inner = _unsampled_profile(epsilon, q, direction)
        if share > 0 and inner < math.inf:
            found += [share * _profile(inner, settings, name) for name in _cases(case)]
    return min(1.0, max(found))


def _unsampled_profile(epsilon, q, direction):
    """δ_sampled(ε) = share · δ(inner), for a pair that is its own reversal."""
    if q == 0:
        return 0.0, 0.0
    if q == 1:
        return 1.0, epsilon
    if direction == "remove":
        gain = math.expm1(min(epsilon, 700.0)) / q
        return q, math.log1p(gain) if epsilon < 30 else epsilon - math.log(q)
    share = -math.expm1(min(0.0, epsilon + math.log1p(-q)))
    return (share, max(0.0, epsilon + math.log(q) - math.log(share))) if share > 0 else (0.0, 0.0)


def _profile(epsilon, settings, case):
    if case == "test_fails":
        chance = settings.test_failure
        noises = ((settings.noise_multiplier, 1 - chance), (settings.robust_noise_multiplier, chance))
        return sum(weight * float(gdp.delta_of(epsilon, gdp_mu=1 / noise)) for noise, weight in noises)
    noise, scale = settings.bounded_noise_multiplier, settings.scale_ratio
    if math.isinf(scale):
        return float(gdp.delta_of(epsilon, gdp_mu=1 / noise))
    if noise > 1e9:
        return pairs.delta([(pairs.laplace(scale_ratio=scale), 1)], epsilon=epsilon).upper
    return math.exp(laplace_gaussian.log_delta(epsilon, scale_ratio=scale, noise_multiplier=noise))


def epsilon(delta_target, *, settings, sample_rate, neighbouring, case="both"):
    """The smallest ε of one step at a δ, as an :class:`.Interval` some 1e-9 wide.

    Args: delta_target — in [0, 1); at 0 the answer is infinite unless nothing is sampled;  the others as in
        :func:`renyi`.
    """
    goal = checks.real("delta", delta_target, low=0.0, high=1.0, open_high=True)
    how = {"settings": settings, "sample_rate": sample_rate, "neighbouring": neighbouring, "case": case}
    if delta(0.0, **how) <= goal:
        return Interval.exact(0.0)
    if goal == 0:
        q, only_add = _rate(sample_rate), directions(neighbouring) == ("add",)
        return Interval.exact(-math.log1p(-q) if only_add and q < 1 else math.inf)

    def miss(x):  # nearly straight in ε
        return math.log(max(delta(x, **how), 5e-324)) - math.log(goal)

    low, high = 0.0, 1.0
    while miss(high) > 0:
        low, high = high, 2 * high
    root = brentq(miss, low, high, xtol=1e-13, rtol=1e-11)
    ends, least = [], 1e-9 * max(root, 1e-6)
    for sign in (-1, 1):  # outwards, until δ there is on the other side by more than rounding
        width = least
        while root + sign * width > 0 and -sign * miss(root + sign * width) < 1e-10:
            width *= 2
        ends.append(max(0.0, root + sign * width))
    return Interval(ends[0], root, ends[1])


# ---------------------------------------------------------------------------------------------------------- composition


def composed_epsilon(num_steps, delta, *, settings, sample_rate, neighbouring, points=_POINTS):
    """ε of T steps at δ, between two certified ends, from privacy-loss distributions.

    Above: the pair that dominates both cases, composed. Below: the better of the two cases, each composed alone, which
    data sets of SUM and TSUM attain (where σ₂/τ ≤ σ₁). So the interval is about the mechanism, not about a bound on it.

    Paper: ptr, Figures 3 and 5 (tight).
    Args: num_steps — T, at least 0;  delta — in [1e-200, 1);  settings, sample_rate, neighbouring — as in
        :func:`renyi`;  points — most points of a grid.
    Returns: :class:`.Interval`, ``upper`` is the guarantee.
    """
    num_steps, q = checks.integer("num_steps", num_steps, low=0), _rate(sample_rate)
    delta = checks.real("delta", delta, low=0.0, high=1.0, open_high=True)
    ways = directions(neighbouring)
    if q == 0 or num_steps == 0:
        return Interval.exact(0.0)
    if num_steps == 1:
        return epsilon(delta, settings=settings, sample_rate=q, neighbouring=neighbouring)
    cases, compose = settings.case_pairs(), lambda pair: pairs.compose([(pair, num_steps)], delta=delta, points=points)
    each, whole = {}, {}
    for direction in ways if q < 1 else ("remove",):
        each[direction] = {name: pair.sampled(q, neighbouring=direction) for name, pair in cases.items()}
        whole[direction] = compose(Envelope(tuple(each[direction].values())))
    upper, lower = max(answer.upper for answer in whole.values()), 0.0
    for direction in sorted(whole, key=lambda d: -whole[d].upper):
        for name in ("bounded", "test_fails"):
            if lower < whole[direction].upper * (1 - 1e-4):  # mostly the first is all there is to it
                lower = max(lower, compose(each[direction][name]).lower)
    if ways == ("add",) and q < 1:  # no step's loss is larger than −log(1 − q)
        upper = min(upper, -num_steps * math.log1p(-q))
    lower = min(lower, upper)
    return Interval(lower, min(max(lower, *(answer.estimate for answer in whole.values())), upper), upper)
