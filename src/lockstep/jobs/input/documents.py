"""The documents that carry a job: a ``config.yaml``, and the Job resource of the REST interface.

Each may be in the contract's form (``trainingInput``, as ``gcloud ai-platform jobs submit training --config`` takes it)
or in that of its successor (``workerPoolSpecs``; see `lockstep.jobs.input.custom_jobs`), which is translated here.
"""

from __future__ import annotations

from typing import Final, Self, final

from pydantic import Field, model_validator

from lockstep.errors import ConfigError
from lockstep.jobs.input.custom_job_translation import translate
from lockstep.jobs.input.custom_jobs import CustomJob, CustomJobSpec, job_id_of
from lockstep.jobs.input.spec import TrainingInput
from lockstep.jobs.parsing.fields import AbstractDocument, JobId, Labels
from lockstep.jobs.parsing.rules import Violation, parse_document, raise_violations

_RESOURCE: Final = "jobSpec"
_SPEC: Final = "workerPoolSpecs"
_CONTRACT: Final = ("trainingInput", "jobId")


@final
class JobConfig(AbstractDocument):
    """A ``config.yaml``: what it says of a job; flags may say the rest.

    Attributes:
        job_id: the job's name, where the file gives one.
        labels: labels of the job.
        training_input: what to run.
    """

    job_id: JobId | None = None
    labels: Labels = Field(default_factory=dict)
    training_input: TrainingInput = Field(default_factory=TrainingInput)


@final
class JobRequest(AbstractDocument):
    """A job that is to be created.

    Attributes:
        job_id: the job's name, unique in its project.
        training_input: what to run.
        labels: labels of the job.
    """

    job_id: JobId
    training_input: TrainingInput
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        training_input = self.training_input
        image = training_input.master_config.image_uri if training_input.master_config else None
        if training_input.python_module is None and image is None:
            raise_violations([Violation(path=("trainingInput", "pythonModule"), allowed="the module to run")])
        return self


@final
class _JobResource(AbstractDocument):
    """The Job message as a client may send it.

    A client may send back a job that it has read: fields that only the service sets are taken and not used, as
    Google's services do.
    """

    job_id: JobId
    training_input: TrainingInput
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
    prediction_input: object = None
    lockstep: object = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prediction_input is not None:
            raise_violations(
                [Violation(path=("predictionInput",), received=self.prediction_input, allowed="training jobs alone")]
            )
        return self


def parse_config(document: object, *, source: str) -> JobConfig:
    """Reads the content of a ``config.yaml``: ``trainingInput``, and ``jobId`` and ``labels`` beside it.

    In the successor's form it is a CustomJob, or its ``jobSpec`` alone, as ``gcloud ai custom-jobs create --config``
    takes it.

    Args:
        document: what the YAML parser gave.
        source: the file's name, for errors.

    Raises:
        ConfigError: it has an unknown key, a wrong type, or breaks a rule of the contract; it is in both forms.
    """
    kind = _custom_form(document, source=source)
    if kind is None:
        return parse_document(JobConfig, document=document, source=source)
    if kind == _RESOURCE:
        return _read_custom_job(document, source=source)
    spec = parse_document(CustomJobSpec, document=document, source=source)
    return JobConfig(training_input=translate(spec, source=source))


def parse_training_input(document: object, *, source: str) -> TrainingInput:
    """Reads the ``trainingInput`` of a ``config.yaml``'s content; see `parse_config` for what may stand beside it.

    Args:
        document: what the YAML parser gave.
        source: the file's name, for errors.

    Raises:
        ConfigError: it has an unknown key, a wrong type, or breaks a rule of the contract.
    """
    return parse_config(document, source=source).training_input


def parse_job(document: object, *, source: str) -> JobRequest:
    """Reads the Job resource that a client asks to create; or a CustomJob, whose display name becomes the job's.

    Args:
        document: what the JSON parser gave.
        source: what to call it in errors, such as "request".

    Raises:
        ConfigError: it has an unknown key, a wrong type, or breaks a rule of the contract; it is in both forms.
    """
    if _custom_form(document, source=source) is not None:
        read = _read_custom_job(document, source=source)
    else:
        read = parse_document(_JobResource, document=document, source=source)
    request = {"jobId": read.job_id, "trainingInput": read.training_input.to_json(), "labels": read.labels}
    return parse_document(JobRequest, document=request, source=source)


def _custom_form(document: object, *, source: str) -> str | None:
    """Returns the key that says that a document is in the successor's form; None for one in the contract's."""
    if not isinstance(document, dict):
        return None
    found = next((key for key in (_RESOURCE, _SPEC) if key in document), None)
    other = next((key for key in _CONTRACT if key in document), None)
    if found is not None and other is not None:
        raise ConfigError(
            f"{source}: {other} and {found} stand side by side",
            allowed="trainingInput with jobId, or jobSpec with displayName, or workerPoolSpecs",
        )
    return found


def _read_custom_job(document: object, *, source: str) -> JobConfig:
    job = parse_document(CustomJob, document=document, source=source)
    asked = translate(job.job_spec, encryption=job.encryption_spec, root=f"{_RESOURCE}.", source=source)
    return JobConfig(job_id=job_id_of(job.display_name), labels=job.labels, training_input=asked)
