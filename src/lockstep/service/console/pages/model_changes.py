"""Changes of models: deploying a version, dividing the traffic, rolling back, undeploying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import htpy as h
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lockstep.errors import InvalidInputError, NotFoundError
from lockstep.jobs.running.saved_models import model_to_deploy
from lockstep.service.api.control import jobs as jobs_api
from lockstep.service.api.prediction import models as models_api
from lockstep.service.console.calls import call, is_allowed
from lockstep.service.console.forms import form_of
from lockstep.service.console.layout import csrf_field, model_path
from lockstep.service.console.names import check_name
from lockstep.service.console.pages.model_versions import short_name, traffic_of
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

SHARE: Final = "share."
"""The beginning of the names of fields with the percents of versions."""
MAX_TRIED: Final = 10_000


def changes_section(
    session: Session, *, project: str, model: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]
) -> h.Node:
    """Returns the forms that change a model; None if the reader may not change it.

    Args:
        session: the session of the reader.
        project: the project.
        model: the model.
        versions: its versions.
    """
    if not is_allowed(models_api.patch_model, session.principal):
        return None
    path = model_path(project, short_name(model))
    ready = [short_name(version) for version in versions if version["state"] == "READY"]
    listed = [short_name(version) for version in versions if version["state"] != "DELETING"]
    return h.section("#changes")[
        h.h2["Change it"],
        _traffic_form(session, path=path, model=model, ready=ready) if ready else None,
        _undeploy_form(session, path=path, model=model, versions=listed) if listed else None,
        _delete_form(session, path=path, name=short_name(model)) if not versions else None,
        h.p[h.a(href=f"/models?project={project}&job=")["Deploy another version"]],
    ]


def _traffic_form(session: Session, *, path: str, model: Mapping[str, Any], ready: Sequence[str]) -> h.Node:
    traffic = traffic_of(model)
    etag = h.input(type="hidden", name="etag", value=model["etag"])
    return [
        h.form(".bar", method="post", action=f"{path}/traffic")[
            csrf_field(session),
            etag,
            (
                h.label[
                    f"{name}, percent",
                    h.input(
                        ".percent",
                        type="number",
                        name=f"{SHARE}{name}",
                        min=0,
                        max=100,
                        step=1,
                        required=True,
                        value=str(traffic.get(name, 0)),
                    ),
                ]
                for name in ready
            ),
            h.button(".primary", type="submit")["Divide the traffic"],
        ],
        h.div(".bar")[
            h.form(".bar", method="post", action=f"{path}/default")[
                csrf_field(session),
                h.label["Version", h.select(name="version")[(h.option(value=name)[name] for name in ready)]],
                h.button(type="submit")["Give it all traffic"],
            ],
            h.form(".bar", method="post", action=f"{path}/rollback")[
                csrf_field(session), etag, h.button(type="submit")["Roll back the last change of the traffic"]
            ],
        ],
    ]


def _undeploy_form(session: Session, *, path: str, model: Mapping[str, Any], versions: Sequence[str]) -> h.Element:
    traffic = traffic_of(model)
    return h.details(".confirm")[
        h.summary["Undeploy a version"],
        h.form(method="post", action=f"{path}/undeploy")[
            csrf_field(session),
            h.p[
                "Its prediction servers end once they have answered their requests, and its copy of the model is "
                "deleted. You cannot undo this, but you can deploy the same files again."
            ],
            h.p(".bar")[
                h.label[
                    "Version",
                    h.select(name="version", required=True)[
                        h.option(value="")["Choose one"],
                        (h.option(value=name)[name + _share_text(traffic.get(name))] for name in versions),
                    ],
                ],
                h.button(".danger", type="submit")["Undeploy it"],
            ],
        ],
    ]


def _share_text(percent: int | None) -> str:
    return "" if percent is None else f" ({percent}% of the traffic)"


def _delete_form(session: Session, *, path: str, name: str) -> h.Element:
    return h.details(".confirm")[
        h.summary["Delete the model"],
        h.form(method="post", action=f"{path}/delete")[
            csrf_field(session),
            h.p[f"Model {name} has no versions. Keys for it stay valid for a model of the same name."],
            h.button(".danger", type="submit")["Delete it"],
        ],
    ]


def deploy_form(session: Session, *, project: str, job: str, is_open: bool) -> h.Element:
    """Returns the form that deploys a version.

    Args:
        session: the session of the reader.
        project: the project.
        job: the job whose model is proposed; "" for none.
        is_open: whether the form is shown at once.
    """
    return h.details("#deploy.confirm", open=is_open)[
        h.summary["Deploy a model"],
        h.form(method="post", action="/models/deploy")[
            csrf_field(session),
            h.input(type="hidden", name="project", value=project),
            h.p(".bar")[
                h.label["Model", h.input(name="model", required=True, placeholder="digits", autocomplete="off")],
                h.label["Version", h.input(name="version", placeholder="the next of v1, v2, ...", autocomplete="off")],
                h.label[
                    "Machine type",
                    h.input(name="machine_type", value="n1-standard-4", autocomplete="off", spellcheck="false"),
                ],
            ],
            h.p(".bar")[
                h.label["Job that saved the model", h.input(name="job", value=job, autocomplete="off")],
                h.label[
                    "or URL of a .keras file or its folder",
                    h.input(".wide", name="url", placeholder="gs://bucket/model.keras", spellcheck="false"),
                ],
            ],
            h.p(".muted")[
                "The first version of a model gets all traffic. Give traffic to a later one on the page of the model."
            ],
            h.button(".primary", type="submit")["Deploy"],
        ],
    ]


def deploy(request: Request, session: Session, context: ServiceContext) -> Response:
    """Deploys a version, and creates its model if there is none of this name."""
    form = form_of(request).fields
    project = check_name(form.get("project", ""), what="project")
    model = check_name(form.get("model", ""), what="model")
    job, url = form.get("job", "").strip(), form.get("url", "").strip()
    if bool(job) == bool(url):
        raise InvalidInputError("the model to deploy", allowed="either a job or a URL", action="fill in one of the two")
    principal, where = session.principal, {"project": project, "model": model}
    if job:
        found = call(jobs_api.get, principal, context, project=project, job_id=job)
        saved = call(jobs_api.models, principal, context, project=project, job_id=job)["models"]
        url = model_to_deploy([each["url"] for each in saved], job=found)
    try:
        call(models_api.get_model, principal, context, **where)
    except NotFoundError:
        call(models_api.create_model, principal, context, project=project, body={"name": model})
    version = form.get("version", "").strip()
    version = check_name(version, what="version") if version else _next_version(session, context, **where)
    body = {"name": version, "deploymentUri": url}
    if form.get("machine_type", "").strip():
        body["machineType"] = form["machine_type"].strip()
    call(models_api.create_version, principal, context, **where, body=body)
    return RedirectResponse(model_path(project, model), 303)


def _next_version(session: Session, context: ServiceContext, *, project: str, model: str) -> str:
    """Returns the next free name of v1, v2, ..."""
    for number in range(1, MAX_TRIED):
        try:
            call(models_api.get_version, session.principal, context, project=project, model=model, version=f"v{number}")
        except NotFoundError:
            return f"v{number}"
    raise InvalidInputError("version: too many versions exist", action="name the version")


def split_traffic(request: Request, session: Session, context: ServiceContext) -> Response:
    """Divides the traffic of a model, unless it has changed since the form was shown."""
    form, names = _changed(request)
    split: dict[str, int] = {}
    for field, text in form.items():
        if field.startswith(SHARE):
            try:
                split[field.removeprefix(SHARE)] = int(text)
            except ValueError:
                raise InvalidInputError(f"{field}: not a whole percent", received=text, allowed="0 to 100") from None
    shares = {name: percent for name, percent in split.items() if percent}
    body = {"etag": form.get("etag", ""), "lockstep": {"trafficSplit": shares}}
    call(models_api.patch_model, session.principal, context, **names, body=body, update_mask="lockstep.trafficSplit")
    return _back(names)


def set_default(request: Request, session: Session, context: ServiceContext) -> Response:
    """Gives a version all traffic."""
    form, names = _changed(request)
    call(models_api.set_default, session.principal, context, **names, version=form.get("version", ""))
    return _back(names)


def rollback(request: Request, session: Session, context: ServiceContext) -> Response:
    """Restores the traffic as it was before its last change, unless it has changed since the form was shown."""
    form, names = _changed(request)
    call(models_api.rollback, session.principal, context, **names, body={"etag": form.get("etag", "")})
    return _back(names)


def undeploy(request: Request, session: Session, context: ServiceContext) -> Response:
    """Deletes a version."""
    form, names = _changed(request)
    version = form.get("version", "")
    if not version:
        raise InvalidInputError("the version to undeploy", action="choose one")
    call(models_api.delete_version, session.principal, context, **names, version=version)
    return _back(names)


def delete(request: Request, session: Session, context: ServiceContext) -> Response:
    """Deletes a model without versions."""
    _, names = _changed(request)
    call(models_api.delete_model, session.principal, context, **names)
    return RedirectResponse(f"/models?project={names['project']}", 303)


def _changed(request: Request) -> tuple[Mapping[str, str], dict[str, str]]:
    return form_of(request).fields, {name: request.path_params[name] for name in ("project", "model")}


def _back(names: Mapping[str, str]) -> Response:
    return RedirectResponse(model_path(names["project"], names["model"]), 303)
