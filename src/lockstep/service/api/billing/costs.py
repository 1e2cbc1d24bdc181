"""Lockstep's own routes for cost reports."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Query

from lockstep.jobs.billing.costs import BY_JOB, BY_PROJECT, CostRow
from lockstep.jobs.billing.node_costs import NodeShare
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.billing.budgets import budget_form
from lockstep.service.api.billing.nodes import amount_form
from lockstep.service.api.forms import CostReportForm, CostRowForm
from lockstep.service.api.requests import Context, Project, read_time
from lockstep.service.api.routes import make_router

router = make_router()
all_projects_router = make_router()

Time = Annotated[str, Query(max_length=40)]
Division = Annotated[str, Query(max_length=80)]


@router.get("/costs")
@requires_scope(Scope.VIEWER)
def costs(
    project: Project, context: Context, by: Division = BY_JOB, since: Time = "", until: Time = ""
) -> CostReportForm:
    """Returns the costs of a project's jobs between two times. Running jobs are charged up to now."""
    return _report(context, project=project, by=by, since=since, until=until)


@all_projects_router.get("/v1/costs")
@requires_scope(Scope.OPERATOR)
def all_costs(context: Context, by: Division = BY_PROJECT, since: Time = "", until: Time = "") -> CostReportForm:
    """Returns all costs between two times, including those of nodes that are charged to no job."""
    return _report(context, project=None, by=by, since=since, until=until)


def _report(context: Context, *, project: str | None, by: str, since: str, until: str) -> CostReportForm:
    now_s = time.time()
    since_s = read_time(since, what="since") or 0.0
    until_s = now_s if (asked_s := read_time(until, what="until")) is None else asked_s
    report = context.accounts.report(project=project, by=by, since_s=since_s, until_s=until_s, now_s=now_s)
    return {
        "rows": [_row(row) for row in report.rows],
        "total": _row(report.total),
        "storageSource": report.storage_source,
        "budgets": [budget_form(budget) for budget in context.budgets if project in (None, budget.project)],
    }


def _row(row: CostRow) -> CostRowForm:
    """Returns a row as JSON. Amounts are decimal strings, to avoid the rounding of floats."""
    return {
        "name": row.name,
        "machineHours": str(row.machine_hours),
        "mlUnits": str(row.ml_units),
        "costUsd": str(row.cost_usd),
        "owedUsd": str(row.owed_usd),
        "nodes": {share.value: amount_form(row, share) for share in NodeShare},
        "storedGibMonths": str(row.stored_gib_months),
        "storedUsd": None if row.stored_usd is None else str(row.stored_usd),
        "serverHours": str(row.server_hours),
        "unusedServerHours": str(row.unused_hours),
        "unusedUsd": str(row.unused_usd),
        "unpriced": list(row.unpriced),
        "sources": list(row.sources),
    }
