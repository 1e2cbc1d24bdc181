"""Lockstep's own routes for the metrics of jobs' replicas and of prediction servers over time."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Query
from fastapi.responses import JSONResponse

from lockstep.errors import InvalidInputError
from lockstep.jobs.running.metrics import unit_of
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import SeriesPageForm
from lockstep.service.api.requests import Context, JobName, Name, Project, read_time
from lockstep.service.api.routes import make_router
from lockstep.service.api.telemetry.servers import find_server
from lockstep.service.context import ServiceContext
from lockstep.service.prediction.servers import server_name
from lockstep.service.store import GangPart, JobRecord, VersionRecord
from lockstep.service.telemetry.series import SeriesPage, SeriesQuery, read_series
from lockstep.service.threads import Pool, runs_in

MAX_POINTS = 2000

router = make_router()


_Names = Annotated[list[str] | None, Query(max_length=32)]
_Time = Annotated[str, Query(max_length=40)]
_MaxPoints = Annotated[int, Query(alias="maxPoints", ge=1, le=MAX_POINTS)]
_PageToken = Annotated[str, Query(alias="pageToken", max_length=40)]


@router.get("/jobs/{job_id}/metrics")
@requires_scope(Scope.VIEWER)
@runs_in(Pool.BUCKET)
def metrics(
    project: Project,
    job_id: JobName,
    context: Context,
    name: _Names = None,
    replica: str | None = None,
    attempt: Annotated[int | None, Query(ge=0)] = None,
    since: _Time = "",
    until: _Time = "",
    max_points: _MaxPoints = 120,
    page_token: _PageToken = "",
) -> Annotated[JSONResponse, SeriesPageForm]:
    """Returns a page of a job's series: means over equal intervals, at most `max_points` per series."""
    if page_token and not (page_token.isdecimal() and len(page_token) <= 6):
        raise _unknown_token(page_token)
    query = SeriesQuery(
        names=tuple(name or ()),
        replica=replica,
        attempt=attempt,
        since_s=read_time(since, what="since"),
        until_s=read_time(until, what="until"),
        max_points=max_points,
    )
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.ORDER)
    page = read_series(job, query=query, first=int(page_token or 0), now_s=time.time())
    return JSONResponse(series_form(page))  # not serialized by FastAPI, which would visit each point


@router.get("/models/{model}/versions/{version}/metrics")
@requires_scope(Scope.VIEWER)
@runs_in(Pool.BUCKET)
def version_metrics(
    project: Project,
    model: Name,
    version: Name,
    context: Context,
    server: str = "",
    name: _Names = None,
    since: _Time = "",
    until: _Time = "",
    max_points: _MaxPoints = 120,
    page_token: _PageToken = "",
) -> Annotated[JSONResponse, SeriesPageForm]:
    """Returns the series of one of a version's prediction servers, in the form of a job's; each server is a page.

    These are the servers that ran between `since` and `until`. Without both, they are those that run now, or if none
    does, the newest one.
    """
    record = context.models.get_version(project=project, model=model, name=version)
    now_s = time.time()
    query = SeriesQuery(
        names=tuple(name or ()),
        since_s=read_time(since, what="since"),
        until_s=read_time(until, what="until"),
        max_points=max_points,
    )
    if server:
        found, following = find_server(record, name=server, context=context), None
    else:
        found, following = _servers(record, query=query, token=page_token, now_s=now_s, context=context)
    page = read_series(found, query=query, first=0, now_s=now_s)
    form = series_form(page)
    for series in form["series"]:
        series["server"] = server_name(found)
    if following is not None:
        form["nextPageToken"] = server_name(following)
    return JSONResponse(form)


def _servers(
    version: VersionRecord, *, query: SeriesQuery, token: str, now_s: float, context: ServiceContext
) -> tuple[JobRecord, JobRecord | None]:
    """Returns the server of a page, and that of the next page, which its token names; None if this is the last page."""
    first = None
    if token:
        first = context.jobs.last_server(version.uid, job_id=f"{version.model}/{version.name}/{token}")
        if first is None:
            raise _unknown_token(token)
    has_interval = query.since_s is not None or query.until_s is not None
    servers = context.jobs.servers_between(
        version.uid,
        since_s=(query.since_s or 0.0) if has_interval else None,
        until_s=now_s if query.until_s is None else query.until_s,
        first=first,
        limit=2,
    )
    if servers:
        return servers[0], servers[1] if len(servers) > 1 else None
    return first or find_server(version, name="", context=context), None


def _unknown_token(token: str) -> InvalidInputError:
    return InvalidInputError("pageToken was not issued by this service", received=token)


def series_form(page: SeriesPage) -> SeriesPageForm:
    """Returns a page of series as JSON."""
    form: SeriesPageForm = {
        "series": [
            {
                "replica": replica,
                "attempt": page.attempt,
                "name": series.name,
                "unit": unit_of(series.name).value,
                "points": [[round(time_s, 3), value] for time_s, value in series.points],
            }
            for replica, series in page.series
        ],
        "intervalSeconds": page.interval_s,
    }
    if page.next is not None:
        form["nextPageToken"] = str(page.next)
    return form
