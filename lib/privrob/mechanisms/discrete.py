r"""Mechanisms with a finite alphabet, as one user applies them to one number: what all of them have in common.

Each states its exact trade-off function from the pmfs of its worst inputs. The relation is ``replace``: two values that
the user may hold (local differential privacy), and nothing is sampled. A vector of d numbers is d releases::

    ledger = Ledger(neighbouring="replace", sampling="none")
    ledger.add(StoSign(clip=0.1, scale_a=0.25), count=d)

Rules that hold for every one of them:

* the worst inputs are the two ends: the ratio of the masses at two inputs is monotone in the output, so that the best
  test rejects beyond a threshold, and such a test only gets better as the inputs move apart;
* inputs beyond ±c are clipped, so that the guarantee covers any input; NaN is refused;
* parameters outside their domain are refused by name;
* a probability of exactly 0 or 1 is kept exactly by the sampler.
"""

from __future__ import annotations

import heapq
import itertools
import math
from functools import cached_property

import numpy as np

from privrob import checks
from privrob.accounting import tradeoff_least
from privrob.accounting.tradeoff import Tradeoff, type1_errors
from privrob.kinds import Neighbouring, NotAvailable, Sampling

_BLOCK = 2**14  # numbers encoded at a time


def check_local(neighbouring, sampling):
    """Refuse what a local mechanism does not state."""
    if Neighbouring.of(neighbouring) is not Neighbouring.REPLACE:
        raise NotAvailable("a local mechanism compares two values of one user; pass neighbouring='replace'")
    if Sampling.of(sampling) is not Sampling.NONE:
        raise NotAvailable("a local mechanism states its guarantee without sampling; pass sampling='none'")


MOST = 2.0**1022  # of clips and scales: twice that still is a double


def clip_alone(clip):
    """Check of a clip c: twice c must be a double."""
    return checks.real("clip", clip, low=0.0, open_low=True, high=MOST, hint="scale the data down")


def clip_below(clip, name, scale):
    """Check of a scale that must exceed the clip c: at c itself one output rules an input out.

    Args: scale — what is checked;  name — its name in the error.
    """
    clip = clip_alone(clip)
    checks.real(name, scale, low=clip, open_low=True, high=MOST, hint=f"it must exceed clip={clip:g}")


def whole_numbers(data, max_value):
    """As integers clipped to 0 … l; anything else is refused.

    Args: data — any shape;  max_value — l.
    """
    values = checks.array("data", data)
    if not (values == np.rint(values)).all():
        raise ValueError("data must be integers in 0 … max_value; QuantisedBinomial takes real numbers")
    return np.clip(values, 0, max_value).astype(np.int64)


class Finite:
    """Subclasses are frozen dataclasses that give :attr:`symbols`, :meth:`log_masses`, :attr:`worst_inputs` and
    :meth:`release`.

    ``symbols`` is the alphabet, in the order of the masses; ``worst_inputs`` holds pairs of inputs whose curves, in
    both orders, have the infimum over all inputs. One user's input is replaced by any other.
    """

    symbols: tuple  # the alphabet, in the order of log_masses
    worst_inputs: tuple  # pairs of inputs whose curves, in both orders, have the infimum over all inputs

    def log_masses(self, value):
        """Log probabilities of the symbols at one input, ``value``: shape (len(symbols),)."""
        raise NotImplementedError

    def release(self, data, *, rng):
        """The encoded numbers, each by itself, the same shape: of a vector, its coordinates independently.

        Paper: fdp, Algorithm 4 (whose y is x, or its :class:`~privrob.mechanisms.kashin.Kashin` representation).
        """
        raise NotImplementedError

    def decode(self, symbols):
        """Estimates whose mean is the (clipped) input.

        Args: symbols — what was released, any shape.
        """
        raise NotAvailable(f"{type(self).__name__} has no unbiased decoder")

    def _inputs(self, data):
        """As an array of numbers within ±c."""
        return np.clip(checks.array("data", data), -self.clip, self.clip)

    def _encode(self, data, encode, dtype):
        """The symbols of an array, block by block: work stays in the cache, and draws come in the same order."""
        data = checks.array("data", data)
        symbols, flat = np.empty(data.shape, dtype), data.reshape(-1)
        out = symbols.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            out[start : start + _BLOCK] = encode(flat[start : start + _BLOCK])
        return symbols[()]

    # -------------------------------------------------------------------------------------------------------- privacy

    @cached_property
    def curves(self):
        """Trade-off functions of the worst inputs, in both orders."""
        found = []
        for pair in self.worst_inputs:
            masses = [self.log_masses(value) for value in pair]
            found += [Tradeoff.of_logs(*masses), Tradeoff.of_logs(*masses[::-1])]
        return tuple(found)

    @cached_property
    def curve(self):
        """The convex hull of :attr:`curves`: what composes."""
        return tradeoff_least.minimum(self.curves)

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error: exactly the infimum over inputs, which need not be convex."""
        check_local(neighbouring, sampling)
        return tradeoff_least.pointwise(self.curves, type1)

    def pairs(self, *, neighbouring, sampling):
        """One pair that dominates both orders of the inputs, of the convex hull."""
        check_local(neighbouring, sampling)
        return self.curve.pair

    def rdp(self, orders, *, neighbouring, sampling):
        """Rényi curve in nats, shape (k,): the largest over the worst inputs."""
        check_local(neighbouring, sampling)
        return np.maximum.reduce([curve.rdp(orders) for curve in self.curves])

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε at this δ, exact but for rounding."""
        check_local(neighbouring, sampling)
        return self.curve.epsilon(delta)

    def gdp_mu_upper(self, *, neighbouring, sampling):
        """The smallest μ for which a release is μ-GDP; infinite where some output rules an input out."""
        check_local(neighbouring, sampling)
        return self.curve.gdp_mu_upper

    # ---------------------------------------------------------------------------------------------- bits on the wire

    @property
    def bits_fixed(self):
        """Bits of a fixed-length code, ⌈log₂ of the alphabet⌉.

        Paper: fdp, Theorem 5.
        Printed: log(M) bits for M + 1 symbols, which is none for M = 1.   Used: ⌈log₂(M + 1)⌉.
        """
        return (len(self.symbols) - 1).bit_length()

    def bits_entropy(self, value):
        """Entropy of the output at an input, in bits: what the best code for that input needs on average.

        Paper: fdp, Theorem 6.
        Printed: A/B bits in expectation.   Used: the entropy, H(A/B) + A/B at x = 0: 1.5 bits at A/B = 1/2.
        """
        logs = self.log_masses(float(value))
        masses = np.exp(logs)
        return max(0.0, float(-(masses[masses > 0] * logs[masses > 0]).sum() / math.log(2)))


def bits_of_blocks(masses, *, block):
    """Bits a symbol of the best prefix code (Huffman's) for blocks of symbols: at most 1/block above the entropy.

    Paper: fdp, Theorem 6, Remark 10.
    Args: masses — probabilities of the symbols, shape (k,);  block — symbols encoded together; time grows as alphabet
        ** block.
    """
    masses = checks.array("masses", masses, ndim=1)
    if (masses < 0).any() or abs(masses.sum() - 1) > 1e-9:
        raise ValueError(f"masses must be probabilities that sum to 1, got {masses!r}")
    block = checks.integer("block", block, low=1)
    heap = [math.prod(word) for word in itertools.product(masses[masses > 0].tolist(), repeat=block)]
    heapq.heapify(heap)
    bits = 0.0  # every merge adds a bit to all words below it
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        bits += merged
        heapq.heappush(heap, merged)
    return bits / block


def infimum(mechanism, type1, *, inputs):
    """The smallest type-II error over all ordered pairs of some inputs, by brute force.

    Args: inputs — values to try, each against each: time grows with the square of their number;
        mechanism — a :class:`Finite`.
    """
    alpha, lowest = type1_errors(type1), None
    masses = [mechanism.log_masses(float(value)) for value in inputs]
    if len(masses) < 2:
        raise ValueError(f"inputs must hold at least 2 values, each tried against the others, got {len(masses)}")
    for log_p, log_q in itertools.permutations(masses, 2):
        curve = Tradeoff.of_logs(log_p, log_q)(alpha)
        lowest = curve if lowest is None else np.minimum(lowest, curve)
    return lowest


def standard_errors_off(outputs, *, symbols, masses):
    """Largest distance of sampled shares of symbols from their probabilities, in standard errors.

    Symbols expected fewer than ten times are left out, those of probability 0 must not occur.
    Args: outputs — of one input, any shape;  masses — probabilities, one for each symbol.
    Returns: float, infinite where an impossible symbol occurs.
    """
    outputs, masses = np.asarray(outputs), checks.array("masses", masses, ndim=1)
    shares = np.array([np.mean(outputs == symbol) for symbol in symbols])
    if shares.size != masses.size or outputs.size == 0:
        raise ValueError(f"masses must hold one number for each of {shares.size} symbols, and outputs at least one")
    if shares[masses == 0].any() or abs(shares.sum() - 1) > 1e-9:
        return math.inf
    often = masses * outputs.size >= 10
    errors = np.sqrt(np.maximum(masses * (1 - masses), 1e-12) / outputs.size)  # a share of 1 is met exactly
    return float((np.abs(shares - masses) / errors)[often].max(initial=0.0))


def sampled_test(mechanism, null, other, type1, *, num_runs, rng):
    """The best randomised test between two inputs, on samples: the errors that it really makes.

    It rejects the null where the ratio of probabilities is largest, as often as ``type1`` allows.

    Paper: fdp, Lemma 3.
    Args: null, other — inputs;  type1 — a number, the test's level;
        mechanism — a :class:`Finite`;  num_runs — releases of each input.
    Returns: sampled type-I and type-II error.
    """
    num_runs = checks.integer("num_runs", num_runs, low=1)
    alpha = float(type1_errors(type1))
    log_p, log_q = (mechanism.log_masses(float(value)) for value in (null, other))
    with np.errstate(invalid="ignore"):
        order = np.argsort(np.nan_to_num(log_p - log_q, nan=0.0), kind="stable")
    masses = np.exp(log_p[order])
    used = np.append(0.0, np.cumsum(masses)[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        reject = np.where(masses > 0, np.clip((alpha - used) / masses, 0.0, 1.0), 1.0)
    symbols = np.array(mechanism.symbols)
    by_symbol = np.empty(symbols.size)
    by_symbol[order] = reject
    rates = []
    for value in (null, other):
        place = np.searchsorted(symbols, mechanism.release(np.full(num_runs, value), rng=rng))
        rates.append(float(np.mean(rng.random(num_runs) < by_symbol[place])))
    return rates[0], 1 - rates[1]
