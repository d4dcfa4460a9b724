r"""Bits, privacy and error: the best compressor of one number to a few bits, for a budget of all three.

bit_budget.binomial(epsilon=2.0, delta=1e-5, bits=3.0)
bit_budget.ternary(epsilon=2.0, delta=1e-5, bits=0.8, num_rounds=100)

A user holds a number in [−c, c] and sends it in each of T rounds. Within a budget of ε (of all rounds, exact) and of
bits a round the planner looks for the (M, B) of the binomial mechanism, or the (A, B) of the ternary compressor, of
least error. Given M, or the share A/B that is sent, ε falls and every error rises in the scale: the best one just meets
the budget, and is found by bisection.

``clip`` is c: numbers lie in [−c, c].

Paper: fdp, Sections 4.3, 4.4 and 5 (Remarks 9 and 10 say how each parameter moves privacy, bits and error).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import brentq

from privrob import checks
from privrob.accounting import gdp, pairs
from privrob.accounting.logspace import log1mexp, log_binomial
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import Interval
from privrob.mechanisms.binomial import BinomialMechanism
from privrob.mechanisms.ternary import Ternary
from privrob.robust import voting

CODES = ("entropy", "fixed")
_RELATIVE = 1e-9  # of a scale
_LARGEST = 1e9  # scale, of the clip
_LEAST_BITS = 1e-27  # below, no share A/B is found
HOW = {"neighbouring": "replace", "sampling": "none"}


@dataclass(frozen=True)
class Plan:
    """A compressor that meets a budget. Fields: error — of the objective;  bits — a round, at the input that needs most
    of them;  epsilon — of all rounds."""

    mechanism: object
    error: float
    bits: float
    epsilon: Interval
    delta: float
    num_rounds: int

    def __str__(self):
        return (
            f"{self.mechanism}: error {self.error:.4g}, {self.bits:.4g} bits a round, "
            f"ε = {self.epsilon.upper:.4f} at δ = {self.delta:g} after {self.num_rounds} rounds"
        )


# --------------------------------------------------------------------------------------------------------------- error


def mean_square_error(mechanism):
    """Largest mean square error of the decoded number over inputs in [−c, c]: at 0 for both families.

    B²/M of the binomial mechanism and AB of the ternary compressor.
    """
    decoded = mechanism.decode(np.array(mechanism.symbols))
    inputs = np.linspace(-mechanism.clip, mechanism.clip, 9)
    return max(float(np.dot(np.exp(mechanism.log_masses(x)), (decoded - x) ** 2)) for x in inputs)


def wrong_vote(mechanism, *, mean, num_users, num_attackers=0):
    """Probability that a vote of users who all hold ``mean``, among blind attackers who negate it, goes wrong: exact.

    Paper: fdp, Section 5, Theorems 5 and 6.
    """
    if isinstance(mechanism, BinomialMechanism):
        lean = 2 * float(mechanism.success_prob(mean)) - 1
        honest, attacker = (voting.binomial_vote(s * lean, num_trials=mechanism.num_trials) for s in (1, -1))
    else:
        plus, some = (float(p) for p in mechanism.probs(mean))
        honest, attacker = (voting.ternary_vote(s * (2 * plus - some), vote_prob=some) for s in (1, -1))
    groups = [(honest, checks.integer("num_users", num_users, low=1)), (attacker, num_attackers)]
    return voting.wrong_prob(groups)


def vote_error(*, mean, num_users, num_attackers=0):
    """:func:`wrong_vote` as an objective."""
    return partial(wrong_vote, mean=mean, num_users=num_users, num_attackers=num_attackers)


# ------------------------------------------------------------------------------------------------------------- privacy


def epsilon_after(mechanism, num_rounds, *, delta):
    """ε of T rounds at δ. Exact where the sum of the outputs tells all (binomial: MT trials; ternary), else composed by
    privacy-loss distributions, between certified ends.

    One user's number is replaced by any other.

    Paper: fdp, Remark 13, without an approximation.
    """
    rounds = checks.integer("num_rounds", num_rounds, low=1)
    if _reflects(mechanism) and delta >= 1e-200:
        losses, log_p = _sum_losses(mechanism, rounds)
        return Tradeoff.of_logs(log_p, log_p - losses).epsilon(delta)
    if rounds == 1:
        return mechanism.epsilon(delta, **HOW)
    return pairs.compose([(mechanism.pairs(**HOW), rounds)], delta=delta)


def _reflects(mechanism):
    """Whether a reflection of the outputs swaps the two ends, and no output rules one of them out."""
    if isinstance(mechanism, BinomialMechanism):
        return mechanism.p_min > 0 and math.isclose(mechanism.p_min + mechanism.p_max, 1.0, rel_tol=1e-14)
    return isinstance(mechanism, Ternary)


def _sum_losses(mechanism, num_rounds):
    """Losses log P/Q and log masses of P of the sum of T outputs at the ends: it tells all that the outputs tell.

    Only where a reflection swaps P and Q. A ternary sum s has the loss Ls; sums less likely than 1e-308 are left out.
    """
    if isinstance(mechanism, BinomialMechanism):
        trials = mechanism.num_trials * num_rounds
        unit = math.log(mechanism.p_max) - math.log1p(-mechanism.p_max)  # 1 − p_max has lost digits as p_min
        return (2.0 * np.arange(trials + 1) - trials) * unit, log_binomial(trials, mechanism.p_max)
    masses = np.exp(mechanism.log_masses(mechanism.clip))
    total, power, left = np.ones(1), masses, num_rounds
    while left:
        total = np.convolve(total, power) if left & 1 else total
        left >>= 1
        power = np.convolve(power, power) if left else power
    losses = np.arange(num_rounds + 1) * math.log(masses[2] / masses[0])
    with np.errstate(divide="ignore"):
        upper = np.log(total[num_rounds:])
    return np.concatenate([-losses[:0:-1], losses]), np.concatenate([(upper - losses)[:0:-1], upper])


def _log_delta(mechanism, num_rounds, epsilon):
    """log of the smallest δ at ε; the same as the exact curve's, quicker."""
    losses, log_p = _sum_losses(mechanism, num_rounds)
    above = losses > epsilon
    if not above.any():
        return -math.inf
    logs = log_p[above] + log1mexp(epsilon - losses[above])
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum())) if most > -math.inf else most


def gaussian_error(*, epsilon, delta, num_rounds=1, clip=1.0):
    """Mean square error of continuous Gaussian noise on the number itself, within the same budget: what unlimited bits
    buy without compression."""
    multiplier = float(gdp.noise_multiplier_of(epsilon, delta=delta))
    clip = checks.positive("clip", clip, finite=True)
    return (2 * clip * multiplier) ** 2 * checks.integer("num_rounds", num_rounds, low=1)


# ---------------------------------------------------------------------------------------------------------------- plan


def binomial(*, epsilon, delta, bits, num_rounds=1, clip=1.0, objective=mean_square_error, code="entropy", most=4096):
    """The (M, B) of least error, a :class:`Plan`: the best of :func:`binomial_plans`.

    Args: all as there;  code — ``entropy`` or ``fixed``.
    """
    how = {"epsilon": epsilon, "delta": delta, "num_rounds": num_rounds, "clip": clip, "objective": objective}
    return min(binomial_plans(bits=bits, code=code, most=most, **how), key=lambda plan: plan.error)


def binomial_plans(*, epsilon, delta, bits, num_rounds, clip, objective, code="entropy", most=4096):
    """For each M within the bits the least B within ε.

    Args: bits — of a round, at least 1: the entropy, or a fixed-length code;  objective — mechanism → error;
        most — largest M tried; up to 16 every one is, then steps of a fourth, and the largest within the bits;
        code — ``entropy`` or ``fixed``.
    """
    bits = _check(epsilon, delta, bits, code)
    if bits < 1:
        raise ValueError(f"bits must be at least 1 for the binomial mechanism, got bits={bits}; ternary() takes fewer")
    allowed = _trials(bits, code, checks.integer("most", most, low=1))
    makes = [(partial(_binomial, clip=clip, num_trials=trials), trials) for trials in allowed]
    return _plans(makes, epsilon, delta, num_rounds, objective, code)


def ternary(
    *, epsilon, delta, bits, num_rounds=1, clip=1.0, objective=mean_square_error, code="entropy", num_shares=60
):
    """The (A, B) of least error, a :class:`Plan`: the best of :func:`ternary_plans`. The arguments, ``objective`` and
    ``code`` too, are those of :func:`binomial_plans`.
    """
    how = {"epsilon": epsilon, "delta": delta, "num_rounds": num_rounds, "clip": clip, "objective": objective}
    return min(ternary_plans(bits=bits, code=code, num_shares=num_shares, **how), key=lambda plan: plan.error)


def ternary_plans(*, epsilon, delta, bits, num_rounds, clip, objective, code="entropy", num_shares=60):
    """For each share A/B within the bits the least A within ε.

    Args: as of :func:`binomial_plans`; any bits from 1e-27 on (a fixed-length code needs 2);  num_shares — how many.
    """
    bits = _check(epsilon, delta, bits, code)
    if code == "fixed" and bits < 2:
        raise ValueError(
            f"bits must be at least 2 for three symbols of one length, got bits={bits}; use code='entropy'"
        )
    shares = _shares(bits, code, checks.integer("num_shares", num_shares, low=2))
    makes = [(partial(_ternary, clip=clip, share=share), share) for share in shares]
    return _plans(makes, epsilon, delta, num_rounds, objective, code)


def _check(epsilon, delta, bits, code):
    checks.positive("epsilon", epsilon, finite=True)
    checks.real("delta", delta, low=1e-200, high=1.0, open_high=True)
    checks.choice("code", code, CODES)
    return checks.real("bits", bits, low=_LEAST_BITS, open_high=True)


def _binomial(scale, *, clip, num_trials):
    return BinomialMechanism.scaled(clip=clip, scale_b=scale * clip, num_trials=num_trials)


def _ternary(scale, *, clip, share):
    return Ternary(clip, scale * clip, scale * clip / share)


def _bits(mechanism, code):
    return float(mechanism.bits_fixed) if code == "fixed" else mechanism.bits_entropy(0.0)


def _trials(bits, code, most):
    """Numbers of trials whose code fits: entropy is largest at x = 0, where every B has Binomial(M, 1/2)."""

    def fits(trials):
        return _bits(BinomialMechanism(1.0, trials, 0.0, 1.0), code) <= bits + 1e-12

    allowed, trials = [], 1
    while trials <= most and fits(trials):
        allowed.append(trials)
        trials = trials + 1 if trials < 16 else trials + trials // 4
    low, high = allowed[-1], min(trials, most + 1)  # the largest that fits lies in between
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return sorted({*allowed, low})


def share_bits(share):
    """Entropy of a ternary output at x = 0 that is ±1 with probability r = A/B: H(r) + r bits.

    Paper: fdp, Theorem 6, where r bits are printed.
    Args: share — r, in (0, 1].
    """
    return share - sum(p * math.log2(p) for p in (share, 1 - share) if p > 0)


def _shares(bits, code, number):
    """Shares A/B whose code fits; with few bits, those below the largest; the entropy turns at 2/3."""
    low, high = 0.0, 2 / 3
    if code == "fixed" or bits >= share_bits(high):
        return [float(r) for r in np.linspace(0, 1, number + 1)[1:]]
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if share_bits(middle) <= bits else (low, middle)
    shares = [float(r) for r in low * np.linspace(0, 1, number + 1)[1:]]
    return shares + [1.0] * (bits >= 1)


def _plans(makes, epsilon, delta, num_rounds, objective, code):
    rounds, plans = checks.integer("num_rounds", num_rounds, low=1), []
    mu = 1 / float(gdp.noise_multiplier_of(epsilon, delta=delta))
    for make, votes in makes:
        mechanism = _meet(make, epsilon, delta, rounds, 2 * math.sqrt(votes * rounds) / mu)
        if mechanism is not None:
            spent = epsilon_after(mechanism, rounds, delta=delta)
            plans.append(Plan(mechanism, float(objective(mechanism)), _bits(mechanism, code), spent, delta, rounds))
    if not plans:
        raise ValueError(f"epsilon must leave room for some scale up to 1e9 times the clip, got epsilon={epsilon}")
    return plans


def _meet(make, epsilon, delta, num_rounds, guess):
    """The mechanism of the least scale within the budget; None where even the largest is beyond."""
    goal = math.log(delta)

    def over(log_excess):  # how much of δ is too much, in logs
        return max(-60.0, min(60.0, _log_delta(make(1 + math.exp(log_excess)), num_rounds, epsilon) - goal))

    low = high = math.log(max(guess - 1, 1e-3))
    while over(high) > 0:
        low, high = high, high + 0.5
        if high > math.log(_LARGEST):
            return None
    while over(low) <= 0:
        low, high = low - 1.0, low
        if low < math.log(_RELATIVE):
            return make(1 + math.exp(low))
    best = brentq(over, low, high, xtol=1e-11, rtol=1e-13)
    for step in range(12):  # upwards, until the exact curve agrees
        mechanism = make(1 + math.exp(best) + (10.0 ** (step - 11) * (1 + math.exp(best)) if step else 0.0))
        if epsilon_after(mechanism, num_rounds, delta=delta).upper <= epsilon:
            return mechanism
    return None
