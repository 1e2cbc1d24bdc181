"""A copy of the parameters on every device of every worker: the processes train in step."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import logging
import random
from typing import Any, Final, cast, final

from lockstep.errors import BackendError, ConfigError, UnavailableError
from lockstep.strategies.backend import backend_started, prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import describe_devices
from lockstep.strategies.mesh import ReplicatedLayout
from lockstep.topology import Topology

logger = logging.getLogger(__name__)

MEETING_TIMEOUT_S: Final = 300
"""How long a process waits for the others to start."""

HEARTBEAT_TIMEOUT_S: Final = 20
"""How long a process may be silent before the others end."""


@final
class MultiWorkerMirroredStrategy(AbstractStrategy):
    """A copy on every device of every process; gradients are summed over all of them in the step.

    Must be made before the first computation of its process, and by every process of the job: they meet at the address
    of the first one. Sums go over NCCL on GPUs, gloo on CPUs, the interconnect on TPUs. When a process ends, the others
    end too, within `HEARTBEAT_TIMEOUT_S`.

    Every process must build the same model with the same initial values: where nobody called
    ``keras.utils.set_random_seed``, the first process's seed is given to all.

    Args:
        cluster_resolver: who is in the job; read from the environment (``TF_CONFIG``) by default. A job of one process
            needs no meeting, and is then the same as `MirroredStrategy`.

    Raises:
        ConfigError: the job has parameter servers, or this process is not one of those that train in step.
        BackendError: JAX has started already, so that the processes cannot meet any more, or the processes were given
            different random seeds.
        UnavailableError: the other processes did not come.
    """

    def __init__(self, cluster_resolver: Topology | None = None) -> None:
        topology = Topology.from_env() if cluster_resolver is None else cluster_resolver
        refuse_parameter_servers(topology)
        process_id = topology.process_id
        prepare_backend()
        if topology.num_processes > 1:
            _meet(topology, process_id=process_id)
        import jax  # after the processes have met

        devices = sorted(cast("list[Any]", jax.devices()), key=lambda device: (device.process_index, device.id))
        super().__init__(ReplicatedLayout(devices, name=type(self).__name__), topology=topology)
        if topology.num_processes > 1:
            _share_seed()

    def describe(self) -> str:
        """Says over how many processes and which devices."""
        devices = describe_devices(self.devices)
        return f"MultiWorkerMirroredStrategy over {self.topology.num_processes} processes with {devices} in all"


def refuse_parameter_servers(topology: Topology) -> None:
    """Checks that the job has no parameter servers.

    Raises:
        ConfigError: it has; they take a strategy that updates parameters as gradients arrive.
    """
    if topology.has_parameter_servers:
        raise ConfigError(
            "a job with parameter servers needs ParameterServerStrategy, which this version of Lockstep does not have",
            received=f"{len(topology.cluster['ps'])} parameter servers",
            allowed="a chief (or master) and workers",
            action="take the parameter servers out of the job's configuration",
        )


def _meet(topology: Topology, *, process_id: int) -> None:
    import jax  # slow to import

    if jax.distributed.is_initialized():
        if (jax.process_count(), jax.process_index()) != (topology.num_processes, process_id):
            raise BackendError(
                "this process has joined another job already",
                received=f"process {jax.process_index()} of {jax.process_count()}",
                allowed=f"process {process_id} of {topology.num_processes}",
            )
        return
    if backend_started():
        raise BackendError(
            "the processes cannot meet: JAX has started",
            action="make the MultiWorkerMirroredStrategy before the first computation and before any model",
        )
    logger.info(
        "process %d of %d meets the others at %s", process_id, topology.num_processes, topology.coordinator_address
    )
    try:
        jax.distributed.initialize(
            coordinator_address=topology.coordinator_address,
            num_processes=topology.num_processes,
            process_id=process_id,
            cluster_detection_method="deactivate",
            initialization_timeout=MEETING_TIMEOUT_S,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        )
    except RuntimeError as error:
        raise UnavailableError(
            f"process {process_id} did not meet the other {topology.num_processes - 1}: {error}",
            received=topology.coordinator_address,
            action="see that every process of the job runs and that this address can be reached",
        ) from error


def _share_seed() -> None:
    """Gives every process the chief's random seed, or checks that all were given the same one."""
    import keras
    import numpy as np
    from jax.experimental import multihost_utils
    from keras.src.utils import rng_utils  # the public interface sets the seed and does not tell it

    own = rng_utils.get_random_seed()
    proposal = random.SystemRandom().randrange(2**31) if own is None else int(own)
    told = np.array([0 if own is None else 1, proposal], np.uint32)
    seeds = np.asarray(multihost_utils.process_allgather(told)).reshape(-1, 2)
    if not seeds[:, 0].any():
        keras.utils.set_random_seed(int(seeds[0, 1]))
    elif not seeds[:, 0].all() or len(set(seeds[:, 1].tolist())) > 1:
        raise BackendError(
            "the processes were given different random seeds",
            received=[int(seed) if was_set else None for was_set, seed in seeds],
            action="call keras.utils.set_random_seed with the same number in every process, or in none",
        )
