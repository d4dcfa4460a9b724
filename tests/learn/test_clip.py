"""Per-example norms and weighted sums against a loop over the examples, on every kind of layer and of number."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from privrob.learn.clip import PerExample, check_model, clip_weights

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def loop(model, inputs, targets, loss=None):
    """The gradients one by one, by a backward pass each: a list of lists."""
    loss = loss or functional.cross_entropy
    parameters = [p for p in model.parameters() if p.requires_grad]
    each = []
    for i in range(len(inputs)):
        grads = torch.autograd.grad(loss(model(inputs[i : i + 1]), targets[i : i + 1]), parameters, allow_unused=True)
        each.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads)])
    return each


def assert_equals_loop(model, inputs, targets, *, rtol):
    want = loop(model, inputs, targets)
    batch = PerExample(model)(inputs, targets)
    norms = torch.stack([sum(g.double().square().sum() for g in grads).sqrt() for grads in want])
    assert batch.norms.dtype == torch.float64
    torch.testing.assert_close(batch.norms, norms, rtol=rtol, atol=0)
    weights = torch.linspace(-1, 2, len(inputs), dtype=inputs.dtype if inputs.is_floating_point() else torch.float32)
    for got, parts in zip(batch.weighted_sum(weights), zip(*want), strict=True):
        expected = sum(w * g for w, g in zip(weights, parts))
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol * float(expected.abs().max() + 1e-300))


class Twice(nn.Module):
    """Uses one convolution and one dense layer twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(48, 48)
        self.last = nn.Linear(48, 5)

    def forward(self, x):
        x = torch.tanh(self.conv(torch.tanh(self.conv(x))))
        x = functional.adaptive_avg_pool2d(x, 4).flatten(1)
        return self.last(torch.tanh(self.dense(torch.tanh(self.dense(x)))))


class Thrice(nn.Module):
    """Uses one convolution three times."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(48, 5)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.conv(x))
        return self.last(functional.adaptive_avg_pool2d(x, 4).flatten(1))


class Scaled(nn.Module):
    """Has a parameter of its own beside those of its layers."""

    def __init__(self):
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.tensor([1.5, 0.5, 2.0])), nn.Linear(3, 4)

    def forward(self, x):
        return self.inner(x.flatten(2).mean(2) * self.scale)


def conv(**options):
    return nn.Sequential(nn.Conv2d(3, 6, **options), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5))


class Positions(nn.Module):
    """A dense layer over a sequence; few positions and wide layers take the Gram form."""

    def __init__(self, width, positions):
        super().__init__()
        self.shape, self.dense = (-1, positions, 12), nn.Linear(12, width)
        self.wide, self.last = nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, x):
        x = x.flatten(1)[:, : self.shape[1] * 12].reshape(self.shape)
        return self.last(torch.tanh(self.wide(torch.tanh(self.dense(x))))).mean(1)


def small_kernel_many_channels():
    # 4 positions, 64 x 144 weights, then 1 position, 64 x 256: the Gram form of a convolution
    return nn.Sequential(
        nn.Conv2d(3, 64, (8, 6), stride=4), nn.Tanh(), nn.Conv2d(64, 64, 2), nn.Flatten(), nn.Linear(64, 5)
    )


MODELS = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 10, 7), nn.ReLU(), nn.Linear(7, 5)),
    "without bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(360, 7, bias=False), nn.ReLU(), nn.Linear(7, 5)),
    "conv": lambda: conv(kernel_size=3),
    "conv with everything": lambda: conv(kernel_size=(3, 2), stride=(2, 1), padding=(2, 1), dilation=(1, 2)),
    "conv same": lambda: conv(kernel_size=4, padding="same"),
    "conv groups": lambda: conv(kernel_size=3, groups=3),
    "conv circular": lambda: conv(kernel_size=3, padding=1, padding_mode="circular"),
    "conv without bias": lambda: conv(kernel_size=3, bias=False),
    "conv in Gram form": small_kernel_many_channels,
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(320, 5)
    ),
    "layer norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(360, 8), nn.LayerNorm(8), nn.Linear(8, 5)),
    "prelu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(360, 8), nn.PReLU(8), nn.Linear(8, 5)),
    "conv transposed": lambda: nn.Sequential(nn.ConvTranspose2d(3, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(336, 5)),
    "own parameter": Scaled,
    "used twice": Twice,
    "used three times": Thrice,
    "sequence": lambda: Positions(6, 20),
    "sequence in Gram form": lambda: Positions(64, 3),
}


def example(dtype, batch=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(batch, 3, 12, 10, generator=generator, dtype=dtype)
    return inputs, torch.randint(0, 4, (batch,), generator=generator)


def made(name, dtype):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return MODELS[name]().to(dtype)


@pytest.mark.paper("dplearn", "Training a machine learning model with DP-SGD")
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", MODELS)
def test_norms_and_sums_equal_a_loop_in_float64(name, memory):
    inputs, targets = example(torch.float64)
    model = made(name, torch.float64).to(memory_format=memory)
    assert_equals_loop(model, inputs.to(memory_format=memory), targets, rtol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_norms_and_sums_equal_a_loop_in_float32(name):
    assert_equals_loop(made(name, torch.float32), *example(torch.float32), rtol=1e-5)


def flat_each(model, inputs, targets):
    return torch.stack([torch.cat([g.flatten() for g in grads]) for grads in loop(model, inputs, targets)])


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", MODELS)
def test_scaled_norms_and_inner_products_equal_a_loop(name, memory):
    inputs, targets = example(torch.float64)
    model = made(name, torch.float64).to(memory_format=memory)
    want, generator = flat_each(model, inputs, targets), torch.Generator().manual_seed(1)
    scales = [torch.rand(p.shape, generator=generator, dtype=torch.float64) + 0.1 for p in model.parameters()]
    directions = [torch.randn(3, *p.shape, generator=generator, dtype=torch.float64) for p in model.parameters()]
    batch = PerExample(model)(inputs, targets, scales=scales)
    s, v = torch.cat([s.flatten() for s in scales]), torch.cat([d.flatten(1) for d in directions], 1)
    torch.testing.assert_close(batch.norms, (want / s).norm(dim=1), rtol=1e-10, atol=0)
    torch.testing.assert_close(batch.inner_products(directions), want @ v.t(), rtol=1e-10, atol=1e-12)
    got = torch.cat([part.flatten() for part in batch.weighted_sum(torch.ones(len(inputs)))])
    torch.testing.assert_close(got, want.sum(0), rtol=1e-10, atol=1e-12)  # the sum is not scaled


@pytest.mark.parametrize("name", MODELS)
def test_differences_of_two_models_equal_a_loop(name):
    inputs, targets = example(torch.float64)
    here = made(name, torch.float64)
    there = copy.deepcopy(here)
    with torch.no_grad():
        for p in there.parameters():
            p.add_(1e-3 * torch.sin(torch.arange(p.numel(), dtype=p.dtype)).view_as(p))
    want = flat_each(here, inputs, targets) - flat_each(there, inputs, targets)
    batch = PerExample(here).difference(PerExample(there), inputs, targets)
    torch.testing.assert_close(batch.norms, want.norm(dim=1), rtol=1e-8, atol=0)
    got = torch.cat([part.flatten() for part in batch.weighted_sum(torch.linspace(0, 1, len(inputs)))])
    torch.testing.assert_close(got, torch.linspace(0, 1, len(inputs)).double() @ want, rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        for p, q in zip(here.parameters(), there.parameters(), strict=True):
            q.copy_(p)
    same = PerExample(here).difference(PerExample(there), inputs, targets)
    assert float(same.norms.max()) < 1e-7


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("name", ["dense", "conv", "conv in Gram form", "group norm", "used twice"])
def test_long_gradients_that_cancel_leave_no_more_than_their_clipped_difference(name, size):
    """In float32 the sum of a difference keeps the rounding of what cancelled: the norm must cover it."""
    inputs, targets = example(torch.float32)
    here = made(name, torch.float32)
    grads = PerExample(here, loss=lambda out, y: size * functional.cross_entropy(out, y, reduction="none"))
    there = copy.deepcopy(here)
    with torch.no_grad():
        for p in there.parameters():
            p.mul_(1 + 3e-7)
    other = PerExample(there, loss=grads.loss)
    for bound in (1e-3, 1e-6, 1e-9):
        batch = grads.difference(other, inputs, targets)
        weights = clip_weights(batch.norms, bound)
        for i in range(len(inputs)):
            alone = batch.weighted_sum(torch.where(torch.arange(len(inputs)) == i, weights, 0.0))
            left = torch.cat([part.double().flatten() for part in alone]).norm()
            assert float(left) <= bound * (1 + 1e-5)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_positions_that_cancel_leave_no_more_than_they_are_clipped_to(size):
    class Differences(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 64, 3, bias=False)

        def forward(self, x):
            z = self.conv(x)
            return z[:, :, 0, 0] - z[:, :, 0, 1]

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 16, 3, 1, generator=generator).repeat(1, 1, 1, 4) * size
    inputs += 1e-3 * torch.randn(1, 16, 3, 4, generator=generator)
    ramp = torch.arange(1.0, 65.0)
    batch = PerExample(Differences(), loss=lambda out, y: (out * ramp).sum(1))(inputs, torch.zeros(1))
    (part,) = batch.weighted_sum(clip_weights(batch.norms, 1.0))
    assert float(part.double().norm()) <= 1 + 1e-5


def test_a_weight_below_full_precision_drops_its_gradient():
    model = nn.Linear(3, 2)
    inputs = torch.full((1, 3), 1e37)
    batch = PerExample(model, loss=lambda out, y: out.sum(1))(inputs, torch.zeros(1))
    for bound in (1e-3, 1e-7, 3e-8):
        parts = batch.weighted_sum(clip_weights(batch.norms, bound))
        assert float(torch.cat([p.double().flatten() for p in parts]).norm()) <= bound * (1 + 1e-5)


def test_the_gram_form_is_what_few_positions_and_wide_layers_take():
    taken = {}
    for name in ("conv in Gram form", "conv", "sequence in Gram form", "sequence"):
        batch = PerExample(made(name, torch.float64))(*example(torch.float64))
        taken[name] = [layer.each is None for layer in batch._layers]
    assert taken["conv in Gram form"] == [True, True, True]
    assert not taken["conv"][0]
    assert taken["sequence in Gram form"][1]
    assert not taken["sequence"][1]


def test_one_example_is_a_batch():
    assert_equals_loop(made("conv", torch.float64), *example(torch.float64, batch=1), rtol=1e-10)


def test_the_large_arrays_are_used_again_without_a_trace():
    model = made("conv with everything", torch.float64)
    grads = PerExample(model)
    small, large = example(torch.float64, batch=3), example(torch.float64, batch=9, seed=1)
    grads(*large)
    got = grads(*small)
    fresh = PerExample(model)(*small)
    assert torch.equal(got.norms, fresh.norms)
    for a, b in zip(got.weighted_sum(torch.ones(3)), fresh.weighted_sum(torch.ones(3)), strict=True):
        assert torch.equal(a, b)
    grads(*large)
    with pytest.raises(RuntimeError, match="overwritten by a later batch"):
        got.weighted_sum(torch.ones(3))


def test_embeddings_have_norms_too():
    model = nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(24, 5)).double()
    tokens = torch.tensor([[1, 1, 3, 4], [0, 10, 10, 10], [5, 6, 7, 8]])
    assert_equals_loop(model, tokens, torch.tensor([0, 1, 2]), rtol=1e-6)  # weights are float32 here


def test_the_order_in_which_layers_run_does_not_matter():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.first = nn.Linear(6, 5), nn.Linear(360, 6)  # parameters in the other order

        def forward(self, x):
            return self.second(torch.tanh(self.first(x.flatten(1))))

    assert_equals_loop(Backwards().double(), *example(torch.float64), rtol=1e-10)


def test_frozen_parameters_are_left_out():
    model = made("conv", torch.float64)
    model[0].weight.requires_grad_(False)
    grads = PerExample(model)
    assert [tuple(p.shape) for p in grads.parameters] == [(6,), (5, 24), (5,)]
    assert_equals_loop(model, *example(torch.float64), rtol=1e-10)
    model[4].bias.requires_grad_(False)
    assert_equals_loop(model, *example(torch.float64), rtol=1e-10)


def test_a_layer_that_the_loss_does_not_see_has_zero_gradient():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare, self.unseen = nn.Linear(360, 5), nn.Linear(360, 5), nn.Linear(360, 5)

        def forward(self, x):
            self.unseen(x.flatten(1))
            return self.used(x.flatten(1))

    assert_equals_loop(Spare().double(), *example(torch.float64), rtol=1e-10)


def test_another_loss_can_be_given():
    model = nn.Sequential(nn.Flatten(), nn.Linear(360, 1)).double()
    inputs, _ = example(torch.float64)
    targets = torch.linspace(-1, 1, 7, dtype=torch.float64)

    def squared(outputs, targets):
        return (outputs[:, 0] - targets) ** 2

    batch = PerExample(model, loss=squared)(inputs, targets)
    residual = (model(inputs)[:, 0] - targets).detach()
    want = 2 * residual.abs() * (inputs.flatten(1).square().sum(1) + 1).sqrt()  # closed form for one layer
    torch.testing.assert_close(batch.norms, want, rtol=1e-12, atol=0)
    torch.testing.assert_close(batch.losses, residual**2, rtol=1e-12, atol=0)


def test_dropout_masks_differ_between_examples():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(360, 5)).double()
    inputs = torch.ones(6, 3, 12, 10, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        norms = PerExample(model)(inputs, torch.zeros(6, dtype=torch.int64)).norms
    assert len(set(norms.tolist())) == 6


def test_nothing_of_the_model_is_changed():
    model = made("used twice", torch.float64)
    before = copy.deepcopy(model.state_dict())
    grads = PerExample(model)
    batch = grads(*example(torch.float64))
    batch.weighted_sum(batch.norms)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())
    with torch.no_grad():  # also where the caller has switched gradients off
        assert torch.equal(grads(*example(torch.float64)).norms, batch.norms)


# --------------------------------------------------------------------------------------------------- sizes and weights


def linear_with_gradients(values):
    """A layer without bias whose per-example gradients have these norms: the loss is the output times the value."""
    model = nn.Linear(1, 1, bias=False)
    return (
        PerExample(model, loss=lambda out, scale: out[:, 0] * scale),
        torch.ones(len(values), 1),
        torch.tensor(values),
    )


@pytest.mark.paper("dplearn", "Training a machine learning model with DP-SGD")
def test_clipping_takes_zero_tiny_huge_and_exact_norms():
    values = [0.0, 1e-30, 1e30, 3.0, 2.9, 1e4]
    grads, inputs, targets = linear_with_gradients(values)
    batch = grads(inputs, targets)
    torch.testing.assert_close(batch.norms, torch.tensor(values, dtype=torch.float64), rtol=1e-6, atol=0)
    weights = clip_weights(batch.norms, 3)
    assert weights[:2].tolist() == [1.0, 1.0]
    assert weights[3] == 1.0
    assert weights[4] == 1.0
    clipped = weights * batch.norms
    torch.testing.assert_close(clipped[[2, 5]], torch.tensor([3.0, 3.0], dtype=torch.float64), rtol=1e-6, atol=0)
    total = batch.weighted_sum(weights)[0]
    assert total.item() == pytest.approx(3 + 3 + 2.9 + 3, rel=1e-5)
    assert torch.isfinite(total).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e18, 1e28])
def test_convolutions_and_sequences_take_tiny_and_huge_gradients(scale):
    for name in ("conv", "sequence", "sequence in Gram form", "group norm"):
        model, (inputs, targets) = made(name, torch.float32), example(torch.float32)
        plain = PerExample(model)(inputs, targets).norms
        loss = lambda o, t: functional.cross_entropy(o, t, reduction="none") * scale  # noqa: E731
        scaled = PerExample(model, loss=loss)(inputs, targets).norms
        torch.testing.assert_close(scaled / scale, plain, rtol=1e-5, atol=0)


def test_no_clipping_is_a_bound_of_infinity_and_a_bound_of_zero_is_refused():
    norms = torch.tensor([0.0, 5.0], dtype=torch.float64)
    assert clip_weights(norms, float("inf")).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="max_grad_norm"):
        clip_weights(norms, 0.0)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    with pytest.raises(ValueError, match=r"parameter '1.weight' must be float32 or float64, got torch.*float\(\)"):
        PerExample(made("dense", dtype))


def test_batch_norm_is_refused_with_its_name_and_replacement():
    model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.Sequential(nn.BatchNorm2d(48)), nn.Flatten(), nn.Linear(10, 5))
    with pytest.raises(ValueError, match=r"layer '1.0' \(BatchNorm2d\) mixes .*GroupNorm\(16, 48\)"):
        check_model(model)
    check_model(nn.Sequential(nn.InstanceNorm2d(4), nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="InstanceNorm2d"):
        check_model(nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True), nn.Linear(2, 2)))


def test_tied_parameters_are_refused_with_both_names():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    with pytest.raises(ValueError, match=r"'0.weight' and '2.weight' are one tensor"):
        PerExample(model)


def test_changes_in_place_are_refused_not_silently_wrong():
    for model in (
        nn.Sequential(nn.Flatten(), nn.Linear(360, 5), nn.ReLU(inplace=True), nn.Linear(5, 5)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(320, 5)),
    ):
        with pytest.raises(ValueError, match="inplace=False"):
            PerExample(model)(*example(torch.float32))


def test_layers_of_several_tensors_are_refused_by_name():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(10, 2, batch_first=True)

        def forward(self, x):
            x = x.flatten(1, 2)
            return self.attention(x, x, x)[0].mean(1)

    with pytest.raises(ValueError, match=r"layer 'attention' \(MultiheadAttention\) must map one tensor"):
        PerExample(Attending())(*example(torch.float32))


def test_a_loss_that_is_already_averaged_is_refused():
    grads = PerExample(made("dense", torch.float32), loss=functional.cross_entropy)
    with pytest.raises(ValueError, match="one value an example"):
        grads(*example(torch.float32))


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(ValueError, match="must have a parameter that requires a gradient"):
        check_model(nn.Flatten())


class _Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(360, 360), nn.Linear(360, 5)

    def forward(self, x):
        return self.last(functional.linear(self.first(x.flatten(1)), self.first.weight))


def _hooked(kind, hook):
    model = nn.Sequential(nn.Flatten(), nn.Linear(360, 8), nn.Linear(8, 5))
    getattr(model[1] if kind != "register_hook" else model[1].weight, kind)(hook)
    return model


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(360, 5))), "1.weight_g"),
        (lambda: nn.Sequential(nn.Flatten(), nn.utils.spectral_norm(nn.Linear(360, 5))), "1.weight_orig"),
        (_Again, "first.weight"),
        (lambda: _hooked("register_forward_hook", lambda module, args, out: 2 * out), "1.weight"),
        (lambda: _hooked("register_hook", lambda grad: 2 * grad), "1.weight"),
    ],
    ids=["weight_norm", "spectral_norm", "used twice", "forward hook", "gradient hook"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_gradients_that_layers_do_not_explain_are_refused_at_the_first_batch(model, name):
    with pytest.raises(ValueError, match=rf"parameter '{name}' has a gradient that its layer's .* take that away"):
        PerExample(model())(*example(torch.float32))


def test_hooks_that_only_watch_or_change_what_enters_are_no_trouble():
    inputs, targets = example(torch.float64)
    for kind, hook in (
        ("register_forward_hook", lambda module, args, out: None),
        ("register_forward_pre_hook", lambda module, args: (3 * args[0],)),
    ):
        model = _hooked(kind, hook).double()
        ours = PerExample(model)(inputs, targets).weighted_sum(torch.ones(len(inputs)))
        loss = functional.cross_entropy(model(inputs), targets, reduction="sum")
        for mine, theirs in zip(ours, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_a_parameter_that_is_a_single_number_has_a_gradient():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, x):
            return self.scale * x

    inputs, targets = example(torch.float64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(360, 5).double(), Scaled())
    batch = PerExample(model)(inputs, targets)
    one = [functional.cross_entropy(model(x[None]), y[None]) for x, y in zip(inputs, targets, strict=True)]
    each = [torch.autograd.grad(loss, list(model.parameters())) for loss in one]
    norms = [math.sqrt(sum(g.square().sum().item() for g in grads)) for grads in each]
    torch.testing.assert_close(batch.norms, torch.tensor(norms, dtype=torch.float64))
    torch.testing.assert_close(batch.weighted_sum(batch.norms)[-1], sum(n * g[-1] for n, g in zip(norms, each)))
