r"""TSGD+PTR against TSGD+Gaussian: what each trains with, for how many steps, and what a table shows of it.

Two methods are compared at one (ε, δ). What a method then may do is a choice, and it decides the outcome; three stand
side by side:

* ``printed`` — the document's noise multipliers, each for as many steps as the budget pays for;
* ``aligned`` — the noise multiplier of TSGD+PTR as printed and its number of steps; TSGD+Gaussian as many steps, with
  the least noise that keeps within ε;
* ``best`` — over a list of numbers of steps, each method with the least noise that keeps within ε.

Paper: ptr, Section 5.1, B.1 to B.4 (the settings of Tables 1 to 4). The document gives no number of steps, no δ and no
accountant for them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from privrob import checks
from privrob.accounting import calibrate, pld, ptr, ptr_plan
from privrob.learn import corruption, datasets

GAUSSIAN, PTR, DPSGD = "TSGD+Gaussian", "TSGD+PTR", "DP-SGD"
METHODS = (GAUSSIAN, PTR, DPSGD)
COMPARISONS = {"printed": "(i) as printed", "aligned": "(ii) equal steps", "best": "(iii) best steps"}
ACCOUNTANTS = ("pld", "rdp")
_RELATION = "add_remove"


@dataclass(frozen=True)
class Block:
    """What the methods of one block of a table share.

    Args: name — of the block;  sample_rate — q;  max_grad_norm — R;  sensitivity_bound — τ, in the gradients' units;
        ptr_noise, gaussian_noise — σ as printed;  delta — δ;  laplace_scale — b;  test_failure — δ₀;  trim_rate,
        trim_step — of :class:`privrob.learn.releases.trimming.ProposeTestRelease`;
        cell — the other settings of :func:`privrob.learn.cells.train_cell`.
    """

    name: str
    sample_rate: float
    max_grad_norm: float
    sensitivity_bound: float
    ptr_noise: float
    gaussian_noise: float
    delta: float = 1e-5
    laplace_scale: float = 1.0
    test_failure: float = 1e-8
    trim_rate: float = 0.25
    trim_step: float = 0.02
    cell: dict = field(default_factory=dict)

    def __post_init__(self):
        checks.probability("sample_rate", self.sample_rate, allow_zero=False)
        for name in ("max_grad_norm", "sensitivity_bound", "ptr_noise", "gaussian_noise"):
            checks.positive(name, getattr(self, name), finite=True)
        if self.sensitivity_bound > self.max_grad_norm:
            raise ValueError(
                f"sensitivity_bound must be at most max_grad_norm={self.max_grad_norm!r}, "
                f"got sensitivity_bound={self.sensitivity_bound!r}"
            )

    @property
    def bound(self):
        """τ as a share of R."""
        return self.sensitivity_bound / self.max_grad_norm

    def settings(self, noise):
        """TSGD+PTR's step with that noise multiplier, to the accountant."""
        return ptr.Settings.of(
            noise_multiplier=noise,
            sensitivity_bound=self.bound,
            scale_ratio=self.laplace_scale,
            test_failure=self.test_failure,
        )

    def release(self, method):
        """Name and options of the method's release, as the training takes them."""
        if checks.choice("method", method, METHODS) == DPSGD:
            return {"release": "clipping"}
        if method == GAUSSIAN:
            return {"release": "trimmed", "release_options": {"trim_rate": self.trim_rate}}
        options = {
            "trim_rate": self.trim_rate,
            "trim_step": self.trim_step,
            "sensitivity_bound": self.bound,
            "laplace_scale": self.laplace_scale,
            "test_failure": self.test_failure,
        }
        return {"release": "propose_test_release", "release_options": options}

    def printed_noise(self, method):
        """σ as printed; DP-SGD's isn't, and is taken to be TSGD+Gaussian's: their sensitivity is the same."""
        return self.ptr_noise if method == PTR else self.gaussian_noise

    def num_steps(self, method, epsilon, *, noise=None, accountant="pld"):
        """The most steps that the method may take within ε (``add_remove``, Poisson batches), and what they spend.

        Args: method — one of the block's;  noise — its noise multiplier, None: as printed;  accountant — one of
            :data:`ACCOUNTANTS`.
        """
        checks.choice("accountant", accountant, ACCOUNTANTS)
        noise = self.printed_noise(method) if noise is None else noise
        how = {"delta": self.delta, "sample_rate": self.sample_rate, "neighbouring": _RELATION}
        if method == PTR:
            plan = ptr_plan.num_steps_for(epsilon, settings=self.settings(noise), accountant=accountant, **how)
        else:
            plan = calibrate.num_steps_for(epsilon, noise_multiplier=noise, accountant=accountant, **how)
        return plan.num_steps, plan.epsilon.upper

    def noise(self, method, epsilon, num_steps):
        """The least noise multiplier with which so many steps keep within ε, and what they spend (by PLDs)."""
        how = {"delta": self.delta, "sample_rate": self.sample_rate, "num_steps": num_steps, "neighbouring": _RELATION}
        if method == PTR:
            rest = {"scale_ratio": self.laplace_scale, "test_failure": self.test_failure}
            plan = ptr_plan.noise_multiplier_for(epsilon, sensitivity_bound=self.bound, **rest, **how)
            return plan.settings.noise_multiplier, plan.epsilon.upper
        found = calibrate.noise_multiplier_for(epsilon, **how)
        return found.noise_multiplier, found.epsilon.upper


def plan_cell(settings, *, streams):
    """What each method may do at one ε, a row each: a cell of a sweep, since the searches take seconds.

    Args: settings — a dict: ``block`` (the arguments of :class:`Block`), ``epsilon``, ``comparisons`` (of
        :data:`COMPARISONS`), ``more_steps`` (numbers of steps for ``best``, beside those of the two methods as
        printed),  ``methods`` (of :data:`METHODS`).
    Returns: rows ``block``, ``epsilon``, ``comparison``, ``accountant``, ``method``, ``noise_multiplier``, ``steps``,
        ``spent`` (ε of these steps, by that accountant).
    """
    block, epsilon = Block(**settings["block"]), settings["epsilon"]
    wanted = [checks.choice("comparisons", c, COMPARISONS) for c in settings.get("comparisons", COMPARISONS)]
    methods = [checks.choice("methods", m, METHODS) for m in settings.get("methods", (GAUSSIAN, PTR))]
    rows, at = [], {"block": block.name, "epsilon": epsilon}

    def add(comparison, method, noise, steps, spent, accountant="pld"):
        how = {"comparison": comparison, "accountant": accountant, "method": method}
        rows.append({**at, **how, "noise_multiplier": noise, "steps": steps, "spent": spent})

    most = {}
    for accountant in ACCOUNTANTS:
        for method in methods:
            steps, spent = block.num_steps(method, epsilon, accountant=accountant)
            add("printed", method, block.printed_noise(method), steps, spent, accountant)
            most.setdefault(method, steps)
    found = {(m, most[m]): (block.printed_noise(m), rows[methods.index(m)]["spent"]) for m in methods}
    if {GAUSSIAN, PTR} <= set(methods) and most[PTR]:
        tried = sorted({most[PTR], most[GAUSSIAN], *settings.get("more_steps", ())} - {0})
        for comparison in wanted:
            for method in methods if comparison != "printed" else ():
                for steps in [most[PTR]] if comparison == "aligned" else tried:
                    key = (GAUSSIAN if method == DPSGD else method, steps)  # one record moves both sums by as much
                    if key not in found:
                        try:
                            found[key] = block.noise(method, epsilon, steps)
                        except ValueError as error:
                            if comparison == "aligned" or "spend by themselves" not in str(error):
                                raise
                            continue  # so many noisy tests alone spend more than ε
                    add(comparison, method, found[key][0], steps, found[key][1])
    return rows


def trainings(block, plans, *, conditions, seeds, comparisons=COMPARISONS):
    """Cells of :func:`privrob.learn.cells.train_cell`: one training a method, noise, condition and seed, read at every
    number of steps that a plan asks for.

    Args: plans — rows of :func:`plan_cell` of this block, as a DataFrame;  conditions — pairs (kind of
        :data:`privrob.learn.corruption.KINDS`, rate);
        block — :class:`Block`;  seeds — one training each;  comparisons — which.
    """
    plans = plans[(plans["block"] == block.name) & plans["comparison"].isin(list(comparisons))]
    if len(plans) and not (plans["steps"] > 0).any():
        few = sorted(set(plans["epsilon"]))
        raise ValueError(f"epsilons of {block.name!r} must pay for at least one step of a method, got {few}")
    plans, work, whole = plans[plans["steps"] > 0], [], {}
    if (batch := block.cell.get("batch_size", 0)) > 512:  # trainings that run together take a batch in one portion
        whole = {"physical_batch_size": 2 * batch}
    for (method, noise), group in plans.groupby(["method", "noise_multiplier"], sort=False):
        read_at = sorted({int(t) for t in group["steps"]})
        for kind, rate in conditions:
            what = {"corruption": kind if rate else "none", "corruption_rate": float(rate)}
            for seed in seeds:
                how = {"max_grad_norm": block.max_grad_norm, "noise_multiplier": float(noise), "seed": seed}
                how |= {"num_steps": read_at[-1], "evaluate_at": read_at[:-1], "name": method, **block.release(method)}
                work.append(("privrob.learn.cells:train_cell", {**whole, **block.cell, **how, **what}))
    return work


def readings(rows, plans):
    """The accuracy of every plan under every condition and seed that was trained.

    Args: rows — of the trainings' sweep, with the settings ``name``, ``noise_multiplier``, ``corruption``,
        ``corruption_rate``, ``seed``, and ``block``;  plans — rows of :func:`plan_cell`.
    Returns: DataFrame: the columns of the plans, ``corruption``, ``corruption_rate``, ``seed``, ``test_accuracy``.
    """
    own = ["block", "name", "noise_multiplier", "corruption", "corruption_rate", "seed", "step", "test_accuracy"]
    seen = rows[own].rename(columns={"name": "method", "step": "steps"})
    return plans.merge(seen, on=["block", "method", "noise_multiplier", "steps"], how="inner")


def best_of(read):
    """Of the readings of ``best``, for each method and ε the number of steps with the highest mean accuracy.

    Args: read — rows of the trainings, as a DataFrame.
    """
    at = ["block", "epsilon", "corruption", "corruption_rate", "method"]
    best = read[read["comparison"] == "best"]
    mean = best.groupby([*at, "steps"])["test_accuracy"].transform("mean")
    best = best.assign(mean=mean).sort_values("mean", ascending=False)
    first = best.groupby([*at, "seed"], sort=False).head(1)
    return first.drop(columns="mean")


def differences(read, *, num_test, method=PTR, other=GAUSSIAN):
    """Accuracies of two methods and the first less the second, paired by seed; a row each comparison and condition.

    The standard error is that of the seeds' differences; with one seed that of two independent counts of the test set.

    Args: read — rows of the trainings, as a DataFrame;  method, other — the two;  num_test — test records.
    Returns: DataFrame: block, epsilon, comparison, accountant, corruption, corruption_rate, both accuracies,
        ``difference``, ``error``, ``seeds``, ``wins`` (seeds in which the first is better).
    """
    import pandas as pd

    read = pd.concat([read[read["comparison"] != "best"], best_of(read)])
    at = ["block", "epsilon", "comparison", "accountant", "corruption", "corruption_rate"]
    columns, rows = [*at, method, other, "difference", "error", "seeds", "wins"], []
    for key, group in read.groupby(at, sort=False):
        sides = [group[group["method"] == m].set_index("seed")["test_accuracy"] for m in (method, other)]
        both = pd.concat(sides, axis=1, keys=[method, other]).dropna()
        if both.empty:
            continue
        gap, mean = both[method] - both[other], both.mean()
        error = float(gap.std() / math.sqrt(len(gap)))
        if len(gap) == 1:
            error = math.sqrt(sum(p * (1 - p) for p in mean) / num_test)
        row = dict(zip(at, key)) | {method: mean[method], other: mean[other], "difference": gap.mean(), "error": error}
        rows.append(row | {"seeds": len(gap), "wins": int((gap > 0).sum())})
    return pd.DataFrame(rows, columns=columns)


def kinds(name, given):
    """Kinds of corruption and their rates, checked. Args: name — of the parameter;  given — {kind: [rate, …]}."""
    if not given:
        raise ValueError(f"{name} must hold at least one kind of corruption with its rates, got none")
    for kind, rates in given.items():
        checks.choice(f"a kind in {name}", kind, corruption.KINDS)
        if not isinstance(rates, (list, tuple)) or not rates:
            raise ValueError(f"{name} must hold a list of rates for {kind!r}, got {rates!r}")
        for rate in rates:
            checks.probability(f"a rate of {kind!r} in {name}", rate)
    return given


def claim_id(table, block, kind, rate, epsilon):
    """Of the claim that holds a pair of a table. Args: table — its number;  block — its name;  rate, epsilon — of the
    pair;  kind — of corruption (``label`` at rate 0 is the clean one).
    """
    budget = f"{epsilon:g}".replace(".", "_")
    return f"ptr/table_{table}_{block}_{kind}_{round(100 * rate)}_eps{budget}"


_IN_ID = re.compile(r"ptr/table_(\d)_(\w+?)_(label|feature|gradient|targeted_label|gradient_sign)_(\d+)_eps([\d_]+)$")
_IN_TEXT = re.compile(r"(TSGD\+Gaussian|TSGD\+PTR|DP-SGD) ([\d.]+) %")


def printed(claims):
    """The printed accuracies that the claims hold, a row each pair.

    Args: claims — dict of :class:`privrob.suite.claims.Claim`.
    Returns: DataFrame: claim, table, block, corruption, corruption_rate, epsilon, the methods' accuracies in percent,
        ``difference`` as printed, in points.
    """
    import pandas as pd

    rows = []
    for name, claim in claims.items():
        if not (found := _IN_ID.match(name)):
            continue
        table, block, kind, rate, budget = found.groups()
        row = {"claim": name, "table": int(table), "block": block, "corruption": kind}
        row |= {"corruption_rate": int(rate) / 100, "epsilon": float(budget.replace("_", "."))}
        row |= {method: float(value) for method, value in _IN_TEXT.findall(claim.text)}
        rows.append(row | {"difference": claim.paper})
    return pd.DataFrame(rows)


def beside(found, told, *, epsilons, other=GAUSSIAN, accountant="pld"):
    """The printed pairs with ours beside them.

    Args: found — of :func:`differences`;  accountant — whose trainings;  told — of :func:`printed`;  epsilons — {block:
        what was trained}: the first,
        second, … stand beside the first, second, … printed ε;  other — the method that TSGD+PTR is compared with.
    Returns: DataFrame, a row each printed pair: the columns of ``told``, ``epsilon_here``, accuracies ``ours`` and
        ``other_ours`` (of ``printed``), and of each comparison ``<name>``, ``<name>_error`` and ``<name>_wins`` in
        points; NaN where nothing was trained.
    """
    import pandas as pd

    rows = []
    for _, pair in told.iterrows():
        row = pair.to_dict() | {"epsilon_here": math.nan, "ours": math.nan, "other_ours": math.nan}
        row |= {f"{name}{part}": math.nan for name in COMPARISONS for part in ("", "_error", "_wins", "_seeds")}
        places = sorted(told.loc[told["block"] == pair["block"], "epsilon"].unique()).index(pair["epsilon"])
        trained = sorted(epsilons.get(pair["block"], ()))
        if places < len(trained):
            row["epsilon_here"] = trained[places]
            kind = pair["corruption"] if pair["corruption_rate"] else "none"
            at = (found["block"] == pair["block"]) & (found["epsilon"] == trained[places])
            at &= (found["corruption"] == kind) & ((found["corruption_rate"] - pair["corruption_rate"]).abs() < 1e-9)
            for _, ours in found[at & (found["accountant"] == accountant)].iterrows():
                name = ours["comparison"]
                row |= {name: 100 * ours["difference"], f"{name}_error": 100 * ours["error"]}
                row |= {f"{name}_wins": ours["wins"], f"{name}_seeds": ours["seeds"]}
                if name == "printed":
                    row |= {"ours": 100 * ours[PTR], "other_ours": 100 * ours[other]}
        rows.append(row)
    return pd.DataFrame(rows)


def in_layout(table, *, other=GAUSSIAN):
    """The table of :func:`beside` as Markdown, in the document's layout: printed / ours, in percent and points."""

    def pair(theirs, ours):
        return f"{theirs:.2f} / " + ("–" if math.isnan(ours) else f"{ours:.2f}")

    def gap(value, error):
        return "–" if math.isnan(value) else f"{value:+.2f} ± {error:.2f}"

    head = ["data", "corruption", "ε", f"{other}: printed / ours", f"{PTR}: printed / ours", "difference, printed"]
    head += COMPARISONS.values()
    lines = [head, ["---"] * len(head)]
    for row in table.to_dict("records"):
        budget = f"{row['epsilon']:g}"
        if not math.isnan(row["epsilon_here"]) and row["epsilon_here"] != row["epsilon"]:
            budget += f" (ours: {row['epsilon_here']:g})"
        line = [
            datasets.title(row["block"]),
            f"{row['corruption']} {row['corruption_rate']:g}".replace("_", " "),
            budget,
        ]
        line += [pair(row[other], row["other_ours"]), pair(row[PTR], row["ours"]), f"{row['difference']:+.2f}"]
        lines.append(line + [gap(row[name], row[f"{name}_error"]) for name in COMPARISONS])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw(ax, table, *, other=GAUSSIAN):
    """The differences of :func:`beside`, a line each pair that was trained: ours filled with two standard errors, in
    the three comparisons, and the printed ones hollow. Returns the number of lines.

    Args: ax — of Matplotlib;  table — of :func:`beside`;  other — the method compared with.
    """
    shown = table[table["printed"].notna()].reset_index(drop=True)
    for offset, (name, words), look in zip((-0.22, 0.0, 0.22), COMPARISONS.items(), "osD", strict=True):
        how, tried = {"fmt": look, "markersize": 5, "capsize": 2, "label": words}, shown[shown[name].notna()]
        ax.errorbar(tried[name], tried.index + offset, xerr=2 * tried[f"{name}_error"], **how)
    hollow = {"linestyle": "none", "marker": "o", "markersize": 9, "mfc": "none", "mec": "black"}
    ax.plot(shown["difference"], shown.index, **hollow, label="printed table")
    kinds = [f"{r.corruption.replace('_', ' ')} {r.corruption_rate:g}" for r in shown.itertuples()]
    names = [f"{datasets.title(r.block)}, {k}, ε = {r.epsilon_here:g}" for r, k in zip(shown.itertuples(), kinds)]
    ax.set(yticks=shown.index, yticklabels=names)
    ax.set(xlabel=f"accuracy of {PTR} less {other}, points of the test set")
    ax.axvline(0, color="black", linewidth=0.8)
    ax.invert_yaxis()
    return len(shown)


def spent_cell(settings, *, streams):
    """ε after numbers of steps: a cell of a sweep.

    Args: settings — a dict: ``block`` (the arguments of :class:`Block`), ``method``, ``noise_multiplier``, ``steps`` (a
        list).
    Returns: rows ``block``, ``method``, ``noise_multiplier``, ``steps``, ``epsilon`` (upper, by PLDs).
    """
    block, method, noise = Block(**settings["block"]), settings["method"], settings["noise_multiplier"]
    how = {"delta": block.delta, "neighbouring": _RELATION, "sample_rate": block.sample_rate}
    if method == PTR:
        spent = ptr_plan.spender("pld", settings=block.settings(noise), **how)
    else:

        def spent(steps):
            return pld.sampled_gaussian(noise_multiplier=noise, num_steps=steps, **how)

    at = {"block": block.name, "method": method, "noise_multiplier": noise}
    return [{**at, "steps": steps, "epsilon": spent(steps).upper} for steps in settings["steps"]]
