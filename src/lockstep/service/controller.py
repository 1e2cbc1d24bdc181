"""The controller: a loop over the database that reads what is, decides purely, acts idempotently, and records.

It can be killed between any two lines: an intention is recorded before it is acted on, acting twice is acting once, and
what was not recorded is seen again at the next pass.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, final

from lockstep.clusters import AbstractCluster
from lockstep.errors import EngineError, LockstepError
from lockstep.jobs import Capacity, Catalogue, JobEvent, JobState, QueuedJob, decide, parse_training_input
from lockstep.jobs.orders import GANG_ORDER, GangOrder, GangOutcome, GangPhase, GangStatus
from lockstep.service.planning import bill_document, gang_of, gang_order, job_bill, replica_document
from lockstep.service.settings import Settings
from lockstep.service.store import JobRecord, JobStore

LOGGER: Final = logging.getLogger(__name__)

HOLDING: Final = frozenset({JobState.PREPARING, JobState.RUNNING})


@final
class Controller:
    """Moves jobs through their lives.

    Args:
        store: jobs and events.
        cluster: the engine, started.
        catalogue: machines and prices.
        settings: the service's settings.
        clock: seconds since 1970 UTC.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        cluster: AbstractCluster,
        catalogue: Catalogue,
        settings: Settings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._catalogue = catalogue
        self._settings = settings
        self._clock = clock
        self.engine_problem: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Passes over the database until told to stop. A pass that fails is logged, and the next one tries again."""
        while not stop.wait(self._settings.poll_interval_s):
            try:
                self.step()
            except Exception:  # the loop is what keeps every job alive: nothing may end it
                LOGGER.exception("a pass of the controller failed")

    def step(self) -> None:
        """Makes one pass."""
        jobs = self._store.open_jobs()
        self._start_queued(jobs)
        engine_lost = False
        for job in jobs:
            if job.state is JobState.QUEUED:
                continue
            try:
                self._follow(job)
            except EngineError as error:
                engine_lost = True
                LOGGER.warning("job %s: %s", job.job_id, error)
                self.engine_problem = str(error)
            except LockstepError as error:
                LOGGER.error("job %s: %s", job.job_id, error)
        if engine_lost:
            self._cluster.start()
        if not engine_lost:
            self.engine_problem = None

    def _start_queued(self, jobs: list[JobRecord]) -> None:
        queued = {job.uid: job for job in jobs if job.state is JobState.QUEUED}
        if not queued:
            return
        num_running = sum(job.state in HOLDING or not job.gang_released for job in jobs)
        decision = decide(
            [_queued(job) for job in queued.values()],
            capacity=Capacity(max_running_jobs=self._settings.max_running_jobs, running_jobs=num_running),
        )
        for uid in decision.starts:
            self._prepare(queued[uid])
        for uid, waiting in decision.waiting.items():
            job = queued[uid]
            document = {"position": waiting.position, "reason": waiting.reason}
            if not self._end_overdue(job) and document != job.waiting:
                self._store.update(uid, waiting=document)

    def _end_overdue(self, job: JobRecord) -> bool:
        scheduling = _training_input(job).scheduling
        limit_s = None if scheduling is None else scheduling.max_wait_time_s
        if limit_s is None or self._clock() - job.create_time_s <= limit_s:
            return False
        detail = f"waited longer than scheduling.maxWaitTime, {limit_s:.0f} s"
        self._store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, error_message=detail)
        return True

    def _prepare(self, job: JobRecord) -> None:
        gang = gang_of(job, catalogue=self._catalogue)
        order = gang_order(job, gang=gang, settings=self._settings, cluster=self._cluster)
        self._store.advance(
            job.uid,
            JobEvent.PREPARING,
            detail=f"placing {gang.describe()}" + (" (simulated)" if job.simulated else ""),
            gang_order=GANG_ORDER.dump_python(order, mode="json"),
            gang_released=False,
            waiting=None,
        )

    def _follow(self, job: JobRecord) -> None:
        """Brings one job that is past the queue a step further."""
        order = None if job.gang_order is None else GANG_ORDER.validate_python(job.gang_order)
        if job.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
            if order is not None:
                self._cluster.forget(order.gang_id)
            self._store.update(job.uid, gang_released=True)
            return
        if order is None:  # cancelled in the queue
            self._end(job, JobEvent.CANCELLED, None, detail="it had not started")
            return
        status = self._cluster.observe(order.gang_id)
        if status is None:
            self._follow_unknown(job, order)
            return
        job = self._record_replicas(job, status)
        if job.state is JobState.PREPARING and _has_started(status):
            started_s = max(replica.started_time_s or 0.0 for replica in status.replicas)
            job = self._store.advance(
                job.uid, JobEvent.STARTED, detail="every program has started", start_time_s=started_s
            )
        if status.end is not None:
            self._end_with(job, status)
        elif job.state is JobState.CANCELLING or self._is_over_time(job):
            self._cluster.stop(order.gang_id)

    def _follow_unknown(self, job: JobRecord, order: GangOrder) -> None:
        if job.state is JobState.PREPARING:
            self._cluster.place(order)  # not placed yet, or lost before anything of it was seen: asking again is right
        elif job.state is JobState.CANCELLING:
            self._end(job, JobEvent.CANCELLED, None, detail="the engine holds nothing of it")
        else:
            message = "the engine lost the job: its node or its gang supervisor died"
            self._end(job, JobEvent.FAILED, None, detail=message, error_message=message)

    def _record_replicas(self, job: JobRecord, status: GangStatus) -> JobRecord:
        gang = gang_of(job, catalogue=self._catalogue)
        replicas = [replica_document(r, gang=gang, simulated=job.simulated) for r in status.replicas]
        if replicas != list(job.replicas):
            self._store.update(job.uid, replicas=replicas)
        return job

    def _is_over_time(self, job: JobRecord) -> bool:
        scheduling = _training_input(job).scheduling
        if scheduling is None or job.state is not JobState.RUNNING or job.start_time_s is None:
            return False
        limit_s = scheduling.max_running_time_s
        if self._clock() - job.start_time_s <= limit_s:
            return False
        detail = f"ran longer than scheduling.maxRunningTime, {limit_s:.0f} s"
        self._store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, error_message=detail)
        return True

    def _end_with(self, job: JobRecord, status: GangStatus) -> None:
        assert status.end is not None
        if status.end.outcome is GangOutcome.SUCCEEDED:
            self._end(job, JobEvent.SUCCEEDED, status, detail="the program ended with exit code 0")
        elif status.end.outcome is GangOutcome.STOPPED and job.state is JobState.CANCELLING:
            self._end(job, JobEvent.CANCELLED, status, detail="every program has ended")
        else:
            message = _failure(status)
            self._end(job, JobEvent.FAILED, status, detail=status.end.reason, error_message=message)

    def _end(self, job: JobRecord, event: JobEvent, status: GangStatus | None, *, detail: str, **changes: Any) -> None:
        gang = gang_of(job, catalogue=self._catalogue)
        end_time_s = self._end_time_s(status)
        charged = job_bill(
            gang=gang,
            region=_training_input(job).region,
            start_time_s=job.start_time_s,
            end_time_s=end_time_s,
            catalogue=self._catalogue,
        )
        self._store.advance(
            job.uid,
            event,
            detail=detail,
            end_time_s=end_time_s,
            bill=bill_document(charged, simulated=job.simulated),
            waiting=None,
            **changes,
        )

    def _end_time_s(self, status: GangStatus | None) -> float:
        """The last replica's end as its runner recorded it; now, where nobody recorded one."""
        ends = [replica.ended_time_s for replica in status.replicas if replica.ended_time_s] if status else []
        return max(ends, default=self._clock())


def _training_input(job: JobRecord) -> Any:
    return parse_training_input({"trainingInput": job.training_input}, source=f"job {job.job_id}")


def _queued(job: JobRecord) -> QueuedJob:
    scheduling = _training_input(job).scheduling
    return QueuedJob(
        uid=job.uid,
        project=job.project,
        priority=0 if scheduling is None else scheduling.priority,
        create_time_s=job.create_time_s,
    )


def _has_started(status: GangStatus) -> bool:
    started = bool(status.replicas) and all(replica.started_time_s is not None for replica in status.replicas)
    return started and status.phase in (GangPhase.RUNNING, GangPhase.ENDED)


def _failure(status: GangStatus) -> str:
    """Says which replica failed and how, with its last lines."""
    assert status.end is not None
    culprit = next((r for r in status.replicas if r.name == status.end.culprit), None)
    if culprit is None or culprit.end is None or not culprit.end.tail:
        return status.end.reason
    return "\n".join([f"{status.end.reason}; its last lines:", *(f"  {line}" for line in culprit.end.tail)])
