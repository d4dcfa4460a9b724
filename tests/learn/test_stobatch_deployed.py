"""What is served: the five names of the protocol, and draws whose mean is the expectation."""

import numpy as np
import pytest
import torch
from stobatch_toys import data, settings, training

from privrob.learn.stobatch.deployed import Deployed
from privrob.learn.stobatch.networks import BatchNorm

TEST = data()[2]


def served(made=None, **changes):
    run = training(made or settings(num_steps=2, **changes))
    list(run.rows())
    return run


def test_shared_noise_serves_the_network_through_its_stored_draw():
    run = served()
    deployed = run.deployed()
    assert isinstance(deployed, Deployed)
    network = run.network.eval().set_statistics("running")
    noises = {"input_noise": run.noise.stored_inputs, "hidden_noise": run.noise.stored_hidden}
    torch.testing.assert_close(deployed.fixed(TEST), network(TEST, **noises))
    torch.testing.assert_close(deployed.surrogate(TEST), network(TEST))
    torch.testing.assert_close(deployed.predict_logits(TEST), deployed.fixed(TEST).detach())
    assert not torch.allclose(deployed.fixed(TEST), deployed.surrogate(TEST), atol=1e-2)
    assert not deployed.predict_logits(TEST).requires_grad


def test_fresh_noise_is_another_at_each_call_and_for_each_image():
    run = served(psi=1.0)
    deployed, generator = run.deployed(), torch.Generator().manual_seed(0)
    same = TEST[:1].expand(6, -1, -1, -1)
    one = deployed.fresh(same, generator=generator)
    assert not torch.allclose(one[0], one[1], atol=1e-3)
    assert not torch.allclose(one, deployed.fresh(same, generator=generator), atol=1e-3)
    again = torch.Generator().manual_seed(0)
    assert torch.equal(one, deployed.fresh(same, generator=again))


@pytest.mark.paper("stobatch", "Appendix N")
def test_a_large_psi_stays_at_the_stored_draw():
    run = served(psi=1e6)
    deployed = run.deployed()
    near = deployed.fresh(TEST, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(near, deployed.fixed(TEST), rtol=1e-2, atol=1e-3)


def test_independent_noise_has_nothing_stored_for_queries():
    run = served(noise="independent")
    deployed = run.deployed()
    torch.testing.assert_close(deployed.fixed(TEST), deployed.surrogate(TEST))
    assert not torch.allclose(deployed.predict_logits(TEST), deployed.surrogate(TEST), atol=1e-2)
    torch.testing.assert_close(run.deployed().predict_logits(TEST), run.deployed().predict_logits(TEST))
    quiet = run.deployed(query_noise="none")
    torch.testing.assert_close(quiet.predict_logits(TEST), deployed.surrogate(TEST).detach())


def test_statistics_of_batch_norm_are_as_switched():
    run = served()
    batch = run.deployed(batch_norm_evaluation="batch")
    assert not torch.allclose(batch.fixed(TEST)[:5], batch.fixed(TEST[:5]), atol=1e-3)
    running = run.deployed(batch_norm_evaluation="running")
    torch.testing.assert_close(running.fixed(TEST)[:5], running.fixed(TEST[:5]), rtol=1e-4, atol=1e-5)
    untrained = run.deployed(surrogate_statistics="initial", batch_norm_evaluation="running")
    assert not torch.allclose(untrained.surrogate(TEST), running.surrogate(TEST), atol=1e-3)
    torch.testing.assert_close(untrained.fixed(TEST), running.fixed(TEST))
    modes = {(m.training, m.statistics) for m in run.network.modules() if isinstance(m, BatchNorm)}
    assert modes == {(True, "running")}  # as training left it


def test_settled_statistics_are_the_mean_of_the_training_batches_through_their_noise():
    run = served(settings(num_steps=3, learning_rate=0.02))
    norm = next(m for m in run.network.modules() if isinstance(m, BatchNorm))
    seen = []
    hook = norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    run.settled_at = None
    run.settle()
    hook.remove()
    assert len(seen) == min(run.num_batches, 20)
    axes = [0, *range(2, seen[0].ndim)]
    means = torch.stack([x.mean(axes) for x in seen]).mean(0)
    variances = torch.stack([x.var(axes) for x in seen]).mean(0)
    torch.testing.assert_close(norm.running_mean, means, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, variances, rtol=1e-4, atol=1e-5)
    assert norm.momentum == BatchNorm.momentum
    assert "momentum" not in vars(norm)


def test_settling_changes_no_training_and_can_be_taken_back():
    how = {"num_steps": 4, "evaluate_every": 1}
    runs = {k: served(settings(batch_norm_evaluation=k, **how)) for k in ("settled", "running")}
    one, other = runs.values()
    for mine, theirs in zip((*one.first, *one.rest), (*other.first, *other.rest)):
        assert torch.equal(mine, theirs)
    along = [b.clone() for b in other.buffers]
    other.deployed(batch_norm_evaluation="settled")
    assert not all(torch.equal(a, b) for a, b in zip(along, other.buffers))
    other.deployed()
    assert all(torch.equal(a, b) for a, b in zip(along, other.buffers))


@pytest.mark.paper("stobatch", "Algorithm 3")
@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_draws_average_to_the_product_of_two_expectations(noise):
    run = served(noise=noise, psi=1.5)
    deployed, generator = run.deployed(), torch.Generator().manual_seed(1)
    images = TEST[:4]
    scores = deployed.draws(images, num_draws=1500, generator=generator)
    assert scores.shape == (4, 1500, 3)
    assert scores.dtype == np.float64
    assert scores.min() >= 0
    assert scores.sum(2).max() <= 1 + 1e-9
    network = run.network.eval().set_statistics("running")
    expected = []
    for layer in ("inputs", "hidden"):  # each mechanism by itself, other draws
        many = images.repeat(1500, 1, 1, 1)
        drawn = run.noise.redrawn(layer, len(many), generator=generator, psi=1.5)
        noises = {"input_noise": run.noise.stored_inputs, "hidden_noise": run.noise.stored_hidden}
        noises["input_noise" if layer == "inputs" else "hidden_noise"] = drawn
        with torch.no_grad():
            expected.append(network(many, **noises).double().softmax(1).reshape(1500, 4, 3).mean(0).numpy())
    error = scores.std(1) / np.sqrt(1500) + 2 * 0.5 / np.sqrt(1500) * expected[0].max()
    assert (np.abs(scores.mean(1) - expected[0] * expected[1]) < 5 * error).all()


def test_draws_do_not_depend_on_how_many_go_at_once_but_for_their_number():
    run = served()
    deployed = run.deployed(at_once=8)
    one = deployed.draws(TEST[:4], num_draws=5, generator=torch.Generator().manual_seed(1))
    assert one.shape == (4, 5, 3)
    assert len(np.unique(one[0, :, 0])) == 5
    none = served(noise="none").deployed().draws(TEST[:4], num_draws=3, generator=torch.Generator())
    assert (none[:, 0] == none[:, 2]).all()


def test_gradients_reach_the_images_through_all_three():
    run = served()
    deployed = run.deployed()
    for model in (deployed.surrogate, deployed.fixed, lambda x: deployed.fresh(x, generator=torch.Generator())):
        point = TEST[:3].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(point).sum(), point)
        assert gradient.abs().max() > 0


def test_no_images_no_accuracy():
    deployed = served().deployed()
    assert deployed.accuracy(TEST[:0], torch.zeros(0, dtype=torch.long)) is None
    assert deployed.predict_logits(TEST[:0]).shape == (0, 3)
