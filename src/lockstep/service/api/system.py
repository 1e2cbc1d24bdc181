"""Lockstep's own routes for the state of the service."""

from __future__ import annotations

import os
from typing import Final

from lockstep import __version__
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.billing.budgets import budget_form
from lockstep.service.api.control.replicas import job_progress_form
from lockstep.service.api.forms import ConsoleLinkForm, HealthForm, ProblemForm, RecordedForm, ServiceForm, WhoAmIForm
from lockstep.service.api.requests import Context
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.api.webhooks import webhook_form
from lockstep.service.problems import Part, Problem
from lockstep.service.process.ends import read_death
from lockstep.service.process.keeper import find_keeper
from lockstep.service.security.sign_in_links import LASTS_S
from lockstep.service.store import DATABASE_FAULTS, VersionState, describe_fault

NUM_SHOWN_MAX: Final = 20

router = make_router()


@router.get("/healthz")
async def health() -> HealthForm:  # not in a thread: all of them may be busy
    """Returns that the service answers. This is the only route that needs no key."""
    return {"status": "ok"}


@router.get("/v1/whoami")
@requires_scope(Scope.VIEWER)
def whoami(context: Context, principal: RequestPrincipal) -> WhoAmIForm:
    """Returns the scope and project of the request's key, and the bucket that code is staged in."""
    return {
        "key": principal.key_id,
        "label": principal.label,
        "scope": principal.scope,
        "project": principal.project,
        "version": __version__,
        "bucket": context.settings.bucket,
    }


@router.post("/v1/console:link")
@requires_scope(Scope.VIEWER)
def make_console_link(context: Context, principal: RequestPrincipal) -> ConsoleLinkForm:
    """Returns a path of the console that opens it signed in as the sender of the request, once, within five minutes."""
    code = context.sign_in_links.make(principal.key_id)
    return {"path": f"/enter?code={code}", "lastsSeconds": LASTS_S}


@router.get("/v1/service")
@requires_scope(Scope.OPERATOR)
def service(context: Context) -> ServiceForm:
    """Returns the state of the service: its engine, bucket, jobs and prediction servers, and its problems."""
    recorded = _recorded(context)
    keeper, end = find_keeper(context.settings.home), read_death(context.settings.home)
    return {
        "version": __version__,
        "pid": os.getpid(),
        "startTime": timestamp(context.started_time_s),
        "home": str(context.settings.home.path),
        "bucket": context.settings.bucket,
        "database": context.settings.database or "SQLite in the home",
        "maxRunningJobs": context.settings.max_running_jobs,
        "programs": context.settings.users_note,
        "programsWarning": context.settings.users_warning,
        "engine": context.cluster.describe(),
        "budgets": [budget_form(budget) for budget in context.budgets],
        "webhooks": [webhook_form(webhook) for webhook in context.webhooks.states()],
        "problems": [_problem(problem) for problem in context.problems.all()],
        "keptBy": None if keeper is None else keeper.describe(),
        "lastDeath": None if end is None else {"time": timestamp(end.time_s), "how": end.how, "then": end.followed_by},
        **recorded,
    }


def _recorded(context: Context) -> RecordedForm:
    """Returns the part that is read from the database. If the database does not answer, notes that as a problem."""
    lease = context.controller.lease
    try:
        holder = lease.holder()
        unfinished, versions = context.jobs.count_unfinished(), context.models.list_versions()
        running = context.jobs.first_running(limit=NUM_SHOWN_MAX)
        context.webhooks.refresh()
    except DATABASE_FAULTS as error:
        context.problems.note(Part.DATABASE, describe_fault(error))
        return {"controller": None, "jobs": None, "running": [], "versions": []}
    elsewhere = "no service yet" if holder is None else holder.description
    return {
        "controller": "this service" if lease.generation is not None else elsewhere,
        "jobs": {state.value: number for state, number in unfinished.items()},
        "running": [
            {"project": job.project, "jobId": job.job_id, "progress": job_progress_form(job)} for job in running
        ],
        "versions": [
            {
                "name": f"{version.model}/{version.name}",
                "project": version.project,
                "state": version.state,
                "errorMessage": version.error_message,
            }
            for version in versions
            if version.state is not VersionState.DELETING
        ],
    }


def _problem(problem: Problem) -> ProblemForm:
    return {
        "part": problem.part,
        "text": problem.text,
        "since": timestamp(problem.since_s),
        "kept": problem.kept,
    }
