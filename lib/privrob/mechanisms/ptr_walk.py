r"""How the number of trimmed gradients walks: what someone who can make gradients longer than τ can do to the test.

F moves by one step a release: up after a failed test, down after a passed one. It stays in [0, high]. So

.. math:: \#\text{failed} - \#\text{passed} \le
    \lceil (\text{high} - F_0) / \text{step} \rceil + \#\{\text{failed at } F = \text{high}\},

whoever chooses the gradients, at every step, knowing all. As long as F keeps away from its upper end, the test cannot
be made to fail in more than half of the steps in the long run; nor, without an attack, does it fail in less: a passed
test moves F down until it fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privrob import checks
from privrob.mechanisms.ptr import adjust_num_trimmed


@dataclass(frozen=True)
class Walk:
    """A run of the test: ``num_trimmed`` (F before each test), ``num_long`` and ``passed``, each of shape (T,).

    ``high`` is the upper end of F and ``step`` what it moves by.
    """

    num_trimmed: np.ndarray
    num_long: np.ndarray
    passed: np.ndarray
    high: int
    step: int

    @property
    def failed_rate(self):
        """Share of the steps whose test failed."""
        return float(np.mean(~self.passed))

    @property
    def failed_rate_upper(self):
        """What the rule itself allows, given how often the test failed with F at its upper end."""
        at_end = np.count_nonzero(~self.passed & (self.num_trimmed == self.high))
        slack = math.ceil((self.high - int(self.num_trimmed[0])) / self.step) + at_end
        return min(1.0, (len(self.passed) + slack) / (2 * len(self.passed)))


def walk(num_long, num_steps, *, start, step, high, laplace_scale, test_failure, rng):
    r"""The test and F over a training, gradients reduced to how many of them are longer than τ.

    Paper: ptr, Algorithms 2 and 3, Remark 5.3.
    Args: num_long — c, or a function of (t, F) that gives it: an attacker's choice;  start — F₀;  step — of F;  high —
        F's upper end;  laplace_scale — b;  test_failure — δ₀;  rng — for the margin's noise.
    """
    num_steps, step = checks.integer("num_steps", num_steps, low=1), checks.integer("step", step, low=1)
    high = checks.integer("high", high, low=0)
    trimmed = checks.integer("start", start, low=0)
    if trimmed > high:
        raise ValueError(f"start must be at most high={high}, got start={trimmed}")
    scale = checks.positive("laplace_scale", laplace_scale, finite=True)
    threshold = -scale * math.log(2 * checks.real("test_failure", test_failure, low=0.0, high=0.5, open_low=True))
    noise = rng.laplace(0.0, scale, num_steps)
    kept, long, passed = np.empty(num_steps, int), np.empty(num_steps, int), np.empty(num_steps, bool)
    for t in range(num_steps):
        kept[t], long[t] = trimmed, num_long(t, trimmed) if callable(num_long) else num_long
        passed[t] = max(0, trimmed - long[t]) + noise[t] > threshold
        trimmed = adjust_num_trimmed(trimmed, passed=bool(passed[t]), step=step, low=0, high=high)
    return Walk(kept, long, passed, high, step)
