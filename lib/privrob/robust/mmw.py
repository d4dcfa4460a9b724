r"""Scores that look in all directions at once, and one threshold for all of them: the two ideas of PRIME."""

from __future__ import annotations

import math

import numpy as np

from privrob import checks

EXPONENTIALS = ("matrix", "elementwise")


def weights(matrix, *, step, exponential="matrix"):
    r"""U = exp(αE)/tr exp(αE) for E = Σ_r (Σ_r − I), of trace 1 and without negative eigenvalues.

    The limits are exact: α = 0 gives I/d (the score ‖x − μ‖²/d), α = ∞ the projector on the top eigenspace over its
    dimension (for one vector v, the score (vᵀ(x − μ))²).

    Paper: prime, Section 2.3.1 and Algorithm 10.
    Printed: the matrix exponential. The authors' script takes exp of each *entry*: near 11ᵀ/d whatever the data, so
        that it is told the direction of the cluster of its own figures (``exponential="elementwise"``).
    Args: matrix — E, symmetric, (d, d);  step — α, at least 0, infinity allowed;  exponential.
    """
    matrix = checks.array("matrix", matrix, ndim=2)
    step = checks.nonnegative("step", step)
    checks.choice("exponential", exponential, EXPONENTIALS)
    if exponential == "elementwise":
        with np.errstate(over="ignore"):
            raw = np.exp(step * (matrix - matrix.max()))
        return raw / np.trace(raw)
    values, vectors = np.linalg.eigh(matrix)
    if step == math.inf:
        shares = (values >= values[-1] - 1e-12 * max(1.0, abs(values[-1]))).astype(float)
    else:
        shares = np.exp(step * (values - values[-1]))
    return (vectors * (shares / shares.sum())) @ vectors.T


def printed_step(norm, *, stop_constant=1.0, heavy_tailed=False):
    r"""α^(s) = 1/(100 (0.1/C + 1.01) λ), with 1.05 for heavy tails.

    With it ψ passes the gate λ/5.5 after T₂ ≥ 111 log((d − 1)/4.5) iterations of an epoch, not O(log d): 265 of them at
    d = 50 (Lemma F.5's own proof needs about 1000 log d).

    Paper: prime, Algorithms 10, 12 and 15; Lemmas F.5 and K.6.
    Args: norm — λ;  stop_constant — C.
    """
    return 1 / (100 * (0.1 / stop_constant + (1.05 if heavy_tailed else 1.01)) * norm)


def iterations_to_pass(dimension, *, step_times_norm, gate=5.5, most=100_000):
    """Iterations of an epoch, answers exact, until ψ = ⟨M − I, U⟩ exceeds λ/5.5 for one direction of excess λ.

    Paper: prime, Algorithm 10, Lemma F.5 (T₂ = O(log d)).
    Args: dimension — d;  step_times_norm — α^(s)·λ: 1/(100 (0.1/C + 1.01)) as printed, κ in ``tuned`` and ``ball``;
        gate — 5.5.
    Returns: the least t with e^(tκ)/(e^(tκ) + d − 1) > 1/5.5; ``most`` where it takes longer.
    """
    kappa = checks.positive("step_times_norm", step_times_norm)
    others = checks.integer("dimension", dimension, low=1) - 1
    if others < gate - 1:
        return 1
    least = math.log(others / (gate - 1)) / kappa
    return most if least >= most else math.floor(least) + 1


def num_bins(diameter):
    """2 + ⌈log₂ D²⌉ bins [1/4, 1/2), [1/2, 1), … up to D² at least.

    Paper: prime, Algorithm 11 (its log is to base 2).
    """
    return max(2, 2 + math.ceil(2 * math.log2(diameter)))


def pick_threshold(shares, score, *, need=0.31, noise_std=0.0, margin=0.0):
    r"""The largest τ_ℓ = 2^(ℓ−3) with Σ_{j ≥ ℓ} (τ_j − τ_ℓ) h_j ≥ 0.31 ψ; None where there is none.

    With ``margin`` so many standard deviations of the noise of the left side must be passed beside: the noise of a bin
    counts by its τ_j, so that without it the highest bins, of noise alone, are picked. That costs no privacy.

    Paper: prime, Algorithm 11 (Section 2.3.2's sketch outputs 2^ℓ, eight times as much).
    Args: shares — h_1 …, shape (k,);  score — ψ;  need — 0.31;  noise_std — of a share.
    """
    tau = 2.0 ** (np.arange(1, len(shares) + 1) - 3)
    gap = np.maximum(tau[None, :] - tau[:, None], 0.0)
    reach = gap @ np.asarray(shares) - margin * noise_std * np.sqrt((gap**2).sum(axis=1))
    good = np.flatnonzero(reach >= need * score)
    return float(tau[good[-1]]) if good.size else None
