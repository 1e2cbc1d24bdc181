"""The log of a prediction server: new entries as they come."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

import htpy as h
from starlette.requests import Request
from starlette.responses import Response

from lockstep.errors import InvalidInputError
from lockstep.service.api.telemetry import logs as logs_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import filter_field, model_path, page
from lockstep.service.console.log_text import colored
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

PAGE_SIZE: Final = 500
LIVE: Final = "every 1s"


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
        h.ol("#log-entries", data_follow="on", tabindex="0", aria_label="Log")[
            _entries(session, context, names=names, path=path, server=server, filter_text=filter_text, cursor="")
        ],
        title=f"Log of {what} of {names['model']}/{names['version']}",
        session=session,
        path="/models",
        project=names["project"],
    )


@runs_in(Pool.BUCKET)
def show_more(request: Request, session: Session, context: ServiceContext) -> h.Node | Response:
    """Returns the entries after a cursor; status 204 if there are none yet, so that the reader asks again."""
    names = {name: request.path_params[name] for name in ("project", "model", "version")}
    query = request.query_params
    found = _entries(
        session,
        context,
        names=names,
        path=request.url.path.removesuffix("/more"),
        server=query.get("server", ""),
        filter_text=query.get("filter", ""),
        cursor=query.get("cursor", ""),
    )
    return Response(status_code=204) if found is None else found


def _entries(
    session: Session,
    context: ServiceContext,
    *,
    names: dict[str, str],
    path: str,
    server: str,
    filter_text: str,
    cursor: str,
) -> h.Node:
    """Returns the entries after a cursor, and an item that asks for the next ones; None if the log has not grown."""
    try:
        found = call(
            logs_api.server_entries,
            session.principal,
            context,
            **names,
            server=server,
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
    query = urlencode({"server": found["server"], "filter": filter_text, "cursor": found["cursor"]})
    asks = {
        "hx-get": f"{path}/more?{query}",
        "hx-trigger": "load" if found["more"] else LIVE,
        "hx-swap": "outerHTML",
    }
    return [*items, h.li(".muted", asks)["…"]]


def _item(entry: dict[str, Any]) -> h.Element:
    anchor = f"e-{entry['insertId']}"
    return h.li(id=anchor, class_=entry["severity"].lower())[
        h.a(href=f"#{anchor}", title=f"{entry['severity']} {entry['timestamp']}")[entry["timestamp"][11:23]],
        colored(entry["textPayload"]),
    ]
