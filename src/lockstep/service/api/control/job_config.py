"""Lockstep's own route for a job's configuration: as it was submitted, and what the service makes of it."""

from __future__ import annotations

from typing import Any

from lockstep.errors import ConfigError
from lockstep.jobs.input.documents import JobRequest
from lockstep.jobs.parsing.rules import parse_document
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.control.preview import ignored_lines, preview
from lockstep.service.api.forms import JobConfigForm, ResolvedJobForm
from lockstep.service.api.requests import Context, JobName, Project
from lockstep.service.api.routes import make_router
from lockstep.service.context import ServiceContext
from lockstep.service.control.job_inputs import training_input_of
from lockstep.service.store import GangPart, JobRecord

router = make_router()


@router.get("/jobs/{job_id}/config")
@requires_scope(Scope.VIEWER)
def get_config(project: Project, job_id: JobName, context: Context) -> JobConfigForm:
    """Returns a job as it was submitted, and with its defaults, machines, commands and outputs.

    Of the replicas, the first of each role is shown.
    """
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    form: JobConfigForm = {"submitted": submitted_document(job), "ignored": []}
    try:
        request = _request(job)
        form["ignored"] = ignored_lines(request)
        form["resolved"] = _resolved(job, request, context=context)
    except ConfigError as error:  # this version cannot read the job; its page must still be shown
        form["problem"] = str(error)
    return form


def submitted_document(job: JobRecord) -> dict[str, Any]:
    """Returns the content of the ``config.yaml`` that submits a job like this one, without what is not shown of it."""
    document: dict[str, Any] = (
        {"trainingInput": dict(job.training_input)}
        if job.prediction_input is None
        else {"predictionInput": dict(job.prediction_input)}
    )
    return {**document, "labels": dict(job.labels)} if job.labels else document


def _request(job: JobRecord) -> JobRequest:
    predicted = {} if job.prediction_input is None else {"predictionInput": dict(job.prediction_input)}
    document = {
        "jobId": job.job_id,
        "trainingInput": training_input_of(job).to_json(),
        "labels": dict(job.labels),
        **predicted,
    }
    return parse_document(JobRequest, document=document, source=f"job {job.job_id}")


def _resolved(job: JobRecord, request: JobRequest, *, context: ServiceContext) -> ResolvedJobForm:
    previewed = preview(
        request,
        project=job.project,
        settings=context.settings,
        catalogue=context.catalogue,
        cluster=context.cluster,
        first_of_roles=True,
    )
    return {
        "trainingInput": request.training_input.model_dump(mode="json", by_alias=True, exclude_none=True),
        "replicas": previewed["replicas"],
        "passedOn": previewed["passedOn"],
        "outputs": dict(job.outputs),
    }
