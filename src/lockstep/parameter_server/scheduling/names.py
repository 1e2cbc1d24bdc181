"""Names of functions that every process of a script knows, because no code is sent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Final

from lockstep.errors import InvalidInputError
from lockstep.strategies.loops.lifting import Lifted, functions_by_name

_ALLOWED: Final = "a function of a module, or one that lockstep.function decorates"


def name_of(function: Any) -> str:
    """Returns the name by which workers know a function: "module:qualified name".

    Raises:
        InvalidInputError: workers cannot find the function.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    full_name = f"{module}:{name}"
    if isinstance(function, Lifted) and name and "<lambda>" not in name:
        if functions_by_name().get(full_name) is not function:
            raise InvalidInputError(
                "a function cannot be scheduled after another one of its name was decorated",
                received=full_name,
                action="give each lockstep.function a name of its own",
            )
        return full_name
    if isinstance(function, FunctionType) and _look_up(full_name) is function:
        return full_name
    raise InvalidInputError(
        "schedule was given something that workers cannot find by its name",
        received=_describe(function),
        allowed=_ALLOWED,
        action=_action(function),
    )


def find_function(name: str) -> Callable[..., Any] | None:
    """Returns the function with a name in this process; None if the script has not defined it."""
    return functions_by_name().get(name) or _look_up(name)


def _look_up(name: str) -> Callable[..., Any] | None:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, FunctionType) else None


def _describe(function: Any) -> str:
    if isinstance(function, FunctionType | MethodType | Lifted):
        kind = "a bound method" if isinstance(function, MethodType) else "a function"
        return f"{kind}, {getattr(function, '__qualname__', function)}"
    return f"an object of {type(function).__name__}"


def _action(function: Any) -> str:
    if isinstance(function, FunctionType) and "<lambda>" not in function.__qualname__:
        return "decorate it with lockstep.function, or define it at the top of its module"
    return "write it as a function with def, at the top of a module or decorated with lockstep.function"
