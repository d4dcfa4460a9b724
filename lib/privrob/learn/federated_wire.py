"""A federated study on several machines, but for the network: what all agree on, a user's round, replies as bytes.

:mod:`privrob.learn.federated_flower` carries the bytes.

Source: ours.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from privrob import checks
from privrob.kinds import Streams
from privrob.learn.batches import as_labels
from privrob.learn.federated import FederatedSettings, build_model
from privrob.learn.federated_split import split
from privrob.learn.federated_users import KNOWING, Client, UserStreams

RANDOMNESS = ("study", "own")


@dataclass(frozen=True)
class Study:
    """What all machines agree on. Args: settings — a ``FederatedSettings``;  seed — the root seed, which coins and
    first weights come from;  num_classes, in_shape — of the records."""

    settings: FederatedSettings
    seed: int
    num_classes: int
    in_shape: tuple

    def __post_init__(self):
        if self.settings.attack in KNOWING:
            raise ValueError(
                f"attack must not need the honest mean, which no machine has, got attack={self.settings.attack!r}; "
                "use privrob.learn.federated.train"
            )

    @classmethod
    def read(cls, path):
        """From a JSON file with these four names."""
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(FederatedSettings(**found.pop("settings")), **found)

    @property
    def streams(self):
        """The study's, as of a simulation."""
        return Streams(self.seed)

    @property
    def digest(self):
        """Equal for two machines if and only if their studies are."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def model(self):
        """With the first weights."""
        how = {"in_shape": self.in_shape, "num_classes": self.num_classes, "streams": self.streams}
        return build_model(self.settings, **how)


def pack(mechanism, symbols):
    """A reply as bytes: ⌈log₂ of the alphabet⌉ bits a symbol, or float64 without a mechanism (32 bits would round).

    Args: symbols — (d,).
    """
    if mechanism is None:
        return np.asarray(symbols, "<f8").tobytes()
    places = np.searchsorted(mechanism.symbols, symbols)  # in the alphabet: signs are 2 apart
    return np.packbits((places[:, None] >> np.arange(mechanism.bits_fixed) & 1).astype(np.uint8)).tobytes()


def unpack(mechanism, data, size):
    """The reply of so many symbols in those bytes; anything else is refused.

    Args: data — the bytes;  size — how many.
    """
    width = 64 if mechanism is None else mechanism.bits_fixed
    if len(data) != -(-size * width // 8):
        raise ValueError(f"a reply of {size} symbols must have {-(-size * width // 8)} bytes, got {len(data)}")
    if mechanism is None:
        return checks.array("reply", np.frombuffer(data, "<f8"))
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=size * width).reshape(size, width)
    places = bits @ (1 << np.arange(width))
    if places.max() >= len(mechanism.symbols):
        raise ValueError(f"symbols of a reply must be one of {len(mechanism.symbols)}, got number {places.max()}")
    return np.asarray(mechanism.symbols)[places]


class _OwnDraws(UserStreams):
    """Coins of the study, all else from this machine's entropy."""

    def __init__(self, streams):
        super().__init__(Streams(secrets.randbits(64), secrets.token_hex(16)))
        self._coins = UserStreams(streams)

    def each(self, users, number, purpose):
        return self._coins.each(users, number, purpose) if purpose == "coin" else super().each(users, number, purpose)


class Member:
    """One user: bytes in, bytes out. Args: randomness — ``study`` or ``own``;  images, labels — its own records."""

    def __init__(self, study, user, images, labels, *, randomness):
        checks.choice("randomness", randomness, RANDOMNESS)
        images, labels = torch.as_tensor(images), as_labels("labels", labels, num_classes=study.num_classes)
        if tuple(images.shape[1:]) != tuple(study.in_shape):
            raise ValueError(f"images must have shape (n, {study.in_shape}) for this study, got {tuple(images.shape)}")
        how = {"model": study.model(), "num_classes": study.num_classes, "streams": study.streams}
        self.client, self.last, self.sent = Client(study.settings, user, images, labels, **how), -1, 0
        if randomness == "own":
            self.client.streams = _OwnDraws(study.streams)

    def answer(self, number, weights):
        """The reply to a round's weights; none (no bytes) if not drawn. Rounds only go up: no vote is drawn twice."""
        last = self.client.settings.num_rounds - 1
        self.last = checks.integer("round", number, low=self.last + 1, high=last, hint="a round is answered once")
        reply = self.client.reply(np.frombuffer(weights, "<f8").copy(), number)
        self.sent += reply is not None
        return b"" if reply is None else pack(self.client.mechanism, reply)


def share_out(study, images, labels, folder):
    """The records of all users as the simulation deals them, into ``user-0.npz``, … of a folder. Returns the paths."""
    settings, labels = study.settings, as_labels("labels", labels, num_classes=study.num_classes).numpy()
    how = {"scheme": settings.scheme, "concentration": settings.concentration, "rng": study.streams.numpy("split")}
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = []
    for user, own in enumerate(split(labels, settings.num_users + settings.num_attackers, **how)):
        paths.append(Path(folder) / f"user-{user}.npz")
        np.savez(paths[-1], images=np.asarray(images)[own], labels=labels[own])
    return paths


def records(path):
    """(images, labels) of such a file, as tensors."""
    with np.load(path) as found:
        return torch.from_numpy(found["images"]), torch.from_numpy(found["labels"])
