"""A job: its state with causes, its log as it grows, its curves, its cost, its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import htpy as h
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.console.calls import call, is_allowed
from lockstep.service.console.layout import (
    csrf_field,
    elapsed,
    facts,
    job_path,
    page,
    state_badge,
    when,
)
from lockstep.service.console.pages.job_artifacts import artifacts_section
from lockstep.service.console.pages.job_config import config_section
from lockstep.service.console.pages.job_cost import cost_section
from lockstep.service.console.pages.job_curves import curves_section
from lockstep.service.console.pages.job_events import timeline
from lockstep.service.console.pages.job_labels import labels_section
from lockstep.service.console.pages.job_log import LogView, log_section
from lockstep.service.console.pages.job_metrics import OVER, metrics_section
from lockstep.service.console.pages.job_replicas import NUM_SHOWN, first_replicas
from lockstep.service.console.pages.job_trials import is_search, trials_section
from lockstep.service.console.pages.jobs import cost_text
from lockstep.service.console.pages.new_job import new_job_path
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

LIVE: Final = "every 2s"
LIVE_IF_LARGE: Final = "every 10s"
"""How often the state of a job of many replicas is asked for: all of them are read for it."""


@runs_in(Pool.BUCKET)
def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page."""
    project, job_id = request.path_params["project"], request.path_params["job_id"]
    names = {"project": project, "job_id": job_id}
    job = call(jobs_api.get, session.principal, context, project=project, job_id=job_id)
    return page(
        h.p(".bar")[
            h.a(href=f"/jobs?project={project}")[f"Jobs of {project}"],
            _search_link(project, job_id),
            h.a(".button", href=new_job_path(project, clone=job_id))["Clone"]
            if is_allowed(jobs_api.create, session.principal)
            else None,
        ],
        _status(session, context, project=project, job=job),
        labels_section(session, project=project, job=job),
        *(
            [trials_section(session, context, project=project, job=job)]
            if is_search(job)
            else [
                log_section(session, context, view=LogView.of(request), job=job),
                curves_section(session, context, **names, is_over=job["state"] in OVER),
                metrics_section(session, context, **names, is_over=job["state"] in OVER),
            ]
        ),
        cost_section(job),
        artifacts_section(session, context, **names, page_token=request.query_params.get("artifacts", "")),
        config_section(project=project, job=job),
        title=f"Job {job_id}",
        session=session,
        path="/jobs",
        project=project,
    )


def show_status(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page that says how the job stands, which is live until it is over."""
    project, job_id = request.path_params["project"], request.path_params["job_id"]
    job = call(jobs_api.get, session.principal, context, project=project, job_id=job_id)
    return _status(session, context, project=project, job=job)


def cancel(request: Request, session: Session, context: ServiceContext) -> h.Node | Response:
    """Cancels the job."""
    names = {name: request.path_params[name] for name in ("project", "job_id")}
    call(jobs_api.cancel, session.principal, context, **names)
    if "hx-request" not in request.headers:
        return RedirectResponse(job_path(**names), 303)
    return show_status(request, session, context)


def _status(session: Session, context: ServiceContext, *, project: str, job: Mapping[str, Any]) -> h.Element:
    job_id = job["jobId"]
    events = call(jobs_api.events, session.principal, context, project=project, job_id=job_id)["events"]
    is_over = job["state"] in OVER
    live = {} if is_over else {"hx-get": f"{job_path(project, job_id)}/status", "hx-trigger": _live(job)}
    may_cancel = not is_over and job["state"] != "CANCELLING" and is_allowed(jobs_api.cancel, session.principal)
    return h.section("#status", live)[
        h.p(".bar")[state_badge(job["state"]), _cancel_form(session, project, job_id) if may_cancel else None],
        h.p(".error")[job["errorMessage"]] if job.get("errorMessage") else None,
        facts(_facts(job)),
        h.h2["States"],
        timeline(events, project=project, job_id=job_id),
        None if is_search(job) else [h.h2["Replicas"], first_replicas(project, job_id, job["lockstep"]["replicas"])],
    ]


def _search_link(project: str, job_id: str) -> h.Node:
    """Returns a link from a trial to its search; None for another job."""
    search, dot, _ = job_id.partition(".")
    return h.a(href=job_path(project, search))[f"Search {search}"] if dot else None


def _live(job: Mapping[str, Any]) -> str:
    return LIVE if len(job["lockstep"]["replicas"]) <= NUM_SHOWN else LIVE_IF_LARGE


def _facts(job: Mapping[str, Any]) -> list[tuple[str, h.Node]]:
    own = job["lockstep"]
    rows: list[tuple[str, h.Node]] = [
        ("Created", [when(job["createTime"]), f" by {own['submittedBy']}"]),
        ("Started", when(job.get("startTime"))),
        ("Elapsed", elapsed(job.get("startTime"), job.get("endTime"))),
        ("Cost", cost_text(own) or "-"),
    ]
    if own["waitingFor"]:
        rows.append(("Waits for", own["waitingFor"]))
    if own["progress"] is not None:
        rows.append(("Progress", own["progress"]["text"]))
    if own["numRestarts"]:
        rows.append(("Restarts", str(own["numRestarts"])))
    if job.get("labels"):
        rows.append(("Labels", ", ".join(f"{key}={value}" for key, value in job["labels"].items())))
    rows.extend((name.capitalize(), h.code[url]) for name, url in own["outputs"].items())
    return rows


def _cancel_form(session: Session, project: str, job_id: str) -> h.Element:
    return h.form(
        ".inline",
        method="post",
        action=f"{job_path(project, job_id)}/cancel",
        hx_post=f"{job_path(project, job_id)}/cancel",
        hx_target="#status",
        hx_confirm=f"Cancel job {job_id}?",
    )[csrf_field(session), h.button(".danger", type="submit")["Cancel"]]
