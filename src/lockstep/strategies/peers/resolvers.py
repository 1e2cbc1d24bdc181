"""Cluster resolvers: the sources from which a strategy reads the topology.

The names are those of ``tf.distribute.cluster_resolver``. By default, a strategy uses `Topology.from_env`, which tries
all sources in turn. Use a resolver to read only one source, or to specify the topology in the program.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, final

from lockstep.errors import ConfigError
from lockstep.topology import CLUSTER_SPEC, TF_CONFIG, ClusterSpec, Task, Topology
from lockstep.topology.launchers import (
    COORDINATOR_PORT,
    Place,
    from_jax,
    from_kubernetes,
    from_mpi,
    from_slurm,
    from_torchrun,
)

_OWN_VARIABLES: Final = (TF_CONFIG, CLUSTER_SPEC)


class AbstractClusterResolver(ABC):
    """The source of a topology: the members of the job, and which of them this process is."""

    @abstractmethod
    def resolve(self) -> Topology:
        """Returns the topology.

        Does not block, returns the same topology each time, and may be called from any thread.

        Raises:
            ConfigError: the source has no topology, or contradicts itself.
        """

    @property
    @final
    def task_type(self) -> str | None:
        """This process's role; None if there is no cluster. The name is from ``tf.distribute``."""
        return self.resolve().task_type

    @property
    @final
    def task_id(self) -> int | None:
        """This process's index within its role; None if there is no cluster. The name is from ``tf.distribute``."""
        return self.resolve().task_id

    @final
    def cluster_spec(self) -> ClusterSpec:
        """Returns the addresses by role. The name is from ``tf.distribute``."""
        return self.resolve().cluster_spec()


ClusterResolver: TypeAlias = "Topology | AbstractClusterResolver"
"""The type of the strategies' argument ``cluster_resolver``."""


def resolve_topology(cluster_resolver: ClusterResolver | None) -> Topology:
    """Returns the topology of the job that a strategy belongs to.

    Args:
        cluster_resolver: a topology, a resolver, or None to read the environment.

    Raises:
        ConfigError: the source has no topology, or contradicts itself.
    """
    if cluster_resolver is None:
        return Topology.from_env()
    return cluster_resolver.resolve() if isinstance(cluster_resolver, AbstractClusterResolver) else cluster_resolver


@final
class SimpleClusterResolver(AbstractClusterResolver):
    """Uses a topology that the program specifies.

    Args:
        cluster_spec: the addresses ("host:port") by role, in the order of their indices.
        task_type: this process's role.
        task_id: this process's index within its role.
    """

    def __init__(self, cluster_spec: Mapping[str, Sequence[str]], *, task_type: str, task_id: int) -> None:
        cluster = {role: tuple(addresses) for role, addresses in cluster_spec.items()}
        self._topology = Topology(cluster=cluster, task=Task(role=task_type, index=task_id))

    def resolve(self) -> Topology:
        """Returns the topology that was specified."""
        return self._topology


@final
class TFConfigClusterResolver(AbstractClusterResolver):
    """Reads only ``TF_CONFIG`` (or ``CLUSTER_SPEC``), and ignores the variables of launchers.

    Args:
        env: the environment variables. By default, the process's own.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        variables = os.environ if env is None else env
        self._env = {name: variables[name] for name in _OWN_VARIABLES if name in variables}

    def resolve(self) -> Topology:
        """Returns the topology that the variable describes."""
        if not self._env:
            raise ConfigError(f"{TF_CONFIG} is not set", action="set it, or leave the resolver out")
        return Topology.from_env(self._env)


@final
class JaxClusterResolver(AbstractClusterResolver):
    """Reads ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``.

    Args:
        env: the environment variables. By default, the process's own.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env

    def resolve(self) -> Topology:
        """Returns the topology that the variables describe."""
        return _resolve(from_jax, self._env, "JAX_PROCESS_ID")


@final
class TorchrunClusterResolver(AbstractClusterResolver):
    """Reads ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``.

    Args:
        env: the environment variables. By default, the process's own.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env

    def resolve(self) -> Topology:
        """Returns the topology that the variables describe."""
        return _resolve(from_torchrun, self._env, "RANK and WORLD_SIZE")


@final
class MPIClusterResolver(AbstractClusterResolver):
    """Reads the variables that ``mpirun`` and ``mpiexec`` of Open MPI, MPICH and Intel MPI set.

    Args:
        env: the environment variables. By default, the process's own.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env

    def resolve(self) -> Topology:
        """Returns the topology that the variables describe."""
        return _resolve(from_mpi, self._env, "OMPI_COMM_WORLD_RANK or PMI_RANK")


@final
class SlurmClusterResolver(AbstractClusterResolver):
    """Reads the variables that ``srun`` sets.

    Args:
        port: the port at which the first task listens. By default, a port computed from the job's and the step's
            number.
        env: the environment variables. By default, the process's own.
    """

    def __init__(self, *, port: int | None = None, env: Mapping[str, str] | None = None) -> None:
        self._env = {**(os.environ if env is None else env), **({COORDINATOR_PORT: str(port)} if port else {})}

    def resolve(self) -> Topology:
        """Returns the topology of the step's tasks."""
        return _resolve(from_slurm, self._env, "SLURM_PROCID and SLURM_STEP_NODELIST")


@final
class KubernetesClusterResolver(AbstractClusterResolver):
    """Reads the variables that an indexed Job or a JobSet sets in its pods.

    Args:
        env: the environment variables. By default, the process's own.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env

    def resolve(self) -> Topology:
        """Returns the topology of the job's pods."""
        return _resolve(from_kubernetes, self._env, "JOB_COMPLETION_INDEX and JAX_NUM_PROCESSES")


def _resolve(launcher: Callable[[Mapping[str, str]], Place | None], env: Mapping[str, str], names: str) -> Topology:
    place = launcher(env)
    if place is None:
        raise ConfigError(f"{names}: not set", action="start the program with that launcher, or leave the resolver out")
    return Topology.of_place(place)
