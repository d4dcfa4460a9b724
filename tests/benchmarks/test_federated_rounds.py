"""A federated round of all users at once, beside one user after the other: the same symbols."""

import numpy as np
import pytest
import torch

from privrob.kinds import Streams
from privrob.learn.federated import FederatedSettings, Simulation, build_model, flat_weights
from privrob.learn.federated_users import Client

USERS, CLASSES, SHAPE = 100, 10, (1, 14, 14)
KINDS = {
    "noisy sign, softmax regression": {"compressor": "noisy_sign", "compressor_options": {"noise_ratio": 0.8}},
    "binomial of 16 trials, softmax regression": {
        "compressor": "binomial",
        "compressor_options": {"num_trials": 16, "scale_b": 2.0},
    },
    "ternary, one hidden layer": {
        "compressor": "ternary",
        "compressor_options": {"scale_a": 2.0, "scale_b": 4.0},
        "model": "mlp",
        "hidden": (32,),
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_round(compare, kind):
    streams = Streams(0, "bench")
    images = torch.rand(6000, *SHAPE, generator=streams.torch("images"))
    labels = torch.randint(CLASSES, (len(images),), generator=streams.torch("labels"))
    settings = FederatedSettings(num_users=USERS, num_rounds=10, learning_rate=0.1, **KINDS[kind])
    run = Simulation(settings, images, labels, num_classes=CLASSES, streams=streams)
    net = build_model(settings, in_shape=SHAPE, num_classes=CLASSES, streams=streams)
    weights, clients = flat_weights(net), []
    for user, places in enumerate(run.records):
        own = images[places], labels[places]
        clients.append(Client(settings, user, *own, model=net, num_classes=CLASSES, streams=streams))

    def one_by_one():
        return np.stack([client.reply(weights, 3) for client in clients])

    path = f"federated round of {USERS} users: {kind}"
    found = compare(path, lambda: run.round(weights, 3)[0], peers={"a loop over users": one_by_one})
    differ = (found["ours"] != found["a loop over users"]).mean()
    assert differ < 1e-4  # a gradient's last digit may turn a draw
