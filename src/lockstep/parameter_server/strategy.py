"""The parameter server strategy: servers keep the parameters, and workers train without waiting for each other."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import os
from typing import Final, final

from lockstep.errors import InvalidInputError, counted
from lockstep.home import Home
from lockstep.parameter_server.cluster import SILENCE_S, START_WITHIN_S, Cluster, check_cluster
from lockstep.parameter_server.compression import Compression, check_compression
from lockstep.parameter_server.cores import shared_cores
from lockstep.parameter_server.embedding.calls import RowCalls
from lockstep.parameter_server.fitting.runs import ServedRuns
from lockstep.parameter_server.layout import ServedLayout
from lockstep.parameter_server.local_processes import LocalProcesses
from lockstep.parameter_server.membership import Member, Options
from lockstep.parameter_server.placement import Partitioner
from lockstep.parameter_server.protocol import Mode
from lockstep.parameter_server.scheduling.scheduler import Scheduler
from lockstep.parameter_server.server.serving import serve
from lockstep.parameter_server.tokens import cluster_token
from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import describe_devices, local_devices
from lockstep.strategies.peers.resolvers import ClusterResolver, resolve_topology
from lockstep.topology import Topology

LEAST_SILENCE_S: Final = 0.1
MOST_S: Final = 86400.0
MOST_OVERLAPPING: Final = 2
"""The largest number of workers whose steps overlap by default.

Overlap doubles staleness, which costs accuracy if there are more workers.
"""


@final
class ParameterServerStrategy(AbstractStrategy):
    """Partitions the parameters over servers, which update them as workers' gradients arrive.

    Every process of the job runs the same script, and finds its role in the topology (``TF_CONFIG``):

    - A parameter server (``ps``) keeps its part of the parameters, with the optimizer's state for that part. It serves
      inside this constructor until the coordinator's script has ended. Then it ends the process with `SystemExit`.
    - A worker builds the same model. From the first ``fit`` (or the first call of a `ClusterCoordinator`) on, it runs
      the steps that the coordinator assigns. It does not run the script beyond that: the process ends with
      `SystemExit`.
    - The coordinator (``chief`` or ``master``) runs the whole script: the loop of ``fit``, callbacks, validation.

    Each step runs on one worker. The worker pulls the parameters, computes gradients of its own batch, and pushes them.
    By default, no worker waits for another one. If a worker is lost, the others go on, and one of them takes over its
    step.

    Args:
        cluster_resolver: the topology of the job, or a resolver that returns it. The default reads the environment.
        variable_partitioner: the function that decides how large variables are cut into shards for several servers;
            None to keep them whole.
        max_staleness: the number of steps that a worker may be ahead of the slowest one before it waits; None for no
            limit.
        num_backup_workers: makes steps synchronous. A step is the mean, over rows, of the pushes of all workers except
            this number of them (0 for all workers). Pushes of the slowest workers that come too late are dropped.
        overlaps: whether a worker begins a step while its last push is still being sent, with the parameters that it
            has. These are then one step older, and the steps of all workers about twice as stale. By default, steps
            overlap if there are one or two workers and none has to wait.
        compression: how pushes of dense gradients are compressed, for links that are slower than the workers:
            "bfloat16" halves them, and ``TopK(share)`` sends only the largest gradients. What is left out is added to
            the worker's next gradients, and is lost if the worker is lost.
        silence_s: the time without any message after which a process counts as lost, in seconds.
        start_within_s: how long to wait for the processes of the cluster to start, in seconds.

    Attributes:
        member: this process as a member of the cluster.
        scheduler: the scheduler of the closures of a `ClusterCoordinator`.

    Raises:
        ConfigError: the cluster has no chief, worker or parameter server; or its processes are on several machines, and
            ``LOCKSTEP_CLUSTER_TOKEN`` is not set.
        InvalidInputError: an option is out of range, or contradicts another one.
        UnavailableError: in a parameter server, no process connected in time, or all of them were lost.
        SystemExit: in a parameter server, with code 0, when the training is over.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: Partitioner | None = None,
        *,
        max_staleness: int | None = None,
        num_backup_workers: int | None = None,
        overlaps: bool | None = None,
        compression: Compression | None = None,
        silence_s: float = SILENCE_S,
        start_within_s: float = START_WITHIN_S,
    ) -> None:
        _check_seconds("silence_s", silence_s, least=LEAST_SILENCE_S)
        _check_seconds("start_within_s", start_within_s, least=0.0)
        topology = resolve_topology(cluster_resolver)
        check_cluster(topology)
        prepare_backend()
        cluster = Cluster(
            topology=topology,
            token=cluster_token(topology, env=os.environ, home=Home.from_env()),
            silence_s=silence_s,
            start_within_s=start_within_s,
        )
        options = _options(
            cluster,
            max_staleness=max_staleness,
            num_backup_workers=num_backup_workers,
            overlaps=overlaps,
            partitioner=variable_partitioner,
            compression=check_compression(compression),
        )
        with shared_cores(topology):
            if topology.task.role == "ps":
                serve(cluster)
                raise SystemExit(0)
            devices = local_devices()
        layout = ServedLayout(devices, name=type(self).__name__)
        self.member = Member(cluster, options=options, layout=layout)
        if isinstance(cluster_resolver, LocalProcesses):
            cluster_resolver.wait_for_dismissed(lambda: self.member.dismissed_workers)
        self.scheduler = Scheduler(self.member, scope=self.scope)
        runs = ServedRuns(self.member)
        layout.runs, layout.read_rows, layout.call_wrapper = runs, runs.read_rows, RowCalls(layout)
        super().__init__(layout, topology=topology, input_context=self.member.context)

    @property
    def cluster_resolver(self) -> Topology:
        """The topology, under its name in ``tf.distribute``."""
        return self.topology

    def describe(self) -> str:
        """Describes the cluster and the devices of this process."""
        cluster = self.topology.cluster
        workers, servers = counted(len(cluster["worker"]), "worker"), counted(len(cluster["ps"]), "parameter server")
        return f"ParameterServerStrategy over {workers} and {servers}, here {describe_devices(self.devices)}"


def _check_seconds(name: str, seconds: float, *, least: float) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_number or not least <= seconds <= MOST_S:
        raise InvalidInputError(f"{name} of the strategy", received=seconds, allowed=f"{least:g} to {MOST_S:g} seconds")


def _options(
    cluster: Cluster,
    *,
    max_staleness: int | None,
    num_backup_workers: int | None,
    overlaps: bool | None,
    partitioner: Partitioner | None,
    compression: Compression | None,
) -> Options:
    if max_staleness is not None and num_backup_workers is not None:
        raise InvalidInputError(
            "steps are either bounded in their staleness or synchronous",
            received=f"max_staleness {max_staleness} and num_backup_workers {num_backup_workers}",
            allowed="one of the two, or none",
        )
    for name, value in (("max_staleness", max_staleness), ("num_backup_workers", num_backup_workers)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInputError(name, received=value, allowed="0 or more")
    if num_backup_workers is not None and num_backup_workers >= cluster.num_workers:
        raise InvalidInputError(
            "num_backup_workers must be below the number of workers",
            received=f"{num_backup_workers} of {cluster.num_workers}",
            allowed=f"0 to {cluster.num_workers - 1}",
        )
    if overlaps is not None and not isinstance(overlaps, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInputError("overlaps", received=overlaps, allowed="True, False or None")
    must_wait = num_backup_workers is not None or max_staleness == 0
    if overlaps and must_wait:
        raise InvalidInputError(
            "a step cannot begin before the last one's push has arrived",
            received="overlaps=True with num_backup_workers, or with max_staleness=0",
            allowed="overlaps=False",
        )
    return Options(
        mode=Mode.ASYNCHRONOUS if num_backup_workers is None else Mode.SYNCHRONOUS,
        max_lead=max_staleness,
        num_backups=num_backup_workers or 0,
        overlaps=not must_wait and cluster.num_workers <= MOST_OVERLAPPING if overlaps is None else overlaps,
        partitioner=partitioner,
        compression=compression,
    )
