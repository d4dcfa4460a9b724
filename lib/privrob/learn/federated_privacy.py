r"""What one user's replies tell the server about one of the user's records: μ of a round, ε of a whole study.

A round compresses one vector of norm at most c, so that whatever a record does to the minibatch gradient, two vectors
of that ball are compared: μ of a round has no dimension. The record is in the minibatch with probability q = b/|D_i|,
by itself; the guarantee is that of the Poisson-sampled Gaussian with the same μ (it dominates any μ-GDP round), for one
record of the user added or removed, against a server that sees every reply. Lemma 2 stands beside it as what it is: an
approximation.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from scipy.stats import binom

from privrob import checks
from privrob.accounting import fdp_vectors
from privrob.accounting.ledger import Ledger, Spent, WeakGuarantee
from privrob.kinds import NotAvailable
from privrob.mechanisms.binomial import BinomialMechanism
from privrob.mechanisms.sampled import gaussian_step
from privrob.mechanisms.signs import CLDP, NoisySign, Sign, StoSign
from privrob.mechanisms.ternary import Ternarize, Ternary


def round_mu(mechanism):
    r"""An upper bound of μ when every coordinate of a vector with :math:`\|x\|_2 \le c` is compressed by itself.

    ``NoisySign`` is a function of x plus Gaussian noise 2cσ, and two vectors are 2c apart: 1/σ. Without a compressor,
    for the plain sign, and for ``Ternarize`` (an output can rule an input out), μ is infinite.

    Paper: fdp, Algorithm 5, Lemma 2.
    Printed: Theorem 7's μ, for coordinates in [−c, c].   Used: the l2 clip that the algorithm has.
    """
    if mechanism is None or isinstance(mechanism, (Sign, Ternarize)):
        return math.inf
    if isinstance(mechanism, BinomialMechanism):
        if abs(mechanism.p_min + mechanism.p_max - 1) > 1e-12:
            raise NotAvailable("μ of a vector is known for p_min + p_max = 1")
        scale = mechanism.clip / (mechanism.p_max - mechanism.p_min)
        if scale <= mechanism.clip:
            return math.inf
        return fdp_vectors.l2_mu(clip=mechanism.clip, scale_b=scale, num_trials=mechanism.num_trials)
    if isinstance(mechanism, (StoSign, CLDP)):
        return fdp_vectors.l2_mu(clip=mechanism.clip, scale_b=mechanism.scale_a, num_trials=1)
    if isinstance(mechanism, Ternary):
        return fdp_vectors.ternary_l2_mu(clip=mechanism.clip, scale_a=mechanism.scale_a, scale_b=mechanism.scale_b)
    if isinstance(mechanism, NoisySign):
        return 1 / mechanism.noise_ratio * (1 + 1e-12)
    raise NotAvailable(f"μ of a vector of {type(mechanism).__name__} under an l2 clip is not known")


def effective_scale(mechanism):
    """B_eff: the noise of a vote over its slope at 0, so that N votes have signal / noise √N x/B_eff for small x."""
    if isinstance(mechanism, BinomialMechanism):
        return mechanism.clip / (mechanism.p_max - mechanism.p_min) / math.sqrt(mechanism.num_trials)
    if isinstance(mechanism, (StoSign, CLDP)):
        return mechanism.scale_a
    if isinstance(mechanism, Ternary):
        return math.sqrt(mechanism.scale_a * mechanism.scale_b)
    if isinstance(mechanism, NoisySign):
        return mechanism.clip * mechanism.noise_ratio * math.sqrt(2 * math.pi)
    raise NotAvailable(f"{type(mechanism).__name__} has no slope at 0")


@dataclass(frozen=True)
class UserPrivacy:
    """Of one record of one user. Fields: gdp_mu_round — of a round, upper;  approximate_mu — Lemma 2's limit, no
    guarantee;  guarantee — :class:`privrob.accounting.ledger.Spent`, ``upper`` is ε;  num_rounds — the rounds that it
    counts;  sample_rate — q of a record in a round."""

    gdp_mu_round: float
    approximate_mu: float
    guarantee: Spent
    num_rounds: int
    sample_rate: float

    @property
    def epsilon(self):
        """The guarantee's ε.

        Side: upper.
        """
        return self.guarantee.upper


def user_privacy(mechanism, *, num_rounds, batch_size, num_records, delta, user_rate=1.0):
    """The guarantee of a user who holds so many records (``add_remove``, ``poisson``), and Lemma 2 beside it.

    With ``user_rate`` below 1 the server knows in which rounds the user took part; their number exceeds what is counted
    with a probability of at most δ/10, which is taken from δ.

    Paper: fdp, Lemma 2.
    """
    rounds = checks.integer("num_rounds", num_rounds, low=0)
    records = checks.integer("num_records", num_records, low=1)
    batch = checks.real("batch_size", batch_size, low=0.0, high=records, open_low=True, hint="at most num_records")
    delta = checks.probability("delta", delta, allow_zero=False, allow_one=False)
    rate = checks.probability("user_rate", user_rate, allow_zero=False)
    mu, left = round_mu(mechanism), delta
    if rate < 1:
        rounds, left = min(rounds, int(binom.isf(delta / 10, rounds, rate))), 0.9 * delta
    ledger = Ledger(neighbouring="add_remove", sampling="poisson")
    noise = 0.0 if math.isinf(mu) else 1 / mu * (1 - 1e-12)
    ledger.add(gaussian_step(sample_rate=batch / records, noise_multiplier=noise), count=rounds)
    limit = fdp_vectors.lemma_2(mu, sampling_ratio=batch * math.sqrt(rounds) / records) if rounds else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakGuarantee)  # a table of many mechanisms: the numbers speak
        spent = ledger.epsilon(left)
    return UserPrivacy(mu, float(limit), spent, rounds, batch / records)
