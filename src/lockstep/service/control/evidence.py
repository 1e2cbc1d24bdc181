"""What is left of gangs that no engine knows any more: what still runs of them, how they ended, and when.

A runner says every few seconds how its replica is, to the engine and to its spool folder; it carries the log and the
series of metrics to the bucket. Where the engine is gone, that is what their ends are known by.
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

MAX_READ: Final = 16
"""Of so many replicas the bucket is asked, at the most: they run in step, and a pass must not take minutes."""

UNSEEN: Final = ProgramEnd(problem="nobody saw its end: the engine was lost", fault=Fault.NODE)


@final
class Evidence:
    """Looks for what is left of gangs.

    Args:
        clock: seconds since 1970 UTC.
        monotonic: seconds, growing.
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
        """Whether something of a gang that no engine knows still runs on this machine.

        Its runners end their programs and say how they ended. What runs without a runner, or for longer than a program
        may take, is ended here.
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
        """Returns what the runners of a gang, which is over, have said last, as an engine would; None for nothing.

        Its end is None where not all of them have said how their programs ended.
        """
        found = {replica.name: status for replica in order.replicas if (status := _read_status(replica)) is not None}
        if not found:
            return None
        has_all = len(found) == len(order.replicas) and all(each.phase is ReplicaPhase.ENDED for each in found.values())
        end = None
        if has_all:
            end = next_step(order, statuses=found, stop_requested=False, now_s=self._clock()).end
        replicas = tuple(
            each if each.phase is ReplicaPhase.ENDED else replace(each, phase=ReplicaPhase.ENDED, end=UNSEEN)
            for each in found.values()
        )
        return GangStatus(gang_id=order.gang_id, phase=GangPhase.ENDED, replicas=replicas, end=end)

    def started_s(self, order: GangOrder) -> float | None:
        """Returns when a gang's programs first ran, as far as the bucket shows it; None where it shows nothing."""
        found: list[float] = []
        for replica in order.replicas[:MAX_READ]:
            if replica.metrics_url is None:
                continue
            series = _series(replica, url=replica.metrics_url)
            found += [time_s for name in series.names[:1] if (time_s := key_time_s(name)) is not None]
            if series.is_refused:
                break
        return min(found, default=None)

    def end(self, job: JobRecord, order: GangOrder, *, status: GangStatus | None) -> EndBounds:
        """Returns when a gang that is over ended, to the last sign of it where nobody recorded that.

        Args:
            job: its job, as it was recorded last.
            order: the gang.
            status: what is known of it otherwise; None for nothing.
        """
        statuses = {} if status is None else {replica.name: replica for replica in status.replicas}
        recorded = {replica.status.name: replica.status for replica in job.replicas}
        replicas: list[ReplicaEvidence] = []
        num_read = 0
        for replica in order.replicas:
            known = statuses.get(replica.name)
            if known is None or (known.end is not None and known.end.fault is Fault.NODE):
                said = _read_status(replica)  # after its launcher was lost a runner ends its program, and says how
                known = said if said is not None and said.end is not None else known
            if known is not None and known.end is not None and known.end.fault is not Fault.NODE:
                replicas.append(ReplicaEvidence(name=replica.name, ended_time_s=known.ended_time_s))
                continue
            signs = dict(_signs_of_status(known)) or dict(_signs_of_status(recorded.get(replica.name)))
            if num_read < MAX_READ:
                num_read += 1
                signs |= dict(_signs_in_bucket(replica))
            last_s = max([*signs.values(), job.run_start_time_s or 0.0])
            known_gone = [
                *([] if known is None or known.ended_time_s is None else [known.ended_time_s]),
                *([psutil.boot_time()] if Path(replica.spool).is_dir() else []),  # it ran on this machine
            ]
            gone = min((time_s for time_s in known_gone if time_s > last_s), default=None)
            replicas.append(ReplicaEvidence(name=replica.name, signs=signs, gone_by_s=gone))
        started_s = job.run_start_time_s
        bounds = bound_end(replicas, started_s=0.0 if started_s is None else started_s, now_s=self._clock())
        if started_s is None and not bounds.earliest_s:  # it never ran, and left nothing
            return EndBounds(earliest_s=bounds.latest_s, latest_s=bounds.latest_s)
        return bounds

    @staticmethod
    def forget(order: GangOrder) -> None:
        """Removes what a gang's runners have said, once that is recorded. Idempotent."""
        for replica in order.replicas:
            forget_status(Path(replica.spool))


def _is_runner(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return "lockstep.runner" in psutil.Process(pid).cmdline()
    return False


def _read_status(replica: ReplicaOrder) -> ReplicaStatus | None:
    try:
        return STATUS.validate_json(Path(replica.spool, STATUS_FILE).read_bytes())
    except (OSError, ValidationError):  # a machine that lost its power may have an empty file
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
    if replica.metrics_url is not None and not log.is_refused:
        sample = decode_sample(_series(replica, url=replica.metrics_url).last_line())
        if sample is not None:
            yield "a sample of metrics", sample.time_s


def _series(replica: ReplicaOrder, *, url: str) -> _Segments:
    return _Segments(url, folder=Path(replica.spool, METRICS_FOLDER))


@final
class _Segments:
    """Segments of a log or a series, wherever they are.

    Args:
        url: the bucket URL where they belong.
        folder: the folder on this node where those lie that the bucket did not take yet.

    Attributes:
        names: of all of them, in order.
        is_refused: whether the bucket does not say which it has.
    """

    def __init__(self, url: str, *, folder: Path) -> None:
        self._bucket = open_bucket(url, policy=QUICK_POLICY)
        # The folder first: what the service carries from there meanwhile is in the bucket when that is looked at.
        self._waiting = {path.name: path for path in segments_in(folder)}
        self.is_refused = False
        names = set(self._waiting)
        try:
            names.update(item.key for item in self._bucket.list() if SEGMENT_NAME.fullmatch(item.key))
        except StorageError as error:
            self.is_refused = True
            LOGGER.warning("what a lost gang left in %s cannot be looked at: %s", url, error)
        self.names = sorted(names)

    def last_line(self) -> bytes:
        """Returns the last line of the last one; b"" where there is none, or the bucket refuses it."""
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
