"""Submitting a job: an empty form or the clone of another job, a dry run as one types, and the submission."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import htpy as h
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from lockstep.errors import ConflictError, LockstepError, NotFoundError
from lockstep.service.api.control import job_config
from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.api.requests import check_project
from lockstep.service.api.security import secrets as secrets_api
from lockstep.service.console.calls import call, check_may
from lockstep.service.console.forms import form_of
from lockstep.service.console.job_forms.choices import choices_of
from lockstep.service.console.job_forms.documents import cloned, is_prediction, new_document
from lockstep.service.console.job_forms.drafts import JOB_ID, Draft, View, draft_of, next_name, read_draft, region_of
from lockstep.service.console.job_forms.fields import named_field
from lockstep.service.console.job_forms.previews import Outcome, preview_section
from lockstep.service.console.job_forms.shown import FORM, form_content, names_of, problem_line
from lockstep.service.console.job_forms.uploads import FILE, stage_code, with_code
from lockstep.service.console.layout import csrf_field, job_path, page, with_query
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

DELAY: Final = "400ms"
"""How long nothing is typed before the dry run is asked for again."""
MAX_NAMES: Final = 50
"""How many names are tried for a clone before its reader has to find one."""
_DO: Final = "do"
_SUBMIT, _CHECK = "submit", "check"


def new_job_path(project: str, *, clone: str = "", kind: str = "") -> str:
    """Returns the path of the form.

    Args:
        project: the project of the new job.
        clone: the job that it is like; "" for an empty form.
        kind: "prediction" for a batch prediction.
    """
    return with_query(f"/projects/{quote(project, safe='')}/jobs:new", {"clone": clone, "kind": kind})


def show(request: Request, session: Session, context: ServiceContext) -> h.Node | Response:
    """Returns the page with an empty form, or with the clone of a job."""
    project = _project(request, session)
    clone = request.query_params.get("clone", "")
    if not clone:
        document = new_document(is_prediction=request.query_params.get("kind") == "prediction")
        name = _free_name(session, context, project=project, like=f"job_{datetime.now(tz=UTC):%m%d_%H%M}", first=0)
        return _page(session, context, project=project, draft=draft_of(document, job_id=name))
    config = call(job_config.get_config, session.principal, context, project=project, job_id=clone)
    document, hidden = cloned(config["submitted"])
    note = f"This form begins with the input of job {clone}."
    if hidden:
        note += f" The addresses of webhooks are shown to nobody. Give them again: {', '.join(hidden)}/..."
    name = _free_name(session, context, project=project, like=clone, first=1)
    return _page(session, context, project=project, draft=draft_of(document, job_id=name), note=note)


def look(request: Request, session: Session, context: ServiceContext) -> h.Node:
    """Returns the dry run of the form as it stands, and the lines below its fields. Nothing is recorded."""
    project = _project(request, session)
    draft = read_draft(form_of(request).fields)
    outcome = _dry_run(session, context, project=project, draft=draft)
    lines = [
        problem_line(name, outcome.problem if outcome.field == name else None, is_part=True) for name in names_of(draft)
    ]
    return h.fragment[preview_section(outcome, live=_live(project)), lines]


def post(request: Request, session: Session, context: ServiceContext) -> h.Node | Response:
    """Submits the job, or checks it and shows the form again, and puts uploaded code into the bucket before."""
    project = _project(request, session)
    form = form_of(request)
    draft = read_draft(form.fields)
    asked, note = form.fields.get(_DO, _CHECK), ""
    try:
        sent = form.files.get(FILE)
        if sent is not None and draft.error is None and draft.document is not None:
            staged = stage_code(sent, bucket=context.settings.bucket)
            draft = draft.with_document(with_code(draft.document, staged))
            note = f"{sent.name} is in the bucket: {staged.url}"
        if asked == _SUBMIT:
            made = call(jobs_api.create, session.principal, context, project=project, body=draft.body)
            return RedirectResponse(job_path(project, made["jobId"]), 303)
    except LockstepError as error:
        return _page(session, context, project=project, draft=draft, error=error, note=note)
    if asked in set(View) and draft.error is None:  # otherwise the edit that failed would be lost
        draft = replace(draft, view=View(asked))
    return _page(session, context, project=project, draft=draft, note=note)


def _project(request: Request, session: Session) -> str:
    """Returns the project, if its reader may submit jobs there.

    Raises:
        LockstepError: If the reader may not, or there can be no such project.
    """
    project: str = request.path_params["project"]
    check_may(jobs_api.create, session.principal, project=project)
    check_project(project)
    return project


def _free_name(session: Session, context: ServiceContext, *, project: str, like: str, first: int) -> str:
    """Returns a name that no job of the project has, like another one; "" if none is found soon."""
    for number in range(first, first + MAX_NAMES):
        name = next_name(like, number=number) if number else like
        try:
            call(jobs_api.get, session.principal, context, project=project, job_id=name)
        except NotFoundError:
            return name
    return ""


def _live(project: str) -> dict[str, str]:
    return {
        "hx-post": f"{new_job_path(project)}/look",
        "hx-trigger": f"input from:#{FORM} delay:{DELAY}",
        "hx-include": f"#{FORM}",
        "hx-sync": "this:replace",
    }


def _dry_run(session: Session, context: ServiceContext, *, project: str, draft: Draft) -> Outcome:
    try:
        preview = call(
            jobs_api.create, session.principal, context, project=project, body=draft.body, validate_only=True
        )
    except LockstepError as error:
        return _outcome_of(error, draft)
    problem = preview.get("problem")
    return Outcome(
        preview=preview, problem=problem, field=None if problem is None else named_field(problem, names_of(draft))
    )


def _outcome_of(error: LockstepError, draft: Draft) -> Outcome:
    problem = str(error).removeprefix("request: ")
    field = JOB_ID if isinstance(error, ConflictError) else named_field(problem, names_of(draft))
    return Outcome(preview=None, problem=problem, field=field)


def _page(
    session: Session,
    context: ServiceContext,
    *,
    project: str,
    draft: Draft,
    error: LockstepError | None = None,
    note: str = "",
) -> Response:
    """Returns the page. After a submission that failed, it says why, and links to the job if it is there already."""
    outcome = _dry_run(session, context, project=project, draft=draft)
    if error is not None:
        outcome = replace(_outcome_of(error, draft), preview=outcome.preview)
    listed = call(secrets_api.list_secrets, session.principal, context, project=project)
    content = form_content(
        draft,
        choices=choices_of(context.catalogue, region=region_of(draft)),
        secrets=[secret["name"] for secret in listed["secrets"]],
        problem=(outcome.field, outcome.problem),
    )
    form = h.form(f"#{FORM}", method="post", action=new_job_path(project), data_once="")[csrf_field(session), content]
    is_taken = isinstance(error, ConflictError)
    shown = page(
        h.p[h.a(href=f"/jobs?project={quote(project)}")[f"Jobs of {project}"]],
        h.p(".error", role="alert")[
            "Nothing was submitted: ", str(error).removeprefix("request: "),
            [" ", h.a(href=job_path(project, draft.job_id))[f"See job {draft.job_id}"]] if is_taken else None,
        ] if error is not None else None,
        h.div(".submit")[
            form, h.aside[preview_section(outcome, live=_live(project), note=note), _buttons(draft)]
        ],
        title="Submit a batch prediction" if is_prediction(draft.document or {}) else "Submit a job",
        session=session,
        path="/jobs",
        project=project,
    )  # fmt: skip
    return HTMLResponse(str(shown), 200 if error is None else error.http_status)


def _buttons(draft: Draft) -> h.Element:
    """Returns the buttons of the form. "Check" is the first one, because the enter key in a field presses that."""
    with_file = {"form": FORM, "name": _DO, "type": "submit", "formenctype": "multipart/form-data"}
    other = View.TEXT if draft.view is View.FIELDS else View.FIELDS
    return h.div(".bar")[
        h.button(with_file, value=_CHECK, formnovalidate=True)["Check"],
        h.button(".primary", with_file, value=_SUBMIT)["Submit"],
        h.button(with_file, value=str(other), formnovalidate=True)[
            "Edit as text" if other is View.TEXT else "Edit in fields"
        ],
    ]
