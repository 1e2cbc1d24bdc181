"""The controller: a loop over the database that reads what is, decides purely, acts idempotently, and records.

It can be killed between any two lines: an intention is recorded before it is acted on, acting twice is acting once, and
what was not recorded is seen again at the next pass. Of several services over one database, the one that holds the
lease acts; the others look on, so that they can answer.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

from lockstep.clusters import AbstractCluster
from lockstep.errors import ConfigError, CorruptDataError, EngineError, NotFoundError, WrongStateError
from lockstep.jobs.input.candidates import num_candidates
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.ends import EndKind, EndReason, is_worth_another_try, why_ended
from lockstep.jobs.running.orders import GANG_ORDER, NO_ROOM, GangOrder, GangOutcome, GangPhase, GangStatus
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.service.billing.spending import Spending
from lockstep.service.billing.usages import job_bill, machines_of
from lockstep.service.control.evidence import Evidence
from lockstep.service.control.job_inputs import current_order_of, gang_of, order_of, training_input_of
from lockstep.service.control.orders import gang_order
from lockstep.service.control.pass_times import PassTimes
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.control.replicas import record_displaced, record_replicas
from lockstep.service.control.schedule import Schedule
from lockstep.service.problems import Part, Problems
from lockstep.service.security.job_folders import job_folders
from lockstep.service.security.vault import Vault
from lockstep.service.settings import Settings
from lockstep.service.store import (
    DATABASE_FAULTS,
    AttemptRecord,
    JobRecord,
    JobStore,
    Lease,
    LeaseLostError,
    describe_fault,
)
from lockstep.topology import CLUSTER_TOKEN

LOGGER: Final = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 3
"""How often a gang is placed whose programs were never seen running."""

NEVER_RAN: Final = EndReason(kind=EndKind.NODE_LOST, details=("before it ran",))
"""Why such a start of a gang ended."""


@final
class Controller:
    """Moves jobs through their lives.

    Args:
        store: jobs and events; its writes are guarded by the lease.
        lease: what decides which service acts.
        vault: jobs' secrets.
        cluster: the engine, started.
        catalogue: machines and prices.
        settings: the service's settings.
        problems: where it says what is wrong with the engine or the database.
        provisioner: drives the machines, where they come and go.
        spending: knows what projects have spent, where any has a limit of money.
        clock: seconds since 1970 UTC.

    Attributes:
        lease: what decides which service acts.
    """

    def __init__(
        self,
        *,
        store: JobStore,
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
        self._vault = vault
        self._cluster = cluster
        self._catalogue = catalogue
        self._settings = settings
        self._clock = clock
        self._folders = job_folders(settings)
        self._provisioner = provisioner
        self._evidence = Evidence(clock=clock)
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
        self.schedule = self._make_schedule()
        self._deciding_as: int | None = None
        self._is_engine_well = True
        self.passes = PassTimes()
        self._problems = problems
        self._woken = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Passes over the database until told to stop. A pass that fails is logged, and the next one tries again."""
        while not stop.is_set():
            if self._woken.wait(self._settings.poll_interval_s):
                self._woken.clear()
            start = time.monotonic()
            try:
                self.step()
            except Exception:  # the loop is what keeps every job alive: nothing may end it
                LOGGER.exception("a pass of the controller failed")
            self.passes.note(time.monotonic() - start)

    def wake(self) -> None:
        """Has the next pass begin now: there is something new to be done."""
        self._woken.set()

    def step(self) -> None:
        """Makes one pass, unless another service holds the lease; notes what is wrong with engine or database."""
        try:
            self._pass()
        except LeaseLostError as error:
            LOGGER.warning("%s", error)
        except EngineError as error:
            self._problems.note(Part.ENGINE, str(error))
        except DATABASE_FAULTS as error:
            self._problems.note(Part.DATABASE, describe_fault(error))

    def _pass(self) -> None:
        holds = self.lease.hold(anew=self._problems.has(Part.DATABASE))
        self._problems.clear(Part.DATABASE)
        self._cluster.start()  # at once where the engine lives; brings up a new one where it died
        if self.lease.generation is not None:
            self._cluster.fence(self.lease.generation, owner=self.lease.owner)
        self._is_engine_well = True
        if holds:
            self._act()
        else:
            self.schedule.look()
        if self._is_engine_well:
            self._problems.clear(Part.ENGINE)

    def _act(self) -> None:
        """Running jobs first, then the queue."""
        for job in self._store.placed_jobs():
            self._guarded(job, self._follow)
        for job in self._store.overdue():
            self._guarded(job, self._end_overdue)
        for job in self._store.awaiting_machines():
            self._guarded(job, self._end_unprovisioned)
        self._start_queued()
        if self._provisioner is not None:
            self._provisioner.step(self._held_places())

    def _guarded(self, job: JobRecord, act: Callable[[JobRecord], object]) -> None:
        """Acts on one job, so that what goes wrong with it stays with it."""
        if not self.lease.hold():  # a pass may take long
            raise LeaseLostError("another service has taken the lease over")
        try:
            try:
                act(job)
            except ConfigError as error:
                LOGGER.error("job %s cannot be read: %s", job.job_id, error)
                self._give_up(job, f"this version of the service cannot read the job: {error}")
        except EngineError as error:
            self._is_engine_well = False
            self._problems.note(Part.ENGINE, str(error))
        except WrongStateError as error:
            LOGGER.info("job %s moved on meanwhile: %s", job.job_id, error)
        except (LeaseLostError, *DATABASE_FAULTS):
            raise
        except Exception:  # a fault of ours, which must not keep the other jobs
            LOGGER.exception("job %s", job.job_id)

    def _give_up(self, job: JobRecord, message: str) -> None:
        self._forget_earlier(job)
        if job.gang_order is not None:
            self._release(job)
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

    def _start_queued(self) -> None:
        if self.lease.generation != self._deciding_as:
            self.schedule = self._make_schedule()  # one that looked on may have missed where jobs went
            self._deciding_as = self.lease.generation
        starts, unreadable = self.schedule.decide()
        for found in unreadable:
            message = f"this version of the service cannot read the job: {found.error}"
            self._guarded(found.job, partial(self._give_up, message=message))
        for job, nodes in starts:
            self._guarded(job, partial(self._prepare, nodes=nodes))

    def _end_overdue(self, job: JobRecord) -> None:
        detail = f"waited longer than scheduling.maxWaitTime, {job.max_wait_time_s:.0f} s"
        self._request_end(job, EndKind.MAX_WAIT_TIME, detail)

    def _request_end(self, job: JobRecord, kind: EndKind, detail: str) -> None:
        self._store.advance(
            job.uid, JobEvent.CANCEL_REQUESTED, detail=detail, error_message=detail, end_reason=kind.value
        )

    def _prepare(self, job: JobRecord, *, nodes: Sequence[str]) -> None:
        self._forget_earlier(job)
        gang = gang_of(job, catalogue=self._catalogue)
        order = self._order(job, nodes=nodes, attempt=job.attempt)
        self._store.advance(
            job.uid,
            JobEvent.PREPARING,
            detail=f"placing {gang.describe()}" + (" (simulated)" if job.simulated else ""),
            gang_order=GANG_ORDER.dump_python(order, mode="json"),
            gang_released=False,
            moves=(),
            provisioning_time_s=job.provisioning_time_s or (None if self._provisioner is None else self._clock()),
        )
        if self._provisioner is None:  # else it is placed once its machines have come up
            self._place(job, order)

    def _place_again(self, job: JobRecord) -> None:
        """Places a gang that the engine does not know: the service died before it asked, or the engine after it was.

        As nobody can know whether its programs ran, it is another attempt, with a log and a spool folder of its own.
        """
        earlier = [attempt.end_reason == str(NEVER_RAN) for attempt in self._store.attempts(job.uid)]
        num_lost = 1 + next((n for n, was_lost in enumerate(reversed(earlier)) if not was_lost), len(earlier))
        if num_lost >= MAX_ATTEMPTS:
            message = f"the engine lost the job {MAX_ATTEMPTS} times before it ran"
            self._fail(job, None, EndReason(kind=EndKind.NODE_LOST), message)
            return
        lost = current_order_of(job)
        assert lost is not None, "a job is placed again only after it was placed"
        attempt = job.attempt + 1
        order = self._order(job, nodes=[replica.node for replica in lost.replicas], attempt=attempt)
        self._store.update(
            job.uid,
            ended=self._ended_attempt(job, None, reason=str(NEVER_RAN))[0],
            attempt=attempt,
            moves=(),
            gang_order=GANG_ORDER.dump_python(order, mode="json"),
        )
        self._evidence.forget(lost)
        if self._provisioner is None:
            self._place(job, order)

    def _place(self, job: JobRecord, order: GangOrder) -> None:
        """Asks the engine for a recorded order, with the secrets that are in no record."""
        names = training_input_of(job).lockstep.secrets
        try:
            values = self._vault.values(project=job.project, names=names) if names else {}
        except (NotFoundError, CorruptDataError) as error:
            self._fail(job, None, EndReason(kind=EndKind.USER_ERROR), str(error))
            return
        user = next((replica.user for replica in order.replicas if replica.user is not None), None)
        if self._folders is not None and user is not None:
            self._folders.open(job, user=user)
        if any(replica.role == "ps" for replica in order.replicas):
            # Made here and kept nowhere: whoever asks the engine twice for a gang has it placed once, with the first.
            values = {**values, CLUSTER_TOKEN: secrets.token_hex()}
        replicas = tuple(replace(replica, secrets=values) for replica in order.replicas)
        self._cluster.place(replace(order, replicas=replicas))

    def _order(self, job: JobRecord, *, nodes: Sequence[str], attempt: int) -> GangOrder:
        gang = gang_of(job, catalogue=self._catalogue)
        order = gang_order(
            job,
            gang=gang,
            nodes=nodes,
            settings=self._settings,
            catalogue=self._catalogue,
            cluster=self._cluster,
            attempt=attempt,
            user=self._choose_user(job),
            gets_others=self._provisioner is not None,
        )
        assert self.lease.generation is not None, "who places a gang holds the lease"
        within_s = self._settings.place_within_s
        return replace(order, owner=self.lease.owner, generation=self.lease.generation, place_within_s=within_s)

    def _choose_user(self, job: JobRecord) -> int | None:
        """Returns the user id that a job's programs are to run as; None where they run as the service's own user."""
        if self._settings.users is None:
            return None
        pool = self._settings.users.of_jobs
        orders = [order_of(other) for other in self._store.placed_jobs() if other.uid != job.uid]
        taken = {replica.user for order in orders if order for replica in order.replicas if replica.user is not None}
        user = pool.choose(job.uid, taken=taken)
        if user is None:
            raise EngineError(f"no user id of {pool.first}-{pool.last} is free for another job's programs")
        return user

    def _release(self, job: JobRecord) -> None:
        """Has the engine give back what it holds for a job's gang, and takes the job's folders back."""
        order = current_order_of(job)
        self._cluster.forget(f"{job.uid}-{job.attempt}")
        if order is not None:
            self._evidence.forget(order)
        if self._folders is not None:
            self._folders.close(job)

    def _follow(self, job: JobRecord) -> None:
        """Brings one job that is past the queue a step further."""
        order = current_order_of(job)
        if job.state in TERMINAL:
            if order is not None:
                self._release(job)
            self._store.update(job.uid, gang_released=True)
            return
        if order is None:  # cancelled in the queue
            self._forget_earlier(job)
            self._end(job, JobEvent.CANCELLED, None, detail="it had not started", end_reason=job.end_reason)
            return
        if self._provisioner is not None and not order.replicas[0].machine and job.state is JobState.PREPARING:
            self._await_machines(job, order, provisioner=self._provisioner)
            return
        status = self._cluster.observe(order.gang_id)
        if status is None:
            self._follow_unknown(job, order)
            return
        job = self._note_replicas(job, status)
        if status.end is not None:
            if not status.has_left or self._cluster.bring_left(order):
                self._end_with(job, status)
        elif job.state is JobState.CANCELLING or self._is_over_time(job):
            self._cluster.stop(order.gang_id)
        elif self._provisioner is not None and status.displaced:
            come = record_displaced(
                job, status=status, order=order, store=self._store, provisioner=self._provisioner, now_s=self._clock()
            )
            for name, machine in come.items():
                self._cluster.move(order.gang_id, replica=name, machine=machine)

    def _note_replicas(self, job: JobRecord, status: GangStatus) -> JobRecord:
        """Records how a job's replicas are, and that they have started; returns the job as it is then."""
        job = record_replicas(job, status=status, store=self._store, catalogue=self._catalogue)
        if job.state is JobState.PREPARING and _has_started(status):
            started_s = max(replica.started_time_s or 0.0 for replica in status.replicas)
            return self._note_start(job, started_s, detail="every program has started")
        return job

    def _note_start(self, job: JobRecord, started_s: float, *, detail: str) -> JobRecord:
        return self._store.advance(
            job.uid,
            JobEvent.STARTED,
            detail=detail,
            time_s=started_s,
            start_time_s=job.start_time_s or started_s,
            run_start_time_s=started_s,
            provisioning_time_s=None,
        )

    def _held_places(self) -> dict[str, str]:
        """Returns the places that jobs hold, each with the job's uid."""
        held: dict[str, str] = {}
        for job in self._store.placed_jobs():
            order = current_order_of(job)
            if order is not None:
                held.update(dict.fromkeys((replica.node for replica in order.replicas), job.uid))
        return held

    def _await_machines(self, job: JobRecord, order: GangOrder, *, provisioner: Provisioner) -> None:
        """Places a gang whose machines have come up; has it wait again where one of them cannot be had."""
        ready = provisioner.ready()
        slots = [replica.node for replica in order.replicas]
        if all(slot in ready for slot in slots):
            replicas = tuple(replace(replica, machine=ready[replica.node]) for replica in order.replicas)
            placed = replace(order, replicas=replicas)
            self._store.update(job.uid, gang_order=GANG_ORDER.dump_python(placed, mode="json"))
            self._place(job, placed)
            return
        if self._end_unprovisioned(job):
            return
        prepared_s = self._store.last_event_time_s(job.uid, kind=JobEvent.PREPARING)
        failures = provisioner.failures(slots, since_s=prepared_s)
        if failures:
            number = (job.candidate + 1) % num_candidates(training_input_of(job, candidate=0))
            self._store.advance(
                job.uid,
                JobEvent.REQUEUED,
                detail=f"cannot be had for now: {failures[0]}",
                candidate=number,
                gang_order=None,
                gang_released=True,
            )

    def _end_unprovisioned(self, job: JobRecord) -> bool:
        """Ends a job whose machines have not come up for as long as they may take; returns whether it did."""
        limit_s = training_input_of(job).lockstep.provisioning_timeout_s
        if job.provisioning_time_s is None or self._clock() - job.provisioning_time_s <= limit_s:
            return False
        why = next((event.detail for event in reversed(self._store.events(job.uid)) if event.kind == "requeued"), "")
        message = f"its machines did not come up within {limit_s:.0f} s" + (f"; last, {why}" if why else "")
        details = (f"{limit_s:.0f} s",)
        self._fail(job, None, EndReason(kind=EndKind.PROVISIONING_TIMEOUT, details=details), message)
        return True

    def _follow_unknown(self, job: JobRecord, order: GangOrder) -> None:
        """Brings a job further whose gang the engine does not know, by what the gang's runners have left."""
        if self._evidence.is_ending(order):
            return
        left = self._evidence.left(order)
        if left is not None:
            job = self._note_replicas(job, left)
        if job.state is JobState.PREPARING and (started_s := self._evidence.started_s(order)) is not None:
            job = self._note_start(job, started_s, detail="it ran, by what it left in the bucket")
        is_cancelling = job.state is JobState.CANCELLING
        if left is not None and left.end is not None and (is_cancelling or left.end.outcome is not GangOutcome.STOPPED):
            self._end_with(job, left)
        elif job.state is JobState.PREPARING:
            self._place_again(job)
        elif is_cancelling:
            self._end(job, JobEvent.CANCELLED, left, detail="the engine holds nothing of it", end_reason=job.end_reason)
        else:
            message = "the engine lost the job: its node or its gang supervisor died"
            self._end_failed(job, left, EndReason(kind=EndKind.NODE_LOST), message)

    def _is_over_time(self, job: JobRecord) -> bool:
        if job.state is not JobState.RUNNING or job.run_start_time_s is None:
            return False
        limit_s = training_input_of(job).scheduling.max_running_time_s
        earlier = self._store.attempts(job.uid) if job.num_restarts else []
        ran_s = sum(attempt.end_time_s - attempt.start_time_s for attempt in earlier if attempt.start_time_s)
        if ran_s + self._clock() - job.run_start_time_s <= limit_s:
            return False
        detail = f"ran longer than scheduling.maxRunningTime, {limit_s:.0f} s"
        self._request_end(job, EndKind.MAX_RUNNING_TIME, detail)
        return True

    def _end_with(self, job: JobRecord, status: GangStatus) -> None:
        assert status.end is not None
        if status.end.outcome is GangOutcome.SUCCEEDED:
            detail = "the program ended with exit code 0"
            self._end(job, JobEvent.SUCCEEDED, status, detail=detail, end_reason=None)
        elif status.end == NO_ROOM and job.state is JobState.PREPARING:
            self._release(job)
            detail = "its room was taken by others before it was there"
            self._store.advance(job.uid, JobEvent.REQUEUED, detail=detail, gang_order=None, gang_released=True)
        elif status.end.outcome is GangOutcome.STOPPED and job.state is JobState.CANCELLING:
            detail = "every program has ended"
            self._end(job, JobEvent.CANCELLED, status, detail=detail, end_reason=job.end_reason)
        else:
            self._end_failed(job, status, self._why_ended(job, status), _failure(status))

    def _why_ended(self, job: JobRecord, status: GangStatus) -> EndReason:
        reason = why_ended(status)
        order = current_order_of(job)
        if reason.kind is not EndKind.NODE_LOST or self._provisioner is None or order is None or status.end is None:
            return reason
        machines = {replica.name: replica.machine for replica in order.replicas}
        culprit = status.end.culprit
        if culprit is not None and self._provisioner.was_preempted(machines[culprit]):
            return replace(reason, kind=EndKind.PREEMPTED)
        return reason

    def _end_failed(self, job: JobRecord, status: GangStatus | None, reason: EndReason, message: str) -> None:
        """Ends a job whose gang failed, or has it started again."""
        policy = training_input_of(job).lockstep.restart_policy
        can_run = job.state in (JobState.PREPARING, JobState.RUNNING)
        if can_run and is_worth_another_try(reason, policy=policy, num_restarts=job.num_restarts):
            self._restart(job, status, reason, max_restarts=policy.max_restarts)
        else:
            self._fail(job, status, reason, message)

    def _fail(self, job: JobRecord, status: GangStatus | None, reason: EndReason, message: str) -> None:
        detail = f"{reason}: {message.splitlines()[0]}"
        self._end(job, JobEvent.FAILED, status, detail=detail, error_message=message, end_reason=str(reason))

    def _restart(self, job: JobRecord, status: GangStatus | None, reason: EndReason, *, max_restarts: int) -> None:
        """Puts a job back into the queue, where it has its old place, for another start of its gang."""
        number = job.num_restarts + 1
        ended, between = self._ended_attempt(job, status, reason=str(reason))
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
        self._release(job)

    def _forget_earlier(self, job: JobRecord) -> None:
        """Sees to it that nothing of the start before runs: who recorded its end may have died before it was told."""
        if job.attempt:
            self._cluster.forget(f"{job.uid}-{job.attempt - 1}")

    def _end(
        self,
        job: JobRecord,
        event: JobEvent,
        status: GangStatus | None,
        *,
        detail: str,
        end_reason: str | None,
        **changes: Any,
    ) -> None:
        ended, between = None, ""
        if current_order_of(job) is not None:
            ended, between = self._ended_attempt(job, status, reason=end_reason)
        attempts = [*self._store.attempts(job.uid), *([] if ended is None else [ended])]
        charged = job_bill(job, attempts=attempts, catalogue=self._catalogue)
        self._store.advance(
            job.uid,
            event,
            detail=detail + between,
            time_s=None if ended is None else ended.end_time_s,
            ended=ended,
            end_time_s=self._clock() if ended is None else ended.end_time_s,
            end_reason=end_reason,
            bill=charged,
            **changes,
        )

    def _ended_attempt(
        self, job: JobRecord, status: GangStatus | None, *, reason: str | None
    ) -> tuple[AttemptRecord, str]:
        """Returns a start that is over, and what is to be said where nobody recorded when it ended."""
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


def _has_started(status: GangStatus) -> bool:
    """Whether every program has started; or any, where the gang has ended: nothing more will start of it."""
    started = [replica.started_time_s is not None for replica in status.replicas]
    return any(started) if status.phase is GangPhase.ENDED else bool(started) and all(started)


def _failure(status: GangStatus) -> str:
    """Says which replica failed and how, with its last lines."""
    assert status.end is not None
    culprit = next((r for r in status.replicas if r.name == status.end.culprit), None)
    if culprit is None or culprit.end is None or not culprit.end.tail:
        return status.end.reason
    return "\n".join([f"{status.end.reason}; its last lines:", *(f"  {line}" for line in culprit.end.tail)])
