"""Deployed models: who answers, how many servers are ready, and forms to use and to change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import htpy as h
from starlette.requests import Request

from lockstep.service.api.prediction import models as models_api
from lockstep.service.console.bars import shares_strip
from lockstep.service.console.calls import call, is_allowed
from lockstep.service.console.layout import default_project, facts, model_path, page, state_badge, table, when
from lockstep.service.console.pages.model_changes import changes_section, deploy_form
from lockstep.service.console.pages.model_versions import list_versions, names_of, ready_names, short_name, traffic_of
from lockstep.service.console.pages.model_watching import later_part, requests_section, servers_section
from lockstep.service.console.pages.predicting import try_section
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

PAGE_SIZE: Final = 100
LIVE: Final = "every 3s"
NUM_CHANGES: Final = 10


def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page with the models of a project."""
    query = request.query_params
    project = query.get("project") or default_project(session.principal)
    token = query.get("page", "")
    found = call(
        models_api.list_models, session.principal, context, project=project, page_size=PAGE_SIZE, page_token=token
    )
    rows = [_model_row(project, model) for model in found["models"]]
    following = found.get("nextPageToken")
    return page(
        h.form(".bar", method="get", action="/models")[
            h.label["Project", h.input(name="project", value=project, autocomplete="off")],
            h.button(type="submit")["Show"],
        ],
        table(("Model", "Default version", "State", "Traffic", "Description"), rows, label="Models")
        if rows
        else h.p(".muted")[f"Project {project} has no models yet. Deploy one with ", h.code["lockstep deploy"], "."],
        h.p(".bar")[
            h.a(".button", href=f"/models?project={project}")["Newest"] if token else None,
            h.a(".button", href=f"/models?project={project}&page={following}")["Older"] if following else None,
        ]
        if token or following
        else None,
        deploy_form(session, project=project, job=query.get("job", ""), is_open="job" in query)
        if is_allowed(models_api.create_version, session.principal)
        else None,
        title="Models",
        session=session,
        path="/models",
        project=project,
    )


def _model_row(project: str, model: Mapping[str, Any]) -> tuple[h.Node, ...]:
    name, default = short_name(model), model.get("defaultVersion")
    return (
        h.a(href=model_path(project, name))[name],
        "-" if default is None else short_name(default),
        "-" if default is None else state_badge(default["state"]),
        ", ".join(f"{version} {percent}%" for version, percent in traffic_of(model).items()),
        model.get("description", ""),
    )


def show_model(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page of a model."""
    project, name = request.path_params["project"], request.path_params["model"]
    model = call(models_api.get_model, session.principal, context, project=project, model=name)
    versions = list_versions(session, context, project=project, model=name)
    url = f"{request.url.scheme}://{request.url.netloc}/v1/{model['name']}:predict"
    return page(
        h.p[h.a(href=f"/models?project={project}")[f"Models of {project}"]],
        facts(
            [
                ("Description", model.get("description", "-")),
                ("Regions", ", ".join(model.get("regions", ())) or "-"),
                ("Labels", ", ".join(f"{key}={value}" for key, value in model.get("labels", {}).items()) or "-"),
                ("Address", h.code[url]),
            ]
        ),
        _versions(session, context, project=project, model=model, versions=versions),
        try_section(session, project=project, model=name, versions=ready_names(versions), loads_example=True),
        requests_section(session, context, project=project, model=name, versions=names_of(versions)),
        servers_section(session, context, project=project, model=name, versions=names_of(versions)),
        later_part(
            "cost",
            path=f"{model_path(project, name)}/cost",
            title="Cost",
            without=h.a(href=f"/costs?project={project}&by=version")["Show the costs of versions"],
        ),
        changes_section(session, project=project, model=model, versions=versions),
        _history(model),
        title=f"Model {name}",
        session=session,
        path="/models",
        project=project,
    )


def show_versions(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the part of a model's page that is live."""
    project, name = request.path_params["project"], request.path_params["model"]
    model = call(models_api.get_model, session.principal, context, project=project, model=name)
    versions = list_versions(session, context, project=project, model=name)
    return _versions(session, context, project=project, model=model, versions=versions)


def _versions(
    session: Session,
    context: ServiceContext,
    *,
    project: str,
    model: Mapping[str, Any],
    versions: list[dict[str, Any]],
) -> h.Element:
    name = short_name(model)
    rows = [_version_row(version, model=model) for version in versions]
    titles = ("Version", "State", "Traffic", "Servers", "Machine type", "Created", "Last request", "Note")
    live = {"hx-get": f"{model_path(project, name)}/versions", "hx-trigger": LIVE}
    traffic = traffic_of(model)
    return h.section("#versions", live)[
        h.h2["Versions"],
        shares_strip("Traffic", list(traffic.items())) if traffic else h.p(".muted")["No version has traffic."],
        table(titles, rows, label="Versions") if rows else h.p(".muted")["The model has no versions."],
    ]


def _version_row(version: Mapping[str, Any], *, model: Mapping[str, Any]) -> tuple[h.Node, ...]:
    own, name = version.get("lockstep", {}), short_name(version)
    wanted = own.get("numServers", version.get("manualScaling", {}).get("nodes", "-"))
    auto = version.get("autoScaling")
    bounds = "" if auto is None else f" ({auto['minNodes']} to {auto['maxNodes']})"
    share = traffic_of(model).get(name)
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


def _history(model: Mapping[str, Any]) -> h.Node:
    changes = model.get("lockstep", {}).get("trafficChanges", [])[:NUM_CHANGES]
    if not changes:
        return None
    rows = [
        (
            when(change["time"]),
            change["changedBy"],
            ", ".join(f"{name} {percent}%" for name, percent in change["trafficSplit"].items()) or "none",
        )
        for change in changes
    ]
    return h.details[
        h.summary["The last changes of the traffic"], table(("When", "Who", "Traffic"), rows, label="Changes")
    ]
