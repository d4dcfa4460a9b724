r"""Where PRIME's promises end, in numbers: sets that shrink within an epoch, a budget that is capped, small samples of
exponents."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from privrob import checks
from privrob.accounting import gdp
from privrob.mechanisms.noise import Gaussian
from privrob.mechanisms.ranges import PrivateRange
from privrob.robust import mmw, noiseplan, prime_lemmas, rates
from privrob.robust.filtering import FilteredSet, excess, stop_level
from privrob.robust.prime import RANGE_SHARE, make_plan, settings_for
from privrob.robust.rows import Everywhere, Rows, factor_of

# ------------------------------------------------------------------------------------------ sets within an epoch


def shrinking_pair(num_records, dimension, *, corruption_rate, num_steps, half_side=18.0):
    r"""Two neighbours, each (n, d), on which so many filter steps of one epoch pass all tests and leave 1 − 2α·steps.

    A core, 0.4 of what is to be left, sits at one point on the diagonal and carries λ, so that λ_t stays above λ_0/2.
    All others lie in pairs ±x on balanced corners (as many + as −), orthogonal to the core and without a direction of
    their own: with weights near I/d theirs are the largest scores. They stand in shells of ⌈2αn⌉, so that a step takes
    one shell. The neighbours differ in a record of the innermost shell, moved to the opposite corner.

    Paper: prime, Algorithm 10 and Section F.1 (\|S\| ≥ n/2 is checked at the start of an epoch only).
    Args: dimension — even, at least 4;  half_side — B/2.
    """
    n, d = checks.integer("num_records", num_records, low=100), checks.integer("dimension", dimension, low=4)
    left = 1 - 2 * num_steps * checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5, open_low=True)
    if d % 2 or left <= 0.15:
        raise ValueError(
            f"dimension must be even and 2·corruption_rate·num_steps at most 0.85, got dimension={d}, "
            f"corruption_rate={corruption_rate}, num_steps={num_steps}; take fewer steps"
        )
    size, core = math.ceil(2 * corruption_rate * n), round(0.4 * left * n)
    rng = np.random.default_rng(0)  # a fixed design
    signs = np.where(rng.permuted(np.tile(np.arange(d), ((n - core + 1) // 2, 1)), axis=1) < d // 2, 1.0, -1.0)
    signs = np.stack([signs, -signs], axis=1).reshape(-1, d)[: n - core]
    shell = np.minimum(np.arange(n - core) // size, num_steps)
    far = half_side * 0.995 ** shell[:, None] * signs
    most = 2.5 / max(d / 5.5 - 1, 1e-9)  # square of the core's place for which ψ > λ/5.5
    least = 2.5 / ((d - 1) * left)  # from which on λ is the core's
    place = half_side * math.sqrt(min(1.0, math.sqrt(most * least)))
    points = np.vstack([far, np.full((core, d), place)])
    other = points.copy()
    other[n - core - 1] *= -1
    return points, other


def exact_epoch(points, *, corruption_rate, num_iterations, draw=1.0, stop_constant=1.0):
    """An epoch of Algorithm 10 with its own step, all answers exact: (sizes, steps).

    Paper: prime, Algorithm 10 (the inner loop).
    Args: draw — Z, 1 removes the fewest;  points — (n, d);  num_iterations — T₂;  stop_constant — C.
    Returns: ``sizes`` — of the sets whose mean is asked for;  ``steps`` — (centre, factor, ρZ), public, as
        :func:`privrob.robust.prime_lemmas.survivors` takes them. Both end where a test ends the epoch.
    """
    points = checks.array("points", points, ndim=2)
    n, d = points.shape
    state, total = FilteredSet(Rows(points, Everywhere(np.zeros(d)))), np.zeros((d, d))
    first, size, sizes, steps = excess(state.second_moment), math.ceil(2 * corruption_rate * n), [], []
    for _ in range(checks.integer("num_iterations", num_iterations, low=1)):
        matrix = state.second_moment
        norm = excess(matrix)
        if norm < 0.5 * first or norm <= stop_constant * stop_level(corruption_rate):
            break
        total += matrix - np.eye(d)
        weights = mmw.weights(total, step=mmw.printed_step(first, stop_constant=stop_constant))
        if float((matrix * weights).sum()) - 1 <= norm / 5.5:
            continue
        sizes.append(state.size)
        factor = factor_of(weights)
        scores = state.scores(state.mean, factor)
        least = prime_lemmas.binned_threshold(scores[state.alive])
        steps.append((state.mean.copy(), factor, least * draw))
        state.remove(scores, steps[-1][2], size=size)
    return sizes, steps


def mean_excess(num_records, dimension, *, corruption_rate, num_steps, half_side=18.0):
    r"""(share left, move): how far a mean asked for within an epoch moves, over the stated 2B√d/n.

    An epoch is run on the first of :func:`shrinking_pair`; its public steps then filter both. Refused where the epoch
    does not get to ask for the mean after that many steps, or where the filtered sets aren't neighbours.

    Paper: prime, Section F.1 (q_spectral), Theorems 2, 4, 6 and 9 (privacy, for α within their "α ≤ c < 0.1").
    """
    pair = shrinking_pair(
        num_records, dimension, corruption_rate=corruption_rate, num_steps=num_steps, half_side=half_side
    )
    how = {"corruption_rate": corruption_rate, "num_iterations": num_steps + 1}
    sizes, steps = exact_epoch(pair[0], **how)
    if len(sizes) <= num_steps:
        raise ValueError(f"num_steps: the epoch ends after {len(steps)} steps, got num_steps={num_steps}; take fewer")
    size = math.ceil(2 * corruption_rate * num_records)
    kept = [prime_lemmas.survivors(x, steps[:num_steps], size=size) for x in pair]
    apart = max(len(np.setdiff1d(_keys(a), _keys(b))) for a, b in (kept, kept[::-1]))
    if len(kept[0]) != sizes[num_steps] or apart > 1:
        raise RuntimeError("the filtered sets aren't neighbours: report this")
    move = float(np.linalg.norm(kept[0].mean(axis=0) - kept[1].mean(axis=0)))
    return len(kept[0]) / num_records, move / (4 * half_side * math.sqrt(dimension) / num_records)


def _keys(rows):
    return np.array([row.tobytes() for row in np.ascontiguousarray(rows)])


def with_larger_moves(plan, what, factor):
    """A printed plan, one query's true sensitivity so many times what the plan has: for its ledger.

    Args: plan — a :class:`privrob.robust.noiseplan.NoisePlan`;  what — the query;  factor — that number.
    """
    entries = []
    for entry in plan.entries:
        if entry.what == what:
            noise = entry.mechanism
            entry = replace(entry, mechanism=Gaussian(noise.noise_std, factor * noise.l2_sensitivity))
        entries.append(entry)
    return replace(plan, entries=tuple(entries))


def epoch_ledger(dimension, *, corruption_rate, num_steps, epsilon, delta, num_records=10**6):
    """A row: :func:`mean_excess` with T₂ one more than the steps, and what it does to (ε₂, δ₂) of that query and to ε.

    Paper: prime, Theorems 6 and 9 (privacy).
    """
    share, move = mean_excess(2000, dimension, corruption_rate=corruption_rate, num_steps=num_steps)
    how = {"num_records": num_records, "dimension": dimension, "corruption_rate": corruption_rate}
    plan = make_plan(settings_for("as_printed", num_iterations=num_steps + 1), epsilon=epsilon, delta=delta, **how)
    left, epochs = 1 - RANGE_SHARE, next(e.asked for e in plan.entries if e.what == "epoch_norm")
    how = {"delta": left * delta, "num_epochs": epochs, "num_iterations": num_steps + 1}
    budget, centre = noiseplan.printed_prime_budget(left * epsilon, **how), plan["centre"]
    mu = move * centre.l2_sensitivity / centre.noise_std
    row = {"α": corruption_rate, "d": dimension, "T₂": num_steps + 1, "left / n": share, "move / stated": move}
    row["δ / δ₂"] = float(gdp.delta_of(budget.epsilon_step, gdp_mu=mu)) / budget.delta_step
    row["ε in all / ε, stated"] = plan.epsilon(delta).upper / epsilon
    return row | {"true": with_larger_moves(plan, "centre", move).epsilon(delta).upper / epsilon}


# ------------------------------------------------------------------------------------------------- the capped budget


def matrix_records(dimension, *, epsilon, delta, corruption_rate, heavy_tailed=False, share=0.2, most_rounds=60):
    r"""n at which the printed noise of Σ (its spectral norm, 2√d σ) is this share of α log(1/α), or of 1 for heavy
    tails. B, T₁ and T₂ are those of that n, their constants 1.

    Paper: prime, Theorems 6 and 9, Algorithms 10 and 15: ε₂ = min(0.9, ε)/…, so that it is the same for all ε ≥ 0.91.
    Args: most_rounds — of the search for an n that fits itself.
    """
    limit = share * (1.0 if heavy_tailed else stop_level(corruption_rate))
    settings, n = settings_for("as_printed", heavy_tailed=heavy_tailed), 1e9
    how = {"dimension": dimension, "corruption_rate": corruption_rate, "epsilon": epsilon, "delta": delta}
    for _ in range(most_rounds):
        std = make_plan(settings, num_records=max(2, round(n)), **how)["second_moment"].noise_std
        before, n = n, n * 2 * math.sqrt(dimension) * std / limit
        if abs(math.log(n / before)) < 1e-6:
            break
    return n


def printed_theorem_8(dimension, *, corruption_rate, epsilon, delta):
    r"""(d log(d/α^1.5) + √d log(1/δ))/(αε) + √d log^1.5(1/δ) log(d/δ)/ε, constants 1, as Theorem 8 has it.

    Without the d/α that Lemma H.8 has, which :func:`privrob.robust.rates.stated_records` takes over: it goes to 0 as ε
    grows. Theorem 3 (its informal form) lacks it too.

    Paper: prime, Theorem 8.
    """
    d, rate, root = dimension, corruption_rate, math.sqrt(dimension)
    log = math.log(1 / checks.probability("delta", delta, allow_zero=False, allow_one=False))
    n = (d * math.log(d / rate**1.5) + root * log) / (rate * checks.positive("epsilon", epsilon))
    return n + root * log**1.5 * math.log(d / delta) / epsilon


def exponential_limits(epsilons, *, deltas=(1e-6, 1e-30, 1e-100)):
    """Rows, by ε: Theorem 8's n and the error √(d/n) that sampling alone has there (d = 10, α = 0.05, δ = 0.01); the
    records of the printed range, at a third of ε and δ, over Theorem 7's (d = 1, α = 0.1).

    Paper: prime, Theorems 7 and 8.
    Args: epsilons, deltas — values of ε and of δ.
    """
    rows = []
    for epsilon in epsilons:
        n = printed_theorem_8(10, corruption_rate=0.05, epsilon=epsilon, delta=0.01)
        row = {"ε": epsilon, "Theorem 8": n, "sampling / √α": math.sqrt(10 / n / 0.05)}
        for delta in deltas:
            how = {"dimension": 1, "corruption_rate": 0.1, "epsilon": epsilon, "delta": delta}
            need = PrivateRange.as_printed(epsilon / 3, delta=delta / 3, dimension=1).needed()
            row[f"range / Theorem 7, δ = {delta:g}"] = need / rates.stated_records("Theorem 7", **how)
        rows.append(row)
    return rows


def heavy_limits(epsilons, *, delta=1e-6):
    """Rows, by ε: Theorem 9's n, √(d/n) there (d = 10, α = 0.05, δ = 0.01), and :func:`matrix_records` (d = 32).

    Paper: prime, Theorem 9.
    Args: epsilons — values of ε.
    """
    rows = []
    for epsilon in epsilons:
        n = rates.stated_records("Theorem 9", dimension=10, corruption_rate=0.05, epsilon=epsilon, delta=0.01)
        noise = matrix_records(32, epsilon=epsilon, delta=delta, corruption_rate=0.05, heavy_tailed=True)
        rows.append({"ε": epsilon, "stated n": n, "sampling / √α": math.sqrt(10 / n / 0.05), "n by the noise": noise})
    return rows


# ---------------------------------------------------------------------------------------------------------- exponents


def slope_difference(first, second, axis, *, rng, num_boot=1000, value="n"):
    """(difference, low, high) of two exponents of :func:`privrob.robust.sample_sizes.slope`: a 95 % bootstrap interval
    over the runs of both.

    Paper: prime, Sections 1 and 5 (√d more records).
    Args: first, second — DataFrames with a few values of the axis, several runs at each;
        axis, value — columns;  num_boot — bootstrap draws.
    """
    middle, drawn = 0.0, 0.0
    for sign, rows in ((1, first), (-1, second)):
        groups = [(math.log(x), np.log(part[value].to_numpy())) for x, part in rows.groupby(axis)]
        x = np.array([g[0] for g in groups])
        weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
        middle += sign * float(weights @ [np.median(g[1]) for g in groups])
        medians = [np.median(rng.choice(g[1], (num_boot, len(g[1]))), axis=1) for g in groups]
        drawn = drawn + sign * (weights @ np.array(medians))
    return middle, *(float(q) for q in np.quantile(drawn, [0.025, 0.975]))
