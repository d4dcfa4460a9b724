r"""Convergence of SGD with Propose-Test-Release when some gradients are corrupted: the printed bound and a sound one.

A step takes n gradients, F of them corrupted, and moves by −η_A (SUM + N(0, σ₁² I)) or −η_B (TSUM_F + N(0, σ₂² I)),
η_A = η_B (n − F)/n; TSUM_F leaves out the F gradients of largest norm. Below k = n − F, Δ = w − w*, β the smoothness
and α the strong convexity of the loss.

**The printed theorem is false.** Its (112) gives the untrimmed honest gradients the mean ∇L, but they were selected by
norm: losses ½α(w − z)² with a skewed z, and corrupted gradients that hide just below the norms that get trimmed, bring
E‖Δ‖² to 2.2 times the printed limit while every stated condition holds (``byzantine.simulate``; the tests do it).
From F = n/3 on its limit is at least (R/α)², as M_B ≥ (FR/n)² and 1 − ρ_B ≤ (α(n − 2F)/n)²; and ‖Δ‖ ≤ R/α is what
"gradients are at most R" says already. The claim "for any F < n/2" is empty between n/3 and n/2; there, opposing
gradients of the honest norm do drive w away from w*.

**What holds** (``form="sound"``). Suppose that on a closed convex set W that contains w*, where ∇L(w*) = 0, honest
gradients are at most R in norm and unbiased with E‖g − ∇L‖² ≤ σ², that L is twice continuously differentiable with
Hessian between α and β, that w is projected on W after each step (or never leaves it), that which oracles are corrupted
doesn't depend on the step's gradients (what they send may), and that corrupted gradients are clipped to R. Then, with
any rule that picks the routine from the step's gradients and randomness of its own, u² = E‖Δ‖² obeys

.. math:: u_+^2 \le \big(\sqrt{\kappa^2 u^2 + \eta_B^2 V} + 2\eta_B F R\big)^2
          + \eta_B^2\, d \max\!\big(\sigma_2^2, (k\sigma_1/n)^2\big),
          \qquad \kappa = \max(|1 - \eta_B k\alpha|, |1 - \eta_B k\beta|),

V = k²σ², or kσ² for independent gradients. *Proof.* An honest oracle may count as corrupted, so let F be, and let S be
the sum of the k others. TSUM keeps a set B of corrupted gradients and trims as many honest ones, T, so it is S + e with
‖e‖ ≤ (|B| + |T|) R ≤ 2FR (a kept one is no longer than a trimmed one, hence at most R even unclipped). SUM is S + e'
with ‖e'‖ ≤ FR, and η_A (S + e') = η_B (S + e) with e = (k/n) e' − (F/n) S, so again ‖e‖ ≤ 2FRk/n. Each step is thus
−η_B (S + e + noise), whatever chose the routine. S = k∇L(w) + Z with E[Z | w] = 0 and E‖Z‖² ≤ V, and ∇L(w) = HΔ for the
mean Hessian H on the segment, so ‖Δ − η_B k∇L‖ ≤ κ‖Δ‖. The root mean square of Δ − η_B (S + e) is therefore at most
√(κ²u² + η_B²V) + 2η_B F R (Minkowski: e may depend on Z), the noise adds its own variance, and projecting brings w no
further from w*. ∎

With (x + y)² ≤ (1 + s)x² + (1 + 1/s)y² at the s of the fixed point u*, this is u₊² ≤ ρu² + M with M/(1 − ρ) = u*².
For small η_B, u* → 2FR/(kα); the simulated attack brings u² to within a tenth of it, so the bound is nearly tight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from privrob import checks

FORMS = ("sound", "as_printed")
_ASSUMED_BY_BOTH = (
    "honest gradients are at most max_norm in norm wherever the iterates go (not possible on all of R^d: project)",
    "honest gradients are unbiased with variance at most gradient_std**2",
    "corrupted gradients are clipped to max_norm",
    "at most num_corrupted gradients are corrupted in every step",
)
_ASSUMED = {
    "sound": (
        *_ASSUMED_BY_BOTH,
        "which oracles are corrupted does not depend on the gradients of the step",
        "the loss is twice continuously differentiable",
    ),
    "as_printed": (
        *_ASSUMED_BY_BOTH,
        "FALSE: the honest gradients that are not trimmed have mean grad L, eq 112",
        "FALSE: which routine runs does not depend on the gradients, eq 144",
    ),
}


@dataclass(frozen=True)
class Convergence:
    """E‖w₊ − w*‖² ≤ ρ E‖w − w*‖² + M, for routine A (SUM) and B (TSUM), and what it amounts to.

    ``as_printed``: one pair for the steps of each routine. ``sound``: ``rho_b``, ``m_b`` hold for every step, whichever
    routine it runs; ``rho_a``, ``m_a`` are sharper and hold for a run whose every step is of routine A.

    Fields: limit — M_B/(1 − ρ_B), infinite from ρ_B = 1 on;  trivial_limit — (R/α)², what bounded gradients give
    without any theorem;  conditions — each hypothesis on the numbers and whether it holds;  assumed — those that
    nobody can check from numbers.
    """

    form: str
    rho_a: float
    m_a: float
    rho_b: float
    m_b: float
    limit: float
    trivial_limit: float
    conditions: dict
    assumed: tuple

    @property
    def holds(self):
        """Whether every condition on the numbers holds."""
        return all(self.conditions.values())

    @property
    def informative(self):
        """Whether the limit says more than that gradients are bounded."""
        return self.limit < self.trivial_limit

    def after(self, num_steps, *, start):
        """The bound on E‖w − w*‖² after some steps from ‖w₀ − w*‖² = start, by (ρ_B, M_B)."""
        num_steps = checks.integer("num_steps", num_steps, low=0)
        start = checks.nonnegative("start", start, finite=True)
        if self.rho_b < 1:
            faded = self.rho_b**num_steps
            return faded * start + (1 - faded) * self.limit
        grown = math.exp(min(num_steps * math.log(self.rho_b), 700.0))
        total = num_steps if self.rho_b == 1 else (grown - 1) / (self.rho_b - 1)
        return grown * start + total * self.m_b


def _counts(num_records, num_corrupted):
    n = checks.integer("num_records", num_records, low=1)
    return n, checks.integer("num_corrupted", num_corrupted, low=0, high=n - 1)


def _curvatures(strong_convexity, smoothness):
    alpha = checks.positive("strong_convexity", strong_convexity, finite=True)
    return alpha, checks.real(
        "smoothness", smoothness, low=alpha, high=math.inf, open_high=True, hint="it is at least strong_convexity"
    )


def largest_learning_rate(*, num_records, num_corrupted, strong_convexity, smoothness, form="sound"):
    r"""The learning rate η_B below which the bound contracts; 0 if none does.

    .. math:: \frac{2}{\beta (n-F)} \quad\text{(sound)}, \qquad
              \frac{2\alpha(n-2F)}{n^2 + (n-F+1)(n-F)\beta^2} \quad\text{(printed)}

    Paper: ptr, Theorem 5.2, (94).
    Printed: η_B ≤ this.   Used: strictly below: at it ρ_B = 1.
    Args: num_records — n;  num_corrupted — F, below n;  strong_convexity — α;  smoothness — β ≥ α;
        form — "sound" or "as_printed".
    Returns: η_B for a sum (not a mean) of gradients.
    """
    n, F = _counts(num_records, num_corrupted)
    alpha, beta = _curvatures(strong_convexity, smoothness)
    if checks.choice("form", form, FORMS) == "sound":
        return 2 / (beta * (n - F))
    return max(0.0, 2 * alpha * (n - 2 * F) / (n**2 + (n - F + 1) * (n - F) * beta**2))


def _fixed_point(slack, variance, push, noise):
    """ρ, M and M/(1 − ρ) of u₊² ≤ (√(κ²u² + variance) + push)² + noise, κ = 1 − slack, at the best split (x + y)²."""
    square = (1 - slack) ** 2
    if slack <= 0:  # no fixed point: equal shares
        return 2 * square, 2 * variance + 2 * push**2 + noise, math.inf
    gap = slack * (2 - slack)  # 1 − κ²
    root = math.sqrt(square**2 * push**2 + gap * (variance + square * (push**2 + noise)))
    inner = (square * push + root) / gap  # √(κ²u*² + variance)
    limit = (inner + push) ** 2 + noise
    if inner == 0:  # κ² u*² = variance = 0
        return square, limit * gap, limit
    return square * (1 + push / inner), limit * (root / inner), limit


def convergence_bound(
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
    form="sound",
    independent=False,
):
    r"""How far SGD with PTR stays from the minimiser when F of n gradients are corrupted in every step.

    ``as_printed`` is Theorem 5.2:

    .. math:: \rho_B &= 1 - 2\eta_B\alpha(n-2F) + \eta_B^2\big(n^2 + (n-F+1)(n-F)\beta^2\big) \\
              M_B &= \eta_B^2 (n-F+1)\big((n-F)\sigma^2 + d\sigma_2^2\big) + (F/n)^2R^2

    It proves nothing: (112) is false, and so is the conclusion (see the module). ``sound`` is the bound proved in the
    module; it needs neither (151) nor F < n/2, and says something (``informative``) only if F < n/3. Neither speaks of
    a loss that isn't strongly convex, of clipped honest gradients (they are biased), or of privacy.

    Paper: ptr, Theorem 5.2, (93)–(96) and (142)–(151).
    Printed: F·R in M_A and (151), eq 134; "M_B < M_A" after (144), where (151) has M_A ≤ M_B; η_B ≤ in (94).
    Used: "sound", with F²R² where (134) has F·R. "as_printed" keeps F·R and asks for "<" in (94).
    Args: num_records — n;  num_corrupted — F;  strong_convexity, smoothness — α, β;  gradient_std — σ, the root of
        E‖g − ∇L‖²;  max_norm — R;  dimension — d;  noise_std, robust_noise_std — σ₁ of SUM, σ₂ of TSUM, each
        coordinate, absolute;  learning_rate — η_B, for the sum;  form — "sound" or "as_printed";  independent —
        "sound" only: honest gradients of a step are independent.
    Returns: a :class:`Convergence`.
    """
    form = checks.choice("form", form, FORMS)
    n, F = _counts(num_records, num_corrupted)
    alpha, beta = _curvatures(strong_convexity, smoothness)
    sigma = checks.nonnegative("gradient_std", gradient_std, finite=True)
    R = checks.positive("max_norm", max_norm, finite=True)
    d = checks.integer("dimension", dimension, low=1)
    s1 = checks.nonnegative("noise_std", noise_std, finite=True)
    s2 = checks.nonnegative("robust_noise_std", robust_noise_std, finite=True)
    eta_b = checks.positive("learning_rate", learning_rate, finite=True)
    independent = checks.choice("independent", independent, [False, True])
    k = n - F
    eta_a = k / n * eta_b
    highest = largest_learning_rate(num_records=n, num_corrupted=F, strong_convexity=alpha, smoothness=beta, form=form)
    conditions = {"learning_rate": eta_b < highest}

    if form == "sound":
        variance = (k if independent else k**2) * sigma**2

        def recursion(eta, push, noise):
            slack = min(eta * k * alpha, 2 - eta * k * beta)  # 1 − κ
            return _fixed_point(slack, eta**2 * variance, eta * push, eta**2 * noise)

        rho_a, m_a, _ = recursion(eta_a, F * R, d * s1**2)
        rho_b, m_b, limit = recursion(eta_b, 2 * F * R, d * max(s2, k / n * s1) ** 2)
    else:
        if independent:
            raise ValueError("independent must be False with form='as_printed', got True; the theorem has no such case")
        # printed, and read as printed: F R, where the squares in (133) give F R²
        drift_a = 2 * eta_a * alpha * k - eta_a**2 * (n**2 + (n + 1) * k * beta**2)
        drift_b = 2 * eta_b * alpha * (n - 2 * F) - eta_b**2 * (n**2 + (k + 1) * k * beta**2)
        rho_a, rho_b = 1 - drift_a, 1 - drift_b
        m_a = eta_a**2 * (n + 1) * (k * sigma**2 + F * R + d * s1**2) + (F / n) ** 2 * R**2
        m_b = eta_b**2 * (k + 1) * (k * sigma**2 + d * s2**2) + (F / n) ** 2 * R**2
        limit = m_b / drift_b if drift_b > 0 else math.inf
        conditions["minority"] = n > 2 * F
        needed = k * (n + 1) / n**2 * ((k * sigma**2 + F * R) / d + s1**2)
        conditions["robust_noise"] = s2**2 >= needed

    return Convergence(form, rho_a, m_a, rho_b, m_b, limit, (R / alpha) ** 2, conditions, _ASSUMED[form])


def smallest_sensitivity_bound(*, num_records, num_trimmed):
    r"""The least τ = σ₂/σ₁ that hypothesis (151) leaves open, whatever the gradients: √((n − F)(n + 1))/n.

    At n = 256, F = 64 it is 0.868; the experiments propose τ of 0.5, 0.667 and 0.6 (in units of R), so the theorem
    covers none of them.

    Paper: ptr, Theorem 5.2, (151).
    Args: num_records — n;  num_trimmed — F, below n.
    Returns: a lower bound on the sensitivity bound in units of the clipping norm; not enough if σ or R is above 0.
    """
    n = checks.integer("num_records", num_records, low=1)
    F = checks.integer("num_trimmed", num_trimmed, low=0, high=n - 1)
    return math.sqrt((n - F) * (n + 1)) / n


def corrupted_quantile(*, num_records, sample_rate, corruption_rate, failure_prob, num_steps=1):
    r"""How many corrupted records a Poisson sample has at most, in all of ``num_steps`` steps, but for a small chance.

    The smallest k with P(Bin(c, q) > k) ≤ p/T, c = ⌈corruption_rate · N⌉ (float64 rounding aside): exact for one step,
    a union bound for more. F must be at least this for a theorem with "at most F in every step" to speak of a
    sampled run. The sample's size, its n, is random as well: the document leaves that open, and so does this.

    Paper: ptr, Remark A.2.
    Args: num_records — N, of the data set;  sample_rate — q in (0, 1];  corruption_rate — in [0, 1];
        failure_prob — p in (0, 1), for the whole run;  num_steps — T.
    Returns: an integer.
    """
    num_records = checks.integer("num_records", num_records, low=1, high=10**15)
    rate = checks.probability("sample_rate", sample_rate, allow_zero=False, hint="pass batch_size / num_records")
    corruption_rate = checks.probability("corruption_rate", corruption_rate)
    failure_prob = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False)
    each = failure_prob / checks.integer("num_steps", num_steps, low=1)
    corrupted = stats.binom(math.ceil(corruption_rate * num_records * (1 - 1e-12)), rate)
    most = int(corrupted.isf(each))  # then settle its rounding by the tail itself
    while most > 0 and corrupted.sf(most - 1) <= each:
        most -= 1
    while corrupted.sf(most) > each:
        most += 1
    return most
