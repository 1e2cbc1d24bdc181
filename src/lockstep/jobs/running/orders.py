"""Defines the messages between the service, the engine and a replica's runner: orders, and the statuses they report.

The messages travel as JSON through pipes and the engine's calls, so the two sides may be different processes, users and
machines. An engine passes a `ReplicaOrder` on and reads only what it needs: the replica's name and resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, final

from pydantic import TypeAdapter

from lockstep.heartbeat import ProfileReport
from lockstep.jobs.running.order_parts import ContainerOrder, FileOrder, ServerOrder
from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.jobs.running.restarts import RestartPolicy

SPOOL_VARIABLE: Final = "LOCKSTEP_SPOOL"
"""The variable that marks every process of a replica, including its runner, with the replica's spool folder."""

BUSY_SECONDS: Final = "busySeconds"
"""The name by which a server reports for how long it has had at least one request since it was launched, in seconds."""

TAIL_LINES: Final = 20
"""The number of a program's last lines that a `ProgramEnd` contains."""


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaOrder:
    """The order for one replica: the program to run, and how.

    Attributes:
        name: the replica's name within the job, such as ``worker-replica-1``.
        role: the role in ``TF_CONFIG``: chief, master, worker, ps or evaluator.
        index: the position within the role, from 0.
        job: the name of the job.
        attempt: the number of the attempt, from 0.
        trial: the number of the trial, for ``TF_CONFIG``; "" if the job is no trial of a search.
        command: the program: either ``["-m", module]`` with arguments, for the runner's own Python, or a whole command
            line that starts with something else. In a container, the arguments of its entry point.
        container: the container that the program runs in; None if the program is a process of the node.
        cluster: the addresses by role, for ``TF_CONFIG``. The engine fills them in when the gang is placed. Empty for a
            gang of one replica that is no server.
        environment: environment variables for the program, in addition to those that the runner sets.
        secrets: the values of further environment variables, which must never be shown. The service fills them in when
            it places the gang, and records the order without them.
        packages: the bucket URLs of the source archives to unpack and put on the module path.
        files: the files that the program needs in its working folder, such as the model to predict with. A server gets
            no credentials for buckets.
        python_environment: the source of the program's Python environment.
        environment_cache: the node's folder for Python environments; empty if none is to be built.
        user: the id of the user and of the group that the program runs as, or the gateway to a server in a container;
            None for the runner's own user.
        spool: the node's folder for working files, and for logs that are not in the bucket yet.
        log_url: the bucket URL for the segments of the replica's log.
        metrics_url: the bucket URL for the series of the replica's metrics; None if they are not stored.
        model_dir: the bucket URL for the trained model.
        checkpoint_dir: the bucket URL for checkpoints.
        tensorboard_dir: the bucket URL for TensorBoard's event files.
        accelerator_type: the contract's name of the accelerator; None if there is none.
        accelerator_count: the number of accelerators.
        vcpus: the number of vCPUs of the machine type. An engine that shares its nodes with others reserves them.
        memory_mib: the memory of the machine type, in MiB; reserved in the same way.
        simulated: whether virtual CPU devices stand in for the accelerators.
        node: the node that the scheduler chose, by the engine's name for it.
        machine: the machine that currently is this node, if nodes come and go; "" if they do not.
        grace_s: the time between SIGTERM and SIGKILL when the program is stopped, in seconds.
        web_access: whether shells may be opened beside the program.
        stuck_after_s: the time without a heartbeat or a line of output after which the program is stuck, in seconds;
            None for no limit.
        server: how the program is watched if it is a server; None if it is not.
        earlier: the status at the end of the previous launch, if this launch continues from it; the gang supervisor
            fills it in.
    """

    name: str
    role: str
    index: int
    job: str
    attempt: int = 0
    trial: str = ""
    command: tuple[str, ...]
    container: ContainerOrder | None = None
    cluster: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    packages: tuple[str, ...] = ()
    files: tuple[FileOrder, ...] = ()
    python_environment: PythonEnvironment = field(default_factory=PythonEnvironment)
    environment_cache: str = ""
    user: int | None = None
    spool: str
    log_url: str
    metrics_url: str | None = None
    model_dir: str | None = None
    checkpoint_dir: str | None = None
    tensorboard_dir: str | None = None
    accelerator_type: str | None = None
    accelerator_count: int = 0
    vcpus: int = 0
    memory_mib: int = 0
    simulated: bool = False
    node: str = ""
    machine: str = ""
    grace_s: float = 10.0
    web_access: bool = False
    stuck_after_s: float | None = None
    server: ServerOrder | None = None
    earlier: ReplicaStatus | None = None


@final
class ReplicaPhase(StrEnum):
    """The phase of a replica."""

    PLACED = "placed"
    """The engine has reserved the replica's node, and its runner is starting."""
    SETUP = "setup"
    """The runner is downloading the code and building the Python environment."""
    RUNNING = "running"
    """The program is running."""
    ENDED = "ended"
    """The program has ended, or could not be started."""


@final
class Fault(StrEnum):
    """Where the cause of a replica's end lies."""

    PROGRAM = "program"
    """In the program, or in what it was ordered to run."""
    MEMORY = "memory"
    """The system killed the program because it was out of memory."""
    MACHINE = "machine"
    """In the runner, or in the bucket of the code or the log."""
    STUCK = "stuck"
    """The program gave no sign for longer than its job allows."""
    NODE = "node"
    """The replica's node was lost, or the launcher on it."""


@final
@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """How a replica's program ended.

    Attributes:
        exit_code: the program's exit code; None if a signal ended it, or if something failed before it started.
        signal: the name of the signal that ended it, such as ``SIGKILL``; None if none did.
        stopped: whether the runner stopped the program on request.
        problem: one line that says why the program never started, was lost or was stuck; None if it ran and ended by
            itself.
        tail: the program's last lines of output.
        num_log_entries: the total number of entries in the replica's log; None if nobody can know.
        fault: where the cause lies, if the program did not end successfully.
        memory_limit_bytes: the program's memory limit, in bytes.
    """

    exit_code: int | None = None
    signal: str | None = None
    stopped: bool = False
    problem: str | None = None
    tail: tuple[str, ...] = ()
    num_log_entries: int | None = None
    fault: Fault = Fault.PROGRAM
    memory_limit_bytes: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.exit_code == 0 and self.problem is None and not self.stopped

    def describe(self) -> str:
        """Describes the end, as in "exit code 3" or "killed by SIGKILL"."""
        if self.problem is not None:
            return self.problem
        if self.fault is Fault.MEMORY:
            return "killed by the system: out of memory"
        if self.signal is not None:
            return f"killed by {self.signal}"
        return f"exit code {self.exit_code}"


@final
@dataclass(frozen=True, kw_only=True)
class ProgramUsage:
    """The resources that a replica's program used, including its child processes.

    Attributes:
        cpu_s: the processor time, user and system, in seconds.
        wall_s: the time since the program's start, in seconds.
        peak_memory_bytes: the largest resident size that was measured, in bytes.
    """

    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_memory_bytes: int = 0

    def plus(self, other: ProgramUsage) -> ProgramUsage:
        """Returns the combined usage of this program and a later one of the same replica."""
        return ProgramUsage(
            cpu_s=self.cpu_s + other.cpu_s,
            wall_s=self.wall_s + other.wall_s,
            peak_memory_bytes=max(self.peak_memory_bytes, other.peak_memory_bytes),
        )


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaRestart:
    """Another launch of one replica, while the rest of its gang continued to run.

    Attributes:
        number: the restart's number among the job's restarts, from 1.
        time_s: the time of the decision, in seconds since 1970 UTC.
        reason: why the previous launch ended, in the form of `lockstep.jobs.running.ends.EndReason`.
    """

    number: int
    time_s: float
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaStatus:
    """The known state of one replica, over all of its launches.

    Attributes:
        name: the replica's name.
        phase: the replica's phase.
        host: the name of the node that it runs on.
        address: the address that others connect to, as ``host:port``; "" if nobody does.
        pid: the process id of its program on that node; None before the start.
        image_id: the id of the image that its program runs in; "" if it runs in none, or before the start.
        placed_time_s: the time when the engine placed it, in seconds since 1970 UTC.
        started_time_s: the time when its program first started.
        ready_time_s: the time of a server's first heartbeat in the current launch; None before it, and for other
            programs.
        ended_time_s: the time when it ended.
        seen_time_s: the time of its runner's last report, by the clock of its node; None before the first one.
        usage: the resources that its programs used, over all launches.
        progress: the progress that its program reported; None if it never did. A server begins anew with each launch.
        profile: the profile that was requested last in the current launch; None if none was.
        earlier_busy_s: for how long a server had requests in its earlier launches, in seconds.
        metrics: the last measured values, by the names of `lockstep.jobs.running.metrics`.
        end: how it ended; None before the end.
        restarts: one entry for each launch after the first.
    """

    name: str
    phase: ReplicaPhase
    host: str = ""
    address: str = ""
    pid: int | None = None
    image_id: str = ""
    placed_time_s: float | None = None
    started_time_s: float | None = None
    ready_time_s: float | None = None
    ended_time_s: float | None = None
    seen_time_s: float | None = None
    usage: ProgramUsage = ProgramUsage()
    progress: Progress | None = None
    profile: ProfileReport | None = None
    earlier_busy_s: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    end: ProgramEnd | None = None
    restarts: tuple[ReplicaRestart, ...] = ()

    @property
    def busy_s(self) -> float:
        """For how long a server had at least one request, over all of its launches, in seconds."""
        reported_s = 0.0 if self.progress is None else self.progress.metrics.get(BUSY_SECONDS, 0.0)
        return self.earlier_busy_s + max(0.0, reported_s)


def initial_status(order: ReplicaOrder, *, now_s: float) -> ReplicaStatus:
    """Returns the status at the start of a launch.

    Args:
        order: the order of the replica.
        now_s: the current time, in seconds since 1970 UTC.
    """
    address = address_of(order)
    if order.earlier is None:
        return ReplicaStatus(name=order.name, phase=ReplicaPhase.PLACED, address=address, placed_time_s=now_s)
    return replace(
        order.earlier,
        phase=ReplicaPhase.PLACED,
        address=address,
        pid=None,
        ready_time_s=None,
        ended_time_s=None,
        progress=order.earlier.progress if order.server is None else None,
        profile=None,
        earlier_busy_s=order.earlier.busy_s,
        metrics={},
        end=None,
    )


def address_of(order: ReplicaOrder) -> str:
    """Returns the address at which the other replicas of its gang reach a replica; "" if none of them does."""
    addresses = order.cluster.get(order.role, ())
    return addresses[order.index] if order.index < len(addresses) else ""


def with_address(order: ReplicaOrder, address: str) -> dict[str, tuple[str, ...]]:
    """Returns the addresses of a replica's gang by role, with the replica's own address replaced.

    Args:
        order: the order of the replica, which has an address.
        address: the new address, as "host:port".
    """
    addresses = list(order.cluster[order.role])
    addresses[order.index] = address
    return {**order.cluster, order.role: tuple(addresses)}


@final
@dataclass(frozen=True, kw_only=True)
class GangOrder:
    """The order for one attempt of a job: all replicas of the gang, which is placed as a whole or not at all.

    Attributes:
        gang_id: the id of this attempt on the engine; placing the same id again has no further effect.
        replicas: the replicas; the first one leads, and its end is the job's end.
        owner: the owner of the gang, which distinguishes the jobs of several databases on one engine.
        generation: the term of the service that sent the order; it grows whenever another service takes over the
            owner's controller. An engine that knows a later generation starts nothing of this gang, because the service
            that ordered it had been replaced without knowing it.
        restart_policy: decides when a single replica is launched again alone; None for never.
        num_restarts: the number of earlier restarts of the job, both of the whole gang and of single replicas.
        place_within_s: the time after which the engine stops looking for room, in seconds.
        move_within_s: the maximum time that replicas whose machines are gone wait for other machines while no worker
            runs, in seconds; None if they get no other machine, and the gang ends.
    """

    gang_id: str
    replicas: tuple[ReplicaOrder, ...]
    owner: str = ""
    generation: int = 0
    restart_policy: RestartPolicy | None = None
    num_restarts: int = 0
    place_within_s: float = 60.0
    move_within_s: float | None = None


@final
class GangPhase(StrEnum):
    """The phase of a gang."""

    PLACING = "placing"
    """The engine does not have room for the whole gang yet."""
    STARTING = "starting"
    """The gang is placed, but not every program has started yet."""
    RUNNING = "running"
    """Every program has started, and not all have ended."""
    ENDED = "ended"
    """All replicas have ended."""


@final
class GangOutcome(StrEnum):
    """The outcome of a gang."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


@final
@dataclass(frozen=True, kw_only=True)
class GangEnd:
    """How a gang ended, and why.

    Attributes:
        outcome: the outcome.
        reason: one line that says what happened to which replica; empty for a success.
        culprit: the name of the replica that caused a failure; None without a failure.
    """

    outcome: GangOutcome
    reason: str = ""
    culprit: str | None = None


STALE_ORDER: Final = GangEnd(
    outcome=GangOutcome.STOPPED, reason="ordered by a service that had been replaced; nothing was started"
)
"""The end of a gang that was ordered with an earlier generation than the engine knows."""

NO_ROOM: Final = GangEnd(
    outcome=GangOutcome.STOPPED, reason="the room was taken by others in the meantime; nothing was started"
)
"""The end of a gang that found no room within its time, although there was room when it was ordered."""


@final
@dataclass(frozen=True, kw_only=True)
class GangStatus:
    """The engine's knowledge of a gang.

    Attributes:
        gang_id: the id of the gang, as ordered.
        phase: the phase of the gang.
        replicas: the statuses of the replicas, in the order of the gang's order.
        end: how the gang ended; None before the end.
        displaced: the lost machines of the replicas that wait for another machine, by the name of the replica.
        has_leftovers: whether the engine, when the gang ended, still held logs or metrics that a bucket had rejected.
    """

    gang_id: str
    phase: GangPhase
    replicas: tuple[ReplicaStatus, ...] = ()
    end: GangEnd | None = None
    displaced: Mapping[str, str] = field(default_factory=dict[str, str])
    has_leftovers: bool = False


ORDER: Final = TypeAdapter(ReplicaOrder)
"""Reads and writes a `ReplicaOrder` as JSON."""

STATUS: Final = TypeAdapter(ReplicaStatus)
"""Reads and writes a `ReplicaStatus` as JSON."""

GANG_ORDER: Final = TypeAdapter(GangOrder)
"""Reads and writes a `GangOrder` as JSON."""

GANG_STATUS: Final = TypeAdapter(GangStatus)
"""Reads and writes a `GangStatus` as JSON."""
