r"""SGD with Propose-Test-Release under attack, on a quadratic: many runs at once.

The loss is ½ Σ_j c_j (w_j − w*_j)², curvatures c_j evenly from α to β, with w* = 0 (a translation). An honest oracle
sends cw + ζ, the gradient of ½ Σ_j c_j (w_j − z_j)² at a record z drawn anew: bounded, zero mean, E‖ζ‖² = σ².
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.robust.convergence import largest_learning_rate

ATTACKS = ("none", "zero", "away", "hidden")


@dataclass(frozen=True)
class Run:
    """Fields: squared_distance — mean of ‖w_t − w*‖² over the replicas, shape (T + 1,);  standard_error — its own,
    shape (T + 1,);  pass_rate — share of the replicas whose test passed (routine B), shape (T,);
    largest_norm — of all honest gradients."""

    squared_distance: np.ndarray
    standard_error: np.ndarray
    pass_rate: np.ndarray
    largest_norm: float


def _honest_noise(shape, std, rare_prob, rng):
    """On a sphere; or two points on the first axis, the far one (positive) with probability ``rare_prob``."""
    if rare_prob is None:
        noise = rng.standard_normal(shape)
        return noise * (std / np.linalg.norm(noise, axis=-1, keepdims=True))
    far = std * math.sqrt((1 - rare_prob) / rare_prob)
    noise = np.zeros(shape)
    noise[..., 0] = np.where(rng.random(shape[:-1]) < rare_prob, far, -far * rare_prob / (1 - rare_prob))
    return noise


def _corrupted(attack, place, honest_norms, num_corrupted, max_norm):
    """What the corrupted oracles of each replica send, shape (replicas, d)."""
    if attack == "zero":
        return np.zeros_like(place)
    distance = np.linalg.norm(place, axis=1, keepdims=True)
    first = np.eye(1, place.shape[1])
    outward = np.where(distance > 0, place / np.where(distance > 0, distance, 1.0), first)
    if attack == "away":
        return -max_norm * outward
    # just below the F-th largest honest norm: F honest gradients are trimmed in place of these
    rank = honest_norms.shape[1] - min(num_corrupted, honest_norms.shape[1])
    length = np.partition(honest_norms, rank, axis=1)[:, rank]
    return -(1 - 1e-9) * length[:, None] * outward


def simulate(
    *,
    num_records,
    num_corrupted,
    strong_convexity,
    smoothness,
    gradient_std,
    max_norm,
    dimension,
    noise_std,
    robust_noise_std,
    learning_rate,
    attack,
    sensitivity_bound,
    laplace_scale,
    test_failure,
    start_distance,
    num_steps,
    num_replicas,
    rng,
    rare_prob=None,
    radius=None,
    routine=None,
):
    r"""Runs of (91)–(92) with F corrupted gradients in every step.

    The test: safety margin max(0, F − #{‖g‖ > τ}) plus Laplace noise above b log(1/(2δ₀)) is routine B, −η_B(TSUM_F +
    N(0, σ₂²I)); else routine A, −η_B (n−F)/n (SUM + N(0, σ₁²I)).

    Attacks: ``none`` (corrupted oracles are honest); ``zero``; ``away`` (norm R, away from w*); ``hidden`` (away from
    w*, with a norm just below the F-th largest honest one, so that trimming takes honest gradients instead).

    Paper: ptr, Theorem 5.2, (91)–(92), and Algorithm 3.
    Printed: threshold log(1/(2δ₀)) in (92), covariance σ₁1_d.   Used: b log(1/(2δ₀)) as in Algorithm 3; σ₁²1_d.
    Assumes: gradients are sums, the margin is that of Theorem 5.1 for τ < R.
    Args: num_records — n;  num_corrupted — F;  strong_convexity, smoothness — α and β;  gradient_std — σ; max_norm — R;
        noise_std, robust_noise_std — σ₁ and σ₂;  learning_rate — η_B;  attack — one of the above;  sensitivity_bound —
        τ, a norm in (0, max_norm);  laplace_scale — b;  test_failure — δ₀ in (0, 1/2];  start_distance — ‖w₀ − w*‖, on
        the first axis;  num_steps — T;  num_replicas — at least 2;  rng — numpy Generator;  rare_prob — None for honest
        noise on a sphere of radius σ, or p for a skewed one: far with probability p, near otherwise;  radius — project
        on this ball about w* after each step, None for no projection;  routine — "A" or "B" in every step, to compare
        them by themselves; None: as the test says.
    Returns: a :class:`Run`. An honest gradient longer than max_norm is an error: the setting isn't the theorem's.
    """
    n = checks.integer("num_records", num_records, low=1)
    F = checks.integer("num_corrupted", num_corrupted, low=0, high=n - 1)
    alpha = checks.positive("strong_convexity", strong_convexity, finite=True)
    beta = checks.real("smoothness", smoothness, low=alpha, high=math.inf, open_high=True)
    sigma = checks.nonnegative("gradient_std", gradient_std, finite=True)
    R = checks.positive("max_norm", max_norm, finite=True)
    d = checks.integer("dimension", dimension, low=1)
    s1 = checks.nonnegative("noise_std", noise_std, finite=True)
    s2 = checks.nonnegative("robust_noise_std", robust_noise_std, finite=True)
    eta_b = checks.positive("learning_rate", learning_rate, finite=True)
    checks.choice("attack", attack, ATTACKS)
    tau = checks.real("sensitivity_bound", sensitivity_bound, low=0.0, high=R, open_low=True, open_high=True)
    b = checks.positive("laplace_scale", laplace_scale, finite=True)
    test_failure = checks.real("test_failure", test_failure, low=0.0, high=0.5, open_low=True)
    start = checks.nonnegative("start_distance", start_distance, finite=True)
    num_steps = checks.integer("num_steps", num_steps, low=0)
    replicas = checks.integer("num_replicas", num_replicas, low=2)
    if rare_prob is not None:
        rare_prob = checks.probability("rare_prob", rare_prob, allow_zero=False, allow_one=False)
    if radius is not None:
        radius = checks.real(
            "radius", radius, low=start, open_high=True, hint="it is at least start_distance; None: none"
        )
    if routine is not None:
        checks.choice("routine", routine, ["A", "B"])
    checks.generator("rng", rng)

    curvature = np.linspace(alpha, beta, d)
    threshold = b * math.log(1 / (2 * test_failure))
    place = np.zeros((replicas, d))
    place[:, 0] = start
    squares, passed, largest = [(place**2).sum(1)], [], 0.0
    for _ in range(num_steps):
        gradients = (curvature * place)[:, None, :] + _honest_noise((replicas, n, d), sigma, rare_prob, rng)
        norms = np.linalg.norm(gradients, axis=2)
        honest = n if attack == "none" else n - F
        largest = max(largest, float(norms[:, :honest].max()))
        if largest > R * (1 + 1e-12):
            raise ValueError(
                f"max_norm must be at least every honest gradient's norm, got max_norm={R:g} and a gradient of norm"
                f" {largest:g}; pass a radius, or start closer"
            )
        if attack != "none" and F:
            sent = _corrupted(attack, place, norms[:, :honest], F, R)
            gradients[:, honest:] = sent[:, None, :]
            norms[:, honest:] = np.linalg.norm(sent, axis=1)[:, None]
        total = gradients.sum(1)
        order = np.argpartition(norms, n - F - 1, axis=1)[:, n - F :]
        trimmed = total - np.take_along_axis(gradients, order[..., None], axis=1).sum(1)
        margin = np.maximum(0, F - (norms > tau).sum(1))
        robust = margin + rng.laplace(0.0, b, replicas) > threshold
        if routine is not None:
            robust[:] = routine == "B"
        noise = rng.standard_normal((replicas, d))
        step_a = eta_b * (n - F) / n * (total + s1 * noise)
        step_b = eta_b * (trimmed + s2 * noise)
        place = place - np.where(robust[:, None], step_b, step_a)
        if radius is not None:
            reach = np.linalg.norm(place, axis=1, keepdims=True)
            place = place * np.minimum(1.0, radius / np.maximum(reach, radius))
        squares.append((place**2).sum(1))
        passed.append(robust.mean())
    squares = np.array(squares)
    error = squares.std(1, ddof=1) / math.sqrt(replicas)
    return Run(squares.mean(1), error, np.array(passed), largest)


def hidden_in_the_tail(
    *, num_records, num_corrupted, strong_convexity, max_norm, sensitivity_bound, rare_prob, noise_std=None
):
    r"""The setting in which trimming hurts most, with every printed condition of Theorem 5.2 met: for :func:`simulate`.

    One dimension. Honest noise is skewed: with probability p a gradient is long and points to w*. The corrupted ones
    hide just below the F-th largest honest norm, so that F long honest gradients go and the F corrupted stay, and the
    iterate drifts to where these 2F norms l balance the k = n − F honest means: kαw = 2Fl, with αw + far = l a little
    below τ, so that the test passes. From F = n/3 on no room is left for noise: honest gradients are exact.

    Paper: ptr, Theorem 5.2: refutes (93) through (112).
    Args: num_records — n;  num_corrupted — F, below n/2;  strong_convexity — α (and β);  max_norm — R;
        sensitivity_bound — τ, a norm below R;  rare_prob — p in (0, 1), with pk well above F for the attack to
        bite;  noise_std — σ₁; None: the least for which σ₂ = (τ/R) σ₁ meets (151), where one does.
    Returns: keyword arguments of :func:`simulate`, all but the test's noise, the start, the counts and rng. σ₂ is the
        least that (151) allows, η_B half of what (94) allows, the projection is on the ball where gradients are ≤ R.
    """
    n = checks.integer("num_records", num_records, low=1)
    F = checks.integer("num_corrupted", num_corrupted, low=0, high=(n - 1) // 2)
    R = checks.positive("max_norm", max_norm, finite=True)
    tau = checks.real("sensitivity_bound", sensitivity_bound, low=0.0, high=R, open_low=True, open_high=True)
    rare = checks.real("rare_prob", rare_prob, low=0.0, high=1.0, open_low=True, open_high=True)
    k = n - F
    far = max(0.0, 0.995 * tau * (1 - 2 * F / k))
    std = far * math.sqrt(rare / (1 - rare))
    shrink, sums = k * (n + 1) / n**2, k * std**2 + F * R  # (151) as printed: σ₂² ≥ shrink · (sums/d + σ₁²)
    if noise_std is None:
        room = (tau / R) ** 2 / shrink - 1
        if room <= 0:
            least = R * math.sqrt(shrink)
            raise ValueError(f"sensitivity_bound must be above {least:.4g} for (151), got {tau:g}; or pass noise_std")
        noise_std = 1.001 * math.sqrt(sums / room)
        robust_noise_std = tau / R * noise_std
    else:
        noise_std = checks.nonnegative("noise_std", noise_std, finite=True)
        robust_noise_std = 1.001 * math.sqrt(shrink * (sums + noise_std**2))
    shared = {"num_records": n, "num_corrupted": F, "strong_convexity": strong_convexity}
    shared |= {"smoothness": strong_convexity}
    return {
        **shared,
        "gradient_std": std,
        "max_norm": R,
        "dimension": 1,
        "noise_std": noise_std,
        "robust_noise_std": robust_noise_std,
        "learning_rate": largest_learning_rate(**shared, form="as_printed") / 2,
        "sensitivity_bound": tau,
        "rare_prob": rare,
        "radius": (R - far) / strong_convexity,
    }
