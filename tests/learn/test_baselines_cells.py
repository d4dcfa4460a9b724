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
    "attack_kinds": ["fgsm", "mim"],
    "attack_test_steps": [2],
    "num_attacked": 10,
    "num_certified": 4,
    "num_draws": 20,
    "certificate_radii": [0.01],
    "certificate_inputs": ["clean", "attacked"],
    **SMALL,
}
NOISY = ("pixeldp", "securesgd", "securesgd_agm")
# what StoBatch's own cells call their columns
ATTACK = {"row", "kind", "attack_model", "attack_test_steps", "radius", "accuracy", "num_images"}
CERTIFICATE = {"certificate", "bound", "certified_accuracy", "median_size", "largest_size", "guaranteed", "num_draws"}
PRIVACY = {"claimed_epsilon", "honest_epsilon", "delta", "neighbouring", "sampling", "protects"}


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches")
@pytest.mark.parametrize("method", cells.METHODS)
def test_a_cell_gives_the_same_columns_for_every_method(method, tmp_path):
    own = {"noise_multiplier": 1.0} if "sgd" in method else {}
    rows = cells.train_cell(CELL | {"method": method, **own}, streams=STREAMS, scratch=tmp_path)
    assert rows == cells.train_cell(CELL | {"method": method, **own}, streams=STREAMS)
    kinds = [row["row"] for row in rows]
    assert kinds[:6] == ["training"] + ["attack"] * 5  # clean, and two attacks at two radii
    assert kinds[6:] == ["certificate"] * (3 * (1 + 4) if method in NOISY else 0)
    for row in rows:
        assert set(row) >= PRIVACY | {"method", "variant", "data", "num_records", "batch_size", "num_steps"}
        assert (row["method"], row["variant"]) == (method, "sound")
        assert (row["honest_epsilon"] < math.inf) == (method not in ("kurakin", "pixeldp"))
        assert row["honest_epsilon"] > 0
        if row["row"] != "training":
            assert set(row) >= ATTACK
            assert 0 <= row["accuracy"] <= 1
    for row in rows[6:]:
        assert set(row) >= CERTIFICATE
        assert row["certified_accuracy"] <= row["accuracy"]
        assert row["guaranteed"] == (row["certificate"] != "as_printed")
    assert rows[0]["step"] == 4
    assert (rows[0]["stretch"] is not None) == (method in NOISY)


def test_a_cell_calibrates_its_noise_and_refuses_what_it_does_not_know():
    rows = cells.train_cell(CELL | {"method": "dpsgd", "epsilon": 2.0, "attack_kinds": []}, streams=STREAMS)
    assert 1.9 < rows[0]["honest_epsilon"] <= 2.0
    for changes, message in (
        ({"method": "sgd"}, "method must be one of"),
        ({"method": "dpsgd"}, "either epsilon or noise_multiplier"),
        ({"method": "dpsgd", "epsilon": 1.0, "noise_multiplier": 1.0}, "either epsilon or noise_multiplier"),
        ({"method": "kurakin", "noise_multiplier": 1.0}, "settings must be one of"),
        ({"method": "securesgd", "mechanism": "agm", "noise_multiplier": 1.0}, "mechanism must be 'hgm'"),
        ({"method": "kurakin", "attack_kinds": ["cw"]}, "attack_kinds must be one of"),
        ({"method": "kurakin", "attack_radii": [-0.1]}, "attack_radii must"),
        ({"method": "kurakin", "num_draws": 0}, "num_draws must"),
        ({"method": "kurakin", "crop": 9}, "crop must"),
    ):
        with pytest.raises(ValueError, match=message):
            cells.train_cell(CELL | changes, streams=STREAMS)
    with pytest.raises(TypeError, match="attack_radii must be a list"):
        cells.train_cell(CELL | {"method": "kurakin", "attack_radii": 0.1}, streams=STREAMS)
    with pytest.raises(ValueError, match="method"):
        cells.train_cell(CELL, streams=STREAMS)


def test_a_row_does_not_depend_on_which_other_attacks_are_run():
    both = cells.train_cell(CELL | {"method": "pixeldp", "attack_kinds": ["fgsm", "pgd"]}, streams=STREAMS)
    alone = cells.train_cell(CELL | {"method": "pixeldp", "attack_kinds": ["pgd"]}, streams=STREAMS)
    assert [row for row in both if row.get("kind") != "fgsm"] == alone


def test_all_three_attacked_models_are_there():
    own = {"method": "securesgd", "noise_multiplier": 1.0, "variant": "as_released", "eot_draws": 2}
    names = ["surrogate", "fixed", "eot"]
    rows = cells.train_cell(CELL | own | {"attack_models": names, "certificate_inputs": []}, streams=STREAMS)
    assert [row["attack_model"] for row in rows[2:]] == [m for m in names for _ in range(4)]
    assert rows[0]["honest_epsilon"] == math.inf
    assert rows[0]["gradient_epsilon"] > rows[0]["claimed_epsilon"]
