"""Bounds on the last iterate against what quadratic losses really leak, a non-negative least-squares solver, and walks
on an interval; their laws and limits; the conditions that they refuse without."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from scipy.special import gammaln, logsumexp, ndtr

from privrob.accounting import gdp
from privrob.accounting import hidden_state as hs
from privrob.kinds import NotAvailable

TRUE_LAWS = settings(derandomize=True, deadline=None, max_examples=60)
TOPIC = "Advanced Topic: can we prove privacy bound for DP-SGD that is smaller than moment accountant?"
PLAIN = hs.NoisyDescent(
    step_size=0.1,
    l2_sensitivity=0.02,
    noise_std=0.1,
    smoothness=4.0,
    strong_convexity=0.5,
    diameter=math.inf,
    num_batches=1,
    neighbouring="replace",
)


def run(**changes):
    return dataclasses.replace(PLAIN, **changes)


settings_of_runs = st.builds(
    run,
    step_size=st.sampled_from([0.01, 0.1, 0.25, 0.4, 0.5]),
    l2_sensitivity=st.floats(0.001, 1.0),
    strong_convexity=st.sampled_from([0.0, 1e-9, 0.01, 0.5, 2.0, 4.0]),
    diameter=st.sampled_from([0.003, 0.1, 1.0, 30.0, math.inf]),
    num_batches=st.integers(1, 7),
)


# ------------------------------------------------------------------------------------ what quadratic losses really leak


def quadratic_leak(setting, num_steps, *, hessian, push, place=0, start_variance=0.0):
    """m'Σ⁻¹m of the two last iterates, means and covariance followed step by step in d dimensions."""
    gap, cov = np.zeros(len(push)), start_variance * np.eye(len(push))
    eta = setting.step_size
    step = np.eye(len(push)) - eta * hessian
    for t in range(1, num_steps + 1):
        visited = (num_steps - t) % setting.num_batches == place
        gap = step @ gap - eta * visited * push
        cov = step @ cov @ step.T + (eta * setting.noise_std) ** 2 * np.eye(len(push))
    return float(gap @ np.linalg.solve(cov, gap)) if num_steps else 0.0


@pytest.mark.paper("dplearn", TOPIC)
@pytest.mark.parametrize("num_batches", [1, 2, 5])
@pytest.mark.parametrize("step_size", [0.02, 0.25, 0.4, 0.5])
@pytest.mark.parametrize("strong_convexity", [0.0, 0.5, 3.5])
def test_no_quadratic_leaks_more_than_the_bound(strong_convexity, step_size, num_batches):
    setting = run(step_size=step_size, strong_convexity=strong_convexity, num_batches=num_batches)
    rng = np.random.default_rng(0)
    for num_steps, dimension in itertools.product([1, 2, 7, 40], [1, 3]):
        basis, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
        for curvatures in ([strong_convexity] * dimension, rng.uniform(strong_convexity, 4.0, dimension)):
            hessian = basis @ np.diag(curvatures) @ basis.T
            push = rng.normal(size=dimension)
            push *= setting.l2_sensitivity / np.linalg.norm(push)
            for place in range(min(num_batches, num_steps)):
                leak = quadratic_leak(setting, num_steps, hessian=hessian, push=push, place=place)
                assert leak <= hs.last_iterate_mu(setting, num_steps) ** 2 * (1 + 1e-11)


@pytest.mark.paper("dplearn", TOPIC)
@pytest.mark.parametrize("strong_convexity", [0.0, 1e-6, 0.1, 0.5, 2.0])
def test_with_one_batch_and_no_domain_a_quadratic_attains_the_bound(strong_convexity):
    setting = run(strong_convexity=strong_convexity)
    for num_steps in (1, 2, 10, 300):
        leak = quadratic_leak(
            setting, num_steps, hessian=np.array([[strong_convexity]]), push=np.array([setting.l2_sensitivity])
        )
        assert hs.last_iterate_mu(setting, num_steps) == pytest.approx(math.sqrt(leak), rel=1e-10)  # 300 steps followed
        assert hs.quadratic_mu(setting, num_steps, curvature=strong_convexity) == pytest.approx(
            math.sqrt(leak), rel=1e-10
        )


@TRUE_LAWS
@given(settings_of_runs, st.integers(0, 200), st.floats(0, 1), st.integers(0, 6))
def test_the_lower_end_is_below_the_bound(setting, num_steps, share, place):
    setting = dataclasses.replace(setting, diameter=math.inf)
    curvature = setting.strong_convexity + share * (setting.smoothness - setting.strong_convexity)
    low = hs.quadratic_mu(setting, num_steps, curvature=min(curvature, 4.0), place=min(place, setting.num_batches - 1))
    assert low <= hs.last_iterate_mu(setting, num_steps) * (1 + 1e-12)


@pytest.mark.paper("dplearn", TOPIC)
def test_the_langevin_bound_holds_from_both_starts_and_is_about_twice_too_large():
    orders = np.array([1.5, 2.0, 16.0])
    ratios = []
    for eta, weak, num_steps in itertools.product([0.01, 0.1, 0.25], [1e-3, 0.5, 4.0], [1, 3, 30, 1000, 100000]):
        setting = run(step_size=eta, strong_convexity=weak)
        push, hessian = np.array([setting.l2_sensitivity]), np.array([[weak]])
        bound = hs.langevin(orders, setting, num_steps)
        if num_steps <= 1000:
            for variance in (0.0, eta * setting.noise_std**2 / weak):  # a point; the paper's start, 2σ²/λ
                leak = quadratic_leak(setting, num_steps, hessian=hessian, push=push, start_variance=variance)
                assert (orders * leak / 2 <= bound).all()
        ratios.append(bound / hs.last_iterate(orders, setting, num_steps))
    assert np.min(ratios) >= 1.5  # c = 0 and one step: 4(1 − e^{-1/2}) = 1.57
    assert np.max(ratios) <= 4 / (2 - 1) + 1e-9  # 4/(2 − ηλ), ηλ up to 1
    slow = run(step_size=0.01, strong_convexity=1e-3)
    assert hs.langevin(2.0, slow, 1)[0] == pytest.approx(2 * hs.composition(2.0, slow, 1)[0], rel=1e-5)


# -------------------------------------------------------------------------------- the least shifts, by another solver


def least_shifts(setting, num_steps, place=0):
    """√ of the least Σ a_t² over distances z ≥ 0, by non-negative least squares, tried from every restart."""
    eta, b = setting.step_size, setting.num_batches
    c = max(abs(1 - eta * setting.strong_convexity), abs(1 - eta * setting.smoothness))
    ages = np.arange(num_steps)[::-1]
    visits = np.where((ages % b == 0) & (ages > 0) | (ages == place), setting.l2_sensitivity / setting.noise_std, 0.0)
    if place > 0:
        visits[ages == 0] = 0.0
    best = math.inf
    for start in range(num_steps):
        if start == 0:
            best = _least(c, visits, 0.0)
        if math.isfinite(setting.diameter):
            best = min(best, _least(c, visits[start:], setting.diameter / (eta * setting.noise_std)))
    return math.sqrt(best)


def _least(c, visits, distance):
    """min Σ (c z_{t-1} + s_t − z_t)², z_0 given, z_T = 0, the others free and non-negative."""
    n = len(visits)
    target = visits.copy()
    target[0] += c * distance
    if n == 1:
        return float(target[0] ** 2)
    matrix = np.zeros((n, n - 1))
    for t in range(n - 1):
        matrix[t, t], matrix[t + 1, t] = 1.0, -c
    return float(nnls(matrix, target)[1] ** 2)


@TRUE_LAWS
@given(settings_of_runs, st.integers(1, 16))
def test_the_closed_form_finds_the_least_shifts(setting, num_steps):
    got = hs.last_iterate_mu(setting, num_steps)
    assert got == pytest.approx(least_shifts(setting, num_steps), rel=1e-7)  # nnls stops at about 1e-8


@pytest.mark.parametrize(
    ("strong_convexity", "diameter"),
    [(0.0, 0.2), (0.0, 0.001), (0.0, math.inf), (0.5, 0.001), (0.5, 0.05), (0.5, math.inf)],
)
def test_shuffling_uses_the_least_shifts_of_each_place(strong_convexity, diameter):
    setting = run(strong_convexity=strong_convexity, diameter=diameter, num_batches=4)
    squares = np.array([least_shifts(setting, 12, place) ** 2 for place in range(4)])
    assert (np.diff(squares) <= 1e-9).all()  # an earlier last visit never costs more
    for order in (1.01, 2.0, 30.0):
        want = logsumexp((order - 1) * order * squares / 2, b=0.25) / (order - 1)
        assert hs.shuffled(order, setting, 12)[0] == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("num_batches", [2, 3, 10])
def test_the_cyclic_bound_is_the_published_one(num_batches):
    # Bok, Su and Altschuler (2024), NoisyCGD on strongly convex losses, whole epochs
    setting = run(num_batches=num_batches)
    c = mpmath.mpf(1) - mpmath.mpf(setting.step_size) * setting.strong_convexity
    for epochs in (1, 2, 5, 400):
        tail = c ** (num_batches * (epochs - 1))
        square = 1 + c ** (2 * num_batches - 2) * (1 - c**2) / (1 - c**num_batches) ** 2 * (1 - tail) / (1 + tail)
        want = float(mpmath.sqrt(square)) * setting.l2_sensitivity / setting.noise_std
        assert hs.last_iterate_mu(setting, epochs * num_batches) == pytest.approx(want, rel=1e-11)


def test_many_restarts_are_searched_as_if_all_were_tried():
    for weak, diameter, num_batches in [(0.0, 3.0, 1), (1e-4, 5.0, 1), (0.0, 1.0, 9), (0.003, 0.4, 3)]:
        setting = run(strong_convexity=weak, diameter=diameter, num_batches=num_batches)
        values = [hs.last_iterate_mu(setting, t * num_batches) for t in range(1, 400, 7)]  # each tries all
        late = [hs.last_iterate_mu(setting, t * num_batches) for t in (5000, 10**6, 10**12)]
        all_of = hs._string(setting, setting.reach / setting.shift, np.arange(1, 20001) * num_batches - 1,
                            np.arange(20000), 0)  # fmt: skip
        free = hs.last_iterate_mu(dataclasses.replace(setting, diameter=math.inf), 20000 * num_batches)
        want = min(setting.shift * math.sqrt(all_of.min()), free)
        assert late[1] == pytest.approx(want, rel=1e-11)
        assert (np.diff([*values, *late]) >= -1e-12).all()


# ------------------------------------------------------------------------------------------------- walks on an interval


def walk(setting, num_steps, gradient, cells=400):
    """Law of the last iterate on an interval of the diameter, the state rounded to cell centres after each step."""
    edges = np.linspace(-setting.diameter / 2, setting.diameter / 2, cells + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    target = centres - setting.step_size * gradient(centres)
    inner = ndtr((edges[1:-1][None, :] - target[:, None]) / (setting.step_size * setting.noise_std))
    step = np.diff(inner, axis=1, prepend=0.0, append=1.0)  # what the projection moves inside ends in the outer cells
    law = np.zeros(cells)
    law[cells // 3] = 1.0
    for _ in range(num_steps):
        law = law @ step
    return law


@pytest.mark.paper("dplearn", TOPIC)
@pytest.mark.parametrize("diameter", [0.02, 0.06, 0.3])
def test_walks_on_an_interval_leak_less_than_the_bound_and_stop_leaking(diameter):
    # rounding to cell centres belongs to the next step's map: two points come apart by at most one cell, which is added
    # to the sensitivity; the last rounding is post-processing
    setting = run(strong_convexity=0.0, diameter=diameter, step_size=0.5, l2_sensitivity=0.05)
    rough = setting.l2_sensitivity + diameter / 400 / setting.step_size
    bound = dataclasses.replace(setting, l2_sensitivity=rough)
    flat, half = (lambda x: 0 * x), setting.l2_sensitivity / 2
    pairs = [
        (lambda x: flat(x) + half, lambda x: flat(x) - half),
        (flat, lambda x: flat(x) + 2 * half),
        (lambda x: 4 * np.maximum(x, 0) + half, lambda x: 4 * np.maximum(x, 0) - half),
        (lambda x: np.tanh(4 * x) + half * np.cos(x), lambda x: np.tanh(4 * x) - half * np.cos(x)),
    ]
    leaks = []
    for num_steps, (g, h) in itertools.product([1, 4, 16, 64, 256], pairs):
        p, q = walk(setting, num_steps, g), walk(setting, num_steps, h)
        mu = hs.last_iterate_mu(bound, num_steps)
        for epsilon in (0.0, 0.5, 1.5):
            assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= gdp.delta_of(epsilon, gdp_mu=mu) + 1e-13
        for order in (2.0, 8.0):
            seen = (p > 1e-250) & (q > 1e-250)
            rdp = logsumexp(order * np.log(p[seen]) + (1 - order) * np.log(q[seen])) / (order - 1)
            assert rdp <= hs.last_iterate(order, bound, num_steps)[0] + 1e-12
        leaks.append(np.maximum(p - q, 0).sum())
    assert max(leaks) > 0.2 * gdp.delta_of(0.0, gdp_mu=mu)  # the test could fail: some walk comes near


# ---------------------------------------------------------------------------------------------- random batches, exactly


def mixture_rdp(order, means, log_weights, means_q, log_weights_q, scale):
    """Rényi divergence of two mixtures of Normals with one scale, by quadrature (trapezoid: spectral accuracy here)."""
    low, high = min(means.min(), means_q.min()), max(means.max(), means_q.max())
    reach = (order + 12) * scale + (order + 1) * (high - low)
    x = np.linspace(low - reach, high + reach, 4001)

    def log_density(m, w):
        return logsumexp(w - 0.5 * ((x[:, None] - m) / scale) ** 2, axis=1) - math.log(scale * math.sqrt(2 * math.pi))

    p, q = log_density(means, log_weights), log_density(means_q, log_weights_q)
    return (logsumexp(order * p + (1 - order) * q) + math.log(x[1] - x[0])) / (order - 1)


def one_dimension(setting, num_steps):
    """Weights c^age ηΔ of a visit at each age, and the standard deviation of the last iterate."""
    c = 1 - setting.step_size * setting.strong_convexity
    ages = np.arange(num_steps)
    return setting.l2_sensitivity * setting.step_size * c**ages, setting.step_size * setting.noise_std * math.sqrt(
        np.sum(c ** (2.0 * ages))
    )


@pytest.mark.paper("dplearn", TOPIC)
@pytest.mark.parametrize("strong_convexity", [0.0, 0.5, 3.0])
def test_secret_deals_leak_less_than_the_shuffled_bound(strong_convexity):
    for batches, epochs, size in [(2, 1, 0.3), (5, 1, 0.1), (3, 3, 0.1), (2, 5, 0.02)]:
        setting = run(strong_convexity=strong_convexity, num_batches=batches, l2_sensitivity=size)
        weights, scale = one_dimension(setting, batches * epochs)
        deals = np.array(list(itertools.product(range(batches), repeat=epochs)))
        each_epoch = weights[deals + batches * np.arange(epochs)].sum(axis=1)
        once = np.array([weights[j::batches].sum() for j in range(batches)])
        for means, order in itertools.product((each_epoch, once), (1.5, 2.0, 8.0)):
            log_weights = np.full(means.size, -math.log(means.size))
            bound = hs.shuffled(order, setting, batches * epochs)[0]
            for p, q in ((means, -means), (means, 0 * means), (0 * means, means)):
                scale_of = 2.0 if p is means and q is not means and (q < 0).any() else 1.0  # ±means: twice apart
                got = mixture_rdp(order, p / scale_of, log_weights, q / scale_of, log_weights, scale)
                assert got <= bound * (1 + 1e-9) + 1e-13
        assert bound <= hs.last_iterate(8.0, setting, batches * epochs)[0] * (1 + 1e-11)


def sampled_gaussian(orders, *, noise_multiplier, sample_rate):
    """The sampled Gaussian's Rényi curve at whole orders (Mironov, Talwar and Zhang 2019)."""
    result = []
    for a in np.asarray(orders):
        k = np.arange(int(a) + 1)
        log_terms = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1) + k * (k - 1) / (2 * noise_multiplier**2)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_terms += np.where(k > 0, k * np.log(sample_rate), 0) + np.where(
                a > k, (a - k) * np.log1p(-sample_rate), 0
            )
        result.append(max(float(logsumexp(log_terms)) / (a - 1), 0.0))
    return np.array(result)


@pytest.mark.paper("dplearn", TOPIC)
@pytest.mark.parametrize("strong_convexity", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("rate", [0.1, 0.7])
def test_sampled_descent_leaks_less_than_the_poisson_bound(rate, strong_convexity):
    orders = np.array([2.0, 5.0])
    for num_steps, size in [(1, 0.1), (3, 0.2), (7, 0.1), (7, 0.02)]:
        setting = run(strong_convexity=strong_convexity, l2_sensitivity=size, neighbouring="add_remove")
        weights, scale = one_dimension(setting, num_steps)
        coins = np.array(list(itertools.product([0, 1], repeat=num_steps)))
        log_weights = coins.sum(1) * math.log(rate) + (num_steps - coins.sum(1)) * math.log1p(-rate)
        bound = hs.poisson(orders, setting, num_steps, sample_rate=rate, step_rdp=sampled_gaussian)
        plain = num_steps * sampled_gaussian(orders, noise_multiplier=setting.noise_std / size, sample_rate=rate)
        assert (bound <= plain).all()
        for order, limit in zip(orders, bound):
            means, zero = coins @ weights, np.zeros(1)
            for p, q in [((means, log_weights), (zero, zero)), ((zero, zero), (means, log_weights))]:
                assert mixture_rdp(order, *p, *q, scale) <= limit * (1 + 1e-9) + 1e-13


def test_the_poisson_bound_stops_growing_and_starts_as_composition():
    orders = np.array([2.0, 4.0, 16.0])
    for changes in ({"diameter": 0.05, "strong_convexity": 0.0}, {"strong_convexity": 2.0}):
        setting = run(neighbouring="add_remove", **changes)
        curve = np.array(
            [
                hs.poisson(orders, setting, k, sample_rate=0.05, step_rdp=sampled_gaussian)
                for k in (0, 1, 10, 1000, 10**5, 10**6)
            ]
        )
        one = sampled_gaussian(orders, noise_multiplier=setting.noise_std / setting.l2_sensitivity, sample_rate=0.05)
        assert not curve[0].any()
        assert curve[1] == pytest.approx(one, rel=1e-14)
        assert (np.diff(curve, axis=0) >= -1e-3 * curve[1:]).all()  # the restart is on a list, so not quite monotone
        assert curve[5] == pytest.approx(curve[4], rel=0.02)
        assert (curve[5] < 0.01 * 10**6 * one).all()


# ------------------------------------------------------------------------------------------------------ laws and limits


@TRUE_LAWS
@given(settings_of_runs, st.integers(0, 3000), st.integers(0, 50))
def test_more_steps_more_noise_and_a_smaller_domain_do_what_they_should(setting, num_steps, more):
    here = hs.last_iterate_mu(setting, num_steps)
    tiny = 1e-11 * here
    assert 0 <= here <= hs.composition_mu(setting, num_steps)
    assert hs.last_iterate_mu(setting, num_steps + more) >= here - tiny
    assert hs.last_iterate_mu(dataclasses.replace(setting, noise_std=0.2), num_steps) <= here + tiny
    assert hs.last_iterate_mu(dataclasses.replace(setting, diameter=setting.diameter / 3), num_steps) <= here + tiny
    assert hs.last_iterate_mu(dataclasses.replace(setting, num_batches=8), num_steps) <= here + tiny


def test_no_steps_one_step_and_no_sensitivity():
    orders = [1.5, 4.0]
    for setting in (PLAIN, run(strong_convexity=0.0, diameter=1.0), run(num_batches=6)):
        assert hs.last_iterate_mu(setting, 0) == hs.composition_mu(setting, 0) == 0.0
        assert hs.last_iterate_mu(setting, 1) == pytest.approx(0.2, rel=1e-11)  # the Gaussian mechanism, Δ/s
        assert hs.last_iterate(orders, setting, 1) == pytest.approx([1.5 * 0.02, 4 * 0.02], rel=1e-11)
        assert not hs.last_iterate(orders, dataclasses.replace(setting, l2_sensitivity=0.0), 100).any()
        assert not hs.shuffled(orders, setting, 0).any()
    assert not hs.langevin(orders, PLAIN, 0).any()
    assert hs.quadratic_mu(PLAIN, 0, curvature=1.0) == 0.0


def test_weak_convexity_tends_to_none_and_a_wide_domain_too():
    convex = run(strong_convexity=0.0)
    for k in (1, 50, 3000):
        assert hs.last_iterate_mu(run(strong_convexity=1e-14), k) == pytest.approx(
            hs.composition_mu(convex, k), rel=1e-9
        )
        assert hs.last_iterate_mu(convex, k) == pytest.approx(hs.composition_mu(convex, k), rel=1e-11)
        wide = hs.last_iterate_mu(run(diameter=1e30), k)
        assert wide == pytest.approx(hs.last_iterate_mu(PLAIN, k), rel=1e-11)


@pytest.mark.paper("dplearn", TOPIC)
def test_the_plateau_of_convex_losses_on_a_bounded_domain():
    setting = run(strong_convexity=0.0, diameter=1.0)  # D' = 100 noises, Δ/s = 0.2: 4 · 100 · 0.2 = 80, from step 500
    assert hs.last_iterate_mu(setting, 10**6) ** 2 == pytest.approx(80.0, rel=1e-11)
    assert hs.last_iterate_mu(setting, 1000) == pytest.approx(hs.composition_mu(setting, 1000), rel=1e-11)
    assert hs.composition_mu(setting, 2000) ** 2 == pytest.approx(80.0, rel=1e-11)  # where composition passes it
    assert hs.composition_mu(setting, 10**6) ** 2 == pytest.approx(40000.0, rel=1e-11)


@pytest.mark.paper("dplearn", TOPIC)
def test_the_limit_of_strongly_convex_losses():
    c = 1 - 0.1 * 0.5
    want = 0.2 * math.sqrt((1 + c) / (1 - c))
    assert hs.last_iterate_mu(PLAIN, 10**9) == pytest.approx(want, rel=1e-11)
    assert hs.langevin(2.0, PLAIN, 10**9)[0] == pytest.approx(2 * 2 * 0.04 / 0.05, rel=1e-11)


def test_the_best_is_the_smallest_and_says_which():
    orders = [1.1, 2.0, 50.0]
    for k in (1, 20, 10**5):
        curve, names = hs.best(orders, PLAIN, k)
        others = [f(orders, PLAIN, k) for f in (hs.composition, hs.last_iterate, hs.langevin)]
        assert (curve == np.min(others, axis=0)).all()
        assert set(names) == {"composition" if k == 1 else "last_iterate"}
    assert hs.best(orders, run(num_batches=3, neighbouring="add"), 9)[1] == ["last_iterate"] * 3


def test_shuffling_helps_at_small_orders_and_never_harms():
    setting = run(num_batches=50)
    orders = np.array([1.0001, 2.0, 32.0, 512.0])
    got, worst = hs.shuffled(orders, setting, 5000), hs.last_iterate(orders, setting, 5000)
    assert (got <= worst * (1 + 1e-11)).all()
    assert got[0] < 0.1 * worst[0]
    # places beyond the 64th are grouped, the later one standing for the earlier ones: a little more, never less
    many = run(num_batches=700)
    squares = np.array([hs._last_mu(many, 1400, j) ** 2 for j in range(700)])
    exact = logsumexp((orders[1] - 1) * orders[1] * squares / 2, b=1 / 700) / (orders[1] - 1)
    assert exact * (1 - 1e-12) <= hs.shuffled(orders[1], many, 1400)[0] <= 1.05 * exact


def test_extreme_settings_stay_finite_or_infinite_but_never_nan():
    for changes in (
        {"l2_sensitivity": 1e-300},
        {"l2_sensitivity": 1e90, "diameter": 1e-200},
        {"diameter": 1e300, "step_size": 1e-300, "strong_convexity": 0.0},
        {"step_size": 0.25, "strong_convexity": 4.0},  # c = 0
        {"step_size": 0.5, "strong_convexity": 0.0},  # 2/β
        {"num_batches": 10**9},
        {"num_batches": 3, "step_size": 0.25, "strong_convexity": 3.999999},
    ):
        setting = run(**changes)
        for k in (1, 2, 1000, 10**15):
            mu = hs.last_iterate_mu(setting, k)
            assert 0 <= mu <= hs.composition_mu(setting, k)
    assert hs.last_iterate_mu(run(step_size=0.25, strong_convexity=4.0), 99) == pytest.approx(0.2, rel=1e-11)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_conditions_are_checked_and_the_way_out_is_named():
    with pytest.raises(ValueError, match=r"step_size must lie in \(0, 0.5\].*plain composition"):
        run(step_size=0.51)
    with pytest.raises(ValueError, match=r"strong_convexity must lie in \[0, 4\]"):
        run(strong_convexity=5.0)
    with pytest.raises(ValueError, match=r"noise_std must .*no guarantee"):
        run(noise_std=0.0)
    with pytest.raises(ValueError, match=r"diameter must .*math\.inf"):
        run(diameter=0.0)
    with pytest.raises(ValueError, match="neighbouring must be one of"):
        run(neighbouring="both")
    with pytest.raises(ValueError, match=r"step_size must lie in \(0, 0.25\], .*last_iterate"):
        hs.langevin(2.0, run(step_size=0.3), 3)
    with pytest.raises(ValueError, match=r"strong_convexity must .*last_iterate"):
        hs.langevin(2.0, run(strong_convexity=0.0), 3)
    with pytest.raises(NotAvailable, match="num_batches=2"):
        hs.langevin(2.0, run(num_batches=2), 3)
    with pytest.raises(ValueError, match="multiple of num_batches=4, got num_steps=6"):
        hs.shuffled(2.0, run(num_batches=4), 6)
    with pytest.raises(NotAvailable, match="replace"):
        hs.poisson(2.0, PLAIN, 3, sample_rate=0.1, step_rdp=sampled_gaussian)
    with pytest.raises(ValueError, match="step_rdp must give"):
        hs.poisson(2.0, run(neighbouring="add"), 3, sample_rate=0.1, step_rdp=lambda orders, **_: orders * math.nan)
    with pytest.raises(ValueError, match="num_steps must be an integer"):
        hs.last_iterate_mu(PLAIN, -1)


def test_the_sensitivity_of_a_mean_gradient():
    assert hs.sensitivity(3.0, denominator=100, neighbouring="replace") == 0.06
    assert hs.sensitivity(3.0, denominator=100, neighbouring="add_remove") == 0.03
