"""Planning with Propose-Test-Release: how many steps a budget pays for, and the noise or the τ that steps need.

Every answer keeps within the budget by the accountant that was asked, and says what it spends.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.accounting import calibrate, pairs, ptr, ptr_bounds, rdp
from privrob.accounting.unions import Envelope
from privrob.kinds import Interval, Neighbouring

ACCOUNTANTS = ("pld", "rdp", "hybrid", "theorem_4_4", "black_box", "direct")
_POINTS = 2**17
_CONVERSION = "balle2020"


@dataclass(frozen=True)
class Plan:
    """Settings and a number of steps that keep within a target: ``epsilon.upper`` is at most ``target``.

    ``accountant`` found it; ``tuning_counted`` says whether choosing the settings by results is paid for (it is not).
    """

    settings: ptr.Settings
    sample_rate: float
    num_steps: int
    epsilon: Interval
    target: float
    delta: float
    accountant: str
    neighbouring: str
    tuning_counted: bool = False

    def __post_init__(self):
        object.__setattr__(self, "neighbouring", Neighbouring.of(self.neighbouring).value)


def orders(*, settings, sample_rate, neighbouring):
    """Rényi orders for Propose-Test-Release: those of every accountant, and more where the bad branch sets in: its
    moment grows so fast in the order that the best one lies just below."""
    tried = _more_orders()
    how = {"settings": settings, "sample_rate": sample_rate, "neighbouring": neighbouring}
    finer = tried
    for _ in range(4):
        fails, bounded = (ptr.renyi(finer, case=case, **how) for case in ptr.CASES)
        above = np.flatnonzero(fails > bounded)
        if not above.size or not above[0]:
            break
        finer = np.linspace(finer[above[0] - 1], finer[above[0]], 12)
        tried = np.union1d(tried, finer)
    return tried


def _more_orders():
    return np.union1d(rdp.default_orders(), np.linspace(1.5, 24, 91))


def spender(accountant, *, settings, sample_rate, delta, neighbouring, tolerance=1e-4):
    """A function of a number of steps that gives the :class:`.Interval` of ε by one accountant.

    ``pld`` (tight), ``rdp`` (exact curve, :func:`privrob.accounting.ptr.renyi`), ``hybrid``, and as the document does
    it: ``theorem_4_4`` (within its conditions: infinite outside them), ``black_box`` and ``direct``.

    Args: accountant — one of :data:`ACCOUNTANTS`;  tolerance — of ``pld``, how far its two ends may be apart, relative.
    """
    checks.choice("accountant", accountant, ACCOUNTANTS)
    delta = checks.probability("delta", delta, allow_one=False)
    how = {"settings": settings, "sample_rate": checks.probability("sample_rate", sample_rate)}
    ptr.directions(neighbouring)
    if accountant == "pld":
        return _by_pairs(delta, neighbouring, tolerance, **how)
    if accountant == "direct":
        return lambda steps: _upper(ptr_bounds.theorem_4_2_composed(steps, delta, **how) if steps else 0.0)
    tried, charged = _more_orders(), 0.0
    if accountant == "rdp":
        tried = orders(neighbouring=neighbouring, **how)
        curve = ptr.renyi(tried, neighbouring=neighbouring, **how)
    elif accountant == "hybrid":
        curve, charged = ptr_bounds.hybrid(tried, neighbouring=neighbouring, **how)
    else:
        curve = {"theorem_4_4": ptr_bounds.theorem_4_4, "black_box": ptr_bounds.black_box}[accountant](tried, **how)

    def by_rdp(steps):
        left = delta + math.expm1(steps * math.log1p(-charged)) if charged else delta
        if left <= 0:
            return _upper(math.inf)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rdp.OrderEdgeWarning)
            total = rdp.compose([curve], [steps])
            return _upper(rdp.epsilon_of(left, orders=tried, rdp=total, conversion=_CONVERSION).epsilon)

    return by_rdp


def _upper(epsilon):
    return Interval(0.0, epsilon, epsilon)


def _by_pairs(delta, neighbouring, tolerance, *, settings, sample_rate):
    """The upper ends alone, from one set of pairs."""
    cases = settings.case_pairs().values()
    relations = ptr.directions(neighbouring) if sample_rate < 1 else ("remove",)
    wholes = [Envelope(tuple(pair.sampled(sample_rate, neighbouring=d) for pair in cases)) for d in relations]

    def spent(steps):
        how = {"delta": delta, "tolerance": tolerance, "points": _POINTS}
        ends = [pairs.compose([(whole, steps)], **how) for whole in wholes] if steps else []
        return _upper(max((end.upper for end in ends), default=0.0))

    return spent


def num_steps_for(epsilon, *, delta, settings, sample_rate, neighbouring, accountant="pld") -> Plan:
    """The most steps that spend at most ε; 0 where one step is too much.

    Args: epsilon — target, above 0;  delta — in (0, 1);  settings — :class:`privrob.accounting.ptr.Settings`;
        sample_rate — q in (0, 1];  neighbouring — ``add``, ``remove`` or ``add_remove``;
        accountant — one of :data:`ACCOUNTANTS`, see :func:`spender`.
    """
    target, delta = _budget(epsilon, delta)
    q = checks.probability("sample_rate", sample_rate, allow_zero=False, hint="pass batch_size / num_records")
    spent = spender(accountant, settings=settings, sample_rate=q, delta=delta, neighbouring=neighbouring)
    told, start = f"sample_rate={q!r}, settings={settings!r}", 1
    if accountant == "pld":  # the hybrid says about where, the direction remove nearly all of the rest
        how = {"settings": settings, "sample_rate": q, "delta": delta}
        by_hybrid = spender("hybrid", neighbouring=neighbouring, **how)
        start = calibrate.most_steps(lambda t: by_hybrid(t).upper, target, told)
        first = spender("pld", neighbouring="remove" if neighbouring != "add" else "add", **how)
        start = calibrate.most_steps(lambda t: first(t).upper, target, told, round(1.15 * start))
        found = spent(start)
        if found.upper <= target:
            return Plan(settings, q, start, found, target, delta, accountant, neighbouring)
    steps = calibrate.most_steps(lambda t: spent(t).upper, target, told, start)
    return Plan(settings, q, steps, spent(steps), target, delta, accountant, neighbouring)


def noise_multiplier_for(
    epsilon,
    *,
    delta,
    sensitivity_bound,
    scale_ratio,
    test_failure,
    sample_rate,
    num_steps,
    neighbouring,
    tolerance=1e-3,
) -> Plan:
    """The least noise multiplier σ₁, with σ₂ = τσ₁, at which so many steps spend at most ε.

    Args: sensitivity_bound — τ / global sensitivity, in (0, 1];  scale_ratio — b;  test_failure — δ₀;
        num_steps — T, at least 1;  tolerance — relative, of the noise multiplier;  the others as above.
    Raises: ValueError — where the test alone spends more than the target, whatever the noise.
    """
    target, delta = _budget(epsilon, delta)
    num_steps = checks.integer("num_steps", num_steps, low=1)
    tolerance = checks.real("tolerance", tolerance, low=1e-6, high=1.0)
    sample_rate = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    rest = {"sensitivity_bound": sensitivity_bound, "scale_ratio": scale_ratio, "test_failure": test_failure}

    def settings_at(noise):
        return ptr.Settings.of(noise_multiplier=noise, **rest)

    def spent(noise):
        how = {"settings": settings_at(noise), "sample_rate": sample_rate, "delta": delta}
        return spender("pld", neighbouring=neighbouring, tolerance=0.1 * tolerance, **how)(num_steps)

    least = spent(1e6).upper
    if least > target:
        raise ValueError(
            f"epsilon must be above {least:.6g}, what {num_steps} tests with scale_ratio={scale_ratio!r} and "
            f"test_failure={test_failure!r} spend by themselves, got epsilon={target!r}; raise scale_ratio"
        )
    how = {"delta": delta, "sample_rate": sample_rate, "num_steps": num_steps, "neighbouring": neighbouring}
    plain = calibrate.noise_multiplier_for(target, tolerance=1e-2, **how).noise_multiplier
    # for small q, a step costs what a Gaussian does whose divergence at order 2 is the sum of both
    spare = 1 / plain**2 - float(rdp.laplace([2.0], scale_ratio=scale_ratio)[0]) if plain else 0.0
    start = 1 / math.sqrt(spare) if spare > 0 else 4 * plain + 1.0
    noise = calibrate.least_noise(lambda noise: spent(noise).upper, target, start, tolerance)
    result = spent(noise)
    return Plan(settings_at(noise), sample_rate, num_steps, result, target, delta, "pld", neighbouring)


def sensitivity_bound_for(
    epsilon, *, delta, noise_multiplier, scale_ratio, test_failure, sample_rate, num_steps, neighbouring, tolerance=1e-3
) -> Plan:
    """The smallest τ, hence the least noise σ₂ = τσ₁ on the robust statistic, at which so many steps spend at most ε.

    Args: noise_multiplier — σ₁;  tolerance — relative, of τ, from 1e-6 to 1;  the others as above;
        scale_ratio — b;  test_failure — δ₀.
    Raises: ValueError — where τ = 1 spends more than the target.
    """
    target, delta = _budget(epsilon, delta)
    num_steps = checks.integer("num_steps", num_steps, low=1)
    tolerance = checks.real("tolerance", tolerance, low=1e-6, high=1.0)
    sample_rate = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    rest = {"noise_multiplier": noise_multiplier, "scale_ratio": scale_ratio, "test_failure": test_failure}

    def plan(log_bound):
        settings = ptr.Settings.of(sensitivity_bound=math.exp(log_bound), **rest)
        how = {"settings": settings, "sample_rate": sample_rate, "delta": delta, "neighbouring": neighbouring}
        spent = spender("pld", **how)(num_steps)
        return Plan(settings, sample_rate, num_steps, spent, target, delta, "pld", neighbouring)

    low, high, best = math.log(1e-6), 0.0, plan(0.0)
    if best.epsilon.upper > target:
        raise ValueError(
            f"epsilon must be at least {best.epsilon.upper:.6g}, what τ = 1 spends, got epsilon={target!r}; "
            "raise noise_multiplier or scale_ratio, or take fewer steps"
        )
    while high - low > tolerance:
        middle = (low + high) / 2
        found = plan(middle)
        low, high, best = (low, middle, found) if found.epsilon.upper <= target else (middle, high, best)
    return best


def gaussian_equivalent(plan):
    """The noise multiplier of a plain Gaussian step that spends as much in as many steps: what the test costs.

    Two methods are aligned in privacy when one has this noise multiplier and the other the plan's.
    """
    if plan.num_steps == 0:
        raise ValueError("plan must have at least one step, got num_steps=0: its budget pays for none")
    how = {"delta": plan.delta, "sample_rate": plan.sample_rate, "num_steps": plan.num_steps}
    return calibrate.noise_multiplier_for(plan.epsilon.upper, neighbouring=plan.neighbouring, **how)


def _budget(epsilon, delta):
    return (
        checks.positive("epsilon", epsilon, finite=True),
        checks.probability("delta", delta, allow_zero=False, allow_one=False),
    )


def drawn(number, *, rng):
    """Settings and sampling rates for checks, extremes included: each range is drawn evenly in the logarithm, and one
    in eight of the values lies at one of its ends.

    Args: number — how many;  rng — numpy generator.
    Returns: list of (:class:`privrob.accounting.ptr.Settings`, sample rate, number of steps).
    """
    ranges = {
        "noise_multiplier": (0.3, 1000.0),
        "sensitivity_bound": (0.05, 1.0),
        "scale_ratio": (0.1, 100.0),
        "test_failure": (1e-12, 0.4),
    }

    def draw(low, high):
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
        return float(rng.choice([low, high])) if rng.random() < 1 / 8 else value

    results = []
    for _ in range(checks.integer("number", number, low=1)):
        settings = ptr.Settings.of(**{name: draw(*ends) for name, ends in ranges.items()})
        results.append((settings, draw(1e-6, 1.0), round(draw(1, 1e5))))
    return results


def compared(counts, *, settings, sample_rate, delta, orders):
    """ε at each of some numbers of steps by every accountant, a row each: what Figures 3 and 5 draw.

    ``PLD`` and its lower end are certified, ``exact RDP``, ``white box`` (within its conditions), ``black box`` and
    ``direct`` are upper bounds; ``white box, anywhere`` is the formula also outside its conditions, and no guarantee.

    Paper: ptr, Figures 3 and 5.
    Args: counts — numbers of steps;  orders — of the Rényi accountants;  the others as in :func:`spender`.
    """
    how = {"settings": settings, "sample_rate": sample_rate}
    curves = {
        "white box, anywhere": ptr_bounds.theorem_4_4(orders, form="unconditional", **how),
        "white box": ptr_bounds.theorem_4_4(orders, **how),
        "black box": ptr_bounds.black_box(orders, **how),
        "exact RDP": ptr.renyi(orders, neighbouring="add_remove", **how),
    }
    rows = []
    for count in counts:
        row = {"T": count}
        for name, curve in curves.items():
            total = rdp.compose([curve], [count])
            row[name] = rdp.epsilon_of(delta, orders=orders, rdp=total, conversion=_CONVERSION).epsilon
        row["direct"] = ptr_bounds.theorem_4_2_composed(count, delta, **how)
        found = ptr.composed_epsilon(count, delta, neighbouring="add_remove", **how)
        rows.append(row | {"PLD": found.upper, "PLD, lower end": found.lower})
    return rows
