"""The least noise, or the most steps, of DP-SGD for a privacy target: never more spent than was asked for.

Source: ours; the accountants are those of :mod:`privrob.accounting.ledger`.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass

from privrob import checks
from privrob.accounting import pld, rdp, subsample
from privrob.accounting.ledger import Ledger
from privrob.kinds import Interval, Neighbouring, NotAvailable, nats

_SMALLEST, _LARGEST = 1e-3, 1e8  # noise multipliers that are searched
_COARSE, _FINE = 2**14, 2**17  # grid points of the search, and of its last word
_MOST_STEPS = 10**12
_CONVERSION = "balle2020"


@dataclass(frozen=True)
class Calibrated:
    """A setting that keeps within a target, and the ε that it spends (``epsilon.upper`` is at most the target).

    ``accountant`` and ``conversion`` (None but for ``rdp``) found it, for ``neighbouring`` and ``sampling``.
    ``tuning_counted``: whether the ε pays for choosing settings by looking at results; it never does so far.
    """

    noise_multiplier: float
    num_steps: int
    epsilon: Interval
    target: float
    delta: float
    accountant: str
    neighbouring: str
    sample_rate: float | None  # None: a history of several
    sampling: str = "poisson"
    conversion: str | None = None  # of rdp
    tuning_counted: bool = False  # the choice of settings by looking at results costs privacy too, and isn't in here


def noise_multiplier_for(
    epsilon, *, delta, sample_rate, num_steps, neighbouring, accountant="pld", tolerance=1e-3
) -> Calibrated:
    """The least noise multiplier at which so many steps spend at most ε.

    Args: epsilon — target, above 0;  delta — in (0, 1);  sample_rate — q in [0, 1];  num_steps — T;
        neighbouring — ``add``, ``remove`` or ``add_remove``;  accountant — ``pld`` or ``rdp``;
        tolerance — relative, of the noise multiplier: how far above the least one the answer may lie.
    Returns: :class:`Calibrated`, checked by the accountant at full precision. Noise multipliers from 1e-3 to 1e8 are
        searched: a larger target gets the smallest, which spends less.
    Raises: ValueError — where the largest spends more than the target.
    """
    target = checks.positive("epsilon", epsilon, finite=True)
    delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
    tolerance = checks.real("tolerance", tolerance, low=1e-9, high=1.0)
    num_steps = checks.integer("num_steps", num_steps, low=0)
    checks.nonnegative("num_steps", num_steps)  # a double holds it
    spent = _spender(delta, sample_rate, neighbouring, accountant)
    assumes = _assumed(delta, sample_rate, neighbouring, accountant)
    result = spent(0.0, num_steps, _FINE)
    if result.upper <= target:  # no step, no record drawn, or a δ above all that there is to tell
        return Calibrated(0.0, num_steps, result, target, **assumes)
    with _without_edge_warnings():
        start = 1.0
        if accountant == "pld":  # a Rényi accountant is fast, and asks for a little more noise than it takes
            by_rdp = _spender(delta, sample_rate, neighbouring, "rdp")
            start = least_noise(lambda sigma: by_rdp(sigma, num_steps, 0).upper, target, 1.0, 0.1) / 1.05
            first = _spender(delta, sample_rate, "remove", accountant)  # the larger direction, as a rule
            start = least_noise(lambda sigma: first(sigma, num_steps, _COARSE).upper, target, start, 0.05)
            start = least_noise(lambda sigma: first(sigma, num_steps, _FINE).upper, target, start, tolerance)
        sigma = least_noise(lambda sigma: spent(sigma, num_steps, _FINE).upper, target, start, tolerance)
    result = spent(sigma, num_steps, _FINE)
    _within_reach(result, target)
    return Calibrated(sigma, num_steps, result, target, **assumes)


def noise_multiplier_for_history(epsilon, *, delta, history, neighbouring, tolerance=1e-3) -> Calibrated:
    """The least noise multiplier at which a whole history of releases spends at most ε.

    Args: history — a function of the noise multiplier, giving ((guarantee, count), …) that a ledger takes: stages,
        snapshots, other mechanisms beside;  epsilon, delta, neighbouring, tolerance — as in
        :func:`noise_multiplier_for`.
    """
    target = checks.positive("epsilon", epsilon, finite=True)
    delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
    tolerance = checks.real("tolerance", tolerance, low=1e-9, high=1.0)
    known = {}

    def spent(sigma, accountant="pld"):
        if (sigma, accountant) not in known:
            ledger = Ledger(neighbouring=neighbouring, sampling="poisson")
            for guarantee, count in history(sigma):
                ledger.add(guarantee, count)
            with warnings.catch_warnings():  # of noise multipliers that nobody asked about
                warnings.simplefilter("ignore")
                answer = ledger.epsilon(delta, accountant=accountant)
            known[sigma, accountant] = Interval(answer.lower, answer.estimate, answer.upper), ledger.num_steps
        return known[sigma, accountant]

    start = least_noise(lambda sigma: spent(sigma, "rdp")[0].upper, target, 1.0, 0.1) / 1.05
    sigma = least_noise(lambda sigma: spent(sigma)[0].upper, target, start, tolerance)
    result, num_steps = spent(sigma)
    _within_reach(result, target)
    return Calibrated(sigma, num_steps, result, target, **_assumed(delta, None, neighbouring, "pld"))


def num_steps_for(epsilon, *, delta, sample_rate, noise_multiplier, neighbouring, accountant="pld") -> Calibrated:
    """The most steps that spend at most ε; 0 where one step is too much.

    Args: as in :func:`noise_multiplier_for`;  noise_multiplier — at least 0.
    Raises: ValueError — where steps without end stay within ε, or more than 10¹² do.
    """
    target = checks.positive("epsilon", epsilon, finite=True)
    delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
    sigma = checks.nonnegative("noise_multiplier", noise_multiplier)
    spent = _spender(delta, sample_rate, neighbouring, accountant)

    def upper(steps):
        with _without_edge_warnings():
            return spent(sigma, steps, _FINE).upper

    low = most_steps(upper, target, f"sample_rate={sample_rate!r}, noise_multiplier={sigma!r}")
    assumes = _assumed(delta, sample_rate, neighbouring, accountant)
    return Calibrated(sigma, low, spent(sigma, low, _FINE), target, **assumes)


def most_steps(epsilon_at, target, told, start=1):
    """The most steps whose ε is at most the target, 0 where one step is too much.

    Args: epsilon_at — steps → ε, non-decreasing;  told — the settings, for an error;  start — a guess.
    """
    misses, low, high, guess = {}, 0, None, max(1, start)  # low is kept within, high is not
    while high is None or high - low > 1:
        value = epsilon_at(guess)
        misses[guess] = math.log(value / target) if value > 0 else -math.inf
        low, high = (guess, high) if value <= target else (low, guess)
        if low > _MOST_STEPS:
            raise ValueError(
                f"epsilon must be one that up to {_MOST_STEPS:.0e} steps reach, got epsilon={target!r}, "
                f"which {low:,} steps at {told} keep within"
            )
        if high is None:  # ε grows like the root of T at first: a little further than that says
            growth = math.exp(-2.2 * misses[low]) if misses[low] > -2 else 64.0
            guess = math.ceil(low * min(growth, 64.0)) + 1
        elif low == 0 or len(misses) % 4 == 0 or not math.isfinite(misses[low] + misses[high]):
            guess = (low + high) // 2
        else:  # a secant on logarithms
            share = misses[low] / (misses[low] - misses[high])
            guess = min(max(int(low * (high / low) ** share), low + 1), high - 1)
    return low


def _within_reach(result, target):
    if result.upper > target:
        raise ValueError(
            f"epsilon must be at least {nats(result.upper)}, what the largest noise multiplier searched, "
            f"{_LARGEST:.0e}, spends, got epsilon={target!r}; ask for more, or take fewer steps"
        )


def _assumed(delta, sample_rate, neighbouring, accountant):
    return {
        "delta": delta,
        "accountant": accountant,
        "neighbouring": Neighbouring.of(neighbouring).value,
        "sample_rate": None if sample_rate is None else float(sample_rate),
        "conversion": _CONVERSION if accountant == "rdp" else None,
    }


@contextlib.contextmanager
def _without_edge_warnings():
    """A search passes through noise multipliers that nobody asked about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rdp.OrderEdgeWarning)
        yield


def _spender(delta, sample_rate, neighbouring, accountant):
    """spent(noise_multiplier, num_steps, points) -> Interval of ε."""
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    relation = Neighbouring.of(neighbouring)
    if relation is Neighbouring.REPLACE:
        raise NotAvailable("the Poisson-sampled Gaussian has an accountant for 'add', 'remove' and 'add_remove' only")
    if checks.choice("accountant", accountant, ["pld", "rdp"]) == "pld":
        how = {"sample_rate": q, "delta": delta, "neighbouring": relation}
        return lambda sigma, steps, points: pld.sampled_gaussian(
            noise_multiplier=sigma, num_steps=steps, points=points, **how
        )
    orders = rdp.default_orders()

    def by_rdp(sigma, steps, points):
        curve = subsample.sampled_gaussian(orders, sample_rate=q, noise_multiplier=sigma, neighbouring=relation)
        total = rdp.compose([curve], [steps])
        upper = rdp.epsilon_of(delta, orders=orders, rdp=total, conversion=_CONVERSION).epsilon
        return Interval(0.0, upper, upper)

    return by_rdp


def least_noise(epsilon_at, target, start, close):
    """About the least noise multiplier with ε at most the target: one whose ε lies at most a share ``close`` below it.

    Or the end of the search that comes nearest: the smallest where it is enough, the largest where even that isn't.
    Secants between one that is too little and one that is enough, on logarithms: there ε falls almost straight, by a
    factor of at least 1 for each of the noise multiplier's.

    Args: epsilon_at — noise multiplier → ε, falling;  start — where the search begins.
    """
    known = {}  # log noise multiplier: log ε / target

    def miss(x):
        value = epsilon_at(math.exp(x))
        known[x] = math.log(value / target) if value > 0 else -math.inf
        return known[x]

    first, last = math.log(_SMALLEST), math.log(_LARGEST)
    x, step = min(max(math.log(start), first), last), math.log(1.02)
    while True:
        here = miss(x)
        if -close <= here <= 0:
            return math.exp(x)
        low = max((k for k, f in known.items() if f > 0), default=None)  # too little
        high = min((k for k, f in known.items() if f <= 0), default=None)  # enough
        if low is None or high is None:
            if x == (last if high is None else first):
                return math.exp(x)
            x = min(x + step, last) if high is None else max(x - step, first)
            step *= 2
            continue
        if high - low < 0.25 * close:
            return math.exp(high)
        above, below = known[low], known[high] + 0.5 * close  # aimed at a little below the target
        share = above / (above - below) if math.isfinite(above) and math.isfinite(below) and below < 0 else 0.5
        x = low + (high - low) * min(max(share, 0.02), 0.98)
