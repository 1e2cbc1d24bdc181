"""The user's program as a process: started in a session of its own, waited for, and ended with all its children."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, final

import psutil

from lockstep.jobs.running.orders import ProgramUsage
from lockstep.processes.families import reap_children
from lockstep.runner.memory import memory_limit_bytes
from lockstep.runner.usage import AbstractMeter, UsageMeter

END_S: Final = 1.0
"""How long what a program left running has to end by itself, and how long it is looked for after that."""

_POLL_S: Final = 0.02


class AbstractProgram(Protocol):
    """What the runner's loop knows of a program: `Program`, or one in a container."""

    @property
    def pid(self) -> int:
        """Process id of its first process."""
        ...

    @property
    def started(self) -> float:
        """``time.monotonic()`` at the start."""
        ...

    @property
    def started_time_s(self) -> float:
        """Seconds since 1970 UTC at the start."""
        ...

    @property
    def stdout(self) -> int:
        """File descriptor of its standard output, non-blocking."""
        ...

    @property
    def stderr(self) -> int:
        """File descriptor of its standard error, non-blocking."""
        ...

    @property
    def ended(self) -> bool:
        """Whether it has ended, and it is known how."""
        ...

    @property
    def telling_s(self) -> float:
        """How long after its end, at the most, that may be known."""
        ...

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None where there is none."""
        ...

    @property
    def signal_name(self) -> str | None:
        """The signal that ended it, None where that is not known."""
        ...

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        ...

    @property
    def was_starved(self) -> bool:
        """Whether it is known that it was killed for want of memory."""
        ...

    @property
    def memory_limit_bytes(self) -> int:
        """How much memory it may have."""
        ...

    @property
    def problem(self) -> str | None:
        """How it was lost without an end of its own, None while it was not."""
        ...

    @property
    def has_children_left(self) -> bool:
        """Whether something that it started lives on."""
        ...

    def signal_own(self, number: signal.Signals) -> None:
        """Sends a signal to it alone, where this process runs several programs."""
        ...

    def signal_all(self, number: signal.Signals, *, spare: Collection[int] = ()) -> None:
        """Sends a signal to it and what it started, but for these processes and theirs."""
        ...

    def reap_adopted(self, *, spare: Collection[int] = ()) -> None:
        """Asks for the exit codes of processes that fell to the runner; somebody else asks for those to be spared."""
        ...

    @property
    def meter(self) -> AbstractMeter:
        """What measures it."""
        ...

    def final_usage(self) -> ProgramUsage:
        """Returns what it used in all, once it has ended."""
        ...

    def close(self) -> None:
        """Gives back what is held for it, once it has ended."""
        ...


@final
class Program:
    """One running program.

    Args:
        command: the program and its arguments.
        cwd: its working folder.
        env: its whole environment.
        user: id of the user that it runs as, and of its only group; None for this process's own.
        on_end: called once, from another thread, when the program itself has ended.

    Raises:
        OSError: the program could not be started.

    Attributes:
        pid: its process id, which is also the id of its session and its process group.
        started: ``time.monotonic()`` at the start.
        started_time_s: seconds since 1970 UTC at the start.
        stdout: file descriptor of its standard output, non-blocking.
        stderr: file descriptor of its standard error, non-blocking.
        wait_status: the status of ``wait4``, None while it runs.
        rusage: what the kernel accounted to it, None while it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        user: int | None = None,
        on_end: Callable[[], object],
    ) -> None:
        self.started = time.monotonic()
        self.started_time_s = time.time()
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=-1 if user is None else 0o022,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pid = self._process.pid
        self.stdout = self._process.stdout.fileno()
        self.stderr = self._process.stderr.fileno()
        os.set_blocking(self.stdout, False)
        os.set_blocking(self.stderr, False)
        self.wait_status: int | None = None
        self.rusage: resource.struct_rusage | None = None
        self._on_end = on_end
        self._meter = UsageMeter(self.pid, started=self.started)
        threading.Thread(target=self._wait, name="program-wait", daemon=True).start()

    def _wait(self) -> None:
        # wait4 rather than Popen.wait: it says what the program used.
        _, status, self.rusage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.wait_status = status
        self._on_end()

    @property
    def ended(self) -> bool:
        """Whether the program itself has ended; children of it may go on."""
        return self.wait_status is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs and where a signal ended it."""
        if self.wait_status is None or not os.WIFEXITED(self.wait_status):
            return None
        return os.WEXITSTATUS(self.wait_status)

    @property
    def telling_s(self) -> float:
        """None: how a process ended is known with its end."""
        return 0.0

    @property
    def signal_name(self) -> str | None:
        """The signal that ended it, such as ``SIGKILL``; None otherwise."""
        if self.wait_status is None or not os.WIFSIGNALED(self.wait_status):
            return None
        number = os.WTERMSIG(self.wait_status)
        with contextlib.suppress(ValueError):
            return signal.Signals(number).name
        return f"signal {number}"

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.signal_name == "SIGKILL"

    @property
    def was_starved(self) -> bool:
        """No: who killed it, nobody says of a process of the node."""
        return False

    @property
    def memory_limit_bytes(self) -> int:
        """How much memory it may have: as much as this process."""
        return memory_limit_bytes()

    @property
    def problem(self) -> str | None:
        """None: it is a child of this process, which cannot lose it."""
        return None

    @property
    def meter(self) -> AbstractMeter:
        """What measures it and its children."""
        return self._meter

    def final_usage(self) -> ProgramUsage:
        """Returns what it used in all, once it has ended."""
        assert self.rusage is not None
        kibibytes = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there
        return self._meter.finish(
            cpu_s=self.rusage.ru_utime + self.rusage.ru_stime, peak_memory_bytes=self.rusage.ru_maxrss * kibibytes
        )

    def close(self) -> None:
        """Closes the pipes of its output."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()

    def signal_own(self, number: signal.Signals) -> None:
        """Sends a signal to the program's own process group."""
        with contextlib.suppress(ProcessLookupError):  # it has ended in between
            os.killpg(self.pid, number)

    def signal_all(self, number: signal.Signals, *, spare: Collection[int] = ()) -> None:
        """Sends a signal to the program and everything that it started.

        Args:
            number: the signal.
            spare: ids of children that are not the program's; nothing that they started gets it either.
        """
        for process in self._family(spare=spare):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    @property
    def has_children_left(self) -> bool:
        """Whether processes that the program started live on."""
        return bool(self._family())

    def reap_adopted(self, *, spare: Collection[int] = ()) -> None:
        """Asks for the exit codes of ended grandchildren that fell to this process (see `adopt_orphans`).

        Args:
            spare: ids of children that somebody else asks for.
        """
        reap_children(lambda process: process.pid not in (self.pid, *spare))

    def _family(self, *, spare: Collection[int] = ()) -> list[psutil.Process]:
        """The living descendants of this process: the program, and all it started, whatever session they are in."""
        members: list[psutil.Process] = []
        spared: set[int] = set(spare)
        for pid in spare:
            with contextlib.suppress(psutil.Error):
                spared.update(process.pid for process in psutil.Process(pid).children(recursive=True))
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.pid in spared:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE and not (self.ended and process.pid == self.pid):
                    members.append(process)
        return members


def end_family(program: AbstractProgram) -> None:
    """Ends a program and what it left running, so that nothing of a job outlives it. Blocks, bounded."""
    if not program.has_children_left:
        return
    program.signal_all(signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while program.has_children_left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    deadline = time.monotonic() + END_S
    # More than once: what is about to die may still have started another.
    while program.has_children_left and time.monotonic() < deadline:
        program.signal_all(signal.SIGKILL)
        time.sleep(_POLL_S)
