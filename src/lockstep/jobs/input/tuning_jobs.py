"""Defines hyperparameter tuning jobs, the form of a search in Vertex AI, and translates them.

The documents follow the public discovery document ``aiplatform.v1.json`` and keep its names. A field that has no
counterpart in a training input is never dropped: the job is rejected with an error that names the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self, final

from pydantic import BeforeValidator, Field, model_validator

from lockstep.errors import ConfigError
from lockstep.jobs.input.custom_job_translation import translate
from lockstep.jobs.input.custom_jobs import CustomJobSpec, check_display_name
from lockstep.jobs.input.hyperparameters import (
    MAX_TRIALS,
    Algorithm,
    Goal,
    HyperparameterSpec,
    ParameterSpec,
    ParameterType,
    ScaleType,
    parameter_violations,
)
from lockstep.jobs.input.spec import EncryptionConfig, TrainingInput
from lockstep.jobs.parsing.fields import AbstractDocument, Double, Flag, Int32, Int64, Labels, Text
from lockstep.jobs.parsing.rules import Violation, raise_violations

JOB_SPEC: Final = "trialJobSpec"

_NO_START: Final = "a search has no starting point"
_MEDIAN_INSTEAD: Final = "trials are stopped by medianAutomatedStoppingSpec"


@final
class DoubleValueSpec(AbstractDocument):
    """The range of a parameter of real numbers.

    Attributes:
        min_value: the smallest value.
        max_value: the largest value.
        default_value: the value to begin with.
    """

    min_value: Double
    max_value: Double
    default_value: object = None


@final
class IntegerValueSpec(AbstractDocument):
    """The range of a parameter of whole numbers.

    Attributes:
        min_value: the smallest value.
        max_value: the largest value.
        default_value: the value to begin with.
    """

    min_value: Int64
    max_value: Int64
    default_value: object = None


@final
class CategoricalValueSpec(AbstractDocument):
    """The values of a parameter of texts.

    Attributes:
        values: the values.
        default_value: the value to begin with.
    """

    values: tuple[Text, ...]
    default_value: object = None


@final
class DiscreteValueSpec(AbstractDocument):
    """The values of a parameter of numbers that are listed.

    Attributes:
        values: the values, strictly increasing.
        default_value: the value to begin with.
    """

    values: tuple[Double, ...]
    default_value: object = None


@final
class StudyParameterSpec(AbstractDocument):
    """One parameter (``GoogleCloudAiplatformV1StudySpecParameterSpec``). It has exactly one of the four value specs.

    Attributes:
        parameter_id: the parameter's name.
        double_value_spec: its range, for real numbers.
        integer_value_spec: its range, for whole numbers.
        categorical_value_spec: its values, for texts.
        discrete_value_spec: its values, for listed numbers.
        scale_type: how the values are scaled to the search space.
        conditional_parameter_specs: parameters that only some values of this one have.
    """

    parameter_id: Text
    double_value_spec: DoubleValueSpec | None = None
    integer_value_spec: IntegerValueSpec | None = None
    categorical_value_spec: CategoricalValueSpec | None = None
    discrete_value_spec: DiscreteValueSpec | None = None
    scale_type: Literal["SCALE_TYPE_UNSPECIFIED", "UNIT_LINEAR_SCALE", "UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE"] = (
        "SCALE_TYPE_UNSPECIFIED"
    )
    conditional_parameter_specs: tuple[object, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self._value_specs()) != 1:
            received = [key for key, _, _ in self._value_specs()] or None
            allowed = "one of doubleValueSpec, integerValueSpec, categoricalValueSpec, discreteValueSpec"
            raise_violations([Violation(path=("doubleValueSpec",), received=received, allowed=allowed)])
        ((key, _, _),) = self._value_specs()
        paths = {
            "parameterName": ("parameterId",),
            "scaleType": ("scaleType",),
            "categoricalValues": (key, "values"),
            "discreteValues": (key, "values"),
        }
        raise_violations(
            Violation(
                path=paths.get(str(broken.path[0]), (key, *broken.path)),
                received=broken.received,
                allowed=broken.allowed.replace("minValue, ", f"{key}.minValue, "),
            )
            for broken in parameter_violations(self.to_param())
        )
        return self

    def _value_specs(self) -> list[tuple[str, ParameterType, AbstractDocument]]:
        kinds = (
            ("doubleValueSpec", ParameterType.DOUBLE, self.double_value_spec),
            ("integerValueSpec", ParameterType.INTEGER, self.integer_value_spec),
            ("categoricalValueSpec", ParameterType.CATEGORICAL, self.categorical_value_spec),
            ("discreteValueSpec", ParameterType.DISCRETE, self.discrete_value_spec),
        )
        return [(key, kind, spec) for key, kind, spec in kinds if spec is not None]

    def to_param(self) -> ParameterSpec:
        """Returns the parameter in the contract's form. Its rules have not been checked."""
        ((_, kind, spec),) = self._value_specs()
        values: dict[str, Any] = {}
        if isinstance(spec, DoubleValueSpec | IntegerValueSpec):
            values = {"min_value": float(spec.min_value), "max_value": float(spec.max_value)}
        elif isinstance(spec, CategoricalValueSpec):
            values = {"categorical_values": spec.values}
        elif isinstance(spec, DiscreteValueSpec):
            values = {"discrete_values": spec.values}
        is_scaled = self.scale_type != "SCALE_TYPE_UNSPECIFIED"
        return ParameterSpec.model_construct(
            parameter_name=self.parameter_id,
            type=kind,
            scale_type=ScaleType(self.scale_type) if is_scaled else ScaleType.NONE,
            **values,
        )

    def unsupported_fields(self) -> Iterator[tuple[str, str]]:
        """Yields each field that has no counterpart in the contract, and the reason."""
        if self.conditional_parameter_specs:
            yield "conditionalParameterSpecs", "a parameter is one of every trial, and has no conditions"
        for key, _, spec in self._value_specs():
            if getattr(spec, "default_value", None) is not None:
                yield f"{key}.defaultValue", _NO_START


@final
class MetricSpec(AbstractDocument):
    """The metric that the trials are compared by (``GoogleCloudAiplatformV1StudySpecMetricSpec``).

    Attributes:
        metric_id: its name: the tag in the trials' TensorBoard files.
        goal: whether to maximize or to minimize it.
        safety_config: a limit that trials should not cross.
    """

    metric_id: Text = Field(min_length=1)
    goal: Literal["GOAL_TYPE_UNSPECIFIED", "MAXIMIZE", "MINIMIZE"] = "GOAL_TYPE_UNSPECIFIED"
    safety_config: object = None


@final
class MedianAutomatedStoppingSpec(AbstractDocument):
    """The median rule.

    Attributes:
        use_elapsed_duration: whether trials are compared by time instead of steps.
    """

    use_elapsed_duration: Flag = False


@final
class StudySpec(AbstractDocument):
    """What to search, and how (``GoogleCloudAiplatformV1StudySpec``).

    Attributes:
        metrics: the metric, one.
        parameters: the parameters, with unique names.
        algorithm: how the values of a trial are chosen.
        median_automated_stopping_spec: the median rule of early stopping.
        decay_curve_stopping_spec: another rule.
        convex_automated_stopping_spec: another rule.
        measurement_selection_type: which measurement of a trial counts.
        observation_noise: how much equal trials differ.
        study_stopping_config: when the whole search stops.
    """

    metrics: tuple[MetricSpec, ...]
    parameters: tuple[StudyParameterSpec, ...]
    algorithm: Algorithm = Algorithm.UNSPECIFIED
    median_automated_stopping_spec: MedianAutomatedStoppingSpec | None = None
    decay_curve_stopping_spec: object = None
    convex_automated_stopping_spec: object = None
    measurement_selection_type: Text = "LAST_MEASUREMENT"
    observation_noise: Text = "OBSERVATION_NOISE_UNSPECIFIED"
    study_stopping_config: object = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.metrics) != 1:
            received = [metric.metric_id for metric in self.metrics]
            raise_violations([Violation(path=("metrics",), received=received, allowed="one metric")])
        names = [param.parameter_id for param in self.parameters]
        if not names:
            raise_violations([Violation(path=("parameters",), received=[], allowed="one parameter or more")])
        raise_violations(
            Violation(path=("parameters", index, "parameterId"), received=name, allowed="a name that no other has")
            for index, name in enumerate(names)
            if name in names[:index]
        )
        raise_violations(
            Violation(
                path=("parameters", index, "doubleValueSpec"),
                received=param.parameter_id,
                allowed="no range of real numbers, since algorithm is GRID_SEARCH",
            )
            for index, param in enumerate(self.parameters)
            if self.algorithm is Algorithm.GRID_SEARCH and param.double_value_spec is not None
        )
        return self

    def unsupported_fields(self) -> Iterator[tuple[str, str]]:
        """Yields each field that has no counterpart in the contract, or that cannot be honoured, and the reason."""
        median = self.median_automated_stopping_spec
        asked: list[tuple[str, object, str]] = [
            ("metrics[0].safetyConfig", self.metrics[0].safety_config, "trials have no limit of safety"),
            (
                "medianAutomatedStoppingSpec.useElapsedDuration",
                median is not None and median.use_elapsed_duration,
                "trials are compared after equally many steps",
            ),
            ("decayCurveStoppingSpec", self.decay_curve_stopping_spec, _MEDIAN_INSTEAD),
            ("convexAutomatedStoppingSpec", self.convex_automated_stopping_spec, _MEDIAN_INSTEAD),
            (
                "measurementSelectionType",
                self.measurement_selection_type == "BEST_MEASUREMENT",
                "the last measurement of a trial counts",
            ),
            ("observationNoise", self.observation_noise == "HIGH", "the same parameters are never tried twice"),
            ("studyStoppingConfig", self.study_stopping_config, "a search ends after maxTrialCount trials"),
        ]
        yield from ((key, reason) for key, value, reason in asked if value)
        for index, param in enumerate(self.parameters):
            yield from ((f"parameters[{index}].{key}", reason) for key, reason in param.unsupported_fields())


@final
class HyperparameterTuningJob(AbstractDocument):
    """The HyperparameterTuningJob message, as a client may send it.

    Fields that only the service sets are accepted and ignored, as in a Job of the contract.

    Attributes:
        display_name: the job's name, which a ``config.yaml`` may leave out, as that of ``gcloud ai hp-tuning-jobs``.
        study_spec: what to search, and how.
        trial_job_spec: what each trial runs, and on which machines.
        max_trial_count: the maximum number of trials; 1 by default, as with gcloud.
        parallel_trial_count: the maximum number of trials at a time; 1 by default, as with gcloud.
        max_failed_trial_count: the number of failed trials that ends the job; 0 lets the service decide.
        labels: the job's labels.
        encryption_spec: a customer-managed key.
    """

    display_name: Annotated[str, BeforeValidator(check_display_name)] | None = None
    study_spec: StudySpec
    trial_job_spec: CustomJobSpec
    max_trial_count: Int32 = Field(default=1, ge=1, le=MAX_TRIALS)
    parallel_trial_count: Int32 = Field(default=1, ge=1)
    max_failed_trial_count: Int32 = Field(default=0, ge=0)
    labels: Labels = Field(default_factory=dict)
    encryption_spec: EncryptionConfig | None = None
    name: object = None
    state: object = None
    create_time: object = None
    start_time: object = None
    end_time: object = None
    update_time: object = None
    error: object = None
    trials: object = None
    satisfies_pzi: object = None
    satisfies_pzs: object = None


def translate_tuning_job(job: HyperparameterTuningJob, *, source: str) -> TrainingInput:
    """Returns a hyperparameter tuning job as a training input.

    Args:
        job: the job.
        source: the file's name, or "request", for error messages.

    Raises:
        ConfigError: If the job asks for something that this version cannot provide, or that the catalogue does not
            have. The error uses the field names of the job.
    """
    study = job.study_spec
    lines = [f"studySpec.{path}: {reason}; remove it" for path, reason in study.unsupported_fields()]
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        raise ConfigError(f"{source}: {lines[0]}{more}")
    asked = translate(job.trial_job_spec, encryption=job.encryption_spec, root=f"{JOB_SPEC}.", source=source)
    metric = study.metrics[0]
    search = HyperparameterSpec(
        goal=Goal.MINIMIZE if metric.goal == "MINIMIZE" else Goal.MAXIMIZE,
        params=tuple(param.to_param() for param in study.parameters),
        max_trials=job.max_trial_count,
        max_parallel_trials=job.parallel_trial_count,
        max_failed_trials=job.max_failed_trial_count,
        hyperparameter_metric_tag=metric.metric_id,
        enable_trial_early_stopping=study.median_automated_stopping_spec is not None,
        algorithm=study.algorithm,
    )
    return asked.model_copy(update={"hyperparameters": search})
