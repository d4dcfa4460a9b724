"""The contraction by search: the rule of the document, and three that break it."""

import itertools

import numpy as np
import pytest

from privrob.robust import contraction
from privrob.robust.filtering import FilteredSet
from privrob.robust.rows import Everywhere, Rows

LEMMA = pytest.mark.paper("prime", "Lemma 2.2")


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.paper("prime", "Definition 1.1")
def test_distance_is_one_exactly_for_one_record_added_removed_or_replaced():
    sets = [s for m in range(4) for s in itertools.combinations_with_replacement("abc", m)]
    for one, other in itertools.product(sets, repeat=2):
        drops = [one[:i] + one[i + 1 :] for i in range(len(one))]
        near = {one, *drops} | {tuple(sorted((*s, k))) for s in [one, *drops] for k in "abc"}
        rows = [np.array([[float(ord(c))] for c in s]).reshape(-1, 1) for s in (one, other)]
        assert (contraction.distance(*rows) <= 1) == (other in near)


@LEMMA
@pytest.mark.paper("prime", "Lemma F.1")
def test_no_pair_of_five_thousand_ends_further_apart_although_most_have_ties():
    found = contraction.search(5000, rule="shared", rng=rng(1))
    assert found.violations == 0
    assert found.worst == 1
    assert sum(found.counts) == found.trials == 5000
    assert found.tied > 3000
    assert found.moved > 4000


@LEMMA
@pytest.mark.parametrize("rule", ["position", "own draw", "largest"])
def test_other_rules_are_no_contractions(rule):
    """Ties by position, a threshold for each record (the authors' script), a share of the largest score."""
    found = contraction.search(1200, rule=rule, rng=rng(2))
    assert found.violations > 0
    assert found.worst >= 2
    one, other, steps, size = found.example
    assert contraction.distance(one, other) <= 1
    left = [contraction.filtered(points, steps, size=size, rule=rule) for points in (one, other)]
    assert contraction.distance(*left) == found.worst


@LEMMA
def test_the_search_filters_as_the_library_does():
    for seed in range(60):
        generator = rng(seed)
        points, _ = contraction.drawn_pair(generator, num_records=7, dimension=2, reach=2, remove=False)
        steps = contraction.drawn_steps(generator, num_steps=3, num_records=7, dimension=2)
        state = FilteredSet(Rows(points, Everywhere(np.zeros(2))))
        for step in steps:
            state.remove(state.scores(step.point, step.vector[:, None]), step.threshold, size=2)
        assert contraction.distance(contraction.filtered(points, steps, size=2), points[state.alive]) == 0


@pytest.mark.paper("prime", "Definition C.1")
def test_no_order_of_the_records_changes_the_tail():
    cases, differing = contraction.order_dependent([(0.0, 0.0), (1.0, 0.0), (-1.0, 1.0), (1.0, 1.0)], num_records=3)
    assert (cases, differing) == (60, 0)


@pytest.mark.paper("prime", "D.3.2")
def test_the_printed_proof_misses_the_record_that_comes_back():
    stated, otherwise, worst = contraction.proof_cases((0.0, 1.0, 2.0, 3.0), num_records=3, threshold=0.5)
    assert otherwise > 0
    assert stated + otherwise == 20
    assert worst == 1
    assert contraction.proof_cases((0.0, 3.0), num_records=3, threshold=0.5, sizes=(3,))[1] == 0  # no room to displace


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match="did you mean 'own draw'"):
        contraction.search(5, rule="own drew", rng=rng())
