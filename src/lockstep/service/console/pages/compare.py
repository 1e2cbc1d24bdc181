"""Several jobs beside each other: their curves laid over each other, and where their inputs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import htpy as h
from starlette.requests import Request

from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import default_project, elapsed, job_path, page, state_badge, table
from lockstep.service.console.pages.job_curves import LIVE, READING, by_tag, charts, notes, read_curves, values_table
from lockstep.service.console.pages.job_metrics import OVER
from lockstep.service.console.pages.jobs import cost_text
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

MAX_JOBS: Final = 8
MAX_DIFFERENCES: Final = 200
MAX_SHOWN: Final = 300
"""How many characters of a value are shown."""


@runs_in(Pool.BUCKET)
def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    project, job_ids = _chosen(request, session)
    jobs = {
        job_id: call(jobs_api.get, session.principal, context, project=project, job_id=job_id) for job_id in job_ids
    }
    rows = [
        (
            h.a(href=job_path(project, job_id))[job_id],
            state_badge(job["state"]),
            elapsed(job.get("startTime"), job.get("endTime")),
            cost_text(job["lockstep"]) or "-",
        )
        for job_id, job in jobs.items()
    ]
    content = [
        table(("Job", "State", "Elapsed", "Cost"), rows, label="Jobs", numbers=(3,)),
        _curves(session, context, project=project, jobs=jobs),
        h.h2["Where their inputs differ"],
        _differences({job_id: job.get("trainingInput") or job.get("predictionInput") for job_id, job in jobs.items()}),
    ]
    many = len(set(request.query_params.getlist("job"))) > MAX_JOBS
    return page(
        h.p[h.a(href=f"/jobs?{urlencode({'project': project})}")[f"Jobs of {project}"]],
        h.p(".error")[f"Only the first {MAX_JOBS} jobs are compared."] if many else None,
        content if jobs else h.p["Choose jobs in the list of jobs, and press Compare."],
        title="Compare jobs",
        session=session,
        path="/jobs",
        project=project,
    )


@runs_in(Pool.BUCKET)
def show_curves(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page that is live while a job runs."""
    project, job_ids = _chosen(request, session)
    jobs = {
        job_id: call(jobs_api.get, session.principal, context, project=project, job_id=job_id) for job_id in job_ids
    }
    return _curves(session, context, project=project, jobs=jobs)


def _chosen(request: Request, session: Session) -> tuple[str, list[str]]:
    query = request.query_params
    chosen = list(dict.fromkeys(name for name in query.getlist("job") if name))
    return query.get("project") or default_project(session.principal), chosen[:MAX_JOBS]


def _curves(
    session: Session, context: ServiceContext, *, project: str, jobs: Mapping[str, Mapping[str, Any]]
) -> h.Element:
    found = {job_id: read_curves(session, context, project=project, job_id=job_id) for job_id in jobs}
    is_reading = any(curves["more"] for curves in found.values())
    live: dict[str, str] = {}
    if is_reading or any(job["state"] not in OVER for job in jobs.values()):
        query = urlencode([("project", project), *(("job", job_id) for job_id in jobs)])
        live = {"hx-get": f"/compare/curves?{query}", "hx-trigger": READING if is_reading else LIVE}
    groups = by_tag(found)
    lines = [note for curves in found.values() for note in curves["notes"]]
    return h.section("#curves", live)[
        h.h2["Training curves"],
        charts(groups) if groups else h.p(".muted")["None of these jobs has written curves yet."],
        [h.h2["Last, lowest and highest values"], values_table(groups)] if groups else None,
        notes({"more": is_reading, "notes": lines}),
    ]


def _differences(inputs: Mapping[str, Any]) -> h.Element:
    flat = {job_id: dict(_flattened("", document)) for job_id, document in inputs.items()}
    fields = dict.fromkeys(field for document in flat.values() for field in document)
    rows: list[Sequence[h.Node]] = []
    for field in sorted(fields):
        values = [document.get(field) for document in flat.values()]
        if any(value != values[0] for value in values):
            rows.append((field, *(_text(value) for value in values)))
    if not rows:
        return h.p(".muted")["They are the same."]
    more = len(rows) - MAX_DIFFERENCES
    return h.div[
        table(("Field", *flat), rows[:MAX_DIFFERENCES], label="Where their inputs differ"),
        h.p(".muted")[f"and {more} more fields"] if more > 0 else None,
    ]


def _flattened(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields the fields of a document, each with its value as JSON. A list of plain values is one field."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flattened(f"{name}.{key}" if name else key, inner)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for number, inner in enumerate(value):
            yield from _flattened(f"{name}[{number}]", inner)
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def _text(value: str | None) -> h.Node:
    if value is None:
        return h.span(".muted")["-"]
    return h.code[value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}…"]
