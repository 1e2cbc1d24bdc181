"""Distribution strategies for Keras 3 on JAX, with the names of ``tf.distribute``.

The names below are imported on first use, because rooms that run without JAX need `rows_of_batch` and similar helpers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from lockstep.strategies.backend import require_jax_backend

if TYPE_CHECKING:
    from lockstep.strategies.base import AbstractStrategy
    from lockstep.strategies.central_storage import CentralStorageStrategy
    from lockstep.strategies.current import (
        get_replica_context,
        get_strategy,
        has_strategy,
        in_cross_replica_context,
    )
    from lockstep.strategies.datasets import DistributedDataset, DistributedIterator, InputOptions, ValueContext
    from lockstep.strategies.devices import simulate_devices
    from lockstep.strategies.environment import from_env
    from lockstep.strategies.input import AutoShardPolicy, GlobalBatches, InputContext, rows_of_batch
    from lockstep.strategies.loops.collectives import CommunicationOptions
    from lockstep.strategies.loops.gradients import compute_average_loss, scale_regularization_loss, value_and_grad
    from lockstep.strategies.loops.lifting import function
    from lockstep.strategies.loops.pure_steps import CompiledStep
    from lockstep.strategies.loops.replica import (
        PerReplica,
        ReduceOp,
        ReplicaContext,
    )
    from lockstep.strategies.memory import GroupMemory, describe_memory, measure_memory
    from lockstep.strategies.mirrored import MirroredStrategy
    from lockstep.strategies.multi_worker import MultiWorkerMirroredStrategy
    from lockstep.strategies.names import STRATEGY_NAMES
    from lockstep.strategies.one_device import OneDeviceStrategy
    from lockstep.strategies.peers.resolvers import (
        AbstractClusterResolver,
        JaxClusterResolver,
        KubernetesClusterResolver,
        MPIClusterResolver,
        SimpleClusterResolver,
        SlurmClusterResolver,
        TFConfigClusterResolver,
        TorchrunClusterResolver,
    )
    from lockstep.strategies.sharded import ShardedStrategy
    from lockstep.strategies.tpu import TPUStrategy

__all__ = [
    "STRATEGY_NAMES",
    "AbstractClusterResolver",
    "AbstractStrategy",
    "AutoShardPolicy",
    "CentralStorageStrategy",
    "CommunicationOptions",
    "CompiledStep",
    "DistributedDataset",
    "DistributedIterator",
    "GlobalBatches",
    "GroupMemory",
    "InputContext",
    "InputOptions",
    "JaxClusterResolver",
    "KubernetesClusterResolver",
    "MPIClusterResolver",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "PerReplica",
    "ReduceOp",
    "ReplicaContext",
    "ShardedStrategy",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUStrategy",
    "TorchrunClusterResolver",
    "ValueContext",
    "compute_average_loss",
    "describe_memory",
    "from_env",
    "function",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "measure_memory",
    "rows_of_batch",
    "scale_regularization_loss",
    "simulate_devices",
    "value_and_grad",
]

_MODULES: Final = {
    "AbstractClusterResolver": "peers.resolvers",
    "AbstractStrategy": "base",
    "AutoShardPolicy": "input",
    "CentralStorageStrategy": "central_storage",
    "CommunicationOptions": "loops.collectives",
    "CompiledStep": "loops.pure_steps",
    "DistributedDataset": "datasets",
    "DistributedIterator": "datasets",
    "GlobalBatches": "input",
    "GroupMemory": "memory",
    "InputContext": "input",
    "InputOptions": "datasets",
    "JaxClusterResolver": "peers.resolvers",
    "KubernetesClusterResolver": "peers.resolvers",
    "MPIClusterResolver": "peers.resolvers",
    "MirroredStrategy": "mirrored",
    "MultiWorkerMirroredStrategy": "multi_worker",
    "OneDeviceStrategy": "one_device",
    "PerReplica": "loops.replica",
    "ReduceOp": "loops.replica",
    "ReplicaContext": "loops.replica",
    "STRATEGY_NAMES": "names",
    "ShardedStrategy": "sharded",
    "SimpleClusterResolver": "peers.resolvers",
    "SlurmClusterResolver": "peers.resolvers",
    "TFConfigClusterResolver": "peers.resolvers",
    "TPUStrategy": "tpu",
    "TorchrunClusterResolver": "peers.resolvers",
    "ValueContext": "datasets",
    "compute_average_loss": "loops.gradients",
    "describe_memory": "memory",
    "from_env": "environment",
    "function": "loops.lifting",
    "get_replica_context": "current",
    "get_strategy": "current",
    "has_strategy": "current",
    "in_cross_replica_context": "current",
    "measure_memory": "memory",
    "rows_of_batch": "input",
    "scale_regularization_loss": "loops.gradients",
    "simulate_devices": "devices",
    "value_and_grad": "loops.gradients",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lockstep.strategies' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lockstep.strategies.{_MODULES[name]}"), name)
    globals()[name] = value  # so that the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


require_jax_backend()
