"""Deployed models: who answers, how many servers are ready, what a version waits for, and how to call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.errors import NotFoundError
from lockstep.service.api.prediction import models as models_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import default_project, facts, model_path, page, state_badge, table, when
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

PAGE_SIZE: Final = 100
LIVE: Final = "every 3s"


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page with all models of a project."""
    project = request.query_params.get("project") or default_project(session.principal)
    found = call(models_api.list_models, session.principal, context, project=project, page_size=PAGE_SIZE)
    rows = [_model_row(project, model) for model in found["models"]]
    return page(
        h.form(".bar", method="get", action="/models")[
            h.label["Project", h.input(name="project", value=project, autocomplete="off")],
            h.button(type="submit")["Show"],
        ],
        table(("Model", "Default version", "State", "Traffic", "Description"), rows, label="Models")
        if rows
        else h.p(".muted")[f"Project {project} has no models yet. Deploy one with ", h.code["lockstep deploy"], "."],
        h.p(".muted")["More models are shown by ", h.code["lockstep models list"], "."]
        if "nextPageToken" in found
        else None,
        title="Models",
        session=session,
        path="/models",
        project=project,
    )


def _model_row(project: str, model: Mapping[str, Any]) -> tuple[h.Node, ...]:
    name, default = _short(model), model.get("defaultVersion")
    return (
        h.a(href=model_path(project, name))[name],
        "-" if default is None else _short(default),
        "-" if default is None else state_badge(default["state"]),
        _traffic_text(model),
        model.get("description", ""),
    )


def show_model(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page of a model."""
    project, name = request.path_params["project"], request.path_params["model"]
    model = call(models_api.get_model, session.principal, context, project=project, model=name)
    url = f"{request.url.scheme}://{request.url.netloc}/v1/{model['name']}:predict"
    return page(
        h.p[h.a(href=f"/models?project={project}")[f"Models of {project}"]],
        facts(
            [
                ("Traffic", _traffic_text(model) or "none"),
                ("Description", model.get("description", "-")),
                ("Regions", ", ".join(model.get("regions", ())) or "-"),
            ]
        ),
        _versions(session, context, project=project, model=model),
        h.h2["Call it"],
        h.pre(tabindex="0")[
            f"curl -X POST {url} \\\n"
            "  -H 'Authorization: Bearer KEY' -H 'Content-Type: application/json' \\\n"
            "  -d '{\"instances\": [...]}'"
        ],
        title=f"Model {name}",
        session=session,
        path="/models",
        project=project,
    )


def show_versions(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of a model's page that is live."""
    project, name = request.path_params["project"], request.path_params["model"]
    model = call(models_api.get_model, session.principal, context, project=project, model=name)
    return _versions(session, context, project=project, model=model)


def _versions(session: Session, context: ServiceContext, *, project: str, model: Mapping[str, Any]) -> h.Element:
    name = _short(model)
    listed = call(
        models_api.list_versions, session.principal, context, project=project, model=name, page_size=PAGE_SIZE
    )["versions"]
    rows = []
    for version in listed:
        try:  # lists do not say what a version waits for, nor how many of its servers are ready
            found = call(
                models_api.get_version, session.principal, context, project=project, model=name, version=_short(version)
            )
        except NotFoundError:  # deleted meanwhile
            continue
        rows.append(_version_row(found, model=model))
    titles = ("Version", "State", "Traffic", "Servers", "Machine type", "Created", "Last request", "Note")
    live = {"hx-get": f"{model_path(project, name)}/versions", "hx-trigger": LIVE}
    return h.section("#versions", live)[
        h.h2["Versions"],
        table(titles, rows, label="Versions") if rows else h.p(".muted")["The model has no versions."],
    ]


def _version_row(version: Mapping[str, Any], *, model: Mapping[str, Any]) -> tuple[h.Node, ...]:
    own, name = version.get("lockstep", {}), _short(version)
    wanted = own.get("numServers", version.get("manualScaling", {}).get("nodes", "-"))
    auto = version.get("autoScaling")
    bounds = "" if auto is None else f" ({auto['minNodes']} to {auto['maxNodes']})"
    share = _split(model).get(name)
    return (
        name,
        state_badge(version["state"]),
        "" if share is None else f"{share}%",
        f"{own.get('numReadyServers', '-')} of {wanted} ready{bounds}",
        version["machineType"],
        when(version["createTime"]),
        when(version.get("lastUseTime")),
        version.get("errorMessage") or own.get("waitingFor") or "",
    )


def _traffic_text(model: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {percent}%" for name, percent in _split(model).items())


def _split(model: Mapping[str, Any]) -> Mapping[str, int]:
    default = model.get("defaultVersion")
    split = model.get("lockstep", {}).get("trafficSplit")
    return split or ({} if default is None else {_short(default): 100})


def _short(resource: Mapping[str, Any]) -> str:
    return resource["name"].rpartition("/")[2]
