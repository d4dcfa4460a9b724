"""The tables behind the notebook on certified robustness: each number again by a short independent way."""

import math

import numpy as np
import pytest
import torch

from privrob.accounting import functional_budget
from privrob.kinds import Streams
from privrob.robust import certify, certify_study


def streams():
    return Streams(9, "certify study")


@pytest.mark.paper("stobatch", "Figure 6")
def test_equation_13_cannot_certify_what_figure_6_reports():
    """b and the cap by hand; at μ = 0.6 the size would have to be 20 times larger."""
    rows = certify_study.caps("mnist", 1.0, theta_norms=[None], failure_prob=0.05)
    row = next(r for r in rows if r["bound"] == "clopper_pearson, joint" and not r["hidden layer"])
    gamma_x = 4950 / 2499
    b = gamma_x / (0.9 / (1 + 1 / gamma_x + 0.491 / (2 * gamma_x)))
    lower = (0.05 / 20) ** (1 / 2000)
    epsilon = 0.5 * math.log(lower / (1 - lower))
    assert row["b"] == pytest.approx(b, rel=1e-12)
    assert row["Equation 13"] == pytest.approx(math.sqrt(b * epsilon / 784), rel=1e-9)
    assert row["sound"] == pytest.approx(b * epsilon / (2 * 784), rel=1e-9)
    assert max(r["Equation 13"] for r in rows) < 0.12
    assert all(r["sound"] < r["Equation 13"] for r in rows)


@pytest.mark.paper("stobatch", "Figures 8 and 9")
def test_averages_of_figures_8_and_9_are_out_of_reach():
    grid = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5]
    for dataset, epsilon, reported in (("cifar10", 2.0, 42.59), ("tiny_imagenet", 5.0, 28.31)):
        rows = certify_study.caps(dataset, epsilon, theta_norms=[None, 12.0], failure_prob=0.05)
        top = max(r["Equation 13"] for r in rows)
        assert 100 * np.mean([mu < top for mu in grid]) < reported


def test_norm_needed_reaches_the_radius_and_no_smaller_one_does():
    norm = certify_study.norm_needed("mnist", 1.0, attack_radius=0.3, failure_prob=0.05)
    for factor, enough in ((1.0001, True), (0.9999, False)):
        layers = certify_study.layers_of("mnist", 1.0, theta_norm=factor * norm, hidden=False)
        epsilon = certify.cap(2000, num_classes=10, split="separate")
        assert (certify.certified_radii(epsilon, layers=layers, kind="as_printed")[1] > 0.3) == enough


@pytest.mark.paper("stobatch", "Corollary 1")
@pytest.mark.paper("stobatch", "Equation 10")
def test_costs_at_the_stated_radii_are_epsilon():
    layers = certify.Layers(1.5, 3.0, 12.0, 20.0)
    for name, cost in certify_study.corner_costs(layers, epsilon=0.6).items():
        assert cost == pytest.approx(1, rel=1e-9), name


@pytest.mark.paper("stobatch", "Algorithm 3")
def test_two_near_images_with_different_labels_one_of_them_certified():
    toy = certify_study.toy_of("cifar10", 2.0)
    how = {"mean": 0.04, "attack_radius": 0.05, "num_draws": 1000, "failure_prob": 0.05}
    rows = certify_study.two_images(toy, rng=streams().numpy("images"), **how)
    printed, sound = ([r for r in rows if r["kind"] == kind] for kind in ("as_printed", "sound"))
    assert printed[0]["robust"]
    assert [r["label"] for r in printed] == [0, 1]
    assert 0.04 < printed[1]["distance"] < 0.05
    assert not any(r["robust"] for r in sound)
    with pytest.raises(ValueError, match="mean must"):
        certify_study.two_images(toy, rng=streams().numpy("images"), **{**how, "mean": 0.06})


def test_units_alone_already_break_equation_13():
    how = {"means": np.geomspace(1e-3, 0.1, 8), "failure_prob": 0.05}
    for psi in (1.0, None):
        rows = certify_study.true_and_certified("cifar10", 2.0, psi=psi, **how)
        ratio = {
            k: max(r["certified"] / r["true radius"] for r in rows if r["kind"] == k) for k in ("sound", "as_printed")
        }
        assert ratio["sound"] <= 1 < ratio["as_printed"]


def test_data_set_has_the_scores_of_its_toy():
    toy = certify_study.toy_of("mnist", 1.0)
    means, labels, scores = certify_study.data_set(toy, num_images=50, num_draws=4000, rng=streams().numpy("set"))
    want = toy.scores(means)
    error = np.sqrt(want * (1 - want) / 4000) + 1e-4
    assert (abs(scores.mean(1) - want) < 5.5 * error).all()
    assert 0.8 < (labels == (means < 0)).mean() < 1
    assert functional_budget.configuration("mnist").redraw_divisor == toy.layers.psi


@pytest.mark.paper("stobatch", "Equation 8")
def test_attack_study_sees_that_relabelling_turns_back():
    weights = [torch.randn(s, generator=streams().torch(str(s)), dtype=torch.float64) for s in ((6, 20), (20, 3))]
    images = torch.rand(80, 6, generator=streams().torch("x"), dtype=torch.float64) - 0.5
    how = {"radius": 0.3, "num_steps": 10, "generator": streams().torch("start")}
    found = certify_study.attacks(lambda x: torch.tanh(x @ weights[0]) @ weights[1], images, **how)
    assert found["corner"] < 1e-9
    assert found["relabelled"] < found["one label"]
    assert 0 < found["higher"] <= 1
