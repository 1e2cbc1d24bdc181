"""The curves of a job: what its machines and its program did over time, a line for each replica."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.errors import LockstepError, NotFoundError, PermissionDeniedError
from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.api.telemetry import metrics as metrics_api
from lockstep.service.console.calls import call
from lockstep.service.console.charts import Line, chart, number
from lockstep.service.console.layout import job_path, table
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

LIVE: Final = "every 5s"
OVER: Final = ("SUCCEEDED", "FAILED", "CANCELLED")


@runs_in(Pool.BUCKET)
def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page with the curves."""
    names = {name: request.path_params[name] for name in ("project", "job_id")}
    state = call(jobs_api.get, session.principal, context, **names)["state"]
    return metrics_section(session, context, **names, is_over=state in OVER)


def metrics_section(
    session: Session, context: ServiceContext, *, project: str, job_id: str, is_over: bool
) -> h.Element:
    """Returns the curves.

    Args:
        session: the session of their reader.
        context: the parts of the service.
        project: the project.
        job_id: the name of the job.
        is_over: whether the job is over, so that they do not change any more.
    """
    live = {} if is_over else {"hx-get": f"{job_path(project, job_id)}/metrics", "hx-trigger": LIVE}
    try:
        found = call(metrics_api.metrics, session.principal, context, project=project, job_id=job_id)
    except (NotFoundError, PermissionDeniedError):
        raise
    except LockstepError as error:  # the bucket does not answer: the rest of the page is shown
        return h.section("#metrics", live)[h.h2["Metrics"], h.p(".error", role="alert")[str(error)]]
    by_name: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for series in found["series"]:
        by_name[series["name"], series["unit"]].append(series)
    return h.section("#metrics", live)[
        h.h2["Metrics"],
        h.div(".charts")[
            (
                chart(
                    name,
                    unit=unit,
                    lines=[Line(name=series["replica"], points=series["points"]) for series in group],
                )
                for (name, unit), group in by_name.items()
            )
        ]
        if by_name
        else h.p(".muted")["Nothing was measured yet."],
        h.details[h.summary["The last values as a table"], _values(found["series"])] if by_name else None,
        h.p(".muted")["More replicas are shown by ", h.code[f"lockstep metrics {job_id}"], "."]
        if "nextPageToken" in found
        else None,
    ]


def _values(series: list[dict[str, Any]]) -> h.Element:
    rows = [
        (each["replica"], each["name"], number(each["points"][-1][1]), each["unit"])
        for each in series
        if each["points"]
    ]
    return table(("Replica", "Metric", "Value", "Unit"), rows, label="The last values", numbers=(2,))
