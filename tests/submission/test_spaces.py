"""The space of a search in the forms of Python: plain values, Optuna's distributions, KerasTuner's HyperParameters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras_tuner import HyperParameters
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from lockstep.errors import InvalidInputError
from lockstep.jobs.input.hyperparameters import HyperparameterSpec
from lockstep.submission.spaces import read_space


def short(space: Any) -> dict[str, tuple[Any, ...]]:
    """Returns a space as the contract would parse it: type, ends or values, and scale unless it is linear."""
    spec = HyperparameterSpec.model_validate({"params": read_space(space)})
    found = {}
    for param in spec.params:
        values = param.categorical_values or param.discrete_values or (param.min_value, param.max_value)
        scale = str(param.scale_type).removeprefix("UNIT_").removesuffix("_SCALE")
        found[param.parameter_name] = (str(param.type), values, *(() if scale in {"NONE", "LINEAR"} else (scale,)))
    return found


def test_plain_values_and_ranges() -> None:
    assert short(
        {
            "rate": (1e-4, 1e-1, "log"),
            "momentum": (0.5, 0.99, "reverse_log"),
            "dropout": (0, 0.5),
            "layers": (1, 4),
            "width": (8, 512, "log"),
            "units": [64, 16, 32],
            "activation": ["relu", "tanh"],
            "augment": [True, False],
        }
    ) == {
        "rate": ("DOUBLE", (1e-4, 1e-1), "LOG"),
        "momentum": ("DOUBLE", (0.5, 0.99), "REVERSE_LOG"),
        "dropout": ("DOUBLE", (0, 0.5)),
        "layers": ("INTEGER", (1, 4)),
        "width": ("INTEGER", (8, 512), "LOG"),
        "units": ("DISCRETE", (16, 32, 64)),
        "activation": ("CATEGORICAL", ("relu", "tanh")),
        "augment": ("DISCRETE", (0, 1)),
    }


def test_distributions_of_optuna() -> None:
    assert short(
        {
            "rate": FloatDistribution(1e-4, 1e-1, log=True),
            "dropout": FloatDistribution(0, 0.5, step=0.1),
            "layers": IntDistribution(1, 4),
            "width": IntDistribution(8, 32, step=8),
            "steps": IntDistribution(1, 1000, log=True),
            "loss": CategoricalDistribution(["a", "b"]),
            "units": CategoricalDistribution([32, 16]),
        }
    ) == {
        "rate": ("DOUBLE", (1e-4, 1e-1), "LOG"),
        "dropout": ("DISCRETE", (0, 0.1, 0.2, pytest.approx(0.3), 0.4, 0.5)),
        "layers": ("INTEGER", (1, 4)),
        "width": ("DISCRETE", (8, 16, 24, 32)),
        "steps": ("INTEGER", (1, 1000), "LOG"),
        "loss": ("CATEGORICAL", ("a", "b")),
        "units": ("DISCRETE", (16, 32)),
    }


def test_hyperparameters_of_keras_tuner() -> None:
    hp = HyperParameters()
    hp.Float("rate", 1e-4, 1e-1, sampling="log")
    hp.Float("momentum", 0.5, 0.99, sampling="reverse_log")
    hp.Float("dropout", 0.0, 0.5, step=0.25)
    hp.Float("decay", 1e-4, 1.0, step=10, sampling="log")
    hp.Int("layers", 1, 4)
    hp.Int("units", 32, 128, step=32)
    hp.Int("batch", 2, 32, step=2, sampling="log")
    hp.Int("any", 1, 4, step=1)
    hp.Choice("activation", ["relu", "tanh"])
    hp.Choice("filters", [64, 32])
    hp.Boolean("augment")
    hp.Fixed("optimizer", "adam")
    hp.Fixed("epochs", 3)
    assert short(hp) == {
        "rate": ("DOUBLE", (1e-4, 1e-1), "LOG"),
        "momentum": ("DOUBLE", (0.5, 0.99), "REVERSE_LOG"),
        "dropout": ("DISCRETE", (0, 0.25, 0.5)),
        "decay": ("DISCRETE", pytest.approx((1e-4, 1e-3, 1e-2, 0.1, 1.0))),
        "layers": ("INTEGER", (1, 4)),
        "units": ("DISCRETE", (32, 64, 96, 128)),
        "batch": ("DISCRETE", (2, 4, 8, 16, 32)),
        "any": ("INTEGER", (1, 4)),
        "activation": ("CATEGORICAL", ("relu", "tanh")),
        "filters": ("DISCRETE", (32, 64)),
        "augment": ("DISCRETE", (0, 1)),
        "optimizer": ("CATEGORICAL", ("adam",)),
        "epochs": ("DISCRETE", (3,)),
    }


@given(
    low=st.integers(1, 50),
    span=st.integers(0, 500),
    step=st.integers(2, 7),
    sampling=st.sampled_from(["linear", "log", "reverse_log"]),
)
def test_a_range_with_steps_has_the_values_of_keras_tuner(low: int, span: int, step: int, sampling: str) -> None:
    hp = HyperParameters()
    hp.Int("n", low, low + span, step=step, sampling=sampling)
    (parameter,) = hp.space
    wanted = {int(parameter._get_value_by_index(index)) for index in range(parameter._get_n_values())}
    assert set(short(hp)["n"][1]) == wanted


def test_the_contract_s_params_are_taken_as_they_are() -> None:
    params = [{"parameterName": "n", "type": "INTEGER", "minValue": 1, "maxValue": 3}]
    assert read_space(params) == params


def conditional() -> HyperParameters:
    hp = HyperParameters()
    hp.Choice("model", ["a", "b"])
    with hp.conditional_scope("model", ["b"]):
        hp.Int("depth", 1, 3)
    return hp


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "the space; received []; allowed: a parameter or more, by their names"),
        ({3: [1]}, "the space; received [3]; allowed: a parameter or more, by their names"),
        (
            7,
            "the space; received 'a value of type int'; allowed: a dictionary of parameters, the contract's params, or",
        ),
        ({"a": 7}, "parameter 'a'; received 7; allowed: a list of values, a range (lowest, highest), a range with a"),
        ({"a": []}, "parameter 'a'; received []; allowed: values that are all texts or all numbers"),
        ({"a": ["x", 1]}, "parameter 'a'; received ['x', 1]; allowed: values that are all texts or all numbers"),
        ({"a": [None, 1]}, "parameter 'a'; received [None, 1]; allowed: values that are all texts or all numbers"),
        ({"a": (1, 2, 3, 4)}, "parameter 'a'; received (1, 2, 3, 4); allowed: (lowest, highest) or (lowest, highest, "),
        ({"a": (1, 2, "cubic")}, "parameter 'a'; received (1, 2, 'cubic'); allowed: (lowest, highest) or (lowest, hi"),
        ({"a": IntDistribution(0, 10**6, step=2)}, "parameter 'a': a range with steps; received '500001 values'; allo"),
        (conditional(), "parameter 'depth' of KerasTuner has a condition; received "),
        (HyperParameters(), "the space; received 'HyperParameters without a parameter'; allowed: "),
    ],
)
def test_other_forms_are_refused(space: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_space(space)
    assert str(caught.value).startswith(message)
