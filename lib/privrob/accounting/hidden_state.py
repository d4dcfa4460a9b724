r"""Noisy gradient descent that shows only its last iterate: bounds that stop growing with the number of steps.

One step, on the records of its batch, with step size η and the projection Π onto the domain (or none):

.. math:: x \leftarrow \Pi\big(x - \eta\,(g(x) + N(0, s^2 I))\big)

**The bound.** Let Φ and Φ' be the gradient steps of two neighbouring data sets. On λ-strongly convex, β-smooth losses
Φ contracts by :math:`c = \max(|1 - \eta\lambda|, |1 - \eta\beta|)`, at most 1 for η ≤ 2/β, and Φ and Φ' differ by at
most :math:`\eta\Delta_t`: ηΔ when the differing record is in the batch, else 0. Run both, x with Φ and x' with Φ', and
between them, with the noise Z of x, the interpolated process of Bok, Su and Altschuler (2024)

.. math:: \tilde x_{t} = \Pi\big(\Phi'(\tilde x_{t-1}) + u_t + Z_t\big), \quad
    u_t = \ell_t\,(\Phi(x_{t-1}) - \Phi'(\tilde x_{t-1})), \quad \tilde x_\tau = x'_\tau, \quad \ell_T = 1,

so that :math:`\tilde x_T = x_T`. Distances :math:`z_t \ge |x_t - \tilde x_t|` and shifts :math:`a_t \ge |u_t|` obey
:math:`z_t = c z_{t-1} + \eta\Delta_t - a_t`, with :math:`z_\tau = 0` at τ = 0 (one starting point for both), or
:math:`z_\tau = D`, the diameter of the domain, at any τ; :math:`z_T = 0`. Given :math:`\tilde x_{t-1}`, step t tells
:math:`\tilde x` from :math:`x'` no better than two Normals :math:`a_t/(\eta s)` apart: releasing u too would not, and
Π is post-processing. These compose adaptively, so x_T is μ-GDP, hence has Rényi curve αμ²/2, with

.. math:: \mu^2 = \min \sum_{t>\tau} a_t^2 / (\eta s)^2 \quad\text{over all}\ \tau,\ a_t\ \text{with every}\ z_t \ge 0.

The Rényi form is privacy amplification by iteration (Feldman et al. 2018; Altschuler and Talwar 2022). The least sum
is that of a taut string: put :math:`W_t = \sum_{u \le t} c^{-2u}` against :math:`S_t = z_\tau + \sum_{u \le t}
c^{-u}\eta\Delta_u`; the cumulated shifts :math:`\sum c^{-u} a_u` follow the greatest convex curve from (0, 0) that
stays below S and meets its end, and the sum is that of (rise)²/(run) over its pieces.

Every function names its conditions and refuses where they fail. Nothing here depends on the dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import logsumexp

from privrob import checks
from privrob.kinds import Neighbouring, NotAvailable

_EPS = float(np.finfo(np.float64).eps)
_COARSE = 400  # candidates for the restart in one look; each look zooms in
_SLACK = 1 + 1e-12  # rounding of the closed forms, put on the safe side


@dataclass(frozen=True)
class NoisyDescent:
    """Settings of one run of projected noisy gradient descent.

    Assumes: each batch's mean loss (of one of the two data sets, at least) is ``strong_convexity``-strongly convex and
    ``smoothness``-smooth on the domain, which is convex; the start does not depend on the data. For ``add``, ``remove``
    and ``add_remove`` the denominator of the mean stays what it was.

    Args: step_size — η, at most 2 / smoothness;  l2_sensitivity — Δ: the most by which g(x) moves between neighbours,
        at any x of the domain, in a step whose batch holds the differing record: see :func:`sensitivity`;
        noise_std — s, of the noise added to g, per coordinate;  smoothness — β, positive;
        strong_convexity — λ in [0, β], 0 for merely convex;  diameter — of the domain, infinity for none;
        num_batches — batches in an epoch: each record is in one of them, in the same place of each epoch (or see
        :func:`shuffled`);  neighbouring — the relation that Δ was taken over.
    """

    step_size: float
    l2_sensitivity: float
    noise_std: float
    smoothness: float
    strong_convexity: float
    diameter: float
    num_batches: int
    neighbouring: Neighbouring

    def __post_init__(self):
        checks.positive("smoothness", self.smoothness, finite=True)
        hint = "above 2 / smoothness a gradient step expands, and hidden iterates give nothing: use plain composition"
        checks.real("step_size", self.step_size, low=0.0, open_low=True, high=2 / self.smoothness, hint=hint)
        checks.real(
            "strong_convexity", self.strong_convexity, low=0.0, high=self.smoothness, hint="pass 0 for a convex loss"
        )
        checks.nonnegative("l2_sensitivity", self.l2_sensitivity, finite=True)
        checks.positive("noise_std", self.noise_std, finite=True, hint="without noise there is no guarantee")
        checks.positive("diameter", self.diameter, hint="pass math.inf for an unbounded domain")
        checks.integer("num_batches", self.num_batches, low=1, high=2**53, hint="1 is full-batch descent")
        checks.real("l2_sensitivity / noise_std", self.shift, low=0.0, high=1e100, hint="there is next to no noise")
        object.__setattr__(self, "neighbouring", Neighbouring.of(self.neighbouring))

    @property
    def contraction_gap(self):
        """1 − c = min over h in {λ, β} of 1 − |1 − ηh|, rounded down."""
        products = [self.step_size * h for h in (self.strong_convexity, self.smoothness)]
        return max(min(*(p * (1 - 4 * _EPS) for p in products), *(2 - p - 8 * _EPS for p in products)), 0.0)

    @property
    def shift(self):
        """ηΔ in noise standard deviations ηs: 1 / noise multiplier."""
        return self.l2_sensitivity / self.noise_std

    @property
    def reach(self):
        """The diameter in noise standard deviations ηs."""
        return self.diameter / (self.step_size * self.noise_std)


def sensitivity(lipschitz, *, denominator, neighbouring):
    """Δ of a mean gradient: L / m for a record more or less over a fixed denominator m, 2L / m for one exchanged.

    Args: lipschitz — bound L on each record's gradient norm (the clipping norm; but clipping breaks smoothness and
        convexity unless the loss has gradients below it anyway);  denominator — records in a batch;
        neighbouring — ``add``, ``remove``, ``add_remove`` or ``replace``.
    """
    lipschitz = checks.nonnegative("lipschitz", lipschitz, finite=True)
    twice = 2 if Neighbouring.of(neighbouring) is Neighbouring.REPLACE else 1
    return twice * lipschitz / checks.positive("denominator", denominator, finite=True)


def composition_mu(run, num_steps):
    """μ when all iterates are shown: √visits · Δ / s, for a record seen once in each epoch, at the latest place.

    Args: run — :class:`NoisyDescent`;  num_steps — K, at least 0.
    """
    visits = -(-_steps(num_steps) // run.num_batches)
    return math.sqrt(visits) * run.shift


def last_iterate_mu(run, num_steps):
    r"""μ of Gaussian differential privacy of the last iterate after K steps: never above composition, often bounded.

    With one batch, :math:`\mu^2 = \frac{\Delta^2}{s^2}\,\frac{1 - c^K}{1 + c^K}\,\frac{1 + c}{1 - c}` without a domain,
    and :math:`\min_R \big(c^R D' + \frac{\Delta}{s}\sum_{i<R} c^i\big)^2 / \sum_{i<R} c^{2i}` with one of diameter
    :math:`D' \eta s`: with c = 1 about 4 D'Δ/s, from K = D'/(Δ/s) steps on. With b batches the record visits steps K,
    K − b, …, which is the worst place: moving a visit later never lowers the bound.

    Paper: dplearn, Advanced Topic: can we prove privacy bound for DP-SGD that is smaller than moment accountant?
    Altschuler and Talwar (2022), Theorem 3.1 and its strongly convex form, here with constants; Bok, Su and Altschuler
    (2024). For (ε, δ), hand μ to ``gdp.epsilon_of``.
    Args: run — :class:`NoisyDescent`;  num_steps — K, at least 0.
    Returns: μ, an upper bound; of the exact value with one batch, no domain and c = 1 − ηλ (quadratics attain it).
    """
    return _last_mu(run, _steps(num_steps), 0)


def quadratic_mu(run, num_steps, *, curvature, place=0):
    r"""μ that quadratic losses really have: a lower end for every bound, with no domain.

    The mean loss is :math:`\tfrac{h}{2}|x|^2`, and the differing record adds Δ·x₁ to its batch. Both last iterates are
    Normal with one covariance; μ is the distance of their means in its standard deviations.

    Args: run — :class:`NoisyDescent` (its diameter is not looked at);  num_steps — K, at least 0;
        curvature — h in [strong_convexity, smoothness];  place — steps after the record's last visit, in
        [0, num_batches).
    """
    num_steps = _steps(num_steps, high=10**7)
    h = checks.real("curvature", curvature, low=run.strong_convexity, high=run.smoothness)
    place = checks.integer("place", place, low=0, high=run.num_batches - 1)
    factor = 1 - run.step_size * h
    age = np.arange(num_steps, dtype=np.float64)
    gap = run.shift * np.sum(factor ** age[place :: run.num_batches])
    return float(abs(gap) / math.sqrt(np.sum(factor ** (2 * age)))) if num_steps else 0.0


def composition(orders, run, num_steps):
    """Rényi curve when all iterates are shown: αμ²/2. Args as in :func:`composition_mu`; orders each above 1."""
    return _gaussian(orders, composition_mu(run, num_steps))


def last_iterate(orders, run, num_steps):
    """Rényi curve of the last iterate: αμ²/2 with the μ of :func:`last_iterate_mu`."""
    return _gaussian(orders, last_iterate_mu(run, num_steps))


def langevin(orders, run, num_steps):
    r"""Rényi curve of the last iterate by following the Langevin diffusion between steps.

    .. math:: \frac{\alpha S_g^2}{\lambda\sigma^2 n^2}\big(1 - e^{-\lambda\eta K/2}\big)
        = \frac{2\alpha}{\lambda\eta}\,\frac{\Delta^2}{s^2}\,\big(1 - e^{-\lambda\eta K/2}\big)

    Paper: dplearn, Advanced Topic (as above). Chourasia, Ye and Shokri (2021), their corollary for noisy gradient
    descent: steps :math:`x - \eta \nabla + \sqrt{2\eta}\,N(0, \sigma^2 I)`, so :math:`\sigma^2 = \eta s^2/2`; S_g is
    the sensitivity of the summed gradient, Δ = S_g/n; one record of n replaced.
    Assumes: full batch, λ > 0, η ≤ 1/β, start from :math:`N(0, 2\sigma^2/\lambda\, I)` projected onto the domain.
    Args: run — a :class:`NoisyDescent`.
    Returns: curve, shape (k,): never below :func:`last_iterate`, by a factor of about 2 for one step and for many.
    """
    orders, num_steps = checks.orders(orders), _steps(num_steps)
    if run.num_batches != 1:
        raise NotAvailable(
            f"langevin needs num_batches=1, got num_batches={run.num_batches}; last_iterate and shuffled take batches"
        )
    weak = checks.positive("strong_convexity", run.strong_convexity, hint="for convex losses use last_iterate")
    hint = "last_iterate allows 2 / smoothness"
    eta = checks.real("step_size", run.step_size, low=0.0, open_low=True, high=1 / run.smoothness, hint=hint)
    return orders * (run.shift**2 * -2 * math.expm1(-weak * eta * num_steps / 2) / (weak * eta) * _SLACK)


def shuffled(orders, run, num_steps):
    r"""Rényi curve of the last iterate when each epoch deals its records to batches anew, at random and in secret.

    Given all the places of the record, the bound of the module holds. Over the places j of its last visit, uniform,
    and the worst places in earlier epochs (the last of each),

    .. math:: \varepsilon(\alpha) = \tfrac{1}{\alpha - 1}\log\Big(\tfrac{1}{b}\sum_j e^{(\alpha-1)\alpha\mu_j^2/2}\Big),

    because :math:`e^{(\alpha-1)D_\alpha}` is jointly convex. In the spirit of Ye and Shokri (2022), by this proof, not
    theirs. The partition may also be dealt once: the bound is the same.

    Assumes: neighbours share the deal (one record exchanged in its place, or its place left empty); whole epochs.
    Args: orders — each above 1;  run — :class:`NoisyDescent`;  num_steps — K, a multiple of num_batches.
    """
    orders, num_steps = checks.orders(orders), _steps(num_steps)
    batches = run.num_batches
    if num_steps % batches:
        raise ValueError(f"num_steps must be a multiple of num_batches={batches}, got num_steps={num_steps}")
    if num_steps == 0:
        return np.zeros(orders.shape)
    # beyond a few hundred places, a place stands for those after it: an earlier last visit never costs more
    places = np.unique(np.concatenate([np.arange(min(batches, 64)), np.geomspace(1, batches, 200).astype(int) - 1]))
    weights = np.diff(np.append(places, batches)) / batches
    half = np.array([_last_mu(run, num_steps, int(j)) ** 2 / 2 for j in places])
    exponents = ((orders - 1) * orders)[:, None] * half
    small = np.log1p(np.sum(weights * np.expm1(np.minimum(exponents, 1.0)), axis=1))  # a mean close to 1
    large = logsumexp(np.log(weights) + exponents, axis=1)
    return np.where(exponents.max(axis=1) < 1, small, large) / (orders - 1) * _SLACK


def poisson(orders, run, num_steps, *, sample_rate, step_rdp):
    r"""Rényi curve of the last iterate when each step draws each record with probability q.

    The noise is split, :math:`s^2 = s_1^2 + s_2^2`: the first part hides how far apart the two runs are after step τ,
    as in the module; the second makes each of the R = K − τ later steps a sampled Gaussian mechanism.

    .. math:: \min_{R, s_1}\ R\,\varepsilon_q(\alpha; s_2/\Delta)
        + \frac{\alpha}{2 \eta^2 s_1^2}\,\frac{c^{2R} z^2}{\sum_{i<R} c^{2i}},
        \qquad z = \min\Big(D, \eta\Delta\,\tfrac{1 - c^{K-R}}{1 - c}\Big)

    R = K, z = 0 is plain composition. The two parts are independent given the past and who else was drawn, so that
    their Rényi divergences add up. Altschuler and Talwar (2022), Theorem 3.1 in kind, with explicit constants.

    Assumes: records drawn independently, a fixed denominator; λ and β hold for every batch that can be drawn, the
    empty one too: λ > 0 has to come from a regulariser.
    Args: orders — each above 1;  run — :class:`NoisyDescent` with num_batches=1, neighbouring not ``replace``;
        num_steps — K, at least 0;  sample_rate — q;
        step_rdp — called as ``step_rdp(orders, noise_multiplier=…, sample_rate=…)``: an upper bound on the Rényi curve
        of one Poisson-sampled Gaussian step, for the same neighbouring relation.
    """
    orders, num_steps = checks.orders(orders), _steps(num_steps)
    rate = checks.probability("sample_rate", sample_rate)
    if run.neighbouring is Neighbouring.REPLACE:
        raise NotAvailable("poisson needs neighbouring 'add', 'remove' or 'add_remove'; for 'replace' use last_iterate")
    if run.num_batches != 1:
        raise NotAvailable(f"poisson draws from all records: num_batches must be 1, got num_batches={run.num_batches}")
    if num_steps == 0 or run.shift == 0 or rate == 0:
        return np.zeros(orders.shape)

    def sampled(share):
        curve = step_rdp(orders, noise_multiplier=math.sqrt(share) / run.shift, sample_rate=rate)
        curve = checks.array("step_rdp(...)", curve, finite=False)
        if curve.shape != orders.shape or not (curve >= 0).all():
            raise ValueError(f"step_rdp must give a number of at least 0 for each of {orders.size} orders, got {curve}")
        return curve

    best = num_steps * sampled(1.0)
    steps = np.unique(np.round(np.geomspace(1, num_steps, _COARSE))).astype(np.int64)
    steps = np.unique(np.concatenate([steps, np.arange(1, min(num_steps, _COARSE) + 1)]))
    rate_of_decay = _decay(run)
    before = np.minimum(run.reach, run.shift * _sums(rate_of_decay, num_steps - steps, 1))
    iteration = (np.exp(-rate_of_decay * steps) * before) ** 2 / _sums(rate_of_decay, steps, 2) * (_SLACK / 2)
    for share in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        each = steps * sampled(share)[:, None] + orders[:, None] * iteration / (1 - share)
        best = np.minimum(best, each.min(axis=1))
    return best


def best(orders, run, num_steps):
    """The smallest of the bounds for batches in a fixed order, order by order, and which one it was.

    Args: run — a :class:`NoisyDescent`.
    Returns: (curve, list of names): ``composition``, ``last_iterate`` or ``langevin`` (only for ``replace``, and where
        its conditions hold; its start is assumed); the first of equals.
    """
    curves = {"composition": composition(orders, run, num_steps), "last_iterate": last_iterate(orders, run, num_steps)}
    fits = run.num_batches == 1 and run.strong_convexity > 0 and run.step_size <= 1 / run.smoothness
    if fits and run.neighbouring is Neighbouring.REPLACE:
        curves["langevin"] = langevin(orders, run, num_steps)
    stacked = np.stack(list(curves.values()))
    names = list(curves)
    return stacked.min(axis=0), [names[i] for i in stacked.argmin(axis=0)]


# ------------------------------------------------------------------------------------------------------ the taut string


def _steps(num_steps, high=10**15):
    return checks.integer("num_steps", num_steps, low=0, high=high)


def _gaussian(orders, mu):
    return checks.orders(orders) * (mu**2 / 2)


def _decay(run):
    """−log c; infinity where one step forgets all."""
    gap = run.contraction_gap
    return math.inf if gap >= 1 else -math.log1p(-gap)


def _sums(decay, count, power):
    """Σ over i < count of c^(power · i), for arrays of counts."""
    count = np.asarray(count, dtype=np.float64)
    if decay == 0:
        return count
    if decay == math.inf:
        return np.minimum(count, 1.0)
    return np.expm1(-power * decay * count) / math.expm1(-power * decay)


def _last_mu(run, num_steps, place):
    """μ when the record's last visit is ``place`` steps before the end, the others b, 2b, … steps before it."""
    b, others = run.num_batches, (num_steps - 1) // run.num_batches
    if num_steps == 0 or run.shift == 0:
        return 0.0
    smallest = float(_string(run, 0.0, others * b if others else place, others, place))  # one start, at the first visit
    apart = run.reach / run.shift
    if apart < 1e100:
        if place > 0:  # that far apart right after the last visit
            near = apart * math.exp(-_decay(run) * place)
            smallest = min(smallest, float(near**2 / _sums(_decay(run), place, 2)))
        low, high = 1, num_steps // b  # that far apart right after the visit k·b steps before the end
        while low <= high:
            k = np.unique(np.concatenate([np.geomspace(low, high, _COARSE), np.linspace(low, high, _COARSE)]).round())
            squares = _string(run, apart, k * b - 1, k - 1, place)
            i = int(np.argmin(squares))
            smallest = min(smallest, float(squares[i]))
            if k.size == high - low + 1:
                break
            low, high = int(k[max(i - 1, 0)]), int(k[min(i + 1, k.size - 1)])
    return run.shift * min(math.sqrt(smallest) * _SLACK, math.sqrt(others + 1))


def _string(run, start, oldest, others, place):
    """Σ a² of the taut string, in units of ηΔ: steps of ages ``oldest`` … 0 (0 is the last), from distance ``start``.

    The record is visited at ages others·b, …, 2b, b and ``place``. S is flat between visits, and its corners before
    equally spaced visits lie on a concave curve: the string can bend only before the first of them, before age b,
    before the last visit, and at the end. Its slopes are the isotonic regression of the slopes of these four pieces.
    """
    b, decay = run.num_batches, _decay(run)
    oldest, others = np.asarray(oldest, dtype=np.float64), np.asarray(others, dtype=np.float64)
    ages = [oldest, np.where(others > 0, others * b, place), np.where(others > 0, b, place), place, -1]
    runs = [np.exp(-2 * decay * (young + 1)) * _sums(decay, old - young, 2) for old, young in pairwise(ages)]
    between = np.exp(-2 * decay * b) * _sums(decay * b, np.maximum(others - 1, 0), 1)
    rises = [start * np.exp(-decay * (oldest + 1)), between]
    rises += [np.exp(-decay * b) * (others > 0), math.exp(-decay * place)]
    runs, rises = (np.stack(np.broadcast_arrays(*v)) for v in (runs, rises))
    total = 0.0
    for i in range(4):
        slope = 0.0
        for first in range(i + 1):
            pooled = math.inf
            for last in range(i, 4):
                rise, length = rises[first : last + 1].sum(axis=0), runs[first : last + 1].sum(axis=0)
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    pooled = np.minimum(pooled, np.where(rise > 0, rise / length, 0.0))
            slope = np.maximum(slope, pooled)
        total = total + runs[i] * slope**2
    return total
