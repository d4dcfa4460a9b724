"""StoBatch's networks: shapes of the document, the tied decoder, the range, what batch norm uses."""

import pytest
import torch

from privrob.learn.stobatch import networks, subpixel

SHAPES = [
    ("mnist", (1, 28, 28)),
    ("mnist", (1, 9, 11)),
    ("cifar10", (3, 12, 12)),
    ("resnet18", (3, 16, 16)),
    ("dense", (8, 1, 1)),
]


def build(name, shape, **options):
    generator = torch.Generator().manual_seed(0)
    if name == "resnet18":
        options.setdefault("width", 4)
    return networks.build(name, in_shape=shape, num_classes=5, generator=generator, num_hidden=20, **options)


def images(shape, n=6, seed=1):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.paper("stobatch", "Appendix P")
def test_first_layers_have_the_kernels_and_map_sizes_of_the_appendix():
    meta = torch.Generator().manual_seed(0)
    wanted = {"mnist": ((1, 28, 28), 25, 14**2, 32), "cifar10": ((3, 28, 28), 16, 14**2, 128)}
    wanted["resnet18"] = ((3, 64, 64), 49, 32**2, 64)
    for name, (shape, area, neurons, maps) in wanted.items():
        found = networks.build(name, in_shape=shape, num_classes=10, generator=meta).geometry
        assert (found.kernel_area, found.map_neurons, found.num_maps, found.num_hidden) == (area, neurons, maps, 256)


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_a_network_is_its_parts_and_its_hidden_layer_is_bounded(name, shape):
    network, x = build(name, shape).eval(), images(shape)
    noise, hidden_noise = torch.full((1, *shape), 0.3), torch.full((1, *network.geometry.hidden_shape), 3.0)
    h = network.affine(x, input_noise=noise)
    assert tuple(h.shape[1:]) == network.geometry.hidden_shape
    last = network.hidden(h + hidden_noise)
    assert last.shape == (6, 20)
    assert last.abs().max() <= 1
    torch.testing.assert_close(network(x, input_noise=noise, hidden_noise=hidden_noise), network.last(last))
    own = {id(p) for p in (*network.first.parameters(), *network.rest.parameters())}
    assert own == {id(p) for p in network.parameters()}


@pytest.mark.paper("stobatch", "Section 3.1")
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_the_decoder_is_the_transpose_of_the_first_layer(name, shape):
    network, x = build(name, shape).double(), images(shape).double()
    network.input_range = float("inf")
    h = torch.randn(6, *network.geometry.hidden_shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    left, right = (network.affine(x) * h).sum(), (x * network.decode(h)).sum()  # the bias is 0 at the start
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_mnist_sees_nothing_beyond_ten():
    network, x = build("mnist", (1, 8, 8)).eval(), images((1, 8, 8))
    far = torch.full_like(x, 50.0)
    torch.testing.assert_close(network(x, input_noise=far), network(torch.full_like(x, 10.0)))
    assert network.noisy(x, far).max() == 10


@pytest.mark.parametrize("name", ["mnist", "resnet18"])
def test_batch_norm_uses_what_is_asked(name):
    shape = (1, 8, 8)
    network, x = build(name, shape), images(shape, n=12)
    network.eval().set_statistics("initial")
    untouched = network(x)
    network.set_statistics("running")
    torch.testing.assert_close(network(x), untouched)  # nothing was trained: averages are still 0 and 1
    network.train()
    batch = network(x)
    network.eval()
    assert not torch.allclose(network(x), untouched, atol=1e-3)  # the pass has moved the averages
    torch.testing.assert_close(network.set_statistics("initial")(x), untouched)
    torch.testing.assert_close(network.set_statistics("batch")(x), batch)
    before = [b.clone() for b in network.buffers()]
    network(x)
    assert all(torch.equal(a, b) for a, b in zip(before, network.buffers()))
    alone = network.set_statistics("running")(x[:1])
    torch.testing.assert_close(alone, network(x)[:1], rtol=1e-4, atol=1e-5)


def test_running_averages_take_away_a_constant_shift_of_the_first_layer():
    network, x = build("dense", (8, 1, 1)), images((8, 1, 1), n=20)
    shift = 5 * torch.randn(1, 8, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(network(x), network(x, hidden_noise=shift), rtol=1e-3, atol=1e-4)


def test_weights_come_from_the_generator_alone():
    torch.manual_seed(0)
    one, state = build("mnist", (1, 8, 8)), torch.random.get_rng_state()
    torch.manual_seed(1)
    other = build("mnist", (1, 8, 8))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    torch.manual_seed(0)
    build("cifar10", (3, 8, 8))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("mnst", (1, 8, 8), {}, "mnist"),
        ("mnist", (1, 3, 8), {}, "in_shape"),
        ("mnist", (8, 8), {}, "in_shape"),
        ("mnist", (1, 8, 8), {"width": 3}, "network_options"),
        ("dense", (4, 1, 1), {"width": 0}, "width"),
    ],
)
def test_what_cannot_be_built_is_refused(name, shape, options, message):
    with pytest.raises(ValueError, match=message):
        networks.build(name, in_shape=shape, num_classes=3, generator=torch.Generator(), **options)


def test_unknown_statistics_are_refused():
    with pytest.raises(ValueError, match="statistics"):
        build("dense", (8, 1, 1)).set_statistics("moving")


# ------------------------------------------------------------------------------------------------- sub-pixel transpose


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(5, 2, 2), (4, 2, 1), (7, 2, 3), (3, 3, 0), (5, 4, 1), (3, 1, 1)]
)
@pytest.mark.parametrize("size", [(28, 28), (9, 13)])
def test_the_sub_pixel_transpose_is_the_transposed_convolution_with_its_gradients(kernel, stride, padding, size):
    draw = torch.Generator().manual_seed(0)
    layer = torch.nn.Conv2d(1, 6, kernel, stride=stride, padding=padding).double()
    x = torch.randn(3, 1, *size, generator=draw, dtype=torch.float64)
    values = torch.randn(layer(x).shape, generator=draw, dtype=torch.float64).requires_grad_()
    ours = subpixel.transpose(values, layer.weight, stride=stride, padding=padding, size=size)
    missing = [n - ((v - 1) * stride - 2 * padding + kernel) for n, v in zip(size, values.shape[2:], strict=True)]
    padded = torch.nn.functional.conv_transpose2d(values, layer.weight, stride=stride)  # all that the kernel reaches
    padded = torch.nn.functional.pad(padded, (0, padding + missing[1], 0, padding + missing[0]))
    theirs = padded[:, :, padding : padding + size[0], padding : padding + size[1]]
    torch.testing.assert_close(ours, theirs)
    seen = torch.randn(ours.shape, generator=draw, dtype=torch.float64)
    for mine, wanted in zip(
        *(torch.autograd.grad(y, [values, layer.weight], seen) for y in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(mine, wanted)


def test_attacked_images_get_the_gradient_of_the_plain_layer_and_so_do_its_weights():
    network, x = build("mnist", (1, 28, 28)).double(), images((1, 28, 28)).double().requires_grad_()
    assert subpixel.pays(network.first, x)
    of = [x, *network.first.parameters()]
    found = torch.autograd.grad(network.affine(x).square().sum(), of)
    wanted = torch.autograd.grad(network.first(network.noisy(x)).square().sum(), of)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
