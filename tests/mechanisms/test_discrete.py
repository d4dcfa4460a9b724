"""Discrete mechanisms: curves against closed forms and brute force over inputs, samplers against masses, attacks."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

from privrob.accounting import audit, fdp_forms, gdp, pairs
from privrob.accounting.ledger import Ledger
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import Guarantee, NotAvailable, Streams
from privrob.mechanisms.binomial import (
    BinomialMechanism,
    BinomialNoise,
    PoissonBinomial,
    QuantisedBinomial,
    smallest_delta,
)
from privrob.mechanisms.discrete import bits_of_blocks, infimum, sampled_test, standard_errors_off
from privrob.mechanisms.signs import CLDP, NoisySign, Sign, StoSign, word_law
from privrob.mechanisms.ternary import GeneralTernary, Ternarize, Ternary

HOW = {"neighbouring": "replace", "sampling": "none"}
ALPHA = np.concatenate([[0.0, 1e-9], np.linspace(0.001, 0.999, 300), [1 - 1e-9, 1.0]])

ALL = [
    BinomialNoise(3, 9, 0.3),
    QuantisedBinomial(0.1, 4, 9, 0.5),
    BinomialMechanism(0.1, 6, 0.2, 0.55),
    BinomialMechanism.scaled(clip=0.1, scale_b=0.5, num_trials=1),
    StoSign(0.1, 0.25),
    CLDP(0.1, 1.3),
    NoisySign(0.1, 0.8),
    Sign(0.1),
    Ternary(0.1, 0.25, 0.6),
    GeneralTernary(0.1, 0.4, 0.05, 0.3),
    Ternarize(0.1, 0.3),
]
NAMES = [f"{i}-{type(m).__name__}" for i, m in enumerate(ALL)]


def inputs_of(mechanism, number=9):
    if isinstance(mechanism, BinomialNoise):
        return np.arange(mechanism.max_value + 1)
    return np.linspace(-mechanism.clip, mechanism.clip, number)


def drawn(seed=11, number=60):
    """Mechanisms, each with the document's closed form, at parameters drawn from a fixed seed; extremes first."""
    rng = np.random.default_rng(seed)
    yield BinomialMechanism(1.0, 1, 0.0, 1.0), lambda a: fdp_forms.theorem_3(a, num_trials=1, p_min=0, p_max=1)
    yield BinomialNoise(9, 4, 0.5), lambda a: fdp_forms.theorem_2(a, num_trials=4, success_prob=0.5, max_value=9)
    yield BinomialNoise(2, 4, 1.0), lambda a: fdp_forms.theorem_2(a, num_trials=4, success_prob=1.0, max_value=2)
    yield BinomialNoise(1, 1, 0.0), lambda a: fdp_forms.theorem_2(a, num_trials=1, success_prob=0.0, max_value=1)
    for _ in range(number):
        c, kind, trials = float(rng.uniform(0.01, 2)), int(rng.integers(6)), int(rng.integers(1, 40))
        a = c * float(1 + rng.exponential())
        b = a * float(1 + rng.exponential() * (rng.random() < 0.8))
        low, high = sorted(float(x) for x in rng.uniform(0, 1, 2))
        if kind == 0:
            how = {"num_trials": trials, "success_prob": low, "max_value": int(rng.integers(1, 6))}
            yield BinomialNoise(how["max_value"], trials, low), lambda x, how=how: fdp_forms.theorem_2(x, **how)
        elif kind == 1:
            how = {"num_trials": trials, "p_min": low, "p_max": high}
            yield BinomialMechanism(c, **how), lambda x, how=how: fdp_forms.theorem_3(x, **how)
        elif kind == 2:
            yield StoSign(c, a), lambda x, c=c, a=a: fdp_forms.sto_sign(x, clip=c, scale_a=a)
        elif kind == 3:
            yield Ternary(c, a, b), lambda x, c=c, a=a, b=b: fdp_forms.ternary(x, clip=c, scale_a=a, scale_b=b)
        elif kind == 4:
            yield Ternarize(c, a), lambda x, c=c, a=a: fdp_forms.ternarize(x, clip=c, scale_b=a)
        else:
            yield NoisySign(c, a / c), lambda x, c=c, a=a: fdp_forms.noisy_sign(x, noise_ratio=a / c)


# --------------------------------------------------------------------------------------------------------- the curves


@pytest.mark.paper("fdp", "Theorem 2")
@pytest.mark.paper("fdp", "Theorem 3")
@pytest.mark.paper("fdp", "Theorem 4")
@pytest.mark.paper("fdp", "Algorithm 3")
def test_the_curve_the_closed_form_and_the_infimum_over_inputs_agree():
    for mechanism, closed in drawn():
        knots = np.concatenate([curve.knots[0] for curve in mechanism.curves]).clip(0, 1)
        alpha = np.unique(np.concatenate([ALPHA, knots]))
        got = mechanism.tradeoff(alpha, **HOW)
        assert got == pytest.approx(closed(alpha), abs=1e-12), mechanism
        brute = infimum(mechanism, alpha, inputs=inputs_of(mechanism, 5))
        assert got == pytest.approx(brute, abs=1e-12), mechanism


@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_no_pair_of_inputs_is_told_apart_more_easily_than_the_worst(mechanism):
    got = mechanism.tradeoff(ALPHA, **HOW)
    brute = infimum(mechanism, ALPHA, inputs=inputs_of(mechanism))
    assert got == pytest.approx(brute, abs=1e-12)


@pytest.mark.paper("fdp", "Definition 3")
@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_all_guarantees_of_a_mechanism_are_of_one_curve(mechanism):
    assert isinstance(mechanism, Guarantee)
    pair = mechanism.pairs(**HOW)
    hull = Tradeoff(pair)
    assert (hull(ALPHA) <= mechanism.tradeoff(ALPHA, **HOW) + 1e-12).all()
    assert hull.inverse()(ALPHA) == pytest.approx(hull(ALPHA), abs=1e-12)  # neighbours are a symmetric relation
    for delta in (0.0, 0.01, 0.2):
        own, composed = mechanism.epsilon(delta, **HOW), pairs.compose([(pair, 1)], delta=delta)
        if math.isinf(composed.upper):
            assert own.upper == math.inf
        else:
            assert own.upper == pytest.approx(composed.upper, rel=1e-9, abs=1e-12)
    curve = mechanism.rdp([1.5, 2.0, 20.0], **HOW)
    masses = [mechanism.log_masses(v) for v in mechanism.worst_inputs[0]]
    with np.errstate(invalid="ignore"):
        two = [np.log(np.nansum(np.exp(2 * a - b))) for a, b in (masses, masses[::-1])]
    assert curve[1] == pytest.approx(max(two), rel=1e-12)
    assert np.isinf(curve).all() or (np.diff(curve) >= -1e-12).all()
    mu = mechanism.gdp_mu_upper(**HOW)
    if math.isfinite(mu):
        assert (mechanism.tradeoff(ALPHA, **HOW) >= gdp.tradeoff(ALPHA, gdp_mu=mu) - 1e-12).all()


@pytest.mark.paper("fdp", "Remark 7")
def test_document_numbers_at_c_01_a_025_b_05():
    sign, sparse = StoSign(0.1, 0.25), Ternary(0.1, 0.25, 0.5)
    for mechanism in (sign, sparse):
        assert mechanism.epsilon(0.0, **HOW).upper == pytest.approx(math.log(7 / 3), rel=1e-13)
    assert sparse.curve.delta(math.log(2)) == pytest.approx(0.05, abs=1e-14)
    assert sign.curve.delta(math.log(2)) == pytest.approx(0.1, abs=1e-14)


@pytest.mark.paper("fdp", "Figure 4")
def test_the_noisy_sign_is_more_private_than_the_noisy_number():
    sign = NoisySign(1.0, 1.0)
    assert (sign.tradeoff(ALPHA, **HOW) >= gdp.tradeoff(ALPHA, gdp_mu=1.0) - 1e-14).all()
    assert sign.gdp_mu_upper(**HOW) == pytest.approx(1.0, rel=1e-12)
    assert sign.curve.delta(0.0) == pytest.approx(2 * ndtr(0.5) - 1, rel=1e-12)


@pytest.mark.paper("fdp", "Example 4")
@pytest.mark.paper("fdp", "Remark 8")
def test_an_output_of_zero_tells_something_too():
    ternarize = Ternarize(1.0, 2.0)
    assert ternarize.epsilon(0.5, **HOW).upper == pytest.approx(0.0, abs=1e-12)  # (0, c/B)
    assert ternarize.epsilon(0.49, **HOW).upper == math.inf
    ratio = math.exp(ternarize.log_masses(0.0)[1] - ternarize.log_masses(1.0)[1])
    assert ratio == pytest.approx(2.0, rel=1e-14)  # "perfectly private"


@pytest.mark.paper("fdp", "Remark 4")
def test_the_smallest_delta_of_binomial_noise():
    delta, epsilon = smallest_delta(BinomialNoise(8, 500, 0.5))
    assert delta == pytest.approx(4.60497001604e-136, rel=1e-10)  # printed 4.61e-136
    assert epsilon == pytest.approx(math.log(math.comb(500, 8)), rel=1e-10)
    assert BinomialNoise(8, 500, 0.5).gdp_mu_upper(**HOW) == math.inf  # Theorem 7 and Lemma 2 do not apply to it
    assert smallest_delta(BinomialNoise(8, 8, 0.5))[0] == pytest.approx(1 - 2**-8, rel=1e-12)  # M = l
    assert smallest_delta(BinomialNoise(9, 8, 0.5)) == (1.0, math.inf)


@pytest.mark.paper("fdp", "Theorem 3")
def test_a_million_trials_have_a_curve():
    mechanism = BinomialMechanism.scaled(clip=0.1, scale_b=50.0, num_trials=10**6)
    # a sum of so many votes is a Gaussian: μ = 2 (c/B) √(M/(1 − c²/B²))
    limit = 2 * 0.002 * math.sqrt(1e6 / (1 - 0.002**2))
    assert mechanism.curves[0].gdp_mu_upper == pytest.approx(limit, rel=1e-5)
    alpha = np.linspace(0, 1, 101)
    beta = mechanism.tradeoff(alpha, **HOW)
    assert beta == pytest.approx(gdp.tradeoff(alpha, gdp_mu=limit), abs=1e-4)  # lattice steps of 1/√M
    closed = fdp_forms.theorem_3(alpha, num_trials=10**6, p_min=mechanism.p_min, p_max=mechanism.p_max)
    assert beta == pytest.approx(closed, abs=1e-12)


# ---------------------------------------------------------------------------------------------- same mechanisms


@pytest.mark.paper("fdp", "Example 2")
def test_cldp_is_a_sto_sign_and_a_full_sto_sign_answered_at_random():
    cldp = CLDP(0.1, 1.3)
    same = StoSign(0.1, cldp.scale_a)
    for x in (-0.1, -0.03, 0.0, 0.1):
        assert cldp.log_masses(x) == pytest.approx(same.log_masses(x), abs=1e-14)
        full = (1 + x / 0.1) / 2  # A = c: the probability of +1
        keep = 1 / (1 + math.exp(-1.3))
        assert float(cldp.plus_prob(x)) == pytest.approx(full * keep + (1 - full) * (1 - keep), abs=1e-14)
        # one-bit Chen et al. (2020): c (e^ε + 1)/(e^ε − 1) times the sign
        assert float(cldp.decode(1)) == pytest.approx(0.1 * (math.exp(1.3) + 1) / (math.exp(1.3) - 1), rel=1e-14)
    assert cldp.epsilon(0.0, **HOW).upper == pytest.approx(1.3, rel=1e-12)


@pytest.mark.paper("fdp", "Example 2")
def test_cldp_is_the_one_bit_word_of_chen_et_al_and_not_a_bit_of_two():
    odds, differ = Fraction(7, 2), 0
    for x in (Fraction(n, 5) for n in range(-5, 6)):
        plus = Fraction(1, 2) + x / 2 * (odds - 1) / (odds + 1)
        one, two = word_law([(1 + x) / 2], odds=odds), word_law([(1 + x) / 2, Fraction(1, 3)], odds=odds)
        assert one[1,] == plus
        assert float(plus) == pytest.approx(float(CLDP(1.0, math.log(3.5)).plus_prob(float(x))), abs=1e-15)
        assert sum(one.values()) == sum(two.values()) == 1
        differ += two[1, 0] + two[1, 1] != plus
    assert differ == 10  # all but x = 0


@pytest.mark.paper("fdp", "Lemma 3")
@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_the_best_test_on_samples_makes_the_errors_of_the_curve(mechanism):
    rng, number, (one, other) = (
        Streams(8, "best test").numpy(type(mechanism).__name__),
        40_000,
        mechanism.worst_inputs[0],
    )
    for alpha, (null, alternative) in ((0.07, (one, other)), (0.4, (other, one))):
        errors = sampled_test(mechanism, null, alternative, alpha, num_runs=number, rng=rng)
        curve = Tradeoff.of_logs(mechanism.log_masses(null), mechanism.log_masses(alternative))
        for got, want in zip(errors, (alpha, float(curve(alpha))), strict=True):
            if want or got:
                assert abs(got - want) <= 5 * math.sqrt(want * (1 - want) / number) or (got <= alpha and want == alpha)


def test_distances_in_standard_errors_notice_a_wrong_law():
    out = np.repeat([0, 1, 2], [500, 300, 200])
    assert standard_errors_off(out, symbols=(0, 1, 2), masses=[0.5, 0.3, 0.2]) == pytest.approx(0.0, abs=1e-12)
    want = 0.05 / math.sqrt(0.35 * 0.65 / 1000)  # of the second, the larger
    assert standard_errors_off(out, symbols=(0, 1, 2), masses=[0.45, 0.35, 0.2]) == pytest.approx(want, rel=1e-12)
    assert standard_errors_off(out, symbols=(0, 1, 2), masses=[0.5, 0.5, 0.0]) == math.inf
    assert standard_errors_off(out, symbols=(0, 1), masses=[0.5, 0.5]) == math.inf
    with pytest.raises(ValueError, match="masses"):
        standard_errors_off(out, symbols=(0, 1, 2), masses=[0.5, 0.5])


@pytest.mark.paper("fdp", "Example 1")
@pytest.mark.paper("fdp", "Example 3")
def test_special_cases_are_the_general_ones():
    one = BinomialMechanism.scaled(clip=0.1, scale_b=0.25, num_trials=1)
    for x in (-0.1, 0.02, 0.1):
        assert one.log_masses(x) == pytest.approx(StoSign(0.1, 0.25).log_masses(x), abs=1e-14)
        dense = Ternary(0.1, 0.25, 0.25).log_masses(x)
        assert dense[1] == -math.inf
        assert dense[[0, 2]] == pytest.approx(StoSign(0.1, 0.25).log_masses(x), abs=1e-14)
        general = GeneralTernary(0.1, 0.5, 0.15, 0.35).log_masses(x)
        assert general == pytest.approx(Ternary(0.1, 0.25, 0.5).log_masses(x), abs=1e-14)


@pytest.mark.paper("fdp", "Remark 13")
def test_coordinates_compose_as_theorem_3_with_as_many_more_trials():
    mechanism = BinomialMechanism(0.1, 3, 0.3, 0.6)
    together = BinomialMechanism(0.1, 15, 0.3, 0.6)
    for epsilon in (0.3, 1.0, 2.5):
        one_order = (mechanism.curves[0].pair.reversed(), 5)
        got = pairs.delta([one_order], epsilon=epsilon)
        want = pairs.delta([(together.curves[0].pair.reversed(), 1)], epsilon=epsilon)
        assert got.estimate == pytest.approx(want.estimate, rel=1e-10)
        # the ledger's pair covers coordinates that move in different directions
        ledger = Ledger(neighbouring="replace", sampling="none")
        ledger.add(mechanism, 5)
        assert ledger.delta(epsilon).upper >= want.lower


# ------------------------------------------------------------------------------------------------------ samplers


@pytest.mark.paper("fdp", "Algorithm 1")
@pytest.mark.paper("fdp", "Algorithm 2")
@pytest.mark.paper("fdp", "Definition 4")
@pytest.mark.paper("fdp", "Definition 5")
@pytest.mark.paper("fdp", "Definition 6")
@pytest.mark.paper("fdp", "Definition 7")
@pytest.mark.paper("fdp", "Algorithm 3")
@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_releases_follow_their_masses_and_decoders_are_unbiased(mechanism):
    rng, number = Streams(3, "discrete").numpy(type(mechanism).__name__), 200_000
    for value in inputs_of(mechanism, 4):
        out = mechanism.release(np.full(number, value), rng=rng)
        assert np.issubdtype(out.dtype, np.integer)
        masses = np.exp(mechanism.log_masses(value))
        counts = np.array([(out == s).sum() for s in mechanism.symbols])
        assert counts.sum() == number
        assert (counts[masses == 0] == 0).all()
        assert (np.abs(counts - number * masses) <= 5 * np.sqrt(number * masses * (1 - masses)) + 1e-9).all()
        exact = float(np.dot(masses, list(mechanism.symbols)))
        try:
            decoded = mechanism.decode(np.array(mechanism.symbols))
        except NotAvailable:
            assert isinstance(mechanism, (NoisySign, Sign))
            continue
        assert np.dot(masses, decoded) == pytest.approx(float(value), abs=1e-12)  # exactly unbiased
        mean = mechanism.decode(out)
        assert abs(mean.mean() - value) <= 5 * mean.std() / math.sqrt(number) + 1e-15
        assert abs(out.mean() - exact) <= 5 * out.std() / math.sqrt(number) + 1e-15


@pytest.mark.paper("fdp", "Remark 6")
def test_the_poisson_binomial_decoder_is_unbiased_beyond_a_quarter():
    for theta in (0.1, 0.25, 0.4, 0.499):
        mechanism = BinomialMechanism.poisson_binomial(clip=2.0, theta=theta, num_trials=5)
        for x in (-2.0, 0.7, 2.0):
            masses = np.exp(mechanism.log_masses(x))
            assert np.dot(masses, mechanism.decode(np.arange(6))) == pytest.approx(x, abs=1e-12)
            assert mechanism.decode(3) == pytest.approx(2.0 / (5 * theta) * (3 - 2.5), rel=1e-12)
        values = np.array([-2.0, 1.0, 0.5])
        server = PoissonBinomial(3, 5, mechanism.p_min, mechanism.p_max)
        masses = np.exp(server.log_masses(mechanism.success_prob(values)))
        assert np.dot(masses, server.decode(np.arange(16), clip=2.0)) == pytest.approx(values.mean(), abs=1e-12)


def test_inputs_beyond_the_clip_are_clipped_and_float32_ends_are_no_error():
    rng = Streams(4, "clip").numpy("draws")
    for mechanism in ALL:
        top = np.float32(mechanism.max_value if isinstance(mechanism, BinomialNoise) else mechanism.clip)
        for value in (top, -top, 100 * top, -100 * top):
            mechanism.release(np.full(1000, value, dtype=np.float32), rng=rng)
        far = 7 * int(top) if isinstance(mechanism, BinomialNoise) else 7.0
        assert mechanism.log_masses(far) == pytest.approx(mechanism.log_masses(float(top)), abs=1e-6)
        with pytest.raises(ValueError, match="data"):
            mechanism.release(np.array([0.0, math.nan]), rng=rng)
        assert mechanism.release(np.zeros((2, 0, 3)), rng=rng).shape == (2, 0, 3)
    with pytest.raises(ValueError, match="integers"):
        BinomialNoise(3, 9, 0.3).release([0.5], rng=rng)


def test_probabilities_of_zero_and_one_are_kept_exactly():
    rng = Streams(5, "ends").numpy("draws")
    full = BinomialMechanism(0.1, 1, 0.0, 1.0)
    assert (full.release(np.full(10_000, 0.1), rng=rng) == 1).all()
    assert (full.release(np.full(10_000, -0.1), rng=rng) == 0).all()
    ends = GeneralTernary(0.1, 0.3, 0.0, 0.7)
    assert not (ends.release(np.full(10_000, 0.1), rng=rng) == -1).any()
    assert not (ends.release(np.full(10_000, -0.1), rng=rng) == 1).any()
    assert not (Ternary(0.1, 0.3, 0.3).release(np.zeros(10_000), rng=rng) == 0).any()
    ones = Ones()
    assert (Ternary(0.1, 0.3, 0.3).release(np.linspace(-0.1, 0.1, 1001), rng=ones) == -1).all()
    assert (Ternarize(0.1, 0.3).release(np.zeros(5), rng=ones) == 0).all()


class Ones:
    """A generator whose draws are the largest below 1."""

    def random(self, shape):
        return np.full(shape, np.nextafter(1.0, 0.0))


def test_zero_is_treated_alike_on_both_sides():
    for mechanism in ALL[4:9]:
        masses = mechanism.log_masses(0.0)
        assert masses[0] == masses[-1]
        for x in (0.02, 0.1):
            assert mechanism.log_masses(x) == pytest.approx(mechanism.log_masses(-x)[::-1], abs=1e-14)
    assert Sign().log_masses(0.0) == pytest.approx([math.log(0.5)] * 2, abs=1e-15)
    assert Ternarize(1.0, 2.0).log_masses(0.0)[1] == 0.0


# ----------------------------------------------------------------------------------------------------- on the wire


@pytest.mark.paper("fdp", "Algorithm 4")
def test_coordinates_of_a_vector_are_encoded_independently_each_by_its_own_number():
    x, count = np.array([0.9, -0.4]), 200_000
    for mechanism in (BinomialMechanism.scaled(clip=1.0, scale_b=2.0, num_trials=2), Ternary(1.0, 1.5, 2.0)):
        sent = mechanism.release(np.tile(x, (count, 1)), rng=Streams(4, "vector").numpy("draws"))
        place = sent - min(mechanism.symbols)
        counts = np.bincount(3 * place[:, 0].astype(int) + place[:, 1], minlength=9)
        law = np.outer(*(np.exp(mechanism.log_masses(v)) for v in x)).ravel()
        assert np.abs(counts - count * law).max() < 5 * np.sqrt(count * law * (1 - law)).max()


@pytest.mark.paper("fdp", "Theorem 6")
@pytest.mark.paper("fdp", "Remark 10")
def test_the_best_code_for_blocks_needs_the_entropy_and_little_more():
    assert bits_of_blocks([0.5, 0.25, 0.25], block=1) == 1.5
    assert bits_of_blocks([0.4, 0.3, 0.2, 0.1], block=1) == pytest.approx(1.9, rel=1e-14)  # 1, 2, 3 and 3 bits
    assert bits_of_blocks([1.0, 0.0], block=3) == 0.0
    for some in (0.1, 0.5, 0.9):
        mechanism = Ternary(1e-9, some, 1.0)
        entropy = mechanism.bits_entropy(0.0)
        blocks = [bits_of_blocks(np.exp(mechanism.log_masses(0.0)), block=k) for k in (1, 2, 5)]
        assert all(entropy - 1e-12 <= bits <= entropy + 1 / k for bits, k in zip(blocks, (1, 2, 5)))
        assert blocks[2] > some  # printed: A/B bits
    with pytest.raises(ValueError, match="masses must"):
        bits_of_blocks([0.5, 0.6], block=1)


@pytest.mark.paper("fdp", "Theorem 5")
@pytest.mark.paper("fdp", "Theorem 6")
def test_bits_count_the_alphabet_and_the_entropy():
    assert [BinomialMechanism(1.0, m, 0.4, 0.6).bits_fixed for m in (1, 2, 3, 4, 15, 16)] == [1, 2, 2, 3, 4, 5]
    assert (StoSign(0.1, 0.2).bits_fixed, Ternary(0.1, 0.2, 0.4).bits_fixed) == (1, 2)
    assert BinomialNoise(7, 8, 0.5).bits_fixed == 4
    sparse = Ternary(0.1, 0.25, 0.5)
    assert sparse.bits_entropy(0.0) == pytest.approx(1.5, rel=1e-14)  # printed A/B = 1/2; one sign is 1 bit
    assert Ternary(1e-9, 0.227092, 1.0).bits_entropy(0.0) == pytest.approx(1.0, abs=1e-5)  # break-even with a sign
    assert StoSign(0.1, 0.2).bits_entropy(0.0) == pytest.approx(1.0, abs=1e-15)
    assert Ternarize(0.1, 0.2).bits_entropy(0.0) == 0.0
    for mechanism in ALL:
        for x in inputs_of(mechanism, 3):
            assert 0 <= mechanism.bits_entropy(x) <= mechanism.bits_fixed


# --------------------------------------------------------------------------------------------- many users together


@pytest.mark.paper("fdp", "Theorem 9")
@pytest.mark.paper("fdp", "Algorithm 6")
def test_a_sum_of_users_is_at_least_as_private_as_its_bound():
    values = {1: 0.3, 2: 0.444828, 3: 0.5, 5: 0.544110, 10: 0.593269}  # the infimum over everybody at α = 0.3
    for users, want in values.items():
        server = PoissonBinomial(users, 1, 0.3, 0.7)
        assert 0.3 <= server.tradeoff(0.3, **HOW) <= want + 5e-7
        bound = fdp_forms.theorem_9(ALPHA, p_min=0.3, p_max=0.7)
        assert (server.tradeoff(ALPHA, **HOW) >= bound - 1e-12).all()
    assert PoissonBinomial(10, 1, 0.3, 0.7).tradeoff(0.3, **HOW) > 0.59  # aggregation buys much
    # the hull is needed: others in between can do worse than all at the ends
    three = PoissonBinomial(3, 1, 0.3, 0.7)
    between = Tradeoff.of_logs(*(three.log_masses([0.3, 0.5, p]) for p in (0.3, 0.7)))(0.3)
    assert between == pytest.approx(0.5, abs=1e-12)
    assert min(curve(0.3) for curve in three.curves) == pytest.approx(0.506729, abs=5e-7)
    assert three.tradeoff(0.3, **HOW) == pytest.approx(0.480759, abs=5e-7)
    rng = np.random.default_rng(2)
    server = PoissonBinomial(3, 1, 0.2, 0.6)
    exact = server.tradeoff(ALPHA, **HOW)
    for _ in range(100):  # anybody else, and any change of one's own
        others, own = rng.uniform(0.2, 0.6, 2), rng.uniform(0.2, 0.6, 2)
        masses = [server.log_masses(np.append(others, p)) for p in own]
        # with others strictly inside, mixtures: the hull of the extremes holds
        assert (Tradeoff.of_logs(*masses)(ALPHA) >= exact - 1e-12).all()
    corner = [server.log_masses([0.2, 0.6, p]) for p in (0.2, 0.6)]
    assert (Tradeoff.of_logs(*corner)(ALPHA) >= exact - 1e-12).all()
    more = PoissonBinomial(3, 2, 0.2, 0.6)
    attained = [more.log_masses([0.2, 0.6, p]) for p in (0.6, 0.2)]
    assert (Tradeoff.of_logs(*attained)(ALPHA) >= more.curve(ALPHA) - 1e-12).all()
    alone = BinomialMechanism(1.0, 2, 0.2, 0.6).curve(ALPHA)
    assert PoissonBinomial(1, 2, 0.2, 0.6).tradeoff(ALPHA, **HOW) == pytest.approx(alone, abs=1e-12)
    assert (more.tradeoff(ALPHA, **HOW) >= alone - 1e-12).all()


def test_sums_of_users_follow_their_masses():
    rng, server = Streams(6, "sum").numpy("draws"), PoissonBinomial(3, 2, 0.2, 0.6)
    probs = np.array([0.2, 0.5, 0.6])
    out = server.release(np.repeat(probs[:, None], 100_000, axis=1), rng=rng)
    counts, masses = np.bincount(out, minlength=7), np.exp(server.log_masses(probs))
    assert (np.abs(counts - 1e5 * masses) < 5 * np.sqrt(1e5 * masses)).all()
    with pytest.raises(ValueError, match="num_users"):
        server.release([0.3, 0.4], rng=rng)
    with pytest.raises(NotAvailable):
        server.tradeoff(0.3, neighbouring="add_remove", sampling="none")


# ---------------------------------------------------------------------------------------------- ledger and attacks


@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_an_attack_meets_the_guarantee_from_below(mechanism):
    rng = Streams(7, "attack").numpy(type(mechanism).__name__)
    one, other = mechanism.worst_inputs[0]
    found = audit.two_inputs(mechanism, one, other, score=float, num_runs=4000, delta=0.05, rng=rng, failure_prob=1e-5)
    exact = mechanism.epsilon(0.05, **HOW).upper
    assert found.epsilon_lower <= exact
    if 0.5 < exact < math.inf:
        assert found.epsilon_lower > 0.25 * exact  # what 2000 samples on a side show at this confidence


def test_ledgers_take_them_save_them_and_add_them_up(tmp_path):
    ledger = Ledger(neighbouring="replace", sampling="none")
    for mechanism in (StoSign(0.1, 0.5), Ternary(0.1, 0.25, 0.5), BinomialMechanism(0.1, 4, 0.45, 0.6)):
        ledger.add(mechanism, 3)
    spent = ledger.epsilon(1e-3)
    assert 0 < spent.lower <= spent.upper < ledger.epsilon(1e-3, accountant="rdp").upper
    ledger.save(tmp_path / "ledger.json")
    assert Ledger.load(tmp_path / "ledger.json").epsilon(1e-3) == spent
    with pytest.raises(NotAvailable):
        Ledger(neighbouring="add_remove", sampling="none").add(StoSign(0.1, 0.5))
    with pytest.raises(NotAvailable):
        Ledger(neighbouring="replace", sampling="poisson").add(StoSign(0.1, 0.5))


# --------------------------------------------------------------------------------------------------------- laws


@pytest.mark.paper("fdp", "Remark 9")
@pytest.mark.paper("fdp", "Remark 10")
def test_privacy_moves_with_the_parameters_as_the_remarks_say():
    def curve(mechanism):
        return mechanism.tradeoff(ALPHA, **HOW)

    base = {"clip": 0.1, "scale_b": 0.5, "num_trials": 4}
    assert (
        curve(BinomialMechanism.scaled(**{**base, "scale_b": 0.7})) >= curve(BinomialMechanism.scaled(**base)) - 1e-13
    ).all()
    assert (
        curve(BinomialMechanism.scaled(**{**base, "num_trials": 5})) <= curve(BinomialMechanism.scaled(**base)) + 1e-13
    ).all()
    assert (curve(Ternary(0.1, 0.3, 0.5)) >= curve(Ternary(0.1, 0.25, 0.5)) - 1e-13).all()
    assert (curve(Ternary(0.1, 0.25, 0.6)) >= curve(Ternary(0.1, 0.25, 0.5)) - 1e-13).all()
    assert (curve(NoisySign(0.1, 1.2)) >= curve(NoisySign(0.1, 1.0)) - 1e-13).all()
    assert (curve(BinomialNoise(3, 10, 0.3)) >= curve(BinomialNoise(3, 9, 0.3)) - 1e-13).all()


@pytest.mark.paper("fdp", "Figure 7")
@pytest.mark.paper("fdp", "Figure 8")
def test_values_on_the_curves_of_figures_7_and_8():
    alpha = [0.05, 0.1, 0.3]
    for (b, m), want in {
        (1.0, 1): (0.938889, 0.877778, 0.633333),
        (1.0, 16): (0.799332, 0.687756, 0.392992),
        (0.5, 16): (0.514941, 0.379044, 0.135130),
        (2.0, 16): (0.895158, 0.812997, 0.549494),
    }.items():
        got = BinomialMechanism.scaled(clip=0.1, scale_b=b, num_trials=m).tradeoff(alpha, **HOW)
        assert got == pytest.approx(want, abs=5e-7)
    for (a, b), want in {(0.15, 0.5): (0.75, 0.70, 0.5), (0.4, 0.5): (0.916667, 0.833333, 0.5)}.items():
        assert Ternary(0.1, a, b).tradeoff(alpha, **HOW) == pytest.approx(want, abs=5e-7)


# ----------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: StoSign(0.1, 0.1), "scale_a"),
        (lambda: StoSign(0.1, math.inf), "scale_a"),
        (lambda: StoSign(-0.1, 0.1), "clip"),
        (lambda: Ternary(0.1, 0.5, 0.25), "scale_b"),
        (lambda: Ternary(0.1, 0.1, 0.25), "scale_a"),
        (lambda: Ternary(0.1, 0.25, -1.0), "scale_b"),
        (lambda: Ternarize(0.1, 0.1), "scale_b"),
        (lambda: GeneralTernary(0.1, 0.5, 0.1, 0.6), "plus_max"),
        (lambda: GeneralTernary(0.1, 0.5, 0.3, 0.3), "plus_max"),
        (lambda: BinomialMechanism.scaled(clip=0.1, scale_b=0.1, num_trials=3), "scale_b"),
        (lambda: BinomialMechanism.poisson_binomial(clip=0.1, theta=0.5, num_trials=3), "theta"),
        (lambda: BinomialMechanism(0.1, 0, 0.2, 0.4), "num_trials"),
        (lambda: BinomialMechanism(0.1, 3, 0.4, 0.4), "p_max"),
        (lambda: BinomialNoise(0, 3, 0.5), "max_value"),
        (lambda: BinomialNoise(2, 3, 1.5), "success_prob"),
        (lambda: QuantisedBinomial(0.1, 1, 3, 0.5), "num_levels"),
        (lambda: CLDP(0.1, 0.0), "target_epsilon"),
        (lambda: NoisySign(0.1, 0.0), "noise_ratio"),
        (lambda: PoissonBinomial(0, 3, 0.2, 0.4), "num_users"),
    ],
)
def test_parameters_outside_their_domain_are_refused_by_name(make, name):
    with pytest.raises((ValueError, TypeError), match=f"^{name} must"):
        make()


@pytest.mark.parametrize("mechanism", ALL, ids=NAMES)
def test_other_relations_are_not_available(mechanism):
    for how in ({**HOW, "neighbouring": "add_remove"}, {**HOW, "sampling": "poisson"}):
        for ask in (
            lambda how: mechanism.rdp([2.0], **how),
            lambda how: mechanism.pairs(**how),
            lambda how: mechanism.tradeoff(0.3, **how),
            lambda how: mechanism.epsilon(0.1, **how),
            lambda how: mechanism.gdp_mu_upper(**how),
        ):
            with pytest.raises(NotAvailable):
                ask(how)
    assert dataclasses.replace(mechanism) == mechanism
