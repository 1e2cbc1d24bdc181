"""Defines a job's hyperparameter search, in the contract's form (``GoogleCloudMlV1__HyperparameterSpec``)."""

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
    """Whether to maximize or to minimize the metric."""

    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"


@final
class Algorithm(StrEnum):
    """How the values of the next trial are chosen; unspecified means Bayesian optimisation."""

    UNSPECIFIED = "ALGORITHM_UNSPECIFIED"
    GRID_SEARCH = "GRID_SEARCH"
    RANDOM_SEARCH = "RANDOM_SEARCH"


@final
class ParameterType(StrEnum):
    """The kind of values that a parameter takes."""

    DOUBLE = "DOUBLE"
    INTEGER = "INTEGER"
    CATEGORICAL = "CATEGORICAL"
    DISCRETE = "DISCRETE"


@final
class ScaleType(StrEnum):
    """How the values of a numeric parameter are scaled to the search space."""

    NONE = "NONE"
    UNIT_LINEAR_SCALE = "UNIT_LINEAR_SCALE"
    UNIT_LOG_SCALE = "UNIT_LOG_SCALE"
    UNIT_REVERSE_LOG_SCALE = "UNIT_REVERSE_LOG_SCALE"


@final
class ParameterSpec(AbstractDocument):
    """One parameter of the search space.

    Attributes:
        parameter_name: the parameter's name; the program receives it as ``--NAME=VALUE``.
        type: the kind of values that the parameter takes.
        min_value: the smallest value of a DOUBLE or INTEGER.
        max_value: the largest value of a DOUBLE or INTEGER.
        categorical_values: the values of a CATEGORICAL.
        discrete_values: the values of a DISCRETE, strictly increasing, at most 1000.
        scale_type: how the values are scaled to the search space.
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
        goal: whether to maximize or to minimize the metric.
        params: the parameters to search, with unique names.
        max_trials: the total number of trials.
        max_parallel_trials: the maximum number of trials at a time.
        max_failed_trials: the number of failed trials that ends the job; 0 lets the service decide.
        hyperparameter_metric_tag: the name of the metric.
        resume_previous_job_id: an earlier search whose trials are taken into account.
        enable_trial_early_stopping: whether unpromising trials are stopped early.
        algorithm: how the values of a trial are chosen.
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
