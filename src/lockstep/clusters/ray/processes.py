"""Finds and ends the processes of one Ray node: by its first process's identity, by their session, and by a mark.

They are never ended with ``ray stop``, which ends every Ray on the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Final

import psutil

from lockstep.errors import EngineError
from lockstep.processes import ProcessIdentity, find_marked

STOP_TIMEOUT_S: Final = 10.0
STOP_POLL_S: Final = 0.02


def node_processes(
    first: ProcessIdentity | None, *, folder: str | None, variable: str, mark: str
) -> list[ProcessIdentity]:
    """Returns the living processes of a node: the members of its session, and processes that carry its mark.

    The mark finds a node if the process that started it died before it recorded the first process. Not all of Ray's
    processes keep the mark, because some overwrite their environment with their title.

    Args:
        first: the process that started all others, and leads their session; None if it is not known.
        folder: the folder of Ray's own files of this node; None if it is not known.
        variable: the environment variable that marks the node's processes.
        mark: the value of the variable.
    """
    marked = find_marked(variable, accept=lambda value: value == mark)
    members = {process.pid: process for process in marked}
    leaders = {pid for pid in members if _session(pid) == pid}
    orphaned: int | None = None
    if first is not None:
        # The kernel does not reuse a session's id as a process id while the session has members. So if another process
        # has the first process's id, the first one's session is empty. If no process has the id, a session with this id
        # may still be a later one that has lost its leader too; so its members must also look like Ray's.
        now = ProcessIdentity.of(first.pid)
        leaders.update({first.pid} if now == first else ())
        orphaned = first.pid if now is None else None
    for pid in psutil.pids():
        session = _session(pid)
        if session in leaders or (
            session is not None and session == orphaned and folder is not None and _is_rays(pid, folder)
        ):
            identity = ProcessIdentity.of(pid)
            if identity is not None and identity.is_alive:
                members[pid] = identity
    return list(members.values())


def end_processes(find: Callable[[], list[ProcessIdentity]], *, what: str) -> None:
    """Ends processes until none is found any more, with a timeout.

    Args:
        find: returns the processes that are still alive.
        what: the owner of the processes, for the error message.

    Raises:
        EngineError: some of them do not end.
    """
    deadline = time.monotonic() + STOP_TIMEOUT_S
    # SIGKILL, because after SIGTERM Ray would spend seconds on draining. Runners notice that their launchers have
    # ended, and end too. Repeated, because a process may start another one just before it is killed.
    while members := find():
        if time.monotonic() > deadline:
            pids = ", ".join(str(member.pid) for member in members)
            raise EngineError(f"processes of {what} do not end: {pids}", action="kill them manually")
        for member in members:
            member.send(signal.SIGKILL)
        time.sleep(STOP_POLL_S)


def _session(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return None


def _is_rays(pid: int, folder: str) -> bool:
    """Returns whether a process is one of Ray's: its command line names Ray's folder, or has the title of a worker."""
    with contextlib.suppress(psutil.Error, OSError):
        return any(folder in part or part.startswith("ray::") for part in psutil.Process(pid).cmdline())
    return False
