"""Federated rounds: clients one by one against all at once, attackers, bits, privacy, faults."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from trainings import data

from privrob.accounting import fdp_vectors
from privrob.accounting.tradeoff import Tradeoff
from privrob.kinds import NotAvailable, Streams
from privrob.learn import federated, federated_cells, federated_privacy, federated_users
from privrob.learn.federated_server import Server, decoded, votes
from privrob.learn.federated_split import split
from privrob.mechanisms.binomial import BinomialMechanism, BinomialNoise, QuantisedBinomial
from privrob.mechanisms.signs import CLDP, NoisySign, Sign, StoSign
from privrob.mechanisms.ternary import Ternarize, Ternary

COMPRESSORS = {
    "none": {},
    "sign": {},
    "binomial": {"num_trials": 3, "scale_b": 1.5},
    "ternary": {"scale_a": 1.2, "scale_b": 2.0},
    "ternarize": {"scale_b": 2.0},
    "sto_sign": {"scale_a": 1.5},
    "cldp": {"target_epsilon": 1.0},
    "noisy_sign": {"noise_ratio": 0.7},
}
STREAMS = Streams(5, "federated")


def settings(**changes):
    base = {"num_users": 4, "num_rounds": 3, "learning_rate": 0.1, "batch_size": 4}
    base |= {"compressor": "binomial", "compressor_options": COMPRESSORS["binomial"]}
    if "compressor" in changes:
        base["compressor_options"] = COMPRESSORS[changes["compressor"]]
    return federated.FederatedSettings(**{**base, **changes})


def clients_of(run, ready, streams=STREAMS):
    return [
        federated_users.Client(
            ready, user, run.images[own], run.labels[own], model=run.model, num_classes=3, streams=streams
        )
        for user, own in enumerate(run.records)
    ]


def simulation(ready, streams=STREAMS, **more):
    images, labels, *_ = data(60, **more)
    return federated.Simulation(ready, images, labels, num_classes=3, streams=streams)


# --------------------------------------------------------------------------------------------- one by one, all at once


@pytest.mark.paper("fdp", "Algorithm 4")
@pytest.mark.paper("fdp", "Algorithm 5")
@pytest.mark.parametrize(
    ("compressor", "attack"),
    [
        (c, a)
        for c in COMPRESSORS
        for a in federated_users.ATTACKS
        if a == "none" or c in ("none", "binomial", "ternary")
    ],
)
def test_clients_in_any_order_send_what_the_vectorised_round_has(compressor, attack):
    bad = 0 if attack == "none" else 3
    ready = settings(compressor=compressor, attack=attack, num_attackers=bad, user_rate=0.7, users_at_once=2)
    run, rounds = simulation(ready), range(2)
    clients, server = clients_of(run, ready), Server(ready, streams=STREAMS)
    weights = alone = federated.flat_weights(run.model)
    order = np.random.default_rng(1)
    for number in rounds:
        symbols, mean, honest = run.round(weights, number)
        replies = {}
        for i in order.permutation(len(clients)):
            replies[int(i)] = clients[i].reply(
                alone, number, honest_mean=np.zeros(len(alone)) if mean is None else mean
            )
        got = [replies[i] for i in range(len(clients)) if replies[i] is not None]
        assert len(got) == len(symbols)
        assert honest == sum(replies[i] is not None for i in range(4))
        if got:
            assert np.stack(got) == pytest.approx(symbols, abs=1e-9)
            weights = weights - server.step_size(number) * server.estimate(symbols)
        alone = server.update(alone, replies, number=number)
        assert alone == pytest.approx(weights, abs=1e-6)


def test_parts_change_nothing():
    images, labels, test_images, test_labels = data(60)
    rows = []
    for at_once in (1, 3, 128):
        ready = settings(users_at_once=at_once, attack="knowing", num_attackers=2, user_rate=0.8, evaluate_every=1)
        found = federated.train(ready, images, labels, test_images, test_labels, num_classes=3, streams=STREAMS)
        rows.append([{k: v for k, v in row.items() if k != "seconds"} for row in found])
    assert rows[0] == rows[1] == rows[2]
    assert [row["round"] for row in rows[0]] == [1, 2, 3]


def test_the_fast_path_equals_vmap_and_a_model_with_layers_works():
    ready = settings()
    run = simulation(ready, dtype=torch.float64)
    weights = federated.flat_weights(run.model)
    places = np.concatenate([run.records[0][:5], run.records[2][:7]])
    how = {"expected_batch": 4, "images": run.images[places], "labels": run.labels[places], "sizes": [5, 0, 7]}
    fast = federated_users.gradients(run.model, weights, **how)
    slow = federated_users.gradients(run.model, weights, **how, fast=False)
    assert fast == pytest.approx(slow, abs=1e-12)
    assert not fast[1].any()
    assert fast[0].any()
    deep = settings(model="mlp", hidden=(5,), users_at_once=2)
    run = simulation(deep)
    symbols, _, _ = run.round(federated.flat_weights(run.model), 0)
    one = clients_of(run, deep)[2].reply(federated.flat_weights(run.model), 0)
    assert (symbols[2] == one).all()


def test_every_user_round_and_purpose_has_a_stream_of_its_own():
    streams, seen = federated_users.UserStreams(STREAMS), set()
    for user in range(20):
        for number in range(20):
            for purpose in ("coin", "batch", "votes"):
                seen.add(streams.at(user, number, purpose).integers(2**63))
    assert len(seen) == 1200
    a, b = streams.at(1, 2, "votes"), streams.at(2, 2, "votes")  # both at once
    in_turn = [rng.random(3).tolist() for rng in streams.each([1, 2], 2, "votes")]
    assert [a.random(3).tolist(), b.random(3).tolist()] == in_turn
    again = federated_users.UserStreams(Streams(6, "federated")).at(1, 2, "votes").random(3)
    assert again.tolist() != in_turn[0]


def test_mechanisms_with_two_draws_a_coordinate_are_taken_row_by_row():
    streams, x = federated_users.UserStreams(STREAMS), np.linspace(-1, 1, 14).reshape(2, 7)
    for mechanism in (QuantisedBinomial(1.0, 5, 8, 0.5), StoSign(1.0, 2.0), BinomialMechanism(1.0, 4, 0.2, 0.7)):
        both = federated_users.compressed(mechanism, x, streams=streams, users=[3, 8], number=1)
        for row, user in zip(both, (3, 8)):
            one = mechanism.release(x[0 if user == 3 else 1], rng=streams.at(user, 1, "votes"))
            assert row.tolist() == one.tolist()


# ---------------------------------------------------------------------------------------------------------- the parts


@pytest.mark.paper("fdp", "Algorithm 5")
def test_the_clip_bounds_the_norm_and_leaves_short_gradients_alone():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [3e200, 4e200], [1e-300, 0.0]])
    got = federated_users.clipped(rows, 1.0)
    want = [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [0.6, 0.8], [1e-300, 0.0]]
    assert got == pytest.approx(np.array(want), rel=1e-12)
    assert np.linalg.norm(got, axis=1).max() <= 1 + 1e-12


def test_attackers_do_what_their_name_says():
    mean = np.array([0.2, -0.1, 0.0])
    rng = STREAMS.numpy("attack")
    for name, wrong in (("binomial", [0, 3, 3]), ("sto_sign", [-1, 1, 1]), ("ternary", [-1, 1, 1])):
        ready = settings(compressor=name, attack="knowing_free", num_attackers=1)
        assert federated_users.against(mean, ready, ready.mechanism, rng=rng).tolist() == wrong
    ready = settings(compressor="ternary", attack="knowing", num_attackers=1)
    some = np.abs(federated_users.against(np.ones(40_000), ready, ready.mechanism, rng=rng)).mean()
    assert abs(some - 0.6) < 5 * math.sqrt(0.24 / 40_000)
    ready = settings(compressor="none", attack="knowing", num_attackers=1)
    vector = federated_users.against(mean, ready, None, rng=rng)
    assert np.linalg.norm(vector) == pytest.approx(1.0)
    assert vector @ mean == pytest.approx(-np.linalg.norm(mean))
    raw = np.array([[3.0, 4.0]])
    for attack, want in (("input_flipping", [-0.6, -0.8]), ("large_values", [-3000.0, -4000.0])):
        assert federated_users.attacked(raw, settings(attack=attack, num_attackers=1))[0] == pytest.approx(want)
    assert federated_users.flipped(torch.tensor([0, 1, 2]), 3).tolist() == [2, 1, 0]


@pytest.mark.paper("fdp", "Section 5.1")
@pytest.mark.paper("fdp", "Equation 98")
def test_votes_are_sums_of_signs_and_ties_are_exactly_zero():
    mechanism = BinomialMechanism.scaled(clip=1.0, scale_b=1.3, num_trials=3)
    assert votes(mechanism, np.array([0, 1, 2, 3])).tolist() == [-3, -1, 1, 3]
    assert votes(BinomialNoise(2, 4, 0.5), np.array([0, 3, 6])).tolist() == [-6, 0, 6]
    assert votes(Ternary(1.0, 1.2, 2.0), np.array([-1, 0, 1], np.int8)).tolist() == [-2, 0, 2]
    with pytest.raises(NotAvailable, match="Average"):
        votes(BinomialMechanism(1.0, 3, 0.2, 0.7), np.array([1]))
    assert decoded(NoisySign(1.0, 1.0), np.array([1, -1])).tolist() == [2, -2]  # no decoder: votes
    server = Server(settings(num_users=2))
    before = np.array([1.0, 1.0])
    after = server.update(before, {1: np.array([0, 3]), 0: np.array([3, 3])}, number=0)
    assert after.tolist() == [1.0, 0.9]
    assert server.update(before, {0: None, 1: None}, number=0) is before


def test_nobody_drawn_is_a_round_without_a_step():
    images, labels, test_images, test_labels = data(60)
    ready = settings(user_rate=1e-9, num_rounds=4)
    rows = list(federated.train(ready, images, labels, test_images, test_labels, num_classes=3, streams=STREAMS))
    assert rows[-1]["empty_rounds"] == 4
    assert rows[-1]["bits_fixed"] == 0
    assert rows[-1]["wrong_votes"] is None


@pytest.mark.parametrize("rule", ["Average", "Median", "TrMean", "GeometricMedian", "SignOfSum", "MajorityVote"])
def test_training_learns_with_every_rule(rule):
    images, labels, test_images, test_labels = data(400, test=200)
    options = {"f": 2} if rule == "TrMean" else None
    ready = settings(compressor="none", aggregator=rule, aggregator_options=options, num_users=10, num_rounds=25)
    rate = 0.1 if "S" in rule or "V" in rule else 1.0
    ready = dataclasses.replace(ready, learning_rate=rate, batch_size=20)
    *_, last = federated.train(ready, images, labels, test_images, test_labels, num_classes=3, streams=STREAMS)
    assert last["test_accuracy"] > 0.8
    assert last["bits_fixed"] == last["bits_entropy"] == 25 * 32 * (36 * 3 + 3)


def test_bits_are_counted_by_length_and_by_frequency():
    symbols = np.array([[0, 0, 1, 2]])
    fixed, entropy = federated.bits_sent(BinomialMechanism.scaled(clip=1.0, scale_b=2.0, num_trials=2), symbols)
    assert (fixed, entropy) == pytest.approx((2 * 4, 1.5 * 4))
    assert federated.bits_sent(Sign(), np.ones((2, 3), np.int8)) == (6.0, 0.0)


# --------------------------------------------------------------------------------------------------------------- split


@pytest.mark.parametrize(("scheme", "concentration"), [("iid", None), ("dirichlet", 0.05), ("dirichlet", 10.0)])
def test_shares_are_disjoint_complete_never_empty_and_the_same_again(scheme, concentration):
    labels = np.arange(1000) % 10
    how = {"scheme": scheme, "concentration": concentration}
    parts = split(labels, 100, **how, rng=STREAMS.numpy("split"))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert min(map(len, parts)) >= 1
    assert len(parts) == 100
    again = split(labels, 100, **how, rng=STREAMS.numpy("split"))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))
    assert len(split(labels[:7], 7, **how, rng=STREAMS.numpy("few"))) == 7


def test_a_small_concentration_is_uneven_and_a_large_one_is_not():
    labels = np.arange(20_000) % 10

    def largest_share(concentration):
        how = {"scheme": "dirichlet", "concentration": concentration}
        parts = split(labels, 20, **how, rng=STREAMS.numpy("shares"))
        return np.mean([np.bincount(labels[p], minlength=10).max() / len(p) for p in parts])

    assert largest_share(1e4) < 0.12 < 0.3 < largest_share(0.1)
    draws = [
        split(labels[:200], 2, scheme="dirichlet", concentration=1.0, rng=np.random.default_rng(i)) for i in range(400)
    ]
    first = np.array([np.bincount(labels[p[0]], minlength=10)[0] / 20 for p in draws])  # Dirichlet(1, 1): uniform
    assert abs(first.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 400)
    assert abs(first.var() - 1 / 12) < 0.02


def test_impossible_shares_are_refused():
    rng = np.random.default_rng(0)
    for changes, words in (
        ({"num_users": 4}, "num_users must be at most the number of records"),
        ({"scheme": "dirichlet"}, "concentration must be a positive number"),
        ({"concentration": 1.0}, "concentration must be None"),
        ({"scheme": "dirichlet", "concentration": 0.0}, "concentration must"),
        ({"scheme": "uneven"}, "scheme must be one of"),
    ):
        how = {"num_users": 2, "scheme": "iid", **changes}
        with pytest.raises(ValueError, match=words):
            split([0, 1, 0], how.pop("num_users"), **how, rng=rng)


def test_wrong_settings_are_named():
    for changes, words in (
        ({"attack": "input_flipping"}, "attack must be 'none' exactly without attackers"),
        ({"num_attackers": 1}, "attack must be 'none' exactly without attackers"),
        ({"attack": "flip", "num_attackers": 1}, "attack must be one of"),
        ({"compressor_options": {"scale_b": 2.0}}, "compressor_options must give num_trials"),
        ({"compressor_options": {"scale_b": 0.5, "num_trials": 1}}, "scale_b must lie"),
        ({"user_rate": 0.0}, "user_rate must"),
        ({"aggregator": "Mean"}, "aggregator must"),
        ({"evaluate_every": 0}, "evaluate_every must"),
    ):
        with pytest.raises(ValueError, match=words):
            settings(**changes)
    with pytest.raises(ValueError, match="settings must name a dataset"):
        federated_cells.train_cell({"num_users": 3}, streams=STREAMS)
    with pytest.raises(ValueError, match="settings must be one of"):
        federated_cells.train_cell({"dataset": "synthetic", "num_user": 3}, streams=STREAMS)
    run = simulation(settings(attack="knowing", num_attackers=1))
    with pytest.raises(ValueError, match="honest_mean must be given"):
        clients_of(run, run.settings)[4].reply(federated.flat_weights(run.model), 0)


def test_a_cell_trains_on_pooled_pixels_and_knows_its_data():
    cell = {"dataset": "synthetic", "shape": [1, 8, 8], "num_records": 200, "num_test": 50, "pool": 2, "num_users": 5}
    cell |= {"num_rounds": 2, "learning_rate": 0.01, "compressor": "sign", "seed": 1}
    rows = federated_cells.train_cell(cell, streams=STREAMS)
    assert rows == federated_cells.train_cell(cell, streams=STREAMS)
    assert rows[-1]["dimension"] == 10 * 16 + 10
    assert rows[-1]["records_per_user"] == 40
    assert "synthetic" in federated_cells.train_cell.data(cell)


# ------------------------------------------------------------------------------------------------------------- privacy


@pytest.mark.paper("fdp", "Algorithm 5")
@pytest.mark.parametrize(
    "mechanism",
    [
        BinomialMechanism.scaled(clip=1.0, scale_b=2.0, num_trials=1),
        Ternary(1.0, 2.0, 4.0),
        StoSign(1.0, 1.4),
        CLDP(1.0, 1.2),
        NoisySign(1.0, 0.8),
    ],
)
def test_no_two_vectors_of_the_ball_exceed_the_mu_of_a_round(mechanism):
    mu, rng = federated_privacy.round_mu(mechanism), STREAMS.numpy("vectors")
    assert mechanism.gdp_mu_upper(neighbouring="replace", sampling="none") <= mu * (1 + 1e-9)
    for _ in range(20):
        x, y = rng.normal(size=(2, 3))
        x, y = x / np.linalg.norm(x), -x / np.linalg.norm(x) if rng.random() < 0.5 else y / np.linalg.norm(y)
        logs = [np.zeros(1), np.zeros(1)]
        for a, b in zip(x, y):
            for i, value in enumerate((a, b)):
                logs[i] = (logs[i][:, None] + mechanism.log_masses(value)).reshape(-1)
        curve = Tradeoff.of_logs(*logs)
        assert curve.gdp_mu_upper <= mu * (1 + 1e-9)


@pytest.mark.paper("fdp", "Lemma 2")
def test_lemma_2_is_no_guarantee_and_the_ledger_is():
    mechanism = BinomialMechanism.scaled(clip=1.0, scale_b=2.0, num_trials=1)
    how = {"num_rounds": 300, "batch_size": 32, "num_records": 600, "delta": 1e-5}
    got = federated_privacy.user_privacy(mechanism, **how)
    assert got.gdp_mu_round == pytest.approx(1.348980, abs=5e-7)
    assert got.approximate_mu == pytest.approx(2.85845, abs=5e-6)
    assert got.epsilon == pytest.approx(11.85, abs=0.01)
    assert (got.guarantee.neighbouring, got.guarantee.sampling, got.num_rounds) == ("add_remove", "poisson", 300)
    fewer = federated_privacy.user_privacy(mechanism, **how, user_rate=0.5)
    assert 150 < fewer.num_rounds < 210
    assert fewer.epsilon < got.epsilon
    assert fewer.guarantee.delta + how["delta"] / 10 <= how["delta"] * (1 + 1e-12)  # the chance of more is paid for
    assert binom.sf(fewer.num_rounds, how["num_rounds"], 0.5) <= how["delta"] / 10
    nothing = federated_privacy.user_privacy(mechanism, **{**how, "num_rounds": 0})
    assert nothing.epsilon == 0
    assert nothing.approximate_mu == 0
    assert federated_privacy.user_privacy(Sign(), **how).epsilon == math.inf


def test_mechanisms_without_a_mu_say_so():
    for mechanism in (None, Sign(), Ternarize(1.0, 2.0), BinomialMechanism(1.0, 2, 0.0, 1.0)):
        assert federated_privacy.round_mu(mechanism) == math.inf
    for mechanism in (BinomialMechanism(1.0, 2, 0.2, 0.7), QuantisedBinomial(1.0, 5, 8, 0.5)):
        with pytest.raises(NotAvailable):
            federated_privacy.round_mu(mechanism)
    same = [
        BinomialMechanism.scaled(clip=1.0, scale_b=8.0, num_trials=16),
        StoSign(1.0, 2.0),
        Ternary(1.0, 1.6, 2.5),
        NoisySign(1.0, 2 / math.sqrt(2 * math.pi)),
    ]
    for mechanism in same:  # slope and noise of a vote at a small input, by differences
        x = 1e-4
        values = np.asarray(votes(mechanism, np.array(mechanism.symbols)), float)
        mean, low = (np.exp(mechanism.log_masses(s * x)) @ values for s in (1, -1))
        noise = math.sqrt(np.exp(mechanism.log_masses(0.0)) @ values**2)
        assert noise / ((mean - low) / (2 * x)) == pytest.approx(2.0, rel=1e-6)
        assert federated_privacy.effective_scale(mechanism) == pytest.approx(2.0, rel=1e-12)
    with pytest.raises(NotAvailable):
        federated_privacy.effective_scale(Sign())
    assert fdp_vectors.ternary_l2_mu(clip=1.0, scale_a=1.6, scale_b=2.5) == federated_privacy.round_mu(same[2])


@pytest.mark.paper("fdp", "Algorithm 2")
@pytest.mark.parametrize(("trials", "p_min", "p_max"), [(2, 0.1, 0.4), (16, 0.4, 0.6), (40, 0.6, 1.0), (41, 0.0, 0.3)])
def test_both_samplers_of_the_binomial_mechanism_have_its_masses(trials, p_min, p_max):
    mechanism, draws = BinomialMechanism(1.0, trials, p_min, p_max), 40_000
    for x in (-1.0, 0.35, 1.0):
        counts = np.bincount(mechanism.release(np.full(draws, x), rng=STREAMS.numpy(f"{x}")), minlength=trials + 1)
        want = draws * np.exp(mechanism.log_masses(x))
        assert counts.size == trials + 1
        assert (np.abs(counts - want) < 5 * np.sqrt(want) + 5).all()


def test_a_diverged_training_ends_with_the_round_and_the_learning_rate():
    ready = settings(learning_rate=1e308, final_learning_rate=None, num_rounds=4)
    with pytest.raises(
        FloatingPointError, match=r"in round \d with learning_rate=1e\+308; pass a smaller learning_rate"
    ):
        list(federated.train(ready, *data(60), num_classes=3, streams=STREAMS))
