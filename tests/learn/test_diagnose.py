"""The errors of clipping and noise, against gradients one by one."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from privrob.learn.diagnose import gradient_errors


@pytest.mark.paper("dplearn", "Advanced topic: how to improve the trade-off")
def test_errors_are_those_of_the_gradients_one_by_one(monkeypatch):
    monkeypatch.setattr("privrob.learn.diagnose._AT_ONCE", 4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(18, 3)).double()
        images = torch.randn(10, 2, 3, 3, dtype=torch.float64)
    labels = torch.arange(10) % 3
    each = []
    for i in range(10):
        loss = functional.cross_entropy(model(images[i : i + 1]), labels[i : i + 1])
        each.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    each = torch.stack(each)
    norms, mean = each.norm(dim=1), each.mean(0)
    middle = float(norms.median())
    options = {"num_classes": 3, "noise_multiplier": 1.5, "expected_batch": 8.0}
    rows = gradient_errors(model, images, labels, bounds=[middle, 1e6], **options)
    clipped = (each * (middle / norms).clamp(max=1.0)[:, None]).mean(0)
    assert rows[0]["clipping_error"] == pytest.approx(float((clipped - mean).norm()), rel=1e-9)
    assert rows[0]["cosine"] == pytest.approx(float(clipped @ mean / clipped.norm() / mean.norm()), rel=1e-9)
    assert rows[0]["noise_error"] == pytest.approx(1.5 * middle * math.sqrt(57) / 8)
    assert rows[0]["clipped_fraction"] == pytest.approx(float((norms > middle).double().mean()))
    assert rows[1]["clipping_error"] < 1e-12
    assert rows[1]["gradient_norm"] == pytest.approx(float(mean.norm()), rel=1e-9)
    with pytest.raises(ValueError, match="bounds"):
        gradient_errors(model, images, labels, bounds=[0.0], **options)
