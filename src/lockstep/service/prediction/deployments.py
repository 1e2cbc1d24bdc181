"""Advances deployed versions: copies their files, starts and ends their servers, and records their states.

A prediction server is a job of its own, which the controller places, watches and bills like any other. This loop only
decides how many there are: as many as asked for, or as the load of the version needs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, final

from lockstep.clusters import AbstractCluster
from lockstep.errors import LockstepError, WrongStateError
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.jobs.running.supervision import SERVER_WINDOW_S
from lockstep.service.prediction.autoscaler import Autoscaler
from lockstep.service.prediction.copying import Copies
from lockstep.service.prediction.draining import Drains
from lockstep.service.prediction.files import copy_files, delete_files
from lockstep.service.prediction.servers import start_server
from lockstep.service.security.job_folders import JobFolders
from lockstep.service.store import (
    DATABASE_FAULTS,
    DemandStore,
    JobRecord,
    JobStore,
    LeaseLostError,
    ModelStore,
    VersionRecord,
    VersionState,
)
from lockstep.storage import may_succeed_later

LOGGER: Final = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.2

MAX_FAILURES: Final = 5
"""The number of servers in a row that end by themselves, after which a version that was READY fails."""
FIRST_PAUSE_S: Final = 1.0
"""The pause after the first such end. Each further pause is twice as long."""
SETTLED_S: Final = SERVER_WINDOW_S
"""How long after the last such end a server has to be ready for the next end to count as the first again, in seconds.

A server that ends again and again, such as one whose requests never end, ends for good within this time."""

_OWN_FAULTS: Final = (EndKind.USER_ERROR, EndKind.OUT_OF_MEMORY, EndKind.STUCK)
"""Ends that a server that was never ready has caused itself."""
_NODES: Final = (EndKind.NODE_LOST, EndKind.PREEMPTED)
"""Ends that say nothing of the next server, which starts on another node."""


@final
class Deployments:
    """Advances versions through their states: CREATING, then READY or FAILED, then DELETING, then removed.

    What matters is in the database, so another service can continue with it.

    Args:
        models: the store of models and versions.
        jobs: the store of jobs, and so of prediction servers.
        demands: the store of requests that wait for a server.
        cluster: the engine.
        catalogue: the catalogue of machines.
        bucket: the URL of the service's default bucket.
        folder: a local folder for temporary files.
        folders: closes folders to programs with user ids of their own; None if programs have none.
        wake: called when the controller has something to do.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(
        self,
        *,
        models: ModelStore,
        jobs: JobStore,
        demands: DemandStore,
        cluster: AbstractCluster,
        catalogue: Catalogue,
        bucket: str,
        folder: Path,
        folders: JobFolders | None = None,
        wake: Callable[[], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._models = models
        self._jobs = jobs
        self._demands = demands
        self._cluster = cluster
        self._bucket = bucket
        self._copies = Copies(self._copy_files, folder=folder)
        self._folders = folders
        self._wake = wake
        self._clock = clock
        self._autoscaler = Autoscaler(catalogue=catalogue, simulates_machines=cluster.simulates_machines, clock=clock)
        self._drains = Drains(clock=clock)

    def run(self, stop: threading.Event, *, has_lease: Callable[[], bool]) -> None:
        """Makes passes over the versions until `stop` is set.

        Args:
            stop: the event that ends the loop.
            has_lease: returns whether this service holds the lease.
        """
        while not stop.wait(POLL_INTERVAL_S):
            try:
                if has_lease():
                    self.step()
            except DATABASE_FAULTS:  # the controller reports it
                continue
            except LeaseLostError as error:
                LOGGER.warning("%s", error)
            except Exception:  # a failed pass must not end the loop that every version depends on
                LOGGER.exception("a pass over the deployments failed")

    def step(self) -> None:
        """Makes one pass over the versions.

        Raises:
            LeaseLostError: If another service has acquired the lease. The pass ends, since all its writes would fail.
        """
        servers: defaultdict[str, list[JobRecord]] = defaultdict(list)
        for server in self._jobs.servers():
            servers[str(server.version_uid)].append(server)
        versions = self._models.list_versions()
        waiting = self._demands.waiting() if any(version.scaling for version in versions) else {}
        all_servers = [server for found in servers.values() for server in found]
        self._autoscaler.keep_only(versions=(v.uid for v in versions), servers=(s.uid for s in all_servers))
        self._drains.keep_only(server.uid for server in all_servers if server.drain_time_s is not None)
        for version in versions:
            try:
                self._advance(version, servers.pop(version.uid, []), waiting=waiting)
            except (LeaseLostError, *DATABASE_FAULTS):
                raise
            except (LockstepError, OSError) as error:  # such as a full disk
                LOGGER.error("version %s of %s: %s", version.name, version.model, error)
            except Exception:  # a bug, which must not affect other versions
                LOGGER.exception("version %s of %s", version.name, version.model)

    def _advance(self, version: VersionRecord, servers: Sequence[JobRecord], *, waiting: Mapping[str, int]) -> None:
        """Advances one version by one step.

        The version may have changed since it was read. An update applies only if the state has not changed; otherwise
        a later pass handles the new state.
        """
        live = [server for server in servers if server.state not in (JobState.CANCELLING, *TERMINAL)]
        if version.state is VersionState.DELETING:
            self._end(self._drain(live), detail="its version was deleted")
            if not servers and not self._copies.is_copying(version):
                delete_files(version, bucket=self._bucket)
                self._models.remove_version(version)
        elif version.state is VersionState.FAILED:
            self._end(live, detail="its version failed")
        elif not version.has_files:
            self._copy(version)
        elif len(_staying(live)) >= version.num_servers or not self._note_failure(version):
            self._pin_image(version, live)
            self._note_ready(version, live)
            decided = self._decide(version, live, num_waiting=waiting.get(version.uid, 0))
            self._scale(decided, live)
            self._note_update(decided, live)

    def _copy(self, version: VersionRecord) -> None:
        try:
            files = self._copies.poll(version)
        except (LockstepError, OSError) as error:
            if isinstance(error, LockstepError) and not may_succeed_later(error):
                self._models.update_version(version, state=VersionState.FAILED, error_message=str(error))
            elif version.error_message != str(error):  # it is tried again; until then, the version says why it waits
                self._models.update_version(version, error_message=str(error))
                LOGGER.warning("the files of version %s of %s: %s", version.name, version.model, error)
            return
        if files is not None:
            self._models.update_version(version, files=files, error_message=None)

    def _copy_files(self, version: VersionRecord, folder: Path) -> tuple[FileOrder, ...]:
        if self._folders is not None:
            self._folders.close_models(version.project)
        return copy_files(version, bucket=self._bucket, folder=folder)

    def _note_failure(self, version: VersionRecord) -> bool:
        """Records that a server has ended by itself; returns whether it did, or the version failed.

        A server that was ready is launched again where it is, and only ends if it does not stay up.
        """
        server = self._jobs.last_server(version.uid)
        if server is None or server.state not in (JobState.FAILED, JobState.SUCCEEDED) or server.end_time_s is None:
            return False
        if version.last_failure_time_s is not None and server.end_time_s <= version.last_failure_time_s:
            return False
        kind = (server.end_reason or EndKind.USER_ERROR.value).partition("(")[0]
        if kind in _NODES:
            self._models.update_version(version, last_failure_time_s=server.end_time_s)
            return True
        num_failures = version.num_failures + 1
        changes = {"num_failures": num_failures, "last_failure_time_s": server.end_time_s}
        if num_failures > MAX_FAILURES or (version.state is VersionState.CREATING and kind in _OWN_FAULTS):
            reason = why_ended(server)
            self._models.update_version(version, state=VersionState.FAILED, error_message=reason, **changes)
        else:
            LOGGER.warning("a server of version %s of %s ended: %s", version.name, version.model, why_ended(server))
            self._models.update_version(version, **changes)
        return True

    def _pin_image(self, version: VersionRecord, servers: Sequence[JobRecord]) -> None:
        """Records the image that the first server runs, and ends servers that run another one.

        From then on, servers are started with that image or not at all. Only one that was started before may differ.
        """
        container = version.container
        if container is None:
            return
        images = {server.uid: server.replicas[0].status.image_id for server in servers if server.replicas}
        pinned = container.image_id or next(filter(None, images.values()), None)
        if pinned is not None and container.image_id is None:
            self._models.update_version(version, container=replace(container, image_id=pinned))
        others = [server for server in servers if images.get(server.uid) not in (None, "", pinned)]
        self._end(others, detail="its image is not the one that was deployed")

    def _note_ready(self, version: VersionRecord, live: Sequence[JobRecord]) -> None:
        if not any(is_ready(server) for server in live):
            return
        if version.state is VersionState.CREATING:
            if self._models.update_version(version, state=VersionState.READY, num_failures=0):
                self._retire(version)
        elif version.num_failures and self._since_failure_s(version) >= SETTLED_S:
            self._models.update_version(version, num_failures=0)

    def _retire(self, newest: VersionRecord) -> None:
        for name in self._models.retire_versions(newest):
            LOGGER.info(
                "version %s of %s in project %s is deleted: %s is READY, and the model keeps no more versions than its "
                "lockstep.maxVersions",
                name,
                newest.model,
                newest.project,
                newest.name,
            )

    def _decide(self, version: VersionRecord, live: Sequence[JobRecord], *, num_waiting: int) -> VersionRecord:
        """Returns a version with the number of servers that its load needs, after it was recorded."""
        if version.scaling is None or version.state is not VersionState.READY:
            return version
        ready = [server for server in live if is_ready(server)]
        decision = self._autoscaler.decide(version, version.scaling, ready=ready, num_waiting=num_waiting)
        if decision.wanted == version.num_servers or not self._models.set_num_servers(version, decision.wanted):
            return version
        LOGGER.info(
            "version %s of %s: from %d to %d servers: %s",
            version.name,
            version.model,
            version.num_servers,
            decision.wanted,
            decision.reason,
        )
        return replace(version, num_servers=decision.wanted)

    def _scale(self, version: VersionRecord, live: Sequence[JobRecord]) -> None:
        """Starts a server if there are too few, and drains and ends the newest if there are too many.

        A server that drains is taken back before another one is started.
        """
        staying = _staying(live)
        draining = [server for server in live if server.drain_time_s is not None]
        if len(staying) < version.num_servers:
            for server in [server for server in draining if is_ready(server)][: version.num_servers - len(staying)]:
                self._jobs.update(server.uid, drain_time_s=None)
                staying.append(server)
                draining.remove(server)
        if len(staying) < version.num_servers and pause_end_s(version, now_s=self._clock()) is None:
            simulated = self._cluster.simulates_machines
            start_server(version, jobs=self._jobs, bucket=self._bucket, simulated=simulated)
            self._wake()
        by_readiness = sorted(staying, key=lambda server: (not is_ready(server), server.create_time_s))
        surplus = by_readiness[version.num_servers :]
        self._end(self._drain([*draining, *surplus]), detail="its version needs fewer servers")

    def _drain(self, servers: Sequence[JobRecord]) -> list[JobRecord]:
        """Has services send no more requests to servers; returns those that have answered all that they have."""
        drained: list[JobRecord] = []
        for server in servers:
            if not is_ready(server):
                drained.append(server)  # no service sends it requests
            elif server.drain_time_s is None:
                self._jobs.update(server.uid, drain_time_s=self._clock())
            elif self._drains.is_drained(server):
                drained.append(server)
        return drained

    def _note_update(self, version: VersionRecord, live: Sequence[JobRecord]) -> None:
        """Ends the operation of an update when the servers are as many as wanted."""
        if version.update_operation is not None and len(live) == sum(map(is_ready, live)) == version.num_servers:
            self._models.end_update(version)

    def _since_failure_s(self, version: VersionRecord) -> float:
        """Returns how long ago a server ended by itself, in seconds. A clock that was set back makes it no shorter."""
        if version.last_failure_time_s is None:
            return math.inf
        passed_s = self._clock() - version.last_failure_time_s
        return passed_s if passed_s >= 0 else math.inf

    def _end(self, servers: Sequence[JobRecord], *, detail: str) -> None:
        for server in servers:
            with contextlib.suppress(WrongStateError):  # it has just ended by itself
                reason = EndReason(kind=EndKind.CANCELLED, details=("by the service",))
                self._jobs.advance(server.uid, JobEvent.CANCEL_REQUESTED, detail=detail, end_reason=str(reason))
                self._wake()


def _staying(servers: Sequence[JobRecord]) -> list[JobRecord]:
    return [server for server in servers if server.drain_time_s is None]


def is_ready(server: JobRecord) -> bool:
    """Returns whether a prediction server accepts requests, as far as the engine has reported."""
    if server.state is not JobState.RUNNING or len(server.replicas) != 1:
        return False
    status = server.replicas[0].status
    return status.ready_time_s is not None and status.ended_time_s is None


def pause_end_s(version: VersionRecord, *, now_s: float) -> float | None:
    """Returns when a version's next server is started after one that failed; None if it is not in such a pause.

    Args:
        version: the version.
        now_s: the current time, in seconds since 1970 UTC.
    """
    if version.last_failure_time_s is None or version.num_failures == 0:
        return None
    pause_s = FIRST_PAUSE_S * 2.0 ** (version.num_failures - 1)
    # A clock that was set back must not make the pause longer.
    return version.last_failure_time_s + pause_s if 0 <= now_s - version.last_failure_time_s < pause_s else None


def why_ended(server: JobRecord) -> str:
    """Returns the last line of a server's output if it ended by itself, or else how it ended."""
    replica = server.replicas[0].status if server.replicas else None
    if replica is not None and replica.end is not None and replica.end.exit_code and replica.end.tail:
        return replica.end.tail[-1]
    return (server.error_message or f"its server ended: {server.state}").splitlines()[0]
