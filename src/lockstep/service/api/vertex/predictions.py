"""``predict`` and ``rawPredict`` of Vertex AI's endpoints, which are forwarded to prediction servers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request, Response

from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import InferenceForm, PredictionsForm
from lockstep.service.api.prediction.inference import server_path
from lockstep.service.api.prediction.predictions import PREDICT_PATH, Predictions, ask_server
from lockstep.service.api.requests import Context, Name, Project
from lockstep.service.api.routes import called_directly, make_router
from lockstep.service.api.vertex.places import Location
from lockstep.tensors import HEADER_LENGTH

router = make_router()

RawPredictions = Annotated[Response, PredictionsForm | InferenceForm]


@router.post("/endpoints/{model}:predict")
@called_directly
@requires_scope(Scope.CALLER)
async def predict(project: Project, location: Location, model: Name, request: Request, context: Context) -> Predictions:
    """``projects.locations.endpoints.predict``, by a deployed model that has traffic."""
    return await ask_server(request, context, project=project, model=model, version=None)


@router.post("/endpoints/{model}:rawPredict")
@called_directly
@requires_scope(Scope.CALLER)
async def raw_predict(
    project: Project, location: Location, model: Name, request: Request, context: Context
) -> RawPredictions:
    """``projects.locations.endpoints.rawPredict``: JSON instances, or the Open Inference Protocol with its header."""
    is_inference = HEADER_LENGTH in request.headers
    path = server_path(model=model, version=None, action="/infer") if is_inference else PREDICT_PATH
    return await ask_server(
        request, context, project=project, model=model, version=None, path=path, allows_binary=is_inference
    )
