"""From one number to a vector: μ against exact curves of products, and the document's table of values."""

import math

import mpmath
import numpy as np
import pytest

from privrob.accounting import fdp_vectors as vectors
from privrob.accounting import gdp
from privrob.accounting.logspace import log_binomial
from privrob.accounting.tradeoff import Tradeoff
from privrob.mechanisms.ternary import Ternary

ALPHA = np.linspace(0, 1, 201)


def votes_mu(count, ratio):
    """The smallest μ of so many votes, exactly: their sum is a binomial."""
    return Tradeoff.of_logs(log_binomial(count, (1 + ratio) / 2), log_binomial(count, (1 - ratio) / 2)).gdp_mu_upper


@pytest.mark.paper("fdp", "Lemma 4")
def test_pure_epsilon_has_its_mu_at_any_size():
    for epsilon in (1e-9, 0.3, 5.0, 700.0, 1e6):
        got = float(vectors.lemma_4(epsilon))
        with mpmath.workdps(40):
            tail = mpmath.log(mpmath.erfc(mpmath.mpf(got) / 2 / mpmath.sqrt(2)) / 2)
            # log Φ(−μ/2) = −log(1 + e^ε), relative to how fast it moves
            assert float(abs(tail + mpmath.log1p(mpmath.exp(epsilon)))) < 1e-11 * max(1.0, got**2)
    assert float(vectors.lemma_4(0.0)) == 0.0
    small = float(vectors.lemma_4(1e-9))
    assert small == pytest.approx(1e-9 * math.sqrt(math.pi / 2), abs=1e-15)
    with pytest.raises(ValueError, match="epsilon"):
        vectors.lemma_4(-1.0)


@pytest.mark.paper("fdp", "Theorem 7")
@pytest.mark.paper("fdp", "Remark 13")
@pytest.mark.parametrize(
    ("d", "m", "ratio", "pure", "linf", "l2", "exact"),
    [
        (1, 1, 0.1, 0.251323, 0.251323, 0.251323, 0.251323),
        (1, 16, 0.1, 3.53043, 1.00529, 1.00529, 0.814388),
        (10, 1, 0.1, 2.36503, 0.794752, 0.251323, 0.6496),
        (100, 1, 0.1, 11.7806, 2.51323, 0.251323, 2.0100),
        (7850, 1, 0.01, 35.0109, 2.22094, 0.0250669, 1.7721),
        (7850, 16, 0.01, 141.617, 8.88375, 0.100268, 7.0882),
    ],
)
def test_mu_of_a_vector_four_ways(d, m, ratio, pure, linf, l2, exact):
    """Pure ε summed (Theorem 7) ≥ votes composed ≥ the exact curve, all for |x_j| ≤ c; l2-clipped: no d at all."""
    how = {"clip": 3 * ratio, "scale_b": 3.0, "num_trials": m}
    got = vectors.theorem_7(**how, dimension=d), vectors.linf_mu(**how, dimension=d), vectors.l2_mu(**how)
    assert got == pytest.approx((pure, linf, l2), rel=5e-6)
    true = votes_mu(d * m, ratio)
    assert true == pytest.approx(exact, rel=6e-5)
    assert true <= got[1] * (1 + 1e-11) <= got[0] * (1 + 1e-10)
    assert (d * m == 1) or (got[1] < 0.999 * got[0])


@pytest.mark.paper("fdp", "Theorem 7")
def test_huge_exponents_do_not_overflow():
    got = vectors.theorem_7(clip=0.01, scale_b=1.0, num_trials=16, dimension=10**6)
    assert got == pytest.approx(1600.0077, abs=1e-4)
    assert vectors.l2_mu(clip=1e-9, scale_b=1.0, num_trials=1) == pytest.approx(1e-9 * math.sqrt(2 * math.pi), rel=1e-9)
    assert vectors.l2_mu(clip=1 - 1e-15, scale_b=1.0, num_trials=1) == pytest.approx(15.8, abs=0.3)


def coordinate_mu(x, other, scale):
    """μ of one vote, exactly."""
    return Tradeoff.of(*([(1 - v / scale) / 2, (1 + v / scale) / 2] for v in (x, other))).gdp_mu_upper


@pytest.mark.paper("fdp", "Remark 12")
@pytest.mark.paper("fdp", "Algorithm 5")
def test_no_two_vectors_in_the_l2_ball_exceed_its_mu_and_two_attain_it():
    rng = np.random.default_rng(9)
    for scale in (1.02, 1.5, 5.0):
        bound = vectors.l2_mu(clip=1.0, scale_b=scale, num_trials=1)
        for trial in range(60):
            d = int(rng.integers(1, 6))
            x, y = rng.normal(size=(2, d)) ** 3  # a few large coordinates
            x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
            y = -x if trial % 2 else y
            total = math.hypot(*(coordinate_mu(a, b, scale) for a, b in zip(x, y)))
            assert total <= bound * (1 + 1e-9)
        assert coordinate_mu(1.0, -1.0, scale) == pytest.approx(bound, rel=1e-11)
    # and the product's exact curve lies above G of that μ
    masses = [
        np.add.outer(*(np.log([(1 - v / 1.5) / 2, (1 + v / 1.5) / 2]) for v in pair)).ravel()
        for pair in ((0.6, -0.8), (-0.6, 0.8))
    ]
    mu = vectors.l2_mu(clip=1.0, scale_b=1.5, num_trials=1)
    assert (Tradeoff.of_logs(*masses)(ALPHA) >= gdp.tradeoff(ALPHA, gdp_mu=mu) - 1e-12).all()


@pytest.mark.paper("fdp", "Remark 12")
def test_a_bound_on_coordinates_beside_the_norm_lowers_mu_and_is_attained_by_flat_vectors():
    scale, rng = 1.1, np.random.default_rng(11)
    for largest in (0.2, 0.5, 0.9):
        bound = vectors.l2_mu(clip=1.0, scale_b=scale, num_trials=1, linf_clip=largest)
        assert bound < vectors.l2_mu(clip=1.0, scale_b=scale, num_trials=1)
        for _ in range(8):
            x, y = rng.normal(size=(2, 12))
            x, y = (np.clip(v / np.linalg.norm(v), -largest, largest) for v in (x, y))
            assert math.hypot(*(coordinate_mu(a, b, scale) for a, b in zip(x, y))) <= bound * (1 + 1e-9)
    flat = vectors.l2_mu(clip=1.0, scale_b=scale, num_trials=1, linf_clip=0.5)  # four coordinates of 1/2
    assert 2 * coordinate_mu(0.5, -0.5, scale) == pytest.approx(flat, rel=1e-11)
    assert vectors.l2_mu(clip=1.0, scale_b=0.3, num_trials=1, linf_clip=0.2) > 0  # B below c
    with pytest.raises(ValueError, match="linf_clip must"):
        vectors.l2_mu(clip=1.0, scale_b=2.0, num_trials=1, linf_clip=0.0)


@pytest.mark.paper("fdp", "Section 6.1")
def test_ternary_vectors_in_the_l2_ball_have_a_mu_without_a_dimension():
    rng = np.random.default_rng(10)
    for a, b in [(1.05, 2.0), (1.05, 1.05), (2.0, 4.0), (2.0, 2.2), (1.5, 40.0)]:
        bound = vectors.ternary_l2_mu(clip=1.0, scale_a=a, scale_b=b)
        mechanism = Ternary(1.0, a, b)
        masses = {}
        for trial in range(60):
            d = int(rng.integers(1, 5))
            x, y = rng.normal(size=(2, d)) ** 3
            x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
            y = -x if trial % 3 == 1 else (0 * y if trial % 3 == 2 else y)
            squares = 0.0
            for pair in zip(x, y):
                masses = [mechanism.log_masses(float(v)) for v in pair]
                squares += Tradeoff.of_logs(*masses).gdp_mu_upper ** 2
            assert math.sqrt(squares) <= bound * (1 + 1e-9)
    assert vectors.ternary_l2_mu(clip=1.0, scale_a=2.0, scale_b=2.0) == pytest.approx(
        vectors.l2_mu(clip=1.0, scale_b=2.0, num_trials=1), rel=1e-11
    )  # A = B is sto-sign
    assert vectors.ternary_l2_mu(clip=1.0, scale_a=2.0, scale_b=4.0) == pytest.approx(0.951719, abs=1e-6)


@pytest.mark.paper("fdp", "Lemma 2")
def test_the_limit_of_subsampled_steps():
    s = 32 * math.sqrt(300) / 600
    got = vectors.lemma_2([1.348980, 0.506694, 0.251323], sampling_ratio=s)
    assert got == pytest.approx([2.85845, 0.589528, 0.258276], abs=1e-5)
    assert vectors.lemma_2(262.6, sampling_ratio=s) == math.inf  # with μ from Theorem 7
    for mu in (1e-12, 1e-6, 1e-3, 0.5, 3.0):
        with mpmath.workdps(50):
            m = mpmath.mpf(mu)
            inside = mpmath.exp(m**2) * mpmath.ncdf(1.5 * m) + 3 * mpmath.ncdf(-m / 2) - 2
            want = float(mpmath.sqrt(2 * inside) * s)
        assert vectors.lemma_2(mu, sampling_ratio=s) == pytest.approx(want, rel=1e-9 if mu > 1e-4 else 1e-3)
    assert vectors.lemma_2([0.0, math.inf], sampling_ratio=0.0) == pytest.approx([0.0, 0.0])


def test_scales_within_the_clip_are_refused():
    for ask in (
        lambda: vectors.l2_mu(clip=1.0, scale_b=1.0, num_trials=1),
        lambda: vectors.theorem_7(clip=1.0, scale_b=0.5, num_trials=1, dimension=2),
        lambda: vectors.ternary_l2_mu(clip=1.0, scale_a=2.0, scale_b=1.5),
    ):
        with pytest.raises(ValueError, match="scale_b must"):
            ask()
    with pytest.raises(ValueError, match="scale_a must"):
        vectors.ternary_l2_mu(clip=1.0, scale_a=1.0, scale_b=1.5)


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-17, 1e-9, 1e-6, 1e-3, 0.5, 0.999, 1.0, 3.0])
def test_mu_of_a_tiny_epsilon_is_not_rounded_down(epsilon):
    with mpmath.workdps(40):
        tail = mpmath.tanh(mpmath.mpf(epsilon) / 2)
        exact = 2 * mpmath.sqrt(2) * (mpmath.erfinv(tail) if epsilon > 1e-8 else tail * mpmath.sqrt(mpmath.pi) / 2)
    assert exact * (1 - mpmath.mpf(10) ** -15) <= vectors.lemma_4(epsilon)
    assert vectors.lemma_4(epsilon) <= max(exact * (1 + mpmath.mpf(10) ** -11), 3e-308)


@pytest.mark.parametrize("clip", [1e-300, 1e-17, 1e-9, 1e-4])
def test_mu_of_ternary_is_not_rounded_down_where_the_clip_is_far_below_the_scale(clip):
    exact = clip * math.sqrt(2 * math.pi)  # 2·√2·erfinv(c) at A = B = 1, from below
    assert exact * (1 - 1e-15) <= vectors.ternary_l2_mu(clip=clip, scale_a=1.0, scale_b=1.0) <= exact * 1.001 + 1e-14
