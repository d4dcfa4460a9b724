"""StoBatch and its baselines on one data set: the trainings of Section 4 as cells that several notebooks read.

Whoever asks for the same :class:`Plan` gets the same cells, so that a training is done once, with all its evaluations.
Every row says ``method``, ``epsilon`` (the ε asked for: of StoBatch and AdLM the one they claim), ``ablation`` and
``seed``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from privrob import checks
from privrob.accounting import functional_budget
from privrob.learn import attacked
from privrob.learn.baselines import cells as baselines
from privrob.learn.stobatch import cells as stobatch
from privrob.robust import adversarial

CELL = "privrob.learn.comparison:cell"
NOISES = {"shared": "StoBatch", "independent": "StoBatch, independent"}
_PRIVATE = {"optimizer": "sgd", "learning_rate": 1.0, "max_grad_norm": 1.0}
PRIVATE = {
    "DP-SGD": {"method": "dpsgd", **_PRIVATE},
    "AdLM": {"method": "adlm", "variant": "as_printed", "nominal_batch_size": 1800},
    "SecureSGD": {"method": "securesgd", **_PRIVATE},
    "SecureSGD-AGM": {"method": "securesgd_agm", **_PRIVATE},
}
PUBLIC = {
    "PixelDP": {"method": "pixeldp", "attack_bound": 0.1},
    "Adversarial training": {"method": "kurakin", "attack_radius": 0.6},
    "No defence": {"method": "kurakin", "adversarial_batch_size": 0},
}
RELEASED = "SecureSGD, as released"
NOISY = ("PixelDP", "SecureSGD", "SecureSGD-AGM", RELEASED)
ABLATIONS = {
    "one attack": {"attacks": ("ifgsm",)},
    "one radius": {"random_radius": False},
    "no adversarial batch": {"adversarial_weight": 0.0},
    "twice the noise": {},
}
CERTIFICATES = ("sound", "as_printed", "as_released")
RELEASES = ("2020-06", "2020-09")


def cell(settings, *, streams, scratch=None):
    """A training of StoBatch or of a baseline, with the plan's names in every row.

    Args: settings — ``of`` ("stobatch" or "baselines"), ``dataset``, ``about`` (columns), ``training`` (the settings of
        that package's ``train_cell``), ``seed``.
    """
    train = {"stobatch": stobatch, "baselines": baselines}[
        checks.choice("of", settings["of"], ("stobatch", "baselines"))
    ]
    rows = train.train_cell(settings["training"], streams=streams, scratch=scratch)
    return [row | settings["about"] | {"seed": settings["seed"]} for row in rows]


cell.data = lambda settings: attacked.fingerprint(settings["training"])
cell.resumes = True


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, and how it is attacked and certified.

    Paper: stobatch, Section 4 (baselines, MNIST), Appendix P (MNIST), Figures 2, 4 and 6.
    Args: dataset, num_records, num_test;  epsilons — claimed, of private methods;  tight_epsilon — of the ablations;
        certificate_epsilon — where certificates are read;  noises — of StoBatch, of ``NOISES``;
        num_steps, batch_size, train_attack_steps, learning_rate — of StoBatch, whose noise is always that of the
        document's batch of 2,499;  baseline_steps, baseline_batch — of all others;  delta — of DP-SGD's;
        attack_kinds, attack_radii, test_attack_steps, eot_draws — of the attacks;
        num_certified, num_draws, certificate_radii, failure_prob — of the certificates;  seeds;  device.
    """

    dataset: str
    num_records: int
    num_test: int
    epsilons: tuple
    tight_epsilon: float
    certificate_epsilon: float
    noises: tuple
    num_steps: int
    batch_size: int
    train_attack_steps: int
    learning_rate: float
    baseline_steps: int
    baseline_batch: int
    attack_kinds: tuple
    attack_radii: tuple
    test_attack_steps: int
    eot_draws: int
    num_certified: int
    num_draws: int
    certificate_radii: tuple
    failure_prob: float
    seeds: tuple
    delta: float = 1e-5
    device: str = "cpu"

    def __post_init__(self):
        for name in ("epsilons", "noises", "attack_kinds", "attack_radii", "certificate_radii", "seeds"):
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)) or not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be a list of different values, at least one, got {name}={values!r}")
        for value in self.noises:
            checks.choice("noises", value, NOISES)
        for value in self.attack_kinds:
            checks.choice("attack_kinds", value, adversarial.KINDS)
        for name in ("tight_epsilon", "certificate_epsilon"):
            if getattr(self, name) not in self.epsilons:
                value = getattr(self, name)
                raise ValueError(f"{name} must be one of epsilons {list(self.epsilons)}, got {name}={value!r}")
        for value in self.epsilons:
            functional_budget.split("mnist", value)  # refuses what is below the rule
        if 2 * self.batch_size > self.num_records:
            most = self.num_records // 2
            raise ValueError(
                f"batch_size must be at most {most}, half of num_records, got batch_size={self.batch_size}"
            )
        checks.integer("num_test", self.num_test, low=1)

    def comparison(self):
        """All methods at every ε, and those without one: (path, settings) pairs."""
        work = []
        for seed in self.seeds:
            for epsilon in self.epsilons:
                work += [self.stobatch(epsilon, noise, seed) for noise in self.noises]
                work += [self.baseline(name, epsilon, seed) for name in PRIVATE]
            work += [self.baseline(name, None, seed) for name in PUBLIC]
        return work

    def certified(self):
        """Those of :meth:`comparison` that have certificates, and SecureSGD as released."""
        work = []
        for seed in self.seeds:
            work += [self.stobatch(self.certificate_epsilon, noise, seed) for noise in self.noises]
            work += [self.baseline(name, self.certificate_epsilon, seed) for name in NOISY[1:]]
            work.append(self.baseline("PixelDP", None, seed))
        return work

    def ablations(self):
        """StoBatch at the tight ε with something else: see ``ABLATIONS``."""
        noise = "shared" if "shared" in self.noises else self.noises[0]
        return [self.stobatch(self.tight_epsilon, noise, seed, name) for seed in self.seeds for name in ABLATIONS]

    def stobatch(self, epsilon, noise, seed, ablation=None):
        """A cell of StoBatch.

        "twice the noise" is the noise of ε₁/2, at the same weights of the loss: that of the earlier bound 2βd in the
        place of d(β + 2), but for 1 %; and, up to the first layer's scale, that of images in [0, 1].
        """
        training = {
            "network": "mnist",
            "noise": noise,
            "num_steps": self.num_steps,
            "batch_size": self.batch_size,
            "nominal_batch_size": functional_budget.configuration("mnist").batch_size,
            "attack_steps": self.train_attack_steps,
            "learning_rate": self.learning_rate,
            "epsilon": epsilon,
            "budget_rule": "mnist",
            "surrogate_statistics": None,
            **self._evaluation(("surrogate", "fixed", "eot") if ablation is None else ("surrogate", "fixed")),
            **ABLATIONS.get(ablation, {}),
        }
        if ablation == "twice the noise":
            known = functional_budget.split("mnist", epsilon)
            own = {"epsilon_features": known.epsilon_features / 2, "epsilon_labels": known.epsilon_labels}
            training = {k: v for k, v in training.items() if k not in ("epsilon", "budget_rule")} | own
        if ablation is None and epsilon == self.certificate_epsilon:
            training |= self._certificates() | {"certificates": CERTIFICATES, "certificate_release": RELEASES}
            if noise == "shared":  # also where the stored noise is attacked
                training["certificate_attack_models"] = ("surrogate", "fixed")
        return self._cell("stobatch", training, NOISES[noise], epsilon, seed, ablation)

    def baseline(self, name, epsilon, seed):
        """A cell of the baseline ``name``, of ``PRIVATE``, ``PUBLIC`` or ``RELEASED``."""
        own = PRIVATE["SecureSGD"] | {"variant": "as_released"} if name == RELEASED else (PRIVATE | PUBLIC)[name]
        own = own | {"num_steps": self.baseline_steps, "batch_size": self.baseline_batch, "delta": self.delta}
        if epsilon is not None:
            own["epsilon"] = epsilon
        if name == RELEASED:
            models = ("surrogate", "fixed", "eot")
        else:
            models = ("surrogate", "eot") if name in NOISY else ("surrogate",)
        own |= self._evaluation(models)
        if name in NOISY and epsilon in (None, self.certificate_epsilon):
            own |= self._certificates()
        else:
            own["certificate_inputs"] = ()
        return self._cell("baselines", own, name, epsilon, seed, None)

    def _evaluation(self, models):
        return {
            "attack_kinds": self.attack_kinds,
            "attack_radii": self.attack_radii,
            "attack_models": models,
            "attack_test_steps": (self.test_attack_steps,),
            "eot_draws": self.eot_draws,
        }

    def _certificates(self):
        return {
            "certificate_radii": self.certificate_radii,
            "certificate_inputs": ("clean", "attacked"),
            "certificate_attack_models": ("surrogate",),
            "num_certified": self.num_certified,
            "num_draws": self.num_draws,
            "failure_prob": self.failure_prob,
        }

    def _cell(self, of, training, method, epsilon, seed, ablation):
        data = {name: getattr(self, name) for name in ("dataset", "num_records", "num_test", "device")}
        about = {"method": method, "epsilon": epsilon, "ablation": ablation}
        own = {"of": of, "dataset": self.dataset, "about": about, "training": data | training, "seed": seed}
        return CELL, own


# ---------------------------------------------------------------------------------------------------------- the answers


def completed(rows):
    """Rows of attacks for every attacked model. Where a method has no noise, or none stored, attacks through it are
    those on the surrogate, and their rows are repeated.

    Args: rows — dicts of :func:`cell`;  Returns: the attack rows, those at clean images with radius 0 for each model.
    """
    attacks = [row for row in rows if row["row"] == "attack"]
    names = ("method", "epsilon", "ablation", "seed")
    there = {(tuple(row[n] for n in names), row["attack_model"]) for row in attacks}
    found = []
    for row in attacks:
        models = [row["attack_model"]]
        if row["attack_model"] in (None, "surrogate"):
            own = tuple(row[n] for n in names)
            others = [m for m in adversarial.ATTACK_MODELS if row["attack_model"] is None or (own, m) not in there]
            models = [m for m in models if m] + others
        found += [row | {"attack_model": m, "kind": row["kind"] or "clean"} for m in models]
    return found


# --------------------------------------------------------------------------------------------------------------- tests


def paired_test(ours, theirs):
    """Mean difference and the p-value of a two-tailed t-test on pairs; p is 1 where all pairs are equal, 0 where all
    differ by the same, NaN for a single pair.

    Paper: stobatch, Section 4 ("All statistical tests are 2-tail t-tests").
    Args: ours, theirs — accuracies, (k,) each.
    """
    gains = checks.array("ours", ours, ndim=1) - checks.array("theirs", theirs, ndim=1)
    if len(gains) < 2:
        return float(gains.mean()), math.nan
    spread = gains.std(ddof=1) / math.sqrt(len(gains))
    if spread == 0:
        return float(gains.mean()), 1.0 if gains.mean() == 0 else 0.0
    return float(gains.mean()), float(2 * stats.t.sf(abs(gains.mean()) / spread, len(gains) - 1))


def implied_spread(gain, p_value, *, num_pairs):
    """The standard deviation that pairs must have for a mean ``gain`` and a two-tailed p-value.

    Args: p_value — in (0, 1).
    Returns: in the unit of ``gain``; :func:`rounding_spread` is the least that counted accuracies can have.
    """
    num_pairs = checks.integer("num_pairs", num_pairs, low=2)
    checks.probability("p_value", p_value, allow_zero=False, allow_one=False)
    t = stats.t.isf(p_value / 2, num_pairs - 1)
    return float(abs(gain) * math.sqrt(num_pairs) / t)


def rounding_spread(step, *, num_pairs):
    """The least standard deviation, if not 0, of ``num_pairs`` numbers that are multiples of ``step``."""
    num_pairs = checks.integer("num_pairs", num_pairs, low=2)
    one_off = np.zeros(num_pairs)
    one_off[0] = checks.positive("step", step, finite=True)
    return float(one_off.std(ddof=1))
