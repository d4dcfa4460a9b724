"""Data and parameters that no estimator can use: an error that names the argument, or a refusal; never NaN."""

import math

import numpy as np
import pytest
import torch

from privrob.mechanisms import histogram
from privrob.robust import noiseplan, released
from privrob.robust.boosting import mean_of_means, repeated
from privrob.robust.classic_means import coordinate_median, geometric_median, trimmed_mean
from privrob.robust.dpfilter import private_filter
from privrob.robust.exponential_time import exponential_time_mean, private_tukey_median
from privrob.robust.filtering import FilteredSet, filter_mean
from privrob.robust.heavy_tails import truncated_mean
from privrob.robust.prime import prime, settings_for
from privrob.robust.private_means import dp_mean, shrinking_mean
from privrob.robust.released import released_prime
from privrob.robust.rows import Ball, Cube, Rows

BUDGET = {"epsilon": 5.0, "delta": 1e-3}
ALPHA = {"corruption_rate": 0.1}


def rng(seed=0):
    return np.random.default_rng(seed)


DATA = rng(1).standard_normal((60, 2))
LINE = {"location": np.zeros(1), "half_width": 3.0, "spacing": 0.5}
ESTIMATORS = {
    "ball": lambda x, **more: prime(x, **{"rng": rng(), **ALPHA, **BUDGET, **more}),
    "as printed": lambda x, **more: prime(x, variant="as_printed", **{"rng": rng(), **ALPHA, **BUDGET, **more}),
    "filter": lambda x, **more: private_filter(x, num_steps=2, **{"rng": rng(), **ALPHA, **BUDGET, **more}),
    "dp mean": lambda x, **more: dp_mean(x, **{"rng": rng(), **BUDGET, **more}),
    "shrinking": lambda x, **more: shrinking_mean(x, radius=9.0, **{"rng": rng(), **BUDGET, **more}),
    "truncated": lambda x, **more: truncated_mean(x, **{"rng": rng(), **ALPHA, **BUDGET, **more}),
    "exponential": lambda x, **more: exponential_time_mean(
        x[:, :1], **{"rng": rng(), **ALPHA, **BUDGET, **LINE, **more}
    ),
    "not private": lambda x, **more: filter_mean(x, **{"rng": rng(), **ALPHA, **more}),
}
BUDGETED = [name for name in ESTIMATORS if name != "not private"]
PLACED = ("ball", "as printed", "filter", "dp mean", "truncated", "exponential")


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    "data",
    [
        DATA.astype(object),
        DATA.astype(str),
        DATA + 1j,
        torch.tensor(DATA).long(),
        torch.tensor(DATA, dtype=torch.float16),
        torch.tensor(DATA, dtype=torch.bfloat16),
    ],
    ids=["object", "text", "complex", "torch int64", "torch float16", "torch bfloat16"],
)
def test_numbers_that_would_be_cut_down_are_refused(name, data):
    with pytest.raises(TypeError, match=r"data must be .* pass "):
        ESTIMATORS[name](data)


def test_what_has_no_type_of_numbers_is_refused():
    class Frame:
        """Two dimensions, but no dtype: as a table of a data-frame library."""

        ndim, shape = 2, (60, 2)

    with pytest.raises(TypeError, match=r"got Frame; pass np\.asarray"):
        dp_mean(Frame(), rng=rng(), **BUDGET)
    with pytest.raises(TypeError, match="data must be"):
        released_prime(DATA.astype(object), rng=rng(), **ALPHA, **BUDGET)
    with pytest.raises(TypeError, match="data must be"):
        mean_of_means(DATA.astype(object), lambda x, r: dp_mean(x, rng=r, **BUDGET), num_parts=2, rng=rng())


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint8, np.int64, np.float16])
def test_means_of_whole_and_short_numbers_are_those_of_their_values(kind):
    data = (40 + 20 * rng(2).standard_normal((501, 2))).astype(kind)
    for mean in (coordinate_median, geometric_median, lambda x: trimmed_mean(x, corruption_rate=0.1)):
        np.testing.assert_array_equal(mean(data), mean(data.astype(np.float64)))
    same = dp_mean(data.astype(np.float64), rng=rng(3), location=np.full(2, 30.0), **BUDGET)
    found = dp_mean(data, rng=rng(3), location=np.full(2, 30.0), **BUDGET)
    np.testing.assert_array_equal(found.estimate, same.estimate)


@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor])
def test_scores_of_single_precision_are_rounded_as_such(form):
    data = form(rng(4).standard_normal((50, 7)).astype(np.float32))
    scores = FilteredSet(Rows(data, Ball(np.zeros(7), 9.0))).scores(np.full(7, 0.3), rng(5).standard_normal((7, 7)))
    mantissa = np.frexp(scores.astype(np.float64))[0] * 2.0**18
    np.testing.assert_array_equal(mantissa, np.round(mantissa))


@pytest.mark.parametrize("stream", [0, None, 1.5, np.random], ids=str)
@pytest.mark.parametrize("name", [*ESTIMATORS, "released", "median", "parts", "runs"])
def test_a_stream_that_is_no_generator_is_refused(name, stream):
    made = {
        "released": lambda: released_prime(DATA, rng=stream, **ALPHA, **BUDGET),
        "median": lambda: private_tukey_median(DATA[:, :1], epsilon=1.0, rng=stream, half_range=3.0, spacing=0.5),
        "parts": lambda: mean_of_means(DATA, lambda x, r: dp_mean(x, rng=r, **BUDGET), num_parts=2, rng=stream),
        "runs": lambda: repeated(DATA, lambda x, r, **b: dp_mean(x, rng=r, **b), num_runs=2, rng=stream, **BUDGET),
    }
    with pytest.raises(TypeError, match=r"rng must be a NumPy Generator, got rng=.*; pass np\.random\.default_rng"):
        made[name]() if name in made else ESTIMATORS[name](DATA, rng=stream)


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        *(("ball", flag) for flag in ("interactive", "heavy_tailed", "keep_exact")),
        ("filter", "interactive"),
        ("exponential", "heavy_tailed"),
    ],
)
def test_a_flag_in_words_is_not_taken_for_true(name, flag):
    for value in ("0.1", "False", 1, None):
        with pytest.raises(TypeError, match=f"{flag} must be True or False, got {flag}="):
            ESTIMATORS[name](DATA, **{flag: value})


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize(
    "change",
    [
        *({"epsilon": e} for e in (-1.0, 0.0, math.inf, math.nan, "1", np.ones(2))),
        *({"delta": d} for d in (0.0, 1.0, 2.0, 50.0, math.nan, None)),
    ],
    ids=str,
)
def test_a_budget_that_is_none_is_refused_as_given(name, change):
    ((what, value),) = change.items()
    given = rf"got {what}={value!r}" if np.ndim(value) == 0 else "got epsilon="
    with pytest.raises((ValueError, TypeError), match=rf"{what} must .*{given}"):
        ESTIMATORS[name](DATA, **change)


@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("place", [[math.nan, 0.0], [0.0, math.inf], [0.0], [0.0] * 3, 0.0])
def test_a_public_place_is_checked(name, place):
    if name == "exponential" and place == [0.0]:
        place = [0.0, 0.0]
    with pytest.raises(ValueError, match="location must"):
        ESTIMATORS[name](DATA, location=place)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("dp mean", {"range_share": v}) for v in (0.0, 1.0, -1.0, 2.0, math.nan)),
        *(("truncated", {"range_share": v}) for v in (0.0, 1.0, -1.0, 2.0, math.nan)),
        *((name, {"failure_prob": v}) for name in ("dp mean", "shrinking", "filter") for v in (0, -1.0, 2.0, math.nan)),
        ("exponential", {"failure_prob": 2.0}),
        ("exponential", {"known_goodness": math.nan}),
        ("exponential", {"known_goodness": -1.0}),
        ("exponential", {"constant": math.nan}),
        ("exponential", {"spacing": math.inf}),
        ("filter", {"stop_constant": math.nan}),
        ("filter", {"stop": "tops"}),
        ("ball", {"margin": math.nan}),
        ("not private", {"max_steps": 0}),
        ("not private", {"max_steps": 2.5}),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_named(name, change):
    (what,) = change
    with pytest.raises((ValueError, TypeError), match=f"{what} must"):
        ESTIMATORS[name](DATA, **change)


def test_printed_noise_cannot_be_switched_off_without_a_word():
    with pytest.raises(ValueError, match="noiseless must be False"):
        settings_for("as_printed", noiseless=True)
    assert settings_for("ball", noiseless=True).noiseless


def test_a_budget_is_shared_by_what_is_asked():
    for value in (math.nan, np.ones(2)):
        with pytest.raises((ValueError, TypeError), match="epsilon must"):
            noiseplan.gdp_budget(value, delta=1e-5)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_one_float32_record_moves_a_sum_by_no_more_than_it_weighs(kind):
    """Taken in float32, these sums would move by eight times what one record can."""
    n, d = 2**15, 4
    data = np.full((n, d), -0.49 * 2**-6)
    data[: n // 2 + 1] = 8.0
    other = data.copy()
    other[n // 2] = -8.0
    found = []
    for records in (data, other):
        records = records.astype(np.float32)
        if kind == "torch":
            records = torch.from_numpy(records)
        found.append(Rows(records, Cube(np.zeros(d), 20.0)).moments())
    (_, total, gram), (_, moved, turned) = found
    np.testing.assert_allclose(total - moved, 16.0, rtol=1e-9)
    np.testing.assert_allclose(gram, turned, rtol=1e-9)


def test_a_masked_array_is_refused_not_read_through_its_mask():
    masked = np.ma.masked_array(DATA, mask=np.zeros(DATA.shape, dtype=bool))
    for estimator in (prime, dp_mean):
        how = ALPHA if estimator is prime else {}
        with pytest.raises(TypeError, match="mask"):
            estimator(masked, rng=rng(), **how, **BUDGET)


def test_small_integers_do_not_wrap_in_a_histogram():
    bins, found = histogram.counts(np.array([250, 255, 3], np.uint8), width=10, origin=5)
    np.testing.assert_array_equal(bins, [-1, 24, 25])
    np.testing.assert_array_equal(found, [1, 1, 1])


def test_the_script_goes_on_where_its_filter_has_left_fewer_than_its_tail():
    state = FilteredSet(Rows(np.zeros((10, 2)), Cube(np.zeros(2), 8.0)))
    state.drop(np.arange(8))
    trace = [{}]
    how = {"rate": 0.2, "epsilon": 1e6, "delta": 0.1, "square": 64.0, "rng": rng(), "trace": trace}
    released._filter(state, np.zeros(2), np.eye(2) / 2, **how)
    assert state.size == 2
    state.drop(np.array([8, 9]))
    released._filter(state, np.zeros(2), np.eye(2) / 2, **how)
    assert state.size == 0
