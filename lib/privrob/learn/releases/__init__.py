r"""How a step of private training turns its records' gradients into one noisy mean: the part that privacy is about.

Each release answers :meth:`.clipping.Clipping.noisy_mean` for the drawn records, and says in
:meth:`.clipping.Clipping.history` what the ledger has to enter for a whole training. All but one are Gaussian
mechanisms on Poisson samples (add or remove one
record), for the same effective noise multiplier σ; ``propose_test_release`` is the mechanism of that name, and
``robust`` is not private: it refuses noise. What follows a release, and what is chosen from earlier ones, is free.

The sum before the noise is handed to ``_add_noise`` together with its standard deviation, in every release; so one
test holds for all: two batches that differ in one record differ by at most 1/σ in units of the noise (with
Propose-Test-Release, wherever the margin says so).

Source: the modules name theirs.
"""

from __future__ import annotations

from dataclasses import fields

from privrob import checks
from privrob.learn.releases.clipping import AdaptiveClipping, Clipping, Step
from privrob.learn.releases.history import VarianceReduced
from privrob.learn.releases.preconditioned import Preconditioned
from privrob.learn.releases.robust import Robust
from privrob.learn.releases.subspace import Embedded, Projected
from privrob.learn.releases.trimming import ProposeTestRelease, Trimmed

__all__ = [
    "RELEASES",
    "AdaptiveClipping",
    "Clipping",
    "Embedded",
    "Preconditioned",
    "Projected",
    "ProposeTestRelease",
    "Robust",
    "Step",
    "Trimmed",
    "VarianceReduced",
    "make",
]

RELEASES = {
    "clipping": Clipping,
    "adaptive_clipping": AdaptiveClipping,
    "preconditioned": Preconditioned,
    "variance_reduced": VarianceReduced,
    "projected": Projected,
    "embedded": Embedded,
    "trimmed": Trimmed,
    "propose_test_release": ProposeTestRelease,
    "robust": Robust,
}


def make(name, options):
    """The release of that name, its options checked."""
    kind = RELEASES[checks.choice("release", name, RELEASES)]
    return kind(**checks.options("release_options", options, [f.name for f in fields(kind)]))
