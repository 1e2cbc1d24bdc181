"""The hyperparameter search of a job, as the contract writes one (``GoogleCloudMlV1__HyperparameterSpec``)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from typing import Self, final

from pydantic import Field, model_validator

from lockstep.jobs.parsing.fields import AbstractDocument, Double, Flag, Int32, Text
from lockstep.jobs.parsing.rules import Violation, raise_violations

MAX_DISCRETE_VALUES = 1000


@final
class Goal(StrEnum):
    """Which way the metric is to go."""

    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"


@final
class Algorithm(StrEnum):
    """How the next trial's values are chosen; unspecified is Bayesian optimisation."""

    UNSPECIFIED = "ALGORITHM_UNSPECIFIED"
    GRID_SEARCH = "GRID_SEARCH"
    RANDOM_SEARCH = "RANDOM_SEARCH"


@final
class ParameterType(StrEnum):
    """What kind of values a parameter takes."""

    DOUBLE = "DOUBLE"
    INTEGER = "INTEGER"
    CATEGORICAL = "CATEGORICAL"
    DISCRETE = "DISCRETE"


@final
class ScaleType(StrEnum):
    """How a numeric parameter is laid over the search space."""

    NONE = "NONE"
    UNIT_LINEAR_SCALE = "UNIT_LINEAR_SCALE"
    UNIT_LOG_SCALE = "UNIT_LOG_SCALE"
    UNIT_REVERSE_LOG_SCALE = "UNIT_REVERSE_LOG_SCALE"


@final
class ParameterSpec(AbstractDocument):
    """One parameter of the search.

    Attributes:
        parameter_name: its name; the program gets it as ``--NAME=VALUE``.
        type: what kind of values it takes.
        min_value: smallest value of a DOUBLE or INTEGER.
        max_value: largest value of a DOUBLE or INTEGER.
        categorical_values: the values of a CATEGORICAL.
        discrete_values: the values of a DISCRETE, strictly increasing, at most 1000.
        scale_type: how it is laid over the search space.
    """

    parameter_name: Text
    type: ParameterType
    min_value: Double | None = None
    max_value: Double | None = None
    categorical_values: tuple[Text, ...] = ()
    discrete_values: tuple[Double, ...] = ()
    scale_type: ScaleType = ScaleType.NONE

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_violations(_parameter_violations(self))
        return self


@final
class HyperparameterSpec(AbstractDocument):
    """A search over hyperparameters.

    Attributes:
        goal: which way the metric is to go.
        params: the parameters to search, by unique names.
        max_trials: how many trials in all.
        max_parallel_trials: how many at a time.
        max_failed_trials: failed trials that end the job; 0 leaves it to the service.
        hyperparameter_metric_tag: name of the metric.
        resume_previous_job_id: an earlier search whose trials count.
        enable_trial_early_stopping: whether trials without promise end early.
        algorithm: how values are chosen.
    """

    goal: Goal = Goal.MAXIMIZE
    params: tuple[ParameterSpec, ...]
    max_trials: Int32 = Field(default=1, ge=1)
    max_parallel_trials: Int32 = Field(default=1, ge=1)
    max_failed_trials: Int32 = Field(default=0, ge=0)
    hyperparameter_metric_tag: Text = "training/hptuning/metric"
    resume_previous_job_id: Text | None = None
    enable_trial_early_stopping: Flag = False
    algorithm: Algorithm = Algorithm.UNSPECIFIED

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.params:
            raise_violations([Violation(path=("params",), received=[], allowed="one parameter or more")])
        names = [param.parameter_name for param in self.params]
        raise_violations(
            Violation(path=("params", index, "parameterName"), received=name, allowed="a name that no other has")
            for index, name in enumerate(names)
            if name in names[:index]
        )
        return self


def _parameter_violations(spec: ParameterSpec) -> Iterator[Violation]:
    numeric = spec.type in (ParameterType.DOUBLE, ParameterType.INTEGER)
    for key, value in (("minValue", spec.min_value), ("maxValue", spec.max_value)):
        if numeric and value is None:
            yield Violation(path=(key,), allowed=f"a number, since type is {spec.type}")
        if spec.type is ParameterType.INTEGER and value is not None and value != int(value):
            yield Violation(path=(key,), received=value, allowed="a whole number, since type is INTEGER")
        if spec.type is ParameterType.CATEGORICAL and value is not None:
            yield Violation(path=(key,), received=value, allowed="nothing, since type is CATEGORICAL")
    if numeric and spec.min_value is not None and spec.max_value is not None and spec.min_value > spec.max_value:
        yield Violation(path=("maxValue",), received=spec.max_value, allowed=f"at least minValue, {spec.min_value}")
    if spec.type is ParameterType.CATEGORICAL and not spec.categorical_values:
        yield Violation(path=("categoricalValues",), allowed="one value or more, since type is CATEGORICAL")
    if spec.type is not ParameterType.DISCRETE:
        return
    values = spec.discrete_values
    rising = all(a < b for a, b in pairwise(values))
    if not values or len(values) > MAX_DISCRETE_VALUES or not rising:
        yield Violation(
            path=("discreteValues",),
            received=list(values),
            allowed=f"1 to {MAX_DISCRETE_VALUES} numbers in strictly increasing order, since type is DISCRETE",
        )
