"""The strategy that keeps a copy of the parameters on every TPU core of a slice."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, final

from lockstep.errors import BackendError, ConfigError, UnavailableError
from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import Device, describe_devices, devices_of_job
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.mesh import ReplicatedLayout
from lockstep.strategies.multi_worker import refuse_parameter_servers, share_seed
from lockstep.strategies.peers.joining import meet
from lockstep.strategies.peers.resolvers import ClusterResolver, resolve_topology
from lockstep.topology import Topology
from lockstep.upstream.jax_processes import backend_started, num_tpu_chips

HOSTS_VARIABLE: Final = "TPU_WORKER_HOSTNAMES"
HOST_ID_VARIABLE: Final = "TPU_WORKER_ID"
PORT: Final = 8476
"""The port at which the hosts of a slice meet; JAX uses the same one."""

_VIRTUAL_DEVICES_VARIABLE: Final = "JAX_NUM_CPU_DEVICES"
_HOST_NAME_BYTES: Final = 256


@final
class TPUStrategy(AbstractStrategy):
    """Keeps a copy of the parameters on every TPU core of the slice; each step sums gradients over the interconnect.

    If the slice has several hosts, they meet first: at the addresses of ``cluster_resolver``, or at those from Cloud
    TPU (``TPU_WORKER_HOSTNAMES`` and ``TPU_WORKER_ID``, or the metadata server, which JAX queries).

    Without a TPU, the strategy runs on virtual CPU devices if the process has any
    (`lockstep.strategies.simulate_devices`), and `describe` says so. This suits tests and trials. ``lockstep plan``
    compiles the strategy's step for slices that this machine does not have.

    Args:
        cluster_resolver: the source of the topology. By default, the environment.
        communication_options: the size of the buckets in which gradients of a custom loop are sent, and how long
            another host may be silent.

    Raises:
        BackendError: there is neither a TPU nor a virtual CPU device, JAX has started before the hosts could meet, or
            the hosts were given different random seeds.
        ConfigError: the job has parameter servers, or the environment's variables about the slice contradict each
            other.
        UnavailableError: the hosts did not meet.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        *,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        topology = resolve_topology(cluster_resolver)
        refuse_parameter_servers(topology)
        if topology.num_processes == 1:
            topology = slice_topology(os.environ, topology)
        prepare_backend()
        if topology.num_processes > 1:
            meet(topology, timeout_s=communication_options.timeout_seconds if communication_options else None)
        else:
            topology = _join_slice(topology)
        devices = _cores()
        super().__init__(
            ReplicatedLayout(devices, name=type(self).__name__),
            topology=topology,
            communication_options=communication_options,
        )
        if topology.num_processes > 1:
            share_seed()

    def describe(self) -> str:
        """Names the cores, and says whether they are simulated."""
        num_hosts = self.topology.num_processes
        hosts = f" on {num_hosts} hosts" if num_hosts > 1 else ""
        simulated = " (simulated)" if self.devices[0].platform == "cpu" else ""
        return f"TPUStrategy over {describe_devices(self.devices)}{hosts}{simulated}"


def slice_topology(env: Mapping[str, str], topology: Topology) -> Topology:
    """Returns a topology with the hosts of the TPU slice as workers, if the environment names several hosts.

    Args:
        env: environment variables. ``TPU_WORKER_HOSTNAMES`` is a list with commas, and ``TPU_WORKER_ID`` is an index
            into it, from 0.
        topology: the topology without the hosts of the slice. It is returned as it is if there is only one host.

    Raises:
        ConfigError: there are several hosts, and this host's index is not a number or is out of range.
    """
    hosts = [name.strip() for name in env.get(HOSTS_VARIABLE, "").split(",") if name.strip()]
    if len(hosts) < 2:
        return topology
    place = env.get(HOST_ID_VARIABLE, "")
    if not place.isdecimal() or int(place) >= len(hosts):
        raise ConfigError(
            f"{HOST_ID_VARIABLE}: this host's place in the slice",
            received=place,
            allowed=f"0 to {len(hosts) - 1}: a place in {HOSTS_VARIABLE}",
        )
    addresses = tuple(f"{host}:{PORT}" for host in hosts)
    return replace(
        topology, cluster={"worker": addresses}, task=replace(topology.task, role="worker", index=int(place))
    )


def has_tpu() -> bool:
    """Whether this machine has a TPU that JAX would use. The check does not start JAX."""
    import jax  # slow to import

    platforms = str(getattr(jax.config, "jax_platforms", None) or "tpu").split(",")
    return "tpu" in platforms and num_tpu_chips() > 0


def _join_slice(topology: Topology) -> Topology:
    """Meets the other hosts of this machine's TPU slice, if there are any, with JAX's own cluster detection."""
    import jax

    if not has_tpu():
        return topology
    if not jax.distributed.is_initialized() and not backend_started():
        try:
            jax.distributed.initialize()
        except ValueError:
            return topology  # JAX found no sign of other hosts
        except RuntimeError as error:
            raise UnavailableError(
                f"the hosts of the TPU slice did not meet: {error}",
                action=f"check that every host runs the program, or set {HOSTS_VARIABLE} and {HOST_ID_VARIABLE} on all",
            ) from error
    if jax.process_count() == 1:
        return topology
    addresses = tuple(f"{host}:{PORT}" for host in _host_names())
    return replace(
        topology, cluster={"worker": addresses}, task=replace(topology.task, role="worker", index=jax.process_index())
    )


def _host_names() -> list[str]:
    """Returns the host names of all processes, in the order of the processes."""
    import numpy as np
    from jax.experimental import multihost_utils

    own = socket.gethostname().encode()[:_HOST_NAME_BYTES].ljust(_HOST_NAME_BYTES, b"\0")
    gathered = np.asarray(multihost_utils.process_allgather(np.frombuffer(own, np.uint8)))
    return [bytes(row).rstrip(b"\0").decode() for row in gathered.reshape(-1, _HOST_NAME_BYTES)]


def _cores() -> tuple[Device, ...]:
    """Returns the TPU cores of all hosts, or the virtual CPU devices that stand in for them."""
    import jax

    devices = devices_of_job()
    found = {device.platform for device in devices}
    virtual = found == {"cpu"} and (jax.local_device_count() > 1 or bool(os.environ.get(_VIRTUAL_DEVICES_VARIABLE)))
    if found != {"tpu"} and not virtual:
        raise BackendError(
            "there is no TPU, and there are no virtual devices to stand for one",
            received=describe_devices(devices),
            allowed="TPU cores, or virtual CPU devices",
            action="run it on a TPU VM with lockstep-train[tpu] installed, or call simulate_devices(8) first, or see "
            "what it would take: lockstep plan SCRIPT --on v5e:2x4",
        )
    return devices
