"""StoBatch's objectives against the functions they expand, closed forms, and the printed gradient."""

import math

import pytest
import torch

from privrob.learn.stobatch import networks, objectives


def toy(name="dense", shape=(6, 1, 1), seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    network = networks.build(name, in_shape=shape, num_classes=4, generator=generator, num_hidden=5, **options).double()
    images = torch.rand(7, *shape, generator=generator, dtype=torch.float64) * 2 - 1
    noise = torch.randn(1, *network.geometry.hidden_shape, generator=generator, dtype=torch.float64)
    return network, images, noise


@pytest.mark.paper("stobatch", "Equation 19")
def test_gradient_of_the_reconstruction_is_the_printed_one():
    network, x, noise = toy(width=4)
    weight = network.first.weight  # (neurons, inputs): θ₁ transposed
    (found,) = torch.autograd.grad(objectives.reconstruction_as_printed(network, x, hidden_noise=noise).sum(), weight)
    flat = x.flatten(1)
    h = flat @ weight.detach().T + network.first.bias.detach() + noise
    printed = sum(torch.outer(h[i], 0.5 - flat[i]) for i in range(7))
    torch.testing.assert_close(found, printed, rtol=1e-12, atol=1e-12)


@pytest.mark.paper("stobatch", "Equation 19")
def test_gradient_of_a_convolution_is_the_printed_one_unrolled():
    network, x, noise = toy("mnist", (1, 8, 8))
    weight = network.first.weight
    (found,) = torch.autograd.grad(objectives.reconstruction_as_printed(network, x, hidden_noise=noise).sum(), weight)
    with torch.no_grad():
        h = network.affine(x) + noise
    patches = torch.nn.functional.unfold(0.5 - x, 5, padding=2, stride=2)
    # a pixel beyond the border is reconstructed by nobody
    inside = torch.nn.functional.unfold(torch.ones_like(x), 5, padding=2, stride=2)
    printed = torch.einsum("nml,npl->mp", h.flatten(2), patches * inside).reshape(weight.shape)
    torch.testing.assert_close(found, printed, rtol=1e-10, atol=1e-10)


@pytest.mark.paper("stobatch", "Equation 6")
def test_reconstruction_is_the_first_order_expansion_of_the_cross_entropy():
    network, x, _ = toy(width=4)
    small = 1e-4
    with torch.no_grad():
        network.first.weight.mul_(small)  # x̃ = θ₁h is then of order small²
    value = objectives.reconstruction_as_printed(network, x)
    with torch.no_grad():
        z = network.decode(network.affine(x)).flatten(1)
    flat = x.flatten(1)
    exact = (flat * torch.log1p(torch.exp(-z)) + (1 - flat) * torch.log1p(torch.exp(z))).sum(1)
    assert torch.allclose(value, exact, rtol=0, atol=6 * z.abs().max().item() ** 2)
    assert (value - 6 * math.log(2)).abs().max() > 100 * z.abs().max() ** 2  # the first order is seen


def test_the_printed_reconstruction_has_no_least_value_and_the_released_one_has():
    network, x, noise = toy(width=4)
    values = {"as_printed": [], "as_released": []}
    (direction,) = torch.autograd.grad(
        objectives.reconstruction_as_printed(network, x, hidden_noise=noise).sum(), network.first.weight
    )
    network.eval().set_statistics("batch")
    for length in (1e1, 1e3, 1e5):
        with torch.no_grad():
            network.first.weight.sub_(length * direction)
        for name, function in objectives.RECONSTRUCTION.items():
            values[name].append(function(network, x, hidden_noise=noise).sum().item())
    assert values["as_printed"][2] < 1e3 * values["as_printed"][1] < 0
    assert min(values["as_released"]) >= 0


@pytest.mark.paper("stobatch", "Section 3.2")
def test_taylor_cross_entropy_is_the_second_order_expansion_at_zero():
    z = torch.tensor([[0.3, -0.7, 0.0, 2.0]], dtype=torch.float64)
    y = torch.tensor([1])
    onehot = torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    by_hand = (z.clamp(min=0) - z * onehot + math.log(2) - z.abs() / 2 + z.square() / 8).sum(1)
    torch.testing.assert_close(objectives.taylor_cross_entropy(z, y), by_hand, rtol=1e-14, atol=0)

    def exact(u):
        return torch.nn.functional.binary_cross_entropy_with_logits(u, onehot, reduction="sum")

    def ours(u):
        return objectives.taylor_cross_entropy(u, y).sum()

    zero = torch.zeros(1, 4, dtype=torch.float64)
    for derivative in (torch.autograd.functional.jacobian, torch.autograd.functional.hessian):
        torch.testing.assert_close(derivative(ours, zero), derivative(exact, zero), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours(zero), exact(zero), rtol=1e-14, atol=0)


@pytest.mark.paper("stobatch", "Section 3.2")
def test_the_printed_loss_is_refuted_on_negative_logits():
    z, y = torch.tensor([[-0.01, 0.0]], dtype=torch.float64), torch.tensor([1])
    exact = math.log1p(math.exp(-0.01)) + math.log(2)
    assert objectives.taylor_cross_entropy(z, y).item() == pytest.approx(exact, abs=1e-9)
    printed = objectives.taylor_cross_entropy(z, y, form="as_printed").item()
    assert exact - printed == pytest.approx(0.01, rel=0.02)  # its slope is 3/2 there, not 1/2


@pytest.mark.paper("stobatch", "Theorem 3")
def test_label_noise_is_that_of_the_coefficients():
    generator = torch.Generator().manual_seed(0)
    hidden, weight, noise = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((9, 5), (4, 5), (4, 5)))
    labels = torch.arange(9) % 4
    z, m = hidden @ weight.T, 9
    with_noise = objectives.taylor_cross_entropy(z, labels).sum() / m + objectives.label_noise_term(weight, noise)
    onehot = torch.nn.functional.one_hot(labels, 4).double()
    coefficients = onehot.T @ hidden / m + noise  # Σ_i h_i y_ik / m + χ₃/m
    first = (math.log(2) + z / 2 + z.square() / 8).sum() / m
    torch.testing.assert_close(with_noise, first - (coefficients * weight).sum(), rtol=1e-12, atol=0)


def test_released_label_noise_is_the_wrong_size():
    weight, noise = torch.tensor([[1.0, -2.0], [3.0, 0.5]]), torch.tensor([[0.5, 0.25], [-1.0, 2.0]])
    sound = objectives.label_noise_term(weight, noise).item()
    assert sound == 2.0
    assert objectives.label_noise_term(weight, noise, variant="as_released").item() == 2 * sound
    other = objectives.label_noise_term(weight, noise, variant="as_released", released="cifar10").item()
    assert other == pytest.approx((0.5 + 0.5) / 2 + (3 + 1) / 2)
    assert objectives.label_noise_term(weight, None).item() == 0


@pytest.mark.paper("stobatch", "Equation 9")
def test_adversarial_objective_weighs_the_two_batches():
    benign, adversarial = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([4.0, 5.0, 1.0])
    found = objectives.adversarial_objective(benign, adversarial, batch_size=3, adversarial_weight=1.5)
    assert found.item() == pytest.approx((9 + 1.5 * 10) / (3 * 2.5))
    halves = [
        objectives.adversarial_objective(benign[s], adversarial[s], batch_size=3, adversarial_weight=1.5)
        for s in (slice(0, 1), slice(1, 3))
    ]
    assert sum(halves).item() == pytest.approx(found.item())
