"""The replicas of a job: on its page the first ones, those in trouble before the others; all of them in pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import job_path, page, table, with_query
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

NUM_SHOWN: Final = 50
"""How many replicas the page of a job shows. It is live."""
PAGE_SIZE: Final = 200
GOOD_END: Final = "exit code 0"
TITLES: Final = ("Replica", "Phase", "Machine", "Host", "Progress", "End")


def first_replicas(project: str, job_id: str, replicas: Sequence[Mapping[str, Any]]) -> h.Node:
    """Returns the table on the page of a job.

    Args:
        project: the project.
        job_id: the name of the job.
        replicas: all replicas, as the API has them.
    """
    if not replicas:
        return h.p(".muted")["None yet."]
    shown = sorted(replicas, key=_is_well)[:NUM_SHOWN]  # the order stays otherwise
    more = h.p[h.a(href=f"{job_path(project, job_id)}/replicas")[f"All {len(replicas):,} replicas"]]
    return [_table(shown), more if len(replicas) > NUM_SHOWN else None]


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page with all replicas of a job."""
    names = {name: request.path_params[name] for name in ("project", "job_id")}
    replicas = call(jobs_api.get, session.principal, context, **names)["lockstep"]["replicas"]
    asked = request.query_params.get("page", "")
    last = max(0, (len(replicas) - 1) // PAGE_SIZE)
    number = min(int(asked) if asked.isdecimal() and len(asked) < 9 else 0, last)
    path = f"{job_path(**names)}/replicas"
    return page(
        h.p[h.a(href=job_path(**names))[f"Job {names['job_id']}"], f": {len(replicas):,} replicas"],
        _table(replicas[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]),
        h.p(".bar")[
            h.a(".button", href=with_query(path, {"page": str(number - 1)}))["Previous page"] if number else None,
            h.a(".button", href=with_query(path, {"page": str(number + 1)}))["Next page"] if number < last else None,
        ],
        title=f"Replicas of {names['job_id']}",
        session=session,
        path="/jobs",
        project=names["project"],
    )


def _is_well(replica: Mapping[str, Any]) -> bool:
    return replica["end"] in (None, GOOD_END)


def _table(replicas: Sequence[Mapping[str, Any]]) -> h.Element:
    rows = [
        (
            replica["name"],
            replica["phase"],
            replica["machine"],
            replica["host"],
            "" if replica["progress"] is None else replica["progress"]["text"],
            replica["end"] or "",
        )
        for replica in replicas
    ]
    return table(TITLES, rows, label="Replicas")
