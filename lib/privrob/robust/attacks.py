r"""Attacks on the estimators of this folder, through their own code: neighbouring data, many runs, a lower bound.

The strongest looks at all that a curator answers. Every answer is a value plus noise of a known law, and the rest is
public, so the log likelihood ratio of a whole transcript is a sum: run on S, write the answers down; run on S′ *with
those answers given*, and see what its true values would have been. By Neyman and Pearson no score of the transcript
separates the two better.

Each target of :func:`attack_cell` states its claim (ε, δ) and is attacked at it; only a bound above it refutes.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import laplace as laplace_law

from privrob import checks
from privrob.accounting import audit
from privrob.mechanisms.histogram import StableHistogram
from privrob.mechanisms.noise import Laplace
from privrob.robust import resilience
from privrob.robust.curator import Curator, Step
from privrob.robust.dpfilter import printed_plan, private_filter
from privrob.robust.exponential_time import (
    exponential_plan,
    exponential_time_mean,
    goodness_limit,
    private_tukey_median,
)
from privrob.robust.noiseplan import symmetric_noise
from privrob.robust.prime import prime, region_for, settings_for
from privrob.robust.private_means import dp_mean
from privrob.robust.released import released_mean, released_prime
from privrob.robust.rows import Cube, Rows


class Transcript(Curator):
    """A curator that writes down its answers and its true values; with ``given`` it repeats those answers.

    Args: rows, how — as for :class:`privrob.robust.curator.Curator`;  given — a transcript to repeat, or None.
    """

    def __init__(self, rows, *, given=None, **how):
        super().__init__(rows, **how)
        self.given, self.answers, self.truth = None if given is None else list(given), [], []

    def _record(self, what, value, fresh):
        answer = fresh() if self.given is None else self.given[len(self.answers)]
        self.truth.append((what, np.asarray(value, dtype=np.float64)))
        self.answers.append(answer)
        return answer

    def _noisy(self, what, value):
        return self._record(what, value, lambda: super(Transcript, self)._noisy(what, value))

    def second_moment(self, about=None):
        """As the curator's."""
        value, std = self._moment_about(about), self.plan["second_moment"].noise_std
        noise = {"noise_std": std, "rng": self.rng, "layout": self.layout}
        return self._record("second_moment", value, lambda: value + symmetric_noise(len(value), **noise))

    def log_likelihood(self):
        """Of the answers, given the true values, but for a constant of the plan."""
        total = 0.0
        for (what, value), answer in zip(self.truth, self.answers, strict=True):
            off = np.asarray(answer) - value
            noise = self.plan[what]
            if isinstance(noise, Laplace):
                total -= float(np.abs(off).sum()) / noise.laplace_scale
                continue
            squares = off**2
            if what == "second_moment" and self.layout == "mirror":
                squares = np.triu(squares)
            total -= float(squares.sum()) / (2 * noise.noise_std**2)
        return total


def transcript_loss(estimator, data, other, *, sequence):
    """log P(transcript of ``data``)/P(same transcript of ``other``) of one run on ``data``.

    Args: estimator — function of (data, rng=, curator_type=);  sequence — of the run's generator, used twice.
    """
    seen = []

    def run(records, given=None):
        def keep(rows, **how):
            seen.append(Transcript(rows, given=given, **how))
            return seen[-1]

        estimator(records, rng=np.random.default_rng(sequence), curator_type=keep)
        return seen[-1]

    first = run(data)
    second = run(other, first.answers)
    if len(second.answers) != len(first.answers):
        raise RuntimeError("the replayed run asked other queries: a choice was made on something that isn't public")
    return first.log_likelihood() - second.log_likelihood()


def poles(region, num_records):
    """All records at one end of the region's longest line, and the same with one record at the other: every query but
    the size then moves by (nearly) its sensitivity."""
    d = len(region.centre)
    end = np.ones(d) * region.diameter / (2 * math.sqrt(d))
    data = np.tile(region.centre - end, (num_records, 1))
    other = data.copy()
    other[0] = region.centre + end
    return data, other


def _seeds(streams, num_runs):
    return streams.sequence("runs").spawn(2 * num_runs)


def _transcripts(estimator, region, settings, streams):
    """Losses on S and on S′, both as log P/P′ with P for S."""
    data, other = poles(region, settings["num_records"])
    runs = settings["num_runs"]
    seeds = _seeds(streams, runs)
    on_data = [transcript_loss(estimator, data, other, sequence=s) for s in seeds[:runs]]
    on_other = [-transcript_loss(estimator, other, data, sequence=s) for s in seeds[runs:]]
    return np.array(on_data), np.array(on_other)


def _prime(settings, streams):
    n, d, rate = settings["num_records"], settings["dimension"], settings.get("corruption_rate", 0.1)
    more = {"variant": settings["variant"], "heavy_tailed": settings.get("heavy_tailed", False)}
    more |= settings.get("options", {})
    chosen = settings_for(more["variant"], **{k: v for k, v in more.items() if k != "variant"})
    region = region_for(chosen, np.zeros(d), num_records=n, corruption_rate=rate)
    how = {"corruption_rate": rate, "epsilon": settings["epsilon"], "delta": settings["delta"], **more}

    def estimator(data, **run):
        return prime(data, location=np.zeros(d), **how, **run)

    return _transcripts(estimator, region, settings, streams)


def _dpfilter(settings, streams):
    d, side = settings["dimension"], 6.0
    how = {"corruption_rate": 0.1, "epsilon": settings["epsilon"], "delta": settings["delta"], "box_side": side}
    how |= {"form": settings["form"], "num_steps": settings["num_steps"], "location": np.zeros(d)}

    def estimator(data, **run):
        return private_filter(data, **how, **run)

    return _transcripts(estimator, Cube(np.zeros(d), side), settings, streams)


def _mean_query(settings, streams):
    """DPFILTER's mean as printed, half of the records left, at the claim (ε₁, 0) of one query: opposite corners."""
    n, d, runs = settings["num_records"], settings["dimension"], settings["num_runs"]
    plan = printed_plan(0.9, delta=1e-3, num_records=n, dimension=d, box_side=10.0, num_steps=2)
    data = np.zeros((n, d))
    data[: n // 2, 0], data[: n // 2, 1] = 5.0, -5.0  # these go in the step below, the corners stay
    across = np.zeros((d, 1))
    across[:2, 0] = math.sqrt(0.5), -math.sqrt(0.5)
    curators, rng = [], streams.numpy("noise")
    for corner in (5.0, -5.0):
        data[-1] = corner
        curator = Curator(Rows(data.copy(), Cube(np.zeros(d), 10.0)), plan=plan, rng=rng, corruption_rate=0.3)
        curator.filter(Step(np.zeros(d), across, 1.0))
        curators.append(curator)
    one, other = (c.state().mean for c in curators)
    scale, losses = plan["mean"].laplace_scale, []
    for curator in curators:
        seen = np.array([curator.mean() for _ in range(runs)])
        losses.append(((np.abs(seen - other) - np.abs(seen - one)) / scale).sum(axis=1))
    return (*losses, 1 / plan["size"].laplace_scale, 0.0)


def _size_pair(settings, streams):
    """Filtering leaves 55 % of the records, or one less: the script checks that without noise, at a fixed limit.

    On the line: far records at ±10, all others at 0; the score is whether the run refused.
    """
    n, runs, found = settings["num_records"], settings["num_runs"], []
    far = n - math.ceil(0.55 * n)
    how = {"corruption_rate": 0.23, "epsilon": settings["epsilon"], "delta": settings["delta"]}
    for k, count in enumerate((far, far + 1)):
        data = np.zeros((n, 1))
        data[:count, 0] = np.where(np.arange(count) % 2, 10.0, -10.0)
        seeds, seen = _seeds(streams, runs)[k * runs : (k + 1) * runs], []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            if settings["variant"] == "as_released":
                out = released_prime(data, rng=rng, **how)
            else:
                out = prime(data, rng=rng, variant=settings["variant"], location=np.zeros(1), **how)
            seen.append(float(out.refused))
        found.append(np.array(seen))
    return tuple(found)


def _histogram(settings, streams):
    """With a cut-off: a record moves from one half-full bin to the other; the score is the difference of their counts.
    Without: n records in n bins, one moves to a bin of its own; the score is whether that bin shows."""
    n, rng, claim = settings["num_records"], streams.numpy("noise"), {"delta": settings["delta"], "width": 1.0}
    histogram = StableHistogram.karwa_vadhan(settings["epsilon"], **claim)
    if settings["cutoff"]:
        base, places = np.arange(n) % 2 + 0.5, (1.5, 0.5)
    else:
        base, places = np.arange(n) + 0.5, (n + 7.5, 0.5)
        histogram = StableHistogram(histogram.noise, -math.inf, 1.0)
    found = []
    for place in places:
        data = base.copy()
        data[0] = place
        shown = [dict(zip(*histogram.release(data, rng=rng))) for _ in range(settings["num_runs"])]
        if settings["cutoff"]:
            found.append(np.array([s.get(1, 0.0) - s.get(0, 0.0) for s in shown]))
        else:
            found.append(np.array([float(n + 7 in s) for s in shown]))
    return tuple(found)


def _answers(settings, streams):
    """Estimators that answer once: a record at one end of the region or the other; the score is the answer."""
    n, d, what, runs = settings["num_records"], settings["dimension"], settings["estimator"], settings["num_runs"]
    base = streams.numpy("data").standard_normal((n, d))
    claim = {"epsilon": settings["epsilon"], "delta": settings["delta"]}
    estimators = {
        "exponential_time": lambda x, rng: exponential_time_mean(
            x, rng=rng, corruption_rate=0.1, location=np.zeros(d), half_width=3.0, spacing=0.5, **claim
        ),
        "tukey": lambda x, rng: private_tukey_median(
            x, rng=rng, epsilon=settings["epsilon"], half_range=1.5, spacing=1.0
        ),
        "dp_mean": lambda x, rng: dp_mean(x, rng=rng, location=np.zeros(d), **claim),
        "released_mean": lambda x, rng: released_mean(x, rng=rng, **claim),
    }
    release = estimators[checks.choice("estimator", what, list(estimators))]
    end = 5.0 if what == "released_mean" else 50.0
    found, seeds = [], _seeds(streams, runs)
    for k, place in enumerate((end, -end)):
        data = base * (0.02 if what == "exponential_time" else 1.0)
        data[0] = place
        outs = [release(data, np.random.default_rng(s)) for s in seeds[k * runs : (k + 1) * runs]]
        found.append(np.array([-1e3 if o.refused else float(o.estimate.sum()) for o in outs]))
    return tuple(found)


_ATTACKS = {
    "prime": _prime,
    "dpfilter": _dpfilter,
    "mean query": _mean_query,
    "size pair": _size_pair,
    "histogram": _histogram,
    "answer": _answers,
}


def attack_cell(settings, *, streams):
    """One audit: a row with the claim and the lower bound on ε that the runs prove.

    Settings: attack — of this module;  name, sound — what to call the target, and whether it should keep its claim;
    num_runs — on each of two neighbours;  failure_prob;  epsilon, delta — the claim;  others as the attack asks.
    """
    attack = _ATTACKS[checks.choice("attack", settings["attack"], list(_ATTACKS))]
    one, other, *claim = attack(settings, streams)
    epsilon, delta = claim or (settings["epsilon"], settings["delta"])
    found = audit.two_samples(one, other, delta=delta, failure_prob=settings["failure_prob"])
    row = {"target": settings["name"], "sound": settings["sound"], "attack": settings["attack"]}
    row |= {
        "dimension": settings["dimension"],
        "num_records": settings["num_records"],
        "num_runs": settings["num_runs"],
    }
    return [row | {"claimed": float(epsilon), "delta": float(delta), "epsilon_lower": found.epsilon_lower}]


def algorithm_2_delta(epsilon, *, corruption_rate, num_records, form="as_printed", heavy_tailed=False, delta=1e-4):
    r"""The exact δ at ε of Algorithm 2 on the line, its range apart, for a pair of neighbours: at least what it costs.

    Two clusters, scaled so that R(S) is just below what passes, and one record thrown from an end to the far end. The
    answer is "refused" or a candidate of a grid, each with a probability that is a closed form.

    Paper: prime, Algorithm 2, Theorems 7 and 8.
    """
    n, rate, how = num_records, corruption_rate, {"corruption_rate": corruption_rate}
    limit = goodness_limit(rate, heavy_tailed=heavy_tailed)
    _, _, k = resilience.sizes(n, rate)
    best = 0.0
    for ones in range(k - 2, k + 3):
        base = np.where(np.arange(n) < ones, 1.0, 0.0)[:, None]
        good = resilience.window_goodness(base, **how)
        if good <= 0:
            continue
        base = base * (0.98 * limit / good)
        radius = 4 * float(base.max())
        more = {"delta": delta, "num_records": n, "dimension": 1, "diameter": 2 * radius, "heavy_tailed": heavy_tailed}
        plan, choose, _ = exponential_plan(epsilon, form=form, **more, **how)
        candidates, noise = np.linspace(-radius, radius, 161)[:, None], plan["goodness"]
        for place, new in ((0, -radius), (n - 1, radius)):
            other = base.copy()
            other[place] = new
            laws = []
            for x in (base, other):
                gap = limit - resilience.window_goodness(x, **how)
                passed = float(laplace_law.cdf(gap, scale=noise.laplace_scale))
                chosen = np.exp(choose.log_probs(-resilience.distance(candidates, x, **how)))
                laws.append(np.append(passed * chosen, 1 - passed))
            for one, two in (laws, laws[::-1]):
                best = max(best, float(np.maximum(one - math.exp(epsilon) * two, 0.0).sum()))
    return best


def standard_targets(*, num_runs, answer_runs, script_runs, script_records, failure_prob, epsilon, delta):
    """The settings of :func:`attack_cell` for every estimator of this folder: those that should keep their claim, and
    those that shouldn't. Transcripts and answers are attacked at (ε, δ), printed plans at their own ε ≤ 0.9.

    Args: num_runs, answer_runs, script_runs — runs of a transcript, of an answer and of the authors' script;
        script_records — of the script's data.
    """
    whole = {"epsilon": epsilon, "delta": delta, "num_runs": num_runs, "num_records": 40, "sound": True}
    light, few = {**whole, "num_runs": answer_runs}, {"num_records": 20, "dimension": 1}
    script = {"attack": "size pair", "epsilon": 1.0, "delta": 0.01, "num_records": script_records, "dimension": 1}
    script |= {"num_runs": script_runs}
    once = {"options": {"num_epochs": 1, "num_iterations": 1}}  # every query of it, in most runs
    ball, printed = (
        {"attack": "prime", "variant": "ball", "dimension": 2},
        {"sound": False, "epsilon": 0.9, "delta": 0.01},
    )
    step = {"attack": "dpfilter", "num_steps": 2, "dimension": 2}
    best = {"attack": "answer", "estimator": "exponential_time"}
    targets = [
        {**whole, "name": "PRIME, ball", **ball, **once},
        {**whole, "name": "PRIME, tuned", **ball, **once, "variant": "tuned", "dimension": 3},
        {**whole, "name": "PRIME, ball, 4 × 2", **ball, "dimension": 1},
        {**whole, "name": "PRIME, heavy tails", **ball, **once, "heavy_tailed": True},
        {**whole, "name": "DPFILTER, sound", **step, "form": "sound"},
        {**whole, "name": "DPFILTER, printed, d = 2", **step, **printed, "form": "as_printed", "num_records": 900},
        {**light, "name": "Algorithm 2, sound, d = 1", **best, "dimension": 1},
        {**whole, "name": "Algorithm 2, sound, d = 2", **best, "dimension": 2, "num_records": 10},
        {**whole, "name": "Tukey median", "attack": "answer", "estimator": "tukey", "dimension": 2, "num_records": 12},
        {**light, "name": "DP mean", "attack": "answer", "estimator": "dp_mean", "dimension": 3},
        {**light, "name": "range, with cut-off", "attack": "histogram", "cutoff": True, **few},
        {**script, "name": "PRIME, ball, pair for the script", "variant": "ball", "sound": True},
        {**light, "name": "range, no cut-off", "attack": "histogram", "cutoff": False, **few, **printed},
        {**light, "name": "DPFILTER, printed mean", "attack": "mean query", **few, "dimension": 100, "sound": False},
        {**script, "name": "script, its size check", "variant": "as_released", "sound": False},
        {**light, "name": "script, its DP mean", "attack": "answer", "estimator": "released_mean", "dimension": 2,
         "num_records": 400, "epsilon": 1.0, "sound": False},
    ]  # fmt: skip
    return [{**target, "failure_prob": failure_prob} for target in targets]
