"""Ends jobs: records that they finished or failed, or requeues them for another attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

from lockstep.clusters import AbstractCluster
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.ends import EndKind, EndReason, end_reason_of, should_restart
from lockstep.jobs.running.orders import NO_ROOM, GangOutcome, GangStatus
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.service.billing.usages import job_bill, machines_of
from lockstep.service.control.evidence import Evidence
from lockstep.service.control.job_inputs import current_order_of, training_input_of
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.security.job_folders import job_folders
from lockstep.service.settings import Settings
from lockstep.service.store import AttemptRecord, JobRecord, JobStore


@final
class JobEnds:
    """Ends jobs and their attempts, and releases what the engine holds for them.

    Args:
        store: the store of jobs.
        cluster: the engine.
        catalogue: the catalogue of machines and prices.
        settings: the service's settings.
        evidence: the evidence by which the end of a gang is determined.
        provisioner: the provisioner, which knows preempted machines; None if the cluster has a fixed set of nodes.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        cluster: AbstractCluster,
        catalogue: Catalogue,
        settings: Settings,
        evidence: Evidence,
        provisioner: Provisioner | None,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._catalogue = catalogue
        self._evidence = evidence
        self._folders = job_folders(settings)
        self._provisioner = provisioner
        self._clock = clock

    def release(self, job: JobRecord) -> None:
        """Releases what the engine holds for a job's gang, and closes the job's folders to its user."""
        order = current_order_of(job)
        self._cluster.forget(f"{job.uid}-{job.attempt}")
        if order is not None:
            self._evidence.remove_reports(order)
        if self._folders is not None:
            self._folders.close(job)

    def release_earlier(self, job: JobRecord) -> None:
        """Releases the previous attempt, in case a service died between recording its end and releasing it."""
        if job.attempt:
            self._cluster.forget(f"{job.uid}-{job.attempt - 1}")

    def fail_unreadable(self, job: JobRecord, message: str) -> None:
        """Fails a job that cannot be processed, in any state, without a bill. A job that is over is only released."""
        self.release_earlier(job)
        if job.gang_order is not None:
            self.release(job)
        if job.state in TERMINAL:
            self._store.update(job.uid, gang_released=True)
            return
        self._store.advance(
            job.uid,
            JobEvent.FAILED,
            detail=message,
            error_message=message,
            end_time_s=self._clock(),
            gang_released=True,
        )

    def finish(self, job: JobRecord, status: GangStatus) -> None:
        """Records the outcome of a job whose gang has ended."""
        assert status.end is not None, "the gang has ended"
        if status.end.outcome is GangOutcome.SUCCEEDED:
            detail = "the program ended with exit code 0"
            self.record_end(job, JobEvent.SUCCEEDED, status, detail=detail, end_reason=None)
        elif status.end == NO_ROOM and job.state is JobState.PREPARING:
            self.release(job)
            detail = "others took its resources before it was placed"
            self._store.advance(job.uid, JobEvent.REQUEUED, detail=detail, gang_order=None, gang_released=True)
        elif status.end.outcome is GangOutcome.STOPPED and job.state is JobState.CANCELLING:
            detail = "every program has ended"
            self.record_end(job, JobEvent.CANCELLED, status, detail=detail, end_reason=job.end_reason)
        else:
            self.fail_or_restart(job, status, self._end_reason_of(job, status), _failure(status))

    def fail_or_restart(self, job: JobRecord, status: GangStatus | None, reason: EndReason, message: str) -> None:
        """Fails a job whose gang failed, or requeues it if its restart policy allows another attempt.

        Args:
            job: the job.
            status: the last status of its gang; None if nothing is known.
            reason: the end reason.
            message: the error message for people, of one or more lines.
        """
        policy = training_input_of(job).lockstep.restart_policy
        can_run = job.state in (JobState.PREPARING, JobState.RUNNING)
        if can_run and should_restart(reason, policy=policy, num_restarts=job.num_restarts):
            self._restart(job, status, reason, max_restarts=policy.max_restarts)
        else:
            self.fail(job, status, reason, message)

    def fail(self, job: JobRecord, status: GangStatus | None, reason: EndReason, message: str) -> None:
        """Fails a job; see `fail_or_restart`."""
        detail = f"{reason}: {message.splitlines()[0]}"
        self.record_end(job, JobEvent.FAILED, status, detail=detail, error_message=message, end_reason=str(reason))

    def record_end(
        self,
        job: JobRecord,
        event: JobEvent,
        status: GangStatus | None,
        *,
        detail: str,
        end_reason: str | None,
        **changes: Any,
    ) -> None:
        """Records that a job has ended, with its bill.

        Args:
            job: the job.
            event: the event that ends the job.
            status: the last status of its gang; None if nothing is known.
            detail: a description of the cause.
            end_reason: the `EndReason` as text; None if the job succeeded.
            **changes: other columns to set in the same transaction.
        """
        ended, between = None, ""
        if current_order_of(job) is not None:
            ended, between = self.ended_attempt(job, status, reason=end_reason)
        attempts = [*self._store.attempts(job.uid), *([] if ended is None else [ended])]
        self._store.advance(
            job.uid,
            event,
            detail=detail + between,
            time_s=None if ended is None else ended.end_time_s,
            ended=ended,
            end_time_s=self._clock() if ended is None else ended.end_time_s,
            end_reason=end_reason,
            bill=job_bill(job, attempts=attempts, catalogue=self._catalogue),
            **changes,
        )

    def ended_attempt(
        self, job: JobRecord, status: GangStatus | None, *, reason: str | None
    ) -> tuple[AttemptRecord, str]:
        """Returns the record of an attempt that is over, and a note for its event if its end was not recorded."""
        order = current_order_of(job)
        assert order is not None, "a start of a gang was ordered"
        bounds = self._evidence.end(job, order, status=status)
        ended = AttemptRecord(
            attempt=job.attempt,
            candidate=job.candidate,
            start_time_s=job.run_start_time_s,
            end_time_s=bounds.earliest_s,
            latest_end_time_s=None if bounds.is_known else bounds.latest_s,
            end_reason=reason,
            machines=machines_of(job),
            moves=job.moves,
        )
        has_run = job.run_start_time_s is not None
        return ended, f"; {bounds.describe()}" if has_run and not bounds.is_known else ""

    def _restart(self, job: JobRecord, status: GangStatus | None, reason: EndReason, *, max_restarts: int) -> None:
        """Requeues a job for another attempt. It keeps its place in the queue."""
        number = job.num_restarts + 1
        ended, between = self.ended_attempt(job, status, reason=str(reason))
        self._store.advance(
            job.uid,
            JobEvent.RESTARTED,
            detail=f"{reason}: restart {number} of at most {max_restarts}{between}",
            time_s=ended.end_time_s,
            ended=ended,
            attempt=job.attempt + 1,
            num_restarts=number,
            run_start_time_s=None,
            provisioning_time_s=None,
            gang_released=True,
            replicas=(),
            moves=(),
        )
        self.release(job)

    def _end_reason_of(self, job: JobRecord, status: GangStatus) -> EndReason:
        reason = end_reason_of(status)
        order = current_order_of(job)
        if reason.kind is not EndKind.NODE_LOST or self._provisioner is None or order is None or status.end is None:
            return reason
        machines = {replica.name: replica.machine for replica in order.replicas}
        culprit = status.end.culprit
        if culprit is not None and self._provisioner.was_preempted(machines[culprit]):
            return replace(reason, kind=EndKind.PREEMPTED)
        return reason


def _failure(status: GangStatus) -> str:
    """Returns a message that says which replica failed and how, with the last lines of its log."""
    assert status.end is not None
    culprit = next((r for r in status.replicas if r.name == status.end.culprit), None)
    if culprit is None or culprit.end is None or not culprit.end.tail:
        return status.end.reason
    return "\n".join([f"{status.end.reason}; its last lines:", *(f"  {line}" for line in culprit.end.tail)])
