"""Reads the space of a search in the forms that Python programs have, into the contract's ``params``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from lockstep.errors import InvalidInputError
from lockstep.jobs.input.hyperparameters import MAX_DISCRETE_VALUES, ParameterType, ScaleType

Space: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | Any
"""A dictionary of values or ranges, the contract's ``params``, or KerasTuner's ``HyperParameters``."""

_SCALES: Final = {
    "linear": ScaleType.UNIT_LINEAR_SCALE,
    "log": ScaleType.UNIT_LOG_SCALE,
    "reverse_log": ScaleType.UNIT_REVERSE_LOG_SCALE,
}
_FORMS: Final = (
    "a list of values, a range (lowest, highest), a range with a scale (lowest, highest, 'log'), or a distribution of "
    "Optuna"
)
_TOLERANCE: Final = 1e-8
"""How far rounding may carry the last value of a range with steps beyond its end, in steps."""


def read_space(space: Space) -> list[dict[str, Any]]:
    """Returns the space of a search as the contract's ``params``.

    Args:
        space: one of:

            - a dictionary with, for each parameter, a list of values, ``(lowest, highest)``,
              ``(lowest, highest, scale)`` with the scale "linear", "log" or "reverse_log", or a distribution of Optuna;
            - the contract's ``params``: a list of dictionaries;
            - KerasTuner's ``HyperParameters`` without conditional scopes.

            A range of two ints is one of ints. Values of a list are all texts or all numbers. Booleans become 0 and 1.

    Raises:
        InvalidInputError: the space or a parameter has another form. The rules of the contract are checked later, by
            `lockstep.jobs.input.documents.parse_job`.
    """
    if isinstance(space, Mapping):
        named = cast("Mapping[object, object]", space)
        wrong = [name for name in named if not isinstance(name, str)]
        if wrong or not named:
            raise InvalidInputError("the space", received=list(named), allowed="a parameter or more, by their names")
        return [_param(str(name), form) for name, form in named.items()]
    if isinstance(space, Sequence) and not isinstance(space, str):
        items = cast("Sequence[object]", space)
        if items and all(isinstance(item, Mapping) for item in items):
            return [dict(cast("Mapping[str, Any]", item)) for item in items]
    kind = type(cast("object", space)).__name__
    if kind == "HyperParameters":  # not imported: the package is needed only by those who have such an object
        found = cast("list[Any]", cast("Any", space).space)
        if found:
            return _keras_tuner_params(found)
    received = f"{kind} without a parameter" if kind == "HyperParameters" else f"a value of type {kind}"
    raise InvalidInputError(
        "the space",
        received=received,
        allowed="a dictionary of parameters, the contract's params, or KerasTuner's HyperParameters with a parameter",
    )


def _param(name: str, form: object) -> dict[str, Any]:
    if isinstance(form, list):
        return _choice(name, cast("list[Any]", form))
    if isinstance(form, tuple):
        return _range(name, cast("tuple[Any, ...]", form))
    read = _DISTRIBUTIONS.get(type(form).__name__)
    if read is None or not type(form).__module__.startswith("optuna."):
        raise InvalidInputError(f"parameter {name!r}", received=form, allowed=_FORMS)
    return read(name, form)


def _range(name: str, form: tuple[Any, ...]) -> dict[str, Any]:
    scale = form[2] if len(form) == 3 else "linear"
    ends = form[:2]
    if len(form) not in (2, 3) or not all(_is_number(end) for end in ends) or scale not in _SCALES:
        raise InvalidInputError(
            f"parameter {name!r}",
            received=form,
            allowed="(lowest, highest) or (lowest, highest, scale) with the scale 'linear', 'log' or 'reverse_log'",
            action="give values as a list",
        )
    is_whole = all(isinstance(end, int) for end in ends)
    return _numeric(name, low=ends[0], high=ends[1], scale=str(scale), is_whole=is_whole)


def _numeric(name: str, *, low: float, high: float, scale: str, is_whole: bool) -> dict[str, Any]:
    return {
        "parameterName": name,
        "type": ParameterType.INTEGER if is_whole else ParameterType.DOUBLE,
        "minValue": low,
        "maxValue": high,
        "scaleType": _SCALES[scale],
    }


def _choice(name: str, values: Iterable[Any]) -> dict[str, Any]:
    found = [int(value) if isinstance(value, bool) else value for value in values]
    if found and all(isinstance(value, str) for value in found):
        return {"parameterName": name, "type": ParameterType.CATEGORICAL, "categoricalValues": found}
    if not found or not all(_is_number(value) for value in found):
        raise InvalidInputError(
            f"parameter {name!r}", received=found, allowed="values that are all texts or all numbers"
        )
    return {"parameterName": name, "type": ParameterType.DISCRETE, "discreteValues": sorted(set(found))}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _steps(name: str, *, low: float, high: float, num: int, value_at: Callable[[int], float]) -> dict[str, Any]:
    if num > MAX_DISCRETE_VALUES:
        raise InvalidInputError(
            f"parameter {name!r}: a range with steps",
            received=f"{num} values",
            allowed=f"{MAX_DISCRETE_VALUES} values",
            action="leave out the step",
        )
    values = [min(max(value_at(index), low), high) for index in range(num)]
    return _choice(name, values)


def _float_distribution(name: str, form: Any) -> dict[str, Any]:
    if form.step is None:
        scale = "log" if form.log else "linear"
        return _numeric(name, low=form.low, high=form.high, scale=scale, is_whole=False)
    return _linear_steps(name, low=form.low, high=form.high, step=form.step)


def _int_distribution(name: str, form: Any) -> dict[str, Any]:
    if form.step == 1:
        return _numeric(name, low=form.low, high=form.high, scale="log" if form.log else "linear", is_whole=True)
    return _linear_steps(name, low=form.low, high=form.high, step=form.step)


def _linear_steps(name: str, *, low: float, high: float, step: float) -> dict[str, Any]:
    num = math.floor((high - low) / step + _TOLERANCE) + 1
    return _steps(name, low=low, high=high, num=num, value_at=lambda index: low + index * step)


def _categorical_distribution(name: str, form: Any) -> dict[str, Any]:
    return _choice(name, form.choices)


_DISTRIBUTIONS: Final[Mapping[str, Callable[[str, Any], dict[str, Any]]]] = {
    "FloatDistribution": _float_distribution,
    "IntDistribution": _int_distribution,
    "CategoricalDistribution": _categorical_distribution,
}


def _keras_tuner_params(found: Sequence[Any]) -> list[dict[str, Any]]:
    for parameter in found:
        if parameter.conditions:
            raise InvalidInputError(
                f"parameter {parameter.name!r} of KerasTuner has a condition",
                received=repr(parameter.conditions[0].get_config()),
                allowed="parameters that every trial has",
                action="search it in every trial, and ignore it in the program where it has no meaning",
            )
    return [_keras_tuner_param(parameter) for parameter in found]


def _keras_tuner_param(parameter: Any) -> dict[str, Any]:
    name, kind = str(parameter.name), type(parameter).__name__
    if kind == "Fixed":
        return _choice(name, [parameter.value])
    if kind in ("Boolean", "Choice"):
        return _choice(name, parameter.values)
    if kind not in ("Int", "Float"):
        raise InvalidInputError(
            f"parameter {name!r} of KerasTuner", received=kind, allowed="Boolean, Choice, Fixed, Float, Int"
        )
    low, high, step, scale = parameter.min_value, parameter.max_value, parameter.step, str(parameter.sampling)
    if step is None or (kind == "Int" and step == 1 and scale == "linear"):
        return _numeric(name, low=low, high=high, scale=scale, is_whole=kind == "Int")
    if scale == "linear":
        return _linear_steps(name, low=low, high=high, step=step)
    num = math.floor(math.log(high / low, step) + _TOLERANCE) + 1

    def value_at(index: int) -> float:
        value = low * step**index
        value = high + low - value if scale == "reverse_log" else value
        return int(value) if kind == "Int" else value

    return _steps(name, low=low, high=high, num=num, value_at=value_at)
