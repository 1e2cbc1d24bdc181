"""Imports the client without what its HTTP library imports for other uses than ours."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from lockstep.client import Client

_UNUSED: Final = ("httpx._main", "trio")
"""The command line of httpx, and what httpcore would wait with in asynchronous programs of trio.

Each takes longer to import than most commands take to ask the service.
"""


def client_class() -> type[Client]:
    """Returns the class of the client, which it imports at the first call.

    Only processes of the command line may call this: in them, httpx has no command line, and does not know trio.
    """
    modules = cast("dict[str, Any]", sys.modules)
    hidden = [name for name in _UNUSED if name not in modules] if "httpx" not in modules else []
    for name in hidden:
        modules[name] = None  # an import fails, as if it was not installed
    try:
        from lockstep.client import Client
    finally:
        for name in hidden:
            del modules[name]
    return Client
