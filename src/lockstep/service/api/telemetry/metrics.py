"""Lockstep's own route for the metrics of a job's replicas over time."""

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
from lockstep.service.api.requests import Context, Name, Project, read_time
from lockstep.service.api.routes import make_router
from lockstep.service.telemetry.series import SeriesPage, SeriesQuery, read_series

MAX_POINTS = 2000

router = make_router()


@router.get("/jobs/{job_id}/metrics")
@requires_scope(Scope.VIEWER)
def metrics(
    project: Project,
    job_id: Name,
    context: Context,
    name: Annotated[list[str] | None, Query(max_length=32)] = None,
    replica: str | None = None,
    attempt: Annotated[int | None, Query(ge=0)] = None,
    since: Annotated[str, Query(max_length=40)] = "",
    until: Annotated[str, Query(max_length=40)] = "",
    max_points: Annotated[int, Query(alias="maxPoints", ge=1, le=MAX_POINTS)] = 120,
    page_token: Annotated[str, Query(alias="pageToken")] = "",
) -> Annotated[JSONResponse, SeriesPageForm]:
    """Returns a page of a job's series: means over equal intervals, at most `max_points` per series."""
    if page_token and not (page_token.isdecimal() and len(page_token) <= 6):
        raise InvalidInputError("pageToken was not issued by this service", received=page_token)
    query = SeriesQuery(
        names=tuple(name or ()),
        replica=replica,
        attempt=attempt,
        since_s=read_time(since, what="since"),
        until_s=read_time(until, what="until"),
        max_points=max_points,
    )
    job = context.jobs.get(project=project, job_id=job_id)
    page = read_series(job, query=query, first=int(page_token or 0), now_s=time.time())
    return JSONResponse(series_form(page))  # not serialized by FastAPI, which would visit each point


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
