"""Which process is which, for good: a process id is given to another process in time, a `ProcessIdentity` is not.

What is written down of a process (the service, the engine's head, a prediction server) is compared long after, by
another process, perhaps across a step of the system's clock. A creation time in seconds since 1970 is computed from
that clock and moves with it; the ticks since boot that the kernel keeps, with the boot's own id, do not.
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
    """One process of this machine, now and for ever.

    Attributes:
        pid: its process id.
        start: when it began, as the kernel counts it: only equality has a meaning. Boot id and ticks since boot where
            there is ``/proc``; elsewhere the creation time.
    """

    pid: int
    start: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Returns the identity of the process that has an id now, ended and unreaped ones too; None if none has.

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
        """Reads back what `to_json` gave.

        Raises:
            CorruptDataError: it is something else.
        """
        match document:
            case {"pid": int(pid), "start": str(start)} if not isinstance(pid, bool):
                return cls(pid=pid, start=start)
            case _:
                raise CorruptDataError("not the identity of a process", received=document)

    def to_json(self) -> Mapping[str, Any]:
        """Returns a JSON object that `from_json` reads back."""
        return asdict(self)

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs; one that has ended and waits to be reaped does not."""
        seen = _look(self.pid)
        return seen is not None and seen[0] == self.start and not seen[1]

    @property
    def is_of_this_boot(self) -> bool:
        """Whether it began on this machine, since that was last started; True where nobody can say."""
        boot, separator, _ = self.start.partition("/")
        return not separator or boot == _boot_id()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if the process still runs and may be signalled.

        Args:
            number: the signal.
        """
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def wait(self, *, timeout_s: float) -> bool:
        """Waits until the process has ended; returns whether it has. It need not be a child.

        Args:
            timeout_s: how long to wait at the most.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


def find_marked(variable: str, *, accept: Callable[[str], bool]) -> list[ProcessIdentity]:
    """Returns the living processes that were started with an environment variable of an accepted value.

    The caller itself is left out, and so are processes whose environment may not be read: another user's.

    Args:
        variable: the variable's name.
        accept: says of its value whether the process is meant.
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
    """Returns the start of the process with an id, and whether it has ended unreaped; None if there is none."""
    return _look_in_proc(pid) if _HAS_PROC else _look_by_psutil(pid)


def _look_in_proc(pid: int) -> tuple[str, bool] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last one: hidden, so another user's
        return None
    fields = text[text.rindex(")") + 1 :].split()  # the name may hold anything, parentheses too
    # The main thread of a process may be a zombie while others are still on their way out.
    has_ended = fields[_STATE] in ("Z", "X") and int(fields[_NUM_THREADS]) <= 1
    return f"{_boot_id()}/{fields[_START_TICKS]}", has_ended


@functools.cache
def _boot_id() -> str:
    try:
        return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except (FileNotFoundError, PermissionError):  # some sandboxes have none
        return ""


def _look_by_psutil(pid: int) -> tuple[str, bool] | None:
    try:
        process = psutil.Process(pid)
        return repr(process.create_time()), process.status() == psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return None
