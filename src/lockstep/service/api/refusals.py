"""Methods of the contract and of Vertex AI that are refused, each by its name, with its reason and what to use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, final

from fastapi import APIRouter

from lockstep.errors import UnimplementedError
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.requests import Project
from lockstep.service.api.routes import make_router

ANY_METHOD: Final = ("GET", "POST", "DELETE")
"""The HTTP methods of a collection's methods."""
NO_EXPLANATIONS: Final = "predictions are not explained"
EXPLAIN_INSTEAD: Final = "serve a model, or a custom prediction routine, that returns its attributions as an output"


@final
@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A method that is refused.

    Attributes:
        name: the name of the method in its discovery document, such as ``projects.explain``; for all methods of a
            collection, ``projects.locations.studies.*``.
        path: the path behind the project.
        reason: why there is no such method.
        action: what to use instead.
        http_methods: the HTTP methods of the request.
        scope: the scope that a key needs to be told so.
    """

    name: str
    path: str
    reason: str
    action: str
    http_methods: tuple[str, ...] = ("POST",)
    scope: Scope = Scope.VIEWER


def policy_refusals(collection: str, *, path: str, kind: str, reads_with: str = "GET") -> tuple[Refusal, ...]:
    """Returns the refusals of a collection's methods for IAM policies: the service has keys instead.

    Args:
        collection: the collection, such as ``projects.jobs``.
        path: the path of one of its resources.
        kind: what its resources are called, such as "jobs".
        reads_with: the HTTP method of ``getIamPolicy``.
    """
    reason = f"{kind} have no IAM policies here; access is controlled by keys, each with a scope and a project"
    instead = {
        "getIamPolicy": "list the keys: `lockstep keys list`, or GET /v1/keys",
        "setIamPolicy": "make or revoke a key: `lockstep keys create`, or POST /v1/keys",
        "testIamPermissions": "ask for the key's own scope: `lockstep whoami`, or GET /v1/whoami",
    }
    return tuple(
        Refusal(
            name=f"{collection}.{verb}",
            path=f"{path}:{verb}",
            reason=reason,
            action=action,
            http_methods=(reads_with if verb == "getIamPolicy" else "POST",),
            scope=Scope.OPERATOR if verb == "setIamPolicy" else Scope.VIEWER,
        )
        for verb, action in instead.items()
    )


CONTRACT: Final = (
    *(
        Refusal(
            name="projects.explain",
            path=f"{path}:explain",
            reason=NO_EXPLANATIONS,
            action=f"{EXPLAIN_INSTEAD}, and use projects.predict",
            scope=Scope.CALLER,
        )
        for path in ("/models/{model}", "/models/{model}/versions/{version}")
    ),
    Refusal(
        name="projects.getConfig",
        path=":getConfig",
        reason="a project has no service account here",
        action="GET /v1/whoami names the project and the bucket of a key; give jobs credentials as secrets",
        http_methods=("GET",),
    ),
    *policy_refusals("projects.jobs", path="/jobs/{job_id}", kind="jobs"),
    *policy_refusals("projects.models", path="/models/{model}", kind="models"),
    Refusal(
        name="projects.locations.list",
        path="/locations",
        reason="there is no list of locations: a location is a region, whose prices apply",
        action="name a region, such as us-central1",
        http_methods=("GET",),
    ),
    Refusal(
        name="projects.locations.get",
        path="/locations/{location}",
        reason="a location has no properties: it is a region, whose prices apply",
        action="name a region, such as us-central1",
        http_methods=("GET",),
    ),
    Refusal(
        name="projects.locations.studies.*",
        path="/locations/{location}/studies{rest:path}",
        reason="there are no studies: a search over hyperparameters is a job, which proposes its trials itself",
        action="create a job with trainingInput.hyperparameters",
        http_methods=ANY_METHOD,
    ),
)
"""The methods of ``ml.v1.json`` that are refused."""


def make_refusing_router(refusals: Iterable[Refusal]) -> APIRouter:
    """Returns a router, for requests in a project, that answers each method with its refusal.

    Its routes are not in the schema of the interface, because they never return a resource.
    """
    router = make_router()
    for refusal in refusals:
        router.add_api_route(
            refusal.path, _endpoint(refusal), methods=list(refusal.http_methods), include_in_schema=False
        )
    return router


def _endpoint(refusal: Refusal) -> Callable[[Project], None]:
    @requires_scope(refusal.scope)
    def refuse(project: Project) -> None:
        raise UnimplementedError(f"{refusal.name}: {refusal.reason}", action=refusal.action)

    return refuse
