"""The training curves of a job: a chart for each tag, with training and validation laid over each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.errors import LockstepError, NotFoundError, PermissionDeniedError
from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.api.telemetry import scalars as scalars_api
from lockstep.service.console.calls import call
from lockstep.service.console.charts import Across, Line, chart, number
from lockstep.service.console.layout import job_path, table
from lockstep.service.console.pages.job_metrics import OVER
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

LIVE: Final = "every 10s"
READING: Final = "every 1s"
"""How often curves are asked for while large files are read, each time a part of them."""
NUM_POINTS: Final = 300
MAX_CHARTS: Final = 24


@runs_in(Pool.BUCKET)
def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the page with the curves."""
    names = {name: request.path_params[name] for name in ("project", "job_id")}
    state = call(jobs_api.get, session.principal, context, **names)["state"]
    return curves_section(session, context, **names, is_over=state in OVER)


def curves_section(session: Session, context: ServiceContext, *, project: str, job_id: str, is_over: bool) -> h.Element:
    """Returns the curves.

    Args:
        session: the session of their reader.
        context: the parts of the service.
        project: the project.
        job_id: the name of the job.
        is_over: whether the job is over, so that they do not change any more.
    """
    found = read_curves(session, context, project=project, job_id=job_id)
    live: dict[str, str] = {}
    if found["more"] or not is_over:
        live = {"hx-get": f"{job_path(project, job_id)}/curves", "hx-trigger": READING if found["more"] else LIVE}
    groups = by_tag({"": found})
    return h.section("#curves", live)[
        h.h2["Training curves"],
        charts(groups)
        if groups
        else h.p(".muted")[
            "Nothing was written yet. Programs write curves with a TensorBoard callback into the folder ",
            h.code["AIP_TENSORBOARD_LOG_DIR"],
            ".",
        ],
        h.details[h.summary["Last, lowest and highest values"], values_table(groups)] if groups else None,
        notes(found),
    ]


def read_curves(session: Session, context: ServiceContext, *, project: str, job_id: str) -> dict[str, Any]:
    """Returns the curves of a job as the API has them. If the bucket does not answer, a note says so.

    Args:
        session: the session of their reader.
        context: the parts of the service.
        project: the project.
        job_id: the name of the job.

    Raises:
        NotFoundError: If there is no such job.
        PermissionDeniedError: If the reader may not see it.
    """
    names = {"project": project, "job_id": job_id}
    try:
        return call(scalars_api.scalars, session.principal, context, **names, max_points=NUM_POINTS)
    except (NotFoundError, PermissionDeniedError):
        raise
    except LockstepError as error:
        return {"runs": [], "notes": [str(error)], "more": False}


def by_tag(found: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Line]]:
    """Returns a line for each job and run, by tag.

    Args:
        found: the curves of jobs, by the name that their lines begin with.
    """
    groups: defaultdict[str, list[Line]] = defaultdict(list)
    for name, curves in found.items():
        for run in curves["runs"]:
            for each in run["tags"]:
                points = [(step, value) for step, _, value in each["points"]]
                groups[each["tag"]].append(Line(name=f"{name} {run['run']}".strip(), points=points))
    return dict(sorted(groups.items(), key=lambda item: (not item[0].startswith("epoch_"), item[0])))


def charts(groups: Mapping[str, Sequence[Line]]) -> h.Node:
    """Returns a chart for each tag. With many tags, the others are only in the table of values."""
    shown = list(groups.items())[:MAX_CHARTS]
    return [
        h.div(".charts")[(chart(tag, unit="", lines=lines, across=Across.STEPS) for tag, lines in shown)],
        h.p(".muted")[f"{len(groups) - MAX_CHARTS} more tags are in the table below."]
        if len(groups) > MAX_CHARTS
        else None,
    ]


def values_table(groups: Mapping[str, Sequence[Line]]) -> h.Element:
    """Returns the last, the lowest and the highest value of each line, with their steps."""
    rows: list[Sequence[h.Node]] = []
    for tag, lines in groups.items():
        for line in lines:
            if points := line.numbers:
                lowest, highest = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
                rows.append((tag, line.name, *map(_at, (points[-1], lowest, highest))))
    titles = ("Tag", "Curve", "Last", "Lowest", "Highest")
    return table(titles, rows, label="Last, lowest and highest values", numbers=(2, 3, 4))


def _at(point: tuple[float, float]) -> str:
    return f"{number(point[1], digits=4)} at step {point[0]:,.0f}"


def notes(found: Mapping[str, Any]) -> h.Node:
    """Returns what could not be read, and whether more is being read."""
    return [
        h.p(".muted")["The files are large: more of them is being read."] if found["more"] else None,
        (h.p(".error")[note] for note in found["notes"]),
    ]
