"""The trials of searches over hyperparameters: in the contract's form, and as Lockstep's own list."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Query
from fastapi.responses import JSONResponse

from lockstep.errors import ConfigError, InvalidInputError, WrongStateError
from lockstep.jobs.billing.bills import Bill, bill, sum_bills
from lockstep.jobs.input.hyperparameters import Goal
from lockstep.jobs.input.spec import TrainingInput
from lockstep.jobs.security.access import Scope
from lockstep.jobs.tuning import TrialState, best_first
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import (
    HyperparameterOutputForm,
    MetricForm,
    TrainingOutputForm,
    TrialForm,
    TrialListForm,
)
from lockstep.service.api.pages import PageSize
from lockstep.service.api.requests import Context, Name, Project
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.billing.usages import job_usage
from lockstep.service.context import ServiceContext
from lockstep.service.store import GangPart, JobKind, JobRecord
from lockstep.service.tuning.results import is_stopped_early, result_of

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1000
MAX_DIGITS: Final = 9
_ENDED: Final = (TrialState.COMPLETED, TrialState.STOPPED)

router = make_router()


@router.get("/jobs/{job_id}/trials")
@requires_scope(Scope.VIEWER)
def trials(
    project: Project,
    job_id: Name,
    context: Context,
    page_size: PageSize = 0,
    page_token: Annotated[str, Query(alias="pageToken", max_length=40)] = "",
) -> Annotated[JSONResponse, TrialListForm]:
    """Returns a page of a search's trials, those with the best values first (Lockstep's own route).

    A page token is a position: trials may move between pages while they are read.
    """
    if page_token and not (page_token.isascii() and page_token.isdecimal() and len(page_token) <= MAX_DIGITS):
        raise InvalidInputError("pageToken was not issued by this service", received=page_token)
    search = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    if search.kind is not JobKind.SEARCH:
        raise WrongStateError(f"job {job_id} does not search hyperparameters, so it has no trials")
    first, size = int(page_token or 0), min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    found = _best_first(search, context.trials.trials(search.uid))
    form: TrialListForm = {"trials": [_trial_form(job, context) for job in found[first : first + size]]}
    if first + size < len(found):
        form["nextPageToken"] = str(first + size)
    return JSONResponse(form)  # not serialized by FastAPI, which would visit each value of each trial


def search_output(search: JobRecord, *, context: ServiceContext) -> TrainingOutputForm | None:
    """Returns what the trials of a search have come to so far, in the contract's form; None for another job.

    Args:
        search: the job.
        context: the parts of the service.
    """
    if search.kind is not JobKind.SEARCH:
        return None
    found = _best_first(search, context.trials.trials(search.uid))
    return {
        "completedTrialCount": str(sum(result_of(job).state in _ENDED for job in found)),
        "trials": [_output_form(job, has_all=False) for job in found],
    }


def check_resumed(asked: TrainingInput, *, project: str, context: ServiceContext) -> None:
    """Rejects a search that resumes a job which is no search of the project, or has other parameters.

    Args:
        asked: the training input of the search.
        project: its project.
        context: the parts of the service.

    Raises:
        InvalidInputError: If it resumes such a job.
        NotFoundError: If there is no such job.
    """
    spec = asked.hyperparameters
    if spec is None or spec.resume_previous_job_id is None:
        return
    previous = context.jobs.get(project=project, job_id=spec.resume_previous_job_id)
    what = "trainingInput.hyperparameters.resumePreviousJobId"
    if previous.kind is not JobKind.SEARCH:
        raise InvalidInputError(f"{what}: this job is no search", received=previous.job_id, allowed="a search")
    other = previous.training_input["hyperparameters"]["params"]
    names, others = {param.parameter_name for param in spec.params}, {param["parameterName"] for param in other}
    if names != others:
        raise InvalidInputError(
            f"{what}: the search {previous.job_id} has other parameters",
            received=", ".join(sorted(names)),
            allowed=", ".join(sorted(others)),
        )


def search_accrued(search: JobRecord, *, context: ServiceContext) -> Bill | None:
    """Returns what the trials of a search have cost so far; None if none has run.

    Args:
        search: the search.
        context: the parts of the service.
    """
    bills = [charged for job in context.trials.trials(search.uid) if (charged := _bill_of(job, context)) is not None]
    return sum_bills(bills) if bills else None


def _best_first(search: JobRecord, found: Sequence[JobRecord]) -> list[JobRecord]:
    maximizes = search.training_input["hyperparameters"].get("goal") != Goal.MINIMIZE
    by_number = {job.trial.number: job for job in found if job.trial is not None}
    results = best_first(Goal.MAXIMIZE if maximizes else Goal.MINIMIZE, trials=[result_of(job) for job in found])
    return [by_number[result.number] for result in results]


def _output_form(job: JobRecord, *, has_all: bool) -> HyperparameterOutputForm:
    trial = job.trial
    assert trial is not None, "the job is a trial"
    form: HyperparameterOutputForm = {
        "trialId": str(trial.number),
        "hyperparameters": {name: str(value) for name, value in trial.parameters.items()},
        "state": job.state,
        "isTrialStoppedEarly": is_stopped_early(job),
    }
    if job.start_time_s is not None:
        form["startTime"] = timestamp(job.start_time_s)
    if job.end_time_s is not None:
        form["endTime"] = timestamp(job.end_time_s)
    points: list[MetricForm] = [
        {"trainingStep": str(point.step), "objectiveValue": point.value}
        for point in trial.points
        if point.value is not None
    ]
    if points:
        form["finalMetric"] = points[-1]
        if has_all:
            form["allMetrics"] = points
    return form


def _trial_form(job: JobRecord, context: ServiceContext) -> TrialForm:
    charged = _bill_of(job, context)
    cost_usd = None if charged is None else charged.cost_usd
    return {
        **_output_form(job, has_all=True),
        "jobId": job.job_id,
        "costUsd": None if cost_usd is None else str(cost_usd),
        "endReason": job.end_reason,
        "metricRun": None if job.trial is None else job.trial.run,
    }


def _bill_of(job: JobRecord, context: ServiceContext) -> Bill | None:
    """Returns the bill of a trial, or what it has cost so far; None if it has not run."""
    if job.bill is not None or job.start_time_s is None:
        return job.bill
    attempts = context.jobs.attempts(job.uid) if job.num_restarts else []
    try:
        used = job_usage(job, attempts=attempts, catalogue=context.catalogue, now_s=time.time())
        return bill(used.usages, catalogue=context.catalogue)
    except ConfigError:  # this version cannot read the job; the others must still be shown
        return None
