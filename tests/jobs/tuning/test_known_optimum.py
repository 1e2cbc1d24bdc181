"""A search finds the known optimum of a function in so many trials as random search does not.

Hartmann's function of six variables has one global minimum of -3.322 and several local ones (Dixon and Szegö, 1978).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from lockstep.jobs.input.hyperparameters import HyperparameterSpec
from lockstep.jobs.tuning import Measurement, TrialResult, TrialState, Value, best_first, propose

MINIMUM = -3.32237
TOLERANCE = 0.5
NUM_TRIALS = 80

_HEIGHTS = np.array([1, 1.2, 3, 3.2])
_WIDTHS = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
_CENTRES = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann(parameters: Mapping[str, Value]) -> float:
    point = np.array([parameters[f"x{index}"] for index in range(6)])
    return -float(_HEIGHTS @ np.exp(-(_WIDTHS * (point - _CENTRES) ** 2).sum(axis=1)))


def gap(algorithm: str, *, seed: int) -> float:
    """Returns how far the best of `NUM_TRIALS` trials is from the minimum."""
    params = [{"parameterName": f"x{index}", "type": "DOUBLE", "minValue": 0, "maxValue": 1} for index in range(6)]
    spec = HyperparameterSpec.model_validate(
        {"params": params, "goal": "MINIMIZE", "maxTrials": NUM_TRIALS, "algorithm": algorithm}
    )
    trials: list[TrialResult] = []
    for number in range(1, NUM_TRIALS + 1):
        parameters = propose(spec, trials=trials, seed=seed)
        assert parameters is not None
        curve = (Measurement(step=0, value=hartmann(parameters), time_s=0),)
        trials.append(TrialResult(number=number, parameters=parameters, state=TrialState.COMPLETED, measurements=curve))
    objective = best_first(spec.goal, trials=trials)[0].objective
    assert objective is not None
    return objective - MINIMUM


def compare(seeds: range) -> None:
    found = [gap("ALGORITHM_UNSPECIFIED", seed=seed) for seed in seeds]
    at_random = [gap("RANDOM_SEARCH", seed=seed) for seed in seeds]
    print(
        f"of {len(seeds)} seeds: best {min(found):.3f} median {np.median(found):.3f} worst {max(found):.3f}; "
        f"at random {min(at_random):.3f} {np.median(at_random):.3f} {max(at_random):.3f}"
    )
    assert max(found) < TOLERANCE < min(at_random)


def test_the_optimum_is_at_the_known_place() -> None:
    place = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
    assert hartmann({f"x{index}": x for index, x in enumerate(place)}) == pytest.approx(MINIMUM, abs=1e-4)


def test_a_search_finds_a_known_optimum_and_random_search_does_not() -> None:
    compare(range(1))


@pytest.mark.heavy
def test_a_search_finds_a_known_optimum_with_each_of_twenty_seeds() -> None:
    compare(range(20))
