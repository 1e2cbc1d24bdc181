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


@final
class Scope(StrEnum):
    """What a key may do; each scope includes the scopes before it."""

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
    """

    label: str
    scope: Scope
    project: str
    key_id: str | None = None

    @property
    def is_for_all_projects(self) -> bool:
        """Whether the key is valid for every project."""
        return self.project == ALL_PROJECTS


HOME_PRINCIPAL: Final = Principal(label=HOME_LABEL, scope=Scope.OPERATOR, project=ALL_PROJECTS)
"""The principal of everybody who can read the home's token: the operator of that machine."""


def check_access(principal: Principal, *, needed: Scope, project: str | None) -> None:
    """Raises an error unless a request is allowed.

    Another project than the key's own is reported as not found, and this is checked first, so that nobody can guess
    what it contains.

    Args:
        principal: the sender of the request.
        needed: the scope that the route requires.
        project: the project that the route concerns; None if it concerns the service itself.

    Raises:
        NotFoundError: If the key is not valid for the project.
        PermissionDeniedError: If the key's scope does not include `needed`, or if an operator's route concerns the
            whole service and the key is for one project.
    """
    if project is not None and not principal.is_for_all_projects and principal.project != project:
        raise NotFoundError(f"no project {project!r} for this key", action="see `lockstep whoami`")
    if not principal.scope.includes(needed):
        raise PermissionDeniedError(
            f"the key of {principal.label} is a {principal.scope}'s; this is for a key of scope {needed}",
            action="see `lockstep whoami`",
        )
    if project is None and needed is Scope.OPERATOR and not principal.is_for_all_projects:
        raise PermissionDeniedError(
            f"the key of {principal.label} is for project {principal.project}; this is for a key of all projects",
            action="see `lockstep whoami`",
        )
