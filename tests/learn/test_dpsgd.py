"""DP-SGD: the slide's algorithm line by line, Poisson batches, resumption to the bit, and refusals before any work."""

import math
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional
from trainings import data, settings

from privrob.kinds import Streams
from privrob.learn import dpsgd, models
from privrob.learn.batches import poisson_batch
from privrob.learn.cells import train_cell
from privrob.learn.dpsgd import train

SLIDE = ("dplearn", "Training a machine learning model with DP-SGD")


def run(chosen, tensors=None, *, seed=0, num_classes=3, **options):
    return list(train(chosen, *(tensors or data()), num_classes=num_classes, streams=Streams(seed, "test"), **options))


def training(chosen, tensors=None, *, seed=0, num_classes=3):
    """The object behind a training, after all its steps: for its weights."""
    tensors = tensors or data()
    state = dpsgd.Training(chosen, *tensors, num_classes, Streams(seed, "test"))
    list(state.rows())
    return state


def flat(parameters):
    return torch.cat([p.detach().flatten() for p in parameters])


# ---------------------------------------------------------------------------------------------------------- algorithm


@pytest.mark.paper(*SLIDE)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("model", "shape"), [("logistic", (1, 6, 6)), ("tutorial_cnn", (2, 16, 16))])
def test_training_is_the_slides_algorithm_record_by_record(model, shape, momentum):
    tensors = data(n=23, shape=shape, dtype=torch.float64)
    chosen = settings(model=model, num_steps=6, momentum=momentum, max_grad_norm=0.7)
    got = training(chosen, tensors)

    streams, (images, labels, _, _) = Streams(0, "test"), tensors
    net = models.build(model, in_shape=shape, num_classes=3, generator=streams.torch("init")).double()
    rng, noise = streams.numpy("batches"), streams.torch("noise")
    parameters = list(net.parameters())
    velocity = torch.zeros_like(flat(parameters))
    for _ in range(6):
        total = torch.zeros_like(velocity)
        for i in poisson_batch(rng, num_records=23, sample_rate=0.3):
            loss = functional.cross_entropy(net(images[i : i + 1]), labels[i : i + 1])
            gradient = flat(torch.autograd.grad(loss, parameters))
            total += gradient / max(1.0, float(gradient.norm()) / 0.7)
        total += torch.randn(len(total), generator=noise, dtype=torch.float64) * 0.8 * 0.7
        velocity = momentum * velocity + total / (0.3 * 23)
        with torch.no_grad():
            for p, step in zip(parameters, velocity.split([p.numel() for p in parameters]), strict=True):
                p -= 0.5 * step.view_as(p)
    torch.testing.assert_close(flat(got.parameters), flat(parameters), rtol=1e-10, atol=1e-12)


@pytest.mark.paper(*SLIDE)
@pytest.mark.parametrize("bound", [1.0, 10.0])
@pytest.mark.parametrize("n", [64, 640])
def test_noise_has_the_configured_size_whatever_is_drawn(bound, n):
    images, labels, *rest = data(n=n)
    chosen = settings(sample_rate=64 / n, num_steps=60, max_grad_norm=bound, noise_multiplier=1.0, learning_rate=1.0)
    state = dpsgd.Training(chosen, images, labels, *rest, 3, Streams(1))
    moves = []
    for _ in range(60):
        before = flat(state.parameters).clone()
        state._step(np.arange(0))  # a batch of no records
        moves.append(flat(state.parameters) - before)
    moves = torch.stack(moves)
    want = bound / 64  # σC / (qn), in the update direction
    assert float(moves.std()) == pytest.approx(want, rel=5 / math.sqrt(2 * moves.numel()))  # 5 standard errors


@pytest.mark.paper(*SLIDE)
def test_without_noise_and_clipping_it_is_full_batch_sgd():
    tensors = data(dtype=torch.float32)
    images, labels = tensors[:2]
    net = models.build("logistic", in_shape=(1, 6, 6), num_classes=3, generator=Streams(0, "test").torch("init"))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
    for _ in range(20):
        optimiser.zero_grad()
        functional.cross_entropy(net(images), labels).backward()
        optimiser.step()
    common = {"sample_rate": 1.0, "noise_multiplier": 0.0, "momentum": 0.5}
    for bound in (1e12, math.inf):  # the per-example road, and the plain one
        got = training(settings(max_grad_norm=bound, **common), tensors)
        torch.testing.assert_close(flat(got.parameters), flat(net.parameters()), rtol=1e-5, atol=1e-6)


def test_plain_sgd_on_poisson_batches_divides_by_the_expected_size():
    common = {"noise_multiplier": 0.0, "num_steps": 15}
    plain, clipped = (training(settings(max_grad_norm=b, **common)) for b in (math.inf, 1e9))
    torch.testing.assert_close(flat(plain.parameters), flat(clipped.parameters), rtol=1e-5, atol=1e-6)
    assert plain.done[0]["clipped_fraction"] is None
    assert clipped.done[0]["clipped_fraction"] == 0.0


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_splitting_for_memory_changes_rounding_only(size):
    tensors = data(n=60, dtype=torch.float64)
    whole, split = (training(settings(num_steps=10, physical_batch_size=b), tensors) for b in (1024, size))
    torch.testing.assert_close(flat(whole.parameters), flat(split.parameters), rtol=1e-12, atol=1e-13)
    assert whole.done[0]["batch_mean"] == split.done[0]["batch_mean"]


def test_learning_happens():
    rows = run(settings(num_steps=200, noise_multiplier=0.1, evaluate_every=50), data(n=400, test=200))
    assert rows[-1]["test_accuracy"] > 0.85
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


# ------------------------------------------------------------------------------------------------------------ batches


@pytest.mark.paper("dplearn", "Amplification by Sub-sampling")
def test_batches_are_poisson_samples():
    rng, n, q, draws = np.random.default_rng(0), 12, 0.3, 40_000
    member = np.zeros((draws, n), dtype=bool)
    for row in member:
        chosen = poisson_batch(rng, num_records=n, sample_rate=q)
        assert len(set(chosen.tolist())) == len(chosen)
        row[chosen] = True
    error = math.sqrt(q * (1 - q) / draws)
    assert np.abs(member.mean(0) - q).max() < 5 * error  # each record at its rate
    pairs = np.cov(member.T) - np.eye(n) * q * (1 - q)
    assert np.abs(pairs - np.diag(np.diag(pairs))).max() < 5 * q * (1 - q) / math.sqrt(draws)  # and independently
    counts = np.bincount(member.sum(1), minlength=n + 1)
    expected = stats.binom.pmf(np.arange(n + 1), n, q) * draws
    kept = expected > 10
    chi = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    assert chi < stats.chi2.isf(1e-6, kept.sum() - 1)


def test_a_rate_of_0_draws_nobody_and_of_1_everybody():
    rng = np.random.default_rng(0)
    assert len(poisson_batch(rng, num_records=5, sample_rate=0.0)) == 0
    assert sorted(poisson_batch(rng, num_records=5, sample_rate=1.0)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [1024, 1])
def test_empty_batches_are_steps_of_pure_noise(size):
    chosen = settings(sample_rate=0.05, num_steps=100, physical_batch_size=size, evaluate_every=25)
    rows = run(chosen, data(n=20))
    assert [r["step"] for r in rows] == [25, 50, 75, 100]
    empty = sum(r["empty_steps"] for r in rows)
    assert abs(empty - 100 * 0.95**20) < 5 * math.sqrt(100 * 0.36 * 0.64)  # standard errors of a count
    assert min(r["batch_min"] for r in rows) == 0
    assert all(math.isfinite(r["train_loss"]) for r in rows)


def test_noise_moves_the_weights_even_when_nobody_was_ever_drawn():
    before, after = (training(settings(sample_rate=1e-9, num_steps=t)) for t in (0, 3))
    assert after.done[0]["empty_steps"] == 3
    assert not torch.equal(flat(before.parameters), flat(after.parameters))
    assert torch.isfinite(flat(after.parameters)).all()


def test_a_rate_of_0_trains_on_nothing_and_says_so():
    rows = run(settings(sample_rate=0.0, num_steps=5))
    assert len(rows) == 1
    assert rows[0]["train_loss"] is None
    assert rows[0]["median_grad_norm"] is None
    assert rows[0]["empty_steps"] == 5
    assert rows[0]["batch_max"] == 0
    assert rows[0]["epoch"] == 0.0


@pytest.mark.parametrize("n", [1, 2, 3, 29])
@pytest.mark.parametrize("size", [16, 1000])
def test_tiny_data_keeps_its_steps_and_rate(n, size):
    rows = run(settings(sample_rate=0.5, num_steps=7, physical_batch_size=size), data(n=n))
    assert rows[-1]["step"] == 7
    assert rows[-1]["epoch"] == 3.5
    assert rows[-1]["weights_sha256"]


def test_no_steps_give_one_row_of_the_first_weights():
    (row,) = run(settings(num_steps=0))
    assert row["step"] == 0
    assert row["train_loss"] is None
    assert len(row["weights_sha256"]) == 64


# --------------------------------------------------------------------------------------------------------------- rows


def test_rows_come_at_each_evaluation_and_the_last_step():
    rows = run(settings(num_steps=11, evaluate_every=4))
    assert [r["step"] for r in rows] == [4, 8, 11]
    assert [r["weights_sha256"] is None for r in rows] == [True, True, False]
    assert rows[0]["epoch"] == pytest.approx(4 * 0.3)
    for row in rows:
        assert 0 <= row["clipped_fraction"] <= 1
        assert row["batch_min"] <= row["batch_mean"] <= row["batch_max"]
        assert "seconds" not in row


def test_accuracy_is_counted_over_all_test_records_in_any_portions(monkeypatch):
    tensors = data(n=30, test=17)
    want = run(settings(), tensors)[0]["test_accuracy"]
    assert (want * 17) == pytest.approx(round(want * 17), abs=1e-9)
    monkeypatch.setattr(dpsgd, "_EVALUATED_AT_ONCE", 5)
    assert run(settings(), tensors)[0]["test_accuracy"] == want


def test_an_empty_test_split_has_no_accuracy():
    assert run(settings(), data(test=0))[0]["test_accuracy"] is None


def test_clipping_statistics_are_those_of_the_norms():
    tensors = data(n=1)
    images, labels = tensors[:2]
    rows = run(settings(sample_rate=1.0, num_steps=1, max_grad_norm=0.01), tensors)
    net = models.build("logistic", in_shape=(1, 6, 6), num_classes=3, generator=Streams(0, "test").torch("init"))
    loss = functional.cross_entropy(net(images), labels)
    norm = flat(torch.autograd.grad(loss, list(net.parameters()))).norm()
    assert rows[0]["median_grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert rows[0]["clipped_fraction"] == 1.0
    assert rows[0]["train_loss"] == pytest.approx(float(loss.detach()), rel=1e-6)


def test_the_clipped_share_counts_the_norms_above_the_bound():
    tensors = data(n=50)
    full = {"sample_rate": 1.0, "num_steps": 1}
    median = run(settings(**full), tensors)[0]["median_grad_norm"]
    half = run(settings(**full, max_grad_norm=median), tensors)[0]["clipped_fraction"]
    assert half == 0.5  # an even number of norms, all different, and the median between the middle two


# -------------------------------------------------------------------------------------------------------- determinism


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    chosen = settings(model="tutorial_cnn", num_steps=4)
    tensors = data(shape=(1, 16, 16))
    torch.manual_seed(1)
    first = run(chosen, tensors)
    torch.manual_seed(2)
    assert run(chosen, tensors) == first
    assert run(chosen, tensors, seed=1)[0]["weights_sha256"] != first[0]["weights_sha256"]


def test_more_noise_leaves_the_batches_alone():
    quiet, loud = (run(settings(noise_multiplier=s, evaluate_every=5)) for s in (0.1, 5.0))
    for a, b in zip(quiet, loud, strict=True):
        assert all(a[k] == b[k] for k in ("batch_mean", "batch_min", "batch_max"))
    assert quiet[-1]["weights_sha256"] != loud[-1]["weights_sha256"]


@pytest.mark.parametrize("kind", ["uint8", "int32", "int64", "numpy", "list"])
def test_labels_of_every_integer_type_train_to_the_same_weights(kind):
    images, labels, *rest = data()
    given = {"numpy": labels.numpy().astype(np.int16), "list": labels.tolist()}
    given = given[kind] if kind in given else labels.to(getattr(torch, kind))
    assert run(settings(), (images, given, *rest)) == run(settings(), (images, labels, *rest))


# ---------------------------------------------------------------------------------------------------------- resumption

CHILD = textwrap.dedent(
    """
    import os, signal, sys, torch
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[3])
    from test_dpsgd import data, settings
    from privrob.kinds import Streams
    from privrob.learn.dpsgd import train

    def progress(step, total):
        if step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    chosen = settings(num_steps=30, evaluate_every=6, momentum=0.9)
    list(train(chosen, *data(), num_classes=3, streams=Streams(0, "test"), progress=progress, checkpoint=sys.argv[1]))
    """
)


def test_a_killed_training_goes_on_to_the_same_bits(tmp_path):
    chosen = settings(num_steps=30, evaluate_every=6, momentum=0.9)
    file = tmp_path / "it's a run" / "checkpoint.pt"
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [sys.executable, "-c", CHILD, str(file), "15", os.path.dirname(__file__)]
    assert subprocess.run(command, env=environment, timeout=300).returncode == -signal.SIGKILL
    assert os.listdir(file.parent) == ["checkpoint.pt"]

    def interrupt(step, total):
        if step == 26:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # and once more, later
        run(chosen, checkpoint=file, progress=interrupt)
    seen = []
    rows = run(chosen, checkpoint=file, progress=lambda step, total: seen.append(step))
    assert seen[0] == 25  # on from the evaluation at 24
    assert rows == run(chosen)
    assert run(chosen, checkpoint=file, progress=lambda *_: pytest.fail("it was complete")) == rows


def test_a_checkpoint_survives_other_portions_and_refuses_other_trainings(tmp_path):
    file = tmp_path / "c.pt"
    chosen = settings(num_steps=8, evaluate_every=4)
    steps = train(chosen, *data(), num_classes=3, streams=Streams(0, "test"), checkpoint=file)
    next(steps)
    run(settings(num_steps=8, evaluate_every=4, physical_batch_size=3), checkpoint=file)
    with pytest.raises(ValueError, match="belongs to another training, it differs in learning_rate"):
        run(settings(num_steps=8, evaluate_every=4, learning_rate=0.1), checkpoint=file)
    with pytest.raises(ValueError, match="differs in streams"):
        run(chosen, seed=1, checkpoint=file)
    with pytest.raises(ValueError, match="differs in data_sha256"):
        run(chosen, data(seed=1), checkpoint=file)


def test_a_cut_checkpoint_is_named_not_believed(tmp_path):
    file = tmp_path / "c.pt"
    run(settings(num_steps=4), checkpoint=file)
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1  # one bit
    file.write_bytes(whole)
    with pytest.raises(ValueError, match=r"checkpoint .*c.pt can't be read .*delete it"):
        run(settings(num_steps=4), checkpoint=file)
    file.write_bytes(whole[:-200])
    with pytest.raises(ValueError, match=r"checkpoint .*c.pt can't be read .*delete it"):
        run(settings(num_steps=4), checkpoint=file)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "resnet"}, "model must be one of"),
        ({"activation": "gelu"}, "activation must be one of"),
        ({"sample_rate": 1.5}, "sample_rate must lie in .*batch_size / num_records"),
        ({"num_steps": 10.0}, "num_steps"),
        ({"num_steps": -1}, "num_steps"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"learning_rate": "0.1"}, "learning_rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"max_grad_norm": math.inf}, "max_grad_norm must be finite when there is noise"),
        ({"noise_multiplier": -0.1}, "noise_multiplier"),
        ({"hidden": (5,)}, "hidden must be None for model 'logistic'"),
        ({"model": "mlp", "hidden": (0,)}, "hidden"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"physical_batch_size": 0}, "physical_batch_size"),
        ({"device": "tpu"}, "device must be 'cpu', 'cuda'"),
        ({"device": "mps"}, "device must be 'cpu', 'cuda'"),
        ({"device": "cuda:x"}, "device must be 'cpu', 'cuda'"),
        ({"device": "cuda:77"}, "device must be one of this machine's .*device='cpu'"),
    ],
)
def test_bad_settings_are_named_before_any_work(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        settings(**change)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, 1.0, 2.0], "train_labels must be whole numbers of an integer type, got dtype torch.float"),
        ([True, False, True], "train_labels must be whole numbers"),
        ([0, 3, 1], r"train_labels must lie in \[0, 2\], got 3"),
        ([0, -1, 1], r"train_labels must lie in \[0, 2\], got -1"),
        ([[0], [1], [2]], "train_labels must have 1 dimension"),
        ([0, 1], "train_labels must be as many as train_images, got 2 for 3"),
    ],
)
def test_labels_that_are_no_classes_are_refused_with_the_value(labels, message):
    images, _, *rest = data(n=3)
    with pytest.raises((ValueError, TypeError), match=message):
        run(settings(), (images, labels, *rest))


def test_images_must_be_floats_of_four_dimensions_and_not_none():
    images, labels, *rest = data()
    for bad in (images.to(torch.uint8), images.half(), images.flatten(1), images.numpy()):
        with pytest.raises(TypeError, match="train_images must be a float tensor"):
            run(settings(), (bad, labels, *rest))
    with pytest.raises(ValueError, match="train_images must hold at least 1 record"):
        run(settings(), data(n=0))


@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_a_training_that_diverges_stops_and_says_what_to_lower(bound):
    chosen = settings(
        model="mlp", hidden=(4,), sample_rate=1.0, max_grad_norm=bound, noise_multiplier=0.0, learning_rate=1e30
    )
    with pytest.raises(FloatingPointError, match=r"not finite at step [23]; lower learning_rate"):
        run(chosen)


# -------------------------------------------------------------------------------------------------------------- a cell

CELL = {
    "dataset": "synthetic",
    "num_records": 60,
    "num_test": 20,
    "shape": [1, 16, 16],
    "model": "tutorial_cnn",
    "batch_size": 15,
    "num_steps": 3,
    "learning_rate": 0.1,
    "max_grad_norm": 1.0,
    "noise_multiplier": 1.0,
}


def test_a_cell_trains_on_the_named_data_and_says_so():
    rows = train_cell(CELL, streams=Streams(0, "cell"))
    assert rows[-1]["num_records"] == 60
    assert rows[-1]["sample_rate"] == 0.25
    assert "synthetic" in rows[-1]["data"]
    other = {k: v for k, v in CELL.items() if k != "batch_size"} | {"sample_rate": 0.25}
    assert train_cell(other, streams=Streams(0, "cell")) == rows
    (name, sha), = train_cell.data(CELL).items()  # fmt: skip
    assert name == "synthetic"
    assert sha != train_cell.data({**CELL, "num_records": 61})["synthetic"]


def test_a_killed_cell_goes_on_from_its_scratch_folder_to_the_same_rows(tmp_path, monkeypatch):
    cell = {**CELL, "num_steps": 6, "evaluate_every": 2}
    undisturbed = train_cell(cell, streams=Streams(0, "cell"))
    steps, step = [], dpsgd.Training._step

    def counted(self, indices):
        steps.append(len(indices))
        if len(steps) == 4:
            raise KeyboardInterrupt
        return step(self, indices)

    monkeypatch.setattr(dpsgd.Training, "_step", counted)
    with pytest.raises(KeyboardInterrupt):
        train_cell(cell, streams=Streams(0, "cell"), scratch=tmp_path / "here")
    assert train_cell(cell, streams=Streams(0, "cell"), scratch=tmp_path / "here") == undisturbed
    assert len(steps) == 4 + 4, "two steps were kept, the third was lost"
    (tmp_path / "here" / "training.pt").write_bytes(b"cut short")
    assert train_cell(cell, streams=Streams(0, "cell"), scratch=tmp_path / "here") == undisturbed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rat": 1.0}, "did you mean 'learning_rate'"),
        ({"sample_rate": 0.5}, "either batch_size or sample_rate"),
        ({"batch_size": 61}, r"batch_size must lie in \[0, 60\].*there are 60 records"),
        ({"noise_multiplier": -1}, "noise_multiplier"),
    ],
)
def test_a_cell_refuses_settings_it_does_not_know_or_mean(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        train_cell({**CELL, **change}, streams=Streams(0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_on_the_same_batches_to_nearly_the_same_weights():
    tensors = data(n=60, shape=(1, 16, 16))
    chosen = {"model": "tutorial_cnn", "num_steps": 10, "noise_multiplier": 0.0}
    host, card = (training(settings(device=d, **chosen), tensors) for d in ("cpu", "cuda"))
    assert host.done[0]["batch_mean"] == card.done[0]["batch_mean"]
    torch.testing.assert_close(flat(card.parameters).cpu(), flat(host.parameters), rtol=1e-2, atol=1e-3)  # TF32
