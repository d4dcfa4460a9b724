"""A small learnable set, and settings of a training on it, for the tests of training."""

import torch

from privrob.learn.dpsgd import DPSGDSettings


def data(n=40, test=12, shape=(1, 6, 6), classes=3, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n + test, *shape, generator=generator, dtype=dtype)
    labels = (images.flatten(1)[:, :classes] * 2).argmax(1)  # learnable
    return images[:n], labels[:n], images[n:], labels[n:]


def settings(**changes):
    base = {
        "model": "logistic",
        "sample_rate": 0.3,
        "num_steps": 20,
        "learning_rate": 0.5,
        "max_grad_norm": 1.0,
        "noise_multiplier": 0.8,
    }
    return DPSGDSettings(**{**base, **changes})
