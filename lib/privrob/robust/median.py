r"""Global sensitivity of the coordinate-wise median, and of the mean it is compared with.

**Median.** Of two neighbours by adding a record, one has an even number m = 2h. Let a_j ≤ b_j be its middle values in
coordinate j. Its median is their midpoint, and the other's median is in [a_j, b_j]: the change is at most
g_j = (b_j − a_j)/2. As h values are at most a_j and h at least b_j, Σ_i x_ij² ≥ m g_j² (a_j ≤ 0 ≤ b_j: at least
h(a_j² + b_j²) ≥ h (b_j − a_j)²/2; same sign: at least h (b_j − a_j)²). Over the coordinates
m R² ≥ Σ_i‖x_i‖² ≥ m‖g‖², so the change is at most R, in any dimension; h records at Ru and h at −Ru, ‖u‖ = 1, reach it.
With "replace", an odd number of records can go from one end of [a_j, b_j] (of the records shared) to the other: 2R.

**Mean.** Removing x from m records moves it by ‖x − mean of the others‖/m ≤ 2R/m, replacing one by 2R/m.

So "far greater than the one for mean" holds in every dimension, 1 included, and the factor is m/2 (replace: m): it
counts records, not coordinates. Against SUM, which the document releases, it is R against R. Clipping each coordinate
to ±R multiplies all three by √d, and leaves the ratios.
"""

from __future__ import annotations

import math

from privrob import checks
from privrob.kinds import Neighbouring

CLIPPINGS = ("l2", "coordinate")


def _diameter(dimension, max_norm, clipping):
    dimension = checks.integer("dimension", dimension, low=1)
    max_norm = checks.positive("max_norm", max_norm, finite=True)
    wide = checks.choice("clipping", clipping, CLIPPINGS) == "coordinate"
    return 2 * max_norm * (math.sqrt(dimension) if wide else 1.0)


def median_sensitivity(dimension, *, max_norm, neighbouring, clipping="l2"):
    """Global l2 sensitivity of the coordinate-wise median (an even number of records: midpoint of the middle two).

    Paper: ptr, Section 6, limitation.
    Printed: "far greater than the one for mean", in "high-dimensional space".   Found: equal in every dimension under
        l2 clipping, R (replace: 2R); m/2 (replace: m) times that of the mean of m records.
    Assumes: at least one record on both sides; all sizes ("replace": reached by odd numbers, R for even ones).
    Args: dimension — d;  max_norm — R, the clipping norm;  neighbouring — "add", "remove", "add_remove" or "replace";
        clipping — "l2", or "coordinate": each entry to ±R.
    Returns: the exact value, in the units of the records.
    """
    diameter = _diameter(dimension, max_norm, clipping)
    return diameter if Neighbouring.of(neighbouring) is Neighbouring.REPLACE else diameter / 2


def mean_sensitivity(dimension, *, num_records, max_norm, neighbouring, clipping="l2"):
    """Global l2 sensitivity of the mean, 2R/m, m the number of records of the larger neighbour (at least 2 for adding
    and removing: the mean of nothing isn't defined).

    Paper: ptr, Section 6, limitation.
    Args: as in :func:`median_sensitivity`;  num_records — m.
    Returns: the exact value.
    """
    replace = Neighbouring.of(neighbouring) is Neighbouring.REPLACE
    return _diameter(dimension, max_norm, clipping) / checks.integer(
        "num_records", num_records, low=1 if replace else 2
    )
