"""Defines the input of a batch prediction: the contract's ``predictionInput``, parsed once into frozen models.

A batch prediction runs as a job: `lockstep.service.prediction.batch_jobs` translates it into a training input.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, Literal, Self, cast, final

from pydantic import Field, model_validator

from lockstep.jobs.input.spec import MAX_PACKAGES, AcceleratorConfig, Scheduling
from lockstep.jobs.parsing.fields import AbstractDocument, Int32, Int64, JobId, Labels, Text
from lockstep.jobs.parsing.rules import Violation, parse_document, raise_violations
from lockstep.jobs.running.restarts import RestartPolicy

DEFAULT_MACHINE_TYPE: Final = "n1-standard-4"
DEFAULT_BATCH_SIZE: Final = 64
DEFAULT_SIGNATURE: Final = "serving_default"
MAX_BATCH_SIZE: Final = 2**20
MAX_PATHS: Final = 1000
MAX_SHARD_MIB: Final = 65_536
OUTPUT_FIELDS: Final = frozenset({"prediction", "file"})
"""The fields of a prediction's line that a key may not replace."""

_MODEL: Final = re.compile(r"projects/([^/]+)/models/([^/]+)")
_VERSION: Final = re.compile(r"projects/([^/]+)/models/([^/]+)/versions/([^/]+)")


@final
class DataFormat(StrEnum):
    """The format of files with instances or predictions, by the contract's names."""

    DATA_FORMAT_UNSPECIFIED = "DATA_FORMAT_UNSPECIFIED"
    JSON = "JSON"
    TEXT = "TEXT"
    TF_RECORD = "TF_RECORD"
    TF_RECORD_GZIP = "TF_RECORD_GZIP"
    CSV = "CSV"


@final
class PredictionExtensions(AbstractDocument):
    """Lockstep's own extensions of the contract, under ``lockstep`` in a prediction input.

    Attributes:
        machine_type: the machine type of each replica.
        accelerator_config: the accelerators of each replica.
        data_format: a format of input files that the contract does not have, instead of ``dataFormat``.
        key_field: the field of an instance that is not for the model, and that is copied to its prediction.
        shard_size_mib: how much input makes one file of predictions, in MiB.
        package_uris: the bucket URLs of packages with the classes of the model that ``uri`` names.
        python_module: the module that the job of that model ran.
        scheduling: when the job runs, and for how long at most.
        restart_policy: whether and how often a failed job is restarted.
    """

    machine_type: Text = DEFAULT_MACHINE_TYPE
    accelerator_config: AcceleratorConfig | None = None
    data_format: Literal["IMAGE_FILES"] | None = None
    key_field: Text | None = Field(default=None, min_length=1, max_length=128)
    shard_size_mib: Int32 | None = Field(default=None, ge=1, le=MAX_SHARD_MIB)
    package_uris: tuple[Text, ...] = Field(default=(), max_length=MAX_PACKAGES)
    python_module: Text | None = Field(default=None, pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$", max_length=256)
    scheduling: Scheduling = Field(default_factory=Scheduling)
    restart_policy: RestartPolicy = Field(default_factory=RestartPolicy)


@final
class PredictionInput(AbstractDocument):
    """What to predict, with which model, and on which machines (``GoogleCloudMlV1__PredictionInput``).

    Attributes:
        model_name: the model whose default version predicts, as ``projects/PROJECT/models/MODEL``.
        version_name: the version that predicts, as ``projects/PROJECT/models/MODEL/versions/VERSION``.
        uri: the bucket URL of the ``.keras`` file that predicts, or of a folder with one.
        runtime_version: the runtime version of AI Platform.
        signature_name: the name of the model's signature.
        data_format: the format of the input files.
        input_paths: the bucket URLs of the input files, which may have wildcards.
        output_path: the bucket URL of the folder for predictions.
        output_data_format: the format of the output files: JSON or CSV.
        max_worker_count: the number of replicas.
        region: the region whose prices apply.
        batch_size: the number of instances in one run of the model.
        lockstep: Lockstep's own extensions of the contract.
    """

    model_name: Text | None = None
    version_name: Text | None = None
    uri: Text | None = None
    runtime_version: Text | None = None
    signature_name: Text | None = None
    data_format: DataFormat = DataFormat.DATA_FORMAT_UNSPECIFIED
    input_paths: tuple[Text, ...] = Field(default=(), max_length=MAX_PATHS)
    output_path: Text | None = None
    output_data_format: DataFormat = DataFormat.DATA_FORMAT_UNSPECIFIED
    max_worker_count: Int64 = Field(default=1, ge=1)
    region: Text | None = None
    batch_size: Int64 = Field(default=DEFAULT_BATCH_SIZE, ge=1, le=MAX_BATCH_SIZE)
    lockstep: PredictionExtensions = Field(default_factory=PredictionExtensions)

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_violations([*_model_violations(self), *_data_violations(self)])
        return self

    @property
    def model_path(self) -> tuple[str, str, str | None] | None:
        """The project, the model and the version that predict, the version None for the default; None with a URI."""
        return named_model(model_name=self.model_name, version_name=self.version_name)

    @property
    def output_url(self) -> str:
        """The bucket URL of the folder for predictions."""
        assert self.output_path is not None, "checked when it was parsed"
        return self.output_path


def named_model(*, model_name: str | None, version_name: str | None) -> tuple[str, str, str | None] | None:
    """Returns the project, the model and the version that a prediction input names.

    Args:
        model_name: its ``modelName``; None if it has none.
        version_name: its ``versionName``, which counts if it has both; None if it has none.

    Returns:
        The names, the version None for the default; None if it names a URI, or has another form.
    """
    if version_name is not None:
        found = _VERSION.fullmatch(version_name)
        return None if found is None else (found[1], found[2], found[3])
    found = None if model_name is None else _MODEL.fullmatch(model_name)
    return None if found is None else (found[1], found[2], None)


@final
class PredictionRequest(AbstractDocument):
    """A request to create a batch prediction.

    Attributes:
        job_id: the job's name, unique within its project.
        prediction_input: what to predict.
        labels: the job's labels.
    """

    job_id: JobId
    prediction_input: PredictionInput
    labels: Labels = Field(default_factory=dict)


@final
class _PredictionResource(AbstractDocument):
    """The Job message, as a client may send it. Fields that only the service sets are ignored, as in a training job."""

    job_id: JobId
    prediction_input: PredictionInput
    labels: Labels = Field(default_factory=dict)
    state: object = None
    create_time: object = None
    start_time: object = None
    end_time: object = None
    error_message: object = None
    job_position: object = None
    etag: object = None
    training_output: object = None
    prediction_output: object = None
    training_input: object = None
    lockstep: object = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.training_input is not None:
            allowed = "not together with predictionInput"
            raise_violations([Violation(path=("trainingInput",), received=self.training_input, allowed=allowed)])
        return self


def is_prediction(document: object) -> bool:
    """Returns whether a Job resource is a batch prediction."""
    return isinstance(document, dict) and cast("dict[str, object]", document).get("predictionInput") is not None


def parse_prediction(document: object, *, source: str) -> PredictionRequest:
    """Parses the Job resource of a batch prediction that a client asks to create.

    Args:
        document: the value that the JSON parser returned.
        source: the name of the document in error messages, such as "request".

    Raises:
        ConfigError: If the document has an unknown key or a wrong type, or breaks a rule of the contract.
    """
    read = parse_document(_PredictionResource, document=document, source=source)
    return PredictionRequest(job_id=read.job_id, prediction_input=read.prediction_input, labels=read.labels)


def ignored_in_prediction(asked: PredictionInput) -> list[str]:
    """Lists what a batch prediction asks for and this version ignores, each with the reason."""
    version = asked.runtime_version
    reason = "there is one runtime, the environment that Lockstep runs in"
    return [] if version is None else [f"predictionInput.runtimeVersion: {version} is ignored; {reason}"]


def _model_violations(asked: PredictionInput) -> Iterator[Violation]:
    given = {"modelName": asked.model_name, "versionName": asked.version_name, "uri": asked.uri}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        received = " and ".join(named) or "none of them"
        yield Violation(
            path=(named[1] if named else "modelName",), received=received, allowed="one of " + ", ".join(given)
        )
    elif asked.uri is None and asked.model_path is None:
        form = "projects/PROJECT/models/MODEL" + ("/versions/VERSION" if asked.version_name is not None else "")
        yield Violation(path=(named[0],), received=given[named[0]], allowed=form)
    if asked.signature_name not in (None, DEFAULT_SIGNATURE):
        allowed = f"{DEFAULT_SIGNATURE}, since a .keras file has one signature"
        yield Violation(path=("signatureName",), received=asked.signature_name, allowed=allowed)
    own = asked.lockstep
    for name, value in (("packageUris", list(own.package_uris)), ("pythonModule", own.python_module)):
        if value and asked.uri is None:
            allowed = "only with uri: a version has its own packages"
            yield Violation(path=("lockstep", name), received=value, allowed=allowed)
    if own.python_module is not None and asked.uri is not None and not own.package_uris:
        path, allowed = ("lockstep", "pythonModule"), "only with lockstep.packageUris, which contain it"
        yield Violation(path=path, received=own.python_module, allowed=allowed)


def _data_violations(asked: PredictionInput) -> Iterator[Violation]:
    own = asked.lockstep
    unspecified = DataFormat.DATA_FORMAT_UNSPECIFIED
    if asked.data_format is unspecified and own.data_format is None:
        formats = ", ".join(name for name in DataFormat if name is not unspecified)
        yield Violation(path=("dataFormat",), allowed=f"{formats}; or lockstep.dataFormat: IMAGE_FILES")
    elif asked.data_format is not unspecified and own.data_format is not None:
        path, allowed = ("lockstep", "dataFormat"), "not together with dataFormat"
        yield Violation(path=path, received=own.data_format, allowed=allowed)
    if asked.output_data_format not in (unspecified, DataFormat.JSON, DataFormat.CSV):
        yield Violation(path=("outputDataFormat",), received=str(asked.output_data_format), allowed="JSON or CSV")
    if not asked.input_paths:
        yield Violation(path=("inputPaths",), allowed="one URL of files or more")
    if any(not path for path in asked.input_paths):
        yield Violation(path=("inputPaths",), received=list(asked.input_paths), allowed="URLs that are not empty")
    if not asked.output_path:
        yield Violation(path=("outputPath",), received=asked.output_path, allowed="the URL of a folder")
    if own.key_field in OUTPUT_FIELDS:
        path, allowed = ("lockstep", "keyField"), f"another name: {own.key_field} is a field of the output"
        yield Violation(path=path, received=own.key_field, allowed=allowed)
    elif own.key_field is not None and own.data_format is not None:
        path, allowed = ("lockstep", "keyField"), "not with image files, whose predictions name their file"
        yield Violation(path=path, received=own.key_field, allowed=allowed)
