"""What the page of a job's log leads to: the first error, and the log as a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import htpy as h
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

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
    """Leads to the first entry of severity ERROR or above that the filter matches."""
    view = replace(LogView.of(request), at="", before="")  # the whole log, wherever its reader is
    errors = f"({view.filter_text}\n) AND severity>=ERROR" if view.filter_text.strip() else "severity>=ERROR"
    cursor, deadline_s = view.cursor, time.monotonic() + SEARCH_S
    while True:
        found = read_page(session, context, replace(view, filter_text=errors, cursor=cursor), page_size=1)
        if found["entries"]:
            insert_id = found["entries"][0]["insertId"]
            there = view.page(at=insert_id, cursor="").replace("#log", f"#e-{insert_id}")
            return RedirectResponse(there, 303)
        cursor = found["cursor"]
        if not found["more"] or time.monotonic() > deadline_s:
            break
    go_on = h.p[h.a(href=view.part("/first-error", cursor=cursor))["Look on"]]
    return page(
        h.p["No error was found so far: the log is long." if found["more"] else "The log has no error."],
        go_on if found["more"] else None,
        h.p[h.a(href=view.page(cursor=""))[f"To job {view.job_id}"]],
        title="First error",
        session=session,
        path="/jobs",
        project=view.project,
    )


@runs_in(Pool.BUCKET)
def download(request: Request, session: Session, context: ServiceContext) -> Response:
    """Returns the log, or what the filter and the replicas leave of it, as a text file."""
    view = replace(LogView.of(request), cursor="", at="", before="")
    # The first page is read before the response begins, so that an invalid filter is an error and no broken file.
    pages = [read_page(session, context, view, page_size=DOWNLOAD_PAGE_SIZE)]

    def read() -> bytes:
        while pages:
            found = pages.pop()
            if found["more"]:
                following = replace(view, cursor=found["cursor"])
                pages.append(read_page(session, context, following, page_size=DOWNLOAD_PAGE_SIZE))
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


def _line(entry: Mapping[str, Any]) -> str:
    replica = entry["resource"]["labels"]["task_name"]
    return f"{entry['timestamp']} {replica} {entry['severity']} {entry['textPayload']}\n"
