"""Readings of Equation 13: each number again by hand."""

import math

import numpy as np
import pytest

from privrob.robust import certify_readings, certify_study, certify_toy


@pytest.mark.paper("stobatch", "Figure 6")
def test_caps_of_both_readings_of_d_by_hand():
    """b and the bounds as in the document's formulas, α = 0.05."""
    gamma_x = 4950 / 2499

    def scale(norm):
        return gamma_x * (1 + 1 / gamma_x + norm / (2 * gamma_x)) / 0.9

    half = math.sqrt(math.log(20 / 0.05) / (2 * 2000))
    hoeffding = 0.5 * math.log((1 - half) / half)
    lower = 0.025 ** (1 / 1800)  # nine tenths of the draws measure
    exact = 0.5 * math.log(lower / (1 - lower))
    rows = certify_readings.caps("mnist", 1.0, sizes=[0.05, 0.6], large_norm=12.0, failure_prob=0.05)
    for row, d in zip(rows, (784, 25), strict=True):
        assert row["d"] == d
        assert row["input, least"] == pytest.approx(math.sqrt(scale(0.491) * hoeffding / d), rel=1e-9)
        for norm in (1, 12):
            assert row[f"norm {norm}"] == pytest.approx(math.sqrt(scale(norm) * exact / d), rel=1e-9)
        radius, b = row["both"], scale(0.491)
        assert radius**2 * d / b + radius * 0.491 * 196 / (2 * b) == pytest.approx(exact, rel=1e-9)
        assert row["α = 0.5"] > row["norm 12"]
    inputs, patch = rows
    assert inputs["norm 12"] < 0.6 < patch["norm 12"]  # the reading of d decides, where the hidden layer is left out,
    assert patch["both"] < 0.25  # and does not, where it counts
    assert (patch["sizes, both"], patch["sizes, input"]) == (1, 2)


def test_colour_images_have_four_meanings_of_d():
    assert list(certify_readings.meanings_of_d("cifar10").values()) == [2352, 784, 48, 16]
    assert list(certify_readings.meanings_of_d("tiny_imagenet").values()) == [12288, 4096, 147, 49]


def test_norm_allowed_is_where_the_radius_is_met():
    how = {"d": 25, "failure_prob": 0.05}
    norm = certify_readings.norm_allowed("mnist", 1.0, attack_radius=0.6, **how)
    reached = certify_readings.largest_radius("mnist", 1.0, theta_norm=norm, hidden=True, **how)
    assert reached == pytest.approx(0.6, rel=1e-6)
    assert 0 < norm < 0.05
    assert certify_readings.norm_allowed("mnist", 1.0, d=784, failure_prob=0.05, attack_radius=0.6) == 0.0


@pytest.mark.paper("stobatch", "Equation 13")
def test_ratio_grows_without_end_near_the_border_from_exact_expectations_only():
    means = np.array([1e-5, 1e-4, 2e-3])
    rows = certify_readings.near_the_border("mnist", 1.0, means=means, failure_prob=0.05)
    exact = np.array([row["exact"] for row in rows])
    assert exact[0] / exact[1] == pytest.approx(math.sqrt(10), rel=1e-3)  # v^(−1/2)
    toy = certify_study.toy_of("mnist", 1.0)
    score = float(certify_toy.laplace_sum_tail(-2e-3 * 784 * 2 / toy.layers.input_scale, num_terms=784))
    by_hand = math.sqrt(toy.layers.input_scale * 0.5 * math.log(score / (1 - score)) / 784) / 2e-3
    assert exact[2] == pytest.approx(by_hand, rel=1e-9)
    assert all(row["Hoeffding"] == 0 for row in rows)  # the printed n shows nothing so near


def test_near_the_border_uses_the_median_count():
    (row,) = certify_readings.near_the_border("cifar10", 2.0, means=[0.01], failure_prob=0.05)
    toy = certify_study.toy_of("cifar10", 2.0)
    share = round(1000 * float(toy.scores(0.01, place="input")[0])) / 1000
    half = math.sqrt(math.log(4 / 0.05) / 2000)
    epsilon = 0.5 * math.log((share - half) / (1 - share + half))
    wanted = math.sqrt(toy.layers.input_scale * epsilon / 2352) / 0.01
    assert row["Hoeffding"] == pytest.approx(wanted, rel=1e-9)
    assert row["Hoeffding"] < row["Clopper-Pearson"] < row["exact"]


@pytest.mark.paper("stobatch", "Equation 11")
@pytest.mark.paper("stobatch", "Equation 13")
def test_wrong_hidden_sensitivity_alone_gives_a_false_certificate():
    found = certify_readings.two_pixels(4.0, value=0.05)
    winner = (1 - 0.5 * math.exp(-0.05)) ** 2 * (1 - 0.5 * math.exp(-0.2))
    loser = (0.5 * math.exp(-0.05)) ** 2 * 0.5 * math.exp(-0.2)
    epsilon = 0.5 * math.log(winner / loser)
    assert found["printed"] == pytest.approx(epsilon / (2 + 4 / 2), rel=1e-12)
    assert found["sound"] == pytest.approx(epsilon / (2 + 8 / 2), rel=1e-12)
    assert found["sound"] < found["true radius"] < found["printed"]
    assert (found["label"], found["label beyond"]) == (0, 1)
    assert certify_readings.two_pixels(1e4, value=1e-7)["printed / true"] == pytest.approx(2, rel=1e-3)


def test_two_pixels_agree_with_draws():
    rng, n, theta, value = np.random.default_rng(3), 400_000, 4.0, 0.05
    pixels = value + rng.laplace(size=(n, 2))
    hidden = 2 * theta * value + rng.laplace(scale=2.0, size=n)
    means = [((pixels > 0).all(1)).mean() * (hidden > 0).mean(), ((pixels < 0).all(1)).mean() * (hidden < 0).mean()]
    # each of the four shares is off by at most 5 standard errors of 0.0008, at a level of 0.2 or more
    assert 0.5 * math.log(means[0] / means[1]) == pytest.approx(
        certify_readings.two_pixels(theta, value=value)["ε_r"], abs=0.04
    )


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="theta"):
        certify_readings.two_pixels(-1.0, value=0.05)
    with pytest.raises(ValueError, match="attack_radius"):
        certify_readings.norm_allowed("mnist", 1.0, d=25, attack_radius=0.0, failure_prob=0.05)
