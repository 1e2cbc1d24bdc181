"""A process and all that it has started, whatever sessions they are in."""

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
"""How long the kernel may take to end what was killed."""

_PR_SET_CHILD_SUBREAPER: Final = 36  # from Linux's prctl.h


def adopt_orphans() -> None:
    """Has grandchildren whose parent ended fall to this process rather than to the system's first one (Linux alone).

    So a program that detaches a process, in a session of its own even, does not leave it behind.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_children(accept: Callable[[psutil.Process], bool]) -> None:
    """Asks for the exit codes of this process's ended children.

    Args:
        accept: says whether one is meant, and nobody else asks for its exit code.
    """
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE and accept(process):
                os.waitpid(process.pid, os.WNOHANG)


def end_descendants(*, grace_s: float) -> None:
    """Ends whatever this process has started, and what that has. Blocks, bounded.

    Args:
        grace_s: how long it has between SIGTERM and SIGKILL.
    """
    for number in (signal.SIGTERM, signal.SIGCONT):  # what is stopped cannot end by itself
        _signal(_descendants(), number)
    deadline = time.monotonic() + grace_s
    while _descendants() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    deadline = time.monotonic() + KILL_S
    # More than once: what is about to die may still have started another.
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
