r"""Reference numbers for the privacy of Propose-Test-Release, by mpmath alone (nothing of privrob is imported).

Run by hand, `python tests/reference/make_ptr.py [renyi|delta|theorem_4_4]`; about ten minutes on two cores. It writes
`ptr_renyi.json`, `ptr_delta.json` and `ptr_theorem_4_4.json` beside itself. The settings come from seeds, so that a
second run gives the same files.

All scales are divided by the global sensitivity: s₁ noise_multiplier, s₂ robust_noise_multiplier, b scale_ratio,
d₀ test_failure, q sample_rate, a order. With the record, the noisy margin s has the density μ₁ = Lap(1, b), without it
μ₀ = Lap(0, b) (case 2 of the proofs, "bounded"), or μ₀ in both (case 1, "test_fails").

The moment is the nested integral of A.2, equations 50, 61 and 77. With w(s) = ((1−q)μ₀ + qμ₁)/μ₀ and
A(s) = qμ₁/((1−q)μ₀ + qμ₁),

    E = ∫ μ₀(s) w(s)^p I(A(s)) ds,    I(A) = ∫ φ(z) ((1−A) + A exp(z/σ − 1/(2σ²)))^p dz,    z = t/σ,

where p = a removes the record and p = 1 − a adds it (equation 82: E_μ[(μ₀/μ)^a] = E_μ₀[(μ/μ₀)^(1−a)]). Left of s = 0
and right of s = 1 both w and A are constant. Between them s is integrated by Gauss–Legendre panels, and z everywhere
by the trapezium rule, which converges geometrically for an integrand analytic in a strip. All digits that E − 1
cancels are carried. Each value is computed twice, the second time with a finer step in z and more nodes in s; `error`
is the relative difference of the two divergences. Where the order is whole and the record is removed, `binomial` is
the relative difference from Σ C(a,k) (1−q)^(a−k) q^k E_k, E_k the unsampled moment: an independent formula. In
`ptr_delta.json`, `error` is what the last halving of the panels changed, and `plain` the relative difference from a
second quadrature that also integrates over t, by panels that start at the kink.
"""

import json
import math
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mp, mpf
from scipy.special import ndtr

HERE = Path(__file__).parent
WANTED = 20  # correct digits asked of every value; 15 are printed
LN10 = math.log(10)


# ------------------------------------------------------------------------------------------------------------ the tools


def number(value):
    return mpmath.nstr(value, 15, min_fixed=0, max_fixed=0)


def shape(sigma, p, digits):
    """A step for the trapezium rule: from the Gaussian alone, the poles at Im z = ±πσ, and the growth toward them."""
    x = digits * LN10
    reach = min(math.pi * sigma, math.sqrt(2 * x))
    steps = [2 * math.pi * reach / (x + reach**2 / 2)]
    if p < 0:
        steps.append(math.pi / math.sqrt(x * (0.5 + abs(p) / (8 * sigma**2))))
    return min(steps)


class Inner:
    """I(A) for one σ, one exponent p and one step, with the nodes' densities and ratios remembered."""

    def __init__(self, sigma, p, digits, finer=1.0):
        self.sigma, self.p, self.digits = sigma, p, digits
        self.step = mpf(shape(float(sigma), float(p), digits) / finer)
        self.nodes = {}

    def log_integrand(self, z, log_rest, log_a):
        s = float(self.sigma)
        return -z * z / 2 + float(self.p) * np.logaddexp(log_rest, log_a + z / s - 1 / (2 * s * s))

    def window(self, log_rest, log_a):
        """The index ranges outside which the integrand is below 10^−digits of its peak."""
        s, p, h = float(self.sigma), float(self.p), float(self.step)
        drop = self.digits * LN10 + 8
        far = math.sqrt(2 * drop) + 1
        if p > 0:  # −z²/2 plus a convex function: no peak is narrower than the Gaussian, so that a coarse grid sees all
            z = np.arange(-far, p / s + far, 0.05)
            logs = self.log_integrand(z, log_rest, log_a)
            keep = logs > logs.max() - drop
            keep[1:] |= keep[:-1].copy()
            keep[:-1] |= keep[1:].copy()
            edges = np.flatnonzero(np.diff(np.concatenate([[0], keep.astype(int), [0]])))
            return [(math.floor(z[i] / h), math.ceil(z[j - 1] / h)) for i, j in zip(edges[::2], edges[1::2])]
        f = lambda x: float(self.log_integrand(x, log_rest, log_a))  # noqa: E731  concave: one peak
        low, high = -abs(p) / s - far, far
        left, right = low, high
        for _ in range(200):
            first, second = left + (right - left) / 3, right - (right - left) / 3
            left, right = (first, right) if f(first) < f(second) else (left, second)
        peak, top = (left + right) / 2, f((left + right) / 2)

        def edge(out):
            inside, outside = peak, out
            for _ in range(60):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if f(middle) > top - drop else (inside, middle)
            return outside

        return [(math.floor(edge(low - far) / h) - 1, math.ceil(edge(high + far) / h) + 1)]

    def node(self, j):
        if j not in self.nodes:
            z = j * self.step
            self.nodes[j] = (mp.exp(-z * z / 2), mp.exp(z / self.sigma - 1 / (2 * self.sigma**2)))
        return self.nodes[j]

    def __call__(self, rest, a):
        """Rest is 1 − A, given on its own because A may be 1 to all digits."""
        log_rest = float(mp.log(rest)) if rest else -math.inf
        total, p, last = mpf(0), self.p, None
        for low, high in self.window(log_rest, float(mp.log(a))):
            for j in range(low if last is None else max(low, last + 1), high + 1):
                weight, ratio = self.node(j)
                total += weight * mp.exp(p * mp.log(rest + a * ratio))
            last = high
        return total * self.step / mp.sqrt(2 * mp.pi)


_LEGENDRE = {}


def legendre(n):
    """Nodes and weights of Gauss–Legendre on [−1, 1], by Newton's method on the recurrence."""
    key = (n, mp.prec)
    if key not in _LEGENDRE:
        found = []
        for i in range(n):
            x = mpf(math.cos(math.pi * (i + 0.75) / (n + 0.5)))
            for _ in range(60):
                one, two = mpf(1), x
                for k in range(2, n + 1):
                    one, two = two, ((2 * k - 1) * x * two - (k - 1) * one) / k
                slope = n * (x * two - one) / (x * x - 1)
                change = two / slope
                x -= change
                if abs(change) < mpf(10) ** (-(mp.dps // 2) - 5):
                    break
            one, two = mpf(1), x
            for k in range(2, n + 1):
                one, two = two, ((2 * k - 1) * x * two - (k - 1) * one) / k
            slope = n * (x * two - one) / (x * x - 1)
            found.append((x, 2 / ((1 - x * x) * slope**2)))
        _LEGENDRE[key] = found
    return _LEGENDRE[key]


def panels(b, p, digits, finer):
    """Panels of [0, 1] and nodes on each: from the poles at Im s = ±πb/2 and the growth of exp((2|p|+1)s/b)."""
    count = 1
    while True:
        half, x = 0.5 / count, digits * LN10
        slope = (2 * abs(p) + 1) / b * half
        best = math.inf
        reach = math.pi * b / 2 / half
        for rho in np.geomspace(1.02, min(reach + math.sqrt(1 + reach**2), 1e3), 60):
            height = half * (rho - 1 / rho) / 2
            growth = slope * ((rho + 1 / rho) / 2 - 1) + (abs(p) * height**2 / (2 * b * b) if p < 0 else 0)
            best = min(best, (x + growth) / (2 * math.log(rho)))
        if best <= 40 or count > 4096:
            return count, math.ceil((best + 3) * finer)
        count *= 2


def middle(density, b, p, digits, finer):
    """∫₀¹ of the density times the moment. Panels are taken from both ends until they no longer matter.

    The logarithm of the integrand is convex (p > 0) or concave and falling (p < 0), so that it is largest at an end.
    """
    count, n = panels(float(b), float(p), digits, finer)
    half = mpf(1) / (2 * count)

    def panel(i):
        centre = (2 * i + 1) * half
        return half * mp.fsum(weight * density(centre + half * x) for x, weight in legendre(n))

    total, left, right = mpf(0), 0, count - 1
    small = mpf(10) ** (-digits - 4)
    while left <= right:
        first = panel(left)
        total += first
        left += 1
        if first < small * total:
            break
    while left <= right:
        first = panel(right)
        total += first
        right -= 1
        if first < small * total:
            break
    return total


# ------------------------------------------------------------------------------------------------- the Rényi divergence


def moment(row, digits, finer):
    """E of the module's docstring, to so many digits."""
    q, b = mpf(row["sample_rate"]), mpf(row["scale_ratio"])
    a = mpf(row["order"])
    p = a if row["neighbouring"] == "remove" else 1 - a
    s1, s2 = mpf(row["noise_multiplier"]), mpf(row["robust_noise_multiplier"])
    if row["case"] == "test_fails":  # A = q for every s; the margin decides on the noise, P(s > B) = d₀
        d0 = mpf(row["test_failure"])
        return (1 - d0) * Inner(s1, p, digits, finer)(1 - q, q) + d0 * Inner(s2, p, digits, finer)(1 - q, q)
    inner = Inner(s1, p, digits, finer)

    def conditional(s):
        """w^p I(A): the moment of (s, t) given s."""
        with_record = q * mp.exp((2 * s - 1) / b)
        w = (1 - q) + with_record
        return w**p * inner((1 - q) / w, with_record / w)

    return (
        conditional(mpf(0)) / 2
        + middle(lambda s: mp.exp(-s / b) / (2 * b) * conditional(s), b, p, digits, finer)
        + mp.exp(-1 / b) / 2 * conditional(mpf(1))
    )


def unsampled(row, k):
    """The moment of order k without sampling, closed forms of Theorem 4.3."""
    s1, s2, b = (mpf(row[name]) for name in ("noise_multiplier", "robust_noise_multiplier", "scale_ratio"))
    gauss = lambda s: mp.exp(k * (k - 1) / (2 * s * s))  # noqa: E731
    if row["case"] == "test_fails":
        d0 = mpf(row["test_failure"])
        return (1 - d0) * gauss(s1) + d0 * gauss(s2)
    laplace = (k * mp.exp((k - 1) / b) + (k - 1) * mp.exp(-k / b)) / (2 * k - 1)
    return gauss(s1) * laplace


def binomial(row):
    q, a = mpf(row["sample_rate"]), int(row["order"])
    if q == 1:
        return unsampled(row, mpf(a))
    return mp.fsum(mp.binomial(a, k) * (1 - q) ** (a - k) * q**k * unsampled(row, mpf(k)) for k in range(a + 1))


def needed(row):
    """Digits that E − 1 cancels, and digits that the largest exponent needs."""
    q, a = row["sample_rate"], row["order"]
    kept = 1 / row["noise_multiplier"] ** 2
    if row["case"] == "bounded":
        kept += 1 / (row["scale_ratio"] ** 2 + row["scale_ratio"])
    cancelled = max(0.0, -math.log10(a * (a - 1) * q * q * kept / 2))
    largest = a * a * (1 / row["robust_noise_multiplier"] ** 2 + 1 / row["scale_ratio"]) + 10
    return math.ceil(WANTED + cancelled), math.ceil(math.log10(largest))


def renyi(row):
    digits, extra = needed(row)
    with mp.workdps(digits + extra + 15):
        log = lambda e: mp.log1p(e - 1) / (mpf(row["order"]) - 1)  # noqa: E731
        rough, value = log(moment(row, digits, 1.0)), log(moment(row, digits, 1.3))
        out = row | {
            "value": number(value),
            "error": mpmath.nstr(abs(rough / value - 1), 2),
            "how": "two closed pieces and an integral over s of integrals over t"
            if row["case"] == "bounded"
            else "two integrals over t",
        }
        if row["order"] == int(row["order"]) and row["neighbouring"] == "remove":
            out["binomial"] = mpmath.nstr(abs(log(binomial(row)) / value - 1), 2)
    return out


def drawn(count, seed):
    """Settings spread over the whole range in logarithms; one number in seven sits at an end of its range."""
    source = random.Random(seed)

    def between(low, high):
        if source.random() < 0.15:
            return source.choice([low, high])
        return float(f"{low * (high / low) ** source.random():.3g}")

    for _ in range(count):
        s1, tau = between(0.3, 1000), between(0.05, 1)
        order = 1 + between(0.01, 511)
        if source.random() < 0.4:
            order = float(max(2, round(order)))
        yield {
            "noise_multiplier": s1,
            "robust_noise_multiplier": s1 * tau,
            "scale_ratio": between(0.1, 100),
            "test_failure": between(1e-12, 0.4),
            "sample_rate": between(1e-6, 1),
            "order": round(order, 6),
        }


def figure_rows():
    """The settings of the paper's Figure 2 and of its MNIST run, as the notes on the paper complete them."""
    names = ("noise_multiplier", "robust_noise_multiplier", "scale_ratio", "test_failure", "sample_rate", "order")
    points = [(8, 4, 1, 1e-8, 0.01, a) for a in (2, 8, 10)] + [(16, 8, 4, 1e-8, 0.01, a) for a in (2, 16, 32)]
    points += [(1.1, 0.55, 1, 1e-8, 256 / 60000, a) for a in (2, 5.48, 5.5, 8)]
    return [dict(zip(names, map(float, point))) for point in points]


def renyi_rows():
    return [
        settings | {"case": case, "neighbouring": direction}
        for settings in [*figure_rows(), *drawn(60, seed=43)]
        for case in ("test_fails", "bounded")
        for direction in ("remove", "add")
    ]


# --------------------------------------------------------------------------------------------------- the hockey stick


def tail(x):
    """1 − Φ."""
    return mp.erfc(x / mp.sqrt(2)) / 2


def stick(level, rest, gain, sigma, direction):
    """∫ φ(z) (±(rest + gain·r(z) − level))₊ dz, r(z) = exp(z/σ − 1/(2σ²)); + removes, − adds (level, gain scaled)."""
    if direction == "remove":
        gap = level - rest
        if gap <= 0:
            return gain - gap
        z = sigma * mp.log(gap / gain) + 1 / (2 * sigma)
        return gain * tail(z - 1 / sigma) - gap * tail(z)
    gap = level - rest
    if gap <= 0:
        return mpf(0)
    z = sigma * mp.log(gap / gain) + 1 / (2 * sigma)
    return gap * tail(-z) - gain * tail(-(z - 1 / sigma))


def adaptive(f, left, right, small, depth=0):
    """Gauss–Legendre with 24 nodes, halved until the halves agree; returns the value and the disagreement left over."""

    def whole(low, high):
        half, centre = (high - low) / 2, (high + low) / 2
        return half * mp.fsum(weight * f(centre + half * x) for x, weight in legendre(24))

    def split(low, high, value, depth):
        middle = (low + high) / 2
        first, second = whole(low, middle), whole(middle, high)
        gap = abs(first + second - value)
        if gap <= small * (first + second) or gap == 0 or depth > 40 or first + second < small * scale:
            return first + second, gap
        one, gap_one = split(low, middle, first, depth + 1)
        two, gap_two = split(middle, high, second, depth + 1)
        return one + two, gap_one + gap_two

    start = whole(left, right)
    scale = start
    return split(left, right, start, depth)


def delta_of(row, epsilon):
    q, b = mpf(row["sample_rate"]), mpf(row["scale_ratio"])
    s1, s2, d0 = (mpf(row[name]) for name in ("noise_multiplier", "robust_noise_multiplier", "test_failure"))
    direction, level = row["neighbouring"], mp.exp(mpf(epsilon))

    def conditional(s, sigma):
        """E over t of (L − e^ε)₊ or (1 − e^ε L)₊ at a margin s; None is a margin that does not depend on the record."""
        ell = mpf(1) if s is None else mp.exp((2 * s - 1) / b)
        if direction == "remove":
            return stick(level, 1 - q, q * ell, sigma, direction)
        return level * stick(1 / level, 1 - q, q * ell, sigma, direction)

    if row["case"] == "test_fails":
        return (1 - d0) * conditional(None, s1) + d0 * conditional(None, s2), mpf(0)
    inside, gap = adaptive(
        lambda s: mp.exp(-s / b) / (2 * b) * conditional(s, s1), mpf(0), mpf(1), mpf(10) ** (-WANTED)
    )
    value = conditional(mpf(0), s1) / 2 + inside + mp.exp(-1 / b) / 2 * conditional(mpf(1), s1)
    return value, gap / value if value else gap


def delta_plain(row):
    """The same number of case 2 with the integral over t done by panels too, from the kink outward: no closed tail."""
    q, b, s1 = (mpf(row[name]) for name in ("sample_rate", "scale_ratio", "noise_multiplier"))
    level, adds = mp.exp(mpf(row["epsilon"])), row["neighbouring"] == "add"
    cut = (1 / level if adds else level) - (1 - q)

    def panelled(f, low, high, width):
        count = max(1, math.ceil((high - low) / width))
        half = (high - low) / (2 * count)
        return half * mp.fsum(
            weight * f(low + (2 * i + 1) * half + half * x) for i in range(count) for x, weight in legendre(24)
        )

    def given(s):
        gain = q * mp.exp((2 * s - 1) / b)

        def excess(z):
            ratio = 1 - q + gain * mp.exp(z / s1 - 1 / (2 * s1**2))
            return mp.npdf(z) * ((1 - level * ratio) if adds else (ratio - level))

        kink = s1 * mp.log(cut / gain) + 1 / (2 * s1) if cut > 0 else mpf(-12)
        if adds:
            low, high = mpf(-12), min(kink, mpf(12)) if cut > 0 else mpf(-12)
        else:
            low, high = max(kink, mpf(-12)), 12 + 1 / s1
        return panelled(excess, low, high, min(1.5, 3 * float(s1))) if low < high else mpf(0)

    inside = panelled(lambda s: mp.exp(-s / b) / (2 * b) * given(s), mpf(0), mpf(1), 0.5 * float(b))
    return given(mpf(0)) / 2 + inside + mp.exp(-1 / b) / 2 * given(mpf(1))


def delta_row(row):
    with mp.workdps(70):
        value, gap = delta_of(row, row["epsilon"])
    out = row | {
        "value": number(value) if value else "0",
        "error": mpmath.nstr(gap, 2),
        "how": "closed in t and in s outside 0 … 1, integral over s between"
        if row["case"] == "bounded"
        else "closed in t",
    }
    kind = 2 < row["noise_multiplier"] < 60 and 0.4 < row["scale_ratio"] < 20
    if row["case"] == "bounded" and kind and value > 1e-12:
        with mp.workdps(30):
            out["plain"] = mpmath.nstr(abs(delta_plain(row) / value - 1), 2)
    return out


def rough_delta(row, epsilon):
    """δ in doubles on a midpoint grid: only to choose an ε where δ has a wanted size."""
    q, b = row["sample_rate"], row["scale_ratio"]
    adds, level = row["neighbouring"] == "add", math.exp(epsilon)
    cut = (math.exp(-epsilon) if adds else level) - (1 - q)

    def given(log_gain, sigma):
        if cut <= 0:
            return 0 * log_gain if adds else q * np.exp(log_gain) + (1 - q - level)
        z = sigma * (math.log(cut / q) - log_gain) + 1 / (2 * sigma)
        if adds:
            return level * (cut * ndtr(z) - q * np.exp(log_gain) * ndtr(z - 1 / sigma))
        return q * np.exp(log_gain) * ndtr(1 / sigma - z) - cut * ndtr(-z)

    s1 = row["noise_multiplier"]
    if row["case"] == "test_fails":
        d0 = row["test_failure"]
        return (1 - d0) * given(0.0, s1) + d0 * given(0.0, row["robust_noise_multiplier"])
    s = (np.arange(4000) + 0.5) / 4000
    inside = np.mean(np.exp(-s / b) / (2 * b) * given((2 * s - 1) / b, s1))
    return given(-1 / b, s1) / 2 + inside + math.exp(-1 / b) / 2 * given(1 / b, s1)


def delta_rows():
    """At each setting ε = 0 and two more, where δ is about a half, a thousandth or a billionth of δ(0)."""
    source = random.Random(44)
    rows = []
    for settings in drawn(40, seed=45):
        settings.pop("order")
        for case in ("test_fails", "bounded"):
            for direction in ("remove", "add"):
                row = settings | {"case": case, "neighbouring": direction}
                rows.append(row | {"epsilon": 0.0})
                for share in source.sample([0.5, 1e-3, 1e-9], 2):
                    low, high = 0.0, 700.0
                    for _ in range(60):
                        centre = (low + high) / 2
                        big = rough_delta(row, centre) > share * rough_delta(row, 0.0)
                        low, high = (centre, high) if big else (low, centre)
                    if low < 690:
                        rows.append(row | {"epsilon": float(f"{low:.5g}")})
    rows += [  # add is worth nothing from −log(1−q) on
        rows[0] | {"case": case, "neighbouring": "add", "sample_rate": 0.1, "epsilon": 0.11}
        for case in ("test_fails", "bounded")
    ]
    return rows


# ----------------------------------------------------------------------------------------------------- Theorem 4.4


def sampled_laplace(order, q, b):
    """R_q^(order) = E_{s∼Lap(0,b)}[(1 − q + q μ₁/μ₀)^order], any real order."""
    w = lambda s: 1 - q + q * mp.exp((2 * s - 1) / b)  # noqa: E731
    inside, _ = adaptive(lambda s: mp.exp(-s / b) / (2 * b) * w(s) ** order, mpf(0), mpf(1), mpf(10) ** -45)
    return w(mpf(0)) ** order / 2 + inside + mp.exp(-1 / b) / 2 * w(mpf(1)) ** order


def condition_gaps(a, q, s2, b):
    """Right side minus left side of the two conditions on the order."""
    q_prime = q / (q + (1 - q) * mp.exp(-1 / b))
    big = mp.log(1 + 1 / (q_prime * (a - 1)))
    first = s2**2 * big / 2 - 2 * mp.log(s2)
    second = (s2**2 * big**2 / 2 - mp.log(5) - 2 * mp.log(s2)) / (big + mp.log(q_prime * a) + 1 / (2 * s2**2))
    return first - a, second - a


def largest_order(q, s2, b):
    """The end of the orders that meet both conditions; None if the condition on q or on s₂ fails.

    A scan up to 10⁵ times the first failing order checks that no further order meets them.
    """
    if q > mp.exp(-1 / b) / (4 + mp.exp(-1 / b)) or s2 < 4:
        return None
    holds = lambda a: min(condition_gaps(a, q, s2, b)) >= 0  # noqa: E731
    low = 1 + mpf(10) ** -6
    if not holds(low):
        raise ValueError((q, s2, b))
    high = mpf(2)
    while holds(high):
        low, high = high, 2 * high
    for _ in range(120):
        centre = (low + high) / 2
        low, high = (centre, high) if holds(centre) else (low, centre)
    if not all(holds(1 + (low - 1) * mpf(i) / 300) for i in range(1, 300)):
        raise ValueError("the orders are not an interval")
    if any(holds(high * (1 + mpf(10) ** (mpf(i) / 30 - 5))) for i in range(301)):
        raise ValueError("a further order meets the conditions")
    return low


def theorem_row(row):
    with mp.workdps(60):
        q, b, a = mpf(row["sample_rate"]), mpf(row["scale_ratio"]), mpf(row["order"])
        s1, s2, d0 = (mpf(row[name]) for name in ("noise_multiplier", "robust_noise_multiplier", "test_failure"))
        r = lambda order: sampled_laplace(order, q, b)  # noqa: E731
        b0 = 1 + 2 * q**2 * a * (a - 1) * ((1 - d0) / s1**2 + d0 / s2**2)
        common = 2 * a * (a - 1) / s1**2
        b1 = r(a) + common * (r(a) - 2 * (1 - q) * r(a - 1) + (1 - q) ** 2 * r(a - 2))
        # R̃^(a) = R^(1−a)
        b2 = r(1 - a) + common * (r(1 - a) - 2 * (1 - q) * r(-a) + (1 - q) ** 2 * r(-1 - a))
        value = mp.log(max(b0, b1, b2)) / (a - 1)
        out = row | {
            "value": number(value),
            "B0_minus_1": number(b0 - 1),
            "B1_minus_1": number(b1 - 1),
            "B2_minus_1": number(b2 - 1),
            "largest_order": number(largest_order(q, s2, b)),
            "how": "Gauss–Legendre over s, 60 digits",
        }
    return out


def theorem_rows():
    """Twenty draws inside the conditions, and the points that the figures need."""
    source = random.Random(46)

    def make(q, s1, s2, b, d0, a):
        names = ("noise_multiplier", "robust_noise_multiplier", "scale_ratio", "test_failure", "sample_rate", "order")
        return dict(zip(names, map(float, (s1, s2, b, d0, q, a))))

    rows = [make(0.01, 8, 4, 1, 1e-8, a) for a in (2, 8, 10)]
    rows += [make(0.01, 16, 8, 4, 1e-8, a) for a in (2, 16, 32)]
    while len(rows) < 28:
        q = float(f"{10 ** source.uniform(-5, -1):.3g}")
        b = float(f"{10 ** source.uniform(-0.5, 2):.3g}")
        s2 = float(f"{4 * 10 ** source.uniform(0, 1):.3g}")
        s1 = float(f"{s2 * 10 ** source.uniform(0, 1):.3g}")
        d0 = float(f"{10 ** source.uniform(-12, -0.4):.3g}")
        share = source.choice([0.02, 0.3, 0.7, 0.999])
        with mp.workdps(30):
            top = largest_order(mpf(q), mpf(s2), mpf(b))
        if top is not None:
            rows.append(make(q, s1, s2, b, d0, f"{1 + share * (float(top) - 1):.5f}"))
    return rows


def orders_rows():
    """The largest order at the settings that the notes name, and on a grid; null where no order is allowed."""
    named = [(0.01, 4, 1), (0.01, 4, 4), (0.05, 4, 1), (256 / 60000, 4, 1), (0.001, 8, 4), (0.01, 8, 4)]
    grid = [(q, s2, b) for q in (1e-6, 1e-3, 0.05, 0.19) for s2 in (3.99, 4, 30) for b in (0.2, 1, 50)]
    rows = []
    with mp.workdps(40):
        for q, s2, b in named + grid:
            top = largest_order(mpf(q), mpf(s2), mpf(b))
            rows.append(
                {
                    "sample_rate": float(q),
                    "robust_noise_multiplier": float(s2),
                    "scale_ratio": float(b),
                    "value": None if top is None else number(top),
                    "how": "bisection, 40 digits",
                }
            )
    return rows


# ---------------------------------------------------------------------------------------------------------- the files


def write(name, what, **lists):
    content = {
        "what": what,
        "how": "direct quadrature with mpmath; see the script's docstring",
        "version": f"mpmath {mpmath.__version__}",
        "script": "tests/reference/make_ptr.py",
    }
    # one row a line
    body = ",\n".join(
        f" {json.dumps(key)}: [\n" + ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows) + "\n ]"
        for key, rows in lists.items()
    )
    head = json.dumps(content, indent=1, ensure_ascii=False)[:-2]
    (HERE / name).write_text(f"{head},\n{body}\n}}\n", encoding="utf-8")


def main(wanted):
    with ProcessPoolExecutor(2) as pool:
        if "theorem_4_4" in wanted:
            write(
                "ptr_theorem_4_4.json",
                "Theorem 4.4, appendix form: the bound in nats, B0 − 1, B1 − 1, B2 − 1, and the largest order allowed",
                rows=list(pool.map(theorem_row, theorem_rows())),
                largest_orders=orders_rows(),
            )
        if "delta" in wanted:
            write(
                "ptr_delta.json",
                "δ(ε) of one step of sampled PTR",
                rows=list(pool.map(delta_row, delta_rows())),
            )
        if "renyi" in wanted:
            write(
                "ptr_renyi.json",
                "Rényi divergence of one step of sampled PTR, nats",
                rows=list(pool.map(renyi, renyi_rows())),
            )


if __name__ == "__main__":
    main(sys.argv[1:] or ["renyi", "delta", "theorem_4_4"])
