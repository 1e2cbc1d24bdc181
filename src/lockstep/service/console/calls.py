"""Has the REST interface's functions answer a page, as its reader may."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from fastapi.responses import JSONResponse

from lockstep.jobs.security.access import Principal, check_access
from lockstep.service.api.access import required_scope
from lockstep.service.context import ServiceContext


@cache
def _parameters(endpoint: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(endpoint).parameters)


def is_allowed(endpoint: Callable[..., Any], principal: Principal) -> bool:
    """Whether a person may use a function of the REST interface, in the projects of the key."""
    needed = required_scope(endpoint)
    assert needed is not None, "every function declares one"
    return principal.scope.includes(needed)


def check_may(
    endpoint: Callable[..., Any],
    principal: Principal,
    *,
    project: str | None,
    model: str | None = None,
    version: str | None = None,
) -> None:
    """Checks that a person may use a function of the REST interface, in a project.

    Args:
        endpoint: the function, which declares its scope.
        principal: who asks.
        project: the project; None for a function of the service itself.
        model: the model; None for a function of none.
        version: the version; None for a function of none.

    Raises:
        LockstepError: If the person may not use it.
    """
    needed = required_scope(endpoint)
    assert needed is not None, "every function declares one"
    check_access(principal, needed=needed, project=project, model=model, version=version)


def call(endpoint: Callable[..., Any], principal: Principal, context: ServiceContext, **arguments: Any) -> Any:
    """Calls a function of the REST interface, and returns its JSON. Blocks.

    Args:
        endpoint: the function, which declares its scope.
        principal: who asks.
        context: the parts of the service.
        **arguments: what the function takes from the path, the query and the body.

    Raises:
        LockstepError: If the person may not use it, or it refuses.
    """
    check_may(endpoint, principal, **{what: arguments.get(what) for what in ("project", "model", "version")})
    if "principal" in _parameters(endpoint):
        arguments["principal"] = principal
    found = endpoint(context=context, **arguments)
    return json.loads(bytes(found.body)) if isinstance(found, JSONResponse) else found
