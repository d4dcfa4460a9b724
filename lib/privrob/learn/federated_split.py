"""Who holds which records: disjoint shares of one training set for the users of a federated study.

Source: ours.
"""

from __future__ import annotations

import numpy as np

from privrob import checks

SCHEMES = ("iid", "dirichlet")


def split(labels, num_users, *, scheme, concentration=None, rng):
    """Share out all records, each to one user.

    ``iid``: a random permutation, cut into parts whose sizes differ by one at most. ``dirichlet``: each class is cut in
    proportions drawn from a symmetric Dirichlet distribution, so that a small concentration gives a user few classes; a
    user who is left without any record takes one from the user who has most.

    Args: labels — class of each record, shape (n,);  num_users — at most n;  scheme — ``iid`` or ``dirichlet``;
        concentration — of ``dirichlet``, above 0 (None for ``iid``);  rng — NumPy generator.
    Returns: list of sorted index arrays, one a user, none empty, together every index once.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"labels must have 1 dimension, got shape {labels.shape}")
    count = checks.integer("num_users", num_users, low=1)
    if count > len(labels):
        raise ValueError(
            f"num_users must be at most the number of records, got num_users={count} for {len(labels)} records"
        )
    if checks.choice("scheme", scheme, SCHEMES) == "iid":
        if concentration is not None:
            raise ValueError(f"concentration must be None for scheme 'iid', got concentration={concentration!r}")
        parts = np.array_split(rng.permutation(len(labels)), count)
    else:
        hint = "pass concentration=0.5, say: small is uneven"
        if concentration is None:
            raise ValueError(f"concentration must be a positive number for scheme 'dirichlet', got None; {hint}")
        parts = _dirichlet(labels, count, checks.positive("concentration", concentration, finite=True, hint=hint), rng)
    return [np.sort(part) for part in parts]


def _dirichlet(labels, count, concentration, rng):
    shares = [[] for _ in range(count)]
    for label in np.unique(labels):
        records = rng.permutation(np.flatnonzero(labels == label))
        # gamma draws of a tiny concentration may all be 0; then one user gets the whole class
        logs = np.log(rng.random(count)) / concentration + np.log(rng.standard_gamma(concentration + 1, count))
        weights = np.exp(logs - logs.max())
        cuts = np.rint(np.cumsum(weights / weights.sum()) * len(records)).astype(int)
        for own, part in zip(shares, np.split(records, cuts[:-1]), strict=True):
            own.append(part)
    parts = [np.concatenate(own) for own in shares]
    sizes = np.array([len(part) for part in parts])
    for poor in np.flatnonzero(sizes == 0):
        rich = int(np.argmax(sizes))
        parts[poor], parts[rich] = parts[rich][-1:], parts[rich][:-1]
        sizes[poor], sizes[rich] = 1, sizes[rich] - 1
    return parts
