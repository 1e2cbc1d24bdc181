"""What a runner is told, and what it reports: the messages between the service, the engine and a replica's runner.

They travel as JSON through pipes and the engine's calls, so both ends may be different processes, users and machines.
An engine hands a `ReplicaOrder` on unopened but for what it must know: the replica's name and its resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, final

from pydantic import TypeAdapter

from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.jobs.running.restarts import RestartPolicy

SPOOL_VARIABLE: Final = "LOCKSTEP_SPOOL"
"""Marks every process of a replica, its runner included, with the replica's spool folder."""

TAIL_LINES: Final = 20
"""How many of a program's last lines a `ProgramEnd` carries."""


@final
@dataclass(frozen=True, kw_only=True)
class ContainerOrder:
    """The container that a replica's program runs in.

    Attributes:
        image: the image's name.
        entry_point: replaces the image's; the image's own where it is empty.
        runs_code: whether what it runs lies in the order's packages; their folder is then its working folder.
        readable: paths of the node that the program may read, where they are there.
        project_folder: the project's folder of a local bucket, out of which no link leads the container; None where
            there is none.
        cpus: how many processors' time it may have; no limit where it is None.
        memory_bytes: how much memory it may have; no limit where it is None.
        images_folder: where the node keeps what it knows of the images that it has fetched.
    """

    image: str
    entry_point: tuple[str, ...] = ()
    runs_code: bool = False
    readable: tuple[str, ...] = ()
    project_folder: str | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    images_folder: str


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaOrder:
    """One replica's program, as the service wants it run.

    Attributes:
        name: the replica's name within the job, such as ``worker-replica-1``.
        role: the role in ``TF_CONFIG``: chief, master, worker, ps or evaluator.
        index: position within the role.
        job: the job's name.
        attempt: which start of the gang this is, from 0.
        command: the program: either ``["-m", module]`` with arguments, for the runner's own Python, or a whole command
            line that starts with something else. In a container: the arguments of its entry point.
        container: the container that the program runs in; None where it is a process of the node.
        cluster: addresses by role for ``TF_CONFIG``; the engine fills them in once the gang is placed. Empty for a gang
            of one.
        environment: variables for the program beside those that the runner derives.
        secrets: values of further variables, which nothing may show; the service fills them in when it places the
            gang, and records the order without them.
        packages: bucket URLs of source archives to unpack and put on the module path.
        python_environment: what the program's Python environment is built from.
        environment_cache: a folder on the node for Python environments; empty where none is to be built.
        user: id of the user that the program runs as, and of its group; None for the runner's own.
        spool: a folder on the node for working files and for logs not yet in the bucket.
        log_url: bucket URL under which this replica's log segments appear.
        metrics_url: bucket URL under which this replica's series of metrics appear; None where they are not kept.
        model_dir: bucket URL for the trained model.
        checkpoint_dir: bucket URL for checkpoints.
        tensorboard_dir: bucket URL for TensorBoard's event files.
        accelerator_type: the contract's name of the accelerator, None without one.
        accelerator_count: how many.
        vcpus: how many its machine type has: an engine whose nodes are not this service's alone keeps them for it.
        memory_mib: its machine type's memory; as above.
        simulated: whether virtual CPU devices stand in for the accelerators.
        node: the node that the scheduler chose, by its name among the engine's.
        machine: the machine that this node is now, where nodes come and go; "" where they do not.
        grace_s: how long the program has between SIGTERM and SIGKILL when it is stopped.
        web_access: whether shells may be opened beside the program.
        stuck_after_s: how long it may be silent, without a heartbeat or a line of output; None for ever.
        earlier: how its launch before ended, where this one goes on from it; the gang supervisor fills it in.
    """

    name: str
    role: str
    index: int
    job: str
    attempt: int = 0
    command: tuple[str, ...]
    container: ContainerOrder | None = None
    cluster: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    packages: tuple[str, ...] = ()
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
    earlier: ReplicaStatus | None = None


@final
class ReplicaPhase(StrEnum):
    """How far a replica is."""

    PLACED = "placed"
    """The engine has reserved its node; its runner is being started."""
    SETUP = "setup"
    """Its runner fetches the code, and builds its Python environment."""
    RUNNING = "running"
    """Its program runs."""
    ENDED = "ended"
    """Its program, or the attempt to start it, is over."""


@final
class Fault(StrEnum):
    """Where the cause of a replica's end lies."""

    PROGRAM = "program"
    """In the program, or in what it was told to run."""
    MEMORY = "memory"
    """The system killed it for want of memory."""
    MACHINE = "machine"
    """In its runner, or in the bucket of its code or log."""
    STUCK = "stuck"
    """It gave no sign for longer than it may."""
    NODE = "node"
    """Its node is gone, or what started it there."""


@final
@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """How a replica's program ended.

    Attributes:
        exit_code: the program's exit code; None when a signal or something before the start ended it.
        signal: the signal's name, such as ``SIGKILL``, where one ended it.
        stopped: whether the runner ended it on request.
        problem: why the program never started, was lost or stuck: one line; None when it ran and ended by itself.
        tail: the program's last lines of output.
        num_log_entries: how many entries of its log the replica wrote in all; None where nobody can know.
        fault: where the cause lies, if it did not end well.
        memory_limit_bytes: how much memory it might have had.
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
        """Says it in a few words: "exit code 3", "killed by SIGKILL"."""
        if self.problem is not None:
            return self.problem
        if self.fault is Fault.MEMORY:
            return "killed by the system for want of memory"
        if self.signal is not None:
            return f"killed by {self.signal}"
        return f"exit code {self.exit_code}"


@final
@dataclass(frozen=True, kw_only=True)
class ProgramUsage:
    """What a replica's program used, children included.

    Attributes:
        cpu_s: processor seconds, user and system.
        wall_s: seconds since the program's start.
        peak_memory_bytes: the largest resident size seen.
    """

    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_memory_bytes: int = 0

    def plus(self, other: ProgramUsage) -> ProgramUsage:
        """Returns what this and a later program of the same replica used."""
        return ProgramUsage(
            cpu_s=self.cpu_s + other.cpu_s,
            wall_s=self.wall_s + other.wall_s,
            peak_memory_bytes=max(self.peak_memory_bytes, other.peak_memory_bytes),
        )


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaRestart:
    """That a replica was launched again while the rest of its gang ran on.

    Attributes:
        number: which of its job's restarts it is, from 1.
        time_s: when it was decided, seconds since 1970 UTC.
        reason: why its launch before ended, as `lockstep.jobs.running.ends.EndReason` writes it.
    """

    number: int
    time_s: float
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaStatus:
    """All that is known of one replica, over all of its launches.

    Attributes:
        name: the replica's name.
        phase: how far it is.
        host: name of the node it runs on.
        pid: process id of its program on that node, None before the start.
        placed_time_s: when the engine placed it, seconds since 1970 UTC.
        started_time_s: when its program first started.
        ended_time_s: when it ended.
        seen_time_s: when its runner last said how it is, by its node's clock; None before it did.
        usage: what its programs have used, one after the other.
        progress: how far its program says it is; None if it never did.
        metrics: what was last measured of it, by the names of `lockstep.jobs.running.metrics`.
        end: how it ended, None before.
        restarts: one for each time that it was launched again.
    """

    name: str
    phase: ReplicaPhase
    host: str = ""
    pid: int | None = None
    placed_time_s: float | None = None
    started_time_s: float | None = None
    ended_time_s: float | None = None
    seen_time_s: float | None = None
    usage: ProgramUsage = ProgramUsage()
    progress: Progress | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    end: ProgramEnd | None = None
    restarts: tuple[ReplicaRestart, ...] = ()


def launched(order: ReplicaOrder, *, now_s: float) -> ReplicaStatus:
    """Returns the status with which a launch of a replica begins.

    Args:
        order: the replica's order.
        now_s: seconds since 1970 UTC.
    """
    if order.earlier is None:
        return ReplicaStatus(name=order.name, phase=ReplicaPhase.PLACED, placed_time_s=now_s)
    return replace(order.earlier, phase=ReplicaPhase.PLACED, pid=None, ended_time_s=None, metrics={}, end=None)


def address_of(order: ReplicaOrder) -> str:
    """Returns the address at which the others of its gang reach a replica; "" where none of them does."""
    addresses = order.cluster.get(order.role, ())
    return addresses[order.index] if order.index < len(addresses) else ""


def with_address(order: ReplicaOrder, address: str) -> dict[str, tuple[str, ...]]:
    """Returns the addresses of a replica's gang by role, with another one for the replica.

    Args:
        order: the replica's order; it has an address.
        address: "host:port".
    """
    addresses = list(order.cluster[order.role])
    addresses[order.index] = address
    return {**order.cluster, order.role: tuple(addresses)}


@final
@dataclass(frozen=True, kw_only=True)
class GangOrder:
    """All replicas of a job's start: placed together or not at all.

    Attributes:
        gang_id: names this start of this job on the engine; placing the same one twice is placing it once.
        replicas: the replicas; the first one leads: its end is the job's end.
        owner: whose gang it is: tells the jobs of one database from those of another on the same engine.
        generation: grows with each service that takes its owner's controller over. An engine that was told of a later
            one starts nothing of this gang: who ordered it had been replaced, and did not know.
        restart_policy: when a replica that can be is launched again alone; None for never.
        num_restarts: how often the job was started again already, all of it or a replica alone.
        place_within_s: how long the engine may look for room before it gives up.
        move_within_s: how long a replica whose machine is gone may wait for another one while nobody does its work;
            None where it gets none, and the gang ends.
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
    """How far a gang is."""

    PLACING = "placing"
    """The engine has not yet room for all of it."""
    STARTING = "starting"
    """Placed; not every program runs yet."""
    RUNNING = "running"
    """Every program has started, and not all have ended."""
    ENDED = "ended"
    """All is over."""


@final
class GangOutcome(StrEnum):
    """How a gang ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


@final
@dataclass(frozen=True, kw_only=True)
class GangEnd:
    """How a gang ended, and why.

    Attributes:
        outcome: in one word.
        reason: in one line: which replica, and what happened to it. Empty for a success.
        culprit: the replica that caused a failure, None otherwise.
    """

    outcome: GangOutcome
    reason: str = ""
    culprit: str | None = None


STALE_ORDER: Final = GangEnd(
    outcome=GangOutcome.STOPPED, reason="ordered by a service that another one had replaced; nothing was started"
)
"""How a gang ends that was ordered with an earlier generation than the engine works for."""

NO_ROOM: Final = GangEnd(outcome=GangOutcome.STOPPED, reason="its room was taken meanwhile; nothing was started")
"""How a gang ends that found no room within its time, though there was some when it was ordered."""


@final
@dataclass(frozen=True, kw_only=True)
class GangStatus:
    """All that the engine knows of a gang.

    Attributes:
        gang_id: as ordered.
        phase: how far it is.
        replicas: in the order of the gang's order.
        end: how it ended; None before.
        displaced: the machines that replicas have lost which wait for another one, by the replicas' names.
        has_leftovers: whether, as it ended, the engine held logs or metrics of it that a bucket had refused.
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
