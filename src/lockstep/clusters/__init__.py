"""The interface between the service and the engine: gangs of replicas are placed, watched and stopped through it.

A cluster engine is an `AbstractCluster`; `open_cluster` opens one by name. An engine knows nothing of the service's
database, and the service uses an engine only through this interface.
The names that this package exports are imported on first use, because the engine's own processes start with each gang
and need few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockstep.clusters.base import AbstractCluster
    from lockstep.clusters.choice import EngineChoice, read_choice, write_choice
    from lockstep.clusters.registry import CLUSTERS, open_cluster
    from lockstep.clusters.shell_relay import AbstractShell

__all__ = [
    "CLUSTERS",
    "AbstractCluster",
    "AbstractShell",
    "EngineChoice",
    "open_cluster",
    "read_choice",
    "write_choice",
]

_LAZY: Final = {
    "CLUSTERS": "lockstep.clusters.registry",
    "AbstractCluster": "lockstep.clusters.base",
    "AbstractShell": "lockstep.clusters.shell_relay",
    "EngineChoice": "lockstep.clusters.choice",
    "open_cluster": "lockstep.clusters.registry",
    "read_choice": "lockstep.clusters.choice",
    "write_choice": "lockstep.clusters.choice",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'lockstep.clusters' has no attribute {name!r}")
