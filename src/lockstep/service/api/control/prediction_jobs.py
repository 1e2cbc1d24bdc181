"""Batch predictions among ``projects.jobs``: what is submitted, and what a job has predicted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from lockstep.errors import ConfigError, UnavailableError
from lockstep.jobs.input.documents import JobRequest, parse_job, parse_training_input
from lockstep.jobs.input.gangs import check_size, resolve
from lockstep.jobs.input.predictions import PredictionInput, is_prediction, parse_prediction
from lockstep.jobs.input.spec import TrainingInput, with_reader_names
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.service.api.forms import PredictionOutputForm
from lockstep.service.billing.usages import job_usage
from lockstep.service.context import ServiceContext
from lockstep.service.prediction.batch_jobs import BatchModel, batch_input, find_batch_model, pin_model
from lockstep.service.security.job_folders import job_folders
from lockstep.service.store import JobRecord

PREDICTIONS: Final = "predictions"
ERRORS: Final = "errors"
"""The metrics in the heartbeats of a batch prediction's programs; see `lockstep.serving.batch.run`."""

_HOUR_S: Final = 3600.0
_OWN: Final = "predictionInput.lockstep"
_READER_NAMES: Final = {
    "trainingInput": "predictionInput",
    "trainingInput.region": "predictionInput.region",
    **{
        f"trainingInput.{role}{key}": f"{_OWN}.{name}"
        for role in ("master", "worker")
        for key, name in (
            ("Type", "machineType"),
            ("Config.acceleratorConfig", "acceleratorConfig"),
            ("Config.acceleratorConfig.count", "acceleratorConfig.count"),
        )
    },
}

Use = Literal["output", "input", "code"]
"""What a job does with a URL that it names."""


@final
@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job that somebody asks to create.

    Attributes:
        request: the job.
        model: the model of a batch prediction; None for a training job.
    """

    request: JobRequest
    model: BatchModel | None = None

    @property
    def prediction_json(self) -> dict[str, Any] | None:
        """The prediction input of a batch prediction, in the contract's JSON."""
        asked = self.request.prediction_input
        return None if asked is None else asked.to_json()


def read_submission(body: object, *, project: str, context: ServiceContext) -> Submission:
    """Parses the Job resource that a client asks to create.

    Args:
        body: the value that the JSON parser returned.
        project: the project of the job.
        context: the service.

    Raises:
        ConfigError: If the document is not valid, or the catalogue does not have what the job asks for.
        NotFoundError: If there is no such model or version.
        UnavailableError: If the version's files have not been copied yet.
    """
    if not is_prediction(body):
        request = parse_job(body, source="request")
        check_size(request.training_input, gang=resolve(request.training_input, catalogue=context.catalogue))
        return Submission(request=request)
    asked = parse_prediction(body, source="request")
    model = find_batch_model(asked.prediction_input, project=project, models=context.models)
    document = batch_input(asked.prediction_input, model=model, run_id=uuid.uuid4().hex)
    try:
        training_input = parse_training_input({"trainingInput": document}, source="request")
        check_size(training_input, gang=resolve(training_input, catalogue=context.catalogue))
    except ConfigError as error:
        what = with_reader_names(error.what, names=_READER_NAMES)
        raise ConfigError(what, received=error.received, allowed=error.allowed, action=error.action) from None
    request = JobRequest(
        job_id=asked.job_id,
        training_input=training_input,
        labels=asked.labels,
        prediction_input=asked.prediction_input,
    )
    return Submission(request=request, model=model)


def named_urls(request: JobRequest) -> Iterator[tuple[str, str, Use]]:
    """Yields the fields and URLs that a job names, each with its use. They must mean the same to all programs."""
    if request.prediction_input is None:
        yield from _training_urls(request.training_input)
    else:
        yield from _prediction_urls(request.prediction_input)


def _training_urls(asked: TrainingInput) -> Iterator[tuple[str, str, Use]]:
    if asked.job_dir is not None:
        yield "trainingInput.jobDir", asked.job_dir, "output"
    base = asked.lockstep.base_output_directory
    if base is not None:
        yield "trainingInput.lockstep.baseOutputDirectory", base, "output"
    for index, url in enumerate(asked.package_uris):
        yield f"trainingInput.packageUris.{index}", url, "code"


def _prediction_urls(asked: PredictionInput) -> Iterator[tuple[str, str, Use]]:
    yield "predictionInput.outputPath", asked.output_url, "output"
    for index, url in enumerate(asked.input_paths):
        yield f"predictionInput.inputPaths.{index}", url, "input"
    if asked.uri is not None:
        yield "predictionInput.uri", asked.uri, "input"
    for index, url in enumerate(asked.lockstep.package_uris):
        yield f"{_OWN}.packageUris.{index}", url, "code"


def pin(submission: Submission, *, project: str, context: ServiceContext) -> tuple[FileOrder, ...]:
    """Returns the files that a job's programs need, and copies the model of a batch prediction if it is named by URL.

    Raises:
        ModelError: If there is no model, or not only one.
        MissingInputError: If there is no such file.
        StorageError: If the bucket cannot be read or written.
        UnavailableError: If the local disk is full.
    """
    if submission.model is None:
        return ()
    settings = context.settings
    folders = job_folders(settings)
    if folders is not None:
        folders.close_models(project)
    try:
        folder = settings.home.spool / "batch-models"
        return pin_model(submission.model, project=project, bucket=settings.bucket, folder=folder)
    except OSError as error:
        raise UnavailableError(f"the model {submission.model.url} cannot be copied: {error.strerror}") from error


def prediction_output(job: JobRecord, *, context: ServiceContext) -> PredictionOutputForm | None:
    """Returns what a batch prediction has predicted so far; None for another job.

    The counts are those of the current attempt, which include what earlier ones have completed.
    """
    if job.prediction_input is None:
        return None
    form: PredictionOutputForm = {
        "outputPath": str(job.prediction_input["outputPath"]),
        "predictionCount": str(_count(job, PREDICTIONS)),
        "errorCount": str(_count(job, ERRORS)),
    }
    try:
        attempts = context.jobs.attempts(job.uid)
        used = job_usage(job, attempts=attempts, catalogue=context.catalogue, now_s=time.time())
    except ConfigError:  # this version cannot read the job; its page must still be shown
        return form
    form["nodeHours"] = sum(usage.end_time_s - usage.start_time_s for usage in used.usages) / _HOUR_S
    return form


def _count(job: JobRecord, name: str) -> int:
    reports = (replica.status.progress for replica in job.replicas)
    return sum(int(report.metrics.get(name, 0)) for report in reports if report is not None)
