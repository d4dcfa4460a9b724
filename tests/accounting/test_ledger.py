"""The ledger: what was released is what is paid for, read as often as one likes, and kept to the last bit."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from privrob.accounting import pld, rdp
from privrob.accounting.ledger import Ledger, WeakGuarantee
from privrob.kinds import NotAvailable
from privrob.mechanisms.noise import Gaussian, Laplace
from privrob.mechanisms.sampled import PoissonSampled, gaussian_step

COMPOSE = ("dplearn", "How to compose privacy bound for multiple iterations?")


def ledger(**changes):
    return Ledger(**{"neighbouring": "add_remove", "sampling": "poisson", **changes})


def mixed():
    one = ledger()
    one.add(gaussian_step(sample_rate=0.01, noise_multiplier=1.0), 100)
    one.add(gaussian_step(sample_rate=0.02, noise_multiplier=2.0), 50)
    return one


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.paper(*COMPOSE)
def test_equal_steps_agree_with_the_accountant_of_the_sampled_gaussian():
    one = ledger()
    one.add(gaussian_step(sample_rate=256 / 60000, noise_multiplier=1.1), 1000)
    how = {"sample_rate": 256 / 60000, "noise_multiplier": 1.1, "num_steps": 1000, "delta": 1e-5}
    exact = pld.sampled_gaussian(**how, neighbouring="add_remove")
    assert one.epsilon(1e-5).upper == exact.upper, "its own accountant"
    one.add(gaussian_step(sample_rate=0.5, noise_multiplier=1e6), 1)  # next to nothing, and now pairs are composed
    found = one.epsilon(1e-5)
    assert found.lower <= exact.upper
    assert exact.lower <= found.upper <= exact.upper * 1.002
    assert one.epsilon(1e-5, accountant="rdp").upper == pytest.approx(0.8895, abs=2e-3)  # three libraries agree


def test_a_mixed_history_has_the_sum_of_the_curves():
    assert mixed().rdp([8.0])[0] == pytest.approx(0.112955412927, rel=1e-10)  # 100 and 50 times an mpmath value


def test_a_mixed_history_lies_between_its_parts():
    first, both = ledger(), mixed()
    first.add(gaussian_step(sample_rate=0.01, noise_multiplier=1.0), 100)
    assert first.epsilon(1e-5).lower <= both.epsilon(1e-5).upper
    assert both.epsilon(1e-5).lower <= both.epsilon(1e-5, accountant="rdp").upper


def test_the_order_of_entries_does_not_matter():
    backwards = ledger()
    backwards.add(gaussian_step(sample_rate=0.02, noise_multiplier=2.0), 50)
    backwards.add(gaussian_step(sample_rate=0.01, noise_multiplier=1.0), 100)
    one, other = mixed().epsilon(1e-5), backwards.epsilon(1e-5)
    assert one.lower <= other.upper
    assert other.upper == pytest.approx(one.upper, rel=1e-9)


def test_delta_and_epsilon_are_inverse():
    one = mixed()
    spent = one.epsilon(1e-5)
    back = one.delta(spent.upper)
    assert back.lower <= 1e-5 * 1.001
    assert back.upper == pytest.approx(1e-5, rel=0.05)  # of the grid: an interval of ε of 1e-3 is some per cent of δ


def test_kinds_of_mechanisms_compose():
    one = Ledger(neighbouring="replace", sampling="none")
    one.add(Gaussian(noise_std=4.0, l2_sensitivity=1.0), 10)
    one.add(Laplace(laplace_scale=3.0, l1_sensitivity=1.0), 2)
    tight, bound = one.epsilon(1e-6), one.epsilon(1e-6, accountant="rdp")
    assert 4.0 < tight.lower <= tight.upper < bound.upper < 4.6


# --------------------------------------------------------------------------------------------------------------- state


def test_nothing_released_costs_nothing():
    for accountant in ("pld", "rdp"):
        assert ledger().epsilon(1e-5, accountant=accountant).upper == 0.0
        assert ledger().delta(0.5, accountant=accountant).upper == 0.0
    one = ledger()
    one.add(gaussian_step(sample_rate=0.01, noise_multiplier=1.0), 0)
    one.add(gaussian_step(sample_rate=0.0, noise_multiplier=1.0), 7)
    assert one.epsilon(1e-5).upper == 0.0
    assert (one.num_steps, len(one.history)) == (7, 1)


def test_reading_changes_nothing():
    one = mixed()
    before = one.history
    assert one.epsilon(1e-5) == one.epsilon(1e-5)
    assert one.history == before


def test_equal_steps_are_taken_together():
    one = ledger()
    for _ in range(60):
        one.add(gaussian_step(sample_rate=0.01, noise_multiplier=1.0))
    assert [count for _, count in one.history] == [60]


def test_sixty_steps_saved_and_forty_in_a_new_process_are_a_hundred(tmp_path):
    step = gaussian_step(sample_rate=1 / 3, noise_multiplier=0.1 + 0.2)  # digits that short decimals do not have
    first, straight = ledger(num_records=100), ledger(num_records=100)
    first.add(step, 60)
    straight.add(step, 100)
    first.save(tmp_path / "it's mine.json")
    code = (
        "import sys\nfrom privrob.accounting.ledger import Ledger\n"
        "one = Ledger.load(sys.argv[1])\none.add(one.history[0][0], 40)\n"
        "print(one.epsilon(1e-3).upper.hex(), one.num_steps, one.num_records)"
    )
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, tmp_path / "it's mine.json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    with pytest.warns(WeakGuarantee):
        assert out == [straight.epsilon(1e-3).upper.hex(), "100", "100"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: {k: v for k, v in body.items() if k != "history"},
        lambda body: {**body, "format": 2},
        lambda body: {**body, "history": [{"count": -1, "guarantee": body["history"][0]["guarantee"]}]},
        lambda body: {**body, "history": [{"count": 1, "guarantee": {"type": "os:system", "fields": {}}}]},
        lambda body: {**body, "history": [{"count": 1, "guarantee": {"type": "privrob.checks:real", "fields": {}}}]},
        lambda body: {**body, "neighbouring": "both"},
    ],
)
def test_a_file_without_its_whole_history_is_refused(tmp_path, damage):
    mixed().save(tmp_path / "a.json")
    body = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(damage(body)))
    with pytest.raises(ValueError, match=r"a\.json must be a ledger with its whole history"):
        Ledger.load(tmp_path / "a.json")


def altered(path, old, new):
    """A ledger's file, in which the first such text is another."""
    mixed().save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"format"', '"history": [], "format"', "'history' is there twice"),
        ('"count": 100', '"count": 100, "count": 1', "'count' is there twice"),
        ('"noise_std"', '"noise_std": 9.0, "noise_std"', "'noise_std' is there twice"),
        ('"count": 100', '"count": 0', r"count must be an integer in \[1, inf\], got count=0"),
        ('"count": 100', '"count": 1e400', "count must be an integer"),
        ('"count": 100', f'"count": {2**53 + 1}', "count must be an integer in"),
        ('"format"', '"forward": 1, "format"', "got 'forward'"),
        ('"count": 100', '"count": 100, "times": 2', "got 'times'"),
        ('"type"', '"kind": 1, "type"', "got 'kind'"),
        ('"noise_std"', '"noise": 1, "noise_std"', "got 'noise'"),
        ('"noise_std"', '"noise"', "got 'noise'"),
        ("privrob.mechanisms.noise:", "privrob.nope:", "No module named 'privrob.nope'"),
        ("privrob.mechanisms.noise:", "privrob..noise:", "No module named"),
        ('"noise_std": 1.0', '"noise_std": Infinity', "Infinity"),
        ('"noise_std": 1.0', '"noise_std": {"float": "1e9"}', "float must be one of"),
        ('"noise_std": 1.0', '"noise_std": [1.0]', "a list where a number"),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(tmp_path, old, new, told):
    altered(tmp_path / "a.json", old, new)
    with pytest.raises(ValueError, match=rf"a\.json must be a ledger with its whole history, got .*{told}"):
        Ledger.load(tmp_path / "a.json")


@pytest.mark.parametrize("history", [{}, "", 0, None, False])
def test_a_history_that_is_no_list_is_refused(tmp_path, history):
    mixed().save(tmp_path / "a.json")
    body = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps({**body, "history": history}))
    with pytest.raises(ValueError, match=r"whole history, got .*no list"):
        Ledger.load(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["[" * 100_000, "", "[]", '{"format": 1}', "\x00"])
def test_a_file_that_is_no_ledger_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match="must be a ledger with its whole history"):
        Ledger.load(tmp_path / "a.json")


def test_numbers_of_numpy_are_kept_as_they_are_and_saved(tmp_path):
    single = np.float32(1.1)
    one = Ledger(neighbouring="add_remove", sampling="poisson", num_records=np.int64(10**6))
    one.add(PoissonSampled(Gaussian(single, np.float32(1)), np.float32(0.01)), np.int64(10))
    one.add(PoissonSampled(Gaussian(np.float64(3.3), np.int64(1)), np.float16(0.5)))
    one.save(tmp_path / "a.json")
    back = Ledger.load(tmp_path / "a.json")
    assert back.history == one.history
    assert back.history[0][0].mechanism.noise_std == float(single)
    for accountant in ("pld", "rdp"):
        assert back.epsilon(1e-7, accountant=accountant) == one.epsilon(1e-7, accountant=accountant)


def test_single_precision_is_counted_in_double(tmp_path):
    one, other = (Ledger(neighbouring="add_remove", sampling="none") for _ in range(2))
    one.add(Gaussian(np.float32(1.1), np.float32(1)), 10)
    other.add(Gaussian(float(np.float32(1.1)), 1.0), 10)
    one.save(tmp_path / "a.json")
    spent = {each.epsilon(1e-5, accountant="rdp").upper for each in (one, other, Ledger.load(tmp_path / "a.json"))}
    assert len(spent) == 1


def test_more_steps_than_the_accountants_count_are_refused_on_entry():
    step = gaussian_step(sample_rate=0.01, noise_multiplier=1.0)
    for most in ((2**53 + 1,), (2**53, 1), (2**52, 2**52 + 1)):
        one = ledger()
        for count in most[:-1]:
            one.add(step, count)
        with pytest.raises(ValueError, match=r"count must be an integer in .* not every count is a double"):
            one.add(step, most[-1])
        assert one.num_steps == sum(most[:-1])
    one = ledger()
    one.add(step, 2**53)
    assert one.num_steps == 2**53


# ------------------------------------------------------------------------------------------------------------ refusals


def test_relation_and_sampling_have_no_defaults_and_are_checked_on_entry():
    with pytest.raises(TypeError):
        Ledger(neighbouring="add_remove")
    with pytest.raises(NotAvailable, match="sampling='poisson'"):
        Ledger(neighbouring="add_remove", sampling="none").add(gaussian_step(sample_rate=0.1, noise_multiplier=1.0))
    with pytest.raises(NotAvailable, match="'add', 'remove' and 'add_remove' only"):
        ledger(neighbouring="replace").add(gaussian_step(sample_rate=0.1, noise_multiplier=1.0))
    with pytest.raises(NotAvailable):
        ledger(sampling="fixed_size").add(gaussian_step(sample_rate=0.1, noise_multiplier=1.0))
    with pytest.raises(TypeError, match="guarantee must be a mechanism"):
        ledger().add(1.0)


def test_weak_promises_are_told():
    one = ledger(num_records=240)
    one.add(gaussian_step(sample_rate=1 / 240, noise_multiplier=0.1), 480)
    with pytest.warns(WeakGuarantee, match="no meaningful guarantee"):
        spent = one.epsilon(1e-5)
    assert spent.lower <= 479.1  # a pessimistic distribution gives about 479
    assert 478.9 <= spent.upper <= 481
    with pytest.warns(WeakGuarantee, match="not below 1/num_records"), pytest.warns(match="no meaningful"):
        one.epsilon(0.01)


def test_an_answer_carries_what_it_assumes():
    row = mixed().epsilon(1e-5, accountant="rdp", conversion="classic").as_row()
    assert (row["neighbouring"], row["sampling"], row["accountant"]) == ("add_remove", "poisson", "rdp")
    assert (row["conversion"], row["delta"], row["num_steps"], row["tuning_counted"]) == ("classic", 1e-5, 150, False)
    assert row["order"] in rdp.default_orders()
    assert "add_remove, sampling poisson" in str(mixed().epsilon(1e-5))


# ----------------------------------------------------------------------------------------------- one sweep of laws


@dataclass(frozen=True)
class Case:
    """A family of mechanisms by its noise, and how it is asked."""

    make: object
    neighbouring: str
    sampling: str


RELATIONS = ("add", "remove", "add_remove")
FAMILIES = [
    Case(lambda s: Laplace(laplace_scale=s, l1_sensitivity=1.0), "add_remove", "none"),
    Case(lambda s: Gaussian(noise_std=s, l2_sensitivity=1.0), "replace", "none"),
    *(Case(lambda s: gaussian_step(sample_rate=0.1, noise_multiplier=s), n, "poisson") for n in RELATIONS),
    Case(lambda s: PoissonSampled(Laplace(laplace_scale=s, l1_sensitivity=1.0), 0.1), "add_remove", "poisson"),
]


@pytest.mark.parametrize("case", FAMILIES)
def test_every_mechanism_keeps_the_laws(case):
    """Less noise, more steps, a smaller δ cost more; and the Rényi bound lies above the exact ε."""
    how = {"neighbouring": case.neighbouring, "sampling": case.sampling}

    def spent(noise, steps=1, delta=1e-5, **options):
        one = Ledger(**how)
        one.add(case.make(noise), steps)
        return one.epsilon(delta, **options)

    base = spent(2.0, 10)
    for other in (spent(1.5, 10), spent(2.0, 20), spent(2.0, 10, 1e-6)):
        assert other.upper >= base.lower
        assert other.lower > base.lower * 0.999
    assert spent(2.0, 10, accountant="rdp").upper >= base.lower
    one = spent(2.0)
    stated = case.make(2.0).epsilon(1e-5, **how)
    assert one.lower <= stated.upper
    assert stated.lower <= one.upper
    curve = case.make(2.0).rdp(np.array([1.5, 2.0, 8.0, 64.0]), **how)
    assert (np.diff(curve) >= 0).all()
    assert (curve >= 0).all()
    assert math.isfinite(base.upper)


def test_more_records_drawn_cost_more():
    spent = []
    for rate in (0.0, 0.01, 0.1, 0.5, 1.0):
        one = ledger()
        one.add(gaussian_step(sample_rate=rate, noise_multiplier=2.0), 5)
        spent.append(one.epsilon(1e-5))
    assert all(b.lower >= a.lower for a, b in itertools.pairwise(spent))
    whole = Ledger(neighbouring="add_remove", sampling="none")
    whole.add(Gaussian(noise_std=2.0, l2_sensitivity=1.0), 5)
    assert spent[-1].upper == pytest.approx(whole.epsilon(1e-5).upper, rel=1e-5)
