"""The queue: keeps the scheduler up to date with the database, and decides which jobs start."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Final, final

from lockstep.clusters import AbstractCluster
from lockstep.errors import ConfigError
from lockstep.jobs.input.gangs import Gang, Replica, describe_machine, resolve
from lockstep.jobs.input.spec import AcceleratorType, TrainingInput
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import StockOut
from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.jobs.scheduling import (
    Demand,
    ForeignUsage,
    NodeSpec,
    QueuedJob,
    Quota,
    Scheduler,
    Waiting,
    describe_foreign_usage,
)
from lockstep.service.billing.spending import Spending
from lockstep.service.control.job_inputs import order_of, training_input_of
from lockstep.service.control.orders import is_simulated
from lockstep.service.control.placed_jobs import PlacedJobs
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.control.queue_records import QueuePage, QueuePosition, Unreadable
from lockstep.service.settings import Settings
from lockstep.service.store import DATABASE_FAULTS, GangPart, JobKind, JobRecord, JobStore, LeaseLostError

LOGGER: Final = logging.getLogger(__name__)

JOB_SLOTS: Final = "job slots"
"""A resource of the first node of an engine whose machine types reserve nothing. Each job takes one."""

SERVER_SLOTS: Final = "server slots"
"""The same for prediction servers, which do not wait for jobs to end."""
MAX_SERVERS: Final = 100
"""The maximum number of prediction servers on an engine whose machine types reserve nothing."""

STOCK_OUT: Final = "stock-out:"
"""The prefix of the uids by which the scheduler treats the nodes of a stock-out as in use."""

OTHERS: Final = "others:"
"""The prefix of the uids by which the scheduler knows what others use of a node."""

PREPARING_S: Final = 600.0
"""How long a gang is assumed to take from its start to RUNNING, for promises to later jobs."""

FOR_EVER_S: Final = 1e9
"""How long a prediction server is assumed to hold its machine: about 30 years."""

ENDING_S: Final = 60.0
"""How long a job is assumed to hold its machines after its ``maxRunningTime``, for its grace time and its last log."""

_ACCELERATORS: Final = tuple(kind.value for kind in AcceleratorType)
_OTHERS: Final = (JOB_SLOTS, SERVER_SLOTS, "vcpus", "memory_mib")


@final
class Schedule:
    """Decides which queued jobs start. Thread-safe: requests read it while the controller decides.

    Its whole state is in the database or follows from it, so a service that restarts reads it from there.

    Args:
        store: the store of jobs.
        cluster: the engine, on whose nodes the jobs run.
        catalogue: the catalogue of machines.
        settings: the service's settings.
        provisioner: the provisioner, which has the nodes; None if the cluster has a fixed set of nodes.
        spending: what projects have spent; None if no project has a limit of money.
        clock: the clock, in seconds since 1970 UTC.

    Attributes:
        spending: what projects have spent; None if no project has a limit of money.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        cluster: AbstractCluster,
        catalogue: Catalogue,
        settings: Settings,
        provisioner: Provisioner | None = None,
        spending: Spending | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._placed = PlacedJobs(store)
        self._cluster = cluster
        self._catalogue = catalogue
        self._settings = settings
        self._provisioner = provisioner
        self.spending = spending
        self._stock_outs: dict[str, StockOut] = {}
        self._foreign_usage = ForeignUsage()
        self._others: dict[str, dict[str, int]] = {}
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the scheduler. Requests wait for it, so nothing long is done with it."""
        self._update_lock = threading.Lock()
        """Guards an update, from reading the jobs to the end: another one in between would be undone."""
        self._nodes: dict[str, NodeSpec] = {}
        self._slots = {JOB_SLOTS: settings.max_running_jobs, SERVER_SLOTS: MAX_SERVERS}
        # A project that may be held needs a queue of its own, even without a quota.
        held = {} if spending is None else dict.fromkeys(spending.projects, Quota())
        quotas = {**held, **settings.quotas}
        self._scheduler = Scheduler(accelerators=_ACCELERATORS, others=_OTHERS, quotas=quotas)

    def decide(self) -> tuple[list[tuple[JobRecord, tuple[str, ...]]], list[Unreadable]]:
        """Reads nodes and jobs, and decides which jobs start now.

        Returns:
            The jobs that start, in order, each with the nodes of its replicas; and the queued jobs that cannot be read,
            which the caller ends.

        Raises:
            EngineError: If the engine does not answer.
        """
        self._update_spending(acts=True)
        with self._updated() as unreadable:
            starts = self._scheduler.decide(now_s=self._clock()).starts
            jobs = {job.uid: job for job in self._store.get_by_uids([start.job.uid for start in starts])}
            return [(jobs[start.job.uid], start.nodes) for start in starts], unreadable

    def refresh(self) -> None:
        """Reads nodes and jobs without a decision, for a service that answers requests while another one decides.

        It reads only some of the states, and may miss that a job moved to other nodes. A service that begins to decide
        therefore creates a new `Schedule`.

        Raises:
            EngineError: If the engine does not answer.
        """
        self._update_spending(acts=False)
        with self._updated():
            pass

    def explain(self, job: JobRecord) -> Waiting:
        """Returns the position of a queued job, and what it waits for."""
        with self._lock:
            if not self._nodes:
                return Waiting(position=self._scheduler.num_queued + 1, reason="the engine has not answered yet")
            if job.uid in self._scheduler.running:
                return Waiting(position=1, reason="it starts now")
            if job.uid not in self._scheduler.queued:  # it was submitted after the last pass
                try:
                    self._add(job)
                except ConfigError as error:
                    return Waiting(position=self._scheduler.num_queued + 1, reason=f"it cannot be read: {error}")
            waits = self._scheduler.explain(job.uid)
            foreign = ""
            if self._others:
                totals = {node.name: node.resources for node in self._nodes.values()}
                foreign = describe_foreign_usage(self._others, totals=totals)
            beside = [text for text in (self._describe_stock_outs(job), foreign) if text]
        return replace(waits, reason="; ".join([waits.reason, *beside]))

    def preview(self, job: JobRecord) -> QueuePosition:
        """Returns the position that a job that is not recorded would have in the queue.

        The job is tried on a copy of the scheduler, which is discarded. The copy takes long if thousands of jobs wait.

        Raises:
            ConfigError: If the job could never run.
            EngineError: If the engine does not answer.
        """
        with self._updated():
            tried = copy.deepcopy(self._scheduler)
            queued = self._queued_job(job)
        tried.enqueue(queued)
        starts = tried.decide(now_s=self._clock()).starts
        return QueuePosition(
            needs=tuple(f"{demand.count} x {demand.name}" for demand in queued.demands),
            waits=None if job.uid in (start.job.uid for start in starts) else tried.explain(job.uid),
        )

    def look(self, *, first: int, limit: int) -> QueuePage:
        """Returns a page of the queue, from a position on that counts from 0, and what projects use."""
        with self._lock:
            jobs, uses = self._scheduler.look(first=first, limit=limit)
            num_queued = self._scheduler.num_queued
        held = {} if self.spending is None else dict(self.spending.held)
        own = {project: use for project, use in uses.items() if project}  # without what others use, and stock-outs
        return QueuePage(uids=tuple(job.uid for job in jobs), num_queued=num_queued, uses=own, held=held)

    def why_unplaceable(self, *, project: str, gang: Gang, region: str | None) -> str | None:
        """Returns why a job could never run, even if it were alone; None if it could.

        Args:
            project: the project of the job.
            gang: the job's replicas.
            region: the region that the replicas must run in; None for any.

        Raises:
            EngineError: If the engine does not answer.
        """
        refused = None if self.spending is None else self.spending.refuses(project)
        if refused is not None:
            return refused
        with self._lock:
            self._update_nodes()
            no_node = self._why_no_node(gang, region=region)
            if no_node is not None:
                return no_node
            demands = self._demands(gang, region=region)
            job = QueuedJob(
                uid="",
                name="",
                project=project,
                create_time_s=0.0,
                demands=demands,
                hold_s=0.0,
                accelerators=_accelerators(gang),
            )
            return self._scheduler.why_unplaceable(job)

    def _update_spending(self, *, acts: bool) -> None:
        if self.spending is None:
            return
        try:
            self.spending.refresh(now_s=self._clock(), acts=acts)
        except (LeaseLostError, *DATABASE_FAULTS):
            raise
        except Exception:  # a bug, which must not affect projects without a budget
            LOGGER.exception("what projects have spent is not known")

    def _update_holds(self) -> None:
        """Holds the jobs of projects that have spent their limit."""
        if self.spending is not None:
            self._scheduler.hold_projects(self.spending.held)

    def _update_nodes(self) -> None:
        """Updates the scheduler's nodes from the engine's or the provisioner's."""
        present = self._cluster.nodes() if self._provisioner is None else self._provisioner.specs()
        found = {node.name: node for node in self._with_slots(present)}
        for name in self._nodes.keys() - found.keys():
            self._scheduler.remove_node(name)
            del self._nodes[name]
        for name, node in found.items():
            if name not in self._nodes:
                self._scheduler.add_node(node)
            elif node != self._nodes[name]:
                self._scheduler.replace_node(node)
            self._nodes[name] = node
        self._update_stock_outs()
        self._update_others()

    def _update_others(self) -> None:
        """Reserves what others use of shared nodes, without an end, because it is not known how long they use it."""
        used = self._cluster.in_use()
        if used is None:
            return
        found = self._foreign_usage.observe(used, own=self._own_use(), now_s=self._clock())
        for name in self._others.keys() | found.keys():
            before, now = self._others.get(name), found.get(name)
            if before == now:
                continue
            uid = f"{OTHERS}{name}"
            if before is not None:
                self._scheduler.end(uid)
            if now is not None and name in self._nodes:
                demand = Demand(name=uid, resources=tuple(now.items()))
                others = QueuedJob(uid=uid, name=uid, project="", create_time_s=0.0, demands=(demand,), hold_s=0.0)
                self._scheduler.add_running(others, nodes=[name], until_s=math.inf)
        self._others = {name: resources for name, resources in found.items() if name in self._nodes}

    def _own_use(self) -> dict[str, Counter[str]]:
        """Returns what the service's jobs use of each node, as far as the engine has placed them."""
        own: dict[str, Counter[str]] = {}
        for job in self._placed.read():
            order = order_of(job)
            if order is None or not job.replicas or job.state in TERMINAL:
                continue
            for replica in order.replicas:
                taken = own.setdefault(replica.node, Counter())
                taken.update(vcpus=replica.vcpus, memory_mib=replica.memory_mib)
                if replica.accelerator_type is not None and not replica.simulated:
                    taken[replica.accelerator_type] += replica.accelerator_count
        return own

    def _update_stock_outs(self) -> None:
        """Reserves the unavailable nodes of stock-outs until they are requested again, so nothing is placed there."""
        found = {} if self._provisioner is None else self._provisioner.stock_outs()
        if found == self._stock_outs:
            return
        for node_type in self._stock_outs:
            self._scheduler.end(f"{STOCK_OUT}{node_type}")
        self._stock_outs = found
        for node_type, stock_out in found.items():
            absent = [node for node in self._nodes.values() if node.node_type == node_type and not node.is_up]
            resources = tuple(absent[0].resources.items()) if absent else ()
            name = f"{STOCK_OUT}{node_type}"
            self._scheduler.add_running(
                QueuedJob(
                    uid=name,
                    name=name,
                    project="",
                    create_time_s=0.0,
                    demands=(Demand(name=node_type, count=len(absent), resources=resources),),
                    hold_s=0.0,
                ),
                nodes=[node.name for node in absent],
                until_s=stock_out.until_s,
            )

    def _describe_stock_outs(self, job: JobRecord) -> str | None:
        """Describes the stock-outs among the node types that a job needs; None if there are none."""
        if self._provisioner is None or not self._stock_outs:
            return None
        asked = training_input_of(job)
        wanted = self._provisioner.node_types(resolve(asked, catalogue=self._catalogue), region=asked.region)
        out = {kind: self._stock_outs[kind] for kinds in wanted for kind in kinds if kind in self._stock_outs}
        return "; ".join(f"{kind} is unavailable: {found.reason}" for kind, found in out.items()) or None

    def _why_no_node(self, gang: Gang, *, region: str | None) -> str | None:
        """Describes the first replica that no node of the cluster could ever hold; None if there is none."""
        if self._provisioner is None:
            return None
        for replica, types in zip(gang, self._provisioner.node_types(gang, region=region), strict=True):
            if not types:
                machine = describe_machine(replica.machine_type, accelerator=replica.accelerator)
                where = "" if region is None else f" in {region}"
                known = ", ".join(
                    kind.describe(self._catalogue) for kind in self._provisioner.definition.node_types.values()
                )
                return f"no node of the cluster holds {machine}{where}: it has {known}"
        return None

    def _with_slots(self, nodes: Sequence[NodeSpec]) -> list[NodeSpec]:
        if _reserves_machines(nodes) or not nodes:
            return list(nodes)
        first, *others = nodes
        return [replace(first, resources={**first.resources, **self._slots}), *others]

    @contextmanager
    def _updated(self) -> Iterator[list[Unreadable]]:
        """Updates the scheduler's nodes and jobs, and holds its lock within the block.

        The jobs are read before the lock is taken: of a long queue, a service that starts reads thousands.

        Yields:
            The queued jobs that cannot be read.
        """
        with self._update_lock:
            uids, jobs = self._read_jobs()
            with self._lock:
                self._update_nodes()
                self._update_holds()
                yield self._update_jobs(uids, jobs)

    def _read_jobs(self) -> tuple[Mapping[JobState, set[str]], list[JobRecord]]:
        """Returns the uids of all active jobs by state, and those jobs that the scheduler has to add."""
        with self._lock:
            queued, running = set(self._scheduler.queued), set(self._scheduler.running)
        uids = self._store.active_uids()
        new = uids.get(JobState.QUEUED, set()) - queued
        new |= {uid for state, own in uids.items() if state is not JobState.QUEUED for uid in own} - running
        return uids, self._store.get_by_uids(new, gang=GangPart.ORDER)

    def _update_jobs(self, uids: Mapping[JobState, set[str]], jobs: Sequence[JobRecord]) -> list[Unreadable]:
        """Updates the scheduler's jobs by what `_read_jobs` has returned.

        Returns:
            The queued jobs that cannot be read.
        """
        queued = uids.get(JobState.QUEUED, set())
        placed = {uid for state, own in uids.items() if state is not JobState.QUEUED for uid in own}
        for uid in set(self._scheduler.queued) - queued:
            self._scheduler.withdraw(uid)
        # The scheduler may have chosen a queued job to start, but that was never recorded.
        for uid in set(self._scheduler.running) - placed:
            if not uid.startswith((STOCK_OUT, OTHERS)):
                self._scheduler.end(uid)
        unreadable: list[Unreadable] = []
        for job in jobs:
            if job.uid in self._scheduler.queued or job.uid in self._scheduler.running:
                continue
            try:
                self._add(job)
            except ConfigError as error:
                if job.uid in queued:
                    unreadable.append(Unreadable(job=job, error=error))
        return unreadable

    def _add(self, job: JobRecord) -> None:
        queued = self._queued_job(job)
        if job.state is JobState.QUEUED:
            self._scheduler.enqueue(queued)
        elif (order := order_of(job)) is not None:
            until_s = self._clock() + queued.hold_s
            if job.run_start_time_s is not None:
                until_s = job.run_start_time_s + queued.hold_s - PREPARING_S
            self._scheduler.add_running(queued, nodes=[replica.node for replica in order.replicas], until_s=until_s)

    def _queued_job(self, job: JobRecord) -> QueuedJob:
        asked = training_input_of(job)
        gang = resolve(asked, catalogue=self._catalogue)
        is_server = job.kind is JobKind.SERVER
        return QueuedJob(
            uid=job.uid,
            name=job.job_id,
            project=job.project,
            priority=job.priority,
            create_time_s=job.create_time_s,
            demands=self._demands(gang, region=asked.region, slot=SERVER_SLOTS if is_server else JOB_SLOTS),
            hold_s=_hold_s(job, asked),
            accelerators=_accelerators(gang),
        )

    def _demands(self, gang: Gang, *, region: str | None, slot: str = JOB_SLOTS) -> tuple[Demand, ...]:
        """Returns what a gang needs from nodes. Consecutive replicas with equal needs share a demand."""
        reserves = _reserves_machines(list(self._nodes.values()))
        needs = [
            self._machine_demand(replica) if reserves else self._slot_demand(replica, gang=gang, slot=slot)
            for replica in gang
        ]
        types: list[tuple[str, ...]] = [()] * len(gang)
        if self._provisioner is not None:
            types = self._provisioner.node_types(gang, region=region)
        return tuple(
            Demand(name=name, count=len(list(alike)), resources=resources, node_types=node_types)
            for ((name, resources), node_types), alike in groupby(zip(needs, types, strict=True))
        )

    def _machine_demand(self, replica: Replica) -> tuple[str, tuple[tuple[str, int], ...]]:
        machine = self._catalogue.machine_type(replica.machine_type)
        sizes = (("vcpus", machine.vcpus), ("memory_mib", machine.memory_mib))
        name = describe_machine(replica.machine_type, accelerator=replica.accelerator)
        asked = replica.accelerator
        return name, (*(() if asked is None else ((asked.type.value, asked.count),)), *sizes)

    def _slot_demand(self, replica: Replica, *, gang: Gang, slot: str) -> tuple[str, tuple[tuple[str, int], ...]]:
        taken = ((slot, 1),) if replica is gang.replicas[0] else ()
        real = self._real_accelerators(replica, gang=gang)
        name = f"{real[0][1]} x {real[0][0]}" if real else f"{slot} of this service's {self._slots[slot]}"
        return name, (*real, *taken)

    def _real_accelerators(self, replica: Replica, *, gang: Gang) -> tuple[tuple[str, int], ...]:
        asked = replica.accelerator
        if asked is None or is_simulated(replica, gang=gang, cluster=self._cluster):
            return ()
        return ((asked.type.value, asked.count),)


def _hold_s(job: JobRecord, asked: TrainingInput) -> float:
    """Returns how long a job is assumed to hold its machines, in seconds. Nobody knows when a server ends."""
    return FOR_EVER_S if job.kind is JobKind.SERVER else PREPARING_S + asked.scheduling.max_running_time_s + ENDING_S


def _reserves_machines(nodes: Sequence[NodeSpec]) -> bool:
    """Whether machine types reserve anything. They do not if no node has vCPUs as a resource."""
    return any("vcpus" in node.resources for node in nodes)


def _accelerators(gang: Gang) -> Mapping[str, int]:
    """Returns the number of a gang's accelerators by type, including simulated ones, which count against quotas too."""
    counts: dict[str, int] = {}
    for replica in gang:
        if replica.accelerator is not None:
            kind = replica.accelerator.type.value
            counts[kind] = counts.get(kind, 0) + replica.accelerator.count
    return counts
