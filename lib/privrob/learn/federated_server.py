"""The server's side of a federated round: symbols to votes or numbers, those to one vector, that to a step.

``symbols`` are what users sent, (users, d); ``mechanism`` is their compressor, or None.
"""

from __future__ import annotations

import numpy as np

from privrob.kinds import NotAvailable
from privrob.learn import descent
from privrob.learn.federated_users import UserStreams
from privrob.mechanisms.binomial import BinomialMechanism
from privrob.robust import aggregate

VOTES = ("SignOfSum", "MajorityVote")


def votes(mechanism, symbols):
    r"""Symbols as whole numbers that are symmetric about 0, so that a tie is exactly 0: twice the sum of ±1's.

    Paper: fdp, Section 5.1: :math:`2 Z_i - M`.
    Printed: Z_i − M in A.8 (98).   Used: 2Z_i − M.
    """
    if mechanism is None:
        return symbols
    if isinstance(mechanism, BinomialMechanism) and abs(mechanism.p_min + mechanism.p_max - 1) > 1e-12:
        raise NotAvailable("votes of a binomial mechanism need p_min + p_max = 1; use aggregator='Average'")
    return 2 * np.asarray(symbols, np.int64) - (mechanism.symbols[0] + mechanism.symbols[-1])


def decoded(mechanism, symbols):
    """Symbols as unbiased estimates of the users' numbers; the votes of a mechanism that has no decoder."""
    try:
        return symbols if mechanism is None else mechanism.decode(symbols)
    except NotAvailable:
        return votes(mechanism, symbols)


class Server:
    """The other half: ``Server(...).update(weights, replies, number=round)``.

    Paper: fdp, Algorithm 5, the outer loop.
    Args: settings — :class:`privrob.learn.federated.FederatedSettings`;  streams — the study's, for :meth:`drawn`.
    """

    def __init__(self, settings, *, streams=None):
        self.settings, self.mechanism = settings, settings.mechanism
        self.rule = aggregate.make(settings.aggregator, settings.aggregator_options)
        self.streams = None if streams is None else UserStreams(streams)

    def drawn(self, number):
        """The users of a round, each drawn with probability p_s by its own coin, which all its trials share."""
        users = np.arange(self.settings.num_users + self.settings.num_attackers)
        if self.settings.user_rate == 1:
            return users
        coins = np.array([rng.random() for rng in self.streams.each(users, number, "coin")])
        return users[coins < self.settings.user_rate]

    def estimate(self, symbols):
        """The decoded gradient ĝ of the replies, one a row."""
        read = votes if self.settings.aggregator in VOTES else decoded
        return self.rule(read(self.mechanism, symbols))

    def step_size(self, number):
        """η of a round (from 0)."""
        settings = self.settings
        return descent.step_size(
            number,
            learning_rate=settings.learning_rate,
            final_learning_rate=settings.final_learning_rate,
            decay_steps=settings.num_rounds,
        )

    def update(self, weights, replies, *, number):
        """The weights after a round. Nobody replied: no step.

        Args: replies — {user: reply} in any order; None for who was not drawn;  number — of the round, from 0.
        """
        got = [replies[user] for user in sorted(replies) if replies[user] is not None]
        if not got:
            return weights
        return weights - self.step_size(number) * self.estimate(np.stack(got))
