"""The contract's methods for IAM policies of jobs and models, which are refused: the service has keys instead."""

from __future__ import annotations

from typing import NoReturn

from lockstep.errors import UnimplementedError
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.requests import Name, Project
from lockstep.service.api.routes import make_router

router = make_router()


def _refuse(method: str, kind: str, *, action: str) -> NoReturn:
    raise UnimplementedError(
        f"{method}: {kind} have no IAM policies here; access is controlled by keys, each with a scope and a project",
        action=action,
    )


def _refuse_reading(kind: str) -> NoReturn:
    _refuse("getIamPolicy", kind, action="list the keys: `lockstep keys list`, or GET /v1/keys")


def _refuse_writing(kind: str) -> NoReturn:
    _refuse("setIamPolicy", kind, action="make or revoke a key: `lockstep keys create`, or POST /v1/keys")


def _refuse_testing(kind: str) -> NoReturn:
    _refuse("testIamPermissions", kind, action="ask for the key's own scope: `lockstep whoami`, or GET /v1/whoami")


@router.get("/jobs/{job_id}:getIamPolicy")
@requires_scope(Scope.VIEWER)
def get_job_policy(project: Project, job_id: Name) -> None:
    """``projects.jobs.getIamPolicy``, which is refused."""
    _refuse_reading("jobs")


@router.post("/jobs/{job_id}:setIamPolicy")
@requires_scope(Scope.OPERATOR)
def set_job_policy(project: Project, job_id: Name) -> None:
    """``projects.jobs.setIamPolicy``, which is refused."""
    _refuse_writing("jobs")


@router.post("/jobs/{job_id}:testIamPermissions")
@requires_scope(Scope.VIEWER)
def test_job_permissions(project: Project, job_id: Name) -> None:
    """``projects.jobs.testIamPermissions``, which is refused."""
    _refuse_testing("jobs")


@router.get("/models/{model}:getIamPolicy")
@requires_scope(Scope.VIEWER)
def get_model_policy(project: Project, model: Name) -> None:
    """``projects.models.getIamPolicy``, which is refused."""
    _refuse_reading("models")


@router.post("/models/{model}:setIamPolicy")
@requires_scope(Scope.OPERATOR)
def set_model_policy(project: Project, model: Name) -> None:
    """``projects.models.setIamPolicy``, which is refused."""
    _refuse_writing("models")


@router.post("/models/{model}:testIamPermissions")
@requires_scope(Scope.VIEWER)
def test_model_permissions(project: Project, model: Name) -> None:
    """``projects.models.testIamPermissions``, which is refused."""
    _refuse_testing("models")
