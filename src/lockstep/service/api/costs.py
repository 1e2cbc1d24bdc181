"""Lockstep's own: what a project's jobs cost together."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query

from lockstep.jobs.access import Scope
from lockstep.jobs.costs import BY_JOB, CostRow, report_costs
from lockstep.service.api.access import needs
from lockstep.service.api.requests import Context, Project, read_time
from lockstep.service.planning import run_of

router = APIRouter()


@router.get("/costs")
@needs(Scope.VIEWER)
def costs(
    project: Project,
    context: Context,
    by: Annotated[str, Query(max_length=80)] = BY_JOB,
    since: Annotated[str, Query(max_length=40)] = "",
    until: Annotated[str, Query(max_length=40)] = "",
) -> dict[str, Any]:
    """What jobs cost between two times: those that run, up to now."""
    now_s = time.time()
    since_s = read_time(since, what="since") or 0.0
    until_s = now_s if (asked_s := read_time(until, what="until")) is None else asked_s
    jobs = context.jobs.that_ran(project=project, since_s=since_s, until_s=until_s)
    attempts = context.jobs.attempts_of(project=project)
    runs = [run_of(job, attempts=attempts.get(job.uid, ()), catalogue=context.catalogue, now_s=now_s) for job in jobs]
    report = report_costs(runs, by=by, catalogue=context.catalogue, since_s=since_s, until_s=until_s)
    return {"rows": [_row(row) for row in report.rows], "total": _row(report.total)}


def _row(row: CostRow) -> dict[str, Any]:
    """Returns a row as JSON; amounts as decimal strings, so that no cent is a float's."""
    return {
        "name": row.name,
        "machineHours": str(row.machine_hours),
        "mlUnits": str(row.ml_units),
        "costUsd": str(row.cost_usd),
        "owedUsd": str(row.owed_usd),
        "unpriced": list(row.unpriced),
    }
