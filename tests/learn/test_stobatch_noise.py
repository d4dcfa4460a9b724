"""StoBatch's noise: scales, who shares which draw, and what a row says about privacy."""

import math

import pytest
import torch
from stobatch_toys import settings, training

from privrob.accounting import functional_budget
from privrob.learn.stobatch.noise import laplace, theta_norm


def scale_of(values):
    """The maximum-likelihood scale of Laplace draws about 0, and its standard error over the scale."""
    return values.abs().mean().item(), 1 / math.sqrt(values.numel())


def test_draws_are_laplace_of_the_scale():
    drawn = laplace((200_000,), scale=3.0, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scale, error = scale_of(drawn)
    assert abs(scale / 3 - 1) < 5 * error
    assert abs(drawn.mean().item()) < 5 * 3 * math.sqrt(2 / 200_000)
    beyond = (drawn > 6.0).double().mean().item()  # P(X > 2b) = e^-2 / 2
    assert abs(beyond - math.exp(-2) / 2) < 5 * math.sqrt(0.07 / 200_000)


@pytest.mark.paper("stobatch", "Algorithm 1")
def test_shared_noise_is_one_draw_for_every_record_and_batch():
    run = training(settings(noise="shared"))
    parts = [run.batch(number) for number in range(run.num_batches)]
    assert all(p.input_noise.shape == (1, 1, 8, 8) and p.hidden_noise.shape == (1, 32, 4, 4) for p in parts)
    assert all(torch.equal(p.input_noise, parts[0].input_noise) for p in parts)
    scale, error = scale_of(parts[0].hidden_noise)
    assert abs(scale / run.budget.hidden_scale - 1) < 5 * error


@pytest.mark.paper("stobatch", "Algorithm 1")
def test_independent_noise_is_one_draw_a_record_the_same_at_every_step():
    run = training(settings(noise="independent", num_steps=6))
    before = {n: (run.batch(n).input_noise.clone(), run.batch(n).hidden_noise.clone()) for n in range(run.num_batches)}
    inputs = torch.cat([x for x, _ in before.values()])
    assert inputs.shape == (60, 1, 8, 8)
    assert len({tuple(row.flatten().tolist()) for row in inputs}) == 60
    scale, error = scale_of(inputs)
    assert abs(scale / run.budget.input_scale - 1) < 5 * error
    flat = inputs.flatten(1) / run.budget.input_scale
    between = (flat @ flat.T / 64)[~torch.eye(60, dtype=torch.bool)]
    assert abs(between.mean().item()) < 5 * 2 / math.sqrt(64 * 60 * 59 / 2)
    list(run.rows())
    run.noise.kept.clear()  # drawn again, the same
    for number, (x, h) in before.items():
        assert torch.equal(run.batch(number).input_noise, x)
        assert torch.equal(run.batch(number).hidden_noise, h)


def test_draws_that_do_not_fit_are_drawn_again_the_same():
    run = training(settings(noise="independent"))
    run.noise.room = 1
    first = run.batch(0).hidden_noise.clone()
    run.batch(1), run.batch(2)
    assert len(run.noise.kept) == 0
    assert torch.equal(run.batch(0).hidden_noise, first)


@pytest.mark.paper("stobatch", "Algorithm 1")
def test_the_scale_is_of_the_nominal_batch_whatever_the_real_one():
    want = functional_budget.split("mnist", 1.0).input_scale
    about = {"epsilon": 1.0, "budget_rule": "mnist", "epsilon_features": None, "epsilon_labels": None}
    about |= {"network_options": None, "nominal_batch_size": 2499}
    for change in ({}, {"micro_batch_size": 2}, {"batch_size": 6}):
        run = training(settings(**about, **change), n=30, shape=(1, 28, 28))
        assert run.budget.input_scale == pytest.approx(want, rel=1e-12)
        assert run.noise.hidden_scale == pytest.approx(2 * want, rel=1e-12)
        scale, error = scale_of(run.noise.stored_inputs)
        assert abs(scale / want - 1) < 5 * error
    smaller = training(settings(**{**about, "nominal_batch_size": None}), n=30, shape=(1, 28, 28))
    assert smaller.noise.input_scale > 100 * want


@pytest.mark.paper("stobatch", "Theorem 3")
def test_label_noise_has_a_vector_a_class_unless_as_printed():
    run = training(settings())
    assert run.noise.labels.shape == (3, 12)
    assert len({tuple(row.tolist()) for row in run.noise.labels}) == 3
    printed = training(settings(label_noise="as_printed")).noise.labels
    assert printed.shape == (3, 12)
    assert torch.equal(printed[0], printed[2])
    assert training(settings(label_noise="none")).noise.labels is None
    many = training(settings(network_options={"num_hidden": 5000})).noise.labels
    scale, error = scale_of(many)
    assert abs(scale / (2 * 5000 / (12 * 5.0)) - 1) < 5 * error


@pytest.mark.paper("stobatch", "Appendix N")
def test_redrawn_noise_lies_about_the_stored_draw_with_less_of_its_scale():
    run, generator = training(settings()), torch.Generator().manual_seed(1)
    for layer, stored, scale in (
        ("inputs", run.noise.stored_inputs, run.budget.input_scale),
        ("hidden", run.noise.stored_hidden, run.budget.hidden_scale),
    ):
        drawn = run.noise.redrawn(layer, 200, generator=generator, psi=4.0) - stored
        assert drawn.shape == (200, *stored.shape[1:])
        found, error = scale_of(drawn)
        assert abs(found / (scale / 4) - 1) < 5 * error
    assert run.noise.query_scales(4.0) == (run.budget.input_scale / 4, run.budget.hidden_scale / 4)
    alone = training(settings(noise="independent")).noise
    found, error = scale_of(alone.redrawn("inputs", 200, generator=generator, psi=4.0))
    assert abs(found / alone.input_scale - 1) < 5 * error
    assert training(settings(noise="none")).noise.redrawn("inputs", 2, generator=generator, psi=1.0) is None


def test_one_value_for_all_colours_as_released():
    run = training(settings(network="cifar10", colour_noise="same", network_options=None), n=24, shape=(3, 4, 4))
    noise = run.noise.stored_inputs
    assert noise.shape == (1, 3, 4, 4)
    assert torch.equal(noise[:, 0], noise[:, 2])


@pytest.mark.paper("stobatch", "Theorem 4")
def test_a_row_says_what_is_claimed_beside_what_is_true():
    def last(**changes):
        return list(training(settings(num_steps=0, **changes)).rows())[-1]

    run = training(settings())
    shared, independent = last(), last(noise="independent")
    assert shared["honest_epsilon"] == independent["honest_epsilon"] == math.inf  # labels have no guarantee
    assert shared["honest_epsilon_inputs"] == math.inf
    assert independent["honest_epsilon_inputs"] == pytest.approx(2 * 64 / run.budget.input_scale)
    assert last(noise="independent", adversarial_source="clean")["honest_epsilon_inputs"] == math.inf
    assert math.isfinite(
        last(noise="independent", adversarial_source="clean", adversarial_weight=0.0)["honest_epsilon_inputs"]
    )
    assert shared["claimed_epsilon"] == independent["claimed_epsilon"] == shared["claimed_epsilon_now"]
    assert last(noise="none")["claimed_epsilon"] == math.inf
    rule = {"epsilon_features": None, "epsilon_labels": None, "budget_rule": "mnist", "epsilon": 1.0}
    assert last(**rule)["claimed_epsilon"] == 1.0
    assert last(**rule)["claimed_epsilon_now"] > 1.0  # the true norm of θ₁ is larger than the one released


def test_the_norm_of_the_first_layer_is_the_operator_norm_from_l1_to_l1():
    run = training(settings(network="dense", network_options={"num_hidden": 4}), n=30, shape=(6, 1, 1))
    unit = torch.eye(6).reshape(6, 6, 1, 1)
    columns = run.network.affine(unit).abs().sum(1)  # where each unit vector goes, in l1
    assert theta_norm(run.network, run.network.first.weight) == pytest.approx(columns.max().item(), rel=1e-6)
