"""Who may do what: what a key is for, and the one decision whether a request may go on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from lockstep.errors import NotFoundError, PermissionDeniedError

ALL_PROJECTS: Final = "*"
"""Stands for every project, where a key says which one it is for."""

HOME_LABEL: Final = "home"
"""Who whoever holds the home's own token is."""


@final
class Scope(StrEnum):
    """What a key may do; each scope may do what the ones before it may."""

    VIEWER = "viewer"
    """Look at jobs, logs, costs and models, and ask models for predictions."""
    SUBMITTER = "submitter"
    """Create, change and end jobs and models."""
    OPERATOR = "operator"
    """Make and revoke keys, and see how the service is, where the key is for all projects."""

    def includes(self, needed: Scope) -> bool:
        """Whether this scope may do what another one may."""
        order = list(Scope)
        return order.index(self) >= order.index(needed)


@final
@dataclass(frozen=True, kw_only=True)
class Principal:
    """Whoever a request comes from, by its key.

    Attributes:
        label: whose key it is; jobs carry it as their submitter.
        scope: what it may do.
        project: the one project that it is for, or `ALL_PROJECTS`.
        key_id: the public name of the key; None for the home's own token.
    """

    label: str
    scope: Scope
    project: str
    key_id: str | None = None

    @property
    def sees_all_projects(self) -> bool:
        """Whether its key is for every project."""
        return self.project == ALL_PROJECTS


HOME_PRINCIPAL: Final = Principal(label=HOME_LABEL, scope=Scope.OPERATOR, project=ALL_PROJECTS)
"""Whoever can read the home's token: the operator of that machine."""


def check_access(principal: Principal, *, needed: Scope, project: str | None) -> None:
    """Decides whether a request may go on.

    A project that is not the key's own is answered for as one that is not there, before anything else is looked at:
    nothing of what is in it can be guessed.

    Args:
        principal: who asks.
        needed: what the route asks for.
        project: the project that the route is about; None where it is about the service itself.

    Raises:
        NotFoundError: the project is not the key's.
        PermissionDeniedError: the key may not do this.
    """
    if project is not None and not principal.sees_all_projects and principal.project != project:
        raise NotFoundError(f"this key knows of no project {project!r}", action="see `lockstep whoami`")
    if not principal.scope.includes(needed):
        raise PermissionDeniedError(
            f"the key of {principal.label} is a {principal.scope}'s; this is for a key of scope {needed}",
            action="see `lockstep whoami`",
        )
    if project is None and needed is Scope.OPERATOR and not principal.sees_all_projects:
        raise PermissionDeniedError(
            f"the key of {principal.label} is for project {principal.project}; this is for a key of all projects",
            action="see `lockstep whoami`",
        )
