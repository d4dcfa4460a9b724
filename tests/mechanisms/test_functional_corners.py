"""What one record changes in the coefficients of the truncated reconstruction."""

import itertools

import numpy as np
import pytest

from privrob.mechanisms import functional as fm
from privrob.mechanisms import functional_corners as corners


def coefficients(x):
    return np.outer(0.5 - np.asarray(x), x)


@pytest.mark.paper("stobatch", "Equation 5")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_attained_change_is_that_of_all_pairs_of_corners(size):
    found, upper = corners.quadratic_change(num_inputs=size)
    assert found == fm.widest_change(coefficients, list(itertools.product((-1.0, 1.0), repeat=size)))
    assert found <= upper <= found + 25 / 16 * size


def test_no_pair_of_a_grid_exceeds_the_upper_value_and_some_exceed_corners():
    for size in (1, 2, 3):
        found, upper = corners.quadratic_change(num_inputs=size)
        grid = [np.array(p) for p in itertools.product(np.linspace(-1, 1, 9), repeat=size)]
        assert found <= fm.widest_change(coefficients, grid) <= upper
    assert fm.widest_change(coefficients, [[-1.0], [0.25]]) == corners.quadratic_change(num_inputs=1)[1] == 25 / 16


@pytest.mark.paper("stobatch", "Appendix B")
def test_the_rule_of_appendix_b_is_nearly_twice_what_a_patch_of_mnist_can_change():
    """Hand count at 16 of 25 inputs turned from −1 to 1."""
    turned, stay = 16, 9
    by_hand = turned**2 * 1 + turned * stay * (3 + 2)  # (1, 1): −3/2 → −1/2; mixed: −3/2 → 3/2 and −3/2 → 1/2
    found, upper = corners.quadratic_change(num_inputs=25)
    assert found == by_hand == 976
    assert found < upper < 1000 < fm.quadratic_sensitivity(num_inputs=25) == 1875


def test_all_patches_of_an_image_attain_it_at_once():
    one, other = corners.periodic_pair(side=28)
    for i, j in itertools.product(range(0, 24, 2), repeat=2):
        pair = [image[i : i + 5, j : j + 5].ravel() for image in (one, other)]
        assert np.abs(coefficients(pair[0]) - coefficients(pair[1])).sum() == 976


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="num_inputs"):
        corners.quadratic_change(num_inputs=0)
    with pytest.raises(ValueError, match="side"):
        corners.periodic_pair(side=3)
