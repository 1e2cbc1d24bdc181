"""Evidence of gangs that no engine knows any more: which processes still run, how the gangs ended, and when.

A runner reports the status of its replica every few seconds, to the engine and to its spool folder, and uploads the log
and the metrics to the bucket. If the engine is gone, the end of a gang is determined from these.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, final

import psutil
from pydantic import ValidationError

from lockstep.clusters.runner_process import LEFT_S, end_leftover_processes
from lockstep.errors import MissingInputError, StorageError
from lockstep.jobs.logs import decode_entry
from lockstep.jobs.running.evidence import EndBounds, ReplicaEvidence, bound_end
from lockstep.jobs.running.metrics import decode_sample
from lockstep.jobs.running.orders import (
    SPOOL_VARIABLE,
    STATUS,
    Fault,
    GangOrder,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.jobs.running.supervision import next_step
from lockstep.processes import find_marked
from lockstep.runner.series import key_time_s
from lockstep.service.store import JobRecord
from lockstep.spools import LOG_FOLDER, METRICS_FOLDER, SEGMENT_NAME, STATUS_FILE, forget_status, segments_in
from lockstep.storage import QUICK_POLICY, open_bucket

LOGGER: Final = logging.getLogger(__name__)

MAX_REPLICAS_READ: Final = 16
"""The maximum number of replicas whose objects are read. Replicas run in step, and a pass must not take minutes."""

UNOBSERVED_END: Final = ProgramEnd(problem="its end was not observed: the engine was lost", fault=Fault.NODE)


@final
class Evidence:
    """Finds the evidence of gangs on this machine and in the bucket.

    Args:
        clock: the clock, in seconds since 1970 UTC.
        monotonic: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._since: dict[str, float] = {}

    def is_ending(self, order: GangOrder) -> bool:
        """Whether processes of a gang that no engine knows still run on this machine.

        Their runners end their programs and report how they ended. Processes that have no runner, or that exceed their
        grace time, are ended here.
        """
        spools = {replica.spool for replica in order.replicas if Path(replica.spool).is_dir()}
        if not spools:
            return False
        left = find_marked(SPOOL_VARIABLE, accept=lambda spool: spool in spools)
        since_s = self._since.setdefault(order.gang_id, self._monotonic())
        grace_s = max(replica.grace_s for replica in order.replicas) + LEFT_S
        if any(_is_runner(process.pid) for process in left) and self._monotonic() - since_s < grace_s:
            return True
        del self._since[order.gang_id]
        for replica in order.replicas:
            if replica.spool in spools:
                end_leftover_processes(replica)
        return False

    def last_status(self, order: GangOrder) -> GangStatus | None:
        """Returns the status of a gang that is over, from the last reports of its runners; None if there are none.

        The status has no end if not all runners reported how their programs ended.
        """
        found = {replica.name: status for replica in order.replicas if (status := _read_status(replica)) is not None}
        if not found:
            return None
        has_all = len(found) == len(order.replicas) and all(each.phase is ReplicaPhase.ENDED for each in found.values())
        end = None
        if has_all:
            end = next_step(order, statuses=found, stop_requested=False, now_s=self._clock()).end
        replicas = tuple(
            each if each.phase is ReplicaPhase.ENDED else replace(each, phase=ReplicaPhase.ENDED, end=UNOBSERVED_END)
            for each in found.values()
        )
        return GangStatus(gang_id=order.gang_id, phase=GangPhase.ENDED, replicas=replicas, end=end)

    def started_s(self, order: GangOrder) -> float | None:
        """Returns the time when a gang's programs first ran, from the metrics in the bucket; None if there are none."""
        found: list[float] = []
        for replica in order.replicas[:MAX_REPLICAS_READ]:
            if replica.metrics_url is None:
                continue
            series = _series(replica, url=replica.metrics_url)
            found += [time_s for name in series.names[:1] if (time_s := key_time_s(name)) is not None]
            if series.is_unreadable:
                break
        return min(found, default=None)

    def end(self, job: JobRecord, order: GangOrder, *, status: GangStatus | None) -> EndBounds:
        """Returns when a gang that is over ended. If the end was not recorded, it is bounded by the last evidence.

        Args:
            job: the job of the gang, as it was recorded last.
            order: the order of the gang.
            status: the last status of the gang; None if nothing is known.
        """
        statuses = {} if status is None else {replica.name: replica for replica in status.replicas}
        recorded = {replica.status.name: replica.status for replica in job.replicas}
        replicas: list[ReplicaEvidence] = []
        num_read = 0
        for replica in order.replicas:
            known = statuses.get(replica.name)
            if known is None or (known.end is not None and known.end.fault is Fault.NODE):
                said = _read_status(replica)  # a runner that lost its launcher ends its program and reports how
                known = said if said is not None and said.end is not None else known
            if known is not None and known.end is not None and known.end.fault is not Fault.NODE:
                replicas.append(ReplicaEvidence(name=replica.name, ended_time_s=known.ended_time_s))
                continue
            signs = dict(_signs_of_status(known)) or dict(_signs_of_status(recorded.get(replica.name)))
            if num_read < MAX_REPLICAS_READ:
                num_read += 1
                signs |= dict(_signs_in_bucket(replica))
            last_s = max([*signs.values(), job.run_start_time_s or 0.0])
            known_gone = [
                *([] if known is None or known.ended_time_s is None else [known.ended_time_s]),
                *([psutil.boot_time()] if Path(replica.spool).is_dir() else []),  # it ran on this machine
            ]
            gone = min((time_s for time_s in known_gone if time_s > last_s), default=None)
            replicas.append(ReplicaEvidence(name=replica.name, signs=signs, known_gone_time_s=gone))
        started_s = job.run_start_time_s
        bounds = bound_end(replicas, started_s=0.0 if started_s is None else started_s, now_s=self._clock())
        if started_s is None and not bounds.earliest_s:  # it never ran, and left nothing
            return EndBounds(earliest_s=bounds.latest_s, latest_s=bounds.latest_s)
        return bounds

    @staticmethod
    def remove_reports(order: GangOrder) -> None:
        """Removes the last reports of a gang's runners, once they are recorded. Idempotent."""
        for replica in order.replicas:
            forget_status(Path(replica.spool))


def _is_runner(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return "lockstep.runner" in psutil.Process(pid).cmdline()
    return False


def _read_status(replica: ReplicaOrder) -> ReplicaStatus | None:
    try:
        return STATUS.validate_json(Path(replica.spool, STATUS_FILE).read_bytes())
    except (OSError, ValidationError):  # the file may be empty after a power failure
        return None


def _signs_of_status(status: ReplicaStatus | None) -> Iterator[tuple[str, float]]:
    if status is not None and status.started_time_s is not None:
        yield "the start", status.started_time_s
        if status.seen_time_s is not None:
            yield "the last report", status.seen_time_s
        if status.progress is not None:
            yield "a heartbeat", status.progress.time_s


def _signs_in_bucket(replica: ReplicaOrder) -> Iterator[tuple[str, float]]:
    log = _Segments(replica.log_url, folder=Path(replica.spool, LOG_FOLDER))
    entry = decode_entry(log.last_line())
    if entry is not None:
        yield "a log entry", entry.time_s
    if replica.metrics_url is not None and not log.is_unreadable:
        sample = decode_sample(_series(replica, url=replica.metrics_url).last_line())
        if sample is not None:
            yield "a sample of metrics", sample.time_s


def _series(replica: ReplicaOrder, *, url: str) -> _Segments:
    return _Segments(url, folder=Path(replica.spool, METRICS_FOLDER))


@final
class _Segments:
    """The segments of a log or of metrics, in the bucket and in the spool.

    Args:
        url: the bucket URL of the segments.
        folder: the folder on this node with the segments that the bucket has not accepted yet.

    Attributes:
        names: the names of all segments, in order.
        is_unreadable: whether the segments in the bucket could not be listed.
    """

    def __init__(self, url: str, *, folder: Path) -> None:
        self._bucket = open_bucket(url, policy=QUICK_POLICY)
        # The folder is listed first: segments that the service moves to the bucket meanwhile are then found there.
        self._waiting = {path.name: path for path in segments_in(folder)}
        self.is_unreadable = False
        names = set(self._waiting)
        try:
            names.update(item.key for item in self._bucket.list() if SEGMENT_NAME.fullmatch(item.key))
        except StorageError as error:
            self.is_unreadable = True
            LOGGER.warning("the segments of a lost gang in %s cannot be listed: %s", url, error)
        self.names = sorted(names)

    def last_line(self) -> bytes:
        """Returns the last line of the last segment; b"" if there is no segment, or it cannot be read."""
        if not self.names:
            return b""
        name = self.names[-1]
        with contextlib.suppress(OSError, KeyError):
            return _last_line(self._waiting[name].read_bytes())
        with contextlib.suppress(StorageError, MissingInputError):
            return _last_line(self._bucket.read(name))
        return b""


def _last_line(data: bytes) -> bytes:
    return data.splitlines()[-1] if data else b""
