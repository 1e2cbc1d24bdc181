"""The labels of a job, edited on its page. A change that somebody else made meanwhile is never overwritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import htpy as h
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from lockstep.errors import ConflictError, LockstepError
from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.console.calls import call, is_allowed
from lockstep.service.console.forms import form_of
from lockstep.service.console.job_forms.fields import shown, with_edits
from lockstep.service.console.job_forms.sections import LABELS
from lockstep.service.console.layout import csrf_field, job_path, page
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

SECTION: Final = "labels"
_ETAG: Final = "etag"


def labels_section(
    session: Session,
    *,
    project: str,
    job: Mapping[str, Any],
    given: str | None = None,
    error: LockstepError | None = None,
) -> h.Element | None:
    """Returns the form for a job's labels; None for those who may not change them.

    Args:
        session: the session of its reader.
        project: the project of the job.
        job: the job, in the REST interface's form.
        given: what the reader wants, if it was refused; None to show the labels that the job has.
        error: why it was refused; None if nothing was.
    """
    if not is_allowed(jobs_api.patch, session.principal):
        return None
    path, now = f"{job_path(project, job['jobId'])}/labels", shown(job, LABELS) or ""
    return h.details(f"#{SECTION}.group", open=error is not None)[
        h.summary["Edit labels"],
        h.form(method="post", action=path, data_once="")[
            csrf_field(session),
            h.input(type="hidden", name=_ETAG, value=job["etag"]),
            h.p(".error", role="alert")[str(error).removeprefix("request: ")] if error is not None else None,
            h.p(".note")["The job has these labels now: ", h.code[now.replace("\n", ", ") or "none"], ". Yours follow."]
            if isinstance(error, ConflictError)
            else None,
            h.label[
                "Labels, one key=value a line",
                h.textarea(name=LABELS.name, rows="4", spellcheck="false")[f"\n{now if given is None else given}"],
            ],
            h.p(".bar")[h.button(".primary", type="submit")["Save labels"]],
        ],
    ]


def change(request: Request, session: Session, context: ServiceContext) -> Response:
    """Changes the labels, unless somebody did so since the form was shown."""
    names = {name: request.path_params[name] for name in ("project", "job_id")}
    form = form_of(request)
    given = form.fields.get(LABELS.name, "")
    body = {_ETAG: form.fields.get(_ETAG, "")}
    try:
        edited = with_edits({}, [LABELS], given={LABELS.name: given})
        body |= {"labels": edited.get("labels", {})}
        call(jobs_api.patch, session.principal, context, **names, body=body, update_mask="labels")
    except LockstepError as error:
        job = call(jobs_api.get, session.principal, context, **names)  # its etag is the one that the next try needs
        section = labels_section(session, project=names["project"], job=job, given=given, error=error)
        if section is None:
            raise
        shown_page = page(section, title=f"Labels of job {names['job_id']}", session=session, project=names["project"])
        return HTMLResponse(str(shown_page), error.http_status)
    return RedirectResponse(job_path(**names), 303)
