"""The log of a job: its end first, earlier pages on demand, new entries as they come, filtered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final
from urllib.parse import urlencode

import htpy as h
from starlette.requests import Request

from lockstep.errors import InvalidInputError, LockstepError, NotFoundError, PermissionDeniedError
from lockstep.service.api.telemetry import logs as logs_api
from lockstep.service.console.calls import call
from lockstep.service.console.event_streams import Growth, growing_item, note_element
from lockstep.service.console.layout import filter_field, job_path
from lockstep.service.console.log_text import colored
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.telemetry.log_history import MAX_REPLICAS
from lockstep.service.threads import Pool, runs_in

PAGE_SIZE: Final = 500
RETRY: Final = "every 5s"
START: Final = "start"
END: Final = "end"
MAX_CHOICES: Final = 200
"""How many replicas are offered in a list. Beyond, their names are typed."""
_COLUMN: Final = re.compile(r"filter: column (\d+)")


@final
@dataclass(frozen=True, kw_only=True)
class LogView:
    """What a reader looks at.

    Attributes:
        project: the project.
        job_id: the name of the job.
        filter_text: the filter.
        replicas: the names of the replicas; all if empty.
        at: where the page begins: `START`, `END`, or the id of an entry; "" if it begins at another place.
        before: what the API has for the page before another one; "" if it begins at another place.
        cursor: the API's cursor; "" for the beginning.
    """

    project: str
    job_id: str
    filter_text: str = ""
    replicas: tuple[str, ...] = ()
    at: str = ""
    before: str = ""
    cursor: str = ""

    @property
    def choice(self) -> str:
        """The replica that the reader has chosen; "" if several are shown."""
        return self.replicas[0] if len(self.replicas) == 1 else ""

    @classmethod
    def of(cls, request: Request) -> LogView:
        """Returns what a request names."""
        query = request.query_params
        return cls(
            project=request.path_params["project"],
            job_id=request.path_params["job_id"],
            filter_text=query.get("filter", ""),
            replicas=tuple(name for name in query.getlist("replica") if name),
            at=query.get("at", ""),
            before=query.get("before", ""),
            cursor=query.get("cursor", ""),
        )

    def page(self, **changes: Any) -> str:
        """Returns the path of the job's page with this view of the log."""
        return f"{job_path(self.project, self.job_id)}{replace(self, **changes)._query()}#log"

    def part(self, place: str = "", **changes: Any) -> str:
        """Returns the path of a part of the log, or of something else below it."""
        return f"{job_path(self.project, self.job_id)}/log{place}{replace(self, **changes)._query()}"

    def _query(self) -> str:
        named = [("filter", self.filter_text), *(("replica", name) for name in self.replicas)]
        named += [("at", self.at), ("before", self.before), ("cursor", self.cursor)]
        query = urlencode([(name, value) for name, value in named if value])
        return f"?{query}" if query else ""


def log_section(session: Session, context: ServiceContext, *, view: LogView, job: Mapping[str, Any]) -> h.Element:
    """Returns the log, with the box of its filter.

    Args:
        session: the session of its reader.
        context: the parts of the service.
        view: what the reader looks at.
        job: the job, as the API has it.
    """
    names = [replica["name"] for replica in job["lockstep"]["replicas"]]
    shown = view if view.at or view.before or view.cursor else replace(view, at=END)
    if shown.at == START and not view.replicas:
        shown = replace(shown, replicas=tuple(names[:MAX_REPLICAS]))
    chosen = replace(view, replicas=(view.choice,) if view.choice else (), at="", before="", cursor="")
    problem: InvalidInputError | None = None
    items: Sequence[h.Node]
    try:
        items = _entries(session, context, shown)
    except InvalidInputError as error:
        items, problem = (), error
    follows = problem is None and shown.at == END
    return h.section("#log")[
        h.h2["Log"],
        _form(view, names, problem),
        _few_of_many(names) if not view.choice and len(names) > MAX_REPLICAS else None,
        h.p(".bar.log-bar")[
            h.a(href=chosen.part("/first-error"))["First error"],
            h.a(href=chosen.page(at=START))["Beginning"],
            h.a(href=chosen.page())["End"],
            h.a(href=chosen.part("/download"), download=True)[
                "Download these entries" if view.filter_text or view.choice else "Download"
            ],
            h.label(".inline-label")[h.input("#log-wrap", type="checkbox", checked=True), "Wrap lines"],
        ],
        h.ol(
            "#log-entries",
            data_follow="on" if follows else "off",
            data_at=chosen.page(at="{id}"),
            tabindex="0",
            aria_label=f"Log of {view.job_id}",
        )[items],
    ]


@runs_in(Pool.BUCKET)
def show_more(request: Request, session: Session, context: ServiceContext) -> h.Node:
    """Returns the entries after a cursor, or before a place."""
    try:
        return _entries(session, context, LogView.of(request))
    except InvalidInputError as error:
        return h.li(".alert", role="alert")[str(error)]


@runs_in(Pool.BUCKET)
def follow(request: Request, session: Session, context: ServiceContext, cursor: str) -> Growth:
    """Returns the entries after a cursor, for a stream of them.

    Raises:
        LockstepError: If the log cannot be read, or not by this reader.
    """
    view = replace(LogView.of(request), at="", before="", cursor=cursor)
    found = read_page(session, context, view, page_size=PAGE_SIZE)
    entries = h.fragment[(_item(view, entry) for entry in found["entries"])]
    is_over = found["complete"] and not found["more"]
    end = note_element(_complete(found)) if is_over else None
    return Growth.of(entries, end, position=found["cursor"], has_more=found["more"], is_over=is_over)


def read_page(session: Session, context: ServiceContext, view: LogView, *, page_size: int) -> Mapping[str, Any]:
    """Returns a page of the log, as the API has it.

    Args:
        session: the session of the reader.
        context: the parts of the service.
        view: what the reader looks at.
        page_size: the maximum number of entries.

    Raises:
        InvalidInputError: If the filter, or something else that the reader chose, is not valid.
        NotFoundError: If there is no such job.
        PermissionDeniedError: If the reader may not see it.
    """
    return call(
        logs_api.job_entries,
        session.principal,
        context,
        project=view.project,
        job_id=view.job_id,
        filter_text=view.filter_text,
        replica=list(view.replicas),
        cursor=view.cursor,
        at="" if view.at == START else view.at,
        before=view.before,
        page_size=page_size,
    )


def _entries(session: Session, context: ServiceContext, view: LogView) -> Sequence[h.Node]:
    """Returns the entries of a view, with an item that leads to those before them, and one that has the next ones come.

    Raises:
        InvalidInputError: If the filter, or something else that the reader chose, is not valid.
        NotFoundError: If there is no such job.
        PermissionDeniedError: If the reader may not see it.
    """
    try:
        found = read_page(session, context, view, page_size=PAGE_SIZE)
    except (InvalidInputError, NotFoundError, PermissionDeniedError):
        raise
    except LockstepError as error:  # the bucket does not answer; the page is there again when it does
        retry = {"hx-get": view.part(), "hx-trigger": RETRY, "hx-swap": "outerHTML"}
        return [h.li(".alert", retry, role="alert")[str(error)]]
    items: list[h.Node] = [_item(view, entry) for entry in found["entries"]]
    if found.get("replicas"):  # further parts are of the same replicas
        view = replace(view, replicas=tuple(found["replicas"]))
    if "earlier" in found:
        items.insert(0, _earlier(view, before=found["earlier"], is_searching=not found["entries"]))
    if view.before:
        return items
    if found["complete"] and not found["more"]:
        return [*items, h.li(".muted")[_complete(found)]]
    following = {"at": "", "before": "", "cursor": found["cursor"]}
    if found["more"] and view.at != END:
        asks = {"hx-get": view.part(**following), "hx-trigger": "intersect once", "hx-swap": "outerHTML"}
        return [*items, h.li(".muted.later", asks)[h.a(href=view.page(**following))["Later entries"]]]
    return [*items, growing_item(view.part("/live", **following))]


def _complete(found: Mapping[str, Any]) -> str:
    number = found["numMissing"]
    return "The log is complete." + (f" {number:,} entries never reached the bucket." if number else "")


def _earlier(view: LogView, *, before: str, is_searching: bool) -> h.Element:
    """Returns the item that leads to earlier entries. While a filter has found none, it looks for them by itself."""
    path = {"at": "", "cursor": "", "before": before}
    part = view.part(**path)
    link = h.a({"hx-get": part, "hx-target": "closest li", "hx-swap": "outerHTML"}, href=view.page(**path))
    if not is_searching:
        return h.li(".muted.earlier")[link["Earlier entries"]]
    asks = {"hx-get": part, "hx-trigger": "load delay:100ms", "hx-swap": "outerHTML"}
    return h.li(".muted.earlier", asks)["No entry yet. ", link["Look further back"]]


def _item(view: LogView, entry: Mapping[str, Any]) -> h.Element:
    anchor = f"e-{entry['insertId']}"
    replica = entry["resource"]["labels"]["task_name"]
    replicas = (view.choice,) if view.choice else ()
    link = view.page(at=entry["insertId"], before="", cursor="", replicas=replicas).replace("#log", f"#{anchor}")
    return h.li(id=anchor, class_=entry["severity"].lower())[
        h.a(href=link, title=f"{entry['severity']} {entry['timestamp']} attempt {entry['labels']['attempt']}")[
            f"{entry['timestamp'][11:23]} {replica}"
        ],
        colored(entry["textPayload"]),
    ]


def _form(view: LogView, names: Sequence[str], problem: InvalidInputError | None) -> h.Element:
    return h.form(".bar", method="get", action=job_path(view.project, view.job_id) + "#log")[
        filter_field(
            view.filter_text,
            example='severity>=WARNING AND textPayload:"loss"',
            problem_id="log-problem" if problem else None,
        ),
        _replicas(names, view.choice) if len(names) > 1 else None,
        h.button(type="submit")["Show"],
        None if problem is None else _problem(view.filter_text, problem),
    ]


def _replicas(names: Sequence[str], chosen: str) -> h.Element:
    if len(names) > MAX_CHOICES:
        box = h.input(name="replica", value=chosen, placeholder=names[0], spellcheck="false", autocomplete="off")
        return h.label["Replica", box]
    return h.label[
        "Replica",
        h.select(name="replica")[
            h.option(value="", selected=not chosen)["All" if len(names) <= MAX_REPLICAS else f"First {MAX_REPLICAS}"],
            (h.option(value=name, selected=name == chosen)[name] for name in names),
        ],
    ]


def _few_of_many(names: Sequence[str]) -> h.Element:
    return h.p(".muted")[
        f"The log shows the first {MAX_REPLICAS} of {len(names):,} replicas. Choose a replica to see another one."
    ]


def _problem(text: str, problem: InvalidInputError) -> h.Element:
    """Returns what is wrong with a filter, and marks where."""
    match = _COLUMN.match(problem.what)
    marked = None
    if match is not None:
        flat = " ".join(text.splitlines()) if len(text.splitlines()) > 1 else text
        marked = h.pre(".marked", aria_hidden="true")[f"{flat}\n{' ' * (int(match[1]) - 1)}^"]
    return h.div("#log-problem", role="alert")[h.p(".error")[str(problem)], marked]
