"""TernGrad: what it releases, that it has no privacy, and that the attack which shows it is fair to others."""

import itertools
import math

import numpy as np
import pytest

from privrob.accounting import audit, pairs
from privrob.kinds import Guarantee, NotAvailable, Streams
from privrob.mechanisms import ternary_attack
from privrob.mechanisms.ternary import Ternary, TernGrad

HOW = {"neighbouring": "replace", "sampling": "none"}
VECTOR, OTHER = np.array([0.05, -0.1, 0.0, 0.02]), np.array([0.05, -0.08, 0.01, 0.02])
VARIANTS = [TernGrad(), TernGrad(send_scale=False), TernGrad(send_scale=False, clip_stds=2.5)]


@pytest.mark.paper("fdp", "Remark 8")
def test_terngrad_is_unbiased_and_sends_the_largest_magnitude():
    rng, number = Streams(1, "terngrad").numpy("draws"), 100_000
    out = TernGrad().release(np.tile(VECTOR, (number, 1)), rng=rng)
    assert set(np.unique(out)) == {-0.1, 0.0, 0.1}
    assert (np.abs(out).max(axis=1) == 0.1).all()  # every single time
    assert (np.abs(out.mean(axis=0) - VECTOR) <= 5 * out.std(axis=0) / math.sqrt(number) + 1e-12).all()  # a sum of 1e5
    hidden = TernGrad(send_scale=False).release(np.tile(VECTOR, (number, 1)), rng=rng)
    masses = np.exp(TernGrad().log_masses(VECTOR))
    for symbol, column in zip((-1, 0, 1), masses.T, strict=True):
        share = (hidden == symbol).mean(axis=0)
        assert (np.abs(share - column) <= 5 * np.sqrt(column * (1 - column) / number)).all()
    assert (TernGrad().release(np.zeros((3, 2)), rng=rng) == 0).all()
    short = TernGrad(clip_stds=1.0).scaled(VECTOR)[1]
    assert short == pytest.approx(VECTOR.std(), rel=1e-14)
    with pytest.raises(NotAvailable):
        TernGrad(clip_stds=2.5).decode(out)
    with pytest.raises(ValueError, match="vector"):
        TernGrad().release(0.3, rng=rng)


@pytest.mark.paper("fdp", "Remark 8")
@pytest.mark.parametrize("mechanism", VARIANTS)
def test_terngrad_states_that_it_has_no_privacy(mechanism):
    assert isinstance(mechanism, Guarantee)
    assert (mechanism.tradeoff([0.0, 0.3], **HOW) == 0).all()
    assert mechanism.epsilon(0.999, **HOW).lower == math.inf
    assert mechanism.gdp_mu_upper(**HOW) == math.inf
    # one number is sent as its plain sign, so that c and −c have no output in common
    opposite = [TernGrad(send_scale=False).log_masses([x])[0] for x in (0.1, -0.1)]
    assert np.isinf(opposite).any(axis=0).all()


@pytest.mark.parametrize("mechanism", [*VARIANTS[1:], Ternary(0.1, 0.25, 0.5)])
def test_the_pair_of_two_vectors_is_that_of_all_outputs(mechanism):
    logs = [ternary_attack.coordinate_log_masses(mechanism, v) for v in (VECTOR, OTHER)]
    outputs = list(itertools.product(range(3), repeat=4))
    p, q = (np.exp([sum(rows[j, s] for j, s in enumerate(o)) for o in outputs]) for rows in logs)
    pair = ternary_attack.pair(mechanism, VECTOR, OTHER)
    for epsilon in (0.0, 0.5, 2.0):
        got = pairs.delta([(pair, 1)], epsilon=epsilon)
        want = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        assert got.lower * (1 - 1e-9) - 1e-15 <= want <= got.upper * (1 + 1e-9) + 1e-15
    assert pair.infinite[0] == pytest.approx(p[q == 0].sum(), abs=1e-14)


@pytest.mark.paper("fdp", "Remark 8")
def test_the_attack_breaks_terngrad_and_respects_a_fixed_scale():
    rng = Streams(2, "attack").numpy("draws")
    found = {}
    for mechanism in (*VARIANTS, Ternary(0.1, 0.25, 0.5)):
        for runs in (200, 20_000):
            scores = ternary_attack.losses(mechanism, VECTOR, OTHER, num_runs=runs, rng=rng)
            lower = audit.two_samples(*scores, delta=1e-3, failure_prob=1e-6).epsilon_lower
            found.setdefault(mechanism, []).append(lower)
            pair = ternary_attack.pair(mechanism, VECTOR, OTHER)
            exact = max(pairs.compose([(p, 1)], delta=1e-3).upper for p in (pair, pair.reversed()))
            assert lower <= exact
    for mechanism in VARIANTS:  # a hundred times as many runs show ln 100 = 4.6 more
        assert found[mechanism][1] > found[mechanism][0] + 3.5
    assert math.isinf(exact) is False


def test_gradients_of_neighbouring_batches_differ_in_one_record():
    rng = Streams(3, "batches").numpy("draws")
    one, other = ternary_attack.neighbouring_gradients(num_records=5, num_coordinates=7, clip=0.1, rng=rng)
    assert one.shape == (7,)
    assert (np.abs(one - other) <= 2 * 0.1 / 5 + 1e-15).all()
    assert (one != other).any()
    assert np.abs(np.concatenate([one, other])).max() <= 0.1
