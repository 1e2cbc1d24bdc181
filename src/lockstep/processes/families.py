"""Ends all descendants of this process, in whatever sessions they are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

import psutil

from lockstep.processes.identities import POLL_S

KILL_S: Final = 10.0
"""How long killed processes may take to end, in seconds."""

_PR_SET_CHILD_SUBREAPER: Final = 36  # from Linux's prctl.h


def adopt_orphans() -> None:
    """Makes this process, instead of init, the new parent of descendants whose parent has ended (Linux only).

    So a process that a program detaches is not left behind, even if it has a session of its own.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_children(accept: Callable[[psutil.Process], bool]) -> None:
    """Reaps this process's children that have ended.

    Args:
        accept: returns whether to reap a child. It must reject children that other code waits for.
    """
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE and accept(process):
                os.waitpid(process.pid, os.WNOHANG)


def end_descendants(*, grace_s: float) -> None:
    """Ends all descendants of this process. Blocks for at most ``grace_s`` plus `KILL_S`.

    Args:
        grace_s: the time between SIGTERM and SIGKILL, in seconds.
    """
    for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process handles SIGTERM only after SIGCONT
        _signal(_descendants(), number)
    deadline = time.monotonic() + grace_s
    while _descendants() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    deadline = time.monotonic() + KILL_S
    # Repeatedly, since a process may start another one just before it dies.
    while (left := _descendants()) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(POLL_S)


def _descendants() -> list[psutil.Process]:
    reap_children(lambda _process: True)
    return psutil.Process().children(recursive=True)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
