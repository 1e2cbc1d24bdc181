"""What the coordinator and its workers have waited for, and since when: nobody waits in silence.

`Lateness` and `GiveBacks` find it out, and are pure; `Patience` says it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from lockstep.errors import UnavailableError
from lockstep.parameter_server.links.client import TELL_EVERY_S

LOGGER: Final = logging.getLogger(__name__)

LATE_S: Final = 60.0
"""How long nobody goes on before it is said whom all wait for; then it is twice as long, and so on."""
MANY: Final = 10
"""A closure that was given back so many times more is worth a warning."""


@final
@dataclass(kw_only=True, slots=True)
class _Stay:
    closure: int
    since_s: float
    awaits_servers: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Late:
    """A worker for which others wait.

    Attributes:
        worker: its name.
        closure: the closure that it was given last.
        stay_s: how long it has been at it.
        awaits_servers: whether it has done its part, and the servers do not answer it.
    """

    worker: str
    closure: int
    stay_s: float
    awaits_servers: bool


@final
class Lateness:
    """Notes which closure each worker is at, and finds out whom all wait for where nobody goes on.

    Who goes on, though slowly, keeps nobody waiting for ever; and where others go on beside a worker that does not,
    nobody waits for it yet.

    Not safe for several threads at once: its owner serialises calls.
    """

    def __init__(self) -> None:
        self._stays: dict[str, _Stay] = {}
        self._moved_s = 0.0
        self._next_s = LATE_S

    def begin(self, worker: str, closure: int, *, now_s: float) -> None:
        """Notes that a worker was given a closure."""
        self._move(now_s)
        self._stays[worker] = _Stay(closure=closure, since_s=now_s)

    def go_on(self, worker: str, *, now_s: float) -> None:
        """Notes that a worker goes on with what it was given before."""
        self._move(now_s)
        if worker in self._stays:
            self._stays[worker] = _Stay(closure=self._stays[worker].closure, since_s=now_s)

    def end(self, worker: str, *, now_s: float) -> None:
        """Notes that a worker is at nothing, or has gone."""
        self._move(now_s)
        self._stays.pop(worker, None)

    def note_awaits_servers(self, worker: str, closure: int) -> None:
        """Notes that a worker has done its part of a closure, and waits for the servers; not if it is at another."""
        stay = self._stays.get(worker)
        if stay is not None and stay.closure == closure:
            stay.awaits_servers = True

    def late(self, *, now_s: float) -> list[Late]:
        """Returns those for whom all others wait, when it is time to say so.

        In a synchronous step the others wait at the servers: these are left out, but where all do.
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
class GiveBacks:
    """Counts how often closures were given back, and why: one that no worker can ever run is handed round for ever.

    Not safe for several threads at once: its owner serialises calls.
    """

    def __init__(self) -> None:
        self._reasons: dict[int, Counter[str]] = {}

    def note(self, closure: int, *, reason: str) -> int:
        """Notes that a worker has given a closure back; returns how often that was."""
        reasons = self._reasons.setdefault(closure, Counter())
        reasons[reason] += 1
        return reasons.total()

    def reasons(self, closure: int) -> str:
        """Returns the most frequent reasons why a closure was given back, in words."""
        return "; ".join(f"{number} times: {reason}" for reason, number in self._reasons[closure].most_common(3))

    def forget(self, closure: int) -> None:
        """Forgets a closure that has ended."""
        self._reasons.pop(closure, None)


@final
class Patience:
    """Says whom the coordinator waits for, and whom all wait for.

    Not safe for several threads at once: its owner serialises calls.

    Args:
        address: where workers come in.
        wait_for_workers_s: how long closures may wait without any worker being there.
        words: names a closure by its number.
        clock: seconds of a steady clock.

    Attributes:
        misfit: what one who came and cannot take part says of that.
    """

    def __init__(
        self,
        *,
        address: str,
        wait_for_workers_s: float,
        words: Callable[[int], str],
        clock: Callable[[], float],
    ) -> None:
        self._address = address
        self._wait_for_workers_s = wait_for_workers_s
        self._words = words
        self._clock = clock
        self._lateness = Lateness()
        self._give_backs = GiveBacks()
        self._alone_since_s: float | None = None
        self._told_s = 0.0
        self.misfit = ""

    def begin(self, worker: str, closure: int) -> None:
        """Notes that a worker was given a closure."""
        self._lateness.begin(worker, closure, now_s=self._clock())

    def go_on(self, worker: str) -> None:
        """Notes that a worker was given nothing, and ends what it has begun."""
        self._lateness.go_on(worker, now_s=self._clock())

    def end(self, worker: str) -> None:
        """Notes that a worker is at nothing, or has gone."""
        self._lateness.end(worker, now_s=self._clock())

    def note_awaits_servers(self, worker: str, closure: int) -> None:
        """Notes that a worker has done its part of a closure, and waits for the servers."""
        self._lateness.note_awaits_servers(worker, closure)

    def forget(self, closure: int) -> None:
        """Notes that a closure has ended."""
        self._give_backs.forget(closure)

    def note_given_back(self, closure: int, *, worker: str, reason: str) -> None:
        """Notes that a worker has given a closure back; says so at the first time, and when it is again and again."""
        num_times = self._give_backs.note(closure, reason=reason)
        if num_times == 1:
            LOGGER.info("%s has given %s back, which waits again: %s", worker, self._words(closure), reason)
        elif num_times % MANY == 0:
            reasons = self._give_backs.reasons(closure)
            LOGGER.warning("%s was given back again and again, and waits again: %s", self._words(closure), reasons)

    def check_workers(self, *, is_alone: bool) -> UnavailableError | None:
        """Says that no worker has come.

        Args:
            is_alone: whether closures wait while nobody is there.

        Returns:
            What to raise where that was so for too long.
        """
        if not is_alone:
            self._alone_since_s = None
            return None
        now_s = self._clock()
        if self._alone_since_s is None:
            self._alone_since_s = self._told_s = now_s
        waited_s = now_s - self._alone_since_s
        if waited_s > self._wait_for_workers_s:
            what = f"no worker has come to {self._address} for {waited_s:.0f} s{self.misfit}"
            return UnavailableError(what, action="start the workers, or look into their logs")
        if now_s - self._told_s > TELL_EVERY_S:
            self._told_s = now_s
            LOGGER.warning("waiting for workers: none has come to %s for %.0f s", self._address, waited_s)
        return None

    def log_who_is_late(self, *, num_workers: int) -> None:
        """Says whom all wait for: what hangs in a worker, its data say, breaks no connection, and ends nothing.

        Args:
            num_workers: how many are there.
        """
        for late in self._lateness.late(now_s=self._clock()):
            who = "the others wait" if num_workers > 1 else "the coordinator waits"
            what = "it has pushed, and the servers do not answer" if late.awaits_servers else f"{who} for it"
            words = self._words(late.closure)
            LOGGER.warning("%s has been at %s for %.0f s; %s", late.worker, words, late.stay_s, what)
