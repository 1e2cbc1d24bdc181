"""Waiting for what may take long before a program starts, without being deaf to "stop"."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from lockstep.errors import StorageError

Result = TypeVar("Result")


class StoppedError(Exception):
    """Somebody asked for the end before the program had started."""


def wait_for(action: Callable[[], Result], *, control: int, timeout_s: float, what: str) -> Result:
    """Runs an action in a thread of its own and returns what it returns; the thread is left behind where it hangs.

    Args:
        action: what to do.
        control: a file descriptor; something to be read there, or its end, means "stop".
        timeout_s: how long to wait at the most.
        what: the problem, where it takes longer.

    Raises:
        StoppedError: something came on `control`.
        StorageError: it took longer.
        Exception: what the action raised.
    """
    outcome: list[Result | Exception] = []
    receiver, sender = socket.socketpair()

    def act() -> None:
        try:
            outcome.append(action())
        except Exception as error:  # handed to the caller, which raises it
            outcome.append(error)
        with contextlib.suppress(OSError):  # nobody waits any more
            sender.send(b".")

    with receiver, sender, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ, "control")
        selector.register(receiver, selectors.EVENT_READ, "done")
        threading.Thread(target=act, daemon=True).start()
        deadline = time.monotonic() + timeout_s
        while not outcome:
            for key, _ in selector.select(timeout=0.5):
                if key.data == "control":
                    raise StoppedError
            if time.monotonic() > deadline:
                raise StorageError(f"{what} within {timeout_s:.0f} s")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]
