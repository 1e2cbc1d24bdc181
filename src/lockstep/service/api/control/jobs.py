"""``projects.jobs`` of the contract: create, get, list, patch, cancel; and a job's events, models and log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse
from sqlalchemy import Row

from lockstep.errors import (
    ConfigError,
    ConflictError,
    InvalidInputError,
    LockstepError,
    NotFoundError,
    StorageError,
    UnavailableError,
    WrongStateError,
)
from lockstep.jobs.billing.bills import bill
from lockstep.jobs.input.candidates import candidate, check_candidates, num_candidates
from lockstep.jobs.input.documents import JobRequest, parse_job
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.input.spec import LockstepExtensions, unsupported
from lockstep.jobs.lists.filters import bounds_of, parse_filter
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.billing.bills import bill_form
from lockstep.service.api.billing.nodes import node_costs_form
from lockstep.service.api.control.attempts import attempt_documents
from lockstep.service.api.control.prediction_jobs import named_urls, pin, prediction_output, read_submission
from lockstep.service.api.control.preview import ignored_lines, preview, queue_form, unrecorded
from lockstep.service.api.control.trials import check_resumed, search_accrued, search_output
from lockstep.service.api.forms import (
    AttemptForm,
    BillForm,
    EmptyForm,
    EventListForm,
    JobForm,
    JobListForm,
    JobModelListForm,
    JobWebhookForm,
    NodeCostsForm,
    PreviewForm,
    TrainingOutputForm,
)
from lockstep.service.api.pages import Filter, PageSize, PageToken, list_answer
from lockstep.service.api.requests import Body, Context, JobName, Project
from lockstep.service.api.resources import event_resources, job_columns, job_etag, job_fields, job_resource
from lockstep.service.api.routes import make_router
from lockstep.service.api.webhooks import job_webhook_form
from lockstep.service.billing.usages import job_usage
from lockstep.service.context import ServiceContext
from lockstep.service.control.containers import check_containers
from lockstep.service.control.job_inputs import order_of
from lockstep.service.control.job_urls import main_output_url, output_urls
from lockstep.service.control.orders import is_simulated
from lockstep.service.notifications.webhooks import read_job_key, seal_webhooks
from lockstep.service.prediction.job_models import find_models
from lockstep.service.security.job_folders import job_folders
from lockstep.service.security.locations import check_location
from lockstep.service.store import NEWEST_FIRST, ORDER_KEYS, GangPart, JobKind, JobOrder, JobRecord
from lockstep.storage import QUICK_POLICY, check_shared_url, may_succeed_later, open_bucket

router = make_router()


@router.post("/jobs")
@requires_scope(Scope.SUBMITTER)
def create(
    project: Project,
    body: Body,
    context: Context,
    principal: RequestPrincipal,
    validate_only: Annotated[bool, Query(alias="validateOnly")] = False,
) -> JobForm | PreviewForm:
    """``projects.jobs.create``. With ``validateOnly``, only checks the job, and returns a preview of it."""
    submission = read_submission(body, project=project, context=context)
    request = submission.request
    for what, url, use in named_urls(request):
        check_shared_url(url, what=what)
        check_location(
            url,
            what=what,
            principal=principal,
            project=project,
            bucket=context.settings.bucket,
            holds_code=use == "code",
        )
    if validate_only:
        return _preview(request, project=project, context=context)
    simulated = _check(request, project=project, context=context)
    scheduling = request.training_input.scheduling
    outputs = output_urls(request, bucket=context.settings.bucket, project=project)
    _check_bucket(main_output_url(outputs))
    job = context.jobs.create(
        project=project,
        job_id=request.job_id,
        training_input=request.training_input.redacted().to_json(),
        labels=request.labels,
        simulated=simulated,
        outputs=outputs,
        prediction_input=submission.prediction_json,
        files=pin(submission, project=project, context=context),
        kind=JobKind.TRAINING if request.training_input.hyperparameters is None else JobKind.SEARCH,
        priority=0 if scheduling is None else scheduling.priority,
        max_wait_time_s=None if scheduling is None else scheduling.max_wait_time_s,
        submitted_by=principal.label,
        webhooks=seal_webhooks(request.training_input.lockstep.webhooks, project=project, vault=context.vault),
    )
    for line in ignored_lines(request):
        context.jobs.record_event(job.uid, kind="ignored", detail=line)
    context.controller.wake()
    return _resource(job, context, attempts=[], webhooks=_webhooks(job, context))


def _preview(request: JobRequest, *, project: str, context: Context) -> PreviewForm:
    document = preview(
        request,
        project=project,
        settings=context.settings,
        catalogue=context.catalogue,
        cluster=context.cluster,
    )
    try:
        simulated = _check(request, project=project, context=context)
        _check_bucket(main_output_url(document["outputs"]))
        _check_name(request.job_id, project=project, context=context)
    except LockstepError as error:
        return {**document, "problem": str(error)}
    position = context.controller.schedule.preview(unrecorded(request, project=project, settings=context.settings))
    return {**document, "simulated": simulated, "queue": queue_form(position)}


def _check_name(job_id: str, *, project: str, context: Context) -> None:
    with contextlib.suppress(NotFoundError):
        context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
        raise ConflictError(f"jobId: project {project} has a job {job_id!r} already", action="choose another name")


def _webhooks(job: JobRecord, context: Context) -> list[JobWebhookForm]:
    return [job_webhook_form(webhook) for webhook in context.webhooks.of_job(job.uid)]


def _resource(
    job: JobRecord,
    context: Context,
    *,
    attempts: list[AttemptForm] | None = None,
    nodes: NodeCostsForm | None = None,
    webhooks: list[JobWebhookForm] | None = None,
    searched: TrainingOutputForm | None = None,
    is_for_list: bool = False,
) -> JobForm:
    waits = None
    if job.state is JobState.QUEUED and job.kind is not JobKind.SEARCH:
        waits = context.controller.schedule.explain(job)
    missing_machines = None
    if _awaits_machines(job) and context.provisioner is not None and (order := order_of(job)) is not None:
        missing_machines = context.provisioner.describe_missing([replica.node for replica in order.replicas])
    accrued = _accrued(job, context)
    return job_resource(
        job,
        waits=waits,
        missing_machines=missing_machines,
        accrued=accrued,
        attempts=attempts,
        nodes=nodes,
        webhooks=webhooks,
        predicted=None if is_for_list else prediction_output(job, context=context),
        searched=searched,
    )


def _nodes(job: JobRecord, context: Context) -> NodeCostsForm | None:
    """Returns what a job's nodes have cost; None if it had no nodes in the ledger, or the cost is not known."""
    try:
        costs = context.accounts.nodes_of(job, now_s=time.time())
    except ConfigError:  # this version cannot read a job on these nodes; this job's page must still be shown
        return None
    return None if costs is None else node_costs_form(costs)


def _attempts(job: JobRecord, context: Context) -> list[AttemptForm] | None:
    """Returns a job's attempts; None if this version cannot read the job, since its page must still be shown."""
    try:
        return attempt_documents(
            job, attempts=context.jobs.attempts(job.uid), catalogue=context.catalogue, now_s=time.time()
        )
    except ConfigError:
        return None


def _accrued(job: JobRecord, context: Context) -> BillForm | None:
    """Returns what an unfinished job has cost so far; None if it has not run, or is over and has a bill."""
    if job.start_time_s is None or job.end_time_s is not None:
        return None
    if job.kind is JobKind.SEARCH:
        summed = search_accrued(job, context=context)
        return None if summed is None else bill_form(summed, simulated=job.simulated)
    attempts = context.jobs.attempts(job.uid) if job.num_restarts else []
    try:
        used = job_usage(job, attempts=attempts, catalogue=context.catalogue, now_s=time.time())
        charged = bill(used.usages, catalogue=context.catalogue)
    except ConfigError:  # this version cannot read the job; its page must still be shown
        return None
    return bill_form(charged, simulated=job.simulated)


def _check(request: JobRequest, *, project: str, context: Context) -> bool:
    """Rejects a job that is not supported or could never run. Returns whether anything of the job is simulated."""
    problems = unsupported(request.training_input)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidInputError(problems[0] + more)
    check_resumed(request.training_input, project=project, context=context)
    folders = job_folders(context.settings)
    for what, url, use in named_urls(request):
        if folders is not None and use == "output":
            folders.check(url, what=what, project=project)
    _check_own(request.training_input.lockstep, project=project, context=context)
    catalogue: Catalogue = context.catalogue
    asked = request.training_input
    check_candidates(asked, catalogue=catalogue)
    for number in range(num_candidates(asked)):
        tried = candidate(asked, number=number)
        gang = resolve(tried, catalogue=catalogue)
        never = context.controller.schedule.why_unplaceable(project=project, gang=gang, region=tried.region)
        if never is not None:
            which = "the job" if number == 0 else f"lockstep.candidates[{number - 1}] of the job"
            raise InvalidInputError(f"{which} could never run: {never}")
    gang = resolve(asked, catalogue=catalogue)
    check_containers(
        gang,
        outputs=output_urls(request, bucket=context.settings.bucket, project=project),
        settings=context.settings,
    )
    cluster = context.cluster
    return cluster.simulates_machines or any(is_simulated(replica, gang=gang, cluster=cluster) for replica in gang)


def _check_own(own: LockstepExtensions, *, project: str, context: Context) -> None:
    """Rejects secrets that the project does not have, and webhooks that could not be notified."""
    prefix = "trainingInput.lockstep"
    names = {f"{prefix}.secrets.{variable}": name for variable, name in own.secrets.items()}
    for index, hook in enumerate(own.webhooks):
        context.settings.webhook_targets.check(hook.url, what=f"{prefix}.webhooks[{index}].url")
        if hook.secret is not None:
            names[f"{prefix}.webhooks[{index}].secret"] = hook.secret
    context.vault.check(project=project, names=names)
    for index, hook in enumerate(own.webhooks):
        if hook.secret is not None:
            read_job_key(context.vault, project, hook.secret, what=f"{prefix}.webhooks[{index}].secret")


def _check_bucket(url: str) -> None:
    """Checks that a bucket can be written, so that the user learns it at submission and not after hours of training."""
    try:
        open_bucket(url, policy=QUICK_POLICY).check_writable()
    except StorageError as error:
        if may_succeed_later(error):
            raise UnavailableError(str(error), action="try again") from error
        raise InvalidInputError(str(error)) from error


@router.get("/jobs")
@requires_scope(Scope.VIEWER)
def list_jobs(
    project: Project,
    context: Context,
    filter_text: Filter = "",
    page_size: PageSize = 0,
    page_token: PageToken = "",
    order_by: Annotated[str, Query(alias="orderBy")] = "",
) -> Annotated[JSONResponse, JobListForm]:
    """``projects.jobs.list``, the newest first.

    Lockstep's own ``orderBy`` follows AIP-132: a field, and ``desc`` behind it for the largest first.
    """
    return JSONResponse(  # not serialized by FastAPI, which would visit each field of each job
        _list(
            context,
            project=project,
            filter_text=filter_text,
            page_size=page_size,
            page_token=page_token,
            order_by=order_by,
            read=lambda uids: _read_listed(uids, context=context),
            make=lambda job: _resource(job, context),
        )
    )


@requires_scope(Scope.VIEWER)
def list_shown_jobs(
    project: str, context: ServiceContext, filter_text: str, page_size: int, page_token: str, order_by: str
) -> JobListForm:
    """Returns jobs as `list_jobs` does, for the console: of a job that is over, only a replica that reported progress.

    It is not a route: the resources of the REST interface have all replicas.
    """
    return _list(
        context,
        project=project,
        filter_text=filter_text,
        page_size=page_size,
        page_token=page_token,
        order_by=order_by,
        read=context.jobs.get_shown,
        make=lambda job: _resource(job, context, is_for_list=True),
    )


def _list(
    context: ServiceContext,
    *,
    project: str,
    filter_text: str,
    page_size: int,
    page_token: str,
    order_by: str,
    read: Callable[[Collection[str]], Sequence[JobRecord]],
    make: Callable[[JobRecord], JobForm],
) -> JobListForm:
    order = _order(order_by)
    predicate = parse_filter(filter_text)
    bounds = bounds_of(predicate)

    def show(rows: Sequence[Row[Any]]) -> list[JobForm]:
        jobs = {job.uid: job for job in read([row.uid for row in rows])}
        found = [jobs[row.uid] for row in rows if row.uid in jobs]
        # A job may have changed since its columns were read.
        return [make(job) for job in found if predicate(job_fields(job, fields=bounds.fields))]

    return list_answer(
        "jobs",
        # Of jobs that do not match, only the columns that the filter needs are read.
        read=partial(
            context.jobs.scan, project=project, bounds=bounds, columns=job_columns(bounds.fields), order=order
        ),
        holds=(lambda row: predicate(job_fields(row, fields=bounds.fields))) if predicate.program else None,
        position=order.place,
        show=show,
        size=page_size,
        token=page_token,
        order="" if order == NEWEST_FIRST else str(order),
        is_text=order.is_of_text,
    )


def _read_listed(uids: Collection[str], *, context: ServiceContext) -> list[JobRecord]:
    """Returns jobs, without the orders of those whose resource does not depend on it: an order takes long to read."""
    jobs = context.jobs.get_by_uids(uids, gang=GangPart.REPLICAS)
    with_order = [job.uid for job in jobs if _shows_order(job)]
    whole = {job.uid: job for job in context.jobs.get_by_uids(with_order)} if with_order else {}
    return [whole.get(job.uid, job) for job in jobs]


def _shows_order(job: JobRecord) -> bool:
    is_shell_open = job.state is JobState.RUNNING and bool(job.training_input.get("enableWebAccess"))
    return is_shell_open or _awaits_machines(job)


def _awaits_machines(job: JobRecord) -> bool:
    is_displaced = job.state is JobState.RUNNING and any(move.time_s is None for move in job.moves)
    return job.state is JobState.PREPARING or is_displaced


def _order(text: str) -> JobOrder:
    """Parses ``orderBy``.

    Raises:
        InvalidInputError: If it is not a field that jobs can be ordered by, or more than one.
    """
    key, _, way = text.strip().partition(" ")
    if not key:
        return NEWEST_FIRST
    if key not in ORDER_KEYS or way.strip() not in ("", "asc", "desc"):
        raise InvalidInputError(
            "orderBy",
            received=text,
            allowed=f"one of {', '.join(ORDER_KEYS)}, and desc behind it for the largest first",
        )
    return JobOrder(key=key, is_descending=way.strip() == "desc")


@router.get("/jobs/{job_id}")
@requires_scope(Scope.VIEWER)
def get(project: Project, job_id: JobName, context: Context) -> JobForm:
    """``projects.jobs.get``."""
    job = context.jobs.get(project=project, job_id=job_id)
    return _resource(
        job,
        context,
        attempts=_attempts(job, context),
        nodes=_nodes(job, context),
        webhooks=_webhooks(job, context),
        searched=search_output(job, context=context),
    )


@router.patch("/jobs/{job_id}")
@requires_scope(Scope.SUBMITTER)
def patch(
    project: Project,
    job_id: JobName,
    body: Body,
    context: Context,
    update_mask: Annotated[str, Query(alias="updateMask")] = "",
) -> JobForm:
    """``projects.jobs.patch``, for labels only. If an etag is sent, it must still be the job's."""
    paths = [path for path in update_mask.split(",") if path]
    if any(path != "labels" and not path.startswith("labels.") for path in paths) or not paths:
        raise InvalidInputError("updateMask", received=update_mask, allowed="labels")
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    etag = body.get("etag")
    if etag is not None and etag != job_etag(job):
        raise ConflictError(f"job {job_id} changed since it was read", received=etag, action="read it again")
    asked = {"jobId": job_id, "trainingInput": job.training_input, "labels": body.get("labels", {})}
    labels = parse_job(asked, source="request").labels
    if "labels" not in paths:  # single labels were given: the others stay
        keys = {path.removeprefix("labels.") for path in paths}
        kept = {key: value for key, value in job.labels.items() if key not in keys}
        labels = {**kept, **{key: value for key, value in labels.items() if key in keys}}
    if not context.jobs.set_labels(job.uid, labels=labels, version=job.version if etag is not None else None):
        raise ConflictError(f"job {job_id} changed since it was read", action="read it again")
    return _resource(context.jobs.get(project=project, job_id=job_id), context)


@router.post("/jobs/{job_id}:cancel")
@requires_scope(Scope.SUBMITTER)
def cancel(project: Project, job_id: JobName, context: Context, principal: RequestPrincipal) -> EmptyForm:
    """``projects.jobs.cancel``. Returns at once; the job ends soon after."""
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    if job.state in TERMINAL:
        raise WrongStateError(f"job {job_id} is over already: {job.state}")
    if job.state is JobState.CANCELLING:  # the first request decides the end reason
        return {}
    reason = EndReason(kind=EndKind.CANCELLED, details=(f"by {principal.label}",))
    detail = f"cancelled by {principal.label}"
    context.jobs.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, end_reason=str(reason))
    context.controller.wake()
    return {}


@router.get("/jobs/{job_id}/events")
@requires_scope(Scope.VIEWER)
def events(project: Project, job_id: JobName, context: Context) -> EventListForm:
    """Returns the events of a job, with their times and causes (Lockstep's own route)."""
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    return {"events": event_resources(context.jobs.events(job.uid))}


@router.get("/jobs/{job_id}/models")
@requires_scope(Scope.VIEWER)
def models(project: Project, job_id: JobName, context: Context) -> JobModelListForm:
    """Returns the ``.keras`` files that a job saved (Lockstep's own route)."""
    found = find_models(context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE))
    return {"models": [{"url": model.url, "sizeBytes": str(model.size_bytes)} for model in found]}
