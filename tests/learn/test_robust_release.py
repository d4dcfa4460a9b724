"""Robust rules as releases: against the rule on the records one by one, refusals, the ledger."""

import math

import numpy as np
import pytest
import torch
from releasing import DRAWN, clipped, each_gradient, flat, started

from privrob.accounting.ledger import Ledger
from privrob.learn.releases.robust import RULES
from privrob.robust import aggregate

SECTION_5 = ("ptr", "Section 5")


def robust(rule, *, attacker_rate=0.3, rule_options=None, **changes):
    options = {"rule": rule, "attacker_rate": attacker_rate, "rule_options": rule_options}
    return started("robust", options=options, **{"noise_multiplier": 0.0, "max_grad_norm": math.inf, **changes})


@pytest.mark.paper(*SECTION_5)
@pytest.mark.parametrize("physical", [1024, 3])
@pytest.mark.parametrize("bound", [math.inf, 0.5])
@pytest.mark.parametrize("rule", RULES)
def test_the_rule_is_that_of_the_records_one_by_one(rule, bound, physical):
    state = robust(rule, max_grad_norm=bound, physical_batch_size=physical)
    rows = each_gradient(state.model, state.images[DRAWN], state.labels[DRAWN])
    tolerated = {"TrMean": {"f": 2}, "Krum": {"f": 2}, "MultiKrum": {"f": 2}}.get(rule)
    want = aggregate.make(rule, tolerated)(clipped(rows, bound).numpy())
    got = state.release.noisy_mean(DRAWN)
    np.testing.assert_allclose(flat(got.gradient).numpy(), want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(got.norms, rows.norm(dim=1), rtol=1e-9, atol=0)


@pytest.mark.parametrize("corruption", ["gradient", "gradient_sign"])
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_faulty_gradients_arrive_row_by_row(corruption, rate):
    state = robust("Average", corruption=corruption, corruption_rate=rate, corruption_std=0.2)
    plain = started("clipping", options={}, noise_multiplier=0.0, max_grad_norm=math.inf, steps=0)
    rows, bad = each_gradient(state.model, state.images[DRAWN], state.labels[DRAWN]), state.corrupted[DRAWN]
    if corruption == "gradient_sign":
        rows[bad] *= -1
    else:
        twin = torch.Generator()
        twin.set_state(state.faults[1].get_state())
        rows[bad] += 0.2 * torch.randn((int(bad.sum()), rows.shape[1]), generator=twin, dtype=rows.dtype)
    torch.testing.assert_close(flat(state.release.noisy_mean(DRAWN).gradient), rows.mean(0), rtol=1e-9, atol=1e-12)
    assert plain.release.per_example is None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_small_batches_are_steps(rule, count):
    state = robust(rule, attacker_rate=0.5, steps=0)
    step = state.release.noisy_mean(DRAWN[:count])
    assert bool(torch.isfinite(flat(step.gradient)).all())
    assert (float(flat(step.gradient).norm()) == 0) == (count == 0)


@pytest.mark.paper(*SECTION_5)
@pytest.mark.parametrize("rule", ["Median", "TrMean", "Krum", "MultiKrum"])
def test_a_few_enormous_gradients_do_not_matter(rule):
    how = {"corruption": "gradient", "corruption_rate": 0.2, "corruption_std": 1e6}
    moved = [float(flat(robust(r, **how).release.noisy_mean(DRAWN).gradient).norm()) for r in (rule, "Average")]
    assert moved[0] < 10 < 1e3 < moved[1]


def test_noise_is_refused_and_the_ledger_says_infinite():
    with pytest.raises(ValueError, match="noise_multiplier must be 0 for release 'robust'"):
        robust("Median", noise_multiplier=0.5, max_grad_norm=1.0)
    ledger = Ledger(neighbouring="add_remove", sampling="poisson")
    for guarantee, count in robust("Median", steps=0).settings.history():
        ledger.add(guarantee, count)
    assert np.isinf(ledger.rdp([2.0])).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "Zeno"}, "rule"),
        ({"attacker_rate": 1.5}, "attacker_rate"),
        ({"rule": "GeometricMedian", "rule_options": {"T": 0}}, "T"),
        ({"rule": "Median", "rule_options": {"f": 1}}, "aggregator_options"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        started("robust", options=options, noise_multiplier=0.0)
