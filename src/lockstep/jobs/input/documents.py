"""Parses the documents that describe a job: a ``config.yaml``, and the Job resource of the REST interface.

A document may have the contract's form (``trainingInput``, as ``gcloud ai-platform jobs submit training --config``
takes it) or Vertex AI's form (``workerPoolSpecs``; see `lockstep.jobs.input.custom_jobs`, and for a search
`lockstep.jobs.input.tuning_jobs`), which is translated here.
"""

from __future__ import annotations

from typing import Final, Self, final

from pydantic import Field, model_validator

from lockstep.errors import ConfigError
from lockstep.jobs.input.custom_job_translation import translate
from lockstep.jobs.input.custom_jobs import CustomJob, CustomJobSpec, job_id_of
from lockstep.jobs.input.predictions import PredictionInput
from lockstep.jobs.input.spec import TrainingInput
from lockstep.jobs.input.tuning_jobs import JOB_SPEC, HyperparameterTuningJob, translate_tuning_job
from lockstep.jobs.parsing.fields import AbstractDocument, JobId, Labels
from lockstep.jobs.parsing.rules import Violation, parse_document, raise_violations

_RESOURCE: Final = "jobSpec"
_SPEC: Final = "workerPoolSpecs"
_SEARCH: Final = ("studySpec", JOB_SPEC)
_CONTRACT: Final = ("trainingInput", "jobId")


@final
class JobConfig(AbstractDocument):
    """The content of a ``config.yaml``; command-line flags may add what it leaves out.

    Attributes:
        job_id: the job's name, if the file gives one.
        labels: the job's labels.
        training_input: what to run.
    """

    job_id: JobId | None = None
    labels: Labels = Field(default_factory=dict)
    training_input: TrainingInput = Field(default_factory=TrainingInput)


@final
class JobRequest(AbstractDocument):
    """A request to create a job.

    Attributes:
        job_id: the job's name, unique within its project.
        training_input: what to run.
        labels: the job's labels.
        prediction_input: of a batch prediction, what to predict; its training input is what runs it.
    """

    job_id: JobId
    training_input: TrainingInput
    labels: Labels = Field(default_factory=dict)
    prediction_input: PredictionInput | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        training_input = self.training_input
        image = training_input.master_config.image_uri if training_input.master_config else None
        if training_input.python_module is None and image is None:
            raise_violations([Violation(path=("trainingInput", "pythonModule"), allowed="the module to run")])
        return self


@final
class _JobResource(AbstractDocument):
    """The Job message, as a client may send it.

    A client may send back a job that it has read. Fields that only the service sets are therefore accepted and ignored,
    as Google's services do.
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
            allowed = "not together with trainingInput"
            raise_violations([Violation(path=("predictionInput",), received=self.prediction_input, allowed=allowed)])
        return self


def parse_config(document: object, *, source: str) -> JobConfig:
    """Parses the content of a ``config.yaml``: ``trainingInput``, with ``jobId`` and ``labels`` beside it.

    In Vertex AI's form, the content is a CustomJob, or its ``jobSpec`` alone, as ``gcloud ai custom-jobs create
    --config`` takes it. A search is a HyperparameterTuningJob.

    Args:
        document: the value that the YAML parser returned.
        source: the file's name, for error messages.

    Raises:
        ConfigError: If the document has an unknown key or a wrong type, breaks a rule of the contract, or mixes both
            forms.
    """
    kind = _custom_form(document, source=source)
    if kind is None:
        return parse_document(JobConfig, document=document, source=source)
    if kind in (_RESOURCE, *_SEARCH):
        return _read_vertex_job(document, kind=kind, source=source)
    spec = parse_document(CustomJobSpec, document=document, source=source)
    return JobConfig(training_input=translate(spec, source=source))


def parse_training_input(document: object, *, source: str) -> TrainingInput:
    """Returns the ``trainingInput`` in the content of a ``config.yaml``; see `parse_config` for its other keys.

    Args:
        document: the value that the YAML parser returned.
        source: the file's name, for error messages.

    Raises:
        ConfigError: If the document has an unknown key or a wrong type, breaks a rule of the contract, or mixes both
            forms.
    """
    return parse_config(document, source=source).training_input


def parse_job(document: object, *, source: str) -> JobRequest:
    """Parses the Job resource that a client asks to create.

    It may also be a CustomJob or a HyperparameterTuningJob, whose display name becomes the job's name.

    Args:
        document: the value that the JSON parser returned.
        source: the name of the document in error messages, such as "request".

    Raises:
        ConfigError: If the document has an unknown key or a wrong type, breaks a rule of the contract, or mixes both
            forms.
    """
    kind = _custom_form(document, source=source)
    if kind is not None:
        read = _read_vertex_job(document, kind=kind, source=source)
        if read.job_id is None:
            raise ConfigError(f"{source}: displayName is missing", allowed="the job's name")
    else:
        read = parse_document(_JobResource, document=document, source=source)
    request = {"jobId": read.job_id, "trainingInput": read.training_input.to_json(), "labels": read.labels}
    return parse_document(JobRequest, document=request, source=source)


def _custom_form(document: object, *, source: str) -> str | None:
    """Returns the key that marks a document as Vertex AI's form; None for a document in the contract's form."""
    if not isinstance(document, dict):
        return None
    found = next((key for key in (*_SEARCH, _RESOURCE, _SPEC) if key in document), None)
    other = next((key for key in _CONTRACT if key in document), None)
    if found is not None and other is not None:
        raise ConfigError(
            f"{source}: {other} and {found} cannot be given together",
            allowed="trainingInput with jobId, or jobSpec with displayName, or workerPoolSpecs, or studySpec",
        )
    return found


def _read_vertex_job(document: object, *, kind: str, source: str) -> JobConfig:
    if kind in _SEARCH:
        search = parse_document(HyperparameterTuningJob, document=document, source=source)
        asked = translate_tuning_job(search, source=source)
        name = None if search.display_name is None else job_id_of(search.display_name)
        return JobConfig(job_id=name, labels=search.labels, training_input=asked)
    job = parse_document(CustomJob, document=document, source=source)
    asked = translate(job.job_spec, encryption=job.encryption_spec, root=f"{_RESOURCE}.", source=source)
    return JobConfig(job_id=job_id_of(job.display_name), labels=job.labels, training_input=asked)
