"""Strategies by the names of ``tf.distribute``, over Keras 3 on JAX.

The names below are imported when they are first used: which rows a process reads is asked by rooms that need no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from lockstep.strategies.backend import require_jax_backend

if TYPE_CHECKING:
    from lockstep.strategies.base import AbstractStrategy
    from lockstep.strategies.devices import simulate_devices
    from lockstep.strategies.environment import STRATEGY_NAMES, from_env
    from lockstep.strategies.input import GlobalBatches, InputContext, rows_of_batch
    from lockstep.strategies.memory import GroupMemory, describe_memory, measure_memory
    from lockstep.strategies.mirrored import MirroredStrategy
    from lockstep.strategies.multi_worker import MultiWorkerMirroredStrategy
    from lockstep.strategies.one_device import OneDeviceStrategy
    from lockstep.strategies.sharded import ShardedStrategy

__all__ = [
    "STRATEGY_NAMES",
    "AbstractStrategy",
    "GlobalBatches",
    "GroupMemory",
    "InputContext",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ShardedStrategy",
    "describe_memory",
    "from_env",
    "measure_memory",
    "rows_of_batch",
    "simulate_devices",
]

_MODULES: Final = {
    "STRATEGY_NAMES": "environment",
    "AbstractStrategy": "base",
    "GlobalBatches": "input",
    "GroupMemory": "memory",
    "InputContext": "input",
    "MirroredStrategy": "mirrored",
    "MultiWorkerMirroredStrategy": "multi_worker",
    "OneDeviceStrategy": "one_device",
    "ShardedStrategy": "sharded",
    "describe_memory": "memory",
    "from_env": "environment",
    "measure_memory": "memory",
    "rows_of_batch": "input",
    "simulate_devices": "devices",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lockstep.strategies' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"lockstep.strategies.{_MODULES[name]}"), name)
    globals()[name] = value  # asked once
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


require_jax_backend()
