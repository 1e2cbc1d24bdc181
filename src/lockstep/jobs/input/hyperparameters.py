"""Defines a job's hyperparameter search, in the contract's form (``GoogleCloudMlV1__HyperparameterSpec``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from typing import Final, Self, final

from pydantic import Field, model_validator

from lockstep.jobs.parsing.fields import AbstractDocument, Double, Flag, Int32, Text
from lockstep.jobs.parsing.rules import Violation, raise_violations

MAX_DISCRETE_VALUES: Final = 1000
MAX_TRIALS: Final = 10_000
DEFAULT_METRIC: Final = "training/hptuning/metric"
"""The contract's default of ``hyperparameterMetricTag``."""

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,127}")
_OWN_FLAGS: Final = frozenset({"job-dir", "job_dir"})
"""The flags that the service itself passes to a program."""


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
class EarlyStopping(StrEnum):
    """The rule by which unpromising trials are stopped before their end."""

    MEDIAN = "MEDIAN"
    """Google Vizier's median rule: a trial stops if it is worse than half of the completed trials were by then."""
    ASHA = "ASHA"
    """Asynchronous successive halving (Li et al., 2018): only the best trials of each rung continue."""


@final
class TuningOptions(AbstractDocument):
    """Lockstep's own options of a search, under ``lockstep.tuning`` in a training input.

    Attributes:
        seed: the seed of the proposals; the same seed and the same results give the same proposals.
        early_stopping: the rule of early stopping; MEDIAN by default.
        min_measurements: the number of measurements before which no trial is stopped; the first rung of ASHA.
        reduction_factor: of ASHA: of how many trials on a rung one continues.
    """

    seed: Int32 = Field(default=0, ge=0)
    early_stopping: EarlyStopping | None = None
    min_measurements: Int32 = Field(default=1, ge=1)
    reduction_factor: Int32 = Field(default=4, ge=2)


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
        raise_violations(parameter_violations(self))
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
    max_trials: Int32 = Field(default=1, ge=1, le=MAX_TRIALS)
    max_parallel_trials: Int32 = Field(default=1, ge=1)
    max_failed_trials: Int32 = Field(default=0, ge=0)
    hyperparameter_metric_tag: Text = Field(default=DEFAULT_METRIC, min_length=1)
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
        raise_violations(
            Violation(
                path=("params", index, "type"),
                received=str(param.type),
                allowed="INTEGER, CATEGORICAL or DISCRETE, since algorithm is GRID_SEARCH",
            )
            for index, param in enumerate(self.params)
            if self.algorithm is Algorithm.GRID_SEARCH and param.type is ParameterType.DOUBLE
        )
        return self


def parameter_violations(spec: ParameterSpec) -> Iterator[Violation]:
    """Yields the rules of the contract that a parameter breaks."""
    name = spec.parameter_name
    if not _NAME.fullmatch(name):
        allowed = "1 to 128 letters, digits, _, - and ., starting with a letter or _"
        yield Violation(path=("parameterName",), received=name, allowed=allowed)
    elif name in _OWN_FLAGS:
        allowed = f"another name: Lockstep itself passes --{name}"
        yield Violation(path=("parameterName",), received=name, allowed=allowed)
    yield from _range_violations(spec)
    yield from _value_violations(spec)
    yield from _scale_violations(spec)


def _range_violations(spec: ParameterSpec) -> Iterator[Violation]:
    numeric = spec.type in (ParameterType.DOUBLE, ParameterType.INTEGER)
    for key, value in (("minValue", spec.min_value), ("maxValue", spec.max_value)):
        if numeric and value is None:
            yield Violation(path=(key,), allowed=f"a number, since type is {spec.type}")
        if spec.type is ParameterType.INTEGER and value is not None and value != int(value):
            yield Violation(path=(key,), received=value, allowed="a whole number, since type is INTEGER")
        if not numeric and value is not None:
            yield Violation(path=(key,), received=value, allowed=f"nothing, since type is {spec.type}")
    if numeric and spec.min_value is not None and spec.max_value is not None and spec.min_value > spec.max_value:
        yield Violation(path=("maxValue",), received=spec.max_value, allowed=f"at least minValue, {spec.min_value}")


def _value_violations(spec: ParameterSpec) -> Iterator[Violation]:
    choices, values = spec.categorical_values, spec.discrete_values
    if spec.type is ParameterType.CATEGORICAL:
        if not choices:
            yield Violation(path=("categoricalValues",), allowed="one value or more, since type is CATEGORICAL")
        if len(set(choices)) < len(choices):
            yield Violation(path=("categoricalValues",), received=list(choices), allowed="each value once")
    elif choices:
        allowed = f"nothing, since type is {spec.type}"
        yield Violation(path=("categoricalValues",), received=list(choices), allowed=allowed)
    if spec.type is not ParameterType.DISCRETE:
        if values:
            allowed = f"nothing, since type is {spec.type}"
            yield Violation(path=("discreteValues",), received=list(values), allowed=allowed)
        return
    rising = all(a < b for a, b in pairwise(values))
    if not values or len(values) > MAX_DISCRETE_VALUES or not rising:
        yield Violation(
            path=("discreteValues",),
            received=list(values),
            allowed=f"1 to {MAX_DISCRETE_VALUES} numbers in strictly increasing order, since type is DISCRETE",
        )


def _scale_violations(spec: ParameterSpec) -> Iterator[Violation]:
    if spec.type is ParameterType.CATEGORICAL and spec.scale_type is not ScaleType.NONE:
        allowed = "NONE, since type is CATEGORICAL"
        yield Violation(path=("scaleType",), received=str(spec.scale_type), allowed=allowed)
    if spec.scale_type not in (ScaleType.UNIT_LOG_SCALE, ScaleType.UNIT_REVERSE_LOG_SCALE):
        return
    allowed = f"more than 0, since scaleType is {spec.scale_type}"
    if spec.min_value is not None and spec.min_value <= 0:
        yield Violation(path=("minValue",), received=spec.min_value, allowed=allowed)
    if spec.discrete_values and spec.discrete_values[0] <= 0:
        yield Violation(path=("discreteValues", 0), received=spec.discrete_values[0], allowed=allowed)
