"""What all models share: images in the document's range, rows of attacks and certificates from what is served."""

import math

import numpy as np
import pytest
import torch

from privrob.kinds import Streams
from privrob.learn import attacked

STREAMS = Streams(4, "attacked")
IMAGES = torch.tensor([[-0.9, 0.2], [0.4, -0.5], [0.1, 0.3], [0.8, 0.7]]).view(4, 1, 1, 2)
LABELS = torch.tensor([1, 0, 1, 1])  # served wrong: the last


class Larger:
    """Says which of two pixels is larger."""

    def surrogate(self, images):
        return images.flatten(1)

    fixed = predict_logits = surrogate

    def fresh(self, images, *, generator):
        return self.surrogate(images) + torch.randn(len(images), 2, generator=generator)


def answers(images, labels, radii, *, evaluation, generator):
    size = (images.flatten(1)[:, 0] - images.flatten(1)[:, 1]).abs().double().numpy() / 2
    right = images.flatten(1).argmax(1).numpy() == labels
    about = {"certificate": "exact", "bound": "none", "guaranteed": True}
    return [attacked.Answer(about, right, size[:, None] > np.asarray(radii), size, {"twice": 2 * size})]


def evaluate(**asked):
    evaluation = attacked.checked(asked)
    return attacked.evaluate(Larger, IMAGES, LABELS, evaluation=evaluation, streams=STREAMS, answers=answers)


@pytest.mark.paper("stobatch", "Section 4 (conventional acc, certified acc)")
def test_accuracies_are_those_counted_by_hand():
    """Margins / 2: 0.55, 0.45, 0.1, 0.05; three are right; an attack of radius r moves each pixel by r."""
    rows = evaluate(attack_kinds=["fgsm"], attack_radii=[0.12, 0.5], certificate_radii=[0.0, 0.12, 0.5])
    attack, certificate = ([r for r in rows if r["row"] == name] for name in ("attack", "certificate"))
    assert [r["accuracy"] for r in attack] == [0.75, 0.5, 0.25]
    assert [r["kind"] for r in attack] == [None, "fgsm", "fgsm"]
    assert [r["certified_accuracy"] for r in certificate] == [0.75, 0.5, 0.25]
    assert {r["accuracy"] for r in certificate} == {0.75}
    assert certificate[0]["median_size"] == pytest.approx(0.275)
    assert certificate[0]["median_twice"] == pytest.approx(0.55)
    assert certificate[0]["largest_size"] == pytest.approx(0.55)


def test_certificates_at_attacked_images_are_for_their_own_radius():
    rows = evaluate(attack_kinds=["fgsm", "pgd"], attack_radii=[0.12, 0.3], certificate_inputs=["attacked"])
    found = [(r["kind"], r["radius"], r["certified_accuracy"]) for r in rows if r["row"] == "certificate"]
    assert [f[:2] for f in found] == [(kind, r) for kind in ("fgsm", "pgd") for r in (0.12, 0.3)]
    assert found[0][2] == 0.5  # margins 0.43 and 0.33 are left, above 0.12
    assert found[1][2] == 0.0  # 0.25 and 0.15 are not above 0.3
    own = {"attack_models": ["surrogate", "eot"], "certificate_attack_models": ["surrogate"]}
    own |= {"attack_kinds": ["fgsm"], "attack_radii": [0.1], "certificate_inputs": ["attacked"], "eot_draws": 2}
    found = [(r["row"], r["attack_model"]) for r in evaluate(**own)]
    assert found[1:] == [("attack", "surrogate"), ("attack", "eot"), ("certificate", "surrogate")]


def test_portions_make_no_difference(monkeypatch):
    asked = {"attack_kinds": ["ifgsm"], "attack_radii": [0.2], "attack_test_steps": [3], "certificate_radii": [0.1]}
    whole = evaluate(**asked)
    monkeypatch.setattr(attacked, "_AT_ONCE", 3)
    monkeypatch.setattr(attacked, "_CERTIFIED_AT_ONCE", 1)
    assert evaluate(**asked) == whole


def test_the_first_so_many_images_are_used_and_none_give_no_rows_of_certificates():
    rows = evaluate(num_attacked=2, num_certified=3, certificate_radii=[0.1])
    assert [r["num_images"] for r in rows] == [2, 3]
    nothing = {"evaluation": attacked.checked({"certificate_radii": [0.1]}), "streams": STREAMS}
    rows = attacked.evaluate(Larger, IMAGES[:0], LABELS[:0], **nothing, answers=answers)
    assert [r["accuracy"] for r in rows] == [None]


def test_noise_under_attack_is_of_the_rows_own_stream():
    asked = {"attack_radii": [0.2], "attack_models": ["eot"], "eot_draws": 3}
    both = evaluate(**asked, attack_kinds=["fgsm", "pgd"])
    alone = evaluate(**asked, attack_kinds=["pgd"])
    assert both[2] == alone[1]
    assert both[1]["eot_draws"] == 3
    assert math.isfinite(both[1]["accuracy"])


def test_images_lie_in_the_documents_range_and_are_cropped_in_the_middle():
    _, tensors = attacked.loaded("synthetic", {"shape": (3, 8, 6), "num_records": 20, "num_test": 4}, crop=4)
    assert tensors.train_images.shape == (20, 3, 4, 4)
    assert -1 <= tensors.train_images.min() < -0.2
    assert 0.2 < tensors.train_images.max() <= 1
    _, whole = attacked.loaded("synthetic", {"shape": (3, 8, 6), "num_records": 20, "num_test": 4})
    assert (whole.train_images[:, :, 2:6, 1:5] == tensors.train_images).all()
