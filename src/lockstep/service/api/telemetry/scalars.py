"""Lockstep's own route for the curves of jobs, as their programs wrote them for TensorBoard."""

from __future__ import annotations

import math
from typing import Annotated, Final

from fastapi import Query
from fastapi.responses import JSONResponse

from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import ScalarsForm
from lockstep.service.api.requests import Context, JobName, Project
from lockstep.service.api.routes import make_router
from lockstep.service.control.job_outputs import open_output
from lockstep.service.store import GangPart
from lockstep.service.telemetry.scalars import Scalars, TagCurve
from lockstep.service.threads import Pool, runs_in

MAX_POINTS: Final = 2000
OUTPUT: Final = "tensorboard"

router = make_router()


@router.get("/jobs/{job_id}/scalars")
@requires_scope(Scope.VIEWER)
@runs_in(Pool.BUCKET)
def scalars(
    project: Project,
    job_id: JobName,
    context: Context,
    tag: Annotated[list[str] | None, Query(max_length=32)] = None,
    max_points: Annotated[int, Query(alias="maxPoints", ge=1, le=MAX_POINTS)] = 500,
) -> Annotated[JSONResponse, ScalarsForm]:
    """Returns the curves of a job by run and tag, thinned evenly. A batch prediction has none."""
    job = context.jobs.get(project=project, job_id=job_id, gang=GangPart.NONE)
    if OUTPUT not in job.outputs:
        return JSONResponse(_form(Scalars(runs=(), notes=(), more=False)))
    folder = open_output(job, OUTPUT, bucket=context.settings.bucket)
    found = context.scalars.read(job.uid, folder, tags=tag or (), max_points=max_points)
    return JSONResponse(_form(found))  # not serialized by FastAPI, which would visit each point


def _form(found: Scalars) -> ScalarsForm:
    return {
        "runs": [
            {"run": run, "tags": [{"tag": curve.tag, "points": _points(curve)} for curve in curves]}
            for run, curves in found.runs
        ],
        "notes": list(found.notes),
        "more": found.more,
    }


def _points(curve: TagCurve) -> list[list[float | None]]:
    return [
        [step, round(time_s, 3), value if math.isfinite(value) else None]  # JSON has no other numbers
        for step, time_s, value in zip(curve.steps.tolist(), curve.times_s.tolist(), curve.values.tolist(), strict=True)
    ]
