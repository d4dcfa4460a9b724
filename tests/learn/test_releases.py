"""Each way to release a batch's gradients: against the records one by one, its sensitivity, its ledger, its state."""

import functools
import math

import numpy as np
import pytest
import torch
from releasing import DRAWN, OPTIONS, clipped, distance, each_gradient, flat, heard, records, rows_until, started

from privrob.accounting.ledger import Ledger
from privrob.kinds import Streams
from privrob.learn import dpsgd, releases

ADVANCED = ("dplearn", "Advanced topic: how to improve the trade-off")
NAMES = [name for name, kind in releases.RELEASES.items() if kind.private]
WHOLE = [n for n in NAMES if n not in ("variance_reduced", "trimmed", "propose_test_release")]  # others: own tests


# ------------------------------------------------------------------------------------------- against records one by one


def by_hand(state, gradients, public):
    """The noise-free mean of each release, from all per-example gradients; and what it must remember."""
    release, bound, expected = state.release, state.release.clip_norm, 0.4 * 30
    if state.settings.release == "preconditioned":
        scale = flat(release.scales)
        factor = (bound / (gradients / scale).norm(dim=1, keepdim=True)).clamp(max=1.0)
        return (gradients * factor).sum(0) / expected
    if state.settings.release in ("projected", "embedded"):
        _, _, rows = torch.linalg.svd(public, full_matrices=False)
        rows = rows[:4]
    if state.settings.release == "projected":
        return rows.t() @ (rows @ clipped(gradients, bound).sum(0)) / expected
    if state.settings.release == "embedded":
        inner = gradients @ rows.t()
        rest = gradients - inner @ rows
        return (rows.t() @ clipped(inner, bound).sum(0) + clipped(rest, 0.3 * bound).sum(0)) / expected
    shorter = 0.7 / bound if state.settings.release == "adaptive_clipping" else 1.0
    return shorter * clipped(gradients, bound).sum(0) / expected


@pytest.mark.paper(*ADVANCED)
@pytest.mark.parametrize("physical", [1024, 3])
@pytest.mark.parametrize("name", WHOLE)
def test_the_mean_is_that_of_the_records_one_by_one(name, physical):
    state = started(name, steps=4, noise_multiplier=0.0, physical_batch_size=physical)
    gradients = each_gradient(state.model, state.images[DRAWN], state.labels[DRAWN])
    public = each_gradient(state.model, state.public_images, state.public_labels)
    want = by_hand(state, gradients, public)
    got = state.release.noisy_mean(DRAWN)
    torch.testing.assert_close(flat(got.gradient), want, rtol=1e-5, atol=1e-7)  # 1e-5: the residual's safety margin
    assert bool(got.clipped.any())


@pytest.mark.paper(*ADVANCED)
def test_variance_reduction_adds_clipped_differences_to_the_snapshot():
    state = started("variance_reduced", steps=3, noise_multiplier=0.0, options={"every": 3, "difference_norm": 0.02})
    snapshot = clipped(each_gradient(state.model, state.images, state.labels), 0.7).sum(0) / 30
    there = each_gradient(state.model, state.images[DRAWN], state.labels[DRAWN])
    first = state.release.noisy_mean(DRAWN)
    torch.testing.assert_close(flat(first.gradient), snapshot, rtol=1e-9, atol=1e-12)  # nothing moved yet
    state.step += 1
    with torch.no_grad():
        for p in state.parameters:
            p.add_(0.05 * torch.cos(torch.arange(p.numel(), dtype=p.dtype)).view_as(p))
    here = each_gradient(state.model, state.images[DRAWN], state.labels[DRAWN])
    second = state.release.noisy_mean(DRAWN)
    want = snapshot + clipped(here - there, 0.02 * 0.7).sum(0) / (0.4 * 30)
    torch.testing.assert_close(flat(second.gradient), want, rtol=1e-6, atol=1e-9)
    assert bool(second.clipped.any())


@pytest.mark.paper(*ADVANCED)
def test_the_clipping_norm_moves_by_the_share_of_short_gradients():
    state = started("adaptive_clipping", steps=2, noise_multiplier=0.0)
    before = state.release.clip_norm
    norms = each_gradient(state.model, state.images[DRAWN], state.labels[DRAWN]).norm(dim=1)
    state.release.noisy_mean(DRAWN)
    counted = sum(1 if n <= before else 0 for n in norms.tolist()) - len(DRAWN) / 2
    want = before * math.exp(-0.2 * (counted / 12 + 0.5 - 0.6))
    assert state.release.clip_norm == pytest.approx(want, rel=1e-12)
    assert before != 0.7  # it had moved already


def test_the_mean_may_be_left_as_long_as_it_is_released():
    options = {**OPTIONS["adaptive_clipping"], "same_length": False}
    state = started("adaptive_clipping", steps=0, noise_multiplier=0.0, options=options)
    other = started("adaptive_clipping", steps=0, noise_multiplier=0.0)
    for s in (state, other):
        s.release.clip_norm = 0.35
    one, two = (flat(s.release.noisy_mean(DRAWN).gradient) for s in (state, other))
    torch.testing.assert_close(2 * one, two, rtol=1e-12, atol=0)


@pytest.mark.paper(*ADVANCED)
def test_the_clipping_norm_finds_the_quantile():
    state = started("adaptive_clipping", noise_multiplier=0.0, max_grad_norm=50.0, learning_rate=0.0)
    for _ in range(400):
        state.release.noisy_mean(np.flatnonzero(np.random.default_rng(_).random(30) < 0.4))
    norms = each_gradient(state.model, state.images, state.labels).norm(dim=1)
    assert torch.quantile(norms, 0.4) < state.release.clip_norm < torch.quantile(norms, 0.8)


@pytest.mark.paper(*ADVANCED)
@pytest.mark.parametrize("average", ["tensor", "row", "entry"])
def test_scales_follow_the_releases_to_the_power_two_thirds(average):
    options = {"refresh": 1, "average": average, "memory": 0.0, "floor": 1e-12}
    state = started("preconditioned", noise_multiplier=0.0, options=options)
    step = state.release.noisy_mean(DRAWN)
    means = []
    for g in step.gradient:
        square = g.square()
        axes = {"tensor": tuple(range(g.ndim)), "row": tuple(range(1, g.ndim)), "entry": ()}[average]
        means.append((square.mean(axes, keepdim=True) if axes else square).expand_as(g))
    want = flat(means).clamp(min=1e-12 * float(flat(means).mean())).sqrt() ** (2 / 3)
    torch.testing.assert_close(flat(state.release.scales), want / want.square().mean().sqrt(), rtol=1e-9, atol=0)


# ------------------------------------------------------------------------------------------------ privacy: sensitivity


@pytest.mark.paper(*ADVANCED)
@pytest.mark.parametrize("sigma", [0.5, 3.0])
@pytest.mark.parametrize("name", [*WHOLE, "trimmed"])
def test_one_record_more_moves_what_is_released_by_at_most_one_over_sigma(name, sigma, monkeypatch):
    changes = {"noise_multiplier": sigma, "max_grad_norm": 0.2}
    without = heard(name, DRAWN, monkeypatch, **changes)
    moved = []
    for record in (0, 5, 8, 22):
        parts = heard(name, np.append(DRAWN, record), monkeypatch, **changes)
        assert len(parts) == len(without) == (2 if name in ("adaptive_clipping", "embedded") else 1)
        moved.append(math.sqrt(sum(distance(a, b) ** 2 for a, b in zip(parts, without, strict=True))))
    assert max(moved) <= (1 + 1e-6) / sigma
    assert max(moved) >= 0.9 / sigma  # clipped gradients use what they may


@pytest.mark.paper(*ADVANCED)
def test_a_snapshot_and_a_correction_keep_to_their_own_noise(monkeypatch):
    changes = {"noise_multiplier": 0.5, "max_grad_norm": 0.2, "learning_rate": 5.0}
    changes["options"] = {"every": 3, "difference_norm": 0.1, "snapshot_noise": 4.0}
    everyone = np.arange(30)
    base = heard("variance_reduced", DRAWN, monkeypatch, snapshot=everyone, **changes)
    fewer = heard("variance_reduced", DRAWN, monkeypatch, snapshot=everyone[1:], **changes)
    assert 0.9 / (4 * 0.5) <= distance(base[0], fewer[0]) <= (1 + 1e-6) / (4 * 0.5)
    moved = []
    for record in (0, 5, 8, 22):
        state = [started("variance_reduced", steps=4, **changes) for _ in range(2)]
        for s in state:
            s.release.heard = []
        state[0].release.noisy_mean(DRAWN)
        state[1].release.noisy_mean(np.append(DRAWN, record))
        moved.append(distance(state[0].release.heard[0], state[1].release.heard[0]))
    assert 0.9 / 0.5 <= max(moved) <= (1 + 1e-6) / 0.5


@pytest.mark.parametrize("name", NAMES)
def test_the_noise_that_is_added_has_the_size_that_is_said(name):
    quiet = started(name, noise_multiplier=0.8)
    quiet.release.heard = []
    drawn = []
    for seed in range(300):
        quiet.noise.manual_seed(seed)
        quiet.release.heard.clear()
        quiet.release.begin(quiet)
        quiet.release.heard = []
        before = torch.get_rng_state()
        parts = _noise_of(quiet.release)
        assert torch.equal(before, torch.get_rng_state())  # the global generator is not used
        drawn.append(parts)
    got = torch.stack(drawn)
    assert abs(float(got.mean())) < 5 / math.sqrt(got.numel())
    assert float(got.var()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / got.numel()))


def _noise_of(release):
    total = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)]
    release._add_noise(total, [torch.full((3, 2), 0.3, dtype=torch.float64), 2.0])
    return torch.cat([total[0].flatten() / 0.3, total[1] / 2.0])


# ------------------------------------------------------------------------------------------------------------- ledger


@pytest.mark.paper(*ADVANCED)
def test_releases_at_the_same_sigma_cost_the_same_but_for_snapshots():
    def spent(name, **options):
        ledger = Ledger(neighbouring="add_remove", sampling="poisson")
        for guarantee, count in started(name, steps=0, **options).settings.history():
            ledger.add(guarantee, count)
        return ledger.rdp([2.0, 8.0])

    plain = spent("clipping")
    for name in NAMES:
        if name not in ("variance_reduced", "propose_test_release"):
            np.testing.assert_array_equal(spent(name), plain)
    extra = spent("variance_reduced", options={"every": 5, "snapshot_noise": 2.0}) - plain
    np.testing.assert_allclose(extra, 3 * np.array([2.0, 8.0]) / (2 * (2.0 * 0.8) ** 2), rtol=1e-9)  # steps 0, 5, 10


def test_noise_stages_are_equal_parts_of_the_training():
    settings = started(steps=0, noise_stages=(2.0, 1.0, 0.5), num_steps=11).settings
    assert [n for _, n in settings.stages()] == [4, 4, 3]
    assert [settings.noise_multiplier_at(t) for t in range(11)] == [1.6] * 4 + [0.8] * 4 + [0.4] * 3
    assert [(g.mechanism.noise_std, n) for g, n in settings.history()] == [(1.6, 4), (0.8, 4), (0.4, 3)]
    short = started(steps=0, noise_stages=(2.0, 1.0, 0.5), num_steps=2).settings
    assert sum(n for _, n in short.stages()) == 2
    assert [s for s, n in short.stages() for _ in range(n)] == [short.noise_multiplier_at(t) for t in range(2)]


def test_snapshots_at_several_noise_levels_are_all_in_the_ledger():
    state = started("variance_reduced", steps=0, noise_stages=(2.0, 1.0), options={"every": 4, "snapshot_noise": 3.0})
    entries = [(round(g.mechanism.noise_std, 9), g.sample_rate, n) for g, n in state.settings.history()]
    assert entries == [(1.6, 0.4, 6), (0.8, 0.4, 6), (4.8, 1.0, 2), (2.4, 1.0, 1)]  # steps 0 and 4, then 8


# -------------------------------------------------------------------------------------------------- state and refusals


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("name", NAMES)
def test_a_training_that_was_cut_goes_on_to_the_same_bits(name, optimizer, tmp_path):
    rows = functools.partial(rows_until, release=name, optimizer=optimizer, evaluate_every=4)
    whole = rows()
    file = tmp_path / "training.pt"
    assert rows(file, stop=4) == whole[:1]
    assert rows(file) == whole


@pytest.mark.parametrize("name", NAMES)
def test_batches_without_records_are_steps(name):
    state = started(name, steps=0, sample_rate=0.0)
    for _ in range(4):
        state._step(np.arange(0))
        state.step += 1
    assert all(bool(torch.isfinite(p).all()) for p in state.parameters)
    state = started(name)
    step = state.release.noisy_mean(np.arange(0))
    assert step.losses is None
    assert all(float(g.abs().max()) > 0 for g in step.gradient[:1])  # pure noise


@pytest.mark.parametrize("name", NAMES)
def test_a_release_needs_a_finite_clipping_norm(name):
    if name not in ("clipping", "trimmed"):
        with pytest.raises(ValueError, match=f"max_grad_norm must be finite for release '{name}'"):
            started(name, max_grad_norm=math.inf, noise_multiplier=0.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clipping", {"rank": 3}, "release_options"),
        ("adaptive_clipping", {"target_quantile": 1.0}, "target_quantile"),
        ("adaptive_clipping", {"count_noise": 0.01}, "count_noise must be above 0.0333"),
        ("preconditioned", {"average": "layer"}, "average"),
        ("variance_reduced", {"every": 0}, "every"),
        ("variance_reduced", {"snapshot_rate": 0.0}, "snapshot_rate"),
        ("projected", {"rank": 0}, "rank"),
        ("embedded", {"residual_norm": -0.1}, "residual_norm"),
        ("trimmed", {"trim_rate": 1.5}, "trim_rate"),
        ("propose_test_release", {"sensitivity_bound": 1.5}, "sensitivity_bound"),
        ("propose_test_release", {"test_failure": 0.5}, "test_failure"),
        ("propose_test_release", {"rule": "B.1.3"}, "rule"),
        ("propose_test_release", {"trim_rate": 0.95}, "trim_rate must be at most most_trimmed"),
    ],
)
def test_bad_options_are_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        started(name, options=options)


def test_a_subspace_needs_public_records():
    images, labels = records(30)
    settings = started("projected", steps=0).settings
    with pytest.raises(ValueError, match="public_images must be given"):
        dpsgd.Training(settings, images, labels, images, labels, 3, Streams(0))
    with pytest.raises(ValueError, match="public_images must have the shape of train_images"):
        dpsgd.Training(
            settings,
            images,
            labels,
            images,
            labels,
            3,
            Streams(0),
            public=(torch.zeros(2, 1, 5, 5), torch.zeros(2).int()),
        )


def test_public_gradients_of_one_direction_span_one():
    rows = torch.outer(torch.tensor([1.0, -2.0, 0.5]), torch.arange(1.0, 8.0))
    basis = releases.subspace.principal_rows(rows, 3)
    assert basis.shape == (1, 7)
    torch.testing.assert_close(basis @ basis.t(), torch.eye(1))
    assert releases.subspace.principal_rows(torch.zeros(3, 7), 2).shape[1] == 7
