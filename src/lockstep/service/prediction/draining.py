"""Decides when a prediction server that gets no further requests can be ended without losing one.

Services stop choosing a server within `lockstep.service.prediction.routing.MAX_AGE_S` after it was recorded as
draining. What they have sent by then, the server still answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, final

from lockstep.service.store import JobRecord

SETTLE_S: Final = 3.0
"""How long after its record a server is sure to get no further request, in seconds. It is longer than services choose
it for, plus what a heartbeat takes to be recorded, so that what is known by then is from after the last request."""
MAX_DRAIN_S: Final = 120.0
"""After this time, a server is ended in any case, in seconds. No request is sent on for that long."""


@final
@dataclass(kw_only=True)
class _Drain:
    begun_s: float
    beat_s: float | None = None


@final
class Drains:
    """Watches the servers that drain. For one thread.

    A service that takes over watches from the beginning, which only takes longer.

    Args:
        clock: a clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._drains: dict[str, _Drain] = {}

    def is_drained(self, server: JobRecord) -> bool:
        """Returns whether a draining server that is ready has answered all its requests.

        Args:
            server: the server, as it was recorded last.
        """
        now_s = self._clock()
        drain = self._drains.setdefault(server.uid, _Drain(begun_s=now_s))
        drain.begun_s = min(drain.begun_s, now_s)  # the clock may have been set back
        progress = server.replicas[0].status.progress
        if now_s - drain.begun_s >= MAX_DRAIN_S or progress is None:
            return True
        if now_s - drain.begun_s < SETTLE_S:
            return False
        if drain.beat_s is None:
            drain.beat_s = progress.time_s
        is_heard = progress.time_s != drain.beat_s
        return is_heard and not progress.metrics.get("open") and not progress.metrics.get("waiting")

    def keep_only(self, servers: Iterable[str]) -> None:
        """Forgets all servers but these, by their uids."""
        servers = set(servers)
        self._drains = {uid: drain for uid, drain in self._drains.items() if uid in servers}
