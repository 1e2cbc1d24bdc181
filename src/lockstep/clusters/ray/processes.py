"""The processes of one Ray node, found by the identity of the first one, by their session, and by a mark.

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
    """Returns the living processes of a node: those of its session, and those that carry its mark.

    The mark finds a node whose starter died before it could write its number down. Not all of Ray's processes keep it:
    some write their title over their environment.

    Args:
        first: the process that started all others, and leads their session; None where it is not known.
        folder: Ray's own files of the node.
        variable: the environment variable that marks its processes.
        mark: its value.
    """
    marked = find_marked(variable, accept=lambda value: value == mark)
    members = {process.pid: process for process in marked}
    leaders = {pid for pid in members if _session(pid) == pid}
    orphaned: int | None = None
    if first is not None:
        # A session's number is not given away while the session has members: once another process has the first one's,
        # its session is empty. While nobody has it, the session may be a later one, that lost its leader too.
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
    """Ends processes until none is found any more; bounded.

    Args:
        find: returns those that live.
        what: what to call them in the error.

    Raises:
        EngineError: some of them do not end.
    """
    deadline = time.monotonic() + STOP_TIMEOUT_S
    # Not SIGTERM: Ray would take seconds to drain what nobody keeps. Runners see their launchers go, and end. More
    # than once: what is about to die may still have started another.
    while members := find():
        if time.monotonic() > deadline:
            pids = ", ".join(str(member.pid) for member in members)
            raise EngineError(f"processes of {what} do not end: {pids}", action="end them by hand")
        for member in members:
            member.send(signal.SIGKILL)
        time.sleep(STOP_POLL_S)


def _session(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return None


def _is_rays(pid: int, folder: str) -> bool:
    """Whether a process is one of Ray's: its command line names Ray's folder, or it is titled as Ray's workers are."""
    with contextlib.suppress(psutil.Error, OSError):
        return any(folder in part or part.startswith("ray::") for part in psutil.Process(pid).cmdline())
    return False
