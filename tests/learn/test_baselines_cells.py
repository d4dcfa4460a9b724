"""Baselines as cells of a sweep: the same columns for all, calibrated noise, rows that do not depend on others."""

import math

import pytest

from privrob.kinds import Streams
from privrob.learn.baselines import cells

STREAMS = Streams(3, "baselines")
SMALL = {"network": "dense", "network_options": {"num_hidden": 6}}

CELL = {
    "dataset": "synthetic",
    "shape": (1, 3, 3),
    "num_records": 60,
    "num_test": 20,
    "num_steps": 4,
    "batch_size": 10,
    "attack_radii": [0.1, 0.3],
    "attacks": ["fgsm", "mim"],
    "attack_steps": 2,
    "num_attacked": 10,
    "num_certified": 4,
    "num_draws": 20,
    **SMALL,
}


@pytest.mark.parametrize("method", cells.METHODS)
def test_a_cell_gives_the_same_columns_for_every_method(method, tmp_path):
    own = {"noise_multiplier": 1.0} if "sgd" in method else {}
    rows = cells.train_cell(CELL | {"method": method, **own}, streams=STREAMS, scratch=tmp_path)
    assert rows == cells.train_cell(CELL | {"method": method, **own}, streams=STREAMS)
    assert [row["attack"] for row in rows] == ["none"] * 2 + ["fgsm"] * 2 + ["mim"] * 2
    for row in rows:
        assert 0 <= row["conventional_accuracy"] <= 1
        assert row["method"] == method
        assert row["variant"] == "sound"
        assert row["num_attacked"] == 10
        has = method in ("pixeldp", "securesgd", "securesgd_agm")
        assert ("certified_accuracy_sound" in row) == has
        assert row["num_certified"] == (4 if has else 0)
        assert row["epsilon"] > 0
    finite = {row["epsilon"] < math.inf for row in rows}
    assert finite == {method not in ("kurakin", "pixeldp")}


def test_a_cell_calibrates_its_noise_and_refuses_what_it_does_not_know():
    rows = cells.train_cell(CELL | {"method": "dpsgd", "epsilon": 2.0, "attacks": []}, streams=STREAMS)
    assert 1.9 < rows[0]["epsilon"] <= 2.0
    for changes, message in (
        ({"method": "sgd"}, "method must be one of"),
        ({"method": "dpsgd"}, "either epsilon or noise_multiplier"),
        ({"method": "dpsgd", "epsilon": 1.0, "noise_multiplier": 1.0}, "either epsilon or noise_multiplier"),
        ({"method": "kurakin", "noise_multiplier": 1.0}, "settings must be one of"),
        ({"method": "securesgd", "mechanism": "agm", "noise_multiplier": 1.0}, "mechanism must be 'hgm'"),
        ({"method": "kurakin", "attacks": ["cw"]}, "attacks must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            cells.train_cell(CELL | changes, streams=STREAMS)
    with pytest.raises(ValueError, match="attack_radii"):
        cells.train_cell(
            {k: v for k, v in CELL.items() if k != "attack_radii"} | {"method": "kurakin"}, streams=STREAMS
        )


def test_a_row_does_not_depend_on_which_other_attacks_are_run():
    both = cells.train_cell(CELL | {"method": "pixeldp", "attacks": ["fgsm", "pgd"]}, streams=STREAMS)
    alone = cells.train_cell(CELL | {"method": "pixeldp", "attacks": ["pgd"]}, streams=STREAMS)
    assert both[4:] == alone[2:]
    models_ = ["surrogate", "fixed", "eot"]
    rows = cells.train_cell(
        CELL | {"method": "securesgd", "noise_multiplier": 1.0, "attack_models": models_}, streams=STREAMS
    )
    assert [row["attack_model"] for row in rows[2:8]] == [m for m in models_ for _ in range(2)]
