r"""Corrupted records that look clean one by one, or that keep a filter of one direction a step busy.

*Shell.* With unit vector v, reach s and z ~ N(0, I): the record :math:`s\sqrt d\,v + \sqrt{1 - s^2}\,z_\perp` has a
norm of about √d, as a clean one has, for every s < 1. Together α mass of them moves the mean by αs√d.

*Staircase.* α mass on d orthogonal axes, the share of an axis growing from axis to axis, so that each axis is the top
eigenvector of its own step.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from privrob import checks


def shell(num_records, dimension, *, corruption_rate, rng, reach=0.7):
    """Normal records, α mass of which lies at reach·√d along (+1, −1, …) with the norm of a clean record.

    Paper: prime, Section 1 ("each corrupted data point can look perfectly uncorrupted").
    Returns: data (n, d), and which records the adversary put there (n,).
    """
    n, d = checks.integer("num_records", num_records, low=1), checks.integer("dimension", dimension, low=1)
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5, open_high=True)
    reach = checks.real("reach", reach, low=0.0, high=1.0)
    data = rng.standard_normal((n, d))
    v = np.resize([1.0, -1.0], d) / math.sqrt(d)
    m = int(rate * n + 1e-9)
    across = data[:m] - np.outer(data[:m] @ v, v)
    data[:m] = reach * math.sqrt(d) * v + math.sqrt(1 - reach**2) * across
    return data, np.arange(n) < m


def staircase(num_records, dimension, *, corruption_rate, rng, distance=9.0, steepness=2.0):
    """Normal records, α mass of which lies at ``distance`` on the d axes; the last axis has ``steepness`` times as many
    as the first.

    Paper: prime, Section 2.3 ("scattered in Ω(d) orthogonal directions").
    Returns: data (n, d), and which records the adversary put there (n,).
    """
    n, d = checks.integer("num_records", num_records, low=1), checks.integer("dimension", dimension, low=1)
    rate = checks.real("corruption_rate", corruption_rate, low=0.0, high=0.5, open_high=True)
    checks.real("steepness", steepness, low=1.0)
    data = rng.standard_normal((n, d))
    m = int(rate * n + 1e-9)
    share = np.linspace(1.0, steepness, d)
    axis = np.searchsorted(np.cumsum(share) / share.sum(), (np.arange(m) + 0.5) / max(m, 1))
    data[np.arange(m), np.minimum(axis, d - 1)] += distance
    return data, np.arange(n) < m


def distinguishability(clean, bad):
    """P(score of a bad record > that of a clean one) + ½ P(equal): ½ tells nothing, 0 and 1 tell all.

    Args: clean, bad — scores, shapes (n,) and (m,).
    """
    clean, bad = np.asarray(clean), np.asarray(bad)
    ranks = stats.rankdata(np.concatenate([clean, bad]))[len(clean) :]
    return float((ranks.sum() - len(bad) * (len(bad) + 1) / 2) / (len(clean) * len(bad)))


def least_corruption_of_range(*, offset, width=2.0, allowed=3.0):
    """The least α with which an adversary who sees all records can make a bin the fullest whose middle is farther than
    ``allowed`` from the mean of N(μ, 1) records, n → ∞ and noise apart.

    He takes records out of the full bins near the mean and puts them all into one bin farther off; with r the largest
    share that is left near the mean, α must be at least the mass above r, and r − the far bin's own share.

    Paper: prime, Algorithm 5 and the remark before Lemma D.2.
    Args: offset — of the mean from the left edge of its bin, in [0, width).
    """
    offset = checks.real("offset", offset, low=0.0, high=width, open_high=True)
    edges = width * np.arange(-12, 13) - offset  # about the mean
    shares = np.diff(stats.norm.cdf(edges))
    middles = (edges[:-1] + edges[1:]) / 2
    near, far = shares[np.abs(middles) <= allowed], shares[np.abs(middles) > allowed]

    def short(level):
        return np.maximum(near - level, 0.0).sum() + far.max() - level

    return float(brentq(short, 0.0, 1.0) - far.max())
