"""Describes the space of a search: its points, their number, and the arguments that a program receives for one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lockstep.jobs.input.hyperparameters import HyperparameterSpec, ParameterSpec, ParameterType
from lockstep.jobs.tuning.trials import Value


def num_points(spec: HyperparameterSpec) -> int | None:
    """Returns the number of points of the space; None if a DOUBLE makes them uncountable."""
    sizes = [num_values(param) for param in spec.params]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def num_values(param: ParameterSpec) -> int | None:
    """Returns the number of values of a parameter; None for a DOUBLE with a range."""
    if param.type is ParameterType.CATEGORICAL:
        return len(param.categorical_values)
    if param.type is ParameterType.DISCRETE:
        return len(param.discrete_values)
    assert param.min_value is not None
    assert param.max_value is not None
    if param.type is ParameterType.INTEGER:
        return int(param.max_value) - int(param.min_value) + 1
    return 1 if param.min_value == param.max_value else None


def num_trials(spec: HyperparameterSpec) -> int:
    """Returns the maximum number of a search's trials: ``maxTrials``, or the number of points if that is smaller.

    No point is tried twice, except after a trial that was lost. So a search over few points ends when all are tried.
    """
    points = num_points(spec)
    return spec.max_trials if points is None else min(points, spec.max_trials)


def discrete_values(param: ParameterSpec) -> Sequence[float | int]:
    """Returns the values of a DISCRETE as programs receive them: ints if all are whole numbers, otherwise floats."""
    if all(value == int(value) for value in param.discrete_values):
        return [int(value) for value in param.discrete_values]
    return param.discrete_values


def point(spec: HyperparameterSpec, *, index: int) -> dict[str, Value]:
    """Returns a point of a space without ranges of DOUBLE, by its index; the last parameter changes fastest.

    Args:
        spec: the search.
        index: the point's index, from 0 to ``num_points(spec) - 1``.
    """
    values: dict[str, Value] = {}
    for param in reversed(spec.params):
        size = num_values(param)
        assert size is not None
        index, place = divmod(index, size)
        values[param.parameter_name] = _value(param, place)
    return {param.parameter_name: values[param.parameter_name] for param in spec.params}


def _value(param: ParameterSpec, place: int) -> Value:
    if param.type is ParameterType.CATEGORICAL:
        return param.categorical_values[place]
    if param.type is ParameterType.DISCRETE:
        return discrete_values(param)[place]
    assert param.min_value is not None
    return int(param.min_value) + place if param.type is ParameterType.INTEGER else param.min_value


def contains(spec: HyperparameterSpec, *, parameters: Mapping[str, Value]) -> bool:
    """Returns whether values are a point of the space: exactly its parameters, each with one of its values."""
    if set(parameters) != {param.parameter_name for param in spec.params}:
        return False
    return all(_is_value(param, parameters[param.parameter_name]) for param in spec.params)


def _is_value(param: ParameterSpec, value: Value) -> bool:
    if param.type is ParameterType.CATEGORICAL:
        return value in param.categorical_values
    if isinstance(value, str):
        return False
    if param.type is ParameterType.DISCRETE:
        return value in param.discrete_values
    assert param.min_value is not None
    assert param.max_value is not None
    whole = param.type is not ParameterType.INTEGER or value == int(value)
    return whole and param.min_value <= value <= param.max_value


def parse_value(param: ParameterSpec, text: str) -> Value:
    """Returns a parameter's value from its text, as `arguments_of` and the contract's ``hyperparameters`` have it.

    Raises:
        ValueError: the text is not a number, and the parameter is.
    """
    if param.type is ParameterType.CATEGORICAL:
        return text
    if param.type is ParameterType.INTEGER:
        return int(text)
    number = float(text)
    is_whole = param.type is ParameterType.DISCRETE and all(isinstance(one, int) for one in discrete_values(param))
    return int(number) if is_whole else number


def arguments_of(parameters: Mapping[str, Value]) -> list[str]:
    """Returns the arguments that a trial's program receives after its own ones, one ``--NAME=VALUE`` a parameter.

    Floats are written so that they are read back exactly (``1e-05``), and ints without a decimal point.
    """
    return [f"--{name}={value}" for name, value in parameters.items()]
