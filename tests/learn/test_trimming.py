"""TSGD and TSGD+PTR: against the records one by one, what one record can move, the ledger, the rule for F."""

import math

import numpy as np
import pytest
import torch
from releasing import DRAWN, clipped, each_gradient, flat, heard, started

from privrob.accounting import ptr
from privrob.accounting.ledger import Ledger
from privrob.mechanisms.ptr import ptr_tmean

ALGORITHM_2, ALGORITHM_3 = ("ptr", "Algorithm 2"), ("ptr", "Algorithm 3")
NO_NOISE = {"laplace_scale": 1e-9}  # the test without chance: passes where the margin is above 0


def gradients(state, indices=DRAWN):
    return each_gradient(state.model, state.images[indices], state.labels[indices])


def trimmed_sum(rows, bound, count):
    """By the definition: sorted by length before clipping."""
    order = rows.norm(dim=1).argsort()
    return clipped(rows, bound)[order[: max(len(rows) - count, 0)]].sum(0)


@pytest.mark.paper("ptr", "Section 5")
@pytest.mark.parametrize("physical", [1024, 3, 1])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.9])
def test_the_longest_before_clipping_are_left_out(rate, physical):
    state = started("trimmed", noise_multiplier=0.0, physical_batch_size=physical, options={"trim_rate": rate})
    rows = gradients(state)
    count = round(rate * 12)  # of the expected batch: 0.4 · 30
    assert state.release.num_trimmed == count
    bound = float(rows.norm(dim=1).sort().values[2])  # four of seven are clipped
    state.release.clip_norm = bound
    step = state.release.noisy_mean(DRAWN)
    torch.testing.assert_close(flat(step.gradient), trimmed_sum(rows, bound, count) / 12, rtol=1e-9, atol=1e-12)
    assert step.seen == {"num_trimmed": count, "num_kept": max(7 - count, 0), "num_not_finite": 0}


@pytest.mark.paper("ptr", "Table 4")
def test_nothing_trimmed_is_dp_sgd_to_the_bit():
    one, two = started("clipping"), started("trimmed", options={"trim_rate": 0.0})
    assert one.weights_sha256() == two.weights_sha256()
    torch.testing.assert_close(
        flat(one.release.noisy_mean(DRAWN).gradient), flat(two.release.noisy_mean(DRAWN).gradient), rtol=0, atol=0
    )


def test_without_noise_and_clipping_on_all_records_it_is_gradient_descent():
    how = {"noise_multiplier": 0.0, "max_grad_norm": math.inf, "sample_rate": 1.0, "steps": 0}
    state = started("trimmed", options={"trim_rate": 0.0}, **how)
    everyone = np.arange(30)
    want = gradients(state, everyone).mean(0)
    torch.testing.assert_close(flat(state.release.noisy_mean(everyone).gradient), want, rtol=1e-9, atol=1e-12)


@pytest.mark.paper(*ALGORITHM_3)
@pytest.mark.parametrize("physical", [1024, 3])
@pytest.mark.parametrize("trim_rate", [0.2, 0.75, 0.9])
def test_the_test_decides_what_is_summed(trim_rate, physical):
    options = {"trim_rate": trim_rate, "sensitivity_bound": 0.6} | NO_NOISE
    state = started(
        "propose_test_release", noise_multiplier=0.0, physical_batch_size=physical, options=options, steps=0
    )
    rows = gradients(state)
    bound = float(rows.norm(dim=1).median()) * 1.1
    state.release.clip_norm = bound
    count = round(trim_rate * 12)
    longer = int((rows.norm(dim=1).clamp(max=bound) > 0.6 * bound).sum())
    mechanism = ptr_tmean(
        count, max_norm=bound, sensitivity_bound=0.6 * bound, noise_multiplier=1.0, laplace_scale=1.0, test_failure=1e-8
    )
    norms = rows.norm(dim=1)
    margin = mechanism.robust.safety_margin(clipped(rows, bound).numpy(), bound=0.6 * bound)
    assert state.release.safety_margin(norms) == margin == max(0, count - longer)
    step = state.release.noisy_mean(DRAWN)
    assert step.seen["passed"] == float(margin > 0)
    want = trimmed_sum(rows, bound, count) if margin else clipped(rows, bound).sum(0)
    torch.testing.assert_close(flat(step.gradient), want / 12, rtol=1e-9, atol=1e-12)


def test_the_settings_above_pass_and_fail():
    """The two branches are both in the test before."""
    state = started("propose_test_release", noise_multiplier=0.0, options={"trim_rate": 0.9} | NO_NOISE, steps=0)
    norms = gradients(state).norm(dim=1)
    assert state.release.safety_margin(norms) > 0
    state.release.num_trimmed = 1
    assert state.release.safety_margin(norms) == 0


@pytest.mark.paper(*ALGORITHM_3)
@pytest.mark.parametrize(("trim_rate", "most"), [(0.75, 1.0), (0.2, 1.0)])
def test_one_record_more_moves_what_is_released_by_at_most_one_over_sigma(trim_rate, most, monkeypatch):
    """Passed: at most τ with noise στ, as the margin is above 0 on both sides. Failed: at most C with noise σC."""
    options = {"trim_rate": trim_rate, "sensitivity_bound": 0.5} | NO_NOISE
    changes = {"noise_multiplier": 2.0, "max_grad_norm": 2.4, "options": options, "steps": 0}
    base = heard("propose_test_release", DRAWN, monkeypatch, **changes)
    stds, moved = {part[0][1] for part in base}, []
    for record in (0, 4, 5, 8, 9, 22):
        other = heard("propose_test_release", np.append(DRAWN, record), monkeypatch, **changes)
        if {part[0][1] for part in other} == stds:  # the same branch
            gap = sum(float(((a - b) / s).square().sum()) for (a, s), (b, _) in zip(base[0], other[0], strict=True))
            moved.append(math.sqrt(gap))
    assert moved
    assert max(moved) <= (1 + 1e-6) * most / 2.0
    assert stds == {2.0 * 2.4 * (0.5 if trim_rate > 0.5 else 1.0)}


@pytest.mark.paper("ptr", "Section 5")
def test_trimming_after_clipping_or_by_the_drawn_size_would_move_more():
    """Why it is not done: both breaks are seen on a handful of numbers."""
    rows = torch.tensor([[0.9], [-0.9], [-1.8], [0.3]], dtype=torch.float64)
    one, more = rows[:3], rows
    quarter = [trimmed_sum(part, 1.0, round(0.4 * len(part))) for part in (one, more)]
    assert float((quarter[0] - quarter[1]).abs()) > 1.1  # F = 0.4 of the drawn: 1, then 2


@pytest.mark.paper("ptr", "Remark 5.3")
@pytest.mark.parametrize("rule", ["remark_5_3", "as_printed"])
def test_f_follows_the_test(rule):
    options = {"trim_rate": 0.5, "trim_step": 0.1, "most_trimmed": 0.8, "rule": rule, **NO_NOISE}
    state = started("propose_test_release", noise_multiplier=0.0, learning_rate=0.0, options=options, steps=0)
    state.release.clip_norm = float(gradients(state).norm(dim=1).median())
    before = 6
    for _ in range(12):
        step = state.release.noisy_mean(DRAWN)
        assert step.seen["num_trimmed"] == before
        up = (step.seen["passed"] == 0) == (rule == "remark_5_3")
        before = min(max(before + (1 if up else -1), 0), 9)
        assert state.release.num_trimmed == before
    assert before in ((0, 9) if rule == "as_printed" else range(3, 9))  # the printed rule has run away


def test_a_gradient_that_is_not_finite_counts_as_the_longest_and_gives_nothing():
    for physical in (1024, 2):
        state = started("trimmed", noise_multiplier=0.0, options={"trim_rate": 1 / 12}, physical_batch_size=physical)
        rows = gradients(state)
        state.images[DRAWN[2], 0, 0, 0] = math.nan
        assert not math.isfinite(float(gradients(state)[2].norm()))
        step = state.release.noisy_mean(DRAWN)
        rest = np.delete(np.arange(7), 2)
        torch.testing.assert_close(flat(step.gradient), clipped(rows[rest], 0.7).sum(0) / 12, rtol=1e-9, atol=1e-12)
        assert step.seen["num_not_finite"] == 1
        state.release.num_trimmed = 0
        kept = state.release.noisy_mean(DRAWN)
        torch.testing.assert_close(flat(kept.gradient), flat(step.gradient), rtol=0, atol=0)


@pytest.mark.paper("ptr", "Theorem 4.3")
def test_the_ledger_gets_propose_test_release_on_a_poisson_sample():
    settings = started(
        "propose_test_release", steps=0, noise_multiplier=1.1, options={"sensitivity_bound": 0.5}
    ).settings
    ((guarantee, count),) = settings.history()
    assert count == 12
    how = {"sample_rate": 0.4, "neighbouring": "add_remove"}
    own = ptr.Settings.of(noise_multiplier=1.1, sensitivity_bound=0.5, scale_ratio=1.0, test_failure=1e-8)
    want = 12 * ptr.renyi([2.0, 5.0], settings=own, **how)
    ledger = Ledger(neighbouring="add_remove", sampling="poisson")
    ledger.add(guarantee, count)
    np.testing.assert_allclose(ledger.rdp([2.0, 5.0]), want, rtol=1e-12)
    test, trimmed = (started(n, steps=0).settings.history()[0][0] for n in ("clipping", "trimmed"))
    assert test == trimmed


def test_the_noise_of_the_margin_is_laplace():
    state = started("propose_test_release", options={"laplace_scale": 2.0}, steps=0)
    drawn = np.array([state.release._laplace() for _ in range(4000)])
    assert abs(drawn.mean()) < 5 * 2 * math.sqrt(2) / math.sqrt(len(drawn))
    assert np.abs(drawn).mean() == pytest.approx(2.0, abs=5 * 2 / math.sqrt(len(drawn)))
    assert (drawn > 2 * math.log(10)).mean() == pytest.approx(0.05, abs=5 * math.sqrt(0.05 / len(drawn)))
