"""The exhaustive search for local sensitivities: by hand, and against statistics that are wrong."""

import dataclasses

import numpy as np
import pytest

from privrob.mechanisms.exhaustive import compare, data_set, local_sensitivities
from privrob.mechanisms.statistics import InterquartileRange, Median, TrimmedSum

VECTORS = [(0.0, 0.0), (0.5, 0.0), (0.6, 0.8), (3.0, 4.0), (-2.0, 0.0)]
NUMBERS = [-1.0, 0.0, 1.5, 9.0]


def test_sensitivities_are_those_found_by_hand():
    # TSUM of F = 1, R = 2: the empty set stays 0 after one record, {a} and b release the shorter one, of norm 2 at most
    found = local_sensitivities(TrimmedSum(1, 2.0), VECTORS, num_records=1, edits=1)
    assert set(found) == {(), (0,), (1,), (2,), (3,), (4,)}
    assert found[()] == [0.0, 2.0]
    assert [found[(i,)][0] for i in range(5)] == pytest.approx([0.0, 0.5, 1.0, 2.0, 2.0], abs=1e-15)
    # the median of nothing is the low end, −1; of {9}, 9
    assert local_sensitivities(Median(-1.0, 9.0), NUMBERS, num_records=0, edits=0) == {(): [10.0]}


def test_data_sets_have_the_shape_that_statistics_take():
    assert data_set((), VECTORS).shape == (0, 2)
    assert data_set((), NUMBERS).shape == (0,)
    assert (data_set((1, 1, 3), NUMBERS) == [0.0, 0.0, 9.0]).all()


@pytest.mark.paper("ptr", "Theorem 5.1")
@pytest.mark.parametrize("num_trimmed", [0, 1, 2, 3])
def test_the_trimmed_sum_agrees_with_the_search(num_trimmed):
    how = {"num_records": 3, "edits": 2, "bounds": (0.0, 0.5, 0.9, 2.0)}
    got = compare(TrimmedSum(num_trimmed, 2.0), VECTORS, **how)
    assert got == {
        "data sets": 56,
        "sensitivities": 168,
        "sensitivities that differ": 0,
        "margins": 224,
        "margins that differ": 0,
    }


@pytest.mark.paper("ptr", "Section 4.1")
@pytest.mark.parametrize("statistic", [Median(-1.0, 9.0), InterquartileRange(1, -1.0, 9.0)])
def test_ranked_statistics_agree_with_the_search(statistic):
    got = compare(statistic, NUMBERS, num_records=4, edits=3, bounds=(0.0, 1.0, 1.5, 7.5))
    assert got["data sets"] == 70
    assert got["sensitivities that differ"] == got["margins that differ"] == 0


def test_wrong_statistics_are_found_out():
    @dataclasses.dataclass(frozen=True)
    class OneTooSmall(TrimmedSum):
        def local_sensitivity(self, data, *, edits=0):
            return super().local_sensitivity(data, edits=max(0, edits - 1))

        def safety_margin(self, data, *, bound):
            return super().safety_margin(data, bound=bound) + 1

    class LongestKept(TrimmedSum):
        def value(self, data):
            order = np.argsort(-np.linalg.norm(data, axis=1), kind="stable")
            return super().value(data) if len(data) < 2 else data[order[: len(data) - self.num_trimmed]].sum(axis=0)

    how = {"num_records": 3, "edits": 2, "bounds": (0.5, 0.9)}
    wrong = compare(OneTooSmall(2, 2.0), VECTORS, **how)
    assert min(wrong["sensitivities that differ"], wrong["margins that differ"]) > 20
    assert compare(LongestKept(2, 2.0), VECTORS, **how)["sensitivities that differ"] > 20


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"num_records": -1}, "num_records"), ({"edits": 0.5}, "edits"), ({"universe": []}, "universe")],
)
def test_bad_arguments_are_named(changed, name):
    usual = {"universe": NUMBERS, "num_records": 1, "edits": 1}
    with pytest.raises((ValueError, TypeError), match=name):
        local_sensitivities(Median(-1.0, 9.0), **usual | changed)
