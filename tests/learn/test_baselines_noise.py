"""What stands behind the certificates of PixelDP and SecureSGD: stretch of a layer, noise, radii, HGM and AGM."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn
from torch.nn import functional

from privrob.accounting import gdp
from privrob.kinds import Streams
from privrob.learn.baselines import operator_norms, pixeldp, plain, securesgd
from privrob.learn.baselines.certificates import Certified, stretch
from privrob.learn.baselines.deployed import HiddenNoise
from privrob.learn.stobatch.deployed import Deployed

STREAMS = Streams(7, "baselines")


def layer(channels=1, maps=6, kernel=5, stride=2, padding=2, seed=0):
    made = nn.Conv2d(channels, maps, kernel, stride=stride, padding=padding)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.weight.normal_(generator=generator)
    return made


def network(name="mnist", shape=(1, 8, 8), classes=3):
    return plain.build(name, in_shape=shape, num_classes=classes, generator=STREAMS.torch("init"), num_hidden=8)


def images(n=20, shape=(1, 8, 8), seed=0):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


# ------------------------------------------------------------------------------------------------------------ stretch


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (PixelDP)")
@pytest.mark.parametrize(("kernel", "stride", "channels"), [(5, 2, 1), (4, 2, 3), (7, 2, 2), (3, 1, 1), (5, 3, 1)])
def test_no_perturbation_stretches_more_than_the_bound(kernel, stride, channels):
    """A search by power iteration for the worst l2 perturbation comes close from below, on any size of image."""
    made = layer(channels=channels, kernel=kernel, stride=stride, padding=kernel // 2)
    upper = operator_norms.l2_norm_upper(made)
    for size in (8, 14):
        x = torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(1))
        for _ in range(40):
            x = x / x.norm()
            h = functional.conv2d(x, made.weight, stride=stride, padding=kernel // 2)
            x = torch.autograd.functional.vjp(
                lambda v: functional.conv2d(v, made.weight, stride=stride, padding=kernel // 2), x, h
            )[1].detach()
        found = float(functional.conv2d(x / x.norm(), made.weight, stride=stride, padding=kernel // 2).norm().detach())
        exact = operator_norms.l2_norm(made, (channels, size, size))
        assert found <= exact * (1 + 1e-5)  # float32
        assert exact <= upper
    assert found >= 0.8 * upper  # borders cost the search some per cent at 14 pixels


def test_the_bound_between_frequencies_is_needed_and_holds():
    """Few frequencies miss the peak; the factor makes up for it."""
    made = layer(seed=3)
    exact = operator_norms.l2_norm_upper(made, frequencies=512)
    for few in (4, 5, 8, 16):
        assert operator_norms.l2_norm_upper(made, frequencies=few) >= exact / (1 + 1e-4)
    assert operator_norms.l2_norm_upper(made) <= 1.03 * exact
    peak = operator_norms.l2_norm_upper(made, frequencies=4) * math.cos(math.pi / 4) ** 2  # the factor undone
    assert peak < exact


def test_l1_stretch_is_the_worst_single_pixel():
    made = layer(channels=2)
    columns = operator_norms.matrix(made, (2, 15, 15)).abs().sum(0)
    assert float(columns.max()) == pytest.approx(operator_norms.l1_norm(made), rel=1e-12)  # sums in another order
    dense = nn.Linear(5, 4)
    assert operator_norms.l1_norm(dense) == pytest.approx(
        float(dense.weight.detach().abs().sum(0).max()), rel=1e-6
    )  # float32
    assert operator_norms.l2_norm_upper(dense) >= operator_norms.l2_norm(dense, (5,))


@pytest.mark.parametrize("norm_", ["l1", "l2"])
def test_projection_brings_a_layer_to_stretch_one_and_leaves_shorter_ones_alone(norm_):
    made = layer()
    before = operator_norms.project(made, norm=norm_)
    measure = {"l1": operator_norms.l1_norm, "l2": operator_norms.l2_norm_upper}[norm_]
    assert before > 1
    assert 0.999 < measure(made) <= 1
    kept = made.weight.detach().clone()
    operator_norms.project(made, norm=norm_)
    assert torch.equal(kept, made.weight)
    with pytest.raises(ValueError, match="norm must be one of"):
        operator_norms.project(made, norm="l3")
    with pytest.raises(TypeError, match="layer must be"):
        operator_norms.l2_norm_upper(nn.Conv2d(2, 2, 3, groups=2))


# -------------------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize(
    ("kind", "log_density"), [("gaussian", norm.logpdf), ("laplace", lambda x: -np.abs(x) - np.log(2))]
)
def test_hidden_noise_has_the_scale_that_it_says(kind, log_density):
    scale = torch.tensor([0.5, 2.0]).view(2, 1, 1)
    drawn = HiddenNoise(kind, scale).draw((4000, 2, 2, 2), generator=torch.Generator().manual_seed(0)).numpy()
    unit = drawn / scale.numpy()
    grid = np.linspace(-9, 9, 20001)
    density = np.exp(log_density(grid))
    for power in (1, 2):
        mean = np.trapezoid(density * np.abs(grid) ** power, grid)
        spread = np.trapezoid(density * np.abs(grid) ** (2 * power), grid) - mean**2
        for part in (unit[:, 0], unit[:, 1]):
            assert abs((np.abs(part) ** power).mean() - mean) < 5 * math.sqrt(spread / part.size) + 1e-3  # cut tails
    assert abs(np.corrcoef(unit[:, 0, 0, 0], unit[:, 0, 0, 1])[0, 1]) < 5 / math.sqrt(4000)
    for bad in (-1.0, math.inf, torch.tensor([-1.0])):
        with pytest.raises(ValueError, match="scale must"):
            HiddenNoise(kind, bad)


def test_a_noisy_model_has_the_five_views():
    net, x = network(), images()
    made = Certified(net, HiddenNoise("gaussian", 0.5), streams=STREAMS, num_predict=100)
    assert isinstance(made, Deployed)
    assert torch.equal(made.fixed(x), made.surrogate(x))  # nothing is stored
    generator = torch.Generator().manual_seed(0)
    first, second = made.fresh(x, generator=generator), made.fresh(x, generator=generator)
    assert not torch.equal(first, second)
    assert torch.equal(made.predict_logits(x), made.predict_logits(x))  # the deployed model repeats its answers
    scores = made.draws(x, num_draws=100, generator=generator)
    assert scores.shape == (100, 20, 3)
    assert scores.dtype == np.float64
    assert np.allclose(scores.sum(2), 1, atol=1e-6)
    error = np.abs(made.predict_logits(x).exp().numpy() - scores.mean(0))
    assert (error < 5 * np.sqrt(2 / 100) * scores.std(0) + 1e-6).all()  # two independent means of 100
    stored = torch.full((1, 32, 4, 4), 0.3)
    other = Certified(net, HiddenNoise("gaussian", 0.0), streams=STREAMS, stored=stored)
    assert torch.allclose(other.fixed(x), other.fresh(x, generator=generator))
    assert not torch.equal(other.fixed(x), other.surrogate(x))


# -------------------------------------------------------------------------------------------------------- certificates


@pytest.mark.paper("stobatch", "Section 2, Lemma 1 and Eq. 4 (PixelDP)")
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_within_the_sound_radius_no_perturbation_changes_the_expected_label(kind):
    """A layer that can be integrated exactly: one hidden unit decides. The worst perturbation is known."""
    net = network("dense", (1, 1, 4), classes=2)
    with torch.no_grad():
        net.first.weight.zero_()
        net.first.weight[0] = torch.tensor([0.5, -0.3, 0.2, 0.1])
    made = Certified(net, HiddenNoise(kind, 0.4), streams=STREAMS)
    weight = net.first.weight[0].detach().double().numpy()
    cdf = (
        norm.cdf
        if kind == "gaussian"
        else lambda t: np.where(t < 0, np.exp(np.minimum(t, 0)) / 2, 1 - np.exp(-np.maximum(t, 0)) / 2)
    )
    for margin in (0.1, 0.5, 1.3):
        vote = cdf(margin / 0.4)  # share of draws with h_0 > 0 at an input with w·x = margin
        for name in ("sound", "epsilon_delta"):
            radius = float(made.radii(np.array([vote]), np.array([1 - vote]))[name][0])
            worst = margin - radius * np.abs(weight).sum()  # sign(w) times the l∞ radius
            assert worst > 0
            assert radius > 0
    used = float(made.radii(np.array([vote]), np.array([1 - vote]))["sound"][0])
    fits = math.sqrt(4) if kind == "gaussian" else 4
    stretch_ = np.linalg.norm(weight) if kind == "gaussian" else 0.5
    want = margin / stretch_ / fits if kind == "gaussian" else 0.4 / stretch_ / fits * 0.5 * math.log(vote / (1 - vote))
    assert used == pytest.approx(want, rel=1e-6)  # the exact radius of the norm, in l∞


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (PixelDP)")
def test_without_a_conversion_of_norms_the_printed_radius_is_refuted():
    """The label flips well inside the l∞ ball of the unconverted radius."""
    net = network("dense", (1, 8, 8), classes=2)
    with torch.no_grad():
        net.first.weight.zero_()
        net.first.weight[0] = 0.125  # l2 norm 1
    made = Certified(net, HiddenNoise("gaussian", 0.2), streams=STREAMS)
    assert made.sensitivity == pytest.approx(1, rel=1e-9)
    vote = norm.cdf(0.3 / 0.2)
    radii = {k: float(v[0]) for k, v in made.radii(np.array([vote]), np.array([1 - vote])).items()}
    assert radii["epsilon_delta"] <= radii["sound"] < 0.3 / 8 * (1 + 1e-6)  # 8 = ‖w‖₁: beyond, the label flips
    assert radii["as_printed"] > 2 * 0.3 / 8


def test_certify_bounds_scores_of_the_models_own_draws():
    made = Certified(network(), HiddenNoise("gaussian", 0.3), streams=STREAMS)
    scores = made.draws(images(), num_draws=50, generator=torch.Generator().manual_seed(0))
    found, every = made.certify(scores)
    votes = (scores.argmax(2)[:, :, None] == np.arange(3)).mean(0)
    assert (found.label == votes.argmax(1)).all()
    assert (found.lower <= votes.max(1)).all()
    assert set(every) == set(made.certificates)
    for sizes in every.values():
        assert sizes.shape == (20,)
        assert ((sizes > 0) == (found.lower > found.upper)).all()
    assert not made.radii(np.array([0.3]), np.array([0.4]))["sound"].any()
    silent = Certified(network(), HiddenNoise("gaussian", 0.0), streams=STREAMS)
    assert not any(v.any() for v in silent.radii(np.array([1.0]), np.array([0.0])).values())  # no noise, no certificate


# ----------------------------------------------------------------------------------------------------------- HGM, AGM


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (SecureSGD)")
def test_the_extended_bound_suffices_for_any_epsilon_and_is_never_the_least():
    for epsilon in (0.05, 1.0, 4.0, 30.0):
        for delta in (1e-9, 1e-5, 0.05, 0.4):
            sigma = securesgd.extended_noise_multiplier(epsilon, delta=delta)
            assert float(gdp.delta_of(epsilon, gdp_mu=1 / sigma)) <= delta
            assert securesgd.noise_multiplier("agm", epsilon, delta=delta) < sigma
    with pytest.raises(ValueError, match="delta must lie"):
        securesgd.extended_noise_multiplier(1.0, delta=0.6)


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (SecureSGD-AGM)")
def test_agm_noise_is_the_calibrated_one():
    """δ at ε_r of the noise over L is δ_r, to the digits of the calibration; an independent formula."""
    settings = securesgd.SecureSettings(num_steps=0, mechanism="agm", attack_bound=0.3, batch_size=4)
    training = securesgd.SecureSGD(settings, images(), torch.arange(20) % 3, num_classes=3, streams=STREAMS)
    mu = 0.3 / training.prediction_noise.smallest
    delta = norm.cdf(mu / 2 - 4.0 / mu) - math.exp(4.0) * norm.cdf(-mu / 2 - 4.0 / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)  # cancellation of two tails in float64
    assert training.prediction_noise.scale == training.prediction_noise.smallest  # the same everywhere


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (SecureSGD)")
def test_uneven_noise_guarantees_less_than_its_mean_says():
    """σ r on a layer that passes everything on: the weakest unit decides, and δ at ε_r is far above δ_r."""
    made = nn.Linear(6, 6, bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.eye(6))
    epsilon, delta = 1.0, 1e-5
    sigma = securesgd.extended_noise_multiplier(epsilon, delta=delta)
    r = torch.tensor([0.1, 0.4, 1.0, 1.5, 1.5, 1.5])
    assert float(r.mean()) == pytest.approx(1)
    mu = securesgd.gdp_mu(made, (6,), sigma * r)
    assert mu == pytest.approx(1 / (0.1 * sigma), rel=1e-6)
    assert float(gdp.delta_of(epsilon, gdp_mu=mu)) > 100 * delta
    assert securesgd.gdp_mu(made, (6,), sigma) == pytest.approx(1 / sigma, rel=1e-6)
    assert securesgd.gdp_mu(made, (6,), sigma * torch.tensor([0.0, 1, 1, 1, 1, 2.0])) == math.inf
    fixed = securesgd.uneven(sigma, r)
    assert float(fixed.square().mean()) == pytest.approx(sigma**2, rel=1e-6)  # float32
    assert float(fixed.min()) > 0.1 * sigma
    assert (fixed.argsort() == r.argsort()).all() or bool((fixed[1:] >= fixed[:-1]).all())


def test_certificates_under_uneven_noise_count_the_weakest_direction():
    net = network()
    generator = torch.Generator().manual_seed(0)
    scale = torch.rand(32, 4, 4, generator=generator) + 0.2
    noise = HiddenNoise("gaussian", scale)
    mu = securesgd.gdp_mu(net.first, (1, 8, 8), scale)
    assert stretch(net, noise) / noise.smallest == pytest.approx(mu, rel=1e-6)
    assert mu <= operator_norms.l2_norm_upper(net.first) / noise.smallest
    assert stretch(net, HiddenNoise("gaussian", torch.zeros(32, 4, 4))) == math.inf


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (SecureSGD)")
def test_vulnerable_units_get_more_noise_and_no_training_image_is_read():
    settings = securesgd.SecureSettings(num_steps=0, batch_size=4)
    sound = [
        securesgd.SecureSGD(settings, images(seed=s), torch.arange(20) % 3, num_classes=3, streams=STREAMS)
        for s in (0, 1)
    ]
    assert torch.equal(sound[0].r, sound[1].r)
    assert float(sound[0].r.mean()) == pytest.approx(1, rel=1e-5)  # float32
    scale, r = sound[0].prediction_noise.scale.flatten(), sound[0].r.flatten()
    assert float(scale[r.argmax()]) == float(scale.max())
    released = securesgd.SecureSettings(num_steps=0, batch_size=4, variant="as_released")
    read = [
        securesgd.SecureSGD(released, images(seed=s), torch.arange(20) % 3, num_classes=3, streams=STREAMS)
        for s in (0, 1)
    ]
    assert not torch.equal(read[0].r, read[1].r)
    assert read[0].privacy(delta=1e-5)["honest_epsilon"] == math.inf


def test_pixeldp_scales_are_those_of_its_mechanism():
    how = {"num_steps": 0, "attack_bound": 0.2, "epsilon_robust": 0.5, "delta_robust": 0.01}
    exact = pixeldp.noise_scale(pixeldp.PixelDPSettings(**how))
    assert float(gdp.delta_of(0.5, gdp_mu=0.2 / exact)) == pytest.approx(0.01, rel=1e-8)
    printed = pixeldp.noise_scale(pixeldp.PixelDPSettings(**how, variant="as_printed"))
    assert printed == pytest.approx(0.2 * math.sqrt(2 * math.log(125)) / 0.5)
    assert exact < printed
    assert pixeldp.noise_scale(pixeldp.PixelDPSettings(**how, mechanism="laplace")) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="fails above 1"):
        pixeldp.PixelDPSettings(**{**how, "epsilon_robust": 2.0}, variant="as_printed")
