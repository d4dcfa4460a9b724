"""The accountant that people call: what was released, how often, and the ε that it cost.

    ledger = Ledger(neighbouring="add_remove", sampling="poisson", num_records=60_000)
    ledger.add(PoissonSampled(Gaussian(noise_std=1.1, l2_sensitivity=1.0), sample_rate=256 / 60_000), count=1000)
    ledger.epsilon(1e-5)

Entries may differ from one to the next. Reading an answer changes nothing; a ledger that is saved and loaded gives the
same answer to the last bit.

Source: ours; the accountants are those of :mod:`privrob.accounting.pairs` and :mod:`privrob.accounting.rdp`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privrob import atomic, checks
from privrob.accounting import pairs, rdp
from privrob.kinds import Guarantee, Interval, Neighbouring, NotAvailable, Sampling, nats

ACCOUNTANTS = ("pld", "rdp")
MEANINGLESS = 20.0  # nats: one record may change the odds of an output by a factor of e²⁰ = 5e8
_FORMAT = 1
_POINTS = 2**20  # of the grids: a second or two at most
_MOST_STEPS = 2**53  # above, not every count is a double


class WeakGuarantee(UserWarning):
    """The numbers are right and promise little: a δ not below 1/n, or an ε beyond :data:`MEANINGLESS`."""


@dataclass(frozen=True)
class Spent(Interval):
    """An ε (or δ) with its ends, and all that it assumes.

    ``accountant`` is "pld" or "rdp", ``conversion`` one of :data:`privrob.accounting.rdp.CONVERSIONS` or None.

    ``order`` is the one of the Rényi curve that gave it; ``tuning_counted`` whether choosing the settings by results is
    paid for (it is not).
    """

    neighbouring: str
    sampling: str
    accountant: str
    num_steps: int
    epsilon: float | None = None  # given, when the interval is a δ
    delta: float | None = None  # given, when the interval is an ε
    conversion: str | None = None  # of rdp
    order: float | None = None  # of rdp: the best one
    orders: str | None = None  # of rdp: how many were tried, from which to which
    tuning_counted: bool = False  # the choice of settings by looking at results costs privacy too, and isn't in here

    def __str__(self):
        if self.delta is None:
            return f"(ε, δ) = ({self.epsilon:g}, {nats(self.upper, 4)}), {self._assumes()}"
        return f"(ε, δ) = ({nats(self.upper)}, {self.delta:g}), {self._assumes()}"

    def _assumes(self):
        way = self.accountant if self.order is None else f"rdp at order {self.order:g}, conversion {self.conversion}"
        return f"{self.num_steps} steps, {self.neighbouring}, sampling {self.sampling}, by {way}"

    def as_row(self):
        """All fields, as a row of results has them."""
        return dataclasses.asdict(self)


def weaknesses(epsilon, delta, *, num_records=None):
    """What an (ε, δ) guarantee fails to promise, a sentence each; none: an empty list."""
    told = []
    if num_records and delta >= 1 / num_records:
        told.append(
            f"delta = {delta:g} is not below 1/num_records = {1 / num_records:g}: releasing a record as it is would be "
            "within it"
        )
    if epsilon > MEANINGLESS:
        told.append(f"epsilon = {nats(epsilon, 4)} gives no meaningful guarantee (above {MEANINGLESS:g})")
    return told


class Ledger:
    """A history of releases.

    Args: neighbouring — of all entries;  sampling — ``none``, ``poisson`` or ``fixed_size``, of all entries;
        num_records — n, to warn of a δ that is not below 1/n (optional).
    """

    def __init__(self, *, neighbouring, sampling, num_records=None):
        self.neighbouring, self.sampling = Neighbouring.of(neighbouring), Sampling.of(sampling)
        self.num_records = None if num_records is None else checks.integer("num_records", num_records, low=1)
        self._entries, self._num_steps = [], 0

    @property
    def history(self):
        """((guarantee, count), …) in order; equal neighbours are taken together."""
        return tuple(self._entries)

    @property
    def num_steps(self):
        """How many releases there were."""
        return self._num_steps

    def __repr__(self):
        head = f"Ledger(neighbouring={self.neighbouring.value!r}, sampling={self.sampling.value!r})"
        return "\n".join([head, *(f"  {count} × {guarantee}" for guarantee, count in self._entries)])

    def add(self, guarantee, count=1):
        """Enter so many releases of a mechanism (anything with :class:`privrob.kinds.Guarantee`'s four answers).

        Args: guarantee — the mechanism; NumPy's numbers in it are kept as Python's, single precision as the double of
            the same value;  count — how many releases, at least 0; of all entries together, at most 2⁵³.
        """
        if not isinstance(guarantee, Guarantee):
            raise TypeError(
                "guarantee must be a mechanism that states rdp, pairs, tradeoff and epsilon, got "
                f"{type(guarantee).__name__}"
            )
        hint = "above 2**53 steps in all, not every count is a double"
        count = checks.integer("count", count, low=0, high=_MOST_STEPS - self._num_steps, hint=hint)
        guarantee = _of_plain_numbers(guarantee)
        guarantee.rdp(
            np.array([2.0]), neighbouring=self.neighbouring, sampling=self.sampling
        )  # refused here, not later
        if not count:
            return
        if self._entries and self._entries[-1][0] == guarantee:
            self._entries[-1] = guarantee, self._entries[-1][1] + count
        else:
            self._entries.append((guarantee, count))
        self._num_steps += count

    # ------------------------------------------------------------------------------------------------------ answers

    def rdp(self, orders):
        """The Rényi curve of all releases together, in nats, shape (k,): a sum.

        Side: upper; the relation and the sampling are the ledger's.
        """
        orders = checks.orders(orders)
        if not self._entries:
            return np.zeros_like(orders)
        how = {"neighbouring": self.neighbouring, "sampling": self.sampling}
        return rdp.compose([g.rdp(orders, **how) for g, _ in self._entries], [n for _, n in self._entries])

    def epsilon(self, delta, *, accountant="pld", conversion="balle2020", orders=None):
        """What was spent so far, as a :class:`Spent` interval of ε; ``upper`` is the guarantee.

        Args: delta — in [0, 1);  accountant — ``pld`` (tight, certified at both ends) or ``rdp`` (fast, an upper end:
        its lower end is 0);  conversion, orders — of ``rdp``.
        """
        delta = checks.real("delta", delta, low=0.0, high=1.0, open_high=True)
        orders = _asked_orders(accountant, orders)
        if orders is None:
            result = self._spent(self._composed(delta), accountant, delta=delta)
        else:
            found = rdp.epsilon_of(delta, orders=orders, rdp=self.rdp(orders), conversion=conversion)
            ends, tried = Interval(0.0, found.epsilon, found.epsilon), _tried(orders)
            result = self._spent(ends, accountant, delta=delta, conversion=conversion, order=found.order, orders=tried)
        self._warn(result.upper, delta)
        return result

    def delta(self, epsilon, *, accountant="pld", conversion="balle2020", orders=None):
        """The δ at a given ε, as :meth:`epsilon`.

        Side: both ends; the upper one is the guarantee.
        """
        epsilon = checks.nonnegative("epsilon", epsilon)
        orders = _asked_orders(accountant, orders)
        if orders is None:
            entries = self._pairs()
            answer = pairs.delta(entries, epsilon=epsilon, points=_POINTS) if entries else Interval.exact(0.0)
            result = self._spent(answer, accountant, epsilon=epsilon)
        else:
            found = rdp.delta_of(epsilon, orders=orders, rdp=self.rdp(orders), conversion=conversion)
            ends, more = Interval(0.0, found.delta, found.delta), {"order": found.order, "orders": _tried(orders)}
            result = self._spent(ends, accountant, epsilon=epsilon, conversion=conversion, **more)
        self._warn(epsilon, result.upper)
        return result

    def _composed(self, delta):
        """ε of all releases: by the mechanism's own accountant where one kind was released, and it has one."""
        if not self._entries:
            return Interval.exact(0.0)
        guarantee, count = self._entries[0]
        if len(self._entries) == 1 and hasattr(guarantee, "composed_epsilon"):
            try:
                how = {"neighbouring": self.neighbouring, "sampling": self.sampling}
                return guarantee.composed_epsilon(count, delta, **how)
            except NotAvailable:
                pass
        return pairs.compose(self._pairs(), delta=delta, points=_POINTS)

    def _pairs(self):
        how = {"neighbouring": self.neighbouring, "sampling": self.sampling}
        return [(guarantee.pairs(**how), count) for guarantee, count in self._entries]

    def _spent(self, interval, accountant, **more):
        ends = interval.lower, interval.estimate, interval.upper
        return Spent(*ends, self.neighbouring.value, self.sampling.value, accountant, self.num_steps, **more)

    def _warn(self, epsilon, delta):
        for text in weaknesses(epsilon, delta, num_records=self.num_records):
            warnings.warn(text, WeakGuarantee, stacklevel=3)

    # ---------------------------------------------------------------------------------------------------- files

    def save(self, path):
        """Write the history as JSON, whole or not at all.

        Args: path — of the file; replaced if it is there.
        """
        body = {
            "format": _FORMAT,
            "neighbouring": self.neighbouring.value,
            "sampling": self.sampling.value,
            "num_records": self.num_records,
            "history": [{"count": count, "guarantee": _written(g)} for g, count in self._entries],
        }
        atomic.write_bytes(Path(path), json.dumps(body, indent=1, allow_nan=False).encode())

    @classmethod
    def load(cls, path):
        """The ledger that :meth:`save` wrote. Refused: a file without a whole history, with a key that is unknown or
        there twice, or of an unknown mechanism.

        Args: path — of the file.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            body = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
            _exactly("a ledger", body, ("format", "neighbouring", "sampling", "num_records", "history"))
            if body["format"] != _FORMAT:
                raise ValueError(f"format {body['format']!r}, this version reads {_FORMAT}")
            ledger = cls(neighbouring=body["neighbouring"], sampling=body["sampling"], num_records=body["num_records"])
            if not isinstance(body["history"], list):
                raise ValueError(f"a history that is no list: {body['history']!r}")
            for entry in body["history"]:
                _exactly("an entry", entry, ("count", "guarantee"))
                ledger.add(_read(entry["guarantee"]), checks.integer("count", entry["count"], low=1))
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, ImportError, RecursionError) as error:
            raise ValueError(f"{path} must be a ledger with its whole history, got {error!r}") from error
        return ledger


def _asked_orders(accountant, orders):
    """The orders of a Rényi accountant, None for another."""
    if checks.choice("accountant", accountant, ACCOUNTANTS) == "rdp":
        return rdp.default_orders() if orders is None else checks.orders(orders)
    if orders is not None:
        raise ValueError(f"orders must be None with accountant={accountant!r}, which has none; pass accountant='rdp'")
    return None


def _tried(orders):
    return f"{orders.size} from {orders.min():g} to {orders.max():g}"


def _of_plain_numbers(value):
    """A mechanism whose fields hold no numbers of NumPy: those would count in single precision, or fail to be saved."""
    if isinstance(value, np.generic):
        return value.item()
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    plain = {name: _of_plain_numbers(field) for name, field in held.items()}
    changed = {name: field for name, field in plain.items() if field is not held[name]}
    return dataclasses.replace(value, **changed) if changed else value


def _each_once(pairs):
    """A JSON object as a dict, refused where a key is there twice: the later one would hide the other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return found


def _no_number(text):
    raise ValueError(f"{text}, which no ledger is saved with")


def _exactly(what, value, keys):
    """Refuse what is no dict with these keys and no others."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a dict, got {type(value).__name__}")
    if unknown := sorted(set(value) - set(keys)):
        raise ValueError(f"{what} has {', '.join(keys) or 'no keys'}, got {', '.join(map(repr, unknown))}")
    if missing := [key for key in keys if key not in value]:
        raise ValueError(f"{what} has {', '.join(keys)}, and lacks {', '.join(missing)}")


def _written(guarantee):
    """A mechanism as JSON: where its class is, and its fields, floats to the last bit."""
    if not dataclasses.is_dataclass(guarantee):
        raise TypeError(f"only frozen dataclasses can be saved, got {type(guarantee).__name__}")
    kind = type(guarantee)
    fields = {f.name: getattr(guarantee, f.name) for f in dataclasses.fields(guarantee)}
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "fields": {k: _plain(v) for k, v in fields.items()}}


def _plain(value):
    if dataclasses.is_dataclass(value):
        return _written(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    raise TypeError(f"only numbers, text and mechanisms can be saved, got {type(value).__name__}")


def _read(value):
    if isinstance(value, list):
        raise ValueError(f"a list where a number, text or a mechanism belongs: {value!r}")
    if not isinstance(value, dict):
        return value
    if set(value) == {"float"}:
        if value["float"] not in ("inf", "-inf", "nan"):
            raise ValueError(f"float must be one of inf, -inf and nan, got {value['float']!r}")
        return float(value["float"])
    _exactly("a mechanism", value, ("type", "fields"))
    module, _, name = value["type"].partition(":")
    if module.partition(".")[0] != "privrob":
        raise ValueError(f"a mechanism of {module!r}; add it to the loaded ledger in code")
    kind = getattr(importlib.import_module(module), name)
    if not dataclasses.is_dataclass(kind):
        raise ValueError(f"{value['type']} is no mechanism")
    _exactly(value["type"], value["fields"], [field.name for field in dataclasses.fields(kind)])
    return kind(**{k: _read(v) for k, v in value["fields"].items()})
