"""The list of jobs: filtered, live, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from textwrap import shorten
from typing import Any, Final, final

import htpy as h
from markupsafe import Markup
from starlette.requests import Request

from lockstep.errors import InvalidInputError
from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.console.calls import call, is_allowed
from lockstep.service.console.layout import (
    default_project,
    elapsed,
    filter_field,
    job_path,
    page,
    row,
    state_badge,
    table,
    when,
    with_query,
)
from lockstep.service.console.live import keep_while_unchanged
from lockstep.service.console.pages.job_metrics import OVER
from lockstep.service.console.pages.new_job import new_job_path
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

PAGE_SIZE: Final = 50
LIVE: Final = "every 2s"
TITLES: Final[Mapping[str, str]] = {
    "Compare": "",
    "Job": "jobId",
    "State": "state",
    "Progress": "",
    "Submitted by": "submittedBy",
    "Created": "createTime",
    "Elapsed": "elapsed",
    "Cost": "costUsd",
    "Restarts": "numRestarts",
    "Note": "",
}
"""The titles of the columns, and what the list is ordered by if the reader chooses one; "" if it cannot be."""
NUMBERS: Final = (7, 8)
"""The columns with numbers."""
NUM_ROWS_KEPT: Final = 2000
NOTE_LENGTH: Final = 160
"""The most characters of an error in the list."""
LARGEST_FIRST: Final = ("createTime", "elapsed", "costUsd", "numRestarts")
"""What is ordered with the largest first when it is chosen for the first time."""
NEWEST_FIRST: Final = "createTime desc"
COMPARE: Final = "compare"
"""The id of the form that the boxes of all rows belong to. It is outside of the part that is live."""


@final
@dataclass(frozen=True, kw_only=True)
class JobsView:
    """What a reader looks at.

    Attributes:
        project: the project.
        filter_text: the filter, in the language of lists.
        page_token: the page; "" for the first one.
        order: the order, as ``orderBy`` has it; "" for the newest first.
    """

    project: str
    filter_text: str = ""
    page_token: str = ""
    order: str = ""

    def path(self, path: str = "/jobs", **changes: str) -> str:
        """Returns the path of this view."""
        own = {"project": self.project, "filter": self.filter_text, "page": self.page_token, "order": self.order}
        return with_query(path, {**own, **changes})

    def title(self, title: str, key: str) -> h.Node:
        """Returns the title of a column: a link that orders the list by it, and then the other way round."""
        current, _, way = (self.order or NEWEST_FIRST).partition(" ")
        if not key:
            return title
        is_descending = way != "desc" if key == current else key in LARGEST_FIRST
        arrow = "" if key != current else (" \N{DOWNWARDS ARROW}" if way == "desc" else " \N{UPWARDS ARROW}")
        order = f"{key} desc" if is_descending else key
        return h.a(href=self.path(page="", order="" if order == NEWEST_FIRST else order))[title, arrow]

    def sorted_by(self) -> tuple[int, str]:
        """Returns the number of the column that the list is ordered by, and the value of its ``aria-sort``."""
        key, _, way = (self.order or NEWEST_FIRST).partition(" ")
        column = list(TITLES.values()).index(key) if key in TITLES.values() else 0
        return column, "descending" if way == "desc" else "ascending"


def _view(request: Request, session: Session) -> JobsView:
    query = request.query_params
    return JobsView(
        project=query.get("project") or default_project(session.principal),
        filter_text=query.get("filter", ""),
        page_token=query.get("page", ""),
        order=query.get("order", ""),
    )


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    view = _view(request, session)
    form = h.form(".bar", method="get", action="/jobs", hx_get="/jobs/table", hx_target="#jobs", hx_push_url="false")[
        h.label["Project", h.input(name="project", value=view.project, autocomplete="off")],
        filter_field(view.filter_text, example="state:FAILED AND labels.team=vision"),
        h.input(type="hidden", name="order", value=view.order) if view.order else None,
        h.button(type="submit")["Show"],
    ]
    compare = h.form(f"#{COMPARE}.bar", method="get", action="/compare")[
        h.input(type="hidden", name="project", value=view.project),
        h.button(type="submit")["Compare the chosen jobs"],
    ]
    start = _submit_links(view.project) if is_allowed(jobs_api.create, session.principal) else None
    table_, _ = _table(session, context, view)
    return page(form, start, table_, compare, title="Jobs", session=session, path="/jobs", project=view.project)


def _submit_links(project: str) -> h.Element:
    return h.p(".bar")[
        h.a(".button", href=new_job_path(project))["Submit a job"],
        h.a(".button", href=new_job_path(project, kind="prediction"))["Predict a batch"],
    ]


def show_table(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page that is live."""
    made, is_steady = _table(session, context, _view(request, session))
    if is_steady:
        keep_while_unchanged(request)
    return made


def count_changes(request: Request, session: Session, context: ServiceContext) -> int:
    """Returns a number that is another one if a list of jobs that are over may have changed."""
    return context.jobs.num_changes(_view(request, session).project)


def _table(session: Session, context: ServiceContext, view: JobsView) -> tuple[h.Element, bool]:
    """Returns the table, and whether it stays the same until a job of the project changes: all jobs in it are over."""
    live = {"hx-get": view.path("/jobs/table"), "hx-trigger": LIVE, "hx-swap": "outerMorph"}
    try:
        found = call(
            jobs_api.list_shown_jobs,
            session.principal,
            context,
            project=view.project,
            filter_text=view.filter_text,
            page_size=PAGE_SIZE,
            page_token=view.page_token,
            order_by=view.order,
        )
    except InvalidInputError as error:  # of the filter; it is shown below it, and not asked for again
        return h.section("#jobs", aria_live="polite")[h.p(".error", role="alert")[str(error)]], False
    following = found.get("nextPageToken")
    made = h.section("#jobs", live)[
        table(
            [view.title(title, key) for title, key in TITLES.items()],
            [_row(view.project, job) for job in found["jobs"]],
            label="Jobs",
            numbers=NUMBERS,
            sorted_by=view.sorted_by(),
        )
        if found["jobs"]
        else h.p(".muted")["No jobs match." if view.filter_text else f"Project {view.project} has no jobs yet."],
        h.p(".bar")[
            h.a(".button", href=view.path(page=""))["First page"] if view.page_token else None,
            h.a(".button", href=view.path(page=following))["Next page"] if following else None,
        ],
    ]
    return made, all(job["state"] in OVER for job in found["jobs"])


def _row(project: str, job: Mapping[str, Any]) -> Markup:
    own = job["lockstep"]
    return _row_of(
        project,
        job["jobId"],
        job["state"],
        "" if own["progress"] is None else own["progress"]["text"],
        own["submittedBy"],
        job["createTime"],
        elapsed(job.get("startTime"), job.get("endTime")),
        cost_text(own),
        own["numRestarts"],
        _last_line(job.get("errorMessage") or "") or own["waitingFor"] or "",
    )


def _last_line(message: str) -> str:
    """Returns the last line of an error, which says what happened. The job's page has all of it."""
    lines = [line for line in message.splitlines() if line.strip()]
    return shorten(lines[-1], NOTE_LENGTH, placeholder="...") if lines else ""


@lru_cache(maxsize=NUM_ROWS_KEPT)
def _row_of(
    project: str,
    job_id: str,
    state: str,
    progress: str,
    submitted_by: str,
    created: str,
    took: str,
    cost: str,
    num_restarts: int,
    note: str,
) -> Markup:
    """Returns a row as HTML. It is kept, because a list is asked for every two seconds, and most jobs are over."""
    cells = (
        h.input(
            id=f"compare-{job_id}",
            type="checkbox",
            name="job",
            value=job_id,
            form=COMPARE,
            aria_label=f"Compare {job_id}",
            hx_preserve="true",
            autocomplete="off",
        ),
        h.a(href=job_path(project, job_id))[job_id],
        state_badge(state),
        progress,
        submitted_by,
        when(created),
        took,
        cost,
        num_restarts or "",
        h.span(".note-text")[note],
    )
    return row(cells, numbers=NUMBERS).__html__()


def cost_text(own: Mapping[str, Any]) -> str:
    """Returns what a job costs, or has cost so far."""
    bill = own["bill"] or own["accrued"]
    return "" if bill is None or bill["costUsd"] is None else f"${bill['costUsd']}"
