"""Runs the user's program as a process: starts it in its own session, waits for it, and ends it with its children."""

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
"""The time that a program's remaining processes have to end by themselves, and then to be killed, in seconds."""

_POLL_S: Final = 0.02


class AbstractProgram(Protocol):
    """A running program, as the runner's loop sees it: a `Program`, or a program in a container."""

    @property
    def pid(self) -> int:
        """The process id of its first process."""
        ...

    @property
    def started(self) -> float:
        """The time of the start, by ``time.monotonic()``."""
        ...

    @property
    def started_time_s(self) -> float:
        """The time of the start, in seconds since 1970 UTC."""
        ...

    @property
    def stdout(self) -> int:
        """The file descriptor of its standard output, non-blocking."""
        ...

    @property
    def stderr(self) -> int:
        """The file descriptor of its standard error, non-blocking."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the program has ended and the way it ended is known."""
        ...

    @property
    def end_report_delay_s(self) -> float:
        """The maximum time between the program's end and `ended`, in seconds."""
        ...

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if there is none."""
        ...

    @property
    def signal_name(self) -> str | None:
        """The name of the signal that ended it; None if none did, or if it is not known."""
        ...

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        ...

    @property
    def was_out_of_memory(self) -> bool:
        """Whether it is known that it was killed because it was out of memory."""
        ...

    @property
    def memory_limit_bytes(self) -> int:
        """Its memory limit, in bytes."""
        ...

    @property
    def problem(self) -> str | None:
        """How it was lost without an end of its own; None if it was not lost."""
        ...

    @property
    def has_children_left(self) -> bool:
        """Whether processes that it started are still alive."""
        ...

    def signal_program(self, number: signal.Signals) -> None:
        """Sends a signal to this program only, if this process runs several programs."""
        ...

    def signal_all(self, number: signal.Signals, *, excluding: Collection[int] = ()) -> None:
        """Sends a signal to the program and what it started, except for the given processes and their descendants."""
        ...

    def reap_adopted(self, *, excluding: Collection[int] = ()) -> None:
        """Reaps ended processes that this process has adopted, except those that other code waits for."""
        ...

    @property
    def meter(self) -> AbstractMeter:
        """The meter of its resources."""
        ...

    def final_usage(self) -> ProgramUsage:
        """Returns its total usage, after it has ended."""
        ...

    def close(self) -> None:
        """Releases the resources that are held for it, after it has ended."""
        ...


@final
class Program:
    """A running program that is a process of the node.

    Args:
        command: the program and its arguments.
        cwd: the working folder.
        env: the complete environment variables.
        user: the id of the user, and of the only group, that it runs as; None for this process's own.
        on_end: called once, from another thread, when the program itself has ended.

    Raises:
        OSError: If the program could not be started.

    Attributes:
        pid: the process id, which is also the id of its session and process group.
        started: the time of the start, by ``time.monotonic()``.
        started_time_s: the time of the start, in seconds since 1970 UTC.
        stdout: the file descriptor of its standard output, non-blocking.
        stderr: the file descriptor of its standard error, non-blocking.
        wait_status: the status that ``wait4`` returned; None while the program runs.
        rusage: the resource usage that ``wait4`` returned; None while the program runs.
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
        # wait4 rather than Popen.wait, because it returns the resource usage.
        _, status, self.rusage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.wait_status = status
        self._on_end()

    @property
    def ended(self) -> bool:
        """Whether the program itself has ended; its children may still be running."""
        return self.wait_status is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, or if a signal ended it."""
        if self.wait_status is None or not os.WIFEXITED(self.wait_status):
            return None
        return os.WEXITSTATUS(self.wait_status)

    @property
    def end_report_delay_s(self) -> float:
        """0: how a process ended is known as soon as it ends."""
        return 0.0

    @property
    def signal_name(self) -> str | None:
        """The name of the signal that ended it, such as ``SIGKILL``; None otherwise."""
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
    def was_out_of_memory(self) -> bool:
        """False: for a process of the node, nothing records who killed it."""
        return False

    @property
    def memory_limit_bytes(self) -> int:
        """Its memory limit, in bytes: the same as that of this process."""
        return memory_limit_bytes()

    @property
    def problem(self) -> str | None:
        """None: it is a child of this process, so it cannot be lost."""
        return None

    @property
    def meter(self) -> AbstractMeter:
        """The meter of the program and its children."""
        return self._meter

    def final_usage(self) -> ProgramUsage:
        """Returns the total usage, after the program has ended."""
        assert self.rusage is not None
        kibibytes = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there
        return self._meter.finish(
            cpu_s=self.rusage.ru_utime + self.rusage.ru_stime, peak_memory_bytes=self.rusage.ru_maxrss * kibibytes
        )

    def close(self) -> None:
        """Closes the pipes of the program's output."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()

    def signal_program(self, number: signal.Signals) -> None:
        """Sends a signal to the program's own process group."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(self.pid, number)

    def signal_all(self, number: signal.Signals, *, excluding: Collection[int] = ()) -> None:
        """Sends a signal to the program and everything that it started.

        Args:
            number: the signal.
            excluding: the ids of children that do not belong to the program; they and their descendants do not get the
                signal.
        """
        for process in self._descendants(excluding=excluding):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    @property
    def has_children_left(self) -> bool:
        """Whether processes that the program started are still alive."""
        return bool(self._descendants())

    def reap_adopted(self, *, excluding: Collection[int] = ()) -> None:
        """Reaps ended grandchildren that this process has adopted (see `adopt_orphans`).

        Args:
            excluding: the ids of children that other code waits for.
        """
        reap_children(lambda process: process.pid not in (self.pid, *excluding))

    def _descendants(self, *, excluding: Collection[int] = ()) -> list[psutil.Process]:
        """Returns the living descendants of this process in any session: the program and everything it started."""
        members: list[psutil.Process] = []
        excluded: set[int] = set(excluding)
        for pid in excluding:
            with contextlib.suppress(psutil.Error):
                excluded.update(process.pid for process in psutil.Process(pid).children(recursive=True))
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.pid in excluded:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE and not (self.ended and process.pid == self.pid):
                    members.append(process)
        return members


def end_descendants(program: AbstractProgram) -> None:
    """Ends a program and what it left running, so nothing of a job outlives it. Blocks for a bounded time."""
    if not program.has_children_left:
        return
    program.signal_all(signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while program.has_children_left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    deadline = time.monotonic() + END_S
    # Repeatedly, because a process that is about to die may still have started another one.
    while program.has_children_left and time.monotonic() < deadline:
        program.signal_all(signal.SIGKILL)
        time.sleep(_POLL_S)
