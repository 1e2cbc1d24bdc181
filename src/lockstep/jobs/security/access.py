"""Defines what each key may do, and decides whether a request is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from lockstep.errors import NotFoundError, PermissionDeniedError

ALL_PROJECTS: Final = "*"
"""Stands for every project, as the project of a key."""

HOME_LABEL: Final = "home"
"""The label of the principal that holds the home's own token."""

MIN_REQUESTS_PER_SECOND: Final = 0.001
"""The lowest rate that a key may have."""
MAX_REQUESTS_PER_SECOND: Final = 1e6
"""The highest rate that a key may have."""


@final
class Scope(StrEnum):
    """What a key may do; each scope includes the scopes before it."""

    CALLER = "caller"
    """May request predictions from one model of one project, and nothing else."""
    VIEWER = "viewer"
    """May read jobs, logs, costs and models, and request predictions from models."""
    SUBMITTER = "submitter"
    """May create, change and end jobs and models, set secrets, and open shells."""
    OPERATOR = "operator"
    """May create and revoke keys, and read the state of the service if the key is for all projects."""

    def includes(self, needed: Scope) -> bool:
        """Returns whether this scope includes another one."""
        order = list(Scope)
        return order.index(self) >= order.index(needed)


@final
@dataclass(frozen=True, kw_only=True)
class Principal:
    """The sender of a request, known by its key.

    Attributes:
        label: the label of the key's owner; jobs record it as their submitter.
        scope: what the key may do.
        project: the only project that the key is valid for, or `ALL_PROJECTS`.
        key_id: the public id of the key; None for the home's own token.
        model: the only model of the project that a caller's key is valid for; None for other keys.
        version: the only version of that model; None for all of its versions.
        requests_per_second: the rate of its requests for predictions; None for no limit.
    """

    label: str
    scope: Scope
    project: str
    key_id: str | None = None
    model: str | None = None
    version: str | None = None
    requests_per_second: float | None = None

    @property
    def is_for_all_projects(self) -> bool:
        """Whether the key is valid for every project."""
        return self.project == ALL_PROJECTS


HOME_PRINCIPAL: Final = Principal(label=HOME_LABEL, scope=Scope.OPERATOR, project=ALL_PROJECTS)
"""The principal of everybody who can read the home's token: the operator of that machine."""


def check_access(
    principal: Principal, *, needed: Scope, project: str | None, model: str | None = None, version: str | None = None
) -> None:
    """Raises an error unless a request is allowed.

    Another project than the key's own is reported as not found, and this is checked first, so that nobody can guess
    what it contains. So is another model or version than that of a caller's key.

    Args:
        principal: the sender of the request.
        needed: the scope that the route requires.
        project: the project that the route concerns; None if it concerns the service itself.
        model: the model that the route concerns; None if it concerns none.
        version: the version that the route concerns; None if it concerns none, or the default version.

    Raises:
        NotFoundError: If the key is not valid for the project, or a caller's key is not for the model or version.
        PermissionDeniedError: If the key's scope does not include `needed`, or if an operator's route concerns the
            whole service and the key is for one project.
    """
    action = _what_callers_may(principal) if principal.scope is Scope.CALLER else "see `lockstep whoami`"
    if project is not None and not principal.is_for_all_projects and principal.project != project:
        raise NotFoundError(f"no project {project!r} for this key", action=action)
    if not principal.scope.includes(needed):
        raise PermissionDeniedError(
            f"the key of {principal.label} is a {principal.scope}'s; this is for a key of scope {needed}", action=action
        )
    if project is None and needed is Scope.OPERATOR and not principal.is_for_all_projects:
        raise PermissionDeniedError(
            f"the key of {principal.label} is for project {principal.project}; this is for a key of all projects",
            action=action,
        )
    if principal.scope is Scope.CALLER:
        _check_callee(principal, model=model, version=version)


def _check_callee(principal: Principal, *, model: str | None, version: str | None) -> None:
    """Checks that a caller's key is for a model, or for a version of it. A route that names no model is for no caller.

    Raises:
        NotFoundError: If it is for another model, or for another version.
        PermissionDeniedError: If the key is for one version, and the request leaves the choice to the model.
    """
    action = _what_callers_may(principal)
    if model is None or model != principal.model:
        raise NotFoundError(f"no model {model!r} for this key", action=action)
    if principal.version is None or version == principal.version:
        return
    if version is None:
        raise PermissionDeniedError(
            f"the key of {principal.label} is for version {principal.version} of model {model}, "
            "and this is for the default version",
            action=action,
        )
    raise NotFoundError(f"no version {version!r} of model {model} for this key", action=action)


def _what_callers_may(principal: Principal) -> str:
    """Returns what a caller's key is for, as the action of an error."""
    version = "" if principal.version is None else f"/versions/{principal.version}"
    return f"use it for projects/{principal.project}/models/{principal.model}{version}:predict"
