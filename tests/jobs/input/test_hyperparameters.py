"""What a search over hyperparameters may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.hyperparameters import Algorithm, Goal
from lockstep.jobs.input.spec import TrainingInput, unsupported

RATE = {
    "parameterName": "rate",
    "type": "DOUBLE",
    "minValue": 1e-4,
    "maxValue": 0.1,
    "scaleType": "UNIT_LOG_SCALE",
}


def parse(search: dict[str, Any], **own: Any) -> TrainingInput:
    document = {"hyperparameters": {"params": [RATE], **search}, "lockstep": own}
    return parse_training_input({"trainingInput": document}, source="config.yaml")


def test_the_contract_s_defaults_hold() -> None:
    asked = parse({})
    spec = asked.hyperparameters
    assert spec is not None
    assert unsupported(asked) == []
    assert (spec.goal, spec.algorithm, spec.max_trials, spec.max_parallel_trials, spec.max_failed_trials) == (
        Goal.MAXIMIZE,
        Algorithm.UNSPECIFIED,
        1,
        1,
        0,
    )
    assert spec.hyperparameter_metric_tag == "training/hptuning/metric"
    own = parse({"enableTrialEarlyStopping": True}, tuning={"earlyStopping": "ASHA", "seed": 3}).lockstep.tuning
    assert (own.early_stopping, own.seed, own.min_measurements, own.reduction_factor) == ("ASHA", 3, 1, 4)


NUMBERS = {"parameterName": "n", "type": "INTEGER", "minValue": 1, "maxValue": 8}


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ({"parameterName": "a b"}, "parameterName; received 'a b'; allowed: 1 to 128 letters, digits, _, - and ., "),
        ({"parameterName": "job-dir"}, "parameterName; received 'job-dir'; allowed: another name: Lockstep itself "),
        ({"minValue": 0, "scaleType": "UNIT_LOG_SCALE"}, "minValue; received 0.0; allowed: more than 0, since scaleT"),
        (
            {"minValue": -1, "scaleType": "UNIT_REVERSE_LOG_SCALE"},
            "minValue; received -1.0; allowed: more than 0, since scaleType is UNIT_REVERSE_LOG_SCALE",
        ),
        ({"maxValue": 0}, "maxValue; received 0.0; allowed: at least minValue, 1.0"),
        ({"maxValue": 8.5}, "maxValue; received 8.5; allowed: a whole number, since type is INTEGER"),
        ({"maxValue": None}, "maxValue is missing; allowed: a number, since type is INTEGER"),
        ({"categoricalValues": ["a"]}, "categoricalValues; received ['a']; allowed: nothing, since type is INTEGER"),
        ({"discreteValues": [1]}, "discreteValues; received [1.0]; allowed: nothing, since type is INTEGER"),
        (
            {"type": "DISCRETE", "discreteValues": [1]},
            "minValue; received 1.0; allowed: nothing, since type is DISCRETE",
        ),
    ],
)
def test_a_parameter_that_cannot_be_searched_is_refused(param: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"params": [NUMBERS | param]})
    assert str(caught.value).startswith(f"config.yaml: trainingInput.hyperparameters.params[0].{message}")


@pytest.mark.parametrize(
    ("search", "own", "message"),
    [
        (
            {"params": [NUMBERS, RATE], "algorithm": "GRID_SEARCH"},
            {},
            "hyperparameters.params[1].type; received 'DOUBLE'; allowed: INTEGER, CATEGORICAL or DISCRETE, since ",
        ),
        (
            {"params": [NUMBERS, NUMBERS]},
            {},
            "hyperparameters.params[1].parameterName; received 'n'; allowed: a name that no other has",
        ),
        ({"maxTrials": 0}, {}, "hyperparameters.maxTrials; received 0; allowed: greater than or equal to 1"),
        (
            {"params": [{"parameterName": "c", "type": "CATEGORICAL", "categoricalValues": ["a", "a"]}]},
            {},
            "hyperparameters.params[0].categoricalValues; received ['a', 'a']; allowed: each value once",
        ),
        (
            {
                "params": [
                    {
                        "parameterName": "c",
                        "type": "CATEGORICAL",
                        "categoricalValues": ["a"],
                        "scaleType": "UNIT_LOG_SCALE",
                    }
                ]
            },
            {},
            "hyperparameters.params[0].scaleType; received 'UNIT_LOG_SCALE'; allowed: NONE, since type is CATEGORICAL",
        ),
        (
            {},
            {"tuning": {"earlyStopping": "ASHA"}},
            "lockstep.tuning.earlyStopping; received 'ASHA'; allowed: only with hyperparameters.enableTrialEarlySto",
        ),
        ({}, {"tuning": {"reductionFactor": 1}}, "lockstep.tuning.reductionFactor; received 1; allowed: greater than "),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(search: dict[str, Any], own: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(search, **own)
    assert str(caught.value).startswith(f"config.yaml: trainingInput.{message}")


def test_options_of_a_search_without_a_search_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lockstep.tuning; received \{'seed': 3\}; allowed: only with hyperparam"):
        parse_training_input({"trainingInput": {"lockstep": {"tuning": {"seed": 3}}}}, source="config.yaml")
