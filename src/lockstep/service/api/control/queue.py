"""Lockstep's own route for the queue of all projects, and for their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import Query

from lockstep.errors import InvalidInputError
from lockstep.jobs.running.states import JobState
from lockstep.jobs.scheduling import ProjectUse, Quota
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import QueuedJobForm, QueueForm, QuotaForm
from lockstep.service.api.pages import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, PageSize
from lockstep.service.api.requests import Context
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.context import ServiceContext
from lockstep.service.store import JobRecord

MAX_DIGITS: Final = 9

router = make_router()


@router.get("/v1/queue")
@requires_scope(Scope.OPERATOR)
def queue(
    context: Context,
    page_size: PageSize = 0,
    page_token: Annotated[str, Query(alias="pageToken", max_length=40)] = "",
) -> QueueForm:
    """Returns the queue in its order: what each job waits for, and by when it is promised to start. Then the quotas.

    A page token is a position: jobs may move between pages while they are read.
    """
    if page_token and not (page_token.isascii() and page_token.isdecimal() and len(page_token) <= MAX_DIGITS):
        raise InvalidInputError("pageToken was not issued by this service", received=page_token)
    first, size = int(page_token or 0), min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    page = context.controller.schedule.look(first=first, limit=size)
    records = {record.uid: record for record in context.jobs.get_by_uids(page.uids)}
    waiting = [records[uid] for uid in page.uids if uid in records and records[uid].state is JobState.QUEUED]
    form: QueueForm = {
        "jobs": [_queued(record, context) for record in waiting],
        "numQueued": page.num_queued,
        "quotas": quota_forms(context.settings.quotas, uses=page.uses, held=page.held),
    }
    if first + size < page.num_queued:
        form["nextPageToken"] = str(first + size)
    return form


def _queued(job: JobRecord, context: ServiceContext) -> QueuedJobForm:
    waits = context.controller.schedule.explain(job)
    return {
        "project": job.project,
        "jobId": job.job_id,
        "kind": job.kind.value,
        "priority": job.priority,
        "createTime": timestamp(job.create_time_s),
        "position": waits.position,
        "reason": waits.reason,
        "startByTime": None if waits.start_by_s is None else timestamp(waits.start_by_s),
    }


def quota_forms(
    quotas: Mapping[str, Quota], *, uses: Mapping[str, ProjectUse], held: Mapping[str, str]
) -> list[QuotaForm]:
    """Returns the quotas of projects, and what they use. Projects with neither are left out.

    Args:
        quotas: the quotas by project.
        uses: what running jobs use, by project.
        held: the projects that may start no jobs because of what they have spent, each with the reason.
    """
    none, nothing = Quota(), ProjectUse(num_machines=0, accelerators={})
    forms: list[QuotaForm] = []
    for project in sorted({*quotas, *uses, *held}):
        quota, use = quotas.get(project, none), uses.get(project, nothing)
        forms.append(
            {
                "project": project,
                "machinesLimit": quota.machines,
                "machinesInUse": use.num_machines,
                "acceleratorsLimit": dict(quota.accelerators),
                "acceleratorsInUse": {kind: number for kind, number in use.accelerators.items() if number},
                "dollarsPerDay": None if quota.dollars_per_day is None else f"{quota.dollars_per_day:f}",
                "requestsPerSecond": quota.requests_per_second,
                "heldReason": held.get(project),
            }
        )
    return forms
