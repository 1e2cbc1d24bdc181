"""The contract's methods for IAM policies of jobs, which are refused: the service has keys instead."""

from __future__ import annotations

from typing import NoReturn

from lockstep.errors import UnimplementedError
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.requests import Name, Project
from lockstep.service.api.routes import make_router

router = make_router()


def _refuse(method: str, *, action: str) -> NoReturn:
    raise UnimplementedError(
        f"{method}: jobs have no IAM policies here; access is controlled by keys, each with a scope and a project",
        action=action,
    )


@router.get("/jobs/{job_id}:getIamPolicy")
@requires_scope(Scope.VIEWER)
def get_policy(project: Project, job_id: Name) -> None:
    """``projects.jobs.getIamPolicy``, which is refused."""
    _refuse("getIamPolicy", action="list the keys: `lockstep keys list`, or GET /v1/keys")


@router.post("/jobs/{job_id}:setIamPolicy")
@requires_scope(Scope.OPERATOR)
def set_policy(project: Project, job_id: Name) -> None:
    """``projects.jobs.setIamPolicy``, which is refused."""
    _refuse("setIamPolicy", action="make or revoke a key: `lockstep keys create`, or POST /v1/keys")


@router.post("/jobs/{job_id}:testIamPermissions")
@requires_scope(Scope.VIEWER)
def test_permissions(project: Project, job_id: Name) -> None:
    """``projects.jobs.testIamPermissions``, which is refused."""
    _refuse("testIamPermissions", action="ask for the key's own scope: `lockstep whoami`, or GET /v1/whoami")
