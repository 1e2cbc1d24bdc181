"""A process and all that it has started, whatever sessions they are in."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final

import psutil

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
