"""The baselines' trainings: Algorithm 2, DP-SGD, AdLM, PixelDP, SecureSGD; privacy columns, resuming, cells."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch.nn import functional

from privrob.accounting import gdp
from privrob.accounting.ledger import Ledger
from privrob.kinds import Streams
from privrob.learn import models
from privrob.learn.baselines import adlm, dpsgd, kurakin, pixeldp, plain, securesgd
from privrob.learn.baselines.cells import evaluate
from privrob.learn.baselines.training import BadCheckpoint
from privrob.learn.clip import PerExample
from privrob.learn.stobatch.deployed import Deployed
from privrob.mechanisms.sampled import gaussian_step

STREAMS = Streams(3, "baselines")
SMALL = {"network": "dense", "network_options": {"num_hidden": 6}}


def data(n=40, shape=(1, 3, 3), classes=3, seed=0):
    images = torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return images, images.flatten(1)[:, :classes].argmax(1)


def make(kind, settings, records=None, streams=STREAMS, **more):
    images, labels = data() if records is None else records
    return kind(settings, images, labels, num_classes=3, streams=streams, **more)


KINDS = {
    "kurakin": (kurakin.Kurakin, kurakin.KurakinSettings, {"adversarial_batch_size": 8}),
    "dpsgd": (dpsgd.DPSGD, dpsgd.PrivateSettings, {"optimizer": "sgd"}),
    "dpsgd adversarial": (dpsgd.DPSGD, dpsgd.PrivateSettings, {"optimizer": "sgd", "adversarial_rate": 0.5}),
    "dpsgd released": (dpsgd.DPSGD, dpsgd.PrivateSettings, {"variant": "as_released"}),
    "adlm": (adlm.AdLM, adlm.AdLMSettings, {"epsilon": 50.0}),
    "adlm printed": (adlm.AdLM, adlm.AdLMSettings, {"variant": "as_printed", "relevance_steps": 2}),
    "adlm released": (adlm.AdLM, adlm.AdLMSettings, {"variant": "as_released", "relevance_steps": 2}),
    "pixeldp": (pixeldp.PixelDP, pixeldp.PixelDPSettings, {}),
    "pixeldp laplace": (pixeldp.PixelDP, pixeldp.PixelDPSettings, {"mechanism": "laplace"}),
    "securesgd": (securesgd.SecureSGD, securesgd.SecureSettings, {"optimizer": "sgd"}),
    "securesgd agm": (securesgd.SecureSGD, securesgd.SecureSettings, {"mechanism": "agm"}),
    "securesgd released": (securesgd.SecureSGD, securesgd.SecureSettings, {"variant": "as_released"}),
}


def settings(name, **changes):
    _, of, own = KINDS[name]
    return of(**{"num_steps": 6, "batch_size": 8, "learning_rate": 0.1, **SMALL, **own, **changes})


# ------------------------------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", KINDS)
def test_a_training_is_repeatable_resumes_to_the_same_bits_and_is_deployed(name, tmp_path, monkeypatch):
    kind, file = KINDS[name][0], tmp_path / "training.pt"
    whole = make(kind, settings(name)).run()
    again = make(kind, settings(name)).run()
    assert whole.weights_sha256() == again.weights_sha256()
    assert whole.weights_sha256() != make(kind, settings(name), streams=Streams(4, "other")).run().weights_sha256()
    monkeypatch.setattr("privrob.learn.baselines.training._SAVE_EVERY", 2)

    def kill(step, _):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(kind, settings(name), checkpoint=file).run(kill)
    resumed = make(kind, settings(name), checkpoint=file)
    assert resumed.step == 4
    early = resumed.deployed()
    before = early.surrogate(data()[0])
    assert resumed.run().weights_sha256() == whole.weights_sha256()
    assert torch.equal(early.surrogate(data()[0]), before)  # what was deployed stays as it was
    assert resumed.train_loss == whole.train_loss
    with pytest.raises(BadCheckpoint, match="learning_rate"):
        make(kind, settings(name, learning_rate=0.2), checkpoint=file)
    deployed = whole.deployed()
    assert isinstance(deployed, Deployed)
    images, _ = data()
    assert torch.isfinite(deployed.predict_logits(images)).all()
    row = whole.privacy(delta=1e-5)
    assert set(row) >= {"claimed_epsilon", "honest_epsilon", "delta", "neighbouring", "sampling", "protects"}


@pytest.mark.parametrize("name", ["kurakin", "dpsgd", "adlm", "pixeldp", "securesgd"])
def test_every_baseline_learns_with_little_noise(name):
    changes = {"num_steps": 150, "batch_size": 60, "learning_rate": 0.02, "optimizer": "adam"}
    if name in ("dpsgd", "securesgd"):
        changes |= {"noise_multiplier": 0.1}
    if name in ("pixeldp", "securesgd"):
        changes |= {"attack_bound": 0.01}
    if name == "adlm":
        changes |= {"epsilon": 1e5}
    records = data(240)
    deployed = make(KINDS[name][0], settings(name, **changes), records).run().deployed()
    images, labels = data(300, seed=1)
    assert float((deployed.predict_logits(images).argmax(1) == labels).double().mean()) > 0.8


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("kurakin", {"num_steps": -1}, "num_steps must"),
        ("kurakin", {"network": "vgg"}, "network must be one of"),
        ("kurakin", {"variant": "as_released"}, "variant must be one of"),
        ("kurakin", {"attack": "cw"}, "attack must be one of"),
        ("kurakin", {"adversarial_weight": -1.0}, "adversarial_weight must"),
        ("kurakin", {"momentum": 0.5}, "momentum must be 0"),
        ("dpsgd", {"max_grad_norm": 0.0}, "max_grad_norm must"),
        ("dpsgd", {"adversarial_rate": 1.5}, "adversarial_rate must"),
        ("dpsgd", {"noise_multiplier": -1.0}, "noise_multiplier must"),
        ("dpsgd", {"variant": "as_printed"}, "variant must be one of"),
        ("adlm", {"epsilon": 0.0}, "epsilon must"),
        ("adlm", {"epsilon_parts": (0.5, 0.6, 0.1)}, "epsilon_parts must add up to 1"),
        ("adlm", {"epsilon_parts": (1.0,)}, "epsilon_parts must be three"),
        ("pixeldp", {"mechanism": "uniform"}, "mechanism must be one of"),
        ("pixeldp", {"delta_robust": 1.0}, "delta_robust must"),
        ("securesgd", {"epsilon_robust": 0.0}, "epsilon_robust must|epsilon must"),
        ("securesgd", {"delta_robust": 0.7}, "delta must lie"),
    ],
)
def test_bad_settings_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        settings(name, **changes)


def test_images_of_another_range_are_refused():
    images, labels = data()
    with pytest.raises(ValueError, match=r"images must lie in \[-1, 1\]"):
        make(kurakin.Kurakin, settings("kurakin"), (images * 2, labels))
    with pytest.raises(ValueError, match="batch_size must"):
        make(kurakin.Kurakin, settings("kurakin", batch_size=41))
    with pytest.raises(ValueError, match="labels must"):
        make(kurakin.Kurakin, settings("kurakin"), (images, labels[1:]))


def test_no_example_of_a_baseline_depends_on_another():
    for name, shape in (("mnist", (1, 8, 8)), ("cifar10", (3, 8, 8)), ("dense", (1, 3, 3))):
        network = plain.build(name, in_shape=shape, num_classes=3, generator=STREAMS.torch("init"), num_hidden=6)
        images, _ = data(5, shape)
        alone = torch.cat([network(image[None]) for image in images])
        assert torch.allclose(network(images), alone, atol=1e-5)  # float32, other orders of sums


# ------------------------------------------------------------------------------------------------------- Algorithm 2


@pytest.mark.paper("stobatch", "Eq. 15")
def test_the_adversarial_loss_weighs_both_batches_as_printed():
    """Against sums of single records' cross entropies, sizes and weight asymmetric."""
    generator = torch.Generator().manual_seed(0)
    benign, crafted = torch.randn(5, 3, generator=generator), torch.randn(2, 3, generator=generator)
    labels, true = torch.tensor([0, 1, 2, 1, 0]), torch.tensor([2, 0])

    def each(logits, label):
        return -float(logits[label] - torch.logsumexp(logits, 0))

    first = sum(each(z, y) for z, y in zip(benign, labels, strict=True))
    second = sum(each(z, y) for z, y in zip(crafted, true, strict=True))
    got = kurakin.loss(benign, labels, crafted, true, adversarial_weight=1.5)
    assert float(got) == pytest.approx((first + 1.5 * second) / (5 + 1.5 * 2), rel=1e-5)  # float32


@pytest.mark.paper("stobatch", "Algorithm 2")
def test_algorithm_2_step_by_step():
    """One step by hand: two batches, FGSM on the prediction, one descent of Eq. 15 with plain SGD."""
    chosen = settings(
        "kurakin", optimizer="sgd", attack_radius=0.2, random_radius=False, adversarial_weight=2.0, num_steps=1
    )
    training, other = make(kurakin.Kurakin, chosen), make(kurakin.Kurakin, chosen)
    images, labels = data()
    rng = STREAMS.numpy("batches")
    benign, sources = (torch.from_numpy(rng.choice(40, 8, replace=False)) for _ in range(2))
    network = other.network
    point = images[sources].clone().requires_grad_()
    predicted = network(point).argmax(1)
    gradient = torch.autograd.grad(functional.cross_entropy(network(point), predicted, reduction="sum"), point)[0]
    crafted = (images[sources] + 0.2 * gradient.sign()).clamp(-1, 1)
    loss = functional.cross_entropy(network(images[benign]), labels[benign], reduction="sum")
    loss = loss + 2.0 * functional.cross_entropy(network(crafted), labels[sources], reduction="sum")
    want = [
        p - 0.1 * g for p, g in zip(other.parameters, torch.autograd.grad(loss / 24, other.parameters), strict=True)
    ]
    training.run()
    for got, expected in zip(training.parameters, want, strict=True):
        assert torch.allclose(got, expected, atol=1e-5)  # float32
    assert training.privacy(delta=1e-5)["honest_epsilon"] == math.inf


@pytest.mark.paper("stobatch", "Algorithm 2")
def test_adversarial_training_resists_the_attack_that_it_trains_on():
    """One strong pixel, wrong now and then, and eight weak ones that are right and that the attack turns round."""
    rng = np.random.default_rng(0)
    sign = rng.choice([-1.0, 1.0], 500)
    pixels = 0.1 * sign[:, None] + 0.04 * rng.normal(size=(500, 9))
    pixels[:, 0] = 0.7 * sign * np.where(rng.random(500) < 0.15, -1, 1)
    images, labels = torch.from_numpy(pixels).float().view(-1, 1, 3, 3), torch.from_numpy((sign > 0).astype(int))
    found = {}
    for size in (0, 60):
        changes = {"num_steps": 200, "batch_size": 60, "learning_rate": 0.05, "predicted_labels": False}
        changes |= {"attack_radius": 0.3, "random_radius": False, "adversarial_weight": 3.0}
        chosen = settings("kurakin", adversarial_batch_size=size, **changes)
        deployed = make(kurakin.Kurakin, chosen, (images[:300], labels[:300])).run().deployed()
        how = {"streams": STREAMS, "evaluation": {"attack_radii": [0.3], "attack_kinds": ["fgsm"]}}
        found[size] = evaluate(deployed, images[300:], labels[300:], **how)[1]["accuracy"]
    assert found[60] > 0.8 > 0.4 > found[0]


# ------------------------------------------------------------------------------------------------------------ DP-SGD


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (DP-SGD)")
@pytest.mark.parametrize("name", ["dpsgd", "securesgd"])
def test_one_record_moves_the_weights_by_what_clipping_allows(name):
    """Two data sets differ in one record, drawn in the same batch: lr · C / B for one that is added."""
    images, labels = data()
    chosen = settings(name, noise_multiplier=0.0, max_grad_norm=0.3, learning_rate=1.0, num_steps=1)
    if name == "securesgd":
        chosen = dataclasses.replace(chosen, attack_bound=0.0)  # the layer's own noise is not the record's doing
    drawn = np.arange(10)
    one, two = (make(KINDS[name][0], chosen, (images, labels)) for _ in range(2))
    with_record, without = one.noisy_gradient(drawn)[0], two.noisy_gradient(drawn[1:])[0]
    moved = math.sqrt(sum(float((a - b).double().square().sum()) for a, b in zip(with_record, without, strict=True)))
    assert 0.1 * 0.3 / 8 < moved <= 0.3 / 8 * (1 + 1e-5)  # float32


@pytest.mark.paper("stobatch", "Section 1 (simply combining existing mechanisms)")
def test_adversarial_examples_of_the_records_own_leave_its_influence_at_the_clip():
    """Every image replaced by an FGSM example: the same bound, the same ε, other gradients."""
    how = {"noise_multiplier": 0.0, "max_grad_norm": 0.3}
    plain_ = make(dpsgd.DPSGD, settings("dpsgd", **how))
    chosen = settings("dpsgd", adversarial_rate=1.0, random_radius=False, **how)
    one, two = make(dpsgd.DPSGD, chosen), make(dpsgd.DPSGD, chosen)
    drawn = np.arange(10)
    whole, rest = one.noisy_gradient(drawn)[0], two.noisy_gradient(drawn[1:])[0]
    moved = math.sqrt(sum(float((a - b).double().square().sum()) for a, b in zip(whole, rest, strict=True)))
    assert 0.1 * 0.3 / 8 < moved <= 0.3 / 8 * (1 + 1e-5)  # float32
    assert not torch.equal(whole[0], plain_.noisy_gradient(drawn)[0][0])
    shift = (one.taken[drawn] - one.images[drawn]).abs().amax((1, 2, 3))
    assert torch.allclose(shift, torch.full((10,), 0.3), atol=1e-6)
    mixed = make(dpsgd.DPSGD, settings("dpsgd", adversarial_rate=0.5, **how))
    shift = torch.stack([(mixed.taken[drawn] - mixed.images[drawn]).abs().amax((1, 2, 3)) for _ in range(40)])
    untouched = float((shift == 0).double().mean())
    assert abs(untouched - 0.5) < 5 * math.sqrt(0.25 / 400)
    noisy = {"noise_multiplier": 1.0}
    rows = [make(dpsgd.DPSGD, settings("dpsgd", adversarial_rate=r, **noisy)).privacy(delta=1e-5) for r in (0.0, 1.0)]
    assert rows[0] == rows[1]


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (DP-SGD)")
def test_the_released_clip_of_a_mean_moves_by_twice_the_norm():
    """A record against ten others: a long gradient the other way turns the whole clipped mean round."""
    model = models.build("logistic", in_shape=(1, 4, 4), num_classes=2, generator=STREAMS.torch("init"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    images = torch.full((11, 1, 4, 4), 0.02)
    images[10] = -1.0
    labels = torch.zeros(11, dtype=torch.long)
    model[1].bias.requires_grad_(False)
    take = PerExample(model)
    means = [
        [part / count for part in take(images[:count], labels[:count]).weighted_sum(torch.ones(count))]
        for count in (10, 11)
    ]
    clipped = [dpsgd.clip_of_mean(mean, 0.01) for mean in means]
    moved = math.sqrt(sum(float((a - b).double().square().sum()) for a, b in zip(*clipped, strict=True)))
    assert moved == pytest.approx(2 * 0.01, rel=1e-5)  # the sensitivity is attained
    rng = np.random.default_rng(0)
    for _ in range(20):
        left, right = ([torch.from_numpy(rng.normal(size=4)) * 10.0 ** rng.integers(-3, 2)] for _ in range(2))
        gap = dpsgd.clip_of_mean(left, 0.5)[0] - dpsgd.clip_of_mean(right, 0.5)[0]
        assert float(gap.norm()) <= 1.0 + 1e-12
    short = [torch.tensor([0.3, 0.0])]
    assert torch.equal(dpsgd.clip_of_mean(short, 0.5)[0], short[0])


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (DP-SGD)")
def test_epsilon_of_dpsgd_is_the_ledgers_and_the_released_one_is_far_larger():
    training = make(dpsgd.DPSGD, settings("dpsgd", noise_multiplier=1.3))
    ledger = Ledger(neighbouring="add_remove", sampling="poisson")
    ledger.add(gaussian_step(sample_rate=0.2, noise_multiplier=1.3), count=6)
    row = training.privacy(delta=1e-5)
    assert row["honest_epsilon"] == row["claimed_epsilon"] == ledger.epsilon(1e-5).upper
    released = make(dpsgd.DPSGD, settings("dpsgd released", noise_multiplier=1.3)).privacy(delta=1e-5)
    assert released["claimed_epsilon"] == row["honest_epsilon"]
    assert released["honest_epsilon"] > 20 * row["honest_epsilon"]
    one = make(dpsgd.DPSGD, settings("dpsgd released", noise_multiplier=1.3, batch_size=40, num_steps=1))
    got = one.privacy(delta=1e-5)["honest_epsilon"]  # one step on all records: a Gaussian mechanism with μ = 2C/(σC/B)
    least, most = (float(gdp.epsilon_of(delta, gdp_mu=2 * 40 / 1.3)) for delta in (1e-5, 5e-6))
    assert least <= got <= most * (1 + 1e-9)


def test_counting_uses_is_an_upper_bound_of_the_exact_epsilon():
    """Where the grid still serves, the counted bound lies above it; its pieces are a binomial tail and one μ."""
    how = {"sample_rate": 0.3, "num_steps": 5, "delta": 1e-4}
    exact = dpsgd.spent(noise_multiplier=0.12, **how)
    counted = dpsgd.spent(noise_multiplier=0.0999, **how)
    assert exact <= counted
    used = int(binom.isf(5e-5, 5, 0.3))
    assert binom.sf(used, 5, 0.3) <= 5e-5
    assert counted == pytest.approx(float(gdp.epsilon_of(5e-5, gdp_mu=math.sqrt(used) / 0.0999)))
    assert dpsgd.spent(noise_multiplier=0.0, **how) == math.inf
    assert dpsgd.spent(noise_multiplier=0.0, **{**how, "num_steps": 0}) == 0.0


def test_an_empty_poisson_batch_is_a_step_of_pure_noise():
    training = make(dpsgd.DPSGD, settings("dpsgd", noise_multiplier=2.0, max_grad_norm=0.5))
    gradient, losses = training.noisy_gradient(np.array([], dtype=int))
    assert losses is None
    entries = torch.cat([part.flatten() for part in gradient]) * 8 / (2.0 * 0.5)
    assert abs(float(entries.std()) - 1) < 5 / math.sqrt(2 * entries.numel())


# -------------------------------------------------------------------------------------------------------------- AdLM


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (AdLM)")
def test_epsilon_of_adlms_images_is_the_density_ratio_of_their_noise():
    """Any relevances give 2LDε₂/Δ₀; and it is the worst log density ratio of two images, attained."""
    training = make(adlm.AdLM, settings("adlm", epsilon=8.0))
    geometry = training.network.geometry
    sensitivity = 2 * geometry.map_neurons * geometry.kernel_area
    own = adlm.input_epsilon(training.scales)
    assert own == pytest.approx(2 * 8 * 9 * 2.0 / sensitivity, rel=1e-4)  # ε₂ = 2; shares add up to D but for floors
    x = np.full(9, 30.0)  # an output beyond both images
    log_ratio = np.sum((np.abs(x - -1.0) - np.abs(x - 1.0)) / training.scales)
    assert log_ratio == pytest.approx(own, rel=1e-12)
    nominal = make(adlm.AdLM, settings("adlm", epsilon=8.0, nominal_batch_size=16))
    assert adlm.input_epsilon(nominal.scales) == pytest.approx(2 * own, rel=1e-6)  # half the noise
    row = training.privacy(delta=1e-5)
    assert row["honest_epsilon"] == pytest.approx(2.0 + own + 4.0)
    assert row["claimed_epsilon"] == 8.0


def test_a_record_moves_the_mean_relevance_by_what_the_noise_is_for():
    images, labels = data()
    network = make(adlm.AdLM, settings("adlm")).fresh_network("relevance init")
    each = adlm.relevances(network, images, labels)
    assert each.abs().max() == 1
    assert (each.abs().amax(1) == 1).all()
    point = images[:1].clone().requires_grad_()
    gradient = torch.autograd.grad(network(point)[0, labels[0]], point)[0].flatten()
    want = gradient * images[0].flatten()
    assert torch.allclose(each[0], want / want.abs().max(), atol=1e-5)  # float32
    shares = adlm.shares(each.double().mean(0).numpy())
    assert shares.sum() == pytest.approx(9, rel=1e-3)
    assert (adlm.shares(np.zeros(4)) == 1).all()


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (AdLM)")
def test_noise_is_drawn_once_or_at_every_visit_and_paid_for():
    printed, released = (make(adlm.AdLM, settings(f"adlm {v}", num_steps=12)) for v in ("printed", "released"))
    assert printed.stored.shape == (40, 1, 3, 3)
    assert not hasattr(released, "stored")
    first, second = (released._noisy(released.images) for _ in range(2))
    assert not torch.equal(first, second)
    rows = printed.privacy(delta=1e-5), released.privacy(delta=1e-5)
    assert rows[0]["honest_epsilon"] == rows[1]["honest_epsilon"] == math.inf  # labels
    assert released.visits == 3  # 12 steps on 5 fixed batches
    assert rows[1]["input_epsilon"] == 3 * adlm.input_epsilon(released.scales)
    assert sorted(printed.fixed.flatten().tolist()) == list(range(40))


def test_randomised_labels_are_unbiased_and_private():
    labels = torch.arange(4).repeat(3000)
    got = adlm.randomised_labels(labels, epsilon=1.2, num_classes=4, generator=torch.Generator().manual_seed(0))
    values = got.unique()
    keep = 1 / (1 + 3 * math.exp(-1.2))
    other = (1 - keep) / 3
    assert values.numpy() == pytest.approx([-other / (keep - other), (1 - other) / (keep - other)])
    assert math.log(keep / other) == pytest.approx(1.2)
    want = functional.one_hot(labels, 4).double()
    error = (got - want).mean(0).abs()
    assert (error < 5 * got.std(0) / math.sqrt(len(labels))).all()
    shares = (got > 0)[labels == 1].double().mean(0)
    assert abs(float(shares[1]) - keep) < 5 * math.sqrt(keep * (1 - keep) / 3000)


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (AdLM)")
def test_the_polynomial_loss_is_the_expansion_of_cross_entropy():
    """Value, slope and curvature at 0 of the sigmoid cross entropy; far away they differ."""
    for y in (0.0, 1.0, 0.4):
        z = torch.tensor([[1e-3]], dtype=torch.float64)
        target = torch.full_like(z, y)
        want = functional.binary_cross_entropy_with_logits(z, target)
        assert float(adlm.polynomial_loss(z, target)) == pytest.approx(float(want), abs=1e-13)  # next term z⁴/192
    far = torch.tensor([[4.0]], dtype=torch.float64)
    gap = adlm.polynomial_loss(far, far * 0) - functional.binary_cross_entropy_with_logits(far, far * 0)
    assert float(gap) > 0.5


# ------------------------------------------------------------------------------------------------- PixelDP, SecureSGD


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (PixelDP)")
@pytest.mark.parametrize("name", ["pixeldp", "pixeldp laplace"])
def test_pixeldp_keeps_its_layer_within_stretch_one_and_has_no_privacy_for_training_data(name):
    training = make(pixeldp.PixelDP, settings(name, learning_rate=1.0)).run()
    assert training.deployed().sensitivity <= 1
    row = training.privacy(delta=1e-5)
    assert row["honest_epsilon"] == math.inf
    assert "nothing of the training data" in row["protects"]


@pytest.mark.paper("stobatch", "Section 4, Baseline Approaches (SecureSGD)")
def test_securesgd_keeps_one_draw_as_released_and_draws_anew_if_sound():
    images, _ = data()
    released = make(securesgd.SecureSGD, settings("securesgd released"))
    assert torch.equal(released.model(images), released.model(images))
    sound = make(securesgd.SecureSGD, settings("securesgd"))
    assert not torch.equal(sound.model(images), sound.model(images))
    repeated = images[:1].repeat(5, 1, 1, 1)
    assert len(sound.model(repeated).unique(dim=0)) == 5  # each example has its own
    assert released.deployed().noise.smallest < sound.deployed().noise.smallest
    row = sound.privacy(delta=1e-5)
    assert row["honest_epsilon"] == make(dpsgd.DPSGD, settings("dpsgd")).privacy(delta=1e-5)["honest_epsilon"]


@pytest.mark.parametrize("name", ["adlm", "dpsgd", "dpsgd released", "securesgd", "securesgd agm"])
def test_a_diverged_training_ends_with_the_step_and_the_learning_rate(name):
    kind, _, more = KINDS[name]
    changes = {**more, "num_steps": 60, "batch_size": 20, "optimizer": "sgd", "learning_rate": 1e30}
    run = make(kind, settings(name, **changes))
    with torch.no_grad():
        for parameter in run.parameters:
            parameter.mul_(1e12)  # so that few steps are enough
    with pytest.raises(FloatingPointError, match=r"step \d+.*learning_rate.*1e\+30"):
        run.run()


def test_a_diverged_training_ends_at_its_last_step_too():
    run = make(KINDS["pixeldp"][0], settings("pixeldp", num_steps=1))
    take = run.advance

    def advance():
        loss = take()
        with torch.no_grad():
            run.parameters[0].fill_(float("inf"))
        return loss

    run.advance = advance
    with pytest.raises(FloatingPointError, match=r"by step 1 with learning_rate=0\.1; pass a smaller learning_rate"):
        run.run()


@pytest.mark.parametrize("name", list(KINDS))
def test_what_fails_because_parameters_are_not_finite_says_so(name):
    run = make(KINDS[name][0], settings(name, **{**KINDS[name][2], "num_steps": 60, "batch_size": 20}))
    take = run.advance

    def advance():
        loss = take()
        with torch.no_grad():
            run.parameters[-1][0] = math.nan  # attacks refuse such logits, projections such gradients
        return loss

    run.advance = advance
    with pytest.raises(FloatingPointError, match=r"step \d+.*learning_rate"):
        run.run()
