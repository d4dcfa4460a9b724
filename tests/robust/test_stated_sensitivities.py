"""What the plans of the estimators state, against how far one record moves their answers: same noise, poles apart.

An estimate less noise moves by what the record moved. Far records lie on the region's edge, so the bound is attained.
"""

import math

import numpy as np
import pytest

from privrob.robust.boosting import repeated
from privrob.robust.dpfilter import private_filter, sound_plan
from privrob.robust.exponential_time import exponential_time_mean, private_tukey_median
from privrob.robust.filtering import refused
from privrob.robust.heavy_tails import truncated_mean
from privrob.robust.noiseplan import gdp_budget
from privrob.robust.prime import make_plan, prime, region_for, settings_for
from privrob.robust.private_means import dp_mean, shrinking_mean
from privrob.robust.rows import Cube

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
N = 40
PLACE = {"location": np.zeros(3)}
ONCE = {
    "dp mean, cube": lambda x, r: dp_mean(x, rng=r, clip="cube", **PLACE, **BUDGET),
    "dp mean, ball": lambda x, r: dp_mean(x, rng=r, clip="ball", **PLACE, **BUDGET),
    "truncated mean": lambda x, r: truncated_mean(x, rng=r, corruption_rate=0.1, **PLACE, **BUDGET),
    "shrinking mean": lambda x, r: shrinking_mean(x, rng=r, radius=4.0, num_steps=1, **BUDGET),
}


def poles(end=1e3):
    data = np.full((N, 3), end)
    other = data.copy()
    other[0] = -end
    return data, other


def sensitivity_of(plan):
    return next(e.mechanism.l2_sensitivity for e in plan.entries if e.what.startswith("mean"))


@pytest.mark.paper("prime", "Figure 1")
@pytest.mark.parametrize("name", ONCE)
def test_a_mean_moves_by_its_stated_sensitivity_at_the_poles(name):
    one, other = (ONCE[name](x, np.random.default_rng(3)) for x in poles())
    moved = float(np.linalg.norm(one.estimate - other.estimate))
    assert moved == pytest.approx(sensitivity_of(one.noise), rel=1e-9)  # the noise cancels but for its last bits
    assert one.noise.epsilon(BUDGET["delta"]).upper <= BUDGET["epsilon"]


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_each_step_of_the_shrinking_mean_states_its_own_ball(num_steps):
    found = shrinking_mean(np.zeros((N, 3)), rng=np.random.default_rng(4), radius=9.0, num_steps=num_steps, **BUDGET)
    reach = math.sqrt(3) + math.sqrt(2 * math.log(N / 0.1))
    for step, entry in zip(found.trace, found.noise.entries, strict=True):
        assert entry.mechanism.l2_sensitivity == pytest.approx(2 * (step["radius"] + reach) / N, rel=1e-12)
        assert entry.mechanism.noise_std == step["noise_std"]
    assert found.noise.gdp_mu == pytest.approx(gdp_budget(2.0, delta=1e-5, lost_share=0.0)[0], rel=1e-9)


@pytest.mark.paper("prime", "Algorithm 10")
@pytest.mark.parametrize("variant", ["ball", "tuned"])
def test_the_queries_of_prime_state_the_diameter_of_their_region(variant):
    settings = settings_for(variant)
    how = {"num_records": N, "corruption_rate": 0.1}
    square = (diameter := region_for(settings, np.zeros(3), **how).diameter) ** 2
    plan = make_plan(settings, dimension=3, **how, **BUDGET)
    stated = {e.what: (e.mechanism.l2_sensitivity, e.asked) for e in plan.entries if not e.what.startswith("range")}
    assert stated == {
        "size": (1.0, 5),  # T₁ epochs and the last set
        "epoch_norm": (square / N, 4),
        "norm": (square / N, 4),  # T₁(T₂ − 1): an epoch's first iteration has the epoch's
        "second_moment": (square / N, 8),
        "centre": (diameter, 8),
        "histogram": (math.sqrt(2) / N, 8),
        "mean": (diameter, 1),
    }
    assert plan.gdp_mu == pytest.approx(gdp_budget(2.0, delta=1e-5)[0], rel=1e-9)


@pytest.mark.paper("prime", "Algorithm 8")
def test_the_queries_of_the_sound_filter_state_the_diameter_of_their_cube():
    diameter = Cube(np.zeros(3), 7.0).diameter
    plan = sound_plan(2.0, delta=1e-5, num_records=N, dimension=3, diameter=diameter, num_steps=6)
    stated = {e.what: (e.mechanism.l2_sensitivity, e.asked) for e in plan.entries if not e.what.startswith("range")}
    square = diameter**2 / N
    assert stated == {"size": (1.0, 6), "mean": (diameter, 6), "norm": (square, 6), "second_moment": (square, 6)}
    assert plan.gdp_mu == pytest.approx(gdp_budget(2.0, delta=1e-5)[0], rel=1e-9)


def test_noisy_points_are_brought_back_to_the_region():
    """Scores stay below the squared diameter only about a point within: with little data all noisy points lie out."""
    seen = []

    class Seen:
        """Answers of the true curator, its steps and thresholds noted."""

        def __new__(cls, rows, **how):
            from privrob.robust.curator import Curator

            class Noted(Curator):
                def threshold_queries(self, point, factor, **more):
                    seen.append((self.rows.region, point))
                    return super().threshold_queries(point, factor, **more)

                def second_moment(self, about=None):
                    if about is not None:
                        seen.append((self.rows.region, about))
                    return super().second_moment(about)

            return Noted(rows, **how)

    data = np.random.default_rng(5).standard_normal((N, 3)) * 4
    how = {"corruption_rate": 0.1, "curator_type": Seen, **PLACE, **BUDGET}
    for seed in range(60):
        prime(data, rng=np.random.default_rng(seed), **how)
        private_filter(data, rng=np.random.default_rng(seed), num_steps=2, **how)
    assert {type(region).__name__ for region, _ in seen} == {"Ball", "Cube"}
    for region, point in seen:
        np.testing.assert_allclose(region.clip(np.asarray(point)), point, rtol=1e-12)


@pytest.mark.paper("prime", "Algorithm 2")
@pytest.mark.parametrize("form", ["sound", "as_printed"])
def test_choices_state_what_they_spend(form):
    """A third of ε for the candidates (all of it as printed); 1/n for a depth."""
    data = np.zeros((60, 1))
    how = {"corruption_rate": 0.1, "location": np.zeros(1), "half_width": 3.0, "spacing": 0.5, "form": form}
    found = exponential_time_mean(data, rng=np.random.default_rng(6), epsilon=300.0, delta=1e-5, **how)
    choice = found.noise["choice"]
    if form == "sound":
        assert choice.pure_epsilon == pytest.approx(100.0, rel=1e-12)
        assert found.noise["goodness"].pure_epsilon == pytest.approx(100.0, rel=1e-12)
    else:
        assert choice.pure_epsilon >= 300.0
    depth = private_tukey_median(data, rng=np.random.default_rng(7), epsilon=3.0, half_range=1.0, spacing=1.0)
    assert (depth.noise["choice"].pure_epsilon, depth.noise["choice"].sensitivity) == (3.0, 1 / 60)


def test_repeated_runs_get_a_share_of_both_numbers():
    asked = []

    def estimator(data, rng, *, epsilon, delta):
        asked.append((epsilon, delta))
        return refused("none")

    repeated(np.zeros((4, 1)), estimator, epsilon=2.0, delta=1e-5, num_runs=4, rng=np.random.default_rng(8))
    assert asked == [(0.5, 2.5e-6)] * 4
