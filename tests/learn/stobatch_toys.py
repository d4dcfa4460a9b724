"""A small set and settings of StoBatch, for the tests of its engine."""

import torch

from privrob.kinds import Streams
from privrob.learn.stobatch.settings import StoBatchSettings
from privrob.learn.stobatch.training import Training

STUDY = {
    "seed": 5,
    "dataset": "synthetic",
    "data": {"shape": [1, 6, 6], "num_records": 64, "num_test": 8},
    "num_trainers": 2,
    "num_workers": 2,
    "double": True,
    "settings": {
        "network": "mnist",
        "network_options": {"num_hidden": 6},
        "num_steps": 6,
        "batch_size": 8,
        "epsilon_features": 50.0,
        "epsilon_labels": 2.0,
        "attacks": ["pgd"],
        "attack_steps": 2,
        "learning_rate": 0.01,
        "evaluate_every": 2,
    },
}


def data(n=60, test=20, shape=(1, 8, 8), classes=3, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(n + test, *shape, generator=generator, dtype=dtype) * 2 - 1
    labels = images.flatten(1)[:, :classes].argmax(1)  # learnable
    return images[:n], labels[:n], images[n:], labels[n:]


def settings(**changes):
    base = {
        "network": "mnist",
        "network_options": {"num_hidden": 12},
        "num_steps": 4,
        "batch_size": 12,
        "epsilon_features": 60.0,
        "epsilon_labels": 5.0,
        "attack_steps": 2,
        "learning_rate": 1e-3,
    }
    return StoBatchSettings(**{**base, **changes})


def training(made, *, seed=3, dtype=torch.float32, n=60, shape=(1, 8, 8), **more):
    return Training(made, *data(n=n, dtype=dtype, shape=shape), num_classes=3, streams=Streams(seed, "toy"), **more)


def weights(run):
    return torch.cat([t.detach().reshape(-1) for t in (*run.first, *run.rest, *run.buffers)])
