"""The log of a prediction server: new entries as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import htpy as h
from starlette.requests import Request

from lockstep.errors import InvalidInputError
from lockstep.service.api.telemetry import logs as logs_api
from lockstep.service.console.calls import call
from lockstep.service.console.event_streams import Growth, growing_item, note_element
from lockstep.service.console.layout import filter_field, model_path, page
from lockstep.service.console.log_text import colored
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

PAGE_SIZE: Final = 500
COMPLETE: Final = "The log is complete."


@runs_in(Pool.BUCKET)
def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    names = {name: request.path_params[name] for name in ("project", "model", "version")}
    query = request.query_params
    server, filter_text = query.get("server", ""), query.get("filter", "")
    what = f"server {server}" if server else "the newest server"
    path = f"{model_path(names['project'], names['model'])}/versions/{names['version']}/log"
    return page(
        h.p[h.a(href=model_path(names["project"], names["model"]))[f"Model {names['model']}"]],
        h.form(".bar", method="get", action=path)[
            h.input(type="hidden", name="server", value=server),
            filter_field(filter_text, example="severity>=WARNING"),
            h.button(type="submit")["Show"],
        ],
        h.ol("#log-entries", data_follow="on", tabindex="0", aria_label="Log")[_entries(request, session, context)],
        title=f"Log of {what} of {names['model']}/{names['version']}",
        session=session,
        path="/models",
        project=names["project"],
    )


@runs_in(Pool.BUCKET)
def follow(request: Request, session: Session, context: ServiceContext, cursor: str) -> Growth:
    """Returns the entries after a cursor, for a stream of them.

    Raises:
        LockstepError: If the log cannot be read, or not by this reader.
    """
    found = _read(session, context, request, cursor=cursor)
    entries = h.fragment[(_item(entry) for entry in found["entries"])]
    is_over = found["complete"] and not found["more"]
    end = note_element(COMPLETE) if is_over else None
    return Growth.of(entries, end, position=found["cursor"], has_more=found["more"], is_over=is_over)


def _entries(request: Request, session: Session, context: ServiceContext) -> h.Node:
    """Returns the first entries, and an item that has the next ones come."""
    try:
        found = _read(session, context, request, cursor="")
    except InvalidInputError as error:
        return [h.li(".error", role="alert")[str(error)]]
    items = [_item(entry) for entry in found["entries"]]
    if found["complete"] and not found["more"]:
        return [*items, h.li(".muted")[COMPLETE]]
    query = {"server": found["server"], "filter": request.query_params.get("filter", ""), "cursor": found["cursor"]}
    return [*items, growing_item(f"{request.url.path}/live?{urlencode(query)}")]


def _read(session: Session, context: ServiceContext, request: Request, *, cursor: str) -> Mapping[str, Any]:
    return call(
        logs_api.server_entries,
        session.principal,
        context,
        **{name: request.path_params[name] for name in ("project", "model", "version")},
        server=request.query_params.get("server", ""),
        filter_text=request.query_params.get("filter", ""),
        cursor=cursor,
        page_size=PAGE_SIZE,
    )


def _item(entry: dict[str, Any]) -> h.Element:
    anchor = f"e-{entry['insertId']}"
    return h.li(id=anchor, class_=entry["severity"].lower())[
        h.a(href=f"#{anchor}", title=f"{entry['severity']} {entry['timestamp']}")[entry["timestamp"][11:23]],
        colored(entry["textPayload"]),
    ]
