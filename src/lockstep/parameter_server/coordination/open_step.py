"""The current synchronous step in the coordinator, which tells the servers how many pushes the step needs."""

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
    """Tells the servers how many pushes a step needs: one of each connected worker, except the backup workers.

    Args:
        control: links to the servers that only this object uses.
        dispatcher: a function that returns the dispatcher; called only once a step has begun.
        num_backups: the number of workers whose pushes a step need not wait for.

    Attributes:
        number: the step that is being collected, or the next one.
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
        """Begins a step, without telling the servers yet; returns its number of closures."""
        # Outside the lock: the dispatcher's thread acquires this lock while it holds the dispatcher's.
        size, first = self._num_workers(), self._dispatcher().next_closure
        with self._lock:
            self.number, self._size, self._first = number, size, first
        return size

    def end(self, following: int) -> None:
        """Ends the step.

        Args:
            following: the number of the next step.
        """
        with self._lock:
            self.number, self._size = following, 0

    def announce(self, servers: Servers, *, step: int) -> None:
        """Tells servers how many pushes a step needs, and repeats it if workers came or went meanwhile.

        Args:
            servers: the servers to tell.
            step: the number of the step. Servers ignore it if this step has ended.

        Raises:
            UnavailableError: a server is lost.
        """
        said = 0
        while said != (now := self._num_expected(self._num_workers())):
            expect(servers, now, step=step)
            said = now

    def workers_have_changed(self, num_workers: int) -> bool:
        """Tells the servers how many pushes the step needs now, if one is open. Called from the dispatcher's thread.

        Returns:
            Whether all servers were told; otherwise `control` cannot be used any more.
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
        """Replaces the links to the servers."""
        with self._lock:
            self._control.close()
            self._control = control

    def close(self) -> None:
        """Closes the links to the servers. Idempotent."""
        with self._lock:
            self._control.close()

    def _num_workers(self) -> int:
        return max(1, len(self._dispatcher().workers))

    def _num_expected(self, num_workers: int) -> int:
        """Returns how many pushes the step needs.

        Once a worker has gone on from the step, all servers have had enough pushes, except one that was lost meanwhile.
        That server only gets the pushes of workers that missed it, and their number is unknown, so one is enough.
        """
        has_ended = self._dispatcher().has_ended_since(self._first)
        return 1 if has_ended else max(1, min(self._size, num_workers) - self._num_backups)


def expect(servers: Servers, num_pushes: int, *, step: int) -> None:
    """Tells servers how many pushes a synchronous step needs, and logs the steps that servers have missed.

    Raises:
        UnavailableError: a server is lost.
    """

    def on_answer(index: int, num_skipped_steps: int) -> None:
        if num_skipped_steps:
            LOGGER.warning("ps %d missed the gradients of %s", index, counted(num_skipped_steps, "step"))

    servers.expect(num_pushes, step=step, on_answer=on_answer)
