"""What happened to a job, with causes: the latest events on its page, and all of them a page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import job_path, page, when, with_query
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

NUM_LATEST: Final = 50
PAGE_SIZE: Final = 200
BAD: Final = ("failed", "restarted", "requeued", "cancel_requested", "cancelled", "ignored")
"""The kinds of events that a reader should notice."""


def timeline(events: Sequence[Mapping[str, Any]], *, project: str, job_id: str) -> h.Node:
    """Returns the latest events of a job, with a link to those before them.

    Args:
        events: all events, the oldest first, as the API has them.
        project: the project.
        job_id: the name of the job.
    """
    num_before = max(0, len(events) - NUM_LATEST)
    before = h.p[h.a(href=f"{job_path(project, job_id)}/events")[f"All {len(events):,} events"]]
    return [before if num_before else None, _list(events[num_before:])]


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page with all events of a job, the latest first."""
    names = {name: request.path_params[name] for name in ("project", "job_id")}
    events = call(jobs_api.events, session.principal, context, **names)["events"]
    asked = request.query_params.get("page", "")
    number = int(asked) if asked.isdecimal() and len(asked) < 9 else 0
    path = f"{job_path(**names)}/events"
    last = max(0, (len(events) - 1) // PAGE_SIZE)
    number = min(number, last)
    end = len(events) - number * PAGE_SIZE
    return page(
        h.p[h.a(href=job_path(**names))[f"Job {names['job_id']}"], f": {len(events):,} events"],
        _list(list(reversed(events[max(0, end - PAGE_SIZE) : end]))),
        h.p(".bar")[
            h.a(".button", href=with_query(path, {"page": str(number - 1)}))["Later"] if number else None,
            h.a(".button", href=with_query(path, {"page": str(number + 1)}))["Earlier"] if number < last else None,
        ],
        title=f"Events of {names['job_id']}",
        session=session,
        path="/jobs",
        project=names["project"],
    )


def _list(events: Sequence[Mapping[str, Any]]) -> h.Element:
    return h.ol(".timeline")[(_item(event) for event in events)]


def _item(event: Mapping[str, Any]) -> h.Element:
    late = event["recordedTime"][:19] != event["time"][:19]
    return h.li(class_="notable" if event["kind"] in BAD else None)[
        when(event["time"]),
        " ",
        h.strong[event["kind"].replace("_", " ")],
        f" {event['detail']}" if event["detail"] else "",
        [h.span(".muted")[" noticed "], h.span(".muted")[when(event["recordedTime"])]] if late else None,
    ]
