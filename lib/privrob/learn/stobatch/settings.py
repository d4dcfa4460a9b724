"""Every choice of one StoBatch training, checked at once, and the switches that each row of results repeats."""

from __future__ import annotations

from dataclasses import dataclass, fields

from privrob import checks
from privrob.accounting import functional_budget
from privrob.learn import descent
from privrob.learn.dpsgd import resolve_device
from privrob.learn.stobatch import networks

NOISES = ("shared", "independent", "none")
SOURCES = ("perturbed", "clean")
ATTACKS = ("fgsm", "ifgsm", "mim", "pgd")
PAIRINGS = ("next", "pairs")
OPTIMIZERS = ("adam", "sgd")
STATISTICS = ("settled", "running", "batch")
COLOURS = ("each", "same")
RECONSTRUCTIONS = ("as_released", "as_printed", "none")
LABEL_NOISES = ("sound", "as_printed", "as_released", "none")
LOSSES = ("sound", "as_printed")
QUERIES = ("fresh", "none")
SWITCHES = (
    "network",
    "noise",
    "colour_noise",
    "adversarial_source",
    "adversarial_weight",
    "attack_steps",
    "radius_high",
    "random_radius",
    "pairing",
    "reconstruction",
    "label_noise",
    "loss",
    "batch_norm_evaluation",
    "query_noise",
    "psi",
    "batch_size",
    "num_steps",
    "learning_rate",
)  # what a row repeats of the settings; `nominal_batch_size` and the ε columns come with the noise


@dataclass(frozen=True)
class StoBatchSettings:
    """One training of Algorithm 1 or 4.

    Paper: stobatch, Algorithm 1 and Algorithm 4 (inputs), Appendix P (values).
    Args: network, network_options — see :func:`privrob.learn.stobatch.networks.build`;
        num_steps — T;  batch_size — m, records of one fixed batch; a step has two;
        nominal_batch_size — m in the noise scales and in what is claimed (None: ``batch_size``): a smaller study with
        the document's noise keeps 2,499 here;
        epsilon, budget_rule — the claimed total and the data set whose rule of Appendix P splits it, or instead
        epsilon_features, epsilon_labels — ε₁ and ε₂;
        noise — ``shared``: the single draw of Algorithm 1, the same for every record; ``independent``: one draw a
        record, the same at every step; ``none``: none on inputs and hidden layer;
        colour_noise — ``same``: one value for all colours of a pixel, as released;
        label_noise — χ₃: ``sound`` (one vector a class), ``as_printed`` (one for all), ``as_released``, ``none``;
        reconstruction — the objective of θ₁: ``as_released`` (absolute values, bounded below), ``as_printed`` (linear
        in θ₁), ``none`` (θ₁ stays as drawn);  loss — ``sound``, or ``as_printed`` (Section 3.2's expansion);
        adversarial_weight — ξ; 0: no adversarial batch at all;
        adversarial_source — ``perturbed``: crafted from x̄ and trained on as they are; ``clean``: crafted from x through
        the noise, trained on without input noise, as released;
        attacks, attack_steps — the ensemble A, and T_μ;  radius_high — μ_t is uniform on (0, this];
        random_radius — False: μ_t is always ``radius_high``;
        pairing — ``next``: at step t batch t is benign and batch t + 1 adversarial; ``pairs``: batches 2p and 2p + 1
        belong together and keep their roles, as in Algorithm 4;
        learning_rate, optimizer, momentum — for θ₂;  first_learning_rate, first_optimizer — for θ₁ (None: the same);
        weight_decay — λ of (λ/2)‖W‖² on dense layers of θ₂;
        batch_norm_evaluation — batch norm in what is deployed. ``settled``: statistics of the training batches through
        their noise, with the weights as they are now; ``running``: averages kept along the way, which lag behind the
        weights (an offset of noise is many times the signal, so a small lag hides it); ``batch``: those of the images
        that are asked about, as released;
        psi — ψ of Appendix N: noise is redrawn with 1/ψ of its scale around the stored draw;
        query_noise — independent noise only, of a query: ``fresh`` (a new draw each) or ``none``;
        micro_batch_size — at most so many records at once in memory (None: all). The noise stays as it is, batch norm
        sees each portion by itself;
        evaluate_every, evaluate_at — steps of rows besides the last;
        device — "cpu", "cuda" or "cuda:<number>".
    """

    network: str
    num_steps: int
    batch_size: int
    epsilon: float | None = None
    budget_rule: str | None = None
    epsilon_features: float | None = None
    epsilon_labels: float | None = None
    nominal_batch_size: int | None = None
    network_options: dict | None = None
    noise: str = "shared"
    colour_noise: str = "each"
    label_noise: str = "sound"
    reconstruction: str = "as_released"
    loss: str = "sound"
    adversarial_weight: float = 1.0
    adversarial_source: str = "perturbed"
    attacks: tuple = ("ifgsm", "mim", "pgd")
    attack_steps: int = 10
    radius_high: float = 1.0
    random_radius: bool = True
    pairing: str = "next"
    learning_rate: float = 1e-4
    optimizer: str = "adam"
    momentum: float = 0.0
    first_learning_rate: float | None = None
    first_optimizer: str | None = None
    weight_decay: float = 0.0
    batch_norm_evaluation: str = "settled"
    psi: float = 2.0
    query_noise: str = "fresh"
    micro_batch_size: int | None = None
    evaluate_every: int | None = None
    evaluate_at: tuple = ()
    device: str = "cpu"

    def __post_init__(self):
        checks.choice("network", self.network, networks.NETWORKS)
        if self.network_options is not None and not isinstance(self.network_options, dict):
            raise TypeError(f"network_options must be a dict or None, got {type(self.network_options).__name__}")
        for name, allowed in _CHOICES.items():
            checks.choice(name, getattr(self, name), allowed)
        checks.integer("num_steps", self.num_steps, low=0)
        checks.integer("batch_size", self.batch_size, low=2)
        checks.integer("attack_steps", self.attack_steps, low=1)
        for name in ("nominal_batch_size", "micro_batch_size", "evaluate_every"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), low=2 if name == "micro_batch_size" else 1)
        checks.positive("radius_high", self.radius_high, finite=True)
        if not isinstance(self.random_radius, bool):
            raise TypeError(f"random_radius must be True or False, got random_radius={self.random_radius!r}")
        checks.positive("psi", self.psi, finite=True)
        for name in ("adversarial_weight", "weight_decay", "learning_rate"):
            checks.nonnegative(name, getattr(self, name), finite=True)
        if self.first_learning_rate is not None:
            checks.nonnegative("first_learning_rate", self.first_learning_rate, finite=True)
        if self.first_optimizer is not None:
            checks.choice("first_optimizer", self.first_optimizer, OPTIMIZERS)
        checks.probability("momentum", self.momentum, allow_one=False)
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum must be 0 for optimizer {self.optimizer!r}, got momentum={self.momentum!r}")
        self._check_attacks()
        self._check_budget()
        if not isinstance(self.evaluate_at, (tuple, list)):
            raise TypeError(f"evaluate_at must be a list of steps, got evaluate_at={self.evaluate_at!r}")
        steps = tuple(checks.integer("evaluate_at", t, low=1) for t in self.evaluate_at)
        object.__setattr__(self, "evaluate_at", steps)
        resolve_device(self.device)

    def _check_attacks(self):
        if not isinstance(self.attacks, (tuple, list)) or not self.attacks:
            raise ValueError(f"attacks must be a list of at least one of {list(ATTACKS)}, got attacks={self.attacks!r}")
        object.__setattr__(self, "attacks", tuple(checks.choice("attacks", a, ATTACKS) for a in self.attacks))
        if self.adversarial and 2 * len(self.attacks) > self.batch_size:  # batch norm needs two
            least = 2 * len(self.attacks)
            raise ValueError(f"batch_size must be at least {least}, two records an attack, got {self.batch_size}")

    def _check_budget(self):
        total, parts = (self.epsilon, self.budget_rule), (self.epsilon_features, self.epsilon_labels)
        if (None in total or parts != (None, None)) and (None in parts or total != (None, None)):
            raise ValueError(
                "settings must have either epsilon and budget_rule or epsilon_features and epsilon_labels, got "
                f"epsilon={self.epsilon!r}, budget_rule={self.budget_rule!r}, "
                f"epsilon_features={self.epsilon_features!r}, epsilon_labels={self.epsilon_labels!r}"
            )
        if self.budget_rule is not None:
            functional_budget.split(self.budget_rule, self.epsilon)
        for name in ("epsilon_features", "epsilon_labels"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name), finite=True)

    @property
    def adversarial(self):
        """Whether there is an adversarial batch at all."""
        return self.adversarial_weight > 0

    @property
    def noise_batch_size(self):
        """m of the noise scales."""
        return self.batch_size if self.nominal_batch_size is None else self.nominal_batch_size

    @property
    def descents(self):
        """((optimizer, momentum, learning rate) of θ₁, the same of θ₂)."""
        first = self.optimizer if self.first_optimizer is None else self.first_optimizer
        rate = self.learning_rate if self.first_learning_rate is None else self.first_learning_rate
        momentum = self.momentum if first == "sgd" else 0.0
        return (first, momentum, rate), (self.optimizer, self.momentum, self.learning_rate)

    def network_of(self, *, in_shape, num_classes, generator):
        """The network with fresh weights."""
        options = self.network_options or {}
        return networks.build(self.network, in_shape=in_shape, num_classes=num_classes, generator=generator, **options)

    def budget(self, network):
        """Noise scales and claims for this network, as a :class:`privrob.accounting.functional_budget.Budget`."""
        shape = network.geometry
        about = {
            "in_shape": network.in_shape,
            "batch_size": self.noise_batch_size,
            "kernel_area": shape.kernel_area,
            "map_neurons": shape.map_neurons,
            "channels": network.in_shape[0],
            "num_hidden": shape.num_hidden,
        }
        if network.geometry.num_maps == 1:  # a dense first layer reads all channels with its d inputs
            about["channels"] = 1
        if self.budget_rule is not None:
            return functional_budget.split(self.budget_rule, self.epsilon, **about)
        return functional_budget.Budget(
            epsilon_features=self.epsilon_features, epsilon_labels=self.epsilon_labels, **about
        )

    def check_records(self, num_records):
        """Whether so many records make two batches; returns the number of batches, N/m rounded down."""
        if 2 * self.batch_size > num_records:
            raise ValueError(
                f"batch_size must be at most half of the {num_records} records (a step takes two batches), got "
                f"batch_size={self.batch_size}"
            )
        return num_records // self.batch_size

    def switches(self):
        """What every row repeats."""
        return {name: getattr(self, name) for name in SWITCHES} | {"attacks": "+".join(self.attacks)}


_CHOICES = {
    "noise": NOISES,
    "colour_noise": COLOURS,
    "label_noise": LABEL_NOISES,
    "reconstruction": RECONSTRUCTIONS,
    "loss": LOSSES,
    "adversarial_source": SOURCES,
    "pairing": PAIRINGS,
    "optimizer": OPTIMIZERS,
    "batch_norm_evaluation": STATISTICS,
    "query_noise": QUERIES,
}
NAMES = tuple(field.name for field in fields(StoBatchSettings))
assert set(OPTIMIZERS) <= set(descent.OPTIMIZERS)
