"""The engine seam: where gangs of replicas are placed, watched and stopped.

A cluster engine is an `AbstractCluster`, found by its name with `open_cluster`. It knows nothing of the service's
database; the service knows nothing of the engine but this interface.
"""

from lockstep.clusters.base import AbstractCluster
from lockstep.clusters.choice import EngineChoice, read_choice, write_choice
from lockstep.clusters.registry import CLUSTERS, open_cluster
from lockstep.clusters.shells import AbstractShell

__all__ = [
    "CLUSTERS",
    "AbstractCluster",
    "AbstractShell",
    "EngineChoice",
    "open_cluster",
    "read_choice",
    "write_choice",
]
