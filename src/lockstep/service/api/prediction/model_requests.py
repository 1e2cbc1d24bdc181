"""Requests for models and versions: the contract's fields, honoured or refused by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self, final

from pydantic import AfterValidator, Field, model_validator

from lockstep.errors import ConfigError, InvalidInputError, UnimplementedError
from lockstep.jobs.input.spec import MAX_PACKAGES, AcceleratorConfig, running_python_version
from lockstep.jobs.parsing.fields import AbstractDocument, Double, Flag, Int32, JobId, Labels, Text, rule_error
from lockstep.jobs.parsing.rules import Violation, parse_document, raise_violations
from lockstep.service.api.prediction.batching import OwnBatching
from lockstep.service.api.prediction.containers import ContainerSpec, RouteMap, check_distinct
from lockstep.service.api.prediction.scaling import AutoScaling, OwnAutoScaling
from lockstep.service.api.prediction.traffic import OwnModel
from lockstep.service.control.schedule import MAX_SERVERS

DEFAULT_MACHINE_TYPE: Final = "n1-standard-4"
MAX_MODULE_LENGTH: Final = 256

ResourceName = JobId
"""The name of a model or version, which follows the rule for names of jobs."""


def _check_module(value: str) -> str:
    if len(value) > MAX_MODULE_LENGTH or not all(part.isidentifier() for part in value.split(".")):
        raise rule_error(allowed="the name of a module, such as trainer.task")
    return value


def _check_class(value: str) -> str:
    if "." not in value or len(value) > MAX_MODULE_LENGTH or not all(part.isidentifier() for part in value.split(".")):
        raise rule_error(allowed="a module and a class in it, such as trainer.predictor.Predictor")
    return value


@final
class Framework(StrEnum):
    """The contract's frameworks."""

    FRAMEWORK_UNSPECIFIED = "FRAMEWORK_UNSPECIFIED"
    TENSORFLOW = "TENSORFLOW"
    SCIKIT_LEARN = "SCIKIT_LEARN"
    XGBOOST = "XGBOOST"


@final
class ModelRequest(AbstractDocument):
    """``GoogleCloudMlV1__Model``, as a client may send it.

    A client may send back a model that it has read. Fields that only the service sets are therefore accepted and
    ignored, as Google's services do.

    Attributes:
        name: the name of the model, unique within its project.
        description: the description of the model.
        labels: the labels of the model.
        regions: the region of its prediction servers; at most one.
        online_prediction_logging: whether each request is logged, which is not supported.
        online_prediction_console_logging: whether the output of prediction servers is kept, which it always is.
        lockstep: Lockstep's own fields.
    """

    name: ResourceName
    description: Text = ""
    labels: Labels = Field(default_factory=dict)
    regions: tuple[Text, ...] = ()
    online_prediction_logging: Flag = False
    online_prediction_console_logging: Flag = True
    lockstep: OwnModel = Field(default_factory=OwnModel)
    default_version: object = None
    etag: object = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.regions) > 1:
            received = list(self.regions)
            raise_violations([Violation(path=("regions",), received=received, allowed="one region, or none")])
        return self

    @property
    def region(self) -> str | None:
        """The region of its prediction servers; None for any."""
        return self.regions[0] if self.regions else None


@final
class ManualScaling(AbstractDocument):
    """``GoogleCloudMlV1__ManualScaling``.

    Attributes:
        nodes: the number of prediction servers.
    """

    nodes: Int32 = Field(default=1, ge=1, le=MAX_SERVERS)


@final
class OwnRequestLogging(AbstractDocument):
    """Which requests are written to a bucket, in the form of ``GoogleCloudMlV1__RequestLoggingConfig``.

    Attributes:
        sampling_percentage: the share of the requests that are written, from 0 to 1, as the contract has it.
        uri: the bucket URL of the folder that they are written to; empty for the project's own.
    """

    sampling_percentage: Double = Field(default=0.0, ge=0, le=1)
    uri: Text = ""


@final
class OwnVersion(AbstractDocument):
    """Lockstep's own fields of a version.

    Attributes:
        python_module: the module that the model's job ran; None if it is not known.
        auto_scaling: more settings of ``autoScaling``.
        request_logging: which requests are written to a bucket; None for none.
        batching: how each prediction server batches requests; None for as it does by default.
        waiting_for: set by the service alone, and ignored.
        num_servers: set by the service alone, and ignored.
        num_ready_servers: set by the service alone, and ignored.
    """

    python_module: Annotated[Text, AfterValidator(_check_module)] | None = None
    auto_scaling: OwnAutoScaling | None = None
    request_logging: OwnRequestLogging | None = None
    batching: OwnBatching | None = None
    waiting_for: object = None
    num_servers: object = None
    num_ready_servers: object = None


@final
class VersionRequest(AbstractDocument):
    """``GoogleCloudMlV1__Version``, as a client may send it; see `ModelRequest`.

    Attributes:
        name: the name of the version, unique within its model.
        description: the description of the version.
        labels: the labels of the version.
        deployment_uri: the bucket URL of the model's file, or of the folder that contains it; for a custom prediction
            routine or a container, of a folder of files. A container needs none.
        package_uris: the bucket URLs of packages with the classes of the model, at most 100.
        prediction_class: the class of the custom prediction routine; None for a model.
        container: the container of the user's own that serves the version; None for a model or a routine.
        routes: the paths that it answers.
        python_version: the version of Python that the prediction servers run on.
        framework: the framework of the model.
        machine_type: the machine type of each prediction server.
        accelerator_config: the accelerators of each prediction server.
        manual_scaling: how many prediction servers there are; one if `auto_scaling` does not say it either.
        auto_scaling: how the number of prediction servers follows the load.
        lockstep: Lockstep's own fields.
    """

    name: ResourceName
    description: Text = ""
    labels: Labels = Field(default_factory=dict)
    deployment_uri: Text = ""
    package_uris: tuple[Annotated[Text, Field(min_length=1)], ...] = Field(default=(), max_length=MAX_PACKAGES)
    prediction_class: Annotated[Text, AfterValidator(_check_class)] | None = None
    container: ContainerSpec | None = None
    routes: RouteMap | None = None
    python_version: Text | None = None
    framework: Framework = Framework.FRAMEWORK_UNSPECIFIED
    machine_type: Text = DEFAULT_MACHINE_TYPE
    accelerator_config: AcceleratorConfig | None = None
    manual_scaling: ManualScaling | None = None
    auto_scaling: AutoScaling | None = None
    lockstep: OwnVersion = Field(default_factory=OwnVersion)

    runtime_version: object = None
    service_account: object = None
    explanation_config: object = None
    request_logging_config: object = None

    is_default: object = None
    create_time: object = None
    last_use_time: object = None
    last_migration_time: object = None
    last_migration_model_id: object = None
    state: object = None
    error_message: object = None
    etag: object = None

    def urls(self) -> Iterator[tuple[str, str]]:
        """Yields the fields with URLs, and the URLs."""
        if self.deployment_uri or self.container is None:
            yield "deploymentUri", self.deployment_uri
        for index, url in enumerate(self.package_uris):
            yield f"packageUris.{index}", url

    @property
    def requested_framework(self) -> str | None:
        """The framework, by its name; None if none was requested."""
        return None if self.framework is Framework.FRAMEWORK_UNSPECIFIED else self.framework.value


UNSUPPORTED: Final[Mapping[str, str]] = {
    "runtimeVersion": "there is one runtime, the environment that Lockstep runs in, with the packages of packageUris",
    "serviceAccount": "prediction servers run without credentials of any account",
    "explanationConfig": "predictions are not explained",
    "requestLoggingConfig": "there is no BigQuery to write to; lockstep.requestLogging writes requests to a bucket",
}
"""The fields of a version that this version of Lockstep does not honour, with the reasons."""


def parse_model(body: Mapping[str, Any]) -> ModelRequest:
    """Parses the model that a client asks to create.

    Raises:
        ConfigError: If the body has an unknown key or a wrong type, or breaks a rule of the contract.
        InvalidInputError: If it splits the traffic, since a new model has no versions.
        UnimplementedError: If it asks for what Lockstep does not have.
    """
    request = parse_document(ModelRequest, document=body, source="request")
    if request.lockstep.traffic_split:
        raise InvalidInputError(
            "lockstep.trafficSplit",
            received=request.lockstep.traffic_split,
            allowed="none for a new model, which has no versions",
            action="change it when its versions are READY",
        )
    if request.online_prediction_logging:
        raise _unsupported("onlinePredictionLogging", "prediction servers do not log each request")
    if not request.online_prediction_console_logging:
        raise _unsupported(
            "onlinePredictionConsoleLogging",
            "what a prediction server prints is always kept",
            action="leave it out, or set it to true; `lockstep logs --model` shows the log",
        )
    return request


def parse_version(body: Mapping[str, Any]) -> VersionRequest:
    """Parses the version that a client asks to create. Its URLs and its machine are not checked yet.

    Raises:
        ConfigError: If the body has an unknown key or a wrong type, or breaks a rule of the contract.
        InvalidInputError: If it asks for another version of Python.
        UnimplementedError: If it asks for what Lockstep does not have.
    """
    request = parse_document(VersionRequest, document=body, source="request")
    for key, reason in UNSUPPORTED.items():
        if body.get(key) not in (None, ""):
            raise _unsupported(key, reason)
    _check_container(request)
    is_routine = request.prediction_class is not None
    is_model = not is_routine and request.container is None
    if request.framework in (Framework.SCIKIT_LEARN, Framework.XGBOOST) and is_model:
        raise _unsupported(
            "framework",
            f"prediction servers run Keras models, not those of {request.framework}",
            action=f"deploy a .keras file, with framework {Framework.TENSORFLOW} or none; or a routine that runs the "
            "model, with predictionClass",
        )
    if is_routine and not request.package_uris:
        raise ConfigError(
            "request: packageUris is missing", allowed="a package with predictionClass", action="add the package's URL"
        )
    if is_routine:
        for key, value in (("pythonModule", request.lockstep.python_module), ("batching", request.lockstep.batching)):
            if value is not None:
                raise ConfigError(f"request: lockstep.{key} is only for models", action="remove it")
    runs = running_python_version()
    if request.python_version not in (None, runs):
        raise InvalidInputError("pythonVersion", received=request.python_version, allowed=f"{runs}, or none")
    if not request.deployment_uri and request.container is None:
        raise ConfigError("request: deploymentUri is missing", allowed="the URL of a model's file, or of its folder")
    return request


def _check_container(request: VersionRequest) -> None:
    """Rejects what only models and routines have beside a container, and routes without one."""
    if request.container is None:
        if request.routes is not None:
            raise ConfigError("request: routes is only for a container", action="remove it, or add container")
        return
    for key, value in (
        ("predictionClass", request.prediction_class),
        ("packageUris", request.package_uris),
        ("pythonVersion", request.python_version),
        ("framework", request.requested_framework),
        ("lockstep.pythonModule", request.lockstep.python_module),
        ("lockstep.batching", request.lockstep.batching),
    ):
        if value:
            raise ConfigError(f"request: {key} has no effect on a container", action="remove it")
    check_distinct(request.container.env, what="container.env")


def _unsupported(key: str, reason: str, *, action: str = "remove it") -> UnimplementedError:
    return UnimplementedError(f"{key}: {reason}", action=action)
