"""TernGrad and ternary compressors under attack: gradients that differ in one record, and the best test between them.

Coordinates are independent given the gradient, so that the privacy loss of an output is a sum of known terms. By Neyman
and Pearson its thresholds are the best attacks; :func:`privrob.accounting.audit.two_samples` turns them into a lower
bound on ε with a stated probability of being wrong.

``vector``, ``gradient`` and ``neighbour`` have shape (d,); ``mechanism`` is a :class:`.TernGrad`, or any ternary
compressor of single numbers.
"""

from __future__ import annotations

import numpy as np

from privrob import checks
from privrob.accounting.dominating import DiscretePair, ProductPair
from privrob.mechanisms.ternary import TernGrad

CERTAIN = 1e3  # the loss, in nats, of an output that rules one gradient out


def neighbouring_gradients(*, num_records, num_coordinates, clip, rng):
    """The mean gradient of a batch, and that of the batch with one record replaced: each entry within ±c.

    Paper: fdp, Section 3.1 (local data sets) and Remark 8.
    Args: num_records — in the batch;  clip — c, of each record's entries, whose standard deviation is c before that;
        num_coordinates — d.
    """
    n = checks.integer("num_records", num_records, low=1)
    d = checks.integer("num_coordinates", num_coordinates, low=1)
    clip = checks.positive("clip", clip, finite=True)
    records = np.clip(rng.normal(scale=clip, size=(n + 1, d)), -clip, clip)
    return records[:n].mean(axis=0), records[1:].mean(axis=0)


def coordinate_log_masses(mechanism, vector):
    """Of the symbols −1, 0 and 1 in each coordinate, shape (d, 3)."""
    vector = checks.array("gradient", vector, ndim=1)
    if isinstance(mechanism, TernGrad):
        return mechanism.log_masses(vector)
    return np.array([mechanism.log_masses(value) for value in vector])


def _scales(mechanism, *vectors):
    """The factors that are sent with each of the vectors, 1 where none is."""
    sends = isinstance(mechanism, TernGrad) and mechanism.send_scale
    return [float(mechanism.scaled(vector)[1][0]) if sends else 1.0 for vector in vectors]


def pair(mechanism, gradient, neighbour):
    """The two output distributions, exactly, as a :class:`privrob.accounting.dominating.Pair`.

    Args: mechanism — a :class:`.TernGrad`, or any ternary compressor of single numbers.
    """
    scales = _scales(mechanism, gradient, neighbour)
    if scales[0] != scales[1]:
        return DiscretePair.of([1.0, 0.0], [0.0, 1.0])
    masses = [coordinate_log_masses(mechanism, vector) for vector in (gradient, neighbour)]
    return ProductPair(tuple(DiscretePair(p, q) for p, q in zip(*masses, strict=True)))


def losses(mechanism, gradient, neighbour, *, num_runs, rng):
    """Privacy losses of runs on both gradients, read off the outputs alone: scores for an attack, within ±1000.

    Args: num_runs — on each gradient.
    Returns: two arrays of shape (num_runs,).
    """
    num_runs = checks.integer("num_runs", num_runs, low=1)
    scales = _scales(mechanism, gradient, neighbour)
    log_p, log_q = (coordinate_log_masses(mechanism, vector) for vector in (gradient, neighbour))
    coordinates, scores = np.arange(len(log_p)), []
    for vector in (gradient, neighbour):
        outputs = mechanism.release(np.broadcast_to(vector, (num_runs, len(vector))), rng=rng)
        seen = np.abs(outputs).max(axis=1)
        symbols = np.sign(outputs).astype(np.int64) + 1
        of_p, of_q = (logs[coordinates, symbols].sum(axis=1) for logs in (log_p, log_q))
        with np.errstate(invalid="ignore"):
            loss = np.clip(of_p - of_q, -CERTAIN, CERTAIN)
        if scales[0] != scales[1]:
            loss = np.where(seen == scales[0], CERTAIN, -CERTAIN)
        scores.append(loss)
    return tuple(scores)
