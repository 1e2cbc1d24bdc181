"""The strategy that keeps a copy of the parameters on every device of every worker. The processes train in step."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import random
from typing import final

from lockstep.errors import BackendError, ConfigError
from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import describe_devices, devices_of_job
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.mesh import ReplicatedLayout
from lockstep.strategies.peers.joining import meet
from lockstep.strategies.peers.resolvers import ClusterResolver, resolve_topology
from lockstep.topology import Topology


@final
class MultiWorkerMirroredStrategy(AbstractStrategy):
    """Keeps a copy of the parameters on every device of every process; each step sums gradients over all of them.

    Every process of the job must create the strategy before its first computation. The processes meet at the address of
    the first one. Sums use NCCL on GPUs, gloo on CPUs, and the interconnect on TPUs. When a process dies, hangs or
    never arrives, the others end within 15 s (or `CommunicationOptions.timeout_seconds`), with the exit code of
    `lockstep.errors.PeerLostError` and a last line that names the lost process.

    Every process must build the same model with the same initial values. If no process has called
    ``keras.utils.set_random_seed``, all processes use the first process's seed.

    Args:
        cluster_resolver: the topology, or a resolver that reads it. By default, the environment
            (`Topology.from_env`). A job of one process needs no meeting; the strategy then equals `MirroredStrategy`.
        communication_options: how values are sent between replicas, and how long a process may be silent.

    Raises:
        ConfigError: the job has parameter servers, this process is not one of those that train in step, or the
            processes do not agree on their number or on their ranks.
        BackendError: JAX has started already, so the processes cannot meet any more; or the processes run different
            versions, have different numbers of devices, or were given different random seeds.
        PeerLostError: another process did not arrive at the meeting.
        PortInUseError: this process is the chief, and another program uses its port.
        UnavailableError: something else than the chief answers at the chief's address.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        topology = resolve_topology(cluster_resolver)
        refuse_parameter_servers(topology)
        prepare_backend()
        meet(topology, timeout_s=communication_options.timeout_seconds if communication_options else None)
        super().__init__(
            ReplicatedLayout(devices_of_job(), name=type(self).__name__),
            topology=topology,
            communication_options=communication_options,
        )
        if topology.num_processes > 1:
            share_seed()

    @property
    def cluster_resolver(self) -> Topology:
        """The topology; the name is from ``tf.distribute``."""
        return self.topology

    def describe(self) -> str:
        """Gives the number of processes, and names the devices."""
        devices = describe_devices(self.devices)
        return f"MultiWorkerMirroredStrategy over {self.topology.num_processes} processes with {devices} in all"


def refuse_parameter_servers(topology: Topology) -> None:
    """Checks that the job has no parameter servers.

    Raises:
        ConfigError: the job has parameter servers. They need a strategy that updates parameters as gradients arrive.
    """
    if topology.has_parameter_servers:
        raise ConfigError(
            "a job with parameter servers needs lockstep.parameter_server.ParameterServerStrategy",
            received=f"{len(topology.cluster['ps'])} parameter servers",
            allowed="a chief (or master) and workers",
            action="make that strategy in the script, or take the parameter servers out of the job's configuration",
        )


def share_seed() -> None:
    """Gives every process the chief's random seed, or checks that all processes were given the same seed."""
    import keras
    import numpy as np
    from jax.experimental import multihost_utils

    from lockstep.upstream.keras_variables import get_random_seed  # imports Keras

    own = get_random_seed()
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
