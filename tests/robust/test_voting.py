"""Majority votes against attackers: exact probabilities by enumeration and simulation, and every bound beside them."""

import itertools
import math

import numpy as np
import pytest

from privrob.kinds import Streams
from privrob.mechanisms.binomial import BinomialMechanism
from privrob.mechanisms.ternary import Ternary
from privrob.robust import voting


def binomial(lean, trials=1, rate=1.0):
    return voting.binomial_vote(lean, num_trials=trials, sample_rate=rate)


# ------------------------------------------------------------------------------------------------------- exact


@pytest.mark.paper("fdp", "Section 5")
def test_exact_probabilities_are_those_of_every_outcome():
    rng = np.random.default_rng(1)
    for _ in range(30):
        users = [rng.dirichlet(np.ones(2 * int(rng.integers(1, 3)) + 1)) for _ in range(int(rng.integers(1, 5)))]
        want = 0.0
        for votes in itertools.product(*(enumerate(u) for u in users)):
            total = sum(k - len(u) // 2 for (k, _), u in zip(votes, users))
            want += math.prod(p for _, p in votes) if total <= 0 else 0.0
        assert voting.wrong_prob([(u, 1) for u in users]) == pytest.approx(want, rel=1e-12)
    thrice = voting.wrong_prob([(users[0], 3), (users[-1], 0)])
    assert thrice == pytest.approx(voting.wrong_prob([(users[0], 1)] * 3), rel=1e-12)


@pytest.mark.paper("fdp", "Section 5.1")
def test_votes_are_what_the_mechanisms_send():
    mechanism = BinomialMechanism.scaled(clip=0.2, scale_b=0.7, num_trials=3)
    for x in (-0.2, 0.05, 0.2):
        assert binomial(x / 0.7, 3)[::2] == pytest.approx(np.exp(mechanism.log_masses(x)), abs=1e-14)
        sparse = Ternary(0.2, 0.3, 0.7)
        got = voting.ternary_vote(x / 0.7, vote_prob=0.3 / 0.7)
        assert got == pytest.approx(np.exp(sparse.log_masses(x)), abs=1e-14)
    assert binomial(0.3, 2, 0.25)[2] == pytest.approx(0.75 + 0.25 * 2 * 0.65 * 0.35, abs=1e-14)  # not drawn: 0


def test_simulation_agrees_with_the_exact_probability():
    rng = Streams(8, "voting").numpy("draws")
    leans = np.concatenate([np.full(40, 0.1), np.full(20, 0.3), np.full(15, -0.4)])
    groups = [(binomial(0.1, 3), 40), (binomial(0.3, 3), 20), (binomial(-0.4, 3), 15)]
    rate, error = voting.simulate(leans, num_trials=3, num_runs=100_000, rng=rng)
    assert abs(rate - voting.wrong_prob(groups)) < 5 * error
    tied, _ = voting.simulate([1.0, -1.0], num_trials=3, num_runs=100, rng=rng)
    assert tied == 1.0  # the same rule
    assert error == pytest.approx(math.sqrt(rate * (1 - rate) / 1e5), rel=1e-12)


def test_ties_are_wrong_and_nobody_is_a_tie():
    assert voting.wrong_prob([(binomial(1.0), 3), (binomial(-1.0), 3)]) == 1.0
    assert voting.wrong_prob([(binomial(1.0), 3), (binomial(-1.0), 2)]) == 0.0
    assert voting.wrong_prob([]) == 1.0
    assert voting.tolerated([(binomial(-0.5), 3)], binomial(-1.0), most=4) == -1


def test_a_fair_coin_for_ties_halves_what_they_cost():
    groups = [(binomial(0.2), 4), (voting.ternary_vote(-0.1, vote_prob=0.3), 3)]
    ways = [voting.wrong_prob(groups, tie_share=share) for share in (0.0, 0.5, 1.0)]
    assert ways[1] == pytest.approx((ways[0] + ways[2]) / 2, rel=1e-14)
    assert ways[2] == voting.wrong_prob(groups) > ways[0] + 0.05
    with pytest.raises(ValueError, match="tie_share must"):
        voting.wrong_prob(groups, tie_share=1.5)


def test_counting_from_a_number_that_is_known_to_be_tolerated_changes_nothing():
    honest, attacker = [(binomial(0.3, 2), 12), (binomial(0.1, 2), 5)], binomial(-0.4, 2)
    first = voting.tolerated(honest, attacker, most=60)
    assert 3 < first < 30
    assert voting.tolerated(honest, attacker, most=60, known=3) == first
    assert voting.tolerated(honest, attacker, most=4, known=3) == 4
    assert voting.wrong_prob([*honest, (attacker, first)]) < 0.5 <= voting.wrong_prob([*honest, (attacker, first + 1)])


@pytest.mark.paper("fdp", "Remark 15")
def test_attackers_who_vote_more_often_have_a_bound_by_the_same_proof():
    how = {"scale_a": 0.15, "scale_b": 0.5, "num_users": 40}
    honest = voting.ternary_vote(0.2, vote_prob=0.3), 40
    for right, wrong, k in [(0.0, 1.0, 3), (0.0, 0.7, 6), (0.3, 0.6, 12), (0.9, 0.05, 30)]:
        attack = {"wrong_margin": wrong - right, "attacker_votes": wrong + right}
        upper = voting.ternary_bound(0.1, **how, num_attackers=k, **attack)
        exact = voting.wrong_prob([honest, (np.array([wrong, 1 - wrong - right, right]), k)])
        assert exact <= upper < 1
    usual = voting.ternary_bound(0.1, **how, num_attackers=9, wrong_margin=0.1)
    same = voting.ternary_bound(0.1, **how, num_attackers=9, wrong_margin=0.1, attacker_votes=0.3)
    assert same == pytest.approx(usual, rel=1e-12)
    with pytest.raises(ValueError, match="attacker_votes must"):
        voting.ternary_bound(0.1, **how, num_attackers=3, wrong_margin=0.5, attacker_votes=0.2)


def test_large_sums_take_the_fast_way_and_agree():
    many = voting.wrong_prob([(binomial(0.01, 16), 1500), (binomial(-0.01, 16), 700)])
    mean, variance = 16 * 800 * 0.01, 16 * 2200 * (1 - 1e-4)
    assert many == pytest.approx(0.5 * math.erfc((mean - 1) / math.sqrt(2 * variance)), rel=2e-3)  # half-way to a tie


# ------------------------------------------------------------------------------------- Theorems 5, 6, 10 and 11


@pytest.mark.paper("fdp", "Theorem 5")
def test_blind_attackers_within_the_bound_are_tolerated_by_the_binomial_mechanism():
    for n, m, lean in itertools.product((1, 3, 10, 40), (1, 4, 16), (0.05, 0.2, 0.6, 1.0)):
        bound = voting.theorem_5(lean * 0.7, scale_b=0.7, num_trials=m, num_users=n)
        if bound < 0:
            assert lean <= voting.least_signal(num_users=n, num_trials=m)
            continue
        for k in {0, int(bound)}:
            exact = voting.wrong_prob([(binomial(lean, m), n), (binomial(-lean, m), k)])
            assert exact < 0.5
            upper = voting.binomial_bound(lean * 0.7, scale_b=0.7, num_trials=m, num_users=n, num_attackers=k)
            assert exact <= upper * (1 + 1e-12)
    assert voting.theorem_5(-0.1, scale_b=1.0, num_trials=16, num_users=100) == pytest.approx(54.525, abs=5e-4)
    assert voting.theorem_5(0.1, scale_b=0.5, num_trials=1, num_users=50) == pytest.approx(4.740, abs=5e-4)
    assert voting.tolerated([(binomial(0.1, 16), 100)], binomial(-0.1, 16), most=110) == 99  # exact: all but one
    assert voting.tolerated([(binomial(0.2), 50)], binomial(-0.2), most=60) == 45


@pytest.mark.paper("fdp", "Theorem 5")
def test_unequal_inputs_obey_the_bound_too():
    rng = np.random.default_rng(7)
    for _ in range(60):
        n, m = int(rng.integers(2, 12)), int(rng.integers(1, 4))
        leans = rng.uniform(-0.3, 1.0, n)
        mean = leans.mean()
        if mean <= 0:
            continue
        k = int(max(voting.theorem_5(mean, scale_b=1.0, num_trials=m, num_users=n), 0))
        against = rng.uniform(-0.02, 0.02, k)
        against += mean - (against.mean() if k else 0)
        if k and np.abs(against).max() > 1:
            continue
        exact = voting.wrong_prob([*((binomial(x, m), 1) for x in leans), *((binomial(-x, m), 1) for x in against)])
        assert exact <= voting.binomial_bound(mean, scale_b=1.0, num_trials=m, num_users=n, num_attackers=k) + 1e-12


@pytest.mark.paper("fdp", "Theorem 6")
@pytest.mark.paper("fdp", "Theorem 11")
def test_ternary_bounds_hold_where_votes_are_frequent_enough():
    for n, some, share, p in itertools.product((1, 3, 10, 40), (0.1, 0.3, 0.7, 1.0), (0.3, 0.9), (0.6, 1.0)):
        lean, margin = share * some, (2 * p - 1) * some
        honest = voting.ternary_vote(lean, vote_prob=some), n
        how = {"scale_a": 2 * some, "scale_b": 2.0, "num_users": n}
        for bound, against in (
            (voting.theorem_6(2 * lean, **how), lean),
            (voting.theorem_11(2 * lean, **how, wrong_margin=margin), margin),
        ):
            if bound < 0:
                continue
            k = min(int(bound), 2 * n)
            exact = voting.wrong_prob([honest, (voting.ternary_vote(-against, vote_prob=some), k)])
            assert exact < 0.5
            upper = voting.ternary_bound(2 * lean, **how, num_attackers=k, wrong_margin=against)
            assert exact <= upper * (1 + 1e-12)


@pytest.mark.paper("fdp", "Theorem 6")
@pytest.mark.paper("fdp", "Theorem 11")
def test_the_ternary_probability_bound_is_the_printed_expression():
    a, b, n, k, x = 0.3, 0.5, 12, 4, 0.2
    how = {"scale_a": a, "scale_b": b, "num_users": n}
    root = math.sqrt((a * (n + k)) ** 2 - ((n - k) * x) ** 2)
    want = (1 - a / b + root / (b * (n + k))) ** (n + k)  # (93)
    assert voting.ternary_bound(x, **how, num_attackers=k) == pytest.approx(want, rel=1e-12)
    p, q = 0.5, 0.1
    root = math.sqrt((a * n - n * x + 2 * b * k * p) * (a * n + n * x + 2 * b * k * q))
    want = (1 - a / b + root / (b * (n + k))) ** (n + k)  # (139)
    assert voting.ternary_bound(x, **how, num_attackers=k, wrong_margin=p - q) == pytest.approx(want, rel=1e-12)
    assert voting.ternary_bound(x, **how, num_attackers=n) == 1.0
    assert voting.binomial_bound(x, scale_b=b, num_trials=2, num_users=3, num_attackers=3) == 1.0


@pytest.mark.paper("fdp", "Section 5")
def test_the_vote_of_plain_signs_can_be_wrong_for_certain():
    """x = (5, −1, −1): the sum is positive, the sum of the signs is not; "one can readily show" less than 1/2."""
    signs = [(binomial(s), 1) for s in np.sign([5.0, -1.0, -1.0])]
    assert voting.wrong_prob(signs) == 1.0


@pytest.mark.paper("fdp", "Theorem 6")
def test_the_printed_ternary_bound_is_refuted_where_votes_are_rare():
    printed = voting.theorem_6(0.1, scale_a=0.105, scale_b=1.0, num_users=3, form="as_printed")
    assert printed == pytest.approx(1.7011, abs=5e-5)
    vote = {sign: voting.ternary_vote(sign * 0.1, vote_prob=0.105) for sign in (1, -1)}
    assert voting.wrong_prob([(vote[1], 3), (vote[-1], 1)]) > 0.74
    assert voting.theorem_6(0.1, scale_a=0.105, scale_b=1.0, num_users=3) == -math.inf
    alone = voting.wrong_prob([(voting.ternary_vote(0.29, vote_prob=0.3), 1)])
    assert alone == pytest.approx(0.705, abs=1e-12)
    assert voting.theorem_6(0.29, scale_a=0.3, scale_b=1.0, num_users=1, form="as_printed") > 0.12
    denser = voting.ternary_vote(0.1, vote_prob=0.11), voting.ternary_vote(-0.1, vote_prob=0.11)
    assert voting.wrong_prob([(denser[0], 3), (denser[1], 1)]) == pytest.approx(0.742406, abs=5e-7)


@pytest.mark.paper("fdp", "Theorem 10")
def test_attackers_of_any_strength_within_the_bound_are_tolerated():
    for n, m, lean, p in itertools.product((3, 10, 40), (1, 16), (0.3, 0.8), (0.0, 0.2, 0.5, 0.7, 1.0)):
        bound = voting.theorem_10(lean, scale_b=1.0, num_trials=m, num_users=n, wrong_vote_prob=p)
        for k in {0, int(min(bound, 3 * n))} if bound >= 0 else ():
            exact = voting.wrong_prob([(binomial(lean, m), n), (binomial(1 - 2 * p, m), k)])
            assert exact < 0.5
            upper = voting.binomial_bound(
                lean, scale_b=1.0, num_trials=m, num_users=n, num_attackers=k, wrong_vote_prob=p
            )
            assert exact <= upper * (1 + 1e-12)
            # the corrected condition follows: (2p − 1)K < N|x̄|/B
            assert (2 * p - 1) * k < n * lean


@pytest.mark.paper("fdp", "Theorem 10")
@pytest.mark.paper("fdp", "Remark 14")
def test_the_printed_theorem_10_is_refuted():
    how = {"scale_b": 1.0, "num_trials": 16, "num_users": 100}
    printed = voting.theorem_10(0.1, **how, wrong_vote_prob=1.0, form="as_printed")
    assert printed == pytest.approx(30.59, abs=5e-3)
    assert voting.theorem_10(0.1, **how, wrong_vote_prob=1.0) == pytest.approx(6.855, abs=5e-4)
    honest = [(binomial(0.1, 16), 100)]
    assert voting.tolerated(honest, binomial(-1.0, 16), most=40) == 9
    assert voting.wrong_prob([*honest, (binomial(-1.0, 16), 10)]) == pytest.approx(0.509688, abs=5e-7)
    assert voting.theorem_10(0.1, **how, wrong_vote_prob=0.3) == math.inf
    # the blind attacker is the case p = 1/2 + |x̄|/2B
    assert voting.theorem_10(0.1, **how, wrong_vote_prob=0.55) == pytest.approx(voting.theorem_5(0.1, **how), rel=1e-12)
    assert voting.theorem_10(0.01, **how, wrong_vote_prob=1.0) == -math.inf


@pytest.mark.paper("fdp", "Theorem 11")
@pytest.mark.paper("fdp", "Remark 15")
def test_the_printed_strongest_attack_on_ternary_is_not_the_strongest():
    how = {"scale_a": 0.15, "scale_b": 0.5, "num_users": 100}
    assert voting.theorem_11(0.1, **how, wrong_margin=0.3) == pytest.approx(37.36, abs=5e-3)
    honest = [(voting.ternary_vote(0.2, vote_prob=0.3), 100)]
    assert voting.tolerated(honest, voting.ternary_vote(-0.3, vote_prob=0.3), most=99) == 65
    assert voting.tolerated(honest, voting.ternary_vote(-1.0, vote_prob=1.0), most=99) == 19
    assert voting.theorem_11(0.1, **how, wrong_margin=0.2) == pytest.approx(voting.theorem_6(0.1, **how), rel=1e-12)
    assert voting.theorem_11(0.1, **how, wrong_margin=-0.3) == math.inf


@pytest.mark.paper("fdp", "Remark 9")
@pytest.mark.paper("fdp", "Remark 10")
@pytest.mark.paper("fdp", "Figure 7")
@pytest.mark.paper("fdp", "Figure 8")
@pytest.mark.paper("fdp", "Figure 9")
def test_values_and_directions_of_figures_7_to_9():
    def share(n=100, b=0.5, m=1):
        return voting.theorem_5(0.1, scale_b=b, num_trials=m, num_users=n) / n

    assert [share(m=m) for m in (1, 4, 16, 64)] == pytest.approx([0.260501, 0.545478, 0.743460, 0.862919], abs=5e-7)
    assert [share(b=b, m=16) for b in (0.2, 0.5, 1.0)] == pytest.approx([0.888828, 0.743460, 0.545250], abs=5e-7)
    assert share(b=1.0) == -math.inf
    values = [share(n=n, m=16) for n in (10, 50, 100, 500, 1000)]
    assert values == pytest.approx([0.365742, 0.655563, 0.743460, 0.876496, 0.911059], abs=5e-7)

    def ternary(a, b=0.5, n=100):
        return voting.theorem_6(0.1, scale_a=a, scale_b=b, num_users=n) / n

    got = [ternary(a, b) for a, b in itertools.product((0.15, 0.25), (0.3, 0.5, 1.0))]
    assert got == pytest.approx([0.601959, 0.515116, 0.379359, 0.513751, 0.414308, 0.262935], abs=5e-7)
    assert [ternary(0.15, n=n) for n in (10, 1000)] == pytest.approx([0.0284551, 0.815063], abs=5e-7)
    # Remark 10's direction in B reverses where votes are rare, which the sound form refuses
    rare = [voting.theorem_6(0.1, scale_a=0.105, scale_b=b, num_users=3, form="as_printed") for b in (1.0, 1.01)]
    assert rare[1] > rare[0]


@pytest.mark.paper("fdp", "Figure 7")
@pytest.mark.paper("fdp", "Figure 8")
@pytest.mark.paper("fdp", "Figure 9")
def test_exactly_all_but_a_few_attackers_are_tolerated_whatever_a():
    seven = voting.share_tolerated(0.1, num_users=100, scale_b=0.5, num_trials=1)
    assert (seven["bound"], seven["exact"]) == (pytest.approx(0.260501, abs=5e-7), 0.95)
    assert voting.share_tolerated(-0.1, num_users=100, scale_b=1.0, num_trials=1)["bound"] == 0.0
    found = [voting.share_tolerated(0.1, num_users=100, scale_a=a, scale_b=1.0) for a in (0.15, 0.25, 0.8)]
    assert [f["exact"] for f in found] == [0.94, 0.94, 0.95]
    assert found[1]["bound"] == pytest.approx(0.262935, abs=5e-7)
    with pytest.raises(ValueError, match="num_trials must"):
        voting.share_tolerated(0.1, num_users=100, scale_b=1.0)


@pytest.mark.paper("fdp", "Remark 11")
def test_the_share_of_attackers_goes_to_one_and_the_number_that_is_missing_still_grows():
    found = [voting.theorem_5(0.1, scale_b=0.5, num_trials=16, num_users=n) / n for n in (100, 10**4, 10**8)]
    assert found[0] < found[1] < found[2]
    assert found[2] > 0.9995
    missing = [n - voting.theorem_5(0.1, scale_b=0.5, num_trials=16, num_users=n) for n in (10**4, 10**6)]
    assert missing[1] / missing[0] == pytest.approx(10, rel=0.05)  # like √N


# ------------------------------------------------------------------------------------------------- Theorem 8


@pytest.mark.paper("fdp", "Theorem 8")
@pytest.mark.paper("fdp", "Equation 103")
def test_the_printed_bound_with_sampled_users_is_refuted_and_the_corrected_one_holds():
    how = {"scale_b": 1.0, "num_trials": 16, "num_users": 10, "num_attackers": 0, "sample_rate": 0.1}
    exact = voting.wrong_prob([(binomial(0.5, 16, 0.1), 10)])
    assert exact == pytest.approx(0.359587, abs=5e-7)
    assert voting.sampled_bound(0.5, **how, form="as_printed") == pytest.approx(0.115546, abs=5e-7)
    assert voting.sampled_bound(0.5, **how) == pytest.approx(0.389464, abs=5e-7)
    printed = voting.sampled_bound(0.5, **{**how, "num_attackers": 2}, form="as_printed")
    assert printed == pytest.approx((0.9 + 0.1 * math.sqrt(1 - (0.5 * 8 / 12) ** 2)) ** (12 * 16), rel=1e-12)
    for n, k, m, rate, lean in itertools.product((3, 10), (0, 1, 2), (1, 5), (0.2, 0.7, 1.0), (0.2, 0.9)):
        exact = voting.wrong_prob([(binomial(lean, m, rate), n), (binomial(-lean, m, rate), k)])
        settings = {"scale_b": 2.0, "num_trials": m, "num_users": n, "num_attackers": k, "sample_rate": rate}
        assert exact <= voting.sampled_bound(2 * lean, **settings) * (1 + 1e-12)
        assert exact >= (1 - rate) ** (n + k)  # nobody was drawn
    # averaging users and attackers before the coin is no bound either
    averaged = (0.8 + 0.2 * (1 - (0.9 * 9 / 11) ** 2) ** 2.5) ** 11
    exact = voting.wrong_prob([(binomial(0.9, 5, 0.2), 10), (binomial(-0.9, 5, 0.2), 1)])
    assert (averaged, exact) == pytest.approx((0.126005, 0.152225), abs=5e-7)
    everybody = {**how, "sample_rate": 1.0, "num_attackers": 3}
    plain = voting.binomial_bound(0.5, scale_b=1.0, num_trials=16, num_users=10, num_attackers=3)
    crowd = voting.wrong_prob([(binomial(0.5, 16), 10), (binomial(-0.5, 16), 3)])
    assert crowd <= voting.sampled_bound(0.5, **everybody) <= plain  # (85) averages, and loses a little
    alone = {**how, "sample_rate": 1.0}
    plain = voting.binomial_bound(0.5, scale_b=1.0, num_trials=16, num_users=10, num_attackers=0)
    assert voting.sampled_bound(0.5, **alone) == pytest.approx(plain, rel=1e-9)
    assert voting.sampled_bound(0.5, **{**how, "sample_rate": 0.0}) == 1.0


@pytest.mark.paper("fdp", "Theorem 8")
def test_the_printed_rate_is_refuted_for_lack_of_the_dimension():
    """F = ½‖w‖², exact signs, w₀ = η/2 in each of d coordinates: sign-SGD steps to −η/2 and back for ever."""
    d, rounds = 10, 10**4
    eta = 1 / math.sqrt(rounds)
    w = np.full(d, eta / 2)
    gap, left = 0.5 * float(w @ w), 0.0
    for _ in range(rounds):
        left += np.abs(w).sum() / rounds
        w = w - eta * np.sign(w)
    how = {"start_gap": gap, "smoothness": 1.0, "num_rounds": rounds, "dimension": d}
    assert left == pytest.approx(0.05, rel=1e-9)
    assert voting.theorem_8(**how, form="as_printed") == pytest.approx(0.00500125, rel=1e-9)
    assert left <= voting.theorem_8(**how) == pytest.approx(0.05000125, rel=1e-9)


@pytest.mark.paper("fdp", "Theorem 8")
def test_the_product_of_two_sign_errors_is_refuted_as_they_are_not_independent():
    """One user, B = M = 1: a gradient of −1 (45 %) or 0.83, of mean G = 0.0065, on F(w) = Gw, capped far below."""
    noise, probs = np.array([-1.0, 0.83]), np.array([0.45, 0.55])
    mean = float(probs @ noise)
    how = {"scale_b": 1.0, "num_trials": 1, "num_users": 1, "num_attackers": 0, "sample_rate": 1.0}
    rho_1 = 0.45
    rho_2 = sum(p * voting.sampled_bound(g, **how) for p, g in zip(probs, noise))
    assert rho_2 == pytest.approx(0.306770, abs=5e-7)
    product = (1 - 2 * rho_1) * (1 - 2 * rho_2)
    right = sum(p * (1 - 2 * voting.wrong_prob([(binomial(g), 1)])) for p, g in zip(probs, noise))
    assert (product, right) == pytest.approx((0.038646, 0.0065), abs=5e-7)  # claimed, and true, E[sign ĝ sign G]
    smoothness, rounds = mean**2, 10**6
    eta = 1 / math.sqrt(smoothness * rounds)
    steps = Streams(9, "walk").numpy("draws").random(rounds) < (1 + right) / 2
    reach = float(np.cumsum(np.where(steps, eta, -eta)).max())
    reach_bound = 1850.0  # the drift, 1000, and five standard deviations: F stays linear on the way
    assert reach < reach_bound
    rate = voting.theorem_8(start_gap=mean * reach_bound, smoothness=smoothness, num_rounds=rounds, dimension=1)
    assert rate == pytest.approx(8.1e-5, rel=0.01)
    assert product * mean > 3 * rate  # the left side of (26), which should be below


def test_votes_outside_their_range_are_refused():
    for ask, name in [
        (lambda: voting.binomial_vote(1.1, num_trials=1), "lean"),
        (lambda: voting.ternary_vote(0.5, vote_prob=0.3), "lean"),
        (lambda: voting.theorem_11(0.1, scale_a=0.6, scale_b=0.5, num_users=3, wrong_margin=0.1), "scale_a"),
        (lambda: voting.theorem_11(0.1, scale_a=0.2, scale_b=0.5, num_users=3, wrong_margin=0.9), "wrong_margin"),
        (lambda: voting.theorem_5(0.1, scale_b=0.0, num_trials=1, num_users=3), "scale_b"),
        (lambda: voting.theorem_8(start_gap=1.0, smoothness=1.0, num_rounds=9, dimension=2, form="x"), "form"),
    ]:
        with pytest.raises(ValueError, match=f"{name} must"):
            ask()


@pytest.mark.parametrize("mean", [math.nan, math.inf, "x", None])
def test_a_mean_that_is_no_number_is_refused_and_no_bound_of_0(mean):
    one, three = {"scale_b": 1.0, "num_trials": 1, "num_users": 3}, {"scale_a": 0.5, "scale_b": 1.0, "num_users": 3}
    calls = [
        lambda: voting.theorem_5(mean, **one),
        lambda: voting.theorem_10(mean, **one, wrong_vote_prob=0.9),
        lambda: voting.theorem_6(mean, **three),
        lambda: voting.binomial_bound(mean, **one, num_attackers=0),
        lambda: voting.ternary_bound(mean, **three, num_attackers=0),
    ]
    for call in calls:
        with pytest.raises((ValueError, TypeError), match="mean must"):
            call()


def test_bounds_and_votes_refuse_what_would_make_them_too_small():
    how = {"scale_b": 1.0, "num_users": 3, "num_attackers": 1}
    for bad in ({"scale_a": 5.0}, {"scale_a": math.nan}, {"scale_a": 0.5, "wrong_margin": -7.0}):
        with pytest.raises(ValueError, match=list(bad)[-1]):
            voting.ternary_bound(0.3, **how, **bad)
    for masses in ([-1.0, 0.5, 1.5], [0.5, 0.6, 0.5], [0.5, 0.5]):
        with pytest.raises(ValueError, match="masses must be probabilities"):
            voting.wrong_prob([(masses, 3)])
    for leans, trials in (([], 1), ([2.0], 1), ([0.5], 0)):
        with pytest.raises(ValueError, match=r"leans|num_trials"):
            voting.simulate(leans, num_trials=trials, num_runs=10, rng=np.random.default_rng(0))
