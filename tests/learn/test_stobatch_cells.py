"""One training as a cell: rows of every kind with all switches, certificates kept apart, bad settings refused."""

import json
import math

import pytest

from privrob.kinds import Streams
from privrob.learn import attacked
from privrob.learn.stobatch import cells
from privrob.learn.stobatch.settings import SWITCHES
from privrob.robust import certify

STREAMS = Streams(2, "cell")
RADII = (0.05, 0.4)


def settings(**changes):
    base = {
        "dataset": "synthetic",
        "shape": (1, 6, 6),
        "num_records": 100,
        "num_test": 30,
        "network": "mnist",
        "network_options": {"num_hidden": 8},
        "num_classes": 3,
        "num_steps": 16,
        "batch_size": 20,
        "epsilon_features": 200.0,
        "epsilon_labels": 5.0,
        "attacks": ("fgsm",),
        "learning_rate": 2e-2,
        "radius_high": 0.2,
        "attack_kinds": ("fgsm", "ifgsm"),
        "attack_radii": RADII,
        "attack_models": ("surrogate", "fixed"),
        "attack_test_steps": (1, 3),
        "certificates": ("sound", "as_printed", "as_released"),
        "certificate_radii": RADII,
        "num_draws": 60,
        "num_certified": 8,
    }
    return {**base, **changes}


@pytest.fixture(scope="module")
def rows():
    return cells.train_cell(settings(), streams=STREAMS)


def test_there_is_a_row_for_every_question(rows):
    kinds = [r["row"] for r in rows]
    assert kinds.count("training") == 1
    attacked = [r for r in rows if r["row"] == "attack"]
    assert len(attacked) == 1 + 2 * len(RADII) * 3  # clean; of each model: fgsm once, ifgsm of 1 and 3 steps
    assert attacked[0]["kind"] is None
    assert kinds.count("certificate") == 3 * len(RADII)
    assert {r["attack_test_steps"] for r in attacked if r["kind"] == "fgsm"} == {1}
    json.dumps(rows)


def test_every_row_has_the_switches_and_the_epsilons(rows):
    for row in rows:
        assert not {
            *SWITCHES,
            "claimed_epsilon",
            "honest_epsilon_inputs",
            "honest_epsilon",
            "data",
            "num_records",
        } - set(row)
        assert row["honest_epsilon"] == math.inf
        assert 0 < row["claimed_epsilon"] < math.inf
        assert row["data"]


def test_attacks_only_hurt_more_with_radius(rows):
    def accuracy(**about):
        return [r["accuracy"] for r in rows if r["row"] == "attack" and all(r[k] == v for k, v in about.items())]

    clean = accuracy(kind=None)[0]
    through = accuracy(kind="ifgsm", attack_model="fixed", attack_test_steps=3)
    assert clean > 0.5
    assert through[1] <= through[0] <= clean
    assert through[1] < clean


@pytest.mark.paper("stobatch", "Algorithm 3")
def test_certificates_are_kept_apart_and_only_the_sound_one_guarantees(rows):
    found = [r for r in rows if r["row"] == "certificate"]
    assert {r["certificate"] for r in found if r["guaranteed"]} == {"sound"}
    assert {r["certificate_release"] for r in found if r["certificate"] != "as_released"} == {None}
    for row in found:
        assert row["certified_accuracy"] <= row["accuracy"]
    largest = {c: max(r["largest_size"] for r in found if r["certificate"] == c) for c in certify.KINDS}
    assert largest["sound"] < largest["as_printed"]


def test_a_batch_statistic_guarantees_nothing():
    rows = cells.train_cell(settings(batch_norm_evaluation="batch", attack_kinds=(), num_steps=1), streams=STREAMS)
    assert not any(r["guaranteed"] for r in rows if r["row"] == "certificate")


def test_certificates_at_attacked_images_are_of_their_own_radius():
    rows = cells.train_cell(
        settings(
            certificate_inputs=("attacked",),
            certificate_radii=(),
            certificates=("sound",),
            attack_kinds=("fgsm",),
            attack_models=("eot",),
            eot_draws=2,
            num_steps=1,
            noise="independent",
        ),
        streams=STREAMS,
    )
    found = [r for r in rows if r["row"] == "certificate"]
    assert [(r["kind"], r["attack_model"], r["radius"]) for r in found] == [("fgsm", "eot", r) for r in RADII]
    assert {r["eot_draws"] for r in rows if r["row"] == "attack" and r["kind"]} == {2}
    assert all(math.isfinite(r["honest_epsilon_inputs"]) for r in rows)


def test_layers_take_the_scales_that_inference_draws():
    run = cells.Training(*_parts(psi=4.0), num_classes=3, streams=STREAMS)
    sound, printed = cells.layers(run, "sound"), cells.layers(run, "as_printed")
    weight = run.network.first.weight.detach().abs()
    assert sound.psi == 4.0
    assert sound.input_sensitivity == 36
    assert sound.hidden_sensitivity == pytest.approx(9 * weight.sum().item(), rel=1e-6)
    assert printed.hidden_sensitivity == pytest.approx(9 * weight.flatten(1).sum(1).max().item(), rel=1e-6)
    assert cells.layers(run, "as_released").hidden_sensitivity < sound.hidden_sensitivity
    alone = cells.Training(*_parts(noise="independent", psi=4.0), num_classes=3, streams=STREAMS)
    assert cells.layers(alone, "sound").psi == 1.0


def _parts(**changes):
    own = cells._checked(settings(**changes))[0]
    tensors = attacked.loaded("synthetic", {"shape": (1, 6, 6), "num_records": 100, "num_test": 30, "num_classes": 3})[
        1
    ]
    return own, *tensors


def test_portions_of_images_are_certified_as_the_whole(monkeypatch):
    """Without redrawn noise nothing but the portions could differ."""
    asked = settings(psi=1e9, num_steps=3, attack_kinds=(), num_certified=9)
    whole = cells.train_cell(asked, streams=STREAMS)
    monkeypatch.setattr(attacked, "_CERTIFIED_AT_ONCE", 4)
    for a, b in zip(whole, cells.train_cell(asked, streams=STREAMS)):
        for name in ("accuracy", "certified_accuracy", "num_images", "guaranteed"):
            assert a.get(name) == b.get(name)


def test_an_untrained_surrogate_is_another_target():
    asked = {"attack_models": ("surrogate",), "attack_kinds": ("ifgsm",), "attack_radii": (0.1, 0.2, 0.3)}
    asked |= {"certificates": (), "num_steps": 8}
    one, other = (
        [r["accuracy"] for r in cells.train_cell(settings(**asked, surrogate_statistics=s), streams=STREAMS)[2:]]
        for s in (None, "initial")
    )
    assert one != other


def test_a_cell_resumes_and_ends_the_same(tmp_path, rows):
    (tmp_path / "training.pt").write_bytes(b"rubbish of an older run")
    assert cells.train_cell(settings(save_every=2), streams=STREAMS, scratch=tmp_path) == rows
    assert cells.train_cell(settings(save_every=2), streams=STREAMS, scratch=tmp_path) == rows  # nothing left to train


def test_algorithm_four_in_a_cell():
    rows = cells.train_cell(
        settings(pairing="pairs", num_trainers=2, attack_kinds=(), certificates=(), num_steps=2, timed=True),
        streams=STREAMS,
    )
    assert {r["num_trainers"] for r in rows} == {2}
    assert rows[0]["seconds"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batchsize": 3}, "settings must be one of"),
        ({"attack_kinds": ("cw",)}, "attack_kinds"),
        ({"attack_kinds": "fgsm"}, "attack_kinds must be a list"),
        ({"attack_models": ("white",)}, "attack_models"),
        ({"attack_radii": (-0.1,)}, "attack_radii"),
        ({"attack_test_steps": (0,)}, "attack_test_steps"),
        ({"certificates": ("proved",)}, "certificates"),
        ({"certificate_radii": ()}, "certificate_radii must hold"),
        ({"certificate_release": "2021"}, "certificate_release"),
        ({"surrogate_statistics": "none"}, "surrogate_statistics"),
        ({"num_draws": 0}, "num_draws"),
        ({"failure_prob": 0.0}, "failure_prob"),
        ({"crop": 9}, "crop"),
        ({"noise": "some"}, "noise"),
    ],
)
def test_bad_settings_are_refused_by_name(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        cells.train_cell(settings(**change), streams=STREAMS)


def test_a_dataset_must_be_named():
    with pytest.raises(ValueError, match="dataset"):
        cells.train_cell({"network": "mnist"}, streams=STREAMS)
