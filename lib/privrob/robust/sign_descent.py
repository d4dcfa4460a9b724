r"""Descent by signs that may be wrong, exactly: what Theorem 8 of document ``fdp`` is made of, and where it breaks.

.. math:: w \leftarrow w - \eta\, \mathrm{sign}(\hat g)

Everything is counted or listed, nothing is sampled but the losses that one step is tried on.
"""

from __future__ import annotations

import math

import numpy as np

from privrob import checks


def one_step_excess(num_losses, *, rng):
    r"""By how much one step exceeds its bound, relative, on random quadratic and logistic losses with random signs.

    .. math:: F(w') - F(w) \le -\eta \|\nabla F\|_1 + L \eta^2 d/2
        + 2\eta \sum_j |\nabla F_j|\, 1[\mathrm{sign}\, \hat g_j \ne \mathrm{sign}\, \nabla F_j]

    Paper: fdp, (104).
    Args: num_losses — of each kind.
    Returns: shape (2 num_losses,); at most 0 but for rounding where the bound holds.
    """
    excess = []
    for _ in range(checks.integer("num_losses", num_losses, low=1)):
        d, eta = int(rng.integers(1, 12)), 10 ** rng.uniform(-3, 1)
        x, w, sign = rng.normal(size=(15, d)) * 10 ** rng.uniform(-1, 1), rng.normal(size=d), rng.choice([-1.0, 1.0], d)
        curvature, before, after = np.linalg.eigvalsh(x.T @ x)[-1], x @ w, x @ (w - eta * sign)
        quadratic = (before**2).sum() / 2, (after**2).sum() / 2, x.T @ before, curvature
        logistic = np.logaddexp(0, before).sum(), np.logaddexp(0, after).sum(), x.T @ (0.5 + np.tanh(before / 2) / 2)
        for start, end, slope, smooth in (quadratic, (*logistic, curvature / 4)):
            wrong = np.abs(slope)[sign != np.sign(slope)].sum()
            bound = -eta * np.abs(slope).sum() + smooth * eta**2 * d / 2 + 2 * eta * wrong
            excess.append((end - start - bound) / (abs(start) + abs(bound)))
    return np.array(excess)


def settled(wrong_prob, *, num_rounds=20_000, start=100, reach=600):
    """E|w|/η after many rounds on F = w²/2 when each sign is wrong with this probability: the exact chain of |w|.

    Below 1/2 it settles at or below 1/(2(1 − 2p)), which is what (105) says of it.

    Args: start — |w|/η − 1/2 in the beginning;  reach — where the chain is held, in the same units;  wrong_prob — p.
    """
    p = checks.probability("wrong_prob", wrong_prob)
    mass = np.zeros(checks.integer("reach", reach, low=2))
    mass[checks.integer("start", start, low=0, high=reach - 1)] = 1.0
    for _ in range(checks.integer("num_rounds", num_rounds, low=0)):
        down, up = (1 - p) * mass, p * mass
        mass = np.concatenate([[down[0] + down[1]], up[:-2] + down[2:], [up[-2] + up[-1]]])
    return float(mass @ (np.arange(reach) + 0.5))


def bouncing(dimension, *, num_rounds):
    """Left side of the rate for F = ‖w‖²/2 with exact signs, begun at η/2 in each coordinate, η = 1/√T: it jumps
    between ±η/2 for ever."""
    eta = 1 / math.sqrt(checks.integer("num_rounds", num_rounds, low=1))
    w, total = eta / 2, 0.0
    for _ in range(num_rounds):
        total, w = total + abs(w), w - eta * math.copysign(1.0, w)
    return checks.integer("dimension", dimension, low=1) * total / num_rounds


def all_runs(start, *, wrong_prob, num_rounds):
    """Every run of sign descent on w²/2 with η = 1/√T: |w| at t = 0 … T, shape (T + 1, 2^T), and its probability.

    Args: start — |w| at t = 0;  wrong_prob — p.
    """
    p, rounds = checks.probability("wrong_prob", wrong_prob), checks.integer("num_rounds", num_rounds, low=1, high=20)
    wrong = (np.arange(2**rounds)[:, None] >> np.arange(rounds)) & 1
    w = np.full(len(wrong), checks.positive("start", start, finite=True))
    path = [np.abs(w)]
    for bad in wrong.T:
        w = w - np.sign(w) * (1 - 2 * bad) / math.sqrt(rounds)
        path.append(np.abs(w))
    return np.stack(path), np.where(wrong, p, 1 - p).prod(axis=1)


def two_errors(gradients, probs):
    r"""The two errors of a vote when its stochastic gradient has these values: one user, M = B = 1, nobody left out.

    Paper: fdp, (107), Theorem 8.
    Printed: :math:`E[\mathrm{sign}\,\hat g\, \mathrm{sign}\, G] \ge (1 - 2\rho_1)(1 - 2\rho_2)`, as if the errors were
    independent: they share |g|.   Used: :math:`1 - 2\rho_1 - 2\rho_2`, the union of both, always. The product holds
    where a larger |g| has the right sign more often, as for a Gaussian; symmetric noise is not enough.
    Args: gradients — values in [−1, 1], of a mean above 0, shape (k,);  probs — of them, (k,).
    Returns: dict of ``rho_1``, ``rho_2`` (the bound of (103)), ``product``, ``union``, ``true``.
    """
    g, p = checks.array("gradients", gradients, ndim=1), checks.array("probs", probs, ndim=1)
    mean = float(p @ g) if g.shape == p.shape else 0.0
    if not (p >= 0).all() or abs(p.sum() - 1) > 1e-9 or mean <= 0 or np.abs(g).max() > 1:
        raise ValueError("gradients must lie in [-1, 1] and have a mean above 0, with as many probs that add up to 1")
    rho_1, rho_2 = float(p[g <= 0].sum()), float(p @ np.sqrt(1 - g**2))
    product, union = (1 - 2 * rho_1) * (1 - 2 * rho_2), 1 - 2 * rho_1 - 2 * rho_2
    return {"rho_1": rho_1, "rho_2": rho_2, "product": product, "union": union, "true": mean}
