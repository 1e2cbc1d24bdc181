"""The logs of jobs and of prediction servers (Lockstep's own routes)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Query
from fastapi.responses import JSONResponse

from lockstep.errors import InvalidInputError
from lockstep.jobs.logs.filters import parse_log_filter
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import LogPageForm
from lockstep.service.api.pages import Filter
from lockstep.service.api.requests import Context, JobName, Name, Project
from lockstep.service.api.routes import make_router
from lockstep.service.api.telemetry.servers import find_server
from lockstep.service.control.job_inputs import order_of
from lockstep.service.prediction.servers import server_name
from lockstep.service.store import GangPart, JobRecord
from lockstep.service.telemetry.log_history import MAX_REPLICAS, Bounds, EarlierPage, LogHistory, choose_replicas
from lockstep.service.telemetry.logs import Cursor, LogPage, read_log
from lockstep.service.threads import Pool, runs_in

PAGE_SIZE: Final = 1000

router = make_router()

_PageSize = Annotated[int, Query(alias="pageSize", ge=1, le=10_000)]
_Page = Annotated[JSONResponse, LogPageForm]


@router.get("/jobs/{job_id}/logEntries")
@requires_scope(Scope.VIEWER)
@runs_in(Pool.BUCKET)
def job_entries(
    project: Project,
    job_id: JobName,
    context: Context,
    filter_text: Filter = "",
    cursor: str = "",
    at: Annotated[str, Query(max_length=400)] = "",
    before: str = "",
    replica: Annotated[list[str] | None, Query(max_length=20)] = None,
    page_size: _PageSize = PAGE_SIZE,
) -> _Page:
    """Returns the log entries of a job after a cursor, around an entry, or at the end of the log.

    A reader that continues with the returned cursor receives each entry exactly once, whatever happens between calls.
    ``at`` is "end" or the ``insertId`` of an entry. Then the page also has ``earlier``, if there are entries before it.
    With it as ``before``, the next page has those. Both read a few replicas, and the page says which.
    """
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.ORDER)
    if sum(map(bool, (cursor, at, before))) > 1:
        raise InvalidInputError("cursor, at and before exclude each other", action="send one of them")
    asked = tuple(replica or ())
    if not at and not before:
        job = context.jobs.with_replicas(job, asked or None)
        return _page(job, context, filter_text=filter_text, cursor=cursor, size=page_size, replicas=asked)
    bounds = Bounds.decode(before) if before else None
    names = choose_replicas(job, asked=asked, at=at, bounds=bounds)
    job = context.jobs.with_replicas(job, names)
    history = LogHistory(job=job, replicas=names, segments=context.segments, listings=context.listings)
    holds = parse_log_filter(filter_text)
    if bounds is not None:
        earlier = history.before(bounds, size=page_size, holds=holds)
        return _answer(LogPage(entries=(), cursor=""), earlier=earlier, replicas=names)
    bounds, begin = history.end() if at == "end" else history.around(at)
    earlier = history.before(bounds, size=page_size if at == "end" else page_size // 2, holds=holds)
    later = read_log(
        job,
        cursor=begin,
        size=page_size if at == "end" else page_size - len(earlier.entries),
        now_s=time.time(),
        holds=holds,
        replicas=names,
        segments=context.segments,
    )
    return _answer(later, earlier=earlier, replicas=names)


@requires_scope(Scope.VIEWER)
def replica_groups(project: str, job_id: str, context: Context, chosen: Sequence[str] = ()) -> list[list[str]]:
    """Returns the replicas of a job in groups that are read one after the other, for the console. It is not a route.

    Args:
        project: the project.
        job_id: the name of the job.
        context: the parts of the service.
        chosen: the replicas that the reader chose, or the group that the reader has got to; empty for all.

    Returns:
        One group, empty for all replicas, if there are at most `MAX_REPLICAS` or one was chosen; else those of the
        gang from the chosen group on, `MAX_REPLICAS` at a time.
    """
    names = _names(context.jobs.get(project=project, job_id=job_id, gang=GangPart.ORDER))
    if len(chosen) == 1 or len(names) <= MAX_REPLICAS:
        return [list(chosen)]
    groups = [names[start : start + MAX_REPLICAS] for start in range(0, len(names), MAX_REPLICAS)]
    reached = next((number for number, group in enumerate(groups) if chosen and chosen[0] in group), 0)
    return groups[reached:]


@router.get("/models/{model}/versions/{version}/logEntries")
@requires_scope(Scope.VIEWER)
@runs_in(Pool.BUCKET)
def server_entries(
    project: Project,
    model: Name,
    version: Name,
    context: Context,
    server: str = "",
    filter_text: Filter = "",
    cursor: str = "",
    page_size: _PageSize = PAGE_SIZE,
) -> _Page:
    """Returns the log entries of a prediction server after a cursor, and the server's name.

    By default, it is the version's newest server. A reader continues with the returned server and cursor.
    """
    record = context.models.get_version(project=project, model=model, name=version)
    job = find_server(record, name=server, context=context)
    return _page(job, context, filter_text=filter_text, cursor=cursor, size=page_size, server=server_name(job))


def _names(job: JobRecord) -> list[str]:
    order = order_of(job)
    return [] if order is None else [replica.name for replica in order.replicas]


def _page(
    job: JobRecord,
    context: Context,
    *,
    filter_text: str,
    cursor: str,
    size: int,
    replicas: Sequence[str] = (),
    server: str | None = None,
) -> JSONResponse:
    page = read_log(
        job,
        cursor=Cursor.decode(cursor),
        size=size,
        now_s=time.time(),
        holds=parse_log_filter(filter_text),
        replicas=replicas,
        segments=context.segments,
    )
    return _answer(page, server=server)


def _answer(
    page: LogPage,
    *,
    earlier: EarlierPage | None = None,
    replicas: Sequence[str] | None = None,
    server: str | None = None,
) -> JSONResponse:
    before = () if earlier is None else earlier.entries
    bounds = None if earlier is None else earlier.bounds
    document = {
        "entries": [entry.to_json() for entry in (*before, *page.entries)],
        "cursor": page.cursor,
        "more": page.more,
        "complete": page.complete,
        "numMissing": page.num_missing,
        **({} if bounds is None else {"earlier": bounds.encode()}),
        **({} if replicas is None else {"replicas": list(replicas)}),
        **({} if server is None else {"server": server}),
    }
    # Not serialized by FastAPI: visiting each field of each entry would take as long as reading the log.
    return JSONResponse(document)
