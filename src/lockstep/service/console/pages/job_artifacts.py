"""The files that a job left, a page at a time, and their download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import htpy as h
from starlette.requests import Request
from starlette.responses import Response

from lockstep.errors import LockstepError, NotFoundError, PermissionDeniedError
from lockstep.service.api.control import artifacts as artifacts_api
from lockstep.service.console.calls import call
from lockstep.service.console.charts import number
from lockstep.service.console.layout import job_path, table, when, with_query
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

PAGE_SIZE: Final = 50


@runs_in(Pool.BUCKET)
def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of the job's page with its files."""
    names = {name: request.path_params[name] for name in ("project", "job_id")}
    return artifacts_section(session, context, **names, page_token=request.query_params.get("artifacts", ""))


@runs_in(Pool.BUCKET)
def download(request: Request, session: Session, context: ServiceContext) -> Response:
    """Returns a file."""
    names = {name: request.path_params[name] for name in ("project", "job_id", "path")}
    return call(artifacts_api.artifact, session.principal, context, **names)


def artifacts_section(
    session: Session, context: ServiceContext, *, project: str, job_id: str, page_token: str
) -> h.Element:
    """Returns the files of a job.

    Args:
        session: the session of their reader.
        context: the parts of the service.
        project: the project.
        job_id: the name of the job.
        page_token: the page; "" for the first one.
    """
    names = {"project": project, "job_id": job_id}
    options = {"page_size": PAGE_SIZE, "page_token": page_token}
    try:
        found = call(artifacts_api.artifacts, session.principal, context, **names, **options)
    except (NotFoundError, PermissionDeniedError):
        raise
    except LockstepError as error:  # the bucket does not answer: the rest of the page is shown
        return h.section("#artifacts")[
            h.h2["Artifacts"], h.p(".error", role="alert")[str(error)], _bar(names, "", None)
        ]
    return h.section("#artifacts")[
        h.h2["Artifacts"],
        table(
            ("Path", "Size", "Changed"),
            [_row(names, artifact) for artifact in found["artifacts"]],
            label="Artifacts",
            numbers=(1,),
        )
        if found["artifacts"]
        else h.p(".muted")["No files here."],
        _bar(names, page_token, found.get("nextPageToken")),
    ]


def _bar(names: Mapping[str, str], token: str, following: str | None) -> h.Element:
    return h.p(".bar")[
        _button(names, "", "First" if token else "Look again"),
        None if following is None else _button(names, following, "More"),
    ]


def _button(names: Mapping[str, str], token: str, text: str) -> h.Element:
    part = with_query(f"{job_path(**names)}/artifacts", {"artifacts": token})
    asks = {"hx-get": part, "hx-target": "#artifacts", "hx-swap": "outerHTML"}
    return h.a(".button", asks, href=with_query(job_path(**names), {"artifacts": token}) + "#artifacts")[text]


def _row(names: Mapping[str, str], artifact: Mapping[str, Any]) -> Sequence[h.Node]:
    parts = "/".join(quote(part, safe="") for part in artifact["path"].split("/"))
    return (
        h.a(href=f"{job_path(**names)}/artifacts/{parts}", download=True)[artifact["path"]],
        f"{number(artifact['sizeBytes'])}B" if artifact["sizeBytes"] >= 1000 else f"{artifact['sizeBytes']} B",
        when(artifact["updateTime"]),
    )
