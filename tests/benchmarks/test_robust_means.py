"""PRIME, the robust filter and the aggregators, beside the same algorithms written down plainly."""

import numpy as np
import pytest

from privrob.kinds import Streams
from privrob.robust import aggregate
from privrob.robust.corruption import corrupted_records
from privrob.robust.filtering import filter_mean, stop_level
from privrob.robust.prime import prime, settings_for

RECORDS, DIMENSION, RATE = 50_000, 50, 0.1
USERS, WIDTH, LIARS = 25, 26_010, 4


@pytest.fixture(scope="module")
def data():
    how = {"corruption_rate": RATE, "adversary": "rotated", "dtype": np.float32}
    return corrupted_records(RECORDS, DIMENSION, **how, rng=Streams(0, "bench").numpy("records"))[0]


def plain_filter(data, rng):
    """Spectral filtering by the book: everything anew from the records that are left, in each step."""
    rows, steps = np.asarray(data, dtype=np.float64), 0
    rows = rows - np.median(rows, axis=0)
    largest = int(np.ceil(2 * RATE * len(rows)))
    count = len(rows)
    while steps < 100:
        centred = rows - rows.mean(axis=0)
        values, vectors = np.linalg.eigh(centred.T @ centred / count)
        if np.abs(values - 1).max() <= 3 * stop_level(RATE):
            break
        scores = (centred @ vectors[:, -1]) ** 2
        last = np.argsort(-scores)[:largest]
        gone = last[scores[last] > rng.random() * scores.max()]
        rows, steps = np.delete(rows, gone, axis=0), steps + 1
    return rows.mean(axis=0) + np.median(np.asarray(data, dtype=np.float64), axis=0)


def plain_prime(data, rng, *, noise_std=1e-3):
    """Algorithm 10's loop on clipped records with noise on what is released; nothing is kept between its queries."""
    count, dimension = data.shape
    centre = np.median(data, axis=0).astype(np.float64)
    rows = np.asarray(data, dtype=np.float64) - centre
    radius = np.sqrt(dimension * 1.25) + np.sqrt(2 * np.log(10 * count))
    rows *= np.minimum(1, radius / np.linalg.norm(rows, axis=1, keepdims=True))
    alive, limit = np.ones(count, dtype=bool), 2 * stop_level(RATE)

    def moment():
        left = rows[alive] - rows[alive].mean(axis=0)
        return left.T @ left / count + noise_std * rng.normal(size=(dimension, dimension))

    for _ in range(4):
        top = np.linalg.eigvalsh(moment())[-1] - 1
        if top <= limit:
            break
        total = np.zeros((dimension, dimension))
        for _ in range(2):
            if np.linalg.eigvalsh(moment())[-1] - 1 < top / 2:
                break
            found = moment()
            total += found - np.eye(dimension)
            values, vectors = np.linalg.eigh((total + total.T) / 2)
            shares = np.exp(4 / top * (values - values[-1]))
            weights = (vectors * (shares / shares.sum())) @ vectors.T
            score = (found * weights).sum() - 1
            if score <= top / 5.5:
                continue
            away = rows - (rows[alive].mean(axis=0) + noise_std * rng.normal(size=dimension))
            scores = np.einsum("ij,jk,ik->i", away, weights, away)
            edges = 2.0 ** np.arange(-2, 14)
            shares = np.histogram(scores[alive], edges)[0] / count
            gap = np.maximum(edges[None, :-1] - edges[:-1, None], 0)
            good = np.flatnonzero(gap @ shares >= 0.31 * score)
            if len(good):
                last = np.argsort(-np.where(alive, scores, -1))[: int(np.ceil(2 * RATE * count))]
                alive[last[scores[last] > edges[good[-1]] * rng.uniform(0.5, 1)]] = False
    return centre + rows[alive].mean(axis=0) + noise_std * rng.normal(size=dimension)


def test_prime(compare, data):
    rng = Streams(0, "bench").numpy
    how = {"corruption_rate": RATE, "epsilon": 20.0, "delta": 0.01}
    floor = ("mean and second moment, once", lambda: (data.mean(axis=0), data.T @ data))
    path = f"PRIME, {RECORDS:,} records in {DIMENSION} dimensions, range and noise included"
    peers = {"its loop in plain NumPy, median for a range": lambda: plain_prime(data, rng("plain"))}
    found = compare(path, lambda: prime(data, **how, rng=rng("noise")), peers=peers, floor=floor)
    assert found["ours"].error(np.zeros(DIMENSION)) < 1
    (plain,) = (value for name, value in found.items() if name != "ours")
    assert np.linalg.norm(plain) < 1
    assert settings_for("ball").num_epochs == 4  # the plain loop has the same rounds


def test_filter(compare, data):
    rng = Streams(0, "bench").numpy
    path = f"spectral filter without privacy, {RECORDS:,} records in {DIMENSION} dimensions"
    ours = lambda: filter_mean(data, corruption_rate=RATE, rng=rng("draws"))  # noqa: E731
    found = compare(path, ours, peers={"everything anew in each step": lambda: plain_filter(data, rng("draws"))})
    assert found["ours"].error(np.zeros(DIMENSION)) < 1
    assert np.linalg.norm(found["everything anew in each step"]) < 1


def plain_krum(vectors):
    count, scores = len(vectors), []
    for i in range(count):
        away = sorted(float(((vectors[i] - vectors[j]) ** 2).sum()) for j in range(count) if j != i)
        scores.append(sum(away[: count - LIARS - 2]))
    return vectors[int(np.argmin(scores))]


def plain_geometric_median(vectors):
    """Three steps of Weiszfeld from 0, smoothed: byzfl's defaults."""
    point = np.zeros(vectors.shape[1])
    for _ in range(3):
        weights = [1 / max(float(np.linalg.norm(v - point)), 0.1) for v in vectors]
        point = sum(w * v for w, v in zip(weights, vectors)) / sum(weights)
    return point


PLAIN = {
    "TrMean": lambda vectors: np.sort(vectors, axis=0)[LIARS:-LIARS].mean(axis=0),
    "Median": lambda vectors: np.median(vectors, axis=0),
    "GeometricMedian": plain_geometric_median,
    "Krum": plain_krum,
}


@pytest.mark.parametrize("rule", PLAIN)
def test_aggregator(compare, rule):
    vectors = Streams(0, "bench").numpy("vectors").normal(0.1, 1, (USERS, WIDTH))
    options = {"f": LIARS} if rule in ("TrMean", "Krum") else {}

    def byzfl():
        import byzfl

        own = getattr(byzfl, rule)(**options)
        return lambda: own(vectors)

    peers = {"plain NumPy": lambda: PLAIN[rule](vectors), "byzfl": compare.library("byzfl", byzfl)}
    ours = aggregate.make(rule, options)
    found = compare(f"{rule} of {USERS} vectors of {WIDTH:,}", lambda: ours(vectors), peers=peers)
    np.testing.assert_allclose(found["ours"], found["plain NumPy"], rtol=1e-5, atol=1e-6)
