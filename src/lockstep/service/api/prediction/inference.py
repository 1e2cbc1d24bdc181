"""The Open Inference Protocol (KServe v2) over HTTP, below ``/v1/projects/PROJECT/v2``.

Inference and the metadata of a model are forwarded to the version's prediction server, as ``:predict`` is. Errors have
the protocol's form: ``{"error": "..."}``.
"""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Request, Response

from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import (
    InferenceForm,
    InferenceModelForm,
    InferenceModelReadyForm,
    InferenceServerForm,
    LiveForm,
    ReadyForm,
)
from lockstep.service.api.prediction.predictions import ask_server
from lockstep.service.api.requests import Context, Name, Project
from lockstep.service.api.routes import INFERENCE_ERRORS, called_directly, make_router
from lockstep.tensors import server_metadata

router = make_router(responses=INFERENCE_ERRORS)

Inference = Annotated[Response, InferenceForm]
InferenceModel = Annotated[Response, InferenceModelForm]


@router.get("")
@requires_scope(Scope.VIEWER)
def describe_server(project: Project) -> InferenceServerForm:
    """Returns the metadata of the server."""
    return cast("InferenceServerForm", server_metadata())


@router.get("/health/live")
@requires_scope(Scope.VIEWER)
def check_live(project: Project) -> LiveForm:
    """Returns that the service answers."""
    return {"live": True}


@router.get("/health/ready")
@requires_scope(Scope.VIEWER)
def check_ready(project: Project, context: Context) -> ReadyForm:
    """Returns that the service can find its models. Each model has a path of its own for whether it is ready."""
    context.models.page_models(project=project, size=1)
    return {"ready": True}


@router.get("/models/{model}/ready")
@requires_scope(Scope.CALLER)
def check_model_ready(project: Project, model: Name, context: Context) -> InferenceModelReadyForm:
    """Returns that the version with the largest share of the traffic answers, or status 503 with the reason."""
    return _check_model_ready(context, project=project, model=model, version=None)


@router.get("/models/{model}/versions/{version}/ready")
@requires_scope(Scope.CALLER)
def check_version_ready(project: Project, model: Name, version: Name, context: Context) -> InferenceModelReadyForm:
    """Returns that a version answers requests, or status 503 with the reason."""
    return _check_model_ready(context, project=project, model=model, version=version)


@router.get("/models/{model}")
@called_directly
@requires_scope(Scope.CALLER)
async def describe_model(project: Project, model: Name, request: Request, context: Context) -> InferenceModel:
    """Returns the metadata of a model, as the version has it that answers."""
    return await _ask(request, context, project=project, model=model, version=None, action="")


@router.get("/models/{model}/versions/{version}")
@called_directly
@requires_scope(Scope.CALLER)
async def describe_version(
    project: Project, model: Name, version: Name, request: Request, context: Context
) -> InferenceModel:
    """Returns the metadata of a version."""
    return await _ask(request, context, project=project, model=model, version=version, action="")


@router.post("/models/{model}/infer")
@called_directly
@requires_scope(Scope.CALLER)
async def infer_default(project: Project, model: Name, request: Request, context: Context) -> Inference:
    """Runs a model, by a version that has traffic."""
    return await _ask(request, context, project=project, model=model, version=None, action="/infer")


@router.post("/models/{model}/versions/{version}/infer")
@called_directly
@requires_scope(Scope.CALLER)
async def infer_version(project: Project, model: Name, version: Name, request: Request, context: Context) -> Inference:
    """Runs a version of a model."""
    return await _ask(request, context, project=project, model=model, version=version, action="/infer")


async def _ask(
    request: Request, context: Context, *, project: str, model: str, version: str | None, action: str
) -> Response:
    path = server_path(model=model, version=version, action=action)
    return await ask_server(
        request, context, project=project, model=model, version=version, path=path, allows_binary=True
    )


def server_path(*, model: str, version: str | None, action: str) -> str:
    """Returns the path at a prediction server, which answers with the names in it."""
    return f"/v2/models/{model}" + ("" if version is None else f"/versions/{version}") + action


def _check_model_ready(context: Context, *, project: str, model: str, version: str | None) -> InferenceModelReadyForm:
    context.routes.check_ready(project=project, model=model, version=version)
    return {"name": model, "ready": True}
