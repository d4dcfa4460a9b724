"""Attackers that know the rule: what they send, and that it depends on what is public and on their own record alone."""

import math

import numpy as np
import pytest
import torch
from releasing import DRAWN, clipped, distance, each_gradient, flat, heard, records, started

from privrob.kinds import Streams
from privrob.learn import dpsgd, knowing
from privrob.learn.knowing import Attackers

SECTION_5 = ("ptr", "Section 5")
QUIET = {"noise_multiplier": 0.0, "max_grad_norm": 0.7, "corruption_rate": 0.5}
KNOWN = {"max_norm": 0.7, "sensitivity_bound": 0.6, "margin": 0.9, "period": 2}


def attacked(kind, release="clipping", options=None, **changes):
    options = {} if release == "clipping" and options is None else options
    how = {"corruption": kind, "corruption_options": KNOWN, **QUIET, **changes}
    return started(release, options=options, **how)


def honest(state, indices=DRAWN):
    return each_gradient(state.model, state.images[indices], state.labels[indices]), state.corrupted[indices]


@pytest.mark.paper(*SECTION_5)
@pytest.mark.parametrize("physical", [1024, 3])
@pytest.mark.parametrize(
    ("kind", "length"), [("below_bound", 0.9 * 0.42), ("flood", 0.42 / 0.9), ("loud", 0.7), ("below_trim", 0.63)]
)
def test_a_common_length_against_progress(kind, length, physical):
    state = attacked(kind, physical_batch_size=physical)
    rows, bad = honest(state)
    assert 0 < int(bad.sum()) < 7
    against = -flat(state.attackers.mean)
    rows[bad] = length * against / against.norm()
    got = state.release.noisy_mean(DRAWN)
    torch.testing.assert_close(got.norms, rows.norm(dim=1), rtol=1e-9, atol=0)
    torch.testing.assert_close(flat(got.gradient), clipped(rows, 0.7).sum(0) / 12, rtol=1e-9, atol=1e-12)


def test_lengths_may_be_the_records_own():
    state = attacked("own_length")
    rows, bad = honest(state)
    got = state.release.noisy_mean(DRAWN)
    torch.testing.assert_close(got.norms, rows.norm(dim=1), rtol=1e-9, atol=0)
    against = -flat(state.attackers.mean)
    rows[bad] = rows[bad].norm(dim=1, keepdim=True) * against / against.norm()
    torch.testing.assert_close(flat(got.gradient), clipped(rows, 0.7).sum(0) / 12, rtol=1e-9, atol=1e-12)


def test_wrong_labels_are_brought_to_just_below_the_bound():
    state = attacked("wrong_label", corruption_rate=0.4)
    _, labels = records(30)
    assert torch.equal(labels != state.labels, state.corrupted)
    rows, bad = honest(state)
    rows[bad] *= 0.9 * 0.42 / rows[bad].norm(dim=1, keepdim=True)
    got = state.release.noisy_mean(DRAWN)
    torch.testing.assert_close(flat(got.gradient), clipped(rows, 0.7).sum(0) / 12, rtol=1e-9, atol=1e-12)


def test_pulses_are_loud_and_quiet_in_turns():
    state = attacked("pulse", steps=0)
    lengths = []
    for _ in range(6):
        lengths.append(state.attackers.length())
        state._step(DRAWN)
        state.step += 1
    assert lengths == pytest.approx([0.7, 0.7, 0.378, 0.378, 0.7, 0.7])


def test_the_cut_is_guessed_from_public_records_and_f():
    state = attacked("below_trim", "trimmed", {"trim_rate": 0.25}, max_grad_norm=math.inf)  # F = 3, 6 honest expected
    norms = each_gradient(state.model, *records(9, seed=1)).norm(dim=1)
    state.attackers.shadows = state.attackers._now = None
    assert state.attackers.length() == pytest.approx(0.9 * float(norms.median()), rel=1e-9)
    bounded = attacked("below_trim", "trimmed", {"trim_rate": 0.25}, max_grad_norm=0.01)
    bounded.attackers.known = knowing.Knowledge(max_norm=0.01, margin=0.9)
    bounded.attackers._now = None
    assert bounded.attackers.length() == pytest.approx(0.009)  # more than C is of no use
    with pytest.raises(ValueError, match="num_public=256"):
        dpsgd.Training(state.settings, *records(30), *records(4), 3, Streams(5))


def test_before_the_first_release_they_send_zeros():
    state = attacked("loud", steps=0)
    rows, bad = honest(state)
    got = state.release.noisy_mean(DRAWN)
    assert bool((got.norms[bad] == 0).all())
    torch.testing.assert_close(flat(got.gradient), clipped(rows[~bad], 0.7).sum(0) / 12, rtol=1e-9, atol=1e-12)


def test_they_follow_the_released_means_without_their_own_part():
    state = attacked("below_bound", steps=0, noise_multiplier=0.5)
    want = None
    for _ in range(4):
        before = flat(state.attackers.direction())
        step = state._step(DRAWN)
        new = flat(step.gradient) - 0.5 * 0.378 * before
        want = new if want is None else 0.9 * want + 0.1 * new
        state.step += 1
    torch.testing.assert_close(flat(state.attackers.mean), want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(flat(state.attackers.direction()), -want / want.norm(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", knowing.KINDS)
@pytest.mark.parametrize("release", ["clipping", "trimmed"])
def test_one_record_more_still_moves_a_release_by_at_most_one_over_sigma(kind, release, monkeypatch):
    changes = {"corruption": kind, "corruption_rate": 0.5, "noise_multiplier": 0.5, "max_grad_norm": 0.2}
    changes |= {"corruption_options": {"max_norm": 0.2}}
    changes |= {"options": {} if release == "clipping" else None}
    without = heard(release, DRAWN, monkeypatch, **changes)
    moved = [
        distance(heard(release, np.append(DRAWN, record), monkeypatch, **changes)[0], without[0])
        for record in (0, 4, 5, 8, 9, 22)
    ]
    assert 0.4 / 0.5 <= max(moved) <= (1 + 1e-6) / 0.5


def test_attackers_that_see_the_batch_would_void_the_guarantee():
    """Why none does: all of them move with each record, and clipping bounds one gradient, not their sum."""
    batch = torch.tensor([[1.0, 0.0], [0.0, 0.9], [-0.9, 0.0]], dtype=torch.float64)
    more = torch.cat([batch, torch.tensor([[0.0, -1.0]], dtype=torch.float64)])

    def total(rows, colluders=3):
        against = -rows.sum(0)
        return (rows.sum(0) + colluders * against / against.norm()).norm()

    assert abs(float(total(more) - total(batch))) > 0.5
    sums = [rows.sum(0) - 3 * rows.sum(0) / rows.sum(0).norm() for rows in (batch, more)]
    assert float((sums[0] - sums[1]).norm()) > 2  # with clipping to 1


@pytest.mark.parametrize("kind", knowing.KINDS)
@pytest.mark.parametrize("release", ["propose_test_release", "robust"])
def test_a_training_that_was_cut_goes_on_to_the_same_bits(kind, release, tmp_path):
    changes = {"corruption": kind, "corruption_rate": 0.3, "evaluate_at": (5, 9), "corruption_options": {"refresh": 3}}
    settings = started(release, steps=0, noise_multiplier=0.0 if release == "robust" else 0.8, **changes).settings

    def rows(checkpoint=None, stop=None):
        images, labels = records(30)
        how = {"num_classes": 3, "streams": Streams(5), "checkpoint": checkpoint, "public": records(9, seed=1)}
        found = []
        for row in dpsgd.Training(settings, images, labels, images[:4], labels[:4], **how).rows():
            found.append(row)
            if row["step"] == stop:
                break
        return found

    whole = rows()
    assert rows(tmp_path / "training.pt", stop=5) == whole[:1]
    assert rows(tmp_path / "training.pt") == whole


def test_a_record_that_is_not_finite_stays_so():
    for kind in ("loud", "wrong_label"):
        state = attacked(kind, "trimmed", {"trim_rate": 0.0}, corruption_rate=1.0)
        state.images[DRAWN[2], 0, 0, 0] = math.nan
        step = state.release.noisy_mean(DRAWN)
        assert step.seen["num_not_finite"] == 1
        assert bool(torch.isfinite(flat(step.gradient)).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bound": 1.0}, "corruption_options"),
        ({"margin": 1.0}, "margin"),
        ({"memory": 1.0}, "memory"),
        ({"max_norm": 0.0}, "max_norm"),
        ({"sensitivity_bound": 1.5}, "sensitivity_bound"),
        ({"period": 0}, "period"),
        ({"refresh": 0}, "refresh"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        attacked("loud", corruption_options=options)
    with pytest.raises(ValueError, match="corruption_options must be None with corruption 'label'"):
        attacked("label", corruption_options={})


def test_the_attackers_are_one_object_for_release_and_checkpoint():
    state = attacked("flood", steps=0)
    assert isinstance(state.attackers, Attackers)
    assert state.faults[1] is state.attackers
    assert started("clipping", options={}, corruption="gradient_sign", corruption_rate=0.1).attackers is None
