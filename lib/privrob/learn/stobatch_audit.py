r"""What StoBatch's privacy is worth: attacks on what its lemmas and theorems call private, with bounds from counts.

Every attack is a fixed event on what one adversary sees. It is counted under a data set D and under a neighbour D′
(one record replaced, or one label), and Clopper–Pearson bounds on both rates give a lower bound on ε. Beside it stand
what the document claims for the same thing and the exact ε, so that no number is read without the other two.

:data:`ABOUT` says, attack by attack, what is seen, which item claims what of it, whether that is the item's own
adversary, and what was not attacked. :func:`~privrob.learn.stobatch_audit_cells.audit_cell` measures one of them, as a
cell of a sweep; the attacks are in :mod:`privrob.learn.stobatch_audit_inputs`, ``_labels``, ``_repairs`` and, on final
models, ``_model``.

Paper: stobatch, Lemmas 2–4, Theorems 1, 3, 4, Section 3.2, Appendices F, G, I, J.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from privrob import checks
from privrob.accounting.audit import epsilon_from_counts
from privrob.accounting.functional_budget import Budget

NOISES = ("shared", "independent")
ROUNDING = 1e-9  # two float64 computations of one number differ by less


@dataclass(frozen=True)
class About:
    """One attack in words, by ``title`` and ``item`` of the document: ``sees`` names item and adversary in one
    sentence, ``not_attacked`` what it leaves open.
    """

    title: str
    item: str
    sees: str
    not_attacked: str


ABOUT = {
    "A": About(
        "perturbed batch, one noise for all",
        "Lemma 3",
        "Sees the perturbed batch B̄ and knows one other record: the very object that Lemma 3 calls (ε₁/γx)-DP, so the "
        "lemma's own adversary, though B̄ is not published.",
        "adversaries who see only functions of B̄",
    ),
    "B": About(
        "one perturbed record, own noise",
        "Lemma 3",
        "Sees one record of B̄ with noise of its own, which is kinder than Algorithm 1: Lemma 3's own adversary under "
        "that reading.",
        "the literal shared draw (attack A)",
    ),
    "S1": About(
        "sum of one perturbed batch",
        "Appendix G, Results 1 and 3",
        "Sees Σx̄ of one batch only, the own adversary of Results 1 and 3, and of nothing else: training reads records, "
        "not sums.",
        "anything besides that sum",
    ),
    "S2": About(
        "sums of two batches, one noise",
        "Section 3.2, parallel composition",
        "Sees Σx̄ of two disjoint batches, which parallel composition (Section 3.2, Equation 28) prices as one: its own "
        "adversary.",
        "a single batch's sum (S1)",
    ),
    "S3": About(
        "sums of two batches, a noise each",
        "Section 3.2, parallel composition",
        "Sees the same two sums with a draw of χ₁ for each batch: the repaired form, and the same adversary.",
        "single records",
    ),
    "S4": About(
        "sum of one batch, noise in the model",
        "Appendix N",
        "Sees Σx̄ and the deployed model, which carries χ₁ to its users as Appendix N has it 'without affecting the "
        "DP': that sentence's own adversary if the model is handed out, not if it only answers queries.",
        "a server that keeps χ₁ to itself",
    ),
    "C": About(
        "one gradient of θ₁",
        "Theorem 1",
        "Sees one gradient ∂R̄/∂θ₁ and knows θ₁ and the other records: the gradient that Proof 3 calls private and "
        "that Algorithm 4 sends to the server, so Theorem 1's own adversary.",
        "secret θ₁, and batches with adversarial examples whose signs the adversary cannot know",
    ),
    "D": About(
        "label coefficients, one χ₃ for all classes",
        "Algorithm 1, line 1",
        "Sees the perturbed coefficients Σh y_k + χ₃ of all classes, called ε₂-DP by Proof 5, with the single χ₃ of "
        "length |h_π| that line 1 draws: the proof's own adversary on the algorithm as written.",
        "a χ₃ for each class, which Proof 5 uses (D2)",
    ),
    "D2": About(
        "label coefficients, a χ₃ for each class",
        "Lemma 4, Proof 5",
        "Sees the same coefficients once, with a χ₃ for each class: the own adversary of Lemma 4 and Proof 5.",
        "more than one step (T)",
    ),
    "T": About(
        "label coefficients of two steps",
        "Section 3.2, (1); Theorem 4",
        "Sees the coefficients of two steps and both hidden batches, called private 'across T training steps with a "
        "single draw': the own adversary of Section 3.2 (1).",
        "hidden batches that stay secret",
    ),
    "T2": About(
        "two steps, fresh χ₃",
        "Section 3.2, (1)",
        "Sees the same with χ₃ drawn anew at each step, which adds up to 2ε₂: the repaired form, the same adversary.",
        "lower layers' gradients (E)",
    ),
    "E": About(
        "gradient below the last layer",
        "Theorem 3",
        "Sees one gradient of L̄ by a weight below W_π and the hidden batch, both private according to Theorem 3 and "
        "Proof 5: the theorem's own adversary.",
        "final weights only",
    ),
    "F1": About(
        "one label query, final model",
        "Theorem 4; Section 1",
        "Sees one predicted label of the final model, as any user does: Theorem 4's own adversary and "
        "the deployed-model adversary of Section 1; θ₁ stays as drawn and no adversarial examples are used.",
        "natural data sets; other models",
    ),
    "F1m": About(
        "one label query, record in or out",
        "Theorem 4; Section 1",
        "Sees the same one label; D′ has another record in place of the canary, not only another label: Theorem 4's "
        "own adversary.",
        "natural data sets; other models",
    ),
    "F2": About(
        "one label query, own noise a record",
        "Theorem 4",
        "Sees one label of a model trained with noise of its own for each record, asked at the canary under fresh "
        "noise: Theorem 4's own adversary under the kinder reading.",
        "gradients; other queries than this one (F2c)",
    ),
    "F2c": About(
        "as F2, asked at the stored noisy copy",
        "Lemma 3, Theorem 4",
        "Sees one label of the same models at the canary's stored perturbed copy, which only somebody with B̄ can ask, "
        "and B̄ is what Lemma 3 calls private: not Theorem 4's adversary alone, but both items' together.",
        "outsiders",
    ),
    "F3": About(
        "one label query, all of Algorithm 1",
        "Theorem 4; Section 1",
        "Sees one label of a model trained by every line of Algorithm 1, adversarial batch and θ₁'s descent included: "
        "Theorem 4's own adversary.",
        "natural data sets; larger models",
    ),
    "R1": About(
        "repair: randomised response on labels",
        "none",
        "Sees all noisy labels, each kept with K-ary randomised response at ε₂: what StoBatch could use for labels.",
        "inputs",
    ),
    "R2": About(
        "repair: noise calibrated to a record",
        "none",
        "Sees a perturbed record whose noise has scale 2D/ε at the same claimed ε: Lemma 3 made true, same adversary.",
        "labels",
    ),
    "R3": About(
        "repair: DP-SGD at the same ε",
        "none",
        "Sees every noisy gradient of DP-SGD calibrated to the claimed ε at δ: more than Theorem 4's adversary sees.",
        "sampling, which the calibration does without",
    ),
}


@dataclass(frozen=True)
class Outcome:
    """How often an attack said D where it was D and where it was D′.

    ``hits_p`` of ``trials_p``, and ``hits_q`` of ``trials_q``.
    """

    hits_p: int
    trials_p: int
    hits_q: int
    trials_q: int


def best_threshold(scores_p, scores_q, *, delta, failure_prob, num_trials, num_thresholds=400):
    """The threshold above which a score's counts would prove most in ``num_trials``, from samples of its own.

    Halfway to the next sample above it: where the arms lie apart, it is in the middle of the gap.

    Args: scores_p, scores_q — where it is D and where it is D′, (n,) and (m,);  num_thresholds — quantiles that are
        tried.
    """
    p, q = np.sort(scores_p), np.sort(scores_q)
    tried = np.unique(np.quantile(np.concatenate([p, q]), np.linspace(0, 1, num_thresholds)))
    extreme = np.concatenate([p[-200:], q[-200:]])  # far tails decide where ε is large
    tried = np.unique(np.concatenate([tried, extreme]))
    hits = [np.floor(num_trials * (v.size - np.searchsorted(v, tried, side="right")) / v.size) for v in (p, q)]
    bounds = epsilon_from_counts(hits[0], num_trials, hits[1], num_trials, delta=delta, failure_prob=failure_prob)
    best = float(tried[int(np.argmax(bounds))])
    above = np.concatenate([v[np.searchsorted(v, best, side="right") :][:1] for v in (p, q)])
    return (best + float(above.min())) / 2 if above.size else best  # as far from the samples on both sides


def by_score(attack, *, num_trials, streams, delta, failure_prob):
    """Outcome of an attack by a score (``attack.scores(present, num_trials=, rng=)``), threshold found beforehand."""
    few = max(num_trials // 4, min(num_trials, 1000))
    design = [attack.scores(x, num_trials=few, rng=streams.numpy(f"design {x}")) for x in (True, False)]
    limits = {"delta": delta, "failure_prob": failure_prob, "num_trials": num_trials}
    threshold = best_threshold(*design, **limits)
    scores = [attack.scores(x, num_trials=num_trials, rng=streams.numpy(f"measure {x}")) for x in (True, False)]
    hits = [int((s > threshold).sum()) for s in scores]
    return Outcome(hits[0], num_trials, hits[1], num_trials)


def by_event(attack, *, num_trials, streams):
    """Outcome of an attack that says D or not (``attack.says(present, num_trials=, rng=)`` → how often)."""
    hits = [attack.says(x, num_trials=num_trials, rng=streams.numpy(f"measure {x}")) for x in (True, False)]
    return Outcome(hits[0], num_trials, hits[1], num_trials)


def row(name, outcome, *, claimed_epsilon, honest_epsilon, delta, failure_prob, **more):
    """One line of the audit: claimed, honest and audited ε, and how it was got.

    Args: name — of the attack;  outcome — :class:`Outcome`;  claimed_epsilon, honest_epsilon — as the attack states
        them; more — columns.
    """
    counts = outcome.hits_p, outcome.trials_p, outcome.hits_q, outcome.trials_q
    lower = epsilon_from_counts(*counts, delta=delta, failure_prob=failure_prob)
    return {
        "attack": name,
        "claimed_epsilon": claimed_epsilon,
        "honest_epsilon": honest_epsilon,
        "epsilon_lower": float(lower),
        "delta": delta,
        "failure_prob": failure_prob,
        "hits_p": outcome.hits_p,
        "trials_p": outcome.trials_p,
        "hits_q": outcome.hits_q,
        "trials_q": outcome.trials_q,
    } | more


def of_settings(cls, settings):
    """A dataclass from those of a cell's settings that are its fields."""
    return cls(**{f.name: settings[f.name] for f in fields(cls) if f.name in settings})


def measured(name, attack, *, num_trials, streams, failure_prob, delta=0.0):
    """The row of one attack: by its event if it has one, else by its score.

    Args: name — one of :data:`ABOUT`;  attack — with ``says`` or ``scores``.
    """
    checks.choice("name", name, ABOUT)
    num_trials = checks.integer("num_trials", num_trials, low=4)
    failure_prob = checks.probability("failure_prob", failure_prob, allow_zero=False, allow_one=False)
    if hasattr(attack, "says"):
        outcome = by_event(attack, num_trials=num_trials, streams=streams)
    else:
        limits = {"delta": delta, "failure_prob": failure_prob}
        outcome = by_score(attack, num_trials=num_trials, streams=streams, **limits)
    epsilons = {"claimed_epsilon": attack.claimed_epsilon, "honest_epsilon": attack.honest_epsilon}
    return row(name, outcome, **epsilons, delta=delta, failure_prob=failure_prob)


def dense_budget(epsilon, *, epsilon_labels, batch_size, num_inputs, num_features, num_hidden=256):
    """The claim split for a fully connected first layer of operator norm 1: ε₁ takes what ε₂ leaves.

    Paper: stobatch, Lemma 2, Appendix P (its rule, on a layer that reads all inputs).
    Args: epsilon_labels — ε₂;  num_inputs — d;  num_features — β;  num_hidden — units of the last hidden layer.
    """
    checks.real("epsilon", epsilon, low=epsilon_labels, open_low=True, open_high=True, hint="epsilon_labels is a part")
    shape = {"in_shape": (num_inputs,), "batch_size": batch_size, "num_hidden": num_hidden}
    shape |= {"kernel_area": num_inputs, "map_neurons": num_features}
    unit = Budget(epsilon_features=1.0, epsilon_labels=epsilon_labels, **shape)
    parts = 1 + 1 / unit.gamma_inputs + 1 / unit.gamma(1.0)
    return Budget(epsilon_features=(epsilon - epsilon_labels) / parts, epsilon_labels=epsilon_labels, **shape)


def in_pieces(num_trials, size):
    """Numbers of trials to do at once, ``size`` at most."""
    return [min(size, num_trials - i) for i in range(0, num_trials, size)]


def exactly(found, wanted, *, axis):
    """Whether arrays are equal up to rounding, along some axes.

    Args: found, wanted — of one shape;  axis — those axes.
    """
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    return (np.abs(found - wanted) < ROUNDING * scale).all(axis=axis)
