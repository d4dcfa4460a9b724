"""What the two methods of a table may do at one ε, and what is read of their trainings."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from privrob.learn import cells, trimming_plans
from privrob.learn.trimming_plans import DPSGD, GAUSSIAN, PTR, Block
from privrob.suite import claims

BLOCK = {"name": "small", "sample_rate": 0.02, "max_grad_norm": 3.0, "sensitivity_bound": 1.5}
BLOCK |= {"ptr_noise": 1.1, "gaussian_noise": 0.7}


@pytest.fixture(scope="module")
def plans():
    settings = {"block": BLOCK, "epsilon": 3.0, "methods": [GAUSSIAN, PTR, DPSGD]}
    return pd.DataFrame(trimming_plans.plan_cell(settings, streams=None))


def of(plans, comparison, method, accountant="pld"):
    chosen = (plans["comparison"] == comparison) & (plans["method"] == method) & (plans["accountant"] == accountant)
    return plans[chosen]


@pytest.mark.paper("ptr", "B.1.3")
def test_every_plan_keeps_within_its_epsilon_and_uses_it(plans):
    assert (plans["spent"] <= 3.0).all()
    assert (plans["spent"] > 2.9).all()
    assert (of(plans, "printed", PTR)["noise_multiplier"] == 1.1).all()
    same = of(plans, "printed", GAUSSIAN)["steps"].item()
    assert of(plans, "printed", DPSGD)["steps"].item() == same  # equal sensitivity
    for method in (GAUSSIAN, PTR):
        tight, renyi = (of(plans, "printed", method, a)["steps"].item() for a in ("pld", "rdp"))
        assert renyi <= tight


def test_aligned_methods_take_as_many_steps(plans):
    steps = of(plans, "aligned", PTR)["steps"].item()
    assert steps == of(plans, "printed", PTR)["steps"].item() == of(plans, "aligned", GAUSSIAN)["steps"].item()
    assert 0.7 < of(plans, "aligned", GAUSSIAN)["noise_multiplier"].item() < 1.1
    assert (
        of(plans, "aligned", DPSGD)["noise_multiplier"].item()
        == of(plans, "aligned", GAUSSIAN)["noise_multiplier"].item()
    )
    tried = [set(of(plans, "best", m)["steps"]) for m in (GAUSSIAN, PTR)]
    assert tried[0] == tried[1]
    assert len(tried[0]) == 2


def test_one_training_is_read_at_every_budget(plans):
    block = Block(
        **BLOCK, cell={"dataset": "synthetic", "model": "logistic", "sample_rate": 0.02, "learning_rate": 0.1}
    )
    work = trimming_plans.trainings(block, plans, conditions=[("label", 0.0), ("label", 0.2)], seeds=[0, 1])
    wanted = plans[["method", "noise_multiplier"]].drop_duplicates()
    assert len(work) == 4 * len(wanted)
    by_ptr = next(s for _, s in work if s["name"] == PTR and s["noise_multiplier"] == 1.1)
    assert by_ptr["num_steps"] == of(plans, "printed", PTR)["steps"].item()
    assert by_ptr["release_options"]["sensitivity_bound"] == 0.5  # a share of R
    for _, settings in work:
        cells.history(settings)  # all of them are settings that a training takes


def test_what_steps_spend_is_what_the_plan_says(plans):
    for method in (GAUSSIAN, PTR):
        plan = of(plans, "printed", method).iloc[0]
        settings = {"block": BLOCK, "method": method, "noise_multiplier": plan["noise_multiplier"]}
        steps = [int(plan["steps"]) // 2, int(plan["steps"])]
        half, whole = trimming_plans.spent_cell({**settings, "steps": steps}, streams=None)
        assert whole["epsilon"] == pytest.approx(plan["spent"], rel=1e-3)
        assert half["epsilon"] < 0.95 * whole["epsilon"]


def test_differences_are_paired_and_the_best_is_the_best(plans):
    accuracy = {
        (GAUSSIAN, 0): 0.8,
        (GAUSSIAN, 1): 0.7,
        (PTR, 0): 0.85,
        (PTR, 1): 0.77,
        (DPSGD, 0): 0.1,
        (DPSGD, 1): 0.2,
    }
    rows = []
    for (_, plan), seed in ((p, s) for p in plans.iterrows() for s in (0, 1)):
        own = {"block": "small", "name": plan["method"], "noise_multiplier": plan["noise_multiplier"], "seed": seed}
        own |= {"corruption": "none", "corruption_rate": 0.0, "step": plan["steps"]}
        longer = 0.01 * (plan["steps"] == plans["steps"].max())
        rows.append(own | {"test_accuracy": accuracy[plan["method"], seed] + longer})
    rows = pd.DataFrame(rows).drop_duplicates(["name", "noise_multiplier", "step", "seed"])
    read = trimming_plans.readings(rows, plans)
    assert len(read) == 2 * len(plans)
    gaps = trimming_plans.differences(read, num_test=100).set_index(["comparison", "accountant"])
    aligned = gaps.loc[("aligned", "pld")]
    assert aligned["difference"] == pytest.approx(0.06)
    assert aligned["error"] == pytest.approx(0.01)
    assert aligned["wins"] == aligned["seeds"] == 2
    best = trimming_plans.best_of(read)
    assert (best["steps"] == plans["steps"].max()).all()
    assert gaps.loc[("best", "pld")]["difference"] == pytest.approx(0.06)
    one = trimming_plans.differences(read[read["seed"] == 0], num_test=100)
    assert (one["error"] > 0.05).all()  # of two counts of 100


@pytest.mark.paper("ptr", "Table 1")
@pytest.mark.paper("ptr", "Table 3")
@pytest.mark.paper("ptr", "Table 4")
def test_the_printed_tables_are_read_from_the_claims():
    found = trimming_plans.printed(claims.load())
    counts = found.groupby("table").size()
    assert counts[[1, 3, 4]].tolist() == [42, 8, 14]
    row = found.set_index("claim").loc[trimming_plans.claim_id(1, "mnist", "label", 0.1, 5.0)]
    assert (row[GAUSSIAN], row[PTR], row["difference"]) == (89.15, 94.608, 5.456)
    letters = trimming_plans.claim_id(3, "emnist_letters", "targeted_label", 0.2, 2.5)
    assert found.set_index("claim").loc[letters][PTR] == 76.67


def test_ours_stand_beside_the_printed_pairs():
    told = trimming_plans.printed(claims.load())
    told = told[(told["table"] == 1) & (told["block"] == "mnist")]
    base = {"block": "mnist", "epsilon": 2.0, "accountant": "pld", "seeds": 1, "wins": 1, GAUSSIAN: 0.8, PTR: 0.9}
    base |= {"difference": 0.1, "error": 0.01}
    clean = {**base, "comparison": "printed", "corruption": "none", "corruption_rate": 0.0}
    noisy = {**base, "comparison": "aligned", "corruption": "gradient", "corruption_rate": 0.2, "difference": -0.02}
    table = trimming_plans.beside(pd.DataFrame([clean, noisy]), told, epsilons={"mnist": [3.0, 2.0]})
    assert len(table) == 14
    table = table.set_index("claim")
    first = table.loc["ptr/table_1_mnist_label_0_eps3"]
    assert (first["epsilon_here"], first["ours"], first["printed"]) == (2.0, 90.0, pytest.approx(10.0))
    assert table.loc["ptr/table_1_mnist_gradient_20_eps3"]["aligned"] == pytest.approx(-2.0)
    assert table["printed"].notna().sum() == 1
    assert table.loc["ptr/table_1_mnist_label_0_eps5"]["epsilon_here"] == 3.0
    ax = plt.figure().add_subplot()
    assert trimming_plans.draw(ax, table.reset_index()) == 1
    assert [t.get_text() for t in ax.get_yticklabels()] == ["MNIST, label 0, ε = 2"]
    plt.close(ax.figure)
    text = trimming_plans.in_layout(table.reset_index())
    assert "| MNIST | label 0 | 3 (ours: 2) | 87.53 / 80.00 | 91.43 / 90.00 | +3.90 | +10.00 ± 1.00 | – | – |" in text


def test_bad_blocks_are_refused_by_name():
    with pytest.raises(ValueError, match="sensitivity_bound must be at most max_grad_norm"):
        Block(**{**BLOCK, "sensitivity_bound": 4.0})
    with pytest.raises(ValueError, match="sample_rate"):
        Block(**{**BLOCK, "sample_rate": 0.0})
    with pytest.raises(ValueError, match="comparisons"):
        trimming_plans.plan_cell({"block": BLOCK, "epsilon": 3.0, "comparisons": ["all"]}, streams=None)


TABLE_2 = {"name": "VGG11", "sample_rate": 2048 / 50_000, "max_grad_norm": 5.0, "sensitivity_bound": 3.0}
TABLE_2 |= {"ptr_noise": 2.2, "gaussian_noise": 1.8}


@pytest.mark.paper("ptr", "Table 2")
def test_the_budget_of_table_2_pays_for_a_quarter_of_the_steps_with_the_test():
    block = Block(**TABLE_2)
    steps = {m: block.num_steps(m, 3.0)[0] for m in (PTR, GAUSSIAN)}
    assert steps == {PTR: 208, GAUSSIAN: 795}


def test_steps_whose_tests_alone_spend_more_are_left_out(monkeypatch):
    most = {PTR: (10, 2.9), GAUSSIAN: (400, 2.9)}
    monkeypatch.setattr(Block, "num_steps", lambda self, method, epsilon, **_: most[method])
    rows = trimming_plans.plan_cell({"block": TABLE_2, "epsilon": 3.0, "comparisons": ["best"]}, streams=None)
    best = {(r["method"], r["steps"]) for r in rows if r["comparison"] == "best"}
    assert best == {(GAUSSIAN, 10), (GAUSSIAN, 400), (PTR, 10)}


@pytest.mark.paper("ptr", "Table 2")
def test_table_2_has_28_pairs_of_which_one_printed_difference_is_wrong():
    table = trimming_plans.printed(claims.load()).query("table == 2")
    assert len(table) == 28
    wrong = table[(table[PTR] - table[GAUSSIAN]).round(2) != table["difference"]]
    assert wrong["claim"].tolist() == ["ptr/table_2_resnet18_label_0_eps3"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "corruptions must hold at least one kind"),
        ({"labl": [0.1]}, "a kind in corruptions must be one of .*label"),
        ({"label": 0.1}, "corruptions must hold a list of rates for 'label', got 0.1"),
        ({"label": [1.5]}, "a rate of 'label' in corruptions"),
    ],
)
def test_bad_kinds_of_corruption_are_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        trimming_plans.kinds("corruptions", given)


def test_a_budget_that_pays_for_no_step_is_told_and_no_pair_is_an_empty_table():
    at = {"block": "small", "epsilon": 0.01, "comparison": "printed", "accountant": "pld", "spent": 0.0, "steps": 0}
    plans = pd.DataFrame([{**at, "method": m, "noise_multiplier": 1.0} for m in (GAUSSIAN, PTR)])
    with pytest.raises(ValueError, match="epsilons of 'small' must pay for at least one step of a method"):
        trimming_plans.trainings(trimming_plans.Block(**BLOCK), plans, conditions=[("label", 0.0)], seeds=[0])
    read = plans.assign(corruption="none", corruption_rate=0.0, seed=0, test_accuracy=0.5)
    found = trimming_plans.differences(read[read["method"] == GAUSSIAN], num_test=10)
    assert found.empty
    told = pd.DataFrame(
        [{"claim": "x", "block": "small", "corruption": "label", "corruption_rate": 0.0, "epsilon": 2.0}]
    )
    beside = trimming_plans.beside(found, told, epsilons={"small": [0.01]})
    assert beside["printed"].isna().all()
