"""Algorithm 1 and 4 in one process: batches, steps against their parts, portions, resumption, refusals."""

import json

import pytest
import torch
from stobatch_toys import data, settings, training, weights

from privrob.kinds import Streams
from privrob.learn.checkpoints import BadCheckpoint
from privrob.learn.stobatch import objectives, steps
from privrob.learn.stobatch.settings import StoBatchSettings
from privrob.learn.stobatch.training import Training, train


@pytest.mark.paper("stobatch", "Algorithm 1")
def test_batches_are_disjoint_and_stay():
    run = training(settings(num_steps=6), n=65)
    assert run.num_batches == 5
    images, labels = data(n=65)[:2]
    place = {tuple(row.flatten().tolist()): i for i, row in enumerate(images)}
    found = [[place[tuple(row.flatten().tolist())] for row in run.batch(b).images] for b in range(5)]
    assert len({i for batch in found for i in batch}) == 60  # five are in none
    assert all(torch.equal(run.batch(b).labels, labels[found[b]]) for b in range(5))
    assert found[0] != sorted(found[0])
    rows = list(run.rows())
    again = [[place[tuple(row.flatten().tolist())] for row in run.batch(b).images] for b in range(5)]
    assert again == found
    assert rows[-1]["unused_records"] == 5
    assert rows[-1]["epoch"] == pytest.approx(6 * 24 / 60)


@pytest.mark.paper("stobatch", "Algorithm 1")
def test_benign_batches_take_turns_and_the_next_one_is_attacked():
    run, seen = training(settings(num_steps=7)), []
    while run.step < 7:
        ((trainer, _),) = run.tasks()
        seen.append(run.roles(trainer))
        run.step += 1
    assert seen == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 1), (1, 2)]


@pytest.mark.paper("stobatch", "Algorithm 1")
@pytest.mark.parametrize("reconstruction", ["as_printed", "as_released"])
def test_a_step_descends_both_objectives_on_both_batches(reconstruction):
    made = settings(
        network="dense",
        network_options={"num_hidden": 6},
        reconstruction=reconstruction,
        optimizer="sgd",
        learning_rate=0.05,
        first_learning_rate=0.001,
        adversarial_weight=1.5,
        weight_decay=0.1,
    )
    run = training(made, dtype=torch.float64, shape=(5, 1, 1))
    network, before = run.network, weights(run).clone()
    task = run.tasks()[0]
    benign, attacked = (run.batch(b) for b in run.roles(task[0]))
    step = run.streams.child("steps", 0, "trainer", task[0])
    radius = 1.0 - step.numpy("radius").random()
    crafted = steps.craft(network, made, attacked, radius=radius, generator=step.child("worker", 0).torch("attack"))
    bars = [benign.images + benign.input_noise, crafted.images]
    network.train()
    hidden = [network.affine(x) + benign.hidden_noise for x in bars]
    losses = [
        objectives.taylor_cross_entropy(network.last(network.hidden(h)), p.labels)
        for h, p in zip(hidden, (benign, attacked))
    ]
    whole = objectives.adversarial_objective(*losses, batch_size=12, adversarial_weight=1.5)
    whole = whole - (run.noise.labels * network.last.weight).sum()
    linear = [m.weight for m in network.rest.modules() if isinstance(m, torch.nn.Linear)]
    whole = whole + 0.05 * sum(w.square().sum() for w in linear)
    rest = torch.autograd.grad(whole, list(network.rest.parameters()))
    network.eval().set_statistics("batch")
    function = objectives.RECONSTRUCTION[reconstruction]
    value = sum(function(network, x, hidden_noise=benign.hidden_noise).sum() for x in bars) / 24
    first = torch.autograd.grad(value, list(network.first.parameters()), allow_unused=True)
    want = [
        p.detach() - rate * (torch.zeros_like(p) if g is None else g)
        for p, g, rate in zip((*run.first, *run.rest), (*first, *rest), [0.001] * 2 + [0.05] * len(run.rest))
    ]
    run.buffers[0].zero_(), run.buffers[1].fill_(1.0), run.buffers[2].zero_(), run.buffers[3].fill_(1.0)
    run.advance()
    for parameter, wanted in zip((*run.first, *run.rest), want):
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-10, atol=1e-12)
    assert not torch.equal(before, weights(run))


@pytest.mark.paper("stobatch", "Algorithm 1")
def test_adversarial_examples_come_from_perturbed_records_and_share_out_the_ensemble():
    made = settings(noise="independent", attacks=("fgsm", "pgd"), attack_steps=3)
    run = training(made)
    part, generator = run.batch(1), torch.Generator().manual_seed(0)
    crafted = steps.craft(run.network, made, part, radius=0.25, generator=generator)
    bar = run.network.noisy(part.images, part.input_noise)
    moved = (crafted.images - bar).abs()
    assert moved.max() <= 0.25 + 1e-5
    whole = torch.isclose(moved, torch.tensor(0.25), atol=1e-5).flatten(1).double().mean(1)
    assert whole[:6].min() > 0.5  # fgsm goes all the way wherever there is a gradient and room
    assert whole[6:].max() < 0.5  # pgd starts at random
    assert torch.equal(crafted.labels, part.labels)
    assert crafted.input_noise is None
    clean = settings(adversarial_source="clean", attacks=("fgsm",))
    from_clean = steps.craft(run.network, clean, part, radius=0.25, generator=generator)
    assert (from_clean.images - part.images).abs().max() <= 0.25 + 1e-6
    assert from_clean.images.abs().max() <= 1
    assert not torch.allclose(from_clean.images, crafted.images, atol=0.5)


def test_the_range_of_adversarial_examples_is_that_of_noisy_images():
    run = training(settings(epsilon_features=1.0))  # noise far beyond ±10, where the first layer clips
    crafted = steps.craft(run.network, run.settings, run.batch(0), radius=0.5, generator=torch.Generator())
    assert crafted.images.max() == 10
    assert crafted.images.min() == -10


def test_crafting_leaves_the_network_as_it_was():
    run = training(settings())
    before = weights(run).clone()
    run.network.train()
    steps.craft(run.network, run.settings, run.batch(0), radius=0.5, generator=torch.Generator())
    assert torch.equal(weights(run), before)
    assert run.network.training
    assert all(m.training for m in run.network.modules())


def test_radii_are_uniform_and_never_zero():
    run = training(settings(radius_high=0.5))
    radii = [
        0.5 * (1.0 - run.streams.child("steps", t, "trainer", t % 5).numpy("radius").random()) for t in range(2000)
    ]
    assert min(radii) > 0
    assert max(radii) <= 0.5
    assert abs(sum(radii) / 2000 - 0.25) < 5 * 0.5 / (12 * 2000) ** 0.5
    rows = list(run.rows())
    assert rows[-1]["training_radius"] == pytest.approx(sum(radii[:4]) / 4)
    rows = list(training(settings(radius_high=0.5, random_radius=False)).rows())
    assert rows[-1]["training_radius"] == pytest.approx(0.5)


def test_portions_change_neither_noise_nor_objective():
    """Without batch norm a portion is a plain part of a sum (attacks are each record's own)."""
    changes = {"network_options": {"num_hidden": 6, "width": 5}, "attacks": ("ifgsm",), "network": "dense"}
    whole = training(settings(**changes), dtype=torch.float64, shape=(4, 1, 1))
    parts = training(settings(**changes, micro_batch_size=5), dtype=torch.float64, shape=(4, 1, 1))
    for run in (whole, parts):
        for module in run.network.modules():
            if hasattr(module, "statistics"):
                module.forward = lambda x, own=module: x * own.weight + own.bias
        run.apply(run.total())
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-9, atol=1e-11)
    assert torch.equal(parts.noise.labels, whole.noise.labels)
    assert parts.budget == whole.budget


def test_portions_never_hold_a_single_record():
    part = training(settings()).batch(0)
    for at_once in (2, 5, 7, 11, None):
        sizes = [len(p) for p in part.portions(at_once)]
        assert sum(sizes) == 12
        assert min(sizes) >= 2


@pytest.mark.parametrize("changes", [{}, {"noise": "independent", "optimizer": "sgd", "momentum": 0.9}])
def test_a_killed_training_goes_on_to_the_same_bits(tmp_path, changes):
    made = settings(num_steps=7, evaluate_every=3, evaluate_at=(2,), **changes)
    want = list(training(made).rows())
    file = tmp_path / "a file.pt"

    class Killed(Exception):
        pass

    def kill(step, _):
        if step == 6:
            raise Killed

    with pytest.raises(Killed):
        list(training(made, checkpoint=file, save_every=1, progress=kill).rows())
    run = training(made, checkpoint=file, save_every=1)
    assert run.step == 5  # two steps after the last row: their losses are kept too
    assert list(run.rows()) == want
    assert [r["step"] for r in want] == [2, 3, 6, 7]
    assert list(training(made, checkpoint=file).rows()) == want  # it is finished: nothing is done again
    json.dumps(want)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    file = tmp_path / "training.pt"
    list(training(settings(num_steps=1), checkpoint=file).rows())
    for other in ({"noise": "independent"}, {"psi": 3.0}):
        with pytest.raises(BadCheckpoint, match=next(iter(other))):
            training(settings(num_steps=1, **other), checkpoint=file)
    with pytest.raises(BadCheckpoint, match="data_sha256"):
        training(settings(num_steps=1), n=48, checkpoint=file)
    file.write_bytes(b"no checkpoint")
    with pytest.raises(BadCheckpoint, match="delete it"):
        training(settings(num_steps=1), checkpoint=file)


def test_training_learns_and_rows_repeat_the_switches():
    made = settings(num_steps=40, learning_rate=1e-2, noise="none", attack_steps=1, attacks=("fgsm",), radius_high=0.1)
    rows = list(training(made, n=240).rows())
    assert rows[-1]["benign_loss"] < 3 * 0.6931  # of a zero network
    assert rows[-1]["test_accuracy"] >= 0.5
    for name in ("noise", "adversarial_source", "batch_norm_evaluation", "psi", "reconstruction", "attacks"):
        assert name in rows[-1]
    assert rows[-1]["attacks"] == "fgsm"


def test_without_adversarial_weight_nothing_is_crafted(monkeypatch):
    monkeypatch.setattr(steps, "craft", None)
    rows = list(train(settings(adversarial_weight=0.0), *data(), num_classes=3, streams=Streams(0)))
    assert rows[-1]["adversarial_loss"] == 0
    assert rows[-1]["epoch"] == pytest.approx(4 * 12 / 60)


# ------------------------------------------------------------------------------------------------------- Algorithm 4


@pytest.mark.paper("stobatch", "Algorithm 4")
def test_trainers_own_two_batches_in_fixed_roles_and_are_picked_at_random():
    run = training(settings(pairing="pairs", num_steps=200), n=120, num_trainers=2)
    picked, owned = [], [b for i in range(5) for b in run.roles(i)]
    assert sorted(owned) == list(range(10))
    while run.step < 200:
        tasks = run.tasks()
        assert len({trainer for trainer, _ in tasks}) == 2
        picked += [trainer for trainer, _ in tasks]
        run.step += 1
    counts = [picked.count(i) for i in range(5)]
    assert all(abs(c - 80) < 5 * 7 for c in counts)  # 200 steps, probability 2/5: standard deviation 6.9


@pytest.mark.paper("stobatch", "Algorithm 4")
def test_the_server_takes_the_mean_of_the_trainers_gradients():
    made = settings(pairing="pairs", optimizer="sgd", learning_rate=0.1)
    run = training(made, n=120, dtype=torch.float64, num_trainers=3)
    tasks, before = run.tasks(), weights(run).clone()
    sent = [run.contribution(*task) for task in tasks]
    assert torch.equal(weights(run), before)  # trainers leave the server's weights alone
    run.advance()
    count = len(before) - sum(b.numel() for b in run.buffers)
    mean = sum(sent) / 3
    torch.testing.assert_close(weights(run)[:count], before[:count] - 0.1 * mean[:count], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(weights(run)[count:], mean[count:-4], rtol=1e-10, atol=1e-12)


@pytest.mark.paper("stobatch", "Algorithm 4")
def test_one_trainer_with_all_records_is_algorithm_one():
    made = settings(pairing="pairs")
    one, four = training(made, n=24), training(made, n=24, num_trainers=1)
    list(one.rows()), list(four.rows())
    assert torch.equal(weights(one), weights(four))


@pytest.mark.paper("stobatch", "Algorithm 4")
def test_workers_share_a_trainers_batches():
    run = training(settings(pairing="pairs", attacks=("ifgsm",)), num_trainers=1, num_workers=3)
    assert len(run.tasks()) == 3
    number = run.roles(run.tasks()[0][0])[0]
    alone = training(settings(pairing="pairs", attacks=("ifgsm",)), num_trainers=1).batch(number)
    parts = [run.batch(number, worker) for worker in range(3)]
    assert torch.equal(torch.cat([p.images for p in parts]), alone.images)
    assert {len(p) for p in parts} == {4}


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "mnst"}, "network must be one of"),
        ({"noise": "fixed"}, "noise must be one of"),
        ({"adversarial_source": "noisy"}, "adversarial_source"),
        ({"batch_norm_evaluation": "initial"}, "batch_norm_evaluation"),
        ({"label_noise": "released"}, "label_noise"),
        ({"reconstruction": "sound"}, "reconstruction"),
        ({"attacks": ()}, "attacks must be a list"),
        ({"attacks": ("cw",)}, "attacks"),
        ({"batch_size": 5}, "batch_size must be at least 6"),
        ({"batch_size": 1}, "batch_size"),
        ({"num_steps": -1}, "num_steps"),
        ({"psi": 0.0}, "psi"),
        ({"radius_high": 0.0}, "radius_high"),
        ({"micro_batch_size": 1}, "micro_batch_size"),
        ({"momentum": 0.9}, "momentum must be 0"),
        ({"epsilon": 1.0}, "either epsilon and budget_rule or"),
        ({"epsilon_labels": None}, "either epsilon and budget_rule or"),
        ({"epsilon_features": 0.0}, "epsilon_features"),
        ({"evaluate_at": (0,)}, "evaluate_at"),
        ({"device": "gpu"}, "device"),
    ],
)
def test_bad_settings_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        settings(**change)


def test_a_budget_below_the_rule_is_refused():
    with pytest.raises(ValueError, match="epsilon"):
        StoBatchSettings("mnist", num_steps=1, batch_size=12, epsilon=0.05, budget_rule="mnist")


@pytest.mark.parametrize(
    ("more", "change", "message"),
    [
        ({"n": 23}, {}, "at most half of the 23 records"),
        ({"num_trainers": 1}, {}, "pairing must be 'pairs'"),
        ({"num_trainers": 3}, {"pairing": "pairs"}, "num_trainers"),
        ({"num_workers": 2}, {}, "num_workers must be 1"),
        ({"num_trainers": 1, "num_workers": 5}, {"pairing": "pairs"}, "num_workers must divide"),
        ({"num_trainers": 1, "num_workers": 3}, {"pairing": "pairs"}, "parts of at least 6"),
    ],
)
def test_what_does_not_fit_the_records_is_refused(more, change, message):
    with pytest.raises(ValueError, match=message):
        training(settings(**change), **more)


def test_images_and_labels_must_fit():
    images, labels, test_images, test_labels = data()
    arguments = {"num_classes": 3, "streams": Streams(0)}
    with pytest.raises(TypeError, match="images must be a float tensor"):
        Training(settings(), images.int(), labels, test_images, test_labels, **arguments)
    with pytest.raises(ValueError, match="as many as"):
        Training(settings(), images[:50], labels, test_images, test_labels, **arguments)
    bad = images.clone()
    bad[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="finite"):
        Training(settings(), bad, labels, test_images, test_labels, **arguments)


def test_images_outside_of_the_range_are_refused():
    """Their honest ε would be wrong: 2D/b counts on a record that moves each pixel by 2 at most."""
    images, labels, *test = data()
    made, arguments = settings(noise="independent"), {"num_classes": 3, "streams": Streams(0)}
    with pytest.raises(ValueError, match=r"^images must lie in \[-1, 1\], got values in .*2 \* images - 1"):
        Training(made, 100 * images, labels, *test, **arguments)
    with pytest.raises(ValueError, match=r"^test_images must lie in \[-1, 1\]"):
        Training(made, images, labels, 100 * test[0], test[1], **arguments)


@pytest.mark.parametrize("shape", [(1, 9, 9), (3, 8, 8)])
def test_test_images_of_another_size_are_refused_before_training(shape):
    images, labels, test_images, test_labels = data()
    arguments = {"num_classes": 3, "streams": Streams(0)}
    for other in (torch.zeros(len(test_labels), *shape), test_images.double()):
        with pytest.raises(ValueError, match="test_images must have the shape and precision of images"):
            Training(settings(), images, labels, other, test_labels, **arguments)
    none = Training(settings(), images, labels, torch.zeros(0, *shape), test_labels[:0], **arguments)
    assert none.row()["test_accuracy"] is None


@pytest.mark.parametrize("steps", [1, 4])
def test_a_diverged_training_ends_with_the_step_and_the_learning_rate(steps):
    run = training(settings(learning_rate=1e38, optimizer="sgd", num_steps=steps))
    with pytest.raises(FloatingPointError, match=r"step \d .*learning_rate=1e\+38.*; pass a smaller learning_rate"):
        list(run.rows())
    assert not run.done


def test_both_learning_rates_are_named_where_there_are_two():
    run = training(settings(learning_rate=1e-3, first_learning_rate=1e38, first_optimizer="sgd", num_steps=3))
    with pytest.raises(FloatingPointError, match=r"learning_rate=0\.001, first_learning_rate=1e\+38"):
        list(run.rows())
