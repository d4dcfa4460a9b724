r"""What the document and others prove about Propose-Test-Release: to be drawn beside the exact values.

Each bound here is an upper bound within its conditions; :mod:`privrob.accounting.ptr` has the exact numbers. What is
wrong as printed has ``form="as_printed"``, and a test that refutes it.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar

from privrob import checks
from privrob.accounting import compose, gdp, ptr, rdp, subsample
from privrob.accounting.logspace import log_power_excess_over_ratio, log_sampled_ratio
from privrob.accounting.quadrature import log_integral
from privrob.kinds import Interval

DIRECT_FORMS = ("sound", "classic", "as_printed")
LEAST_NOISE = 4.0  # noise multiplier that Lemma A.1 asks for


def theorem_4_2(delta, *, settings, form="sound"):
    r"""ε of one run at a total δ by the direct analysis: the test by itself, the answer by itself, δ₀ given away.

    .. math:: \varepsilon = \tfrac1b + \varepsilon_N(\delta - \delta_0)

    ``sound`` takes the exact ε_N (Balle and Wang 2018); ``classic`` :math:`\sqrt{2\log(1.25/\delta)}/\sigma_1`, which
    is proved up to ε_N = 1 only: beyond, the larger of both.

    Paper: ptr, Theorem 4.2.
    Printed: e^{1/b} for the Laplace test (1 for infinite noise), σ₁√(2 log(1.25/δ)) (grows with the noise).
    Used: 1/b, and the noise below the root.
    Args: delta — total, in [0, 1);  settings — :class:`privrob.accounting.ptr.Settings`.
    Returns: float; infinite where δ is at most δ₀.
    """
    delta = checks.real("delta", delta, low=0.0, high=1.0, open_high=True)
    checks.choice("form", form, DIRECT_FORMS)
    left, noise = delta - settings.test_failure, settings.bounded_noise_multiplier
    if left <= 0:
        return math.inf
    root = math.sqrt(2 * math.log(1.25 / left))
    if form == "as_printed":
        return math.exp(min(1 / settings.scale_ratio, 700.0)) + noise * root
    answer = float(gdp.epsilon_of(left, gdp_mu=1 / noise))
    if form == "classic":
        answer = root / noise if root <= noise else max(root / noise, answer)
    return 1 / settings.scale_ratio + answer


def theorem_4_2_composed(num_steps, delta, *, settings, sample_rate, rule="optimal", form="sound"):
    """ε of T steps by Theorem 4.2, amplified by sampling, then composed: the document's "Direct Analysis".

    Each step is (log(1 + q(e^ε − 1)), q(δ₀ + δ'))-DP; δ' is chosen to make the result smallest.

    Paper: ptr, Figure 3 ("strong composition").
    Args: rule — ``optimal`` (Kairouz, Oh and Viswanath 2015, Theorem 3.3: the best of all rules) or ``advanced`` (their
        Theorem 3.4, slack chosen with δ');  form — ``sound`` or ``classic``, as in :func:`theorem_4_2`.
    Returns: float; infinite where the T steps' δ₀ alone exceed δ.
    """
    num_steps = checks.integer("num_steps", num_steps, low=1)
    delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
    checks.choice("rule", rule, ["optimal", "advanced"])
    checks.choice("form", form, ["sound", "classic"])
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    if q == 0:
        return 0.0
    spare = min(delta / (num_steps * q), 1 - 1e-9) - settings.test_failure
    if spare <= 0:
        return math.inf

    def total(log_share):
        whole = settings.test_failure + math.exp(log_share) * spare
        each = theorem_4_2(whole, settings=settings, form=form)
        epsilon, step_delta = subsample.amplified_dp(each, whole, sample_rate=q)
        if rule == "optimal":
            return compose.optimal(epsilon, step_delta, count=num_steps, total_delta=delta).upper
        slack = -math.expm1(math.log1p(-delta) - num_steps * math.log1p(-step_delta))
        if slack <= 0:
            return math.inf
        found = compose.advanced(epsilon, step_delta, count=num_steps, slack=slack, form="kairouz_oh_viswanath")
        return found.epsilon_upper

    tried = np.log(np.concatenate([np.geomspace(1e-6, 0.1, 6), [0.3, 0.5, 0.7, 0.9, 0.97, 0.999]]))
    values = [total(x) for x in tried]
    best = int(np.argmin(values))
    low, high = tried[max(best - 1, 0)], tried[min(best + 1, tried.size - 1)]
    found = minimize_scalar(total, bounds=(low, high), method="bounded", options={"xatol": 1e-3})
    return float(min(values[best], found.fun))


def lemma_a1(orders, *, sample_rate, noise_multiplier, form="sound"):
    r"""Bound on the sampled Gaussian's moment by Mironov, Talwar and Zhang 2019: :math:`1 + 2q^2 a(a-1)/\sigma^2`.

    Paper: ptr, Lemma A.1 (its σ is in units of the sensitivity: σ/τ ≥ 4 is what it needs).
    Args: form — ``sound``: infinite at the orders where its conditions fail;  ``unconditional``: the formula anywhere,
        to be drawn, never a guarantee.
    Returns: nats, shape (k,).
    """
    orders = checks.orders(orders)
    checks.choice("form", form, ["sound", "unconditional"])
    q = checks.probability("sample_rate", sample_rate, allow_zero=False)
    noise_multiplier = checks.positive("noise_multiplier", noise_multiplier, finite=True)
    log_excess = math.log(2) + 2 * np.log(q) + np.log(orders) - 2 * math.log(noise_multiplier)
    curve = rdp.curve_of(log_excess, orders - 1)
    fine = (q <= 0.2) & _lemma_conditions(orders, q, noise_multiplier)
    return np.where(fine | (form == "unconditional"), curve, np.inf)


def _lemma_conditions(orders, rate, noise):
    """Whether σ and each order satisfy Lemma A.1 at a sampling rate."""
    if noise < LEAST_NOISE:
        return np.zeros(orders.shape, dtype=bool)
    noise = min(noise, 1e100)  # more noise would allow more orders yet
    bend = np.log1p(1 / (rate * (orders - 1)))
    first = orders <= noise**2 * bend / 2 - 2 * math.log(noise)
    top = noise**2 * bend**2 / 2 - math.log(5) - 2 * math.log(noise)
    second = orders <= top / (bend + np.log(rate * orders) + 1 / (2 * noise**2))
    return first & second


def _theorem_4_4_conditions(orders, settings, q):
    small = math.exp(-1 / settings.scale_ratio)
    rate = q / (q + (1 - q) * small)  # the largest A(s)
    aligned = math.isclose(settings.bounded_noise_multiplier, settings.noise_multiplier, rel_tol=1e-12)
    fine = q <= small / (4 + small) and aligned
    return fine & _lemma_conditions(orders, rate, settings.robust_noise_multiplier)


def theorem_4_4(orders, *, settings, sample_rate, form="sound"):
    r"""The "white-box bound" on one step of Poisson-sampled Propose-Test-Release: :math:`\max(B_0, B_1, B_2)`.

    With :math:`r = 1 - q + q e^{\ell}` for the loss ℓ of the Laplace test, and A the share q e^ℓ/r,

    .. math:: B_1 = E_{\mu_0}[r^a] + \tfrac{2a(a-1)}{\sigma_1^2} E_{\mu_0}[r^a A^2], \quad
        B_2 = E_{\mu_0}[r^{1-a}] + \tfrac{2a(a-1)}{\sigma_1^2} E_{\mu_0}[r^{1-a} A^2]

    Paper: ptr, Theorem 4.4.
    Printed: B₁ and B₂ of the main text lack 1/σ₁².   Used: the appendix, Equations 42 to 44.
    Assumes: q ≤ e^{−1/b}/(4 + e^{−1/b}), σ₁ ≥ σ₂ ≥ 4, σ₁ = σ₂/τ, and an order small enough (no experiment of the
        document has σ₂ ≥ 4).
    Args: form — ``sound``: infinite where a condition fails, at an order or at all;  ``as_printed``: the main text's
        formula within the conditions;  ``unconditional``: the formula anywhere, to be drawn, never a guarantee.
    Returns: nats, shape (k,).
    """
    orders = checks.orders(orders)
    checks.choice("form", form, ["sound", "as_printed", "unconditional"])
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    if q == 0:
        return np.zeros_like(orders)
    noise = 1.0 if form == "as_printed" else settings.noise_multiplier
    s, chance = orders - 1, settings.test_failure
    checks.real("noise_multiplier", settings.noise_multiplier, low=1e-150, high=1e150)
    checks.real("robust_noise_multiplier", settings.robust_noise_multiplier, low=1e-150, high=1e150)
    rate = (1 - chance) / settings.noise_multiplier**2 + chance / settings.robust_noise_multiplier**2
    found = [math.log(2) + 2 * math.log(q) + np.log(orders) + math.log(rate)]  # log of (B − 1)/s, here of B₀
    for direction in ("remove", "add"):
        first, second = _laplace_moments(s, q, settings.scale_ratio, direction)
        found.append(np.logaddexp(first, math.log(2) + np.log(orders) - 2 * math.log(noise) + second))
    curve = rdp.curve_of(np.maximum.reduce(found), s)
    if form == "unconditional":
        return curve
    return np.where(_theorem_4_4_conditions(orders, settings, q), curve, np.inf)


def _laplace_moments(s, q, scale_ratio, direction):
    """log of (R − 1)/s and of R − 2(1−q)R' + (1−q)²R'' = E[r^a A²], for the sampled Laplace test alone."""
    beta = 1 / scale_ratio
    log_odds = math.log(q) - math.log1p(-q) if q < 1 else math.inf
    steps = (1 / (1 + s) / 4)[:, None] * 2.0 ** np.arange(0, 40)
    steps = np.where(steps < 2 * beta, steps, 0.0)
    corners = [-beta, beta, min(max(-log_odds, -beta), beta)]
    edges = np.concatenate([c + sign * steps for c in corners for sign in (-1, 1)], axis=1)
    edges = np.sort(np.clip(edges, -beta, beta), axis=1)

    def logs(loss, order, which):
        ratio = log_sampled_ratio(loss, q) if q < 1 else loss
        if which == 0:
            up = ratio if direction == "remove" else -ratio
            return (ratio if direction == "remove" else 0.0) + log_power_excess_over_ratio(up, order)
        power = order + 1 if direction == "remove" else -order
        return power * ratio + 2 * (math.log(q) + loss - ratio)

    results = []
    for which in (0, 1):
        low, high = (math.log(0.5) + logs(np.float64(end), s, which) for end in (-beta, beta))
        middle = log_integral(
            lambda row, loss, which=which: math.log(0.25) - (loss + beta) / 2 + logs(loss, s[row][:, None], which),
            edges,
            stands_in="infinity",
        )
        results.append(np.logaddexp.reduce([low, high - beta, middle]))
    return results


def theorem_4_4_largest_order(*, settings, sample_rate):
    """The largest order at which Theorem 4.4's conditions hold; 1 where they hold nowhere.

    Paper: ptr, Theorem 4.4 (full version).
    """
    q = checks.probability("sample_rate", sample_rate, allow_zero=False)
    tried = 1 + np.geomspace(1e-3, 1e7, 2001)
    fine = _theorem_4_4_conditions(tried, settings, q)
    if not fine[0]:
        return 1.0
    if fine.all():
        return math.inf
    last = int(np.argmin(fine))
    low, high = tried[last - 1], tried[last]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _theorem_4_4_conditions(np.array([middle]), settings, q)[0] else (low, middle)
    return float(low)


def black_box(orders, *, settings, sample_rate, side="upper"):
    """Theorem 4.3 put into the general bounds of Zhu and Wang 2019: what any mechanism with its curve spends at most,
    and what some mechanism with that curve spends at least.

    Paper: ptr, Figure 2.
    Args: side — ``upper`` or ``lower``. The lower bound is attained by Propose-Test-Release itself at whole orders
        where ``bounded`` is its larger case: there it is the exact value.
    """
    checks.choice("side", side, ["upper", "lower"])

    def at(order):
        return float(ptr.renyi([float(order)], settings=settings, sample_rate=1.0, neighbouring="add_remove")[0])

    relation = "add_remove" if side == "upper" else "remove"
    return subsample.poisson_amplified(orders, sample_rate=sample_rate, rdp_at=at, neighbouring=relation)


def hidden_margin(orders, *, settings):
    r"""Equation 37's bound on the variant that keeps its noisy margin to itself: :math:`a/(2\sigma^2) + a/((a-1)b)`.

    It is never below Theorem 4.3's second term, which bounds this variant too, as leaving out the margin is
    post-processing.

    Paper: ptr, A.1.1 (its case 2).
    Side: upper.
    Args: orders — each > 1, shape (k,);  settings — of :class:`privrob.accounting.ptr.Settings`.
    """
    orders = checks.orders(orders)
    noise = settings.bounded_noise_multiplier
    return rdp.gaussian(orders, noise_multiplier=noise) + orders / ((orders - 1) * settings.scale_ratio)


def outcome_only(orders, *, settings, case="both"):
    r"""Rényi curve of the variant that tells the outcome of its test, but not the noisy margin: below Theorem 4.3.

    The outcome is a bit. For margins k and k + 1 it passes with the probabilities p and p' of the Laplace tail above
    B − k and B − k − 1, and given the bit the answer has moved as before, so that case 2 costs

    .. math:: \tfrac{a}{2\sigma^2} + \max_k \tfrac{1}{a-1} \log\big(p'^a p^{1-a} + (1-p')^a (1-p)^{1-a}\big),

    in either direction; case 1 is the public coin that it was. The variant that hides the outcome, too, is this one's
    post-processing: so there is a simple bound that is better than Theorem 4.3's.

    Paper: ptr, A.1.1 (its last paragraph sees no simple improvement).
    Assumes: whole margins, from 0 on.
    Args: case — as in :func:`privrob.accounting.ptr.renyi`.
    Returns: nats, shape (k,), exact for the variant that tells the outcome.
    """
    orders, scale = checks.orders(orders), settings.scale_ratio
    how = {"settings": settings, "sample_rate": 1.0, "neighbouring": "add_remove"}
    if checks.choice("case", case, ["both", *ptr.CASES]) == "test_fails" or math.isinf(scale):
        return ptr.renyi(orders, case=case, **how)
    # Beyond the threshold the bit tells less with every record: the first of a few that are passed is the worst there.
    checks.real("scale_ratio", scale, low=1e-300, high=1e6, hint="every margin up to the threshold is looked at")
    margins = np.arange(0.0, math.ceil(settings.threshold) + 3)
    levels = settings.threshold - margins[:, None]
    low, high = (_log_laplace_tail(level / scale) for level in (levels, levels - 1))
    other_low, other_high = (_log_laplace_tail(-level / scale) for level in (levels, levels - 1))
    worst = np.zeros(orders.size)
    for (p, p_not), (q, q_not) in (((high, other_high), (low, other_low)), ((low, other_low), (high, other_high))):
        with np.errstate(over="ignore", invalid="ignore"):
            moments = np.logaddexp(orders * p + (1 - orders) * q, orders * p_not + (1 - orders) * q_not)
        moments = np.where(np.isnan(moments), np.inf, moments)  # too large an order for doubles
        worst = np.maximum(worst, moments.max(axis=0) / (orders - 1))
    bounded = rdp.gaussian(orders, noise_multiplier=settings.bounded_noise_multiplier) + worst
    return bounded if case == "bounded" else np.maximum(bounded, ptr.renyi(orders, case="test_fails", **how))


def _log_laplace_tail(level):
    """log P(Lap(1) > t)."""
    return np.where(level >= 0, -math.log(2) - level, np.log1p(-0.5 * np.exp(np.minimum(level, 0.0))))


# --------------------------------------------------------------------------------------------------------------- hybrid


def hybrid(orders, *, settings, sample_rate, neighbouring):
    r"""(Rényi curve, δ a step) where the bad branch is charged to δ: better than Theorem 4.3 where σ₂ is small.

    The claim: T steps are :math:`(\varepsilon, \delta + 1 - (1 - q\delta_0)^T)`-DP for every (ε, δ) that T times the
    curve gives.

    Proof. ``remove``, both local sensitivities above τ: with the record, the bad branch is entered with probability δ₀
    and the record drawn with q. Put in place of :math:`M'` the law N that then answers as if the record had not been
    drawn: a distribution, which M' is coupled to so that they differ with probability δ₀q at most, at every step and
    after any history; T steps differ with probability :math:`1 - (1 - q\delta_0)^T` at most. N has the ratio 1 to the
    output without the record on the bad branch, and that of a sampled Gaussian with σ₁ otherwise: its moment is at most
    the sampled Gaussian's, which is at most that of ``bounded``. ``add``: nothing is charged below q = 1, as the loss
    is at most −log(1 − q); the exact moment of both cases is taken. ∎

    Args: orders, settings, sample_rate, neighbouring — as in :func:`privrob.accounting.ptr.renyi`.
    Returns: (nats of shape (k,), δ₀ q).
    """
    q = checks.probability("sample_rate", sample_rate, hint="pass batch_size / num_records")
    how = {"settings": settings, "sample_rate": q}
    ways, curves = ptr.directions(neighbouring), []
    if "remove" in ways or q == 1:
        curves.append(ptr.renyi(orders, neighbouring="remove", case="bounded", **how))
    if "add" in ways and q < 1:  # where both are asked for, its bounded case costs no more than the other's
        case = "test_fails" if "remove" in ways else "both"
        curves.append(ptr.renyi(orders, neighbouring="add", case=case, **how))
    return np.maximum.reduce(curves), q * settings.test_failure


def hybrid_epsilon(num_steps, delta, *, settings, sample_rate, neighbouring, orders=None, conversion="balle2020"):
    """ε of T steps at δ by :func:`hybrid`; infinite where the bad branches alone may exceed δ.

    Args: orders — None: those of every accountant;  conversion — one of :data:`privrob.accounting.rdp.CONVERSIONS`.
    Returns: :class:`.Interval` whose lower end is 0.
    """
    num_steps = checks.integer("num_steps", num_steps, low=0)
    delta = checks.real("delta", delta, low=0.0, high=1.0, open_high=True)
    orders = rdp.default_orders() if orders is None else checks.orders(orders)
    curve, each = hybrid(orders, settings=settings, sample_rate=sample_rate, neighbouring=neighbouring)
    left = delta + math.expm1(num_steps * math.log1p(-each))
    if left <= 0:
        return Interval(0.0, math.inf, math.inf)
    found = rdp.epsilon_of(left, orders=orders, rdp=num_steps * curve, conversion=conversion)
    return Interval(0.0, found.epsilon, found.epsilon)
