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
    needed = required_scope(endpoint)
    assert needed is not None, "every function declares one"
    named = {what: arguments.get(what) for what in ("project", "model", "version")}
    check_access(principal, needed=needed, **named)
    if "principal" in _parameters(endpoint):
        arguments["principal"] = principal
    found = endpoint(context=context, **arguments)
    return json.loads(bytes(found.body)) if isinstance(found, JSONResponse) else found
