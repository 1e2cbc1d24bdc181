"""Chooses the strategy that fits a job's environment."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import logging
from dataclasses import replace

from lockstep.errors import InvalidInputError, closest
from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.central_storage import CentralStorageStrategy
from lockstep.strategies.devices import local_devices
from lockstep.strategies.mirrored import MirroredStrategy
from lockstep.strategies.multi_worker import MultiWorkerMirroredStrategy, refuse_parameter_servers
from lockstep.strategies.names import AUTO, STRATEGY_NAMES
from lockstep.strategies.one_device import OneDeviceStrategy
from lockstep.strategies.sharded import ShardedStrategy
from lockstep.strategies.tpu import TPUStrategy, has_tpu
from lockstep.topology import Topology

logger = logging.getLogger(__name__)


def from_env(name: str | None = None) -> AbstractStrategy:
    """Creates the strategy that fits this process's environment, and logs which one and why.

    The choice is `MultiWorkerMirroredStrategy` if several processes train in step, `TPUStrategy` on a TPU,
    `MirroredStrategy` with several other devices, and `OneDeviceStrategy` with one device. Call this function before
    the first computation. The evaluator of a job trains in step with nobody: its strategy is over its own devices.

    Args:
        name: one of `STRATEGY_NAMES`. None and "auto" choose by the environment.

    Raises:
        InvalidInputError: there is no strategy of this name.
        ConfigError: the environment's variables contradict each other, or the job has parameter servers.
        BackendError: Keras does not run on JAX, or JAX has started already and the processes cannot meet.
    """
    if name is not None and name not in STRATEGY_NAMES:
        raise InvalidInputError(
            "there is no such strategy", received=name, allowed=STRATEGY_NAMES, action=closest(name, STRATEGY_NAMES)
        )
    topology = Topology.from_env()
    if topology.task.role == "evaluator":
        topology = replace(topology, cluster={})
    refuse_parameter_servers(topology)
    chosen, reason = (name, "it was named") if name not in (None, AUTO) else _choose(topology)
    match chosen:
        case "multi_worker":
            strategy: AbstractStrategy = MultiWorkerMirroredStrategy(topology)
        case "mirrored":
            strategy = MirroredStrategy()
        case "tpu":
            strategy = TPUStrategy(topology)
        case "central_storage":
            strategy = CentralStorageStrategy()
        case "sharded":
            strategy = ShardedStrategy(cluster_resolver=topology)
        case _:
            strategy = OneDeviceStrategy()
    simulated = topology.accelerators is not None and topology.accelerators.simulated
    standing_for = f", simulating {topology.accelerators.describe()}" if simulated and topology.accelerators else ""
    logger.info("strategy: %s%s, because %s", strategy.describe(), standing_for, reason)
    return strategy


def _choose(topology: Topology) -> tuple[str, str]:
    if topology.num_processes > 1:
        return "multi_worker", f"the job has {topology.num_processes} processes that train in step"
    prepare_backend()
    if has_tpu():
        return "tpu", "this machine has a TPU"
    num_devices = len(local_devices())
    if num_devices > 1:
        return "mirrored", f"this process has {num_devices} devices"
    return "one_device", "this process has one device"
