"""Parameter servers: servers keep and update the parameters, and workers push gradients whenever they are ready.

The names below are imported on first use, because a server's process needs only a few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockstep.parameter_server.compression import TopK
    from lockstep.parameter_server.coordination.remote_values import RemoteValue
    from lockstep.parameter_server.embedding.layer import Embedding
    from lockstep.parameter_server.fitting.data import DatasetCreator
    from lockstep.parameter_server.local_processes import LocalProcesses
    from lockstep.parameter_server.partitioners import (
        FixedShardsPartitioner,
        MaxSizePartitioner,
        MinSizePartitioner,
    )
    from lockstep.parameter_server.row_optimizers import row_optimizer
    from lockstep.parameter_server.scheduling.coordinator import ClusterCoordinator
    from lockstep.parameter_server.strategy import ParameterServerStrategy

__all__ = [
    "ClusterCoordinator",
    "DatasetCreator",
    "Embedding",
    "FixedShardsPartitioner",
    "LocalProcesses",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "ParameterServerStrategy",
    "RemoteValue",
    "TopK",
    "row_optimizer",
]

_MODULES: Final = {
    "ClusterCoordinator": "scheduling.coordinator",
    "DatasetCreator": "fitting.data",
    "Embedding": "embedding.layer",
    "FixedShardsPartitioner": "partitioners",
    "LocalProcesses": "local_processes",
    "MaxSizePartitioner": "partitioners",
    "MinSizePartitioner": "partitioners",
    "ParameterServerStrategy": "strategy",
    "RemoteValue": "coordination.remote_values",
    "TopK": "compression",
    "row_optimizer": "row_optimizers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lockstep.parameter_server' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lockstep.parameter_server.{_MODULES[name]}"), name)
    globals()[name] = value  # imported only once
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
