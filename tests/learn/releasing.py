"""A training on a few records, stopped before a step, for the tests of releases."""

import math

import numpy as np
import torch
from torch.nn import functional

from privrob.kinds import Streams
from privrob.learn import dpsgd
from privrob.learn.dpsgd import DPSGDSettings
from privrob.learn.releases import history

OPTIONS = {
    "adaptive_clipping": {"count_noise": 0.3, "target_quantile": 0.6},
    "preconditioned": {"refresh": 2, "average": "row"},
    "variance_reduced": {"every": 3, "difference_norm": 0.1, "snapshot_rate": 0.5},
    "projected": {"rank": 4, "refresh": 2},
    "embedded": {"rank": 4, "refresh": 2, "residual_norm": 0.3},
    "trimmed": {"trim_rate": 0.2},
    "propose_test_release": {"trim_rate": 0.8, "laplace_scale": 0.2, "trim_step": 0.2},
}


def records(n, seed=0, shape=(1, 6, 6), classes=3):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    return images, (images.flatten(1)[:, :classes] * 2).argmax(1)


def started(release="clipping", *, steps=3, options=None, **changes):
    """A training after some steps, before the next."""
    base = {"model": "mlp", "hidden": (5,), "activation": "tanh", "sample_rate": 0.4, "learning_rate": 0.3}
    base |= {"num_steps": 12, "max_grad_norm": 0.7, "noise_multiplier": 0.8, "release": release}
    base["release_options"] = OPTIONS.get(release) if options is None else options
    settings = DPSGDSettings(**{**base, **changes})
    images, labels = records(30)
    test = images[:4], labels[:4]
    state = dpsgd.Training(settings, images, labels, *test, 3, Streams(5, "test"), public=records(9, seed=1))
    for _ in range(steps):
        state._step(np.arange(0, 30, 2))
        state.step += 1
    return state


def rows_until(checkpoint=None, stop=None, *, release="clipping", **changes):
    """The rows of a training from its start, or from its checkpoint, up to the row of step ``stop``."""
    settings = started(release, steps=0, **changes).settings
    images, labels = records(30)
    test = images[:4], labels[:4]
    state = dpsgd.Training(settings, images, labels, *test, 3, Streams(5), None, checkpoint, records(9, seed=1))
    found = []
    for row in state.rows():
        found.append(row)
        if row["step"] == stop:
            break
    return found


def each_gradient(model, images, labels):
    """(n, d), by a backward pass each."""
    found = []
    for i in range(len(labels)):
        loss = functional.cross_entropy(model(images[i : i + 1]), labels[i : i + 1])
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(found)


def clipped(rows, bound):
    return rows * (bound / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)


def flat(parts):
    return torch.cat([p.detach().flatten() for p in parts])


DRAWN = np.array([1, 2, 3, 11, 17, 20, 29])


def heard(name, indices, monkeypatch, snapshot=None, **changes):
    """What the fourth step adds noise to: [(sum, std) of each part], one list a release."""
    state = started(name, **changes)
    state.release.heard = []
    if snapshot is not None:
        monkeypatch.setattr(history, "poisson_batch", lambda *args, **options: snapshot)
    state.release.noisy_mean(indices)
    return state.release.heard


def distance(one, other):
    """Of two sums, in units of the noise."""
    assert [s if isinstance(s, float) else s.tolist() for _, s in one] == [
        s if isinstance(s, float) else s.tolist() for _, s in other
    ]
    return math.sqrt(sum(float(((a - b) / s).square().sum()) for (a, s), (b, _) in zip(one, other, strict=True)))
