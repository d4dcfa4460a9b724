r"""Federated SGD with private, compressed gradients and attackers among the users, all users of a round at once.

.. math:: \bar g_i = g_i / \max\{1, \|g_i\|_2/c\}, \quad Z_i = \mathcal M(\bar g_i), \quad
    w \leftarrow w - \eta_t\, \mathrm{Agg}(Z_1, \dots)

Rounds are t = 0, …, T − 1. :class:`privrob.learn.federated_users.Client` and
:class:`privrob.learn.federated_server.Server` are the two halves of a round for one user at a time; :func:`train` does
the same, to the same symbols, for all users at once.

Paper: fdp, Algorithm 5.
Printed: t = 0, …, T.   Used: T rounds, as its learning rate and its privacy have it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from privrob import checks
from privrob.learn import models
from privrob.learn.batches import as_labels
from privrob.learn.federated_server import Server
from privrob.learn.federated_split import SCHEMES, split
from privrob.learn.federated_users import (
    ATTACKS,
    KNOWING,
    UserStreams,
    against,
    attacked,
    clipped,
    compressed,
    compressor,
    drawn_in_turn,
    flipped,
    gradients,
    unflatten,
)
from privrob.robust import aggregate

FLOAT_BITS = 32  # of a coordinate that isn't compressed


@dataclass(frozen=True)
class FederatedSettings:
    """One federated training, checked before it starts.

    Paper: fdp, Algorithm 5.
    Args: num_users — N, the honest ones;  num_attackers — K;  attack — ``none``, ``input_flipping`` (the document's
        blind attacker), ``label_flipping``, ``large_values`` (negated, not clipped in l2), ``knowing`` and
        ``knowing_free`` (every vote against the sign of the honest mean), see :mod:`privrob.learn.federated_users`;
        attack_scale — of ``large_values``, and of ``knowing_free`` without a compressor;
        user_rate — p_s, of each user in each round;  max_grad_norm — c;  batch_size — expected, of a user's Poisson
        sample of its own records;  num_rounds — T;
        learning_rate, final_learning_rate — η falls linearly from one to the other over T rounds (None: constant);
        compressor, compressor_options — one of :data:`~privrob.learn.federated_users.COMPRESSORS` and its numbers (c is
        ``max_grad_norm``);
        aggregator, aggregator_options — one of :data:`privrob.robust.aggregate.RULES`;
        scheme, concentration — of :func:`privrob.learn.federated_split.split`;
        model, activation, hidden — of :func:`privrob.learn.models.build`;
        evaluate_every — rounds between evaluations (the last round is always one), None: only the last;
        users_at_once — bounds memory; changes nothing else.
    """

    num_users: int
    num_rounds: int
    learning_rate: float
    compressor: str
    compressor_options: dict | None = None
    num_attackers: int = 0
    attack: str = "none"
    attack_scale: float = 1000.0
    user_rate: float = 1.0
    max_grad_norm: float = 1.0
    batch_size: int = 32
    final_learning_rate: float | None = 0.0
    aggregator: str = "SignOfSum"
    aggregator_options: dict | None = None
    scheme: str = "iid"
    concentration: float | None = None
    model: str = "logistic"
    activation: str = "relu"
    hidden: tuple | None = None
    evaluate_every: int | None = None
    users_at_once: int = 128

    def __post_init__(self):
        for name, low in (("num_users", 1), ("num_attackers", 0), ("num_rounds", 0), ("batch_size", 1)):
            checks.integer(name, getattr(self, name), low=low)
        checks.integer("users_at_once", self.users_at_once, low=1)
        checks.choice("attack", self.attack, ATTACKS)
        if (self.attack == "none") != (self.num_attackers == 0):
            raise ValueError(
                f"attack must be 'none' exactly without attackers, got attack={self.attack!r} with "
                f"num_attackers={self.num_attackers}"
            )
        checks.positive("attack_scale", self.attack_scale, finite=True)
        checks.probability("user_rate", self.user_rate, allow_zero=False)
        checks.positive("max_grad_norm", self.max_grad_norm, finite=True)
        checks.nonnegative("learning_rate", self.learning_rate, finite=True)
        if self.final_learning_rate is not None:
            checks.nonnegative("final_learning_rate", self.final_learning_rate, finite=True)
        self.mechanism  # noqa: B018  its checks
        aggregate.make(self.aggregator, self.aggregator_options)
        checks.choice("scheme", self.scheme, SCHEMES)
        checks.choice("model", self.model, models.MODELS)
        checks.choice("activation", self.activation, models.ACTIVATIONS)
        if self.evaluate_every is not None:
            checks.integer("evaluate_every", self.evaluate_every, low=1)

    @property
    def mechanism(self):
        """What is done to each coordinate, or None."""
        return compressor(self.compressor, self.compressor_options, clip=self.max_grad_norm)


def build_model(settings, *, in_shape, num_classes, streams):
    """The model of a study in float64, its first weights from the stream ``init``."""
    options = {} if settings.hidden is None else {"hidden": tuple(settings.hidden)}
    how = {"in_shape": tuple(in_shape), "num_classes": num_classes, "activation": settings.activation}
    return models.build(settings.model, generator=streams.torch("init"), **how, **options).double()


def flat_weights(model):
    """All parameters of a model as one float64 vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double().numpy()


class Simulation:
    """All users and the server of one study; :meth:`round` is one round of Algorithm 5.

    Args: as of :func:`train`.
    """

    def __init__(self, settings, images, labels, *, num_classes, streams):
        self.settings, self.images, self.num_classes = settings, images, num_classes
        self.labels = as_labels("labels", labels, num_classes=num_classes)
        how = {"scheme": settings.scheme, "concentration": settings.concentration}
        total = settings.num_users + settings.num_attackers
        self.records = split(self.labels.numpy(), total, **how, rng=streams.numpy("split"))
        self.model = build_model(settings, in_shape=images.shape[1:], num_classes=num_classes, streams=streams)
        self.streams, self.server = UserStreams(streams), Server(settings, streams=streams)
        self.mechanism = settings.mechanism

    def gradients(self, users, weights, number):
        """Minibatch gradients of some users in a round, not clipped: (users, d)."""
        settings, own = self.settings, [self.records[user] for user in users]
        rates = [min(1.0, settings.batch_size / len(records)) for records in own]
        places, sizes = drawn_in_turn(own, rates, self.streams.each(users, number, "batch"))
        places = torch.from_numpy(places)
        labels = self.labels[places]
        if settings.attack == "label_flipping":
            bad = torch.from_numpy(np.repeat(np.asarray(users) >= settings.num_users, sizes))
            labels = torch.where(bad, flipped(labels, self.num_classes), labels)
        images = torch.index_select(self.images, 0, places)
        return gradients(self.model, weights, images, labels, sizes, expected_batch=settings.batch_size)

    def _parts(self, users):
        for start in range(0, len(users), self.settings.users_at_once):
            yield users[start : start + self.settings.users_at_once]

    def round(self, weights, number):
        """One round: (symbols of the users drawn, one a row; honest mean, None if none was drawn; how many honest).

        The honest mean is of the clipped gradients, at full precision.
        """
        settings, drawn = self.settings, self.server.drawn(number)
        honest, bad = drawn[drawn < settings.num_users], drawn[drawn >= settings.num_users]
        sent, total = [], 0.0
        for users in self._parts(honest):
            vectors = clipped(self.gradients(users, weights, number), settings.max_grad_norm)
            for vector in vectors:  # one by one: the sum doesn't depend on the parts
                total = total + vector
            if settings.attack == "none" and not np.isfinite(total).all():  # under attack it is an outcome
                raise FloatingPointError(
                    f"gradients must stay finite, got NaN or infinity in round {number + 1} with learning_rate="
                    f"{settings.learning_rate!r}; pass a smaller learning_rate"
                )
            sent.append(self._sent(vectors, users, number))
        mean = total / len(honest) if len(honest) else None
        if settings.attack in KNOWING:
            target = np.zeros(len(weights)) if mean is None else mean
            for rng in self.streams.each(bad, number, "votes"):
                sent.append(against(target, settings, self.mechanism, rng=rng)[None])
        else:
            for users in self._parts(bad):
                vectors = attacked(self.gradients(users, weights, number), settings)
                sent.append(self._sent(vectors, users, number))
        return (np.concatenate(sent) if sent else np.empty((0, len(weights)))), mean, len(honest)

    def _sent(self, vectors, users, number):
        return compressed(self.mechanism, vectors, streams=self.streams, users=users, number=number)


def train(settings, train_images, train_labels, test_images, test_labels, *, num_classes, streams):
    """Train one model; yields one row at each evaluation.

    Paper: fdp, Algorithms 4 and 5.
    Args: settings — :class:`FederatedSettings`;  train_images, test_images — float tensors (n, channels, height,
        width), on the CPU;  train_labels, test_labels — integers (n,);  streams — :class:`privrob.kinds.Streams`, of
        which ``split``, ``init`` and ``users`` are used.
    Yields: dicts ``round`` (rounds done), ``test_accuracy``; an honest user's average so far of ``bits_fixed`` and
        ``bits_entropy`` (codes of the symbols: fixed length; by their frequencies in the round); and of the rounds
        since the row before: ``mean_abs_gradient`` and ``largest_abs_gradient`` (coordinates of the honest mean),
        ``wrong_votes`` (share of its coordinates other than 0 whose sign ĝ misses; None in a round without honest
        users), ``empty_rounds``; ``seconds`` so far. All of it is for the study; none of it is private.
    """
    began, run = (
        time.perf_counter(),
        Simulation(settings, train_images, train_labels, num_classes=num_classes, streams=streams),
    )
    test_labels = as_labels("test_labels", test_labels, num_classes=num_classes)
    weights, bits, seen = flat_weights(run.model), np.zeros(2), []
    every = settings.evaluate_every or max(settings.num_rounds, 1)
    for number in range(settings.num_rounds):
        symbols, mean, honest = run.round(weights, number)
        if len(symbols):
            estimate = run.server.estimate(symbols)
            weights = weights - run.server.step_size(number) * estimate
            seen.append(_seen(mean, estimate) if honest else {"empty_rounds": 0})
            bits += np.array(bits_sent(run.mechanism, symbols[:honest])) / settings.num_users
        else:
            seen.append({"empty_rounds": 1})
        done = number + 1
        if done == settings.num_rounds or done % every == 0:
            row = {"round": done, "test_accuracy": accuracy(run.model, weights, test_images, test_labels)}
            row |= {"bits_fixed": float(bits[0]), "bits_entropy": float(bits[1])}
            yield row | _summary(seen) | {"seconds": time.perf_counter() - began}
            seen = []


def _seen(mean, estimate):
    size, alive = np.abs(mean), mean != 0
    wrong = (np.sign(estimate) != np.sign(mean))[alive]
    return {
        "mean_abs_gradient": float(size.mean()),
        "largest_abs_gradient": float(size.max()),
        "wrong_votes": float(wrong.mean()) if wrong.size else 0.0,
        "empty_rounds": 0,
    }


def _summary(seen):
    def of(name):
        found = [one[name] for one in seen if name in one]
        return float(np.mean(found)) if found else None

    row = {name: of(name) for name in ("mean_abs_gradient", "largest_abs_gradient", "wrong_votes")}
    return row | {"empty_rounds": sum(one["empty_rounds"] for one in seen)}


def bits_sent(mechanism, symbols):
    """Bits of some users' replies, all together: with a code of fixed length, and by the frequencies of the symbols."""
    size = symbols.size
    if mechanism is None:
        return float(FLOAT_BITS * size), float(FLOAT_BITS * size)
    if not size:
        return 0.0, 0.0
    low = mechanism.symbols[0]
    counts = np.bincount((symbols.reshape(-1) - low).astype(np.int64))
    shares = counts[counts > 0] / size
    return float(mechanism.bits_fixed * size), max(0.0, float(-(shares * np.log2(shares)).sum() * size))


@torch.no_grad()
def accuracy(model, weights, images, labels):
    """Share of records that a model with these weights gets right; None without records."""
    if not len(labels):
        return None
    parameters = {name: part.to(images.dtype) for name, part in unflatten(model, weights).items()}
    right = 0
    for part, targets in zip(images.split(2500), labels.split(2500), strict=True):
        right += int((torch.func.functional_call(model, parameters, part).argmax(1) == targets).sum())
    return right / len(labels)
