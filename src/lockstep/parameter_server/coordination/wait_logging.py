"""Records what the coordinator and its workers wait for, and since when, so that no wait is silent.

`StallDetector` and `GiveBackCounter` find this out, and are pure. `WaitLogger` logs it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from lockstep.errors import UnavailableError
from lockstep.parameter_server.links.client import LOG_INTERVAL_S

LOGGER: Final = logging.getLogger(__name__)

LATE_S: Final = 60.0
"""How long no worker may make progress before the workers that all wait for are logged, in seconds.

Doubled each time that they are logged.
"""
MANY: Final = 10
"""The number of times that a closure is given back between two warnings."""


@final
@dataclass(kw_only=True, slots=True)
class _Stay:
    closure: int
    since_s: float
    awaits_servers: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Late:
    """A worker that others wait for.

    Attributes:
        worker: the name of the worker.
        closure: the last closure that it was given.
        stay_s: how long it has been running this closure, in seconds.
        awaits_servers: whether it has done its part, and waits for an answer of the servers.
    """

    worker: str
    closure: int
    stay_s: float
    awaits_servers: bool


@final
class StallDetector:
    """Records which closure each worker is running, and finds the workers that all wait for if none makes progress.

    A worker that makes progress, even slowly, does not keep others waiting forever. As long as other workers make
    progress beside a worker that does not, nobody waits for it yet.

    Not thread-safe: the owner serializes calls.
    """

    def __init__(self) -> None:
        self._stays: dict[str, _Stay] = {}
        self._moved_s = 0.0
        self._next_s = LATE_S

    def begin(self, worker: str, closure: int, *, now_s: float) -> None:
        """Records that a worker was given a closure."""
        self._move(now_s)
        self._stays[worker] = _Stay(closure=closure, since_s=now_s)

    def go_on(self, worker: str, *, now_s: float) -> None:
        """Records that a worker makes progress with what it was given before."""
        self._move(now_s)
        if worker in self._stays:
            self._stays[worker] = _Stay(closure=self._stays[worker].closure, since_s=now_s)

    def end(self, worker: str, *, now_s: float) -> None:
        """Records that a worker is idle or lost."""
        self._move(now_s)
        self._stays.pop(worker, None)

    def note_awaits_servers(self, worker: str, closure: int) -> None:
        """Records that a worker has done its part of a closure and waits for the servers.

        Ignored for another closure.
        """
        stay = self._stays.get(worker)
        if stay is not None and stay.closure == closure:
            stay.awaits_servers = True

    def late(self, *, now_s: float) -> list[Late]:
        """Returns the workers that all others wait for, if it is time to report them.

        In a synchronous step, the other workers wait for the servers. They are left out, unless all workers do.
        """
        if not self._stays or now_s - self._moved_s < self._next_s:
            return []
        self._next_s *= 2
        found = [
            Late(worker=name, closure=stay.closure, stay_s=now_s - stay.since_s, awaits_servers=stay.awaits_servers)
            for name, stay in sorted(self._stays.items())
        ]
        return [one for one in found if not one.awaits_servers] or found

    def _move(self, now_s: float) -> None:
        self._moved_s, self._next_s = now_s, LATE_S


@final
class GiveBackCounter:
    """Counts how many times closures were given back, and why: one that no worker can run would be given back forever.

    Not thread-safe: the owner serializes calls.
    """

    def __init__(self) -> None:
        self._reasons: dict[int, Counter[str]] = {}

    def note(self, closure: int, *, reason: str) -> int:
        """Records that a worker has given back a closure; returns how many times this has happened."""
        reasons = self._reasons.setdefault(closure, Counter())
        reasons[reason] += 1
        return reasons.total()

    def reasons(self, closure: int) -> str:
        """Returns the most frequent reasons for which a closure was given back, as a text."""
        return "; ".join(f"{number} times: {reason}" for reason, number in self._reasons[closure].most_common(3))

    def forget(self, closure: int) -> None:
        """Forgets a closure that has ended."""
        self._reasons.pop(closure, None)


@final
class WaitLogger:
    """Logs what the coordinator waits for, and the workers that all wait for.

    Not thread-safe: the owner serializes calls.

    Args:
        address: the address to which workers connect.
        wait_for_workers_s: how long closures may wait while no worker is connected, in seconds.
        describe: a function that returns a description of a closure from its number.
        clock: a function that returns the seconds of a monotonic clock.

    Attributes:
        rejection: the reason of a worker that connected but cannot take part, as the end of an error message.
    """

    def __init__(
        self,
        *,
        address: str,
        wait_for_workers_s: float,
        describe: Callable[[int], str],
        clock: Callable[[], float],
    ) -> None:
        self._address = address
        self._wait_for_workers_s = wait_for_workers_s
        self._describe = describe
        self._clock = clock
        self._stall_detector = StallDetector()
        self._give_back_counter = GiveBackCounter()
        self._alone_since_s: float | None = None
        self._last_log_s = 0.0
        self.rejection = ""

    def begin(self, worker: str, closure: int) -> None:
        """Records that a worker was given a closure."""
        self._stall_detector.begin(worker, closure, now_s=self._clock())

    def go_on(self, worker: str) -> None:
        """Records that a worker was given nothing, and ends what it has begun."""
        self._stall_detector.go_on(worker, now_s=self._clock())

    def end(self, worker: str) -> None:
        """Records that a worker is idle or lost."""
        self._stall_detector.end(worker, now_s=self._clock())

    def note_awaits_servers(self, worker: str, closure: int) -> None:
        """Records that a worker has done its part of a closure and waits for the servers."""
        self._stall_detector.note_awaits_servers(worker, closure)

    def forget(self, closure: int) -> None:
        """Records that a closure has ended."""
        self._give_back_counter.forget(closure)

    def note_given_back(self, closure: int, *, worker: str, reason: str) -> None:
        """Records that a worker has given back a closure. Logs the first time, and every `MANY` times."""
        num_times = self._give_back_counter.note(closure, reason=reason)
        if num_times == 1:
            LOGGER.info("%s has given %s back, which waits again: %s", worker, self._describe(closure), reason)
        elif num_times % MANY == 0:
            reasons = self._give_back_counter.reasons(closure)
            LOGGER.warning("%s was given back repeatedly (%s); it waits again", self._describe(closure), reasons)

    def check_workers(self, *, is_alone: bool) -> UnavailableError | None:
        """Logs that no worker has connected.

        Args:
            is_alone: whether closures wait while no worker is connected.

        Returns:
            The error to raise, if this has lasted too long.
        """
        if not is_alone:
            self._alone_since_s = None
            return None
        now_s = self._clock()
        if self._alone_since_s is None:
            self._alone_since_s = self._last_log_s = now_s
        waited_s = now_s - self._alone_since_s
        if waited_s > self._wait_for_workers_s:
            what = f"no worker has connected to {self._address} for {waited_s:.0f} s{self.rejection}"
            return UnavailableError(what, action="start the workers, or look into their logs")
        if now_s - self._last_log_s > LOG_INTERVAL_S:
            self._last_log_s = now_s
            LOGGER.warning("waiting for workers: none has connected to %s for %.0f s", self._address, waited_s)
        return None

    def log_who_is_late(self, *, num_workers: int) -> None:
        """Logs the workers that all wait for.

        A worker may hang, in reading data for example, without losing its connection.

        Args:
            num_workers: the number of connected workers.
        """
        for late in self._stall_detector.late(now_s=self._clock()):
            who = "the others wait" if num_workers > 1 else "the coordinator waits"
            what = "it has pushed, and the servers do not answer" if late.awaits_servers else f"{who} for it"
            words = self._describe(late.closure)
            LOGGER.warning("%s has been at %s for %.0f s; %s", late.worker, words, late.stay_s, what)
