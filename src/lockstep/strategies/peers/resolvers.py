"""Cluster resolvers by the names of ``tf.distribute.cluster_resolver``: where a strategy learns who is in the job.

A strategy asks `Topology.from_env` by default, which asks all of these in turn. A resolver is for a program that wants
one source alone, or says itself who is there.
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
    """Knows who is in the job and which of them this process is."""

    @abstractmethod
    def resolve(self) -> Topology:
        """Returns the job.

        Does not block, gives the same answer each time, and may be called from any thread.

        Raises:
            ConfigError: its source says nothing, or contradicts itself.
        """

    @property
    @final
    def task_type(self) -> str | None:
        """This process's role, by the name of ``tf.distribute``; None where there is no cluster."""
        return self.resolve().task_type

    @property
    @final
    def task_id(self) -> int | None:
        """This process's index within its role, by the name of ``tf.distribute``; None where there is no cluster."""
        return self.resolve().task_id

    @final
    def cluster_spec(self) -> ClusterSpec:
        """Returns the addresses by role, by the name of ``tf.distribute``."""
        return self.resolve().cluster_spec()


ClusterResolver: TypeAlias = "Topology | AbstractClusterResolver"
"""What strategies take as ``cluster_resolver``."""


def resolve_topology(cluster_resolver: ClusterResolver | None) -> Topology:
    """Returns the job that a strategy is in.

    Args:
        cluster_resolver: a topology, a resolver, or None for what the environment says.

    Raises:
        ConfigError: its source says nothing, or contradicts itself.
    """
    if cluster_resolver is None:
        return Topology.from_env()
    return cluster_resolver.resolve() if isinstance(cluster_resolver, AbstractClusterResolver) else cluster_resolver


@final
class SimpleClusterResolver(AbstractClusterResolver):
    """Takes the program's own word.

    Args:
        cluster_spec: addresses ("host:port") by role, in the order of their indices.
        task_type: this process's role.
        task_id: its index within the role.
    """

    def __init__(self, cluster_spec: Mapping[str, Sequence[str]], *, task_type: str, task_id: int) -> None:
        cluster = {role: tuple(addresses) for role, addresses in cluster_spec.items()}
        self._topology = Topology(cluster=cluster, task=Task(role=task_type, index=task_id))

    def resolve(self) -> Topology:
        """Returns the job that was described."""
        return self._topology


@final
class TFConfigClusterResolver(AbstractClusterResolver):
    """Reads ``TF_CONFIG`` (or ``CLUSTER_SPEC``) alone, whatever a launcher has set beside it.

    Args:
        env: the variables; the process's own by default.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        variables = os.environ if env is None else env
        self._env = {name: variables[name] for name in _OWN_VARIABLES if name in variables}

    def resolve(self) -> Topology:
        """Returns the job that the variable names."""
        if not self._env:
            raise ConfigError(f"{TF_CONFIG} is not set", action="set it, or leave the resolver out")
        return Topology.from_env(self._env)


@final
class JaxClusterResolver(AbstractClusterResolver):
    """Reads ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``.

    Args:
        env: the variables; the process's own by default.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env

    def resolve(self) -> Topology:
        """Returns the job that the variables name."""
        return _resolve(from_jax, self._env, "JAX_PROCESS_ID")


@final
class TorchrunClusterResolver(AbstractClusterResolver):
    """Reads ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``.

    Args:
        env: the variables; the process's own by default.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env

    def resolve(self) -> Topology:
        """Returns the job that the variables name."""
        return _resolve(from_torchrun, self._env, "RANK and WORLD_SIZE")


@final
class MPIClusterResolver(AbstractClusterResolver):
    """Reads what ``mpirun`` and ``mpiexec`` of Open MPI, MPICH and Intel MPI set.

    Args:
        env: the variables; the process's own by default.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env

    def resolve(self) -> Topology:
        """Returns the job that the variables name."""
        return _resolve(from_mpi, self._env, "OMPI_COMM_WORLD_RANK or PMI_RANK")


@final
class SlurmClusterResolver(AbstractClusterResolver):
    """Reads what ``srun`` sets.

    Args:
        port: where the first task listens; one made of the job's and the step's number by default.
        env: the variables; the process's own by default.
    """

    def __init__(self, *, port: int | None = None, env: Mapping[str, str] | None = None) -> None:
        self._env = {**(os.environ if env is None else env), **({COORDINATOR_PORT: str(port)} if port else {})}

    def resolve(self) -> Topology:
        """Returns the step's tasks."""
        return _resolve(from_slurm, self._env, "SLURM_PROCID and SLURM_STEP_NODELIST")


@final
class KubernetesClusterResolver(AbstractClusterResolver):
    """Reads what an indexed Job, or a JobSet, sets in its pods.

    Args:
        env: the variables; the process's own by default.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env

    def resolve(self) -> Topology:
        """Returns the job's pods."""
        return _resolve(from_kubernetes, self._env, "JOB_COMPLETION_INDEX and JAX_NUM_PROCESSES")


def _resolve(launcher: Callable[[Mapping[str, str]], Place | None], env: Mapping[str, str], names: str) -> Topology:
    place = launcher(env)
    if place is None:
        raise ConfigError(f"{names}: not set", action="start the program with that launcher, or leave the resolver out")
    return Topology.of_place(place)
