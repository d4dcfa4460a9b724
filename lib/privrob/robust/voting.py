r"""Majority votes of private users, some of them attackers: bounds of document ``fdp``, and exact probabilities.

N users hold numbers of mean x̄ and send private votes; K more send what they like. The vote is wrong if its sum does not
have the sign of x̄; a sum of zero is wrong (the document's rule). K attackers are *tolerated* if it is wrong with a
probability below 1/2. A bound returns the K up to which that is proven, a real number: −∞ where not even K = 0 is, ∞
where any number is.

``form`` is ``sound`` or ``as_printed``.

``scale_a`` and ``scale_b`` are A and B of the compressor, ``mean`` is x̄, ``wrong_vote_prob`` p_att.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.signal import fftconvolve

from privrob import checks
from privrob.accounting.logspace import log_binomial

FORMS = ("sound", "as_printed")
_HUGE = 1e150  # of a mean: squares stay finite
_DIRECT = 2**26  # products of a convolution that are taken one by one


# ------------------------------------------------------------------------------------------------------------ bounds


def least_signal(*, num_users, num_trials=1):
    """r = √(1 − 4^(−1/MN)): the least |x̄|/B of which the document's bounds say anything."""
    return math.sqrt(-math.expm1(-math.log(4) / (num_users * num_trials)))


def _silence(num_users):
    """τ = 1 − 2^(−1/N)."""
    return -math.expm1(-math.log(2) / num_users)


def theorem_5(mean, *, scale_b, num_trials, num_users):
    r"""Blind attackers that the binomial mechanism tolerates: :math:`K \le N (|\bar x| - Br)/(|\bar x| + Br)`.

    Paper: fdp, Theorem 5 (87), Remark 11.
    Assumes: attackers hold numbers of the same mean, and negate them.
    """
    signal, n, m = _size(mean), *_counts(num_users, num_trials)
    noise = checks.positive("scale_b", scale_b, finite=True) * least_signal(num_users=n, num_trials=m)
    return n * (signal - noise) / (signal + noise) if signal > noise else -math.inf


def theorem_10(mean, *, scale_b, num_trials, num_users, wrong_vote_prob, form="sound"):
    r"""Attackers whose every vote is wrong with probability p_att: :math:`K \le N(|\bar x|/B - r)/(2p_{att} - 1 + r)`.

    Paper: fdp, Theorem 10 (132), Remark 14 (the blind attacker: p_att = 1/2 + |x̄|/2B).
    Printed: [|x̄|/B − (1 − 4^(−1/MN))]^(1/2) on top; and a condition (2p_att − 1)K < |x̄|/B, with which p_att = 1 allows
    only K = 0.   Used: (132) as proven. The condition needs N|x̄|/B, and then follows from the bound. For
    p_att ≤ (1 − r)/2 any number is tolerated.
    """
    signal, n, m = _size(mean) / checks.positive("scale_b", scale_b), *_counts(num_users, num_trials)
    r, p = least_signal(num_users=n, num_trials=m), checks.probability("wrong_vote_prob", wrong_vote_prob)
    if signal <= r:
        return -math.inf
    if checks.choice("form", form, FORMS) == "as_printed":
        return n * math.sqrt(signal - r**2) / (2 * p - 1 + r)
    return n * (signal - r) / (2 * p - 1 + r) if p > (1 - r) / 2 else math.inf


def theorem_6(mean, *, scale_a, scale_b, num_users, form="sound"):
    """Blind attackers that the ternary compressor tolerates.

    Paper: fdp, Theorem 6 (95).
    Printed: for any A/B.   Used: A/B ≥ 1 − 2^(−1/N), without which squaring (94) loses a sign: at N = 3, A = 0.105,
    B = 1, x̄ = 0.1 the printed bound is 1.70, and one attacker makes the vote wrong with probability 0.748.
    """
    signal = _size(mean) / checks.positive("scale_b", scale_b)  # such an attacker has p − q = |x̄|/B
    return theorem_11(mean, scale_a=scale_a, scale_b=scale_b, num_users=num_users, wrong_margin=signal, form=form)


def theorem_11(mean, *, scale_a, scale_b, num_users, wrong_margin, form="sound"):
    r"""Attackers who vote wrong with p_att and right with q_att, p_att + q_att = A/B, that ternary tolerates.

    .. math:: K \le N \frac{|\bar x| - \rho}{B(p_{att} - q_{att}) + \rho}, \qquad
        \rho = \sqrt{2AB\tau - B^2\tau^2},\ \tau = 1 - 2^{-1/N}

    Paper: fdp, Theorem 11 (143), Remark 15.
    Printed: for any A/B; p_att = A/B is the most powerful attack.   Used: A/B ≥ τ; an attacker who always votes is more
    powerful, and no case of this theorem.
    Args: wrong_margin — p_att − q_att, in [−A/B, A/B].
    """
    n, _ = _counts(num_users, 1)
    b = checks.positive("scale_b", scale_b, finite=True)
    a = checks.real("scale_a", scale_a, low=0.0, high=b, open_low=True)
    margin = checks.real("wrong_margin", wrong_margin, low=-a / b * (1 + 1e-12), high=a / b * (1 + 1e-12))
    signal, tau = _size(mean), _silence(n)
    square = 2 * a * b * tau - (b * tau) ** 2
    if (checks.choice("form", form, FORMS) == "sound" and a / b < tau) or signal**2 <= square:
        return -math.inf
    noise = math.sqrt(max(square, 0.0))
    if form == "sound" and b * margin + noise <= 0:
        return math.inf
    return n * (signal - noise) / (b * margin + noise)


def binomial_bound(mean, *, scale_b, num_trials, num_users, num_attackers, wrong_vote_prob=None):
    r"""Upper bound on the probability of a wrong vote; 1 where votes lean to the wrong side.

    .. math:: \Big[1 - \Big(\frac{(1 - 2p_{att})K + N|\bar x|/B}{N + K}\Big)^2\Big]^{(N+K)M/2}

    Paper: fdp, (85) for blind attackers (``wrong_vote_prob`` left out) and (130).
    """
    signal, n, m = _size(mean) / checks.positive("scale_b", scale_b), *_counts(num_users, num_trials)
    k = checks.integer("num_attackers", num_attackers, low=0)
    p = (1 + signal) / 2 if wrong_vote_prob is None else checks.probability("wrong_vote_prob", wrong_vote_prob)
    lean = ((1 - 2 * p) * k + n * signal) / (n + k)
    return math.exp((n + k) * m / 2 * math.log1p(-(lean**2))) if 0 < lean < 1 else float(lean <= 0)


def ternary_bound(mean, *, scale_a, scale_b, num_users, num_attackers, wrong_margin=None, attacker_votes=None):
    r"""Upper bound on the probability of a wrong vote: :math:`[1 - (\sqrt{\bar q} - \sqrt{\bar p})^2]^{N+K}`.

    Paper: fdp, (93) for blind attackers (``wrong_margin`` left out), (139) and (141); Remark 15.
    Printed: p_att + q_att = A/B.   Used: the same proof serves attackers who vote as often as they like.
    Args: wrong_margin — p_att − q_att;  attacker_votes — p_att + q_att, A/B if left out.
    """
    signal, n = _size(mean) / checks.positive("scale_b", scale_b), _counts(num_users, 1)[0]
    k = checks.integer("num_attackers", num_attackers, low=0)
    some = checks.real("scale_a", scale_a, low=0.0, high=scale_b, open_low=True) / scale_b
    margin = signal if wrong_margin is None else checks.real("wrong_margin", wrong_margin, low=-1.0, high=1.0)
    lean = (n * signal - k * margin) / (n + k)
    if lean <= 0:
        return 1.0
    if attacker_votes is not None:
        votes = checks.real("attacker_votes", attacker_votes, low=abs(margin), high=1.0)
        some = (n * some + k * votes) / (n + k)
    right, wrong = (some + lean) / 2, max(some - lean, 0.0) / 2
    gap = (math.sqrt(right) - math.sqrt(wrong)) ** 2
    return math.exp((n + k) * math.log1p(-gap)) if gap < 1 else 0.0


def sampled_bound(mean, *, scale_b, num_trials, num_users, num_attackers, sample_rate, form="sound"):
    r"""Upper bound on the probability of a wrong vote when each user is drawn with probability p_s.

    .. math:: \min_{a \ge 0} \big[1 - p_s + p_s \varphi_{s}(a)^M\big]^N \big[1 - p_s + p_s \varphi_{-s}(a)^M\big]^K,
        \quad \varphi_s(a) = \tfrac{1+s}{2} e^{-a} + \tfrac{1-s}{2} e^{a},\ s = |\bar x|/B

    which is :math:`[1 - p_s + p_s (1 - s^2)^{M/2}]^N` without attackers.

    Paper: fdp, Theorem 8 and (103).
    Printed: [1 − p_s + p_s √(1 − t²)]^((N+K)M), t = (N − K)s/(N + K), as if each trial were drawn by itself: 0.116
    where the vote is wrong with probability 0.360 (N = 10, K = 0, p_s = 0.1, s = 0.5, M = 16).   Used: one coin a user,
    and no average over users and attackers: [1 − p_s + p_s (1 − t²)^(M/2)]^(N+K) fails too, 0.126 against 0.152 at
    N = 10, K = 1, p_s = 0.2, s = 0.9, M = 5, as Jensen's inequality wants a concave logarithm.
    Assumes: equal inputs of the honest users and, negated, of the attackers.
    """
    signal, n, m = _size(mean) / checks.positive("scale_b", scale_b), *_counts(num_users, num_trials)
    signal = checks.real("mean / scale_b", signal, low=0.0, high=1.0)
    k, rate = checks.integer("num_attackers", num_attackers, low=0), checks.probability("sample_rate", sample_rate)
    if checks.choice("form", form, FORMS) == "as_printed":
        lean = (n - k) * signal / (n + k)
        return (1 - rate + rate * math.sqrt(1 - lean**2)) ** ((n + k) * m) if lean > 0 else 1.0

    def log_bound(a):  # of any a: the best one only makes it smaller
        total = 0.0
        for lean, count in ((signal, n), (-signal, k)):
            tilted = m * math.log((1 + lean) / 2 * math.exp(-a) + (1 - lean) / 2 * math.exp(a))
            total += count * (np.logaddexp(math.log1p(-rate), math.log(rate) + tilted) if rate < 1 else tilted)
        return float(total)

    if rate == 0:
        return 1.0
    best = minimize_scalar(log_bound, bounds=(0.0, 40.0), method="bounded", options={"xatol": 1e-9})
    return math.exp(min(0.0, float(best.fun)))


# ------------------------------------------------------------------------------------------------------------- exact


def binomial_vote(lean, *, num_trials, sample_rate=1.0):
    """Masses of one user's sum of M votes ±1, at −M … M. Args: lean — mean of a vote, in [−1, 1], positive where it is
    right;  sample_rate — probability that the user is drawn; a user who isn't sends 0."""
    lean = checks.real("lean", lean, low=-1.0, high=1.0)
    trials, rate = checks.integer("num_trials", num_trials, low=1), checks.probability("sample_rate", sample_rate)
    masses = np.zeros(2 * trials + 1)
    masses[::2] = rate * np.exp(log_binomial(trials, (1 + lean) / 2))
    masses[trials] += 1 - rate
    return masses


def ternary_vote(lean, *, vote_prob):
    """Masses of one user's −1, 0 or 1. Args: lean — its mean;  vote_prob — A/B.

    Returns: shape (3,).
    """
    some = checks.probability("vote_prob", vote_prob)
    lean = checks.real("lean", lean, low=-some, high=some)
    return np.array([(some - lean) / 2, 1 - some, (some + lean) / 2])


def wrong_prob(groups, *, tie_share=1.0):
    """Probability that a vote is wrong, exactly: its sum, counted in the right direction, is at most 0.

    Paper: fdp, Section 5: P(sign(Ẑ) ≠ sign(x̄)), with a sum of zero as wrong.
    Args: groups — list of (masses of one user at −m … m, how many such users);  tie_share — of sums of zero that count
        as wrong: 1, the document's rule, or 1/2 for a fair coin.
    Returns: relative error of about 1e-12 while sums have up to some 10⁴ values, absolute beyond.
    """
    share = checks.probability("tie_share", tie_share)
    return min(1.0, _not_positive(_total(groups), share))


def _not_positive(total, tie_share=1.0):
    middle = total.size // 2
    return float(total[:middle].sum() + tie_share * total[middle])


def _total(groups):
    """Masses of the sum of all users."""
    total = np.ones(1)
    for masses, count in groups:
        power, left = checks.array("masses", masses, ndim=1), checks.integer("count", count, low=0)
        if power.size % 2 == 0 or (power < 0).any() or abs(power.sum() - 1) > 1e-9:
            raise ValueError(f"masses must be probabilities at −m … m that sum to 1, got {masses!r}")
        while left:
            if left & 1:
                total = _sum(total, power)
            left >>= 1
            if left:
                power = _sum(power, power)
    return total


def _sum(a, b):
    return np.convolve(a, b) if a.size * b.size < _DIRECT else np.maximum(fftconvolve(a, b), 0.0)


def tolerated(honest, attacker, *, most, known=0):
    """The largest K such that K attackers, and any fewer, are tolerated: exact, −1 if not even none.

    Paper: fdp, Section 5, Figures 7 to 9 (where their right panels are bounds).
    Args: honest — groups, as of :func:`wrong_prob`;  attacker — masses of one;  most — where to stop;  known — so many
        attackers are known to be tolerated (by a theorem), and need not be tried.
    """
    total = _total([*honest, (attacker, known)])
    for k in range(known, most + 1):
        if _not_positive(total) >= 0.5:
            return k - 1
        total = _sum(total, np.asarray(attacker, dtype=np.float64))
    return most


def share_tolerated(mean, *, num_users, scale_b, num_trials=None, scale_a=None):
    """Blind attackers tolerated over honest users, of equal inputs: by the theorem, and exactly.

    Paper: fdp, Figures 7 to 9, right panels (which show the bounds).
    Args: num_trials — of the binomial mechanism, or scale_a — of ternary.
    Returns: dict — ``bound`` (0 where the theorem says nothing) and ``exact``, and the setting: N, B, M, A.
    """
    if (num_trials is None) == (scale_a is None):
        raise ValueError("num_trials must be given for binomial votes, or scale_a for ternary ones, not both")
    if scale_a is None:
        bound = theorem_5(mean, scale_b=scale_b, num_trials=num_trials, num_users=num_users)
        sides = [binomial_vote(sign * abs(mean) / scale_b, num_trials=num_trials) for sign in (1, -1)]
    else:
        bound = theorem_6(mean, scale_a=scale_a, scale_b=scale_b, num_users=num_users)
        sides = [ternary_vote(sign * abs(mean) / scale_b, vote_prob=scale_a / scale_b) for sign in (1, -1)]
    bound = max(bound, 0.0)
    exact = tolerated([(sides[0], num_users)], sides[1], most=2 * num_users, known=int(bound))
    setting = {"N": num_users, "B": scale_b, "M": num_trials, "A": scale_a}
    return setting | {"bound": bound / num_users, "exact": exact / num_users}


def simulate(leans, *, num_trials, num_runs, rng):
    """Share of wrong votes of so many users with leans in [−1, 1], and its standard error: for more users than
    :func:`wrong_prob` is quick for. Equal leans are drawn together.

    Args: num_runs — votes that are drawn.
    """
    values, counts = np.unique(checks.array("leans", leans, ndim=1), return_counts=True)
    runs, total = checks.integer("num_runs", num_runs, low=1), np.zeros(num_runs)
    checks.integer("num_trials", num_trials, low=1)
    if not values.size or np.abs(values).max() > 1:
        raise ValueError(f"leans must hold at least one number, all in [-1, 1], got leans={leans!r}")
    for value, count in zip(values, counts):
        total += 2 * rng.binomial(count * num_trials, (1 + value) / 2, runs) - count * num_trials
    rate = float((total <= 0).mean())
    return rate, math.sqrt(max(rate * (1 - rate), 1 / runs) / runs)


def theorem_8(*, start_gap, smoothness, num_rounds, dimension, form="sound"):
    r"""Right-hand side of the rate of sign-SGD at the learning rate :math:`1/\sqrt{LT}`.

    .. math:: \frac{(F(w_0) - F^*)\sqrt L}{\sqrt T} + \frac{d \sqrt L}{2 \sqrt T}

    Paper: fdp, Theorem 8 (26).
    Printed: without d, which (104) and (109) have and (108) and (110) lose.   Used: with d. The left side multiplies
    two probabilities of wrong signs as if they were independent, which fails even for symmetric noise:
    :func:`privrob.robust.sign_descent.two_errors`.
    Args: start_gap — F(w₀) − F*;  smoothness — L.
    """
    gap = checks.nonnegative("start_gap", start_gap, finite=True)
    dimension = checks.integer("dimension", dimension, low=1)
    scale = math.sqrt(checks.positive("smoothness", smoothness) / checks.integer("num_rounds", num_rounds, low=1))
    return scale * (gap + (dimension if checks.choice("form", form, FORMS) == "sound" else 1) / 2)


def _size(mean):
    """|x̄|, of a finite number."""
    return abs(checks.real("mean", mean, low=-_HUGE, high=_HUGE))


def _counts(num_users, num_trials):
    return checks.integer("num_users", num_users, low=1), checks.integer("num_trials", num_trials, low=1)
