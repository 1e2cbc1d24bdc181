"""Reads the versions of a model for the parts of its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lockstep.errors import NotFoundError
from lockstep.service.api.prediction import models as models_api
from lockstep.service.console.calls import call
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext

PAGE_SIZE: Final = 100


def short_name(resource: Mapping[str, Any]) -> str:
    """Returns the last part of the name of a model or a version."""
    return resource["name"].rpartition("/")[2]


def traffic_of(model: Mapping[str, Any]) -> Mapping[str, int]:
    """Returns the percents of the versions of a model that have traffic, by name."""
    default = model.get("defaultVersion")
    split = model.get("lockstep", {}).get("trafficSplit")
    return split or ({} if default is None else {short_name(default): 100})


def list_versions(session: Session, context: ServiceContext, *, project: str, model: str) -> list[dict[str, Any]]:
    """Returns the newest versions of a model, with what they wait for and how many of their servers are ready."""
    listed = call(
        models_api.list_versions, session.principal, context, project=project, model=model, page_size=PAGE_SIZE
    )["versions"]
    found: list[dict[str, Any]] = []
    for version in listed:
        name = short_name(version)
        try:  # lists do not say what a version waits for, nor how many of its servers are ready
            found.append(
                call(models_api.get_version, session.principal, context, project=project, model=model, version=name)
            )
        except NotFoundError:  # deleted meanwhile
            continue
    return found


def names_of(versions: list[dict[str, Any]]) -> list[str]:
    """Returns the names of versions."""
    return [short_name(version) for version in versions]


def ready_names(versions: list[dict[str, Any]]) -> list[str]:
    """Returns the names of the versions that answer requests."""
    return [short_name(version) for version in versions if version["state"] == "READY"]
