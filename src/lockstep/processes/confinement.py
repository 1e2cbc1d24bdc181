"""Processes that run as users of their own: dropping their privileges, giving them folders, and killing them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from lockstep.errors import LockstepError
from lockstep.processes.identities import POLL_S

MAX_PROCESSES: Final = 32768
"""The number of processes and threads that a job's user may have on a node: it stops a fork bomb, but no training."""
MAX_SERVER_PROCESSES: Final = 128
MAX_SERVER_PROCESSES_PER_CPU: Final = 32
"""The same for a prediction server, which runs one process with a few threads for each CPU."""

SEARCHABLE: Final = 0o711
CLOSED: Final = 0o700

PRIORITY: Final = 15
"""By how much the priority of a thread that watches a server is above that of the server. (A step is a fourth more.)"""

KILL_S: Final = 5.0
"""How long the processes of a user may take to end after they are killed, in seconds."""

_KILL_ALL_AS: Final = """
import os, signal, sys
user = int(sys.argv[1])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
try:
    os.kill(-1, signal.SIGKILL)
except ProcessLookupError:
    pass
"""
"""A program that becomes a user, and kills all processes that this user may signal, except itself."""

_PR_SET_NO_NEW_PRIVS: Final = 38  # from Linux's prctl.h


def drop_privileges(*, max_processes: int = MAX_PROCESSES) -> None:
    """Prevents this process and its children from gaining privileges and writing core dumps, and limits their number.

    Programs that they run get no privileges from set-user-id bits or file capabilities. All processes that are started
    from here on inherit this. Must be called before there are other threads.

    Args:
        max_processes: the number of processes and threads that the user of a program may have on the node.

    Raises:
        LockstepError: this process is not root, so it cannot start a program as another user.
    """
    if os.geteuid() != 0:
        raise LockstepError("the program must run as another user, but its runner is not root")
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise LockstepError(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain secrets
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = max_processes if most == resource.RLIM_INFINITY else min(most, max_processes)
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


def max_server_processes() -> int:
    """Returns the number of processes and threads that a prediction server may have on this node."""
    return MAX_SERVER_PROCESSES + MAX_SERVER_PROCESSES_PER_CPU * (os.cpu_count() or 1)


def raise_priority() -> None:
    """Gives the calling thread more processor time than programs get, however many processes they start.

    Does nothing where the system forbids it, as containers may.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - PRIORITY)


def kill_processes_of(user: int) -> None:
    """Kills every process of a user, whoever started it. Blocks for at most `KILL_S`.

    The kernel signals all of them at once, so processes that keep starting others cannot escape.

    Args:
        user: the user's id. No process that should survive may run as this user.

    Raises:
        LockstepError: this process is not root, or a process is still running after that time.
    """
    if os.geteuid() != 0:
        raise LockstepError("only root can kill the processes of another user", received=os.geteuid())
    assert user > 0, "root's processes are those of the whole system"
    deadline = time.monotonic() + KILL_S
    while left := _processes_of(user):
        if time.monotonic() >= deadline:
            raise LockstepError(f"processes of user {user} do not end: {', '.join(map(str, left))}")
        # It starts as root, because a user with too many processes could not start it. It is not a function between
        # fork and exec, because threads of this process (those of JAX, for example) may hold locks.
        command = [sys.executable, "-I", "-S", "-c", _KILL_ALL_AS, str(user)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            # What goes wrong shows by the processes that are left, and a message for each attempt would fill the log.
            subprocess.run(command, stderr=subprocess.DEVNULL, timeout=deadline - time.monotonic(), check=False)
        time.sleep(POLL_S)


def _processes_of(user: int) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if user in process.uids() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
