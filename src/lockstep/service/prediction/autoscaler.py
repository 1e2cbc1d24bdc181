"""Observes the load of versions, and keeps the history that decisions about their servers need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, final

from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.service.prediction.loads import LoadTracker, ServerLoad
from lockstep.service.prediction.scaling import Decision, Observation, ScalingHistory, decide
from lockstep.service.store import JobRecord, ScalingPolicy, VersionRecord

USE_PRECISION_S: Final = 61.0
"""How much later than recorded a version may have been used, in seconds: see `lockstep.service.prediction.uses`."""
_LOCAL_CORES: Final = os.cpu_count() or 1


@final
class Autoscaler:
    """Decides how many servers versions should have. For one thread.

    Its memory is only of the last minutes. A service that takes over begins with the recorded numbers of servers, which
    then stay for the stabilization window at least, and with the recorded times of the last uses.

    Args:
        catalogue: the catalogue of machines, which knows their cores.
        simulates_machines: whether machine types exist only by name, so that servers share the cores of this machine.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(self, *, catalogue: Catalogue, simulates_machines: bool, clock: Callable[[], float]) -> None:
        self._catalogue = catalogue
        self._simulates_machines = simulates_machines
        self._clock = clock
        self._histories: dict[str, ScalingHistory] = {}
        self._trackers: dict[str, LoadTracker] = {}

    def decide(
        self, version: VersionRecord, policy: ScalingPolicy, *, ready: Sequence[JobRecord], num_waiting: int
    ) -> Decision:
        """Decides how many servers a version should have.

        Args:
            version: the version.
            policy: its policy.
            ready: its servers that are ready.
            num_waiting: the number of its requests that wait at the services.
        """
        now_s = self._clock()
        current = version.num_servers
        known = self._histories.get(version.uid)
        history = known or ScalingHistory.begin(
            current=current, now_s=now_s, last_request_s=_latest_use_s(version.last_use_time_s)
        )
        has_requests, loads = False, list[ServerLoad]()
        for server in ready:
            tracker = self._tracker(server)
            before = tracker.num_requests
            tracker.add(server.replicas[0].status)
            # What a server had answered before it was first observed may be long ago.
            has_requests |= known is not None and tracker.num_requests != before
            loads.append(tracker.load())
        observed = Observation(loads=loads, num_waiting=num_waiting, has_requests=has_requests)
        decision = decide(policy, current=current, observed=observed, history=history, now_s=now_s)
        self._histories[version.uid] = decision.history
        return decision

    def keep_only(self, *, versions: Iterable[str], servers: Iterable[str]) -> None:
        """Forgets all versions and servers but these, by their uids."""
        versions, servers = set(versions), set(servers)
        self._histories = {uid: each for uid, each in self._histories.items() if uid in versions}
        self._trackers = {uid: each for uid, each in self._trackers.items() if uid in servers}

    def _tracker(self, server: JobRecord) -> LoadTracker:
        if server.uid not in self._trackers:
            cores = self._catalogue.machine_type(server.replicas[0].machine_type).vcpus
            if self._simulates_machines:
                cores = min(cores, _LOCAL_CORES)
            self._trackers[server.uid] = LoadTracker(cores=cores)
        return self._trackers[server.uid]


def _latest_use_s(recorded_s: float | None) -> float | None:
    """Returns the latest time of the last use of a version, which is recorded to the minute; None if it is unknown."""
    return None if recorded_s is None else recorded_s + USE_PRECISION_S
