"""What a cell will take, from cells that were measured; what a list of cells takes on so many workers.

**The law.** A cell's time is proportional to its *amount*, the product of the sizes in its settings (:func:`amount`);
for a training that is steps × expected batch. The rate, seconds over amount, is taken from measured cells of the same
function that agree in ``KIND`` (data set, model, method, device, …) and give their sizes by the same names: of those
that agree in all other words too where there are any, the ones of nearest amount. The estimate is the median of these
rates. The range is the widest of: their least and greatest; and the 10th and 90th percentile of how measured cells of
that function compare with what the same law says of each from the others (a factor 2 either way where fewer than
``ENOUGH`` can be compared). A cell with no such relative has no estimate.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from privrob.suite.files import dump_json, load_json, read_text

STEPS = ("num_steps", "num_rounds")
BATCH = ("batch_size", "sample_rate")
MORE = ("num_users", "num_trials")  # that a training takes at once
SIZES = ("num_records", "dimension", "num_trials", "num_runs", "runs", "repetitions", "num_draws", "per_log")
TEST_IMAGES = 10_000  # of MNIST and CIFAR-10, where settings leave it open
KIND = (
    *(
        "dataset",
        "device",
        "model",
        "network",
        "hidden",
        "features",
        "method",
        "of",
        "resolution",
        "image_size",
        "crop",
    ),
    *("estimator", "estimators", "study", "attack", "public_dataset", "target", "sweep", "disk", "reconstruction"),
)
LABELS = ("name", "label", "block", "panel", "ablation")
TIMES = "times.jsonl"  # beside a result: what its cells took
NEAR = math.log(1.5)  # distance of amounts up to which they are about the same
ENOUGH = 5
LEAST, MOST = 0.1, 0.9  # percentiles


def flat(settings):
    """Settings by the last part of their names; of equal names the outermost."""
    found, level = {}, [settings]
    while level:
        for part in level:
            for name, value in part.items():
                if not isinstance(value, dict):
                    found.setdefault(name, value)
        level = [v for part in level for v in part.values() if isinstance(v, dict)]
    return found


def amount(settings):
    """(names of the sizes, their product).

    A training is steps × expected batch × what it takes at once × (1 + steps of the attack that it trains against),
    plus the gradients of attacks on test images: images × steps × radii × kinds × models. Anything else is the product
    of its ``SIZES``; a list counts its items.
    """
    have = flat(settings)
    steps = next((n for n in STEPS if n in have), None)
    if steps is None:
        names = [n for n in SIZES if _size(have.get(n)) > 0]
        return tuple(names), math.prod(_size(have[n]) for n in names)
    batch = [n for n in BATCH if n in have][:1]
    batch += ["num_records"] * (batch == ["sample_rate"] and "num_records" in have)
    names = [steps, *batch, *(n for n in MORE if n in settings)]  # not a compressor's number of trials
    total = math.prod(_size(have[n]) for n in names) * (1 + _size(have.get("attack_steps")))
    if tested := have.get("attack_test_steps"):
        images = have.get("num_attacked") or have.get("num_test") or TEST_IMAGES
        lists = ("attack_radii", "attack_kinds", "attack_models")
        total += images * sum(tested) * math.prod(max(1, len(have.get(n) or ())) for n in lists)
        names.append("attack_test_steps")
    return tuple(names), total


def _size(value):
    if isinstance(value, (list, tuple)):
        return len(value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


@dataclass(frozen=True)
class Estimate:
    """Seconds of a cell: ``low``, ``mid``, ``high``.

    how: "stored" (that very cell), "alike", "kin", "probe" (a few steps of a relative) or "unknown".
    """

    how: str
    low: float = 0.0
    mid: float = 0.0
    high: float = 0.0


class Measured:
    """Cells that were measured, and what they say of others.

    Args: records — dicts with ``function``, ``settings``, ``seconds`` and ``identity``.
    """

    def __init__(self, records):
        self.exact, self._families, self._spread = {}, defaultdict(lambda: defaultdict(list)), {}
        self._probed = set()  # kinds that were only probed
        for record in records:
            seconds = record.get("seconds")
            if record["identity"] in self.exact or not isinstance(seconds, (int, float)) or not seconds > 0:
                continue
            self.exact[record["identity"]] = seconds
            if (size := amount(record["settings"])[1]) > 0:
                self._families[kind(record)][words(record)].append((record["identity"], size, seconds))
                if record.get("probe"):
                    self._probed.add(kind(record))

    def __len__(self):
        return len(self.exact)

    def estimate(self, cell):
        """The :class:`Estimate` of a cell (``function``, ``settings``, ``identity``, perhaps ``stored``)."""
        stored = (cell.get("stored") or {}).get("seconds") or self.exact.get(cell["identity"])
        if stored:
            return Estimate("stored", stored, stored, stored)
        size = amount(cell["settings"])[1]
        how, far, rates = self._rates(kind(cell), words(cell), size)
        if not rates:
            return Estimate("unknown")
        mid = statistics.median(rates)
        how = "probe" if kind(cell) in self._probed else how
        low, high = self.spread(cell["function"], far=far)
        if how == "probe":
            low, high = min(low, 0.5), max(high, 2.0)
        return Estimate(how, size * min(*rates, mid * low), size * mid, size * max(*rates, mid * high))

    def _rates(self, kin, alike, size, *, but=None, far=False):
        """("alike" | "kin" | "", whether they are of another amount, rates of the relatives of nearest amount).

        Args: but — a cell to leave out;  far — leave out all of about the same amount, too.
        """
        families = self._families.get(kin, {}) if size > 0 else {}
        everyone = [entry for family in families.values() for entry in family]
        for how, family in (("alike", families.get(alike, [])), ("kin", everyone)):
            others = [(abs(math.log(size / s)), t / s) for i, s, t in family if i != but]
            others = [(d, rate) for d, rate in others if d > NEAR or not far]
            if others:
                nearest = min(others)[0]
                return how, nearest > NEAR, [rate for d, rate in others if d <= nearest + NEAR]
        return "", False, []

    def spread(self, function, *, far):
        """(low, high) factors: how measured cells of a function compare with what the law says of each by the rest."""
        if (function, far) not in self._spread:
            ratios = sorted(self.ratios(function, far=far))
            found = (0.5, 2.0)
            if len(ratios) >= ENOUGH:
                found = (min(1.0, _percentile(ratios, LEAST)), max(1.0, _percentile(ratios, MOST)))
            self._spread[function, far] = found
        return self._spread[function, far]

    def ratios(self, function, *, far):
        """Measured over predicted, for each measured cell of a function that has relatives.

        Args: far — predict each from cells of another amount only, as where larger cells are predicted from smaller.
        """
        found = []
        for kin, families in self._families.items():
            for alike, family in families.items() if kin[0] == function else ():
                for identity, size, seconds in family:
                    if rates := self._rates(kin, alike, size, but=identity, far=far)[2]:
                        found.append(seconds / (size * statistics.median(rates)))
        return found


def kind(cell):
    """What a cell and its relatives have in common: the function, how its sizes are given, the ``KIND`` settings."""
    have = flat(cell["settings"])
    return (cell["function"], amount(cell["settings"])[0], repr([have.get(n) for n in KIND]))


def words(cell):
    """The settings that are text or switches, labels left out, as one text."""
    have = flat(cell["settings"])
    return repr(sorted((n, v) for n, v in have.items() if isinstance(v, (str, bool)) and n not in LABELS))


def name_of(settings):
    """The settings that say what kind of cell it is, in words."""
    have = flat(settings)
    named = [f"{n} {have[n]}" for n in KIND if n in have and n != "device"]
    return ", ".join(named) or "no settings of its kind"


def _percentile(ordered, share):
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


# ------------------------------------------------------------------------------------------------------ what is kept


def pack(records):
    """Times of cells as text, a line each; cells of one function below a line of the settings that they share.

    Args: records — dicts with ``function``, ``settings``, ``seconds`` and ``identity``; those without a time are left
    out.
    """
    families, lines = defaultdict(list), []
    for one in records:
        if isinstance(one.get("seconds"), (int, float)):
            families[one["function"], tuple(sorted(one["settings"]))].append(one)
    for (function, names), family in families.items():
        first = family[0]["settings"]
        shared = {n: first[n] for n in names if all(one["settings"][n] == first[n] for one in family)}
        lines.append({"function": function, "settings": shared})
        for one in family:
            own = {n: v for n, v in one["settings"].items() if n not in shared}
            lines.append({"identity": one["identity"], "seconds": round(one["seconds"], 3), "settings": own})
    return "".join(dump_json(line) + "\n" for line in lines)


def unpack(path):
    """The records in a file of what :func:`pack` wrote, in its order; none where it is missing or damaged."""
    records, head = [], None
    try:
        for line in map(load_json, read_text(path).splitlines() if Path(path).is_file() else []):
            if "function" in line:
                head = line
            else:
                settings = {**head["settings"], **line["settings"]}
                records.append({**line, "function": head["function"], "settings": settings})
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return records


# ------------------------------------------------------------------------------------------------------- the schedule


@dataclass(frozen=True)
class Schedule:
    """How a list of work ends on so many workers. Times in seconds."""

    workers: int
    total: float  # all tasks, one after the other
    makespan: float
    longest: float  # the longest task: no number of workers is done earlier
    chain: float  # the longest chain of tasks that wait for each other

    @property
    def efficiency(self):
        """The share of the workers' time that is spent on tasks."""
        return self.total / (self.workers * self.makespan) if self.makespan else 1.0


def schedule(chains, workers, *, start_up=0.0):
    """Simulate list scheduling, the longest task first.

    Args: chains — a notebook each: a list of stages, each a list of tasks' seconds; a stage begins when the one before
    it is done, and notebooks do not wait for each other;  workers — how many;  start_up — seconds that each worker
    needs before its first task.
    Returns: :class:`Schedule`.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got workers={workers}")
    chains = [[sorted(stage, reverse=True) for stage in chain if stage] for chain in chains]
    chains = [chain for chain in chains if chain]
    left = [len(chain[0]) for chain in chains]
    at = [0] * len(chains)
    ready = [(-seconds, i) for i, chain in enumerate(chains) for seconds in chain[0]]
    heapq.heapify(ready)
    running, idle, cold, now = [], 0, workers, 0.0
    while ready or running:
        while ready and (idle or cold):
            seconds, i = heapq.heappop(ready)
            idle, cold, wait = (idle - 1, cold, 0.0) if idle else (idle, cold - 1, start_up)
            heapq.heappush(running, (now + wait - seconds, i))
        now, i = heapq.heappop(running)
        idle, left[i] = idle + 1, left[i] - 1
        if not left[i] and at[i] + 1 < len(chains[i]):
            at[i] += 1
            left[i] = len(chains[i][at[i]])
            for seconds in chains[i][at[i]]:
                heapq.heappush(ready, (-seconds, i))
    tasks = [seconds for chain in chains for stage in chain for seconds in stage]
    longest_chain = max((math.fsum(stage[0] for stage in chain) for chain in chains), default=0.0)
    return Schedule(workers, math.fsum(tasks), now, max(tasks, default=0.0), longest_chain)
