r"""The privacy budget that StoBatch claims, the noise that it buys, and what that noise is really worth.

StoBatch adds Laplace noise of scale :math:`b = \Delta_R/(m\varepsilon_1)` to every input, 2b to the first hidden layer,
and :math:`\Delta_{L2}/(m\varepsilon_2)` to the coefficients of the labels, and claims

.. math:: \varepsilon = \varepsilon_1 + \varepsilon_1/\gamma_x + \varepsilon_1/\gamma + \varepsilon_2, \qquad
    \gamma_x = \Delta_R/m, \quad \gamma = 2\Delta_R/(m\lVert\theta_1\rVert).

The claim is kept apart from what can be proved: every number of it is called ``claimed_*``. One record replaced by
another moves its image by up to 2D in l1. With noise drawn anew for each record that costs
:math:`2D/b = 2Dm\varepsilon_1/\Delta_R`; with one noise vector added to all records, as printed, differences of
perturbed records have no noise at all and the cost is infinite.

Orientation of the norm: the first layer is h = θ₁ᵀx with θ₁ of shape (inputs, neurons), and its l1 sensitivity per unit
of l1 change of x is the largest sum of absolute weights that leave *one input*, over all neurons that read it
(:func:`affine_norm`, :func:`convolution_norm`). The authors' release takes the largest singular value of the flattened
kernels at initialisation instead, about 25 times smaller for a convolution; ``Configuration.released_norm`` has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks


def affine_norm(theta):
    """The operator norm 1 → 1 of x ↦ θᵀx, θ (``theta``) of shape (inputs, neurons): the largest row sum of |θ|.

    Paper: stobatch, Lemma 3 and Section 3.1 ("the maximum 1-norm of θ₁'s columns").
    Printed: columns of θ₁.   Used: columns of the matrix that is applied, θ₁ᵀ, which are the rows of θ₁.
    """
    return float(np.abs(checks.array("theta", theta, ndim=2)).sum(axis=1).max())


def convolution_norm(weights, *, stride=1):
    """The same norm of a convolution without borders: the largest sum of absolute weights that one input meets.

    Args: weights — (maps, channels, height, width);  stride — the same in both directions.
    """
    weights = np.abs(checks.array("weights", weights, ndim=4)).sum(axis=0)  # over maps: all of them are released
    stride = checks.integer("stride", stride, low=1)
    steps = range(stride)
    return float(max(weights[:, i::stride, j::stride].sum(axis=(1, 2)).max(initial=0.0) for i in steps for j in steps))


@dataclass(frozen=True)
class Budget:
    """One setting of StoBatch's noise: what is claimed for it, and what it is worth.

    Paper: stobatch, Lemmas 2–4, Theorem 4, Appendix P.
    Args: in_shape — of one record, (channels, height, width) or any shape;  epsilon_features — ε₁;
        epsilon_labels — ε₂;  batch_size — m, nominal;  kernel_area — d, inputs of one channel that a hidden neuron
        reads;  map_neurons — β, neurons of one feature map;  channels — of the input;  num_hidden — |h_π|, of the last
        hidden layer.
    """

    in_shape: tuple
    epsilon_features: float
    epsilon_labels: float
    batch_size: int
    kernel_area: int
    map_neurons: int
    channels: int = 1
    num_hidden: int = 256

    def __post_init__(self):
        shape = tuple(self.in_shape) if isinstance(self.in_shape, (tuple, list)) else (self.in_shape,)
        object.__setattr__(self, "in_shape", tuple(checks.integer("in_shape", size, low=1) for size in shape))
        if not shape:
            raise ValueError("in_shape must hold at least one size, got in_shape=(); pass (1, 28, 28), say")
        for name in ("epsilon_features", "epsilon_labels"):
            checks.positive(name, getattr(self, name), finite=True)
        for name in ("batch_size", "kernel_area", "map_neurons", "channels", "num_hidden"):
            checks.integer(name, getattr(self, name), low=1)

    @property
    def num_inputs(self):
        """D, the entries of one record."""
        return math.prod(self.in_shape)

    @property
    def reconstruction_sensitivity(self):
        """Δ_R = channels · d(β + 2): the auto-encoder's coefficients, for one feature map (Lemma 2, Appendix P)."""
        return self.channels * self.kernel_area * (self.map_neurons + 2)

    @property
    def label_sensitivity(self):
        """Δ_L2 = 2|h_π| (Lemma 4)."""
        return 2 * self.num_hidden

    @property
    def gamma_inputs(self):
        """γx = Δ_R/m, with Δ_x = 1 as in Appendix F."""
        return self.reconstruction_sensitivity / self.batch_size

    def gamma(self, theta_norm):
        """γ = 2Δ_R/(m‖θ₁‖); infinite for a first layer that is 0. The module says which norm.

        ``theta_norm`` is ‖θ₁‖.
        """
        theta_norm = checks.nonnegative("theta_norm", theta_norm, finite=True)
        scale = 2 * self.reconstruction_sensitivity / self.batch_size
        return scale / theta_norm if theta_norm else math.inf

    @property
    def claimed_epsilon_inputs(self):
        """ε₁/γx: what Lemma 3 claims for the batch of perturbed inputs."""
        return self.epsilon_features / self.gamma_inputs

    def claimed_epsilon(self, theta_norm):
        """ε₁ + ε₁/γx + ε₁/γ + ε₂: what Theorem 4 claims for all of training. Not a guarantee.

        ``theta_norm`` is ‖θ₁‖.
        """
        parts = 1 + 1 / self.gamma_inputs + 1 / self.gamma(theta_norm)
        return self.epsilon_features * parts + self.epsilon_labels

    @property
    def input_scale(self):
        """b = Δ_R/(mε₁): the scale of the Laplace noise on every entry of every record."""
        return self.gamma_inputs / self.epsilon_features

    @property
    def hidden_scale(self):
        """2b: the scale of the noise on the first hidden layer, 2χ₂/m."""
        return 2 * self.input_scale

    @property
    def label_scale(self):
        """Δ_L2/(mε₂): the scale of the noise on a label's coefficients, per record of the batch."""
        return self.label_sensitivity / (self.batch_size * self.epsilon_labels)

    @property
    def honest_epsilon_independent(self):
        """2D/b: exact ε of the batch of perturbed inputs if every record has its own noise (a record is replaced)."""
        return 2 * self.num_inputs / self.input_scale

    @property
    def honest_epsilon_shared(self):
        """Infinite: with one noise vector for all, differences of perturbed records carry no noise.

        Side: exact.
        """
        return math.inf

    @property
    def honest_epsilon_sum(self):
        """2Dε₁/Δ_R: exact ε of the *sum* of a batch of perturbed inputs, with one noise vector for all."""
        return 2 * self.num_inputs * self.epsilon_features / self.reconstruction_sensitivity


@dataclass(frozen=True)
class Configuration:
    """A data set's setting in Appendix P. Fields marked [release] come from the authors' published code alone.

    ``kernel_area``: weights of a kernel for one channel; ``num_maps`` maps of ``map_neurons`` (β) neurons;
    ``num_hidden`` units last; ``num_draws`` of verified inference; ``attack_steps`` T_μ, ``adversarial_weight`` ξ,
    ``redraw_divisor`` ψ; N = ``num_trainers``, M = ``num_devices`` of Algorithm 4; ``released_epochs``,
    ``released_norm`` (of θ₁) of the code. ``label_budget`` and ``rest_budget``: ε₂ and ε₁(1 + 1/γx + 1/γ) as (at r = 0,
    for each unit of r), r = ε − ``least_epsilon``.
    """

    in_shape: tuple  # CIFAR-10: [release] crops to 28 x 28, which the document's β = 14² implies
    batch_size: int
    kernel_area: int
    map_neurons: int
    num_hidden: int
    num_maps: int  # Tiny ImageNet: [release]
    num_classes: int
    num_draws: int
    attack_steps: int  # T_μ in training
    adversarial_weight: float  # ξ
    redraw_divisor: float  # ψ
    learning_rate: float
    num_trainers: int  # N; MNIST: not distributed
    num_devices: int  # M
    label_budget: tuple  # ε₂ = first + second · r
    rest_budget: tuple  # ε₁(1 + 1/γx + 1/γ) = first + second · r
    least_epsilon: float  # ε at r = 0
    released_norm: float  # [release] the largest singular value of θ₁ at initialisation, as a norm of θ₁
    released_epochs: int  # [release]

    @property
    def channels(self):
        """Of the input."""
        return self.in_shape[0]

    def budget(self, *, epsilon_features, epsilon_labels, **changes):
        """The noise of this configuration at given ε₁ and ε₂; ``changes`` replace fields of :class:`Budget`."""
        names = ("in_shape", "batch_size", "kernel_area", "map_neurons", "channels", "num_hidden")
        fields = {name: getattr(self, name) for name in names} | changes
        return Budget(epsilon_features=epsilon_features, epsilon_labels=epsilon_labels, **fields)


CONFIGURATIONS = {
    "mnist": Configuration(
        in_shape=(1, 28, 28),
        batch_size=2499,
        kernel_area=25,
        map_neurons=14**2,
        num_hidden=256,
        num_maps=32,
        num_classes=10,
        num_draws=2000,
        attack_steps=10,
        adversarial_weight=1.0,
        redraw_divisor=2.0,
        learning_rate=1e-4,
        num_trainers=1,
        num_devices=1,
        label_budget=(0.1, 0.0),
        rest_budget=(0.0, 1.0),  # r is ε − 0.1 here: the document sets ε itself
        least_epsilon=0.1,
        released_norm=0.491,
        released_epochs=200,
    ),
    "cifar10": Configuration(
        in_shape=(3, 28, 28),
        batch_size=1851,
        kernel_area=16,
        map_neurons=14**2,
        num_hidden=256,
        num_maps=128,
        num_classes=10,
        num_draws=1000,
        attack_steps=3,
        adversarial_weight=1.5,
        redraw_divisor=10.0,
        learning_rate=5e-2,
        num_trainers=1,
        num_devices=4,
        label_budget=(1.0, 1 / 3),
        rest_budget=(1.0, 2 / 3),
        least_epsilon=2.0,
        released_norm=0.549,
        released_epochs=600,
    ),
    "tiny_imagenet": Configuration(
        in_shape=(3, 64, 64),
        batch_size=4500,
        kernel_area=49,
        map_neurons=32**2,
        num_hidden=256,
        num_maps=64,
        num_classes=30,
        num_draws=1000,
        attack_steps=10,
        adversarial_weight=1.5,
        redraw_divisor=10.0,
        learning_rate=1e-2,
        num_trainers=1,
        num_devices=20,
        label_budget=(1.0, 0.0),
        rest_budget=(1.0, 1.0),
        least_epsilon=2.0,
        released_norm=0.486,
        released_epochs=350,
    ),
}


def configuration(dataset):
    """The setting of Appendix P by name.

    Args: dataset — one of :data:`CONFIGURATIONS`.
    """
    return CONFIGURATIONS[checks.choice("dataset", dataset, CONFIGURATIONS)]


def initial_kernels(dataset, *, rng):
    """A first layer as Glorot's uniform distribution draws it, which the authors' release starts from.

    Args: dataset — one of :data:`CONFIGURATIONS`.
    Returns: (maps, channels, side, side); the stride is 2 in all three networks.
    """
    found = configuration(dataset)
    side, reach = math.isqrt(found.kernel_area), math.sqrt(6 / (found.kernel_area * (found.channels + found.num_maps)))
    return rng.uniform(-reach, reach, (found.num_maps, found.channels, side, side))


def split(dataset, epsilon, *, theta_norm=None, **changes):
    """The document's rule: ε₁ and ε₂ for a claimed total ε, as the :class:`Budget` that has them.

    Paper: stobatch, Appendix P. MNIST: ε₂ = 0.1 and ε₁ takes the rest. CIFAR-10 (ε = 2 + r): ε₂ = 1 + r/3 and
    ε₁(1 + 1/γ + 1/γx) = 1 + 2r/3. Tiny ImageNet (ε = 2 + r): ε₂ = 1 and ε₁(1 + 1/γ + 1/γx) = 1 + r.
    Args: epsilon — claimed total;  theta_norm — ‖θ₁‖ in γ (None: the authors' release's at initialisation);
        changes — fields of :class:`Budget` that differ, ``batch_size=250`` say;
        dataset — one of :data:`CONFIGURATIONS`.
    Returns: Budget, with ``claimed_epsilon(theta_norm)`` = epsilon.
    """
    found = configuration(dataset)
    hint = f"{dataset} needs at least {found.least_epsilon:g}: r = ε − {found.least_epsilon:g} in Appendix P"
    epsilon = checks.real("epsilon", epsilon, low=found.least_epsilon, open_high=True, hint=hint)
    ratio = epsilon - found.least_epsilon
    labels, rest = (first + second * ratio for first, second in (found.label_budget, found.rest_budget))
    if not rest:
        raise ValueError(f"epsilon must exceed {found.least_epsilon:g}, got epsilon={epsilon!r}; ε₁ would be 0")
    unit = found.budget(epsilon_features=1.0, epsilon_labels=labels, **changes)
    parts = 1 + 1 / unit.gamma_inputs + 1 / unit.gamma(found.released_norm if theta_norm is None else theta_norm)
    return found.budget(epsilon_features=rest / parts, epsilon_labels=labels, **changes)
