r"""Votes of unlike users, and random votes: what the bounds of :mod:`privrob.robust.voting` are tried on.

Exact probabilities here come from characteristic functions, those of ``voting`` from convolutions: two ways to the
same number.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from privrob import checks
from privrob.accounting import fdp_forms
from privrob.robust import voting

THEOREMS = ("5", "6", "10", "11")
CHANGES = ("binomial B", "binomial M", "ternary A", "ternary B")


def wrong_prob_of(right, wrong, *, num_trials=1):
    r"""Probability that the vote of unlike users is wrong: that its sum, counted in the right direction, is at most 0.

    .. math:: P(S \le 0) = \sum_{s \le 0} \frac1L \sum_j e^{-i\omega_j s}
        \prod_k \big(r_k e^{i\omega_j} + w_k e^{-i\omega_j} + 1 - r_k - w_k\big)^M, \quad \omega_j = 2\pi j/L

    Paper: fdp, Section 5.
    Args: right, wrong — probabilities that a vote of each user is right, and wrong, shape (users,);  num_trials — M
        votes of each.
    Returns: absolute error of about 1e-14, so that the smallest probabilities have no digits.
    """
    right, wrong = (checks.array(name, v, ndim=1) for name, v in (("right", right), ("wrong", wrong)))
    if (right < 0).any() or (wrong < 0).any() or (right + wrong > 1 + 1e-12).any():
        raise ValueError("right and wrong must be probabilities that sum to at most 1, one of each for every user")
    most = right.size * checks.integer("num_trials", num_trials, low=1)
    angles = 2 * math.pi / (2 * most + 1) * np.arange(most + 1)
    silent, both, lean = 1 - right - wrong, right + wrong, right - wrong
    factors = silent[:, None] + np.outer(both, np.cos(angles)) + 1j * np.outer(lean, np.sin(angles))
    masses = np.fft.irfft((factors.prod(axis=0) ** num_trials).conj(), n=2 * most + 1)
    return float(np.clip(masses[0] + masses[most + 1 :].sum(), 0.0, 1.0))


def inputs_of_mean(mean, count, *, limit, rng):
    """So many numbers in [−limit, limit] with this mean: all equal, spread, or most of them at the ends.

    Paper: fdp, Section 5 (the hypothesis on honest users and, with the same mean, on blind attackers).
    Args: mean — x̄;  count — how many;  limit — largest absolute value.
    """
    limit = checks.positive("limit", limit, finite=True)
    mean, count = checks.real("mean", mean, low=-limit, high=limit), checks.integer("count", count, low=0)
    kind = rng.integers(3)
    if kind == 0 or count == 0:
        return np.full(count, mean)
    values = rng.uniform(-limit, limit, count) if kind == 1 else limit * rng.choice([-1.0, 1.0], count)
    end = limit if values.mean() < mean else -limit
    share = (mean - values.mean()) / (end - values.mean()) if end != values.mean() else 0.0
    return np.clip(values + share * (end - values), -limit, limit)


def trial(theorem, *, rng):
    """One random setting of Theorem 5, 6, 10 or 11: what it says, and how often the vote is wrong.

    Honest users, and blind attackers, have unlike inputs. The number of attackers is the largest that the theorem
    allows, or any smaller one. Where a theorem has a hypothesis that the document leaves out, it is met or not.

    Paper: fdp, Theorems 5, 6, 10 and 11; Equations 85, 93, 130 and 141.
    Returns: dict — ``sound_bound``, ``printed_bound`` and ``sound_wrong``, ``printed_wrong``, the probability of a
    wrong vote at a number of attackers within them (NaN where it says nothing); ``excess`` of that probability over the
    document's bound on it, at any number of attackers that it is for; and the setting, in units of B.
    """
    blind = checks.choice("theorem", theorem, THEOREMS) in ("5", "6")
    how, settings, honest, attackers = (_binomial if theorem in ("5", "10") else _ternary)(blind, rng)
    bounds = {form: _bound(theorem, how, form) for form in voting.FORMS}
    row = {"theorem": theorem, **settings, "sound_bound": bounds["sound"], "printed_bound": bounds["as_printed"]}

    def wrong(number):
        users = [np.concatenate(pair) for pair in zip(honest, attackers(number))]
        return wrong_prob_of(*users, num_trials=how.get("num_trials", 1))

    for form, name in (("sound", "sound"), ("as_printed", "printed")):
        says = bounds[form] >= 0
        most = int(min(bounds[form], 2 * how["num_users"])) if says else 0
        number = most if rng.random() < 0.5 else int(rng.integers(0, most + 1))
        row[f"{name}_attackers"] = number if says else -1
        row[f"{name}_wrong"] = wrong(number) if says else math.nan
    number = int(rng.integers(0, how["num_users"] + 2))
    upper = _prob_bound(theorem, how, number)
    row["excess"] = wrong(number) - upper if upper < 1 else math.nan
    return row


def _binomial(blind, rng):
    n, m = int(rng.integers(1, 17)), int(rng.choice([1, 1, 2, 3, 5]))
    scale, r = float(np.exp(rng.uniform(-1.5, 1.5))), voting.least_signal(num_users=n, num_trials=m)
    lean = r + (1 - r) * rng.random() ** 2 if rng.random() < 0.9 else r * rng.random()
    probs = (1 + inputs_of_mean(lean, n, limit=1.0, rng=rng)) / 2
    attack = float(rng.random()) if rng.random() < 0.9 else 1.0
    how = {"mean": lean * scale, "scale_b": scale, "num_trials": m, "num_users": n}
    settings = {"num_users": n, "num_trials": m, "vote_prob": 1.0, "signal": lean, "attack": math.nan}
    if not blind:
        how["wrong_vote_prob"], settings["attack"] = attack, attack

    def attackers(number):
        wrong = (1 + inputs_of_mean(lean, number, limit=1.0, rng=rng)) / 2 if blind else np.full(number, attack)
        return 1 - wrong, wrong

    return how, settings, (probs, 1 - probs), attackers


def _ternary(blind, rng):
    n, scale = int(rng.integers(1, 17)), float(np.exp(rng.uniform(-1.5, 1.5)))
    tau = -math.expm1(-math.log(2) / n)
    some = float(np.exp(rng.uniform(math.log(0.55 * tau), 0.0)))
    least = math.sqrt(2 * some * tau - tau**2)
    lean = least + (some - least) * rng.random() if rng.random() < 0.9 else some * rng.random()
    votes = inputs_of_mean(lean, n, limit=some, rng=rng)
    margin = lean if blind else some * float(rng.uniform(-1, 1) if rng.random() < 0.9 else 1.0)
    how = {"mean": lean * scale, "scale_a": some * scale, "scale_b": scale, "num_users": n}
    settings = {"num_users": n, "num_trials": 1, "vote_prob": some, "signal": lean, "attack": margin}
    if not blind:
        how["wrong_margin"] = margin

    def attackers(number):
        lean_wrong = inputs_of_mean(lean, number, limit=some, rng=rng) if blind else np.full(number, margin)
        return (some - lean_wrong) / 2, (some + lean_wrong) / 2

    return how, settings, ((some + votes) / 2, (some - votes) / 2), attackers


def _bound(theorem, how, form):
    if theorem == "5":  # its printed form is right
        return voting.theorem_5(**how)
    return {"6": voting.theorem_6, "10": voting.theorem_10, "11": voting.theorem_11}[theorem](**how, form=form)


def _prob_bound(theorem, how, number):
    bound = voting.binomial_bound if theorem in ("5", "10") else voting.ternary_bound
    return bound(**how, num_attackers=number)


def majority_disagrees(magnitudes, right_probs):
    r"""Probability that the majority of deterministic signs is not the sign of the sum, over all :math:`2^N` signs.

    Each number has its sign with the given probability, by itself, whatever its magnitude.

    Paper: fdp, Section 5, first paragraph.
    Printed: below 1/2, for any numbers.   Used: so for odd N, and signs that are each right with a probability of at
    least 1/2 given the magnitudes (noise that is symmetric and unimodal about a common mean): both votes are increasing
    functions of the signs, hence positively correlated (Harris' inequality). For (5, −1, −1) it is 1.
    Args: magnitudes — shape (N,), N ≤ 20;  right_probs — of a sign +, shape (N,).
    """
    sizes = checks.array("magnitudes", magnitudes, ndim=1)
    plus = checks.array("right_probs", right_probs, ndim=1)
    if sizes.size != plus.size or not 1 <= sizes.size <= 20:
        raise ValueError(f"magnitudes and right_probs must be 1 to 20 of each, got {sizes.size} and {plus.size}")
    signs = 2.0 * ((np.arange(2**sizes.size)[:, None] >> np.arange(sizes.size)) & 1) - 1
    masses = np.where(signs > 0, plus, 1 - plus).prod(axis=1)
    return float(masses[np.sign(signs.sum(axis=1)) != np.sign(signs @ sizes)].sum())


def pair_of_settings(change, *, rng):
    """Two random settings of Theorem 5 or 6 that differ in one number, larger in the second: which way do things move?

    Paper: fdp, Remarks 9 and 10.
    Args: change — one of :data:`CHANGES`.
    Returns: dict — ``privacy_rise`` and ``privacy_fall``, the largest rise and fall of the curve f;  ``sound_rise`` and
    ``printed_rise`` of the bound on K (NaN while it says nothing on either side, −∞ and ∞ where it begins or ends to
    speak);  and the setting.
    """
    kind, name = checks.choice("change", change, CHANGES).split()
    clip, alpha = 1.0, np.linspace(0, 1, 41)
    users, signal, scale = int(np.exp(rng.uniform(0, 5.5))), rng.random(), 1 + np.exp(rng.uniform(-4, 3))
    factor = float(np.exp(rng.uniform(0.01, 1.0)))
    if kind == "binomial":
        trials = int(rng.integers(1, 30))
        first = {"scale_b": scale, "num_trials": trials}
        more = {"B": {"scale_b": scale * factor}, "M": {"num_trials": trials + int(rng.integers(1, 10))}}[name]
        curve, bounds = _binomial_curve, {"sound": voting.theorem_5, "printed": voting.theorem_5}
    else:
        first = {"scale_a": scale, "scale_b": scale * float(np.exp(3 * rng.random() ** 2)) * factor}
        more = {"A": {"scale_a": scale * factor}, "B": {"scale_b": first["scale_b"] * factor}}[name]
        curve = fdp_forms.ternary
        bounds = {"sound": voting.theorem_6, "printed": partial(voting.theorem_6, form="as_printed")}
    both = first, first | more
    step = np.subtract(*(curve(alpha, clip=clip, **settings) for settings in both[::-1]))
    row = {"privacy_rise": float(step.max()), "privacy_fall": float(-step.min()), "signal": signal, "num_users": users}
    for form, bound in bounds.items():
        before, after = (bound(signal, num_users=users, **settings) for settings in both)
        row[f"{form}_rise"] = after - before if math.isfinite(before) or math.isfinite(after) else math.nan
    return row | {"change": change, "factor": factor, **first}


def _binomial_curve(alpha, *, clip, scale_b, num_trials):
    ends = {"p_min": (scale_b - clip) / (2 * scale_b), "p_max": (scale_b + clip) / (2 * scale_b)}
    return fdp_forms.theorem_3(alpha, num_trials=num_trials, **ends)


def two_strengths(theorem, *, rng):
    """A random setting of Theorem 10 or 11 and two attackers, the second one stronger: what moves the wrong way?

    Paper: fdp, Remarks 14 and 15.
    Args: theorem — ``"10"`` or ``"11"``.
    Returns: dict — ``bound_rise`` of the bound on K (0 where it says nothing, or allows any number, at the weaker one)
        and ``prob_fall`` of the exact probability of a wrong vote: both at most 0 where the remark holds.
    """
    if checks.choice("theorem", theorem, ("10", "11")) == "10":
        how, _, honest, _ = _binomial(False, rng)
        strengths, name = np.sort(rng.random(2)), "wrong_vote_prob"
        some, margins = 1.0, 2 * strengths - 1
    else:
        how, setting, honest, _ = _ternary(False, rng)
        some, name = setting["vote_prob"], "wrong_margin"
        strengths = margins = some * np.sort(rng.uniform(-1, 1, 2))
    bounds = [_bound(theorem, how | {name: float(s)}, "sound") for s in strengths]
    crowd, probs = int(rng.integers(1, 12)), []
    for margin in margins:
        against = np.full(crowd, some - margin) / 2, np.full(crowd, some + margin) / 2
        users = [np.concatenate(pair) for pair in zip(honest, against)]
        probs.append(wrong_prob_of(*users, num_trials=how.get("num_trials", 1)))
    rise = bounds[1] - bounds[0] if math.isfinite(bounds[0]) else 0.0
    return {"bound_rise": rise, "prob_fall": probs[0] - probs[1], "gain": probs[1] - probs[0]}
