r"""Steps of the proofs in document ``fdp``, as numbers: to check a step by itself, and to see which printed ones fail.

Throughout, X is the null hypothesis and Y the other one; β⁺ is the curve where Y is the smaller of both.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

from privrob import checks
from privrob.accounting.fdp_forms import FORMS
from privrob.accounting.tradeoff import type1_errors


def _falling_to(name, smaller, larger_name, larger):
    """Two success probabilities inside (0, 1), the first below the second."""
    larger = checks.real(larger_name, larger, low=0.0, high=1.0, open_low=True, open_high=True)
    hint = f"it must lie below {larger_name}={larger:g}"
    return checks.real(name, smaller, low=0.0, high=larger, open_low=True, open_high=True, hint=hint), larger


def _piece(alpha, masses):
    """k and γ with α = P(X < k) + γ P(X = k)."""
    below = np.append(0.0, np.cumsum(masses))
    k = np.clip(np.searchsorted(below[1:], alpha, side="left"), 0, masses.size - 1)
    return k, np.clip((alpha - below[k]) / masses[k], 0.0, 1.0)


def theorem_3_derivative(type1, *, num_trials, p, q):
    r"""How β⁺ of the binomial mechanism changes with q.

    .. math:: \frac{\partial \beta^+}{\partial q} = -(1-\gamma)\frac{\partial P(Y < k)}{\partial q}
        - \gamma \frac{\partial P(Y \le k)}{\partial q}
        = M\big[(1-\gamma)\,P(Y' = k-1) + \gamma\,P(Y' = k)\big], \quad Y' \sim \mathrm{Binom}(M-1, q)

    Paper: fdp, A.3 (65).
    Args: p, q — success probabilities of X and of Y, q < p.
    """
    alpha, trials = type1_errors(type1), checks.integer("num_trials", num_trials, low=1)
    q, p = _falling_to("q", q, "p", p)
    k, gamma = _piece(alpha, stats.binom.pmf(np.arange(trials + 1), trials, p))
    fewer = [stats.binom.pmf(at, trials - 1, q) for at in (k - 1, k)]
    return (trials * ((1 - gamma) * fewer[0] + gamma * fewer[1]))[()]


def theorem_3_cases(*, num_trials, p, p_hat, q):
    r"""The corners of the proof that a larger p has the lower curve: :math:`\beta^+_p - \beta^+_{\hat p}`, q < p̂ < p.

    Wherever a piece k of the one and a piece k̂ of the other share some α, the difference is linear in α, and is looked
    at where they begin to overlap (cases 1 and 2) and where they cease to (cases 3 and 4).

    Paper: fdp, A.3 (66)–(72).
    Printed: in case 4 the difference is at most P(Y > k) − P(Y > k̂), and P(X ≤ k̂) − P(X̂ ≤ k̂) > 0.
    Used: at most P(Y ≥ k) − P(Y > k̂), and < 0 as X is the larger; the conclusion stands.
    Args: p, p_hat, q — success probabilities of X, of X̂ and of Y.
    Returns: arrays by name, one entry for each corner: ``case``, ``k``, ``k_hat``, ``type1``, ``difference``,
        ``bound_printed``, ``bound``.
    """
    trials = checks.integer("num_trials", num_trials, low=1)
    p_hat, p = _falling_to("p_hat", p_hat, "p", p)
    q, _ = _falling_to("q", q, "p_hat", p_hat)
    counts = np.arange(trials + 1)
    at_most = [stats.binom.cdf(counts, trials, prob) for prob in (p, p_hat)]
    below = [np.append(0.0, x[:-1]) for x in at_most]
    masses = [stats.binom.pmf(counts, trials, prob) for prob in (p, p_hat)]
    y, y_above = stats.binom.pmf(counts, trials, q), stats.binom.sf(counts, trials, q)
    k, k_hat = (x.ravel() for x in np.meshgrid(counts, counts, indexing="ij"))
    starts, ends = (below[0][k], below[1][k_hat]), (at_most[0][k], at_most[1][k_hat])
    overlap = np.maximum(*starts) < np.minimum(*ends)
    first = {"case": np.where(starts[0] <= starts[1], 1, 2), "type1": np.maximum(*starts)}
    last = {"case": np.where(ends[0] <= ends[1], 3, 4), "type1": np.minimum(*ends)}
    corners = {name: np.concatenate([first[name][overlap], last[name][overlap]]) for name in first}
    k, k_hat = np.tile(k[overlap], 2), np.tile(k_hat[overlap], 2)
    curves = [
        y_above[at] + y[at] * np.clip((upper[at] - corners["type1"]) / mass[at], 0.0, 1.0)
        for at, upper, mass in ((k, at_most[0], masses[0]), (k_hat, at_most[1], masses[1]))
    ]
    from_k, from_k_hat = y_above[k] + y[k], y_above[k_hat] + y[k_hat]
    case = corners["case"]
    printed = np.where(case <= 2, from_k - from_k_hat, y_above[k] - y_above[k_hat])
    printed = np.where((case == 2) | (k == k_hat), 0.0, printed)  # (70) gives no other number
    bound = np.where(case == 4, from_k - y_above[k_hat], printed)
    corners |= {"k": k, "k_hat": k_hat, "difference": curves[0] - curves[1]}
    return corners | {"bound_printed": printed, "bound": bound}


def equation_114(*, others, own_prob, other_prob):
    r"""Both sides of the step by which P(Y = k)/P(X = k) is monotone for sums with one user's p changed, k = 0 … N − 1.

    .. math:: P(Y=k+1)P(X=k) - P(Y=k)P(X=k+1) = \big[P(Z=k+1)P(Z=k-1) - P(Z=k)^2\big](p - p')

    Paper: fdp, B (113)–(115).
    Args: others — log masses of the others' sum Z;  own_prob, other_prob — p under X and p′ under Y.
    Returns: the left side and the right side, shape (N,) each.
    """
    z = np.exp(checks.array("others", others, ndim=1, finite=False))
    other, own = _falling_to("other_prob", other_prob, "own_prob", own_prob)
    x, y = (np.append(z, 0.0) * (1 - p) + np.append(0.0, z) * p for p in (own, other))
    turn = np.append(z[1:], 0.0) * np.append(0.0, z[:-1]) - z**2
    return y[1:] * x[:-1] - y[:-1] * x[1:], turn * (own - other)


def equation_120(type1, *, others, own_prob, other_prob, form="sound"):
    r"""β⁺ of the Poisson binomial mechanism by the law of the others' sum Z, for p > p′ of the user's own.

    .. math:: \beta^+ = P(Z > k) + P(Z = k)p' + \big[P(X \le k) - \alpha\big]
        \frac{P(Z=k) - [P(Z=k) - P(Z=k-1)]\,p'}{P(X=k)}

    Paper: fdp, B (119)–(121).
    Printed: the bracket is P(Z=k) − [P(Z=k) − P(Z=k−1)p′], which is P(Z=k−1)p′.   Used: P(Y=k), as above.
    Args: others — log masses of Z, shape (n,);  own_prob, other_prob — p under X and p′ under Y.
    """
    alpha, z = type1_errors(type1), np.exp(checks.array("others", others, ndim=1, finite=False))
    other, own = _falling_to("other_prob", other_prob, "own_prob", own_prob)
    here, before = np.append(z, 0.0), np.append(0.0, z)  # P(Z = k) and P(Z = k − 1)
    x = here * (1 - own) + before * own
    k, gamma = _piece(alpha, x)
    printed = checks.choice("form", form, FORMS) == "as_printed"
    y = before * other if printed else here - (here - before) * other
    above = np.append(np.cumsum(here[::-1])[::-1], 0.0)
    return (above[k + 1] + here[k] * other + (1 - gamma) * y[k])[()]


def by_linear_program(type1, p, q):
    r"""Definition 2 as it stands, without likelihood ratios: the least type-II error of all randomised tests φ.

    .. math:: \min_{0 \le \phi \le 1} 1 - \sum q\phi \quad \text{such that} \quad \sum p\phi \le \alpha

    Paper: fdp, Definition 2 (4).
    Args: type1 — a number;  p, q — probabilities, shape (k,).
    Returns: float, as exact as the solver, about 1e-8.
    """
    p, q = checks.array("p", p, ndim=1), checks.array("q", q, ndim=1)
    found = optimize.linprog(-q, A_ub=p[None], b_ub=[float(type1_errors(type1))], bounds=(0, 1), method="highs")
    return float(1 + found.fun)
