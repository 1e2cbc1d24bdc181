"""The log of a job: its end first, new entries as they come, filtered in the language of logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

import htpy as h
from starlette.requests import Request
from starlette.responses import Response

from lockstep.errors import InvalidInputError
from lockstep.service.api.telemetry import logs as logs_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import job_path
from lockstep.service.console.log_text import colored
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

PAGE_SIZE: Final = 500
LIVE: Final = "every 700ms"


def log_section(session: Session, context: ServiceContext, *, project: str, job_id: str, filter_text: str) -> h.Element:
    """Returns the log, with the box of its filter.

    Args:
        session: the session of its reader.
        context: the parts of the service.
        project: the project.
        job_id: the name of the job.
        filter_text: the filter.
    """
    return h.section("#log")[
        h.h2["Log"],
        h.form(".bar", method="get", action=job_path(project, job_id))[
            h.label[
                "Filter",
                h.input(
                    type="search",
                    name="filter",
                    value=filter_text,
                    placeholder='severity>=WARNING AND textPayload:"loss"',
                    spellcheck="false",
                    autocomplete="off",
                ),
            ],
            h.button(type="submit")["Show"],
        ],
        h.ol("#log-entries", data_follow="on", tabindex="0", aria_label=f"Log of {job_id}")[
            more_entries(session, context, project=project, job_id=job_id, filter_text=filter_text, cursor="")
        ],
    ]


@runs_in(Pool.BUCKET)
def show_more(request: Request, session: Session, context: ServiceContext) -> h.Node | Response:
    """Returns the entries after a cursor; status 204 if there are none yet, so that the reader asks again."""
    query = request.query_params
    cursor = query.get("cursor", "")
    found = more_entries(
        session,
        context,
        project=request.path_params["project"],
        job_id=request.path_params["job_id"],
        filter_text=query.get("filter", ""),
        cursor=cursor,
    )
    return Response(status_code=204) if found is None else found


def more_entries(
    session: Session, context: ServiceContext, *, project: str, job_id: str, filter_text: str, cursor: str
) -> Sequence[h.Node] | None:
    """Returns the entries after a cursor, and at their end an item that asks for the next ones.

    None if the log has not grown, so that the reader's own item can ask again.

    Args:
        session: the session of the reader.
        context: the parts of the service.
        project: the project.
        job_id: the name of the job.
        filter_text: the filter.
        cursor: where the reader has got to; "" for the beginning.
    """
    try:
        found = call(
            logs_api.job_entries,
            session.principal,
            context,
            project=project,
            job_id=job_id,
            filter_text=filter_text,
            cursor=cursor,
            page_size=PAGE_SIZE,
        )
    except InvalidInputError as error:
        return [h.li(".error", role="alert")[str(error)]]
    items: list[h.Node] = [_item(entry) for entry in found["entries"]]
    if found["complete"] and not found["more"]:
        return [*items, h.li(".muted")["The log is complete."]]
    if cursor and found["cursor"] == cursor and not found["more"]:
        return None
    query = urlencode({"filter": filter_text, "cursor": found["cursor"]})
    trigger = "load" if found["more"] else LIVE
    asks = {
        "hx-get": f"{job_path(project, job_id)}/log?{query}",
        "hx-trigger": trigger,
        "hx-swap": "outerHTML",
    }
    return [*items, h.li(".muted", asks)["…"]]


def _item(entry: dict[str, Any]) -> h.Element:
    anchor = f"e-{entry['insertId']}"
    labels = entry["labels"]
    who = labels.get("replica") or labels.get("task") or ""
    return h.li(id=anchor, class_=entry["severity"].lower())[
        h.a(href=f"#{anchor}", title=f"{entry['severity']} {entry['timestamp']}")[
            f"{entry['timestamp'][11:23]} {who}".rstrip()
        ],
        colored(entry["textPayload"]),
    ]
