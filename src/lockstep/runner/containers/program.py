"""Runs a program in a container, with the same interface for the runner's loop as a process of the node."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, final

from lockstep.containers import ContainerEngine, ContainerState, inspect
from lockstep.containers.commands import kill, remove, start
from lockstep.errors import ContainerEngineError, ImageError, LockstepError
from lockstep.jobs.running.orders import ProgramUsage
from lockstep.processes.families import reap_children
from lockstep.runner.containers.usage import ContainerMeter
from lockstep.runner.usage import AbstractMeter

START_TIMEOUT_S: Final = 120.0
SETTLE_TIMEOUT_S: Final = 10.0
END_REPORT_DELAY_S: Final = 30.0
SAMPLE_INTERVAL_S: Final = 0.25
_POLL_S: Final = 0.05
_CALL_TIMEOUT_S: Final = 15.0
_KILLED: Final = 128 + signal.SIGKILL
_WATCHER: Final = "conmon"
_OOM_NOTE: Final = "oom"
"""The file that podman's watcher (conmon) writes to its working folder if the kernel reports an out-of-memory kill."""
_NOT_RUNNABLE: Final = re.compile(
    r"executable file|exec: |exec format error|command that was not found|chdir to cwd|no such file or directory"
)
"""What container runtimes report if an image does not have its entry point or working folder."""


@final
class ContainerProgram:
    """A running program in a container. Starts a created container, with its output; blocks until its program runs.

    The engine's command that forwards the output is a child of this process, but the container is not: it has to be
    ended and removed by name.

    Args:
        engine: the container engine of the node.
        name: the name of the container.
        folder: the working folder of the engine's command, which may write notes there.
        image: the image's name, for messages.
        memory_limit_bytes: the memory limit, in bytes.
        on_end: called once, from another thread, when the program has ended.

    Raises:
        ImageError: If the image does not have what it has to run.
        ContainerEngineError: If the engine could not start the container.

    Attributes:
        pid: the process id of its first process on the node; if the node does not see it, that of the engine's command.
        started: the time of the start, by ``time.monotonic()``.
        started_time_s: the time of the start, in seconds since 1970 UTC.
        stdout: the file descriptor of its standard output, non-blocking.
        stderr: the file descriptor of its standard error, non-blocking.
        memory_limit_bytes: the memory limit, in bytes.
        problem: how the container was lost; None if it was not lost.
    """

    def __init__(
        self,
        engine: ContainerEngine,
        *,
        name: str,
        folder: Path,
        image: str,
        memory_limit_bytes: int,
        on_end: Callable[[], object],
    ) -> None:
        self._engine = engine
        self._name = name
        self._folder = folder
        self._on_end = on_end
        self.memory_limit_bytes = memory_limit_bytes
        self.problem: str | None = None
        self._last: ContainerState | None = None
        self._ended = threading.Event()
        try:
            self._client = subprocess.Popen(
                [engine.path, *start(name)],
                env=dict(engine.env),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ContainerEngineError(f"{engine.kind} could not be run: {error}") from error
        assert self._client.stdout is not None
        assert self._client.stderr is not None
        self.stdout = self._client.stdout.fileno()
        self.stderr = self._client.stderr.fileno()
        try:
            state = self._await_start(image)
        except LockstepError:
            self._client.kill()
            self._client.wait()
            self.close()
            raise
        self.started = time.monotonic()
        self.started_time_s = time.time()
        os.set_blocking(self.stdout, False)
        os.set_blocking(self.stderr, False)
        self.pid = state.pid or self._client.pid
        self._meter = ContainerMeter(state.pid, started=self.started)
        threading.Thread(target=self._measure, name="container-usage", daemon=True).start()
        threading.Thread(target=self._wait, name="container-wait", daemon=True).start()

    def _await_start(self, image: str) -> ContainerState:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            has_client_ended = self._client.poll() is not None
            state = inspect(self._engine, self._name)
            if state is not None and state.started:
                return state
            if has_client_ended or state is None:
                raise self._start_error(image, state)
            if time.monotonic() > deadline:
                raise ContainerEngineError(
                    f"{self._engine.kind} did not start the container within {START_TIMEOUT_S:.0f} s"
                )
            time.sleep(_POLL_S)

    def _start_error(self, image: str, state: ContainerState | None) -> LockstepError:
        self._client.kill()
        assert self._client.stderr is not None
        said = self._client.stderr.read().decode(errors="replace").strip().splitlines()
        reason = (state.error if state is not None else "") or (said[-1] if said else "the container is gone")
        is_images = (state is not None and state.exit_code in (126, 127)) or _NOT_RUNNABLE.search(reason)
        if is_images:
            return ImageError(
                f"image {image}: its entry point cannot be run: {reason}",
                action="check its ENTRYPOINT, or containerCommand",
            )
        return ContainerEngineError(f"{self._engine.kind} could not start the container: {reason}")

    def _measure(self) -> None:
        self._meter.sample()
        while not self._ended.wait(SAMPLE_INTERVAL_S):
            self._meter.sample()

    def _wait(self) -> None:
        code = self._client.wait()
        try:
            self._last = self._settled()
            if self._last is None:
                self.problem = "its container was removed while it ran"
            elif self._last.running:
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                self.problem = f"{self._engine.kind}'s command beside its container ended unexpectedly ({how})"
                self._engine.call(kill([self._name], signal="KILL"), timeout_s=_CALL_TIMEOUT_S)
        except ContainerEngineError as error:
            self.problem = f"its container engine was lost: {error}"
        finally:
            self._ended.set()
            self._on_end()

    def _settled(self) -> ContainerState | None:
        """Returns the state of the ended container, which the engine may know slightly later than its command."""
        deadline = time.monotonic() + (SETTLE_TIMEOUT_S if self._client.returncode >= 0 else 0.0)
        while True:
            state = inspect(self._engine, self._name)
            if state is None or not state.running or time.monotonic() > deadline:
                return state
            time.sleep(_POLL_S)

    @property
    def ended(self) -> bool:
        """Whether the program, and with it everything that it started, has ended."""
        return self._ended.is_set()

    @property
    def end_report_delay_s(self) -> float:
        """The time that a busy engine may take to end the command beside the container and report it, in seconds."""
        return END_REPORT_DELAY_S

    @property
    def exit_code(self) -> int | None:
        """The exit code: 128 plus the signal's number if a signal ended it; None while it runs, or if it was lost."""
        return None if self._last is None or self.problem is not None else self._last.exit_code

    @property
    def signal_name(self) -> str | None:
        """None: for a container, the exit code identifies the signal."""
        return None

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.exit_code == _KILLED

    @property
    def was_out_of_memory(self) -> bool:
        """Whether the engine, or its watcher, reported that it was killed because it was out of memory."""
        return self.was_killed and (
            (self._last is not None and self._last.out_of_memory) or (self._folder / _OOM_NOTE).exists()
        )

    @property
    def meter(self) -> AbstractMeter:
        """The meter of its resources."""
        return self._meter

    def final_usage(self) -> ProgramUsage:
        """Returns the total usage; the last quarter of a second may be missing."""
        return self._meter.sample()

    def close(self) -> None:
        """Closes the pipes of its output, and removes the container."""
        assert self._client.stdout is not None
        assert self._client.stderr is not None
        self._client.stdout.close()
        self._client.stderr.close()
        with contextlib.suppress(ContainerEngineError):  # the reaper tries again
            self._engine.call(remove([self._name]), timeout_s=_CALL_TIMEOUT_S)

    def signal_program(self, number: signal.Signals) -> None:
        """Sends a signal to the program; SIGKILL also ends everything that it started."""
        self.signal_all(number)

    def signal_all(self, number: signal.Signals, *, excluding: Collection[int] = ()) -> None:
        """Sends a signal to the program and to nothing beside it; SIGKILL also ends everything that it started."""
        with contextlib.suppress(ContainerEngineError):  # it or the engine has ended: the loop sees either
            self._engine.call(kill([self._name], signal=number.name.removeprefix("SIG")), timeout_s=_CALL_TIMEOUT_S)

    @property
    def has_children_left(self) -> bool:
        """False: what a program started in a container ends with it."""
        return False

    def reap_adopted(self, *, excluding: Collection[int] = ()) -> None:
        """Reaps podman's watchers (conmon), which this process has adopted; see `reap_children`."""
        # Only by this name: other code waits for the engine's commands, whichever thread has started them.
        reap_children(lambda process: process.name() == _WATCHER)
