"""The users' side of a federated round: who is drawn, on which records, what gradient, what is sent.

Each user has streams of its own: one Philox generator, the same key for all, and a counter that starts at (0, purpose,
round, user). So a user's reply depends on the weights, the round and the user alone, whatever the order, and whoever
else is there; :class:`Client` is one user, :func:`gradients` and :func:`compressed` are all of them at once.

``number`` is that of a round; ``vectors`` are (users, d), a row each.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from privrob import checks
from privrob.mechanisms.binomial import BinomialMechanism
from privrob.mechanisms.signs import CLDP, NoisySign, Sign, StoSign, _Signs
from privrob.mechanisms.ternary import Ternarize, Ternary, _Ternary

ATTACKS = ("none", "input_flipping", "label_flipping", "large_values", "knowing", "knowing_free")
KNOWING = ("knowing", "knowing_free")
COMPRESSORS = {
    "none": None,
    "binomial": (BinomialMechanism.scaled, ("num_trials", "scale_b")),
    "ternary": (Ternary, ("scale_a", "scale_b")),
    "ternarize": (Ternarize, ("scale_b",)),
    "sto_sign": (StoSign, ("scale_a",)),
    "cldp": (CLDP, ("target_epsilon",)),
    "noisy_sign": (NoisySign, ("noise_ratio",)),
    "sign": (Sign, ()),
}
_PURPOSES = {"coin": 0, "batch": 1, "votes": 2}


def compressor(name, options=None, *, clip):
    """The mechanism of that name for inputs in [−c, c]; None for "none" (32-bit numbers are sent).

    Args: options — of the mechanism, by name;  clip — c.
    """
    kind = COMPRESSORS[checks.choice("compressor", name, COMPRESSORS)]
    given = checks.options("compressor_options", options, kind[1] if kind else ())
    if kind is None:
        return None
    if missing := [n for n in kind[1] if n not in given]:
        raise ValueError(f"compressor_options must give {', '.join(missing)} for {name!r}, got {sorted(given)}")
    return kind[0](clip=clip, **given)


class UserStreams:
    """Random streams of every (user, round, purpose), all independent. Args: streams — the study's."""

    def __init__(self, streams):
        self._key = streams.sequence("users").generate_state(2, np.uint64)

    def at(self, user, number, purpose):
        """A fresh generator for one user in one round. Args: purpose — ``coin``, ``batch`` or ``votes``."""
        return next(self.each([user], number, purpose))

    def each(self, users, number, purpose):
        """The generators of some users in turn. They are one object that is moved on: use each before the next.

        Args: users — their numbers;  purpose — ``coin``, ``batch`` or ``votes``.
        """
        bits = np.random.Philox(key=self._key)
        generator, state = np.random.Generator(bits), bits.state
        state |= {"buffer": [0] * 4, "buffer_pos": 4, "has_uint32": 0}
        place = state["state"] = {"key": self._key.tolist()}  # lists: NumPy reads them several times sooner than arrays
        for user in np.asarray(users).tolist():
            place["counter"] = (0, _PURPOSES[purpose], number, user)
            bits.state = state
            yield generator


class _InTurn:
    """The generators of several rows as one, for a mechanism that draws one number a coordinate, in order."""

    def __init__(self, generators, width):
        self._generators, self._width, self._left = generators, width, 0

    def _pieces(self, size):
        start = 0
        while start < size:
            if self._left == 0:
                self._now, self._left = next(self._generators), self._width
            stop = min(size, start + self._left)
            yield self._now, slice(start, stop)
            self._left -= stop - start
            start = stop

    def random(self, size):
        out = np.empty(size)
        for generator, part in self._pieces(size):
            generator.random(out=out[part])
        return out


def compressed(mechanism, vectors, *, streams, users, number):
    """What users send for their vectors, a row each: symbols, or the vectors themselves without a mechanism.

    Paper: fdp, Algorithm 4: each coordinate by itself.
    """
    if mechanism is None or not len(vectors):
        return vectors
    generators = streams.each(users, number, "votes")
    single = isinstance(mechanism, BinomialMechanism) and mechanism.num_trials == 1
    if single or isinstance(mechanism, (_Signs, _Ternary)):  # one draw a coordinate, in order
        return mechanism.release(vectors, rng=_InTurn(generators, vectors.shape[1]))
    return np.stack([mechanism.release(row, rng=rng) for row, rng in zip(vectors, generators)])


def clipped(vectors, clip):
    r"""Each row divided by :math:`\max\{1, \|g\|_2/c\}`.

    Paper: fdp, Algorithm 5.
    Args: clip — c.
    """
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), np.finfo(float).tiny)  # squares may overflow
    norms = largest * np.linalg.norm(vectors / largest, axis=1, keepdims=True)
    return vectors / np.maximum(1.0, norms / clip)


def drawn_records(num_records, rate, *, rng):
    """A Poisson sample of one user's records, as places.

    Args: rate — with which each is drawn.
    """
    return np.flatnonzero(rng.random(num_records) < rate)


def drawn_in_turn(records, rates, rngs):
    """:func:`drawn_records` of several users at once: the records drawn, user after user, and how many each has drawn.

    Args: records — of each user, integers;  rates, rngs — one for each.
    """
    ends = np.cumsum([len(own) for own in records])
    draws = np.empty(ends[-1])
    for part, rng in zip(np.split(draws, ends[:-1]), rngs):
        rng.random(out=part)
    taken = draws < np.repeat(rates, np.diff(ends, prepend=0))
    return np.concatenate(records)[taken], [np.count_nonzero(part) for part in np.split(taken, ends[:-1])]


def unflatten(model, weights):
    """A flat float64 vector as the model's parameters, by name."""
    flat, found, start = torch.from_numpy(np.ascontiguousarray(weights, dtype=np.float64)), {}, 0
    for name, parameter in model.named_parameters():
        found[name] = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    if start != flat.numel():
        raise ValueError(f"weights must have {start} entries for this model, got {flat.numel()}")
    return found


def is_softmax_regression(model):
    """Whether a model is one dense layer on flat inputs: the fast path."""
    layers = [type(layer).__name__ for layer in model.children()]
    return layers == ["Flatten", "Linear"] and model[1].bias is not None


def gradients(model, weights, images, labels, sizes, *, expected_batch, fast=None):
    """Minibatch gradients of several users, (users, d) in float64: the sum over drawn records, divided by the expected
    batch. An empty batch has gradient 0.

    Args: expected_batch — what sums are divided by;  images, labels — of the drawn records, user after user;  sizes —
        how many each has drawn;
        fast — one matrix product for all errors of a softmax regression, and one a user (None: if the model is one);
        else ``vmap`` over users.
    """
    parameters, images = unflatten(model, weights), images.double()
    if is_softmax_regression(model) if fast is None else fast:
        flat, weight = images.flatten(1), parameters["1.weight"]
        errors = torch.softmax(torch.addmm(parameters["1.bias"], flat, weight.T), dim=1).numpy()
        errors[np.arange(len(labels)), labels.numpy()] -= 1.0
        errors /= expected_batch
        found, slopes, start, flat = np.zeros((len(sizes), len(weights))), weight.numel(), 0, flat.numpy()
        for row, size in zip(found, sizes):  # small products: NumPy starts them sooner than torch
            own = slice(start, start + size)
            np.dot(errors[own].T, flat[own], out=row[:slopes].reshape(weight.shape))
            errors[own].sum(axis=0, out=row[slopes:])
            start += size
        return found
    inside = np.arange(max(1, max(sizes, default=0))) < np.asarray(sizes)[:, None]
    places = np.zeros(inside.shape, np.int64)
    places[inside] = np.arange(len(labels))
    if not len(labels):
        return np.zeros((len(sizes), len(weights)))

    def loss(own, images, labels, share):
        return (functional.cross_entropy(functional_call(model, own, images), labels, reduction="none") * share).sum()

    share = torch.from_numpy(inside).double() / expected_batch
    found = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, images[places], labels[places], share)
    return torch.cat([part.flatten(1) for part in found.values()], dim=1).numpy()


def flipped(labels, num_classes):
    """Labels of a label-flipping attacker: class j becomes C − 1 − j."""
    return num_classes - 1 - labels


def attacked(vectors, settings):
    """What attackers put into their compressor: inputs negated, or negated and as large as the mechanism lets pass."""
    if settings.attack == "input_flipping":
        return -clipped(vectors, settings.max_grad_norm)
    if settings.attack == "large_values":
        return -settings.attack_scale * vectors
    return clipped(vectors, settings.max_grad_norm)


def against(honest_mean, settings, mechanism, *, rng):
    """The reply of one attacker who knows the honest mean: every vote against its sign.

    ``knowing`` keeps to the protocol where that can be seen: a ternary user sends a vote with probability A/B, a vector
    stays within the l2 clip. ``knowing_free`` always votes, and sends a vector as large as it likes.

    Paper: fdp, Section D (p_att = 1; for ternary p_att = A/B, and the vote that Theorem 11 leaves out).
    Args: honest_mean — (d,).
    """
    wrong = np.where(honest_mean > 0, -1, 1)
    free = settings.attack == "knowing_free"
    if mechanism is None:
        norm = np.linalg.norm(honest_mean)
        scale = settings.max_grad_norm * (settings.attack_scale if free else 1.0)
        return -honest_mean * (scale / norm if norm else 0.0)
    symbols = np.where(wrong > 0, mechanism.symbols[-1], mechanism.symbols[0])
    if isinstance(mechanism, _Ternary) and not free:
        silent = float(np.exp(mechanism.log_masses(0.0)[1]))
        symbols = np.where(rng.random(symbols.size) < silent, 0, symbols)
    return symbols


class Client:
    """One user, honest or not: ``Client(...).reply(weights, round)``.

    Paper: fdp, Algorithm 5, the inner loop.
    Args: settings — :class:`privrob.learn.federated.FederatedSettings`;  user — from 0; those from ``num_users`` on are
        attackers;  images, labels — the user's own records, labels int64;  model — of :mod:`privrob.learn.models`, its
        weights unused;  streams — the study's :class:`privrob.kinds.Streams`.
    """

    def __init__(self, settings, user, images, labels, *, model, num_classes, streams):
        total = settings.num_users + settings.num_attackers
        self.settings, self.user = settings, checks.integer("user", user, low=0, high=total - 1)
        self.is_attacker = self.user >= settings.num_users and settings.attack != "none"
        self.model, self.mechanism = model.double(), settings.mechanism
        if len(images) == 0 or len(images) != len(labels):
            raise ValueError(f"images must hold at least 1 record and a label each, got {len(images)}, {len(labels)}")
        self.images = images
        self.labels = labels
        if self.is_attacker and settings.attack == "label_flipping":
            self.labels = flipped(labels, num_classes)
        self.streams = UserStreams(streams)

    def is_drawn(self, number):
        """Whether the server's coin of this round takes this user."""
        rate = self.settings.user_rate
        return rate == 1 or self.streams.at(self.user, number, "coin").random() < rate

    def gradient(self, weights, number):
        """The minibatch gradient of a round, before the clip: (d,) float64."""
        rng = self.streams.at(self.user, number, "batch")
        rate = min(1.0, self.settings.batch_size / len(self.images))
        places = torch.from_numpy(drawn_records(len(self.images), rate, rng=rng))
        own = {name: part.clone().requires_grad_() for name, part in unflatten(self.model, weights).items()}
        outputs = functional_call(self.model, own, self.images[places].double())
        loss = functional.cross_entropy(outputs, self.labels[places], reduction="sum") / self.settings.batch_size
        found = torch.autograd.grad(loss, list(own.values())) if len(places) else [p * 0 for p in own.values()]
        return torch.cat([part.detach().flatten() for part in found]).numpy()

    def reply(self, weights, number, *, honest_mean=None):
        """What is sent in a round: d symbols (numbers without a compressor); None if the user is not drawn.

        Args: honest_mean — of the honest users' clipped gradients: what a knowing attacker needs.
        """
        if not self.is_drawn(number):
            return None
        settings = self.settings
        if self.is_attacker and settings.attack in KNOWING:
            if honest_mean is None:
                raise ValueError(f"honest_mean must be given for attack {settings.attack!r}, got None")
            rng = self.streams.at(self.user, number, "votes")
            return against(honest_mean, settings, self.mechanism, rng=rng)
        vector = self.gradient(weights, number)[None]
        vector = attacked(vector, settings) if self.is_attacker else clipped(vector, settings.max_grad_norm)
        rng = self.streams.at(self.user, number, "votes")
        return vector[0] if self.mechanism is None else self.mechanism.release(vector[0], rng=rng)
