"""Processes that run as users of their own: what is taken from them, what they are given, and how all of them end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from lockstep.errors import LockstepError
from lockstep.processes.identities import POLL_S

MAX_PROCESSES: Final = 32768
"""How many processes and threads a job's user may have on a node: a fork bomb ends, a training does not."""

SEARCHABLE: Final = 0o711
CLOSED: Final = 0o700

KILL_S: Final = 5.0
"""How long the processes of a user may take to end once they are killed."""

_PR_SET_NO_NEW_PRIVS: Final = 38  # from Linux's prctl.h


def give_up_privileges() -> None:
    """Sees to it that whatever this process starts gets no privileges by what it runs, and leaves no core dumps.

    Both stay with all that is started from here on; called before there are other threads.

    Raises:
        LockstepError: this process is not root, so that it cannot start a program as another user.
    """
    if os.geteuid() != 0:
        raise LockstepError("its program is to run as another user, and its runner is not root")
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise LockstepError(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would hold secrets
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = MAX_PROCESSES if most == resource.RLIM_INFINITY else min(most, MAX_PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def give(path: Path, *, user: int) -> None:
    """Gives a folder with all that is in it to a user; made if absent. Nobody else may be at work in it.

    Args:
        path: the folder.
        user: the user's id, and its group's.
    """
    path.mkdir(exist_ok=True)
    path.chmod(CLOSED)
    for _, folders, files, at in os.fwalk(path):
        for name in (*folders, *files):
            os.chown(name, user, user, dir_fd=at, follow_symlinks=False)
    os.chown(path, user, user)


def become(user: int) -> None:
    """Makes this process a user's for good, with no group but that of the same number. Privileges are given up first.

    Args:
        user: the user's id.

    Raises:
        LockstepError: this process is not root.
    """
    give_up_privileges()
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def end_all_of(user: int) -> None:
    """Kills every process of a user, whoever started it. Blocks, bounded.

    Args:
        user: the user's id, which nothing that is to live on runs as.

    Raises:
        LockstepError: one goes on even so.
    """
    deadline = time.monotonic() + KILL_S
    while left := _processes_of(user):  # more than once: what is about to die may still have started another
        if time.monotonic() > deadline:
            raise LockstepError(f"processes of user {user} do not end: {', '.join(str(each.pid) for each in left)}")
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)


def _processes_of(user: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if user in process.uids() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
