"""Certificates: bounds hold together, sizes are what each kind says, and only the sound ones survive an exact toy."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import gammaln, kve
from scipy.stats import norm

from privrob.accounting import functional_budget
from privrob.kinds import Streams
from privrob.robust import certify, certify_toy

MNIST = certify.Layers.of(functional_budget.split("mnist", 1.0), hidden_sensitivity=6670.0, psi=2.0)
INF = math.inf


def rng(name="draws"):
    return Streams(5, "certify").numpy(name)


def unanimous(num_draws, num_classes):
    scores = np.zeros((1, num_draws, num_classes))
    scores[:, :, 1] = 1
    return scores


# ------------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.paper("stobatch", "Theorem 5 (η-confidence)")
@pytest.mark.parametrize("bound", certify.BOUNDS)
@pytest.mark.parametrize("split", ["joint", "separate"])
def test_winner_and_others_are_bounded_together(bound, split):
    """Three nearly tied classes, α = 0.3, 3000 runs: a failure is a winner's or another's expectation left outside."""
    expected = np.array([0.34, 0.33, 0.31, 0.02])
    draws = rng(f"{bound} {split}")
    scores = np.eye(4)[draws.choice(4, size=(3000, 120), p=expected)]
    found = certify.class_bounds(scores, bound=bound, failure_prob=0.3, split=split)
    others = np.tile(expected, (3000, 1))
    others[np.arange(3000), found.label] = -1
    failed = (found.lower > expected[found.label]) | (found.upper < others.max(1))
    assert failed.mean() <= 0.3 + 5 * math.sqrt(0.3 * 0.7 / 3000)
    assert found.guaranteed
    assert len(set(found.label)) > 1


def test_picking_from_the_same_draws_costs_confidence():
    """The released split leaves the pair (top, runner-up) outside more often than the joint one."""
    expected = np.full(10, 0.1)
    scores = np.eye(10)[rng("ties").choice(10, size=(1500, 60), p=expected)]
    rates = {}
    for split in ("joint", "as_released"):
        found = certify.class_bounds(scores, bound="clopper_pearson", failure_prob=0.5, split=split)
        rates[split] = float((found.lower > 0.1).mean())
        assert found.guaranteed == (split == "joint")
    assert rates["joint"] < rates["as_released"]


@pytest.mark.paper("stobatch", "Section 3.4 (Hoeffding)")
def test_bounds_of_one_sample_by_hand():
    scores = np.zeros((1, 50, 2))
    scores[0, :40, 0], scores[0, 40:, 1] = 0.5, 1.0
    half = math.sqrt(math.log(4 / 0.1) / 100)  # α/(2K) = 0.1/4
    found = certify.class_bounds(scores, bound="hoeffding", failure_prob=0.1)
    assert (found.label[0], found.runner_up[0]) == (0, 1)
    np.testing.assert_allclose([found.lower[0], found.upper[0]], [0.4 - half, 0.2 + half], rtol=1e-12)
    votes = certify.class_bounds(scores, bound="clopper_pearson", failure_prob=0.1)
    with mpmath.workdps(30):  # the lower bound is where 40 or more votes of 50 have probability 1/40
        p = mpmath.mpf(votes.lower[0])
        tail = sum(mpmath.binomial(50, k) * p**k * (1 - p) ** (50 - k) for k in range(40, 51))
    assert float(tail) == pytest.approx(0.025, rel=1e-9)
    assert votes.upper[0] == pytest.approx(1 - votes.lower[0], rel=1e-12)  # two classes: the same event


def test_exclusive_scores_bound_the_others_by_the_winner():
    scores = unanimous(100, 40)
    loose, tight = (certify.class_bounds(scores, exclusive=e, split="separate").upper[0] for e in (False, True))
    assert tight < loose
    with pytest.raises(ValueError, match="exclusive=False"):
        certify.class_bounds(np.full((1, 5, 3), 0.9))
    assert certify.class_bounds(np.full((1, 5, 3), 0.9), exclusive=False).upper[0] == 1


def test_a_separate_selection_does_not_look_at_the_measurement():
    scores = np.concatenate([np.tile([1.0, 0.0, 0.0], (10, 1)), np.tile([0.0, 1.0, 0.0], (90, 1))])[None]
    found = certify.class_bounds(scores, split="separate", num_selection=10)
    assert found.label[0] == 0
    assert found.lower[0] == 0
    assert certify.class_bounds(scores).label[0] == 1


@pytest.mark.paper("stobatch", "Equation 11")
def test_product_of_mechanisms():
    first, second = np.full((2, 3, 2), 0.5), np.full((2, 3, 2), 0.2)
    np.testing.assert_allclose(certify.product(first, second), 0.1)
    with pytest.raises(ValueError, match="one shape"):
        certify.product(first, second[:1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((3, 4)), "3 dimension"),
        (np.full((1, 4, 3), np.nan), "finite"),
        (np.full((1, 4, 3), 2.0), "not logits"),
        (np.zeros((1, 4, 1)), "2 classes"),
    ],
)
def test_scores_that_cannot_be_bounded_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        certify.class_bounds(bad)


# ------------------------------------------------------------------------------------------------------------------ ε


@pytest.mark.paper("stobatch", "Equation 4")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(0.01, 1), st.floats(1e-6, 1), st.sampled_from([0.0, 1e-9, 1e-3, 0.05]))
def test_the_largest_epsilon_meets_equation_4_and_no_larger_one_does(lower, upper, delta):
    epsilon = float(certify.largest_epsilon(lower, upper, delta=delta))

    def gap(e):
        return lower - math.exp(2 * e) * upper - (1 + math.exp(e)) * delta

    if epsilon == 0:
        assert gap(1e-9) <= 1e-7
    else:
        assert abs(gap(epsilon)) <= 1e-9
        assert gap(0.999 * epsilon) > 0


@pytest.mark.paper("stobatch", "Equation 13")
def test_without_delta_it_is_half_the_log_ratio():
    assert certify.largest_epsilon(0.9, 0.1) == pytest.approx(0.5 * math.log(9), rel=1e-15)
    assert certify.largest_epsilon(0.5, 0.5) == 0
    assert certify.largest_epsilon(0.2, 0.0) == INF
    assert certify.largest_epsilon(0.0, 0.0) == 0
    np.testing.assert_array_equal(certify.largest_epsilon([0.9, 0.1], [0.1, 0.9]) > 0, [True, False])


# -------------------------------------------------------------------------------------------------------------- radii


@pytest.mark.paper("stobatch", "Corollary 1")
def test_multiples_and_their_combination():
    layers = certify.Layers(3.0, 6.0, 20.0, 50.0)
    kappa, phi, both = certify.multiples(0.7, layers=layers, attack_radius=0.1)
    assert kappa == pytest.approx(3.0 * 0.7 / 2.0, rel=1e-14)
    assert phi == pytest.approx(6.0 * 0.7 / 50.0, rel=1e-14)
    assert both == pytest.approx(kappa * phi / (kappa + phi), rel=1e-14)
    size = certify.robustness_size(0.7, layers=layers, attack_radii=[0.1], kind="as_printed")
    assert size[0, 0] == pytest.approx(both, rel=1e-14)


@pytest.mark.paper("stobatch", "Equation 13")
def test_sizes_of_each_kind_by_hand():
    layers = certify.Layers(3.0, 6.0, 20.0, 30.0, psi=4.0)
    how = {"layers": layers, "attack_radii": [0.1, 0.5]}
    sound = certify.robustness_size([1.3], **how)
    np.testing.assert_allclose(sound, [[1.3 / (4 * (20 / 3 + 5))] * 2], rtol=1e-14)
    printed = certify.robustness_size([1.3], kind="as_printed", **how)
    np.testing.assert_allclose(printed, [[1.3 / (2 / 3 + 5), 1.3 / (10 / 3 + 5)]], rtol=1e-14)
    june = certify.robustness_size([1.3], kind="as_released", release="2020-06", **how)
    np.testing.assert_allclose(june, [[0.1 * 1.3 / (1.5 + 0.2), 0.5 * 1.3 / (0.3 + 0.2)]], rtol=1e-14)
    september = certify.robustness_size([1.3], kind="as_released", release="2020-09", **how)
    np.testing.assert_allclose(september, 200 * printed, rtol=1e-14)
    assert (certify.robustness_size([0.0], **how) == 0).all()


@pytest.mark.parametrize(
    "kind", [("sound", None), ("as_printed", None), *[("as_released", r) for r in certify.RELEASES]]
)
@pytest.mark.parametrize("hidden", [0.0, 96.0])
def test_certified_radii_are_where_the_size_exceeds_the_attack(kind, hidden):
    layers = certify.Layers(3.585, 7.17, 784.0, hidden, psi=2.0)
    how = dict(zip(("kind", "release"), kind))
    radii = np.geomspace(1e-5, 30, 4001)
    for epsilon in (0.05, 0.4, 2.9):
        smallest, largest = certify.certified_radii(epsilon, layers=layers, **how)
        accepted = certify.robustness_size([epsilon], layers=layers, attack_radii=radii, **how)[0] > radii
        inside = (radii > smallest) & (radii < largest)
        near = np.minimum(abs(radii / max(smallest, 1e-300) - 1), abs(radii / max(largest, 1e-300) - 1)) < 1e-6
        assert (accepted == inside)[~near].all()
    assert certify.certified_radii(0.0, layers=layers, **how) == (INF, 0)


@pytest.mark.paper("stobatch", "Appendix N")
def test_a_smaller_redraw_makes_a_smaller_sound_radius_and_no_other():
    wide, narrow = (
        certify.Layers.of(functional_budget.split("cifar10", 2.0), hidden_sensitivity=0, psi=p) for p in (1, 10)
    )
    radii = [
        [certify.certified_radii(2.0, layers=x, kind=k)[1] for x in (wide, narrow)] for k in ("sound", "as_printed")
    ]
    assert radii[0][0] == pytest.approx(10 * radii[0][1])
    assert radii[1][0] == radii[1][1]
    stored = np.full((4, 5), 7.0)
    drawn = certify.redraw(stored, scale=3.0, psi=2.0, num_draws=20_000, rng=rng())
    assert drawn.shape == (20_000, 4, 5)
    error = 1.5 * math.sqrt(2) / math.sqrt(drawn.size)
    assert abs(drawn.mean() - 7.0) < 5 * error
    assert abs(abs(drawn - 7.0).mean() - 1.5) < 5 * error  # the mean absolute value of Laplace noise is its scale


@pytest.mark.paper("stobatch", "Section 3.4 (Δ_r^x, Δ_r^h)")
def test_sensitivities_against_all_corners():
    """l1 change of h = Wx over the corners of the cube; the printed norm, of the other orientation, is too small."""
    weights = rng("weights").normal(size=(3, 8))
    corners = np.array(list(np.ndindex(*[2] * 8))) * 2 - 1
    exact = abs(corners @ weights.T).sum(1).max()
    assert exact <= certify.hidden_sensitivity(weights) + 1e-12
    assert certify.hidden_sensitivity(abs(weights)) == pytest.approx(abs(corners @ abs(weights).T).sum(1).max())
    assert certify.hidden_sensitivity(weights, form="as_printed") == pytest.approx(3 * abs(weights).sum(1).max())
    ones = np.ones((2, 8))
    assert ones.T.shape[1] * abs(ones.T).sum(1).max() < certify.hidden_sensitivity(ones)  # rows of θ₁ as printed
    kernels = rng("kernels").normal(size=(4, 1, 3, 3))
    assert certify.hidden_sensitivity(kernels, positions=25) == pytest.approx(25 * abs(kernels).sum())
    printed = certify.hidden_sensitivity(kernels, positions=25, form="as_printed")
    assert printed == pytest.approx(25 * abs(kernels).sum((1, 2, 3)).max())  # one of four maps


@pytest.mark.paper("stobatch", "Section 3.4 (number of draws)")
def test_caps_by_hand():
    """All of n draws for one class: the lower bound solves p^n = a."""
    for n, classes in ((2000, 10), (1000, 30)):
        lower = (0.05 / (2 * classes)) ** (1 / n)
        want = 0.5 * math.log(lower / (1 - lower))
        assert certify.cap(n, num_classes=classes) == pytest.approx(want, rel=1e-9)
        half = math.sqrt(math.log(2 * classes / 0.05) / (2 * n))
        assert certify.cap(n, num_classes=classes, bound="hoeffding") == pytest.approx(0.5 * math.log(1 / half - 1))
    assert certify.cap(1000, num_classes=10, split="separate") > certify.cap(1000, num_classes=10)


# -------------------------------------------------------------------------------------------------- verified inference


@pytest.mark.paper("stobatch", "Algorithm 3")
@pytest.mark.paper("stobatch", "Section 4 (conventional and certified accuracy)")
def test_verified_inference_and_both_accuracies():
    scores = np.zeros((4, 400, 3))
    scores[0, :, 0] = 1  # sure
    scores[1, :300, 1], scores[1, 300:, 2] = 1, 1  # less sure
    scores[2, ::2, 0], scores[2, 1::2, 2] = 1, 1  # a tie: abstains
    scores[3, :, 2] = 1  # sure and wrong
    layers = certify.Layers(2.0, 4.0, 10.0, 0.0)
    found = certify.verify(scores, layers=layers, attack_radii=[0.05, 0.2], bound="clopper_pearson")
    assert found.label.tolist()[:2] == [0, 1]
    assert found.abstained.tolist() == [False, False, True, False]
    assert found.epsilon_robust[0] > found.epsilon_robust[1] > found.epsilon_robust[2] == 0
    np.testing.assert_array_equal(found.size[:, 0], found.size[:, 1])
    np.testing.assert_allclose(found.size[:, 0], found.epsilon_robust / 5.0)
    labels = np.array([0, 1, 0, 0])
    assert found.conventional_accuracy(labels) == 0.5
    np.testing.assert_allclose(found.certified_accuracy(labels), [0.5, 0.25])
    assert found.is_robust[3].all()
    assert found.guaranteed
    assert not certify.verify(scores, layers=layers, attack_radii=[0.1], kind="as_printed").guaranteed
    with pytest.raises(ValueError, match="labels must have shape"):
        found.correct([0, 1])


def test_kinds_and_releases_are_asked_for_by_name():
    scores = unanimous(20, 3)
    for how, message in (
        ({"kind": "sund"}, "did you mean 'sound'"),
        ({"kind": "as_released"}, "criterion has changed"),
        ({"kind": "as_released", "release": "2021"}, "release must"),
        ({"release": "2020-06"}, "left out unless"),
        ({"attack_radii": [-0.1]}, "attack_radii"),
        ({"failure_prob": 0.0}, "failure_prob"),
        ({"split": "both"}, "split must"),
        ({"bound": "chernoff"}, "bound must"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            certify.verify(scores, **{"layers": MNIST, "attack_radii": [0.1], **how})
    with pytest.raises(ValueError, match="nothing would be noisy"):
        certify.Layers(1.0, 2.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------------------------------- PixelDP


@pytest.mark.paper("stobatch", "Lemma 1")
def test_pixeldp_radii():
    assert certify.pixeldp_radius(0.9, 0.1, noise="laplace", noise_scale=2.0) == pytest.approx(math.log(9))
    exact = certify.pixeldp_radius(0.9, 0.05, noise="gaussian", noise_scale=2.0, sensitivity=4.0, method="exact")
    assert exact == pytest.approx(0.25 * (norm.ppf(0.9) - norm.ppf(0.05)))
    lower, upper = np.array([0.6, 0.9, 0.999, 0.4]), np.array([0.3, 0.05, 0.001, 0.5])
    textbook = certify.pixeldp_radius(lower, upper, noise="gaussian", noise_scale=1.0)
    best = certify.pixeldp_radius(lower, upper, noise="gaussian", noise_scale=1.0, method="exact")
    assert (textbook[:3] > 0).all()
    assert (textbook[:3] < best[:3]).all()  # no argument from these two numbers can do better than the exact one
    assert textbook[3] == best[3] == 0
    assert certify.to_linf(3.0, norm="l1", dimension=9) == pytest.approx(1 / 3)
    assert certify.to_linf(3.0, norm="l2", dimension=9) == 1


@pytest.mark.paper("stobatch", "Equation 4")
def test_the_exact_gaussian_radius_is_where_a_half_space_flips():
    sigma, gap = 0.7, 0.9
    lower = norm.cdf(gap / sigma)
    found = certify.pixeldp_radius(lower, 1 - lower, noise="gaussian", noise_scale=sigma, method="exact")
    assert found == pytest.approx(gap)


# ---------------------------------------------------------------------------------------------------------------- toys


@pytest.mark.parametrize("n", [1, 2, 7, 90])
def test_tail_of_a_sum_of_laplace_variables(n):
    """Against an integral of the sum's density, |s|^(n-1/2) K_(n-1/2)(|s|) / (√π Γ(n) 2^(n-1/2))."""

    def density(s):
        order = n - 0.5
        log = order * np.log(s / 2) + np.log(kve(order, s)) - s - gammaln(n) - 0.5 * np.log(np.pi)
        return float(np.exp(log))

    for z in (0.3, 1.0, 2.5):  # in standard deviations
        s = z * math.sqrt(2 * n)
        want = quad(density, s, s + 12 * math.sqrt(2 * n) + 60, epsabs=0, epsrel=1e-11, limit=200)[0]
        assert certify_toy.laplace_sum_tail(s, num_terms=n) == pytest.approx(want, rel=1e-8)
        assert certify_toy.laplace_sum_tail(-s, num_terms=n) == pytest.approx(1 - want, rel=1e-8)


@pytest.mark.paper("stobatch", "Lemma 1")
@pytest.mark.paper("stobatch", "Equation 2")
@pytest.mark.paper("stobatch", "Equation 3")
@pytest.mark.paper("stobatch", "Equation 4")
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_lemma_1_and_equation_4_on_random_scores(noise):
    rows = certify_toy.search(noise=noise, num_mechanisms=1, num_trials=300, num_classes=3, rng=rng(noise))
    assert max(r["excess"] for r in rows) <= 1e-12
    certified = [r for r in rows if r["certified"]]
    assert len(certified) > 100
    assert all(r["kept"] for r in certified)
    assert any(not r["kept"] for r in rows)  # the search can see a change of label
    assert all((r["margin"] > 0) == r["kept"] for r in rows)
    if noise == "laplace":
        assert max(r["ratio"] for r in rows) > 0.99


@pytest.mark.paper("stobatch", "Lemma 5")
@pytest.mark.paper("stobatch", "Equations 32 and 33")
@pytest.mark.paper("stobatch", "Theorem 5")
@pytest.mark.paper("stobatch", "Corollary 1")
def test_lemma_5_and_theorem_5_on_random_functions_of_two_mechanisms():
    rows = certify_toy.search(noise="laplace", num_mechanisms=2, num_trials=300, num_classes=3, rng=rng("two"))
    assert max(r["excess"] for r in rows) <= 1e-12
    certified = [r for r in rows if r["certified"]]
    assert len(certified) > 100
    assert all(r["kept"] for r in certified)
    assert any(not r["kept"] for r in rows)


def test_with_half_the_epsilon_lemma_1_fails():
    part = certify_toy.Steps(np.array([0.0]), "laplace", 1.0)
    values = np.array([[1.0, 0.0], [0.0, 1.0]])
    good, bad = (certify_toy.worst_case([part], values, x=3.0, radius=1.0, epsilon=e)["excess"] for e in (1.0, 0.5))
    assert good <= 1e-15 < bad


@pytest.mark.paper("stobatch", "Lemma 1")
@pytest.mark.parametrize("dimension", [1, 3, 784])
def test_the_corner_meets_lemma_1_with_equality_in_any_dimension(dimension):
    x = np.full(dimension, -0.2)
    moved = certify_toy.corner(x + 0.05, threshold=0.1, scale=2.0) - certify_toy.corner(x, threshold=0.1, scale=2.0)
    assert moved == pytest.approx(0.05 * dimension / 2.0, rel=1e-10)


@pytest.mark.paper("stobatch", "Equation 13")
@pytest.mark.parametrize(("dataset", "epsilon"), [("mnist", 1.0), ("cifar10", 2.0), ("tiny_imagenet", 5.0)])
def test_printed_radius_is_refuted_and_the_sound_one_never(dataset, epsilon):
    """An image of mean pixel v changes its label at l∞ distance v, exactly."""
    found = functional_budget.configuration(dataset)
    budget = functional_budget.split(dataset, epsilon)
    layers = certify.Layers.of(budget, hidden_sensitivity=0.0, psi=found.redraw_divisor)
    toy, mean = certify_toy.Mean(layers), np.geomspace(1e-3, 0.9, 25)
    cap = certify.cap(found.num_draws, num_classes=2)
    sound, printed = (toy.radii(mean, place="input", kind=k, epsilon_cap=cap) for k in ("sound", "as_printed"))
    assert (sound <= mean).all()
    assert (printed > mean).any()
    for v in mean[printed > mean]:  # the adversary: every pixel down by a little more than v, less than the radius
        assert toy.scores(v, place="input").argmax() == 0
        assert toy.scores(v - np.nextafter(v, 1) - 1e-9, place="input").argmax() == 1


def test_toy_draws_follow_its_exact_scores():
    toy = certify_toy.Mean(certify.Layers(0.8, 1.6, 20.0, 40.0, psi=2.0), num_hidden=3)
    image = rng("image").uniform(-0.2, 0.3, size=20)
    want = toy.scores(image.mean(), place="input")[0]
    got = toy.draws(image, num_draws=40_000, rng=rng())[0, :, 0].mean()
    assert abs(got - want) < 5 * math.sqrt(want * (1 - want) / 40_000)
    for place in ("hidden", "both"):
        want = toy.scores(image.mean(), place=place)
        got = toy.draws(image, num_draws=40_000, rng=rng("hidden"), place=place)[0].mean(0)
        assert (abs(got - want) < 5 * np.sqrt(want * (1 - want) / 40_000)).all()


def test_a_tie_is_no_vote():
    scores = np.zeros((1, 10, 2))
    scores[0, :4, 1] = 1
    found = certify.class_bounds(scores, bound="clopper_pearson")
    assert found.label[0] == 1
    assert found.lower[0] < 0.4
    assert found.upper[0] == pytest.approx(1 - 0.0125**0.1)  # no draw of ten for class 0, six for nobody


def test_probability_of_a_certificate_against_draws():
    layers = certify.Layers(1.0, 2.0, 10.0, 0.0)
    want = certify_toy.issue_prob(0.8, num_draws=60, attack_radius=0.03, layers=layers, kind="sound")
    hits = rng("votes").random((3000, 60)) < 0.8
    scores = np.stack([hits, ~hits], axis=-1).astype(float)
    found = certify.verify(scores, layers=layers, attack_radii=[0.03], bound="clopper_pearson")
    got = (found.is_robust[:, 0] & (found.label == 0)).mean()
    assert 0.1 < want < 0.9
    assert abs(got - want) < 5 * math.sqrt(want * (1 - want) / 3000)


@pytest.mark.paper("stobatch", "Section 3.4 (advantage of composition)")
def test_composition_gains_only_with_different_runners_up():
    draws = rng("gain")
    first, second = (draws.dirichlet(np.ones(4), size=4000) for _ in range(2))
    gain, same = certify_toy.composition_gain(first, second, input_rate=2.0, hidden_rate=3.0)
    assert (gain[same] <= 1 + 1e-9).all()
    assert (gain[~same] > 1.5).any()
    two, same = certify_toy.composition_gain(first[:, :2], second[:, :2], input_rate=2.0, hidden_rate=3.0)
    assert same.mean() < 1
    assert (two[same] <= 1 + 1e-9).all()


@pytest.mark.paper("stobatch", "Section 3.4 (Hoeffding)")
@pytest.mark.parametrize("bound", certify.BOUNDS)
def test_exact_failure_probability_of_the_joint_bounds(bound):
    probs = [
        certify_toy.failure_prob_of_bounds(p, num_draws=40, bound=bound, failure_prob=0.2)
        for p in np.linspace(0.02, 0.98, 33)
    ]
    assert 0 < max(probs) <= 0.2


@pytest.mark.parametrize("how", [{"noise": "laplace"}, {"noise": "gaussian"}, {"noise": "gaussian", "method": "exact"}])
@pytest.mark.parametrize("bounds", [(2.0, 0.1), (0.5, -1.0)])
def test_scores_outside_of_the_unit_interval_have_no_radius(how, bounds):
    with pytest.raises(ValueError, match="lower and upper must lie in"):
        certify.pixeldp_radius(*bounds, noise_scale=1.0, **how)
