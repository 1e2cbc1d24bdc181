"""Ends a process of a job: with its own error, or with a last line that names the lost peer.

A collective that waits for a dead peer cannot be interrupted, so another thread has to end the process. A collective
that fails raises an error in the main thread before it is known which peer was lost. This module handles both cases.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Protocol, final

from lockstep.errors import PeerLostError
from lockstep.processes.exits import finish_now

_LAST_WORDS_TIMEOUT_S: Final = 2.0
"""How long writing the last line may take if nobody reads this process's output."""

_FINISH_TIMEOUT_S: Final = 10.0
"""How long a process that lost a peer continues its writes in the background."""


class PeerMonitor(Protocol):
    """The watchdog, as this module uses it."""

    def await_loss(self) -> PeerLostError | None:
        """Waits for a short time for the report of a lost peer."""
        ...

    def fail(self, what: str) -> None:
        """Reports to the other processes that this process fails, and why."""
        ...


_STATUS: Final = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): ")
"""The beginning of an error with a status of XLA (``absl::StatusCode``) that a lost connection may cause."""


@final
class ProcessExit:
    """Controls how this process ends. It exists from the meeting on, and installs a `sys.excepthook`."""

    def __init__(self) -> None:
        self._monitor: PeerMonitor | None = None
        self._on_exit: Callable[[bool], None] | None = None
        self._failed = False
        self._own_error = False
        self._pid = os.getpid()
        self._speaking = threading.Lock()
        self._previous_hook = sys.excepthook
        sys.excepthook = self._on_uncaught

    def watch(self, monitor: PeerMonitor, *, on_exit: Callable[[bool], None]) -> None:
        """Makes the other processes learn how this process ends.

        Args:
            monitor: the watchdog over the other processes.
            on_exit: a function that is called when the interpreter ends. Its argument is whether an error ended it.
        """
        self._monitor, self._on_exit = monitor, on_exit
        atexit.register(self._exit)

    def exit_now(self, loss: PeerLostError) -> None:
        """Ends the process at once, from any thread, with a last line and the error's exit code.

        Returns only if an error of this process's own is ending it already.
        """
        if self._own_error:
            return
        finish_now(_FINISH_TIMEOUT_S)  # a checkpoint that is being written needs no other process
        speaker = threading.Thread(target=self._print_last_line, args=(loss,), daemon=True)
        speaker.start()
        speaker.join(_LAST_WORDS_TIMEOUT_S)
        os._exit(loss.exit_code)

    def _print_last_line(self, loss: PeerLostError) -> None:
        # The lock keeps the last line out of a traceback that the main thread is printing.
        with self._speaking:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os.write(2, f"lockstep: error: {loss}\n".encode())
            os._exit(loss.exit_code)

    def _on_uncaught(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if os.getpid() != self._pid:  # in a forked child
            self._previous_hook(kind, error, traceback)
            return
        self._failed = True
        self._own_error = not _is_of_the_runtime(error)
        with self._speaking:
            self._previous_hook(kind, error, traceback)
        if self._monitor is not None:
            loss = None if self._own_error else self._monitor.await_loss()
            if loss is not None:
                self.exit_now(loss)
            self._own_error = True
            self._monitor.fail(f"{kind.__name__}: {(str(error).splitlines() or [''])[0]}"[:300])
        if isinstance(error, PeerLostError):
            raise SystemExit(error.exit_code)  # raised in the hook, it sets the exit code of the process

    def _exit(self) -> None:
        if os.getpid() != self._pid or self._on_exit is None:
            return
        try:
            self._on_exit(self._failed)
        except Exception as error:  # Python would print it and exit with code 0
            try:
                self._on_uncaught(type(error), error, error.__traceback__)
            finally:
                os._exit(1)


def _is_of_the_runtime(error: BaseException) -> bool:
    """Whether an error may come from a collective that lost its peer.

    XLA raises the same class with the same form for all kinds of errors, and for some errors a plain `ValueError`.
    """
    return any(_STATUS.match(str(link)) is not None for link in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
