"""The plan of Section 4's comparison: which cells, what differs between them, and what its t-tests say."""

import math

import numpy as np
import pytest
from scipy import stats

from privrob.kinds import Streams
from privrob.learn import attacked, comparison
from privrob.learn.stobatch import networks
from privrob.learn.stobatch.settings import NAMES, StoBatchSettings

SMALL = {
    "dataset": "synthetic:mnist",
    "num_records": 60,
    "num_test": 6,
    "epsilons": (0.2, 1.0),
    "tight_epsilon": 0.2,
    "certificate_epsilon": 1.0,
    "noises": ("shared", "independent"),
    "num_steps": 1,
    "batch_size": 8,
    "train_attack_steps": 1,
    "learning_rate": 1e-3,
    "baseline_steps": 1,
    "baseline_batch": 8,
    "attack_kinds": ("fgsm",),
    "attack_radii": (0.1,),
    "test_attack_steps": 1,
    "eot_draws": 2,
    "num_certified": 2,
    "num_draws": 10,
    "certificate_radii": (0.01,),
    "failure_prob": 0.05,
    "seeds": (0, 1),
}


def plan(**changes):
    return comparison.Plan(**{**SMALL, **changes})


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches")
def test_every_private_method_is_there_at_every_epsilon_and_the_others_once():
    work = plan().comparison()
    found = [(*tuple(s["about"][n] for n in ("method", "epsilon")), s["seed"]) for _, s in work]
    assert len(set(found)) == len(found)
    for seed in (0, 1):
        for epsilon in (0.2, 1.0):
            for method in (*comparison.NOISES.values(), *comparison.PRIVATE):
                assert (method, epsilon, seed) in found
        assert {m for m, e, s in found if e is None and s == seed} == set(comparison.PUBLIC)


def test_certificates_are_read_off_the_same_cells():
    made, more = plan().comparison(), plan().certified()
    new = [s["about"]["method"] for _, s in more if (_, s) not in made]
    assert set(new) == {comparison.RELEASED}
    assert {(_, s)[1]["about"]["epsilon"] for _, s in more} == {1.0, None}
    asked = plan(epsilons=(1.0,), tight_epsilon=1.0).certified()
    assert asked == more  # another notebook's plan


@pytest.mark.paper("stobatch", "Section 4, Model Configuration (pixel range)")
def test_half_the_features_budget_is_twice_the_noise_and_the_same_labels_noise():
    budgets = []
    for ablation in (None, "twice the noise"):
        own = plan().stobatch(0.2, "shared", 0, ablation)[1]["training"]
        chosen = StoBatchSettings(**{k: v for k, v in own.items() if k in NAMES})
        generator = Streams(0, "net").torch("init")
        network = networks.build("mnist", in_shape=(1, 28, 28), num_classes=10, generator=generator)
        budgets.append(chosen.budget(network))
    one, two = budgets
    assert one.input_scale == pytest.approx(32.26, abs=0.01)
    assert two.input_scale == pytest.approx(2 * one.input_scale)
    assert two.hidden_scale == pytest.approx(2 * one.hidden_scale)
    assert two.label_scale == pytest.approx(one.label_scale)


@pytest.mark.paper("stobatch", "Section 4, Key observations (1)")
def test_an_ablation_changes_its_own_part_only():
    base = plan().stobatch(0.2, "shared", 0)[1]["training"]
    evaluation = ("attack_models",)  # new draws are left out
    for name, changes in comparison.ABLATIONS.items():
        own = plan().stobatch(0.2, "shared", 0, name)[1]["training"]
        different = {k for k in own if own[k] != base.get(k)} - set(evaluation)
        assert different == (set(changes) or {"epsilon_features", "epsilon_labels"})


def test_a_cell_repeats_the_plans_names():
    for path, settings in (plan().stobatch(1.0, "shared", 1), plan().baseline("DP-SGD", 1.0, 1)):
        assert path == comparison.CELL
        rows = comparison.cell(settings, streams=Streams(0, "cell"))
        for row in rows:
            assert {n: row[n] for n in ("method", "epsilon", "ablation")} == settings["about"]
            assert row["seed"] == 1
        assert {"training", "attack"} <= {row["row"] for row in rows}
    assert comparison.cell.data(settings) == attacked.fingerprint(settings["training"])


def test_a_method_without_noise_stands_for_every_attacked_model():
    about = {"epsilon": 1.0, "ablation": None, "seed": 0, "row": "attack", "radius": 0.1, "accuracy": 0.5}
    clean = about | {"kind": None, "attack_model": None, "radius": 0.0}
    rows = [{"method": "quiet", **clean}, {"method": "quiet", **about, "kind": "fgsm", "attack_model": "surrogate"}]
    rows += [{"method": "noisy", **about, "kind": "fgsm", "attack_model": m} for m in ("surrogate", "fixed", "eot")]
    rows += [{"method": "noisy", "row": "training"}]
    found = comparison.completed(rows)
    seen = [(r["method"], r["kind"], r["attack_model"]) for r in found]
    assert len(set(seen)) == len(seen) == 9
    assert sum(kind == "clean" for _, kind, _ in seen) == 3


@pytest.mark.paper("stobatch", "Section 4 (2-tail t-tests)")
def test_the_paired_test_is_scipys_and_its_spread_comes_back():
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(5, 1, 9), rng.normal(3, 2, 9)
    gain, p = comparison.paired_test(ours, theirs)
    assert gain == pytest.approx((ours - theirs).mean())
    assert p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-9)
    assert comparison.implied_spread(gain, p, num_pairs=9) == pytest.approx((ours - theirs).std(ddof=1))
    assert comparison.paired_test([1.0, 2.0], [1.0, 2.0]) == (0.0, 1.0)
    assert comparison.paired_test([2.0, 3.0], [1.0, 2.0])[1] == 0.0
    assert math.isnan(comparison.paired_test([2.0], [1.0])[1])


def test_no_four_counted_accuracies_are_nearer_to_each_other_than_rounding_allows():
    step = comparison.rounding_spread(0.01, num_pairs=4)
    assert step == pytest.approx(0.005)
    rng = np.random.default_rng(2)
    for _ in range(200):
        values = rng.integers(0, 3, 4) * 0.01
        assert values.std(ddof=1) == 0 or values.std(ddof=1) >= step * (1 - 1e-9)
    assert comparison.implied_spread(61.13, 2.56e-22, num_pairs=4) < step  # Figure 4 over the four attacks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noises": ()}, "noises must be a list"),
        ({"noises": ("none",)}, "noises must be one of"),
        ({"attack_kinds": ("cw",)}, "attack_kinds must be one of"),
        ({"seeds": (0, 0)}, "seeds must be a list of different values"),
        ({"tight_epsilon": 0.5}, "tight_epsilon must be one of epsilons"),
        ({"certificate_epsilon": 3.0}, "certificate_epsilon must be one of epsilons"),
        ({"epsilons": (0.05, 0.2, 1.0)}, "epsilon"),
        ({"batch_size": 31}, "batch_size must be at most 30"),
        ({"num_test": 0}, "num_test"),
    ],
)
def test_bad_plans_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        plan(**change)
