"""The trials of a hyperparameter search: plots of their objective and parameters, and a table, the best first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.api.control import trials as trials_api
from lockstep.service.console.calls import call
from lockstep.service.console.charts import number
from lockstep.service.console.layout import elapsed, job_path, state_badge, table
from lockstep.service.console.pages.job_metrics import OVER
from lockstep.service.console.signing_in import Session
from lockstep.service.console.trial_charts import Trial, history, parallel_coordinates
from lockstep.service.context import ServiceContext

LIVE: Final = "every 5s"
MAX_SHOWN: Final = 1000
"""The most trials of the plots and of the table."""
LOGARITHMIC: Final = ("UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE")


def is_search(job: Mapping[str, Any]) -> bool:
    """Returns whether a job searches hyperparameters."""
    return bool((job.get("trainingOutput") or {}).get("isHyperparameterTuningJob"))


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page with the trials."""
    project, job_id = request.path_params["project"], request.path_params["job_id"]
    job = call(jobs_api.get, session.principal, context, project=project, job_id=job_id)
    return trials_section(session, context, project=project, job=job)


def trials_section(session: Session, context: ServiceContext, *, project: str, job: Mapping[str, Any]) -> h.Element:
    """Returns the trials of a search.

    Args:
        session: the session of their reader.
        context: the parts of the service.
        project: the project.
        job: the search.
    """
    job_id = job["jobId"]
    found = call(trials_api.trials, session.principal, context, project=project, job_id=job_id, page_size=MAX_SHOWN)
    trials, spec = found["trials"], job["trainingInput"]["hyperparameters"]
    live = {} if job["state"] in OVER else {"hx-get": f"{job_path(project, job_id)}/trials", "hx-trigger": LIVE}
    return h.section("#trials", live)[
        h.h2["Trials"],
        h.p(".muted")[_summary(trials, spec)],
        _plots(trials, spec, metric=job["trainingOutput"]["hyperparameterMetricTag"]),
        _table(project, trials, names=[param["parameterName"] for param in spec["params"]]),
        h.p(".muted")[f"Only the first {MAX_SHOWN} trials are shown."] if found.get("nextPageToken") else None,
    ]


def _summary(trials: Sequence[Mapping[str, Any]], spec: Mapping[str, Any]) -> str:
    running = sum(trial["state"] not in OVER for trial in trials)
    failed = sum(trial["state"] == "FAILED" for trial in trials)
    parts = [f"{len(trials) - running} of {spec.get('maxTrials', 1)} are over"]
    if running:
        parts.append(f"{running} wait or run")
    if failed:
        parts.append(f"{failed} failed")
    goal = "Larger" if _maximizes(spec) else "Smaller"
    return f"{', '.join(parts)}. {goal} values are better."


def _plots(trials: Sequence[Mapping[str, Any]], spec: Mapping[str, Any], *, metric: str) -> h.Node:
    with_value = [
        Trial(number=int(trial["trialId"]), parameters=trial["hyperparameters"], objective=value)
        for trial in trials
        if (value := _objective(trial)) is not None
    ]
    if not with_value:
        return h.p(".muted")["No trial has reported its metric yet."]
    logarithmic = frozenset(p["parameterName"] for p in spec["params"] if p.get("scaleType") in LOGARITHMIC)
    maximizes = _maximizes(spec)
    return [
        h.div(".charts")[history(with_value, metric=metric, maximizes=maximizes)],
        parallel_coordinates(
            with_value,
            parameters=[param["parameterName"] for param in spec["params"]],
            logarithmic=logarithmic,
            metric=metric,
            maximizes=maximizes,
        ),
    ]


def _table(project: str, trials: Sequence[Mapping[str, Any]], *, names: Sequence[str]) -> h.Element:
    rows = [
        (
            h.a(href=job_path(project, trial["jobId"]))[trial["trialId"]],
            [state_badge(trial["state"]), h.span(".muted")[" stopped early"] if trial["isTrialStoppedEarly"] else None],
            _value_text(trial),
            *(_parameter_text(trial["hyperparameters"].get(name)) for name in names),
            elapsed(trial.get("startTime"), trial.get("endTime")),
            "-" if trial["costUsd"] is None else f"${trial['costUsd']}",
        )
        for trial in trials
    ]
    if not rows:
        return h.p(".muted")["No trial has begun."]
    header = ("Trial", "State", "Objective", *names, "Elapsed", "Cost")
    return table(header, rows, label="Trials", numbers=(2, len(header) - 1))


def _maximizes(spec: Mapping[str, Any]) -> bool:
    return spec.get("goal", "MAXIMIZE") != "MINIMIZE"


def _objective(trial: Mapping[str, Any]) -> float | None:
    value = (trial.get("finalMetric") or {}).get("objectiveValue")
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _value_text(trial: Mapping[str, Any]) -> h.Node:
    value = _objective(trial)
    if value is None:
        return "-"
    return [number(value, digits=6), h.span(".muted")[f" at step {trial['finalMetric']['trainingStep']}"]]


def _parameter_text(value: str | None) -> str:
    if value is None:
        return "-"
    try:
        return value if len(value) <= 8 else number(float(value), digits=4)
    except ValueError:
        return value
