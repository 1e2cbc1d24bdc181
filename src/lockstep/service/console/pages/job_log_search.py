"""What the page of a job's log leads to: the first error, and the log as a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import htpy as h
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lockstep.service.api.telemetry import logs as logs_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import page
from lockstep.service.console.pages.job_log import LogView, read_page
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.streams import StreamedBody, attachment
from lockstep.service.threads import Pool, runs_in

SEARCH_S: Final = 4.0
"""How long a request looks for an error, in seconds. The reader decides whether to go on."""
DOWNLOAD_PAGE_SIZE: Final = 5000


@runs_in(Pool.BUCKET)
def show_first_error(request: Request, session: Session, context: ServiceContext) -> h.Node | Response:
    """Leads to the first entry of severity ERROR or above that the filter matches.

    Of a job of many replicas, it is the first of the first group that has one.
    """
    asked = replace(LogView.of(request), at="", before="")  # the whole log, wherever its reader is
    view = asked
    errors = f"({view.filter_text}\n) AND severity>=ERROR" if view.filter_text.strip() else "severity>=ERROR"
    deadline_s = time.monotonic() + SEARCH_S
    groups = _groups(session, context, view)
    choice = asked.replicas if len(asked.replicas) == 1 else ()
    while groups:
        view = replace(view, replicas=groups[0])
        found = read_page(session, context, replace(view, filter_text=errors), page_size=1)
        if found["entries"]:
            insert_id = found["entries"][0]["insertId"]
            there = view.page(at=insert_id, cursor="", replicas=choice).replace("#log", f"#e-{insert_id}")
            return RedirectResponse(there, 303)
        if not found["more"]:
            del groups[0]
        view = replace(view, cursor=found["cursor"] if found["more"] else "")
        if time.monotonic() > deadline_s:
            break
    go_on = h.p[h.a(href=view.part("/first-error", replicas=groups[0]))["Look on"]] if groups else None
    return page(
        h.p["No error was found so far: the log is long." if groups else "The log has no error."],
        go_on,
        h.p[h.a(href=view.page(cursor="", replicas=choice))[f"To job {view.job_id}"]],
        title="First error",
        session=session,
        path="/jobs",
        project=view.project,
    )


@runs_in(Pool.BUCKET)
def download(request: Request, session: Session, context: ServiceContext) -> Response:
    """Returns the log, or what the filter and the replicas leave of it, as a text file.

    Of a job of many replicas, it has those of each group after those of the group before.
    """
    view = replace(LogView.of(request), cursor="", at="", before="")
    views = [replace(view, replicas=group) for group in _groups(session, context, view)]
    # The first page is read before the response begins, so that an invalid filter is an error and no broken file.
    pages = [read_page(session, context, views[0], page_size=DOWNLOAD_PAGE_SIZE)]

    def read() -> bytes:
        while pages:
            found = pages.pop()
            if found["more"]:
                views[0] = replace(views[0], cursor=found["cursor"])
            else:
                del views[0]
            if views:
                pages.append(read_page(session, context, views[0], page_size=DOWNLOAD_PAGE_SIZE))
            if found["entries"]:
                return "".join(map(_line, found["entries"])).encode(errors="replace")
        return b""

    return StreamedBody(
        read,
        close=pages.clear,
        streams=context.streams,
        headers={"content-disposition": attachment(f"{view.job_id}.log")},
        media_type="text/plain; charset=utf-8",
    )


def _groups(session: Session, context: ServiceContext, view: LogView) -> list[tuple[str, ...]]:
    """Returns the replicas that are read, a group at a time, so that only a few logs are open at once."""
    names = {"project": view.project, "job_id": view.job_id}
    found = call(logs_api.replica_groups, session.principal, context, **names, chosen=view.replicas)
    return [tuple(group) for group in found]


def _line(entry: Mapping[str, Any]) -> str:
    replica = entry["resource"]["labels"]["task_name"]
    return f"{entry['timestamp']} {replica} {entry['severity']} {entry['textPayload']}\n"
