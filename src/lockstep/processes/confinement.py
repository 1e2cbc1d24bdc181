"""Processes that run as users of their own: dropping their privileges, giving them folders, and killing them."""

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
"""The number of processes and threads that a job's user may have on a node: it stops a fork bomb, but no training."""

SEARCHABLE: Final = 0o711
CLOSED: Final = 0o700

KILL_S: Final = 5.0
"""How long the processes of a user may take to end after they are killed, in seconds."""

_PR_SET_NO_NEW_PRIVS: Final = 38  # from Linux's prctl.h


def drop_privileges() -> None:
    """Prevents this process and its children from gaining privileges and writing core dumps, and limits their number.

    Programs that they run get no privileges from set-user-id bits or file capabilities. All processes that are started
    from here on inherit this. Must be called before there are other threads.

    Raises:
        LockstepError: this process is not root, so it cannot start a program as another user.
    """
    if os.geteuid() != 0:
        raise LockstepError("the program must run as another user, but its runner is not root")
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise LockstepError(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain secrets
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = MAX_PROCESSES if most == resource.RLIM_INFINITY else min(most, MAX_PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def change_owner(path: Path, *, user: int) -> None:
    """Makes a user the owner of a folder and everything in it, and creates the folder if it does not exist.

    No other process may change the folder meanwhile.

    Args:
        path: the folder.
        user: the id of the user, and of the user's group.
    """
    path.mkdir(exist_ok=True)
    path.chmod(CLOSED)
    for _, folders, files, at in os.fwalk(path):
        for name in (*folders, *files):
            os.chown(name, user, user, dir_fd=at, follow_symlinks=False)
    os.chown(path, user, user)


def switch_user(user: int) -> None:
    """Changes the user of this process permanently, after `drop_privileges`.

    Args:
        user: the id of the user, and of the process's only group.

    Raises:
        LockstepError: this process is not root.
    """
    drop_privileges()
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def kill_processes_of(user: int) -> None:
    """Kills every process of a user, whoever started it. Blocks for at most `KILL_S`.

    Args:
        user: the user's id. No process that should survive may run as this user.

    Raises:
        LockstepError: a process is still running after that time.
    """
    deadline = time.monotonic() + KILL_S
    while left := _processes_of(user):  # repeatedly, since a process may start another one just before it dies
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
