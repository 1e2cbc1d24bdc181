"""Permanent identities of processes: the kernel reuses a process id, but a `ProcessIdentity` is never reused.

The recorded identity of a process (the service, the engine's head, a prediction server) is compared much later, by
another process, perhaps after the system's clock was changed. A creation time in seconds since 1970 is computed from
that clock, and changes with it. The kernel's ticks since boot, together with the id of the boot, do not change.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self, final

import psutil

from lockstep.errors import CorruptDataError

POLL_S: Final = 0.02

_PROC: Final = Path("/proc")
_HAS_PROC: Final = (_PROC / "self" / "stat").exists()
# Fields of /proc/PID/stat after the parenthesised name, counted from 0: see proc_pid_stat(5).
_STATE: Final = 0
_NUM_THREADS: Final = 17
_START_TICKS: Final = 19


@final
@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """The identity of one process of this machine, which no other process ever has.

    Attributes:
        pid: the process id.
        start: the start time of the process, which may only be compared for equality: the boot's id and the ticks since
            boot if there is ``/proc``, otherwise the creation time.
    """

    pid: int
    start: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Returns the identity of the process that has an id now, even if it is a zombie; None if there is none.

        Args:
            pid: the process id.
        """
        seen = _look(pid)
        return None if seen is None else cls(pid=pid, start=seen[0])

    @classmethod
    def of_self(cls) -> Self:
        """Returns the calling process's identity."""
        found = cls.of(os.getpid())
        assert found is not None
        return found

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Reads an identity from the document that `to_json` returns.

        Raises:
            CorruptDataError: the document is not the identity of a process.
        """
        match document:
            case {"pid": int(pid), "start": str(start)} if not isinstance(pid, bool):
                return cls(pid=pid, start=start)
            case _:
                raise CorruptDataError("not the identity of a process", received=document)

    def to_json(self) -> Mapping[str, Any]:
        """Returns the identity as a JSON object for `from_json`."""
        return asdict(self)

    @property
    def is_alive(self) -> bool:
        """Whether exactly this process is still running; False for a zombie."""
        seen = _look(self.pid)
        return seen is not None and seen[0] == self.start and not seen[1]

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the process was started on this machine since its last boot; True if that is unknown."""
        boot, separator, _ = self.start.partition("/")
        return not separator or boot == _boot_id()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if the process is still running and this user may send it signals.

        Args:
            number: the signal.
        """
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def wait(self, *, timeout_s: float) -> bool:
        """Waits until the process has ended, and returns whether it has. It need not be a child of this process.

        Args:
            timeout_s: how long to wait, in seconds.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


def find_marked(variable: str, *, accept: Callable[[str], bool]) -> list[ProcessIdentity]:
    """Returns the running processes that were started with an environment variable of an accepted value.

    Leaves out the calling process, and processes whose environment may not be read, such as another user's.

    Args:
        variable: the variable's name.
        accept: returns whether to include the process with a value of the variable.
    """
    found: list[ProcessIdentity] = []
    for pid in psutil.pids():
        identity = ProcessIdentity.of(pid)
        if identity is None or pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            value = psutil.Process(pid).environ().get(variable)
            if value is not None and accept(value) and identity.is_alive:
                found.append(identity)
    return found


def _look(pid: int) -> tuple[str, bool] | None:
    """Returns the start time of the process with an id, and whether it is a zombie; None if there is no process."""
    return _look_in_proc(pid) if _HAS_PROC else _look_by_psutil(pid)


def _look_in_proc(pid: int) -> tuple[str, bool] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (
        FileNotFoundError,
        ProcessLookupError,
        PermissionError,
    ):  # the last one: hidden, because it is another user's
        return None
    fields = text[text.rindex(")") + 1 :].split()  # the name may contain anything, even parentheses
    # The main thread of a process may be a zombie while its other threads are still ending.
    has_ended = fields[_STATE] in ("Z", "X") and int(fields[_NUM_THREADS]) <= 1
    return f"{_boot_id()}/{fields[_START_TICKS]}", has_ended


@functools.cache
def _boot_id() -> str:
    try:
        return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except (FileNotFoundError, PermissionError):  # some sandboxes lack it
        return ""


def _look_by_psutil(pid: int) -> tuple[str, bool] | None:
    try:
        process = psutil.Process(pid)
        return repr(process.create_time()), process.status() == psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return None
