"""Methods of Vertex AI's endpoints, models and operations that are refused."""

from __future__ import annotations

from typing import Final

from lockstep.jobs.security.access import Scope
from lockstep.service.api.refusals import (
    ANY_METHOD,
    EXPLAIN_INSTEAD,
    NO_EXPLANATIONS,
    Refusal,
    policy_refusals,
)

_LOCATION: Final = "projects.locations"
_PATH: Final = "/locations/{location}"
_OPERATIONS: Final = "operations are of a location"
_OPERATIONS_INSTEAD: Final = f"use {_LOCATION}.operations"


def _asking(*verbs: str, reason: str, action: str) -> tuple[Refusal, ...]:
    """Returns the refusals of methods that ask a deployed model for something."""
    return tuple(
        Refusal(
            name=f"{_LOCATION}.endpoints.{verb}",
            path=f"{_PATH}/endpoints/{{model}}:{verb}",
            reason=reason,
            action=action,
            scope=Scope.CALLER,
        )
        for verb in verbs
    )


def _of_models(
    *verbs: str, reason: str, action: str, http_method: str = "POST", path: str = "/models/{model}"
) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(
            name=f"{_LOCATION}.models.{verb}",
            path=f"{_PATH}{path}:{verb}",
            reason=reason,
            action=action,
            http_methods=(http_method,),
        )
        for verb in verbs
    )


def _collection(name: str, path: str, *, reason: str, action: str) -> Refusal:
    return Refusal(
        name=f"{_LOCATION}.{name}.*",
        path=f"{_PATH}{path}{{rest:path}}",
        reason=reason,
        action=action,
        http_methods=ANY_METHOD,
    )


_GENERATIVE: Final = {
    "reason": "Google's generative models are not here",
    "action": f"deploy a container with the model, and use {_LOCATION}.endpoints.rawPredict",
}
_INVOKED: Final = {
    "reason": "a container has one route for predictions, its predictRoute",
    "action": f"use {_LOCATION}.endpoints.rawPredict",
}

VERTEX: Final = (
    *_asking(
        "explain",
        reason=NO_EXPLANATIONS,
        action=f"{EXPLAIN_INSTEAD}, and use {_LOCATION}.endpoints.predict",
    ),
    *_asking(
        "streamRawPredict",
        "serverStreamingPredict",
        reason="predictions are returned as a whole, not as a stream",
        action=f"use {_LOCATION}.endpoints.rawPredict",
    ),
    *_asking(
        "directPredict",
        "directRawPredict",
        reason="tensors in Vertex AI's form are not read",
        action=f"use {_LOCATION}.endpoints.predict, or rawPredict with binary tensors of the Open Inference Protocol",
    ),
    *_asking(
        "predictLongRunning",
        "fetchPredictOperation",
        reason="a request for predictions is answered at once",
        action=f"use {_LOCATION}.endpoints.predict, or a batch prediction: `lockstep submit-prediction`",
    ),
    *_asking("computeTokens", "countTokens", "generateContent", "streamGenerateContent", **_GENERATIVE),
    *(
        _collection(f"endpoints.{name}", f"/endpoints/{path}", **_GENERATIVE)
        for name, path in (
            ("openapi", "openapi"),  # before those of an endpoint, which could have this name
            ("google", "google"),
            ("chat", "{model}/chat"),
            ("responses", "{model}/responses"),
        )
    ),
    _collection("endpoints.invoke", "/endpoints/{model}/invoke", **_INVOKED),
    _collection("endpoints.deployedModels", "/endpoints/{model}/deployedModels", **_INVOKED),
    Refusal(
        name=f"{_LOCATION}.endpoints.update",
        path=f"{_PATH}/endpoints/{{model}}:update",
        reason="it changes an endpoint's clientConnectionConfig alone, which endpoints do not have here",
        action=f"use {_LOCATION}.endpoints.patch, or the header X-Server-Timeout for a timeout of predictions",
    ),
    _collection(
        "endpoints.operations", "/endpoints/{model}/operations", reason=_OPERATIONS, action=_OPERATIONS_INSTEAD
    ),
    *_of_models(
        "copy",
        path="/models",
        reason="an uploaded model is the location of its files, not a copy of them",
        action=f"use {_LOCATION}.models.upload with the same artifactUri",
    ),
    *_of_models(
        "deleteVersion",
        http_method="DELETE",
        reason="an uploaded model has one version",
        action=f"use {_LOCATION}.models.delete",
    ),
    *_of_models(
        "mergeVersionAliases",
        reason="an uploaded model has one version, with the alias default",
        action="upload another model, and choose between both with an endpoint's trafficSplit",
    ),
    *_of_models(
        "export",
        reason="the files of an uploaded model are yours, at its artifactUri",
        action="copy them, or write another format with `lockstep export`",
    ),
    *_of_models(
        "listCheckpoints",
        http_method="GET",
        reason="an uploaded model has no checkpoints",
        action="the checkpoints of a job are in its own folder of the bucket: `lockstep describe`",
    ),
    *_of_models("updateExplanationDataset", reason=NO_EXPLANATIONS, action=EXPLAIN_INSTEAD),
    *policy_refusals(
        f"{_LOCATION}.models", path=f"{_PATH}/models/{{model}}", kind="uploaded models", reads_with="POST"
    ),
    _collection(
        "models.evaluations",
        "/models/{model}/evaluations",
        reason="the service does not evaluate models",
        action="evaluate a model in the job that trains it, with keras.Model.evaluate",
    ),
    _collection("models.operations", "/models/{model}/operations", reason=_OPERATIONS, action=_OPERATIONS_INSTEAD),
    Refusal(
        name=f"{_LOCATION}.operations.delete",
        path=f"{_PATH}/operations/{{operation}}",
        reason="operations are a record of what was done, and are kept",
        action=f"to end a deployment, use {_LOCATION}.operations.cancel",
        http_methods=("DELETE",),
    ),
)
"""The methods of ``aiplatform.v1.json`` that are refused: those of endpoints, models and operations."""
