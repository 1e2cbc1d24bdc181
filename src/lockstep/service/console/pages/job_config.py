"""The configuration of a job: as it was submitted, on its page, and what the service made of it, if somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.service.api.control import job_config
from lockstep.service.console.calls import call
from lockstep.service.console.job_forms.documents import text_of
from lockstep.service.console.layout import job_path, page
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

SUBMITTED: Final = ("trainingInput", "predictionInput", "labels")
"""What a ``config.yaml`` that submits the job again contains."""


def config_section(*, project: str, job: Mapping[str, Any]) -> h.Element:
    """Returns the part of a job's page with its configuration, as text that can be copied.

    Args:
        project: the project.
        job: the job, as the API has it.
    """
    path = f"{job_path(project, job['jobId'])}/config"
    submitted = {name: job[name] for name in SUBMITTED if job.get(name)}
    return h.section("#config")[
        h.h2["Config"],
        h.details(".group", open=True)[h.summary["As submitted"], _copyable("submitted", submitted)],
        h.details(".group", hx_get=path, hx_trigger="toggle once", hx_target="#resolved", hx_swap="outerHTML")[
            h.summary["As resolved"], h.p("#resolved")[h.a(href=path)["Show it"]]
        ],
    ]


def show(request: Request, session: Session, context: ServiceContext) -> h.Node:
    """Returns what the service made of a job: the part of its page, or a page of its own."""
    names = {name: request.path_params[name] for name in ("project", "job_id")}
    found = call(job_config.get_config, session.principal, context, **names)
    content = [
        [h.p(".note")["Ignored: ", line] for line in found["ignored"]],
        _copyable("resolved", found["resolved"])
        if "resolved" in found
        else h.p(".error")[f"What the service made of it cannot be shown: {found['problem']}"],
    ]
    if "hx-request" in request.headers:
        return h.div[content]
    return page(
        h.p[h.a(href=job_path(**names))[f"Job {names['job_id']}"]],
        content,
        title=f"Resolved config of {names['job_id']}",
        session=session,
        path="/jobs",
        project=names["project"],
    )


def _copyable(name: str, document: Mapping[str, Any]) -> h.Node:
    """Returns a document as YAML. The button needs a script, which shows it."""
    text_id = f"config-{name}"
    return [
        h.button(type="button", data_copy=text_id, hidden=True)["Copy"],
        h.pre(".config", id=text_id, tabindex="0")[text_of(document)],
    ]
