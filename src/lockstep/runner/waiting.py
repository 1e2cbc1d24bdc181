"""Waits for slow actions before a program starts, while still reacting to "stop"."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from lockstep.errors import StorageError
from lockstep.runner.control import Control

Result = TypeVar("Result")


class StoppedError(Exception):
    """Raised if a stop is requested before the program has started."""


def wait_for(action: Callable[[], Result], *, control: Control, timeout_s: float, what: str) -> Result:
    """Runs an action in a thread and returns its result; if the action hangs, the thread is left behind.

    Args:
        action: the action to run.
        control: the input on which "stop" arrives.
        timeout_s: the maximum time to wait, in seconds.
        what: the beginning of the error message if the action takes longer.

    Raises:
        StoppedError: If "stop" arrives on `control`.
        StorageError: If the action takes longer than the timeout.
        Exception: If the action raises it.
    """
    outcome: list[Result | Exception] = []
    receiver, sender = socket.socketpair()

    def act() -> None:
        try:
            outcome.append(action())
        except Exception as error:  # passed to the caller, which raises it
            outcome.append(error)
        with contextlib.suppress(OSError):  # nobody waits any more
            sender.send(b".")

    with receiver, sender, selectors.DefaultSelector() as selector:
        if control.is_stopped:
            raise StoppedError
        selector.register(control, selectors.EVENT_READ, "control")
        selector.register(receiver, selectors.EVENT_READ, "done")
        threading.Thread(target=act, daemon=True).start()
        deadline = time.monotonic() + timeout_s
        while not outcome:
            for key, _ in selector.select(timeout=0.5):
                if key.data == "control":
                    control.read()
                    if control.is_stopped:
                        raise StoppedError
            if time.monotonic() > deadline:
                raise StorageError(f"{what} within {timeout_s:.0f} s")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]
