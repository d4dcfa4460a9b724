r"""Composition when all that is known of each mechanism is an (ε, δ): the rules, from the plainest to the exact one.

The exact rule rests on one pair of distributions that is worse than every (ε, δ)-DP mechanism: with probability δ the
secret is shown, else it is shown by randomised response, whose privacy loss is ε or -ε (Kairouz, Oh and Viswanath
2015). With P the law of one answer, and losses L adding up over the mechanisms,

.. math:: 1 - \delta_g = \Big(1 - E_P\big[(1 - e^{\varepsilon_g - L})_+\big]\Big) \prod_i (1 - \delta_i).

Between neighbouring values of L the expectation is linear in :math:`e^{\varepsilon_g}`, so that ε is solved for, not
searched. A mechanism of which more is known (a Gaussian, say) composes better: see ``gdp`` and ``pld``.

The rules hold for any neighbouring relation, the same for all mechanisms and for the result; ``parallel`` is the one
that must be told which. The mechanisms may be chosen adaptively, with ε and δ fixed beforehand.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
from scipy.special import expit, gammaln

from privrob import checks
from privrob.accounting.logspace import LOG_SQRT_2PI
from privrob.kinds import Interval, Neighbouring

FORMS = ("dwork_rothblum_vadhan", "kairouz_oh_viswanath")

_EPS = float(np.finfo(np.float64).eps)
_SCALE = 600.0  # masses are held times e^600, so that a δ of 1e-323 has all its digits
_MOST, _POINTS_EXACT, _GRID_WORK, _GRID_MOST = 10**7, 2**20, 3 * 10**8, 5000


@dataclass(frozen=True)
class Composed:
    """The composed mechanism is (``epsilon_upper``, ``delta_upper``)-DP, by the rule that gave the smaller ε."""

    epsilon_upper: float
    delta_upper: float
    rule: str


def basic(epsilons, deltas):
    """Basic composition: both parameters add up.

    Paper: dplearn, Moment accountant for composition of DP mechanisms (what its √T is compared with).
    Args: epsilons — at least 0, infinity allowed, shape (k,);  deltas — in [0, 1], broadcast with epsilons.
    Returns: :class:`Composed`; δ at most 1.
    """
    epsilons, deltas = _parameters(epsilons, deltas)
    return Composed(_sum_up(epsilons), min(_sum_up(deltas), 1.0), "basic")


def advanced(epsilon, delta, *, count, slack, form="dwork_rothblum_vadhan"):
    r"""Advanced composition of k equal mechanisms, which pays a slack δ' for an ε that grows with √k.

    .. math:: \varepsilon\sqrt{2k\log(1/\delta')} + k\varepsilon(e^\varepsilon - 1)
        \quad\text{or}\quad
        \varepsilon\sqrt{2k\log\min(1/\delta',\, e + \sqrt{k}\varepsilon/\delta')} + k\varepsilon\tanh(\varepsilon/2)

    The first is Dwork, Rothblum and Vadhan (2010) with total δ = kδ + δ'; the second, never more, is Theorem 3.4 of
    Kairouz, Oh and Viswanath (2015), with total δ = 1 - (1 - δ)^k (1 - δ').

    Args: epsilon — at least 0;  delta — in [0, 1];  count — k, at least 0;  slack — δ' in (0, 1);
        form — ``dwork_rothblum_vadhan`` or ``kairouz_oh_viswanath``.
    Returns: :class:`Composed`. Where basic composition gives a smaller or equal ε, its ε and δ, and ``rule`` says so.
    """
    epsilon, delta, count = _repeated(epsilon, delta, count)
    slack = checks.probability("slack", slack, allow_zero=False, allow_one=False, hint="basic() needs no slack")
    checks.choice("form", form, FORMS)
    plain = Composed(_times_up(count, epsilon), min(_times_up(count, delta), 1.0), "basic")
    if count == 0 or epsilon == 0 or math.isinf(epsilon):
        return plain
    if form == "dwork_rothblum_vadhan":
        with np.errstate(over="ignore"):
            drift = float(np.expm1(epsilon))
        log_term, total = -math.log(slack), min(_sum_up([_times_up(count, delta), slack]), 1.0)
    else:
        drift = math.tanh(epsilon / 2)
        log_term = min(-math.log(slack), math.log(math.e + math.sqrt(count) * epsilon / slack))
        kept = count * math.log1p(-delta) if delta < 1 else -math.inf
        total = min(-math.expm1(kept + math.log1p(-slack)) * (1 + 8 * _EPS), 1.0)
    value = epsilon * (math.sqrt(2 * count * log_term) + count * drift)
    return plain if plain.epsilon_upper <= value else Composed(value * (1 + 16 * _EPS), total, form)


def optimal(epsilon, delta, *, count, total_delta):
    """The smallest ε that k-fold composition of any (ε, δ)-DP mechanisms has at a total δ: no rule can do better.

    Paper: dplearn, Moment accountant for composition of DP mechanisms (judges its example).
    Kairouz, Oh and Viswanath (2015), Theorem 3.3, which lists the values at ε(k - 2i); here any ε between them too.
    Args: epsilon — at least 0;  delta — in [0, 1];  count — k in [0, 10^7];  total_delta — in [0, 1].
    Returns: :class:`.Interval` around the exact value, of relative width about 1e-11;  infinity where total_delta is
        below 1 - (1 - δ)^k, which is the probability that some secret was shown outright.
    """
    epsilon, delta, count = _repeated(epsilon, delta, count, high=_MOST)
    total = checks.probability("total_delta", total_delta)
    left = _delta_left(total, [delta], [count])
    easy = _easy(_times_up(count, epsilon), total, left)
    return _binary(epsilon, count).epsilon(left) if easy is None else Interval.exact(easy)


def optimal_delta(epsilon, delta, *, count, total_epsilon):
    """The smallest δ that k-fold composition of any (ε, δ)-DP mechanisms has at a total ε: the other axis of `optimal`.

    Args: epsilon — at least 0;  delta — in [0, 1];  count — k in [0, 10^7];  total_epsilon — at least 0.
    Returns: :class:`.Interval` around the exact value.
    """
    epsilon, delta, count = _repeated(epsilon, delta, count, high=_MOST)
    total = checks.nonnegative("total_epsilon", total_epsilon)
    if count == 0 or epsilon == 0 or math.isinf(epsilon) or total >= epsilon * count:
        loss = Interval.exact(1.0 if math.isinf(epsilon) and count and total < math.inf else 0.0)
    else:
        loss = _binary(epsilon, count).delta(total)
    return _with_atoms(loss, [delta], [count])


def optimal_heterogeneous(epsilons, deltas, *, total_delta):
    """The smallest ε that composition of (ε_i, δ_i)-DP mechanisms has at a total δ.

    The exact value is #P-hard (Murtagh and Vadhan 2016). Equal ε are counted together; up to 2^20 different sums are
    listed one by one. Beyond that, and up to 5000 mechanisms, losses go on a grid. Upper end: each loss is split
    between its two neighbours on the grid, keeping its P and Q; merging the two gives the true loss back, so that the
    split mechanism leaks no less. Lower end: only the sum of the rounded losses is told, which leaks no more. Both
    err in second order of the grid. Above 5000: Theorem 3.5 of Kairouz, Oh and Viswanath (2015) from above, and as
    many equal mechanisms with the smallest ε from below.

    Args: epsilons — at least 0, shape (k,);  deltas — in [0, 1], broadcast with epsilons;  total_delta — in [0, 1].
    Returns: :class:`.Interval`; exact to about 1e-11 where sums were listed.
    """
    epsilons, deltas = _parameters(epsilons, deltas)
    total = checks.probability("total_delta", total_delta)
    left = _delta_left(total, *np.unique(deltas, return_counts=True))
    easy = _easy(_sum_up(epsilons), total, left)
    if easy is not None:
        return Interval.exact(easy)
    low, high = _heterogeneous(epsilons)
    if low is high:
        return low.epsilon(left)
    lower, upper = 0.0 if low is None else low.epsilon(left).lower, _sum_up(epsilons)
    if left > 0:
        size, drift = math.sqrt(float(np.sum(epsilons**2))), float(np.sum(epsilons * np.tanh(epsilons / 2)))
        root = size * math.sqrt(2 * min(-math.log(left), math.log(math.e + size / left)))
        upper = min(upper, (drift + root) * (1 + 1e-12))
    upper = upper if high is None else min(upper, high.epsilon(left).upper)
    return Interval(min(lower, upper), upper, upper)


def optimal_heterogeneous_delta(epsilons, deltas, *, total_epsilon):
    """The smallest δ that composition of (ε_i, δ_i)-DP mechanisms has at a total ε: see `optimal_heterogeneous`.

    Args: epsilons — at least 0, shape (k,);  deltas — in [0, 1], broadcast with epsilons;  total_epsilon — at least 0.
    Returns: :class:`.Interval`.
    """
    epsilons, deltas = _parameters(epsilons, deltas)
    total = checks.nonnegative("total_epsilon", total_epsilon)
    if total >= _sum_up(epsilons):
        loss = Interval.exact(0.0)
    elif np.isinf(epsilons).any():
        loss = Interval.exact(1.0)
    else:
        low, high = _heterogeneous(epsilons)
        lower = 0.0 if low is None else low.delta(total).lower
        upper = 1.0 if high is None else high.delta(total).upper
        loss = low.delta(total) if low is high else Interval(min(lower, upper), upper, upper)
    return _with_atoms(loss, *np.unique(deltas, return_counts=True))


def parallel(epsilons, deltas, *, neighbouring, partition):
    """Mechanisms that each see a part of the records, no two the same one: the worst part counts.

    Args: epsilons, deltas — of each mechanism under ``neighbouring`` (but see by_value), shape (k,);
        neighbouring — ``add``, ``remove``, ``add_remove`` or ``replace``;
        partition — ``by_index``: a record's place decides its part, and a replaced record stays there;
        ``by_value``: its content decides. Then replacing a record is taking one out and putting one in, in two parts
        or in one: the parameters are for ``add_remove``, and the worst part counts twice.
    Returns: :class:`Composed`.
    """
    epsilons, deltas = _parameters(epsilons, deltas)
    relation = Neighbouring.of(neighbouring)
    checks.choice("partition", partition, ["by_index", "by_value"])
    epsilon, delta = (float(np.max(v, initial=0.0)) for v in (epsilons, deltas))
    if relation is Neighbouring.REPLACE and partition == "by_value":
        twice = group(epsilon, delta, size=2)
        return Composed(twice.epsilon_upper, twice.delta_upper, "parallel, by_value")
    return Composed(epsilon, delta, f"parallel, {partition}")


def group(epsilon, delta, *, size):
    r"""Group privacy: data sets that differ in up to g steps of the neighbouring relation.

    .. math:: \Big(g\varepsilon,\ \delta\,\frac{e^{g\varepsilon} - 1}{e^{\varepsilon} - 1}\Big)

    Args: epsilon — at least 0;  delta — in [0, 1];  size — g, at least 0.
    Returns: :class:`Composed`; δ at most 1.
    """
    epsilon, delta, size = _repeated(epsilon, delta, size, name="size")
    total = _times_up(size, epsilon)
    if epsilon == 0 or delta == 0 or size <= 1:
        return Composed(total, min(_times_up(size, delta), 1.0), "group")
    log_factor = math.inf
    if math.isfinite(total):
        log_factor = (size - 1) * epsilon + math.log(-math.expm1(-size * epsilon)) - math.log(-math.expm1(-epsilon))
    factor = math.exp(log_factor) * (1 + (16 + 4 * log_factor) * _EPS) if log_factor < 700 else math.inf
    return Composed(total, min(delta * factor, 1.0), "group")


# ----------------------------------------------------------------------------------------------- sums of privacy losses


@dataclass(frozen=True)
class _Losses:
    """A discrete privacy loss: values in falling order, log masses under P. Those at most 0 may be left out.

    ``error`` bounds the relative error of an expectation, ``lost`` the mass that is missing from it.
    """

    loss: np.ndarray
    log_mass: np.ndarray
    error: float
    lost: float = 0.0

    def _scaled_delta(self, epsilon):
        """e^600 E[(1 − e^{ε − L})₊]: a sum of positive terms."""
        n = int(np.searchsorted(-self.loss, -epsilon))  # values above ε
        return float(np.sum(np.exp(self.log_mass[:n] + _SCALE) * -np.expm1(epsilon - self.loss[:n])))

    def delta(self, epsilon):
        """E[(1 − e^{ε − L})₊] with its error on both sides."""
        value = self._scaled_delta(epsilon) * math.exp(-_SCALE)
        slack = min(self.error + 8 * _EPS, 1.0)
        return Interval(value * (1 - slack), min(value, 1.0), min(value * (1 + slack) + self.lost, 1.0))

    def epsilon(self, target):
        """The ε at which the expectation falls to the target, rounded outwards."""
        slack = min(self.error + 8 * _EPS, 1.0)
        upper = self._solve(max(target * (1 - slack) - self.lost, 0.0))
        lower, estimate = self._solve(max(target * (1 + slack), 5e-324)), self._solve(target)
        upper, lower = upper * (1 + 16 * _EPS), lower * (1 - 16 * _EPS)
        return Interval(lower, min(max(estimate, lower), upper), upper)

    def _solve(self, target):
        if target <= 0:
            return float(self.loss[0])
        target = math.exp(math.log(target) + _SCALE)
        if self._scaled_delta(0.0) <= target:
            return 0.0
        low, high = 0, int(np.searchsorted(-self.loss, 0.0))
        while high - low > 1:  # δ(loss[low]) ≤ target; above it at loss[high], or at 0 if there is none
            middle = (low + high) // 2
            if self._scaled_delta(self.loss[middle]) <= target:
                low = middle
            else:
                high = middle
        kink = float(self.loss[low])
        following = max(float(self.loss[high]), 0.0) if high < self.loss.size else 0.0
        slope = float(np.sum(np.exp(self.log_mass[: low + 1] + _SCALE + kink - self.loss[: low + 1])))
        rest = (target - self._scaled_delta(kink)) / slope
        return max(kink + math.log1p(-rest) if rest < 1 else -math.inf, following)


def _binary(epsilon, count):
    """k randomised responses: the loss is (k − 2l)ε, l is binomial. Only positive losses, and no mass below e^-1250."""
    wrong = float(expit(-epsilon))
    first = max(0, math.floor(count * wrong - 25 * math.sqrt(count)) - 1)  # Hoeffding: exp(−2 · 625)
    number = np.arange(first, (count - 1) // 2 + 1, dtype=np.float64)
    error = 1e-12 + 8 * _EPS * (25 * math.sqrt(count) + count * epsilon)
    loss = (count - 2 * number) * epsilon
    log_mass = _log_binomial(number, count, wrong, float(expit(epsilon)), -math.log1p(math.exp(-epsilon)))
    if first > 0:  # what was left out lies above, with mass e^-1250: a target of 0 must still see the largest loss
        loss, log_mass = np.append(count * epsilon, loss), np.append(-math.inf, log_mass)
    return _Losses(loss, log_mass, error)


def _log_binomial(number, count, prob, other, log_other):
    """log of C(k, l) p^l (1 − p)^(k−l) for l < k, to about 14 digits of the mass (saddle point form, Loader 2000)."""
    inside = np.maximum(number, 1.0)
    rest = np.maximum(count - inside, 1.0)
    value = _stirling_error(np.float64(count)) - _stirling_error(inside) - _stirling_error(rest)
    value = value - _deviance(inside, count * prob) - _deviance(rest, count * other)
    value += 0.5 * (np.log(count / rest) - np.log(inside)) - LOG_SQRT_2PI
    return np.where(number == 0, count * log_other, value)


def _stirling_error(n):
    """log n! − log(√(2πn) (n/e)^n) for n at least 1."""
    small, n = np.minimum(n, 16.0), np.maximum(n, 16.0)
    direct = gammaln(small + 1) - (small + 0.5) * np.log(small) + small - LOG_SQRT_2PI
    i = 1 / n**2
    series = (1 / 12 - i * (1 / 360 - i * (1 / 1260 - i * (1 / 1680 - i * (1 / 1188 - i * 691 / 360360))))) / n
    return np.where(n > 16.0, series, direct)


def _deviance(x, mean):
    """x log(x/m) + m − x, without cancellation where x is close to m."""
    gap, total = x - mean, x + mean
    v = gap / total
    near = np.clip(v, -0.1, 0.1) ** 2
    series = np.zeros_like(v)
    for j in range(10, 0, -1):
        series = (series + 1 / (2 * j + 1)) * near
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = x * np.log(x / mean) - gap
    return np.where(np.abs(v) < 0.1, gap * v + 2 * x * v * series, np.where(mean > 0, direct, np.inf))


def _heterogeneous(epsilons):
    """Losses from below and from above, the same ones where they are exact; None where there are too many."""
    values, counts = np.unique(epsilons[epsilons > 0], return_counts=True)
    if math.fsum(math.log(n + 1) for n in counts) <= math.log(_POINTS_EXACT) + 1e-9:
        return (_listed(values, counts),) * 2
    if counts.sum() <= _GRID_MOST:
        return _on_grid(values, counts, up=False), _on_grid(values, counts, up=True)
    return _binary(float(values[0]), min(int(counts.sum()), _MOST)), None


def _listed(values, counts):
    """Every sum of losses with its mass."""
    loss, log_mass, error = np.zeros(1), np.zeros(1), 1e-12
    for value, n in zip(values.tolist(), counts.tolist()):
        wrong, log_right = float(expit(-value)), -math.log1p(math.exp(-value))
        number = np.arange(n, dtype=np.float64)
        part = _log_binomial(number, n, wrong, float(expit(value)), log_right)
        part = np.append(part, n * (log_right - value))  # all n wrong
        loss = (loss[:, None] + (n - 2 * np.arange(n + 1)) * value).ravel()
        log_mass = (log_mass[:, None] + part).ravel()
        error += 1e-14 + 8 * _EPS * n * (1 + value)
    order = np.argsort(-loss, kind="stable")
    return _Losses(loss[order], log_mass[order], error)


def _on_grid(values, counts, *, up):
    """Losses on a grid: each split between its two neighbours (up), or only the sum of the rounded losses told."""
    k = int(counts.sum())
    step = 2 * float(np.sum(values * counts)) / max(min(_GRID_WORK // k, 2**20) - 2 * k, 4 * k)
    mass, top = np.ones(1), 0  # mass[j] is the probability of (top − j) steps
    for value, n in zip(values.tolist(), counts.tolist()):
        right, wrong, cells = float(expit(value)), float(expit(-value)), math.floor(value / step)
        if up:
            above, whole = min(max(value - cells * step, 0.0), step), math.expm1(-step)
            below = step - above  # distances to the two neighbours
            parts = [
                (cells + 1, right * math.expm1(-above) / whole),
                (cells, right * math.exp(-above) * math.expm1(-below) / whole),
                (-cells, wrong * math.expm1(-below) / whole),
                (-cells - 1, wrong * math.exp(-below) * math.expm1(-above) / whole),
            ]
        else:
            cells = round(value / step)
            parts = [(cells, right), (-cells, wrong)]
        highest, lowest = max(c for c, _ in parts), min(c for c, _ in parts)
        for _ in range(n):
            grown = np.zeros(mass.size + highest - lowest)
            for c, m in parts:
                grown[highest - c : highest - c + mass.size] += m * mass
            mass, top = grown, top + highest
    error = 1e-11 + 16 * k * _EPS
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    if up:
        return _Losses((top - np.arange(mass.size)) * step, log_mass, error, lost=1e-295)
    log_other = log_mass[::-1]  # of Q: the same with the signs turned
    seen = np.minimum(log_mass, log_other) > -650
    loss, log_mass = log_mass[seen] - log_other[seen] - 32 * k * _EPS, log_mass[seen]
    order = np.argsort(-loss, kind="stable")
    return _Losses(loss[order], log_mass[order], error)


# ------------------------------------------------------------------------------------------------------ the δ of each


_DIGITS = decimal.Context(prec=800, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)  # 1 − 1e-300 is not 1


def _kept(deltas, counts):
    """Π(1 − δ_i)^n_i."""
    kept = Decimal(1)
    for delta, n in zip(deltas, counts):
        if n:
            factor = _DIGITS.power(_DIGITS.subtract(Decimal(1), Decimal(float(delta))), int(n))
            kept = _DIGITS.multiply(kept, factor)
    return kept


def _delta_left(total, deltas, counts):
    """What the total leaves for randomised response: 1 − (1 − total)/Π(1 − δ_i); −1 where it is negative."""
    kept = _kept(deltas, counts)
    if total == 1 or not kept:
        return 1.0 if total == 1 else -1.0
    left = _DIGITS.subtract(Decimal(1), _DIGITS.divide(_DIGITS.subtract(Decimal(1), Decimal(total)), kept))
    return float(left) if left >= 0 else -1.0


def _with_atoms(loss, deltas, counts):
    """1 − (1 − δ̃) Π(1 − δ_i) at each end, rounded outwards."""
    kept = _kept(deltas, counts)
    if kept == 1:
        return loss
    gone, kept = float(_DIGITS.subtract(Decimal(1), kept)), float(kept)
    low, middle, high = (gone + kept * v for v in (loss.lower, loss.estimate, loss.upper))
    return Interval(low * (1 - 4 * _EPS), min(middle, 1.0), min(high * (1 + 4 * _EPS), 1.0))


def _easy(epsilon, total, left):
    """The ε where there is nothing to solve, else None. ``epsilon`` is the sum of all."""
    if total == 1 or (epsilon == 0 and left >= 0):
        return 0.0
    return math.inf if left < 0 or math.isinf(epsilon) else None


def _parameters(epsilons, deltas):
    epsilons = np.atleast_1d(checks.array("epsilons", epsilons, finite=False))
    deltas = np.atleast_1d(checks.array("deltas", deltas))
    if epsilons.ndim != 1 or deltas.ndim != 1 or (deltas.size not in (1, epsilons.size) and epsilons.size != 1):
        raise ValueError(
            f"epsilons and deltas must be lists of one length, got shapes {epsilons.shape} and {deltas.shape}; "
            "one number may stand for all"
        )
    if not (epsilons >= 0).all():  # also catches NaN
        raise ValueError(f"epsilons must all be at least 0, got epsilons={epsilons}")
    if not ((deltas >= 0) & (deltas <= 1)).all():
        raise ValueError(f"deltas must all lie in [0, 1], got deltas={deltas}")
    return np.broadcast_arrays(epsilons, deltas)


def _repeated(epsilon, delta, count, *, name="count", high=10**15):
    epsilon, delta = checks.nonnegative("epsilon", epsilon), checks.probability("delta", delta)
    return epsilon, delta, checks.integer(name, count, low=0, high=high)


def _sum_up(values):
    """The sum, rounded up unless it is exact."""
    values = [float(v) for v in values]
    total = math.fsum(values) if sum(values) < math.inf else math.inf
    return math.nextafter(total, math.inf) if total < math.inf and math.fsum([*values, -total]) > 0 else total


def _times_up(count, value):
    """A whole multiple, rounded up unless it is exact; 0 times anything is 0."""
    if count == 0 or value == 0:
        return 0.0
    product = count * value
    exact = product == math.inf or Fraction(product) >= Fraction(value) * count
    return product if exact else math.nextafter(product, math.inf)
