"""The synchronous step that is being collected, as the coordinator knows it: of how many pushes the servers hear."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, final

from lockstep.errors import LockstepError, counted
from lockstep.parameter_server.coordination.dispatching import Dispatcher
from lockstep.parameter_server.servers import Servers

LOGGER: Final = logging.getLogger(__name__)


@final
class OpenStep:
    """Says to the servers how many pushes a step needs: of all who are there, but for back-up workers.

    Args:
        control: the servers, for this alone.
        dispatcher: returns who hands closures out, once a step has begun.
        num_backups: how many workers need not have pushed.

    Attributes:
        number: the step that is being collected, or that will be next.
    """

    def __init__(self, control: Servers, *, dispatcher: Callable[[], Dispatcher], num_backups: int) -> None:
        self._control = control
        self._dispatcher = dispatcher
        self._num_backups = num_backups
        self._lock = threading.Lock()
        self.number = 0
        self._size = self._first = 0

    @property
    def is_open(self) -> bool:
        """Whether a step has begun and has not ended."""
        return self._size > 0

    def begin(self, number: int) -> int:
        """Begins a step, which the servers are still to be told of; returns of how many closures it is."""
        # The dispatcher's thread asks for the lock while it has the dispatcher's.
        size, first = self._num_workers(), self._dispatcher().next_closure
        with self._lock:
            self.number, self._size, self._first = number, size, first
        return size

    def end(self, following: int) -> None:
        """Ends the step.

        Args:
            following: the one that is next.
        """
        with self._lock:
            self.number, self._size = following, 0

    def announce(self, servers: Servers, *, step: int) -> None:
        """Says how many pushes a step needs; again where workers came or went meanwhile.

        Args:
            servers: whom to tell.
            step: which one; of one that has ended since nobody takes notice.

        Raises:
            UnavailableError: a server is gone.
        """
        said = 0
        while said != (now := self._num_expected(self._num_workers())):
            expect(servers, now, step=step)
            said = now

    def workers_have_changed(self, num_workers: int) -> bool:
        """Says how many pushes the step needs now, where one is open; for the dispatcher's thread.

        Returns:
            Whether the servers know it; else the control is of no use any more.
        """
        with self._lock:
            if not self._size:
                return True
            try:
                expect(self._control, self._num_expected(num_workers), step=self.number)
            except LockstepError as error:
                LOGGER.warning("the servers could not be told how many workers there are: %s", error)
                return False
            return True

    def renew(self, control: Servers) -> None:
        """Goes on with other links to the servers."""
        with self._lock:
            self._control.close()
            self._control = control

    def close(self) -> None:
        """Hangs up. Idempotent."""
        with self._lock:
            self._control.close()

    def _num_workers(self) -> int:
        return max(1, len(self._dispatcher().workers))

    def _num_expected(self, num_workers: int) -> int:
        """Returns how many pushes the step needs.

        Once a worker has gone on from it, all servers have had enough, but for one that was lost meanwhile: what this
        gets is of workers that missed it, and who knows how many these are.
        """
        has_ended = self._dispatcher().has_ended_since(self._first)
        return 1 if has_ended else max(1, min(self._size, num_workers) - self._num_backups)


def expect(servers: Servers, num_pushes: int, *, step: int) -> None:
    """Says how many pushes a synchronous step needs, and to the user what servers have missed.

    Raises:
        UnavailableError: a server is gone.
    """

    def on_answer(index: int, num_left_out: int) -> None:
        if num_left_out:
            lost = counted(num_left_out, "step")
            LOGGER.warning("ps %d was there too late for all gradients of %s, lost to it as well", index, lost)

    servers.expect(num_pushes, step=step, on_answer=on_answer)
