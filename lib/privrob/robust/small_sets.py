"""The attack on PRIME and PRIME-HT as printed by a set that one filter step leaves with a single record.

Both check the size of the set at the start of an epoch only, and both state the sensitivity of a mean for a set of half
the records. At α just below 1/2 one step may remove all but one; the next query then asks for that record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import ncx2

from privrob.accounting import audit
from privrob.robust.attacks import Transcript
from privrob.robust.prime import prime


@dataclass(frozen=True)
class SmallSet:
    """Records of which one filter step as printed leaves one: all but that one at the corners of a cube about 0, and
    one at 0 or, in the neighbour, at ``place`` (1, 1, 1). d = 3.

    Fields: num_records — n at which the printed noises let it happen;  corner — half the cube's side;  place;
    highest_draw — of Z, so low that the step takes all but the last.
    """

    num_records: int
    corner: float
    place: float
    highest_draw: float

    @classmethod
    def of(cls, *, heavy_tailed=False):
        """As suits the printed noises of PRIME (M = 2.9 I, stops below α log(1/α)) or PRIME-HT."""
        if heavy_tailed:
            return cls(100_000, 10.0, 9.0, 0.02)
        return cls(400_000, math.sqrt(2.9), 1.0, 0.001)

    @property
    def corruption_rate(self):
        """α just below 1/2: ⌈2αn⌉ is n − 1."""
        return (self.num_records - 1) / (2 * self.num_records) - 1e-9 / self.num_records

    @property
    def near(self):
        """An answer less than this from 0 is taken for one of the record there."""
        return 0.4 * math.sqrt(3) * self.place

    def data(self):
        """Both neighbours, (n, 3)."""
        signs = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)], dtype=float)
        data = self.corner * signs[np.arange(self.num_records) % 8]
        other = data.copy()
        data[-1], other[-1] = 0.0, self.place
        return data, other

    def wrong_prob(self, noise_std):
        """At most this chance that the neighbour gives an answer so near, where all other records are removed:
        whichever is left lies no nearer to 0 than ``place``, and Normal noise has to bring its answer there.

        Whether they all have scores beyond ρZ is known to whoever knows them, from the answers before.
        """
        return float(ncx2.cdf((self.near / noise_std) ** 2, 3, 3 * (self.place / noise_std) ** 2))

    def least_delta(self, rows, epsilon, *, failure_prob):
        """A lower bound on δ at ε, but for a chance of ``failure_prob``: P(Z is so low) times what the runs show.

        Args: rows — of :func:`cell`.
        """
        low, _ = audit.clopper_pearson(int(rows["near"].sum()), len(rows), failure_prob=failure_prob)
        wrong = self.wrong_prob(float(rows["noise_std"].iloc[0]))
        return max(self.highest_draw * (float(low) - math.exp(epsilon) * wrong), 0.0)


class _LowDraws:
    """A generator whose third child draws U[0, top] for Z: everything else as before. Z is public and independent."""

    def __init__(self, generator, top):
        self.generator, self.top = generator, top

    def spawn(self, count):
        """Its children, the last one low."""
        *others, last = self.generator.spawn(count)
        return [*others, _LowDraws(last, self.top)]

    def random(self):
        """A low draw."""
        return self.top * self.generator.random()


def cell(settings, *, streams):
    """PRIME or PRIME-HT as printed (d = 3, T₂ = 2), at α just below 1/2: how often a run asks for the "mean" of one
    record.

    The size is checked at the start of an epoch only; one step may remove ⌈2αn⌉ records. That step's Z is drawn from
    U[0, ``highest_draw``] of :class:`SmallSet`, which happens with that probability: a share p of these runs is at
    least p times that share of all runs. Counted are answers of the first epoch's second iteration, which no other Z
    comes before, where the answers before say that the first removed records.

    Paper: prime, Algorithms 10 and 15, Appendices F.1 and K.2.
    Settings: num_runs, epsilon, delta, heavy_tailed, part (tells cells apart).
    Returns: a row a run with the record at 0: asked (a mean of it alone was asked for), near (the answer lies near
        it), noise_std of that answer.
    """
    heavy, rows = settings["heavy_tailed"], []
    small = SmallSet.of(heavy_tailed=heavy)
    data, _ = small.data()
    how = {"corruption_rate": small.corruption_rate, "epsilon": settings["epsilon"], "delta": settings["delta"]}
    how |= {"variant": "as_printed", "heavy_tailed": heavy, "location": np.zeros(3)}
    for seed in streams.sequence("runs").spawn(settings["num_runs"]):
        seen = []

        def keep(clipped, seen=seen, **more):
            seen.append(Transcript(clipped, **more))
            return seen[-1]

        rng = _LowDraws(np.random.default_rng(seed), small.highest_draw)
        prime(data, rng=rng, curator_type=keep, **how)
        curator, asked, epochs = seen[0], [], 0
        for (what, value), answer in zip(curator.truth, curator.answers, strict=True):
            epochs += what == "epoch_norm"
            if epochs == 1 and what == "centre" and np.abs(value).max() < 1e-9:
                asked.append(float(np.linalg.norm(answer)))
        row = {"heavy_tailed": heavy, "record": 0, "asked": bool(asked)}
        row |= {"near": bool(asked) and min(asked) < small.near, "noise_std": curator.plan["centre"].noise_std}
        rows.append(row)
    return rows


def work(num_runs, *, heavy_tailed, epsilon, delta, parts=4):
    """What a sweep takes: so many runs of :func:`cell` in so many cells.

    Args: num_runs — in all, rounded up;  epsilon, delta — the claim;  parts — how many cells.
    """
    how = {"heavy_tailed": heavy_tailed, "epsilon": epsilon, "delta": delta, "num_runs": math.ceil(num_runs / parts)}
    return [("privrob.robust.small_sets:cell", {**how, "part": k}) for k in range(parts)]
