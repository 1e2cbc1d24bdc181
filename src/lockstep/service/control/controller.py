"""The controller: a loop over the database that reads the state, decides, acts and records.

Decisions are pure functions of the state, and actions are idempotent. The controller can be killed at any line: an
intention is recorded before it is acted on, and what was not recorded is observed again in the next pass. Of several
services that share a database, only the one that holds the lease acts. The others only read, so that they can answer
requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, final

from lockstep.clusters import AbstractCluster
from lockstep.errors import ConfigError, EngineError, WrongStateError
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.orders import GangOrder, GangOutcome, GangPhase, GangStatus
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.service.billing.spending import Spending
from lockstep.service.control.ends import JobEnds
from lockstep.service.control.evidence import Evidence
from lockstep.service.control.job_inputs import current_order_of, training_input_of
from lockstep.service.control.pass_times import PassTimes
from lockstep.service.control.placed_jobs import PlacedJobs
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.control.replicas import record_displaced, record_replicas
from lockstep.service.control.schedule import Schedule
from lockstep.service.control.starts import JobStarts
from lockstep.service.problems import Part, Problems
from lockstep.service.security.vault import Vault
from lockstep.service.settings import Settings
from lockstep.service.store import (
    DATABASE_FAULTS,
    JobKind,
    JobRecord,
    JobStore,
    Lease,
    LeaseLostError,
    ModelStore,
    ReplicaChange,
    ReplicaRecord,
    describe_fault,
)

LOGGER: Final = logging.getLogger(__name__)


@final
class Controller:
    """Advances jobs through their states.

    Args:
        store: the store of jobs and events; the lease guards its writes.
        models: the store of versions.
        lease: the lease, which decides which service acts.
        vault: the projects' secrets.
        cluster: the engine, started.
        catalogue: the catalogue of machines and prices.
        settings: the service's settings.
        problems: receives the problems of engine and database.
        provisioner: the provisioner; None if the cluster has a fixed set of nodes.
        spending: what projects have spent; None if no project has a limit of money.
        clock: the clock, in seconds since 1970 UTC.

    Attributes:
        lease: the lease.
        schedule: the queue.
        passes: the durations of passes.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        models: ModelStore,
        lease: Lease,
        vault: Vault,
        cluster: AbstractCluster,
        catalogue: Catalogue,
        settings: Settings,
        problems: Problems,
        provisioner: Provisioner | None = None,
        spending: Spending | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self.lease = lease
        self._cluster = cluster
        self._catalogue = catalogue
        self._settings = settings
        self._clock = clock
        self._provisioner = provisioner
        self._evidence = Evidence(clock=clock)
        self._ends = JobEnds(
            store=store,
            cluster=cluster,
            catalogue=catalogue,
            evidence=self._evidence,
            settings=settings,
            provisioner=provisioner,
            clock=clock,
        )
        self._starts = JobStarts(
            store=store,
            models=models,
            lease=lease,
            vault=vault,
            cluster=cluster,
            catalogue=catalogue,
            settings=settings,
            ends=self._ends,
            evidence=self._evidence,
            provisioner=provisioner,
            clock=clock,
        )
        self._make_schedule = partial(
            Schedule,
            store=store,
            cluster=cluster,
            catalogue=catalogue,
            settings=settings,
            provisioner=provisioner,
            spending=spending,
            clock=clock,
        )
        self._placed = PlacedJobs(store)
        self.schedule = self._make_schedule()
        self._generation: int | None = None
        self._is_engine_healthy = True
        self.passes = PassTimes()
        self._problems = problems
        self._woken = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Makes passes until `stop` is set. A pass that fails is logged, and the next one tries again."""
        while not stop.is_set():
            if self._woken.wait(self._settings.poll_interval_s):
                self._woken.clear()
            start = time.monotonic()
            try:
                self.step()
            except Exception:  # every job depends on this loop: nothing may end it
                LOGGER.exception("a pass of the controller failed")
            self.passes.note(time.monotonic() - start)

    def wake(self) -> None:
        """Starts the next pass now, because there is something to do."""
        self._woken.set()

    def step(self) -> None:
        """Makes one pass, and notes problems of engine and database. Acts only if this service holds the lease."""
        try:
            self._run_pass()
        except LeaseLostError as error:
            LOGGER.warning("%s", error)
        except EngineError as error:
            self._problems.note(Part.ENGINE, str(error))
        except DATABASE_FAULTS as error:
            self._problems.note(Part.DATABASE, describe_fault(error))

    def _run_pass(self) -> None:
        holds = self.lease.acquire_or_renew(force=self._problems.has(Part.DATABASE))
        self._problems.clear(Part.DATABASE)
        self._cluster.start()  # returns at once if the engine runs; starts a new one if it died
        if self.lease.generation is not None:
            self._cluster.fence(self.lease.generation, owner=self.lease.owner)
        self._is_engine_healthy = True
        if holds:
            self._process_jobs()
        else:
            self.schedule.refresh()
        if self._is_engine_healthy:
            self._problems.clear(Part.ENGINE)

    def _process_jobs(self) -> None:
        """Acts on running jobs first, then on the queue, then on machines."""
        measured: list[ReplicaChange] = []
        self._forget_if_taken_over()
        for job in self._placed.read():
            self._isolate_errors(job, partial(self._advance, measured=measured))
        self._record_measured(measured)
        for job in self._store.overdue():
            self._isolate_errors(job, self._end_overdue)
        for job in self._store.awaiting_machines():
            self._isolate_errors(job, self._starts.fail_unprovisioned)
        self._start_queued()
        if self._provisioner is not None:
            self._provisioner.step(self._held_slots())

    def _forget_if_taken_over(self) -> None:
        """Forgets what this service knew before it got the lease: it may have missed moves of jobs."""
        if self.lease.generation != self._generation:
            self._placed.forget()
            self.schedule = self._make_schedule()
            self._generation = self.lease.generation

    def _isolate_errors(self, job: JobRecord, act: Callable[[JobRecord], object]) -> None:
        """Acts on one job, so that its errors do not affect other jobs."""
        if not self.lease.acquire_or_renew():  # a pass may take long
            raise LeaseLostError("another service has taken the lease over")
        try:
            try:
                act(job)
            except ConfigError as error:
                LOGGER.error("job %s cannot be read: %s", job.job_id, error)
                self._ends.fail_unreadable(job, f"this version of the service cannot read the job: {error}")
        except EngineError as error:
            self._is_engine_healthy = False
            self._problems.note(Part.ENGINE, str(error))
        except WrongStateError as error:
            LOGGER.info("job %s moved on meanwhile: %s", job.job_id, error)
        except (LeaseLostError, *DATABASE_FAULTS):
            raise
        except Exception:  # a bug, which must not affect other jobs
            LOGGER.exception("job %s", job.job_id)

    def _record_measured(self, measured: list[ReplicaChange]) -> None:
        """Records what running jobs use. If that is not possible, jobs still start and end."""
        if not measured:
            return
        try:
            self._store.update_replicas(measured)
            self._placed.note_measured(measured)
        except (LeaseLostError, *DATABASE_FAULTS):
            raise
        except Exception:
            LOGGER.exception("what running jobs use cannot be recorded")

    def _start_queued(self) -> None:
        self._forget_if_taken_over()
        starts, unreadable = self.schedule.decide()
        for found in unreadable:
            message = f"this version of the service cannot read the job: {found.error}"
            self._isolate_errors(found.job, partial(self._ends.fail_unreadable, message=message))
        for job, nodes in starts:
            self._isolate_errors(job, partial(self._starts.prepare, nodes=nodes))

    def _end_overdue(self, job: JobRecord) -> None:
        detail = f"waited longer than scheduling.maxWaitTime, {job.max_wait_time_s:.0f} s"
        self._request_end(job, EndKind.MAX_WAIT_TIME, detail)

    def _request_end(self, job: JobRecord, kind: EndKind, detail: str) -> None:
        self._store.advance(
            job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, error_message=detail, end_reason=kind.value
        )

    def _advance(self, job: JobRecord, *, measured: list[ReplicaChange]) -> None:
        """Advances one job that is past the queue by one step, or adds to `measured` what its replicas use."""
        order = current_order_of(job)
        if job.state in TERMINAL:
            if order is not None:
                self._ends.release(job)
            self._store.update(job.uid, gang_released=True)
            return
        if order is None:  # cancelled in the queue
            self._ends.release_earlier(job)
            self._ends.record_end(job, JobEvent.CANCELLED, None, detail="it had not started", end_reason=job.end_reason)
            return
        if self._provisioner is not None and not order.replicas[0].machine and job.state is JobState.PREPARING:
            self._starts.place_if_ready(job, order, provisioner=self._provisioner)
            return
        status = self._cluster.observe(order.gang_id)
        if status is None:
            self._advance_lost(job, order)
            return
        job = self._record_replicas(job, status, measured=measured)
        if status.end is not None:
            if not status.has_leftovers or self._cluster.collect_leftovers(order):
                self._ends.finish(job, status)
        elif job.state is JobState.CANCELLING or self._is_over_time(job):
            self._cluster.stop(order.gang_id)
        elif self._provisioner is not None and status.displaced:
            replacements = record_displaced(
                job, status=status, order=order, store=self._store, provisioner=self._provisioner, now_s=self._clock()
            )
            for name, machine in replacements.items():
                self._cluster.move(order.gang_id, replica=name, machine=machine)

    def _record_replicas(
        self, job: JobRecord, status: GangStatus, *, measured: list[ReplicaChange] | None = None
    ) -> JobRecord:
        """Records the status of a job's replicas, and RUNNING once they have started; returns the job after that."""
        begins = job.state is JobState.PREPARING and _has_started(status)
        job = record_replicas(
            job, status=status, store=self._store, catalogue=self._catalogue, measured=measured, begins=begins
        )
        if begins:
            started_s = max(replica.started_time_s or 0.0 for replica in status.replicas)
            return self._record_start(job, started_s, detail="every program has started", replicas=job.replicas)
        return job

    def _record_start(
        self,
        job: JobRecord,
        started_s: float,
        *,
        detail: str,
        replicas: Sequence[ReplicaRecord] | None = None,
    ) -> JobRecord:
        return self._store.advance(
            job.uid,
            JobEvent.STARTED,
            detail=detail,
            time_s=started_s,
            replicas=replicas,
            start_time_s=job.start_time_s or started_s,
            run_start_time_s=started_s,
            provisioning_time_s=None,
        )

    def _held_slots(self) -> dict[str, str]:
        """Returns the slots that jobs hold, each with the job's uid."""
        held: dict[str, str] = {}
        for job in self._placed.read():
            order = current_order_of(job)
            if order is not None:
                held.update(dict.fromkeys((replica.node for replica in order.replicas), job.uid))
        return held

    def _advance_lost(self, job: JobRecord, order: GangOrder) -> None:
        """Advances a job whose gang the engine does not know, by the evidence that the gang's runners have left."""
        if self._evidence.is_ending(order):
            return
        left = self._evidence.last_status(order)
        if left is not None:
            job = self._record_replicas(job, left)
        if job.state is JobState.PREPARING and (started_s := self._evidence.started_s(order)) is not None:
            job = self._record_start(job, started_s, detail="it ran, according to its metrics in the bucket")
        is_cancelling = job.state is JobState.CANCELLING
        if left is not None and left.end is not None and (is_cancelling or left.end.outcome is not GangOutcome.STOPPED):
            self._ends.finish(job, left)
        elif job.state is JobState.PREPARING:
            self._starts.replace_lost_gang(job)
        elif is_cancelling:
            self._ends.record_end(
                job, JobEvent.CANCELLED, left, detail="the engine does not know it any more", end_reason=job.end_reason
            )
        else:
            message = "the engine lost the job: its node or its gang supervisor died"
            self._ends.fail_or_restart(job, left, EndReason(kind=EndKind.NODE_LOST), message)

    def _is_over_time(self, job: JobRecord) -> bool:
        if job.kind is JobKind.SERVER or job.state is not JobState.RUNNING or job.run_start_time_s is None:
            return False
        limit_s = training_input_of(job).scheduling.max_running_time_s
        earlier = self._store.attempts(job.uid) if job.num_restarts else []
        ran_s = sum(attempt.end_time_s - attempt.start_time_s for attempt in earlier if attempt.start_time_s)
        if ran_s + self._clock() - job.run_start_time_s <= limit_s:
            return False
        detail = f"ran longer than scheduling.maxRunningTime, {limit_s:.0f} s"
        self._request_end(job, EndKind.MAX_RUNNING_TIME, detail)
        return True


def _has_started(status: GangStatus) -> bool:
    """Whether every program has started; if the gang has ended, whether any has, since no more will start."""
    started = [replica.started_time_s is not None for replica in status.replicas]
    return any(started) if status.phase is GangPhase.ENDED else bool(started) and all(started)
