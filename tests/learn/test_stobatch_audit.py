"""The audit of StoBatch: attacks work where noise is shared, fail where it is not, and never exceed what is exact."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from privrob.accounting import pairs
from privrob.kinds import Streams
from privrob.learn import stobatch_audit as audit
from privrob.learn import stobatch_audit_cells as cells
from privrob.learn import stobatch_audit_inputs as inputs
from privrob.learn import stobatch_audit_labels as labels
from privrob.learn import stobatch_audit_repairs as repairs
from privrob.learn.stobatch_audit_model import Toy, Trainings, draw, taylor_loss
from privrob.learn.stobatch_audit_plain import train_alone


def measure(name, *, num_trials, seed=0, **settings):
    cell = {"attack": name, "num_trials": num_trials, "failure_prob": 0.05, **settings}
    return cells.audit_cell(cell, streams=Streams(seed, name))[0]


# ---------------------------------------------------------------------------------------------- what every row must say


def test_every_attack_says_whose_adversary_it_is():
    assert set(cells.RELEASES) | {name for _, _, queries in cells.MODELS.values() for name, _ in queries} == set(
        audit.ABOUT
    )
    for name, about in audit.ABOUT.items():
        assert all(getattr(about, field.name) for field in fields(about))
        assert about.sees.startswith("Sees ")
        assert about.sees.count(". ") == 0  # one sentence
        if about.item != "none":
            assert "adversary" in about.sees, name


@pytest.mark.parametrize("name", list(cells.RELEASES))
def test_no_lower_bound_exceeds_the_exact_epsilon(name):
    delta = {"delta": 1e-5} if name == "R3" else {}
    row = measure(name, num_trials=60, **delta)
    assert 0 <= row["epsilon_lower"] <= row["honest_epsilon"]
    assert row["trials_p"] == row["trials_q"] == 60
    assert row["claimed_epsilon"] > 0


# ---------------------------------------------------------------------------------------------------------- the inputs


@pytest.mark.paper("stobatch", "Lemma 3")
def test_shared_noise_gives_a_record_away_and_independent_noise_does_not():
    shared, own = (measure("A", num_trials=150, noise=noise) for noise in ("shared", "independent"))
    assert (shared["hits_p"], shared["hits_q"]) == (150, 0)
    assert shared["epsilon_lower"] > 100 * shared["claimed_epsilon"]
    assert own["hits_p"] == own["hits_q"] == 0
    assert own["epsilon_lower"] == 0


@pytest.mark.paper("stobatch", "Equation 16")
def test_one_known_record_opens_all_batches_under_shared_noise_only():
    rng = np.random.default_rng(1)
    images = rng.uniform(-1, 1, size=(6, 50))
    batch = inputs.perturbed(images, scale=32.0, noise="shared", rng=rng)
    assert np.abs(inputs.opened(batch, index=2, record=images[2]) - images).max() < 1e-12  # rounding at size 200
    batch = inputs.perturbed(images, scale=32.0, noise="independent", rng=rng)
    assert np.abs(inputs.opened(batch, index=2, record=images[2]) - images)[[0, 1, 3, 4, 5]].mean() > 10


@pytest.mark.paper("stobatch", "Lemma 3")
def test_independent_noise_is_worth_what_the_exact_pair_says():
    attack = inputs.OneRecord(num_differing=120)
    assert attack.honest_epsilon == pytest.approx(240 / attack.budget.input_scale, rel=1e-12)
    row = measure("B", num_trials=8000, num_differing=120, seed=3)
    assert 0.5 < row["epsilon_lower"] <= attack.honest_epsilon  # larger runs prove 1.5
    loss = attack.scores(True, num_trials=2000, rng=np.random.default_rng(0))
    ratio = attack.budget.input_scale / 2
    kl = 120 * (1 / ratio + math.exp(-1 / ratio) - 1)  # of one Laplace pair, closed form, times pixels
    assert abs(loss.mean() - kl) < 5 * loss.std() / 2000**0.5


def test_a_threshold_lies_in_the_middle_of_a_gap():
    limits = {"delta": 0.0, "failure_prob": 0.05, "num_trials": 100}
    assert audit.best_threshold(np.arange(10.0, 60.0), np.arange(-50.0, 1.0), **limits) == 5.0
    assert audit.best_threshold(np.ones(50), -np.ones(50), **limits) == 0.0


@pytest.mark.paper("stobatch", "Result 3")
def test_the_sum_of_one_batch_keeps_the_claim_on_mnist_but_not_on_cifar10():
    assert inputs.BatchSum().honest_epsilon < inputs.BatchSum().claimed_epsilon
    wide = inputs.BatchSum(dataset="cifar10", epsilon=2.0)
    assert wide.honest_epsilon == pytest.approx(wide.claimed_epsilon * 2 * 2352 / 1851, rel=1e-12)


@pytest.mark.paper("stobatch", "parallel composition")
def test_two_sums_under_one_noise_have_no_privacy_and_a_noise_each_repairs_that():
    assert measure("S2", num_trials=100)["hits_p"] == 100
    assert measure("S2", num_trials=100)["hits_q"] == 0
    assert inputs.BatchSum(batches=2, noise="independent").honest_epsilon == inputs.BatchSum().honest_epsilon
    assert measure("S3", num_trials=500)["epsilon_lower"] == 0


@pytest.mark.paper("stobatch", "Appendix N")
def test_a_model_that_carries_the_noise_undoes_the_sum():
    row = measure("S4", num_trials=100)
    assert (row["hits_p"], row["hits_q"]) == (100, 0)


@pytest.mark.paper("stobatch", "Theorem 1")
def test_the_gradient_leaves_rank_two_for_the_right_data_set_only():
    row = measure("C", num_trials=30, batch_size=300)
    assert (row["hits_p"], row["hits_q"]) == (30, 0)
    assert measure("C", num_trials=5, batch_size=300, noise="independent")["hits_p"] == 0


@pytest.mark.paper("stobatch", "Equation 19")
def test_the_attacked_gradient_is_the_documents():
    attack = inputs.FeatureGradient(batch_size=7, num_inputs=4, num_features=3)
    images, _, theta = attack.data(np.random.default_rng(0))
    weights = torch.tensor(theta, requires_grad=True)
    x = torch.tensor(images)
    h = (x @ weights).detach()
    reconstruction = (np.log(2) + (h @ weights.T) * (0.5 - x)).sum()  # R̃ with h held
    reconstruction.backward()
    np.testing.assert_allclose(attack.gradient(images, theta), weights.grad.numpy(), rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------- the labels


@pytest.mark.paper("stobatch", "Algorithm 1")
def test_one_noise_for_all_classes_tells_the_label_and_one_for_each_does_not():
    assert measure("D", num_trials=100)["hits_p"] == 100
    assert measure("D", num_trials=100)["hits_q"] == 0
    assert labels.LabelCoefficients().honest_epsilon == labels.LabelCoefficients().claimed_epsilon


@pytest.mark.paper("stobatch", "Lemma 4")
def test_the_coefficients_loss_is_at_most_epsilon_and_gets_there():
    attack = labels.LabelCoefficients(epsilon_labels=1.5, num_hidden=1)
    loss = attack.scores(True, num_trials=4000, rng=np.random.default_rng(0))
    assert loss.max() == pytest.approx(1.5, rel=1e-9)
    assert loss.max() <= 1.5 * (1 + 1e-12)
    twice = labels.LabelCoefficients(epsilon_labels=1.5, num_hidden=1, steps="two_with_fresh_draws")
    assert 2.4 < twice.scores(True, num_trials=4000, rng=np.random.default_rng(0)).max() <= 3 * (1 + 1e-12)


@pytest.mark.paper("stobatch", "Section 3.2, (1)")
def test_a_second_step_with_the_same_noise_tells_the_label():
    row = measure("T", num_trials=100)
    assert (row["hits_p"], row["hits_q"]) == (100, 0)
    assert labels.LabelCoefficients(steps="two_with_one_draw").honest_epsilon == math.inf


@pytest.mark.paper("stobatch", "Theorem 3")
def test_gradients_below_the_last_layer_read_labels_without_noise():
    row = measure("E", num_trials=30)
    assert (row["hits_p"], row["hits_q"]) == (30, 0)


@pytest.mark.paper("stobatch", "Theorem 3")
def test_the_lower_gradient_is_that_of_the_perturbed_loss():
    attack = labels.LowerGradient(batch_size=9, num_inputs=4, num_hidden=5, num_classes=3)
    rng = np.random.default_rng(0)
    below, last = rng.uniform(-1, 1, size=(9, 4)), rng.normal(size=(5, 3))
    weights, chi = rng.normal(size=(4, 5)), rng.laplace(scale=100.0, size=(5, 3))
    classes = rng.integers(0, 3, size=9)
    v, w = (torch.tensor(a, requires_grad=True) for a in (weights, last))
    hidden = (torch.tensor(below) @ v).clamp(-1, 1)
    targets = torch.nn.functional.one_hot(torch.tensor(classes), 3).double()
    ((taylor_loss(hidden @ w, targets).sum() - (torch.tensor(chi) * w).sum()) / 9).backward()
    got = attack.gradient(below, weights, last, np.eye(3)[classes])
    np.testing.assert_allclose(got, v.grad.numpy(), rtol=1e-10, atol=1e-13)  # χ₃ is not in it


# --------------------------------------------------------------------------------------------------------- the repairs


def test_randomised_response_is_exact_and_the_attack_comes_close():
    row = measure("R1", num_trials=400_000, epsilon_labels=1.0)
    assert row["honest_epsilon"] == pytest.approx(1.0, rel=1e-12)
    assert 0.95 < row["epsilon_lower"] <= 1.0  # 95 % bounds of 400,000 draws are within 2 %
    reported = repairs.randomised_response(np.full(60_000, 3), epsilon=1.0, num_classes=5, rng=np.random.default_rng(0))
    shares = np.bincount(reported, minlength=5) / 60_000
    assert np.abs(shares[3] - math.e / (math.e + 4)) < 5 * 0.5 / 60_000**0.5
    assert np.ptp(np.delete(shares, 3)) < 10 * 0.4 / 60_000**0.5


def test_noise_for_a_whole_record_is_exactly_the_claim():
    record = repairs.CalibratedRecord()
    pair = pairs.laplace(scale_ratio=record.scale / 2)
    assert pairs.compose([(pair, 784)], delta=0.0).upper == pytest.approx(record.claimed_epsilon, rel=1e-9)
    assert record.scale > 700 * inputs.OneRecord().budget.input_scale  # what a record costs


def test_the_noise_of_dpsgd_gives_the_claimed_epsilon_at_delta():
    attack = repairs.NoisyGradients(epsilon=1.0, num_steps=9)
    assert attack.honest_epsilon == pytest.approx(1.0, abs=1e-8)
    row = measure("R3", num_trials=40_000, epsilon=1.0, num_steps=9, delta=1e-5)
    assert 0.2 < row["epsilon_lower"] <= 1.0


# ----------------------------------------------------------------------------------------------------- the final model


@pytest.mark.paper("stobatch", "Algorithm 1")
@pytest.mark.parametrize("name", list(cells.MODELS))
def test_all_trainings_at_once_are_the_trainings_one_by_one(name):
    fixed, pair, _ = cells.MODELS[name]
    toy = audit.of_settings(Toy, {"num_steps": 20, "batch_size": 16} | fixed)
    images, classes, _ = cells.worst_case(toy, present=True, **pair)
    draws = draw(toy, num_trials=2, streams=Streams(0, name), dtype=torch.float64)
    together = Trainings(toy, images, classes, draws).run()
    for i in range(2):
        alone = train_alone(toy, images, classes, draws.of_trial(i))
        for ours, other, start in zip(together.weights, alone.values(), (draws.theta, draws.hidden, draws.last)):
            # inputs are offset by noise of 20: normalisation loses some of 16 digits at each step
            torch.testing.assert_close(ours[i], other, rtol=0, atol=1e-5)
            moved = (other - start[i]).abs().max()
            if toy.feature_rate or start is not draws.theta:
                assert moved > 1e-3


@pytest.mark.paper("stobatch", "Theorem 4")
def test_a_label_query_tells_the_canarys_label_at_once_where_noise_is_shared():
    small = {"attack": "F1", "num_trials": 16, "num_steps": 300, "batch_size": 40}
    (row,) = cells.rows_of_models(cells.train_cell(small, streams=Streams(4)), failure_prob=0.05)
    assert row["claimed_epsilon"] == pytest.approx(0.2, abs=1e-6)
    assert row["hits_p"] >= 14
    assert row["hits_q"] <= 2
    assert row["epsilon_lower"] > row["claimed_epsilon"]


def test_shared_noise_leaves_the_deployed_model_as_if_there_were_none():
    toy = Toy(num_steps=0)
    images, _, canary = cells.worst_case(toy, present=True, neighbour="other_label", level=0.0)
    classes = torch.arange(200) % 2
    draws = draw(toy, num_trials=4, streams=Streams(0), dtype=torch.float64)
    noisy = Trainings(toy, images, classes, draws).logits(canary, query="stored")
    quiet = draw(Toy(num_steps=0, noise="none"), num_trials=4, streams=Streams(0), dtype=torch.float64)
    clean = Trainings(Toy(num_steps=0, noise="none"), images, classes, quiet).logits(canary, query="clean")
    torch.testing.assert_close(noisy, clean, rtol=1e-9, atol=1e-9)


@pytest.mark.paper("stobatch", "Equation 7")
def test_adversarial_examples_read_no_label_and_stay_in_their_ball():
    toy = Toy(noise="shared", adversarial=True, num_batches=2, num_steps=1)
    images, classes, _ = cells.worst_case(toy, present=True, neighbour="other_label", level=0.0)
    draws = draw(toy, num_trials=2, streams=Streams(0), dtype=torch.float64)
    crafted = [Trainings(toy, images, y, draws)._fgsm(slice(200, 400)) for y in (classes, 1 - classes)]
    assert torch.equal(*crafted)
    moved = (crafted[0] - Trainings(toy, images, classes, draws).perturbed[:, :, 200:]).abs().amax(dim=(1, 2))
    torch.testing.assert_close(moved, draws.radii[:, 0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise": "none at all"}, "noise must be one of"),
        ({"epsilon": 0.1}, "epsilon must lie in"),
        ({"batch_size": 1}, "batch_size must be an integer"),
    ],
)
def test_settings_of_the_toy_are_checked(change, words):
    with pytest.raises(ValueError, match=words):
        Toy(**change)


def test_unknown_attacks_and_queries_are_refused():
    with pytest.raises(ValueError, match="attack must be one of"):
        measure("Z", num_trials=10)
    toy = Toy(noise="independent", num_steps=0)
    images, classes, canary = cells.worst_case(toy, present=True, neighbour="absent", level=0.0)
    trained = Trainings(toy, images, classes, draw(toy, num_trials=1, streams=Streams(0)))
    with pytest.raises(ValueError, match="own_copy"):
        trained.logits(canary, query="stored")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("A", {"noise": "shraed"}, "noise must be one of .* did you mean 'shared'"),  # was measured as independent
        ("S1", {"noise": "own"}, "noise must be one of"),
        ("C", {"noise": "own"}, "noise must be one of"),
        ("A", {"clip": 0.0}, "clip must"),
        ("A", {"num_differing": 785}, "num_differing must"),
        ("B", {"num_differing": 0}, "num_differing must"),
        ("B", {"scale": -1.0}, "scale must"),
        ("S1", {"batches": 3}, "batches must"),  # was priced as one
        ("C", {"batch_size": 0}, "batch_size must"),
    ],
)
def test_an_attack_refuses_what_it_does_not_know(name, changes, message):
    with pytest.raises(ValueError, match=message):
        measure(name, num_trials=4, **changes)
