"""Calibration never overspends, wastes little, and says what is out of reach."""

import math

import pytest

from privrob.accounting import calibrate, gdp, pld
from privrob.accounting.calibrate import noise_multiplier_for, num_steps_for
from privrob.accounting.ledger import Ledger
from privrob.kinds import NotAvailable
from privrob.mechanisms.sampled import gaussian_step

HOW = {"delta": 1e-5, "sample_rate": 0.01, "neighbouring": "add_remove"}


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("target", [0.1, 1.0, 3.0, 8.0, 50.0])
def test_the_target_is_kept_and_almost_reached(target, accountant):
    found = noise_multiplier_for(target, num_steps=1000, accountant=accountant, **HOW)
    assert 0.99 * target <= found.epsilon.upper <= target
    if accountant == "pld":
        again = pld.sampled_gaussian(noise_multiplier=found.noise_multiplier, num_steps=1000, **HOW)
        assert again.lower <= target
        less = pld.sampled_gaussian(noise_multiplier=found.noise_multiplier / 1.003, num_steps=1000, **HOW)
        assert less.upper > target  # the noise is the least, to 1e-3 and what the grid costs


def test_without_sampling_it_is_the_analytic_gaussian():
    how = {"delta": 1e-5, "sample_rate": 1.0, "neighbouring": "add_remove"}
    found = noise_multiplier_for(1.0, num_steps=1, **how, tolerance=1e-6)
    least = float(gdp.noise_multiplier_of(1.0, delta=1e-5))
    assert least <= found.noise_multiplier * (1 + 1e-9) <= least * (1 + 1e-5)


def test_no_noise_where_none_is_needed():
    assert noise_multiplier_for(1.0, num_steps=0, **HOW).noise_multiplier == 0.0
    assert noise_multiplier_for(1.0, num_steps=9, **{**HOW, "sample_rate": 0.0}).noise_multiplier == 0.0


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_most_steps_are_the_most(accountant):
    found = num_steps_for(1.0, noise_multiplier=1.3, accountant=accountant, **HOW)
    assert found.epsilon.upper <= 1.0
    back = noise_multiplier_for(1.0, num_steps=found.num_steps, accountant=accountant, **HOW)
    assert back.noise_multiplier == pytest.approx(1.3, rel=3e-3)
    if accountant == "pld":
        more = pld.sampled_gaussian(noise_multiplier=1.3, num_steps=found.num_steps + 1, points=2**17, **HOW)
        assert more.upper > 1.0


def test_one_step_too_many_is_no_step():
    assert num_steps_for(0.01, noise_multiplier=0.2, **{**HOW, "sample_rate": 0.9}).num_steps == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must lie in"),
        ({"epsilon": math.inf}, "epsilon must lie in"),
        ({"delta": 0.0}, "delta must lie in"),
        ({"delta": 1.5}, "delta must lie in"),
        ({"sample_rate": 1.5}, "sample_rate must lie in .*batch_size / num_records"),
        ({"accountant": "moments"}, "accountant must be one of"),
        ({"neighbouring": "either"}, "neighbouring must be one of"),
    ],
)
def test_bad_input_is_refused_by_name(change, words):
    given = {"epsilon": 1.0, **HOW, **change}
    with pytest.raises(ValueError, match=words):
        noise_multiplier_for(given.pop("epsilon"), num_steps=10, **given)


def test_what_has_no_accountant_or_no_end_is_refused():
    with pytest.raises(NotAvailable):
        noise_multiplier_for(1.0, num_steps=10, **{**HOW, "neighbouring": "replace"})
    with pytest.raises(ValueError, match=r"which .* steps at sample_rate=0\.0"):
        num_steps_for(1.0, noise_multiplier=1.0, **{**HOW, "sample_rate": 0.0})


def test_a_history_of_equal_steps_is_calibrated_as_steps_are():
    def history(sigma):
        return [(gaussian_step(sample_rate=0.02, noise_multiplier=sigma), 300)]

    one = calibrate.noise_multiplier_for_history(2.0, delta=1e-5, history=history, neighbouring="add_remove")
    other = calibrate.noise_multiplier_for(2.0, delta=1e-5, sample_rate=0.02, num_steps=300, neighbouring="add_remove")
    assert one.noise_multiplier == pytest.approx(other.noise_multiplier, rel=2e-3)
    assert 0.998 * 2.0 <= one.epsilon.upper <= 2.0
    assert one.num_steps == 300


def test_a_history_of_stages_and_another_mechanism_is_kept_within_its_target():
    def history(sigma):
        stages = [(gaussian_step(sample_rate=0.02, noise_multiplier=f * sigma), 50) for f in (1.5, 1.0, 0.7)]
        return [*stages, (gaussian_step(sample_rate=1.0, noise_multiplier=8.0), 1)]

    found = calibrate.noise_multiplier_for_history(1.5, delta=1e-5, history=history, neighbouring="add_remove")
    ledger = Ledger(neighbouring="add_remove", sampling="poisson")
    for guarantee, count in history(found.noise_multiplier):
        ledger.add(guarantee, count)
    spent = ledger.epsilon(1e-5)
    assert 0.997 * 1.5 <= spent.upper <= 1.5
    ledger = Ledger(neighbouring="add_remove", sampling="poisson")
    for guarantee, count in history(0.99 * found.noise_multiplier):
        ledger.add(guarantee, count)
    assert ledger.epsilon(1e-5).lower > 1.5 * 0.999


def test_a_history_that_spends_more_than_the_target_without_its_steps_is_refused():
    def history(sigma):
        return [(gaussian_step(sample_rate=0.02, noise_multiplier=sigma), 10), (Fixed, 1)]

    Fixed = gaussian_step(sample_rate=1.0, noise_multiplier=0.5)
    with pytest.raises(ValueError, match="epsilon must be at least"):
        calibrate.noise_multiplier_for_history(1.0, delta=1e-5, history=history, neighbouring="add_remove")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_more_steps_than_a_double_holds_are_refused(accountant):
    how = {"delta": 1e-5, "sample_rate": 0.01, "neighbouring": "add_remove", "accountant": accountant}
    with pytest.raises(ValueError, match=r"num_steps must lie in .* a double holds"):
        noise_multiplier_for(1.0, num_steps=10**309, **how)
