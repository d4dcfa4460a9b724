r"""Adversarial images within an l∞ ball: FGSM, I-FGSM, MIM and PGD against any model that torch can differentiate.

A model is a callable ``images -> logits``; which model is attacked is the caller's choice, and decides what the attack
means for a network with noise: without the noise (the surrogate), through the stored noise (fixed), or through noise
drawn anew at every call, whose gradients are averaged (``num_draws`` above 1; "expectation over transformation").

Every image stays within its radius and within the pixel range, to the last bit: both in the images' own precision and
in float64. Nothing of the model is changed, neither its mode nor its buffers (running averages of batch norm) nor its
parameters' gradients, and the global random generators of torch end where they began, also if the model raises.
"""

from __future__ import annotations

import contextlib
import math
import threading

from privrob import checks

KINDS = ("fgsm", "ifgsm", "mim", "pgd")
ATTACK_MODELS = ("surrogate", "fixed", "eot")


def target(deployed, *, attack_model, generator=None):
    """The callable that an adversary differentiates, of a model that is served with noise.

    Args: deployed — with ``surrogate(images)``, ``fixed(images)``, ``fresh(images, *, generator)``;
        attack_model — ``surrogate`` (no noise; the document's protocol), ``fixed`` (through the stored noise), ``eot``
        (new noise at every call: give :func:`attack` a ``num_draws`` above 1);  generator — of that noise.
    """
    checks.choice("attack_model", attack_model, ATTACK_MODELS)
    if attack_model != "eot":
        return getattr(deployed, attack_model)
    if generator is None:
        raise ValueError("generator must be given for attack_model='eot': it draws the noise of every call")
    return lambda images: deployed.fresh(images, generator=generator)


def attack(
    model,
    images,
    labels=None,
    *,
    kind,
    radius,
    num_steps=1,
    low=-1.0,
    high=1.0,
    decay=1.0,
    num_draws=1,
    generator=None,
    relabel=False,
    step_size=None,
    start=None,
):
    r"""Images near the given ones on which the model's cross-entropy loss L is high.

    .. math:: x_0 = x, \qquad x_{t+1} = \Pi\big(x_t + \tfrac{\mu}{T}\,\mathrm{sign}(g_t)\big)

    Π projects to the ball of radius μ about x and to [low, high]. The direction g is the gradient of L at x_t
    (``ifgsm``; ``fgsm`` is its single step; ``pgd`` starts from a uniform point of the ball), or, for ``mim``,
    :math:`g_t = \text{decay}\cdot g_{t-1} + \nabla L/\mathrm{mean}|\nabla L|`, normalised for each example. An example
    whose gradient is exactly 0 stays where it is in that step (mim: goes on in its old direction) and is tried again in
    the next.

    Paper: stobatch, Section 2 (attacks), Equations 7 and 8, Section 4 (FGSM, I-FGSM, MIM, MadryEtAl).
    Printed: in Equation 8 the label is predicted anew at every step (``relabel=True``): once it has flipped, the step
        leads back.   Used: the label given, or the prediction at ``images``.
    Args: model — callable, images (n, ...) → logits (n, K);  images — float32 or float64, all in [low, high];
        labels — int64 (n,), None: what the model predicts (mean probability over ``num_draws`` calls);
        kind — ``fgsm``, ``ifgsm``, ``mim`` or ``pgd``;  radius — μ, a number or one per example, in the images' units;
        num_steps — T (``fgsm`` takes one step, whatever T);  low, high — pixel range, ±inf for none;
        decay — of ``mim``;  num_draws — calls of the model whose mean gradient is used;
        generator — torch generator of the start of ``pgd``;  relabel — see above;
        step_size — in units of the images, None: radius / num_steps;  start — images in the ball to start from,
        instead of the images or of a random start.
    Returns: images, shape, precision and device as given.
    """
    import torch

    checks.choice("kind", kind, KINDS)
    low, high = _range(low, high)
    images = _images(images, low, high)
    num_steps, num_draws = (
        checks.integer(name, value, low=1, hint=hint)
        for name, value, hint in (("num_steps", num_steps, "radius=0 attacks nothing"), ("num_draws", num_draws, ""))
    )
    decay = checks.nonnegative("decay", decay, finite=True)
    if not isinstance(relabel, bool):
        raise TypeError(f"relabel must be True or False, got relabel={relabel!r}")
    if not callable(model):
        raise TypeError(f"model must be callable, images to logits, got {type(model).__name__}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {type(generator).__name__}; use Streams(...).torch()"
        )
    with torch.inference_mode(False), _untouched(model, images):
        images = images.detach().clone()
        radius = _radius(radius, images)
        steps = 1 if kind == "fgsm" else num_steps
        step = radius / steps if step_size is None else checks.nonnegative("step_size", step_size, finite=True)
        box = _box(images, radius, low, high)
        if not len(images):
            return images
        labels = _labels(labels, images) if labels is not None else _predict(model, images, num_draws)
        point = _start(kind, images, radius, generator, start, box)
        momentum = torch.zeros_like(images)
        for _ in range(steps):
            if relabel:
                labels = _predict(model, point, num_draws)
            direction = _gradient(model, point, labels, num_draws)
            if kind == "mim":
                direction = momentum = decay * momentum + _normalised(direction)
            point = (point.double() + step * direction.sign().double()).to(images.dtype)
            point = torch.minimum(torch.maximum(point, box[0]), box[1])
        return point


# ------------------------------------------------------------------------------------------------------- the arguments


def _range(low, high):
    for name, value in (("low", low), ("high", high)):
        checks.real(name, value)
    if not low < high:
        raise ValueError(f"low must be below high, got low={low!r}, high={high!r}")
    return float(low), float(high)


def _images(images, low, high):
    import torch

    if not isinstance(images, torch.Tensor):
        raise TypeError(f"images must be a torch tensor, got {type(images).__name__}; use torch.as_tensor(images)")
    if images.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"images must be float32 or float64, got {images.dtype}; use images.float()")
    if images.ndim < 2:
        raise ValueError(f"images must have shape (n, ...), got shape {tuple(images.shape)}; use images[None]")
    if images.numel() and not torch.isfinite(images).all():
        raise ValueError("images must be finite everywhere, got NaN or infinity among them")
    if images.numel() and (images.min() < low or images.max() > high):
        found = f"[{images.min().item():g}, {images.max().item():g}]"
        raise ValueError(
            f"images must lie in [low, high] = [{low:g}, {high:g}], got values in {found}; pass the range they have "
            "(low=0.0 for images in [0, 1]); images with noise on them leave it: attack the image before the noise, "
            "or pass a wider range"
        )
    return images


def _radius(radius, images):
    """One radius per example in float64, shaped so that it broadcasts over images."""
    import torch

    wanted = f"be a number or hold one for each of {len(images)} images"
    try:
        values = torch.as_tensor(radius, dtype=torch.float64, device=images.device).detach()
    except (TypeError, ValueError) as error:
        raise TypeError(f"radius must {wanted}, got radius={radius!r}") from error
    if values.ndim and tuple(values.shape) != (len(images),):
        raise ValueError(f"radius must {wanted}, got shape {tuple(values.shape)}")
    if values.numel() and not (torch.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(f"radius must be finite and at least 0, got radius={radius!r}")
    return values.expand(len(images)).reshape(-1, *[1] * (images.ndim - 1))


def _labels(labels, images):
    import torch

    try:
        labels = torch.as_tensor(labels, device=images.device)
    except (TypeError, ValueError) as error:
        kind = type(labels).__name__
        raise TypeError(f"labels must be whole numbers of shape ({len(images)},), got {kind}: {error}") from error
    if labels.dtype not in (torch.int64, torch.int32, torch.uint8) or tuple(labels.shape) != (len(images),):
        got = f"got {labels.dtype} of shape {tuple(labels.shape)}; one-hot labels: labels.argmax(1)"
        raise ValueError(f"labels must be whole numbers of shape ({len(images)},), {got}")
    return labels.long()


def _box(images, radius, low, high):
    """The lowest and highest pixels allowed: nearest floats that are not outside of the ball or the range."""
    import torch

    ends = []
    for side, limit in ((-1.0, low), (1.0, high)):
        end = (images.double() + side * radius).to(images.dtype)
        outside = (end.double() - images.double()).abs() > radius
        end = torch.where(outside, torch.nextafter(end, images), end)
        ends.append(end.clamp(min=limit) if side < 0 else end.clamp(max=limit))
    return ends


def _start(kind, images, radius, generator, start, box):
    import torch

    if start is not None:
        point = _images(start, -math.inf, math.inf).detach().to(images)
        if point.shape != images.shape or ((point < box[0]) | (point > box[1])).any():
            raise ValueError("start must have the shape of images and lie in the ball and the range; clip it first")
        return point
    if kind != "pgd":
        return images
    if generator is None:
        raise ValueError("generator must be given for kind='pgd', which starts at random; or pass start=images")
    unit = torch.rand(images.shape, generator=generator, device=generator.device, dtype=images.dtype).to(images.device)
    point = (images.double() + radius * (2 * unit.double() - 1)).to(images.dtype)
    return torch.minimum(torch.maximum(point, box[0]), box[1])


# ------------------------------------------------------------------------------------------------------- the gradients


def _logits(model, images):
    import torch

    logits = model(images)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(images) or logits.shape[1] < 2:
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ValueError(f"model must return logits of shape ({len(images)}, K), K at least 2, got {shape}")
    if not torch.isfinite(logits).all():
        raise ValueError("model must return finite logits, got NaN or infinity among them")
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()  # under autocast


def _predict(model, images, num_draws):
    import torch

    with torch.no_grad():
        probabilities = sum(_logits(model, images).double().softmax(1) for _ in range(num_draws))
    return probabilities.argmax(1)


def _gradient(model, images, labels, num_draws):
    """Gradient of the loss, summed over calls; each example's own, since losses are summed over examples."""
    import torch

    total = torch.zeros_like(images)
    for _ in range(num_draws):
        point = images.detach().clone().requires_grad_()
        with torch.enable_grad():
            logits = _logits(model, point)
            if (labels < 0).any() or (labels >= logits.shape[1]).any():
                raise ValueError(f"labels must lie in [0, {logits.shape[1] - 1}], got {labels.min()} to {labels.max()}")
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        if not loss.requires_grad:
            raise ValueError("model must be differentiable in images; is there a no_grad(), detach() or numpy() in it?")
        (gradient,) = torch.autograd.grad(loss, point, allow_unused=True)
        if gradient is None:
            raise ValueError("model must depend on images: its logits have no gradient there")
        if not torch.isfinite(gradient).all():
            raise ValueError("model must have finite gradients in images, got NaN or infinity among them")
        total += gradient.detach()
    return total


def _normalised(gradient):
    """Gradient over its mean absolute value, for each example; 0 where all of it is 0."""
    import torch

    axes = tuple(range(1, gradient.ndim))
    for measure in (torch.amax, torch.mean):  # first by the maximum, so that the mean neither under- nor overflows
        size = measure(gradient.abs(), dim=axes, keepdim=True)
        gradient = torch.where(size > 0, gradient / torch.where(size > 0, size, 1.0), 0.0)
    return gradient


# -------------------------------------------------------------------------------------------- what is left as it was


@contextlib.contextmanager
def _untouched(model, images):
    """Put back what running a model changes: modes, buffers and the state of torch's global generators.

    A module is noted when it is first called, wherever it stands (in a closure, behind a method); other threads'
    modules are left alone. Only buffers that did change are written.
    """
    import torch

    here, saved = threading.get_ident(), {}

    def note(module, _inputs=None):
        if threading.get_ident() == here and id(module) not in saved:
            buffers = {k: (b, b.detach().clone()) for k, b in module._buffers.items() if b is not None}
            saved[id(module)] = (module, module.training, buffers)

    owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
    for module in owner.modules() if isinstance(owner, torch.nn.Module) else ():
        note(module)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with torch.random.fork_rng(devices=[images.device] if images.device.type == "cuda" else []):
            yield
    finally:
        hook.remove()
        for module, mode, buffers in saved.values():
            module.training = mode
            for name, (buffer, old) in buffers.items():
                module._buffers[name] = buffer
                if not torch.equal(buffer, old):
                    with torch.no_grad():
                        buffer.copy_(old)
