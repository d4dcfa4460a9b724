"""CIFAR-10's trainings: every method's cell is accepted, and its rows are read as one table."""

import importlib

import pandas as pd
import pytest

from privrob.kinds import Streams
from privrob.learn import stobatch_cifar
from privrob.suite import claims

DATA = {"dataset": "synthetic:cifar10", "num_records": 30, "num_test": 6, "network": "cifar10", "crop": 8}
EVALUATION = {"attack_kinds": ["ifgsm"], "attack_radii": [0.1], "attack_test_steps": [1], "num_certified": 3}
EVALUATION |= {"num_draws": 5, "certificate_inputs": ["attacked"], "certificate_radii": [0.1]}
PLAN = {"num_steps": 1, "batch_size": 12, "attack_steps": 1, "data": DATA, "evaluation": EVALUATION}


def rows_of(method, **more):
    path, settings = stobatch_cifar.cell(method, epsilon=2.5, **PLAN, **more)
    module, name = path.split(":")
    return pd.DataFrame(getattr(importlib.import_module(module), name)(settings, streams=Streams(0, method)))


@pytest.mark.paper("stobatch", "Appendix P")
@pytest.mark.parametrize("method", list(stobatch_cifar.METHODS))
def test_every_method_trains_and_is_read(method):
    table = stobatch_cifar.readings(rows_of(method), [(method, 2.5)])
    assert set(table["method"]) == {method}
    assert set(table[table["kind"].notna()]["radius"]) == {0.1}
    assert table["value"].between(0, 100).all()
    assert {"as_printed", "sound"} <= set(table["metric"]) or method not in stobatch_cifar.CERTIFIED


@pytest.mark.paper("stobatch", "Appendix P")
def test_stobatch_has_the_documents_settings():
    _, settings = stobatch_cifar.cell("StoBatch", epsilon=2.0, **PLAN)
    assert (settings["adversarial_weight"], settings["psi"], settings["learning_rate"]) == (1.5, 10.0, 0.05)
    assert settings["nominal_batch_size"] == 1851  # of the noise scales, whatever the batch
    assert settings["attacks"] == ["ifgsm", "mim", "pgd"]


def test_several_cells_are_told_apart_by_their_order():
    one, two = rows_of("DP-SGD"), rows_of("StoBatch", more={"psi": 2.0})
    table = stobatch_cifar.readings(pd.concat([one, two], ignore_index=True), [("DP-SGD", 1.0), ("StoBatch", 2.0)])
    assert table.groupby("method", sort=False)["epsilon"].first().to_dict() == {"DP-SGD": 1.0, "StoBatch": 2.0}
    assert (table["method"] == "DP-SGD").sum() == (one["row"] != "training").sum()
    with pytest.raises(ValueError, match="asked"):
        stobatch_cifar.readings(one, [("DP-SGD", 1.0), ("StoBatch", 2.0)])


def test_an_unknown_method_is_named():
    with pytest.raises(ValueError, match="method"):
        stobatch_cifar.cell("Stobatch", epsilon=2.0, **PLAN)


def test_printed_values_are_those_of_the_claims():
    known, endings = claims.load(), {"body": "", "appendix": "_appendix"}
    printed = {(8, e, *key): v for e in endings for key, v in stobatch_cifar.PRINTED_8[e].items()}
    printed |= {(9, "body", *key): v for key, v in stobatch_cifar.PRINTED_9.items()}
    for (figure, place, method, metric), (mean, spread) in printed.items():
        name = f"stobatch/figure_{figure}_{stobatch_cifar.METHODS[method]}_{metric}"
        assert known[f"{name}{endings[place]}"].paper == mean
        assert known[f"{name}_spread{endings[place]}"].paper == spread
