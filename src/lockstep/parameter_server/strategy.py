"""The strategy whose parameters lie on servers of their own, and whose workers train without waiting for each other."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
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
"""With how many workers steps overlap by default: it doubles how stale they are, and with more costs accuracy."""


@final
class ParameterServerStrategy(AbstractStrategy):
    """Parameters partitioned over servers, which update them as workers' gradients arrive.

    The same script runs in every process of the job, which finds its role in the topology (``TF_CONFIG``):

    - a parameter server (``ps``) keeps its part of the parameters with the optimizer's state for it. It serves within
      this call until the coordinator's script has ended, and then ends the process with `SystemExit`;
    - a worker builds the same model, and takes the coordinator's steps from the first ``fit`` (or the first call of a
      `ClusterCoordinator`) on. What follows there is not for it: the process ends with `SystemExit`;
    - the coordinator (``chief`` or ``master``) runs the whole script: ``fit``'s loop, callbacks, validation.

    A step is a worker's: it pulls the parameters, computes gradients of its own batch, and pushes them. By default
    nobody waits for anybody. Where a worker is lost the others go on, and its step is taken by another.

    Args:
        cluster_resolver: who is in the job: a topology, or a resolver; what the environment says by default.
        variable_partitioner: cuts large variables into shards for several servers; None places whole ones.
        max_staleness: how many steps a worker may be ahead of the slowest one before it waits; None for any number.
        num_backup_workers: makes steps synchronous: each is the mean over rows of what all workers but so many pushed,
            0 for all. What the slowest of them push too late is dropped.
        overlaps: whether a worker begins a step with the parameters that it has while its last push is on the way,
            which makes them one step older, and all workers' steps about twice as stale. By default where nobody has
            to wait, with one worker or two.
        compression: makes the pushes of dense gradients smaller, for links that are slower than the workers:
            "bfloat16" halves them, ``TopK(share)`` has the largest alone travel. What is left is added to the worker's
            next gradients, and lost with the worker.
        silence_s: after how many seconds without a word from a process it counts as lost.
        start_within_s: how many seconds to wait for the cluster's processes to be there.

    Attributes:
        member: this process in the cluster.
        scheduler: schedules the closures of a `ClusterCoordinator`.

    Raises:
        ConfigError: the cluster has no chief, worker or parameter server; or its processes are to talk between machines
            and ``LOCKSTEP_CLUSTER_TOKEN`` is not set.
        InvalidInputError: an option is out of its range, or contradicts another one.
        UnavailableError: (in a parameter server) nobody came, or everybody went without a word.
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
        layout.runs, layout.read_rows, layout.around_calls = runs, runs.read_rows, RowCalls(layout)
        super().__init__(layout, topology=topology, input_context=self.member.context)

    @property
    def cluster_resolver(self) -> Topology:
        """The topology, by the name of ``tf.distribute``."""
        return self.topology

    def describe(self) -> str:
        """Says who is in the cluster."""
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
            "num_backup_workers leaves no worker whose gradients count",
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
