"""The shared vocabulary: neighbouring relations, sampling schemes, certified intervals, random streams, guarantees.

Nothing here has a default that could change a guarantee: the five documents use different neighbouring relations,
so every accountant asks for one by name.

These names mean the same in every signature; a docstring comes back to one of them only where it has more to say:

* ``epsilon``, ``delta`` — ε in nats, at least 0, and δ in [0, 1), of (ε, δ)-DP
* ``neighbouring``, ``sampling`` — a :class:`Neighbouring` and a :class:`Sampling`, or their text; never implied
* ``orders`` — Rényi orders, each > 1, shape (k,);  ``type1`` — type-I errors α in [0, 1], any shape
* ``gdp_mu`` — μ of Gaussian DP, at least 0
* ``noise_std`` — the noise's standard deviation;  ``noise_multiplier`` — the same divided by the l2 sensitivity
* ``l1_sensitivity``, ``l2_sensitivity`` — how far neighbours' answers may lie apart in that norm
* ``num_records`` n, ``dimension`` d, ``num_classes`` K — of the data
* ``batch_size`` m, ``num_steps`` T, ``learning_rate`` η — of a training
* ``sample_rate`` — q in [0, 1]: a step takes each record with this probability
* ``corruption_rate`` — the adversary's share of the records, in [0, 1/2)
* ``failure_prob`` — the probability with which a statement may be wrong, or an algorithm may fail, in (0, 1)
* ``num_trials`` — M: trials of the binomial law, or independent repetitions
* ``num_users`` N, ``num_attackers`` K, ``num_rounds`` T — of a federated training
* ``form`` — which reading of a formula: ``"sound"`` (holds), ``"as_printed"``, ``"as_released"`` (the authors' code)
* ``images`` — (n, channels, height, width);  ``labels`` — whole numbers from 0, (n,);  ``in_shape`` — one image's
* ``rng`` — a numpy Generator;  ``generator`` — a torch one;  ``streams`` — :class:`Streams`;  ``seed`` — a root seed
* ``data`` — what is protected: records, one a row, unless the docstring says otherwise
* ``mechanism`` — anything with the four answers of :class:`Guarantee`; where it is run, ``release(data, *, rng)`` too
* ``diameter`` D, ``box_side`` B — of the region that records are clipped to, a ball or a cube
* ``heavy_tailed`` — whether records have bounded covariance only, in place of sub-Gaussian tails
* ``device``, ``dtype`` — as torch takes them
* ``path`` — of a file or folder;  ``scratch`` — a folder that a cell may write in, or None
* ``dataset`` — a data set's name, as :func:`privrob.learn.datasets.load` takes it
* ``settings`` — the module's frozen dataclass of settings; of a cell (``…_cell``), a dict of its fields and of the data

Source: ours: one word for what the documents call by several, and several for what they call by one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np

from privrob import checks


class Neighbouring(str, Enum):
    """Which pairs of data sets a guarantee speaks about.

    ``ADD``: x' = x plus one record; ``REMOVE``: x' = x less one record; ``ADD_REMOVE``: both ways;
    ``REPLACE``: one record exchanged for another (size kept).
    """

    ADD = "add"
    REMOVE = "remove"
    ADD_REMOVE = "add_remove"
    REPLACE = "replace"

    @classmethod
    def of(cls, value):
        """The relation of that name; anything else is refused with the list of names.

        Args: value — a member or its text, one of ``"add"``, ``"remove"``, ``"add_remove"``, ``"replace"``.
        """
        value = value.value if isinstance(value, cls) else value
        return cls(checks.choice("neighbouring", value, [m.value for m in cls]))


class Sampling(str, Enum):
    """How a step draws its records: all of them, each with probability q (Poisson), or a fixed number at random."""

    NONE = "none"
    POISSON = "poisson"
    FIXED_SIZE = "fixed_size"

    @classmethod
    def of(cls, value):
        """The scheme of that name; anything else is refused with the list of names.

        Args: value — a member or its text, one of ``"none"``, ``"poisson"``, ``"fixed_size"``.
        """
        value = value.value if isinstance(value, cls) else value
        return cls(checks.choice("sampling", value, [m.value for m in cls]))


class NotAvailable(NotImplementedError):
    """A mechanism cannot state this guarantee. Raised in place of a silent default."""


@dataclass(frozen=True)
class Interval:
    """A number known to lie in [lower, upper], with the best single value, ``estimate``, between. Infinity is allowed,
    NaN is not.
    """

    lower: float
    estimate: float
    upper: float

    def __post_init__(self):
        if not self.lower <= self.estimate <= self.upper:  # also catches NaN
            raise ValueError(
                f"an Interval needs lower <= estimate <= upper, got {self.lower!r}, {self.estimate!r}, {self.upper!r}"
            )

    @classmethod
    def exact(cls, value):
        """A number known to the last digit that float64 holds. All three are ``value``."""
        return cls(value, value, value)

    @property
    def width(self):
        """upper − lower; 0 for two equal infinities."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    def __contains__(self, value):
        return self.lower <= value <= self.upper

    def __str__(self):
        low, middle, high = (rounded(getattr(self, e), way) for e, way in _ROUNDING.items())
        return f"{middle} in [{low}, {high}]"  # the ends never inwards


@runtime_checkable
class Guarantee(Protocol):
    """What every mechanism can be asked. What it cannot give raises :class:`NotAvailable`; infinity is an answer."""

    def rdp(self, orders, *, neighbouring, sampling):
        """Rényi divergence in nats at each order, shape (k,): an upper bound over neighbours.

        Side: upper.
        """

    def pairs(self, *, neighbouring, sampling):
        """Dominating pairs of distributions, one for each direction."""

    def tradeoff(self, type1, *, neighbouring, sampling):
        """Smallest type-II error at each type-I error: a lower bound over neighbours.

        Side: lower.
        """

    def epsilon(self, delta, *, neighbouring, sampling):
        """The smallest ε at this δ, as an :class:`Interval`.

        Side: both ends; the upper one is the guarantee.
        """


# The torch CPU generator is a Mersenne Twister; its state is 24 bytes of book-keeping, then 624 words of 64 bits, …
_MT_WORDS, _MT_OFFSET = 624, 24


class Streams:
    """Named, independent random streams under one root seed.

    ``Streams(0).numpy("noise")`` is the same generator whatever else was drawn before, so that changing the batches
    leaves the noise alone. Names hash into the entropy of a :class:`numpy.random.SeedSequence` (128 bits each), and the
    torch CPU generator gets its whole state from it: ``torch.manual_seed`` would keep only 32 bits, and among 100,000
    streams two would collide.

    Args: seed — root seed, integer in [0, 2**64);  names — the path of this family of streams, any strings.
    """

    def __init__(self, seed, *names):
        self.seed = checks.seed("seed", seed)
        self.names = tuple(str(n) for n in names)

    def __repr__(self):
        return f"Streams({', '.join([str(self.seed), *map(repr, self.names)])})"

    def child(self, *names):
        """The family of streams below this one.

        Args: names — what is added to the path, any strings.
        """
        return Streams(self.seed, *self.names, *names)

    def sequence(self, name):
        """The seed sequence of one stream.

        Args: name — of the stream.
        """
        entropy = [self.seed]
        for part in (*self.names, str(name)):
            digest = hashlib.sha256(part.encode()).digest()[:16]
            entropy += [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
        return np.random.SeedSequence(entropy)

    def numpy(self, name):
        """A fresh numpy Generator (PCG64) at the start of the named stream.

        Args: name — of the stream.
        """
        return np.random.Generator(np.random.PCG64(self.sequence(name)))

    def torch(self, name, device="cpu"):
        """A fresh torch Generator on the device, at the start of the named stream.

        Args: name — of the stream;  device — a CPU's generator has other draws than a GPU's.
        """
        import torch

        device = torch.device(device)
        sequence = self.sequence(name)
        generator = torch.Generator(device=device)
        generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))  # all that a GPU's Philox needs
        if device.type == "cpu":
            state = generator.get_state().numpy().copy()
            if state.size < _MT_OFFSET + 8 * _MT_WORDS:
                raise RuntimeError(
                    f"unknown layout of the torch CPU generator ({state.size} bytes): use the tested torch"
                )
            words = sequence.generate_state(_MT_WORDS, np.uint32).astype("<u8")
            state[_MT_OFFSET : _MT_OFFSET + 8 * _MT_WORDS] = words.view(np.uint8)
            generator.set_state(torch.from_numpy(state))
        return generator


def nats(value, digits=6):
    """A privacy loss as people read it: "infinite" in words, else so many significant digits, never rounded down.

    Args: value — in nats;  digits — significant ones that are shown.
    """
    return "infinite" if math.isinf(value) else rounded(value, ROUND_CEILING, digits)


_ROUNDING = {"lower": ROUND_FLOOR, "estimate": ROUND_HALF_EVEN, "upper": ROUND_CEILING}


def rounded(value, way, digits=6):
    """A number with so many significant digits, rounded that way.

    Args: value — a number, infinity allowed;  way — a rounding of :mod:`decimal`, ``ROUND_CEILING`` say;  digits — how
        many.
    """
    value = float(value)
    short = f"{value:.{digits}g}"
    if math.isinf(value) or float(short) == value:
        return short
    exact = Decimal(value)
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(step, rounding=way)):.{digits}g}"
